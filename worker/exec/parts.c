/* SPDX-License-Identifier: Apache-2.0 */
/* parts.c - directions of parts that replicas send each other: each has a gradient and a residual of its own. */
#include "base/cleanup.h"
#include "worker/exec/executor.h"

/* Finds the unit of an operand that is a unit's state, and its residual (the unit's range, fp32) there. */
static float *residual_of(const struct call *c, int operand, const void *state, int *ret_unit)
{
    const struct exec *const e = c->e;
    const struct layout *const l = e->p->layout;
    const int unit = e->p->buffers[c->o[operand].buffer].unit;
    const struct update_args *const a = &e->update->args[PARAMS_MATRICES];
    const struct state_types types = {.master = a->master, .moment = a->moment};

    titan_assert(unit >= 0 && layout_replicas_differ(l) && a->moment == DTYPE_F32);
    *ret_unit = unit;
    return (float *)(uintptr_t)((const char *)state +
                                state_types_bytes(types, l->units[unit].shard, layout_each_begin(l, unit)));
}

/* What a unit's range sends in this step. Ranges of replicas, and tensors that tp ranks hold alike, have the same
 * places. */
static struct parts_shape shape_of(const struct call *c, int unit, enum parts_method method, int kept, enum dtype dt)
{
    const struct exec *const e = c->e;
    const struct update *const update = e->update;
    struct parts_shape z = {.method = method,
                            .kept = kept,
                            .dt = dt,
                            .first = layout_begin(e->p->layout, unit, e->opt.rank) / PARTS_CHUNK,
                            .word = update->parts.number};
    uint32_t words[4];

    if (method == PARTS_RANDOM) {
        rng_philox(rng_key(update->seed, "parts"), update->parts.number, (uint64_t)unit, words);
        z.word = (uint64_t)words[0] << 32 | words[1];
    }
    return z;
}

titan_status exec_parts_extract(const struct call *c, double *sums, void *sent, float *gradient, const void *state)
{
    const struct exec *const e = c->e;
    const struct op_parts_extract *const q = &c->p->parts_extract;
    int unit;

    if (!e->update) /* the step is skipped, on every rank */
        return TITAN_OK;
    const float *const residual = residual_of(c, OPERAND_OF(parts_extract, state), state, &unit);
    const struct parts_shape z = shape_of(c, unit, (enum parts_method)q->method, (int)q->kept, (enum dtype)q->values);
    TRY(c->ops->parts_extract(
        c->s, ARGS(parts_extract, .x = gradient, .residual = residual, .sent = sent, .shape = z,
                   .scale = e->update->parts.scale * (float)mesh_group_size(&e->p->mesh, GROUP_REPLICATE),
                   .beta = e->update->parts.beta, .n = (size_t)q->n)));
    /* What is sent is finite if what stays is. */
    return exec_add_sum(c, sums + e->p->layout->model->units[unit].first_tensor, gradient, q->n, true);
}

titan_status exec_parts_combine(const struct call *c, float *gradient, void *state, const void *received)
{
    const struct exec *const e = c->e;
    const struct op_parts_combine *const q = &c->p->parts_combine;
    int unit;

    if (!e->update)
        return TITAN_OK;
    float *const residual = residual_of(c, OPERAND_OF(parts_combine, state), state, &unit);
    const struct parts_shape z = shape_of(c, unit, (enum parts_method)q->method, (int)q->kept, (enum dtype)q->values);
    const int ranks = mesh_group_size(&e->p->mesh, GROUP_REPLICATE);
    TRY(c->ops->copy(c->s, residual, gradient, (size_t)q->n * sizeof *gradient));
    return c->ops->parts_combine(c->s, ARGS(parts_combine, .out = gradient, .received = received, .shape = z,
                                            .ranks = ranks, .sign = e->update->parts.sign, .n = (size_t)q->n));
}
