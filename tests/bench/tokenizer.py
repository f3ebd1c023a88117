#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""One thread of the tokenizer against one of tiktoken and one of tokenizers by turns, on the same text with the same ranks.

    tokenizer.py BENCH_TOKENIZER TEXT FOLDER

Prints JSON: how many times as fast, on a text that was not met before and on one that was, and at opening the file of ranks."""
import base64
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interop"))
os.environ["RAYON_NUM_THREADS"] = "1"  # of tokenizers
import tokenizers_made as made  # noqa: E402

TURNS, ROUNDS, RANKS = 7, 3, 32000


def seconds(what):
    begin = time.thread_time()
    result = what()
    return time.thread_time() - begin, result


def read_ranks(path):
    return {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, path.read_bytes().splitlines())}


def main():
    program, text_path, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    text = text_path.read_text()
    lines = text.splitlines(keepends=True)
    ranks, file = folder / "bench.model", folder / "bench.json"
    made.write_ranks(made.ranks(lines, RANKS), ranks)
    made.byte_level("llama3", lines, RANKS).save(str(file))
    ours, theirs, opens = [], [], ([], [])
    ours_json, theirs_json = [], []

    def run(tokenizer, pattern, rounds):
        return json.loads(subprocess.run([program, tokenizer, pattern, text_path, str(rounds)], capture_output=True, check=True).stdout)
    for _ in range(TURNS):
        result = run(ranks, "llama3", ROUNDS)
        ours.append(result["seconds"])
        opens[0].append(result["open"])
        took, encoding = seconds(lambda: made.tiktoken_of(read_ranks(ranks)))
        opens[1].append(took)
        rounds = [seconds(lambda: encoding.encode_ordinary(text)) for _ in range(ROUNDS)]
        assert len(rounds[0][1]) == result["tokens"], (len(rounds[0][1]), result["tokens"])
        theirs.append([took for took, _ in rounds])
        result = run(file, "", 1)
        ours_json.append(result["seconds"][0])
        whole = made.tokenizers.Tokenizer.from_file(str(file))
        took, encoded = seconds(lambda: whole.encode(text, add_special_tokens=False))
        assert len(encoded.ids) == result["tokens"], (len(encoded.ids), result["tokens"])
        theirs_json.append(took)
    first = statistics.median(t[0] for t in theirs) / statistics.median(o[0] for o in ours)
    later = statistics.median(s for t in theirs for s in t[1:]) / statistics.median(s for o in ours for s in o[1:])
    print(json.dumps({
        "bytes": len(text.encode()), "tokens": result["tokens"], "first_ratio": first, "ratio": later, "target_ratio": 3,
        "open_ratio": statistics.median(opens[1]) / statistics.median(opens[0]), "target_open_ratio": 1,
        "tokenizers_ratio": statistics.median(theirs_json) / statistics.median(ours_json), "target_tokenizers_ratio": 10}))


main()
