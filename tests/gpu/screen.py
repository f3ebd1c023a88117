#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""screen.py WORK EXPECTED: the figures of the parts in WORK against what was expected, a line each; WORK/figures.json has the same.

A figure is a line 'figure NAME VALUE' of a part's log. EXPECTED has PART NAME LOW HIGH UNIT, tabs between; LOW '=' and a pattern in
HIGH for a value that is a word. NAME 'failed' is how many of the part's checks failed. OK: within the bounds. ODD: outside, or
missing from a part that ran. Exit code 1 when a line is ODD."""
import json
import re
import sys


def read_parts(work):
    """What became of each part: why it was skipped, or how it ended."""
    found = {}
    with open(f"{work}/parts.tsv") as f:
        for line in f:
            name, code, _, bad, _, why = line.rstrip("\n").split("\t")
            found[name] = (why, int(code), int(bad))
    return found


def read_figures(work, part):
    with open(f"{work}/{part}.log", errors="replace") as f:
        return {m[1]: m[2] for m in re.finditer(r"^figure (\S+) (.+)$", f.read(), re.MULTILINE)}


def fits(value, low, high):
    if low == "=":
        return re.search(high, value) is not None
    try:
        return float(low) <= float(value) <= float(high)
    except ValueError:
        return False


def judge(row, parts, figures):
    """value, verdict of a row."""
    part, name, low, high = row
    if part not in parts:
        return "", "skipped: not chosen by PARTS"
    why, code, bad = parts[part]
    if why:
        return "", f"skipped: {why}"
    value = str(bad) if name == "failed" else figures[part].get(name, "")
    if not value:
        return "", f"ODD: no figure{f', exit code {code}' if code else ''} (log of part {part})"
    return value, "OK" if fits(value, low, high) else "ODD"


def main():
    work, expected = sys.argv[1:]
    parts = read_parts(work)
    figures = {part: read_figures(work, part) for part, (why, _, _) in parts.items() if not why}
    lines = []
    with open(expected) as f:
        for line in f:
            if line.startswith("#") or not line.strip():
                continue
            part, name, low, high, unit = line.rstrip("\n").split("\t")
            value, verdict = judge((part, name, low, high), parts, figures)
            lines.append({"part": part, "name": name, "value": value, "expected": high if low == "=" else f"{low} to {high}", "unit": unit, "verdict": verdict})
    named = {(line["part"], line["name"]) for line in lines}
    for part, found in figures.items():  # what the table does not have is shown as well
        lines += [{"part": part, "name": name, "value": value, "expected": "", "unit": "", "verdict": "not expected"}
                  for name, value in found.items() if (part, name) not in named]
    for line in lines:
        name = f"{line['part']} {line['name']}"
        print(f"{name:36} {line['value'][:22]:>22} {line['unit']:8} {line['expected'][:22]:22} {line['verdict']}")
    odd = sum(line["verdict"].startswith("ODD") for line in lines)
    skipped = sum(line["verdict"].startswith("skipped") for line in lines)
    print(f"{sum(line['verdict'] == 'OK' for line in lines)} OK, {odd} ODD, {skipped} skipped")
    with open(f"{work}/figures.json", "w") as f:
        json.dump(lines, f, indent=1)
    return odd > 0


if __name__ == "__main__":
    sys.exit(main())
