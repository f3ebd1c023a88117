/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/cluster/fencing.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/mutant.h"
#include "daemon/coordinator/outbox/events.h"
#include "daemon/common/proof.h"

#define SAID_ONCE_MS 60000 /* least time between log lines about the same refusal of one node */

static const char *fence_words(const struct core *c, char *text, size_t size)
{
    (void)snprintf(
        text, size,
        "this coordinator is fenced: its term is %llu, and node %s has obeyed one of term %llu; its store is "
        "an old backup, or another coordinator has taken over",
        (unsigned long long)c->options.term, c->fenced_by, (unsigned long long)c->fenced_term);
    return text;
}

bool core_fenced(const struct core *c)
{
    return c->fenced_term != 0;
}

titan_status core_accepts(const struct core *c, struct titan_error *err)
{
    char words[480];
    if (!core_fenced(c))
        return TITAN_OK;
    titan_status status = titan_fail(err, TITAN_EUNREACHABLE, "%s", fence_words(c, words, sizeof(words)));
    if (err)
        titan_error_hint(err,
                         "if this is the right one: titanctl admin restore gives its store a term above all nodes'");
    return status;
}

/* The agent is refused, because nothing proves that it has seen a term of this store. Other agents are served. */
static titan_status unproved(struct core *c, uint64_t term, const char *node, struct titan_error *err)
{
    c->counters.term_unproved++;
    const char *words =
        batch_printf(c->out,
                     "node %s tells of a coordinator of term %" PRIu64 ", this one's is %" PRIu64
                     ", and has no proof that the other ran on this job store: the node is of another cluster, or this "
                     "store was made anew in the place of a lost one",
                     node, term, c->options.term);
    if (!c->term_reported || c->now.mono_ms - c->term_reported >= SAID_ONCE_MS) {
        c->term_reported = c->now.mono_ms;
        emit_event(c, NULL,
                   (struct emit){.type = "report.refused",
                                 .message = words,
                                 .detail = batch_printf(c->out, "{\"term\":%" PRIu64 ",\"seen_term\":%" PRIu64 "}",
                                                        c->options.term, term)});
    }
    titan_status status = titan_fail(err, TITAN_EPERM, "%s", words);
    if (err)
        titan_error_hint(err, "when no worker of that cluster runs on the node any more, delete run/term in its state "
                              "directory and start its titand again");
    return status;
}

static bool reported_lately(const struct core *c, struct noderec *n)
{
    if (n->reported_mono && c->now.mono_ms - n->reported_mono < SAID_ONCE_MS)
        return true;
    n->reported_mono = c->now.mono_ms;
    return false;
}

titan_status fence_range(struct core *c, struct noderec *n, const Titan__Internal__AgentMessage *m,
                         struct titan_error *err)
{
    struct titan_error why = {0};
    if (MUTANT(RANGES_UNCHECKED) || range_check(&m->base, &why) == TITAN_OK)
        return TITAN_OK;
    c->counters.out_of_range++;
    if (n && !reported_lately(c, n)) {
        struct emit refused = {
            .type = "report.refused", .message = batch_printf(c->out, "node %s: %s", n->name, why.msg), .node = n};
        emit_event(c, NULL, refused);
    }
    return titan_fail(err, TITAN_EINVAL, "node %s: %s", n ? n->name : "(not registered)", why.msg);
}

titan_status fence_message(struct core *c, const char *node, const Titan__Internal__AgentMessage *m, bool *ret_drop,
                           struct titan_error *err)
{
    const bool registration = m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_REGISTRATION;
    ProtobufCBinaryData proof = {0};
    uint64_t seen = m->term; /* the highest term that the sender knows */
    if (registration) {
        seen = MAX(seen, m->registration->seen_term);
        proof = m->registration->seen_proof;
    } else if (m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_REFUSED) {
        seen = MAX(seen, m->refused->seen_term);
        proof = m->refused->seen_proof;
    }
    *ret_drop = false;
    if (seen > c->options.term) {
        uint8_t right[MAC_BYTES];
        proof_term(c->term_secret, seen, right);
        if ((proof.len != sizeof(right) || !mac_equal(right, proof.data)) && !MUTANT(TERM_UNPROVED))
            return unproved(c, seen, node, err);
    }
    if (seen > c->options.term && !MUTANT(COORD_UNFENCED)) {
        char words[480];
        c->fenced_term = seen;
        core_set_string(&c->fenced_by, node);
        emit_event(
            c, NULL,
            (struct emit){.type = "coordinator.fenced",
                          .message = batch_strdup(c->out, fence_words(c, words, sizeof(words))),
                          .detail = batch_printf(c->out, "{\"term\":%llu,\"seen_term\":%llu}",
                                                 (unsigned long long)c->options.term, (unsigned long long)seen)});
        return core_accepts(c, err);
    }
    /* A registration reports earlier terms; every other message is meant for one coordinator only. */
    if (!registration && m->term && m->term < c->options.term) {
        c->counters.old_term++;
        *ret_drop = true;
    }
    return TITAN_OK;
}

static bool installations_known(const struct noderec *n, const Titan__Internal__AgentRegistration *m)
{
    static const uint8_t unknown[NODE_INSTALLATION];
    return m->installation.len == NODE_INSTALLATION && memcmp(n->installation, unknown, NODE_INSTALLATION) != 0;
}

static bool same_installation(const struct noderec *n, const Titan__Internal__AgentRegistration *m)
{
    return installations_known(n, m) && memcmp(n->installation, m->installation.data, NODE_INSTALLATION) == 0;
}

bool fence_replaces(const struct noderec *n, const Titan__Internal__AgentRegistration *m)
{
    const bool elsewhere = *n->address && strcmp(n->address, m->address) != 0;
    return n->incarnation != m->incarnation && !same_installation(n, m) && (elsewhere || installations_known(n, m));
}

titan_status fence_name(struct core *c, const struct noderec *n, const Titan__Internal__AgentRegistration *m,
                        const char *identity, bool has_worker, struct titan_error *err)
{
    const bool thief = *n->identity && strcmp(n->identity, identity) != 0 && !MUTANT(IDENTITY_THEFT);
    const bool moved = n->incarnation != m->incarnation && strcmp(n->address, m->address) != 0;
    /* The name is also kept while an agent from before our start is awaited, because the agent that registers first may
     * be another agent. */
    const bool alive = n->state == NODE_READY && c->now.mono_ms - n->seen_mono < c->options.suspect_ms + n->slack_ms;
    /* The agent at the old address may go on without us until its lease ends. A namesake would make us believe that the
     * old agent's workers are gone. */
    const int64_t lease = c->options.leader_lease_ms, silent = c->now.mono_ms - n->answered_mono;
    const int64_t left = lease && !n->given_up ? lease + lease / 20 + 500 - silent : 0;
    const bool itself = same_installation(n, m) && !(alive && n->session);
    const bool empty = !alive && (!has_worker || MUTANT(MOVED_WITH_WORKERS));
    if ((!thief && (!moved || itself || empty)) || (!alive && left <= 0) || MUTANT(NAME_THEFT))
        return TITAN_OK;
    char then[32], over[32];
    const char *address = *n->address ? n->address : "another place";
    c->counters.name_taken++;
    if (alive || thief)
        titan_fail(err, TITAN_EEXIST, "registration from %s: the name '%s' is taken by the node at %s%s",
                   *m->address ? m->address : "somewhere", m->node, address,
                   alive ? ", which is alive" : ", which registered with another certificate");
    else
        titan_fail(err, TITAN_EEXIST,
                   "registration from %s: node %s was at %s until %s, and its workers may train there until %s",
                   *m->address ? m->address : "somewhere", m->node, address,
                   clock_format(c->now.wall_ms - silent, then), clock_format(c->now.wall_ms + left, over));
    if (err && (alive || thief))
        titan_error_hint(err, "give one of the two another name (agent.node in its titand.toml, or --node)");
    else if (err)
        titan_error_hint(err,
                         "it is taken then; titanctl node forget %s ends the wait, when its workers at %s are gone for "
                         "certain",
                         m->node, address);
    return TITAN_EEXIST;
}

void fence_unknown_worker(struct core *c, struct noderec *n, const struct subject *about)
{
    c->counters.unknown_worker++;
    if (reported_lately(c, n))
        return;
    emit_event(
        c, NULL,
        (struct emit){.type = "report.refused",
                      .message = batch_printf(c->out, "node %s reports of worker %llu of job %llu, which is not there",
                                              n->name, (unsigned long long)about->worker_id,
                                              (unsigned long long)about->job_id),
                      .node = n,
                      .detail = batch_printf(c->out, "{\"job\":%llu,\"worker\":%llu}",
                                             (unsigned long long)about->job_id, (unsigned long long)about->worker_id)});
}

static void add_increase(uint64_t *counter, uint64_t *seen, uint64_t now)
{
    *counter += now - MIN(*seen, now);
    *seen = MAX(*seen, now);
}

void fence_refusals(struct core *c, struct noderec *n, const Titan__Internal__AgentHeartbeat *m)
{
    add_increase(&c->counters.agents_old_term, &n->refusals.old_terms, m->old_terms);
    add_increase(&c->counters.agents_old_epoch, &n->refusals.old_epochs, m->old_epochs);
    add_increase(&c->counters.agents_other_epoch, &n->refusals.other_epochs, m->other_epochs);
    add_increase(&c->counters.agents_imposter, &n->refusals.forged, m->forged);
    add_increase(&c->counters.agents_unproved, &n->refusals.unproved, m->unproved);
    add_increase(&c->counters.agents_out_of_range, &n->refusals.out_of_range, m->out_of_range);
}

void core_session_opened(struct core *c, uint64_t session, const char *identity)
{
    struct greeting *g = core_alloc(sizeof(*g));
    g->session = session;
    g->identity = core_strdup(identity);
    g->next = c->greetings;
    c->greetings = g;
}

void fence_revoke(struct core *c, const char *identity)
{
    if (MUTANT(AUTHORITY_REMEMBERED))
        return;
    for (struct greeting *g = c->greetings; g; g = g->next)
        if (g->identity && strcmp(g->identity, identity) == 0) {
            free(g->identity);
            g->identity = NULL;
        }
}

char *fence_take_identity(struct core *c, uint64_t session)
{
    struct greeting **at = &c->greetings, *g;
    while (*at && (*at)->session != session)
        at = &(*at)->next;
    if (!(g = *at))
        return core_strdup("");
    char *identity = g->identity;
    *at = g->next;
    free(g);
    return identity;
}

void fence_implausible(struct core *c, struct noderec *n, uint64_t job_id, const char *words)
{
    c->counters.implausible++;
    if (reported_lately(c, n))
        return;
    emit_event(
        c, NULL,
        (struct emit){.type = "report.refused",
                      .message = batch_printf(c->out, "node %s about job %" PRIu64 ": %s", n->name, job_id, words),
                      .node = n,
                      .detail = batch_printf(c->out, "{\"job\":%" PRIu64 "}", job_id)});
}
