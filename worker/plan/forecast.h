/* SPDX-License-Identifier: Apache-2.0 */
/* forecast.h - what a plan costs before it runs: memory by kind, bytes by axis, step time, MFU, bubble, the slowest
 * thing.
 *
 * Everything is read off the programs and their simulation; nothing is run. */
#ifndef TITAN_WORKER_PLAN_FORECAST_H
#define TITAN_WORKER_PLAN_FORECAST_H

#include "worker/plan/plan.h"
#include "worker/plan/simulate.h"

struct forecast_memory {
    int pp_rank;
    size_t bytes[MEMORY_COUNT]; /* when most is needed; HOST is not part of the sum */
    size_t total;               /* of the device, as planned */
    size_t process, peers;      /* what a process has besides, and its communicators */
    double predicted;           /* all of the device; where that computes in the host's memory, with HOST */
};

/* Where a rank's step goes, s; they add up to its step. */
struct forecast_time {
    double matmul, attention, memory_bound;             /* compute */
    double matmul_floor, attention_floor, memory_floor; /* the least that it can take (cost_floor) */
    double exposed[CHANNEL_COUNT];                      /* waiting for a transfer */
    double crowded;                                     /* waiting for a core: ranks share those of one machine */
    double idle;                                        /* the rest: pipeline bubble, the end of the step */
};

/* What is sent, by the mesh's axes and two more: between experts' ranks, and the step's statistics over all ranks. */
enum { TRAFFIC_EP = AXIS_COUNT, TRAFFIC_STATISTICS, TRAFFIC_COUNT };

struct forecast {
    const struct plan *plan;
    const struct machine *machine;
    int n; /* pp ranks */
    struct forecast_memory *memory;
    struct forecast_time *time;
    double (*bytes)[TRAFFIC_COUNT]; /* leave a rank in a step (action_wire_bytes) */
    int64_t actions;                /* of the longest program */
    double tokens;                  /* of a global batch */
    double step, tokens_per_second; /* per device */
    double mfu, bubble;
    uint64_t hash;         /* plan_hash */
    long measured, costed; /* actions of the simulated programs with a measured cost, and with any */
    const char *table;     /* where measured costs are from, borrowed; NULL: there are none */
    int busiest;           /* pp rank with the most compute */
    int fullest;           /* pp rank with the most memory */
    int64_t fitting_batch; /* of one that does not fit: a batch that does (plan_fitting_batch) */
    int fitting_room;      /* ... and a room for experts (plan_fitting_room) */
};

/* programs: of all classes (plan_programs). *ret_simulation is the caller's to close where not NULL. */
titan_status forecast_make(const struct plan *plan, struct program *const *programs, const struct cost *cost,
                           struct forecast *ret, struct simulation **ret_simulation,
                           struct titan_error *err) TITAN_MUST_USE;
/* The recipe evaluates, with these programs of all classes (plan_options.evaluation): where one needs more memory than
 * a step, that is what the rank needs. */
void forecast_add_evaluation(struct forecast *f, const struct plan *evaluation, struct program *const *programs);
void forecast_clear(struct forecast *f);
/* Is there so much memory? */
bool forecast_fits(const struct forecast *f);

void forecast_print(const struct forecast *f, struct buf *out);
/* A line for each distinct operation and transfer of the busiest rank's step: how often, predicted seconds, floor, its
 * share, and the stream, if it is not compute's. */
titan_status forecast_print_operations(const struct forecast *f, const struct simulation *s, const struct cost *cost,
                                       struct buf *out, struct titan_error *err) TITAN_MUST_USE;
/* s not NULL: with these operations. */
titan_status forecast_json(const struct forecast *f, const struct simulation *s, const struct cost *cost,
                           struct buf *out, struct titan_error *err) TITAN_MUST_USE;

#endif
