# SPDX-License-Identifier: Apache-2.0
"""What a run begins from, and what its last checkpoint has: the [checkpoint] keys of titan-worker run."""
import json
import os
import shutil
import struct
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import titan  # noqa: E402

folder = tempfile.TemporaryDirectory(prefix="titan-beginnings-")
root = Path(folder.name)
text = titan.headers_text(root / "text")
BASE = {"training.dataset_path": text, "training.mixed_precision_param": "float32", "checkpoint.keep_latest_k": 0,
        "lr_scheduler.warmup_steps": 2, "training.steps": 20, "lr_scheduler.decay_ratio": 0.0}


def start(name, workers=1, failpoints=None, **keys):
    keys = {f"checkpoint.{k}" if "." not in k else k: str(v).lower() if isinstance(v, bool) else v
            for k, v in keys.items()}
    return titan.command((titan.FP_BIN if failpoints else titan.BIN) / "titan-worker", "run", titan.SOURCE / "recipes/tiny.toml", "-n", workers, "--dir", root / name,
                         "--device", "cpu", *titan.overrides(BASE | keys),
                         env={**os.environ, "TITAN_FAILPOINTS": failpoints} if failpoints else None)


def run(name, workers=1, **keys):
    """Losses by step of what this run trained."""
    log = root / name / "metrics.jsonl"
    before = len(log.read_text().splitlines()) if log.exists() else 0
    done = start(name, workers, **keys)
    assert done.code == 0, done.err[-2000:]
    if not log.exists():
        return {}
    return {p["step"]: p["loss"] for p in map(json.loads, log.read_text().splitlines()[before:])}


def refused(words, name, code=2, **keys):
    done = start(name, **keys)
    assert done.code == code and words in done.err, (done.code, done.err)


def close(a, b):
    assert a.keys() == b.keys(), (sorted(a), sorted(b))
    for step, loss in a.items():
        assert abs(loss - b[step]) <= 1e-6 * loss, (step, loss, b[step])


def tail(losses, step):
    return {s: x for s, x in losses.items() if s > step}


def whole():
    """Losses of the run that the others are compared with; once."""
    if not hasattr(whole, "losses"):
        whole.losses = run("whole")
    return whole.losses


def test_another_runs_checkpoint():
    """the weights alone at step 0, or all of the state; of one step or the newest; on another mesh"""
    losses = whole()
    at = root / "whole/checkpoint/step-00000010"
    going_on = run("full", 2, initial_load_path=at, initial_load_model_only=False)
    close(going_on, tail(losses, 10))
    alone, again = run("alone", initial_load_path=at), run("alone-2", 2, initial_load_path=at)
    assert min(alone) == 1 and max(alone) == 20 and alone[1] < losses[1] - 0.5
    close(alone, again)
    newest = run("newest", initial_load_path=root / "whole/checkpoint")
    assert newest[1] < alone[1]
    same = {"optimizer.lr": 1e-5, "initial_load_path": at, "initial_load_model_only": False}
    assert min(run("excluded", exclude_from_loading="optimizer,train_state", **same)) == 1
    assert min(run("kept", exclude_from_loading="optimizer", **same)) == 11


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_newest_of_a_folder():
    """what is left out on the way to the newest that can be read is named, and so is what is loaded; that one loads, or nothing does"""
    whole()
    at = root / "newest-of/checkpoint"
    shutil.copytree(root / "whole/checkpoint", at)
    last, before = at / "step-00000020", at / "step-00000010"

    def begun(loaded, left_out, why, name, **keys):
        done = start(name, 2, initial_load_path=at, **keys)
        assert done.code == 0, done.err[-2000:]
        assert done.err.count(f'path="{loaded}"') == 2 and "weights loaded" in done.err, done.err
        for line in [x for x in done.err.splitlines() if "refused" in x or "cannot be read" in x]:
            assert left_out and f'path="{left_out}"' in line and why in line, line
        assert not left_out or why in done.err, done.err

    begun(last, None, "", "of-last")
    begun(before, last, "folder.look", "of-unread", failpoints="folder.look%0=fail:EIO@1")
    flip(last / "manifest.json")
    begun(before, last, "manifest.json", "of-before")
    done = titan.command(titan.BIN / "titan-worker", "generate", at, "--max-tokens", 1, "--device", "cpu")
    assert done.code == 0 and "checkpoint refused" in done.err and str(last) in done.err, (done.code, done.err)
    for shard in before.glob("rank-*.safetensors"):
        flip(shard)
    refused(f"{before}': 'rank-00000.safetensors' is damaged", "of-damaged", initial_load_path=at)
    flip(before / "manifest.json")
    refused(f"no checkpoint in '{at}' loads: '{last}", "of-none", initial_load_path=at)


def test_load_step():
    """a run begins from the step that is named, and the later ones stay"""
    losses = run("steps", **{"interval": 5})
    for step in (5, 10, 15, 20):
        assert (root / f"steps/checkpoint/step-{step:08}").exists()
    close(run("steps", load_step=5, interval=5), tail(losses, 5))
    close(run("steps", load_step=10, load_only=True, interval=5), tail(losses, 10))
    refused("step-00000007", "steps", load_step=7)


def test_first_and_seed():
    """step 1 has a checkpoint where it is asked for; a seed has the weights of step 0 and nothing is trained"""
    losses = run("first", enable_first_step_checkpoint=True)
    assert (root / "first/checkpoint/step-00000001/manifest.json").exists()
    assert run("seed", 2, create_seed_checkpoint=True, failpoints="checkpoint.write=sleep:200@1+") == {}  # it is waited for
    close(run("seed", 1), losses)
    close(run("seeded", 2, initial_load_path=root / "seed/checkpoint/step-00000000"), losses)
    refused("create_seed_checkpoint", "no", create_seed_checkpoint=True, enable=False)


def size(path):
    return sum(f.stat().st_size for f in path.glob("rank-*.safetensors"))


def test_last_of_a_run():
    """the last checkpoint can be weights alone, of another type; a longer run goes on from the one before"""
    losses = whole()
    light = run("light", 2, last_save_model_only=True, export_dtype="bfloat16")
    close(light, losses)
    full, last = (root / f"{run}/checkpoint/step-00000020" for run in ("whole", "light"))
    assert 5.5 < size(full) / size(last) < 6.5, (size(full), size(last))
    refused("has weights alone", "alone-again", initial_load_path=last, initial_load_model_only=False)
    assert run("from-light", initial_load_path=last)[1] < losses[1] - 0.5
    longer = {"training.steps": 25}
    close(run("light", last_save_model_only=True, **longer), tail(run("longer", **longer), 10))


def header(path):
    data = path.read_bytes()
    return json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])


def test_last_in_hf():
    """last_save_in_hf writes a directory from which a run begins"""
    run("hf", 2, last_save_model_only=True, last_save_in_hf=True, export_dtype="float16")
    at = root / "hf/checkpoint/step-00000020"
    tensors = header(at / "hf/model.safetensors")
    assert tensors["model.layers.1.self_attn.q_proj.weight"]["dtype"] == "F16"
    hf = run("of-hf", 2, initial_load_path=at / "hf", initial_load_in_hf=True)
    close(hf, run("of-titan", initial_load_path=at))
    refused("initial_load_in_hf = true", "wrong", initial_load_path=at / "hf")
    refused("last_save_model_only", "wrong", last_save_in_hf=True, last_save_model_only=False)


def test_dimensions_of_config_json():
    """model.flavor = "hf": those of the directory that a run begins from; keys with other values are named at once"""
    at = root / "hf/checkpoint/step-00000020/hf"
    there = {"initial_load_path": at, "initial_load_in_hf": True, "model.flavor": "hf"}
    close(run("of-config", 2, **there), run("of-hf-again", initial_load_path=at, initial_load_in_hf=True))
    refused("model.dim = 32, there 64; model.n_layers = 3, there 2", "wrong", 6, **there, **{"model.dim": 32, "model.n_layers": 3})
    refused('model.name = "qwen3", but config.json is of "llama3"', "wrong", 6, **there, **{"model.name": "qwen3"})
    refused("needs checkpoint.initial_load_path", "wrong", **{"model.flavor": "hf"})
    refused("has no config.json", "wrong", **there | {"initial_load_path": root})


def test_tied_head():
    """embedding and head with one matrix, on one rank and on two stages: checkpoints and exports go both ways; a head of its own is refused"""
    tied = {"model.tied_embeddings": True, "last_save_model_only": True, "last_save_in_hf": True}
    apart = tied | {"parallelism.pipeline_parallel_degree": 2, "parallelism.tensor_parallel_degree": 2}
    losses = run("tied", **tied)
    close(run("tied-apart", 4, **apart), losses)
    for name, workers, keys, there in ("onto-four", 4, apart, "tied"), ("onto-one", 1, tied, "tied-apart"):
        at = root / there / "checkpoint"
        close(run(name, workers, initial_load_path=at / "step-00000010", initial_load_model_only=False, **keys), tail(losses, 10))
        hf = at / "step-00000020/hf"
        assert "lm_head.weight" not in header(hf / "model.safetensors")
        close(run(f"{name}-of-hf", workers, initial_load_path=hf, initial_load_in_hf=True, **keys),
              run(f"{name}-of-titan", initial_load_path=at / "step-00000020", **tied))
    run("own-head", **tied | {"model.tied_embeddings": False})
    own = root / "own-head/checkpoint/step-00000020/hf"
    there = {"workers": 2, "initial_load_path": own, "initial_load_in_hf": True, "parallelism.pipeline_parallel_degree": 2}
    refused("tensor 'lm_head.weight' is not the model's\n  set model.tied_embeddings = false", "head", **there | {"model.tied_embeddings": True})
    config = json.loads((own / "config.json").read_text())
    (own / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    refused("tensor 'lm_head.weight' is not the embedding's matrix, which the head is\n  set model.tied_embeddings = false", "head",
            **there | {"model.flavor": "hf"})


def test_refusals():
    """another model, what is not there, words that are no parts of the state"""
    whole()
    at = root / "whole/checkpoint/step-00000010"
    refused("model.dim = 32, there 64", "dim", initial_load_path=at, **{"model.dim": 32, "model.head_dim": 16})
    refused("nowhere", "nowhere", initial_load_path=root / "nowhere")
    refused("expected", "words", exclude_from_loading="model")
    refused("expected", "words", exclude_from_loading="optimiser")


titan.tap(test_another_runs_checkpoint, test_newest_of_a_folder, test_load_step, test_first_and_seed, test_last_of_a_run,
          test_last_in_hf, test_dimensions_of_config_json, test_tied_head, test_refusals)
