#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of operations in docs/gpu.md: which are checked on the emulator, what each takes at least on an H200, which have
run on a GPU and what they took there.

    gpu_operations.py WORKER                   writes the table into docs/gpu.md
    gpu_operations.py WORKER --check [PAGE]    exit 1 when it is not what would be written, but for operations that have no row yet

An operation's row is that of its most expensive shape in the first recipe that has it. It counts as checked alone when
tests/support calls it by the device's table. What a GPU has run is in tests/gpu/measured/CARD.json, written by hand from the
results of tests/gpu: card, date and versions; "calls" of the device's and communicator's table that its checks made; "without",
operations that these calls are not enough for; "trained", operations that ran in training steps besides; "older", of which the kernel has changed since, in that commit; "measured", for an
operation the shape (as in the table, or it is not shown), microseconds and its share of the rate that the same call's ceilings
reached; "bench", bench_ops as it was. CARD-costs.tsv beside it is a table of titan-worker measure: what has no row in "measured" is
shown as it took there, in a sequence.
"""
import json
import re
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
PAGE, MEASURED = SOURCE / "docs/gpu.md", SOURCE / "tests/gpu/measured"
EIGHT = "llama3_8b.toml"
RECIPES = [("8B", ["llama3_8b_h200.toml"]), ("8B, FSDP 8", [EIGHT, "--world", "8"]), ("16B, EP 8", ["deepseek_v3_16b.toml", "--world", "8"]),
           ("8B, FSDP 8, float8", [EIGHT, "--world", "8", "--set", "model.converters=float8", "--set", "float8.enable_fsdp_float8_all_gather=true"]),
           ("8B, TP 8", [EIGHT, "--world", "8", "--set", "parallelism.tensor_parallel_degree=8"]),
           ("8B, CP 8, ring", [EIGHT, "--world", "8", "--set", "parallelism.context_parallel_degree=8", "--set", "parallelism.context_parallel_rotate_method=ring"]),
           ("8B, PP 8", [EIGHT, "--world", "8", "--set", "parallelism.pipeline_parallel_degree=8", "--set", "training.local_batch_size=8"]),
           ("8B, CP 8, canonical", [EIGHT, "--world", "8", "--set", "parallelism.context_parallel_degree=8", "--set", "numerics.canonical=true"])]
EXECUTOR = "".join(path.read_text() for path in sorted((SOURCE / "worker/exec").glob("*.c")))
CARD = "H200"  # whose floor and prediction the table has: its own times where there are any
LINE = re.compile(r" +([\d.]+) +([\d.]+) +[\d.]+% +(\d+)  (\w+)(.*)")


def operations():
    """{NAME: (calls of the device's or the communicator's table, class)} in the order of ops.def."""
    text = (SOURCE / "worker/program/ops.def").read_text()
    parts = re.split(r"^OP(?:_BY_HAND)?\((\w+), (\w+), (\w+),", text, flags=re.M)[1:]
    return {name: (calls_of(body) or {call}, kind) for name, call, kind, body in zip(*[iter(parts)] * 4) if kind != "NO_TIME"}


def calls_of(body):
    """Of an operation's `run`: of the table itself, or of the executor's function that it names."""
    found = set(re.findall(r"\bops->(\w+)\(", body))
    for function in re.findall(r"\b(\w+)\(call, ", body):
        found |= set(re.findall(r"\bops->(\w+)\(", EXECUTOR.split(f" {function}(const struct", 1)[-1].split("\n}\n")[0]))
    return found


def checked_alone():
    calls = r"\b(?:ops|comm)->(\w+)\("
    return {m for path in (SOURCE / "tests/support").glob("*.c") for m in re.findall(calls, path.read_text())}


def shapes(worker, recipe, measured):
    """{NAME: (seconds, floor, times, shape)}: the shape that takes the most of a step."""
    out = subprocess.run([worker, "plan", "--device", "h200", "--operations", SOURCE / "recipes" / recipe[0], *recipe[1:]],
                         check=True, capture_output=True, text=True).stdout
    found = {}
    for m in map(LINE.fullmatch, out.splitlines()):
        if m and float(m[1]) > 0:  # an agreement of one rank takes no time
            row = (float(m[1]), float(m[2]), int(m[3]), " ".join(m[5].split()))
            # of those that take the same, one that was measured, or the first
            found[m[4]] = min(found.get(m[4], row), row, key=lambda r: (-r[0], (m[4], short(r[3])) not in measured))
    return found


def short(shape):
    """Without strides, which follow from the rest as a rule, and counts that a model without experts has not."""
    return " ".join(word for word in shape.split() if not word.startswith("ld") and word != "parts=0")


def sequences():
    """{(card, NAME, shape as in the table): (microseconds, commit)}, of the updates the longest."""
    found = {}
    for path in sorted(MEASURED.glob("*-costs.tsv")):
        rows = [line.split("\t") for line in path.read_text().splitlines()]
        commit = next(re.search(r"\((\w{8})", row[1])[1] for row in rows if row[0] == "version")
        for _, _, seconds, *_, key in (row for row in rows if row[0] == "operation"):
            _, name, shape = (key + " ").split(" ", 2)
            at = (path.name.split("-")[0].upper(), name, short(re.sub(r"\bstate=\d+", "", shape)))
            found[at] = max(found.get(at, (0, "")), (float(seconds) * 1e6, commit))
    return found


def has_run(cards, name, calls):
    """By the last card that has run it."""
    ran = [card for card in cards if name not in card.get("without", ()) and calls <= set(card["calls"]) or name in card["trained"]]
    if not ran:
        return "no"
    changed = max(ran, key=lambda card: card["date"]).get("older", {}).get(name)
    return f"an older kernel, before {changed}" if changed else "yes"


def taken(cards, sequences, name, shape):
    """[(card, words)] of the times at this shape, and [share]: alone, or else in a sequence."""
    alone = [(card["short"], m) for card in cards for m in [card["measured"].get(name, {})] if m.get("shape") == shape]
    alone = [pair for pair in alone if pair[0] == CARD] or alone
    if alone:
        return [f"{card} {m['us']:.0f}" for card, m in alone], [f"{100 * m['share']:.0f} %" for _, m in alone if "share" in m]
    us, commit = sequences.get((CARD, name, shape), (0, ""))
    return [f"{CARD} {us:.0f}, in a sequence at {commit}"] if us else [], []


def table(worker):
    alone = checked_alone()
    cards = [json.loads(path.read_text()) for path in sorted(MEASURED.glob("*.json"))]
    measured = {(name, m["shape"]) for card in cards for name, m in card["measured"].items()}
    steps = sequences()
    plans = [(name, shapes(worker, recipe, measured)) for name, recipe in RECIPES]
    rows = ["| Operation | Checked alone on the emulator | Run on a GPU | In a step of | Shape | Floor, µs | Predicted, µs | Measured, µs | Of the ceiling |",
            "|---|---|---|---|---|---|---|---|---|"]
    for name, (calls, kind) in operations().items():
        model, (seconds, floor, times, shape) = next(((n, p[name]) for n, p in plans if name in p), ("", (0, 0, 1, "")))
        times_at, shares = taken(cards, steps, name, short(shape)) if model else ([], [])
        rows.append("| " + " | ".join((
            f"`{name}`", "yes" if calls <= alone else "in training steps", has_run(cards, name, calls), model, short(shape),
            f"{floor / times * 1e6:.0f}" if model else "", f"{seconds / times * 1e6:.0f}" if model else "",
            ", ".join(times_at), ", ".join(shares))) + " |")
    return "\n".join(rows)


def as_far_as(page, wanted):
    """The page that is wanted without the rows of operations that the page has none of."""
    row = re.compile(r"^\| `([A-Z0-9_]+)` \|.*\n", re.M)
    known = set(row.findall(page))
    return row.sub(lambda m: m[0] if m[1] in known else "", wanted)


def main():
    checks = sys.argv[2:3] == ["--check"]
    at = Path(sys.argv[3]) if sys.argv[3:] else PAGE
    page, (begin, end) = at.read_text(), ("<!-- operations: begin -->\n", "<!-- operations: end -->")
    head, rest = page.split(begin)
    wanted = head + begin + table(sys.argv[1]) + "\n" + end + rest.split(end)[1]
    if not checks:
        at.write_text(wanted)
    elif as_far_as(page, wanted) != page:
        sys.exit(f"{at}: the table of operations is out of date; make docs")


main()
