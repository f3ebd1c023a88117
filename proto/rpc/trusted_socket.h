/* SPDX-License-Identifier: Apache-2.0 */
/* trusted_socket.h - connects to a Unix socket of a server that may receive a token: a server of root, of this
 * process's user, or of the packaged Titan user. Any user can create a socket at a path given to another user. */
#ifndef TITAN_PROTO_RPC_TRUSTED_SOCKET_H
#define TITAN_PROTO_RPC_TRUSTED_SOCKET_H

#include "base/error.h"

#define TRUSTED_SOCKET_USER "titan" /* systemd/titan.sysusers */

/* path: of the socket. The kernel reports the server's user (SO_PEERCRED: that of listen(2), under systemd root).
 * TITAN_EPERM names another user; TITAN_EUNREACHABLE: no server. *ret_fd is non-blocking. */
titan_status trusted_socket_connect(const char *path, int *ret_fd, struct titan_error *err) TITAN_MUST_USE;

#endif
