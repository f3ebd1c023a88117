/* SPDX-License-Identifier: Apache-2.0 */
/* owners.h: each matrix has one owner, owners have room for their matrices, work is shared evenly, and what travels is
 * what the formula says. TITAN_TEST_SEED repeats a run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "tests/support/random_layout.h"

#define WORLD_MAX 24
#define ROUNDS 60

static struct recipe muon_recipe(const char *file)
{
    static const char *const sets[] = {"optimizer.name=Muon", "optimizer.rest=AdamW"};
    struct recipe r;
    struct titan_error err = {0};

    recipe_init(&r);
    if (file)
        assert_int_equal(recipe_load(&r, file, &err), TITAN_OK);
    for (size_t i = 0; i < ARRAY_SIZE(sets); i++)
        if (recipe_set(&r, sets[i], &err) != TITAN_OK)
            fail_msg("%s", err.msg);
    if (file && recipe_resolve(&r, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    return r;
}

static int by_place(const void *a, const void *b)
{
    const struct owned_matrix *const x = *(struct owned_matrix *const *)a, *const y = *(struct owned_matrix *const *)b;
    return (x->values > y->values) - (x->values < y->values);
}

/* Each rank's matrices lie one behind the other, within the room. Returns the fullest rank's work over the mean. */
static double check_owners(const struct layout *l)
{
    const struct owners *const o = l->owners;
    const int ranks = mesh_group_size(&l->mesh, GROUP_OWNERS);
    _cleanup_free_ const struct owned_matrix **mine = calloc((size_t)o->n + 1, sizeof(struct owned_matrix *));
    double worst = 1;

    for (int p = 0; p < l->mesh.size[AXIS_PP]; p++) {
        double most = 0, all = 0, largest = 0;
        for (int r = 0; r < ranks; r++) {
            int64_t values = 0, kept = 0;
            double work = 0;
            int n = 0;
            for (int i = 0; i < o->n; i++)
                if (o->matrices[i].pp_rank == p && o->matrices[i].owner == r)
                    mine[n++] = &o->matrices[i];
            qsort(mine, (size_t)n, sizeof(struct owned_matrix *), by_place);
            for (int i = 0; i < n; i++) {
                assert_true(mine[i]->values >= values && mine[i]->state[0].at >= kept);
                assert_true(mine[i]->state[0].rows == mine[i]->rows && mine[i]->state[0].cols == mine[i]->cols);
                values = mine[i]->values + mine[i]->rows * mine[i]->cols;
                kept = mine[i]->state[0].at + mine[i]->rows * mine[i]->cols;
                work += owners_work(mine[i]->rows, mine[i]->cols);
                largest = MAX(largest, owners_work(mine[i]->rows, mine[i]->cols));
            }
            assert_true(values <= o->values[p] && kept <= o->kept[p]);
            most = MAX(most, work);
            all += work;
        }
        assert_true(most <= all / ranks + largest);
        worst = all > 0 ? MAX(worst, most / (all / ranks)) : worst;
    }
    return worst;
}

static void test_every_matrix_has_one_owner(void **state)
{
    (void)state;
    unsigned seed = random_seed();
    const struct recipe r = muon_recipe(NULL);

    for (int round = 0; round < ROUNDS; round++) {
        struct model *m = random_model(&seed);
        struct layout *l = random_layout_of(&seed, m, WORLD_MAX, optimizer_kinds(&r));
        const struct owners *const o = l->owners;
        int next = 0;

        for (int t = 0; t < m->n_tensors; t++) {
            int64_t row = 0;
            assert_int_equal(o->first[t], next);
            for (; next < o->n && o->matrices[next].tensor == t; next++) {
                const struct owned_matrix *const x = &o->matrices[next];
                assert_true(x->row == row && x->cols == m->tensors[t].shape[1]);
                assert_int_equal(x->pp_rank, l->units[m->tensors[t].unit].pp_rank);
                assert_in_range(x->owner, 0, mesh_group_size(&l->mesh, GROUP_OWNERS) - 1);
                row += x->rows;
            }
            assert_int_equal(row, model_is_layer_matrix(m, t) ? m->tensors[t].shape[0] : 0);
        }
        assert_int_equal(next, o->n);
        (void)check_owners(l);

        /* Whoever asks, and when, gets the same owners. */
        int pp_rank[64];
        assert_true(m->n_units <= (int)ARRAY_SIZE(pp_rank));
        for (int u = 0; u < m->n_units; u++)
            pp_rank[u] = l->units[u].pp_rank;
        struct owners *again = NULL;
        const struct owners_options options = {.model = m, .mesh = &l->mesh, .pp_rank = pp_rank, .recipe = &r};
        assert_int_equal(owners_open(&options, &again, NULL), TITAN_OK);
        assert_memory_equal(again->matrices, o->matrices, (size_t)o->n * sizeof *o->matrices);
        owners_close(again);
        layout_close(l);
        model_close(m);
    }
}

/* Values that a rank sends to owners, and as an owner sends back; the mean over ranks. */
static double values_sent(const struct layout *l)
{
    double sent = 0;

    for (int rank = 0; rank < l->mesh.world; rank++) {
        _cleanup_free_ struct shard_slice *slices = NULL;
        int n;
        assert_int_equal(layout_slices(l, rank, NULL, NULL, NULL, NULL, &slices, &n, NULL), TITAN_OK);
        for (int k = 0; k < n && l->specs[slices[k].tensor].kind == 0; k++) {
            const int t = l->specs[slices[k].tensor].tensor;
            for (int i = l->owners->first[t]; i < l->owners->first[t + 1]; i++) {
                const struct owned_matrix *const x = &l->owners->matrices[i];
                const struct shard_slice whole = {
                    .tensor = slices[k].tensor, .row = x->row, .rows = x->rows, .cols = x->cols};
                const struct shard_slice both = shard_slice_overlap(&slices[k], &whole);
                if (x->owner != mesh_group_rank(&l->mesh, GROUP_OWNERS, rank))
                    sent += 2.0 * (double)both.rows * (double)both.cols;
            }
        }
    }
    return sent / l->mesh.world;
}

/* Llama 3 8B: the exchange is 2/(3S) of what FSDP sends, 3 P (S-1)/S values, and work is even. */
static void test_of_8b(void **state)
{
    (void)state;
    static const struct {
        int ranks;
        double share, uneven; /* most */
    } cases[] = {{2, 0.34, 1.02}, {8, 0.084, 1.02}, {64, 0.0105, 1.10}};
    const struct recipe r = muon_recipe(TITAN_SOURCE_DIR "/recipes/llama3_8b.toml");
    struct model *m = NULL;
    struct titan_error err = {0};

    assert_int_equal(model_open(&r.model.dims, &m, &err), TITAN_OK);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const int s = cases[i].ranks;
        const struct layout_options options = {.model = m,
                                               .mesh = {.world = s, .size = {1, 1, s, 1, 1}, .ep = 1},
                                               .kinds = optimizer_kinds(&r),
                                               .recipe = &r};
        struct layout *l = NULL;
        if (layout_open(&options, &l, &err) != TITAN_OK)
            fail_msg("%s", err.msg);
        const double uneven = check_owners(l), share = values_sent(l) / (3.0 * (double)recipe_params(&r) * (s - 1) / s);
        print_message("# %d ranks: work of the fullest %.3f of the mean, exchange %.4f of FSDP's values\n", s, uneven,
                      share);
        assert_true(uneven <= cases[i].uneven);
        assert_true(share <= cases[i].share && share >= cases[i].share * 0.75);
        layout_close(l);
    }
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_matrix_has_one_owner),
        cmocka_unit_test(test_of_8b),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
