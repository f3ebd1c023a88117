/* SPDX-License-Identifier: Apache-2.0 */
/* enrolling.h - the node's part in certificates: the first certificate by a join file before the agent starts, later
 * certificates over the connection of the agent's session. The key is made here and never leaves the node. */
#ifndef TITAN_DAEMON_AUTH_ENROLLING_H
#define TITAN_DAEMON_AUTH_ENROLLING_H

#include <uv.h>

#include "daemon/auth/join.h"
#include "proto/rpc/client.h"

/* Gets a certificate by the join file and writes it to `files`, unless this was done before. Another join file (the
 * node was revoked, or away too long) gets another certificate with a new key. Waits up to wait_ms for a coordinator
 * that does not answer. Blocking; call it before there is a loop. *ret: the join file's content. */
titan_status enrolling_join(const char *path, const struct rpc_tls *files, uint32_t wait_ms, struct join_file *ret,
                            struct titan_error *err) TITAN_MUST_USE;
/* Reads the node and the addresses that an earlier join kept from its join file. TITAN_ENOTFOUND: no join has been
 * done. */
titan_status enrolling_joined(const struct rpc_tls *files, struct join_file *ret,
                              struct titan_error *err) TITAN_MUST_USE;
/* Returns the name of the certificate's node. TITAN_EPERM: the certificate is not a node's, has expired, is not valid
 * yet, or is not of its CA. */
titan_status enrolling_name(const struct rpc_tls *files, char out[PKI_NAME_MAX + 1],
                            struct titan_error *err) TITAN_MUST_USE;

/* Renews the certificate at two thirds of its life, with the same key. Open connections go on; new connections use the
 * new certificate. */
struct renewal;
/* client is borrowed. At the end close the client first, because this ends a call in progress. Then call
 * renewal_close(). */
titan_status renewal_open(uv_loop_t *loop, const struct rpc_tls *files, struct rpc_client *client, struct renewal **ret,
                          struct titan_error *err) TITAN_MUST_USE;
/* Stops renewing, then calls done on the loop. NULL is fine. */
void renewal_close(struct renewal *r, void (*done)(void *), void *data);

#endif
