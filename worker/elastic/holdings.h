/* SPDX-License-Identifier: Apache-2.0 */
/* holdings.h - which rank holds which part of a state, and is it whole?
 *
 * When the state of an epoch comes from the memory of its members (and departing ranks: all ranks of the communicator
 * the state moves over), each says what it holds of the source epoch: its own shard and, as a buddy, the copy of its
 * owner's. All have the same table then and come to the same verdict: what every shard is taken from, which recovery
 * source that is (docs/membership.md), and which has yet to finish a prepared step with the statistics of one that has.
 */
#ifndef TITAN_WORKER_ELASTIC_HOLDINGS_H
#define TITAN_WORKER_ELASTIC_HOLDINGS_H

#include "worker/comm/comm.h"
#include "worker/elastic/membership.h"
#include "worker/state/state.h"

/* What a worker has of one epoch. */
struct held_shards {
    struct train_state *own;  /* NULL: nothing */
    struct train_state *copy; /* of the part of the rank that it is the buddy of; NULL: none */
};

void held_shards_close(struct held_shards *shards); /* leaves nothing */

/* What it brings into the next one. */
struct brought {
    struct held_shards shards;
    bool prepared;            /* the step after own's */
    const double *statistics; /* of own's step, for others to finish it with; NULL: it is not there */
    int64_t statistics_size;  /* doubles */
    int64_t statistics_most;  /* that a rank of the source epoch can have */
    bool published;           /* this worker has published own's step, as rank 0 */
};

/* Doubles carry it: exact up to 2^53. */
struct holding {
    double present, rank, world, total, step, tokens, skipped, skipped_in_a_row, skipped_first, skipped_last, owner,
        owner_total, prepared, statistics_size, published;
};

struct holdings {
    const struct epoch_view *view;
    const struct layout *from; /* the source epoch's cut */
    int ranks;                 /* members and departing ranks */
    struct holding *all;       /* (ranks) */
    int *holder;               /* (shards) rank that gives it; -1: none, a replica of it has to */
    bool *copied;              /* (shards) what that rank gives is the copy of its owner's shard */
    int *candidates;           /* (shards) scratch */
    enum recovery_source recovery_source;
    uint64_t step, tokens; /* of the furthest */
    struct skipped_steps skipped;
    int behind;          /* ranks that have it prepared only */
    int statistics_from; /* a rank that has the statistics of that step */
    int64_t statistics_size;
    bool published; /* by one that is here */
};

/* Collective over comm (NULL: alone). from is borrowed. TITAN_ECONFLICT, on every rank alike, when what is in memory is
 * no whole state of one step, or a rank says what cannot be; the ranks may go on with another recovery source then. */
titan_status holdings_gather(const struct epoch_view *view, const struct layout *from, const struct brought *mine,
                             const struct device_handle *device, const struct comm_ops *ops, struct comm *comm,
                             struct stream *s, struct holdings *ret, struct titan_error *err) TITAN_MUST_USE;
void holdings_clear(struct holdings *h);

/* Doubles of all ranks of comm (world: how many), each `count`. Host memory on both sides; waits for the stream. */
titan_status holdings_gather_doubles(const struct device_handle *device, const struct comm_ops *ops, struct comm *comm,
                                     int world, const double *mine, size_t count, double *ret_all, struct stream *s,
                                     struct titan_error *err) TITAN_MUST_USE;

#endif
