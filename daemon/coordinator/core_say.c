/* The core's output: each change with the event that tells of it, and the messages to agents. */
#include "daemon/coordinator/core_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"

static int32_t rank_of(const struct jobrec *j, const struct workrec *w)
{
    bool has = w && w->seat > 0 && w->seat <= j->n_seats && j->seats[w->seat - 1].worker_id == w->id;
    return has ? (int32_t)w->seat - 1 : -1;
}

static void set_event(struct core *c, struct change *change, const struct jobrec *j, struct say say)
{
    const struct noderec *node = say.node ? say.node : say.worker ? say.worker->node : NULL;
    change->has_event = true;
    change->event = (struct event){
        .job_id = j ? j->id : 0,
        .at_ms = c->now.wall_ms,
        .type = say.type,
        .message = say.message,
        .epoch = j ? j->status.epoch : 0,
        .step = j ? j->status.step : 0,
        .rank = j ? rank_of(j, say.worker) : -1,
        .node = node ? batch_strdup(c->out, node->name) : "",
        .detail = say.detail ? say.detail : "{}",
    };
}

/* A JSON object under construction; its text ends up in the batch. */
struct detail {
    struct buf buf;
    struct json_writer w;
};

static void detail_begin(struct detail *d)
{
    memset(d, 0, sizeof(*d));
    d->buf.limit = 8192;
    d->w.out = &d->buf;
    json_begin_object(&d->w, NULL);
}

static const char *detail_end(struct core *c, struct detail *d)
{
    json_end_object(&d->w);
    const char *text = buf_failed(&d->buf) ? "{}" : batch_strdup(c->out, d->buf.data);
    buf_free(&d->buf);
    return text;
}

void say_event(struct core *c, struct jobrec *j, struct say say)
{
    set_event(c, batch_change(c->out, CHANGE_EVENT), j, say);
}

static void set_status(struct core *c, struct change *change, struct jobrec *j)
{
    change->job.id = j->id;
    change->job.state = j->state;
    change->job.status = j->status;
    change->job.status.checkpoint = j->n_ckpts ? batch_strdup(c->out, j->ckpts[0].path) : "";
    j->saved_mono = c->now.mono_ms;
    j->unsaved = false;
}

void say_job_move(struct core *c, struct jobrec *j, enum job_state to, const char *reason)
{
    struct detail d;
    enum job_state from = j->state;
    free(j->said); /* its words are replaced by these */
    j->said = NULL;
    detail_begin(&d);
    json_put_string(&d.w, "from", sm_name(&job_sm, (int)from));
    json_put_string(&d.w, "to", sm_name(&job_sm, (int)to));
    if (reason && *reason)
        json_put_string(&d.w, "reason", reason);
    j->state = to;
    struct change *change = batch_change(c->out, CHANGE_JOB_MOVE);
    set_status(c, change, j);
    change->job.reason = batch_strdup(c->out, reason);
    set_event(c, change, j,
              (struct say){.type = "job.state",
                           .message = batch_printf(c->out, "%s%s%s", sm_name(&job_sm, (int)to),
                                                   reason && *reason ? ": " : "", reason ? reason : ""),
                           .detail = detail_end(c, &d)});
}

/* Tells of a number of lacking workers when it has changed; words is NULL when there are none. */
static void set_lacks(struct core *c, struct jobrec *j, uint32_t lacks, const char *words)
{
    struct change *change = batch_change(c->out, CHANGE_JOB_REASON);
    j->lacks = lacks;
    core_set_string(&j->lack_words, words ? words : "");
    change->job.id = j->id;
    change->job.reason = words ? words : "";
    if (words)
        set_event(c, change, j,
                  (struct say){.type = "job.waiting",
                               .message = words,
                               .detail = batch_printf(c->out, "{\"lacks\":%u,\"needs\":%u,\"workers\":%u}", lacks,
                                                      place_least(j), job_staying(j))});
}

/* "mesh pp=2 tp=2", or "run" where there is none. */
static const char *mesh_words(struct core *c, const struct jobrec *j)
{
    return *j->spec.mesh ? batch_printf(c->out, "mesh %s", j->spec.mesh) : "run";
}

void say_job_waits(struct core *c, struct jobrec *j, uint32_t lacks)
{
    const uint32_t have = job_staying(j);
    if (lacks != j->lacks)
        set_lacks(c, j, lacks,
                  lacks ? batch_printf(c->out, "waiting for %u more worker%s: the %s needs %u, %u %s there", lacks,
                                       lacks == 1 ? "" : "s", mesh_words(c, j), place_least(j), have,
                                       have == 1 ? "is" : "are")
                        : NULL);
}

void say_job_needs_nodes(struct core *c, struct jobrec *j, uint32_t lacks, uint32_t slots)
{
    if (lacks != j->lacks)
        set_lacks(c, j, lacks,
                  lacks ? batch_printf(c->out,
                                       "waiting for nodes: the %s needs %u workers, all nodes together have %u "
                                       "slot%s",
                                       mesh_words(c, j), place_least(j), slots, slots == 1 ? "" : "s")
                        : NULL);
}

void say_job_blocked(struct core *c, struct jobrec *j, const char *words)
{
    if (words ? j->said && strcmp(j->said, words) == 0 : !j->said)
        return;
    struct change *change = batch_change(c->out, CHANGE_JOB_REASON);
    change->job.id = j->id;
    change->job.reason = words ? batch_strdup(c->out, words) : "";
    if (words)
        set_event(c, change, j, (struct say){.type = "job.waiting", .message = change->job.reason});
    free(j->said);
    j->said = words ? core_strdup(words) : NULL;
}

void say_loss(struct core *c, const struct jobrec *j, enum loss_cause cause, const struct noderec *n)
{
    batch_change(c->out, CHANGE_LOSS_ADD)->loss = (struct loss){
        .job_id = j->id, .cause = cause, .node = batch_strdup(c->out, n ? n->name : ""), .at_ms = c->now.wall_ms};
}

void say_policy(struct core *c, struct noderec *n, const char *type, const char *message, const char *detail)
{
    struct change *change = batch_change(c->out, CHANGE_NODE_POLICY);
    change->policy = n->policy;
    change->policy.name = batch_strdup(c->out, n->name);
    change->policy.reason = batch_strdup(c->out, n->policy.reason);
    change->policy.quarantine_reason = batch_strdup(c->out, n->policy.quarantine_reason);
    set_event(c, change, NULL,
              (struct say){.type = type,
                           .message = batch_printf(c->out, "node %s %s", n->name, message),
                           .node = n,
                           .detail = detail});
}

void say_node_fit(struct core *c, struct noderec *n, const char *problem)
{
    say_policy(c, n, *problem ? "node.unfit" : "node.fit",
               *problem ? batch_printf(c->out, "gets no workers: %s", problem) : "sees the jobs' folders", NULL);
}

void say_job_wish(struct core *c, struct jobrec *j, const char *message)
{
    struct change *change = batch_change(c->out, CHANGE_JOB_WISH);
    change->job.id = j->id;
    change->job.wish = j->wish;
    set_event(c, change, j,
              (struct say){.type = "resize.requested",
                           .message = message,
                           .detail = batch_printf(c->out, "{\"request\":%u,\"min\":%u,\"max\":%u}", j->wish.number,
                                                  plan_least(j), plan_most(j))});
}

void say_job_undecided(struct core *c, struct jobrec *j, uint32_t unknown, uint32_t all, int64_t ms,
                       const struct noderec *node)
{
    struct change *change = batch_change(c->out, CHANGE_JOB_REASON);
    j->quorum_waits = true;
    change->job.id = j->id;
    change->job.reason = batch_printf(c->out,
                                      "waiting %lld s: %u of %u members cannot be reached and may go on without us; "
                                      "`titanctl node forget %s` if they are gone for sure",
                                      (long long)(ms + 999) / 1000, unknown, all, node->name);
    set_event(c, change, j,
              (struct say){.type = "job.waiting",
                           .message = change->job.reason,
                           .node = node,
                           .detail = batch_printf(c->out, "{\"unreachable\":%u,\"members\":%u,\"wait_ms\":%lld}",
                                                  unknown, all, (long long)ms)});
}

void say_job_decided(struct core *c, struct jobrec *j)
{
    if (!j->quorum_waits)
        return;
    j->quorum_waits = false;
    struct change *change = batch_change(c->out, CHANGE_JOB_REASON);
    change->job.id = j->id;
    change->job.reason = "";
}

void say_job_update(struct core *c, struct jobrec *j)
{
    set_status(c, batch_change(c->out, CHANGE_JOB_UPDATE), j);
}

void say_run_add(struct core *c, struct jobrec *j)
{
    struct detail d;
    detail_begin(&d);
    json_put_uint(&d.w, "run", j->run);
    struct change *change = batch_change(c->out, CHANGE_RUN_ADD);
    change->run.job_id = j->id;
    change->run.number = j->run;
    set_event(c, change, j,
              (struct say){.type = "run.started",
                           .message = batch_printf(c->out, "run %u started", j->run),
                           .detail = detail_end(c, &d)});
}

void say_run_move(struct core *c, struct jobrec *j, enum run_state to, const char *reason)
{
    struct detail d;
    detail_begin(&d);
    json_put_uint(&d.w, "run", j->run);
    json_put_string(&d.w, "state", sm_name(&run_sm, (int)to));
    struct change *change = batch_change(c->out, CHANGE_RUN_MOVE);
    change->run.job_id = j->id;
    change->run.number = j->run;
    change->run.state = to;
    change->run.reason = batch_strdup(c->out, reason);
    set_event(c, change, j,
              (struct say){.type = "run.ended",
                           .message = batch_printf(c->out, "run %u %s", j->run, sm_name(&run_sm, (int)to)),
                           .detail = detail_end(c, &d)});
}

static const char *source_name(uint32_t source)
{
    static const char *const names[] = {"init", "checkpoint", "memory"};
    return source < 3 ? names[source] : "?";
}

static void add_epoch(struct core *c, struct jobrec *j, const char *type, const char *words, const char *delegate)
{
    struct detail d;
    detail_begin(&d);
    json_put_uint(&d.w, "world", j->n_seats);
    json_put_string(&d.w, "source", source_name(j->source));
    json_put_uint(&d.w, "resume_step", j->resume_step);
    if (j->source_epoch)
        json_put_uint(&d.w, "source_epoch", j->source_epoch);
    if (j->n_leavers)
        json_put_uint(&d.w, "leavers", j->n_leavers);
    if (delegate)
        json_put_string(&d.w, "delegate", delegate);
    struct change *change = batch_change(c->out, CHANGE_EPOCH_ADD);
    const uint32_t all = j->n_seats + j->n_leavers;
    uint64_t *ids = batch_alloc(c->out, all * sizeof(*ids));
    for (uint32_t i = 0; i < all; i++)
        ids[i] = j->seats[i].worker_id;
    change->epoch = (struct epoch){
        .job_id = j->id,
        .number = j->status.epoch,
        .run = j->run,
        .state = EPOCH_FORMING,
        .source = j->source,
        .source_epoch = j->source_epoch,
        .resume_step = j->resume_step,
        .checkpoint = batch_strdup(c->out, j->epoch_checkpoint),
        .world_size = j->n_seats,
        .leavers = j->n_leavers,
        .workers = ids,
        .delegate = batch_strdup(c->out, delegate),
        .created_at_ms = c->now.wall_ms,
    };
    memcpy(change->epoch.comm_id, j->comm_id, sizeof(j->comm_id));
    change->epoch.keyed = j->keyed;
    memcpy(change->epoch.key, j->key, sizeof(j->key));
    set_event(c, change, j,
              (struct say){.type = type,
                           .message = batch_printf(c->out, "epoch %llu %s with %u workers, state from %s",
                                                   (unsigned long long)j->status.epoch, words, j->n_seats,
                                                   source_name(j->source)),
                           .detail = detail_end(c, &d)});
}

void say_epoch_add(struct core *c, struct jobrec *j)
{
    add_epoch(c, j, "epoch.forming", "forms", NULL);
}

void say_epoch_taken(struct core *c, struct jobrec *j, const char *delegate)
{
    if (delegate)
        add_epoch(c, j, "epoch.delegated", "was formed without us,", delegate);
    else
        add_epoch(c, j, "epoch.restored", "was formed after the backup,", NULL);
}

void say_settled(struct core *c)
{
    set_event(c, batch_change(c->out, CHANGE_STORE_SETTLED), NULL,
              (struct say){.type = "store.settled",
                           .message = "what agents know of the time since the backup has been taken over"});
}

void say_epoch_move(struct core *c, struct jobrec *j, enum epoch_state to, const char *why)
{
    static const char *const types[] = {
        [EPOCH_RUNNING] = "epoch.formed", [EPOCH_REVOKED] = "epoch.revoked", [EPOCH_ENDED] = "epoch.ended"};
    struct detail d;
    detail_begin(&d);
    json_put_uint(&d.w, "world", j->n_seats);
    if (why)
        json_put_string(&d.w, "reason", why);
    struct change *change = batch_change(c->out, CHANGE_EPOCH_MOVE);
    change->epoch.job_id = j->id;
    change->epoch.number = j->status.epoch;
    change->epoch.state = to;
    j->epoch_state = to;
    set_event(c, change, j,
              (struct say){.type = types[to],
                           .message = batch_printf(c->out, "epoch %llu %s%s%s", (unsigned long long)j->status.epoch,
                                                   sm_name(&epoch_sm, (int)to), why ? ": " : "", why ? why : ""),
                           .detail = detail_end(c, &d)});
}

/* Of titan.internal.StateRung. */
static const char *rung_name(int32_t rung)
{
    static const char *const names[] = {"init", "checkpoint", "memory", "replica", "buddy"};
    return rung >= 0 && rung < 5 ? names[rung] : "unknown";
}

void say_origin(struct core *c, struct jobrec *j, const Titan__Internal__StateReady *m)
{
    struct detail d;
    detail_begin(&d);
    json_put_string(&d.w, "rung", rung_name(j->origin.rung));
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
    change->epoch_origin.is = j->origin;
    set_event(c, change, j,
              (struct say){.type = "state.ready",
                           .message = batch_printf(c->out, "epoch %llu has the state of step %llu from %s",
                                                   (unsigned long long)j->status.epoch, (unsigned long long)m->step,
                                                   rung_name(j->origin.rung)),
                           .detail = detail_end(c, &d)});
}

/* The phases follow each other, so what took long can be seen. A time that is not known is 0. */
void say_recovery_finished(struct core *c, struct jobrec *j)
{
    const struct recovery *r = &j->recovery;
    const int64_t ready = r->ready && r->ready < r->stepped ? r->ready : r->stepped;
    const struct {
        const char *name;
        int64_t ms;
        uint64_t *sum;
    } phases[] = {
        {"detect_ms", r->detect_ms, &c->counters.recovery_detect_ms},
        {"decide_ms", r->revoked ? r->revoked - r->lost : 0, &c->counters.recovery_decide_ms},
        {"quiet_ms", r->revoked && r->quiet ? r->quiet - r->revoked : 0, &c->counters.recovery_quiet_ms},
        {"form_ms", r->quiet ? r->formed - r->quiet : 0, &c->counters.recovery_form_ms},
        {"state_ms", r->formed ? ready - r->formed : 0, &c->counters.recovery_state_ms},
        {"step_ms", r->stepped - ready, &c->counters.recovery_step_ms},
    };
    const long long ms = r->stepped - r->lost;
    struct detail d;
    detail_begin(&d);
    json_put_int(&d.w, "recovery_ms", ms);
    json_put_uint(&d.w, "from_step", r->from_step);
    json_put_uint(&d.w, "resume_step", j->origin_known ? j->origin.step : j->resume_step);
    json_put_uint(&d.w, "world", j->n_seats);
    json_put_string(&d.w, "rung", rung_name(j->origin_known ? j->origin.rung : -1));
    json_put_uint(&d.w, "epochs", MAX(r->epochs, 1u));
    for (size_t i = 0; i < ARRAY_SIZE(phases); i++) {
        json_put_int(&d.w, phases[i].name, phases[i].ms);
        *phases[i].sum += (uint64_t)MAX(phases[i].ms, (int64_t)0);
    }
    c->counters.recoveries++;
    c->counters.recovery_ms += (uint64_t)ms;
    say_event(c, j,
              (struct say){.type = "recovery.finished",
                           .message = batch_printf(c->out, "back after %lld ms with %u workers", ms, j->n_seats),
                           .detail = detail_end(c, &d)});
}

static struct change *worker_change(struct core *c, enum change_kind kind, struct workrec *w)
{
    struct change *change = batch_change(c->out, kind);
    change->worker = (struct worker){
        .id = w->id,
        .job_id = w->job->id,
        .run = w->job->run,
        .node = batch_strdup(c->out, w->node->name),
        .state = w->state,
        .address = batch_strdup(c->out, w->address),
        .rank = -1,
    };
    return change;
}

void say_worker_add(struct core *c, struct workrec *w)
{
    struct detail d;
    detail_begin(&d);
    json_put_uint(&d.w, "worker", w->id);
    set_event(c, worker_change(c, CHANGE_WORKER_ADD, w), w->job,
              (struct say){
                  .type = "worker.starting",
                  .message = batch_printf(c->out, "worker %llu starts on %s", (unsigned long long)w->id, w->node->name),
                  .worker = w,
                  .detail = detail_end(c, &d)});
}

static const char *exit_text(struct core *c, const struct workrec *w, const struct exit_report *r, const char *why)
{
    unsigned long long id = w->id;
    const char *words = r && r->reason && *r->reason ? r->reason : why ? why : "";
    const char *colon = *words ? ": " : "";
    if (!r)
        return batch_printf(c->out, "worker %llu is lost%s%s", id, colon, words);
    if (r->signal)
        return batch_printf(c->out, "worker %llu was ended by signal %d (%s)%s%s", id, r->signal, strsignal(r->signal),
                            colon, words);
    return batch_printf(c->out, "worker %llu exited with status %d%s%s", id, r->exit_code, colon, words);
}

void say_worker_move(struct core *c, struct workrec *w, enum worker_state to, const struct exit_report *r, bool counted,
                     const char *why)
{
    static const char *const types[] = {[WORKER_READY] = "worker.ready",
                                        [WORKER_STOPPING] = "worker.stopping",
                                        [WORKER_EXITED] = "worker.exited",
                                        [WORKER_LOST] = "worker.lost"};
    struct detail d;
    detail_begin(&d);
    json_put_uint(&d.w, "worker", w->id);
    if (to == WORKER_READY && w->address)
        json_put_string(&d.w, "address", w->address);
    if (r) {
        json_put_int(&d.w, "exit_code", r->exit_code);
        json_put_int(&d.w, "signal", r->signal);
    }
    const char *words = r && r->reason && *r->reason ? r->reason : why;
    if (words && *words)
        json_put_string(&d.w, "reason", words);
    if (to == WORKER_EXITED || to == WORKER_LOST)
        json_put_bool(&d.w, "counted", counted);
    w->state = to;
    struct change *change = worker_change(c, CHANGE_WORKER_MOVE, w);
    change->worker.exit_code = r ? r->exit_code : 0;
    change->worker.signal = r ? r->signal : 0;
    change->worker.counted = counted;
    change->worker.reason = batch_strdup(c->out, words);
    const char *message = to == WORKER_READY ? batch_printf(c->out, "worker %llu is ready", (unsigned long long)w->id)
                          : to == WORKER_STOPPING ? batch_printf(c->out, "worker %llu is told to stop: %s",
                                                                 (unsigned long long)w->id, why ? why : "")
                                                  : exit_text(c, w, r, why);
    set_event(c, change, w->job,
              (struct say){.type = types[to], .message = message, .worker = w, .detail = detail_end(c, &d)});
}

void say_worker_pid(struct core *c, struct workrec *w, int64_t pid)
{
    struct detail d;
    detail_begin(&d);
    json_put_uint(&d.w, "worker", w->id);
    json_put_int(&d.w, "pid", pid);
    struct change *change = worker_change(c, CHANGE_WORKER_PID, w);
    change->worker.pid = pid;
    set_event(c, change, w->job,
              (struct say){.type = "worker.started",
                           .message = batch_printf(c->out, "worker %llu has started", (unsigned long long)w->id),
                           .worker = w,
                           .detail = detail_end(c, &d)});
}

void say_checkpoint(struct core *c, struct jobrec *j, const Titan__Internal__CheckpointWritten *m)
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
    set_event(c, change, j,
              (struct say){.type = "checkpoint.committed", .message = words, .detail = detail_end(c, &d)});
    say_job_update(c, j);
}

void say_checkpoint_failed(struct core *c, struct jobrec *j, const Titan__Internal__CheckpointFailed *m)
{
    struct detail d;
    detail_begin(&d);
    if (!m->reading)
        json_put_uint(&d.w, "step", m->step);
    json_put_string(&d.w, "path", m->path);
    json_put_string(&d.w, "reason", m->reason);
    json_put_uint(&d.w, "failures", j->trouble.streak);
    say_event(c, j,
              (struct say){.type = "checkpoint.failed",
                           .message = batch_strdup(c->out, j->trouble.words),
                           .detail = detail_end(c, &d)});
    say_job_update(c, j);
}

void say_checkpoint_expired(struct core *c, struct jobrec *j, const struct ckptrec *ckpt)
{
    struct detail d;
    detail_begin(&d);
    json_put_uint(&d.w, "step", ckpt->step);
    json_put_string(&d.w, "path", ckpt->path);
    struct change *change = batch_change(c->out, CHANGE_CHECKPOINT_EXPIRE);
    change->checkpoint.job_id = j->id;
    change->checkpoint.step = ckpt->step;
    set_event(
        c, change, j,
        (struct say){.type = "checkpoint.expired",
                     .message = batch_printf(c->out, "checkpoint of step %llu goes", (unsigned long long)ckpt->step),
                     .detail = detail_end(c, &d)});
}

void say_node(struct core *c, struct noderec *n, enum node_state to, const char *message)
{
    struct detail d;
    detail_begin(&d);
    json_put_uint(&d.w, "slots", n->slots);
    json_put_string(&d.w, "device", n->device);
    n->state = to;
    struct change *change = batch_change(c->out, CHANGE_NODE_PUT);
    change->node = (struct node){
        .name = batch_strdup(c->out, n->name),
        .state = to,
        .slots = n->slots,
        .device = batch_strdup(c->out, n->device),
        .address = batch_strdup(c->out, n->address),
        .version = batch_strdup(c->out, n->version),
        .memory_bytes = n->memory_bytes,
        .incarnation = n->incarnation,
        .peer_port = n->peer_port,
        .last_seen_ms = n->seen_wall,
    };
    set_event(c, change, NULL,
              (struct say){.type = to == NODE_READY ? "node.ready" : "node.lost",
                           .message = batch_printf(c->out, "node %s %s", n->name, message),
                           .node = n,
                           .detail = detail_end(c, &d)});
}
