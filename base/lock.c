/* SPDX-License-Identifier: Apache-2.0 */
#include "base/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"

titan_status lock_dir(const char *dir, int *ret_fd, struct titan_error *err)
{
    char path[PATH_MAX], text[32];
    if ((size_t)snprintf(path, sizeof(path), "%s/lock", dir) >= sizeof(path))
        return titan_fail(err, TITAN_EINVAL, "path too long: '%s'", dir);
    _cleanup_fd_ int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0)
        return titan_fail_errno(err, "cannot open '%s'", path);
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(fd, F_OFD_SETLK, &whole) < 0) {
        if (errno != EAGAIN && errno != EACCES)
            return titan_fail_errno(err, "cannot lock '%s'", path);
        ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
        text[MAX(n, 0)] = '\0';
        text[strcspn(text, "\n")] = '\0';
        titan_fail(err, TITAN_ECONFLICT, "'%s' is in use by process %s", dir, text[0] ? text : "(unknown)");
        titan_error_hint(err, "stop that process or choose another folder");
        return TITAN_ECONFLICT;
    }
    int len = snprintf(text, sizeof(text), "%ld\n", (long)getpid());
    /* Write, then truncate: the file is never empty. */
    if (pwrite(fd, text, (size_t)len, 0) != len || ftruncate(fd, len) < 0)
        return titan_fail_errno(err, "cannot write '%s'", path);
    *ret_fd = TAKE_FD(fd);
    return TITAN_OK;
}
