#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What a run tells of its steps: a rank that is slowed on purpose is the slowest, in metrics.jsonl, in `titanctl metrics` and in the table;
a disk that is full costs lines and no step."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, FP_BIN, SOURCE, Daemon, overrides, tap  # noqa: E402

STEPS = 5
KEYS = {"training.steps": STEPS, "training.global_batch_size": 4, "training.local_batch_size": 2, "training.seq_len": 32,
        "device.threads": 1, "training.dataset_path": SOURCE / "base", "checkpoint.enable": "false", "metrics.log_freq": 1}
PARTS = ("data_ms", "compute_ms", "communication_ms", "checkpoint_ms", "straggler_ms")
SPLIT = (*PARTS, "slowest_rank", "slowest_busy_ms")


def slowed():
    """rank 1 stops for a millisecond before each action: it is the slowest of the steps, and the other one waits for it"""
    with Daemon(None, "--slots", 2, program=FP_BIN / "titand", env={"TITAN_FAILPOINTS": "exec.action%1=sleep:1@1+"}) as d:
        job = d.submit("tiny", {**KEYS, "elastic.min_workers": 2, "elastic.max_workers": 2})
        d.wait_state(job, "COMPLETED")
        lines = [json.loads(line) for line in open(Path(d.status(job)["directory"]) / "metrics.jsonl")]
        told, table = d.lines("metrics", job), d.ok("metrics", job, "--split").splitlines()
    assert [m["step"] for m in told] == [m["step"] for m in lines] == list(range(1, STEPS + 1)), (told, lines)
    for m, line in zip(told, lines):
        assert m["split"] == {k: line[k] for k in SPLIT}, (m, line)
        assert m["loss_max"] == line["loss_max"] >= line["loss"] and m["memory_bytes"] == line["memory_bytes"], (m, line)
        assert 1 << 20 < line["memory_bytes"] < 1 << 32 and line["mfu_causal"] < line["mfu"], line
    assert all(line[part] >= 0 for line in lines for part in PARTS), lines
    # Of two ranks one waits: half of what it waits is the mean. In one step the machine itself may have stood still.
    seen = [line for line in lines if line["slowest_rank"] == 1 and line["straggler_ms"] > 0.3 * line["slowest_busy_ms"] > 30]
    assert len(seen) >= STEPS - 1, lines
    assert table[0].split()[-3:] == ["its", "busy", "memory"] and len(table) == 1 + STEPS, table
    assert [row.split()[0] for row in table[1:]] == [str(m["step"]) for m in told], table
    assert all(str(m["split"]["slowest_rank"]) in row.split()[1:] for m, row in zip(told, table[1:])), table


def full_disk():
    """metrics.jsonl on a disk that is full, and event files in a folder that cannot be: every step is made all the same"""
    with tempfile.TemporaryDirectory(prefix="titan-metrics-") as folder:
        (Path(folder) / "metrics.jsonl").symlink_to("/dev/full")
        (Path(folder) / "tb").symlink_to("/dev/full")
        done = subprocess.run([BIN / "titan-worker", "run", SOURCE / "recipes/tiny.toml", "-n", "2", "--dir", folder,
                               *overrides({**KEYS, "metrics.enable_tensorboard": "true"})], capture_output=True, text=True,
                              env=os.environ, timeout=60)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and f"step={STEPS} loss=" in said and "no more TensorBoard events" in said, said


tap(slowed, full_disk)
