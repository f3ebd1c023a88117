/* SPDX-License-Identifier: Apache-2.0 */
/* enrol.h - the coordinator's part in certificates: it invites nodes, signs their first and next ones, renews its own,
 * and knows which do not count any more. Loop thread only.
 *
 * It signs with the CA's key that its unit was given at its start, or while STATE/pki has one; without it everything
 * else works, and the holder of the key signs (titanctl pki). What is revoked is looked up at every call, in memory;
 * the store has it for the next start. */
#ifndef TITAN_DAEMON_COORDINATOR_SHELL_ENROL_H
#define TITAN_DAEMON_COORDINATOR_SHELL_ENROL_H

#include "base/log.h"
#include "daemon/auth/certs.h"
#include "daemon/auth/pki.h"
#include "proto/rpc/server.h"

struct coordinator;
struct enrol;

/* What was counted since the start, for the API's Counters. */
#define ENROL_COUNTERS(X)                                                                                              \
    X(certificates_signed, "certificates signed for nodes, the first and the next ones")                               \
    X(join_refused, "requests of nodes refused: without a good join token")                                            \
    X(cert_name, "registrations refused: of another node than their certificate's")                                    \
    X(cert_revoked, "calls refused: with a certificate that is revoked")
struct enrol_counters {
#define ENROL_COUNTER(name, text) uint64_t name;
    ENROL_COUNTERS(ENROL_COUNTER)
#undef ENROL_COUNTER
};

/* Reads what is revoked; the store is open. */
titan_status enrol_open(struct coordinator *c, struct enrol **ret, struct titan_error *err) TITAN_MUST_USE;
/* Before the store is closed. closed: its timer, one of open_handles, is. */
void enrol_close(struct enrol *e, void (*closed)(struct coordinator *c));
void enrol_free(struct enrol *e);
const struct enrol_counters *enrol_counters(const struct enrol *e);
/* The coordinator is reached over TLS at this port; agents: one for agents only. */
void enrol_serves(struct enrol *e, const char *address, bool agents);

/* TITAN_EPERM when the identity's certificate is revoked or has expired. */
titan_status enrol_admits(struct enrol *e, const struct rpc_identity *identity, int64_t now_ms,
                          struct titan_error *err) TITAN_MUST_USE;
/* TITAN_EPERM when a caller with a certificate says it is another node. */
titan_status enrol_speaks_for(struct enrol *e, const struct rpc_call *call, const char *node,
                              struct titan_error *err) TITAN_MUST_USE;
/* The coordinator's own certificate, when it is of that CA and two thirds of its life are over: the next one, for
 * the same names. files: may be NULL, or name files that are not there. Now, and from then on by a timer. */
titan_status enrol_renew_own(struct enrol *e, const struct rpc_tls *files, struct titan_error *err) TITAN_MUST_USE;

/* --- for the methods of the API (daemon/api/certificates.c) ------------------------------------------------------- */

/* Certificates of this name that begin by at_ms count no more. Returns at_ms of before, 0 = none; -1: out of memory. */
int64_t enrol_deny(struct enrol *e, const char *uri, int64_t at_ms) TITAN_MUST_USE;
/* That was not stored: as it was before. */
void enrol_deny_undo(struct enrol *e, const char *uri, int64_t before_ms);
/* TITAN_ENOENT and others when this coordinator has no CA's key. */
titan_status enrol_can_sign(const struct enrol *e, struct authority *ret, struct titan_error *err) TITAN_MUST_USE;
/* out: the node's certificate for a request that was checked; ca: what proves it. The right to it dates from given_ms:
 * of a join token when it was made, of a renewal when the present certificate begins. TITAN_EPERM where the name was
 * revoked since: no certificate gets behind a revocation but by a new join token. ret_until_ms may be NULL. */
titan_status enrol_sign(struct enrol *e, const char *node, int64_t given_ms, const void *request, size_t len,
                        struct buf *out, struct buf *ca, int64_t *ret_until_ms, struct titan_error *err) TITAN_MUST_USE;
#define ENROL_ADDRESS 300
void enrol_address(const struct enrol *e, char out[ENROL_ADDRESS]); /* HOST:PORT for nodes; "" = none */
const char *enrol_ca_file(const struct enrol *e);                   /* "" = the coordinator serves no TLS */
uint32_t enrol_agents_port(const struct enrol *e);
const struct log *enrol_log(const struct enrol *e);
/* Requests with a wrong join token from this peer (rpc_call_peer) are counted: of one address some a minute are looked
 * at, no more. */
bool enrol_may_try(const struct enrol *e, const char *peer, int64_t mono_ms);
void enrol_join_refused(struct enrol *e, const char *peer, int64_t mono_ms);

#endif
