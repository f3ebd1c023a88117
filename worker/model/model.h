/* model.h - a model as a list of parameters, grouped in FSDP units.
 *
 * A unit is what travels in one collective: the embedding, each layer, and the final norm with the head. Inside a unit
 * all parameters lie in one flat buffer, in an order that makes wq|wk|wv one ((H+2K)*D, C) matrix and w1|w3 one (2F, C)
 * matrix, so that each pair needs one product. Other parameters start at multiples of MODEL_ALIGN elements; what lies
 * between belongs to no parameter and is always zero.
 *
 *   embedding  tok_embeddings.weight (V,C)
 *   layers.N   attention_norm (C) | wq (H*D,C) wk (K*D,C) wv (K*D,C) | wo (C,H*D) | ffn_norm (C) | w1 (F,C) w3 (F,C) |
 *              w2 (C,F)
 *   head       norm (C) | output.weight (V,C)
 *
 * Names are TorchTitan's. Initial values are a pure function of (seed, name, element), so any rank computes any part.
 */
#ifndef TITAN_WORKER_MODEL_MODEL_H
#define TITAN_WORKER_MODEL_MODEL_H

#include <stdint.h>

#include "base/recipe.h"

#define MODEL_ALIGN 64 /* elements */

enum unit_kind { UNIT_EMBEDDING, UNIT_LAYER, UNIT_HEAD };

/* Position of a layer's parameters in its unit. */
enum { LAYER_ATTENTION_NORM, LAYER_WQ, LAYER_WK, LAYER_WV, LAYER_WO, LAYER_FFN_NORM, LAYER_W1, LAYER_W3, LAYER_W2 };
enum { HEAD_NORM, HEAD_OUTPUT };

enum init_rule {
    INIT_ONES,
    INIT_NORMAL,   /* std * n */
    INIT_TRUNCATED /* std * n; where |n| > 3, n is drawn again from the stream NAME#1, NAME#2, ... */
};

struct model_tensor {
    char name[96];
    int64_t shape[2];
    int ndim;
    int64_t numel;
    int unit;
    int64_t offset; /* first element in the unit's flat buffer */
    enum init_rule init;
    float std;
};

struct model_unit {
    char name[32]; /* "embedding", "layers.3", "head" */
    enum unit_kind kind;
    int layer; /* UNIT_LAYER only */
    int first_tensor, n_tensors;
    int64_t numel; /* up to the end of the last parameter */
};

struct model {
    struct model_dims dims;
    int64_t head_dim;
    int n_tensors, n_units;       /* n_layers + 2 units, embedding first, head last */
    struct model_tensor *tensors; /* unit by unit, in flat order */
    struct model_unit *units;
};

/* TITAN_EINVAL: dimensions that are no model (heads do not divide, odd head width). */
titan_status model_open(const struct model_dims *dims, struct model **ret, struct titan_error *err) TITAN_MUST_USE;
void model_close(struct model *model); /* NULL is fine */

/* Initial values of elements [start, start+count) of a unit's flat buffer; beyond the parameters: zero. */
void model_init_range(const struct model *model, uint64_t seed, int unit, int64_t start, int64_t count, float *out);

/* Rotary tables for positions [0, positions): cos and sin (positions, D/2). Angles in double; the Llama 3.1 rule
 * where dims.rope_scaling. */
void model_rope_tables(const struct model *model, int64_t positions, float *cos_out, float *sin_out);

#endif
