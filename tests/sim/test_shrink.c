/* SPDX-License-Identifier: Apache-2.0 */
/* The shrinker (sim.h): a failure that is planted in a schedule and needs k of its n faults is shrunk to those k.
 *   SEED=n: other schedules */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "tests/sim/sim.h"

struct planted {
    const struct plan *whole;
    uint64_t needed; /* faults */
    int tries;
};

static bool has(const struct plan *p, const struct fault *f)
{
    for (int i = 0; i < p->n_faults; i++)
        if (memcmp(&p->faults[i], f, sizeof(*f)) == 0)
            return true;
    return false;
}

/* Of the schedule that is left, as the cluster would see it. */
static bool fails(uint64_t keep, void *data)
{
    struct planted *w = data;
    struct plan p = *w->whole;
    plan_keep(&p, keep);
    w->tries++;
    for (int i = 0; i < w->whole->n_faults; i++)
        if (w->needed >> i & 1 && !has(&p, &w->whole->faults[i]))
            return false;
    return true;
}

static uint64_t all_of(int n)
{
    return n == 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1;
}

static void check(const struct plan *p, uint64_t needed, uint64_t seed)
{
    struct planted w = {.whole = p, .needed = needed};
    uint64_t kept = shrink_keep(p->n_faults, fails, &w);
    if (kept != needed)
        fail_msg("SEED=%llu: of %d faults %llx are needed, and %llx were kept in %d tries", LL(seed), p->n_faults,
                 LL(needed), LL(kept), w.tries);
}

static void test_what_is_needed_is_kept(void **state)
{
    (void)state;
    const char *text = getenv("SEED");
    uint64_t first = text ? strtoull(text, NULL, 10) : 1;
    static struct plan p;
    for (uint64_t seed = first; seed < first + 500; seed++) {
        uint32_t words[4];
        plan_make(&p, seed);
        rng_philox(rng_key(seed, "needed"), 0, 0, words);
        uint64_t drawn = (uint64_t)words[0] << 32 | words[1];
        uint64_t sparse = drawn & ((uint64_t)words[2] << 32 | words[3]);
        check(&p, drawn & all_of(p.n_faults), seed);
        check(&p, sparse & all_of(p.n_faults), seed);
        check(&p, 0, seed);
        check(&p, all_of(p.n_faults), seed);
        check(&p, UINT64_C(1) << words[2] % (unsigned)p.n_faults, seed);
    }
}

/* As many as a plan can have: the last bit of the word counts, and the tries suffice. */
static void test_of_the_most_faults(void **state)
{
    (void)state;
    static struct plan p;
    plan_make(&p, 1);
    p.n_faults = (int)(sizeof(p.faults) / sizeof(*p.faults));
    assert_true(p.n_faults <= 64);
    memset(p.faults, 0, sizeof(p.faults));
    for (int i = 0; i < p.n_faults; i++)
        p.faults[i].pick = (uint32_t)i;
    check(&p, all_of(p.n_faults), 0);
    check(&p, UINT64_C(0x5555555555555555) & all_of(p.n_faults), 0);
    for (int i = 0; i < p.n_faults; i++)
        check(&p, UINT64_C(1) << i, 0);
}

/* One of two is enough: one is kept, and not both. */
static bool fails_with_either(uint64_t keep, void *data)
{
    (void)data;
    return (keep & 1 << 2) || (keep & 1 << 9);
}

static void test_one_of_two_is_kept(void **state)
{
    (void)state;
    uint64_t kept = shrink_keep(12, fails_with_either, NULL);
    assert_true(kept == 1 << 2 || kept == 1 << 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_is_needed_is_kept),
                                       cmocka_unit_test(test_of_the_most_faults),
                                       cmocka_unit_test(test_one_of_two_is_kept)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
