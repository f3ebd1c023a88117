#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Conversations beside transformers and PyTorch: ids and masks are those of apply_chat_template(), and losses those of
cross_entropy() with -100 in the place of what is not trained on, over whole runs."""
import json
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import interop  # noqa: E402
import titan  # noqa: E402

interop.use("torch", "transformers", "tokenizers", "numpy", "safetensors.torch")
import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch_training as training  # noqa: E402
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402

folder = tempfile.TemporaryDirectory(prefix="titan-conversations-")
root = Path(folder.name)
torch.set_num_threads(1)
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# As the models' authors publish them, with {% generation %} around what the assistant writes.
TEMPLATES = {
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|im_end|>' }}"
              "{% endgeneration %}{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}",
    "llama3": "{{ '<|begin_of_text|>' }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' }}{% if m['role'] == 'assistant' %}"
              "{% generation %}{{ m['content'] | trim + '<|eot_id|>' }}{% endgeneration %}{% else %}{{ m['content'] | trim + '<|eot_id|>' }}{% endif %}{% endfor %}",
    "gemma": "{{ '<bos>' }}{% for m in messages %}{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' }}{% if m['role'] == 'assistant' %}"
             "{% generation %}{{ m['content'] | trim + '<end_of_turn>' }}{% endgeneration %}{% else %}{{ m['content'] | trim + '<end_of_turn>' }}{% endif %}{{ '\n' }}{% endfor %}",
}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<bos>",
           "<start_of_turn>", "<end_of_turn>"]


def make_tokenizer():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    lines = (titan.SOURCE / "README.md").read_text().splitlines()
    t.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=700, special_tokens=SPECIAL, show_progress=False,
                                                     initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    (root / "tokenizer").mkdir()
    t.save(str(root / "tokenizer/tokenizer.json"))
    (root / "tokenizer/tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    return PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<|endoftext|>")


def conversations(name, draw):
    """Of several turns, some with a system's message; contents of one word to several lines."""
    words = (titan.SOURCE / "README.md").read_text().split() + ["数据", "naïve", "😀", "\n", "\n\n"]

    def content():
        return " ".join(["say", *draw.choices(words, k=draw.randrange(30)), "."])

    out = []
    for _ in range(300):
        messages = [{"role": "system", "content": content()}] if name != "gemma" and draw.random() < 0.3 else []
        for _ in range(draw.randrange(1, 4)):
            messages += [{"role": "user", "content": content()}, {"role": "assistant", "content": content()}]
        out.append(messages)
    return out


def read(out):
    """Ids, masks and beginnings of documents of a folder of one shard: docs/data.md has the format."""
    path = out / "shard-00000.bin"
    version, width = (int(n) for n in np.fromfile(path, "<u4", 2, offset=8))
    tokens, documents = (int(n) for n in np.fromfile(path, "<u8", 2, offset=16))
    at = 64 + -(-tokens * width // 8) * 8
    ids = np.fromfile(path, f"<u{width}", tokens, offset=64)
    starts = np.fromfile(path, "<u8", documents + 1, offset=at)
    assert version == 2
    mask = np.unpackbits(np.fromfile(path, "u1", -(-tokens // 8), offset=at + 8 * (documents + 1)), count=tokens, bitorder="little")
    return ids.tolist(), mask.tolist(), starts.tolist()


def build(name, records, *args):
    (root / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    done = titan.command(titan.BIN / "titan-worker", "data", "build", "--format", "sft", "--strict", "--out", root / f"{name}-tokens", *args,
                         root / f"{name}.jsonl")
    assert done.code == 0, done.err
    return read(root / f"{name}-tokens")


def test_templates():
    """chatml, llama3, gemma: ids and masks of 300 conversations are apply_chat_template()'s"""
    tokenizer, draw = make_tokenizer(), random.Random(1)
    for name, template in TEMPLATES.items():
        talks = conversations(name, draw)
        ids, mask, starts = build(name, [{"messages": m} for m in talks], "--tokenizer", root / "tokenizer", "--chat-template", name)
        assert len(starts) == len(talks) + 1
        for messages, begin, end in zip(talks, starts, starts[1:]):
            want = tokenizer.apply_chat_template(messages, chat_template=template, return_dict=True, return_assistant_tokens_mask=True)
            assert ids[begin:end] == want["input_ids"] + [tokenizer.eos_token_id], (name, messages)
            assert mask[begin:end] == want["assistant_masks"] + [0], (name, messages)


def test_losses():
    """Llama on prompts and completions, 100 steps, on 1, 2 and 4 workers, in windows and packed: every loss within 1e-4 of PyTorch's"""
    draw = random.Random(2)
    records = []
    for i in range(400):
        a, b = draw.randrange(1000), draw.randrange(1000)
        records.append({"prompt": f"What is {a} and {b}{', please' * draw.randrange(8)}? ", "completion": f"It is {a + b}."})
    ids, mask, starts = build("pairs", records, "--tokenizer", "bytes")
    assert 0 < sum(mask) < len(mask) / 2 and len(training.windows_of(mask, training.KEYS)) < (len(ids) - 1) // 32
    training.write_model("llama", root / "llama", seed=1)
    windows, _ = training.train(root / "llama", ids, 100, trained=mask)
    samples = training.first_fit([(ids[a:b], mask[a:b]) for a, b in zip(starts, starts[1:])], 48)
    at_48 = {**training.KEYS, "training.seq_len": 48}
    packed, _ = training.train(root / "llama", None, 100, keys=at_48, samples=samples)
    packs = {**at_48, "training.packing": "first_fit", "training.block_causal": "true"}
    cp2 = {"parallelism.context_parallel_degree": 2}
    for workers, theirs, more in ((1, windows, {}), (2, windows, {}), (4, windows, cp2), (1, packed, packs), (2, packed, packs), (4, packed, {**packs, **cp2})):
        keys = {**training.KEYS, **training.model_keys("llama"), "training.steps": 100, "training.dataset_path": root / "pairs-tokens",
                "training.mixed_precision_param": "float32", "checkpoint.enable": "false", "checkpoint.initial_load_path": root / "llama",
                "checkpoint.initial_load_in_hf": "true", **more}
        to = root / f"run-{len(list(root.iterdir()))}"
        done = titan.command(titan.BIN / "titan-worker", "run", titan.SOURCE / "recipes/tiny.toml", "-n", workers, "--dir", to, "--device", "cpu",
                             *titan.overrides(keys))
        assert done.code == 0, done.err[-2000:]
        ours = [json.loads(line) for line in (to / "metrics.jsonl").read_text().splitlines()]
        off = max(abs(m["loss"] - loss) for m, (loss, _) in zip(ours, theirs, strict=True))
        norm = max(abs(m["grad_norm"] - n) / n for m, (_, n) in zip(ours, theirs))
        print(f"# {'packed' if 'training.packing' in more else 'windows'} on {workers}: loss {theirs[0][0]:.4f} -> {theirs[-1][0]:.4f}, off by at most "
              f"{off:.1e}, gradient norm by {norm:.1e}")
        assert off <= 1e-4


titan.tap(test_templates, test_losses)
