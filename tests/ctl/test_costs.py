#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""titan-worker measure, and plans with what it found: costs are used first, other tables are refused, a run executes the
program that its plan printed."""
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, SOURCE, command, overrides, tap  # noqa: E402

TINY = SOURCE / "recipes/tiny.toml"
HOME = Path(tempfile.mkdtemp(prefix="titan-costs-"))
TABLE = HOME / "costs.tsv"
ENV = {"PATH": "/usr/bin:/bin", "HOME": str(HOME), "TITAN_ALLOW_ROOT": "1"}
SHORT = ("--device", "cpu", "--seconds", "0.05")


def measure(*args):
    return command(BIN / "titan-worker", "measure", TINY, *SHORT, *args, env=ENV)


def plan(*args, costs=TABLE, program="titan-worker"):
    given = () if costs is None else ("--costs", costs)
    return command(BIN / program, "plan", TINY, "--device", "cpu", *given, *args, env=ENV)


def document(*args, costs=TABLE):
    done = plan("--json", *args, costs=costs)
    assert done.code == 0, done.err
    return json.loads(done.out)


def fnv(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return h


def measured():
    """measure writes a table; plans of two ranks use it for every operation and transfer, and for those it has of others"""
    done = measure("-n", 2, "--out", TABLE)
    assert done.code == 0 and re.search(r"^measured \d+ operations and \d+ transfers on cpu ", done.out), (done.out, done.err)
    head = dict(line.split("\t") for line in TABLE.read_text().splitlines()[:7])
    assert head["device"] == "cpu" and int(head["cores"]) > 0 and head["machine"] and head["isa"] and head["version"]
    d = document("-n", 2)
    assert d["costs"]["measured"] == d["costs"]["of"] > 20, d["costs"]
    without = document("-n", 2, costs="none")
    assert without["costs"]["measured"] == 0 and without["step_seconds"] != d["step_seconds"]
    assert without["program"] == d["program"]
    for program in ("titan-worker", "titanctl"):
        done = plan("-n", 2, program=program)
        assert re.search(rf"^costs +measured for (\d+) of \1 operations and transfers, {TABLE}$", done.out, re.M), done.out
    other = document("-n", 2, "--set", "training.seq_len=32")["costs"]
    assert 0 < other["measured"] < other["of"], other


def shared_peak():
    """MFU of a plan with a table is of what the cores do at most: each of twice as many workers as cores has half of it"""
    cores, peaks = len(os.sched_getaffinity(0)), []
    for world in (cores, 2 * cores):
        d = document("-n", world, "--set", f"training.global_batch_size={2 * cores}", "--set", "training.local_batch_size=1")
        peaks.append(d["tokens_per_second_per_device"] / d["mfu"])
    assert 1.4 < peaks[0] / peaks[1] < 2.8, peaks  # each is measured


def spreads():
    """a table has the spread of each operation, and two ranks wait for it at what they do together, one rank never"""
    lines = TABLE.read_text().splitlines(keepends=True)
    rows = [line.split("\t") for line in lines]
    assert any(float(row[3]) > 0 for row in rows if row[0] == "operation"), lines
    for factor in (0, 3):
        body = "".join("\t".join([*row[:3], f"{factor * float(row[2]):.9e}", row[4]]) if row[0] == "operation" else line
                       for row, line in zip(rows[:-1], lines))
        (HOME / f"{factor}.tsv").write_text(f"{body}end\t{rows[-1][1]}\t{fnv(body.encode()):016x}\n")
    steps = {(n, factor): document("-n", n, costs=HOME / f"{factor}.tsv")["step_seconds"] for n in (1, 2) for factor in (0, 3)}
    assert steps[1, 0] == steps[1, 3] and steps[2, 3] > steps[2, 0], steps


def usual_place():
    """without --out it lies in the cache folder and is found there; a second recipe's rows are added"""
    assert measure("-n", 1).code == 0
    table = HOME / ".cache/titan/costs-cpu.tsv"
    rows = len(table.read_text().splitlines())
    done = plan("-n", 1, costs=None)
    assert f"operations and transfers, {table}\n" in done.out, done.out + done.err
    assert measure("-n", 1, "--set", "training.seq_len=32").code == 0
    assert len(table.read_text().splitlines()) > rows
    table.write_text(another(table.read_text()))
    done = plan("-n", 1, costs=None)
    assert done.code == 0 and "of another machine" in done.err and "\ncosts" not in done.out, done.out + done.err


def another(text):
    lines = text.splitlines(keepends=True)
    body = "".join("machine\tAnother Processor\n" if line.startswith("machine") else line for line in lines[:-1])
    return f"{body}end\t{lines[-1].split()[1]}\t{fnv(body.encode()):016x}\n"


def refused():
    """a table of another machine, a damaged one, none: exit 2, one message, nothing written over it"""
    bad = HOME / "bad.tsv"
    text = TABLE.read_text()
    for what, words in ((another(text), ("another machine", "Another Processor", str(bad))),
                        (text[:-100], ("damaged", "end is missing", str(bad))),
                        (text.replace("operation\t1", "operation\t2", 1), ("damaged", str(bad))), ("", ("damaged",))):
        bad.write_text(what)
        for done in (plan("-n", 2, costs=bad), measure("-n", 1, "--out", bad)):
            assert done.code == 2 and not done.out, (done.code, done.out, done.err)
            assert all(word in done.err for word in words), (words, done.err)
        assert bad.read_text() == what
    done = plan(costs=HOME / "none.tsv")
    assert done.code == 2 and "none.tsv" in done.err
    done = command(BIN / "titan-worker", "plan", TINY, "--device", "h100", "--costs", TABLE, env=ENV)
    assert done.code == 2 and "another machine" in done.err and "h100" in done.err, done.err


def same_program():
    """what a run executes is what its plan printed: one hash, also with a limit of memory that passes heed"""
    pipeline = {"parallelism.pipeline_parallel_degree": 2}
    tensor = {"parallelism.tensor_parallel_degree": 2, "parallelism.enable_async_tensor_parallel": "true"}
    buckets = {"parallelism.fsdp_bucketing": "greedy"}
    memory = document("-n", 2, *overrides(buckets), costs="none")["ranks"][0]["memory"]
    tight = (memory["predicted"] - memory["connections"] - 40000) / 2**30
    seen = set()
    for world, keys in ((1, {}), (2, {}), (2, pipeline), (2, tensor), (2, buckets), (2, {**buckets, "device.memory": tight})):
        done = command(BIN / "titan-worker", "run", TINY, "-n", world, "--device", "cpu", "--dir", HOME / f"run{len(seen)}",
                       "--set", f"training.dataset_path={SOURCE / 'README.md'}", "--set", "training.steps=1",
                       *overrides(keys), env=ENV)
        hashes = set(re.findall(r"epoch begins .* program=([0-9a-f]{16}) ", done.out + done.err))
        assert hashes == {document("-n", world, *overrides(keys), costs="none")["program"]}, (world, keys, hashes, done.err)
        seen |= hashes
    assert len(seen) == 6, seen
    said = command(BIN / "titan-worker", "plan", TINY, "-n", 2, "--set", "device.name=cpu", "--costs", "none", "--json", env=ENV)
    assert json.loads(said.out)["program"] == document("-n", 2, costs="none")["program"], said.err  # without --device
    limited = {document("-n", 2, "--memory", tight, *overrides({**buckets, **keys}), costs="none")["program"]
               for keys in ({}, {"device.memory": 1})}
    assert len(limited) == 1 and limited < seen, (limited, seen)


def same_hash_elsewhere():
    """a plan prints the same hash with other numbers of threads, which take more scratch, and on fewer cores"""
    one = document("-n", 2, costs="none")["program"]
    for threads in (2, 3):
        assert document("-n", 2, "--set", f"device.threads={threads}", costs="none")["program"] == one
    done = command("taskset", "-c", min(os.sched_getaffinity(0)), BIN / "titan-worker", "plan", TINY, "-n", 2, "--device", "cpu", "--json",
                   "--costs", "none", env=ENV)
    assert done.code == 0 and json.loads(done.out)["program"] == one, (done.out, done.err)


try:
    tap(measured, shared_peak, spreads, usual_place, refused, same_program, same_hash_elsewhere)
finally:
    shutil.rmtree(HOME, ignore_errors=True)
