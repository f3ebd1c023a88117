/* SPDX-License-Identifier: Apache-2.0 */
/* coded.h: on any mesh, whichever weights have codes, what ranks send has every other element of the unit once, and it
 * is found again in the gathered buffer where coded_offset says. TITAN_TEST_SEED repeats a run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "tests/support/random_layout.h"
#include "worker/tensor/coded.h"

#define WORLD_MAX 24
#define ROUNDS 400

/* Values of the gathered buffer: the element that lies there, as the executor and the builder put it. */
static int64_t *gather(const struct coded *c)
{
    int64_t *const all = malloc((c->own_codes - c->codes_bytes) / c->elem * sizeof *all + 1);
    struct coded_part parts[CODED_MAX + 1];
    int n;

    assert_non_null(all);
    for (size_t i = 0; i < (c->own_codes - c->codes_bytes) / c->elem; i++)
        all[i] = -1;
    for (int m = 0; m < c->members; m++) {
        coded_parts(c, m, parts, &n);
        for (int i = 0; i < n; i++)
            for (int64_t k = 0; k < parts[i].count; k++) {
                assert_true(parts[i].at + k < c->others);
                all[m * c->others + parts[i].at + k] = parts[i].from + k;
                assert_true(coded_sent(c, m, parts[i].from + k) ==
                            c->codes_bytes + (size_t)(m * c->others + parts[i].at + k) * c->elem);
            }
    }
    for (int i = 0; i < c->n_runs; i++)
        for (int64_t k = c->runs[i].from; c->runs[i].together && k < c->runs[i].to; k++)
            all[c->runs[i].at + k - c->runs[i].from] = k;
    return all;
}

static void look_at(const struct layout *l, int unit, uint64_t tensors, int *coded)
{
    const struct model_unit *u = &l->model->units[unit];
    const size_t elem = unit % 2 ? 2 : 4;
    struct coded c;
    int places = 0;

    coded_init(l, unit, tensors, elem, &c);
    if (c.n == 0) {
        assert_true(c.tensors == 0);
        return;
    }
    ++*coded;
    assert_true(c.tensors == tensors && c.n == __builtin_popcountll(tensors) && c.padded == (int64_t)c.codes_bytes);
    assert_true((size_t)c.shard + (size_t)c.others * elem < (size_t)c.shard * elem);
    assert_true(c.own_others == c.own_codes + (size_t)c.shard && c.bytes == c.own_others + (size_t)c.others * elem);
    int64_t *all = gather(&c);
    for (int i = 0; i < u->n_tensors; i++) {
        const struct local_tensor *t = &l->tensors[u->first_tensor + i];
        if (tensors >> i & 1) {
            assert_int_equal(coded_place(&c, i), places++);
            continue;
        }
        assert_int_equal(coded_place(&c, i), -1);
        /* All of a tensor lies together, in its order. */
        const size_t at = (coded_offset(&c, t->offset) - c.codes_bytes) / elem;
        for (int64_t k = 0; k < t->rows * t->cols; k++) {
            assert_true(coded_offset(&c, t->offset + k) == c.codes_bytes + (at + (size_t)k) * elem);
            if (all[at + (size_t)k] != t->offset + k)
                fail_msg("%s: unit %d, tensor %d: element %ld is %ld", layout_text(l), unit, i, (long)(t->offset + k),
                         (long)all[at + (size_t)k]);
        }
    }
    for (size_t i = (size_t)(c.members * c.others); i < (c.own_codes - c.codes_bytes) / elem; i++)
        assert_true(all[i] >= 0); /* no gaps: all of it is written */
    free(all);
}

static void test_random(void **state)
{
    (void)state;
    unsigned seed = random_seed();
    int coded = 0, plain = 0;

    for (int round = 0; round < ROUNDS; round++) {
        struct model *m = random_model(&seed);
        struct layout *l = random_layout(&seed, m, WORLD_MAX);
        const int unit = random_below(&seed, m->n_units);
        uint64_t tensors = 0;
        for (int i = 0; i < m->units[unit].n_tensors; i++)
            if (m->tensors[m->units[unit].first_tensor + i].ndim == 2 && random_below(&seed, 4))
                tensors |= UINT64_C(1) << i;
        const int before = coded;
        look_at(l, unit, tensors, &coded);
        plain += coded == before;
        layout_close(l);
        model_close(m);
    }
    assert_true(coded > ROUNDS / 20 && plain > 0);
}

/* No codes where all would travel uncoded, or nothing travels. */
static void test_none(void **state)
{
    (void)state;
    unsigned seed = random_seed();
    struct model *m = random_model(&seed);
    struct layout *alone = random_layout(&seed, m, 1), *l = random_layout(&seed, m, WORLD_MAX);
    struct coded c = {.n = 1};

    coded_init(alone, 1, 2, 2, &c);
    assert_true(c.n == 0 && c.tensors == 0);
    coded_init(l, 1, 0, 2, &c);
    assert_true(c.n == 0 && c.bytes == 0);
    coded_init(l, 1, 2, 1, &c); /* elements are as small as codes */
    assert_true(c.n == 0);
    layout_close(alone);
    layout_close(l);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
