/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hf_config.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/recipe_keys.h"

#define CONFIG_BYTES_MAX ((size_t)1 << 20)
#define ROPE_POSITIONS_MAX 0x1p30
#define GEMMA_HEAD 256
#define GEMMA_GELU "gelu_pytorch_tanh"
#define ATTENTION_CAP "attn_logit_softcapping"
#define LOGITS_CAP "final_logit_softcapping"
#define ORIGINAL_POSITIONS "original_max_position_embeddings"
#define LATENT_NORM_EPS 1e-6 /* fixed in transformers' code, independent of rms_norm_eps */

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* Titan's dimensions and transformers' keys for them. */
static const struct {
    const char *key, *theirs[2];
    size_t offset;
    unsigned experts; /* kinds of families that require the key; LATENT: families with latent attention */
} sizes[] = {
#define SIZE(field, key, other, in)                                                                                    \
    {                                                                                                                  \
#field, {key, other }, offsetof(struct model_dims, field), (in)                                                \
    }
#define IN(kind) (1u << (kind))
#define LATENT (1u << 31)
#define ALL (~0u)
#define DEEPSEEK (IN(HF_SOFTMAX) | IN(HF_SIGMOID))
    SIZE(dim, "hidden_size", NULL, ALL),
    SIZE(n_layers, "num_hidden_layers", NULL, ALL),
    SIZE(n_heads, "num_attention_heads", NULL, ALL),
    SIZE(vocab_size, "vocab_size", NULL, ALL),
    SIZE(ffn_hidden, "intermediate_size", NULL, ALL),
    SIZE(kv_lora_rank, "kv_lora_rank", NULL, LATENT),
    SIZE(qk_nope_head_dim, "qk_nope_head_dim", NULL, LATENT),
    SIZE(qk_rope_head_dim, "qk_rope_head_dim", NULL, LATENT),
    SIZE(v_head_dim, "v_head_dim", NULL, LATENT),
    SIZE(n_experts, "num_experts", "num_local_experts", IN(HF_QWEN)),
    SIZE(n_experts, "num_local_experts", NULL, IN(HF_MIXTRAL) | IN(HF_GPT_OSS)),
    SIZE(n_experts, "n_routed_experts", "num_local_experts", DEEPSEEK),
    SIZE(top_k, "num_experts_per_tok", NULL, IN(HF_QWEN) | IN(HF_MIXTRAL) | IN(HF_GPT_OSS) | DEEPSEEK),
    SIZE(moe_hidden, "moe_intermediate_size", NULL, IN(HF_QWEN) | DEEPSEEK),
    SIZE(moe_hidden, "intermediate_size", NULL, IN(HF_MIXTRAL) | IN(HF_GPT_OSS)),
#undef SIZE
};

#define SIZE_MOST (INT64_C(1) << 24)

static titan_status read_size(const struct json *root, const char *key, const char *other, int64_t *ret,
                              struct titan_error *err)
{
    const struct json *v = json_get(root, key);
    if (!v && other)
        v = json_get(root, other);
    if (!v || v->type != JSON_INT || v->integer < 1 || v->integer > SIZE_MOST)
        return titan_fail(err, TITAN_ECORRUPT, "'%s' is missing, or no size from 1 to %lld", key, (long long)SIZE_MOST);
    *ret = v->integer;
    return TITAN_OK;
}

/* Reads a count; if it is missing or null, the count is `fallback`. */
static titan_status read_count(const struct json *root, const char *key, int64_t fallback, int64_t *ret,
                               struct titan_error *err)
{
    const struct json *v = json_get(root, key);
    *ret = fallback;
    if (!v || v->type == JSON_NULL)
        return TITAN_OK;
    if (v->type != JSON_INT || v->integer < 0 || v->integer > SIZE_MOST)
        return titan_fail(err, TITAN_ECORRUPT, "'%s' is no count up to %lld", key, (long long)SIZE_MOST);
    *ret = v->integer;
    return TITAN_OK;
}

static titan_status read_real(const struct json *root, const char *key, double fallback, double *ret,
                              struct titan_error *err)
{
    const struct json *v = json_get(root, key);
    *ret = json_real(root, key, fallback);
    if ((v && v->type != JSON_INT && v->type != JSON_REAL && v->type != JSON_NULL) || !(*ret > 0) || !isfinite(*ret))
        return titan_fail(err, TITAN_ECORRUPT, "'%s' is not a number above 0", key);
    return TITAN_OK;
}

static bool read_flag(const struct json *root, const char *key, bool fallback)
{
    const struct json *v = json_get(root, key);
    return v && v->type == JSON_BOOL ? v->boolean : fallback;
}

static titan_status refuse(const char *key, const char *what, struct titan_error *err)
{
    return titan_fail(err, TITAN_EUNSUPPORTED, "'%s': %s", key, what);
}

static bool read_trait(const struct json *root, const struct hf_trait *trait)
{
    return trait->key && trait->key[0] ? read_flag(root, trait->key, trait->initial) : trait->initial;
}

/* Reads a factor; 1 counts as none. */
static titan_status read_factor(const struct json *root, const char *key, double *ret, struct titan_error *err)
{
    TRY(read_real(root, key, 1, ret, err));
    *ret = *ret == 1 ? 0 : *ret;
    return TITAN_OK;
}

/* Reads a cap: null means none, a missing key means `initial`. */
static titan_status read_cap(const struct json *root, const char *key, double initial, double *ret,
                             struct titan_error *err)
{
    const struct json *v = json_get(root, key);
    *ret = v ? 0 : initial;
    return v && v->type != JSON_NULL ? read_real(root, key, 0, ret, err) : TITAN_OK;
}

static titan_status read_traits(const struct json *root, const struct hf_family *f, struct model_dims *d,
                                struct titan_error *err)
{
    d->output_norms = f->output_norms;
    d->no_input_norms = f->no_input_norms;
    d->qk_norm_whole = f->qk_norm_whole;
    d->qk_norm = read_trait(root, &f->qk_norm);
    d->qkv_bias = read_trait(root, &f->qkv_bias);
    d->output_bias = read_trait(root, &f->output_bias);
    d->mlp_bias = read_trait(root, &f->mlp_bias);
    if (f->experts == HF_GPT_OSS) {
        d->attention_sinks = d->router_bias = true;
        TRY(read_real(root, "swiglu_limit", 7, &d->swiglu_limit, err));
        TRY(read_real(root, "swiglu_alpha", 1.702, &d->swiglu_alpha, err));
    }
    if (f->latent && read_flag(root, "attention_bias", false))
        return refuse("attention_bias", "biases of latent attention are not supported", err);
    /* Gemma divides scores by the root of query_pre_attn_scalar, usually the width of a head. */
    if (f->gemma) {
        int64_t scalar;
        d->gelu = d->norm_offset = true;
        d->embedding_multiplier = sqrt((double)d->dim);
        TRY(read_count(root, "query_pre_attn_scalar", GEMMA_HEAD, &scalar, err));
        if (scalar == 0)
            return titan_fail(err, TITAN_ECORRUPT, "'query_pre_attn_scalar' is 0");
        d->attention_multiplier = scalar == d->head_dim ? 0 : 1 / sqrt((double)scalar);
        if (strcmp(json_string(root, "hidden_activation", GEMMA_GELU), GEMMA_GELU) != 0)
            return refuse("hidden_activation", "only \"" GEMMA_GELU "\" is supported", err);
        if (read_flag(root, "use_bidirectional_attention", false))
            return refuse("use_bidirectional_attention", "only false is supported", err);
        TRY(read_cap(root, ATTENTION_CAP, f->attention_softcap, &d->attention_softcap, err));
        if (d->attention_softcap > 0 && f->attention_softcap == 0) /* transformers' class ignores this cap */
            return refuse(ATTENTION_CAP, "only null is supported", err);
        return read_cap(root, LOGITS_CAP, f->logits_softcap, &d->logits_softcap, err);
    }
    if (strcmp(json_string(root, "hidden_act", "silu"), "silu") != 0)
        return refuse("hidden_act", "only \"silu\" is supported", err);
    if (f->multipliers) {
        TRY(read_factor(root, "embedding_multiplier", &d->embedding_multiplier, err));
        TRY(read_factor(root, "residual_multiplier", &d->residual_multiplier, err));
        TRY(read_factor(root, "logits_scaling", &d->logits_scaling, err));
        TRY(read_real(root, "attention_multiplier", 1, &d->attention_multiplier, err));
    }
    if (!f->no_rope_layers)
        return TITAN_OK;

    /* Reads which layers do not rotate: the last of every n. */
    const struct json *list = json_get(root, "no_rope_layers");
    int64_t layer = 0, every = 0;

    if (!list || list->type != JSON_ARRAY)
        return read_count(root, "no_rope_layer_interval", 4, &d->no_rope_every, err);
    for (const struct json *l = list->first; l; l = l->next, layer++) {
        const bool still = l->type == JSON_INT && l->integer == 0;
        every = still && every == 0 ? layer + 1 : every;
        if (still != (every > 0 && (layer + 1) % every == 0))
            return refuse("no_rope_layers", "only every n-th layer can be without rotation", err);
    }
    if (layer != d->n_layers)
        return titan_fail(err, TITAN_ECORRUPT, "'no_rope_layers' is of %lld layers, 'num_hidden_layers' is %lld",
                          (long long)layer, (long long)d->n_layers);
    d->no_rope_every = every;
    return TITAN_OK;
}

/* Reads YaRN's numbers; a missing number has transformers' default. */
static titan_status read_yarn(const struct json *from, int64_t positions, struct model_dims *d, struct titan_error *err)
{
    const struct json *truncate = json_get(from, "truncate"), *own = json_get(from, "attention_factor");
    TRY(read_size(from, ORIGINAL_POSITIONS, NULL, &d->rope_original_length, err));
    titan_assert(d->rope_original_length >= 1);
    TRY(read_real(from, "factor", (double)positions / (double)d->rope_original_length, &d->rope_factor, err));
    TRY(read_real(from, "beta_fast", 32, &d->rope_beta_fast, err));
    TRY(read_real(from, "beta_slow", 1, &d->rope_beta_slow, err));
    if (json_real(from, "mscale", 0) != 0)
        TRY(read_real(from, "mscale", 0, &d->rope_mscale, err));
    if (json_real(from, "mscale_all_dim", 0) != 0)
        TRY(read_real(from, "mscale_all_dim", 0, &d->rope_mscale_all_dim, err));
    d->rope_between_pairs = truncate && truncate->type == JSON_BOOL && !truncate->boolean;
    if (own && own->type != JSON_NULL)
        return refuse("attention_factor", "only the one that follows from factor and mscale is supported", err);
    return TITAN_OK;
}

/* Reads one number for each rotated pair of a head. */
static titan_status read_factors(const struct json *from, const char *key, int64_t pairs, struct recipe_reals *ret,
                                 struct titan_error *err)
{
    const struct json *list = json_get(from, key);
    int64_t n = 0;

    if (!list || list->type != JSON_ARRAY)
        return titan_fail(err, TITAN_ECORRUPT, "'%s' is missing, or no list of numbers", key);
    for (const struct json *v = list->first; v; v = v->next, n++) {
        const double x = v->type == JSON_INT ? (double)v->integer : v->type == JSON_REAL ? v->real : 0;
        if (!(x > 0) || !isfinite(x))
            return titan_fail(err, TITAN_ECORRUPT, "'%s' has a value that is not a number above 0", key);
        if (n < RECIPE_REALS_MAX)
            ret->value[n] = x;
    }
    if (n != pairs)
        return titan_fail(err, TITAN_ECORRUPT, "'%s' has %lld numbers, and %lld pairs of a head are rotated", key,
                          (long long)n, (long long)pairs);
    if (n > RECIPE_REALS_MAX)
        return titan_fail(err, TITAN_EUNSUPPORTED, "'%s' has more than %d numbers", key, RECIPE_REALS_MAX);
    ret->n = n;
    return TITAN_OK;
}

/* Reads LongRoPE's numbers. transformers prefers the original length beside the rule to the original length within the
 * rule. */
static titan_status read_longrope(const struct json *root, const struct json *from, const struct hf_family *f,
                                  int64_t positions, struct model_dims *d, struct titan_error *err)
{
    const struct json *own = json_get(from, "attention_factor");
    int64_t *const original = &d->rope_original_length;

    TRY(read_count(from, ORIGINAL_POSITIONS, positions, original, err));
    TRY(read_count(root, ORIGINAL_POSITIONS, f->original_positions > 0 ? f->original_positions : *original, original,
                   err));
    if (*original < 2 || *original > positions)
        return titan_fail(err, TITAN_ECORRUPT,
                          "'" ORIGINAL_POSITIONS "' is %lld: not from 2 to max_position_embeddings = %lld",
                          (long long)*original, (long long)positions);
    TRY(read_real(from, "factor", (double)positions / (double)*original, &d->rope_factor, err));
    if (own && own->type != JSON_NULL)
        TRY(read_real(from, "attention_factor", 0, &d->rope_attention_factor, err));
    TRY(read_factors(from, "short_factor", recipe_rope_pairs(d), &d->rope_short_factor, err));
    return read_factors(from, "long_factor", recipe_rope_pairs(d), &d->rope_long_factor, err);
}

/* transformers 5 has "rope_parameters"; older versions have "rope_theta" and "rope_scaling". */
static titan_status read_rope(const struct json *root, const struct hf_family *f, int64_t positions,
                              struct model_dims *d, struct titan_error *err)
{
    static const char *const rules[] = {"llama3", "yarn", "linear", "dynamic", "longrope"};
    const struct json *p = json_get(root, "rope_parameters"), *scaling = json_get(root, "rope_scaling");
    if (f->rope_local_theta > 0 && d->sliding_window > 0) { /* the rule for layers with a window */
        const struct json *own = json_get(p, "sliding_attention");
        const bool there = own && own->type == JSON_OBJECT; /* older versions have "rope_local_base_freq" */
        if (strcmp(json_string(own, "rope_type", "default"), "default") != 0)
            return refuse("sliding_attention", "only \"rope_type\": \"default\" is supported", err);
        TRY(read_real(there ? own : root, there ? "rope_theta" : "rope_local_base_freq", f->rope_local_theta,
                      &d->rope_local_theta, err));
    }
    if (f->rope_local_theta > 0 && json_get(p, "full_attention"))
        p = json_get(p, "full_attention");
    const struct json *from = p && p->type == JSON_OBJECT ? p : scaling;
    const double all = f->partial > 0 ? f->partial : 1;
    const char *type = json_string(from, "rope_type", json_string(from, "type", "default"));
    size_t rule = 0;

    TRY(read_real(p && p->type == JSON_OBJECT && json_get(p, "rope_theta") ? p : root, "rope_theta",
                  f->rope_theta > 0 ? f->rope_theta : 10000.0, &d->rope_theta, err));
    const double part = json_real(from, "partial_rotary_factor", json_real(root, "partial_rotary_factor", all));
    const int64_t columns = (int64_t)((double)d->head_dim * part);
    if (part != 1 && f->partial == 0)
        return refuse("partial_rotary_factor", "only 1 is supported", err);
    if (part != 1 && (part > 1 || columns < 2 || columns % 2 != 0))
        return titan_fail(err, TITAN_ECORRUPT, "'partial_rotary_factor' is %g: no even number of columns of %lld", part,
                          (long long)d->head_dim);
    d->rope_dim = part == 1 ? d->rope_dim : columns;
    if (f->experts == HF_GPT_OSS && !(from && from->type == JSON_OBJECT))
        return titan_fail(err, TITAN_EUNSUPPORTED,
                          "'rope_scaling' is missing, which transformers takes for YaRN by 32: "
                          "write it down");
    if (strcmp(type, "su") == 0 || (f->original_positions > 0 && strcmp(type, "yarn") == 0)) /* former names */
        type = "longrope";
    while (rule < ARRAY_SIZE(rules) && strcmp(type, rules[rule]) != 0)
        rule++;
    if (rule == ARRAY_SIZE(rules) && strcmp(type, "default") != 0)
        return titan_fail(
            err, TITAN_EUNSUPPORTED,
            "'rope_type' is \"%.32s\"; \"llama3\", \"yarn\", \"linear\", \"dynamic\" and \"longrope\" are "
            "supported",
            type);
    (void)snprintf(d->rope_scaling, sizeof d->rope_scaling, "%s", rule < ARRAY_SIZE(rules) ? rules[rule] : "none");
    if (rule == 3)
        d->rope_original_length = positions;
    if (rule == 0) {
        TRY(read_real(from, "factor", 0, &d->rope_factor, err));
        TRY(read_real(from, "low_freq_factor", 0, &d->rope_low_freq_factor, err));
        TRY(read_real(from, "high_freq_factor", 0, &d->rope_high_freq_factor, err));
        return read_size(from, ORIGINAL_POSITIONS, NULL, &d->rope_original_length, err);
    }
    return rule == 1                ? read_yarn(from, positions, d, err)
           : rule == 2 || rule == 3 ? read_real(from, "factor", 0, &d->rope_factor, err)
           : rule == 4              ? read_longrope(root, from, f, positions, d, err)
                                    : TITAN_OK;
}

static titan_status read_experts(const struct json *root, const struct hf_family *f, struct model_dims *d,
                                 struct titan_error *err)
{
    const bool sigmoid = f->experts == HF_SIGMOID, v3 = sigmoid && f->latent;
    /* the softmax is over the chosen experts */
    const bool chosen = f->experts == HF_MIXTRAL || f->experts == HF_GPT_OSS;
    const struct json *dense = json_get(root, "mlp_only_layers");
    const char *method = json_string(root, "topk_method", "greedy");
    int64_t groups = 1, of = 1;
    d->normalize_scores = chosen || read_flag(root, "norm_topk_prob", sigmoid);
    d->route_scale = 1;
    if (chosen)
        return TITAN_OK;
    if (f->experts == HF_QWEN) {
        if (json_int(root, "decoder_sparse_step", 1) != 1)
            return refuse("decoder_sparse_step", "only 1 is supported", err);
        for (const struct json *l = dense && dense->type == JSON_ARRAY ? dense->first : NULL; l; l = l->next)
            if (l->type != JSON_INT || l->integer != d->n_dense_layers++)
                return refuse("mlp_only_layers", "only the first layers can be without experts", err);
        return TITAN_OK;
    }
    titan_assert(IN(f->experts) & DEEPSEEK);
    TRY(read_count(root, "n_shared_experts", 0, &d->n_shared_experts, err));
    TRY(read_count(root, "first_k_dense_replace", 0, &d->n_dense_layers, err));
    TRY(read_real(root, "routed_scaling_factor", f->route_scale, &d->route_scale, err));
    if (json_int(root, "moe_layer_freq", 1) != 1)
        return refuse("moe_layer_freq", "only 1 is supported", err);

    /* DeepSeek V3 scores a group by its best two experts. V2, if it has groups, scores a group by its best expert. */
    if (!sigmoid && strcmp(method, "greedy") != 0 && strcmp(method, "group_limited_greedy") != 0)
        return refuse("topk_method", "only \"greedy\" and \"group_limited_greedy\" are supported", err);
    TRY(read_count(root, "n_group", v3 ? 8 : 1, &groups, err));
    TRY(read_count(root, "topk_group", v3 ? 4 : 1, &of, err));
    if (groups > 1 && of < groups && (sigmoid || strcmp(method, "greedy") != 0)) {
        if (of == 0)
            return titan_fail(err, TITAN_ECORRUPT, "'topk_group' is 0: no group of experts would be taken");
        d->n_expert_groups = groups;
        d->n_limited_groups = of;
        d->group_top_k = sigmoid ? 2 : 1;
    }
    d->sigmoid_scores = d->expert_bias = sigmoid; /* the files have biases */
    d->balance_rate = sigmoid ? 1e-3 : 0;
    if (!sigmoid && strcmp(json_string(root, "scoring_func", "softmax"), "softmax") != 0)
        return refuse("scoring_func", "only \"softmax\" is supported", err);
    return TITAN_OK;
}

static titan_status read_dims(const struct json *root, const struct hf_family *f, struct hf_config *c,
                              struct titan_error *err)
{
    static const char *const balance[] = {"router_aux_loss_coef", "aux_loss_alpha"};
    struct model_dims *d = &c->dims;
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
        if (sizes[i].experts & (IN(f->experts) | (f->latent ? LATENT : 0)))
            TRY(read_size(root, sizes[i].theirs[0], sizes[i].theirs[1],
                          (int64_t *)(void *)((char *)d + sizes[i].offset), err));
    if (f->latent) {
        TRY(read_count(root, "q_lora_rank", 0, &d->q_lora_rank, err));
        d->n_kv_heads = d->n_heads;
        d->head_dim = d->qk_nope_head_dim + d->qk_rope_head_dim;
        d->latent_norm_eps = LATENT_NORM_EPS;
        c->halves = !read_flag(root, "rope_interleave", true);
    } else {
        TRY(read_count(root, "num_key_value_heads", d->n_heads, &d->n_kv_heads, err));
        TRY(read_count(root, "head_dim", f->gemma ? GEMMA_HEAD : d->dim / d->n_heads, &d->head_dim, err));
    }
    TRY(read_real(root, "rms_norm_eps", f->norm_eps > 0 ? f->norm_eps : 1e-6, &d->norm_eps, err));
    d->tied_embeddings = read_flag(root, "tie_word_embeddings", f->tied);
    TRY(read_traits(root, f, d, err));

    /* Which layers have the window: all, none, or all but every n-th. */
    const struct json *types = json_get(root, "layer_types"), *window = json_get(root, "sliding_window");
    const bool by_layer = f->window && f->window[0];
    int64_t without, layer = 0, every = 0;

    if (f->window && (!by_layer || read_flag(root, f->window, false)))
        TRY(read_count(root, "sliding_window", window ? 0 : f->window_initial, &d->sliding_window, err));
    if (types && types->type == JSON_ARRAY) { /* all layers have the window, or all but every n-th */
        for (const struct json *l = types->first; l; l = l->next, layer++) {
            const bool full = l->type == JSON_STRING && strcmp(l->string, "full_attention") == 0;
            if (!full && (l->type != JSON_STRING || strcmp(l->string, "sliding_attention") != 0))
                return refuse("layer_types", "only \"full_attention\" and \"sliding_attention\" are supported", err);
            if (!full && d->sliding_window == 0)
                return titan_fail(err, TITAN_ECORRUPT,
                                  "'layer_types' has \"sliding_attention\", and there is no window");
            every = full && every == 0 ? layer + 1 : every;
            if (full != (every > 0 && (layer + 1) % every == 0))
                return refuse("layer_types", "only every n-th layer can have full attention", err);
        }
        if (layer != d->n_layers)
            return titan_fail(err, TITAN_ECORRUPT, "'layer_types' is of %lld layers, 'num_hidden_layers' is %lld",
                              (long long)layer, (long long)d->n_layers);
        d->full_attention_every = every;
    } else if (f->full_every > 0) {
        TRY(read_count(root, "sliding_window_pattern", f->full_every, &d->full_attention_every, err));
    } else if (by_layer && d->sliding_window > 0) {
        TRY(read_count(root, "max_window_layers", 28, &without, err));
        if (without > 0 && without < d->n_layers)
            return refuse("max_window_layers", "only 0 is supported", err);
        d->full_attention_every = without > 0;
    }
    if (d->full_attention_every == 1)
        d->sliding_window = 0;
    if (d->full_attention_every > d->n_layers || d->sliding_window == 0)
        d->full_attention_every = 0;

    TRY(read_rope(root, f, c->positions, d, err));
    if (strcmp(d->rope_scaling, "dynamic") == 0 &&
        d->rope_factor > 1) /* the dynamic base begins to grow at "max_position_embeddings" */
        c->positions = (int64_t)MIN((double)c->positions * d->rope_factor, ROPE_POSITIONS_MAX);
    if (f->experts != HF_DENSE) {
        TRY(read_experts(root, f, d, err));
        /* transformers averages this loss in another way than model.balance_loss. So the key is only noted for the
         * caller. */
        for (size_t i = 0; i < ARRAY_SIZE(balance); i++)
            if (json_real(root, balance[i], 0) > 0) {
                c->balance_key = balance[i];
                c->balance_loss = json_real(root, balance[i], 0);
            }
    }
    return hf_family_has_modules(f) ? read_count(root, "num_nextn_predict_layers", 0, &c->more_layers, err) : TITAN_OK;
}

titan_status hf_config_parse(const char *text, size_t len, struct hf_config *ret, struct titan_error *err)
{
    _cleanup_(json_clear) struct json *root = NULL;
    *ret = (struct hf_config){.there = true};
    if (json_parse(text, len, &root, err) != TITAN_OK)
        return err ? (err->status = TITAN_ECORRUPT) : TITAN_ECORRUPT;
    const char *type = json_string(root, "model_type", "");
    const struct hf_family *f = hf_family_of_type(type);
    if (!f) {
        _cleanup_(buf_free) struct buf have = BUF_INIT;
        hf_families_list(&have);
        return titan_fail(err, TITAN_EUNSUPPORTED, "'model_type' is \"%.32s\"; %s", type, have.data ? have.data : "");
    }
    ret->family = f;
    TRY(read_count(root, "max_position_embeddings", 2048, &ret->positions, err));
    return read_dims(root, f, ret, err);
}

titan_status hf_config_read(int at, const char *path, struct hf_config *ret, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    *ret = (struct hf_config){0};
    titan_status status =
        file_read_at(at, HF_CONFIG_NAME, file_refuses_links() ? O_NOFOLLOW : 0, CONFIG_BYTES_MAX, &text, err);
    if (status == TITAN_ENOTFOUND)
        return TITAN_OK;
    if (status == TITAN_OK)
        status = hf_config_parse(text.data ? text.data : "", text.len, ret, err);
    if (status != TITAN_OK)
        (void)titan_error_wrap(err, "'%s/" HF_CONFIG_NAME "'", path);
    return status;
}

/* --- comparing ---------------------------------------------------------------------------------------------------- */

static const char *rope_rule(const struct model_dims *d)
{
    return d->rope_scaling[0] ? d->rope_scaling : "none";
}

static double latent_eps(const struct model_dims *d)
{
    return d->kv_lora_rank == 0 ? 0 : d->latent_norm_eps > 0 ? d->latent_norm_eps : d->norm_eps;
}

static bool same_reals(const struct recipe_reals *a, const struct recipe_reals *b)
{
    bool same = a->n == b->n;
    for (int64_t i = 0; same && i < a->n; i++)
        same = a->value[i] == b->value[i];
    return same;
}

static double factor(double x)
{
    return x == 0 ? 1 : x;
}

titan_status hf_config_compare(const struct hf_config *c, const struct model_dims *d, struct buf *ret_note,
                               struct titan_error *err)
{
    const struct model_dims *t = &c->dims;
    const bool dense = t->n_experts == 0 || t->n_dense_layers > 0, chosen = d->n_experts > 0;
    const bool same_rule = strcmp(rope_rule(d), rope_rule(t)) == 0;
    const bool stretched = same_rule && strcmp(rope_rule(d), "none") != 0;
    const bool ramp = stretched && strcmp(rope_rule(d), "linear") != 0;
    const struct {
        const char *key;
        int64_t ours, theirs;
    } shapes[] = {{"dim", d->dim, t->dim},
                  {"n_layers", d->n_layers, t->n_layers},
                  {"n_heads", d->n_heads, t->n_heads},
                  {"n_kv_heads", d->n_kv_heads, t->n_kv_heads},
                  {"head_dim", d->head_dim, t->head_dim},
                  {"vocab_size", d->vocab_size, t->vocab_size},
                  {"ffn_hidden", dense ? d->ffn_hidden : t->ffn_hidden, t->ffn_hidden},
                  {"qk_norm", d->qk_norm, t->qk_norm},
                  {"qk_norm_whole", d->qk_norm_whole, t->qk_norm_whole},
                  {"output_norms", d->output_norms, t->output_norms},
                  {"no_input_norms", d->no_input_norms, t->no_input_norms},
                  {"norm_offset", d->norm_offset, t->norm_offset},
                  {"gelu", d->gelu, t->gelu},
                  {"qkv_bias", d->qkv_bias, t->qkv_bias},
                  {"output_bias", d->output_bias, t->output_bias},
                  {"mlp_bias", d->mlp_bias, t->mlp_bias},
                  {"attention_sinks", d->attention_sinks, t->attention_sinks},
                  {"router_bias", d->router_bias, t->router_bias},
                  {"rope_dim", d->rope_dim, t->rope_dim},
                  {"q_lora_rank", d->q_lora_rank, t->q_lora_rank},
                  {"kv_lora_rank", d->kv_lora_rank, t->kv_lora_rank},
                  {"qk_nope_head_dim", d->qk_nope_head_dim, t->qk_nope_head_dim},
                  {"qk_rope_head_dim", d->qk_rope_head_dim, t->qk_rope_head_dim},
                  {"v_head_dim", d->v_head_dim, t->v_head_dim},
                  {"n_experts", d->n_experts, t->n_experts},
                  {"n_shared_experts", d->n_shared_experts, t->n_shared_experts},
                  {"moe_hidden", chosen ? d->moe_hidden : t->moe_hidden, t->moe_hidden},
                  {"n_dense_layers", chosen ? d->n_dense_layers : t->n_dense_layers, t->n_dense_layers},
                  {"sigmoid_scores", d->sigmoid_scores, t->sigmoid_scores}};
    const struct {
        const char *key;
        double ours, theirs;
    } numbers[] = {
        {"rope_theta", d->rope_theta, t->rope_theta},
        {"norm_eps", d->norm_eps, t->norm_eps},
        {"rope_factor", stretched ? d->rope_factor : 0, stretched ? t->rope_factor : 0},
        {"rope_original_length", ramp ? (double)d->rope_original_length : 0,
         ramp ? (double)t->rope_original_length : 0},
        {"rope_low_freq_factor", ramp ? d->rope_low_freq_factor : 0, ramp ? t->rope_low_freq_factor : 0},
        {"rope_high_freq_factor", ramp ? d->rope_high_freq_factor : 0, ramp ? t->rope_high_freq_factor : 0},
        {"rope_beta_fast", ramp ? d->rope_beta_fast : 0, ramp ? t->rope_beta_fast : 0},
        {"rope_beta_slow", ramp ? d->rope_beta_slow : 0, ramp ? t->rope_beta_slow : 0},
        {"rope_mscale", ramp ? d->rope_mscale : 0, ramp ? t->rope_mscale : 0},
        {"rope_mscale_all_dim", ramp ? d->rope_mscale_all_dim : 0, ramp ? t->rope_mscale_all_dim : 0},
        {"rope_attention_factor", ramp ? d->rope_attention_factor : 0, ramp ? t->rope_attention_factor : 0},
        {"rope_between_pairs", ramp && d->rope_between_pairs, ramp && t->rope_between_pairs},
        {"swiglu_limit", d->swiglu_limit, t->swiglu_limit},
        {"swiglu_alpha", d->swiglu_limit > 0 ? d->swiglu_alpha : 0, t->swiglu_limit > 0 ? t->swiglu_alpha : 0},
        {"no_rope_every", (double)d->no_rope_every, (double)t->no_rope_every},
        {"sliding_window", (double)d->sliding_window, (double)t->sliding_window},
        {"full_attention_every", (double)d->full_attention_every, (double)t->full_attention_every},
        {"rope_local_theta", d->rope_local_theta, t->rope_local_theta},
        {"embedding_multiplier", factor(d->embedding_multiplier), factor(t->embedding_multiplier)},
        {"residual_multiplier", factor(d->residual_multiplier), factor(t->residual_multiplier)},
        {"attention_multiplier", d->attention_multiplier, t->attention_multiplier},
        {"logits_scaling", factor(d->logits_scaling), factor(t->logits_scaling)},
        {"attention_softcap", d->attention_softcap, t->attention_softcap},
        {"logits_softcap", d->logits_softcap, t->logits_softcap},
        {"latent_norm_eps", latent_eps(d), latent_eps(t)},
        {"n_expert_groups", (double)d->n_expert_groups, (double)t->n_expert_groups},
        {"n_limited_groups", (double)d->n_limited_groups, (double)t->n_limited_groups},
        {"group_top_k", (double)d->group_top_k, (double)t->group_top_k},
        {"top_k", (double)d->top_k, (double)t->top_k},
        {"normalize_scores", chosen && d->normalize_scores, chosen && t->normalize_scores},
        {"route_scale", chosen ? d->route_scale : 0, chosen ? t->route_scale : 0}};

    if (!c->there)
        return TITAN_OK;
    _cleanup_(buf_free) struct buf other = BUF_INIT;
    for (size_t i = 0; i < ARRAY_SIZE(shapes); i++)
        if (shapes[i].ours != shapes[i].theirs)
            buf_printf(&other, "%smodel.%s = %lld, there %lld", other.len > 0 ? "; " : "", shapes[i].key,
                       (long long)shapes[i].ours, (long long)shapes[i].theirs);
    if (other.len > 0) {
        (void)titan_fail(err, TITAN_ECONFLICT, "the weights are of another model: %s (" HF_CONFIG_NAME ")", other.data);
        titan_error_hint(err, "leave these keys out with model.flavor = \"hf\": it takes the dimensions from there");
        return TITAN_ECONFLICT;
    }
    if (!same_rule)
        buf_printf(ret_note, "%smodel.rope_scaling = %s, there %s", ret_note->len > 0 ? "; " : "", rope_rule(d),
                   rope_rule(t));
    if (ramp && !same_reals(&d->rope_short_factor, &t->rope_short_factor))
        buf_printf(ret_note, "%smodel.rope_short_factor is another list there", ret_note->len > 0 ? "; " : "");
    if (ramp && !same_reals(&d->rope_long_factor, &t->rope_long_factor))
        buf_printf(ret_note, "%smodel.rope_long_factor is another list there", ret_note->len > 0 ? "; " : "");
    for (size_t i = 0; i < ARRAY_SIZE(numbers); i++)
        if (numbers[i].ours != numbers[i].theirs)
            buf_printf(ret_note, "%smodel.%s = %g, there %g", ret_note->len > 0 ? "; " : "", numbers[i].key,
                       numbers[i].ours, numbers[i].theirs);
    return TITAN_OK;
}

/* --- for a recipe ------------------------------------------------------------------------------------------------- */

titan_status hf_config_fill(struct recipe *r, const char *base, bool *ret_changed, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf note = BUF_INIT;
    const char *path = r->checkpoint.initial_load_path;
    struct hf_config c;
    char name[64], at[PATH_MAX];

    *ret_changed = recipe_lacks_dims(r);
    if (!*ret_changed)
        return TITAN_OK;
    if (!*path)
        return titan_fail(err, TITAN_EINVAL,
                          "model.flavor = \"hf\" needs checkpoint.initial_load_path, the folder with " HF_CONFIG_NAME);
    const bool beside = *path != '/' && base;
    if ((size_t)snprintf(at, sizeof at, "%s%s%s", beside ? base : "", beside ? "/" : "", path) >= sizeof at)
        return titan_fail(err, TITAN_EINVAL, "checkpoint.initial_load_path is too long");
    _cleanup_fd_ int folder = file_open_named(at, O_RDONLY | O_DIRECTORY);
    if (folder < 0)
        return titan_fail_errno(err, "model.flavor = \"hf\": cannot open folder '%s'", at);
    TRY(hf_config_read(folder, at, &c, err));
    if (!c.there)
        return titan_fail(err, TITAN_ENOTFOUND, "'%s' has no " HF_CONFIG_NAME, at);
    if (recipe_key_in(r->set_mask, recipe_key_find("model", "name")) && strcmp(r->model.name, c.family->ours) != 0)
        return titan_fail(err, TITAN_ECONFLICT, "model.name = \"%s\", but " HF_CONFIG_NAME " is of \"%s\"",
                          r->model.name, c.family->ours);
    (void)snprintf(name, sizeof name, "model.name=%s", c.family->ours);
    TRY(recipe_set(r, name, err));
    recipe_fill_dims(r, &c.dims);
    return hf_config_compare(&c, &r->model.dims, &note, err);
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

static void put_factors(struct json_writer *w, const char *key, const struct recipe_reals *factors)
{
    json_begin_array(w, key);
    for (int64_t i = 0; i < factors->n; i++)
        json_put_real(w, NULL, factors->value[i]);
    json_end_array(w);
}

/* The value of max_position_embeddings. A dynamic base grows beyond this length. LongRoPE's factor follows from it. */
static int64_t declared_positions(const struct model_dims *d, int64_t positions)
{
    const double stretched = round(d->rope_factor * (double)d->rope_original_length);

    return strcmp(rope_rule(d), "dynamic") == 0    ? d->rope_original_length
           : strcmp(rope_rule(d), "longrope") == 0 ? MAX(positions, (int64_t)MIN(stretched, ROPE_POSITIONS_MAX))
                                                   : positions;
}

static void put_rope_scaling(struct json_writer *w, const struct hf_family *f, const struct model_dims *d,
                             int64_t positions)
{
    const char *rule = rope_rule(d);
    const bool none = strcmp(rule, "none") == 0, longrope = strcmp(rule, "longrope") == 0;
    /* Earlier versions of transformers accept only three keys for Phi 3. The factor then follows from the two
     * lengths. */
    const bool phi = longrope && f->original_positions > 0;
    if (none && f->experts != HF_GPT_OSS) {
        json_put_raw(w, "rope_scaling", "null");
        return;
    }
    json_begin_object(w, "rope_scaling");
    /* not null for gpt-oss: transformers reads null as YaRN with factor 32 */
    json_put_string(w, phi ? "type" : "rope_type", none ? "default" : rule);
    if (longrope) {
        titan_assert(d->rope_original_length > 0);
        const bool follows = (double)positions / (double)d->rope_original_length == d->rope_factor;
        put_factors(w, "short_factor", &d->rope_short_factor);
        put_factors(w, "long_factor", &d->rope_long_factor);
        if (!phi)
            json_put_int(w, ORIGINAL_POSITIONS, d->rope_original_length);
        if (!phi || !follows)
            json_put_real(w, "factor", d->rope_factor);
        if (d->rope_attention_factor > 0)
            json_put_real(w, "attention_factor", d->rope_attention_factor);
    } else if (!none) {
        json_put_real(w, "factor", d->rope_factor);
    }
    if (strcmp(rule, "llama3") == 0 || strcmp(rule, "yarn") == 0)
        json_put_int(w, ORIGINAL_POSITIONS, d->rope_original_length);
    if (strcmp(rule, "llama3") == 0) {
        json_put_real(w, "low_freq_factor", d->rope_low_freq_factor);
        json_put_real(w, "high_freq_factor", d->rope_high_freq_factor);
    } else if (strcmp(rule, "yarn") == 0) {
        json_put_real(w, "beta_fast", d->rope_beta_fast);
        json_put_real(w, "beta_slow", d->rope_beta_slow);
        if (d->rope_between_pairs)
            json_put_bool(w, "truncate", false);
        if (d->rope_mscale > 0)
            json_put_real(w, "mscale", d->rope_mscale);
        if (d->rope_mscale_all_dim > 0)
            json_put_real(w, "mscale_all_dim", d->rope_mscale_all_dim);
    }
    json_end_object(w);
    if (phi)
        json_put_int(w, ORIGINAL_POSITIONS, d->rope_original_length);
}

static void put_experts(struct json_writer *w, const struct hf_family *f, const struct model_dims *d)
{
    titan_assert(d->n_experts > 0 && f->experts != HF_DENSE);
    json_put_int(w, "num_experts_per_tok", d->top_k);
    if (f->experts == HF_GPT_OSS) {
        json_put_real(w, "swiglu_limit", d->swiglu_limit);
        json_put_real(w, "swiglu_alpha", d->swiglu_alpha);
    }
    if (f->experts == HF_MIXTRAL || f->experts == HF_GPT_OSS) {
        json_put_int(w, "num_local_experts", d->n_experts);
        json_put_real(w, "router_aux_loss_coef", 0);
        return;
    }
    json_put_int(w, "moe_intermediate_size", d->moe_hidden);
    json_put_bool(w, "norm_topk_prob", d->normalize_scores);
    if (f->experts == HF_QWEN) {
        json_put_int(w, "num_experts", d->n_experts);
        json_put_int(w, "decoder_sparse_step", 1);
        json_put_real(w, "router_aux_loss_coef", 0);
        json_begin_array(w, "mlp_only_layers");
        for (int64_t l = 0; l < d->n_dense_layers; l++)
            json_put_int(w, NULL, l);
        json_end_array(w);
        return;
    }
    json_put_int(w, "n_routed_experts", d->n_experts);
    json_put_int(w, "n_shared_experts", d->n_shared_experts);
    json_put_int(w, "first_k_dense_replace", d->n_dense_layers);
    json_put_int(w, "moe_layer_freq", 1);
    json_put_real(w, "routed_scaling_factor", d->route_scale);
    json_put_string(w, "scoring_func", d->sigmoid_scores ? "sigmoid" : "softmax");
    const char *v2 = d->n_expert_groups > 0 ? "group_limited_greedy" : "greedy";
    json_put_string(w, "topk_method", d->sigmoid_scores ? "noaux_tc" : v2);
    json_put_int(w, "n_group", MAX(d->n_expert_groups, 1));
    json_put_int(w, "topk_group", MAX(d->n_limited_groups, 1));
    json_put_int(w, "num_nextn_predict_layers", d->mtp_layers);
}

/* Writes a trait under its key, once if two traits share the key. */
static void put_trait(struct json_writer *w, const struct hf_trait *trait, bool value, const struct hf_trait *before)
{
    if (trait->key && trait->key[0] && !(before && before->key && strcmp(before->key, trait->key) == 0))
        json_put_bool(w, trait->key, value);
}

static void put_cap(struct json_writer *w, const char *key, double cap)
{
    if (cap > 0)
        json_put_real(w, key, cap);
    else
        json_put_raw(w, key, "null");
}

static void put_traits(struct json_writer *w, const struct hf_family *f, const struct model_dims *d)
{
    put_trait(w, &f->qk_norm, d->qk_norm, NULL);
    put_trait(w, &f->qkv_bias, d->qkv_bias, NULL);
    put_trait(w, &f->output_bias, d->output_bias, &f->qkv_bias);
    put_trait(w, &f->mlp_bias, d->mlp_bias, NULL);
    if (f->window) {
        const bool has = d->sliding_window > 0;
        if (has || f->full_every > 0) /* transformers builds both masks, used or not */
            json_put_int(w, "sliding_window", has ? d->sliding_window : f->window_initial);
        else
            json_put_raw(w, "sliding_window", "null");
        if (f->window[0]) {
            json_put_bool(w, f->window, has);
            json_put_int(w, "max_window_layers", has ? 0 : d->n_layers);
        }
        if (f->window[0] || f->full_every > 0) {
            json_begin_array(w, "layer_types");
            for (int64_t l = 1; l <= d->n_layers; l++) {
                const bool full = !has || (d->full_attention_every > 0 && l % d->full_attention_every == 0);
                json_put_string(w, NULL, full ? "full_attention" : "sliding_attention");
            }
            json_end_array(w);
        }
    }
    if (f->gemma) {
        const double by = d->attention_multiplier;
        json_put_int(w, "query_pre_attn_scalar", by > 0 ? llround(1 / (by * by)) : d->head_dim);
        json_put_string(w, "hidden_activation", GEMMA_GELU);
        put_cap(w, ATTENTION_CAP, d->attention_softcap);
        put_cap(w, LOGITS_CAP, d->logits_softcap);
    } else {
        json_put_string(w, "hidden_act", "silu");
    }
    if (d->rope_local_theta > 0)
        json_put_real(w, "rope_local_base_freq", d->rope_local_theta);
    if (f->multipliers) {
        json_put_real(w, "embedding_multiplier", factor(d->embedding_multiplier));
        json_put_real(w, "residual_multiplier", factor(d->residual_multiplier));
        json_put_real(w, "logits_scaling", factor(d->logits_scaling));
        json_put_real(w, "attention_multiplier",
                      d->attention_multiplier > 0 ? d->attention_multiplier : 1 / sqrt((double)d->head_dim));
    }
    if (f->no_rope_layers) {
        json_put_int(w, "no_rope_layer_interval", MAX(d->no_rope_every, 1));
        json_begin_array(w, "no_rope_layers");
        for (int64_t l = 1; l <= d->n_layers; l++)
            json_put_int(w, NULL, d->no_rope_every == 0 || l % d->no_rope_every != 0);
        json_end_array(w);
    }
    if (f->partial > 0)
        json_put_real(w, "partial_rotary_factor", d->rope_dim > 0 ? (double)d->rope_dim / (double)d->head_dim : 1);
}

void hf_config_put(struct json_writer *w, const struct hf_family *f, const struct model_dims *d, int64_t positions)
{
    titan_assert(positions >= 1);
    json_begin_array(w, "architectures");
    json_put_string(w, NULL, f->class);
    json_end_array(w);
    json_put_string(w, "model_type", f->type);
    put_traits(w, f, d);
    if (f->latent) {
        titan_assert(d->kv_lora_rank > 0);
        if (d->q_lora_rank > 0)
            json_put_int(w, "q_lora_rank", d->q_lora_rank);
        else
            json_put_raw(w, "q_lora_rank", "null");
        json_put_int(w, "kv_lora_rank", d->kv_lora_rank);
        json_put_int(w, "qk_nope_head_dim", d->qk_nope_head_dim);
        json_put_int(w, "qk_rope_head_dim", d->qk_rope_head_dim);
        json_put_int(w, "v_head_dim", d->v_head_dim);
        json_put_bool(w, "rope_interleave", true);
    } else {
        json_put_int(w, "head_dim", d->head_dim);
    }
    if (f->experts != HF_DENSE)
        put_experts(w, f, d);
    json_put_real(w, "attention_dropout", 0);
    json_put_int(w, "hidden_size", d->dim);
    json_put_real(w, "initializer_range", 0.02);
    json_put_int(w, "intermediate_size",
                 f->experts == HF_MIXTRAL || f->experts == HF_GPT_OSS ? d->moe_hidden : d->ffn_hidden);
    json_put_int(w, "max_position_embeddings", declared_positions(d, positions));
    json_put_int(w, "num_attention_heads", d->n_heads);
    json_put_int(w, "num_hidden_layers", d->n_layers);
    json_put_int(w, "num_key_value_heads", d->n_kv_heads);
    json_put_real(w, "rms_norm_eps", d->norm_eps);
    put_rope_scaling(w, f, d, declared_positions(d, positions));
    json_put_real(w, "rope_theta", d->rope_theta);
    json_put_bool(w, "tie_word_embeddings", d->tied_embeddings);
    json_put_bool(w, "use_cache", true);
    json_put_int(w, "vocab_size", d->vocab_size);
}
