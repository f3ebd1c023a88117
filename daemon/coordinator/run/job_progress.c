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

static struct step_split split_of(const Titan__Internal__StepSplit *s)
{
    if (!s)
        return step_split_none();
    return (struct step_split){.data = s->data_ms,
                               .compute = s->compute_ms,
                               .communication = s->communication_ms,
                               .checkpoint = s->checkpoint_ms,
                               .stragglers = s->straggler_ms,
                               .slowest_busy = s->slowest_busy_ms,
                               .slowest = (int)s->slowest_rank};
}

static void take_experts(struct metric *m, const Titan__Internal__ExpertLoad *e)
{
    if (!e)
        return;
    m->expert_tokens_min = e->least;
    m->expert_tokens_max = e->most;
    m->expert_tokens_mean = e->mean;
    m->dropped = e->dropped;
    m->further_rounds = e->further_rounds;
    m->room_needed = e->room_needed;
}

static struct metric metric_of(const struct core *c, const struct jobrec *j, const Titan__Internal__WorkerProgress *p)
{
    struct metric m = {
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
        .split = split_of(p->split),
    };
    take_experts(&m, p->experts);
    return m;
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

/* Metrics come from rank 0. Its last ones may be lost with it, so other ranks' metrics are kept as spares. The job's
 * status takes the newest step, whichever rank reports it first. */
void job_progress_metric(struct core *c, struct jobrec *j, const struct rank_slot *rank_slot,
                         const Titan__Internal__WorkerProgress *p)
{
    struct metric metric = metric_of(c, j, p);
    const bool first = rank_slot == j->rank_slots;
    if (p->step > j->status.step || (p->step == j->status.step && (first || isnan(j->status.loss)))) {
        move_to(j, p->step);
        j->status.loss = metric.loss;
        j->status.tokens_per_second = metric.tokens_per_second;
        j->status.mfu = metric.mfu;
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
    /* The newest metrics may be missing from the store: the first report then makes a gap, which is filled from the
     * file. */
    j->progress.metric_step = j->status.step - MIN(j->status.step, METRICS_UNSTORED);
    j->progress.evaluated_step = j->status.evaluation.step;
}
