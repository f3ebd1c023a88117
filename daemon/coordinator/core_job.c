/* What a job does next. job_advance() looks at the whole state of the job, not at what has just happened, so it does
 * the right thing whatever was lost, repeated or restored before it. */
#include "daemon/coordinator/core_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mutant.h"
#include "base/rng.h"

#define FINISH_GRACE_MS 10000 /* for a worker that is done to exit by itself */
#define SAVE_MS 1000          /* a running job's status is stored at least this often */

bool job_final(const struct jobrec *j)
{
    return sm_final(&job_sm, (int)j->state);
}

/* Where it is or would be in id order. */
static size_t worker_at(const struct jobrec *j, uint64_t id)
{
    size_t lo = 0, hi = j->n_workers;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (j->workers[mid]->id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

struct workrec *job_worker(const struct jobrec *j, uint64_t id)
{
    size_t at = worker_at(j, id);
    return at < j->n_workers && j->workers[at]->id == id ? j->workers[at] : NULL;
}

/* What it remembers of its place may be of seats that are no more. */
struct seat *job_seat(struct jobrec *j, const struct workrec *w)
{
    bool its = w->seat > 0 && w->seat <= j->n_seats + j->n_leavers && j->seats[w->seat - 1].worker == w;
    return its ? &j->seats[w->seat - 1] : NULL;
}

void job_new_seats(struct jobrec *j, uint32_t members, uint32_t leavers)
{
    free(j->seats);
    j->seats = core_alloc((members + leavers + 1) * sizeof(*j->seats));
    j->n_seats = members;
    j->n_leavers = leavers;
}

void job_set_seat(struct jobrec *j, uint32_t at, uint64_t worker_id, struct workrec *w)
{
    if (w && job_seat(j, w))
        w = NULL;
    j->seats[at] = (struct seat){.worker_id = worker_id, .worker = w};
    if (w)
        w->seat = at + 1;
}

void job_falls_back(struct jobrec *j, uint64_t step)
{
    j->status.step = step;
    j->metric_step = MIN(j->metric_step, step);
}

bool job_member(struct jobrec *j, const struct workrec *w)
{
    const struct seat *seat = job_seat(j, w);
    return seat && seat < j->seats + j->n_seats;
}

void job_add_worker(struct jobrec *j, struct workrec *w)
{
    if (j->n_workers == j->cap_workers) {
        j->cap_workers = j->cap_workers ? 2 * j->cap_workers : 4;
        j->workers = realloc(j->workers, j->cap_workers * sizeof(*j->workers));
        titan_assert(j->workers);
    }
    const size_t at = worker_at(j, w->id);
    titan_assert(at == j->n_workers || j->workers[at]->id != w->id);
    memmove(&j->workers[at + 1], &j->workers[at], (j->n_workers - at) * sizeof(*j->workers));
    j->workers[at] = w;
    j->n_workers++;
}

void job_remove_worker(struct jobrec *j, const struct workrec *w)
{
    size_t at = worker_at(j, w->id);
    titan_assert(at < j->n_workers && j->workers[at] == w);
    memmove(&j->workers[at], &j->workers[at + 1], (j->n_workers - at - 1) * sizeof(*j->workers));
    j->n_workers--;
}

uint32_t job_staying(const struct jobrec *j)
{
    uint32_t n = 0;
    for (size_t i = 0; i < j->n_workers; i++)
        n += j->workers[i]->state != WORKER_STOPPING;
    return n;
}

size_t job_count_workers(const struct jobrec *j, enum worker_state state)
{
    size_t n = 0;
    for (size_t i = 0; i < j->n_workers; i++)
        n += j->workers[i]->state == state;
    return n;
}

void job_stop_all(struct core *c, struct jobrec *j, uint32_t grace_ms, const char *reason)
{
    for (size_t i = 0; i < j->n_workers; i++)
        if (j->workers[i]->state != WORKER_STOPPING && !(MUTANT(CANCEL_LEAVES) && i == 0))
            worker_stop(c, j->workers[i], grace_ms, reason);
}

static void end_job(struct core *c, struct jobrec *j, enum job_state to, const char *reason)
{
    if (epoch_live(j))
        move_epoch(c, j, to == JOB_FAILED ? EPOCH_REVOKED : EPOCH_ENDED, NULL);
    end_run(c, j, to == JOB_COMPLETED ? RUN_COMPLETED : to == JOB_CANCELLED ? RUN_CANCELLED : RUN_FAILED, reason);
    j->status.finished_at_ms = c->now.wall_ms;
    j->status.world_size = 0;
    if (j->state == JOB_PENDING) {
        queue_remove(c, j);
        core_list_append(&c->active, &c->active_last, j);
    }
    move_job(c, j, to, reason);
    c->slots_changed = true;
}

void job_fail(struct core *c, struct jobrec *j, const char *reason)
{
    bool live = epoch_live(j);
    end_job(c, j, JOB_FAILED, reason);
    if (live)
        tell_seats(c, j, tell_revoke);
    job_stop_all(c, j, 0, "the job has failed");
}

void job_cancel(struct core *c, struct jobrec *j, const char *reason, uint32_t grace_ms)
{
    const char *why = reason && *reason ? reason : "asked for";
    if (j->state == JOB_CANCELLING)
        return;
    if (j->state == JOB_PENDING) {
        end_job(c, j, JOB_CANCELLED, why);
        return;
    }
    j->grace_ms = grace_ms;
    core_set_string(&j->stop_why, why);
    move_job(c, j, JOB_CANCELLING, why);
    job_stop_all(c, j, grace_ms, why);
}

void job_begin_recovery(struct core *c, struct jobrec *j)
{
    if (j->recovery.lost || !j->status.started_at_ms)
        return;
    memset(&j->recovery, 0, sizeof(j->recovery));
    j->recovery.lost = c->now.mono_ms;
    j->recovery.from_step = j->status.step;
}

/* --- the end of the work --------------------------------------------------------------------------------------- */

static bool all_done(const struct jobrec *j)
{
    if (j->n_seats == 0)
        return false;
    for (uint32_t i = 0; i < j->n_seats; i++)
        if (!j->seats[i].finished)
            return false;
    return true;
}

static bool any_lost(const struct core *c, const struct jobrec *j)
{
    const uint32_t n = j->n_seats + j->n_leavers;
    for (uint32_t i = 0; i < n; i++)
        if (!j->seats[i].worker && !j->seats[i].finished)
            return true;
    for (uint32_t i = 0; i < n; i++) {
        const struct workrec *w = j->seats[i].worker;
        if (w && !j->seats[i].finished &&
            (w->state == WORKER_STOPPING || (w->away && c->now.mono_ms >= j->adopt_until)))
            return true;
    }
    return false;
}

/* All steps are done. */
static void finish(struct core *c, struct jobrec *j)
{
    move_phase(j, PHASE_FINISHING);
    j->grace_ms = FINISH_GRACE_MS;
    if (epoch_live(j))
        move_epoch(c, j, EPOCH_ENDED, "all steps are done");
    job_stop_all(c, j, FINISH_GRACE_MS, "all steps are done");
    if (j->n_workers == 0)
        end_job(c, j, JOB_COMPLETED, "");
}

void job_checkpoint(struct core *c, struct jobrec *j, const Titan__Internal__CheckpointWritten *m)
{
    size_t at = 0;
    while (at < j->n_ckpts && j->ckpts[at].step > m->step)
        at++;
    bool again = at < j->n_ckpts && j->ckpts[at].step == m->step;
    if (at > 0 || (again && j->ckpts[at].epoch == m->epoch))
        return; /* a report that was sent twice: steps of an epoch are written in order */
    if (again) {
        free(j->ckpts[at].path);
    } else {
        if (j->n_ckpts == j->cap_ckpts) {
            j->cap_ckpts = j->cap_ckpts ? 2 * j->cap_ckpts : 4;
            j->ckpts = realloc(j->ckpts, j->cap_ckpts * sizeof(*j->ckpts));
            titan_assert(j->ckpts);
        }
        memmove(&j->ckpts[at + 1], &j->ckpts[at], (j->n_ckpts - at) * sizeof(*j->ckpts));
        j->n_ckpts++;
    }
    j->ckpts[at] = (struct ckptrec){.step = m->step, .epoch = m->epoch, .path = core_strdup(m->path)};
    if (j->state == JOB_CANCELLING) /* progress is not listened to any more, and this is the last word on it */
        j->status.step = MAX(j->status.step, m->step);
    say_checkpoint(c, j, m);
    job_checkpoint_well(j);
    size_t keep = j->spec.keep_latest ? j->spec.keep_latest : SIZE_MAX;
    Titan__Internal__CheckpointCommitted *told = batch_alloc(c->out, sizeof(*told));
    titan__internal__checkpoint_committed__init(told);
    told->job_id = j->id;
    told->step = m->step;
    told->expired_paths = batch_alloc(c->out, (j->n_ckpts + 1) * sizeof(char *));
    while (j->n_ckpts > (MUTANT(EXPIRED_NEWEST) && keep == 1 ? 0 : keep)) {
        struct ckptrec *old = &j->ckpts[--j->n_ckpts];
        say_checkpoint_expired(c, j, old);
        told->expired_paths[told->n_expired_paths++] = batch_strdup(c->out, old->path);
        free(old->path);
    }
    const struct workrec *first = NULL;
    for (uint32_t i = 0; i < j->n_seats && !first; i++)
        first = j->seats[i].worker;
    if (first && first->node->session)
        batch_message(c->out, first->node->session, TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_CHECKPOINT_COMMITTED,
                      told);
}

void job_checkpoint_well(struct jobrec *j)
{
    free(j->trouble.words);
    free(j->trouble.why);
    memset(&j->trouble, 0, sizeof(j->trouble));
}

/* The cause: what stands behind the last name in it. Paths differ from step to step. */
static const char *cause_words(const char *reason)
{
    const char *at = reason;
    for (const char *p = reason; (p = strstr(p, ": ")); p += 2)
        at = p + 2;
    return at;
}

void job_checkpoint_failed(struct core *c, struct jobrec *j, const struct workrec *w,
                           const Titan__Internal__CheckpointFailed *m)
{
    const char *why = cause_words(m->reason);
    const bool changed = !j->trouble.why || strcmp(j->trouble.why, why) != 0 || j->trouble.reading != m->reading;
    const bool counts = j->trouble.streak == 0 || job_seat(j, w) == j->seats; /* of one checkpoint all may speak */
    if (!counts && !changed)
        return;
    if (m->reading)
        core_set_string(&j->trouble.words,
                        batch_printf(c->out, "trying again to read checkpoint %s: %s", m->path, m->reason));
    else
        core_set_string(&j->trouble.words, batch_printf(c->out, "the checkpoint of step %llu was not written to %s: %s",
                                                        (unsigned long long)m->step, m->path, m->reason));
    core_set_string(&j->trouble.why, why);
    j->trouble.reading = m->reading;
    if (counts)
        j->trouble.streak++;
    if (counts && !m->reading)
        j->status.checkpoint_failures++;
    j->unsaved = true;
    if (changed || (counts && (j->trouble.streak & (j->trouble.streak - 1)) == 0))
        say_checkpoint_failed(c, j, m);
    epoch_tries(c, j); /* it has not stopped: its members wait for a disk */
}

/* Who asked for a last checkpoint is told where it is. */
static const char *cancelled_words(struct core *c, const struct jobrec *j)
{
    if (!j->must_checkpoint)
        return "";
    if (j->n_ckpts == 0 || j->ckpts[0].epoch != j->status.epoch)
        return batch_printf(c->out, "%s; no checkpoint was written in time", j->stop_why);
    return batch_printf(c->out, "%s; checkpoint of step %llu: %s", j->stop_why, (unsigned long long)j->ckpts[0].step,
                        j->ckpts[0].path);
}

/* --- driver ---------------------------------------------------------------------------------------------------- */

void job_advance(struct core *c, struct jobrec *j)
{
    if (phase_stops(j))
        quorum_end_away(c, j, NULL); /* nothing will be decided that they could be in the way of */
    requeue_advance(c, j);
    switch (j->phase) {
    case PHASE_NONE:
        titan_assert(!"a job without a phase");
        break;
    case PHASE_QUEUED:
    case PHASE_REQUEUEING:
        break; /* it waits for its place, or for its workers to exit */
    case PHASE_TRAINING:
    case PHASE_PAUSING:
        if (all_done(j)) {
            finish(c, j);
            break;
        }
        if (j->broken || any_lost(c, j))
            epoch_revoke(c, j, any_lost(c, j) ? "a worker is lost" : "a member left the epoch");
        if (j->phase == PHASE_TRAINING) {
            place_grow(c, j); /* who joins comes before who leaves */
            if (j->state == JOB_RUNNING && !c->behind)
                plan_resize(c, j);
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
            place_grow(c, j);
        break;
    case PHASE_FINISHING:
        if (j->n_workers == 0)
            end_job(c, j, JOB_COMPLETED, "");
        break;
    case PHASE_CANCELLING:
        if (j->n_workers == 0)
            end_job(c, j, JOB_CANCELLED, cancelled_words(c, j));
        break;
    case PHASE_ENDED:
        break;
    }
    if (j->phase == PHASE_ENDED && j->n_workers == 0)
        core_forget(c, j);
}

void job_heard(struct core *c, struct jobrec *j)
{
    if (j->n_workers > c->options.at_once)
        c->unsettled = true;
    else
        job_advance(c, j);
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
            tell_stop(c, n->session, j->id, w->id, grace ? j->grace_ms : 0, "told before");
        } else if (job_seat(j, w)) {
            here = true;
            form_again |= !w->missing && w->epoch < j->status.epoch;
        }
    }
    if (!here || phase_ends(j))
        return;
    if (j->epoch_state == EPOCH_FORMING && form_again) {
        tell_form(c, j, n);
        for (size_t i = 0; i < j->n_workers; i++)
            if (j->workers[i]->node == n && job_seat(j, j->workers[i]))
                j->workers[i]->epoch = j->status.epoch;
    }
    if (j->epoch_state == EPOCH_REVOKED)
        tell_revoke(c, j, n);
    else if (epoch_leaving(j))
        tell_pause(c, j, n);
}

void job_tick(struct core *c, struct jobrec *j)
{
    int64_t now = c->now.mono_ms;
    worker_deadlines(c, j);
    if (!job_final(j) && now >= j->epoch_deadline) {
        j->epoch_deadline = INT64_MAX;
        if (epoch_leaving(j))
            epoch_exclude_laggards(c, j);
        else if (epoch_live(j))
            j->broken = j->patient = true;
    }
    if (!job_final(j) && now >= j->starve_at) {
        j->starve_at = INT64_MAX;
        job_stop_all(c, j, 0, "too few workers for too long; others may have the slots");
    }
    if (j->state == JOB_RUNNING && j->unsaved && now - j->saved_mono >= SAVE_MS)
        store_status(c, j);
    epoch_say_recovered(c, j);
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
    at = MIN(at, MIN(j->epoch_deadline, j->starve_at));
    at = MIN(at, j->quorum_at);
    if (j->adopt_until > now)
        at = MIN(at, j->adopt_until);
    if (j->replace_at > now)
        at = MIN(at, j->replace_at);
    if (j->state == JOB_RUNNING && j->unsaved)
        at = MIN(at, j->saved_mono + SAVE_MS);
    return at;
}

void core_quarantine(struct core *c, uint64_t job_id, struct core_time now, struct batch *out)
{
    core_begin(c, now, out);
    struct jobrec *j = core_find_job(c, job_id);
    c->counters.quarantined++;
    if (j) {
        if (j->state == JOB_PENDING) {
            queue_remove(c, j);
            core_list_append(&c->active, &c->active_last, j);
        }
        while (j->n_workers) {
            struct workrec *w = j->workers[j->n_workers - 1];
            tell_stop(c, w->node->session, j->id, w->id, 0, "the job store contradicts what was decided about its job");
            worker_forget(c, w);
        }
        core_forget(c, j);
    }
    core_finish(c);
}
