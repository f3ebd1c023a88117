#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a check, shows what it prints, and keeps its closing lines for docs/reliability.md: record.py PART COMMAND...

build/PART/results.json gets a row for every line that begins with ok or FAIL, and one for the last 'N passed, N failed'; "told" has its
other lines that begin with #."""
import json
import re
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from kit import machine, stamp  # noqa: E402
from titan import BUILD  # noqa: E402


def main():
    part, words = sys.argv[1], sys.argv[2:]
    begin, rows, told, closing = time.monotonic(), [], [], None
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as p:
        for line in p.stdout:
            print(line, end="", flush=True)
            line = line.strip()
            verdict = re.match(r"(ok|FAIL|not ok)\b[ :-]*(.*)", line)
            if verdict:
                what, _, measured = verdict.group(2).partition(": ")
                target = re.search(r" \(target (.*)\)$", measured)
                rows.append({"what": what, "measured": measured[:target.start()] if target else measured,
                             "target": target.group(1) if target else "", "ok": verdict.group(1) == "ok"})
            if re.match(r"\d+ passed, \d+ failed", line):
                closing = line
            elif line.startswith("# "):
                told.append(line[2:])
    if not closing:
        sys.exit(f"{' '.join(words)} did not close with 'N passed, N failed'")
    rows.append({"what": "all", "measured": closing, "target": "0 failed", "ok": " 0 failed" in closing and p.returncode == 0})
    home = BUILD / part
    home.mkdir(parents=True, exist_ok=True)
    (home / "results.json").write_text(json.dumps({
        **stamp(), "machine": machine(), "command": " ".join(w for w in words if not w.startswith("--")), "rows": rows,
        "text": f"It ran for {time.monotonic() - begin:.0f} s.", "told": told}, indent=1) + "\n")
    return p.returncode


sys.exit(main())
