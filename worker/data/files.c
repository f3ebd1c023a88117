/* SPDX-License-Identifier: Apache-2.0 */
/* files.c - see files.h. */
#include "worker/data/files.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/vec.h"

static void close_fts(FTS **fts)
{
    if (*fts)
        (void)fts_close(*fts);
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(((const struct data_file *)a)->path, ((const struct data_file *)b)->path);
}

static titan_status unreadable(const char *path, int why, struct titan_error *err)
{
    return titan_fail(err, TITAN_EINVAL, "training data '%s': %s", path, strerror(why));
}

void data_files_leave_out(struct data_files *files, const char *path, int why)
{
    struct titan_error fault = {0};
    (void)unreadable(path, why, &fault);
    if (files->left_out++ == 0)
        files->first_left = fault;
}

static titan_status add(struct data_files *files, const FTSENT *e, struct titan_error *err)
{
    const struct stat *st = e->fts_statp;
    const struct data_file file = {.path = strdup(e->fts_path),
                                   .bytes = (uint64_t)st->st_size,
                                   .changed_ns = st->st_mtim.tv_sec * INT64_C(1000000000) + st->st_mtim.tv_nsec};
    if (file.path && VEC_PUSH(files->file, files->n, files->cap, file)) {
        files->bytes += file.bytes;
        return TITAN_OK;
    }
    free(file.path);
    return titan_fail(err, TITAN_ENOMEM, "no memory for a list of %zu files", files->n + 1);
}

/* A path that is missing is told from one that cannot be read. */
static titan_status check_root(const char *root, struct titan_error *err)
{
    _cleanup_fd_ int fd = file_open_named(root, O_RDONLY | O_NOCTTY | O_NONBLOCK);
    if (fd >= 0)
        return TITAN_OK;
    const int why = errno;
    if (why == ENOENT)
        return titan_fail(err, TITAN_ENOTFOUND, "training data '%s': %s", root, strerror(why));
    return unreadable(root, why, err);
}

titan_status data_files_add(struct data_files *files, const char *root, struct titan_error *err)
{
    char *roots[2] = {(char *)(uintptr_t)root, NULL};
    const size_t before = files->n;
    TRY(check_root(root, err));
    _cleanup_(close_fts) FTS *fts =
        fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR | (file_refuses_links() ? 0 : FTS_COMFOLLOW), NULL);
    if (!fts)
        return titan_fail_errno(err, "cannot list '%s'", root);
    FTSENT *e;
    while ((errno = 0, e = fts_read(fts))) {
        const bool unread = e->fts_info == FTS_DNR || e->fts_info == FTS_ERR || e->fts_info == FTS_NS;
        if (unread && e->fts_level == 0)
            return unreadable(root, e->fts_errno, err);
        if (unread)
            data_files_leave_out(files, e->fts_path, e->fts_errno);
        if (e->fts_info == FTS_F && e->fts_statp->st_size > 0)
            TRY(add(files, e, err));
    }
    if (errno != 0)
        return unreadable(root, errno, err);
    if (files->n > before)
        qsort(files->file + before, files->n - before, sizeof(*files->file), compare_paths);
    return TITAN_OK;
}

void data_files_clear(struct data_files *files)
{
    for (size_t i = 0; i < files->n; i++)
        free(files->file[i].path);
    free(files->file);
    *files = (struct data_files){0};
}

static bool ends_in(const char *path, size_t len, const char *suffix)
{
    const size_t n = strlen(suffix);
    return len >= n && strncasecmp(path + len - n, suffix, n) == 0;
}

const char *data_file_packing(const char *path)
{
    const size_t len = strlen(path);
    return ends_in(path, len, ".gz") ? ".gz" : ends_in(path, len, ".zst") ? ".zst" : "";
}

bool data_file_is(const char *path, const char *suffix)
{
    return ends_in(path, strlen(path) - strlen(data_file_packing(path)), suffix);
}
