#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make mutants` (run_mutants.py) changes what it may and nothing else, and equivalent.txt names lines that there are."""
import argparse
import errno
import os
import random
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
sys.path.insert(0, str(HERE))
import run_mutants  # noqa: E402
import sites  # noqa: E402
from titan import deadline, tap  # noqa: E402

SAMPLE = r'''/* a < b */
#define LIMIT 5
static const int table[] = {1, 2, 3};

static int add(const char *text, int n)
{
    char memory[64];
    titan_assert(n > 0 && text);
    TRY(read(text, memory, sizeof(memory) - 1));
    if (n >= 10 && !*text) /* n > 3 */
        return titan_fail(err, TITAN_EINVAL, "%d < %d", n + 1, 7);
    for (int i = 0; i < n; i++)
        *p = &memory[i] - 'a' * -2;
    tlog_info(log, "n is %d", n - 4);
    return TITAN_OK;
}
'''


def changes(text):
    return {f"{s.line}: {text[s.begin:s.end]} -> {s.after}" for s in sites.sites(text)}


def what_may_be_changed():
    """operators, bounds, constants, conditions and results in functions; no texts, comments, assertions, tables, sizes, log lines"""
    assert changes(SAMPLE) == {
        "9: - -> +", "9: 1 -> 0", "9: 1 -> 2", "10: >= -> >", "10: >= -> <", "10: 10 -> 11", "10: && -> ||", "10: n >= 10 && !*text -> !(n >= 10 && !*text)",
        "12: 0 -> 1", "12: < -> <=", "12: < -> >", "12: ++ -> --", "13: - -> +", "13: * -> /", "13: 2 -> 3", "15: TITAN_OK -> TITAN_EINVAL"}, changes(SAMPLE)


def a_change_is_of_its_line():
    """a mutant differs from the source in the one line that it names"""
    for path in ("base/toml.c", "daemon/agent/shell/node_check.c", "ctl/top.c"):
        text = (run_mutants.ROOT / path).read_text()
        for site in sites.sites(text):
            lines = [n for n, (a, b) in enumerate(zip(text.splitlines(), site.applied(text).splitlines()), 1) if a != b]
            assert lines == [site.line], (path, site)


def a_seed_draws_the_same():
    """the same seed draws the same places, in every part of the product"""
    files = run_mutants.product_files()
    texts = {f: (run_mutants.ROOT / f).read_text() for f in files}

    def drawn():
        rng = random.Random(7)
        return [m.place + m.change for m in (run_mutants.draw(files, texts, (i / 40, (i + 1) / 40), rng) for i in range(40)) if m]

    assert drawn() == drawn()
    assert {place.split("/")[0] for place in drawn()} == {"base", "ctl", "daemon", "proto", "state", "worker"}, drawn()


def a_report_is_gone_on_with():
    """--again: a mutant of the report is found where its line is now; what was noticed is taken over, what is no more is drawn anew"""
    path = "base/toml.c"
    text = (run_mutants.ROOT / path).read_text()
    lines = [line.strip() for line in text.splitlines()]
    for site in sites.sites(text)[::40]:
        if lines[max(site.line - 5, 0):site.line].count(lines[site.line - 1]) > 1:
            continue  # the number alone tells equal lines apart that are so near
        m = run_mutants.Mutant(path, text, site)
        earlier = {"place": f"{path}:{site.line}", "before": m.before, "after": m.after, "change": m.change, "noticed_by": "a test", "how": "exit 1"}
        moved = run_mutants.find({path: "\n\n" + text}, earlier)
        assert (moved.before, moved.after, moved.change, moved.place) == (m.before, m.after, m.change, f"{path}:{site.line + 2}"), earlier
        assert not run_mutants.find({path: text}, {**earlier, "before": "else"}) and not run_mutants.find({}, earlier)
        run = run_mutants.Run(argparse.Namespace(build="/nonexistent", only=path, seed=1, sanitizers=False, again=[earlier]))
        assert run.one((0, 1), earlier) == {**earlier, "taken_over": True}


def equivalent_mutants_are_of_this_tree():
    """each entry of equivalent.txt is a line of its file and a change that may be drawn"""
    for (path, before, after), reason in run_mutants.read_equivalent((HERE / "equivalent.txt").read_text()).items():
        text = (run_mutants.ROOT / path).read_text()
        drawn = {(m.before, m.after) for m in (run_mutants.Mutant(path, text, s) for s in sites.sites(text))}
        assert (before, after) in drawn and reason, f"equivalent.txt: {path} has no '{before}', or it is never changed to '{after}': take the entry out or mend it"


def an_entry_is_whole():
    """an entry that lacks a part is refused with its line; several entries may follow a file"""
    two = "# says\na.c\n- x\n+ y\n= why\n- z\n+ w\n= also\n"
    assert run_mutants.read_equivalent(two) == {("a.c", "x", "y"): "why", ("a.c", "z", "w"): "also"}
    try:
        run_mutants.read_equivalent("a.c\n- x\n= why\n")
    except ValueError as e:
        assert "equivalent.txt:3" in str(e), e
    else:
        raise AssertionError("taken")


BOUNDED = """
import os, sys
sys.path.insert(0, sys.argv[1])
import run_mutants
run_mutants.PROCESSES = 3
lift = run_mutants.bound_processes()
children, why = [], None
try:
    for _ in range(4):
        children.append(os.fork())
        if children[-1] == 0:
            os.execlp("cat", "cat")  # until this process ends
except OSError as e:
    why = e.errno
import signal
for pid in children:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
lift()
print(len(children), why)
"""


def processes_are_bounded():
    """a mutant in which each child forks again meets a bound"""
    if os.geteuid() != 0 or not os.access(run_mutants.PIDS / "cgroup.procs", os.W_OK):
        return "the limit of a user's processes counts those of others, and there is no cgroup of pids here"
    done = subprocess.run([sys.executable, "-c", BOUNDED, HERE], stdin=subprocess.PIPE, capture_output=True, text=True, timeout=deadline(60), check=True)
    assert done.stdout.split() == ["2", str(errno.EAGAIN)], done.stdout
    return None


def children_are_no_tests():
    """a child of a unit test begins by child_fork(): cmocka goes on with the next test in one that faults"""
    bare = [f"{f.relative_to(run_mutants.ROOT)}:{n}" for f in (run_mutants.ROOT / "tests/unit").rglob("*.c")
            for n, line in enumerate(f.read_text().splitlines(), 1) if re.search(r"(?<!child_)\bfork\(\)", line)]
    assert not bare, f"fork() in {bare}: child_fork() of tests/support/child.h"


tap(what_may_be_changed, a_change_is_of_its_line, a_seed_draws_the_same, a_report_is_gone_on_with, equivalent_mutants_are_of_this_tree, an_entry_is_whole, processes_are_bounded, children_are_no_tests)
