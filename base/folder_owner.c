/* SPDX-License-Identifier: Apache-2.0 */
#include "base/folder_owner.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checkpoint_line.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"

#define OWNER_BYTES_MAX ((size_t)1 << 20)
#define MANIFEST_BYTES_MAX ((size_t)256 << 20)

/* --- users -------------------------------------------------------------------------------------------------------- */

void folder_user_print(const struct folder_user *u, char ret[FOLDER_USER_TEXT])
{
    if (!u->name[0])
        ret[0] = '\0';
    else if (u->uid >= 0)
        (void)snprintf(ret, FOLDER_USER_TEXT, "uid:%" PRId64 " %s", u->uid, u->name);
    else
        (void)snprintf(ret, FOLDER_USER_TEXT, "user:%s", u->name);
}

bool folder_user_parse(const char *text, struct folder_user *ret)
{
    const bool plain = strncmp(text, "user:", 5) == 0, numbered = strncmp(text, "uid:", 4) == 0;
    char *end = NULL;
    *ret = (struct folder_user){.uid = -1};
    if (!plain && !numbered)
        return false;
    const long long uid = numbered && text[4] >= '0' && text[4] <= '9' ? strtoll(text + 4, &end, 10) : -1;
    const char *name = plain ? text + 5 : end && *end == ' ' ? end + 1 : "";
    if (!*name || strlen(name) > FOLDER_NAME_MAX || (numbered && (uid < 0 || uid >= UINT32_MAX)))
        return false;
    ret->uid = uid;
    (void)snprintf(ret->name, sizeof ret->name, "%s", name);
    return true;
}

bool folder_user_same(const struct folder_user *a, const struct folder_user *b)
{
    if (!a->name[0] || !b->name[0])
        return false;
    return a->uid >= 0 && b->uid >= 0 ? a->uid == b->uid : strcmp(a->name, b->name) == 0;
}

void folder_found_print(const struct folder_found *f, char ret[FOLDER_USER_TEXT])
{
    ret[0] = '\0';
    if (f->there && f->user.name[0])
        folder_user_print(&f->user, ret);
    else if (f->there)
        (void)snprintf(ret, FOLDER_USER_TEXT, "run:%s", f->id);
}

bool folder_admits(const struct folder_found *f, const struct folder_user *u, const char *seen)
{
    char now[FOLDER_USER_TEXT];
    if (!f->there || folder_user_same(&f->user, u) || strcmp(seen, "*") == 0)
        return true;
    folder_found_print(f, now);
    return strcmp(seen, now) == 0;
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

void folder_found_clear(struct folder_found *f)
{
    free(f->recipe);
    f->recipe = NULL;
}

titan_status folder_owner_read(int at, struct folder_found *ret, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    _cleanup_(json_clear) struct json *root = NULL;
    char *end = NULL;

    titan_assert(at >= 0);
    folder_found_clear(ret);
    *ret = (struct folder_found){0};
    const titan_status status = file_read_at(at, FOLDER_OWNER_NAME, O_NOFOLLOW, OWNER_BYTES_MAX, &text, err);
    if (status == TITAN_ENOTFOUND)
        return TITAN_OK;
    TRY(status);
    if (json_parse(text.data ? text.data : "", text.len, &root, NULL) != TITAN_OK ||
        strcmp(json_string(root, "format", ""), FOLDER_OWNER_FORMAT) != 0)
        return titan_fail(err, TITAN_ECORRUPT, "'" FOLDER_OWNER_NAME "' is damaged");
    ret->there = true;
    (void)snprintf(ret->id, sizeof ret->id, "%s", json_string(root, "id", ""));
    (void)snprintf(ret->name, sizeof ret->name, "%s", json_string(root, "name", "another run"));
    const char *name = json_string(root, "user", "");
    ret->user = (struct folder_user){.uid = -1};
    if (strlen(name) <= FOLDER_NAME_MAX) {
        (void)snprintf(ret->user.name, sizeof ret->user.name, "%s", name);
        ret->user.uid = *name ? json_int(root, "uid", -1) : -1;
    }
    const char *shared = json_string(root, "shared_with", "");
    (void)snprintf(ret->shared_with, sizeof ret->shared_with, "%s", strlen(shared) <= FOLDER_SHARED_MAX ? shared : "");
    ret->recipe_hash = strtoull(json_string(root, "recipe_hash", ""), &end, 16);
    ret->recipe = strdup(json_string(root, "recipe", ""));
    return ret->recipe ? TITAN_OK : titan_fail(err, TITAN_ENOMEM, "no memory for an owner file");
}

titan_status folder_owner_of(const char *path, struct folder_found *ret, struct titan_error *err)
{
    _cleanup_fd_ int at = file_open_named(path, O_RDONLY | O_DIRECTORY);
    if (at < 0)
        return titan_fail_errno(err, "folder '%s'", path);
    return folder_owner_read(at, ret, err);
}

/* the deepest path: a file in an exported directory in a checkpoint in its folder */
#define LEVELS 3

titan_status folder_owner_above(const char *path, struct folder_found *ret, struct titan_error *err)
{
    char way[PATH_MAX];
    folder_found_clear(ret);
    *ret = (struct folder_found){0};
    if (path[0] != '/' || (size_t)snprintf(way, sizeof way, "%s", path) >= sizeof way)
        return titan_fail(err, TITAN_EINVAL, "'%.64s' is too long, or no absolute path", path);
    int last; /* the last existing folder of the path */
    while ((last = file_open_named(way, O_PATH | O_DIRECTORY)) < 0 && (errno == ENOENT || errno == ENOTDIR)) {
        char *slash = strrchr(way, '/');
        slash[slash == way] = '\0';
    }
    if (last < 0)
        return titan_fail_errno(err, "folder '%s'", way);
    _cleanup_fd_ int at = last;
    for (int level = 0; level <= LEVELS; level++) {
        TRY(folder_owner_read(at, ret, err));
        const int above = ret->there ? -1 : openat(at, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (above < 0)
            return ret->there ? TITAN_OK : titan_fail_errno(err, "the folder above '%s'", path);
        (void)close(at);
        at = above;
    }
    return TITAN_OK;
}

static titan_status list_line(const char *path, struct checkpoint_line_list *ret, struct titan_error *err)
{
    _cleanup_fd_ int at = file_open_named(path, O_RDONLY | O_DIRECTORY);
    *ret = (struct checkpoint_line_list){0};
    if (at < 0)
        return titan_fail_errno(err, "folder '%s'", path);
    const titan_status status = checkpoint_line_list(at, ret, err);
    return status == TITAN_OK ? status : titan_error_wrap(err, "folder '%s'", path);
}

titan_status folder_newest_step(const char *path, uint64_t *ret, bool *ret_any, struct titan_error *err)
{
    _cleanup_(checkpoint_line_list_clear) struct checkpoint_line_list list = {0};
    *ret = 0;
    *ret_any = false;
    TRY(list_line(path, &list, err));
    *ret_any = list.n > 0;
    *ret = list.n > 0 ? list.steps[0] : 0;
    return TITAN_OK;
}

titan_status folder_newest_state(const char *path, uint64_t steps, uint64_t *ret, bool *ret_any,
                                 struct titan_error *err)
{
    _cleanup_(checkpoint_line_list_clear) struct checkpoint_line_list list = {0};
    *ret = 0;
    *ret_any = false;
    TRY(list_line(path, &list, err));
    for (size_t i = 0; i < list.n && !*ret_any; i++) {
        _cleanup_(buf_free) struct buf text = BUF_INIT;
        _cleanup_fd_ int at = -1, inside = -1;
        char name[64];
        *ret = list.steps[i];
        *ret_any = *ret == steps;
        if (*ret_any)
            break;

        /* Does the checkpoint have the optimizer's state, or has the optimizer none? An unreadable manifest counts as
         * no state. */
        at = file_open_named(path, O_RDONLY | O_DIRECTORY);
        (void)snprintf(name, sizeof name, CHECKPOINT_NAME, *ret);
        *ret_any = at >= 0 && dir_open_at(at, name, false, &inside, NULL) == TITAN_OK &&
                   file_read_at(inside, "manifest.json", O_NOFOLLOW, MANIFEST_BYTES_MAX, &text, NULL) == TITAN_OK &&
                   text.len > 0 &&
                   (strstr(text.data, "\"name\":\"optim.") || strstr(text.data, "\"optimizer\":\"none\""));
    }
    *ret = *ret_any ? *ret : 0;
    return TITAN_OK;
}

titan_status folder_branches(const char *path, uint64_t *ret, struct titan_error *err)
{
    _cleanup_(checkpoint_line_list_clear) struct checkpoint_line_list list = {0};
    *ret = 0;
    TRY(list_line(path, &list, err));
    *ret = list.branches;
    return TITAN_OK;
}

bool folder_has_step(const char *path, uint64_t step)
{
    char name[64];
    struct stat st;
    _cleanup_fd_ int at = file_open_named(path, O_RDONLY | O_DIRECTORY);
    (void)snprintf(name, sizeof name, CHECKPOINT_NAME, step);
    return at >= 0 && fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}
