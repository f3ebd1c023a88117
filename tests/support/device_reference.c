/* SPDX-License-Identifier: Apache-2.0 */
/* device_reference.c - see device_reference.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/device_checker.h"
#include "support/device_ops.h"
#include "support/device_reference.h"

void ref_rmsnorm(double *y, double *rstd, const double *x, const double *g, int64_t n, int64_t c, double eps)
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
void ref_rmsnorm_grad(double *dx, double *dg, const double *dy, const double *x, const double *g, const double *rstd,
                      int64_t n, int64_t c)
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

void ref_attention(double *out, double *lse, const double *q, const double *k, const double *v,
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
                    p[j] = p[j] == -INFINITY || s->softcap == 0 ? p[j] : s->softcap * tanh(p[j] / s->softcap);
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
    double t = s->softcap > 0 ? tanh(score / s->softcap) : 0.0;
    score = s->softcap > 0 ? s->softcap * t : score;
    double p = exp(score - lse), ds = p * (dp - delta) * scale * (1.0 - t * t);
    for (int64_t e = 0; e < s->d; e++) {
        dq[e] += ds * k[e];
        dk[e] += ds * q[e];
    }
    for (int64_t e = 0; e < s->dv; e++)
        dv[e] += p * dout[e];
}
void ref_attention_grad(double *dq, double *dk, double *dv, const double *dout, const double *out, const double *lse,
                        const double *q, const double *k, const double *v, const struct attention_ref *s)
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

double ref_silu(double x)
{
    return x / (1.0 + exp(-x));
}
double ref_dsilu(double x)
{
    double s = 1.0 / (1.0 + exp(-x));
    return s * (1.0 + x * (1.0 - s));
}

#define GELU_ROOT 0.79788456080286535588 /* sqrt(2/pi) */
double ref_gelu(double x)
{
    return 0.5 * x * (1.0 + tanh(GELU_ROOT * (x + 0.044715 * x * x * x)));
}
double ref_dgelu(double x)
{
    double t = tanh(GELU_ROOT * (x + 0.044715 * x * x * x));
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * GELU_ROOT * (1.0 + 3.0 * 0.044715 * x * x);
}

void ref_cross_entropy(double *loss, double *dx, const double *x, const double *target, int64_t n, int64_t v)
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
static double gelu_value(const void *arg)
{
    const struct difference_case *d = arg;
    return ref_gelu(d->x[0]);
}
static double loss_value(const void *arg)
{
    const struct difference_case *d = arg;
    ref_cross_entropy(d->aux, d->out, d->x, d->g, d->n, d->c);
    return d->aux[0] + d->aux[1] + d->aux[2];
}

/* Causal, the same with capped scores, and with rows out of order in two documents where the last row sees nothing. */
static void check_attention_gradients(struct checker *c)
{
    static const double index[] = {3, 0, 6, 1, 7, 4, 2, 5}, start[] = {0, 0, 5, 0, 5, 0, 0, 9};
    for (int which = 0; which < 3; which++) {
        const bool masked = which == 2;
        struct difference_case d = {.shape = {.b = 2, .tq = 4, .tk = 4, .h = 4, .kv = 2, .d = 3, .dv = 3}};
        d.shape.softcap = which == 1 ? 0.5 : 0.0;
        if (masked)
            d.shape = (struct attention_ref){1, 8, 8, 4, 2, 3, 2, index, start, index, 0.7, 0};
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
               "reference: attention gradients by finite differences%s",
               masked       ? ", masked"
               : which == 1 ? ", capped"
                            : "");
    }
    sweep(c);
}

static void check_row_gradients(struct checker *c)
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
    slope = ref_dgelu(d.x[0]);
    result(c, differences(c, d.x, &slope, 1, gelu_value, &d), "reference: gelu gradient by finite differences");

    d.n = 3, d.c = 7;
    double *target = values(c, 3);
    target[0] = 2, target[1] = -1, target[2] = 6;
    d.g = target, d.out = values(c, 21), d.aux = values(c, 3);
    memset(dx, 0, 21 * sizeof(*dx));
    ref_cross_entropy(d.aux, dx, d.x, target, 3, 7);
    result(c, differences(c, d.x, dx, 21, loss_value, &d), "reference: loss gradient by finite differences");
    sweep(c);
}

void device_reference_check(struct checker *c)
{
    check_row_gradients(c);
    check_attention_gradients(c);
}
