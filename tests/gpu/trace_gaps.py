#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""trace_gaps.py TRACE [METRICS]: what a rank's trace (profiling.enable_profiling) says of its compute stream: how long it was between
two actions without a wait, and what each operation took. METRICS: the run's metrics.jsonl; its median step beside the traced one.
Fails where actions of a stream overlap within a step; each step has a clock of its own, which is off by what the host waited. 'figure NAME VALUE' and a table, of all steps of the trace."""
import collections
import json
import statistics
import sys


def lanes(trace):
    """{name of the stream: its actions in order}"""
    names, found = {}, collections.defaultdict(list)
    for event in trace["traceEvents"] if isinstance(trace, dict) else trace:
        if event["ph"] == "M" and event["name"] == "thread_name":
            names[event["pid"], event["tid"]] = event["args"]["name"]
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    return {names.get(lane, str(lane)): sorted(events, key=lambda e: e["ts"]) for lane, events in found.items()}


def main(path, metrics=None):
    found = lanes(json.load(open(path)))
    compute = next(events for name, events in found.items() if "compute" in name)
    overlaps = [(name, a["name"], b["name"]) for name, events in found.items() for a, b in zip(events, events[1:])
                if a["args"]["action"] < b["args"]["action"] and b["ts"] < a["ts"] + a["dur"] - 1]  # 1 us: what a clock's tick is
    took = collections.Counter()
    for event in compute:
        took[event["name"].split(" ")[0]] += event["dur"]
    span = compute[-1]["ts"] + compute[-1]["dur"] - compute[0]["ts"]
    gaps = [b["ts"] - a["ts"] - a["dur"] for a, b in zip(compute, compute[1:])]
    print(f"figure traced_ms {span / 1e3:.2f}\nfigure actions {len(compute)}\nfigure gaps_ms {sum(gaps) / 1e3:.3f}\n"
          f"figure gaps_percent {100 * sum(gaps) / span:.2f}\nfigure gap_median_us {statistics.median(gaps):.2f}")
    if metrics:
        steps = [json.loads(line)["step_ms"] for line in open(metrics)]
        print(f"figure step_ms {statistics.median(steps[2:-1]):.2f}\nfigure traced_step_ms {steps[-1]:.2f}")
    for name, us in took.most_common():
        calls = sum(event["name"].split(" ")[0] == name for event in compute)
        print(f"# {name:22} {calls:5} {us / 1e3:10.3f} ms {100 * us / span:6.2f} %")
    for name, a, b in overlaps[:5]:
        print(f"# {name}: {b} begins before {a} has ended")
    return bool(overlaps) or not all(event["dur"] >= 0 for event in compute)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
