/* SPDX-License-Identifier: Apache-2.0 */
/* job_files.c - see job_files.h. */
#include "daemon/common/job_files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"

titan_status job_files_folder(const char *dir, const char *name, bool make, int *ret_fd, struct titan_error *err)
{
    char parts[PATH_MAX], *save = NULL;
    if (snprintf(parts, sizeof(parts), "%s", name) >= (int)sizeof(parts))
        return titan_fail(err, TITAN_EINVAL, "'%.64s...' is too long", name);
    _cleanup_fd_ int at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (at < 0)
        return titan_fail_errno(err, "folder '%s'", dir);
    for (char *part = strtok_r(parts, "/", &save), *next; part; part = next) {
        int below = -1;
        next = strtok_r(NULL, "/", &save);
        if (strcmp(part, "..") == 0)
            return titan_fail(err, TITAN_EINVAL, "'%s' leads out of '%s'", name, dir);
        if (dir_open_at(at, part, make && !next, &below, err) != TITAN_OK)
            return titan_error_wrap(err, "in '%s'", dir);
        (void)close(at);
        at = below;
    }
    *ret_fd = TAKE_FD(at);
    return TITAN_OK;
}

titan_status job_files_open(int folder, const char *name, int flags, int *ret_fd, struct titan_error *err)
{
    struct stat st;
    titan_assert(folder >= 0 && !strchr(name, '/'));
    _cleanup_fd_ int fd = openat(folder, name, flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0644);
    const bool odd = fd < 0 && (errno == ELOOP || errno == ENXIO || errno == EISDIR);
    if (fd < 0 && !odd)
        return titan_fail_errno(err, "cannot open '%s'", name);
    if (!odd && fstat(fd, &st) != 0)
        return titan_fail_errno(err, "cannot look at '%s'", name);
    if (odd || !S_ISREG(st.st_mode) || st.st_nlink != 1)
        return titan_fail(err, TITAN_EINVAL, "'%s' is not a file of one name, and is left alone", name);
    (void)fcntl(fd, F_SETFL, flags & O_APPEND);
    *ret_fd = TAKE_FD(fd);
    return TITAN_OK;
}
