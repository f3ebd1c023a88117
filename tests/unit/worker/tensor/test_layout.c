/* SPDX-License-Identifier: Apache-2.0 */
/* model.h, layout.h, mesh.h, tree.h: every element of every tensor has one owner on every mesh and lies where the cuts
 * say, initial values do not depend on the cut, sums in the tree do not depend on which rank adds. TITAN_TEST_SEED
 * repeats a run. */
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
#include "tests/support/random_layout.h"
#include "worker/tensor/tree.h"

#define WORLD_MAX 24
#define ROUNDS 60

static struct recipe debug_recipe(void)
{
    struct recipe r;
    struct titan_error err = {0};
    recipe_init(&r);
    assert_int_equal(recipe_set(&r, "model.flavor=debugmodel", &err), TITAN_OK);
    assert_int_equal(recipe_set(&r, "training.dataset_path=/", &err), TITAN_OK);
    if (recipe_resolve(&r, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    return r;
}

static struct model *open_model(const struct model_dims *dims)
{
    struct model *m = NULL;
    struct titan_error err = {0};
    if (model_open(dims, &m, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    return m;
}

static void test_model(void **state)
{
    (void)state;
    const struct recipe r = debug_recipe();
    struct titan_error err = {0};
    struct model *m = open_model(&r.model.dims), *none = NULL;
    int64_t n = 0;
    for (int i = 0; i < m->n_tensors; i++)
        n += m->tensors[i].numel;
    assert_int_equal(n, 6163712); /* TorchTitan's debugmodel */
    assert_int_equal(n, recipe_params(&r));
    assert_int_equal(m->n_units, 8);
    assert_string_equal(m->tensors[1].name, "layers.0.attention_norm.weight");
    model_close(m);

    struct model_dims bad = r.model.dims;
    bad.n_kv_heads = 3;
    assert_int_equal(model_open(&bad, &none, &err), TITAN_EINVAL);
    bad = r.model.dims;
    bad.head_dim = 5;
    assert_int_equal(model_open(&bad, &none, &err), TITAN_EINVAL);
}

static void test_init_is_the_same(void **state)
{
    (void)state;
    const struct recipe r = debug_recipe();
    struct model *m = open_model(&r.model.dims);
    for (int t = 0; t < m->n_tensors; t++) {
        const int64_t n = m->tensors[t].numel, step = n / 5 + 1;
        float *whole = calloc((size_t)n, sizeof *whole), *part = calloc((size_t)n, sizeof *part);
        model_init_tensor(m, 7, t, 0, n, whole);
        for (int64_t at = 0; at < n; at += step)
            model_init_tensor(m, 7, t, at, MIN(step, n - at), part + at);
        assert_memory_equal(whole, part, (size_t)n * sizeof *whole);
        free(whole);
        free(part);
    }
    /* The head is cut at three deviations, and some of its elements had to be drawn again. */
    const int output = model_find(m, m->n_units - 1, ROLE_OUTPUT);
    const struct model_tensor *head = &m->tensors[output];
    float *values = calloc((size_t)head->numel, sizeof *values);
    const struct rng_key key = rng_key(7, "output.weight");
    int redrawn = 0;
    model_init_tensor(m, 7, output, 0, head->numel, values);
    for (int64_t i = 0; i < head->numel; i++) {
        assert_true(fabsf(values[i]) <= 3 * head->std);
        redrawn += values[i] != head->std * rng_normal(key, (uint64_t)i);
    }
    assert_true(redrawn > 0 && redrawn < head->numel / 100);
    free(values);
    model_close(m);
}

/* --- meshes ------------------------------------------------------------------------------------------------------- */

/* Do two ranks belong to one group? From the definition, coordinate by coordinate. */
static bool together(const struct mesh *m, enum group group, int x, int y)
{
    static const unsigned axes[GROUP_COUNT] = {
        [GROUP_WORLD] = 31,
        [GROUP_PP] = 1u << AXIS_PP,
        [GROUP_REPLICATE] = 1u << AXIS_DP_REPLICATE,
        [GROUP_FSDP] = 1u << AXIS_DP_SHARD | 1u << AXIS_CP,
        [GROUP_CP] = 1u << AXIS_CP,
        [GROUP_TP] = 1u << AXIS_TP,
        [GROUP_OWNERS] = 1u << AXIS_DP_SHARD | 1u << AXIS_CP | 1u << AXIS_TP,
        [GROUP_ROTATE] = 1u << AXIS_DP_SHARD,
    };
    int a[AXIS_COUNT], b[AXIS_COUNT];
    const int cut = m->cut_experts ? m->size[AXIS_TP] : 1, experts = m->ep * cut;
    if (group == GROUP_EP)
        return x / experts == y / experts && x % cut == y % cut;
    if (m->rotate && group == GROUP_EXPERT_SHARD)
        return together(m, GROUP_CP, x, y);
    if (group == GROUP_ROTATE && !m->rotate)
        return x == y;
    if (group == GROUP_EXPERT_SHARD) {
        const int replica = m->size[AXIS_DP_SHARD] * m->size[AXIS_CP] * m->size[AXIS_TP];
        return x / replica == y / replica && x % experts == y % experts;
    }
    mesh_coords(m, x, a);
    mesh_coords(m, y, b);
    for (int i = 0; i < AXIS_COUNT; i++)
        if (a[i] != b[i] && !(axes[group] >> i & 1))
            return false;
    return true;
}

static void test_groups(void **state)
{
    (void)state;
    unsigned seed = random_seed();
    for (int round = 0; round < ROUNDS; round++) {
        struct mesh m = random_mesh(&seed, WORLD_MAX);
        m.rotate = m.size[AXIS_TP] == 1 && m.ep == 1 && random_below(&seed, 2);
        for (int rank = 0; rank < m.world; rank++) {
            int at[AXIS_COUNT];
            mesh_coords(&m, rank, at);
            assert_int_equal(mesh_rank(&m, at), rank);
            for (enum group g = 0; g < GROUP_COUNT; g++) {
                int members[WORLD_MAX], n = 0;
                assert_true(mesh_group_size(&m, g) <= WORLD_MAX);
                mesh_group_members(&m, g, rank, members);
                for (int other = 0; other < m.world; other++)
                    if (together(&m, g, rank, other)) {
                        assert_int_equal(members[n], other);
                        if (other == rank)
                            assert_int_equal(mesh_group_rank(&m, g, rank), n);
                        n++;
                    }
                assert_int_equal(n, mesh_group_size(&m, g));
            }
        }
    }
}

static void test_mesh_of_recipe(void **state)
{
    (void)state;
    struct recipe r = debug_recipe();
    struct mesh mesh;
    struct titan_error err = {0};
    assert_int_equal(mesh_build(&r, 6, &mesh, &err), TITAN_OK);
    assert_int_equal(mesh.size[AXIS_DP_SHARD], 6);
    r.parallelism.data_parallel_shard_degree = 4;
    assert_int_equal(mesh_build(&r, 6, &mesh, &err), TITAN_EINVAL);
    r.parallelism.data_parallel_shard_degree = -1;
    r.parallelism.tensor_parallel_degree = 2;
    assert_int_equal(mesh_build(&r, 6, &mesh, &err), TITAN_OK);
    assert_int_equal(mesh.size[AXIS_DP_SHARD], 3);
    assert_int_equal(mesh.size[AXIS_TP], 2);
    assert_false(mesh.rotate);
    r.parallelism.tensor_parallel_degree = 1;
    assert_int_equal(recipe_set(&r, "parallelism.rotate=in_place", &err), TITAN_OK);
    assert_int_equal(mesh_build(&r, 6, &mesh, &err), TITAN_OK);
    assert_true(mesh.rotate);
    assert_int_equal(mesh_build(&r, 1, &mesh, &err), TITAN_OK);
    assert_false(mesh.rotate); /* a rank alone has all parts */
}

/* --- layouts ------------------------------------------------------------------------------------------------------ */

/* An element of a global tensor. */
struct element {
    int tensor; /* -1: a gap */
    int64_t row, col;
};

/* A unit's flat buffer on one of its parts, element by element. The offsets are taken from the layout. */
static struct element *flat_buffer(const struct layout *l, int unit, int part)
{
    const struct unit_layout *u = &l->units[unit];
    const struct model_unit *mu = &l->model->units[unit];
    struct element *flat = calloc((size_t)u->padded, sizeof *flat);
    for (int64_t i = 0; i < u->padded; i++)
        flat[i].tensor = -1;
    for (int t = mu->first_tensor; t < mu->first_tensor + mu->n_tensors; t++) {
        const struct model_tensor *mt = &l->model->tensors[t];
        const struct local_tensor *lt = &l->tensors[t];
        assert_true((lt->offset >= u->whole) == (mt->split == SPLIT_NONE));
        for (int64_t i = 0; i < lt->rows * lt->cols; i++) {
            struct element *e = &flat[lt->offset + i];
            assert_int_equal(e->tensor, -1); /* nothing else is there */
            e->tensor = t;
            e->row = i / lt->cols;
            e->col = i % lt->cols;
            const int cut = mt->experts > 0 && l->mesh.cut_experts ? l->mesh.size[AXIS_TP] : 1;
            if (cut > 1 && mt->role == ROLE_W2) {
                e->row += part / cut * lt->rows;
                e->col += part % cut * lt->cols;
            } else if (cut > 1) { /* of each expert the part's share of its rows */
                const int64_t rows = mt->shape[0] / mt->experts, mine = rows / cut;
                const int64_t expert = part / cut * (lt->rows / mine) + e->row / mine;
                e->row = expert * rows + part % cut * mine + e->row % mine;
            } else if (mt->split == SPLIT_COLS)
                e->col += part * lt->cols;
            else if (mt->split != SPLIT_NONE)
                e->row += part * lt->rows;
        }
    }
    return flat;
}

static int64_t grain_of(const struct layout *l)
{
    return l->coded ? MOMENT_BLOCK : MODEL_ALIGN;
}

static void check_places(const struct layout *l, int unit)
{
    const struct unit_layout *u = &l->units[unit];
    const struct model_unit *mu = &l->model->units[unit];
    for (int t = mu->first_tensor; t < mu->first_tensor + mu->n_tensors; t++) {
        const struct local_tensor *lt = &l->tensors[t];
        const struct local_tensor *before = lt - 1;
        if (l->model->tensors[t].glued)
            assert_int_equal(lt->offset, before->offset + before->rows * before->cols);
        else
            assert_int_equal(lt->offset % grain_of(l), 0);
        assert_true(lt->offset + lt->rows * lt->cols <= u->numel);
    }
    assert_int_equal(u->whole % u->block, 0);
    assert_int_equal(u->shard % (l->canonical ? u->block : grain_of(l)), 0);
    assert_int_equal(u->shard % grain_of(l), 0);
    assert_true(u->block >= 1 && u->block <= l->block && (mu->kind == UNIT_EXPERTS || u->block == l->block));
    for (int t = mu->first_tensor; t < mu->first_tensor + mu->n_tensors && mu->kind == UNIT_EXPERTS; t++) {
        assert_int_equal(layout_expert_numel(l, t) % u->block, 0); /* an expert's matrix has blocks of its own */
        if (l->canonical)
            assert_int_equal(l->tensors[t].offset % u->block, 0);
    }
    assert_int_equal(u->padded, u->shard * mesh_group_size(&l->mesh, u->group));
    assert_true(u->padded >= u->numel);
}

/* Each element of a unit is in the blocks of one tensor, which begin with it, and kinds begin with blocks. */
static void check_blocks(const struct layout *l, int unit)
{
    const struct model_unit *mu = &l->model->units[unit];
    const struct unit_layout *u = &l->units[unit];
    int64_t covered = 0, elements = 0;
    for (int t = mu->first_tensor; t < mu->first_tensor + mu->n_tensors; t++) {
        const struct local_tensor *lt = &l->tensors[t];
        const int64_t end = layout_blocks_end(l, t);
        elements += lt->rows * lt->cols;
        assert_int_equal(end > 0, lt->offset % MOMENT_BLOCK == 0);
        assert_true(end == 0 || end >= lt->offset + lt->rows * lt->cols);
        covered += end > 0 ? end - lt->offset : 0;
        for (int other = mu->first_tensor; other < mu->first_tensor + mu->n_tensors; other++)
            assert_true(end == 0 || l->tensors[other].offset < end || l->tensors[other].offset % MOMENT_BLOCK != 0 ||
                        l->tensors[other].offset >= (end + MOMENT_BLOCK - 1) / MOMENT_BLOCK * MOMENT_BLOCK);
    }
    assert_int_equal(covered, elements);
    assert_true(layout_unit_kept(l, unit) % CODED_UNIT == 0 && u->kept % CODED_UNIT == 0);
}

/* What the boxes of one rank say about each element of its state. */
static struct element *state_elements(const struct layout *l, int rank, int64_t *ret_n)
{
    const int64_t n = layout_state(l, rank);
    struct element *of = calloc((size_t)n + 1, sizeof *of);
    float *values = calloc((size_t)n + 1, sizeof *values), *biases = calloc((size_t)layout_biases(l->model) + 1, 4);
    struct shard_slice *slices = NULL;
    int n_slices;
    for (int64_t i = 0; i < n; i++)
        of[i].tensor = -1;
    assert_int_equal(layout_slices(l, rank, values, biases, NULL, NULL, &slices, &n_slices, NULL), TITAN_OK);
    for (int p = 0; p < n_slices; p++) {
        const struct shard_slice *x = &slices[p];
        assert_true(p == 0 || slices[p - 1].tensor <= x->tensor);
        if (layout_spec_is_bias(l, x->tensor))
            continue;
        for (int64_t i = 0; i < x->rows * x->cols; i++) {
            const int64_t at = x->data - values + i;
            assert_true(at >= 0 && at < n);
            assert_int_equal(of[at].tensor, -1);
            of[at] = (struct element){x->tensor, x->row + i / x->cols, x->col + i % x->cols};
        }
    }
    free(values);
    free(biases);
    free(slices);
    *ret_n = n;
    return of;
}

/* The spec of a tensor's kind of state; kind 0: of its masters. */
static int spec_of(const struct layout *l, int kind, int tensor)
{
    for (int i = 0; i < l->n_specs; i++)
        if (l->specs[i].kind == kind && l->specs[i].tensor == tensor)
            return i;
    return -1;
}

/* The tensor of a unit that an element of its flat buffer belongs to, or comes behind. */
static int tensor_before(const struct layout *l, int unit, int64_t element)
{
    const struct model_unit *mu = &l->model->units[unit];
    int best = -1;
    for (int t = mu->first_tensor; t < mu->first_tensor + mu->n_tensors; t++)
        if (l->tensors[t].offset <= element && (best < 0 || l->tensors[t].offset > l->tensors[best].offset))
            best = t;
    return best;
}

/* Each rank's state is its ranges of its stages' units: the masters, then each kind of the tensors that have it. */
static void check_rank(const struct layout *l, int rank)
{
    int64_t n, at = 0;
    int coords[AXIS_COUNT];
    struct element *of = state_elements(l, rank, &n);
    mesh_coords(&l->mesh, rank, coords);
    for (int u = 0; u < l->model->n_units; u++) {
        const struct unit_layout *ul = &l->units[u];
        if (ul->pp_rank != coords[AXIS_PP])
            continue;
        const bool experts = l->model->units[u].kind == UNIT_EXPERTS;
        const bool rotates = l->mesh.rotate && l->model->units[u].kind == UNIT_LAYER;
        const int part = experts ? rank % layout_unit_parts(l, u) : rotates ? coords[AXIS_DP_SHARD] : coords[AXIS_TP];
        struct element *flat = flat_buffer(l, u, part);
        assert_int_equal(ul->group, experts || rotates ? GROUP_EXPERT_SHARD : GROUP_FSDP);
        const int64_t begin = ul->shard * mesh_group_rank(&l->mesh, ul->group, rank);
        assert_int_equal(ul->offset + ul->kept, at);
        for (int kind = 0; kind <= l->kinds.n; kind++) {
            if (kind > 0 && l->kinds.owned >> (kind - 1) & 1) { /* owners keep it */
                assert_int_equal(ul->span[kind - 1], 0);
                continue;
            }
            const int64_t span = kind == 0 ? ul->shard : ul->span[kind - 1];
            int64_t place = 0;
            assert_true(span % grain_of(l) == 0);
            assert_true(span <= ul->shard || (l->coded && kind == l->kinds.n && span < ul->shard + CODED_UNIT));
            for (int64_t i = 0; i < ul->shard; i++) {
                const struct element *want = &flat[begin + i];
                const int before = tensor_before(l, u, begin + i);
                if (kind > 0 && (begin + i >= ul->numel || !(layout_kinds(l, before) >> (kind - 1) & 1))) {
                    assert_true(want->tensor < 0 || spec_of(l, kind, want->tensor) < 0);
                    place += span >= ul->shard; /* all tensors have it: it lies as the masters do */
                    continue;
                }
                const int tensor = want->tensor < 0 ? -1 : spec_of(l, kind, want->tensor);
                const struct element *is = &of[at + place++];
                if (is->tensor != tensor || (tensor >= 0 && (is->row != want->row || is->col != want->col)))
                    fail_msg("%s: rank %d, unit %d, kind %d, element %ld is %d (%ld,%ld), should be %d (%ld,%ld)",
                             layout_text(l), rank, u, kind, (long)i, is->tensor, (long)is->row, (long)is->col, tensor,
                             (long)want->row, (long)want->col);
            }
            assert_true(place <= span);
            for (; place < span; place++)
                assert_int_equal(of[at + place].tensor, -1);
            at += span;
        }
        free(flat);
    }
    for (const int64_t end = at + layout_owned(l, rank); at < end; at++)
        assert_true(of[at].tensor < 0 || l->kinds.owned >> (l->specs[of[at].tensor].kind - 1) & 1);
    assert_int_equal(at, n);
    free(of);
}

/* Count how often each element of each spec is answered for. */
static void check_owners(const struct layout *l)
{
    struct tensor_spec *specs = NULL;
    int n_specs;
    assert_int_equal(layout_specs(l, &specs, &n_specs, NULL), TITAN_OK);
    unsigned char **owned = calloc((size_t)n_specs, sizeof *owned);
    for (int i = 0; i < n_specs; i++)
        owned[i] = calloc((size_t)specs[i].numel, 1);
    for (int rank = 0; rank < l->mesh.world; rank++) {
        struct shard_slice *slices = NULL;
        int n;
        assert_int_equal(layout_owned_slices(l, rank, NULL, NULL, &slices, &n, NULL), TITAN_OK);
        for (int p = 0; p < n; p++) {
            int64_t rows, cols;
            shard_slice_matrix(&specs[slices[p].tensor], &rows, &cols);
            for (int64_t i = 0; i < slices[p].rows * slices[p].cols; i++)
                owned[slices[p].tensor]
                     [(slices[p].row + i / slices[p].cols) * cols + slices[p].col + i % slices[p].cols]++;
        }
        free(slices);
    }
    for (int i = 0; i < n_specs; i++) {
        for (int64_t e = 0; e < specs[i].numel; e++)
            if (owned[i][e] != 1)
                fail_msg("%s: element %ld of %s has %d owners", layout_text(l), (long)e, specs[i].name, owned[i][e]);
        free(owned[i]);
    }
    free(owned);
    free(specs);
}

/* Every element of the model is counted once, and in canonical mode only blocks are. */
static void check_counted(const struct layout *l, int unit)
{
    const struct unit_layout *u = &l->units[unit];
    const int parts = layout_unit_parts(l, unit);
    int *seen = calloc((size_t)(u->padded * parts), sizeof *seen);
    for (int rank = 0; rank < l->mesh.world; rank++) {
        const int64_t n = layout_counted(l, unit, rank);
        const int part = layout_unit_part(l, unit, rank);
        assert_true(n >= 0 && n <= u->shard);
        if (l->canonical)
            assert_int_equal(n % u->block, 0);
        for (int64_t i = 0; i < n; i++)
            seen[part * u->padded + layout_begin(l, unit, rank) + i]++;
    }
    for (int part = 0; part < parts; part++) {
        struct element *flat = flat_buffer(l, unit, part);
        for (int64_t i = 0; i < u->padded; i++) {
            const int n = seen[part * u->padded + i];
            assert_true(n <= 1);
            if (flat[i].tensor >= 0)
                assert_int_equal(n, part == 0 || l->model->tensors[flat[i].tensor].split != SPLIT_NONE);
            if (n > 0)
                assert_true(i < layout_unit_blocks(l, unit) * u->block);
        }
        free(flat);
    }
    free(seen);
}

static void check_stages(const struct layout *l)
{
    const int pp = l->mesh.size[AXIS_PP];
    assert_int_equal(l->first_unit[0], 0);
    assert_int_equal(l->first_unit[l->stages], l->model->n_units);
    for (int s = 0; s < l->stages; s++) {
        assert_true(l->first_unit[s] <= l->first_unit[s + 1]);
        const int r = layout_stage_rank(l, s), next = layout_stage_rank(l, (s + 1) % l->stages);
        if (l->v_order && s + 1 < l->stages) /* a V: neighbours, or the same rank where it turns */
            assert_true(abs(next - r) <= 1 && (next != r || (s + 1) % pp == 0));
        else if (!l->v_order)
            assert_int_equal(next, (r + 1) % pp);
        for (int u = l->first_unit[s]; u < l->first_unit[s + 1]; u++) {
            assert_int_equal(l->units[u].stage, s);
            assert_int_equal(l->units[u].pp_rank, r);
        }
    }
}

static void test_random_layouts(void **state)
{
    (void)state;
    unsigned seed = random_seed();
    for (int round = 0; round < ROUNDS; round++) {
        struct model *m = random_model(&seed);
        struct layout *l = round % 2 ? random_coded_layout(&seed, m, WORLD_MAX) : random_layout(&seed, m, WORLD_MAX);
        check_stages(l);
        for (int u = 0; u < m->n_units; u++) {
            check_places(l, u);
            check_counted(l, u);
            if (l->coded)
                check_blocks(l, u);
        }
        for (int rank = 0; rank < l->mesh.world; rank++)
            check_rank(l, rank);
        check_owners(l);
        layout_close(l);
        model_close(m);
    }
}

/* wq|wk|wv and w1|w3 stay one matrix for tensor parallelism: each rank's rows of all of them are one block. */
/* Experts that are cut over tp, too: as the definition says, each element held and answered for. */
static void test_cut_experts(void **state)
{
    static const struct model_dims dims = {.dim = 24,
                                           .n_layers = 2,
                                           .n_heads = 4,
                                           .n_kv_heads = 4,
                                           .ffn_hidden = 40,
                                           .vocab_size = 64,
                                           .rope_theta = 1e4,
                                           .norm_eps = 1e-5,
                                           .n_experts = 4,
                                           .top_k = 2,
                                           .moe_hidden = 12,
                                           .route_scale = 1.0,
                                           .balance_rate = 1e-3};
    static const struct {
        int replicate, shard, cp, tp, ep;
    } c[] = {{1, 1, 1, 2, 1}, {1, 2, 1, 2, 2}, {2, 2, 1, 2, 1}, {1, 2, 2, 2, 4}, {1, 3, 1, 4, 1}, {1, 2, 2, 4, 2}};
    struct model *m = open_model(&dims);
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(c); i++) {
        const struct layout_options o = {.model = m,
                                         .mesh = {.world = c[i].replicate * c[i].shard * c[i].cp * c[i].tp,
                                                  .size = {1, c[i].replicate, c[i].shard, c[i].cp, c[i].tp},
                                                  .ep = c[i].ep,
                                                  .cut_experts = true}};
        struct layout *l = NULL;
        assert_int_equal(layout_open(&o, &l, NULL), TITAN_OK);
        for (int group = 0; group < GROUP_COUNT; group++)
            for (int x = 0; x < o.mesh.world; x++) {
                int members[64], n = 0;
                mesh_group_members(&o.mesh, (enum group)group, x, members);
                for (int y = 0; y < o.mesh.world; y++)
                    if (together(&o.mesh, (enum group)group, x, y))
                        assert_int_equal(members[n++], y);
                assert_int_equal(n, mesh_group_size(&o.mesh, (enum group)group));
            }
        for (int u = 0; u < m->n_units; u++) {
            check_places(l, u);
            check_counted(l, u);
        }
        for (int rank = 0; rank < o.mesh.world; rank++)
            check_rank(l, rank);
        check_owners(l);
        layout_close(l);
    }
    model_close(m);
}

static void test_glued_under_tensor_parallelism(void **state)
{
    (void)state;
    const struct recipe r = debug_recipe();
    struct model *m = open_model(&r.model.dims);
    const struct layout_options o = {.model = m, .mesh = {.world = 4, .size = {1, 1, 2, 1, 2}, .ep = 1}};
    struct layout *l = NULL;
    assert_int_equal(layout_open(&o, &l, NULL), TITAN_OK);
    const struct local_tensor *q = &l->tensors[model_find(m, 1, ROLE_WQ)], *k = &l->tensors[model_find(m, 1, ROLE_WK)];
    const struct local_tensor *w2 = &l->tensors[model_find(m, 1, ROLE_W2)];
    assert_int_equal(q->rows, m->tensors[model_find(m, 1, ROLE_WQ)].shape[0] / 2);
    assert_int_equal(k->offset, q->offset + q->rows * q->cols);
    assert_int_equal(w2->rows, r.model.dims.dim);
    assert_int_equal(w2->cols, r.model.dims.ffn_hidden / 2);
    int64_t row, col;
    layout_origin(l, model_find(m, 1, ROLE_W2), 3, 0, &row, &col);
    assert_int_equal(row, 0);
    assert_int_equal(col, w2->cols);
    layout_close(l);
    model_close(m);
}

static void test_refused(void **state)
{
    (void)state;
    const struct recipe r = debug_recipe();
    struct model_dims dims = r.model.dims;
    dims.vocab_size = 2047;
    struct model *m = open_model(&dims);
    const int first_layer[] = {0, 3, 6};
    struct layout_options o = {.model = m, .mesh = {.world = 2, .size = {1, 1, 1, 1, 2}, .ep = 1}};
    struct layout *l = NULL;
    struct titan_error err = {0};
    assert_int_equal(layout_open(&o, &l, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "'tok_embeddings.weight'"));
    model_close(m);

    dims.vocab_size = 2048;
    dims.tied_embeddings = true;
    o.model = m = open_model(&dims);
    o.mesh = (struct mesh){.world = 2, .size = {2, 1, 1, 1, 1}, .ep = 1};
    assert_int_equal(layout_open(&o, &l, &err), TITAN_EINVAL); /* it is not said which layers a stage has */
    o.first_layer = first_layer;
    assert_int_equal(layout_open(&o, &l, &err), TITAN_OK);
    assert_true(layout_tied_across_ranks(l));
    layout_close(l);
    const int four[] = {0, 1, 3, 5, 6};
    o.stages = 4;
    o.first_layer = four;
    o.v_order = true;
    assert_int_equal(layout_open(&o, &l, &err), TITAN_OK);
    assert_false(layout_tied_across_ranks(l)); /* both ends are on rank 0 */
    layout_close(l);
    o.stages = 3;
    assert_int_equal(layout_open(&o, &l, &err), TITAN_EINVAL);
    model_close(m);
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

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
        for (int world = 1; world <= 9; world++) {
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
        cmocka_unit_test(test_model),
        cmocka_unit_test(test_init_is_the_same),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_mesh_of_recipe),
        cmocka_unit_test(test_random_layouts),
        cmocka_unit_test(test_cut_experts),
        cmocka_unit_test(test_glued_under_tensor_parallelism),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_tree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
