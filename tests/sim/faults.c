/* SPDX-License-Identifier: Apache-2.0 */
/* How each fault strikes, and how it ends. */
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

static int pick_host(uint32_t pick)
{
    return (int)(pick % (uint32_t)S->plan->nodes);
}

/* Mostly the one with the most workers: these may go on by themselves. */
static int crowded_host(const struct fault *f)
{
    int most = pick_host(f->pick), n_most = 0;
    for (int h = 0; h < S->plan->nodes && f->pick2 % 4; h++) {
        size_t i = 0;
        int n = 0;
        while (host_next(h, &i))
            n++;
        if (n > n_most) {
            most = h;
            n_most = n;
        }
    }
    return most;
}

/* --- links -------------------------------------------------------------------------------------------------------- */

/* Which directed links a cut takes; the same when it heals. */
static void cut_links(const struct fault *f, void (*each)(int from, int to))
{
    int n = f->kind == FAULT_ELSEWHERE ? S->elsewhere[f - S->plan->faults] : pick_host(f->pick);
    int other = pick_host(f->pick2);
    switch (f->kind) {
    case FAULT_CUT_COORD:
        each(n, SIM_COORD);
        each(SIM_COORD, n);
        break;
    case FAULT_CUT_ONE_WAY:
        if (f->pick2 % 3 == 0 || n == other)
            each(f->pick2 & 1 ? n : SIM_COORD, f->pick2 & 1 ? SIM_COORD : n);
        else
            each(n, other);
        break;
    default: /* all links between those with a bit and those without */
        for (int a = 0; a <= SIM_COORD; a++)
            for (int b = 0; b <= SIM_COORD; b++) {
                const bool one = f->kind == FAULT_CUT_NODE || f->kind == FAULT_ELSEWHERE;
                const uint32_t side = one ? 1u << n : f->pick;
                if (a != b && (side >> a & 1) != (side >> b & 1))
                    each(a, b);
            }
        break;
    }
}

static void on_heal(const struct ev *e)
{
    TRACE("%s is over", fault_names[S->plan->faults[e->a].kind]);
    cut_links(&S->plan->faults[e->a], net_heal);
    training_network_changed();
}

static void cut(const struct fault *f)
{
    static const struct handler heal = {"heals", on_heal, TARGET_WORLD};
    cut_links(f, net_cut);
    (void)at(S->now + f->lasts, &heal, (uint64_t)(f - S->plan->faults), 0);
}

static void trouble_link(const struct fault *f)
{
    int n = pick_host(f->pick);
    for (int o = 0; o <= SIM_COORD; o++) {
        for (int way = 0; way < 2; way++) {
            struct link *l = way ? &S->links[n][o] : &S->links[o][n];
            if (f->kind == FAULT_LINK_SLOW) {
                l->slow_until = S->now + f->lasts;
                l->extra = (5 + f->pick2 % 400) * MS;
            } else if (f->kind == FAULT_LINK_LOSSY) {
                l->lossy_until = S->now + f->lasts;
                l->loss = 5 + (int)(f->pick2 % 60);
            } else {
                l->doubles_until = S->now + f->lasts;
            }
        }
    }
}

/* --- processes ---------------------------------------------------------------------------------------------------- */

static void on_continue(const struct ev *e)
{
    struct proc *p = &S->procs[e->a];
    if (!p->alive || !p->stopped)
        return;
    TRACE("worker %llu goes on", LL(p->id));
    p->stopped = false;
    p->went_on = S->now;
    cluster_continue(TARGET_WORKER, p->id);
}

static void on_second_kill(const struct ev *e)
{
    const struct proc *p = proc_pick((uint32_t)e->a);
    if (p)
        proc_end(p->id, -1, 9, "fault");
}

static const struct handler second = {"second kill", on_second_kill, TARGET_WORLD};

static void trouble_worker(const struct fault *f)
{
    static const struct handler go_on = {"worker continues", on_continue, TARGET_WORLD};
    struct proc *p = proc_pick(f->pick);
    if (!p)
        return;
    switch (f->kind) {
    case FAULT_WORKER_HANG:
        TRACE("worker %llu hangs", LL(p->id));
        p->hung = true;
        break;
    case FAULT_WORKER_STOP:
        TRACE("worker %llu is stopped", LL(p->id));
        p->stopped = true;
        (void)at(S->now + f->lasts, &go_on, p->id, 0);
        break;
    case FAULT_WORKERS_KILL:
        (void)at(S->now + f->lasts, &second, f->pick2, 0);
        proc_end(p->id, -1, 9, "fault");
        break;
    case FAULT_WORKER_EXIT:
        proc_end(p->id, 1, 0, "fault");
        break;
    default:
        proc_end(p->id, -1, 9, "fault");
        break;
    }
}

/* --- a stranger --------------------------------------------------------------------------------------------------- */

/* It has a session as any process that reaches the port, and says nonsense, or claims to be a node that is there. */
static void false_name(const struct fault *f)
{
    Titan__Internal__AgentRegistration registration = TITAN__INTERNAL__AGENT_REGISTRATION__INIT;
    agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    const struct host *victim = &S->hosts[pick_host(f->pick)];
    if (!S->coord.core || S->coord.stopped)
        return;
    m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_REGISTRATION;
    m.registration = &registration;
    registration.node = f->pick2 % 6 == 0 ? (char *)"no/name" : (char *)victim->name;
    registration.slots = f->pick2 % 6 == 1 ? 0 : 2;
    registration.device = (char *)(f->pick2 % 6 == 2 ? "abacus" : "cpu");
    registration.address = (char *)"elsewhere";
    registration.version = (char *)"1";
    registration.incarnation = f->pick2;
    uint32_t len;
    uint64_t session = S->next_session++, was = core_node_session(S->coord.core, victim->name);
    bool heartbeats = was && was == victim->session && S->now - victim->heard_at < 100 * MS;
    CHECK("sim", session < SIM_SESSIONS, "more sessions than the simulator keeps");
    S->streams[session] = (struct stream){.host = 0, .coord_life = S->coord.life, .coord_open = true, .strange = true};
    void *bytes = packed(&m.base, &len);
    (void)coord_hears(session, bytes, len);
    bytes_drop(bytes);
    CHECK("I7", !heartbeats || !S->coord.core || core_node_session(S->coord.core, victim->name) == was,
          "a stranger took the name of %s, which is there", victim->name);
}

/* A session of this host's certificate; what it is sent goes nowhere. */
static uint64_t named_session(int host)
{
    const uint64_t session = S->next_session++;
    CHECK("sim", session < SIM_SESSIONS, "more sessions than the simulator keeps");
    S->streams[session] =
        (struct stream){.host = host, .coord_life = S->coord.life, .coord_open = true, .strange = true, .named = true};
    return session;
}

/* As the host's node, on another machine. Returns whether the coordinator takes it for that. */
static bool register_elsewhere(const struct fault *f, uint64_t session)
{
    const int n = S->streams[session].host;
    Titan__Internal__AgentRegistration registration = TITAN__INTERNAL__AGENT_REGISTRATION__INIT;
    agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    uint8_t installation[NODE_INSTALLATION] = {1};
    m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_REGISTRATION;
    m.registration = &registration;
    registration.node = S->hosts[n].name;
    registration.slots = S->plan->slots[n];
    registration.device = (char *)"cpu";
    registration.address = (char *)"elsewhere";
    registration.version = (char *)"1";
    registration.incarnation = UINT64_C(1) << 32 | f->pick2;
    registration.checks = true; /* it never answers, so no job waits for workers there */
    if (f->pick2 % 2)
        registration.installation = (ProtobufCBinaryData){sizeof(installation), installation};
    uint32_t len;
    void *bytes = packed(&m.base, &len);
    (void)coord_hears(session, bytes, len);
    bytes_drop(bytes);
    return S->coord.core && core_node_session(S->coord.core, S->hosts[n].name) == session;
}

/* As an agent that has its acknowledgement, and nothing to tell of workers. */
static void heartbeat_elsewhere(uint64_t session)
{
    Titan__Internal__AgentHeartbeat heartbeat = TITAN__INTERNAL__AGENT_HEARTBEAT__INIT;
    agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    uint32_t len;
    m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_HEARTBEAT;
    m.heartbeat = &heartbeat;
    void *bytes = packed(&m.base, &len);
    (void)coord_hears(session, bytes, len);
    bytes_drop(bytes);
}

/* Another machine has its name and its certificate, and tries until it is taken. */
static void on_elsewhere(const struct ev *e)
{
    static const struct handler again = {"comes elsewhere", on_elsewhere, TARGET_WORLD};
    const struct fault *f = &S->plan->faults[e->a];
    const int n = S->elsewhere[e->a];
    if (S->now >= f->at + f->lasts)
        return;
    const uint64_t session = S->coord.core && !S->coord.stopped ? named_session(n) : 0;
    if (session && register_elsewhere(f, session)) {
        TRACE("%s is taken elsewhere", S->hosts[n].name);
        totals->taken_elsewhere++;
        heartbeat_elsewhere(session);
        return;
    }
    (void)at(S->now + between(CHANCE_FORGER, 50 * MS, 400 * MS), &again, e->a, 0);
}

/* The one before is cut off, and lives on. */
static void on_goodbye(const struct ev *e)
{
    cut(&S->plan->faults[e->a]);
    on_elsewhere(e);
}

static void on_left(const struct ev *e)
{
    host_agent_kill((int)e->a, 100 * MS);
}

/* In one of two behind a goodbye, which is no word that its workers have ended. */
static void comes_elsewhere(const struct fault *f)
{
    static const struct handler goes = {"is cut off", on_goodbye, TARGET_WORLD};
    static const struct handler left = {"agent has left", on_left, TARGET_WORLD};
    const int n = crowded_host(f);
    const bool goodbye = f->pick >> 8 & 1;
    S->elsewhere[f - S->plan->faults] = n;
    if (goodbye) {
        agent_leave(n, (uint32_t)(f->lasts / MS));
        (void)at(S->now + f->lasts, &left, (uint64_t)n, 0);
    }
    (void)at(S->now + (goodbye ? between(CHANCE_FORGER, 5 * MS, 300 * MS) : 0), &goes, (uint64_t)(f - S->plan->faults),
             0);
}

/* --- a right that is taken back ----------------------------------------------------------------------------------- */

static void on_held(const struct ev *e)
{
    const struct stream *s = &S->streams[e->b];
    if (!S->coord.core || S->coord.stopped || s->coord_life != S->coord.life || s->dropped)
        return;
    CHECK("I7", !register_elsewhere(&S->plan->faults[e->a], e->b),
          "a session of %s that was open when its certificate was revoked has registered", S->hosts[s->host].name);
    totals->revoked++;
}

static void on_revoke(const struct ev *e)
{
    static const struct handler held = {"held session speaks", on_held, TARGET_WORLD};
    const struct stream *s = &S->streams[e->b];
    if (s->coord_life == S->coord.life && coord_revoke(s->host))
        (void)at(S->now + between(CHANCE_FORGER, 0, 500 * MS), &held, e->a, e->b);
}

/* The machine goes with its certificate: workers that do not obey are the operator's to end. */
static void revoke(const struct fault *f)
{
    static const struct handler revocation = {"certificate revoked", on_revoke, TARGET_WORLD};
    const int n = crowded_host(f);
    if (!S->coord.core || S->coord.stopped || !S->hosts[n].up)
        return;
    const uint64_t session = named_session(n);
    S->streams[session].greeted = true;
    core_session_opened(S->coord.core, session, S->hosts[n].name);
    host_power_off(n, f->lasts);
    (void)at(S->now + between(CHANCE_FORGER, 0, f->lasts / 2), &revocation, (uint64_t)(f - S->plan->faults), session);
}

/* --- the store of another time ------------------------------------------------------------------------------------ */

static void on_right_store(const struct ev *e)
{
    (void)e;
    if (!S->store.old)
        return;
    TRACE("the right store is back");
    if (S->coord.core)
        coord_kill(0, false);
    else
        store_swap();
}

static void on_old_store(const struct ev *e)
{
    static const struct handler right = {"the right store", on_right_store, TARGET_WORLD};
    for (int h = 0; h < S->plan->nodes; h++)
        if (S->hosts[h].obeyed_term <= S->store.backup_term + 1)
            return;
    if (!S->coord.core || !S->store.backup || S->store.old)
        return;
    TRACE("a coordinator starts on an old backup");
    totals->old_stores++;
    coord_kill(0, false);
    store_swap();
    (void)at(S->now + (usec)e->a, &right, 0, 0);
}

static void on_restart_first(const struct ev *e)
{
    (void)e;
    coord_kill(20 * MS, false);
}

/* A coordinator is started on an old backup, which knows a lower term than every agent, since there have been two
 * restarts after it; then it is put right. */
static void old_store(const struct fault *f)
{
    static const struct handler restart_first = {"restart", on_restart_first, TARGET_WORLD};
    static const struct handler old = {"old store", on_old_store, TARGET_WORLD};
    (void)at(S->now, &restart_first, 0, 0);
    (void)at(S->now + 400 * MS, &restart_first, 0, 0);
    (void)at(S->now + 900 * MS, &old, (uint64_t)f->lasts, 0);
}

/* The store there is is put away, and the coordinator starts on its backup, with a term above all. */
static void restore(const struct fault *f)
{
    if (!S->coord.core || !S->store.backup || S->store.old)
        return;
    TRACE("the store is restored from its backup");
    coord_kill(f->lasts, false);
    store_put_back();
}

static void on_backup(const struct ev *e)
{
    (void)e;
    if (S->coord.core)
        store_back_up();
}

/* --- strikes ------------------------------------------------------------------------------------------------------ */

static void strike(const struct fault *f)
{
    int n = pick_host(f->pick);
    switch (f->kind) {
    case FAULT_WORKER_KILL:
    case FAULT_WORKER_EXIT:
    case FAULT_WORKER_HANG:
    case FAULT_WORKER_STOP:
    case FAULT_WORKERS_KILL:
        trouble_worker(f);
        break;
    case FAULT_KILL_AT_AGREE:
        S->kill_at_agree = f->pick | 1;
        break;
    case FAULT_KILL_AT_SEAL:
        S->kill_at_seal = f->pick | 1;
        break;
    case FAULT_COMM_BREAK:
        training_break(f->pick);
        break;
    case FAULT_STARTS_FAIL:
        S->hosts[n].starts_fail_until = S->now + f->lasts;
        break;
    case FAULT_REFUSED:
        S->hosts[n].refuses = 1 + f->pick2 % (uint64_t)S->plan->jobs;
        S->hosts[n].refuses_until = S->now + f->lasts;
        break;
    case FAULT_AGENT_KILL: /* half of them behind the next promise that any agent gives */
        if (f->pick2 % 2)
            S->kill_at_promise = f->lasts;
        else
            host_agent_kill(n, f->lasts);
        break;
    case FAULT_AGENT_STOP:
        host_agent_stop(n, f->lasts);
        break;
    case FAULT_NODE_POWER:
        host_power_off(n, f->lasts);
        break;
    case FAULT_COORD_KILL:
    case FAULT_COORD_POWER:
        coord_kill(f->lasts, f->kind == FAULT_COORD_POWER);
        break;
    case FAULT_LOSS_WHILE_AWAY: /* long enough for an acting leader */
        coord_kill(f->lasts, false);
        (void)at(S->now + f->lasts / 4, &second, f->pick2, 0);
        break;
    case FAULT_COORD_KILL_AT_COMMIT:
        S->coord.kill_at_commit = true;
        break;
    case FAULT_COORD_STOP:
        coord_stop(f->lasts);
        break;
    case FAULT_STREAM_BREAK:
        net_break(n);
        break;
    case FAULT_CUT_COORD:
    case FAULT_CUT_NODE:
    case FAULT_CUT_ONE_WAY:
    case FAULT_CUT_SPLIT:
        cut(f);
        break;
    case FAULT_LINK_SLOW:
    case FAULT_LINK_LOSSY:
    case FAULT_LINK_DOUBLES:
        trouble_link(f);
        break;
    case FAULT_REPLAY_UP:
    case FAULT_REPLAY_DOWN:
    case FAULT_REPLAY_WORKER:
        net_replay(f->kind == FAULT_REPLAY_UP ? OLD_UP : f->kind == FAULT_REPLAY_DOWN ? OLD_DOWN : OLD_WORKER, f->pick);
        break;
    case FAULT_ELSEWHERE:
        comes_elsewhere(f);
        break;
    case FAULT_REVOKED:
        revoke(f);
        break;
    case FAULT_FALSE_NAME:
        false_name(f);
        break;
    case FAULT_LYING_AGENT:
        byzantine_agent(f);
        break;
    case FAULT_LYING_WORKER:
        byzantine_worker(f);
        break;
    case FAULT_LYING_CLIENT:
        byzantine_client(f);
        break;
    case FAULT_DISK_SLOW:
    case FAULT_DISK_FULL:
    case FAULT_DISK_ERROR:
        store_trouble(f);
        break;
    case FAULT_STORE_OLD:
        old_store(f);
        break;
    case FAULT_STORE_RESTORED:
        restore(f);
        break;
    case FAULT_WALL_STEP:
        (f->pick % 2 ? &S->coord_clocks : &S->hosts[pick_host(f->pick2)].clocks)->wall_offset_ms +=
            f->pick2 % 2 ? 3600000 : -3600000;
        break;
    case REQUEST_CANCEL:
        if (S->coord.submitted[1 + f->pick % (uint32_t)S->plan->jobs])
            coord_request(1 + (int)(f->pick % (uint32_t)S->plan->jobs));
        break;
    case REQUEST_RESIZE:
        coord_resize(1 + (int)(f->pick % (uint32_t)S->plan->jobs), f->pick2 % (SIM_WORLD + 1));
        break;
    case REQUEST_DRAIN:
    case REQUEST_UNDRAIN:
        coord_drain(n, f->kind == REQUEST_DRAIN);
        break;
    case REQUEST_CHECKPOINT:
        coord_checkpoint(1 + (int)(f->pick % (uint32_t)S->plan->jobs));
        break;
    case REQUEST_FORGET:
        for (int h = 0; h < S->plan->nodes; h++)
            if (!S->hosts[h].up && S->hosts[h].life + S->hosts[h].term.term)
                coord_forget(h);
        break;
    case FAULT_KINDS:
        break;
    }
}

static void on_strike(const struct ev *e)
{
    const struct fault *f = &S->plan->faults[e->a];
    TRACE("*** %s", fault_names[f->kind]);
    totals->struck[f->kind]++;
    strike(f);
}

/* An operator puts everything into service again, now and then. */
static void on_operator(const struct ev *e)
{
    static const struct handler again = {"operator", on_operator, TARGET_WORLD};
    for (int n = 0; n < S->plan->nodes; n++)
        coord_drain(n, false);
    (void)at(S->now + 20 * SEC, &again, 0, 0);
    (void)e;
}

void faults_begin(void)
{
    static const struct handler operator= {"operator", on_operator, TARGET_WORLD};
    static const struct handler backup = {"backup", on_backup, TARGET_WORLD};
    (void)at(S->plan->quiet_at + SEC, &operator, 0, 0);
    (void)at(S->plan->backup_at, &backup, 0, 0);
    static const struct handler strikes = {"strikes", on_strike, TARGET_WORLD};
    for (int i = 0; i < S->plan->n_faults; i++)
        (void)at(S->plan->faults[i].at, &strikes, (uint64_t)i, 0);
}
