#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""compare_losses.py [--rtol R] REFERENCE OTHER: the losses of two runs, step by step; exit code 0 when they agree.

A run is its metrics.jsonl, or a JSON file with the list of them as "losses"."""
import argparse
import json
import math
import sys


def losses(path):
    with open(path) as f:
        text = f.read()
    if path.endswith(".jsonl"):
        return [json.loads(line)["loss"] for line in text.splitlines() if line]
    return json.loads(text)["losses"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rtol", type=float, default=1e-5)
    parser.add_argument("reference")
    parser.add_argument("other")
    args = parser.parse_args()
    want, got = losses(args.reference), losses(args.other)
    if not want or len(want) != len(got):
        print(f"# {len(got)} steps, expected {len(want)}")
        return 1
    off = [abs(g - w) / abs(w) if math.isfinite(g) else math.inf for g, w in zip(got, want)]
    worst = max(range(len(off)), key=lambda i: off[i])
    print(f"# {len(want)} steps, loss {got[0]:.6f} to {got[-1]:.6f}, off by at most {off[worst]:.2e}"
          f" (step {worst + 1}: {got[worst]:.9f}, reference {want[worst]:.9f})")
    return 0 if off[worst] <= args.rtol else 1


if __name__ == "__main__":
    sys.exit(main())
