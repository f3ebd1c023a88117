/* core_fence.c - terms, epochs and promises: what is accepted, what is refused, and the records of it (core.h). */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mutant.h"
#include "daemon/agent/core_internal.h"
#include "proto/ranges.h"

static bool same_bytes(const ProtobufCBinaryData *a, const ProtobufCBinaryData *b)
{
    return a->len == b->len && (a->len == 0 || !memcmp(a->data, b->data, a->len));
}

uint64_t agent_job_accepted(const struct ajob *j)
{
    return j->record->accepted ? j->record->accepted->epoch : 0;
}

enum fence agent_fence_form(const struct ajob *j, const form_epoch *form)
{
    const job_record *r = j->record;
    if (form->epoch < agent_job_accepted(j))
        return MUTANT(AGENT_EPOCH) ? FENCE_NEW : FENCE_OLDER;
    if (r->accepted && form->epoch == r->accepted->epoch)
        return same_bytes(&form->comm_id, &r->accepted->comm_id) ? FENCE_SAME : FENCE_OTHER;
    if (form->epoch < r->promised_epoch ||
        (form->epoch == r->promised_epoch && !same_bytes(&form->comm_id, &r->promised_id)))
        return FENCE_OTHER;
    return FENCE_NEW;
}

bool agent_fence_range(struct agent_core *c, const ProtobufCMessage *m, struct titan_error *ret_why)
{
    *ret_why = (struct titan_error){0};
    if (range_check(m, ret_why) == TITAN_OK)
        return true;
    c->counters.out_of_range++;
    return false;
}

ProtobufCBinaryData agent_term_proof(struct agent_core *c)
{
    return (ProtobufCBinaryData){c->seen.proved ? MAC_BYTES : 0, c->seen.proof};
}

/* A coordinator over another store gives another proof of the same term: the newest is kept. */
static void see_term(struct agent_core *c, uint64_t term, const ProtobufCBinaryData *proof, struct agent_actions *out)
{
    const bool proved = proof && proof->len == MAC_BYTES;
    if (term < c->seen.term ||
        (term == c->seen.term && (!proved || (c->seen.proved && mac_equal(c->seen.proof, proof->data)))))
        return;
    c->seen = (struct seen_term){.term = term, .proved = proved};
    if (proved)
        memcpy(c->seen.proof, proof->data, MAC_BYTES);
    if (!MUTANT(AGENT_TERM_UNRECORDED))
        agent_action_add(out, AGENT_RECORD_TERM)->seen = c->seen;
}

bool agent_fence_term(struct agent_core *c, uint64_t term, const ProtobufCBinaryData *proof, struct agent_actions *out)
{
    see_term(c, term, proof, out);
    if (term == c->seen.term || MUTANT(AGENT_TERM))
        return true;
    c->counters.fenced_terms++;
    if (c->ending)
        return false;
    char *why = agent_action_text(out,
                                  "the coordinator's term %" PRIu64 " is over, this node has seen %" PRIu64
                                  ": another coordinator has taken over, or its store is older than that",
                                  term, c->seen.term);
    agent_say(out, AGENT_WARN, "fenced", "reason=\"%s\"", why);
    Titan__Internal__EpochRefused refused = TITAN__INTERNAL__EPOCH_REFUSED__INIT;
    agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    refused.seen_term = c->seen.term;
    refused.seen_proof = agent_term_proof(c);
    m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_REFUSED;
    m.refused = &refused;
    agent_send(c, &m, out);
    agent_action_add(out, AGENT_END_SESSION)->text = why;
    c->ending = true;
    return false;
}

void agent_fenced_epoch(struct agent_core *c, const char *what, uint64_t job_id, uint64_t epoch, uint64_t seen,
                        struct agent_actions *out)
{
    c->counters.fenced_epochs++;
    if (!c->fenced_said) /* once for each session */
        agent_say(out, AGENT_WARN, "fenced: of an older epoch, dropped",
                  "what=\"%s\" job=%" PRIu64 " epoch=%" PRIu64 " seen=%" PRIu64, what, job_id, epoch, seen);
    c->fenced_said = true;
}

void agent_refuse_form(struct agent_core *c, const struct ajob *j, const form_epoch *form, struct agent_actions *out)
{
    Titan__Internal__EpochRefused refused = TITAN__INTERNAL__EPOCH_REFUSED__INIT;
    agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    refused.job_id = j->id;
    refused.epoch = form->epoch;
    refused.seen_epoch = MAX(agent_job_accepted(j), j->record->promised_epoch);
    refused.seen_term = c->seen.term;
    refused.seen_proof = agent_term_proof(c);
    m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_REFUSED;
    m.refused = &refused;
    agent_send(c, &m, out);
}

static void record(const struct ajob *j, struct agent_actions *out)
{
    struct agent_action *a = agent_action_add(out, AGENT_RECORD_JOB);
    a->job_id = j->id;
    a->record = agent_action_copy(out, &j->record->base);
}

static void forget_delegated(job_record *r)
{
    for (size_t i = 0; i < r->n_delegated; i++)
        titan__internal__epoch_delegated__free_unpacked(r->delegated[i], NULL);
    free(r->delegated);
    r->delegated = NULL;
    r->n_delegated = 0;
}

static void add_delegated(const struct agent_core *c, job_record *r, const char *delegate)
{
    Titan__Internal__EpochDelegated d = TITAN__INTERNAL__EPOCH_DELEGATED__INIT;
    d.epoch = r->accepted;
    d.term = c->seen.term;
    d.delegate = (char *)delegate;
    void *grown = realloc(r->delegated, (r->n_delegated + 1) * sizeof(*r->delegated));
    titan_assert(grown);
    r->delegated = grown;
    r->delegated[r->n_delegated++] = agent_message_copy(&d.base);
}

/* The accepted epoch makes room for the next. Complete, it is the one to count by; before it nothing matters any more.
 */
static void add_before(job_record *r, bool complete)
{
    for (size_t i = 0; complete && i < r->n_before; i++)
        titan__internal__form_epoch__free_unpacked(r->before[i], NULL);
    r->n_before = complete ? 0 : r->n_before;
    void *grown = realloc(r->before, (r->n_before + 1) * sizeof(*r->before));
    titan_assert(grown);
    r->before = grown;
    r->before[r->n_before++] = r->accepted;
    r->accepted = NULL;
}

void agent_job_accept(struct agent_core *c, struct ajob *j, const form_epoch *form, const char *delegate,
                      struct agent_actions *out)
{
    job_record *r = j->record;
    const bool again = r->accepted && form->epoch == r->accepted->epoch;
    if (again && (delegate || r->n_delegated == 0) && r->term == c->seen.term)
        return;
    if (!again) {
        if (r->accepted)
            add_before(r, j->complete);
        r->accepted = agent_message_copy(&form->base);
        j->complete = j->finished = j->lease_paused = j->lease_revoked = false;
        j->relay_epoch = 0;
    }
    r->term = c->seen.term;
    c->delegated_since |= delegate != NULL;
    if (delegate)
        add_delegated(c, r, delegate);
    else /* what comes from the coordinator rests on what it knows of: the delegated ones before it too */
        forget_delegated(r);
    record(j, out);
}

void agent_job_promise(struct agent_core *c, struct ajob *j, const form_epoch *form, struct agent_actions *out)
{
    job_record *r = j->record;
    if (r->promised_epoch == form->epoch && same_bytes(&r->promised_id, &form->comm_id))
        return;
    free(r->promised_id.data);
    r->promised_id.data = malloc(form->comm_id.len + 1);
    titan_assert(r->promised_id.data);
    memcpy(r->promised_id.data, form->comm_id.data, form->comm_id.len);
    r->promised_id.len = form->comm_id.len;
    r->promised_epoch = form->epoch;
    r->term = c->seen.term;
    c->counters.promises++;
    if (!MUTANT(PROMISE_UNRECORDED))
        record(j, out);
}
