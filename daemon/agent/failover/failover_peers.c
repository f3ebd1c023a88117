/* SPDX-License-Identifier: Apache-2.0 */
/* failover_peers.c - an epoch's other agents: which answer, which of their members live, which agent leads. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/agent/failover/failover_internal.h"

#define ASK_MS 100
#define SILENT_MS 350 /* an agent is silent after this time without an answer */

static bool worker_lives(const struct failover *f, uint64_t worker_id)
{
    const struct agent_worker *w = agent_worker_find(f->core, worker_id);
    return w && w->job_id == f->job->id && w->end == END_BY_ITSELF && !watch_hangs(&w->watch);
}

/* answers: id of the question that this message answers; 0 = the message is a question. Returns the message's own
 * id. */
static uint64_t send_state(const struct failover *f, const char *node, uint64_t answers)
{
    Titan__Internal__PeerState state = TITAN__INTERNAL__PEER_STATE__INIT;
    peer_message m = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    state.alive = agent_action_alloc(f->out, (agent_workers_alive(f->core) + 1) * sizeof(*state.alive));
    for (const struct agent_worker *w = f->core->workers; w; w = w->next)
        if (worker_lives(f, w->id))
            state.alive[state.n_alive++] = w->id;
    state.epoch = agent_job_accepted(f->job);
    state.coordinator = !failover_can_promise(f->core, f->now);
    state.finished = f->job->finished;
    m.id = answers;
    if (answers) {
        m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_STATE;
        m.state = &state;
    } else {
        m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_ASK;
        m.ask = &state;
    }
    return failover_send(f, node, &m);
}

static bool peer_is_silent(const struct peer *p, int64_t now)
{
    return !p->self && (!*p->address || (p->asked && now - p->asked_at >= SILENT_MS));
}

const struct peer *failover_leader(const struct failover *f)
{
    const struct failover_state *s = f->job->failover;
    for (size_t i = 0; i < s->n_peers; i++) {
        const struct peer *p = &s->peers[i];
        if (p->self || (!peer_is_silent(p, f->now) && !(p->received && p->barred)))
            return p;
    }
    return NULL;
}

void failover_ask_peers(const struct failover *f)
{
    struct failover_state *s = f->job->failover;
    const struct peer *lead = failover_leader(f);
    for (size_t i = 0; i < s->n_peers; i++) {
        struct peer *p = &s->peers[i];
        /* The leader asks all agents; another agent asks the agents before it, up to the first that answers. */
        if (p->self || !*p->address || (lead && !lead->self && p > lead))
            continue;
        if (!p->asked)
            p->asked_at = f->now;
        p->asked = true;
        p->asks[p->n_asks++ % ASKS_KEPT] = send_state(f, p->node, 0);
    }
    s->ask_at = f->now + ASK_MS;
}

enum life failover_life_of(const struct failover *f, const Titan__Internal__Member *m)
{
    const struct peer *p = failover_peer_of(f->job->failover, m->node);
    titan_assert(p); /* every member has a peer */
    if (p->self)
        return worker_lives(f, m->worker_id) ? LIFE_THERE : LIFE_GONE;
    if (peer_is_silent(p, f->now))
        return LIFE_GONE;
    if (!p->received)
        return LIFE_UNKNOWN;
    for (size_t i = 0; i < p->n_alive; i++)
        if (p->alive[i] == m->worker_id)
            return LIFE_THERE;
    return LIFE_GONE;
}

/* An agent that missed the commit of an acting leader's epoch gets it. */
static void catch_up(const struct failover *f, const char *node, uint64_t epoch)
{
    if (epoch < agent_job_accepted(f->job) && failover_by_leader(f) &&
        failover_member_on(f->job->record->accepted, node))
        failover_send_commit(f, node);
}

void failover_on_state(const struct failover *f, const peer_message *m)
{
    const Titan__Internal__PeerState *state = m->state;
    struct peer *p = f->job->failover ? failover_peer_of(f->job->failover, m->from) : NULL;
    catch_up(f, m->from, state->epoch);
    bool was_asked = false;
    for (size_t i = 0; p && i < MIN(p->n_asks, (size_t)ASKS_KEPT); i++)
        was_asked |= p->asks[i] == m->id;
    if (!was_asked)
        return;
    titan_assert(!p->self); /* it asks only others */
    p->received = true;
    p->asked = false;
    p->barred = state->coordinator;
    p->finished = state->finished;
    p->epoch = state->epoch;
    free(p->alive);
    p->alive = calloc(state->n_alive + 1, sizeof(*p->alive));
    titan_assert(p->alive);
    if (state->n_alive)
        memcpy(p->alive, state->alive, state->n_alive * sizeof(*p->alive));
    p->n_alive = state->n_alive;
}

void failover_on_ask(const struct failover *f, const peer_message *m)
{
    catch_up(f, m->from, m->ask->epoch);
    (void)send_state(f, m->from, m->id);
}
