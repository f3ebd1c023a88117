# SPDX-License-Identifier: Apache-2.0
"""What `make methods` trains: one small model, and a row for each optimizer, kind of product or form of what travels. A new one is a row here."""
import os
from dataclasses import dataclass, field

STEPS = 600
SEEDS = (42, 43, 44)  # of weights and samples; the rates are tried on the first
SEQUENCES = int(os.environ.get("SEQUENCES") or 8)  # of a step
# 139,584 parameters that read bytes, 512 tokens a step, and AdamW's settings. One thread in fp32: the same bits again.
MODEL = {
    "model.flavor": "tiny", "model.n_kv_heads": 4, "model.ffn_hidden": 192, "training.mixed_precision_param": "float32",
    "training.seq_len": 64, "training.local_batch_size": SEQUENCES, "training.global_batch_size": SEQUENCES, "training.steps": STEPS, "training.max_norm": 1,
    "optimizer.beta2": 0.95, "optimizer.weight_decay": 0.1, "lr_scheduler.warmup_steps": STEPS // 10, "lr_scheduler.decay_type": "cosine",
    "lr_scheduler.min_lr_factor": 0.1, "device.threads": 1, "elastic.max_workers": 1, "checkpoint.enable": "false"}

BETTER = "better"


@dataclass
class Row:
    name: str
    rates: tuple  # of the layers' matrices, and of the rest where rest_lr is not given
    keys: dict = field(default_factory=dict)
    bound: object = None  # nats that the loss may be above AdamW's; BETTER: it has to be below; None: told, not judged


# Each grid has its best rate inside: an AdamW that is not tuned would flatter all others.
ROWS = [
    Row("AdamW", (0.004, 0.008, 0.016)),
    Row("AdamW, moments in 8 bits", (0.004, 0.008, 0.016), {"optimizer.state_dtype": "int8"}, 0.02),
    Row("StableAdamW, no clipping", (0.008, 0.016, 0.032), {"optimizer.name": "StableAdamW", "training.max_norm": 0}, 0.03),
    # The rest of these three is AdamW's, at a rate where AdamW is as good as at its best. GaLore's scale is in its rate: decay goes with the rate alone.
    Row("Muon", (0.01, 0.02, 0.04), {"optimizer.name": "Muon", "optimizer.rest_lr": 0.016}, BETTER),
    Row("GaLore2, rank d/4", (0.008, 0.016, 0.032),
        {"optimizer.name": "GaLore2", "optimizer.galore.interval": 50, "optimizer.galore.scale": 1, "optimizer.rest_lr": 0.016}, 0.10),
    Row("Ranger21", (0.016, 0.032, 0.064), {"optimizer.name": "Ranger21", "optimizer.rest_lr": 0.016}, 0.05),
    # The half-life of its slow mean is 69 of the 600 steps; the default's would be 6,931.
    Row("AdEMAMix", (0.004, 0.008, 0.016), {"optimizer.name": "AdEMAMix", "optimizer.ademamix.beta3": 0.99, "optimizer.ademamix.alpha": 2}),
    # Products in int8; their errors, not the rate, are looked at.
    Row("SwitchBack", (0.008, 0.016, 0.032), {"model.switchback": "true"}, 0.02),
    Row("SwitchBack, inputs kept as codes", (0.008, 0.016, 0.032), {"model.switchback": "true", "switchback.mem_efficient": "true"}, 0.04),
    # A step of signs wants a lower rate and a decay as much higher; the authors' beta2 of 0.99 remembers too long for so few steps.
    Row("Lion", (0.002, 0.004, 0.008), {"optimizer.name": "Lion", "optimizer.weight_decay": 1}),
    # Four replicas send each other a sixteenth of their directions, of which the sign counts.
    *(Row(f"FlexDeMo, {name}", rates, {"optimizer.name": "SGD", "elastic.max_workers": 4, "training.local_batch_size": max(SEQUENCES // 4, 1),
                                       "parallelism.data_parallel_replicate_degree": 4, "parallelism.replicate_method": method}, bound)
      for name, method, rates, bound in (("4 of 64", "demo", (0.004, 0.008, 0.016), 0.15), ("at random", "random", (0.032, 0.064, 0.128), None))),
    # Canonical: one rank computes with what the codes stand for, as any number of ranks does.
    Row("Weights in 8 bits", (0.008, 0.016, 0.032), {"parallelism.fsdp_gather_codec": "int8", "numerics.canonical": "true"}, 0.02),
    Row("Weights in 4 bits", (0.004, 0.008, 0.016), {"parallelism.fsdp_gather_codec": "int4", "numerics.canonical": "true"}, 0.08),
    Row("Weights in 4 bits, learned levels", (0.004, 0.008, 0.016),
        {"parallelism.fsdp_gather_codec": "int4", "parallelism.fsdp_gather_levels": "learned", "numerics.canonical": "true"}, 0.08),
    # Products in float8: those of the layers, with scales of the operands at hand, and with static ones.
    Row("Float8, tensorwise", (0.008, 0.016, 0.032), {"model.float8": "true"}, 0.02),
    Row("Scalify", (0.004, 0.008, 0.016), {"model.float8": "true", "float8.recipe_name": "scalify"}, 0.02),
    Row("Scalify, scales held for 16 steps", (0.008, 0.016, 0.032),
        {"model.float8": "true", "float8.recipe_name": "scalify", "float8.scalify_refresh": 16}, 0.03),
    # Gradients of four ranks travel as codes (docs/methods.md, Transfers).
    *(Row(f"AdamW, gradients as {name}", (0.004, 0.008, 0.016), {"elastic.max_workers": 4, "training.local_batch_size": max(SEQUENCES // 4, 1)} | keys, bound)
      for name, keys, bound in (("int8", {"parallelism.fsdp_reduce_codec": "int8"}, 0.03),
                                ("int4, at random", {"parallelism.fsdp_reduce_codec": "int4", "parallelism.fsdp_reduce_rounding": "stochastic"}, 0.03),
                                ("LoCo", {"parallelism.fsdp_reduce_codec": "loco"}, 0.03),
                                ("LoCo, a scale a tensor", {"parallelism.fsdp_reduce_codec": "loco", "parallelism.fsdp_reduce_scale": "tensor"}, 0.03),
                                ("int4, a scale a tensor", {"parallelism.fsdp_reduce_codec": "int4", "parallelism.fsdp_reduce_scale": "tensor"}, None))),
    # Two replicas of two shards: what replicas sum is in fp32, or travels as codes (docs/methods.md, Sums over replicas).
    *(Row(f"HSDP{name}", (0.004, 0.008, 0.016), {"elastic.max_workers": 4, "training.local_batch_size": max(SEQUENCES // 4, 1),
                                                 "parallelism.data_parallel_replicate_degree": 2} | keys, bound)
      for name, keys, bound in (("", {}, 0.02), (", replicas by int8", {"parallelism.replicate_codec": "int8"}, 0.02),
                                (", replicas by LoCo", {"parallelism.replicate_codec": "loco"}, 0.03))),
    # Its decay is in the gradient, which the rate and momentum multiply.
    Row("SGD, momentum 0.9", (0.1, 0.3, 1.0), {"optimizer.name": "SGD", "optimizer.sgd.momentum": 0.9, "optimizer.weight_decay": 1e-4}),
]

# --- over slow links: `make methods-link` ---

# Some 20 million parameters, 64 tokens a step on two hosts: little to compute beside what travels.
LINK_MODEL = {
    "model.dim": 512, "model.n_layers": 8, "training.mixed_precision_param": "float32", "training.seq_len": 32, "training.local_batch_size": 1,
    "training.global_batch_size": 2, "training.max_norm": 1, "optimizer.lr": 1e-3, "lr_scheduler.warmup_steps": 10, "device.threads": 1,
    "elastic.min_workers": 2, "elastic.max_workers": 2, "checkpoint.enable": "false"}
LINKS = ((1, 0), (0.1, 0), (0.1, 25))  # Gbit/s, and milliseconds that a message takes

LINK_ROWS = [
    Row("FSDP", ()),
    Row("FSDP, bf16", (), {"training.mixed_precision_param": "bfloat16"}),
    *(Row(name, (), {"parallelism.fsdp_gather_codec": gather, "parallelism.fsdp_reduce_codec": reduce})
      for name, gather, reduce in (("LoCo", "none", "loco"), ("W8G8", "int8", "int8"), ("W8, LoCo", "int8", "loco"), ("W4G4", "int4", "int4"))),
    Row("HSDP", (), {"parallelism.data_parallel_replicate_degree": 2}),
    Row("HSDP, LoCo", (), {"parallelism.data_parallel_replicate_degree": 2, "parallelism.replicate_codec": "loco"}),
    Row("FlexDeMo", (), {"parallelism.data_parallel_replicate_degree": 2, "parallelism.replicate_method": "demo", "optimizer.name": "SGD"}),
]
