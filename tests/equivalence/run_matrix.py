#!/usr/bin/env python3
"""The whole matrix: every case of cases.py against one rank, two at a time. Prints a table and closes with
'N passed, N failed'.
    run_matrix.py [--only REGEX] [--case 'WORDS'] [--jobs 2] [--keep]"""
import argparse
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import cases
import matrix


def print_outcome(o):
    name = o.case.words + (f" [bits of {o.case.exact}]" if o.case.exact else "")
    print(f"{'ok  ' if not o.faults else 'FAIL'} {name:<72} {o.case.mesh_text():<32} {o.loss:9.1e} {o.gradient:9.1e} "
          f"{o.sgd:9.1e} {o.adamw:9.1e} {o.seconds:6.1f}", flush=True)
    for fault in o.faults:
        print("     " + fault.replace("\n", "\n     "), flush=True)


def arguments():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--only", default="", help="cases whose words match")
    p.add_argument("--case", action="append", help="these words and nothing else")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--keep", action="store_true", help="leave the folder of the runs")
    return p.parse_args()


def main():
    args = arguments()
    chosen = [matrix.Case(w) for w in args.case] if args.case else [c for c in cases.all_cases()
                                                                    if re.search(args.only, c.words)]
    lab = matrix.Lab(args.keep)
    passed = failed = 0
    print(f"     {'case':<72} {'mesh':<32} {'loss':>9} {'gradient':>9} {'par. SGD':>9} {'AdamW':>9} {'s':>6}")
    with ThreadPoolExecutor(args.jobs) as pool:
        for o in pool.map(lambda c: matrix.check(lab, c), chosen):
            print_outcome(o)
            failed += bool(o.faults)
            passed += not o.faults
    lab.close()
    print(f"{passed} passed, {failed} failed")
    return failed > 0 or passed == 0


if __name__ == "__main__":
    sys.exit(main())
