/* SPDX-License-Identifier: Apache-2.0 */
/* holdings.h - finds which rank holds which part of a state, and whether the state is complete.
 * An epoch's state can come from the memory of its members and departing ranks (all ranks of the communicator that
 * moves the state). Each rank then lists its holdings of the source epoch: its own shard and, as a buddy, the copy of
 * its owner's shard. All ranks get the same table and the same verdict: the source of every shard, the recovery source
 * (docs/membership.md), and the ranks that must finish a prepared step with a finished rank's statistics. */
#ifndef TITAN_WORKER_ELASTIC_HOLDINGS_H
#define TITAN_WORKER_ELASTIC_HOLDINGS_H

#include "worker/elastic/membership.h"
#include "worker/elastic/peer_values.h"
#include "worker/state/state.h"

/* A worker's shards of one epoch. */
struct held_shards {
    struct train_state *own;  /* NULL = none */
    struct train_state *copy; /* the copy of the owner's shard that this worker keeps as a buddy; NULL = none */
};

void held_shards_close(struct held_shards *shards); /* leaves it empty */

/* What a worker brings into the next epoch. */
struct brought {
    struct held_shards shards;
    bool prepared;            /* the step after the step of `own` is prepared */
    const double *statistics; /* of the step of `own`, for ranks that must still finish this step; NULL = none */
    int64_t statistics_size;  /* doubles */
    int64_t statistics_most;  /* upper bound of statistics_size for any rank of the source epoch */
    bool published;           /* as rank 0, this worker published the step of `own` */
};

/* Values are sent as doubles, which are exact up to 2^53. */
struct holding {
    double present, rank, world, total, step, tokens, skipped, skipped_in_a_row, skipped_first, skipped_last, owner,
        owner_total, prepared, statistics_size, published, settled;
};

struct holdings {
    const struct epoch_view *view;
    const struct layout *from; /* layout of the source epoch */
    int ranks;                 /* members and departing ranks */
    struct holding *all;       /* (ranks) */
    int *holder;               /* (shards) rank that gives the shard; -1: no rank does, so a replica gives its data */
    bool *copied;              /* (shards) the rank gives a buddy's copy */
    int *candidates;           /* (shards) scratch */
    enum recovery_source recovery_source;
    uint64_t step, tokens; /* of the most advanced rank */
    struct skipped_steps skipped;
    int behind;          /* number of ranks that have only prepared `step` */
    int statistics_from; /* a rank with the statistics of `step` */
    int64_t statistics_size;
    bool published; /* `step` was published by a rank that is here */
    bool settled;   /* every rank of the source epoch is here, and has settled its state (state_settle) */
};

/* Collective over the members and departing ranks. from is borrowed. TITAN_ECONFLICT, on every rank alike: the memory
 * holds no complete state of one step, or a rank's numbers are impossible. The ranks may then use another recovery
 * source. */
titan_status holdings_gather(const struct epoch_view *view, const struct layout *from, const struct brought *mine,
                             const struct peer_ranks *ranks, struct holdings *ret,
                             struct titan_error *err) TITAN_MUST_USE;
void holdings_clear(struct holdings *h);

#endif
