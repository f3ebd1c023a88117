#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make turns OLD=TREE`: this tree against another checkout of Titan by turns, so that what the machine does meanwhile meets both.

    turns.py OLD [PAIRS [PART...]]     OLD must be built: make all build/tests/bench/{submit_load,bench_ops}, make fault ONLY=1 ROUNDS=1

A pair is a run of each, first one, then the other.
"system": durable submits (10,000 a run, over the Unix socket): new / old, the median of the pairs. SIGKILL of a worker to the next
finished step (scenario 1 of `make fault`, 25 rounds a run): p99 over all rounds, new - old.
"elastic": what scenarios of `make fault` measure, the median of all rounds, new - old; the bound is the most that a run of the old one
differs from its median. Where the old tree's cluster has no TLS, the new one's goes without.
"kernels": every operation of the CPU device (bench_ops, fp32 and bf16), new / old of the fastest run of each, as what a machine does
beside only adds; the bound is the noise of the old one, its median over its fastest. What seems slower is measured alone, in twice as
many pairs, before it is called so.
Where a hypervisor takes the processors away for more than 3 % of a run that times recoveries, it counts for nothing and is made again,
whichever tree it is of, at most four times; what was taken is printed.
Prints rows like `make fault`; "system" writes build/turns/results.json for `make reliability`."""
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
KERNELS = "512 4 8 4 1536 4096 4 256".split()  # dim, layers, heads, kv_heads, ffn, vocab, batch, seq
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


def processor_ticks():
    """(taken away by the hypervisor, all), of all processors since the machine started."""
    ticks = [int(v) for v in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[7], sum(ticks)


def undisturbed(run):
    """run() again, until the hypervisor leaves the processors alone; the share taken is printed."""
    for attempt in range(5):
        taken, total = processor_ticks()
        result = run()
        after = processor_ticks()
        share = (after[0] - taken) / (after[1] - total)
        print(f"# {100 * share:.1f} % of the processors taken by the hypervisor{', again' if share > 0.03 and attempt < 4 else ''}", flush=True)
        if share <= 0.03:
            break
    return result


def ran(tree, *args, more=None):
    env = {**os.environ, "BUILD": "build", "TITAN_ALLOW_ROOT": "1", **(more or {})}
    done = subprocess.run([sys.executable, *map(str, args)], cwd=tree, env=env, capture_output=True, text=True)
    return done.stdout, done.stderr


def submits(tree):
    out, err = ran(tree, "-c", SUBMITS)
    assert out, f"{tree}: {err[-2000:]}"
    return {int(n): v for n, v in json.loads(out.splitlines()[-1]).items()}


def rounds_of(tree, scenario, rounds, seed, *names, plain=False):
    """What each round of a fault scenario measured, by name; not every round need have a figure. What `make fault` has kept stays."""
    kept = Path(tree) / "build/fault/results.json"
    before = kept.read_bytes() if kept.exists() else None
    try:
        out, err = ran(tree, "tests/fault/run_faults.py", "--only", scenario, "--rounds", rounds, "--seed", seed,
                       more={"PLAIN_TCP": str(int(plain))})
    finally:
        kept.unlink(missing_ok=True)
        if before:
            kept.write_bytes(before)
    values = {name: [float(v) for v in re.findall(rf"^#   .*\b{name} ([\d.]+)", out, re.MULTILINE)] for name in names}
    assert all(0 < len(v) <= rounds for v in values.values()), f"{tree}: {values}: {(out + err)[-2000:]}"
    return values


def resumed(tree, seed):
    values = rounds_of(tree, 1, ROUNDS, seed, "resumed_ms")["resumed_ms"]
    assert len(values) == ROUNDS, f"{tree}: {len(values)} rounds"
    return values


def bench_ops(tree, dtype, *only):
    env = {**os.environ, "LD_PRELOAD": str(BUILD / "tests/bench/operands.so")}  # old programs leave their operands unwritten
    done = subprocess.run(["build/tests/bench/bench_ops", "cpu", "2", dtype, *KERNELS, *only], cwd=tree, env=env, check=True,
                          capture_output=True, text=True)
    return json.loads(re.sub(r": -?(inf|nan)\b", ": null", done.stdout))  # the rates of an operation that no step has


def kernel_times(tree):
    """ms of each operation, and of a step's sum."""
    times = {}
    for dtype in ("fp32", "bf16"):
        found = bench_ops(tree, dtype)
        for op in found["ops"]:
            times[f"{op['op']} {dtype}"] = op["ms"]
        times[f"a step {dtype}"] = sum(op["ms"] * op["calls_per_step"] for op in found["ops"])
    return times


def compared(was, now):
    """new / old of the fastest runs, and the noise of the old one."""
    return min(now) / min(was), statistics.median(was) / min(was) - 1


def alone(old, op, pairs):
    """compared() of one operation, by itself. A tree from before bench_ops knew of that measures all of them."""
    name, dtype = op.rsplit(" ", 1)
    runs = {old: [], SOURCE: []}
    for pair in range(pairs):
        for tree in [old, SOURCE][:: 1 if pair % 2 else -1]:
            runs[tree] += [found["ms"] for found in bench_ops(tree, dtype, name)["ops"] if found["op"] == name]
    return compared(runs[old], runs[SOURCE])


def kernels(old, pairs):
    runs = {"new": [], "old": []}
    for pair in range(pairs):
        for name, tree in [("old", old), ("new", SOURCE)][:: 1 if pair % 2 else -1]:
            runs[name].append(kernel_times(tree))
        print(f"# pair {pair + 1} of {pairs}: a step's kernels, new / old: fp32 {runs['new'][-1]['a step fp32'] / runs['old'][-1]['a step fp32']:.3f}, "
              f"bf16 {runs['new'][-1]['a step bf16'] / runs['old'][-1]['a step bf16']:.3f}", flush=True)
    rows, slower, worst = [], [], (0, "")
    for op in runs["old"][0]:
        was, now = ([run[op] for run in runs[name]] for name in ("old", "new"))
        ratio, noise = compared(was, now)
        if op.startswith("a step"):
            rows.append({"what": f"{op}, sum of its kernels: new / old, fastest of {pairs}", "target": f"≤ 1 + {noise:.3f}",
                         "measured": f"{ratio:.3f}", "ok": ratio <= 1 + noise})
            continue
        if ratio > 1 + max(noise, 0.03):
            print(f"# {op} seems slower: {ratio:.2f} (noise {noise:.2f}); once more, alone", flush=True)
            ratio, noise = alone(old, op, 2 * pairs)
        worst = max(worst, (ratio, op))
        if ratio > 1 + max(noise, 0.03):
            slower.append(f"{op} {ratio:.2f} (noise {noise:.2f})")
    rows.append({"what": f"single kernels of {len(runs['old'][0]) - 2}, slower by more than their noise and 3 %", "target": "none",
                 "measured": "; ".join(slower) or f"none; the slowest is {worst[1]}, {worst[0]:.2f}", "ok": not slower})
    return rows


def system(old, pairs):
    ratios, back = {1: [], 64: []}, {"new": [], "old": []}
    for pair in range(pairs):
        order = [("old", old), ("new", SOURCE)] if pair % 2 else [("new", SOURCE), ("old", old)]
        rates = {}
        for name, tree in order:
            rates[name] = submits(tree)
            back[name] += undisturbed(lambda tree=tree: resumed(tree, pair + 1))
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
    return rows


ELASTIC = {  # scenario: rounds of a run, and what is told of which figures
    1: (20, {"detected_ms": "SIGKILL of a worker noticed", "resumed_ms": "SIGKILL of a worker to the next step"}),
    6: (6, {"adopted_ms": "SIGKILL of an agent until its workers are adopted"}),
    7: (6, {"pause_ms": "SIGKILL of the coordinator: training's pause", "api_back_ms": "SIGKILL of the coordinator until its API is back"}),
    9: (4, {"detected_ms": "a node without power noticed", "resumed_ms": "a node without power to the next step"}),
    20: (3, {"stall_steps": "a node joins: steps of stall"}),
}


def elastic(old, pairs):
    plain = "pki" not in (old / "tests/support/cluster.py").read_text()
    found = {(n, name): {"new": [], "old": []} for n, (_, names) in ELASTIC.items() for name in names}
    for pair in range(pairs):
        for n, (rounds, names) in ELASTIC.items():
            for which, tree in [("old", old), ("new", SOURCE)][:: 1 if pair % 2 else -1]:
                values_of = undisturbed(lambda: rounds_of(tree, n, rounds, pair + 1, *names, plain=plain))
                for name, values in values_of.items():
                    found[n, name][which].append(values)
        print(f"# pair {pair + 1} of {pairs}{', without TLS' * plain}", flush=True)
    rows = []
    for (n, name), runs in found.items():
        now, was = (statistics.median(sum(runs[which], [])) for which in ("new", "old"))
        noise = max(abs(statistics.median(run) - was) for run in runs["old"])
        rows.append({"what": f"{ELASTIC[n][1][name]}, median of {len(sum(runs['new'], []))}: new - old", "target": f"≤ {noise:.2f}", "ok": now - was <= noise,
                     "measured": f"{now - was:+.2f} ({now:.2f}, {was:.2f})"})
    return rows


PARTS = {"system": system, "elastic": elastic, "kernels": kernels}


def main():
    old, pairs = Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 5
    parts = sys.argv[3:] or list(PARTS)
    rows = [row for part in parts for row in PARTS[part](old, pairs)]
    commit = subprocess.run(["git", "-C", old, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    HOME.mkdir(parents=True, exist_ok=True)
    if "system" in parts:
        (HOME / "results.json").write_text(json.dumps({**stamp(), "machine": machine(), "command": "make turns OLD=PATH", "rows": rows,
                                                       "text": f"Against {commit}, by turns; the clusters of the new tree speak TLS."},
                                                      indent=1) + "\n")
    for r in rows:
        print(f"{'ok  ' if r['ok'] else 'FAIL'} {r['what']}: {r['measured']} (target {r['target']})")
    print(f"{sum(r['ok'] for r in rows)} passed, {sum(not r['ok'] for r in rows)} failed")
    return any(not r["ok"] for r in rows)


sys.exit(main())
