/* SPDX-License-Identifier: Apache-2.0 */
/* pki.c - see pki.h. */
#include "daemon/auth/pki.h"

#include <arpa/inet.h>
#include <limits.h>
#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"

#define URI_PREFIX "spiffe://titan/"
#define SERIAL_BYTES 16
#define CHAIN_MAX 16
#define NAME_CHARACTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

#define RELEASES(name, type, release)                                                                                  \
    static void name(type **p)                                                                                         \
    {                                                                                                                  \
        (void)release(*p);                                                                                             \
    }
RELEASES(bio_free, BIO, BIO_free)
RELEASES(key_free, EVP_PKEY, EVP_PKEY_free)
RELEASES(x509_free, X509, X509_free)
RELEASES(request_free, X509_REQ, X509_REQ_free)
RELEASES(names_free, GENERAL_NAMES, GENERAL_NAMES_free)
RELEASES(bn_free, BIGNUM, BN_free)
#define _cleanup_bio_ _cleanup_(bio_free)
#define _cleanup_key_ _cleanup_(key_free)
#define _cleanup_x509_ _cleanup_(x509_free)
#define _cleanup_request_ _cleanup_(request_free)
#define _cleanup_names_ _cleanup_(names_free)

/* Fails with OpenSSL's reason behind ours; OpenSSL's queue is empty afterwards. */
static titan_status crypto_fail(struct titan_error *err, titan_status status, const char *what)
{
    titan_assert(status != TITAN_OK);
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    titan_fail(err, status, "%s%s%s", what, reason ? ": " : "", reason ? reason : "");
    ERR_clear_error();
    return status;
}

/* --- names -------------------------------------------------------------------------------------------------------- */

static const char *const kinds[] = {"", "coordinator", "node", "user"};

const char *pki_kind_name(enum pki_kind kind)
{
    titan_assert((size_t)kind < ARRAY_SIZE(kinds));
    return kinds[kind];
}

bool pki_name_ok(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n <= PKI_NAME_MAX && strspn(name, NAME_CHARACTERS) == n && strcmp(name, ".") != 0 &&
           strcmp(name, "..") != 0;
}

enum pki_kind pki_uri_parse(const char *uri, const char **ret_name)
{
    if (strncmp(uri, URI_PREFIX, strlen(URI_PREFIX)) != 0)
        return PKI_NONE;
    uri += strlen(URI_PREFIX);
    for (size_t i = PKI_COORDINATOR; i < ARRAY_SIZE(kinds); i++) {
        size_t n = strlen(kinds[i]);
        if (strncmp(uri, kinds[i], n) != 0 || uri[n] != '/' || !pki_name_ok(uri + n + 1))
            continue;
        if (ret_name)
            *ret_name = uri + n + 1;
        return (enum pki_kind)i;
    }
    return PKI_NONE;
}

/* --- in and out of PEM -------------------------------------------------------------------------------------------- */

/* A password callback that gives no password, because there is no terminal to ask at. */
static int no_password(char *out, int cap, int writing, void *data)
{
    (void)out;
    (void)cap;
    (void)writing;
    (void)data;
    return -1;
}

static BIO *reading(const void *data, size_t len)
{
    return len <= INT_MAX ? BIO_new_mem_buf(data ? data : "", (int)len) : NULL;
}

/* Takes the content of a memory BIO. */
static titan_status take(BIO *from, struct buf *out, struct titan_error *err)
{
    char *data = NULL;
    long n = BIO_get_mem_data(from, &data);
    if (n <= 0 || buf_append(out, data, (size_t)n) != TITAN_OK)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a certificate");
    return TITAN_OK;
}

static titan_status read_key(const struct buf *pem, EVP_PKEY **ret, struct titan_error *err)
{
    if (pem->len > PKI_PEM_MAX)
        return titan_fail(err, TITAN_EINVAL, "a private key of %zu bytes", pem->len);
    _cleanup_bio_ BIO *in = reading(pem->data, pem->len);
    *ret = in ? PEM_read_bio_PrivateKey(in, NULL, no_password, NULL) : NULL;
    return *ret ? TITAN_OK : crypto_fail(err, TITAN_EINVAL, "not a private key without a password, in PEM");
}

static titan_status read_certificate(const void *pem, size_t len, X509 **ret, struct titan_error *err)
{
    if (len > PKI_PEM_MAX)
        return titan_fail(err, TITAN_EINVAL, "a certificate of %zu bytes", len);
    _cleanup_bio_ BIO *in = reading(pem, len);
    *ret = in ? PEM_read_bio_X509(in, NULL, no_password, NULL) : NULL;
    return *ret ? TITAN_OK : crypto_fail(err, TITAN_EINVAL, "not a certificate in PEM");
}

static titan_status write_certificate(X509 *x, struct buf *out, struct titan_error *err)
{
    _cleanup_bio_ BIO *to = BIO_new(BIO_s_mem());
    if (!to || PEM_write_bio_X509(to, x) != 1)
        return crypto_fail(err, TITAN_ENOMEM, "a certificate could not be written");
    return take(to, out, err);
}

/* --- keys and requests -------------------------------------------------------------------------------------------- */

titan_status pki_key_make(struct buf *out, struct titan_error *err)
{
    _cleanup_key_ EVP_PKEY *key = EVP_EC_gen("P-256");
    if (!key)
        return crypto_fail(err, TITAN_EIO, "a key could not be made");
    _cleanup_bio_ BIO *to = BIO_new(BIO_s_secmem());
    if (!to || PEM_write_bio_PKCS8PrivateKey(to, key, NULL, NULL, 0, NULL, NULL) != 1)
        return crypto_fail(err, TITAN_ENOMEM, "a key could not be written");
    return take(to, out, err);
}

static titan_status public_hash(EVP_PKEY *key, uint8_t hash[PKI_KEY_HASH], struct titan_error *err)
{
    unsigned char *der = NULL;
    int n = i2d_PUBKEY(key, &der);
    if (n <= 0)
        return crypto_fail(err, TITAN_EINVAL, "a public key could not be written");
    (void)SHA256(der, (size_t)n, hash);
    OPENSSL_free(der);
    return TITAN_OK;
}

titan_status pki_key_hash(const struct buf *pem, uint8_t hash[PKI_KEY_HASH], struct titan_error *err)
{
    _cleanup_key_ EVP_PKEY *key = NULL;
    TRY(read_key(pem, &key, err));
    return public_hash(key, hash, err);
}

/* Sets a name. A CA's name differs from every name it signs, because a certificate with subject = issuer would count as
 * self-signed. */
static bool set_name(X509_NAME *name, const char *kind, const char *common)
{
    titan_assert(kind[0]);
    char text[65]; /* limit of a CN */
    (void)snprintf(text, sizeof(text), "%s", common);
    return X509_NAME_add_entry_by_txt(name, "O", MBSTRING_UTF8, (const unsigned char *)kind, -1, -1, 0) == 1 &&
           X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, (const unsigned char *)text, -1, -1, 0) == 1;
}

titan_status pki_request_make(const struct buf *pem, const char *uri, struct buf *out, struct titan_error *err)
{
    _cleanup_key_ EVP_PKEY *key = NULL;
    const char *name = NULL;
    if (pki_uri_parse(uri, &name) == PKI_NONE)
        return titan_fail(err, TITAN_EINVAL, "'%.200s' is not the name of a certificate", uri);
    TRY(read_key(pem, &key, err));
    _cleanup_request_ X509_REQ *r = X509_REQ_new();
    _cleanup_bio_ BIO *to = BIO_new(BIO_s_mem());
    if (!r || !to || X509_REQ_set_version(r, X509_REQ_VERSION_1) != 1 ||
        !set_name(X509_REQ_get_subject_name(r), "titan", name) || X509_REQ_set_pubkey(r, key) != 1 ||
        X509_REQ_sign(r, key, EVP_sha256()) <= 0 || PEM_write_bio_X509_REQ(to, r) != 1)
        return crypto_fail(err, TITAN_EIO, "a request for a certificate could not be made");
    return take(to, out, err);
}

static titan_status read_request(const void *request, size_t len, X509_REQ **ret, struct titan_error *err)
{
    if (len == 0 || len > PKI_REQUEST_MAX)
        return titan_fail(err, TITAN_EINVAL, "a request for a certificate of %zu bytes; at most %d are read", len,
                          PKI_REQUEST_MAX);
    _cleanup_bio_ BIO *in = reading(request, len);
    _cleanup_request_ X509_REQ *r = in ? PEM_read_bio_X509_REQ(in, NULL, no_password, NULL) : NULL;
    if (!r)
        return crypto_fail(err, TITAN_EINVAL, "not a request for a certificate in PEM");
    EVP_PKEY *key = X509_REQ_get0_pubkey(r);
    char group[32];
    size_t n = 0;
    if (!key || !EVP_PKEY_is_a(key, "EC") || EVP_PKEY_get_group_name(key, group, sizeof(group), &n) != 1 ||
        strcmp(group, "prime256v1") != 0)
        return crypto_fail(err, TITAN_EINVAL, "the request's key is not on the curve P-256");
    if (X509_REQ_verify(r, key) != 1)
        return crypto_fail(err, TITAN_EPERM, "the request is not signed with its own key");
    *ret = TAKE(r);
    return TITAN_OK;
}

titan_status pki_request_check(const void *request, size_t len, uint8_t hash[PKI_KEY_HASH], struct titan_error *err)
{
    _cleanup_request_ X509_REQ *r = NULL;
    TRY(read_request(request, len, &r, err));
    return public_hash(X509_REQ_get0_pubkey(r), hash, err);
}

/* --- signing ------------------------------------------------------------------------------------------------------ */

/* Sets a random serial number, which needs no state. It is positive, so every encoding has the same length. */
static bool set_serial(X509 *x)
{
    unsigned char bytes[SERIAL_BYTES];
    if (RAND_bytes(bytes, sizeof(bytes)) != 1)
        return false;
    bytes[0] = (unsigned char)((bytes[0] & 0x7f) | 0x40);
    _cleanup_(bn_free) BIGNUM *n = BN_bin2bn(bytes, sizeof(bytes), NULL);
    return n && BN_to_ASN1_INTEGER(n, X509_get_serialNumber(x));
}

static bool set_times(X509 *x, int64_t from_ms, int64_t until_ms)
{
    return from_ms < until_ms && ASN1_TIME_adj(X509_getm_notBefore(x), (time_t)(from_ms / 1000), 0, 0) &&
           ASN1_TIME_adj(X509_getm_notAfter(x), (time_t)(until_ms / 1000), 0, 0);
}

static bool add_extension(X509 *x, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509V3_set_ctx(&ctx, issuer, x, NULL, NULL, 0);
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    bool ok = e && X509_add_ext(x, e, -1) == 1;
    X509_EXTENSION_free(e);
    return ok;
}

titan_status pki_ca_make(const struct buf *pem, const char *cluster, int64_t from_ms, int64_t until_ms, struct buf *out,
                         struct titan_error *err)
{
    _cleanup_key_ EVP_PKEY *key = NULL;
    TRY(read_key(pem, &key, err));
    _cleanup_x509_ X509 *x = X509_new();
    if (!x || X509_set_version(x, X509_VERSION_3) != 1 || !set_serial(x) || !set_times(x, from_ms, until_ms) ||
        !set_name(X509_get_subject_name(x), "titan CA", cluster) ||
        X509_set_issuer_name(x, X509_get_subject_name(x)) != 1 || X509_set_pubkey(x, key) != 1 ||
        !add_extension(x, x, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
        !add_extension(x, x, NID_key_usage, "critical,keyCertSign,cRLSign") ||
        !add_extension(x, x, NID_subject_key_identifier, "hash") || X509_sign(x, key, EVP_sha256()) <= 0)
        return crypto_fail(err, TITAN_EIO, "the CA's certificate could not be made");
    return write_certificate(x, out, err);
}

static GENERAL_NAME *text_name(int type, const char *text)
{
    GENERAL_NAME *name = GENERAL_NAME_new();
    ASN1_IA5STRING *value = ASN1_IA5STRING_new();
    if (!name || !value || ASN1_STRING_set(value, text, -1) != 1) {
        GENERAL_NAME_free(name);
        ASN1_IA5STRING_free(value);
        return NULL;
    }
    GENERAL_NAME_set0_value(name, type, value);
    return name;
}

/* Makes a GENERAL_NAME from a DNS name or an address. */
static GENERAL_NAME *host_name(const char *host)
{
    unsigned char address[16];
    bool v4 = inet_pton(AF_INET, host, address) == 1;
    if (!v4 && inet_pton(AF_INET6, host, address) != 1)
        return strspn(host, NAME_CHARACTERS) == strlen(host) ? text_name(GEN_DNS, host) : NULL;
    GENERAL_NAME *name = GENERAL_NAME_new();
    ASN1_OCTET_STRING *value = ASN1_OCTET_STRING_new();
    if (!name || !value || ASN1_OCTET_STRING_set(value, address, v4 ? 4 : 16) != 1) {
        GENERAL_NAME_free(name);
        ASN1_OCTET_STRING_free(value);
        return NULL;
    }
    GENERAL_NAME_set0_value(name, GEN_IPADD, value);
    return name;
}

static bool push(GENERAL_NAMES *names, GENERAL_NAME *name)
{
    if (name && sk_GENERAL_NAME_push(names, name) > 0)
        return true;
    GENERAL_NAME_free(name);
    return false;
}

titan_status pki_issue(const struct pki_issuer *issuer, const void *request, size_t len, const struct pki_spec *spec,
                       struct buf *out, struct titan_error *err)
{
    _cleanup_x509_ X509 *ca = NULL;
    _cleanup_key_ EVP_PKEY *ca_key = NULL;
    _cleanup_request_ X509_REQ *r = NULL;
    bool serves = spec->kind == PKI_COORDINATOR;
    TRY(read_certificate(issuer->certificate->data, issuer->certificate->len, &ca, err));
    TRY(read_key(issuer->key, &ca_key, err));
    TRY(read_request(request, len, &r, err));
    if (X509_check_private_key(ca, ca_key) != 1)
        return crypto_fail(err, TITAN_EINVAL, "the CA's key is not that of its certificate");
    if (spec->kind == PKI_NONE || !pki_name_ok(spec->name))
        return titan_fail(err, TITAN_EINVAL,
                          "'%.64s' is not a valid name of a certificate: letters, digits, '.', '_', '-', at most %d",
                          spec->name, PKI_NAME_MAX);
    if (spec->n_hosts > (spec->kind == PKI_COORDINATOR ? PKI_HOSTS_MAX : 0))
        return titan_fail(err, TITAN_EINVAL, "%d host names for a %s's certificate", spec->n_hosts, kinds[spec->kind]);
    time_t from = (time_t)(spec->from_ms / 1000);
    if (X509_check_ca(ca) == 0 || X509_cmp_time(X509_get0_notAfter(ca), &from) <= 0)
        return titan_fail(err, TITAN_EPERM, "the CA's certificate has expired or is not a CA's");

    _cleanup_x509_ X509 *x = X509_new();
    if (!x || X509_set_version(x, X509_VERSION_3) != 1 || !set_serial(x) ||
        !set_times(x, spec->from_ms, spec->until_ms) || X509_set_issuer_name(x, X509_get_subject_name(ca)) != 1 ||
        !set_name(X509_get_subject_name(x), "titan", spec->name) || X509_set_pubkey(x, X509_REQ_get0_pubkey(r)) != 1 ||
        !add_extension(x, ca, NID_basic_constraints, "critical,CA:FALSE") ||
        !add_extension(x, ca, NID_key_usage, "critical,digitalSignature") ||
        !add_extension(x, ca, NID_ext_key_usage, serves ? "serverAuth,clientAuth" : "clientAuth") ||
        !add_extension(x, ca, NID_authority_key_identifier, "keyid"))
        return crypto_fail(err, TITAN_EIO, "a certificate could not be made");
    if (ASN1_TIME_compare(X509_get0_notAfter(x), X509_get0_notAfter(ca)) > 0 &&
        X509_set1_notAfter(x, X509_get0_notAfter(ca)) != 1)
        return crypto_fail(err, TITAN_EIO, "a certificate could not be made");

    titan_assert(spec->n_hosts >= 0 && spec->n_hosts <= PKI_HOSTS_MAX);
    char uri[PKI_URI_MAX];
    _cleanup_names_ GENERAL_NAMES *names = sk_GENERAL_NAME_new_null();
    (void)snprintf(uri, sizeof(uri), URI_PREFIX "%s/%s", kinds[spec->kind], spec->name);
    if (!names || !push(names, text_name(GEN_URI, uri)))
        return titan_fail(err, TITAN_ENOMEM, "no memory for a certificate");
    for (int i = 0; i < spec->n_hosts; i++)
        if (!spec->hosts[i][0] || !push(names, host_name(spec->hosts[i])))
            return titan_fail(err, TITAN_EINVAL, "'%s' is neither a host's name nor an address", spec->hosts[i]);
    if (X509_add1_ext_i2d(x, NID_subject_alt_name, names, 0, X509V3_ADD_DEFAULT) != 1)
        return crypto_fail(err, TITAN_EIO, "a certificate could not be made");
    if (X509_sign(x, ca_key, EVP_sha256()) <= 0)
        return crypto_fail(err, TITAN_EIO, "a certificate could not be signed");
    return write_certificate(x, out, err);
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

static int64_t time_ms(const ASN1_TIME *t)
{
    struct tm tm = {0};
    return ASN1_TIME_to_tm(t, &tm) == 1 ? (int64_t)timegm(&tm) * 1000 : 0;
}

/* Copies a name without an inner NUL. */
static bool name_text(const ASN1_IA5STRING *value, char *out, size_t cap)
{
    int n = ASN1_STRING_length(value);
    const char *text = (const char *)ASN1_STRING_get0_data(value);
    if (n <= 0 || (size_t)n >= cap || memchr(text, 0, (size_t)n))
        return false;
    memcpy(out, text, (size_t)n);
    out[n] = '\0';
    return true;
}

titan_status pki_read(const char *pem, size_t len, struct pki_certificate *ret, struct titan_error *err)
{
    _cleanup_x509_ X509 *x = NULL;
    *ret = (struct pki_certificate){0};
    TRY(read_certificate(pem, len, &x, err));
    _cleanup_(bn_free) BIGNUM *serial = ASN1_INTEGER_to_BN(X509_get0_serialNumber(x), NULL);
    char *hex = serial ? BN_bn2hex(serial) : NULL;
    (void)snprintf(ret->serial, sizeof(ret->serial), "%s", hex ? hex : "");
    OPENSSL_free(hex);
    ret->from_ms = time_ms(X509_get0_notBefore(x));
    ret->until_ms = time_ms(X509_get0_notAfter(x));
    ret->ca = X509_check_ca(x) != 0;

    /* A certificate with two names of ours identifies no one. */
    _cleanup_names_ GENERAL_NAMES *names = X509_get_ext_d2i(x, NID_subject_alt_name, NULL, NULL);
    bool twice = false;
    for (int i = 0; names && i < sk_GENERAL_NAME_num(names); i++) {
        int type;
        const void *value = GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names, i), &type);
        char *host = ret->n_hosts < PKI_HOSTS_MAX ? ret->hosts[ret->n_hosts] : NULL;
        if (type == GEN_URI) {
            char uri[PKI_URI_MAX];
            twice |= ret->uri[0] != '\0';
            if (name_text(value, uri, sizeof(uri)))
                memcpy(ret->uri, uri, sizeof(uri));
        } else if (type == GEN_DNS && host) {
            ret->n_hosts += name_text(value, host, sizeof(ret->hosts[0]));
        } else if (type == GEN_IPADD && host) {
            int n = ASN1_STRING_length(value);
            ret->n_hosts += (n == 4 || n == 16) && inet_ntop(n == 4 ? AF_INET : AF_INET6, ASN1_STRING_get0_data(value),
                                                             host, sizeof(ret->hosts[0]));
        }
    }
    const char *name = "";
    ret->kind = twice ? PKI_NONE : pki_uri_parse(ret->uri, &name);
    if (ret->kind == PKI_NONE) {
        ret->uri[0] = '\0';
        name = "";
    }
    (void)snprintf(ret->name, sizeof(ret->name), "%s", name);
    ERR_clear_error();
    return TITAN_OK;
}

int64_t pki_begin_ms(int64_t now_ms, int64_t life_ms)
{
    titan_assert(life_ms > 0);
    return now_ms - MIN((int64_t)PKI_SKEW_MS, life_ms / 4);
}

int64_t pki_renew_at_ms(const struct pki_certificate *c)
{
    return c->from_ms + (c->until_ms - c->from_ms) / 3 * 2;
}

/* --- checking ----------------------------------------------------------------------------------------------------- */

/* Adds every certificate of a PEM text to store. If store is NULL, adds all but the first certificate to chain. */
static titan_status each_certificate(const struct buf *pem, X509_STORE *store, STACK_OF(X509) * chain,
                                     struct titan_error *err)
{
    titan_assert(!store != !chain);
    int n = 0;
    _cleanup_bio_ BIO *in = reading(pem->data, MIN(pem->len, PKI_PEM_MAX));
    for (X509 *x; in && n <= CHAIN_MAX && (x = PEM_read_bio_X509(in, NULL, no_password, NULL)); n++) {
        bool ok = store ? X509_STORE_add_cert(store, x) == 1 : n == 0 || sk_X509_push(chain, x) > 0;
        if (store || n == 0 || !ok)
            X509_free(x);
        if (!ok)
            return crypto_fail(err, TITAN_ENOMEM, "no memory for a chain of certificates");
    }
    ERR_clear_error(); /* OpenSSL reports the end of the text as an error */
    return n > 0 ? TITAN_OK : titan_fail(err, TITAN_EINVAL, "the CA's file has no certificate in PEM");
}

static titan_status verify_fail(X509_STORE_CTX *ctx, X509 *x, int64_t now_ms, struct titan_error *err)
{
    int reason = X509_STORE_CTX_get_error(ctx);
    char then[32], now[32];
    (void)clock_format(now_ms, now);
    switch (reason) {
    case X509_V_ERR_CERT_NOT_YET_VALID:
        titan_fail(err, TITAN_EPERM, "the certificate is not valid before %s, and it is %s by this machine's clock",
                   clock_format(time_ms(X509_get0_notBefore(x)), then), now);
        titan_error_hint(err, "set this machine's clock, or that of the machine which signed it");
        return TITAN_EPERM;
    case X509_V_ERR_CERT_HAS_EXPIRED:
        titan_fail(err, TITAN_EPERM, "the certificate expired at %s, and it is %s by this machine's clock",
                   clock_format(time_ms(X509_get0_notAfter(x)), then), now);
        titan_error_hint(err,
                         "a node that was away for longer than its certificate's life joins anew: titanctl node join");
        return TITAN_EPERM;
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
        return titan_fail(err, TITAN_EPERM, "the certificate is not of this CA");
    default:
        return titan_fail(err, TITAN_EPERM, "the certificate is not good: %s", X509_verify_cert_error_string(reason));
    }
}

titan_status pki_check(const struct buf *ca, const struct buf *certificate, const struct buf *key_pem, int64_t now_ms,
                       struct titan_error *err)
{
    _cleanup_x509_ X509 *x = NULL;
    _cleanup_key_ EVP_PKEY *key = NULL;
    TRY(read_certificate(certificate->data, certificate->len, &x, err));
    if (key_pem) {
        TRY(read_key(key_pem, &key, err));
        if (X509_check_private_key(x, key) != 1)
            return crypto_fail(err, TITAN_EPERM, "the certificate is not of this key");
    }
    X509_STORE *store = X509_STORE_new();
    STACK_OF(X509) *chain = sk_X509_new_null();
    X509_STORE_CTX *ctx = X509_STORE_CTX_new();
    titan_status status = store && chain ? each_certificate(ca, store, NULL, err) : TITAN_OK;
    if (status == TITAN_OK && chain)
        status = each_certificate(certificate, NULL, chain, err);
    if (status == TITAN_OK && (!store || !chain || !ctx || X509_STORE_CTX_init(ctx, store, x, chain) != 1)) {
        status = crypto_fail(err, TITAN_ENOMEM, "no memory to check a certificate");
    } else if (status == TITAN_OK) {
        X509_STORE_CTX_set_time(ctx, 0, (time_t)(now_ms / 1000));
        status = X509_verify_cert(ctx) == 1 ? TITAN_OK : verify_fail(ctx, x, now_ms, err);
        ERR_clear_error();
    }
    X509_STORE_CTX_free(ctx);
    sk_X509_pop_free(chain, X509_free);
    X509_STORE_free(store);
    return status;
}
