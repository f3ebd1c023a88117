/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/api/origin.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/folder_owner.h"
#include "base/recipe_conflicts.h"
#include "daemon/common/job_files.h"

/* --- the loop ----------------------------------------------------------------------------------------------------- */

struct look {
    const struct auth_user *user;
    struct origin *origin;
    bool owned;
};

static void with_job(const struct job *job, void *data)
{
    struct look *look = data;
    struct origin *o = look->origin;
    o->job_id = job->id;
    o->state = job->state;
    o->step = job->status.step;
    o->uid = job->uid;
    o->gid = job->gid;
    (void)snprintf(o->name, sizeof(o->name), "%s", job->name);
    (void)snprintf(o->user, sizeof(o->user), "%s", job->user);
    look->owned = job_owned_by(job, &(struct job_owner){look->user->uid, look->user->name});
}

static bool take_newest(const struct checkpoint *checkpoint, void *data)
{
    *(uint64_t *)data = checkpoint->step;
    return false;
}

titan_status origin_find(struct coordinator *c, const struct auth_user *u, uint64_t job_id, bool resume,
                         struct origin *ret, struct titan_error *err)
{
    struct look look = {.user = u, .origin = ret};
    origin_clear(ret);
    TRY(api_may(c, u, resume ? POLICY_GET_RECIPE : POLICY_LIST_CHECKPOINTS, job_id, err));
    TRY(job_cache_get(c->jobs, store_reader(c->store), job_id, with_job, &look, err));
    ret->resumed = resume;
    ret->whole = look.owned || api_sees_all(c, u, POLICY_GET_RECIPE);
    if (resume && !sm_final(&job_sm, (int)ret->state)) {
        (void)titan_fail(err, TITAN_ECONFLICT, "job %" PRIu64 " is %s: only one that has ended can be resumed", job_id,
                         sm_name(&job_sm, (int)ret->state));
        titan_error_hint(err, "wait for it, or cancel it");
        return TITAN_ECONFLICT;
    }
    TRY(checkpoint_list(store_reader(c->store), job_id, take_newest, &ret->newest_step, err));
    (void)snprintf(ret->jobs_dir, sizeof(ret->jobs_dir), "%s", c->jobs_dir);
    return job_recipe(store_reader(c->store), job_id, &ret->text, err);
}

/* Clears all fields. Of each path it clears only the first byte, because every submit calls this and few submits
 * continue another job. */
void origin_init(struct origin *o)
{
    memset(o, 0, offsetof(struct origin, jobs_dir));
    o->jobs_dir[0] = o->folder[0] = o->begins[0] = '\0';
}

void origin_clear(struct origin *o)
{
    free(o->text);
    free(o->recipe);
    origin_init(o);
}

/* --- the thread that checks a recipe ------------------------------------------------------------------------------ */

static bool below(const char *path, const char *folder)
{
    const size_t n = strlen(folder);
    return n > 0 && strncmp(path, folder, n) == 0 && path[n] == '/' && !strstr(path, "/../");
}

/* Grants the path if it is in the folder of jobs. The daemon owns that folder, so a job's owner, and users that share
 * the job, need a grant there. Other paths are checked like any path of a recipe. */
static void grant(struct origin *o, const char *path)
{
    size_t n = 0;
    while (o->granted[n])
        n++;
    titan_assert(n + 1 < ARRAY_SIZE(o->granted));
    if ((o->whole || o->shared) && below(path, o->jobs_dir))
        o->granted[n] = path;
}

static titan_status set_path(const char *key, char *to, size_t size, const char *path, struct titan_error *err)
{
    if (strlen(path) >= size)
        return titan_fail(err, TITAN_EINVAL, "%s: '%.64s...' is too long", key, path);
    memset(to, 0, size);
    memcpy(to, path, strlen(path));
    return TITAN_OK;
}

/* Opens the job's checkpoint folder for reading. Below jobs_dir, where the folder is its user's, the descriptor is
 * opened without following links. *ret_seen: whether the folder exists; a link is an error. */
static titan_status open_folder(const struct origin *o, int *ret_fd, char way[PATH_MAX], titan_status *ret_seen,
                                struct titan_error *err)
{
    struct titan_error why = {0};
    (void)snprintf(way, PATH_MAX, "%s", o->folder);
    *ret_seen = TITAN_OK;
    if (!below(o->folder, o->jobs_dir))
        return TITAN_OK;
    *ret_seen = job_files_folder(o->jobs_dir, o->folder + strlen(o->jobs_dir) + 1, false, ret_fd, &why);
    if (*ret_seen == TITAN_EINVAL)
        return titan_fail(err, TITAN_EINVAL, "checkpoints of job %" PRIu64 ": %s", o->job_id, why.msg);
    if (*ret_seen == TITAN_OK)
        (void)snprintf(way, PATH_MAX, "/proc/self/fd/%d", *ret_fd);
    return TITAN_OK;
}

static titan_status resume(struct origin *o, struct recipe *r, struct titan_error *err)
{
    _cleanup_fd_ int fd = -1;
    char way[PATH_MAX], own[PATH_MAX];
    const struct recipe *before = o->recipe;
    struct stat st;
    uint64_t newest, job, branches = 0;
    bool any = false;
    TRY(recipe_initial_job(r, &job, err));
    if (job)
        return titan_fail(err, TITAN_EINVAL,
                          "a resumed job goes on from its own checkpoints, not from those of job %" PRIu64, job);
    if (below(o->folder, o->jobs_dir)) {
        const size_t n = strlen(o->jobs_dir) + 1;
        (void)snprintf(own, sizeof(own), "%.*s", (int)(n + strcspn(o->folder + n, "/")), o->folder);
        if (lstat(own, &st) != 0 && errno == ENOENT)
            /* no worker made the folder, and with titan-spawnd the job's user cannot make it: the new job gets its own
             * folder */
            return TITAN_OK;
    }
    TRY(set_path("checkpoint.folder", r->checkpoint.folder, sizeof(r->checkpoint.folder), o->folder, err));
    grant(o, o->folder);
    if (strcmp(r->checkpoint.initial_load_path, o->recipe->checkpoint.initial_load_path) == 0)
        grant(o, o->recipe->checkpoint.initial_load_path);
    titan_status seen;
    TRY(open_folder(o, &fd, way, &seen, err));
    if (seen != TITAN_OK || folder_newest_step(way, &newest, &any, NULL) != TITAN_OK || !any)
        return TITAN_OK;
    if (!r->checkpoint.enable) /* the job wrote checkpoints on request only: load them, write none unasked */
        r->checkpoint.enable = r->checkpoint.load_only = true;

    /* The job has checkpoints, so the keys for the begin of a run are dropped, except keys that this submit changes. */
    if (o->newest_step == 0 && before->checkpoint.load_step >= 0)
        return TITAN_OK;
    if (r->checkpoint.load_step == before->checkpoint.load_step) {
        /* If no manifest records that the job had gone back to a step, the folder's newest checkpoint may be of the
         * abandoned branch. */
        const bool known = folder_branches(way, &branches, NULL) == TITAN_OK && branches > 0;
        const bool named = before->checkpoint.load_step >= 0 && !known && folder_has_step(way, o->newest_step);
        r->checkpoint.load_step = named ? (int64_t)o->newest_step : -1;
    }
    if (strcmp(r->checkpoint.exclude_from_loading, before->checkpoint.exclude_from_loading) == 0)
        memset(r->checkpoint.exclude_from_loading, 0, sizeof(r->checkpoint.exclude_from_loading));
    if (strcmp(r->checkpoint.accept_changed, before->checkpoint.accept_changed) == 0)
        memset(r->checkpoint.accept_changed, 0, sizeof(r->checkpoint.accept_changed));
    return TITAN_OK;
}

static titan_status none_there(const struct origin *o, int64_t step, bool whole, struct titan_error *err)
{
    char which[48] = "";
    if (step >= 0)
        (void)snprintf(which, sizeof(which), " of step %" PRId64, step);
    (void)titan_fail(err, TITAN_ENOTFOUND, "job %" PRIu64 " has no checkpoint%s in '%s'", o->job_id,
                     whole ? " with optimizer state" : which, o->folder);
    titan_error_hint(err, "titanctl checkpoints %" PRIu64 " lists those it has written", o->job_id);
    return TITAN_ENOTFOUND;
}

titan_status origin_apply(struct origin *o, const struct auth_user *u, struct recipe *r, bool local,
                          struct titan_error *err)
{
    char own[PATH_MAX];
    titan_assert(o->text);
    memset(o->granted, 0, sizeof(o->granted));
    if (!o->recipe && !(o->recipe = malloc(sizeof(*o->recipe))))
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    recipe_init(o->recipe);
    titan_status status = recipe_parse(o->recipe, o->text, "recipe", err);
    if (status == TITAN_OK)
        status = recipe_resolve(o->recipe, err);
    if (status == TITAN_OK && (size_t)snprintf(own, sizeof(own), "%s/%" PRIu64, o->jobs_dir, o->job_id) >= sizeof(own))
        status = titan_fail(err, TITAN_EINVAL, "its folder has too long a name");
    if (status == TITAN_OK)
        status = recipe_checkpoint_folder(o->recipe, own, o->folder, err);
    if (status != TITAN_OK)
        return titan_error_wrap(err, "job %" PRIu64, o->job_id);
    if (o->resumed)
        return resume(o, r, err);

    /* The recipe names one checkpoint by its path. So a run that restarts before its own first checkpoint begins from
     * the same checkpoint. If the folder is invisible from here, the workers look for it. */
    _cleanup_(folder_found_clear) struct folder_found found = {0};
    const int64_t asked = r->checkpoint.load_step;
    uint64_t newest;
    _cleanup_fd_ int fd = -1;
    char path[PATH_MAX + 32], way[PATH_MAX];
    struct stat st;
    bool any = false;
    const bool whole = asked < 0 && !r->checkpoint.initial_load_model_only && !recipe_excludes(r, "optimizer");
    titan_status seen;
    TRY(open_folder(o, &fd, way, &seen, err));
    if (seen == TITAN_OK)
        seen = whole ? folder_newest_state(way, UINT64_MAX, &newest, &any, NULL)
                     : folder_newest_step(way, &newest, &any, NULL);
    /* Did the job never write a checkpoint? Then its own folder exists, which the coordinator sees too, but its
     * checkpoint folder does not. */
    (void)snprintf(path, sizeof(path), "%s/%" PRIu64, o->jobs_dir, o->job_id);
    const bool never = seen == TITAN_ENOTFOUND && below(o->folder, path) && stat(path, &st) == 0;
    if (!any && (seen == TITAN_OK || local || never))
        return none_there(o, asked, whole, err);
    if (any || asked >= 0)
        (void)snprintf(path, sizeof(path), "%s/step-%08" PRIu64, o->folder, asked >= 0 ? (uint64_t)asked : newest);
    else
        (void)snprintf(path, sizeof(path), "%s", o->folder);
    if (any && fstatat(fd >= 0 ? fd : AT_FDCWD, fd >= 0 ? path + strlen(o->folder) + 1 : path, &st, 0) < 0)
        return none_there(o, asked, false, err);
    TRY(set_path("checkpoint.initial_load_path", r->checkpoint.initial_load_path,
                 sizeof(r->checkpoint.initial_load_path), path, err));
    r->checkpoint.load_step = -1;
    o->shared = folder_owner_of(way, &found, NULL) == TITAN_OK && auth_shared_with(found.shared_with, u);
    (void)snprintf(o->begins, sizeof(o->begins), "%s", r->checkpoint.initial_load_path);
    grant(o, o->begins);
    return TITAN_OK;
}

titan_status origin_check(const struct origin *o, const struct recipe *r, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf keys = BUF_INIT;
    if (!o->resumed && (!o->recipe || r->checkpoint.initial_load_model_only || recipe_excludes(r, "optimizer") ||
                        recipe_continues_state(r, o->recipe, &keys)))
        return TITAN_OK;
    if (!o->resumed) {
        (void)titan_fail(err, TITAN_ECONFLICT, "job %" PRIu64 " has another optimizer's state%s%s", o->job_id,
                         o->whole ? ": " : "", o->whole ? keys.data : "");
        titan_error_hint(err, "checkpoint.exclude_from_loading = [\"optimizer\"] begins it anew");
        return TITAN_ECONFLICT;
    }
    if (!recipe_continues(r, recipe_hash(o->recipe), o->text, &keys)) {
        (void)titan_fail(err, TITAN_EINVAL, "job %" PRIu64 " is not resumed with another recipe: %s", o->job_id,
                         keys.len ? keys.data : "");
        titan_error_hint(err,
                         "titanctl submit --from %" PRIu64
                         " begins a new run from its checkpoint; checkpoint.accept_changed takes what is meant to be "
                         "another",
                         o->job_id);
        return TITAN_EINVAL;
    }
    if (o->state != JOB_COMPLETED || (int64_t)o->step < r->training.steps)
        return TITAN_OK;
    (void)titan_fail(err, TITAN_ECONFLICT, "job %" PRIu64 " has done all of its %" PRIu64 " steps", o->job_id, o->step);
    titan_error_hint(err, "titanctl resume %" PRIu64 " --set training.steps=N goes on to step N", o->job_id);
    return TITAN_ECONFLICT;
}
