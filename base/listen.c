/* SPDX-License-Identifier: Apache-2.0 */
#include "base/listen.h"

#include <ctype.h>
#include <dirent.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"

titan_status listen_tcp(const char *host, int backlog, int *ret_fd, uint16_t *ret_port, struct titan_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } bound = {.v6 = {0}};
    socklen_t len = sizeof(bound);
    titan_assert(host && backlog > 0);
    const int rc = getaddrinfo(host, NULL, &hints, &list);
    if (rc != 0)
        return titan_fail(err, TITAN_EINVAL, "cannot listen on '%s': %s", host, gai_strerror(rc));
    _cleanup_fd_ int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    titan_status status = TITAN_OK;
    if (fd < 0 || bind(fd, list->ai_addr, list->ai_addrlen) != 0 || listen(fd, backlog) != 0 ||
        getsockname(fd, &bound.any, &len) != 0)
        status = titan_fail_errno(err, "cannot listen on '%s'", host);
    freeaddrinfo(list);
    if (status != TITAN_OK)
        return status;
    *ret_port = ntohs(bound.any.sa_family == AF_INET6 ? bound.v6.sin6_port : bound.v4.sin_port);
    *ret_fd = TAKE_FD(fd);
    return TITAN_OK;
}

/* --- what listens ------------------------------------------------------------------------------------------------- */

/* The inode of the socket that listens on the port, by a table such as /proc/net/tcp; 0: none does. */
static unsigned long find_socket(const char *table, unsigned port)
{
    enum { TCP_LISTENING = 0x0A };
    char line[512];
    unsigned at, state;
    unsigned long inode, found = 0;
    FILE *f = fopen(table, "re");
    if (!f)
        return 0;
    while (!found && fgets(line, sizeof(line), f))
        if (sscanf(line, "%*u: %*[0-9A-F]:%x %*[0-9A-F]:%*x %x %*s %*s %*s %*u %*u %lu", &at, &state, &inode) == 3 &&
            at == port && state == TCP_LISTENING)
            found = inode;
    (void)fclose(f);
    return found;
}

static bool has_open(const char *pid, const char *socket)
{
    char path[64], target[64];
    bool found = false;
    (void)snprintf(path, sizeof(path), "/proc/%.16s/fd", pid);
    DIR *dir = opendir(path);
    for (const struct dirent *d = dir ? readdir(dir) : NULL; d && !found; d = readdir(dir)) {
        const ssize_t n = readlinkat(dirfd(dir), d->d_name, target, sizeof(target) - 1);
        target[n > 0 ? n : 0] = '\0';
        found = strcmp(target, socket) == 0;
    }
    if (dir)
        (void)closedir(dir);
    return found;
}

void listen_owner(unsigned port, char text[LISTEN_OWNER])
{
    char socket[64], path[64], name[32] = "";
    unsigned long inode = find_socket("/proc/net/tcp", port);
    (void)snprintf(text, LISTEN_OWNER, "another process");
    if (!inode)
        inode = find_socket("/proc/net/tcp6", port);
    DIR *all = inode ? opendir("/proc") : NULL;
    if (!all)
        return;
    (void)snprintf(socket, sizeof(socket), "socket:[%lu]", inode);
    const struct dirent *d = readdir(all);
    while (d && !(isdigit((unsigned char)d->d_name[0]) && has_open(d->d_name, socket)))
        d = readdir(all);
    if (d) {
        (void)snprintf(path, sizeof(path), "/proc/%.16s/comm", d->d_name);
        FILE *f = fopen(path, "re");
        if (f && fgets(name, sizeof(name), f))
            name[strcspn(name, "\n")] = '\0';
        if (f)
            (void)fclose(f);
        (void)snprintf(text, LISTEN_OWNER, "process %.16s (%s)", d->d_name, name);
    }
    (void)closedir(all);
}
