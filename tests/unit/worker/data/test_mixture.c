/* SPDX-License-Identifier: Apache-2.0 */
/* mixture.h: proportions hold in every block and row, every window comes once a pass, and the order is the seed's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "worker/data/mixture.h"

static void test_proportions(void **state)
{
    (void)state;
    struct titan_error err = {0};
    struct mixture m;
    const uint64_t windows[] = {100, 1000003, 7};
    const double weights[] = {0.7, 2.2999, 0.0001};
    assert_int_equal(mixture_init(&m, 11, 3, windows, weights, &err), TITAN_OK);
    assert_int_equal(m.count[0] + m.count[1] + m.count[2], MIXTURE_BLOCK);
    uint64_t block[3] = {0};
    for (uint64_t row = 0; row < 1024; row++) {
        uint64_t mine[3] = {0};
        for (uint64_t g = row * 1024; g < (row + 1) * 1024; g++)
            mine[mixture_pick(&m, g).source]++;
        for (int k = 0; k < 3; k++) {
            assert_in_range(mine[k], m.count[k] / 1024, m.count[k] / 1024 + 1);
            block[k] += mine[k];
        }
    }
    for (int k = 0; k < 3; k++) {
        assert_int_equal(block[k], m.count[k]);
        assert_true(fabs((double)block[k] - weights[k] / 3 * (double)MIXTURE_BLOCK) < 1);
    }
}

/* Of each source, its first windows[k] samples are a permutation, and so are the next; not the same one. */
static void test_passes(void **state)
{
    (void)state;
    struct titan_error err = {0};
    struct mixture m;
    enum { SOURCES = 2 };
    const uint64_t windows[SOURCES] = {333, 5000};
    const double weights[SOURCES] = {1, 3};
    uint64_t n[SOURCES] = {0}, same = 0;
    assert_int_equal(mixture_init(&m, 5, SOURCES, windows, weights, &err), TITAN_OK);
    /* Sample numbers of a source are dealt out within a block: a whole block has them all. */
    uint32_t *seen[SOURCES] = {0};
    for (int k = 0; k < SOURCES; k++)
        seen[k] = calloc(windows[k], sizeof(*seen[k]));
    for (uint64_t g = 0; g < MIXTURE_BLOCK; g++) {
        const struct mixture_pick pick = mixture_pick(&m, g);
        assert_true(pick.window < windows[pick.source]);
        seen[pick.source][pick.window]++;
        n[pick.source]++;
    }
    for (int k = 0; k < SOURCES; k++) {
        for (uint64_t w = 0; w < windows[k]; w++)
            assert_in_range(seen[k][w], n[k] / windows[k], n[k] / windows[k] + 1);
        free(seen[k]);
    }
    const uint64_t one = 1000;
    assert_int_equal(mixture_init(&m, 5, 1, &one, (const double[]){0}, &err), TITAN_OK);
    for (uint64_t g = 0; g < one; g++)
        same += mixture_pick(&m, g).window == mixture_pick(&m, g + one).window;
    assert_true(same < 20);
}

static void test_seeds(void **state)
{
    (void)state;
    struct titan_error err = {0};
    struct mixture a, b, c;
    const uint64_t windows[] = {5000, 6000};
    const double weights[] = {0, 0};
    int differ = 0;
    assert_int_equal(mixture_init(&a, 1, 2, windows, weights, &err), TITAN_OK);
    assert_int_equal(mixture_init(&b, 1, 2, windows, weights, &err), TITAN_OK);
    assert_int_equal(mixture_init(&c, 2, 2, windows, weights, &err), TITAN_OK);
    for (uint64_t g = 1 << 30; g < (1 << 30) + 500; g++) {
        const struct mixture_pick x = mixture_pick(&a, g), y = mixture_pick(&b, g), z = mixture_pick(&c, g);
        assert_true(x.source == y.source && x.window == y.window);
        differ += x.source != z.source || x.window != z.window;
    }
    assert_true(differ > 450);
    assert_true(llabs((long long)a.count[0] - (long long)MIXTURE_BLOCK * 5 / 11) <= 1); /* by their sizes */
}

static void test_refusals(void **state)
{
    (void)state;
    struct titan_error err = {0};
    struct mixture m;
    const uint64_t windows[] = {5, 6};
    assert_int_equal(mixture_init(&m, 1, 2, windows, (const double[]){1, -1}, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "source 2"));
    assert_int_equal(mixture_init(&m, 1, 2, windows, (const double[]){1, NAN}, &err), TITAN_EINVAL);
    assert_int_equal(mixture_init(&m, 1, 2, windows, (const double[]){1e-9, 1}, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "1 in 1048576"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_proportions),
        cmocka_unit_test(test_passes),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
