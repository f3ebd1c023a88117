/* SPDX-License-Identifier: Apache-2.0 */
/* device_norms.c - RMSNorm and its gradients, alone and with the sum before it. */
#include <string.h>

#include "support/device_checker.h"
#include "support/device_ops.h"
#include "support/device_reference.h"

/* offset: gains are stored less 1. */
static void norm_case(struct checker *c, enum dtype dt, int64_t n, int64_t w, bool offset)
{
    const uint64_t random = c->random;
    struct tensor x = noise(c, n * w, dt, 2.0), g = noise(c, w, dt, 1.0), y = empty(c, n * w, dt);
    struct tensor rstd = empty(c, n, DTYPE_F32), dy = noise(c, n * w, dt, 1.0), dx = noise(c, n * w, dt, 1.0);
    struct tensor dg = noise(c, w, DTYPE_F32, 1.0);
    double *wy = values(c, n * w), *wr = values(c, n), *wx = values(c, n * w), *wg = values(c, w);
    double *wsum = values(c, n * w);
    for (int64_t i = 0; offset && i < w; i++)
        g.x[i] += 1;
    ref_rmsnorm(wy, wr, x.x, g.x, n, w, 1e-5);
    memcpy(wg, dg.x, (size_t)w * sizeof(double));
    ref_rmsnorm_grad(wx, wg, dy.x, x.x, g.x, wr, n, w);
    for (int64_t i = 0; i < n * w; i++)
        wsum[i] = dx.x[i] + wx[i];
    need(c,
         c->ops->rmsnorm(c->s, ARGS(norm, .out = y.p, .rstd = rstd.p, .x = x.p, .gain = g.p, .dt = dt, .n = n, .c = w,
                                    .eps = 1e-5f, .offset = offset)),
         "rmsnorm");
    result(c,
           near(c, download(c, &y), wy, n * w, limit_of(dt), "y") &&
               near(c, download(c, &rstd), wr, n, limit_of(DTYPE_F32), "rstd"),
           "rmsnorm %s %lldx%lld%s", name_of(dt), (long long)n, (long long)w, offset ? ", gains less 1" : "");
    struct tensor apart = noise(c, n * w, dt, 1.0);
    need(c,
         c->ops->rmsnorm_dgrad(c->s, ARGS(norm, .dx = apart.p, .residual = dx.p, .dout = dy.p, .x = x.p, .gain = g.p,
                                          .rstd = rstd.p, .dt = dt, .n = n, .c = w, .offset = offset)),
         "rmsnorm_dgrad");
    need(c,
         c->ops->rmsnorm_dgrad(c->s, ARGS(norm, .dx = dx.p, .residual = dx.p, .dout = dy.p, .x = x.p, .gain = g.p,
                                          .rstd = rstd.p, .dt = dt, .n = n, .c = w, .offset = offset)),
         "rmsnorm_dgrad");
    bool ok = near(c, download(c, &dx), wsum, n * w, limit_of(dt), "accumulated dx");
    ok = same(c, download(c, &apart), download(c, &dx), n * w, "dx beside its residual") && ok;
    need(c,
         c->ops->rmsnorm_dgrad(c->s, ARGS(norm, .dx = dx.p, .dout = dy.p, .x = x.p, .gain = g.p, .rstd = rstd.p,
                                          .dt = dt, .n = n, .c = w, .offset = offset)),
         "rmsnorm_dgrad");
    /* One column: dx is eps-sized, the difference of equals, and rounding is all there is. */
    ok = (w == 1 || near(c, download(c, &dx), wx, n * w, 10.0 * limit_of(dt), "dx")) && ok;
    result(c, ok, "rmsnorm_dgrad %s %lldx%lld", name_of(dt), (long long)n, (long long)w);
    need(c,
         c->ops->rmsnorm_dgain(
             c->s, ARGS(norm, .dgain = dg.p, .dout = dy.p, .x = x.p, .rstd = rstd.p, .dt = dt, .n = n, .c = w)),
         "rmsnorm_dgain");
    result(c, near(c, download(c, &dg), wg, w, limit_of(DTYPE_F32), "dgain"), "rmsnorm_dgain %s %lldx%lld", name_of(dt),
           (long long)n, (long long)w);
    c->random = offset ? random : c->random; /* what comes behind draws what it always has */
    sweep(c);
}

/* Against the reference, and every bit as add and rmsnorm have it, with the sum beside its terms and over one. */
static void add_norm_case(struct checker *c, enum dtype dt, int64_t n, int64_t w, bool offset)
{
    const uint64_t random = c->random;
    struct tensor a = noise(c, n * w, dt, 2.0), b = noise(c, n * w, dt, 2.0), g = noise(c, w, dt, 1.0);
    struct tensor h = empty(c, n * w, dt), y = empty(c, n * w, dt), rstd = empty(c, n, DTYPE_F32);
    struct tensor h2 = empty(c, n * w, dt), y2 = empty(c, n * w, dt), rstd2 = empty(c, n, DTYPE_F32);
    double *sum = values(c, n * w), *wy = values(c, n * w), *wr = values(c, n);
    need(c, c->ops->add(c->s, h.p, a.p, b.p, dt, (size_t)(n * w)), "add");
    need(c,
         c->ops->rmsnorm(c->s, ARGS(norm, .out = y.p, .rstd = rstd.p, .x = h.p, .gain = g.p, .dt = dt, .n = n, .c = w,
                                    .eps = 1e-5f, .offset = offset)),
         "rmsnorm");
    memcpy(sum, download(c, &h), (size_t)(n * w) * sizeof(double));
    for (int64_t i = 0; offset && i < w; i++)
        g.x[i] += 1;
    ref_rmsnorm(wy, wr, sum, g.x, n, w, 1e-5);
    bool ok = true;
    for (int alias = 0; alias < 3; alias++) {
        struct tensor *to = alias == 0 ? &h2 : alias == 1 ? &a : &b;
        need(c,
             c->ops->add_rmsnorm(c->s, ARGS(norm, .h = to->p, .out = y2.p, .rstd = rstd2.p, .a = a.p, .b = b.p,
                                            .gain = g.p, .dt = dt, .n = n, .c = w, .eps = 1e-5f, .offset = offset)),
             "add_rmsnorm");
        ok = same(c, download(c, to), sum, n * w, "h") && ok;
        ok = same(c, download(c, &y2), download(c, &y), n * w, "y") && ok;
        ok = same(c, download(c, &rstd2), download(c, &rstd), n, "rstd") && ok;
        ok = near(c, download(c, &y2), wy, n * w, limit_of(dt), "y") && ok;
        upload(c, &a);
    }
    result(c, ok, "add_rmsnorm %s %lldx%lld, apart and in place%s", name_of(dt), (long long)n, (long long)w,
           offset ? ", gains less 1" : "");
    c->random = offset ? random : c->random;
    sweep(c);
}

void device_norms_check(struct checker *c)
{
    for (int i = 0; i < 2; i++) {
        norm_case(c, both[i], 1, 1, false);
        norm_case(c, both[i], 3, 16, false);
        norm_case(c, both[i], 130, 63, false);
        norm_case(c, both[i], 70, 256, false);
        norm_case(c, both[i], 5, 1000, false);
        add_norm_case(c, both[i], 1, 1, false);
        add_norm_case(c, both[i], 130, 63, false);
        add_norm_case(c, both[i], 70, 256, false);
        add_norm_case(c, both[i], 5, 1000, false);
        norm_case(c, both[i], 130, 63, true);
        norm_case(c, both[i], 5, 1000, true);
        add_norm_case(c, both[i], 70, 256, true);
    }
    struct tensor x = empty(c, 64, DTYPE_F32);
    result(c,
           c->ops->add_rmsnorm(c->s, ARGS(norm, .h = x.p, .out = x.p, .rstd = x.p, .a = x.p, .b = x.p, .gain = x.p,
                                          .dt = DTYPE_F32, .n = 2, .c = 32, .eps = 1e-5f)) == TITAN_EINVAL,
           "add_rmsnorm refuses out that is h");
    result(c,
           c->ops->rmsnorm_dgrad(c->s, ARGS(norm, .dx = x.p, .dout = x.p, .x = x.p, .gain = x.p, .rstd = x.p,
                                            .dt = DTYPE_F32, .n = 2, .c = 32)) == TITAN_EINVAL,
           "rmsnorm_dgrad refuses dx that is dout");
    sweep(c);
}
