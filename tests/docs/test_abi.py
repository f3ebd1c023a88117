#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A plug-in of before is refused, not called with other arguments: where the declarations of a plug-in's header are not
those of its number any more, the number is raised. Comments and line breaks do not count."""
import hashlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ABIS = {  # header: the number's name, the number, its declarations
    "worker/device/device.h": ("TITAN_DEVICE_ABI", 13, "aec8e0884caf4b22"),
    "worker/comm/comm.h": ("TITAN_COMM_ABI", 6, "76c525dc45db15cb"),
}


def declarations(text, name):
    """(the number, a hash of all else)"""
    bare = re.sub(r"/\*.*?\*/|//[^\n]*|\\\n", " ", text, flags=re.S)
    number = re.search(rf"#define {name} (\d+)", bare)
    words = re.findall(r"\w+|[^\w\s]", bare.replace(number[0], ""))
    return int(number[1]), hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]


def main():
    print("1..2")
    one, same, other = (declarations(text, "ABI") for text in (
        "#define ABI 1\nint f(int a); /* a */\n", "#define ABI 2\nint f(\n    int a); // b\n", "#define ABI 1\nint f(int a, int b);\n"))
    found = one[0] == 1 and same == (2, one[1]) and other[1] != one[1]
    print(f"{'ok' if found else 'not ok'} 1 - another argument is found, another comment is none")
    wrong = []
    for path, (name, number, had) in ABIS.items():
        has = declarations((ROOT / path).read_text(), name)
        if has[1] != had and has[0] <= number:
            wrong.append(f"{path}: its declarations have changed: raise {name}, to {number + 1} (docs/plan.md)")
        if has != (number, had):
            wrong.append(f"{path}: {name} {has[0]} has the declarations {has[1]}: write that into {Path(__file__).name}")
    print(f"{'not ok' if wrong else 'ok'} 2 - headers of plug-ins have the numbers of their declarations")
    for line in wrong:
        print(f"# {line}")
    return bool(wrong) or not found


if __name__ == "__main__":
    sys.exit(main())
