/* SPDX-License-Identifier: Apache-2.0 */
/* muon.c - Muon: the momentum of a matrix, made nearly orthogonal (Jordan et al. 2024,
 * kellerjordan.github.io/posts/muon; the size of the step: Liu et al. 2025, arXiv:2502.16982).
 *
 *   b = momentum b + g;  u = nesterov ? g + momentum b : b;  X = u / (|u| + 1e-7)
 *   steps times: A = X X^T, X = (a I + b A + c A^2) X;  direction = scale sqrt(larger side) X
 *
 * A is the smaller of both Gram matrices: X^T X, on the other side of X, where there are more rows than columns.
 * Products are in the compute type with sums in fp32, the last one stays fp32. Norms and the last scale are fp32 or
 * better. With per_head each head's rows are a matrix of their own. */
#include <math.h>

#include "base/cleanup.h"
#include "worker/optim/whole_methods.h"

#define EPS 1e-7f
static const float coefficients[] = {3.4445f, -4.7750f, 2.0315f};

/* Rows of the matrices that are made orthogonal each for itself. */
static int64_t rows_each(const struct recipe *r, int64_t rows, int64_t heads)
{
    return r->optimizer.muon.per_head ? rows / heads : rows;
}

/* Multiplications and additions of one iteration on one matrix: two products with X, one of the Gram matrix. */
static double step_flops(int64_t rows, int64_t cols)
{
    const double small = (double)MIN(rows, cols), large = (double)MAX(rows, cols);
    return 4 * small * small * large + 2 * small * small * small;
}

static double muon_flops(const struct recipe *r, int64_t rows, int64_t cols, int64_t heads)
{
    const int64_t each = rows_each(r, rows, heads), parts = rows / each;
    return (double)(r->optimizer.muon.ns_steps * parts) * step_flops(each, cols);
}

struct muon_work {
    float *update; /* (rows, cols): u, later X */
    void *x[2];    /* X of one part, before and after an iteration, compute type */
    void *gram, *sum;
    float *square; /* A^2 */
    double *total, *blocks;
};

static struct muon_work take_work(struct scratch *from, enum dtype dt, int64_t rows, int64_t each, int64_t cols)
{
    const size_t part = (size_t)(each * cols), side = (size_t)MIN(each, cols), square = side * side;
    struct muon_work w = {.update = scratch_take(from, (size_t)(rows * cols) * sizeof(float))};

    for (int i = 0; i < 2; i++)
        w.x[i] = scratch_take(from, part * dtype_bytes(dt));
    w.gram = scratch_take(from, square * dtype_bytes(dt));
    w.sum = scratch_take(from, square * dtype_bytes(dt));
    w.square = scratch_take(from, square * sizeof(float));
    w.total = scratch_take(from, sizeof(double));
    w.blocks = scratch_take(from, (size_t)whole_sum_blocks(each * cols) * sizeof(double));
    return w;
}

static size_t muon_work_bytes(const struct recipe *r, enum dtype dt, int64_t rows, int64_t cols, int64_t heads)
{
    struct scratch counted = {0};

    (void)take_work(&counted, dt, rows, rows_each(r, rows, heads), cols);
    return counted.used;
}

/* The device's SGD with rate -1, on a matrix of zeros, makes u and the momentum. */
static titan_status momentum(const struct whole_step *step, const struct whole_matrix *m, float *update,
                             const struct device_ops *ops, struct stream *s)
{
    const struct recipe *const r = step->recipe;
    const struct update_args args = {.rule = RULE_SGD,
                                     .lr = -1,
                                     .own = {(float)r->optimizer.muon.momentum, r->optimizer.muon.nesterov},
                                     .grad_scale = step->grad_scale,
                                     .bias1 = 1,
                                     .bias2 = 1,
                                     .master = DTYPE_F32,
                                     .moment = DTYPE_F32};
    const size_t n = (size_t)(m->rows * m->cols);
    const struct update_piece piece = {.master = update, .state = {m->next[0]}, .grad = m->values, .n = n};

    TRY(whole_take_state(step, m, 0, n, ops, s));
    TRY(ops->zero(s, update, n * sizeof *update));
    TRY(ops->update(s, &piece, 1, &args));
    return args.own[0] == 0.0f ? ops->copy(s, m->next[0], update, n * sizeof *update) : TITAN_OK;
}

/* Replaces u (rows, cols) by X. */
static titan_status orthogonalise(float *u, int64_t rows, int64_t cols, int64_t steps, enum dtype dt,
                                  const struct muon_work *w, const struct device_ops *ops, struct stream *s)
{
    const bool tall = rows > cols;
    const int64_t side = MIN(rows, cols);
    void *x = w->x[0], *next = w->x[1];

    TRY(whole_square_sum(w->total, w->blocks, u, rows * cols, ops, s));
    TRY(ops->unit(s, ARGS(unit, .out = x, .x = u, .sum = w->total, .dt = dt, .eps = EPS, .n = (size_t)(rows * cols))));
    for (int64_t i = 0; i < steps; i++) {
        const bool last = i == steps - 1;
        TRY(ops->matmul(s, ARGS(matmul, .c = w->gram, .a = x, .b = x, .c_dt = dt, .ab_dt = dt, .ta = tall, .tb = !tall,
                                .ldc = side, .lda = cols, .ldb = cols, .m = side, .n = side, .k = MAX(rows, cols))));
        TRY(ops->matmul(s, ARGS(matmul, .c = w->square, .a = w->gram, .b = w->gram, .c_dt = DTYPE_F32, .ab_dt = dt,
                                .ldc = side, .lda = side, .ldb = side, .m = side, .n = side, .k = side)));
        TRY(ops->polynomial(s, ARGS(polynomial, .out = w->sum, .x = w->gram, .y = w->square, .dt = dt,
                                    .a = coefficients[0], .b = coefficients[1], .c = coefficients[2], .n = side)));
        TRY(ops->matmul(s, ARGS(matmul, .c = last ? u : next, .a = tall ? x : w->sum, .b = tall ? w->sum : x,
                                .c_dt = last ? DTYPE_F32 : dt, .ab_dt = dt, .ldc = cols, .lda = side, .ldb = cols,
                                .m = rows, .n = cols, .k = side)));
        void *const before = x;
        x = next;
        next = before;
    }
    return TITAN_OK;
}

static titan_status muon_direction(const struct whole_step *step, const struct whole_matrix *m, void *work,
                                   const struct device_ops *ops, struct stream *s)
{
    const struct recipe *const r = step->recipe;
    const int64_t each = rows_each(r, m->rows, m->heads);
    const float scale = (float)(r->optimizer.muon.scale * sqrt((double)MAX(each, m->cols)));
    struct scratch from = {.base = work};
    const struct muon_work w = take_work(&from, step->dt, m->rows, each, m->cols);

    TRY(momentum(step, m, w.update, ops, s));
    for (int64_t row = 0; row < m->rows; row += each)
        TRY(orthogonalise(w.update + row * m->cols, each, m->cols, r->optimizer.muon.ns_steps, step->dt, &w, ops, s));
    return ops->scale(s, m->values, w.update, DTYPE_F32, scale, (size_t)(m->rows * m->cols));
}

const struct whole_method_calls muon_calls = {
    .flops = muon_flops, .work_bytes = muon_work_bytes, .direction = muon_direction};
