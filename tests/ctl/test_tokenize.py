#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""titan-worker tokenize, and generate with a tokenizer that is not bytes. What ids are: tests/interop/test_tokenizer.py."""
import json
import struct
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import titan  # noqa: E402

WORKER = titan.BIN / "titan-worker"
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
    """WordPiece and Unigram in the forms of BERT, T5 and XLNet: ids and texts are those of the Python package tokenizers"""
    for name, made in json.loads((titan.SOURCE / "tests/golden/tokenizers.json").read_text()).items():
        path = root / f"{name}.json"
        path.write_text(json.dumps(made["file"]))
        done = run("tokenize", "-t", path, "-0", stdin="\0".join(made["texts"]) + "\0")
        assert done.code == 0, (name, done.err)
        for text, line, ids in zip(made["texts"], done.out.split("\n"), made["ids"], strict=False):
            assert [int(i) for i in line.split()] == ids, (name, text)
        if "decoded" in made:
            back = run("tokenize", "-t", path, "-d", "-0", stdin="".join(" ".join(map(str, ids)) + "\n" for ids in made["ids"]))
            assert back.out.split("\0")[:-1] == made["decoded"], name


def refused():
    """what is no tokenizer, no text or no id: exit 2 and one line"""
    for args, stdin, why in ((("-t", "/nowhere"), "", "'/nowhere': No such file"), (("/nowhere",), "", "'/nowhere': No such file"),
                             (("-t", root), "", "has neither tokenizer.json nor a tokenizer.model"),
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


titan.tap(there_and_back, golden, refused, generated)
