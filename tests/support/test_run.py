#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The runner of the tests (tests/run.py), over small trees of its own."""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from titan import SOURCE, command, deadline, tap, until

PASSES = "print('1..1')\nprint('ok 1 - it holds')\n"
# Announces a child that outlives it, and waits for one that never comes.
WAITS = """import os, subprocess, sys, time
child = subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 1; done"], start_new_session=True)
open(os.environ["TOLD"] + ".new", "w").write(f"{os.getpid()} {child.pid}")
os.rename(os.environ["TOLD"] + ".new", os.environ["TOLD"])
time.sleep(100000)
"""
LEAVES = """import os, subprocess
child = subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 1; done"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
open(os.environ["TOLD"], "w").write(str(child.pid))
print("1..1")
print("ok 1 - it ends")
"""


@contextlib.contextmanager
def tree(**tests):
    """A tree with these scripts in tests/, and nothing to build. name -> text; __ in a name is a folder's end."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for file in ("tests/run.py", "tests/support/patience.py"):
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(SOURCE / file, root / file)
        (root / "Makefile").write_text("tests:\n")
        for test, text in tests.items():
            path = root / "tests" / (test.replace("__", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        yield root


def environment(root, **more):
    kept = {k: v for k, v in os.environ.items() if k not in ("T", "CHANGED", "LOAD", "REPEAT", "JOBS", "LIMIT", "BUILD", "TITAN_TEST_SET", "MAKEFLAGS", "MAKELEVEL")}
    return {**kept, "PYTHON": sys.executable, "TOLD": str(root / "told"), **more}


def run(root, **more):
    return command(sys.executable, root / "tests/run.py", env=environment(root, **more))


def results_are_counted():
    """passed, failed and skipped cases are counted, times are written, and a failed test shows its command and its last 30 lines"""
    fails = "print('1..2')\nfor i in range(100): print(f'# line {i}')\nprint('ok 1 - one')\nprint('not ok 2 - two')\n"
    with tree(ctl__test_a=PASSES, ctl__test_b=fails, fault__test_c="print('1..1')\nprint('ok 1 - it # SKIP no disk')\n") as root:
        done = run(root, TITAN_TEST_SEED="77")
        assert done.code == 1 and done.out.rstrip().endswith("2 passed, 1 failed, 1 skipped"), done
        assert f"BUILD=build TITAN_TEST_SEED=77 {sys.executable} tests/ctl/test_b.py" in done.out, done.out
        assert "# line 99" in done.out and "# line 73" in done.out and "# line 71" not in done.out, done.out
        assert "(no disk)" in done.out and "slowest: " in done.out
        times = json.loads((root / "build/test-times.json").read_text())
        assert {t["test"] for t in times["tests"]} == {f"tests/{t}.py" for t in ("ctl/test_a", "ctl/test_b", "fault/test_c")}
        assert all(t["wall_s"] > 0 and t["waiting_s"] >= 0 for t in times["tests"])


def endings_are_failures():
    """a test that prints nothing, or ends badly without a failed case, has failed"""
    for text, why in (("", "it ran no case"), (PASSES + "import sys\nsys.exit(3)\n", "exit code 3"), (PASSES + "import os\nos.kill(os.getpid(), 9)\n", "exit code -9")):
        with tree(test_a=text) as root:
            done = run(root)
            assert done.code == 1 and why in done.out and "1 failed" in done.out, done


def chosen_by_words():
    """T: folders, files and names of tests; a word that matches nothing is one line with its like"""
    with tree(ctl__test_top=PASSES, fault__test_kill=PASSES) as root:
        for words, n in (("ctl", 1), ("ctl fault", 2), ("tests/ctl/test_top.py", 1), ("test_kill", 1), ("ctl/test_t", 1)):
            done = run(root, T=words)
            assert done.code == 0 and done.out.rstrip().endswith(f"{n} passed, 0 failed"), (words, done)
        done = run(root, T="ctl test_tap")
        assert done.code != 0 and done.err == "make test: no test matches T=test_tap; did you mean test_top, ctl/test_top.py?\n" and not done.out, done


def sets():
    """slow files, and files with slow cases, are those of `make test-slow`; a slow file has all its cases there, and one without any fails"""
    tells = "import os\nprint('1..1')\nprint('ok 1 - ' + os.environ['TITAN_TEST_SET'])\n"
    marked = "text = \'\'\'\nfrom titan import slow, tap\n\'\'\'\n"
    with tree(test_a=tells, test_b="# `make test-slow` runs it.\n" + tells, test_c=marked + tells, test_d="def slow():\n    return 1\n\n\nslow()\n" + tells) as root:
        ran = {}
        for name in ("fast", "slow", "all"):
            assert run(root, TITAN_TEST_SET=name).code == 0
            ran[name] = {log.name[5]: log.read_text().split()[-1] for log in (root / "build/test-results").glob("*.log")}
        assert ran == {"fast": {"a": "fast", "c": "fast", "d": "fast"}, "slow": {"b": "all", "c": "slow"},
                       "all": {"a": "all", "b": "all", "c": "all", "d": "all"}}, ran
    with tree(test_a=marked + "print('1..0')\n") as root:
        assert run(root).code == 0
        done = run(root, TITAN_TEST_SET="slow")
        assert done.code == 1 and "it ran no case" in done.out, done


def repeated_under_load():
    """REPEAT runs each test so often, LOAD beside busy processes, which end with it"""
    counts = "import os\nos.close(os.open(os.environ['TOLD'] + str(os.getpid()), os.O_CREAT))\n" + PASSES
    with tree(test_a=counts) as root:
        done = run(root, REPEAT="3", LOAD="2")
        assert done.code == 0 and done.out.rstrip().endswith("3 passed, 0 failed"), done
        assert len(list(root.glob("told*"))) == 3


def ended(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    return True


def left_behind_is_ended():
    """a process that a test leaves behind, in a session of its own, is named and ended"""
    with tree(test_a=LEAVES) as root:
        done = run(root)
        pid = (root / "told").read_text()
        assert done.code == 0 and f"left behind: {pid} sh -c" in done.out, done
        assert ended(pid)


def stopped_with_all():
    """Ctrl-C and SIGTERM to the runner, and its end by SIGKILL: all that it has started ends"""
    for how in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with tree(test_a=WAITS) as root:
            process = subprocess.Popen([sys.executable, root / "tests/run.py"], env=environment(root, LOAD="1"), stdout=subprocess.PIPE, text=True)
            until("the test runs", (root / "told").exists)
            process.send_signal(how)
            out, _ = process.communicate(timeout=deadline())
            assert process.returncode == (-9 if how == signal.SIGKILL else 130), (process.returncode, out)
            for pid in (root / "told").read_text().split():
                until(f"{pid} has ended after {how.name}", lambda: ended(pid))


def one_at_a_time():
    """two runs in one build folder: the second is refused in one line, another folder is free"""
    with tree(test_a=WAITS, test_b=PASSES) as root:
        first = subprocess.Popen([sys.executable, root / "tests/run.py"], env=environment(root, T="test_a"), stdout=subprocess.PIPE)
        until("the first runs", (root / "told").exists)
        done = run(root, T="test_b")
        assert done.code == 1 and done.err.startswith("make test: tests already run in build: ") and done.err.count("\n") == 1, done
        assert run(root, T="test_b", BUILD="other").code == 0
        first.terminate()
        first.communicate(timeout=deadline())


def full_disk():
    """a disk with hardly any room under the build folder: one line"""
    with tree(test_a=PASSES) as root:
        (root / "build").mkdir()
        if command("mount", "-t", "tmpfs", "-o", "size=1m", "none", root / "build").code != 0:
            return "cannot mount"
        try:
            done = run(root)
            assert done.code == 1 and done.err == "make test: build: 1 MiB are free; a build and its tests want 256\n" and not done.out, done
        finally:
            command("umount", "-l", root / "build")
    return None


tap(results_are_counted, endings_are_failures, chosen_by_words, sets, repeated_under_load, left_behind_is_ended, stopped_with_all, one_at_a_time, full_disk)
