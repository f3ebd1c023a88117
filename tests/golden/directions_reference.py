#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Reference values of updates that need a matrix whole, written to tests/golden/directions.json.

    tests/golden/directions_reference.py          (needs torch >= 2.9 and numpy; the tests only read the file)

Each case has keys of a recipe, a matrix, the gradients of five steps, the directions of the first and the last one, and the matrix behind
the last, in fp64. Muon is its authors' iteration (kellerjordan.github.io/posts/muon) with the step of arXiv:2502.16982; torch.optim.Muon
has to come to the same matrices with this iteration in the place of its own, and its own, in bfloat16, near to it. GaLore is Algorithm 2
of arXiv:2403.03507 with a basis that is given; of a basis that it makes, the file has what the exact decomposition keeps of a gradient. Ranger21 is arXiv:2106.13731 by matrix and row."""
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


GALORE = {
    "GaLore, right": ((18, 10), {"galore.rank": 4}),
    "GaLore, left": ((10, 18), {"galore.rank": 4, "galore.scale": 1.0}),
    "GaLore, a quarter": ((16, 16), {"beta2": 0.99}),
    "GaLore, one vector": ((9, 8), {"galore.rank": 1}),
}
COMPONENTS = ("clip", "centralize", "normalize", "momentum", "softplus", "stable_decay", "norm_loss", "lookahead")
RANGER21 = {
    "Ranger21": ((10, 14), {}),
    "Ranger21, two columns": ((9, 2), {}),
    "Ranger21 without components": ((10, 14), {f"ranger21.{c}": False for c in COMPONENTS}),
    **{f"Ranger21, {one} alone": ((10, 14), {f"ranger21.{c}": False for c in COMPONENTS if c != one}) for one in COMPONENTS},
    "Ranger21 without lookahead": ((14, 10), {"ranger21.lookahead": False}),
    "Ranger21, decays and lookahead": ((14, 10), {f"ranger21.{c}": False for c in COMPONENTS[:5]}),
}
FIRST = 3  # number of the first step of GaLore's cases: no new basis is due
DECOMPOSED = (("tall", (60, 40), 10, 0.8), ("wide", (40, 60), 10, 0.8), ("square", (48, 48), 12, 0.9), ("one is left out", (30, 12), 11, 0.95),
              ("of rank 3", (40, 30), 8, 0.0))


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


def galore(keys, w, gradients, basis):
    """The directions of each step, with the basis' vectors in rows."""
    right, b1, b2 = w.shape[0] >= w.shape[1], keys.get("beta1", 0.9), keys.get("beta2", 0.95)
    m = v = 0
    for t, g in enumerate(gradients, FIRST):
        r = g @ basis.T if right else basis @ g
        m = b1 * m + (1 - b1) * r
        v = b2 * v + (1 - b2) * r * r
        n = m / (1 - b1 ** t) / (np.sqrt(v / (1 - b2 ** t)) + 1e-8)
        yield keys.get("galore.scale", 0.25) * (n @ basis if right else basis.T @ n)


def ranger21(keys, w, gradients):
    """The directions of each step."""
    clip, centralize, normalize, momentum, softplus, stable, norm_loss, lookahead = (keys.get(f"ranger21.{c}", True) for c in COMPONENTS)
    b0, b1, b2, eps = 0.9, keys.get("beta1", 0.9), keys.get("beta2", 0.95), 1e-8
    rows = lambda x: np.sqrt((x * x).sum(1, keepdims=True))
    m = previous = v = largest = np.zeros_like(w)
    slow = w
    for t, g in enumerate(gradients, 1):
        if clip:
            most = 0.01 * np.maximum(rows(w), 1e-3)
            g = np.where(rows(g) > most, g * most / np.maximum(rows(g), 1e-6), g)
        if centralize:
            g = g - g.mean(1, keepdims=True)
        if normalize and g.shape[1] > 2:
            g = g / (g.std(1, keepdims=True) + 1e-8)
        v = b2 * v + (1 - b2) * g * g
        second = largest = np.maximum(largest, v)
        if momentum:
            m, previous = b1 * b1 * previous + (1 - b1 * b1) * g, m
            numerator = ((1 + b0) * m - b0 * previous) / np.hypot(1 + b0, b0)
        else:
            m, second = b1 * m + (1 - b1) * g, v
            numerator = m
        below = np.sqrt(second / (1 - b2 ** t)) + eps
        if softplus:
            below = np.where(50 * below > 20, below, np.log1p(np.exp(50 * np.minimum(below, 1))) / 50)
        d = numerator / (1 - b1 ** t) / below
        if stable or norm_loss or lookahead:
            d = d + DECAY * (1 / np.sqrt((second / (1 - b2 ** t)).mean()) if stable else 1) * (1 - 1 / (rows(w) + 1e-8) if norm_loss else 1) * w
        else:
            d = d + DECAY * w
        new = w - LR * d
        if lookahead and t % 5 == 0:
            new = 0.5 * slow + 0.5 * new
            slow = new
        decay = 0 if stable or norm_loss or lookahead else DECAY
        yield (w - new) / LR - decay * w
        w = new


def decomposed(name, shape, rank, decay, rng):
    """A gradient with falling singular values, and the share of its energy in the largest of them."""
    u, v = (np.linalg.qr(rng.standard_normal((n, min(shape))))[0] for n in shape)
    values = decay ** np.arange(min(shape)) if decay else np.where(np.arange(min(shape)) < 3, 1.0, 0.0)
    g = (u * values @ v.T).astype(np.float32)
    exact = np.linalg.svd(g.astype(np.float64), compute_uv=False) ** 2
    return {"case": name, "rows": shape[0], "cols": shape[1], "rank": rank, "energy": exact[:rank].sum() / exact.sum(), "gradient": numbers(g)}


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


def case(name, keys, shape, rng, rule):
    more = {}
    w, gradients = np.rint(UNIT * rng.standard_normal(shape)), np.rint(UNIT * rng.standard_normal((STEPS, *shape)))
    w = np.where(w == 0, 1, w)  # Ranger21's slow weights of 0 stand for none
    basis = ()
    if rule is galore:
        small = min(shape)
        rank = keys.get("galore.rank", small // 4)
        basis = (np.linalg.qr(rng.standard_normal((small, rank)))[0].T.astype(np.float32).astype(np.float64),)
        more = {"first": FIRST, "basis": numbers(basis[0])}
    made = list(rule(keys, w / UNIT, gradients / UNIT, *basis))
    after = w / UNIT
    decay = DECAY
    if rule is ranger21 and any(keys.get(f"ranger21.{c}", True) for c in COMPONENTS[5:]):
        decay = 0  # it is in the direction
    for d in made:
        after = after - LR * (d + decay * after)
    if rule is muon and not keys.get("muon.per_head"):
        against_torch(keys, w / UNIT, gradients / UNIT, after)
    return {"case": name, "keys": [f"optimizer.{k}={json.dumps(v).strip(chr(34))}" for k, v in keys.items() if k != "heads"],
            "rows": shape[0], "cols": shape[1], "heads": keys.get("heads", 1), **more, "w": w.astype(int).reshape(-1).tolist(),
            "gradients": [g.astype(int).reshape(-1).tolist() for g in gradients],
            "directions": [numbers(made[0]), numbers(made[-1])], "after": numbers(after)}


def main():
    rng = np.random.default_rng(20261130)
    cases = [case(name, {"name": "Muon", **keys}, shape, rng, muon) for name, (shape, keys) in MUON.items()]
    cases += [case(name, {"name": "GaLore2", **keys}, shape, rng, galore) for name, (shape, keys) in GALORE.items()]
    cases += [case(name, {"name": "Ranger21", **keys}, shape, rng, ranger21) for name, (shape, keys) in RANGER21.items()]
    file = {"made_by": "tests/golden/directions_reference.py", "torch": torch.__version__, "lr": LR, "weight_decay": DECAY,
            "unit": UNIT, "cases": cases, "decomposed": [decomposed(*of, rng) for of in DECOMPOSED]}
    Path(__file__).with_name("directions.json").write_text(json.dumps(file).replace('{"case"', '\n {"case"') + "\n")


if __name__ == "__main__":
    main()
