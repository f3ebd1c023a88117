/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/api/checkpoint_place.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/learning_rate.h"
#include "daemon/auth/paths.h"

#define FRESH_MAX 10000

bool place_named(const struct recipe *r)
{
    return r->checkpoint.folder[0] == '/' || r->job.dump_folder[0] == '/';
}

/* Is the folder closed to titand? Workers that run as their jobs' users may still have access. */
static bool closed(const char *folder)
{
    struct stat st;
    const int use = lstat(folder, &st) == 0 ? access(folder, R_OK | X_OK) : -1;
    return use != 0 && errno == EACCES;
}
#define CLOSED                                                                                                         \
    "checkpoint.folder = \"%s\" is closed to titand, which cannot tell whether it is empty: name a new folder"

titan_status place_fresh(struct recipe *r, struct titan_error *err)
{
    char folder[PATH_MAX], fresh[PATH_MAX + 16];
    struct stat st;
    if (!place_named(r))
        return TITAN_OK;
    TRY(recipe_checkpoint_folder(r, "", folder, err));
    if (closed(folder))
        return titan_fail(err, TITAN_EPERM, CLOSED, folder);
    _cleanup_(folder_found_clear) struct folder_found owner = {0};
    uint64_t newest;
    bool any = false;
    if ((folder_owner_of(folder, &owner, NULL) != TITAN_OK || !owner.there) &&
        (folder_newest_step(folder, &newest, &any, NULL) != TITAN_OK || !any))
        return TITAN_OK; /* no run has used the folder */
    for (int n = 2; n < FRESH_MAX; n++) {
        (void)snprintf(fresh, sizeof(fresh), "%s-%d", folder, n);
        if (strlen(fresh) >= sizeof(r->checkpoint.folder))
            return titan_fail(err, TITAN_EINVAL, "checkpoint.folder: '%.64s...' is too long", fresh);
        if (lstat(fresh, &st) == 0 || errno != ENOENT)
            continue;
        memset(r->checkpoint.folder, 0, sizeof(r->checkpoint.folder));
        memcpy(r->checkpoint.folder, fresh, strlen(fresh));
        return TITAN_OK;
    }
    return titan_fail(err, TITAN_ECONFLICT, "'%s-2' to '%s-%d' are all there", folder, folder, FRESH_MAX - 1);
}

/* --- the owner's right -------------------------------------------------------------------------------------------- */

/* Finds the user of a folder. If the owner file names only a job, this is the user of that job. False: the job must be
 * looked up first. */
static bool find_user(struct place_rights *p, struct folder_found *f)
{
    unsigned long long job = 0, store = 0;
    int end = 0;
    if (!f->there || f->user.name[0] || sscanf(f->id, "job-%llu-%16llx%n", &job, &store, &end) != 2 || f->id[end] ||
        store != p->store)
        return true;
    for (int i = 0; i < p->n_known; i++)
        if (p->known[i].job == job) {
            f->user = p->known[i].user;
            return true;
        }
    if (p->n_known == (int)ARRAY_SIZE(p->known)) /* a run never needs more */
        return true;
    p->asks = job;
    return false;
}

static bool may_begin(const struct place_rights *p, const struct folder_found *f, const char *path)
{
    return !f->there || folder_user_same(&f->user, &p->user) || auth_shared_with(f->shared_with, p->caller) ||
           paths_user_reads(p->caller, path);
}

/* Admits a path that the run reads; an admin may place it anywhere. Workers judge what cannot be seen from here. seen:
 * gets the owner as text (FOLDER_USER_TEXT bytes), for the check by the workers; NULL = no worker checks again. */
static titan_status admit_reading(struct place_rights *p, const struct recipe_path *at, char *seen,
                                  struct titan_error *err)
{
    _cleanup_(folder_found_clear) struct folder_found found = {0};
    const titan_status status = folder_owner_above(at->path, &found, NULL);
    if (status != TITAN_OK && status != TITAN_ECORRUPT)
        return TITAN_OK;
    if (seen)
        folder_found_print(&found, seen);
    if (!find_user(p, &found) || (status == TITAN_OK && may_begin(p, &found, at->path)))
        return TITAN_OK;
    (void)titan_fail(err, TITAN_EPERM, "not permitted: %s = \"%s\" lies in the checkpoints of another user", at->key,
                     at->path);
    titan_error_hint(err, "its owner can share it: checkpoint.shared_with, in the run file that writes it");
    return TITAN_EPERM;
}

/* Admits the folder: a run that continues in it must own it; a run that only reads it needs it shared. */
static titan_status admit_folder(struct place_rights *p, struct recipe *r, struct titan_error *err)
{
    titan_assert(!p->asks);
    _cleanup_(folder_found_clear) struct folder_found found = {0};
    char folder[PATH_MAX], *const seen = r->checkpoint.folder_owner;
    memset(seen, 0, sizeof(r->checkpoint.folder_owner));
    if (!place_named(r))
        return TITAN_OK;
    TRY(recipe_checkpoint_folder(r, "", folder, err));
    const titan_status status = folder_owner_above(folder, &found, NULL);
    if (status != TITAN_OK && status != TITAN_ECORRUPT)
        return TITAN_OK;
    const bool reads = r->checkpoint.load_only, named = found.user.name[0] != '\0';
    folder_found_print(&found, seen);
    if (!find_user(p, &found))
        return TITAN_OK;
    if (auth_operates(p->caller) && (reads || !named))
        return TITAN_OK;
    if (status == TITAN_OK &&
        (!found.there || folder_user_same(&found.user, &p->user) || (reads && may_begin(p, &found, folder))))
        return TITAN_OK;
    (void)titan_fail(err, TITAN_EPERM,
                     "not permitted: checkpoint.folder = \"%s\" holds the checkpoints of another user", folder);
    titan_error_hint(err, "name another folder; --fresh takes a new one beside it");
    return TITAN_EPERM;
}

titan_status place_admit(struct place_rights *p, struct recipe *r, const struct recipe *before, struct titan_error *err)
{
    char user[FOLDER_USER_TEXT];
    titan_assert(p->caller && p->n_known >= 0 && p->n_known <= (int)ARRAY_SIZE(p->known));
    p->asks = 0;
    folder_user_print(&p->user, user);
    memset(r->job.owner, 0, sizeof(r->job.owner));
    (void)snprintf(r->job.owner, sizeof(r->job.owner), "%s", user);
    TRY(admit_folder(p, r, err));
    if (p->asks)
        return TITAN_OK;

    /* Admits what the run begins from and the other paths that it reads. */
    struct recipe_path paths[RECIPE_PATHS_MAX];
    char *const begins = r->checkpoint.initial_load_path, *const seen = r->checkpoint.initial_load_owner;
    memset(seen, 0, sizeof(r->checkpoint.initial_load_owner));
    if (auth_operates(p->caller)) {
        *seen = '*';
        return TITAN_OK;
    }
    for (int i = 0, n = recipe_paths(r, paths); i < n && !p->asks; i++) {
        const bool first = paths[i].path == begins;
        /* the path was admitted when `before` was submitted */
        if (first && before && strcmp(begins, before->checkpoint.initial_load_path) == 0)
            memcpy(seen, before->checkpoint.initial_load_owner, sizeof(r->checkpoint.initial_load_owner));
        else
            TRY(admit_reading(p, &paths[i], first ? seen : NULL, err));
    }
    return TITAN_OK;
}

/* --- what is there ------------------------------------------------------------------------------------------------ */

static void refuse_step(const struct recipe *r, struct place *p)
{
    (void)titan_fail(&p->held, TITAN_ECONFLICT,
                     "checkpoint.load_step = %lld: checkpoint folder '%s' has none of that step",
                     (long long)r->checkpoint.load_step, p->folder);
    titan_error_hint(&p->held, "titanctl checkpoints JOB lists those of a job; checkpoint.initial_load_path names one "
                               "of another folder");
}

titan_status place_look(const struct recipe *r, struct place *p, struct titan_error *err)
{
    _cleanup_(folder_found_clear) struct folder_found owner = {0};
    _cleanup_(buf_free) struct buf keys = BUF_INIT;
    const int64_t asked = r->checkpoint.load_step;
    uint64_t newest = 0;
    bool any = false;
    TRY(recipe_checkpoint_folder(r, "", p->folder, err));
    if (!r->checkpoint.enable)
        return TITAN_OK;
    if (p->empty && closed(p->folder))
        return titan_fail(err, TITAN_EPERM, CLOSED, p->folder);
    const titan_status seen = folder_newest_step(p->folder, &newest, &any, NULL);
    if (!any) {
        if (asked >= 0 && (seen == TITAN_OK || (seen == TITAN_ENOTFOUND && p->local)))
            refuse_step(r, p);
        return TITAN_OK;
    }
    if (p->empty) {
        (void)titan_fail(&p->held, TITAN_ECONFLICT, "checkpoint folder '%s' has checkpoints, up to step %llu",
                         p->folder, (unsigned long long)newest);
        titan_error_hint(&p->held, "the run would go on from them; --fresh takes a new folder beside it");
        return TITAN_OK;
    }
    if (folder_owner_of(p->folder, &owner, NULL) != TITAN_OK || !owner.there)
        return TITAN_OK;
    if (!recipe_continues(r, owner.recipe_hash, owner.recipe, &keys)) {
        (void)titan_fail(&p->held, TITAN_ECONFLICT,
                         "checkpoint folder '%s' holds checkpoints of another recipe, by %s%s%s", p->folder, owner.name,
                         keys.len && *keys.data ? ": " : "", keys.len ? keys.data : "");
        titan_error_hint(&p->held,
                         "--fresh takes a new folder beside it; or name another (job.dump_folder, checkpoint.folder); "
                         "checkpoint.accept_changed takes what is meant to be another");
        return TITAN_OK;
    }

    /* The step that the run begins from. */
    if (asked >= 0 && !folder_has_step(p->folder, (uint64_t)asked)) {
        refuse_step(r, p);
    } else if (asked >= 0) {
        p->resumes_step = (uint64_t)asked;
    } else {
        const titan_status status = folder_newest_state(p->folder, (uint64_t)r->training.steps, &newest, &any, NULL);
        p->resumes_step = status == TITAN_OK && any ? newest : 0;
    }
    if (p->resumes_step == 0)
        return TITAN_OK;

    /* Notes how the run's learning rate differs from the recipe of the job that owns the folder. */
    _cleanup_(buf_free) struct buf line = BUF_INIT;
    _cleanup_free_ struct recipe *other = malloc(sizeof(*other));
    if (!other)
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    recipe_init(other);
    if (recipe_parse(other, owner.recipe, "recipe", NULL) == TITAN_OK && recipe_resolve(other, NULL) == TITAN_OK)
        learning_rate_compare(r, other, (int64_t)p->resumes_step, &line);
    if (line.len > 0)
        buf_printf(p->notes, "%s\n", line.data);
    return TITAN_OK;
}

static bool has_file(const char *folder, const char *name)
{
    char path[PATH_MAX];
    struct stat st;
    return (size_t)snprintf(path, sizeof(path), "%s/%s", folder, name) < sizeof(path) && stat(path, &st) == 0;
}

titan_status place_check_beginning(const struct recipe *r, struct titan_error *err)
{
    const char *path = r->checkpoint.initial_load_path;
    if (!*path)
        return TITAN_OK;
    const bool hf = has_file(path, "model.safetensors") || has_file(path, "model.safetensors.index.json");
    uint64_t newest;
    bool any = false;

    if ((r->checkpoint.initial_load_in_hf && hf) || (r->job.as_user && closed(path)))
        return TITAN_OK;
    if (r->checkpoint.initial_load_in_hf) {
        (void)titan_fail(err, TITAN_EINVAL, "checkpoint.initial_load_path = \"%s\" has no weights", path);
        titan_error_hint(err, "a Hugging Face directory has model.safetensors or model.safetensors.index.json");
        return TITAN_EINVAL;
    }
    if (has_file(path, "manifest.json") || (folder_newest_step(path, &newest, &any, NULL) == TITAN_OK && any))
        return TITAN_OK;
    (void)titan_fail(err, TITAN_EINVAL, "checkpoint.initial_load_path = \"%s\" has no checkpoint", path);
    titan_error_hint(err, hf ? "it has Hugging Face weights: checkpoint.initial_load_in_hf = true"
                             : "name a checkpoint, a folder of them, or job:ID");
    return TITAN_EINVAL;
}
