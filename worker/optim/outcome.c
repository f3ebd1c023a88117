/* outcome.c - reports of all ranks into loss, norm and orders. */
#include "worker/optim/outcome.h"

#include <math.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "worker/plan/tree.h"

#define CLIP_EPS 1e-6 /* as in PyTorch's clip_grad_norm_ */

static titan_status read_losses(const struct program *p, const double *reports, struct step_outcome *out,
                                struct titan_error *err)
{
    _cleanup_free_ double *losses = calloc((size_t)p->microbatches * 2, sizeof *losses);
    if (!losses)
        return titan_fail(err, TITAN_ENOMEM, "step: out of memory");
    double *const counts = losses + p->microbatches;
    for (int r = 0; r < p->world; r++) {
        const double *report = reports + r * report_size(p);
        int64_t from, to;
        tree_share(p->microbatches, p->world, r, &from, &to);
        for (int64_t i = from; i < to; i++) {
            losses[i] = report[report_losses() + i - from];
            counts[i] = report[report_counts(p) + i - from];
        }
        for (int b = 0; b < REPORT_ORDERS; b++)
            if (report[report_orders(p) + b] != 0)
                out->orders |= 1u << b;
    }
    out->tokens = tree_sum(counts, p->microbatches);
    out->loss = tree_sum(losses, p->microbatches) / out->tokens;
    return TITAN_OK;
}

static titan_status read_norm(const struct program *p, const struct layout *l, const double *reports,
                              struct step_outcome *out, struct titan_error *err)
{
    const int units = p->n_units;
    int64_t most = 0;
    titan_assert(units > 0);
    for (int u = 0; u < units; u++)
        most = MAX(most, layout_unit_blocks(l, u));
    _cleanup_free_ double *sums = calloc((size_t)most + (size_t)units, sizeof *sums);
    if (!sums)
        return titan_fail(err, TITAN_ENOMEM, "step: out of memory");
    double *const unit_sums = sums + most;
    for (int u = 0; u < units; u++) {
        const int64_t n = layout_unit_blocks(l, u);
        for (int64_t b = 0; b < n; b++) {
            const int64_t index = layout_block_index(l, u, b);
            sums[b] = reports[index / p->blocks * report_size(p) + report_blocks(p) + index % p->blocks];
        }
        unit_sums[u] = tree_sum(sums, n);
        if (!isfinite(unit_sums[u])) /* backward runs from the last unit to the first */
            out->bad_unit = u;
    }
    out->grad_norm = sqrt(tree_sum(unit_sums, units)) / out->tokens;
    return TITAN_OK;
}

/* A loss that is not finite: the unit before the first one with a bad input, or the head. */
static int bad_forward(const struct program *p, const double *reports)
{
    for (int u = 1; u < p->n_units; u++)
        for (int r = 0; r < p->world; r++) {
            int64_t from, to;
            tree_share(p->microbatches, p->world, r, &from, &to);
            for (int64_t slot = 0; slot < to - from; slot++)
                if (!isfinite(reports[r * report_size(p) + report_check(p, slot, u)]))
                    return u - 1;
        }
    return p->n_units - 1;
}

titan_status outcome_read(const struct program *program, const struct layout *layout, const double *reports,
                          struct step_outcome *ret, struct titan_error *err)
{
    struct step_outcome out = {.bad_unit = -1};

    TRY(read_losses(program, reports, &out, err));
    TRY(read_norm(program, layout, reports, &out, err));
    if (!isfinite(out.loss))
        out.bad_unit = bad_forward(program, reports);
    out.finite = isfinite(out.loss) && isfinite(out.grad_norm);
    *ret = out;
    return TITAN_OK;
}

double clip_factor(double grad_norm, double max_norm)
{
    if (max_norm <= 0)
        return 1;
    return MIN(1.0, max_norm / (grad_norm + CLIP_EPS));
}
