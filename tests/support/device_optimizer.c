/* SPDX-License-Identifier: Apache-2.0 */
/* device_optimizer.c - AdamW and SGD in every type of masters and moments. */
#include <math.h>
#include <string.h>

#include "base/bf16.h"
#include "base/rng.h"
#include "support/device_checker.h"
#include "support/device_ops.h"

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
        need(c,
             c->ops->adamw(
                 c->s, &(struct adamw_range){w.p, m.p, v.p, g.p, with_shadow ? shadow.p : NULL, (size_t)n, a.rounding},
                 1, &a),
             "adamw");
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
        need(c, c->ops->adamw(c->s, &(struct adamw_range){w.p, m.p, v.p, g.p, to, (size_t)n, a.rounding}, 1, &a),
             "adamw");
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
    need(c, c->ops->adamw(c->s, &(struct adamw_range){w.p, m.p, v.p, g.p, NULL, N, a.rounding}, 1, &a), "adamw");
    need(c,
         c->ops->adamw(c->s, &(struct adamw_range){split[0].p, split[1].p, split[2].p, g.p, NULL, CUT, a.rounding}, 1,
                       &a),
         "adamw");
    a.rounding.first = CUT;
    need(c,
         c->ops->adamw(c->s,
                       &(struct adamw_range){offset_of(&split[0], CUT), offset_of(&split[1], CUT),
                                             offset_of(&split[2], CUT), offset_of(&g, CUT), NULL, N - CUT, a.rounding},
                       1, &a),
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
             c->ops->adamw(c->s,
                           &(struct adamw_range){offset_of(&one[0], at), offset_of(&one[1], at), offset_of(&one[2], at),
                                                 offset_of(&g, at), NULL, (size_t)n, with.rounding},
                           1, &with),
             "adamw");
        at += n + k % 3; /* what lies between them stays */
    }
    need(c, c->ops->adamw(c->s, ranges, COUNT, &a), "adamw");
    need(c, c->ops->adamw(c->s, ranges, 0, &a), "adamw of none");
    for (int i = 0; i < 3; i++)
        ok = same(c, download(c, &all[i]), download(c, &one[i]), ALL, "ranges at once") && ok;
    result(c, ok, "adamw of %d ranges at once, masters %s, moments %s%s", COUNT, wt == DTYPE_BF16 ? "bf16" : "fp32",
           mt == DTYPE_BF16 ? "bf16" : "fp32", random ? ", at random" : "");
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

void device_optimizer_check(struct checker *c)
{
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
    sgd_case(c, 1003, true);
    sgd_case(c, 40000, false);
}
