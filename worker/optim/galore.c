/* SPDX-License-Identifier: Apache-2.0 */
/* galore.c - GaLore 2: AdamW on a projection of the gradient (Zhao et al. 2024, arXiv:2403.03507; with a randomised
 * decomposition: Su et al. 2025, arXiv:2504.20437).
 *
 *   rows >= cols: R = G P^T, direction = scale N P;   else R = P G, direction = scale P^T N
 *
 * N is AdamW's direction for R, without decay. P, the basis, has in its rows the singular vectors of G's `rank` largest
 * singular values, on the side where G is smaller. A new basis takes the moments over as they are, as the reference
 * does. A matrix gets its basis at update 1, and then every `interval` steps. The matrices take turns, by number.
 *
 * The singular vectors are those of a randomised decomposition (Halko, Martinsson and Tropp 2011, arXiv:0909.4061): of
 * a sample of the space of G's small side, turned twice towards the largest singular values. All products are in fp32.
 */
#include <stdio.h>

#include "base/cleanup.h"
#include "base/rng.h"
#include "worker/optim/whole_methods.h"

#define OVERSAMPLED 8 /* vectors of the sample beyond the rank */
#define TURNS 2
/* G / |G| is decomposed, times its transpose plus this times I. So the sample is a basis even of a gradient of zeros.
 */
#define SHIFT 1e-7f

enum { STATE_BASIS = 2 }; /* behind m and v */

struct shape {
    int64_t rows, cols, small, large, rank, sampled;
    bool right; /* the columns are projected */
};

static struct shape shape_of(const struct recipe *r, int64_t rows, int64_t cols)
{
    struct shape z = {.rows = rows, .cols = cols, .right = rows >= cols};
    int64_t rank, small;

    optimizer_state_shape(optimizer_of_matrices(r), r, STATE_BASIS, rows, cols, &rank, &small);
    z.small = small;
    z.large = MAX(rows, cols);
    z.rank = rank;
    z.sampled = MIN(rank + OVERSAMPLED, small);
    return z;
}

static bool is_full(const struct shape *z)
{
    return z->rank == z->small;
}

static double galore_flops(const struct recipe *r, int64_t rows, int64_t cols, int64_t heads)
{
    const struct shape z = shape_of(r, rows, cols);
    const double g = (double)rows * (double)cols, rank = (double)z.rank, k = (double)z.sampled;
    const double products = 2 * g * k * (2 * TURNS + 1), pairs = k * (k - 1) / 2;
    const double rotations =
        pairs * (TURNS * 12 * (double)z.small + 8 * 12 * (double)(z.small + z.large)); /* 8 turns */

    (void)heads;
    if (is_full(&z))
        return 12 * g;
    return 4 * g * rank + 12 * (double)z.large * rank + (products + rotations) / (double)r->optimizer.galore.interval;
}

struct galore_work {
    float *inner, *projected; /* N and R, of the moments' shape */
    float *unit;              /* G / |G| */
    float *sample, *next;     /* (sampled, small) */
    float *along;             /* (sampled, large): the sample times G */
    void *rotations;          /* of jacobi */
    double *total, *blocks;
};

static struct galore_work take_work(struct scratch *from, const struct shape *z)
{
    const size_t moments = (size_t)(z->large * z->rank) * sizeof(float), n = (size_t)(z->rows * z->cols);
    const size_t sample = (size_t)(z->sampled * z->small) * sizeof(float);
    struct galore_work w = {.inner = scratch_take(from, moments)};

    if (is_full(z))
        return w;
    w.projected = scratch_take(from, moments);
    w.unit = scratch_take(from, n * sizeof(float));
    w.sample = scratch_take(from, sample);
    w.next = scratch_take(from, sample);
    w.along = scratch_take(from, (size_t)(z->sampled * z->large) * sizeof(float));
    w.rotations = scratch_take(from, jacobi_work_bytes(z->sampled));
    w.total = scratch_take(from, sizeof(double));
    w.blocks = scratch_take(from, (size_t)whole_sum_blocks(z->rows * z->cols) * sizeof(double));
    return w;
}

static size_t galore_work_bytes(const struct recipe *r, enum dtype dt, int64_t rows, int64_t cols, int64_t heads)
{
    const struct shape z = shape_of(r, rows, cols);
    struct scratch counted = {0};

    (void)dt;
    (void)heads;
    (void)take_work(&counted, &z);
    return counted.used;
}

/* c (m,n) fp32 = or += op(a) op(b), all dense. */
struct product {
    float *c;
    const float *a, *b;
    bool ta, tb;
    int64_t m, n, k;
    float beta;
};
static titan_status multiply(struct product p, const struct device_ops *ops, struct stream *s)
{
    return ops->matmul(s, ARGS(matmul, .c = p.c, .a = p.a, .b = p.b, .c_dt = DTYPE_F32, .ab_dt = DTYPE_F32, .ta = p.ta,
                               .tb = p.tb, .ldc = p.n, .lda = p.ta ? p.m : p.k, .ldb = p.tb ? p.k : p.n, .m = p.m,
                               .n = p.n, .k = p.k, .beta = p.beta));
}

/* The sample (sampled, small) times the matrix's small side: w->along. */
static titan_status times_matrix(const struct shape *z, const struct galore_work *w, const float *sample,
                                 const struct device_ops *ops, struct stream *s)
{
    return multiply(
        (struct product){
            .c = w->along, .a = sample, .b = w->unit, .tb = z->right, .m = z->sampled, .n = z->large, .k = z->small},
        ops, s);
}

/* Writes a new basis of the gradient to `basis`. */
static titan_status decompose(const struct whole_step *step, const struct whole_matrix *m, const struct shape *z,
                              const struct galore_work *w, float *basis, const struct device_ops *ops, struct stream *s)
{
    const size_t sample_n = (size_t)(z->sampled * z->small);
    float *sample = w->sample, *next = w->next;
    char stream[256];

    (void)snprintf(stream, sizeof stream, "galore.%lld.%s", (long long)m->number, m->name);
    const struct rng_weights normals = {.key = rng_key((uint64_t)step->recipe->training.seed, stream), .std = 1};
    TRY(whole_square_sum(w->total, w->blocks, m->values, z->rows * z->cols, ops, s));
    TRY(ops->unit(s, ARGS(unit, .out = w->unit, .x = m->values, .sum = w->total, .dt = DTYPE_F32, .eps = 1e-30f,
                          .n = (size_t)(z->rows * z->cols))));
    TRY(ops->weights(s, ARGS(weights, .out = sample, .dt = DTYPE_F32, .rows = z->sampled, .cols = z->small,
                             .width = z->small, .first = (int64_t)(step->number * sample_n), .weights = &normals)));
    for (int i = 0; i < TURNS; i++) {
        TRY(times_matrix(z, w, sample, ops, s));
        TRY(ops->scale(s, next, sample, DTYPE_F32, SHIFT, sample_n));
        TRY(multiply((struct product){.c = next,
                                      .a = w->along,
                                      .b = w->unit,
                                      .tb = !z->right,
                                      .m = z->sampled,
                                      .n = z->small,
                                      .k = z->large,
                                      .beta = 1},
                     ops, s));
        TRY(ops->orthonormal(s, ARGS(orthonormal, .x = next, .rows = z->sampled, .cols = z->small)));
        float *const before = sample;
        sample = next;
        next = before;
    }
    TRY(times_matrix(z, w, sample, ops, s));
    return ops->jacobi(s, ARGS(jacobi, .x = w->along, .y = sample, .out = basis, .work = w->rotations,
                               .rows = z->sampled, .cols = z->large, .ycols = z->small, .kept = z->rank));
}

/* Does the matrix get a new basis in this step? */
static bool is_due(const struct whole_step *step, const struct whole_matrix *m)
{
    const int64_t interval = step->recipe->optimizer.galore.interval, number = (int64_t)step->number;

    return number == 1 || (number + m->number * interval / m->of) % interval == 0;
}

static titan_status galore_direction(const struct whole_step *step, const struct whole_matrix *m, void *work,
                                     const struct device_ops *ops, struct stream *s)
{
    const struct shape z = shape_of(step->recipe, m->rows, m->cols);
    const size_t moments = (size_t)(z.large * z.rank);
    const float scale = (float)step->recipe->optimizer.galore.scale;
    float *const basis = m->next[STATE_BASIS];
    struct scratch from = {.base = work};
    const struct galore_work w = take_work(&from, &z);
    const struct whole_gradient projected = {w.projected, moments, step->grad_scale, scale};

    if (is_full(&z) || !is_due(step, m))
        TRY(whole_take_state(step, m, STATE_BASIS, (size_t)(z.rank * z.small), ops, s));
    else
        TRY(decompose(step, m, &z, &w, basis, ops, s));
    if (is_full(&z)) {
        TRY(whole_adamw(step, m, &(struct whole_gradient){m->values, moments, step->grad_scale, scale}, w.inner, ops,
                        s));
        return ops->copy(s, m->values, w.inner, moments * sizeof *w.inner);
    }
    if (z.right) {
        TRY(multiply(
            (struct product){
                .c = w.projected, .a = m->values, .b = basis, .tb = true, .m = z.rows, .n = z.rank, .k = z.cols},
            ops, s));
        TRY(whole_adamw(step, m, &projected, w.inner, ops, s));
        return multiply(
            (struct product){.c = m->values, .a = w.inner, .b = basis, .m = z.rows, .n = z.cols, .k = z.rank}, ops, s);
    }
    TRY(multiply((struct product){.c = w.projected, .a = basis, .b = m->values, .m = z.rank, .n = z.cols, .k = z.rows},
                 ops, s));
    TRY(whole_adamw(step, m, &projected, w.inner, ops, s));
    return multiply(
        (struct product){.c = m->values, .a = basis, .b = w.inner, .ta = true, .m = z.rows, .n = z.cols, .k = z.rank},
        ops, s);
}

const struct whole_method_calls galore_calls = {
    .flops = galore_flops, .work_bytes = galore_work_bytes, .direction = galore_direction};
