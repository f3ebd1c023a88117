#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Assertions per 1,000 lines of code, of every module.

A line of code is one that is neither blank nor a comment; an assertion is a titan_assert(), outside of what defines it. What comes
from outside (files, messages, arguments) is checked, not asserted. BOUND holds for every module below, which are all the folders
with C outside tests/. Kernels in CUDA (*.cu) have none: what launches them, in C, asserts shapes before."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BOUND = 15
MODULES = {  # name: files, of folders with all below them
    "agent": ("daemon/agent/**/*.[ch]",),
    "coordinator": ("daemon/coordinator/**/*.[ch]",),
    "api": ("daemon/api/*.[ch]",),
    "auth": ("daemon/auth/*.[ch]",),
    "common": ("daemon/common/*.[ch]",),
    "daemon": ("daemon/*.[ch]",),
    "state": ("state/*.[ch]",),
    "base": ("base/*.[ch]",),
    "proto": ("proto/**/*.[ch]",),
    "ctl": ("ctl/*.[ch]",),
    "worker": ("worker/*.[ch]",),
    **{name: (f"worker/{name}/**/*.[ch]",) for name in (
        "checkpoint", "comm", "data", "device", "elastic", "epoch", "exec", "infer", "metrics", "model", "optim", "plan",
        "program", "tensor", "tokenizer")},
    "worker/state": ("worker/state/*.[ch]",),
}
COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.S)
ASSERTION = re.compile(r"\btitan_assert\s*\(")


def count(text):
    """(lines of code, assertions) of a source."""
    code = COMMENT.sub(lambda m: m[0] if m[0][0] == '"' else " ", text)
    return sum(1 for line in code.splitlines() if line.strip()), len(ASSERTION.findall(code))


def density(patterns):
    """(lines, assertions, assertions per 1,000 lines) of the files."""
    files = [f for pattern in patterns for f in ROOT.glob(pattern)]
    lines, found = map(sum, zip(*(count(f.read_text()) for f in files)))
    return lines, found, 1000 * found / lines


def main():
    low = False
    for name, patterns in MODULES.items():
        lines, found, per = density(patterns)
        low |= per < BOUND
        print(f"{name:12} {lines:6} lines {found:4} assertions {per:5.1f} per 1,000" + ("  too few" if per < BOUND else ""))
    return low


if __name__ == "__main__":
    sys.exit(main())
