/* SPDX-License-Identifier: Apache-2.0 */
/* An agent: its real core (daemon/agent/agent_core.h), and around it what the shell does
 * (daemon/agent/shell/action_queue.c): actions are carried out in order, and wait for the records they rest on to be on
 * the host's disk. */
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mutant.h"
#include "base/error.h"
#include "daemon/agent/agent_core.h"

#define LEASE_MS 8000
#define SAMPLE (S->plan->scale ? 500 * MS : 50 * MS)
#define ADOPTION (200 * MS) /* for adopted workers to say where they are, before the first registration */
#define PORT 7000
#define COORDINATOR "c:1"

/* What one input has led to. */
struct turn {
    struct turn *next;
    struct agent_actions actions;
    const struct agent_action *at; /* to be carried out next */
};
/* For a worker that is not connected. */
struct command {
    struct command *next;
    uint64_t worker;
    void *bytes;
    uint32_t len;
};
struct agent {
    struct agent_core *core;
    struct turn *turns, **turns_tail;
    struct command *commands, **commands_tail;
    bool carrying_out, writing, sampling;
    usec tick_at, retry;
    int64_t lease_said;    /* when the lease of epochs ends, as workers were told last */
    uint64_t hearing_term; /* of the coordinator's message it hears now; 0 = of none */
};

static struct agent *agent_of(int h)
{
    return S->hosts[h].agent;
}

static int64_t now_of(int h)
{
    return clock_mono_of(&S->hosts[h].clocks);
}

static void carry_out(int h);
static void tell_of_core(int h);
static void set_timers(int h);

/* An input for the core: CORE(h, agent_core_sample, id, &sample). */
#define CORE(h, input, ...)                                                                                            \
    do {                                                                                                               \
        struct turn *turn_ = calloc(1, sizeof(*turn_));                                                                \
        titan_assert(turn_);                                                                                           \
        agent_actions_init(&turn_->actions);                                                                           \
        input(agent_of(h)->core, ##__VA_ARGS__, now_of(h), &turn_->actions);                                           \
        turn_end((h), turn_);                                                                                          \
    } while (0)

static void turn_free(struct turn *t)
{
    agent_actions_free(&t->actions);
    free(t);
}

static void turn_end(int h, struct turn *t)
{
    struct agent *a = agent_of(h);
    titan_assert(S->plan->scale || agent_core_check(a->core)); /* with thousands of members it takes too long */
    tell_of_core(h);
    if (t->actions.first) {
        t->at = t->actions.first;
        *a->turns_tail = t;
        a->turns_tail = &t->next;
        carry_out(h);
    } else {
        turn_free(t);
    }
    set_timers(h);
}

/* --- time --------------------------------------------------------------------------------------------------------- */

static bool same_life(const struct ev *e)
{
    return S->hosts[e->a].alive && S->hosts[e->a].life == (uint32_t)e->b;
}

static void on_tick(const struct ev *e)
{
    int h = (int)e->a;
    if (!same_life(e) || S->now < agent_of(h)->tick_at)
        return;
    agent_of(h)->tick_at = 0;
    CORE(h, agent_core_tick);
}
static const struct handler tick = {"agent tick", on_tick, TARGET_AGENT};

static void look(const struct proc *p, struct agent_sample *ret)
{
    *ret = (struct agent_sample){.actions = p->actions,
                                 .busy_ns = p->busy_ns,
                                 .waiting = p->waiting || !p->comm,
                                 .process_state = p->stopped ? 'T' : 'S'};
    if (!p->member)
        return;
    const struct member_state *m = member_state(p->member);
    ret->epoch = m->epoch;
    ret->step = m->step;
    ret->phase = m->phase;
}

static void sample_all(int h)
{
    size_t i = 0;
    for (struct proc *p; (p = host_next(h, &i));) {
        struct agent_sample sample;
        look(p, &sample);
        CORE(h, agent_core_sample, p->id, &sample);
    }
}

static void on_sample(const struct ev *e)
{
    if (!same_life(e))
        return;
    agent_of((int)e->a)->sampling = false;
    sample_all((int)e->a);
    set_timers((int)e->a);
}
static const struct handler sample_due = {"sample", on_sample, TARGET_AGENT};

static void set_timers(int h)
{
    struct agent *a = agent_of(h);
    int64_t due = agent_core_deadline(a->core);
    if (!a->sampling && agent_core_watches(a->core)) {
        a->sampling = true;
        (void)at(S->now + SAMPLE, &sample_due, (uint64_t)h, S->hosts[h].life);
    }
    if (due == INT64_MAX)
        return;
    usec when = clock_reaches(&S->hosts[h].clocks, due);
    when = when > S->now ? when : S->now + MS;
    if (a->tick_at > S->now && a->tick_at <= when)
        return;
    a->tick_at = when;
    (void)at(when, &tick, (uint64_t)h, S->hosts[h].life);
}

/* --- commands to workers ------------------------------------------------------------------------------------------ */

static void tell(int h, uint64_t worker, const worker_command *m)
{
    struct agent *a = agent_of(h);
    const struct proc *p = worker < SIM_WORKERS ? &S->procs[worker] : NULL;
    if (!p || !p->alive || p->host != h)
        return;
    if (p->connected) {
        net_local_down(worker, &m->base);
        return;
    }
    struct command *o = calloc(1, sizeof(*o));
    titan_assert(o);
    o->worker = worker;
    o->bytes = packed(&m->base, &o->len);
    *a->commands_tail = o;
    a->commands_tail = &o->next;
}

static void send_waiting(int h, uint64_t worker)
{
    struct agent *a = agent_of(h);
    for (struct command **o = &a->commands; *o;) {
        struct command *x = *o;
        if (x->worker != worker) {
            o = &x->next;
            continue;
        }
        worker_command *m = titan__internal__agent_to_worker__unpack(&event_memory, x->len, x->bytes);
        titan_assert(m);
        net_local_down(worker, &m->base);
        *o = x->next;
        bytes_drop(x->bytes);
        free(x);
    }
    a->commands_tail = &a->commands;
    while (*a->commands_tail)
        a->commands_tail = &(*a->commands_tail)->next;
}

static void on_lease(const struct ev *e);
static const struct handler lease_due = {"lease", on_lease, TARGET_AGENT};

static void send_lease(int h, uint64_t worker)
{
    const struct agent *a = agent_of(h);
    Titan__Internal__WorkerLease lease = TITAN__INTERNAL__WORKER_LEASE__INIT;
    worker_command m = TITAN__INTERNAL__AGENT_TO_WORKER__INIT;
    lease.lease_ms = LEASE_MS;
    lease.epoch_until_ms = agent_core_epoch_until(a->core);
    m.kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_LEASE;
    m.lease = &lease;
    m.term = agent_core_term(a->core);
    net_local_down(worker, &m.base);
}

static void send_leases(int h)
{
    agent_of(h)->lease_said = agent_core_epoch_until(agent_of(h)->core);
    size_t i = 0;
    for (const struct proc *p; (p = host_next(h, &i));)
        if (p->connected)
            send_lease(h, p->id);
}

static void on_lease(const struct ev *e)
{
    if (!same_life(e))
        return;
    send_leases((int)e->a);
    (void)at(S->now + AGENT_LEASE_MS * MS, &lease_due, e->a, e->b);
}

static void tell_of_core(int h)
{
    const struct agent_core *core = agent_of(h)->core;
    int64_t contact = agent_core_contact(core), until = agent_core_epoch_until(core);
    size_t i = 0;
    for (struct proc *p; contact > 0 && (p = host_next(h, &i));) {
        p->contact_ms = contact;
        p->epoch_until_ms = until;
    }
    if (llabs(until - agent_of(h)->lease_said) >= AGENT_LEASE_MS)
        send_leases(h);
}

static void on_kill(const struct ev *e)
{
    if (S->procs[e->a].host == (int)(e->b >> 32) && S->hosts[e->b >> 32].alive &&
        S->hosts[e->b >> 32].life == (uint32_t)e->b)
        host_signal(e->a, 9);
}
static const struct handler kill_due = {"agent kills", on_kill, TARGET_WORLD};

static void stop(int h, const struct agent_action *x)
{
    Titan__Internal__WorkerStop body = TITAN__INTERNAL__WORKER_STOP__INIT;
    worker_command command = TITAN__INTERNAL__AGENT_TO_WORKER__INIT;
    const struct proc *p = x->worker_id < SIM_WORKERS ? &S->procs[x->worker_id] : NULL;
    if (!p || !p->alive || p->host != h)
        return;
    TRACE("worker %llu is told to stop within %u ms: %s", LL(x->worker_id), x->grace_ms, x->text);
    command.kind_case = TITAN__INTERNAL__AGENT_TO_WORKER__KIND_STOP;
    command.stop = &body;
    command.term = agent_core_term(agent_of(h)->core);
    body.grace_ms = x->grace_ms;
    body.checkpoint = x->grace_ms > 0;
    body.reason = (char *)x->text;
    if (x->grace_ms)
        tell(h, x->worker_id, &command);
    usec wait = x->grace_ms ? x->grace_ms * MS : between(CHANCE_HOST, 50, 2 * MS);
    (void)at(S->now + wait, &kill_due, x->worker_id, (uint64_t)h << 32 | S->hosts[h].life);
}

/* --- records ------------------------------------------------------------------------------------------------------ */

/* Large records that are the same on many nodes are kept once. */
static void alike(void **bytes, uint32_t len)
{
    static struct {
        void *bytes; /* a reference */
        uint32_t len;
    } recent[4];
    static unsigned next;
    if (len < 4096)
        return;
    for (size_t i = 0; i < ARRAY_SIZE(recent); i++)
        if (recent[i].len == len && memcmp(recent[i].bytes, *bytes, len) == 0) {
            bytes_drop(*bytes);
            *bytes = bytes_keep(recent[i].bytes);
            return;
        }
    unsigned i = next++ % ARRAY_SIZE(recent);
    bytes_drop(recent[i].bytes);
    recent[i].bytes = bytes_keep(*bytes);
    recent[i].len = len;
}

static void put_record(struct host *h, const struct agent_action *x)
{
    if (x->kind == AGENT_RECORD_TERM) {
        h->term = x->seen;
        return;
    }
    CHECK("sim", x->record->job_id <= SIM_JOBS, "record of job %llu", LL(x->record->job_id));
    typeof(&h->records[0]) r = &h->records[x->record->job_id];
    bytes_drop(r->bytes);
    r->bytes = packed(&x->record->base, &r->len);
    alike(&r->bytes, r->len);
}

static void on_written(const struct ev *e)
{
    int h = (int)e->a;
    struct agent *a = agent_of(h);
    if (!same_life(e))
        return;
    struct turn *t = a->turns;
    put_record(&S->hosts[h], t->at);
    t->at = t->at->next;
    a->writing = false;
    carry_out(h);
    set_timers(h);
}

static void on_written_late(const struct ev *e)
{
    Titan__Internal__AgentJobRecord *record =
        titan__internal__agent_job_record__unpack(&event_memory, e->len, e->bytes);
    if (same_life(e))
        put_record(&S->hosts[e->a], &(struct agent_action){.kind = AGENT_RECORD_JOB, .record = record});
}

/* What the mutant does: nothing waits for it. */
static void write_late(int h, const struct agent_action *x)
{
    static const struct handler late = {"record is written late", on_written_late, TARGET_AGENT};
    struct ev *e = at(S->now + between(CHANCE_DISK, 10 * MS, 500 * MS), &late, (uint64_t)h, S->hosts[h].life);
    e->bytes = packed(&x->record->base, &e->len);
}

static void write_record(int h)
{
    static const struct handler written = {"record is written", on_written, TARGET_AGENT};
    usec takes = between(CHANCE_DISK, 100, 2 * MS);
    if (S->now < S->hosts[h].disk_slow_until)
        takes = S->hosts[h].disk_slow_until - S->now;
    agent_of(h)->writing = true;
    (void)at(S->now + takes, &written, (uint64_t)h, S->hosts[h].life);
}

/* --- what is to be done ------------------------------------------------------------------------------------------- */

static void start(int h, uint64_t worker, const Titan__Internal__StartWorkers *m)
{
    if (S->now < S->hosts[h].refuses_until && m->job_id == S->hosts[h].refuses) {
        const struct agent_exit how = {.code = 5, .reason = "refused", .not_started = true, .refused = true};
        totals->starts_refused++;
        CORE(h, agent_core_exited, worker, &how);
        return;
    }
    host_spawn(h, m->job_id, worker);
    CORE(h, agent_core_started, worker, 1000 + (int64_t)worker);
}

static void on_promised(const struct ev *e)
{
    host_agent_kill((int)e->a, (usec)e->b);
}

/* An agent that is armed for it goes when the promise is on its way, before it can have accepted anything. */
static void kill_at_promise(int h)
{
    static const struct handler kill = {"killed behind a promise", on_promised, TARGET_WORLD};
    if (S->kill_at_promise)
        (void)at(S->now, &kill, (uint64_t)h, (uint64_t)S->kill_at_promise);
    S->kill_at_promise = 0;
}

static void send_to_peer(int h, const char *to, const Titan__Internal__PeerMessage *m)
{
    if (m->kind_case == TITAN__INTERNAL__PEER_MESSAGE__KIND_PROMISE && m->promise->granted && m->job_id <= SIM_JOBS) {
        S->hosts[h].promised[m->job_id] = MAX(S->hosts[h].promised[m->job_id], m->promise->epoch);
        kill_at_promise(h);
    }
    CHECK("I12",
          m->kind_case != TITAN__INTERNAL__PEER_MESSAGE__KIND_PROMISE || !m->promise->granted ||
              !byzantine_promised(m->promise->epoch),
          "agent %s promises epoch %llu, which cannot be", S->hosts[h].name, LL(m->promise->epoch));
    int other = -1, port = 0;
    if (!strcmp(to, COORDINATOR))
        net_peer(h, SIM_COORD, &m->base);
    else if (sscanf(to, "n%d:%d", &other, &port) == 2 && other >= 0 && other < S->plan->nodes)
        net_peer(h, other, &m->base);
}

static void obey(int h, const coord_message *m)
{
    (void)h;
    if (m->kind_case != TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_CHECKPOINT_COMMITTED)
        return;
    for (size_t i = 0; i < m->checkpoint_committed->n_expired_paths; i++)
        disk_remove_checkpoint(m->checkpoint_committed->expired_paths[i]);
}

/* What the agent has obeyed must not be above what it will remember. */
static void obeys(int h, const struct agent_action *x)
{
    struct host *host = &S->hosts[h];
    const struct agent *a = agent_of(h);
    host->obeyed_term = MAX(host->obeyed_term, agent_core_term(a->core));
    CHECK("I2", a->hearing_term == 0 || a->hearing_term >= host->obeyed_term,
          "agent %s has seen term %llu and obeys a command of %llu", host->name, LL(host->obeyed_term),
          LL(a->hearing_term));
    if (x->kind != AGENT_COMMAND || x->command->kind_case != TITAN__INTERNAL__AGENT_TO_WORKER__KIND_FORM)
        return;
    const Titan__Internal__FormEpoch *f = x->command->form;
    CHECK("sim", f->job_id <= SIM_JOBS, "job %llu", LL(f->job_id));
    CHECK("I2", f->epoch >= host->obeyed_epoch[f->job_id], "agent %s passes on epoch %llu of job %llu after %llu",
          host->name, LL(f->epoch), LL(f->job_id), LL(host->obeyed_epoch[f->job_id]));
    host->obeyed_epoch[f->job_id] = f->epoch;
    CHECK("I12", !byzantine_step(f->resume_step),
          "epoch %llu of job %llu rests on what an agent has said of another one's worker", LL(f->epoch),
          LL(f->job_id));
    if (S->lied_about[f->job_id]) /* its acting leader may have made up any key, or none */
        return;
    typeof(&S->mesh_keys[0]) known = &S->mesh_keys[f->job_id];
    CHECK("I1", f->key.len == sizeof(known->key), "epoch %llu of job %llu has no key", LL(f->epoch), LL(f->job_id));
    if (f->epoch > known->epoch) {
        known->epoch = f->epoch;
        memcpy(known->key, f->key.data, sizeof(known->key));
    }
    CHECK("I1", f->epoch < known->epoch || !memcmp(known->key, f->key.data, sizeof(known->key)),
          "members of epoch %llu of job %llu have different keys", LL(f->epoch), LL(f->job_id));
}

static uint64_t promise_on_disk(const struct host *host, uint64_t id)
{
    if (!host->records[id].bytes)
        return 0;
    const Titan__Internal__AgentJobRecord *r =
        titan__internal__agent_job_record__unpack(&event_memory, host->records[id].len, host->records[id].bytes);
    titan_assert(r);
    return MAX(r->promised_epoch, r->accepted ? r->accepted->epoch : 0);
}

static void must_remember(int h)
{
    const struct host *host = &S->hosts[h];
    const struct agent *a = agent_of(h);
    CHECK("I2", agent_core_term(a->core) >= host->obeyed_term, "agent %s has obeyed term %llu and remembers %llu",
          host->name, LL(host->obeyed_term), LL(agent_core_term(a->core)));
    for (uint64_t id = 1; id <= SIM_JOBS; id++)
        CHECK("I2", agent_core_epoch(a->core, id) >= host->obeyed_epoch[id],
              "agent %s has passed on epoch %llu of job %llu and remembers %llu", host->name,
              LL(host->obeyed_epoch[id]), LL(id), LL(agent_core_epoch(a->core, id)));
    for (uint64_t id = 1; id <= SIM_JOBS; id++)
        CHECK("I1", promise_on_disk(host, id) >= host->promised[id],
              "agent %s has promised epoch %llu and remembers %llu", host->name, LL(host->promised[id]),
              LL(promise_on_disk(host, id)));
}

static void do_action(int h, const struct agent_action *x)
{
    struct host *host = &S->hosts[h];
    if (x->kind == AGENT_COMMAND || x->kind == AGENT_START_WORKER || x->kind == AGENT_STOP_WORKER)
        obeys(h, x);
    switch (x->kind) {
    case AGENT_RECORD_TERM:
    case AGENT_RECORD_JOB:
        break; /* write_record() */
    case AGENT_FORGET_JOB:
        if (x->job_id <= SIM_JOBS) {
            bytes_drop(host->records[x->job_id].bytes);
            host->records[x->job_id].bytes = NULL;
            host->obeyed_epoch[x->job_id] = host->promised[x->job_id] = 0;
        }
        break;
    case AGENT_SEND:
        net_up(h, &x->send->base);
        break;
    case AGENT_END_SESSION:
        TRACE("agent %s ends its session: %s", host->name, x->text);
        net_end(h);
        break;
    case AGENT_COMMAND:
        tell(h, x->worker_id, x->command);
        break;
    case AGENT_START_WORKER:
        start(h, x->worker_id, x->start);
        break;
    case AGENT_STOP_WORKER:
        stop(h, x);
        break;
    case AGENT_PEER:
        send_to_peer(h, x->text, x->peer);
        break;
    case AGENT_REQUEST:
        obey(h, x->request);
        break;
    case AGENT_RANK:
        break;
    case AGENT_LOG:
        TRACE("agent %s: %s (%s)", host->name, x->text, x->pairs ? x->pairs : "");
        break;
    }
}

/* From where it stopped. Inputs that this leads to append turns, which are seen here. */
static void carry_out(int h)
{
    struct agent *a = agent_of(h);
    if (a->carrying_out)
        return;
    a->carrying_out = true;
    while (a->turns && !a->writing) {
        struct turn *t = a->turns;
        const struct agent_action *x = t->at;
        if (MUTANT(AGENT_RECORD_LATE) && x && x->kind == AGENT_RECORD_JOB) {
            t->at = x->next;
            write_late(h, x);
        } else if (x && (x->kind == AGENT_RECORD_TERM || x->kind == AGENT_RECORD_JOB)) {
            write_record(h);
        } else if (x) {
            t->at = x->next;
            do_action(h, x);
        } else {
            a->turns = t->next;
            a->turns_tail = a->turns ? a->turns_tail : &a->turns;
            turn_free(t);
        }
    }
    a->carrying_out = false;
}

/* --- its life ----------------------------------------------------------------------------------------------------- */

static void on_connect(const struct ev *e)
{
    if (same_life(e))
        net_connect((int)e->a);
}
static const struct handler connect_due = {"agent connects", on_connect, TARGET_AGENT};

static void restore(int h)
{
    struct agent *a = agent_of(h);
    const struct host *host = &S->hosts[h];
    int64_t contact = 0, epoch_until = 0;
    agent_core_restore_term(a->core, &host->term);
    for (int id = 1; id <= SIM_JOBS; id++) {
        if (!host->records[id].bytes)
            continue;
        Titan__Internal__AgentJobRecord *record =
            titan__internal__agent_job_record__unpack(&event_memory, host->records[id].len, host->records[id].bytes);
        titan_assert(record);
        agent_core_restore_job(a->core, record);
    }
    size_t i = 0;
    for (const struct proc *p; (p = host_next(h, &i));) {
        if (p->contact_ms <= contact)
            continue;
        contact = p->contact_ms;
        epoch_until = p->epoch_until_ms;
    }
    if (contact)
        agent_core_restore_contact(a->core, contact, epoch_until);
    i = 0;
    for (const struct proc *p; (p = host_next(h, &i));) {
        struct agent_sample sample;
        look(p, &sample);
        agent_core_adopted(a->core, p->job, p->id, &sample, now_of(h));
    }
}

void agent_begin(int h)
{
    struct host *host = &S->hosts[h];
    struct agent *a = host->agent = calloc(1, sizeof(*a));
    titan_assert(a);
    a->turns_tail = &a->turns;
    a->commands_tail = &a->commands;
    a->retry = 20 * MS;
    struct agent_core_options options = {.node = host->name,
                                         .device = "cpu",
                                         .address = host->name,
                                         .version = "1",
                                         .slots = S->plan->slots[h],
                                         .memory_bytes = 1,
                                         .incarnation = host->life + 1,
                                         .installation = {2, (uint8_t)h},
                                         .seed = chance_mix(S->plan->seed, (uint64_t)h << 32 | host->life),
                                         .peer_port = PORT,
                                         .coordinator = S->plan->seed / 8 % 2 && !S->plan->scale ? COORDINATOR : NULL,
                                         .hang_unknown_ms = S->plan->scale ? 0 : 3000};
    titan_assert(agent_core_new(&options, &a->core, NULL) == TITAN_OK);
    size_t at_first = 0;
    bool adopts = host_next(h, &at_first) != NULL;
    restore(h);
    must_remember(h);
    (void)at(S->now + (adopts ? ADOPTION : between(CHANCE_HOST, MS, 30 * MS)), &connect_due, (uint64_t)h, host->life);
    (void)at(S->now + 100 * MS, &lease_due, (uint64_t)h, host->life);
    set_timers(h);
}

void agent_end(int h)
{
    struct agent *a = agent_of(h);
    if (!a)
        return;
    /* What is on its way to the disk may get there. */
    if (a->writing && chance(CHANCE_DISK, 50))
        put_record(&S->hosts[h], a->turns->at);
    for (struct turn *t = a->turns, *next; t; t = next) {
        next = t->next;
        turn_free(t);
    }
    for (struct command *o = a->commands, *next; o; o = next) {
        next = o->next;
        bytes_drop(o->bytes);
        free(o);
    }
    const struct agent_counters *k = agent_core_counters(a->core);
    totals->fenced_terms += k->fenced_terms;
    totals->fenced_epochs += k->fenced_epochs;
    totals->refused += k->refused;
    totals->stalls += k->stalls;
    totals->kills += k->kills;
    totals->promises += k->promises;
    totals->leader_epochs += k->leader_epochs;
    size_t i = 0;
    for (struct proc *p; (p = host_next(h, &i));)
        p->faulty = false; /* the next agent does not know */
    agent_core_free(a->core);
    free(a);
    S->hosts[h].agent = NULL;
}

uint64_t agent_epoch(int h, uint64_t job)
{
    return agent_core_epoch(agent_of(h)->core, job);
}

/* --- inputs ------------------------------------------------------------------------------------------------------- */

void agent_session(int h, bool open, bool was_open)
{
    struct agent *a = agent_of(h);
    if (open) {
        sample_all(h);
        CORE(h, agent_core_session_up);
        return;
    }
    if (was_open)
        CORE(h, agent_core_session_down);
    (void)at(S->now + a->retry, &connect_due, (uint64_t)h, S->hosts[h].life);
    a->retry = MIN(2 * a->retry, SEC);
}

void agent_leave(int h, uint32_t deadline_ms)
{
    if (S->hosts[h].alive && !S->hosts[h].stopped)
        CORE(h, agent_core_leave, deadline_ms);
}

void agent_hears(int h, const coord_message *m)
{
    struct agent *a = agent_of(h);
    uint64_t seen = agent_core_term(a->core), fenced = agent_core_counters(a->core)->fenced_terms;
    /* Epochs are listed before the registration; a registered agent does not take the question. */
    bool listens =
        agent_core_registered(a->core) && m->kind_case != TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_LIST_EPOCHS;
    a->hearing_term = m->term;
    CORE(h, agent_core_coordinator, m);
    a->hearing_term = 0;
    CHECK("I2", !listens || m->term == 0 || m->term >= seen || agent_core_counters(a->core)->fenced_terms > fenced,
          "agent %s has seen term %llu and takes a message of %llu", S->hosts[h].name, LL(seen), LL(m->term));
    if (m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_ACK && agent_core_registered(agent_of(h)->core))
        agent_of(h)->retry = 20 * MS;
}

void agent_hears_worker(int h, uint64_t worker, const worker_message *m)
{
    if (m->kind_case == TITAN__INTERNAL__WORKER_TO_AGENT__KIND_REGISTRATION) {
        send_lease(h, worker);
        CORE(h, agent_core_connected, m->registration);
        send_waiting(h, worker);
    } else {
        const uint64_t refused = agent_core_counters(agent_of(h)->core)->out_of_range;
        CORE(h, agent_core_worker, worker, m);
        S->procs[worker].faulty |= agent_core_counters(agent_of(h)->core)->out_of_range > refused;
    }
}

void agent_hears_peer(int h, int from, const void *bytes, uint32_t len)
{
    char address[16];
    Titan__Internal__PeerMessage *m = titan__internal__peer_message__unpack(&event_memory, len, bytes);
    titan_assert(m);
    if (from == SIM_COORD)
        (void)snprintf(address, sizeof(address), "%s", COORDINATOR);
    else
        (void)snprintf(address, sizeof(address), "n%d:%d", from, PORT);
    CORE(h, agent_core_peer, m, address);
}

void agent_worker_ended(int h, uint64_t worker, int code, int signal, const char *words)
{
    const struct proc *p = &S->procs[worker];
    const struct agent_exit how = {.code = signal ? -1 : code,
                                   .signal = signal,
                                   .reason = words,
                                   .last_step = p->member ? member_state(p->member)->step : 0};
    CORE(h, agent_core_exited, worker, &how);
}
