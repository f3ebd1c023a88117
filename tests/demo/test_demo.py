#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The demo: how long a run it chooses for a machine, a short one to its end, what it says of a text that will not do, and Ctrl-C."""
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import demo
from titan import descendants, headers_text, tap, until

HOME = Path(tempfile.mkdtemp(prefix="titan-demo-"))
STEPS = 300
SHORT = ["--set", f"training.steps={STEPS}", *demo.sets(demo.SMALLER)]


def run(*args):
    return subprocess.run([sys.executable, demo.__file__, "--dir", HOME / "run", *args], capture_output=True, text=True)


def chosen(speeds, *by_hand):
    """(keys of the run, facts, what is said) where measurements find these speeds, one after the other."""
    found, said = iter(speeds), io.StringIO()
    with contextlib.redirect_stdout(said):
        measure, demo.measure = demo.measure, lambda home, keys: (next(found), 1024)
        try:
            keys, facts = demo.choose(HOME, "/text", by_hand)
        finally:
            demo.measure = measure
    assert next(found, None) is None, "measured less often"
    return dict(key.split("=") for key in keys), facts, said.getvalue()


def lengths():
    """as many steps as fit, no more than teach something; a slow machine gets the smaller model, but for one that was chosen by hand"""
    keys, facts, said = chosen([3072])
    assert keys["training.steps"] == "240" and "model.flavor" not in keys and "3,072 tokens/s: 240 steps" in said, (keys, said)
    assert facts == {"measured_tokens_per_second": 3072, "smaller_model": False}, facts
    keys, facts, said = chosen([100000])
    assert keys["training.steps"] == str(demo.STEPS_MOST) and "take 7 s" in said, (keys, said)
    keys, facts, said = chosen([100, 5120])
    assert keys["training.steps"] == "400" and keys["model.flavor"] == "tiny" and facts["smaller_model"], (keys, facts)
    assert "100 tokens/s" in said and "smaller model" in said and "5,120 tokens/s: 400 steps" in said, said
    (_, least), (_, least_of_smaller) = demo.MODELS
    assert chosen([0, 1])[0]["training.steps"] == str(least_of_smaller)
    keys, facts, said = chosen([100], "model.n_layers=4")
    assert "model.flavor" not in keys and keys["training.steps"] == str(least), keys


def by_hand():
    """training.steps given by hand is not measured, and there is a checkpoint before the kill"""
    keys, facts, said = chosen([], "training.steps=20")
    assert keys == {"training.steps": "20", "lr_scheduler.warmup_steps": "2", "checkpoint.interval": "2"} and not said, (keys, said)
    assert chosen([], "training.steps = 7")[0]["checkpoint.interval"] == "1"
    assert chosen([], "training.steps=many")[0] == {}  # titanctl says what is wrong with it


def whole():
    """a short run loses a worker, goes on, learns and leaves its facts"""
    done = run("--data", headers_text(HOME / "text"), *SHORT)
    facts = json.loads((HOME / "run/summary.json").read_text())
    assert done.returncode == 0 and facts["ok"] and facts["steps"] == STEPS, (done.stdout, done.stderr, facts)
    assert facts["loss_last"] < facts["loss_first"] / 2 and facts["recovery_ms"] > 0 and 3 in facts["world_sizes"], facts
    assert facts["measured_tokens_per_second"] is None and facts["took_s"] > 0, facts
    assert "now killing worker" in done.stdout and "sample: what the model writes" in done.stdout, done.stdout


def measured():
    """without training.steps the machine's speed is measured first"""
    small = demo.sets(demo.SMALLER)
    speed, tokens = demo.measure(HOME / "speed", ["training.steps=3", f"training.dataset_path={headers_text(HOME / 'text')}", "checkpoint.enable=false",
                                                  *small[1::2]])
    assert speed > 0 and tokens == 1024, (speed, tokens)


def bad_text():
    """a text that is not there, is empty or too short: one line says so"""
    for name, size, word in (("none", None, "no such file"), ("empty", 0, "is empty"), ("short", 500, "3 samples")):
        if size is not None:
            (HOME / name).write_bytes(b"x" * size)
        done = run("--data", HOME / name)
        lines = [line for line in done.stdout.splitlines() if not line.startswith("text: ")]
        assert done.returncode == 1 and len(lines) == 1 and lines[0].startswith("demo: ") and word in lines[0] and not done.stderr, (name, done)


def of_demo():
    return list(descendants(HOME / "run"))


def interrupted():
    """Ctrl-C, while the speed is measured and while it trains, leaves no process"""
    text = headers_text(HOME / "text")
    for keys, begun in ((SHORT[2:], HOME / "run/speed/metrics.jsonl"), (["--set", "training.steps=100000", *SHORT[2:]], HOME / "run/state/jobs/1/metrics.jsonl")):
        begun.unlink(missing_ok=True)
        with open(HOME / "said", "w+") as said:
            process = subprocess.Popen([sys.executable, demo.__file__, "--dir", HOME / "run", "--data", text, *keys], stdout=said, stderr=said,
                                       start_new_session=True)
            until("steps are made", lambda: begun.exists() and begun.stat().st_size > 0)
            os.killpg(process.pid, signal.SIGINT)
            code = process.wait(60)
            said.seek(0)
            lines = said.read()
        assert code == 1 and lines.splitlines()[-1] == "demo: interrupted" and "Traceback" not in lines, (code, lines)
        until("its processes are gone", lambda: not of_demo())


try:
    tap(lengths, by_hand, measured, whole, bad_text, interrupted)
finally:
    demo.shutil.rmtree(HOME, ignore_errors=True)
