# SPDX-License-Identifier: Apache-2.0
"""Weights that transformers wrote, trained here, give the losses and gradient norms that PyTorch's runs from the same weights on the same
samples had (tests/golden/training_reference.py, which stores them)."""
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import titan  # noqa: E402
import torch_training as training  # noqa: E402

GOLDEN = titan.SOURCE / "tests/golden/trained"
folder = tempfile.TemporaryDirectory(prefix="titan-beside-")
root = Path(folder.name)


def run(name, steps, tokens, workers, kept):
    to = root / f"{name}-{workers}-{len(list(root.iterdir()))}"
    keys = {**training.KEYS, **training.model_keys(name), **training.STATES[kept], "training.steps": steps,
            "training.dataset_path": tokens, "training.mixed_precision_param": "float32", "checkpoint.enable": "false",
            "checkpoint.initial_load_path": GOLDEN / name, "checkpoint.initial_load_in_hf": "true"}
    done = titan.command(titan.BIN / "titan-worker", "run", titan.SOURCE / "recipes/tiny.toml", "-n", workers, "--dir", to,
                         "--device", "cpu", *titan.overrides(keys))
    assert done.code == 0, done.err[-2000:]
    return [json.loads(line) for line in (to / "metrics.jsonl").read_text().splitlines()]


def runs_of(name, workers, kept):
    """Steps of this run, of PyTorch's, and of PyTorch's in fp32."""
    stored = json.loads((GOLDEN / f"{name}.json").read_text())
    assert stored["keys"] == training.KEYS
    tokens, steps = root / "tokens.bin", stored["runs"][kept]
    training.write_tokens(tokens, stored["tokens"])
    ours = run(name, len(steps), tokens, workers, kept)
    assert [m["step"] for m in ours] == list(range(1, len(steps) + 1))
    return ours, steps, stored["runs"]["float32"]


def off_by(a, b, key="loss"):
    """Largest relative difference."""
    return max(abs(x[key] - y[key]) / y[key] for x, y in zip(a, b))


def test_fp32():
    """Llama and Qwen3 for twelve steps, on one rank and on two: PyTorch's losses and gradient norms"""
    for name in training.MODELS:
        for workers in (1, 2):
            ours, theirs, _ = runs_of(name, workers, "float32")
            loss, norm = off_by(ours, theirs), off_by(ours, theirs, "grad_norm")
            print(f"# {name} on {workers}: loss off by at most {loss:.1e}, gradient norm by {norm:.1e}")
            assert loss <= 1e-6 and norm <= 1e-5


# bf16 numbers have 8 bits: neighbours are at most 2^-7 apart, of what they are. A number that two correct runs round to different ones is
# one that their fp32 arithmetic leaves within some 1e-7 of the middle: one in 2^16.
# Moments: twelve steps of 1e4 weights round 2e5 of them, a few otherwise, each of which changes an update by 2^-7: 1e-6 of a loss is more than
# that, and less than what rounding does to it.
# Weights: one that is rounded otherwise moves a loss by a gradient (1e-2) times 2^-7 of a weight (1e-1), 1e-5 at most, but it also changes all
# gradients a little and with them their roundings, so that after some steps all are rounded independently of the other run's. The second and
# third loss are within 1e-5; all are far closer than those of fp32.
LIMITS = {"moments": (1e-6, 1e-6), "bfloat16": (1e-5, 1e-4)}


def test_bf16():
    """moments in bf16, and weights, gradients and moments: PyTorch's losses, far closer than those of fp32 are"""
    for name in training.MODELS:
        for kept, (first, all_of_them) in LIMITS.items():
            ours, theirs, fp32 = runs_of(name, 1, kept)
            loss, apart, norm = off_by(ours, theirs), off_by(fp32, theirs), off_by(ours, theirs, "grad_norm")
            print(f"# {name}, {kept}: loss off by at most {loss:.1e} ({off_by(ours[:3], theirs):.1e} in the first three steps), "
                  f"fp32's by {apart:.1e}; gradient norm by {norm:.1e}")
            assert off_by(ours[:3], theirs) <= first and loss <= all_of_them and apart >= 2 * all_of_them, (name, kept)
            assert norm <= 2**-7  # PyTorch's is of bf16 gradients, and a bf16 number


def test_mtp():
    """Modules of multi-token prediction for twenty steps, on one rank and on meshes of two: PyTorch's losses, theirs and the model's"""
    stored = json.loads((GOLDEN / "mtp.json").read_text())
    assert stored["keys"] == training.KEYS
    tokens, d = root / "mtp.bin", {k: x for k, x in stored["dims"].items() if k != "rope_scaling"}
    training.write_tokens(tokens, stored["tokens"])
    for axis in ("data_parallel_shard", "context_parallel"):
        for workers in (1, 2):
            to = root / f"mtp-{axis}-{workers}"
            keys = {**training.KEYS, **{f"model.{k}": x for k, x in d.items()}, "model.name": "llama3", "model.flavor": "tiny",
                    "training.steps": len(stored["steps"]), "training.dataset_path": tokens, "training.mixed_precision_param": "float32",
                    "checkpoint.enable": "false", "elastic.min_workers": workers, "elastic.max_workers": workers,
                    f"parallelism.{axis}_degree": workers}
            done = titan.command(titan.BIN / "titan-worker", "run", titan.SOURCE / "recipes/tiny.toml", "-n", workers, "--dir", to, "--device", "cpu",
                                 *titan.overrides(keys))
            assert done.code == 0, done.err[-2000:]
            ours = [json.loads(line) for line in (to / "metrics.jsonl").read_text().splitlines()]
            assert len(ours) == len(stored["steps"])
            off = {key: off_by(ours, stored["steps"], key) for key in ("loss", "mtp_loss", "grad_norm")}
            print(f"# {axis} {workers}: off by at most {off}")
            assert off["loss"] <= 1e-6 and off["mtp_loss"] <= 1e-6 and off["grad_norm"] <= 1e-5


titan.tap(test_fp32, test_bf16, test_mtp)
