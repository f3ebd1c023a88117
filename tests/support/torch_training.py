# SPDX-License-Identifier: Apache-2.0
"""PyTorch in the place of a run: the same weights, samples, optimizer, clipping and learning rate, on one process.

KEYS are of a run file; train() is written from docs/recipes.md and docs/data.md, and nothing of Titan's is used but the counter-based
random numbers, from their second implementation (tests/unit/base/make_rng_reference.py). torch and transformers are imported where they
are used: to read what was stored needs neither."""
import array
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit/base"))

KEYS = {"training.seq_len": 32, "training.local_batch_size": 2, "training.global_batch_size": 4, "training.seed": 7, "training.max_norm": 0.5,
        "optimizer.name": "AdamW", "optimizer.lr": 3e-3, "optimizer.beta1": 0.9, "optimizer.beta2": 0.95, "optimizer.eps": 1e-8,
        "optimizer.weight_decay": 0.1, "lr_scheduler.warmup_steps": 4, "lr_scheduler.decay_ratio": 0.5,
        "lr_scheduler.min_lr_factor": 0.1}
VOCABULARY = 256
SMALL = dict(vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
             head_dim=8, rms_norm_eps=1e-5, max_position_embeddings=64)
# (class in transformers, its configuration, model.name and what else a run file says of it)
MODELS = {
    "llama": ("Llama", dict(SMALL, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}), {"model.name": "llama3"}),
    "qwen3": ("Qwen3", dict(SMALL, head_dim=12, tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
              {"model.name": "qwen3"}),
}


def model_keys(name):
    """What a run file says of a model of MODELS."""
    _, config, keys = MODELS[name]
    return {**keys, "model.flavor": "tiny", "model.dim": config["hidden_size"], "model.n_layers": config["num_hidden_layers"],
            "model.n_heads": config["num_attention_heads"], "model.n_kv_heads": config["num_key_value_heads"],
            "model.head_dim": config["head_dim"], "model.ffn_hidden": config["intermediate_size"], "model.vocab_size": VOCABULARY,
            "model.rope_theta": config["rope_parameters"]["rope_theta"], "model.norm_eps": config["rms_norm_eps"],
            "model.tied_embeddings": str(config.get("tie_word_embeddings", False)).lower()}


def write_model(name, folder, seed=0):
    """transformers writes a model with random weights; gains of norms are moved from 1, matrices are larger than its initial ones."""
    import torch
    import transformers
    kind, config, _ = MODELS[name]
    torch.manual_seed(seed)
    model = getattr(transformers, kind + "ForCausalLM")(getattr(transformers, kind + "Config")(**config))
    with torch.no_grad():
        for key, x in model.named_parameters():
            x.uniform_(0.8, 1.2) if "norm" in key else x.normal_(0, 0.1)
    model.save_pretrained(folder)


def write_tokens(path, count):
    """nanoGPT's file: 16-bit ids. A rule to learn, and every seventh token breaks it."""
    ids, x = array.array("H"), 1
    for i in range(count):
        x = (i * i // 7 + 31 * x) % VOCABULARY if i % 7 == 0 else (5 * x + 17 + i % 3) % VOCABULARY
        ids.append(x)
    if sys.byteorder == "big":
        ids.byteswap()
    path.write_bytes(ids.tobytes())
    return list(ids)


def windows_at(step, keys, windows):
    """The windows of a step, from 1, of those that there are: docs/data.md, "Which sample comes when"."""
    from make_rng_reference import key, permute
    batch, n = keys["training.global_batch_size"], len(windows)
    return [windows[permute(key(keys["training.seed"], f"data.pass.{g // n}"), g % n, n)] for g in range((step - 1) * batch, step * batch)]


def batch_of(tokens, step, keys, windows=None):
    """Rows of seq_len + 1 tokens of a step, from 1. windows: of those with these numbers alone."""
    length = keys["training.seq_len"]
    windows = windows or range((len(tokens) - 1) // length)
    return [tokens[at * length:(at + 1) * length + 1] for at in windows_at(step, keys, windows)]


def first_fit(documents, places):
    """Documents (ids and masks) in samples, each in the first with room, none cut; those that fit into none are in none."""
    samples = []
    for d in documents:
        needs = len(d[0]) - 1
        if 0 < needs <= places:
            for sample in samples:
                if sum(len(ids) - 1 for ids, _ in sample) + needs <= places:
                    sample.append(d)
                    break
            else:
                samples.append([d])
    return [s for s in samples if any(any(mask[1:]) for _, mask in s)]


def documents_loss(forward, documents):
    """The mean over what counts, each document by itself."""
    import torch
    total, count = 0.0, 0
    for ids, mask in documents:
        targets = torch.tensor(ids[1:]).masked_fill(torch.tensor(mask[1:]) == 0, -100)
        total = total + torch.nn.functional.cross_entropy(forward(torch.tensor([ids[:-1]])).flatten(0, 1), targets, reduction="sum")
        count += sum(mask[1:])
    return total / count


def windows_of(trained, keys):
    """Numbers of the windows with a target that is trained on."""
    length = keys["training.seq_len"]
    return [w for w in range((len(trained) - 1) // length) if any(trained[w * length + 1:(w + 1) * length + 1])]


def rate(step, steps, keys):
    """Warm-up, stable, linear decay to a floor, as TorchTitan has them; steps from 1."""
    warmup, floor = keys["lr_scheduler.warmup_steps"], keys["lr_scheduler.min_lr_factor"]
    decay = min(round(steps * keys["lr_scheduler.decay_ratio"]), steps - warmup)
    stable, s = steps + 1 - warmup - decay, step - 1
    if s < warmup:
        factor = (s + 1) / warmup
    elif s < warmup + stable:
        factor = 1.0
    else:
        factor = floor + (1 - floor) * (1 - (s + 1 - warmup - stable) / decay)
    return keys["optimizer.lr"] * factor


STATES = {"float32": {}, "moments": {"optimizer.state_dtype": "bfloat16"}, "bfloat16": {"training.dtype": "bfloat16"}}


def step_of(optimizer, kept):
    """AdamW's step. Moments in bf16 under fp32 weights: computed with as they come out of fp32 arithmetic, rounded when they are stored,
    which is what PyTorch's fused kernel does with a state of that type."""
    import torch
    optimizer.step()
    for state in optimizer.state.values() if kept == "moments" else ():
        for key in ("exp_avg", "exp_avg_sq"):
            state[key].copy_(state[key].to(torch.bfloat16))


def train(folder, tokens, steps, keys=KEYS, kept="float32", compute="float32", trained=None, samples=None):
    """[(loss, gradient norm before clipping)] of every step, and the weights after them.

    trained: of each token whether it counts as a target; None: all do. samples: in place of tokens, of first_fit(), attention within documents.
    kept, of STATES: what weights and moments are kept in. With training.dtype the parameters are bf16 tensors, which are cast to compute for each
    use, so that gradients are bf16 as well, and PyTorch's fused AdamW keeps its state in their type. Logits are widened for the loss."""
    import torch
    import transformers
    bf16 = "training.dtype" in STATES[kept]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    weights = dict(model.named_parameters())
    if bf16:
        weights = {name: p.detach().to(torch.bfloat16).requires_grad_() for name, p in weights.items()}
    optimizer = torch.optim.AdamW(weights.values(), lr=1.0, betas=(keys["optimizer.beta1"], keys["optimizer.beta2"]),
                                  eps=keys["optimizer.eps"], weight_decay=keys["optimizer.weight_decay"], fused=bf16)
    told = []
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps, keys)
        used = {name: p.to(getattr(torch, compute)) for name, p in weights.items()}

        def forward(rows):
            return torch.func.functional_call(model, used, (rows,)).logits.float()

        if samples:
            loss = documents_loss(forward, [d for sample in windows_at(step, keys, samples) for d in sample])
        else:
            windows = windows_of(trained, keys) if trained else None
            rows = torch.tensor(batch_of(tokens, step, keys, windows))
            targets = rows[:, 1:].flatten()
            if trained:
                counts = torch.tensor(batch_of(trained, step, keys, windows))[:, 1:].flatten()
                targets = targets.masked_fill(counts == 0, -100)
            loss = torch.nn.functional.cross_entropy(forward(rows[:, :-1]).flatten(0, 1), targets)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), keys["training.max_norm"])
        step_of(optimizer, kept)
        told.append((loss.item(), norm.item()))
    return told, weights
