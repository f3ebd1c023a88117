#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Section dividers of the sources: one line of 120 columns, /* --- name ------ */. clang-format leaves such lines alone
(CommentPragmas in .clang-format); one that it has broken into two is mended.

    dividers.py            write them all as they should be (again: nothing changes)
    dividers.py --check    name those that are not; exit code 1
"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = 120
# A divider, whole or broken: behind the name only dashes, and on further lines only dashes and the star.
DIVIDER = re.compile(r"^/\* --- (?P<name>[^\n]*?)[ -]*(?:\n(?: \*(?!/))?[ -]*)*\*/[ ]*$", re.M)

# One that goes on with a text: a divider and a comment.
HEADED = re.compile(r"^/\* --- (?P<name>[^\n]*?)[ -]*\n(?: \*\n)? \* (?P<text>[^ \n-])", re.M)


def line(name):
    text = f"/* --- {name} "
    return text + "-" * max(3, COLUMNS - len(text) - 3) + " */"


def mend(text):
    text = DIVIDER.sub(lambda m: line(m["name"]) if m["name"] else m[0], text)
    return HEADED.sub(lambda m: m[0] if "*/" in m["name"] else line(m["name"]) + "\n\n/* " + m["text"], text)


def sources():
    listed = subprocess.run(["git", "ls-files", "*.c", "*.h", "*.cu", "*.cuh", "*.cpp"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [ROOT / f for f in listed.stdout.split()]


def main():
    check, wrong = sys.argv[1:] == ["--check"], 0
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    for path in sources():
        text = path.read_text()
        mended = mend(text)
        if mended == text:
            continue
        wrong += 1
        if check:
            at = next(i for i, (a, b) in enumerate(zip(text.splitlines() + [""], mended.splitlines() + [""]), 1) if a != b)
            print(f"{path.relative_to(ROOT)}:{at}: a section divider is not one line of {COLUMNS} columns (tests/docs/dividers.py mends it)")
        else:
            path.write_text(mended)
    if not check:
        print(f"{wrong} files mended")
    sys.exit(1 if check and wrong else 0)


if __name__ == "__main__":
    main()
