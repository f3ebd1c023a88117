/* SPDX-License-Identifier: Apache-2.0 */
#include "base/standard_streams.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void standard_streams_open(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) /* open() returns the lowest free number, so this one */
            (void)!open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

bool standard_streams_flush(const char *program)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return true;
    const int why = errno; /* 0: an earlier write failed */
    struct pollfd out = {.fd = STDOUT_FILENO};
    if (why != EPIPE && (poll(&out, 1, 0) != 1 || !(out.revents & POLLERR)))
        (void)fprintf(stderr, "%s: cannot write standard output%s%s\n", program, why ? ": " : "",
                      why ? strerror(why) : "");
    return false;
}
