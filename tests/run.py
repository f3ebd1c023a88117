#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds and runs tests, several side by side, and closes with 'N passed, N failed': `make test` and `make test-slow`.

The environment says what to run; make passes its variables on:
  BUILD=build     the folder of the build
  TITAN_TEST_SET  fast: `make test`; slow: what takes more than 20 s or wants a quiet machine; all
  T='ctl fault'   tests with a path that begins with a word, or of that name
  CHANGED=1       what a change against the last commit (or against CHANGED=REVISION) can touch
  JOBS=4          tests side by side; two for each processor by default, as most of them wait
  LOAD=4          so many busy processes beside the tests, and one that writes to the disk
  REPEAT=10       each test so often
  LIMIT=600       seconds for one test, against hanging; more on a slow or busy machine
  TITAN_TEST_SEED what randomised tests draw from

A test is a program (tests/**/test_*.c) or a script (test_*.py, test_*.sh) that prints TAP. Each has a process of its own above it, which adopts
what the test leaves behind and ends it. Logs are in BUILD/test-results, times in BUILD/test-times.json.
"""
import contextlib
import ctypes
import difflib
import errno
import fcntl
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/support"))
from patience import patience, slowness  # noqa: E402

BUILD = Path(os.environ.get("BUILD") or "build")
OUT = BUILD / "test-results"
PYTHON = os.environ.get("PYTHON") or sys.executable
LIMIT = float(os.environ.get("LIMIT") or 600)
SHOWN = 30  # lines of a test that failed
FREE_MIB = 256
GRACE = 20  # seconds for a test to end by itself when it is told to
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
libc = ctypes.CDLL(None)


class Refused(Exception):
    """What was asked for cannot be done; the message says why."""


def say(line):
    print(line, flush=True)


# --- which tests -----------------------------------------------------------------------------------------------------------

def every_test():
    """Names of all: the path of a script, the path of a program's source without .c."""
    found = [p.relative_to(ROOT) for p in sorted((ROOT / "tests").rglob("test_*"))]
    return [str(p.with_suffix("") if p.suffix == ".c" else p) for p in found if p.suffix in (".c", ".py", ".sh")]


def source_of(test):
    return ROOT / (test if test.endswith((".py", ".sh")) else test + ".c")


def slow_as_a_whole(test):
    """Its head names `make test-slow`."""
    return "make test-slow" in "\n".join(source_of(test).read_text().splitlines()[:12])


# A file of both sets: a script marks its slow cases by slow of titan.py, imported or by its full name, a program by those of sets.h.
MARKS = {".py": r"^@titan\.slow$|^from titan import .*\bslow\b", ".c": r"\b(slow|longer)\(", ".sh": r"(?!)"}


def in_set(test, wanted):
    if wanted == "slow":
        source = source_of(test)
        return slow_as_a_whole(test) or re.search(MARKS[source.suffix], source.read_text(), re.M) is not None
    return wanted == "all" or not slow_as_a_whole(test)


def matching(tests, words):
    chosen = []
    for word in words:
        bare = re.sub(r"^(%s/)?(tests/)?" % re.escape(str(BUILD)), "", word)
        hits = [t for t in tests if t.removeprefix("tests/").startswith(bare) or Path(t).stem == bare]
        if not hits:
            near = difflib.get_close_matches(bare, [n for t in tests for n in (Path(t).stem, t.removeprefix("tests/"))], 3)
            raise Refused(f"no test matches T={word}" + (f"; did you mean {', '.join(near)}?" if near else "; tests/ has them"))
        chosen += [t for t in hits if t not in chosen]
    return chosen


def choose():
    """The tests, in the order they were found or nearest to the change, and what make has to build for them."""
    wanted = os.environ.get("TITAN_TEST_SET") or "fast"
    tests, targets = every_test(), None
    if os.environ.get("CHANGED"):
        tests, targets = touched("HEAD" if os.environ["CHANGED"] == "1" else os.environ["CHANGED"])
    if os.environ.get("T", "").strip():
        tests, targets = matching(tests, os.environ["T"].split()), None
    tests = [t for t in tests if in_set(t, wanted)]
    if targets is None:  # scripts need the programs and helpers of all kinds; test programs alone are linked by their names
        programs = [str(BUILD / t) for t in tests if not t.endswith((".py", ".sh"))]
        targets = ["tests"] if len(programs) < len(tests) else programs
    if wanted != "fast" and any(t.startswith("tests/cuda/") for t in tests):
        targets.append("cuda-tests")
    return tests, targets


def touched(revision):
    """By changed.py, from what the build knows of includes and symbols: the build comes first."""
    import changed
    try:
        paths = changed.changed_paths(revision)
    except subprocess.CalledProcessError:
        raise Refused(f"CHANGED={revision} is no commit of this tree") from None
    if not paths:
        say(f"changed: nothing differs from {revision}")
        return [], []
    built = (BUILD / "obj/tests").exists()
    if not built:
        say(f"changed: no tests are built in {BUILD} yet: everything is built first")
    make("all" if built else "tests")
    tests, targets, notes = changed.choose(paths, BUILD)
    for note in notes:
        say(f"changed: {note}")
    return [t.removeprefix(f"{BUILD}/") for t in tests], targets


# --- the build -------------------------------------------------------------------------------------------------------------

def make(*targets):
    code = subprocess.run(["make", "--no-print-directory", f"-j{processors()}", *targets], cwd=ROOT).returncode
    if code:
        sys.exit(code)


def processors():
    return len(os.sched_getaffinity(0))


# --- one test --------------------------------------------------------------------------------------------------------------

def command_of(test):
    if test.endswith(".py"):
        return [PYTHON, test]
    return ["bash", test] if test.endswith(".sh") else [str(BUILD / test)]


def shown_command(test):
    words = [f"{k}={os.environ[k]}" for k in ("TITAN_TEST_SEED",) if k in os.environ]
    return " ".join([f"BUILD={BUILD}", *words, *command_of(test)])


def children(pid):
    try:
        return [int(c) for task in os.listdir(f"/proc/{pid}/task") for c in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    except OSError:
        return []


def descendants(pid):
    below = children(pid)
    for child in below:
        below += children(child)
    return below


def reap(block=False):
    """(pid, status) of children that have ended; all of them when block."""
    ended = []
    while True:
        try:
            pid, status = os.waitpid(-1, 0 if block else os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status))


def end_descendants():
    """All that comes from this process, however it has detached itself: it is given to this process when its parent ends."""
    left = []
    while below := descendants(os.getpid()):
        for pid in below:
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
            if line:
                left.append(f"{pid} {line[:100]}")
        reap(block=True)
    return left


def supervise(test, log, result, folder):
    """In a process of its own: run the test, end what it leaves behind, write down how it went."""
    os.setpgid(0, 0)  # a Ctrl-C is for the runner, which lets each test end in order
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    events = (signal.SIGCHLD, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_SETMASK, events)
    begin, status, told, hung = time.monotonic(), None, None, False
    with open(log, "wb") as out:
        process = subprocess.Popen(command_of(test), cwd=ROOT, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                                   env={**os.environ, "TMPDIR": str(folder), "TITAN_TEST_SET": "all" if slow_as_a_whole(test) else os.environ["TITAN_TEST_SET"]},
                                   preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, ()))
    main = process.pid  # the object stays: without it Python itself would wait for the process
    while status is None:
        event = signal.sigtimedwait(events, 1)
        for pid, code in reap():
            status = code if pid == main else status
        took = time.monotonic() - begin
        if told is None and (event and event.si_signo == signal.SIGTERM or took > LIMIT * patience()):
            told, hung = time.monotonic(), not event or event.si_signo != signal.SIGTERM
            os.kill(main, signal.SIGTERM)
        if told is not None and time.monotonic() - told > GRACE:
            break
    took = time.monotonic() - begin
    left = end_descendants()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    result.write_text(json.dumps({
        "test": test, "set": os.environ["TITAN_TEST_SET"], "code": 137 if status is None else os.waitstatus_to_exitcode(status), "hung": hung, "left": left,
        "wall_s": round(took, 3), "processor_s": round(used.ru_utime + used.ru_stime, 3)}))


def start(test, number, folder):
    """The process above the test."""
    name = test.removeprefix("tests/").replace("/", "_") + (f".{number}" if number else "")
    log, result = OUT / f"{name}.log", OUT / f"{name}.json"
    folder.mkdir()
    folder.chmod(0o1777)  # some tests become other users
    pid = os.fork()
    if pid:
        return pid, log, result, folder
    code = 1
    try:
        supervise(test, log, result, folder)
        code = 0
    except BaseException as e:
        print(f"{test}: {e}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def read_tap(text):
    """Counts, and the cases with their seconds where the test tells them."""
    passed = failed = skipped = 0
    cases = []
    for line in text.splitlines():
        if made := re.match(r"\s*(not )?ok\b[\s\d]*-?\s*(.*)", line, re.I):
            # cmocka marks a skipped test "not ok N # SKIP".
            skip = re.search(r"# *skip", line, re.I)
            skipped, failed, passed = skipped + bool(skip), failed + bool(made[1] and not skip), passed + (not made[1] and not skip)
            cases.append({"case": made[2]})
        elif (took := re.match(r"# ([\d.]+) s, ([\d.]+) s of a processor", line)) and cases:
            cases[-1].update(wall_s=float(took[1]), processor_s=float(took[2]))
    return passed, failed, skipped, [c for c in cases if "wall_s" in c]


def finish(test, log, result, folder):
    """How the test went; says it."""
    text = log.read_text(errors="replace") if log.exists() else ""
    try:
        done = json.loads(result.read_text())
    except (OSError, ValueError):
        done = {"test": test, "set": os.environ["TITAN_TEST_SET"], "code": -1, "hung": False, "left": [], "wall_s": 0, "processor_s": 0}
        text += "the process above the test has ended\n"
    passed, failed, skipped, cases = read_tap(text)
    why = ""
    if done["hung"]:
        why, failed = f"it hung for {done['wall_s']:.0f} s", max(failed, 1)
    elif done["code"] and not failed:
        why, failed = f"exit code {done['code']} without a failed case", 1
    elif not done["code"] and not (passed or failed or skipped) and (os.environ["TITAN_TEST_SET"] != "fast" or not re.search(r"^1\.\.0\b", text, re.M)):
        why, failed = "it ran no case", 1
    done.update(passed=passed, failed=failed, skipped=skipped, waiting_s=round(max(0, done["wall_s"] - done["processor_s"]), 3), cases=cases)
    times = f"{done['wall_s']:7.2f} s, {done['processor_s']:6.2f} s of a processor"
    if failed:
        say(f"FAIL {test}: {why or f'{failed} failed'}, {times.strip()}\n     again: {shown_command(test)}\n     log: {log}")
        say("".join(f"    {line}\n" for line in text.splitlines()[-SHOWN:]).rstrip())
    elif passed or skipped:
        reason = re.search(r"# *skip *(.*)", text, re.I)
        skips = f", {skipped} skipped ({reason[1]})" if skipped else ""
        say(f"ok   {test.removeprefix('tests/'):<52} {passed:4d} passed {times}{skips}")
    if done["left"]:
        say(f"     {test} left behind: {'; '.join(done['left'])}")
    remove(folder)
    return done


def remove(folder):
    """A test that was ended may have left file systems mounted there."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for place in reversed([m for m in mounts if m.startswith(f"{folder}/")]):
        subprocess.run(["umount", "-l", place], stderr=subprocess.DEVNULL)
    shutil.rmtree(folder, ignore_errors=True)


# --- all tests -------------------------------------------------------------------------------------------------------------

def start_load(n, folder):
    """Busy processes at normal priority, and a writer with an fsync for each 32 MiB. Their process ids."""
    def busy():
        while True:
            pass

    def write():
        block = os.urandom(1 << 20)
        with open(folder / "load", "wb") as f:
            while True:
                f.seek(0)
                for _ in range(32):
                    f.write(block)
                f.flush()
                os.fsync(f.fileno())

    pids = []
    for work in [busy] * n + [write]:
        pid = os.fork()
        if pid == 0:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            try:
                work()
            finally:
                os._exit(1)
        pids.append(pid)
    return pids


def known_times():
    """Rows of the table of times that runs before have left; none of a table of another form."""
    try:
        rows = json.loads((BUILD / "test-times.json").read_text())["tests"]
        return [r for r in rows if {"test", "set", "wall_s"} <= r.keys()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def in_order(tests):
    """The longest first, so that no processor is left over at the end: by the times of runs before, without them scripts before programs."""
    known = {t["test"]: t["wall_s"] for t in known_times() if t["set"] == os.environ["TITAN_TEST_SET"]}
    return sorted(tests, key=lambda t: -known.get(t, 30 if t.endswith((".py", ".sh")) else 1))


class Stopped(BaseException):
    """The runner was told to end."""


def run(tests, folder):
    """Results of all, in the order in which they ended."""
    jobs = int(os.environ.get("JOBS") or 2 * processors())
    repeat = int(os.environ.get("REPEAT") or 1)
    queue = [(t, n) for n in range(repeat) for t in (tests if os.environ.get("CHANGED") else in_order(tests))]
    running, results = {}, []

    def stop(*_):
        raise Stopped

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    load = start_load(int(os.environ["LOAD"]), folder) if os.environ.get("LOAD") else []
    started = 0
    try:
        while queue or running:
            while queue and len(running) < jobs:
                item = queue.pop(0)
                started += 1
                pid, *rest = start(*item, folder / str(started))
                running[pid] = (item[0], *rest)
            pid, _ = os.wait()
            if pid in running:
                results.append(finish(*running.pop(pid)))
    except Stopped:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        say(f"stopping: {len(running)} tests end")
        for pid in running:
            os.kill(pid, signal.SIGTERM)
        for pid in running:
            os.waitpid(pid, 0)
        raise
    finally:
        for pid in load:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    return results


def close(results, took):
    """The table of times, in which tests that did not run keep their rows; the slowest, what failed, the last line."""
    results.sort(key=lambda r: -r["wall_s"])
    total = {k: sum(r[k] for r in results) for k in ("passed", "failed", "skipped")}
    processor = sum(r["processor_s"] for r in results)
    ran = {(r["test"], r["set"]) for r in results}
    rows = sorted(results + [r for r in known_times() if (r["test"], r["set"]) not in ran], key=lambda r: (r["set"], -r["wall_s"]))
    (BUILD / "test-times.json").write_text(json.dumps({"processors": processors(), "slowness": round(slowness(), 2), "tests": rows}, indent=1) + "\n")
    if len(results) > 1:
        say("slowest: " + ", ".join(f"{r['test'].removeprefix('tests/')} {r['wall_s']:.0f} s" for r in results[:10]))
        say(f"took {took:.0f} s, {processor:.0f} s of {processors()} processors; by test: {BUILD}/test-times.json")
    for r in results:
        if r["failed"]:
            say(f"failed: {shown_command(r['test'])}")
    say(f"{total['passed']} passed, {total['failed']} failed" + (f", {total['skipped']} skipped" if total["skipped"] else ""))
    return 1 if total["failed"] else 0


def main():
    os.chdir(ROOT)
    os.environ.setdefault("TITAN_TEST_SET", "fast")
    OUT.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(OUT).free >> 20
    if free < FREE_MIB:
        raise Refused(f"{BUILD}: {free} MiB are free; a build and its tests want {FREE_MIB}")
    lock = open(OUT / ".lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Refused(f"tests already run in {BUILD}: wait for them, or give this run a folder of its own (BUILD=...)") from None
    tests, targets = choose()
    if not tests:
        say("nothing to run: no test of this set is touched or named")
        say("0 passed, 0 failed")
        return 0
    make(*targets)
    for old in [*OUT.glob("*.log"), *OUT.glob("*.json")]:
        old.unlink()
    drawn = "TITAN_TEST_SEED" not in os.environ
    os.environ.setdefault("TITAN_TEST_SEED", str(random.SystemRandom().randrange(1, 1 << 32)))
    os.environ.update(TITAN_ALLOW_ROOT="1", CMOCKA_MESSAGE_OUTPUT="TAP", BUILD=str(BUILD), PYTHON=PYTHON, TITAN_TEST_SLOWNESS=f"{slowness():.2f}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))  # as a login of Debian has
    say(f"{len(tests)} test{'s' * (len(tests) > 1)}, seed {os.environ['TITAN_TEST_SEED']}" + (" (TITAN_TEST_SEED=... draws the same)" if drawn else ""))
    folder = Path(tempfile.mkdtemp(prefix="tt-", dir="/tmp"))  # short: sockets are made in it
    folder.chmod(0o755)
    begin = time.monotonic()
    try:
        return close(run(tests, folder), time.monotonic() - begin)
    finally:
        remove(folder)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Refused as e:
        sys.exit(f"make test: {e}")
    except (Stopped, KeyboardInterrupt):
        say("stopped: what was started has ended")
        sys.exit(130)
    except OSError as e:
        if e.errno not in (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT):
            raise
        sys.exit(f"make test: {e.filename or OUT}: {e.strerror}")
