# SPDX-License-Identifier: Apache-2.0
"""Gradients that travel as codes: in fp32 they give the bits of a reduce-scatter on every mesh; codes that lose something do so in the
same way each time; LoCo without errors is int4; bad choices are refused."""
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import titan  # noqa: E402

WORKER = titan.BIN / "titan-worker"
folder = tempfile.TemporaryDirectory(prefix="titan-codecs-")
root = Path(folder.name)
text = titan.headers_text(root / "text")
STEPS = 8
SCALE = "parallelism.fsdp_reduce_scale"
CODEC, ROUNDING, WHEN = "parallelism.fsdp_reduce_codec", "parallelism.fsdp_reduce_rounding", "parallelism.fsdp_reduce"
BASE = {"training.dataset_path": text, "training.mixed_precision_param": "float32", "training.steps": STEPS, "lr_scheduler.warmup_steps": 2,
        "training.local_batch_size": 1, "training.global_batch_size": 12, "checkpoint.enable": "false", "optimizer.lr": 5e-3}
EXPERTS = {"model.name": "deepseek_v3"}
MESHES = {
    "two": (2, {}),
    "three": (3, {}),
    "four": (4, {}),
    "stages": (4, {"parallelism.pipeline_parallel_degree": 2}),
    "split": (4, {"parallelism.tensor_parallel_degree": 2}),
    "replicas": (4, {"parallelism.data_parallel_replicate_degree": 2}),
    "tied": (4, {"parallelism.pipeline_parallel_degree": 2, "model.tied_embeddings": "true"}),
    "experts": (4, EXPERTS | {"parallelism.expert_parallel_degree": 2}),
    "owners": (2, {"optimizer.name": "Muon", "optimizer.lr": 0.02}),
    "sums": (2, {"optimizer.name": "StableAdamW", "optimizer.stable_adamw.threshold": 0.5}),
    "buddies": (4, {"parallelism.data_parallel_replicate_degree": 2, "fault_tolerance.redundancy": "buddy"}),
}
runs = 0


def start(workers, *words, **keys):
    global runs
    runs += 1
    return root / str(runs), titan.command(WORKER, "run", titan.SOURCE / "recipes/tiny.toml", "-n", workers, "--dir", root / str(runs),
                                           "--device", "cpu", *words, *titan.overrides(BASE | keys))


def run(workers, keys):
    """(loss, gradient norm) of each step."""
    where, done = start(workers, **keys)
    assert done.code == 0, (keys, done.err[-2000:])
    return [(p["loss"], p["grad_norm"]) for p in map(json.loads, (where / "metrics.jsonl").read_text().splitlines())]


def apart(a, b):
    return max(abs(x[0] - y[0]) for x, y in zip(a, b))


def test_identity():
    """codec f32 has the bits of a reduce-scatter once a step: over shards, replicas, stages, tp, a tied head, experts, with owners and sums"""
    for name, (workers, keys) in MESHES.items():
        assert run(workers, keys | {CODEC: "f32"}) == run(workers, keys | {WHEN: "step"}), name


def test_lossy():
    """each codec loses a little, the same each time, and more with fewer bits; rounding at random is the same each time, and another"""
    workers, keys = MESHES["two"]
    exact = run(workers, keys | {WHEN: "step"})
    lost = {}
    for codec in ("bf16", "fp8", "int8", "int4", "loco"):
        for rounding in ("nearest", "stochastic") if codec.startswith("int") else ("nearest",):
            of = keys | {CODEC: codec, ROUNDING: rounding}
            first = run(workers, of)
            assert first == run(workers, of), (codec, rounding)
            assert first[0][0] == exact[0][0] and first != exact, (codec, rounding)
            norm = abs(first[0][1] / exact[0][1] - 1)
            assert apart(first, exact) < 0.15 and norm < 0.1, (codec, rounding, first, exact)
            lost[codec, rounding] = first
    for codec in ("fp8", "int4", "loco"):
        lost[codec, "one scale"] = run(workers, keys | {CODEC: codec, SCALE: "tensor"})
        assert apart(lost[codec, "one scale"], exact) < 0.4, (codec, lost[codec, "one scale"], exact)
    assert len({tuple(losses) for losses in lost.values()}) == len(lost)
    assert apart(lost["bf16", "nearest"], exact) < apart(lost["int4", "nearest"], exact)


def test_errors():
    """LoCo that forgets its errors after each step is int4, bit for bit; with errors, or with another decay, it is not"""
    for name in ("three", "split", "stages", "experts"):
        workers, keys = MESHES[name]
        forgets = run(workers, keys | {CODEC: "loco", "parallelism.error_reset": 1})
        assert forgets == run(workers, keys | {CODEC: "int4"}), name
        scaled = keys | {SCALE: "tensor"}
        assert run(workers, scaled | {CODEC: "loco", "parallelism.error_reset": 1}) == run(workers, scaled | {CODEC: "int4"}) != forgets, name
        keeps = run(workers, keys | {CODEC: "loco"})
        assert keeps[:1] == forgets[:1] and keeps != forgets, name
        assert run(workers, keys | {CODEC: "loco", "parallelism.error_decay": 0.5}) != keeps, name
        late = run(workers, keys | {CODEC: "loco", "parallelism.error_reset": 5})
        assert late[:5] == keeps[:5] and late != keeps, (name, late, keeps)


def test_nobody_to_send_to():
    """one worker, replicas without shards, and canonical sums have nothing to code: any codec that is taken changes nothing"""
    for workers, keys, codec in ((1, {}, "loco"), (2, {"parallelism.data_parallel_replicate_degree": 2}, "int4"), (2, {"numerics.canonical": "true"}, "f32")):
        assert run(workers, keys | {CODEC: codec}) == run(workers, keys), (workers, keys)


def test_refused():
    """unknown codecs, lossy ones with canonical sums, with sums of microbatches, and rounding at random of what is not rounded so"""
    for keys, words in (({CODEC: "int3"}, ("int3", "loco")), ({CODEC: "int4", "numerics.canonical": "true"}, ("numerics.canonical", "f32")),
                        ({CODEC: "f32", WHEN: "microbatch"}, ("microbatch", "once a step")),
                        ({CODEC: "loco", ROUNDING: "stochastic"}, ("stochastic", "nearest", "loco")),
                        ({ROUNDING: "stochastic"}, ("stochastic", "none")),
                        ({CODEC: "bf16", SCALE: "tensor"}, ("fsdp_reduce_scale", "bf16")), ({"parallelism.error_decay": 1}, ("error_decay", "0.999999"))):
        _, done = start(2, **keys)
        assert done.code == 2 and len(done.err.splitlines()) <= 2 and all(w in done.err for w in words), (keys, done.err)


titan.tap(test_identity, test_lossy, test_errors, test_nobody_to_send_to, test_refused)
