/* SPDX-License-Identifier: Apache-2.0 */
#include "base/notify.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"

int notify(const char *state)
{
    const char *name = getenv("NOTIFY_SOCKET");
    if (!name || !*name)
        return 0;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = strlen(name);
    if ((name[0] != '/' && name[0] != '@') || len >= sizeof(address.sun_path)) {
        errno = EINVAL;
        return -1;
    }
    memcpy(address.sun_path, name, len);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + 1);
    if (name[0] == '@') { /* abstract socket: NUL first, no terminator */
        address.sun_path[0] = '\0';
        size--;
    }
    _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    ssize_t n = sendto(fd, state, strlen(state), MSG_NOSIGNAL, (const struct sockaddr *)&address, size);
    return n < 0 ? -1 : 1;
}

int notify_printf(const char *fmt, ...)
{
    char state[1024];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(state, sizeof(state), fmt, ap);
    va_end(ap);
    return n < 0 ? -1 : notify(state);
}

uint64_t notify_watchdog_us(void)
{
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    if (!usec || (pid && strtoll(pid, NULL, 10) != (long long)getpid()))
        return 0;
    char *end;
    errno = 0;
    unsigned long long value = strtoull(usec, &end, 10);
    return errno || *end || end == usec ? 0 : value;
}

#define SOCKETS_FIRST 3 /* fixed by the protocol */
#define SOCKETS_MAX 64

int notify_sockets(int *ret_first)
{
    const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
    int n = pid && count && strtoll(pid, NULL, 10) == (long long)getpid() ? (int)strtol(count, NULL, 10) : 0;
    if (n < 0 || n > SOCKETS_MAX)
        n = 0;
    for (int fd = SOCKETS_FIRST; fd < SOCKETS_FIRST + n; fd++) {
        int flags = fcntl(fd, F_GETFD);
        if (flags < 0 || fcntl(fd, F_SETFD, flags | FD_CLOEXEC) < 0)
            n = fd - SOCKETS_FIRST; /* counts only the descriptors so far, fewer than announced */
    }
    /* The variables are not for child processes. */
    (void)unsetenv("LISTEN_PID");
    (void)unsetenv("LISTEN_FDS");
    (void)unsetenv("LISTEN_FDNAMES");
    *ret_first = SOCKETS_FIRST;
    return n;
}
