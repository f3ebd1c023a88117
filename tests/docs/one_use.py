#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Static functions that are named once beside their definition, and those of them with at most five lines, by folder:
`one_use.py` prints a table, `one_use.py PATH...` those of these files or folders."""
import collections
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("base", "proto", "state", "daemon", "ctl", "worker")
SHORT = 5  # lines between the braces
BARE = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)+\'|//[^\n]*|/\*.*?\*/', re.S)
DEFINITION = re.compile(r"^static\b(?!\s+inline)[^;{}=()]*?\b(\w+)\((?:[^;{}()]|\([^()]*\))*\)\s*\n\{\n(.*?)^\}", re.M | re.S)
WORD = re.compile(r"[A-Za-z_]\w*")


def blank(text):
    """The text without comments and strings, line by line as before."""
    return BARE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def functions(text):
    """(name, line, lines of its body, how often it is named beside its definition and its declarations, whether every use is a call)"""
    text = blank(text)
    defined = list(DEFINITION.finditer(text))
    names = collections.Counter(WORD.findall(text))
    for m in defined:
        name, body = m[1], m[2]
        declared = len(re.findall(r"^static\b[^;{}=()]*?\b%s\((?:[^;{}()]|\([^()]*\))*\)\s*;" % name, text, re.M))
        calls = len(re.findall(r"\b%s\s*\(" % name, text)) - 1 - declared
        uses = names[name] - 1 - declared
        yield name, text.count("\n", 0, m.start()) + 1, body.count("\n"), uses, calls == uses


def sources():
    return {str(f.relative_to(ROOT)): f.read_text() for folder in FOLDERS for f in sorted((ROOT / folder).rglob("*.c"))}


def folder_of(path):
    parts = path.split("/")[:-1]
    return "/".join(parts[:2])


def count(files):
    """{folder: [static functions, used once, used once and short]}"""
    table = collections.defaultdict(lambda: [0, 0, 0])
    for path, text in files.items():
        for _, _, lines, uses, _ in functions(text):
            row = table[folder_of(path)]
            row[0] += 1
            row[1] += uses == 1
            row[2] += uses == 1 and lines <= SHORT
    return table


def main():
    wanted = sys.argv[1:]
    if wanted:
        for path, text in sources().items():
            if any(path == w or path.startswith(w.rstrip("/") + "/") for w in wanted):
                for name, line, lines, uses, called in functions(text):
                    if uses == 1 and lines <= SHORT:
                        print(f"{path}:{line}: {name}, {lines} lines{'' if called else ', not called but passed on'}")
        return 0
    table = count(sources())
    total = [sum(c) for c in zip(*table.values())]
    print(f"{'':22} static  once        once, at most {SHORT} lines")
    for folder, (n, once, short) in [*sorted(table.items()), ("all", total)]:
        print(f"{folder:22} {n:6} {once:5} {100 * once // n:3} %  {short:4} {100 * short // n:3} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
