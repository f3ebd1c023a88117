/* SPDX-License-Identifier: Apache-2.0 */
/* simulate.h - a step's programs on a virtual clock: the machine `sim`.
 *
 * The simulation walks the programs that run. Every stream of one rank of each class takes its actions in order. An
 * action begins when its stream is free, its waits are over, the host has issued it and its partners are there. It
 * lasts as long as the cost model says. A SEND and its RECV begin together. The AGREE of all ranks begins together,
 * too. Members of any other group are of one class, and one member stands for all. The programs of one pipeline are
 * simulated together: for each pp rank, the program of the class with the largest share.
 *
 * Members work equally long only on average, and a collective begins when the last of n members has come. It comes E(n)
 * standard deviations later than the mean, where the deviation is of the work before the collective. E(n) is the
 * expected largest of n values of a standard normal distribution (0.56, 1.03, 1.42 for 2, 4, 8; H. A. David, Order
 * Statistics). Deviations of successive actions are added, because what makes a rank slow lasts longer than an action.
 * A collective that the compute stream waited for brings the members together again: the sum begins anew. SEND and RECV
 * have no spread.
 *
 * Ranks may have buddies (elastic/buddy.h): each gradient shard goes to the buddy once final, one message after the
 * other, and so does the state that owners of matrices make. AGREE begins when the buddies of all ranks have all that
 * was final before it, and so does COMMIT. */
#ifndef TITAN_WORKER_PLAN_SIMULATE_H
#define TITAN_WORKER_PLAN_SIMULATE_H

#include "worker/plan/cost.h"

struct simulation_options {
    const struct program *const *programs; /* [pp], finished; borrowed */
    int n;
    double issue; /* s that the host takes to issue one action */
    double (*time)(void *arg, const struct program *p, const struct action *a);
    /* Standard deviation of a time. NULL: no action has a spread. */
    double (*spread)(void *arg, const struct program *p, const struct action *a);
    /* Seconds that a message of so many bytes takes to a buddy. NULL: ranks have no buddies. */
    double (*to_buddy)(void *arg, const struct program *p, double bytes);
    void *arg;
};

struct simulated_rank {
    const struct program *program;
    double *start, *end; /* of every action, s */
    double *drift;       /* after every action: standard deviation of the work since members were last together, s */
    double finish;       /* end of the last action */
    double compute;      /* s that the compute stream works */
    double forward, backward;      /* parts of `compute`; backward has recomputation, dgrad and wgrad */
    double first, last;            /* begin of the first action, and end of the last action, of forward and backward */
    double exposed[CHANNEL_COUNT]; /* s that the compute stream waits for a transfer of this channel */
    double bytes[CHANNEL_COUNT];   /* bytes that this rank sends (action_wire_bytes) */
    double buddy;                  /* s that AGREE and COMMIT wait for buddies */
    double buddy_bytes;            /* bytes that this rank sends to its buddy */
    struct final *finals;          /* gradient shards that go to the buddy; NULL: ranks have no buddies */
    int n_finals;
};

struct simulation {
    int n;
    struct simulated_rank *ranks;
    double step;   /* s, all ranks */
    double bubble; /* share of time without compute between earliest `first` and latest `last`; mean over ranks */
};

/* TITAN_EINVAL: the programs cannot run to their end. The error names a rank, the action where the rank stops, and the
 * reason. */
titan_status simulate(const struct simulation_options *options, struct simulation **ret,
                      struct titan_error *err) TITAN_MUST_USE;
void simulation_close(struct simulation *s); /* NULL is fine */

/* Writes a whole timeline (timeline.h), or the end of a timeline that timeline_reopen() has begun. zero: begin of the
 * step, s. */
void simulation_timeline(const struct simulation *s, double zero, struct buf *out);

#endif
