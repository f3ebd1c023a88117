/* SPDX-License-Identifier: Apache-2.0 */
/* device_experts.c - what mixture of experts and latent attention need of a device, against plain loops: strided rows,
 * routing, permutation, and all of them together with grouped products as ranks with different experts use them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/device_checker.h"
#include "support/device_ops.h"

/* --- strided rows ------------------------------------------------------------------------------------------------- */

static void copy_2d_case(struct checker *c, enum dtype dt, int64_t rows, int64_t cols, int64_t repeat)
{
    int64_t ldd = cols + 5, lds = cols + 3, from = (rows + repeat - 1) / repeat;
    struct tensor dst = empty(c, rows * ldd, dt), src = empty(c, from * lds, dt);
    for (int64_t i = 0; i < src.n; i++)
        src.x[i] = (double)(1 + i % 100);
    for (int64_t i = 0; i < dst.n; i++)
        dst.x[i] = (double)(100 + i % 100);
    upload(c, &src), upload(c, &dst);
    for (int64_t i = 0; i < rows; i++)
        memcpy(dst.x + i * ldd, src.x + i / repeat * lds, (size_t)cols * 8);
    need(c,
         c->ops->copy_2d(c->s, ARGS(strided, .dst = dst.p, .ldd = ldd, .src = src.p, .lds = lds, .dt = dt, .rows = rows,
                                    .cols = cols, .repeat = repeat)),
         "copy_2d");
    result(c, same(c, download(c, &dst), dst.x, dst.n, "rows"),
           "copy_2d of %lldx%lld elements of %d bytes, each %lld x", (long long)rows, (long long)cols,
           (int)dtype_bytes(dt), (long long)repeat);
    sweep(c);
}

static void add_2d_case(struct checker *c, enum dtype dt, int64_t rows, int64_t cols, int64_t repeat)
{
    int64_t ldd = cols + 5, lds = cols + 3;
    struct tensor dst = noise(c, rows * ldd, dt, 1.0), src = noise(c, rows * repeat * lds, dt, 1.0);
    double *want = values(c, dst.n);
    memcpy(want, dst.x, (size_t)dst.n * 8);
    for (int64_t i = 0; i < rows * repeat; i++)
        for (int64_t j = 0; j < cols; j++)
            want[i / repeat * ldd + j] += src.x[i * lds + j];
    need(c,
         c->ops->add_2d(c->s, ARGS(strided, .dst = dst.p, .ldd = ldd, .src = src.p, .lds = lds, .dt = dt, .rows = rows,
                                   .cols = cols, .repeat = repeat)),
         "add_2d");
    double *got = download(c, &dst);
    bool ok = near(c, got, want, dst.n, limit_of(dt), "sums");
    for (int64_t i = 0; i < rows; i++)
        ok = ok && same(c, got + i * ldd + cols, want + i * ldd + cols, ldd - cols, "between rows");
    result(c, ok, "add_2d %s %lldx%lld, each of %lld rows", name_of(dt), (long long)rows, (long long)cols,
           (long long)repeat);
    sweep(c);
}

static void check_strided(struct checker *c)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F64, DTYPE_I32, DTYPE_U8};
    for (int i = 0; i < 5; i++) {
        copy_2d_case(c, types[i], 37, 19, 1);
        copy_2d_case(c, types[i], 50, 64, 4);
    }
    for (int i = 0; i < 2; i++) {
        add_2d_case(c, both[i], 37, 19, 1);
        add_2d_case(c, both[i], 9, 300, 6);
    }
}

/* --- router ------------------------------------------------------------------------------------------------------- */

struct router_ref {
    const double *logits, *dweights;
    const double *chosen;
    double *weights;
    struct router_shape shape;
};

static void ref_scores(double *s, const double *logits, int64_t n, bool sigmoid)
{
    double max = -INFINITY, sum = 0.0;
    for (int64_t j = 0; j < n; j++)
        max = fmax(max, logits[j]);
    for (int64_t j = 0; j < n; j++)
        sum += s[j] = sigmoid ? 1.0 / (1.0 + exp(-logits[j])) : exp(logits[j] - max);
    for (int64_t j = 0; j < n && !sigmoid; j++)
        s[j] /= sum;
}

/* Weights of a given choice. */
static void ref_weights(const struct router_ref *r)
{
    const struct router_shape *z = &r->shape;
    double s[512];
    for (int64_t i = 0; i < z->n; i++) {
        double sum = 0.0;
        ref_scores(s, r->logits + i * z->experts, z->experts, z->sigmoid);
        for (int64_t j = 0; j < z->top_k; j++)
            sum += s[(int64_t)r->chosen[i * z->top_k + j]];
        for (int64_t j = 0; j < z->top_k; j++)
            r->weights[i * z->top_k + j] =
                s[(int64_t)r->chosen[i * z->top_k + j]] / (z->normalize ? sum : 1.0) * (double)z->scale;
    }
}

/* By the chain rule over the full Jacobian of the scores, the longest way round. */
static void ref_router_grad(double *dlogits, const struct router_ref *r)
{
    const struct router_shape *z = &r->shape;
    double s[512];
    for (int64_t i = 0; i < z->n; i++) {
        const double *chosen = r->chosen + i * z->top_k, *dw = r->dweights + i * z->top_k;
        double sum = 0.0;
        ref_scores(s, r->logits + i * z->experts, z->experts, z->sigmoid);
        for (int64_t j = 0; j < z->top_k; j++)
            sum += s[(int64_t)chosen[j]];
        for (int64_t j = 0; j < z->top_k; j++)
            for (int64_t k = 0; k < z->top_k; k++) {
                int64_t e = (int64_t)chosen[k];
                double dwds = z->normalize ? ((j == k) - s[(int64_t)chosen[j]] / sum) / sum : (j == k);
                for (int64_t l = 0; l < z->experts; l++) {
                    double dsdl = z->sigmoid ? (l == e) * s[e] * (1.0 - s[e]) : s[e] * ((l == e) - s[l]);
                    dlogits[i * z->experts + l] += dw[j] * (double)z->scale * dwds * dsdl;
                }
            }
    }
}
static double router_value(const void *arg)
{
    const struct router_ref *r = arg;
    ref_weights(r);
    return dot_of(r->weights, r->dweights, r->shape.n * r->shape.top_k);
}

static void check_router_reference(struct checker *c)
{
    double *logits = values(c, 12), *chosen = values(c, 4), *dweights = values(c, 4);
    chosen[0] = 4, chosen[1] = 0, chosen[2] = 3, chosen[3] = 5;
    fill(c, logits, 12, 2.0), fill(c, dweights, 4, 1.0);
    bool ok = true;
    for (int kind = 0; kind < 4; kind++) {
        struct router_ref r = {
            logits, dweights, chosen, values(c, 4), {DTYPE_F32, 2, 6, 2, kind & 1, kind >> 1, 2.5f, 0, 0, 0}};
        double *grad = values(c, 12);
        ref_router_grad(grad, &r);
        ok = differences(c, logits, grad, 12, router_value, &r) && ok;
    }
    result(c, ok, "reference: router gradients by finite differences");
    sweep(c);
}

/* Scores of experts outside the best groups become -inf. False where two groups are too close to tell. */
static bool ref_limit(const struct router_shape *z, double *key)
{
    const int64_t width = z->groups ? z->experts / z->groups : 0;
    double score[512], last = INFINITY;
    for (int64_t g = 0; g < z->groups; g++) {
        bool used[512] = {0};
        score[g] = 0.0;
        for (int64_t j = 0; j < z->group_top_k; j++) {
            int64_t best = -1;
            for (int64_t e = 0; e < width; e++)
                best = !used[e] && (best < 0 || key[g * width + e] > key[g * width + best]) ? e : best;
            used[best] = true;
            score[g] += key[g * width + best];
        }
    }
    bool taken[512] = {0};
    for (int64_t j = 0; j < z->top_groups && z->groups; j++) {
        int64_t best = -1;
        for (int64_t g = 0; g < z->groups; g++)
            best = !taken[g] && (best < 0 || score[g] > score[best]) ? g : best;
        taken[best] = true;
        last = score[best];
    }
    for (int64_t g = 0; g < z->groups; g++) {
        if (!taken[g] && score[g] > last - 1e-6)
            return false;
        for (int64_t e = 0; e < width && !taken[g]; e++)
            key[g * width + e] = -INFINITY;
    }
    return true;
}

/* The choice is right where no other one is better by more than rounding, in falling order and without repeats. */
static bool choice_right(struct checker *c, const struct router_shape *z, const double *chosen, const double *logits,
                         const double *bias)
{
    double s[512];
    for (int64_t i = 0; i < z->n; i++) {
        const double *mine = chosen + i * z->top_k;
        double last = INFINITY;
        bool taken[512] = {0};
        ref_scores(s, logits + i * z->experts, z->experts, z->sigmoid);
        for (int64_t e = 0; e < z->experts; e++)
            s[e] += bias[e];
        if (!ref_limit(z, s))
            continue;
        for (int64_t j = 0; j < z->top_k; j++) {
            int64_t e = (int64_t)mine[j];
            if (e < 0 || e >= z->experts || taken[e] || s[e] == -INFINITY || s[e] > last + 1e-6) {
                fprintf(c->report, "# token %lld: choice %lld is expert %lld\n", (long long)i, (long long)j,
                        (long long)e);
                return false;
            }
            taken[e] = true;
            last = s[e];
        }
        for (int64_t e = 0; e < z->experts; e++)
            if (!taken[e] && s[e] > last + 1e-6) {
                fprintf(c->report, "# token %lld: expert %lld is better\n", (long long)i, (long long)e);
                return false;
            }
    }
    return true;
}

static void router_case(struct checker *c, struct router_shape z, bool with_bias)
{
    int64_t choices = z.n * z.top_k;
    struct tensor logits = noise(c, z.n * z.experts, z.dt, 3.0), bias = noise(c, z.experts, DTYPE_F32, 0.1);
    struct tensor chosen = empty(c, choices, DTYPE_I32), weights = empty(c, choices, DTYPE_F32);
    struct tensor load = empty(c, z.experts, DTYPE_F32), dweights = noise(c, choices, DTYPE_F32, 1.0);
    double *want = values(c, choices), *dwant = values(c, logits.n), *none = values(c, z.experts);
    for (int64_t e = 0; e < z.experts; e++)
        load.x[e] = (double)(10 * e);
    upload(c, &load);
    need(c,
         c->ops->router(c->s, ARGS(router, .chosen = chosen.p, .weights = weights.p, .load = load.p, .logits = logits.p,
                                   .bias = with_bias ? bias.p : NULL, .shape = z)),
         "router");
    double *got = download(c, &chosen), *first = download(c, &weights);
    bool ok = choice_right(c, &z, got, logits.x, with_bias ? bias.x : none);
    for (int64_t i = 0; i < choices && ok; i++)
        load.x[(int64_t)got[i]] += 1.0;
    ok = ok && same(c, download(c, &load), load.x, z.experts, "load");
    struct router_ref r = {logits.x, dweights.x, got, want, z};
    if (ok)
        ref_weights(&r);
    ok = ok && near(c, first, want, choices, limit_of(DTYPE_F32), "weights");
    need(c,
         c->ops->router(c->s, ARGS(router, .chosen = chosen.p, .weights = weights.p, .logits = logits.p,
                                   .bias = with_bias ? bias.p : NULL, .shape = z)),
         "router");
    ok = ok && same(c, download(c, &chosen), got, choices, "again") &&
         same(c, download(c, &weights), first, choices, "again");
    result(c, ok, "router %s %lld tokens, %lld of %lld experts, %lld of %lld groups by %lld, %s%s%s", name_of(z.dt),
           (long long)z.n, (long long)z.top_k, (long long)z.experts, (long long)z.top_groups, (long long)z.groups,
           (long long)z.group_top_k, z.sigmoid ? "sigmoid" : "softmax", z.normalize ? ", normalized" : "",
           with_bias ? ", bias" : "");
    if (ok) {
        ref_router_grad(dwant, &r);
        need(c,
             c->ops->router_dgrad(c->s, ARGS(router, .dlogits = logits.p, .dweights = dweights.p, .logits = logits.p,
                                             .chosen = chosen.p, .shape = z)),
             "router_dgrad");
        ok = near(c, download(c, &logits), dwant, logits.n, 10.0 * limit_of(z.dt), "dlogits");
    }
    result(c, ok, "router_dgrad %s, in place", name_of(z.dt));
    sweep(c);
}

/* Equal scores: the lower expert first. */
static void router_ties(struct checker *c, enum dtype dt, bool sigmoid)
{
    enum { E = 67, K = 40 };
    struct router_shape z = {dt, 1, E, K, sigmoid, true, 1.0f, 0, 0, 0};
    struct tensor logits = empty(c, E, dt), chosen = empty(c, K, DTYPE_I32), weights = empty(c, K, DTYPE_F32);
    int64_t n = 0;
    for (int e = 0; e < E; e++)
        logits.x[e] = e % 3;
    upload(c, &logits);
    for (int top = 2; top >= 0; top--)
        for (int e = 0; e < E && n < K; e++)
            if (e % 3 == top)
                chosen.x[n++] = e;
    need(c,
         c->ops->router(c->s, ARGS(router, .chosen = chosen.p, .weights = weights.p, .logits = logits.p, .shape = z)),
         "router");
    result(c, same(c, download(c, &chosen), chosen.x, K, "chosen"),
           "router %s, %s: of equal scores the lower expert first", name_of(dt), sigmoid ? "sigmoid" : "softmax");
    sweep(c);
}

/* What scores do not tell apart, with and without groups: NaN comes last, and of equal ones and of NaN the lower
 * expert, or group, is first. */
static void router_order(struct checker *c, enum dtype dt, bool with_groups)
{
    enum { E = 70, WIDTH_OF_GROUP = 7 };
    static const int groups[] = {1, 4, 7, 0, 2, 5};
    struct router_shape z = {dt, 1, E, with_groups ? 40 : 60, true, false, 1.0f, 0, 0, 0};
    struct tensor logits = empty(c, E, dt), bias = empty(c, E, DTYPE_F32);
    struct tensor chosen = empty(c, z.top_k, DTYPE_I32), weights = empty(c, z.top_k, DTYPE_F32);
    int64_t n = 0;
    for (int e = 0; e < E; e++) {
        const int g = e / WIDTH_OF_GROUP; /* 1, 4 and 7 have the best sum, 3 has none */
        bias.x[e] = with_groups ? (g == 3       ? (double)NAN
                                   : g % 3 == 1 ? -0.25
                                                : -0.5)
                                : (e % 5 == 0   ? -0.5
                                   : e % 5 == 1 ? (double)NAN
                                                : -0.75);
    }
    if (with_groups)
        z.groups = E / WIDTH_OF_GROUP, z.top_groups = 6, z.group_top_k = 2;
    upload(c, &logits), upload(c, &bias);
    for (int i = 0; i < 6 * WIDTH_OF_GROUP && with_groups && n < z.top_k; i++)
        chosen.x[n++] = groups[i / WIDTH_OF_GROUP] * WIDTH_OF_GROUP + i % WIDTH_OF_GROUP;
    for (int kind = 0; kind < 3; kind++)
        for (int e = 0; e < E && n < z.top_k; e++)
            if (kind == (e % 5 == 0 ? 0 : e % 5 == 1 ? 2 : 1))
                chosen.x[n++] = e;
    need(c,
         c->ops->router(c->s, ARGS(router, .chosen = chosen.p, .weights = weights.p, .logits = logits.p, .bias = bias.p,
                                   .shape = z)),
         "router");
    result(c, same(c, download(c, &chosen), chosen.x, z.top_k, "chosen"),
           "router %s%s: the order of equal scores and of NaN", name_of(dt), with_groups ? ", groups" : "");
    sweep(c);
}

/* All scores NaN: the first experts. */
static void router_nan(struct checker *c, enum dtype dt, bool sigmoid)
{
    enum { E = 40, K = 5, N = 3 };
    struct router_shape z = {dt, N, E, K, sigmoid, true, 1.0f, 0, 0, 0};
    struct tensor logits = empty(c, N * E, dt), chosen = empty(c, N * K, DTYPE_I32);
    struct tensor weights = empty(c, N * K, DTYPE_F32);
    for (int64_t i = 0; i < logits.n; i++)
        logits.x[i] = (double)NAN;
    upload(c, &logits);
    for (int i = 0; i < N * K; i++)
        chosen.x[i] = i % K;
    need(c,
         c->ops->router(c->s, ARGS(router, .chosen = chosen.p, .weights = weights.p, .logits = logits.p, .shape = z)),
         "router");
    result(c, same(c, download(c, &chosen), chosen.x, N * K, "chosen"), "router %s, %s: NaN goes to the first experts",
           name_of(dt), sigmoid ? "sigmoid" : "softmax");
    sweep(c);
}

/* By tokens' numbers: in turn, whatever the scores; weights and loads are those of the experts. */
static void router_round_robin(struct checker *c, enum dtype dt, int64_t n, int64_t experts, int64_t top_k)
{
    struct router_shape z = {dt, n, experts, top_k, true, true, 1.5f, 0, 0, 0};
    struct tensor logits = noise(c, n * experts, dt, 2.0), bias = noise(c, experts, DTYPE_F32, 1.0);
    struct tensor numbers = integers(c, n, 0, 1 << 30), chosen = empty(c, n * top_k, DTYPE_I32);
    struct tensor weights = empty(c, n * top_k, DTYPE_F32), load = empty(c, experts, DTYPE_F32);
    double *want = values(c, n * top_k);
    upload(c, &load);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < top_k; j++) {
            const int64_t e = ((int64_t)numbers.x[i] * top_k + j) % experts;
            chosen.x[i * top_k + j] = (double)e;
            load.x[e] += 1.0;
        }
    struct router_ref r = {logits.x, NULL, chosen.x, want, z};
    ref_weights(&r);
    need(c,
         c->ops->router(c->s, ARGS(router, .chosen = chosen.p, .weights = weights.p, .load = load.p, .logits = logits.p,
                                   .bias = bias.p, .numbers = numbers.p, .shape = z)),
         "router");
    bool ok = same(c, download(c, &chosen), chosen.x, n * top_k, "chosen");
    ok = ok && same(c, download(c, &load), load.x, experts, "load");
    ok = ok && near(c, download(c, &weights), want, n * top_k, limit_of(DTYPE_F32), "weights");
    result(c, ok, "router %s in turn, %lld tokens to %lld of %lld experts", name_of(dt), (long long)n, (long long)top_k,
           (long long)experts);
    sweep(c);
}

static void check_balance(struct checker *c)
{
    struct tensor bias = noise(c, 5, DTYPE_F32, 0.1), load = empty(c, 5, DTYPE_F32);
    static const double rows[] = {10, 20, 30, 90, 30}, sign[] = {1, 1, 1, -1, 1}; /* mean 36, changes' mean 0.6 */
    double zero[5] = {0}, want[5];
    for (int e = 0; e < 5; e++) {
        load.x[e] = rows[e];
        want[e] = bias.x[e] + 1e-3 * (sign[e] - 0.6);
    }
    upload(c, &load);
    need(c, c->ops->router_balance(c->s, bias.p, load.p, 5, 1e-3f), "router_balance");
    bool ok = near(c, download(c, &bias), want, 5, limit_of(DTYPE_F32), "bias");
    result(c, ok && same(c, download(c, &load), zero, 5, "load"), "router_balance");
    sweep(c);
}

/* --- balance loss ------------------------------------------------------------------------------------------------- */

struct balance_ref {
    const double *logits, *chosen, *targets; /* of all tokens, sequence by sequence */
    double *often;                           /* (sequences,E) */
    int64_t sequences, length;
    struct router_shape shape; /* n: of all sequences */
};

/* How often in even shares, the loss of each sequence times its counted tokens (NULL: not wanted); their sum. */
static double ref_balance(const struct balance_ref *r, double *losses)
{
    const struct router_shape *z = &r->shape;
    double total = 0.0, s[512];
    for (int64_t b = 0; b < r->sequences; b++) {
        double loss = 0.0, counted = 0.0;
        for (int64_t i = b * r->length; i < (b + 1) * r->length; i++) {
            double sum = 0.0;
            ref_scores(s, r->logits + i * z->experts, z->experts, z->sigmoid);
            for (int64_t e = 0; e < z->experts; e++)
                sum += s[e];
            for (int64_t e = 0; e < z->experts; e++)
                loss += r->often[b * z->experts + e] * s[e] / sum / (double)r->length;
            counted += r->targets[i] >= 0;
        }
        if (losses)
            losses[b] = loss * counted;
        total += loss * counted;
    }
    return total;
}

static double balance_value(const void *arg)
{
    return ref_balance(arg, NULL);
}

static void ref_often(const struct balance_ref *r)
{
    const struct router_shape *z = &r->shape;
    for (int64_t i = 0; i < z->n; i++)
        for (int64_t k = 0; k < z->top_k; k++)
            r->often[i / r->length * z->experts + (int64_t)r->chosen[i * z->top_k + k]] +=
                (double)z->experts / (double)(z->top_k * r->length);
}

/* As in ref_router_grad(). */
static void ref_balance_grad(double *dlogits, const struct balance_ref *r)
{
    const struct router_shape *z = &r->shape;
    double s[512];
    for (int64_t b = 0; b < r->sequences; b++) {
        const double *often = r->often + b * z->experts;
        double counted = 0.0;
        for (int64_t i = b * r->length; i < (b + 1) * r->length; i++)
            counted += r->targets[i] >= 0;
        for (int64_t i = b * r->length; i < (b + 1) * r->length; i++) {
            double sum = 0.0;
            ref_scores(s, r->logits + i * z->experts, z->experts, z->sigmoid);
            for (int64_t e = 0; e < z->experts; e++)
                sum += s[e];
            for (int64_t k = 0; k < z->experts; k++) {
                double ds = 0.0;
                for (int64_t e = 0; e < z->experts; e++)
                    ds += counted / (double)r->length * often[e] * ((e == k) - s[e] / sum) / sum;
                for (int64_t l = 0; l < z->experts; l++) {
                    const double dsdl = z->sigmoid ? (l == k) * s[k] * (1.0 - s[k]) : s[k] * ((l == k) - s[l]);
                    dlogits[i * z->experts + l] += ds * dsdl;
                }
            }
        }
    }
}

static void check_balance_reference(struct checker *c)
{
    enum { E = 5, B = 2, T = 3, N = B * T };
    double *logits = values(c, N * E), *chosen = values(c, 2 * N), *targets = values(c, N);
    bool ok = true;
    fill(c, logits, N * E, 2.0);
    for (int i = 0; i < N; i++) {
        targets[i] = i == 1 ? -1 : i;
        chosen[2 * i] = i % E, chosen[2 * i + 1] = (i * i + 1) % E == i % E ? (i + 1) % E : (i * i + 1) % E;
    }
    for (int sigmoid = 0; sigmoid < 2; sigmoid++) {
        struct balance_ref r = {
            logits, chosen, targets, values(c, B * E), B, T, {DTYPE_F32, N, E, 2, sigmoid, false, 1, 0, 0, 0}};
        double *grad = values(c, N * E);
        ref_often(&r);
        ref_balance_grad(grad, &r);
        ok = differences(c, logits, grad, N * E, balance_value, &r) && ok;
    }
    result(c, ok, "reference: balance gradients by finite differences");
    sweep(c);
}

/* Rows of one of `ranks` ranks, in so many pieces, from an array of all tokens or back to it. */
static void move_rows(const struct token_rows *z, double *own, double *all, int64_t width, bool back)
{
    for (int64_t i = 0; i < z->n; i++) {
        double *const here = own + i * width, *const there = all + token_rows_place(z, i) * width;
        memcpy(back ? there : here, back ? here : there, (size_t)width * sizeof(double));
    }
}

static void balance_case(struct checker *c, struct router_shape z, int64_t sequences, int64_t ranks, int64_t pieces)
{
    const int64_t n = z.n, e = z.experts, stats = BALANCE_STATS(e), all = n * ranks, length = all / sequences;
    struct tensor logits = noise(c, all * e, z.dt, 3.0), targets = empty(c, all, DTYPE_I32);
    struct tensor parts = empty(c, ranks * sequences * stats, DTYPE_F32), losses = empty(c, sequences, DTYPE_F32);
    struct tensor dscores = empty(c, sequences * e, DTYPE_F32);
    double *chosen = values(c, all * z.top_k), *want = values(c, all * e), *got = values(c, all * e);
    double *loss = values(c, sequences), *before = values(c, all * e);
    for (int64_t i = 0; i < all * z.top_k; i++)
        chosen[i] =
            (double)((i / z.top_k * 7 + i % z.top_k * 3) % 4 == 0 ? i % z.top_k : (i / z.top_k + i % z.top_k) % e);
    for (int64_t i = 0; i < all; i++)
        targets.x[i] = i % 5 == 3 ? -1.0 : (double)i;
    upload(c, &targets);
    struct balance_ref r = {logits.x, chosen, targets.x, values(c, sequences * e), sequences, length, z};
    r.shape.n = all;
    ref_often(&r);
    (void)ref_balance(&r, loss);
    ref_balance_grad(want, &r);
    for (int turn = 0; turn < 2; turn++) /* what the ranks have, then their gradients */
        for (int64_t rank = 0; rank < ranks; rank++) {
            const struct token_rows rows = {n, sequences, length, rank * (n / pieces), pieces};
            struct tensor own = empty(c, n * e, z.dt), choice = empty(c, n * z.top_k, DTYPE_I32);
            struct tensor dlogits = noise(c, n * e, z.dt, 0.01);
            move_rows(&rows, own.x, logits.x, e, false);
            move_rows(&rows, choice.x, chosen, z.top_k, false);
            upload(c, &own), upload(c, &choice);
            if (turn == 0) {
                need(c,
                     c->ops->balance_stats(c->s, ARGS(balance, .stats = (float *)parts.p + rank * sequences * stats,
                                                      .logits = own.p, .chosen = choice.p, .targets = targets.p,
                                                      .shape = z, .rows = rows)),
                     "balance_stats");
                continue;
            }
            move_rows(&rows, dlogits.x, before, e, true);
            if (rank == 0)
                need(
                    c,
                    c->ops->balance_loss(c->s, ARGS(balance_loss, .losses = losses.p, .dscores = dscores.p,
                                                    .stats = parts.p, .parts = ranks, .sequences = sequences,
                                                    .experts = e, .top_k = z.top_k, .tokens = length, .factor = 0.25f)),
                    "balance_loss");
            need(c,
                 c->ops->balance_dgrad(c->s, ARGS(balance, .dlogits = dlogits.p, .logits = own.p, .dscores = dscores.p,
                                                  .shape = z, .rows = rows)),
                 "balance_dgrad");
            move_rows(&rows, download(c, &dlogits), got, e, true);
        }
    for (int64_t i = 0; i < all * e; i++)
        want[i] = before[i] + 0.25 * want[i];
    const bool ok = near(c, download(c, &losses), loss, sequences, limit_of(DTYPE_F32), "losses") &&
                    near(c, got, want, all * e, 10.0 * limit_of(z.dt), "dlogits");
    result(c, ok, "balance loss %s, %s: %lld sequences on %lld ranks in %lld pieces, %lld of %lld experts",
           name_of(z.dt), z.sigmoid ? "sigmoid" : "softmax", (long long)sequences, (long long)ranks, (long long)pieces,
           (long long)z.top_k, (long long)e);
    sweep(c);
}

static void check_balance_loss(struct checker *c)
{
    check_balance_reference(c);
    for (int i = 0; i < 2; i++)
        for (int sigmoid = 0; sigmoid < 2; sigmoid++) {
            const enum dtype dt = both[i];
            balance_case(c, (struct router_shape){dt, 30, 6, 2, sigmoid, false, 1, 0, 0, 0}, 1, 1, 1);
            balance_case(c, (struct router_shape){dt, 30, 6, 2, sigmoid, false, 1, 0, 0, 0}, 3, 2, 1);
            balance_case(c, (struct router_shape){dt, 42, 19, 3, sigmoid, false, 1, 0, 0, 0}, 6, 2, 3);
            balance_case(c, (struct router_shape){dt, 24, 300, 8, sigmoid, false, 1, 0, 0, 0}, 2, 3, 2);
        }
    struct tensor x = empty(c, 16, DTYPE_F32);
    const struct router_shape z = {DTYPE_F32, 4, 4, 1, false, false, 1, 0, 0, 0};
    static const struct token_rows wrong[] = {
        {4, 0, 4, 0, 1}, {4, 1, 4, 1, 1}, {4, 1, 4, 0, 3}, {3, 1, 4, 0, 1}, {4, 1, 4, -1, 1}};
    bool refused =
        c->ops->balance_loss(c->s, ARGS(balance_loss, .losses = x.p, .dscores = x.p, .stats = x.p, .sequences = 1,
                                        .experts = 4, .top_k = 1, .tokens = 4, .factor = 1)) == TITAN_EINVAL;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        refused = c->ops->balance_dgrad(c->s, ARGS(balance, .dlogits = x.p, .logits = x.p, .dscores = x.p, .shape = z,
                                                   .rows = wrong[i])) == TITAN_EINVAL &&
                  c->ops->balance_stats(c->s, ARGS(balance, .stats = x.p, .logits = x.p, .chosen = x.p, .targets = x.p,
                                                   .shape = z, .rows = wrong[i])) == TITAN_EINVAL &&
                  refused;
    result(c, refused, "balance loss refuses tokens that are nowhere");
    sweep(c);
}

static void check_router(struct checker *c)
{
    check_router_reference(c);
    for (int i = 0; i < 2; i++) {
        enum dtype dt = both[i];
        router_case(c, (struct router_shape){dt, 1, 1, 1, false, false, 1.0f, 0, 0, 0}, false);
        router_case(c, (struct router_shape){dt, 37, 8, 2, false, false, 1.0f, 0, 0, 0}, false);
        router_case(c, (struct router_shape){dt, 130, 19, 3, false, true, 1.5f, 0, 0, 0}, true);
        router_case(c, (struct router_shape){dt, 65, 256, 8, true, true, 2.5f, 0, 0, 0}, true);
        router_case(c, (struct router_shape){dt, 20, 6, 6, true, false, 1.0f, 0, 0, 0}, false);
        router_case(c, (struct router_shape){dt, 129, 256, 8, true, true, 2.5f, 8, 4, 2}, true);
        router_case(c, (struct router_shape){dt, 70, 160, 6, false, false, 16.0f, 8, 3, 1}, false);
        router_case(c, (struct router_shape){dt, 33, 12, 4, true, true, 1.0f, 6, 2, 2}, true);
        router_case(c, (struct router_shape){dt, 19, 45, 5, false, true, 1.0f, 45, 7, 1}, true);
        router_case(c, (struct router_shape){dt, 8, 6, 3, true, false, 1.0f, 2, 1, 3}, true);
        router_ties(c, dt, false);
        router_ties(c, dt, true);
        router_order(c, dt, false);
        router_order(c, dt, true);
        router_nan(c, dt, false);
        router_nan(c, dt, true);
        router_round_robin(c, dt, 41, 12, 5);
        router_round_robin(c, dt, 130, 256, 8);
    }
    check_balance(c);
    struct tensor x = empty(c, 16, DTYPE_F32);
    static const int64_t wrong[][4] = {/* top_k, groups, top_groups, group_top_k */
                                       {2, 3, 1, 1}, {2, 2, 3, 1}, {2, 2, 0, 1},
                                       {2, 2, 1, 5}, {2, 2, 1, 0}, {5, 2, 1, 2}};
    bool refused = true;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        const struct router_shape z = {DTYPE_F32, 1,    8,           wrong[i][0], true,
                                       true,      1.0f, wrong[i][1], wrong[i][2], wrong[i][3]};
        refused = c->ops->router(c->s, ARGS(router, .chosen = x.p, .weights = x.p, .logits = x.p, .shape = z)) ==
                      TITAN_EINVAL &&
                  refused;
    }
    result(c, refused, "router refuses groups that are none, or too small for a choice");
    sweep(c);
}

/* --- permutation -------------------------------------------------------------------------------------------------- */

/* most: rows that count of an expert's; 0: all. What was dropped is added to. */
static void permute_case(struct checker *c, int64_t n, int64_t top_k, int64_t experts, int64_t ranks, int64_t most)
{
    struct tensor chosen = integers(c, n * top_k, 0, experts), place = empty(c, n * top_k, DTYPE_I32);
    struct tensor counts = empty(c, experts, DTYPE_I32), rank_counts = empty(c, ranks, DTYPE_I32);
    struct tensor dropped = empty(c, 1, DTYPE_F32);
    int64_t row = 0;
    dropped.x[0] = 5;
    upload(c, &dropped);
    for (int64_t e = 0; e < experts; e++)
        for (int64_t i = 0; i < n * top_k; i++)
            if ((int64_t)chosen.x[i] == e && most > 0 && (int64_t)counts.x[e] == most) {
                place.x[i] = -1;
                dropped.x[0]++;
            } else if ((int64_t)chosen.x[i] == e) {
                place.x[i] = (double)row++;
                counts.x[e]++;
                rank_counts.x[e / (experts / ranks)]++;
            }
    need(c,
         c->ops->permute(c->s, ARGS(permute, .place = place.p, .counts = counts.p, .rank_counts = rank_counts.p,
                                    .dropped = most > 0 ? dropped.p : NULL, .chosen = chosen.p, .n = n, .top_k = top_k,
                                    .experts = experts, .ranks = ranks, .most = most)),
         "permute");
    bool ok = same(c, download(c, &place), place.x, place.n, "place");
    ok = same(c, download(c, &dropped), dropped.x, 1, "dropped") && ok;
    ok = same(c, download(c, &counts), counts.x, experts, "counts") && ok;
    ok = same(c, download(c, &rank_counts), rank_counts.x, ranks, "rank_counts") && ok;
    result(c, ok, "permute %lldx%lld choices of %lld experts on %lld ranks, %lld rows of each at most", (long long)n,
           (long long)top_k, (long long)experts, (long long)ranks, (long long)most);
    sweep(c);
}

static void permute_received_case(struct checker *c, int64_t ranks, int64_t experts, int64_t beyond, bool by_rank)
{
    struct tensor received = integers(c, ranks * experts, 0, 6);
    struct tensor counts = empty(c, experts * (by_rank ? ranks : 1), DTYPE_I32);
    struct tensor rank_counts = empty(c, ranks, DTYPE_I32);
    int64_t total = 0, at = 0;
    for (int64_t i = 0; i < ranks * experts; i++) {
        total += (int64_t)received.x[i];
        counts.x[i % counts.n] += received.x[i];
        rank_counts.x[i / experts] += received.x[i];
    }
    struct tensor place = empty(c, total + beyond, DTYPE_I32);
    for (int64_t i = 0; i < total + beyond; i++)
        place.x[i] = by_rank && i < total ? (double)i : -1;
    for (int64_t e = 0; e < experts && !by_rank; e++)
        for (int64_t r = 0; r < ranks; r++) {
            int64_t row = 0;
            for (int64_t i = 0; i < r * experts + e; i++)
                row += (int64_t)received.x[i];
            for (int64_t i = 0; i < (int64_t)received.x[r * experts + e]; i++)
                place.x[row + i] = (double)at++;
        }
    need(c,
         c->ops->permute_received(c->s,
                                  ARGS(received, .place = place.p, .counts = counts.p, .rank_counts = rank_counts.p,
                                       .received = received.p, .ld = experts, .ranks = ranks, .experts = experts,
                                       .rows = total + beyond, .by_rank = by_rank)),
         "permute_received");
    bool ok = same(c, download(c, &place), place.x, place.n, "place");
    ok = same(c, download(c, &counts), counts.x, counts.n, "counts") && ok;
    ok = same(c, download(c, &rank_counts), rank_counts.x, ranks, "rank_counts") && ok;
    result(c, ok, "permute_received from %lld ranks for %lld experts%s, %lld rows free", (long long)ranks,
           (long long)experts, by_rank ? ", by rank" : "", (long long)beyond);
    sweep(c);
}

/* Rows lie by rank and expert; those of a round leave in this order. split as it was read. */
static void place_rounds(struct checker *c, struct tensor *split, const double *rows, int64_t ranks, int64_t experts,
                         int64_t rounds)
{
    int64_t all = 0;
    for (int64_t i = 0; i < split->n; i++)
        all += (int64_t)rows[i];
    const int64_t beyond = 3, n = all + beyond;
    struct tensor place = empty(c, n, DTYPE_I32), origin = empty(c, n, DTYPE_I32), counts = empty(c, ranks, DTYPE_I32);
    bool ok = true;
    for (int64_t q = 0; q < rounds; q++) {
        int64_t at = 0, next = 0;
        for (int64_t i = 0; i < n; i++)
            place.x[i] = origin.x[i] = -1;
        for (int64_t r = 0; r < ranks; r++) {
            counts.x[r] = 0;
            for (int64_t e = 0; e < experts; e++)
                for (int64_t p = 0; p < rounds; p++)
                    for (int64_t i = (int64_t)rows[(r * rounds + p) * experts + e]; i > 0; i--, at++)
                        if (p == q)
                            counts.x[r]++, origin.x[next] = (double)at, place.x[at] = (double)next++;
        }
        need(c,
             c->ops->place_round(c->s, ARGS(round, .place = place.p, .origin = origin.p, .rank_counts = counts.p,
                                            .split = split->p, .ranks = ranks, .experts = experts, .rounds = rounds,
                                            .round = q, .rows = n)),
             "place_round");
        ok = same(c, download(c, &place), place.x, n, "place") && ok;
        ok = same(c, download(c, &origin), origin.x, n, "origin") && ok;
        ok = same(c, download(c, &counts), counts.x, ranks, "rank_counts") && ok;
    }
    result(c, ok, "place_round of %lld rows in %lld rounds", (long long)all, (long long)rounds);
}

/* What split_rounds adds to (3, 7): rounds behind the first that have rows, and the most rows received. */
static bool rounds_seen(struct checker *c, struct tensor *seen, const double *split, int64_t ranks, int64_t experts,
                        int64_t rounds)
{
    double want[2] = {3, 7}, all = 0;
    for (int64_t q = 0; q < rounds; q++) {
        double rows = 0;
        for (int64_t i = 0; i < ranks * experts; i++)
            rows += split[(i / experts * rounds + q) * experts + i % experts];
        want[0] += q > 0 && rows > 0;
        all += rows;
    }
    want[1] = fmax(want[1], all);
    return same(c, download(c, seen), want, 2, "seen");
}

static struct tensor seen_before(struct checker *c)
{
    struct tensor seen = empty(c, 2, DTYPE_F32);
    seen.x[0] = 3;
    seen.x[1] = 7;
    upload(c, &seen);
    return seen;
}

/* Every row goes in one round, by rank and expert; each (rank, expert) ends a round whole or behind a multiple. */
static void rounds_by_rank_case(struct checker *c, int64_t ranks, int64_t experts, int64_t most, int64_t room,
                                int64_t rounds)
{
    struct tensor received = integers(c, ranks * experts, 0, most + 1);
    struct tensor split = empty(c, ranks * rounds * experts, DTYPE_I32), seen = seen_before(c);
    double *done = values(c, ranks * experts);
    need(
        c,
        c->ops->split_rounds(c->s, ARGS(split, .split = split.p, .seen = seen.p, .received = received.p, .ranks = ranks,
                                        .experts = experts, .rounds = rounds, .room = room, .by_rank = true)),
        "split_rounds");
    double *got = download(c, &split);
    bool ok = true;
    for (int64_t q = 0; q < rounds; q++) {
        int64_t free = room;
        for (int64_t i = 0; i < ranks * experts; i++) {
            const int64_t rest = (int64_t)(received.x[i] - done[i]);
            const int64_t take = rest <= free ? rest : free / EXPERT_SPLIT * EXPERT_SPLIT;
            ok = ok && (int64_t)got[(i / experts * rounds + q) * experts + i % experts] == take;
            free = rest <= free ? free - take : 0;
            done[i] += (double)take;
        }
    }
    ok = ok && same(c, done, received.x, ranks * experts, "rows");
    ok = ok && rounds_seen(c, &seen, got, ranks, experts, rounds);
    result(c, ok, "split_rounds by rank, up to %lld rows from %lld ranks for %lld experts, %lld at a time",
           (long long)most, (long long)ranks, (long long)experts, (long long)room);
    if (ok)
        place_rounds(c, &split, got, ranks, experts, rounds);
    sweep(c);
}

/* Every row goes in one round, in the order by expert and rank, and no round takes more than its room; what a rank
 * sends is placed as it is split. most: rows of a rank for an expert. */
static void rounds_case(struct checker *c, int64_t ranks, int64_t experts, int64_t most, int64_t room, int64_t rounds)
{
    struct tensor received = integers(c, ranks * experts, 0, most + 1),
                  split = empty(c, ranks * rounds * experts, DTYPE_I32), seen = seen_before(c);
    double *done = values(c, experts), *left = values(c, ranks * experts);
    need(c,
         c->ops->split_rounds(c->s, ARGS(split, .split = split.p, .seen = seen.p, .received = received.p,
                                         .ranks = ranks, .experts = experts, .rounds = rounds, .room = room)),
         "split_rounds");
    double *got = download(c, &split);
    bool ok = true;
    memcpy(left, received.x, (size_t)(ranks * experts) * sizeof *left);
    for (int64_t q = 0; q < rounds; q++) {
        int64_t free = room;
        for (int64_t e = 0; e < experts; e++) {
            double rows = 0, rest = 0;
            for (int64_t r = 0; r < ranks; r++) {
                const double n = got[(r * rounds + q) * experts + e];
                ok = ok && n >= 0 && n <= left[r * experts + e] && (n == 0 || rest == 0); /* lower ranks first */
                left[r * experts + e] -= n;
                rows += n, rest += left[r * experts + e];
            }
            const bool whole = rest == 0;
            ok = ok && rows <= (double)free && (whole || (int64_t)(done[e] + rows) % EXPERT_SPLIT == 0);
            ok = ok && (whole || free - (int64_t)rows < EXPERT_SPLIT); /* nothing waits while there is room */
            done[e] += rows;
            free = whole ? free - (int64_t)rows : 0;
        }
    }
    for (int64_t i = 0; i < ranks * experts; i++)
        ok = ok && left[i] == 0;
    ok = ok && rounds_seen(c, &seen, got, ranks, experts, rounds);
    result(c, ok, "split_rounds of up to %lld rows from %lld ranks for %lld experts, %lld at a time", (long long)most,
           (long long)ranks, (long long)experts, (long long)room);
    if (ok)
        place_rounds(c, &split, got, ranks, experts, rounds);
    sweep(c);
}

/* The stream fails with TITAN_EINVAL and a message that has `word` in it; afterwards it works again. */
static bool fails_with(struct checker *c, const char *word)
{
    struct titan_error err = {0};
    titan_status status = c->ops->stream_sync(c->s, &err);
    bool ok = status == TITAN_EINVAL && strstr(err.msg, word);
    if (!ok)
        fprintf(c->report, "# status %d, message '%s'\n", (int)status, err.msg);
    c->ops->stream_clear(c->s);
    return ok;
}

static titan_status call_fail(void *arg, struct titan_error *err)
{
    (void)arg;
    return titan_fail(err, TITAN_EPEER, "peer 7 vanished");
}

/* What was wrong once is not told of another failure, which comes from another stream. */
static bool tells_another_failure(struct checker *c, const char *old_word)
{
    struct titan_error err = {0};
    struct event *e = NULL;
    need(c, c->ops->event_open(c->h->dev, &e, &err), "event_open");
    need(c, c->ops->stream_call(c->side, call_fail, NULL, &err), "stream_call");
    c->ops->event_record(e, c->side, NULL);
    c->ops->event_wait(e, c->s, NULL);
    bool ok = c->ops->stream_sync(c->s, &err) == TITAN_EPEER && !strstr(err.msg, old_word);
    (void)c->ops->stream_sync(c->side, NULL);
    c->ops->stream_clear(c->s);
    c->ops->stream_clear(c->side);
    c->ops->event_close(e);
    return ok;
}

/* Numbers that only the device can find wrong: more rows than there is room for, fewer than none, no such expert. */
static void check_impossible(struct checker *c)
{
    enum { RANKS_HERE = 2, EXPERTS_HERE = 3, ROOM = 40, WIDE = 8 };
    struct tensor received = empty(c, RANKS_HERE * EXPERTS_HERE, DTYPE_I32), place = empty(c, ROOM, DTYPE_I32);
    struct tensor counts = empty(c, EXPERTS_HERE, DTYPE_I32), rank_counts = empty(c, RANKS_HERE, DTYPE_I32);
    struct tensor x = noise(c, ROOM * WIDE, DTYPE_F32, 1.0), w = noise(c, EXPERTS_HERE * WIDE * WIDE, DTYPE_F32, 1.0);
    struct tensor y = noise(c, ROOM * WIDE, DTYPE_F32, 1.0), v = noise(c, EXPERTS_HERE * WIDE * WIDE, DTYPE_F32, 1.0);
    for (int kind = 0; kind < 2; kind++) {
        for (int i = 0; i < RANKS_HERE * EXPERTS_HERE; i++)
            received.x[i] = i == 4 ? (kind ? -1 : ROOM) : 1;
        upload(c, &received);
        c->ops->permute_received(c->s, ARGS(received, .place = place.p, .counts = counts.p,
                                            .rank_counts = rank_counts.p, .received = received.p, .ld = EXPERTS_HERE,
                                            .ranks = RANKS_HERE, .experts = EXPERTS_HERE, .rows = ROOM));
        result(c, fails_with(c, "rows"), "permute_received of %s fails the stream",
               kind ? "fewer rows than none" : "more rows than there is room for");
    }
    received.x[4] = ROOM;
    upload(c, &received);
    c->ops->split_rounds(c->s, ARGS(split, .split = place.p, .received = received.p, .ranks = RANKS_HERE,
                                    .experts = EXPERTS_HERE, .rounds = 1, .room = ROOM));
    result(c, fails_with(c, "rows"), "split_rounds of more rows than rounds hold fails the stream");
    c->ops->place_round(c->s,
                        ARGS(round, .place = place.p, .origin = x.p, .rank_counts = rank_counts.p, .split = received.p,
                             .ranks = RANKS_HERE, .experts = EXPERTS_HERE, .rounds = 1, .rows = ROOM));
    result(c, fails_with(c, "rows"), "place_round of more rows than there are fails the stream");
    struct tensor chosen = integers(c, ROOM, 0, EXPERTS_HERE);
    chosen.x[7] = EXPERTS_HERE;
    upload(c, &chosen);
    c->ops->permute(c->s, ARGS(permute, .place = place.p, .counts = counts.p, .rank_counts = rank_counts.p,
                               .chosen = chosen.p, .n = ROOM / 2, .top_k = 2, .experts = EXPERTS_HERE, .ranks = 1));
    result(c, fails_with(c, "expert"), "permute of a choice of no expert fails the stream");
    counts.x[0] = 3, counts.x[1] = ROOM, counts.x[2] = 1;
    upload(c, &counts);
    for (int i = 0; i < 2; i++)
        for (int ta = 0; ta < 2; ta++) {
            c->ops->matmul_grouped(c->s, ARGS(matmul, .c = ta ? w.p : x.p, .c_dt = DTYPE_F32, .ldc = WIDE, .a = y.p,
                                              .ta = ta, .lda = WIDE, .b = ta ? y.p : v.p, .ldb = WIDE, .ab_dt = both[i],
                                              .counts = counts.p, .groups = EXPERTS_HERE, .parts = 1,
                                              .m = ta ? WIDE : ROOM, .n = WIDE, .k = ta ? ROOM : WIDE));
            result(c, fails_with(c, "rows"), "matmul_grouped %s%s of more rows than there are fails the stream",
                   name_of(both[i]), ta ? ", wgrad," : "");
        }
    result(c, tells_another_failure(c, "rows"), "a failure that comes from another stream later tells its own story");
    sweep(c);
}

/* place: a random order of rows with gaps; every seventh choice goes nowhere. */
static struct tensor places(struct checker *c, int64_t n, int64_t rows)
{
    struct tensor place = empty(c, n, DTYPE_I32);
    int64_t *order = malloc((size_t)rows * sizeof(*order));
    if (!order)
        abort();
    for (int64_t i = 0; i < rows; i++)
        order[i] = i;
    for (int64_t i = 0; i < n; i++) {
        int64_t pick = i + (int64_t)(next_random(c) % (uint64_t)(rows - i)), keep = order[i];
        order[i] = order[pick], order[pick] = keep;
        place.x[i] = i % 7 == 6 ? -1.0 : (double)order[i];
    }
    free(order);
    upload(c, &place);
    return place;
}

static void rows_case(struct checker *c, enum dtype dt, int64_t n, int64_t top_k, int64_t w)
{
    int64_t choices = n * top_k, rows = choices + 9;
    struct tensor place = places(c, choices, rows), weights = noise(c, choices, DTYPE_F32, 1.0);
    struct tensor x = noise(c, n * w, dt, 1.0), packed = noise(c, rows * w, dt, 1.0), out = noise(c, n * w, dt, 1.0);
    struct tensor dweights = noise(c, choices, DTYPE_F32, 1.0);
    for (int weighted = 0; weighted < 2; weighted++) {
        struct tensor dst = noise(c, rows * w, dt, 1.0);
        double *sums = values(c, n * w), *products = values(c, choices);
        for (int64_t i = 0; i < choices; i++)
            for (int64_t j = 0; j < w && place.x[i] >= 0; j++) {
                double weight = weighted ? weights.x[i] : 1.0, *there = dst.x + (int64_t)place.x[i] * w + j;
                double back = packed.x[(int64_t)place.x[i] * w + j];
                *there = x.x[i / top_k * w + j] * weight;
                sums[i / top_k * w + j] += back * weight;
                products[i] += x.x[i / top_k * w + j] * back;
            }
        void *factors = weighted ? weights.p : NULL;
        need(c,
             c->ops->scatter_rows(c->s, ARGS(placed, .dst = dst.p, .src = x.p, .place = place.p, .weights = factors,
                                             .dt = dt, .n = n, .top_k = top_k, .c = w)),
             "scatter_rows");
        bool ok = near(c, download(c, &dst), dst.x, dst.n, weighted ? limit_of(dt) : 0.0, "scattered");
        need(c,
             c->ops->combine_rows(c->s, ARGS(placed, .dst = out.p, .src = packed.p, .place = place.p,
                                             .weights = factors, .dt = dt, .n = n, .top_k = top_k, .c = w)),
             "combine_rows");
        ok = near(c, download(c, &out), sums, n * w, limit_of(dt), "combined") && ok;
        need(c,
             c->ops->combine_dweights(c->s, ARGS(placed, .dweights = dweights.p, .dout = x.p, .src = packed.p,
                                                 .place = place.p, .dt = dt, .n = n, .top_k = top_k, .c = w)),
             "dweights");
        ok = near(c, download(c, &dweights), products, choices, limit_of(DTYPE_F32), "products") && ok;
        result(c, ok, "rows of %lld tokens to %lld places and back, %s x %lld%s", (long long)n, (long long)top_k,
               name_of(dt), (long long)w, weighted ? ", weighted" : "");
    }
    sweep(c);
}

/* A row that gets nothing stays as it is where that is asked for, and is 0 otherwise. */
static void kept_rows_case(struct checker *c, enum dtype dt, int64_t n, int64_t top_k, int64_t w)
{
    struct tensor place = empty(c, n * top_k, DTYPE_I32), src = noise(c, n * top_k * w, dt, 1.0);
    bool ok = true;
    for (int64_t i = 0; i < place.n; i++)
        place.x[i] = i / top_k % 3 == 1 ? -1 : (double)(place.n - 1 - i);
    upload(c, &place);
    for (int keep = 0; keep < 2; keep++) {
        struct tensor out = noise(c, n * w, dt, 1.0);
        for (int64_t i = 0; i < n * w; i++) {
            double sum = 0;
            for (int64_t j = i / w * top_k; j < (i / w + 1) * top_k; j++)
                sum += place.x[j] < 0 ? 0 : src.x[(int64_t)place.x[j] * w + i % w];
            out.x[i] = keep && i / w % 3 == 1 ? out.x[i] : sum;
        }
        need(c,
             c->ops->combine_rows(c->s, ARGS(placed, .dst = out.p, .src = src.p, .place = place.p, .dt = dt, .n = n,
                                             .top_k = top_k, .c = w, .keep = keep)),
             "combine_rows");
        ok = near(c, download(c, &out), out.x, n * w, limit_of(dt), keep ? "kept" : "cleared") && ok;
    }
    result(c, ok, "rows of %lld tokens to %lld places, some to none, %s x %lld", (long long)n, (long long)top_k,
           name_of(dt), (long long)w);
    sweep(c);
}

static void check_permute(struct checker *c)
{
    permute_case(c, 1, 1, 1, 1, 0);
    permute_case(c, 50, 3, 8, 4, 0);
    permute_case(c, 7, 2, 64, 2, 0);
    permute_case(c, 3000, 6, 24, 3, 0);
    const uint64_t random = c->random; /* what comes behind draws what it always has */
    permute_case(c, 50, 3, 8, 4, 20);
    permute_case(c, 7, 2, 64, 2, 1);
    permute_case(c, 3000, 6, 24, 3, 750);
    permute_case(c, 3000, 6, 24, 3, 3000);
    kept_rows_case(c, DTYPE_F32, 20, 2, 300);
    kept_rows_case(c, DTYPE_BF16, 1, 1, 8);
    kept_rows_case(c, DTYPE_BF16, 50, 1, 33);
    c->random = random;
    for (int by_rank = 0; by_rank < 2; by_rank++) {
        permute_received_case(c, 1, 1, 0, by_rank);
        permute_received_case(c, 4, 3, 0, by_rank);
        permute_received_case(c, 3, 16, 11, by_rank);
    }
    rounds_case(c, 1, 1, 0, 0, 1);
    rounds_case(c, 3, 5, 9, 135, 1);
    rounds_case(c, 2, 1, 700, 512, 6);
    rounds_case(c, 4, 3, 400, 600, 14);
    rounds_case(c, 2, 40, 60, 512, 19);
    rounds_by_rank_case(c, 1, 1, 0, 0, 1);
    rounds_by_rank_case(c, 3, 5, 9, 135, 1);
    rounds_by_rank_case(c, 4, 3, 700, 600, 25);
    check_impossible(c);
    for (int i = 0; i < 2; i++) {
        rows_case(c, both[i], 1, 1, 1);
        rows_case(c, both[i], 37, 3, 40);
        rows_case(c, both[i], 11, 8, 777);
    }
}

/* --- together ----------------------------------------------------------------------------------------------------- */

enum { RANKS = 3, EACH = 2, EXPERTS = RANKS * EACH, TOKENS = 29, TOP = 2, WIDTH = 24, ROWS = RANKS * TOKENS * TOP };

struct exchange {
    struct tensor x[RANKS], sent[RANKS], arrived[RANKS], sorted[RANKS], weights[RANKS], matrices;
    struct tensor place[RANKS], counts[RANKS], rank_counts[RANKS], back[RANKS];
    struct tensor received[RANKS], sort[RANKS], local[RANKS], from[RANKS];
};

/* What all_to_all_v does: rows between `sent` (by rank of the expert) and `arrived` (by rank of the token). */
static void exchange_rows(struct checker *c, struct exchange *e, bool back)
{
    for (int to = 0; to < RANKS; to++)
        for (int from = 0; from < RANKS; from++) {
            int64_t send = 0, arrive = 0;
            for (int r = 0; r < to; r++)
                send += (int64_t)e->rank_counts[from].x[r];
            for (int r = 0; r < from; r++)
                arrive += (int64_t)e->rank_counts[r].x[to];
            void *here = offset_of(&e->sent[from], send * WIDTH), *there = offset_of(&e->arrived[to], arrive * WIDTH);
            size_t bytes = (size_t)e->rank_counts[from].x[to] * WIDTH * dtype_bytes(e->x[0].dt);
            need(c, c->ops->copy(c->s, back ? here : there, back ? there : here, bytes), "copy");
        }
}

static void exchange_plan(struct checker *c, struct exchange *e, const struct tensor *chosen)
{
    for (int r = 0; r < RANKS; r++) {
        e->place[r] = empty(c, TOKENS * TOP, DTYPE_I32), e->counts[r] = empty(c, EXPERTS, DTYPE_I32);
        e->rank_counts[r] = empty(c, RANKS, DTYPE_I32);
        need(c,
             c->ops->permute(c->s, ARGS(permute, .place = e->place[r].p, .counts = e->counts[r].p,
                                        .rank_counts = e->rank_counts[r].p, .chosen = chosen[r].p, .n = TOKENS,
                                        .top_k = TOP, .experts = EXPERTS, .ranks = RANKS)),
             "permute");
        memcpy(e->counts[r].x, download(c, &e->counts[r]), EXPERTS * 8);
        memcpy(e->rank_counts[r].x, download(c, &e->rank_counts[r]), RANKS * 8);
    }
    for (int r = 0; r < RANKS; r++) {
        e->received[r] = empty(c, EXPERTS, DTYPE_I32), e->sort[r] = empty(c, ROWS, DTYPE_I32);
        e->local[r] = empty(c, EACH, DTYPE_I32), e->from[r] = empty(c, RANKS, DTYPE_I32);
        for (int i = 0; i < EXPERTS; i++)
            e->received[r].x[i] = e->counts[i / EACH].x[r * EACH + i % EACH];
        upload(c, &e->received[r]);
        need(c,
             c->ops->permute_received(c->s, ARGS(received, .place = e->sort[r].p, .counts = e->local[r].p,
                                                 .rank_counts = e->from[r].p, .received = e->received[r].p, .ld = EACH,
                                                 .ranks = RANKS, .experts = EACH, .rows = ROWS)),
             "permute_received");
    }
}

/* Tokens of three ranks through six experts, two on each rank, and back: the weighted sum of their products. */
static void together_case(struct checker *c, enum dtype dt)
{
    struct exchange e = {.matrices = noise(c, EXPERTS * WIDTH * WIDTH, dt, 0.3)};
    struct tensor chosen[RANKS];
    bool ok = true;
    for (int r = 0; r < RANKS; r++) {
        e.x[r] = noise(c, TOKENS * WIDTH, dt, 1.0), e.weights[r] = noise(c, TOKENS * TOP, DTYPE_F32, 1.0);
        e.sent[r] = empty(c, TOKENS * TOP * WIDTH, dt), e.arrived[r] = empty(c, ROWS * WIDTH, dt);
        e.sorted[r] = empty(c, ROWS * WIDTH, dt), e.back[r] = empty(c, ROWS * WIDTH, dt);
        chosen[r] = integers(c, TOKENS * TOP, 0, EXPERTS);
    }
    exchange_plan(c, &e, chosen);
    for (int r = 0; r < RANKS; r++)
        need(c,
             c->ops->scatter_rows(c->s, ARGS(placed, .dst = e.sent[r].p, .src = e.x[r].p, .place = e.place[r].p,
                                             .dt = dt, .n = TOKENS, .top_k = TOP, .c = WIDTH)),
             "scatter");
    exchange_rows(c, &e, false);
    for (int r = 0; r < RANKS; r++) {
        need(c,
             c->ops->scatter_rows(c->s, ARGS(placed, .dst = e.sorted[r].p, .src = e.arrived[r].p, .place = e.sort[r].p,
                                             .dt = dt, .n = ROWS, .top_k = 1, .c = WIDTH)),
             "scatter");
        need(c,
             c->ops->matmul_grouped(c->s, ARGS(matmul, .c = e.back[r].p, .c_dt = dt, .ldc = WIDTH, .a = e.sorted[r].p,
                                               .lda = WIDTH, .b = offset_of(&e.matrices, r * EACH * WIDTH * WIDTH),
                                               .tb = true, .ldb = WIDTH, .ab_dt = dt, .counts = e.local[r].p,
                                               .groups = EACH, .parts = 1, .m = ROWS, .n = WIDTH, .k = WIDTH)),
             "matmul_grouped");
        need(c,
             c->ops->combine_rows(c->s, ARGS(placed, .dst = e.arrived[r].p, .src = e.back[r].p, .place = e.sort[r].p,
                                             .dt = dt, .n = ROWS, .top_k = 1, .c = WIDTH)),
             "combine");
    }
    exchange_rows(c, &e, true);
    for (int r = 0; r < RANKS; r++) {
        struct tensor out = empty(c, TOKENS * WIDTH, dt);
        double *want = values(c, out.n);
        for (int i = 0; i < TOKENS * TOP; i++)
            for (int j = 0; j < WIDTH; j++)
                want[i / TOP * WIDTH + j] +=
                    e.weights[r].x[i] *
                    dot_of(e.x[r].x + i / TOP * WIDTH, e.matrices.x + ((int)chosen[r].x[i] * WIDTH + j) * WIDTH, WIDTH);
        need(c,
             c->ops->combine_rows(c->s,
                                  ARGS(placed, .dst = out.p, .src = e.sent[r].p, .place = e.place[r].p,
                                       .weights = e.weights[r].p, .dt = dt, .n = TOKENS, .top_k = TOP, .c = WIDTH)),
             "combine");
        ok = near(c, download(c, &out), want, out.n, limit_of(dt), "out") && ok;
    }
    result(c, ok, "tokens of %d ranks through %d experts and back, %s", RANKS, EXPERTS, name_of(dt));
    sweep(c);
}

void device_experts_check(struct checker *c)
{
    check_strided(c);
    check_router(c);
    check_balance_loss(c);
    check_permute(c);
    device_grouped_check(c);
    together_case(c, DTYPE_F32);
    together_case(c, DTYPE_BF16);
}
