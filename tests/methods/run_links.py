#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make methods-link`: two hosts train one model over slow links, by each way to send less, beside the plan of each.

    run_links.py [BEGIN OF A NAME...]

The hosts are network namespaces (root alone may make them), the link between them has a rate and a delay (tests/support/links.py). A row
trains for a fixed time on each link. Told are tokens a second, the plan's beside them, bytes that left a host a step, and the loss over time:
a table on the output, a picture in build/methods-link. The plan has costs that are measured first, without a link.

SECONDS=n gives each row so many on each link.
"""
import json
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from links import Link, Unavailable  # noqa: E402
from rows import LINK_MODEL, LINK_ROWS, LINKS  # noqa: E402
from nodes import Cluster  # noqa: E402
from titan import BIN, BUILD, SOURCE, command, headers_text, overrides, until  # noqa: E402

HOME = BUILD / "methods-link"
RECIPE = SOURCE / "recipes/debug.toml"
COLOURS = ("#1b6ca8", "#d1495b", "#66a182", "#8d5a97", "#edae49", "#2e4057", "#00798c", "#b56576", "#808000")


def planned(row, link, costs):
    """(seconds, bytes) of a step by the plan."""
    gbits, delay = link
    done = command(BIN / "titanctl", "-o", "json", "plan", RECIPE, "-n", 2, "--device", "cpu", "--costs", costs, "--node", 1, "--network", gbits,
                   "--delay", delay, *overrides({**LINK_MODEL, **row.keys}))
    assert done.code == 0, done.err
    d = json.loads(done.out)
    return d["step_seconds"], sum(v for k, v in d["ranks"][0]["sent_bytes"].items() if k != "report")


def trained(cluster, link, row, seconds, text):
    """[(time, step, loss, step's ms)] of a run that is ended after so many seconds of training, and bytes of a step."""
    keys = {**LINK_MODEL, **row.keys, "training.dataset_path": text, "training.steps": 1000000}
    job = cluster.ctl("submit", RECIPE, *overrides(keys)).strip()
    folder = Path(cluster.status(job)["directory"])
    path = folder / "metrics.jsonl"

    def steps():
        return [json.loads(line) for line in path.read_text().splitlines(True) if line.endswith("\n")] if path.exists() else []
    until("the first step is made", steps, 300)
    before, first = link.sent(), steps()[-1]
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(steps()) < 2:  # timing: a run of so many seconds is what is measured
        time.sleep(0.2)  # timing: the same
    sent, last = link.sent() - before, steps()[-1]
    cluster.ctl("cancel", job)
    cluster.ended(job, "CANCELLED")
    return steps(), sent / max(1, last["step"] - first["step"])


def picture(results, names, path):
    """An SVG: a panel for each link, a line for each row, loss over seconds of training."""
    width, height, left, top, gap = 300, 240, 44, 30, 24
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {len(LINKS) * (width + gap) + left + 10} {height + top + 60 + 16 * (len(names) // 4)}" '
           'font-family="sans-serif" font-size="11">', '<rect width="100%" height="100%" fill="white"/>']
    losses = [m["loss"] for by in results.values() for steps, _ in by.values() for m in steps]
    low, high = min(losses), max(losses)
    for at, (link, by) in enumerate(results.items()):
        x0 = left + at * (width + gap)
        begin = {name: steps[0]["time_ms"] - steps[0]["step_ms"] for name, (steps, _) in by.items()}
        longest = max(steps[-1]["time_ms"] - begin[name] for name, (steps, _) in by.items())
        title = f"{link[0]:g} Gbit/s" + (f", {2 * link[1]:g} ms there and back" if link[1] else "")
        out.append(f'<text x="{x0}" y="18" font-weight="bold">{title}</text>')
        out.append(f'<rect x="{x0}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#bbb"/>')
        out.append(f'<text x="{x0 + width}" y="{top + height + 14}" text-anchor="end">{longest / 1000:.0f} s</text>')
        for name, (steps, _) in by.items():
            points = " ".join(f"{x0 + width * (m['time_ms'] - begin[name]) / longest:.1f},"
                              f"{top + height * (high - m['loss']) / (high - low or 1):.1f}" for m in steps)
            out.append(f'<polyline fill="none" stroke="{COLOURS[names.index(name) % len(COLOURS)]}" stroke-width="1.5" points="{points}"/>')
    for value, y in ((high, top + 8), (low, top + height)):
        out.append(f'<text x="{left - 4}" y="{y}" text-anchor="end">{value:.1f}</text>')
    for i, name in enumerate(names):
        x, y = left + 220 * (i % 4), top + height + 34 + 16 * (i // 4)
        out.append(f'<rect x="{x}" y="{y - 8}" width="14" height="4" fill="{COLOURS[i % len(COLOURS)]}"/><text x="{x + 20}" y="{y - 2}">{name}</text>')
    path.write_text("\n".join([*out, "</svg>"]) + "\n")


def main(asked):
    rows = [r for r in LINK_ROWS if not asked or any(r.name.startswith(a) for a in asked)]
    if not rows:
        print(f"no row of that name: {', '.join(r.name for r in LINK_ROWS)}")
        return 2
    seconds = float(os.environ.get("SECONDS") or 8)
    HOME.mkdir(parents=True, exist_ok=True)
    text, costs = headers_text(HOME / "headers"), HOME / "costs.tsv"
    costs.unlink(missing_ok=True)
    for row in rows:
        done = command(BIN / "titan-worker", "measure", RECIPE, "--device", "cpu", "-n", 2, "--seconds", 0.02, "--out", costs,
                       *overrides({**LINK_MODEL, **row.keys}), timeout=600)
        assert done.code == 0, done.err
    tokens = LINK_MODEL["training.global_batch_size"] * LINK_MODEL["training.seq_len"]
    results = {}
    for rate in LINKS:
        print(f"\n{rate[0]:g} Gbit/s, {rate[1]:g} ms\n| Way | Tokens/s | planned | to the first | MB a step | planned | Loss |\n|---|---:|---:|---:|---:|---:|---:|",
              flush=True)
        results[rate] = {}
        with Link(*rate) as link, Cluster(link.hosts, slots={"n1": 1, "n2": 1}) as cluster:
            for row in rows:
                steps, sent = trained(cluster, link, row, seconds, text)
                results[rate][row.name] = steps, sent
                took = statistics.median(m["step_ms"] for m in steps[1:]) / 1000
                plan, bytes_planned = planned(row, rate, costs)
                first = statistics.median(m["step_ms"] for m in results[rate][rows[0].name][0][1:]) / 1000
                print(f"| {row.name} | {tokens / took:.0f} | {tokens / plan:.0f} | {first / took:.2f}x | {sent / 1e6:.1f} | {bytes_planned / 1e6:.1f} "
                      f"| {steps[-1]['loss']:.3f} |", flush=True)
    (HOME / "results.json").write_text(json.dumps([[rate, {name: [[m["time_ms"], m["loss"], m["step_ms"]] for m in steps]
                                                           for name, (steps, _) in by.items()}] for rate, by in results.items()]))
    picture(results, [r.name for r in rows], HOME / "links.svg")
    print(f"\nthe loss over time: {HOME / 'links.svg'}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Unavailable as e:
        print(f"no such hosts here: {e}")
        sys.exit(2)
