/* SPDX-License-Identifier: Apache-2.0 */
/* rotated.c - a layer whose weights come round. */
#include "worker/model/rotated.h"

#include "base/cleanup.h"
#include "worker/model/parts.h"

#define NONE (-1)

/* Elements of the flat buffer that go round together: the matrices of a half layer, and gaps between them. */
struct half {
    int64_t from, to;
};

static struct half half_of(const struct block *k, const struct unit_buffers *u, enum tensor_role first,
                           enum tensor_role last)
{
    const struct local_tensor *const a = &k->layout->tensors[model_find(k->layout->model, u->unit, first)];
    const struct local_tensor *const b = &k->layout->tensors[model_find(k->layout->model, u->unit, last)];

    return (struct half){a->offset, b->offset + b->rows * b->cols};
}

static struct half attention_half(const struct block *k, const struct unit_buffers *u)
{
    return half_of(k, u, ROLE_WQ, ROLE_WO);
}

static struct half feed_forward_half(const struct block *k, const struct unit_buffers *u)
{
    return half_of(k, u, ROLE_W1, ROLE_W2);
}

static int turns(const struct block *k)
{
    return mesh_group_size(&k->layout->mesh, GROUP_ROTATE);
}

/* Returns the half as a vector of a buffer with values or gradients of the unit. */
static struct tensor range_of(const struct block *k, int buffer, struct half half, enum dtype dt)
{
    const int64_t begin = buffer >= 0 ? k->e->p->buffers[buffer].from : 0;
    return tensor_at(buffer, (size_t)(half.from - begin) * dtype_bytes(dt), dt, 1, half.to - half.from);
}

static int new_part(struct block *k, enum buffer_kind kind, const char *name, struct half half, enum dtype dt)
{
    const int buffer = emit_buffer(k->e, kind, name, (size_t)(half.to - half.from) * dtype_bytes(dt));

    if (buffer >= 0)
        k->e->p->buffers[buffer].from = half.from;
    return buffer;
}

/* --- weights ------------------------------------------------------------------------------------------------------ */

/* A half layer's weights on their way. */
struct ring {
    struct block *k;
    const struct unit_buffers *own;
    struct half half;
    int here, next; /* buffers of the current turn's part, and of the part that arrives meanwhile */
};

static int pass_on(const struct ring *r)
{
    const int next = new_part(r->k, BUF_FULL, "part of another rank", r->half, r->k->dt);

    emit_shift(r->k->e, CHANNEL_ROTATE, range_of(r->k, next, r->half, r->k->dt),
               range_of(r->k, r->here, r->half, r->k->dt), 1);
    return next;
}

static struct ring ring_of(struct block *k, const struct unit_buffers *u, struct half half)
{
    return (struct ring){.k = k, .own = u, .half = half, .here = u->params, .next = NONE};
}

/* Returns the buffers of turn i. Call it for 0, 1, ... in order, each behind the operations of the turn before. */
static struct unit_buffers turn(struct ring *r, int i)
{
    const bool in_place = r->k->rotate_in_place;
    struct unit_buffers at = *r->own;

    if (i > 1 && in_place)
        emit_rotate(r->k->e, CHANNEL_ROTATE, range_of(r->k, r->here, r->half, r->k->dt));
    else if (i > 0)
        r->here = in_place ? pass_on(r) : r->next;
    if (!in_place && i + 1 < turns(r->k))
        r->next = pass_on(r);
    at.params = r->here;
    return at;
}

/* y (+)= x w^T with OP_TB, otherwise y (+)= x w. Each turn after the first adds. */
static void add_product(struct block *k, const struct unit_buffers *at, int i, struct tensor y, struct tensor x,
                        enum tensor_role role, int count, uint32_t flags)
{
    block_product(k, y, x, block_param(k, at, role, count), flags | (i > 0 ? OP_ADD_TO : 0));
}

struct tensor rotated_forward(struct block *k, const struct unit_buffers *u, const struct block_tokens *tokens,
                              struct tensor x, struct tensor statistics, struct layer_saved *saved)
{
    const struct block_sizes z = block_sizes(k);
    struct tensor *const s = saved->t;

    for (int i = 0; i < SAVED_COUNT; i++)
        s[i] = TENSOR_NONE;
    s[SAVED_X] = x;
    s[SAVED_XN1] = block_norm(k, "xn1", x, block_param(k, u, ROLE_ATTENTION_NORM, 1), &s[SAVED_RSTD1]);
    if (tensor_exists(statistics))
        EMIT(k->e, check, statistics, s[SAVED_RSTD1]);

    /* h (N,C) = x + the sum of wo_i attn_i */
    const struct tensor out = block_new(k, BUF_ACTIVATION, "h", z.n, z.c);
    struct ring ring = ring_of(k, u, attention_half(k, u));
    for (int i = 0; i < turns(k); i++) {
        const struct unit_buffers at = turn(&ring, i);
        struct layer_saved *const part = &saved->parts[i];
        for (int t = 0; t < SAVED_COUNT; t++)
            part->t[t] = TENSOR_NONE;
        part->t[SAVED_XN1] = s[SAVED_XN1];
        attention_forward(k, &at, tokens, part);
        add_product(k, &at, i, out, part->t[SAVED_ATTN], ROLE_WO, 1, OP_TB);
    }
    s[SAVED_H] = block_half_end(k, u, ROLE_WO, out, s[SAVED_X], saved);

    /* y (N,C) = h + the sum of w2_i act_i */
    s[SAVED_XN2] = block_norm(k, "xn2", s[SAVED_H], block_param(k, u, ROLE_FFN_NORM, 1), &s[SAVED_RSTD2]);
    const struct tensor y = block_new(k, BUF_ACTIVATION, "y", z.n, z.c);
    ring = ring_of(k, u, feed_forward_half(k, u));
    for (int i = 0; i < turns(k); i++) {
        const struct unit_buffers at = turn(&ring, i);
        struct layer_saved *const part = &saved->parts[i];
        part->t[SAVED_XN2] = s[SAVED_XN2];
        block_feed_forward_in(k, &at, part);
        add_product(k, &at, i, y, part->t[SAVED_ACT], ROLE_W2, 1, OP_TB);
    }
    return block_half_end(k, u, ROLE_W2, y, s[SAVED_H], saved);
}

struct tensor rotated_dgrad(struct block *k, const struct unit_buffers *u, const struct block_tokens *tokens,
                            const struct layer_saved *saved, struct tensor dy, struct layer_back *back)
{
    const struct block_sizes z = block_sizes(k);
    const struct tensor *const s = saved->t;
    struct tensor *const g = back->t;

    for (int i = 0; i < BACK_COUNT; i++)
        g[i] = TENSOR_NONE;
    block_project_out_dgrad(k, u, ROLE_W2, dy, saved, back);
    g[BACK_DXN2] = block_new(k, BUF_DACTIVATION, "dxn2", z.n, z.c);
    struct ring ring = ring_of(k, u, feed_forward_half(k, u));
    for (int i = 0; i < turns(k); i++) {
        const struct unit_buffers at = turn(&ring, i);
        for (int t = 0; t < BACK_COUNT; t++)
            back->parts[i].t[t] = TENSOR_NONE;
        block_feed_forward_out_dgrad(k, &at, &saved->parts[i], g[BACK_DY], &back->parts[i]);
        add_product(k, &at, i, g[BACK_DXN2], back->parts[i].t[BACK_DGU], ROLE_W1, 2, 0);
    }
    const struct norm_saved ffn_norm = {s[SAVED_H], s[SAVED_RSTD2]};
    const struct tensor dh =
        block_norm_dgrad(k, "dh", dy, g[BACK_DXN2], &ffn_norm, block_param(k, u, ROLE_FFN_NORM, 1));

    block_project_out_dgrad(k, u, ROLE_WO, dh, saved, back);
    g[BACK_DXN1] = block_new(k, BUF_DACTIVATION, "dxn1", z.n, z.c);
    ring = ring_of(k, u, attention_half(k, u));
    for (int i = 0; i < turns(k); i++) {
        const struct unit_buffers at = turn(&ring, i);
        const struct tensor dattn = block_new(k, BUF_DACTIVATION, "dattn", z.n, z.od);
        add_product(k, &at, 0, dattn, g[BACK_DH], ROLE_WO, 1, 0);
        attention_heads_dgrad(k, &at, tokens, &saved->parts[i], dattn, &back->parts[i]);
        add_product(k, &at, i, g[BACK_DXN1], back->parts[i].t[BACK_DQKV], ROLE_WQ, 3, 0);
    }
    const struct norm_saved norm = {s[SAVED_X], s[SAVED_RSTD1]};
    return block_norm_dgrad(k, "dx", dh, g[BACK_DXN1], &norm, block_param(k, u, ROLE_ATTENTION_NORM, 1));
}

/* --- gradients ---------------------------------------------------------------------------------------------------- */

/* Passes the gradient of a half to the next rank. to: this rank's own gradient (BUF_GRAD), or NONE if the next turn is
 * of another rank's part. Returns the buffer of the next turn. */
static int pass_gradient(struct block *k, struct half half, int here, int to)
{
    if (to == NONE && k->rotate_in_place) {
        emit_rotate(k->e, CHANNEL_ROTATE, range_of(k, here, half, DTYPE_F32));
        return here;
    }
    if (to == NONE)
        to = new_part(k, BUF_GRAD, "gradient of another rank's part", half, DTYPE_F32);
    emit_shift(k->e, CHANNEL_ROTATE, range_of(k, to, half, DTYPE_F32), range_of(k, here, half, DTYPE_F32), 1);
    return to;
}

void rotated_wgrad(struct block *k, const struct unit_buffers *u, const struct layer_saved *saved,
                   const struct layer_back *back)
{
    const struct half attention = attention_half(k, u), feed_forward = feed_forward_half(k, u);
    const int n = turns(k);
    struct unit_buffers at_attention = *u, at_feed_forward = *u;

    titan_assert(u->first && n > 1 && attention.to <= feed_forward.from);
    /* The halves come with their gaps; what lies before, between and behind them is zero. */
    block_zero_gaps(k, u, 0, attention.from);
    block_zero_gaps(k, u, attention.to, feed_forward.from);
    block_zero_gaps(k, u, feed_forward.to, k->layout->units[u->unit].padded);
    for (int v = 1; v <= n; v++) {
        const int i = v % n, to = v == n - 1 ? u->grads : NONE; /* the own part is last */
        const struct layer_saved *const s = &saved->parts[i];
        const struct layer_back *const g = &back->parts[i];
        at_attention.first = at_feed_forward.first = v == 1;
        if (v == 1) {
            at_feed_forward.grads = new_part(k, BUF_GRAD, "gradient of another rank's part", feed_forward, DTYPE_F32);
            block_zero_gaps(k, &at_feed_forward, feed_forward.from, feed_forward.to);
        }
        /* dw2, dw1 | dw3; they travel while those of attention are computed */
        block_linear_wgrad(k, &at_feed_forward, ROLE_W2, 1, back->t[BACK_DY], s->t[SAVED_ACT]);
        block_linear_wgrad(k, &at_feed_forward, ROLE_W1, 2, g->t[BACK_DGU], saved->t[SAVED_XN2]);
        if (v < n)
            at_feed_forward.grads = pass_gradient(k, feed_forward, at_feed_forward.grads, to);
        if (v == 1) {
            at_attention.grads = new_part(k, BUF_GRAD, "gradient of another rank's part", attention, DTYPE_F32);
            block_zero_gaps(k, &at_attention, attention.from, attention.to);
        }
        /* dwo, dwq | dwk | dwv */
        block_linear_wgrad(k, &at_attention, ROLE_WO, 1, back->t[BACK_DH], s->t[SAVED_ATTN]);
        block_linear_wgrad(k, &at_attention, ROLE_WQ, 3, g->t[BACK_DQKV], saved->t[SAVED_XN1]);
        if (v < n)
            at_attention.grads = pass_gradient(k, attention, at_attention.grads, to);
    }
    EMIT(k->e, rmsnorm_dgain, block_grad(k, u, ROLE_FFN_NORM, 1), back->t[BACK_DXN2], saved->t[SAVED_H],
         saved->t[SAVED_RSTD2]);
    EMIT(k->e, rmsnorm_dgain, block_grad(k, u, ROLE_ATTENTION_NORM, 1), back->t[BACK_DXN1], saved->t[SAVED_X],
         saved->t[SAVED_RSTD1]);
}
