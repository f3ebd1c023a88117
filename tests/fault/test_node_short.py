#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A node that is short of something while a worker starts, for real: no descriptor left in the agent, no room in the job's folder, none
for the worker's data. It is not the worker's doing: nothing is counted against the job, which says what it waits for and goes on when there is room."""
import os
import resource
import signal
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import nodes  # noqa: E402
from titan import BIN, Daemon, headers_text, tap, until  # noqa: E402

KEYS = {"elastic.min_workers": 1, "elastic.max_workers": 1, "training.global_batch_size": 1, "training.local_batch_size": 1,
        "device.threads": 1, "training.steps": 1000000, "checkpoint.enable": "false", "fault_tolerance.backoff_ms": 50,
        "fault_tolerance.max_restarts": 1}


def said(status, *words):
    assert status["state"] not in ("FAILED", "COMPLETED", "CANCELLED"), status
    return all(w in (status["reason"] or "") for w in words)


def no_descriptor():
    """an agent without a descriptor: the run beside goes on, the next one waits and says why, and begins when there are some again"""
    with nodes.Cluster(slots={"n1": 2}, pace_ms=20) as c:
        keys = {**KEYS, "training.dataset_path": headers_text(c.dir / "text", 1 << 18)}
        beside = c.submit(keys)
        c.training(beside, 1, 2)
        pid = c.processes["n1"].pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (8, before[1]))
        job = c.submit(keys)
        until("it says what is short", lambda: said(c.status(job), "cannot start a worker", "Too many open files", "trying again"), 30)
        step = c.status(beside)["step"]
        until("the run beside makes steps", lambda: c.status(beside)["step"] > step, 30)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        c.training(job, 1, 2)
        for one in (beside, job):
            assert c.status(one)["restarts"] == 0 and not c.status(one).get("losses"), c.status(one)
            c.ctl("cancel", one)


def no_room():
    """a job's folder without room: the worker that was killed counts, those that could not be started do not"""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        return "needs a mount namespace of its own (root)"
    with tempfile.TemporaryDirectory(prefix="titan-short-") as where:
        state, program = Path(where) / "state", Path(where) / "titand"
        program.write_text("#!/bin/sh\n"
                           f"mkdir -p {state}/jobs\n"
                           f"exec unshare -m sh -c 'mount -t tmpfs -o size=1m,nr_inodes=64 tmpfs {state}/jobs && exec {BIN}/titand \"$@\"' sh \"$@\"\n")
        program.chmod(0o755)
        with Daemon(state, "--slots", 1, "--allow-root", program=program) as d:
            job = d.submit("tiny", {**KEYS, "training.dataset_path": headers_text(Path(where) / "text", 1 << 18)})
            until("it trains", lambda: d.status(job)["step"] > 2, 60)
            # As the daemon sees it: full of names.
            inside, filler = Path(f"/proc/{d.process.pid}/root{state}/jobs"), []
            try:
                while True:
                    filler.append(inside / f"filler-{len(filler)}")
                    filler[-1].touch()
            except OSError as e:
                assert e.errno == 28, e
                filler.pop()
            (pid,) = d.workers(job).values()
            os.kill(pid, signal.SIGKILL)
            until("it says what is short", lambda: said(d.status(job), "cannot start a worker", "No space left", "trying again"), 30)
            for path in filler:
                path.unlink()
            step = d.status(job)["step"]
            until("it trains again", lambda: d.status(job)["state"] == "RUNNING" and d.status(job)["step"] > step, 60)
            assert d.status(job)["restarts"] == 1, d.status(job)
            d.ok("cancel", job)


def no_room_for_data():
    """a disk that is full while a worker puts its data there: nothing counts, the job says why and trains when there is room"""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        return "needs a mount namespace of its own (root)"
    with tempfile.TemporaryDirectory(prefix="titan-short-") as where:
        state, program, data = Path(where) / "state", Path(where) / "titand", Path(where) / "data.jsonl"
        data.write_text(('{"text": "' + "word " * 12 + '"}\n') * 65000)
        program.write_text("#!/bin/sh\n"
                           f"mkdir -p {state}/jobs\n"
                           f"exec unshare -m sh -c 'mount -t tmpfs -o size=2m tmpfs {state}/jobs && exec {BIN}/titand \"$@\"' sh \"$@\"\n")
        program.chmod(0o755)
        with Daemon(state, "--slots", 1, "--allow-root", program=program) as d:
            job = d.submit("tiny", {**KEYS, "training.dataset": "jsonl", "training.dataset_path": str(data)})
            until("it says what is short", lambda: said(d.status(job), "cannot start a worker", "No space left", "trying again"), 30)

            def ends():
                return [e for e in d.lines("events", job) if e["type"] == "worker.exited"]
            until("it is tried again", lambda: len(ends()) > 2)
            assert all(e["detail"]["exit_code"] == 71 and not e["detail"]["counted"] for e in ends()), ends()
            times = [datetime.fromisoformat(e["at"].replace("Z", "+00:00")).timestamp() for e in ends()]
            assert all(b - a >= 1 for a, b in zip(times, times[1:])), times
            subprocess.run(["nsenter", "-m", "-r", "-t", str(d.process.pid), "mount", "-o", "remount,size=64m", f"{state}/jobs"], check=True)
            until("it trains", lambda: d.status(job)["step"] > 2, 60)
            assert d.status(job)["restarts"] == 0 and not d.status(job).get("losses"), d.status(job)
            d.ok("cancel", job)


tap(no_descriptor, no_room, no_room_for_data)
