/* SPDX-License-Identifier: Apache-2.0 */
/* enrolling.h - the node's part in certificates: the first by a join file before the agent starts, later ones over its
 * session's connection. The key is made here and never leaves the node. */
#ifndef TITAN_DAEMON_AUTH_ENROLLING_H
#define TITAN_DAEMON_AUTH_ENROLLING_H

#include <uv.h>

#include "daemon/auth/join.h"
#include "proto/rpc/client.h"

/* Gets a certificate into files by the join file, unless that was done before. Another join file (the node was revoked,
 * or away too long) gets another certificate with a new key. Waits up to wait_ms for a coordinator that does not
 * answer. Blocking; call it before there is a loop. *ret: the join file's content. */
titan_status enrolling_join(const char *path, const struct rpc_tls *files, uint32_t wait_ms, struct join_file *ret,
                            struct titan_error *err) TITAN_MUST_USE;
/* Reads node and addresses, which an earlier join has kept of its file. TITAN_ENOTFOUND: no join has been done. */
titan_status enrolling_joined(const struct rpc_tls *files, struct join_file *ret,
                              struct titan_error *err) TITAN_MUST_USE;
/* Returns the name of the certificate's node. TITAN_EPERM: the certificate is not a node's, has expired, is not valid
 * yet, or is not of its CA. */
titan_status enrolling_name(const struct rpc_tls *files, char out[PKI_NAME_MAX + 1],
                            struct titan_error *err) TITAN_MUST_USE;

/* Renews the certificate at two thirds of its life, with the same key. Open connections go on; new ones use the new
 * certificate. */
struct renewal;
/* client is borrowed. At the end close the client first: that ends a call in progress. Then call renewal_close(). */
titan_status renewal_open(uv_loop_t *loop, const struct rpc_tls *files, struct rpc_client *client, struct renewal **ret,
                          struct titan_error *err) TITAN_MUST_USE;
/* Stops renewing, then calls done on the loop. NULL is fine. */
void renewal_close(struct renewal *r, void (*done)(void *), void *data);

#endif
