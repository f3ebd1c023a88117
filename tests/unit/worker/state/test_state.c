/* SPDX-License-Identifier: Apache-2.0 */
/* state.h: what a rank holds is its part of the initial values; a checkpoint of one mesh is the state of any other, bit
 * for bit; updates get the right memory. TITAN_TEST_SEED repeats a run. */
#include <limits.h>
#include <math.h>
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
#include "tests/support/sets.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/load_state.h"
#include "worker/optim/update.h"
#include "worker/program/program.h"
#include "worker/state/state.h"

#define WORLD_MAX 16
#define ROUNDS 25

static const struct state_types all_types[] = {
    {DTYPE_F32, DTYPE_F32, DTYPE_F32},   {DTYPE_BF16, DTYPE_F32, DTYPE_F32},  {DTYPE_F32, DTYPE_F32, DTYPE_BF16},
    {DTYPE_BF16, DTYPE_F32, DTYPE_BF16}, {DTYPE_F32, DTYPE_BF16, DTYPE_BF16}, {DTYPE_BF16, DTYPE_BF16, DTYPE_BF16}};

/* On a device of the host's memory, or of its own. */
static struct train_state *open_state(struct layout *l, int rank, struct state_types types, bool offload)
{
    struct train_state *s = NULL;
    const struct device_handle *const device = rank % 2 == 0 ? &apart_device : &memory_device;
    const struct state_options options = {
        .device = device, .layout = l, .rank = rank, .types = types, .offload = offload};
    assert_int_equal(state_open(&options, &s, NULL), TITAN_OK);
    return s;
}

static float as_stored(float x, enum dtype type)
{
    return type == DTYPE_BF16 ? bf16_to_f32(bf16_from_f32(x)) : x;
}

static enum dtype type_of_spec(const struct train_state *s, int spec)
{
    return layout_spec_is_bias(s->layout, spec)   ? DTYPE_F32
           : layout_spec_is_kept(s->layout, spec) ? s->types.moment
                                                  : s->types.master;
}

/* The layout belongs to others. */
static void close_state(struct train_state *s)
{
    s->layout = NULL;
    state_close(s);
}

static float value_at(const void *x, enum dtype type, int64_t i)
{
    return type == DTYPE_BF16 ? bf16_to_f32(((const uint16_t *)x)[i]) : ((const float *)x)[i];
}

/* So has a copy in the state's own types. */
static void check_copy(const struct train_state *s, const struct shard_slice *slices, int n_slices,
                       float (*value)(const struct model *m, const struct shard_slice *p, int64_t i))
{
    const size_t bytes = state_copy_bytes(s->layout, s->rank, s->types);
    char *host = malloc(bytes + 1);
    size_t seen = 0;
    host[bytes] = 77;
    assert_int_equal(state_copy(s, host, 0, NULL, NULL), TITAN_OK);
    for (int p = 0; p < n_slices; p++) {
        const int64_t n = slices[p].rows * slices[p].cols;
        enum dtype type, own;
        const size_t at = state_copy_place(s->layout, s->rank, s->types, &slices[p], &type);
        assert_true(at + (size_t)n * dtype_bytes(type) <= bytes && at % dtype_bytes(type) == 0);
        assert_memory_equal(host + at, state_slice(s, &slices[p], &own), (size_t)n * dtype_bytes(type));
        assert_true(type == own && type == type_of_spec(s, slices[p].tensor));
        for (int64_t i = 0; i < n; i++)
            assert_true(value_at(host + at, type, i) == as_stored(value(s->layout->model, &slices[p], i), type));
        seen += (size_t)n * dtype_bytes(type);
    }
    assert_true(seen <= bytes && host[bytes] == 77);
    free(host);
}

/* Every slice has the values of its place, and what is no slice is zero. */
static void check_state(const struct train_state *s,
                        float (*value)(const struct model *m, const struct shard_slice *p, int64_t i))
{
    const size_t n = (size_t)state_snapshot_size(s->layout, s->rank);
    float *host = calloc(n + 1, sizeof *host);
    struct shard_slice *slices = NULL;
    int n_slices;
    assert_int_equal(state_snapshot(s, host, NULL, NULL), TITAN_OK);
    assert_int_equal(layout_slices(s->layout, s->rank, host, host + layout_state(s->layout, s->rank), NULL, NULL,
                                   &slices, &n_slices, NULL),
                     TITAN_OK);
    for (int p = 0; p < n_slices; p++)
        for (int64_t i = 0; i < slices[p].rows * slices[p].cols; i++) {
            const float want = as_stored(value(s->layout->model, &slices[p], i), type_of_spec(s, slices[p].tensor));
            if (memcmp(&slices[p].data[i], &want, sizeof want) != 0)
                fail_msg("%s: rank %d: %g in place of %g in spec %d", layout_text(s->layout), s->rank,
                         (double)slices[p].data[i], (double)want, slices[p].tensor);
            slices[p].data[i] = 0;
        }
    for (size_t i = 0; i < n; i++)
        assert_true(host[i] == 0);
    check_copy(s, slices, n_slices, value);
    free(slices);
    free(host);
}

/* --- initial values ----------------------------------------------------------------------------------------------- */

#define INIT_SEED 3

static float initial(const struct model *m, const struct shard_slice *p, int64_t i)
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
        const void *master = state_bind(s, &state), *shadow = state_bind(s, &shard);
        assert_ptr_equal(master, (char *)s->values + state_types_bytes(s->types, ul->offset, ul->kept));
        for (int64_t i = 0; i < ul->shard; i++)
            assert_true(value_at(shadow, s->types.compute, i) ==
                        as_stored(value_at(master, s->types.master, i), s->types.compute));
        assert_true((shadow == master) == (s->types.compute == s->types.master && !s->offload));
    }
}

static void test_init(void **state)
{
    (void)state;
    unsigned seed = random_seed();
    for (int round = 0; round < sliced(8, ROUNDS); round++) {
        struct model *m = random_model(&seed);
        struct layout *l = random_layout(&seed, m, WORLD_MAX);
        for (int rank = 0; rank < l->mesh.world; rank++) {
            struct train_state *s =
                open_state(l, rank, all_types[random_below(&seed, ARRAY_SIZE(all_types))], random_below(&seed, 2));
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

static float trained(const struct model *m, const struct shard_slice *p, int64_t i)
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
    struct shard_slice *slices = NULL;
    struct titan_error err = {0};
    int n_specs, n;
    assert_int_equal(layout_specs(l, &specs, &n_specs, NULL), TITAN_OK);
    assert_int_equal(layout_owned_slices(l, rank, host, host + layout_state(l, rank), &slices, &n, NULL), TITAN_OK);
    for (int p = 0; p < n; p++)
        for (int64_t i = 0; i < slices[p].rows * slices[p].cols; i++)
            slices[p].data[i] = trained(l->model, &slices[p], i);
    if (checkpoint_write_shard(-1, dir, info, &(struct checkpoint_part){specs, n_specs, slices, n, rank}, entry,
                               &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    free(slices);
    free(specs);
    free(host);
}

/* That the checkpoints are of; lr: another one. */
static const struct recipe *recipe_of_run(double lr)
{
    static struct recipe r;
    recipe_init(&r);
    r.training.steps = 100;
    r.optimizer.lr = lr;
    return &r;
}
#define LR 8e-4

static void write_all(const struct layout *l, const char *dir, char path[PATH_MAX])
{
    struct checkpoint_info info = {.step = 20,
                                   .epoch = 2,
                                   .tokens = 77,
                                   .world = l->mesh.world,
                                   .recipe_hash = recipe_hash(recipe_of_run(LR)),
                                   .skipped = {1, 1, 20, 20}};
    struct buf entries[WORLD_MAX] = {0};
    struct tensor_spec *specs = NULL;
    struct titan_error err = {0};
    int n_specs;
    assert_int_equal(layout_specs(l, &specs, &n_specs, NULL), TITAN_OK);
    for (int rank = 0; rank < l->mesh.world; rank++)
        write_rank(l, rank, dir, &info, &entries[rank]);
    if (checkpoint_commit(-1, dir, &info, &(struct checkpoint_parts){specs, n_specs, entries, l->mesh.world}, path,
                          &err) != TITAN_OK)
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
    for (int round = 0; round < sliced(3, 8); round++) {
        struct model *m = random_model(&seed);
        struct layout *from = random_layout(&seed, m, WORLD_MAX), *to = random_layout(&seed, m, WORLD_MAX);
        write_all(from, dir, path);
        for (int rank = 0; rank < to->mesh.world; rank++) {
            struct titan_error err = {0};
            struct train_state *s = open_state(to, rank, all_types[random_below(&seed, ARRAY_SIZE(all_types))], false);
            struct load_source source = {.path = path};
            if (load_state(s, &source, recipe_of_run(2 * LR), &(struct apart_limit){0, NULL}, NULL, &err) !=
                TITAN_ECONFLICT)
                fail_msg("%s", err.msg);
            if (load_state(s, &source, recipe_of_run(LR), &(struct apart_limit){0, NULL}, NULL, &err) != TITAN_OK)
                fail_msg("%s: %s", layout_text(from), err.msg);
            assert_true(s->step == 20 && s->tokens == 77 && s->skipped.total == 1 && s->skipped.in_a_row == 1 &&
                        s->skipped.last == 20);
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

/* --- blocks of codes ---------------------------------------------------------------------------------------------- */

static const struct state_types coded_types = {DTYPE_F32, DTYPE_F32, DTYPE_U8};

/* Values of many sizes, of masters and of kinds of state; squares have no sign. What is no slice is zero. */
static float *drawn_values(const struct layout *l, int rank, unsigned *seed, struct shard_slice **ret, int *ret_n)
{
    float *const host = calloc((size_t)state_snapshot_size(l, rank) + 1, sizeof *host);
    assert_int_equal(layout_slices(l, rank, host, host + layout_state(l, rank), NULL, NULL, ret, ret_n, NULL),
                     TITAN_OK);
    for (int p = 0; p < *ret_n; p++) {
        const int spec = (*ret)[p].tensor, kind = layout_spec_is_bias(l, spec) ? 0 : l->specs[spec].kind;
        const bool square = kind > 0 && l->kinds.squares >> (kind - 1) & 1;
        for (int64_t i = 0; i < (*ret)[p].rows * (*ret)[p].cols; i++) {
            const float x = (float)(random_below(seed, 2001) - 1000) / (float)(1 << random_below(seed, 20));
            (*ret)[p].data[i] = square && x < 0 ? -x : x;
        }
    }
    return host;
}

/* The way out and back: masters are exact, kinds of state near, and their values give the same codes again. The copy
 * that checkpoints are written from has the same values. */
static void check_codes(struct train_state *s, unsigned *seed)
{
    const struct layout *const l = s->layout;
    const size_t n = (size_t)state_snapshot_size(l, s->rank), bytes = state_copy_bytes(l, s->rank, s->types);
    struct shard_slice *slices = NULL;
    int n_slices;
    float *const host = drawn_values(l, s->rank, seed, &slices, &n_slices);
    float *const out = calloc(n + 1, sizeof *out), *const again = calloc(n + 1, sizeof *again);
    char *const copies[] = {calloc(1, bytes + 1), calloc(1, bytes + 1)};

    assert_int_equal(state_upload(s, host, NULL, NULL), TITAN_OK);
    assert_int_equal(state_snapshot(s, out, NULL, NULL), TITAN_OK);
    assert_int_equal(state_copy(s, copies[0], 0, NULL, NULL), TITAN_OK);
    for (int p = 0; p < n_slices; p++) {
        enum dtype type;
        const size_t at = state_copy_place(l, s->rank, s->types, &slices[p], &type);
        const int64_t size = slices[p].rows * slices[p].cols;
        const float *const is = out + (slices[p].data - host);
        if (type != DTYPE_U8) {
            assert_memory_equal(is, slices[p].data, (size_t)size * sizeof *is);
            continue;
        }
        const bool square = l->kinds.squares >> (l->specs[slices[p].tensor].kind - 1) & 1;
        const struct moment_block *const blocks = (const void *)(copies[0] + at);
        for (int64_t i = 0, e = slices[p].at % MOMENT_BLOCK; i < size; i++, e++) {
            const struct moment_block *const b = &blocks[e / MOMENT_BLOCK];
            assert_true((const char *)(b + 1) <= copies[0] + bytes);
            assert_true(is[i] == moment_decode(b->codes[e % MOMENT_BLOCK], b->scale, square));
            if (fabsf(is[i] - slices[p].data[i]) > 0.08f * fabsf(slices[p].data[i]) + 1e-6f * b->scale &&
                fabsf(slices[p].data[i]) > 0.1f * b->scale)
                fail_msg("%s: %g became %g, scale %g", layout_text(l), (double)slices[p].data[i], (double)is[i],
                         (double)b->scale);
        }
    }
    assert_int_equal(state_upload(s, out, NULL, NULL), TITAN_OK);
    assert_int_equal(state_snapshot(s, again, NULL, NULL), TITAN_OK);
    assert_memory_equal(again, out, n * sizeof *out);
    assert_int_equal(state_copy(s, copies[1], 0, NULL, NULL), TITAN_OK);
    assert_memory_equal(copies[0], copies[1], bytes);
    assert_true(copies[0][bytes] == 0 && copies[1][bytes] == 0);
    free(copies[0]);
    free(copies[1]);
    free(again);
    free(out);
    free(host);
    free(slices);
}

static void test_codes(void **state)
{
    (void)state;
    unsigned seed = random_seed();
    for (int round = 0; round < sliced(8, ROUNDS); round++) {
        struct model *m = random_model(&seed);
        struct layout *l = random_coded_layout(&seed, m, WORLD_MAX);
        for (int rank = 0; rank < l->mesh.world; rank++) {
            struct train_state *s = open_state(l, rank, coded_types, random_below(&seed, 2));
            check_codes(s, &seed);
            close_state(s);
        }
        layout_close(l);
        model_close(m);
    }
}

/* A state of several pieces of the staging memory: their ends cut blocks. */
static void test_cut_blocks(void **state)
{
    (void)state;
    unsigned seed = 5;
    struct model *m = random_model(&seed);
    struct layout *l = NULL;
    struct model_tensor *const t = &m->tensors[0];
    const struct layout_options o = {.model = m,
                                     .mesh = {.world = 1, .size = {1, 1, 1, 1, 1}, .ep = 1},
                                     .coded = true,
                                     .kinds = {.n = 2, .name = {"m", "v"}, .matrices = 3, .rest = 3, .squares = 2}};
    t->shape[0] = 1001, t->shape[1] = 12 * 400;
    t->numel = t->shape[0] * t->shape[1];
    assert_int_equal(layout_open(&o, &l, NULL), TITAN_OK);
    for (int rank = 0; rank < 2; rank++) { /* on a device of its own memory, and of the host's */
        struct train_state *s = NULL;
        const struct state_options options = {
            .device = rank ? &memory_device : &apart_device, .layout = l, .types = coded_types};
        assert_int_equal(state_open(&options, &s, NULL), TITAN_OK);
        assert_true(state_bytes(s) > STAGING_BYTES + STAGING_BYTES / 2);
        check_codes(s, &seed);
        close_state(s);
    }
    layout_close(l);
    model_close(m);
}

/* --- updates ------------------------------------------------------------------------------------------------------ */

static struct update_piece updated;

static titan_status note_update(struct stream *s, const struct update_piece *pieces, int count,
                                const struct update_args *args)
{
    (void)s;
    assert_int_equal(count, 1);
    updated = *pieces;
    for (size_t i = 0; i < updated.n; i++)
        if (args->master == DTYPE_BF16)
            ((uint16_t *)updated.master)[i] = bf16_from_f32(updated.grad[i]);
        else
            ((float *)updated.master)[i] = updated.grad[i];
    return TITAN_OK;
}

/* Masters, m, v and shard of each combination of types are where the operation is told to find them, and a shard that
 * is neither the masters nor their shadow is made of them. */
static void test_update(void **state)
{
    (void)state;
    struct device_ops ops = *memory_device.ops;
    const struct device_handle device = {.ops = &ops, .info = memory_device.info};
    unsigned seed = 1;
    struct model *m = random_model(&seed);
    const struct layout_options o = {
        .model = m, .mesh = {.world = 1, .size = {1, 1, 1, 1, 1}, .ep = 1}, .kinds = adamw_kinds()};
    ops.update = note_update;
    for (int mode = 0; mode < 2 * (int)ARRAY_SIZE(all_types); mode++) {
        const struct state_types types = all_types[mode / 2];
        const bool offload = mode & 1;
        const struct update_args args = {.master = types.master, .moment = types.moment};
        const struct update adamw = {.args = {args, args}, .kind = {{0, 1, -1}, {0, 1, -1}}, .alike = true};
        struct layout *l = NULL;
        struct train_state *s = NULL;
        assert_int_equal(layout_open(&o, &l, NULL), TITAN_OK);
        const struct state_options options = {.device = &device, .layout = l, .types = types, .offload = offload};
        assert_int_equal(state_open(&options, &s, NULL), TITAN_OK);
        const struct buffer shard_buffer = {.kind = BUF_SHARD, .unit = 1};
        void *const shard = state_bind(s, &shard_buffer);
        const int64_t n = l->units[1].shard;
        const size_t masters = (size_t)n * dtype_bytes(types.master), moments = (size_t)n * dtype_bytes(types.moment);
        float *grad = calloc((size_t)n, sizeof *grad);
        char *staged = calloc(1, state_types_bytes(types, n, 2 * n)), *const at = offload ? staged : state_unit(s, 1);
        const struct update_range range = {.values = at, .shard = shard, .grad = grad, .n = n};
        grad[n - 1] = 2;
        assert_int_equal(update_apply(&adamw, &range, 1, &ops, types.compute, NULL), TITAN_OK);
        assert_true(updated.master == at && updated.state[0] == at + masters &&
                    updated.state[1] == at + masters + moments);
        assert_true(updated.n == (size_t)n && updated.grad == grad);
        assert_ptr_equal(updated.shadow, types.compute == DTYPE_BF16 && types.master == DTYPE_F32 ? shard : NULL);
        if (!updated.shadow)
            assert_true(value_at(shard, types.compute, n - 1) == 2);
        assert_null(updated.state[2]);
        free(grad);
        free(staged);
        state_close(s);
    }
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        longer(test_init),  longer(test_checkpoint_of_any_mesh), longer(test_codes), quick(test_cut_blocks),
        quick(test_update),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
