/* SPDX-License-Identifier: Apache-2.0 */
/* update.c - the optimizers' arithmetic: arguments from the recipe, and few calls of the device. */
#include "worker/optim/update.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"

/* --- arguments ---------------------------------------------------------------------------------------------------- */

static struct update_args group_args(const struct recipe *r, int group, const struct update_step *step)
{
    const struct optimizer *o = group == PARAMS_REST ? optimizer_of_rest(r) : optimizer_of_matrices(r);
    const struct state_types types = state_types_of_recipe(r, DTYPE_F32);
    const double decay = group == PARAMS_REST && r->optimizer.rest_weight_decay >= 0 ? r->optimizer.rest_weight_decay
                                                                                     : r->optimizer.weight_decay;
    const double peak = group == PARAMS_REST && r->optimizer.rest_lr >= 0 ? r->optimizer.rest_lr : r->optimizer.lr;
    struct update_args a = {
        .rule = o->rule,
        .lr = (float)(peak * step->rate),
        .beta1 = (float)r->optimizer.beta1,
        .beta2 = (float)r->optimizer.beta2,
        .eps = (float)r->optimizer.eps,
        .weight_decay = (float)decay,
        .grad_scale = (float)(step->clip / step->tokens),
        .bias1 = (float)(1 - pow(r->optimizer.beta1, (double)step->number)),
        .bias2 = (float)(1 - pow(r->optimizer.beta2, (double)step->number)),
        .l2 = o->l2,
        .master = types.master,
        .moment = types.moment,
        .mean = (float)(1 / step->tokens),
        .clip = (float)step->clip,
        .rounding = {.random = types.moment == DTYPE_BF16 && strcmp(r->optimizer.state_rounding, "stochastic") == 0,
                     .step = step->number}};

    if (o->numbers)
        o->numbers(r, step->number, a.own);
    if (o->rule == RULE_DIRECTION && whole_decays(r))
        a.weight_decay = 0;
    return a;
}

struct parts_shape parts_of_recipe(const struct recipe *recipe)
{
    static const char *const names[] = {"demo", "random", "striding", "full"};
    struct parts_shape z = {.method = PARTS_DCT, .kept = (int)recipe->parallelism.replicate_values, .dt = DTYPE_F32};

    for (int i = 0; i < (int)ARRAY_SIZE(names); i++)
        if (strcmp(recipe->parallelism.replicate_method, names[i]) == 0)
            z.method = (enum parts_method)i;
    if (z.method == PARTS_ALL)
        z.kept = PARTS_CHUNK;
    if (strcmp(recipe->parallelism.replicate_dtype, "bfloat16") == 0)
        z.dt = DTYPE_BF16;
    return z;
}

struct update update_of_recipe(const struct recipe *recipe, const struct update_step *step)
{
    const struct optimizer *const of[] = {optimizer_of_matrices(recipe), optimizer_of_rest(recipe)};
    const struct state_kinds kinds = optimizer_kinds(recipe);
    struct update u = {.seed = (uint64_t)recipe->training.seed};

    titan_assert(step->number >= 1 && step->rate >= 0);
    for (int g = 0; g < PARAMS_GROUPS; g++) {
        u.args[g] = group_args(recipe, g, step);
        for (int i = 0; i < UPDATE_STATES; i++) {
            u.kind[g][i] = -1;
            const int state = of[g]->owned + i; /* of the row; the owners' states come before */
            for (int k = 0; k < kinds.n && state < optimizer_states(of[g], recipe); k++)
                if (!(kinds.owned >> k & 1) && strcmp(kinds.name[k], of[g]->states[state]) == 0)
                    u.kind[g][i] = k;
        }
    }
    for (int g = 0; g < PARAMS_GROUPS; g++)
        u.threshold[g] = of[g]->sums ? (float)recipe->optimizer.stable_adamw.threshold : 0;
    const struct state_types types = state_types_of_recipe(recipe, DTYPE_F32);
    u.whole = (struct whole_step){.recipe = recipe,
                                  .number = step->number,
                                  .grad_scale = (float)(step->clip / step->tokens),
                                  .lr = u.args[PARAMS_MATRICES].lr,
                                  .moment = types.moment};
    u.parts.scale = (float)(step->clip / step->tokens);
    u.parts.beta = (float)recipe->parallelism.replicate_beta;
    u.parts.sign = recipe->parallelism.replicate_sign;
    u.parts.number = step->number;
    for (int g = 0; g < PARAMS_GROUPS && kinds.each; g++) /* directions are as they are */
        u.args[g].grad_scale = u.args[g].mean = u.args[g].clip = 1;
    u.alike = !kinds.each && of[0] == of[1] && u.args[0].lr == u.args[1].lr &&
              u.args[0].weight_decay == u.args[1].weight_decay;
    return u;
}

/* --- ranges ------------------------------------------------------------------------------------------------------- */

#define TOGETHER 64 /* pieces in one call of the device */

/* Pieces of a group that are not enqueued yet. */
struct gathered {
    const struct update_args *args;
    const struct device_ops *ops;
    struct stream *s;
    int n;
    struct update_piece pieces[TOGETHER];
};

static titan_status enqueue(struct gathered *g)
{
    const int n = g->n;

    g->n = 0;
    return n == 0 ? TITAN_OK : g->ops->update(g->s, g->pieces, n, g->args);
}

static titan_status gather(struct gathered *g, const struct update_piece *piece)
{
    if (g->n == TOGETHER)
        TRY(enqueue(g));
    g->pieces[g->n++] = *piece;
    return TITAN_OK;
}

/* The whole range of a unit as one piece: all tensors have all kinds of state. */
static struct update_piece whole_piece(const struct update *u, const struct update_range *r, uint16_t *shadow)
{
    const struct update_args *const a = &u->args[0];
    char *const kinds = (char *)r->values + (size_t)r->n * dtype_bytes(a->master);
    struct update_piece piece = {
        .master = r->values, .grad = r->grad, .shadow = shadow, .n = (size_t)r->n, .rounding = a->rounding};

    for (int i = 0; i < UPDATE_STATES; i++)
        if (u->kind[0][i] >= 0)
            piece.state[i] = kinds + moment_bytes(a->moment, u->kind[0][i] * r->n);
    return piece;
}

/* Gathers a range's part of one parameter. Each parameter has its own random numbers, the same for any cut of the
 * parameter. Elements between parameters stay unchanged. Parameters that share a block of codes are gathered with the
 * first of them. */
static titan_status gather_tensor(struct gathered *gathered, const struct update *u, int tensor,
                                  const struct update_range *r, uint16_t *shadow)
{
    const struct layout *const l = r->layout;
    const struct model_tensor *const t = &l->model->tensors[tensor];
    const struct local_tensor *const local = &l->tensors[tensor];
    const int group = model_is_layer_matrix(l->model, tensor) ? PARAMS_MATRICES : PARAMS_REST;
    const struct update_args *const a = &u->args[group];
    const int64_t begin = layout_begin(l, r->unit, r->rank), end = begin + r->n;
    const int64_t stop = l->coded ? layout_blocks_end(l, tensor) : local->offset + local->rows * local->cols;
    const int64_t from = MAX(begin, local->offset), to = MIN(end, stop);
    const size_t master = dtype_bytes(a->master);
    char *const values = r->values, *state[UPDATE_STATES] = {0};

    if (from >= to)
        return TITAN_OK;
    for (int i = 0; i < UPDATE_STATES && u->kind[group][i] >= 0; i++) {
        int64_t place = layout_place(l, tensor, r->rank, u->kind[group][i]);
        for (int k = 0; k < u->kind[group][i]; k++)
            place += l->units[r->unit].span[k];
        state[i] = values + (size_t)r->n * master + moment_bytes(a->moment, place);
    }
    const float excess =
        u->sums && u->threshold[group] > 0 ? (float)sqrt(u->sums[tensor] / (double)t->numel) / u->threshold[group] : 0;
    struct moment_rounding rounding = a->rounding;
    const int64_t width = t->ndim > 1 ? t->shape[1] : t->numel;
    const int64_t stretch = a->rounding.random ? layout_stretch(l, tensor) * local->cols : to - local->offset;
    char name[sizeof t->name + 16];
    (void)snprintf(name, sizeof name, "rounding.%s", t->name);
    if (rounding.random)
        rounding.key = rng_key(u->seed, name);
    rounding.cols = local->cols;
    rounding.ld = width;
    for (int64_t at = from, next; at < to; at = next) {
        const int64_t first = (at - local->offset) / stretch * stretch;
        int64_t row = 0, col = 0;
        next = MIN(to, local->offset + first + stretch);
        if (rounding.random)
            layout_origin(l, tensor, r->rank, first / local->cols, &row, &col);
        rounding.first = at - local->offset - first;
        rounding.origin = row * width + col;
        struct update_piece piece = {.excess = excess,
                                     .master = values + (size_t)(at - begin) * master,
                                     .grad = r->grad + (at - begin),
                                     .shadow = shadow ? shadow + (at - begin) : NULL,
                                     .n = (size_t)(next - at),
                                     .rounding = rounding};
        for (int i = 0; i < UPDATE_STATES; i++)
            piece.state[i] = state[i] ? state[i] + moment_bytes(a->moment, at - from) : NULL;
        TRY(gather(&gathered[group], &piece));
    }
    return TITAN_OK;
}

/* Makes the shard from the masters, if it is neither the masters themselves nor written with them. */
static titan_status make_shard(const struct update_range *range, enum dtype master, const struct device_ops *ops,
                               enum dtype dt, struct stream *s)
{
    if (!range->shard || range->shard == range->values)
        return TITAN_OK;
    if (dt != master)
        return ops->cast(s, range->shard, dt, range->values, master, (size_t)range->n);
    return ops->copy(s, range->shard, range->values, (size_t)range->n * dtype_bytes(dt));
}

titan_status update_sums(const struct update *update, const struct update_range *range, double *sums,
                         const struct device_ops *ops, struct stream *s)
{
    const struct layout *const l = range->layout;
    const struct model_unit *const unit = &l->model->units[range->unit];
    const int64_t begin = layout_begin(l, range->unit, range->rank), end = begin + range->n;
    const bool first = mesh_group_rank(&l->mesh, GROUP_REPLICATE, range->rank) == 0;
    const bool whole = layout_unit_part(l, range->unit, range->rank) == 0;

    for (int t = unit->first_tensor; t < unit->first_tensor + unit->n_tensors; t++) {
        const int group = model_is_layer_matrix(l->model, t) ? PARAMS_MATRICES : PARAMS_REST;
        const struct update_args *const a = &update->args[group];
        const struct local_tensor *const local = &l->tensors[t];
        const int64_t from = MAX(begin, local->offset), to = MIN(end, local->offset + local->rows * local->cols);
        const bool counts = first && (whole || l->model->tensors[t].split != SPLIT_NONE);
        if (update->threshold[group] == 0 || !counts || from >= to)
            continue;
        int64_t place = layout_place(l, t, range->rank, update->kind[group][1]);
        for (int k = 0; k < update->kind[group][1]; k++)
            place += l->units[range->unit].span[k];
        const char *const v =
            (char *)range->values + (size_t)range->n * dtype_bytes(a->master) + moment_bytes(a->moment, place);
        TRY(ops->update_sum(s, sums + t, v, range->grad + (from - begin), (size_t)(to - from), a));
    }
    return TITAN_OK;
}

titan_status update_apply(const struct update *update, const struct update_range *ranges, int count,
                          const struct device_ops *ops, enum dtype dt, struct stream *s)
{
    const struct update_args *const a = update->args;
    const bool shadows = dt == DTYPE_BF16 && a->master == DTYPE_F32;
    const bool whole = update->alike && !a->rounding.random && !update->sums;
    struct gathered gathered[PARAMS_GROUPS];

    titan_assert(dt == DTYPE_F32 || dt == DTYPE_BF16);
    for (int g = 0; g < PARAMS_GROUPS; g++) {
        gathered[g].args = &a[g];
        gathered[g].ops = ops;
        gathered[g].s = s;
        gathered[g].n = 0;
    }
    for (int i = 0; i < count; i++) {
        const struct update_range *const r = &ranges[i];
        uint16_t *const shadow = shadows ? r->shard : NULL;
        titan_assert(r->values && r->grad && r->n >= 0);
        titan_assert(r->layout || whole);
        if (whole) {
            const struct update_piece piece = whole_piece(update, r, shadow);
            TRY(gather(&gathered[0], &piece));
            continue;
        }
        const struct model_unit *const unit = &r->layout->model->units[r->unit];
        for (int t = unit->first_tensor; t < unit->first_tensor + unit->n_tensors; t++)
            TRY(gather_tensor(gathered, update, t, r, shadow));
    }
    for (int g = 0; g < PARAMS_GROUPS; g++)
        TRY(enqueue(&gathered[g]));
    for (int i = 0; i < count && !shadows; i++)
        TRY(make_shard(&ranges[i], a->master, ops, dt, s));
    return TITAN_OK;
}

/* --- what owners of matrices keep --------------------------------------------------------------------------------- */

titan_status update_keep_owned(const struct layout *layout, int rank, enum dtype moment, void *state, const float *next,
                               const struct device_ops *ops, struct stream *s)
{
    const size_t n = (size_t)layout_owned(layout, rank);
    char *to = state;

    if (moment == DTYPE_F32)
        return ops->copy(s, state, next, n * sizeof *next);
    if (moment == DTYPE_BF16)
        return ops->cast(s, state, moment, next, DTYPE_F32, n);
    for (int k = 0; k < layout->kinds.n; k++) {
        const int64_t span = layout_owned_span(layout, rank, k);
        TRY(ops->encode_moments(s, to, next, (size_t)span, layout->kinds.squares >> k & 1));
        to += moment_bytes(moment, span);
        next += span;
    }
    return TITAN_OK;
}

titan_status update_read_owned(const struct layout *layout, int rank, enum dtype moment, float *values,
                               const void *state, const struct device_ops *ops, struct stream *s)
{
    const char *from = state;

    titan_assert(moment == DTYPE_U8);
    for (int k = 0; k < layout->kinds.n; k++) {
        const int64_t span = layout_owned_span(layout, rank, k);
        TRY(ops->decode_moments(s, values, from, (size_t)span, layout->kinds.squares >> k & 1));
        from += moment_bytes(moment, span);
        values += span;
    }
    return TITAN_OK;
}
