/* SPDX-License-Identifier: Apache-2.0 */
/* hash.h: the published values, since files and random streams are made of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/hash.h"

/* Test vectors of FNV-1a's authors (draft-eastlake-fnv). */
static void test_fnv(void **state)
{
    (void)state;
    assert_true(hash_text(HASH_INIT, "") == UINT64_C(0xcbf29ce484222325));
    assert_true(hash_text(HASH_INIT, "a") == UINT64_C(0xaf63dc4c8601ec8c));
    assert_true(hash_text(HASH_INIT, "foobar") == UINT64_C(0x85944171f73967e8));
    assert_true(hash_bytes(HASH_INIT, "foobar", 6) == UINT64_C(0x85944171f73967e8));
    assert_true(hash_text(hash_text(HASH_INIT, "foo"), "bar") == UINT64_C(0x85944171f73967e8));
    assert_true(hash_bytes(HASH_INIT, NULL, 0) == HASH_INIT);
    assert_true(hash_text(HASH_INIT, "\xff") == hash_bytes(HASH_INIT, (const uint8_t[]){0xff}, 1)); /* unsigned */
    assert_true(hash_word(HASH_INIT, 'a') == hash_text(HASH_INIT, "a"));
}

/* The first values of splitmix64 from state 1234567, as in its authors' reference program. */
static void test_splitmix(void **state)
{
    (void)state;
    static const uint64_t expected[] = {UINT64_C(6457827717110365317), UINT64_C(3203168211198807973),
                                        UINT64_C(9817491932198370423), UINT64_C(4593380528125082431),
                                        UINT64_C(16408922859458223821)};
    uint64_t stream = 1234567;
    for (size_t i = 0; i < ARRAY_SIZE(expected); i++)
        assert_true(hash_draw(&stream) == expected[i]);
}

/* From the formula in Python's integers. */
static void test_element(void **state)
{
    (void)state;
    assert_true(hash_element(hash_mix(0), 0, 0x3f800000) == UINT64_C(0x355bb38e37337f81));
    assert_true(hash_element(hash_mix(UINT64_C(3) << 40 | 17), 1000, 0xc2280000) == UINT64_C(0xe9fbc931a0509f53));
}

/* Names that differ in one digit come to different slots of a small table. */
static void test_index(void **state)
{
    (void)state;
    unsigned used = 0, slots[64] = {0};
    for (int i = 0; i < 64; i++) {
        char name[8] = {'n', 'o', 'd', 'e', (char)('0' + i / 10), (char)('0' + i % 10)};
        const size_t at = hash_index(hash_text(HASH_INIT, name), ARRAY_SIZE(slots));
        assert_true(at < ARRAY_SIZE(slots));
        used += slots[at]++ == 0;
    }
    assert_true(used >= 32); /* of 64 at random about 40 are used */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fnv), cmocka_unit_test(test_splitmix),
                                       cmocka_unit_test(test_element), cmocka_unit_test(test_index)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
