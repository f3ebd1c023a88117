#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of every process of a run at random moments of saving: the newest checkpoint is never lost, all that are listed are
sound, and the run goes on from the newest. One folder for all rounds, a save after every step."""
import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, SOURCE, command, deadline, headers_text, overrides, pause, until, worker_pids  # noqa: E402

RANKS, KEEP = 3, 2
KEYS = {"training.steps": 1000000, "checkpoint.interval": 1, "checkpoint.keep_latest_k": KEEP, "device.threads": 1,
        "training.global_batch_size": 6, "training.local_batch_size": 1, "elastic.max_workers": RANKS,
        "parallelism.data_parallel_shard_degree": RANKS, "fault_tolerance.redundancy": "checkpoint"}


def steps_in(folder):
    return sorted(int(p.name[5:]) for p in folder.glob("step-*"))


def phase(folder):
    """How far the save had come that was under way."""
    unfinished = list(folder.glob(".step-*"))
    if list(folder.glob(".removed-*")):
        return "an old one is removed"
    if not unfinished:
        return "between two"
    names = [p.name for p in unfinished[0].iterdir()]
    if any(n.startswith("manifest") for n in names):
        return "the manifest is there"
    parts, entries = (sum(n.startswith(what) for n in names) for what in ("rank-", "entry-"))
    return f"{parts} of {RANKS} parts are begun, {entries} written"


class Run:
    """titan-worker run in a session of its own, so that one signal ends all of it."""

    def __init__(self, home, text, steps=None):
        self.home, self.metrics = home, home / "metrics.jsonl"
        keys = {**KEYS, "training.dataset_path": text, **({"training.steps": steps} if steps else {})}
        self.process = subprocess.Popen([str(a) for a in (BIN / "titan-worker", "run", SOURCE / "recipes/tiny.toml", "-n", RANKS, "--dir", home,
                                                          *overrides(keys))],
                                        stdout=open(home / "log", "a"), stderr=subprocess.STDOUT, start_new_session=True)

    def kill(self):
        """All at once, and none is left."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        until("all have ended", lambda: not worker_pids(self.home))


def verify(folder):
    done = command(BIN / "titan-worker", "verify", folder)
    assert done.code == 0, f"a checkpoint is damaged:\n{done.out}{done.err}"


def first_step_behind(metrics, offset):
    """Of the steps that were written to the file behind this place, the first; None: there is none yet."""
    with open(metrics) as f:
        f.seek(offset)
        line = f.readline()
    return json.loads(line)["step"] if line.endswith("\n") else None


def kills(rounds, rng, say=print):
    """Returns how often a save was found in which phase."""
    home = Path(tempfile.mkdtemp(prefix="titan-kills-"))
    folder, text, phases, newest = home / "checkpoint", headers_text(home / "text"), Counter(), 0
    (home / "metrics.jsonl").touch()
    try:
        for n in range(rounds):
            offset = (home / "metrics.jsonl").stat().st_size
            run = Run(home, text)
            said = lambda: (home / "log").read_text()[-2000:]  # noqa: E731
            until(f"round {n}: it trains", lambda: first_step_behind(run.metrics, offset) or run.process.poll() is not None, 60, 0.005)
            assert run.process.poll() is None, f"round {n}: the run has ended: {said()}"
            begun = first_step_behind(run.metrics, offset)
            assert begun == newest + 1, f"round {n}: the newest checkpoint is of step {newest}, the run goes on with step {begun}: {said()}"
            until(f"round {n}: it saves", lambda: steps_in(folder) and steps_in(folder)[-1] > newest, 60, 0.001)
            pause(rng.uniform(0, 0.1), "somewhere inside a save")
            before = steps_in(folder)[-1]
            run.kill()
            phases[phase(folder)] += 1
            there = steps_in(folder)
            assert there and there[-1] >= before, f"round {n}: the checkpoint of step {before} is lost, there are {there}"
            verify(folder)
            newest = there[-1]
            # A line that was being written is not finished by the next run.
            with open(run.metrics, "rb+") as f:
                f.truncate(f.read().rfind(b"\n") + 1)
            if (n + 1) % 20 == 0:
                say(f"  {n + 1} of {rounds}: {dict(phases)}", flush=True)
        last = Run(home, text, newest + 1)
        assert last.process.wait(deadline()) == 0 and steps_in(folder)[-1] == newest + 1, (home / "log").read_text()[-2000:]
        verify(folder)
    except BaseException:
        say(f"# what is left is in {home}", flush=True)
        raise
    shutil.rmtree(home)
    return phases


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=100)
    options.add_argument("--seed", default=str(random.SystemRandom().randrange(1 << 32)))
    o = options.parse_args()
    print(f"{o.rounds} kills, seed {o.seed}", flush=True)
    begin = time.monotonic()
    phases = kills(o.rounds, random.Random(o.seed))
    print(f"no checkpoint was lost in {o.rounds} kills, {time.monotonic() - begin:.0f} s")
    for what, n in phases.most_common():
        print(f"  {n:4}  {what}")


if __name__ == "__main__":
    main()
