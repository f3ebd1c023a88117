#!/usr/bin/env python3
"""The licence's line at the head of every source: SPDX-License-Identifier: Apache-2.0.

    spdx.py            write it where it is missing (again: nothing changes)
    spdx.py --check    name the files without it; exit code 1
"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINE = "SPDX-License-Identifier: " + "Apache-2.0"
STYLES = {"/* %s */": "c h cu cuh cpp pml", "// %s": "proto", "# %s": "py sh mk service socket timer sysusers tmpfiles"}
NAMES = {"Makefile": "# %s", "Containerfile": "# %s", ".ci/run": "# %s", "deploy/deb/postinst": "# %s", "deploy/deb/postrm": "# %s",
         "deploy/deb/prerm": "# %s"}


def style(name):
    end = name.rsplit(".", 1)[-1]
    return NAMES.get(name) or next((s for s, ends in STYLES.items() if end in ends.split()), None)


def with_line(text, form):
    if LINE in "\n".join(text.splitlines()[:3]):
        return text
    first = re.match(r"#!.*\n", text)
    at = first.end() if first else 0
    return text[:at] + form % LINE + "\n" + text[at:]


def without():
    """{file: what it should be} of those without the line. None: no git here (an unpacked archive)."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=False, capture_output=True, text=True)
    if listed.returncode:
        return None
    files = [name for name in listed.stdout.splitlines() if style(name) and (ROOT / name).is_file()]
    texts = {name: (ROOT / name).read_text() for name in files}
    return {name: with_line(text, style(name)) for name, text in texts.items() if with_line(text, style(name)) != text}


def check():
    return [f"{name}: no line {LINE!r} (tests/docs/spdx.py writes it)" for name in without()]


def main():
    if sys.argv[1:] == ["--check"]:
        found = check()
        print("\n".join(found), end="\n" * bool(found))
        sys.exit(1 if found else 0)
    if sys.argv[1:]:
        sys.exit(__doc__)
    files = without()
    for name, text in files.items():
        (ROOT / name).write_text(text)
    print(f"{len(files)} files written")


if __name__ == "__main__":
    main()
