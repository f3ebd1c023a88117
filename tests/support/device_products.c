/* SPDX-License-Identifier: Apache-2.0 */
/* device_products.c - products of matrices against plain sums. */
#include <string.h>

#include "support/device_checker.h"
#include "support/device_ops.h"

static void matmul_case(struct checker *c, enum dtype ab, enum dtype cd, bool ta, bool tb, int64_t m, int64_t n,
                        int64_t k, int64_t pad, double beta)
{
    int64_t lda = (ta ? m : k) + pad, ldb = (tb ? k : n) + pad, ldc = n + pad;
    struct tensor a = noise(c, (ta ? k : m) * lda, ab, 1.0), b = noise(c, (tb ? n : k) * ldb, ab, 1.0);
    struct tensor o = noise(c, m * ldc, cd, 1.0);
    double *want = values(c, m * ldc);
    memcpy(want, o.x, (size_t)(m * ldc) * sizeof(*want)); /* what lies between the rows must stay */
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = beta * o.x[i * ldc + j];
            for (int64_t p = 0; p < k; p++)
                sum += a.x[ta ? p * lda + i : i * lda + p] * b.x[tb ? j * ldb + p : p * ldb + j];
            want[i * ldc + j] = sum;
        }
    need(c,
         c->ops->matmul(c->s, ARGS(matmul, .c = o.p, .c_dt = cd, .ldc = ldc, .a = a.p, .ta = ta, .lda = lda, .b = b.p,
                                   .tb = tb, .ldb = ldb, .ab_dt = ab, .m = m, .n = n, .k = k, .beta = (float)beta)),
         "matmul");
    double *got = download(c, &o);
    bool ok = near(c, got, want, m * ldc, limit_of(cd), "product");
    for (int64_t i = 0; i < m && pad; i++)
        ok = ok && same(c, got + i * ldc + n, want + i * ldc + n, pad, "between rows");
    result(c, ok, "matmul %s to %s %c%c %lldx%lldx%lld ld+%lld beta %g", name_of(ab), name_of(cd), ta ? 'T' : 'N',
           tb ? 'T' : 'N', (long long)m, (long long)n, (long long)k, (long long)pad, beta);
    sweep(c);
}

/* Operands in the middle of a buffer, where only the alignment of an element is left. */
static void check_matmul_unaligned(struct checker *c)
{
    enum { M = 24, N = 40, K = 56 };
    struct tensor a = noise(c, M * K + 1, DTYPE_BF16, 1.0), b = noise(c, N * K + 1, DTYPE_BF16, 1.0);
    struct tensor o = noise(c, M * N + 1, DTYPE_F32, 1.0);
    double *want = values(c, M * N + 1);
    want[0] = o.x[0];
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < N; j++) {
            want[1 + i * N + j] = o.x[1 + i * N + j];
            for (int64_t k = 0; k < K; k++)
                want[1 + i * N + j] += a.x[1 + i * K + k] * b.x[1 + j * K + k];
        }
    need(c,
         c->ops->matmul(c->s, ARGS(matmul, .c = (float *)o.p + 1, .c_dt = DTYPE_F32, .ldc = N, .a = (uint16_t *)a.p + 1,
                                   .lda = K, .b = (uint16_t *)b.p + 1, .tb = true, .ldb = K, .ab_dt = DTYPE_BF16,
                                   .m = M, .n = N, .k = K, .beta = 1.0f)),
         "matmul");
    result(c, near(c, download(c, &o), want, M * N + 1, limit_of(DTYPE_F32), "product"),
           "matmul of operands aligned to an element only");
    sweep(c);
}

/* A product in the way that is taken now, against the first one. */
static bool product_again(struct checker *c, struct tensor *o, const struct tensor *a, const struct tensor *b,
                          const double *want)
{
    need(c,
         c->ops->matmul(c->s, ARGS(matmul, .c = o->p, .c_dt = DTYPE_F32, .ldc = 40, .a = a->p, .lda = 56, .b = b->p,
                                   .tb = true, .ldb = 56, .ab_dt = DTYPE_BF16, .m = 24, .n = 40, .k = 56)),
         "matmul");
    return near(c, download(c, o), want, 24 * 40, limit_of(DTYPE_F32), "product");
}

/* What is noted is timed, and chosen; ways that are none of the device's are refused. */
static void check_ways(struct checker *c)
{
    enum { M = 24, N = 40, K = 56, MOST = 8 };
    const struct device_ops *const ops = c->ops;
    struct device *const dev = c->h->dev;
    struct tensor a = noise(c, M * K, DTYPE_BF16, 1.0), b = noise(c, N * K, DTYPE_BF16, 1.0);
    struct tensor o = empty(c, M * N, DTYPE_F32);
    struct product_way ways[MOST], same_way, wrong;
    struct titan_error err;

    need(c,
         ops->matmul(c->s, ARGS(matmul, .c = o.p, .c_dt = DTYPE_F32, .ldc = N, .a = a.p, .lda = K, .b = b.p, .tb = true,
                                .ldb = K, .ab_dt = DTYPE_BF16, .m = M, .n = N, .k = K)),
         "matmul");
    double *const want = download(c, &o);
    ops->products_note(dev, true);
    bool ok = product_again(c, &o, &a, &b, want) && product_again(c, &o, &a, &b, want);
    ops->products_note(dev, false);
    need(c,
         ops->matmul(c->s, ARGS(matmul, .c = o.p, .c_dt = DTYPE_F32, .ldc = N, .a = a.p, .lda = K, .b = b.p, .tb = true,
                                .ldb = K, .ab_dt = DTYPE_BF16, .m = M, .n = N, .k = K, .beta = 1.0f)),
         "matmul");
    const int n = ops->products_noted(dev, ways, MOST);
    result(c, ok && n == 1 && !ways[0].chosen, "a product that was asked for twice is noted once, another is not");
    ok = n == 1 && ops->product_time(c->s, &ways[0], &err) == TITAN_OK && ways[0].chosen;
    ok = ok && ops->products_noted(dev, &same_way, 1) == 1 && memcmp(&same_way, &ways[0], sizeof same_way) == 0;
    result(c, ok && product_again(c, &o, &a, &b, want), "its ways are timed, and the one that is chosen gives it");
    wrong = ways[0];
    memset(wrong.how, 0xff, sizeof wrong.how);
    ok = ops->product_choose(dev, &wrong, &err) == TITAN_EUNSUPPORTED && product_again(c, &o, &a, &b, want);
    wrong = ways[0];
    wrong.product++;
    ok = ok && ops->product_choose(dev, &wrong, &err) == TITAN_EINVAL &&
         ops->product_time(c->s, &wrong, &err) == TITAN_EINVAL;
    result(c, ok && ops->product_choose(dev, &ways[0], &err) == TITAN_OK && product_again(c, &o, &a, &b, want),
           "what is no way of a product here is refused");
    sweep(c);
}

void device_products_check(struct checker *c)
{
    check_matmul_unaligned(c);
    if (c->ops->products_note)
        check_ways(c);
    static const struct {
        int64_t m, n, k, pad;
    } shapes[] = {{1, 1, 1, 0}, {3, 5, 7, 0}, {17, 33, 1, 3}, {64, 48, 96, 8}, {128, 257, 65, 0}, {1, 130, 300, 16}};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (int t = 0; t < 4; t++)
            for (int kind = 0; kind < 3; kind++) {
                enum dtype ab = kind == 0 ? DTYPE_F32 : DTYPE_BF16, cd = kind == 2 ? DTYPE_BF16 : DTYPE_F32;
                matmul_case(c, ab, cd, t & 1, t >> 1, shapes[i].m, shapes[i].n, shapes[i].k, shapes[i].pad,
                            (double)((i + (size_t)t) % 2));
            }
    /* The training shapes: forward, dgrad, wgrad. */
    matmul_case(c, DTYPE_BF16, DTYPE_BF16, false, true, 256, 96, 256, 0, 0.0);
    matmul_case(c, DTYPE_BF16, DTYPE_BF16, false, false, 256, 256, 96, 0, 0.0);
    matmul_case(c, DTYPE_BF16, DTYPE_F32, true, false, 96, 256, 256, 0, 1.0);
    struct tensor o = noise(c, 12, DTYPE_F32, 1.0);
    double *zero = values(c, 12);
    need(c,
         c->ops->matmul(c->s, ARGS(matmul, .c = o.p, .c_dt = DTYPE_F32, .ldc = 4, .a = o.p, .lda = 1, .b = o.p,
                                   .ldb = 4, .ab_dt = DTYPE_F32, .m = 3, .n = 4)),
         "k=0");
    result(c, same(c, download(c, &o), zero, 12, "k=0"), "matmul with k = 0 clears");
    result(c,
           c->ops->matmul(c->s, ARGS(matmul, .c = o.p, .c_dt = DTYPE_F32, .ldc = 3, .a = o.p, .lda = 1, .b = o.p,
                                     .ldb = 4, .ab_dt = DTYPE_F32, .m = 3, .n = 4, .k = 1)) == TITAN_EINVAL &&
               c->ops->matmul(c->s, ARGS(matmul, .c = o.p, .c_dt = DTYPE_BF16, .ldc = 4, .a = o.p, .lda = 1, .b = o.p,
                                         .ldb = 4, .ab_dt = DTYPE_F32, .m = 3, .n = 4, .k = 1)) == TITAN_EINVAL,
           "matmul refuses a row stride below the width and a narrower destination");
    sweep(c);
}
