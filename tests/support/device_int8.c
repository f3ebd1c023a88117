/* SPDX-License-Identifier: Apache-2.0 */
/* device_int8.c - products in int8 against the contract: codes and sums are whole numbers, so a product that is not
 * added to anything has its bits. */
#include <math.h>
#include <string.h>

#include "support/device_checker.h"
#include "support/device_ops.h"

/* Codes of an operand in place of its elements, and what a code of 1 of each line stands for. */
static void ref_int8(double *x, float *one, int64_t lines, int64_t of, int64_t line_stride, int64_t stride,
                     bool by_line)
{
    double all = 0.0;
    for (int64_t i = 0; i < lines * of; i++)
        all = fmax(all, fabs(x[i / of * line_stride + i % of * stride]));
    for (int64_t l = 0; l < lines; l++) {
        double most = 0.0;
        for (int64_t i = 0; i < of; i++)
            most = fmax(most, fabs(x[l * line_stride + i * stride]));
        const float by = (float)(127.0 / fmax(by_line ? most : all, INT8_LEAST));
        for (int64_t i = 0; i < of; i++) {
            double *const e = &x[l * line_stride + i * stride];
            *e = (double)rintf((float)*e * by);
        }
        one[l] = 1.0f / by;
    }
}

enum content { NOISE, ROWS_OF_ZEROS, OUTLIERS, CONTENTS };

/* An operand of lines and rows as they lie in memory. Some lines have another size than others. */
static struct tensor operand(struct checker *c, int64_t rows, int64_t ld, enum dtype dt, enum content what)
{
    struct tensor t = empty(c, rows * ld, dt);
    for (int64_t i = 0; i < t.n; i++)
        t.x[i] = what == ROWS_OF_ZEROS && i / ld % 3 == 1 ? 0 : ldexp(uniform(c, -1.0, 1.0), (int)(i / ld % 7) - 3);
    if (what == OUTLIERS)
        t.x[next_random(c) % (uint64_t)t.n] = -3000;
    upload(c, &t);
    return t;
}

struct shape {
    int64_t m, n, k, pad;
};

static titan_status product(struct checker *c, const struct int8_product *how, const struct tensor *o,
                            const struct tensor *a, const struct tensor *b, bool tb, const struct shape *z, double beta)
{
    void *work = device_memory(c, c->ops->matmul_i8_work_bytes(c->h->dev, a->dt, z->m, z->n, z->k));
    return c->ops->matmul_i8(c->s, ARGS(matmul, .c = o->p, .c_dt = o->dt, .ldc = z->n + z->pad, .a = a->p,
                                        .lda = z->k + z->pad, .b = b->p, .tb = tb, .ldb = (tb ? z->k : z->n) + z->pad,
                                        .ab_dt = a->dt, .m = z->m, .n = z->n, .k = z->k, .beta = (float)beta,
                                        .int8 = how, .work = work));
}

static void matmul_i8_case(struct checker *c, bool b_lines, enum content what, enum dtype ab, enum dtype cd, bool tb,
                           const struct shape *z, double beta)
{
    const struct int8_product how = {.b_lines = b_lines};
    const int64_t lda = z->k + z->pad, ldb = (tb ? z->k : z->n) + z->pad, ldc = z->n + z->pad;
    struct tensor a = operand(c, z->m, lda, ab, what), b = operand(c, tb ? z->n : z->k, ldb, ab, what),
                  o = noise(c, z->m * ldc, cd, 1.0);
    double *want = values(c, z->m * ldc), *exact = values(c, z->m * z->n), *bound = values(c, z->m * z->n);
    float one_a[512], one_b[512];

    titan_assert(z->m <= 512 && z->n <= 512);
    memcpy(want, o.x, (size_t)(z->m * ldc) * sizeof *want); /* what lies between the rows must stay */
    for (int64_t i = 0; i < z->m * z->n; i++) {             /* the contract's bound of the error */
        double sum = 0, size_a = 0, size_b = 0, most_a = 0, most_b = 0;
        for (int64_t p = 0; p < z->k; p++) {
            const double x = a.x[i / z->n * lda + p], y = b.x[tb ? i % z->n * ldb + p : p * ldb + i % z->n];
            sum += x * y, size_a += fabs(x), size_b += fabs(y);
            most_a = fmax(most_a, fabs(x)), most_b = fmax(most_b, fabs(y));
        }
        for (int64_t j = 0; j < z->n * z->k && !b_lines; j++)
            most_b = fmax(most_b, fabs(b.x[j / (tb ? z->k : z->n) * ldb + j % (tb ? z->k : z->n)]));
        exact[i] = sum;
        bound[i] = most_a / 254 * size_b + most_b / 254 * size_a + (double)z->k * most_a * most_b / 254 / 254;
    }
    ref_int8(a.x, one_a, z->m, z->k, lda, 1, true);
    ref_int8(b.x, one_b, z->n, z->k, tb ? ldb : 1, tb ? 1 : ldb, b_lines);
    bool ok = true;
    for (int64_t i = 0; i < z->m; i++)
        for (int64_t j = 0; j < z->n; j++) {
            double sum = 0.0;
            for (int64_t p = 0; p < z->k; p++)
                sum += a.x[i * lda + p] * b.x[tb ? j * ldb + p : p * ldb + j];
            const float x = (float)sum * one_a[i] * one_b[j];
            want[i * ldc + j] = beta * o.x[i * ldc + j] + (double)x;
            ok = ok && fabs((double)x - exact[i * z->n + j]) <=
                           bound[i * z->n + j] * (1 + 1e-5) + 1e-6 * fabs(exact[i * z->n + j]);
        }
    result(c, ok, "the reference of int8 is within the bound of its errors");
    need(c, product(c, &how, &o, &a, &b, tb, z, beta), "int8");
    double *got = download(c, &o);
    ok = beta == 0 && cd == DTYPE_F32 && z->pad == 0 ? same(c, got, want, z->m * ldc, "product")
                                                     : near(c, got, want, z->m * ldc, limit_of(cd), "product");
    for (int64_t i = 0; i < z->m && z->pad; i++)
        ok = ok && same(c, got + i * ldc + z->n, want + i * ldc + z->n, z->pad, "between rows");
    result(c, ok, "matmul_i8 %s to %s N%c %lldx%lldx%lld ld+%lld beta %g%s, content %d", name_of(ab), name_of(cd),
           tb ? 'T' : 'N', (long long)z->m, (long long)z->n, (long long)z->k, (long long)z->pad, beta,
           b_lines ? " lines of b" : "", (int)what);
    sweep(c);
}

/* A large element, or an element that is not finite, changes its own row alone. */
static void outlier_case(struct checker *c, enum dtype dt, double outlier)
{
    const struct shape z = {37, 40, 72, 0};
    const struct int8_product how = {false};
    struct tensor a = noise(c, z.m * z.k, dt, 1.0), b = noise(c, z.n * z.k, dt, 1.0),
                  o = noise(c, z.m * z.n, DTYPE_F32, 1.0), changed = noise(c, z.m * z.n, DTYPE_F32, 1.0);
    const int64_t row = 17;

    need(c, product(c, &how, &o, &a, &b, true, &z, 0), "int8");
    a.x[row * z.k + 5] = outlier;
    upload(c, &a);
    need(c, product(c, &how, &changed, &a, &b, true, &z, 0), "int8 with an outlier");
    const double *before = download(c, &o), *after = download(c, &changed);
    bool ok = true, differs = false;
    for (int64_t i = 0; i < z.m * z.n; i++) {
        ok = ok && (i / z.n == row || before[i] == after[i]);
        ok = ok && (i / z.n != row || isfinite(outlier) || !isfinite(after[i]));
        differs = differs || (i / z.n == row && before[i] != after[i]);
    }
    result(c, ok && differs, "int8 %s: %g in a row stays in the row", name_of(dt), outlier);
    sweep(c);
}

/* An element of b that is not finite spoils what has its scale. */
static void spoilt_case(struct checker *c, enum dtype dt, bool tb, bool b_lines, double bad)
{
    const struct shape z = {19, 45, 33, 0};
    const struct int8_product how = {b_lines};
    struct tensor a = noise(c, z.m * z.k, dt, 1.0), b = noise(c, z.n * z.k, dt, 1.0),
                  o = noise(c, z.m * z.n, DTYPE_F32, 1.0);
    const int64_t line = 41, p = 7;
    bool ok = true;

    b.x[tb ? line * z.k + p : p * z.n + line] = bad;
    upload(c, &b);
    need(c, product(c, &how, &o, &a, &b, tb, &z, 0), "int8");
    const double *got = download(c, &o);
    for (int64_t i = 0; i < z.m * z.n; i++)
        ok = ok && !isfinite(got[i]) == (!b_lines || i % z.n == line);
    result(c, ok, "int8 %s N%c: %g in b spoils its %s", name_of(dt), tb ? 'T' : 'N', bad, b_lines ? "line" : "operand");
    sweep(c);
}

/* Rows as codes and back: the values of the codes that a product makes, to the bit, whatever is between the rows. */
static void rows_case(struct checker *c, int64_t n, int64_t width, enum dtype dt, enum content what)
{
    struct tensor x = operand(c, n, width, dt, what), out = noise(c, n * width, dt, 1.0);
    uint8_t *const codes = device_memory(c, (size_t)int8_rows_bytes(n, width));
    double *want = values(c, n * width);
    float one[512];

    titan_assert(n <= 512);
    memcpy(want, x.x, (size_t)(n * width) * sizeof *want);
    ref_int8(want, one, n, width, width, 1, true);
    for (int64_t i = 0; i < n * width; i++) {
        const float value = (float)(int)want[i] * one[i / width]; /* no code is -0 */
        want[i] = dt == DTYPE_BF16 ? (double)from_bf16(to_bf16(value)) : (double)value;
    }
    need(c, c->ops->rows_encode(c->s, ARGS(rows_encode, .codes = codes, .x = x.p, .dt = dt, .n = n, .c = width)),
         "rows_encode");
    need(c, c->ops->rows_decode(c->s, ARGS(rows_decode, .out = out.p, .codes = codes, .dt = dt, .n = n, .c = width)),
         "rows_decode");
    result(c, same(c, download(c, &out), want, n * width, "values"), "rows of codes %s %lldx%lld, content %d",
           name_of(dt), (long long)n, (long long)width, (int)what);
    sweep(c);
}

/* An element that is not finite spoils its own row alone. */
static void spoilt_row_case(struct checker *c, enum dtype dt, double bad)
{
    enum { N = 5, C = 40, ROW = 3 };
    struct tensor x = noise(c, (int64_t)N * C, dt, 1.0), out = noise(c, (int64_t)N * C, dt, 1.0);
    uint8_t *const codes = device_memory(c, (size_t)int8_rows_bytes(N, C));
    bool ok = true;

    x.x[ROW * C + 7] = bad;
    upload(c, &x);
    need(c, c->ops->rows_encode(c->s, ARGS(rows_encode, .codes = codes, .x = x.p, .dt = dt, .n = N, .c = C)),
         "rows_encode");
    need(c, c->ops->rows_decode(c->s, ARGS(rows_decode, .out = out.p, .codes = codes, .dt = dt, .n = N, .c = C)),
         "rows_decode");
    const double *got = download(c, &out);
    for (int64_t i = 0; i < (int64_t)N * C; i++)
        ok = ok && !isfinite(got[i]) == (i / C == ROW);
    ok = ok && c->ops->rows_encode(
                   c->s, ARGS(rows_encode, .codes = codes, .x = x.p, .dt = DTYPE_I32, .n = N, .c = C)) == TITAN_EINVAL;
    ok = ok && c->ops->rows_decode(c->s, ARGS(rows_decode, .out = out.p, .codes = codes, .dt = dt, .n = -1, .c = C)) ==
                   TITAN_EINVAL;
    result(c, ok, "rows of codes %s: %g spoils its row; other types are refused", name_of(dt), bad);
    sweep(c);
}

static void check_refusals(struct checker *c)
{
    const struct int8_product how = {false};
    struct tensor o = noise(c, 16, DTYPE_F32, 1.0);
    struct matmul_args a = {.c = o.p,
                            .c_dt = DTYPE_F32,
                            .ldc = 1,
                            .a = o.p,
                            .lda = 1,
                            .b = o.p,
                            .ldb = 1,
                            .ab_dt = DTYPE_F32,
                            .m = 1,
                            .n = 1,
                            .k = 1,
                            .int8 = &how,
                            .work = o.p};
    a.ta = true;
    result(c, c->ops->matmul_i8(c->s, &a) == TITAN_EINVAL, "matmul_i8 refuses a transposed a");
    a.ta = false;
    a.lda = a.ldb = a.k = INT8_DEPTH_MAX + 1;
    a.tb = true;
    result(c, c->ops->matmul_i8(c->s, &a) == TITAN_EINVAL, "matmul_i8 refuses sums that int32 does not hold");
    a.lda = a.ldb = a.k = 4;
    a.ldc = 0;
    result(c, c->ops->matmul_i8(c->s, &a) == TITAN_EINVAL, "matmul_i8 refuses a row stride below the width");
    sweep(c);
}

/* The largest sum: all codes 127, and 127 by -127. */
static void depth_case(struct checker *c)
{
    const struct shape z = {1, 2, INT8_DEPTH_MAX, 0};
    const struct int8_product how = {true};
    struct tensor a = empty(c, z.k, DTYPE_BF16), b = empty(c, 2 * z.k, DTYPE_BF16), o = noise(c, 2, DTYPE_F32, 1.0);
    for (int64_t i = 0; i < z.k; i++)
        a.x[i] = b.x[i] = 127, b.x[z.k + i] = -127;
    upload(c, &a);
    upload(c, &b);
    need(c, product(c, &how, &o, &a, &b, true, &z, 0), "int8");
    const double *got = download(c, &o), most = 127.0 * 127 * INT8_DEPTH_MAX;
    result(c, got[0] == most && got[1] == -most, "the longest line has its sum, %g and %g", got[0], got[1]);
    sweep(c);
}

void device_int8_check(struct checker *c)
{
    static const struct shape shapes[] = {{1, 1, 1, 0},     {17, 33, 70, 3},   {64, 48, 96, 0}, {144, 80, 272, 8},
                                          {13, 129, 66, 0}, {130, 31, 515, 0}, {12, 32, 64, 0}};
    static const double bads[] = {NAN, INFINITY, -INFINITY};

    check_refusals(c);
    depth_case(c);
    for (int i = 0; i < 3; i++)
        for (int way = 0; way < 8; way++)
            spoilt_case(c, both[way & 1], way & 2, way & 4, bads[i]);
    static const int64_t rows[][2] = {{1, 1}, {3, 16}, {17, 70}, {64, 96}, {129, 1040}, {5, 515}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int dt = 0; dt < 2; dt++)
            for (int what = 0; what < CONTENTS; what++)
                rows_case(c, rows[i][0], rows[i][1], both[dt], (enum content)what);
    for (int i = 0; i < 6; i++)
        spoilt_row_case(c, both[i & 1], bads[i / 2]);
    for (int i = 0; i < 4; i++)
        for (int dt = 0; dt < 2; dt++)
            outlier_case(c, both[dt], i == 3 ? 40.0 : bads[i]);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int way = 0; way < 32; way++) {
            const enum dtype ab = way & 1 ? DTYPE_BF16 : DTYPE_F32, cd = way & 2 ? ab : DTYPE_F32;
            matmul_i8_case(c, way & 4, (enum content)((i + (size_t)way / 4) % CONTENTS), ab, cd, way & 8, &shapes[i],
                           way & 16 ? 1 : 0);
        }
}
