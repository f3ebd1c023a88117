/* SPDX-License-Identifier: Apache-2.0 */
/* failover_lease.c - how long an epoch may run without a coordinator. */
#include <inttypes.h>

#include "base/cleanup.h"
#include "base/mutant.h"
#include "daemon/agent/failover/failover_internal.h"

#define PAUSE_BEFORE_MS 2000 /* before the end of the lease; at most a quarter of the lease */

bool failover_coordinator_away(const struct agent_core *c, int64_t now)
{
    return c->contact && now >= agent_away_at(c);
}

/* Time at which the lease ends and the workers' epoch is revoked. */
static int64_t lease_end(const struct agent_core *c)
{
    return c->contact ? c->contact_at + (int64_t)c->leader_lease_ms : INT64_MIN;
}

int64_t failover_lease_pause(const struct agent_core *c)
{
    return c->contact ? lease_end(c) - MIN((int64_t)PAUSE_BEFORE_MS, (int64_t)c->leader_lease_ms / 4) : INT64_MIN;
}

int64_t agent_core_epoch_until(const struct agent_core *c)
{
    return c->leader_lease_ms && c->contact ? lease_end(c) : 0;
}

bool failover_can_promise(const struct agent_core *c, int64_t now)
{
    return c->leader_lease_ms && failover_coordinator_away(c, now) && now < failover_lease_pause(c);
}

/* Does an epoch with workers here have a lease? */
static bool lease_runs(const struct agent_core *c, const struct agent_job *j)
{
    return agent_core_epoch_until(c) && j->record->accepted && agent_job_has_workers(c, j->id);
}

/* Until the lease ends, the coordinator forms no epoch without this epoch's members. So no member may train longer. */
void failover_lease_tick(const struct failover *f)
{
    if (!lease_runs(f->core, f->job) || MUTANT(LEASE_IGNORED))
        return;
    titan_assert(failover_lease_pause(f->core) <= lease_end(f->core));
    /* the coordinator is back, and a paused worker waits for its command */
    if (f->now < failover_lease_pause(f->core)) {
        f->job->lease_paused = f->job->lease_revoked = false;
        return;
    }
    if (!f->job->lease_paused) {
        agent_log(f->out, AGENT_WARN, "no coordinator for the whole lease: workers pause until there is one",
                  "job=%" PRIu64 " epoch=%" PRIu64, f->job->id, agent_job_accepted(f->job));
        agent_command_pause(f->core, f->job->id, agent_job_accepted(f->job), f->out);
        f->job->lease_paused = true;
    }
    if (f->now >= lease_end(f->core) && !f->job->lease_revoked) {
        agent_command_revoke(f->core, f->job->id, agent_job_accepted(f->job), f->now, f->out);
        f->job->lease_revoked = true;
    }
}

int64_t failover_lease_deadline(const struct agent_core *c, const struct agent_job *j)
{
    if (!lease_runs(c, j) || j->lease_revoked)
        return INT64_MAX;
    return j->lease_paused ? lease_end(c) : failover_lease_pause(c);
}
