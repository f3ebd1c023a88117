/* SPDX-License-Identifier: Apache-2.0 */
/* parts.h - the common part of the files that implement block.h: local sizes, views of parameters and gradients, linear
 * layers.
 *
 * Private to worker/model. Shape letters as in block.h. */
#ifndef TITAN_WORKER_MODEL_PARTS_H
#define TITAN_WORKER_MODEL_PARTS_H

#include "worker/model/block.h"

/* Local to a rank. */
struct block_sizes {
    int tp, cp;
    int64_t n, ns, c;     /* tokens, tokens of this tp rank, width */
    int64_t h, kv, d, dv; /* query heads, key/value heads (of a part), width of their heads, width of value heads */
    int64_t hd, kd;       /* h * d, kv * d */
    int64_t od, vd;       /* h * dv, kv * dv */
    int64_t v;            /* vocabulary */
};
struct block_sizes block_sizes(const struct block *k);

/* Make a new tensor of the compute type, or of fp32. */
struct tensor block_new(struct block *k, enum buffer_kind kind, const char *name, int64_t rows, int64_t cols);
struct tensor block_new_f32(struct block *k, enum buffer_kind kind, const char *name, int64_t rows, int64_t cols);

/* Return tensor `role` of a unit and the tensors glued to it, `count` in all, as one matrix: the values, or their
 * gradient. */
struct tensor block_param(const struct block *k, const struct unit_buffers *u, enum tensor_role role, int count);
struct tensor block_grad(const struct block *k, const struct unit_buffers *u, enum tensor_role role, int count);

/* Call it before the first weight gradient of a step (u->first). It zeroes the vectors and the gaps, because no product
 * overwrites them. */
void block_begin_grads(struct block *k, const struct unit_buffers *u);
/* The same for elements from..to of the unit, whatever u->first is. */
void block_zero_gaps(struct block *k, const struct unit_buffers *u, int64_t from, int64_t to);

/* MATMUL with these flags: c = op(a) op(b), or c += op(a) op(b). */
void block_product(struct block *k, struct tensor c, struct tensor a, struct tensor b, uint32_t flags);

/* The three products of a linear layer. Its weight w (out,in) is tensor `role`, or with count > 1 this tensor and the
 * tensors glued to it, whose outputs lie side by side. One product computes all outputs. But if a converter converts
 * one of the layers, each layer has its own product. Biases of outputs that are cut over tp are added here, and their
 * gradients are computed here.
 * y (n,out) = x (n,in) w^T + bias */
void block_linear(struct block *k, const struct unit_buffers *u, enum tensor_role role, int count, struct tensor y,
                  struct tensor x);
/* dx (n,in) = dy (n,out) w */
void block_linear_dgrad(struct block *k, const struct unit_buffers *u, enum tensor_role role, int count,
                        struct tensor dx, struct tensor dy);
/* dw (out,in) = dy^T x for the unit's first gradient, otherwise dw += dy^T x; dbias += the sum of dy's rows */
void block_linear_wgrad(struct block *k, const struct unit_buffers *u, enum tensor_role role, int count,
                        struct tensor dy, struct tensor x);
/* Does backward keep a layer's input as codes, if tensor `role` and the count - 1 tensors glued to it read it? */
bool block_keeps_codes(const struct block *k, const struct unit_buffers *u, enum tensor_role role, int count);
/* A layer's input x (n,in) as backward is to keep it: with keeps_codes the int8 codes of its rows, (n, in up to a
 * multiple of 16, plus 4) bytes, if block_keeps_codes() says so; otherwise x.
 * Only for an input that nothing reads in backward but these layers' weight gradients. */
struct tensor block_kept(struct block *k, const struct unit_buffers *u, enum tensor_role role, int count,
                         struct tensor x);
/* The values (n,cols) of what block_kept() returned. block_linear_wgrad() takes either. */
struct tensor block_values(struct block *k, struct tensor kept, int64_t cols);
/* c = op(a) op(b), or c += with OP_ADD_TO: a part of one of these products, as the model's converters have it. b is a
 * part of weight `role`, or the layer's input. */
void block_linear_part(struct block *k, const struct unit_buffers *u, enum tensor_role role,
                       enum linear_product product, struct tensor c, struct tensor a, struct tensor b, uint32_t flags);

/* Flags of RMSNORM and of its input gradient. */
static inline uint32_t block_norm_flags(const struct block *k)
{
    return k->layout->model->dims.norm_offset ? OP_OFFSET : 0;
}

/* xn = norm(x) of this rank's Ns tokens, gathered over tp. *ret_rstd is for backward. gain TENSOR_NONE: xn is x. */
struct tensor block_norm(struct block *k, const char *name, struct tensor x, struct tensor gain,
                         struct tensor *ret_rstd);
/* The end of a half layer: out (Ns,C) = x w^T with tensor `role` (ROLE_WO, ROLE_W2), summed over tp, plus its bias. x
 * is SAVED_ATTN or SAVED_ACT. Then come the norm of models with output_norms, residual_multiplier as a factor, and the
 * sum with residual. */
struct tensor block_project_out(struct block *k, const struct unit_buffers *u, enum tensor_role role,
                                struct tensor residual, struct layer_saved *saved);
/* The same behind the product: out (Ns,C) is whole, or becomes whole by the layer's bias. */
struct tensor block_half_end(struct block *k, const struct unit_buffers *u, enum tensor_role role, struct tensor out,
                             struct tensor residual, struct layer_saved *saved);
/* dy (Ns,C) -> gradient of the product's output (N,C), gathered over tp: BACK_DH for ROLE_WO, BACK_DY for ROLE_W2. Sets
 * also BACK_DH_NORMED and BACK_DH_OWN, or BACK_DY_NORMED and BACK_DY_OWN. */
void block_project_out_dgrad(struct block *k, const struct unit_buffers *u, enum tensor_role role, struct tensor dy,
                             const struct layer_saved *saved, struct layer_back *back);
/* Returns residual plus the gradient of the norm's input. The result is the gradient at the start of a half layer. gain
 * TENSOR_NONE: there is no norm, and dxn is already the gradient of its input. */
struct tensor block_norm_dgrad(struct block *k, const char *name, struct tensor residual, struct tensor dxn,
                               const struct norm_saved *saved, struct tensor gain);

/* out (n,F) from gate and up (n,F) with the model's gate function (SWIGLU). counts: as in SWIGLU. */
void block_gate(struct block *k, struct tensor out, struct tensor gate, struct tensor up, struct tensor counts);
/* dout (n,F) -> dgu (n,2F): gradients of gate and up side by side */
void block_gate_dgrad(struct block *k, struct tensor dgu, struct tensor dout, struct tensor gate, struct tensor up,
                      struct tensor counts);

/* The feed-forward layer up to its last product: SAVED_XN2 -> SAVED_GATE, SAVED_UP, SAVED_ACT; and the way back, from
 * dy (N,C), gradient of that product's output, to BACK_DGU. */
void block_feed_forward_in(struct block *k, const struct unit_buffers *u, struct layer_saved *saved);
void block_feed_forward_out_dgrad(struct block *k, const struct unit_buffers *u, const struct layer_saved *saved,
                                  struct tensor dy, struct layer_back *back);
/* Feed-forward layer of a unit, without the norms around it: SAVED_XN2 -> SAVED_GATE, SAVED_UP, SAVED_ACT. y (Ns,C) =
 * residual + the layer's output. */
struct tensor block_feed_forward(struct block *k, const struct unit_buffers *u, struct tensor residual,
                                 struct layer_saved *saved);
/* dy (Ns,C) -> BACK_DY, BACK_DGU; gradient of SAVED_XN2 (Ns,C), summed over tp. */
struct tensor block_feed_forward_dgrad(struct block *k, const struct unit_buffers *u, const struct layer_saved *saved,
                                       struct tensor dy, struct layer_back *back);
void block_feed_forward_wgrad(struct block *k, const struct unit_buffers *u, const struct layer_saved *saved,
                              const struct layer_back *back);

/* --- attention.c: grouped-query attention between the normed input and the output product ------------------------- */

/* SAVED_XN1 -> SAVED_Q, _K, _V (and _KV, _RAW, _RSTD) -> SAVED_ATTN, SAVED_LSE */
void attention_forward(struct block *k, const struct unit_buffers *u, const struct block_tokens *tokens,
                       struct layer_saved *saved);
/* dattn (N,H*Dv) -> BACK_DQKV and, with qk_norm, BACK_DQ_NORMED and BACK_DK_NORMED, with sinks BACK_DSINKS. */
void attention_heads_dgrad(struct block *k, const struct unit_buffers *u, const struct block_tokens *tokens,
                           const struct layer_saved *saved, struct tensor dattn, struct layer_back *back);
/* Also returns the gradient of SAVED_XN1 (N,C), a partial sum over tp. */
struct tensor attention_dgrad(struct block *k, const struct unit_buffers *u, const struct block_tokens *tokens,
                              const struct layer_saved *saved, struct tensor dattn, struct layer_back *back);
void attention_wgrad(struct block *k, const struct unit_buffers *u, const struct layer_saved *saved,
                     const struct layer_back *back);

/* Attention without projections: SAVED_Q (N,H*D), SAVED_K (N,K*D), SAVED_V (N,K*Dv) -> SAVED_ATTN, SAVED_LSE. With cp >
 * 1, SAVED_K and SAVED_V lie side by side in SAVED_KV. */
void attention_scores(struct block *k, const struct block_tokens *tokens, struct layer_saved *saved);
/* Gradients of SAVED_Q, SAVED_K and SAVED_V; the caller makes the tensors. */
struct attention_grads {
    struct tensor q, k, v;
};
void attention_scores_dgrad(struct block *k, const struct block_tokens *tokens, const struct layer_saved *saved,
                            struct tensor dattn, const struct attention_grads *out);

#endif
