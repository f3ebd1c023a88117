#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""recipes/stacks: methods that are made for each other, in one run. Each stack fits its GPUs by plan, with the methods it names in its program, and
trains a small model on CPUs."""
import json
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, SOURCE, command, headers_text, overrides, tap  # noqa: E402

STACKS = SOURCE / "recipes/stacks"
HOME = Path(tempfile.mkdtemp(prefix="titan-stacks-"))
STEPS = 32
SMALL = {"model.flavor": "tiny", "model.n_layers": 4, "model.n_heads": 4, "model.n_kv_heads": 4, "model.ffn_hidden": 192, "training.seq_len": 64,
         "training.local_batch_size": 1, "training.global_batch_size": 8, "training.steps": STEPS, "lr_scheduler.warmup_steps": 2, "optimizer.lr": 4e-3,
         "device.name": "cpu", "device.threads": 1, "checkpoint.enable": "false"}
REST = {"optimizer.rest_lr": 4e-3}
# What a stack's program has, workers of the small run, and what else is another there.
STACK = {
    "few_bytes": (("WEIGHT_ENCODE", " ENCODE", "TENSOR_SUMS"), 3, {}),
    "two_sites": (("PARTS_EXTRACT", " i8"), 4, {}),
    "muon": (("TO_OWNERS", "WHOLE"), 8, {"parallelism.tensor_parallel_degree": 2, "parallelism.pipeline_parallel_degree": 2, **REST}),
    "little_memory": (("TO_OWNERS", "WHOLE"), 3, REST),
    "rotated": (("SHIFT", "TENSOR_SUMS"), 4, {}),
    "torchtitan": ((" f8",), 2, {}),
}


def recipe(stack):
    return STACKS / f"{stack}.toml"


def planned():
    """each stack fits the GPUs that it asks for, and its program has what its name promises"""
    assert {path.stem for path in STACKS.glob("*.toml")} == set(STACK)
    for stack, (operations, _, _) in STACK.items():
        done = command(BIN / "titanctl", "-o", "json", "plan", recipe(stack))
        assert done.code == 0 and json.loads(done.out)["fits"], (stack, done)
        program = command(BIN / "titanctl", "plan", recipe(stack), "--print").out
        assert all(name in program for name in operations), (stack, operations)


def train(stack):
    def trains():
        _, workers, more = STACK[stack]
        folder = HOME / stack
        keys = {**SMALL, "elastic.min_workers": workers, "elastic.max_workers": workers, "training.dataset_path": headers_text(HOME / "text", 1 << 16), **more}
        done = command(BIN / "titan-worker", "run", recipe(stack), "-n", workers, "--dir", folder, *overrides(keys))
        assert done.code == 0, (stack, (done.err or done.out)[-800:])
        losses = [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert len(losses) == STEPS and sum(losses[-4:]) / 4 < losses[0] - 0.5, (stack, losses)
    trains.__doc__ = f"{stack}: the loss falls on {STACK[stack][1]} workers"
    trains.__name__ = stack
    return trains


try:
    tap(planned, *map(train, STACK))
finally:
    shutil.rmtree(HOME, ignore_errors=True)
