#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A worker that hangs is found at once, and one that merely has no processor is left alone, with the limits of titand's defaults."""
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from cluster import CGROUPS, Cgroup  # noqa: E402
from titan import CALM, FP_BIN, Daemon, headers_text, pause, tap, until  # noqa: E402


def daemon(*args, env=None):
    d = Daemon(None, "--slots", 2, *args, env=env)
    (d.state / "limits.toml").write_text(CALM.replace("hang_floor_ms = 30000", "hang_floor_ms = 300"))
    d.args += ("--config", d.state / "limits.toml")
    return d


def submit(d):
    return d.submit("tiny", {"training.dataset_path": headers_text(d.state / "text", 1 << 18), "training.steps": 1000000,
                             "elastic.min_workers": 2, "elastic.max_workers": 2, "device.threads": 1, "training.local_batch_size": 1,
                             "checkpoint.enable": "false", "fault_tolerance.backoff_ms": 10, "fault_tolerance.max_restarts": 1000000})


def stalled(d, job):
    return [e for e in d.lines("events", job) if e["type"] == "worker.stalled"]


def no_processor():
    """for seconds a worker gets a thousandth of a processor: it is not taken for hung, and goes on"""
    if os.geteuid() != 0 or not (CGROUPS["cpu"] / "cpu.cfs_quota_us").exists():
        return "needs root and the cpu controller of version 1"
    group, d = Cgroup(f"titan-hung-{os.getpid()}"), daemon()
    try:
        with d:
            job = submit(d)
            until("its pace is known", lambda: d.status(job)["step"] > 100)
            limit = group.folder("cpu")
            (limit / "cpu.cfs_period_us").write_text("1000000")
            (limit / "cpu.cfs_quota_us").write_text("1000")
            group.add("cpu", max(d.workers(job).values()))
            found = len(stalled(d, job))  # on a machine that does nothing else there is none
            pause(3, "ten times the time in which a worker that hangs is found")
            during = stalled(d, job)[found:]
            at = d.status(job)["step"]
            (limit / "cpu.cfs_quota_us").write_text("-1")
            until("it goes on", lambda: d.status(job)["step"] > at + 10)
            assert not during, during
    finally:
        d.stop()
        group.close()


def hangs():
    """a step that does not end, while its processor is free"""
    with daemon("--worker", FP_BIN / "titan-worker", env={"TITAN_FAILPOINTS": "train.step=sleep:600000@60"}) as d:
        job = submit(d)
        (first, *_) = until("it is found", lambda: stalled(d, job))
        assert not first["detail"]["stopped"] and first["detail"]["step"] >= 50, first
        until("another epoch is formed", lambda: d.status(job)["epoch"] > 1)


tap(no_processor, hangs)
