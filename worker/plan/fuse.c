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

/* The fused action has the second action's numbers, phase and unit. Its first part gets the unit of the buffer that
 * this part writes (operand 0). */
struct fusion {
    enum op fused, op[FUSE_ACTIONS];
    uint32_t no_gradient; /* OP_NO_GRADIENT, or 0 */
    int operands[FUSE_ACTIONS];
    int slot[FUSE_ACTIONS][FUSE_OPERANDS]; /* each operand's place among the fused action's operands */
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

/* --- one as two --------------------------------------------------------------------------------------------------- */

static void undo(const struct program *p, const struct fusion *f, const struct action *a, const struct operand *o,
                 const struct op_params *q, struct plain *ret)
{
    ret->n = FUSE_ACTIONS;
    ret->params[1] = *q;
    switch (f->fused) {
    case OP_ADD_RMSNORM:
        ret->params[0] = (struct op_params){.add = {.n = q->add_rmsnorm.N * q->add_rmsnorm.C}, .dt = q->dt};
        break;
    case OP_ADD_RMSNORM_DGRAD: {
        const int64_t n = q->add_rmsnorm_dgrad.N * q->add_rmsnorm_dgrad.C;
        ret->params[0] = (struct op_params){.copy = {.bytes = n * (int64_t)dtype_bytes((enum dtype)q->dt)}};
        ret->params[1].flags |= OP_ADD_TO;
        break;
    }
    default:
        titan_assert(f->fused == OP_LOSS);
        ret->params[0] = (struct op_params){.loss_stats = {.N = q->loss.N, .V = q->loss.V}, .dt = q->dt};
        ret->params[1].loss_finish.parts = 1;
        break;
    }
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
    const struct fusion *f = NULL;

    for (size_t i = 0; i < ARRAY_SIZE(fusions) && !f; i++)
        if (fusions[i].fused == a->op && fusions[i].no_gradient == (q->flags & OP_NO_GRADIENT))
            f = &fusions[i];
    if (f) {
        undo(p, f, a, action_operands(p, a), q, ret);
        return;
    }
    ret->n = 1;
    ret->actions[0] = (struct plain_action){.action = *a, .operands = action_operands(p, a), .params = q};
}

/* --- two as one --------------------------------------------------------------------------------------------------- */

/* Puts a fused action in place of the second action, if fuse_undo() then gives both back. */
static titan_status try_two(struct program *p, int first, int second, bool *ret_fused, struct titan_error *err)
{
    const struct action *const two[FUSE_ACTIONS] = {&p->actions[first], &p->actions[second]};
    const struct op_params *q = action_params(p, two[1]);
    const struct fusion *f = NULL;
    struct operand_form forms[FORMS_MAX];
    struct operand operands[SLOTS];
    bool given[SLOTS] = {false};
    struct plain plain;
    int n = 0;

    *ret_fused = false;
    for (size_t i = 0; i < ARRAY_SIZE(fusions) && !f; i++)
        if (fusions[i].op[0] == two[0]->op && fusions[i].op[1] == two[1]->op &&
            fusions[i].no_gradient == (q->flags & OP_NO_GRADIENT))
            f = &fusions[i];
    if (!f || two[0]->n_operands != f->operands[0] || two[1]->n_operands != f->operands[1])
        return TITAN_OK;

    /* The fused action has an operand of both actions only once. */
    for (int i = 0; i < FUSE_ACTIONS; i++)
        for (int k = 0; k < f->operands[i]; k++) {
            const int slot = f->slot[i][k];
            titan_assert(slot >= 0 && slot < SLOTS);
            operands[slot] = action_operands(p, two[i])[k];
            n += !given[slot];
            given[slot] = true;
        }
    const int takes = op_forms(f->fused, q, 1, n, forms);
    titan_assert(takes == n && n <= SLOTS);
    for (int k = 0; k < n; k++)
        operands[k].access = forms[k].access;

    struct action fused = *two[1];
    fused.op = (uint16_t)f->fused;
    undo(p, f, &fused, operands, q, &plain);
    for (int i = 0; i < FUSE_ACTIONS; i++) { /* does undoing give back two actions with the same fields? */
        const struct plain_action *const x = &plain.actions[i];
        const struct action *const a = &x->action, *const b = two[i];
        if (a->op != b->op || a->stream != b->stream || a->phase != b->phase || a->channel != b->channel ||
            a->peer != b->peer || a->unit != b->unit || a->stage != b->stage || a->microbatch != b->microbatch ||
            a->n_operands != b->n_operands || !op_params_same((enum op)b->op, x->params, action_params(p, b)))
            return TITAN_OK;
        for (int k = 0; k < a->n_operands; k++) {
            const struct operand *const o = &x->operands[k], *const of = &action_operands(p, b)[k];
            if (o->buffer != of->buffer || o->access != of->access || o->offset != of->offset || o->bytes != of->bytes)
                return TITAN_OK;
        }
    }
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

/* The next action of the compute stream before action n, if action i can be delayed until there; otherwise NONE. */
static int neighbour(const struct program *p, int i, int n)
{
    for (int j = i + 1; j < n; j++) {
        const struct action *a = &p->actions[j];
        if (a->stream == STREAM_COMPUTE && a->op != OP_RELEASE)
            return j;
        for (int k = 0; k < a->n_operands; k++)
            for (int l = 0; l < p->actions[i].n_operands; l++)
                if (action_operands(p, a)[k].buffer == action_operands(p, &p->actions[i])[l].buffer)
                    return NONE;
    }
    return NONE;
}

titan_status pass_fuse(struct program *p, const struct pass_options *options, struct titan_error *err)
{
    const int n = p->n_actions;
    const bool fitted = pass_fits(p, options);
    _cleanup_free_ struct action *before = malloc(((size_t)n + 1) * sizeof *before);

    if (!before)
        return titan_fail(err, TITAN_ENOMEM, "pass: out of memory");
    memcpy(before, p->actions, (size_t)n * sizeof *before);
    p->n_actions = 0;
    for (int i = 0; i < n; i++) {
        bool first = false, fused = false;
        for (size_t k = 0; k < ARRAY_SIZE(fusions); k++)
            first = first || (fusions[k].op[0] == p->actions[i].op && p->actions[i].stream == STREAM_COMPUTE);
        const int next = first ? neighbour(p, i, n) : NONE;
        if (next != NONE)
            TRY(try_two(p, i, next, &fused, err));
        if (!fused)
            p->actions[p->n_actions++] = p->actions[i];
    }
    if (!fitted || pass_fits(p, options))
        return TITAN_OK;
    titan_assert(p->n_actions < n && n <= p->cap_actions);
    memcpy(p->actions, before, (size_t)n * sizeof *before);
    p->n_actions = n;
    return TITAN_OK;
}
