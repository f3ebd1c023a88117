/* SPDX-License-Identifier: Apache-2.0 */
/* job_folders.c - see job_folders.h. */
#include "daemon/agent/shell/job_folders.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/vec.h"
#include "daemon/common/job_files.h"

titan_status job_folder_make(const char *directory, struct titan_error *err)
{
    struct stat st;
    TRY(dir_make(directory, err));
    if (stat(directory, &st) == 0 && st.st_uid == geteuid() && (st.st_mode & 07) && chmod(directory, 0700) != 0)
        return titan_fail_errno(err, "job directory '%s' cannot be made 0700", directory);
    return TITAN_OK;
}

titan_status job_folder_make_for_user(const char *directory, struct titan_error *err)
{
    struct stat st;
    TRY(dir_make(directory, err));
    _cleanup_fd_ int fd = open(directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0)
        return titan_fail_errno(err, "job directory '%s'", directory);
    if (st.st_uid == geteuid() && fchmod(fd, 02770) != 0)
        return titan_fail_errno(err, "job directory '%s' cannot be made 2770", directory);
    return TITAN_OK;
}

titan_status job_folder_show_recipe(const char *directory, struct titan_error *err)
{
    struct stat st;
    _cleanup_fd_ int at = -1, fd = -1;
    TRY(job_files_folder(directory, "", false, &at, err));
    TRY(job_files_open(at, "recipe.toml", O_RDONLY, &fd, err));
    if (fstat(fd, &st) != 0 || (st.st_uid == geteuid() && fchmod(fd, 0644) != 0))
        return titan_fail_errno(err, "recipe of '%s' cannot be made readable", directory);
    return TITAN_OK;
}

titan_status job_folder_write_recipe(const char *directory, const char *recipe, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf have = BUF_INIT;
    _cleanup_fd_ int at = -1, fd = -1;
    const size_t len = strlen(recipe);
    bool whole;
    TRY(job_files_folder(directory, "", false, &at, err));
    if (job_files_open(at, "recipe.toml", O_RDONLY, &fd, NULL) == TITAN_OK &&
        file_read_tail(fd, "recipe.toml", len + 1, &have, &whole, NULL) == TITAN_OK && have.len == len &&
        memcmp(have.data, recipe, len) == 0)
        return TITAN_OK;
    if (file_replace_at(at, "recipe.toml", recipe, len, err) != TITAN_OK)
        return titan_error_wrap(err, "job directory '%s'", directory);
    return TITAN_OK;
}

titan_status job_folder_record(const char *run_dir, uint64_t job_id, const char *directory, struct titan_error *err)
{
    char path[PATH_MAX + 64], have[PATH_MAX];
    (void)snprintf(path, sizeof(path), "%s/jobs/%" PRIu64, run_dir, job_id);
    ssize_t n = readlink(path, have, sizeof(have) - 1);
    if (n > 0 && (size_t)n == strlen(directory) && !memcmp(have, directory, (size_t)n))
        return TITAN_OK;
    (void)unlink(path);
    if (symlink(directory, path) < 0)
        return titan_fail_errno(err, "cannot record the job in '%s'", path);
    return TITAN_OK;
}

bool job_folder_link(const char *run_dir, uint64_t job_id, char out[PATH_MAX])
{
    return snprintf(out, PATH_MAX, "%s/jobs/%" PRIu64, run_dir, job_id) < PATH_MAX;
}

bool job_folder_find(const char *run_dir, uint64_t job_id, char out[PATH_MAX])
{
    char path[PATH_MAX] = "";
    (void)job_folder_link(run_dir, job_id, path);
    ssize_t n = readlink(path, out, PATH_MAX - 1);
    out[n > 0 ? n : 0] = '\0';
    return n > 0;
}

void job_leftovers_find(const char *run_dir, struct job_leftovers *ret)
{
    char path[PATH_MAX + 64];
    (void)snprintf(path, sizeof(path), "%s/jobs", run_dir);
    DIR *dir = opendir(path);
    if (!dir)
        return;
    for (struct dirent *e; (e = readdir(dir));) {
        char link[sizeof(e->d_name)]; /* the job's id, taken from a name "ID" or "ID.epoch" */
        (void)snprintf(link, sizeof(link), "%.*s", (int)strcspn(e->d_name, "."), e->d_name);
        if (!link[0] || faccessat(dirfd(dir), link, F_OK, 0) == 0 || errno != ENOENT ||
            !VEC_RESERVE(ret->names, ret->cap, ret->n + 1))
            continue;
        (void)snprintf(ret->names[ret->n++], sizeof(ret->names[0]), "%s", e->d_name);
    }
    (void)closedir(dir);
}

void job_leftovers_remove(const struct job_leftovers *list, const char *run_dir,
                          bool (*in_use)(uint64_t job_id, void *data), void *data)
{
    for (size_t i = 0; i < list->n; i++) {
        char path[PATH_MAX + sizeof(list->names[0]) + 64];
        (void)snprintf(path, sizeof(path), "%s/jobs/%s", run_dir, list->names[i]);
        if (!in_use(strtoull(list->names[i], NULL, 10), data))
            (void)unlink(path);
    }
}
