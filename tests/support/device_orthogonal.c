/* SPDX-License-Identifier: Apache-2.0 */
/* device_orthogonal.c - what updates of whole matrices need besides products. */
#include <math.h>
#include <string.h>

#include "support/device_checker.h"
#include "support/device_ops.h"

static void unit_case(struct checker *c, enum dtype dt, int64_t n, float eps)
{
    struct tensor x = noise(c, n, DTYPE_F32, 3.0), sum = empty(c, 1, DTYPE_F64), out = empty(c, n, dt);
    double *want = values(c, n);

    sum.x[0] = dot_of(x.x, x.x, n);
    upload(c, &sum);
    for (int64_t i = 0; i < n; i++)
        want[i] = x.x[i] / (sqrt(sum.x[0]) + (double)eps);
    need(c, c->ops->unit(c->s, ARGS(unit, .out = out.p, .x = x.p, .sum = sum.p, .dt = dt, .eps = eps, .n = (size_t)n)),
         "unit");
    bool ok = near(c, download(c, &out), want, n, limit_of(dt), "unit");
    sum.x[0] = 0;
    upload(c, &sum);
    need(c, c->ops->zero(c->s, x.p, (size_t)n * sizeof(float)), "zero");
    need(c,
         c->ops->unit(c->s,
                      ARGS(unit, .out = x.p, .x = x.p, .sum = sum.p, .dt = DTYPE_F32, .eps = 1e-7f, .n = (size_t)n)),
         "unit");
    ok = same(c, download(c, &x), values(c, n), n, "of zeros") && ok;
    result(c, ok, "unit vector %s of %lld", name_of(dt), (long long)n);
    sweep(c);
}

static void polynomial_case(struct checker *c, enum dtype dt, int64_t n)
{
    struct tensor x = noise(c, n * n, dt, 1.0), y = noise(c, n * n, DTYPE_F32, 1.0), out = empty(c, n * n, dt);
    double *want = values(c, n * n);

    for (int64_t i = 0; i < n * n; i++)
        want[i] = (i / n == i % n ? 3.5 : 0) - 4.75 * x.x[i] + 2 * y.x[i];
    for (int in_place = 0; in_place < 2; in_place++)
        need(c,
             c->ops->polynomial(c->s, ARGS(polynomial, .out = in_place ? x.p : out.p, .x = x.p, .y = y.p, .dt = dt,
                                           .a = 3.5f, .b = -4.75f, .c = 2, .n = n)),
             "polynomial");
    bool ok = near(c, download(c, &out), want, n * n, limit_of(dt), "polynomial");
    ok = same(c, download(c, &x), download(c, &out), n * n, "in place") && ok;
    result(c, ok, "polynomial of a matrix %s %lldx%lld", name_of(dt), (long long)n, (long long)n);
    sweep(c);
}

/* Rows of falling norms; the last `zeros` are zero, and the one before is nearly the first. */
static void rows_of(struct tensor *x, int64_t rows, int64_t cols, double decay, int64_t zeros)
{
    for (int64_t i = 0; i < rows * cols; i++)
        x->x[i] = i / cols >= rows - zeros ? 0 : x->x[i] * pow(decay, (double)(i / cols));
    for (int64_t k = 0; k < cols && rows - zeros > 2; k++)
        x->x[(rows - zeros - 1) * cols + k] = x->x[k] + 1e-6 * x->x[cols + k];
}

static void orthonormal_case(struct checker *c, int64_t rows, int64_t cols, double decay, int64_t zeros)
{
    struct tensor x = noise(c, rows * cols, DTYPE_F32, 1.0);
    double *const left = values(c, rows * cols), off = 0, apart = 0;

    rows_of(&x, rows, cols, decay, zeros);
    upload(c, &x);
    memcpy(left, x.x, (size_t)(rows * cols) * sizeof *left);
    need(c, c->ops->orthonormal(c->s, ARGS(orthonormal, .x = x.p, .rows = rows, .cols = cols)), "orthonormal");
    const double *const got = download(c, &x);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < rows; j++) {
            const double one = i == j && i < rows - zeros ? 1 : 0;
            const double part = dot_of(left + i * cols, got + j * cols, cols);
            off = fmax(off, fabs(dot_of(got + i * cols, got + j * cols, cols) - one));
            for (int64_t k = 0; k < cols; k++)
                left[i * cols + k] -= part * got[j * cols + k];
        }
    for (int64_t i = 0; i < rows * cols; i++) /* what the basis leaves of a row */
        apart = fmax(apart, fabs(left[i]));
    result(c, off < 1e-6 && apart < 2e-6, "orthonormal basis of %lldx%lld, norms by %.2f, %lld of zeros",
           (long long)rows, (long long)cols, decay, (long long)zeros);
    sweep(c);
}

/* Rows of x that are rotated until they are orthogonal, and y like them: the vectors, times what x was, are orthogonal
 * rows of falling norms. */
static void jacobi_case(struct checker *c, int64_t rows, int64_t cols, int64_t kept, double decay, int64_t zeros)
{
    struct tensor x = noise(c, rows * cols, DTYPE_F32, 1.0), y = empty(c, rows * rows, DTYPE_F32);
    struct tensor out = empty(c, kept * rows, DTYPE_F32), again = empty(c, kept * rows, DTYPE_F32);
    void *const work = device_memory(c, jacobi_work_bytes(rows));
    double *const before = values(c, rows * cols), *const turned = values(c, kept * cols), last = INFINITY, off = 0;
    bool ok = true;

    rows_of(&x, rows, cols, decay, zeros);
    for (int turn = 0; turn < 2; turn++) {
        for (int64_t i = 0; i < rows * rows; i++)
            y.x[i] = i / rows == i % rows;
        upload(c, &x), upload(c, &y);
        need(c,
             c->ops->jacobi(c->s, ARGS(jacobi, .x = x.p, .y = y.p, .out = turn ? again.p : out.p, .work = work,
                                       .rows = rows, .cols = cols, .ycols = rows, .kept = kept)),
             "jacobi");
    }
    memcpy(before, x.x, (size_t)(rows * cols) * sizeof *before);
    const double *const got = download(c, &out), *const gx = download(c, &x);
    ok = same(c, download(c, &again), got, kept * rows, "repeated");
    for (int64_t i = 0; i < kept; i++)
        for (int64_t j = 0; j < rows; j++)
            for (int64_t k = 0; k < cols; k++)
                turned[i * cols + k] += got[i * rows + j] * before[j * cols + k];
    for (int64_t i = 0; i < kept; i++) {
        const double norm = sqrt(dot_of(turned + i * cols, turned + i * cols, cols));
        int64_t largest = 0, longer = 0;
        for (int64_t k = 0; k < rows; k++)
            largest = fabs(got[i * rows + k]) > fabs(got[i * rows + largest]) ? k : largest;
        ok = ok && norm <= last * 1.00001 && got[i * rows + largest] > 0;
        last = norm;
        for (int64_t j = 0; j < rows; j++)
            longer += sqrt(dot_of(gx + j * cols, gx + j * cols, cols)) > norm * 1.00001 + 1e-6;
        ok = ok && longer <= i;
        for (int64_t j = 0; j <= i; j++) {
            const double *const other = turned + j * cols, first = sqrt(dot_of(turned, turned, cols));
            off = fmax(off, fabs(dot_of(got + i * rows, got + j * rows, rows) - (i == j)));
            if (i != j)
                off = fmax(off, fabs(dot_of(turned + i * cols, other, cols)) / (first * first + 1e-30));
        }
    }
    result(c, ok && off < 3e-6, "jacobi, %lld vectors of %lldx%lld, norms by %.2f, %lld of zeros", (long long)kept,
           (long long)rows, (long long)cols, decay, (long long)zeros);
    sweep(c);
}

/* --- Ranger21 ----------------------------------------------------------------------------------------------------- */

static double norm_of(const double *row, int64_t n)
{
    return sqrt(dot_of(row, row, n));
}

/* One row is large, one small, one zero. */
static void row_gradient_case(struct checker *c, int64_t rows, int64_t cols, int parts)
{
    struct tensor g = noise(c, rows * cols, DTYPE_F32, 10.0), w = noise(c, rows * cols, DTYPE_F32, 1.0);
    double *const want = values(c, rows * cols);
    const bool clip = parts & 1, centralize = parts & 2, normalize = parts & 4;

    for (int64_t i = 0; i < rows * cols; i++)
        g.x[i] *= i / cols == 1 ? 1e-4 : i / cols == 2 ? 0 : 1;
    upload(c, &g);
    for (int64_t i = 0; i < rows; i++) {
        double *const row = want + i * cols, mean = 0, spread = 0;
        for (int64_t k = 0; k < cols; k++)
            row[k] = 0.25 * g.x[i * cols + k];
        const double norm = norm_of(row, cols), most = 1e-2 * fmax(norm_of(w.x + i * cols, cols), 1e-3);
        for (int64_t k = 0; k < cols; k++) {
            row[k] *= clip && norm > most ? most / fmax(norm, 1e-6) : 1;
            mean += row[k] / (double)cols;
        }
        for (int64_t k = 0; k < cols; k++)
            spread += (row[k] - mean) * (row[k] - mean) / (double)cols;
        for (int64_t k = 0; k < cols; k++)
            row[k] = (row[k] - (centralize ? mean : 0)) / (normalize && cols > 2 ? sqrt(spread) + 1e-8 : 1);
    }
    need(c,
         c->ops->row_gradient(c->s,
                              ARGS(row_gradient, .g = g.p, .w = clip ? w.p : NULL, .rows = rows, .cols = cols,
                                   .scale = 0.25f, .clip = clip, .centralize = centralize, .normalize = normalize)),
         "row_gradient");
    bool ok = true;
    const double *const got = download(c, &g);
    for (int64_t i = 0; i < rows; i++)
        ok = near(c, got + i * cols, want + i * cols, cols, limit_of(DTYPE_F32), "row") && ok;
    result(c, ok, "gradient's rows %lldx%lld,%s%s%s", (long long)rows, (long long)cols, clip ? " clip" : "",
           centralize ? " centralize" : "", normalize ? " normalize" : "");
    sweep(c);
}

static void moments_case(struct checker *c, int64_t n, bool momentum, bool softplus)
{
    struct tensor g = noise(c, n, DTYPE_F32, 1.0), m = noise(c, n, DTYPE_F32, 0.1), v = noise(c, n, DTYPE_F32, 0.1);
    struct tensor previous = noise(c, n, DTYPE_F32, 0.1), largest = noise(c, n, DTYPE_F32, 0.1);
    struct tensor out = empty(c, n, DTYPE_F32);
    double *want[5];

    for (int i = 0; i < 5; i++)
        want[i] = values(c, n);
    for (int64_t i = 0; i < n; i++) {
        v.x[i] = fabs(v.x[i]) * (i % 3 ? 1 : 1e-6); /* on both sides of softplus' bound */
        largest.x[i] = fabs(largest.x[i]) * (i % 3 ? 1 : 1e-6);
        g.x[i] *= i % 3 ? 1 : 1e-3;
    }
    upload(c, &v), upload(c, &largest), upload(c, &g);
    for (int64_t i = 0; i < n; i++) {
        const double b = momentum ? 0.81 : 0.9, x = 0.5 * g.x[i];
        const double now = b * (momentum ? previous.x[i] : m.x[i]) + (1 - b) * x;
        want[1][i] = now;
        want[2][i] = 0.95 * v.x[i] + 0.05 * x * x;
        want[3][i] = momentum ? m.x[i] : previous.x[i];
        want[4][i] = momentum ? fmax(largest.x[i], want[2][i]) : largest.x[i];
        double below = sqrt(want[momentum ? 4 : 2][i] / 0.3) + 1e-8;
        below = softplus && below * 50 <= 20 ? log1p(exp(50 * below)) / 50 : below;
        want[0][i] = (momentum ? (1.9 * now - 0.9 * m.x[i]) / hypot(1.9, 0.9) : now) / 0.2 / below;
    }
    need(c,
         c->ops->moments(c->s, ARGS(moments, .out = out.p, .m = m.p, .v = v.p, .previous = momentum ? previous.p : NULL,
                                    .largest = momentum ? largest.p : NULL, .g = g.p, .scale = 0.5f, .beta0 = 0.9f,
                                    .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .bias1 = 0.2f, .bias2 = 0.3f,
                                    .softplus = softplus, .n = (size_t)n)),
         "moments");
    bool ok = near(c, download(c, &out), want[0], n, 1e-11, "direction");
    ok = near(c, download(c, &m), want[1], n, 1e-12, "m") && ok;
    ok = near(c, download(c, &v), want[2], n, 1e-12, "v") && ok;
    ok = near(c, download(c, &previous), want[3], n, 1e-12, "m before") && ok;
    ok = near(c, download(c, &largest), want[4], n, 1e-12, "largest v") && ok;
    result(c, ok, "moments of %lld%s%s", (long long)n, momentum ? ", positive-negative" : "",
           softplus ? ", softplus" : "");
    sweep(c);
}

static void row_decay_case(struct checker *c, int64_t rows, int64_t cols, int parts)
{
    struct tensor d = noise(c, rows * cols, DTYPE_F32, 1.0), w = noise(c, rows * cols, DTYPE_F32, 1.0);
    struct tensor slow = noise(c, rows * cols, DTYPE_F32, 1.0), sum = empty(c, 1, DTYPE_F64);
    double *const want = values(c, rows * cols);
    const bool stable = parts & 1, norm_loss = parts & 2, looks = parts & 4;

    sum.x[0] = parts & 8 ? 0 : 40;
    upload(c, &sum);
    for (int64_t k = 0; k < cols; k++)
        w.x[k] = 0;
    slow.x[rows * cols - 1] = 0;
    upload(c, &w), upload(c, &slow);
    for (int64_t i = 0; i < rows * cols; i++) {
        const double all = !stable ? 1 : parts & 8 ? 0 : 1 / sqrt(40 * 0.01);
        const double row = norm_loss ? 1 - 1 / (norm_of(w.x + i / cols * cols, cols) + 1e-8) : 1;
        want[i] = d.x[i] + 0.1 * all * row * w.x[i];
        if (looks && slow.x[i] != 0)
            want[i] = 0.5 * (w.x[i] - slow.x[i]) / 0.125 + 0.5 * want[i];
    }
    need(c,
         c->ops->row_decay(c->s, ARGS(row_decay, .d = d.p, .w = w.p, .slow = looks ? slow.p : NULL,
                                      .sum = stable ? sum.p : NULL, .rows = rows, .cols = cols, .decay = 0.1f,
                                      .mean = 0.01f, .kept = 0.5f, .lr = 0.125f, .norm_loss = norm_loss)),
         "row_decay");
    result(c, near(c, download(c, &d), want, rows * cols, limit_of(DTYPE_F32), "direction"),
           "decay of rows %lldx%lld,%s%s%s%s", (long long)rows, (long long)cols, stable ? " stable" : "",
           parts & 8 ? " of 0" : "", norm_loss ? " norm loss" : "", looks ? " lookahead" : "");
    sweep(c);
}

void device_orthogonal_check(struct checker *c)
{
    for (int i = 0; i < 2; i++) {
        unit_case(c, both[i], 1, 0);
        unit_case(c, both[i], 50001, 0.5f);
        polynomial_case(c, both[i], 1);
        polynomial_case(c, both[i], 37);
        polynomial_case(c, both[i], 256);
    }
    static const struct {
        int64_t rows, cols, kept;
        double decay;
        int64_t zeros;
    } shapes[] = {{1, 1, 1, 1, 0},      {1, 7, 1, 1, 1},      {2, 3, 1, 1, 0},    {7, 40, 7, 1, 2},
                  {12, 301, 5, 0.3, 0}, {33, 33, 33, 0.9, 0}, {24, 64, 24, 1, 0}, {40, 700, 8, 0.8, 3}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        orthonormal_case(c, shapes[i].rows, shapes[i].cols, shapes[i].decay, shapes[i].zeros);
        jacobi_case(c, shapes[i].rows, shapes[i].cols, shapes[i].kept, shapes[i].decay, shapes[i].zeros);
    }
    for (int parts = 0; parts < 8; parts++) {
        row_gradient_case(c, 5, 33, parts);
        row_decay_case(c, 5, 33, parts);
    }
    row_gradient_case(c, 3, 2, 7);
    row_gradient_case(c, 300, 1000, 7);
    row_decay_case(c, 3, 7, 9);
    row_decay_case(c, 300, 1000, 7);
    for (int i = 0; i < 4; i++)
        moments_case(c, i == 0 ? 20001 : 1003, i & 1, i & 2);
}
