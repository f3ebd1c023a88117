/* SPDX-License-Identifier: Apache-2.0 */
/* What the coordinator stores on: always the image, for some schedules a real store as well, in memory or on a disk
 * that loses what was not synced, fails and fills up (tests/support/disk.h). The store is asked first; what it has made
 * durable, and only that, becomes part of the image. */
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "daemon/coordinator/shell/store_restore.h"
#include "state/group.h"
#include "state/schema.h"
#include "tests/support/disk.h"

#define WORKERS_GONE 8 /* numbers left out at a restore, as BACKUP_ID_STEP */

static const char path[] = "/state/titan.db";

static void open_db(void)
{
    struct titan_error err = {0};
    const char *name = S->store.disk ? path : ":memory:";
    if (S->store.disk) {
        disk_mount(S->store.disk);
        CHECK("I5", db_rewrite_wal(path, &err) == TITAN_OK, "store: %s", err.msg);
    }
    CHECK("I5", db_open(name, DB_WRITER, S->store.disk != NULL, &S->store.db, &err) == TITAN_OK, "store: %s", err.msg);
    CHECK("I5", schema_migrate(&schema_store, S->store.db, &err) == TITAN_OK, "store: %s", err.msg);
    CHECK("I5", db_exec(S->store.db, "INSERT INTO meta VALUES ('turn', 0) ON CONFLICT DO NOTHING", &err) == TITAN_OK,
          "store: %s", err.msg);
}

void store_begin(enum store_kind kind)
{
    if (kind == STORE_IMAGE)
        return;
    if (kind == STORE_DISK)
        S->store.disk = disk_new(S->plan->seed);
    open_db();
}

void store_end(void)
{
    db_close(S->store.db);
    S->store.db = NULL;
    if (S->store.disk) {
        disk_unmount(S->store.disk);
        disk_free(S->store.disk);
    }
    S->store.disk = NULL;
    free(S->store.backup);
    S->store.backup = NULL;
}

usec store_takes(void)
{
    if (S->now < S->store.slow_until)
        return between(CHANCE_DISK, 50 * MS, 400 * MS);
    return chance(CHANCE_DISK, 5) ? between(CHANCE_DISK, 5 * MS, 100 * MS) : between(CHANCE_DISK, 100, 2 * MS);
}

bool store_accepts(void)
{
    if (S->store.disk && S->now >= S->store.full_until)
        disk_set_capacity(S->store.disk, 0);
    return S->store.disk || (S->now >= S->store.full_until && S->now >= S->store.error_until);
}

void store_trouble(const struct fault *f)
{
    struct disk *d = S->store.disk;
    switch (f->kind) {
    case FAULT_DISK_SLOW:
        S->store.slow_until = S->now + f->lasts;
        break;
    case FAULT_DISK_FULL:
        S->store.full_until = S->now + f->lasts;
        if (d)
            disk_set_capacity(d, disk_used(d) + f->pick % 20000);
        break;
    default:
        S->store.error_until = S->now + f->lasts;
        if (d) {
            disk_on_failed_sync(d, (enum disk_failed_sync)(f->pick2 % 3));
            disk_fail(d, f->pick % 2 ? DISK_SYNC : DISK_CHANGES, NULL, 1 + f->pick % 9,
                      f->pick2 % 2 ? DISK_EIO : DISK_SHORT, false);
        }
        break;
    }
}

/* --- commits ------------------------------------------------------------------------------------------------------ */

struct write {
    int submit;
    const struct change *list;
};

static titan_status apply(struct db *db, void *arg, struct titan_error *err)
{
    const struct write *w = arg;
    struct job job = S->plan->specs[w->submit];
    uint64_t existing = 0;
    TRY(db_run(db, err, "UPDATE meta SET value = ? WHERE key = 'turn'", "u", S->store.turn + 1));
    if (w->submit) {
        job.state = JOB_PENDING;
        TRY(job_submit(db, &job, "recipe", &existing, err));
    }
    return change_apply(db, w->list, err);
}

static void into_image(const struct write *w)
{
    S->store.turn++;
    if (w->submit)
        image_submit(w->submit);
    for (const struct change *c = w->list; c; c = c->next)
        image_apply(c);
}

/* A failed sync says nothing about what is on the disk: the process ends, and the next one looks. */
static enum stored find_out(const struct write *w)
{
    struct titan_error err = {0};
    int64_t turn = 0;
    totals->syncs_failed++;
    store_reboot(false);
    CHECK("I5", db_int(S->store.db, &turn, &err, "SELECT value FROM meta WHERE key = 'turn'", "") == TITAN_OK,
          "store: %s", err.msg);
    if ((uint64_t)turn != S->store.turn)
        into_image(w);
    return STORED_DIED;
}

enum stored store_commit(int submit, const struct change *list)
{
    struct write w = {submit, list};
    struct group_write g = {.fn = apply, .arg = &w};
    struct group_stats stats = {0};
    if (!store_accepts())
        return STORED_REFUSED;
    if (S->store.db)
        group_commit(S->store.db, NULL, &g, &stats);
    if (S->store.disk && db_sync_failed(S->store.db, NULL) != TITAN_OK)
        return find_out(&w);
    if (S->store.disk && (g.err.status == TITAN_ENOSPC || g.err.status == TITAN_EIO || g.err.status == TITAN_EAGAIN))
        return STORED_REFUSED;
    CHECK("I6", g.err.status == TITAN_OK, "store: %s", g.err.msg);
    into_image(&w);
    return STORED;
}

/* --- the next process --------------------------------------------------------------------------------------------- */

static void same_job(const struct job *job, void *data)
{
    const struct image_job *j = data;
    CHECK("I5", job->state == j->job.state && job->status.epoch == j->job.status.epoch,
          "job %llu is %s in epoch %llu on disk, and was %s in %llu", LL(job->id), sm_name(&job_sm, (int)job->state),
          LL(job->status.epoch), sm_name(&job_sm, (int)j->job.state), LL(j->job.status.epoch));
}

/* Everything that was durable is there, and nothing else. */
static void compare(void)
{
    struct titan_error err = {0};
    int64_t turn = 0;
    CHECK("I5", schema_check(S->store.db, false, &err) == TITAN_OK, "store: %s", err.msg);
    CHECK("I5", db_int(S->store.db, &turn, &err, "SELECT value FROM meta WHERE key = 'turn'", "") == TITAN_OK,
          "store: %s", err.msg);
    CHECK("I5", (uint64_t)turn == S->store.turn, "%llu changes were made durable, %lld are there", LL(S->store.turn),
          (long long)turn);
    for (uint64_t id = 1; id <= SIM_JOBS; id++)
        if (S->image.jobs[id].there)
            CHECK("I5", job_get(S->store.db, id, same_job, &S->image.jobs[id], &err) == TITAN_OK, "store: %s", err.msg);
}

void store_reboot(bool power)
{
    if (!S->store.disk)
        return;
    uint64_t seed = draw(CHANCE_DISK);
    disk_fail(S->store.disk, 0, NULL, 0, DISK_EIO, false);
    struct disk *next = power ? disk_after_power_cut(S->store.disk, seed) : disk_after_kill(S->store.disk, seed);
    db_close(S->store.db);
    S->store.db = NULL;
    disk_unmount(S->store.disk);
    disk_free(S->store.disk);
    S->store.disk = next;
    open_db();
}

void store_restore(struct core *core, struct core_time now)
{
    struct titan_error err = {0};
    if (!S->store.db) {
        image_restore(core, now);
        return;
    }
    if (S->store.disk)
        compare();
    CHECK("I5", core_restore(core, S->store.db, now, NULL, NULL, &err) == TITAN_OK, "restore: %s", err.msg);
}

void store_back_up(void)
{
    if (S->plan->store != STORE_IMAGE)
        return;
    S->store.backup = malloc(sizeof(*S->store.backup));
    titan_assert(S->store.backup);
    *S->store.backup = S->image; /* it points into itself: at its own place only */
    S->store.backup_term = S->coord.term;
    memcpy(S->store.cancelled_then, S->coord.cancel_acked, sizeof(S->store.cancelled_then));
}

void store_swap(void)
{
    struct image *now = malloc(sizeof(*now));
    uint64_t term = S->coord.term;
    titan_assert(now);
    *now = S->image;
    S->image = *S->store.backup;
    S->coord.term = S->store.backup_term;
    free(S->store.backup);
    S->store.backup = now;
    S->store.backup_term = term;
    S->store.old = !S->store.old;
}

/* Agents know what goes on; what was asked for after the backup is lost: those submits and cancels, although they were
 * acknowledged. */
void store_put_back(void)
{
    const uint64_t worker = MAX(S->image.last_worker, S->image.origin.gone_worker), term = S->coord.term;
    for (int id = 1; id <= S->plan->jobs; id++) {
        S->store.lost[id] |= S->image.jobs[id].there && !S->store.backup->jobs[id].there;
        S->coord.job_acked[id] &= !S->store.lost[id];
        S->coord.cancel_acked[id] &= S->store.cancelled_then[id];
    }
    S->image = *S->store.backup;
    S->coord.term = term + BACKUP_TERM_STEP;
    S->image.origin = (struct backup_origin){
        .term = S->coord.term, .backup_worker = S->image.last_worker, .gone_worker = worker + WORKERS_GONE};
}
