#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A worker is killed in an evaluation: the run goes on, and every evaluation is there once, with the numbers of an undisturbed
run."""
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import FP_BIN, Daemon, headers_text, tap  # noqa: E402

STEPS, FREQ = 12, 4
EVALUATED = [1, 4, 8, 12]
KEYS = {"training.steps": STEPS, "elastic.min_workers": 2, "elastic.max_workers": 3, "checkpoint.enable": "false",
        "numerics.canonical": "true", "training.mixed_precision_param": "float32", "training.global_batch_size": 6,
        "training.local_batch_size": 1, "fault_tolerance.backoff_ms": 100, "device.threads": 1, "validation.enable": "true",
        "validation.freq": FREQ, "validation.steps": 3, "validation.seq_len": 64, "validation.local_batch_size": 2}


def run(failpoints):
    """Lines of metrics.jsonl, and what the log of events says of losses."""
    env = {"TITAN_FAILPOINTS": failpoints} if failpoints else None
    with Daemon(None, "--slots", 3, env=env, program=FP_BIN / "titand") as d:
        text = headers_text(d.state / "text")
        job = d.submit("tiny", {**KEYS, "training.dataset_path": text, "validation.dataset_path": text})
        d.wait_state(job, "COMPLETED", seconds=120)
        lost = sum(e["type"] == "recovery.finished" for e in d.lines("events", job))
        lines = [json.loads(line) for line in open(Path(d.status(job)["directory"]) / "metrics.jsonl")]
    return lost, lines


def evaluations(lines):
    found = [line for line in lines if "validation_step" in line]
    steps = [line["validation_step"] for line in found]
    assert steps == EVALUATED, f"evaluations of steps {steps}, expected {EVALUATED}"
    return [line["validation_loss"] for line in found]


def killed_in_evaluations():
    """killed in an evaluation, or when it is over: every evaluation is there once, and the same"""
    lost, lines = run(None)
    want = evaluations(lines)
    assert lost == 0 and [line["step"] for line in lines] == list(range(1, STEPS + 1))
    # The fourth step of an evaluation is the first of the second one: in the middle, in the last evaluation, and of rank 0,
    # which is the one that writes.
    for point in ("evaluation.step%1=kill@5", "evaluation.step%2=kill@12", "evaluation.step%0=kill@8", "evaluation.over%0=kill@2",
                  "evaluation.over%1=kill@4"):
        lost, lines = run(point)
        got = evaluations(lines)
        print(f"# {point}: {lost} recoveries", flush=True)
        assert lost > 0, "nobody was killed"
        assert got == want, f"{point}: {got} instead of {want}"
        assert sorted({line["step"] for line in lines}) == list(range(1, STEPS + 1)), "steps are missing"


tap(killed_in_evaluations)
