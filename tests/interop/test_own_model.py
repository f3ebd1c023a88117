# SPDX-License-Identifier: Apache-2.0
"""Text to a model that others open, and back: a BPE is trained with `tokenizers`, `titanctl data build` makes shards, four ranks
train on them and become two on the way, the run validates, `titan-worker convert` exports, and the loss that `transformers`
computes on the validation data is the run's."""
import json
import math
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import interop  # noqa: E402

interop.use()
from titan import BIN, SOURCE, Daemon, command, headers_text, overrides, tap, until  # noqa: E402

HOME = Path(tempfile.mkdtemp(prefix="titan-own-model-"))
SEQ, STEPS, ENTRIES = 64, 60, 4096
TEXT = SOURCE.parent / "shared/data/text"


def texts():
    """(training, validation): public texts where they lie beside the tree, otherwise the headers of this machine."""
    if (TEXT / "wikitext2_valid.txt").exists():
        return TEXT / "tiny_shakespeare.txt", (TEXT / "wikitext2_valid.txt").read_text()[:200_000]
    path = headers_text(HOME / "headers", 1 << 20)
    return path, "".join(p.read_text(errors="replace") for p in sorted(path.iterdir())[:8])[:200_000]


def train_tokenizer(training):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    files = [training] if training.is_file() else sorted(training.iterdir())
    t.train([str(f) for f in files], trainers.BpeTrainer(vocab_size=ENTRIES, special_tokens=["<|endoftext|>"], show_progress=False,
                                                        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    folder = HOME / "tokenizer"
    folder.mkdir()
    t.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}\n')
    return folder


def build(tokenizer, out, source):
    done = command(BIN / "titanctl", "data", "build", "--tokenizer", tokenizer, "--out", HOME / out, source)
    assert done.code == 0, done.err
    return HOME / out


def shard_ids(folder):
    """The tokens of all shards of a folder, as docs/data.md has it."""
    import numpy as np
    found = []
    for path in sorted(folder.glob("shard-*.bin")):
        _, width = np.fromfile(path, "<u4", 2, offset=8)
        tokens, _ = (int(n) for n in np.fromfile(path, "<u8", 2, offset=16))
        found.append(np.fromfile(path, f"<u{width}", tokens, offset=64))
    return np.concatenate(found).astype("int64")


def loss_of_transformers(folder, ids):
    """Mean over the targets of every window of SEQ + 1 tokens, as the run cuts them."""
    import torch
    import transformers
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    windows = (len(ids) - 1) // SEQ
    total = 0.0
    with torch.no_grad():
        for at in range(0, windows, 64):
            rows = torch.stack([torch.from_numpy(ids[k * SEQ:(k + 1) * SEQ + 1]) for k in range(at, min(at + 64, windows))])
            logits = model(rows[:, :-1]).logits
            total += torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="sum").item()
    return total / (windows * SEQ)


def own_model():
    """4,096 entries, shards, four ranks that become two, validation, export: transformers has the run's validation loss to 1e-3"""
    why = interop.missing("tokenizers", "numpy")
    if why:
        return why
    training, held_out = texts()
    (HOME / "held-out.txt").write_text(held_out)
    tokenizer = train_tokenizer(training)
    tokens, validation = build(tokenizer, "tokens", training), build(tokenizer, "validation", HOME / "held-out.txt")
    keys = {"model.hf_assets_path": tokenizer, "model.vocab_size": ENTRIES, "training.dataset_path": tokens, "training.seq_len": SEQ,
            "training.local_batch_size": 2, "training.global_batch_size": 8, "training.steps": STEPS, "training.mixed_precision_param": "float32",
            "validation.enable": "true", "validation.freq": 20, "validation.steps": -1, "validation.dataset_path": validation,
            "validation.seq_len": SEQ, "validation.local_batch_size": 2, "elastic.min_workers": 1, "elastic.max_workers": 4,
            "checkpoint.interval": STEPS, "device.threads": 1}
    with Daemon(HOME / "state", "--slots", 4, pace_ms=60) as d:
        job = d.ok("submit", SOURCE / "recipes/tiny.toml", *overrides(keys)).strip()
        until("it trains with four", lambda: (s := json.loads(d.ok("-o", "json", "status", job)))["world_size"] == 4 and s["step"] >= 5)
        d.ok("resize", job, 2, "--wait")
        done = d.ctl("wait", job, timeout=120)
        assert done.code == 0, (done.out, done.err, d.ok("status", job))
        folder = HOME / f"state/jobs/{job}"
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        steps = [m for m in lines if "world_size" in m]  # an evaluation that the resize parts from its step has a line of its own
        assert {m["world_size"] for m in steps} >= {4, 2}, "it was not resized"
        evaluated = {m["validation_step"]: m for m in lines if "validation_loss" in m}
        assert sorted(evaluated)[-3:] == [20, 40, 60], sorted(evaluated)
        ours = evaluated[STEPS]["validation_loss"]
        done = command(BIN / "titan-worker", "convert", folder / "checkpoint", HOME / "hf")
        assert done.code == 0, done.err
    ids = shard_ids(validation)
    assert evaluated[STEPS]["validation_tokens"] == (len(ids) - 1) // SEQ * SEQ, (evaluated[STEPS], len(ids))
    size = len(held_out.encode())
    bits = ours / math.log(2) * (len(ids) - 1) / size  # over all of the text; the run's leaves out the last part of a window
    assert abs(evaluated[STEPS]["validation_bits_per_byte"] - bits) < 0.02 * bits, (evaluated[STEPS], bits)
    print(f"# validation loss {ours:.6f}, {evaluated[STEPS]['validation_bits_per_byte']:.4f} bits per byte; at step 20 {evaluated[20]['validation_loss']:.4f}")
    why = interop.missing("torch", "transformers")
    if why:
        print(f"# not opened with transformers: {why}")
        return None
    theirs = loss_of_transformers(HOME / "hf", ids)
    print(f"# transformers: {theirs:.6f}, {theirs - ours:+.1e}")
    assert abs(theirs - ours) <= 1e-3, (ours, theirs)
    return None


tap(own_model)
