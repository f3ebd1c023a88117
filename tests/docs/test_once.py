#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What base/ has once is not written out again: constants of hashes (base/hash.h), arrays that grow (base/vec.h, base/buf.h).

Kernels of a GPU have the constants again, as functions of a host are not theirs; base/rng.h tells its format in a comment."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("base", "proto", "state", "daemon", "ctl", "worker")
HASH = r"cbf29ce484222325|0*100000001b3|811c9dc5|01000193|9e3779b97f4a7c15|bf58476d1ce4e5b9|94d049bb133111eb|d6e8feb86659fd93|" \
       r"ff51afd7ed558ccd|c4ceb9fe1a85ec53"  # FNV-1a of 64 and 32 bits, splitmix64, MurmurHash3
RULES = [  # what, pattern, files that have it
    ("a hash of its own; base/hash.h has them", re.compile(rf"\b0x(?:{HASH})[ul]*\b|\b(?:2166136261|16777619)[ul]*\b", re.I),
     {"base/hash.h", "worker/device/cuda/kernel.cuh", "worker/device/cuda/sums.cu"}),
    ("an array that grows by itself; base/vec.h is for that", re.compile(r"\b(?:realloc|reallocarray)\("), {"base/vec.c", "base/buf.c"}),
]


def again(path, text):
    """(line, what) of a file."""
    bare = re.sub(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.S)
    return [(bare.count("\n", 0, m.start()) + 1, what) for what, pattern, files in RULES if path not in files for m in pattern.finditer(bare)]


def main():
    print("1..2")
    bad = "uint64_t h = 0xCBF29CE484222325u;\n\nh *= UINT64_C(0x9e3779b97f4a7c15);\nuint32_t i = 2166136261;\nx = realloc(x, n);\n"
    found = [line for line, _ in again("daemon/x.c", bad)] == [1, 3, 4, 5] and not again("base/hash.h", bad[:90]) and \
        not again("base/x.h", '/* h = 0xcbf29ce484222325 */\nint my_realloc(x);\nconst char *s = "realloc(";\n')
    print(f"{'ok' if found else 'not ok'} 1 - a hash and a growing array of its own are found")
    wrong = [f"{f.relative_to(ROOT)}:{line}: {what}" for folder in FOLDERS for f in sorted((ROOT / folder).rglob("*"))
             if f.suffix in (".c", ".h", ".cu", ".cuh", ".cpp") for line, what in again(str(f.relative_to(ROOT)), f.read_text())]
    print(f"{'not ok' if wrong else 'ok'} 2 - no file has one")
    for line in wrong:
        print(f"# {line}")
    return bool(wrong) or not found


if __name__ == "__main__":
    sys.exit(main())
