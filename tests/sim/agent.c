/* An agent made of a few rules: what the coordinator says goes to the workers, what the workers say goes to the
 * coordinator, reports are kept and said again. */
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define KEPT 64
#define KEEP (5 * SEC)
#define LEASE_MS 8000

struct agent {
    bool welcomed;
    uint32_t beat_ms;
    uint64_t term, beat;
    struct {
        usec sent; /* 0 = not yet */
        void *bytes;
        uint32_t len;
    } kept[KEPT]; /* reports that are sent (again) on a new session */
    int n_kept;
};

static struct agent *agent_of(int h)
{
    return S->hosts[h].agent;
}

#define MESSAGE(name, CASE, member, body)                                                                              \
    agent_message name = TITAN__INTERNAL__AGENT_MESSAGE__INIT;                                                         \
    (name).kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_##CASE;                                                    \
    (name).member = (body)

static void send_kept(int h)
{
    struct agent *a = agent_of(h);
    for (int i = 0; i < a->n_kept; i++) {
        if (a->kept[i].sent)
            continue;
        agent_message *m = titan__internal__agent_message__unpack(&event_memory, a->kept[i].len, a->kept[i].bytes);
        titan_assert(m);
        net_up(h, &m->base);
        a->kept[i].sent = S->now;
    }
}

static void report(int h, const agent_message *m)
{
    struct agent *a = agent_of(h);
    if (a->n_kept == KEPT) {
        free(a->kept[0].bytes);
        memmove(a->kept, a->kept + 1, (KEPT - 1) * sizeof(a->kept[0]));
        a->n_kept--;
    }
    typeof(&a->kept[0]) k = &a->kept[a->n_kept++];
    k->bytes = packed(&m->base, &k->len);
    k->sent = 0;
    if (a->welcomed)
        send_kept(h);
}

/* --- its life -------------------------------------------------------------------------------------------------------
 */

static void on_lease(const struct ev *e)
{
    int h = (int)e->a;
    if (!S->hosts[h].alive || S->hosts[h].life != e->b)
        return;
    static const struct handler again = {"lease", on_lease, TARGET_AGENT};
    Titan__Internal__WorkerLease lease = TITAN__INTERNAL__WORKER_LEASE__INIT;
    order_message m = TITAN__INTERNAL__AGENT_TO_WORKER__INIT;
    lease.lease_ms = LEASE_MS;
    m.kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_LEASE;
    m.lease = &lease;
    for (uint64_t i = 1; i <= S->last_proc; i++)
        if (S->procs[i].alive && S->procs[i].host == h)
            net_local_down(i, &m.base);
    (void)at(S->now + LEASE_MS * MS / 3, &again, e->a, e->b);
}
static const struct handler lease_timer = {"lease", on_lease, TARGET_AGENT};

static void on_connect(const struct ev *e)
{
    if (S->hosts[e->a].alive && S->hosts[e->a].life == e->b)
        net_connect((int)e->a);
}
static const struct handler connect_later = {"agent connects", on_connect, TARGET_AGENT};

void agent_begin(int h)
{
    S->hosts[h].agent = calloc(1, sizeof(struct agent));
    titan_assert(S->hosts[h].agent);
    (void)at(S->now + between(CHANCE_HOST, MS, 50 * MS), &connect_later, (uint64_t)h, S->hosts[h].life);
    (void)at(S->now + 100 * MS, &lease_timer, (uint64_t)h, S->hosts[h].life);
}

void agent_end(int h)
{
    struct agent *a = agent_of(h);
    for (int i = 0; a && i < a->n_kept; i++)
        free(a->kept[i].bytes);
    free(a);
    S->hosts[h].agent = NULL;
}

/* --- the session ----------------------------------------------------------------------------------------------------
 */

static void say_hello(int h)
{
    Titan__Internal__LiveWorker live[SIM_WORKERS / 8], *list[SIM_WORKERS / 8];
    Titan__Internal__AgentHello hello = TITAN__INTERNAL__AGENT_HELLO__INIT;
    hello.node = S->hosts[h].name;
    hello.slots = S->plan->slots[h];
    hello.device = (char *)"cpu";
    hello.address = S->hosts[h].name;
    hello.version = (char *)"1";
    hello.incarnation = S->hosts[h].life + 1;
    for (uint64_t i = 1; i <= S->last_proc; i++) {
        const struct proc *p = &S->procs[i];
        if (!p->alive || p->host != h || hello.n_workers == SIM_WORKERS / 8)
            continue;
        Titan__Internal__LiveWorker *l = &live[hello.n_workers];
        titan__internal__live_worker__init(l);
        l->job_id = p->job;
        l->worker_id = p->id;
        l->address = (char *)(p->begun ? "host:1" : "");
        if (p->member) {
            const struct member_state *m = member_state(p->member);
            l->epoch = m->epoch;
            l->step = m->step;
            l->state = m->phase;
        }
        list[hello.n_workers++] = l;
    }
    hello.workers = list;
    TRACE("node %s says hello with %zu workers, session %llu", S->hosts[h].name, hello.n_workers,
          LL(S->hosts[h].session));
    MESSAGE(m, HELLO, hello, &hello);
    net_up(h, &m.base);
}

static void on_beat(const struct ev *e)
{
    int h = (int)e->a;
    struct agent *a = agent_of(h);
    if (!S->hosts[h].alive || S->hosts[h].session != e->b || !e->b)
        return;
    static const struct handler beat_again = {"beat", on_beat, TARGET_AGENT};
    Titan__Internal__AgentBeat beat = TITAN__INTERNAL__AGENT_BEAT__INIT;
    beat.number = ++a->beat;
    MESSAGE(m, BEAT, beat, &beat);
    net_up(h, &m.base);
    while (a->n_kept && a->kept[0].sent && S->now - a->kept[0].sent > KEEP) {
        free(a->kept[0].bytes);
        memmove(a->kept, a->kept + 1, (size_t)--a->n_kept * sizeof(a->kept[0]));
    }
    (void)at(S->now + a->beat_ms * MS * 3 / 4, &beat_again, e->a, e->b);
}

static const struct handler beat_timer = {"beat", on_beat, TARGET_AGENT};

void agent_session(int h, bool open)
{
    struct agent *a = agent_of(h);
    a->welcomed = false;
    for (int i = 0; i < a->n_kept; i++)
        a->kept[i].sent = 0;
    if (open)
        say_hello(h);
    else
        (void)at(S->now + between(CHANCE_HOST, 20 * MS, 500 * MS), &connect_later, (uint64_t)h, S->hosts[h].life);
}

/* --- orders ---------------------------------------------------------------------------------------------------------
 */

static void tell(int h, uint64_t worker, const order_message *m)
{
    const struct proc *p = &S->procs[worker];
    if (worker < SIM_WORKERS && p->alive && p->host == h)
        net_local_down(worker, &m->base);
}

static void tell_job(int h, uint64_t job, const order_message *m)
{
    for (uint64_t i = 1; i <= S->last_proc; i++)
        if (S->procs[i].job == job)
            tell(h, i, m);
}

static void start(int h, const Titan__Internal__StartWorkers *m)
{
    for (size_t i = 0; i < m->n_worker_ids; i++) {
        uint64_t id = m->worker_ids[i];
        if (id < SIM_WORKERS && S->procs[id].there)
            continue; /* told twice */
        host_spawn(h, m->job_id, id);
        Titan__Internal__WorkerStarted started = TITAN__INTERNAL__WORKER_STARTED__INIT;
        started.job_id = m->job_id;
        started.worker_id = id;
        started.pid = 1000 + (int64_t)id;
        MESSAGE(up, WORKER_STARTED, worker_started, &started);
        report(h, &up);
    }
}

static void on_kill(const struct ev *e)
{
    host_signal(e->a, 9);
}
static const struct handler kill_later = {"agent kills", on_kill, TARGET_WORLD};

static void stop(int h, const Titan__Internal__StopWorkers *m)
{
    Titan__Internal__WorkerStop body = TITAN__INTERNAL__WORKER_STOP__INIT;
    order_message order = TITAN__INTERNAL__AGENT_TO_WORKER__INIT;
    order.kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_STOP;
    order.stop = &body;
    body.grace_ms = m->grace_ms;
    body.checkpoint = m->grace_ms > 0;
    body.reason = m->reason;
    for (size_t i = 0; i < m->n_worker_ids; i++) {
        uint64_t id = m->worker_ids[i];
        if (id >= SIM_WORKERS || !S->procs[id].alive || S->procs[id].host != h)
            continue;
        TRACE("worker %llu is told to stop within %u ms: %s", LL(id), m->grace_ms, m->reason);
        if (m->grace_ms)
            tell(h, id, &order);
        (void)at(S->now + (m->grace_ms ? m->grace_ms * MS : between(CHANCE_HOST, 100, 20 * MS)), &kill_later, id, 0);
    }
}

void agent_hears(int h, const coord_message *m)
{
    struct agent *a = agent_of(h);
    order_message order = TITAN__INTERNAL__AGENT_TO_WORKER__INIT;
    order.term = m->term;
    switch (m->kind_case) {
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_WELCOME:
        if (a->welcomed)
            return;
        a->welcomed = true;
        a->beat_ms = m->welcome->beat_ms ? m->welcome->beat_ms : 200;
        send_kept(h);
        (void)at(S->now + a->beat_ms * MS * 3 / 4, &beat_timer, (uint64_t)h, S->hosts[h].session);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_START:
        start(h, m->start);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_STOP:
        stop(h, m->stop);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_FORM:
        order.kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_FORM;
        order.form = m->form;
        for (size_t i = 0; i < m->form->n_members; i++)
            tell(h, m->form->members[i]->worker_id, &order);
        for (size_t i = 0; i < m->form->n_leavers; i++)
            tell(h, m->form->leavers[i]->worker_id, &order);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_REVOKE:
        order.kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_REVOKE;
        order.revoke = m->revoke;
        tell_job(h, m->revoke->job_id, &order);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_PAUSE:
        order.kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_PAUSE;
        order.pause = m->pause;
        tell_job(h, m->pause->job_id, &order);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_CHECKPOINT_COMMITTED:
        for (size_t i = 0; i < m->checkpoint_committed->n_expired_paths; i++)
            disk_remove_checkpoint(m->checkpoint_committed->expired_paths[i]);
        order.kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_CHECKPOINT_COMMITTED;
        order.checkpoint_committed = m->checkpoint_committed;
        tell_job(h, m->checkpoint_committed->job_id, &order);
        break;
    default:
        break;
    }
}

/* --- reports --------------------------------------------------------------------------------------------------------
 */

void agent_hears_worker(int h, uint64_t worker, const worker_message *m)
{
    agent_message up = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    (void)worker;
#define PASS_ON(kind, FROM, TO)                                                                                        \
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_##FROM:                                                                \
        up.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_##TO;                                                      \
        up.hello = (void *)m->kind; /* the kinds share one pointer */                                                  \
        break;
    switch (m->kind_case) {
        PASS_ON(ready, READY, WORKER_READY)
        PASS_ON(quiesced, QUIESCED, WORKER_QUIESCED)
        PASS_ON(checkpoint, CHECKPOINT, CHECKPOINT)
        PASS_ON(finished, FINISHED, FINISHED)
        PASS_ON(state_ready, STATE_READY, STATE_READY)
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_PROGRESS:
        up.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_PROGRESS;
        up.progress = m->progress;
        if (agent_of(h)->welcomed)
            net_up(h, &up.base);
        return;
    default:
        return;
    }
#undef PASS_ON
    report(h, &up);
}

void agent_hears_peer(int h, int from, const void *bytes, uint32_t len)
{
    (void)h;
    (void)from;
    (void)bytes;
    (void)len;
}

void agent_worker_ended(int h, uint64_t worker, int code, int signal, const char *words)
{
    Titan__Internal__WorkerExited x = TITAN__INTERNAL__WORKER_EXITED__INIT;
    x.job_id = S->procs[worker].job;
    x.worker_id = worker;
    x.exit_code = signal ? -1 : code;
    x.signal = signal;
    x.reason = (char *)words;
    MESSAGE(m, WORKER_EXITED, worker_exited, &x);
    report(h, &m);
}
