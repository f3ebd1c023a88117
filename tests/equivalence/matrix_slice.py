# SPDX-License-Identifier: Apache-2.0
"""Some cases of the matrix as a test (run_matrix.py has all of it): a TAP line for each case and for each recipe that must be refused."""
import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor

import draws
import matrix


def run(cases, same_bits, drawn, refusals):
    """Cases by their words, pairs of words with the same bits, so many recipes drawn at random, every so many-th of those to be refused."""
    seed = int(os.environ.get("TITAN_TEST_SEED", 1))
    print(f"# TITAN_TEST_SEED={seed}")
    lab = matrix.Lab()
    chosen = [matrix.Case(words) for words in cases] + [matrix.Case(words, exact) for words, exact in same_bits]
    chosen += [draws.draw(random.Random(f"{seed}:{i}"), most=4) for i in range(drawn)]
    refused = list(draws.refusals())[seed % refusals::refusals] + [draws.draw_refusal(random.Random(f"{seed}:no:{i}")) for i in range(drawn)]
    count = failed = 0

    def tell(fault, what):
        nonlocal count, failed
        count += 1
        failed += bool(fault)
        print(f"{'not ok' if fault else 'ok'} {count} - {what}", flush=True)
        if fault:
            print("# " + fault.replace("\n", "\n# "), flush=True)

    with ThreadPoolExecutor(2) as pool:
        for o in pool.map(lambda case: matrix.check(lab, case), chosen):
            errors = f"loss {o.loss:.1e}, gradients {o.gradient:.1e}, parameters {o.sgd:.1e} (SGD) {o.adamw:.1e} (AdamW)"
            tell("\n".join(o.faults), f"{o.case.words}: {errors}")
        for refusal, fault in zip(refused, pool.map(lambda r: draws.refuse(lab, r), refused)):
            tell(fault, f"refused: {refusal.name}")
    lab.close()
    print(f"1..{count}")
    sys.exit(failed > 0)
