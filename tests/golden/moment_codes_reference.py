#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Reference of 8-bit moments (base/moment_codes.h), written to tests/golden/moment_codes.json.

    tests/golden/moment_codes_reference.py          (needs numpy; the tests only read the file)

Values are fp32, given by their bits. "parts" has what each code stands for, as a part of the scale; "blocks" has blocks of values with
scale, codes and what they decode to; "steps" has five steps of AdamW with moments in codes.

The parts are held against the dynamic tree map of arXiv:2110.02861 as bitsandbytes builds it, and the cells of random values against a
search among the cells' bounds in fp64."""
import json
from pathlib import Path

import numpy as np

F32, BLOCK = np.float32, 256
DECADES = [10.0 ** (i - 6) for i in range(7)]


def fma(a, b, c):
    """Rounded once: a product of two fp32 is exact in fp64."""
    return F32(np.float64(a) * np.float64(b) + np.float64(c))


def bits(x):
    return np.atleast_1d(np.asarray(x, F32)).view(np.uint32)


def parts(square):
    """What cells 0, 1, ... stand for."""
    n = 256 if square else 128
    cell = np.arange(n, dtype=F32)
    x = F32(0.5) * cell + F32(0.75) if square else cell + F32(0.5)
    lines = [fma(F32(0.9 * top / 2 ** i), x, F32(-0.8 * top)) for i, top in enumerate(DECADES)]
    y = np.maximum(np.max(lines, axis=0), F32(0))
    y[-1] = 1
    return y


def scale_of(values):
    largest = np.max(bits(values) & 0x7FFFFFFF)
    if largest >= 253 << 23:  # 2^126, whose inverse is no normal number, and what is not finite
        return F32(np.nan)
    return np.array(largest, np.uint32).view(F32)[()] if largest >= 27 << 23 else F32(0)


def encode(values, square):
    """(scale, codes) of up to 256 values."""
    values = np.asarray(values, F32)
    scale = scale_of(values)
    if not scale > 0:
        return scale, np.zeros(len(values), np.uint8)
    z = np.abs(values) * (F32(1) / scale)
    x = np.min([fma(z, F32(2 ** i / (0.9 * top)), F32(2 ** i * 8 / 9)) for i, top in enumerate(DECADES)], axis=0)
    if square:
        return scale, np.clip((F32(2) * x).astype(np.int32) - 1, (z > 0).astype(np.int32), 255).astype(np.uint8)
    cell = np.minimum(x.astype(np.int32), 127)
    return scale, np.where((values < 0) & (cell > 0), cell | 128, cell).astype(np.uint8)


def decode(scale, codes, square):
    if square:
        return parts(True)[codes] * scale
    return np.where(codes & 128, F32(-1), F32(1)) * (parts(False)[codes & 127] * scale)


def encode_all(values, square):
    return [encode(values[i:i + BLOCK], square) for i in range(0, len(values), BLOCK)]


def decode_all(blocks, square):
    return np.concatenate([decode(s, c, square) for s, c in blocks])


def check_parts():
    """The same values as the published map's: signed ones with -1, and with 1 for the largest cell."""
    for square in (False, True):
        published = []
        for i, top in enumerate(DECADES):
            bounds = np.linspace(0.1, 1, 2 ** (i + square) + 1)
            published += list(top * (bounds[:-1] + bounds[1:]) / 2)
        published = np.array([0] + published + [1] if square else [0] + published[:-1] + [1])
        assert np.all(np.abs(parts(square) - published) <= 1e-6 * published), square


def check_cells(rng):
    for square in (False, True):
        bounds = np.concatenate([top * np.linspace(0.1, 1, 2 ** (i + square) + 1)[:-1] for i, top in enumerate(DECADES)])
        values = (10.0 ** rng.uniform(-7.5, 0, BLOCK)).astype(F32)
        values[0] = 1
        cells = np.searchsorted(bounds, values.astype(np.float64), side="right")
        clear = np.min(np.abs(bounds[:, None] / values.astype(np.float64) - 1), axis=0) > 1e-5
        assert clear[1:].sum() > 200
        cells[0] = 255 if square else 127
        cells = np.maximum(cells, 1) if square else np.minimum(cells, 127)
        assert np.array_equal(encode(values, square)[1][clear], cells[clear]), square


def block_cases(rng):
    spread = (rng.standard_normal(BLOCK) * 10.0 ** rng.uniform(-8, 0, BLOCK)).astype(F32)
    bounds = np.concatenate([top * np.linspace(0.1, 1, 33) for top in DECADES]).astype(F32)[:BLOCK]
    odd = spread.copy()
    odd[:8] = [0.0, -0.0, 1e-45, -1e-45, 1.2e-38, 1e-20, -1e-20, 3.0]
    cases = [spread, -np.abs(spread), np.abs(spread), bounds, odd, odd * F32(1e30), odd * F32(1e-25), np.zeros(BLOCK, F32),
             np.full(BLOCK, 2.0 ** -101, F32), np.full(BLOCK, 2.0 ** -100, F32), np.full(BLOCK, 3e38, F32), spread[:37]]
    for bad in (np.nan, np.inf, -np.inf):
        x = spread.copy()
        x[77] = bad
        cases.append(x)
    return cases


def hexed(codes):
    return codes.tobytes().hex()


def main():
    rng = np.random.default_rng(20261130)
    check_parts()
    check_cells(rng)
    blocks = []
    with np.errstate(under="ignore", over="ignore"):
        for values in block_cases(rng):
            for square in (False, True):
                scale, codes = encode(values, square)
                again = decode(scale, codes, square)
                assert scale != scale or np.array_equal(encode(again, square)[1], codes)
                blocks.append({"square": square, "values": bits(values).tolist(), "scale": int(bits(scale)[0]), "codes": hexed(codes),
                               "decoded": bits(again).tolist()})

    n, keys = 2 * BLOCK + 100, {"lr": 0.01, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8}
    w = rng.standard_normal(n).astype(F32)
    gradients = (rng.standard_normal((5, n)) * 10.0 ** rng.uniform(-6, 0, (5, n))).astype(F32)
    m = v = encode_all(np.zeros(n, F32), True)
    b1, b2, steps, exact = F32(0.9), F32(0.95), [], w.astype(np.float64)
    for t, g in enumerate(gradients, 1):
        now_m = fma(b1, decode_all(m, False), (F32(1) - b1) * g)
        now_v = fma(b2, decode_all(v, True), (F32(1) - b2) * (g * g))
        exact -= keys["lr"] * (now_m / (1 - 0.9 ** t) / (np.sqrt(now_v / (1 - 0.95 ** t)) + keys["eps"]) + keys["weight_decay"] * exact)
        m, v = encode_all(now_m, False), encode_all(now_v, True)
        steps.append({"gradient": bits(g).tolist(), "w": exact.tolist(),
                      **{name: [{"scale": int(bits(s)[0]), "codes": hexed(c)} for s, c in x] for name, x in (("m", m), ("v", v))}})
    file = {"made_by": "tests/golden/moment_codes_reference.py", "parts": {"signed": bits(parts(False)).tolist(), "square": bits(parts(True)).tolist()},
            "blocks": blocks, "keys": [f"optimizer.{k}={x}" for k, x in keys.items()], "w": bits(w).tolist(), "steps": steps}
    lines = json.dumps(file, separators=(",", ":")).replace('{"square"', '\n{"square"').replace('{"gradient"', '\n{"gradient"')
    Path(__file__).with_name("moment_codes.json").write_text(lines + "\n")


if __name__ == "__main__":
    main()
