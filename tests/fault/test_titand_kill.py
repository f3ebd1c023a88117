#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""titand is killed with SIGKILL during a run and started again, five times: the run goes on, nothing submitted is lost, no
process is left over."""
import json
import os
import random
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import Daemon, headers_text, pause, tap, until, worker_pids  # noqa: E402

ROUNDS = 5
KEYS = {"elastic.min_workers": 2, "elastic.max_workers": 2, "checkpoint.interval": 10, "training.global_batch_size": 2,
        "training.local_batch_size": 1, "training.seq_len": 16, "device.threads": 1, "fault_tolerance.max_restarts": 100,
        "training.mixed_precision_param": "float32", "fault_tolerance.backoff_ms": 50}
SEED = int(os.environ.get("TITAN_TEST_SEED") or random.randrange(1 << 32))


def training(d, job, beyond):
    def check():
        s = d.status(job)
        assert s["state"] not in ("FAILED", "CANCELLED", "COMPLETED"), s
        return s["state"] == "RUNNING" and s["step"] > beyond and s
    return check


def killed_again_and_again():
    """SIGKILL of titand in five rounds: workers train on, are adopted, and no job is lost"""
    rng = random.Random(SEED)
    print(f"# TITAN_TEST_SEED={SEED}")
    with Daemon(None, "--slots", 2, pace_ms=20) as d:
        keys = {**KEYS, "training.dataset_path": headers_text(d.state / "text"), "training.steps": 1000000}
        job = d.submit("tiny", keys)
        submitted, step, same = {job}, 0, 0
        for n in range(ROUNDS):
            s = until(f"round {n}: it trains", training(d, job, step), 30)
            before = set(worker_pids(d.state))
            # Accepted right before the end: must be there afterwards.
            submitted.add(d.submit("tiny", {**keys, "training.steps": 1}, "--idempotency-key", f"round-{n}"))
            pause(rng.uniform(0, 0.05), "somewhere on its way")
            d.kill()
            pause(rng.uniform(0, 0.3), "without a titand")
            d.start()
            assert {j["id"] for j in d.jobs()} == {int(j) for j in submitted}, "a job is lost"
            again = d.submit("tiny", {**keys, "training.steps": 1}, "--idempotency-key", f"round-{n}")
            assert again in submitted, "the same key made another job"
            until(f"round {n}: it goes on", training(d, job, s["step"]), 30)
            same += set(worker_pids(d.state)) == before
            step = d.status(job)["step"]
        assert same == ROUNDS, f"the workers survived {same} of {ROUNDS} rounds only"
        told = lambda: [m["step"] for m in d.lines("metrics", job)]
        until("each step is told of while it runs", lambda: (t := told()) == list(range(1, len(t) + 1)) and len(t) >= step)
        d.ok("cancel", job)
        d.wait_state(job, "CANCELLED", seconds=30)
        written = {json.loads(line)["step"] for line in (d.state / f"jobs/{job}/metrics.jsonl").read_text().splitlines()}
        points = [m["step"] for m in d.lines("metrics", job)]
        assert points == sorted(written), f"{len(written)} steps were written, {len(points)} are told of"
        for other in submitted - {job}:
            d.wait_state(other, "COMPLETED", seconds=60)
        until("no worker is left", lambda: not worker_pids(d.state), 10)


def killed_with_its_workers():
    """titand and all workers killed at once: the run is resumed from its checkpoint"""
    with Daemon(None, "--slots", 2, pace_ms=20) as d:
        keys = {**KEYS, "training.dataset_path": headers_text(d.state / "text"), "training.steps": 1000000}
        job = d.submit("tiny", keys)
        s = until("it has a checkpoint", lambda: (lambda s: s["checkpoint"] and s)(d.status(job)), 30)
        pids = worker_pids(d.state)
        d.kill()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        d.start()
        again = until("it goes on", lambda: [m for m in d.lines("metrics", job) if m["epoch"] > s["epoch"]], 60)
        # Where nothing behind it was published, the checkpoint's own step is counted in the new epoch.
        assert again[0]["step"] >= 10, f"resumed at step {again[0]['step']}"
        sources = [e["detail"].get("source") for e in d.lines("events", job) if e["type"] == "epoch.forming"]
        assert sources[-1] == "checkpoint", f"epochs formed from {sources}, the last at step {again[0]['step']}"
        d.ok("cancel", job)
        d.wait_state(job, "CANCELLED", seconds=30)
        until("no worker is left", lambda: not worker_pids(d.state), 10)


def never_started_again():
    """without a titand, workers stop by themselves when their lease is over"""
    with Daemon(None, "--slots", 2, "--lease-ms", 2000) as d:
        keys = {**KEYS, "training.dataset_path": headers_text(d.state / "text"), "training.steps": 1000000}
        job = d.submit("tiny", keys)
        until("it trains", training(d, job, 5), 30)
        assert len(worker_pids(d.state)) == 2
        d.kill()
        until("workers are gone", lambda: not worker_pids(d.state))
        d.start()
        ends = lambda: [e["message"].split(" ", 2)[2] for e in d.lines("events", job) if e["type"] in ("worker.exited", "worker.lost")]
        until("both ends are told of", lambda: len(ends()) == 2)
        until("it is resumed", lambda: [e for e in d.lines("events", job) if e["type"] == "recovery.finished"])
        assert ends() == 2 * ["left: no agent for the whole lease"], ends()


def stopped_and_started():
    """SIGTERM stops workers with a checkpoint; the next titand resumes the run there, and nothing counts against it"""
    with Daemon(None, "--slots", 2, "--grace-ms", 120000, pace_ms=20) as d:
        keys = {**KEYS, "training.dataset_path": headers_text(d.state / "text"), "training.steps": 1000000,
                "checkpoint.interval": 1000000}
        job = d.submit("tiny", keys)
        s = until("it trains", training(d, job, 5), 30)
        d.stop()
        assert d.process.returncode == 0, d.log()
        assert not worker_pids(d.state), "workers outlived an orderly stop"
        d.start()
        points = lambda: [m["step"] for m in d.lines("metrics", job) if m["epoch"] > s["epoch"]]
        first = min(until("it goes on", points, 30))
        assert first > s["step"], f"resumed at step {first}, had done {s['step']}"
        assert d.status(job)["restarts"] == 0 and d.jobs()[0]["losses"] == [], d.status(job)


tap(killed_again_and_again, killed_with_its_workers, never_started_again, stopped_and_started)
