/* SPDX-License-Identifier: Apache-2.0 */
/* trusted_socket.h - a connection over a Unix socket to a server that may have a token: one of root, of this process's
 * user, or of the user that the package runs Titan as. Any user can make a socket at a path that another one is told
 * of. */
#ifndef TITAN_PROTO_RPC_TRUSTED_SOCKET_H
#define TITAN_PROTO_RPC_TRUSTED_SOCKET_H

#include "base/error.h"

#define TRUSTED_SOCKET_USER "titan" /* systemd/titan.sysusers */

/* path: of the socket. The kernel knows the server's user (SO_PEERCRED: that of listen(2), which under systemd is
 * root). TITAN_EPERM names another one; TITAN_EUNREACHABLE: no server. *ret_fd does not block. */
titan_status trusted_socket_connect(const char *path, int *ret_fd, struct titan_error *err) TITAN_MUST_USE;

#endif
