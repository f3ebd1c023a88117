/* Epochs: revoke, form, move on. */
#include "daemon/coordinator/core_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/rng.h"

bool epoch_live(const struct jobrec *j)
{
    return j->epoch_state == EPOCH_FORMING || j->epoch_state == EPOCH_RUNNING;
}

bool epoch_leaving(const struct jobrec *j)
{
    return j->epoch_state == EPOCH_REVOKED || (j->state == JOB_RESIZING && j->epoch_state == EPOCH_RUNNING);
}

void epoch_revoke(struct core *c, struct jobrec *j, const char *why)
{
    if (j->state == JOB_RUNNING || j->state == JOB_RESIZING)
        say_job_move(c, j, JOB_RECOVERING, why);
    j->resize_mono = 0;
    job_begin_recovery(c, j);
    say_epoch_move(c, j, EPOCH_REVOKED, why);
    j->status.world_size = 0;
    say_job_update(c, j);
    j->epoch_deadline = c->now.mono_ms + c->options.quiesce_ms;
    tell_seats(c, j, tell_revoke);
    for (uint32_t i = 0; i < j->n_seats; i++) {
        struct workrec *w = j->seats[i].worker;
        if (w && j->seats[i].finished && w->state != WORKER_STOPPING)
            worker_stop(c, w, 0, "the run goes on without it");
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

/* Candidates in rank order: those who were there, then who joined; of those who are to leave, or are not. */
static uint32_t collect_some(struct jobrec *j, bool leaving, struct workrec **ret, uint32_t *ret_survivors)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < j->n_seats; i++) {
        struct workrec *w = j->seats[i].worker;
        if (w && w->state == WORKER_READY && w->quiesced && !j->seats[i].finished && plan_leaves(w) == leaving)
            ret[n++] = w;
    }
    *ret_survivors += n;
    for (size_t i = 0; i < j->n_workers; i++) {
        struct workrec *w = j->workers[i];
        if (!job_seat(j, w) && w->state == WORKER_READY && plan_leaves(w) == leaving)
            ret[n++] = w;
    }
    return n;
}

/* The next epoch's members, in rank order; 0 = there are not enough. Who is to leave stays when it does not work
 * without. */
static uint32_t collect(struct jobrec *j, struct workrec **ret, uint32_t *ret_survivors)
{
    *ret_survivors = 0;
    uint32_t kept = collect_some(j, false, ret, ret_survivors);
    uint32_t all = kept + collect_some(j, true, ret + kept, ret_survivors);
    uint32_t world = place_world(j, kept);
    return world ? world : place_world(j, all);
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
    bool memory = state_in_memory(j);
    const struct workrec *holder = memory ? j->seats[0].worker : NULL; /* there, when the state is in memory */
    uint64_t old = j->status.epoch, memory_step = holder ? holder->last_step : 0;
    if (j->epoch_state == EPOCH_RUNNING)
        say_epoch_move(c, j, EPOCH_ENDED, NULL);
    choose_source(j, memory, old, memory_step);
    j->status.epoch = old + 1;
    set_seats(j, members, n);
    plan_mark_leavers(j);
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

void epoch_try_form(struct core *c, struct jobrec *j)
{
    for (uint32_t i = 0; i < j->n_seats; i++) {
        const struct workrec *w = j->seats[i].worker;
        if (w && w->state != WORKER_STOPPING && !w->quiesced && !j->seats[i].finished)
            return;
    }
    for (size_t i = 0; i < j->n_workers; i++)
        if (j->workers[i]->leaver && j->workers[i]->state == WORKER_READY && !j->workers[i]->quiesced)
            return;
    j->epoch_deadline = INT64_MAX;
    _cleanup_free_ struct workrec **members = core_alloc((j->n_workers + 1) * sizeof(*members));
    uint32_t survivors = 0, world = collect(j, members, &survivors);
    say_waiting(c, j);
    if (survivors < plan_least(j) && job_count_workers(j, WORKER_STARTING) > 0)
        return;
    if (world == 0) {
        if (j->n_workers == 0)
            job_end_run(c, j, RUN_LOST, "no worker is left");
        else if (j->starve_at == INT64_MAX)
            j->starve_at = c->now.mono_ms + c->options.starve_ms;
        return;
    }
    if (j->broken && !j->charged) {
        say_event(c, j, (struct say){.type = "epoch.failed", .message = "the members could not go on together"});
        budget_charge(c, j, LOSS_EPOCH, NULL, "the members could not go on together");
        if (job_final(j))
            return;
    }
    form(c, j, members, world);
}

void epoch_moves_on(struct core *c, struct jobrec *j)
{
    if (j->state == JOB_RESIZING || j->epoch_state != EPOCH_RUNNING)
        return; /* waits for something else */
    /* After the last step comes the last checkpoint, which may be long. */
    int64_t patience = j->status.step < j->spec.steps ? c->options.stall_ms : 10 * (int64_t)c->options.stall_ms;
    j->epoch_deadline = c->now.mono_ms + patience + (int64_t)(50 * j->step_ms);
}

void epoch_formed(struct core *c, struct jobrec *j)
{
    if (j->epoch_state != EPOCH_FORMING)
        return;
    say_epoch_move(c, j, EPOCH_RUNNING, NULL);
    j->proven = true;
    if (!j->status.started_at_ms)
        j->status.started_at_ms = c->now.wall_ms - (int64_t)j->step_ms;
    say_job_move(c, j, JOB_RUNNING, "");
    plan_release(c, j);
    epoch_moves_on(c, j);
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

bool epoch_near_end(const struct jobrec *j)
{
    for (uint32_t i = 0; i < j->n_seats && epoch_live(j); i++)
        if (j->seats[i].finished)
            return true;
    return epoch_live(j) && j->status.step + 1 >= j->spec.steps;
}

void epoch_exclude_laggards(struct core *c, struct jobrec *j)
{
    for (uint32_t i = 0; i < j->n_seats; i++) {
        struct workrec *w = j->seats[i].worker;
        if (!w || w->quiesced || w->state == WORKER_STOPPING)
            continue;
        w->blame = j->seats[i].finished ? LOSS_NONE : LOSS_HANG;
        j->charged |= w->blame != LOSS_NONE; /* when it ends */
        worker_stop(c, w, 0, "it did not leave the epoch in time");
    }
    for (size_t i = 0; i < j->n_workers; i++) {
        struct workrec *w = j->workers[i];
        if (!w->leaver || w->quiesced || w->state == WORKER_STOPPING)
            continue;
        w->blame = LOSS_HANG;
        j->charged = true;
        worker_stop(c, w, 0, "it did not leave the epoch in time");
    }
}
