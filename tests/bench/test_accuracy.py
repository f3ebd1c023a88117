#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""accuracy.py: what is within bounds, which rank's memory is judged, and that its layouts are legal."""
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import accuracy  # noqa: E402
from titan import BIN, command, tap  # noqa: E402


def judged(timed=True, **changed):
    row = {"step_ms": 100, "measured_ms": 100, "mib": [200, 100], "measured_mib": [200, 100], "same_program": True, **changed}
    return accuracy.judge(row, timed)


def bounds_hold():
    """10 % of a step, 5 % of memory, the plan's program; steps count only where they are timed"""
    assert judged()["ok"] and judged(measured_ms=109)["ok"] and judged(step_ms=109)["ok"]
    assert not judged(measured_ms=112)["ok"] and not judged(step_ms=111)["ok"]
    assert judged(timed=False, measured_ms=500)["ok"]
    assert not judged(same_program=False)["ok"]
    assert judged(measured_mib=[209, 100])["ok"] and not judged(measured_mib=[212, 100])["ok"]


def each_rank_counts():
    """the rank that is furthest off is judged, not the largest"""
    row = judged(measured_mib=[201, 80])
    assert row["mib_of"] == (100, 80) and not row["ok"] and abs(row["mib_off"] - 0.25) < 1e-9


def layouts_are_legal():
    """20 layouts of 1 to 4 ranks; each can be planned"""
    assert len(accuracy.LAYOUTS) == 20 and {world for world, _ in accuracy.LAYOUTS.values()} == {1, 2, 4}
    with tempfile.TemporaryDirectory() as home:
        accuracy.HOME = Path(home)
        for number, (name, (world, keys)) in enumerate(accuracy.LAYOUTS.items()):
            done = command(BIN / "titan-worker", "plan", *accuracy.words_of(number, world, keys), "--costs", "none")
            assert done.code == 0, (name, done.err)


tap(bounds_hold, each_rank_counts, layouts_are_legal)
