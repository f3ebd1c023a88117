/* SPDX-License-Identifier: Apache-2.0 */
/* enrolling.h - the node's part in certificates: the first one, by a join file, before the agent starts; the next ones
 * over its session's connection. The key is made here and never leaves. */
#ifndef TITAN_DAEMON_AUTH_ENROLLING_H
#define TITAN_DAEMON_AUTH_ENROLLING_H

#include <uv.h>

#include "daemon/auth/join.h"
#include "proto/rpc/client.h"

/* Get a certificate into files with what the join file says, unless that was done already: another file (its node was
 * revoked, or away for too long) gets another, with a new key. Waits for a coordinator that does not answer, for
 * wait_ms. Blocking; before there is a loop. *ret is what the file says. */
titan_status enrolling_join(const char *path, const struct rpc_tls *files, uint32_t wait_ms, struct join_file *ret,
                            struct titan_error *err) TITAN_MUST_USE;
/* What a join has left of its file for the next starts: node and addresses. TITAN_ENOTFOUND: no join has. */
titan_status enrolling_joined(const struct rpc_tls *files, struct join_file *ret,
                              struct titan_error *err) TITAN_MUST_USE;
/* The name of the node that the certificate is for. TITAN_EPERM when it is none of a node, has expired, is not valid
 * yet, or not of its CA. */
titan_status enrolling_name(const struct rpc_tls *files, char out[PKI_NAME_MAX + 1],
                            struct titan_error *err) TITAN_MUST_USE;

/* Keeps files fresh: at two thirds of the certificate's life the next one is asked for, with the same key. Connections
 * that stand go on; the next ones use it. */
struct renewal;
/* client is borrowed. Close it first, which ends a call that is under way, and then call renewal_close(). */
titan_status renewal_open(uv_loop_t *loop, const struct rpc_tls *files, struct rpc_client *client, struct renewal **ret,
                          struct titan_error *err) TITAN_MUST_USE;
/* Stops it; done on the loop. NULL is fine. */
void renewal_close(struct renewal *r, void (*done)(void *), void *data);

#endif
