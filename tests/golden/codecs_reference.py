#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Reference of the codecs of gradients (base/codecs.h), written to tests/golden/codecs.json.

    tests/golden/codecs_reference.py          (needs numpy; the tests only read the file)

"cases" has codes and sums of values, "steps" has five steps of LoCo with its error, "replica_steps" what three replicas have of their sum. fp32 values and codes are the bytes in memory, in hex.

Codes of e4m3 are found among the type's values, and random words are Philox's, written out here. LoCo's identity, sum of decoded = sum of
values - (last error - first error) / (1 - a), is checked in fp64, where no error is rounded."""
import json
from pathlib import Path

import numpy as np

F32, BUCKET, EXACT = np.float32, 1024, np.longdouble
MAGIC = F32(12582912)  # 1.5 * 2^23
INT = {"int8": 128, "int4": 8, "loco": 8}


def fma(a, b, c):
    """Rounded once, but for a chance of 2^-40: 64 bits hold the product."""
    return F32(EXACT(a) * EXACT(b) + EXACT(c))


def bits(x):
    return np.asarray(x, F32).view(np.uint32)


def philox(key, counter, hi):
    """Four words of each counter."""
    lo = np.asarray(counter, np.uint64)
    low = np.uint64(0xFFFFFFFF)
    c = [lo & low, lo >> np.uint64(32), np.full_like(lo, hi & 0xFFFFFFFF), np.full_like(lo, hi >> 32)]
    k = list(key)
    for _ in range(10):
        p, q = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [q >> np.uint64(32) ^ c[1] ^ np.uint64(k[0]), q & low, p >> np.uint64(32) ^ c[3] ^ np.uint64(k[1]), p & low]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, axis=1)


def offsets(key, step, first, n):
    i = np.arange(first, first + n)
    words = philox(key, i // 8, step)[np.arange(n), i // 2 % 4]
    r = np.where(i % 2, words >> np.uint64(16), words & np.uint64(0xFFFF)).astype(F32)
    return (r - F32(32767.5)) / F32(65536)


def scale_of(codec, largest, stochastic=False):
    if not largest < 2.0 ** 126:  # a NaN as well
        return F32(np.nan)
    if largest < 2.0 ** -100:
        return F32(0)
    if codec == "fp8":
        return F32(2.0 ** np.ceil(np.log2(np.float64(largest) / 448)))
    return F32(largest) / F32(INT[codec] - stochastic)


def e4m3_values():
    code = np.arange(127)
    return np.where(code < 8, code * 2.0 ** -9, (8 + code % 8) * 2.0 ** (code // 8 - 10))


def e4m3(z):
    """The nearest codes, of two equally near ones the even one."""
    table, a = e4m3_values(), np.minimum(np.abs(z.astype(np.float64)), 448)
    near = np.abs(a[:, None] - table[None])
    best = near.min(axis=1, keepdims=True)
    ties = near == best
    first = np.argmax(ties, axis=1)
    code = np.where((ties.sum(axis=1) > 1) & (first % 2 == 1), first + 1, first)
    return (code | np.where(np.signbit(z), 128, 0)).astype(np.uint8)


def bf16(x):
    b = bits(x)
    return ((b + 0x7FFF + (b >> 16 & 1)) >> 16).astype(np.uint16)


def integers(codec, x, scale, offset=None):
    top = INT[codec]
    z = fma(x, F32(1) / scale, MAGIC) if offset is None else F32(fma(x, F32(1) / scale, offset) + MAGIC)
    return np.clip(z - MAGIC, -top, top - 1).astype(np.int8)


def packed(codes):
    """Two codes a byte."""
    c = np.append(codes, np.zeros(len(codes) % 2, np.int8)).view(np.uint8) & 15
    return (c[0::2] | c[1::2] << 4).astype(np.uint8)


def to16(data):
    return data + bytes(-len(data) % 16)


def largest_of(x):
    return F32(np.nan) if np.isnan(x).any() else np.max(np.abs(x), initial=F32(0))


def encode(codec, x, largest=None, random=None):
    """(bytes, decoded) of one piece. random: (key, step, place of x[0])."""
    if codec == "f32":
        return to16(x.tobytes()), x
    if codec == "bf16":
        return to16(bf16(x).tobytes()), (bf16(x).astype(np.uint32) << 16).view(F32)
    scales, codes, decoded = [], [], []
    for k, begin in enumerate(range(0, len(x), BUCKET)):
        v = x[begin:begin + BUCKET]
        s = scale_of(codec, largest_of(v) if largest is None else largest[k], random is not None)
        offset = None if random is None else offsets(random[0], random[1], random[2] + begin, len(v))
        if not s > 0:
            q = np.zeros(len(v), np.uint8 if codec == "fp8" else np.int8)
        else:
            q = e4m3(v * (F32(1) / s)) if codec == "fp8" else integers(codec, v, s, offset)
        value = np.where(q & 128, -1, 1) * e4m3_values()[q & 127] if codec == "fp8" else q
        scales.append(s)
        codes.append(q)
        decoded.append(value.astype(F32) * s)
    codes = np.concatenate(codes)
    data = (codes if codec in ("fp8", "int8") else packed(codes)).tobytes()
    return to16(np.array(scales, F32).tobytes()) + to16(data), np.concatenate(decoded)


def sum_of(codec, data, n, pieces):
    """The sum in the order of pieces, from their bytes; each product and sum rounded once together."""
    total, size = None, len(data) // pieces
    for p in range(pieces):
        piece = data[p * size:(p + 1) * size]
        if codec in ("f32", "bf16"):
            v = np.frombuffer(piece, F32)[:n] if codec == "f32" else (np.frombuffer(piece, np.uint16)[:n].astype(np.uint32) << 16).view(F32)
            total = v if total is None else total + v
            continue
        buckets = -(-n // BUCKET)
        scales, codes = np.frombuffer(piece, F32)[:buckets], np.frombuffer(piece, np.uint8)[-(-buckets * 4 // 16) * 16:]
        if codec == "fp8":
            q = np.where(codes & 128, -1, 1)[:n] * e4m3_values()[codes[:n] & 127]
        elif codec == "int8":
            q = codes.view(np.int8)[:n]
        else:
            q = np.stack([codes & 15, codes >> 4], axis=1).reshape(-1)[:n].astype(np.int8)
            q = (q ^ 8) - 8
        s = np.repeat(scales, BUCKET)[:n]
        total = q.astype(F32) * s if total is None else fma(q.astype(F32), s, total)
    return total


def loco(x, scales, codes, decay):
    """One piece of one step: (bytes, decoded, scales and codes of the error that is kept)."""
    n, data, decoded, kept_scales, kept = len(x), [], [], [], []
    s_all = []
    for k, begin in enumerate(range(0, n, BUCKET)):
        at = slice(begin, min(begin + BUCKET, n))
        c, t = codes[at].astype(F32), scales[k]
        h = fma(c, t, x[at])
        s = scale_of("loco", largest_of(h))
        q = integers("loco", h, s).astype(F32) if s > 0 else np.zeros(len(h), F32)
        e = fma(c, F32(decay) * t, (F32(1) - F32(decay)) * fma(-q, s, h))
        most = largest_of(e)
        now = most / F32(127) if 2.0 ** -100 <= most < 2.0 ** 126 else F32(0)
        kept.append(np.clip(fma(e, F32(1) / now, MAGIC) - MAGIC, -127, 127).astype(np.int8) if now > 0 else np.zeros(len(h), np.int8))
        kept_scales.append(now)
        s_all.append(s)
        data.append(q.astype(np.int8))
        decoded.append(q * s)
    out = to16(np.array(s_all, F32).tobytes()) + to16(packed(np.concatenate(data)).tobytes())
    return out, np.concatenate(decoded), np.array(kept_scales, F32), np.concatenate(kept)


def check_identity(rng):
    """Sum of decoded = sum of values - (last - first error) / (1 - a), whatever a is, with errors that are not rounded."""
    for decay in (0, 0.5, 0.8):
        e, sent, values, first = rng.standard_normal(300), 0, 0, None
        first = e
        for _ in range(40):
            g = rng.standard_normal(300)
            h = g + e
            s = np.abs(h).max() / 8
            d = np.clip(np.rint(h / s), -8, 7) * s
            e = decay * e + (1 - decay) * (h - d)
            sent, values = sent + d, values + g
        assert np.abs(sent - values + (e - first) / (1 - decay)).max() < 1e-12


def replicas_sum(codec, x, own, second, decay):
    """What all replicas have of x (replicas, values): each codes its values, a piece for each; pieces are summed in the replicas' order, and coded
    again. own (of replica and piece) and second (of piece): LoCo's errors, which are replaced."""
    count, n = len(x), len(x[0]) // len(x)
    whole = []
    for p in range(count):
        sent = b""
        for r in range(count):
            piece = x[r][p * n:(p + 1) * n]
            if codec == "loco":
                data, _, *own[r, p] = loco(piece, *own[r, p], decay)
            else:
                data = encode(codec, piece)[0]
            sent += data
        total = sum_of(codec, sent, n, count)
        if codec == "loco":
            data, _, *second[p] = loco(total, *second[p], decay)
        else:
            data = encode(codec, total)[0]
        whole.append(sum_of(codec, data, n, 1))
    return np.concatenate(whole)


def replicas_steps(rng, count, n, decay):
    """Three steps of each codec."""
    out = []
    for codec in ("f32", "bf16", "fp8", "int8", "int4", "loco"):
        own = {(r, p): (np.zeros(-(-n // BUCKET), F32), np.zeros(n, np.int8)) for r in range(count) for p in range(count)}
        second = [(np.zeros(-(-n // BUCKET), F32), np.zeros(n, np.int8)) for _ in range(count)]
        for _ in range(3 if codec == "loco" else 1):
            x = (rng.standard_normal((count, count * n)) * 10.0 ** rng.uniform(-3, 0, (count, count * n))).astype(F32)
            out.append({"replicas": codec, "values": hexed(x), "sum": hexed(replicas_sum(codec, x, own, second, decay))})
    return out


def hexed(data):
    return (data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()).hex()


def main():
    rng = np.random.default_rng(20261130)
    check_identity(rng)
    n, pieces, key, step = 1061, 2, (0x12345678, 0x9ABCDEF0), 0x100000003
    spread = (rng.standard_normal(n * pieces) * 10.0 ** rng.uniform(-5, 0, n * pieces)).astype(F32)
    spread[:8] = [0.0, -0.0, 1e-45, -1e-45, 1.2e-38, 448, -224, 3.5]
    ties = (np.arange(n * pieces) % 65 - 32).astype(F32) / 2
    odd = spread[:n * pieces].copy()
    odd[BUCKET:n] = 0
    odd[n:n + BUCKET] *= F32(1e-31)
    odd[n + BUCKET + 5] = np.inf
    cases = []
    for name, x in (("spread", spread), ("ties", ties), ("odd", odd)):
        for codec in ("f32", "bf16", "fp8", "int8", "int4") if name == "spread" else ("fp8", "int8", "int4"):
            for stochastic in (False, True) if codec in INT else (False,):
                for given in (False, True) if name == "ties" else (False,):
                    largest = np.array([8, 8, 16, 4], F32) if given else None
                    data = [encode(codec, x[p * n:(p + 1) * n], None if largest is None else largest[2 * p:2 * p + 2],
                                   (key, step, p * n) if stochastic else None) for p in range(pieces)]
                    total = sum_of(codec, b"".join(d[0] for d in data), n, pieces)
                    assert np.array_equal(sum_of(codec, data[0][0], n, 1), data[0][1], equal_nan=True)
                    cases.append({"codec": codec, "values": name, "stochastic": stochastic, "codes": hexed(b"".join(d[0] for d in data)),
                                  "sum": hexed(total), **({"largest": hexed(largest)} if given else {})})
    steps, decay = [], 0.8
    errors = [(np.zeros(2, F32), np.zeros(n, np.int8)) for _ in range(pieces)]
    for t in range(5):
        x = (rng.standard_normal(n * pieces) * 10.0 ** rng.uniform(-3, 0, n * pieces)).astype(F32)
        out = [loco(x[p * n:(p + 1) * n], *errors[p], decay) for p in range(pieces)]
        errors = [(o[2], o[3]) for o in out]
        data = b"".join(o[0] for o in out)
        steps.append({"values": hexed(x), "codes": hexed(data), "sum": hexed(sum_of("loco", data, n, pieces)),
                      "error": hexed(b"".join(to16(s.tobytes()) + to16(c.tobytes()) for s, c in errors))})
    file = {"made_by": "tests/golden/codecs_reference.py", "n": n, "pieces": pieces, "key": list(key), "step": step, "decay": decay,
            "replica_n": 132, "replica_steps": replicas_steps(rng, 3, 132, decay),
            "values": {"spread": hexed(spread), "ties": hexed(ties), "odd": hexed(odd)}, "cases": cases, "steps": steps}
    lines = json.dumps(file, separators=(",", ":")).replace('{"codec"', '\n{"codec"').replace('{"values":"', '\n{"values":"').replace('{"replicas"', '\n{"replicas"')
    Path(__file__).with_name("codecs.json").write_text(lines + "\n")


if __name__ == "__main__":
    main()
