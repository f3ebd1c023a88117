#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What a check has printed stands on docs/reliability.md as tables of names and counts, as far as it is whole (tests/fault/reliability.py)."""
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / d) for d in ("support", "fault")]
import reliability  # noqa: E402
from titan import tap  # noqa: E402

SIM = ["seeds 1 to 9: 9 schedules in 1.0 s, 9 a second in 2 processes; 1 run twice", "inputs 5, epochs 2693130, steps 7", "datagrams 8, settled 77794",
       "struck: worker killed 427129, coordinator killed, a worker while it is away 159995", "coordinator's machine loses power 99480, cancel 3",
       "failed seeds: 4 5 6"]
ATTACK = ["SEED=1532609775", "worker: 15000 messages, 112 of 112 fields mutated; checkpoint sent 1153, ready sent 7",
          "peer: 20000 messages, 61 of 62 fields mutated; pong 2232, None 377"]
MUTANTS = ["without a mutant: 10000 schedules, 0 violations", "mutant                 schedules until it is found, invariant",
           "AGENT_TERM                  1234  end  agent obeys an older term", "    SEED=99 signal 6",
           "DRAIN_OF_NONE                 34  I12  the drain of a node", "    SEED=28 drain of no node",
           "1 of 2 end at an assertion of the programs; others are seen by the simulation's invariants"]


def page(part, told, text="It ran for 9 s."):
    row = {"what": "all", "measured": "2 passed, 0 failed", "target": "0 failed", "ok": True}
    results = {"text": text, "told": told, "rows": [row]}
    return "\n".join([*reliability.before_rows(part, results), *reliability.rows(results)])


def tables():
    """counts of the simulation, speakers of an attack, bugs: a table each, with a line on the seed; nothing raw"""
    out = page("sim", SIM)
    assert "| 2,693,130 | epochs formed |" in out and "| 8 | datagrams sent |" in out and "settled" not in out, out
    assert "| worker killed | 427,129 | coordinator killed, a worker while it is away | 159,995 | coordinator's machine loses power | 99,480 |" in out, out
    assert "| cancel | 3 |  |  |  |  |" in out and "failed seeds" not in out and "| all | 0 failed |" in out, out
    out = page("attack", ATTACK)
    assert "`SEED=1532609775`: it draws" in out and "| datagrams | 20,000 | 61 of 62 |" in out and "pong" not in out and "1153" not in out, out
    out = page("sim-mutants", MUTANTS)
    assert "| `DRAIN_OF_NONE` | the drain of a node | 34 | 28 | I12 |" in out and "| `AGENT_TERM` |" in out, out
    assert "1 of 2 end at an assertion of the programs; others" in out and "drain of no node" not in out, out
    assert page("model", ["a", "b"]).startswith("It ran for 9 s. a b\n\n| What |")


def cut():
    """what older results have kept of it, its end: the counts that are there, and no list of bugs that is not whole"""
    out = page("sim", None, "It ran for 1507 s. " + " ".join(SIM[1:]))
    assert out.startswith("It ran for 1507 s.\n\nWhat was counted") and "| 2,693,130 | epochs formed |" in out and "| cancel | 3 |" in out, out
    out = page("sim-mutants", None, "It ran for 267 s.     SEED=15 cancelled job 1 is completed " + " ".join(MUTANTS[4:]))
    assert out.startswith("It ran for 267 s.\n\n1 of 2 end at an assertion of the programs") and "SEED" not in out and "DRAIN" not in out, out
    assert "DRAIN" not in page("sim-mutants", MUTANTS[4:]) and "1 of 2 end" in page("sim-mutants", MUTANTS[4:])
    assert page("model", None, "It ran for 890 s. ").startswith("It ran for 890 s.\n\n| What |")
    assert page("sim", []).startswith("It ran for 9 s.\n\n| What |") and page("attack", []).startswith("It ran for 9 s.\n\n| What |")


def recorded():
    """record.py keeps every line that begins with #, in its order"""
    with tempfile.TemporaryDirectory() as build:
        script = "; ".join(f"echo '# {n}'" for n in range(30)) + "; echo 'ok a: 5 (target 6)'; echo '1 passed, 0 failed'"
        done = subprocess.run([sys.executable, ROOT / "tests/fault/record.py", "part", "sh", "-c", script], env={**os.environ, "BUILD": build},
                              capture_output=True, text=True)
        results = json.loads((Path(build) / "part/results.json").read_text())
        assert done.returncode == 0 and results["told"] == [str(n) for n in range(30)], (done, results)
        assert results["text"].startswith("It ran for ") and results["rows"][0] == {"what": "a", "measured": "5", "target": "6", "ok": True}


def page_is_so():
    """the page has no raw output in front of these tables"""
    text = reliability.PAGE.read_text()
    for part in reliability.TOLD:
        block = text.split(f"<!-- {part}: begin -->")[1].split(f"<!-- {part}: end -->")[0]
        assert max(len(line) for line in block.splitlines() if not line.startswith("|")) < 300, part


def first_table():
    """the first table has a line for each part: how many rows hold, what is missed by name, what was done, date, commit, command, a link"""
    begin = "<!-- x: begin -->\n2026-11-28, commit abc, def; CPU, load 1. Again: `make it`.\n\n"
    table = "| # | Fault | Verdict |\n|---|---|---|\n| 1 | one dies | held |\n| 2 | two die | missed: late |\n| 3 | three die | failed: x |\n\n9,001 losses were compared"
    rows = "| c, run later |  | 5 inputs | held |\n| d |  | not done: no c here; 0 s |  |\n| e |  | 1,005 inputs | held |\n| all | 0 failed | 2 passed | held |"
    blocks = {part: f"## x\n\n{begin}{rows}\n<!-- x: end -->\n\nWritten by hand: | f | held |\n" for part in reliability.PARTS}
    blocks |= {"fault": begin + table, "sim": begin + "| all | 0 failed | 60000 passed, 0 failed | held |", "turns": "Not measured yet: `make y`."}
    out = reliability.summary(blocks)
    assert "| [Faults for real](#faults-for-real) | one fault at a time to real daemons and workers | 1 of 3 held; **missed**: two die; **missed**: three die; 9,001 losses compared | " \
        "2026-11-28, abc, def | `make it` |\n" in out, out
    assert " | held; 60,000 schedules | " in out and " | 2 of 2 held; 1 not done; 1,010 inputs | 2026-11-28, abc, def, some later | " in out, out
    assert "(#scale-simulated)" in out and " | not measured yet | | `make turns OLD=PATH` |\n" in out, out
    text = reliability.PAGE.read_text()
    blocks = {part: re.search(f"<!-- {part}: begin -->.*?<!-- {part}: end -->", text, re.S)[0] for part in reliability.PARTS}
    assert reliability.summary(blocks) in text, "make reliability"


def by_hand():
    """what was written by hand behind a block stays, with results and without"""
    old = "<!-- soak: begin -->\nx\n<!-- soak: end -->\n\nWritten by hand: a\nb\n\n## Next\n"
    with tempfile.TemporaryDirectory() as name:
        reliability.BUILD = Path(name)
        assert reliability.block("soak", old).endswith("\nx\n<!-- soak: end -->\n\nWritten by hand: a\nb\n")
        (Path(name) / "soak").mkdir()
        (Path(name) / "soak/results.json").write_text('{"commit": "abc", "at": "2026-11-28", "rows": []}')
        new = reliability.block("soak", old)
        assert "commit abc" in new and new.endswith("<!-- soak: end -->\n\nWritten by hand: a\nb\n"), new


if __name__ == "__main__":
    tap(tables, cut, recorded, page_is_so, first_table, by_hand)
