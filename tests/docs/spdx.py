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
    if name.startswith("tests/fuzz/corpus/"):
        return None
    end = name.rsplit(".", 1)[-1]
    return NAMES.get(name) or next((s for s, ends in STYLES.items() if end in ends.split()), None)


def with_line(text, form):
    if LINE in "\n".join(text.splitlines()[:3]):
        return text
    first = re.match(r"#!.*\n", text)
    at = first.end() if first else 0
    return text[:at] + form % LINE + "\n" + text[at:]


def main():
    check, missing = sys.argv[1:] == ["--check"], 0
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in listed.stdout.splitlines():
        form = style(name)
        if not form or not (ROOT / name).is_file():
            continue
        text = (ROOT / name).read_text()
        written = with_line(text, form)
        if written != text:
            missing += 1
            if check:
                print(f"{name}: no line {LINE!r} (tests/docs/spdx.py writes it)")
            else:
                (ROOT / name).write_text(written)
    if not check:
        print(f"{missing} files written")
    sys.exit(1 if check and missing else 0)


if __name__ == "__main__":
    main()
