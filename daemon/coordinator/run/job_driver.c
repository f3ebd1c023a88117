/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/run/job_driver.h"

#include "base/cleanup.h"
#include "daemon/coordinator/outbox/messages.h"
#include "daemon/coordinator/outbox/transitions.h"
#include "daemon/coordinator/records/job_table.h"
#include "daemon/coordinator/records/phase.h"
#include "daemon/coordinator/run/checkpoints.h"
#include "daemon/coordinator/run/epoch_forming.h"
#include "daemon/coordinator/run/growth.h"
#include "daemon/coordinator/run/job_clock.h"
#include "daemon/coordinator/run/job_end.h"
#include "daemon/coordinator/run/job_view.h"
#include "daemon/coordinator/run/kept_epochs.h"
#include "daemon/coordinator/run/quorum.h"
#include "daemon/coordinator/run/recovery.h"
#include "daemon/coordinator/run/requeue.h"
#include "daemon/coordinator/run/resize.h"
#include "daemon/coordinator/run/worker_end.h"

#define FINISH_GRACE_MS 10000 /* time for a finished worker to exit by itself */
#define SAVE_MS 1000          /* longest time between stores of a running job's status */

static bool any_lost(const struct core *c, const struct jobrec *j)
{
    const uint32_t n = j->n_members + j->n_departing;
    /* After a restore only the members decide whether the epoch runs, because departing workers may have gone long
     * ago. */
    const uint32_t needed = c->stale ? j->n_members : n;
    for (uint32_t i = 0; i < needed; i++)
        if (!j->rank_slots[i].worker && !j->rank_slots[i].finished)
            return true;
    for (uint32_t i = 0; i < n; i++) {
        const struct workrec *w = j->rank_slots[i].worker;
        if (w && !j->rank_slots[i].finished &&
            (w->state == WORKER_STOPPING || (w->away && c->now.mono_ms >= j->quorum.adopt_until)))
            return true;
    }
    return false;
}

/* All steps are done: the workers exit. */
static void finish(struct core *c, struct jobrec *j)
{
    move_phase(j, PHASE_FINISHING);
    job_end_because(j, FINISH_GRACE_MS, NULL);
    if (epoch_live(j))
        move_epoch(c, j, EPOCH_ENDED, "all steps are done");
    job_stop_all(c, j, FINISH_GRACE_MS, "all steps are done");
    if (j->n_workers == 0)
        job_end(c, j, JOB_COMPLETED, "");
}

/* Reason of a cancelled job: where the requested last checkpoint is, or why there is none and steps are lost. The
 * reason also names the workers that no agent could stop. */
static const char *cancelled_words(struct core *c, const struct jobrec *j)
{
    const struct noderec *node = NULL;
    const uint32_t unheard = kept_unheard(j, &node);
    const char *words = checkpoints_lost(c, j, j->must_checkpoint);
    if (!words && j->must_checkpoint && j->n_ckpts)
        words =
            batch_printf(c->out, "checkpoint of step %llu: %s", (unsigned long long)j->ckpts[0].step, j->ckpts[0].path);
    words = words ? batch_printf(c->out, "%s; %s", j->stop.why, words) : batch_strdup(c->out, j->stop.why);
    if (unheard == 0)
        return words;
    return batch_printf(c->out, "%s; %u worker%s may run on until the lease is over: node %s does not answer", words,
                        unheard, unheard == 1 ? "" : "s", node->name);
}

void job_advance(struct core *c, struct jobrec *j)
{
    if (phase_stops(j))
        quorum_end_away(c, j, NULL); /* the job stops: no decision follows that the away workers could block */
    requeue_advance(c, j);
    switch (j->phase) {
    case PHASE_NONE:
        titan_assert(!"a job without a phase");
        break;
    case PHASE_QUEUED:
    case PHASE_REQUEUEING:
        break; /* the job waits until it may stop, or until its workers exit */
    case PHASE_TRAINING:
    case PHASE_PAUSING:
        if (epoch_done(j)) {
            finish(c, j);
            break;
        }
        if (j->broken || any_lost(c, j))
            epoch_revoke(c, j, any_lost(c, j) ? "a worker is lost" : "a member left the epoch");
        if (j->phase == PHASE_TRAINING) {
            grow_job(c, j); /* joiners come before departing workers go */
            if (j->state == JOB_RUNNING && !c->stale)
                resize_plan(c, j);
            break;
        }
        /* fallthrough */
    case PHASE_ASSEMBLING:
        if (epoch_leaving(j) && j->n_ckpts && j->ckpts[0].step >= j->spec.steps) {
            finish(c, j);
            break;
        }
        epoch_try_form(c, j);
        if (!phase_ends(j))
            grow_job(c, j);
        break;
    case PHASE_FINISHING:
        if (j->n_workers == 0)
            job_end(c, j, JOB_COMPLETED, "");
        break;
    case PHASE_CANCELLING:
        if (j->n_workers == 0)
            job_end(c, j, JOB_CANCELLED, cancelled_words(c, j));
        break;
    case PHASE_ENDED:
        break;
    }
    if (j->phase == PHASE_ENDED && j->n_workers == 0) {
        job_view_keep(c, j);
        core_forget(c, j);
    }
}

void job_received(struct core *c, struct jobrec *j)
{
    if (j->n_workers > c->options.at_once)
        core_later(c);
    else
        job_advance(c, j);
}

void job_driver_look_again(struct core *c, const struct noderec *n)
{
    for (struct jobrec *j = c->active, *next; j; j = next) {
        next = j->next;
        if (job_on_node(j, n))
            job_received(c, j);
    }
    c->slots_changed = true;
}

void job_resend(struct core *c, struct jobrec *j, struct noderec *n)
{
    bool form_again = false, here = false;
    for (size_t i = 0; i < j->n_workers; i++) {
        struct workrec *w = j->workers[i];
        if (w->node != n)
            continue;
        if (w->state == WORKER_STOPPING) {
            bool grace = phase_stops(j) && j->phase != PHASE_ENDED && w->deadline > c->now.mono_ms;
            send_stop(c, n->session, j->id, w->id, grace ? j->stop.grace_ms : 0, "told before");
        } else if (job_rank_slot(j, w)) {
            here = true;
            form_again |= !w->missing && w->epoch < j->status.epoch;
        }
    }
    if (!here || phase_ends(j))
        return;
    if (j->epoch_state == EPOCH_FORMING && form_again && j->source.epoch && j->source.n_holders == 0) {
        /* agents formed the epoch, and the store lacks its source's members, so the epoch cannot be sent */
        epoch_failed(j, true);
    } else if (j->epoch_state == EPOCH_FORMING && form_again) {
        send_form(c, j, n);
        for (size_t i = 0; i < j->n_workers; i++)
            if (j->workers[i]->node == n && job_rank_slot(j, j->workers[i]))
                worker_knows(j->workers[i], j->status.epoch);
    }
    if (j->epoch_state == EPOCH_REVOKED)
        send_revoke(c, j, n);
    else if (epoch_leaving(j))
        send_pause(c, j, n);
}

void job_tick(struct core *c, struct jobrec *j)
{
    int64_t now = c->now.mono_ms;
    worker_deadlines(c, j);
    if (!job_final(j) && now >= j->clock.epoch_deadline) {
        job_clock_limit(j, INT64_MAX);
        if (epoch_leaving(j))
            epoch_exclude_laggards(c, j);
        else if (epoch_live(j)) {
            epoch_failed(j, false);
            job_clock_missed(j);
        }
    }
    if (!job_final(j) && now >= j->clock.starve_at) {
        job_clock_starves(j, INT64_MAX);
        job_stop_all(c, j, 0, "too few workers for too long; others may have the slots");
    }
    if (j->state == JOB_RUNNING && j->progress.unsaved && now - j->progress.saved_mono >= SAVE_MS)
        store_status(c, j);
    recovery_finish(c, j);
    job_advance(c, j);
}

int64_t job_deadline(const struct jobrec *j, int64_t now)
{
    int64_t at = INT64_MAX;
    for (size_t i = 0; i < j->n_workers; i++) {
        const struct workrec *w = j->workers[i];
        if (w->missing)
            at = MIN(at, w->missing);
        else if (w->state != WORKER_READY)
            at = MIN(at, w->deadline);
    }
    if (job_final(j))
        return at;
    at = MIN(at, MIN(j->clock.epoch_deadline, j->clock.starve_at));
    if (j->quorum.at > now) /* a time in the past may no longer matter */
        at = MIN(at, j->quorum.at);
    if (j->quorum.adopt_until > now)
        at = MIN(at, j->quorum.adopt_until);
    if (j->budget.replace_at > now)
        at = MIN(at, j->budget.replace_at);
    if (j->state == JOB_RUNNING && j->progress.unsaved)
        at = MIN(at, j->progress.saved_mono + SAVE_MS);
    return at;
}
