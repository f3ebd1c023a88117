#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the kernels that move memory are made of: how many instructions each has for an element of its rows, and how many of its
loads and stores of global memory take 16 bytes at a time. From the machine code, so of what the assembler made.

    kernel_code.py CUBIN...            exit code 1 where one has more instructions, or fewer wide accesses, than kernel_code.tsv allows
    kernel_code.py --write CUBIN...    writes that file: a quarter more instructions than there are, as compilers differ

A kernel has all of its paths in this count: the wide one, that of rows which do not lie on 16 bytes, and the tail. An instruction
takes 16 bytes, its number is in the lower 9 bits; the width of a load or store is in bits 73 to 75."""
import re
import struct
import sys
from pathlib import Path

BOUNDS = Path(__file__).with_suffix(".tsv")
LOAD, STORE, WIDE = 0x181, 0x186, 6
NAMES = {"add", "add_bias", "bias_wgrad", "scale", "softcap", "softcap_dgrad", "rope", "rmsnorm", "add_rmsnorm", "rmsnorm_dgrad", "rmsnorm_dgain", "swiglu", "swiglu_dgrad", "clamped_swiglu", "clamped_swiglu_dgrad", "add_bias_grouped", "bias_wgrad_grouped", "loss", "loss_finish", "loss_stats", "embed",
         "embed_wgrad", "update", "bound_sum", "all_largest", "column_largest", "codes", "line_codes", "codes_across", "row_values", "blocks", "blocks_across", "cast", "scatter_rows", "combine_rows",
         "combine_dweights"}
SLACK = 1.25


def sections(data):
    """Names and contents of a 64-bit ELF file's sections."""
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    for name, _, _, _, at, length in heads:
        begin = heads[names][4] + name
        yield data[begin:data.index(b"\0", begin)].decode(), data[at:at + length]


def kernel(section):
    """(name, type) of a kernel's code, mangled; None: of none that is looked at. One for rows apart (false) is another kernel."""
    found = re.match(r"\.text\._Z(\d+)(\w+)", section)
    name, rest = (found[2][:int(found[1])], found[2][int(found[1]):]) if found else ("", "")
    of = re.match(r"I((?:f|4bf16|S\d*_)+?)((?:Lb[01]E|Li\d+E)*)E", rest)
    if not of or name not in NAMES:
        return None
    kinds = re.findall(r"f|4bf16|S", of[1])  # S: the one before again
    return (name + of[2].replace("Lb", " ").replace("Li", " ").replace("E", ""), "/".join("f32" if k == "f" else "bf16" for k in kinds))


def count(code):
    """(instructions, loads, wide loads, stores, wide stores)"""
    words = [struct.unpack_from("<QQ", code, at) for at in range(0, len(code), 16)]
    ops = [(low & 0x1FF, high >> 9 & 7) for low, high in words]
    last = max((i for i, op in enumerate(ops) if op[0] not in (0x147, 0x118)), default=0)  # behind it only BRA to itself and NOP
    return (last + 1, *(sum(op == what and width in widths for op, width in ops) for what in (LOAD, STORE) for widths in (range(8), (WIDE,))))


def elements(kind):
    """In 16 bytes; of an update of the weights, which takes fp32 gradients, four."""
    return 8 if kind == "bf16" else 4


def main(arguments):
    write, paths = arguments[:1] == ["--write"], [a for a in arguments if a != "--write"]
    found = {kernel(name): count(code) for path in paths for name, code in sections(Path(path).read_bytes()) if kernel(name)}
    if write:
        rows = [f"{name}\t{kind}\t{n / elements(kind) * SLACK:.0f}\t{wide_loads}\t{wide_stores}\n"
                for (name, kind), (n, _, wide_loads, _, wide_stores) in sorted(found.items())]
        BOUNDS.write_text("# kernel\ttype\tinstructions an element at most\t16-byte loads at least\t16-byte stores at least\n" + "".join(rows))
    bad = 0
    bounds = {tuple(row[:2]): [float(v) for v in row[2:]] for row in (line.split("\t") for line in BOUNDS.read_text().splitlines() if line[0] != "#")}
    for key in sorted(set(bounds) | set(found)):
        n, loads, wide_loads, stores, wide_stores = found.get(key, (0, 0, 0, 0, 0))
        most, least_loads, least_stores = bounds.get(key, (0, 0, 0))
        each = n / elements(key[1])
        fine = key in found and each <= most and wide_loads >= least_loads and wide_stores >= least_stores
        bad += not fine
        print(f"{'' if fine else 'BAD '}{key[0]} {key[1]}: {each:.0f} of {most:.0f} instructions an element, loads {wide_loads} of {loads} wide, "
              f"stores {wide_stores} of {stores}" + ("" if key in found else ": not there") + ("" if key in bounds else ": no bounds, see --write"))
    print(f"{len(found) - bad} of {len(bounds)} kernels as they should be")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
