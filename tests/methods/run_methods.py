#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make methods`: one small model trained by every optimizer (rows.py), and what each costs in loss, beside AdamW.

    run_methods.py [BEGIN OF A NAME...]

Each optimizer trains 600 steps with three rates on one seed, and with the best rate on two more. What counts is its loss on text that no run
trains on, less AdamW's of the same seed, both at their best rates: the mean of the three differences. It has to be below the row's bound
or below twice the differences' spread; a row without bound is told only. Exit 1 where one is not.

Each run's result is a file of build/methods, under a hash of its keys, its text and the programs: a broken-off `make methods` goes on there.
TEXT=path takes another text, a file or a folder; SEQUENCES=n trains on so many a step; JOBS=n runs so many side by side, else as many as there
are cores.
"""
import hashlib
import json
import math
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from rows import BETTER, MODEL, ROWS, SEEDS, SEQUENCES, STEPS  # noqa: E402
from titan import BIN, BUILD, SOURCE, command, headers_text, overrides  # noqa: E402

HOME = BUILD / "methods"
RECIPE = SOURCE / "recipes/tiny.toml"
BLOCK, HELD, TEXT_BYTES = 4096, 16, 1 << 20  # every 16th block of the text is held out
TRACED, EVERY = 50, 100  # steps whose update is timed: 50 of each 100


class Refused(Exception):
    """The recipe is none, or the run failed for another reason than its losses."""


def texts(home=HOME):
    """({key: file}, hash) of the text to train on and of what is held out."""
    source = Path(os.environ.get("TEXT") or headers_text(home / "headers", TEXT_BYTES))
    data = b"".join(p.read_bytes() for p in (sorted(source.iterdir()) if source.is_dir() else [source]))
    blocks = [data[i:i + BLOCK] for i in range(0, len(data) - BLOCK + 1, BLOCK)]
    parts = {"training.dataset_path": [b for i, b in enumerate(blocks) if (i + 1) % HELD], "validation.dataset_path": blocks[HELD - 1::HELD]}
    known = hashlib.sha256(b"".join(blocks)).hexdigest()[:16]
    folder, files = home / f"text-{known}", {}
    folder.mkdir(parents=True, exist_ok=True)
    for key, part in parts.items():
        files[key] = folder / f"{key.split('.')[0]}.txt"
        files[key].write_bytes(b"".join(part))
    return files, known


def keys_of(row, rate, seed):
    return {**MODEL, **row.keys, "optimizer.lr": rate, "training.seed": seed}


def update_ms(folder):
    """Milliseconds of the actions behind a step's agreement: the mean over TRACED steps, of each the least of its like in all traces. What
    other programs take away is no part of it, what an optimizer does once in that many steps is."""
    traces = []
    for path in folder.glob("profile_traces/*/rank0_trace.json"):
        steps, behind = [], False
        for event in sorted((e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"), key=lambda e: e["ts"]):
            if event["name"] == "AGREE":
                steps.append(0)
            behind = event["cat"] != "forward" and (behind or event["name"] == "AGREE")
            steps[-1:] = [steps[-1] + event["dur"]] if behind else steps[-1:]
        assert len(steps) == TRACED, (path, len(steps))
        traces.append(steps)
    return statistics.mean(map(min, *traces)) / 1000


def trains(keys):
    """One run: its loss on the held-out text, infinite where it diverges, and the time of an update."""
    more = {"validation.enable": "true", "validation.freq": STEPS, "validation.seq_len": MODEL["training.seq_len"],
            "validation.local_batch_size": 64, "profiling.enable_profiling": "true", "profiling.profile_freq": EVERY,
            "profiling.profiler_active": TRACED}
    with tempfile.TemporaryDirectory(prefix="titan-methods-") as folder:
        begin = time.monotonic()
        done = command(BIN / "titan-worker", "run", RECIPE, "-n", keys["elastic.max_workers"], "--dir", folder, "--device", "cpu", *overrides(keys | more), timeout=3600)
        seconds = time.monotonic() - begin
        if done.code != 0 and "diverged:" in done.err:
            return {"loss": math.inf, "seconds": seconds}
        if done.code != 0:
            raise Refused((done.err or done.out).strip().splitlines()[-1])
        last = json.loads((Path(folder) / "metrics.jsonl").read_text().splitlines()[-1])
        assert last["validation_step"] == STEPS, last
        return {"loss": last["validation_loss"], "seconds": seconds, "update_ms": update_ms(Path(folder))}


def state_bytes(row):
    """Bytes of optimizer state that the plan has for a parameter, on all ranks of a replica. In fp32 the masters are the parameters, and not counted."""
    planned = []
    for keys in ({}, row.keys):
        keys = {**MODEL, **keys, "device.name": "cpu"}
        done = command(BIN / "titanctl", "-o", "json", "plan", RECIPE, "-n", keys["elastic.max_workers"], *overrides(keys))
        if done.code != 0:
            raise Refused(done.err.strip())
        ranks = keys["elastic.max_workers"] // keys.get("parallelism.data_parallel_replicate_degree", 1)
        planned.append(ranks * json.loads(done.out)["ranks"][0]["memory"]["optimizer"])
    return 8 * planned[1] / planned[0]  # AdamW's are 8


class Runs:
    """Results by keys, each kept in a file as soon as it is there."""

    def __init__(self, home, train, known):
        self.home, self.train, self.known, self.total, self.done = home, train, known, 0, 0

    def path(self, keys):
        return self.home / f"{hashlib.sha256(json.dumps([self.known, sorted((k, str(v)) for k, v in keys.items())]).encode()).hexdigest()[:16]}.json"

    def one(self, row, rate, seed):
        keys = keys_of(row, rate, seed)
        path, kept = self.path(keys), "kept"
        if not path.exists():
            result, kept = self.train(keys), ""
            new = path.with_suffix(f".{os.getpid()}")
            new.write_text(json.dumps({"row": row.name, "rate": rate, "seed": seed, **result, "keys": keys}, indent=1) + "\n")
            new.rename(path)
        result = json.loads(path.read_text())
        self.done += 1
        took = kept or f"{result['seconds']:.0f} s"
        sys.stdout.write(f"[{self.done}/{self.total}] {row.name}, rate {rate:g}, seed {seed}: {result['loss']:.4f}, {took}\n")
        sys.stdout.flush()
        return result

    def all(self, pool, asked):
        """Results of (row, rate, seed) in their order; a row that is refused has the reason."""
        def one(what):
            try:
                return self.one(*what)
            except Refused as e:
                return e
        return list(pool.map(one, asked))


def judge(row, losses, adamw):
    """(mean, spread) of the differences to AdamW's losses of the same seeds, and whether they are in bounds; None: no bound."""
    apart = [a - b for a, b in zip(losses, adamw)]
    mean, spread = statistics.mean(apart), statistics.stdev(apart) if math.isfinite(sum(apart)) else math.inf
    if row.bound is None:
        return mean, spread, None
    if row.bound == BETTER or not math.isfinite(mean):
        return mean, spread, mean < 0
    return mean, spread, mean <= max(row.bound, 2 * spread)


def line(cells):
    print("| " + " | ".join(cells) + " |", flush=True)


def main():
    begin = time.monotonic()
    rows = [r for r in ROWS if r is ROWS[0] or len(sys.argv) < 2 or r.name.lower().startswith(tuple(w.lower() for w in sys.argv[1:]))]
    HOME.mkdir(parents=True, exist_ok=True)
    files, known = texts()
    programs = [(BIN / "titan-worker").read_bytes(), (BUILD / "lib/titan/libtitan-cpu.so").read_bytes()]
    runs = Runs(HOME, lambda keys: trains(keys | files), [known, *(hashlib.sha256(p).hexdigest() for p in programs)])
    runs.total = sum(len(r.rates) + len(SEEDS) - 1 for r in rows)
    jobs = int(os.environ.get("JOBS") or len(os.sched_getaffinity(0)))
    bad, results, best = {}, {}, {}
    with ThreadPoolExecutor(jobs) as pool:
        for seeds in SEEDS[:1], SEEDS[1:]:
            asked = [(r, rate, s) for r in rows if r.name not in bad for rate in (best.get(r.name, r.rates)) for s in seeds]
            for (row, rate, seed), result in zip(asked, runs.all(pool, asked)):
                if isinstance(result, Refused):
                    bad[row.name] = str(result)
                results[row.name, rate, seed] = result
            best = {r.name: (min(r.rates, key=lambda rate, r=r: results[r.name, rate, SEEDS[0]]["loss"]),) for r in rows if r.name not in bad}

    size = sum(f.stat().st_size for f in files.values())
    print(f"\n{len(rows)} optimizers, {STEPS} steps of {SEQUENCES} sequences, {size >> 10} KiB of text ({known}), {(time.monotonic() - begin) / 60:.0f} min\n")
    line(["Optimizer", "Rate", "Held-out loss, seeds " + ", ".join(map(str, SEEDS)), "To AdamW, spread", "Bound", "", "State of a parameter", "Update"])
    line(["---"] * 2 + ["---:"] * 2 + ["---"] * 2 + ["---:"] * 2)
    for row in rows:
        if row.name in bad or ROWS[0].name in bad:
            line([row.name, "", "", "", "", "**refused**", "", ""])
            continue
        rate, = best[row.name]
        mine, base = [[results[name, r, s] for s in SEEDS] for name, (r,) in ((row.name, (rate,)), (ROWS[0].name, best[ROWS[0].name]))]
        losses, adamw = [r["loss"] for r in mine], [r["loss"] for r in base]
        mean, spread, good = judge(row, losses, adamw)
        if good is False:
            bad[row.name] = f"{mean:+.4f}, spread {spread:.4f}; bound {row.bound}"
        told = f"seeds: {statistics.stdev(losses):.4f}" if row is ROWS[0] else f"{mean:+.4f}, {spread:.4f}"
        update = statistics.median(r.get("update_ms", math.nan) for r in mine) / statistics.median(r["update_ms"] for r in base)
        line([row.name, f"{rate:g}", ", ".join(f"{x:.4f}" for x in losses), told, "" if row.bound is None else str(row.bound),
              "" if good is None else "ok" if good else "**missed**", f"{state_bytes(row):.2f} bytes", f"{update:.2f}x"])
    print()
    for row in rows:
        if row.name not in bad:
            tried = [f"{rate:g}: {results[row.name, rate, SEEDS[0]]['loss']:.4f}" for rate in row.rates]
            edge = best[row.name][0] in (row.rates[0], row.rates[-1])
            print(f"{row.name}: {', '.join(tried)}{'; the best rate is at the edge' if edge else ''}")
    for name, why in bad.items():
        print(f"FAILED: {name}: {why}")
    return bool(bad)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("broken off: the next `make methods` goes on here")
