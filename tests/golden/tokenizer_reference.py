#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/tokenizers.json: small files of BERT's, T5's and XLNet's form, trained on the README, and the ids and
texts that the Python package tokenizers makes of some texts; tests/ctl/test_tokenize.py compares. Needs tokenizers and tiktoken.

    python3 tests/golden/tokenizer_reference.py > tests/golden/tokenizers.json
"""
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interop"))
import tokenizers_made as made  # noqa: E402

LINES = (Path(__file__).resolve().parents[2] / "README.md").read_text().splitlines(keepends=True)
WORDS = [word for line in LINES for word in line.split()]


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
    print(json.dumps(out, separators=(",", ":")))


main()
