/* SPDX-License-Identifier: Apache-2.0 */
/* crc32c.h against the vectors of RFC 3720 B.4 and a bitwise computation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/crc32c.h"

static uint32_t bitwise(const unsigned char *p, size_t len)
{
    uint32_t crc = 0xffffffff;
    while (len--) {
        crc ^= *p++;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78 : crc >> 1;
    }
    return ~crc;
}

static void both(const void *data, size_t len, uint32_t expected)
{
    assert_int_equal(crc32c(0, data, len), expected);
    assert_int_equal(crc32c_portable(0, data, len), expected);
}

static void test_vectors(void **state)
{
    (void)state;
    unsigned char b[48];
    memset(b, 0, 32);
    both(b, 32, 0x8a9136aa);
    memset(b, 0xff, 32);
    both(b, 32, 0x62a8ab43);
    for (int i = 0; i < 32; i++)
        b[i] = (unsigned char)i;
    both(b, 32, 0x46dd794e);
    for (int i = 0; i < 32; i++)
        b[i] = (unsigned char)(31 - i);
    both(b, 32, 0x113fdb5c);
    static const unsigned char iscsi_read[48] = {0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,    0, 0, 0, 0,
                                                 0x14, 0,    0, 0, 0, 0, 4, 0, 0, 0, 0, 0x14, 0, 0, 0, 0x18,
                                                 0x28, 0,    0, 0, 0, 0, 0, 0, 2, 0, 0, 0,    0, 0, 0, 0};
    both(iscsi_read, 48, 0xd9963a56);
    both("123456789", 9, 0xe3069283);
    both("", 0, 0);
}

static void test_pieces(void **state)
{
    (void)state;
    unsigned seed = 12345;
    printf("# seed %u\n", seed);
    unsigned char data[1024];
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (unsigned char)rand_r(&seed);
    for (int i = 0; i < 500; i++) {
        size_t start = (size_t)rand_r(&seed) % 64, len = (size_t)rand_r(&seed) % 900;
        size_t cut = len ? (size_t)rand_r(&seed) % len : 0;
        uint32_t whole = bitwise(data + start, len);
        both(data + start, len, whole);
        assert_int_equal(crc32c(crc32c(0, data + start, cut), data + start + cut, len - cut), whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_vectors), cmocka_unit_test(test_pieces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
