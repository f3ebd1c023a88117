/* SPDX-License-Identifier: Apache-2.0 */
/* hf_families.h - the families of models of transformers: a row has what a family's config.json and weights say of the
 * traits of its layers, and the names that are its own.
 *
 * A layer is what struct model_dims says, whichever family it is of; a family says which traits can be had and where
 * they are written. So another family is another row, as long as its layers have no other traits. */
#ifndef TITAN_BASE_HF_FAMILIES_H
#define TITAN_BASE_HF_FAMILIES_H

#include "base/recipe.h"

/* How config.json describes experts, and what their router does. */
enum hf_experts {
    HF_DENSE,
    HF_QWEN,    /* softmax, no shared ones; layers without experts in a list */
    HF_MIXTRAL, /* softmax, the chosen scores divided by their sum; intermediate_size is an expert's */
    HF_SOFTMAX, /* DeepSeek V2: shared experts, groups by their best */
    HF_SIGMOID  /* DeepSeek V3, GLM 4: shared experts, groups by their best two, biases of the choice */
};

/* A trait that config.json may have: the key, and its value where that is missing. NULL or "": there is no key, and the
 * value is that of the whole family. */
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
    bool multipliers; /* Granite's four */
    bool gemma;       /* GELU, gains less 1, an embedding times sqrt(hidden_size), heads of 256 where none are said */
    bool no_rope_layers; /* a list of layers that rotate, and an interval */
    double partial;      /* share of a head that is rotated unless the configuration says otherwise; 0: all, always */
    bool fused;          /* one matrix for queries, keys and values, and one for gate and up */
    /* What a missing key stands for. */
    double rope_theta, norm_eps, route_scale;
    bool tied;
    /* Key that sliding_window depends on, beside which "layer_types" has the layers; "": it holds by itself, for all
     * layers; NULL: there is none. */
    const char *window;
    int64_t window_initial;
    int64_t full_every;       /* every n-th layer has none, unless "layer_types" has them; 0: what window says */
    double rope_local_theta;  /* of layers with a window; 0: they rotate as the others */
    double attention_softcap; /* where its key is missing; 0: it has none */
    double logits_softcap;    /* of Gemma, where its key is missing */
    const char *experts_in;   /* the names of router and experts begin so; NULL: "mlp" */
    const char *expert[3];    /* names of an expert's w1, w3, w2; NULL: gate_proj, up_proj, down_proj */
};

extern const struct hf_family hf_families[];
extern const int hf_families_count;

/* By model_type; NULL: there is none. */
const struct hf_family *hf_family_of_type(const char *type);
/* The family that a model can be written as: the first one with this model.name, or else the first. TITAN_EUNSUPPORTED
 * says what there is none for. */
titan_status hf_family_of(const struct model_dims *dims, const char *name, const struct hf_family **ret,
                          struct titan_error *err) TITAN_MUST_USE;
/* "mistral|mixtral|...": model.name of the families that have no flavors of their own. */
const char *hf_family_names(void);
/* "llama, qwen3 and mistral are supported", for messages. */
void hf_families_list(struct buf *out);

#endif
