/* SPDX-License-Identifier: Apache-2.0 */
/* writer.c - the background thread, which writes a rank's shard and, on rank 0, commits. */
#include "worker/checkpoint/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/file.h"
#include "base/folder_owner.h"
#include "base/log.h"
#include "base/progress.h"
#include "worker/checkpoint/hf_export.h"
#include "worker/state/snapshot.h"

#define ENTRY_BYTES_MAX ((size_t)64 << 20)
#define WAIT_MS_DEFAULT 600000
#define SHOW_MS_DEFAULT 60000
#define LOOK_MS 20    /* interval of looks at whether a wait for the thread is cancelled */
#define LINGER_MS 250 /* time for the thread to end once cancelled */
#define ENTRY_NAME_BYTES 64
#define IN_PLACE_NS 500000000 /* interval of looks at whether the folder is still in place */
#define POLL_NS 5000000       /* polling: peers on other hosts share only the file system */

struct checkpoint_writer {
    struct writer_options opt;
    char dir[PATH_MAX]; /* copy of opt.dir: the thread may outlive the caller's */
    char run[128];      /* copy of opt.run */
    struct contents {
        struct tensor_spec *specs;
        struct shard_slice *slices;
        int n_specs, n_slices;
    } all, weights;          /* weights: without moments */
    int64_t linger_until_ms; /* 0: not set yet */
    struct snapshot *snapshot;
    const struct train_state *state; /* state to copy into the snapshot; borrowed until the copy is awaited */
    const struct device_handle *device;
    /* Stream of the copy only. The thread owns it until it posts `copied`. NULL: nothing was started yet. */
    struct stream *copies;
    struct event *settled; /* set when the state has the last update */
    sem_t copied;
    bool copying;       /* `copied` must still be awaited */
    atomic_int holders; /* caller and thread */
    pthread_t thread;
    bool started;   /* there is a thread to join */
    bool collected; /* the result has been collected */
    sem_t ended;    /* posted by the thread just before it lets go of this struct */
    _Atomic bool done;
    _Atomic bool cancelled;
    _Atomic int64_t over_ns;                        /* when all other ranks had ended writing; 0: not yet */
    _Atomic bool *absent;                           /* ranks without a part, set by checkpoint_writer_part_failed() */
    char why[sizeof((struct titan_error *)0)->msg]; /* reason of the first absent rank; set before its flag */
    /* Used by the thread while it runs: */
    struct checkpoint_info info;
    float *means; /* of what each replica has of its own; NULL: none of it is written here */
    struct written_checkpoint written;
    struct titan_error uncopied; /* why there is no snapshot; TITAN_OK: there is a snapshot */
    struct titan_error error;
    titan_status status;
};

static titan_status set_up(struct checkpoint_writer *w, struct titan_error *err)
{
    const struct layout *l = w->opt.layout;
    const struct state_types types = w->opt.types;

    titan_assert(!w->snapshot);
    TRY(snapshot_open(w->opt.memory_of, state_copy_bytes(l, w->opt.rank, types), snapshot_available, &w->snapshot,
                      err));
    char *const host = snapshot_memory(w->snapshot);
    TRY(layout_specs(l, &w->all.specs, &w->all.n_specs, err));
    TRY(layout_owned_slices(l, w->opt.rank, NULL, NULL, &w->all.slices, &w->all.n_slices, err));
    for (int i = 0; i < w->all.n_slices; i++) {
        enum dtype type;
        w->all.slices[i].data = (void *)(host + state_copy_place(l, w->opt.rank, types, &w->all.slices[i], &type));
        w->all.slices[i].form = type == DTYPE_BF16 ? SLICE_BF16 : SLICE_FLOATS;
        if (layout_spec_is_each(l, w->all.slices[i].tensor)) {
            if (!w->means)
                w->means = calloc((size_t)layout_total(l, w->opt.rank), sizeof *w->means);
            if (!w->means)
                return titan_fail(err, TITAN_ENOMEM, "checkpoint: out of memory");
            titan_assert(type == DTYPE_F32);
            w->all.slices[i].data = w->means + layout_each_place(l, &w->all.slices[i]);
        }
        if (type == DTYPE_U8)
            w->all.slices[i].form =
                l->kinds.squares >> (l->specs[w->all.slices[i].tensor].kind - 1) & 1 ? SLICE_SQUARES : SLICE_CODES;
    }

    /* Builds the contents for weights only. */
    const struct contents *const all = &w->all;
    struct contents *const ret = &w->weights;
    const int kept = l->n_specs - l->model->n_tensors; /* specs of the optimizer: behind the parameters */
    ret->specs = calloc((size_t)all->n_specs + 1, sizeof *ret->specs);
    ret->slices = calloc((size_t)all->n_slices + 1, sizeof *ret->slices);
    if (!ret->specs || !ret->slices)
        return titan_fail(err, TITAN_ENOMEM, "checkpoint: out of memory");
    for (int i = 0; i < all->n_specs; i++)
        if (!layout_spec_is_kept(l, i))
            ret->specs[ret->n_specs++] = all->specs[i];
    titan_assert(ret->n_specs == all->n_specs - kept);
    for (int i = 0; i < all->n_slices; i++) {
        const int spec = all->slices[i].tensor;
        if (layout_spec_is_kept(l, spec))
            continue;
        ret->slices[ret->n_slices] = all->slices[i];
        ret->slices[ret->n_slices++].tensor = layout_spec_is_bias(l, spec) ? spec - kept : spec;
    }
    return TITAN_OK;
}

titan_status checkpoint_writer_open(const struct writer_options *options, struct checkpoint_writer **ret,
                                    struct titan_error *err)
{
    titan_assert(options->dir && options->layout);
    titan_assert(options->rank >= 0 && options->rank < options->world);
    struct checkpoint_writer *w = calloc(1, sizeof *w);
    if (!w)
        return titan_fail(err, TITAN_ENOMEM, "checkpoint: out of memory");
    w->opt = *options;
    (void)snprintf(w->dir, sizeof w->dir, "%s", options->dir);
    w->opt.dir = w->dir;
    (void)snprintf(w->run, sizeof w->run, "%s", options->run ? options->run : "");
    w->opt.run = w->run;
    atomic_init(&w->holders, 1);
    (void)sem_init(&w->ended, 0, 0);
    (void)sem_init(&w->copied, 0, 0);
    if (w->opt.wait_ms == 0)
        w->opt.wait_ms = WAIT_MS_DEFAULT;
    if (w->opt.show_ms == 0)
        w->opt.show_ms = SHOW_MS_DEFAULT;
    if (w->opt.linger_ms == 0)
        w->opt.linger_ms = LINGER_MS;
    w->collected = true;
    w->absent = calloc((size_t)options->world, sizeof *w->absent);
    const titan_status status = w->absent ? set_up(w, err) : titan_fail(err, TITAN_ENOMEM, "checkpoint: out of memory");
    if (status != TITAN_OK) {
        checkpoint_writer_close(w);
        return status;
    }
    *ret = w;
    return TITAN_OK;
}

/* Releases one of two holds, the caller's or the thread's. The last release frees the writer. */
static void let_go(struct checkpoint_writer *w)
{
    titan_assert(atomic_load(&w->holders) >= 1);
    if (atomic_fetch_sub(&w->holders, 1) > 1)
        return;
    (void)sem_destroy(&w->ended);
    (void)sem_destroy(&w->copied);
    free(w->info.recipe);
    free(w->absent);
    snapshot_close(w->snapshot);
    free(w->means);
    free(w->all.specs);
    free(w->all.slices);
    free(w->weights.specs);
    free(w->weights.slices);
    free(w);
}

static bool join_within(struct checkpoint_writer *w, int64_t ms)
{
    titan_assert(w->started);
    const int64_t until = clock_mono_ns() + ms * 1000000;
    const struct timespec at = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    int rc;
    while ((rc = sem_clockwait(&w->ended, CLOCK_MONOTONIC, &at)) < 0 && errno == EINTR)
        ;
    /* Plain pthread_join(), because the thread sanitizer does not know pthread_clockjoin_np(). */
    return rc == 0 && pthread_join(w->thread, NULL) == 0;
}

/* Returns true if no thread is left. Once cancelled it does not wait for a slow disk; the thread continues alone. */
static bool join_thread(struct checkpoint_writer *w)
{
    if (!w->started)
        return true;
    checkpoint_writer_await_copy(w);
    progress_wait_begin(); /* a disk may be slow */
    bool joined = false;
    while (!joined && !atomic_load(&w->cancelled))
        joined = join_within(w, LOOK_MS);
    if (!joined && w->linger_until_ms == 0) /* set once, however often this is called */
        w->linger_until_ms = clock_mono_ns() / 1000000 + w->opt.linger_ms;
    joined = joined || join_within(w, w->linger_until_ms - clock_mono_ns() / 1000000);
    progress_wait_end();
    w->started = !joined;
    return joined;
}

void checkpoint_writer_close(struct checkpoint_writer *w)
{
    if (!w)
        return;
    checkpoint_writer_cancel(w);
    if (!join_thread(w))
        (void)pthread_detach(w->thread);
    snapshot_unpin(w->snapshot); /* a thread that continues has made its copy */
    if (w->copies)
        w->device->ops->stream_close(w->copies);
    if (w->settled)
        w->device->ops->event_close(w->settled);
    let_go(w);
}

void checkpoint_writer_cancel(struct checkpoint_writer *w)
{
    atomic_store(&w->cancelled, true);
}

/* --- the thread --------------------------------------------------------------------------------------------------- */

/* Makes the file name of a rank's manifest entry. */
static void entry_name(int rank, char name[ENTRY_NAME_BYTES])
{
    (void)snprintf(name, ENTRY_NAME_BYTES, "entry-%05d.json", rank);
}

static const struct contents *contents_of(const struct checkpoint_writer *w)
{
    return w->info.model_only ? &w->weights : &w->all;
}

/* State of rank 0's wait for the other ranks. */
struct parts {
    int folder, at; /* folder of all checkpoints; folder of this unfinished checkpoint */
    int64_t deadline, look_at;
};

/* Waits for one rank's entry. *ret_over: the rank has ended writing, with or without an entry. */
static titan_status await_entry(const struct checkpoint_writer *w, struct parts *p, int rank, struct buf *out,
                                bool *ret_over, struct titan_error *err)
{
    char name[ENTRY_NAME_BYTES];
    struct stat st;

    titan_assert(rank >= 0 && rank < w->opt.world);
    entry_name(rank, name);
    *ret_over = false;
    while (fstatat(p->at, name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno != ENOENT)
            return titan_fail_errno(err, "cannot look for '%s'", name);
        *ret_over = atomic_load(&w->absent[rank]);
        if (*ret_over)
            return titan_fail(err, TITAN_EIO, "%s", w->why);
        if (atomic_load(&w->cancelled))
            return titan_fail(err, TITAN_EREVOKED, "checkpoint of step %lu dropped: rank %d left before it was written",
                              (unsigned long)w->info.step, rank);
        const int64_t now = clock_mono_ns(), over = atomic_load(&w->over_ns);
        if (over != 0 && now - over > (int64_t)w->opt.show_ms * 1000000)
            return titan_fail(err, TITAN_EIO,
                              "checkpoint of step %lu dropped: rank %d has written its part, and it is not in '%s' as "
                              "rank 0 sees it: is the folder one for all nodes?",
                              (unsigned long)w->info.step, rank, w->opt.dir);
        if (now > p->look_at) {
            /* The folder's name must still lead to it. Otherwise ranks that open it later write elsewhere. */
            struct stat opened, named;
            _cleanup_fd_ int again = file_open_named(w->opt.dir, O_RDONLY | O_DIRECTORY);
            if (again < 0 || fstat(again, &named) < 0 || fstat(p->folder, &opened) < 0)
                return titan_fail_errno(err, "checkpoint of step %lu dropped: folder '%s' is gone",
                                        (unsigned long)w->info.step, w->opt.dir);
            if (named.st_dev != opened.st_dev || named.st_ino != opened.st_ino)
                return titan_fail(err, TITAN_EIO, "checkpoint of step %lu dropped: another folder is at '%s' now",
                                  (unsigned long)w->info.step, w->opt.dir);
            p->look_at = now + IN_PLACE_NS;
        }
        if (now > p->deadline)
            return titan_fail(err, TITAN_ETIMEDOUT, "checkpoint of step %lu dropped: rank %d has not written its part",
                              (unsigned long)w->info.step, rank);
        (void)nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
    *ret_over = true;
    return file_read_at(p->at, name, O_NOFOLLOW, ENTRY_BYTES_MAX, out, err);
}

static titan_status commit(struct checkpoint_writer *w, int folder, int at, const struct buf *entries,
                           struct titan_error *err)
{
    const struct contents *c = contents_of(w);
    const struct checkpoint_parts parts = {c->specs, c->n_specs, entries, w->opt.world};
    char name[ENTRY_NAME_BYTES];
    struct log log;

    titan_assert(w->opt.rank == 0);
    log_init(&log, "checkpoint", "rank=%d", w->opt.rank);
    for (int r = 0; r < w->opt.world; r++) { /* the manifest has the entries now */
        entry_name(r, name);
        if (unlinkat(at, name, 0) < 0)
            return titan_fail_errno(err, "cannot remove '%s'", name);
    }
    TRY(failpoint("checkpoint.collected", err));
    TRY(checkpoint_commit(folder, w->opt.dir, &w->info, &parts, w->written.path, err));

    /* The Hugging Face directory stands beside the shards. It gets its final name when it is complete. */
    if (w->info.model_only && w->opt.hf_dtype) {
        _cleanup_fd_ int inside = -1, hf = -1;
        _cleanup_(buf_free) struct buf note = BUF_INIT;
        TRY(dir_open_at(folder, strrchr(w->written.path, '/') + 1, false, &inside, err));
        if (dir_open_at(inside, ".hf", true, &hf, err) != TITAN_OK)
            return titan_error_wrap(err, "'%s'", w->written.path);
        TRY(hf_export(w->written.path, hf, ".hf", w->opt.hf_dtype, &note, err));
        if (note.len > 0)
            tlog_info(&log, "hugging face", "path=\"%s/hf\" note=\"%s\"", w->written.path, note.data);
        TRY(dir_remove_at(inside, "hf", err));
        if (renameat(inside, ".hf", inside, "hf") < 0 || fsync(inside) < 0)
            return titan_fail_errno(err, "cannot rename '%s/.hf'", w->written.path);
    }
    w->written.bytes = w->info.bytes;
    w->written.world = w->opt.world;

    /* The folder's content decides which checkpoints are kept: a checkpoint that was never committed counts as well. */
    struct titan_error fault = {0};
    if (w->opt.keep > 0 &&
        checkpoint_prune(folder, w->opt.dir, w->opt.keep, &w->info, &w->written.spared, &fault) != TITAN_OK)
        tlog_warn(&log, "old checkpoint not removed", "folder=\"%s\" reason=\"%s\"", w->opt.dir, fault.msg);
    return TITAN_OK;
}

/* Writes the rank's shard and entry. Rank 0 then waits until each rank has ended writing, or one stays silent, and
 * commits; the first failure counts. */
static titan_status write_checkpoint(struct checkpoint_writer *w, struct titan_error *err)
{
    const struct contents *c = contents_of(w);
    const struct checkpoint_part part = {c->specs, c->n_specs, c->slices, c->n_slices, w->opt.rank};
    const char *const dir = w->opt.dir;
    _cleanup_(folder_found_clear) struct folder_found found = {0};
    _cleanup_(buf_free) struct buf own = BUF_INIT;
    char name[ENTRY_NAME_BYTES];
    struct stat st;

    /* The folder is made again if it is gone. Its name may lead elsewhere now: below a share that is not mounted, or to
     * another run's folder. */
    TRY(dir_make_named(dir, err));
    _cleanup_fd_ int folder = file_open_named(dir, O_RDONLY | O_DIRECTORY), at = -1;
    if (folder < 0 || fstat(folder, &st) < 0)
        return titan_fail_errno(err, "cannot open folder '%s'", dir);
    if (w->opt.device != 0 && st.st_dev != w->opt.device) {
        dir_unmake_named(dir);
        return titan_fail(err, TITAN_EIO, "'%s' is on another file system than when the run began: is it mounted?",
                          dir);
    }
    if (w->run[0] && st.st_ino != w->opt.inode) {
        TRY(folder_owner_read(folder, &found, err));
        if (found.there && strcmp(found.id, w->run) != 0)
            return titan_fail(err, TITAN_ECONFLICT, "checkpoint folder '%s' has become that of another run", dir);
    }

    TRY(checkpoint_unfinished_open(folder, dir, &w->info, &at, err));
    titan_status status = w->uncopied.status;
    if (status != TITAN_OK)
        *err = w->uncopied;
    if (status == TITAN_OK)
        status = failpoint("checkpoint.write", err);
    if (status == TITAN_OK)
        status = checkpoint_write_shard(folder, dir, &w->info, &part, &own, err);
    entry_name(w->opt.rank, name); /* read by rank 0 only, which puts it in the manifest */
    if (status == TITAN_OK)
        status = file_place_at(at, name, own.data, own.len, err);
    if (w->opt.rank != 0)
        return status;

    const int64_t now = clock_mono_ns();
    struct parts p = {folder, at, now + (int64_t)w->opt.wait_ms * 1000000, now + IN_PLACE_NS};
    struct buf *entries = calloc((size_t)w->opt.world, sizeof *entries);
    if (!entries)
        return titan_fail(err, TITAN_ENOMEM, "checkpoint: out of memory");
    bool over = true;
    for (int r = status == TITAN_OK ? 0 : 1; r < w->opt.world && over; r++) {
        struct titan_error fault = {0};
        const titan_status theirs = await_entry(w, &p, r, &entries[r], &over, &fault);
        if (theirs != TITAN_OK && status == TITAN_OK) {
            status = theirs;
            *err = fault;
        }
    }
    if (status == TITAN_OK)
        status = commit(w, folder, at, entries, err);
    for (int r = 0; r < w->opt.world; r++)
        buf_free(&entries[r]);
    free(entries);
    /* A failed checkpoint is removed. If the epoch is over, the next epoch's sweep removes it instead. */
    if (status != TITAN_OK && status != TITAN_EREVOKED)
        (void)!checkpoint_drop(folder, dir, &w->info, NULL);
    if (status == TITAN_OK)
        w->written.step = w->info.step;
    return status;
}

static void *writer_main(void *arg)
{
    struct checkpoint_writer *w = arg;
    const struct device_ops *ops = w->device->ops;
    struct titan_error *const err = &w->uncopied;
    const int64_t begin = clock_mono_ns();

    /* The state is copied into host memory before any file is touched: the next update waits for this copy. */
    titan_assert(err->status == TITAN_OK);
    titan_status status = failpoint("checkpoint.begun", err);
    if (status == TITAN_OK)
        status = ops->event_wait(w->settled, w->copies, err);
    if (status == TITAN_OK)
        status = state_copy(w->state, snapshot_memory(w->snapshot),
                            snapshot_ready(w->snapshot) ? SNAPSHOT_PIECE_BYTES : 0, w->copies, err);
    if (status != TITAN_OK) {
        if (err->status == TITAN_OK)
            (void)titan_fail(err, status, "the state could not be copied: %s", titan_status_text(status));
        (void)!ops->stream_sync(w->copies, NULL);
        ops->stream_clear(w->copies);
    }
    (void)sem_post(&w->copied);

    w->status = write_checkpoint(w, &w->error);
    w->written.ns = clock_mono_ns() - begin;
    atomic_store(&w->done, true);
    (void)sem_post(&w->ended);
    let_go(w);
    return NULL;
}

/* --- the caller's side -------------------------------------------------------------------------------------------- */

static titan_status still_writing(const struct checkpoint_writer *w, struct titan_error *err)
{
    return titan_fail(err, TITAN_EREVOKED, "checkpoint of step %lu dropped: it was not written when the epoch ended",
                      (unsigned long)w->info.step);
}

float *checkpoint_writer_means(const struct checkpoint_writer *w)
{
    return w->means;
}

void checkpoint_writer_await_copy(struct checkpoint_writer *w)
{
    if (!w->copying)
        return;
    progress_wait_begin();
    while (sem_wait(&w->copied) < 0 && errno == EINTR)
        ;
    progress_wait_end();
    w->copying = false;
}

void checkpoint_writer_part_failed(struct checkpoint_writer *w, int rank, const char *why)
{
    titan_assert(w->opt.rank == 0 && rank > 0 && rank < w->opt.world);
    if (!w->why[0])
        (void)snprintf(w->why, sizeof w->why, "rank %d: %s", rank, why);
    atomic_store(&w->absent[rank], true);
}

titan_status checkpoint_writer_start(struct checkpoint_writer *w, const struct train_state *state,
                                     const struct checkpoint_info *info, struct stream *s, struct titan_error *err)
{
    sigset_t every, old;

    titan_assert(state->rank == w->opt.rank);
    titan_assert(state->types.master == w->opt.types.master && state->types.moment == w->opt.types.moment);
    if (!join_thread(w))
        return still_writing(w, err);
    titan_assert(!w->started);
    free(w->info.recipe);
    w->info = *info;
    w->info.recipe = info->recipe ? strdup(info->recipe) : NULL;
    if (info->recipe && !w->info.recipe)
        return titan_fail(err, TITAN_ENOMEM, "checkpoint: out of memory");

    /* All data has the type that was asked for. Without one, each tensor has the type that the state keeps it in. */
    struct contents *const c = w->info.model_only ? &w->weights : &w->all;
    const int n = w->opt.layout->model->n_tensors;
    for (int i = 0; i < c->n_specs; i++) {
        const bool moment = !w->info.model_only && layout_spec_is_kept(w->opt.layout, i);
        const enum dtype kept = i < n ? state->types.master : moment ? state->types.moment : DTYPE_F32;
        const char *const own = kept == DTYPE_BF16 ? "BF16" : "F32";
        (void)snprintf(c->specs[i].dtype, sizeof c->specs[i].dtype, "%s", w->info.dtype[0] ? w->info.dtype : own);
    }

    /* The thread copies the state as stream s leaves it. */
    titan_assert(!w->copying && (!w->device || w->device == state->device));
    w->device = state->device;
    w->state = state;
    if (!w->copies)
        TRY(w->device->ops->stream_open(w->device->dev, "snapshot", false, &w->copies, err));
    if (!w->settled)
        TRY(w->device->ops->event_open(w->device->dev, &w->settled, err));
    TRY(w->device->ops->event_record(w->settled, s, err));
    w->written = (struct written_checkpoint){0};
    atomic_store(&w->over_ns, 0);
    w->uncopied = w->error = (struct titan_error){0};
    for (int r = 0; r < w->opt.world; r++)
        atomic_store(&w->absent[r], false);
    w->why[0] = '\0';
    atomic_store(&w->done, false);
    sigfillset(&every);
    (void)pthread_sigmask(SIG_SETMASK, &every, &old); /* the main thread handles signals */
    atomic_fetch_add(&w->holders, 1);
    const int rc = pthread_create(&w->thread, NULL, writer_main, w);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0) {
        atomic_fetch_sub(&w->holders, 1);
        return titan_fail(err, TITAN_ENOMEM, "checkpoint: cannot start a thread: %s", strerror(rc));
    }
    w->started = w->copying = true;
    w->collected = false;
    return TITAN_OK;
}

void checkpoint_writer_parts_over(struct checkpoint_writer *w)
{
    titan_assert(w->opt.rank == 0);
    atomic_store(&w->over_ns, clock_mono_ns());
}

titan_status checkpoint_writer_collect(struct checkpoint_writer *w, bool wait, bool *ret_new,
                                       struct written_checkpoint *ret, struct titan_error *err)
{
    *ret_new = false;
    if (w->collected || (!wait && !atomic_load(&w->done)))
        return TITAN_OK;
    *ret_new = true;
    *ret = (struct written_checkpoint){.step = w->info.step};
    if (!join_thread(w))
        return still_writing(w, err);
    titan_assert(!w->started);
    w->collected = true;
    if (w->status == TITAN_OK)
        *ret = w->written;
    if (w->status != TITAN_OK && err)
        *err = w->error;
    return w->status;
}
