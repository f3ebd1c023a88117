/* SPDX-License-Identifier: Apache-2.0 */
/* pair.h - what is in the files of a struct rpc_tls, kept up to date. Private to proto/rpc. */
#ifndef TITAN_PROTO_RPC_PAIR_H
#define TITAN_PROTO_RPC_PAIR_H

#include <grpc/grpc_security.h>
#include <openssl/ssl.h>
#include <stdbool.h>

#include "proto/rpc/tls.h"

struct rpc_pair;

titan_status rpc_pair_open(const struct rpc_tls *tls, struct rpc_pair **ret, struct titan_error *err) TITAN_MUST_USE;
void rpc_pair_free(struct rpc_pair *pair); /* NULL is fine */
/* Have the files changed, and to something that fits? Then it is taken. Says once what is wrong with what does not. Any
 * thread. */
bool rpc_pair_refresh(struct rpc_pair *pair);

/* Never NULL; owned by the caller. */
grpc_channel_credentials *rpc_pair_client(struct rpc_pair *pair);
/* A server's end for fd, a new connection that the caller goes on to own, by the files as they are now. HTTP/2 only, no
 * sessions that are resumed: each client proves its certificate. certificates_only: one without a certificate of the CA
 * does not get through the handshake. NULL: there is no memory. One thread. */
SSL *rpc_pair_accept(struct rpc_pair *pair, int fd, bool certificates_only);

#endif
