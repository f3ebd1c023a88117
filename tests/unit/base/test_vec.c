/* SPDX-License-Identifier: Apache-2.0 */
/* vec.h */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/vec.h"

struct point {
    int x, y;
};

static void test_push(void **state)
{
    (void)state;
    _cleanup_free_ struct point *points = NULL;
    size_t n = 0, cap = 0;
    for (int i = 0; i < 1000; i++) {
        assert_true(VEC_PUSH(points, n, cap, (struct point){i, -i}));
        assert_true(n <= cap && cap <= 2 * n + 4); /* doubled, not one by one */
    }
    assert_int_equal(n, 1000);
    for (int i = 0; i < 1000; i++)
        assert_true(points[i].x == i && points[i].y == -i);
    /* An entry of the array itself survives the move. */
    n = cap;
    points[0] = (struct point){7, 8};
    assert_true(VEC_PUSH(points, n, cap, points[0]));
    assert_true(points[n - 1].x == 7 && points[n - 1].y == 8);
}

static void test_reserve(void **state)
{
    (void)state;
    _cleanup_free_ double *x = NULL;
    int cap = 0; /* any integer type */
    assert_true(VEC_RESERVE(x, cap, 0));
    assert_null(x);
    assert_true(VEC_RESERVE(x, cap, 100));
    assert_true(cap >= 100);
    x[99] = 1;
    const double *before = x;
    const int cap_before = cap;
    assert_true(VEC_RESERVE(x, cap, 50));
    assert_ptr_equal(x, before);
    assert_int_equal(cap, cap_before);
}

static void test_insert_remove(void **state)
{
    (void)state;
    _cleanup_free_ char *text = NULL;
    int n = 0, cap = 0;
    assert_true(VEC_INSERT(text, n, cap, 0, 'c'));
    assert_true(VEC_INSERT(text, n, cap, 0, 'a'));
    assert_true(VEC_INSERT(text, n, cap, 1, 'b'));
    assert_true(VEC_INSERT(text, n, cap, n, 'd'));
    assert_true(VEC_INSERT(text, n, cap, n, text[0])); /* moves the array: read before */
    assert_int_equal(n, 5);
    assert_memory_equal(text, "abcda", 5);
    VEC_REMOVE(text, n, 4);
    VEC_REMOVE(text, n, 1);
    VEC_REMOVE(text, n, 0);
    assert_int_equal(n, 2);
    assert_memory_equal(text, "cd", 2);
}

/* What a failure leaves: the array as it was. */
static void test_full(void **state)
{
    (void)state;
    _cleanup_free_ short *x = NULL;
    uint8_t n = 0, cap = 0;
    while (n < UINT8_MAX)
        assert_true(VEC_PUSH(x, n, cap, n));
    assert_int_equal(cap, UINT8_MAX);
    const short *before = x;
    assert_false(VEC_PUSH(x, n, cap, 0));
    assert_false(VEC_INSERT(x, n, cap, 0, 0));
    assert_ptr_equal(x, before);
    assert_int_equal(n, UINT8_MAX);
    assert_int_equal(x[254], 254);

    size_t many = 0;
    struct point *points = NULL;
    assert_false(VEC_RESERVE(points, many, SIZE_MAX / 2)); /* bytes overflow */
    assert_null(points);
    assert_int_equal(many, 0);
    int8_t little = 0;
    assert_false(VEC_RESERVE(points, little, 128));
    assert_true(VEC_RESERVE(points, little, 127));
    assert_int_equal(little, 127);
    free(points);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_push),
        cmocka_unit_test(test_reserve),
        cmocka_unit_test(test_insert_remove),
        cmocka_unit_test(test_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
