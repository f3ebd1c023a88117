#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A worker is killed while it trains: the run goes on, grows back, and its losses are those of an undisturbed run."""
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import FP_BIN, Daemon, Gate, headers_text, tap, until, worker_pids  # noqa: E402

KEYS = {"training.steps": 1000000, "elastic.min_workers": 2, "elastic.max_workers": 4, "checkpoint.interval": 5,
        "checkpoint.keep_latest_k": 3, "numerics.canonical": "true", "training.mixed_precision_param": "float32",
        "training.global_batch_size": 8, "training.local_batch_size": 1, "fault_tolerance.backoff_ms": 50,
        "training.seq_len": 32, "device.threads": 1}


def recovered(d, job):
    return [e for e in d.lines("events", job) if e["type"] == "recovery.finished"]


def worlds(d, job):
    return [e["detail"]["world"] for e in d.lines("events", job) if e["type"] == "epoch.formed"]


def losses(d, job):
    """step -> loss; every step was trained once."""
    rows = d.lines("metrics", job)
    assert [m["step"] for m in rows] == list(range(1, len(rows) + 1)), "steps are missing, or were trained twice"
    return {m["step"]: m["loss"] for m in rows}


def losses_survive(optimizer, kills, place="train.step"):
    folder = Path(tempfile.mkdtemp(prefix="titan-test-"))
    gate = Gate(folder, FP_BIN / "titan-worker")
    with Daemon(folder / "state", "--slots", 4, "--worker", gate.program, env={"TITAN_FAILPOINTS": f"{place}=sleep:20@1+"}) as d:
        keys = {**KEYS, **optimizer, "training.dataset_path": headers_text(folder / "text")}
        job = d.submit("tiny", keys)

        def train(world, beyond):
            return until(f"{world} workers train", lambda: (lambda s: s["state"] == "RUNNING" and s["world_size"] == world and s["checkpoint"]
                                                            and s["step"] > beyond and s)(d.status(job)))
        step = train(4, 0)["step"]
        for kill in range(kills):
            workers = d.workers(job)
            gate.close()
            os.kill(workers[max(workers) if kill else min(workers)], signal.SIGKILL)
            until("the run has recovered", lambda: len(recovered(d, job)) > kill)
            detail = recovered(d, job)[kill]["detail"]
            print(f"# a step {detail['recovery_ms']} ms after the loss", flush=True)
            assert detail["rung"] == "buddy" and detail["resume_step"] >= step, (detail, step)
            step = train(3, step + 5)["step"]
            gate.open()
            step = train(4, step + 5)["step"]
        d.ok("cancel", job)
        d.wait_state(job, "CANCELLED")
        disturbed, sizes, status = losses(d, job), worlds(d, job), d.status(job)
        assert sizes == [4] + kills * [3, 4], sizes
        assert status["restarts"] == kills, status

        job = d.submit("tiny", keys)
        until("as many steps are done", lambda: d.status(job)["step"] >= max(disturbed))
        d.ok("cancel", job)
        d.wait_state(job, "CANCELLED")
        calm = losses(d, job)
        different = [s for s in disturbed if disturbed[s] != calm.get(s)]
        assert not different, f"{len(different)} losses differ, the first at step {different[0]}"
        until("no worker is left", lambda: not worker_pids(d.state))
    shutil.rmtree(folder)


def losses_survive_two_kills():
    """two workers killed: 4 -> 3 -> 4 twice, no step is lost, every loss is that of an undisturbed run, bit for bit"""
    losses_survive({}, 2)


def losses_survive_with_two_optimizers():
    """so they are where the layers' matrices keep other state than the rest"""
    losses_survive({"optimizer.name": "Lion", "optimizer.lr": 1e-3, "optimizer.rest": "AdEMAMix", "optimizer.rest_lr": 3e-3}, 1)


def losses_survive_with_codes():
    """so they are with moments in 8 bits"""
    losses_survive({"optimizer.state_dtype": "int8"}, 1)


def losses_survive_in_the_direction_section():
    """so they are where workers spend their time between AGREE and COMMIT, and where it is between COMMIT's sum and the update"""
    losses_survive({"optimizer.name": "StableAdamW", "optimizer.stable_adamw.threshold": 0.5}, 1, "exec.committed")


def losses_survive_with_owners():
    """so they are where owners keep the state of whole matrices"""
    losses_survive({"optimizer.name": "Muon", "optimizer.lr": 0.01, "optimizer.rest_lr": 3e-3}, 1, "exec.directed")
    losses_survive({"optimizer.name": "GaLore2", "optimizer.lr": 0.01, "optimizer.rest_lr": 3e-3, "optimizer.galore.interval": 7}, 1,
                   "exec.committed")


def hung_worker_is_not_forgotten_on_cancel():
    """a stopped worker (SIGSTOP) does not keep a cancelled run alive"""
    with Daemon(None, "--slots", 2) as d:
        job = d.submit("tiny", {**KEYS, "elastic.max_workers": 2,
                                "training.dataset_path": headers_text(d.state / "text")})
        until("it trains", lambda: d.status(job)["step"] > 2)
        os.kill(max(d.workers(job).values()), signal.SIGSTOP)
        d.ok("cancel", job, "--grace", "1")
        d.wait_state(job, "CANCELLED")
        until("no worker is left", lambda: not worker_pids(d.state))


def crash_loop_ends_the_job():
    """a worker that dies at once on every start: the job fails with the reason, after its budget, without a busy loop"""
    with Daemon(None, "--slots", 2, "--worker", "/bin/false") as d:
        job = d.submit("tiny", {**KEYS, "elastic.min_workers": 1, "elastic.max_workers": 1,
                                "fault_tolerance.max_restarts": 3, "fault_tolerance.backoff_ms": 50,
                                "training.dataset_path": headers_text(d.state / "text")})
        status = d.wait_state(job, "FAILED")
        assert "restart" in status["reason"], status["reason"]
        started = [e for e in d.lines("events", job) if e["type"] == "worker.started"]
        assert len(started) == 4, f"{len(started)} starts for a budget of 3 restarts"
        assert d.ctl("wait", job).code == 1


tap(losses_survive_two_kills, losses_survive_with_two_optimizers, losses_survive_with_codes, losses_survive_in_the_direction_section,
    losses_survive_with_owners, hung_worker_is_not_forgotten_on_cancel, crash_loop_ends_the_job)
