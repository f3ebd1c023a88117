/* SPDX-License-Identifier: Apache-2.0 */
/* device_float8.c - products in float8 against the contract in fp64. */
#include <math.h>
#include <string.h>

#include "base/float8.h"
#include "support/device_checker.h"
#include "support/device_ops.h"

/* What an operand's element becomes, and what its line's scale is undone with: fp64 from the contract's words. given:
 * the scale; 0: it comes from the largest magnitude. */
static void ref_float8(double *x, double *inverse, int64_t lines, int64_t of, int64_t line_stride, int64_t stride,
                       enum float8 type, bool by_line, bool power, double given)
{
    double largest = 0.0;
    for (int64_t l = 0; l < lines; l++)
        inverse[l] = 0.0;
    for (int64_t l = 0; l < lines; l++)
        for (int64_t i = 0; i < of; i++)
            inverse[l] = fmax(inverse[l], fabs(x[l * line_stride + i * stride]));
    for (int64_t l = 0; l < lines; l++)
        largest = fmax(largest, inverse[l]);
    for (int64_t l = 0; l < lines; l++) {
        const double most = fmax(by_line ? inverse[l] : largest, 1e-12);
        float scale = (float)((double)float8_max(type) / most);
        scale = given > 0 ? (float)given : power ? (float)exp2(floor(log2((double)scale))) : scale;
        for (int64_t i = 0; i < of; i++) {
            double *e = &x[l * line_stride + i * stride];
            *e = (double)float8_round((float)*e * scale, type);
        }
        inverse[l] = 1.0 / (double)scale;
    }
}

/* In MXFP8 elements become what they stand for, and there is nothing to undo. */
static void ref_mxfp8(double *x, int64_t lines, int64_t of, int64_t line_stride, int64_t stride)
{
    for (int64_t l = 0; l < lines; l++)
        for (int64_t from = 0; from < of; from += MX_BLOCK) {
            double *block = x + l * line_stride + from * stride, largest = 0.0;
            const int64_t n = of - from < MX_BLOCK ? of - from : MX_BLOCK;
            for (int64_t i = 0; i < n; i++)
                largest = fmax(largest, fabs(block[i * stride]));
            const double scale = largest > 0 ? exp2(fmax(floor(log2(largest)) - 8, -127)) : exp2(-127);
            for (int64_t i = 0; i < n; i++)
                block[i * stride] = (double)float8_round((float)(block[i * stride] / scale), FLOAT8_E4M3) * scale;
        }
}

/* Numbers of very different size, in runs that blocks do not follow. */
static struct tensor uneven(struct checker *c, int64_t n, enum dtype dt)
{
    struct tensor t = empty(c, n, dt);
    for (int64_t i = 0; i < n; i++)
        t.x[i] = ldexp(uniform(c, -1.0, 1.0), (int)(i / 24 * 7 % 13) - 6);
    upload(c, &t);
    return t;
}

/* identity: b is that, so the product is a's values themselves, to the bit. */
static void mxfp8_case(struct checker *c, bool identity, enum dtype ab, enum dtype cd, bool ta, bool tb, int64_t m,
                       int64_t n, int64_t k, int64_t pad, double beta)
{
    const struct float8_product how = {.blocks = true};
    const int64_t lda = (ta ? m : k) + pad, ldb = (tb ? k : n) + pad, ldc = n + pad, rows_b = tb ? n : k;
    struct tensor a = uneven(c, (ta ? k : m) * lda, ab), b = uneven(c, rows_b * ldb, ab),
                  o = noise(c, m * ldc, cd, 1.0);
    double *want = values(c, m * ldc);
    if (identity) {
        for (int64_t i = 0; i < b.n; i++)
            b.x[i] = i / ldb == i % ldb;
        upload(c, &b);
    }
    memcpy(want, o.x, (size_t)(m * ldc) * sizeof *want);
    ref_mxfp8(a.x, m, k, ta ? 1 : lda, ta ? lda : 1);
    ref_mxfp8(b.x, n, k, tb ? ldb : 1, tb ? 1 : ldb);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0.0;
            for (int64_t p = 0; p < k; p++)
                sum += a.x[ta ? p * lda + i : i * lda + p] * b.x[tb ? j * ldb + p : p * ldb + j];
            want[i * ldc + j] = beta * o.x[i * ldc + j] + sum;
        }
    void *work = device_memory(c, c->ops->matmul_f8_work_bytes(c->h->dev, ab, true, m, n, k));
    need(c,
         c->ops->matmul_f8(c->s, ARGS(matmul, .c = o.p, .c_dt = cd, .ldc = ldc, .a = a.p, .ta = ta, .lda = lda,
                                      .b = b.p, .tb = tb, .ldb = ldb, .ab_dt = ab, .m = m, .n = n, .k = k,
                                      .beta = (float)beta, .how = &how, .work = work)),
         "MXFP8");
    double *got = download(c, &o);
    bool ok = identity ? same(c, got, want, m * ldc, "values")
                       : near(c, got, want, m * ldc, fmax(limit_of(cd), c->h->info.host_memory ? 0 : 1e-3), "product");
    for (int64_t i = 0; i < m && pad; i++)
        ok = ok && same(c, got + i * ldc + n, want + i * ldc + n, pad, "between rows");
    result(c, ok, "matmul_f8 MXFP8%s %s to %s %c%c %lldx%lldx%lld ld+%lld beta %g", identity ? " values" : "",
           name_of(ab), name_of(cd), ta ? 'T' : 'N', tb ? 'T' : 'N', (long long)m, (long long)n, (long long)k,
           (long long)pad, beta);
    sweep(c);
}

/* Shapes of one block and of several tiles of scales, whole ones and not. */
static void check_mxfp8(struct checker *c)
{
    static const struct {
        int64_t m, n, k, pad;
    } shapes[] = {{1, 1, 1, 0}, {17, 33, 70, 3}, {64, 48, 96, 0}, {160, 144, 288, 0}, {150, 30, 130, 1}};
    const struct float8_product mixed = {.a = FLOAT8_E5M2, .blocks = true}, blocks = {.blocks = true};
    struct tensor o = noise(c, 16, DTYPE_F32, 1.0);
    const titan_status status =
        c->ops->matmul_f8(c->s, ARGS(matmul, .c = o.p, .c_dt = DTYPE_F32, .ldc = 1, .a = o.p, .lda = 1, .b = o.p,
                                     .ldb = 1, .ab_dt = DTYPE_F32, .m = 1, .n = 1, .k = 1,
                                     .how = c->h->info.mxfp8 ? &mixed : &blocks, .work = o.p));
    result(c, status == (c->h->info.mxfp8 ? TITAN_EINVAL : TITAN_EUNSUPPORTED),
           c->h->info.mxfp8 ? "MXFP8 is e4m3" : "a device without MXFP8 says so");
    sweep(c);
    for (int i = 0; i < (c->h->info.mxfp8 ? 5 : 0); i++)
        for (int way = 0; way < 8; way++) {
            const enum dtype ab = way & 4 ? DTYPE_BF16 : DTYPE_F32;
            const bool ta = way & 1, tb = way & 2, large = i == 3;
            if (!large || way & 4)
                mxfp8_case(c, false, ab, way & 1 ? ab : DTYPE_F32, ta, tb, shapes[i].m, shapes[i].n, shapes[i].k,
                           shapes[i].pad, (way >> 1 & 1) ^ (way >> 2 & 1));
            if (!large || !(way & 4))
                mxfp8_case(c, true, ab, DTYPE_F32, ta, tb, shapes[i].m, shapes[i].k, shapes[i].k, shapes[i].pad, 0);
        }
}

/* given: scales of a and b; 0: not given */
static void matmul_f8_case(struct checker *c, struct float8_product *how, const double given[2], enum dtype ab,
                           enum dtype cd, bool ta, bool tb, int64_t m, int64_t n, int64_t k, int64_t pad, double beta)
{
    int64_t lda = (ta ? m : k) + pad, ldb = (tb ? k : n) + pad, ldc = n + pad;
    struct tensor a = noise(c, (ta ? k : m) * lda, ab, 1.0), b = noise(c, (tb ? n : k) * ldb, ab, 1.0);
    struct tensor o = noise(c, m * ldc, cd, 1.0);
    double *want = values(c, m * ldc), *undo_a = values(c, m), *undo_b = values(c, n);
    memcpy(want, o.x, (size_t)(m * ldc) * sizeof(*want)); /* what lies between the rows must stay */
    ref_float8(a.x, undo_a, m, k, ta ? 1 : lda, ta ? lda : 1, how->a, how->a_lines, how->power_of_two, given[0]);
    ref_float8(b.x, undo_b, n, k, tb ? ldb : 1, tb ? 1 : ldb, how->b, how->b_lines, how->power_of_two, given[1]);
    struct tensor scales = empty(c, 2, DTYPE_F32);
    memcpy(scales.x, given, 2 * sizeof *given);
    upload(c, &scales);
    how->a_given = given[0] > 0 ? (const float *)scales.p : NULL;
    how->b_given = given[1] > 0 ? (const float *)scales.p + 1 : NULL;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0.0;
            for (int64_t p = 0; p < k; p++)
                sum += a.x[ta ? p * lda + i : i * lda + p] * b.x[tb ? j * ldb + p : p * ldb + j];
            want[i * ldc + j] = beta * o.x[i * ldc + j] + sum * undo_a[i] * undo_b[j];
        }
    void *work = device_memory(c, c->ops->matmul_f8_work_bytes(c->h->dev, ab, false, m, n, k));
    need(c,
         c->ops->matmul_f8(c->s, ARGS(matmul, .c = o.p, .c_dt = cd, .ldc = ldc, .a = a.p, .ta = ta, .lda = lda,
                                      .b = b.p, .tb = tb, .ldb = ldb, .ab_dt = ab, .m = m, .n = n, .k = k,
                                      .beta = (float)beta, .how = how, .work = work)),
         "float8");
    double *got = download(c, &o);
    /* Tensor cores keep some 14 bits of a sum of float8 products. */
    bool ok = near(c, got, want, m * ldc, fmax(limit_of(cd), c->h->info.host_memory ? 0 : 1e-3), "product");
    for (int64_t i = 0; i < m && pad; i++)
        ok = ok && same(c, got + i * ldc + n, want + i * ldc + n, pad, "between rows");
    result(c, ok, "matmul_f8 %s to %s %c%c %lldx%lldx%lld ld+%lld beta %g%s%s%s%s given %g %g", name_of(ab),
           name_of(cd), ta ? 'T' : 'N', tb ? 'T' : 'N', (long long)m, (long long)n, (long long)k, (long long)pad, beta,
           how->a == FLOAT8_E5M2 ? " e5m2" : "", how->a_lines ? " lines of a" : "", how->b_lines ? " lines of b" : "",
           how->power_of_two ? " powers of two" : "", given[0], given[1]);
    sweep(c);
}

/* b picks columns of a and scales are powers of two, so the product is what a's codes stand for, to the bit. With an
 * element that is not finite so is no line that has its scale. given: the scale of a; 0: not given. */
static void float8_values_case(struct checker *c, struct float8_product *how, double given, enum dtype dt, bool ta,
                               int64_t m, int64_t k, int64_t pad, double bad)
{
    const int64_t lda = (ta ? m : k) + pad, at = (int64_t)(next_random(c) % (uint64_t)(m * k)), row = at / k;
    const int64_t n = k > 400 ? k / 9 : k; /* at any place of a block of 16 codes, as all of them take long */
    struct tensor a = uneven(c, (ta ? k : m) * lda, dt), b = empty(c, k * n, dt), o = noise(c, m * n, DTYPE_F32, 1.0);
    double *undo = values(c, m), *want = values(c, m * n);
    for (int64_t j = 0; j < n; j++)
        b.x[j * k / n * n + j] = 1;
    a.x[ta ? at % k * lda + row : row * lda + at % k] += bad;
    for (int64_t i = 0; i < (ta ? k : m) * lda; i++)
        a.x[i] = i % lda < (ta ? m : k) ? a.x[i] : 1e9; /* what lies between the lines is not looked at */
    upload(c, &a);
    upload(c, &b);
    struct tensor scale = empty(c, 1, DTYPE_F32);
    scale.x[0] = given;
    upload(c, &scale);
    how->a_given = given > 0 ? scale.p : NULL;
    void *work = device_memory(c, c->ops->matmul_f8_work_bytes(c->h->dev, dt, false, m, n, k));
    need(c,
         c->ops->matmul_f8(c->s,
                           ARGS(matmul, .c = o.p, .c_dt = DTYPE_F32, .ldc = n, .a = a.p, .ta = ta, .lda = lda, .b = b.p,
                                .ldb = n, .ab_dt = dt, .m = m, .n = n, .k = k, .how = how, .work = work)),
         "float8 values");
    double *got = download(c, &o);
    bool ok = true;
    if (isfinite(bad)) {
        ref_float8(a.x, undo, m, k, ta ? 1 : lda, ta ? lda : 1, how->a, how->a_lines, how->power_of_two, given);
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++)
                want[i * n + j] = 0.0 + a.x[ta ? j * k / n * lda + i : i * lda + j * k / n] * undo[i];
        ok = same(c, got, want, m * n, "values");
    } else {
        /* On the host a NaN is no largest magnitude: with one scale it spoils its own line. A given scale stays. */
        const bool lines = how->a_lines || given > 0 || (isnan(bad) && c->h->info.host_memory);
        for (int64_t i = 0; i < m * n; i++)
            ok = ok && !isfinite(got[i]) == (!lines || i / n == row);
    }
    result(c, ok, "float8 values %s %c %lldx%lld ld+%lld%s%s + %g given %g", name_of(dt), ta ? 'T' : 'N', (long long)m,
           (long long)k, (long long)pad, how->a == FLOAT8_E5M2 ? " e5m2" : "", how->a_lines ? " lines" : "", bad,
           given);
    sweep(c);
}

/* Less than a block of codes and several, whole and not, in rows that begin at multiples of 16 bytes and that do not.
 */
static void check_float8_values(struct checker *c)
{
    static const struct {
        int64_t m, k, pad;
    } shapes[] = {{1, 1, 0},    {3, 21, 3},    {64, 128, 0},  {72, 136, 8},
                  {40, 304, 0}, {72, 272, 16}, {129, 150, 5}, {9, 1040, 0}};
    static const double bads[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int way = 0; way < 8; way++) {
            struct float8_product how = {
                .a = (way ^ i) & 1 ? FLOAT8_E5M2 : FLOAT8_E4M3, .a_lines = way & 4, .power_of_two = true};
            for (int dt = 0; dt < 2; dt++)
                float8_values_case(c, &how, 0, both[dt], way & 2, shapes[i].m, shapes[i].k, shapes[i].pad,
                                   i & 1 ? 1000.0 : 0.0);
            how.power_of_two = false;
            float8_values_case(c, &how, 0, both[way & 1], way & 2, shapes[i].m, shapes[i].k, shapes[i].pad,
                               bads[(i + (size_t)way) % 3]);
            if (how.a_lines)
                continue;
            /* Given scales: all of the type's range, values beyond it, and what is not finite. */
            how.power_of_two = true;
            float8_values_case(c, &how, 0x1p-2, both[way & 1], way & 2, shapes[i].m, shapes[i].k, shapes[i].pad, 0.0);
            float8_values_case(c, &how, 0x1p9, both[way & 1], way & 2, shapes[i].m, shapes[i].k, shapes[i].pad, 3e5);
            float8_values_case(c, &how, 0x1p3, both[way & 1], way & 2, shapes[i].m, shapes[i].k, shapes[i].pad,
                               bads[(i + (size_t)way) % 3]);
        }
}

/* Codes of b that are made apart, in two parts of which the maxima are brought together, give the product of the same
 * bits; with powers of two (power) also where the scale is given. */
static void float8_codes_case(struct checker *c, bool power, enum dtype dt, bool tb, int64_t m, int64_t n, int64_t k,
                              int64_t cut)
{
    const int64_t cols = tb ? k : n, all = n * k;
    struct tensor a = noise(c, m * k, dt, 1.0), b = noise(c, all, dt, 1.0), o = noise(c, 3 * m * n, DTYPE_F32, 1.0);
    uint8_t *codes = device_memory(c, (size_t)all);
    float *scales = device_memory(c, 8 * sizeof *scales), *o_float = (float *)o.p;
    const size_t elem = dtype_bytes(dt);
    struct float8_product how = {.a = FLOAT8_E5M2, .b = FLOAT8_E4M3, .power_of_two = power};
    void *work = device_memory(c, c->ops->matmul_f8_work_bytes(c->h->dev, dt, false, m, n, k));

    need(c, c->ops->float8_largest(c->s, scales + 1, b.p, dt, (size_t)cut), "largest");
    need(c, c->ops->float8_largest(c->s, scales + 3, (char *)b.p + (size_t)cut * elem, dt, (size_t)(all - cut)),
         "largest");
    need(c, c->ops->float8_scales(c->s, scales, scales + 1, 2, 2, 1, power), "scales");
    need(c, c->ops->float8_encode(c->s, codes, b.p, dt, (size_t)cut, scales), "codes");
    need(c, c->ops->float8_encode(c->s, codes + cut, (char *)b.p + (size_t)cut * elem, dt, (size_t)(all - cut), scales),
         "codes");
    need(c,
         c->ops->matmul_f8(c->s,
                           ARGS(matmul, .c = o.p, .c_dt = DTYPE_F32, .ldc = n, .a = a.p, .lda = k, .b = b.p, .tb = tb,
                                .ldb = cols, .ab_dt = dt, .m = m, .n = n, .k = k, .how = &how, .work = work)),
         "float8");
    how.b_scale = scales;
    need(c,
         c->ops->matmul_f8(c->s, ARGS(matmul, .c = o_float + m * n, .c_dt = DTYPE_F32, .ldc = n, .a = a.p, .lda = k,
                                      .b = codes, .tb = tb, .ldb = cols, .ab_dt = dt, .m = m, .n = n, .k = k,
                                      .how = &how, .work = work)),
         "float8 of codes");
    how.b_scale = NULL;
    how.b_given = scales;
    need(c,
         c->ops->matmul_f8(c->s, ARGS(matmul, .c = o_float + 2 * m * n, .c_dt = DTYPE_F32, .ldc = n, .a = a.p, .lda = k,
                                      .b = b.p, .tb = tb, .ldb = cols, .ab_dt = dt, .m = m, .n = n, .k = k, .how = &how,
                                      .work = work)),
         "float8 by a given scale");
    double *got = download(c, &o);
    const size_t bytes = (size_t)(m * n) * sizeof *got;
    result(c, memcmp(got, got + m * n, bytes) == 0 && memcmp(got, got + 2 * m * n, bytes) == 0,
           "codes made apart, %s %c %lldx%lldx%lld cut at %lld%s", name_of(dt), tb ? 'T' : 'N', (long long)m,
           (long long)n, (long long)k, (long long)cut, power ? " power of two" : "");
    sweep(c);
}

static void check_float8_codes(struct checker *c)
{
    const float *const some = (const float *)1;
    const struct float8_product refused[] = {{.b_lines = true, .b_scale = some},
                                             {.a_lines = true, .a_given = some},
                                             {.b_lines = true, .b_given = some},
                                             {.b_scale = some, .b_given = some},
                                             {.blocks = true, .a_given = some}};
    struct tensor o = noise(c, 256, DTYPE_F32, 1.0);

    for (size_t i = 0; i < (c->h->info.mxfp8 ? 5 : 4); i++)
        result(c,
               c->ops->matmul_f8(c->s, ARGS(matmul, .c = o.p, .c_dt = DTYPE_F32, .ldc = 1, .a = o.p, .lda = 1, .b = o.p,
                                            .ldb = 1, .ab_dt = DTYPE_F32, .m = 1, .n = 1, .k = 1, .how = &refused[i],
                                            .work = o.p)) == TITAN_EINVAL,
               "codes have one scale, a given scale is an operand's only one: %zu", i);
    for (int way = 0; way < 4; way++) {
        const enum dtype dt = way & 1 ? DTYPE_BF16 : DTYPE_F32;
        float8_codes_case(c, way & 1, dt, way & 2, 32, 48, 64, 48 * 20);
        float8_codes_case(c, way & 1, dt, way & 2, 17, 33, 70, 33 * 7 + 5);
        float8_codes_case(c, way & 1, dt, way & 2, 16, 80, 208, 0);
        float8_codes_case(c, way & 1, dt, way & 2, 16, 144, 320, 144 * 120 + 7);
        float8_codes_case(c, way & 1, dt, way & 2, 24, 130, 300, 130 * 16 * 7);
    }
    sweep(c);
}

/* Each way of transposition with each pair of scales. */
void device_float8_check(struct checker *c)
{
    static const struct {
        int64_t m, n, k, pad;
    } shapes[] = {{1, 1, 1, 0}, {17, 33, 70, 3}, {64, 48, 96, 0}, {144, 80, 272, 8}};
    struct tensor o = noise(c, 16, DTYPE_F32, 1.0);
    const struct float8_product plain = {.a = FLOAT8_E4M3, .b = FLOAT8_E4M3};
    const titan_status status =
        c->ops->matmul_f8(c->s, ARGS(matmul, .c = o.p, .c_dt = DTYPE_F32, .ldc = 3, .a = o.p, .lda = 1, .b = o.p,
                                     .ldb = 4, .ab_dt = DTYPE_F32, .m = 3, .n = 4, .k = 1, .how = &plain, .work = o.p));
    if (!c->h->info.float8) {
        result(c, status == TITAN_EUNSUPPORTED, "a device without float8 says so");
        sweep(c);
        return;
    }
    result(c, status == TITAN_EINVAL, "matmul_f8 refuses a row stride below the width");
    sweep(c);
    check_float8_codes(c);
    check_float8_values(c);
    check_mxfp8(c);
    for (int i = 0; i < 4; i++)
        for (int way = 0; way < 16; way++) {
            struct float8_product how = {.a = way & 1 ? FLOAT8_E5M2 : FLOAT8_E4M3,
                                         .a_lines = way & 4,
                                         .b_lines = way & 8,
                                         .power_of_two = way & 2};
            /* noise is of magnitude 1 at most: the second scale of each pair has values saturate */
            const double given[2] = {way & 4 ? 0 : way & 2 ? 0x1p5 : 0, way & 8 ? 0 : way & 1 ? 0x1p9 : 0};
            const enum dtype ab = way & 1 ? DTYPE_BF16 : DTYPE_F32, cd = way & 2 ? ab : DTYPE_F32;
            matmul_f8_case(c, &how, (const double[2]){0}, ab, cd, way >> 2 & 1, way >> 1 & 1, shapes[i].m, shapes[i].n,
                           shapes[i].k, shapes[i].pad, way & 1);
            matmul_f8_case(c, &how, given, ab, cd, way >> 3 & 1, way & 1, shapes[i].m, shapes[i].n, shapes[i].k,
                           shapes[i].pad, way >> 1 & 1);
        }
}
