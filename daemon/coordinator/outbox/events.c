/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/outbox/events.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/coordinator/records/job_size.h"

void event_attach(struct core *c, struct change *change, const struct jobrec *j, struct emit emit)
{
    const struct workrec *w = emit.worker;
    const struct noderec *node = emit.node ? emit.node : w ? w->node : NULL;
    const bool member = j && w && w->rank_slot > 0 && w->rank_slot <= j->n_members &&
                        j->rank_slots[w->rank_slot - 1].worker_id == w->id;
    titan_assert(!change->has_event && emit.type && emit.message);
    change->has_event = true;
    change->event = (struct event){
        .job_id = j ? j->id : 0,
        .at_ms = c->now.wall_ms,
        .type = emit.type,
        .message = emit.message,
        .epoch = j ? j->status.epoch : 0,
        .step = j ? j->status.step : 0,
        .rank = member ? (int32_t)w->rank_slot - 1 : -1,
        .node = node ? batch_strdup(c->out, node->name) : "",
        .detail = emit.detail ? emit.detail : "{}",
    };
}

void detail_begin(struct detail *d)
{
    memset(d, 0, sizeof(*d));
    d->buf.limit = 8192;
    d->w.out = &d->buf;
    json_begin_object(&d->w, NULL);
}

const char *detail_end(struct core *c, struct detail *d)
{
    json_end_object(&d->w);
    const char *text = buf_failed(&d->buf) ? "{}" : batch_strdup(c->out, d->buf.data);
    buf_free(&d->buf);
    return text;
}

void emit_event(struct core *c, struct jobrec *j, struct emit emit)
{
    event_attach(c, batch_change(c->out, CHANGE_EVENT), j, emit);
}

/* Emits the number of missing workers when it has changed; words NULL = no worker is missing. */
static void set_lacks(struct core *c, struct jobrec *j, uint32_t lacks, const char *words)
{
    struct change *change = batch_change(c->out, CHANGE_JOB_REASON);
    j->waits.lacks = lacks;
    change->job.id = j->id;
    change->job.reason = words ? words : "";
    if (words)
        event_attach(c, change, j,
                     (struct emit){.type = "job.waiting",
                                   .message = words,
                                   .detail = batch_printf(c->out, "{\"lacks\":%u,\"needs\":%u,\"workers\":%u}", lacks,
                                                          size_least(j), size_staying(j))});
}

void emit_job_waits(struct core *c, struct jobrec *j, uint32_t lacks)
{
    const uint32_t have = size_staying(j);
    if (lacks == j->waits.lacks)
        return;
    set_lacks(c, j, lacks,
              lacks ? batch_printf(c->out, "waiting for %u more worker%s: the %s%s needs %u, %u %s there", lacks,
                                   lacks == 1 ? "" : "s", *j->spec.mesh ? "mesh " : "run", j->spec.mesh, size_least(j),
                                   have, have == 1 ? "is" : "are")
                    : NULL);
}

void emit_job_needs_nodes(struct core *c, struct jobrec *j, uint32_t lacks, const char *words)
{
    if (lacks != j->waits.lacks)
        set_lacks(c, j, lacks, words ? batch_strdup(c->out, words) : NULL);
}

void emit_job_blocked(struct core *c, struct jobrec *j, const char *words)
{
    if (words ? j->waits.reported && strcmp(j->waits.reported, words) == 0 : !j->waits.reported)
        return;
    struct change *change = batch_change(c->out, CHANGE_JOB_REASON);
    change->job.id = j->id;
    change->job.reason = words ? batch_strdup(c->out, words) : "";
    if (words)
        event_attach(c, change, j, (struct emit){.type = "job.waiting", .message = change->job.reason});
    free(j->waits.reported);
    j->waits.reported = words ? core_strdup(words) : NULL;
}

void emit_loss(struct core *c, const struct jobrec *j, enum loss_cause cause, const struct noderec *n)
{
    batch_change(c->out, CHANGE_LOSS_ADD)->loss = (struct loss){
        .job_id = j->id, .cause = cause, .node = batch_strdup(c->out, n ? n->name : ""), .at_ms = c->now.wall_ms};
}

void emit_policy(struct core *c, struct noderec *n, const char *type, const char *message, const char *detail)
{
    struct change *change = batch_change(c->out, CHANGE_NODE_POLICY);
    change->policy = n->policy;
    change->policy.name = batch_strdup(c->out, n->name);
    change->policy.reason = batch_strdup(c->out, n->policy.reason);
    change->policy.quarantine_reason = batch_strdup(c->out, n->policy.quarantine_reason);
    event_attach(c, change, NULL,
                 (struct emit){.type = type,
                               .message = batch_printf(c->out, "node %s %s", n->name, message),
                               .node = n,
                               .detail = detail});
}

void emit_node_fit(struct core *c, struct noderec *n, const char *problem)
{
    emit_policy(c, n, *problem ? "node.unfit" : "node.fit",
                *problem ? batch_printf(c->out, "gets no workers: %s", problem) : "gets workers", NULL);
}

void emit_device_failed(struct core *c, const struct workrec *w, const char *words)
{
    struct detail d;
    detail_begin(&d);
    json_put_uint(&d.w, "worker", w->id);
    json_put_string(&d.w, "reason", words);
    emit_event(c, w->job,
               (struct emit){.type = "worker.device_failed",
                             .message = batch_printf(c->out, "node %s, worker %llu: %s", w->node->name,
                                                     (unsigned long long)w->id, words),
                             .worker = w,
                             .detail = detail_end(c, &d)});
}

void emit_job_desired(struct core *c, struct jobrec *j, const char *message)
{
    struct change *change = batch_change(c->out, CHANGE_JOB_DESIRED);
    change->job.id = j->id;
    change->job.desired = j->desired;
    event_attach(c, change, j,
                 (struct emit){.type = "resize.requested",
                               .message = message,
                               .detail = batch_printf(c->out, "{\"request\":%u,\"min\":%u,\"max\":%u}",
                                                      j->desired.number, size_min(j), size_max(j))});
}

void emit_job_undecided(struct core *c, struct jobrec *j, uint32_t unknown, uint32_t all, int64_t ms,
                        const struct noderec *node)
{
    struct change *change = batch_change(c->out, CHANGE_JOB_REASON);
    j->waits.undecided = true;
    change->job.id = j->id;
    change->job.reason = batch_printf(c->out,
                                      "waiting %lld s: %u of %u members cannot be reached and may go on without us; "
                                      "`titanctl node forget %s` if they are gone for sure",
                                      (long long)(ms + 999) / 1000, unknown, all, node->name);
    event_attach(c, change, j,
                 (struct emit){.type = "job.waiting",
                               .message = change->job.reason,
                               .node = node,
                               .detail = batch_printf(c->out, "{\"unreachable\":%u,\"members\":%u,\"wait_ms\":%lld}",
                                                      unknown, all, (long long)ms)});
}

void emit_job_decided(struct core *c, struct jobrec *j)
{
    if (!j->waits.undecided)
        return;
    j->waits.undecided = false;
    struct change *change = batch_change(c->out, CHANGE_JOB_REASON);
    change->job.id = j->id;
    change->job.reason = "";
}

void emit_settled(struct core *c)
{
    event_attach(c, batch_change(c->out, CHANGE_STORE_SETTLED), NULL,
                 (struct emit){.type = "store.settled",
                               .message = "what agents know of the time since the backup has been taken over"});
}

const char *event_source_name(uint32_t source)
{
    static const char *const names[] = {"init", "checkpoint", "memory"};
    return source < 3 ? names[source] : "?";
}

/* recovery_source: titan.internal.RecoverySource. */
static const char *recovery_source_name(int32_t recovery_source)
{
    static const char *const names[] = {"init", "checkpoint", "memory", "replica", "buddy"};
    return recovery_source >= 0 && recovery_source < 5 ? names[recovery_source] : "unknown";
}

void emit_origin(struct core *c, struct jobrec *j, const Titan__Internal__StateReady *m)
{
    struct detail d;
    detail_begin(&d);
    json_put_string(&d.w, "rung", recovery_source_name(j->source.origin.recovery_source));
    json_put_uint(&d.w, "step", m->step);
    json_put_uint(&d.w, "bytes", m->bytes_moved);
    json_put_string(&d.w, "params_hash", batch_printf(c->out, "%016llx", (unsigned long long)m->params_hash));
    json_put_bool(&d.w, "rolled_forward", m->rolled_forward);
    json_put_real(&d.w, "connect_ms", m->connect_ms);
    json_put_real(&d.w, "plan_ms", m->plan_ms);
    json_put_real(&d.w, "state_ms", m->state_ms);
    json_put_real(&d.w, "prepare_ms", m->prepare_ms);
    if (m->damaged_checkpoint && *m->damaged_checkpoint)
        json_put_string(&d.w, "damaged_checkpoint", m->damaged_checkpoint);
    struct change *change = batch_change(c->out, CHANGE_EPOCH_ORIGIN);
    change->epoch_origin.job_id = j->id;
    change->epoch_origin.number = j->status.epoch;
    change->epoch_origin.is = j->source.origin;
    event_attach(c, change, j,
                 (struct emit){.type = "state.ready",
                               .message = batch_printf(c->out, "epoch %llu has the state of step %llu from %s",
                                                       (unsigned long long)j->status.epoch, (unsigned long long)m->step,
                                                       recovery_source_name(j->source.origin.recovery_source)),
                               .detail = detail_end(c, &d)});
}

const char *const core_recovery_phases[CORE_RECOVERY_PHASES] = {"detect_ms", "decide_ms", "quiet_ms",
                                                                "form_ms",   "state_ms",  "step_ms"};

/* The event has the time of each recovery phase. The phases follow each other, so the event shows which phase is slow.
 * An unknown time is 0. */
void emit_recovery_finished(struct core *c, struct jobrec *j)
{
    const struct recovery *r = &j->recovery;
    const int64_t ready = r->ready && r->ready < r->stepped ? r->ready : r->stepped;
    const struct {
        int64_t ms;
        uint64_t *sum;
    } phases[CORE_RECOVERY_PHASES] = {
        {r->detect_ms, &c->counters.recovery_detect_ms},
        {r->revoked ? r->revoked - r->lost : 0, &c->counters.recovery_decide_ms},
        {r->revoked && r->quiet ? r->quiet - r->revoked : 0, &c->counters.recovery_quiet_ms},
        {r->quiet ? r->formed - r->quiet : 0, &c->counters.recovery_form_ms},
        {r->formed ? ready - r->formed : 0, &c->counters.recovery_state_ms},
        {r->stepped - ready, &c->counters.recovery_step_ms},
    };
    const long long ms = r->stepped - r->lost;
    struct detail d;
    detail_begin(&d);
    json_put_int(&d.w, "recovery_ms", ms);
    json_put_uint(&d.w, "from_step", r->from_step);
    json_put_uint(&d.w, "resume_step", j->source.origin_known ? j->source.origin.step : j->source.resume_step);
    json_put_uint(&d.w, "world", j->n_members);
    json_put_string(&d.w, "rung", recovery_source_name(j->source.origin_known ? j->source.origin.recovery_source : -1));
    json_put_uint(&d.w, "epochs", MAX(r->epochs, 1u));
    for (size_t i = 0; i < ARRAY_SIZE(phases); i++) {
        const int64_t took = MAX(phases[i].ms, (int64_t)0);
        json_put_int(&d.w, core_recovery_phases[i], phases[i].ms);
        *phases[i].sum += (uint64_t)took;
        histogram_add(&c->recoveries.phases[i], (double)took / 1000);
    }
    histogram_add(&c->recoveries.whole, (double)ms / 1000);
    c->counters.recoveries++;
    c->counters.recovery_ms += (uint64_t)ms;
    emit_event(c, j,
               (struct emit){.type = "recovery.finished",
                             .message = batch_printf(c->out, "back after %lld ms with %u worker%s", ms, j->n_members,
                                                     j->n_members == 1 ? "" : "s"),
                             .detail = detail_end(c, &d)});
}

void emit_checkpoint(struct core *c, struct jobrec *j, const Titan__Internal__CheckpointWritten *m)
{
    struct detail d;
    detail_begin(&d);
    json_put_uint(&d.w, "step", m->step);
    json_put_string(&d.w, "path", m->path);
    json_put_uint(&d.w, "bytes", m->bytes);
    struct change *change = batch_change(c->out, CHANGE_CHECKPOINT_COMMIT);
    change->checkpoint = (struct checkpoint){
        .job_id = j->id,
        .step = m->step,
        .epoch = m->epoch,
        .path = batch_strdup(c->out, m->path),
        .bytes = m->bytes,
        .world_size = m->world_size,
        .committed_at_ms = c->now.wall_ms,
    };
    const char *words = batch_printf(c->out, "checkpoint of step %llu", (unsigned long long)m->step);
    if (j->trouble.streak && !j->trouble.reading)
        words = batch_printf(c->out, "%s; %u before it %s not written", words, j->trouble.streak,
                             j->trouble.streak == 1 ? "was" : "were");
    event_attach(c, change, j,
                 (struct emit){.type = "checkpoint.committed", .message = words, .detail = detail_end(c, &d)});
}

void emit_evaluated(struct core *c, struct jobrec *j)
{
    const struct evaluation_report *e = &j->status.evaluation;
    struct detail d;
    detail_begin(&d);
    json_put_uint(&d.w, "step", e->step);
    json_put_real(&d.w, "loss", e->loss);
    json_put_real(&d.w, "perplexity", evaluation_perplexity(e));
    json_put_real(&d.w, "bits_per_byte", evaluation_bits_per_byte(e));
    json_put_uint(&d.w, "tokens", e->tokens);
    json_put_uint(&d.w, "bytes", e->bytes);
    json_put_real(&d.w, "took_ms", e->ms);
    emit_event(c, j,
               (struct emit){.type = "validation.finished",
                             .message = batch_printf(c->out, "validation loss %.6f after step %llu", e->loss,
                                                     (unsigned long long)e->step),
                             .detail = detail_end(c, &d)});
}

void emit_checkpoint_failed(struct core *c, struct jobrec *j, const Titan__Internal__CheckpointFailed *m)
{
    struct detail d;
    detail_begin(&d);
    if (!m->reading)
        json_put_uint(&d.w, "step", m->step);
    json_put_string(&d.w, "path", m->path);
    json_put_string(&d.w, "reason", m->reason);
    json_put_uint(&d.w, "failures", j->trouble.streak);
    emit_event(c, j,
               (struct emit){.type = "checkpoint.failed",
                             .message = batch_strdup(c->out, j->trouble.words),
                             .detail = detail_end(c, &d)});
}

void emit_checkpoint_expired(struct core *c, struct jobrec *j, const struct ckptrec *ckpt)
{
    struct detail d;
    detail_begin(&d);
    json_put_uint(&d.w, "step", ckpt->step);
    json_put_string(&d.w, "path", ckpt->path);
    struct change *change = batch_change(c->out, CHANGE_CHECKPOINT_EXPIRE);
    change->checkpoint.job_id = j->id;
    change->checkpoint.step = ckpt->step;
    event_attach(c, change, j,
                 (struct emit){
                     .type = "checkpoint.expired",
                     .message = batch_printf(c->out, "checkpoint of step %llu removed", (unsigned long long)ckpt->step),
                     .detail = detail_end(c, &d)});
}
