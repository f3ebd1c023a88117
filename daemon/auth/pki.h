/* SPDX-License-Identifier: Apache-2.0 */
/* pki.h - keys, certificate requests and certificates of a cluster: P-256, PEM, names as SPIFFE URIs.
 *
 * One CA signs for coordinators (spiffe://titan/coordinator/NAME, with their DNS names and addresses), nodes
 * (spiffe://titan/node/NAME) and users (spiffe://titan/user/NAME). Only the public key of a request counts. The issuer
 * sets names, addresses and uses. Only a coordinator's certificate may serve.
 *
 * The functions are pure, but for random bytes. Callers pass the time; no file is touched; no password is ever asked
 * for. */
#ifndef TITAN_DAEMON_AUTH_PKI_H
#define TITAN_DAEMON_AUTH_PKI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

#define PKI_URI_MAX 192         /* with its terminating NUL */
#define PKI_NAME_MAX 160        /* name of a node, user or coordinator */
#define PKI_HOSTS_MAX 32        /* DNS names and addresses of a coordinator */
#define PKI_PEM_MAX (64 * 1024) /* largest file of certificates, or key */
#define PKI_REQUEST_MAX (8 * 1024)
#define PKI_KEY_HASH 32
#define PKI_SKEW_MS (5 * 60 * 1000) /* tolerated clock difference */

enum pki_kind { PKI_NONE, PKI_COORDINATOR, PKI_NODE, PKI_USER };

/* The content of a certificate. */
struct pki_certificate {
    enum pki_kind kind;     /* PKI_NONE = not a name of ours */
    char uri[PKI_URI_MAX];  /* "spiffe://titan/node/n1" */
    char name[PKI_URI_MAX]; /* "n1" */
    bool ca;
    int64_t from_ms, until_ms;
    char serial[48]; /* hexadecimal */
    int n_hosts;
    char hosts[PKI_HOSTS_MAX][256];
};

/* The content of a certificate to be issued. */
struct pki_spec {
    enum pki_kind kind;
    const char *name;
    const char (*hosts)[256]; /* only for a coordinator */
    int n_hosts;
    int64_t from_ms, until_ms;
};

/* Letters, digits, '.', '_', '-'; not "." or ".."; at most PKI_NAME_MAX. */
bool pki_name_ok(const char *name);
/* "spiffe://titan/node/n1" -> PKI_NODE, "n1" (borrowed from uri). PKI_NONE for any other text. */
enum pki_kind pki_uri_parse(const char *uri, const char **ret_name);
const char *pki_kind_name(enum pki_kind kind); /* "node" */

/* Makes a private key. */
titan_status pki_key_make(struct buf *out, struct titan_error *err) TITAN_MUST_USE;
/* Makes a CA's own certificate. cluster: display name in its subject. */
titan_status pki_ca_make(const struct buf *key, const char *cluster, int64_t from_ms, int64_t until_ms, struct buf *out,
                         struct titan_error *err) TITAN_MUST_USE;
/* Makes a certificate request for this key; the issuer decides on the uri. */
titan_status pki_request_make(const struct buf *key, const char *uri, struct buf *out,
                              struct titan_error *err) TITAN_MUST_USE;
/* Are the bytes exactly one request, signed by its own P-256 key? hash: SHA-256 of this public key. The bytes are
 * untrusted. */
titan_status pki_request_check(const void *request, size_t len, uint8_t hash[PKI_KEY_HASH],
                               struct titan_error *err) TITAN_MUST_USE;
/* A CA. */
struct pki_issuer {
    const struct buf *certificate, *key;
};
/* Signs a certificate, which ends no later than the CA's. request: checked as by pki_request_check. */
titan_status pki_issue(const struct pki_issuer *issuer, const void *request, size_t len, const struct pki_spec *spec,
                       struct buf *out, struct titan_error *err) TITAN_MUST_USE;

/* Reads the first certificate of a PEM text. TITAN_EINVAL: there is none. The text is untrusted. */
titan_status pki_read(const char *pem, size_t len, struct pki_certificate *ret, struct titan_error *err) TITAN_MUST_USE;
/* SHA-256 of the private key's public key, as in pki_request_check. */
titan_status pki_key_hash(const struct buf *key, uint8_t hash[PKI_KEY_HASH], struct titan_error *err) TITAN_MUST_USE;
/* Does the certificate match the key, lead to this CA, and is it valid now? TITAN_EPERM names the failure: another key,
 * another CA, expired, not yet valid (a clock is wrong). key NULL: not checked. */
titan_status pki_check(const struct buf *ca, const struct buf *certificate, const struct buf *key, int64_t now_ms,
                       struct titan_error *err) TITAN_MUST_USE;
/* Begin of a certificate made now. It is earlier than now by the tolerated clock difference, at most by a quarter of
 * its life. */
int64_t pki_begin_ms(int64_t now_ms, int64_t life_ms);
/* Returns when to renew the certificate: at two thirds of its life. */
int64_t pki_renew_at_ms(const struct pki_certificate *certificate);

#endif
