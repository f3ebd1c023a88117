/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc/trusted_socket.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"

titan_status trusted_socket_connect(const char *path, int *ret_fd, struct titan_error *err)
{
    char room[16384], name[64];
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    struct ucred peer;
    socklen_t len = sizeof(peer);
    struct passwd entry, *user = NULL;
    if (snprintf(to.sun_path, sizeof(to.sun_path), "%s", path) >= (int)sizeof(to.sun_path))
        return titan_fail(err, TITAN_EINVAL, "'%s' is too long for a socket", path);
    _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&to, sizeof(to)) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0)
        return titan_fail(err, TITAN_EUNREACHABLE, "'%s': %s", path, strerror(errno));
    if (peer.uid != 0 && peer.uid != geteuid() &&
        (getpwnam_r(TRUSTED_SOCKET_USER, &entry, room, sizeof(room), &user) != 0 || !user ||
         user->pw_uid != peer.uid)) {
        (void)snprintf(name, sizeof(name), "uid %u", (unsigned)peer.uid);
        const bool named = getpwuid_r(peer.uid, &entry, room, sizeof(room), &user) == 0 && user;
        (void)titan_fail(err, TITAN_EPERM,
                         "a token is not sent to unix:%s: its server runs as %s, not as root, %s or this user", path,
                         named ? user->pw_name : name, TRUSTED_SOCKET_USER);
        titan_error_hint(err, "unset TITAN_TOKEN to come as the user of this process, or name the server by HOST:PORT");
        return TITAN_EPERM;
    }
    *ret_fd = TAKE_FD(fd);
    return TITAN_OK;
}
