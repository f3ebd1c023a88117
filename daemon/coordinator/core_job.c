/* What a job does next. job_advance() looks at the whole state of the job, not at what has just happened, so it does
 * the right thing whatever was lost, repeated or restored before it. */
#include "daemon/coordinator/core_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/rng.h"

#define FINISH_GRACE_MS 10000 /* for a worker that is done to exit by itself */
#define SAVE_MS 1000          /* a running job's status is stored at least this often */

bool job_final(const struct jobrec *j)
{
    return sm_final(&job_sm, (int)j->state);
}

struct workrec *job_worker(const struct jobrec *j, uint64_t id)
{
    for (size_t i = 0; i < j->n_workers; i++)
        if (j->workers[i]->id == id)
            return j->workers[i];
    return NULL;
}

struct seat *job_seat(struct jobrec *j, const struct workrec *w)
{
    for (uint32_t i = 0; i < j->n_seats; i++)
        if (j->seats[i].worker == w)
            return &j->seats[i];
    return NULL;
}

void job_add_worker(struct jobrec *j, struct workrec *w)
{
    if (j->n_workers == j->cap_workers) {
        j->cap_workers = j->cap_workers ? 2 * j->cap_workers : 4;
        j->workers = realloc(j->workers, j->cap_workers * sizeof(*j->workers));
        titan_assert(j->workers);
    }
    j->workers[j->n_workers++] = w;
}

static bool epoch_live(const struct jobrec *j)
{
    return j->epoch_state == EPOCH_FORMING || j->epoch_state == EPOCH_RUNNING;
}

/* Members were asked to leave the epoch, by revoke or pause. */
static bool waits_for_quiet(const struct jobrec *j)
{
    return j->epoch_state == EPOCH_REVOKED || (j->state == JOB_RESIZING && j->epoch_state == EPOCH_RUNNING);
}

uint32_t job_staying(const struct jobrec *j)
{
    uint32_t n = 0;
    for (size_t i = 0; i < j->n_workers; i++)
        n += j->workers[i]->state != WORKER_STOPPING;
    return n;
}

static size_t count_workers(const struct jobrec *j, enum worker_state state)
{
    size_t n = 0;
    for (size_t i = 0; i < j->n_workers; i++)
        n += j->workers[i]->state == state;
    return n;
}

/* --- ends ------------------------------------------------------------------------------------------------------ */

void job_stop_worker(struct core *c, struct workrec *w, uint32_t grace_ms, const char *reason)
{
    if (w->state != WORKER_STOPPING)
        say_worker_move(c, w, WORKER_STOPPING, NULL, false, reason);
    w->deadline = c->now.mono_ms + grace_ms + c->options.stop_ms;
    tell_stop(c, w->node->session, w->job->id, w->id, grace_ms, reason);
}

static void stop_all(struct core *c, struct jobrec *j, uint32_t grace_ms, const char *reason)
{
    for (size_t i = 0; i < j->n_workers; i++)
        if (j->workers[i]->state != WORKER_STOPPING)
            job_stop_worker(c, j->workers[i], grace_ms, reason);
}

static void end_run(struct core *c, struct jobrec *j, enum run_state to, const char *reason)
{
    if (!j->run_active)
        return;
    j->run_active = false;
    say_run_move(c, j, to, reason);
}

static void end_job(struct core *c, struct jobrec *j, enum job_state to, const char *reason)
{
    if (epoch_live(j))
        say_epoch_move(c, j, to == JOB_FAILED ? EPOCH_REVOKED : EPOCH_ENDED, NULL);
    end_run(c, j, to == JOB_COMPLETED ? RUN_COMPLETED : to == JOB_CANCELLED ? RUN_CANCELLED : RUN_FAILED, reason);
    j->status.finished_at_ms = c->now.wall_ms;
    j->status.world_size = 0;
    if (j->state == JOB_PENDING) {
        core_list_remove(&c->queue, &c->queue_last, j);
        core_list_append(&c->active, &c->active_last, j);
        c->pending--;
    }
    say_job_move(c, j, to, reason);
    c->slots_changed = true;
}

static void fail_job(struct core *c, struct jobrec *j, const char *reason)
{
    bool live = epoch_live(j);
    end_job(c, j, JOB_FAILED, reason);
    if (live)
        tell_seats(c, j, tell_revoke);
    stop_all(c, j, 0, "the job has failed");
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
    say_job_move(c, j, JOB_CANCELLING, why);
    stop_all(c, j, grace_ms, why);
}

/* --- a worker ends --------------------------------------------------------------------------------------------- */

static int64_t backoff_ms(const struct jobrec *j)
{
    int64_t wait = j->spec.backoff_ms;
    for (uint32_t i = 1; i < j->losses && wait < j->spec.backoff_max_ms; i++)
        wait *= 2;
    return MIN(wait, (int64_t)j->spec.backoff_max_ms);
}

static void charge(struct core *c, struct jobrec *j, const char *words)
{
    j->status.restarts++;
    j->losses++;
    j->charged = true;
    j->replace_at = c->now.mono_ms + backoff_ms(j);
    if (j->status.restarts > j->spec.max_restarts)
        fail_job(c, j,
                 batch_printf(c->out, "lost a worker %u time%s; restart budget of %u used; last: %s",
                              j->status.restarts, j->status.restarts == 1 ? "" : "s", j->spec.max_restarts, words));
    else
        say_job_update(c, j); /* the count is stored with the loss */
}

static const char *exit_words(struct core *c, const struct exit_report *r, const char *why)
{
    if (!r)
        return why;
    if (r->reason && *r->reason)
        return batch_strdup(c->out, r->reason);
    if (r->signal)
        return batch_printf(c->out, "ended by signal %d (%s)", r->signal, strsignal(r->signal));
    return batch_printf(c->out, "exited with status %d", r->exit_code);
}

static void forget_worker(struct core *c, struct workrec *w)
{
    struct jobrec *j = w->job;
    for (size_t i = 0; i < j->n_workers; i++) {
        if (j->workers[i] != w)
            continue;
        memmove(&j->workers[i], &j->workers[i + 1], (j->n_workers - i - 1) * sizeof(*j->workers));
        j->n_workers--;
        break;
    }
    w->node->used--;
    c->slots_changed = true;
    free(w->address);
    free(w);
}

/* The clock of recovery.finished runs from the first report. */
static void begin_recovery(struct core *c, struct jobrec *j)
{
    if (j->lost_mono || !j->status.started_at_ms)
        return;
    j->lost_mono = c->now.mono_ms;
    j->lost_step = j->status.step;
}

void job_worker_ended(struct core *c, struct workrec *w, const struct exit_report *report, const char *why)
{
    struct jobrec *j = w->job;
    struct seat *seat = job_seat(j, w);
    bool over = job_final(j) || j->state == JOB_CANCELLING || j->finishing;
    bool asked = (w->state == WORKER_STOPPING && !w->blamed) || (seat && seat->finished);
    bool permanent = !over && !asked && report && report->exit_code == 2 && !report->signal;
    bool counted = !over && !asked && !permanent && (w->started || report);
    const char *words = exit_words(c, report, why);
    say_worker_move(c, w, report ? WORKER_EXITED : WORKER_LOST, report, counted, why);
    if (seat)
        seat->worker = NULL;
    forget_worker(c, w);
    if (permanent)
        fail_job(c, j, words);
    if (!counted)
        return;
    if (seat)
        begin_recovery(c, j);
    charge(c, j, words);
}

/* --- epochs ---------------------------------------------------------------------------------------------------- */

static void revoke_epoch(struct core *c, struct jobrec *j, const char *why)
{
    if (j->state == JOB_RUNNING || j->state == JOB_RESIZING)
        say_job_move(c, j, JOB_RECOVERING, why);
    j->resize_mono = 0;
    begin_recovery(c, j);
    say_epoch_move(c, j, EPOCH_REVOKED, why);
    j->status.world_size = 0;
    say_job_update(c, j);
    j->epoch_deadline = c->now.mono_ms + c->options.quiesce_ms;
    tell_seats(c, j, tell_revoke);
    for (uint32_t i = 0; i < j->n_seats; i++) {
        struct workrec *w = j->seats[i].worker;
        if (w && j->seats[i].finished && w->state != WORKER_STOPPING)
            job_stop_worker(c, w, 0, "the run goes on without it");
    }
}

/* Do the members of the epoch that ends hold the whole state of one step between them? */
static bool state_in_memory(const struct jobrec *j)
{
    if (!j->proven || j->n_seats == 0)
        return false;
    for (uint32_t i = 0; i < j->n_seats; i++) {
        const struct workrec *w = j->seats[i].worker;
        if (!w || w->state != WORKER_READY || !w->quiesced || w->last_step != j->seats[0].worker->last_step)
            return false;
    }
    return true;
}

static void choose_source(struct jobrec *j, bool memory, uint64_t old_epoch, uint64_t memory_step)
{
    free(j->epoch_checkpoint);
    j->epoch_checkpoint = NULL;
    j->source_epoch = 0;
    j->resume_step = 0;
    if (memory) {
        j->source = TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY;
        j->source_epoch = old_epoch;
        j->resume_step = memory_step;
    } else if (j->n_ckpts) {
        j->source = TITAN__INTERNAL__STATE_SOURCE__STATE_CHECKPOINT;
        j->resume_step = j->ckpts[0].step;
        j->epoch_checkpoint = core_strdup(j->ckpts[0].path);
    } else {
        j->source = TITAN__INTERNAL__STATE_SOURCE__STATE_INIT;
    }
}

/* Members in rank order: those who were there, then who joined. */
static uint32_t collect(const struct jobrec *j, struct workrec **ret, uint32_t *ret_survivors)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < j->n_seats; i++) {
        struct workrec *w = j->seats[i].worker;
        if (w && w->state == WORKER_READY && w->quiesced && !j->seats[i].finished)
            ret[n++] = w;
    }
    *ret_survivors = n;
    for (size_t i = 0; i < j->n_workers; i++) {
        struct workrec *w = j->workers[i];
        bool seated = false;
        for (uint32_t k = 0; k < j->n_seats && !seated; k++)
            seated = j->seats[k].worker == w;
        if (!seated && w->state == WORKER_READY)
            ret[n++] = w;
    }
    return n;
}

static void set_seats(struct jobrec *j, struct workrec *const *members, uint32_t n)
{
    free(j->holders);
    j->n_holders = j->source_epoch ? j->n_seats : 0;
    j->holders = core_alloc((j->n_holders + 1) * sizeof(*j->holders));
    for (size_t i = 0; i < j->n_holders; i++)
        j->holders[i] = j->seats[i].worker_id;
    free(j->seats);
    j->seats = core_alloc((n + 1) * sizeof(*j->seats));
    j->n_seats = n;
    for (uint32_t i = 0; i < n; i++) {
        j->seats[i] = (struct seat){.worker_id = members[i]->id, .worker = members[i]};
        members[i]->quiesced = false;
        members[i]->epoch = j->status.epoch;
    }
}

static void form(struct core *c, struct jobrec *j, struct workrec *const *members, uint32_t n)
{
    bool memory = n >= j->n_seats && state_in_memory(j);
    const struct workrec *holder = memory ? j->seats[0].worker : NULL; /* there, when the state is in memory */
    uint64_t old = j->status.epoch, memory_step = holder ? holder->last_step : 0;
    if (j->epoch_state == EPOCH_RUNNING)
        say_epoch_move(c, j, EPOCH_ENDED, NULL);
    choose_source(j, memory, old, memory_step);
    j->status.epoch = old + 1;
    set_seats(j, members, n);
    struct rng_key key = rng_key(c->options.seed, "communicator");
    uint32_t words[4];
    rng_philox(key, j->id, j->status.epoch, words);
    memcpy(j->comm_id, words, sizeof(words));
    j->status.world_size = n;
    j->status.step = j->resume_step;
    j->proven = j->broken = j->charged = false;
    j->starve_at = INT64_MAX;
    say_job_waits(c, j, 0);
    j->epoch_state = EPOCH_FORMING;
    j->epoch_deadline = c->now.mono_ms + c->options.form_ms + (int64_t)(20 * j->step_ms);
    say_epoch_add(c, j);
    say_job_update(c, j);
    tell_seats(c, j, tell_form);
}

/* Those who are left, and those who are on their way, make no legal world. */
static void say_waiting(struct core *c, struct jobrec *j)
{
    uint32_t need = place_least(j), have = job_staying(j);
    if (need > have)
        say_job_waits(c, j, need - have);
}

/* All members are out of the old epoch: is there enough for a new one? */
static void try_form(struct core *c, struct jobrec *j)
{
    for (uint32_t i = 0; i < j->n_seats; i++) {
        const struct workrec *w = j->seats[i].worker;
        if (w && w->state != WORKER_STOPPING && !w->quiesced && !j->seats[i].finished)
            return;
    }
    j->epoch_deadline = INT64_MAX;
    _cleanup_free_ struct workrec **members = core_alloc((j->n_workers + 1) * sizeof(*members));
    uint32_t survivors = 0, n = collect(j, members, &survivors);
    say_waiting(c, j);
    if (survivors < j->spec.min_workers && count_workers(j, WORKER_STARTING) > 0)
        return;
    uint32_t world = place_world(j, MIN(n, j->spec.max_workers));
    if (world == 0) {
        if (j->n_workers == 0)
            end_run(c, j, RUN_LOST, "no worker is left");
        else if (j->starve_at == INT64_MAX)
            j->starve_at = c->now.mono_ms + c->options.starve_ms;
        return;
    }
    if (j->broken && !j->charged) {
        say_event(c, j, (struct say){.type = "epoch.failed", .message = "the members could not go on together"});
        charge(c, j, "the members could not go on together");
        if (job_final(j))
            return;
    }
    form(c, j, members, world);
}

void job_moves_on(struct core *c, struct jobrec *j)
{
    if (j->state == JOB_RESIZING || j->epoch_state != EPOCH_RUNNING)
        return; /* waits for something else */
    /* After the last step comes the last checkpoint, which may be long. */
    int64_t patience = j->status.step < j->spec.steps ? c->options.stall_ms : 10 * (int64_t)c->options.stall_ms;
    j->epoch_deadline = c->now.mono_ms + patience + (int64_t)(50 * j->step_ms);
}

void job_formed(struct core *c, struct jobrec *j)
{
    if (j->epoch_state != EPOCH_FORMING)
        return;
    say_epoch_move(c, j, EPOCH_RUNNING, NULL);
    j->proven = true;
    if (!j->status.started_at_ms)
        j->status.started_at_ms = c->now.wall_ms - (int64_t)j->step_ms;
    say_job_move(c, j, JOB_RUNNING, "");
    job_moves_on(c, j);
    if (j->lost_mono) {
        long long ms = c->now.mono_ms - j->lost_mono;
        say_event(c, j,
                  (struct say){.type = "recovery.finished",
                               .message = batch_printf(c->out, "back after %lld ms with %u workers", ms, j->n_seats),
                               .detail = batch_printf(c->out,
                                                      "{\"recovery_ms\":%lld,\"from_step\":%llu,\"resume_step\":%llu,"
                                                      "\"world\":%u}",
                                                      ms, (unsigned long long)j->lost_step,
                                                      (unsigned long long)j->resume_step, j->n_seats)});
    } else if (j->resize_mono) {
        long long ms = c->now.mono_ms - j->resize_mono;
        say_event(c, j,
                  (struct say){.type = "resize.finished",
                               .message = batch_printf(c->out, "now %u workers, after %lld ms", j->n_seats, ms),
                               .detail = batch_printf(c->out, "{\"resize_ms\":%lld,\"resume_step\":%llu,\"world\":%u}",
                                                      ms, (unsigned long long)j->resume_step, j->n_seats)});
    }
    j->lost_mono = j->resize_mono = 0;
    if (j->n_seats >= j->target)
        j->losses = 0;
}

bool job_near_end(const struct jobrec *j)
{
    for (uint32_t i = 0; i < j->n_seats && epoch_live(j); i++)
        if (j->seats[i].finished)
            return true;
    return epoch_live(j) && j->status.step + 1 >= j->spec.steps;
}

static void try_resize(struct core *c, struct jobrec *j)
{
    if (count_workers(j, WORKER_STARTING) > 0 || job_near_end(j))
        return;
    size_t ready = count_workers(j, WORKER_READY);
    uint32_t world = place_world(j, (uint32_t)MIN(ready, (size_t)j->spec.max_workers));
    if (world <= j->n_seats)
        return;
    j->resize_mono = c->now.mono_ms;
    say_job_move(c, j, JOB_RESIZING, batch_printf(c->out, "from %u to %u workers", j->n_seats, world));
    j->epoch_deadline = c->now.mono_ms + c->options.pause_ms + (int64_t)(20 * j->step_ms);
    tell_seats(c, j, tell_pause);
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

static bool any_lost(const struct jobrec *j)
{
    for (uint32_t i = 0; i < j->n_seats; i++)
        if (!j->seats[i].worker && !j->seats[i].finished)
            return true;
    for (uint32_t i = 0; i < j->n_seats; i++)
        if (j->seats[i].worker && j->seats[i].worker->state == WORKER_STOPPING && !j->seats[i].finished)
            return true;
    return false;
}

static void begin_finishing(struct core *c, struct jobrec *j)
{
    j->finishing = true;
    j->grace_ms = FINISH_GRACE_MS;
    if (epoch_live(j))
        say_epoch_move(c, j, EPOCH_ENDED, "all steps are done");
    stop_all(c, j, FINISH_GRACE_MS, "all steps are done");
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
    size_t keep = j->spec.keep_latest ? j->spec.keep_latest : SIZE_MAX;
    Titan__Internal__CheckpointCommitted *told = batch_alloc(c->out, sizeof(*told));
    titan__internal__checkpoint_committed__init(told);
    told->job_id = j->id;
    told->step = m->step;
    told->expired_paths = batch_alloc(c->out, (j->n_ckpts + 1) * sizeof(char *));
    while (j->n_ckpts > keep) {
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

/* --- driver ---------------------------------------------------------------------------------------------------- */

void job_advance(struct core *c, struct jobrec *j)
{
    if (j->state == JOB_PENDING)
        return;
    if (!job_final(j)) {
        if (j->state == JOB_CANCELLING) {
            if (j->n_workers == 0)
                end_job(c, j, JOB_CANCELLED, "");
        } else if (j->finishing) {
            if (j->n_workers == 0)
                end_job(c, j, JOB_COMPLETED, "");
        } else {
            if (epoch_live(j) && all_done(j)) {
                begin_finishing(c, j);
                if (j->n_workers == 0)
                    end_job(c, j, JOB_COMPLETED, "");
            } else if (epoch_live(j) && (j->broken || any_lost(j))) {
                revoke_epoch(c, j, any_lost(j) ? "a worker is lost" : "a member left the epoch");
            }
            bool last_saved = j->n_ckpts && j->ckpts[0].step >= j->spec.steps;
            if (!j->finishing && j->epoch_state == EPOCH_REVOKED && last_saved) {
                begin_finishing(c, j);
                if (j->n_workers == 0)
                    end_job(c, j, JOB_COMPLETED, "");
            }
            if (!j->finishing && (waits_for_quiet(j) || j->epoch_state == EPOCH_NONE))
                try_form(c, j);
            if (!job_final(j) && !j->finishing && j->state == JOB_RUNNING)
                try_resize(c, j);
            if (!job_final(j) && !j->finishing)
                place_grow(c, j);
        }
    }
    if (job_final(j) && j->n_workers == 0)
        core_forget(c, j);
}

void job_resend(struct core *c, struct jobrec *j, struct noderec *n)
{
    bool form_again = false, here = false;
    for (size_t i = 0; i < j->n_workers; i++) {
        struct workrec *w = j->workers[i];
        if (w->node != n)
            continue;
        if (w->state == WORKER_STOPPING) {
            bool grace = (j->state == JOB_CANCELLING || j->finishing) && w->deadline > c->now.mono_ms;
            tell_stop(c, n->session, j->id, w->id, grace ? j->grace_ms : 0, "told before");
        } else if (job_seat(j, w)) {
            here = true;
            form_again |= w->epoch < j->status.epoch;
        }
    }
    if (!here || job_final(j) || j->state == JOB_CANCELLING || j->finishing)
        return;
    if (epoch_live(j) && form_again) {
        tell_form(c, j, n);
        for (size_t i = 0; i < j->n_workers; i++)
            if (j->workers[i]->node == n && job_seat(j, j->workers[i]))
                j->workers[i]->epoch = j->status.epoch;
    }
    if (j->epoch_state == EPOCH_REVOKED)
        tell_revoke(c, j, n);
    else if (waits_for_quiet(j))
        tell_pause(c, j, n);
}

/* Those who did not leave the epoch in time have to go. */
static void exclude_laggards(struct core *c, struct jobrec *j)
{
    for (uint32_t i = 0; i < j->n_seats; i++) {
        struct workrec *w = j->seats[i].worker;
        if (!w || w->quiesced || w->state == WORKER_STOPPING)
            continue;
        w->blamed = !j->seats[i].finished;
        j->charged |= w->blamed; /* when it ends */
        job_stop_worker(c, w, 0, "it did not leave the epoch in time");
    }
}

static void worker_deadlines(struct core *c, struct jobrec *j)
{
    for (size_t i = j->n_workers; i-- > 0;) {
        struct workrec *w = j->workers[i];
        if (w->missing && c->now.mono_ms >= w->missing)
            job_worker_ended(c, w, NULL,
                             w->started ? "it ended while its agent was away" : "its start never reached the agent");
    }
    for (size_t i = 0; i < j->n_workers; i++) {
        struct workrec *w = j->workers[i];
        if (w->missing || c->now.mono_ms < w->deadline)
            continue;
        if (w->state == WORKER_STARTING) {
            w->blamed = true;
            job_stop_worker(c, w, 0, "it was not ready in time");
        } else if (w->state == WORKER_STOPPING) {
            job_stop_worker(c, w, 0, "it is still there");
        }
    }
}

void job_tick(struct core *c, struct jobrec *j)
{
    int64_t now = c->now.mono_ms;
    worker_deadlines(c, j);
    if (!job_final(j) && now >= j->epoch_deadline) {
        j->epoch_deadline = INT64_MAX;
        if (waits_for_quiet(j))
            exclude_laggards(c, j);
        else if (epoch_live(j))
            j->broken = true;
    }
    if (!job_final(j) && now >= j->starve_at) {
        j->starve_at = INT64_MAX;
        stop_all(c, j, 0, "too few workers for too long; others may have the slots");
    }
    if (j->state == JOB_RUNNING && j->unsaved && now - j->saved_mono >= SAVE_MS)
        say_job_update(c, j);
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
    if (j->replace_at > now)
        at = MIN(at, j->replace_at);
    if (j->state == JOB_RUNNING && j->unsaved)
        at = MIN(at, j->saved_mono + SAVE_MS);
    return at;
}
