/* SPDX-License-Identifier: Apache-2.0 */
/* bins.h: what lies in which sample, against first-fit as it is defined. TITAN_TEST_SEED repeats a run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "tests/support/seeded.h"
#include "worker/data/bins.h"

enum { DOCUMENTS = 500 };

static void check(const struct bin_document *documents, uint64_t n, uint64_t places)
{
    struct bins b = {0};
    uint64_t left[DOCUMENTS], bins = 0, taken = 0, too_long = 0;
    uint64_t want[DOCUMENTS]; /* the sample of each; n: none */
    for (uint64_t d = 0; d < n; d++) {
        const uint64_t needs = documents[d].n - (documents[d].n > 0);
        uint64_t k = 0;
        want[d] = n;
        too_long += needs > places;
        if (needs == 0 || needs > places)
            continue;
        while (k < bins && left[k] < needs)
            k++;
        left[k] = (k == bins ? places : left[k]) - needs;
        bins += k == bins;
        want[d] = k;
        taken += needs;
    }
    assert_int_equal(bins_fill(documents, n, places, &b, NULL), TITAN_OK);
    assert_int_equal(b.n, bins);
    assert_int_equal(b.places, taken);
    assert_int_equal(b.too_long, too_long);
    assert_int_equal(b.first[0], 0);
    for (uint64_t k = 0; k < bins; k++) {
        uint64_t at = b.first[k];
        for (uint64_t d = 0; d < n; d++)
            if (want[d] == k)
                assert_memory_equal(&b.documents[at++], &documents[d], sizeof(documents[d]));
        assert_int_equal(at, b.first[k + 1]);
    }
    bins_clear(&b);
}

static void test_first_fit(void **state)
{
    (void)state;
    uint64_t rng = seeded_seed(0);
    struct bin_document documents[DOCUMENTS];
    for (int i = 0; i < 300; i++) {
        const uint64_t n = hash_draw(&rng) % (DOCUMENTS + 1), places = 1 + hash_draw(&rng) % 64;
        uint64_t at = 0;
        for (uint64_t d = 0; d < n; d++) {
            documents[d] = (struct bin_document){at, hash_draw(&rng) % (places + places / 4 + 3)};
            at += documents[d].n;
        }
        check(documents, n, places);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_first_fit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
