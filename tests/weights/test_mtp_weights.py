#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weights of modules of multi-token prediction go to Hugging Face's files and back to the bit, with their copies of embedding and head; without
model.mtp_layers they are left out and counted, and a family without them is exported without them. Checkpoints with modules go to another
mesh and back."""
import json
import struct
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import titan  # noqa: E402

folder = tempfile.TemporaryDirectory(prefix="titan-mtp-")
root = Path(folder.name)
TEXT = titan.headers_text(root / "all", 60000)
BASE = {"training.dataset_path": TEXT, "training.seq_len": 32, "training.local_batch_size": 2, "training.global_batch_size": 4, "device.threads": 1,
        "training.mixed_precision_param": "float32", "checkpoint.interval": 2, "checkpoint.keep_latest_k": 0, "lr_scheduler.warmup_steps": 0,
        "lr_scheduler.decay_ratio": 0.0, "training.steps": 2}
DEEPSEEK = {"model.name": "deepseek_v3", "model.mtp_layers": 2}


def train(to, workers=1, **keys):
    keys = BASE | {k.replace("__", "."): v for k, v in keys.items()}
    return titan.command(titan.BIN / "titan-worker", "run", titan.SOURCE / "recipes/tiny.toml", "-n", workers, "--dir", root / to, "--device", "cpu",
                         *titan.overrides(keys))


def must(done):
    assert done.code == 0, done.err[-2000:]
    return done


def export(run, to):
    return must(titan.command(titan.BIN / "titan-worker", "convert", root / run / "checkpoint", root / to, "--dtype", "f32"))


def weights(path):
    """{name: (type, shape, bytes)}"""
    data = (root / path / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {n: (t["dtype"], t["shape"], data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]]) for n, t in header.items()}


def write_weights(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (root / path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(x[2] for x in tensors.values()))


def taken(to, **keys):
    """A run from the exported weights that changes none of them."""
    return train(to, **{"model__name": "deepseek_v3", "model__flavor": "hf", "model__balance_rate": 0, "checkpoint__initial_load_path": root / "out",
                        "checkpoint__initial_load_in_hf": "true", "optimizer__lr": 0} | keys)


def test_there_and_back():
    """Exported, loaded with model.mtp_layers, exported again: the same bits; num_nextn_predict_layers says how many there are"""
    must(train("first", **{k.replace(".", "__"): v for k, v in DEEPSEEK.items()}))
    export("first", "out")
    ours = weights("out")
    config = json.loads((root / "out/config.json").read_text())
    assert config["num_nextn_predict_layers"] == 2, config
    layers = config["num_hidden_layers"]
    for module in (0, 1):
        at = f"model.layers.{layers + module}."
        for name in ("enorm", "hnorm", "eh_proj", "shared_head.norm", "input_layernorm", "self_attn.o_proj", "mlp.experts.3.down_proj", "mlp.gate"):
            assert f"{at}{name}.weight" in ours, (at, name)
        assert f"{at}mlp.gate.e_score_correction_bias" in ours
        assert ours[f"{at}embed_tokens.weight"] == ours["model.embed_tokens.weight"]
        assert ours[f"{at}shared_head.head.weight"] == ours["lm_head.weight"]
        assert ours[f"{at}eh_proj.weight"][1] == [config["hidden_size"], 2 * config["hidden_size"]]
    must(taken("second", model__mtp_layers=2))
    export("second", "again")
    again = weights("again")
    assert again.keys() == ours.keys()
    odd = [n for n in ours if ours[n] != again[n]]
    assert not odd, odd[:5]


def test_left_out():
    """Without the key modules are left out and counted; one of two is taken, and the other left out"""
    ours = weights("out")
    layers = json.loads((root / "out/config.json").read_text())["num_hidden_layers"]
    for modules in (0, 1):
        behind = [n for n in ours if n.startswith("model.layers.") and int(n.split(".")[2]) >= layers + modules]
        done = must(taken(f"left-{modules}", model__mtp_layers=modules))
        assert f"left out: {len(behind)} tensors of the layers that predict further tokens" in done.out + done.err, done.out[-1500:] + done.err[-500:]
        export(f"left-{modules}", f"left-out-{modules}")
        theirs = weights(f"left-out-{modules}")
        assert theirs.keys() == ours.keys() - set(behind), (theirs.keys() ^ ours.keys())
        assert all(theirs[n] == ours[n] for n in theirs)
    done = must(titan.command(titan.BIN / "titan-worker", "convert", root / "out", root / "converted"))
    assert "tensors of the layers that predict further tokens" in done.err, done.err
    assert "num_nextn" not in (next((root / "converted").glob("step-*")) / "manifest.json").read_text()


def test_refused():
    """More modules than the weights have, and a head of a module's own, are refused by name"""
    done = taken("more", model__mtp_layers=3)
    assert done.code != 0 and "model.mtp_layers = 3, the weights have 2 modules" in done.out + done.err, done.err[-800:]
    ours = weights("out")
    name = next(n for n in ours if n.endswith("shared_head.head.weight"))
    dtype, shape, data = ours[name]
    write_weights("out", ours | {name: (dtype, shape, bytes(4) + data[4:])})
    done = taken("other", model__mtp_layers=2)
    write_weights("out", ours)
    assert done.code != 0 and f"tensor '{name}' is not the model's head" in done.out + done.err, done.err[-800:]


def test_other_family():
    """A family whose configuration has no modules is exported without them, and that is said"""
    must(train("llama", model__mtp_layers=1))
    done = export("llama", "llama-out")
    assert "left out: modules of multi-token prediction, which LlamaForCausalLM does not have" in done.err, done.err
    names = weights("llama-out")
    assert not any("eh_proj" in n for n in names) and "lm_head.weight" in names
    assert "num_nextn" not in (root / "llama-out/config.json").read_text()


def test_other_mesh():
    """Four steps, two of them on four ranks: the losses of a run that never moved"""
    keys = {k.replace(".", "__"): v for k, v in DEEPSEEK.items()} | {"debug__moe_force_load_balance": "true"}
    must(train("stays", training__steps=6, **keys))
    for steps, workers, mesh in ((2, 1, {}), (4, 4, {"parallelism__tensor_parallel_degree": 2, "parallelism__expert_parallel_degree": 4}), (6, 1, {})):
        must(train("moves", workers, training__steps=steps, lr_scheduler__total_steps=6, **keys, **mesh))
    here, there = ([json.loads(line) for line in (root / run / "metrics.jsonl").read_text().splitlines()] for run in ("stays", "moves"))
    assert [x["step"] for x in there] == [1, 2, 3, 4, 5, 6] and [x["world_size"] for x in there] == [1, 1, 4, 4, 1, 1], there
    for key in ("loss", "mtp_loss", "grad_norm"):
        off = max(abs(x[key] - y[key]) / x[key] for x, y in zip(here, there))
        print(f"# {key}: off by at most {off:.1e}")
        assert off < 1e-5, key
    assert all(x["mtp_loss"] > 0 for x in here)


titan.tap(test_there_and_back, test_left_out, test_refused, test_other_family, test_other_mesh)
