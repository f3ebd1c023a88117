#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The whole matrix: every case of cases.py and recipes drawn at random against one rank, two at a time, and what must
be refused. Prints a table and closes with 'N passed, N failed'.
    run_matrix.py [--seed N] [--draws 200] [--only REGEX] [--case 'WORDS'] [--jobs 2] [--keep]"""
import argparse
import random
import re
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import cases
import draws
import matrix


class Table:
    def __init__(self):
        self.passed = self.failed = 0

    def line(self, faults, text):
        self.passed += not faults
        self.failed += bool(faults)
        print(f"{'FAIL' if faults else 'ok  '} {text}", flush=True)
        for fault in faults:
            print("     " + fault.replace("\n", "\n     "), flush=True)

    def title(self, text):
        print(f"     {text:<72} {'mesh':<32} {'loss':>9} {'gradient':>9} {'par. SGD':>9} {'AdamW':>9} {'s':>6}")

    def outcome(self, o):
        name = o.case.words + (f" [bits of {o.case.exact}]" if o.case.exact else "")
        if len(name) > 72:  # a draw has many words
            name = f"{name}\n     {'':<72}"
        self.line(o.faults, f"{name:<72} {o.case.mesh_text():<32} {o.loss:9.1e} {o.gradient:9.1e} {o.sgd:9.1e} "
                            f"{o.adamw:9.1e} {o.seconds:6.1f}")


def arguments():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    p.add_argument("--draws", type=int, help="recipes drawn at random (200; none with --only)")
    p.add_argument("--only", default="", help="cases with words that match")
    p.add_argument("--case", action="append", help="these words and nothing else")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--keep", action="store_true", help="leave the folder of the runs")
    args = p.parse_args()
    if args.draws is None:
        args.draws = 0 if args.only or args.case else 200
    return args


def chosen(args):
    if args.case:
        return [matrix.Case(words) for words in args.case]
    return [case for case in cases.all_cases() if re.search(args.only, case.words)]


def main():
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = time.monotonic()
    lab, table = matrix.Lab(args.keep), Table()
    drawn = [draws.draw(random.Random(f"{args.seed}:{i}")) for i in range(args.draws)]
    wrong = list(draws.refusals()) if args.draws else []
    wrong += [draws.draw_refusal(random.Random(f"{args.seed}:no:{i}")) for i in range(args.draws // 4)]
    print(f"SEED={args.seed} DRAWS={args.draws}")
    with ThreadPoolExecutor(args.jobs) as pool:
        for title, some in (("case", chosen(args)), ("drawn at random", drawn)):
            if some:
                table.title(title)
            for outcome in pool.map(lambda case: matrix.check(lab, case), some):
                table.outcome(outcome)
        if wrong:
            print("     refused")
        for refusal, fault in zip(wrong, pool.map(lambda r: draws.refuse(lab, r), wrong)):
            table.line([fault] if fault else [], refusal.name)
    lab.close()
    print(f"{args.draws} draws from SEED={args.seed}, {time.monotonic() - started:.0f} s")
    print(f"{table.passed} passed, {table.failed} failed")
    return table.failed > 0 or table.passed == 0


if __name__ == "__main__":
    sys.exit(main())
