/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/inputs/input.h"

#include "base/cleanup.h"
#include "daemon/coordinator/cluster/failure_detector.h"
#include "daemon/coordinator/inputs/core_check.h"
#include "daemon/coordinator/run/job_clock.h"
#include "daemon/coordinator/run/job_end.h"
#include "daemon/coordinator/sched/placement.h"

uint32_t core_tick_ms(const struct core *c)
{
    return c->due.calm ? MAX(c->options.idle_heartbeat_ms, c->options.heartbeat_ms) : c->options.heartbeat_ms;
}

void core_moves(struct core *c, struct core_time now)
{
    /* When this process itself stood still (stopped, starved), silence proves nothing about the nodes. */
    const int64_t since = c->last_input ? now.mono_ms - c->last_input : 0, usual = 2 * (int64_t)core_tick_ms(c);
    const int64_t stall = since - usual;
    if (stall > 0)
        detector_shift(c, stall);
    const int64_t unanswerable = now.held_ms > usual ? since : stall; /* unsent messages get no answer */
    for (struct jobrec *j = c->active; j && unanswerable > 0; j = j->next) {
        job_clock_shift(j, unanswerable);
        for (size_t i = 0; i < j->n_workers; i++)
            if (j->workers[i]->state == WORKER_STARTING)
                worker_grant(j->workers[i], unanswerable);
    }
    /* Shifted times make up for a short standstill. After a long standstill, heartbeats and probes' answers still lie
     * in queues. */
    if (stall >= (int64_t)c->options.suspect_ms)
        c->late_mono = now.mono_ms;
    if (!c->last_input)
        c->stale_since = now.mono_ms;
    c->last_input = now.mono_ms;
    c->now = now;
}

void core_begin(struct core *c, struct core_time now, struct batch *out)
{
    core_moves(c, now);
    c->out = out;
    c->form_sent = NULL;
    c->due = (struct due){0};
    out->term = c->options.term;
}

void core_finish(struct core *c)
{
    if (c->connected <= c->options.at_once)
        sched_settle(c);
    else {
        if (c->slots_changed && !c->stale)
            core_later(c);
    }
    c->out = NULL;
    CHECK_CORE(c);
}
