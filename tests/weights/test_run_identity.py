#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a run is, on every way into one: data, tokenizer, model, batch, optimizer, line of checkpoints. What differs is refused with
both values, or goes on behind what was read where checkpoint.accept_changed names it."""
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import titan  # noqa: E402

folder = tempfile.TemporaryDirectory(prefix="titan-identity-")
root = Path(folder.name)
TEXT = b"".join(p.read_bytes() for p in sorted(titan.headers_text(root / "all", 60000).iterdir()))[:60000]
BASE = {"training.steps": 4, "lr_scheduler.total_steps": 40, "lr_scheduler.warmup_steps": 2, "checkpoint.interval": 2,
        "checkpoint.keep_latest_k": 0, "device.threads": 1, "model.vocab_size": 320, "metrics.log_samples": "true",
        "training.mixed_precision_param": "float32"}


def write_tokenizer(at, order):
    """Bytes as a tokenizer.json, the ids in this order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    letter = {b: chr(b) for b in plain} | {b: chr(256 + n) for n, b in enumerate(others)}
    end = {"id": 256, "content": "<|end|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    at.mkdir(exist_ok=True)
    (at / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [end], "normalizer": None, "post_processor": None, "decoder": {"type": "ByteLevel"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "unk_token": None, "vocab": {letter[b]: i for i, b in enumerate(order)} | {"<|end|>": 256}, "merges": []}}))
    (at / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))


def fresh(name):
    """A place with data, tokenizer and a run of 4 steps; what it has are copies of those of the first."""
    at = root / name
    first = root / "first"
    if not first.exists():
        (first / "data").mkdir(parents=True)
        (first / "data/a.txt").write_bytes(TEXT)
        write_tokenizer(first / "tokenizer", range(256))
        done = start(first)
        assert done.code == 0, done.err
    shutil.copytree(first, at)
    return at


def start(at, job="run", workers=1, **keys):
    keys = {k.replace("__", "."): v for k, v in keys.items()}
    base = BASE | {"training.dataset_path": at / "data", "model.tokenizer": at / "tokenizer"}
    return titan.command(titan.BIN / "titan-worker", "run", titan.SOURCE / "recipes/tiny.toml", "-n", workers, "--dir", at / job, "--device", "cpu",
                         *titan.overrides(base | keys))


def samples(at, job="run"):
    """[(step, number in the step, hash)] of what was read, in order."""
    lines = [x for f in (at / job).glob("samples-*.csv") for x in f.read_text().splitlines()]
    return sorted((int(step), int(n), h) for step, n, h in (x.split(",") for x in lines))


# --- differences ---------------------------------------------------------------------------------------------------------

def other_bytes(at):
    (at / "data/a.txt").write_bytes(TEXT[:-1] + bytes([TEXT[-1] ^ 1]))
    return {}


def a_file_more(at):
    (at / "data/b.txt").write_bytes(TEXT[:5000])
    return {}


def other_ids(at):
    write_tokenizer(at / "tokenizer", reversed(range(256)))
    return {}


DIFFERENCES = {  # name: (what is changed, what accepts it, words of the refusal, it matters to weights alone)
    "bytes": (other_bytes, "data", "the training data is another: '", False),
    "more": (a_file_more, "data", "the training data is another: '", False),
    "ids": (other_ids, "data,tokenizer", "gives other ids", True),
    "theta": (lambda at: {"model__rope_theta": 1000}, "model", "model.rope_theta = ", True),
    "heads": (lambda at: {"model__n_heads": 8, "model__n_kv_heads": 4, "model__head_dim": 8}, "model", "model.n_heads = 8, there 4", True),
    "batch": (lambda at: {"training__global_batch_size": 4}, "batch", "training.global_batch_size = 4, there 8", None),
    "seq": (lambda at: {"training__seq_len": 32}, "batch", "training.seq_len = 32, there 64", None),
    "lr": (lambda at: {"optimizer__lr": 1e-4}, "optimizer", "optimizer.lr = 0.0001, there 0.003", None),
}
PROGRESS = {"checkpoint__initial_load_model_only": "false"}
WAYS = {  # name: (job, keys, the folder is the run's own, the step is taken over)
    "resume": ("run", {}, True, True),
    "load_step": ("run", {"checkpoint__load_step": 2}, True, True),
    "weights": ("new", {}, False, False),
    "progress": ("new", PROGRESS, False, True),
    "hf": ("new", {"checkpoint__initial_load_in_hf": "true"}, False, False),
}


def begin(at, way, **keys):
    job, more, own, _ = WAYS[way]
    if way == "hf":
        more = more | {"checkpoint__initial_load_path": root / "hf"}
    elif not own:
        more = more | {"checkpoint__initial_load_path": at / "run/checkpoint"}
    return start(at, job, training__steps=6, **more, **keys)


def export():
    """A Hugging Face directory with the tokenizer beside the weights; once."""
    if (root / "hf").exists():
        return
    at = fresh("exported")
    done = titan.command(titan.BIN / "titan-worker", "convert", at / "run/checkpoint", root / "hf")
    assert done.code == 0, done.err
    for file in (at / "tokenizer").iterdir():
        shutil.copy(file, root / "hf")


def test_every_difference_on_every_way():
    """each difference on each way in: refused with both values, and taken where it is named"""
    export()
    for name, (change, accepts, words, of_weights) in DIFFERENCES.items():
        for way, (_, _, own, progress) in WAYS.items():
            matters = own if of_weights is None else of_weights or progress
            at = fresh(f"{name}-{way}")
            keys = change(at)
            done = begin(at, way, **keys)
            if not matters:
                assert done.code == 0, (name, way, done.err[-1500:])
                continue
            assert done.code in (2, 6) and words in done.err, (name, way, done.code, done.err[-1500:])
            if way == "hf" and name == "heads":  # a shape there, which nothing accepts
                continue
            assert "accept_changed" in done.err, (name, way, done.err[-1500:])
            done = begin(at, way, checkpoint__accept_changed=accepts, **keys)
            assert done.code == 0, (name, way, done.err[-1500:])
            shutil.rmtree(at)


def test_the_same_goes_on():
    """the same contents at other paths go on without a word, on every way"""
    export()
    for way in WAYS:
        at = fresh(f"same-{way}")
        (at / "data").rename(at / "moved")
        (at / "moved/a.txt").rename(at / "moved/z.txt")
        (at / "tokenizer").rename(at / "words")
        done = begin(at, way, training__dataset_path=at / "moved", model__tokenizer=at / "words")
        assert done.code == 0 and " warn " not in done.err, (way, done.err[-1500:])


def test_generating():
    """text is not generated with a tokenizer that is not the run's any more, unless it is named"""
    at = fresh("generating")
    assert start(at, "own").code == 0
    args = (titan.BIN / "titan-worker", "generate", at / "own/checkpoint", "--max-tokens", 1, "--device", "cpu")
    assert titan.command(*args).code == 0
    other_ids(at)
    done = titan.command(*args)
    assert done.code == 2 and "gives other ids" in done.err and "--tokenizer" in done.err, done.err
    assert titan.command(*args, "--tokenizer", at / "tokenizer").code == 0


def test_goes_on_behind_what_was_read():
    """another batch begins with the next sample: none is read twice, none is left out, as if it had been one run"""
    at = fresh("behind")
    assert start(at, "whole", training__steps=8).code == 0
    read = [h for _, _, h in samples(at, "whole")]
    done = start(at, training__steps=10, training__global_batch_size=4, checkpoint__accept_changed="batch")
    assert done.code == 0, done.err
    assert "step 5 begins with sample 32" in done.err, done.err
    assert [h for _, _, h in samples(at)] == read[:32 + 6 * 4], "not behind what was read"
    again = start(at, training__steps=12, training__global_batch_size=4)  # is that run's by now
    assert again.code == 0 and "differs" not in again.err, again.err
    assert [h for _, _, h in samples(at)] == read[:32 + 8 * 4]
    manifest = json.loads((at / "run/checkpoint/step-00000012/manifest.json").read_text())
    assert manifest["version"] == 5 and manifest["identity"]["samples"] == 64, manifest["version"]
    assert json.loads((at / "run/checkpoint/step-00000004/manifest.json").read_text())["version"] == 2
    back = start(at, training__steps=6, checkpoint__accept_changed="batch", checkpoint__load_step=4)
    assert back.code == 0, back.err  # to what it was, over checkpoints of the other batch


def test_mixture():
    """other weights go on behind each source's samples; a source that is new begins at its beginning"""
    at = fresh("mixture")
    (at / "data/b.txt").write_bytes(TEXT[::-1][:40000])
    one, two = at / "data/a.txt", at / "data/b.txt"

    def mixed(*weights):
        return "[" + ",".join(f'{{path="{p}",weight={float(w)}}}' for p, w in zip((one, two), weights)) + "]"

    keys = {"training__dataset_path": "", "training__mixture": mixed(1, 1)}
    assert start(at, "mixed", **keys).code == 0
    before = {h for _, _, h in samples(at, "mixed")}
    keys["training__mixture"] = mixed(1, 3)
    done = start(at, "mixed", training__steps=6, **keys)
    assert done.code == 6 and "training.mixture = " in done.err, done.err
    done = start(at, "mixed", training__steps=6, checkpoint__accept_changed="data", **keys)
    assert done.code == 0 and "drawn anew behind what was read" in done.err, done.err
    assert before <= {h for _, _, h in samples(at, "mixed")}
    manifest = json.loads((at / "mixed/checkpoint/step-00000006/manifest.json").read_text())
    assert manifest["identity"]["first"] == 32 and all(s["from"] > 0 for s in manifest["identity"]["data"]), manifest["identity"]
    assert start(at, "mixed", training__steps=8, **keys).code == 0


def test_partial_load_on_another_mesh():
    """a batch that follows from the number of ranks is no other recipe where a part of the state is left out, and is named"""
    at = fresh("partial")
    keys = {"training__global_batch_size": -1, "training__local_batch_size": 2}
    assert start(at, "mesh", 4, **keys).code == 0
    keys |= {"training__steps": 6, "parallelism__tensor_parallel_degree": 2}
    done = start(at, "mesh", 4, **keys)
    assert done.code == 6 and "training.global_batch_size = 4, there 8" in done.err, done.err
    done = start(at, "mesh", 4, checkpoint__exclude_from_loading="lr_scheduler,dataloader,optimizer", **keys)
    assert done.code == 0 and "a step has 4 samples of 64 tokens, there 8 of 64: step 5 begins with sample 32" in done.err, done.err


def test_longer_run():
    """more steps: the learning rate before and after, and the key that keeps it"""
    at = fresh("longer")
    keys = {"lr_scheduler__total_steps": -1}
    assert start(at, "rate", **keys).code == 0
    done = start(at, "rate", training__steps=8, **keys)
    found = re.search(r"learning rate (\S+) at step 4, (\S+) from step 5 on: .* training.steps, 4 before and 8 now; lr_scheduler.total_steps = 4", done.err)
    rates = {m["step"]: m["learning_rate"] for m in map(json.loads, (at / "rate/metrics.jsonl").read_text().splitlines())}
    # Step 6 was never trained with 4 steps in all.
    assert found and float(found[1]) == float(f"{rates[4]:.2e}") and float(found[2]) == float(f"{rates[5]:.2e}"), (done.err, rates)


def steps_of(at):
    return sorted(int(p.name[5:]) for p in (at / "run/checkpoint").glob("step-*"))


def test_line():
    """a run that goes back is gone on from where it is, not from what it left; what is left out is named"""
    at = fresh("line")
    assert start(at, training__steps=10).code == 0
    assert start(at, training__steps=5, checkpoint__load_step=2).code == 0
    assert steps_of(at) == [2, 4, 5, 6, 8, 10]
    manifests = {step: json.loads((at / f"run/checkpoint/step-{step:08d}/manifest.json").read_text()) for step in (2, 5, 10)}
    assert manifests[5]["from"] == {"run": manifests[2]["run"], "step": 2} and manifests[5]["line"] == [[1, 2]], manifests[5]["from"]
    assert manifests[10]["from"]["step"] == 4 and "line" not in manifests[10] and "from" not in manifests[2]
    newest = titan.command(titan.BIN / "titan-worker", "generate", at / "run/checkpoint", "--max-tokens", 1, "--device", "cpu")
    assert newest.code == 0 and "steps=6-10" in newest.err, newest.err
    for steps, loaded in ((6, 5), (7, 6)):
        done = start(at, training__steps=steps)
        assert done.code == 0 and f"step-{loaded:08d}" in done.err and "left out" in done.err, done.err
    done = start(at, "other", checkpoint__initial_load_path=at / "run/checkpoint", checkpoint__initial_load_model_only="false", training__steps=8)
    assert done.code == 0 and 'checkpoint/step-00000007" step=7' in done.err, done.err
    done = start(at, training__steps=12, checkpoint__load_step=10)  # back to what was left
    assert done.code == 0, done.err
    done = start(at, training__steps=13)
    assert "step-00000012" in done.err and done.code == 0, done.err


def test_names():
    """a folder's name and its manifest's step agree, or it is named and left out; load_step without one is an error"""
    at = fresh("names")
    checkpoints = at / "run/checkpoint"
    shutil.copytree(checkpoints / "step-00000002", checkpoints / "step-00000009")
    done = start(at, training__steps=6)
    assert done.code == 0 and "step-00000009': its manifest is of step 2" in done.err and 'path="' + str(checkpoints / "step-00000004") in done.err, done.err
    done = start(at, training__steps=12, checkpoint__load_step=9)
    assert done.code == 2 and "its manifest is of step 2" in done.err, done.err
    done = start(at, "new", checkpoint__initial_load_path=checkpoints / "step-00000009")
    assert done.code == 2 and "its manifest is of step 2" in done.err, done.err
    (at / "empty/checkpoint").mkdir(parents=True)
    for job in ("missing", "empty"):
        done = start(at, job, checkpoint__load_step=7)
        assert done.code == 2 and f"checkpoint.load_step = 7: there is no checkpoint in '{at}/{job}/checkpoint'" in done.err, done.err
    done = start(at, "off", checkpoint__load_step=7, checkpoint__enable="false")
    assert done.code == 2 and "checkpoint.enable = false loads none" in done.err, done.err


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def strip(path, *members, **others):
    """A manifest without these, as versions before have written it, or with others."""
    text = path.read_text()
    whole = json.loads(text)
    for m in members:
        del whole[m]
    whole.pop("manifest_crc32c")
    whole.update(others)
    body = json.dumps(whole, separators=(",", ":"))[:-1]
    path.write_text(body + f',"manifest_crc32c":"{crc32c(body.encode()):08x}"}}\n')


def test_manifests_of_earlier_versions():
    """a manifest without any of it goes on, and that is said once; other paths are refused there; one that cannot be is damaged"""
    at = fresh("earlier")
    assert start(at, "old").code == 0
    for path in (at / "old/checkpoint").glob("step-*/manifest.json"):
        strip(path, "identity", "run")
    other_bytes(at)
    moved = start(at, "old", training__steps=6, training__dataset_path=at / "data/a.txt")
    assert moved.code == 6 and 'training.dataset_path = "' in moved.err, moved.err
    done = start(at, "old", training__steps=6)
    assert done.code == 0 and done.err.count("that is not compared") == 1, done.err
    done = start(at, "old", training__steps=8)  # its own manifest has it all
    assert done.code == 0 and "not compared" not in done.err, done.err
    newest = at / "old/checkpoint/step-00000008/manifest.json"
    for broken in ({"identity": {"tokenizer": "0" * 16}}, {"line": [[2, 1], [1, 0]]}):
        strip(newest, **broken)
        done = start(at, "old", training__steps=10)
        assert done.code == 0 and "step-00000008/manifest.json" in done.err and "cannot be" in done.err or "branches" in done.err, done.err
        shutil.rmtree(newest.parents[1] / "step-00000010")


titan.tap(test_every_difference_on_every_way, test_the_same_goes_on, test_generating, test_goes_on_behind_what_was_read, test_mixture,
          test_partial_load_on_another_mesh, test_longer_run, test_line, test_names, test_manifests_of_earlier_versions)
