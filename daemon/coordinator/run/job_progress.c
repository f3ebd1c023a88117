/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/run/job_progress.h"

#include <math.h>

#include "base/cleanup.h"
#include "daemon/coordinator/outbox/events.h"
#include "daemon/coordinator/outbox/transitions.h"

/* Moves the status to a step, with unknown loss and speed. */
static void move_to(struct jobrec *j, uint64_t step)
{
    if (step == j->status.step)
        return;
    j->status.step = step;
    j->status.loss = NAN;
    j->status.tokens_per_second = j->status.mfu = 0;
}

void job_progress_falls_back(struct jobrec *j, uint64_t step)
{
    move_to(j, step);
    j->progress.metric_step = MIN(j->progress.metric_step, step);
    j->progress.evaluated_step = MIN(j->progress.evaluated_step, step);
}

static void take_metric(struct core *c, struct jobrec *j, const struct metric *metric)
{
    if (metric->step <= j->progress.metric_step)
        return; /* repeated report */
    if (metric->step > j->progress.metric_step + 1)
        batch_gap(c->out, j->id, j->progress.metric_step);
    j->progress.metric_step = metric->step;
    *batch_metric(c->out) = *metric;
}

void job_progress_spare(struct core *c, struct jobrec *j)
{
    for (uint64_t step = j->progress.metric_step + 1; step <= j->progress.metric_step + METRICS_SPARE; step++) {
        const struct metric *spare = &j->progress.spare[step % METRICS_SPARE];
        if (spare->step == step && spare->epoch == j->status.epoch)
            take_metric(c, j, spare);
    }
}

/* Metrics come from rank 0. Its last metrics may be lost with it, so other ranks' metrics are kept as spares. The job's
 * status takes the newest step, whichever rank reports it first. */
void job_progress_metric(struct core *c, struct jobrec *j, const struct rank_slot *rank_slot,
                         const Titan__Internal__WorkerProgress *p)
{
    struct metric metric = {
        .job_id = j->id,
        .step = p->step,
        .at_ms = p->at_ms ? p->at_ms : c->now.wall_ms,
        .loss = p->loss,
        .loss_max = p->loss_max,
        .grad_norm = p->grad_norm,
        .learning_rate = p->learning_rate,
        .tokens_per_second = p->tokens_per_second,
        .tflops = p->tflops,
        .mfu = p->mfu,
        .mfu_causal = p->mfu_causal,
        .step_ms = p->step_ms,
        .tokens = p->tokens,
        .epoch = p->epoch,
        .world_size = p->world_size,
        .memory_bytes = p->memory_bytes,
        .skipped_steps = p->skipped_steps,
        .split = step_split_none(),
    };
    if (p->split)
        metric.split = (struct step_split){.data = p->split->data_ms,
                                           .compute = p->split->compute_ms,
                                           .communication = p->split->communication_ms,
                                           .checkpoint = p->split->checkpoint_ms,
                                           .stragglers = p->split->straggler_ms,
                                           .slowest_busy = p->split->slowest_busy_ms,
                                           .slowest = (int)p->split->slowest_rank};
    if (p->experts) {
        metric.expert_tokens_min = p->experts->least;
        metric.expert_tokens_max = p->experts->most;
        metric.expert_tokens_mean = p->experts->mean;
        metric.dropped = p->experts->dropped;
        metric.further_rounds = p->experts->further_rounds;
        metric.room_needed = p->experts->room_needed;
    }

    const bool first = rank_slot == j->rank_slots;
    if (p->step > j->status.step || (p->step == j->status.step && (first || isnan(j->status.loss)))) {
        move_to(j, p->step);
        j->status.loss = metric.loss;
        j->status.tokens_per_second = metric.tokens_per_second;
        j->status.mfu = metric.mfu;
        j->progress.step_at_ms = c->now.wall_ms;
        j->progress.grad_norm = metric.grad_norm;
        j->progress.tokens = metric.tokens;
        j->progress.skipped_steps = metric.skipped_steps;
        job_progress_unsaved(j);
    }
    if (first && epoch_live(j))
        take_metric(c, j, &metric);
    else
        j->progress.spare[p->step % METRICS_SPARE] = metric;
    if (!epoch_live(j))
        job_progress_spare(c, j);
}

void job_progress_evaluated(struct core *c, struct jobrec *j, const Titan__Internal__WorkerEvaluated *m)
{
    titan_assert(m->job_id == j->id && m->step > 0);
    if (m->step <= j->progress.evaluated_step)
        return; /* another member, or another epoch, has reported it */
    j->progress.evaluated_step = m->step;
    j->status.evaluation = (struct evaluation_report){
        .step = m->step, .tokens = m->tokens, .bytes = m->bytes, .loss = m->loss, .ms = m->ms};
    *batch_metric(c->out) = (struct metric){.job_id = j->id,
                                            .step = m->step,
                                            .at_ms = c->now.wall_ms,
                                            .epoch = m->epoch,
                                            .evaluation = j->status.evaluation};
    emit_evaluated(c, j);
    store_status(c, j);
}

void job_progress_reaches(struct jobrec *j, uint64_t step)
{
    move_to(j, MAX(j->status.step, step));
}

void job_progress_unsaved(struct jobrec *j)
{
    j->progress.unsaved = true;
}

void job_progress_restored(struct jobrec *j)
{
    /* The newest metrics may be missing from the store. Then the first report makes a gap, which is filled from the
     * file. */
    j->progress.metric_step = j->status.step - MIN(j->status.step, METRICS_UNSTORED);
    j->progress.evaluated_step = j->status.evaluation.step;
}
