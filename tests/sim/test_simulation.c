/* SPDX-License-Identifier: Apache-2.0 */
/* A slice of `make sim`: 2,000 schedules of the whole cluster (sim.h), and that they go where they should. In the fast
 * set, the first of them.
 *   SEED=n SCHEDULES=n: other ones */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/sim/rounds.h"
#include "tests/support/sets.h"

static struct rounds_result result;

static void test_schedules_hold(void **state)
{
    (void)state;
    const char *seed = getenv("SEED"), *count = getenv("SCHEDULES");
    struct rounds r = {.first = seed ? strtoull(seed, NULL, 10) : 1,
                       .count = count ? strtoull(count, NULL, 10) : (uint64_t)sliced(400, 2000),
                       .processes = 2};
    rounds_run(&r, stdout, &result);
    rounds_print(stdout, &r, &result);
    assert_int_equal(result.failed, 0);
    assert_int_equal(result.passed, r.count);
}

/* They have found something once. */
static void test_seeds_that_failed(void **state)
{
    (void)state;
    static const uint64_t seeds[] = {8681,   9578,   47253,  48173,  128646, 146032, 152562, 159433, 223147, 248134,
                                     401745, 405259, 435295, 531723, 643949, 663754, 664741, 939525, 973351};
    static struct plan p;
    for (size_t i = 0; i < sizeof(seeds) / sizeof(*seeds); i++) {
        struct outcome o;
        plan_make(&p, seeds[i]);
        run_apart(&p, TRACE_OFF, &o);
        free(o.last_lines);
        if (o.violated)
            fail_msg("SEED=%llu: %s: %s", LL(seeds[i]), o.invariant, o.text);
    }
}

/* A simulator that no longer gets anywhere would find nothing. */
static void test_schedules_get_around(void **state)
{
    (void)state;
    const struct totals *t = &result.totals;
    uint64_t n = result.passed;
    if (n < 1000)
        skip();
    assert_true(t->completed > n * 3 / 4 && t->failed > n / 100 && t->cancelled > n / 100);
    assert_true(t->source_memory > n / 8 && t->source_replica > n / 40 && t->source_buddy > n / 80);
    assert_true(t->source_checkpoint > n / 20 && t->source_init > n / 2 && t->rolled_forward > 0 &&
                t->installed_in_part > 0);
    assert_true(t->fenced_commands > n / 20 && t->duplicates > n / 20 && t->stalls > n / 20);
    assert_true(t->recoveries > n / 4 && t->resizes > n / 20 && t->waits > n / 4);
    assert_true(t->coordinator_lives > n * 5 / 4 && t->agent_lives > n / 8 && t->sessions > 3 * n);
    assert_true(t->steps > 30 * n && t->checkpoints > 2 * n && t->checkpoints_torn > n / 50);
    assert_true(t->store_refused > n / 50 && t->quiet_unasked > n / 4);
    assert_true(t->promises > n / 30 && t->leader_epochs > n / 80 && t->datagrams > n && t->fenced_terms > 0);
    assert_true(t->settled > n / 50);
    assert_true(t->directed > 10 * n && t->left_in_direction > 0);
    for (int k = 0; k < FAULT_KINDS; k++)
        assert_true(t->struck[k] > n / 50);
}

/* Long and short, with and without a store: the same trace twice, and another one for another seed. */
static void test_run_is_a_function_of_its_seed(void **state)
{
    (void)state;
    static struct plan p;
    struct outcome a, b;
    uint64_t last = 0;
    for (uint64_t seed = 1; seed <= (uint64_t)sliced(20, 120); seed++) {
        plan_make(&p, seed);
        cluster_run(&p, TRACE_OFF, &a);
        plan_make(&p, seed);
        cluster_run(&p, TRACE_KEEP, &b);
        free(b.last_lines);
        assert_true(a.hash == b.hash && a.events == b.events && a.hash != last);
        last = a.hash;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {longer(test_schedules_hold), slow(test_schedules_get_around),
                                       quick(test_seeds_that_failed), longer(test_run_is_a_function_of_its_seed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
