/* SPDX-License-Identifier: Apache-2.0 */
/* What lies in a node's folder of certificates, or comes as the answer to its request: ca.pem, cert.pem and key.pem. A
 * certificate that is taken is the one that was signed, whatever else is said around it. */
#include "tests/fuzz/common.h"

#include <openssl/pem.h>
#include <openssl/x509.h>

#include "base/buf.h"
#include "daemon/auth/pki.h"

#define NOW INT64_C(1800000000000)

/* Of a cluster that is nowhere: its CA, a node's certificate and that node's key. */
static const char ca_text[] = "-----BEGIN CERTIFICATE-----\n"
                              "MIIBqjCCAVGgAwIBAgIUMkLYEtLHBYpZxVTS1L+IiD8aF24wCgYIKoZIzj0EAwIw\n"
                              "IjERMA8GA1UECgwIdGl0YW4gY2ExDTALBgNVBAMMBGZ1enowIBcNMjYxMTIzMjI1\n"
                              "MDM1WhgPMjEyNjEwMzAyMjUwMzVaMCIxETAPBgNVBAoMCHRpdGFuIGNhMQ0wCwYD\n"
                              "VQQDDARmdXp6MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEylMLvJEGOCU1PM3a\n"
                              "hW05gl0pDdvDv+2OghU9mDQVkdcBKec4Rzh7z4xkofpNK0rqeGcbUmxpfWCNEVot\n"
                              "JjhpfqNjMGEwHQYDVR0OBBYEFOOHeCa/Kc2ZFag/nunE1s/htPrXMB8GA1UdIwQY\n"
                              "MBaAFOOHeCa/Kc2ZFag/nunE1s/htPrXMA8GA1UdEwEB/wQFMAMBAf8wDgYDVR0P\n"
                              "AQH/BAQDAgEGMAoGCCqGSM49BAMCA0cAMEQCIA8VZu1CRYhnMn/3eWIB1vB7+5hq\n"
                              "w/s3XL93V90jP+pnAiAd9IUAKfCTOpgIxL1XBN38W/DTyNi+t75ri0vRyFNKSw==\n"
                              "-----END CERTIFICATE-----\n";
static const char certificate_text[] = "-----BEGIN CERTIFICATE-----\n"
                                       "MIIB3jCCAYOgAwIBAgIUSdJeKGT83gxeVQUuCZNR0tT7t/YwCgYIKoZIzj0EAwIw\n"
                                       "IjERMA8GA1UECgwIdGl0YW4gY2ExDTALBgNVBAMMBGZ1enowIBcNMjYxMTIzMjI1\n"
                                       "MDM1WhgPMjEyNjEwMzAyMjUwMzVaMB0xDjAMBgNVBAoMBXRpdGFuMQswCQYDVQQD\n"
                                       "DAJuMTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABNKptm82J+kNJ0JsxtwPG9zZ\n"
                                       "ih4JtIHKwI67jSks3eyQs3ZI0A63jNK/h66HpxYe4N9/msneCSSBUhYax6//Dgyj\n"
                                       "gZkwgZYwDAYDVR0TAQH/BAIwADAOBgNVHQ8BAf8EBAMCB4AwEwYDVR0lBAwwCgYI\n"
                                       "KwYBBQUHAwIwHwYDVR0jBBgwFoAU44d4Jr8pzZkVqD+e6cTWz+G0+tcwIQYDVR0R\n"
                                       "BBowGIYWc3BpZmZlOi8vdGl0YW4vbm9kZS9uMTAdBgNVHQ4EFgQUQmvND6roTTUZ\n"
                                       "mwGSZr2XmvSitzUwCgYIKoZIzj0EAwIDSQAwRgIhAM3J0Y6e8zZnf/P3wXZf4G9k\n"
                                       "Eyp4LH4lv6Eiwi79KbAhAiEAi5IgtYjcHCJSryStiOHo9zwx0mD4knRnglcj+q0/\n"
                                       "5ho=\n"
                                       "-----END CERTIFICATE-----\n";
static const char key_text[] = "-----BEGIN PRIVATE KEY-----\n"
                               "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgC0ZZ7LosFd0DCnWi\n"
                               "qURsUvv3rx4ghdTixKWnE1ih8guhRANCAATSqbZvNifpDSdCbMbcDxvc2YoeCbSB\n"
                               "ysCOu40pLN3skLN2SNAOt4zSv4euh6cWHuDff5rJ3gkkgVIWGsev/w4M\n"
                               "-----END PRIVATE KEY-----\n";

static struct buf text_of(const char *text)
{
    return (struct buf){.data = (char *)(uintptr_t)text, .len = strlen(text)};
}

static X509 *read_first(const struct buf *pem)
{
    BIO *bio = BIO_new_mem_buf(pem->data ? pem->data : "", (int)pem->len);
    X509 *x = PEM_read_bio_X509(bio, NULL, NULL, NULL);
    BIO_free(bio);
    return x;
}

/* The certificate with some of its bytes changed, as PEM. */
static void change(const struct buf *certificate, struct fuzz_input *in, struct buf *out)
{
    uint8_t *der = NULL;
    char *text = NULL;
    X509 *x = read_first(certificate);
    const int n = i2d_X509(x, &der);
    fuzz_assert(n > 0);
    for (int i = 0; in->len > 0 && i < 8; i++) {
        const uint64_t at = fuzz_take(in, 2) % (uint64_t)n;
        der[at] = (uint8_t)fuzz_take(in, 1);
    }
    BIO *bio = BIO_new(BIO_s_mem());
    fuzz_assert(bio && PEM_write_bio(bio, PEM_STRING_X509, "", der, n) > 0);
    const long len = BIO_get_mem_data(bio, &text);
    fuzz_assert(buf_append(out, text, (size_t)len) == TITAN_OK);
    BIO_free(bio);
    OPENSSL_free(der);
    X509_free(x);
}

/* Is what was signed of the first one the same? */
static bool same_signed(const struct buf *one, const struct buf *other)
{
    X509 *x = read_first(one), *y = read_first(other);
    uint8_t *a = NULL, *b = NULL;
    const int n = x ? i2d_re_X509_tbs(x, &a) : 0, m = y ? i2d_re_X509_tbs(y, &b) : 0;
    const bool same = n == m && n > 0 && memcmp(a, b, (size_t)n) == 0;
    OPENSSL_free(a);
    OPENSSL_free(b);
    X509_free(x);
    X509_free(y);
    return same;
}

enum { CHANGED, CERTIFICATE, CA, KEY };

/* The first byte says which of the three files is made of the rest, and how. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    const uint64_t how = fuzz_take(&in, 1), what = how % 4;
    const bool whole = in.len == 0 && (what == CHANGED || (how & 64)); /* nothing is changed */
    const struct buf ca = text_of(ca_text), certificate = text_of(certificate_text), key = text_of(key_text);
    const struct buf *a = &ca, *x = &certificate, *k = &key;
    struct titan_error err = {0};
    struct pki_certificate c;
    uint8_t hash[PKI_KEY_HASH];
    _cleanup_(buf_free) struct buf made = BUF_INIT;
    if (what == CHANGED)
        change(&certificate, &in, &made);
    else if (how & 64) /* behind what belongs there */
        buf_puts(&made, what == CERTIFICATE ? certificate_text : what == CA ? ca_text : key_text);
    if (what != CHANGED && in.len)
        fuzz_assert(buf_append(&made, in.data, in.len) == TITAN_OK);
    *(what == CA ? &a : what == KEY ? &k : &x) = &made;
    titan_status status = pki_check(a, x, how & 32 ? NULL : k, NOW, &err);
    if (status != TITAN_OK)
        fuzz_error(status, &err);
    else
        fuzz_assert(x != &made || same_signed(x, &certificate));
    fuzz_assert(status == TITAN_OK || !whole);
    err = (struct titan_error){0};
    status = pki_key_hash(k, hash, &err);
    if (status != TITAN_OK)
        fuzz_error(status, &err);
    err = (struct titan_error){0};
    status = pki_read(x->data ? x->data : "", x->len, &c, &err);
    if (status != TITAN_OK)
        fuzz_error(status, &err);
    else
        (void)pki_renew_at_ms(&c);
    return 0;
}
