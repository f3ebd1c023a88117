#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A run with a rank that is slowed on purpose: the terminal view, the page and the flight recorders each name it, alone."""
import os
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, FP_BIN, SOURCE, Daemon, command, eventually, tap, until  # noqa: E402

SLOW, WORLD = 2, 3


class World:
    """A daemon, and a job of which rank SLOW stops for some milliseconds before each action."""


def frame(columns, lines):
    env = {**os.environ, "COLUMNS": str(columns), "LINES": str(lines), "LC_ALL": "C"}
    done = command(BIN / "titanctl", "-s", World.daemon.server, "top", env=env)
    assert done.code == 0, done
    return done.out


def by_top():
    """top: a line says which rank is the slowest and where it is, another where the time of a step goes; its worker is marked"""
    for columns, lines in ((100, 30), (80, 24)):
        eventually(lambda: check_frame(columns, lines))
    assert len(frame(60, 12).splitlines()) <= 12


def check_frame(columns, lines):
    out = frame(columns, lines)
    found = re.search(r"^slowest: rank (\d+) in (\d+) of (\d+) steps, busy ([\d.]+) ms, the others wait ([\d.]+), on (\S+)", out, re.M)
    assert found and int(found[1]) == SLOW and int(found[2]) > 0.8 * int(found[3]), out
    assert found[6] == World.node and float(found[5]) > 0.3 * float(found[4]), out
    parts = re.search(r"^step [\d.]+ ms: data (\d+)%, compute (\d+)%, comm. (\d+)%, checkpoint (\d+)%, stragglers (\d+)%", out, re.M)
    assert parts and abs(sum(map(int, parts.groups())) - 100) <= 2 and int(parts[5]) > 20, out
    marked = re.findall(r"^ +(\d+) +\d+ .* (?:slowest in \d+ of|slow: )", out, re.M)  # later its agent says that it is slow
    assert marked == [str(SLOW)], out


def by_report():
    """report: a sentence, a table and a fact on the page name the rank and its node, a table has the parts of a step"""
    eventually(check_page)


def check_page():
    path = World.folder / "job.html"
    World.daemon.ok("report", World.job, "--out", path)
    page = path.read_text()
    said = re.search(r'<p id="slowest-rank">The others waited longest for <b>rank (\d+)</b>: it was the slowest in (\d+) of (\d+) steps', page)
    assert said and int(said[1]) == SLOW and int(said[2]) > 0.8 * int(said[3]), said
    assert f"<dt>waited for longest</dt><dd>rank {SLOW}</dd>" in page
    row = re.search(r'<table id="slowest">.*?<tbody>\s*<tr>(.*?)</tr>', page, re.S)[1]
    assert re.findall(r">([^<>]+)<", row)[:2] == [str(SLOW), World.node], row
    shares = re.findall(r"<tr><td>(\w+).*?([\d.]+) %</td></tr>", re.search(r'<table id="split">(.*?)</table>', page, re.S)[1])
    assert [name for name, _ in shares] == ["data", "compute", "communication", "checkpoint", "waiting"], shares
    assert abs(sum(float(share) for _, share in shares) - 100) < 0.5 and float(shares[-1][1]) > 20, shares


def by_flight():
    """flight: of a run that goes on it says which rank comes last into the collectives"""
    eventually(check_flight)


def check_flight():
    out = until("the newest records have collectives of all ranks", lambda: (lambda s: "is the slowest" in s and s)(World.daemon.ok("flight", World.job)))
    found = re.search(r"rank (\d+) is the slowest: the last in (\d+) of (\d+) collectives, and in some for (\d+) % of the time, the others for (\d+) %", out)
    assert found and int(found[1]) == SLOW and int(found[2]) > 0.5 * int(found[3]), out
    assert int(found[4]) + 10 <= int(found[5]) <= 100, out


def main():
    env = {"TITAN_FAILPOINTS": f"exec.action%{SLOW}=sleep:3@1+"}
    with tempfile.TemporaryDirectory() as folder, Daemon(None, "--slots", WORLD, env=env, program=FP_BIN / "titand") as d:
        World.daemon, World.folder = d, Path(folder)
        World.job = job = d.submit("tiny", {"training.steps": 100000, "training.global_batch_size": WORLD, "training.local_batch_size": 1,
                                            "training.seq_len": 32, "device.threads": 1, "training.dataset_path": SOURCE / "base",
                                            "checkpoint.enable": "false", "elastic.min_workers": WORLD, "elastic.max_workers": WORLD})
        until("it trains", lambda: d.status(job)["step"] >= 12)
        World.node = [e["node"] for e in d.lines("events", job) if e["type"] == "worker.started"][0]
        tap(by_top, by_report, by_flight)


main()
