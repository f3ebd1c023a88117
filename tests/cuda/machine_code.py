#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""machine_code.py CUBIN...: what the kernels of attention_hopper.cu and matmul_grouped_hopper.cu are made of, for sm_90a.

Each has as many products of tensor cores as its tiles need, and copies by the tensor memory accelerator; no sum goes to
memory, of one kernel some addresses. An instruction is 16 bytes, its number the lower 9 bits. Exit code 1: some kernel has others."""
import re
import struct
import sys
from pathlib import Path

NUMBERS = {0x1F0: "HGMMA", 0x1B4: "UTMALDG", 0x183: "LDL", 0x187: "STL"}
DEPTH = 16  # of a product
KERNELS = 18 + 2 + 6
ADDRESSES = 20  # instructions that may keep those of hopper_gradient in memory


def sections(data):
    """Names and contents of a 64-bit ELF file's sections."""
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    for name, _, _, _, at, length in heads:
        begin = heads[names][4] + name
        yield data[begin : data.index(b"\0", begin)].decode(), data[at : at + length]


def products(kernel, d, dv):
    """The products of a kernel: of scores along a head, of sums along a tile's rows."""
    if kernel == "hopper_grouped":  # of a stage; forward and dgrad have narrower tiles, too
        return (2 if d < 2 else 1) * 64 // DEPTH
    if kernel == "hopper_forward":  # the first tile, one of the loop, the last sums
        return 2 * d // DEPTH + 2 * 128 // DEPTH
    if kernel == "hopper_query_gradient":
        return d // DEPTH + dv // DEPTH + 64 // DEPTH
    if kernel == "hopper_gradient":  # scores of the first tile; of the loop all five, of which the shares again behind it
        return 2 * (d // DEPTH + dv // DEPTH) + 2 * 64 // DEPTH + 2 * 128 // DEPTH
    return d // DEPTH + dv // DEPTH + 2 * (32 if d > 128 else 64) // DEPTH


def main(paths):
    bad = kernels = 0
    for name, code in (section for path in paths for section in sections(Path(path).read_bytes())):
        found = re.match(r"\.text\.\w*?\d(hopper_(?:forward|query_gradient|key_gradient|gradient))ILi(\d+)ELi(\d+)ELb(\d)E", name) or re.match(
            r"\.text\.\w*?\d(hopper_grouped)ILi(\d)E(f|4bf16)", name)
        if not found:
            continue
        kernels += 1
        counts = dict.fromkeys(NUMBERS.values(), 0)
        for (word,) in struct.iter_unpack("<Q8x", code):
            if word & 0x1FF in NUMBERS:
                counts[NUMBERS[word & 0x1FF]] += 1
        kernel, d = found[1], int(found[2])
        dv, kind = (0, found[3]) if kernel == "hopper_grouped" else (int(found[3]), "masked" if found[4] == "1" else "causal")
        want = products(kernel, d, dv)
        right = counts["HGMMA"] == want and counts["UTMALDG"] > 0
        right = right and counts["LDL"] + counts["STL"] <= (ADDRESSES if kernel == "hopper_gradient" else 0)
        bad += not right
        print("ok" if right else f"not ok, {want} products are needed:", kernel, d, dv, kind, counts)
    if kernels != KERNELS:
        print(f"not ok: {kernels} kernels, not {KERNELS}")
    return int(bad > 0 or kernels != KERNELS)


sys.exit(main(sys.argv[1:]))
