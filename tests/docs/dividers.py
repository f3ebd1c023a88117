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
    """None: no git here (an unpacked archive)."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.c", "*.h", "*.cu", "*.cuh", "*.cpp"], cwd=ROOT, check=False, capture_output=True, text=True)
    return None if listed.returncode else [ROOT / f for f in listed.stdout.split() if (ROOT / f).is_file()]


def wrong(text):
    """Line of the first divider that is not as it should be; 0: none."""
    mended = mend(text)
    return next((i for i, (a, b) in enumerate(zip(text.splitlines() + [""], mended.splitlines() + [""]), 1) if a != b), 0)


def check():
    return [f"{path.relative_to(ROOT)}:{at}: a section divider is not one line of {COLUMNS} columns (tests/docs/dividers.py mends it)"
            for path in sources() for at in [wrong(path.read_text())] if at]


def main():
    if sys.argv[1:] == ["--check"]:
        found = check()
        print("\n".join(found), end="\n" * bool(found))
        sys.exit(1 if found else 0)
    if sys.argv[1:]:
        sys.exit(__doc__)
    mended = [path for path in sources() if wrong(path.read_text())]
    for path in mended:
        path.write_text(mend(path.read_text()))
    print(f"{len(mended)} files mended")


if __name__ == "__main__":
    main()
