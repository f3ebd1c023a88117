#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is reported of a job is true after a pause, a kill and a restart: status, list, events, metrics and files agree."""
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from cluster import CGROUPS, Cgroup  # noqa: E402
from nodes import Cluster  # noqa: E402
from reports import agree  # noqa: E402
from titan import Daemon, alive, calm, command, headers_text, slow, tap, until, worker_pids  # noqa: E402


LEASE = ("--lease-ms", 86400000)  # a busy machine takes longer for the steps than workers train without an agent


def keys(d, steps, **more):
    return {"training.dataset_path": headers_text(d.state / "text", 1 << 18), "training.steps": steps, "elastic.min_workers": 2,
            "elastic.max_workers": 2, "device.threads": 1, "training.local_batch_size": 2, "checkpoint.interval": 20,
            **{k.replace("__", "."): v for k, v in more.items()}}


def trains(d, job, step):
    until(f"job {job} is beyond step {step}", lambda: d.status(job)["step"] > step)


def ends(d, job, steps):
    """The run has written its last step down, heard of or not."""
    path = d.state / "jobs" / job / "metrics.jsonl"
    until(f"step {steps} is in the file", lambda: f'"step":{steps},' in path.read_text())


def completed(d, job):
    assert d.ctl("wait", job).code == 0, d.status(job)
    return agree(d.ok, job)


def paused():
    """titand stands still while the run ends: its session with the coordinator does not outlive that, and takes reports with it"""
    d = Daemon(None, "--slots", 2, *LEASE, pace_ms=10)
    (d.state / "short.toml").write_text(calm().replace("away_ms = 20000", "away_ms = 200"))
    d.args += ("--config", d.state / "short.toml")
    with d:
        job = d.submit("tiny", keys(d, 80))
        trains(d, job, 20)
        d.process.send_signal(signal.SIGSTOP)
        ends(d, job, 80)
        d.process.send_signal(signal.SIGCONT)
        completed(d, job)


def unread():
    """titand stands still for more steps than its workers keep reports of"""
    with Daemon(None, "--slots", 1, *LEASE) as d:
        job = d.submit("tiny", keys(d, 3000, elastic__min_workers=1, elastic__max_workers=1, training__seq_len=16,
                                    training__local_batch_size=1, checkpoint__enable="false"))
        trains(d, job, 5)
        d.process.send_signal(signal.SIGSTOP)
        ends(d, job, 3000)
        d.process.send_signal(signal.SIGCONT)
        assert len(completed(d, job).metrics) == 3000


def killed():
    """titand is killed while the run ends, and started again; a worker is killed before"""
    with Daemon(None, "--slots", 2, *LEASE, pace_ms=10) as d:
        job = d.submit("tiny", keys(d, 80, fault_tolerance__backoff_ms=10))
        trains(d, job, 10)
        os.kill(max(d.workers(job).values()), signal.SIGKILL)
        trains(d, job, 25)
        d.kill()
        ends(d, job, 80)
        d.start()
        r = completed(d, job)
        assert r.status["restarts"] > 0, r.status


@contextlib.contextmanager
def full(d):
    """A job that has a checkpoint, on a disk that is full since; yields it and a way to make room."""
    place = d.state / "small"
    place.mkdir(exist_ok=True)
    if command("mount", "-t", "tmpfs", "-o", "size=8m", "none", place).code != 0:
        yield None, None
        return
    try:
        job = d.submit("tiny", keys(d, 1000000, checkpoint__folder=place / "ck", checkpoint__interval=10))
        until("there is a checkpoint", lambda: d.status(job)["checkpoint"])
        with contextlib.suppress(OSError), open(place / "filler", "wb", buffering=0) as f:
            while True:
                f.write(bytes(1 << 16))
        more_fail(d, job, 0)
        yield job, (place / "filler").unlink
    finally:
        command("umount", "-l", place)


def more_fail(d, job, n):
    failures = d.status(job)["checkpoint_failures"]
    until(f"more than {n} checkpoints more have failed", lambda: d.status(job)["checkpoint_failures"] > failures + n)


def last_checkpoint_lost():
    """cancel --checkpoint on a full disk: reason, wait and status say that it was not written, why, and which is the newest"""
    with Daemon(None, "--slots", 2, pace_ms=10) as d, full(d) as (job, _):
        if not job:
            return "cannot mount"
        done = d.ctl("cancel", job, "--checkpoint", "--grace", 1, "--wait")
        waited = d.ctl("wait", job)
        s = agree(d.ok, job).status
        newest = int(s["checkpoint"][-8:])
        assert done.code == 1 and done.out == f"job {job} CANCELLED: {s['reason']}\n" and waited.code == 1, (done, waited, s)
        assert done.err == waited.err == f"titanctl: job {job} was cancelled: {s['reason']}\n", (done, waited, s)
        assert f"the checkpoint of step {s['step']} was not written to " in s["reason"] and newest < s["step"], s
        assert s["reason"].endswith(f"No space left on device; the newest checkpoint is of step {newest}: {s['checkpoint']}"), s


def last_checkpoint_late():
    """the same, and there is room before its time is over"""
    with Daemon(None, "--slots", 2, pace_ms=10) as d, full(d) as (job, make_room):
        if not job:
            return "cannot mount"
        d.ok("cancel", job, "--checkpoint")
        more_fail(d, job, 1)
        s = d.status(job)
        assert s["state"] == "CANCELLING" and "asked for by" in s["reason"] and "No space left on device" in s["reason"], s
        make_room()
        done = d.ctl("cancel", job, "--checkpoint", "--wait")  # asked for once more, if it has not ended by now
        s = agree(d.ok, job).status
        assert f"; checkpoint of step {s['step']}: {s['checkpoint']}" in s["reason"], s
        assert done.code == 0 or "has just ended" in done.err or "has already ended" in done.err, done


@slow
def last_checkpoint_waited_for():
    """it is tried for two minutes, as that of a job that gives way: in the ten seconds of a plain cancel six times"""
    with Daemon(None, "--slots", 2, pace_ms=10) as d, full(d) as (job, make_room):
        if not job:
            return "cannot mount"
        d.ok("cancel", job, "--checkpoint")
        more_fail(d, job, 6)
        make_room()
        d.ctl("wait", job)
        s = agree(d.ok, job).status
        assert f"; checkpoint of step {s['step']}: {s['checkpoint']}" in s["reason"], s


# Takes memory beyond the limit of the cgroup that it enters, until a process in that is killed; itself, or one with a higher score.
HOG = """
import mmap, os, sys
def kills():
    return open(sys.argv[1] + "/memory.oom_control").read().split("oom_kill ")[1]
open("/proc/self/oom_score_adj", "w").write("300")
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
kept, before = [], kills()
while kills() == before:
    kept.append(mmap.mmap(-1, 1 << 19, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    kept[-1].write(bytes(1 << 19))
"""


def hog(group):
    return subprocess.run([sys.executable, "-S", "-c", HOG, group], stderr=subprocess.DEVNULL, check=False).returncode


def elsewhere_memory():
    """a process elsewhere is killed for its memory, and then a worker by kill -9: that is no want of memory, nor counted as one"""
    group = Cgroup(f"titan-reports-{os.getpid()}")
    if os.geteuid() != 0 or "memory" not in CGROUPS:
        return "needs root and the memory controller"
    with Daemon(None, "--slots", 2, pace_ms=10) as d:
        try:
            limit = group.folder("memory")
            (limit / "memory.limit_in_bytes").write_text(str(64 << 20))
            job = d.submit("tiny", keys(d, 1000000, fault_tolerance__max_ooms=0, fault_tolerance__backoff_ms=10))
            trains(d, job, 5)
            assert hog(limit) == -signal.SIGKILL
            for epoch in (1, 2):
                os.kill(max(d.workers(job).values()), signal.SIGKILL)
                until("it is whole again", lambda: d.status(job)["epoch"] > epoch and d.status(job)["state"] == "RUNNING")
            killed = [e for e in d.lines("events", job) if e["type"] == "worker.exited" and e["detail"]["signal"] == signal.SIGKILL]
            assert len(killed) == 2 and not [e for e in killed if "out of memory" in e["message"]], killed
            assert {loss["cause"]: loss["count"] for loss in d.status(job)["losses"]} == {"crash": 2}, d.status(job)
            d.ok("cancel", job)
            d.ctl("wait", job)
            agree(d.ok, job)
        finally:
            group.close()


def own_memory():
    """a cgroup of version 1 is out of memory, and a worker in it is killed: its limit is named, not the machine's"""
    group = Cgroup(f"titan-reports-{os.getpid()}")
    if os.geteuid() != 0 or "memory" not in CGROUPS:
        return "needs root and the memory controller of version 1"
    with Daemon(None, "--slots", 1, pace_ms=10) as d:
        try:
            limit = group.folder("memory")
            group.add("memory", d.process.pid)
            job = d.submit("tiny", keys(d, 1000000, elastic__min_workers=1, elastic__max_workers=1, checkpoint__enable="false",
                                        fault_tolerance__backoff_ms=60000, fault_tolerance__backoff_max_ms=60000))
            trains(d, job, 5)
            (victim,) = d.workers(job).values()
            Path(f"/proc/{victim}/oom_score_adj").write_text("1000")
            (limit / "memory.force_empty").write_text("0")
            most = int((limit / "memory.usage_in_bytes").read_text()) + (16 << 20)
            (limit / "memory.limit_in_bytes").write_text(str(most))
            while alive(victim):  # or it was taken itself
                hog(limit)
            end = until("the worker is killed", lambda: [e for e in d.lines("events", job) if e["type"] == "worker.exited"])[0]
            (limit / "memory.limit_in_bytes").write_text("-1")
            mib = int((limit / "memory.max_usage_in_bytes").read_text()) / (1 << 20)
            assert f"out of memory: limit {mib:.1f} MiB (of {group.name}), peak {mib:.1f} MiB (oom_kill " in end["message"], (end, mib)
            assert {loss["cause"]: loss["count"] for loss in d.status(job)["losses"]} == {"oom": 1}, d.status(job)
            d.ok("cancel", job)
            d.ctl("wait", job)
            agree(d.ok, job)
        finally:
            d.stop()
            group.close()


def agent_gone():
    """cancel of a job on a node without an agent: the reason says that its workers may run on"""
    with Cluster(slots={"n1": 2}, config="[detection]\nhang_floor_ms = 30000\n", pace_ms=20) as c:
        job = c.submit({"training.dataset_path": headers_text(c.dir / "text", 1 << 18), "training.steps": 1000000, "device.threads": 1,
                        "elastic.min_workers": 2, "elastic.max_workers": 2, "training.local_batch_size": 1})
        c.training(job, 2, 3)
        c.kill("n1")
        s = c.cancel(job)
        assert len(worker_pids(c.dir / "n1")) == 2, "they run on"
        assert s["reason"].endswith("; 2 workers may run on until the lease is over: node n1 does not answer"), s


def unknown():
    """the loss of a job that has ended is in no row of the store, and then not in metrics.db: it is read from the job's folder at the next start"""
    with Daemon(None, "--slots", 1) as d:
        job = d.submit("tiny", keys(d, 20, elastic__min_workers=1, elastic__max_workers=1))
        loss = completed(d, job).status["loss"]
        for lost in ((), d.state.glob("metrics.db*")):
            d.stop()
            with sqlite3.connect(d.state / "titan.db") as db:
                db.execute("UPDATE jobs SET loss = NULL, tokens_per_second = 0, mfu = 0")
            db.close()
            for path in lost:
                path.unlink()
            d.start()
            until("the loss is known again", lambda: d.status(job)["loss"] == loss)
            agree(d.ok, job)


tap(paused, unread, killed, last_checkpoint_lost, last_checkpoint_late, last_checkpoint_waited_for, elsewhere_memory, own_memory, agent_gone, unknown)
