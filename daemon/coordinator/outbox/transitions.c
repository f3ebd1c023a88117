/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/outbox/transitions.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mutant.h"
#include "daemon/coordinator/outbox/events.h"
#include "daemon/coordinator/records/phase.h"

static void set_status(struct core *c, struct change *change, struct jobrec *j)
{
    change->job.id = j->id;
    change->job.state = j->state;
    change->job.status = j->status;
    change->job.status.checkpoint = j->n_ckpts ? batch_strdup(c->out, j->ckpts[0].path) : "";
    j->progress.saved_mono = c->now.mono_ms;
    j->progress.unsaved = false;
}

void move_phase(struct jobrec *j, enum job_phase to)
{
    titan_assert(sm_allowed(&phase_sm, (int)j->phase, (int)to));
    j->phase = to;
}

void move_job(struct core *c, struct jobrec *j, enum job_state to, const char *reason)
{
    struct detail d;
    /* The phase that a state implies; none where the job's own phase stays. */
    static const enum job_phase implied[] = {
        [JOB_PENDING] = PHASE_QUEUED,        [JOB_FORMING] = PHASE_ASSEMBLING, [JOB_RESIZING] = PHASE_PAUSING,
        [JOB_CANCELLING] = PHASE_CANCELLING, [JOB_COMPLETED] = PHASE_ENDED,    [JOB_FAILED] = PHASE_ENDED,
        [JOB_CANCELLED] = PHASE_ENDED};
    const enum job_state from = j->state;
    titan_assert(sm_allowed(&job_sm, (int)from, (int)to));
    const enum job_phase phase = (size_t)to < ARRAY_SIZE(implied) && implied[to] ? implied[to] : j->phase;
    titan_assert((phase == PHASE_ENDED) == sm_final(&job_sm, (int)to));
    if (phase != j->phase)
        move_phase(j, phase);
    if (MUTANT(CANCEL_UNSTORED) && to == JOB_CANCELLING) {
        j->state = to;
        return;
    }
    free(TAKE(j->waits.reported)); /* the new reason replaces it */
    detail_begin(&d);
    json_put_string(&d.w, "from", sm_name(&job_sm, (int)from));
    json_put_string(&d.w, "to", sm_name(&job_sm, (int)to));
    if (reason && *reason)
        json_put_string(&d.w, "reason", reason);
    j->state = to;
    if (phase == PHASE_QUEUED || phase == PHASE_ENDED)
        j->status.world_size = j->status.passed = 0;
    if (phase == PHASE_QUEUED)
        j->broken = j->charged = false;
    struct change *change = batch_change(c->out, CHANGE_JOB_MOVE);
    set_status(c, change, j);
    change->job.reason = batch_strdup(c->out, reason);
    event_attach(c, change, j,
                 (struct emit){.type = "job.state",
                               .message = batch_printf(c->out, "%s%s%s", sm_name(&job_sm, (int)to),
                                                       reason && *reason ? ": " : "", reason ? reason : ""),
                               .detail = detail_end(c, &d)});
}

void store_status(struct core *c, struct jobrec *j)
{
    set_status(c, batch_change(c->out, CHANGE_JOB_UPDATE), j);
}

void begin_run(struct core *c, struct jobrec *j)
{
    struct detail d;
    titan_assert(!j->run_active);
    j->run++;
    j->run_active = true;
    detail_begin(&d);
    json_put_uint(&d.w, "run", j->run);
    struct change *change = batch_change(c->out, CHANGE_RUN_ADD);
    change->run.job_id = j->id;
    change->run.number = j->run;
    event_attach(c, change, j,
                 (struct emit){.type = "run.started",
                               .message = batch_printf(c->out, "run %u started", j->run),
                               .detail = detail_end(c, &d)});
}

void end_run(struct core *c, struct jobrec *j, enum run_state to, const char *reason)
{
    struct detail d;
    titan_assert(sm_allowed(&run_sm, RUN_ACTIVE, (int)to));
    if (!j->run_active)
        return;
    j->run_active = false;
    detail_begin(&d);
    json_put_uint(&d.w, "run", j->run);
    json_put_string(&d.w, "state", sm_name(&run_sm, (int)to));
    struct change *change = batch_change(c->out, CHANGE_RUN_MOVE);
    change->run.job_id = j->id;
    change->run.number = j->run;
    change->run.state = to;
    change->run.reason = batch_strdup(c->out, reason);
    event_attach(c, change, j,
                 (struct emit){.type = "run.ended",
                               .message = batch_printf(c->out, "run %u %s", j->run, sm_name(&run_sm, (int)to)),
                               .detail = detail_end(c, &d)});
}

/* Makes the new epoch the job's newest epoch. The members get their places before the epoch is stored. */
void enter_epoch(struct jobrec *j, uint64_t number, uint32_t world)
{
    titan_assert(number > j->status.epoch && world > 0);
    titan_assert(!epoch_live(j) && sm_allowed(&epoch_sm, EPOCH_NONE, EPOCH_FORMING));
    j->status.epoch = number;
    j->status.world_size = world;
    j->epoch_state = EPOCH_FORMING;
    j->broken = j->charged = j->source.origin_known = j->source.origin_reported = false;
    move_phase(j, PHASE_TRAINING);
}

#define MEMBERS_SHOWN 256 /* more ids would not fit into an event */

void store_epoch(struct core *c, struct jobrec *j, const char *by)
{
    const bool ours = by && strcmp(by, FORMED_HERE) == 0;
    const char *type = ours ? "epoch.forming" : by ? "epoch.delegated" : "epoch.restored";
    const char *words = ours ? "forms" : by ? "was formed without us," : "was formed after the backup,";
    const char *leader = ours ? NULL : by;
    struct detail d;
    titan_assert(j->epoch_state == EPOCH_FORMING && j->n_members == j->status.world_size);
    detail_begin(&d);
    json_put_uint(&d.w, "world", j->n_members);
    json_put_string(&d.w, "source", event_source_name(j->source.kind));
    json_put_uint(&d.w, "resume_step", j->source.resume_step);
    if (j->source.epoch)
        json_put_uint(&d.w, "source_epoch", j->source.epoch);
    if (j->n_departing)
        json_put_uint(&d.w, "leavers", j->n_departing);
    if (leader)
        json_put_string(&d.w, "delegate", leader);
    if (j->n_members <= MEMBERS_SHOWN) {
        json_begin_array(&d.w, "workers"); /* members by rank, for views of a run */
        for (uint32_t i = 0; i < j->n_members; i++)
            json_put_uint(&d.w, NULL, j->rank_slots[i].worker_id);
        json_end_array(&d.w);
    }
    struct change *change = batch_change(c->out, CHANGE_EPOCH_ADD);
    const uint32_t all = j->n_members + j->n_departing;
    uint64_t *ids = batch_alloc(c->out, all * sizeof(*ids));
    for (uint32_t i = 0; i < all; i++)
        ids[i] = j->rank_slots[i].worker_id;
    change->epoch = (struct epoch){
        .job_id = j->id,
        .number = j->status.epoch,
        .run = j->run,
        .state = EPOCH_FORMING,
        .source = j->source.kind,
        .source_epoch = j->source.epoch,
        .resume_step = j->source.resume_step,
        .checkpoint = batch_strdup(c->out, j->source.checkpoint),
        .world_size = j->n_members,
        .departing = j->n_departing,
        .workers = ids,
        .leader = batch_strdup(c->out, leader),
        .created_at_ms = c->now.wall_ms,
    };
    memcpy(change->epoch.comm_id, j->epoch_id.comm_id, sizeof(j->epoch_id.comm_id));
    change->epoch.keyed = j->epoch_id.keyed;
    memcpy(change->epoch.key, j->epoch_id.key, sizeof(j->epoch_id.key));
    event_attach(c, change, j,
                 (struct emit){.type = type,
                               .message = batch_printf(c->out, "epoch %llu %s with %u worker%s, state from %s",
                                                       (unsigned long long)j->status.epoch, words, j->n_members,
                                                       j->n_members == 1 ? "" : "s", event_source_name(j->source.kind)),
                               .detail = detail_end(c, &d)});
}

void move_epoch(struct core *c, struct jobrec *j, enum epoch_state to, const char *why)
{
    static const char *const types[] = {
        [EPOCH_RUNNING] = "epoch.formed", [EPOCH_REVOKED] = "epoch.revoked", [EPOCH_ENDED] = "epoch.ended"};
    struct detail d;
    detail_begin(&d);
    json_put_uint(&d.w, "world", j->n_members);
    if (why)
        json_put_string(&d.w, "reason", why);
    titan_assert(sm_allowed(&epoch_sm, (int)j->epoch_state, (int)to));
    struct change *change = batch_change(c->out, CHANGE_EPOCH_MOVE);
    change->epoch.job_id = j->id;
    change->epoch.number = j->status.epoch;
    change->epoch.state = to;
    j->epoch_state = to;
    if (to == EPOCH_REVOKED)
        j->status.world_size = 0;
    if (to == EPOCH_REVOKED && !phase_stops(j))
        move_phase(j, PHASE_ASSEMBLING);
    event_attach(c, change, j,
                 (struct emit){.type = types[to],
                               .message = batch_printf(c->out, "epoch %llu %s%s%s", (unsigned long long)j->status.epoch,
                                                       sm_name(&epoch_sm, (int)to), why ? ": " : "", why ? why : ""),
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

void begin_worker(struct core *c, struct workrec *w)
{
    struct detail d;
    titan_assert(sm_allowed(&worker_sm, (int)w->state, WORKER_STARTING));
    w->state = WORKER_STARTING;
    detail_begin(&d);
    json_put_uint(&d.w, "worker", w->id);
    event_attach(c, worker_change(c, CHANGE_WORKER_ADD, w), w->job,
                 (struct emit){.type = "worker.starting",
                               .message = batch_printf(c->out, "worker %llu starts on %s", (unsigned long long)w->id,
                                                       w->node->name),
                               .worker = w,
                               .detail = detail_end(c, &d)});
}

void move_worker(struct core *c, struct workrec *w, enum worker_state to, const struct exit_report *r, bool counted,
                 const char *why)
{
    static const char *const types[] = {[WORKER_READY] = "worker.ready",
                                        [WORKER_STOPPING] = "worker.stopping",
                                        [WORKER_EXITED] = "worker.exited",
                                        [WORKER_LOST] = "worker.lost"};
    struct detail d;
    titan_assert(sm_allowed(&worker_sm, (int)w->state, (int)to));
    titan_assert(!counted || to == WORKER_EXITED || to == WORKER_LOST);
    detail_begin(&d);
    json_put_uint(&d.w, "worker", w->id);
    if (to == WORKER_READY && w->address)
        json_put_string(&d.w, "address", w->address);
    if (r) {
        json_put_int(&d.w, "exit_code", r->exit_code);
        json_put_int(&d.w, "signal", r->signal);
        if (r->asked)
            json_put_bool(&d.w, "asked", true);
    }
    const char *words = r && r->reason && *r->reason ? r->reason : why ? why : "";
    if (*words)
        json_put_string(&d.w, "reason", words);
    if (to == WORKER_EXITED || to == WORKER_LOST)
        json_put_bool(&d.w, "counted", counted);
    w->state = to;
    struct change *change = worker_change(c, CHANGE_WORKER_MOVE, w);
    change->worker.exit_code = r ? r->exit_code : 0;
    change->worker.signal = r ? r->signal : 0;
    change->worker.counted = counted;
    change->worker.reason = batch_strdup(c->out, words);
    const char *colon = *words ? ": " : "", *message;
    const unsigned long long id = w->id;
    if (to == WORKER_READY)
        message = batch_printf(c->out, "worker %llu is ready", id);
    else if (to == WORKER_STOPPING)
        message = batch_printf(c->out, "worker %llu is told to stop: %s", id, words);
    else if (!r)
        message = batch_printf(c->out, "worker %llu is lost%s%s", id, colon, words);
    else if (r->asked)
        message = batch_printf(c->out, "worker %llu left, as it was told%s%s", id, colon, words);
    else if (r->signal)
        message = batch_printf(c->out, "worker %llu was ended by signal %d (%s)%s%s", id, r->signal,
                               strsignal(r->signal), colon, words);
    else if (r->exit_code == 0 && *words)
        message = batch_printf(c->out, "worker %llu left: %s", id, words);
    else
        message = batch_printf(c->out, "worker %llu exited with status %d%s%s", id, r->exit_code, colon, words);
    event_attach(c, change, w->job,
                 (struct emit){.type = types[to], .message = message, .worker = w, .detail = detail_end(c, &d)});
}

void store_pid(struct core *c, struct workrec *w, int64_t pid)
{
    struct detail d;
    detail_begin(&d);
    json_put_uint(&d.w, "worker", w->id);
    json_put_int(&d.w, "pid", pid);
    struct change *change = worker_change(c, CHANGE_WORKER_PID, w);
    change->worker.pid = pid;
    event_attach(c, change, w->job,
                 (struct emit){.type = "worker.started",
                               .message = batch_printf(c->out, "worker %llu has started", (unsigned long long)w->id),
                               .worker = w,
                               .detail = detail_end(c, &d)});
}

void move_node(struct core *c, struct noderec *n, enum node_state to, const char *message)
{
    struct detail d;
    titan_assert(n->state == to || sm_allowed(&node_sm, (int)n->state, (int)to));
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
    change->node.ephemeral = n->ephemeral;
    memcpy(change->node.installation, n->installation, sizeof(n->installation));
    event_attach(c, change, NULL,
                 (struct emit){.type = to == NODE_READY ? "node.ready" : "node.lost",
                               .message = batch_printf(c->out, "node %s %s", n->name, message),
                               .node = n,
                               .detail = detail_end(c, &d)});
}

void move_node_out(struct core *c, struct noderec *n, const char *message)
{
    titan_assert(n->state == NODE_LOST);
    struct change *change = batch_change(c->out, CHANGE_NODE_REMOVE);
    change->node.name = batch_strdup(c->out, n->name);
    event_attach(c, change, NULL,
                 (struct emit){.type = "node.removed",
                               .message = batch_printf(c->out, "node %s %s", n->name, message),
                               .node = n});
}

void epoch_failed(struct jobrec *j, bool charged)
{
    titan_assert(epoch_live(j));
    j->broken = true;
    j->charged |= charged;
}

void epoch_charged(struct jobrec *j)
{
    j->charged = true;
}
