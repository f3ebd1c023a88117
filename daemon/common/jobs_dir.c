/* SPDX-License-Identifier: Apache-2.0 */
/* jobs_dir.c - see jobs_dir.h. */
#include "daemon/common/jobs_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/failpoint.h"
#include "base/file.h"
#include "base/hash.h"
#include "daemon/common/file_pool.h"

#define NAMES_MAX 65536 /* with more names in it, a data root gets no mark: it cannot be compared between nodes */

static titan_status token_read(const char *path, char ret[JOBS_TOKEN_MAX], struct titan_error *err)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    TRY(file_read(path, JOBS_TOKEN_MAX - 1, &text, err));
    size_t len = text.data ? strspn(text.data, "0123456789abcdef") : 0;
    if (len < 16 || len >= JOBS_TOKEN_MAX || strcmp(text.data + len, "\n") != 0)
        return titan_fail(err, TITAN_ECORRUPT, "'%s' is not a folder's token", path);
    (void)snprintf(ret, JOBS_TOKEN_MAX, "%.*s", (int)len, text.data);
    return TITAN_OK;
}

static titan_status token_make(const char *path, struct titan_error *err)
{
    uint64_t random[2];
    char text[JOBS_TOKEN_MAX];
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return titan_fail_errno(err, "no random numbers");
    int len = snprintf(text, sizeof(text), "%016" PRIx64 "%016" PRIx64 "\n", random[0], random[1]);
    return file_replace(path, text, (size_t)len, err);
}

static titan_status open_folder(const char *path, char ret_token[JOBS_TOKEN_MAX], struct titan_error *err)
{
    titan_assert(path[0] == '/');
    char file[PATH_MAX + 16];
    (void)snprintf(file, sizeof(file), "%s/" JOBS_TOKEN_FILE, path);
    if (access(path, W_OK | X_OK) < 0)
        return titan_fail_errno(err, "folder of jobs '%s'", path);
    if (access(file, F_OK) < 0 && errno == ENOENT)
        TRY(token_make(file, err));
    return token_read(file, ret_token, err);
}

struct opening {
    struct file_task task; /* must be first */
    char state_dir[PATH_MAX], given[PATH_MAX], path[PATH_MAX], token[JOBS_TOKEN_MAX];
    struct titan_error err;
};

/* Opens the configured folder. If no folder is configured, opens a folder in the state directory. Does not create a
 * configured folder, because that would hide a missing mount. */
static void open_run(struct file_task *k)
{
    struct opening *o = (struct opening *)(void *)k;
    struct titan_error *err = &o->err;
    titan_status status = TITAN_OK;
    if (o->given[0] && !realpath(o->given, o->path))
        status = titan_fail_errno(err, "storage.jobs_dir '%s'", o->given);
    else if (!o->given[0] && snprintf(o->path, PATH_MAX, "%s/jobs", o->state_dir) >= PATH_MAX)
        status = titan_fail(err, TITAN_EINVAL, "state directory name is too long");
    else if (!o->given[0])
        status = dir_make(o->path, err);
    if (status == TITAN_OK)
        status = open_folder(o->path, o->token, err);
    if (status != TITAN_OK && o->given[0])
        titan_error_hint(err, "it must be there, be writable for the user of titand and, under systemd, for its unit: "
                              "titanctl admin check --fix, as root");
}

titan_status jobs_open(const char *state_dir, const char *given, uint32_t wait_ms, char ret_path[PATH_MAX],
                       char ret_token[JOBS_TOKEN_MAX], struct titan_error *err)
{
    static const struct file_calls calls = {.run = open_run};
    struct opening *o = calloc(1, sizeof(*o));
    if (!o)
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    (void)snprintf(o->state_dir, sizeof(o->state_dir), "%s", state_dir);
    (void)snprintf(o->given, sizeof(o->given), "%s", given ? given : "");
    titan_status status = file_task_await(&o->task, &calls, wait_ms, err);
    if (status == TITAN_ETIMEDOUT) { /* the task's thread frees it */
        (void)titan_fail(err, status, "%s%s%s' does not answer within %u ms", given ? "storage.jobs_dir '" : "'",
                         given ? given : state_dir, given ? "" : "/jobs", wait_ms);
        titan_error_hint(err, "look at its file server; the coordinator can start when it answers");
        return status;
    }
    if (status == TITAN_OK && (status = o->err.status) != TITAN_OK && err)
        *err = o->err;
    if (status == TITAN_OK) {
        memcpy(ret_path, o->path, PATH_MAX);
        titan_assert(ret_path[0] == '/');
        memcpy(ret_token, o->token, JOBS_TOKEN_MAX);
    }
    free(o);
    return status;
}

static titan_status try_write(const char *what, const char *path, const char *node, struct titan_error *err)
{
    titan_assert(what[0] && node[0]);
    char file[PATH_MAX];
    titan_status status = TITAN_OK;
    if (snprintf(file, sizeof(file), "%s/.titan-write-%s", path, node) >= (int)sizeof(file))
        return titan_fail(err, TITAN_EINVAL, "'%.100s' is too long", path);
    (void)unlink(file);
    _cleanup_fd_ int fd = open(file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || write(fd, "x", 1) != 1) {
        status = titan_fail_errno(err, "cannot write in %s '%s'", what, path);
        titan_error_hint(err, "the same user number on all nodes; under systemd titanctl admin check --fix, as root");
    }
    (void)unlink(file);
    return status;
}

titan_status jobs_check(const char *path, const char *token, const char *node, struct titan_error *err)
{
    char file[PATH_MAX], have[JOBS_TOKEN_MAX];
    struct titan_error why = {0};
    if (path[0] != '/' || snprintf(file, sizeof(file), "%s/" JOBS_TOKEN_FILE, path) >= (int)sizeof(file))
        return titan_fail(err, TITAN_EINVAL, "'%.100s' is no folder for jobs", path);
    titan_status status = token_read(file, have, &why);
    if (status == TITAN_OK && strcmp(have, token) == 0)
        return try_write("the jobs' folder", path, node, err);
    if (status != TITAN_OK)
        (void)titan_fail(err, status, "the jobs' folders are not seen here: %s", why.msg);
    else
        status = titan_fail(err, TITAN_ECONFLICT, "'%s' is another folder than the coordinator's", path);
    titan_error_hint(err, "storage.jobs_dir of the coordinator must be a path that all nodes share");
    return status;
}

/* --- configured roots --------------------------------------------------------------------------------------------- */

titan_status jobs_dir_check_root(const char *path, bool writes, const char *node, char ret_mark[ROOT_MARK_MAX],
                                 struct titan_error *err)
{
    struct stat st;
    ret_mark[0] = '\0';
    TRY(failpoint("root.look", err));
    if (stat(path, &st) != 0) {
        titan_status status = titan_fail_errno(err, "'%s'", path);
        titan_error_hint(err, "mount it there, or take it out of the coordinator's storage.%s",
                         writes ? "checkpoint_roots" : "data_roots");
        return status;
    }
    if (writes) {
        TRY(try_write("checkpoint root", path, node, err));
        /* Reads or makes the root's token. Several nodes may make the token at once. So each node writes its own file
         * and links it: a link appears once, and complete. */
        char file[PATH_MAX], own[PATH_MAX];
        if (snprintf(file, sizeof(file), "%s/" ROOT_TOKEN_FILE, path) >= (int)sizeof(file) ||
            snprintf(own, sizeof(own), "%s/" ROOT_TOKEN_FILE "-%s", path, node) >= (int)sizeof(own))
            return titan_fail(err, TITAN_EINVAL, "'%.100s' is too long", path);
        if (access(file, F_OK) != 0 && errno == ENOENT) {
            TRY(token_make(own, err));
            const int failed = link(own, file) != 0 && errno != EEXIST ? errno : 0;
            (void)unlink(own);
            errno = failed;
            if (failed)
                return titan_fail_errno(err, "'%s'", file);
        }
        return token_read(file, ret_mark, err);
    }
    if (access(path, S_ISDIR(st.st_mode) ? R_OK | X_OK : R_OK) != 0) {
        titan_status status = titan_fail_errno(err, "cannot read '%s'", path);
        titan_error_hint(err, "let the user of titand read it");
        return status;
    }
    if (!S_ISDIR(st.st_mode)) {
        (void)snprintf(ret_mark, ROOT_MARK_MAX, "%016llx", (unsigned long long)st.st_size);
        return TITAN_OK;
    }

    /* Hashes the names, in any order. It leaves out the sizes, which would need one request each. */
    uint64_t sum = 0, n = 0;
    DIR *dir = opendir(path);
    if (!dir)
        return titan_fail_errno(err, "cannot read '%s'", path);
    errno = 0;
    for (const struct dirent *e; (e = readdir(dir));)
        if (e->d_name[0] != '.' && ++n <= NAMES_MAX)
            sum += hash_bytes(HASH_INIT, e->d_name, strlen(e->d_name));
    const int failed = errno;
    (void)closedir(dir);
    errno = failed;
    if (failed)
        return titan_fail_errno(err, "cannot read '%s'", path);
    if (n <= NAMES_MAX)
        (void)snprintf(ret_mark, ROOT_MARK_MAX, "%016" PRIx64 "%" PRIu64, sum, n);
    return TITAN_OK;
}
