#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/tokenizers.json: small files of BERT's, T5's, XLNet's and GPT-NeoX's form and of ranks, trained on the README, and
the ids and texts that the Python packages tokenizers and tiktoken make of some texts; tests/ctl/test_tokenize.py compares. Needs tokenizers and tiktoken.

    python3 tests/golden/tokenizer_reference.py > tests/golden/tokenizers.json
"""
import base64
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interop"))
import tokenizers_made as made  # noqa: E402
from tokenizers import normalizers  # noqa: E402

LINES = (Path(__file__).resolve().parents[2] / "README.md").read_text().splitlines(keepends=True)
WORDS = [word for line in LINES for word in line.split()]


def short(seed, n):
    return [text for text in made.texts(seed, 4 * n, WORDS) if len(text) < 50][:n]


def main():
    forms = made.unigram_forms(0x180)
    some = {"bert": made.wordpiece("bert", LINES, 400), "bert_cased": made.wordpiece("bert_cased", LINES, 400),
            **{name: made.unigram(forms[name], LINES, 300) for name in ("t5", "xlnet", "sentencepiece")}}
    out = {}
    for name, t in some.items():
        same, texts = made.without_special(t.to_str()), made.texts(name, 60, WORDS)
        ids = [e.ids for e in same.encode_batch(texts, add_special_tokens=False)]
        out[name] = {"file": json.loads(t.to_str()), "texts": texts, "ids": ids}
        if name.startswith("bert"):
            out[name]["decoded"] = [t.decode(some, skip_special_tokens=False) for some in ids]
    t = made.byte_level("neox", LINES, 400)
    texts = [*short("neox", 30), *("a" + " " * n + "b" for n in range(1, 30))]
    out["neox"] = {"file": json.loads(t.to_str()), "texts": texts, "ids": [e.ids for e in t.encode_batch(texts, add_special_tokens=False)]}
    for i in range(3):
        rng = made.random.Random(f"added {i}")
        t, texts = made.added(rng, (None, normalizers.NFC(), normalizers.Lowercase())[i % 3])
        out[f"added{i}"] = {"file": json.loads(t.to_str()), "texts": texts,
                            "ids": [e.ids for e in t.encode_batch(texts, add_special_tokens=False)]}
    table = made.ranks(LINES, 400)
    for token in (b"\n\n", b"  ", b"\n\n  ", b"12", b"\n/", b"iP", b"'T", b" x"):  # where patterns differ
        table.setdefault(token, len(table))
    texts = [*short("ranks", 40), "\n\n  ", "a\n\n ", "\n \n", "iPhone McDonald's", "DON'T", "12345", "//\n/x", "e\u0301 \u1100\u1161"]
    out["ranks"] = {"table": [base64.b64encode(token).decode() for token in table], "texts": texts,
                    "ids": {family: made.family_ids(table, family)(texts) for family in ("gpt2", "cl100k", "o200k", "llama3", "qwen")}}
    file = made.tekken(table, 30)
    out["tekken"] = {"file": file, "texts": texts, "ids": made.tekken_ids(file)(texts)}
    print(json.dumps(out, separators=(",", ":")))


main()
