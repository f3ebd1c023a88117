/* SPDX-License-Identifier: Apache-2.0 */
/* Agents, workers and clients that lie: messages of the real protocol with fields that were made up. What an agent says
 * about jobs it has no part in has no effect at all; nor has, from one that has a part, what cannot be. What could be
 * is believed of its own workers: their jobs may suffer (CHECK_OF), and no other does. */
#include "tests/sim/sim.h"

#include <string.h>

#include "base/cleanup.h"
#include "daemon/coordinator/records/job_table.h"
#include "daemon/coordinator/run/kept_epochs.h"
#include "daemon/common/proof.h"

#define LIES 6

static uint64_t dice;

static uint64_t roll(uint64_t n)
{
    return chance_mix(dice++, 11) % n;
}

static bool listens(void)
{
    return S->coord.core && !S->coord.stopped && !core_fenced(S->coord.core);
}

static uint64_t open_session(void)
{
    uint64_t session = S->next_session++;
    CHECK("sim", session < SIM_SESSIONS, "more sessions than the simulator keeps");
    S->streams[session] = (struct stream){.coord_life = S->coord.life, .coord_open = true, .strange = true};
    return session;
}

/* Returns whether the coordinator went on with the session. */
static bool say(uint64_t session, const agent_message *m)
{
    uint32_t len;
    void *bytes = packed(&m->base, &len);
    bool taken = coord_hears(session, bytes, len);
    bytes_drop(bytes);
    return taken;
}

/* None, one of a term that there was (every node is told its proof), or no more than 32 bytes. */
static ProtobufCBinaryData made_up_proof(unsigned char proof[MAC_BYTES])
{
    for (int i = 0; i < MAC_BYTES; i++)
        proof[i] = (unsigned char)roll(256);
    const uint64_t kind = roll(3);
    if (kind == 0)
        proof_term(coord_term_secret, S->coord.term, proof);
    return (ProtobufCBinaryData){kind == 1 ? 0 : MAC_BYTES, proof};
}

/* A node of its own, with slots that no job can use. */
static void say_registration(uint64_t session, const char *node, const char *address, uint64_t seen_term)
{
    unsigned char proof[MAC_BYTES];
    Titan__Internal__AgentRegistration registration = TITAN__INTERNAL__AGENT_REGISTRATION__INIT;
    agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_REGISTRATION;
    m.registration = &registration;
    registration.node = (char *)node;
    registration.slots = 4;
    registration.device = (char *)"cuda";
    registration.address = (char *)address;
    registration.version = (char *)"1";
    registration.incarnation = 1000 + roll(1000);
    registration.seen_term = seen_term;
    registration.seen_proof = made_up_proof(proof);
    (void)say(session, &m);
}

/* In a session that is acknowledgement. */
static void say_refused_for(uint64_t session, uint64_t seen_term)
{
    unsigned char proof[MAC_BYTES];
    Titan__Internal__EpochRefused body = TITAN__INTERNAL__EPOCH_REFUSED__INIT;
    agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_REFUSED;
    m.refused = &body;
    m.term = S->coord.term;
    body.seen_term = seen_term;
    body.seen_proof = made_up_proof(proof);
    (void)say(session, &m);
}

/* A worker of the job, of that node only (-1: of any); NULL = there is none. */
static const struct workrec *pick_worker(const struct jobrec *j, int host)
{
    for (size_t i = 0, n = j->n_workers, at = n ? roll(n) : 0; i < n; i++, at = (at + 1) % n)
        if (host < 0 || strcmp(j->workers[at]->node->name, S->hosts[host].name) == 0)
            return j->workers[at];
    return NULL;
}

/* What no job has ever got to. */
static uint64_t too_far(uint64_t from)
{
    return from + (UINT64_C(1) << (33 + roll(20)));
}

static uint64_t lie_number(uint64_t from, bool cannot_be)
{
    return cannot_be || roll(3) == 0 ? too_far(from) : from + 1 + roll(4);
}

static void lie_refused(uint64_t session, const struct jobrec *j, bool cannot_be)
{
    Titan__Internal__EpochRefused body = TITAN__INTERNAL__EPOCH_REFUSED__INIT;
    agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_REFUSED;
    m.refused = &body;
    body.job_id = j->id;
    body.epoch = j->status.epoch;
    body.seen_epoch = lie_number(j->status.epoch, cannot_be);
    (void)say(session, &m);
}

/* An epoch of those that are there, from initial weights. */
static void lie_leader_epoch(uint64_t session, const struct jobrec *j, bool cannot_be)
{
    static unsigned char id[16];
    Titan__Internal__Member members[SIM_WORLD], *list[SIM_WORLD];
    Titan__Internal__FormEpoch form = TITAN__INTERNAL__FORM_EPOCH__INIT;
    Titan__Internal__LeaderEpoch body = TITAN__INTERNAL__LEADER_EPOCH__INIT;
    agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    if (!j->n_workers || !j->status.epoch)
        return;
    m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_LEADER_EPOCH;
    m.leader_epoch = &body;
    body.epoch = &form;
    form.job_id = j->id;
    form.epoch = lie_number(j->status.epoch, cannot_be);
    memset(id, (int)roll(256), sizeof(id));
    form.comm_id = (ProtobufCBinaryData){sizeof(id), id};
    form.members = list;
    for (size_t i = 0; i < j->n_workers && i < SIM_WORLD; i++) {
        titan__internal__member__init(&members[i]);
        members[i].worker_id = j->workers[i]->id;
        members[i].node = j->workers[i]->node->name;
        list[form.n_members++] = &members[i];
    }
    (void)say(session, &m);
}

static void lie_finished(uint64_t session, const struct jobrec *j, const struct workrec *w, uint64_t step)
{
    const struct rank_slot *before = job_rank_slot((struct jobrec *)j, w);
    const bool was = j->phase == PHASE_FINISHING || (before && before->finished);
    Titan__Internal__WorkerFinished body = TITAN__INTERNAL__WORKER_FINISHED__INIT;
    agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_FINISHED;
    m.finished = &body;
    body.job_id = j->id;
    body.worker_id = w->id;
    body.epoch = j->status.epoch;
    body.step = step;
    const uint64_t id = j->id, worker = w->id;
    const bool early = step < j->spec.steps;
    (void)say(session, &m);
    struct jobrec *now = early && listens() ? core_find_job(S->coord.core, id) : NULL;
    const struct workrec *its = now ? job_worker(now, worker) : NULL;
    const struct rank_slot *rank_slot = its ? job_rank_slot(now, its) : NULL;
    CHECK("I12",
          !early || was || !listens() || (now && now->phase != PHASE_FINISHING && !(rank_slot && rank_slot->finished)),
          "worker %llu of job %llu has finished at step %llu", LL(worker), LL(id), LL(step));
}

static void lie_exited(uint64_t session, const struct jobrec *j, const struct workrec *w)
{
    Titan__Internal__WorkerExited body = TITAN__INTERNAL__WORKER_EXITED__INIT;
    agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_WORKER_EXITED;
    m.worker_exited = &body;
    body.job_id = j->id;
    body.worker_id = w->id;
    body.exit_code = 2;
    body.reason = (char *)"forged";
    (void)say(session, &m);
}

static void lie_progress(uint64_t session, const struct jobrec *j, const struct workrec *w)
{
    Titan__Internal__WorkerProgress body = TITAN__INTERNAL__WORKER_PROGRESS__INIT;
    agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    const uint64_t id = j->id, steps = MAX(j->spec.steps, MAX(j->status.step, j->source.resume_step));
    m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_PROGRESS;
    m.progress = &body;
    body.job_id = id;
    body.worker_id = w->id;
    body.epoch = j->status.epoch;
    body.step = steps + 1 + roll(1000000);
    (void)say(session, &m);
    struct job_status now;
    if (listens() && core_job_status(S->coord.core, id, &now))
        CHECK("I12", now.step <= steps, "job %llu is at step %llu of %llu, which an agent has made up", LL(id),
              LL(now.step), LL(steps));
}

/* Where another job keeps its own, or above its folder. */
static void lie_checkpoint(uint64_t session, const struct jobrec *j, const struct workrec *w)
{
    char path[80];
    Titan__Internal__CheckpointWritten body = TITAN__INTERNAL__CHECKPOINT_WRITTEN__INIT;
    agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_CHECKPOINT;
    m.checkpoint = &body;
    body.job_id = j->id;
    body.worker_id = w->id;
    body.epoch = j->status.epoch;
    body.step = MIN(j->status.step + 1, j->spec.steps);
    (void)snprintf(path, sizeof(path), roll(2) ? "/jobs/%llu0/step-%llu" : "/jobs/%llu/../9/step-%llu", LL(j->id),
                   LL(body.step));
    body.path = path;
    (void)say(session, &m);
}

/* A field that can never be so ends the session. */
static void lie_out_of_range(uint64_t session, const struct jobrec *j)
{
    Titan__Internal__EpochRefused body = TITAN__INTERNAL__EPOCH_REFUSED__INIT;
    agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_REFUSED;
    m.refused = &body;
    body.job_id = j->id;
    body.epoch = j->status.epoch;
    body.seen_epoch = UINT64_MAX - roll(1000);
    CHECK("I12", !say(session, &m), "a number of %llu is taken for an epoch's", LL(body.seen_epoch));
}

/* Of a node that others are asked for: their numbers can be guessed. */
static void lie_probe(uint64_t session)
{
    Titan__Internal__ProbeResult body = TITAN__INTERNAL__PROBE_RESULT__INIT;
    agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_PROBE_RESULT;
    m.probe_result = &body;
    for (int h = 0; h < S->plan->nodes && listens(); h++) {
        const struct noderec *n = core_find_node(S->coord.core, S->hosts[h].name);
        if (!n || !n->probe.at)
            continue;
        const struct probe before = n->probe;
        body.probe_id = before.id;
        body.node = S->hosts[h].name;
        body.reached = roll(2);
        (void)say(session, &m);
        n = listens() ? core_find_node(S->coord.core, S->hosts[h].name) : NULL;
        CHECK("I12",
              !n || n->probe.id != before.id ||
                  (n->probe.reached == before.reached && n->probe.denied == before.denied),
              "%s is judged by what a node says that was not asked", S->hosts[h].name);
    }
}

/* The coordinator may have died of it, or the job be over. */
static const struct jobrec *job_now(uint32_t pick)
{
    return listens() ? core_find_job(S->coord.core, 1 + pick % (uint32_t)S->plan->jobs) : NULL;
}

/* A node that has no worker of any job. */
static void from_outside(const struct fault *f, uint64_t session)
{
    const struct jobrec *j = job_now(f->pick);
    const struct workrec *w = j ? pick_worker(j, -1) : NULL;
    if (roll(4) == 0) {
        lie_probe(session);
        return;
    }
    switch (j ? roll(7) : 7) {
    case 0:
        lie_refused(session, j, false);
        break;
    case 1:
        lie_leader_epoch(session, j, false);
        break;
    case 2:
        if (w)
            lie_finished(session, j, w, j->spec.steps);
        break;
    case 3:
        if (w)
            lie_exited(session, j, w);
        break;
    case 4:
        if (w)
            lie_progress(session, j, w);
        break;
    case 5:
        if (w)
            lie_checkpoint(session, j, w);
        break;
    case 6:
        lie_out_of_range(session, j);
        break;
    default:
        break;
    }
}

/* The session of a node that is there, when its agent has turned: what cannot be has no effect. */
static void from_inside(const struct fault *f)
{
    const int host = (int)(f->pick2 % (uint32_t)S->plan->nodes);
    const struct jobrec *j = job_now(f->pick);
    const struct workrec *w = j ? pick_worker(j, host) : NULL;
    const uint64_t session = listens() ? core_node_session(S->coord.core, S->hosts[host].name) : 0;
    if (!w || !session || session != S->hosts[host].session)
        return;
    switch (roll(5)) {
    case 0:
        lie_refused(session, j, true);
        break;
    case 1:
        lie_leader_epoch(session, j, true);
        break;
    case 2:
        if (j->status.step + 1 < j->spec.steps && j->source.resume_step + 1 < j->spec.steps)
            lie_finished(session, j, w, j->status.step);
        break;
    case 3:
        lie_progress(session, j, w);
        break;
    default:
        lie_checkpoint(session, j, w);
        break;
    }
}

/* --- a turned agent ----------------------------------------------------------------------------------------------- */

/* What a lie must leave as it is of a job that the liar has no part in. */
struct view {
    bool there, has_part;
    uint64_t epoch, step, refused, checkpoints;
    uint32_t restarts, run, workers, gone, finished, quiesced;
    enum job_state state;
    bool broken, charged, finishing, told_of_state;
};

static void look_at(const struct noderec *n, int job, struct view *ret)
{
    const struct jobrec *j = core_find_job(S->coord.core, (uint64_t)job);
    *ret = (struct view){.there = j != NULL};
    if (!j)
        return;
    ret->has_part = kept_any_on(j, n);
    for (size_t i = 0; i < j->n_workers; i++) {
        ret->has_part |= j->workers[i]->node == n;
        ret->gone += j->workers[i]->state == WORKER_STOPPING;
        ret->quiesced += j->workers[i]->quiesced;
    }
    for (uint32_t i = 0; i < j->n_members + j->n_departing; i++)
        ret->finished += j->rank_slots[i].finished;
    ret->epoch = j->status.epoch;
    ret->step = j->status.step;
    ret->refused = j->quorum.refused_epoch;
    ret->checkpoints = j->n_ckpts;
    ret->restarts = j->status.restarts;
    ret->run = j->run;
    ret->workers = (uint32_t)j->n_workers;
    ret->state = j->state;
    ret->broken = j->broken;
    ret->charged = j->charged;
    ret->finishing = j->phase == PHASE_FINISHING;
    ret->told_of_state = j->source.origin_known;
}

/* Slots that a lie sets free may go to another job, and one of higher priority may take its place again. */
static void must_be_spared(const struct view *a, const struct view *b, int job, int about)
{
    CHECK("I12",
          a->there == b->there && a->restarts == b->restarts && a->refused == b->refused &&
              a->checkpoints == b->checkpoints && a->step == b->step && a->broken == b->broken &&
              a->charged == b->charged && a->finishing == b->finishing &&
              (b->state != JOB_FAILED || a->state == JOB_FAILED),
          "job %d suffers from what a node says that has no part in it", job);
    if (job != about)
        return;
    CHECK("I12",
          a->epoch == b->epoch && a->run == b->run && a->workers == b->workers && a->gone == b->gone &&
              a->finished == b->finished && a->quiesced == b->quiesced && a->state == b->state &&
              a->told_of_state == b->told_of_state,
          "job %d moves by what a node says that has no part in it", job);
}

/* From now on its node's jobs may suffer; an operator sees it and cancels them. */
static void suffers(int job)
{
    if (!S->lied_about[job])
        coord_ask_later(job, (usec)roll(2000) * MS);
    S->lied_about[job] = true;
}

/* job: the one it is about; 0 = all. */
static void say_turned(int host, uint64_t session, const agent_message *m, int about)
{
    struct view before[SIM_JOBS + 1], after;
    const struct noderec *n = core_find_node(S->coord.core, S->hosts[host].name);
    for (int job = 1; job <= S->plan->jobs; job++) {
        look_at(n, job, &before[job]);
        if (before[job].has_part)
            suffers(job);
    }
    (void)say(session, m);
    for (int job = 1; job <= S->plan->jobs && listens(); job++) {
        look_at(core_find_node(S->coord.core, S->hosts[host].name), job, &after);
        /* What waits may start on the slots of a node that registers again. */
        const bool starts = !about && before[job].state == JOB_PENDING;
        if (!before[job].has_part)
            must_be_spared(&before[job], &after, job, about || starts ? about : job);
    }
}

static uint64_t an_epoch(const struct jobrec *j)
{
    const uint64_t epoch = MAX(j->status.epoch, UINT64_C(1));
    switch (roll(6)) {
    case 0:
        return epoch + 1;
    case 1:
        return MAX(epoch - 1, UINT64_C(1));
    case 2:
        return MAX(j->source.epoch, UINT64_C(1));
    default:
        return epoch;
    }
}

static uint64_t a_step(const struct jobrec *j)
{
    const uint64_t step = j->status.step;
    return roll(4) == 0 ? j->spec.steps : MIN(step + roll(3), j->spec.steps);
}

static Titan__Internal__WorkerQuiesced a_quiesced(const struct jobrec *j, uint64_t worker)
{
    Titan__Internal__WorkerQuiesced q = TITAN__INTERNAL__WORKER_QUIESCED__INIT;
    q.job_id = j->id;
    q.worker_id = worker;
    q.epoch = an_epoch(j);
    q.last_step = a_step(j);
    q.paused = roll(2);
    q.installed_epoch = roll(3) ? an_epoch(j) : 0;
    q.pending_epoch = roll(3) ? 0 : an_epoch(j);
    q.prepared = roll(2);
    return q;
}

/* What a worker that is there could have said at another time, or another in its place. */
static void turned_report(int host, uint64_t session, const struct jobrec *j, const struct workrec *w)
{
    agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    const uint64_t epoch = an_epoch(j), step = a_step(j);
    char path[80];
#define SAYS(CASE, member, Type, TYPE, ...)                                                                            \
    {                                                                                                                  \
        Titan__Internal__##Type body = TITAN__INTERNAL__##TYPE##__INIT;                                                \
        m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_##CASE;                                                     \
        m.member = &body;                                                                                              \
        body.job_id = j->id;                                                                                           \
        body.worker_id = w->id;                                                                                        \
        __VA_ARGS__;                                                                                                   \
        say_turned(host, session, &m, (int)body.job_id);                                                               \
        break;                                                                                                         \
    }
    switch (roll(12)) {
    case 0:
        SAYS(WORKER_STARTED, worker_started, WorkerStarted, WORKER_STARTED, body.pid = 1 + (int64_t)roll(100000))
    case 1:
        SAYS(WORKER_READY, worker_ready, WorkerReady, WORKER_READY, body.address = S->hosts[host].name;
             body.last_step = step)
    case 2:
        SAYS(WORKER_QUIESCED, worker_quiesced, WorkerQuiesced, WORKER_QUIESCED, body = a_quiesced(j, w->id))
    case 3:
        SAYS(PROGRESS, progress, WorkerProgress, WORKER_PROGRESS, body.epoch = epoch; body.step = step;
             body.step_ms = 1; body.loss = 1; body.world_size = j->n_members)
    case 4:
        SAYS(WORKER_EXITED, worker_exited, WorkerExited, WORKER_EXITED, body.cause = (int)roll(9);
             body.exit_code = (int32_t)roll(4); body.signal = roll(2) ? 9 : 0; body.reason = (char *)"made up")
    case 5:
        (void)snprintf(path, sizeof(path), "/jobs/%llu/step-%08llu", LL(j->id), LL(step));
        SAYS(CHECKPOINT, checkpoint, CheckpointWritten, CHECKPOINT_WRITTEN, body.epoch = epoch; body.step = step;
             body.path = path; body.world_size = j->n_members)
    case 6:
        SAYS(CHECKPOINT_FAILED, checkpoint_failed, CheckpointFailed, CHECKPOINT_FAILED, body.epoch = epoch;
             body.path = (char *)"/jobs/1"; body.reason = (char *)"made up"; body.reading = roll(2))
    case 7:
        SAYS(FINISHED, finished, WorkerFinished, WORKER_FINISHED, body.epoch = epoch; body.step = j->spec.steps)
    case 8:
        SAYS(STATE_READY, state_ready, StateReady, STATE_READY, body.epoch = epoch; body.step = step;
             body.recovery_source = (Titan__Internal__RecoverySource)roll(5); body.params_hash = roll(UINT64_MAX);
             body.rolled_forward = roll(2))
    case 9:
        SAYS(STALLED, stalled, WorkerStalled, WORKER_STALLED, body.epoch = epoch; body.step = step; body.for_ms = 5000)
    case 10:
        SAYS(EVALUATED, evaluated, WorkerEvaluated, WORKER_EVALUATED, body.epoch = epoch; body.step = step;
             body.loss = 1; body.tokens = 1 + roll(100))
    default:
        SAYS(STRAGGLES, straggles, WorkerStraggles, WORKER_STRAGGLES, body.epoch = epoch; body.busy_ms = 100;
             body.median_ms = 1; body.steps = 10)
    }
#undef SAYS
}

/* The job's rank slots as they are, or a worker less, or one that is not there. */
static bool an_epoch_of(const struct jobrec *j, Titan__Internal__LeaderEpoch *ret)
{
    static unsigned char id[16];
    static Titan__Internal__Member members[SIM_WORLD + 1], *list[SIM_WORLD + 1];
    static Titan__Internal__FormEpoch form;
    if (!j->n_workers || j->n_workers > SIM_WORLD || !j->status.epoch)
        return false;
    titan__internal__leader_epoch__init(ret);
    titan__internal__form_epoch__init(&form);
    memset(id, (int)roll(256), sizeof(id));
    form.job_id = j->id;
    form.epoch = (j->status.epoch / 1024 + 1) * 1024;
    form.comm_id = (ProtobufCBinaryData){sizeof(id), id};
    form.source = TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY;
    form.source_epoch = j->status.epoch;
    form.resume_step = a_step(j);
    form.memory_only = true;
    form.members = list;
    for (size_t i = roll(2); i < j->n_workers; i++) {
        titan__internal__member__init(&members[i]);
        members[i].worker_id = j->workers[i]->id;
        members[i].node = j->workers[i]->node->name;
        list[form.n_members++] = &members[i];
    }
    ret->epoch = &form;
    return form.n_members > 0;
}

static void turned_leader_epoch(int host, uint64_t session, const struct jobrec *j)
{
    Titan__Internal__LeaderEpoch body;
    agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    const uint64_t id = j->id, before = j->status.epoch;
    if (!an_epoch_of(j, &body))
        return;
    m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_LEADER_EPOCH;
    m.leader_epoch = &body;
    bool cannot_be = !world_set_has(&j->spec.worlds, (uint32_t)body.epoch->n_members);
    if (roll(4) == 0) {
        body.epoch->members[0]->worker_id += SIM_WORKERS;
        cannot_be = true;
    }
    say_turned(host, session, &m, (int)id);
    j = listens() ? core_find_job(S->coord.core, id) : NULL;
    CHECK("I12", !cannot_be || !j || j->status.epoch == before || j->status.epoch != body.epoch->epoch,
          "job %llu is in an epoch that it cannot have", LL(id));
}

static void turned_refused(int host, uint64_t session, const struct jobrec *j)
{
    Titan__Internal__EpochRefused body = TITAN__INTERNAL__EPOCH_REFUSED__INIT;
    agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_REFUSED;
    m.refused = &body;
    body.job_id = j->id;
    body.epoch = j->status.epoch;
    body.seen_epoch = j->status.epoch + 1 + roll(2000);
    say_turned(host, session, &m, (int)j->id);
}

/* One that is asked, of a node that is suspected: one of up to three witnesses. */
static void turned_probe(int host, uint64_t session)
{
    Titan__Internal__ProbeResult body = TITAN__INTERNAL__PROBE_RESULT__INIT;
    agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_PROBE_RESULT;
    m.probe_result = &body;
    for (int h = 0; h < S->plan->nodes && listens(); h++) {
        const struct noderec *n = core_find_node(S->coord.core, S->hosts[h].name);
        if (!n || !n->probe.at || h == host)
            continue;
        body.probe_id = n->probe.id;
        body.node = S->hosts[h].name;
        body.reached = roll(2);
        say_turned(host, session, &m, 0);
    }
}

/* Of its own node, once more: workers that are another one's, and its own in any phase. Returns the session. */
static uint64_t turned_registration(int host)
{
    static Titan__Internal__LiveWorker live[SIM_WORLD], *workers[SIM_WORLD];
    static Titan__Internal__WorkerQuiesced quiesced[SIM_WORLD];
    Titan__Internal__LeaderEpoch leader_epochs, *one = &leader_epochs;
    Titan__Internal__AgentRegistration registration = TITAN__INTERNAL__AGENT_REGISTRATION__INIT;
    agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    const uint64_t session = open_session();
    S->streams[session].strange = false;
    S->streams[session].host = host;
    m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_REGISTRATION;
    m.registration = &registration;
    registration.node = registration.address = S->hosts[host].name;
    registration.slots = S->plan->slots[host];
    registration.device = (char *)"cpu";
    registration.version = (char *)"1";
    registration.incarnation = S->hosts[host].life + 1;
    registration.seen_term = S->coord.term;
    registration.workers = workers;
    for (int job = 1; job <= S->plan->jobs; job++) {
        const struct jobrec *j = core_find_job(S->coord.core, (uint64_t)job);
        for (size_t i = 0; j && i < j->n_workers && registration.n_workers < SIM_WORLD; i++) {
            Titan__Internal__LiveWorker *l = &live[registration.n_workers];
            if (roll(3) == 0)
                continue;
            titan__internal__live_worker__init(l);
            l->job_id = j->id;
            l->worker_id = j->workers[i]->id;
            l->epoch = an_epoch(j);
            l->step = a_step(j);
            l->state = (uint32_t)roll(7);
            l->address = registration.address;
            if (roll(2)) {
                quiesced[registration.n_workers] = a_quiesced(j, l->worker_id);
                l->quiesced = &quiesced[registration.n_workers];
            }
            workers[registration.n_workers++] = l;
        }
        if (j && roll(2) && !registration.n_leader_epochs && an_epoch_of(j, &leader_epochs)) {
            registration.leader_epochs = &one;
            registration.n_leader_epochs = 1;
        }
    }
    say_turned(host, session, &m, 0);
    return session;
}

/* The agent of a node that is there says whatever could be: in its session, or in another that it opens. */
static void turned(const struct fault *f)
{
    const int host = (int)(f->pick2 % (uint32_t)S->plan->nodes);
    uint64_t session = listens() ? core_node_session(S->coord.core, S->hosts[host].name) : 0;
    if (!session || session != S->hosts[host].session || S->store.old)
        return;
    TRACE("the agent of %s has turned", S->hosts[host].name);
    S->hosts[host].turned = true;
    if (roll(4) == 0)
        session = turned_registration(host);
    for (int i = 0; i < 2 * LIES && listens() && S->streams[session].coord_open && !S->streams[session].dropped; i++) {
        const struct jobrec *j = job_now((uint32_t)roll(1000));
        const struct workrec *w = j ? pick_worker(j, roll(4) ? host : -1) : NULL;
        switch (roll(8)) {
        case 0:
            turned_probe(host, session);
            break;
        case 1:
            if (j)
                turned_leader_epoch(host, session, j);
            break;
        case 2:
            if (j && j->status.epoch)
                turned_refused(host, session, j);
            break;
        default:
            if (w)
                turned_report(host, session, j, w);
            break;
        }
    }
}

/* In the name of a node that is there, from where that is: it has no proof that it is the node. One that is not there
 * could not be told apart: certificates do that, which the simulator does not have. */
static void take_name(const struct fault *f)
{
    const struct host *victim = &S->hosts[f->pick2 % (uint32_t)S->plan->nodes];
    const uint64_t was = core_node_session(S->coord.core, victim->name);
    if (!was)
        return;
    const bool heartbeats = was == victim->session && S->now - victim->heard_at < 100 * MS;
    say_registration(open_session(), victim->name, victim->name, 0);
    CHECK("I7", !heartbeats || !listens() || core_node_session(S->coord.core, victim->name) == was,
          "another identity took the name of %s, which is there", victim->name);
}

void byzantine_agent(const struct fault *f)
{
    dice = chance_mix(f->pick, f->pick2);
    if (!listens())
        return;
    switch (roll(5)) {
    case 0: /* a term that there was never, with a registration, behind it and without */
        say_registration(open_session(), "evil", "evil", S->coord.term + 1 + roll(4));
        if (listens())
            say_registration(open_session(), "evil", "evil", too_far(S->coord.term));
        if (listens()) {
            uint64_t session = open_session();
            say_registration(session, "evil", "evil", 0);
            if (listens() && S->streams[session].coord_open)
                say_refused_for(session, S->coord.term + 1 + roll(4));
            if (listens() && S->streams[session].coord_open)
                coord_session_closed(session);
            S->streams[session].coord_open = false;
        }
        if (listens()) {
            Titan__Internal__AgentHeartbeat heartbeat = TITAN__INTERNAL__AGENT_HEARTBEAT__INIT;
            agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
            m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_HEARTBEAT;
            m.heartbeat = &heartbeat;
            m.term = S->coord.term + 1;
            (void)say(open_session(), &m);
        }
        CHECK("I12", !S->coord.core || !core_fenced(S->coord.core) || S->store.old, "a made-up term fences");
        break;
    case 1:
        take_name(f);
        break;
    case 2:
        for (int i = 0; i < LIES; i++)
            from_inside(f);
        break;
    case 3:
        turned(f);
        break;
    default:
        for (int i = 0; i < LIES && listens(); i++) {
            uint64_t session = open_session();
            say_registration(session, "evil", "evil", 0);
            from_outside(f, session);
            if (listens() && S->streams[session].coord_open)
                coord_session_closed(session);
            S->streams[session].coord_open = false;
        }
        break;
    }
}

/* --- datagrams under a key that is right -------------------------------------------------------------------------- */

#define MADE_UP_STEP 1000000 /* where no worker can be */
#define MADE_UP_EPOCH 77     /* above a multiple of what acting leaders go up by */

/* An agent of a member of the job's epoch that is neither; -1 = there is none. */
static int insider(uint64_t job, int not_this, const Titan__Internal__AgentJobRecord **ret)
{
    for (int i = 0, h = (int)roll((uint64_t)S->plan->nodes); i < S->plan->nodes; i++, h = (h + 1) % S->plan->nodes) {
        const struct host *host = &S->hosts[h];
        if (h == not_this || !host->alive || !host->records[job].bytes)
            continue;
        const Titan__Internal__AgentJobRecord *r =
            titan__internal__agent_job_record__unpack(&event_memory, host->records[job].len, host->records[job].bytes);
        titan_assert(r);
        for (size_t k = 0; r->accepted && k < r->accepted->n_members; k++)
            if (strcmp(r->accepted->members[k]->node, host->name) == 0) {
                *ret = r;
                return h;
            }
    }
    return -1;
}

/* What it says of itself cannot be told from the truth: the job suffers, and others do not. */
static void on_plausible(const struct ev *e)
{
    const int to = (int)e->a, from = (int)(e->b & 0xff);
    if (S->hosts[to].alive && net_reaches(from, to))
        agent_hears_peer(to, from, e->bytes, e->len);
}

static void on_datagram(const struct ev *e)
{
    const int to = (int)e->a, from = (int)(e->b & 0xff);
    const uint64_t job = e->b >> 8;
    if (!S->hosts[to].alive || !net_reaches(from, to))
        return;
    const uint64_t before = agent_epoch(to, job);
    agent_hears_peer(to, from, e->bytes, e->len);
    CHECK("I12", agent_epoch(to, job) == before, "%s takes epoch %llu of job %llu from %s, which it has not promised",
          S->hosts[to].name, LL(agent_epoch(to, job)), LL(job), S->hosts[from].name);
}

static void send_proved(int from, int to, Titan__Internal__PeerMessage *m, const struct proof_keys *keys,
                        bool plausible)
{
    static const struct handler handler_plausible = {"datagram of one that has turned", on_plausible, TARGET_AGENT};
    static const struct handler handler = {"datagram of one that lies", on_datagram, TARGET_AGENT};
    uint8_t proofs[PROOF_KEYS_MAX * MAC_BYTES];
    m->from = S->hosts[from].name;
    m->to = S->hosts[to].name;
    m->proof = (ProtobufCBinaryData){0};
    proof_make(m, keys, proofs);
    struct ev *e = at(S->now + between(CHANCE_FORGER, MS / 2, 20 * MS), plausible ? &handler_plausible : &handler,
                      (uint64_t)to, m->job_id << 8 | (uint64_t)from);
    e->bytes = packed(&m->base, &e->len);
    totals->forged++;
}

/* An epoch that no agent has promised, and one that was, made of something else. */
static void forge_commit(int from, int to, const Titan__Internal__PeerMessage *m, const struct proof_keys *keys)
{
    static unsigned char id[16];
    uint8_t covered[PROOF_KEYS_MAX * MAC_BYTES] = {0};
    Titan__Internal__PeerMessage forged = *m;
    Titan__Internal__FormEpoch commit = *m->propose;
    commit.source = TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY;
    switch (roll(3)) {
    case 0:
        commit.epoch += 1 + roll(3);
        break;
    case 1:
        memset(id, (int)roll(256), sizeof(id));
        commit.comm_id = (ProtobufCBinaryData){sizeof(id), id};
        commit.epoch += roll(2) * 1024;
        break;
    default:
        commit.source_epoch = roll(2) ? 0 : commit.epoch;
        break;
    }
    for (size_t i = 0; i < keys->n; i++)
        proof_cover(keys->key[i], &commit, covered + i * MAC_BYTES);
    forged.covered_key = (ProtobufCBinaryData){keys->n * MAC_BYTES, covered};
    forged.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_COMMIT;
    forged.commit = &commit;
    send_proved(from, to, &forged, keys, false);
}

/* With a stranger among its members, or from an epoch before theirs; its number shows an agent that promises it. */
static void forge_proposal(int from, int to, const Titan__Internal__PeerMessage *m, const struct proof_keys *keys)
{
    Titan__Internal__PeerMessage forged = *m;
    Titan__Internal__FormEpoch propose = *m->propose;
    Titan__Internal__Member stranger = *propose.members[0], *members[SIM_WORLD];
    CHECK("sim", propose.n_members <= SIM_WORLD, "size of a proposal");
    memcpy(members, propose.members, propose.n_members * sizeof(*members));
    propose.members = members;
    propose.epoch += MADE_UP_EPOCH;
    forged.propose = &propose;
    if (roll(2)) {
        stranger.worker_id += SIM_WORKERS;
        members[roll(propose.n_members)] = &stranger;
    } else {
        propose.source_epoch = 0;
    }
    send_proved(from, to, &forged, keys, false);
}

/* To the acting leader, of a worker that is another's. */
static void forge_quiesced(int from, int to, const Titan__Internal__PeerMessage *m, const struct proof_keys *keys,
                           const Titan__Internal__FormEpoch *accepted)
{
    Titan__Internal__PeerMessage forged = *m;
    Titan__Internal__WorkerQuiesced q = TITAN__INTERNAL__WORKER_QUIESCED__INIT;
    const Titan__Internal__Member *of = accepted->members[roll(accepted->n_members)];
    if (strcmp(of->node, S->hosts[from].name) == 0)
        return;
    q.job_id = m->job_id;
    q.worker_id = of->worker_id;
    q.epoch = q.installed_epoch = accepted->epoch;
    q.last_step = MADE_UP_STEP;
    forged.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_QUIESCED;
    forged.quiesced = &q;
    send_proved(from, to, &forged, keys, false);
}

/* In answer to the acting leader, in its own name, another thing than its agent says: which live, what it has promised
 * and by what it counts, what its worker holds. */
static void answer_falsely(int from, int to, const Titan__Internal__PeerMessage *m, const struct proof_keys *keys)
{
    Titan__Internal__PeerMessage forged = *m;
    Titan__Internal__PeerState state;
    Titan__Internal__EpochPromise promise;
    Titan__Internal__WorkerQuiesced quiesced;
    if (!S->lied_about[m->job_id])
        coord_ask_later((int)m->job_id, (usec)roll(2000) * MS);
    S->lied_about[m->job_id] = true;
    S->hosts[from].turned = true;
    if (m->kind_case == TITAN__INTERNAL__PEER_MESSAGE__KIND_STATE) {
        state = *m->state;
        state.n_alive -= state.n_alive && roll(2);
        state.coordinator ^= roll(2);
        state.finished = roll(4) == 0;
        state.epoch += roll(3) == 0;
        forged.state = &state;
    } else if (m->kind_case == TITAN__INTERNAL__PEER_MESSAGE__KIND_PROMISE) {
        promise = *m->promise;
        promise.granted ^= roll(3) > 0;
        promise.seen_epoch += roll(3000);
        promise.n_counts -= promise.n_counts && roll(2);
        forged.promise = &promise;
    } else {
        quiesced = *m->quiesced;
        quiesced.last_step += roll(3);
        quiesced.installed_epoch = roll(2) ? quiesced.epoch : quiesced.installed_epoch;
        quiesced.paused = roll(2);
        forged.quiesced = &quiesced;
    }
    send_proved(from, to, &forged, keys, true);
}

static void keys_of(const Titan__Internal__AgentJobRecord *r, struct proof_keys *ret)
{
    proof_add_epoch(ret, r->accepted);
    for (size_t i = 0; i < r->n_before; i++)
        proof_add_epoch(ret, r->before[i]);
}

/* In some schedules: jobs that may suffer show less. */
static void turn_peer(int from, int to, const Titan__Internal__PeerMessage *m)
{
    struct proof_keys keys = {0};
    const struct host *host = &S->hosts[from];
    if (S->plan->seed % 8 != 5 || !S->coord.submitted[m->job_id] || !host->records[m->job_id].bytes ||
        !chance(CHANCE_FORGER, 3))
        return;
    dice = draw(CHANCE_FORGER);
    const Titan__Internal__AgentJobRecord *r = titan__internal__agent_job_record__unpack(
        &event_memory, host->records[m->job_id].len, host->records[m->job_id].bytes);
    titan_assert(r);
    if (!r->accepted)
        return;
    keys_of(r, &keys);
    answer_falsely(from, to, m, &keys);
}

/* While agents decide alone, one of theirs says what another would have to. None of it may have an effect, the job's
 * own included. */
void byzantine_peer(int from, int to, const Titan__Internal__PeerMessage *m)
{
    const bool propose = m->kind_case == TITAN__INTERNAL__PEER_MESSAGE__KIND_PROPOSE;
    const Titan__Internal__AgentJobRecord *r = NULL;
    struct proof_keys keys = {0};
    if (to == SIM_COORD || !m->job_id || m->job_id > SIM_JOBS || S->plan->scale)
        return;
    if (m->kind_case == TITAN__INTERNAL__PEER_MESSAGE__KIND_STATE ||
        m->kind_case == TITAN__INTERNAL__PEER_MESSAGE__KIND_PROMISE ||
        m->kind_case == TITAN__INTERNAL__PEER_MESSAGE__KIND_QUIESCED)
        turn_peer(from, to, m);
    if ((!propose && m->kind_case != TITAN__INTERNAL__PEER_MESSAGE__KIND_REVOKE) || S->lied_about[m->job_id] ||
        !chance(CHANCE_FORGER, 50))
        return;
    dice = draw(CHANCE_FORGER);
    const int liar = insider(m->job_id, propose ? to : from, &r);
    if (liar < 0)
        return;
    keys_of(r, &keys);
    if (!propose)
        forge_quiesced(liar, from, m, &keys, r->accepted);
    else if (roll(2))
        forge_commit(liar, to, m, &keys);
    else
        forge_proposal(liar, to, m, &keys);
}

bool byzantine_promised(uint64_t epoch)
{
    return epoch % 1024 == MADE_UP_EPOCH;
}

bool byzantine_step(uint64_t step)
{
    return step >= MADE_UP_STEP;
}

/* What can never be, in its own name: it ends, and its job pays for it (image.c). */
void byzantine_worker(const struct fault *f)
{
    const struct proc *p = proc_pick(f->pick);
    Titan__Internal__WorkerProgress body = TITAN__INTERNAL__WORKER_PROGRESS__INIT;
    worker_message m = TITAN__INTERNAL__WORKER_TO_AGENT__INIT;
    if (!p || !p->connected)
        return;
    m.kind_case = TITAN__INTERNAL__WORKER_TO_AGENT__KIND_PROGRESS;
    m.progress = &body;
    body.job_id = p->job;
    body.worker_id = p->id;
    body.epoch = f->pick2 % 2 ? UINT64_MAX : 1;
    body.step_ms = f->pick2 % 2 ? 1 : -1;
    net_local_up(p->id, &m.base);
}

/* Requests with numbers that mean nothing: each is refused, or does what its job allows. */
void byzantine_client(const struct fault *f)
{
    static const uint64_t ids[] = {0, UINT64_MAX, UINT64_C(1) << 63, 1000000};
    static const uint32_t workers[] = {UINT32_MAX, JOB_WORKERS_MAX + 1, 0x80000000u, 4096};
    struct core *c = S->coord.core;
    struct titan_error err = {0};
    struct batch b;
    uint64_t step = 0;
    if (!listens() || S->coord.stalled)
        return;
    const uint64_t id = ids[f->pick % 4], job = 1 + f->pick2 % (uint32_t)S->plan->jobs;
    const struct job_spec *spec = &S->plan->specs[job].spec;
    struct core_cancel cancel = {.reason = ""};
    struct core_resize r = {.workers = workers[f->pick % 4]};
    struct core_resize upside_down = {.min = spec->max_workers, .max = spec->min_workers}; /* it can have either */
    if (spec->max_workers == spec->min_workers)
        upside_down.min = UINT32_MAX;
    const struct core_drain window = {.reason = "", .from_ms = INT64_MIN, .for_ms = INT64_MAX};
    batch_init(&b);
    CHECK("I12", core_cancel(c, id, &cancel, coord_now(), &b, &err) != TITAN_OK, "cancel of no job");
    CHECK("I12", core_checkpoint(c, id, coord_now(), &b, &step, &err) != TITAN_OK, "checkpoint of no job");
    CHECK("I12", core_resize(c, job, &r, coord_now(), &b, &err) != TITAN_OK, "resize to %u", r.workers);
    CHECK("I12", core_resize(c, job, &upside_down, coord_now(), &b, &err) != TITAN_OK, "resize to a range upside down");
    CHECK("I12", core_drain(c, S->hosts[0].name, &window, coord_now(), &b, &err) != TITAN_OK, "a window beyond time");
    CHECK("I12", core_drain(c, "nowhere", &window, coord_now(), &b, &err) != TITAN_OK, "drain of no node");
    CHECK("I12", core_undrain(c, "nowhere", coord_now(), &b, &err) != TITAN_OK, "undrain of no node");
    CHECK("I12", batch_empty(&b), "a refused request has an effect");
    batch_free(&b);
}
