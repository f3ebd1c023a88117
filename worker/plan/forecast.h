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
    size_t bytes[MEMORY_COUNT]; /* by kind, at the program's peak; HOST is not part of the sum */
    size_t total;               /* memory of the device, as planned */
    size_t process, peers;      /* what a process needs besides its plan; what its communicators need */
    double predicted;           /* all memory of the device; with HOST where the device computes in the host's memory */
};

/* Where a rank's step goes, s; they add up to its step. */
struct forecast_time {
    double matmul, attention, memory_bound;             /* compute */
    double matmul_floor, attention_floor, memory_floor; /* the least time that compute can take (cost_floor) */
    double exposed[CHANNEL_COUNT];                      /* waiting for a transfer */
    double crowded;                                     /* waiting for a core: ranks share the cores of one machine */
    double idle;                                        /* the rest: pipeline bubble, the end of the step */
};

/* Sent bytes by the mesh's axes and two more: between experts' ranks, and the step's statistics over all ranks. */
enum { TRAFFIC_EP = AXIS_COUNT, TRAFFIC_STATISTICS, TRAFFIC_COUNT };

struct forecast {
    const struct plan *plan;
    const struct machine *machine;
    int n; /* pp ranks */
    struct forecast_memory *memory;
    struct forecast_time *time;
    double (*bytes)[TRAFFIC_COUNT]; /* bytes that leave a rank in a step (action_wire_bytes) */
    int64_t actions;                /* of the longest program */
    double tokens;                  /* of a global batch */
    double step, tokens_per_second; /* per device */
    double mfu, bubble;
    uint64_t hash;         /* plan_hash */
    long measured, costed; /* actions of the simulated programs with a measured cost, and with any */
    const char *table;     /* file of the measured costs, borrowed; NULL: no measured costs */
    int busiest;           /* pp rank with the most compute */
    int fullest;           /* pp rank with the most memory */
    int64_t fitting_batch; /* if the plan does not fit: a batch that fits (plan_fitting_batch) */
    int fitting_room;      /* if the plan does not fit: a room for experts that fits (plan_fitting_room) */
};

/* programs: of all classes (plan_programs). If ret_simulation is not NULL, the caller closes *ret_simulation. */
titan_status forecast_make(const struct plan *plan, struct program *const *programs, const struct cost *cost,
                           struct forecast *ret, struct simulation **ret_simulation,
                           struct titan_error *err) TITAN_MUST_USE;
/* Adds an evaluation with these programs of all classes (plan_options.evaluation). Where an evaluation program needs
 * more memory than the step, the rank needs the memory of the evaluation. */
void forecast_add_evaluation(struct forecast *f, const struct plan *evaluation, struct program *const *programs);
void forecast_clear(struct forecast *f);
/* Does the device have the memory that the plan needs? */
bool forecast_fits(const struct forecast *f);

void forecast_print(const struct forecast *f, struct buf *out);
/* Prints a line for each distinct operation and transfer of the busiest rank's step: count, predicted seconds, floor,
 * share of the step, and the stream, unless it is the compute stream. */
titan_status forecast_print_operations(const struct forecast *f, const struct simulation *s, const struct cost *cost,
                                       struct buf *out, struct titan_error *err) TITAN_MUST_USE;
/* s not NULL: with the lines of forecast_print_operations(). */
titan_status forecast_json(const struct forecast *f, const struct simulation *s, const struct cost *cost,
                           struct buf *out, struct titan_error *err) TITAN_MUST_USE;

#endif
