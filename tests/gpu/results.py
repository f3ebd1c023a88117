#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""results.py WORK OUT: what the parts left in WORK so far as three files in OUT, each replaced as a whole.

summary.json  counts, each part with its exit code and seconds or why it was skipped, training runs, figures
logs.tar.gz   the logs, the last MiB of each
bench.json    what the benchmarks measured, by the name of their file"""
import glob
import gzip
import io
import json
import os
import statistics
import sys
import tarfile

LOG_BYTES = 1 << 20


def parts(work):
    found = {}
    with open(f"{work}/parts.tsv") as f:
        for line in f:
            name, code, ok, bad, seconds, why = line.rstrip("\n").split("\t")
            found[name] = {"skipped": why} if why else {"exit": int(code), "passed": int(ok), "failed": int(bad), "seconds": int(seconds)}
    return found


def runs(work, since):
    """Training runs since the first part began: older ones are another call's."""
    found = {}
    for path in sorted(glob.glob(f"{work}/*/metrics.jsonl")):
        if os.path.getmtime(path) < since:
            continue
        with open(path) as f:
            lines = [line for line in f if line.endswith("}\n")]  # a killed run's last one may be cut
        steps = [json.loads(line) for line in lines]
        if len(steps) > 1:
            found[os.path.basename(os.path.dirname(path))] = {
                "steps": len(steps), "world_size": steps[-1]["world_size"], "loss_first": steps[0]["loss"], "loss_last": steps[-1]["loss"],
                "step_ms_median": statistics.median(s["step_ms"] for s in steps[1:]),
                "tokens_per_second_median": statistics.median(s["tokens_per_second"] for s in steps[1:])}
    return found


def documents(work):
    found = {}
    for path in sorted(glob.glob(f"{work}/*.json")):
        try:
            with open(path) as f:
                found[os.path.basename(path)[:-5]] = json.load(f)
        except ValueError:
            found[os.path.basename(path)[:-5]] = None  # its part did not finish
    return found


def cards(work):
    """Medians of what the card said while a benchmark ran."""
    names, found = ("sm_mhz", "memory_mhz", "watts", "celsius"), {}
    for path in sorted(glob.glob(f"{work}/*.csv")):
        rows = []
        with open(path) as f:
            for line in f:
                try:
                    rows.append([float(field) for field in line.split(",")])
                except ValueError:
                    pass
        rows = [row for row in rows if len(row) == len(names)]
        if rows:
            found[os.path.basename(path)[:-4]] = dict(zip(names, map(statistics.median, zip(*rows))))
    return found


def logs(work):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path in sorted(glob.glob(f"{work}/*.log") + glob.glob(f"{work}/*.csv") + glob.glob(f"{work}/*.tsv") + glob.glob(f"{work}/*/log")):
            with open(path, "rb") as f:
                f.seek(max(0, os.path.getsize(path) - LOG_BYTES))
                data = f.read(LOG_BYTES)
            entry = tarfile.TarInfo(os.path.relpath(path, work))
            entry.size, entry.mtime = len(data), int(os.path.getmtime(path))
            tar.addfile(entry, io.BytesIO(data))
    return gzip.compress(packed.getvalue(), 6)


def replace(path, data):
    with open(f"{path}.new", "wb") as f:
        f.write(data)
    os.replace(f"{path}.new", path)


def main():
    work, out = sys.argv[1:]
    found = parts(work)
    benches = documents(work)
    figures = benches.pop("figures", None)
    summary = {"passed": sum(p.get("passed", 0) for p in found.values()), "failed": sum(p.get("failed", 0) for p in found.values()),
               "skipped": sum("skipped" in p for p in found.values()), "parts": found,
               "runs": runs(work, os.path.getmtime(f"{work}/began")), "figures": figures}
    replace(f"{out}/summary.json", json.dumps(summary, indent=1).encode())
    replace(f"{out}/bench.json", json.dumps({**benches, "card": cards(work)}, indent=1).encode())
    replace(f"{out}/logs.tar.gz", logs(work))


if __name__ == "__main__":
    main()
