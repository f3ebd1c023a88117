/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/shell/disk_usage.h"

#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "base/vec.h"

#define SLICE_MS 2000  /* length of a slice; then other work gets the thread */
#define AGAIN_MS 10000 /* least time between measurements of a changing folder */

struct disk_user {
    struct disk_user *next;
    uint64_t bytes;
    char name[];
};

struct disk_folder {
    uint64_t job_id, bytes;
    struct disk_user *user; /* NULL = unknown: never measured, or of no existing job */
    bool changed;
    int64_t measured_ms; /* 0 = never */
};

/* A walk through the folder of one job, or through jobs_dir for all names. */
struct disk_walk {
    struct file_task task; /* must be first */
    struct coordinator *owner;
    uint64_t job_id; /* 0 = all jobs */
    FTS *fts;
    bool done;
    uint64_t bytes;
    uint64_t *ids;
    size_t n_ids, cap_ids;
    char path[PATH_MAX + 24];
};

struct disk_usage {
    struct disk_user *users;
    struct disk_folder *folders; /* ordered by job_id */
    size_t n, cap, at;           /* at: index of the next folder to look at */
    bool listed, walks;          /* all folders were found; a walk is under way */
};

/* --- on a thread -------------------------------------------------------------------------------------------------- */

static struct disk_walk *walk_of(struct file_task *k)
{
    return (struct disk_walk *)(void *)k;
}

static void walk_free(struct file_task *k)
{
    struct disk_walk *w = walk_of(k);
    if (w->fts)
        fts_close(w->fts);
    free(w->ids);
    free(w);
}

/* Files that have gone or cannot be read are skipped. */
static void walk_on(struct file_task *k)
{
    struct disk_walk *w = walk_of(k);
    const int64_t until = clock_mono_ms() + SLICE_MS;
    char *const paths[] = {w->path, NULL};
    if (!w->fts)
        w->fts = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR | FTS_XDEV, NULL);
    while (w->fts && file_task_wanted(k) && clock_mono_ms() < until) {
        FTSENT *e = fts_read(w->fts);
        if (!e) {
            w->done = true;
            return;
        }
        if (w->job_id || e->fts_level != 1) {
            if (e->fts_info == FTS_D || e->fts_info == FTS_F)
                w->bytes += (uint64_t)e->fts_statp->st_blocks * 512;
        } else if (e->fts_info == FTS_D) { /* a folder of jobs_dir: its name is the job */
            char *end = NULL;
            const uint64_t id = strtoull(e->fts_name, &end, 10);
            if (e->fts_name[0] >= '1' && e->fts_name[0] <= '9' && !*end)
                VEC_MUST_PUSH(w->ids, w->n_ids, w->cap_ids, id);
            (void)fts_set(w->fts, e, FTS_SKIP);
        }
    }
    w->done = !w->fts;
}

/* --- the loop ----------------------------------------------------------------------------------------------------- */

static size_t folder_at(const struct disk_usage *d, uint64_t job_id)
{
    size_t lo = 0, hi = d->n;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (d->folders[mid].job_id < job_id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static struct disk_folder *find_folder(struct disk_usage *d, uint64_t job_id)
{
    const size_t at = folder_at(d, job_id);
    return at < d->n && d->folders[at].job_id == job_id ? &d->folders[at] : NULL;
}

static struct disk_user *find_user(const struct disk_usage *d, const char *name)
{
    struct disk_user *u = d->users;
    while (u && strcmp(u->name, name) != 0)
        u = u->next;
    return u;
}

static void with_user(const struct job *job, void *data)
{
    struct disk_usage *d = ((void **)data)[0];
    struct disk_folder *f = ((void **)data)[1];
    f->user = find_user(d, job->user);
    if (f->user)
        return;
    const size_t len = strlen(job->user) + 1;
    struct disk_user *u = calloc(1, sizeof(*u) + len);
    titan_assert(u);
    memcpy(u->name, job->user, len);
    u->next = d->users;
    d->users = f->user = u;
}

static bool start_walk(struct coordinator *c, uint64_t job_id);

static void on_timer(uv_timer_t *timer)
{
    struct coordinator *c = timer->data;
    struct disk_usage *d = c->disk;
    const int64_t now = clock_mono_ms();
    int64_t next = d->listed ? INT64_MAX : now + AGAIN_MS;
    if (!d->listed)
        (void)start_walk(c, 0);
    for (size_t i = 0; i < d->n && d->listed; i++) {
        struct disk_folder *f = &d->folders[(d->at + i) % d->n];
        const int64_t due = f->measured_ms ? f->measured_ms + AGAIN_MS : now;
        if (f->changed && due > now)
            next = MIN(next, due);
        if (!f->changed || due > now)
            continue;
        d->at = (d->at + i + 1) % d->n;
        f->measured_ms = now;
        f->changed = !start_walk(c, f->job_id);
        next = now + AGAIN_MS;
        break;
    }
    if (!d->walks && next != INT64_MAX)
        uv_timer_start(&c->disk_timer, on_timer, (uint64_t)(next - now), 0);
}

static void look_soon(struct coordinator *c)
{
    if (!c->closing && !c->disk->walks)
        uv_timer_start(&c->disk_timer, on_timer, 0, 0);
}

static void walked(struct file_task *k);
static void given_up(struct file_task *k, bool started);

static const struct file_calls calls = {.run = walk_on, .done = walked, .given_up = given_up, .free = walk_free};

static bool add_walk(struct disk_walk *w)
{
    struct coordinator *c = w->owner;
    c->disk->walks = !c->closing && file_pool_add(c->files, &w->task, &calls, sizeof(*w), NULL) == TITAN_OK;
    if (!c->disk->walks)
        walk_free(&w->task);
    return c->disk->walks;
}

static bool start_walk(struct coordinator *c, uint64_t job_id)
{
    struct disk_walk *w = calloc(1, sizeof(*w));
    titan_assert(w);
    w->owner = c;
    w->task.key = "disk usage"; /* a dead file server holds one thread only */
    w->job_id = job_id;
    if (job_id)
        (void)snprintf(w->path, sizeof(w->path), "%s/%llu", c->jobs_dir, (unsigned long long)job_id);
    else
        (void)snprintf(w->path, sizeof(w->path), "%s", c->jobs_dir);
    return add_walk(w);
}

static void walked(struct file_task *k)
{
    struct disk_walk *w = walk_of(k);
    struct coordinator *c = w->owner;
    const uint64_t job_id = w->job_id;
    if (!w->done) {
        if (!add_walk(w))
            disk_usage_changed(c, job_id);
        return;
    }
    c->disk->walks = false;
    struct disk_folder *f = job_id ? find_folder(c->disk, job_id) : NULL;
    if (f && !f->user)
        (void)!job_get(store_reader(c->store), job_id, with_user, (void *[]){c->disk, f}, NULL);
    if (f && f->user) {
        titan_assert(f->user->bytes >= f->bytes);
        f->user->bytes += w->bytes - f->bytes;
        f->bytes = w->bytes;
    }
    c->disk->listed |= !job_id;
    for (size_t i = 0; i < w->n_ids; i++)
        disk_usage_changed(c, w->ids[i]);
    walk_free(k);
    look_soon(c);
}

/* The folder does not answer, so its last measurement holds. */
static void given_up(struct file_task *k, bool started)
{
    struct disk_walk *w = walk_of(k);
    struct coordinator *c = w->owner;
    if (!c->closing) {
        c->disk->walks = false;
        disk_usage_changed(c, w->job_id);
    }
    if (!started)
        walk_free(k);
}

void disk_usage_open(struct coordinator *c)
{
    if (!c->options.user.disk_bytes)
        return;
    c->disk = calloc(1, sizeof(*c->disk));
    titan_assert(c->disk);
    (void)start_walk(c, 0);
}

void disk_usage_free(struct coordinator *c)
{
    if (!c->disk)
        return;
    for (struct disk_user *u = c->disk->users, *next; u; u = next) {
        next = u->next;
        free(u);
    }
    free(c->disk->folders);
    free(c->disk);
}

void disk_usage_changed(struct coordinator *c, uint64_t job_id)
{
    struct disk_usage *d = c->disk;
    if (!d)
        return;
    const size_t at = folder_at(d, job_id);
    if (job_id && (at == d->n || d->folders[at].job_id != job_id))
        VEC_MUST_INSERT(d->folders, d->n, d->cap, at, (struct disk_folder){.job_id = job_id});
    if (job_id)
        d->folders[at].changed = true;
    look_soon(c);
}

void disk_usage_removed(struct coordinator *c, uint64_t job_id)
{
    struct disk_folder *f = c->disk ? find_folder(c->disk, job_id) : NULL;
    if (!f)
        return;
    if (f->user)
        f->user->bytes -= f->bytes;
    VEC_REMOVE(c->disk->folders, c->disk->n, (size_t)(f - c->disk->folders));
}

void disk_usage_stored(struct coordinator *c, const struct batch *batch)
{
    const size_t n = strlen(c->jobs_dir);
    for (const struct change *k = c->disk ? batch->changes : NULL; k; k = k->next) {
        if (k->kind == CHANGE_CHECKPOINT_COMMIT) {
            /* A job that continues another job writes into the folder of that job. */
            const char *path = k->checkpoint.path;
            const bool inside = strncmp(path, c->jobs_dir, n) == 0 && path[n] == '/';
            disk_usage_changed(c, inside ? strtoull(path + n + 1, NULL, 10) : 0);
        } else if (k->kind == CHANGE_JOB_MOVE && sm_final(&job_sm, (int)k->job.state)) {
            /* The folder changes no more, so it is measured without a wait. */
            disk_usage_changed(c, k->job.id);
            find_folder(c->disk, k->job.id)->measured_ms = 0;
        }
    }
}

bool disk_usage_over(const struct coordinator *c, const char *user, char *text, size_t size)
{
    const struct disk_user *u = c->disk ? find_user(c->disk, user) : NULL;
    char has[UNITS_TEXT], most[UNITS_TEXT];
    if (!u || u->bytes <= c->options.user.disk_bytes)
        return false;
    (void)snprintf(text, size, "%s of %s", format_bytes(u->bytes, has), format_bytes(c->options.user.disk_bytes, most));
    return true;
}
