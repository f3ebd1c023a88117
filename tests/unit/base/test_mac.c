/* SPDX-License-Identifier: Apache-2.0 */
/* HMAC-SHA256 against the standards' vectors and against libcrypto. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mac.h"
#include "tests/support/seeded.h"

static const char *hex(const uint8_t bytes[MAC_BYTES])
{
    static char text[2 * MAC_BYTES + 1];
    for (int i = 0; i < MAC_BYTES; i++)
        (void)snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    return text;
}

static const char *sha(const char *text, size_t times)
{
    struct sha256 s;
    uint8_t out[MAC_BYTES];
    sha256_begin(&s);
    for (size_t i = 0; i < times; i++)
        sha256_add(&s, text, strlen(text));
    sha256_end(&s, out);
    return hex(out);
}

static void test_sha(void **state) /* FIPS 180-4, the examples of NIST */
{
    (void)state;
    assert_string_equal(sha("", 1), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_string_equal(sha("abc", 1), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_string_equal(sha("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1),
                        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    assert_string_equal(sha("a", 1000000), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static const char *mac(const void *key, size_t key_len, const void *text, size_t len)
{
    struct mac m;
    uint8_t out[MAC_BYTES];
    mac_begin(&m, key, key_len);
    mac_add(&m, text, len);
    mac_end(&m, out);
    return hex(out);
}

static void test_mac(void **state) /* RFC 4231, cases 1, 2, 3, 6 and 7 */
{
    uint8_t key[131], data[50];
    const char *text = "Test Using Larger Than Block-Size Key - Hash Key First";
    const char *longer = "This is a test using a larger than block-size key and a larger than block-size data. The key "
                         "needs to be hashed before being used by the HMAC algorithm.";
    (void)state;
    memset(key, 0x0b, 20);
    assert_string_equal(mac(key, 20, "Hi There", 8),
                        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    assert_string_equal(mac("Jefe", 4, "what do ya want for nothing?", 28),
                        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof(key));
    memset(data, 0xdd, sizeof(data));
    assert_string_equal(mac(key, 20, data, 50), "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    assert_string_equal(mac(key, 131, text, strlen(text)),
                        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    assert_string_equal(mac(key, 131, longer, strlen(longer)),
                        "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

/* In pieces of any size, keys of any length. */
static void test_like_libcrypto(void **state)
{
    (void)state;
    unsigned seed = (unsigned)seeded_seed(0);
    for (int round = 0; round < 2000; round++) {
        uint8_t key[200], data[1000], ours[MAC_BYTES], theirs[MAC_BYTES];
        size_t key_len = (size_t)rand_r(&seed) % sizeof(key), len = (size_t)rand_r(&seed) % sizeof(data);
        unsigned n = 0;
        for (size_t i = 0; i < sizeof(key); i++)
            key[i] = (uint8_t)rand_r(&seed);
        for (size_t i = 0; i < len; i++)
            data[i] = (uint8_t)rand_r(&seed);
        struct mac m;
        mac_begin(&m, key, key_len);
        for (size_t at = 0; at < len;) {
            size_t piece = 1 + (size_t)rand_r(&seed) % 200;
            piece = piece < len - at ? piece : len - at;
            mac_add(&m, data + at, piece);
            at += piece;
        }
        mac_end(&m, ours);
        assert_non_null(HMAC(EVP_sha256(), key, (int)key_len, data, len, theirs, &n));
        assert_memory_equal(ours, theirs, MAC_BYTES);
        assert_true(mac_equal(ours, theirs));
        theirs[(size_t)rand_r(&seed) % MAC_BYTES] ^= (uint8_t)(1 << rand_r(&seed) % 8);
        assert_false(mac_equal(ours, theirs));
    }
}

static void test_derive(void **state)
{
    uint8_t key[MAC_BYTES] = {1}, a[MAC_BYTES], b[MAC_BYTES], c[MAC_BYTES];
    (void)state;
    mac_derive(key, "one", "x", 1, a);
    mac_derive(key, "two", "x", 1, b);
    mac_derive(key, "one", "y", 1, c);
    assert_false(mac_equal(a, b));
    assert_false(mac_equal(a, c));
    assert_string_equal(hex(a), mac(key, MAC_BYTES, "one\0x", 5));
}

static void test_cost(void **state)
{
    uint8_t key[MAC_BYTES] = {1}, message[256] = {0}, out[MAC_BYTES];
    const int n = 20000;
    (void)state;
    int64_t begin = clock_mono_ns();
    for (int i = 0; i < n; i++) {
        mac_derive(key, "cost", message, sizeof(message), out);
        message[0] = out[0];
    }
    print_message("# %.2f us for a proof of 256 bytes\n", (double)(clock_mono_ns() - begin) / 1000 / n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sha),    cmocka_unit_test(test_mac),  cmocka_unit_test(test_like_libcrypto),
        cmocka_unit_test(test_derive), cmocka_unit_test(test_cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
