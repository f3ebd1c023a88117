#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""One thread of the tokenizer against one of tiktoken by turns, on the same text with the same ranks.

    tokenizer.py BENCH_TOKENIZER TEXT FOLDER

Prints JSON: how many times as fast, on a text that was not met before and on one that was. Needs the packages tokenizers
(it trains the ranks) and tiktoken."""
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interop"))
import tokenizers_made as made  # noqa: E402

TURNS, ROUNDS, RANKS = 7, 3, 32000


def main():
    program, text_path, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    text = text_path.read_text()
    table = made.ranks(text.splitlines(keepends=True), RANKS)
    made.write_ranks(table, folder / "bench.model")
    theirs, ours = [], []
    for _ in range(TURNS):
        done = subprocess.run([program, folder / "bench.model", text_path, str(ROUNDS)], capture_output=True, check=True)
        result = json.loads(done.stdout)
        ours.append(result["seconds"])
        encoding, seconds = made.tiktoken_of(table), []
        for _ in range(ROUNDS):
            begin = time.thread_time()
            ids = encoding.encode_ordinary(text)
            seconds.append(time.thread_time() - begin)
        assert len(ids) == result["tokens"], (len(ids), result["tokens"])
        theirs.append(seconds)
    first = statistics.median(t[0] for t in theirs) / statistics.median(o[0] for o in ours)
    later = statistics.median(s for t in theirs for s in t[1:]) / statistics.median(s for o in ours for s in o[1:])
    print(json.dumps({"bytes": len(text.encode()), "tokens": len(ids), "first_ratio": first, "ratio": later, "target_ratio": 3}))


main()
