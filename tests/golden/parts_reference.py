#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Reference values of the parts of directions that replicas send each other, written to tests/golden/parts.json.

    tests/golden/parts_reference.py          (needs numpy; the test only reads the file)

Each case has a method, what three ranks have of it (gradient and residual), what each sends and keeps, and the direction that all make of
it, in fp64. The DCT is the matrix itself (arXiv:2411.19870, section 4); random and striding places are those of worker/device/parts.h."""
import json
from pathlib import Path

import numpy as np

CHUNK, CHUNKS, RANKS, BETA, SCALE = 64, 2, 3, 0.75, 0.5
K, J = np.arange(CHUNK)[:, None], np.arange(CHUNK)[None, :]
DCT = np.sqrt(2 / CHUNK) * np.cos(np.pi * (2 * J + 1) * K / (2 * CHUNK)) * np.where(K == 0, np.sqrt(0.5), 1)
assert np.abs(DCT @ DCT.T - np.eye(CHUNK)).max() < 1e-13
CASES = (("demo", 4, "float32"), ("demo", 1, "float32"), ("demo", 64, "float32"), ("demo", 5, "bfloat16"), ("random", 4, "float32"),
         ("random", 16, "bfloat16"), ("striding", 8, "float32"), ("full", 64, "float32"))
FIRST, WORD, M64 = 11, 0x123456789ABCDEF, (1 << 64) - 1


def rounded(x, dtype):
    if dtype == "float32":
        return x
    bits = np.float32(x).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def mix(z):
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & M64
    z = (z ^ z >> 27) * 0x94D049BB133111EB & M64
    return z ^ z >> 31


def places(method, kept, chunk):
    stride = CHUNK // kept
    if method != "random":
        return [i * stride + WORD % stride for i in range(kept)]
    return [i * stride + mix((WORD + 0x9E3779B97F4A7C15 * ((FIRST + chunk) * kept + i + 1)) & M64) % stride for i in range(kept)]


def extract(method, kept, dtype, g, residual):
    sent, rest = [], np.empty_like(g)
    for c in range(CHUNKS):
        at = slice(c * CHUNK, (c + 1) * CHUNK)
        d = BETA * residual[at] + SCALE * g[at]
        whole = DCT @ d if method == "demo" else d
        order = np.argsort(-np.abs(whole), kind="stable")
        if method == "demo" and 0 < kept < CHUNK and np.abs(whole).max() > 0:  # rounding must not decide
            edge = np.abs(whole)[order]
            assert edge[kept - 1] - edge[kept] > 1e-4, "draw others"
        of = sorted(order[:kept].tolist()) if method == "demo" else places(method, kept, c)
        values = np.array([rounded(whole[i], dtype) for i in of])
        gone = np.zeros(CHUNK)
        gone[of] = values
        rest[at] = d - (DCT.T @ gone if method == "demo" else gone)
        sent.append((of, values))
    return sent, rest


def combine(method, everyone):
    out = np.empty(CHUNKS * CHUNK)
    for c in range(CHUNKS):
        total, count = np.zeros(CHUNK), np.zeros(CHUNK)
        for sent, _ in everyone:
            total[sent[c][0]] += sent[c][1]
            count[sent[c][0]] += 1
        mean = total / np.maximum(count, 1)
        out[c * CHUNK:(c + 1) * CHUNK] = DCT.T @ mean if method == "demo" else mean
    return out


def short(values):
    return [float(f"{v:.9g}") for v in values]


def main():
    rng = np.random.default_rng(7)
    cases = []
    for method, kept, dtype in CASES:
        ranks = []
        for _ in range(RANKS):
            g, residual = (np.round(rng.standard_normal(CHUNKS * CHUNK) * 256) / 256 for _ in range(2))
            if not ranks:  # a chunk of zeros: all values are equal, the first ones are sent
                g[:CHUNK] = residual[:CHUNK] = 0
            sent, rest = extract(method, kept, dtype, g, residual)
            ranks.append({"gradient": g.tolist(), "residual": residual.tolist(), "numbers": [of for of, _ in sent],
                          "values": [short(v) for _, v in sent], "after": short(rest)})
        everyone = [([(n, np.array(v)) for n, v in zip(r["numbers"], r["values"])], None) for r in ranks]
        cases.append({"method": method, "kept": kept, "dtype": dtype, "ranks": ranks, "direction": short(combine(method, everyone))})
    text = json.dumps({"first": FIRST, "word": WORD, "beta": BETA, "scale": SCALE, "cases": cases}, separators=(",", ":"))
    (Path(__file__).parent / "parts.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
