/* SPDX-License-Identifier: Apache-2.0 */
/* held_scales.h: held powers of two come back unchanged, except in steps that look for scales, and only after their
 * own step. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "worker/tensor/held_scales.h"

static void test_values(void **state)
{
    static struct held_scales h;
    static const double scales[] = {1,        2,        0.5,     448,     0,       -1,      NAN,
                                    INFINITY, 0x1p-127, 0x1p127, 0x1p-30, 0x1p128, 0x1p-128};
    (void)state;
    held_scales_take(&h, 7, scales, (int)ARRAY_SIZE(scales));
    assert_int_equal(h.n, ARRAY_SIZE(scales));
    assert_int_equal(h.step, 7);
    for (size_t i = 0; i < ARRAY_SIZE(scales); i++) {
        const double want = i == 3 ? 256 : scales[i] > 0x1p-128 && scales[i] < 0x1p128 ? scales[i] : 0;
        assert_true((double)held_scales_value(&h, (int64_t)i) == want);
    }
}

static void test_steps(void **state)
{
    static struct held_scales h;
    static const double one[2] = {1, 1};
    (void)state;
    assert_null(held_scales_for(&h, 5, 2, 4)); /* none are known */
    held_scales_take(&h, 5, one, 2);
    assert_ptr_equal(held_scales_for(&h, 5, 2, 4), &h);
    assert_null(held_scales_for(&h, 5, 2, 1));
    assert_null(held_scales_for(&h, 5, 2, 5));
    assert_null(held_scales_for(&h, 6, 2, 4)); /* of another step */
    assert_null(held_scales_for(&h, 5, 3, 4)); /* of another model */
    held_scales_take(&h, 8, one, 2);
    assert_null(held_scales_for(&h, 8, 2, 4));
    assert_ptr_equal(held_scales_for(&h, 8, 2, 5), &h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_steps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
