/* SPDX-License-Identifier: Apache-2.0 */
/* listener.h - a server's listening sockets: opened or adopted, polled by the loop, closed. Private to proto. */
#ifndef TITAN_PROTO_RPC_LISTENER_H
#define TITAN_PROTO_RPC_LISTENER_H

#include <uv.h>

#include "base/error.h"

/* A connection is dead if its client takes no bytes for this time and TCP reports no failure before. */
#define RPC_DEAD_MS 10000

enum rpc_listener_kind { RPC_LISTENER_LOCAL, RPC_LISTENER_PLAIN, RPC_LISTENER_TLS };

struct rpc_listeners {
    struct rpc_listener *first;
    int spare_fd; /* freed to accept and close a connection when no other descriptor is left; -1: none */
    /* Set by the caller: gets and owns each new connection. fd -1: a connection was closed for lack of a descriptor. */
    void (*accepted)(void *data, int fd, enum rpc_listener_kind kind);
    void *data;
};

/* address: as in rpc_server_listen(). tls: the server uses TLS for a TCP address. */
titan_status rpc_listeners_add(struct rpc_listeners *all, const char *address, bool tls, mode_t socket_mode,
                               int *ret_port, struct titan_error *err) TITAN_MUST_USE;
/* Adopts a socket as rpc_server_adopt() does. */
titan_status rpc_listeners_adopt(struct rpc_listeners *all, int fd, struct titan_error *err) TITAN_MUST_USE;
/* Accepts connections from now on. */
titan_status rpc_listeners_start(struct rpc_listeners *all, uv_loop_t *loop, struct titan_error *err) TITAN_MUST_USE;
/* Accepts no more connections. Titan's own listeners are closed and their files removed. The call is allowed without
 * any listener. */
void rpc_listeners_close(struct rpc_listeners *all);

#endif
