#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""peers.py: what is judged and how, what is left out, the page; a run of ours, and of PyTorch where it is installed, with the same losses."""
import json
import sys
import tempfile
import xml.dom.minidom
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import interop  # noqa: E402
import peers  # noqa: E402
from titan import SOURCE, deadline, tap  # noqa: E402

home = tempfile.TemporaryDirectory(prefix="titan-peers-")
peers.HOME = Path(home.name)


def run(rate, mib=100, losses=(3.0, 2.0, 1.0), **more):
    return {"tokens_per_second": rate, "mib": mib, "steps": 3, "losses": list(losses), "threads": 2, "tried": {"2": rate}, "torch": "1", "mfu": 80.0,
            "mfu_causal": 71.0, "peak_gflops": 100.0, "waits": 4.0, "exposed": 1.0, "moving": 6.0, **more}


def runs(ours=150, **more):
    out = {kind: [run(100, 200)] for kind in peers.KINDS}
    return {**out, ("Titan", "fp32"): [run(ours, **more), run(ours + 2, **more), run(9 * ours, **more)], ("Titan", "bf16"): [run(50)]}


def judged(rows, what):
    return next(r for r in rows if what in r["what"])


def rows_are_judged():
    """medians of the best precisions: 1.4 without AMX and 2 with it, 0.6 of the memory, 70 % of the peak; what did not run misses"""
    rows = peers.step_rows(runs(), False)
    assert judged(rows, "compiled")["measured"] == "1.52" and [r["ok"] for r in rows] == [True, None, True, True, None]
    assert not judged(peers.step_rows(runs(), True), "compiled")["ok"] and not judged(peers.step_rows(runs(130), False), "compiled")["ok"]
    rows = peers.step_rows(runs(mib=130, mfu_causal=69), False)
    assert not judged(rows, "memory")["ok"] and not judged(rows, "fp32: FLOPs")["ok"]
    none = {**runs(), ("compiled", "fp32"): [{"failed": "no compiler"}], ("compiled", "bf16"): [{"failed": "no compiler"}]}
    rows = peers.step_rows(none, False)
    assert judged(rows, "compiled")["measured"] == judged(rows, "memory")["measured"] == "not measured" and not judged(rows, "compiled")["ok"]
    assert "did not run: no compiler" in "".join(peers.lines_of(none, ""))
    assert [r["ok"] for r in peers.ranks_rows(runs(), False)] == [False, True, False]
    assert [r["ok"] for r in peers.ranks_rows({kind: [{"failed": "x"}] for kind in peers.KINDS}, False)] == [False] * 3
    assert not peers.losses_row({("Titan", "fp32"): [run(1)]}, "fp32", 1e-4)["ok"]
    assert peers.losses_row(runs(), "fp32", 1e-4)["ok"] and not peers.losses_row(runs(losses=(3.0, 2.0, 1.001)), "fp32", 1e-4)["ok"]


CELLS = [{"model": "1M", "parameters": 10**6, "seq": 256, "left_out": None, "Titan": run(300), "compiled": run(200)},
         {"model": "1M", "parameters": 10**6, "seq": 512, "left_out": None, "Titan": run(300), "compiled": {"failed": "ended by signal 9"}},
         {"model": "1.0B", "parameters": 10**9, "seq": 256, "left_out": None, "Titan": run(3), "compiled": run(1)},
         {"model": "1.0B", "parameters": 10**9, "seq": 512, "left_out": "a step takes some 90 s"}]


def cells_are_named():
    """a cell that does not fit into time or memory, or with a run that failed, is named"""
    small, large = peers.MODELS[0], peers.MODELS[-1]
    assert peers.left_out(small, 256, 1024, 20, 1e11, 20) is None
    assert "GiB" in peers.left_out(large, 256, 1024, 1000, 1e12, 16) and "a step takes" in peers.left_out(large, 8192, 8192, 20, 1e11, 999)
    assert [m["name"] for m in peers.MODELS] == ["1M", "11M", "44M", "134M", "374M", "1.0B"]
    assert peers.matrix_lines(CELLS, (256, 512))[2:] == ["| 1M | 300, 200: 1.50 | 300, - |", "| 1.0B | 3, 1: 3.00 |  |", "",
                                                         "Left out: 1M x 512, compiled: ended by signal 9; 1.0B x 512: a step takes some 90 s."]


def page_is_written():
    """parts that have run are in the block, others say how; the picture is whole XML"""
    peers.PAGE, peers.PICTURE, peers.SOURCE = peers.HOME / "page.md", peers.HOME / "peers.svg", peers.HOME
    peers.PAGE.write_text("before\n<!-- peers: begin -->\nold\n<!-- peers: end -->\nbehind\n")
    part = {"at": "2026-01-02", "commit": "c0ffee", "machine": {}, "command": "x", "text": "How.", "lines": peers.matrix_lines(CELLS, (256, 512)),
            "rows": [peers.row("least", 1.5, 1)], "cells": CELLS}
    for _ in range(2):  # a block of its own is replaced, too
        peers.page({"matrix": part})
    text = peers.PAGE.read_text()
    assert text.startswith("before\n<!-- peers: begin -->\n**One rank.** Not measured yet: `make bench-peers PART=step`.") and text.endswith("<!-- peers: end -->\nbehind\n")
    assert "old" not in text and text.count("| least | ≥ 1 | 1.50 | held |") == 1 and "](peers.svg)" in text
    lines = xml.dom.minidom.parse(str(peers.PICTURE)).getElementsByTagName("polyline")
    assert [len(line.getAttribute("points").split()) for line in lines] == [2, 2, 1, 0]
    peers.SOURCE = SOURCE
    try:
        peers.interpreter(SOURCE / "build/venv")
        raise AssertionError("a virtual environment inside the tree")
    except SystemExit as e:
        assert "inside the tree" in str(e)


def tiny(ranks=1, **more):
    return peers.Work(peers.TINY[0], 64, 4, 0, ranks, 3, **more)


def runs_are_measured():
    """a run of ours on one rank and on four; a peer's figures, its last word, or that it took too long"""
    for world in (1, 4):
        r = peers.ours(tiny(world), "fp32")
        assert r["tokens_per_second"] > 0 and r["mib"] > 1 and len(r["losses"]) >= 3 and 0 <= r["exposed"] <= r["waits"] <= 100 and r["peak_gflops"] > 0, r
    work = tiny(weights=peers.HOME / "nothing")
    assert "nothing" in peers.ours(work, "fp32")["failed"]
    peers.PEER, kept = peers.HOME / "peer.py", peers.PEER
    for text, expected in (("print(json.dumps(run))", None), ("sys.exit('no such thing')", "no such thing"), ("os.kill(os.getpid(), 9)", "ended by signal 9"),
                           ("time.sleep(60)", "nothing measured within 1 s")):
        peers.PEER.write_text(f"import json, os, sys, time\nrun = json.loads(sys.argv[1])\n{text}\n")
        work = tiny(2 if expected else 1)
        work.limit = 1 if "60" in text else deadline()
        r = peers.peer(sys.executable, work, "fp32", "eager", [1])
        assert r == {"failed": expected} if expected else (r["threads"], r["dim"]) == ([1], 32), r
    peers.PEER = kept


def slow_precisions_are_ended():
    """in the first round a side's second precision has little more time than its first took"""
    limits, kept = [], peers.run_of
    work = SimpleNamespace(limit=1000, ranks=1, weights=peers.HOME)
    (peers.HOME / "model.safetensors").touch()
    peers.run_of = lambda _, work, side, *rest: limits.append(round(work.limit)) or ({"failed": "x"} if side == "compiled" else run(1))
    peers.turns("python", work, 2)
    peers.run_of = kept
    assert limits == [1000, 60, 1000, 60, 1000, 1000] + [1000] * 4, limits


def work_is_the_same():
    """PyTorch's losses of the first steps, on one rank and under FSDP2, are ours"""
    python, why = interop.python("torch")
    if why:
        return why
    peers.KINDS = [("Titan", "fp32"), ("eager", "fp32")]
    found = {world: peers.turns(python, tiny(world, weights=peers.HOME / "weights"), 1) for world in (1, 4)}
    for kinds in found.values():
        row = peers.losses_row(kinds, "fp32", 1e-5)
        assert row["ok"] and all(peers.good(r) for r in kinds.values()), (row, kinds)
        print(f"# {row['measured']}: {json.dumps(kinds['eager', 'fp32'][0])}")


def matrix_goes_on():
    """the matrix measures what fits, and goes on where a peer does not run"""
    peers.TINY = peers.TINY[:1]
    peers.left_out = lambda model, seq, *_: "too long" if seq == 64 else None
    o = SimpleNamespace(tiny=True, rounds=1, cell_seconds=1)
    cells = peers.matrix(o, "/nowhere/python")["cells"]
    assert len(cells) == 2 and all("failed" not in c["Titan"] and "failed" in c["compiled"] for c in cells if c["seq"] == 32), cells
    assert all("Titan" not in c for c in cells if c["seq"] == 64)
    assert peers.matrix(o, "/nowhere/python")["cells"] == cells  # as they were


tap(rows_are_judged, cells_are_named, page_is_written, runs_are_measured, slow_precisions_are_ended, work_is_the_same, matrix_goes_on)
