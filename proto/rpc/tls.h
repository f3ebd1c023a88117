/* SPDX-License-Identifier: Apache-2.0 */
/* tls.h - the files of a TLS end, for servers and clients. They are read again whenever they have changed: a server
 * takes new ones at its next connection, a client at its next call; connections that stand go on with what they began
 * with. Files that do not fit each other (half of a rotation, a damaged one) are not taken: the ones before stay. */
#ifndef TITAN_PROTO_RPC_TLS_H
#define TITAN_PROTO_RPC_TLS_H

#include <limits.h>

#include "base/error.h"

/* In PEM: the authority that peers' certificates must be of, and one's own certificate chain and key. A client may have
 * none of its own (certificate and key ""). */
struct rpc_tls {
    char ca[PATH_MAX], certificate[PATH_MAX], key[PATH_MAX];
};

/* Are they there, readable, and of each other? TITAN_EPERM when others than its owner have rights to the key. */
titan_status rpc_tls_check(const struct rpc_tls *tls, struct titan_error *err) TITAN_MUST_USE;

#endif
