/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator: its real core, and around it what the shell does (daemon/coordinator/shell/): batches are
 * committed in their order, messages leave when their batch is durable. */
#include "tests/sim/sim.h"

#include "base/mutant.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "daemon/coordinator/records/core_record.h"
#include "daemon/common/proof.h"

#define HEARTBEAT_MS 400
#define RETRY (250 * MS)

struct core_time coord_now(void)
{
    const struct pending *oldest = S->coord.pending;
    return (struct core_time){.mono_ms = clock_mono_of(&S->coord_clocks),
                              .wall_ms = clock_wall_of(&S->coord_clocks),
                              .held_ms = oldest ? (int64_t)((S->now - oldest->queued) / MS) : 0};
}

/* --- what it costs ------------------------------------------------------------------------------------------------ */

uint64_t cost_begin(void)
{
    struct timespec t = {0};
    if (S->plan->scale)
        (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

void cost_end(struct cost *c, uint64_t begin)
{
    uint64_t ns = cost_begin() - begin;
    c->n++;
    c->ns += ns;
    c->worst_ns = MAX(c->worst_ns, ns);
}

static uint64_t cost_of_inputs(const struct costs *c)
{
    return c->received.ns + c->timers.ns;
}

/* before: what had been spent before the input that has led to this. */
static void note_decision(const struct batch *b, const struct costs *before)
{
    struct decision *d = &S->decision;
    d->worst_ns = MAX(d->worst_ns, cost_of_inputs(&S->costs) - cost_of_inputs(before));
    for (const struct change *k = b->changes; k; k = k->next) {
        if (k->kind == CHANGE_NODE_PUT && k->node.state == NODE_LOST) {
            d->n_lost++;
            if (d->n_epochs)
                continue;
            d->n_before++;
            d->lost_at = S->now;
            d->lost = *before;
        } else if (k->kind == CHANGE_EPOCH_ADD) {
            d->n_epochs++;
            d->formed_at = S->now;
            d->formed = S->costs;
        }
    }
}

/* --- time --------------------------------------------------------------------------------------------------------- */

static void take(struct batch *b, int submit, int cancel);

static void on_tick(const struct ev *e)
{
    if (e->b != S->coord.life || !S->coord.core || S->now < S->coord.tick_at)
        return;
    struct batch b;
    batch_init(&b);
    S->coord.tick_at = 0;
    const struct costs before = S->costs;
    uint64_t begin = cost_begin();
    core_tick(S->coord.core, coord_now(), &b);
    cost_end(&S->costs.timers, begin);
    note_decision(&b, &before);
    take(&b, 0, 0);
}
static const struct handler tick = {"tick", on_tick, TARGET_COORD};

/* After every input: its records are sound, and what it remembers of its deadlines is no later than what it finds when
 * it looks again. */
static void check_core(int64_t due)
{
    if (S->plan->scale)
        return;
    core_check(S->coord.core);
    S->coord.core->due = (struct due){.calm = S->coord.core->due.calm};
    CHECK("sim", due <= core_deadline(S->coord.core), "the coordinator's timer is for %lld, and it is due at %lld",
          (long long)due, (long long)core_deadline(S->coord.core));
}

static void set_timer(void)
{
    struct coord *c = &S->coord;
    uint64_t begin = cost_begin();
    int64_t due = core_deadline(c->core);
    cost_end(&S->costs.timers, begin);
    check_core(due);
    usec when = S->now + core_tick_ms(c->core) * MS;
    if (due != INT64_MAX) {
        usec reached = clock_reaches(&S->coord_clocks, due);
        when = reached < when ? reached : when;
    }
    when = when > S->now ? when : S->now + MS;
    if (c->tick_at > S->now && c->tick_at <= when)
        return;
    c->tick_at = when;
    (void)at(when, &tick, SIM_COORD, c->life);
}

/* --- commits ------------------------------------------------------------------------------------------------------ */

static void on_request(const struct ev *e)
{
    coord_request((int)e->a);
}
static const struct handler again = {"request again", on_request, TARGET_WORLD};

/* A caller that asked has no answer and asks again. */
static void forget_pending(struct pending *p)
{
    struct coord *c = &S->coord;
    if (p->submit || p->cancel)
        (void)at(S->now + 100 * MS, &again, (uint64_t)(p->submit + p->cancel), 0);
    if (p->submit && !S->image.jobs[p->submit].there && !c->job_acked[p->submit])
        c->submitted[p->submit] = false;
    batch_free(&p->batch);
    free(p);
}

/* One that goes to many is packed once. */
static void say(const struct batch_message *list)
{
    const coord_message *last = NULL;
    void *bytes = NULL;
    uint32_t len = 0;
    for (const struct batch_message *m = list; m; m = m->next) {
        must_told(m->message);
        if (m->message != last) {
            uint64_t begin = cost_begin();
            bytes_drop(bytes);
            bytes = packed(&m->message->base, &len);
            last = m->message;
            cost_end(&S->costs.reported, begin);
        }
        net_down_packed(m->session, bytes, len);
    }
    bytes_drop(bytes);
}

static void release_messages(const struct pending *p)
{
    say(p->batch.messages);
    for (const struct batch_drop *d = p->batch.drops; d; d = d->next)
        net_drop(d->session);
}

/* What has waited since before the last write began was in it (state/group.h). Schedules have a write for each, so that
 * whatever happens can come between any two. */
static usec write_takes(const struct pending *p)
{
    if (S->plan->scale && p->queued <= S->coord.write_began)
        return 0;
    S->coord.write_began = S->now;
    return store_takes();
}

static void on_commit(const struct ev *e)
{
    struct coord *c = &S->coord;
    struct pending *p = c->pending;
    if (e->b != c->life || !p || !c->core)
        return;
    static const struct handler commit = {"commit", on_commit, TARGET_COORD};
    uint64_t begin = cost_begin();
    enum stored stored = store_commit(p->submit, p->batch.changes);
    cost_end(&S->costs.stored, begin);
    switch (stored) {
    case STORED_REFUSED:
        c->stalled = true;
        totals->store_refused++;
        (void)at(S->now + RETRY, &commit, SIM_COORD, c->life);
        return;
    case STORED_DIED:
        coord_kill(between(CHANCE_HOST, 20 * MS, SEC), false);
        return;
    case STORED:
        break;
    }
    c->pending = p->next;
    c->stalled &= c->pending != NULL;
    if (!c->pending)
        c->pending_tail = &c->pending;
    if (c->kill_at_commit) { /* durable, but not sent */
        c->kill_at_commit = false;
        if (p->submit)
            c->job_acked[p->submit] = true; /* asked again, it would be found there */
        p->submit = 0;
        forget_pending(p);
        coord_kill(between(CHANCE_HOST, 20 * MS, 4 * SEC), false);
        return;
    }
    if (!MUTANT(SAID_BEFORE_COMMIT))
        release_messages(p);
    if (p->cancel)
        c->cancel_acked[p->cancel] = true;
    int submitted = p->submit;
    batch_free(&p->batch);
    free(p);
    if (submitted) {
        c->job_acked[submitted] = true;
        struct batch b;
        batch_init(&b);
        core_submitted(c->core, &S->image.jobs[submitted].job, coord_now(), &b);
        take(&b, 0, 0);
    }
    if (c->pending)
        (void)at(S->now + write_takes(c->pending), &commit, SIM_COORD, c->life);
}
static const struct handler commit_first = {"commit", on_commit, TARGET_COORD};

static bool only_a_heartbeat(const struct batch *b)
{
    return b->answers && !b->answers->next && !b->changes && !b->messages && !b->drops &&
           b->answers->message->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_HEARTBEAT_ANSWER;
}

/* What the core wants goes to the disk; messages follow when it is there. */
static void take(struct batch *b, int submit, int cancel)
{
    struct coord *c = &S->coord;
    totals->inputs++;
    if (!S->plan->scale)
        must_serve(b);
    if (!S->plan->scale || !only_a_heartbeat(b)) /* as the shell, agent_streams.c */
        set_timer();
    say(b->answers);
    b->answers = NULL;
    if (!b->changes && !b->messages && !b->drops && !submit && !cancel) {
        batch_free(b);
        return;
    }
    struct pending *p = calloc(1, sizeof(*p));
    titan_assert(p);
    p->batch = *b;
    p->submit = submit;
    p->cancel = cancel;
    p->queued = S->now;
    if (MUTANT(SAID_BEFORE_COMMIT))
        release_messages(p);
    if (MUTANT(SUBMIT_ACKED_EARLY) && submit)
        c->job_acked[submit] = c->submitted[submit] = true;
    bool idle = !c->pending;
    *c->pending_tail = p;
    c->pending_tail = &p->next;
    if (idle) {
        c->write_began = S->now;
        (void)at(S->now + store_takes(), &commit_first, SIM_COORD, c->life);
    }
}

/* --- its life ----------------------------------------------------------------------------------------------------- */

static void on_restart(const struct ev *e)
{
    (void)e;
    if (!S->coord.core)
        coord_start();
}
static const struct handler restart = {"coordinator starts", on_restart, TARGET_WORLD};

const uint8_t coord_term_secret[MAC_BYTES] = {7};

void coord_start(void)
{
    /* As node_timeout_ms: silence is enough. The longest: it is not, while a schedule lasts. */
    static const uint32_t reachable[] = {2000, 2000, 3000, 40000};
    struct coord *c = &S->coord;
    if (!store_accepts()) { /* the term cannot be written */
        (void)at(S->now + RETRY, &restart, SIM_COORD, 0);
        return;
    }
    uint8_t secret[MAC_BYTES] = {0};
    const uint64_t seeds[] = {S->plan->seed, c->term + 1};
    memcpy(secret, seeds, sizeof(seeds));
    struct core_options options = {.term = ++c->term,
                                   .secret = secret,
                                   .term_secret = coord_term_secret,
                                   .seed = S->plan->seed * 1000 + c->term,
                                   .jobs_dir = "/jobs",
                                   .heartbeat_ms = HEARTBEAT_MS,
                                   .idle_heartbeat_ms = S->plan->seed % 3 ? 4 * HEARTBEAT_MS : HEARTBEAT_MS,
                                   .node_timeout_ms = 2000,
                                   .reachable_ms = reachable[S->plan->seed / 2 % 4],
                                   .start_ms = 4000,
                                   .answer_ms = 2500,
                                   .quiesce_ms = 1500,
                                   .pause_ms = 3000,
                                   .form_ms = 5000,
                                   .stall_ms = 3000,
                                   .stop_ms = 1000,
                                   .away_ms = 600,
                                   .leader_lease_ms = S->plan->lease_ms,
                                   .quarantine_crashes = S->plan->quarantine ? 3 : CORE_NO_QUARANTINE,
                                   .at_once = S->plan->seed % 2, /* 1: it looks at most of what it hears in ticks */
                                   .starve_ms = 4000};
    if (S->plan->scale)
        options = (struct core_options){.term = options.term,
                                        .secret = secret,
                                        .term_secret = coord_term_secret,
                                        .seed = options.seed,
                                        .jobs_dir = options.jobs_dir,
                                        .leader_lease_ms = S->plan->lease_ms,
                                        .quarantine_crashes = CORE_NO_QUARANTINE};
    const struct backup_origin *origin = &S->image.origin;
    options.restored_term = origin->term;
    options.backup_worker = origin->backup_worker;
    options.gone_worker = origin->gone_worker;
    options.settled = origin->settled;
    options.next_worker_id = MAX(S->image.last_worker, origin->gone_worker) + 1;
    c->life++;
    totals->coordinator_lives++;
    c->pending = NULL;
    c->pending_tail = &c->pending;
    titan_assert(core_new(&options, &c->core, NULL) == TITAN_OK);
    uint64_t begin = cost_begin();
    store_restore(c->core, coord_now());
    queue_restarted();
    cost_end(&S->costs.restored, begin);
    TRACE("coordinator up, term %llu", LL(c->term));
    c->tick_at = S->now;
    (void)at(S->now, &tick, SIM_COORD, c->life);
}

void coord_kill(usec restart_after, bool power)
{
    struct coord *c = &S->coord;
    if (!c->core)
        return;
    TRACE("coordinator is killed");
    core_free(c->core);
    c->core = NULL;
    c->stopped = c->stalled = false;
    for (struct pending *p = c->pending, *next; p; p = next) {
        next = p->next;
        forget_pending(p);
    }
    c->pending = NULL;
    if (restart_after < 0)
        return;
    if (S->store.old) /* another start would be in a term that no agent has seen: the right one is put back first */
        store_swap();
    store_reboot(power);
    cluster_continue(TARGET_COORD, SIM_COORD); /* what waited for it finds another life */
    net_coord_gone();
    (void)at(S->now + restart_after, &restart, SIM_COORD, 0);
}

static void on_continue(const struct ev *e)
{
    if (e->b != S->coord.life || !S->coord.stopped)
        return;
    TRACE("coordinator goes on");
    S->coord.stopped = false;
    cluster_continue(TARGET_COORD, SIM_COORD);
}

void coord_stop(usec lasts)
{
    static const struct handler go_on = {"coordinator continues", on_continue, TARGET_WORLD};
    if (!S->coord.core || S->coord.stopped)
        return;
    TRACE("coordinator is stopped");
    S->coord.stopped = true;
    (void)at(S->now + lasts, &go_on, SIM_COORD, S->coord.life);
}

/* --- inputs ------------------------------------------------------------------------------------------------------- */

/* As the shell: which node has opened the session, and where jobs keep their checkpoints. */
static void know(uint64_t session, const agent_message *m)
{
    const struct stream *s = &S->streams[session % SIM_SESSIONS];
    struct core *c = S->coord.core;
    if (m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_REGISTRATION && !s->greeted &&
        !core_find_session(c, session))
        core_session_opened(c, session, s->strange && !s->named ? "stranger" : S->hosts[s->host].name);
    for (int job = 1; job <= S->plan->jobs; job++) {
        char folder[32];
        (void)snprintf(folder, sizeof(folder), "/jobs/%d", job);
        if (core_wants_folder(c, (uint64_t)job))
            core_set_folder(c, (uint64_t)job, folder);
    }
}

bool coord_hears(uint64_t session, const void *bytes, uint32_t len)
{
    const struct costs before = S->costs;
    uint64_t begin = cost_begin();
    agent_message *m = titan__internal__agent_message__unpack(&event_memory, len, bytes);
    titan_assert(m);
    struct batch b;
    struct titan_error err = {0};
    batch_init(&b);
    know(session, m);
    titan_status status = core_agent(S->coord.core, session, m, coord_now(), &b, &err);
    cost_end(&S->costs.received, begin);
    note_decision(&b, &before);
    if (S->plan->scale && m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_PROGRESS && batch_empty(&b)) {
        batch_free(&b); /* as the shell does, agent_streams.c */
        return true;
    }
    if (status != TITAN_OK) {
        TRACE("session %llu is refused: %s", LL(session), err.msg);
        net_drop(session);
    }
    take(&b, 0, 0);
    return status == TITAN_OK;
}

void coord_hears_heartbeat(int from, const void *bytes, uint32_t len)
{
    Titan__Internal__PeerMessage *m = titan__internal__peer_message__unpack(&event_memory, len, bytes);
    titan_assert(m);
    struct proof_keys keys;
    uint8_t proofs[PROOF_KEYS_MAX * MAC_BYTES];
    if (!core_heartbeat(S->coord.core, m, coord_now(), &keys))
        return;
    Titan__Internal__HeartbeatAnswer number = TITAN__INTERNAL__HEARTBEAT_ANSWER__INIT;
    Titan__Internal__PeerMessage answer = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    number.number = m->heartbeat->number;
    answer.from = (char *)"";
    answer.to = m->from;
    answer.term = m->term;
    answer.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_HEARTBEAT_ANSWER;
    answer.heartbeat_answer = &number;
    proof_make(&answer, &keys, proofs);
    net_peer(SIM_COORD, from, &answer.base);
}

void coord_session_closed(uint64_t session)
{
    struct batch b;
    batch_init(&b);
    core_session_closed(S->coord.core, session, coord_now(), &b);
    take(&b, 0, 0);
}

void coord_request(int job)
{
    struct coord *c = &S->coord;
    if (!c->core || c->stopped || c->stalled || S->store.old) {
        (void)at(S->now + 100 * MS, &again, (uint64_t)job, 0);
        return;
    }
    struct batch b;
    batch_init(&b);
    if (!c->submitted[job]) {
        c->submitted[job] = true;
        take(&b, job, 0);
        return;
    }
    struct core_cancel request = {.reason = "changed my mind", .grace_ms = 500};
    struct titan_error err = {0};
    titan_status status = core_cancel(c->core, (uint64_t)job, &request, coord_now(), &b, &err);
    TRACE("cancel of job %d: %s", job, titan_status_name(status));
    CHECK("I5", status == TITAN_OK || status == TITAN_ECONFLICT || status == TITAN_ENOTFOUND, "cancel: %s", err.msg);
    take(&b, 0, status == TITAN_OK ? job : 0);
}

void coord_resize(int job, uint32_t workers)
{
    struct coord *c = &S->coord;
    if (!c->core || c->stopped || c->stalled || S->store.old || !c->submitted[job])
        return;
    struct batch b;
    struct titan_error err = {0};
    struct core_resize r = {.workers = workers};
    batch_init(&b);
    titan_status status = core_resize(c->core, (uint64_t)job, &r, coord_now(), &b, &err);
    TRACE("resize of job %d to %u: %s", job, workers, titan_status_name(status));
    take(&b, 0, 0);
}

void coord_drain(int node, bool drain)
{
    struct coord *c = &S->coord;
    if (!c->core || c->stopped || c->stalled || S->store.old)
        return;
    struct batch b;
    struct titan_error err = {0};
    struct core_drain d = {.reason = "maintenance", .deadline_ms = 3000};
    batch_init(&b);
    titan_status status = drain ? core_drain(c->core, S->hosts[node].name, &d, coord_now(), &b, &err)
                                : core_undrain(c->core, S->hosts[node].name, coord_now(), &b, &err);
    TRACE("%s of %s: %s", drain ? "drain" : "undrain", S->hosts[node].name, titan_status_name(status));
    take(&b, 0, 0);
}

void coord_ask_later(int job, usec wait)
{
    (void)at(S->now + wait, &again, (uint64_t)job, 0);
}

void coord_checkpoint(int job)
{
    struct coord *c = &S->coord;
    if (!c->core || c->stopped || c->stalled || S->store.old || !c->submitted[job])
        return;
    struct batch b;
    struct titan_error err = {0};
    uint64_t step = 0;
    batch_init(&b);
    titan_status status = core_checkpoint(c->core, (uint64_t)job, coord_now(), &b, &step, &err);
    TRACE("checkpoint of job %d: %s", job, titan_status_name(status));
    take(&b, 0, 0);
}

void coord_forget(int node)
{
    struct coord *c = &S->coord;
    if (!c->core || c->stopped || c->stalled || S->store.old)
        return;
    struct batch b;
    struct titan_error err = {0};
    batch_init(&b);
    titan_status status = core_node_forget(c->core, S->hosts[node].name, coord_now(), &b, &err);
    TRACE("%s is forgotten: %s", S->hosts[node].name, titan_status_name(status));
    take(&b, 0, 0);
    if (status != TITAN_OK || node % 2 || !c->core)
        return;
    batch_init(&b);
    status = core_node_remove(c->core, S->hosts[node].name, coord_now(), &b, &err);
    TRACE("%s is removed: %s", S->hosts[node].name, titan_status_name(status));
    take(&b, 0, 0);
}

bool coord_revoke(int node)
{
    struct coord *c = &S->coord;
    if (!c->core || c->stopped || c->stalled || S->store.old)
        return false;
    struct batch b;
    batch_init(&b);
    core_node_revoke(c->core, S->hosts[node].name, S->hosts[node].name, coord_now(), &b);
    TRACE("the certificate of %s is revoked", S->hosts[node].name);
    take(&b, 0, 0);
    return true;
}
