# SPDX-License-Identifier: Apache-2.0
"""Replicas that send each other parts of their directions: what comes to averaged SGD, runs on other meshes, what a plan counts, the bits of
replicas and of the same run again, checkpoints with the residual's mean, and what is refused."""
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import titan  # noqa: E402

WORKER = titan.BIN / "titan-worker"
folder = tempfile.TemporaryDirectory(prefix="titan-replicas-")
root = Path(folder.name)
text = titan.headers_text(root / "text")
STEPS, SAVED = 8, 4
SGD = {"optimizer.name": "SGD", "optimizer.lr": 0.2, "optimizer.weight_decay": 0.01}
SIGN = {"optimizer.name": "SGD", "optimizer.lr": 3e-3}
BASE = {"training.dataset_path": text, "training.mixed_precision_param": "float32", "training.steps": STEPS, "lr_scheduler.warmup_steps": 2,
        "checkpoint.keep_latest_k": 0, "checkpoint.interval": SAVED, "checkpoint.last_save_model_only": "false", "training.local_batch_size": 1}
OFF = {"checkpoint.enable": "false"}
TWO = {"parallelism.data_parallel_replicate_degree": 2}
EXACT = {"parallelism.replicate_dtype": "float32", "parallelism.replicate_sign": "false"}


def by(method, **keys):
    return {"parallelism.replicate_method": method} | {f"parallelism.replicate_{k}": v for k, v in keys.items()}


def start(name, workers, keys):
    return titan.command(WORKER, "run", titan.SOURCE / "recipes/tiny.toml", "-n", workers, "--dir", root / name, "--device", "cpu",
                         *titan.overrides(BASE | keys))


def run(name, workers, keys):
    """(loss, gradient norm) by step of what this run trained."""
    log = root / name / "metrics.jsonl"
    before = len(log.read_text().splitlines()) if log.exists() else 0
    done = start(name, workers, keys)
    assert done.code == 0, done.err[-2000:]
    assert "drifted" not in done.err + done.out, done.err[-2000:]
    return {p["step"]: (p["loss"], p["grad_norm"]) for p in map(json.loads, log.read_text().splitlines()[before:])}


def test_averaged():
    """all values sent, without sign, are averaged SGD: as they are, and by a whole DCT; a sixteenth of them are not"""
    keys = OFF | TWO | SGD | {"training.max_norm": 0}
    sums = run("sums", 2, keys)
    assert sums[STEPS][0] < sums[1][0] - 0.05, sums
    for name, more, most in (("full", by("full"), 1e-5), ("dct", by("demo", values=64), 1e-5), ("few", by("demo"), None)):
        got = run(name, 2, keys | EXACT | more)
        apart = max(abs(got[s][0] - sums[s][0]) for s in sums)
        assert apart < most if most else apart > 1e-3, (name, apart)
        assert got[1][0] == sums[1][0] and got[1][1] > sums[1][1], "a replica's own gradient is no longer than the mean of all"


def test_same_data():
    """two replicas with the same samples train as one does, bit for bit"""
    same = root / "same.txt"
    same.write_text("a" * 100000)
    for method in ("demo", "random", "striding", "full"):
        keys = OFF | TWO | SIGN | by(method, dtype="float32") | {"training.dataset_path": same}
        one = run(f"one-{method}", 1, keys | {"training.global_batch_size": 4})
        assert run(f"two-{method}", 2, keys | {"training.global_batch_size": 8}) == one, method


def test_meshes():
    """each method trains, on meshes of all kinds; the same run again has the same bits; replicas are compared at each checkpoint"""
    meshes = {"plain": (2, TWO), "shards": (4, TWO), "three": (3, {"parallelism.data_parallel_replicate_degree": 3, "elastic.max_workers": 3}),
              "split": (4, TWO | {"parallelism.tensor_parallel_degree": 2}), "stages": (4, TWO | {"parallelism.pipeline_parallel_degree": 2}),
              "experts": (4, TWO | {"model.name": "deepseek_v3", "parallelism.expert_parallel_degree": 2})}
    for mesh, (workers, keys) in meshes.items():
        losses = run(f"mesh-{mesh}", workers, SIGN | keys | by("demo"))
        assert losses[STEPS][0] < losses[1][0] - 0.1, (mesh, losses)
    for method in ("demo", "random", "striding", "full"):
        keys = SIGN | {"optimizer.lr": 3e-3 if method in ("demo", "full") else 0.03, "training.steps": 40, "checkpoint.interval": 10}
        once, again = (run(f"{turn}-{method}", 4, keys | TWO | by(method)) for turn in ("once", "again"))
        assert once == again and once[40][0] < once[1][0] - 0.4, (method, once)
    adamw = run("adamw", 2, TWO | OFF | by("demo", sign="false"))
    assert adamw[STEPS][0] < adamw[1][0] - 0.1, adamw


def test_checkpoints():
    """a checkpoint has a residual of each parameter, and goes on on other meshes: with other replicas, and with one"""
    keys = SIGN | by("demo")
    whole = run("stopped", 4, keys | TWO)
    at = root / f"stopped/checkpoint/step-{SAVED:08}"
    names = [t["name"] for t in json.loads((at / "manifest.json").read_text())["tensors"]]
    weights = {n for n in names if not n.startswith("optim.")}
    assert {n[len("optim.residual."):] for n in names if n.startswith("optim.")} == weights and len(weights) > 10, names
    for name, workers in (("same", 4), ("pair", 2), ("single", 1)):
        load = {"checkpoint.initial_load_path": at, "checkpoint.initial_load_model_only": "false"}
        on = run(f"on-{name}", workers, keys | TWO | load | OFF)
        assert sorted(on) == [s for s in whole if s > SAVED], on
        assert abs(on[SAVED + 1][0] - whole[SAVED + 1][0]) < 1e-5, (name, on, whole)
        assert abs(on[STEPS][0] - whole[STEPS][0]) < 0.1, (name, on, whole)
    load = {"checkpoint.initial_load_path": at, "checkpoint.initial_load_model_only": "false"}
    done = start("no-residual", 2, TWO | SIGN | load)
    assert done.code == 2 and 'parallelism.replicate_method = "all_reduce", there "demo"' in done.err + done.out, (done.code, done.err[-800:])


def test_plan():
    """the plan counts what replicas send: values and their numbers of each 64, to each other replica"""
    def planned(*keys):
        done = titan.command(titan.BIN / "titanctl", "-o", "json", "plan", titan.SOURCE / "recipes/tiny.toml", "--world", 4, "--device", "cpu",
                             *titan.overrides(dict(TWO | SIGN, **(keys[0] if keys else {}))))
        assert done.code == 0, done.err
        rank = json.loads(done.out)["ranks"][0]
        return rank["sent_bytes"]["dp_replicate"], rank["memory"]["optimizer"]

    chunks = [-(-n // 128) for n in (256 * 64, 36992, 36992, 256 * 64 + 64)]  # of one of two ranges: embedding, layers, norm and head
    plain, state = planned()
    assert plain == 64 * 4 * sum(chunks), (plain, chunks)
    for keys, each in ((by("demo"), 4 * 3), (by("demo", values=8, dtype="float32"), 8 * 5), (by("random"), 4 * 2), (by("full", dtype="float32"), 256)):
        want = sum((each * n + 63) // 64 * 64 for n in chunks)
        got, kept = planned(keys)
        assert got == want, (keys, got, want)
        assert kept - state == 64 * 4 * sum(chunks), (kept, state)


def test_refusals():
    """one line each: what does not go together"""
    for keys, words in (({}, "data_parallel_replicate_degree = 1"), (TWO | {"numerics.canonical": "true"}, "numerics.canonical"),
                        (TWO | {"optimizer.name": "Muon"}, "Muon"), (TWO | {"optimizer.name": "StableAdamW"}, "StableAdamW"),
                        (TWO | {"training.dtype": "bfloat16"}, "bfloat16"), (TWO | {"optimizer.state_dtype": "int8"}, "int8"),
                        (TWO | {"training.enable_cpu_offload": "true"}, "enable_cpu_offload"),
                        (TWO | {"fault_tolerance.redundancy": "buddy"}, "redundancy"),
                        (TWO | by("random", values=5), "power of two"), (TWO | by("demo", values=65), "replicate_values"),
                        (TWO | by("demo", beta=1.5), "replicate_beta"), (TWO | by("nobody"), "replicate_method")):
        done = start("refused", 2, OFF | by("demo") | keys)
        assert done.code == 2 and words in done.err, (keys, done.code, done.err[-500:])


titan.tap(test_averaged, test_same_data, test_meshes, test_checkpoints, test_plan, test_refusals)
