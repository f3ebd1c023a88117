#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Reference values of updates that need a matrix whole, written to tests/golden/directions.json.

    tests/golden/directions_reference.py          (needs torch >= 2.9 and numpy; the tests only read the file)

Each case has keys of a recipe, a matrix, the gradients of five steps, the directions of the first and the last one, and the matrix behind
the last, in fp64. Muon is its authors' iteration (kellerjordan.github.io/posts/muon) with the step of arXiv:2502.16982; torch.optim.Muon
has to come to the same matrices with this iteration in the place of its own, and its own, in bfloat16, near to it."""
import json
from pathlib import Path

import numpy as np
import torch
import torch.optim._muon as torch_muon

STEPS, LR, DECAY, UNIT = 5, 0.01, 0.1, 64  # matrices and gradients are whole numbers of 1 / UNIT
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
MUON = {
    "Muon, square": ((16, 16), {}),
    "Muon, tall": ((24, 10), {}),
    "Muon, wide": ((10, 24), {}),
    "Muon, one row": ((1, 20), {}),
    "Muon without Nesterov": ((12, 18), {"muon.nesterov": False, "muon.momentum": 0.8}),
    "Muon without momentum": ((12, 18), {"muon.momentum": 0.0}),
    "Muon, three iterations": ((18, 12), {"muon.ns_steps": 3, "muon.scale": 0.5}),
    "Muon, wide heads": ((12, 20), {"muon.per_head": True, "heads": 3}),
    "Muon, tall heads": ((24, 8), {"muon.per_head": True, "heads": 2}),
    "Muon, heads together": ((24, 8), {"heads": 2}),
}


def newton_schulz(u, steps=5):
    x = u / (np.linalg.norm(u) + 1e-7)
    a, b, c = COEFFICIENTS
    if x.shape[0] > x.shape[1]:
        x = x.T
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if x.shape == u.shape else x.T


def muon(keys, w, gradients):
    """The directions of each step."""
    beta, parts = keys.get("muon.momentum", 0.95), keys["heads"] if keys.get("muon.per_head") else 1
    momentum = np.zeros_like(w)
    for g in gradients:
        momentum = beta * momentum + g
        u = g + beta * momentum if keys.get("muon.nesterov", True) else momentum
        cut = [newton_schulz(part, keys.get("muon.ns_steps", 5)) for part in np.split(u, parts)]
        yield keys.get("muon.scale", 0.2) * np.sqrt(max(cut[0].shape)) * np.concatenate(cut)


def against_torch(keys, w, gradients, after):
    """torch.optim.Muon with our iteration comes to our matrix; its own is as near as eight bits are."""
    own = torch_muon._zeropower_via_newtonschulz
    steps = keys.get("muon.ns_steps", 5)
    near = own(torch.tensor(gradients[0]), COEFFICIENTS, steps, 1e-7).double().numpy()
    exact = newton_schulz(gradients[0], steps)
    assert np.sqrt(np.mean((near - exact) ** 2) / np.mean(exact ** 2)) < 0.1, keys
    try:
        torch_muon._zeropower_via_newtonschulz = lambda u, c, n, eps: torch.tensor(newton_schulz(u.numpy(), n))
        p = torch.nn.Parameter(torch.tensor(w))
        scale = keys.get("muon.scale", 0.2) / 0.2
        o = torch.optim.Muon([p], lr=LR * scale, weight_decay=DECAY / scale, momentum=keys.get("muon.momentum", 0.95),
                             nesterov=keys.get("muon.nesterov", True), ns_steps=steps, adjust_lr_fn="match_rms_adamw")
        for g in gradients:
            p.grad = torch.tensor(g)
            o.step()
    finally:
        torch_muon._zeropower_via_newtonschulz = own
    # torch keeps (1 - beta) times our momentum, to which 1e-7 is added
    assert np.abs(p.detach().numpy() - after).max() < 1e-6, keys


def numbers(x):
    return [float(f"{v:.9g}") for v in np.asarray(x).reshape(-1)]


def case(name, keys, shape, rng, rule, **more):
    w, gradients = np.rint(UNIT * rng.standard_normal(shape)), np.rint(UNIT * rng.standard_normal((STEPS, *shape)))
    made = list(rule(keys, w / UNIT, gradients / UNIT))
    after = w / UNIT
    for d in made:
        after = after - LR * (d + DECAY * after)
    if rule is muon and not keys.get("muon.per_head"):
        against_torch(keys, w / UNIT, gradients / UNIT, after)
    return {"case": name, "keys": [f"optimizer.{k}={json.dumps(v).strip(chr(34))}" for k, v in keys.items() if k != "heads"],
            "rows": shape[0], "cols": shape[1], "heads": keys.get("heads", 1), **more, "w": w.astype(int).reshape(-1).tolist(),
            "gradients": [g.astype(int).reshape(-1).tolist() for g in gradients],
            "directions": [numbers(made[0]), numbers(made[-1])], "after": numbers(after)}


def main():
    rng = np.random.default_rng(20261130)
    cases = [case(name, {"name": "Muon", **keys}, shape, rng, muon) for name, (shape, keys) in MUON.items()]
    file = {"made_by": "tests/golden/directions_reference.py", "torch": torch.__version__, "lr": LR, "weight_decay": DECAY,
            "unit": UNIT, "cases": cases}
    Path(__file__).with_name("directions.json").write_text(json.dumps(file).replace('{"case"', '\n {"case"') + "\n")


if __name__ == "__main__":
    main()
