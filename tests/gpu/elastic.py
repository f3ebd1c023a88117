#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""elastic.py: the whole product on one GPU: titand with four slots on it, one of four workers killed with SIGKILL in the middle of a
run. It goes on with three or at once with a replacement, and its losses are those of an undisturbed run, bit for bit. TAP, and 'figure NAME VALUE'.
Needs titand and titanctl in $BUILD/bin beside the worker, and the CUDA plug-in in $BUILD/lib/titan."""
import os
import signal
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import Daemon, headers_text, tap, until  # noqa: E402

KEYS = {"device.name": "cuda", "training.steps": 100000, "elastic.min_workers": 2, "elastic.max_workers": 4, "checkpoint.enable": "false",
        "numerics.canonical": "true", "training.mixed_precision_param": "float32", "training.global_batch_size": 8,
        "training.local_batch_size": 1, "fault_tolerance.backoff_ms": 300, "training.seq_len": 32, "model.n_layers": 2, "model.dim": 32,
        "model.n_heads": 4, "model.n_kv_heads": 2, "model.ffn_hidden": 96}  # small: ranks that share a GPU wait for its time slices
# The GPU four times, and ranks that take themselves for ranks of four hosts, as NCCL wants it.
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "0,0,0,0", "TITAN_NCCL_SHARED_GPU": "1"}


def metrics(d, job):
    rows = d.lines("metrics", job)
    assert [m["step"] for m in rows] == list(range(1, len(rows) + 1)), "steps are missing, or were trained twice"
    return rows


def trained(d, job, world, step):
    """Wait until so many workers have trained up to a step, the status then."""
    def reached():
        s = d.status(job)
        return s["state"] == "RUNNING" and s["world_size"] == world and s["step"] >= step and s
    return until(f"{world} workers train step {step}", reached, 180)


def a_worker_is_killed():
    """one of four workers on a GPU is killed: the run goes on with four again, and its losses are those of an undisturbed run"""
    with Daemon(None, "--slots", 4, "--device", "cuda", env=ENVIRONMENT) as d:
        keys = {**KEYS, "training.dataset_path": headers_text(d.state / "text")}
        job = d.submit("tiny", keys)
        whole = trained(d, job, 4, 5)
        gpus = d.ok("nodes", "--gpus")
        print("# " + gpus.strip().replace("\n", "\n# "), flush=True)
        workers = d.workers(job)
        os.kill(workers[max(workers)], signal.SIGKILL)
        found = until("the run has recovered", lambda: [e["detail"] for e in d.lines("events", job) if e["type"] == "recovery.finished"], 120)
        print(f"figure kill_to_next_step_ms {found[0]['recovery_ms']}\nfigure rung {found[0]['rung']}", flush=True)
        opened = [line for line in d.ok("logs", job).splitlines() if "GPU opened" in line]
        print("# " + "\n# ".join(opened), flush=True)  # what a worker's opening took, part by part
        assert found[0]["resume_step"] >= whole["step"], (found, whole)
        last = trained(d, job, 4, found[0]["resume_step"] + 3)["step"] + 3
        trained(d, job, 4, last)
        d.ok("cancel", job)
        d.wait_state(job, "CANCELLED")
        disturbed = metrics(d, job)
        worlds = [e["detail"]["world"] for e in d.lines("events", job) if e["type"] == "epoch.formed"]
        print(f"figure worlds {','.join(map(str, worlds))}\nfigure step_ms {statistics.median(m['step_ms'] for m in disturbed):.1f}", flush=True)
        assert worlds[0] == worlds[-1] == 4 and len(worlds) > 1, worlds  # with three between, where the replacement takes longer to come
        job = d.submit("tiny", keys)
        trained(d, job, 4, last)
        d.ok("cancel", job)
        d.wait_state(job, "CANCELLED")
        pairs = list(zip(metrics(d, job), disturbed))
        different = [a["step"] for a, b in pairs if a["loss"] != b["loss"]]
        print(f"figure same_losses {len(pairs) - len(different)}\nfigure different_losses {len(different)}", flush=True)
        assert len(pairs) >= last and not different, f"of {len(pairs)} losses these differ: {different[:5]}"


tap(a_worker_is_killed)
