#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A member is lost while there is no coordinator: the agents of the others form the next epoch, and the coordinator goes on from
it when it is back."""
import os
import re
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from nodes import Cluster  # noqa: E402
from titan import calm, headers_text, pause, tap, until  # noqa: E402

KEYS = {"elastic.min_workers": 2, "elastic.max_workers": 4, "checkpoint.interval": 100000,
        "training.global_batch_size": 12, "training.local_batch_size": 1, "training.seq_len": 16, "device.threads": 1,
        "training.mixed_precision_param": "float32", "fault_tolerance.backoff_ms": 50, "training.steps": 1000000,
        "fault_tolerance.max_restarts": 20}
CONFIG = calm().replace("away_ms = 20000", "away_ms = 500") + "leader_lease_ms = {lease}\n"


IN_MEMORY = ("memory", "replica", "buddy")


def begun(c):
    """(epoch, workers, step it began at) of every epoch a worker has begun, in the order of the epochs."""
    found = set()
    for log in c.dir.glob("c/jobs/*/logs/worker-*.log"):
        for line in log.read_text(errors="replace").splitlines():
            m = re.search(r"epoch begins .*epoch=(\d+) workers=(\d+) .*step=(\d+) state=(\w+)", line)
            if m:
                found.add((int(m[1]), int(m[2]), int(m[3]), m[4]))
    return sorted(found)


def worker_lost():
    """a worker is lost while the coordinator is away: three train on from memory, and it adopts their epoch"""
    with Cluster(slots={"n1": 2, "n2": 1, "n3": 1}, config=CONFIG.format(lease=120000), pace_ms=20) as c:
        job = c.submit({**KEYS, "training.dataset_path": headers_text(c.dir / "text")})
        s = c.training(job, 4, 5)
        victim = [e for e in c.events(job) if e["type"] == "worker.started" and e["node"] == "n3"][-1]["detail"]["pid"]
        c.kill("c")
        os.kill(victim, signal.SIGKILL)
        until("an epoch without a coordinator", lambda: any(e[0] == 1024 for e in begun(c)), 20)
        epoch = [e for e in begun(c) if e[0] == 1024][0]
        assert epoch[1] == 3 and epoch[3] in IN_MEMORY, epoch
        assert epoch[2] >= s["step"], f"{s['step']} steps were done, it went on from {epoch[2]}"
        c.restart_coordinator()
        after = c.training(job, 4, epoch[2])
        assert after["epoch"] > 1024, after
        until("it is told", lambda: "epoch.delegated" in [e["type"] for e in c.events(job)])
        steps = [e[2] for e in begun(c)]
        assert steps == sorted(steps), begun(c)
        assert all(e[3] in IN_MEMORY for e in begun(c)[1:]), begun(c)
        c.cancel(job)


def lease_over():
    """no coordinator for the whole lease: workers pause with their state, and train on when there is one again"""
    with Cluster(slots={"n1": 2, "n2": 1}, config=CONFIG.format(lease=3000), pace_ms=20) as c:
        job = c.submit({**KEYS, "training.dataset_path": headers_text(c.dir / "text"), "elastic.max_workers": 3})
        s = c.training(job, 3, 5)
        c.kill("c")
        until("they pause", lambda: all("pause until" in (c.dir / f"{n}.log").read_text() for n in c.slots), 20)
        pause(1, "for longer than the lease")
        c.restart_coordinator()
        c.training(job, 3, s["step"])
        assert all(e[3] in IN_MEMORY for e in begun(c)[1:]), begun(c)
        assert not any(e["type"] == "worker.exited" for e in c.events(job)), "no worker had to be started anew"
        c.cancel(job)


tap(worker_lost, lease_over)
