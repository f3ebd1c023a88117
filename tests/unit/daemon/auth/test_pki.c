/* SPDX-License-Identifier: Apache-2.0 */
/* pki.h: what is signed, what is refused, and bytes of any kind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "base/cleanup.h"
#include "base/rng.h"
#include "daemon/auth/pki.h"
#include "tests/support/seeded.h"
#include "tests/support/sets.h"

#define NOW INT64_C(1800000000000)
#define DAY INT64_C(86400000)
#define _cleanup_buf_ _cleanup_(buf_free)

struct authority {
    struct buf key, certificate;
};

/* Its name is that of a node: neither passes for the other. */
static void authority_make(struct authority *a)
{
    *a = (struct authority){BUF_INIT, BUF_INIT};
    assert_int_equal(pki_key_make(&a->key, NULL), TITAN_OK);
    assert_int_equal(pki_ca_make(&a->key, "n1", NOW - PKI_SKEW_MS, NOW + 3650 * DAY, &a->certificate, NULL), TITAN_OK);
}

static void authority_free(struct authority *a)
{
    buf_free(&a->key);
    buf_free(&a->certificate);
}

static titan_status issue(const struct authority *a, const struct pki_spec *spec, struct buf *key, struct buf *out,
                          struct titan_error *err)
{
    _cleanup_buf_ struct buf request = BUF_INIT;
    if (!key->len)
        assert_int_equal(pki_key_make(key, err), TITAN_OK);
    assert_int_equal(pki_request_make(key, "spiffe://titan/user/anybody", &request, err), TITAN_OK);
    return pki_issue(&(struct pki_issuer){&a->certificate, &a->key}, request.data, request.len, spec, out, err);
}

static const struct pki_spec node_wish = {
    .kind = PKI_NODE, .name = "n1", .from_ms = NOW - PKI_SKEW_MS, .until_ms = NOW + 7 * DAY};

static void test_issue_and_read(void **state)
{
    (void)state;
    struct authority a;
    struct titan_error err = {0};
    struct pki_certificate c;
    _cleanup_buf_ struct buf key = BUF_INIT, certificate = BUF_INIT, other = BUF_INIT;
    authority_make(&a);
    assert_int_equal(issue(&a, &node_wish, &key, &certificate, &err), TITAN_OK);
    assert_int_equal(pki_read(certificate.data, certificate.len, &c, &err), TITAN_OK);
    /* The signer gives the name; the request's own says nothing. */
    assert_string_equal(c.uri, "spiffe://titan/node/n1");
    assert_string_equal(c.name, "n1");
    assert_int_equal(c.kind, PKI_NODE);
    assert_false(c.ca);
    assert_int_equal(c.n_hosts, 0);
    assert_int_equal(c.from_ms, NOW - PKI_SKEW_MS);
    assert_int_equal(c.until_ms, NOW + 7 * DAY);
    assert_int_equal(strlen(c.serial), 32);
    assert_int_equal(pki_check(&a.certificate, &certificate, &key, NOW, &err), TITAN_OK);
    assert_int_equal(pki_begin_ms(NOW, 7 * DAY), NOW - PKI_SKEW_MS);
    assert_int_equal(pki_begin_ms(NOW, 60000), NOW - 15000); /* or it would be renewed as soon as it is made */
    assert_true(pki_renew_at_ms(&c) > NOW + 4 * DAY && pki_renew_at_ms(&c) < NOW + 5 * DAY);
    assert_int_equal(pki_read(a.certificate.data, a.certificate.len, &c, &err), TITAN_OK);
    assert_true(c.ca);
    assert_int_equal(c.kind, PKI_NONE);

    static const char hosts[][256] = {"head.example", "10.0.0.1", "fe80::1"};
    struct pki_spec spec = {.kind = PKI_COORDINATOR,
                            .name = "head",
                            .hosts = hosts,
                            .n_hosts = 3,
                            .from_ms = NOW,
                            .until_ms = NOW + 20 * 365 * DAY};
    assert_int_equal(issue(&a, &spec, &key, &other, &err), TITAN_OK);
    assert_int_equal(pki_read(other.data, other.len, &c, &err), TITAN_OK);
    assert_string_equal(c.uri, "spiffe://titan/coordinator/head");
    assert_int_equal(c.n_hosts, 3);
    for (int i = 0; i < 3; i++)
        assert_string_equal(c.hosts[i], hosts[i]);
    assert_int_equal(c.until_ms, NOW + 3650 * DAY); /* not beyond its CA's end */
    authority_free(&a);
}

/* Only a coordinator may serve; a node's certificate does not pass for a server's, a coordinator's does for both. */
static void test_uses(void **state)
{
    (void)state;
    struct authority a;
    _cleanup_buf_ struct buf key = BUF_INIT, node = BUF_INIT, head = BUF_INIT;
    static const char hosts[][256] = {"head"};
    struct pki_spec spec = {
        .kind = PKI_COORDINATOR, .name = "head", .hosts = hosts, .n_hosts = 1, .from_ms = NOW, .until_ms = NOW + DAY};
    authority_make(&a);
    assert_int_equal(issue(&a, &node_wish, &key, &node, NULL), TITAN_OK);
    assert_int_equal(issue(&a, &spec, &key, &head, NULL), TITAN_OK);
    struct {
        struct buf *pem;
        int serves;
    } cases[] = {{&node, 0}, {&head, 1}};
    for (size_t i = 0; i < 2; i++) {
        BIO *in = BIO_new_mem_buf(cases[i].pem->data, (int)cases[i].pem->len);
        X509 *x = PEM_read_bio_X509(in, NULL, NULL, NULL);
        assert_int_equal(X509_check_purpose(x, X509_PURPOSE_SSL_SERVER, 0), cases[i].serves);
        assert_int_equal(X509_check_purpose(x, X509_PURPOSE_SSL_CLIENT, 0), 1);
        assert_int_equal(X509_check_ca(x), 0);
        X509_free(x);
        BIO_free(in);
    }
    authority_free(&a);
}

static void test_check_refuses(void **state)
{
    (void)state;
    struct authority a, b;
    struct titan_error err = {0};
    _cleanup_buf_ struct buf key = BUF_INIT, certificate = BUF_INIT, other_key = BUF_INIT;
    authority_make(&a);
    authority_make(&b);
    assert_int_equal(issue(&a, &node_wish, &key, &certificate, &err), TITAN_OK);
    assert_int_equal(pki_key_make(&other_key, &err), TITAN_OK);
    const struct {
        const struct buf *ca, *key;
        int64_t now;
        const char *words;
    } cases[] = {
        {&a.certificate, &other_key, NOW, "not of this key"},     {&b.certificate, &key, NOW, "not of this CA"},
        {&a.certificate, &key, NOW + 8 * DAY, "expired"},         {&a.certificate, &key, NOW - DAY, "not valid before"},
        {&a.certificate, &certificate, NOW, "not a private key"}, {&key, &key, NOW, "no certificate"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        err = (struct titan_error){0};
        assert_int_not_equal(pki_check(cases[i].ca, &certificate, cases[i].key, cases[i].now, &err), TITAN_OK);
        if (!strstr(err.msg, cases[i].words))
            fail_msg("case %zu: '%s' does not say '%s'", i, err.msg, cases[i].words);
    }
    /* A certificate that signs for itself has the right names and the wrong CA. */
    _cleanup_buf_ struct buf forged = BUF_INIT;
    struct authority mixed = {b.key, a.certificate};
    assert_int_equal(issue(&mixed, &node_wish, &key, &forged, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "CA's key"));
    /* A node's certificate signs for no other one. */
    struct authority node = {key, certificate};
    assert_int_equal(issue(&node, &node_wish, &other_key, &forged, &err), TITAN_EPERM);
    authority_free(&a);
    authority_free(&b);
}

static void test_wishes_refused(void **state)
{
    (void)state;
    struct authority a;
    struct titan_error err = {0};
    _cleanup_buf_ struct buf key = BUF_INIT, out = BUF_INIT;
    static const char hosts[][256] = {"good", "not a host"};
    char longer[PKI_NAME_MAX + 2];
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    authority_make(&a);
    const struct pki_spec specs[] = {
        {.kind = PKI_NODE, .name = "", .until_ms = NOW},
        {.kind = PKI_NODE, .name = "..", .until_ms = NOW},
        {.kind = PKI_NODE, .name = "a/b", .until_ms = NOW},
        {.kind = PKI_NODE, .name = "a\nb", .until_ms = NOW},
        {.kind = PKI_NODE, .name = longer, .until_ms = NOW},
        {.kind = PKI_NONE, .name = "n1", .until_ms = NOW},
        {.kind = PKI_NODE, .name = "n1", .hosts = hosts, .n_hosts = 1, .until_ms = NOW},
        {.kind = PKI_COORDINATOR, .name = "n1", .hosts = hosts, .n_hosts = 2, .until_ms = NOW},
        {.kind = PKI_NODE, .name = "n1", .from_ms = NOW, .until_ms = NOW},
    };
    for (size_t i = 0; i < ARRAY_SIZE(specs); i++) {
        if (issue(&a, &specs[i], &key, &out, &err) == TITAN_OK)
            fail_msg("spec %zu was granted", i);
        assert_int_equal(out.len, 0);
    }
    struct pki_spec late = {.kind = PKI_NODE, .name = "n1", .from_ms = NOW + 4000 * DAY, .until_ms = NOW + 5000 * DAY};
    assert_int_equal(issue(&a, &late, &key, &out, &err), TITAN_EPERM);
    authority_free(&a);
}

static void test_names(void **state)
{
    (void)state;
    const char *name = NULL;
    assert_int_equal(pki_uri_parse("spiffe://titan/node/n1", &name), PKI_NODE);
    assert_string_equal(name, "n1");
    assert_int_equal(pki_uri_parse("spiffe://titan/user/eva.b", &name), PKI_USER);
    assert_int_equal(pki_uri_parse("spiffe://titan/coordinator/head", NULL), PKI_COORDINATOR);
    static const char *const bad[] = {"",
                                      "spiffe://titan/",
                                      "spiffe://titan/node/",
                                      "spiffe://titan/node",
                                      "spiffe://titan/nodes/n1",
                                      "spiffe://titan/node/n1/x",
                                      "spiffe://other/node/n1",
                                      "SPIFFE://titan/node/n1",
                                      "spiffe://titan/root/n1",
                                      "spiffe://titan/node/..",
                                      "spiffe://titan/node/n 1"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(pki_uri_parse(bad[i], NULL), PKI_NONE);
}

/* A request for something else than a P-256 key, made with OpenSSL itself. */
static void request_of(EVP_PKEY *key, struct buf *out)
{
    X509_REQ *r = X509_REQ_new();
    BIO *to = BIO_new(BIO_s_mem());
    char *data;
    assert_int_equal(X509_REQ_set_pubkey(r, key), 1);
    assert_true(X509_REQ_sign(r, key, EVP_PKEY_is_a(key, "ED25519") ? NULL : EVP_sha256()) > 0);
    assert_int_equal(PEM_write_bio_X509_REQ(to, r), 1);
    long n = BIO_get_mem_data(to, &data);
    assert_int_equal(buf_append(out, data, (size_t)n), TITAN_OK);
    BIO_free(to);
    X509_REQ_free(r);
    EVP_PKEY_free(key);
}

static void test_requests(void **state)
{
    (void)state;
    struct titan_error err = {0};
    uint8_t hash[PKI_KEY_HASH], again[PKI_KEY_HASH];
    _cleanup_buf_ struct buf key = BUF_INIT, request = BUF_INIT, rsa = BUF_INIT, p384 = BUF_INIT, ed = BUF_INIT;
    assert_int_equal(pki_key_make(&key, &err), TITAN_OK);
    assert_int_equal(pki_request_make(&key, "spiffe://titan/node/n1", &request, &err), TITAN_OK);
    assert_int_equal(pki_request_check(request.data, request.len, hash, &err), TITAN_OK);
    assert_int_equal(pki_key_hash(&key, again, &err), TITAN_OK);
    assert_memory_equal(hash, again, sizeof(hash));
    assert_int_equal(pki_request_make(&key, "n1", &request, &err), TITAN_EINVAL);
    request_of(EVP_RSA_gen(2048), &rsa);
    request_of(EVP_EC_gen("P-384"), &p384);
    request_of(EVP_PKEY_Q_keygen(NULL, NULL, "ED25519"), &ed);
    struct buf *others[] = {&rsa, &p384, &ed};
    for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
        assert_int_equal(pki_request_check(others[i]->data, others[i]->len, hash, &err), TITAN_EINVAL);
        assert_non_null(strstr(err.msg, "P-256"));
    }
    char *big = calloc(1, PKI_REQUEST_MAX + 1);
    assert_int_equal(pki_request_check(big, PKI_REQUEST_MAX + 1, hash, &err), TITAN_EINVAL);
    assert_int_equal(pki_request_check(big, 0, hash, &err), TITAN_EINVAL);
    free(big);
}

/* A key with a password is refused; nothing waits at a terminal for one. */
static void test_password(void **state)
{
    (void)state;
    uint8_t hash[PKI_KEY_HASH];
    struct titan_error err = {0};
    _cleanup_buf_ struct buf pem = BUF_INIT;
    EVP_PKEY *key = EVP_EC_gen("P-256");
    BIO *to = BIO_new(BIO_s_mem());
    char *data, word[] = "secret";
    assert_int_equal(PEM_write_bio_PKCS8PrivateKey(to, key, EVP_aes_128_cbc(), word, 6, NULL, NULL), 1);
    long n = BIO_get_mem_data(to, &data);
    assert_int_equal(buf_append(&pem, data, (size_t)n), TITAN_OK);
    assert_int_equal(pki_key_hash(&pem, hash, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "password"));
    BIO_free(to);
    EVP_PKEY_free(key);
}

/* --- any bytes ---------------------------------------------------------------------------------------------------- */

struct rng {
    struct rng_key key;
    uint64_t drawn;
};

static uint64_t rng_u64(struct rng *rng)
{
    uint32_t w[4];
    rng_philox(rng->key, rng->drawn++, 0, w);
    return (uint64_t)w[0] << 32 | w[1];
}

static void mutate(struct rng *rng, struct buf *b, const struct buf *from)
{
    buf_clear(b);
    assert_int_equal(buf_append(b, from->data, from->len), TITAN_OK);
    for (uint64_t n = 1 + rng_u64(rng) % 4; n > 0 && b->len > 1; n--) {
        size_t at = rng_u64(rng) % b->len;
        switch (rng_u64(rng) % 5) {
        case 0:
            b->data[at] = (char)rng_u64(rng);
            break;
        case 1:
            b->data[at] = (char)(b->data[at] ^ (1 << rng_u64(rng) % 8));
            break;
        case 2:
            b->len = at;
            b->data[at] = '\0';
            break;
        case 3: { /* a piece of it once more, somewhere else */
            size_t piece = rng_u64(rng) % 64;
            piece = MIN(piece, b->len - at);
            memmove(b->data + rng_u64(rng) % (b->len - piece + 1), b->data + at, piece);
            break;
        }
        default:
            assert_int_equal(buf_append(b, from->data, MIN(from->len, (size_t)100)), TITAN_OK);
        }
    }
}

/* The bytes under the PEM, too: base64 guards them from most mutations of the text. */
static void mutate_der(struct rng *rng, struct buf *out, const char *type, const struct buf *pem)
{
    char *name, *header;
    unsigned char *der;
    long n;
    BIO *in = BIO_new_mem_buf(pem->data, (int)pem->len), *to = BIO_new(BIO_s_mem());
    assert_int_equal(PEM_read_bio(in, &name, &header, &der, &n), 1);
    for (uint64_t i = 1 + rng_u64(rng) % 4; i > 0; i--)
        der[rng_u64(rng) % (uint64_t)n] = (unsigned char)rng_u64(rng);
    assert_true(PEM_write_bio(to, type, "", der, n) > 0);
    char *data;
    long len = BIO_get_mem_data(to, &data);
    buf_clear(out);
    assert_int_equal(buf_append(out, data, (size_t)len), TITAN_OK);
    OPENSSL_free(name);
    OPENSSL_free(header);
    OPENSSL_free(der);
    BIO_free(in);
    BIO_free(to);
}

static void test_mutations(void **state)
{
    (void)state;
    const unsigned long rounds = (unsigned long)seeded_rounds(300, 1500);
    struct rng rng = {.key = rng_key(seeded_seed(0), "pki")};
    struct authority a;
    struct titan_error err = {0};
    uint8_t hash[PKI_KEY_HASH], changed[PKI_KEY_HASH];
    _cleanup_buf_ struct buf key = BUF_INIT, certificate = BUF_INIT, request = BUF_INIT, bad = BUF_INIT;
    authority_make(&a);
    assert_int_equal(issue(&a, &node_wish, &key, &certificate, &err), TITAN_OK);
    assert_int_equal(pki_request_make(&key, "spiffe://titan/node/n1", &request, &err), TITAN_OK);
    assert_int_equal(pki_key_hash(&key, hash, &err), TITAN_OK);
    unsigned long same = 0;
    for (unsigned long i = 0; i < rounds; i++) {
        struct pki_certificate c;
        /* Whatever passes is signed by the key it names: another's signature cannot be made by chance. */
        i % 2 ? mutate(&rng, &bad, &request) : mutate_der(&rng, &bad, "CERTIFICATE REQUEST", &request);
        if (pki_request_check(bad.data, bad.len, changed, &err) == TITAN_OK) {
            assert_memory_equal(hash, changed, sizeof(hash));
            same++;
        } else {
            assert_true(err.msg[0] != '\0');
        }
        /* Read is not checked: but no name comes out that could not have gone in, and none passes the CA's check. */
        i % 2 ? mutate(&rng, &bad, &certificate) : mutate_der(&rng, &bad, "CERTIFICATE", &certificate);
        if (pki_read(bad.data, bad.len, &c, &err) == TITAN_OK) {
            assert_true(c.kind == PKI_NONE ? !c.uri[0] : pki_name_ok(c.name));
            if (pki_check(&a.certificate, &bad, NULL, NOW, &err) == TITAN_OK)
                assert_string_equal(c.name, "n1");
        }
        i % 2 ? mutate(&rng, &bad, &key) : mutate_der(&rng, &bad, "PRIVATE KEY", &key);
        (void)!pki_key_hash(&bad, changed, &err);
    }
    assert_true(same < rounds);
    authority_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        quick(test_issue_and_read), quick(test_uses),     quick(test_check_refuses), quick(test_wishes_refused),
        quick(test_names),          quick(test_requests), quick(test_password),      longer(test_mutations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
