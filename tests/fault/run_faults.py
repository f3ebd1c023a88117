#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the fault scenarios, prints what they measure beside the targets, writes build/fault/results.json."""
import argparse
import json
import random
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import cluster  # noqa: E402
from kit import figures, machine, missed, stamp  # noqa: E402
from scenarios import HOME, SCENARIOS, Record  # noqa: E402


def run_one(s, rounds, seed):
    """One scenario's entry of the results."""
    record, begin = Record(seed), time.monotonic()
    why = None
    try:
        s.work(rounds, random.Random(f"{seed}/{s.number}"), record)
    except Exception as e:
        why = f"{type(e).__name__}: {e}"
        print("# " + traceback.format_exc().replace("\n", "\n# "), flush=True)
    measured = {name: figures(v) for name, v in record.values.items()}
    unmeasured = [name for name in s.targets if name not in measured]
    if not why and unmeasured:
        why = f"not measured: {', '.join(unmeasured)}"
    return {"number": s.number, "title": s.title, "invariants": s.invariants, "targets": s.targets, "rounds": rounds, "seed": seed,
            "measured": measured, "notes": record.notes, "failed": why, "missed": missed(s.targets, measured), "seconds": time.monotonic() - begin}


def show(e):
    for name, f in e["measured"].items():
        target = f"  target {e['targets'][name]}" if name in e["targets"] else ""
        print(f"    {name:20} min {f['min']:8.1f}  median {f['median']:8.1f}  p99 {f['p99']:8.1f}{target}")
    for line in [e["failed"]] if e["failed"] else e["missed"]:
        print(f"    {'failed' if e['failed'] else 'target missed'}: {line}")
    verdict = "not ok" if e["failed"] or e["missed"] else "ok"
    print(f"{verdict} {e['number']} - {e['title']} ({e['rounds']} rounds, {e['seconds']:.0f} s)", flush=True)


def save(entries, seed, rounds):
    """Scenarios that were not run now keep what an earlier run measured."""
    path = HOME / "results.json"
    try:
        old = json.loads(path.read_text())["scenarios"]
    except (OSError, ValueError, KeyError):
        old = []
    fresh = {e["number"] for e in entries}
    for e in entries:
        e.update(stamp())
    whole = sorted([e for e in old if e["number"] not in fresh] + entries, key=lambda e: e["number"])
    path.write_text(json.dumps({"machine": machine(), "command": f"make fault ROUNDS={rounds} SEED={seed}",
                                "scenarios": whole}, indent=1) + "\n")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=20)
    p.add_argument("--only", default="")
    p.add_argument("--seed", default="")
    a = p.parse_args()
    numbers = [int(n) for n in a.only.replace(",", " ").split()] or sorted(SCENARIOS)
    if not set(numbers) <= set(SCENARIOS):
        print("\n".join(f"{n:3} {s.title}" for n, s in sorted(SCENARIOS.items())))
        print(f"there is no scenario {', '.join(str(n) for n in numbers if n not in SCENARIOS)}; there are those above")
        return 2
    why = cluster.missing()
    if why:
        print(f"0 passed, 0 failed: skipped, {why}")
        return 0
    HOME.mkdir(parents=True, exist_ok=True)
    seed = a.seed or str(random.SystemRandom().randrange(1 << 32))
    print(f"# seed {seed}, {a.rounds} rounds each; again: make fault ROUNDS={a.rounds} SEED={seed}", flush=True)
    entries = []
    for n in numbers:
        print(f"# {n}: {SCENARIOS[n].title}", flush=True)
        entries.append(run_one(SCENARIOS[n], a.rounds, seed))
        show(entries[-1])
        save(entries, seed, a.rounds)
    failed = sum(bool(e["failed"] or e["missed"]) for e in entries)
    print(f"{len(entries) - failed} passed, {failed} failed")
    return 1 if failed else 0


sys.exit(main())
