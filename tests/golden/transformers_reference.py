#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Reference values of models from transformers, written to tests/golden/hf_*.json.

    tests/golden/transformers_reference.py          (needs torch and transformers; the tests only read the files)

What a file has and how weights are made: reference.py. The models are transformers' own classes with tiny random configurations
that have what a released one has: groups of experts, biases of their choice, YaRN with both mscales, odd widths, and
positions of a sequence long enough that YaRN's stretch shows. Weights are Titan's initial ones, with gains moved, put where transformers keeps
them; gradients come back the same way. Titan rotates adjacent pairs of a head. DeepSeek's classes do as well; where
transformers' rotates halves (Llama, Qwen 3), row i of a head there is row 2i here, and row D/2+i is row 2i+1.

"seed": that of the weights. "biases": of the choice of experts, all layers', 0.2 times the normal draws of the stream "golden.biases".
"""
import sys

import numpy as np
import torch
import transformers
from transformers.models.deepseek_v2 import DeepseekV2Config, DeepseekV2ForCausalLM
from transformers.models.deepseek_v3 import DeepseekV3Config, DeepseekV3ForCausalLM
from transformers.models.llama import LlamaConfig, LlamaForCausalLM
from transformers.models.qwen3_moe import Qwen3MoeConfig, Qwen3MoeForCausalLM

import reference
from reference import SEED, digest, initial, mixed, normals, number, parameters

LATENT = dict(norm_eps=1e-6, rope_theta=10000.0, rope_scaling="yarn", rope_factor=40.0, rope_original_length=16, rope_beta_fast=32.0,
              rope_beta_slow=1.0)
PHI3 = dict(dim=64, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=16, ffn_hidden=96, vocab_size=256, rope_theta=500.0, norm_eps=1e-5,
            rope_scaling="longrope", rope_dim=12, rope_short_factor=[1.0, 1.05, 1.1, 1.3, 1.7, 2.0],
            rope_long_factor=[1.1, 1.6, 2.7, 4.0, 9.5, 31.0])
MODELS = {
    # factor of Llama 3.2, and an original length that sequences reach beyond
    "hf_llama": dict(dim=64, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=16, ffn_hidden=96, vocab_size=256,
                     rope_theta=500.0, norm_eps=1e-5, rope_scaling="llama3", rope_factor=32.0, rope_original_length=32,
                     tied_embeddings=True),
    # sequences that are longer than the base was made for
    "hf_llama_dynamic": dict(dim=64, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=16, ffn_hidden=96, vocab_size=256, rope_theta=500.0,
                             norm_eps=1e-5, rope_scaling="dynamic", rope_factor=2.0, rope_original_length=24),
    # a divisor for each pair: sequences longer than the original length, and shorter ones with a given factor of what is rotated
    "hf_phi3_long": dict(PHI3, rope_factor=4.0, rope_original_length=16),
    "hf_phi3_short": dict(PHI3, rope_factor=2.0, rope_original_length=64, rope_attention_factor=1.25),
    "hf_qwen3_yarn": dict(dim=64, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=24, ffn_hidden=96, vocab_size=256,
                          rope_theta=1000.0, norm_eps=1e-6, rope_scaling="yarn", rope_factor=4.0,
                          rope_original_length=16, rope_beta_fast=32.0, rope_beta_slow=1.0, qk_norm=True),
    "hf_qwen3_moe": dict(dim=64, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=24, ffn_hidden=96, vocab_size=256,
                         rope_theta=1000000.0, norm_eps=1e-6, rope_scaling="none", qk_norm=True, n_experts=8, top_k=3,
                         n_shared_experts=0, moe_hidden=48, n_dense_layers=0, sigmoid_scores=False, normalize_scores=True,
                         route_scale=1.0),
    # the best of each group, softmax, no queries' rank; mscale as V2 Lite has it
    "hf_deepseek_v2": dict(dim=64, n_layers=3, n_heads=4, n_kv_heads=4, head_dim=24, ffn_hidden=128, vocab_size=256, q_lora_rank=0,
                           kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, n_experts=12,
                           top_k=4, n_shared_experts=2, moe_hidden=48, n_dense_layers=1, sigmoid_scores=False,
                           normalize_scores=False, route_scale=16.0, n_expert_groups=4, n_limited_groups=2,
                           group_top_k=1, rope_mscale=0.707, rope_mscale_all_dim=0.707, **LATENT),
    # the best two of each group with biases, sigmoid; mscales that differ, so that what is rotated has a factor too; odd widths
    "hf_deepseek_v3": dict(dim=64, n_layers=3, n_heads=4, n_kv_heads=4, head_dim=21, ffn_hidden=128, vocab_size=256, q_lora_rank=32,
                           kv_lora_rank=32, qk_nope_head_dim=13, qk_rope_head_dim=8, v_head_dim=11, n_experts=16,
                           top_k=4, n_shared_experts=1, moe_hidden=48, n_dense_layers=1, sigmoid_scores=True,
                           normalize_scores=True, route_scale=2.5, n_expert_groups=4, n_limited_groups=2, group_top_k=2,
                           balance_rate=0.001, rope_mscale=1.0, rope_mscale_all_dim=0.8, **LATENT),
    # all biases and the four multipliers
    "hf_granite": dict(dim=64, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=24, ffn_hidden=96, vocab_size=256,
                       rope_theta=10000.0, norm_eps=1e-6, rope_scaling="linear", rope_factor=4.0, qkv_bias=True, output_bias=True,
                       mlp_bias=True, embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.3, logits_scaling=2.0),
    # every second layer does not rotate
    "hf_smollm3": dict(dim=64, n_layers=3, n_heads=4, n_kv_heads=1, head_dim=16, ffn_hidden=96, vocab_size=256,
                       rope_theta=10000.0, norm_eps=1e-6, rope_scaling="none", tied_embeddings=True, no_rope_every=2),
    # norms of what is added, none of what is read, and of all heads together
    "hf_olmo2": dict(dim=64, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=16, ffn_hidden=96, vocab_size=256,
                     rope_theta=10000.0, norm_eps=1e-5, rope_scaling="none", qk_norm=True, qk_norm_whole=True, output_norms=True,
                     no_input_norms=True),
    # GELU, gains less 1, norms of all kinds, an embedding times sqrt(dim); layers with a window have frequencies of their own
    "hf_gemma3": dict(dim=64, n_layers=3, n_heads=4, n_kv_heads=2, head_dim=24, ffn_hidden=96, vocab_size=256, rope_theta=1000.0,
                      norm_eps=1e-6, rope_scaling="linear", rope_factor=4.0, tied_embeddings=True, qk_norm=True, output_norms=True,
                      norm_offset=True, gelu=True, embedding_multiplier=8.0, attention_multiplier=0.25, sliding_window=17,
                      full_attention_every=2, rope_local_theta=100.0),
    # as that, with caps of scores and logits that both come to, and no norms of heads
    "hf_gemma2": dict(dim=64, n_layers=3, n_heads=4, n_kv_heads=2, head_dim=24, ffn_hidden=96, vocab_size=256, rope_theta=1000.0,
                      norm_eps=1e-6, rope_scaling="none", tied_embeddings=True, output_norms=True, norm_offset=True, gelu=True,
                      embedding_multiplier=8.0, attention_multiplier=0.5, sliding_window=17, full_attention_every=2,
                      attention_softcap=0.25, logits_softcap=1.5),
    # sinks, biases of everything, bounds that cut off, YaRN between pairs, a window in every second layer
    "hf_gpt_oss": dict(dim=64, n_layers=3, n_heads=4, n_kv_heads=2, head_dim=24, ffn_hidden=48, vocab_size=256, rope_theta=1000.0,
                       norm_eps=1e-5, rope_scaling="yarn", rope_factor=4.0, rope_original_length=16, rope_beta_fast=32.0,
                       rope_beta_slow=1.0, rope_between_pairs=True, qkv_bias=True, output_bias=True, mlp_bias=True,
                       attention_sinks=True, sliding_window=17, full_attention_every=2, n_experts=8, top_k=3, n_shared_experts=0,
                       moe_hidden=48, n_dense_layers=0, sigmoid_scores=False, normalize_scores=True, route_scale=1.0,
                       router_bias=True, swiglu_limit=0.4, swiglu_alpha=1.3),
    # a window in every layer, from which the longer sequences fall out
    "hf_mistral": dict(dim=64, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=24, ffn_hidden=96, vocab_size=256,
                       rope_theta=10000.0, norm_eps=1e-6, rope_scaling="none", sliding_window=17),
    # the first half of a head rotates; sigmoid scores with ordinary attention, its norm of heads and its biases
    "hf_glm4_moe": dict(dim=64, n_layers=3, n_heads=4, n_kv_heads=2, head_dim=24, ffn_hidden=96, vocab_size=256,
                        rope_theta=10000.0, norm_eps=1e-5, rope_scaling="none", rope_dim=12, qk_norm=True, qkv_bias=True, n_experts=8,
                        top_k=3, n_shared_experts=1, moe_hidden=48, n_dense_layers=1, sigmoid_scores=True, normalize_scores=True,
                        route_scale=1.5, n_expert_groups=4, n_limited_groups=2, group_top_k=2, balance_rate=0.001),
}
BATCH = (2, 61)
GAINS = 0.25


def rope(d):
    """rope_parameters of a configuration."""
    if d["rope_scaling"] == "none":
        part = {"partial_rotary_factor": d["rope_dim"] / d["head_dim"]} if "rope_dim" in d else {}
        return {"rope_type": "default", "rope_theta": d["rope_theta"], **part}
    if d["rope_scaling"] == "longrope":
        given = {"attention_factor": d["rope_attention_factor"]} if "rope_attention_factor" in d else {}
        return {"rope_type": "longrope", "rope_theta": d["rope_theta"], "partial_rotary_factor": d["rope_dim"] / d["head_dim"],
                "short_factor": d["rope_short_factor"], "long_factor": d["rope_long_factor"], **given}
    own = {"rope_type": d["rope_scaling"], "rope_theta": d["rope_theta"], "factor": d["rope_factor"]}
    if d["rope_scaling"] in ("linear", "dynamic"):
        return own
    own["original_max_position_embeddings"] = d["rope_original_length"]
    if d["rope_scaling"] == "llama3":
        return own | {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    own |= {"beta_fast": d["rope_beta_fast"], "beta_slow": d["rope_beta_slow"]}
    own |= {"truncate": False} if d.get("rope_between_pairs") else {}
    return own | {k: d["rope_" + k] for k in ("mscale", "mscale_all_dim") if d.get("rope_" + k)}


def build(name, d):
    """The model of transformers, in fp32, with eager attention."""
    common = dict(hidden_size=d["dim"], num_hidden_layers=d["n_layers"], num_attention_heads=d["n_heads"],
                  num_key_value_heads=d["n_kv_heads"], intermediate_size=d["ffn_hidden"], vocab_size=d["vocab_size"],
                  rms_norm_eps=d["norm_eps"], rope_parameters=rope(d), pad_token_id=None, experts_implementation="eager",
                  max_position_embeddings=int(d.get("rope_factor", 256) * d.get("rope_original_length", 16)),
                  tie_word_embeddings=d.get("tied_embeddings", False), attn_implementation="eager")
    latent = {k: d[k] for k in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")} if "kv_lora_rank" in d else {}
    experts = dict(n_routed_experts=d.get("n_experts"), num_experts_per_tok=d.get("top_k"), n_shared_experts=d.get("n_shared_experts"),
                   moe_intermediate_size=d.get("moe_hidden"), first_k_dense_replace=d.get("n_dense_layers"),
                   routed_scaling_factor=d.get("route_scale"), n_group=d.get("n_expert_groups"), topk_group=d.get("n_limited_groups"),
                   norm_topk_prob=d.get("normalize_scores"), q_lora_rank=d.get("q_lora_rank") or None)
    torch.manual_seed(0)
    if name == "hf_llama_dynamic":
        return LlamaForCausalLM(LlamaConfig(head_dim=d["head_dim"], **common | {"max_position_embeddings": d["rope_original_length"]}))
    if name == "hf_llama":
        return LlamaForCausalLM(LlamaConfig(head_dim=d["head_dim"], **common))
    if d["rope_scaling"] == "longrope":
        return transformers.Phi3ForCausalLM(transformers.Phi3Config(
            original_max_position_embeddings=d["rope_original_length"], bos_token_id=None, eos_token_id=None, **common))
    if name == "hf_qwen3_moe":
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(
            head_dim=d["head_dim"], num_experts=d["n_experts"], num_experts_per_tok=d["top_k"],
            moe_intermediate_size=d["moe_hidden"], norm_topk_prob=d["normalize_scores"], **common))
    if name == "hf_qwen3_yarn":
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(head_dim=d["head_dim"], **common))
    if name == "hf_granite":
        factors = {k: d[k] for k in ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")}
        config = transformers.GraniteConfig(head_dim=d["head_dim"], attention_bias=True, mlp_bias=True, **factors, **common)
        return transformers.GraniteForCausalLM(config)
    if name == "hf_olmo2":
        return transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**common))
    if name == "hf_gemma3":
        local = {"rope_type": "default", "rope_theta": d["rope_local_theta"]}
        types = ["sliding_attention" if (i + 1) % d["full_attention_every"] else "full_attention" for i in range(d["n_layers"])]
        config = transformers.Gemma3TextConfig(**common | dict(
            head_dim=d["head_dim"], query_pre_attn_scalar=round(d["attention_multiplier"] ** -2), sliding_window=d["sliding_window"],
            layer_types=types, rope_parameters={"full_attention": rope(d), "sliding_attention": local}))
        return transformers.Gemma3ForCausalLM(config)
    if name == "hf_gemma2":
        return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
            head_dim=d["head_dim"], query_pre_attn_scalar=round(d["attention_multiplier"] ** -2), sliding_window=d["sliding_window"],
            attn_logit_softcapping=d["attention_softcap"], final_logit_softcapping=d["logits_softcap"], **common))
    if name == "hf_gpt_oss":
        types = ["sliding_attention" if (i + 1) % d["full_attention_every"] else "full_attention" for i in range(d["n_layers"])]
        return transformers.GptOssForCausalLM(transformers.GptOssConfig(**common | dict(
            head_dim=d["head_dim"], intermediate_size=d["moe_hidden"], num_local_experts=d["n_experts"], num_experts_per_tok=d["top_k"],
            sliding_window=d["sliding_window"], layer_types=types, swiglu_limit=d["swiglu_limit"], swiglu_alpha=d["swiglu_alpha"])))
    if name == "hf_mistral":
        return transformers.MistralForCausalLM(transformers.MistralConfig(head_dim=d["head_dim"], sliding_window=d["sliding_window"], **common))
    if name == "hf_smollm3":
        return transformers.SmolLM3ForCausalLM(transformers.SmolLM3Config(no_rope_layer_interval=d["no_rope_every"], **common))
    if name == "hf_glm4_moe":
        return transformers.Glm4MoeForCausalLM(transformers.Glm4MoeConfig(
            head_dim=d["head_dim"], use_qk_norm=True, attention_bias=True, num_nextn_predict_layers=0, **experts, **common))
    if name == "hf_deepseek_v2":
        return DeepseekV2ForCausalLM(DeepseekV2Config(topk_method="group_limited_greedy", **experts, **latent, **common))
    return DeepseekV3ForCausalLM(DeepseekV3Config(num_mtp_layers=0, **experts, **latent, **common))


# --- where transformers keeps a tensor -------------------------------------------------------------------------------

NAMES = {
    "attention_norm.weight": "input_layernorm.weight", "ffn_norm.weight": "post_attention_layernorm.weight",
    "attention.wq.weight": "self_attn.q_proj.weight", "attention.wk.weight": "self_attn.k_proj.weight",
    "attention.wv.weight": "self_attn.v_proj.weight", "attention.wo.weight": "self_attn.o_proj.weight",
    "attention.k_norm.weight": "self_attn.k_norm.weight",
    "attention_out_norm.weight": "post_attention_layernorm.weight", "ffn_out_norm.weight": "post_feedforward_layernorm.weight",
    "attention.wq_a.weight": "self_attn.q_a_proj.weight", "attention.wq_b.weight": "self_attn.q_b_proj.weight",
    "attention.wkv_a.weight": "self_attn.kv_a_proj_with_mqa.weight",
    "attention.kv_norm.weight": "self_attn.kv_a_layernorm.weight",
    **{f"attention.w{x}.bias": f"self_attn.{x}_proj.bias" for x in "qkvo"},
    **{f"feed_forward.{w}.bias": f"mlp.{p}.bias" for w, p in (("w1", "gate_proj"), ("w3", "up_proj"), ("w2", "down_proj"))},
    "attention.wkv_b.weight": "self_attn.kv_b_proj.weight", "moe.router.gate.weight": "mlp.gate.weight",
    **{f"{ours}.{w}.weight": f"{theirs}.{p}.weight" for ours, theirs in (("feed_forward", "mlp"), ("moe.shared_experts", "mlp.shared_experts"))
       for w, p in (("w1", "gate_proj"), ("w3", "up_proj"), ("w2", "down_proj"))},
}


def gpt_oss_tensor(p, at, name):
    """Matrices of experts stand on their side, with columns of gate and up in turn."""
    if name.startswith("moe.router.gate."):
        return p[at + "router." + name.rsplit(".", 1)[1]]
    bias = "_bias" if name.endswith(".bias") else ""
    x = p[at + ("experts.down_proj" if ".w2" in name else "experts.gate_up_proj") + bias]
    x = x if ".w2" in name else x[..., 0 if ".w1" in name else 1::2]
    return x if bias else x.transpose(1, 2)


def phi3_tensor(p, at, name, d):
    """Rows of queries, keys and values are one matrix's; so are those of gate and up."""
    q, kv = d["n_heads"] * d["head_dim"], d["n_kv_heads"] * d["head_dim"]
    both, start, rows = {"wq": ("self_attn.qkv_proj", 0, q), "wk": ("self_attn.qkv_proj", q, kv),
                         "wv": ("self_attn.qkv_proj", q + kv, kv), "w1": ("mlp.gate_up_proj", 0, d["ffn_hidden"]),
                         "w3": ("mlp.gate_up_proj", d["ffn_hidden"], d["ffn_hidden"])}[name]
    return p[f"{at}{both}.weight"][start:start + rows]


def tensor_of(p, name, d):
    """The view of a parameter of theirs (or of its gradient: p maps names to either) that is ours, rows in their order."""
    if not name.startswith("layers."):
        return p[{"tok_embeddings.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight",
                  "output.weight": "lm_head.weight"}[name]]
    _, layer, rest = name.split(".", 2)
    at = f"model.layers.{layer}."
    if rest == "attention.q_norm.weight":
        return p[at + ("self_attn.q_a_layernorm.weight" if d.get("kv_lora_rank") else "self_attn.q_norm.weight")]
    if d["rope_scaling"] == "longrope" and rest.split(".")[-2] in ("wq", "wk", "wv", "w1", "w3"):
        return phi3_tensor(p, at, rest.split(".")[-2], d)
    if rest == "attention.sinks":
        return p[at + "self_attn.sinks"]
    if d.get("router_bias") and rest.startswith("moe."):
        return gpt_oss_tensor(p, at + "mlp.", rest)
    if rest == "moe.experts.w2":
        return p[at + "mlp.experts.down_proj"]
    if rest in ("moe.experts.w1", "moe.experts.w3"):
        both = p[at + "mlp.experts.gate_up_proj"]
        return both[:, :d["moe_hidden"]] if rest.endswith("w1") else both[:, d["moe_hidden"]:]
    if rest == "ffn_norm.weight" and d.get("output_norms"):
        return p[at + "pre_feedforward_layernorm.weight"]
    return p[at + NAMES[rest]]


def our_rows(name, d):
    """Of each row of theirs, which of ours it is; None: the same."""
    if d.get("kv_lora_rank") or not name.split(".")[-2] in ("wq", "wk", "q_norm", "k_norm"):
        return None
    width = d["head_dim"]
    both = {"wq": d["n_heads"], "wk": d["n_kv_heads"]}
    heads = {**both, **({"q_norm": both["wq"], "k_norm": both["wk"]} if d.get("qk_norm_whole") else {})}.get(name.split(".")[-2], 1)
    part = d.get("rope_dim", width)  # columns of a head that rotate
    one = np.concatenate([np.arange(0, part, 2), np.arange(1, part, 2), np.arange(part, width)])
    return (np.arange(heads)[:, None] * width + one).ravel()


def our_parameters(d):
    """reference.py's, less what these models do not have."""
    for name, shape, rule, std in parameters(d):
        if 0 not in shape:
            yield name, shape, rule, std


# --- files -----------------------------------------------------------------------------------------------------------


def biases_of(d, seed):
    n = (d["n_layers"] - d["n_dense_layers"]) * d["n_experts"]
    return np.float32(0.2) * normals(seed, "golden.biases", np.arange(n, dtype=np.uint64))


def load(model, d, seed):
    p = dict(model.named_parameters())
    weights = {}
    with torch.no_grad():
        for name, shape, rule, std in our_parameters(d):
            x = initial(seed, name, shape, rule, std)
            if rule in ("ones", "zeros"):
                x = x + np.float32(GAINS) * normals(seed, "golden." + name, np.arange(x.size, dtype=np.uint64)).reshape(x.shape)
            weights[name] = x
            rows = our_rows(name, d)
            tensor_of(p, name, d).copy_(torch.tensor(x if rows is None else x[rows]))
        if d.get("balance_rate"):
            all_biases = biases_of(d, seed).reshape(-1, d["n_experts"])
            for layer in range(d["n_dense_layers"], d["n_layers"]):
                model.model.layers[layer].mlp.gate.e_score_correction_bias.copy_(
                    torch.tensor(all_biases[layer - d["n_dense_layers"]]))
    return weights


def gradients(model, d):
    g = {name: p.grad for name, p in model.named_parameters()}
    for name, *_ in our_parameters(d):
        theirs, rows = tensor_of(g, name, d).numpy(), our_rows(name, d)
        ours = theirs.copy()
        if rows is not None:
            ours[rows] = theirs
        yield name, ours


class Gaps:
    """How near the routers' choices are: of experts, and of groups."""

    def __init__(self, model, d):
        self.d, self.least = d, float("inf")
        for layer in model.model.layers:
            router = getattr(layer.mlp, "gate", getattr(layer.mlp, "router", None))
            if router is not None:
                router.register_forward_hook(self.look)

    def between(self, x, k):
        if k < x.shape[-1]:
            top = x.topk(k + 1, -1).values
            self.least = min(self.least, (top[..., k - 1] - top[..., k]).min().item())

    def look(self, gate, _inputs, outputs):
        d, out = self.d, outputs[0].detach()
        key = out.sigmoid() if d["sigmoid_scores"] else out.softmax(-1)
        if d.get("balance_rate"):
            key = key + gate.e_score_correction_bias
        if d.get("n_expert_groups"):
            grouped = key.view(-1, d["n_expert_groups"], d["n_experts"] // d["n_expert_groups"])
            score = grouped.topk(d["group_top_k"], -1).values.sum(-1)
            self.between(score, d["n_limited_groups"])
            keep = torch.zeros_like(score).scatter(1, score.topk(d["n_limited_groups"], -1).indices, 1.0)
            key = grouped.masked_fill(keep.unsqueeze(-1) == 0, float("-inf")).flatten(1)
        self.between(key, d["top_k"])


def run(model, tokens, targets):
    out = model(input_ids=torch.tensor(tokens), use_cache=False).logits
    return out, torch.nn.functional.cross_entropy(out.flatten(0, 1), torch.tensor(targets).flatten(), ignore_index=-1)


def write(name):
    d = MODELS[name]
    reference.BATCH[name] = BATCH
    tokens, targets = reference.batch_of(name, d)
    for seed in range(SEED, SEED + 100):  # the first one with no choice that fp32 may make otherwise
        model = build(name, d).eval()
        weights = load(model, d, seed)
        loss32 = run(model, tokens, targets)[1].item()
        model = model.double()
        gaps = Gaps(model, d)
        out, loss = run(model, tokens, targets)
        if gaps.least > 1e-5:
            break
    loss.backward()
    grads = dict(gradients(model, d))
    reference.write(name + ".json", {
        "made_by": "tests/golden/transformers_reference.py", "torch": torch.__version__, "transformers": transformers.__version__,
        "seed": seed, "dims": d, "gains": GAINS, **({"biases": 0.2} if d.get("balance_rate") else {}),
        "tokens": tokens.tolist(), "targets": targets.tolist(), "loss": number(loss.item()), "loss_fp32": number(loss32),
        "logits": digest(out.detach().numpy(), 64),
        "tensors": [{"name": n, "shape": list(x.shape), "weight": digest(x, 16), "grad": digest(grads[n], 64)}
                    for n, x in weights.items()],
    })
    print(f"{name}: seed {seed}, loss {loss.item():.9f}, in fp32 {loss32:.9f}, smallest gap {gaps.least:.2g}")


if __name__ == "__main__":
    torch.set_num_threads(2)
    np.seterr(over="ignore")  # products modulo 2^64 are meant
    for model_name in sys.argv[1:] or MODELS:
        write(model_name)
