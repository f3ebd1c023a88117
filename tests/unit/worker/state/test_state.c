/* SPDX-License-Identifier: Apache-2.0 */
/* state.h: what a rank holds is its part of the initial values; a checkpoint of one mesh is the state of any other, bit
 * for bit; updates get the right memory. TITAN_TEST_SEED repeats a run. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/bf16.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "tests/support/memory_device.h"
#include "tests/support/random_layout.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/load_state.h"
#include "worker/optim/update.h"
#include "worker/program/program.h"
#include "worker/state/state.h"

#define WORLD_MAX 16
#define ROUNDS 25

static struct train_state *open_state(struct layout *l, int rank, enum dtype dt, bool offload)
{
    struct train_state *s = NULL;
    assert_int_equal(state_open(&memory_device, l, rank, dt, offload, &s, NULL), TITAN_OK);
    return s;
}

/* The layout belongs to others. */
static void close_state(struct train_state *s)
{
    s->layout = NULL;
    state_close(s);
}

/* Every piece has the values of its place, and what is no piece is zero. */
static void check_state(const struct train_state *s,
                        float (*value)(const struct model *m, const struct piece *p, int64_t i))
{
    const size_t n = (size_t)state_snapshot_size(s->layout, s->rank);
    float *host = calloc(n + 1, sizeof *host);
    struct piece *pieces = NULL;
    int n_pieces;
    assert_int_equal(state_snapshot(s, host, NULL, NULL), TITAN_OK);
    assert_int_equal(layout_pieces(s->layout, s->rank, host, host + 3 * s->total, NULL, NULL, &pieces, &n_pieces, NULL),
                     TITAN_OK);
    for (int p = 0; p < n_pieces; p++)
        for (int64_t i = 0; i < pieces[p].rows * pieces[p].cols; i++) {
            const float want = value(s->layout->model, &pieces[p], i);
            if (memcmp(&pieces[p].data[i], &want, sizeof want) != 0)
                fail_msg("%s: rank %d: %g in place of %g in spec %d", layout_text(s->layout), s->rank,
                         (double)pieces[p].data[i], (double)want, pieces[p].tensor);
            pieces[p].data[i] = 0;
        }
    for (size_t i = 0; i < n; i++)
        assert_true(host[i] == 0);
    free(pieces);
    free(host);
}

/* --- initial values ----------------------------------------------------------------------------------------------- */

#define INIT_SEED 3

static float initial(const struct model *m, const struct piece *p, int64_t i)
{
    float x = 0;
    if (p->tensor < m->n_tensors) {
        const struct model_tensor *t = &m->tensors[p->tensor];
        const int64_t width = t->ndim == 2 ? t->shape[1] : t->numel;
        model_init_tensor(m, INIT_SEED, p->tensor, (p->row + i / p->cols) * width + p->col + i % p->cols, 1, &x);
    }
    return x;
}

/* The shadow is what a program gathers, unit by unit. */
static void check_shadow(const struct train_state *s)
{
    for (int u = 0; u < s->layout->model->n_units; u++) {
        const struct unit_layout *ul = &s->layout->units[u];
        if (ul->pp_rank != mesh_group_rank(&s->layout->mesh, GROUP_PP, s->rank))
            continue;
        const struct buffer shard = {.kind = BUF_SHARD, .unit = u};
        const struct buffer state = {.kind = s->offload ? BUF_STATE_HOST : BUF_STATE, .unit = u};
        const float *master = state_bind(s, &state);
        const void *shadow = state_bind(s, &shard);
        assert_ptr_equal(master, s->values + 3 * ul->offset);
        for (int64_t i = 0; i < ul->shard; i++)
            if (s->dt == DTYPE_F32)
                assert_true(((const float *)shadow)[i] == master[i]);
            else
                assert_int_equal(((const uint16_t *)shadow)[i], bf16_from_f32(master[i]));
        assert_true((shadow == (const void *)master) == (s->dt == DTYPE_F32 && !s->offload));
    }
}

static void test_init(void **state)
{
    (void)state;
    unsigned seed = random_seed();
    for (int round = 0; round < ROUNDS; round++) {
        struct model *m = random_model(&seed);
        struct layout *l = random_layout(&seed, m, WORLD_MAX);
        for (int rank = 0; rank < l->mesh.world; rank++) {
            struct train_state *s =
                open_state(l, rank, random_below(&seed, 2) ? DTYPE_F32 : DTYPE_BF16, random_below(&seed, 2));
            assert_int_equal(state_init(s, INIT_SEED, NULL, NULL), TITAN_OK);
            check_state(s, initial);
            check_shadow(s);
            close_state(s);
        }
        layout_close(l);
        model_close(m);
    }
}

/* --- checkpoints -------------------------------------------------------------------------------------------------- */

static float trained(const struct model *m, const struct piece *p, int64_t i)
{
    (void)m;
    return (float)(p->tensor * 7919 + 1) + (float)((p->row + i / p->cols) * 131 + p->col + i % p->cols) / 1024;
}

/* A rank's part of a checkpoint, as its writer would write it. */
static void write_rank(const struct layout *l, int rank, const char *dir, const struct checkpoint_info *info,
                       struct buf *entry)
{
    float *host = calloc((size_t)state_snapshot_size(l, rank) + 1, sizeof *host);
    struct tensor_spec *specs = NULL;
    struct piece *pieces = NULL;
    struct titan_error err = {0};
    int n_specs, n;
    assert_int_equal(layout_specs(l->model, &specs, &n_specs, NULL), TITAN_OK);
    assert_int_equal(layout_owned_pieces(l, rank, host, host + 3 * layout_total(l, rank), &pieces, &n, NULL), TITAN_OK);
    for (int p = 0; p < n; p++)
        for (int64_t i = 0; i < pieces[p].rows * pieces[p].cols; i++)
            pieces[p].data[i] = trained(l->model, &pieces[p], i);
    if (checkpoint_write_shard(-1, dir, info, rank, specs, n_specs, pieces, n, entry, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    free(pieces);
    free(specs);
    free(host);
}

static void write_all(const struct layout *l, const char *dir, char path[PATH_MAX])
{
    struct checkpoint_info info = {
        .step = 20, .epoch = 2, .tokens = 77, .world = l->mesh.world, .recipe_hash = 5, .skipped_steps = 1};
    struct buf entries[WORLD_MAX] = {0};
    struct tensor_spec *specs = NULL;
    struct titan_error err = {0};
    int n_specs;
    assert_int_equal(layout_specs(l->model, &specs, &n_specs, NULL), TITAN_OK);
    for (int rank = 0; rank < l->mesh.world; rank++)
        write_rank(l, rank, dir, &info, &entries[rank]);
    if (checkpoint_commit(-1, dir, &info, specs, n_specs, entries, l->mesh.world, path, &err) != TITAN_OK)
        fail_msg("%s: %s", layout_text(l), err.msg);
    for (int rank = 0; rank < l->mesh.world; rank++)
        buf_free(&entries[rank]);
    free(specs);
}

static void test_checkpoint_of_any_mesh(void **state)
{
    (void)state;
    unsigned seed = random_seed();
    char dir[] = "/tmp/titan-state-XXXXXX", path[PATH_MAX];
    assert_non_null(mkdtemp(dir));
    for (int round = 0; round < 8; round++) {
        struct model *m = random_model(&seed);
        struct layout *from = random_layout(&seed, m, WORLD_MAX), *to = random_layout(&seed, m, WORLD_MAX);
        write_all(from, dir, path);
        for (int rank = 0; rank < to->mesh.world; rank++) {
            struct titan_error err = {0};
            struct train_state *s = open_state(to, rank, DTYPE_BF16, false);
            struct load_source source = {.path = path, .recipe_hash = 6};
            const struct recipe recipe = {.training.steps = 100};
            if (load_state(s, &source, &recipe, 0, NULL, NULL, &err) != TITAN_ECONFLICT)
                fail_msg("%s", err.msg);
            source.recipe_hash = 5;
            if (load_state(s, &source, &recipe, 0, NULL, NULL, &err) != TITAN_OK)
                fail_msg("%s: %s", layout_text(from), err.msg);
            assert_true(s->step == 20 && s->tokens == 77 && s->skipped == 1);
            check_state(s, trained);
            check_shadow(s);
            close_state(s);
        }
        layout_close(from);
        layout_close(to);
        model_close(m);
    }
    assert_int_equal(dir_remove(dir, NULL), TITAN_OK);
}

/* --- updates ------------------------------------------------------------------------------------------------------ */

static struct {
    float *master, *m, *v;
    const float *grad;
    uint16_t *shadow;
    size_t n;
} updated;

static titan_status note_adamw(struct stream *s, float *master, float *m, float *v, const float *grad, uint16_t *shadow,
                               size_t n, const struct adamw_args *args)
{
    (void)s;
    (void)args;
    updated.master = master;
    updated.m = m;
    updated.v = v;
    updated.grad = grad;
    updated.shadow = shadow;
    updated.n = n;
    for (size_t i = 0; i < n; i++)
        master[i] += grad[i];
    return TITAN_OK;
}

static titan_status note_sgd(struct stream *s, float *master, const float *grad, uint16_t *shadow, size_t n,
                             const struct adamw_args *args)
{
    return note_adamw(s, master, NULL, NULL, grad, shadow, n, args);
}

static void test_update(void **state)
{
    (void)state;
    struct device_ops ops = *memory_device.ops;
    const struct device_handle device = {.ops = &ops, .info = memory_device.info};
    const struct update adamw = {0}, sgd = {.sgd = true};
    unsigned seed = 1;
    struct model *m = random_model(&seed);
    const struct layout_options o = {.model = m, .mesh = {.world = 1, .size = {1, 1, 1, 1, 1}, .ep = 1}};
    ops.adamw = note_adamw;
    ops.sgd = note_sgd;
    for (int mode = 0; mode < 4; mode++) {
        const enum dtype dt = mode & 1 ? DTYPE_BF16 : DTYPE_F32;
        const bool offload = mode & 2;
        struct layout *l = NULL;
        struct train_state *s = NULL;
        assert_int_equal(layout_open(&o, &l, NULL), TITAN_OK);
        assert_int_equal(state_open(&device, l, 0, dt, offload, &s, NULL), TITAN_OK);
        const struct buffer shard = {.kind = BUF_SHARD, .unit = 1};
        const int64_t n = l->units[1].shard;
        float *grad = calloc((size_t)n, sizeof *grad), *staged = calloc((size_t)(3 * n), sizeof *staged);
        float *const values = s->values + 3 * l->units[1].offset;
        grad[n - 1] = 2;
        assert_int_equal(
            update_apply(&adamw, &ops, offload ? staged : values, state_bind(s, &shard), dt, grad, n, NULL), TITAN_OK);
        float *const master = offload ? staged : values;
        assert_true(updated.master == master && updated.m == master + n && updated.v == master + 2 * n);
        assert_true(updated.n == (size_t)n && updated.grad == grad);
        assert_ptr_equal(updated.shadow, dt == DTYPE_BF16 ? state_bind(s, &shard) : NULL);
        if (dt == DTYPE_F32)
            assert_true(((float *)state_bind(s, &shard))[n - 1] == 2);
        assert_int_equal(update_apply(&sgd, &ops, offload ? staged : values, state_bind(s, &shard), dt, grad, n, NULL),
                         TITAN_OK);
        assert_true(updated.master == master && updated.m == NULL);
        free(grad);
        free(staged);
        state_close(s);
    }
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_init),
        cmocka_unit_test(test_checkpoint_of_any_mesh),
        cmocka_unit_test(test_update),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
