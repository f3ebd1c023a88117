#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The queue serves all users: what one user asks for, however much, keeps no slots from another that could use them."""
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import Daemon, SOURCE, headers_text, overrides, tap, until  # noqa: E402

SLOTS = 4
LONG = 1000000


def keys(d, workers=1, steps=2, **more):
    return {"training.dataset_path": headers_text(d.state / "text", 1 << 18), "training.steps": steps, "training.seq_len": 16,
            "training.local_batch_size": 1, "training.global_batch_size": workers, "elastic.min_workers": workers,
            "elastic.max_workers": workers, "device.threads": 1, **{k.replace("__", "."): v for k, v in more.items()}}


def submit(d, user, *args, **of):
    done = d.ctl("submit", SOURCE / "recipes/tiny.toml", *overrides(keys(d, **of)), "--for", user, *args)
    assert done.code == 0, done
    return [int(line) for line in done.out.split()]


def sweep(n):
    return "--sweep", "training.seed=" + ",".join(map(str, range(1, n + 1)))


def counter(d, name):
    return next(int(c["value"]) for c in json.loads(d.ok("-o", "json", "counters"))["counters"] if c["name"] == name)


def too_large_jobs():
    """300 jobs of one user that the cluster cannot hold: another's job runs beside them as if they were not there"""
    with Daemon(None, "--slots", SLOTS) as d:
        until("the node is there", lambda: "ready" in d.ctl("nodes").out)
        large = submit(d, "mallory", *sweep(300), workers=64)
        assert len(large) == 300
        looks = counter(d, "queue_looks")
        (job,) = submit(d, "alice")
        assert d.wait_state(job, "COMPLETED")["user"] == "alice"
        assert counter(d, "queue_looks") == looks + 1
        waits = d.status(large[-1])
        assert waits["state"] == "PENDING", waits
        assert waits["reason"] == f"waiting for nodes: the run needs 64 workers, all nodes together have {SLOTS} slots", waits
        listed = d.jobs()
        assert sum(j["state"] == "PENDING" and j["reason"] == waits["reason"] for j in listed) == 300


def passed_and_given_back():
    """a job that waits for all slots is passed by one that runs on idle ones, which gives them back with a checkpoint and goes on later"""
    with Daemon(None, "--slots", SLOTS, pace_ms=20) as d:
        until("the node is there", lambda: "ready" in d.ctl("nodes").out)
        (runs,) = submit(d, "bob", steps=LONG)
        d.wait_state(runs, "RUNNING")
        (large,) = submit(d, "mallory", workers=SLOTS, steps=LONG)
        (short,) = submit(d, "alice")
        d.wait_state(short, "COMPLETED")
        (passing,) = submit(d, "alice", steps=LONG)
        until("it trains", lambda: d.status(passing)["step"] > 3)
        assert d.status(passing)["reason"] == f"backfill: job {large} comes first, and gets these slots when they are enough for it"
        assert d.status(large)["state"] == "PENDING"
        d.kill()
        d.start()  # it is kept
        until("it goes on", lambda: d.status(passing)["state"] == "RUNNING" and (d.status(passing)["reason"] or "").startswith("backfill: "))
        d.ok("cancel", runs)
        d.wait_state(large, "RUNNING")
        s = d.status(passing)
        assert (s["state"], s["preemptions"]) == ("PENDING", 1) and f"preempted by job {large}" in s["reason"], s
        assert s["checkpoint"], s
        d.ok("cancel", large)
        until("it goes on", lambda: d.status(passing)["step"] > s["step"])
        assert not d.status(passing)["reason"]


tap(too_large_jobs, passed_and_given_back)
