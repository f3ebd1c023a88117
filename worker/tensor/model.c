/* SPDX-License-Identifier: Apache-2.0 */
/* model.c - parameter list, initial values and rotary tables of a model with given dimensions and traits. */
#include "worker/tensor/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

#define LAYER_TENSORS 28 /* most tensors of a layer, with its experts */
#define TRUNCATE_AT 3.0f

/* --- what a model can be ------------------------------------------------------------------------------------------ */

static int64_t head_width(const struct model_dims *d)
{
    return d->head_dim > 0 ? d->head_dim : d->dim / d->n_heads;
}

static titan_status check_experts(const struct model_dims *d, struct titan_error *err)
{
    if (d->n_experts == 0)
        return TITAN_OK;
    if (d->moe_hidden < 1 || d->n_shared_experts < 0)
        return titan_fail(err, TITAN_EINVAL, "model: experts need a width (moe_hidden) of at least 1, not %ld",
                          (long)d->moe_hidden);
    if (d->top_k < 1 || d->top_k > d->n_experts)
        return titan_fail(err, TITAN_EINVAL, "model: top_k %ld is not between 1 and n_experts %ld", (long)d->top_k,
                          (long)d->n_experts);
    if (d->n_expert_groups == 0)
        return TITAN_OK;
    const int64_t width = d->n_experts / d->n_expert_groups;
    if (d->n_experts % d->n_expert_groups != 0 || d->n_limited_groups < 1 || d->n_limited_groups > d->n_expert_groups ||
        d->group_top_k < 1 || d->group_top_k > width || d->top_k > d->n_limited_groups * width)
        return titan_fail(err, TITAN_EINVAL, "model: %ld experts are not %ld groups of which %ld hold a choice of %ld",
                          (long)d->n_experts, (long)d->n_expert_groups, (long)d->n_limited_groups, (long)d->top_k);
    return TITAN_OK;
}

static bool is_dynamic(const struct model_dims *d)
{
    return strcmp(d->rope_scaling, "dynamic") == 0;
}

static bool is_longrope(const struct model_dims *d)
{
    return strcmp(d->rope_scaling, "longrope") == 0;
}

static bool has_factors(const struct recipe_reals *factors, int64_t pairs)
{
    bool all = factors->n == pairs && pairs <= RECIPE_REALS_MAX;

    for (int64_t i = 0; all && i < pairs; i++)
        all = factors->value[i] > 0;
    return all;
}

static titan_status check_longrope(const struct model_dims *d, int64_t width, struct titan_error *err)
{
    const int64_t rotated = d->kv_lora_rank > 0 ? d->qk_rope_head_dim : d->rope_dim > 0 ? d->rope_dim : width;

    if (is_longrope(d) &&
        (d->rope_factor < 1 || d->rope_original_length < 2 || !has_factors(&d->rope_short_factor, rotated / 2) ||
         !has_factors(&d->rope_long_factor, rotated / 2)))
        return titan_fail(err, TITAN_EINVAL,
                          "model: rope_scaling \"longrope\" needs rope_factor, rope_original_length, and a "
                          "rope_short_factor and a rope_long_factor for each of %ld pairs",
                          (long)(rotated / 2));
    return TITAN_OK;
}

static titan_status check_rope(const struct model_dims *d, struct titan_error *err)
{
    const bool llama = strcmp(d->rope_scaling, "llama3") == 0, yarn = strcmp(d->rope_scaling, "yarn") == 0;
    const bool linear = strcmp(d->rope_scaling, "linear") == 0, dynamic = is_dynamic(d);

    if (linear && d->rope_factor < 1)
        return titan_fail(err, TITAN_EINVAL, "model: rope_scaling \"linear\" needs rope_factor");
    if (!llama && !yarn && !linear && !dynamic && !is_longrope(d) && d->rope_scaling[0] != '\0' &&
        strcmp(d->rope_scaling, "none") != 0)
        return titan_fail(err, TITAN_EINVAL, "model: there is no rope_scaling \"%.16s\"", d->rope_scaling);
    if ((llama || yarn || dynamic) && (d->rope_factor < 1 || d->rope_original_length < 1))
        return titan_fail(err, TITAN_EINVAL, "model: rope_scaling \"%s\" needs rope_factor and rope_original_length",
                          d->rope_scaling);
    if ((llama && d->rope_high_freq_factor <= d->rope_low_freq_factor) ||
        (yarn && (d->rope_beta_fast <= d->rope_beta_slow || d->rope_beta_slow <= 0 || d->rope_theta <= 1)))
        return titan_fail(err, TITAN_EINVAL, "model: the bounds of rope_scaling \"%s\" are none", d->rope_scaling);
    return TITAN_OK;
}

static titan_status check_latent(const struct model_dims *d, struct titan_error *err)
{
    if (d->kv_lora_rank == 0)
        return TITAN_OK;
    if (d->qk_nope_head_dim < 1 || d->qk_rope_head_dim < 1 || d->v_head_dim < 1 || d->q_lora_rank < 0)
        return titan_fail(err, TITAN_EINVAL,
                          "model: latent attention needs qk_nope_head_dim, qk_rope_head_dim and v_head_dim");
    if (d->qk_rope_head_dim % 2 != 0)
        return titan_fail(err, TITAN_EINVAL, "model: qk_rope_head_dim %ld is odd, rotary embedding needs pairs",
                          (long)d->qk_rope_head_dim);
    if (d->qkv_bias || d->output_bias || d->rope_dim > 0 || d->no_rope_every > 0 || d->sliding_window > 0 ||
        d->attention_sinks)
        return titan_fail(
            err, TITAN_EINVAL,
            "model: latent attention has neither biases nor sinks, rotates in every layer and sees all tokens");
    if (head_width(d) != d->qk_nope_head_dim + d->qk_rope_head_dim || d->n_kv_heads != d->n_heads || d->qk_norm)
        return titan_fail(
            err, TITAN_EINVAL,
            "model: latent attention has heads of qk_nope_head_dim + qk_rope_head_dim, keys for each, and "
            "no norm of heads");
    return TITAN_OK;
}

static titan_status check_dims(const struct model_dims *d, struct titan_error *err)
{
    const bool dense = d->n_experts == 0 || d->n_dense_layers > 0;

    if (d->dim < 1 || d->n_layers < 1 || d->n_heads < 1 || d->n_kv_heads < 1 || (dense && d->ffn_hidden < 1) ||
        d->vocab_size < 1)
        return titan_fail(err, TITAN_EINVAL, "model: every dimension must be at least 1");
    if (d->head_dim <= 0 && d->dim % d->n_heads != 0)
        return titan_fail(err, TITAN_EINVAL, "model: dim %ld is not a multiple of n_heads %ld", (long)d->dim,
                          (long)d->n_heads);
    if (d->n_heads % d->n_kv_heads != 0)
        return titan_fail(err, TITAN_EINVAL, "model: n_heads %ld is not a multiple of n_kv_heads %ld", (long)d->n_heads,
                          (long)d->n_kv_heads);
    if (d->kv_lora_rank == 0 && head_width(d) % 2 != 0)
        return titan_fail(err, TITAN_EINVAL, "model: head width %ld is odd, rotary embedding needs pairs",
                          (long)head_width(d));
    if (d->rope_dim < 0 || d->rope_dim % 2 != 0 || d->rope_dim > head_width(d) || d->no_rope_every < 0 ||
        d->sliding_window < 0 || d->full_attention_every < 0 || d->rope_local_theta < 0 || d->attention_softcap < 0 ||
        d->logits_softcap < 0)
        return titan_fail(err, TITAN_EINVAL, "model: %ld columns of a head of %ld cannot be rotated", (long)d->rope_dim,
                          (long)head_width(d));
    if (d->n_experts > 0 &&
        ((d->mlp_bias && d->n_shared_experts > 0) || (d->residual_multiplier != 0 && d->residual_multiplier != 1)))
        return titan_fail(err, TITAN_EINVAL,
                          "model: shared experts do not have mlp_bias, and none has residual_multiplier");
    if ((d->router_bias && d->n_experts == 0) || d->swiglu_limit < 0 || (d->swiglu_limit > 0 && d->gelu))
        return titan_fail(err, TITAN_EINVAL,
                          "model: a router's bias needs experts, and swiglu_limit, which is above 0, no gelu");
    if ((d->output_norms && (d->n_experts > 0 || d->kv_lora_rank > 0)) || (d->no_input_norms && !d->output_norms) ||
        (d->qk_norm_whole && !d->qk_norm))
        return titan_fail(err, TITAN_EINVAL, "model: these norms do not go together");
    if (d->mtp_layers < 0 ||
        (d->mtp_layers > 0 && (d->tied_embeddings || d->sliding_window > 0 || d->no_rope_every > 0 ||
                               (d->logits_scaling != 0 && d->logits_scaling != 1))))
        return titan_fail(err, TITAN_EINVAL,
                          "model: multi-token prediction needs layers that are all alike, and a head of its own");
    TRY(check_rope(d, err));
    TRY(check_longrope(d, head_width(d), err));
    TRY(check_latent(d, err));
    return check_experts(d, err);
}

/* --- the list ----------------------------------------------------------------------------------------------------- */

static void begin_unit(struct model *m, enum unit_kind kind, int layer)
{
    struct model_unit *u = &m->units[m->n_units++];
    u->kind = kind;
    u->layer = layer;
    u->first_tensor = m->n_tensors;
    if (kind == UNIT_LAYER || kind == UNIT_EXPERTS)
        (void)snprintf(u->name, sizeof u->name, "layers.%d%s", layer, kind == UNIT_EXPERTS ? ".experts" : "");
    else
        (void)snprintf(u->name, sizeof u->name, "%s",
                       kind == UNIT_EMBEDDING ? "embedding"
                       : kind == UNIT_NORM    ? "norm"
                                              : "head");
}

/* Name, role, cut and glue of a tensor. Its size and initial values come from the dimensions. */
struct tensor_kind {
    const char *name;
    enum tensor_role role;
    enum split split;
    bool glued;
};

/* cols 0: the tensor is a vector. */
static void add_tensor(struct model *m, const struct tensor_kind *kind, int64_t rows, int64_t cols, enum init_rule init,
                       double std)
{
    struct model_unit *u = &m->units[m->n_units - 1];
    struct model_tensor *t = &m->tensors[m->n_tensors++];

    if (u->layer >= 0)
        (void)snprintf(t->name, sizeof t->name, "layers.%d.%s", u->layer, kind->name);
    else
        (void)snprintf(t->name, sizeof t->name, "%s", kind->name);
    t->shape[0] = rows;
    t->shape[1] = cols;
    t->ndim = cols > 0 ? 2 : 1;
    t->numel = rows * (cols > 0 ? cols : 1);
    t->unit = m->n_units - 1;
    t->role = kind->role;
    t->split = kind->split;
    t->experts = kind->split == SPLIT_EXPERTS ? (int)m->dims.n_experts : 0;
    t->glued = kind->glued;
    t->init = init;
    t->std = (float)std;
    u->n_tensors++;
}

/* Adds a norm's gain. The initial factor is 1: with norm_offset the stored gain is 0. */
static void add_gain(struct model *m, const char *name, enum tensor_role role, int64_t n)
{
    add_tensor(m, &(struct tensor_kind){name, role, SPLIT_NONE, false}, n, 0,
               m->dims.norm_offset ? INIT_ZEROS : INIT_ONES, 0);
}

/* Adds a bias; `cut`: the layer's outputs are cut, and the bias with them. */
static void add_bias(struct model *m, const char *name, enum tensor_role role, bool cut, bool glued, int64_t n)
{
    add_tensor(m, &(struct tensor_kind){name, role, cut ? SPLIT_COLS : SPLIT_NONE, glued}, n, 0, INIT_ZEROS, 0);
}

static void add_normal(struct model *m, const char *name, enum tensor_role role, enum split split, bool glued,
                       int64_t rows, int64_t cols, double std)
{
    add_tensor(m, &(struct tensor_kind){name, role, split, glued}, rows, cols, INIT_NORMAL, std);
}

/* Adds the head's matrix, which is also the embedding's if the two are tied. */
static void add_output(struct model *m, const char *name, enum tensor_role role)
{
    const struct model_dims *d = &m->dims;
    add_tensor(m, &(struct tensor_kind){name, role, SPLIT_ROWS, false}, d->vocab_size, d->dim, INIT_TRUNCATED,
               1.0 / sqrt((double)d->dim));
}

static void add_attention(struct model *m, double out_std)
{
    const int64_t c = m->dims.dim, hd = m->dims.n_heads * m->head_dim, kd = m->dims.n_kv_heads * m->head_dim;

    if (!m->dims.no_input_norms)
        add_gain(m, "attention_norm.weight", ROLE_ATTENTION_NORM, c);
    add_normal(m, "attention.wq.weight", ROLE_WQ, SPLIT_ROWS, false, hd, c, 0.02);
    add_normal(m, "attention.wk.weight", ROLE_WK, SPLIT_ROWS, true, kd, c, 0.02);
    add_normal(m, "attention.wv.weight", ROLE_WV, SPLIT_ROWS, true, kd, c, 0.02);
    add_normal(m, "attention.wo.weight", ROLE_WO, SPLIT_COLS, false, c, hd, out_std);
    if (m->dims.qk_norm) {
        add_gain(m, "attention.q_norm.weight", ROLE_Q_NORM, m->dims.qk_norm_whole ? hd : m->head_dim);
        add_gain(m, "attention.k_norm.weight", ROLE_K_NORM, m->dims.qk_norm_whole ? kd : m->head_dim);
    }
    if (m->dims.output_norms)
        add_gain(m, "attention_out_norm.weight", ROLE_ATTENTION_OUT_NORM, c);
    if (m->dims.qkv_bias) {
        add_bias(m, "attention.wq.bias", ROLE_WQ_BIAS, true, false, hd);
        add_bias(m, "attention.wk.bias", ROLE_WK_BIAS, true, true, kd);
        add_bias(m, "attention.wv.bias", ROLE_WV_BIAS, true, true, kd);
    }
    if (m->dims.output_bias)
        add_bias(m, "attention.wo.bias", ROLE_WO_BIAS, false, false, c);
    if (m->dims.attention_sinks) /* cut with the heads */
        add_tensor(m, &(struct tensor_kind){"attention.sinks", ROLE_SINKS, SPLIT_COLS, false}, m->dims.n_heads, 0,
                   INIT_NORMAL, 0.02);
}

/* Queries and keys have heads of nope + rope, values their own width; one rotated key is shared by all heads. */
static void add_latent_attention(struct model *m, double out_std)
{
    const struct model_dims *d = &m->dims;
    const int64_t c = d->dim, h = d->n_heads, hd = h * m->head_dim, q = d->q_lora_rank, r = d->kv_lora_rank;

    add_gain(m, "attention_norm.weight", ROLE_ATTENTION_NORM, c);
    if (q > 0) {
        add_normal(m, "attention.wq_a.weight", ROLE_WQ_A, SPLIT_NONE, false, q, c, 0.02);
        add_gain(m, "attention.q_norm.weight", ROLE_Q_NORM, q);
        add_normal(m, "attention.wq_b.weight", ROLE_WQ_B, SPLIT_ROWS, false, hd, q, 0.02);
    } else {
        add_normal(m, "attention.wq.weight", ROLE_WQ, SPLIT_ROWS, false, hd, c, 0.02);
    }
    add_normal(m, "attention.wkv_a.weight", ROLE_WKV_A, SPLIT_NONE, false, r + d->qk_rope_head_dim, c, 0.02);
    add_gain(m, "attention.kv_norm.weight", ROLE_KV_NORM, r);
    add_normal(m, "attention.wkv_b.weight", ROLE_WKV_B, SPLIT_ROWS, false, h * (d->qk_nope_head_dim + d->v_head_dim), r,
               0.02);
    add_normal(m, "attention.wo.weight", ROLE_WO, SPLIT_COLS, false, c, h * d->v_head_dim, out_std);
}

static void add_feed_forward(struct model *m, double out_std)
{
    const int64_t c = m->dims.dim, f = m->dims.ffn_hidden;

    if (!m->dims.no_input_norms)
        add_gain(m, "ffn_norm.weight", ROLE_FFN_NORM, c);
    add_normal(m, "feed_forward.w1.weight", ROLE_W1, SPLIT_ROWS, false, f, c, 0.02);
    add_normal(m, "feed_forward.w3.weight", ROLE_W3, SPLIT_ROWS, true, f, c, out_std);
    add_normal(m, "feed_forward.w2.weight", ROLE_W2, SPLIT_COLS, false, c, f, out_std);
    if (m->dims.output_norms)
        add_gain(m, "ffn_out_norm.weight", ROLE_FFN_OUT_NORM, c);
    if (!m->dims.mlp_bias)
        return;
    add_bias(m, "feed_forward.w1.bias", ROLE_W1_BIAS, true, false, f);
    add_bias(m, "feed_forward.w3.bias", ROLE_W3_BIAS, true, true, f);
    add_bias(m, "feed_forward.w2.bias", ROLE_W2_BIAS, false, false, c);
}

/* Adds the router and shared experts, which are in the unit of their layer. */
static void add_mixture(struct model *m, double out_std)
{
    const int64_t c = m->dims.dim, f = m->dims.n_shared_experts * m->dims.moe_hidden;

    add_gain(m, "ffn_norm.weight", ROLE_FFN_NORM, c);
    add_normal(m, "moe.router.gate.weight", ROLE_GATE, SPLIT_NONE, false, m->dims.n_experts, c, out_std);
    if (m->dims.router_bias)
        add_bias(m, "moe.router.gate.bias", ROLE_GATE_BIAS, false, false, m->dims.n_experts);
    if (f == 0)
        return;
    add_normal(m, "moe.shared_experts.w1.weight", ROLE_W1, SPLIT_ROWS, false, f, c, 0.02);
    add_normal(m, "moe.shared_experts.w3.weight", ROLE_W3, SPLIT_ROWS, true, f, c, out_std);
    add_normal(m, "moe.shared_experts.w2.weight", ROLE_W2, SPLIT_COLS, false, c, f, out_std);
}

static void add_expert_bias(struct model *m, const char *name, enum tensor_role role, int64_t width)
{
    add_tensor(m, &(struct tensor_kind){name, role, SPLIT_EXPERTS, false}, m->dims.n_experts, width, INIT_ZEROS, 0);
}

static void add_experts(struct model *m, double out_std)
{
    const int64_t c = m->dims.dim, e = m->dims.n_experts, f = m->dims.moe_hidden;

    add_normal(m, "moe.experts.w1", ROLE_W1, SPLIT_EXPERTS, false, e * f, c, 0.02);
    add_normal(m, "moe.experts.w3", ROLE_W3, SPLIT_EXPERTS, false, e * f, c, out_std);
    add_normal(m, "moe.experts.w2", ROLE_W2, SPLIT_EXPERTS, false, e * c, f, out_std);
    if (!m->dims.mlp_bias)
        return;
    add_expert_bias(m, "moe.experts.w1.bias", ROLE_W1_BIAS, f);
    add_expert_bias(m, "moe.experts.w3.bias", ROLE_W3_BIAS, f);
    add_expert_bias(m, "moe.experts.w2.bias", ROLE_W2_BIAS, c);
}

static void add_layer(struct model *m, int layer)
{
    const double out_std = 0.02 / sqrt(2.0 * (layer + 1));
    const bool mixed = m->dims.n_experts > 0 && layer >= m->dims.n_dense_layers;

    begin_unit(m, UNIT_LAYER, layer);
    if (model_module(m, layer) > 0) {
        add_gain(m, "enorm.weight", ROLE_EMBEDDING_NORM, m->dims.dim);
        add_gain(m, "hnorm.weight", ROLE_HIDDEN_NORM, m->dims.dim);
        add_normal(m, "eh_proj.weight", ROLE_JOIN, SPLIT_NONE, false, m->dims.dim, 2 * m->dims.dim, 0.02);
        add_gain(m, "shared_head.norm.weight", ROLE_NORM, m->dims.dim);
    }
    if (m->dims.kv_lora_rank > 0)
        add_latent_attention(m, out_std);
    else
        add_attention(m, out_std);
    if (!mixed) {
        add_feed_forward(m, out_std);
        return;
    }
    add_mixture(m, out_std);
    begin_unit(m, UNIT_EXPERTS, layer);
    add_experts(m, out_std);
}

static void add_units(struct model *m)
{
    const struct model_dims *d = &m->dims;

    begin_unit(m, UNIT_EMBEDDING, -1);
    if (d->tied_embeddings)
        add_output(m, "tok_embeddings.weight", ROLE_EMBEDDING);
    else
        add_normal(m, "tok_embeddings.weight", ROLE_EMBEDDING, SPLIT_ROWS, false, d->vocab_size, d->dim, 1.0);
    for (int l = 0; l < d->n_layers; l++)
        add_layer(m, l);
    begin_unit(m, d->mtp_layers > 0 ? UNIT_NORM : UNIT_HEAD, -1);
    add_gain(m, "norm.weight", ROLE_NORM, d->dim);
    for (int l = (int)d->n_layers; l < model_all_layers(m); l++)
        add_layer(m, l);
    if (d->mtp_layers > 0)
        begin_unit(m, UNIT_HEAD, -1);
    if (!d->tied_embeddings)
        add_output(m, "output.weight", ROLE_OUTPUT);
}

titan_status model_open(const struct model_dims *dims, struct model **ret, struct titan_error *err)
{
    TRY(check_dims(dims, err));
    struct model *m = calloc(1, sizeof *m);
    if (!m)
        return titan_fail(err, TITAN_ENOMEM, "model: out of memory");
    m->dims = *dims;
    m->head_dim = m->dims.head_dim = head_width(dims);
    m->units = calloc(2 * (size_t)model_all_layers(m) + 3, sizeof *m->units);
    m->tensors = calloc((size_t)model_all_layers(m) * LAYER_TENSORS + 3, sizeof *m->tensors);
    if (!m->units || !m->tensors) {
        model_close(m);
        return titan_fail(err, TITAN_ENOMEM, "model: out of memory");
    }
    add_units(m);
    *ret = m;
    return TITAN_OK;
}

void model_close(struct model *model)
{
    if (!model)
        return;
    free(model->units);
    free(model->tensors);
    free(model);
}

int model_find(const struct model *model, int unit, enum tensor_role role)
{
    const struct model_unit *u = &model->units[unit];

    for (int i = u->first_tensor; i < u->first_tensor + u->n_tensors; i++)
        if (model->tensors[i].role == role)
            return i;
    return role == ROLE_OUTPUT && u->kind == UNIT_HEAD && model->dims.tied_embeddings ? 0 : -1;
}

int model_tensor_shape(const struct model_tensor *tensor, int64_t ret[3])
{
    int n = 0;

    if (tensor->experts > 0)
        ret[n++] = tensor->experts;
    if (!model_is_expert_bias(tensor))
        ret[n++] = tensor->shape[0] / (tensor->experts > 0 ? tensor->experts : 1);
    if (tensor->ndim > 1)
        ret[n++] = tensor->shape[1];
    return n;
}

/* Number of layers with a unit of experts, among the first n layers. */
static int expert_layers(const struct model *model, int n)
{
    return model->dims.n_experts > 0 ? (int)MAX(0, n - model->dims.n_dense_layers) : 0;
}

int model_layer_unit(const struct model *model, int layer)
{
    return 1 + layer + expert_layers(model, layer) + (model_module(model, layer) > 0);
}

int model_experts_unit(const struct model *model, int layer)
{
    return expert_layers(model, layer + 1) > expert_layers(model, layer) ? model_layer_unit(model, layer) + 1 : -1;
}

bool model_layers_alike(const struct model *model, int a, int b)
{
    if (model_module(model, a) > 0 || model_module(model, b) > 0)
        return a == b;
    return (model_experts_unit(model, a) < 0) == (model_experts_unit(model, b) < 0) &&
           model_layer_rotates(model, a) == model_layer_rotates(model, b) &&
           model_layer_window(model, a) == model_layer_window(model, b);
}

/* --- initial values ----------------------------------------------------------------------------------------------- */

struct rng_weights model_init_weights(const struct model *model, uint64_t seed, int tensor)
{
    const struct model_tensor *t = &model->tensors[tensor];
    struct rng_weights ret = {
        .key = rng_key(seed, t->name), .limit = t->init == INIT_TRUNCATED ? TRUNCATE_AT : 0, .std = t->std};

    titan_assert(t->init > INIT_ONES);
    for (int i = 0; i < RNG_REDRAWS; i++) {
        char stream[128];
        (void)snprintf(stream, sizeof stream, "%s#%d", t->name, i + 1);
        ret.again[i] = rng_key(seed, stream);
    }
    return ret;
}

void model_init_tensor(const struct model *model, uint64_t seed, int tensor, int64_t start, int64_t count, float *out)
{
    const struct model_tensor *t = &model->tensors[tensor];

    if (t->init <= INIT_ONES) {
        for (int64_t i = 0; i < count; i++)
            out[i] = t->init == INIT_ONES;
        return;
    }
    const struct rng_weights w = model_init_weights(model, seed, tensor);
    rng_weights(&w, (uint64_t)start, (uint64_t)count, out);
}

/* --- rotary tables ------------------------------------------------------------------------------------------------ */

/* Llama 3.1: long wavelengths are stretched by the factor, short ones are kept, and wavelengths between are blended. */
static double stretch_llama3(const struct model_dims *d, double freq)
{
    const double length = (double)d->rope_original_length, wavelength = 2 * M_PI / freq;

    if (wavelength < length / d->rope_high_freq_factor)
        return freq;
    if (wavelength > length / d->rope_low_freq_factor)
        return freq / d->rope_factor;
    const double blend =
        (length / wavelength - d->rope_low_freq_factor) / (d->rope_high_freq_factor - d->rope_low_freq_factor);
    return (1 - blend) * freq / d->rope_factor + blend * freq;
}

/* Returns the number of the pair whose frequency makes `turns` turns within the original length; may be a fraction. */
static double pair_of_turns(const struct model_dims *d, int64_t width, double turns)
{
    return (double)width * log((double)d->rope_original_length / (turns * 2 * M_PI)) / (2 * log(d->rope_theta));
}

/* YaRN blends like Llama 3.1, but linearly in the pair's number. The blend runs from the pair of beta_fast turns to the
 * pair of beta_slow turns, each rounded outwards, or exact with rope_between_pairs. */
static double stretch_yarn(const struct model_dims *d, int64_t width, int64_t pair, double freq)
{
    const double fast = pair_of_turns(d, width, d->rope_beta_fast), slow = pair_of_turns(d, width, d->rope_beta_slow);
    const double low = fmax(d->rope_between_pairs ? fast : floor(fast), 0);
    const double high = fmin(d->rope_between_pairs ? slow : ceil(slow), (double)width - 1);
    const double ramp = ((double)pair - low) / (high == low ? 0.001 : high - low);
    const double kept = 1 - fmin(fmax(ramp, 0), 1);
    return freq / d->rope_factor * (1 - kept) + freq * kept;
}

static double yarn_magnitude(const struct model_dims *d, double mscale)
{
    return 1 + 0.1 * mscale * log(d->rope_factor);
}

static bool is_yarn(const struct model_dims *d)
{
    return strcmp(d->rope_scaling, "yarn") == 0;
}

static double longrope_magnitude(const struct model_dims *d)
{
    if (d->rope_attention_factor > 0)
        return d->rope_attention_factor;
    return sqrt(1 + log(d->rope_factor) / log((double)d->rope_original_length));
}

/* Factor for rotated values: it is in the tables of cos and sin. */
static double rope_magnitude(const struct model_dims *d)
{
    if (is_longrope(d))
        return longrope_magnitude(d);
    if (!is_yarn(d))
        return 1;
    if (d->rope_mscale == 0 || d->rope_mscale_all_dim == 0)
        return yarn_magnitude(d, 1);
    return yarn_magnitude(d, d->rope_mscale) / yarn_magnitude(d, d->rope_mscale_all_dim);
}

static double plain_frequency(double theta, int64_t width, int64_t pair)
{
    return pow(theta, -2.0 * (double)pair / (double)width);
}

/* Returns the base for sequences longer than the original length. The slowest pair is stretched by `by`, the fastest
 * pair not at all. */
static double dynamic_theta(const struct model_dims *d, int64_t width, int64_t positions)
{
    const double by = d->rope_factor * (double)positions / (double)d->rope_original_length - (d->rope_factor - 1);
    return positions > d->rope_original_length && width > 2
               ? d->rope_theta * pow(by, (double)width / (double)(width - 2))
               : d->rope_theta;
}

static double frequency(const struct model_dims *d, int64_t width, int64_t pair, int64_t positions)
{
    const double theta = is_dynamic(d) ? dynamic_theta(d, width, positions) : d->rope_theta;
    const double plain = plain_frequency(theta, width, pair);

    if (strcmp(d->rope_scaling, "llama3") == 0)
        return stretch_llama3(d, plain);
    if (strcmp(d->rope_scaling, "linear") == 0)
        return plain / d->rope_factor;
    if (is_longrope(d))
        return plain /
               (positions > d->rope_original_length ? &d->rope_long_factor : &d->rope_short_factor)->value[pair];
    return is_yarn(d) ? stretch_yarn(d, width, pair, plain) : plain;
}

void model_rope_tables(const struct model *model, bool local, int64_t positions, float *cos_out, float *sin_out)
{
    const struct model_dims *d = &model->dims;
    const int64_t half = model_rope_dim(model) / 2, width = d->rope_dim > 0 ? d->rope_dim : 2 * half;
    const double magnitude = local ? 1 : rope_magnitude(d);

    for (int64_t i = 0; i < half; i++) {
        const bool turns = 2 * i < width;
        const double freq = !turns  ? 0
                            : local ? plain_frequency(d->rope_local_theta, width, i)
                                    : frequency(d, width, i, positions);
        const double by = turns ? magnitude : 1;
        for (int64_t p = 0; p < positions; p++) {
            cos_out[p * half + i] = (float)(by * cos((double)p * freq));
            sin_out[p * half + i] = (float)(by * sin((double)p * freq));
        }
    }
}

double model_score_scale(const struct model *model)
{
    const struct model_dims *d = &model->dims;
    const double all = d->kv_lora_rank > 0 && is_yarn(d) ? yarn_magnitude(d, d->rope_mscale_all_dim) : 1;

    return d->attention_multiplier > 0 ? d->attention_multiplier : all * all / sqrt((double)model->head_dim);
}
