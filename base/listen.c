/* SPDX-License-Identifier: Apache-2.0 */
#include "base/listen.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

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
