#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weights that travel in few bits: canonical, the same bits on one rank and on every mesh; the loss ends near the one of weights that
travel whole; a run that stops and goes on elsewhere has the bits of one that never stopped; evaluations do not see the codes; what does not go
together is refused. Prints TAP."""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import matrix

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, SOURCE, deadline  # noqa: E402

TINY = SOURCE / "recipes/tiny.toml"
SAME_BITS = [("gather=int8", "dps3"), ("gather=int4", "dpr2 dps2 reshard=always ac=full"), ("qwen pp2 gather=int6", "dps2"),
             ("moe gather=int6", "dps4 ep4"), ("gather=int4 levels=learned", "dpr2 dps2 reshard=always ac=full"),
             ("qwen pp2 gather=int6 levels=learned", "dps2"), ("moe gather=int4 levels=learned", "dps4 ep4")]
count = failed = 0


def ok(condition, what, detail=""):
    global count, failed
    count += 1
    failed += not condition
    print(f"{'ok' if condition else 'not ok'} {count} - {what}{'' if condition else ': ' + str(detail)}", flush=True)


def run(world, folder, *sets):
    """Lines of metrics, what it said and its exit code."""
    words = [BIN / "titan-worker", "run", TINY, "-n", world, "--dir", folder, "--device", "cpu"]
    for s in ("device.threads=1", f"training.dataset_path={SOURCE / 'worker/plan'}", *sets):
        words += ["--set", s]
    done = subprocess.run([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=deadline())
    path = Path(folder) / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if done.returncode == 0 else [], done.stdout, done.returncode


def main():
    lab = matrix.Lab()
    for words, mesh in SAME_BITS:
        case = matrix.Case(f"{words} canonical=true {mesh}", exact=f"{words} canonical=true")
        o = matrix.check(lab, case, ("AdamW",))
        ok(not o.faults, f"{case.words}: the bits of {case.exact}", o.faults)
    lab.close()

    few = ("checkpoint.enable=false", "training.steps=60", "metrics.log_freq=1")
    with tempfile.TemporaryDirectory(prefix="titan-few-bits-") as folder:
        ends = {}
        for codec in ("none", "int8", "int6", "int4", "int6 learned", "int4 learned"):
            name, *learned = codec.split()
            levels = [f"parallelism.fsdp_gather_levels={word}" for word in learned]
            lines, said, _ = run(3, f"{folder}/{codec}", *few, f"parallelism.fsdp_gather_codec={name}", *levels)
            ends[codec] = sum(line["loss"] for line in lines[-10:]) / 10 if lines else float("inf")
            ok(len(lines) == 60, f"{codec}: 60 steps on three ranks", said[-400:])
        ok(len(set(ends.values())) == 6, "each codec computes with values of its own", ends)
        ok(all(abs(ends[c] - ends["none"]) <= most for c, most in (("int8", 0.01), ("int6", 0.03), ("int4", 0.1), ("int6 learned", 0.03), ("int4 learned", 0.1))),
           "losses end near the one without codes", ends)

        # Stopped after 4 steps on two ranks, resumed on three.
        for levels in ("uniform", "learned"):
            exact = ("numerics.canonical=true", "parallelism.fsdp_gather_codec=int4", f"parallelism.fsdp_gather_levels={levels}",
                     "lr_scheduler.warmup_steps=0", "lr_scheduler.decay_ratio=0.0", "metrics.log_freq=1", "checkpoint.interval=4",
                     "checkpoint.async_mode=disabled")
            whole = run(1, f"{folder}/whole-{levels}", *exact, "training.steps=8")[0]
            run(2, f"{folder}/parts-{levels}", *exact, "training.steps=4")
            lines, said, _ = run(3, f"{folder}/parts-{levels}", *exact, "training.steps=8")
            ok([(line["step"], line["loss"]) for line in lines[-4:]] == [(line["step"], line["loss"]) for line in whole[-4:]] and len(whole) == 8,
               f"{levels} levels, stopped on two ranks and resumed on three: the bits of one rank that never stopped", said[-400:])

        held = ("validation.enable=true", "validation.freq=1", "validation.steps=2", f"validation.dataset_path={SOURCE / 'base'}",
                "training.steps=1", "optimizer.lr=1e-30", "checkpoint.enable=false")
        losses = [run(2, f"{folder}/held-{codec}", *held, f"parallelism.fsdp_gather_codec={codec}")[0] for codec in ("none", "int4")]
        seen = [[line["validation_loss"] for line in lines if "validation_loss" in line] for lines in losses]
        ok(seen[0] and seen[0] == seen[1], "an evaluation has the weights themselves", seen)

        _, said, code = run(2, f"{folder}/both", "training.steps=1", "model.converters=float8", "float8.enable_fsdp_float8_all_gather=true",
                            "parallelism.fsdp_gather_codec=int8")
        ok(code != 0 and "a gathered weight has one code" in said, "codes of float8 beside it are refused", said[-300:])
        _, said, code = run(2, f"{folder}/other", "training.steps=1", "parallelism.fsdp_gather_codec=int5")
        ok(code != 0 and "fsdp_gather_codec" in said, "another codec is refused", said[-300:])
    print(f"1..{count}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
