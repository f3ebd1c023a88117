/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hf_families.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"

#define ALWAYS                                                                                                         \
    {                                                                                                                  \
        "", true                                                                                                       \
    }
#define KEY(name)                                                                                                      \
    {                                                                                                                  \
        name, false                                                                                                    \
    }

/* clang-format off */
static const struct hf_family hf_families[] = {
    {"llama", "LlamaForCausalLM", "llama3",
     .qkv_bias = KEY("attention_bias"), .output_bias = KEY("attention_bias"), .mlp_bias = KEY("mlp_bias")},
    {"qwen3", "Qwen3ForCausalLM", "qwen3",
     .qk_norm = ALWAYS, .qkv_bias = KEY("attention_bias"), .output_bias = KEY("attention_bias"),
     .window = "use_sliding_window"},
    {"qwen3_moe", "Qwen3MoeForCausalLM", "qwen3", .experts = HF_QWEN,
     .qk_norm = ALWAYS, .qkv_bias = KEY("attention_bias"), .output_bias = KEY("attention_bias"),
     .window = "use_sliding_window"},
    {"deepseek_v2", "DeepseekV2ForCausalLM", "deepseek_v3", .latent = true, .experts = HF_SOFTMAX, .route_scale = 1},
    {"deepseek_v3", "DeepseekV3ForCausalLM", "deepseek_v3", .latent = true, .experts = HF_SIGMOID, .route_scale = 2.5},
    {"mistral", "MistralForCausalLM", "mistral", .window = "", .window_initial = 4096},
    {"mixtral", "MixtralForCausalLM", "mixtral", .experts = HF_MIXTRAL, .window = "", .rope_theta = 1e6, .norm_eps = 1e-5,
     .experts_in = "block_sparse_moe", .expert = {"w1", "w3", "w2"}},
    {"qwen2", "Qwen2ForCausalLM", "qwen2", .qkv_bias = ALWAYS, .window = "use_sliding_window"},
    {"smollm3", "SmolLM3ForCausalLM", "smollm3",
     .qkv_bias = KEY("attention_bias"), .output_bias = KEY("attention_bias"), .mlp_bias = KEY("mlp_bias"),
     .no_rope_layers = true, .rope_theta = 2e6, .tied = true, .window = "use_sliding_window"},
    {"granite", "GraniteForCausalLM", "granite",
     .qkv_bias = KEY("attention_bias"), .output_bias = KEY("attention_bias"), .mlp_bias = KEY("mlp_bias"),
     .multipliers = true},
    {"seed_oss", "SeedOssForCausalLM", "seed_oss",
     .qkv_bias = {"attention_bias", true}, .output_bias = KEY("attention_out_bias"), .mlp_bias = KEY("mlp_bias")},
    {"phi3", "Phi3ForCausalLM", "phi3", .partial = 1, .original_positions = 4096, .fused = true, .norm_eps = 1e-5, .window = ""},
    {"olmo2", "Olmo2ForCausalLM", "olmo2",
     .qk_norm = ALWAYS, .qkv_bias = KEY("attention_bias"), .output_bias = KEY("attention_bias"),
     .output_norms = true, .no_input_norms = true, .qk_norm_whole = true, .norm_eps = 1e-5},
    {"gemma2", "Gemma2ForCausalLM", "gemma2",
     .qkv_bias = KEY("attention_bias"), .output_bias = KEY("attention_bias"), .output_norms = true, .gemma = true, .tied = true,
     .window = "", .window_initial = 4096, .full_every = 2, .attention_softcap = 50, .logits_softcap = 30},
    {"gemma3_text", "Gemma3ForCausalLM", "gemma3",
     .qk_norm = ALWAYS, .qkv_bias = KEY("attention_bias"), .output_bias = KEY("attention_bias"),
     .output_norms = true, .gemma = true, .rope_theta = 1e6, .tied = true,
     .window = "", .window_initial = 4096, .full_every = 6, .rope_local_theta = 1e4},
    {"dots1", "Dots1ForCausalLM", "dots1", .experts = HF_SIGMOID,
     .qk_norm = ALWAYS, .qkv_bias = KEY("attention_bias"), .output_bias = KEY("attention_bias"), .route_scale = 1},
    {"gpt_oss", "GptOssForCausalLM", "gpt_oss", .experts = HF_GPT_OSS,
     .qkv_bias = {"attention_bias", true}, .output_bias = {"attention_bias", true}, .mlp_bias = ALWAYS,
     .rope_theta = 1.5e5, .norm_eps = 1e-5, .window = "", .window_initial = 128, .full_every = 2},
    {"glm4_moe", "Glm4MoeForCausalLM", "glm4_moe", .experts = HF_SIGMOID,
     .qk_norm = KEY("use_qk_norm"), .qkv_bias = KEY("attention_bias"), .partial = 0.5, .norm_eps = 1e-5, .route_scale = 1},
};
/* clang-format on */
static const int hf_families_count = ARRAY_SIZE(hf_families);

const struct hf_family *hf_family_of_type(const char *type)
{
    for (int i = 0; i < hf_families_count; i++)
        if (strcmp(hf_families[i].type, type) == 0)
            return &hf_families[i];
    return NULL;
}

#define FLAVORED "llama3 qwen3 deepseek_v3"

static char names[256];

static void join_names(void)
{
    size_t used = 0;

    for (int i = 0; i < hf_families_count; i++)
        if (!strstr(FLAVORED, hf_families[i].ours))
            used +=
                (size_t)snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? "|" : "", hf_families[i].ours);
    titan_assert(used < sizeof names);
}

const char *hf_family_names(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, join_names);
    return names;
}

void hf_families_list(struct buf *out)
{
    for (int i = 0; i < hf_families_count; i++)
        buf_printf(out, "%s%s", i == 0 ? "" : i + 1 < hf_families_count ? ", " : " and ", hf_families[i].type);
    buf_puts(out, " are supported");
}

/* --- which family a model is of ----------------------------------------------------------------------------------- */

static bool can_have(const struct hf_trait *t, bool value)
{
    return (t->key && t->key[0]) || t->initial == value;
}

/* Gemma multiplies the embedding by sqrt(dim), and scores by 1 / sqrt of a whole number. */
static const char *lacks_gemma(const struct model_dims *d)
{
    const double by = d->attention_multiplier, divisor = by > 0 ? 1 / (by * by) : 1;

    if (!d->gelu || !d->norm_offset)
        return "without GELU and gains less 1";
    if (fabs(d->embedding_multiplier / sqrt((double)d->dim) - 1) > 1e-6)
        return "without model.embedding_multiplier = sqrt(dim)";
    return divisor >= 1 && fabs(divisor / round(divisor) - 1) <= 1e-6 ? NULL : "with such a model.attention_multiplier";
}

/* Traits that gpt-oss has and no other family has. */
static const char *lacks_gpt_oss(const struct hf_family *f, const struct model_dims *d)
{
    const bool own = f->experts == HF_GPT_OSS;

    return d->attention_sinks != own      ? (own ? "without attention sinks" : "with attention sinks")
           : d->router_bias != own        ? (own ? "without a bias of the router" : "with a bias of the router")
           : (d->swiglu_limit > 0) != own ? (own ? "without model.swiglu_limit" : "with model.swiglu_limit")
                                          : NULL;
}

static const char *lacks_experts(const struct hf_family *f, const struct model_dims *d)
{
    const bool limited = d->n_expert_groups > 0 && d->n_limited_groups < d->n_expert_groups;

    if (f->experts == HF_DENSE || d->n_experts == 0)
        return (f->experts == HF_DENSE) == (d->n_experts == 0) ? NULL
               : d->n_experts > 0                              ? "with experts"
                                                               : "without experts";
    if (f->experts == HF_QWEN || f->experts == HF_MIXTRAL || f->experts == HF_GPT_OSS)
        return d->n_shared_experts     ? "with shared experts"
               : d->sigmoid_scores     ? "with sigmoid scores"
               : limited               ? "with groups of experts"
               : d->route_scale != 1   ? "with scores times model.route_scale"
               : f->experts == HF_QWEN ? NULL
               : !d->normalize_scores  ? "without model.normalize_scores"
               : d->n_dense_layers > 0 ? "with layers without experts"
                                       : NULL;
    if (d->sigmoid_scores != (f->experts == HF_SIGMOID))
        return d->sigmoid_scores ? "with sigmoid scores" : "with softmax scores";
    if (d->n_expert_groups > 0 && d->group_top_k != (d->sigmoid_scores ? 2 : 1))
        return d->sigmoid_scores ? "that scores a group of experts by other than its best two"
                                 : "that scores a group of experts by other than its best one";
    return !d->sigmoid_scores && d->normalize_scores ? "with model.normalize_scores" : NULL;
}

/* The model's trait that the family lacks; NULL: none. */
static const char *lacks(const struct hf_family *f, const struct model_dims *d)
{
    const char *trait;

    if (f->latent != (d->kv_lora_rank > 0))
        return f->latent ? "without latent attention" : "with latent attention";
    trait = lacks_experts(f, d);
    if (trait)
        return trait;
    const bool factors = d->residual_multiplier != 0 || d->logits_scaling != 0 ||
                         (!f->gemma && (d->embedding_multiplier != 0 || d->attention_multiplier != 0));
    const char *qkv = f->qkv_bias.key, *output = f->output_bias.key;
    const bool one_key = qkv && output && qkv[0] && strcmp(qkv, output) == 0; /* both are present or both are absent */
    const bool scaled = d->rope_scaling[0] && strcmp(d->rope_scaling, "none") != 0;

    if (f->output_norms != d->output_norms || f->no_input_norms != d->no_input_norms ||
        f->qk_norm_whole != d->qk_norm_whole)
        return "with its norms where they are";
    if (!can_have(&f->qk_norm, d->qk_norm))
        return d->qk_norm ? "with a norm of heads" : "without a norm of heads";
    if (!can_have(&f->qkv_bias, d->qkv_bias) || !can_have(&f->output_bias, d->output_bias) ||
        (one_key && d->qkv_bias != d->output_bias))
        return "with such biases of attention";
    if (!can_have(&f->mlp_bias, d->mlp_bias))
        return "with biases of the feed-forward layer";
    if (lacks_gpt_oss(f, d))
        return lacks_gpt_oss(f, d);
    if (f->gemma && lacks_gemma(d))
        return lacks_gemma(d);
    if (!f->gemma && (d->gelu || d->norm_offset))
        return "with GELU or gains less 1";
    if (d->attention_softcap > 0 && f->attention_softcap == 0)
        return "with capped scores";
    if (d->logits_softcap > 0 && !f->gemma)
        return "with capped logits";
    if (factors && !f->multipliers)
        return "with multipliers";
    if (d->no_rope_every > 0 && !f->no_rope_layers)
        return "with layers that do not rotate";
    if (d->sliding_window > 0 && !f->window)
        return "with a sliding window";
    if (d->sliding_window > 0 && d->full_attention_every > 0 && !f->window[0] && f->full_every == 0)
        return "with a sliding window in some layers";
    if (d->sliding_window > 0 && (f->rope_local_theta > 0) != (d->rope_local_theta > 0))
        return f->rope_local_theta > 0 ? "without model.rope_local_theta" : "with model.rope_local_theta";
    if (d->rope_dim > 0 && f->partial == 0)
        return "with a part of a head that does not rotate";
    if (f->original_positions > 0 && scaled && strcmp(d->rope_scaling, "longrope") != 0)
        return "with such a model.rope_scaling";
    return NULL;
}

titan_status hf_family_of(const struct model_dims *dims, const char *name, const struct hf_family **ret,
                          struct titan_error *err)
{
    const struct hf_family *first = NULL, *own = NULL, *near = NULL;

    for (const struct hf_family *f = hf_families; f < hf_families + hf_families_count; f++) {
        const bool named = strcmp(f->ours, name) == 0, fits = !lacks(f, dims);
        first = first || !fits ? first : f;
        own = own || !fits || !named ? own : f;
        const bool kind = f->latent == (dims->kv_lora_rank > 0) && (f->experts == HF_DENSE) == (dims->n_experts == 0) &&
                          (dims->n_experts == 0 || (f->experts == HF_SIGMOID) == dims->sigmoid_scores);
        near = near || !named || !kind ? near : f; /* messages name this family when no family fits */
    }
    *ret = own ? own : first;
    if (*ret)
        return TITAN_OK;
    return titan_fail(err, TITAN_EUNSUPPORTED, "transformers has no class for this model: %s %s",
                      near ? near->class : "a model", near ? lacks(near, dims) : "with these traits");
}
