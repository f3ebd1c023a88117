/* SPDX-License-Identifier: Apache-2.0 */
/* enrol.h - the coordinator's part in certificates. It invites nodes, signs their first and later certificates, renews
 * its own certificate, and knows the revoked certificates. Loop thread only.
 *
 * It signs with the CA's key that its unit got at the start, or with a key in STATE/pki. Without a key all but signing
 * works, and the holder of the key signs (titanctl pki). Every call looks up revocations in memory; the store keeps
 * them for the next start. */
#ifndef TITAN_DAEMON_COORDINATOR_SHELL_ENROL_H
#define TITAN_DAEMON_COORDINATOR_SHELL_ENROL_H

#include "base/log.h"
#include "daemon/auth/certs.h"
#include "daemon/auth/pki.h"
#include "proto/rpc/server.h"

struct coordinator;
struct enrol;

/* Counters since the start, for the API's Counters. */
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

/* Reads the revocations; the store must be open. */
titan_status enrol_open(struct coordinator *c, struct enrol **ret, struct titan_error *err) TITAN_MUST_USE;
/* Call it before the store closes. closed: called when the timer, one of open_handles, is closed. */
void enrol_close(struct enrol *e, void (*closed)(void *c));
void enrol_free(struct enrol *e);
const struct enrol_counters *enrol_counters(const struct enrol *e);
/* The coordinator serves TLS at this address; agents: for agents only. */
void enrol_serves(struct enrol *e, const char *address, bool agents);

/* TITAN_EPERM: the identity's certificate is revoked or has expired. */
titan_status enrol_admits(struct enrol *e, const struct rpc_identity *identity, int64_t now_ms,
                          struct titan_error *err) TITAN_MUST_USE;
/* TITAN_EPERM: a caller with a certificate claims to be another node. */
titan_status enrol_speaks_for(struct enrol *e, const struct rpc_call *call, const char *node,
                              struct titan_error *err) TITAN_MUST_USE;
/* Renews the coordinator's own certificate for the same names once two thirds of its life are over. The coordinator
 * must have the key of the certificate's CA. Checks now and then by a timer. files: may be NULL, or name missing
 * files. */
titan_status enrol_renew_own(struct enrol *e, const struct rpc_tls *files, struct titan_error *err) TITAN_MUST_USE;

/* --- for the methods of the API (daemon/api/certificates.c) ------------------------------------------------------- */

/* Revokes certificates of this name that begin at or before at_ms. Returns the earlier at_ms, 0 = none; -1 = out of
 * memory. */
int64_t enrol_deny(struct enrol *e, const char *uri, int64_t at_ms) TITAN_MUST_USE;
/* Restores the earlier revocation, because the new revocation was not stored. */
void enrol_deny_undo(struct enrol *e, const char *uri, int64_t before_ms);
/* TITAN_ENOTFOUND and other errors: this coordinator has no usable CA key. */
titan_status enrol_can_sign(const struct enrol *e, struct authority *ret, struct titan_error *err) TITAN_MUST_USE;
/* A node's checked request for a certificate. given_ms: when the right to it began: creation of the join token, or
 * begin of the present certificate for a renewal. */
struct enrol_request {
    const char *node;
    int64_t given_ms;
    const void *data;
    size_t len;
};
/* out: the node's certificate; ca: its CA. TITAN_EPERM: the name was revoked since; only a new join token helps. */
titan_status enrol_sign(struct enrol *e, const struct enrol_request *r, struct buf *out, struct buf *ca,
                        int64_t *ret_until_ms, struct titan_error *err) TITAN_MUST_USE;
#define ENROL_ADDRESS 300
void enrol_address(const struct enrol *e, char out[ENROL_ADDRESS]); /* HOST:PORT for nodes; "" = none */
const char *enrol_ca_file(const struct enrol *e);                   /* "" = the coordinator serves no TLS */
uint32_t enrol_agents_port(const struct enrol *e);
const struct log *enrol_log(const struct enrol *e);
/* Counts requests with a wrong join token per peer (rpc_call_peer). Only some requests per minute and address are
 * examined. */
bool enrol_may_try(const struct enrol *e, const char *peer, int64_t mono_ms);
void enrol_join_refused(struct enrol *e, const char *peer, int64_t mono_ms);

#endif
