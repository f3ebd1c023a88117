#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Reference values of float8 from PyTorch, written to tests/golden/float8.json.

    tests/golden/float8_reference.py [SEED]          (needs torch >= 2.1 and numpy; the tests only read the file)

casts: codes of torch.float8_e4m3fn and torch.float8_e5m2 for values that are clamped to the type's range first, as training does:
of every bf16 number in the order of their bits, as runs [bits of the first, code]; of fp32 numbers drawn by SEED, of all points
half way between two codes, and of their neighbours, as [bits, e4m3 code, e5m2 code].

linear: one linear layer's products, as torchao's recipes compute them (torchao/float8: config.py, float8_utils.py), from casts by
PyTorch and sums in fp64: output, input gradient, weight gradient. x, w and dy are bf16 numbers, with rows of very different size.
"""
import json
import sys
from pathlib import Path

import numpy as np
import torch

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 20240905
N, IN, OUT = 12, 32, 16


def codes(bits, dtype):
    most = torch.finfo(dtype).max
    x = torch.from_numpy(bits.astype(np.uint32).view(np.float32).copy())
    return x.clamp(-most, most).to(dtype).view(torch.uint8).numpy().astype(int)


def runs(dtype):
    of_bf16 = codes(np.arange(1 << 16, dtype=np.uint32) << 16, dtype)
    firsts = np.flatnonzero(np.diff(of_bf16, prepend=-1))
    return [[int(i), int(of_bf16[i])] for i in firsts]


def halves(dtype):
    """Bits of what lies half way between neighbours, and one above and below."""
    values = torch.arange(128, dtype=torch.uint8).view(dtype).double()
    values = values[torch.isfinite(values)].numpy()
    middle = ((values[1:] + values[:-1]) / 2).astype(np.float32).view(np.uint32)
    return np.concatenate([middle, middle - 1, middle + 1])


def sample(rng):
    spread = rng.standard_normal(400) * np.exp2(rng.integers(-24, 20, 400))
    bits = np.concatenate([rng.integers(0, 1 << 32, 400, dtype=np.uint32), spread.astype(np.float32).view(np.uint32),
                           halves(E4M3), halves(E5M2)])
    bits = np.concatenate([bits, bits[800:] | np.uint32(1 << 31)])
    return [[int(b), int(x), int(y)] for b, x, y in zip(bits, codes(bits, E4M3), codes(bits, E5M2))]


def scaled(x, dtype, along=None, power=False):
    """float8 values and what their scales are undone with; along: the dimension of one scale."""
    amax = x.abs().max() if along is None else x.abs().amax(along, keepdim=True)
    most = torch.finfo(dtype).max
    scale = (most / amax.double().clamp(min=1e-12)).float()
    if power:
        scale = torch.exp2(torch.floor(torch.log2(scale)))
    return (x * scale).clamp(-most, most).to(dtype).double(), scale.reciprocal().double()


def product(a, b):
    """a (m,k) and b (k,n), each values and inverse scales."""
    return (a[0] @ b[0] * a[1] * b[1]).flatten().tolist()


def linear(x, w, dy):
    power = dict(power=True)
    per_row = [scaled(x, E4M3, 1, **power), scaled(w.T, E4M3, 0, **power)]
    return {
        "tensorwise": [product(scaled(x, E4M3), scaled(w.T, E4M3)), product(scaled(dy, E5M2), scaled(w, E4M3)),
                       product(scaled(dy.T, E5M2), scaled(x, E4M3))],
        "rowwise": [product(*per_row), product(scaled(dy, E4M3, 1, **power), scaled(w, E4M3, 0, **power)),
                    product(scaled(dy.T, E4M3, 1, **power), scaled(x, E4M3, 0, **power))],
        "rowwise_with_gw_hp": [product(*per_row), product(scaled(dy, E4M3, 1, **power), scaled(w, E4M3, **power)),
                               (dy.T.double() @ x.double()).flatten().tolist()],
    }


def main():
    rng = np.random.default_rng(SEED)
    size = np.exp2(rng.integers(-8, 8, (N, 1)))
    x, w, dy = (torch.from_numpy(v.astype(np.float32)).bfloat16().float() for v in
                (rng.standard_normal((N, IN)) * size, rng.standard_normal((OUT, IN)) * 0.02,
                 rng.standard_normal((N, OUT)) * 1e-6 * size[::-1]))
    out = {"seed": SEED, "torch": torch.__version__, "casts": {"e4m3": runs(E4M3), "e5m2": runs(E5M2), "fp32": sample(rng)},
           "linear": {"n": N, "in": IN, "out": OUT, "x": x.flatten().tolist(), "w": w.flatten().tolist(),
                      "dy": dy.flatten().tolist(), **linear(x, w, dy)}}
    text = json.dumps(json.loads(json.dumps(out), parse_float=lambda t: float("%.9g" % float(t))))
    (Path(__file__).parent / "float8.json").write_text(text.replace('], "', '],\n"') + "\n")
    print(f"seed {SEED}: {len(out['casts']['fp32'])} fp32 numbers, {len(text)} bytes")


main()
