/* SPDX-License-Identifier: Apache-2.0 */
/* weight_gather.h: on any mesh, what ranks send has every element of a unit once, as a code or in the compute type.
 * Which elements have codes, and the buckets they lie in, are the same for every number of ranks if the layout is
 * canonical. TITAN_TEST_SEED repeats a run. */
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
#include "worker/tensor/weight_gather.h"

#define WORLD_MAX 24
#define ROUNDS 400

/* Has the element of the unit's tensor a code? */
static bool has_code(const struct layout *l, int unit, const struct weight_gather *g, int64_t element)
{
    const struct model_unit *const u = &l->model->units[unit];

    for (int i = 0; i < u->n_tensors; i++) {
        const struct local_tensor *const t = &l->tensors[u->first_tensor + i];
        if (g->coded.tensors >> i & 1 && element >= t->offset && element < t->offset + t->rows * t->cols)
            return true;
    }
    return false;
}

static void look_at(const struct layout *l, int unit, int *coded)
{
    const struct model_unit *const u = &l->model->units[unit];
    const struct unit_layout *const ul = &l->units[unit];
    const enum weight_codec codec = (enum weight_codec)(1 + unit % 3);
    const size_t elem = unit % 2 ? 2 : 4;
    struct weight_gather g;

    weight_gather_init(l, unit, codec, elem, &g);
    if (g.codec == WEIGHTS_WHOLE) {
        assert_true(g.bytes == 0 && g.coded.n == 0);
        return;
    }
    ++*coded;
    /* The formula of the bytes: numbers of buckets, codes, both rounded up to 16. */
    const int64_t buckets = (ul->shard + g.bucket - 1) / g.bucket, bits = weight_bits(codec);
    assert_int_equal(g.codes_bytes, (8 * buckets + 15) / 16 * 16 + ((ul->shard * bits + 7) / 8 + 15) / 16 * 16);
    const size_t sent = (size_t)g.codes_bytes + (size_t)g.others * elem;
    const int members = g.coded.members;
    assert_int_equal(g.bytes, members > 1 ? (size_t)(members + 1) * sent : sent);
    assert_true(l->canonical || (members > 1 && sent < (size_t)ul->shard * elem));
    for (int i = 0; i < u->n_tensors; i++) {
        const struct model_tensor *const t = &l->model->tensors[u->first_tensor + i];
        const bool copies = t->split == SPLIT_NONE && layout_unit_parts(l, unit) > 1;
        assert_true(!(g.coded.tensors >> i & 1) || (t->ndim == 2 && t->role != ROLE_GATE && !copies));
    }

    for (int m = 0; m < members; m++) {
        struct weight_gap gaps[WEIGHT_GATHER_RUNS];
        struct coded_part parts[CODED_MAX + 1];
        int n, sent_plain = 0, plain = 0;
        const int n_gaps = weight_gather_gaps(&g, m, gaps);
        coded_parts(&g.coded, m, parts, &n);
        for (int i = 0; i < n; i++)
            sent_plain += (int)parts[i].count;
        for (int i = 0; i + 1 < n_gaps; i++)
            assert_true(gaps[i].to <= gaps[i + 1].from);
        for (int64_t e = 0; e < ul->shard; e++) {
            bool gap = false;
            for (int i = 0; i < n_gaps; i++)
                gap = gap || (e >= gaps[i].from && e < gaps[i].to);
            const int64_t element = m * ul->shard + e;
            if (gap == has_code(l, unit, &g, element))
                fail_msg("%s: unit %d, element %ld %s a code", layout_text(l), unit, (long)element,
                         gap ? "misses" : "has");
            plain += gap && element < g.filled;
        }
        assert_int_equal(plain, sent_plain);
    }
}

static void test_random(void **state)
{
    (void)state;
    unsigned seed = random_seed();
    int coded = 0;

    for (int round = 0; round < ROUNDS; round++) {
        struct model *m = random_model(&seed);
        struct layout *l = random_layout(&seed, m, WORLD_MAX);
        look_at(l, random_below(&seed, m->n_units), &coded);
        layout_close(l);
        model_close(m);
    }
    assert_true(coded > ROUNDS / 20);
}

/* Canonical: ranges consist of whole buckets, an expert's matrix begins with a bucket, and no number of data-parallel
 * or expert-parallel ranks decides which tensors have codes. */
static void test_canonical(void **state)
{
    (void)state;
    unsigned seed = random_seed();
    int compared = 0;

    for (int round = 0; round < ROUNDS; round++) {
        struct model *m = random_model(&seed);
        struct layout *one = random_layout(&seed, m, 1), *l = random_layout(&seed, m, WORLD_MAX);
        for (int unit = 0; unit < m->n_units && one->canonical && l->canonical; unit++) {
            struct weight_gather a, b;
            weight_gather_init(one, unit, WEIGHTS_INT8, 4, &a);
            weight_gather_init(l, unit, WEIGHTS_INT8, 4, &b);
            if (layout_unit_parts(l, unit) > (m->units[unit].kind == UNIT_EXPERTS ? l->mesh.ep : 1))
                continue; /* tensors are cut otherwise */
            assert_true(a.codec == b.codec && a.bucket == b.bucket && a.coded.tensors == b.coded.tensors);
            assert_true(b.codec == WEIGHTS_WHOLE || l->units[unit].shard % b.bucket == 0);
            const struct model_unit *const u = &m->units[unit];
            for (int i = 0; i < u->n_tensors && u->kind == UNIT_EXPERTS && b.codec != WEIGHTS_WHOLE; i++)
                assert_true(!(b.coded.tensors >> i & 1) ||
                            (l->tensors[u->first_tensor + i].offset % b.bucket == 0 &&
                             layout_expert_numel(l, u->first_tensor + i) % b.bucket == 0));
            compared += b.codec != WEIGHTS_WHOLE;
        }
        layout_close(one);
        layout_close(l);
        model_close(m);
    }
    assert_true(compared > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_canonical)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
