#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Reference values of the model from PyTorch in fp64, written to tests/golden/*.json.

    tests/golden/reference.py          (needs python3-torch and python3-numpy; the tests only read the files)

The model is written here from the descriptions of Llama 3 and Qwen 3, with autograd for its gradients: nothing of Titan's is used but
the definition of its initial values (base/rng.h, worker/tensor/model.h), which is implemented a second time in numpy.

Files: tiny.json, debugmodel.json, qwen3.json, moe.json, moe_drop.json, deepseek.json, moe_balance.json, deepseek_balance.json, mtp.json, deepseek_mtp.json: dimensions, a batch, its mean loss in fp64 and in fp32, and for each parameter a
digest of its initial value and of its gradient. In qwen3.json the gains of norms are not 1 but 1 + `gains` times the
normal draws of the stream "golden.NAME", so that it shows where they go. tiny_train.json: 50 AdamW steps; tiny_adam.json: 50 of Adam; moe_balance_train.json, mtp_train.json: 20 of AdamW.

A digest of a tensor x with n elements, row-major: sum, l2 norm, `samples` at indices (j*2654435761 + 12345) mod n for
j = 0, 1, ..., and `projections` p_k = sum of s_k(i) x_i, where s_k(i) is +1 if bit k of mix64(i) is 0, else -1, mix64
being the finaliser of splitmix64 as in base/rng.c. Projections see every element; samples tell where it went wrong.
"""
import json
import math
import os

import numpy as np
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
U64 = np.uint64
MASK = (1 << 64) - 1

FLAVORS = {
    "tiny": dict(dim=64, n_layers=2, n_heads=4, n_kv_heads=2, ffn_hidden=128, vocab_size=256, rope_theta=500000.0,
                 norm_eps=1e-5, rope_scaling=False),
    "debugmodel": dict(dim=256, n_layers=6, n_heads=16, n_kv_heads=16, ffn_hidden=768, vocab_size=2048,
                       rope_theta=500000.0, norm_eps=1e-5, rope_scaling=True),
    "qwen3": dict(dim=64, n_layers=3, n_heads=4, n_kv_heads=2, head_dim=24, ffn_hidden=96, vocab_size=200,
                  rope_theta=1000000.0, norm_eps=1e-6, rope_scaling=False, tied_embeddings=True, qk_norm=True),
    "moe": dict(dim=64, n_layers=2, n_heads=4, n_kv_heads=2, ffn_hidden=128, vocab_size=256, rope_theta=500000.0,
                norm_eps=1e-5, rope_scaling=False, n_experts=4, top_k=2, n_shared_experts=1, moe_hidden=64,
                n_dense_layers=1, sigmoid_scores=False, normalize_scores=True, route_scale=1.0),
    "deepseek": dict(dim=64, n_layers=3, n_heads=4, n_kv_heads=4, head_dim=24, ffn_hidden=128, vocab_size=256,
                     rope_theta=10000.0, norm_eps=1e-6, rope_scaling=False, q_lora_rank=32, kv_lora_rank=32,
                     qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, n_experts=8, top_k=3, n_shared_experts=2,
                     moe_hidden=48, n_dense_layers=1, sigmoid_scores=True, normalize_scores=True, route_scale=2.5),
}
# Gradients of the loss and of the balance loss, times this; the loss in the file is without.
FLAVORS["moe_balance"] = dict(FLAVORS["moe"], balance_loss=0.5)
FLAVORS["deepseek_balance"] = dict(FLAVORS["deepseek"], balance_loss=0.5)
# Gains less 1 in every norm, and GELU in every feed-forward layer.
FLAVORS["deepseek_gelu"] = dict(FLAVORS["deepseek"], norm_offset=True, gelu=True)
FLAVORS["moe_drop"] = dict(FLAVORS["moe"], expert_capacity=0.75)
# Modules of multi-token prediction: with odd dimensions; with experts, which their layers have too, and a balance loss.
FLAVORS["mtp"] = dict(FLAVORS["tiny"], dim=54, n_heads=3, n_kv_heads=1, head_dim=22, ffn_hidden=117, vocab_size=241, mtp_layers=3,
                      mtp_loss_scale=0.7)
FLAVORS["deepseek_mtp"] = dict(FLAVORS["deepseek"], mtp_layers=2, balance_loss=0.5)
BATCH = {"tiny": (3, 37), "debugmodel": (2, 64), "qwen3": (2, 45), "moe": (3, 37), "moe_drop": (3, 37), "deepseek": (2, 41), "deepseek_gelu": (2, 41), "moe_balance": (3, 37), "deepseek_balance": (2, 41), "mtp": (3, 29), "deepseek_mtp": (2, 37)}
GAINS = {"qwen3": 0.25, "moe": 0.25, "moe_drop": 0.25, "deepseek": 0.25, "deepseek_gelu": 0.25, "moe_balance": 0.25, "deepseek_balance": 0.25, "mtp": 0.25, "deepseek_mtp": 0.25}
SEED = 20261120


# --- counter-based initial values ------------------------------------------------------------------------------------


def mix64(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def rng_key(seed, name):
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001B3) & MASK
    key = mix64(h ^ mix64((seed + 0x9E3779B97F4A7C15) & MASK))
    return key & 0xFFFFFFFF, key >> 32


def philox(key, lo, hi):
    """Philox4x32-10 of counters {lo, hi}; lo is an array of uint64, hi a number. Four arrays of uint64 < 2^32."""
    low32 = U64(0xFFFFFFFF)
    shift = U64(32)
    c0, c1 = lo & low32, lo >> shift
    c2, c3 = np.full_like(lo, hi & 0xFFFFFFFF), np.full_like(lo, hi >> 32)
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * U64(0xD2511F53), c2 * U64(0xCD9E8D57)
        c0, c1, c2, c3 = ((p1 >> shift) ^ c1 ^ U64(k0), p1 & low32, (p0 >> shift) ^ c3 ^ U64(k1), p0 & low32)
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def normals(seed, name, index):
    w = philox(rng_key(seed, name), index >> U64(1), 1)
    radius = np.sqrt(-2.0 * np.log((w[0].astype(np.float64) + 1.0) * 2.0**-32))
    angle = 2.0 * np.pi * (w[1].astype(np.float64) * 2.0**-32)
    return (radius * np.where(index & U64(1), np.sin(angle), np.cos(angle))).astype(np.float32)


def initial(seed, name, shape, rule, std):
    n = int(np.prod(shape))
    if rule in ("ones", "zeros"):
        return np.full(shape, rule == "ones", np.float32)
    index = np.arange(n, dtype=np.uint64)
    x = normals(seed, name, index)
    if rule == "truncated":  # beyond 3: again from the streams NAME#1, NAME#2, ...
        attempt = 1
        while (far := np.flatnonzero(np.abs(x) > 3.0)).size:
            x[far] = normals(seed, f"{name}#{attempt}", index[far])
            attempt += 1
    return (np.float32(std) * x).reshape(shape)


def head_width(d):
    return d.get("head_dim") or d["dim"] // d["n_heads"]


def mixed(d, layer):
    return d.get("n_experts", 0) > 0 and layer >= d["n_dense_layers"]


def attention_parameters(d, deep):
    c, heads = d["dim"], d["n_heads"]
    if not d.get("no_input_norms"):
        yield "attention_norm.weight", (c,), "ones", 0.0
    if d.get("kv_lora_rank"):
        nope, rope, v, r, q = (d[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank",
                                               "q_lora_rank"))
        if q:
            yield "attention.wq_a.weight", (q, c), "normal", 0.02
            yield "attention.q_norm.weight", (q,), "ones", 0.0
            yield "attention.wq_b.weight", (heads * (nope + rope), q), "normal", 0.02
        else:
            yield "attention.wq.weight", (heads * (nope + rope), c), "normal", 0.02
        yield "attention.wkv_a.weight", (r + rope, c), "normal", 0.02
        yield "attention.kv_norm.weight", (r,), "ones", 0.0
        yield "attention.wkv_b.weight", (heads * (nope + v), r), "normal", 0.02
        yield "attention.wo.weight", (c, heads * v), "normal", deep
        return
    width = head_width(d)
    keys = d["n_kv_heads"] * width
    yield "attention.wq.weight", (heads * width, c), "normal", 0.02
    yield "attention.wk.weight", (keys, c), "normal", 0.02
    yield "attention.wv.weight", (keys, c), "normal", 0.02
    yield "attention.wo.weight", (c, heads * width), "normal", deep
    if d.get("qk_norm"):
        whole = d.get("qk_norm_whole")
        yield "attention.q_norm.weight", (heads * width if whole else width,), "ones", 0.0
        yield "attention.k_norm.weight", (keys if whole else width,), "ones", 0.0
    if d.get("output_norms"):
        yield "attention_out_norm.weight", (c,), "ones", 0.0
    if d.get("qkv_bias"):
        yield "attention.wq.bias", (heads * width,), "zeros", 0.0
        yield "attention.wk.bias", (keys,), "zeros", 0.0
        yield "attention.wv.bias", (keys,), "zeros", 0.0
    if d.get("output_bias"):
        yield "attention.wo.bias", (c,), "zeros", 0.0
    if d.get("attention_sinks"):
        yield "attention.sinks", (heads,), "normal", 0.02


def feed_forward_parameters(d, layer, deep):
    c, f, e, m = d["dim"], d["ffn_hidden"], d.get("n_experts", 0), d.get("moe_hidden", 0)
    if not d.get("no_input_norms"):
        yield "ffn_norm.weight", (c,), "ones", 0.0
    if not mixed(d, layer):
        yield "feed_forward.w1.weight", (f, c), "normal", 0.02
        yield "feed_forward.w3.weight", (f, c), "normal", deep
        yield "feed_forward.w2.weight", (c, f), "normal", deep
        if d.get("output_norms"):
            yield "ffn_out_norm.weight", (c,), "ones", 0.0
        if d.get("mlp_bias"):
            yield "feed_forward.w1.bias", (f,), "zeros", 0.0
            yield "feed_forward.w3.bias", (f,), "zeros", 0.0
            yield "feed_forward.w2.bias", (c,), "zeros", 0.0
        return
    yield "moe.router.gate.weight", (e, c), "normal", deep
    if d.get("router_bias"):
        yield "moe.router.gate.bias", (e,), "zeros", 0.0
    yield "moe.shared_experts.w1.weight", (d["n_shared_experts"] * m, c), "normal", 0.02
    yield "moe.shared_experts.w3.weight", (d["n_shared_experts"] * m, c), "normal", deep
    yield "moe.shared_experts.w2.weight", (c, d["n_shared_experts"] * m), "normal", deep
    yield "moe.experts.w1", (e, m, c), "normal", 0.02
    yield "moe.experts.w3", (e, m, c), "normal", deep
    yield "moe.experts.w2", (e, c, m), "normal", deep
    if d.get("mlp_bias"):
        yield "moe.experts.w1.bias", (e, m), "zeros", 0.0
        yield "moe.experts.w3.bias", (e, m), "zeros", 0.0
        yield "moe.experts.w2.bias", (e, c), "zeros", 0.0


def mtp_parameters(c):
    yield "enorm.weight", (c,), "ones", 0.0
    yield "hnorm.weight", (c,), "ones", 0.0
    yield "eh_proj.weight", (c, 2 * c), "normal", 0.02
    yield "shared_head.norm.weight", (c,), "ones", 0.0


def gain(d, shape, rule, std):
    """Gains of norms may be stored less 1."""
    return shape, "zeros" if rule == "ones" and d.get("norm_offset") else rule, std


def parameters(d):
    """(name, shape, rule, std) of every parameter, TorchTitan's names."""
    c, v = d["dim"], d["vocab_size"]
    tied = d.get("tied_embeddings", False)  # one matrix, drawn as the head's
    yield "tok_embeddings.weight", (v, c), *(("truncated", c**-0.5) if tied else ("normal", 1.0))
    for layer in range(d["n_layers"] + d.get("mtp_layers", 0)):
        deep = 0.02 / math.sqrt(2.0 * (layer + 1))
        if layer == d["n_layers"]:
            yield "norm.weight", *gain(d, (c,), "ones", 0.0)
        module = mtp_parameters(c) if layer >= d["n_layers"] else ()
        for name, *rest in (*module, *attention_parameters(d, deep), *feed_forward_parameters(d, layer, deep)):
            yield f"layers.{layer}.{name}", *gain(d, *rest)
    if not d.get("mtp_layers"):
        yield "norm.weight", *gain(d, (c,), "ones", 0.0)
    if not tied:
        yield "output.weight", (v, c), "truncated", c**-0.5


# --- the model -------------------------------------------------------------------------------------------------------


def rms_norm(x, gain, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * gain


def rotary_frequencies(d):
    width = d["qk_rope_head_dim"] if d.get("kv_lora_rank") else head_width(d)
    freq = d["rope_theta"] ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    if not d["rope_scaling"]:
        return freq
    factor, low, high, original = 8.0, 1.0, 4.0, 8192.0
    length = 2.0 * math.pi / freq
    smooth = (original / length - low) / (high - low)
    between = (1.0 - smooth) * freq / factor + smooth * freq
    return torch.where(length > original / low, freq / factor, torch.where(length < original / high, freq, between))


def rotate(x, freq):
    """x (B,T,heads,D): adjacent pairs as complex numbers, turned by position * frequency."""
    angle = torch.outer(torch.arange(x.shape[1], dtype=torch.float64), freq)
    turn = torch.polar(torch.ones_like(angle), angle)[None, :, None, :]
    turn = turn.to(torch.complex128 if x.dtype == torch.float64 else torch.complex64)
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(pairs * turn).flatten(-2)


def scores_and_values(q, k, v):
    """Causal attention of q and k (B,T,H,D) on v (B,T,H,Dv): (B,T,H*Dv)."""
    t = q.shape[1]
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -math.inf)
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).flatten(2)


def attention(x, p, prefix, d, freq):
    b, t, _ = x.shape
    width = head_width(d)
    q = (x @ p[prefix + "wq.weight"].T).view(b, t, d["n_heads"], width)
    k = (x @ p[prefix + "wk.weight"].T).view(b, t, d["n_kv_heads"], width)
    v = (x @ p[prefix + "wv.weight"].T).view(b, t, d["n_kv_heads"], width)
    if d.get("qk_norm"):  # each head by itself, before it is turned
        q = rms_norm(q, p[prefix + "q_norm.weight"], d["norm_eps"])
        k = rms_norm(k, p[prefix + "k_norm.weight"], d["norm_eps"])
    q, k = rotate(q, freq), rotate(k, freq)
    group = d["n_heads"] // d["n_kv_heads"]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    return scores_and_values(q, k, v) @ p[prefix + "wo.weight"].T


def latent_attention(x, p, prefix, d, freq):
    """DeepSeek-AI 2024, arXiv:2405.04434, section 2.1; no stretching of the rotary frequencies."""
    b, t, _ = x.shape
    heads, nope, rank = d["n_heads"], d["qk_nope_head_dim"], d["kv_lora_rank"]
    eps = d["norm_eps"]
    q = rms_norm(x @ p[prefix + "wq_a.weight"].T, p[prefix + "q_norm.weight"], eps) @ p[prefix + "wq_b.weight"].T
    q = q.view(b, t, heads, -1)
    q = torch.cat([q[..., :nope], rotate(q[..., nope:], freq)], -1)
    down = x @ p[prefix + "wkv_a.weight"].T
    shared = rotate(down[..., rank:].unsqueeze(2), freq).expand(-1, -1, heads, -1)
    up = rms_norm(down[..., :rank], p[prefix + "kv_norm.weight"], eps) @ p[prefix + "wkv_b.weight"].T
    up = up.view(b, t, heads, -1)
    k = torch.cat([up[..., :nope], shared], -1)
    return scores_and_values(q, k, up[..., nope:]) @ p[prefix + "wo.weight"].T


def gated(x, w1, w3, w2, d):
    gate = x @ w1.T
    gate = torch.nn.functional.gelu(gate, approximate="tanh") if d.get("gelu") else torch.nn.functional.silu(gate)
    return (gate * (x @ w3.T)) @ w2.T


GAPS = []  # between the last expert chosen and the first one not: fp32 must choose as fp64 does


DROPPED = []  # rows of each expert for which there was no room


BALANCE = []  # the balance loss of each sequence, of each layer


def balance(scores, chosen, sequences):
    """DeepSeek-AI 2024, arXiv:2412.19437, equations 17 to 20."""
    experts = scores.shape[1]
    scores = (scores / scores.sum(-1, keepdim=True)).view(sequences, -1, experts)
    often = torch.nn.functional.one_hot(chosen, experts).sum(1).view_as(scores).to(scores.dtype)
    return (often.mean(1) * experts / chosen.shape[1] * scores.mean(1)).sum(-1)


def mixture(x, p, prefix, d):
    sequences = len(x)
    x = x.flatten(0, 1)
    out = x @ p[prefix + "router.gate.weight"].T
    scores = out.sigmoid() if d["sigmoid_scores"] else out.softmax(-1)
    top = scores.sort(dim=-1, descending=True, stable=True)  # of equal scores the lower expert, which topk leaves open
    k = d["top_k"]
    GAPS.append((top.values[:, k - 1] - top.values[:, k]).min().item())
    weights, chosen = top.values[:, :k], top.indices[:, :k]
    BALANCE.append(balance(scores, chosen, sequences))
    if d["normalize_scores"]:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    weights = weights * d["route_scale"]
    y = gated(x, *(p[prefix + f"shared_experts.{w}.weight"] for w in ("w1", "w3", "w2")), d)
    for e in range(d["n_experts"]):
        row, place = (chosen == e).nonzero(as_tuple=True)
        if "expert_capacity" in d:  # even shares that an expert takes: the first tokens'
            room = max(1, math.ceil(d["expert_capacity"] * chosen.numel() / d["n_experts"]))
            DROPPED.append(max(0, len(row) - room))
            row, place = row[:room], place[:room]
        part = gated(x[row], *(p[prefix + f"experts.{w}"][e] for w in ("w1", "w3", "w2")), d)
        y = y.index_add(0, row, part * weights[row, place, None])
    return y


def layer_of(x, p, layer, d, freq):
    at = f"layers.{layer}."
    attend = latent_attention if d.get("kv_lora_rank") else attention
    x = x + attend(rms_norm(x, p[at + "attention_norm.weight"], d["norm_eps"]), p, at + "attention.", d, freq)
    h = rms_norm(x, p[at + "ffn_norm.weight"], d["norm_eps"])
    if mixed(d, layer):
        return x + mixture(h, p, at + "moe.", d).view_as(x)
    return x + gated(h, *(p[at + f"feed_forward.{w}.weight"] for w in ("w1", "w3", "w2")), d)


def shifted(x, by, empty):
    """Rows (B,T) rolled to the left, and what comes round masked."""
    x = torch.roll(x, -by, 1)
    x[:, x.shape[1] - by:] = empty
    return x


def all_logits(p, tokens, d):
    """Of the model, and of each of its modules of multi-token prediction (DeepSeek-AI 2024, arXiv:2412.19437, section 2.2)."""
    BALANCE.clear()
    if d.get("norm_offset"):
        p = {name: x + 1 if "norm" in name else x for name, x in p.items()}
    freq = rotary_frequencies(d)
    head = p["tok_embeddings.weight" if d.get("tied_embeddings") else "output.weight"]
    h = p["tok_embeddings.weight"][tokens]
    for layer in range(d["n_layers"]):
        h = layer_of(h, p, layer, d, freq)
    h = rms_norm(h, p["norm.weight"], d["norm_eps"])
    out = [h @ head.T]
    for k in range(1, d.get("mtp_layers", 0) + 1):
        layer = d["n_layers"] + k - 1
        e = p["tok_embeddings.weight"][shifted(tokens, k, 0)]
        x = torch.cat([rms_norm(x, p[f"layers.{layer}.{name}.weight"], d["norm_eps"]) for x, name in ((e, "enorm"), (h, "hnorm"))], -1)
        h = layer_of(x @ p[f"layers.{layer}.eh_proj.weight"].T, p, layer, d, freq)
        h = rms_norm(h, p[f"layers.{layer}.shared_head.norm.weight"], d["norm_eps"])
        out.append(h @ head.T)
    return out


def logits(p, tokens, d):
    return all_logits(p, tokens, d)[0]


def losses(p, tokens, targets, d):
    """Means over the counted tokens (target >= 0): of the model, and of all modules, whose own counted tokens are fewer."""
    out = all_logits(p, tokens, d)
    each = [torch.nn.functional.cross_entropy(x.flatten(0, 1), (shifted(targets, k, -1) if k else targets).flatten(), ignore_index=-1,
                                              reduction="sum") / (targets >= 0).sum() for k, x in enumerate(out)]
    return each[0], sum(each[1:]) / max(len(each) - 1, 1)


def mean_loss(p, tokens, targets, d):
    return losses(p, tokens, targets, d)[0]


def balance_loss(targets, d):
    """Of the layers of the last logits(): their sum, the mean over sequences, each as often as it has counted tokens; a module's has
    its own."""
    own = len(BALANCE) - d.get("mtp_layers", 0)
    counted = [(shifted(targets, max(i - own + 1, 0), -1) >= 0).sum(1) if i >= own else (targets >= 0).sum(1) for i in range(len(BALANCE))]
    return sum((loss * n).sum() for loss, n in zip(BALANCE, counted)) / (targets >= 0).sum() if BALANCE else 0


def trained_loss(p, tokens, targets, d):
    """What gradients are of; the loss; that of modules."""
    loss, further = losses(p, tokens, targets, d)
    return loss + d.get("mtp_loss_scale", 0.3) * further + d.get("balance_loss", 0) * balance_loss(targets, d), loss, further


def make(d, dtype, gains=0.0):
    p = {}
    for name, shape, rule, std in parameters(d):
        x = initial(SEED, name, shape, rule, std)
        if rule in ("ones", "zeros"):
            x = x + np.float32(gains) * normals(SEED, "golden." + name, np.arange(x.size, dtype=np.uint64))
        p[name] = torch.tensor(x).to(dtype).requires_grad_()
    return p


# --- files -----------------------------------------------------------------------------------------------------------


def digest(x, samples):
    x = np.asarray(x, np.float64).ravel()
    n = x.size
    z = np.arange(n, dtype=np.uint64)
    z = (z ^ (z >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> U64(27))) * U64(0x94D049BB133111EB)
    z = z ^ (z >> U64(31))
    signs = [1.0 - 2.0 * ((z >> U64(k)) & U64(1)).astype(np.float64) for k in range(8)]
    return {
        "sum": number(x.sum()),
        "l2": number(np.sqrt((x * x).sum())),
        "samples": [number(x[(j * 2654435761 + 12345) % n]) for j in range(min(samples, n))],
        "projections": [number((s * x).sum()) for s in signs],
    }


def number(x):
    return float(f"{float(x):.10g}")


def batch_of(name, d):
    """Tokens by counter-based draws; a few targets are not counted."""
    b, t = BATCH[name]
    draw = philox(rng_key(SEED, "golden.tokens"), np.arange(b * (t + 1), dtype=np.uint64), 0)[0]
    tokens = (draw % U64(d["vocab_size"])).astype(np.int64).reshape(b, t + 1)
    targets = tokens[:, 1:].copy()
    targets[0, 3] = targets[-1, -1] = -1
    return tokens[:, :-1], targets


def write(name, value):
    with open(os.path.join(HERE, name), "w", encoding="ascii") as f:
        json.dump(value, f, separators=(",", ":"))
        f.write("\n")


def write_gradients(name):
    d = FLAVORS[name]
    tokens, targets = batch_of(name, d)
    gains = GAINS.get(name, 0.0)
    p = make(d, torch.float64, gains)
    all_of_it, loss, further = trained_loss(p, torch.tensor(tokens), torch.tensor(targets), d)
    all_of_it.backward()
    with torch.no_grad():
        loss32 = mean_loss(make(d, torch.float32, gains), torch.tensor(tokens), torch.tensor(targets), d)
        out = logits(p, torch.tensor(tokens), d)
    write(name + ".json", {
        "made_by": "tests/golden/reference.py", "torch": torch.__version__, "seed": SEED, "dims": d,
        **({"gains": gains} if gains else {}),
        "tokens": tokens.tolist(), "targets": targets.tolist(),
        "loss": number(loss.item()), "loss_fp32": number(loss32.item()),
        **({"mtp_loss": number(further.item())} if d.get("mtp_layers") else {}),
        "logits": digest(out.numpy(), 64),
        "tensors": [{"name": n, "shape": list(x.shape), "weight": digest(x.detach().numpy(), 16),
                     "grad": digest(x.grad.numpy(), 64)} for n, x in p.items()],
    })
    print(f"{name}: loss {loss.item():.9f}, in fp32 {loss32.item():.9f}",
          *([f"smallest gap between experts {min(GAPS):.2g}"] if GAPS else []))
    if DROPPED:
        print(f"rows dropped: {DROPPED[:d['n_experts']]}")
    assert not DROPPED or sum(DROPPED) > 0
    DROPPED.clear()
    assert not GAPS or min(GAPS) > 1e-5, "a choice of experts that fp32 may make otherwise: take another batch"
    GAPS.clear()


def train_batch(step, b, t, v):
    """A sequence with a rule to learn: x(i+1) = 5 x(i) + 17 + i mod 3, from a start that depends on step and row."""
    rows = np.zeros((b, t + 1), np.int64)
    for r in range(b):
        rows[r, 0] = (37 * step + 101 * r) % v
        for i in range(t):
            rows[r, i + 1] = (5 * rows[r, i] + 17 + i % 3) % v
    return rows[:, :-1], rows[:, 1:]


def schedule(step, steps, warmup, decay):
    """Warm-up, stable, linear decay to 0 (TorchTitan); step from 0."""
    stable = steps + 1 - warmup - decay
    if step < warmup:
        return (step + 1) / warmup
    if step < warmup + stable:
        return 1.0
    return 1.0 - (step + 1 - warmup - stable) / decay


def write_training(name, kind, flavor="tiny", steps=50, decay=20, lr=3e-3):
    d = FLAVORS[flavor]
    warmup, b, t, max_norm = 5, 4, 64, 1.0
    p = make(d, torch.float64)
    optimizer = kind(p.values(), lr=lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    rows = []
    for step in range(steps):
        tokens, targets = train_batch(step, b, t, d["vocab_size"])
        rate = lr * schedule(step, steps, warmup, decay)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        all_of_it, loss, further = trained_loss(p, torch.tensor(tokens), torch.tensor(targets), d)
        all_of_it.backward()
        norm = torch.nn.utils.clip_grad_norm_(p.values(), max_norm)
        optimizer.step()
        rows.append({"loss": number(loss.item()), "grad_norm": number(norm.item()), "lr": number(rate)})
        if d.get("mtp_layers"):
            rows[-1]["mtp_loss"] = number(further.item())
    write(f"{name}.json", {
        "made_by": "tests/golden/reference.py", "torch": torch.__version__, "seed": SEED, "dims": d, "batch": b,
        "seq_len": t, "optimizer": kind.__name__, "lr": lr, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "max_norm": max_norm,
        "warmup_steps": warmup, "decay_steps": decay, "steps": rows,
        "tensors": [{"name": n, "shape": list(x.shape), "weight": digest(x.detach().numpy(), 16)}
                    for n, x in p.items()],
    })
    print(f"{name}, {steps} steps: loss {rows[0]['loss']:.6f} -> {rows[-1]['loss']:.6f}",
          *([f"smallest gap between experts {min(GAPS):.2g}"] if GAPS else []))
    assert not GAPS or min(GAPS) > 1e-6, "a choice of experts that fp32 may make otherwise: take another rate"
    GAPS.clear()


if __name__ == "__main__":
    torch.set_num_threads(2)
    np.seterr(over="ignore")  # products modulo 2^64 are meant
    write_gradients("tiny")
    write_gradients("debugmodel")
    write_gradients("qwen3")
    write_gradients("moe")
    write_gradients("moe_drop")
    write_gradients("deepseek")
    write_gradients("deepseek_gelu")
    write_gradients("moe_balance")
    write_gradients("deepseek_balance")
    write_gradients("mtp")
    write_gradients("deepseek_mtp")
    write_training("tiny_train", torch.optim.AdamW)
    write_training("tiny_adam", torch.optim.Adam)
    write_training("moe_balance_train", torch.optim.AdamW, "moe_balance", 20, 8, 1e-3)
    write_training("mtp_train", torch.optim.AdamW, "mtp", 20, 8)
