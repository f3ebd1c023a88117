/* SPDX-License-Identifier: Apache-2.0 */
/* failover.c - see failover.h. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/agent/failover/failover_internal.h"

void failover_drop(struct agent_job *j)
{
    struct failover_state *s = j->failover;
    if (!s)
        return;
    j->failover = NULL;
    for (size_t i = 0; i < s->n_peers; i++)
        free(s->peers[i].alive);
    free(s->peers);
    if (s->proposal)
        titan__internal__form_epoch__free_unpacked(s->proposal, NULL);
    for (size_t i = 0; i < s->n_members; i++)
        if (s->quiesced[i])
            titan__internal__worker_quiesced__free_unpacked(s->quiesced[i], NULL);
    free(s->quiesced);
    free(s);
}

/* Does the epoch have members here, alive or not, and can this agent reach the other members' agents? Called after
 * every input. An epoch may have thousands of members, so the function passes over them only once. */
static bool is_wanted(const struct agent_core *c, struct agent_job *j)
{
    const form_epoch *accepted = j->record->accepted;
    if (!accepted || accepted->n_worlds == 0)
        return false;
    if (j->checked_epoch == accepted->epoch)
        return j->watched;
    bool here = false, elsewhere = false;
    for (size_t i = 0; i < accepted->n_members; i++) {
        bool self = !strcmp(accepted->members[i]->node, c->node);
        here |= self;
        elsewhere |= !self;
    }
    j->checked_epoch = accepted->epoch;
    j->watched = here && (!elsewhere || c->options.peer_port);
    return j->watched;
}

void failover_on_datagram(struct agent_core *c, const peer_message *m, const char *from, int64_t now,
                          struct agent_actions *out)
{
    struct agent_job *j = agent_job_find(c, m->job_id);
    const struct failover context = {c, j, now, out}, *f = &context;
    const char *address = j && j->record->accepted ? failover_address_of(f, m->from) : NULL;
    struct proof_keys keys = {0};
    size_t at = 0;
    int key = -1;
    if (address)
        failover_keys(f, &keys);
    if (keys.n && !strcmp(m->to, c->node))
        key = proof_find(m, &keys, &at);
    /* An epoch of an older version has no key. Then the sender's address must match instead. */
    if (!address || (keys.n ? key < 0 : strcmp(address, from) != 0)) {
        agent_unproved(c, from, out);
        return;
    }
    switch (m->kind_case) {
    case TITAN__INTERNAL__PEER_MESSAGE__KIND_ASK:
        failover_on_ask(f, m);
        break;
    case TITAN__INTERNAL__PEER_MESSAGE__KIND_STATE:
        failover_on_state(f, m);
        break;
    case TITAN__INTERNAL__PEER_MESSAGE__KIND_PROPOSE:
        failover_on_propose(f, m);
        break;
    case TITAN__INTERNAL__PEER_MESSAGE__KIND_PROMISE:
        failover_on_promise(f, m);
        break;
    case TITAN__INTERNAL__PEER_MESSAGE__KIND_REVOKE:
        failover_on_revoke(f, m);
        break;
    case TITAN__INTERNAL__PEER_MESSAGE__KIND_COMMIT:
        failover_on_commit(f, m, &keys, key, at);
        break;
    case TITAN__INTERNAL__PEER_MESSAGE__KIND_QUIESCED:
        failover_on_peer_quiesced(f, m);
        break;
    default:
        break;
    }
}

void failover_on_quiesced(struct agent_core *c, const Titan__Internal__WorkerQuiesced *m, int64_t now,
                          struct agent_actions *out)
{
    struct agent_job *j = agent_job_find(c, m->job_id);
    const struct agent_worker *w = agent_worker_find(c, m->worker_id);
    if (j && w && j->relay_epoch && !agent_in_epoch(w, j->relay_epoch))
        failover_relay(&(struct failover){c, j, now, out}, m);
}

void failover_tick(struct agent_core *c, int64_t now, struct agent_actions *out)
{
    bool can = failover_can_promise(c, now);
    for (struct agent_job *j = c->jobs; j; j = j->next) {
        const struct failover f = {c, j, now, out};
        failover_lease_tick(&f);
        bool wanted = can && is_wanted(c, j);
        if (!wanted || (j->failover && j->failover->epoch != agent_job_accepted(j)))
            failover_drop(j);
        if (wanted && !j->failover) {
            const form_epoch *form = j->record->accepted;
            titan_assert(form->n_members > 0);
            struct failover_state *s = j->failover = calloc(1, sizeof(*s));
            titan_assert(s);
            s->epoch = form->epoch;
            s->n_members = form->n_members;
            s->peers = calloc(form->n_members + 1, sizeof(*s->peers));
            s->quiesced = calloc(form->n_members + 1, sizeof(*s->quiesced));
            titan_assert(s->peers && s->quiesced);
            for (size_t i = 0; i < form->n_members; i++) {
                const Titan__Internal__Member *m = form->members[i];
                if (!failover_peer_of(s, m->node))
                    s->peers[s->n_peers++] =
                        (struct peer){.node = m->node, .address = m->peer_address, .self = !strcmp(m->node, c->node)};
            }
        }
        titan_assert(!j->failover || can);
        if (j->failover)
            failover_leader_tick(&f);
    }
}

int64_t failover_deadline(const struct agent_core *c)
{
    int64_t due = INT64_MAX;
    for (struct agent_job *j = c->jobs; j; j = j->next) {
        const struct failover_state *s = j->failover;
        due = MIN(due, failover_lease_deadline(c, j));
        if (!c->contact || !c->leader_lease_ms || !is_wanted(c, j))
            continue;
        const int64_t away = agent_away_at(c);
        if (!s) {
            if (away > c->ticked_at ||
                /* an epoch accepted since then gets its state at once */
                c->ticked_at < failover_lease_pause(c))
                due = MIN(due, away);
            continue;
        }
        due = MIN(due, s->ask_at);
        if (s->stage != STAGE_WATCH)
            due = MIN(due, MIN(s->again_at, s->until));
    }
    return due;
}

void failover_shift(struct agent_core *c, int64_t ms)
{
    titan_assert(ms > 0);
    for (struct agent_job *j = c->jobs; j; j = j->next)
        if (j->failover && j->failover->stage != STAGE_WATCH)
            j->failover->until += ms;
}

void failover_check(const struct agent_core *c, const struct agent_job *j)
{
    const struct failover_state *s = j->failover;
    const form_epoch *accepted = j->record->accepted;
    int selves = 0;
    titan_assert(accepted && s->epoch == accepted->epoch);
    titan_assert(s->n_members == accepted->n_members);
    titan_assert(s->n_peers > 0 && s->n_peers <= s->n_members);
    for (size_t i = 0; i < s->n_members; i++)
        titan_assert(!s->quiesced[i] || s->quiesced[i]->worker_id == accepted->members[i]->worker_id);

    for (size_t i = 0; i < s->n_peers; i++) {
        const struct peer *p = &s->peers[i];
        titan_assert(failover_peer_of(s, p->node) == p); /* no duplicates */
        titan_assert(p->self == !strcmp(p->node, c->node));
        titan_assert(!p->self || (!p->asked && !p->received));
        titan_assert(p->alive || p->n_alive == 0);
        titan_assert(!p->promised || s->stage != STAGE_WATCH);
        selves += p->self;
    }
    titan_assert(selves == 1);

    titan_assert((s->stage == STAGE_WATCH) == (s->proposal == NULL));
    if (!s->proposal)
        return;
    titan_assert(s->proposal->job_id == j->id);
    titan_assert(s->proposal->epoch > s->epoch);
    titan_assert(s->proposal->epoch == j->record->promised_epoch);
    titan_assert(s->proposal->n_members > 0 && failover_ranks(s->proposal) <= s->n_members);
    for (size_t i = 0; i < failover_ranks(s->proposal); i++) {
        const struct peer *p = failover_peer_of(s, failover_rank(s->proposal, i)->node);
        titan_assert(p);
        titan_assert(p->promised || s->stage == STAGE_PROPOSE);
    }
}
