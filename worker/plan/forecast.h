/* SPDX-License-Identifier: Apache-2.0 */
/* forecast.h - predicts what a plan costs before it runs: memory by kind, bytes by axis, step time, MFU, bubble, what
 * is slowest.
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
    size_t process;             /* memory that a process needs besides its plan */
    size_t peers;               /* memory of its communicators, and for what passes to and from copies at buddies */
    double predicted;           /* all memory needed; includes HOST where the device computes in the host's memory */
};

/* The parts of a rank's step, s. Without the floors, they add up to the step. */
struct forecast_time {
    double matmul, attention, memory_bound;             /* compute */
    double matmul_floor, attention_floor, memory_floor; /* the least time that compute can take (cost_floor) */
    double exposed[CHANNEL_COUNT];                      /* the compute stream waits for a transfer of this channel */
    double buddy;                                       /* AGREE and COMMIT wait until buddies have the gradients */
    double network; /* transfers wait for each other: a device has one share of its machine's network */
    double crowded; /* operations wait for a core, where ranks share the cores of one machine */
    double idle;    /* the rest of the step: pipeline bubble, and waiting for the end of the step */
};

/* Sent bytes by the mesh's axes and three more: between experts' ranks, the step's statistics over all ranks, and
 * gradients and owners' states to buddies (elastic/buddy.h). */
enum { TRAFFIC_EP = AXIS_COUNT, TRAFFIC_STATISTICS, TRAFFIC_BUDDY, TRAFFIC_COUNT };

struct forecast {
    const struct plan *plan;
    const struct machine *machine;
    int n; /* pp ranks */
    struct forecast_memory *memory;
    struct forecast_time *time;
    double (*bytes)[TRAFFIC_COUNT]; /* bytes that leave a rank in a step (action_wire_bytes) */
    int64_t actions;                /* number of actions of the longest program */
    double tokens;                  /* of a global batch */
    double step, tokens_per_second; /* per device */
    double mfu, bubble;
    uint64_t hash;         /* plan_hash */
    long measured, costed; /* numbers of simulated actions with a measured cost, and with any cost */
    const char *table;     /* file of the measured costs, borrowed; NULL: no measured costs */
    int busiest;           /* pp rank with the most compute */
    int fullest;           /* pp rank with the most memory */
    int64_t fitting_batch; /* if the plan does not fit: a batch that fits (plan_fitting_batch) */
    int fitting_room;      /* if the plan does not fit: a room for experts that fits (plan_fitting_room) */
};

/* programs: the programs of all classes (plan_programs). If ret_simulation is not NULL, the caller closes
 * *ret_simulation. */
titan_status forecast_make(const struct plan *plan, struct program *const *programs, const struct cost *cost,
                           struct forecast *ret, struct simulation **ret_simulation,
                           struct titan_error *err) TITAN_MUST_USE;
/* Adds an evaluation to the forecast. programs: its programs of all classes (plan_options.evaluation). Each rank then
 * needs the larger of the step's and the evaluation's memory. */
void forecast_add_evaluation(struct forecast *f, const struct plan *evaluation, struct program *const *programs);
void forecast_clear(struct forecast *f);
/* Does the device have the memory that the plan needs? */
bool forecast_fits(const struct forecast *f);

void forecast_print(const struct forecast *f, struct buf *out);
/* Prints a line for each distinct operation and transfer of the busiest rank's step: count, predicted seconds, floor,
 * share of the step, and the stream, unless it is the compute stream. */
titan_status forecast_print_operations(const struct forecast *f, const struct simulation *s, const struct cost *cost,
                                       struct buf *out, struct titan_error *err) TITAN_MUST_USE;
/* If s is not NULL, the output has also what forecast_print_operations() prints. */
titan_status forecast_json(const struct forecast *f, const struct simulation *s, const struct cost *cost,
                           struct buf *out, struct titan_error *err) TITAN_MUST_USE;

#endif
