# SPDX-License-Identifier: Apache-2.0
"""Files call one way: in the whole tree no files reach each other by calls, but for the small rings of RINGS, each of at most
four files of one folder, with its reason. No file calls more than 25 others outside of base/, but for those of TABLES.

Calls are those of the objects (nm). What RINGS names and is no ring any more is an error too."""
import collections
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("BUILD", "build"))
OBJECTS = (BUILD if BUILD.is_absolute() else ROOT / BUILD) / "obj"
FOLDERS = ("base", "proto", "state", "daemon", "ctl", "worker")
ELSEWHERE = ("worker/device/cuda/", "worker/comm/nccl/")  # built by the CUDA toolkit alone
CALLED_MOST = 25
RING_MOST = 4

RINGS = {
    "base/error base/utf8": "an assertion and the cut of a text at a character serve each other",
    "ctl/command ctl/completion ctl/ctl ctl/help": "help and completion print the table of commands that they stand in",
    "proto/rpc/server proto/rpc/services": "a server offers methods of its own",
    "worker/epoch/epoch worker/epoch/evaluation worker/epoch/recover worker/epoch/trainer": "an epoch and what it is opened with",
    "worker/exec/exec worker/exec/segments worker/exec/warmup": "segments and warm-up dispatch operations as the executor does",
    "worker/model/attention worker/model/block worker/model/experts worker/model/latent": "a block's parts write products by its helpers",
    "worker/program/arena_placement worker/program/program worker/program/shadow worker/program/waits": "a program is completed by passes over itself",
}
TABLES = {"ctl/command": "the table of all commands", "worker/device/cpu/cpu": "the table of all operations of a device"}


def read_calls():
    """{file: files it calls}, and how many objects there are."""
    names = {}
    for folder in FOLDERS:
        for source in (ROOT / folder).rglob("*.c"):
            name = str(source.relative_to(ROOT).with_suffix(""))
            if not name.startswith(ELSEWHERE) and (OBJECTS / f"{name}.o").exists():
                names[str(OBJECTS / f"{name}.o")] = name
    defined, wanted = {}, []
    listing = subprocess.run(["nm", "-A", *names], capture_output=True, text=True, check=True).stdout
    for line in listing.splitlines():
        path, _, rest = line.partition(":")
        *_, kind, symbol = rest.split()
        if kind in "TDBRCVW":
            defined.setdefault(symbol, set()).add(names[path])
        elif kind == "U":
            wanted.append((names[path], symbol))
    calls = {name: set() for name in names.values()}
    for user, symbol in wanted:
        calls[user] |= defined.get(symbol, set()) - {user}
    return calls


def rings(calls):
    """Sets of files that reach each other (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(file):
        index[file] = low[file] = len(index)
        stack.append(file)
        for called in sorted(calls.get(file, ())):
            if called not in index:
                visit(called)
            if called in stack:
                low[file] = min(low[file], low[called])
        if low[file] == index[file]:
            at = stack.index(file)
            ring = sorted(stack[at:])
            del stack[at:]
            if len(ring) > 1:
                found.append(ring)

    for file in sorted(calls):
        if file not in index:
            visit(file)
    return found


def wrong_rings(found, allowed):
    bad = [" <-> ".join(ring) for ring in found if " ".join(ring) not in allowed]
    bad += [f"{names}: no ring any more, take it out" for names in allowed if names.split() not in found]
    for names in allowed:
        files = names.split()
        if len(files) > RING_MOST or len({Path(f).parent for f in files}) > 1:
            bad.append(f"{names}: more than {RING_MOST} files, or of several folders")
    return bad


def wrong_counts(calls):
    counts = {file: len([c for c in called if not c.startswith("base/")]) for file, called in calls.items()}
    return [f"{file} calls {n} files" for file, n in sorted(counts.items()) if n > CALLED_MOST and file not in TABLES] + \
        [f"{file}: calls no more than {CALLED_MOST}, take it out" for file in TABLES if counts.get(file, 0) <= CALLED_MOST]


def report(number, what, bad):
    print(f"{'not ok' if bad else 'ok'} {number} - {what}")
    for line in bad:
        print(f"#   {line}")
    return bool(bad)


def main():
    print("1..3")
    calls = read_calls()
    planted = rings({"a/x": {"a/y", "a/z"}, "a/y": {"b/u"}, "b/u": {"a/x"}, "a/z": set(), "a/w": {"a/z"}})
    found = planted == [["a/x", "a/y", "b/u"]] and len(wrong_rings(planted, {"a/x a/y b/u": "", "a/z a/w": ""})) == 2
    failed = report(1, "a planted ring is found", [] if found and len(calls) > 400 else [f"{planted}, {len(calls)} objects"])
    failed |= report(2, "files call one way", wrong_rings(rings(calls), RINGS))
    failed |= report(3, f"no file calls more than {CALLED_MOST} others outside of base/", wrong_counts(calls))
    return failed


sys.exit(main())
