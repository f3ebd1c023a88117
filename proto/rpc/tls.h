/* SPDX-License-Identifier: Apache-2.0 */
/* tls.h - the TLS files of servers and clients. Changed files are read again: by a server at its next connection, by a
 * client at its next call. Established connections keep their files. Files that do not fit each other (half of a
 * rotation, damage) are ignored: the previous files stay in use. */
#ifndef TITAN_PROTO_RPC_TLS_H
#define TITAN_PROTO_RPC_TLS_H

#include <limits.h>

/* PEM files: the authority of the peers' certificates, and this side's certificate chain and key. A client may have no
 * certificate (certificate and key ""). */
struct rpc_tls {
    char ca[PATH_MAX], certificate[PATH_MAX], key[PATH_MAX];
};

#endif
