/* SPDX-License-Identifier: Apache-2.0 */
/* device_orthogonal.c - what updates of whole matrices need besides products. */
#include <math.h>

#include "support/device_checker.h"
#include "support/device_ops.h"

static void unit_case(struct checker *c, enum dtype dt, int64_t n, float eps)
{
    struct tensor x = noise(c, n, DTYPE_F32, 3.0), sum = empty(c, 1, DTYPE_F64), out = empty(c, n, dt);
    double *want = values(c, n);

    sum.x[0] = dot_of(x.x, x.x, n);
    upload(c, &sum);
    for (int64_t i = 0; i < n; i++)
        want[i] = x.x[i] / (sqrt(sum.x[0]) + (double)eps);
    need(c, c->ops->unit(c->s, ARGS(unit, .out = out.p, .x = x.p, .sum = sum.p, .dt = dt, .eps = eps, .n = (size_t)n)),
         "unit");
    bool ok = near(c, download(c, &out), want, n, limit_of(dt), "unit");
    sum.x[0] = 0;
    upload(c, &sum);
    need(c, c->ops->zero(c->s, x.p, (size_t)n * sizeof(float)), "zero");
    need(c,
         c->ops->unit(c->s,
                      ARGS(unit, .out = x.p, .x = x.p, .sum = sum.p, .dt = DTYPE_F32, .eps = 1e-7f, .n = (size_t)n)),
         "unit");
    ok = same(c, download(c, &x), values(c, n), n, "of zeros") && ok;
    result(c, ok, "unit vector %s of %lld", name_of(dt), (long long)n);
    sweep(c);
}

static void polynomial_case(struct checker *c, enum dtype dt, int64_t n)
{
    struct tensor x = noise(c, n * n, dt, 1.0), y = noise(c, n * n, DTYPE_F32, 1.0), out = empty(c, n * n, dt);
    double *want = values(c, n * n);

    for (int64_t i = 0; i < n * n; i++)
        want[i] = (i / n == i % n ? 3.5 : 0) - 4.75 * x.x[i] + 2 * y.x[i];
    for (int in_place = 0; in_place < 2; in_place++)
        need(c,
             c->ops->polynomial(c->s, ARGS(polynomial, .out = in_place ? x.p : out.p, .x = x.p, .y = y.p, .dt = dt,
                                           .a = 3.5f, .b = -4.75f, .c = 2, .n = n)),
             "polynomial");
    bool ok = near(c, download(c, &out), want, n * n, limit_of(dt), "polynomial");
    ok = same(c, download(c, &x), download(c, &out), n * n, "in place") && ok;
    result(c, ok, "polynomial of a matrix %s %lldx%lld", name_of(dt), (long long)n, (long long)n);
    sweep(c);
}

void device_orthogonal_check(struct checker *c)
{
    for (int i = 0; i < 2; i++) {
        unit_case(c, both[i], 1, 0);
        unit_case(c, both[i], 50001, 0.5f);
        polynomial_case(c, both[i], 1);
        polynomial_case(c, both[i], 37);
        polynomial_case(c, both[i], 256);
    }
}
