/* SPDX-License-Identifier: Apache-2.0 */
/* hf_families.h - the model families of transformers. One row describes how a family's config.json and weights encode
 * the traits of its layers, and the family's own names.
 *
 * struct model_dims describes a layer, whatever the family; a family defines which traits are possible and where they
 * are written. A new family is one more row, as long as its layers have no new traits. */
#ifndef TITAN_BASE_HF_FAMILIES_H
#define TITAN_BASE_HF_FAMILIES_H

#include "base/recipe.h"

/* How config.json describes experts and their router. */
enum hf_experts {
    HF_DENSE,
    HF_QWEN,    /* softmax, no shared experts; a list names layers without experts */
    HF_MIXTRAL, /* softmax, the chosen scores divided by their sum; intermediate_size is the size of one expert */
    HF_SOFTMAX, /* DeepSeek V2: shared experts, groups ranked by their best score */
    HF_SIGMOID, /* DeepSeek V3, GLM 4: shared experts, groups ranked by their best two scores, biases for the choice */
    HF_GPT_OSS  /* as Mixtral; biases of router and experts, bounded SwiGLU, sinks; one tensor has all experts */
};

/* A trait that config.json may have: its key, and the trait's value if the key is missing. NULL or "": no key; the
 * value applies to the whole family. */
struct hf_trait {
    const char *key;
    bool initial;
};

struct hf_family {
    const char *type, *class; /* model_type and architecture */
    const char *ours;         /* model.name */
    bool latent;
    enum hf_experts experts;
    struct hf_trait qk_norm, qkv_bias, output_bias, mlp_bias;
    bool output_norms, no_input_norms, qk_norm_whole;
    bool multipliers;    /* Granite's four multipliers */
    bool gemma;          /* GELU, gains stored less 1, embedding times sqrt(hidden_size), heads of 256 by default */
    bool no_rope_layers; /* a list of layers with rotation, and an interval */
    double partial;      /* default share of a head that is rotated; 0: always the whole head */
    /* Above 0: rope_scaling is LongRoPE's, the key original_max_position_embeddings is beside it, and this is the key's
     * default. 0: rope_scaling may have another rule, and the key is inside rope_scaling. */
    int64_t original_positions;
    bool fused; /* one matrix for queries, keys and values, and one for gate and up */
    /* Defaults for missing keys. */
    double rope_theta, norm_eps, route_scale;
    bool tied;
    /* Key that enables sliding_window; then "layer_types" lists the layers. "": the window always applies, to all
     * layers. NULL: the family has no window. */
    const char *window;
    int64_t window_initial;
    int64_t full_every; /* every n-th layer has no window, unless "layer_types" lists the layers; 0: `window` decides */
    double rope_local_theta;  /* for layers with a window; 0: rope_theta, as for other layers */
    double attention_softcap; /* default for a missing key; 0: none */
    double logits_softcap;    /* Gemma's default for a missing key */
    const char *experts_in;   /* prefix of the names of router and experts; NULL: "mlp" */
    const char *expert[3];    /* names of an expert's w1, w3, w2; NULL: gate_proj, up_proj, down_proj */
};

/* Does config.json say how many modules of multi-token prediction there are? */
static inline bool hf_family_has_modules(const struct hf_family *f)
{
    return f->experts == HF_SIGMOID || f->experts == HF_SOFTMAX;
}

/* Looks up model_type; NULL: no such family. */
const struct hf_family *hf_family_of_type(const char *type);
/* Finds the family as which the model is written. Of the families that support the model, this is the first with this
 * model.name, or else the first. TITAN_EUNSUPPORTED names the trait that no family has. */
titan_status hf_family_of(const struct model_dims *dims, const char *name, const struct hf_family **ret,
                          struct titan_error *err) TITAN_MUST_USE;
/* "mistral|mixtral|...": model.name of the families without own flavors. */
const char *hf_family_names(void);
/* "llama, qwen3 and mistral are supported", for messages. */
void hf_families_list(struct buf *out);

#endif
