/* SPDX-License-Identifier: Apache-2.0 */
/* device_ops.c - see device_ops.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bf16.h"
#include "base/hash.h"
#include "base/rng.h"
#include "support/device_checker.h"
#include "support/device_ops.h"

/* --- reference, fp64 ---------------------------------------------------------------------------------------------- */

static void ref_rmsnorm(double *y, double *rstd, const double *x, const double *g, int64_t n, int64_t c, double eps)
{
    for (int64_t i = 0; i < n; i++) {
        double sum = 0.0;
        for (int64_t j = 0; j < c; j++)
            sum += x[i * c + j] * x[i * c + j];
        rstd[i] = 1.0 / sqrt(sum / (double)c + eps);
        for (int64_t j = 0; j < c; j++)
            y[i * c + j] = x[i * c + j] * rstd[i] * g[j];
    }
}
static void ref_rmsnorm_grad(double *dx, double *dg, const double *dy, const double *x, const double *g,
                             const double *rstd, int64_t n, int64_t c)
{
    for (int64_t i = 0; i < n; i++) {
        double dot = 0.0, r = rstd[i];
        for (int64_t j = 0; j < c; j++)
            dot += dy[i * c + j] * g[j] * x[i * c + j];
        for (int64_t j = 0; j < c; j++) {
            dx[i * c + j] = dy[i * c + j] * g[j] * r - x[i * c + j] * dot * r * r * r / (double)c;
            dg[j] += dy[i * c + j] * x[i * c + j] * r;
        }
    }
}

/* An attention problem in fp64; places as device.h's index, start and key_index, NULL = causal. */
struct attention_ref {
    int64_t b, tq, tk, h, kv, d, dv;
    const double *index, *start, *key_index;
    double scale; /* 0: 1/sqrt(D) */
};

static double ref_scale(const struct attention_ref *s)
{
    return s->scale > 0.0 ? s->scale : 1.0 / sqrt((double)s->d);
}

static bool ref_sees(const struct attention_ref *s, int64_t b, int64_t i, int64_t j)
{
    if (!s->index)
        return j <= i;
    double place = s->key_index[b * s->tk + j];
    return place >= s->start[b * s->tq + i] && place <= s->index[b * s->tq + i];
}

/* q (B*Tq,H,D), k (B*Tk,K,D), v (B*Tk,K,Dv), dense. */
static void ref_attention(double *out, double *lse, const double *q, const double *k, const double *v,
                          const struct attention_ref *s)
{
    double scale = ref_scale(s);
    double *p = malloc((size_t)(s->tk + 1) * sizeof(*p));
    if (!p)
        abort();
    for (int64_t b = 0; b < s->b; b++)
        for (int64_t h = 0; h < s->h; h++)
            for (int64_t i = 0; i < s->tq; i++) {
                int64_t g = h / (s->h / s->kv), row = b * s->tq + i;
                double max = -INFINITY, sum = 0.0;
                for (int64_t j = 0; j < s->tk; j++) {
                    p[j] = ref_sees(s, b, i, j) ? 0.0 : -INFINITY;
                    for (int64_t e = 0; e < s->d; e++)
                        p[j] += q[(row * s->h + h) * s->d + e] * k[((b * s->tk + j) * s->kv + g) * s->d + e] * scale;
                    max = fmax(max, p[j]);
                }
                for (int64_t j = 0; j < s->tk; j++)
                    sum += p[j] = p[j] == -INFINITY ? 0.0 : exp(p[j] - max);
                lse[(b * s->h + h) * s->tq + i] = max + log(sum);
                for (int64_t e = 0; e < s->dv; e++) {
                    double o = 0.0;
                    for (int64_t j = 0; j < s->tk && sum > 0.0; j++)
                        o += p[j] / sum * v[((b * s->tk + j) * s->kv + g) * s->dv + e];
                    out[(row * s->h + h) * s->dv + e] = o;
                }
            }
    free(p);
}

/* Adds to dq, dk and dv of one query what one key gives. */
static void ref_attention_pair(double *dq, double *dk, double *dv, const double *q, const double *k, const double *v,
                               const double *dout, double lse, double delta, const struct attention_ref *s)
{
    double score = 0.0, dp = 0.0, scale = ref_scale(s);
    for (int64_t e = 0; e < s->d; e++)
        score += q[e] * k[e] * scale;
    for (int64_t e = 0; e < s->dv; e++)
        dp += dout[e] * v[e];
    double p = exp(score - lse), ds = p * (dp - delta) * scale;
    for (int64_t e = 0; e < s->d; e++) {
        dq[e] += ds * k[e];
        dk[e] += ds * q[e];
    }
    for (int64_t e = 0; e < s->dv; e++)
        dv[e] += p * dout[e];
}
static void ref_attention_grad(double *dq, double *dk, double *dv, const double *dout, const double *out,
                               const double *lse, const double *q, const double *k, const double *v,
                               const struct attention_ref *s)
{
    for (int64_t b = 0; b < s->b; b++)
        for (int64_t h = 0; h < s->h; h++)
            for (int64_t i = 0; i < s->tq; i++) {
                int64_t g = h / (s->h / s->kv), row = b * s->tq + i, at = (row * s->h + h) * s->d;
                int64_t vat = (row * s->h + h) * s->dv;
                double delta = 0.0;
                for (int64_t e = 0; e < s->dv; e++)
                    delta += dout[vat + e] * out[vat + e];
                for (int64_t j = 0; j < s->tk; j++) {
                    int64_t to = (b * s->tk + j) * s->kv + g;
                    if (ref_sees(s, b, i, j))
                        ref_attention_pair(dq + at, dk + to * s->d, dv + to * s->dv, q + at, k + to * s->d,
                                           v + to * s->dv, dout + vat, lse[(b * s->h + h) * s->tq + i], delta, s);
                }
            }
}

static double ref_silu(double x)
{
    return x / (1.0 + exp(-x));
}
static double ref_dsilu(double x)
{
    double s = 1.0 / (1.0 + exp(-x));
    return s * (1.0 + x * (1.0 - s));
}

static void ref_cross_entropy(double *loss, double *dx, const double *x, const double *target, int64_t n, int64_t v)
{
    for (int64_t i = 0; i < n; i++) {
        double max = -INFINITY, sum = 0.0;
        loss[i] = 0.0;
        if (target[i] < 0)
            continue;
        for (int64_t j = 0; j < v; j++)
            max = fmax(max, x[i * v + j]);
        for (int64_t j = 0; j < v; j++)
            sum += exp(x[i * v + j] - max);
        loss[i] = log(sum) + max - x[i * v + (int64_t)target[i]];
        for (int64_t j = 0; j < v; j++)
            dx[i * v + j] = exp(x[i * v + j] - max) / sum - (j == (int64_t)target[i]);
    }
}

/* --- the reference's gradients by central differences ------------------------------------------------------------- */

struct difference_case {
    double *x, *g, *q, *k, *v, *out, *aux;
    const double *weight;
    struct attention_ref shape;
    int64_t n, c;
};
static double norm_value(const void *arg)
{
    const struct difference_case *d = arg;
    ref_rmsnorm(d->out, d->aux, d->x, d->g, d->n, d->c, 1e-5);
    return dot_of(d->out, d->weight, d->n * d->c);
}
static double attention_value(const void *arg)
{
    const struct difference_case *d = arg;
    ref_attention(d->out, d->aux, d->q, d->k, d->v, &d->shape);
    return dot_of(d->out, d->weight, d->n);
}
static double silu_value(const void *arg)
{
    const struct difference_case *d = arg;
    return ref_silu(d->x[0]);
}
static double loss_value(const void *arg)
{
    const struct difference_case *d = arg;
    ref_cross_entropy(d->aux, d->out, d->x, d->g, d->n, d->c);
    return d->aux[0] + d->aux[1] + d->aux[2];
}

/* Causal, and with rows out of order in two documents where the last row sees nothing. */
static void check_reference_attention(struct checker *c)
{
    static const double index[] = {3, 0, 6, 1, 7, 4, 2, 5}, start[] = {0, 0, 5, 0, 5, 0, 0, 9};
    for (int masked = 0; masked < 2; masked++) {
        struct difference_case d = {.shape = {.b = 2, .tq = 4, .tk = 4, .h = 4, .kv = 2, .d = 3, .dv = 3}};
        if (masked)
            d.shape = (struct attention_ref){1, 8, 8, 4, 2, 3, 2, index, start, index, 0.7};
        const struct attention_ref *s = &d.shape;
        int64_t nq = 8 * s->h * s->d, nk = 8 * s->kv * s->d, nv = 8 * s->kv * s->dv;
        d.n = 8 * s->h * s->dv;
        d.q = values(c, nq), d.k = values(c, nk), d.v = values(c, nv), d.out = values(c, d.n), d.aux = values(c, 32);
        double *weight = values(c, d.n), *dq = values(c, nq), *dk = values(c, nk), *dv = values(c, nv);
        fill(c, d.q, nq, 1.0), fill(c, d.k, nk, 1.0), fill(c, d.v, nv, 1.0), fill(c, weight, d.n, 1.0);
        d.weight = weight;
        attention_value(&d);
        ref_attention_grad(dq, dk, dv, weight, d.out, d.aux, d.q, d.k, d.v, s);
        result(c,
               differences(c, d.q, dq, nq, attention_value, &d) && differences(c, d.k, dk, nk, attention_value, &d) &&
                   differences(c, d.v, dv, nv, attention_value, &d),
               "reference: attention gradients by finite differences%s", masked ? ", masked" : "");
    }
    sweep(c);
}

static void check_reference(struct checker *c)
{
    struct difference_case d = {.n = 3, .c = 7};
    d.x = values(c, 21), d.g = values(c, 7), d.out = values(c, 21), d.aux = values(c, 3);
    double *weight = values(c, 21), *dx = values(c, 21), *dg = values(c, 7);
    fill(c, d.x, 21, 1.0), fill(c, d.g, 7, 1.0), fill(c, weight, 21, 1.0);
    d.weight = weight;
    norm_value(&d);
    ref_rmsnorm_grad(dx, dg, weight, d.x, d.g, d.aux, 3, 7);
    result(c, differences(c, d.x, dx, 21, norm_value, &d) && differences(c, d.g, dg, 7, norm_value, &d),
           "reference: rmsnorm gradients by finite differences");

    double slope = ref_dsilu(d.x[0]);
    result(c, differences(c, d.x, &slope, 1, silu_value, &d), "reference: silu gradient by finite differences");

    d.n = 3, d.c = 7;
    double *target = values(c, 3);
    target[0] = 2, target[1] = -1, target[2] = 6;
    d.g = target, d.out = values(c, 21), d.aux = values(c, 3);
    memset(dx, 0, 21 * sizeof(*dx));
    ref_cross_entropy(d.aux, dx, d.x, target, 3, 7);
    result(c, differences(c, d.x, dx, 21, loss_value, &d), "reference: loss gradient by finite differences");
    sweep(c);
}

/* --- memory and casts --------------------------------------------------------------------------------------------- */

static void check_memory(struct checker *c)
{
    struct tensor a = empty(c, 1000, DTYPE_F32), b = empty(c, 1000, DTYPE_F32);
    double *zero = values(c, 1000);
    result(c, same(c, download(c, &a), zero, 1000, "fresh memory") && (uintptr_t)a.p % 64 == 0,
           "alloc: zeroed and 64-byte aligned");
    fill(c, a.x, 1000, 1.0);
    upload(c, &a);
    need(c, c->ops->copy(c->s, b.p, a.p, 4000), "copy");
    result(c, same(c, download(c, &b), a.x, 1000, "copy"), "copy: host to device to device to host");
    need(c, c->ops->zero(c->s, (char *)b.p + 400, 2000), "zero");
    for (int i = 100; i < 600; i++)
        a.x[i] = 0.0;
    result(c, same(c, download(c, &b), a.x, 1000, "zero"), "zero: the bytes named and no others");
    need(c, c->ops->copy(c->s, b.p, a.p, 0), "copy of nothing");
    need(c, c->ops->zero(c->s, b.p, 0), "zero of nothing");
    result(c, true, "copy and zero of 0 bytes");
    sweep(c);
}

static void check_cast(struct checker *c)
{
    enum { N = 65536 };
    /* fp32 -> bf16: random bits (all magnitudes, NaN, infinities, subnormals) and exact ties. */
    struct tensor f = empty(c, N, DTYPE_F32), h = empty(c, N, DTYPE_BF16);
    float *host = malloc(N * sizeof(float));
    uint16_t *bits = malloc(N * sizeof(uint16_t));
    if (!host || !bits)
        abort();
    for (uint32_t i = 0; i < N; i++) {
        uint32_t u = i % 2 ? (uint32_t)next_random(c) : (i << 16 | 0x8000u);
        memcpy(&host[i], &u, 4);
    }
    transfer(c, f.p, host, N * sizeof(float), true);
    need(c, c->ops->cast(c->s, h.p, DTYPE_BF16, f.p, DTYPE_F32, N), "cast");
    transfer(c, bits, h.p, N * sizeof(uint16_t), false);
    int wrong = 0;
    for (int i = 0; i < N; i++)
        wrong += isnan(host[i]) ? !isnan(from_bf16(bits[i])) : bits[i] != to_bf16(host[i]);
    result(c, wrong == 0, "cast fp32 to bf16: nearest even, %d of %d differ", wrong, N);
    for (uint32_t i = 0; i < N; i++)
        bits[i] = (uint16_t)i;
    transfer(c, h.p, bits, N * sizeof(uint16_t), true);
    need(c, c->ops->cast(c->s, f.p, DTYPE_F32, h.p, DTYPE_BF16, N), "cast");
    transfer(c, host, f.p, N * sizeof(float), false);
    wrong = 0;
    for (uint32_t i = 0; i < N; i++)
        wrong += isnan(from_bf16(bits[i])) ? !isnan(host[i]) : host[i] != from_bf16(bits[i]);
    result(c, wrong == 0, "cast bf16 to fp32: exact for all values, %d differ", wrong);
    free(host);
    free(bits);
    sweep(c);
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F64, DTYPE_I32, DTYPE_U8};
    bool ok = true;
    for (int from = 0; from < 5; from++)
        for (int to = 0; to < 5; to++) {
            struct tensor a = empty(c, 129, types[from]), b = empty(c, 129, types[to]);
            for (int i = 0; i < 129; i++)
                a.x[i] = i; /* every type holds these exactly */
            upload(c, &a);
            need(c, c->ops->cast(c->s, b.p, types[to], a.p, types[from], 129), "cast");
            ok = same(c, download(c, &b), a.x, 129, "cast") && ok;
            sweep(c);
        }
    result(c, ok, "cast between all pairs of types");
}

/* --- matmul ------------------------------------------------------------------------------------------------------- */

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
    need(c, c->ops->matmul(c->s, o.p, cd, ldc, a.p, ta, lda, b.p, tb, ldb, ab, m, n, k, (float)beta), "matmul");
    double *got = download(c, &o);
    /* Tensor cores keep some 14 bits of a sum of float8 products. */
    bool ok = near(c, got, want, m * ldc, fmax(limit_of(cd), c->h->info.host_memory ? 0 : 1e-3), "product");
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
         c->ops->matmul(c->s, (float *)o.p + 1, DTYPE_F32, N, (uint16_t *)a.p + 1, false, K, (uint16_t *)b.p + 1, true,
                        K, DTYPE_BF16, M, N, K, 1.0f),
         "matmul");
    result(c, near(c, download(c, &o), want, M * N + 1, limit_of(DTYPE_F32), "product"),
           "matmul of operands aligned to an element only");
    sweep(c);
}

static void check_matmul(struct checker *c)
{
    check_matmul_unaligned(c);
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
    need(c, c->ops->matmul(c->s, o.p, DTYPE_F32, 4, o.p, false, 1, o.p, false, 4, DTYPE_F32, 3, 4, 0, 0.0f), "k=0");
    result(c, same(c, download(c, &o), zero, 12, "k=0"), "matmul with k = 0 clears");
    result(c,
           c->ops->matmul(c->s, o.p, DTYPE_F32, 3, o.p, false, 1, o.p, false, 4, DTYPE_F32, 3, 4, 1, 0.0f) ==
                   TITAN_EINVAL &&
               c->ops->matmul(c->s, o.p, DTYPE_BF16, 4, o.p, false, 1, o.p, false, 4, DTYPE_F32, 3, 4, 1, 0.0f) ==
                   TITAN_EINVAL,
           "matmul refuses a row stride below the width and a narrower destination");
    sweep(c);
}

/* What an operand's element becomes, and what its line's scale is undone with: fp64 from the contract's words. */
static void ref_float8(double *x, double *inverse, int64_t lines, int64_t of, int64_t line_stride, int64_t stride,
                       enum float8 type, bool by_line, bool power)
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
        scale = power ? (float)exp2(floor(log2((double)scale))) : scale;
        for (int64_t i = 0; i < of; i++) {
            double *e = &x[l * line_stride + i * stride];
            *e = (double)float8_round((float)*e * scale, type);
        }
        inverse[l] = 1.0 / (double)scale;
    }
}

static void matmul_f8_case(struct checker *c, const struct float8_product *how, enum dtype ab, enum dtype cd, bool ta,
                           bool tb, int64_t m, int64_t n, int64_t k, int64_t pad, double beta)
{
    int64_t lda = (ta ? m : k) + pad, ldb = (tb ? k : n) + pad, ldc = n + pad;
    struct tensor a = noise(c, (ta ? k : m) * lda, ab, 1.0), b = noise(c, (tb ? n : k) * ldb, ab, 1.0);
    struct tensor o = noise(c, m * ldc, cd, 1.0);
    double *want = values(c, m * ldc), *undo_a = values(c, m), *undo_b = values(c, n);
    memcpy(want, o.x, (size_t)(m * ldc) * sizeof(*want)); /* what lies between the rows must stay */
    ref_float8(a.x, undo_a, m, k, ta ? 1 : lda, ta ? lda : 1, how->a, how->a_lines, how->power_of_two);
    ref_float8(b.x, undo_b, n, k, tb ? ldb : 1, tb ? 1 : ldb, how->b, how->b_lines, how->power_of_two);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0.0;
            for (int64_t p = 0; p < k; p++)
                sum += a.x[ta ? p * lda + i : i * lda + p] * b.x[tb ? j * ldb + p : p * ldb + j];
            want[i * ldc + j] = beta * o.x[i * ldc + j] + sum * undo_a[i] * undo_b[j];
        }
    void *work = device_memory(c, c->ops->matmul_f8_work_bytes(c->h->dev, ab, m, n, k));
    need(c, c->ops->matmul_f8(c->s, o.p, cd, ldc, a.p, ta, lda, b.p, tb, ldb, ab, m, n, k, (float)beta, how, work),
         "float8");
    double *got = download(c, &o);
    /* Tensor cores keep some 14 bits of a sum of float8 products. */
    bool ok = near(c, got, want, m * ldc, fmax(limit_of(cd), c->h->info.host_memory ? 0 : 1e-3), "product");
    for (int64_t i = 0; i < m && pad; i++)
        ok = ok && same(c, got + i * ldc + n, want + i * ldc + n, pad, "between rows");
    result(c, ok, "matmul_f8 %s to %s %c%c %lldx%lldx%lld ld+%lld beta %g%s%s%s%s", name_of(ab), name_of(cd),
           ta ? 'T' : 'N', tb ? 'T' : 'N', (long long)m, (long long)n, (long long)k, (long long)pad, beta,
           how->a == FLOAT8_E5M2 ? " e5m2" : "", how->a_lines ? " lines of a" : "", how->b_lines ? " lines of b" : "",
           how->power_of_two ? " powers of two" : "");
    sweep(c);
}

/* Each way of transposition with each pair of scales. */
static void check_matmul_f8(struct checker *c)
{
    static const struct {
        int64_t m, n, k, pad;
    } shapes[] = {{1, 1, 1, 0}, {17, 33, 70, 3}, {64, 48, 96, 0}};
    struct tensor o = noise(c, 16, DTYPE_F32, 1.0);
    const struct float8_product plain = {FLOAT8_E4M3, FLOAT8_E4M3, false, false, false};
    const titan_status status =
        c->ops->matmul_f8(c->s, o.p, DTYPE_F32, 3, o.p, false, 1, o.p, false, 4, DTYPE_F32, 3, 4, 1, 0.0f, &plain, o.p);
    if (!c->h->info.float8) {
        result(c, status == TITAN_EUNSUPPORTED, "a device without float8 says so");
        sweep(c);
        return;
    }
    result(c, status == TITAN_EINVAL, "matmul_f8 refuses a row stride below the width");
    sweep(c);
    for (int i = 0; i < 3; i++)
        for (int way = 0; way < 16; way++) {
            const struct float8_product how = {way & 1 ? FLOAT8_E5M2 : FLOAT8_E4M3, FLOAT8_E4M3, way & 4, way & 8,
                                               way & 2};
            const enum dtype ab = way & 1 ? DTYPE_BF16 : DTYPE_F32, cd = way & 2 ? ab : DTYPE_F32;
            matmul_f8_case(c, &how, ab, cd, way >> 2 & 1, way >> 1 & 1, shapes[i].m, shapes[i].n, shapes[i].k,
                           shapes[i].pad, way & 1);
            matmul_f8_case(c, &how, ab, cd, way >> 3 & 1, way & 1, shapes[i].m, shapes[i].n, shapes[i].k, shapes[i].pad,
                           way >> 1 & 1);
        }
}

/* --- embedding ---------------------------------------------------------------------------------------------------- */

/* Rows [first, first+rows) of a vocabulary of v tokens. */
static void embed_case(struct checker *c, enum dtype dt, int64_t n, int64_t w, int64_t v, int64_t first, int64_t rows)
{
    struct tensor tokens = integers(c, n, 0, v), table = noise(c, rows * w, dt, 1.0), out = noise(c, n * w, dt, 1.0);
    struct tensor dout = noise(c, n * w, dt, 1.0), dtable = noise(c, rows * w, DTYPE_F32, 1.0);
    double *want = values(c, n * w), *dwant = values(c, rows * w);
    memcpy(dwant, dtable.x, (size_t)(rows * w) * sizeof(double));
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < w; j++) {
            int64_t row = (int64_t)tokens.x[r] - first;
            if (row < 0 || row >= rows)
                continue;
            want[r * w + j] = table.x[row * w + j];
            dwant[row * w + j] += dout.x[r * w + j];
        }
    need(c, c->ops->embed(c->s, out.p, tokens.p, table.p, dt, n, w, rows, first), "embed");
    result(c, same(c, download(c, &out), want, n * w, "rows"), "embed %s %lldx%lld rows %lld+%lld", name_of(dt),
           (long long)n, (long long)w, (long long)first, (long long)rows);
    need(c, c->ops->embed_wgrad(c->s, dtable.p, tokens.p, dout.p, dt, n, w, rows, first), "embed_wgrad");
    result(c, near(c, download(c, &dtable), dwant, rows * w, limit_of(DTYPE_F32), "dtable"),
           "embed_wgrad %s %lldx%lld rows %lld+%lld", name_of(dt), (long long)n, (long long)w, (long long)first,
           (long long)rows);
    sweep(c);
}

static void check_embed(struct checker *c)
{
    for (int i = 0; i < 2; i++) {
        embed_case(c, both[i], 4500, 33, 11, 0, 11);
        embed_case(c, both[i], 200, 40, 11, 4, 5);
        embed_case(c, both[i], 37, 8, 300, 299, 1);
        embed_case(c, both[i], 60, 40, 90, 10, 80);
    }
}

/* --- RMSNorm ------------------------------------------------------------------------------------------------------ */

static void norm_case(struct checker *c, enum dtype dt, int64_t n, int64_t w)
{
    struct tensor x = noise(c, n * w, dt, 2.0), g = noise(c, w, dt, 1.0), y = empty(c, n * w, dt);
    struct tensor rstd = empty(c, n, DTYPE_F32), dy = noise(c, n * w, dt, 1.0), dx = noise(c, n * w, dt, 1.0);
    struct tensor dg = noise(c, w, DTYPE_F32, 1.0);
    double *wy = values(c, n * w), *wr = values(c, n), *wx = values(c, n * w), *wg = values(c, w);
    double *wsum = values(c, n * w);
    ref_rmsnorm(wy, wr, x.x, g.x, n, w, 1e-5);
    memcpy(wg, dg.x, (size_t)w * sizeof(double));
    ref_rmsnorm_grad(wx, wg, dy.x, x.x, g.x, wr, n, w);
    for (int64_t i = 0; i < n * w; i++)
        wsum[i] = dx.x[i] + wx[i];
    need(c, c->ops->rmsnorm(c->s, y.p, rstd.p, x.p, g.p, dt, n, w, 1e-5f), "rmsnorm");
    result(c,
           near(c, download(c, &y), wy, n * w, limit_of(dt), "y") &&
               near(c, download(c, &rstd), wr, n, limit_of(DTYPE_F32), "rstd"),
           "rmsnorm %s %lldx%lld", name_of(dt), (long long)n, (long long)w);
    struct tensor apart = noise(c, n * w, dt, 1.0);
    need(c, c->ops->rmsnorm_dgrad(c->s, apart.p, dx.p, dy.p, x.p, g.p, rstd.p, dt, n, w), "rmsnorm_dgrad");
    need(c, c->ops->rmsnorm_dgrad(c->s, dx.p, dx.p, dy.p, x.p, g.p, rstd.p, dt, n, w), "rmsnorm_dgrad");
    bool ok = near(c, download(c, &dx), wsum, n * w, limit_of(dt), "accumulated dx");
    ok = same(c, download(c, &apart), download(c, &dx), n * w, "dx beside its residual") && ok;
    need(c, c->ops->rmsnorm_dgrad(c->s, dx.p, NULL, dy.p, x.p, g.p, rstd.p, dt, n, w), "rmsnorm_dgrad");
    /* One column: dx is eps-sized, the difference of equals, and rounding is all there is. */
    ok = (w == 1 || near(c, download(c, &dx), wx, n * w, 10.0 * limit_of(dt), "dx")) && ok;
    result(c, ok, "rmsnorm_dgrad %s %lldx%lld", name_of(dt), (long long)n, (long long)w);
    need(c, c->ops->rmsnorm_dgain(c->s, dg.p, dy.p, x.p, rstd.p, dt, n, w), "rmsnorm_dgain");
    result(c, near(c, download(c, &dg), wg, w, limit_of(DTYPE_F32), "dgain"), "rmsnorm_dgain %s %lldx%lld", name_of(dt),
           (long long)n, (long long)w);
    sweep(c);
}

/* Against the reference, and every bit as add and rmsnorm have it, with the sum beside its terms and over one. */
static void add_norm_case(struct checker *c, enum dtype dt, int64_t n, int64_t w)
{
    struct tensor a = noise(c, n * w, dt, 2.0), b = noise(c, n * w, dt, 2.0), g = noise(c, w, dt, 1.0);
    struct tensor h = empty(c, n * w, dt), y = empty(c, n * w, dt), rstd = empty(c, n, DTYPE_F32);
    struct tensor h2 = empty(c, n * w, dt), y2 = empty(c, n * w, dt), rstd2 = empty(c, n, DTYPE_F32);
    double *sum = values(c, n * w), *wy = values(c, n * w), *wr = values(c, n);
    need(c, c->ops->add(c->s, h.p, a.p, b.p, dt, (size_t)(n * w)), "add");
    need(c, c->ops->rmsnorm(c->s, y.p, rstd.p, h.p, g.p, dt, n, w, 1e-5f), "rmsnorm");
    memcpy(sum, download(c, &h), (size_t)(n * w) * sizeof(double));
    ref_rmsnorm(wy, wr, sum, g.x, n, w, 1e-5);
    bool ok = true;
    for (int alias = 0; alias < 3; alias++) {
        struct tensor *to = alias == 0 ? &h2 : alias == 1 ? &a : &b;
        need(c, c->ops->add_rmsnorm(c->s, to->p, y2.p, rstd2.p, a.p, b.p, g.p, dt, n, w, 1e-5f), "add_rmsnorm");
        ok = same(c, download(c, to), sum, n * w, "h") && ok;
        ok = same(c, download(c, &y2), download(c, &y), n * w, "y") && ok;
        ok = same(c, download(c, &rstd2), download(c, &rstd), n, "rstd") && ok;
        ok = near(c, download(c, &y2), wy, n * w, limit_of(dt), "y") && ok;
        upload(c, &a);
    }
    result(c, ok, "add_rmsnorm %s %lldx%lld, apart and in place", name_of(dt), (long long)n, (long long)w);
    sweep(c);
}

static void check_norm(struct checker *c)
{
    for (int i = 0; i < 2; i++) {
        norm_case(c, both[i], 1, 1);
        norm_case(c, both[i], 3, 16);
        norm_case(c, both[i], 130, 63);
        norm_case(c, both[i], 70, 256);
        norm_case(c, both[i], 5, 1000);
        add_norm_case(c, both[i], 1, 1);
        add_norm_case(c, both[i], 130, 63);
        add_norm_case(c, both[i], 70, 256);
        add_norm_case(c, both[i], 5, 1000);
    }
    struct tensor x = empty(c, 64, DTYPE_F32);
    result(c, c->ops->add_rmsnorm(c->s, x.p, x.p, x.p, x.p, x.p, x.p, DTYPE_F32, 2, 32, 1e-5f) == TITAN_EINVAL,
           "add_rmsnorm refuses out that is h");
    result(c, c->ops->rmsnorm_dgrad(c->s, x.p, NULL, x.p, x.p, x.p, x.p, DTYPE_F32, 2, 32) == TITAN_EINVAL,
           "rmsnorm_dgrad refuses dx that is dout");
    sweep(c);
}

/* --- attention ---------------------------------------------------------------------------------------------------- */

static void rope_case(struct checker *c, enum dtype dt, int64_t n, int64_t heads, int64_t d, int64_t pad, bool backward)
{
    int64_t ld = heads * d + pad, length = 19;
    struct tensor x = noise(c, n * ld, dt, 1.0), at = integers(c, n, 0, length);
    struct tensor cs = empty(c, length * d / 2, DTYPE_F32), sn = empty(c, length * d / 2, DTYPE_F32);
    for (int64_t p = 0; p < length; p++)
        for (int64_t i = 0; i < d / 2; i++) {
            double angle = (double)p * pow(10000.0, -2.0 * (double)i / (double)d);
            cs.x[p * d / 2 + i] = cos(angle);
            sn.x[p * d / 2 + i] = sin(angle);
        }
    upload(c, &cs);
    upload(c, &sn);
    double *want = values(c, n * ld);
    memcpy(want, x.x, (size_t)(n * ld) * sizeof(double));
    for (int64_t r = 0; r < n; r++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < d / 2; i++) {
                double *pair = want + r * ld + h * d + 2 * i, a = pair[0], b = pair[1];
                double co = cs.x[(int64_t)at.x[r] * d / 2 + i], si = sn.x[(int64_t)at.x[r] * d / 2 + i];
                si = backward ? -si : si;
                pair[0] = a * co - b * si;
                pair[1] = a * si + b * co;
            }
    need(c, c->ops->rope(c->s, x.p, ld, at.p, cs.p, sn.p, dt, n, heads, d, backward), "rope");
    result(c, near(c, download(c, &x), want, n * ld, limit_of(dt), "rotated"), "rope %s %s %lldx%lldx%lld ld+%lld",
           backward ? "backward" : "forward", name_of(dt), (long long)n, (long long)heads, (long long)d,
           (long long)pad);
    sweep(c);
}

/* One attention problem on the device: every tensor with a row stride of its own. */
struct attention_data {
    struct attention_shape s;
    struct attention_ref ref;
    struct tensor q, k, v, out, lse, dout, index, start, key_index;
    double *dq, *dk, *dv;                /* dense references */
    double *dense_q, *dense_k, *dense_v; /* what the device has, dense */
    int64_t wq, wk, wv, wo, pad;         /* row widths; each stride is pad more */
};

enum attention_mask { CAUSAL, DOCUMENTS, HEAD_TAIL, SCATTERED };
static const char *const mask_names[] = {"causal", "documents", "head-tail", "scattered"};

/* Which token of its sequence (of `length`) row i of n holds: head-tail rows are chunks rank and 2*ranks-1-rank. */
static void choose_tokens(struct checker *c, int64_t *token, int64_t n, int64_t length, enum attention_mask mask,
                          int64_t rank)
{
    int64_t all[1024], half = n / 2, chunks = half > 0 ? length / half : 0;
    for (int64_t i = 0; i < length; i++)
        all[i] = i;
    if (mask == HEAD_TAIL)
        for (int64_t i = 0; i < n; i++)
            token[i] = i < half ? rank * half + i : (chunks - 1 - rank) * half + i - half;
    for (int64_t i = 0; i < n && mask != HEAD_TAIL; i++) {
        int64_t pick = i + (int64_t)(next_random(c) % (uint64_t)(length - i)), keep = all[i];
        if (mask == SCATTERED)
            all[i] = all[pick], all[pick] = keep;
        token[i] = all[i];
    }
}

/* Documents of 1 to 40 tokens, or none; then the places of the chosen queries and keys. */
static void attention_masks(struct checker *c, struct attention_data *a, enum attention_mask mask, int64_t length,
                            int64_t query_rank, int64_t key_rank)
{
    const struct attention_shape *s = &a->s;
    int64_t token[1024], begin[1024] = {0};
    a->index = empty(c, s->b * s->tq, DTYPE_I32);
    a->start = empty(c, s->b * s->tq, DTYPE_I32);
    a->key_index = empty(c, s->b * s->tk, DTYPE_I32);
    for (int64_t b = 0; b < s->b; b++) {
        for (int64_t i = 1, left = 20; i < length && mask != HEAD_TAIL; i++, left--) {
            begin[i] = left > 0 ? begin[i - 1] : i;
            left = left > 0 ? left : 1 + (int64_t)(next_random(c) % 40);
        }
        if (mask != HEAD_TAIL)
            begin[length - 1] = length - 1; /* alone: at 65 tokens, of a tile of queries and one of keys */
        choose_tokens(c, token, s->tq, length, mask, query_rank);
        for (int64_t i = 0; i < s->tq; i++) {
            a->index.x[b * s->tq + i] = (double)(b * length + token[i]);
            a->start.x[b * s->tq + i] = (double)(b * length + begin[token[i]]);
        }
        choose_tokens(c, token, s->tk, length, mask, key_rank);
        for (int64_t i = 0; i < s->tk; i++)
            a->key_index.x[b * s->tk + i] = (double)(b * length + token[i]);
    }
    upload(c, &a->index), upload(c, &a->start), upload(c, &a->key_index);
    a->s.index = a->index.p, a->s.start = a->start.p, a->s.key_index = a->key_index.p;
    a->ref.index = a->index.x, a->ref.start = a->start.x, a->ref.key_index = a->key_index.x;
}

static struct attention_data attention_data(struct checker *c, const struct attention_shape *s, int64_t pad,
                                            double sharpness)
{
    struct attention_data a = {.s = *s, .pad = pad};
    int64_t nq = s->b * s->tq, nk = s->b * s->tk;
    a.ref = (struct attention_ref){s->b, s->tq, s->tk, s->h, s->kv, s->d, s->dv, NULL, NULL, NULL, (double)s->scale};
    a.wq = s->h * s->d, a.wk = s->kv * s->d, a.wv = s->kv * s->dv, a.wo = s->h * s->dv;
    a.q = noise(c, nq * (a.wq + pad), s->dt, sharpness);
    a.k = noise(c, nk * (a.wk + 2 * pad), s->dt, sharpness);
    a.v = noise(c, nk * (a.wv + 3 * pad), s->dt, sharpness);
    a.out = noise(c, nq * (a.wo + pad), s->dt, 1.0);
    a.dout = noise(c, nq * (a.wo + 2 * pad), s->dt, 1.0);
    a.lse = noise(c, s->h * nq, DTYPE_F32, 1.0);
    a.dense_q = unpack(c, a.q.x, nq, a.wq + pad, 0, a.wq);
    a.dense_k = unpack(c, a.k.x, nk, a.wk + 2 * pad, 0, a.wk);
    a.dense_v = unpack(c, a.v.x, nk, a.wv + 3 * pad, 0, a.wv);
    return a;
}

/* What lies between rows stays. */
static bool gaps_kept(struct checker *c, const double *got, const struct tensor *before, int64_t n, int64_t width,
                      int64_t pad)
{
    bool ok = true;
    for (int64_t i = 0; i < n && pad && ok; i++)
        ok = same(c, got + i * (width + pad) + width, before->x + i * (width + pad) + width, pad, "between rows");
    return ok;
}

/* lse against the reference; rows that see nothing must say -inf, and are 0 in both afterwards. */
static bool lse_near(struct checker *c, double *got, double *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (want[i] == -INFINITY && got[i] == -INFINITY)
            got[i] = want[i] = 0.0;
    return near(c, got, want, n, limit_of(DTYPE_F32), "lse"); /* fp32, from products of dt */
}

static void attention_forward(struct checker *c, struct attention_data *a, const char *name)
{
    const struct attention_shape *s = &a->s;
    int64_t n = s->b * s->tq, pad = a->pad;
    double *want = values(c, n * a->wo), *wlse = values(c, s->h * n);
    ref_attention(want, wlse, a->dense_q, a->dense_k, a->dense_v, &a->ref);
    need(c,
         c->ops->attention(c->s, a->out.p, a->wo + pad, a->lse.p, a->q.p, a->wq + pad, a->k.p, a->wk + 2 * pad, a->v.p,
                           a->wv + 3 * pad, s),
         "attention");
    double *got = download(c, &a->out), *glse = download(c, &a->lse);
    bool ok = gaps_kept(c, got, &a->out, n, a->wo, pad);
    ok = near(c, unpack(c, got, n, a->wo + pad, 0, a->wo), want, n * a->wo, limit_of(s->dt), "out") && ok;
    ok = lse_near(c, glse, wlse, s->h * n) && ok;
    result(c, ok, "attention %s", name);
}

/* Scratch of a backward pass, full of NaN: nothing in it may matter. */
static void *attention_work(struct checker *c, const struct attention_shape *s)
{
    size_t bytes = c->ops->attention_work_bytes(c->h->dev, s);
    void *work = device_memory(c, bytes), *host = malloc(bytes + 1);
    if (!host)
        abort();
    memset(host, 0xff, bytes);
    transfer(c, work, host, bytes, true);
    free(host);
    return work;
}

static const char *const order_names[] = {
    [ATTENTION_FIXED] = "", [ATTENTION_REPEATABLE] = ", repeatable", [ATTENTION_ANY] = ", in any order"};

/* dq, dk and dv twice, which must be the same to the bit unless any order will do, against the reference's. */
static void attention_backward(struct checker *c, struct attention_data *a, const char *name)
{
    const struct attention_shape *s = &a->s;
    int64_t nq = s->b * s->tq, nk = s->b * s->tk, pad = a->pad;
    double *got[2][3], *out = unpack(c, download(c, &a->out), nq, a->wo + pad, 0, a->wo);
    double *wq = values(c, nq * a->wq), *wk = values(c, nk * a->wk), *wv = values(c, nk * a->wv);
    ref_attention_grad(wq, wk, wv, unpack(c, a->dout.x, nq, a->wo + 2 * pad, 0, a->wo), out, download(c, &a->lse),
                       a->dense_q, a->dense_k, a->dense_v, &a->ref);
    void *work = attention_work(c, s);
    bool ok = true;
    for (int i = 0; i < 2; i++) {
        struct tensor dq = noise(c, nq * (a->wq + 2 * pad), s->dt, 1.0), dk = noise(c, nk * (a->wk + pad), s->dt, 1.0);
        struct tensor dv = noise(c, nk * (a->wv + pad), s->dt, 1.0);
        need(c,
             c->ops->attention_dgrad(c->s, dq.p, a->wq + 2 * pad, dk.p, a->wk + pad, dv.p, a->wv + pad, a->dout.p,
                                     a->wo + 2 * pad, a->out.p, a->wo + pad, a->lse.p, a->q.p, a->wq + pad, a->k.p,
                                     a->wk + 2 * pad, a->v.p, a->wv + 3 * pad, s, work),
             "attention_dgrad");
        double *all[3] = {download(c, &dq), download(c, &dk), download(c, &dv)};
        ok = gaps_kept(c, all[0], &dq, nq, a->wq, 2 * pad) && gaps_kept(c, all[1], &dk, nk, a->wk, pad) &&
             gaps_kept(c, all[2], &dv, nk, a->wv, pad) && ok;
        got[i][0] = unpack(c, all[0], nq, a->wq + 2 * pad, 0, a->wq);
        got[i][1] = unpack(c, all[1], nk, a->wk + pad, 0, a->wk);
        got[i][2] = unpack(c, all[2], nk, a->wv + pad, 0, a->wv);
    }
    ok = near(c, got[0][0], wq, nq * a->wq, 5.0 * limit_of(s->dt), "dq") && ok;
    ok = near(c, got[0][1], wk, nk * a->wk, 5.0 * limit_of(s->dt), "dk") && ok;
    ok = near(c, got[0][2], wv, nk * a->wv, 5.0 * limit_of(s->dt), "dv") && ok;
    if (s->order != ATTENTION_ANY) {
        ok = same(c, got[1][0], got[0][0], nq * a->wq, "repeated dq") && ok;
        ok = same(c, got[1][1], got[0][1], nk * a->wk, "repeated dk") && ok;
        ok = same(c, got[1][2], got[0][2], nk * a->wv, "repeated dv") && ok;
    }
    result(c, ok, "attention_dgrad %s", name);
}

static void attention_case(struct checker *c, struct attention_shape s, int64_t pad, double sharpness,
                           enum attention_mask mask, int64_t length)
{
    char name[128];
    struct attention_data a = attention_data(c, &s, pad, sharpness);
    if (mask != CAUSAL)
        attention_masks(c, &a, mask, length, 0, 1);
    snprintf(name, sizeof(name), "%s B%lld Tq%lld Tk%lld H%lld K%lld D%lld Dv%lld ld+%lld %s%s", name_of(s.dt),
             (long long)s.b, (long long)s.tq, (long long)s.tk, (long long)s.h, (long long)s.kv, (long long)s.d,
             (long long)s.dv, (long long)pad, mask_names[mask], order_names[s.order]);
    attention_forward(c, &a, name);
    attention_backward(c, &a, name);
    sweep(c);
}

/* q, k and v as columns of one product, as a model may have them; so are the gradients. */
static void check_attention_packed(struct checker *c, enum dtype dt)
{
    const struct attention_shape s = {.dt = dt, .b = 2, .tq = 100, .tk = 100, .h = 8, .kv = 4, .d = 32, .dv = 32};
    int64_t n = 200, wq = 256, wk = 128, ld = wq + 2 * wk;
    struct tensor qkv = noise(c, n * ld, dt, 2.0), out[2], lse = empty(c, s.h * n, DTYPE_F32), grad[2];
    struct tensor dout = noise(c, n * wq, dt, 1.0);
    void *work = attention_work(c, &s);
    for (int i = 0; i < 2; i++) { /* the second time with q, k and v copied apart */
        struct tensor q = qkv, k = qkv, v = qkv;
        int64_t lq = i ? wq : ld, lk = i ? wk : ld;
        int64_t at[3] = {0, i ? n * wq : wq, i ? n * (wq + wk) : wq + wk};
        if (i) {
            q = empty(c, n * ld, dt);
            memcpy(q.x, unpack(c, qkv.x, n, ld, 0, wq), (size_t)(n * wq) * 8);
            memcpy(q.x + at[1], unpack(c, qkv.x, n, ld, wq, wk), (size_t)(n * wk) * 8);
            memcpy(q.x + at[2], unpack(c, qkv.x, n, ld, wq + wk, wk), (size_t)(n * wk) * 8);
            upload(c, &q);
            k = v = q;
        }
        out[i] = empty(c, n * wq, dt), grad[i] = empty(c, n * ld, dt);
        need(c,
             c->ops->attention(c->s, out[i].p, wq, lse.p, q.p, lq, offset_of(&k, at[1]), lk, offset_of(&v, at[2]), lk,
                               &s),
             "attention");
        need(c,
             c->ops->attention_dgrad(c->s, grad[i].p, ld, offset_of(&grad[i], wq), ld, offset_of(&grad[i], wq + wk), ld,
                                     dout.p, wq, out[i].p, wq, lse.p, q.p, lq, offset_of(&k, at[1]), lk,
                                     offset_of(&v, at[2]), lk, &s, work),
             "attention_dgrad");
    }
    bool ok = same(c, download(c, &out[1]), download(c, &out[0]), n * wq, "out");
    ok = same(c, download(c, &grad[1]), download(c, &grad[0]), n * ld, "gradients") && ok;
    result(c, ok, "attention %s of q, k and v in one buffer and apart: the same bits", name_of(dt));
    sweep(c);
}

/* The keys in parts, as they come round a ring: partial results merge to the whole row's, partial gradients add up. */
static void ring_case(struct checker *c, struct attention_shape s, int parts, enum attention_mask mask, int64_t length)
{
    struct attention_data a = attention_data(c, &s, 0, 2.0);
    attention_masks(c, &a, mask, length, 0, 0);
    int64_t n = s.tq, nq = n * a.wq, no = n * a.wo;
    double *want = values(c, no), *wlse = values(c, s.h * n), *wq = values(c, nq), *sum = values(c, nq);
    double *wk = values(c, s.tk * a.wk), *wv = values(c, s.tk * a.wv);
    struct tensor part = empty(c, no, s.dt), part_lse = empty(c, s.h * n, DTYPE_F32), dq = empty(c, nq, s.dt);
    struct tensor dk = empty(c, s.tk * a.wk, s.dt), dv = empty(c, s.tk * a.wv, s.dt);
    void *work = attention_work(c, &s);
    ref_attention(want, wlse, a.dense_q, a.dense_k, a.dense_v, &a.ref);
    for (int p = 0; p < 2 * parts; p++) { /* forward round, backward round */
        int64_t i = p % parts, from = s.tk * i / parts, to = s.tk * (i + 1) / parts;
        struct attention_shape some = s;
        some.tk = to - from, some.index = a.index.p, some.start = a.start.p;
        some.key_index = offset_of(&a.key_index, from);
        void *k = offset_of(&a.k, from * a.wk), *v = offset_of(&a.v, from * a.wv);
        if (p < parts) {
            need(c,
                 c->ops->attention(c->s, p ? part.p : a.out.p, a.wo, p ? part_lse.p : a.lse.p, a.q.p, a.wq, k, a.wk, v,
                                   a.wv, &some),
                 "attention");
            if (p)
                need(c,
                     c->ops->attention_merge(c->s, a.out.p, a.lse.p, part.p, part_lse.p, a.wo, s.dt, 1, n, s.h, s.dv),
                     "attention_merge");
            continue;
        }
        need(c,
             c->ops->attention_dgrad(c->s, dq.p, a.wq, offset_of(&dk, from * a.wk), a.wk, offset_of(&dv, from * a.wv),
                                     a.wv, a.dout.p, a.wo, a.out.p, a.wo, a.lse.p, a.q.p, a.wq, k, a.wk, v, a.wv, &some,
                                     work),
             "attention_dgrad");
        double *got = download(c, &dq);
        for (int64_t j = 0; j < nq; j++)
            sum[j] += got[j];
    }
    double *out = download(c, &a.out), *lse = download(c, &a.lse), limit = 5.0 * limit_of(s.dt);
    ref_attention_grad(wq, wk, wv, a.dout.x, out, lse, a.dense_q, a.dense_k, a.dense_v, &a.ref);
    bool ok = near(c, out, want, no, limit, "out") && lse_near(c, lse, wlse, s.h * n);
    ok = near(c, sum, wq, nq, limit, "dq") && near(c, download(c, &dk), wk, s.tk * a.wk, limit, "dk") &&
         near(c, download(c, &dv), wv, s.tk * a.wv, limit, "dv") && ok;
    result(c, ok, "attention %s Tq%lld Tk%lld D%lld Dv%lld in %d parts, %s", name_of(s.dt), (long long)s.tq,
           (long long)s.tk, (long long)s.d, (long long)s.dv, parts, mask_names[mask]);
    sweep(c);
}

/* Rows of `width` gathered from (or, put back, added to) their places in another order. */
static void reorder(double *dst, const double *src, const int64_t *token, int64_t n, int64_t width, bool back)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < width; j++) {
            if (back)
                dst[token[i] * width + j] += src[i * width + j];
            else
                dst[i * width + j] = src[token[i] * width + j];
        }
}

/* Several sequences: rows go by sequence, their log-sum-exps by sequence and head. What saw nothing has -inf. */
static void merge_case(struct checker *c, enum dtype dt, int64_t b, int64_t t, int64_t h, int64_t dv)
{
    const int64_t n = b * t, ld = h * dv + 8;
    struct tensor out = noise(c, n * ld, dt, 1.0), other = noise(c, n * ld, dt, 1.0);
    struct tensor lse = noise(c, b * h * t, DTYPE_F32, 2.0), other_lse = noise(c, b * h * t, DTYPE_F32, 2.0);
    other_lse.x[1] = lse.x[t * h - 1] = -INFINITY;
    upload(c, &lse), upload(c, &other_lse);
    double *want = values(c, n * ld), *want_lse = values(c, b * h * t);
    memcpy(want, out.x, (size_t)(n * ld) * sizeof *want);
    for (int64_t row = 0; row < n; row++)
        for (int64_t head = 0; head < h; head++) {
            const int64_t at = (row / t * h + head) * t + row % t;
            const double top = fmax(lse.x[at], other_lse.x[at]), mine = exp(lse.x[at] - top);
            const double theirs = exp(other_lse.x[at] - top), sum = mine + theirs;
            want_lse[at] = top + log(sum);
            for (int64_t i = row * ld + head * dv; i < row * ld + (head + 1) * dv; i++)
                want[i] = out.x[i] * (mine / sum) + other.x[i] * (theirs / sum);
        }
    need(c, c->ops->attention_merge(c->s, out.p, lse.p, other.p, other_lse.p, ld, dt, b, t, h, dv), "attention_merge");
    bool ok = near(c, download(c, &out), want, n * ld, limit_of(dt), "out");
    ok = near(c, download(c, &lse), want_lse, b * h * t, limit_of(DTYPE_F32), "lse") && ok;
    result(c, ok, "attention_merge %s B%lld T%lld H%lld Dv%lld", name_of(dt), (long long)b, (long long)t, (long long)h,
           (long long)dv);
    sweep(c);
}

/* Each rank's head and tail rows against the keys of all ranks, which lie in the order of ranks. */
struct head_tail {
    struct attention_data a;       /* in the order of tokens */
    double *out, *dq, *dk, *dv;    /* of all ranks, in the order of tokens */
    struct tensor k, v, key_index; /* in the order of ranks */
    int64_t token[1024], own;      /* token: of each key */
};

static void head_tail_rank(struct checker *c, struct head_tail *t, int64_t rank)
{
    struct attention_data *a = &t->a;
    struct attention_shape s = a->s;
    const int64_t own = t->own, n = s.tk, *token = t->token + rank * own;
    struct tensor q = empty(c, own * a->wq, s.dt), dout = empty(c, own * a->wo, s.dt),
                  out = empty(c, own * a->wo, s.dt);
    struct tensor lse = empty(c, s.h * own, DTYPE_F32), index = empty(c, own, DTYPE_I32), dq = empty(c, q.n, s.dt);
    struct tensor start = empty(c, own, DTYPE_I32), dk = empty(c, n * a->wk, s.dt), dv = empty(c, n * a->wv, s.dt);
    for (int64_t i = 0; i < own; i++)
        index.x[i] = (double)token[i];
    reorder(q.x, a->dense_q, token, own, a->wq, false);
    reorder(dout.x, a->dout.x, token, own, a->wo, false);
    upload(c, &index), upload(c, &q), upload(c, &dout);
    s.tq = own, s.index = index.p, s.start = start.p, s.key_index = t->key_index.p;
    void *work = attention_work(c, &s);
    need(c, c->ops->attention(c->s, out.p, a->wo, lse.p, q.p, a->wq, t->k.p, a->wk, t->v.p, a->wv, &s), "attention");
    need(c,
         c->ops->attention_dgrad(c->s, dq.p, a->wq, dk.p, a->wk, dv.p, a->wv, dout.p, a->wo, out.p, a->wo, lse.p, q.p,
                                 a->wq, t->k.p, a->wk, t->v.p, a->wv, &s, work),
         "attention_dgrad");
    reorder(t->out, download(c, &out), token, own, a->wo, true);
    reorder(t->dq, download(c, &dq), token, own, a->wq, true);
    reorder(t->dk, download(c, &dk), t->token, n, a->wk, true);
    reorder(t->dv, download(c, &dv), t->token, n, a->wv, true);
}

/* What all ranks computed, put back in order and added up, is what causal attention gives. */
static void head_tail_case(struct checker *c, enum dtype dt, int64_t ranks, int64_t half)
{
    int64_t n = 2 * half * ranks;
    struct attention_shape s = {.dt = dt, .b = 1, .tq = n, .tk = n, .h = 2, .kv = 1, .d = 16, .dv = 16};
    struct head_tail t = {.a = attention_data(c, &s, 0, 2.0), .own = 2 * half};
    struct attention_data *a = &t.a;
    double *out = values(c, n * a->wo), *lse = values(c, s.h * n), *dq = values(c, n * a->wq);
    double *dk = values(c, n * a->wk), *dv = values(c, n * a->wv);
    t.out = values(c, n * a->wo), t.dq = values(c, n * a->wq), t.dk = values(c, n * a->wk), t.dv = values(c, n * a->wv);
    t.k = empty(c, n * a->wk, dt), t.v = empty(c, n * a->wv, dt), t.key_index = empty(c, n, DTYPE_I32);
    for (int64_t r = 0; r < ranks; r++)
        choose_tokens(c, t.token + r * t.own, t.own, n, HEAD_TAIL, r);
    for (int64_t i = 0; i < n; i++)
        t.key_index.x[i] = (double)t.token[i];
    reorder(t.k.x, a->dense_k, t.token, n, a->wk, false);
    reorder(t.v.x, a->dense_v, t.token, n, a->wv, false);
    upload(c, &t.k), upload(c, &t.v), upload(c, &t.key_index);
    for (int64_t r = 0; r < ranks; r++)
        head_tail_rank(c, &t, r);
    ref_attention(out, lse, a->dense_q, a->dense_k, a->dense_v, &a->ref);
    ref_attention_grad(dq, dk, dv, a->dout.x, t.out, lse, a->dense_q, a->dense_k, a->dense_v, &a->ref);
    bool ok = near(c, t.out, out, n * a->wo, limit_of(dt), "out");
    ok = near(c, t.dq, dq, n * a->wq, 5.0 * limit_of(dt), "dq") && ok;
    ok = near(c, t.dk, dk, n * a->wk, 5.0 * limit_of(dt), "dk") && ok;
    ok = near(c, t.dv, dv, n * a->wv, 5.0 * limit_of(dt), "dv") && ok;
    result(c, ok, "attention %s of %lld ranks' heads and tails of %lld is causal", name_of(dt), (long long)ranks,
           (long long)half);
    sweep(c);
}

static void check_attention_masks(struct checker *c, enum dtype dt)
{
    attention_case(c, (struct attention_shape){dt, 2, 100, 100, 4, 2, 32, 32, 0, 0, 0, 0, ATTENTION_FIXED}, 0, 2.0,
                   DOCUMENTS, 100);
    attention_case(c, (struct attention_shape){dt, 1, 71, 71, 3, 1, 24, 40, 0, 0, 0, 0, ATTENTION_FIXED}, 4, 1.0,
                   DOCUMENTS, 71);
    attention_case(c, (struct attention_shape){dt, 1, 65, 65, 2, 1, 16, 16, 0, 0, 0, 0, ATTENTION_FIXED}, 0, 1.0,
                   DOCUMENTS, 65);
    attention_case(c, (struct attention_shape){dt, 1, 33, 33, 1, 1, 128, 96, 0, 0, 0, 0, ATTENTION_FIXED}, 0, 1.0,
                   DOCUMENTS, 33);
    attention_case(c, (struct attention_shape){dt, 1, 64, 64, 2, 2, 16, 16, 0, 0, 0, 0, ATTENTION_FIXED}, 0, 2.0,
                   HEAD_TAIL, 256);
    attention_case(c, (struct attention_shape){dt, 2, 37, 150, 4, 1, 16, 32, 0, 0, 0, 0, ATTENTION_FIXED}, 2, 1.0,
                   SCATTERED, 170);
    attention_case(c, (struct attention_shape){dt, 1, 130, 33, 2, 2, 48, 16, 0, 0, 0, 0, ATTENTION_FIXED}, 8, 2.0,
                   SCATTERED, 400);
    ring_case(c, (struct attention_shape){dt, 1, 96, 96, 4, 2, 32, 32, 0, 0, 0, 0, ATTENTION_FIXED}, 3, DOCUMENTS, 96);
    ring_case(c, (struct attention_shape){dt, 1, 50, 131, 2, 1, 16, 24, 0, 0, 0, 0, ATTENTION_FIXED}, 4, SCATTERED,
              150);
    ring_case(c, (struct attention_shape){dt, 1, 64, 64, 4, 4, 16, 16, 0, 0, 0, 0, ATTENTION_FIXED}, 2, HEAD_TAIL, 64);
    merge_case(c, dt, 3, 5, 4, 24);
    head_tail_case(c, dt, 4, 20);
    head_tail_case(c, dt, 3, 100);
}

static void check_attention(struct checker *c)
{
    static const int64_t shapes[][6] = {/* B, T, H, K, D, Dv */
                                        {1, 1, 1, 1, 16, 16},   {2, 5, 4, 2, 16, 16},  {1, 33, 3, 1, 32, 32},
                                        {2, 100, 8, 4, 32, 32}, {1, 64, 2, 2, 64, 64}, {1, 130, 4, 1, 128, 128},
                                        {3, 71, 2, 1, 64, 64},  {2, 45, 4, 4, 48, 32}, {1, 66, 2, 1, 16, 40}};
    for (int i = 0; i < 2; i++) {
        rope_case(c, both[i], 23, 3, 16, 0, false);
        rope_case(c, both[i], 23, 2, 32, 16, true);
        rope_case(c, both[i], 7, 4, 128, 64, false);
        for (size_t j = 0; j < sizeof(shapes) / sizeof(shapes[0]); j++) {
            const int64_t *z = shapes[j];
            attention_case(c,
                           (struct attention_shape){both[i], z[0], z[1], z[1], z[2], z[3], z[4], z[5], 0, 0, 0, 0,
                                                    ATTENTION_FIXED},
                           j % 3 ? 0 : 8, j % 2 ? 3.0 : 1.0, CAUSAL, 0);
        }
        /* Of latent attention: heads of odd width, a scale of their own. */
        attention_case(c, (struct attention_shape){both[i], 2, 45, 45, 3, 3, 21, 13, 0, 0, 0, 0.4f, ATTENTION_FIXED}, 0,
                       1.0, CAUSAL, 0);
        attention_case(c, (struct attention_shape){both[i], 1, 70, 70, 2, 2, 24, 16, 0, 0, 0, 0.3f, ATTENTION_FIXED}, 5,
                       1.0, CAUSAL, 0);
        attention_case(c, (struct attention_shape){both[i], 1, 40, 40, 2, 1, 9, 11, 0, 0, 0, 0, ATTENTION_FIXED}, 1,
                       1.0, DOCUMENTS, 40);
        check_attention_packed(c, both[i]);
        check_attention_masks(c, both[i]);
    }
    struct tensor x = empty(c, 4096, DTYPE_F32);
    struct attention_shape s = {DTYPE_F32, 1, 4, 4, 3, 2, 16, 16, NULL, NULL, NULL, 0, ATTENTION_FIXED};
    bool ok = c->ops->attention(c->s, x.p, 48, x.p, x.p, 48, x.p, 32, x.p, 32, &s) == TITAN_EINVAL;
    result(c, ok, "attention refuses query heads that key heads do not divide");
    s = (struct attention_shape){DTYPE_F32, 1, 4, 5, 2, 2, 16, 16, NULL, NULL, NULL, 0, ATTENTION_FIXED};
    ok = c->ops->attention(c->s, x.p, 48, x.p, x.p, 48, x.p, 32, x.p, 32, &s) == TITAN_EINVAL;
    s.tk = 4, s.index = x.p;
    ok = ok && c->ops->attention(c->s, x.p, 48, x.p, x.p, 48, x.p, 32, x.p, 32, &s) == TITAN_EINVAL;
    result(c, ok, "attention refuses lengths that differ without masks, and half a mask");
    sweep(c);
}

/* What a device may leave to a library with sums in an order of its own or none, and what that has to leave to it.
 */
static void check_orders(struct checker *c)
{
    const int64_t shapes[][6] = {
        {2, 70, 4, 2, 64, 64}, {1, 48, 4, 1, 128, 128}, {3, 33, 4, 1, 64, 64}, {1, 40, 2, 2, 24, 16}};
    const enum attention_order orders[] = {ATTENTION_ANY, ATTENTION_REPEATABLE};
    for (int i = 0; i < 2; i++) {
        const enum attention_order o = orders[i];
        for (int j = 0; j < 4; j++) {
            const int64_t *z = shapes[j];
            attention_case(
                c, (struct attention_shape){DTYPE_BF16, z[0], z[1], z[1], z[2], z[3], z[4], z[5], 0, 0, 0, 0, o},
                j % 2 ? 8 : 0, j % 2 ? 3.0 : 1.0, CAUSAL, 0);
        }
        attention_case(c, (struct attention_shape){DTYPE_BF16, 1, 40, 40, 2, 2, 16, 16, 0, 0, 0, 0.3f, o}, 16, 1.0,
                       CAUSAL, 0);
        attention_case(c, (struct attention_shape){DTYPE_BF16, 1, 40, 40, 2, 1, 12, 20, 0, 0, 0, 0, o}, 1, 1.0, CAUSAL,
                       0);
        attention_case(c, (struct attention_shape){DTYPE_F32, 1, 40, 40, 2, 1, 16, 16, 0, 0, 0, 0, o}, 0, 1.0, CAUSAL,
                       0);
        attention_case(c, (struct attention_shape){DTYPE_BF16, 1, 40, 40, 2, 1, 16, 16, 0, 0, 0, 0, o}, 0, 1.0,
                       DOCUMENTS, 40);
    }
}

/* --- feed-forward, loss ------------------------------------------------------------------------------------------- */

static void swiglu_case(struct checker *c, enum dtype dt, int64_t n, int64_t f, double range)
{
    struct tensor gu = noise(c, n * 2 * f, dt, range), out = empty(c, n * f, dt), dout = noise(c, n * f, dt, 1.0);
    struct tensor dgu = empty(c, n * 2 * f, dt);
    double *want = values(c, n * f), *dwant = values(c, n * 2 * f);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < f; j++) {
            double g = gu.x[i * 2 * f + j], u = gu.x[i * 2 * f + f + j], d = dout.x[i * f + j];
            want[i * f + j] = ref_silu(g) * u;
            dwant[i * 2 * f + j] = d * u * ref_dsilu(g);
            dwant[i * 2 * f + f + j] = d * ref_silu(g);
        }
    need(c, c->ops->swiglu(c->s, out.p, gu.p, offset_of(&gu, f), 2 * f, dt, n, f), "swiglu");
    result(c, near(c, download(c, &out), want, n * f, limit_of(dt), "out"), "swiglu %s %lldx%lld", name_of(dt),
           (long long)n, (long long)f);
    need(c,
         c->ops->swiglu_dgrad(c->s, dgu.p, offset_of(&dgu, f), 2 * f, dout.p, gu.p, offset_of(&gu, f), 2 * f, dt, n, f),
         "swiglu_dgrad");
    result(c, near(c, download(c, &dgu), dwant, n * 2 * f, limit_of(dt), "dgate, dup"), "swiglu_dgrad %s %lldx%lld",
           name_of(dt), (long long)n, (long long)f);
    sweep(c);
}

/* Logits (N,V) cut into parts of columns, each part's memory apart, as ranks have them. */
enum { LOSS_PARTS_MAX = 4 };
static void loss_case(struct checker *c, enum dtype dt, int64_t n, int64_t v, int parts, double range, bool alias)
{
    struct tensor target = integers(c, n, -1, v), loss = empty(c, n, DTYPE_F32), x[LOSS_PARTS_MAX];
    struct tensor stats = empty(c, parts * n * 3, DTYPE_F32);
    double *all = values(c, n * v), *wl = values(c, n), *wd = values(c, n * v);
    int64_t first[LOSS_PARTS_MAX + 1] = {0};
    if (n > 1) {
        target.x[0] = (double)(v - 1);
        target.x[1] = -100;
        upload(c, &target);
    }
    for (int p = 0; p < parts; p++) { /* uneven: the last part has the rest */
        first[p + 1] = p + 1 == parts ? v : (p + 1) * v / (2 * parts) + 1;
        int64_t w = first[p + 1] - first[p];
        x[p] = noise(c, n * w, dt, range);
        for (int64_t i = 0; i < n * w; i++)
            all[i / w * v + first[p] + i % w] = x[p].x[i];
        need(c, c->ops->loss_stats(c->s, offset_of(&stats, p * n * 3), x[p].p, target.p, dt, n, w, first[p]), "stats");
    }
    ref_cross_entropy(wl, wd, all, target.x, n, v);
    bool ok = true;
    for (int p = 0; p < parts; p++) {
        int64_t w = first[p + 1] - first[p];
        struct tensor apart = noise(c, n * w, dt, 1.0), *to = alias ? &x[p] : &apart;
        need(c, c->ops->loss_finish(c->s, loss.p, NULL, x[p].p, target.p, stats.p, parts, dt, n, w, first[p]), "loss");
        ok = near(c, download(c, &loss), wl, n, limit_of(DTYPE_F32), "loss only") && ok;
        need(c, c->ops->zero(c->s, loss.p, (size_t)n * 4), "zero");
        need(c, c->ops->loss_finish(c->s, loss.p, to->p, x[p].p, target.p, stats.p, parts, dt, n, w, first[p]), "loss");
        ok = near(c, download(c, &loss), wl, n, limit_of(DTYPE_F32), "loss") && ok;
        ok = near(c, download(c, to), unpack(c, wd, n, v, first[p], w), n * w, limit_of(dt), "dlogits") && ok;
    }
    result(c, ok, "loss %s %lldx%lld in %d parts, logits within %g%s", name_of(dt), (long long)n, (long long)v, parts,
           range, alias ? ", in place" : "");
    sweep(c);
}

/* One pass: every bit as two have it; dlogits beside the logits, over them, and not asked for. */
static void whole_loss_case(struct checker *c, enum dtype dt, int64_t n, int64_t v, double range)
{
    struct tensor target = integers(c, n, -1, v), x = noise(c, n * v, dt, range), dx = empty(c, n * v, dt);
    struct tensor stats = empty(c, n * 3, DTYPE_F32), loss = empty(c, n, DTYPE_F32);
    struct tensor stats2 = empty(c, n * 3, DTYPE_F32), loss2 = empty(c, n, DTYPE_F32), dx2 = empty(c, n * v, dt);
    bool ok = true;
    target.x[0] = -100;
    upload(c, &target);
    need(c, c->ops->loss_stats(c->s, stats.p, x.p, target.p, dt, n, v, 0), "stats");
    need(c, c->ops->loss_finish(c->s, loss.p, dx.p, x.p, target.p, stats.p, 1, dt, n, v, 0), "finish");
    for (int way = 0; way < 3; way++) {
        struct tensor *to = way == 1 ? &dx2 : way == 2 ? &x : NULL;
        need(c, c->ops->zero(c->s, loss2.p, (size_t)n * 4), "zero");
        need(c, c->ops->loss(c->s, loss2.p, stats2.p, to ? to->p : NULL, x.p, target.p, dt, n, v, 0), "loss");
        ok = same(c, download(c, &loss2), download(c, &loss), n, "losses") && ok;
        ok = same(c, download(c, &stats2), download(c, &stats), 3 * n, "stats") && ok;
        ok = (!to || same(c, download(c, to), download(c, &dx), n * v, "dlogits")) && ok;
    }
    result(c, ok, "loss %s %lldx%lld in one pass", name_of(dt), (long long)n, (long long)v);
    sweep(c);
}

static void check_layers(struct checker *c)
{
    for (int i = 0; i < 2; i++) {
        enum dtype dt = both[i];
        swiglu_case(c, dt, 9, 1, 4.0);
        swiglu_case(c, dt, 31, 96, 4.0);
        swiglu_case(c, dt, 3, 777, 100.0); /* e^-x overflows fp32 */
        struct tensor a = noise(c, 5001, dt, 1.0), b = noise(c, 5001, dt, 1.0), o = empty(c, 5001, dt);
        double *want = values(c, 5001);
        for (int j = 0; j < 5001; j++)
            want[j] = a.x[j] + b.x[j];
        need(c, c->ops->add(c->s, o.p, a.p, b.p, dt, 5001), "add");
        bool ok = near(c, download(c, &o), want, 5001, limit_of(dt), "sum");
        need(c, c->ops->add(c->s, b.p, a.p, b.p, dt, 5001), "add");
        result(c, same(c, download(c, &b), download(c, &o), 5001, "in place") && ok, "add %s, apart and in place",
               name_of(dt));
        sweep(c);
        loss_case(c, dt, 1, 2, 1, 1.0, false);
        loss_case(c, dt, 37, 7, 1, 5.0, true);
        loss_case(c, dt, 50, 256, 1, 20.0, true);
        loss_case(c, dt, 5, 1003, 1, 100.0, false);
        loss_case(c, dt, 41, 130, 2, 5.0, true);
        loss_case(c, dt, 9, 1003, 4, 60.0, false);
        whole_loss_case(c, dt, 1, 2, 1.0);
        whole_loss_case(c, dt, 37, 7, 5.0);
        whole_loss_case(c, dt, 9, 1003, 60.0);
        loss_case(c, dt, 2, 70000, 1, 10.0, true); /* more than a block reads at once, or keeps */
        whole_loss_case(c, dt, 3, 70000, 10.0);
        whole_loss_case(c, dt, 2, 60001, 10.0);
    }
    struct tensor x = noise(c, 8, DTYPE_F32, 1.0), target = integers(c, 1, 0, 8), loss = empty(c, 1, DTYPE_F32);
    struct tensor stats = empty(c, 3, DTYPE_F32);
    x.x[3] = NAN;
    upload(c, &x);
    need(c, c->ops->loss_stats(c->s, stats.p, x.p, target.p, DTYPE_F32, 1, 8, 0), "stats");
    need(c, c->ops->loss_finish(c->s, loss.p, NULL, x.p, target.p, stats.p, 1, DTYPE_F32, 1, 8, 0), "loss");
    result(c, isnan(download(c, &loss)[0]), "loss of a NaN logit is NaN");
    sweep(c);
}

/* --- sums and optimizer ------------------------------------------------------------------------------------------- */

static void sums_case(struct checker *c, int64_t n, int64_t block, bool square)
{
    int64_t blocks = (n + block - 1) / block;
    struct tensor x = noise(c, n, DTYPE_F32, 1.0), out = empty(c, blocks, DTYPE_F64), cut = empty(c, blocks, DTYPE_F64);
    double *want = values(c, blocks);
    for (int64_t i = 0; i < n; i++)
        want[i / block] += square ? x.x[i] * x.x[i] : x.x[i];
    need(c, c->ops->block_sums(c->s, out.p, x.p, (size_t)n, (size_t)block, square), "block_sums");
    double *got = download(c, &out);
    bool ok = near(c, got, want, blocks, 1e-24, "sums");
    for (int64_t i = 0; i < blocks; i++) {
        int64_t left = n - i * block < block ? n - i * block : block;
        need(
            c,
            c->ops->block_sums(c->s, offset_of(&cut, i), offset_of(&x, i * block), (size_t)left, (size_t)block, square),
            "block_sums");
    }
    ok = same(c, download(c, &cut), got, blocks, "cut at block bounds") && ok;
    x.x[n / 2] = INFINITY;
    upload(c, &x);
    need(c, c->ops->block_sums(c->s, out.p, x.p, (size_t)n, (size_t)block, square), "block_sums");
    double *bad = download(c, &out);
    for (int64_t i = 0; i < blocks; i++)
        ok = ok && (i == n / 2 / block ? !isfinite(bad[i]) : bad[i] == got[i]);
    result(c, ok, "block_sums%s of %lld by %lld", square ? " of squares" : "", (long long)n, (long long)block);
    sweep(c);
}

static uint64_t hashed(struct checker *c, uint64_t *out, const struct tensor *x, int64_t from, int64_t rows,
                       int64_t cols, uint64_t key, int64_t first, uint64_t sum)
{
    transfer(c, out, &sum, sizeof sum, true);
    need(c, c->ops->hash(c->s, out, offset_of(x, from), x->dt, rows, cols, key, first), "hash");
    transfer(c, &sum, out, sizeof sum, false);
    return sum;
}

/* Against the definition, added to what is there; the same in parts, cut between rows and within one. */
static void hash_case(struct checker *c, enum dtype dt, int64_t rows, int64_t cols)
{
    const uint64_t key = UINT64_C(3) << 40 | 17, before = ~UINT64_C(0) - 5;
    const int64_t first = 1000, half = rows / 2;
    struct tensor x = noise(c, rows * cols, dt, 1.0);
    uint64_t want = before, *const out = device_memory(c, sizeof want);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i++) {
            const float value = (float)x.x[r * cols + i];
            uint32_t bits;
            memcpy(&bits, &value, sizeof bits);
            want += hash_element(hash_mix(key + (uint64_t)r), first + i, bits);
        }
    bool ok = hashed(c, out, &x, 0, rows, cols, key, first, before) == want;
    uint64_t sum = hashed(c, out, &x, half * cols, rows - half, cols, key + (uint64_t)half, first, before);
    for (int64_t r = 0; r < half; r++) {
        const uint64_t part = hashed(c, out, &x, r * cols, 1, cols / 3, key + (uint64_t)r, first, sum);
        sum = hashed(c, out, &x, r * cols + cols / 3, 1, cols - cols / 3, key + (uint64_t)r, first + cols / 3, part);
    }
    ok = sum == want && ok;
    result(c, ok, "hash of %lld by %lld %s, whole and in parts", (long long)rows, (long long)cols, name_of(dt));
    sweep(c);
}

/* The host's, to the bit. */
static void weights_case(struct checker *c, enum dtype dt, int64_t rows, int64_t cols, int64_t width, int64_t first,
                         float limit)
{
    struct tensor x = empty(c, rows * cols, dt);
    struct rng_weights w = {.key = rng_key(1, "w"), .limit = limit, .std = 0.02f};
    for (int i = 0; i < RNG_REDRAWS; i++)
        w.again[i] = rng_key((uint64_t)i, "again");
    double *want = values(c, rows * cols);
    for (int64_t i = 0; i < rows * cols; i++) {
        float value;
        rng_weights(&w, (uint64_t)(first + i / cols * width + i % cols), 1, &value);
        want[i] = dt == DTYPE_BF16 ? from_bf16(to_bf16(value)) : value;
    }
    need(c, c->ops->weights(c->s, x.p, dt, rows, cols, width, first, &w), "weights");
    result(c, same(c, download(c, &x), want, rows * cols, "weights"), "weights %lld by %lld of %lld from %lld %s%s",
           (long long)rows, (long long)cols, (long long)width, (long long)first, name_of(dt), limit > 0 ? ", cut" : "");
    sweep(c);
}

static void adam_case(struct checker *c, int64_t n, bool with_shadow, bool l2)
{
    struct tensor w = noise(c, n, DTYPE_F32, 1.0), m = noise(c, n, DTYPE_F32, 0.1), v = noise(c, n, DTYPE_F32, 0.1);
    struct tensor shadow = empty(c, n, DTYPE_BF16);
    double *first = values(c, n);
    for (int64_t i = 0; i < n; i++)
        v.x[i] = fabs(v.x[i]);
    upload(c, &v);
    memcpy(first, w.x, (size_t)n * sizeof(double));
    struct adamw_args a = {.lr = 3e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .l2 = l2};
    for (int step = 1; step <= 3; step++) {
        struct tensor g = noise(c, n, DTYPE_F32, 10.0);
        a.grad_scale = 1.0f / (float)(step + 2);
        a.bias1 = 1.0f - powf(a.beta1, (float)step);
        a.bias2 = 1.0f - powf(a.beta2, (float)step);
        for (int64_t i = 0; i < n; i++) {
            double gi = g.x[i] * (double)a.grad_scale + (l2 ? (double)a.weight_decay * w.x[i] : 0.0);
            m.x[i] = (double)a.beta1 * m.x[i] + (1.0 - (double)a.beta1) * gi;
            v.x[i] = (double)a.beta2 * v.x[i] + (1.0 - (double)a.beta2) * gi * gi;
            w.x[i] -= (double)a.lr * (m.x[i] / (double)a.bias1 / (sqrt(v.x[i] / (double)a.bias2) + (double)a.eps) +
                                      (l2 ? 0.0 : (double)a.weight_decay * w.x[i]));
        }
        need(c, c->ops->adamw(c->s, w.p, m.p, v.p, g.p, with_shadow ? shadow.p : NULL, (size_t)n, &a), "adamw");
    }
    double *got = download(c, &w), *bits = download(c, &shadow);
    bool ok = near(c, got, w.x, n, limit_of(DTYPE_F32), "weights");
    /* The change itself, which is small against the weight. */
    double *step = values(c, n), *want = values(c, n);
    for (int64_t i = 0; i < n; i++) {
        step[i] = got[i] - first[i];
        want[i] = w.x[i] - first[i];
    }
    ok = near(c, step, want, n, 1e-8, "change") && ok;
    ok = near(c, download(c, &m), m.x, n, limit_of(DTYPE_F32), "m") && ok;
    ok = near(c, download(c, &v), v.x, n, limit_of(DTYPE_F32), "v") && ok;
    for (int64_t i = 0; i < n; i++)
        ok = ok && bits[i] == (with_shadow ? (double)from_bf16(to_bf16((float)got[i])) : 0.0);
    result(c, ok, "adam%s %lld%s", l2 ? "" : "w", (long long)n, with_shadow ? " with shadow" : "");
    sweep(c);
}

/* Half a unit in the last place of 8 bits, and what fp32 arithmetic is off by. */
static bool rounded(double got, double exact)
{
    int exponent;
    (void)frexp(exact, &exponent);
    return fabs(got - exact) <= ldexp(1.0, exponent - 9) + 1e-6;
}

static bool as_typed(double got, double exact, enum dtype dt)
{
    return dt == DTYPE_BF16 ? rounded(got, exact) : fabs(got - exact) <= 1e-6 * (fabs(exact) + 1e-3);
}

/* One step on masters of type wt and moments of type mt: what is stored is the exact value, rounded once. */
static void typed_optim_case(struct checker *c, int64_t n, enum dtype wt, enum dtype mt, bool l2, bool plain)
{
    struct tensor w = noise(c, n, wt, 1.0), m = noise(c, n, mt, 0.1), v = noise(c, n, mt, 0.1);
    struct tensor g = noise(c, n, DTYPE_F32, 10.0), shadow = empty(c, n, DTYPE_BF16);
    struct adamw_args a = {.lr = 3e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .l2 = l2};
    bool ok = true;
    a.bias1 = 1.0f - a.beta1;
    a.bias2 = 1.0f - a.beta2;
    a.master = wt;
    a.moment = mt;
    a.clip = 0.7f;
    a.mean = 1.0f / 8;
    a.grad_scale = a.clip * a.mean;
    for (int64_t i = 0; i < n; i++)
        v.x[i] = fabs(v.x[i]);
    upload(c, &v);
    uint16_t *const to = wt == DTYPE_F32 ? shadow.p : NULL;
    if (plain)
        need(c, c->ops->sgd(c->s, w.p, g.p, to, (size_t)n, &a), "sgd");
    else
        need(c, c->ops->adamw(c->s, w.p, m.p, v.p, g.p, to, (size_t)n, &a), "adamw");
    double *gw = download(c, &w), *gm = download(c, &m), *gv = download(c, &v), *bits = download(c, &shadow);
    for (int64_t i = 0; i < n; i++) {
        double gi = g.x[i] * (double)a.grad_scale;
        if (wt == DTYPE_BF16) /* as a gradient of that type is: the mean, then clipped */
            gi = from_bf16(to_bf16(from_bf16(to_bf16((float)g.x[i] * a.mean)) * a.clip));
        gi += l2 ? (double)a.weight_decay * w.x[i] : 0.0;
        const double mi = (double)a.beta1 * m.x[i] + (1.0 - (double)a.beta1) * gi;
        const double vi = (double)a.beta2 * v.x[i] + (1.0 - (double)a.beta2) * gi * gi;
        const double by = plain ? gi : mi / (double)a.bias1 / (sqrt(vi / (double)a.bias2) + (double)a.eps);
        const double wi = w.x[i] - (double)a.lr * (by + (l2 ? 0.0 : (double)a.weight_decay * w.x[i]));
        ok = ok && as_typed(gw[i], wi, wt) && as_typed(gm[i], plain ? m.x[i] : mi, mt);
        ok = ok && as_typed(gv[i], plain ? v.x[i] : vi, mt);
        ok = ok && bits[i] == (to ? (double)from_bf16(to_bf16((float)gw[i])) : 0.0);
    }
    result(c, ok, "%s %lld, masters %s, moments %s",
           plain ? "sgd"
           : l2  ? "adam"
                 : "adamw",
           (long long)n, wt == DTYPE_BF16 ? "bf16" : "fp32", mt == DTYPE_BF16 ? "bf16" : "fp32");
    sweep(c);
}

/* bf16 moments rounded at random, of a box 24 wide of a matrix 64 wide, in one call or in two: the bits that device.h
 * states, whatever the device; what rounding adds has a mean of nothing. */
static void random_rounding_case(struct checker *c, enum dtype wt, bool l2)
{
    enum { ROWS = 37, COLS = 24, WIDTH = 64, N = ROWS * COLS, CUT = 401 };
    struct tensor w = noise(c, N, wt, 1.0), m = noise(c, N, DTYPE_BF16, 0.1), v = noise(c, N, DTYPE_BF16, 0.1);
    struct tensor g = noise(c, N, DTYPE_F32, 10.0),
                  split[3] = {noise(c, N, wt, 1.0), empty(c, N, DTYPE_BF16), empty(c, N, DTYPE_BF16)};
    struct adamw_args a = {.lr = 3e-3f,
                           .beta1 = 0.9f,
                           .beta2 = 0.95f,
                           .eps = 1e-8f,
                           .weight_decay = 0.1f,
                           .l2 = l2,
                           .bias1 = 0.1f,
                           .bias2 = 0.05f,
                           .master = wt,
                           .moment = DTYPE_BF16,
                           .clip = 0.7f,
                           .mean = 0.125f,
                           .rounding = {.random = true,
                                        .key = rng_key(7, "rounding.x"),
                                        .step = 3,
                                        .cols = COLS,
                                        .ld = WIDTH,
                                        .origin = 5 * WIDTH + 9}};
    double bias = 0.0;
    bool ok = true;
    a.grad_scale = a.clip * a.mean;
    for (int64_t i = 0; i < N; i++)
        v.x[i] = fabs(v.x[i]);
    upload(c, &v);
    memcpy(split[0].x, w.x, N * sizeof(double)), memcpy(split[1].x, m.x, N * sizeof(double));
    memcpy(split[2].x, v.x, N * sizeof(double));
    for (int i = 0; i < 3; i++)
        upload(c, &split[i]);
    need(c, c->ops->adamw(c->s, w.p, m.p, v.p, g.p, NULL, N, &a), "adamw");
    need(c, c->ops->adamw(c->s, split[0].p, split[1].p, split[2].p, g.p, NULL, CUT, &a), "adamw");
    a.rounding.first = CUT;
    need(c,
         c->ops->adamw(c->s, offset_of(&split[0], CUT), offset_of(&split[1], CUT), offset_of(&split[2], CUT),
                       offset_of(&g, CUT), NULL, N - CUT, &a),
         "adamw");
    double *gm = download(c, &m), *gv = download(c, &v);
    for (int64_t i = 0; i < N; i++) {
        const uint64_t place = (uint64_t)(a.rounding.origin + i / COLS * WIDTH + i % COLS);
        const float sum = (float)g.x[i], half = from_bf16(to_bf16(sum * a.mean));
        const float clipped = wt == DTYPE_BF16 ? from_bf16(to_bf16(half * a.clip)) : sum * a.grad_scale;
        const float gi = fmaf(l2 ? a.weight_decay : 0.0f, (float)w.x[i], clipped), square = gi * gi;
        const float mi = fmaf(a.beta1, (float)m.x[i], (1.0f - a.beta1) * gi);
        const float vi = fmaf(a.beta2, (float)v.x[i], (1.0f - a.beta2) * square);
        uint32_t words[4];
        rng_philox(a.rounding.key, place / 4, a.rounding.step, words);
        ok = ok && gm[i] == (double)bf16_to_f32(bf16_from_f32_at_random(mi, words[place % 4]));
        ok = ok && gv[i] == (double)bf16_to_f32(bf16_from_f32_at_random(vi, words[place % 4] >> 16));
        int exponent;
        (void)frexp((double)mi, &exponent);
        bias += (gm[i] - (double)mi) / ldexp(1.0, exponent - 8) / N;
    }
    ok = ok && fabs(bias) < 5 * 0.41 / sqrt((double)N); /* one of them is off by 0.41 units, root mean square */
    ok = same(c, download(c, &split[0]), download(c, &w), N, "weights in two calls") && ok;
    ok = same(c, download(c, &split[1]), gm, N, "m in two calls") && ok;
    ok = same(c, download(c, &split[2]), gv, N, "v in two calls") && ok;
    result(c, ok, "%s, masters %s, moments rounded at random", l2 ? "adam" : "adamw",
           wt == DTYPE_BF16 ? "bf16" : "fp32");
    sweep(c);
}

/* Ranges of all sizes, more than a launch has, in one call: the bits of a call each. */
static void many_ranges_case(struct checker *c, enum dtype wt, enum dtype mt, bool random)
{
    enum { COUNT = 41, LARGEST = 9001 };
    struct adamw_args a = {.lr = 3e-3f,
                           .beta1 = 0.9f,
                           .beta2 = 0.95f,
                           .eps = 1e-8f,
                           .weight_decay = 0.1f,
                           .grad_scale = 0.25f,
                           .bias1 = 0.1f,
                           .bias2 = 0.05f,
                           .master = wt,
                           .moment = mt,
                           .mean = 0.5f,
                           .clip = 0.5f,
                           .rounding = {.random = random, .step = 3}};
    enum { ALL = COUNT * 37 * COUNT + LARGEST };
    const enum dtype types[] = {wt, mt, mt};
    struct adamw_range ranges[COUNT];
    struct tensor all[3], one[3], g = noise(c, ALL, DTYPE_F32, 10.0);
    bool ok = true;
    int64_t at = 0;

    for (int i = 0; i < 3; i++) {
        all[i] = noise(c, ALL, types[i], 1.0);
        one[i] = empty(c, ALL, types[i]);
        for (int64_t e = 0; e < ALL && i == 2; e++)
            all[i].x[e] = fabs(all[i].x[e]);
        memcpy(one[i].x, all[i].x, ALL * sizeof(double));
        upload(c, &all[i]);
        upload(c, &one[i]);
    }
    for (int k = 0; k < COUNT; k++) {
        const int64_t n = k % 5 == 0 ? k / 5 : k == 7 ? LARGEST : 37 * k;
        struct adamw_args with = a;
        with.rounding.key = rng_key(7, "rounding.x");
        with.rounding.cols = with.rounding.ld = k + 1;
        with.rounding.origin = 1000 * k;
        ranges[k] = (struct adamw_range){.master = offset_of(&all[0], at),
                                         .m = offset_of(&all[1], at),
                                         .v = offset_of(&all[2], at),
                                         .grad = offset_of(&g, at),
                                         .n = (size_t)n,
                                         .rounding = with.rounding};
        need(c,
             c->ops->adamw(c->s, offset_of(&one[0], at), offset_of(&one[1], at), offset_of(&one[2], at),
                           offset_of(&g, at), NULL, (size_t)n, &with),
             "adamw");
        at += n + k % 3; /* what lies between them stays */
    }
    need(c, c->ops->adamw_all(c->s, ranges, COUNT, &a), "adamw_all");
    need(c, c->ops->adamw_all(c->s, ranges, 0, &a), "adamw_all of none");
    for (int i = 0; i < 3; i++)
        ok = same(c, download(c, &all[i]), download(c, &one[i]), ALL, "ranges at once") && ok;
    result(c, ok, "adamw of %d ranges at once, masters %s, moments %s%s", COUNT, wt == DTYPE_BF16 ? "bf16" : "fp32",
           mt == DTYPE_BF16 ? "bf16" : "fp32", random ? ", at random" : "");
    sweep(c);
}

static void sum_case(struct checker *c, int64_t n)
{
    struct tensor x = noise(c, n, DTYPE_F64, 1.0), out = noise(c, 1, DTYPE_F64, 1.0);
    double want[2] = {0.0, out.x[0]};
    for (int64_t i = 0; i < n; i++)
        want[0] += x.x[i];
    want[1] += want[0];
    need(c, c->ops->sum(c->s, out.p, true, x.p, (size_t)n), "sum");
    bool ok = fabs(download(c, &out)[0] - want[1]) <= 1e-12 * (1.0 + fabs(want[1]));
    need(c, c->ops->sum(c->s, out.p, false, x.p, (size_t)n), "sum");
    double *got = download(c, &out);
    ok = ok && fabs(got[0] - want[0]) <= 1e-12 * (1.0 + fabs(want[0]));
    need(c, c->ops->sum(c->s, out.p, false, x.p, (size_t)n), "sum");
    ok = same(c, download(c, &out), got, 1, "repeated") && ok;
    result(c, ok, "sum of %lld fp64", (long long)n);
    sweep(c);
}

static void sgd_case(struct checker *c, int64_t n, bool with_shadow)
{
    struct tensor w = noise(c, n, DTYPE_F32, 1.0), g = noise(c, n, DTYPE_F32, 10.0), shadow = empty(c, n, DTYPE_BF16);
    const struct adamw_args a = {.lr = 3e-3f, .weight_decay = 0.1f, .grad_scale = 0.25f};
    double *want = values(c, n);
    for (int64_t i = 0; i < n; i++)
        want[i] = w.x[i] - (double)a.lr * (g.x[i] * (double)a.grad_scale + (double)a.weight_decay * w.x[i]);
    need(c, c->ops->sgd(c->s, w.p, g.p, with_shadow ? shadow.p : NULL, (size_t)n, &a), "sgd");
    double *got = download(c, &w), *bits = download(c, &shadow);
    bool ok = near(c, got, want, n, limit_of(DTYPE_F32), "weights");
    for (int64_t i = 0; i < n; i++)
        ok = ok && bits[i] == (with_shadow ? (double)from_bf16(to_bf16((float)got[i])) : 0.0);
    result(c, ok, "sgd %lld%s", (long long)n, with_shadow ? " with shadow" : "");
    sweep(c);
}

static void check_sums(struct checker *c)
{
    struct tensor a = noise(c, 3333, DTYPE_F32, 1.0), b = noise(c, 3333, DTYPE_F32, 1.0);
    double *want = values(c, 3333);
    for (int i = 0; i < 3333; i++)
        want[i] = (double)((float)a.x[i] + (float)b.x[i]);
    need(c, c->ops->accumulate(c->s, a.p, b.p, 3333), "accumulate");
    result(c, same(c, download(c, &a), want, 3333, "sum"), "accumulate");
    for (int i = 0; i < 3333; i++)
        want[i] = (double)((float)b.x[i] * 0.3f);
    need(c, c->ops->scale(c->s, b.p, 0.3f, 3333), "scale");
    result(c, same(c, download(c, &b), want, 3333, "product"), "scale");
    sweep(c);
    sums_case(c, 1, 4096, false);
    sums_case(c, 10000, 4096, true);
    sums_case(c, 1000, 33, false);
    sums_case(c, 8192, 1024, true);
    for (int i = 0; i < 2; i++) {
        hash_case(c, both[i], 1, 1);
        hash_case(c, both[i], 7, 1003);
        hash_case(c, both[i], 1, 70001);
        hash_case(c, both[i], 40, 3);
        weights_case(c, both[i], 1, 1, 1, 7, 0);
        weights_case(c, both[i], 5, 4099, 5000, 3, 0);
        weights_case(c, both[i], 3, 700, 700, INT64_C(5) << 31, 1.0f);
        weights_case(c, both[i], 300, 2, 9, 0, 3.0f);
    }
    adam_case(c, 1, true, false);
    adam_case(c, 1003, true, false);
    adam_case(c, 4096, false, false);
    adam_case(c, 1003, true, true);
    adam_case(c, 4096, false, true);
    for (int l2 = 0; l2 < 2; l2++) {
        typed_optim_case(c, 1003, DTYPE_F32, DTYPE_BF16, l2, false);
        typed_optim_case(c, 40000, DTYPE_BF16, DTYPE_BF16, l2, false);
    }
    for (int l2 = 0; l2 < 2; l2++) {
        random_rounding_case(c, DTYPE_F32, l2);
        random_rounding_case(c, DTYPE_BF16, l2);
    }
    many_ranges_case(c, DTYPE_F32, DTYPE_F32, false);
    many_ranges_case(c, DTYPE_BF16, DTYPE_BF16, false);
    many_ranges_case(c, DTYPE_F32, DTYPE_BF16, true);
    typed_optim_case(c, 1003, DTYPE_F32, DTYPE_BF16, false, true);
    typed_optim_case(c, 40000, DTYPE_BF16, DTYPE_BF16, false, true);
    sum_case(c, 1);
    sum_case(c, 1003);
    sum_case(c, 100000);
    sgd_case(c, 1003, true);
    sgd_case(c, 40000, false);
}

/* --- streams ------------------------------------------------------------------------------------------------------ */

static titan_status call_count(void *arg, struct titan_error *err)
{
    (void)err;
    ++*(int *)arg;
    return TITAN_OK;
}
static titan_status call_fail(void *arg, struct titan_error *err)
{
    (void)arg;
    return titan_fail(err, TITAN_EPEER, "peer 7 vanished");
}

static void check_streams(struct checker *c)
{
    const struct device_ops *ops = c->ops;
    struct event *e = NULL;
    struct titan_error err = {0};
    int count = 0;
    need(c, ops->event_open(c->h->dev, &e, &err), "event_open");
    need(c, ops->event_wait(e, c->side, &err), "wait for an event never recorded");
    for (int i = 0; i < 1000; i++)
        need(c, ops->stream_call(c->side, call_count, &count, &err), "stream_call");
    need(c, ops->event_record(e, c->side, &err), "event_record");
    need(c, ops->event_sync(e, &err), "event_sync");
    result(c, count == 1000, "stream_call: 1000 calls ran before the event after them");

    /* Work on the side stream is seen by the compute stream behind an event. */
    struct tensor x = noise(c, 100000, DTYPE_F32, 1.0), y = empty(c, 100000, DTYPE_F32);
    need(c, ops->copy(c->side, y.p, x.p, 400000), "copy");
    need(c, ops->event_record(e, c->side, &err), "event_record");
    need(c, ops->event_wait(e, c->s, &err), "event_wait");
    need(c, ops->scale(c->s, y.p, 2.0f, 100000), "scale");
    double *want = values(c, x.n);
    for (int64_t i = 0; i < x.n; i++)
        want[i] = 2.0 * x.x[i];
    result(c, same(c, download(c, &y), want, x.n, "scaled copy"), "event_wait orders two streams");

    /* A failure sticks, skips what follows, passes through events, and is forgotten by clear. */
    count = 0;
    need(c, ops->stream_call(c->side, call_fail, NULL, &err), "stream_call");
    ops->stream_call(c->side, call_count, &count, NULL);
    ops->event_record(e, c->side, NULL);
    bool ok = ops->stream_sync(c->side, &err) == TITAN_EPEER && count == 0 && strstr(err.msg, "peer 7");
    ops->zero(c->side, y.p, 400000); /* the failure is known now; a GPU may run what was enqueued before that */
    ok = ok && ops->stream_sync(c->side, NULL) == TITAN_EPEER;
    result(c, ok, "a failed call sticks: later work is skipped, sync returns its status and message");
    result(c, ops->event_sync(e, &err) == TITAN_EPEER && strstr(err.msg, "peer 7"), "event_sync returns the failure");
    ops->event_wait(e, c->s, NULL);
    ok = ops->stream_sync(c->s, &err) == TITAN_EPEER;
    ops->stream_clear(c->s);
    result(c, ok && same(c, download(c, &y), want, x.n, "after a skipped zero"),
           "event_wait passes the failure to the other stream");
    ops->stream_clear(c->side);
    need(c, ops->stream_call(c->side, call_count, &count, &err), "stream_call");
    need(c, ops->stream_sync(c->side, &err), "stream_sync");
    need(c, ops->event_record(e, c->side, &err), "event_record");
    need(c, ops->event_sync(e, &err), "event_sync");
    result(c, count == 1, "stream_clear: the stream works again");
    ops->event_close(e);
    sweep(c);
}

/* --- same call, same bits ----------------------------------------------------------------------------------------- */

static void check_repeat(struct checker *c)
{
    int64_t n = 300, w = 200, v = 40;
    struct tensor tokens = integers(c, n, 0, v), x = noise(c, n * w, DTYPE_BF16, 1.0);
    struct tensor dy = noise(c, n * w, DTYPE_BF16, 1.0), rstd = noise(c, n, DTYPE_F32, 1.0);
    struct tensor table[2], gain[2], weight[2];
    for (int i = 0; i < 2; i++) {
        table[i] = empty(c, v * w, DTYPE_F32);
        gain[i] = empty(c, w, DTYPE_F32);
        weight[i] = empty(c, w * w, DTYPE_F32);
        need(c, c->ops->embed_wgrad(c->s, table[i].p, tokens.p, dy.p, DTYPE_BF16, n, w, v, 0), "embed_wgrad");
        need(c, c->ops->rmsnorm_dgain(c->s, gain[i].p, dy.p, x.p, rstd.p, DTYPE_BF16, n, w), "rmsnorm_dgain");
        need(c,
             c->ops->matmul(c->s, weight[i].p, DTYPE_F32, w, dy.p, true, w, x.p, false, w, DTYPE_BF16, w, w, n, 1.0f),
             "matmul");
    }
    bool ok = same(c, download(c, &table[1]), download(c, &table[0]), v * w, "embed_wgrad");
    ok = same(c, download(c, &gain[1]), download(c, &gain[0]), w, "rmsnorm_dgain") && ok;
    ok = same(c, download(c, &weight[1]), download(c, &weight[0]), w * w, "matmul") && ok;
    result(c, ok, "the same call on the same data gives the same bits");
    sweep(c);
}

int device_ops_check(const struct device_handle *handle, FILE *report)
{
    const char *seed = getenv("TITAN_SEED"), *only = getenv("TITAN_TEST_ONLY");
    struct checker c = {.h = handle, .ops = handle->ops, .report = report};
    struct titan_error err = {0};
    c.random = seed ? strtoull(seed, NULL, 0) : 20261120;
    fprintf(report, "# device '%s', seed %llu\n", handle->info.name, (unsigned long long)c.random);
    if (c.ops->stream_open(handle->dev, "compute", true, &c.s, &err) != TITAN_OK ||
        c.ops->stream_open(handle->dev, "side", false, &c.side, &err) != TITAN_OK) {
        fprintf(report, "not ok 1 - streams: %s\n", err.msg);
        c.failed = 1;
        goto out;
    }
    check_orders(&c);
    if (only && strcmp(only, "attention_orders") == 0)
        goto out;
    check_reference(&c);
    check_reference_attention(&c);
    check_memory(&c);
    check_cast(&c);
    check_streams(&c);
    check_matmul(&c);
    check_embed(&c);
    check_norm(&c);
    check_attention(&c);
    check_layers(&c);
    check_sums(&c);
    device_experts_check(&c);
    check_repeat(&c);
    check_matmul_f8(&c);
out:
    if (c.side)
        c.ops->stream_close(c.side);
    if (c.s)
        c.ops->stream_close(c.s);
    return c.failed;
}
