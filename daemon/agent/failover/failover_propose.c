/* SPDX-License-Identifier: Apache-2.0 */
/* failover_propose.c - the acting leader: it proposes the next epoch, counts promises, revokes, and commits. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mutant.h"
#include "daemon/agent/failover/failover_internal.h"
#include "daemon/common/epochs.h"

#define PROPOSE_MS 600
#define REVOKE_MS 3000 /* time to leave an epoch, long enough to kill hanging workers */
#define AGAIN_MS 50    /* interval of repeats, because datagrams may be lost */
#define REST_MS 200    /* pause after a failed attempt; doubled after each further failure */
#define REST_MS_MAX 6400
#define NUMBER_STEP UINT64_C(1024)
#define FORM_BYTES_MAX 60000 /* limit of a form in one datagram */

struct choice {
    size_t n;
    Titan__Internal__Member **all; /* possible members, in rank order */
};

static struct choice choice_new(const struct failover *f)
{
    const size_t n = f->job->record->accepted->n_members;
    return (struct choice){.all = agent_action_alloc(f->out, (n + 1) * sizeof(Titan__Internal__Member *))};
}

/* Makes as many chosen members as is legal the form's members; the other chosen members depart. Returns false if no
 * number is legal, or the members are no quorum. form borrows from the choice. */
static bool choose_world(const struct failover *f, const struct choice *choice, form_epoch *form)
{
    size_t n = choice->n;
    while (n > 0 && !failover_world_is_legal(f->job->record->accepted, n))
        n--;
    form->members = choice->all;
    form->n_members = n;
    form->departing = choice->all + n;
    form->n_departing = choice->n - n;
    titan_assert(failover_ranks(form) == choice->n);
    return n > 0 && failover_has_quorum(f, form);
}

static void set_proposal(struct failover_state *s, const form_epoch *form)
{
    form_epoch *copy = form ? agent_message_copy(&form->base) : NULL;
    if (s->proposal)
        titan__internal__form_epoch__free_unpacked(s->proposal, NULL);
    s->proposal = copy;
}

void failover_give_up(const struct failover *f)
{
    struct failover_state *s = f->job->failover;
    s->stage = STAGE_WATCH;
    s->rest_until = f->now + MIN(REST_MS << MIN(s->fails, 10u), REST_MS_MAX);
    s->fails++;
    set_proposal(s, NULL);
    for (size_t i = 0; i < s->n_peers; i++)
        s->peers[i].promised = false;
}

/* Chooses living members on agents that can promise. Returns false if no member is lost, or it is unknown whether a
 * member lives. A worker that finished all steps is not lost. */
static bool survivors(const struct failover *f, struct choice *choice)
{
    struct failover_state *s = f->job->failover;
    const form_epoch *accepted = f->job->record->accepted;
    bool gone = false;
    if (f->job->finished)
        return false;
    for (size_t i = 0; i < accepted->n_members; i++) {
        const struct peer *p = failover_peer_of(s, accepted->members[i]->node);
        if (p->finished)
            return false;
        switch (failover_life_of(f, accepted->members[i])) {
        case LIFE_UNKNOWN:
            return false;
        case LIFE_GONE:
            gone = true;
            break;
        case LIFE_THERE:
            if (p->received && p->epoch > accepted->epoch)
                return false; /* this agent is behind, and will get the commit */
            if (p->self || !p->barred)
                choice->all[choice->n++] = accepted->members[i];
        }
    }
    bool left_here = false; /* has a living member here left the epoch? */
    for (const struct agent_worker *w = f->core->workers; w; w = w->next)
        left_here |= w->job_id == f->job->id && failover_is_member(accepted, w->id) && w->quiesced &&
                     w->sample.phase == TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED &&
                     w->quiesced->epoch >= accepted->epoch;
    /* Members that left an acting leader's incomplete epoch lack state. They would lack it again in an epoch of the
     * same members. */
    return gone || (left_here && (f->job->complete || !failover_by_leader(f)));
}

/* The acting leader proposes the survivors' epoch, unless no member is lost or the leader rests after a failure. */
static void propose(const struct failover *f)
{
    struct failover_state *s = f->job->failover;
    const form_epoch *accepted = f->job->record->accepted;
    form_epoch form = TITAN__INTERNAL__FORM_EPOCH__INIT;
    uint64_t id[2];
    titan_assert(s->stage == STAGE_WATCH);
    struct choice choice = choice_new(f);
    const struct peer *lead = failover_leader(f);
    if (f->now < s->rest_until || !lead || !lead->self || !survivors(f, &choice) || !choose_world(f, &choice, &form))
        return;

    const uint64_t above = MAX(MAX(accepted->epoch, f->job->record->promised_epoch), s->above);
    id[0] = agent_draw(f->core, "communicator", ++f->core->ids);
    id[1] = agent_draw(f->core, "communicator", ++f->core->ids);
    form.job_id = f->job->id;
    form.epoch = (above / NUMBER_STEP + 1) * NUMBER_STEP;
    titan_assert(form.epoch > above);
    form.comm_id = (ProtobufCBinaryData){sizeof(id), (uint8_t *)id};
    form.source_epoch = accepted->epoch; /* a proposal's source_epoch is the previous epoch */
    if (titan__internal__form_epoch__get_packed_size(&form) > FORM_BYTES_MAX)
        return;

    set_proposal(s, &form);
    agent_job_promise(f->core, f->job, &form, f->out);
    s->stage = STAGE_PROPOSE;
    s->message = agent_draw(f->core, "datagram", ++f->core->ids) | 1;
    s->until = f->now + PROPOSE_MS;
    s->again_at = f->now;
    for (size_t i = 0; i < s->n_peers; i++)
        s->peers[i].promised = s->peers[i].self;
    agent_log(f->out, AGENT_INFO, "no coordinator: asking for promises",
              "job=%" PRIu64 " epoch=%" PRIu64 " members=%zu of=%zu", f->job->id, form.epoch, form.n_members,
              accepted->n_members);
}

/* Continues when all ranks of the proposal have promised, or at the deadline with the ranks that have promised. */
static void count_promises(const struct failover *f)
{
    struct failover_state *s = f->job->failover;
    bool all = true;
    titan_assert(s->stage == STAGE_PROPOSE && s->proposal);
    struct choice choice = choice_new(f);
    form_epoch form = *s->proposal;
    for (size_t i = 0; i < f->job->record->accepted->n_members; i++) {
        Titan__Internal__Member *m = f->job->record->accepted->members[i];
        if (!failover_takes_part(s->proposal, m->worker_id))
            continue;
        if (failover_peer_of(s, m->node)->promised)
            choice.all[choice.n++] = m;
        else
            all = false;
    }
    if (!all && f->now < s->until)
        return;
    if (!choose_world(f, &choice, &form)) {
        failover_give_up(f);
        return;
    }
    set_proposal(s, &form);
    s->stage = STAGE_REVOKE;
    s->until = f->now + REVOKE_MS;
    s->again_at = f->now;
    agent_command_revoke(f->core, f->job->id, agent_job_accepted(f->job), f->now, f->out);
}

static void note_quiesced(struct failover_state *s, const form_epoch *accepted,
                          const Titan__Internal__WorkerQuiesced *m)
{
    titan_assert(s->n_members == accepted->n_members);
    for (size_t i = 0; i < accepted->n_members; i++) {
        if (accepted->members[i]->worker_id != m->worker_id)
            continue;
        if (s->quiesced[i])
            titan__internal__worker_quiesced__free_unpacked(s->quiesced[i], NULL);
        s->quiesced[i] = agent_message_copy(&m->base);
    }
}

/* Sets the recovery source from the holdings, as the coordinator would. Returns false if the source's members are
 * unknown. */
static bool set_source(const struct failover *f, form_epoch *form)
{
    struct failover_state *s = f->job->failover;
    const job_record *r = f->job->record;
    uint64_t installed = 0;
    titan_assert(s->epoch == agent_job_accepted(f->job));
    form->resume_step = 0;
    for (size_t i = 0; i < s->n_members; i++)
        if (s->quiesced[i])
            installed = MAX(installed, s->quiesced[i]->installed_epoch);
    for (size_t i = 0; i < s->n_members; i++)
        if (s->quiesced[i] && installed && s->quiesced[i]->installed_epoch == installed)
            form->resume_step = MAX(form->resume_step, s->quiesced[i]->last_step);
    failover_set_checkpoints(f, form);
    form->source_epoch = installed;
    /* An unreached member may hold the missing state, so only the coordinator may take an older state. */
    form->source = TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY;
    form->memory_only = !MUTANT(LEADER_FROM_OLDER_STATE);

    /* The holders are the members of the state's epoch, in its rank order. */
    const form_epoch *found = r->accepted->epoch == installed ? r->accepted : NULL;
    for (size_t i = 0; i < r->n_before && !found; i++)
        found = r->before[i]->epoch == installed ? r->before[i] : NULL;
    if (!installed || (!found && r->accepted->source_epoch != installed))
        return false;
    const size_t n = found ? found->n_members : r->accepted->n_state_holders;
    form->state_holders = agent_action_alloc(f->out, (n + 1) * sizeof(uint64_t));
    form->n_state_holders = n;
    for (size_t i = 0; i < n; i++)
        form->state_holders[i] = found ? found->members[i]->worker_id : r->accepted->state_holders[i];
    return true;
}

/* Waits until all promised ranks have left the epoch, are gone or are late. The ranks that left form the next epoch. */
static void finish_revoke(const struct failover *f)
{
    struct failover_state *s = f->job->failover;
    const form_epoch *accepted = f->job->record->accepted;
    titan_assert(s->stage == STAGE_REVOKE && s->proposal);
    struct choice choice = choice_new(f);
    form_epoch form = *s->proposal;
    for (size_t i = 0; i < accepted->n_members; i++) {
        Titan__Internal__Member *m = accepted->members[i];
        if (!failover_takes_part(s->proposal, m->worker_id))
            continue;
        bool gone = failover_life_of(f, m) == LIFE_GONE;
        if (s->quiesced[i] && !gone)
            choice.all[choice.n++] = m;
        else if (!gone && f->now < s->until)
            return;
    }
    if (!choose_world(f, &choice, &form) || !set_source(f, &form)) {
        failover_give_up(f);
        return;
    }

    titan_assert(form.epoch == f->job->record->promised_epoch);
    titan_assert(form.source_epoch > 0);
    failover_set_worlds(f, &form);
    uint8_t key[MAC_BYTES];
    if (accepted->key.len == MAC_BYTES) {
        proof_leader_epoch(accepted, &form.comm_id, key);
        form.key = (ProtobufCBinaryData){MAC_BYTES, key};
    }
    form_epoch *final = agent_action_copy(f->out, &form.base); /* commits cover the record's key */
    agent_log(f->out, AGENT_WARN, "no coordinator: epoch formed as acting leader",
              "job=%" PRIu64 " epoch=%" PRIu64 " members=%zu source_epoch=%" PRIu64 " step=%" PRIu64, f->job->id,
              final->epoch, final->n_members, final->source_epoch, final->resume_step);
    f->core->counters.leader_epochs++;
    agent_job_accept(f->core, f->job, final, f->core->node, f->out);
    agent_command_form(f->core, final, f->out);
    failover_report(f);
    for (size_t i = 0; i < failover_ranks(final); i++) {
        const char *node = failover_rank(final, i)->node;
        size_t first = 0;
        while (strcmp(failover_rank(final, first)->node, node) != 0)
            first++;
        if (first == i && strcmp(node, f->core->node) != 0)
            failover_send_commit(f, node);
    }
}

void failover_on_promise(const struct failover *f, const peer_message *m)
{
    struct failover_state *s = f->job->failover;
    struct peer *p = s ? failover_peer_of(s, m->from) : NULL;
    if (!p || s->stage != STAGE_PROPOSE || m->id != s->message || m->promise->epoch != s->proposal->epoch)
        return;
    titan_assert(!p->self); /* a datagram that claims this node's name has been dropped already */
    bool knows = true;      /* does this agent know every quorum configuration of the promising agent? */
    for (size_t i = 0; i < m->promise->n_counts; i++) {
        bool found = m->promise->counts[i] == s->epoch;
        for (size_t k = 0; k < f->job->record->n_before && !found; k++)
            found = m->promise->counts[i] == f->job->record->before[k]->epoch;
        knows &= found;
    }
    if (m->promise->granted && knows) {
        p->promised = true;
        count_promises(f);
        return;
    }
    if (m->promise->seen_epoch < s->epoch + EPOCH_STEP_MAX)
        s->above = MAX(s->above, m->promise->seen_epoch);
    p->barred |= m->promise->coordinator;
    failover_give_up(f);
}

void failover_on_peer_quiesced(const struct failover *f, const peer_message *m)
{
    struct failover_state *s = f->job->failover;
    const struct peer *p = s ? failover_peer_of(s, m->from) : NULL;
    if (!p || s->stage != STAGE_REVOKE || m->quiesced->job_id != f->job->id || m->number != s->proposal->epoch)
        return;
    for (size_t i = 0; i < f->job->record->accepted->n_members; i++) { /* an agent speaks for its own workers only */
        const Titan__Internal__Member *member = f->job->record->accepted->members[i];
        if (member->worker_id == m->quiesced->worker_id &&
            (!strcmp(member->node, m->from) || MUTANT(PEER_SPEAKS_FOR_OTHERS))) {
            note_quiesced(s, f->job->record->accepted, m->quiesced);
            finish_revoke(f);
            return;
        }
    }
}

static void resend(const struct failover *f)
{
    struct failover_state *s = f->job->failover;
    Titan__Internal__RevokeEpoch revoke = TITAN__INTERNAL__REVOKE_EPOCH__INIT;
    peer_message m = TITAN__INTERNAL__PEER_MESSAGE__INIT, proposal = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    proposal.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_PROPOSE;
    titan_assert(s->proposal);
    proposal.propose = s->proposal;
    revoke.job_id = f->job->id;
    revoke.epoch = s->epoch;
    m.number = s->proposal->epoch;
    m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_REVOKE;
    m.revoke = &revoke;
    for (size_t i = 0; i < s->n_peers; i++) {
        const struct peer *p = &s->peers[i];
        if (p->self || !failover_member_on(s->proposal, p->node))
            continue;
        if (s->stage == STAGE_PROPOSE && !p->promised) {
            proposal.id = s->message;
            (void)failover_send(f, p->node, &proposal);
        } else if (s->stage == STAGE_REVOKE) {
            m.id = 0;
            (void)failover_send(f, p->node, &m);
        }
    }
    s->again_at = f->now + AGAIN_MS;
}

void failover_leader_tick(const struct failover *f)
{
    struct failover_state *s = f->job->failover;
    if (f->now >= s->ask_at)
        failover_ask_peers(f);
    if (s->stage == STAGE_WATCH)
        propose(f);
    if (s->stage == STAGE_PROPOSE) {
        if (f->now >= s->again_at)
            resend(f);
        count_promises(f);
    }
    if (s->stage == STAGE_REVOKE) {
        if (f->now >= s->again_at)
            resend(f);
        /* Workers here that have left the epoch have holdings, too. */
        for (const struct agent_worker *w = f->core->workers; w; w = w->next)
            if (w->job_id == f->job->id && w->quiesced && !agent_in_epoch(w, s->epoch))
                note_quiesced(s, f->job->record->accepted, w->quiesced);
        finish_revoke(f); /* may free the state */
    }
}
