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

static titan_status check_rope(const struct model_dims *d, struct titan_error *err)
{
    const int64_t rotated = d->kv_lora_rank > 0 ? d->qk_rope_head_dim : d->rope_dim > 0 ? d->rope_dim : head_width(d);
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
    if (is_longrope(d) &&
        (d->rope_factor < 1 || d->rope_original_length < 2 || !has_factors(&d->rope_short_factor, rotated / 2) ||
         !has_factors(&d->rope_long_factor, rotated / 2)))
        return titan_fail(err, TITAN_EINVAL,
                          "model: rope_scaling \"longrope\" needs rope_factor, rope_original_length, and a "
                          "rope_short_factor and a rope_long_factor for each of %ld pairs",
                          (long)(rotated / 2));
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

/* How a tensor of each role is cut, and whether it continues the matrix of the tensor before it. Tensors of other roles
 * are whole. Experts' tensors are cut over ep instead, and never continue another matrix. */
static const struct {
    enum split split;
    bool glued;
} role_cuts[ROLE_COUNT] = {
    [ROLE_EMBEDDING] = {SPLIT_ROWS, false}, [ROLE_OUTPUT] = {SPLIT_ROWS, false}, [ROLE_WQ] = {SPLIT_ROWS, false},
    [ROLE_WK] = {SPLIT_ROWS, true},         [ROLE_WV] = {SPLIT_ROWS, true},      [ROLE_WO] = {SPLIT_COLS, false},
    [ROLE_WQ_B] = {SPLIT_ROWS, false},      [ROLE_WKV_B] = {SPLIT_ROWS, false},  [ROLE_W1] = {SPLIT_ROWS, false},
    [ROLE_W3] = {SPLIT_ROWS, true},         [ROLE_W2] = {SPLIT_COLS, false},     [ROLE_WQ_BIAS] = {SPLIT_COLS, false},
    [ROLE_WK_BIAS] = {SPLIT_COLS, true},    [ROLE_WV_BIAS] = {SPLIT_COLS, true}, [ROLE_W1_BIAS] = {SPLIT_COLS, false},
    [ROLE_W3_BIAS] = {SPLIT_COLS, true},    [ROLE_SINKS] = {SPLIT_COLS, false}, /* cut with the heads */
};

/* Initial values of a tensor. */
struct init {
    enum init_rule rule;
    double std;
};

/* cols 0: the tensor is a vector. */
static void add_tensor(struct model *m, const char *name, enum tensor_role role, int64_t rows, int64_t cols,
                       struct init init)
{
    struct model_unit *u = &m->units[m->n_units - 1];
    struct model_tensor *t = &m->tensors[m->n_tensors++];
    const bool experts = u->kind == UNIT_EXPERTS;

    if (u->layer >= 0)
        (void)snprintf(t->name, sizeof t->name, "layers.%d.%s", u->layer, name);
    else
        (void)snprintf(t->name, sizeof t->name, "%s", name);
    t->shape[0] = rows;
    t->shape[1] = cols;
    t->ndim = cols > 0 ? 2 : 1;
    t->numel = rows * (cols > 0 ? cols : 1);
    t->unit = m->n_units - 1;
    t->role = role;
    t->split = experts ? SPLIT_EXPERTS : role_cuts[role].split;
    t->experts = experts ? (int)m->dims.n_experts : 0;
    t->glued = !experts && role_cuts[role].glued;
    t->init = init.rule;
    t->std = (float)init.std;
    u->n_tensors++;
}

/* Adds a norm's gain. The initial factor is 1: with norm_offset the stored gain is 0. */
static void add_gain(struct model *m, const char *name, enum tensor_role role, int64_t n)
{
    add_tensor(m, name, role, n, 0, (struct init){m->dims.norm_offset ? INIT_ZEROS : INIT_ONES, 0});
}

static void add_bias(struct model *m, const char *name, enum tensor_role role, int64_t n)
{
    add_tensor(m, name, role, n, 0, (struct init){INIT_ZEROS, 0});
}

static void add_normal(struct model *m, const char *name, enum tensor_role role, int64_t rows, int64_t cols, double std)
{
    add_tensor(m, name, role, rows, cols, (struct init){INIT_NORMAL, std});
}

/* Adds the head's matrix, which is also the embedding's if the two are tied. */
static void add_output(struct model *m, const char *name, enum tensor_role role)
{
    const struct model_dims *d = &m->dims;
    add_tensor(m, name, role, d->vocab_size, d->dim, (struct init){INIT_TRUNCATED, 1.0 / sqrt((double)d->dim)});
}

static void add_attention(struct model *m, double out_std)
{
    const int64_t c = m->dims.dim, hd = m->dims.n_heads * m->head_dim, kd = m->dims.n_kv_heads * m->head_dim;

    if (!m->dims.no_input_norms)
        add_gain(m, "attention_norm.weight", ROLE_ATTENTION_NORM, c);
    add_normal(m, "attention.wq.weight", ROLE_WQ, hd, c, 0.02);
    add_normal(m, "attention.wk.weight", ROLE_WK, kd, c, 0.02);
    add_normal(m, "attention.wv.weight", ROLE_WV, kd, c, 0.02);
    add_normal(m, "attention.wo.weight", ROLE_WO, c, hd, out_std);
    if (m->dims.qk_norm) {
        add_gain(m, "attention.q_norm.weight", ROLE_Q_NORM, m->dims.qk_norm_whole ? hd : m->head_dim);
        add_gain(m, "attention.k_norm.weight", ROLE_K_NORM, m->dims.qk_norm_whole ? kd : m->head_dim);
    }
    if (m->dims.output_norms)
        add_gain(m, "attention_out_norm.weight", ROLE_ATTENTION_OUT_NORM, c);
    if (m->dims.qkv_bias) {
        add_bias(m, "attention.wq.bias", ROLE_WQ_BIAS, hd);
        add_bias(m, "attention.wk.bias", ROLE_WK_BIAS, kd);
        add_bias(m, "attention.wv.bias", ROLE_WV_BIAS, kd);
    }
    if (m->dims.output_bias)
        add_bias(m, "attention.wo.bias", ROLE_WO_BIAS, c);
    if (m->dims.attention_sinks)
        add_normal(m, "attention.sinks", ROLE_SINKS, m->dims.n_heads, 0, 0.02);
}

/* A head of queries or keys has nope + rope columns, a head of values has a width of its own. All heads share one
 * rotated key. */
static void add_latent_attention(struct model *m, double out_std)
{
    const struct model_dims *d = &m->dims;
    const int64_t c = d->dim, h = d->n_heads, hd = h * m->head_dim, q = d->q_lora_rank, r = d->kv_lora_rank;

    add_gain(m, "attention_norm.weight", ROLE_ATTENTION_NORM, c);
    if (q > 0) {
        add_normal(m, "attention.wq_a.weight", ROLE_WQ_A, q, c, 0.02);
        add_gain(m, "attention.q_norm.weight", ROLE_Q_NORM, q);
        add_normal(m, "attention.wq_b.weight", ROLE_WQ_B, hd, q, 0.02);
    } else {
        add_normal(m, "attention.wq.weight", ROLE_WQ, hd, c, 0.02);
    }
    add_normal(m, "attention.wkv_a.weight", ROLE_WKV_A, r + d->qk_rope_head_dim, c, 0.02);
    add_gain(m, "attention.kv_norm.weight", ROLE_KV_NORM, r);
    add_normal(m, "attention.wkv_b.weight", ROLE_WKV_B, h * (d->qk_nope_head_dim + d->v_head_dim), r, 0.02);
    add_normal(m, "attention.wo.weight", ROLE_WO, c, h * d->v_head_dim, out_std);
}

static void add_layer(struct model *m, int layer)
{
    const struct model_dims *d = &m->dims;
    const double out_std = 0.02 / sqrt(2.0 * (layer + 1));
    const int64_t c = d->dim;

    begin_unit(m, UNIT_LAYER, layer);
    if (model_module(m, layer) > 0) {
        add_gain(m, "enorm.weight", ROLE_EMBEDDING_NORM, c);
        add_gain(m, "hnorm.weight", ROLE_HIDDEN_NORM, c);
        add_normal(m, "eh_proj.weight", ROLE_JOIN, c, 2 * c, 0.02);
        add_gain(m, "shared_head.norm.weight", ROLE_NORM, c);
    }
    if (d->kv_lora_rank > 0)
        add_latent_attention(m, out_std);
    else
        add_attention(m, out_std);

    if (d->n_experts == 0 || layer < d->n_dense_layers) {
        const int64_t f = d->ffn_hidden;
        if (!d->no_input_norms)
            add_gain(m, "ffn_norm.weight", ROLE_FFN_NORM, c);
        add_normal(m, "feed_forward.w1.weight", ROLE_W1, f, c, 0.02);
        add_normal(m, "feed_forward.w3.weight", ROLE_W3, f, c, out_std);
        add_normal(m, "feed_forward.w2.weight", ROLE_W2, c, f, out_std);
        if (d->output_norms)
            add_gain(m, "ffn_out_norm.weight", ROLE_FFN_OUT_NORM, c);
        if (d->mlp_bias) {
            add_bias(m, "feed_forward.w1.bias", ROLE_W1_BIAS, f);
            add_bias(m, "feed_forward.w3.bias", ROLE_W3_BIAS, f);
            add_bias(m, "feed_forward.w2.bias", ROLE_W2_BIAS, c);
        }
        return;
    }

    /* The router and shared experts are in the unit of their layer. */
    const int64_t e = d->n_experts, f = d->moe_hidden, shared = d->n_shared_experts * f;
    add_gain(m, "ffn_norm.weight", ROLE_FFN_NORM, c);
    add_normal(m, "moe.router.gate.weight", ROLE_GATE, e, c, out_std);
    if (d->router_bias)
        add_bias(m, "moe.router.gate.bias", ROLE_GATE_BIAS, e);
    if (shared > 0) {
        add_normal(m, "moe.shared_experts.w1.weight", ROLE_W1, shared, c, 0.02);
        add_normal(m, "moe.shared_experts.w3.weight", ROLE_W3, shared, c, out_std);
        add_normal(m, "moe.shared_experts.w2.weight", ROLE_W2, c, shared, out_std);
    }
    begin_unit(m, UNIT_EXPERTS, layer);
    add_normal(m, "moe.experts.w1", ROLE_W1, e * f, c, 0.02);
    add_normal(m, "moe.experts.w3", ROLE_W3, e * f, c, out_std);
    add_normal(m, "moe.experts.w2", ROLE_W2, e * c, f, out_std);
    if (d->mlp_bias) {
        const struct init zeros = {INIT_ZEROS, 0};
        add_tensor(m, "moe.experts.w1.bias", ROLE_W1_BIAS, e, f, zeros);
        add_tensor(m, "moe.experts.w3.bias", ROLE_W3_BIAS, e, f, zeros);
        add_tensor(m, "moe.experts.w2.bias", ROLE_W2_BIAS, e, c, zeros);
    }
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

    begin_unit(m, UNIT_EMBEDDING, -1);
    if (dims->tied_embeddings)
        add_output(m, "tok_embeddings.weight", ROLE_EMBEDDING);
    else
        add_normal(m, "tok_embeddings.weight", ROLE_EMBEDDING, dims->vocab_size, dims->dim, 1.0);
    for (int l = 0; l < dims->n_layers; l++)
        add_layer(m, l);
    begin_unit(m, dims->mtp_layers > 0 ? UNIT_NORM : UNIT_HEAD, -1);
    add_gain(m, "norm.weight", ROLE_NORM, dims->dim);
    for (int l = (int)dims->n_layers; l < model_all_layers(m); l++)
        add_layer(m, l);
    if (dims->mtp_layers > 0)
        begin_unit(m, UNIT_HEAD, -1);
    if (!dims->tied_embeddings)
        add_output(m, "output.weight", ROLE_OUTPUT);
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

static double yarn_magnitude(const struct model_dims *d, double mscale)
{
    return 1 + 0.1 * mscale * log(d->rope_factor);
}

static bool is_yarn(const struct model_dims *d)
{
    return strcmp(d->rope_scaling, "yarn") == 0;
}

/* Factor for rotated values. The tables of cos and sin include it. */
static double rope_magnitude(const struct model_dims *d)
{
    if (is_longrope(d))
        return d->rope_attention_factor > 0 ? d->rope_attention_factor
                                            : sqrt(1 + log(d->rope_factor) / log((double)d->rope_original_length));
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

static double frequency(const struct model_dims *d, int64_t width, int64_t pair, int64_t positions)
{
    const bool longer = positions > d->rope_original_length;
    double theta = d->rope_theta;

    /* The base for sequences longer than the original length. The slowest pair is stretched by `by`, the fastest pair
     * not at all. */
    if (is_dynamic(d) && longer && width > 2) {
        const double by = d->rope_factor * (double)positions / (double)d->rope_original_length - (d->rope_factor - 1);
        theta *= pow(by, (double)width / (double)(width - 2));
    }
    const double plain = plain_frequency(theta, width, pair);
    if (strcmp(d->rope_scaling, "llama3") == 0)
        return stretch_llama3(d, plain);
    if (strcmp(d->rope_scaling, "linear") == 0)
        return plain / d->rope_factor;
    if (is_longrope(d))
        return plain / (longer ? &d->rope_long_factor : &d->rope_short_factor)->value[pair];
    if (!is_yarn(d))
        return plain;

    /* YaRN blends like Llama 3.1, but linearly in the pair's number. The blend runs from the pair of beta_fast turns to
     * the pair of beta_slow turns, each rounded outwards, or exact with rope_between_pairs. */
    const double fast = pair_of_turns(d, width, d->rope_beta_fast), slow = pair_of_turns(d, width, d->rope_beta_slow);
    const double low = fmax(d->rope_between_pairs ? fast : floor(fast), 0);
    const double high = fmin(d->rope_between_pairs ? slow : ceil(slow), (double)width - 1);
    const double ramp = ((double)pair - low) / (high == low ? 0.001 : high - low);
    const double kept = 1 - fmin(fmax(ramp, 0), 1);
    return plain / d->rope_factor * (1 - kept) + plain * kept;
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
