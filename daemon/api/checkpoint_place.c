/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/api/checkpoint_place.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/folder_owner.h"

#define FRESH_MAX 10000

bool place_named(const struct recipe *r)
{
    return r->checkpoint.folder[0] == '/' || r->job.dump_folder[0] == '/';
}

static bool had_by_a_run(const char *folder)
{
    _cleanup_(folder_found_clear) struct folder_found owner = {0};
    uint64_t newest;
    bool any = false;
    if (folder_owner_of(folder, &owner, NULL) == TITAN_OK && owner.there)
        return true;
    return folder_newest_step(folder, &newest, &any, NULL) == TITAN_OK && any;
}

titan_status place_fresh(struct recipe *r, struct titan_error *err)
{
    char folder[PATH_MAX], fresh[PATH_MAX + 16];
    struct stat st;
    if (!place_named(r))
        return TITAN_OK;
    TRY(recipe_checkpoint_folder(r, "", folder, err));
    if (!had_by_a_run(folder))
        return TITAN_OK;
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

static titan_status refuse_recipe(const struct recipe *r, const char *folder, const struct folder_found *owner,
                                  struct titan_error *held, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf keys = BUF_INIT;
    _cleanup_free_ struct recipe *other = malloc(sizeof(*other));
    if (!other)
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    recipe_init(other);
    if (recipe_parse(other, owner->recipe, "recipe", NULL) == TITAN_OK)
        recipe_differences(r, other, &keys);
    (void)titan_fail(held, TITAN_ECONFLICT, "checkpoint folder '%s' holds checkpoints of another recipe, by %s%s%s",
                     folder, owner->name, keys.len ? ": " : "", keys.len ? keys.data : "");
    titan_error_hint(held, "submit --fresh takes a new folder beside it; or name another checkpoint.folder");
    return TITAN_OK;
}

titan_status place_look(const struct recipe *r, bool empty, char *folder, uint64_t *ret_resumes,
                        struct titan_error *held, struct titan_error *err)
{
    _cleanup_(folder_found_clear) struct folder_found owner = {0};
    uint64_t newest = 0;
    bool any = false;
    *ret_resumes = 0;
    TRY(recipe_checkpoint_folder(r, "", folder, err));
    if (!r->checkpoint.enable || folder_newest_step(folder, &newest, &any, NULL) != TITAN_OK || !any)
        return TITAN_OK;
    if (empty) {
        (void)titan_fail(held, TITAN_ECONFLICT, "checkpoint folder '%s' has checkpoints, up to step %llu", folder,
                         (unsigned long long)newest);
        titan_error_hint(held, "the run would go on from them; --fresh takes a new folder beside it");
        return TITAN_OK;
    }
    if (folder_owner_of(folder, &owner, NULL) != TITAN_OK || !owner.there)
        return TITAN_OK;
    if (owner.recipe_hash != recipe_hash(r))
        return refuse_recipe(r, folder, &owner, held, err);
    const titan_status status = folder_newest_state(folder, (uint64_t)r->training.steps, ret_resumes, &any, NULL);
    if (status != TITAN_OK || !any)
        *ret_resumes = 0;
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

    if (r->checkpoint.initial_load_in_hf && hf)
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
