# SPDX-License-Identifier: Apache-2.0
"""Sums over replicas that travel as codes: in fp32 they give the bits of sums without codes; codes that lose something do so in the same way each
time, and leave all replicas with the same masters; LoCo without errors is int4; what does not go together is refused."""
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import titan  # noqa: E402

WORKER = titan.BIN / "titan-worker"
folder = tempfile.TemporaryDirectory(prefix="titan-replica-codecs-")
root = Path(folder.name)
text = titan.headers_text(root / "text")
STEPS = 8
CODEC, WITHIN, METHOD = "parallelism.replicate_codec", "parallelism.fsdp_reduce_codec", "parallelism.replicate_method"
TWO = {"parallelism.data_parallel_replicate_degree": 2}
# Replicas are compared at each checkpoint.
BASE = {"training.dataset_path": text, "training.mixed_precision_param": "float32", "training.steps": STEPS, "lr_scheduler.warmup_steps": 2,
        "training.local_batch_size": 1, "training.global_batch_size": 12, "checkpoint.interval": 4, "optimizer.lr": 5e-3}
MESHES = {
    "plain": (2, TWO),
    "shards": (4, TWO),
    "coded shards": (4, TWO | {WITHIN: "f32"}),
    "microbatches": (4, TWO | {"parallelism.fsdp_reduce": "microbatch"}),
    "split": (4, TWO | {"parallelism.tensor_parallel_degree": 2}),
    "stages": (4, TWO | {"parallelism.pipeline_parallel_degree": 2}),
    "tied": (4, TWO | {"parallelism.pipeline_parallel_degree": 2, "model.tied_embeddings": "true"}),
    "experts": (4, TWO | {"model.name": "deepseek_v3", "parallelism.expert_parallel_degree": 2}),
    "parts that go round": (4, TWO | {"parallelism.rotate": "in_place"}),
    "owners": (2, TWO | {"optimizer.name": "Muon", "optimizer.lr": 0.02}),
    "sums": (2, TWO | {"optimizer.name": "StableAdamW", "optimizer.stable_adamw.threshold": 0.5}),
    "buddies": (4, TWO | {"fault_tolerance.redundancy": "buddy"}),
    "offload": (2, TWO | {"training.enable_cpu_offload": "true"}),
}
THREE = (3, {"parallelism.data_parallel_replicate_degree": 3, "elastic.max_workers": 3})  # its ranges have other lengths with codes: a norm's sum is in another order
runs = 0


def start(workers, keys):
    global runs
    runs += 1
    return root / str(runs), titan.command(WORKER, "run", titan.SOURCE / "recipes/tiny.toml", "-n", workers, "--dir", root / str(runs),
                                           "--device", "cpu", *titan.overrides(BASE | keys))


def run(workers, keys):
    """(loss, gradient norm) of each step."""
    where, done = start(workers, keys)
    assert done.code == 0, (keys, done.err[-2000:])
    assert "drifted" not in done.err + done.out, (keys, done.err[-2000:])
    return [(p["loss"], p["grad_norm"]) for p in map(json.loads, (where / "metrics.jsonl").read_text().splitlines())]


def apart(a, b):
    return max(abs(x[0] - y[0]) for x, y in zip(a, b))


def test_identity():
    """codec f32 has the bits of a sum without codes, on meshes and with methods of all kinds; with three replicas it is as near as another order"""
    for name, (workers, keys) in MESHES.items():
        assert run(workers, keys | {CODEC: "f32"}) == run(workers, keys), name
    workers, keys = THREE
    assert apart(run(workers, keys | {CODEC: "f32"}), run(workers, keys)) < 1e-5


def test_lossy():
    """each codec loses a little, the same each time, and replicas stay equal; with codes within replicas as well"""
    workers, keys = MESHES["shards"]
    exact = run(workers, keys)
    lost = {}
    for codec in ("bf16", "fp8", "int8", "int4", "loco"):
        first = run(workers, keys | {CODEC: codec})
        assert first == run(workers, keys | {CODEC: codec}), codec
        norm = abs(first[0][1] / exact[0][1] - 1)
        assert first[0][0] == exact[0][0] and apart(first, exact) < 0.15 and norm < 0.1, (codec, first, exact)
        lost[codec] = first
    lost["both"] = run(workers, keys | {CODEC: "loco", WITHIN: "loco"})
    assert apart(lost["both"], exact) < 0.2, (lost, exact)
    assert len({tuple(losses) for losses in lost.values()}) == len(lost)
    assert apart(lost["bf16"], exact) < apart(lost["int4"], exact)
    for name in ("split", "stages", "tied", "experts", "owners"):
        workers, keys = MESHES[name]
        assert run(workers, keys | {CODEC: "int8"})[STEPS - 1][0] < exact[0][0] - 0.1, name


def test_errors():
    """LoCo that forgets its errors after each step is int4, bit for bit; with errors, or with another decay, it is not"""
    for workers, keys in (MESHES["plain"], MESHES["tied"], THREE):
        forgets = run(workers, keys | {CODEC: "loco", "parallelism.error_reset": 1})
        assert forgets == run(workers, keys | {CODEC: "int4"}), keys
        keeps = run(workers, keys | {CODEC: "loco"})
        assert keeps[:1] == forgets[:1] and keeps != forgets, keys
        assert run(workers, keys | {CODEC: "loco", "parallelism.error_decay": 0.5}) != keeps, keys


def test_plan():
    """a plan counts two phases: a piece of each range to each other replica, and a piece of the sum; and loco's errors"""
    def planned(codec):
        done = titan.command(titan.BIN / "titanctl", "-o", "json", "plan", titan.SOURCE / "recipes/tiny.toml", "--world", 4, "--device", "cpu",
                             *titan.overrides(TWO | {CODEC: codec}))
        assert done.code == 0, done.err
        rank = json.loads(done.out)["ranks"][0]
        return rank["sent_bytes"]["dp_replicate"], rank["memory"]["optimizer"]

    ranges = [64 * -(-n // 128) for n in (256 * 64, 36992, 36992, 256 * 64 + 64)]  # embedding, layers, norm and head
    plain, state = planned("none")
    assert plain == 4 * sum(ranges), (plain, ranges)
    for codec, bits in (("f32", 32), ("bf16", 16), ("fp8", 8), ("int8", 8), ("int4", 4), ("loco", 4)):
        scales = [0 if bits > 8 else -(-4 * -(-n // 2048) // 16) * 16 for n in ranges]
        pieces = [s + -(-n // 2 * bits // 128) * 16 for n, s in zip(ranges, scales)]
        got, kept = planned(codec)
        assert got == 2 * sum(pieces), (codec, got, pieces)
        assert kept - state == (3 * sum(s + -(-n // 32) * 16 for n, s in zip(ranges, scales)) if codec == "loco" else 0), (codec, kept, state)


def test_nobody_to_send_to():
    """a run that has lost all replicas but one, and canonical sums, have nothing to code"""
    assert run(1, TWO | {CODEC: "loco"}) == run(1, TWO)
    assert run(2, TWO | {CODEC: "f32", "numerics.canonical": "true"}) == run(2, TWO | {"numerics.canonical": "true"})


def test_refused():
    """one line each: unknown codecs, one replica, canonical sums, parts of directions"""
    sgd = {"optimizer.name": "SGD"}
    for keys, words in ((TWO | {CODEC: "int3"}, ("int3", "loco")), ({CODEC: "int8"}, ("data_parallel_replicate_degree = 1", "nobody")),
                        (TWO | {CODEC: "int8", "numerics.canonical": "true"}, ("numerics.canonical", "f32")),
                        *((TWO | sgd | {CODEC: "int8", METHOD: method}, ("replicate_method", "int8")) for method in ("demo", "random", "striding"))):
        _, done = start(2, keys)
        assert done.code == 2 and len(done.err.splitlines()) <= 2 and all(w in done.err for w in words), (keys, done.err)


titan.tap(test_identity, test_lossy, test_errors, test_plan, test_nobody_to_send_to, test_refused)
