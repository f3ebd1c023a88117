/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/checkpoint/hf_names.h"

#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"

/* Names of tensors, within a layer or in the whole model. "%d" is the expert's number. NULL: the name depends on the
 * family. */
static const char *const patterns[ROLE_COUNT] = {
    [ROLE_EMBEDDING] = "model.embed_tokens.weight",
    [ROLE_NORM] = "model.norm.weight",
    [ROLE_OUTPUT] = "lm_head.weight",
    [ROLE_ATTENTION_NORM] = "input_layernorm.weight",
    [ROLE_FFN_NORM] = "post_attention_layernorm.weight",
    [ROLE_WQ] = "self_attn.q_proj.weight",
    [ROLE_WK] = "self_attn.k_proj.weight",
    [ROLE_WV] = "self_attn.v_proj.weight",
    [ROLE_WO] = "self_attn.o_proj.weight",
    [ROLE_Q_NORM] = "self_attn.q_norm.weight",
    [ROLE_K_NORM] = "self_attn.k_norm.weight",
    [ROLE_WQ_A] = "self_attn.q_a_proj.weight",
    [ROLE_WQ_B] = "self_attn.q_b_proj.weight",
    [ROLE_WKV_A] = "self_attn.kv_a_proj_with_mqa.weight",
    [ROLE_KV_NORM] = "self_attn.kv_a_layernorm.weight",
    [ROLE_WKV_B] = "self_attn.kv_b_proj.weight",
    [ROLE_W1] = "mlp.gate_proj.weight",
    [ROLE_W3] = "mlp.up_proj.weight",
    [ROLE_W2] = "mlp.down_proj.weight",
    [ROLE_WQ_BIAS] = "self_attn.q_proj.bias",
    [ROLE_WK_BIAS] = "self_attn.k_proj.bias",
    [ROLE_WV_BIAS] = "self_attn.v_proj.bias",
    [ROLE_WO_BIAS] = "self_attn.o_proj.bias",
    [ROLE_W1_BIAS] = "mlp.gate_proj.bias",
    [ROLE_W3_BIAS] = "mlp.up_proj.bias",
    [ROLE_W2_BIAS] = "mlp.down_proj.bias",
    [ROLE_ATTENTION_OUT_NORM] = "post_attention_layernorm.weight",
    [ROLE_FFN_OUT_NORM] = "post_feedforward_layernorm.weight",
    [ROLE_SINKS] = "self_attn.sinks",
    [ROLE_EMBEDDING_NORM] = "enorm.weight",
    [ROLE_HIDDEN_NORM] = "hnorm.weight",
    [ROLE_JOIN] = "eh_proj.weight",
};

static bool is_query_key_value(enum tensor_role role)
{
    return role == ROLE_WQ || role == ROLE_WK || role == ROLE_WV;
}

static bool is_gate_up(enum tensor_role role)
{
    return role == ROLE_W1 || role == ROLE_W3;
}

/* Describes our tensor if the file has it as part of a larger tensor. There our tensors lie one below the other, in our
 * order. */
static void find_fused(const struct model *m, int tensor, struct hf_tensor *ret)
{
    const struct model_tensor *t = &m->tensors[tensor];

    if (!is_query_key_value(t->role) && !(is_gate_up(t->role) && t->experts == 0))
        return;
    while (m->tensors[tensor].glued) {
        ret->from += m->tensors[--tensor].shape[0];
        titan_assert(tensor > 0);
    }
    ret->whole = m->tensors[tensor].shape[0];
    while (++tensor < m->n_tensors && m->tensors[tensor].glued)
        ret->whole += m->tensors[tensor].shape[0];
}

void hf_find(const struct hf_family *f, const struct model *m, int tensor, bool halves, struct hf_tensor *ret)
{
    const struct model_tensor *t = &m->tensors[tensor];
    const struct model_dims *d = &m->dims;
    const bool latent = d->kv_lora_rank > 0, expert_bias = model_is_expert_bias(t);

    titan_assert(tensor >= 0 && tensor < m->n_tensors);
    *ret = (struct hf_tensor){.parts = MAX(t->experts, 1), .cols = t->ndim > 1 ? t->shape[1] : 1, .step = 1};
    ret->rows = t->shape[0] / ret->parts;
    titan_assert(ret->rows * ret->parts == t->shape[0]);
    ret->whole = ret->rows;
    if (f->fused)
        find_fused(m, tensor, ret);
    if (f->experts == HF_GPT_OSS && t->experts > 0) {
        /* An expert's transposed matrix, or its bias. Rows of gate and up alternate. */
        const bool down = t->role == ROLE_W2 || t->role == ROLE_W2_BIAS;
        ret->stacked = true;
        if (expert_bias) {
            ret->rows = t->shape[1];
            ret->cols = 1;
        }
        ret->step = down ? 1 : 2;
        ret->from = t->role == ROLE_W3 || t->role == ROLE_W3_BIAS;
        ret->whole = ret->rows * ret->step;
    }

    const bool vector = t->ndim == 1 || expert_bias;
    if (ret->stacked)
        ret->shape[ret->ndim++] = ret->parts;
    if (ret->stacked && !vector)
        ret->shape[ret->ndim++] = ret->cols;
    ret->shape[ret->ndim++] = ret->whole;
    if (!ret->stacked && !vector)
        ret->shape[ret->ndim++] = ret->cols;

    ret->moved = latent ? d->qk_rope_head_dim : d->rope_dim > 0 ? d->rope_dim : m->head_dim;
    switch (t->role) {
    case ROLE_WQ:
    case ROLE_WQ_B:
        ret->head = !latent || halves ? m->head_dim : 0;
        ret->still = latent ? d->qk_nope_head_dim : 0;
        break;
    case ROLE_WKV_A:
        ret->head = halves ? ret->rows : 0;
        ret->still = d->kv_lora_rank;
        break;
    case ROLE_WK:
    case ROLE_WQ_BIAS:
    case ROLE_WK_BIAS:
        ret->head = m->head_dim;
        break;
    case ROLE_Q_NORM:
    case ROLE_K_NORM: /* all heads share the gains: one per row of a head */
        ret->head = latent ? 0 : m->head_dim;
        break;
    default:
        break;
    }
}

void hf_name(const struct hf_family *f, const struct model *m, int tensor, int part, char out[HF_NAME_MAX])
{
    static const char *const usual[] = {"gate_proj", "up_proj", "down_proj"};
    const struct model_tensor *t = &m->tensors[tensor];
    const char *const in = f->experts_in ? f->experts_in : "mlp";
    const bool shared = strstr(t->name, ".shared_experts.") != NULL, router = t->role == ROLE_GATE;
    const int layer = m->units[t->unit].layer, which = t->role == ROLE_W1 ? 0 : t->role == ROLE_W3 ? 1 : 2;
    size_t used = 0;

    titan_assert(part >= 0 && part < MAX(t->experts, 1));
    if (layer >= 0)
        used = (size_t)snprintf(out, HF_NAME_MAX, "model.layers.%d.", layer);
    char *const to = out + used;
    const size_t size = HF_NAME_MAX - used;

    if (f->experts == HF_GPT_OSS && (router || t->role == ROLE_GATE_BIAS || t->experts > 0)) { /* one tensor for all */
        const bool bias = model_is_expert_bias(t) || t->role == ROLE_GATE_BIAS;
        if (t->experts == 0)
            (void)snprintf(to, size, "mlp.router.%s", bias ? "bias" : "weight");
        else
            (void)snprintf(to, size, "mlp.experts.%s_proj%s",
                           t->role == ROLE_W2 || t->role == ROLE_W2_BIAS ? "down" : "gate_up", bias ? "_bias" : "");
    } else if (router)
        (void)snprintf(to, size, "%s.gate.weight", in);
    else if (t->experts > 0)
        (void)snprintf(to, size, "%s.experts.%d.%s.weight", in, part,
                       f->expert[which] ? f->expert[which] : usual[which]);
    else if (shared)
        (void)snprintf(to, size, "%s.shared_experts.%s.weight", in, usual[which]);
    else if (f->fused && is_query_key_value(t->role))
        (void)snprintf(to, size, "self_attn.qkv_proj.weight");
    else if (f->fused && is_gate_up(t->role))
        (void)snprintf(to, size, "mlp.gate_up_proj.weight");
    else if (m->dims.output_norms && t->role == ROLE_FFN_NORM) /* another tensor has the usual name */
        (void)snprintf(to, size, "pre_feedforward_layernorm.weight");
    else if (layer >= 0 && t->role == ROLE_NORM)
        (void)snprintf(to, size, "shared_head.norm.weight");
    else if (f->latent && t->role == ROLE_Q_NORM)
        (void)snprintf(to, size, "self_attn.q_a_layernorm.weight");
    else
        (void)snprintf(to, size, "%s", patterns[t->role]);
}

void hf_shared_name(const struct model *m, enum tensor_role role, int module, char out[HF_NAME_MAX])
{
    titan_assert(module >= 1 && module <= m->dims.mtp_layers && (role == ROLE_EMBEDDING || role == ROLE_OUTPUT));
    (void)snprintf(out, HF_NAME_MAX, "model.layers.%lld.%s.weight", (long long)m->dims.n_layers + module - 1,
                   role == ROLE_EMBEDDING ? "embed_tokens" : "shared_head.head");
}

void hf_bias_name(const struct hf_family *f, int layer, char out[HF_NAME_MAX])
{
    titan_assert(layer >= 0);
    (void)snprintf(out, HF_NAME_MAX, "model.layers.%d.%s.gate.e_score_correction_bias", layer,
                   f->experts_in ? f->experts_in : "mlp");
}

int64_t hf_row(const struct hf_tensor *t, int64_t row)
{
    titan_assert(row >= 0 && row < t->rows);
    const int64_t i = t->head == 0 ? -1 : row % t->head - t->still;
    if (i < 0 || i >= t->moved)
        return t->from + row * t->step;
    return t->from + row - i + i / 2 + (i % 2) * (t->moved / 2);
}
