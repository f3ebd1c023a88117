#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A slice of the matrix (run_matrix.py has all of it): every axis, schedule family, pass and kind of model once, a few
recipes drawn at random and a few that must be refused. SEED=n draws others."""
import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor

import draws
import matrix

CASES = ["pp2", "dpr2", "dps2", "cp2", "cp2 rotate=ring", "tp2", "moe dps2 ep2",
         "pp2 dps2 tp2 schedule=Interleaved1F1B async=true",
         "pp2 cp2 rotate=ring masked=true schedule=ZBVZeroBubble ac=selective:op", "pp4 layers=8 schedule=DualPipeV",
         "pp2 dps2 csv=loop:1", "dps3 reduce=microbatch bucketing=greedy", "dpr2 dps2 offload=true reshard=always",
         "moe pp2 dps2 tp2 ep4 schedule=ZB1P", "moe tp2 rows=2 batch=2 seq=66 async=true",
         "deepseek dps2 tp2 ep2 ac=full experts=8 top_k=3 groups=4 limited=2 nope=13 value_dim=11 rope=yarn original=8",
         "qwen dps2 cp2 tp2 chunks=3",
         "pp2 batch=7 schedule=InterleavedZeroBubble ac=memory_budget:0.4", "pp2 schedule=LoopedBFS reshard=never",
         "pp4 layers=2 ac=selective:2", "pp2 layers=2 schedule=GPipe split=2",
         "pp2 layers=2 schedule=Interleaved1F1B", "dps4 bucketing=off reorder=false prefetch=0"]
SAME_BITS = [("moe dps2 ep2 experts=2 top_k=1 rate=1 seq=384 batch=2 room=0.25",
              "moe dps2 ep2 experts=2 top_k=1 rate=1 seq=384 batch=2"),
             ("canonical=true dps3", "canonical=true"), ("float8=true canonical=true codes=true dps3", "float8=true canonical=true"),
             ("canonical=true tp2 dpr2", "canonical=true tp2"),
             ("moe canonical=true batch=12 dps4 ep2", "moe canonical=true batch=12"),
             ("deepseek canonical=true tp2 dps2 ep4", "deepseek canonical=true tp2"),
             ("moe dps2 ep2 ac=selective:op:1 fuse=false", "moe dps2 ep2 ac=selective:op:1"),
             ("pp2 schedule=ZBVZeroBubble ac=full fuse=false", "pp2 schedule=ZBVZeroBubble ac=full")]
DRAWS = 5
count = failed = 0


def ok(fault, what):
    global count, failed
    count += 1
    failed += bool(fault)
    print(f"{'not ok' if fault else 'ok'} {count} - {what}", flush=True)
    if fault:
        print("# " + fault.replace("\n", "\n# "), flush=True)


seed = int(os.environ.get("SEED", 1))
print(f"# SEED={seed}")
lab = matrix.Lab()
chosen = [matrix.Case(words) for words in CASES] + [matrix.Case(words, exact) for words, exact in SAME_BITS]
chosen += [draws.draw(random.Random(f"{seed}:{i}"), most=4) for i in range(DRAWS)]
refused = list(draws.refusals())[seed % 5::5] + [draws.draw_refusal(random.Random(f"{seed}:no:{i}")) for i in range(DRAWS)]
with ThreadPoolExecutor(2) as pool:
    for o in pool.map(lambda case: matrix.check(lab, case), chosen):
        errors = f"loss {o.loss:.1e}, gradients {o.gradient:.1e}, parameters {o.sgd:.1e} (SGD) {o.adamw:.1e} (AdamW)"
        ok("\n".join(o.faults), f"{o.case.words}: {errors}")
    for refusal, fault in zip(refused, pool.map(lambda r: draws.refuse(lab, r), refused)):
        ok(fault, f"refused: {refusal.name}")
lab.close()
print(f"1..{count}")
sys.exit(failed > 0)
