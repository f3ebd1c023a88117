#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/reliability.md from what was measured: build/{fault,soak,soak-tls,alarms,attack,fuzz,sim,sim-mutants,sim-scale,model,scale,system,
system-containers,bench,turns}/results.json, as far as they are there.
A part that has not run keeps its block of the page as it is; what was written by hand behind a block stays.

results.json of a part: {"at", "commit", "machine", "command", ...}; that of `make fault` has "scenarios", every other one "rows": a list
of {"what", "target", "measured", "ok"} and may have "text", a paragraph in front of the table, and "told", what the check printed beside
its verdicts (record.py). Of that the page has names and counts, as far as they are whole."""
import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BUILD, SOURCE  # noqa: E402

PAGE = SOURCE / "docs/reliability.md"
HEAD = """# Reliability: what was done to it, and what it did

`make reliability` writes this page from `build/PART/results.json`. Lines written by hand are marked. A row without a verdict has no target; each section has
its machine. What happens in each case, what an operator sees and does: [operations.md](operations.md#the-faults). The protocol: [membership.md](membership.md). Older
results and conditions: [log/reliability.md](log/reliability.md).
"""
PARTS = {  # title, command, what it does
    "fault": ("Faults for real", "make fault", "one fault at a time to real daemons and workers"),
    "soak": ("Soak", "make soak MINUTES=60", "random faults for an hour"),
    "soak-tls": ("Soak of certificates", "make record-soak-tls MINUTES=10", "every certificate is replaced while a run trains"),
    "alarms": ("False alarms", "make alarms", "nothing fails: what is taken for lost or hung"),
    "attack": ("Attacks", "make record-attack ROUNDS=100000", "mutated messages and known tricks against real daemons"),
    "fuzz": ("Fuzzing", "make record-fuzz MINUTES=30", "random inputs to each parser and handler"),
    "sim": ("Simulation", "make record-sim ROUNDS=1000000", "the programs' cores under drawn schedules of faults"),
    "sim-mutants": ("Deliberate bugs", "make record-sim-mutants", "the simulation finds each bug that is put in"),
    "model": ("Model", "make record-model", "every state of the protocol's rules, random ones with more agents"),
    "scale": ("Scale", "make scale AGENTS=1000", "a coordinator with a thousand agents"),
    "sim-scale": ("Scale, simulated", "make record-sim-scale AGENTS=10000", "a coordinator with ten thousand agents"),
    "system": ("Installed system", "make system", "the package on two machines under qemu"),
    "system-containers": ("Installed system, in containers", "make system KIND=containers", "the package in two containers"),
    "bench": ("Numbers", "make bench PART=elastic", "times of recovery, rates of submits"),
    "turns": ("Speed, by turns with an older tree", "make turns OLD=PATH", "the same, as a share of an older tree's")}
# How much was done, for the first table: where a block has it, and its words there.
DONE = {"fault": (r"([\d,]+) losses were compared", "{} losses compared"), "soak": (r"([\d,]+ failures in [\d.]+ min)", "{}"),
        "soak-tls": (r"nodes renewed \|[^|]*\| (\d+)", "{} certificates renewed"),
        "alarms": (r"30 % loss[^|]*\|[^|]*\| given up (\d+)", "without a target: {} nodes given up at 30 % loss"),
        "attack": (r"\| (\d+) messages", "{} messages"), "fuzz": (r"([\d,]+) inputs", "{} inputs"), "sim": (r"(\d+) passed", "{} schedules"),
        "sim-mutants": (r"(\d+) passed", "{} bugs found"), "scale": (r"at rest, (\d+) nodes", "{} nodes"), "sim-scale": (r"\| (\d+) nodes", "{} nodes"),
        "bench": (r"next step finished, median of 100 \|[^|]*\| ([\d.]+ ms)", "SIGKILL to the next step {}"),
        "turns": (r"next step, p99 of 100: new - old \|[^|]*\| (-?[\d.]+ ms)", "SIGKILL to the next step {}")}
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


# Of what the simulation counts.
COUNTED = {"coordinator_lives": "starts of a coordinator, the first of each schedule among them", "agent_lives": "starts of an agent after its end",
           "sessions": "sessions that agents have opened", "epochs": "epochs formed", "leader_epochs": "epochs formed by an acting leader",
           "steps": "steps that a worker has committed", "checkpoints": "checkpoints published",
           "checkpoints_torn": "checkpoints of which only some shards were written", "store_refused": "writes that the store refused",
           "datagrams": "datagrams sent", "forged": "forged datagrams", "completed": "jobs that have ended with all steps"}
SPEAKERS = {"client": "clients over TCP and as the daemon's user, with and without an identity", "nobody": "a client over the Unix socket, as `nobody`",
            "agent": "an agent of a node of its own", "worker": "workers of a job of its own, or of none", "peer": "datagrams"}


def in_columns(pairs, n, what, count):
    """A table with n pairs in a row."""
    out = ["| " + " | ".join([what, count] * n) + " |", "|---|--:" * n + "|"]
    for at in range(0, len(pairs), n):
        cells = [cell for name, k in pairs[at:at + n] for cell in (name, f"{int(k):,}")]
        out.append("| " + " | ".join(cells + [""] * (2 * n - len(cells))) + " |")
    return out + [""]


def sim(lines):
    """What happened in all schedules together, and how often each fault struck."""
    counts, _, struck = " ".join(lines).partition("struck: ")
    counts = dict(re.findall(r"(\w+) (\d+)\b", counts))
    struck = re.findall(r"([a-z][^0-9]*?) (\d+)(?=,|\s|$)", struck.partition("failed seeds: ")[0])
    out = ["What was counted in all schedules together:", "", "| Count | Of |", "|--:|---|",
           *(f"| {int(counts[name]):,} | {what} |" for name, what in COUNTED.items() if name in counts), ""]
    return out + ["How often each fault struck, and each request was made:", "", *in_columns(struck, 3, "What", "Times")] if struck else []


def attack(lines):
    """How often each of them spoke; the seed that draws the same again."""
    text = " ".join(lines)
    seed = re.search(r"\bSEED=(\d+)", text)
    ways = re.findall(r"(\w+): (\d+) messages, (\d+ of \d+) fields mutated", text)
    out = [f"`SEED={seed.group(1)}`: it draws the same messages again.", ""] if seed else []
    if ways:
        out += ["| Speaks | Messages | Fields of its messages that were mutated |", "|---|--:|--:|",
                *(f"| {SPEAKERS.get(way, way)} | {int(n):,} | {fields} |" for way, n, fields in ways), ""]
    return out


def mutants(lines):
    """Each bug, when it was found and by what; only how many, where lines are missing."""
    out, end = [], re.search(r"\d+ of (\d+) end at an assertion of the programs", " ".join(lines))
    for line, seed in zip(lines, lines[1:]):
        m, s = re.match(r"([A-Z][A-Z_]+) +(\d+) +(\S+) +(.*)", line), re.match(r" *SEED=(\d+) ", seed)
        if m and s:
            out.append(f"| `{m[1]}` | {m[4]} | {int(m[2]):,} | {s[1]} | {m[3]} |")
    if not end:
        return []
    told = [f"{end[0]}; others are seen by the simulation's invariants.", ""]
    if len(out) != int(end[1]):
        return told
    return ["A bug is replayed by `make sim-mutants ONLY=NAME FIRST=SEED ROUNDS=1`. Found by: an invariant (`tests/sim/invariants.c`), or `end`, an assertion.", "",
            "| Bug | | Schedules until it was found | SEED | Found by |", "|---|---|--:|--:|---|", *out, "", *told]


TOLD = {"sim": sim, "attack": attack, "sim-mutants": mutants}


def before_rows(part, results):
    """What stands in front of the table. Results of an older record.py have the end of what was told behind the first sentence of "text"."""
    text, told = results.get("text", "").strip(), results.get("told")
    if part in TOLD:
        first = re.match(r"It ran for \d+ s\.", text)
        return [*([first[0], ""] if first else []), *TOLD[part](told if told is not None else [text[first.end() if first else 0:]])]
    text = " ".join([text, *(told or [])[-12:]]).strip()
    return [text, ""] if text else []


def rows(results):
    out = ["| What | Target | Measured | Verdict |", "|---|---|---|---|"]
    for r in results.get("rows", []):
        verdict = "" if r.get("ok") is None else "held" if r["ok"] else "missed"
        out.append(f"| {r['what']} | {r.get('target') or ''} | {r['measured']} | {verdict} |")
    return out


def block(part, old):
    title, command, _ = PARTS[part]
    begin, end = f"<!-- {part}: begin -->", f"<!-- {part}: end -->"
    path = BUILD / part / "results.json"
    if path.exists():
        results = json.loads(path.read_text())
        body = "\n".join([where(results), "", *(fault(results) if part == "fault" else [*before_rows(part, results), *rows(results)])])
    else:
        kept = re.search(re.escape(begin) + r"\n(.*)\n" + re.escape(end), old, re.S)
        body = kept.group(1) if kept else f"Not measured yet: `{command}`."
    by_hand = re.search(re.escape(end) + r"\n(\nWritten by hand: .*?\n)(?=\n## |\Z)", old, re.S)
    return f"## {title}\n\n{begin}\n{body}\n{end}\n{by_hand.group(1) if by_hand else ''}"


def anchor(title):
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def verdicts(text):
    """[(name, verdict)] of the rows that have one: of each row the first cell, or the second behind a number."""
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if re.search(r"\| (held|(missed|failed)\b[^|]*) \|$", line)]
    return [(row[1] if row[0].isdigit() else row[0], row[-1]) for row in cells]


def amount(part, text):
    """How much was done: of inputs the sum, of all else what stands first."""
    pattern, words = DONE.get(part, ("$^", ""))
    found = re.findall(pattern, text)
    if part == "fuzz":
        found = [str(sum(int(n.replace(",", "")) for n in found))] if found else []
    return words.format(f"{int(found[0]):,}" if found[0].isdigit() else found[0]) if found else ""


def summary(blocks):
    """The first table: a line for each part, from its block."""
    out = ["| Proof | What it does | Newest result | Date, commit | Again |", "|---|---|---|---|---|"]
    for part, (title, command, does) in PARTS.items():
        text = blocks[part].split("end -->")[0]
        begin = re.search(r"^(\d{4}-\d\d-\d\d), commit (.*?); .*Again: `(.*?)`\.$", text, re.M)
        rows_of, missed = verdicts(text), [name for name, verdict in verdicts(text) if verdict != "held"]
        single = [row for row in rows_of if row[0] != "all"]
        held = f"{sum(verdict == 'held' for _, verdict in single)} of {len(single)} held" if single else "" if missed else "held"
        not_done = len(re.findall(r"\| not done: ", text))
        result = [held, *(f"**missed**: {name}" for name in missed), f"{not_done} not done" if not_done else "", amount(part, text)]
        later = ", some later" if ", run later |" in text else ""
        out.append(f"| [{title}](#{anchor(title)}) | {does} | " + (f"{'; '.join(filter(None, result))} | {begin[1]}, {begin[2]}{later} | `{begin[3]}` |"
                                                                   if begin else f"not measured yet | | `{command}` |"))
    return "\n".join(out) + "\n"


def main():
    old = PAGE.read_text() if PAGE.exists() else ""
    blocks = {part: block(part, old) for part in PARTS}
    PAGE.write_text("\n".join([HEAD, summary(blocks), *blocks.values()]))
    print(f"written to {PAGE.relative_to(SOURCE)}")


if __name__ == "__main__":
    main()
