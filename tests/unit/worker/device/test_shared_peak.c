/* SPDX-License-Identifier: Apache-2.0 */
/* shared_peak.h: what devices can do together, where they share hardware and where they do not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "worker/device/shared_peak.h"

#define CORE 100e9 /* FLOP/s */

static void near(double got, double want)
{
    assert_true(fabs(got - want) <= 1e-9 * want);
}

/* A worker of so many threads on a node of so many cores. */
static struct peak_claim worker(double node, double threads, double cores)
{
    const double used = fmin(threads, cores);
    return (struct peak_claim){.hardware = node, .share = used / cores, .peak = used * CORE};
}

static double of_equal(int workers, double threads, double cores)
{
    struct peak_claim claims[16];

    assert_true(workers <= (int)(sizeof claims / sizeof claims[0]));
    for (int i = 0; i < workers; i++)
        claims[i] = worker(1, threads, cores);
    return peak_together(claims, workers);
}

static void workers_of_a_node(void **state)
{
    (void)state;
    near(of_equal(1, 1, 8), CORE);
    near(of_equal(4, 1, 8), 4 * CORE); /* enough cores */
    near(of_equal(8, 1, 8), 8 * CORE);
    near(of_equal(4, 1, 2), 2 * CORE);   /* more workers than cores */
    near(of_equal(4, 8, 8), 8 * CORE);   /* more threads */
    near(of_equal(3, 4, 8), 8 * CORE);   /* not a whole number of them */
    near(of_equal(2, 1, 0.5), CORE / 2); /* a cgroup leaves half of a core */
    near(of_equal(1, 4, 1.5), 1.5 * CORE);
}

/* Two of four cores' node have one thread, one has four; beside a node with enough cores; in any order. */
static void nodes_count_one_by_one(void **state)
{
    struct peak_claim claims[] = {worker(7, 1, 2), worker(3, 1, 4), worker(7, 1, 2), worker(3, 4, 4),
                                  worker(7, 1, 2), worker(3, 1, 4), worker(5, 2, 16)};

    (void)state;
    near(peak_together(claims, 7), (2 + 4 + 2) * CORE);
}

/* Each measures the same cores a little otherwise: their mean. */
static void measured_peaks_differ(void **state)
{
    struct peak_claim claims[] = {worker(1, 1, 1), worker(1, 1, 1)};

    (void)state;
    claims[1].peak = 1.1 * CORE;
    near(peak_together(claims, 2), 1.05 * CORE);
}

static void a_card_counts_once(void **state)
{
    const struct device_info card = {.hardware = UINT64_C(0x123456789abcdef0), .share = 1, .peak_flops_bf16 = 989e12},
                             other = {.hardware = UINT64_C(0x0fedcba987654321), .share = 1, .peak_flops_bf16 = 989e12};
    struct peak_claim claims[] = {peak_claim_of(&card, DTYPE_BF16), peak_claim_of(&other, DTYPE_BF16),
                                  peak_claim_of(&card, DTYPE_BF16)};

    (void)state;
    near(peak_together(claims, 1), 989e12);
    near(peak_together(claims, 3), 2 * 989e12);
}

static void one_that_is_not_known(void **state)
{
    struct peak_claim claims[] = {worker(1, 1, 2), worker(2, 1, 2)};

    (void)state;
    claims[1].peak = 0;
    assert_true(peak_together(claims, 2) == 0);
    claims[0] = claims[1] = (struct peak_claim){.hardware = (double)NAN, .share = 1, .peak = CORE};
    assert_true(peak_together(claims, 2) > 0); /* comes to an end */
}

static void each_of_so_many(void **state)
{
    const struct device_info info = {.share = 0.5, .peak_flops_f32 = CORE, .peak_flops_bf16 = 2 * CORE};

    (void)state;
    near(peak_each(&info, DTYPE_F32, 1), CORE);
    near(peak_each(&info, DTYPE_F32, 2), CORE);
    near(peak_each(&info, DTYPE_BF16, 8), CORE / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_of_a_node),     cmocka_unit_test(nodes_count_one_by_one),
        cmocka_unit_test(measured_peaks_differ), cmocka_unit_test(a_card_counts_once),
        cmocka_unit_test(one_that_is_not_known), cmocka_unit_test(each_of_so_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
