# SPDX-License-Identifier: Apache-2.0
"""Optimizers on every mesh: canonical sums give the bits of one rank, checkpoints go on to the same bits on another mesh, the state has
the bytes of its tensors, and another optimizer's checkpoint is refused."""
import json
import struct
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import titan  # noqa: E402

WORKER = titan.BIN / "titan-worker"
folder = tempfile.TemporaryDirectory(prefix="titan-optimizers-")
root = Path(folder.name)
text = titan.headers_text(root / "text")
STEPS, SAVED = 8, 4
# What each keeps: the state's tensors of a layer's matrix, and of the rest.
OPTIMIZERS = {
    "sgd": ({"name": "SGD", "lr": 0.5}, (), ()),
    "momentum": ({"name": "SGD", "lr": 0.1, "sgd.momentum": 0.9, "sgd.nesterov": "true"}, ("momentum",), ("momentum",)),
    "lion": ({"name": "Lion", "lr": 1e-3, "beta2": 0.99}, ("m",), ("m",)),
    "ademamix": ({"name": "AdEMAMix", "ademamix.warmup_steps": 6}, ("m", "v", "slow"), ("m", "v", "slow")),
    "two": ({"name": "Lion", "lr": 1e-3, "rest": "AdamW", "rest_lr": 3e-3, "rest_weight_decay": 0}, ("m",), ("m", "v")),
    "stable": ({"name": "StableAdamW", "lr": 5e-3, "stable_adamw.threshold": 0.5}, ("m", "v"), ("m", "v")),
    "muon": ({"name": "Muon", "lr": 0.02, "rest_lr": 3e-3}, ("momentum",), ("m", "v")),
    "galore": ({"name": "GaLore2", "lr": 0.02, "rest_lr": 3e-3, "galore.interval": 3}, ("m", "v", "basis"), ("m", "v")),
    "ranger": ({"name": "Ranger21", "lr": 0.02, "rest_lr": 3e-3}, ("m", "v", "previous", "largest", "slow"), ("m", "v")),
    "rounded": ({"name": "AdEMAMix", "rest": "Lion", "rest_lr": 1e-3, "state_dtype": "bfloat16"}, ("m", "v", "slow"), ("m",)),
    "codes": ({"state_dtype": "int8"}, ("m", "v"), ("m", "v")),
    "codes-of-two": ({"name": "AdEMAMix", "rest": "Lion", "rest_lr": 1e-3, "state_dtype": "int8"}, ("m", "v", "slow"), ("m",)),
    "codes-stable": ({"name": "StableAdamW", "lr": 5e-3, "stable_adamw.threshold": 0.5, "state_dtype": "int8"}, ("m", "v"), ("m", "v")),
    "codes-owned": ({"name": "GaLore2", "lr": 0.02, "galore.interval": 3, "state_dtype": "int8"}, ("m", "v", "basis"), ("m", "v")),
    "codes-momentum": ({"name": "SGD", "lr": 0.1, "sgd.momentum": 0.9, "state_dtype": "int8"}, ("momentum",), ("momentum",)),
}
BASE = {"training.dataset_path": text, "training.mixed_precision_param": "float32", "training.steps": STEPS, "lr_scheduler.warmup_steps": 2,
        "checkpoint.keep_latest_k": 0, "checkpoint.interval": SAVED, "numerics.canonical": "true",
        "checkpoint.last_save_model_only": "false", "training.local_batch_size": 1}
OFF = {"checkpoint.enable": "false"}
MESHES = {
    "two": (2, {}),
    "split": (4, {"parallelism.tensor_parallel_degree": 2}),
    "stages": (4, {"parallelism.pipeline_parallel_degree": 2}),
    "replicas": (2, {"parallelism.data_parallel_replicate_degree": 2}),
    "offloaded": (1, {"training.enable_cpu_offload": "true"}),
}
EXPERTS = {"model.name": "deepseek_v3"}


def start(name, workers, optimizer, **keys):
    of = {f"optimizer.{k}": v for k, v in OPTIMIZERS[optimizer][0].items()} if optimizer else {}
    return titan.command(WORKER, "run", titan.SOURCE / "recipes/tiny.toml", "-n", workers, "--dir", root / name, "--device", "cpu",
                         *titan.overrides(BASE | of | keys))


def run(name, workers, optimizer, **keys):
    """(loss, gradient norm) by step of what this run trained."""
    log = root / name / "metrics.jsonl"
    before = len(log.read_text().splitlines()) if log.exists() else 0
    done = start(name, workers, optimizer, **keys)
    assert done.code == 0, done.err[-2000:]
    return {p["step"]: (p["loss"], p["grad_norm"]) for p in map(json.loads, log.read_text().splitlines()[before:])}


def test_meshes():
    """one rank's bits on two ranks, with a pipeline, with replicas, and with the state in host memory"""
    for optimizer in OPTIMIZERS:
        one = run(f"one-{optimizer}", 1, optimizer, **OFF)
        assert one[STEPS][0] < one[1][0] - 0.1, (optimizer, one)
        for mesh, (workers, keys) in MESHES.items():
            got = run(f"{mesh}-{optimizer}", workers, optimizer, **OFF, **keys)
            if mesh == "split":  # tensor parallelism has sums of its own
                assert max(abs(got[s][0] - one[s][0]) for s in one) < 1e-4, (optimizer, got, one)
            else:
                assert got == one, (optimizer, mesh)


def test_identities():
    """StableAdamW without a threshold, GaLore 2 with a whole basis, and Ranger21 without its parts are AdamW, bit for bit; else they are not"""
    base = {"optimizer.lr": 5e-3, "model.n_kv_heads": 4, "training.steps": 10}
    parts = ("clip", "centralize", "normalize", "momentum", "softplus", "stable_decay", "norm_loss", "lookahead", "warmup", "explore_exploit")
    others = {("StableAdamW", 0): {"stable_adamw.threshold": 0}, ("StableAdamW", 0.5): {"stable_adamw.threshold": 0.5},
              ("GaLore2", 0): {"galore.rank": 64, "galore.scale": 1}, ("GaLore2", 1): {"galore.rank": 63, "galore.scale": 1},
              ("Ranger21", 0): {f"ranger21.{p}": "false" for p in parts}, ("Ranger21", 1): {f"ranger21.{p}": "false" for p in parts[1:]}}
    adamw = run("adamw", 2, None, **OFF, **base)
    for (name, other), keys in others.items():
        got = run(f"{name}-{other}", 2, None, **OFF, **base, **{"optimizer.name": name} | {f"optimizer.{k}": v for k, v in keys.items()})
        assert (got == adamw) == (other == 0), (name, keys)


def test_experts():
    """a mixture of experts has the same bits for every expert-parallel degree"""
    for optimizer in ("lion", "two", "stable", "muon", "codes", "codes-stable", "codes-owned"):
        one = run(f"experts-{optimizer}", 2, optimizer, **OFF, **EXPERTS)
        two = run(f"spread-{optimizer}", 2, optimizer, **OFF, **EXPERTS, **{"parallelism.expert_parallel_degree": 2})
        assert one == two, (optimizer, one, two)


def kept(path):
    """{tensor of state: [parameters]} of a checkpoint's manifest."""
    found = {}
    for t in json.loads((path / "manifest.json").read_text())["tensors"]:
        if t["name"].startswith("optim."):
            kind, parameter = t["name"][len("optim."):].split(".", 1)
            found.setdefault(kind, []).append(parameter)
    return found


def is_matrix(name):
    return name.startswith("layers.") and "norm" not in name and "gate" not in name


def test_checkpoints():
    """a checkpoint has the tensors that the optimizer keeps; three ranks' checkpoint goes on with two to the same bits"""
    for optimizer, (_, matrices, rest) in OPTIMIZERS.items():
        name = f"stopped-{optimizer}"
        whole = run(name, 3, optimizer)
        at = root / name / f"checkpoint/step-{SAVED:08}"
        found, names = kept(at), [t["name"] for t in json.loads((at / "manifest.json").read_text())["tensors"]]
        names = [n for n in names if not n.startswith("optim.")]
        want = {k: [n for n in names if k in (matrices if is_matrix(n) else rest)] for k in {*matrices, *rest}}
        assert {k: sorted(x) for k, x in found.items()} == {k: sorted(x) for k, x in want.items()}, (optimizer, found, want)
        again = run(name, 2, optimizer, **{"checkpoint.load_step": SAVED, "checkpoint.load_only": "true"})
        assert again == {s: x for s, x in whole.items() if s > SAVED}, optimizer


def values(path):
    """{tensor: bytes of its elements} of a checkpoint of one rank."""
    found = {}
    for shard in path.glob("rank-*.safetensors"):
        data = shard.read_bytes()
        begin = 8 + struct.unpack("<Q", data[:8])[0]
        for name, t in json.loads(data[8:begin]).items():
            if name != "__metadata__":
                found[name] = data[begin + t["data_offsets"][0]:begin + t["data_offsets"][1]]
    return found


def test_types():
    """state in codes is fp32 in a checkpoint; it goes on with the same codes, from fp32 to codes and back, and over other meshes"""
    no_steps = {"training.steps": SAVED, "checkpoint.interval": 1000}
    run("eight", 1, "codes", **{"training.steps": SAVED})
    first = values(root / f"eight/checkpoint/step-{SAVED:08}")
    assert first and all(len(x) % 4 == 0 for x in first.values())
    before = root / "eight"
    for name, workers, keys in (("there", 4, {"parallelism.pipeline_parallel_degree": 2}), ("back", 1, {})):
        load = {"checkpoint.initial_load_path": before / f"checkpoint/step-{SAVED:08}", "checkpoint.initial_load_model_only": "false"}
        run(name, workers, "codes", **no_steps, **load, **keys)
        before = root / name
    assert values(before / f"checkpoint/step-{SAVED:08}") == first
    load = {"checkpoint.initial_load_path": root / f"eight/checkpoint/step-{SAVED:08}", "checkpoint.initial_load_model_only": "false"}
    wide = run("wide", 1, None, **load)
    assert sorted(wide) == list(range(SAVED + 1, STEPS + 1))
    load = {"checkpoint.initial_load_path": root / f"wide/checkpoint/step-{STEPS:08}", "checkpoint.initial_load_model_only": "false"}
    narrow = run("narrow", 1, "codes", **load, **{"training.steps": STEPS + 2})
    assert sorted(narrow) == [STEPS + 1, STEPS + 2] and abs(narrow[STEPS + 1][0] - wide[STEPS][0]) < 0.3, (narrow, wide)


def test_bytes():
    """the plan has 260 bytes for 256 values of state, each parameter at a multiple of 256, each unit's kinds in 16 blocks"""
    def up(n, to):
        return (n + to - 1) // to * to

    def planned(dtype):
        done = titan.command(titan.BIN / "titanctl", "-o", "json", "plan", titan.SOURCE / "recipes/tiny.toml", "--world", 1, "--device", "cpu",
                             "--set", f"optimizer.state_dtype={dtype}")
        assert done.code == 0, done.err
        return json.loads(done.out)["ranks"][0]["memory"]["optimizer"]

    dim, kv, ffn, vocab = 64, 32, 128, 256
    matrices = {"embedding": vocab * dim, "layer": 2 * dim * dim + 2 * dim * kv + 3 * dim * ffn, "head": vocab * dim}
    norms = {"embedding": 0, "layer": 2, "head": 1}  # they lie behind the matrices, from a multiple of 1024 on
    ranges = [up(up(matrices[u], 1024) + 256 * norms[u] if norms[u] else matrices[u], 256) for u in ("embedding", "layer", "layer", "head")]
    assert planned("int8") == sum(4 * n + up(2 * n, 16 * 256) * 260 // 256 for n in ranges)  # masters and state
    assert planned("int8") < 0.52 * planned("float32")


def test_refusals():
    """one line each: another optimizer's checkpoint, and what does not go together"""
    done = start("stopped-lion", 2, "ademamix", **{"checkpoint.load_step": SAVED, "checkpoint.load_only": "true"})
    assert done.code == 6 and 'optimizer.name = "AdEMAMix", there "Lion"' in done.err + done.out, (done.code, done.err[-800:])
    anew = {"checkpoint.exclude_from_loading": "optimizer", "checkpoint.accept_changed": "optimizer"}
    done = start("stopped-lion", 2, "ademamix", **{"checkpoint.load_step": SAVED, "checkpoint.load_only": "true"}, **anew)
    assert done.code == 0, done.err[-800:]
    int8 = {"optimizer.state_dtype": "int8"}
    for keys, words in ((int8 | {"optimizer.state_rounding": "stochastic"}, 'optimizer.state_rounding = "stochastic"'),
                        ({"optimizer.rest": "Muon"}, "matrices of layers alone"), ({"optimizer.name": "GaLore2", "optimizer.galore.rank": 65}, "rank"),
                        ({"optimizer.name": "Lion", "optimizer.state_dtype": "bfloat16", "optimizer.state_rounding": "stochastic"},
                         'optimizer.state_rounding = "stochastic"'),
                        ({"optimizer.rest": "nobody"}, "optimizer.rest"), ({"optimizer.sgd.momentum": 1.5}, "optimizer.sgd.momentum")):
        done = start("refused", 1, None, **keys)
        assert done.code == 2 and words in done.err, (keys, done.code, done.err[-500:])


titan.tap(test_meshes, test_identities, test_experts, test_checkpoints, test_types, test_bytes, test_refusals)
