/* SPDX-License-Identifier: Apache-2.0 */
/* agent_core_check.c - the core's invariants between two inputs. */
#include <string.h>

#include "base/cleanup.h"
#include "daemon/agent/core/agent_core_internal.h"
#include "daemon/agent/failover/failover.h"
#include "proto/ranges.h"

bool agent_core_check(const struct agent_core *c)
{
    titan_assert(c->node && *c->node);
    titan_assert(c->up || !c->registered);
    titan_assert(c->up || !c->ending);
    titan_assert(!c->up || c->sessions > 0);
    titan_assert(!c->up || !c->answered || c->registered);
    titan_assert(!c->registered || c->contact);
    titan_assert(c->session_term <= c->seen.term);
    titan_assert(c->session_keys.n <= 2);
    titan_assert(c->heartbeat_ms > 0 && c->away_ms > 0);
    titan_assert(!c->promised_ms || (c->up && !c->workers)); /* a node with workers promises nothing */
    titan_assert(c->heartbeat == 0 || c->heartbeats[c->heartbeat % HEARTBEATS_KEPT].number == c->heartbeat);
    titan_assert(c->n_held == 0 || c->registered);
    for (size_t i = 0; i < c->n_held; i++)
        titan_assert(c->held[i]);
    titan_assert(!c->probes || c->up);
    for (const struct probe *p = c->probes; p; p = p->next) {
        titan_assert(p->node && p->address);
        titan_assert(p->sent > 0 && p->keys.n <= 1);
    }

    /* In an acknowledged session all reports have been sent. Otherwise no report has been sent. */
    size_t n = 0;
    const struct report *last = NULL;
    for (const struct report *r = c->reports; r; last = r, r = r->next, n++) {
        titan_assert(r->len > 0);
        titan_assert(r->sent == c->registered);
    }
    titan_assert(n == c->n_reports);
    titan_assert(last == c->reports_last);
    for (size_t i = 0; i < MIN(c->n_ended, (size_t)ENDED_KEPT); i++) {
        const agent_message *m = c->ended[i].report;
        titan_assert(m && m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_WORKER_EXITED);
        titan_assert(m->worker_exited->worker_id == c->ended[i].worker_id);
        titan_assert(m->worker_exited->job_id == c->ended[i].job_id);
    }

    for (const struct agent_worker *w = c->workers; w; w = w->next) {
        titan_assert(agent_worker_find(c, w->id) == w); /* no duplicates */
        titan_assert(agent_sample_legal(&w->sample));
        titan_assert(w->commanded_epoch <= RANGE_EPOCH_MAX);
        titan_assert(memchr(w->address, '\0', sizeof(w->address)));
        titan_assert(!w->fault || w->killed);
        titan_assert(w->end != END_HUNG || w->killed);
        titan_assert(!w->revoked_epoch || w->revoked_epoch >= w->sample.epoch);
        titan_assert(!w->quiesced || (w->quiesced->worker_id == w->id && w->quiesced->job_id == w->job_id));
        titan_assert(w->step_time.busy_ms >= 0);
        titan_assert(w->step_time.epoch != w->sample.epoch || w->step_time.step <= w->sample.step);
        titan_assert(!w->step_time.straggles || w->step_time.busy_ms > 0);
        for (size_t i = 0; i < MIN(c->n_ended, (size_t)ENDED_KEPT); i++)
            titan_assert(c->ended[i].worker_id != w->id);
    }

    for (const struct agent_job *j = c->jobs; j; j = j->next) {
        const job_record *r = j->record;
        const uint64_t accepted = agent_job_accepted(j);
        titan_assert(agent_job_find(c, j->id) == j); /* no duplicates */
        titan_assert(r && r->job_id == j->id);
        titan_assert(!r->accepted || r->accepted->job_id == j->id);
        titan_assert(!j->complete || accepted);
        titan_assert(j->checkpoint || j->checkpoint_step == 0);
        titan_assert(!j->lease_revoked || j->lease_paused);
        titan_assert(j->checked_epoch <= accepted);
        titan_assert(!j->relay_epoch || (j->relay_epoch >= accepted && j->relay_epoch < r->promised_epoch));
        titan_assert(!j->relay_epoch || j->relay_to[0]);
        if (j->failover)
            failover_check(c, j);
    }
    return true;
}
