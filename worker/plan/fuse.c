/* SPDX-License-Identifier: Apache-2.0 */
/* fuse.c - fused operations over the array of actions. */
#include "worker/plan/fuse.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/vec.h"

#define NONE (-1)
#define SLOTS 6 /* operands of a fused operation */

/* --- which two make one ------------------------------------------------------------------------------------------- */

/* The fused action has the second one's numbers, phase and unit. The first one is of the unit of what it writes,
 * its operand 0. */
struct fusion {
    enum op fused, op[FUSE_ACTIONS];
    uint32_t no_gradient; /* OP_NO_GRADIENT, or 0 */
    int operands[FUSE_ACTIONS];
    int slot[FUSE_ACTIONS][FUSE_OPERANDS]; /* where each of theirs is among the fused one's */
};

#define NORM(name) OPERAND_OF(add_rmsnorm, name)
#define DGRAD(name) OPERAND_OF(add_rmsnorm_dgrad, name)
#define LOSS(name) OPERAND_OF(loss, name)

static const struct fusion fusions[] = {
    {.fused = OP_ADD_RMSNORM,
     .op = {OP_ADD, OP_RMSNORM},
     .operands = {3, 4},
     .slot = {{NORM(h), NORM(a), NORM(b)}, {NORM(out), NORM(rstd), NORM(h), NORM(gain)}}},
    {.fused = OP_ADD_RMSNORM_DGRAD,
     .op = {OP_COPY, OP_RMSNORM_DGRAD},
     .operands = {2, 5},
     .slot = {{DGRAD(dx), DGRAD(residual)}, {DGRAD(dx), DGRAD(dout), DGRAD(x), DGRAD(gain), DGRAD(rstd)}}},
    {.fused = OP_LOSS,
     .op = {OP_LOSS_STATS, OP_LOSS_FINISH},
     .operands = {3, 5},
     .slot = {{LOSS(stats), LOSS(logits), LOSS(targets)},
              {LOSS(losses), LOSS(dlogits), LOSS(logits), LOSS(targets), LOSS(stats)}}},
    {.fused = OP_LOSS,
     .op = {OP_LOSS_STATS, OP_LOSS_FINISH},
     .no_gradient = OP_NO_GRADIENT,
     .operands = {3, 4},
     .slot = {{LOSS(stats), LOSS(logits), LOSS(targets)}, {LOSS(losses), LOSS(logits), LOSS(targets), LOSS(stats)}}},
};

static const struct fusion *fusion_of(enum op fused, const struct op_params *params)
{
    for (size_t i = 0; i < ARRAY_SIZE(fusions); i++)
        if (fusions[i].fused == fused && fusions[i].no_gradient == (params->flags & OP_NO_GRADIENT))
            return &fusions[i];
    return NULL;
}

static const struct fusion *fusion_of_two(enum op first, enum op second, const struct op_params *params)
{
    for (size_t i = 0; i < ARRAY_SIZE(fusions); i++)
        if (fusions[i].op[0] == first && fusions[i].op[1] == second &&
            fusions[i].no_gradient == (params->flags & OP_NO_GRADIENT))
            return &fusions[i];
    return NULL;
}

/* --- one as two --------------------------------------------------------------------------------------------------- */

/* Numbers of the two from those of the fused one. */
static void undo_params(enum op fused, const struct op_params *q, struct op_params ret[FUSE_ACTIONS])
{
    const enum dtype dt = (enum dtype)q->dt;

    ret[1] = *q;
    switch (fused) {
    case OP_ADD_RMSNORM:
        ret[0] = (struct op_params){.add = {.n = q->add_rmsnorm.N * q->add_rmsnorm.C}, .dt = q->dt};
        break;
    case OP_ADD_RMSNORM_DGRAD: {
        const int64_t n = q->add_rmsnorm_dgrad.N * q->add_rmsnorm_dgrad.C;
        ret[0] = (struct op_params){.copy = {.bytes = n * (int64_t)dtype_bytes(dt)}};
        ret[1].flags |= OP_ADD_TO;
        break;
    }
    default:
        titan_assert(fused == OP_LOSS);
        ret[0] = (struct op_params){.loss_stats = {.N = q->loss.N, .V = q->loss.V}, .dt = q->dt};
        ret[1].loss_finish.parts = 1;
        break;
    }
}

static void undo(const struct program *p, const struct fusion *f, const struct action *a, const struct operand *o,
                 const struct op_params *q, struct plain *ret)
{
    ret->n = FUSE_ACTIONS;
    undo_params(f->fused, q, ret->params);
    for (int i = 0; i < FUSE_ACTIONS; i++) {
        struct operand_form forms[FORMS_MAX];
        const int takes = op_forms(f->op[i], &ret->params[i], 1, f->operands[i], forms);
        titan_assert(takes > 0 && takes == f->operands[i] && takes <= FUSE_OPERANDS);
        for (int k = 0; k < takes; k++) {
            ret->operands[i][k] = o[f->slot[i][k]];
            ret->operands[i][k].access = forms[k].access;
        }
        ret->actions[i] = (struct plain_action){.action = *a, .operands = ret->operands[i], .params = &ret->params[i]};
        ret->actions[i].action.op = (uint16_t)f->op[i];
        ret->actions[i].action.n_operands = takes;
    }
    ret->actions[0].action.unit = p->buffers[ret->operands[0][0].buffer].unit;
}

void fuse_undo(const struct program *p, const struct action *a, struct plain *ret)
{
    const struct op_params *q = action_params(p, a);
    const struct fusion *f = fusion_of((enum op)a->op, q);

    if (f) {
        undo(p, f, a, action_operands(p, a), q, ret);
        return;
    }
    ret->n = 1;
    ret->actions[0] = (struct plain_action){.action = *a, .operands = action_operands(p, a), .params = q};
}

/* --- two as one --------------------------------------------------------------------------------------------------- */

static bool same_operand(const struct operand *a, const struct operand *b)
{
    return a->buffer == b->buffer && a->access == b->access && a->offset == b->offset && a->bytes == b->bytes;
}

/* Is the plain action the one at hand, in all that is said of it? */
static bool same_action(const struct program *p, const struct plain_action *x, const struct action *b)
{
    const struct action *a = &x->action;

    if (a->op != b->op || a->stream != b->stream || a->phase != b->phase || a->channel != b->channel ||
        a->peer != b->peer || a->unit != b->unit || a->stage != b->stage || a->microbatch != b->microbatch ||
        a->n_operands != b->n_operands || !op_params_same((enum op)b->op, x->params, action_params(p, b)))
        return false;
    for (int k = 0; k < a->n_operands; k++)
        if (!same_operand(&x->operands[k], &action_operands(p, b)[k]))
            return false;
    return true;
}

/* The fused one's operands; 0: the two do not share what it has once. */
static int join_operands(const struct program *p, const struct fusion *f, const struct action *const two[FUSE_ACTIONS],
                         struct operand ret[SLOTS])
{
    struct operand_form forms[FORMS_MAX];
    bool given[SLOTS] = {false};
    int n = 0;

    for (int i = 0; i < FUSE_ACTIONS; i++) {
        if (two[i]->n_operands != f->operands[i])
            return 0;
        for (int k = 0; k < f->operands[i]; k++) {
            const int slot = f->slot[i][k];
            titan_assert(slot >= 0 && slot < SLOTS);
            ret[slot] = action_operands(p, two[i])[k];
            n += !given[slot];
            given[slot] = true;
        }
    }
    const int takes = op_forms(f->fused, action_params(p, two[1]), 1, n, forms);
    titan_assert(takes == n && n <= SLOTS);
    for (int k = 0; k < n; k++)
        ret[k].access = forms[k].access;
    return n;
}

/* Put the fused action in place of the second one, if there is one that undoes to both. */
static titan_status try_two(struct program *p, int first, int second, bool *ret_fused, struct titan_error *err)
{
    const struct action *const two[FUSE_ACTIONS] = {&p->actions[first], &p->actions[second]};
    const struct op_params *q = action_params(p, two[1]);
    const struct fusion *f = fusion_of_two((enum op)two[0]->op, (enum op)two[1]->op, q);
    struct operand operands[SLOTS];
    struct plain plain;

    *ret_fused = false;
    const int n = f ? join_operands(p, f, two, operands) : 0;
    if (n == 0)
        return TITAN_OK;
    struct action fused = *two[1];
    fused.op = (uint16_t)f->fused;
    undo(p, f, &fused, operands, q, &plain);
    for (int i = 0; i < FUSE_ACTIONS; i++)
        if (!same_action(p, &plain.actions[i], two[i]))
            return TITAN_OK;
    if (!VEC_RESERVE(p->operands, p->cap_operands, p->n_operands + n))
        return titan_fail(err, TITAN_ENOMEM, "pass: out of memory");
    fused.operand = p->n_operands;
    fused.n_operands = n;
    memcpy(p->operands + p->n_operands, operands, (size_t)n * sizeof *operands);
    p->n_operands += n;
    p->actions[second] = fused;
    *ret_fused = true;
    return TITAN_OK;
}

static bool shares_buffer(const struct program *p, const struct action *a, const struct action *b)
{
    for (int i = 0; i < a->n_operands; i++)
        for (int k = 0; k < b->n_operands; k++)
            if (action_operands(p, a)[i].buffer == action_operands(p, b)[k].buffer)
                return true;
    return false;
}

static bool is_first(const struct action *a)
{
    for (size_t i = 0; i < ARRAY_SIZE(fusions); i++)
        if (fusions[i].op[0] == a->op)
            return a->stream == STREAM_COMPUTE;
    return false;
}

/* What is computed next, if the action could as well wait for it; NONE otherwise. */
static int neighbour(const struct program *p, int i)
{
    for (int j = i + 1; j < p->n_actions; j++) {
        const struct action *a = &p->actions[j];
        if (a->stream == STREAM_COMPUTE && a->op != OP_RELEASE)
            return j;
        if (shares_buffer(p, &p->actions[i], a))
            return NONE;
    }
    return NONE;
}

static titan_status fuse(struct program *p, struct titan_error *err)
{
    int n = 0;

    for (int i = 0; i < p->n_actions; i++) {
        const int next = is_first(&p->actions[i]) ? neighbour(p, i) : NONE;
        bool fused = false;
        if (next != NONE)
            TRY(try_two(p, i, next, &fused, err));
        if (!fused)
            p->actions[n++] = p->actions[i];
    }
    titan_assert(n <= p->n_actions);
    p->n_actions = n;
    return TITAN_OK;
}

titan_status pass_fuse(struct program *p, const struct pass_options *options, struct titan_error *err)
{
    const int n = p->n_actions;
    const bool fitted = pass_fits(p, options);
    _cleanup_free_ struct action *before = malloc(((size_t)n + 1) * sizeof *before);

    if (!before)
        return titan_fail(err, TITAN_ENOMEM, "pass: out of memory");
    memcpy(before, p->actions, (size_t)n * sizeof *before);
    TRY(fuse(p, err));
    if (!fitted || pass_fits(p, options))
        return TITAN_OK;
    titan_assert(p->n_actions < n && n <= p->cap_actions);
    memcpy(p->actions, before, (size_t)n * sizeof *before);
    p->n_actions = n;
    return TITAN_OK;
}
