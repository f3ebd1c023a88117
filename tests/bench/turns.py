#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make turns OLD=TREE`: this tree against another checkout of Titan by turns, so that what the machine does meanwhile meets both.

    turns.py OLD [PAIRS]     OLD must be built: make all build/tests/bench/submit_load, make fault ONLY=1 ROUNDS=1

A pair is a run of each, first one, then the other. Durable submits (10,000 a run, over the Unix socket): new / old, the median of the
pairs. SIGKILL of a worker to the next finished step (scenario 1 of `make fault`, 25 rounds a run): p99 over all rounds, new minus old.
Prints rows like `make fault`, writes build/turns/results.json for `make reliability`."""
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / d) for d in ("support", "fault")]
from kit import figures, machine, stamp  # noqa: E402
from titan import BUILD, SOURCE  # noqa: E402

HOME = BUILD / "turns"
ROUNDS = 25
SUBMITS = '''
import json, shutil, sys
sys.path[:0] = ["tests/support", "tests/bench"]
import bench
bench.HOME.mkdir(parents=True, exist_ok=True)
recipe = bench.HOME / "load.toml"
recipe.write_text(bench.recipe_with_data(bench.SOURCE / "recipes/tiny.toml"))
out = {}
for connections, in_flight in ((1, 64), (64, 256)):
    with bench.Daemon(bench.HOME / "turns", "--slots", "1", "--node", "here") as d:
        d.ok("drain", "here")
        out[connections] = json.loads(bench.run(bench.BUILD / "tests/bench/submit_load", d.server, recipe, connections, in_flight, 10000, 0))
    shutil.rmtree(bench.HOME / "turns")
print(json.dumps({n: o["submits_per_second"] for n, o in out.items()}))
'''


def ran(tree, *args):
    env = {**os.environ, "BUILD": "build", "TITAN_ALLOW_ROOT": "1"}
    done = subprocess.run([sys.executable, *map(str, args)], cwd=tree, env=env, capture_output=True, text=True)
    return done.stdout, done.stderr


def submits(tree):
    out, err = ran(tree, "-c", SUBMITS)
    assert out, f"{tree}: {err[-2000:]}"
    return {int(n): v for n, v in json.loads(out.splitlines()[-1]).items()}


def resumed(tree, seed):
    """ms of each round."""
    out, err = ran(tree, "tests/fault/run_faults.py", "--only", 1, "--rounds", ROUNDS, "--seed", seed)
    values = [float(v) for v in re.findall(r"^#   .*resumed_ms ([\d.]+)", out, re.MULTILINE)]
    assert len(values) == ROUNDS, f"{tree}: {len(values)} rounds: {(out + err)[-2000:]}"
    return values


def main():
    old, pairs = Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 5
    ratios, back = {1: [], 64: []}, {"new": [], "old": []}
    for pair in range(pairs):
        order = [("old", old), ("new", SOURCE)] if pair % 2 else [("new", SOURCE), ("old", old)]
        rates = {}
        for name, tree in order:
            rates[name] = submits(tree)
            back[name] += resumed(tree, pair + 1)
        for n in ratios:
            ratios[n].append(rates["new"][n] / rates["old"][n])
        print(f"# pair {pair + 1} of {pairs}: submits {', '.join(f'{ratios[n][-1]:.2f}' for n in ratios)}; to the next step, last "
              f"{ROUNDS}: {statistics.median(back['new'][-ROUNDS:]):.0f} ms, {statistics.median(back['old'][-ROUNDS:]):.0f} ms", flush=True)
    new, was = figures(back["new"]), figures(back["old"])
    more = new["p99"] - was["p99"]
    rows = [{"what": f"durable submits, {n} connection{'s' * (n > 1)}: new / old, median of {pairs} pairs ({', '.join(f'{r:.2f}' for r in v)})",
             "target": "≥ 0.8", "measured": f"{statistics.median(v):.2f}", "ok": statistics.median(v) >= 0.8} for n, v in ratios.items()]
    rows.append({"what": f"SIGKILL of a worker to the next step, p99 of {len(back['new'])}: new - old", "target": "≤ 10 ms",
                 "measured": f"{more:.1f} ms ({new['p99']:.1f}, {was['p99']:.1f}; medians {new['median']:.1f}, {was['median']:.1f})",
                 "ok": more <= 10})
    commit = subprocess.run(["git", "-C", old, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    HOME.mkdir(parents=True, exist_ok=True)
    (HOME / "results.json").write_text(json.dumps({**stamp(), "machine": machine(), "command": "make turns OLD=PATH",
                                                   "rows": rows, "text": f"Against {commit}, by turns; the clusters of the new tree speak TLS."},
                                                  indent=1) + "\n")
    for r in rows:
        print(f"{'ok  ' if r['ok'] else 'FAIL'} {r['what']}: {r['measured']} (target {r['target']})")
    print(f"{sum(r['ok'] for r in rows)} passed, {sum(not r['ok'] for r in rows)} failed")
    return any(not r["ok"] for r in rows)


sys.exit(main())
