/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/run/job_clock.h"

#include "base/cleanup.h"

#define FORM_AGAIN_MS 5000    /* least time to form an epoch with its state in memory */
#define QUIESCE_MORE_MS 10000 /* limit on the step time that is added to the time for leaving an epoch */

/* A worker checks for a revoke only between actions, and a step has many. */
int64_t job_clock_quiesce_ms(const struct core *c, const struct jobrec *j)
{
    titan_assert(j->progress.step_ms >= 0);
    return c->options.quiesce_ms + MIN((int64_t)j->progress.step_ms, (int64_t)QUIESCE_MORE_MS);
}

/* Time until the first step. An epoch with state from memory gets as much time as earlier epochs took. An epoch that
 * has to fall back further misses this time. The next epoch then gets the time of a first epoch. */
int64_t job_clock_form_ms(const struct core *c, const struct jobrec *j)
{
    int64_t steps = (int64_t)(20 * j->progress.step_ms), limit = c->options.form_ms;
    if (j->source.kind == TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY && j->clock.state_took && !j->clock.patient)
        limit = MIN(limit, MAX((int64_t)FORM_AGAIN_MS, 4 * j->clock.state_took));
    return limit + steps;
}

void job_clock_moved_on(struct core *c, struct jobrec *j)
{
    if (j->state == JOB_RESIZING || j->epoch_state != EPOCH_RUNNING)
        return; /* something else sets its deadline */
    /* The last checkpoint follows the last step, and may take long. */
    int64_t patience = j->status.step < j->spec.steps ? c->options.stall_ms : 10 * (int64_t)c->options.stall_ms;
    j->clock.epoch_deadline = c->now.mono_ms + patience + (int64_t)(50 * j->progress.step_ms);
}

void job_clock_tries(struct core *c, struct jobrec *j)
{
    if (j->epoch_state == EPOCH_FORMING && j->clock.epoch_deadline != INT64_MAX)
        j->clock.epoch_deadline = MAX(j->clock.epoch_deadline, c->now.mono_ms + job_clock_form_ms(c, j));
    else
        job_clock_moved_on(c, j);
}

void job_clock_limit(struct jobrec *j, int64_t at)
{
    j->clock.epoch_deadline = at;
}

void job_clock_shift(struct jobrec *j, int64_t ms)
{
    titan_assert(ms > 0);
    if (j->clock.epoch_deadline != INT64_MAX)
        j->clock.epoch_deadline += ms;
}

void job_clock_starves(struct jobrec *j, int64_t at)
{
    j->clock.starve_at = at;
}

void job_clock_formed(const struct core *c, struct jobrec *j)
{
    titan_assert(j->epoch_state == EPOCH_FORMING || j->epoch_state == EPOCH_NONE);
    j->clock.starve_at = INT64_MAX;
    j->clock.epoch_deadline = c->now.mono_ms + job_clock_form_ms(c, j);
    j->clock.formed_mono = c->now.mono_ms;
}

void job_clock_taken(const struct core *c, struct jobrec *j)
{
    j->clock.starve_at = INT64_MAX;
    j->clock.epoch_deadline = c->now.mono_ms + c->options.adopt_ms + c->options.form_ms;
    j->clock.formed_mono = 0;
}

void job_clock_state_ready(const struct core *c, struct jobrec *j)
{
    j->clock.state_took = MAX(j->clock.state_took, c->now.mono_ms - j->recovery.formed);
}

void job_clock_missed(struct jobrec *j)
{
    j->clock.patient = true;
}

void job_clock_stepped(struct jobrec *j)
{
    j->clock.patient = false;
}
