# SPDX-License-Identifier: Apache-2.0
"""Layers whose parts go round: checkpoints go on with any number of parts, or gathered; StableAdamW with context parallelism; on one
rank the key changes nothing."""
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import titan  # noqa: E402

folder = tempfile.TemporaryDirectory(prefix="titan-rotation-")
root = Path(folder.name)
BASE = {"training.dataset_path": titan.headers_text(root / "text"), "training.mixed_precision_param": "float32", "training.steps": 9,
        "training.global_batch_size": 12, "training.local_batch_size": 1, "training.seq_len": 32, "lr_scheduler.total_steps": 9,
        "lr_scheduler.warmup_steps": 2, "checkpoint.keep_latest_k": 0, "checkpoint.interval": 3, "checkpoint.last_save_model_only": "false",
        "model.dim": 48, "model.n_heads": 12, "model.n_kv_heads": 12, "model.ffn_hidden": 96, "optimizer.lr": 1e-3, "optimizer.eps": 1e-7}
PARTS, IN_PLACE = {"parallelism.rotate": "out_of_place"}, {"parallelism.rotate": "in_place"}
NEAR = 1e-6  # additions in another order, over nine steps: 2e-8 was measured


def run(name, workers, **keys):
    """(loss, gradient norm) by step of what this run trained."""
    log = root / name / "metrics.jsonl"
    before = len(log.read_text().splitlines()) if log.exists() else 0
    done = titan.command(titan.BIN / "titan-worker", "run", titan.SOURCE / "recipes/tiny.toml", "-n", workers, "--dir", root / name,
                         "--device", "cpu", *titan.overrides(BASE | keys))
    assert done.code == 0, done.err[-2000:]
    return {p["step"]: (p["loss"], p["grad_norm"]) for p in map(json.loads, log.read_text().splitlines()[before:])}


def distance(a, b):
    assert list(a) == list(b), (list(a), list(b))
    return max(abs(x - y) / abs(y) for s in a for x, y in zip(a[s], b[s]))


def test_checkpoints():
    """four parts, then gathered on two ranks, then three parts in place: as gathered from begin to end"""
    calm = run("calm", 2)
    assert list(calm) == list(range(1, 10)) and calm[9][0] < calm[1][0] - 0.1, calm
    got = run("parts", 4, **PARTS, **{"training.steps": 3})
    assert list(got) == [1, 2, 3], list(got)
    got |= run("parts", 2, **{"training.steps": 6})
    got |= run("parts", 3, **IN_PLACE)
    far = distance(got, calm)
    print(f"# {far:.1e} from a run without parts", flush=True)
    assert 0 < far < NEAR, far


def test_stable_adamw_over_context():
    """StableAdamW, parts over dp_shard = 2, keys round cp = 2: near the mesh that gathers; in place has the same bits"""
    keys = {"optimizer.name": "StableAdamW", "optimizer.stable_adamw.threshold": 0.5, "parallelism.context_parallel_degree": 2,
            "parallelism.context_parallel_rotate_method": "ring", "training.max_norm": 0, "checkpoint.enable": "false"}
    calm, parts = run("stable", 4, **keys), run("stable-parts", 4, **keys, **PARTS)
    far = distance(parts, calm)
    print(f"# {far:.1e} from a mesh that gathers", flush=True)
    assert 0 < far < NEAR, far
    assert run("stable-in-place", 4, **keys, **IN_PLACE) == parts
    plain = run("plain", 4, **{**keys, "optimizer.name": "AdamW"}, **PARTS)
    assert distance(plain, parts) > 1e-3, "the threshold bounds nothing"


def test_one_rank():
    """alone a rank has all parts: the same program as without the key"""
    def program(**keys):
        recipe = titan.SOURCE / "recipes/tiny.toml"
        done = titan.command(titan.BIN / "titanctl", "plan", recipe, "--world", 1, *titan.overrides(BASE | keys))
        assert done.code == 0, done.err
        return next(line for line in done.out.splitlines() if line.startswith("program"))
    assert program(**PARTS) == program(**IN_PLACE) == program()


titan.tap(test_checkpoints, test_stable_adamw_over_context, test_one_rank)
