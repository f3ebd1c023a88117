/* SPDX-License-Identifier: Apache-2.0 */
/* update.h: which random numbers round the moments. On random meshes every element of every parameter has the same key,
 * place and step as on one rank, and parts that several ranks hold alike have them alike. TITAN_TEST_SEED repeats a
 * run. Sums over whole tensors. Clipping, and the arguments of AdamW. */
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
#include "base/hash.h"
#include "tests/support/random_layout.h"
#include "worker/optim/outcome.h"
#include "worker/optim/update.h"

#define WORLD_MAX 24
#define ROUNDS 30

/* What rounds an element, as one number that is not 0. */
static uint16_t mark_of(struct rng_key key, int64_t place, uint64_t step)
{
    const uint64_t numbers[] = {key.k[0], key.k[1], (uint64_t)place, step};
    return (uint16_t)(hash_bytes(HASH_INIT, numbers, sizeof numbers) | 1);
}

/* Leaves each element's mark in m, and which element of its buffer it is in v: they move together. */
static titan_status marks(struct stream *s, const struct update_piece *ranges, int count,
                          const struct update_args *args)
{
    (void)s;
    for (const struct update_piece *a = ranges; a < ranges + count; a++) {
        const struct moment_rounding *const r = &a->rounding;
        struct update_args with = *args;
        with.rounding = *r;
        assert_true(update_valid(&with, a) && r->random);
        for (size_t i = 0; i < a->n; i++) {
            const int64_t e = r->first + (int64_t)i;
            ((uint16_t *)a->state[0])[i] = mark_of(r->key, r->origin + e / r->cols * r->ld + e % r->cols, r->step);
            ((uint16_t *)a->state[1])[i] = (uint16_t)a->grad[i];
            assert_true(((float *)a->master)[i] == a->grad[i]);
            assert_true(!a->shadow || a->shadow[i] == (uint16_t)a->grad[i]);
        }
    }
    return TITAN_OK;
}
static const struct device_ops marking = {.update = marks};

/* Marks of a rank's range of a unit; free. */
static uint16_t *marks_of(const struct layout *l, int unit, int rank)
{
    const struct update_args args = {
        .master = DTYPE_F32, .moment = DTYPE_BF16, .rounding = {.random = true, .step = 7}};
    const struct update update = {.args = {args, args}, .kind = {{0, 1, -1}, {0, 1, -1}}, .alike = true, .seed = 42};
    const int64_t n = l->units[unit].shard;
    char *const values = calloc((size_t)n + 1, sizeof(float) + 2 * sizeof(uint16_t));
    float *const grad = calloc((size_t)n + 1, sizeof *grad);
    uint16_t *const shadow = calloc((size_t)n + 1, sizeof *shadow), *const m = (uint16_t *)(values + 4 * n);
    uint16_t *const ret = calloc((size_t)n + 1, sizeof *ret);

    assert_true(values && grad && shadow && ret);
    for (int64_t i = 0; i < n; i++)
        ((float *)values)[i] = grad[i] = (float)(shadow[i] = (uint16_t)(i % 251));
    const struct update_range range = {l, unit, rank, values, shadow, grad, n};
    assert_int_equal(update_apply(&update, &range, 1, &marking, DTYPE_BF16, NULL), TITAN_OK);
    memcpy(ret, m, (size_t)n * sizeof *ret);
    for (int64_t i = 0; i < n; i++)
        assert_true(ret[i] == 0 || m[n + i] == i % 251);
    free(values);
    free(grad);
    free(shadow);
    return ret;
}

/* Every element of the range's parameters is marked by parameter and place; what lies between them is not. */
static int64_t check_range(const struct layout *l, int unit, int rank)
{
    const int64_t begin = layout_begin(l, unit, rank), n = l->units[unit].shard;
    uint16_t *const got = marks_of(l, unit, rank), *const want = calloc((size_t)n + 1, sizeof *want);
    const struct model_unit *const u = &l->model->units[unit];
    int64_t seen = 0;

    assert_non_null(want);
    for (int t = u->first_tensor; t < u->first_tensor + u->n_tensors; t++) {
        const struct local_tensor *const local = &l->tensors[t];
        const struct model_tensor *const tensor = &l->model->tensors[t];
        const int64_t width = tensor->ndim > 1 ? tensor->shape[1] : tensor->numel;
        char name[128];
        int64_t row, col;
        (void)snprintf(name, sizeof name, "rounding.%s", tensor->name);
        layout_origin(l, t, rank, 0, &row, &col);
        for (int64_t y = 0; y < local->rows; y++)
            for (int64_t x = 0; x < local->cols; x++) {
                const int64_t at = local->offset + y * local->cols + x - begin;
                if (at < 0 || at >= n)
                    continue;
                want[at] = mark_of(rng_key(42, name), (row + y) * width + col + x, 7);
                seen++;
            }
    }
    if (memcmp(got, want, (size_t)n * sizeof *got) != 0)
        fail_msg("unit %d on rank %d of %s", unit, rank, layout_text(l));
    free(got);
    free(want);
    return seen;
}

static void rounding_follows_the_parameter(void **state)
{
    unsigned seed = random_seed();

    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        struct model *m = random_model(&seed);
        struct layout *l = random_layout_of(&seed, m, WORLD_MAX, adamw_kinds());
        int64_t seen = 0;
        for (int u = 0; u < m->n_units; u++)
            for (int rank = 0; rank < l->mesh.world; rank++)
                seen += check_range(l, u, rank);
        assert_true(seen > 0);
        layout_close(l);
        model_close(m);
    }
}

/* The sum of the gradients themselves, which here lie beside second moments of the same value. */
static titan_status plain_sum(struct stream *s, double *sum, const void *v, const float *grad, size_t n,
                              const struct update_args *args)
{
    (void)s;
    assert_true(args->lr == 0.5f && n > 0);
    assert_memory_equal(v, grad, n * sizeof *grad);
    for (size_t i = 0; i < n; i++)
        *sum += (double)grad[i];
    return TITAN_OK;
}
static const struct device_ops summing = {.update_sum = plain_sum};

/* Adds a rank's part of the sums of a unit's tensors. An element's gradient is a mark of its place in the tensor. */
static void sum_range(const struct layout *l, int unit, int rank, const struct update *update, double *sums)
{
    const struct model_unit *const u = &l->model->units[unit];
    const int64_t begin = layout_begin(l, unit, rank), n = l->units[unit].shard;
    float *const grad = calloc((size_t)n + 1, sizeof *grad), *const values = calloc(3 * (size_t)n + 1, sizeof *values);

    assert_true(grad && values);
    for (int64_t i = 0; i < n; i++)
        grad[i] = 1e9f; /* between tensors */
    for (int t = u->first_tensor; t < u->first_tensor + u->n_tensors; t++) {
        const struct local_tensor *const local = &l->tensors[t];
        const struct model_tensor *const tensor = &l->model->tensors[t];
        int64_t row, col;
        layout_origin(l, t, rank, 0, &row, &col);
        for (int64_t i = MAX(local->offset, begin); i < MIN(local->offset + local->rows * local->cols, begin + n);
             i++) {
            const int64_t y = (i - local->offset) / local->cols, x = (i - local->offset) % local->cols;
            const int64_t place = (row + y) * (tensor->ndim > 1 ? tensor->shape[1] : tensor->numel) + col + x;
            grad[i - begin] = (float)mark_of(rng_key(1, "sum"), place, 1);
        }
    }
    memcpy(values + 2 * n, grad, (size_t)n * sizeof *grad);
    const struct update_range range = {l, unit, rank, values, NULL, grad, n};
    assert_int_equal(update_sums(update, &range, sums, &summing, NULL), TITAN_OK);
    free(grad);
    free(values);
}

static void each_element_is_summed_once(void **state)
{
    const struct update_args args = {.lr = 0.5f, .master = DTYPE_F32, .moment = DTYPE_F32};
    struct update update = {.args = {args, args}, .kind = {{0, 1, -1}, {0, 1, -1}}};
    unsigned seed = random_seed();

    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        struct model *m = random_model(&seed);
        struct layout *l = random_layout_of(&seed, m, WORLD_MAX, adamw_kinds());
        double *const sums = calloc((size_t)m->n_tensors, sizeof *sums);
        update.threshold[PARAMS_MATRICES] = (float)(round % 3 != 0);
        update.threshold[PARAMS_REST] = (float)(round % 3 != 1);
        for (int u = 0; u < m->n_units; u++)
            for (int rank = 0; rank < l->mesh.world; rank++)
                if (mesh_group_rank(&l->mesh, GROUP_PP, rank) == l->units[u].pp_rank)
                    sum_range(l, u, rank, &update, sums);
        for (int t = 0; t < m->n_tensors; t++) {
            double want = 0;
            for (int64_t i = 0; i < m->tensors[t].numel; i++)
                want += (double)mark_of(rng_key(1, "sum"), i, 1);
            if (update.threshold[model_is_layer_matrix(m, t) ? PARAMS_MATRICES : PARAMS_REST] == 0)
                want = 0;
            if (sums[t] != want)
                fail_msg("%s of %s: %g, not %g", m->tensors[t].name, layout_text(l), sums[t], want);
        }
        free(sums);
        layout_close(l);
        model_close(m);
    }
}

static void test_clip(void **state)
{
    (void)state;
    assert_true(optim_clip_factor(100, 0) == 1);
    assert_true(optim_clip_factor(0.5, 1) == 1);
    assert_true(fabs(optim_clip_factor(4, 1) - 1 / (4 + 1e-6)) < 1e-15);
}

static void test_arguments(void **state)
{
    const struct update_step step = {.rate = 0.5, .number = 3, .tokens = 2, .clip = 0.5};
    struct recipe r;

    (void)state;
    recipe_init(&r);
    struct update u = update_of_recipe(&r, &step);
    const struct update_args *const a = &u.args[PARAMS_MATRICES], *const rest = &u.args[PARAMS_REST];
    assert_true(u.alike && u.kind[PARAMS_REST][0] == 0 && u.kind[PARAMS_REST][1] == 1 && u.kind[PARAMS_REST][2] == -1);
    assert_true(fabsf(a->bias1 - (1 - 0.9f * 0.9f * 0.9f)) < 1e-6f);
    assert_true(fabsf(a->bias2 - (1 - 0.95f * 0.95f * 0.95f)) < 1e-6f);
    assert_true(a->clip == 0.5f && a->master == DTYPE_F32 && a->moment == DTYPE_F32);
    assert_true(a->grad_scale == 0.25f && a->lr == 4e-4f && a->weight_decay == 0.1f && !a->l2);
    assert_int_equal(recipe_set(&r, "optimizer.name=Adam", NULL), TITAN_OK);
    assert_true(update_of_recipe(&r, &step).args[PARAMS_REST].l2);

    /* The rest has its own rule, rate and decay, and keeps what the matrices do not. */
    assert_int_equal(recipe_set(&r, "optimizer.name=Lion", NULL), TITAN_OK);
    assert_int_equal(recipe_set(&r, "optimizer.rest=AdEMAMix", NULL), TITAN_OK);
    assert_int_equal(recipe_set(&r, "optimizer.rest_lr=0.25", NULL), TITAN_OK);
    assert_int_equal(recipe_set(&r, "optimizer.rest_weight_decay=0", NULL), TITAN_OK);
    assert_int_equal(recipe_set(&r, "optimizer.ademamix.warmup_steps=6", NULL), TITAN_OK);
    u = update_of_recipe(&r, &step);
    assert_true(!u.alike && a->rule == RULE_LION && a->lr == 4e-4f && a->weight_decay == 0.1f);
    assert_true(rest->rule == RULE_ADEMAMIX && rest->lr == 0.125f && rest->weight_decay == 0);
    assert_true(u.kind[PARAMS_MATRICES][0] == 0 && u.kind[PARAMS_MATRICES][1] == -1);
    assert_true(u.kind[PARAMS_REST][0] == 0 && u.kind[PARAMS_REST][1] == 1 && u.kind[PARAMS_REST][2] == 2);

    /* Half of the warm-up: alpha is half, and so is the slow mean's half-life. */
    const double from = log(0.9), to = log(0.9999);
    assert_true(rest->own[1] == 4);
    assert_true(fabs((double)rest->own[0] - exp(from * to / (0.5 * to + 0.5 * from))) < 1e-7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounding_follows_the_parameter),
        cmocka_unit_test(each_element_is_summed_once),
        cmocka_unit_test(test_clip),
        cmocka_unit_test(test_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
