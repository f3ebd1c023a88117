/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/checkpoint/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/file.h"
#include "base/json.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/sharing.h"

#define LOOK_MS 10

/* --- the owner file ----------------------------------------------------------------------------------------------- */

static titan_status write_owner(int at, const struct folder_owner *o, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json_writer w = {.out = &text};
    char hash[32];

    titan_assert(o->recipe && o->text);
    (void)snprintf(hash, sizeof hash, "%016" PRIx64, o->recipe_hash);
    json_begin_object(&w, NULL);
    json_put_string(&w, "format", FOLDER_OWNER_FORMAT);
    json_put_string(&w, "id", o->id);
    json_put_string(&w, "name", o->name);
    if (o->user.name[0])
        json_put_string(&w, "user", o->user.name);
    if (o->user.uid >= 0)
        json_put_int(&w, "uid", o->user.uid);
    if (o->recipe->checkpoint.shared_with[0])
        json_put_string(&w, "shared_with", o->recipe->checkpoint.shared_with);
    json_put_string(&w, "recipe_hash", hash);
    json_put_string(&w, "recipe", o->text);
    json_end_object(&w);
    buf_puts(&text, "\n");
    if (buf_failed(&text))
        return titan_fail(err, TITAN_ENOMEM, "no memory for an owner file");
    return file_replace_at(at, FOLDER_OWNER_NAME, text.data, text.len, err);
}

/* --- owner -------------------------------------------------------------------------------------------------------- */

static titan_status refuse_user(const char *path, struct titan_error *err)
{
    (void)titan_fail(err, TITAN_ECONFLICT, "checkpoint folder '%s' holds the checkpoints of another user", path);
    titan_error_hint(err, "use another checkpoint.folder; checkpoint.initial_load_path begins from what is shared");
    return TITAN_ECONFLICT;
}

/* Checks the folder's user. An owner file without a user passes if it is the run's own, or if the coordinator found
 * that it belongs to the run's user. */
static titan_status check_user(const char *path, const struct folder_owner *o, const struct folder_found *f,
                               struct titan_error *err)
{
    const bool same = f->user.name[0] ? folder_user_same(&f->user, &o->user)
                                      : !o->user.name[0] || strcmp(f->id, o->id) == 0 ||
                                            folder_admits(f, &o->user, o->recipe->checkpoint.folder_owner);
    return !f->there || same ? TITAN_OK : refuse_user(path, err);
}

/* Compares recipes. recipe: the other recipe's text; "": this user must not learn the differences. */
static titan_status check_keys(const char *path, const struct folder_owner *o, const char *by, uint64_t hash,
                               const char *recipe, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf keys = BUF_INIT;

    if (hash == o->recipe_hash || recipe_continues(o->recipe, hash, recipe, &keys))
        return TITAN_OK;
    (void)titan_fail(err, TITAN_ECONFLICT, "checkpoint folder '%s' holds checkpoints of another recipe, by %s%s%s",
                     path, by, keys.len > 0 ? ": " : "", keys.len > 0 ? keys.data : "");
    titan_error_hint(
        err, "use another checkpoint.folder, or the recipe these were written with; checkpoint.accept_changed takes "
             "what is meant to be another");
    return TITAN_ECONFLICT;
}

static titan_status check_recipe(const char *path, int at, const struct folder_owner *o, const struct folder_found *f,
                                 struct titan_error *err)
{
    _cleanup_free_ uint64_t *steps = NULL;
    size_t n = 0;

    TRY(checkpoint_steps(at, path, &steps, &n, err));
    if (n > 0 && f->there)
        return check_keys(path, o, f->name, f->recipe_hash, f->recipe, err);
    /* Earlier versions wrote no owner file: the newest readable checkpoint names the user and recipe. */
    for (size_t i = 0; i < n; i++) {
        _cleanup_(checkpoint_info_clear) struct checkpoint_info info = {0};
        struct folder_user by;
        if (checkpoint_read_info_at(at, steps[i], &info, NULL) != TITAN_OK)
            continue;
        if (folder_user_parse(info.owner, &by) && !folder_user_same(&by, &o->user))
            return refuse_user(path, err);
        return check_keys(path, o, "a run without an owner file", info.recipe_hash, by.name[0] ? info.recipe : "", err);
    }
    return TITAN_OK; /* an unreadable checkpoint is neither overwritten nor loaded; the run reports it */
}

/* --- apart -------------------------------------------------------------------------------------------------------- */

struct job {
    struct apart apart;
    char *path;
    /* for folder_take */
    struct folder_owner owner;
    char *text;
    const struct log *log;
    struct folder folder;
    /* for folder_list and folder_find */
    char place[PATH_MAX];
    struct checkpoint_line_list list;
    /* for folder_look */
    uint64_t step;
};

static void clear_job(struct apart *a)
{
    struct job *j = (struct job *)a;
    folder_leave(&j->folder);
    free(j->path);
    free(j->text);
    checkpoint_line_list_clear(&j->list);
    free(j);
}

static void close_job(struct job **j)
{
    apart_close((struct apart *)*j);
}

/* --- taking it ---------------------------------------------------------------------------------------------------- */

enum taken { TAKEN, BUSY, NO_LOCKS };

static enum taken try_lock(int fd, int how)
{
    while (flock(fd, how | LOCK_NB) < 0)
        if (errno != EINTR)
            return errno == EWOULDBLOCK ? BUSY : NO_LOCKS;
    return TAKEN;
}

/* Tries once to take the open folder. Processes of the same run share the lock. Another run must lock the folder
 * exclusively to become its owner. */
static titan_status attempt(const struct job *j, int at, int lock, struct folder_found *f, enum taken *ret,
                            struct titan_error *err)
{
    const struct folder_owner *const o = &j->owner;
    titan_assert(at >= 0 && lock >= 0);
    TRY(folder_owner_read(at, f, err));
    TRY(check_user(j->path, o, f, err));
    if (f->there && strcmp(f->id, o->id) == 0 && f->recipe_hash == o->recipe_hash) {
        *ret = try_lock(lock, LOCK_SH);
        if (*ret != TAKEN)
            return TITAN_OK;
        TRY(folder_owner_read(at, f, err));
        if (!f->there || strcmp(f->id, o->id) != 0) /* another run has taken the folder meanwhile */
            *ret = BUSY;
        return TITAN_OK;
    }
    *ret = try_lock(lock, LOCK_EX);
    if (*ret == BUSY)
        return TITAN_OK;
    TRY(folder_owner_read(at, f, err));
    TRY(check_user(j->path, o, f, err));
    TRY(check_recipe(j->path, at, o, f, err));
    /* Sets access lists only if this process runs as the job's user. A folder of titand needs none: titand's workers of
     * any job can read it. */
    struct titan_error fault = {0};
    struct stat st;
    if (fstat(at, &st) == 0 && st.st_uid == geteuid() && (int64_t)st.st_uid == o->user.uid &&
        sharing_set(at, o->recipe->checkpoint.shared_with, &fault) != TITAN_OK)
        tlog_warn(j->log, "users that the checkpoint folder is shared with may not be able to read it",
                  "folder=\"%s\" reason=\"%s\"", j->path, fault.msg);
    TRY(write_owner(at, o, err));
    checkpoint_sweep(at, UINT64_MAX); /* removes directories that an earlier run, now ended, left unfinished */
    if (*ret == TAKEN)
        *ret = try_lock(lock, LOCK_SH);
    return TITAN_OK;
}

static titan_status run_take(struct apart *a, struct titan_error *err)
{
    struct job *j = (struct job *)a;
    _cleanup_(folder_found_clear) struct folder_found above = {0}, f = {0};
    struct stat st;
    char name[64];

    TRY(failpoint("folder.take", err));
    /* This check comes first, so that no folder is made inside another user's folder. */
    TRY(folder_owner_above(j->path, &above, err));
    TRY(check_user(j->path, &j->owner, &above, err));
    TRY(dir_make_named(j->path, err));
    _cleanup_fd_ int at = file_open_named(j->path, O_RDONLY | O_DIRECTORY);
    if (at < 0 || fstat(at, &st) < 0)
        return titan_fail_errno(err, "cannot be opened");
    (void)snprintf(name, sizeof name, ".probe-%d-%" PRId64, (int)getpid(), clock_mono_ns());
    if (mkdirat(at, name, 0755) < 0)
        return titan_fail_errno(err, "cannot be written");
    if (unlinkat(at, name, AT_REMOVEDIR) < 0)
        return titan_fail_errno(err, "cannot be written: '%s'", name);

    const int64_t until = clock_mono_ns() + j->owner.wait_ms * INT64_C(1000000);
    enum taken taken = BUSY;
    _cleanup_fd_ int lock = openat(at, FOLDER_LOCK_NAME, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
    if (lock < 0)
        return titan_fail_errno(err, "cannot open '" FOLDER_LOCK_NAME "'");
    for (;;) {
        TRY(attempt(j, at, lock, &f, &taken, err));
        if (taken != BUSY)
            break;
        if (clock_mono_ns() >= until) {
            (void)titan_fail(err, TITAN_ECONFLICT, "checkpoint folder '%s' is in use by %s", j->path,
                             f.there ? f.name : "another run");
            titan_error_hint(err, "use another checkpoint.folder, or wait until that run has ended");
            return TITAN_ECONFLICT;
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * 1000000}, NULL);
    }
    titan_assert(j->folder.lock == -1);
    if (taken == NO_LOCKS)
        tlog_warn(j->log, "the file system of the checkpoint folder has no locks; two runs in it would not notice",
                  "folder=\"%s\"", j->path);
    else
        j->folder.lock = TAKE_FD(lock);
    j->folder.device = st.st_dev;
    j->folder.inode = st.st_ino;
    j->folder.at = TAKE_FD(at);
    return TITAN_OK;
}

/* --- looking ------------------------------------------------------------------------------------------------------ */

static titan_status run_list(struct apart *a, struct titan_error *err)
{
    struct job *j = (struct job *)a;
    TRY(failpoint("folder.list", err));
    return checkpoint_list_folder(-1, j->path, &j->list, err);
}

static titan_status run_find(struct apart *a, struct titan_error *err)
{
    struct job *j = (struct job *)a;
    bool itself;
    TRY(failpoint("folder.list", err));
    TRY(checkpoint_place(j->path, j->place, &itself, err));
    return itself ? TITAN_OK : checkpoint_list_folder(-1, j->place, &j->list, err);
}

static titan_status run_look(struct apart *a, struct titan_error *err)
{
    struct job *j = (struct job *)a;
    TRY(failpoint("folder.look", err));
    return checkpoint_check(j->path, j->step, err);
}

static titan_status open_job(const char *path, const char *text,
                             titan_status (*run)(struct apart *a, struct titan_error *err), struct job **ret,
                             struct titan_error *err)
{
    struct job *j = calloc(1, sizeof *j);

    titan_assert(run);
    if (!j)
        return titan_fail(err, TITAN_ENOMEM, "no memory to look into a folder");
    *ret = j;
    apart_init(&j->apart);
    j->apart.run = run;
    j->apart.clear = clear_job;
    j->folder = FOLDER_NONE;
    j->path = strdup(path);
    j->text = strdup(text);
    return j->path && j->text ? TITAN_OK : titan_fail(err, TITAN_ENOMEM, "no memory to look into a folder");
}

titan_status folder_list(const char *path, const struct apart_limit *limit, struct checkpoint_line_list *ret,
                         struct titan_error *err)
{
    _cleanup_(close_job) struct job *j = NULL;

    titan_assert(limit->still_ms >= 0);
    TRY(open_job(path, "", run_list, &j, err));
    const titan_status status = apart_run(&j->apart, limit, err);
    if (status == TITAN_ETIMEDOUT)
        (void)titan_error_wrap(err, "cannot list '%s'", path);
    TRY(status);
    *ret = j->list;
    j->list = (struct checkpoint_line_list){0};
    return TITAN_OK;
}

titan_status folder_find(const char *path, const struct apart_limit *limit, char *ret_place,
                         struct checkpoint_line_list *ret, struct titan_error *err)
{
    _cleanup_(close_job) struct job *j = NULL;

    titan_assert(limit->still_ms >= 0);
    TRY(open_job(path, "", run_find, &j, err));
    const titan_status status = apart_run(&j->apart, limit, err);
    if (status == TITAN_ETIMEDOUT)
        (void)titan_error_wrap(err, "cannot list '%s'", path);
    TRY(status);
    memcpy(ret_place, j->place, PATH_MAX);
    *ret = j->list;
    j->list = (struct checkpoint_line_list){0};
    return TITAN_OK;
}

titan_status folder_look(const char *path, uint64_t step, const struct apart_limit *limit, struct titan_error *err)
{
    _cleanup_(close_job) struct job *j = NULL;

    titan_assert(limit->still_ms >= 0);
    TRY(open_job(path, "", run_look, &j, err));
    j->step = step;
    const titan_status status = apart_run(&j->apart, limit, err);
    if (status == TITAN_ETIMEDOUT)
        (void)titan_error_wrap(err, "'%s'", path);
    return status;
}

titan_status folder_take(const char *path, const struct folder_owner *owner, const struct apart_limit *limit,
                         const struct log *log, struct folder *ret, struct titan_error *err)
{
    const struct apart_limit longer = {limit->still_ms > 0 ? limit->still_ms + owner->wait_ms : 0, limit->stop};
    _cleanup_(close_job) struct job *j = NULL;

    titan_assert(owner->recipe && owner->text && owner->wait_ms >= 0 && limit->still_ms >= 0);
    *ret = FOLDER_NONE;
    TRY(open_job(path, owner->text, run_take, &j, err));
    j->owner = *owner;
    j->owner.text = j->text;
    j->log = log;
    const titan_status status = apart_run(&j->apart, &longer, err);
    if (status == TITAN_OK) {
        *ret = j->folder;
        j->folder = FOLDER_NONE;
    }
    if (status != TITAN_OK && status != TITAN_ECONFLICT)
        (void)titan_error_wrap(err, "checkpoint folder '%s'", path);
    return status;
}

void folder_leave(struct folder *f)
{
    if (f->lock >= 0)
        (void)close(f->lock);
    if (f->at >= 0)
        (void)close(f->at);
    *f = FOLDER_NONE;
}
