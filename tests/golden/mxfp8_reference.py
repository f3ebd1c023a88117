#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Reference values of MXFP8 from PyTorch and NumPy, written to tests/golden/mxfp8.json.

    tests/golden/mxfp8_reference.py [SEED]          (needs torch >= 2.7 and numpy; the tests only read the file)

blocks: 32 fp32 numbers each, as [[bits, ...], scale, [code, ...]]: the scale e8m0 by the specification's rule (the exponent of the
largest magnitude, less 8, that of e4m3's largest power of two; torchao's mode FLOOR), checked against PyTorch's own type e8m0, and
codes of torch.float8_e4m3fn of what is clamped to its range. A block with a number that is not finite has the scale NaN; torchao
lets infinities saturate.

layout: where cuBLAS wants scales (its manual, "1D Block Scaling Factors Layout"): tiles of 128 lines by 4 blocks, in each of them 32
rows of 16 bytes; lines by blocks of them as places in the flat order, -1 what only fills a tile up.

linear: one linear layer's products from such casts along the sum and sums in fp64: output, input gradient, weight gradient. x, w and
dy are the bits of bf16 numbers, with rows and columns of very different size; 40 rows end in a block that is not whole.
"""
import json
import sys
from pathlib import Path

import numpy as np
import torch

E4M3, SEED = torch.float8_e4m3fn, int(sys.argv[1]) if len(sys.argv) > 1 else 20230907
N, IN, OUT, BLOCK = 40, 64, 32, 32


def cast(x):
    """x (..., 32) fp32: scales, codes, and what they stand for."""
    largest = x.abs().amax(-1)
    exponent = (largest.contiguous().view(torch.int32) >> 23) - 8
    scale = exponent.clamp(min=0).where(torch.isfinite(largest), torch.tensor(255))
    power = torch.exp2(scale.double() - 127).where(scale != 255, torch.tensor(float("nan"), dtype=torch.float64))
    assert torch.equal(power.float().to(torch.float8_e8m0fnu).view(torch.uint8).int(), scale.int())
    codes = (x.double() / power[..., None]).clamp(-448, 448).float().to(E4M3)
    return scale, codes.view(torch.uint8), codes.double() * power[..., None]


def values(x, along):
    """x in MXFP8, by blocks along a dimension; the last one may be shorter."""
    x = x.transpose(along, 1)
    padded = torch.nn.functional.pad(x, (0, -x.shape[1] % BLOCK))
    return cast(padded.reshape(x.shape[0], -1, BLOCK))[2].reshape(padded.shape)[:, :x.shape[1]].transpose(along, 1)


def blocks(rng):
    spread = rng.standard_normal((24, BLOCK)) * np.exp2(rng.integers(-140, 120, (24, 1)) + rng.integers(-12, 4, (24, BLOCK)))
    x = np.concatenate([spread.astype(np.float32), rng.integers(0, 1 << 32, (8, BLOCK), dtype=np.uint32).view(np.float32),
                        np.zeros((1, BLOCK), np.float32), rng.standard_normal((12, BLOCK)).astype(np.float32)])
    x[-1, 5], x[-2, 0], x[-3, 31], x[-4, 7] = np.nan, np.inf, -np.inf, np.float32(3.4e38)
    x[-5], x[-6, 3], x[-7] = np.exp2(np.arange(-20, 12)), np.float32(1e-45), np.float32(1e-39) * np.arange(BLOCK)
    # All halves between codes, below a largest magnitude that makes the scale 1.
    codes = torch.arange(127, dtype=torch.uint8).view(E4M3).double().numpy()
    halves = (codes[1:] + codes[:-1]) / 2
    halves = np.pad(halves, (0, -len(halves) % 31)).reshape(-1, 31)
    x = np.concatenate([x, np.concatenate([halves, np.full((len(halves), 1), 511.0)], 1).astype(np.float32)])
    scale, code, _ = cast(torch.from_numpy(x))
    return [[row.view(np.uint32).tolist(), int(s), c.tolist()] for row, s, c in zip(x, scale, code)]


def layout(lines, across):
    at = np.full(((lines + 127) // 128 * 128, (across + 3) // 4 * 4), -1)
    at[:lines, :across] = np.arange(lines * across).reshape(lines, across)
    tiles = at.reshape(at.shape[0] // 128, 4, 32, at.shape[1] // 4, 4)  # tile, quarter, row, tile, block
    return tiles.transpose(0, 3, 2, 1, 4).flatten().tolist()


def main():
    rng = np.random.default_rng(SEED)
    size = np.exp2(rng.integers(-8, 8, (N, 1)))
    x, w, dy = (torch.from_numpy(v.astype(np.float32)).bfloat16().float() for v in
                (rng.standard_normal((N, IN)) * size, rng.standard_normal((OUT, IN)) * 0.02 * np.exp2(rng.integers(-6, 1, (1, IN))),
                 rng.standard_normal((N, OUT)) * 1e-6 * size[::-1]))
    products = [values(x, 1) @ values(w, 1).T, values(dy, 1) @ values(w, 0), values(dy, 0).T @ values(x, 0)]
    out = {"seed": SEED, "torch": torch.__version__, "blocks": blocks(rng), "layout": {"lines": 150, "blocks": 9, "places": layout(150, 9)},
           "linear": {"n": N, "in": IN, "out": OUT,
                      **{name: (v.view(torch.int32) >> 16 & 0xffff).flatten().tolist() for name, v in (("x", x), ("w", w), ("dy", dy))},
                      "products": [p.flatten().tolist() for p in products]}}
    text = json.dumps(json.loads(json.dumps(out), parse_float=lambda t: float("%.9g" % float(t))))
    (Path(__file__).parent / "mxfp8.json").write_text(text.replace("], [[", "],\n[[").replace('], "', '],\n"') + "\n")
    print(f"seed {SEED}: {len(out['blocks'])} blocks, {len(text)} bytes")


main()
