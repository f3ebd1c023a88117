#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make moments`: what moments in bf16 cost. The tiny model over STEPS (500) steps with moments in fp32, in bf16 rounded at random and in
bf16 rounded to nearest, for two decays of the second moment. Of the mean loss of the last tenth, the one rounded at random has to be
within 0.5 % of fp32's."""
import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import titan  # noqa: E402

STEPS = int(os.environ.get("STEPS", 500))
NEAR = 5e-3
KINDS = {"fp32": {},
         "bf16, at random": {"optimizer.state_dtype": "bfloat16", "optimizer.state_rounding": "stochastic"},
         "bf16, to nearest": {"optimizer.state_dtype": "bfloat16"}}


def losses(root, text, keys):
    """Mean loss of the last tenth of the steps."""
    base = {"training.dataset_path": text, "training.mixed_precision_param": "float32", "training.steps": STEPS,
            "lr_scheduler.warmup_steps": STEPS // 20, "checkpoint.enable": "false"}
    done = titan.command(titan.BIN / "titan-worker", "run", titan.SOURCE / "recipes/tiny.toml", "-n", 1, "--dir", root, "--device", "cpu",
                         *titan.overrides(base | keys), timeout=3600)
    assert done.code == 0, done.err[-2000:]
    got = [p["loss"] for p in map(json.loads, (root / "metrics.jsonl").read_text().splitlines())]
    assert len(got) == STEPS, (len(got), STEPS)
    last = got[-max(STEPS // 10, 1):]
    return sum(last) / len(last)


def main():
    bad = False
    with tempfile.TemporaryDirectory(prefix="titan-moments-") as folder:
        root = Path(folder)
        text = titan.headers_text(root / "text")
        print(f"{'beta2':<8}{'moments':<20}{'loss':>9}{'from fp32':>12}")
        for beta2 in (0.95, 0.999):
            whole = None
            for number, (kind, keys) in enumerate(KINDS.items()):
                loss = losses(root / f"{beta2}-{number}", text, keys | {"optimizer.beta2": beta2})
                whole = whole or loss
                apart = loss / whole - 1
                print(f"{beta2:<8}{kind:<20}{loss:>9.4f}{100 * apart:>+10.2f} %", flush=True)
                bad = bad or (kind == "bf16, at random" and abs(apart) > NEAR)
    print(f"{'FAILED: more' if bad else 'ok: not more'} than {100 * NEAR} % from fp32 with moments rounded at random")
    return bad


sys.exit(main())
