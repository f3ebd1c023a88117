/* SPDX-License-Identifier: Apache-2.0 */
/* simulate.h - a step's programs on a virtual clock: the machine `sim`.
 *
 * The very programs that run are walked: every stream of one rank of each class takes its actions in order, an action
 * begins when its stream is free, what it waits for is over, the host has issued it and its partners are there, and
 * lasts what the cost model says. A SEND and its RECV begin together; so does the AGREE of all. Members of any other
 * group are of one class, and one of them stands for all. Programs of one pipeline are simulated together: one class
 * for each pp rank, the one with the largest share.
 *
 * Members work equally long only on average, and a collective begins when the last of n has come: after the work before
 * it, and E(n) of this work's standard deviations. E(n) is the expected largest of n values of a standard normal
 * distribution (0.56, 1.03, 1.42 for 2, 4, 8; H. A. David, Order Statistics). Deviations of one action after the other
 * are added, as what makes a rank slow lasts longer than an action; a collective that the compute stream waited for
 * brings the members together again. SEND and RECV have no spread. */
#ifndef TITAN_WORKER_PLAN_SIMULATE_H
#define TITAN_WORKER_PLAN_SIMULATE_H

#include "worker/plan/cost.h"

struct simulation_options {
    const struct program *const *programs; /* [pp], finished; borrowed */
    int n;
    double issue; /* s, the host issues one action */
    double (*time)(void *arg, const struct program *p, const struct action *a);
    double (*spread)(void *arg, const struct program *p, const struct action *a); /* of a time; NULL: all have none */
    void *arg;
};

struct simulated_rank {
    const struct program *program;
    double *start, *end;           /* of every action, s */
    double *drift;                 /* at its end: standard deviation of the work since members were together, s */
    double finish;                 /* of the last one */
    double compute;                /* s the compute stream works */
    double forward, backward;      /* s of it: forward; recomputation, dgrad and wgrad */
    double first, last;            /* begin of the first and end of the last action of forward and backward */
    double exposed[CHANNEL_COUNT]; /* s the compute stream stands still waiting for a transfer of this channel */
    double bytes[CHANNEL_COUNT];   /* this rank sends (action_wire_bytes) */
};

struct simulation {
    int n;
    struct simulated_rank *ranks;
    double step;   /* s, all ranks */
    double bubble; /* mean over ranks: share of first..last of the earliest and latest rank without compute */
};

/* TITAN_EINVAL where the programs cannot run to their end: names a rank, the action it stands at, and what for. */
titan_status simulate(const struct simulation_options *options, struct simulation **ret,
                      struct titan_error *err) TITAN_MUST_USE;
void simulation_close(struct simulation *s); /* NULL is fine */

/* A whole timeline (timeline.h); or the end of one that timeline_reopen() has begun. zero: where the step begins, in s.
 */
void simulation_timeline(const struct simulation *s, double zero, struct buf *out);

#endif
