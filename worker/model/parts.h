/* parts.h - what the files behind block.h share: local sizes, views of parameters and gradients, linear layers.
 *
 * Private to worker/model. Shape letters as in block.h. */
#ifndef TITAN_WORKER_MODEL_PARTS_H
#define TITAN_WORKER_MODEL_PARTS_H

#include "worker/model/block.h"

/* Local to a rank. */
struct block_sizes {
    int tp, cp;
    int64_t n, ns, c; /* tokens, tokens of this tp rank, width */
    int64_t h, kv, d; /* query heads, key/value heads, head width */
    int64_t hd, kd;   /* h * d, kv * d */
    int64_t f, v;     /* feed-forward width, vocabulary */
};
struct block_sizes block_sizes(const struct block *k);

/* A new tensor of the compute type; one of fp32. */
struct tensor block_new(struct block *k, enum buffer_kind kind, const char *name, int64_t rows, int64_t cols);
struct tensor block_new_f32(struct block *k, enum buffer_kind kind, const char *name, int64_t rows, int64_t cols);

/* Tensor `role` of a unit and those glued to it, `count` in all, as one matrix: values, and their gradient. */
struct tensor block_param(const struct block *k, const struct unit_buffers *u, enum tensor_role role, int count);
struct tensor block_grad(const struct block *k, const struct unit_buffers *u, enum tensor_role role, int count);

/* Where this is the first weight gradient of a step: zero what no product overwrites, the vectors and the gaps. */
void block_begin_grads(struct block *k, const struct unit_buffers *u);

/* The three products of a linear layer with weight w (out,in): y (n,out) = x (n,in) w^T */
void block_linear(struct block *k, struct tensor y, struct tensor x, struct tensor w);
/* dx (n,in) = dy (n,out) w */
void block_linear_dgrad(struct block *k, struct tensor dx, struct tensor dy, struct tensor w);
/* dw (out,in) = or += dy^T x */
void block_linear_wgrad(struct block *k, struct tensor dw, bool first, struct tensor dy, struct tensor x);

/* xn = norm(x), on this rank's Ns tokens, gathered over tp; *ret_rstd for backward. */
struct tensor block_norm(struct block *k, const char *name, struct tensor x, struct tensor gain,
                         struct tensor *ret_rstd);
/* A copy of residual with the norm's gradient added: the end of a half layer. */
struct tensor block_norm_dgrad(struct block *k, const char *name, struct tensor residual, struct tensor dxn,
                               struct tensor x, struct tensor gain, struct tensor rstd);

/* --- attention.c: grouped-query attention between the normed input and the output product ------------------------- */

/* SAVED_XN1 -> SAVED_Q, _K, _V (and _KV, _RAW, _RSTD) -> SAVED_ATTN, SAVED_LSE */
void attention_forward(struct block *k, const struct unit_buffers *u, const struct block_tokens *tokens,
                       struct layer_saved *saved);
/* dattn (N,H*D) -> BACK_DQKV and, with qk_norm, BACK_DQ_NORMED and BACK_DK_NORMED. Returns the gradient of SAVED_XN1
 * (N,C), a partial sum over tp. */
struct tensor attention_dgrad(struct block *k, const struct unit_buffers *u, const struct block_tokens *tokens,
                              const struct layer_saved *saved, struct tensor dattn, struct layer_back *back);
void attention_wgrad(struct block *k, const struct unit_buffers *u, const struct layer_saved *saved,
                     const struct layer_back *back);

#endif
