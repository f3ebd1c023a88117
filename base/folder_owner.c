/* SPDX-License-Identifier: Apache-2.0 */
#include "base/folder_owner.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"

#define OWNER_BYTES_MAX ((size_t)1 << 20)

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

uint64_t folder_newest_step(const char *path, uint64_t recipe_hash)
{
    _cleanup_(folder_found_clear) struct folder_found f = {0};
    _cleanup_(close_dir) DIR *d = NULL;
    _cleanup_fd_ int at = file_open_named(path, O_RDONLY | O_DIRECTORY);
    uint64_t newest = 0;

    if (at < 0 || folder_owner_read(at, &f, NULL) != TITAN_OK || !f.there || f.recipe_hash != recipe_hash)
        return 0;
    const int fd = TAKE_FD(at);
    d = fdopendir(fd);
    if (!d)
        (void)close(fd);
    for (struct dirent *e; d && (e = readdir(d));) {
        char *end = NULL;
        const bool is_step = strncmp(e->d_name, "step-", 5) == 0 && e->d_name[5] >= '0' && e->d_name[5] <= '9';
        const uint64_t step = is_step ? strtoull(e->d_name + 5, &end, 10) : 0;
        if (is_step && !*end && step > newest)
            newest = step;
    }
    return newest;
}
