#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make attack`: the scenes, then ROUNDS mutated messages (tests/attack/arena.py says what must hold). Closes with 'N passed, N failed'.

    run_attack.py [--rounds N] [--seed N] [--only NAME,...] [--ways client,nobody,agent,worker,peer,held]"""
import argparse
import inspect
import random
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import protocol  # noqa: E402


def say(text):
    print(text, flush=True)


def run_scenes(only):
    """(passed, failed). Those that take an arena share one; a failure ends it, and the next has a fresh one."""
    from arena import Arena
    from scenes import SCENES
    passed = failed = 0
    arena = None
    try:
        for name, run in SCENES:
            if only and name not in only:
                continue
            begin = time.monotonic()
            try:
                if "a" in inspect.signature(run).parameters:
                    arena = arena or Arena().__enter__()
                    skip = run(arena)
                else:
                    skip = run(None)
                passed += not skip
                say(f"ok {name}: {run.__doc__}" + (f" # SKIP {skip}" if skip else f" ({1000 * (time.monotonic() - begin):.0f} ms)"))
            except Exception:
                failed += 1
                say(f"not ok {name}: {run.__doc__}\n# " + traceback.format_exc().replace("\n", "\n# "))
                if arena:
                    arena, over = None, arena
                    over.__exit__(None)
    finally:
        if arena:
            arena.__exit__(None)
    return passed, failed


ENOUGH = 40  # messages for each field there is: a way that sent fewer need not have met all of them


def never_tried(ends):
    """{way: fields that no message of it changed}, of ways that are through and sent enough."""
    return {way: end["untried"] for way, end in ends.items() if end["untried"] and end["done"] >= ENOUGH * end["fields"]}


def storm(seed, rounds, ways, seconds=None):
    """What it came to, in words; raises when something does not hold."""
    from arena import Secured, Storm
    with Secured() as a:
        a.measure()
        s = Storm(a, seed, rounds, ways, say=say)
        try:
            n = s.run(seconds)
        finally:
            for way, end in s.ends.items():
                say(f"# {way}: {end['done']} messages, {end['fields'] - len(end['untried'])} of {end['fields']} fields mutated; "
                    + ", ".join(f"{what} {k}" for what, k in end["seen"][:12]))
        assert not never_tried(s.ends), f"fields that were never mutated: {never_tried(s.ends)}"
        held = a.bounded()
        a.trains_on()
        steps = a.undisturbed()
        a.canary.check()
        return f"{n} messages; run beside: {steps} steps, all losses as undisturbed; " + "; ".join(f"{d} {h}" for d, h in held.items())


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=100000)
    p.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    p.add_argument("--only", default="")
    p.add_argument("--ways", default="")
    o = p.parse_args()
    if protocol.absent:
        sys.exit(f"make attack: {protocol.absent}")
    say(f"# SEED={o.seed}")
    passed, failed = run_scenes([n for n in o.only.split(",") if n])
    if not o.only:
        try:
            say("ok storm: " + storm(o.seed, o.rounds, [w for w in o.ways.split(",") if w]))
            passed += 1
        except Exception:
            failed += 1
            say("not ok storm\n# " + traceback.format_exc().replace("\n", "\n# "))
    say(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
