#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The operation that docs/plan.md shows is as it shows it: its row, and the six files that adding it touched."""
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import SOURCE, tap  # noqa: E402

SECTION = (SOURCE / "docs/plan.md").read_text().split("### An operation\n")[1].split("\n### ")[0]
BLOCKS = re.findall(r"^```\n(.*?)^```", SECTION, re.S | re.M)
NAME = re.match(r"OP\((\w+), (\w+),", BLOCKS[0])
STAT = re.compile(r"^ (\S+) +\| +(\d+) [+-]+$", re.M)
FILES = [file for file, _ in STAT.findall(BLOCKS[1])]
STEPS = re.findall(r"^\d\. `([\w./]+)`: (.*(?:\n   .*)*)", SECTION, re.M)  # where, what
SUBJECT = re.search(r'"(ops: add \w+)"', SECTION)[1]


def row_is_in_the_table():
    """the row is ops.def's, to the letter"""
    assert BLOCKS[0] in (SOURCE / "worker/program/ops.def").read_text(), BLOCKS[0]


def six_files_are_enough():
    """the list has the files of the statistic but the row's, at most six with it, and no test or document besides"""
    assert 0 < len(FILES) <= 6 and len(STEPS) > 2, (FILES, STEPS)
    places = tuple(place for place, _ in STEPS)
    assert [file for file in FILES if not file.startswith(places)] == ["worker/program/ops.def"], FILES
    others = [path for _, what in STEPS for path in re.findall(r"`((?:tests|docs|mk)/[^`]*)`", what)]
    assert not others, f"the list has {others}, too"


def files_have_the_operation():
    """the files are there, and each has the operation's name"""
    assert f"{len(FILES)} files changed" in BLOCKS[1], FILES
    for file in FILES:
        assert re.search(rf"\b(cuda_|cpu_)?{NAME[2]}\b", (SOURCE / file).read_text()), f"{file} has no {NAME[2]}"


def commit_is_the_one_shown():
    """the commit of that subject has this statistic, where there is a history"""
    def git(*words):
        return subprocess.run(["git", "-C", SOURCE, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout

    log = [line.split(" ", 1) for line in git("log", "--format=%h %s", "--fixed-strings", f"--grep={SUBJECT}").splitlines()]
    commits = [c for c, subject in log if subject == SUBJECT]
    if not commits:
        return "no history, or a shallow one"
    for commit in commits:
        shown = git("show", "--stat=100", "--format=", commit)
        assert STAT.findall(shown) == STAT.findall(BLOCKS[1]) and shown.split("\n")[-2] == BLOCKS[1].split("\n")[-2], shown
    return None


def devices_name_none_twice():
    """prototypes and tables of both devices follow from DEVICE_OPS, so that an operation needs no line in them"""
    for device, header, table in (("cpu", "cpu.h", "cpu.c"), ("cuda_ops", "cuda.h", "ops.c")):
        folder = SOURCE / "worker/device" / device.split("_")[0]
        listed = set(re.findall(r"\bX\((\w+)\)", (SOURCE / "worker/device/device.h").read_text().split("#define DEVICE_OPS(X)")[1]))
        declared = listed & set(re.findall(rf"\b{device}_(\w+)\(", (folder / header).read_text()))
        entered = listed & set(re.findall(rf"\.(\w+) = {device}_\w+", (folder / table).read_text()))
        assert len(listed) > 40 and not declared and not entered, f"{device}: {declared} in {header}, {entered} in {table}"


tap(row_is_in_the_table, six_files_are_enough, files_have_the_operation, commit_is_the_one_shown, devices_name_none_twice)
