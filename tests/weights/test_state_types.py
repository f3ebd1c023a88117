# SPDX-License-Identifier: Apache-2.0
"""Moments in bf16 (optimizer.state_dtype), weights and moments in bf16 (training.dtype): every mesh against one rank, checkpoints, weights
of fp32; and that a mesh gives the same bits again (debug.deterministic)."""
import json
import struct
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import titan  # noqa: E402

WORKER = titan.BIN / "titan-worker"
folder = tempfile.TemporaryDirectory(prefix="titan-state-types-")
root = Path(folder.name)
text = titan.headers_text(root / "text")
STEPS = 12
KINDS = {"moments": {"optimizer.state_dtype": "bfloat16"}, "bfloat16": {"training.dtype": "bfloat16"},
         "stochastic": {"optimizer.state_dtype": "bfloat16", "optimizer.state_rounding": "stochastic"}}
BASE = {"training.dataset_path": text, "training.mixed_precision_param": "float32", "training.steps": STEPS, "lr_scheduler.warmup_steps": 2,
        "checkpoint.keep_latest_k": 0, "checkpoint.interval": 6}
OFF = {"checkpoint__enable": "false"}
NEAR = 5e-3  # of a loss; bf16 has 8 bits


def start(name, workers, keys):
    return titan.command(WORKER, "run", titan.SOURCE / "recipes/tiny.toml", "-n", workers, "--dir", root / name, "--device", "cpu",
                         *titan.overrides(BASE | keys))


def run(name, workers=1, **keys):
    """(loss, gradient norm) by step of what this run trained; a double underscore in a key is its dot."""
    log = root / name / "metrics.jsonl"
    before = len(log.read_text().splitlines()) if log.exists() else 0
    done = start(name, workers, {k.replace("__", "."): v for k, v in keys.items()})
    assert done.code == 0, done.err[-2000:]
    return {p["step"]: (p["loss"], p["grad_norm"]) for p in map(json.loads, log.read_text().splitlines()[before:])}


def with_kind(name, workers, kind, **keys):
    return run(name, workers, **{k.replace(".", "__"): v for k, v in KINDS.get(kind, {}).items()}, **keys)


def test_worlds():
    """canonical sums: one rank, two and three, host memory and a replica: the same bits"""
    same = {"numerics__canonical": "true", "checkpoint__enable": "false"}
    for kind in KINDS:
        one = with_kind(f"one-{kind}", 1, kind, **same)
        assert one[STEPS][0] < one[1][0] - 0.5, one
        for name, workers, more in (("two", 2, {}), ("three", 3, {}), ("offloaded", 1, {"training__enable_cpu_offload": "true"}),
                                    ("replicated", 2, {"parallelism__data_parallel_replicate_degree": 2})):
            assert with_kind(f"{name}-{kind}", workers, kind, **same, **more) == one, (name, kind)


def manifest(path):
    return json.loads((path / "manifest.json").read_text())


def dtypes(path):
    """{parameters' type, moments' type} of the manifest, after holding the shards' headers against it."""
    found = {}
    said = {t["name"]: t["dtype"] for t in manifest(path)["tensors"]}
    for shard in path.glob("rank-*.safetensors"):
        data = shard.read_bytes()
        header = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
        for name, t in header.items():
            if name != "__metadata__":
                assert t["dtype"] == said[name.split("@")[0]], name
    for name, dtype in said.items():
        kind = "moments" if name.startswith("optim.") else "biases" if "expert_bias" in name else "parameters"
        assert found.setdefault(kind, dtype) == dtype, name
    return found


def size(path):
    return sum(f.stat().st_size for f in path.glob("rank-*.safetensors"))


def test_checkpoints():
    """a checkpoint has the types of the state, and half or two thirds of the bytes; on another mesh it goes on to the same bits"""
    run("whole", 2, numerics__canonical="true")
    full = size(root / "whole/checkpoint/step-00000006")
    wants = {"moments": ({"parameters": "F32", "moments": "BF16"}, 4, 8 / 12),
             "stochastic": ({"parameters": "F32", "moments": "BF16"}, 4, 8 / 12),
             "bfloat16": ({"parameters": "BF16", "moments": "BF16"}, 3, 6 / 12)}
    for kind, (types, version, share) in wants.items():
        name = f"stopped-{kind}"
        whole = with_kind(name, 3, kind, numerics__canonical="true")
        at = root / name / "checkpoint"
        assert dtypes(at / "step-00000006") == types and manifest(at / "step-00000006")["version"] == version, kind
        assert abs(size(at / "step-00000006") / full - share) < 0.05, (kind, size(at / "step-00000006"), full)
        again = with_kind(name, 2, kind, numerics__canonical="true", checkpoint__load_step=6, checkpoint__load_only="true")
        assert again == {s: x for s, x in whole.items() if s > 6}, kind
    done = start("stopped-bfloat16", 2, {"numerics.canonical": "true"})
    assert done.code == 6 and "another recipe" in done.err + done.out, (done.code, done.err[-500:])


def test_experts():
    """biases of experts stay fp32: a run that goes on has the bits of one that did not stop"""
    keys = {"model__name": "deepseek_v3", "training__dtype": "bfloat16", "numerics__canonical": "true"}
    whole = run("experts", 2, **keys)
    found = dtypes(root / "experts/checkpoint/step-00000006")
    assert found == {"parameters": "BF16", "moments": "BF16", "biases": "F32"}, found
    assert manifest(root / "experts/checkpoint/step-00000006")["version"] == 4
    again = run("experts", 1, **keys, checkpoint__load_step=6, checkpoint__load_only="true")
    assert again == {s: x for s, x in whole.items() if s > 6}


def test_weights_of_fp32():
    """fp32 weights that a bf16 run begins with are rounded to nearest, as the export in bf16 has them; its own export is bf16"""
    more = {"checkpoint__last_save_model_only": "true"}
    run("fp32", 1, **more)
    run("fp32-cast", 1, **more, checkpoint__export_dtype="bfloat16")
    last = "checkpoint/step-00000012"
    assert dtypes(root / "fp32" / last) == {"parameters": "F32"} and dtypes(root / "fp32-cast" / last) == {"parameters": "BF16"}
    rounded = run("of-fp32", 2, training__dtype="bfloat16", checkpoint__initial_load_path=root / "fp32" / last, **more,
                  checkpoint__last_save_in_hf="true")
    assert rounded == run("of-cast", 2, training__dtype="bfloat16", checkpoint__initial_load_path=root / "fp32-cast" / last, **OFF)
    assert rounded != run("of-fp32-in-fp32", 2, checkpoint__initial_load_path=root / "fp32" / last, **OFF)
    assert dtypes(root / "of-fp32" / last) == {"parameters": "BF16"}
    data = (root / "of-fp32" / last / "hf/model.safetensors").read_bytes()
    header = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
    assert {t["dtype"] for name, t in header.items() if name != "__metadata__"} == {"BF16"}


def tensors(path):
    """{name: (type, bytes)} of a safetensors file."""
    data = path.read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    return {name: (t["dtype"], data[begin + t["data_offsets"][0]:begin + t["data_offsets"][1]])
            for name, t in json.loads(data[8:begin]).items() if name != "__metadata__"}


def rounded(source, dtype):
    """What is exported of a parameter: "float32" casts nothing, other types round to nearest even."""
    kept, data = source
    if dtype == "float32" or (dtype == "bfloat16" and kept == "BF16"):
        return source
    bits = np.frombuffer(data, np.uint32) if kept == "F32" else np.frombuffer(data, np.uint16).astype(np.uint32) << 16
    if dtype == "bfloat16":
        return "BF16", ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16).tobytes()
    return "F16", bits.view(np.float32).astype(np.float16).tobytes()


def test_export_types():
    """each training.dtype in each checkpoint.export_dtype: the last checkpoint and its Hugging Face directory, bit by bit"""
    last = "checkpoint/step-00000002"
    short = {"training__steps": 2, "checkpoint__interval": 10}
    for kept in ("float32", "bfloat16"):
        run(f"whole-{kept}", 1, training__dtype=kept, **short, checkpoint__last_save_model_only="false")
        state = {n: t for n, t in tensors(root / f"whole-{kept}" / last / "rank-00000.safetensors").items() if not n.startswith("optim.")}
        assert {t for t, _ in state.values()} == {"F32" if kept == "float32" else "BF16"}
        for dtype in ("float32", "bfloat16", "float16"):
            name = f"export-{kept}-{dtype}"
            run(name, 1, training__dtype=kept, **short, checkpoint__export_dtype=dtype,
                checkpoint__last_save_model_only="true", checkpoint__last_save_in_hf="true")
            want = {n: rounded(t, dtype) for n, t in state.items()}
            assert tensors(root / name / last / "rank-00000.safetensors") == want, name
            types = {t for t, _ in want.values()}
            assert {t for t, _ in tensors(root / name / last / "hf/model.safetensors").values()} == types, name
            torch = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}[types.pop()]
            assert json.loads((root / name / last / "hf/config.json").read_text())["torch_dtype"] == torch, name


def test_parallel():
    """bf16 weights and bf16 products without canonical sums: tensor, pipeline and context parallelism near one rank"""
    keys = {"training__dtype": "bfloat16", "training__mixed_precision_param": "bfloat16"}
    one = run("near-one", 1, **keys, **OFF)
    for name, more in (("tensor", {"tensor_parallel_degree": 2}), ("pipeline", {"pipeline_parallel_degree": 2}),
                       ("context", {"context_parallel_degree": 2})):
        got = run(f"near-{name}", 2, **keys, **OFF, **{f"parallelism__{k}": v for k, v in more.items()})
        apart = max(abs(got[s][0] - one[s][0]) for s in one)
        print(f"# {name}: {apart:.1e} from one rank, {abs(got[1][0] - one[1][0]):.1e} in the first step", flush=True)
        assert apart < NEAR, (name, apart)


def test_same_bits_again():
    """debug.deterministic asks for what a run does anyway: on the same mesh it gives the same bits again"""
    for name, keys in (("split", {"parallelism__tensor_parallel_degree": 2, "training__mixed_precision_param": "bfloat16"}),
                       ("sharded", {"device__threads": 2})):
        first = run(f"{name}-1", 2, **keys, **OFF)
        assert run(f"{name}-2", 2, **keys, **OFF, debug__deterministic="true") == first, name


titan.tap(test_worlds, test_checkpoints, test_experts, test_weights_of_fp32, test_export_types, test_parallel, test_same_bits_again)
