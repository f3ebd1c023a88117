/* SPDX-License-Identifier: Apache-2.0 */
/* tunnel.h - mutual TLS for connections of any protocol: a thread ends TLS, the caller gets a socket for the plain
 * bytes.
 *
 * Both sides prove a certificate of the CA. The files are read again at the next tunnel when they have changed. The
 * side that connects must write first. All calls are for the loop's thread. */
#ifndef TITAN_PROTO_RPC_TUNNEL_H
#define TITAN_PROTO_RPC_TUNNEL_H

#include <uv.h>

#include "base/error.h"
#include "proto/rpc/tls.h"

struct rpc_tunnels;
struct rpc_tunnel;

/* TITAN_EINVAL: the files do not fit each other, or name no certificate. */
titan_status rpc_tunnels_open(uv_loop_t *loop, const struct rpc_tls *tls, struct rpc_tunnels **ret,
                              struct titan_error *err) TITAN_MUST_USE;
/* Ends all tunnels, then calls done(data) on the loop. */
void rpc_tunnels_close(struct rpc_tunnels *all, void (*done)(void *), void *data);

enum rpc_tunnel_side { RPC_TUNNEL_ACCEPTS, RPC_TUNNEL_CONNECTS };
/* Makes a tunnel of a connected TCP socket, which it owns, also after a failure. *ret_fd is the caller's: a
 * non-blocking stream socket of the plain bytes. ended: called once on the loop when the tunnel has ended before its
 * release; why->status is TITAN_OK when a side has left. It releases the tunnel. */
titan_status rpc_tunnel_open(struct rpc_tunnels *all, int fd, enum rpc_tunnel_side side,
                             void (*ended)(void *data, const struct titan_error *why), void *data,
                             struct rpc_tunnel **ret, int *ret_fd, struct titan_error *err) TITAN_MUST_USE;
/* The URI of the peer's certificate. It is known before the first plain byte; "" before, or without one URI. */
const char *rpc_tunnel_peer(const struct rpc_tunnel *tunnel);
/* The caller forgets the tunnel, which goes on until one side closes. NULL is fine. */
void rpc_tunnel_release(struct rpc_tunnel *tunnel);

#endif
