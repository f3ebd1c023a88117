#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Reference values of int8 from PyTorch, written to tests/golden/int8.json.

    tests/golden/int8_reference.py [SEED]           (needs torch >= 2.1 and numpy; the tests only read the file)

One linear layer as SwitchBack has it (Wortsman et al. 2023, arXiv:2304.13013, algorithms 1 and 3): output, input gradient and
weight gradient of each variant; the codes of x, what a code of 1 stands for in each row, and the weight gradient of their values
in fp32 and rounded to bf16 (mem_efficient). Codes are PyTorch's roundings, sums are whole numbers. x, w and dy are bf16 numbers, with rows
of very different size; a row of x and one of dy are zeros, and one element of x is far larger than its row.
"""
import json
import sys
from pathlib import Path

import numpy as np
import torch

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 20230426
N, IN, OUT = 20, 36, 44


def codes(x, along=None):
    """int8 codes, and what a code of 1 stands for; along: the dimension of one scale."""
    most = x.abs().max() if along is None else x.abs().amax(along, keepdim=True)
    by = (127 / most.double().clamp(min=1e-30)).float()
    return torch.round(x * by).to(torch.int8), by.reciprocal()


def product(a, b):
    """a (m,k) and b (k,n), each codes and scales."""
    sums = a[0].long() @ b[0].long()
    assert sums.abs().max() < 1 << 31
    return (sums.float() * a[1] * b[1]).double().flatten().tolist()


def main():
    rng = np.random.default_rng(SEED)
    size = np.exp2(rng.integers(-8, 8, (N, 1)))
    x, w, dy = (torch.from_numpy(v.astype(np.float32)).bfloat16().float() for v in
                (rng.standard_normal((N, IN)) * size, rng.standard_normal((OUT, IN)) * 0.02 * np.exp2(rng.integers(-3, 3, (OUT, 1))),
                 rng.standard_normal((N, OUT)) * 1e-6 * size[::-1]))
    x[7], dy[11], x[3, 5] = 0, 0, 4096
    dw = (dy.T.double() @ x.double()).flatten().tolist()
    row_codes, one = codes(x, 1)
    values = row_codes.float() * one
    kept = [(dy.T.double() @ v.double()).flatten().tolist() for v in (values, values.bfloat16())]
    out = {"seed": SEED, "torch": torch.__version__,
           "linear": {"n": N, "in": IN, "out": OUT, "x": x.flatten().tolist(), "w": w.flatten().tolist(), "dy": dy.flatten().tolist(),
                      "global": [product(codes(x, 1), codes(w.T)), product(codes(dy, 1), codes(w)), dw],
                      "codes": row_codes.flatten().tolist(), "one": one.double().flatten().tolist(), "kept": kept,
                      "vectorwise": [product(codes(x, 1), codes(w.T, 0)), product(codes(dy, 1), codes(w, 0)), dw]}}
    text = json.dumps(json.loads(json.dumps(out), parse_float=lambda t: float("%.9g" % float(t))))
    (Path(__file__).parent / "int8.json").write_text(text.replace('], "', '],\n"') + "\n")
    print(f"seed {SEED}: {len(text)} bytes")


main()
