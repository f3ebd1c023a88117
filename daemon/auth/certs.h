/* SPDX-License-Identifier: Apache-2.0 */
/* certs.h - an identity as files: a folder with ca.pem, cert.pem and key.pem; and the folder of a CA. */
#ifndef TITAN_DAEMON_AUTH_CERTS_H
#define TITAN_DAEMON_AUTH_CERTS_H

#include <sys/types.h>

#include "daemon/auth/pki.h"
#include "proto/rpc/server.h" /* struct rpc_tls */

/* DIR/ca.pem, DIR/cert.pem, DIR/key.pem. TITAN_EINVAL: a path is too long. */
titan_status certs_in(const char *dir, struct rpc_tls *ret, struct titan_error *err) TITAN_MUST_USE;
/* Does the certificate file exist? */
bool certs_there(const struct rpc_tls *files);

struct certs {
    struct buf ca, certificate, key;
};
/* TITAN_EPERM: others than the owner may read the key. */
titan_status certs_load(const struct rpc_tls *files, struct certs *ret, struct titan_error *err) TITAN_MUST_USE;
void certs_free(struct certs *certs);
/* Reads a file of at most max bytes. TITAN_EPERM: others than the owner have rights to it. */
titan_status certs_read_secret(const char *path, size_t max, struct buf *out, struct titan_error *err) TITAN_MUST_USE;
/* Loads and checks everything: certificate and key match, the chain leads to the CA, the certificate is valid now.
 * Errors name the file. */
titan_status certs_check(const struct rpc_tls *files, int64_t now_ms, struct pki_certificate *ret,
                         struct titan_error *err) TITAN_MUST_USE;

/* Replaces a file; mode 0600 if secret, else 0644. The file gets its folder's owner if the process may set it. */
titan_status certs_write(const char *path, const struct buf *text, bool secret, struct titan_error *err) TITAN_MUST_USE;
/* mkdir -p. The last folder gets mode 0700 and its parent's owner. */
titan_status certs_dir(const char *path, struct titan_error *err) TITAN_MUST_USE;

/* A CA: DIR/ca.pem and, unless kept elsewhere, DIR/ca.key. */
struct authority {
    struct buf certificate, key;
};
/* TITAN_ENOTFOUND: there is no CA here, or its key is kept elsewhere. */
titan_status authority_load(const char *dir, struct authority *ret, struct titan_error *err) TITAN_MUST_USE;
/* Loads the CA that systemd hands to this service alone, from files of root: ca.pem and ca.key of
 * CREDENTIALS_DIRECTORY. TITAN_ENOTFOUND: none. */
titan_status authority_load_credentials(struct authority *ret, struct titan_error *err) TITAN_MUST_USE;
void authority_free(struct authority *a);

#define CERTS_NODE_LIFE_MS INT64_C(604800000)         /* 7 days */
#define CERTS_COORDINATOR_LIFE_MS INT64_C(2592000000) /* 30 days */
#define CERTS_USER_LIFE_MS INT64_C(7776000000)        /* 90 days */

#endif
