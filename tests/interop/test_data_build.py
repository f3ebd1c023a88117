#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`titan-worker data build` against tokenizers and numpy: the ids of documents of many pieces are those of the whole text, for
the patterns of GPT-2 and Llama 3; shards are read back by numpy."""
import gzip
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import interop  # noqa: E402
import titan  # noqa: E402

interop.use("numpy", "tokenizers")

import numpy as np  # noqa: E402
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

WORKER = titan.BIN / "titan-worker"
folder = tempfile.TemporaryDirectory(prefix="titan-data-build-")
root = Path(folder.name)
LINES = [line for name in ("README.md", "docs/plan.md", "docs/coordinator.md", "docs/data.md")
         for line in (titan.SOURCE / name).read_text().splitlines()]
PATTERNS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


def train(name):
    """A byte-level BPE of 1,000 entries with the pattern, in a folder as transformers writes one."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PATTERNS[name]), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=1000, special_tokens=["<|begin_of_text|>", "<|end_of_text|>"],
                                                     initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    (root / name).mkdir()
    t.save(str(root / name / "tokenizer.json"))
    (root / name / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}))
    return t


def text_of(draw, size):
    """Lines with blank ones, indented ones, lines that end in spaces, Windows' line ends, and scripts without ASCII."""
    out, have = [], 0
    while have < size:
        line = draw.choice(LINES)
        line = draw.choice([line, line, line, "    " + line, line + "  ", line + "\r", "", "\n", "数据 и данные", line + "\u2028", "\u3000x"])
        out.append(line)
        have += len(line.encode()) + 1
    return "\n".join(out)


def build(name, source, out, *args):
    done = subprocess.run([WORKER, "data", "build", "--tokenizer", root / name, "--out", root / out, *args, root / source],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(out):
    path = root / out / "shard-00000.bin"
    version, width = np.fromfile(path, "<u4", 2, offset=8)
    tokens, documents = (int(n) for n in np.fromfile(path, "<u8", 2, offset=16))
    ids = np.memmap(path, f"<u{width}", "r", 64, tokens)
    starts = np.memmap(path, "<u8", "r", 64 + -(-tokens * int(width) // 8) * 8, documents + 1)
    return [ids[a:b].tolist() for a, b in zip(starts[:-1], starts[1:])]


def pieces():
    """a text of two pieces, and JSON lines, have the ids that tokenizers gives for each whole document, and end of text"""
    draw = random.Random(11)
    long = text_of(draw, 1_200_000)
    short = [text_of(draw, draw.randrange(2000)) for _ in range(50)]
    (root / "long.txt").write_bytes(long.encode())
    with gzip.open(root / "short.jsonl.gz", "wt") as f:
        f.writelines(json.dumps({"text": t}, ensure_ascii=draw.random() < 0.5) + "\n" for t in [*short, long])
    for name in PATTERNS:
        tokenizer = train(name)
        bos, eos = 0, 1
        want = [[*e.ids, eos] for e in tokenizer.encode_batch([*short, long], add_special_tokens=False)]
        assert "1 documents" in build(name, "long.txt", f"{name}-long", "--threads", "3")
        assert read(f"{name}-long") == want[-1:], f"{name}: the long text"
        build(name, "short.jsonl.gz", f"{name}-short", "--threads", "2")
        assert read(f"{name}-short") == want, f"{name}: JSON lines"
        build(name, "short.jsonl.gz", f"{name}-bos", "--bos")
        assert read(f"{name}-bos") == [[bos, *ids] for ids in want], f"{name}: with begin of text"


def decoded():
    """data inspect decodes with the tokenizer that the shards name"""
    done = subprocess.run([WORKER, "data", "inspect", root / "llama3-short", "-o", "json", "--sample", "20"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    tokenizer = Tokenizer.from_file(str(root / "llama3/tokenizer.json"))
    for sample in json.loads(done.stdout)["samples"]:
        want = tokenizer.decode(sample["ids"], skip_special_tokens=False)
        assert sample["text"].strip("\ufffd") == want.strip("\ufffd"), (sample["text"], want)


def parquet():
    """a Parquet file is refused in one line; what the hint says makes JSON lines of it, which are read"""
    why = interop.missing("pyarrow")
    if why:
        return why
    import pyarrow as pa
    import pyarrow.parquet
    texts = ["a b\n", "", "Zürich \u2028 \"x\""]
    pyarrow.parquet.write_table(pa.table({"text": texts, "n": [1, 2, 3]}), root / "t.parquet")
    done = subprocess.run([titan.BIN / "titanctl", "data", "build", "--tokenizer", "bytes", "--out", root / "pq", root / "t.parquet"],
                          capture_output=True, text=True)
    assert done.returncode == 2 and "t.parquet' is Parquet, which is not read" in done.stderr, done.stderr
    line = done.stderr[done.stderr.index("python3 -c"):].strip().replace("'F'", f"'{root / 't.parquet'}'").replace("F.jsonl", f"{root / 't.jsonl'}")
    subprocess.run(line.replace("python3", sys.executable, 1), shell=True, check=True)
    assert [json.loads(row)["text"] for row in (root / "t.jsonl").read_text().splitlines()] == texts
    done = subprocess.run([WORKER, "data", "build", "--tokenizer", "bytes", "--out", root / "pq", root / "t.jsonl"], capture_output=True, text=True)
    assert done.returncode == 0 and "3 documents" in done.stdout + done.stderr, (done.stdout, done.stderr)


titan.tap(pieces, decoded, parquet)
