/* SPDX-License-Identifier: Apache-2.0 */
/* epoch_record.c - the record of a job's epochs: the accepted, the previous and the promised epoch, acting leaders'
 * epochs. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mutant.h"
#include "base/vec.h"
#include "daemon/agent/core/agent_core_internal.h"

bool agent_bytes_equal(const ProtobufCBinaryData *a, const ProtobufCBinaryData *b)
{
    return a->len == b->len && (a->len == 0 || !memcmp(a->data, b->data, a->len));
}

uint64_t agent_job_accepted(const struct agent_job *j)
{
    return j->record->accepted ? j->record->accepted->epoch : 0;
}

static void record_job(const struct agent_job *j, struct agent_actions *out)
{
    titan_assert(j->record->job_id == j->id);
    struct agent_action *a = agent_action_add(out, AGENT_RECORD_JOB);
    a->job_id = j->id;
    a->record = agent_action_copy(out, &j->record->base);
}

void agent_job_accept(struct agent_core *c, struct agent_job *j, const form_epoch *form, const char *leader,
                      struct agent_actions *out)
{
    job_record *r = j->record;
    const bool again = r->accepted && form->epoch == r->accepted->epoch;
    titan_assert(form->epoch >= agent_job_accepted(j));
    titan_assert(again || form->epoch >= r->promised_epoch);
    if (again && (leader || r->n_leader_epochs == 0) && r->term == c->seen.term)
        return;
    if (!again) {
        if (r->accepted) {
            /* Once an epoch is complete, it is the only quorum configuration, and earlier epochs no longer count. */
            for (size_t i = 0; j->complete && i < r->n_before; i++)
                titan__internal__form_epoch__free_unpacked(r->before[i], NULL);
            r->n_before = j->complete ? 0 : r->n_before;
            size_t cap = r->n_before;
            VEC_MUST_PUSH(r->before, r->n_before, cap, r->accepted);
            r->accepted = NULL;
        }
        r->accepted = agent_message_copy(&form->base);
        j->complete = j->finished = j->lease_paused = j->lease_revoked = false;
        j->relay_epoch = 0;
        c->drop_failover(j); /* failover's state refers to the previous epoch */
    }
    r->term = c->seen.term;
    c->leader_epoch_since |= leader != NULL;
    if (leader) {
        Titan__Internal__LeaderEpoch d = TITAN__INTERNAL__LEADER_EPOCH__INIT;
        d.epoch = r->accepted;
        d.term = c->seen.term;
        d.leader = (char *)leader;
        size_t cap = r->n_leader_epochs; /* a message stores no capacity */
        VEC_MUST_PUSH(r->leader_epochs, r->n_leader_epochs, cap, agent_message_copy(&d.base));
    } else { /* the coordinator knows the acting leaders' epochs before its own */
        for (size_t i = 0; i < r->n_leader_epochs; i++)
            titan__internal__leader_epoch__free_unpacked(r->leader_epochs[i], NULL);
        free(r->leader_epochs);
        r->leader_epochs = NULL;
        r->n_leader_epochs = 0;
    }
    record_job(j, out);
}

void agent_job_promise(struct agent_core *c, struct agent_job *j, const form_epoch *form, struct agent_actions *out)
{
    job_record *r = j->record;
    if (r->promised_epoch == form->epoch && agent_bytes_equal(&r->promised_id, &form->comm_id))
        return;
    titan_assert(form->epoch > agent_job_accepted(j));
    titan_assert(form->epoch > r->promised_epoch);
    free(r->promised_id.data);
    r->promised_id.data = malloc(form->comm_id.len + 1);
    titan_assert(r->promised_id.data);
    memcpy(r->promised_id.data, form->comm_id.data, form->comm_id.len);
    r->promised_id.len = form->comm_id.len;
    r->promised_epoch = form->epoch;
    r->term = c->seen.term;
    c->counters.promises++;
    if (!MUTANT(PROMISE_UNRECORDED))
        record_job(j, out);
}
