#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Reference values of the optimizers, written to tests/golden/optimizers.json.

    tests/golden/optimizers_reference.py          (needs torch >= 2 and numpy; the tests only read the file)

Each case has keys of a recipe, a matrix, the gradients of five steps, and the matrix behind each step, in fp64. The matrix is two
tensors, cut at row 2. torch.optim gives AdamW, Adam and SGD. Lion is Algorithm 2 of arXiv:2302.06675, AdEMAMix Algorithm 1 of
arXiv:2409.03137 with its warm-up of alpha and beta3, StableAdamW Algorithm 2 of arXiv:2304.13013 with a threshold other than 1 as well."""
import json
from pathlib import Path

import numpy as np
import torch

STEPS, SHAPE, CUT, LR, DECAY = 5, (6, 10), 2, 0.01, 0.1
CASES = {
    "AdamW": {"name": "AdamW"},
    "Adam": {"name": "Adam"},
    "SGD": {"name": "SGD"},
    "SGD with momentum": {"name": "SGD", "sgd.momentum": 0.9},
    "SGD with Nesterov's momentum": {"name": "SGD", "sgd.momentum": 0.9, "sgd.nesterov": True},
    "Lion": {"name": "Lion", "beta2": 0.99},
    "AdEMAMix": {"name": "AdEMAMix", "ademamix.beta3": 0.999, "ademamix.alpha": 5.0, "ademamix.warmup_steps": 0},
    "AdEMAMix, warming up": {"name": "AdEMAMix", "ademamix.warmup_steps": 4},
    "StableAdamW": {"name": "StableAdamW"},
    "StableAdamW with a threshold": {"name": "StableAdamW", "stable_adamw.threshold": 0.7},
}


def by_torch(keys, w, gradients):
    w = torch.nn.Parameter(torch.tensor(w))
    if keys["name"] == "SGD":
        o = torch.optim.SGD([w], lr=LR, weight_decay=DECAY, momentum=keys.get("sgd.momentum", 0), nesterov=keys.get("sgd.nesterov", False))
    else:
        o = getattr(torch.optim, keys["name"])([w], lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=DECAY)
    for g in gradients:
        w.grad = torch.tensor(g)
        o.step()
        yield w.detach().numpy().copy()


def lion(keys, w, gradients):
    m = np.zeros_like(w)
    for g in gradients:
        w = w - LR * (np.sign(0.9 * m + 0.1 * g) + DECAY * w)
        m = keys["beta2"] * m + (1 - keys["beta2"]) * g
        yield w


def ademamix(keys, w, gradients):
    fast, slow, v = np.zeros_like(w), np.zeros_like(w), np.zeros_like(w)
    alpha, beta3, warm = keys.get("ademamix.alpha", 8.0), keys.get("ademamix.beta3", 0.9999), keys["ademamix.warmup_steps"]
    for t, g in enumerate(gradients, 1):
        a, b = alpha, beta3
        if t < warm:
            x, start, end = t / warm, np.log(0.9), np.log(beta3)
            a, b = alpha * x, min(np.exp(start * end / ((1 - x) * end + x * start)), beta3)
        fast = 0.9 * fast + 0.1 * g
        slow = b * slow + (1 - b) * g
        v = 0.95 * v + 0.05 * g * g
        w = w - LR * ((fast / (1 - 0.9 ** t) + a * slow) / (np.sqrt(v / (1 - 0.95 ** t)) + 1e-8) + DECAY * w)
        yield w


def stable_adamw(keys, w, gradients):
    m, u = np.zeros_like(w), np.zeros_like(w)
    seen = set()
    for t, g in enumerate(gradients, 1):
        b1, b2 = (b * (1 - b ** (t - 1)) / (1 - b ** t) for b in (0.9, 0.95))
        m = b1 * m + (1 - b1) * g
        u = b2 * u + (1 - b2) * g * g
        after = np.empty_like(w)
        for rows in (slice(0, CUT), slice(CUT, None)):
            rms = np.sqrt(np.mean(g[rows] ** 2 / np.maximum(u[rows], 1e-8 ** 2))) / keys.get("stable_adamw.threshold", 1)
            seen.add(rms > 1)
            rate = LR / max(1, rms)
            after[rows] = w[rows] - rate * (DECAY * w[rows] + m[rows] / (np.sqrt(u[rows]) + 1e-8))
        w = after
        yield w
    assert seen == {True, False} or keys.get("stable_adamw.threshold", 1) < 1


def main():
    rng = np.random.default_rng(20261130)
    rules = {"Lion": lion, "AdEMAMix": ademamix, "StableAdamW": stable_adamw}
    w = rng.standard_normal(SHAPE).astype(np.float32).astype(np.float64)
    gradients = rng.standard_normal((STEPS, *SHAPE)).astype(np.float32).astype(np.float64)
    cases = []
    for name, keys in CASES.items():
        after = [x.reshape(-1).tolist() for x in rules.get(keys["name"], by_torch)(keys, w.copy(), gradients)]
        cases.append({"case": name, "keys": [f"optimizer.{k}={json.dumps(v).strip(chr(34))}" for k, v in keys.items()], "after": after})
    file = {"made_by": "tests/golden/optimizers_reference.py", "torch": torch.__version__, "lr": LR, "weight_decay": DECAY,
            "w": w.reshape(-1).tolist(), "gradients": [g.reshape(-1).tolist() for g in gradients], "cases": cases}
    lines = json.dumps(file).replace('{"case"', '\n {"case"').replace(', "cases"', ',\n "cases"').replace('"gradients"', '\n "gradients"')
    Path(__file__).with_name("optimizers.json").write_text(lines + "\n")


if __name__ == "__main__":
    main()
