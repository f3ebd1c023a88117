/* SPDX-License-Identifier: Apache-2.0 */
/* device_layers.c - SwiGLU, sums of activations and the loss. */
#include <math.h>

#include "support/device_checker.h"
#include "support/device_ops.h"
#include "support/device_reference.h"

static void swiglu_case(struct checker *c, enum dtype dt, int64_t n, int64_t f, double range, bool gelu)
{
    const uint64_t random = c->random;
    struct tensor gu = noise(c, n * 2 * f, dt, range), out = empty(c, n * f, dt), dout = noise(c, n * f, dt, 1.0);
    struct tensor dgu = empty(c, n * 2 * f, dt);
    double *want = values(c, n * f), *dwant = values(c, n * 2 * f);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < f; j++) {
            double g = gu.x[i * 2 * f + j], u = gu.x[i * 2 * f + f + j], d = dout.x[i * f + j];
            want[i * f + j] = (gelu ? ref_gelu(g) : ref_silu(g)) * u;
            dwant[i * 2 * f + j] = d * u * (gelu ? ref_dgelu(g) : ref_dsilu(g));
            dwant[i * 2 * f + f + j] = d * (gelu ? ref_gelu(g) : ref_silu(g));
        }
    need(c,
         c->ops->swiglu(c->s, ARGS(swiglu, .out = out.p, .gate = gu.p, .up = offset_of(&gu, f), .ldgu = 2 * f, .dt = dt,
                                   .n = n, .f = f, .gelu = gelu)),
         "swiglu");
    result(c, near(c, download(c, &out), want, n * f, limit_of(dt), "out"), "swiglu %s %lldx%lld%s", name_of(dt),
           (long long)n, (long long)f, gelu ? ", GELU" : "");
    need(c,
         c->ops->swiglu_dgrad(c->s, ARGS(swiglu, .dgate = dgu.p, .dup = offset_of(&dgu, f), .lddgu = 2 * f,
                                         .dout = dout.p, .gate = gu.p, .up = offset_of(&gu, f), .ldgu = 2 * f, .dt = dt,
                                         .n = n, .f = f, .gelu = gelu)),
         "swiglu_dgrad");
    result(c, near(c, download(c, &dgu), dwant, n * 2 * f, limit_of(dt), "dgate, dup"), "swiglu_dgrad %s %lldx%lld%s",
           name_of(dt), (long long)n, (long long)f, gelu ? ", GELU" : "");
    c->random = gelu ? random : c->random; /* what comes behind draws what it always has */
    sweep(c);
}

/* Of n rows those of `parts` groups are there, n/2 or none of them; what lies behind them is neither read nor written.
 */
static void swiglu_counts_case(struct checker *c, enum dtype dt, int64_t n, int64_t f, int64_t parts, bool any)
{
    const uint64_t random = c->random; /* what comes behind draws what it always has */
    struct tensor gu = noise(c, n * 2 * f, dt, 4.0), out = noise(c, n * f, dt, 1.0), dout = noise(c, n * f, dt, 1.0);
    struct tensor dgu = noise(c, n * 2 * f, dt, 1.0), counts = empty(c, parts, DTYPE_I32);
    int64_t rows = 0;
    for (int64_t i = 0; any && i < n / 2; i++, rows++)
        counts.x[(i * 5 + i / 3) % parts]++;
    upload(c, &counts);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < f; j++) {
            double g = gu.x[i * 2 * f + j], u = gu.x[i * 2 * f + f + j], d = dout.x[i * f + j];
            out.x[i * f + j] = ref_silu(g) * u;
            dgu.x[i * 2 * f + j] = d * u * ref_dsilu(g);
            dgu.x[i * 2 * f + f + j] = d * ref_silu(g);
        }
    need(c,
         c->ops->swiglu(c->s, ARGS(swiglu, .out = out.p, .gate = gu.p, .up = offset_of(&gu, f), .ldgu = 2 * f, .dt = dt,
                                   .n = n, .f = f, .counts = counts.p, .parts = parts)),
         "swiglu");
    need(c,
         c->ops->swiglu_dgrad(c->s, ARGS(swiglu, .dgate = dgu.p, .dup = offset_of(&dgu, f), .lddgu = 2 * f,
                                         .dout = dout.p, .gate = gu.p, .up = offset_of(&gu, f), .ldgu = 2 * f, .dt = dt,
                                         .n = n, .f = f, .counts = counts.p, .parts = parts)),
         "swiglu_dgrad");
    double *got = download(c, &out);
    bool ok = near(c, got, out.x, rows * f, limit_of(dt), "out");
    ok = same(c, got + rows * f, out.x + rows * f, (n - rows) * f, "out behind the rows") && ok;
    got = download(c, &dgu);
    ok = near(c, got, dgu.x, rows * 2 * f, limit_of(dt), "dgate, dup") && ok;
    ok = same(c, got + rows * 2 * f, dgu.x + rows * 2 * f, (n - rows) * 2 * f, "gradient behind the rows") && ok;
    result(c, ok, "swiglu %s %lldx%lld of which %lld rows in %lld groups are there, and its gradient", name_of(dt),
           (long long)n, (long long)f, (long long)rows, (long long)parts);
    c->random = random;
    sweep(c);
}

static double clamped(double gate, double up, double limit, double alpha)
{
    const double g = fmin(gate, limit), u = fmax(fmin(up, limit), -limit);
    return g / (1 + exp(-alpha * g)) * (u + 1);
}

/* Values and, by their differences, gradients; of n rows those of three groups are there, or all where there are none.
 */
static void clamped_swiglu_case(struct checker *c, enum dtype dt, int64_t n, int64_t f, double range, bool counted)
{
    const double limit = 1.7525, alpha = 1.702, h = 1e-5;
    struct tensor gu = noise(c, n * 2 * f, dt, range), out = noise(c, n * f, dt, 1.0), dout = noise(c, n * f, dt, 1.0);
    struct tensor dgu = noise(c, n * 2 * f, dt, 1.0), counts = empty(c, 3, DTYPE_I32);
    const int64_t rows = counted ? n / 2 + 1 : n;
    counts.x[0] = (double)(rows / 3), counts.x[2] = (double)(rows - rows / 3);
    upload(c, &counts);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < f; j++) {
            const double g = gu.x[i * 2 * f + j], u = gu.x[i * 2 * f + f + j], d = dout.x[i * f + j] / (2 * h);
            out.x[i * f + j] = clamped(g, u, limit, alpha);
            dgu.x[i * 2 * f + j] = d * (clamped(g + h, u, limit, alpha) - clamped(g - h, u, limit, alpha));
            dgu.x[i * 2 * f + f + j] = d * (clamped(g, u + h, limit, alpha) - clamped(g, u - h, limit, alpha));
        }
    need(c,
         c->ops->swiglu(c->s, ARGS(swiglu, .out = out.p, .gate = gu.p, .up = offset_of(&gu, f), .ldgu = 2 * f, .dt = dt,
                                   .n = n, .f = f, .counts = counted ? counts.p : NULL, .parts = 3,
                                   .limit = (float)limit, .alpha = (float)alpha)),
         "clamped_swiglu");
    need(c,
         c->ops->swiglu_dgrad(c->s, ARGS(swiglu, .dgate = dgu.p, .dup = offset_of(&dgu, f), .lddgu = 2 * f,
                                         .dout = dout.p, .gate = gu.p, .up = offset_of(&gu, f), .ldgu = 2 * f, .dt = dt,
                                         .n = n, .f = f, .counts = counted ? counts.p : NULL, .parts = 3,
                                         .limit = (float)limit, .alpha = (float)alpha)),
         "clamped_swiglu_dgrad");
    double *got = download(c, &out);
    bool ok = near(c, got, out.x, rows * f, limit_of(dt), "out");
    ok = same(c, got + rows * f, out.x + rows * f, (n - rows) * f, "out behind the rows") && ok;
    got = download(c, &dgu);
    ok = near(c, got, dgu.x, rows * 2 * f, limit_of(dt), "dgate, dup") && ok;
    ok = same(c, got + rows * 2 * f, dgu.x + rows * 2 * f, (n - rows) * 2 * f, "gradient behind the rows") && ok;
    result(c, ok, "clamped_swiglu %s %lldx%lld within %g, %lld rows, and its gradient", name_of(dt), (long long)n,
           (long long)f, range, (long long)rows);
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
        need(c,
             c->ops->loss_stats(c->s, ARGS(loss, .stats = offset_of(&stats, p * n * 3), .logits = x[p].p,
                                           .targets = target.p, .dt = dt, .n = n, .v = w, .first = first[p])),
             "stats");
    }
    ref_cross_entropy(wl, wd, all, target.x, n, v);
    bool ok = true;
    for (int p = 0; p < parts; p++) {
        int64_t w = first[p + 1] - first[p];
        struct tensor apart = noise(c, n * w, dt, 1.0), *to = alias ? &x[p] : &apart;
        need(c,
             c->ops->loss_finish(c->s,
                                 ARGS(loss, .losses = loss.p, .logits = x[p].p, .targets = target.p, .stats = stats.p,
                                      .parts = parts, .dt = dt, .n = n, .v = w, .first = first[p])),
             "loss");
        ok = near(c, download(c, &loss), wl, n, limit_of(DTYPE_F32), "loss only") && ok;
        need(c, c->ops->zero(c->s, loss.p, (size_t)n * 4), "zero");
        need(c,
             c->ops->loss_finish(c->s,
                                 ARGS(loss, .losses = loss.p, .dlogits = to->p, .logits = x[p].p, .targets = target.p,
                                      .stats = stats.p, .parts = parts, .dt = dt, .n = n, .v = w, .first = first[p])),
             "loss");
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
    need(c,
         c->ops->loss_stats(c->s,
                            ARGS(loss, .stats = stats.p, .logits = x.p, .targets = target.p, .dt = dt, .n = n, .v = v)),
         "stats");
    need(c,
         c->ops->loss_finish(c->s, ARGS(loss, .losses = loss.p, .dlogits = dx.p, .logits = x.p, .targets = target.p,
                                        .stats = stats.p, .parts = 1, .dt = dt, .n = n, .v = v)),
         "finish");
    for (int way = 0; way < 3; way++) {
        struct tensor *to = way == 1 ? &dx2 : way == 2 ? &x : NULL;
        need(c, c->ops->zero(c->s, loss2.p, (size_t)n * 4), "zero");
        need(c,
             c->ops->loss(c->s, ARGS(loss, .losses = loss2.p, .stats = stats2.p, .dlogits = to ? to->p : NULL,
                                     .logits = x.p, .targets = target.p, .dt = dt, .n = n, .v = v)),
             "loss");
        ok = same(c, download(c, &loss2), download(c, &loss), n, "losses") && ok;
        ok = same(c, download(c, &stats2), download(c, &stats), 3 * n, "stats") && ok;
        ok = (!to || same(c, download(c, to), download(c, &dx), n * v, "dlogits")) && ok;
    }
    result(c, ok, "loss %s %lldx%lld in one pass", name_of(dt), (long long)n, (long long)v);
    sweep(c);
}

void device_layers_check(struct checker *c)
{
    for (int i = 0; i < 2; i++) {
        enum dtype dt = both[i];
        swiglu_case(c, dt, 9, 1, 4.0, false);
        swiglu_case(c, dt, 31, 96, 4.0, false);
        swiglu_case(c, dt, 3, 777, 100.0, false); /* e^-x overflows fp32 */
        swiglu_case(c, dt, 31, 97, 4.0, true);
        swiglu_case(c, dt, 3, 777, 100.0, true);
        swiglu_case(c, dt, 5, 64, 1e18, true); /* and x^3 */
        swiglu_counts_case(c, dt, 61, 96, 4, true);
        swiglu_counts_case(c, dt, 61, 96, 4, false);
        swiglu_counts_case(c, dt, 700, 31, 300, true);
        const uint64_t random = c->random; /* what comes behind draws what it always has */
        clamped_swiglu_case(c, dt, 31, 96, 2.0, false);
        clamped_swiglu_case(c, dt, 61, 33, 3.0, true);
        clamped_swiglu_case(c, dt, 5, 1, 50.0, false);
        c->random = random;
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
    need(c,
         c->ops->loss_stats(
             c->s, ARGS(loss, .stats = stats.p, .logits = x.p, .targets = target.p, .dt = DTYPE_F32, .n = 1, .v = 8)),
         "stats");
    need(c,
         c->ops->loss_finish(c->s, ARGS(loss, .losses = loss.p, .logits = x.p, .targets = target.p, .stats = stats.p,
                                        .parts = 1, .dt = DTYPE_F32, .n = 1, .v = 8)),
         "loss");
    result(c, isnan(download(c, &loss)[0]), "loss of a NaN logit is NaN");
    sweep(c);
}
