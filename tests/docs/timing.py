#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Sleeps and bounds on time in what `make test` and `make test-slow` run: `timing.py` prints them.

A busy machine makes both wrong. What a test waits for is awaited (until() of tests/support/titan.py, AWAIT() of tests/support/patience.h), a
limit against hanging is a deadline() or patience_ms(), time that has to pass is a pause() or patience_pause_ms(), and how long something
takes is for `make bench`. A line that has to be otherwise says why in the line: `# timing: why`, or `/* timing: why */` in C."""
import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What measures, and what runs on other machines, is no test.
TOOLS = ("tests/bench/", "tests/demo/", "tests/gpu/", "tests/scale/", "tests/system/", "tests/cuda/emulat", "tests/cuda/fake", "tests/cuda/check", "tests/docs/pictures.py",
         *(f"tests/fault/{name}.py" for name in ("alarms", "record", "reliability", "run_faults", "soak")), "tests/tls/soak.py")
# Where waiting is done for all.
OWN = ("tests/support/titan.py", "tests/support/patience.py", "tests/support/patience.c", "tests/run.py", "tests/docs/timing.py", "tests/docs/test_timing.py")
STRETCHED = {"command", "ctl", "ok"}  # calls of titan.py that make a deadline of their timeout
LIMITS = {"wait": 0, "join": 0, "settimeout": 0, "poll": 0, "result": 0, "select": 3}  # the argument that is one, in seconds or so
CLOCKS = {"monotonic", "perf_counter", "monotonic_ns", "perf_counter_ns"}
MEASURED = re.compile(r"elapsed|took|_ms$")
ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
REASON = re.compile(r"(?:#|/\*) timing: \w+")
SHELL_TIMEOUT_S = 600


# --- Python ------------------------------------------------------------------------------------------------------------

class Script:
    def __init__(self, text):
        self.tree = ast.parse(text)
        self.constants = {n.targets[0].id for n in self.tree.body
                          if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name) and self.is_number(n.value)}
        self.sleeps = {a.asname or a.name for n in ast.walk(self.tree) if isinstance(n, ast.ImportFrom) and n.module == "time"
                       for a in n.names if a.name == "sleep"}

    @staticmethod
    def is_number(node):
        return isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value != 0

    def is_fixed(self, node):
        """a number, or a constant of the file that is one"""
        return self.is_number(node) or isinstance(node, ast.Name) and node.id in self.constants

    def findings(self):
        """(first line, last line, what)"""
        for node in ast.walk(self.tree):
            for what in self.of_call(node) if isinstance(node, ast.Call) else self.of_comparison(node):
                yield node.lineno, node.end_lineno, what

    def of_call(self, call):
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        of = getattr(getattr(call.func, "value", None), "id", "")
        if (of, name) == ("time", "sleep") or name in self.sleeps:
            yield "sleeps: until(), or pause() with a reason"
        if name in STRETCHED:
            return
        at = LIMITS.get(name)
        limits = [k.value for k in call.keywords if k.arg == "timeout"] + ([call.args[at]] if at is not None and len(call.args) > at else [])
        if any(self.is_fixed(limit) for limit in limits):
            yield f"{name}() with a fixed limit: deadline()"

    def of_comparison(self, node):
        if isinstance(node, ast.Compare) and any(isinstance(op, ORDERED) for op in node.ops):
            if any(getattr(n.func, "attr", "") in CLOCKS for n in ast.walk(node) if isinstance(n, ast.Call)):
                yield "compares a clock: until(), or an event"
        elif isinstance(node, ast.Assert):
            for inner in ast.walk(node.test):
                if isinstance(inner, ast.Compare) and any(isinstance(op, ORDERED) for op in inner.ops):
                    sides = [inner.left, *inner.comparators]
                    zero = any(isinstance(s, ast.Constant) and s.value == 0 for s in sides)
                    if not zero and any(MEASURED.search(word) for s in sides for word in self.words(s)):
                        yield "asserts how long something took: an event, or `make bench`"

    @staticmethod
    def words(node):
        for n in ast.walk(node):
            if isinstance(n, ast.Name):
                yield n.id
            elif isinstance(n, ast.Attribute):
                yield n.attr
            elif isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Constant):
                yield str(n.slice.value)


# --- C and the shell ---------------------------------------------------------------------------------------------------

C_BARE = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.S)
# That something took at least so long holds on a busy machine too.
C_RULES = ((re.compile(r"\b(?:usleep|nanosleep|clock_nanosleep|sleep)\s*\("), "sleeps: AWAIT(), or patience_pause_ms() with a reason"),
           (re.compile(r"\balarm\s*\((?!\s*0\s*\)|[^;]*patience_ms\()"), "a fixed limit: patience_ms()"),
           (re.compile(r"\bassert\w*\s*\([^;]*?(?:\bclock_mono\w*\s*\(\s*\)[^;>]*<|>=?\s*\bclock_mono)[^;]*;"), "asserts how long something took: an event, or `make bench`"))
SHELL_RULES = ((re.compile(r"(?:^|[\s;&|({])sleep [\d.\"$]"), "sleeps: wait, or what tells of it"),)
TIMEOUT = re.compile(r"(?:^|[\s;&|({])timeout (?:-\S+ \S+ )*\"?(\d+)")


def of_c(text):
    code = C_BARE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    for rule, what in C_RULES:
        for m in rule.finditer(code):
            yield code.count("\n", 0, m.start()) + 1, code.count("\n", 0, m.end()) + 1, what


def of_shell(text):
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        for rule, what in SHELL_RULES:
            if rule.search(line):
                yield number, number, what
        if any(int(m[1]) < SHELL_TIMEOUT_S for m in TIMEOUT.finditer(line)):
            yield number, number, f"a timeout below {SHELL_TIMEOUT_S} s"


# --- files -------------------------------------------------------------------------------------------------------------

READERS = {".py": lambda text: Script(text).findings(), ".c": of_c, ".h": of_c, ".sh": of_shell}


def check(name, text):
    """What is wrong in a file, as lines 'FILE:LINE: what'; and reasons where there is nothing to excuse."""
    lines, excused = text.splitlines(), set()
    for first, last, what in sorted(READERS[Path(name).suffix](text)):
        reasons = [n for n in range(first, last + 1) if REASON.search(lines[n - 1])]
        excused.update(reasons)
        if not reasons:
            yield f"{name}:{first}: {what}"
    for n, line in enumerate(lines, 1):
        if re.search(r"(?:#|/\*) timing: ", line) and n not in excused:
            yield f"{name}:{n}: excuses nothing"


def files():
    out = subprocess.run(["git", "-C", str(ROOT), "-c", "safe.directory=*", "ls-files", "tests"], capture_output=True, text=True, check=True).stdout.split()
    for name in out:
        tool = name.startswith(TOOLS) and not (name.startswith("tests/bench/") and Path(name).name.startswith("test_"))
        if Path(name).suffix in READERS and not tool and name not in OWN and (ROOT / name).exists():
            yield name


def problems():
    return [line for name in files() for line in check(name, (ROOT / name).read_text())]


if __name__ == "__main__":
    found = problems()
    print(*found, sep="\n", end="\n" * bool(found))
    sys.exit(bool(found))
