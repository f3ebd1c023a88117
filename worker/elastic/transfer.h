/* SPDX-License-Identifier: Apache-2.0 */
/* transfer.h - live resharding: turns the previous epoch's training state, cut for its mesh, into this epoch's without
 * a disk.
 *
 * The holdings name the rank that gives each shard (holdings.h): the shard's own rank or its buddy. Data with several
 * holders (replicas, tensors that tensor parallelism leaves whole) comes from this rank's own memory if present, else
 * from one holder, rotated by rank to share the work. Old and new slices are intersected (shard_slice_overlap). A rank
 * copies what it keeps; the rest travels point to point in messages of bounded size, in one order known to all ranks.
 * The result is bit for bit the same as from a checkpoint of the old state. */
#ifndef TITAN_WORKER_ELASTIC_TRANSFER_H
#define TITAN_WORKER_ELASTIC_TRANSFER_H

#include "worker/elastic/holdings.h"

/* The old state and the new one. */
struct resharding {
    const struct holdings *holdings;
    const struct held_shards *mine; /* this rank's shards of the source epoch */
    const struct layout *cut;       /* of the new epoch */
    struct train_state *to; /* an empty state in that layout; gets step, tokens and skipped. NULL: the rank departs */
};
/* Collective over the ranks of the holdings. *ret_sent: bytes that this rank sent. */
titan_status state_transfer(const struct resharding *what, const struct peer_ranks *ranks, uint64_t *ret_sent,
                            struct titan_error *err) TITAN_MUST_USE;

#endif
