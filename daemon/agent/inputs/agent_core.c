/* SPDX-License-Identifier: Apache-2.0 */
/* agent_core.c - the core's lifetime, time and queries; see agent_core.h for its parts. */
#include "daemon/agent/agent_core.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/agent/failover/failover.h"
#include "daemon/agent/inputs/inputs.h"

titan_status agent_core_new(const struct agent_core_options *o, struct agent_core **ret, struct titan_error *err)
{
    struct agent_core *c = calloc(1, sizeof(*c));
    if (!c)
        return titan_fail(err, TITAN_ENOMEM, "no memory for the agent");
    c->options = *o;
    c->node = agent_text_copy(o->node);
    c->device = agent_text_copy(o->device);
    c->address = agent_text_copy(o->address);
    c->version = agent_text_copy(o->version);
    c->coordinator = o->coordinator ? agent_text_copy(o->coordinator) : NULL;
    c->datagram_at = INT64_MIN;
    c->drop_failover = failover_drop;
    c->options.hang_floor_ms = o->hang_floor_ms ? o->hang_floor_ms : 300;
    c->options.hang_unknown_ms = o->hang_unknown_ms ? o->hang_unknown_ms : 10000;
    c->options.revoke_ms = o->revoke_ms ? o->revoke_ms : 1000;
    c->heartbeat_ms = HEARTBEAT_MS;
    c->away_ms = o->away_ms ? o->away_ms : AWAY_MS;
    c->leader_lease_ms = o->leader_lease_ms;
    *ret = c;
    return TITAN_OK;
}

void agent_core_coordinator_at(struct agent_core *c, const char *address)
{
    titan_assert(!c->up);
    if (!c->coordinator)
        return;
    free(c->coordinator);
    c->coordinator = agent_text_copy(address);
}

void agent_core_free(struct agent_core *c)
{
    if (!c)
        return;
    for (struct agent_worker *w = c->workers, *next; w; w = next) {
        next = w->next;
        agent_worker_free(w);
    }
    for (struct agent_job *j = c->jobs, *next; j; j = next) {
        next = j->next;
        agent_job_free(c, j);
    }
    for (struct report *r = c->reports, *next; r; r = next) {
        next = r->next;
        free(r);
    }
    agent_probes_drop(c);
    for (size_t i = 0; i < MIN(c->n_ended, (size_t)ENDED_KEPT); i++)
        titan__internal__agent_message__free_unpacked(c->ended[i].report, NULL);
    agent_forms_drop(c);
    if (c->gpus)
        titan__internal__node_gpus__free_unpacked(c->gpus, NULL);
    free(c->held);
    free(c->node);
    free(c->device);
    free(c->address);
    free(c->version);
    free(c->coordinator);
    free(c);
}

void agent_core_tick(struct agent_core *c, int64_t now, struct agent_actions *out)
{
    /* The agent stood still, most likely with the whole machine. Messages that workers and other agents sent meanwhile
     * are unread. */
    const int64_t late = now - MAX(c->ticked_at, agent_core_deadline(c));
    if (late > 0) {
        agent_revoke_shift(c, late);
        failover_shift(c, late);
    }
    c->ticked_at = now;
    agent_heartbeat_tick(c, now, out);
    agent_revoke_tick(c, now, out);
    agent_probes_tick(c, now, out);
    failover_tick(c, now, out);
}

int64_t agent_core_deadline(const struct agent_core *c)
{
    const int64_t due = MIN(agent_heartbeat_deadline(c), agent_revoke_deadline(c));
    return MIN(due, MIN(agent_probes_deadline(c), failover_deadline(c)));
}

void agent_core_drain(struct agent_core *c, bool quiet)
{
    c->draining = true;
    c->quiet = quiet;
    for (struct agent_worker *w = c->workers; w; w = w->next)
        if (w->end == END_BY_ITSELF)
            w->end = END_ASKED;
}

uint64_t agent_core_term(const struct agent_core *c)
{
    return c->seen.term;
}

const struct agent_counters *agent_core_counters(const struct agent_core *c)
{
    return &c->counters;
}
