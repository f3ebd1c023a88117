/* SPDX-License-Identifier: Apache-2.0 */
/* check_form.c - every action by itself: numbers in range, operands of the right number, access and size. */
#include <string.h>

#include "base/cleanup.h"
#include "worker/device/device.h"
#include "worker/plan/checker.h"
#include "worker/plan/fuse.h"

/* --- one action --------------------------------------------------------------------------------------------------- */

/* May an action of one unit use a buffer of another unit? A layer's router and its experts are two units. A tied head
 * and modules of multi-token prediction use the embedding's table. */
static bool unit_fits(const struct checker *c, const struct action *a, const struct buffer *b)
{
    const struct model *m = c->model;

    /* A bucket or an update has operands of several units: check_gradients() looks at each operand. */
    if (a->unit < 0 || b->unit == a->unit || op_is_collective((enum op)a->op) || a->op == OP_OPTIMISE)
        return true;
    if (m->units[a->unit].kind == UNIT_HEAD)
        return m->dims.tied_embeddings && b->unit == 0;
    const int layer = m->units[a->unit].layer;
    return m->units[a->unit].kind == UNIT_LAYER &&
           (b->unit == model_experts_unit(m, layer) || (b->unit == 0 && model_module(m, layer) > 0));
}

/* Buffers that belong to one unit, whatever action uses them. */
#define OF_UNIT                                                                                                        \
    (1U << BUF_SHARD | 1U << BUF_STATE | 1U << BUF_STATE_HOST | 1U << BUF_FULL | 1U << BUF_GRAD | 1U << BUF_GRAD_SHARD)
/* Buffers that only their unit's actions write. Other units may read them. */
#define OF_WRITER (1U << BUF_ACTIVATION | 1U << BUF_DACTIVATION | 1U << BUF_WORK)
/* Buffers that belong to one microbatch. */
#define OF_MICROBATCH (OF_WRITER | 1U << BUF_TOKENS)

/* Checks each of the two actions that a fused action stands for, because they may belong to two units. */
static titan_status check_owners(const struct checker *c, const struct action *fused)
{
    struct plain plain;

    fuse_undo(c->p, fused, &plain);
    if (plain.actions[0].action.unit < NONE || plain.actions[0].action.unit >= c->model->n_units)
        return REFUSE(c, "a part of it is of unit %d of %d", plain.actions[0].action.unit, c->model->n_units);
    for (int i = 0; i < plain.n; i++) {
        const struct action *const a = &plain.actions[i].action;
        for (int k = 0; k < a->n_operands; k++) {
            const struct operand *const o = &plain.actions[i].operands[k];
            const struct buffer *const b = &c->p->buffers[o->buffer];
            const unsigned kind = 1U << b->kind;
            const bool owned = kind & OF_UNIT || (kind & OF_WRITER && o->access & ACCESS_WRITE);
            if (owned && !unit_fits(c, a, b))
                return REFUSE(c, "operand %d (%s #%d) belongs to unit %d", k, buffer_kind_name(b->kind), o->buffer,
                              b->unit);
            if (kind & OF_MICROBATCH && a->microbatch >= 0 && b->microbatch >= 0 && b->microbatch != a->microbatch)
                return REFUSE(c, "operand %d (%s #%d) belongs to microbatch %d", k, buffer_kind_name(b->kind),
                              o->buffer, b->microbatch);
        }
    }
    return TITAN_OK;
}

static titan_status check_transfer(const struct checker *c, const struct action *a)
{
    const bool pipeline = a->op == OP_SEND || a->op == OP_RECV;

    if (!op_is_transfer((enum op)a->op))
        return a->channel < 0 ? TITAN_OK : REFUSE(c, "is no transfer but has a channel");
    if (op_is_agreement((enum op)a->op))
        return (a->channel == CHANNEL_WORLD) == (c->p->mesh.world > 1) ? TITAN_OK : REFUSE(c, "is not on WORLD");
    if (a->channel < 0 || a->channel >= CHANNEL_COUNT || (a->channel >= CHANNEL_FORWARD_NEXT) != pipeline)
        return REFUSE(c, "has no channel that fits (%d)", a->channel);
    if (!pipeline)
        return TITAN_OK;
    if (a->stream != (a->op == OP_SEND ? STREAM_SEND : STREAM_RECV) + a->channel - CHANNEL_FORWARD_NEXT)
        return REFUSE(c, "is on stream %s, not on its channel's", program_stream_name((enum stream_id)a->stream));
    const int pp = c->p->mesh.size[AXIS_PP];
    const bool next = a->channel == CHANNEL_FORWARD_NEXT || a->channel == CHANNEL_BACKWARD_NEXT;
    const int neighbour = (c->p->pp_rank + (next == (a->op == OP_SEND) ? 1 : pp - 1)) % pp;
    if (a->peer != neighbour)
        return REFUSE(c, "peer is pp rank %d, on %s it must be %d", a->peer, channel_name((enum channel)a->channel),
                      neighbour);
    return TITAN_OK;
}

static titan_status check_action(const struct checker *c, const struct action *a)
{
    const struct program *p = c->p;

    if (a->op >= OP_COUNT || a->stream >= STREAM_COUNT || a->phase >= PHASE_COUNT)
        return REFUSE(c, "unknown operation, stream or phase");
    if (a->params < 0 || a->params >= p->n_params || a->operand < 0 || a->n_operands < 0 ||
        a->n_operands > p->n_operands - a->operand || a->wait < 0 || a->n_waits < 0 ||
        a->n_waits > p->n_waits - a->wait)
        return REFUSE(c, "its numbers, operands or waits are none of the program's");
    if (a->unit < NONE || a->unit >= c->model->n_units || a->microbatch < NONE || a->microbatch >= p->share_max)
        return REFUSE(c, "there are %d units and %ld microbatches", c->model->n_units, (long)p->share_max);
    if (a->stage < NONE || a->stage >= p->layout->stages || (a->op == OP_RECV && a->stage == NONE))
        return REFUSE(c, "stage %d of %d", a->stage, p->layout->stages);
    const struct operand *o = action_operands(p, a);
    for (int k = 0; k < a->n_operands; k++) {
        if (o[k].buffer < 0 || o[k].buffer >= p->n_buffers)
            return REFUSE(c, "operand %d is buffer %d of %d", k, o[k].buffer, p->n_buffers);
        const struct buffer *const b = &p->buffers[o[k].buffer];
        if (o[k].access < ACCESS_READ || o[k].access > ACCESS_UPDATE)
            return REFUSE(c, "operand %d is neither read nor written", k);
        if (o[k].offset > b->bytes || o[k].bytes > b->bytes - o[k].offset)
            return REFUSE(c, "operand %d ends at byte %zu of %s #%d, which has %zu", k, o[k].offset + o[k].bytes,
                          buffer_kind_name(b->kind), o[k].buffer, b->bytes);
    }
    TRY(check_transfer(c, a));

    /* Operands must have the form that the table of operations (ops.def) gives. */
    const int members = a->channel < 0 ? 1 : mesh_group_size(&p->mesh, channel_group((enum channel)a->channel));
    struct operand_form forms[FORMS_MAX];
    const int takes = op_forms((enum op)a->op, action_params(p, a), members, a->n_operands, forms);
    if (a->n_operands == 0 || a->n_operands != takes)
        return REFUSE(c, "has %d operands, not the %d that it takes", a->n_operands, takes);
    for (int k = 0; k < takes; k++) {
        const struct operand_form *f = &forms[k];
        const struct buffer *b = &p->buffers[o[k].buffer];
        const size_t known = f->shape == FORM_STATISTICS ? (size_t)p->statistics.size * sizeof(double) : form_bytes(f);
        const size_t bytes = known == SIZE_MAX ? b->bytes : known;
        if (o[k].access != f->access)
            return REFUSE(c, "operand %s (%s #%d) has access %u, not %u", f->name, buffer_kind_name(b->kind),
                          o[k].buffer, o[k].access, f->access);
        if (o[k].bytes != bytes)
            return REFUSE(c, "operand %s (%s #%d) has %zu bytes, its numbers say %zu", f->name,
                          buffer_kind_name(b->kind), o[k].buffer, o[k].bytes, bytes);
    }
    /* The model says how many rows are loaded. */
    const int64_t loaded = batch_rows(c->model->dims.mtp_layers) * action_params(p, a)->load.N;
    if (a->op == OP_LOAD && o[0].bytes != (size_t)loaded * sizeof(int32_t))
        return REFUSE(c, "loads %zu bytes, not %ld numbers", o[0].bytes, (long)loaded);

    TRY(check_owners(c, a));
    for (int k = 0; k < a->n_waits; k++) {
        const int w = p->waits[a->wait + k];
        if (w < 0 || w >= c->index)
            return REFUSE(c, "waits for action %d, which does not come before it", w);
        if (p->actions[w].stream == a->stream || !p->actions[w].signal)
            return REFUSE(c, "waits for action %d, which does not signal to it", w);
    }
    return TITAN_OK;
}

titan_status check_form(struct checker *c)
{
    int stream[CHANNEL_COUNT][2]; /* a channel's operations keep their order only on one stream */

    memset(stream, 0xff, sizeof stream);
    for (c->index = 0; c->index < c->p->n_actions; c->index++)
        TRY(check_action(c, &c->p->actions[c->index]));
    for (c->index = 0; c->index < c->p->n_actions; c->index++) {
        const struct action *a = &c->p->actions[c->index];
        if (a->channel < 0)
            continue;
        int *s = &stream[a->channel][a->op == OP_RECV];
        if (*s == NONE)
            *s = a->stream;
        if (*s != a->stream)
            return REFUSE(c, "is on stream %s, others of channel %s on %s",
                          program_stream_name((enum stream_id)a->stream), channel_name((enum channel)a->channel),
                          program_stream_name((enum stream_id) * s));
    }
    c->index = NONE;
    return TITAN_OK;
}
