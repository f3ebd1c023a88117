#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes rng_reference.json: what base/rng.h promises, computed apart from it with Python integers and NumPy.
NumPy's own Philox is Philox4x64, so Philox4x32-10 is written out here from the paper (Salmon et al., SC 2011)."""
import json
import os

import numpy as np

M32, M64 = (1 << 32) - 1, (1 << 64) - 1


def philox(k0, k1, lo, hi):
    c = [lo & M32, lo >> 32, hi & M32, hi >> 32]
    for r in range(10):
        a = (k0 + r * 0x9E3779B9) & M32
        b = (k1 + r * 0xBB67AE85) & M32
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ a, p1 & M32, (p0 >> 32) ^ c[3] ^ b, p0 & M32]
    return c


def mix(z):
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & M64
    return z ^ z >> 31


def key(seed, name):
    h = 0xCBF29CE484222325
    for b in name.encode():
        h = ((h ^ b) * 0x100000001B3) & M64
    k = mix(h ^ mix((seed + 0x9E3779B97F4A7C15) & M64))
    return k & M32, k >> 32


def uniform(k, i):
    return float(np.float32((philox(*k, i, 0)[0] >> 8) * 2.0**-24))


def normal(k, i):
    w = philox(*k, i >> 1, 1)
    r = np.sqrt(-2.0 * np.log((w[0] + 1.0) * 2.0**-32))
    a = 6.283185307179586476925 * (w[1] * 2.0**-32)
    return float(np.float32(r * (np.sin(a) if i & 1 else np.cos(a))))


def permute(k, x, n):
    if n == 1:
        return 0
    half = ((n - 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    while True:
        left, right = x >> half, x & mask
        for r in range(6):
            left, right = right, left ^ (philox(*k, right, (2 << 32) | r)[0] & mask)
        x = left << half | right
        if x < n:
            return x


def main():
    keys = []
    for seed, name in [(0, ""), (1, "layers.0.attention.wq.weight"), (42, "tok_embeddings.weight"), (M64, "é")]:
        k = key(seed, name)
        index = [0, 1, 2, 3, 1000, 1001, 2**32 + 7, 2**63 + 1]
        keys.append({
            "seed": str(seed), "name": name, "k0": k[0], "k1": k[1],
            "index": [str(i) for i in index],
            "uniform": [uniform(k, i) for i in index],
            "normal": [normal(k, i) for i in index],
            "permute_n": [str(n) for n in (2, 3, 10, 97, 4096, 10**6, 2**40 + 1, M64)],
            "permute": [str(permute(k, n // 3, n)) for n in (2, 3, 10, 97, 4096, 10**6, 2**40 + 1, M64)],
        })
    out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rng_reference.json")
    with open(out, "w", encoding="utf-8") as f:
        json.dump(keys, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
