#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every module has assertions enough (assertions.py), which are counted right."""
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import assertions  # noqa: E402
from titan import tap  # noqa: E402


def counting():
    """code is counted without blank lines and comments, assertions without those in comments and strings"""
    assert assertions.count("int x;\n\n/* titan_assert(x)\n */\n// titan_assert(x)\ntitan_assert(x);\n") == (2, 1)
    assert assertions.count('put("/* no comment");\ntitan_assert (x && y); titan_assert(z);\n') == (2, 2)
    assert assertions.count("titan_assertion(x);\n") == (1, 0)


def modules_have_enough():
    """every module has its share"""
    few = {name: round(assertions.density(p)[2], 1) for name, p in assertions.MODULES.items()
           if assertions.density(p)[2] < assertions.BOUND}
    assert not few, f"per 1,000 lines, {assertions.BOUND} are wanted: {few}"


def all_folders():
    """every folder with C outside tests/ belongs to a module"""
    held = {f for patterns in assertions.MODULES.values() for pattern in patterns for f in assertions.ROOT.glob(pattern)}
    out = subprocess.run(["git", "-C", str(assertions.ROOT), "ls-files", "*.c", "*.h"], capture_output=True, text=True, check=True)
    loose = [f for f in out.stdout.split() if not f.startswith("tests/") and assertions.ROOT / f not in held]
    assert not loose, loose


tap(counting, modules_have_enough, all_folders)
