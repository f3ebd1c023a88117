#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""TorchTitan v0.2.2's integration tests, run: torchtitan_runs.py [PART OF A NAME...]

Each override set trains from base_config.toml, with as many workers as TorchTitan takes GPUs, at the debug shapes: sequences of 16 tokens, five
steps, or ten where checkpoints are written. The sets of one test share a folder and follow each other. Every loss must be finite and the last
below the first; what goes on from a checkpoint does so at the step behind it."""
import contextlib
import json
import math
import os
import re
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, SOURCE, command, overrides  # noqa: E402
from torchtitan_sets import HERE, LACKS, override_sets  # noqa: E402

SHAPE = {"training.seq_len": 16, "device.threads": 1, "model.tokenizer": "bytes"}
# Of 315 million parameters and 64 experts in eight layers on two cores: as many kinds of layers, and fewer.
SMALLER = {"debugmodel_moe": {"model.n_layers": 2, "model.n_experts": 8, "model.top_k": 2}}


def value_of(sets, key):
    return next((s.split("=", 1)[1] for s in reversed(sets) if s.startswith(key + "=")), None)


def losses(folder):
    """By step: of one that was trained twice the later."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def generates(folder):
    """TorchTitan's second part of test_generate: text from the checkpoint of the first."""
    done = command(BIN / "titan-worker", "generate", folder / "checkpoint", "--prompt", "What is the meaning of life?", "--max-tokens", "16")
    assert done.code == 0 and done.out.strip(), done.err


def trains(name, devices, sets, folder):
    saves = value_of(sets, "checkpoint.enable") == "true"
    steps = int(value_of(sets, "training.steps") or (10 if saves else 5))
    before = losses(folder) if (folder / "metrics.jsonl").exists() else {}
    keys = {**SHAPE, "training.steps": steps, **SMALLER.get(value_of(sets, "model.flavor"), {})}
    sets = [s.replace("=CHECKPOINT", f"={folder / 'hf_checkpoint/step-00000010/hf'}") for s in sets]
    begins_elsewhere = value_of(sets, "checkpoint.initial_load_path")
    run = folder / "second" if begins_elsewhere or (before and not saves) else folder
    done = command(BIN / "titan-worker", "run", HERE / "base_config.toml", "-n", devices, "--dir", run, *overrides({**keys, "job.dump_folder": run}),
                   *(word for s in sets for word in ("--set", s)))
    assert done.code == 0, done.err[-2000:]
    there = losses(run)
    assert max(there) == steps and all(math.isfinite(x) for x in there.values()), there
    resumed = run == folder and saves and before
    first = max(before) + 1 if resumed else 1
    assert not resumed or re.search(rf" step={max(before)} ", done.err + done.out), "does not go on from its checkpoint"
    assert there.get(first, 0) > there[steps], there
    return there[first], there[steps]


def main():
    names, passed, failed, groups = sys.argv[1:], 0, 0, {}
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="titan-torchtitan-")))
        (root / "tests/assets/c4_test").mkdir(parents=True)
        text = [json.dumps({"text": f"{p.name}: {p.read_text(errors='replace')}"}) for p in sorted(SOURCE.glob("docs/*.md"))]
        (root / "tests/assets/c4_test/data.json").write_text("\n".join(text) + "\n")
        os.chdir(root)
        for name, devices, sets in override_sets():
            test = name.rsplit("/", 1)[0]
            if name in LACKS or names and not any(part in name for part in names):
                continue
            folder = groups.setdefault(test, root / str(len(groups)))
            folder.mkdir(exist_ok=True)
            begin = time.monotonic()
            try:
                told = generates(folder) if name == "features/test_generate/2" else trains(name, devices, sets, folder)
                passed += 1
                print(f"ok   {name:<45} {devices} workers  {'' if told is None else 'loss %.4f to %.4f' % told}  {time.monotonic() - begin:.1f} s", flush=True)
            except AssertionError as e:
                failed += 1
                print(f"FAIL {name}: {e}", flush=True)
    print(f"{passed} passed, {failed} failed, {len(LACKS)} refused by name")
    return failed != 0 or passed == 0


sys.exit(main())
