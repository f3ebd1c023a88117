/* SPDX-License-Identifier: Apache-2.0 */
/* buddy.h: which rank keeps which, for every layout of nodes. What buddies do in a step is tested by losing workers
 * (test_resize.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "tests/support/random_layout.h"
#include "worker/elastic/buddy.h"

#define WORLD_MAX 24

static int apart(const int *nodes, int world, int shift)
{
    int n = 0;
    for (int r = 0; r < world; r++)
        n += nodes[r] != nodes[(r + shift) % world];
    return n;
}

static void test_known(void **state)
{
    (void)state;
    static const int two[] = {0, 0, 1, 1}, by_turns[] = {0, 1, 0, 1}, eight[] = {0, 0, 0, 0, 4, 4, 4, 4};
    assert_int_equal(buddy_shift(NULL, 1), 0);
    assert_int_equal(buddy_shift(NULL, 2), 1);
    assert_int_equal(buddy_shift(NULL, 5), 1);
    assert_int_equal(buddy_shift(two, 4), 2);
    assert_int_equal(buddy_shift(by_turns, 4), 1);
    assert_int_equal(buddy_shift(eight, 8), 4);
    assert_int_equal(buddy_shift(eight, 4), 1);
}

/* Nodes with equally many ranks, one after the other: each rank's buddy is elsewhere. Any nodes: no other distance
 * brings more to another node. */
static void test_elsewhere(void **state)
{
    (void)state;
    unsigned seed = random_seed();
    int nodes[WORLD_MAX];
    for (int each = 1; each <= 6; each++)
        for (int n = 2; n * each <= WORLD_MAX; n++) {
            for (int r = 0; r < n * each; r++)
                nodes[r] = r / each;
            assert_int_equal(apart(nodes, n * each, buddy_shift(nodes, n * each)), n * each);
        }
    for (int round = 0; round < 500; round++) {
        const int world = 2 + random_below(&seed, WORLD_MAX - 1), kinds = 1 + random_below(&seed, 5);
        for (int r = 0; r < world; r++)
            nodes[r] = random_below(&seed, kinds);
        const int shift = buddy_shift(nodes, world);
        assert_in_range(shift, 1, world - 1);
        for (int other = 1; other < world; other++)
            assert_true(apart(nodes, world, other) <= apart(nodes, world, shift));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_known), cmocka_unit_test(test_elsewhere)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
