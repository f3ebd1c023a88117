/* SPDX-License-Identifier: Apache-2.0 */
/* evaluation.h - the model's loss on the validation data, after the steps that recipe_validates() names. An evaluation
 * is validation.steps runs of a forward-only program. It reads the same samples each time, and their order does not
 * depend on the number of workers. The samples are drawn with their own seed, so all runs of a recipe use the same
 * samples. An evaluation changes nothing. It is complete when every rank has its sums. If a worker is lost before this
 * moment, the next epoch repeats the evaluation. After a later loss, any remaining rank passes the evaluation's numbers
 * on. */
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

/* Lives as long as the process. Written by evaluation.c only. */
struct evaluator {
    struct held_out held_out;        /* empty: the recipe has no evaluation */
    struct plan_ahead *ahead;        /* plans the evaluation's programs ahead */
    struct evaluation_report newest; /* the last complete evaluation; step 0 = none */
};

/* Lives as long as an epoch. Written by evaluation.c only. */
struct evaluation {
    struct plan *plan;
    struct program *program; /* this rank's */
    struct loader loader;
    struct exec *exec;
};

/* evaluator_open opens the data if the recipe evaluates; evaluator_plan starts the planning once the device is open. */
titan_status evaluator_open(struct trainer *t, int threads, const struct tokenizer *tokenizer,
                            struct titan_error *err) TITAN_MUST_USE;
titan_status evaluator_plan(struct trainer *t, struct titan_error *err) TITAN_MUST_USE;
void evaluator_close(struct trainer *t);

/* Makes the programs of this epoch's world; the epoch (epoch_plan) counts their channels, streams and memory. */
titan_status evaluation_make_plan(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
/* Call when steps can run. Afterwards evaluations can run, and all ranks know the newest evaluation. Collective. */
titan_status evaluation_open(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
void evaluation_close(struct epoch *e);

/* Must the last step be evaluated, and was it not yet? The same on all ranks. */
bool evaluation_due(const struct epoch *e);
/* Evaluates the last step now. Fails only if the epoch ends. *ret_commands: commands that any rank got meanwhile. If
 * one of the commands `received` is among them, the evaluation was broken off and is still due. The same on all
 * ranks. */
titan_status evaluation_run(struct epoch *e, unsigned received, unsigned *ret_commands,
                            struct titan_error *err) TITAN_MUST_USE;

#endif
