/* SPDX-License-Identifier: Apache-2.0 */
/* epoch_fence.c - terms and epochs: which are accepted, which are refused. */
#include <inttypes.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mutant.h"
#include "daemon/agent/core/agent_core_internal.h"
#include "proto/ranges.h"

void agent_core_restore_term(struct agent_core *c, const struct seen_term *seen)
{
    if (seen->term > c->seen.term)
        c->seen = *seen;
}

enum fence agent_fence_form(const struct agent_job *j, const form_epoch *form)
{
    const job_record *r = j->record;
    titan_assert(r && r->job_id == j->id);
    if (form->epoch < agent_job_accepted(j))
        return MUTANT(AGENT_EPOCH) ? FENCE_NEW : FENCE_OLDER;
    if (r->accepted && form->epoch == r->accepted->epoch)
        return agent_bytes_equal(&form->comm_id, &r->accepted->comm_id) ? FENCE_SAME : FENCE_OTHER;
    if (form->epoch < r->promised_epoch ||
        (form->epoch == r->promised_epoch && !agent_bytes_equal(&form->comm_id, &r->promised_id)))
        return FENCE_OTHER;
    return FENCE_NEW;
}

bool agent_fence_range(struct agent_core *c, const ProtobufCMessage *m, struct titan_error *ret_why)
{
    *ret_why = (struct titan_error){0};
    if (range_check(m, ret_why) == TITAN_OK || MUTANT(AGENT_RANGES_UNCHECKED))
        return true;
    c->counters.out_of_range++;
    return false;
}

ProtobufCBinaryData agent_term_proof(struct agent_core *c)
{
    return (ProtobufCBinaryData){c->seen.proved ? MAC_BYTES : 0, c->seen.proof};
}

bool agent_fence_term(struct agent_core *c, uint64_t term, const ProtobufCBinaryData *proof, struct agent_actions *out)
{
    /* A coordinator over another store has another proof of the same term. The core keeps the newest proof. */
    const bool proved = proof && proof->len == MAC_BYTES;
    const bool other = proved && !(c->seen.proved && mac_equal(c->seen.proof, proof->data));
    if (term > c->seen.term || (term == c->seen.term && other)) {
        c->seen = (struct seen_term){.term = term, .proved = proved};
        if (proved)
            memcpy(c->seen.proof, proof->data, MAC_BYTES);
        if (!MUTANT(AGENT_TERM_UNRECORDED))
            agent_action_add(out, AGENT_RECORD_TERM)->seen = c->seen;
    }
    titan_assert(c->session_term <= c->seen.term);
    if (term == c->seen.term || MUTANT(AGENT_TERM))
        return true;

    c->counters.fenced_terms++;
    if (c->ending)
        return false;
    char *why = agent_action_text(out,
                                  "the coordinator's term %" PRIu64 " is over, this node has seen %" PRIu64
                                  ": another coordinator has taken over, or its store is older than that",
                                  term, c->seen.term);
    agent_log(out, AGENT_WARN, "fenced", "reason=\"%s\"", why);
    Titan__Internal__EpochRefused refused = TITAN__INTERNAL__EPOCH_REFUSED__INIT;
    refused.seen_term = c->seen.term;
    refused.seen_proof = agent_term_proof(c);
    MESSAGE(m, REFUSED, refused, &refused);
    agent_send(c, &m, out);
    agent_action_add(out, AGENT_END_SESSION)->text = why;
    c->ending = true;
    return false;
}

void agent_fenced_epoch(struct agent_core *c, const char *what, uint64_t job_id, uint64_t epoch, uint64_t seen,
                        struct agent_actions *out)
{
    c->counters.fenced_epochs++;
    if (!c->fenced_reported) /* once per session */
        agent_log(out, AGENT_WARN, "fenced: of an older epoch, dropped",
                  "what=\"%s\" job=%" PRIu64 " epoch=%" PRIu64 " seen=%" PRIu64, what, job_id, epoch, seen);
    c->fenced_reported = true;
}

void agent_refuse_form(struct agent_core *c, const struct agent_job *j, const form_epoch *form,
                       struct agent_actions *out)
{
    Titan__Internal__EpochRefused refused = TITAN__INTERNAL__EPOCH_REFUSED__INIT;
    titan_assert(form->job_id == j->id);
    refused.job_id = j->id;
    refused.epoch = form->epoch;
    refused.seen_epoch = MAX(agent_job_accepted(j), j->record->promised_epoch);
    refused.seen_term = c->seen.term;
    refused.seen_proof = agent_term_proof(c);
    MESSAGE(m, REFUSED, refused, &refused);
    agent_send(c, &m, out);
}
