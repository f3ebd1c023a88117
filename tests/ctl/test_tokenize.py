#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""titan-worker tokenize, and generate with a tokenizer that is not bytes. What ids are: tests/interop/test_tokenizer.py."""
import base64
import json
import struct
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import titan  # noqa: E402

WORKER = titan.BIN / "titan-worker"
GOLDEN = json.loads((titan.SOURCE / "tests/golden/tokenizers.json").read_text())
folder = tempfile.TemporaryDirectory(prefix="titan-tokenize-")
root = Path(folder.name)
PIECES = ["in", "st", "at", "ic", "int", "stat", "static", "\u2581static", "\u2581int"]


def tokenizer():
    """Llama 2's form: characters behind a mark in place of each space, 256 bytes to fall back to, few merges."""
    path = root / "small/tokenizer.json"
    if not path.exists():
        vocab = {text: i for i, text in enumerate(["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "\u2581",
                                                   *"abcdefghijklmnopqrstuvwxyz", *PIECES])}
        merges = [("i", "n"), ("s", "t"), ("a", "t"), ("i", "c"), ("in", "t"), ("st", "at"), ("stat", "ic"),
                  ("\u2581", "static"), ("\u2581", "int")]
        path.parent.mkdir()
        path.write_text(json.dumps({
            "added_tokens": [{"id": vocab[t], "content": t, "special": True} for t in ("<unk>", "<s>", "</s>")],
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
                {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": True, "vocab": vocab,
                      "merges": [" ".join(m) for m in merges]}}))
    return path


def run(*args, stdin=""):
    return titan.command(WORKER, *args, stdin=stdin)


def there_and_back():
    """a folder's tokenizer: ids of texts, how many, and the texts again"""
    done = run("tokenize", "-t", tokenizer().parent, stdin="static int x = 7;\n")
    ids = [int(i) for i in done.out.split()]
    assert done.code == 0 and len(ids) == 10 and max(ids) < 295, (done.code, done.out, done.err)  # static, int, then 8 single ones
    back = run("tokenize", "-t", tokenizer(), "--decode", stdin=done.out)
    assert (back.code, back.out) == (0, "static int x = 7;\n"), (back.code, back.out, back.err)
    file = root / "text"
    file.write_text("static int")
    assert run("tokenize", "-t", tokenizer(), "--count", file).out == "10 bytes, 2 tokens, 5.000 bytes a token\n"
    assert run("tokenize", "-0", stdin="a\0\0bc\0").out == "97\n\n98 99\n"
    assert run("tokenize", "-0", "-d", stdin="97\n\n98 99\n").out == "a\0\0bc\0"


def golden():
    """the forms of BERT, T5, XLNet, GPT-NeoX and Mistral's tekken: ids and texts are those of the Python packages tokenizers and tiktoken"""
    for name, made in GOLDEN.items():
        if name == "ranks":
            continue
        path = root / f"golden/{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(made["file"]))
        done = run("tokenize", "-t", path, "-0", stdin="\0".join(made["texts"]) + "\0")
        assert done.code == 0, (name, done.err)
        for text, line, ids in zip(made["texts"], done.out.split("\n"), made["ids"], strict=False):
            assert [int(i) for i in line.split()] == ids, (name, text)
        if "decoded" in made:
            back = run("tokenize", "-t", path, "-d", "-0", stdin="".join(" ".join(map(str, ids)) + "\n" for ids in made["ids"]))
            assert back.out.split("\0")[:-1] == made["decoded"], name


def ranks():
    path = root / "made.tiktoken"
    path.write_text("".join(f"{token} {rank}\n" for rank, token in enumerate(GOLDEN["ranks"]["table"])))
    return path


def families():
    """a file of ranks is cut as its family's name or an expression says, to tiktoken's ids; each family has its special tokens"""
    texts, n = GOLDEN["ranks"]["texts"], len(GOLDEN["ranks"]["table"])
    for family, ids in GOLDEN["ranks"]["ids"].items():
        done = run("tokenize", "-t", ranks(), "--pattern", family, "-0", stdin="\0".join(texts) + "\0")
        assert done.code == 0, (family, done.err)
        for text, line, want in zip(texts, done.out.split("\n"), ids, strict=False):
            assert [int(i) for i in line.split()] == want, (family, text)
    words = run("tokenize", "-t", ranks(), "--pattern", r"\S+|\s+", stdin="the ranks")
    assert words.code == 0 and run("tokenize", "-t", ranks(), "--pattern", r"\S+|\s+", "-d", stdin=words.out).out == "the ranks"
    for family, behind, name in (("gpt2", 0, "<|endoftext|>"), ("cl100k", 20, "<|endofprompt|>"), ("o200k", 1, "<|endoftext|>"),
                                 ("llama3", 9, "<|eot_id|>"), ("llama3", 255, "<|reserved_special_token_246|>"),
                                 ("llama4", 1143, "<|reasoning_thinking_end|>"), ("llama4", 2047, "<|reserved_special_token_903|>"),
                                 ("qwen", 0, "<|endoftext|>"), ("qwen", 207, "<|extra_204|>")):
        assert run("tokenize", "-t", ranks(), "--pattern", family, "-d", stdin=f"{n + behind}\n").out == name, (family, behind)


def gap():
    """a file that leaves the id of its family's end of text free, as p50k does, has it there"""
    tokens = [bytes([b]) for b in range(256)] + [bytes([a, b]) for a in range(200) for b in range(256)]
    path = root / "gap.tiktoken"
    path.write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens[:50300]) if rank != 50256))
    assert run("tokenize", "-t", path, "--pattern", "gpt2", "-d", stdin="50256\n").out == "<|endoftext|>"
    assert "no token has the rank 50256" in run("tokenize", "-t", path, "--pattern", "llama3").err


def cut_another_way():
    """shards keep how text was cut: inspect decodes by it, and a run that cuts another way is refused with both named"""
    text, shards = root / "text", root / "shards"
    text.write_text("".join(GOLDEN["ranks"]["texts"]).replace("\0", "") * 10)
    assert run("data", "build", "--tokenizer", ranks(), "--out", shards, text).err.count("gpt2, cl100k, o200k, llama3, llama4, qwen") == 1
    done = run("data", "build", "--tokenizer", ranks(), "--pattern", "cl100k", "--out", shards, text)
    assert done.code == 0, done.err
    about = json.loads((shards / "titan-data.json").read_text())
    assert (about["tokenizer_pattern"], about["eos"]) == ("cl100k", len(GOLDEN["ranks"]["table"]) + 1), about
    shown = run("data", "inspect", shards)
    assert "pattern     cl100k" in shown.out and "name one with" not in shown.out and "|" in shown.out, shown.out
    keys = {"training.dataset_path": shards, "training.steps": 2, "model.vocab_size": 800, "model.hf_assets_path": ranks()}

    def train(pattern):
        return run("run", titan.SOURCE / "recipes/tiny.toml", "--dir", root / f"run-{pattern}", "--device", "cpu",
                   *(w for k, v in {**keys, "model.tokenizer_pattern": pattern}.items() for w in ("--set", f"{k}={v}")))
    done = train("llama3")
    assert done.code == 2 and "model.tokenizer_pattern to 'cl100k'" in done.err, (done.code, done.err)
    assert "does not hold how text is cut" in train("").err
    done = train("cl100k")
    assert done.code == 0, done.err
    ask = ("generate", root / "run-cl100k/checkpoint", "--prompt", "the", "--max-tokens", "2", "--device", "cpu")
    assert run(*ask).code == 0
    assert "there is no pattern 'cl100'" in run(*ask, "--pattern", "cl100").err
    assert run("eval", root / "run-cl100k/checkpoint", "--data", text, "--steps", "1", "--device", "cpu").code == 0


def refused():
    """what is no tokenizer, no text or no id: exit 2 and one line"""
    for args, stdin, why in ((("-t", "/nowhere"), "", "'/nowhere': No such file"), (("/nowhere",), "", "'/nowhere': No such file"),
                             (("-t", root), "", "has neither tokenizer.json nor a tokenizer.model or tekken.json"),
                             (("-t", ranks()), "", "a file of ranks does not hold how text is cut; --pattern, model.tokenizer_pattern"),
                             (("-t", ranks(), "--pattern", "o200k_base"), "", "there is no pattern 'o200k_base'"),
                             (("-t", ranks(), "--pattern", r"\w+"), "", "byte 1: this escape is not known"),
                             (("--pattern", "gpt2"), "", 'the tokenizer "bytes" takes no pattern'),
                             (("-t", tokenizer(), "--pattern", "gpt2"), "", "has its own pattern"),
                             (("-d",), "12 x\n", "line 1: ids should stand here"), (("-d",), "256\n", "256 is not a token"),
                             (("-d",), "99999999999\n", "line 1: ids should stand here")):
        done = run("tokenize", *args, stdin=stdin)
        assert done.code == 2 and why in done.err and done.err.count("\n") == 1, (args, done.code, done.err)


def header(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8:8 + length]), data[8 + length:]


def generated():
    """generate gives the model the tokens of the prompt, ends words as they are spelled, and refuses too large a vocabulary"""
    text = titan.headers_text(root / "text-of-headers")
    for size in (320, 256):
        done = run("run", titan.SOURCE / "recipes/tiny.toml", "--dir", root / str(size), "--device", "cpu",
                   "--set", f"training.dataset_path={text}", "--set", "training.steps=2", "--set", f"model.vocab_size={size}")
        assert done.code == 0, done.err
    ask = ("--prompt", "static int", "--tokenizer", tokenizer().parent, "--device", "cpu", "--dtype", "f32")
    done = run("generate", root / "320/checkpoint", *ask, "--max-tokens", "8", "--logits", root / "logits")
    assert done.code == 0 and done.out.startswith("static int") and len(done.out) > 12, (done.code, done.out, done.err)
    entries, data = header(root / "logits")
    begin, end = entries["tokens"]["data_offsets"]
    tokens = struct.unpack(f"<{(end - begin) // 4}i", data[begin:end])
    assert " ".join(map(str, tokens)) == run("tokenize", "-t", tokenizer(), stdin="static int").out.strip()
    assert entries["logits"]["shape"] == [2, 320]
    assert run("generate", root / "320/checkpoint", *ask[2:], "--max-tokens", "3").code == 0  # begins with </s>
    done = run("generate", root / "256/checkpoint", *ask)
    assert done.code == 2 and "has 295 tokens, the model 256" in done.err, (done.code, done.err)


titan.tap(there_and_back, golden, families, gap, cut_another_way, refused, generated)
