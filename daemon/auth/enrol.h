/* SPDX-License-Identifier: Apache-2.0 */
/* enrol.h - the coordinator's part in certificates: it invites nodes, signs their first and next ones, renews its own,
 * and knows which do not count any more. Loop thread only.
 *
 * It signs while STATE/pki has the CA's key; without it everything else works, and the holder of the key signs
 * (titanctl pki). What is revoked is looked up at every call, in memory; the store has it for the next start. */
#ifndef TITAN_DAEMON_AUTH_ENROL_H
#define TITAN_DAEMON_AUTH_ENROL_H

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
void enrol_close(struct enrol *e); /* before the store is closed; its timer is one of open_handles */
void enrol_free(struct enrol *e);
const struct enrol_counters *enrol_counters(const struct enrol *e);
/* The coordinator is reached over TLS at this port; agents: one for agents only. */
void enrol_serves(struct enrol *e, const char *address, bool agents);

/* TITAN_EPERM when the caller's certificate is revoked. */
titan_status enrol_admits(struct enrol *e, const struct rpc_call *call, struct titan_error *err) TITAN_MUST_USE;
/* TITAN_EPERM when a caller with a certificate says it is another node. */
titan_status enrol_speaks_for(struct enrol *e, const struct rpc_call *call, const char *node,
                              struct titan_error *err) TITAN_MUST_USE;
/* The coordinator's own certificate, when it is one of STATE/pki and two thirds of its life are over: the next one, for
 * the same names. files: may be NULL, or name files that are not there. Now, and from then on by a timer. */
titan_status enrol_renew_own(struct enrol *e, const struct rpc_tls *files, struct titan_error *err) TITAN_MUST_USE;

void api_join_node(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_revoke_certificate(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_enroll(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_renew(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void enrol_call_closed(struct rpc_call *call, bool cancelled, void *data);

#endif
