/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/checkpoint/hf_names.h"

#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"

titan_status hf_check_model(const struct model *m, struct titan_error *err)
{
    const struct model_dims *d = &m->dims;

    if (d->n_experts == 0 && d->kv_lora_rank == 0)
        return TITAN_OK;
    if (d->kv_lora_rank > 0 && d->n_experts > 0 && d->n_expert_groups > 0 &&
        d->group_top_k != (d->sigmoid_scores ? 2 : 1))
        return titan_fail(err, TITAN_EUNSUPPORTED,
                          "transformers has no class for this model: it scores a group of experts by its best %s",
                          d->sigmoid_scores ? "two, for sigmoid scores" : "one, for softmax scores");
    if (d->kv_lora_rank > 0 && d->n_experts > 0 && !d->sigmoid_scores && d->normalize_scores)
        return titan_fail(err, TITAN_EUNSUPPORTED,
                          "transformers has no class for this model: its DeepSeek V2 takes no notice of norm_topk_prob "
                          "(model.normalize_scores)");
    if (d->kv_lora_rank > 0 && d->n_experts > 0)
        return TITAN_OK;
    const bool limited = d->n_expert_groups > 0 && d->n_limited_groups < d->n_expert_groups;
    if (d->kv_lora_rank == 0 && d->qk_norm && d->n_shared_experts == 0 && !d->sigmoid_scores && !limited &&
        d->route_scale == 1)
        return TITAN_OK;
    return titan_fail(err, TITAN_EUNSUPPORTED, "transformers has no class for this model: %s",
                      d->kv_lora_rank > 0   ? "latent attention without experts"
                      : !d->qk_norm         ? "experts with ordinary attention and without a norm of heads"
                      : d->n_shared_experts ? "Qwen 3 with shared experts"
                      : d->sigmoid_scores   ? "Qwen 3 with sigmoid scores"
                      : limited             ? "Qwen 3 with groups of experts"
                                            : "Qwen 3 with scores times model.route_scale");
}

/* The name within a layer, or of the whole model; "%d": which expert. */
static const char *pattern_of(const struct model *m, int tensor)
{
    const struct model_tensor *t = &m->tensors[tensor];
    const bool latent = m->dims.kv_lora_rank > 0, shared = strstr(t->name, ".shared_experts.") != NULL;

    titan_assert(tensor >= 0 && tensor < m->n_tensors);
    switch (t->role) {
    case ROLE_EMBEDDING:
        return "model.embed_tokens.weight";
    case ROLE_NORM:
        return "model.norm.weight";
    case ROLE_OUTPUT:
        return "lm_head.weight";
    case ROLE_ATTENTION_NORM:
        return "input_layernorm.weight";
    case ROLE_FFN_NORM:
        return "post_attention_layernorm.weight";
    case ROLE_WQ:
        return "self_attn.q_proj.weight";
    case ROLE_WK:
        return "self_attn.k_proj.weight";
    case ROLE_WV:
        return "self_attn.v_proj.weight";
    case ROLE_WO:
        return "self_attn.o_proj.weight";
    case ROLE_Q_NORM:
        return latent ? "self_attn.q_a_layernorm.weight" : "self_attn.q_norm.weight";
    case ROLE_K_NORM:
        return "self_attn.k_norm.weight";
    case ROLE_WQ_A:
        return "self_attn.q_a_proj.weight";
    case ROLE_WQ_B:
        return "self_attn.q_b_proj.weight";
    case ROLE_WKV_A:
        return "self_attn.kv_a_proj_with_mqa.weight";
    case ROLE_KV_NORM:
        return "self_attn.kv_a_layernorm.weight";
    case ROLE_WKV_B:
        return "self_attn.kv_b_proj.weight";
    case ROLE_GATE:
        return "mlp.gate.weight";
    case ROLE_W1:
        return t->experts > 0 ? "mlp.experts.%d.gate_proj.weight"
               : shared       ? "mlp.shared_experts.gate_proj.weight"
                              : "mlp.gate_proj.weight";
    case ROLE_W3:
        return t->experts > 0 ? "mlp.experts.%d.up_proj.weight"
               : shared       ? "mlp.shared_experts.up_proj.weight"
                              : "mlp.up_proj.weight";
    case ROLE_W2:
        return t->experts > 0 ? "mlp.experts.%d.down_proj.weight"
               : shared       ? "mlp.shared_experts.down_proj.weight"
                              : "mlp.down_proj.weight";
    case ROLE_COUNT:
        break;
    }
    titan_assert(!"a tensor without a role");
    return "";
}

void hf_find(const struct model *m, int tensor, bool halves, struct hf_tensor *ret)
{
    const struct model_tensor *t = &m->tensors[tensor];
    const struct model_dims *d = &m->dims;
    const bool latent = d->kv_lora_rank > 0;

    titan_assert(tensor >= 0 && tensor < m->n_tensors);
    *ret = (struct hf_tensor){.parts = MAX(t->experts, 1), .cols = t->ndim > 1 ? t->shape[1] : 1};
    ret->rows = t->shape[0] / ret->parts;
    titan_assert(ret->rows * ret->parts == t->shape[0]);
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
        ret->head = m->head_dim;
        break;
    case ROLE_Q_NORM:
    case ROLE_K_NORM: /* one gain a row of a head, for all heads */
        ret->head = latent ? 0 : m->head_dim;
        break;
    default:
        break;
    }
}

void hf_name(const struct model *m, int tensor, int part, char out[HF_NAME_MAX])
{
    const struct model_unit *u = &m->units[m->tensors[tensor].unit];
    const char *pattern = pattern_of(m, tensor), *number = strstr(pattern, "%d");
    size_t used = 0;

    titan_assert(part >= 0 && part < MAX(m->tensors[tensor].experts, 1));
    if (u->layer >= 0)
        used = (size_t)snprintf(out, HF_NAME_MAX, "model.layers.%d.", u->layer);
    if (number)
        (void)snprintf(out + used, HF_NAME_MAX - used, "%.*s%d%s", (int)(number - pattern), pattern, part, number + 2);
    else
        (void)snprintf(out + used, HF_NAME_MAX - used, "%s", pattern);
}

void hf_bias_name(int layer, char out[HF_NAME_MAX])
{
    titan_assert(layer >= 0);
    (void)snprintf(out, HF_NAME_MAX, "model.layers.%d.mlp.gate.e_score_correction_bias", layer);
}

int64_t hf_row(const struct hf_tensor *t, int64_t row)
{
    titan_assert(row >= 0 && row < t->rows);
    if (t->head == 0 || row % t->head < t->still)
        return row;
    const int64_t i = row % t->head - t->still, half = (t->head - t->still) / 2;
    return row - i + i / 2 + (i % 2) * half;
}
