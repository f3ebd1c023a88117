/* SPDX-License-Identifier: Apache-2.0 */
/* publish.c - reports of steps and of epochs: log, metrics file, membership. */
#include "worker/epoch/publish.h"

#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/epoch/epoch.h"

#define GIB 1073741824.0

void publisher_init(struct publisher *p)
{
    *p = (struct publisher){.metrics = {.fd = -1}, .tensorboard = {.file = {.fd = -1}}};
}

void publisher_close(struct publisher *p)
{
    metrics_close(&p->metrics);
    event_file_close(&p->tensorboard.file);
}

void publish_open(struct epoch *e)
{
    const struct recipe *r = e->t->recipe;

    metrics_open(&e->t->publisher.metrics, e->t->members->job_dir, e->view.rank, r->metrics.log_freq,
                 r->training.steps);
}

void publish_close(struct epoch *e)
{
    metrics_close(&e->t->publisher.metrics);
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

bool publish_splits_step(const struct epoch *e)
{
    return e->t->device.info.host_memory || tensorboard_logs_step(e, e->state.shards.own->step + 1);
}

/* The scalars have TorchTitan's names. */
static void write_evaluation_event(const struct epoch *e, const struct evaluation_report *v, int64_t at_ms)
{
    const struct event_scalar scalars[] = {{"validation_metrics/loss", v->loss},
                                           {"validation_metrics/bits_per_byte", evaluation_bits_per_byte(v)}};
    tensorboard_write(e, v->step, at_ms, scalars, ARRAY_SIZE(scalars));
}

static void write_step(const struct epoch *e, const struct step_report *r)
{
    const struct trainer *t = e->t;

    metrics_step(&e->t->publisher.metrics, &t->log, r);
    if (tensorboard_logs_step(e, r->step)) {
        const double total = (double)t->device.info.memory_bytes, memory = (double)r->memory_bytes;
        const struct step_split *const s = &r->split;
        const struct event_scalar step[] = {
            {"loss_metrics/global_avg_loss", r->loss},
            {"loss_metrics/global_max_loss", r->loss_max},
            {"grad_norm", r->grad_norm},
            {"lr", r->learning_rate},
            {"n_tokens_seen", (double)r->tokens},
            {"throughput(tps)", r->tokens_per_second / r->world},
            {"tflops", r->tflops},
            {"mfu(%)", 100 * r->mfu},
            {"mfu_causal(%)", 100 * r->mfu_causal},
            {"time_metrics/end_to_end(s)", r->step_ms * 1e-3},
            {"memory/max_reserved(GiB)", memory / GIB},
            {"memory/max_reserved(%)", total > 0 ? 100 * memory / total : 0},
            {"world_size", r->world},
            {"skipped_steps", r->skipped_steps},
        };
        const struct event_scalar split[] = {
            {"time_metrics/data_loading(s)", s->data * 1e-3},
            {"time_metrics/data_loading(%)", 100 * s->data / step_split_total(s)},
            {"time_metrics/compute(s)", s->compute * 1e-3},
            {"time_metrics/exposed_communication(s)", s->communication * 1e-3},
            {"time_metrics/checkpoint(s)", s->checkpoint * 1e-3},
            {"time_metrics/stragglers(s)", s->stragglers * 1e-3},
            {"slowest_rank/rank", s->slowest},
            {"slowest_rank/busy(s)", s->slowest_busy * 1e-3},
        };
        const struct event_scalar experts[] = {
            {"tokens_per_expert/min", r->expert_tokens_min},         {"tokens_per_expert/max", r->expert_tokens_max},
            {"tokens_per_expert/mean", r->expert_tokens_mean},       {"tokens_per_expert/dropped", r->dropped},
            {"tokens_per_expert/further_rounds", r->further_rounds}, {"tokens_per_expert/room_needed", r->room_needed}};
        const struct event_scalar balance = {"loss_metrics/balance_loss", r->balance_loss};
        const struct event_scalar mtp = {"loss_metrics/mtp_loss", r->mtp_loss};
        tensorboard_write(e, r->step, r->at_ms, step, ARRAY_SIZE(step));
        if (s->slowest >= 0)
            tensorboard_write(e, r->step, r->at_ms, split, ARRAY_SIZE(split));
        if (r->expert_tokens_mean > 0)
            tensorboard_write(e, r->step, r->at_ms, experts, ARRAY_SIZE(experts));
        if (r->balance_loss != 0)
            tensorboard_write(e, r->step, r->at_ms, &balance, 1);
        if (r->mtp_loss != 0)
            tensorboard_write(e, r->step, r->at_ms, &mtp, 1);
    }
    if (r->evaluation.step > 0)
        write_evaluation_event(e, &r->evaluation, r->at_ms);
}

void publish_note_step(struct epoch *e)
{
    struct published *const p = &e->published;
    const struct train_state *st = e->state.shards.own;
    const double seconds = (double)(clock_mono_ns() - e->step.began_ns) * 1e-9;
    const struct step_outcome *const o = &e->step.outcome;
    const double tps = o->tokens / seconds;
    const double flops = recipe_flops_per_token(e->t->recipe) * tps;
    const double causal = recipe_causal_flops_per_token(e->t->recipe) * tps;

    titan_assert(st->step > p->reports[1].step);
    p->reports[0] = p->reports[1];
    p->reports[1] = (struct step_report){.step = st->step,
                                         .tokens = st->tokens,
                                         .epoch = e->view.epoch,
                                         .loss = o->loss,
                                         .loss_max = o->loss_max,
                                         .grad_norm = o->grad_norm,
                                         .learning_rate = e->step.learning_rate,
                                         .tokens_per_second = tps,
                                         .tflops = flops / e->view.world * 1e-12,
                                         .mfu = e->peak > 0 ? flops / e->peak : 0,
                                         .mfu_causal = e->peak > 0 ? causal / e->peak : 0,
                                         .step_ms = seconds * 1e3,
                                         .split = o->split,
                                         .expert_tokens_min = o->expert_tokens_min,
                                         .expert_tokens_max = o->expert_tokens_max,
                                         .expert_tokens_mean = o->expert_tokens_mean,
                                         .dropped = o->dropped,
                                         .further_rounds = o->further_rounds,
                                         .room_needed = o->room_needed,
                                         .balance_loss = o->balance_loss,
                                         .mtp_loss = o->mtp_loss,
                                         .world = e->view.world,
                                         .memory_bytes = o->memory_bytes,
                                         .planned_bytes = e->plan.memory_bytes,
                                         .skipped_steps = (uint32_t)st->skipped.total,
                                         .at_ms = clock_wall_ms()};
    p->awaits_evaluation = recipe_validates(e->t->recipe, st->step);
    atomic_store(&p->pending, true);
}

titan_status publish_skipped_step(const struct epoch *e, struct titan_error *err)
{
    const struct step_outcome *o = &e->step.outcome;
    const char *where = o->bad_unit >= 0 ? e->t->model->units[o->bad_unit].name : "loss";
    const unsigned long step = e->state.shards.own->step, row = e->state.shards.own->skipped.in_a_row;

    titan_assert(!o->finite && row > 0);
    tlog_warn(&e->t->log, "step skipped, not finite", "step=%lu loss=%g grad_norm=%g first_unit=%s", step, o->loss,
              o->grad_norm, where);
    if (row <= (unsigned long)e->t->recipe->fault_tolerance.max_skipped_steps)
        return TITAN_OK;
    return titan_fail(
        err, TITAN_EINVAL, /* TITAN_EINVAL: another attempt would end in the same way */
        "diverged: step %lu: loss %g, gradient norm %g; first unit at fault: %s; %lu steps in a row skipped", step,
        o->loss, o->grad_norm, where, row);
}

void publish_step(struct epoch *e)
{
    struct trainer *t = e->t;
    const struct step_report *const newest = &e->published.reports[1];

    if (e->published.awaits_evaluation || !atomic_exchange(&e->published.pending, false))
        return;
    titan_assert(newest->step > 0 && newest->epoch == e->view.epoch);
    write_step(e, newest);
    layers_write(e, newest->step, newest->at_ms);
    t->members->ops->progress(t->members, newest);
}

void publish_step_alone(struct epoch *e)
{
    e->published.awaits_evaluation = false;
    publish_step(e);
}

void publish_evaluation(struct epoch *e)
{
    struct trainer *t = e->t;
    struct metrics *const m = &t->publisher.metrics;
    const struct evaluation_report *const evaluation = &t->evaluator.newest;

    titan_assert(evaluation->step > 0 && evaluation->tokens > 0);
    if (publish_is_pending(e)) {
        titan_assert(e->published.reports[1].step == evaluation->step);
        e->published.reports[1].evaluation = *evaluation;
        publish_step_alone(e);
    } else if (!metrics_have_evaluation(m, evaluation->step)) {
        metrics_evaluation(m, &t->log, evaluation, e->view.epoch, clock_wall_ms());
        write_evaluation_event(e, evaluation, clock_wall_ms());
    }
    t->members->ops->evaluated(t->members, evaluation);
}

bool publish_is_pending(const struct epoch *e)
{
    return atomic_load(&e->published.pending);
}

void publish_keep(struct trainer *t, const struct epoch *last)
{
    memcpy(t->publisher.kept, last->published.reports, sizeof t->publisher.kept);
}

/* Publishes the kept steps. By now all ranks have the report of the last step. They had the report of the step before
 * when they agreed on the last step, and ranks other than 0 have published it. The last step is published in the
 * current epoch. */
void publish_kept(struct epoch *e)
{
    struct trainer *t = e->t;
    struct publisher *const p = &t->publisher;
    struct step_report *const newest = &p->kept[1];

    /* If all workers died before they published the loaded step, its checkpoint has the report. If the run has
     * published nothing, the checkpoint is another run's, and its report is not published. */
    _cleanup_(checkpoint_info_clear) struct checkpoint_info info = {0};
    const char *path = e->state.restore.loaded;
    const uint64_t step = e->state.shards.own->step;
    struct step_report loaded;
    if (newest->step == 0 && e->view.rank == 0 && path[0] && p->metrics.written > 0 && step >= p->metrics.written &&
        checkpoint_read_info(path, &info, NULL) == TITAN_OK && metrics_parse_step(info.metrics, &loaded) &&
        loaded.step == step)
        *newest = loaded;
    for (int i = 0; i < 2; i++)
        if (p->kept[i].step > p->metrics.written)
            write_step(e, &p->kept[i]);
    if (newest->step > 0) {
        newest->epoch = e->view.epoch;
        t->members->ops->progress(t->members, newest);
    }
    memset(p->kept, 0, sizeof p->kept);
}

/* --- epochs ------------------------------------------------------------------------------------------------------- */

static double ms(int64_t from_ns, int64_t to_ns)
{
    titan_assert(from_ns > 0 && from_ns <= to_ns);
    return (double)(to_ns - from_ns) * 1e-6;
}

void publish_ready(struct epoch *e, const int64_t at[OPENING_COUNT])
{
    struct trainer *t = e->t;
    const struct restore *r = &e->state.restore;
    const struct state_ready ready = {.epoch = e->view.epoch,
                                      .step = e->state.shards.own->step,
                                      .recovery_source = r->recovery_source,
                                      .bytes_moved = e->state.verified.bytes,
                                      .params_hash = e->state.verified.parameters,
                                      .rolled_forward = r->rolled_forward,
                                      .connect_ms = ms(at[OPENING_BEGAN], at[OPENING_CONNECTED]),
                                      .plan_ms = ms(at[OPENING_CONNECTED], at[OPENING_PLANNED]),
                                      .state_ms = ms(at[OPENING_GROUPED], at[OPENING_FILLED]),
                                      .prepare_ms = ms(at[OPENING_FILLED], at[OPENING_PREPARED]),
                                      .damaged_checkpoint = r->damaged};

    const struct mesh *mesh = &e->plan.plan->mesh;
    char axes[128] = "1"; /* "pp=2 dp_shard=2": the axes with more than one rank */
    size_t n = 0;

    titan_assert(e->state.installed);
    for (int a = 0; a < AXIS_COUNT; a++)
        if (mesh->size[a] > 1)
            n += (size_t)snprintf(axes + n, sizeof axes - n, "%s%s=%d", n > 0 ? " " : "",
                                  mesh_axis_name((enum mesh_axis)a), mesh->size[a]);
    titan_assert(n < sizeof axes);
    tlog_info(&t->log, "epoch begins",
              "epoch=%lu workers=%d mesh=\"%s\" program=%016lx step=%lu state=%s device=\"%s\" dtype=%s "
              "connect_ms=%.1f plan_ms=%.1f "
              "groups_ms=%.1f state_ms=%.1f memory_ms=%.1f",
              (unsigned long)e->view.epoch, e->view.world, axes, (unsigned long)e->plan.hash, (unsigned long)ready.step,
              recovery_source_name(ready.recovery_source), t->device.info.name,
              t->dt == DTYPE_BF16 ? "bfloat16" : "float32", ready.connect_ms, ready.plan_ms,
              ms(at[OPENING_PLANNED], at[OPENING_GROUPED]), ready.state_ms, ready.prepare_ms);
    if (e->view.rank != 0)
        return;
    t->members->ops->state_ready(t->members, &ready);
    /* Reports the loaded checkpoint, unless the coordinator named it. */
    const struct epoch_view *v = &e->view;
    _cleanup_(checkpoint_info_clear) struct checkpoint_info info = {0};
    bool known = !r->loaded[0] || strcmp(r->loaded, v->checkpoint_path) == 0;
    for (int i = 0; i < v->n_older; i++)
        known |= strcmp(r->loaded, v->older_checkpoints[i]) == 0;
    if (known || checkpoint_read_info(r->loaded, &info, NULL) != TITAN_OK)
        return;
    tlog_info(&t->log, "goes on from a checkpoint that lay there", "path=\"%s\"", r->loaded);
    const struct checkpoint_report report = {
        .step = info.step, .bytes = info.bytes, .path = r->loaded, .world = info.world};
    t->members->ops->checkpoint_written(t->members, &report);
}
