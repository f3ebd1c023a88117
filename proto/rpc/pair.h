/* SPDX-License-Identifier: Apache-2.0 */
/* pair.h - the content of the files of a struct rpc_tls, kept up to date. Private to proto; one thread. */
#ifndef TITAN_PROTO_RPC_PAIR_H
#define TITAN_PROTO_RPC_PAIR_H

#include <grpc/grpc_security.h>
#include <openssl/ssl.h>
#include <stdbool.h>

#include "base/error.h"
#include "proto/rpc/tls.h"

struct rpc_pair;

/* TITAN_EPERM: users other than the key's owner have rights to the key. */
titan_status rpc_pair_open(const struct rpc_tls *tls, struct rpc_pair **ret, struct titan_error *err) TITAN_MUST_USE;
void rpc_pair_free(struct rpc_pair *pair); /* NULL is fine */
/* Loads the files if they have changed and fit each other; true: loaded. Unfit files are logged once. */
bool rpc_pair_refresh(struct rpc_pair *pair);

/* Never NULL; valid until the next refresh. */
grpc_channel_credentials *rpc_pair_client(const struct rpc_pair *pair);
enum rpc_protocol { RPC_HTTP_2, RPC_HTTP_1_1, RPC_TUNNEL };
/* The server's end of TLS for fd, a new connection that the caller still owns, with the current files. No session
 * resumption: each client proves its certificate. A client that names protocols must name this one. certificates_only:
 * the handshake requires a certificate of the CA. NULL: out of memory. */
SSL *rpc_pair_accept(struct rpc_pair *pair, int fd, enum rpc_protocol protocol, bool certificates_only);
/* The client's end of TLS for fd, with the current files. The server needs a certificate of the CA that may serve; no
 * host name is compared. The handshake begins with the first write. NULL: out of memory. */
SSL *rpc_pair_connect(struct rpc_pair *pair, int fd, enum rpc_protocol protocol);

#endif
