/* SPDX-License-Identifier: Apache-2.0 */
/* outcome.c - a report into loss, norm and orders. */
#include "worker/optim/outcome.h"

#include <math.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "worker/tensor/tree.h"

#define CLIP_EPS 1e-6 /* as in PyTorch's clip_grad_norm_ */

/* Over the microbatches of each cp rank, then over these in order. */
static double sum_parts(const struct report *r, const double *values)
{
    double sum = 0;

    for (int c = 0; c < r->cp; c++)
        sum += tree_sum(values + c * r->microbatches, r->microbatches);
    return sum;
}

/* Squares of a unit's gradient. */
static double unit_norm(const struct report *r, const struct layout *l, int unit, const double *sums)
{
    double sum = 0;

    if (!r->canonical)
        return sums[0];
    for (int part = 0; part < layout_unit_parts(l, unit); part++) {
        const int64_t n = layout_unit_blocks(l, unit);
        sum += tree_sum(sums + part * n, n);
    }
    return sum;
}

/* The sign of what is no number says nothing, and is no more than odd to read. */
static double one_nan(double value)
{
    return isnan(value) ? (double)NAN : value;
}

static titan_status read_norm(const struct report *r, const struct layout *l, const double *report,
                              struct step_outcome *out, struct titan_error *err)
{
    _cleanup_free_ double *units = calloc((size_t)r->units, sizeof *units);
    const double *at = report + r->norms;

    if (!units)
        return titan_fail(err, TITAN_ENOMEM, "step: out of memory");
    for (int u = 0; u < r->units; u++) {
        units[u] = unit_norm(r, l, u, at);
        at += report_norms(r, l, u);
        if (!isfinite(units[u])) /* backward runs from the last unit to the first */
            out->bad_unit = u;
    }
    out->grad_norm = one_nan(sqrt(tree_sum(units, r->units)) / out->tokens);
    return TITAN_OK;
}

/* A loss that is not finite: the unit before the first one with a bad input, or the head. */
static int bad_forward(const struct report *r, const double *report)
{
    for (int u = 1; u < r->units; u++)
        if (!isfinite(report[r->checks + u]))
            return u - 1;
    return r->units - 1;
}

unsigned outcome_orders(const struct report *r, const double *report)
{
    unsigned orders = 0;

    for (int b = 0; b < REPORT_ORDERS; b++)
        orders |= report[r->orders + b] != 0 ? 1u << b : 0;
    return orders;
}

titan_status outcome_read(const struct program *program, const struct layout *layout, const double *report,
                          struct step_outcome *ret, struct titan_error *err)
{
    const struct report *r = &program->report;
    struct step_outcome out = {.bad_unit = -1};

    out.tokens = sum_parts(r, report + r->counts);
    out.loss = one_nan(sum_parts(r, report + r->losses) / out.tokens);
    out.orders = outcome_orders(r, report);
    TRY(read_norm(r, layout, report, &out, err));
    if (!isfinite(out.loss))
        out.bad_unit = bad_forward(r, report);
    out.finite = isfinite(out.loss) && isfinite(out.grad_norm);
    *ret = out;
    return TITAN_OK;
}

double optim_clip_factor(double grad_norm, double max_norm)
{
    if (max_norm <= 0)
        return 1;
    return MIN(1.0, max_norm / (grad_norm + CLIP_EPS));
}

void outcome_add(const struct report *r, const double *report, struct evaluation_sums *to)
{
    for (int64_t i = 0; i < r->microbatches; i++)
        for (int c = 0; c < r->cp; c++) {
            to->loss += report[r->losses + c * r->microbatches + i];
            to->tokens += report[r->counts + c * r->microbatches + i];
        }
}
