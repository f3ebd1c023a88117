/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/shell/store_restore.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/cleanup.h"
#include "base/utf8.h"
#include "base/vec.h"
#include "proto/ranges.h"
#include "state/backup.h"

/* Results of one job's queries. The arena holds the strings until the core has copied them. */
struct gather {
    struct core *core;
    struct db *db;
    struct core_time now;
    struct titan_error *err;
    titan_status status;
    void (*bad)(uint64_t job_id, const char *why, void *data); /* NULL = no job is skipped */
    void *bad_data;

    struct arena memory; /* memory for the results of one job */
    struct core_saved_job saved;
    struct worker *workers;
    struct checkpoint *checkpoints;
    struct loss *losses;
    struct epoch epoch;
    uint64_t *holders;
    struct core_saved_base *bases;
    /* capacities of the arrays, which are reused from job to job */
    size_t cap_workers, cap_checkpoints, cap_losses, cap_bases, cap_lost;
    struct worker *lost;
};

static void gather_free(struct gather *g)
{
    arena_free(&g->memory);
    free(g->workers);
    free(g->checkpoints);
    free(g->losses);
    free(g->bases);
    free(g->lost);
}

/* Is ms a Unix time that sums cannot overflow? 0 = none. */
static bool time_ok(int64_t ms)
{
    return ms >= 0 && ms <= INT64_MAX / 4;
}

static bool name_ok(const char *node)
{
    const size_t n = strlen(node);
    return n > 0 && n <= 253 && text_unfit(node, n) == n;
}

static titan_status check_loss(const struct loss *l, struct titan_error *err)
{
    if (l->cause > LOSS_NONE && l->cause < LOSS_CAUSES && time_ok(l->at_ms))
        return TITAN_OK;
    return titan_fail(err, TITAN_ECORRUPT, "a loss of job %" PRIu64 " has cause %d at %" PRId64, l->job_id,
                      (int)l->cause, l->at_ms);
}

static bool each_node(const struct node *n, void *data)
{
    struct gather *g = data;
    if (!name_ok(n->name) || (n->state != NODE_READY && n->state != NODE_LOST) || !time_ok(n->last_seen_ms)) {
        g->status =
            titan_fail(g->err, TITAN_ECORRUPT, "job store: node '%s' is %s", n->name, sm_name(&node_sm, (int)n->state));
        return false;
    }
    core_restore_node(g->core, n, g->now);
    return true;
}

static bool each_worker(const struct worker *w, void *data)
{
    struct gather *g = data;
    struct worker copy = *w;
    copy.node = arena_strdup(&g->memory, w->node);
    copy.address = arena_strdup(&g->memory, w->address);
    copy.reason = "";
    VEC_MUST_PUSH(g->workers, g->saved.n_workers, g->cap_workers, copy);
    return true;
}

static bool each_checkpoint(const struct checkpoint *k, void *data)
{
    struct gather *g = data;
    struct checkpoint copy = *k;
    copy.path = arena_strdup(&g->memory, k->path);
    VEC_MUST_PUSH(g->checkpoints, g->saved.n_checkpoints, g->cap_checkpoints, copy);
    return true;
}

static uint64_t *copy_ids(struct gather *g, const struct epoch *e)
{
    const size_t n = e->world_size + e->departing;
    uint64_t *ids = arena_alloc(&g->memory, (n + 1) * sizeof(*ids));
    memcpy(ids, e->workers, n * sizeof(*ids));
    return ids;
}

static void with_epoch(const struct epoch *e, void *data)
{
    struct gather *g = data;
    g->epoch = *e;
    g->epoch.checkpoint = arena_strdup(&g->memory, e->checkpoint);
    g->epoch.leader = arena_strdup(&g->memory, e->leader);
    g->epoch.workers = copy_ids(g, e);
    g->saved.epoch = &g->epoch;
}

static void with_holders(const struct epoch *e, void *data)
{
    struct gather *g = data;
    g->saved.holders = g->holders = copy_ids(g, e);
    g->saved.n_holders = e->world_size;
}

static void with_base(const struct epoch *e, void *data)
{
    struct gather *g = data;
    const struct core_saved_base base = {
        .epoch = e->number,
        .n = e->world_size,
        .workers = copy_ids(g, e),
        .source = e->source_epoch,
        .complete = e->complete,
    };
    VEC_MUST_PUSH(g->bases, g->saved.n_bases, g->cap_bases, base);
}

static bool each_lost(const struct worker *w, void *data)
{
    struct gather *g = data;
    if (w->state != WORKER_LOST)
        return true;
    struct worker copy = *w;
    copy.node = arena_strdup(&g->memory, w->node);
    VEC_MUST_PUSH(g->lost, g->saved.n_lost, g->cap_lost, copy);
    return true;
}

static titan_status gather_job(struct gather *g, uint64_t id)
{
    enum run_state run = RUN_NONE;
    TRY(run_last(g->db, id, &g->saved.run, &run, g->err));
    g->saved.run_active = run == RUN_ACTIVE;
    TRY(worker_list(g->db, id, true, each_worker, g, g->err));
    TRY(checkpoint_list(g->db, id, each_checkpoint, g, g->err));
    if (g->saved.job.status.epoch == 0)
        return TITAN_OK;
    TRY(epoch_get(g->db, id, 0, with_epoch, g, g->err));
    if (g->epoch.source_epoch) {
        /* After epoch.restored the store may lack the previous epoch. */
        titan_status status = epoch_get(g->db, id, g->epoch.source_epoch, with_holders, g, g->err);
        if (status != TITAN_OK && status != TITAN_ENOTFOUND)
            return status;
    }
    /* The quorum configurations and the epochs that a worker may hold begin at the newest epoch that made a step. */
    uint64_t first = 0;
    TRY(epoch_last_trained(g->db, id, &first, g->err));
    for (uint64_t number = first ? first : 1; number && number <= g->epoch.number;) {
        TRY(epoch_get(g->db, id, number, with_base, g, g->err));
        TRY(epoch_next(g->db, id, &number, g->err));
    }
    g->saved.bases = g->bases;
    TRY(worker_list(g->db, id, false, each_lost, g, g->err));
    g->saved.lost = g->lost;
    return TITAN_OK;
}

static void each_job_loss(const struct loss *l, void *data)
{
    struct gather *g = data;
    VEC_MUST_PUSH(g->losses, g->saved.n_losses, g->cap_losses, *l);
}

static titan_status check_ids(uint64_t epoch, const uint64_t *ids, size_t n, struct titan_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] == 0 || ids[i] > RANGE_ID_MAX)
            return titan_fail(err, TITAN_ECORRUPT, "epoch %" PRIu64 " has a member %" PRIu64, epoch, ids[i]);
    return TITAN_OK;
}

/* Rejects impossible numbers now, because they would otherwise be found too late. A version that believed such numbers
 * has written them, or the disk has lost bits. */
static titan_status check_numbers(const struct gather *g, struct titan_error *err)
{
    const struct job *job = &g->saved.job;
    const struct job_spec *s = &job->spec;
    const uint64_t newest = g->saved.epoch ? g->epoch.number : 0, most = g->saved.epoch ? g->epoch.resume_step : 0;
    if (job->id == 0 || job->id > RANGE_ID_MAX)
        return titan_fail(err, TITAN_ECORRUPT, "its number is %" PRIu64, job->id);
    if (s->min_workers > s->max_workers || s->max_workers == 0 || s->max_workers > JOB_WORKERS_MAX)
        return titan_fail(err, TITAN_ECORRUPT, "it is for %u to %u workers", s->min_workers, s->max_workers);
    if (job->status.epoch > RANGE_EPOCH_MAX || newest > RANGE_EPOCH_MAX)
        return titan_fail(err, TITAN_ECORRUPT, "it is in epoch %" PRIu64, MAX(job->status.epoch, newest));
    if (newest && job->status.epoch != newest)
        return titan_fail(err, TITAN_ECORRUPT, "it is in epoch %" PRIu64 ", and its newest is %" PRIu64,
                          job->status.epoch, newest);
    if (s->steps > RANGE_STEP_MAX || most > RANGE_STEP_MAX || job->status.step > MAX(s->steps, most))
        return titan_fail(err, TITAN_ECORRUPT, "it is at step %" PRIu64 " of %" PRIu64, job->status.step, s->steps);
    if (job->status.evaluation.step > RANGE_STEP_MAX)
        return titan_fail(err, TITAN_ECORRUPT, "it was evaluated after step %" PRIu64, job->status.evaluation.step);
    for (size_t i = 0; i < g->saved.n_checkpoints; i++)
        if (g->checkpoints[i].step > RANGE_STEP_MAX || g->checkpoints[i].epoch > RANGE_EPOCH_MAX)
            return titan_fail(err, TITAN_ECORRUPT, "it has a checkpoint of step %" PRIu64 " and epoch %" PRIu64,
                              g->checkpoints[i].step, g->checkpoints[i].epoch);
    for (size_t i = 0; i < g->saved.n_losses; i++)
        TRY(check_loss(&g->losses[i], err));

    const struct epoch *e = g->saved.epoch;
    for (size_t i = 0; i < g->saved.n_workers; i++) {
        const struct worker *w = &g->workers[i];
        if (w->id == 0 || w->id > RANGE_ID_MAX ||
            (w->state != WORKER_STARTING && w->state != WORKER_READY && w->state != WORKER_STOPPING) ||
            !name_ok(w->node))
            return titan_fail(err, TITAN_ECORRUPT, "it has a worker %" PRIu64 " on '%s', %s", w->id, w->node,
                              sm_name(&worker_sm, (int)w->state));
    }
    if (!e)
        return TITAN_OK;
    if (e->world_size == 0 || e->source_epoch >= e->number ||
        (e->source_epoch && e->source != TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY))
        return titan_fail(err, TITAN_ECORRUPT, "epoch %" PRIu64 " has %u members and its state from epoch %" PRIu64,
                          e->number, e->world_size, e->source_epoch);
    TRY(check_ids(e->number, e->workers, e->world_size + e->departing, err));
    TRY(check_ids(e->source_epoch, g->saved.holders, g->saved.n_holders, err));
    for (size_t b = 0; b < g->saved.n_bases; b++) {
        if (g->bases[b].n == 0 || g->bases[b].source >= g->bases[b].epoch)
            return titan_fail(err, TITAN_ECORRUPT, "epoch %" PRIu64 " has %u members and its state from epoch %" PRIu64,
                              g->bases[b].epoch, g->bases[b].n, g->bases[b].source);
        TRY(check_ids(g->bases[b].epoch, g->bases[b].workers, g->bases[b].n, err));
    }
    return TITAN_OK;
}

static titan_status check_states(const struct gather *g, struct titan_error *err)
{
    /* For each state of a job: the states that its newest epoch can have. Every move keeps to this table. */
#define IN(state) SM_BIT(EPOCH_##state)
    static const uint32_t fits[] = {[JOB_PENDING] = IN(NONE) | IN(REVOKED) | IN(ENDED),
                                    [JOB_FORMING] = IN(NONE) | IN(FORMING) | IN(REVOKED) | IN(ENDED),
                                    [JOB_RUNNING] = IN(RUNNING) | IN(ENDED),
                                    [JOB_RECOVERING] = IN(FORMING) | IN(REVOKED) | IN(ENDED),
                                    [JOB_RESIZING] = IN(FORMING) | IN(RUNNING) | IN(ENDED),
                                    [JOB_CANCELLING] = IN(NONE) | IN(FORMING) | IN(RUNNING) | IN(REVOKED) | IN(ENDED)};
#undef IN
    const struct job *job = &g->saved.job;
    const enum epoch_state epoch = g->saved.epoch ? g->epoch.state : EPOCH_NONE;
    const bool live = epoch == EPOCH_FORMING || epoch == EPOCH_RUNNING, waits = job->state == JOB_PENDING;
    if (epoch > EPOCH_ENDED || (size_t)job->state >= ARRAY_SIZE(fits) || !(fits[job->state] & SM_BIT(epoch)))
        return titan_fail(err, TITAN_ECORRUPT, "it is %s, and its newest epoch %s", sm_name(&job_sm, (int)job->state),
                          sm_name(&epoch_sm, (int)epoch));
    if (waits && (g->saved.run_active || g->saved.n_workers))
        return titan_fail(err, TITAN_ECORRUPT, "it waits, and has %zu workers", g->saved.n_workers);
    for (size_t i = 0; i < g->saved.n_workers && !g->saved.run_active; i++)
        if (g->workers[i].state != WORKER_STOPPING)
            return titan_fail(err, TITAN_ECORRUPT, "no run of it is active, and worker %" PRIu64 " is %s",
                              g->workers[i].id, sm_name(&worker_sm, (int)g->workers[i].state));
    for (size_t i = 0; i < g->saved.n_workers && (job->state == JOB_CANCELLING || epoch == EPOCH_ENDED); i++)
        if (g->workers[i].state != WORKER_STOPPING)
            return titan_fail(err, TITAN_ECORRUPT, "it ends, and worker %" PRIu64 " is %s", g->workers[i].id,
                              sm_name(&worker_sm, (int)g->workers[i].state));
    if (live && !g->saved.run_active)
        return titan_fail(err, TITAN_ECORRUPT, "its newest epoch is %s, and no run is", sm_name(&epoch_sm, (int)epoch));
    if (live &&
        (g->epoch.world_size != job->status.world_size || !world_set_has(&job->spec.worlds, g->epoch.world_size)))
        return titan_fail(err, TITAN_ECORRUPT, "its newest epoch is of %u workers, and the job of %u",
                          g->epoch.world_size, job->status.world_size);
    return TITAN_OK;
}

static bool each_job(const struct job *job, void *data)
{
    struct gather *g = data;
    memset(&g->saved, 0, sizeof(g->saved));
    g->saved.job = *job;
    if (job->state != JOB_PENDING || job->status.preemptions > 0)
        g->status = gather_job(g, job->id);
    g->saved.workers = g->workers;
    const int64_t window_ms = (int64_t)job->spec.restart_window_s * 1000;
    if (g->status == TITAN_OK && job->status.restarts > 0 && window_ms > 0)
        g->status = loss_list(g->db, job->id, g->now.wall_ms - window_ms, each_job_loss, g, g->err);
    g->saved.checkpoints = g->checkpoints;
    g->saved.losses = g->losses;
    if (g->status == TITAN_OK)
        g->status = check_numbers(g, g->err);
    if (g->status == TITAN_OK)
        g->status = check_states(g, g->err);
    if (g->status == TITAN_OK)
        core_restore_job(g->core, &g->saved, g->now);
    /* Skips the job, because a fault in one job does not stop the others. A fault of the disk ends the restore. */
    if (g->bad && (g->status == TITAN_ECORRUPT || g->status == TITAN_ENOTFOUND)) {
        g->bad(job->id, g->err ? g->err->msg : "", g->bad_data);
        if (g->err)
            *g->err = (struct titan_error){0};
        g->status = TITAN_OK;
    }
    arena_free(&g->memory);
    return g->status == TITAN_OK;
}

static void each_policy(const struct node_policy *p, void *data)
{
    struct gather *g = data;
    if (!time_ok(p->deadline_ms) || !time_ok(p->window_from_ms) || !time_ok(p->window_until_ms) ||
        !time_ok(p->window_lead_ms) || !time_ok(p->quarantined_until_ms) ||
        (p->quarantined_until_ms && !p->quarantines))
        g->status =
            titan_fail(g->err, TITAN_ECORRUPT, "job store: what is decided about node '%s' has no time", p->name);
    if (g->status == TITAN_OK)
        core_restore_policy(g->core, p, g->now);
}

static void each_loss(const struct loss *l, void *data)
{
    struct gather *g = data;
    if (g->status == TITAN_OK)
        g->status = check_loss(l, g->err);
    if (g->status == TITAN_OK)
        core_restore_loss(g->core, l, g->now);
}

titan_status core_restore(struct core *c, struct db *db, struct core_time now,
                          void (*bad)(uint64_t job_id, const char *why, void *data), void *data,
                          struct titan_error *err)
{
    _cleanup_(gather_free) struct gather g = {
        .core = c, .db = db, .now = now, .err = err, .bad = bad, .bad_data = data};
    struct backup_origin origin;
    TRY(backup_origin(db, &origin, err));
    if (origin.term) {
        /* Restores the ids of workers that were started between backup and restore, and that agents have reported
         * already. */
        sqlite3_stmt *stmt = NULL;
        bool row = false;
        TRY(db_query(db, &stmt, err, "SELECT id FROM workers WHERE id > ? AND id <= ?", "uu", origin.backup_worker,
                     origin.gone_worker));
        titan_status status;
        while ((status = db_step(db, stmt, &row, err)) == TITAN_OK && row)
            core_restore_taken(c, col_uint(stmt, 0));
        db_done(stmt);
        TRY(status);
    }
    TRY(node_list(db, each_node, &g, err));
    TRY(g.status);
    TRY(node_policy_list(db, each_policy, &g, err));
    TRY(g.status);
    TRY(loss_list(db, 0, now.wall_ms - CORE_NODE_HISTORY_MS, each_loss, &g, err));
    TRY(g.status);
    TRY(job_list_open(db, each_job, &g, err));
    return g.status;
}
