/* SPDX-License-Identifier: Apache-2.0 */
/* transfer.h - live resharding: the training state of the previous epoch, cut for its mesh, becomes this epoch's
 * without touching a disk.
 *
 * The holdings say which rank gives which shard (holdings.h): the rank that it was the shard of, or its buddy. What
 * several ranks held alike - replicas, tensors that tensor parallelism leaves whole - comes from this rank's own memory
 * where it is there, otherwise from one of its holders, turned by rank so that they share the work. Old and new slices
 * are intersected (shard_slice_overlap); what a rank keeps is copied, the rest travels point to point in messages of
 * bounded size, in one order that all ranks know. The result is bit for bit what loading a checkpoint of the old state
 * would give. */
#ifndef TITAN_WORKER_ELASTIC_TRANSFER_H
#define TITAN_WORKER_ELASTIC_TRANSFER_H

#include "worker/elastic/holdings.h"

/* mine: what this rank has of the source epoch. cut: of the new epoch. to: an empty state of it; filled, with step,
 * tokens and skipped; NULL: this rank is a departing rank. Collective over comm (NULL when alone). *ret_sent: bytes
 * that this rank has given to others. */
titan_status state_transfer(const struct holdings *holdings, const struct held_shards *mine, const struct layout *cut,
                            struct train_state *to, const struct device_handle *device, const struct comm_ops *ops,
                            struct comm *comm, struct stream *s, uint64_t *ret_sent,
                            struct titan_error *err) TITAN_MUST_USE;

#endif
