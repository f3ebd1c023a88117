/* SPDX-License-Identifier: Apache-2.0 */
/* evaluation.c - the model's loss on the validation data. */
#include "worker/epoch/evaluation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "worker/epoch/due.h"
#include "worker/epoch/epoch.h"

/* --- the process -------------------------------------------------------------------------------------------------- */

titan_status evaluator_open(struct trainer *t, int threads, const struct tokenizer *tokenizer, struct titan_error *err)
{
    if (!t->recipe->validation.enable)
        return TITAN_OK;
    return held_out_open(t->recipe, tokenizer, t->members->job_dir, threads, &t->evaluator.held_out, err);
}

titan_status evaluator_plan(struct trainer *t, struct titan_error *err)
{
    struct plan_options options = trainer_plan_options(t);

    if (!t->evaluator.held_out.data)
        return TITAN_OK;
    options.evaluation = true;
    return plan_ahead_open(&options, &t->evaluator.ahead, err);
}

void evaluator_close(struct trainer *t)
{
    plan_ahead_close(t->evaluator.ahead);
    held_out_close(&t->evaluator.held_out);
}

/* --- the epoch ---------------------------------------------------------------------------------------------------- */

titan_status evaluation_make_plan(struct epoch *e, struct titan_error *err)
{
    struct evaluation *const v = &e->evaluation;
    struct program **programs = NULL;

    if (!e->t->evaluator.held_out.data)
        return TITAN_OK;
    if (plan_ahead_take(e->t->evaluator.ahead, e->view.world, &v->plan, &programs, err) != TITAN_OK)
        return titan_error_wrap(err, "an evaluation");
    for (int k = 0; k < v->plan->classes; k++)
        e->plan.channels |= programs[k]->channels;
    v->program = TAKE(programs[program_class(&v->plan->build, e->view.rank)]);
    plan_free_programs(v->plan, programs);
    e->plan.streams |= v->program->streams;
    e->plan.memory_bytes = MAX(e->plan.memory_bytes, epoch_device_bytes(v->program));
    return TITAN_OK;
}

titan_status evaluation_open(struct epoch *e, struct titan_error *err)
{
    struct evaluation *const v = &e->evaluation;

    if (!v->plan)
        return TITAN_OK;
    const struct mesh *mesh = &v->plan->mesh;
    const struct held_out *data = &e->t->evaluator.held_out;
    const struct loader_options options = {.data = data->data,
                                           .cut = v->plan->cut,
                                           .cp_rank = mesh_group_rank(mesh, GROUP_CP, e->view.rank),
                                           .share = v->program->share,
                                           .first = v->program->share * mesh_batch_rank(mesh, e->view.rank),
                                           .global_batch = recipe_validation_batch(e->t->recipe),
                                           .documents = e->t->recipe->training.block_causal,
                                           .samples = data->samples,
                                           .token_bytes = data->token_bytes};
    TRY(loader_open(&options, &v->loader, err));
    TRY(epoch_open_executor(e, v->program, &v->plan->cut, e->exec, &v->exec, err));

    /* Finds the evaluation of the state's step: any rank may have it, or rank 0's metrics file. An evaluation of a
     * later step is of no use, because this step will be trained again. */
    struct evaluation_report *const newest = &e->t->evaluator.newest;
    const uint64_t now = e->state.shards.own->step;
    const bool written = now > 0 && metrics_have_evaluation(&e->t->publisher.metrics, now);
    const double mine[] = {(double)newest->step,  newest->loss, (double)newest->tokens,
                           (double)newest->bytes, newest->ms,   written};
    enum { EACH = ARRAY_SIZE(mine) };
    _cleanup_free_ double *all = calloc((size_t)e->view.world, sizeof mine);
    if (!all)
        return titan_fail(err, TITAN_ENOMEM, "validation: out of memory");
    const struct peer_ranks members = epoch_members(e);
    TRY(peer_values_gather(&members, mine, sizeof mine, all, err));
    for (int r = 0; r < e->view.world; r++) {
        const double *of = all + r * EACH;
        const struct peer_value reported[] = {{"step", of[0], 0, PEER_VALUE_EXACT},
                                              {"tokens", of[2], 0, PEER_VALUE_EXACT},
                                              {"bytes", of[3], 0, PEER_VALUE_EXACT},
                                              {"ms", floor(of[4]), 0, PEER_VALUE_EXACT},
                                              {"written", of[5], 0, 1}};
        TRY(peer_values_check("validation", r, reported, ARRAY_SIZE(reported), err));
    }
    *newest = (struct evaluation_report){0};
    for (int r = 0; r < e->view.world; r++) {
        const double *of = all + r * EACH;
        if (of[0] == (double)now && newest->tokens == 0)
            *newest = (struct evaluation_report){
                .step = now, .loss = of[1], .tokens = (uint64_t)of[2], .bytes = (uint64_t)of[3], .ms = of[4]};
    }
    if (newest->tokens > 0)
        publish_evaluation(e);
    if (all[EACH - 1] != 0) /* rank 0's metrics file has the evaluation */
        newest->step = now;
    return TITAN_OK;
}

void evaluation_close(struct epoch *e)
{
    struct evaluation *const v = &e->evaluation;

    exec_close(v->exec);
    loader_close(&v->loader);
    program_close(v->program);
    plan_close(v->plan);
}

/* --- an evaluation ------------------------------------------------------------------------------------------------ */

bool evaluation_due(const struct epoch *e)
{
    const uint64_t step = e->state.shards.own->step;
    return recipe_validates(e->t->recipe, step) && e->t->evaluator.newest.step != step;
}

titan_status evaluation_run(struct epoch *e, unsigned received, unsigned *ret_commands, struct titan_error *err)
{
    struct trainer *const t = e->t;
    struct evaluation *const v = &e->evaluation;
    const int64_t began_ns = clock_mono_ns();
    struct evaluation_sums sums = {0};
    int coords[AXIS_COUNT];

    titan_assert(e->state.installed && evaluation_due(e));
    *ret_commands = 0; /* a command for a checkpoint alone is not lost: it comes again in the next step */
    mesh_coords(&v->plan->mesh, e->view.rank, coords);
    for (uint64_t step = 1; step <= t->evaluator.held_out.steps && !(*ret_commands & received); step++) {
        const double *statistics = NULL;
        TRY(loader_load(&v->loader, step, err));
        const struct exec_batch batch = {.tokens = v->loader.tokens,
                                         .counts = v->loader.counts,
                                         .commands = checkpoint_heed(t->recipe, t->members->ops->commands(t->members))};
        TRY(exec_evaluate(v->exec, &batch, &statistics, err));
        outcome_add(&v->program->statistics, statistics, &sums);
        *ret_commands |= outcome_commands(&v->program->statistics, statistics);
        if (coords[AXIS_TP] == 0 && coords[AXIS_PP] == 0) /* one rank of each group that reads the same samples */
            sums.bytes += (double)v->loader.bytes;
        TRY(failpoint("evaluation.step", err));
    }
    if (*ret_commands & received)
        return TITAN_OK;
    /* Sums the bytes of all ranks, and waits until every rank has its sums. */
    const struct peer_ranks members = epoch_members(e);
    _cleanup_free_ double *all = calloc((size_t)e->view.world, sizeof *all);
    if (!all)
        return titan_fail(err, TITAN_ENOMEM, "validation: out of memory");
    TRY(peer_values_gather(&members, &sums.bytes, sizeof sums.bytes, all, err));
    sums.bytes = 0;
    for (int r = 0; r < e->view.world; r++) {
        TRY(peer_values_check("validation", r, &(struct peer_value){"bytes", all[r], 0, PEER_VALUE_EXACT}, 1, err));
        sums.bytes += all[r];
    }
    TRY(groups_wait_for_members(e, err));
    if (!(sums.tokens >= 0 && sums.tokens <= PEER_VALUE_EXACT))
        return titan_fail(err, TITAN_ECONFLICT, "validation: the ranks have counted %g tokens", sums.tokens);
    TRY(failpoint("evaluation.over", err));
    t->evaluator.newest = (struct evaluation_report){.step = e->state.shards.own->step,
                                                     .tokens = (uint64_t)sums.tokens,
                                                     .bytes = (uint64_t)sums.bytes,
                                                     .loss = sums.loss / sums.tokens,
                                                     .ms = (double)(clock_mono_ns() - began_ns) * 1e-6};
    publish_evaluation(e);
    step_clock_lap(&e->step.clock, STEP_EVALUATION);
    return TITAN_OK;
}
