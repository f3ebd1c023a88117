#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Reference of weights in few bits (base/weight_codes.h), written to tests/golden/weight_codes.json.

    tests/golden/weight_codes_reference.py          (needs numpy; the tests only read the file)

Values are fp32, given by their bits. "pieces" has values, the runs of them that have no codes, the piece that a rank sends, in hex, and
what it decodes to; "shifts" has shifts of units and steps; "learned" has values, in which bins they lie, the table of learned levels from the
counts of two ranks, and the piece by these levels. The codes are held against QSDP's random-shift lattice in fp64, and the mean
over shifts against the values."""
import json
from fractions import Fraction
from pathlib import Path

import numpy as np

F32 = np.float32
BITS = {"int8": 8, "int6": 6, "int4": 4}
ROUNDS = 0xD2511F53, 0xCD9E8D57
MASK = (1 << 64) - 1


def fma(a, b, c):
    """Rounded once: a product of two fp32 is exact in fp64."""
    return F32(np.float64(a) * np.float64(b) + np.float64(c))


def bits(x):
    return np.atleast_1d(np.asarray(x, F32)).view(np.uint32)


def encode_bucket(x, coded, codec, shift):
    """(base, unit, codes) of a bucket."""
    most, codes = 2 ** BITS[codec] - 1, np.zeros(len(x), np.uint8)
    if not coded.any():
        return F32(0), F32(0), codes
    if not np.isfinite(x[coded]).all():
        return F32(np.nan), F32(np.nan), codes
    lo, hi = x[coded].min(), x[coded].max()
    with np.errstate(over="ignore"):
        spread = F32(hi - lo)
    if not np.isfinite(spread):
        return F32(np.nan), F32(np.nan), codes
    if spread < F32(2.0 ** -100):
        return lo, F32(0), codes
    unit, inverse = spread * (F32(1) / F32(most)), F32(most) / spread
    codes[coded] = np.minimum(fma(x[coded] - lo, inverse, shift).astype(np.int64), most)
    return fma(unit, F32(0.5) - shift, lo), unit, codes


def up(n):
    return (n + 15) // 16 * 16


def encode(x, coded, codec, bucket, shift):
    """A piece and what it decodes to."""
    numbers, codes, decoded = [], [], []
    for at in range(0, len(x), bucket):
        base, unit, c = encode_bucket(x[at:at + bucket], coded[at:at + bucket], codec, shift)
        numbers += [base, unit]
        codes.append(c)
        decoded.append(fma(c.astype(F32), unit, base))
    codes = np.concatenate(codes)
    packed = np.packbits(np.unpackbits(codes[:, None], axis=1, bitorder="little")[:, :BITS[codec]].reshape(-1), bitorder="little").tobytes()
    numbers = np.array(numbers, F32).tobytes()
    return numbers.ljust(up(len(numbers)), b"\0") + packed.ljust(up(len(packed)), b"\0"), np.concatenate(decoded)


BINS, GROUP, TURNS = 1024, 16, 8


def parts(x, bucket):
    """Each bucket's (lo, range), and the values' parts of it, rounded as a device rounds."""
    for at in range(0, len(x), bucket):
        v = x[at:at + bucket]
        lo, span = v.min(), F32(v.max() - v.min())
        yield lo, span, (v - lo) * (F32(1) / span)


def count(x, bucket):
    return sum(np.bincount(np.minimum((f * F32(BINS)).astype(np.int64), BINS - 1), minlength=BINS) for _, _, f in parts(x, bucket))


def fma64(a, b, c):
    """Rounded once."""
    return np.float64(float(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))))


def learn(counts, n):
    """Levels in bins: first as dense as the 3/8th power of the counts of 16 bins, then each goes to the mean of its cell."""
    counts = [np.float64(int(c)) for c in counts]
    count, twice, root = [np.float64(0)], [np.float64(0)], [np.float64(0)]  # root: of groups
    for b, c in enumerate(counts):
        count.append(count[-1] + c)
        twice.append(fma64(c, 2 * b + 1, twice[-1]))
    for b in range(0, BINS, GROUP):
        r = np.sqrt(np.sqrt(np.sqrt(count[b + GROUP] - count[b])))
        root.append(fma64(r * r, r, root[-1]))

    def to(place):
        i = int(place) if place < BINS else BINS - 1
        part, c = np.float64(place) - i, count[i + 1] - count[i]
        return fma64(part, c, count[i]), fma64(part * c, 2 * i + part, twice[i])

    level = []
    for j in range(n):
        goal = np.float64(2 * j + 1) * root[-1] / np.float64(2 * n)
        i = int(np.searchsorted(root[1:], goal, side="right"))
        level.append(F32(fma64((goal - root[i]) / (root[i + 1] - root[i]), GROUP, GROUP * i)))
    for _ in range(TURNS):
        ends = [to(F32(0))] + [to((level[j] + level[j + 1]) * F32(0.5)) for j in range(n - 1)] + [to(F32(BINS))]
        level = [F32((ends[j + 1][1] - ends[j][1]) / (2 * (ends[j + 1][0] - ends[j][0]))) if ends[j + 1][0] > ends[j][0] else level[j] for j in range(n)]
    return level


def table_of(level, shift):
    """(bounds, values), in parts of a bucket's range."""
    n = len(level)
    bounds = [F32(0)] + [fma(F32(1) - shift, level[j] - level[j - 1], level[j - 1]) / F32(BINS) for j in range(1, n)]
    values = []
    for j in range(n):
        up = j == 0 or (j < n - 1 and shift < F32(0.5))
        gap = level[j + 1] - level[j] if up else level[j] - level[j - 1]
        values.append(fma(F32(0.5) - shift, gap, level[j]) / F32(BINS))
    return np.array(bounds, F32), np.array(values, F32)


def encode_by(x, codec, bucket, table):
    bounds, values = table
    numbers, codes, decoded = [], [], []
    for lo, span, f in parts(x, bucket):
        c = (f[:, None] >= bounds[None, 1:]).sum(axis=1).astype(np.uint8)
        numbers += [lo, span]
        codes.append(c)
        decoded.append(fma(values[c], span, lo))
    codes = np.concatenate(codes)
    packed = np.packbits(np.unpackbits(codes[:, None], axis=1, bitorder="little")[:, :BITS[codec]].reshape(-1), bitorder="little").tobytes()
    numbers = np.array(numbers, F32).tobytes()
    return numbers.ljust(up(len(numbers)), b"\0") + packed.ljust(up(len(packed)), b"\0"), np.concatenate(decoded)


def learned(rng):
    """Cases, and that levels do what they are for: fewer squares than even ones, and a mean over shifts that is the value itself."""
    cases = []
    for codec in ("int6", "int4"):
        for kind in ("normal", "two hills"):
            x = rng.normal(size=256).astype(F32) * F32(0.02)
            if kind == "two hills":
                x += np.where(np.arange(256) % 3, F32(0.3), F32(-0.3))
            first, second = count(x, 64), count(x[::-1].copy() * F32(3), 128)
            level = learn(first + second, 2 ** BITS[codec])
            shift = F32((int(rng.integers(1 << 23)) + 0.5) / (1 << 23))
            piece, decoded = encode_by(x, codec, 64, table_of(level, shift))
            cases.append({"codec": codec, "bucket": 64, "shift": int(bits(shift)[0]), "values": bits(x).tolist(),
                          "counts": [first.tolist(), second.tolist()], "table": np.concatenate([bits(t) for t in table_of(level, shift)]).tolist(),
                          "piece": piece.hex(), "decoded": bits(decoded).tolist()})
    x = rng.normal(size=4096).astype(F32)
    for codec, least in (("int4", 0.7), ("int6", 0.75)):
        level, squares, mean, shifts = learn(count(x, 1024), 2 ** BITS[codec]), [0, 0], np.zeros(len(x)), (np.arange(64) + 0.5) / 64
        for shift in shifts.astype(F32):
            by = encode_by(x, codec, 1024, table_of(level, shift))[1]
            even = encode(x, np.ones(len(x), bool), codec, 1024, shift)[1]
            squares = [s + float(((y.astype(np.float64) - x) ** 2).sum()) for s, y in zip(squares, (by, even))]
            mean += (by.astype(np.float64) - x) / len(shifts)
        print(codec, "squares by learned levels, of those by even ones:", squares[0] / squares[1])
        assert squares[0] < least * squares[1], (codec, squares)
        assert abs(mean).mean() < 0.02 * x.std(), (codec, abs(mean).mean())
    return cases


def philox(key, counter):
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = ROUNDS[0] * c[0], ROUNDS[1] * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def mix(z):
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def shift_of(seed, step, unit):
    h = 0xCBF29CE484222325
    for b in b"weight codes":
        h = (h ^ b) * 0x100000001B3 & MASK
    key = mix(h ^ mix((seed + 0x9E3779B97F4A7C15) & MASK))
    word = philox((key & 0xFFFFFFFF, key >> 32), (unit, 0, step & 0xFFFFFFFF, step >> 32))[0]
    return F32((word >> 9) + 0.5) * F32(2.0 ** -23)


def check_lattice(rng):
    """Q(x) = unit round((x - lo - r) / unit) + lo + r with one r in (-unit/2, unit/2], and its mean over r is x."""
    x = rng.normal(size=512).astype(F32) * F32(0.02)
    mean, shifts = np.zeros(len(x)), (np.arange(4096) + 0.5) / 4096
    for shift in shifts.astype(F32):
        base, unit, codes = encode_bucket(x, np.ones(len(x), bool), "int4", shift)
        got = fma(codes.astype(F32), unit, base).astype(np.float64)
        lo, u = np.float64(x.min()), np.float64(unit)
        r = (0.5 - np.float64(shift)) * u
        t = (x.astype(np.float64) - lo - r) / u
        edge = np.abs(t - np.floor(t) - 0.5) < 1e-4  # there fp32 and fp64 may round to different sides
        want = u * np.floor(t + 0.5) + lo + r
        assert np.allclose(got[~edge], want[~edge], atol=1e-6 * u + 1e-8), np.abs(got - want)[~edge].max()
        assert np.abs(got - x).max() <= u / 2 * 1.0001
        mean += got / len(shifts)
    assert np.abs(mean - x).max() < u / 1000, np.abs(mean - x).max() / u


def main():
    rng = np.random.default_rng(20230206)
    check_lattice(rng)
    pieces, kinds = [], ["plain", "outlier", "equal", "tiny", "nan", "infinite", "wide", "negative zero", "far from 0"]
    for i, kind in enumerate(kinds * 3):
        codec, bucket = list(BITS)[i // len(kinds)], (64, 128)[i % 2]
        n = bucket * 2 + (0, 17, 64)[i % 3]
        x, coded = rng.normal(size=n).astype(F32), np.ones(n, bool)
        if kind == "outlier":
            x[5] = 1e4
        if kind == "equal":
            x[:bucket] = F32(-0.3)
        if kind == "tiny":
            x *= F32(2.0 ** -110)
        if kind == "nan":
            x[bucket + 3] = np.nan
        if kind == "infinite":
            x[7] = -np.inf
        if kind == "wide":
            x[1], x[2] = 3e38, -3e38
        if kind == "negative zero":
            x[:bucket] = np.where(np.arange(bucket) % 2, F32(-0.0), F32(1))
        if kind == "far from 0":
            x = x * F32(1e-3) + F32(7)
        runs = [] if i % 3 == 0 else [[0, 3], [bucket - 5, bucket + 9], [2 * bucket - 1, n]] if i % 3 == 1 else [[bucket, 2 * bucket]]
        for begin, end in runs:
            coded[begin:end] = False
        shift = F32((int(rng.integers(1 << 23)) + 0.5) / (1 << 23))
        piece, decoded = encode(x, coded, codec, bucket, shift)
        pieces.append({"kind": kind, "codec": codec, "bucket": bucket, "shift": int(bits(shift)[0]), "runs": runs,
                       "values": bits(x).tolist(), "piece": piece.hex(), "decoded": bits(decoded).tolist()})
    shifts = [{"seed": s, "step": t, "unit": u, "shift": int(bits(shift_of(s, t, u))[0])}
              for s, t, u in ((0, 0, 0), (42, 1, 0), (42, 1, 1), (42, 2, 1), (7, 123456789012, 33))]
    Path(__file__).with_name("weight_codes.json").write_text(json.dumps({"pieces": pieces, "shifts": shifts, "learned": learned(rng)}) + "\n")


if __name__ == "__main__":
    main()
