#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same run in bfloat16, in each recipe of float8 and in MXFP8: how far apart the losses end. `make float8`.

    float8_loss.py [RECIPE [SETTING ...]]      exit 1 when one ends further from bfloat16 than BOUND

Compared are means over the last twentieth of the steps: a single step's loss differs by more than what is looked for."""
import functools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("BUILD", "build"))
BUILD = BUILD if BUILD.is_absolute() else SOURCE / BUILD
RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp", "scalify", "mxfp8")
BOUND = 0.005


@functools.cache
def corpus():
    """Sentences of a few hundred words, the same each time."""
    rng = random.Random(8)
    words = ["".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(2, 9))) for _ in range(400)]
    return "\n".join(" ".join(rng.choices(words, weights=range(400, 0, -1), k=12)) for _ in range(12000))


def run(recipe, world, *sets):
    """Losses by step, and what the run said."""
    lines, said = metrics(recipe, world, *sets)
    return [line["loss"] for line in lines], said


def metrics(recipe, world, *sets):
    """The run's lines by step, and what it said."""
    with tempfile.TemporaryDirectory(prefix="titan-float8-") as folder:
        (Path(folder) / "text.txt").write_text(corpus())
        words = [BUILD / "bin/titan-worker", "run", recipe, "-n", world, "--dir", f"{folder}/run", "--device", "cpu"]
        for s in ("device.threads=1", f"training.dataset_path={folder}/text.txt", "checkpoint.enable=false",
                  "metrics.log_freq=1", *sets):
            words += ["--set", s]
        done = subprocess.run([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode}: {done.stdout[-800:]}")
        lines = [json.loads(line) for line in open(f"{folder}/run/metrics.jsonl")]
    return lines, done.stdout


def float8(name):
    return ("model.converters=quantize.linear.mx",) if name == "mxfp8" else ("model.converters=float8", f"float8.recipe_name={name}")


def end_of(losses):
    return statistics.mean(losses[-max(1, len(losses) // 20):])


def compare(recipe, *sets, names=RECIPES):
    """Yields (name, how far from bfloat16's end, losses)."""
    sets = ("training.mixed_precision_param=bfloat16", *sets)
    plain = run(recipe, 1, *sets)[0]
    yield "bfloat16", 0.0, plain
    for name in names:
        losses = run(recipe, 1, *sets, *float8(name))[0]
        yield name, end_of(losses) / end_of(plain) - 1, losses


def main():
    recipe = sys.argv[1] if len(sys.argv) > 1 else SOURCE / "recipes/debug.toml"
    worst = 0.0
    for name, away, losses in compare(recipe, *sys.argv[2:]):
        print(f"{name:20} steps {len(losses)}  loss {losses[0]:.4f} -> {end_of(losses):.4f}  {100 * away:+.3f} %", flush=True)
        worst = max(worst, abs(away))
    print(f"{'ok' if worst <= BOUND else 'not ok'}: at most {100 * worst:.3f} % from bfloat16, bound {100 * BOUND} %")
    return worst > BOUND


if __name__ == "__main__":
    sys.exit(main())
