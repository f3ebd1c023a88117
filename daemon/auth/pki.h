/* SPDX-License-Identifier: Apache-2.0 */
/* pki.h - keys, certificate requests and certificates of a cluster: P-256, PEM, names as SPIFFE URIs.
 *
 * One CA signs for coordinators (spiffe://titan/coordinator/NAME, with the DNS names and addresses they are reached
 * at), nodes (spiffe://titan/node/NAME) and users (spiffe://titan/user/NAME). Of a request only its public key counts:
 * names, addresses and uses are set by the issuer. Only a coordinator's certificate may serve.
 *
 * Pure but for random bytes: the time is handed in, no file is touched, no password is ever asked for. */
#ifndef TITAN_DAEMON_AUTH_PKI_H
#define TITAN_DAEMON_AUTH_PKI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

#define PKI_URI_MAX 192         /* with its terminating NUL */
#define PKI_NAME_MAX 160        /* of a node, user or coordinator */
#define PKI_HOSTS_MAX 32        /* DNS names and addresses of a coordinator */
#define PKI_PEM_MAX (64 * 1024) /* a file of certificates, a key */
#define PKI_REQUEST_MAX (8 * 1024)
#define PKI_KEY_HASH 32
#define PKI_SKEW_MS (5 * 60 * 1000) /* clocks may differ by so much */

enum pki_kind { PKI_NONE, PKI_COORDINATOR, PKI_NODE, PKI_USER };

/* What a certificate says. */
struct pki_certificate {
    enum pki_kind kind;     /* PKI_NONE: it has no name of ours */
    char uri[PKI_URI_MAX];  /* "spiffe://titan/node/n1" */
    char name[PKI_URI_MAX]; /* "n1" */
    bool ca;
    int64_t from_ms, until_ms;
    char serial[48]; /* hexadecimal */
    int n_hosts;
    char hosts[PKI_HOSTS_MAX][256];
};

/* What a certificate is to say. */
struct pki_spec {
    enum pki_kind kind;
    const char *name;
    const char (*hosts)[256]; /* of a coordinator */
    int n_hosts;
    int64_t from_ms, until_ms;
};

/* Letters, digits, '.', '_', '-'; not "." or ".."; at most PKI_NAME_MAX. */
bool pki_name_ok(const char *name);
/* "spiffe://titan/node/n1" -> PKI_NODE, "n1" (borrowed from uri). PKI_NONE for any other text. */
enum pki_kind pki_uri_parse(const char *uri, const char **ret_name);
const char *pki_kind_name(enum pki_kind kind); /* "node" */

/* A new private key. */
titan_status pki_key_make(struct buf *out, struct titan_error *err) TITAN_MUST_USE;
/* A CA's own certificate. cluster: words for people, in its subject. */
titan_status pki_ca_make(const struct buf *key, const char *cluster, int64_t from_ms, int64_t until_ms, struct buf *out,
                         struct titan_error *err) TITAN_MUST_USE;
/* A request for a certificate of this key; the issuer decides on the uri. */
titan_status pki_request_make(const struct buf *key, const char *uri, struct buf *out,
                              struct titan_error *err) TITAN_MUST_USE;
/* Is it one request, signed by its own P-256 key? hash: SHA-256 of that public key. From outside: any bytes. */
titan_status pki_request_check(const void *request, size_t len, uint8_t hash[PKI_KEY_HASH],
                               struct titan_error *err) TITAN_MUST_USE;
/* Sign. The certificate ends no later than the CA's. request: checked as by pki_request_check. */
titan_status pki_issue(const struct buf *ca, const struct buf *ca_key, const void *request, size_t len,
                       const struct pki_spec *spec, struct buf *out, struct titan_error *err) TITAN_MUST_USE;

/* The first certificate of a PEM text. TITAN_EINVAL for what is none. From outside: any bytes. */
titan_status pki_read(const char *pem, size_t len, struct pki_certificate *ret, struct titan_error *err) TITAN_MUST_USE;
/* SHA-256 of the public key of a private key, as pki_request_check has it. */
titan_status pki_key_hash(const struct buf *key, uint8_t hash[PKI_KEY_HASH], struct titan_error *err) TITAN_MUST_USE;
/* Does the certificate fit the key, lead to this CA, and is it valid now? TITAN_EPERM says which it is not: of another
 * key, of another CA, expired, not yet valid (a clock is wrong). key NULL: not looked at. */
titan_status pki_check(const struct buf *ca, const struct buf *certificate, const struct buf *key, int64_t now_ms,
                       struct titan_error *err) TITAN_MUST_USE;
/* When one that is made now begins: before now by what clocks may differ, but not for the most of a short life. */
int64_t pki_begin_ms(int64_t now_ms, int64_t life_ms);
/* When it is to be renewed: at two thirds of its life. */
int64_t pki_renew_at_ms(const struct pki_certificate *certificate);

#endif
