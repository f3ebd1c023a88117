/* SPDX-License-Identifier: Apache-2.0 */
/* evaluation.h - the model's loss on the validation data, after the steps that recipe_validates() names.
 *
 * An evaluation is validation.steps runs of a forward-only program on the same samples each time, in the same order
 * whatever the number of workers; samples are drawn with a seed of their own, so all runs of a recipe have the same.
 * It changes nothing. It is over when every rank has its sums; until then a loss of a worker has it done again, in
 * the next epoch, and afterwards any rank that is left hands its numbers on. */
#ifndef TITAN_WORKER_EPOCH_EVALUATION_H
#define TITAN_WORKER_EPOCH_EVALUATION_H

#include "worker/data/held_out.h"
#include "worker/data/loader.h"
#include "worker/metrics/report.h"

struct trainer;
struct epoch;
struct exec;
struct plan;
struct plan_ahead;
struct program;

/* As long as the process. Written by evaluation.c only. */
struct evaluator {
    struct held_out held_out;        /* empty: the recipe evaluates nothing */
    struct plan_ahead *ahead;        /* its programs */
    struct evaluation_report newest; /* that is over; step 0: none */
};

/* As long as an epoch. Written by evaluation.c only. */
struct evaluation {
    struct plan *plan;
    struct program *program; /* this rank's */
    struct loader loader;
    struct exec *exec;
};

/* The data, where the recipe evaluates; then, when the device is open, the planning. */
titan_status evaluator_open(struct trainer *t, int threads, const struct tokenizer *tokenizer,
                            struct titan_error *err) TITAN_MUST_USE;
titan_status evaluator_plan(struct trainer *t, struct titan_error *err) TITAN_MUST_USE;
void evaluator_close(struct trainer *t);

/* The programs of this epoch's world; their channels, streams and memory are the epoch's (epoch_plan). */
titan_status evaluation_make_plan(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
/* When steps can run, so can evaluations. All ranks know afterwards which one is the newest. Collective. */
titan_status evaluation_open(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
void evaluation_close(struct epoch *e);

/* Is the last step to be evaluated, and has not been? The same on all ranks. */
bool evaluation_due(const struct epoch *e);
/* The last step's, now. Fails for the epoch's end only. *ret_commands: what any rank was told meanwhile; with one of
 * `heard` in it the evaluation has been left, and is still due. The same on all ranks. */
titan_status evaluation_run(struct epoch *e, unsigned heard, unsigned *ret_commands,
                            struct titan_error *err) TITAN_MUST_USE;

#endif
