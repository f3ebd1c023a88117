/* SPDX-License-Identifier: Apache-2.0 */
/* device_optimizer.c - the rules of updates, in every type of masters and state. */
#include <math.h>
#include <string.h>

#include "base/bf16.h"
#include "base/moment_codes.h"
#include "base/rng.h"
#include "support/device_checker.h"
#include "support/device_ops.h"

/* --- each rule ---------------------------------------------------------------------------------------------------- */

static const char *const rule_names[RULE_COUNT] = {"adamw", "sgd", "lion", "ademamix", "direction"};

/* Half a unit in the last place of 8 bits, and what fp32 arithmetic is off by. */
static bool rounded(double got, double exact)
{
    int exponent;
    (void)frexp(exact, &exponent);
    return fabs(got - exact) <= ldexp(1.0, exponent - 9) + 1e-6;
}

static bool as_typed(double got, double exact, enum dtype dt)
{
    return dt == DTYPE_BF16 ? rounded(got, exact) : fabs(got - exact) <= 3e-7 * (fabs(exact) + 1);
}

/* A gradient as the rule takes it: the mean, clipped, with a coupled decay. */
static double gradient_of(const struct update_args *a, double sum, double w)
{
    double g = sum * (double)a->grad_scale;
    if (a->master == DTYPE_BF16)
        g = from_bf16(to_bf16(from_bf16(to_bf16((float)sum * a->mean)) * a->clip));
    return g + (a->l2 || a->rule == RULE_SGD ? (double)a->weight_decay * w : 0);
}

/* device.h's formulas in fp64, on one element. state may be NULL where the rule keeps none. */
static double exact_update(const struct update_args *a, double w, double sum, double *state)
{
    const double b1 = (double)a->beta1, b2 = (double)a->beta2, g = gradient_of(a, sum, w);
    const double decay = a->l2 ? 0 : (double)a->weight_decay * w, old = state ? state[0] : 0;

    switch (a->rule) {
    case RULE_DIRECTION:
        return w - (double)a->lr * (sum + (double)a->weight_decay * w);
    case RULE_SGD:
        if (!state)
            return w - (double)a->lr * g;
        state[0] = (double)a->own[0] * old + g;
        return w - (double)a->lr * (a->own[1] != 0 ? g + (double)a->own[0] * state[0] : state[0]);
    case RULE_LION: {
        const double d = b1 * old + (1 - b1) * g;
        state[0] = b2 * old + (1 - b2) * g;
        return w - (double)a->lr * ((d > 0) - (d < 0) + decay);
    }
    default:
        state[0] = b1 * old + (1 - b1) * g;
        state[1] = b2 * state[1] + (1 - b2) * g * g;
        if (a->rule == RULE_ADEMAMIX)
            state[2] = (double)a->own[0] * state[2] + (1 - (double)a->own[0]) * g;
        return w - (double)a->lr *
                       ((state[0] / (double)a->bias1 + (a->rule == RULE_ADEMAMIX ? (double)a->own[1] * state[2] : 0)) /
                            (sqrt(state[1] / (double)a->bias2) + (double)a->eps) +
                        decay);
    }
}

/* Each step on masters of type wt and state of type mt: what is stored is the exact value of what was there, rounded
 * once. */
static void rule_case(struct checker *c, const struct update_args *rule, int64_t n, enum dtype wt, enum dtype mt,
                      bool with_shadow)
{
    const int kept = update_keeps_state(rule) ? update_rule_states(rule->rule) : 0;
    struct update_args a = *rule;
    struct tensor w = noise(c, n, wt, 1.0), shadow = empty(c, n, DTYPE_BF16), state[UPDATE_STATES];
    double *got[UPDATE_STATES + 1], *before[UPDATE_STATES + 1];
    bool ok = true;

    a.master = wt;
    a.moment = mt;
    a.clip = 0.7f;
    a.mean = 1.0f / 8;
    a.grad_scale = a.clip * a.mean;
    before[UPDATE_STATES] = values(c, n);
    memcpy(before[UPDATE_STATES], w.x, (size_t)n * sizeof(double));
    for (int i = 0; i < kept; i++) {
        state[i] = noise(c, n, mt, 0.1);
        for (int64_t e = 0; e < n && i == 1; e++)
            state[i].x[e] = fabs(state[i].x[e]);
        upload(c, &state[i]);
        before[i] = values(c, n);
        memcpy(before[i], state[i].x, (size_t)n * sizeof(double));
    }
    for (int step = 1; step <= 3; step++) {
        const struct tensor g = noise(c, n, DTYPE_F32, 10.0);
        struct update_piece piece = {
            .master = w.p, .grad = g.p, .shadow = with_shadow ? shadow.p : NULL, .n = (size_t)n};
        a.bias1 = 1.0f - powf(a.beta1, (float)step);
        a.bias2 = 1.0f - powf(a.beta2, (float)step);
        for (int i = 0; i < kept; i++)
            piece.state[i] = state[i].p;
        struct update_args used = a;
        if (step == 2)
            used.lr /= piece.excess = 2.5f;
        need(c, c->ops->update(c->s, &piece, 1, &a), rule_names[a.rule]);
        got[UPDATE_STATES] = download(c, &w);
        for (int i = 0; i < kept; i++)
            got[i] = download(c, &state[i]);
        const double *const bits = download(c, &shadow);
        for (int64_t e = 0; e < n; e++) {
            double want[UPDATE_STATES] = {0};
            for (int i = 0; i < kept; i++)
                want[i] = before[i][e];
            const double exact = exact_update(&used, before[UPDATE_STATES][e], g.x[e], kept > 0 ? want : NULL);
            ok = ok && as_typed(got[UPDATE_STATES][e], exact, wt);
            for (int i = 0; i < kept; i++)
                ok = ok && as_typed(got[i][e], want[i], mt);
            ok = ok && bits[e] == (with_shadow ? (double)from_bf16(to_bf16((float)got[UPDATE_STATES][e])) : 0.0);
        }
        for (int i = 0; i < kept; i++)
            memcpy(before[i], got[i], (size_t)n * sizeof(double));
        memcpy(before[UPDATE_STATES], got[UPDATE_STATES], (size_t)n * sizeof(double));
    }
    result(c, ok, "%s%s%s %lld, masters %s, state %s%s", rule_names[a.rule], a.l2 ? " with l2" : "",
           a.rule != RULE_SGD || kept == 0 ? ""
           : a.own[1] != 0                 ? " nesterov"
                                           : " momentum",
           (long long)n, wt == DTYPE_BF16 ? "bf16" : "fp32", mt == DTYPE_BF16 ? "bf16" : "fp32",
           with_shadow ? ", shadow" : "");
    sweep(c);
}

/* --- state in codes ----------------------------------------------------------------------------------------------- */

#define BLOCKS_OF(n) (((n) + MOMENT_BLOCK - 1) / MOMENT_BLOCK)

/* A state in codes, on the device and here. Elements behind the last one have codes of their own. */
struct coded {
    struct moment_block *device, *here;
    bool square;
};

static struct coded coded_noise(struct checker *c, int64_t n, bool square)
{
    const size_t bytes = (size_t)BLOCKS_OF(n) * sizeof(struct moment_block);
    struct coded ret = {device_memory(c, bytes), (void *)values(c, BLOCKS_OF(n) * 33), square}; /* 264 bytes a block */

    memset(ret.here, 7, bytes);
    for (int64_t at = 0; at < n; at += MOMENT_BLOCK) {
        float x[MOMENT_BLOCK];
        for (int i = 0; i < MOMENT_BLOCK; i++)
            x[i] = (float)(uniform(c, square ? 0 : -1, 1) * pow(10, uniform(c, -6, -1)));
        moment_block_encode(&ret.here[at / MOMENT_BLOCK], (int)(n - at < MOMENT_BLOCK ? n - at : MOMENT_BLOCK), square,
                            x);
    }
    transfer(c, ret.device, ret.here, bytes, true);
    return ret;
}

static double *coded_values(struct checker *c, const struct coded *x, int64_t n)
{
    double *const ret = values(c, n);

    for (int64_t i = 0; i < n; i++)
        ret[i] = (double)moment_decode(x->here[i / MOMENT_BLOCK].codes[i % MOMENT_BLOCK],
                                       x->here[i / MOMENT_BLOCK].scale, x->square);
    return ret;
}

/* The state of one element behind the step, by device.h's formulas in fp32, each sum rounded once. */
static void next_state(const struct update_args *a, float g, float state[UPDATE_STATES])
{
    const float c1 = 1.0f - a->beta1, c2 = 1.0f - a->beta2, c3 = 1.0f - a->own[0], square = g * g;

    if (a->rule == RULE_SGD) {
        state[0] = fmaf(a->own[0], state[0], g);
    } else if (a->rule == RULE_LION) {
        state[0] = fmaf(a->beta2, state[0], c2 * g);
    } else {
        state[0] = fmaf(a->beta1, state[0], c1 * g);
        state[1] = fmaf(a->beta2, state[1], c2 * square);
        state[2] = fmaf(a->own[0], state[2], c3 * g);
    }
}

/* Each step of a rule with its state in codes: weights as with the fp32 values of the codes, and the codes of the state
 * behind the step, to the bit. Gradients are spread over seven decades. */
static void coded_case(struct checker *c, const struct update_args *rule, int64_t n, enum dtype wt, bool with_shadow)
{
    static const int states[RULE_COUNT] = {[RULE_ADAMW] = 2, [RULE_SGD] = 1, [RULE_LION] = 1, [RULE_ADEMAMIX] = 3};
    const int kept = states[rule->rule];
    const size_t bytes = (size_t)BLOCKS_OF(n) * sizeof(struct moment_block);
    struct update_args a = *rule;
    struct tensor w = noise(c, n, wt, 1.0), g = empty(c, n, DTYPE_F32), shadow = empty(c, n, DTYPE_BF16);
    struct coded state[UPDATE_STATES];
    bool ok = true, same_codes = true;

    a.master = wt;
    a.moment = DTYPE_U8;
    a.clip = 0.7f;
    a.mean = 1.0f / 8;
    a.grad_scale = a.clip * a.mean;
    for (int i = 0; i < kept; i++)
        state[i] = coded_noise(c, n, update_state_is_square(a.rule, i));
    for (int step = 1; step <= 2; step++) {
        struct update_piece piece = {
            .master = w.p, .grad = g.p, .shadow = with_shadow ? shadow.p : NULL, .n = (size_t)n};
        struct moment_block *const want = (void *)values(c, BLOCKS_OF(n) * 33);
        double *was[UPDATE_STATES], *const before = download(c, &w);
        for (int64_t e = 0; e < n; e++)
            g.x[e] = uniform(c, -10, 10) * pow(10, uniform(c, -7, 0));
        upload(c, &g);
        a.bias1 = 1.0f - powf(a.beta1, (float)step);
        a.bias2 = 1.0f - powf(a.beta2, (float)step);
        for (int i = 0; i < kept; i++) {
            piece.state[i] = state[i].device;
            was[i] = coded_values(c, &state[i], n);
        }
        need(c, c->ops->update(c->s, &piece, 1, &a), rule_names[a.rule]);
        const double *const got = download(c, &w), *const bits = download(c, &shadow);
        for (int64_t e = 0; e < n; e++) {
            double exact[UPDATE_STATES] = {0};
            for (int i = 0; i < kept; i++)
                exact[i] = was[i][e];
            ok = ok && as_typed(got[e], exact_update(&a, before[e], g.x[e], exact), wt);
            ok = ok && bits[e] == (with_shadow ? (double)from_bf16(to_bf16((float)got[e])) : 0.0);
        }
        for (int i = 0; i < kept; i++) {
            memcpy(want, state[i].here, bytes);
            for (int64_t at = 0; at < n; at += MOMENT_BLOCK) {
                const int64_t left = n - at < MOMENT_BLOCK ? n - at : MOMENT_BLOCK;
                float now[MOMENT_BLOCK];
                for (int64_t e = at; e < at + left; e++) {
                    float x[UPDATE_STATES] = {0}, sum = (float)g.x[e] * a.grad_scale;
                    for (int k = 0; k < kept; k++)
                        x[k] = (float)was[k][e];
                    if (wt == DTYPE_BF16)
                        sum = from_bf16(to_bf16(from_bf16(to_bf16((float)g.x[e] * a.mean)) * a.clip));
                    next_state(&a, fmaf(a.l2 || a.rule == RULE_SGD ? a.weight_decay : 0.0f, (float)before[e], sum), x);
                    now[e - at] = x[i];
                }
                moment_block_encode(&want[at / MOMENT_BLOCK], (int)left, state[i].square, now);
            }
            transfer(c, state[i].here, state[i].device, bytes, false);
            same_codes = same_codes && memcmp(want, state[i].here, bytes) == 0;
        }
    }
    result(c, ok && same_codes, "%s%s%s %lld, masters %s, state in codes%s%s%s", rule_names[a.rule],
           a.l2 ? " with l2" : "", a.rule == RULE_SGD && a.own[1] != 0 ? " nesterov" : "", (long long)n,
           wt == DTYPE_BF16 ? "bf16" : "fp32", with_shadow ? ", shadow" : "", ok ? "" : ": other weights",
           same_codes ? "" : ": other codes");
    sweep(c);
}

/* What AdamW subtracts stays near the rate where gradients of one block are spread over six decades and become small
 * for a step: a second moment that is far below its block's largest does not become 0. */
static void coded_steps_case(struct checker *c)
{
    enum { N = 2 * MOMENT_BLOCK, STEPS = 40 };
    struct update_args a = {.lr = 1, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-12f, .grad_scale = 1, .moment = DTYPE_U8};
    struct tensor w = empty(c, N, DTYPE_F32), g = empty(c, N, DTYPE_F32);
    struct moment_block *const m = device_memory(c, 2 * sizeof *m), *const v = device_memory(c, 2 * sizeof *v);
    double *before = download(c, &w), most = 0;

    need(c, c->ops->zero(c->s, m, 2 * sizeof *m), "zero");
    need(c, c->ops->zero(c->s, v, 2 * sizeof *v), "zero");
    for (int step = 1; step <= STEPS && !c->broken; step++) {
        for (int i = 0; i < N; i++) /* each element has its own size */
            g.x[i] = uniform(c, -1, 1) * pow(10, -(double)(i % 61) / 10) * (uniform(c, 0, 1) < 0.3 ? 1e-9 : 1);
        upload(c, &g);
        a.bias1 = 1.0f - powf(a.beta1, (float)step);
        a.bias2 = 1.0f - powf(a.beta2, (float)step);
        need(c,
             c->ops->update(c->s, &(struct update_piece){.master = w.p, .state = {m, v}, .grad = g.p, .n = N}, 1, &a),
             "adamw");
        double *const now = download(c, &w);
        for (int i = 0; i < N; i++)
            most = fmax(most, fabs(now[i] - before[i]));
        before = now;
    }
    result(c, most > 0.5 && most < 10, "adamw with state in codes: largest step %.2f times the rate", most);
    sweep(c);
}

/* The sum that bounds a tensor's rate, of codes: as of the values that they decode to. */
static void coded_bound_case(struct checker *c, int64_t n, enum dtype wt)
{
    struct update_args a = {.beta2 = 0.95f, .eps = 1e-6f, .bias2 = 0.3f, .clip = 0.7f, .mean = 0.125f, .master = wt};
    struct tensor g = noise(c, n, DTYPE_F32, 10.0), plain = empty(c, n, wt == DTYPE_BF16 ? DTYPE_BF16 : DTYPE_F32);
    struct coded v = coded_noise(c, n, true);
    double *const sums = empty(c, 4, DTYPE_F32).p, got[2];

    a.grad_scale = a.clip * a.mean;
    if (wt == DTYPE_BF16) /* values that bf16 has: the parts of one decade are not, but 0 and the scale are */
        for (int64_t i = 0; i < n; i++) {
            v.here[i / MOMENT_BLOCK].scale = 0.5f;
            v.here[i / MOMENT_BLOCK].codes[i % MOMENT_BLOCK] = uniform(c, 0, 1) < 0.5 ? 0 : 255;
        }
    transfer(c, v.device, v.here, (size_t)BLOCKS_OF(n) * sizeof *v.here, true);
    memcpy(plain.x, coded_values(c, &v, n), (size_t)n * sizeof(double));
    upload(c, &plain);
    need(c, c->ops->zero(c->s, sums, sizeof got), "zero");
    a.moment = DTYPE_U8;
    need(c, c->ops->update_sum(c->s, sums, v.device, g.p, (size_t)n, &a), "update_sum");
    a.moment = plain.dt;
    need(c, c->ops->update_sum(c->s, sums + 1, plain.p, g.p, (size_t)n, &a), "update_sum");
    need(c, c->ops->copy(c->s, got, sums, sizeof got), "copy");
    need(c, c->ops->stream_sync(c->s, NULL), "sync");
    result(c, got[0] == got[1] && got[0] > 0, "sum of an update %lld, masters %s, state in codes", (long long)n,
           wt == DTYPE_BF16 ? "bf16" : "fp32");
    sweep(c);
}

/* The sum that bounds a tensor's rate, in two calls: whole numbers of 2^-16, so the cut does not matter; and an update
 * whose rate is divided by the excess. */
static void bound_case(struct checker *c, int64_t n, enum dtype wt, enum dtype mt)
{
    struct tensor v = noise(c, n, mt, 0.1), g = noise(c, n, DTYPE_F32, 10.0);
    struct update_args a = {.lr = 3e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-6f, .bias1 = 0.1f, .bias2 = 0.3f};
    double *const sums = empty(c, 4, DTYPE_F32).p, got[2], want = 0; /* room for two of fp64 */

    a.master = wt;
    a.moment = mt;
    a.clip = 0.7f;
    a.mean = 1.0f / 8;
    a.grad_scale = a.clip * a.mean;
    for (int64_t i = 0; i < n; i++)
        v.x[i] = fabs(v.x[i]);
    v.x[0] = g.x[0] = 0; /* this term is 0, however small eps is */
    a.eps = n == 3 ? 1e-30f : a.eps;
    upload(c, &v);
    upload(c, &g);
    for (int64_t i = 0; i < n; i++) {
        const double x = gradient_of(&a, g.x[i], 0), now = ((double)a.beta2 * v.x[i] + 0.05 * x * x) / (double)a.bias2;
        want += x * x / fmax(now, (double)a.eps * (double)a.eps);
    }
    need(c, c->ops->zero(c->s, sums, sizeof got), "zero");
    need(c, c->ops->update_sum(c->s, sums, v.p, g.p, (size_t)n, &a), "update_sum");
    need(c, c->ops->update_sum(c->s, sums + 1, v.p, g.p, (size_t)(n / 3), &a), "update_sum");
    need(c, c->ops->update_sum(c->s, sums + 1, offset_of(&v, n / 3), offset_of(&g, n / 3), (size_t)(n - n / 3), &a),
         "update_sum");
    need(c, c->ops->copy(c->s, got, sums, sizeof got), "copy");
    need(c, c->ops->stream_sync(c->s, NULL), "sync");
    result(c, got[0] == got[1] && fabs(got[0] - want) < 1e-4 * want && got[0] * 65536 == rint(got[0] * 65536),
           "sum of an update %lld, masters %s, state %s", (long long)n, wt == DTYPE_BF16 ? "bf16" : "fp32",
           mt == DTYPE_BF16 ? "bf16" : "fp32");
    sweep(c);
}

/* --- state rounded at random -------------------------------------------------------------------------------------- */

/* bf16 moments rounded at random, of a box 24 wide of a matrix 64 wide, in one call or in two: the bits that device.h
 * states, whatever the device; what rounding adds has a mean of nothing. */
static void random_rounding_case(struct checker *c, enum dtype wt, bool l2)
{
    enum { ROWS = 37, COLS = 24, WIDTH = 64, N = ROWS * COLS, CUT = 401 };
    struct tensor w = noise(c, N, wt, 1.0), m = noise(c, N, DTYPE_BF16, 0.1), v = noise(c, N, DTYPE_BF16, 0.1);
    struct tensor g = noise(c, N, DTYPE_F32, 10.0),
                  split[3] = {noise(c, N, wt, 1.0), empty(c, N, DTYPE_BF16), empty(c, N, DTYPE_BF16)};
    struct update_args a = {.lr = 3e-3f,
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
    need(c, c->ops->update(c->s, &(struct update_piece){w.p, {m.p, v.p}, g.p, NULL, N, a.rounding, 0}, 1, &a), "adamw");
    need(c,
         c->ops->update(
             c->s, &(struct update_piece){split[0].p, {split[1].p, split[2].p}, g.p, NULL, CUT, a.rounding, 0}, 1, &a),
         "adamw");
    a.rounding.first = CUT;
    need(c,
         c->ops->update(c->s,
                        &(struct update_piece){offset_of(&split[0], CUT),
                                               {offset_of(&split[1], CUT), offset_of(&split[2], CUT)},
                                               offset_of(&g, CUT),
                                               NULL,
                                               N - CUT,
                                               a.rounding,
                                               0},
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
    struct update_args a = {.lr = 3e-3f,
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
    struct update_piece ranges[COUNT];
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
        struct update_args with = a;
        with.rounding.key = rng_key(7, "rounding.x");
        with.rounding.cols = with.rounding.ld = k + 1;
        with.rounding.origin = 1000 * k;
        ranges[k] = (struct update_piece){.master = offset_of(&all[0], at),
                                          .state = {offset_of(&all[1], at), offset_of(&all[2], at)},
                                          .grad = offset_of(&g, at),
                                          .n = (size_t)n,
                                          .rounding = with.rounding};
        need(c,
             c->ops->update(c->s,
                            &(struct update_piece){offset_of(&one[0], at),
                                                   {offset_of(&one[1], at), offset_of(&one[2], at)},
                                                   offset_of(&g, at),
                                                   NULL,
                                                   (size_t)n,
                                                   with.rounding,
                                                   0},
                            1, &with),
             "adamw");
        at += n + k % 3; /* what lies between them stays */
    }
    need(c, c->ops->update(c->s, ranges, COUNT, &a), "adamw");
    need(c, c->ops->update(c->s, ranges, 0, &a), "adamw of none");
    for (int i = 0; i < 3; i++)
        ok = same(c, download(c, &all[i]), download(c, &one[i]), ALL, "ranges at once") && ok;
    result(c, ok, "adamw of %d ranges at once, masters %s, moments %s%s", COUNT, wt == DTYPE_BF16 ? "bf16" : "fp32",
           mt == DTYPE_BF16 ? "bf16" : "fp32", random ? ", at random" : "");
    sweep(c);
}

void device_optimizer_check(struct checker *c)
{
    const struct update_args numbers = {
        .lr = 3e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .own = {0.999f, 5}, .eps = 1e-8f, .weight_decay = 0.1f};
    struct update_args rules[] = {numbers, numbers, numbers, numbers, numbers, numbers, numbers, numbers};

    rules[1].l2 = true;
    for (int i = 2; i < 5; i++) {
        rules[i].rule = RULE_SGD;
        rules[i].own[0] = i > 2 ? 0.9f : 0;
        rules[i].own[1] = i > 3;
    }
    rules[5].rule = RULE_LION;
    rules[6].rule = RULE_ADEMAMIX;
    rules[7].rule = RULE_DIRECTION;
    for (int i = 0; i < (int)(sizeof rules / sizeof *rules); i++) {
        rule_case(c, &rules[i], 1, DTYPE_F32, DTYPE_F32, true);
        rule_case(c, &rules[i], 1003, DTYPE_F32, DTYPE_F32, true);
        rule_case(c, &rules[i], 4096, DTYPE_F32, DTYPE_F32, false);
        rule_case(c, &rules[i], 1003, DTYPE_F32, DTYPE_BF16, true);
        rule_case(c, &rules[i], 40000, DTYPE_BF16, DTYPE_BF16, false);
        if (i == 2) /* keeps no state */
            continue;
        coded_case(c, &rules[i], 1, DTYPE_F32, true);
        coded_case(c, &rules[i], 1003, DTYPE_F32, true);
        coded_case(c, &rules[i], 4096, DTYPE_F32, false);
        coded_case(c, &rules[i], 40000, DTYPE_BF16, false);
    }
    coded_steps_case(c);
    coded_bound_case(c, 3, DTYPE_F32);
    coded_bound_case(c, 40000, DTYPE_F32);
    coded_bound_case(c, 1003, DTYPE_BF16);
    for (int l2 = 0; l2 < 2; l2++) {
        random_rounding_case(c, DTYPE_F32, l2);
        random_rounding_case(c, DTYPE_BF16, l2);
    }
    bound_case(c, 3, DTYPE_F32, DTYPE_F32);
    bound_case(c, 40000, DTYPE_F32, DTYPE_F32);
    bound_case(c, 1003, DTYPE_F32, DTYPE_BF16);
    bound_case(c, 1003, DTYPE_BF16, DTYPE_BF16);
    many_ranges_case(c, DTYPE_F32, DTYPE_F32, false);
    many_ranges_case(c, DTYPE_BF16, DTYPE_BF16, false);
    many_ranges_case(c, DTYPE_F32, DTYPE_BF16, true);
}
