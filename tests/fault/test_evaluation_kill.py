#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A worker is killed in an evaluation: the run goes on, and every evaluation is there once, with the numbers of an undisturbed
run, in metrics.jsonl, in the events and in the metrics of the API. So it is where all are killed, and a run is resumed."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, FP_BIN, SOURCE, Daemon, deadline, headers_text, overrides, tap  # noqa: E402

STEPS, FREQ = 12, 4
EVALUATED = [1, 4, 8, 12]
KEYS = {"training.steps": STEPS, "elastic.min_workers": 2, "elastic.max_workers": 3, "checkpoint.enable": "false",
        "numerics.canonical": "true", "training.mixed_precision_param": "float32", "training.global_batch_size": 6,
        "training.local_batch_size": 1, "fault_tolerance.backoff_ms": 100, "device.threads": 1, "validation.enable": "true",
        "validation.freq": FREQ, "validation.steps": 3, "validation.seq_len": 64, "validation.local_batch_size": 2}


def run(failpoints, look=None, **keys):
    """Recoveries, and the loss of every evaluation: as metrics.jsonl, events and metrics have it."""
    env = {"TITAN_FAILPOINTS": failpoints} if failpoints else None
    with Daemon(None, "--slots", 3, env=env, program=FP_BIN / "titand") as d:
        text = headers_text(d.state / "text")
        job = d.submit("tiny", {**KEYS, "training.dataset_path": text, "validation.dataset_path": text,
                                **{k.replace("__", "."): v for k, v in keys.items()}})
        d.wait_state(job, "COMPLETED", seconds=120)
        events = d.lines("events", job)
        lost = sum(e["type"] == "recovery.finished" for e in events)
        lines = [json.loads(line) for line in open(Path(d.status(job)["directory"]) / "metrics.jsonl")]
        told = [e["detail"] for e in events if e["type"] == "validation.finished"]
        stored = [m["validation"] for m in d.lines("metrics", job) if m["validation"]]
        newest = d.status(job)["validation"]
        assert evaluations(told, "step", "loss") == evaluations(stored, "step", "loss") == evaluations(lines), (told, stored)
        assert newest == stored[-1], (newest, stored)
        if look:
            look(d, job, newest)
    assert steps_of(lines) == list(range(1, STEPS + 1)), "steps are missing"
    return lost, evaluations(lines)


def steps_of(lines):
    return sorted({line["step"] for line in lines if "loss" in line})


def evaluations(lines, step="validation_step", loss="validation_loss", steps=EVALUATED):
    found = [line for line in lines if step in line]
    assert [line[step] for line in found] == steps, f"evaluations of steps {[line[step] for line in found]}, expected {steps}"
    return [line[loss] for line in found]


def shown(d, job, newest):
    """What people see of the newest evaluation."""
    loss = f"{newest['loss']:.4f}"
    assert f"validation   loss {loss}, perplexity {newest['perplexity']:.2f}" in d.ok("status", job), d.ok("status", job)
    table = d.ok("metrics", job).splitlines()
    assert table[0].endswith("validation") and table[-1].endswith(loss) and len(table) == STEPS + 1, table
    picture = d.ok("metrics", job, "--plot")
    assert f"validation (+) {loss}" in picture and picture.count("+") > len(EVALUATED), picture
    follow = d.ctl("submit", SOURCE / "recipes/tiny.toml", "--follow", *overrides({
        **KEYS, "training.dataset_path": d.state / "text", "validation.dataset_path": d.state / "text", "training.steps": 4}))
    assert follow.code == 0 and "  validation " in follow.out + follow.err, follow.out + follow.err


def killed_in_evaluations():
    """killed in an evaluation, or when it is over: every evaluation is there once, and the same"""
    lost, want = run(None, shown)
    assert lost == 0
    # The fourth step of an evaluation is the first of the second one: in the middle, in the last evaluation, and of rank 0,
    # which is the one that writes.
    for point in ("evaluation.step%1=kill@5", "evaluation.step%2=kill@12", "evaluation.step%0=kill@8", "evaluation.over%0=kill@2",
                  "evaluation.over%1=kill@4"):
        lost, got = run(point)
        print(f"# {point}: {lost} recoveries", flush=True)
        assert lost > 0, "no worker was killed"
        assert got == want, f"{point}: {got} instead of {want}"
    # All of them, where the checkpoint of the step is written before: its step is told of by the next ones.
    lost, got = run("evaluation.step=kill@7", checkpoint__enable="true", checkpoint__interval=FREQ, checkpoint__async_mode="disabled")
    assert got == want, f"all: {got} instead of {want}"


def resumed():
    """all are killed in an evaluation, the last one too, and the run is resumed: every evaluation is there once, and the same"""
    home = Path(tempfile.mkdtemp(prefix="titan-evaluation-"))
    text = headers_text(home / "text")
    keys = {**KEYS, "checkpoint.enable": "true", "checkpoint.interval": 4, "checkpoint.async_mode": "disabled",
            "training.dataset_path": text, "validation.dataset_path": text}

    def train(folder, program, env=None):
        argv = [program / "titan-worker", "run", SOURCE / "recipes/tiny.toml", "-n", "2", "--dir", home / folder, *overrides(keys)]
        return subprocess.run([str(a) for a in argv], env=env, capture_output=True, text=True, timeout=deadline())

    def lines(folder):
        return [json.loads(line) for line in open(home / folder / "metrics.jsonl")]
    try:
        done = train("undisturbed", BIN)
        assert done.returncode == 0, done.stderr
        want = evaluations(lines("undisturbed"))
        # Each has 3 steps: in that of step 4, in the last, and three steps after that of step 8: it is resumed from that one's checkpoint.
        for point, before in (("evaluation.step=kill@5", [1]), ("evaluation.step=kill@11", [1, 4, 8]), ("exec.reduced=kill@20", [1, 4, 8])):
            folder = point.split("=")[0] + point.split("@")[1]
            done = train(folder, FP_BIN, {**os.environ, "TITAN_FAILPOINTS": point})
            assert done.returncode != 0, done.stderr
            evaluations(lines(folder), steps=before)
            done = train(folder, BIN)
            assert done.returncode == 0, done.stderr
            assert evaluations(lines(folder)) == want, (point, evaluations(lines(folder)), want)
            assert steps_of(lines(folder)) == list(range(1, STEPS + 1)), (point, steps_of(lines(folder)))
            done = train(folder, BIN)
            assert done.returncode == 0 and evaluations(lines(folder)) == want, done.stderr
    finally:
        shutil.rmtree(home, ignore_errors=True)


tap(killed_in_evaluations, resumed)
