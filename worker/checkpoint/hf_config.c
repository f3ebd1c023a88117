/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/checkpoint/hf_config.h"

#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/file.h"

#define CONFIG_BYTES_MAX ((size_t)1 << 20)
#define LATENT_NORM_EPS 1e-6 /* in transformers' code, whatever rms_norm_eps is */

enum family { LLAMA, QWEN3, QWEN3_MOE, DEEPSEEK_V2, DEEPSEEK_V3, FAMILIES };

static const struct {
    const char *type, *class, *ours;
} families[FAMILIES] = {[LLAMA] = {"llama", "LlamaForCausalLM", "llama3"},
                        [QWEN3] = {"qwen3", "Qwen3ForCausalLM", "qwen3"},
                        [QWEN3_MOE] = {"qwen3_moe", "Qwen3MoeForCausalLM", "qwen3"},
                        [DEEPSEEK_V2] = {"deepseek_v2", "DeepseekV2ForCausalLM", "deepseek_v3"},
                        [DEEPSEEK_V3] = {"deepseek_v3", "DeepseekV3ForCausalLM", "deepseek_v3"}};

static enum family family_of(const struct model_dims *d)
{
    if (d->kv_lora_rank > 0)
        return d->sigmoid_scores ? DEEPSEEK_V3 : DEEPSEEK_V2;
    return d->n_experts > 0 ? QWEN3_MOE : d->qk_norm ? QWEN3 : LLAMA;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* Our dimensions and transformers' keys of them. */
static const struct {
    const char *key, *theirs[2];
    size_t offset;
    unsigned families; /* where it must be given */
} sizes[] = {
#define SIZE(field, key, other, in)                                                                                    \
    {                                                                                                                  \
#field, {key, other }, offsetof(struct model_dims, field), (in)                                                \
    }
#define IN(f) (1u << (f))
#define ALL (IN(FAMILIES) - 1)
#define LATENT (IN(DEEPSEEK_V2) | IN(DEEPSEEK_V3))
#define MIXED (IN(QWEN3_MOE) | LATENT)
    SIZE(dim, "hidden_size", NULL, ALL),
    SIZE(n_layers, "num_hidden_layers", NULL, ALL),
    SIZE(n_heads, "num_attention_heads", NULL, ALL),
    SIZE(vocab_size, "vocab_size", NULL, ALL),
    SIZE(ffn_hidden, "intermediate_size", NULL, ALL),
    SIZE(kv_lora_rank, "kv_lora_rank", NULL, LATENT),
    SIZE(qk_nope_head_dim, "qk_nope_head_dim", NULL, LATENT),
    SIZE(qk_rope_head_dim, "qk_rope_head_dim", NULL, LATENT),
    SIZE(v_head_dim, "v_head_dim", NULL, LATENT),
    SIZE(n_experts, "num_experts", "num_local_experts", IN(QWEN3_MOE)),
    SIZE(n_experts, "n_routed_experts", "num_local_experts", LATENT),
    SIZE(top_k, "num_experts_per_tok", NULL, MIXED),
    SIZE(moe_hidden, "moe_intermediate_size", NULL, MIXED),
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

/* One that may be missing or null, and then is `fallback`. */
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

/* What would change the model and is not there in ours. */
static titan_status check_traits(const struct json *root, struct titan_error *err)
{
    static const struct {
        const char *key, *what;
    } flags[] = {{"attention_bias", "biases of attention's products are not supported"},
                 {"mlp_bias", "biases of the feed-forward layer are not supported"},
                 {"use_sliding_window", "sliding windows are not supported"}};
    for (size_t i = 0; i < ARRAY_SIZE(flags); i++)
        if (read_flag(root, flags[i].key, false))
            return refuse(flags[i].key, flags[i].what, err);
    if (strcmp(json_string(root, "hidden_act", "silu"), "silu") != 0)
        return refuse("hidden_act", "only \"silu\" is supported", err);
    return TITAN_OK;
}

/* Numbers of Llama 3.1's rule. */
static titan_status read_llama3(const struct json *from, struct model_dims *d, struct titan_error *err)
{
    TRY(read_real(from, "factor", 0, &d->rope_factor, err));
    TRY(read_real(from, "low_freq_factor", 0, &d->rope_low_freq_factor, err));
    TRY(read_real(from, "high_freq_factor", 0, &d->rope_high_freq_factor, err));
    return read_size(from, "original_max_position_embeddings", NULL, &d->rope_original_length, err);
}

/* Numbers of YaRN; one that is missing has transformers' default. */
static titan_status read_yarn(const struct json *from, int64_t positions, struct model_dims *d, struct titan_error *err)
{
    const struct json *truncate = json_get(from, "truncate"), *own = json_get(from, "attention_factor");
    TRY(read_size(from, "original_max_position_embeddings", NULL, &d->rope_original_length, err));
    titan_assert(d->rope_original_length >= 1);
    TRY(read_real(from, "factor", (double)positions / (double)d->rope_original_length, &d->rope_factor, err));
    TRY(read_real(from, "beta_fast", 32, &d->rope_beta_fast, err));
    TRY(read_real(from, "beta_slow", 1, &d->rope_beta_slow, err));
    if (json_real(from, "mscale", 0) != 0)
        TRY(read_real(from, "mscale", 0, &d->rope_mscale, err));
    if (json_real(from, "mscale_all_dim", 0) != 0)
        TRY(read_real(from, "mscale_all_dim", 0, &d->rope_mscale_all_dim, err));
    if (truncate && truncate->type == JSON_BOOL && !truncate->boolean)
        return refuse("truncate", "only true is supported", err);
    if (own && own->type != JSON_NULL)
        return refuse("attention_factor", "only the one that follows from factor and mscale is supported", err);
    return TITAN_OK;
}

/* transformers 5 has "rope_parameters", those before "rope_theta" and "rope_scaling". */
static titan_status read_rope(const struct json *root, int64_t positions, struct model_dims *d, struct titan_error *err)
{
    const struct json *p = json_get(root, "rope_parameters"), *scaling = json_get(root, "rope_scaling");
    const struct json *from = p && p->type == JSON_OBJECT ? p : scaling;
    TRY(read_real(p && p->type == JSON_OBJECT && json_get(p, "rope_theta") ? p : root, "rope_theta", 10000.0,
                  &d->rope_theta, err));
    if (json_real(from, "partial_rotary_factor", json_real(root, "partial_rotary_factor", 1)) != 1)
        return refuse("partial_rotary_factor", "only 1 is supported", err);
    const char *type = json_string(from, "rope_type", json_string(from, "type", "default"));
    const bool llama = strcmp(type, "llama3") == 0, yarn = strcmp(type, "yarn") == 0;
    if (!llama && !yarn && strcmp(type, "default") != 0)
        return titan_fail(err, TITAN_EUNSUPPORTED, "'rope_type' is \"%.32s\"; \"llama3\" and \"yarn\" are supported",
                          type);
    (void)snprintf(d->rope_scaling, sizeof d->rope_scaling, "%s", llama || yarn ? type : "none");
    return llama ? read_llama3(from, d, err) : yarn ? read_yarn(from, positions, d, err) : TITAN_OK;
}

/* DeepSeek V3 scores a group by its best two experts, V2 by the best one, where it has groups at all. */
static titan_status read_groups(const struct json *root, enum family f, struct model_dims *d, struct titan_error *err)
{
    titan_assert(IN(f) & LATENT);
    const bool v3 = f == DEEPSEEK_V3;
    const char *method = json_string(root, "topk_method", "greedy");
    int64_t groups = 1, of = 1;
    if (!v3 && strcmp(method, "greedy") != 0 && strcmp(method, "group_limited_greedy") != 0)
        return refuse("topk_method", "only \"greedy\" and \"group_limited_greedy\" are supported", err);
    TRY(read_count(root, "n_group", v3 ? 8 : 1, &groups, err));
    TRY(read_count(root, "topk_group", v3 ? 4 : 1, &of, err));
    if (groups <= 1 || of >= groups || (!v3 && strcmp(method, "greedy") == 0))
        return TITAN_OK;
    if (of == 0)
        return titan_fail(err, TITAN_ECORRUPT, "'topk_group' is 0: no group of experts would be taken");
    d->n_expert_groups = groups;
    d->n_limited_groups = of;
    d->group_top_k = v3 ? 2 : 1;
    return TITAN_OK;
}

/* Layers without experts: the first ones. */
static titan_status read_sparse_layers(const struct json *root, struct model_dims *d, struct titan_error *err)
{
    const struct json *dense = json_get(root, "mlp_only_layers");
    if (json_int(root, "decoder_sparse_step", 1) != 1)
        return refuse("decoder_sparse_step", "only 1 is supported", err);
    for (const struct json *l = dense && dense->type == JSON_ARRAY ? dense->first : NULL; l; l = l->next)
        if (l->type != JSON_INT || l->integer != d->n_dense_layers++)
            return refuse("mlp_only_layers", "only the first layers can be without experts", err);
    return TITAN_OK;
}

static titan_status read_experts(const struct json *root, enum family f, struct model_dims *d, struct titan_error *err)
{
    titan_assert(IN(f) & MIXED);
    d->normalize_scores = read_flag(root, "norm_topk_prob", f == DEEPSEEK_V3);
    d->route_scale = 1;
    if (f == QWEN3_MOE)
        return read_sparse_layers(root, d, err);
    TRY(read_count(root, "q_lora_rank", 0, &d->q_lora_rank, err));
    TRY(read_count(root, "n_shared_experts", 0, &d->n_shared_experts, err));
    TRY(read_count(root, "first_k_dense_replace", 0, &d->n_dense_layers, err));
    TRY(read_real(root, "routed_scaling_factor", f == DEEPSEEK_V3 ? 2.5 : 1, &d->route_scale, err));
    if (json_int(root, "moe_layer_freq", 1) != 1)
        return refuse("moe_layer_freq", "only 1 is supported", err);
    TRY(read_groups(root, f, d, err));
    d->sigmoid_scores = f == DEEPSEEK_V3;
    d->balance_rate = f == DEEPSEEK_V3 ? 1e-3 : 0; /* the files have biases */
    if (f == DEEPSEEK_V2 && strcmp(json_string(root, "scoring_func", "softmax"), "softmax") != 0)
        return refuse("scoring_func", "only \"softmax\" is supported", err);
    return TITAN_OK;
}

static titan_status read_dims(const struct json *root, enum family f, struct hf_config *c, struct titan_error *err)
{
    titan_assert(f < FAMILIES);
    struct model_dims *d = &c->dims;
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
        if (sizes[i].families & IN(f))
            TRY(read_size(root, sizes[i].theirs[0], sizes[i].theirs[1],
                          (int64_t *)(void *)((char *)d + sizes[i].offset), err));
    TRY(read_real(root, "rms_norm_eps", 1e-6, &d->norm_eps, err));
    d->tied_embeddings = read_flag(root, "tie_word_embeddings", false);
    TRY(check_traits(root, err));
    TRY(read_rope(root, c->positions, d, err));
    if (IN(f) & MIXED)
        TRY(read_experts(root, f, d, err));
    if (IN(f) & LATENT) {
        d->n_kv_heads = d->n_heads;
        d->head_dim = d->qk_nope_head_dim + d->qk_rope_head_dim;
        d->latent_norm_eps = LATENT_NORM_EPS;
        c->halves = !read_flag(root, "rope_interleave", true);
        return read_count(root, "num_nextn_predict_layers", 0, &c->more_layers, err);
    }
    d->qk_norm = f != LLAMA;
    TRY(read_count(root, "num_key_value_heads", d->n_heads, &d->n_kv_heads, err));
    return read_count(root, "head_dim", d->dim / d->n_heads, &d->head_dim, err);
}

static void free_json(struct json **root)
{
    json_free(*root);
}

titan_status hf_config_parse(const char *text, size_t len, struct hf_config *ret, struct titan_error *err)
{
    _cleanup_(free_json) struct json *root = NULL;
    *ret = (struct hf_config){.there = true};
    if (json_parse(text, len, &root, err) != TITAN_OK)
        return err ? (err->status = TITAN_ECORRUPT) : TITAN_ECORRUPT;
    const char *type = json_string(root, "model_type", "");
    for (int f = 0; f < FAMILIES; f++) {
        if (strcmp(type, families[f].type) != 0)
            continue;
        (void)snprintf(ret->family, sizeof ret->family, "%s", families[f].ours);
        TRY(read_count(root, "max_position_embeddings", 2048, &ret->positions, err));
        return read_dims(root, (enum family)f, ret, err);
    }
    return titan_fail(err, TITAN_EUNSUPPORTED,
                      "'model_type' is \"%.32s\"; llama, qwen3, qwen3_moe, deepseek_v2 and deepseek_v3 are supported",
                      type);
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

titan_status hf_config_compare(const struct hf_config *c, const struct model_dims *d, struct buf *ret_note,
                               struct titan_error *err)
{
    const struct model_dims *t = &c->dims;
    const bool dense = t->n_experts == 0 || t->n_dense_layers > 0, chosen = d->n_experts > 0;
    const bool same_rule = strcmp(rope_rule(d), rope_rule(t)) == 0;
    const bool stretched = same_rule && strcmp(rope_rule(d), "none") != 0;
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
        {"rope_original_length", stretched ? (double)d->rope_original_length : 0,
         stretched ? (double)t->rope_original_length : 0},
        {"rope_low_freq_factor", stretched ? d->rope_low_freq_factor : 0, stretched ? t->rope_low_freq_factor : 0},
        {"rope_high_freq_factor", stretched ? d->rope_high_freq_factor : 0, stretched ? t->rope_high_freq_factor : 0},
        {"rope_beta_fast", stretched ? d->rope_beta_fast : 0, stretched ? t->rope_beta_fast : 0},
        {"rope_beta_slow", stretched ? d->rope_beta_slow : 0, stretched ? t->rope_beta_slow : 0},
        {"rope_mscale", stretched ? d->rope_mscale : 0, stretched ? t->rope_mscale : 0},
        {"rope_mscale_all_dim", stretched ? d->rope_mscale_all_dim : 0, stretched ? t->rope_mscale_all_dim : 0},
        {"latent_norm_eps", latent_eps(d), latent_eps(t)},
        {"n_expert_groups", (double)d->n_expert_groups, (double)t->n_expert_groups},
        {"n_limited_groups", (double)d->n_limited_groups, (double)t->n_limited_groups},
        {"group_top_k", (double)d->group_top_k, (double)t->group_top_k},
        {"top_k", (double)d->top_k, (double)t->top_k},
        {"normalize_scores", chosen && d->normalize_scores, chosen && t->normalize_scores},
        {"route_scale", chosen ? d->route_scale : 0, chosen ? t->route_scale : 0}};

    if (!c->there)
        return TITAN_OK;
    for (size_t i = 0; i < ARRAY_SIZE(shapes); i++)
        if (shapes[i].ours != shapes[i].theirs)
            return titan_fail(err, TITAN_ECONFLICT,
                              "the weights are of another model: model.%s = %lld, there %lld (" HF_CONFIG_NAME ")",
                              shapes[i].key, (long long)shapes[i].ours, (long long)shapes[i].theirs);
    if (!same_rule)
        buf_printf(ret_note, "%smodel.rope_scaling = %s, there %s", ret_note->len > 0 ? "; " : "", rope_rule(d),
                   rope_rule(t));
    for (size_t i = 0; i < ARRAY_SIZE(numbers); i++)
        if (numbers[i].ours != numbers[i].theirs)
            buf_printf(ret_note, "%smodel.%s = %g, there %g", ret_note->len > 0 ? "; " : "", numbers[i].key,
                       numbers[i].ours, numbers[i].theirs);
    return TITAN_OK;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

static void put_rope_scaling(struct json_writer *w, const struct model_dims *d)
{
    const char *rule = rope_rule(d);
    if (strcmp(rule, "none") == 0) {
        json_put_raw(w, "rope_scaling", "null");
        return;
    }
    json_begin_object(w, "rope_scaling");
    json_put_string(w, "rope_type", rule);
    json_put_real(w, "factor", d->rope_factor);
    json_put_int(w, "original_max_position_embeddings", d->rope_original_length);
    if (strcmp(rule, "llama3") == 0) {
        json_put_real(w, "low_freq_factor", d->rope_low_freq_factor);
        json_put_real(w, "high_freq_factor", d->rope_high_freq_factor);
    } else {
        json_put_real(w, "beta_fast", d->rope_beta_fast);
        json_put_real(w, "beta_slow", d->rope_beta_slow);
        if (d->rope_mscale > 0)
            json_put_real(w, "mscale", d->rope_mscale);
        if (d->rope_mscale_all_dim > 0)
            json_put_real(w, "mscale_all_dim", d->rope_mscale_all_dim);
    }
    json_end_object(w);
}

static void put_experts(struct json_writer *w, enum family f, const struct model_dims *d)
{
    titan_assert(d->n_experts > 0 && IN(f) & MIXED);
    json_put_int(w, "num_experts_per_tok", d->top_k);
    json_put_int(w, "moe_intermediate_size", d->moe_hidden);
    json_put_bool(w, "norm_topk_prob", d->normalize_scores);
    if (f == QWEN3_MOE) {
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
}

static void put_latent(struct json_writer *w, const struct model_dims *d)
{
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
    json_put_int(w, "num_nextn_predict_layers", 0);
}

void hf_config_put(struct json_writer *w, const struct model_dims *d, int64_t positions)
{
    const enum family f = family_of(d);

    titan_assert(positions >= 1);
    json_begin_array(w, "architectures");
    json_put_string(w, NULL, families[f].class);
    json_end_array(w);
    json_put_string(w, "model_type", families[f].type);
    if (f == QWEN3 || f == QWEN3_MOE) {
        json_put_int(w, "max_window_layers", d->n_layers);
        json_put_raw(w, "sliding_window", "null");
        json_put_bool(w, "use_sliding_window", false);
    } else {
        json_put_bool(w, "mlp_bias", false);
        json_put_int(w, "pretraining_tp", 1);
    }
    if (IN(f) & LATENT)
        put_latent(w, d);
    else
        json_put_int(w, "head_dim", d->head_dim);
    if (IN(f) & MIXED)
        put_experts(w, f, d);
    json_put_bool(w, "attention_bias", false);
    json_put_real(w, "attention_dropout", 0);
    json_put_string(w, "hidden_act", "silu");
    json_put_int(w, "hidden_size", d->dim);
    json_put_real(w, "initializer_range", 0.02);
    json_put_int(w, "intermediate_size", d->ffn_hidden);
    json_put_int(w, "max_position_embeddings", positions);
    json_put_int(w, "num_attention_heads", d->n_heads);
    json_put_int(w, "num_hidden_layers", d->n_layers);
    json_put_int(w, "num_key_value_heads", d->n_kv_heads);
    json_put_real(w, "rms_norm_eps", d->norm_eps);
    put_rope_scaling(w, d);
    json_put_real(w, "rope_theta", d->rope_theta);
    json_put_bool(w, "tie_word_embeddings", d->tied_embeddings);
    json_put_bool(w, "use_cache", true);
    json_put_int(w, "vocab_size", d->vocab_size);
}
