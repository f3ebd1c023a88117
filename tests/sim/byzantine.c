/* Agents, workers and clients that lie: messages of the real protocol whose fields were made up. What an agent says
 * about jobs it has no part in has no effect at all; nor has, from one that has a part, what cannot be. */
#include "tests/sim/sim.h"

#include <string.h>

#include "base/cleanup.h"
#include "daemon/coordinator/records/job_table.h"
#include "daemon/proof.h"

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
static void say_hello(uint64_t session, const char *node, const char *address, uint64_t seen_term)
{
    unsigned char proof[MAC_BYTES];
    Titan__Internal__AgentHello hello = TITAN__INTERNAL__AGENT_HELLO__INIT;
    agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_HELLO;
    m.hello = &hello;
    hello.node = (char *)node;
    hello.slots = 4;
    hello.device = (char *)"cuda";
    hello.address = (char *)address;
    hello.version = (char *)"1";
    hello.incarnation = 1000 + roll(1000);
    hello.seen_term = seen_term;
    hello.seen_proof = made_up_proof(proof);
    (void)say(session, &m);
}

/* In a session that is welcome. */
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

/* An epoch of those who are there, from initial weights. */
static void lie_delegated(uint64_t session, const struct jobrec *j, bool cannot_be)
{
    static unsigned char id[16];
    Titan__Internal__Member members[SIM_WORLD], *list[SIM_WORLD];
    Titan__Internal__FormEpoch form = TITAN__INTERNAL__FORM_EPOCH__INIT;
    Titan__Internal__EpochDelegated body = TITAN__INTERNAL__EPOCH_DELEGATED__INIT;
    agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    if (!j->n_workers || !j->status.epoch)
        return;
    m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_DELEGATED;
    m.delegated = &body;
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
    const struct seat *before = job_seat((struct jobrec *)j, w);
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
    const struct seat *seat = its ? job_seat(now, its) : NULL;
    CHECK("I12", !early || was || !listens() || (now && now->phase != PHASE_FINISHING && !(seat && seat->finished)),
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
        lie_delegated(session, j, false);
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
        lie_delegated(session, j, true);
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

/* In the name of a node that is there, from where that is: it has no proof that it is the node. One that is not there
 * could not be told apart: certificates do that, which the simulator does not have. */
static void take_name(const struct fault *f)
{
    const struct host *victim = &S->hosts[f->pick2 % (uint32_t)S->plan->nodes];
    const uint64_t was = core_node_session(S->coord.core, victim->name);
    if (!was)
        return;
    const bool beats = was == victim->session && S->now - victim->heard_at < 100 * MS;
    say_hello(open_session(), victim->name, victim->name, 0);
    CHECK("I7", !beats || !listens() || core_node_session(S->coord.core, victim->name) == was,
          "another identity took the name of %s, which is there", victim->name);
}

void byzantine_agent(const struct fault *f)
{
    dice = chance_mix(f->pick, f->pick2);
    if (!listens())
        return;
    switch (roll(4)) {
    case 0: /* a term that there was never, with a hello, behind it and without */
        say_hello(open_session(), "evil", "evil", S->coord.term + 1 + roll(4));
        if (listens())
            say_hello(open_session(), "evil", "evil", too_far(S->coord.term));
        if (listens()) {
            uint64_t session = open_session();
            say_hello(session, "evil", "evil", 0);
            if (listens() && S->streams[session].coord_open)
                say_refused_for(session, S->coord.term + 1 + roll(4));
            if (listens() && S->streams[session].coord_open)
                coord_session_closed(session);
            S->streams[session].coord_open = false;
        }
        if (listens()) {
            Titan__Internal__AgentBeat beat = TITAN__INTERNAL__AGENT_BEAT__INIT;
            agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
            m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_BEAT;
            m.beat = &beat;
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
    default:
        for (int i = 0; i < LIES && listens(); i++) {
            uint64_t session = open_session();
            say_hello(session, "evil", "evil", 0);
            from_outside(f, session);
            if (listens() && S->streams[session].coord_open)
                coord_session_closed(session);
            S->streams[session].coord_open = false;
        }
        break;
    }
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
    enum job_state state;
    uint64_t step = 0;
    if (!listens() || S->coord.stalled)
        return;
    const uint64_t id = ids[f->pick % 4], job = 1 + f->pick2 % (uint32_t)S->plan->jobs;
    struct core_resize r = {.workers = workers[f->pick % 4]}, upside_down = {.min = UINT32_MAX, .max = 1};
    const struct core_drain window = {.reason = "", .from_ms = INT64_MIN, .for_ms = INT64_MAX};
    batch_init(&b);
    CHECK("I12", core_cancel(c, id, "", 0, coord_now(), &b, &state, &err) != TITAN_OK, "cancel of no job");
    CHECK("I12", core_checkpoint(c, id, coord_now(), &b, &step, &err) != TITAN_OK, "checkpoint of no job");
    CHECK("I12", core_resize(c, job, &r, coord_now(), &b, &err) != TITAN_OK, "resize to %u", r.workers);
    CHECK("I12", core_resize(c, job, &upside_down, coord_now(), &b, &err) != TITAN_OK, "resize to a range upside down");
    CHECK("I12", core_drain(c, S->hosts[0].name, &window, coord_now(), &b, &err) != TITAN_OK, "a window beyond time");
    CHECK("I12", core_drain(c, "nobody", &window, coord_now(), &b, &err) != TITAN_OK, "drain of no node");
    CHECK("I12", batch_empty(&b), "a refused request has an effect");
    batch_free(&b);
}
