#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes learning_rate_reference.json: learning-rate factors by TorchTitan's rules (components/lr_scheduler.py, v0.2.2),
written out in Python from its documentation. Run by hand; the result is kept in the tree."""
import json
import math
from pathlib import Path


def factors(steps, warmup, ratio, kind, floor):
    warmup = min(warmup, steps)
    decay = steps - warmup if ratio is None else round(steps * ratio)
    decay = min(decay, steps - warmup)
    stable = steps + 1 - warmup - decay
    out = []
    for s in range(steps):
        if s < warmup:
            out.append((s + 1) / warmup)
        elif s < warmup + stable:
            out.append(1.0)
        else:
            p = (s + 1 - (warmup + stable)) / decay
            f = {"linear": 1 - p, "sqrt": 1 - math.sqrt(p), "cosine": 0.5 * (1 + math.cos(math.pi * p))}[kind]
            out.append(floor + (1 - floor) * f)
    return out


cases = []
for steps, warmup, ratio, kind, floor in [
        (10, 2, 0.8, "linear", 0.0), (50, 5, None, "linear", 0.0), (300, 20, 0.3, "cosine", 0.1),
        (25, 4, 0.5, "sqrt", 0.2), (10, 20, None, "linear", 0.0), (5, 0, 0.0, "linear", 0.0), (7, 3, 0.9, "cosine", 0.0),
        (1, 0, None, "linear", 0.0), (5, 1, 0.5, "linear", 0.3), (13, 0, 1.0, "sqrt", 0.0)]:
    cases.append({"steps": steps, "warmup": warmup, "ratio": -1 if ratio is None else ratio, "kind": kind,
                  "floor": floor, "factors": factors(steps, warmup, ratio, kind, floor)})
(Path(__file__).parent / "learning_rate_reference.json").write_text(json.dumps(cases, indent=0) + "\n")
