#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A plug-in of before is refused, not called with other arguments: where the declarations of a plug-in's header are not
those of its number any more, the number is raised. Comments and line breaks do not count; the comment behind the number has
the hash of its declarations."""
import hashlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ABIS = {"worker/device/device.h": "TITAN_DEVICE_ABI", "worker/comm/comm.h": "TITAN_COMM_ABI"}
BESIDES = {"worker/device/device.h": "worker/device/operations.h"}  # declarations that count with a header's own


def declarations(text, name, besides=""):
    """(the number, a hash of all else)"""
    text += besides
    bare = re.sub(r"/\*.*?\*/|//[^\n]*|\\\n", " ", text, flags=re.S)
    number = re.search(rf"#define {name} (\d+)", bare)
    words = re.findall(r"\w+|[^\w\s]", bare.replace(number[0], ""))
    return int(number[1]), hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]


def faults(path, text, name, besides=""):
    """What is wrong in a header: the hash behind its number is not that of its declarations."""
    number, has = declarations(text, name, besides)
    had = re.search(rf"#define {name} \d+ /\* declarations (\w*)", text)
    if not had or had[1] != has:
        return [f"{path}: its declarations have changed: raise {name}, {number} as yet, and write \"declarations {has}\" behind it (docs/plan.md)"]
    return []


def main():
    print("1..2")
    one, same, other = (declarations(text, "ABI") for text in (
        "#define ABI 1\nint f(int a); /* a */\n", "#define ABI 2 /* declarations 0 */\nint f(\n    int a); // b\n", "#define ABI 1\nint f(int a, int b);\n"))
    found = one[0] == 1 and same == (2, one[1]) and other[1] != one[1]
    text = f"#define ABI 1 /* declarations {one[1]} */\nint f(int a);\n"
    found = found and not faults("x.h", text, "ABI") and faults("x.h", text.replace("a)", "a, int b)"), "ABI") and faults("x.h", "#define ABI 1\nint f(int a);\n", "ABI")
    print(f"{'ok' if found else 'not ok'} 1 - another argument is found, another comment is none")
    besides = {path: (ROOT / other).read_text() for path, other in BESIDES.items()}
    wrong = [line for path, name in ABIS.items() for line in faults(path, (ROOT / path).read_text(), name, besides.get(path, ""))]
    print(f"{'not ok' if wrong else 'ok'} 2 - headers of plug-ins have the numbers of their declarations")
    for line in wrong:
        print(f"# {line}")
    return bool(wrong) or not found


if __name__ == "__main__":
    sys.exit(main())
