#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No test counts on how fast the machine is (timing.py), and timing.py would find one that does."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import timing  # noqa: E402
from titan import tap  # noqa: E402

WRONG = {
    "x.py": ["import time\ntime.sleep(1)", "from time import sleep\nsleep(0.1)", "p.wait(10)", "s.settimeout(20)", "run(a, timeout=5)", "p.communicate(timeout=60)",
             "LIMIT_S = 60\nrun(a, timeout=LIMIT_S)", "t.join(3)", "select.select([f], [], [], 5)", "assert took < 5", "assert time.monotonic() - begin < 5",
             "ok(time.monotonic() - begin < 5)", "while time.perf_counter() < end:\n    pass", "assert s['step_ms'] <= 20 and x", "assert 0.4 < elapsed_s < 5"],
    "x.c": ["usleep(10);", "(void)nanosleep(&t, NULL);", "sleep(5);", "alarm(20);", "assert_true(clock_mono_ns() - began < 1000);", "assert_true(a &&\n    b > clock_mono_ms());"],
    "x.sh": ["sleep 1", "while true; do sleep 0.1; done", "timeout 60 make", "A=1 timeout -k 5 300 x"],
}
RIGHT = {
    "x.py": ["until('it is', f, 20)", "p.wait(deadline())", "p.wait()", "s.settimeout(0)", "run(a, timeout=deadline(60))", "d.ctl('list', timeout=20)", "pause(1, 'a lease')",
             "assert at_ms('x') == 5", "assert m['step_ms'] > 0", "x = 'time.sleep(5)'", "', '.join(a)", "assert a < b", "time.sleep(1)  # timing: a fake device",
             "assert (a and\n        took < 5)  # timing: a bound of the protocol"],
    "x.c": ["AWAIT(x);", "/* usleep(1); */", "alarm(0);", "alarm(limit()); /* timing: against hanging */", 'puts("sleep(1)");', "usleep(1); /* timing: a fake device */",
            "assert_true(page_watch_sleep(x));", "int64_t end = clock_mono_ns();",
            "assert_true(clock_mono_ns() - began >= 30);", "alarm((unsigned)patience_ms(60) / 1000);"],
    "x.sh": ["wait", "timeout 600 make", "# sleep 1", "sleep 1 # timing: a fake card", "titanctl wait --timeout 5"],
}


def wrong_is_found():
    """sleeps, fixed limits and judgements of time are found, in Python, C and the shell"""
    missed = [(name, text) for name, texts in WRONG.items() for text in texts if not list(timing.check(name, text + "\n"))]
    assert not missed, f"not found: {missed}"


def right_passes():
    """what is awaited, stretched or excused with a reason passes"""
    found = [line for name, texts in RIGHT.items() for text in texts for line in timing.check(name, text + "\n")]
    assert not found, found


def excuses_are_used():
    """an excuse without a reason is none, one that excuses nothing is in the way"""
    assert list(timing.check("x.sh", "sleep 1 # timing: \n"))
    assert list(timing.check("x.py", "x = 1  # timing: no longer\n")) == ["x.py:1: excuses nothing"]


def tests_count_on_nothing():
    """no test counts on how fast the machine is"""
    found = timing.problems()
    assert not found, "\n" + "\n".join(found)


tap(wrong_is_found, right_passes, excuses_are_used, tests_count_on_nothing)
