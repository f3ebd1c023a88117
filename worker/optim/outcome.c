/* SPDX-License-Identifier: Apache-2.0 */
/* outcome.c - computes loss, norm and commands from a step's statistics. */
#include "worker/optim/outcome.h"

#include <math.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "worker/tensor/tree.h"

#define CLIP_EPS 1e-6 /* as in PyTorch's clip_grad_norm_ */

#define EXACT ((double)(INT64_C(1) << 53)) /* whole numbers are exact up to here */

/* Sums over the microbatches of each cp rank, then over the cp ranks in order. */
static double sum_parts(const struct step_statistics *r, const double *values)
{
    double sum = 0;

    for (int c = 0; c < r->cp; c++)
        sum += tree_sum(values + c * r->microbatches, r->microbatches);
    return sum;
}

/* Sums the squares block by block, for each expert's matrices: the same for any number of ranks. */
static double experts_norm(const struct layout *l, int unit, const double *sums)
{
    const struct model_unit *u = &l->model->units[unit];
    const int64_t block = l->units[unit].block;
    const int parts = layout_unit_parts(l, unit);
    double sum = 0;

    for (int t = u->first_tensor; t < u->first_tensor + u->n_tensors; t++) {
        const struct local_tensor *local = &l->tensors[t];
        const int64_t from = local->offset / block, n = local->rows * local->cols / block;
        const int64_t each = layout_expert_numel(l, t) / block;
        titan_assert(local->offset % block == 0 && n % each == 0);
        for (int part = 0; part < parts; part++)
            for (int64_t i = from; i < from + n; i += each)
                sum += tree_sum(sums + part * layout_unit_blocks(l, unit) + i, each);
    }
    return sum;
}

/* Sums of the squares of each unit's gradient. */
static void unit_norms(const struct step_statistics *r, const struct layout *l, const double *sums, double *ret)
{
    for (int u = 0; u < r->units; u++) {
        ret[u] = 0;
        if (!r->canonical) {
            ret[u] = sums[0];
        } else if (l->model->units[u].kind == UNIT_EXPERTS) {
            ret[u] = experts_norm(l, u, sums);
        } else {
            const int64_t n = layout_unit_blocks(l, u);
            for (int part = 0; part < layout_unit_parts(l, u); part++)
                ret[u] += tree_sum(sums + part * n, n);
        }
        sums += statistics_norms(r, l, u);
        /* Replicas have gradients of their own: those of the tokens of all, and so the root of their mean square. */
        ret[u] *= l->kinds.each ? mesh_group_size(&l->mesh, GROUP_REPLICATE) : 1;
    }
}

/* Replaces every NaN by one NaN: its sign has no meaning and would look odd in reports. */
static double one_nan(double value)
{
    return isnan(value) ? (double)NAN : value;
}

/* The largest mean loss of any reader. NaN if any of the losses is NaN, or if there are none. */
static double read_max_loss(const struct step_statistics *r, const struct mesh *mesh, const double *statistics)
{
    const int readers = mesh_batch_size(mesh);
    double most = (double)NAN;

    for (int i = 0; i < readers * r->cp; i++) {
        const int64_t first = i / readers * r->microbatches;
        double loss = 0, tokens = 0;
        int64_t from, to;
        tree_share(r->microbatches, readers, i % readers, &from, &to);
        for (int64_t m = first + from; m < first + to; m++) {
            loss += statistics[r->losses + m];
            tokens += statistics[r->counts + m];
        }
        if (tokens > 0 && isnan(loss))
            return (double)NAN;
        if (tokens > 0)
            most = fmax(most, loss / tokens);
    }
    return most;
}

static struct step_split read_split(const struct step_statistics *r, const double *statistics)
{
    struct step_split s = {.slowest = -1, .slowest_busy = -1};
    double busy = 0, arrived = 0;

    titan_assert(r->world >= 1 && r->values < r->masters);
    for (int rank = 0; rank < r->world; rank++) {
        const double *const v = statistics + r->values + rank * STATISTICS_VALUES;
        const double mine = v[STATISTICS_ARRIVED] - v[STATISTICS_WAITED];
        s.data += v[STATISTICS_DATA] / r->world;
        s.checkpoint += v[STATISTICS_CHECKPOINT] / r->world;
        busy += mine / r->world;
        arrived = MAX(arrived, v[STATISTICS_ARRIVED]);
        if (mine > s.slowest_busy) {
            s.slowest = rank;
            s.slowest_busy = mine;
        }
    }
    if (!isfinite(busy) || !(arrived > 0))
        return step_split_none();
    s.compute = MAX(busy - s.data - s.checkpoint, 0);
    s.communication = MAX(arrived - s.slowest_busy, 0);
    s.stragglers = MAX(s.slowest_busy - busy, 0);
    return s;
}

unsigned outcome_commands(const struct step_statistics *r, const double *statistics)
{
    unsigned commands = 0;

    for (int b = 0; b < STATISTICS_COMMANDS; b++)
        commands |= statistics[r->commands + b] != 0 ? 1u << b : 0;
    return commands;
}

titan_status outcome_read(const struct program *program, const struct layout *layout, const double *statistics,
                          struct step_outcome *ret, struct titan_error *err)
{
    const struct step_statistics *r = &program->statistics;
    struct step_outcome out = {.bad_unit = -1};

    out.tokens = sum_parts(r, statistics + r->counts);
    if (!(out.tokens >= 0 && out.tokens <= EXACT))
        return titan_fail(err, TITAN_ECONFLICT, "step: the ranks have counted %g tokens", out.tokens);
    out.loss = one_nan(sum_parts(r, statistics + r->losses) / out.tokens);
    out.loss_max = read_max_loss(r, &layout->mesh, statistics);
    out.split = read_split(r, statistics);
    out.commands = outcome_commands(r, statistics);

    double memory = 0; /* the most of any rank; impossible numbers of bytes count as unknown */
    for (int rank = 0; rank < r->world; rank++) {
        const double *const v = statistics + r->values + rank * STATISTICS_VALUES;
        if (v[STATISTICS_MEMORY] > memory && v[STATISTICS_MEMORY] <= EXACT)
            memory = v[STATISTICS_MEMORY];
        out.further_rounds += v[STATISTICS_ROUNDS];
        if (program->rows_even > 0)
            out.room_needed = fmax(out.room_needed, v[STATISTICS_ROWS] / (double)program->rows_even);
    }
    out.memory_bytes = (uint64_t)memory;

    for (int64_t i = r->expert_tokens; i < r->scales; i++) {
        out.expert_tokens_min = i == r->expert_tokens ? statistics[i] : fmin(out.expert_tokens_min, statistics[i]);
        out.expert_tokens_max = fmax(out.expert_tokens_max, statistics[i]);
        out.expert_tokens_mean += statistics[i];
    }
    if (r->scales > r->expert_tokens)
        out.expert_tokens_mean /= (double)(r->scales - r->expert_tokens);
    for (int64_t i = r->drops; i < r->expert_tokens; i++)
        out.dropped += statistics[i];
    const int64_t mixtures = r->expert_tokens - r->drops; /* layers with experts */
    if (r->drops != r->balance && mixtures > 0)
        out.balance_loss =
            one_nan(tree_sum(statistics + r->balance, r->microbatches) / ((double)mixtures * out.tokens));
    /* The mean over modules of the loss per token. All modules' losses are divided by the tokens of the main loss,
     * though fewer tokens count for a module. */
    if (r->balance != r->mtp && !program->forward_only)
        out.mtp_loss =
            one_nan(sum_parts(r, statistics + r->mtp) / ((double)program->layout->model->dims.mtp_layers * out.tokens));

    _cleanup_free_ double *units = calloc((size_t)r->units, sizeof *units);
    if (!units)
        return titan_fail(err, TITAN_ENOMEM, "step: out of memory");
    unit_norms(r, layout, statistics + r->norms, units);
    for (int u = 0; u < r->units; u++)
        if (!isfinite(units[u])) /* the highest unit stays: backward reaches it first */
            out.bad_unit = u;
    out.grad_norm = one_nan(sqrt(tree_sum(units, r->units)) / out.tokens);
    /* The unit that made the loss not finite: the unit before the first one with a bad input, or the head. */
    if (!isfinite(out.loss)) {
        int u = 1;
        while (u < r->units && isfinite(statistics[r->checks + u]))
            u++;
        out.bad_unit = u - 1;
    }
    out.finite = isfinite(out.loss) && isfinite(out.grad_norm);
    *ret = out;
    return TITAN_OK;
}

void outcome_add_sums(const struct model *model, const double *sums, struct step_outcome *outcome)
{
    titan_assert(outcome->finite);
    for (int u = 0; u < model->n_units; u++)
        for (int t = 0; t < model->units[u].n_tensors; t++)
            if (!isfinite(sums[model->units[u].first_tensor + t])) {
                outcome->finite = false;
                outcome->bad_unit = u; /* the highest, as of gradients */
            }
}

void outcome_unit_norms(const struct program *program, const struct layout *layout, const double *statistics,
                        double *ret_gradients, double *ret_masters)
{
    const struct step_statistics *r = &program->statistics;
    const double tokens = sum_parts(r, statistics + r->counts);

    unit_norms(r, layout, statistics + r->norms, ret_gradients);
    for (int u = 0; u < r->units; u++) {
        ret_gradients[u] = one_nan(sqrt(ret_gradients[u]) / tokens);
        ret_masters[u] = sqrt(statistics[r->masters + u]);
    }
}

double optim_clip_factor(double grad_norm, double max_norm)
{
    if (max_norm <= 0)
        return 1;
    return MIN(1.0, max_norm / (grad_norm + CLIP_EPS));
}

void outcome_add(const struct step_statistics *r, const double *statistics, struct evaluation_sums *to)
{
    for (int64_t i = 0; i < r->microbatches; i++)
        for (int c = 0; c < r->cp; c++) {
            to->loss += statistics[r->losses + c * r->microbatches + i];
            to->tokens += statistics[r->counts + c * r->microbatches + i];
        }
}
