/* SPDX-License-Identifier: Apache-2.0 */
#include "base/listen.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"

titan_status listen_ports_parse(const char *text, struct listen_ports *ret, struct titan_error *err)
{
    unsigned first = 0, last = 0;
    int end = 0;
    if (isdigit((unsigned char)text[0]) && sscanf(text, "%5u-%n%5u%n", &first, &end, &last, &end) == 2 &&
        isdigit((unsigned char)strchr(text, '-')[1]) && !text[end] && first >= 1024 && last >= first && last <= 65535) {
        *ret = (struct listen_ports){(uint16_t)first, (uint16_t)last};
        return TITAN_OK;
    }
    (void)titan_fail(err, TITAN_EINVAL, "'%.32s' is not a range of ports from 1024 to 65535", text);
    titan_error_hint(err, "write it as 30000-30999");
    return TITAN_EINVAL;
}

void listen_ports_print(const struct listen_ports *ports, char text[LISTEN_PORTS_TEXT])
{
    (void)snprintf(text, LISTEN_PORTS_TEXT, "%u-%u", ports->first, ports->last);
}

static titan_status listen_at(const struct addrinfo *at, uint16_t port, int backlog, int *ret_fd)
{
    struct sockaddr_storage address = {0};
    const int on = 1;
    memcpy(&address, at->ai_addr, at->ai_addrlen);
    if (at->ai_family == AF_INET6)
        ((struct sockaddr_in6 *)&address)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)&address)->sin_port = htons(port);
    _cleanup_fd_ int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* Ended connections of an earlier listener may still occupy a requested port. */
    if (fd < 0 || (port && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0) ||
        bind(fd, (struct sockaddr *)&address, at->ai_addrlen) != 0 || listen(fd, backlog) != 0)
        return errno == EADDRINUSE ? TITAN_EEXIST : TITAN_EIO;
    *ret_fd = TAKE_FD(fd);
    return TITAN_OK;
}

titan_status listen_tcp(const char *host, const struct listen_ports *ports, int backlog, int *ret_fd,
                        uint16_t *ret_port, struct titan_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } bound = {.v6 = {0}};
    socklen_t len = sizeof(bound);
    _cleanup_fd_ int fd = -1;
    titan_assert(backlog > 0 && (!ports || ports->first <= ports->last));
    const int rc = getaddrinfo(host, NULL, &hints, &list);
    if (rc != 0)
        return titan_fail(err, TITAN_EINVAL, "cannot listen on '%s': %s", host, gai_strerror(rc));
    const bool ranged = ports && ports->first;
    const uint32_t n = ranged ? (uint32_t)(ports->last - ports->first) + 1 : 0;
    titan_status status = ranged ? TITAN_EEXIST : listen_at(list, 0, backlog, &fd);
    for (uint32_t i = 0; i < n && status == TITAN_EEXIST; i++) /* each process begins elsewhere, to avoid collisions */
        status = listen_at(list, (uint16_t)(ports->first + ((uint32_t)getpid() + i) % n), backlog, &fd);
    const bool taken = ranged && status == TITAN_EEXIST;
    if (taken) {
        char text[LISTEN_PORTS_TEXT];
        listen_ports_print(ports, text);
        status =
            titan_error_set(err, TITAN_ENOSPC, EADDRINUSE, __FILE__, __LINE__, "none of the ports %s is free", text);
    }
    if (status == TITAN_OK && getsockname(fd, &bound.any, &len) != 0)
        status = TITAN_EIO;
    if (status != TITAN_OK && !taken)
        status = titan_fail_errno(err, "cannot listen on '%s'", host);
    freeaddrinfo(list);
    TRY(status);
    *ret_port = ntohs(bound.any.sa_family == AF_INET6 ? bound.v6.sin6_port : bound.v4.sin_port);
    *ret_fd = TAKE_FD(fd);
    return TITAN_OK;
}

/* --- what listens ------------------------------------------------------------------------------------------------- */

/* The inode of the port's listening socket, from a table such as /proc/net/tcp; 0: none. */
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
