/* model.h, layout.h, mesh.h, tree.h: every element of every tensor has one place for every number of ranks, initial
 * values do not depend on the cut, sums in the tree do not depend on who adds. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/rng.h"
#include "worker/plan/layout.h"
#include "worker/plan/mesh.h"
#include "worker/plan/tree.h"

#define WORLD_MAX 9

/* Sizes that are no multiples of anything, so that alignment gaps and padding are there. */
static const struct model_dims odd = {.dim = 36,
                                      .n_layers = 3,
                                      .n_heads = 6,
                                      .n_kv_heads = 3,
                                      .ffn_hidden = 50,
                                      .vocab_size = 61,
                                      .rope_theta = 1e4,
                                      .norm_eps = 1e-5};

static struct model *open_model(const struct model_dims *dims)
{
    struct model *m = NULL;
    assert_int_equal(model_open(dims, &m, NULL), TITAN_OK);
    return m;
}

static void test_model(void **state)
{
    (void)state;
    struct recipe r;
    struct titan_error err = {0};
    recipe_init(&r);
    assert_int_equal(recipe_set(&r, "model.flavor=debugmodel", &err), TITAN_OK);
    assert_int_equal(recipe_set(&r, "training.dataset_path=/", &err), TITAN_OK);
    assert_int_equal(recipe_resolve(&r, &err), TITAN_OK);
    struct model *m = open_model(&r.model.dims);
    int64_t n = 0;
    for (int i = 0; i < m->n_tensors; i++)
        n += m->tensors[i].numel;
    assert_int_equal(n, 6163712); /* TorchTitan's debugmodel */
    assert_int_equal(n, recipe_params(&r));
    assert_int_equal(m->n_units, 8);
    assert_string_equal(m->tensors[1].name, "layers.0.attention_norm.weight");
    model_close(m);

    struct model *none = NULL;
    struct model_dims bad = odd;
    bad.n_kv_heads = 4;
    assert_int_equal(model_open(&bad, &none, &err), TITAN_EINVAL);
    bad = odd;
    bad.dim = 30; /* head width 5 */
    assert_int_equal(model_open(&bad, &none, &err), TITAN_EINVAL);
}

static void test_fused_matrices(void **state)
{
    (void)state;
    struct model *m = open_model(&odd);
    const struct model_tensor *t = &m->tensors[m->units[1].first_tensor];
    assert_int_equal(t[LAYER_WK].offset, t[LAYER_WQ].offset + t[LAYER_WQ].numel);
    assert_int_equal(t[LAYER_WV].offset, t[LAYER_WK].offset + t[LAYER_WK].numel);
    assert_int_equal(t[LAYER_W3].offset, t[LAYER_W1].offset + t[LAYER_W1].numel);
    for (int i = LAYER_ATTENTION_NORM; i <= LAYER_W2; i++)
        if (i != LAYER_WK && i != LAYER_WV && i != LAYER_W3)
            assert_int_equal(t[i].offset % MODEL_ALIGN, 0);
    model_close(m);
}

/* Count how often each element of each tensor is held. */
static void test_pieces_cover(void **state)
{
    (void)state;
    struct model *m = open_model(&odd);
    struct tensor_spec *specs = NULL;
    int n_specs;
    assert_int_equal(layout_specs(m, &specs, &n_specs, NULL), TITAN_OK);
    assert_int_equal(n_specs, 3 * m->n_tensors);
    for (int world = 1; world <= WORLD_MAX; world++) {
        struct layout *l = NULL;
        unsigned char **held = calloc((size_t)n_specs, sizeof *held);
        assert_int_equal(layout_open(m, world, &l, NULL), TITAN_OK);
        for (int i = 0; i < n_specs; i++)
            held[i] = calloc((size_t)specs[i].numel, 1);
        for (int rank = 0; rank < world; rank++) {
            float *state_arrays = calloc((size_t)l->total, 3 * sizeof *state_arrays);
            struct piece *pieces = NULL;
            int n;
            assert_int_equal(layout_pieces(l, rank, state_arrays, state_arrays + l->total, state_arrays + 2 * l->total,
                                           &pieces, &n, NULL),
                             TITAN_OK);
            for (int p = 0; p < n; p++) {
                assert_true(pieces[p].data >= state_arrays &&
                            pieces[p].data + pieces[p].count <= state_arrays + 3 * l->total);
                for (int64_t e = 0; e < pieces[p].count; e++) {
                    held[pieces[p].tensor][pieces[p].start + e]++;
                    pieces[p].data[e] += 1; /* no two pieces in one place */
                }
            }
            for (int64_t e = 0; e < 3 * l->total; e++)
                assert_true(state_arrays[e] <= 1);
            free(pieces);
            free(state_arrays);
        }
        for (int i = 0; i < n_specs; i++) {
            for (int64_t e = 0; e < specs[i].numel; e++)
                if (held[i][e] != 1)
                    fail_msg("world %d: element %ld of %s is held %d times", world, (long)e, specs[i].name, held[i][e]);
            free(held[i]);
        }
        free(held);
        layout_close(l);
    }
    free(specs);
    model_close(m);
}

static void test_init_is_the_same(void **state)
{
    (void)state;
    struct model *m = open_model(&odd);
    for (int u = 0; u < m->n_units; u++) {
        const int64_t padded = m->units[u].numel + 100;
        float *whole = calloc((size_t)padded, sizeof *whole), *part = calloc((size_t)padded, sizeof *part);
        model_init_range(m, 7, u, 0, padded, whole);
        for (int64_t at = 0; at < padded; at += 37)
            model_init_range(m, 7, u, at, MIN(37, padded - at), part + at);
        assert_memory_equal(whole, part, (size_t)padded * sizeof *whole);
        for (int64_t i = m->units[u].numel; i < padded; i++)
            assert_true(whole[i] == 0);
        free(whole);
        free(part);
    }
    /* The head is cut at three deviations, and some of its elements had to be drawn again. */
    const struct model_tensor *head = &m->tensors[m->n_tensors - 1];
    float *values = calloc((size_t)head->numel, sizeof *values);
    const struct rng_key key = rng_key(7, "output.weight");
    int redrawn = 0;
    model_init_range(m, 7, m->n_units - 1, head->offset, head->numel, values);
    for (int64_t i = 0; i < head->numel; i++) {
        assert_true(fabsf(values[i]) <= 3 * head->std);
        redrawn += values[i] != head->std * rng_normal(key, (uint64_t)i);
    }
    assert_true(redrawn > 0 && redrawn < head->numel / 100);
    free(values);
    model_close(m);
}

/* A block's number, seen from every world size, names the same elements. */
static void test_blocks(void **state)
{
    (void)state;
    struct model *m = open_model(&odd);
    for (int world = 1; world <= WORLD_MAX; world++) {
        struct layout *l = NULL;
        assert_int_equal(layout_open(m, world, &l, NULL), TITAN_OK);
        unsigned char *seen = calloc((size_t)(layout_blocks(l) * world), 1);
        for (int u = 0; u < m->n_units; u++)
            for (int64_t b = 0; b < layout_unit_blocks(l, u); b++) {
                const int64_t index = layout_block_index(l, u, b);
                const int64_t rank = index / layout_blocks(l), in_rank = index % layout_blocks(l) * l->block;
                assert_int_equal(seen[index]++, 0);
                assert_int_equal(rank * l->shard[u] + in_rank - l->offset[u], b * l->block);
            }
        free(seen);
        layout_close(l);
    }
    model_close(m);
}

static void test_mesh(void **state)
{
    (void)state;
    struct recipe r;
    struct mesh mesh;
    struct titan_error err = {0};
    int coords[AXIS_COUNT];
    recipe_init(&r);
    assert_int_equal(mesh_build(&r, 6, &mesh, &err), TITAN_OK);
    assert_int_equal(mesh.size[AXIS_DP_SHARD], 6);
    r.parallelism.data_parallel_shard_degree = 4;
    assert_int_equal(mesh_build(&r, 6, &mesh, &err), TITAN_EINVAL);
    r.parallelism.data_parallel_shard_degree = -1;
    r.parallelism.tensor_parallel_degree = 2;
    assert_int_equal(mesh_build(&r, 6, &mesh, &err), TITAN_EUNSUPPORTED);
    mesh = (struct mesh){.world = 24, .size = {2, 1, 3, 1, 4}};
    for (int rank = 0; rank < mesh.world; rank++) {
        mesh_coords(&mesh, rank, coords);
        assert_int_equal(mesh_rank(&mesh, coords), rank);
    }
    mesh_coords(&mesh, 5, coords);
    assert_int_equal(coords[AXIS_TP], 1); /* innermost */
    assert_int_equal(coords[AXIS_DP_SHARD], 1);
}

static void add_values(void *arg, int left, int right)
{
    double *v = arg;
    v[left] += v[right];
}

/* Shares of any number of ranks, each summed as far as its subtrees go, then together: the bits of tree_sum. */
static void test_tree(void **state)
{
    (void)state;
    for (int64_t leaves = 1; leaves <= 33; leaves++) {
        double values[33];
        for (int64_t i = 0; i < leaves; i++)
            values[i] = ldexp(rng_normal(rng_key(3, "tree"), (uint64_t)i), (int)(i * 7 % 40));
        const double whole = tree_sum(values, leaves);
        for (int world = 1; world <= WORLD_MAX; world++) {
            double v[33];
            struct tree_stack all = {.leaves = leaves};
            int64_t from, to, next = 0;
            memcpy(v, values, sizeof v);
            for (int r = 0; r < world; r++) {
                struct tree_stack own = {.leaves = leaves};
                tree_share(leaves, world, r, &from, &to);
                assert_int_equal(from, next);
                next = to;
                for (int64_t i = from; i < to; i++)
                    tree_push(&own, (struct tree_node){0, i}, (int)i, add_values, v);
                for (int k = 0; k < own.depth; k++)
                    tree_push(&all, own.node[k], own.id[k], add_values, v);
            }
            assert_int_equal(next, leaves);
            assert_int_equal(all.depth, 1);
            assert_true(v[all.id[0]] == whole);
        }
    }
    assert_true(tree_sum(NULL, 0) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model),        cmocka_unit_test(test_fused_matrices),
        cmocka_unit_test(test_pieces_cover), cmocka_unit_test(test_init_is_the_same),
        cmocka_unit_test(test_blocks),       cmocka_unit_test(test_mesh),
        cmocka_unit_test(test_tree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
