/* SPDX-License-Identifier: Apache-2.0 */
/* batch.h: which tokens a context-parallel rank loads, with what beside each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/rng.h"
#include "worker/data/batch.h"

enum { INPUT, TARGET, POSITION, INDEX, START };

static void assert_row(const int32_t *tokens, int64_t n, int row, const int32_t *want)
{
    for (int64_t i = 0; i < n; i++)
        if (tokens[row * n + i] != want[i])
            fail_msg("row %d, token %ld: %d, not %d", row, (long)i, tokens[row * n + i], want[i]);
}

/* Two sequences of eight tokens on two ranks, worked out by hand. */
static void test_by_hand(void **state)
{
    (void)state;
    const struct sequence_cut cut = {.b = 2, .t = 8, .cp = 2, .balanced = true};
    const int32_t starts[16] = {0, 0, 0, 3, 3, 3, 3, 7, 0, 0, 2, 2, 2, 2, 2, 2};
    int32_t inputs[16], targets[16], got[BATCH_ROWS * 8];

    for (int i = 0; i < 16; i++) {
        inputs[i] = 100 + i;
        targets[i] = i == 6 || i == 15 ? -1 : 200 + i;
    }
    assert_int_equal(batch_tokens(&cut), 8);
    /* Chunks of two: rank 0 has the first and the last of each sequence. */
    assert_int_equal(batch_fill(&cut, 0, inputs, targets, starts, got), 6);
    assert_row(got, 8, INPUT, (const int32_t[]){100, 101, 106, 107, 108, 109, 114, 115});
    assert_row(got, 8, TARGET, (const int32_t[]){200, 201, -1, 207, 208, 209, 214, -1});
    assert_row(got, 8, INDEX, (const int32_t[]){0, 1, 6, 7, 8, 9, 14, 15});
    assert_row(got, 8, START, (const int32_t[]){0, 0, 3, 7, 8, 8, 10, 10});
    assert_row(got, 8, POSITION, (const int32_t[]){0, 1, 3, 0, 0, 1, 4, 5});
    assert_int_equal(batch_fill(&cut, 1, inputs, targets, NULL, got), 8);
    assert_row(got, 8, INDEX, (const int32_t[]){2, 3, 4, 5, 10, 11, 12, 13});
    assert_row(got, 8, START, (const int32_t[]){0, 0, 0, 0, 8, 8, 8, 8});
    assert_row(got, 8, POSITION, (const int32_t[]){2, 3, 4, 5, 2, 3, 4, 5});
    const struct sequence_cut contiguous = {.b = 2, .t = 8, .cp = 2};
    assert_int_equal(batch_fill(&contiguous, 1, inputs, targets, NULL, got), 6);
    assert_row(got, 8, INPUT, (const int32_t[]){104, 105, 106, 107, 112, 113, 114, 115});
}

/* Two modules of multi-token prediction: what they read and predict, and where they count. Documents of 3, 4 and 1
 * tokens, then of 2 and 6; the loss itself counts all but two. */
static void test_modules_by_hand(void **state)
{
    (void)state;
    enum { FIRST = BATCH_ROWS, SECOND = BATCH_ROWS + 2 };
    const struct sequence_cut whole = {.b = 2, .t = 8, .cp = 1, .modules = 2};
    const struct sequence_cut cut = {.b = 2, .t = 8, .cp = 2, .balanced = true, .modules = 2};
    const int32_t starts[16] = {0, 0, 0, 3, 3, 3, 3, 7, 0, 0, 2, 2, 2, 2, 2, 2};
    int32_t inputs[16], targets[16], got[(BATCH_ROWS + 4) * 16];

    for (int i = 0; i < 16; i++) {
        inputs[i] = 100 + i;
        targets[i] = i == 4 || i == 14 ? -1 : 200 + i;
    }
    assert_int_equal(batch_fill(&whole, 0, inputs, targets, NULL, got), 14);
    assert_row(got, 16, FIRST,
               (const int32_t[]){101, 102, 103, 104, 105, 106, 107, 0, 109, 110, 111, 112, 113, 114, 115, 0});
    assert_row(got, 16, FIRST + 1,
               (const int32_t[]){201, 202, 203, -1, 205, 206, 207, -1, 209, 210, 211, 212, 213, -1, 215, -1});
    assert_row(got, 16, SECOND,
               (const int32_t[]){102, 103, 104, 105, 106, 107, 0, 0, 110, 111, 112, 113, 114, 115, 0, 0});
    assert_row(got, 16, SECOND + 1,
               (const int32_t[]){202, 203, -1, 205, 206, 207, -1, -1, 210, 211, 212, 213, -1, 215, -1, -1});
    /* Token 2's target is the first of another document: the loss itself counts it, a module does not. */
    assert_int_equal(batch_fill(&whole, 0, inputs, targets, starts, got), 14);
    assert_row(got, 16, FIRST,
               (const int32_t[]){101, 102, 103, 104, 105, 106, 107, 0, 109, 110, 111, 112, 113, 114, 115, 0});
    assert_row(got, 16, FIRST + 1,
               (const int32_t[]){201, -1, -1, -1, 205, -1, -1, -1, -1, -1, 211, 212, 213, -1, 215, -1});
    assert_row(got, 16, SECOND + 1,
               (const int32_t[]){-1, -1, -1, 205, -1, -1, -1, -1, -1, -1, 212, 213, -1, 215, -1, -1});
    /* A rank has the tokens of its own places, whichever rank has those that they are ahead of. */
    assert_int_equal(batch_fill(&cut, 1, inputs, targets, starts, got), 7);
    assert_row(got, 8, FIRST, (const int32_t[]){103, 104, 105, 106, 111, 112, 113, 114});
    assert_row(got, 8, FIRST + 1, (const int32_t[]){-1, -1, 205, -1, 211, 212, 213, -1});
    assert_row(got, 8, SECOND, (const int32_t[]){104, 105, 106, 107, 112, 113, 114, 115});
    assert_row(got, 8, SECOND + 1, (const int32_t[]){-1, 205, -1, -1, 212, 213, -1, 215});
}

static uint32_t draw(uint64_t *counter, uint32_t n)
{
    uint32_t w[4];
    rng_philox(rng_key(20, "batch"), (*counter)++, 0, w);
    return w[0] % n;
}

/* Every token is some rank's, once, with what belongs to it; with balance, the ranks see equally many keys. */
static void test_ranks_share_out_a_microbatch(void **state)
{
    (void)state;
    uint64_t counter = 0;

    for (int round = 0; round < 200; round++) {
        const int cp = 1 + (int)draw(&counter, 4);
        const struct sequence_cut cut = {.b = 1 + draw(&counter, 3),
                                         .t = 2 * cp * (1 + (int64_t)draw(&counter, 5)),
                                         .cp = cp,
                                         .balanced = draw(&counter, 2)};
        const int64_t all = cut.b * cut.t, n = batch_tokens(&cut);
        int32_t inputs[256], targets[256], seen[256] = {0}, got[BATCH_ROWS * 256];
        int64_t counted = 0, sum = 0, keys[4] = {0};

        assert_true(all <= 256 && n * cp == all);
        for (int64_t i = 0; i < all; i++) {
            inputs[i] = (int32_t)i + 1000;
            targets[i] = draw(&counter, 4) ? (int32_t)i + 2000 : -1;
            counted += targets[i] >= 0;
        }
        for (int rank = 0; rank < cp; rank++) {
            sum += batch_fill(&cut, rank, inputs, targets, NULL, got);
            for (int64_t i = 0; i < n; i++) {
                const int32_t at = got[INDEX * n + i];
                assert_true(at >= 0 && at < all && seen[at]++ == 0);
                assert_int_equal(got[INPUT * n + i], inputs[at]);
                assert_int_equal(got[TARGET * n + i], targets[at]);
                assert_int_equal(got[POSITION * n + i], at % cut.t);
                assert_true(i == 0 || at > got[INDEX * n + i - 1]);
                keys[rank] += at % cut.t + 1;
            }
            assert_true(!cut.balanced || keys[rank] == keys[0]);
        }
        assert_int_equal(sum, counted);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_modules_by_hand),
        cmocka_unit_test(test_ranks_share_out_a_microbatch),
    };
    return cmocka_run_group_tests_name("batch", tests, NULL, NULL);
}
