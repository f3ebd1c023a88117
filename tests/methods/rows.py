# SPDX-License-Identifier: Apache-2.0
"""What `make methods` trains: one small model, and a row for each optimizer. A new optimizer is a row here."""
from dataclasses import dataclass, field

STEPS = 600
SEEDS = (42, 43, 44)  # of weights and samples; the rates are tried on the first
# 139,584 parameters that read bytes, 32 sequences of 64 a step, and AdamW's settings. One thread in fp32: the same bits again.
MODEL = {
    "model.flavor": "tiny", "model.n_kv_heads": 4, "model.ffn_hidden": 192, "training.mixed_precision_param": "float32",
    "training.seq_len": 64, "training.local_batch_size": 32, "training.global_batch_size": 32, "training.steps": STEPS, "training.max_norm": 1,
    "optimizer.beta2": 0.95, "optimizer.weight_decay": 0.1, "lr_scheduler.warmup_steps": STEPS // 10, "lr_scheduler.decay_type": "cosine",
    "lr_scheduler.min_lr_factor": 0.1, "device.threads": 1, "elastic.max_workers": 1, "checkpoint.enable": "false"}

BETTER = "better"


@dataclass
class Row:
    name: str
    rates: tuple  # of the layers' matrices, and of the rest where rest_lr is not given
    keys: dict = field(default_factory=dict)
    bound: object = None  # nats that the loss may be above AdamW's; BETTER: it has to be below; None: told, not judged


AS_ADAMW = (0.016, 0.032, 0.064)  # the best is neither end: an untuned AdamW would flatter all others
ROWS = [
    Row("AdamW", AS_ADAMW),
    Row("StableAdamW, no clipping", AS_ADAMW, {"optimizer.name": "StableAdamW", "training.max_norm": 0}, 0.03),
    # The rest is AdamW's, with AdamW's best rate.
    Row("Muon", (0.02, 0.04, 0.08), {"optimizer.name": "Muon", "optimizer.rest_lr": 0.032}, BETTER),
    # The half-life of its slow mean is 69 of the 600 steps; the default's would be 6,931.
    Row("AdEMAMix", (0.008, 0.016, 0.032), {"optimizer.name": "AdEMAMix", "optimizer.ademamix.beta3": 0.99, "optimizer.ademamix.alpha": 2}),
    # A step of signs wants a lower rate and a decay as much higher; the authors' beta2 of 0.99 remembers too long for so few steps.
    Row("Lion", (0.004, 0.008, 0.016), {"optimizer.name": "Lion", "optimizer.weight_decay": 1}),
    # Its decay is in the gradient, which the rate and momentum multiply.
    Row("SGD, momentum 0.9", (0.3, 1.0, 3.0), {"optimizer.name": "SGD", "optimizer.sgd.momentum": 0.9, "optimizer.weight_decay": 1e-4}),
]
