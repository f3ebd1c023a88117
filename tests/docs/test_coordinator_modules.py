# SPDX-License-Identifier: Apache-2.0
"""daemon/coordinator/ as docs/coordinator.md has it: its folders call in one direction, a field of a record is written in two files at most (by its owner, and when it is made or restored), a state only where
the step to it was found to be allowed, and what a job does next is one switch over its phase. Nothing of it is linked to daemon/api/.

Calls are those of the objects (nm); writers are found in the text, by names of variables that are declared as pointers
to a record. FIELDS=1 prints every field with its writers."""
import collections
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "daemon/coordinator"
BUILD = Path(os.environ.get("BUILD", "build"))
OBJECTS = (BUILD if BUILD.is_absolute() else ROOT / BUILD) / "obj/daemon/coordinator"
API = OBJECTS.parent / "api"
ORDER = ["shell", "inputs", "sched", "run", "cluster", "outbox", "records"]  # a folder calls those behind it
SOURCES = sorted(HERE.glob("**/*.c"))


def name(path):
    return str(path.relative_to(HERE).with_suffix(""))


def read_symbols(objects):
    """What object files define and what they want of others: {symbol: file}, {file: symbols}."""
    defined, wanted = {}, collections.defaultdict(set)
    for file, path in objects:
        listing = subprocess.run(["nm", path], capture_output=True, text=True, check=True)
        for line in listing.stdout.splitlines():
            *_, kind, symbol = line.split()
            if kind in "TDBRC":
                defined[symbol] = file
            elif kind == "U":
                wanted[file].add(symbol)
    return defined, wanted


def calls():
    """Edges between files, each with the symbols it is for; what each file wants."""
    defined, wanted = read_symbols((name(source), OBJECTS / f"{name(source)}.o") for source in SOURCES)
    edges = collections.defaultdict(list)
    for user, symbols in wanted.items():
        for symbol in sorted(symbols):
            if defined.get(symbol, user) != user:
                edges[user, defined[symbol]].append(symbol)
    return edges, wanted


def upwards(wanted):
    """Symbols of the API that files of the coordinator want: the API calls it, and never the other way."""
    theirs, _ = read_symbols((path.stem, path) for path in sorted(API.rglob("*.o")))
    return [f"{user} -> api/{theirs[symbol]}: {symbol}" for user, of in sorted(wanted.items()) for symbol in sorted(of & set(theirs))] + \
        ["no objects of daemon/api"] * (len(theirs) < 30)


def layer(path):
    folder = path.split("/")[0]
    return ORDER.index(folder) if folder in ORDER else len(ORDER)  # batch.c is below all


DECLARED = re.compile(r"\bstruct (jobrec|noderec|workrec|core) \*(?:const )?(\w+)")
WRITTEN = re.compile(r"\b(\w+)->([a-z_]+(?:\.[a-z_]+)?)(?:\[[^]]*\])*(?:[.\w]*)\s*(?:[-+|&^]?=(?!=)|\+\+|--)")
PASSED = re.compile(r"(?:memset|memcpy|memmove|snprintf|core_set_string|core_set_text|TAKE|rng_\w+|\+\+|--)\(?"
                    r"(?:\(void \*\))?&?(\w+)->([a-z_]+(?:\.[a-z_]+)?)\b(?!->|\()")
ELEMENT = [("workrec", re.compile(r"(?:workers\[[^]]*\]|->worker)->([a-z_]+)\s*[-+|&]?=(?!=)")),
           ("noderec", re.compile(r"->node->([a-z_]+)\s*(?:[-+|&]?=(?!=)|\+\+|--)")),
           ("rank_slot", re.compile(r"(?:rank_slots\[[^]]*\]\.|\brank_slot->)([a-z_]+)\s*=(?!=)"))]
SHARED = {"counters", "slots_changed", "out", "due"}  # sums, and what is under way in an input


def writers():
    found = collections.defaultdict(set)
    for source in SOURCES:
        if source.parent == HERE or source.parent.name == "shell":
            continue
        text = re.sub(r"/\*.*?\*/", "", source.read_text(), flags=re.S)
        record = {variable: kind for kind, variable in DECLARED.findall(text)}
        for pattern in (WRITTEN, PASSED):
            for hit in pattern.finditer(text):
                variable, field = hit.groups()
                if variable in record and field.split(".")[0] not in SHARED:
                    found[f"{record[variable]}.{field}"].add(name(source))
        for kind, pattern in ELEMENT:
            for hit in pattern.finditer(text):
                found[f"{kind}.{hit.group(1)}"].add(name(source))
    return found


STATES = {"jobrec.state", "jobrec.phase", "jobrec.epoch_state", "workrec.state", "noderec.state"}
TRANSITIONS = "outbox/transitions"
BIRTHS = {"records/job_table", "records/node_record", "inputs/restored_state"}  # a record is made, or read from the store


def states(fields):
    """States that are written elsewhere, or before it was found that they may follow."""
    wrong = [f"{field}: {', '.join(sorted(fields[field] - BIRTHS))}" for field in sorted(STATES) if fields[field] - BIRTHS != {TRANSITIONS}]
    text = re.sub(r"/\*.*?\*/", "", (HERE / f"{TRANSITIONS}.c").read_text(), flags=re.S)
    moves = 0
    for function, body in re.findall(r"^(?:static )?\w[^\n;{}()]*?(\w+)\([^;{}]*\)\n\{\n(.*?)^\}", text, re.S | re.M):
        move = re.search(r"\b[jwn]->(?:state|phase|epoch_state) = ", body)
        found = body.find("sm_allowed(")
        moves += move is not None
        if move and not 0 <= found < min(at for at in (move.start(), body.find("_change(")) if at >= 0):
            wrong.append(f"{function}() does not ask first whether it may")
    return wrong + ["no transitions"] * (moves < 5)


def advance():
    """What is wrong with job_advance(): phases that it has no case for, a second switch."""
    body = re.search(r"^void job_advance\(.*?^}", (HERE / "run/job_driver.c").read_text(), re.S | re.M)[0]
    phases = re.search(r"^enum \w*phase \{(.*?)\};", (HERE / "records/job_record.h").read_text(), re.S | re.M)[1]
    known = set(re.findall(r"\bPHASE_\w+", re.sub(r"/\*.*?\*/", "", phases, flags=re.S)))
    wrong = [f"{body.count('switch (')} switches"] * (body.count("switch (") != 1)
    return wrong + [f"no case for {phase}" for phase in sorted(known) if f"case {phase}:" not in body] + ["no phases"] * (len(known) < 5)


def report(number, what, bad):
    print(f"{'not ok' if bad else 'ok'} {number} - {what}")
    for line in bad:
        print(f"#   {line}")
    return bool(bad)


def main():
    (edges, wanted), fields = calls(), writers()
    if os.environ.get("FIELDS"):
        for field, files in sorted(fields.items()):
            print(f"# {len(files)} {field}: {', '.join(sorted(files))}")
    up = [f"{a} -> {b}: {', '.join(s)}" for (a, b), s in sorted(edges.items()) if layer(a) > layer(b)]
    print("1..5")
    failed = report(1, "folders call in one direction", up)
    failed |= report(2, "no field is written from more than two files",
                     [f"{f}: {', '.join(sorted(w))}" for f, w in sorted(fields.items()) if len(w) > 2])
    failed |= report(3, "job_advance() is one switch over every phase", advance())
    failed |= report(4, "a state is written by transitions.c alone, after it was found to be allowed", states(fields))
    failed |= report(5, "the coordinator wants nothing of the API", upwards(wanted))
    return failed


sys.exit(main())
