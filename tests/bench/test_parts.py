#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make bench` says what it does while it does it, and shows what it measured."""
import io
import json
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import bench  # noqa: E402
from parts import Parts  # noqa: E402
from titan import tap, until  # noqa: E402


def fake(out):
    """A part that goes on until it was told twice how far it is."""
    def slow():
        until("it is told how far the part is", lambda: out.getvalue().count("  slow: ") >= 2)
        return {"median_ms": 12.0}
    return {"slow": (slow, 100, lambda r: [("a thing, median", f"{r['median_ms']:.0f} ms", "50 ms")]),
            "quick": (lambda: {"skipped": "needs root"}, 20, None)}


def progress_is_told():
    """each part is announced with an estimate, tells that it goes on, and is in the table at the end"""
    out = io.StringIO()
    with tempfile.TemporaryDirectory() as home:
        Parts(fake(out), Path(home), out, every_s=0.1).run(["slow", "quick"])
        assert json.loads((Path(home) / "summary.json").read_text())["slow"] == {"median_ms": 12.0}
        again = Parts(fake(out), Path(home), io.StringIO()).estimate(["slow"])
    lines = out.getvalue().splitlines()
    assert "2 parts, about 2 min" in lines[0], lines
    assert lines[1] == "[1/2] slow: about 2 min, then 20 s for the rest", lines
    assert sum(re.match(r"  slow: \d+ s of about", line) is not None for line in lines) >= 2, lines
    assert any(line.startswith("slow: a thing, median") and line.endswith("12 ms  50 ms") for line in lines), lines
    assert lines[-1].split() == ["quick", "skipped:", "needs", "root"], lines
    assert again < 100, "the second estimate is of what it took the first time"


def all_parts_have_rows():
    """every part of the benchmark has an estimate, and the cheap ones rows"""
    for name, (work, seconds, rows) in bench.PARTS.items():
        assert callable(work) and seconds > 0 and callable(rows), name
    rows = bench.PARTS["start"][2]({"min_ms": 14.0, "median_ms": 17.2, "max_ms": 23.0, "rounds": 10, "target_ms": 50})
    assert rows == [("titand started to the first answer, median", "17 ms", "50 ms")], rows


tap(progress_is_told, all_parts_have_rows)
