/* SPDX-License-Identifier: Apache-2.0 */
/* Stretches of skipped steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/state/skipped.h"

/* Two stretches, the first with a step that counts in it. */
static void test_stretches(void **state)
{
    const uint64_t bad[] = {5, 6, 8, 8 + SKIPPED_GAP + 1};
    struct skipped_steps s = {0};
    size_t next = 0;

    (void)state;
    for (uint64_t step = 1; step <= bad[3]; step++) {
        const bool skipped = step == bad[next];
        next += skipped;
        skipped_count(&s, step, skipped);
        assert_true(skipped_possible(&s, step));
        assert_int_equal(s.total, next);
        assert_int_equal(s.in_a_row, step == 5 || step == 8 || step == bad[3] ? 1 : step == 6 ? 2 : 0);
        assert_int_equal(skipped_since(&s, step), step < 5 ? 0 : step <= 8 + SKIPPED_GAP ? 5 : bad[3]);
    }
    assert_int_equal(s.first, bad[3]);
    assert_int_equal(s.last, bad[3]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stretches)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
