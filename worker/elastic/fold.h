/* SPDX-License-Identifier: Apache-2.0 */
/* fold.h - the kind of state of which each replica has a value of its own (state_kinds.each), as one value for all: the
 * mean over the replicas. Checkpoints hold it, and the state that is loaded from them begins with it on every replica.
 * transfer.h makes the same means between memories. */
#ifndef TITAN_WORKER_ELASTIC_FOLD_H
#define TITAN_WORKER_ELASTIC_FOLD_H

#include "worker/elastic/peer_values.h"
#include "worker/state/state.h"

/* Collective over the ranks that hold the same shard, one of each replica; waits for the stream. ret (layout_total):
 * host memory for the means, in the order of the masters (layout_each_place); NULL: this rank wants none. A mean is
 * the sum in rank order, times 1 / ranks. The state stays as it is. */
titan_status fold_replicas(const struct train_state *state, const struct peer_ranks *replicas, float *ret,
                           struct titan_error *err) TITAN_MUST_USE;

#endif
