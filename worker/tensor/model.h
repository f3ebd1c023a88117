/* SPDX-License-Identifier: Apache-2.0 */
/* model.h - a model as a list of parameters, grouped in FSDP units.
 *
 * A unit travels in one collective. Units are the embedding, each layer, and the final norm with the head. The experts
 * of a layer are a unit of their own, right behind the layer's unit. tensor/layout.h places a unit's parameters in one
 * flat buffer in the order of the list. Glued tensors form one matrix there (wq|wk|wv is ((H+2K)*D,C), w1|w3 is
 * (2F,C)), so each such matrix needs one product. Other tensors start at multiples of MODEL_ALIGN elements; gaps are
 * always zero.
 *
 *   embedding  tok_embeddings.weight (V,C)
 *   layers.N   attention_norm (C) | wq (H*D,C) wk (K*D,C) wv (K*D,C) | wo (C,H*D) | ffn_norm (C) | w1 (F,C) w3 (F,C) |
 *              w2 (C,F)
 *              with qk_norm also q_norm (D) k_norm (D), or (H*D) and (K*D) of all heads
 *              with output norms attention_out_norm (C), ffn_out_norm (C)
 *              with biases wq.bias (H*D) wk.bias (K*D) wv.bias (K*D), wo.bias (C), w1.bias (F) w3.bias (F), w2.bias (C)
 *              latent attention has instead of wq, wk, wv: wq (H*D,C), or wq_a (Q,C) q_norm (Q) wq_b (H*D,Q), and
 *              wkv_a (R+rope,C) kv_norm (R) wkv_b (H*(nope+Dv),R)
 *              a layer with experts has instead of w1, w3, w2: gate (E,C) and the shared experts as one feed-forward
 *              layer: w1 (S*M,C) w3 (S*M,C) | w2 (C,S*M); with router_bias gate.bias (E)
 *              with attention_sinks also sinks (H)
 *   layers.N.experts  w1 (E*M,C) | w3 (E*M,C) | w2 (E*C,M): the matrices of all experts, one below the other
 *              with mlp_bias w1.bias (E,M) | w3.bias (E,M) | w2.bias (E,C), a row for each expert
 *   head       norm (C) | output.weight (V,C); no output.weight with tied embeddings
 *   With multi-token prediction the norm is a unit of its own behind the layers, and modules follow it: layers.N with
 *   enorm (C), hnorm (C), eh_proj (C,2C: the embedding's columns first) and shared_head.norm (C) besides a layer's.
 *
 * E experts of width M, S shared experts; Q and R are the ranks of latent queries, and of latent keys and values.
 *
 * split: how tensor parallelism cuts a tensor.
 * - SPLIT_ROWS (column parallel): outputs are cut; in embedding and head the vocabulary is cut.
 * - SPLIT_COLS (row parallel): inputs are cut; a vector with this split is a bias of cut outputs.
 * - SPLIT_EXPERTS: rows are cut over ep.
 * - SPLIT_NONE: the tensor is whole.
 *
 * Names are TorchTitan's. Initial values are a pure function of (seed, name, element), so any rank computes any
 * part. */
#ifndef TITAN_WORKER_TENSOR_MODEL_H
#define TITAN_WORKER_TENSOR_MODEL_H

#include <stdint.h>

#include "base/recipe.h"
#include "base/rng.h"

#define MODEL_ALIGN 64 /* elements */

enum unit_kind { UNIT_EMBEDDING, UNIT_LAYER, UNIT_EXPERTS, UNIT_NORM, UNIT_HEAD };

enum tensor_role {
    ROLE_EMBEDDING,
    ROLE_ATTENTION_NORM,
    ROLE_WQ,
    ROLE_WK,
    ROLE_WV,
    ROLE_WO,
    ROLE_Q_NORM,
    ROLE_K_NORM,
    ROLE_FFN_NORM,
    ROLE_W1,
    ROLE_W3,
    ROLE_W2,
    ROLE_WQ_A, /* latent attention; the norm of queries is ROLE_Q_NORM */
    ROLE_WQ_B,
    ROLE_WKV_A,
    ROLE_KV_NORM,
    ROLE_WKV_B,
    ROLE_GATE, /* the router's */
    ROLE_NORM,
    ROLE_OUTPUT,
    ROLE_WQ_BIAS,
    ROLE_WK_BIAS,
    ROLE_WV_BIAS,
    ROLE_WO_BIAS,
    ROLE_W1_BIAS,
    ROLE_W3_BIAS,
    ROLE_W2_BIAS,
    ROLE_ATTENTION_OUT_NORM,
    ROLE_FFN_OUT_NORM,
    ROLE_SINKS,
    ROLE_GATE_BIAS,
    ROLE_EMBEDDING_NORM, /* norms of modules of multi-token prediction; the norm of a module's output is ROLE_NORM */
    ROLE_HIDDEN_NORM,
    ROLE_JOIN,
    ROLE_COUNT
};

enum split { SPLIT_NONE, SPLIT_ROWS, SPLIT_COLS, SPLIT_EXPERTS };

enum init_rule {
    INIT_ZEROS,
    INIT_ONES,
    INIT_NORMAL,   /* std * n */
    INIT_TRUNCATED /* std * n; where |n| > 3, n is drawn again from the stream NAME#1, NAME#2, ... */
};

struct model_tensor {
    char name[96];
    int64_t shape[2];
    int ndim;
    int experts; /* number of experts, whose matrices lie one below the other; 0: not a tensor of experts */
    int64_t numel;
    int unit;
    enum tensor_role role;
    enum split split;
    bool glued; /* continues the matrix of the tensor before it */
    enum init_rule init;
    float std;
};

struct model_unit {
    char name[32]; /* "embedding", "layers.3", "norm", "head" */
    enum unit_kind kind;
    int layer; /* UNIT_LAYER and UNIT_EXPERTS; -1 otherwise */
    int first_tensor, n_tensors;
};

struct model {
    struct model_dims dims;
    int64_t head_dim;
    int n_tensors, n_units;       /* embedding first, head last */
    struct model_tensor *tensors; /* unit by unit, in flat order */
    struct model_unit *units;
};

/* TITAN_EINVAL: the dimensions make no model (heads do not divide, odd head width). */
titan_status model_open(const struct model_dims *dims, struct model **ret, struct titan_error *err) TITAN_MUST_USE;
void model_close(struct model *model); /* NULL is fine */

/* Index of a unit's tensor with this role; -1: the unit has none. With tied embeddings, ROLE_OUTPUT of the head finds
 * the embedding's tensor. */
int model_find(const struct model *model, int unit, enum tensor_role role);
/* Is the tensor a bias of experts, with a row per expert? */
static inline bool model_is_expert_bias(const struct model_tensor *tensor)
{
    return tensor->experts > 0 && tensor->role >= ROLE_W1_BIAS && tensor->role <= ROLE_W2_BIAS;
}
/* Is the tensor a matrix of a layer, or of its experts? Embedding, head and routers do not count. */
static inline bool model_is_layer_matrix(const struct model *model, int tensor)
{
    const struct model_tensor *const t = &model->tensors[tensor];
    return t->ndim == 2 && t->role != ROLE_EMBEDDING && t->role != ROLE_OUTPUT && t->role != ROLE_GATE &&
           !model_is_expert_bias(t);
}
/* Shape of a tensor in a checkpoint: matrices of experts have three dimensions, their biases two. Returns the number of
 * dimensions. */
int model_tensor_shape(const struct model_tensor *tensor, int64_t ret[3]);
/* Number of layers, with the layers of modules of multi-token prediction. A module's layer has a number behind the
 * model's own layers. */
static inline int model_all_layers(const struct model *model)
{
    return (int)(model->dims.n_layers + model->dims.mtp_layers);
}
/* The module that a layer belongs to, from 1 on; 0: none. */
static inline int model_module(const struct model *model, int layer)
{
    return layer < model->dims.n_layers ? 0 : (int)(layer - model->dims.n_layers + 1);
}
/* Unit of a layer's dense part, and unit of its experts (-1: none). */
int model_layer_unit(const struct model *model, int layer);
int model_experts_unit(const struct model *model, int layer);

/* Parameters for drawing a tensor's initial values. Not for INIT_ZEROS and INIT_ONES. */
struct rng_weights model_init_weights(const struct model *model, uint64_t seed, int tensor);
/* Initial values of elements [start, start+count) of a tensor flattened row-major. */
void model_init_tensor(const struct model *model, uint64_t seed, int tensor, int64_t start, int64_t count, float *out);

/* Does a layer rotate queries and keys? */
static inline bool model_layer_rotates(const struct model *model, int layer)
{
    return model->dims.no_rope_every == 0 || (layer + 1) % model->dims.no_rope_every != 0;
}
/* Most tokens that a token sees in a layer, itself included; 0: all tokens before it. */
static inline int64_t model_layer_window(const struct model *model, int layer)
{
    const int64_t every = model->dims.full_attention_every;
    return every > 0 && (layer + 1) % every == 0 ? 0 : model->dims.sliding_window;
}
/* Does a layer that rotates use rope_local_theta? */
static inline bool model_layer_rotates_locally(const struct model *model, int layer)
{
    return model->dims.rope_local_theta > 0 && model_layer_window(model, layer) > 0;
}
/* Do two layers have the same traits? A module's layer is like no other layer, because its input differs. */
bool model_layers_alike(const struct model *model, int a, int b);
/* Width of the part of a head that is rotated: all of the head, or with latent attention qk_rope_head_dim. */
static inline int64_t model_rope_dim(const struct model *model)
{
    return model->dims.kv_lora_rank > 0 ? model->dims.qk_rope_head_dim : model->head_dim;
}
/* Makes rotary tables for positions [0, positions): cos and sin (positions, model_rope_dim/2), with angles in double.
 * dims.rope_scaling sets the frequencies:
 * - Llama 3.1's rule
 * - linear: a plain stretch
 * - dynamic: a base that depends on the number of positions
 * - YaRN (Peng et al. 2023, arXiv:2309.00071), with its factor in the tables
 * - LongRoPE (Ding et al. 2024, arXiv:2402.13753): divisors that depend on the number of positions; its factor is in
 * the tables.
 * local: frequencies come from dims.rope_local_theta, without a rule. Pairs behind dims.rope_dim turn by no angle:
 * their values do not change by a bit. */
void model_rope_tables(const struct model *model, bool local, int64_t positions, float *cos_out, float *sin_out);
/* Factor for products of queries and keys: dims.attention_multiplier, or 1/sqrt(head_dim). With YaRN and latent
 * attention, 1/sqrt(head_dim) is multiplied by m(rope_mscale_all_dim)^2, where m(x) = 1 + 0.1 x ln(rope_factor)
 * (DeepSeek-AI 2024, arXiv:2405.04434, section 3.1.4). */
double model_score_scale(const struct model *model);

#endif
