#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/reliability.md from what was measured: build/{fault,soak,soak-tls,alarms,attack,fuzz,sim,sim-mutants,sim-scale,model,scale,system,
system-containers,bench,turns}/results.json, as far as they are there.
A part that has not run keeps its block of the page as it is.

results.json of a part: {"at", "commit", "machine", "command", ...}; that of `make fault` has "scenarios", every other one "rows": a list
of {"what", "target", "measured", "ok"} and may have "text", a paragraph in front of the table."""
import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BUILD, SOURCE  # noqa: E402

PAGE = SOURCE / "docs/reliability.md"
HEAD = """# Reliability: what was done to it, and what it did

Written by `make reliability` from the results of the commands named in each part, `build/PART/results.json`; what was written by hand says so. What happens in
each case, what an operator sees and does: [operations.md](operations.md#the-faults). The protocol: [membership.md](membership.md).
"""
PARTS = {"fault": ("Faults for real", "make fault"), "soak": ("Soak", "make soak MINUTES=60"),
         "soak-tls": ("Soak of certificates", "make record-soak-tls MINUTES=10"),
         "alarms": ("False alarms", "make alarms"),
         "attack": ("Attacks", "make record-attack ROUNDS=100000"), "fuzz": ("Fuzzing", "make record-fuzz MINUTES=30"),
         "sim": ("Simulation", "make record-sim ROUNDS=1000000"),
         "sim-mutants": ("Deliberate bugs", "make record-sim-mutants"), "model": ("Model", "make record-model"),
         "scale": ("Scale", "make scale AGENTS=1000"), "sim-scale": ("Scale, simulated", "make record-sim-scale AGENTS=10000"),
         "system": ("Installed system", "make system"),
         "system-containers": ("Installed system, in containers", "make system KIND=containers"), "bench": ("Numbers", "make bench PART=elastic"),
         "turns": ("Speed, by turns with an older tree", "make turns OLD=PATH")}
UNITS = {"_ms": "ms", "_s": "s", "_percent": "%", "_mib": "MiB"}


def number(v):
    return f"{v:,.0f}" if abs(v) >= 100 or float(v).is_integer() else f"{v:,.1f}" if abs(v) >= 1 else f"{v:.3g}"


def words(name, value=None):
    """"resumed_ms", 31 -> "resumed 31 ms"."""
    unit = next((u for end, u in UNITS.items() if name.endswith(end)), "")
    name = name[:-len(next(end for end in UNITS if name.endswith(end)))] if unit else name
    name = name.replace("_", " ")
    return name if value is None else f"{name} {number(value)}{' ' + unit if unit else ''}"


def where(results):
    m = results.get("machine") or {}
    first = results.get("at") or max((s["at"] for s in results.get("scenarios", [])), default="")
    commit = results.get("commit") or ", ".join(sorted({s["commit"] for s in results.get("scenarios", [])}))
    return (f"{first[:10]}, commit {commit}; {m.get('cpu', '?')}, {m.get('cores', '?')} cores, {m.get('memory_gib', '?')} GiB, "
            f"Linux {m.get('kernel', '?')}, load {m.get('load', '?')}. Again: `{results.get('command', '?')}`.")


def fault(results):
    out = ["Each scenario is done to real daemons and workers on hosts of their own: network namespaces and a switch between them that cuts,",
           "loses, delays. Checked in every run: one membership per epoch; no epoch trains after a later one; losses equal to the",
           "undisturbed run's, bit for bit (`numerics.canonical`), which holds sample order and batch as well; restarts counted exactly; no process,",
           "memfd, page or port left. Times are from the fault's own moment; a verdict is over *all* rounds: the slowest counts.", "",
           "| # | Fault | Target | Median | p99 | Rounds | Verdict |", "|---|---|---|---|---|---|---|"]
    for s in results["scenarios"]:
        m = s["measured"]
        target = "; ".join(words(n, v) for n, v in s["targets"].items())
        median = "; ".join(words(n, f["median"]) for n, f in m.items())
        p99 = "; ".join(words(n, f["p99"]) for n, f in m.items())
        verdict = f"failed: {s['failed'].splitlines()[0][:120]}" if s["failed"] else "missed: " + "; ".join(s["missed"]) if s["missed"] else "held"
        out.append(f"| {s['number']} | {s['title']} | {target} | {median} | {p99} | {s['rounds']} | {verdict} |".replace("\n", " "))
    held = sum(not s["failed"] and not s["missed"] for s in results["scenarios"])
    compared = sum(s["notes"].get("losses_compared", 0) for s in results["scenarios"])
    out += ["", f"{held} of {len(results['scenarios'])} held. {compared:,} losses were compared with the undisturbed run's."]
    return out


def rows(results):
    out = [results["text"], ""] if results.get("text") else []
    out += ["| What | Target | Measured | Verdict |", "|---|---|---|---|"]
    for r in results.get("rows", []):
        verdict = "" if r.get("ok") is None else "held" if r["ok"] else "missed"
        out.append(f"| {r['what']} | {r.get('target') or ''} | {r['measured']} | {verdict} |")
    return out


def block(part, old):
    title, command = PARTS[part]
    begin, end = f"<!-- {part}: begin -->", f"<!-- {part}: end -->"
    path = BUILD / part / "results.json"
    if path.exists():
        results = json.loads(path.read_text())
        body = "\n".join([where(results), "", *(fault(results) if part == "fault" else rows(results))])
    else:
        kept = re.search(re.escape(begin) + r"\n(.*)\n" + re.escape(end), old, re.S)
        body = kept.group(1) if kept else f"Not measured yet: `{command}`."
    return f"## {title}\n\n{begin}\n{body}\n{end}\n"


def main():
    old = PAGE.read_text() if PAGE.exists() else ""
    PAGE.write_text("\n".join([HEAD, *(block(p, old) for p in PARTS)]))
    print(f"written to {PAGE.relative_to(SOURCE)}")


if __name__ == "__main__":
    main()
