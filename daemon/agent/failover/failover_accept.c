/* SPDX-License-Identifier: Apache-2.0 */
/* failover_accept.c - the other agents: they promise, revoke, relay their workers' holdings, and accept. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mutant.h"
#include "daemon/agent/failover/failover_internal.h"
#include "daemon/common/epochs.h"

void failover_on_propose(const struct failover *f, const peer_message *m)
{
    Titan__Internal__EpochPromise promise = TITAN__INTERNAL__EPOCH_PROMISE__INIT;
    peer_message answer = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    const job_record *r = f->job->record;
    const form_epoch *form = m->propose;
    promise.epoch = form->epoch;
    promise.granted = m->term >= f->core->seen.term && failover_can_promise(f->core, f->now) &&
                      agent_fence_form(f->job, form) == FENCE_NEW &&
                      ((failover_can_shrink(f, form) && form->source_epoch >= agent_job_accepted(f->job)) ||
                       MUTANT(PROPOSAL_UNSOUND));
    promise.seen_epoch = MAX(agent_job_accepted(f->job), r->promised_epoch);
    promise.coordinator = !failover_can_promise(f->core, f->now);
    promise.contact_ms =
        f->core->contact ? (uint32_t)MIN(f->now - f->core->contact_at, (int64_t)UINT32_MAX) : UINT32_MAX;
    promise.counts = agent_action_alloc(f->out, (r->n_before + 1) * sizeof(uint64_t));
    for (size_t i = 0; !f->job->complete && i < r->n_before; i++)
        promise.counts[promise.n_counts++] = r->before[i]->epoch;
    promise.counts[promise.n_counts++] = agent_job_accepted(f->job);
    if (promise.granted) {
        if (f->job->failover && f->job->failover->proposal)
            /* from now on no lower epoch is accepted, not even this agent's own proposal */
            failover_give_up(f);
        agent_job_promise(f->core, f->job, form, f->out);
        titan_assert(r->promised_epoch == form->epoch);
    }
    answer.id = m->id;
    answer.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_PROMISE;
    answer.promise = &promise;
    (void)failover_send(f, m->from, &answer);
}

void failover_relay(const struct failover *f, const Titan__Internal__WorkerQuiesced *q)
{
    peer_message m = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    titan_assert(f->job->relay_epoch && f->job->relay_to[0]);
    m.number = f->job->record->promised_epoch;
    m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_QUIESCED;
    m.quiesced = (Titan__Internal__WorkerQuiesced *)q;
    (void)failover_send(f, f->job->relay_to, &m);
}

/* Handles a revoke of the acting leader that has this agent's promise, if the leader still needs it. */
void failover_on_revoke(const struct failover *f, const peer_message *m)
{
    uint64_t epoch = m->revoke->epoch;
    const job_record *r = f->job->record;
    if (m->term < f->core->seen.term || !failover_can_promise(f->core, f->now) || m->revoke->job_id != f->job->id ||
        epoch < agent_job_accepted(f->job) || m->number <= epoch || m->number != r->promised_epoch)
        return;
    if (f->job->relay_epoch != epoch)
        agent_command_revoke(f->core, f->job->id, epoch, f->now, f->out);
    f->job->relay_epoch = epoch;
    (void)snprintf(f->job->relay_to, sizeof(f->job->relay_to), "%s", m->from);
    for (const struct agent_worker *w = f->core->workers; w; w = w->next)
        if (w->job_id == f->job->id && w->quiesced && !agent_in_epoch(w, epoch))
            failover_relay(f, w->quiesced);
}

/* Returns the members' entries from this agent's own record, because a peer decides which workers an epoch has, but not
 * their addresses. */
static Titan__Internal__Member **own_members(const struct failover *f, Titan__Internal__Member *const *of, size_t n)
{
    const form_epoch *accepted = f->job->record->accepted;
    Titan__Internal__Member **list = agent_action_alloc(f->out, (n + 1) * sizeof(*list));
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < accepted->n_members; k++)
            if (accepted->members[k]->worker_id == of[i]->worker_id)
                list[i] = accepted->members[k];
    for (size_t i = 0; i < n; i++)
        titan_assert(list[i]); /* failover_can_shrink() found each of them */
    return list;
}

void failover_on_commit(const struct failover *f, const peer_message *m, const struct proof_keys *keys, int key,
                        size_t at)
{
    const job_record *r = f->job->record;
    const form_epoch *reported = m->commit;
    if (m->term < f->core->seen.term || !failover_can_promise(f->core, f->now) ||
        agent_fence_form(f->job, reported) != FENCE_NEW ||
        (reported->epoch != r->promised_epoch && !MUTANT(COMMIT_UNPROMISED)) || !failover_can_shrink(f, reported) ||
        !failover_has_quorum(f, reported) ||
        ((reported->source_epoch == 0 || reported->source_epoch >= reported->epoch) && !MUTANT(COMMIT_UNSOUND)) ||
        reported->n_state_holders > EPOCH_HOLDERS_MAX)
        return; /* the epoch was not promised, or is not sound */

    /* The accepted epoch takes its members from this agent's record, and has memory as its only source. Its paths come
     * from the coordinator or a worker here. */
    form_epoch form = *reported;
    form.members = own_members(f, reported->members, reported->n_members);
    form.departing = own_members(f, reported->departing, reported->n_departing);
    form.source = TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY;
    form.memory_only = true;
    failover_set_checkpoints(f, &form);
    failover_set_worlds(f, &form);
    uint8_t uncovered[MAC_BYTES];
    form.key = (ProtobufCBinaryData){0};
    if (key >= 0 && m->covered_key.len >= (at + 1) * MAC_BYTES) { /* covered by the key that proves the message */
        memcpy(uncovered, m->covered_key.data + at * MAC_BYTES, MAC_BYTES);
        proof_cover(keys->key[key], m->commit, uncovered);
        form.key = (ProtobufCBinaryData){MAC_BYTES, uncovered};
    } else if (key >= 0 && f->job->record->accepted->key.len > 0) {
        return; /* an epoch that follows one with a key must have a key */
    }
    form_epoch *final = agent_action_copy(f->out, &form.base);
    agent_log(f->out, AGENT_WARN, "no coordinator: epoch of an acting leader accepted",
              "job=%" PRIu64 " epoch=%" PRIu64 " leader=%s", f->job->id, final->epoch, m->from);
    titan_assert(final->epoch == f->job->record->promised_epoch);
    agent_job_accept(f->core, f->job, final, m->from, f->out);
    agent_command_form(f->core, final, f->out);
    failover_report(f);
}
