/* SPDX-License-Identifier: Apache-2.0 */
#include "base/folder_owner.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"

#define OWNER_BYTES_MAX ((size_t)1 << 20)
#define MANIFEST_BYTES_MAX ((size_t)256 << 20)

void folder_found_clear(struct folder_found *f)
{
    free(f->recipe);
    f->recipe = NULL;
}

static void free_json(struct json **root)
{
    json_free(*root);
}

titan_status folder_owner_read(int at, struct folder_found *ret, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    _cleanup_(free_json) struct json *root = NULL;
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
    ret->recipe_hash = strtoull(json_string(root, "recipe_hash", ""), &end, 16);
    ret->recipe = strdup(json_string(root, "recipe", ""));
    return ret->recipe ? TITAN_OK : titan_fail(err, TITAN_ENOMEM, "no memory for an owner file");
}

static void close_dir(DIR **dir)
{
    if (*dir)
        (void)closedir(*dir);
}

titan_status folder_owner_of(const char *path, struct folder_found *ret, struct titan_error *err)
{
    _cleanup_fd_ int at = file_open_named(path, O_RDONLY | O_DIRECTORY);
    if (at < 0)
        return titan_fail_errno(err, "folder '%s'", path);
    return folder_owner_read(at, ret, err);
}

/* The newest below a step. */
static titan_status find_below(const char *path, uint64_t below, uint64_t *ret, bool *ret_any, struct titan_error *err)
{
    const int fd = file_open_named(path, O_RDONLY | O_DIRECTORY);
    _cleanup_(close_dir) DIR *d = fd < 0 ? NULL : fdopendir(fd);

    *ret = 0;
    *ret_any = false;
    if (!d) {
        const titan_status status = titan_fail_errno(err, "folder '%s'", path);
        if (fd >= 0)
            (void)close(fd);
        return status;
    }
    for (struct dirent *e; (errno = 0, e = readdir(d));) {
        char *end = NULL;
        const bool is_step = strncmp(e->d_name, "step-", 5) == 0 && e->d_name[5] >= '0' && e->d_name[5] <= '9';
        const uint64_t step = is_step ? strtoull(e->d_name + 5, &end, 10) : 0;
        if (!is_step || *end || step >= below)
            continue;
        *ret_any = true;
        *ret = MAX(*ret, step);
    }
    return errno == 0 ? TITAN_OK : titan_fail_errno(err, "folder '%s'", path);
}

titan_status folder_newest_step(const char *path, uint64_t *ret, bool *ret_any, struct titan_error *err)
{
    return find_below(path, UINT64_MAX, ret, ret_any, err);
}

/* By the names of the tensors in its manifest; what cannot be read has none. */
static bool has_moments(const char *path, uint64_t step)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    char name[64];
    _cleanup_fd_ int at = file_open_named(path, O_RDONLY | O_DIRECTORY), inside = -1;
    (void)snprintf(name, sizeof name, "step-%08" PRIu64, step);
    return at >= 0 && dir_open_at(at, name, false, &inside, NULL) == TITAN_OK &&
           file_read_at(inside, "manifest.json", O_NOFOLLOW, MANIFEST_BYTES_MAX, &text, NULL) == TITAN_OK &&
           text.len > 0 && strstr(text.data, "\"name\":\"optim.") != NULL;
}

titan_status folder_newest_state(const char *path, uint64_t steps, uint64_t *ret, bool *ret_any,
                                 struct titan_error *err)
{
    uint64_t below = UINT64_MAX;
    for (;;) {
        TRY(find_below(path, below, ret, ret_any, err));
        if (!*ret_any || *ret == steps || has_moments(path, *ret))
            return TITAN_OK;
        below = *ret;
    }
}
