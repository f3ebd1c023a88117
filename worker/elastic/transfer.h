/* SPDX-License-Identifier: Apache-2.0 */
/* transfer.h - live resharding: turns the previous epoch's training state into this epoch's state, which is cut for
 * another mesh, without a disk.
 *
 * The holdings name the rank that gives each shard (holdings.h): the shard's own rank or its buddy. Data with several
 * holders (replicas, tensors that tensor parallelism leaves whole) comes from this rank's own memory if it is there,
 * otherwise from one holder. Different ranks take different holders, to share the work. Old and new slices are
 * intersected (shard_slice_overlap). Of the kind of state of which each replica has a value of its own
 * (state_kinds.each), a new rank gets the mean of the replicas that hold it. A rank copies the data that it keeps. All
 * other data travels point to point in messages of bounded size, in an order that all ranks know. The result is bit for
 * bit the same as from a checkpoint of the old state. */
#ifndef TITAN_WORKER_ELASTIC_TRANSFER_H
#define TITAN_WORKER_ELASTIC_TRANSFER_H

#include "worker/elastic/holdings.h"

/* The old state and the new one. */
struct resharding {
    const struct holdings *holdings;
    const struct held_shards *mine; /* this rank's shards of the source epoch */
    const struct layout *cut;       /* of the new epoch */
    struct train_state *to; /* empty, in layout `cut`; gets also step, tokens and skipped. NULL: the rank departs */
};
/* Collective over the ranks of the holdings. *ret_sent: bytes that this rank sent. */
titan_status state_transfer(const struct resharding *what, const struct peer_ranks *ranks, uint64_t *ret_sent,
                            struct titan_error *err) TITAN_MUST_USE;

#endif
