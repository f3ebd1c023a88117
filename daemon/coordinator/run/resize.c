/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/run/resize.h"

#include "daemon/coordinator/outbox/events.h"
#include "daemon/coordinator/outbox/messages.h"
#include "daemon/coordinator/outbox/transitions.h"
#include "daemon/coordinator/records/job_size.h"
#include "daemon/coordinator/run/job_clock.h"
#include "daemon/coordinator/run/job_end.h"

static uint32_t count_kept(const struct jobrec *j, enum worker_state state)
{
    uint32_t n = 0;
    for (size_t i = 0; i < j->n_workers; i++)
        n += j->workers[i]->state == state && !worker_displaced(j->workers[i]);
    return n;
}

void resize_release(struct core *c, struct jobrec *j)
{
    uint32_t kept = size_kept(j), most = size_max(j);
    for (size_t i = j->n_workers; i-- > 0;) {
        struct workrec *w = j->workers[i];
        if (w->state == WORKER_STOPPING || job_rank_slot(j, w))
            continue;
        if (worker_displaced(w)) {
            worker_stop(c, w, 0, batch_printf(c->out, "node %s is to be empty", w->node->name));
        } else if (kept > most) {
            worker_stop(c, w, 0, "the run goes on with fewer workers");
            kept--;
        }
    }
}

void resize_plan(struct core *c, struct jobrec *j)
{
    uint32_t leaving = 0, away = 0;
    const struct noderec *from = NULL; /* the node that the first leaving member is on */
    for (uint32_t i = 0; i < j->n_members; i++) {
        const struct workrec *w = j->rank_slots[i].worker;
        away += w && w->away;
        if (w && worker_displaced(w) && leaving++ == 0)
            from = w->node;
    }
    if (epoch_near_end(j) || away)
        return;
    const uint32_t most = size_max(j);
    const bool too_many = j->n_members > most;
    if (j->n_workers == j->n_members && !leaving && !too_many) { /* the common case */
        emit_job_blocked(c, j, NULL);
        return;
    }
    /* A worker that is neither a member nor needed goes at once, because it would only hold a slot. */
    bool surplus = size_kept(j) > most && !too_many;
    for (size_t i = 0; i < j->n_workers && !surplus; i++)
        surplus =
            j->workers[i]->state != WORKER_STOPPING && worker_displaced(j->workers[i]) && !job_member(j, j->workers[i]);
    if (j->n_departing == 0 && surplus)
        resize_release(c, j);
    if (!too_many && (count_kept(j, WORKER_STARTING) > 0 || (leaving && c->now.mono_ms < j->budget.replace_at)))
        return; /* starting workers are awaited, because all joiners are admitted together */

    const uint32_t world = size_world(j, count_kept(j, WORKER_READY));
    emit_job_blocked(c, j,
                     world == 0 && from ? batch_printf(c->out, "draining node %s: %u worker%s for slots elsewhere",
                                                       from->name, leaving, leaving == 1 ? " waits" : "s wait")
                                        : NULL);
    if (world == 0 || (world == j->n_members && leaving == 0) || (world < j->n_members && leaving == 0 && !too_many))
        return;
    titan_assert(j->phase == PHASE_TRAINING && j->state == JOB_RUNNING && size_world(j, world) == world);
    j->resize.begun_mono = c->now.mono_ms;
    j->resize.next_world = world;
    move_job(c, j, JOB_RESIZING,
             world == j->n_members ? batch_printf(c->out, "%u of %u workers move to other nodes", leaving, world)
                                   : batch_printf(c->out, "from %u to %u workers", j->n_members, world));
    job_clock_limit(j, c->now.mono_ms + c->options.pause_ms + (int64_t)(20 * j->progress.step_ms));
    /* Joiners get the pause too, because it names the size of the next epoch, for which they build their programs. */
    send_all(c, j, send_pause);
}

void resize_finished(struct core *c, struct jobrec *j)
{
    if (!j->resize.begun_mono)
        return;
    long long ms = c->now.mono_ms - j->resize.begun_mono;
    emit_event(c, j,
               (struct emit){.type = "resize.finished",
                             .message = batch_printf(c->out, "now %u worker%s, after %lld ms", j->n_members,
                                                     j->n_members == 1 ? "" : "s", ms),
                             .detail = batch_printf(c->out, "{\"resize_ms\":%lld,\"resume_step\":%llu,\"world\":%u}",
                                                    ms, (unsigned long long)j->source.resume_step, j->n_members)});
}

void resize_over(struct jobrec *j)
{
    j->resize.begun_mono = 0;
}
