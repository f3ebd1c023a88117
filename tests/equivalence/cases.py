"""The cases of the matrix (matrix.py says how they are written)."""
from itertools import combinations

from matrix import Case

ONES = ["pp2", "pp4", "dpr2", "dpr4", "dps2", "dps4", "dps8 batch=16", "cp2", "cp4", "cp8 seq=64", "cp2 rotate=ring",
        "cp4 rotate=ring", "cp2 balance=false", "cp4 balance=false", "cp2 rotate=ring balance=false",
        "cp4 rotate=ring balance=false", "tp2", "tp4 heads=8 kv=4", "tp8 heads=8 kv=8"]


def pairs():
    words = ["pp2", "dpr2", "dps2", "cp2", "cp2 rotate=ring", "tp2"]
    for a, b in combinations(words, 2):
        if a.split()[0] != b.split()[0]:
            yield f"{a} {b}"
    # eight processes: one of the two is 4 wide
    yield from ("pp4 dpr2", "pp2 dps4", "pp4 cp2", "pp2 tp4 heads=8 kv=4", "dpr2 dps4", "dpr4 dps2", "dpr2 cp4",
                "dpr2 tp4 heads=8 kv=4", "dps2 cp4", "dps4 cp2 rotate=ring", "dps4 tp2", "dps2 tp4 heads=8 kv=4",
                "cp4 tp2", "cp2 tp4 heads=8 kv=4", "cp4 rotate=ring tp2", "pp2 cp4 rotate=ring", "pp4 tp2")


SINGLE = ["GPipe", "1F1B", "ZB1P"]
LOOPED = ["Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble"]
V = ["ZBVZeroBubble", "DualPipeV"]


def schedules():
    for name in SINGLE + LOOPED + V:
        yield f"pp2 schedule={name}"
        yield f"pp4 layers=8 schedule={name}"
        yield f"pp2 dps2 tp2 schedule={name}"
        yield f"pp2 batch=7 schedule={name}"  # no multiple of the stages
        yield f"pp4 batch=3 layers=8 schedule={name}"  # fewer than stages
    for name in LOOPED:
        yield f"pp2 layers=6 per_stage=1 less_first=0 less_last=0 schedule={name}"  # three stages a rank
    for seed in (1, 2, 3):
        yield f"pp2 csv=single:{seed}"
        yield f"pp4 layers=8 csv=loop:{seed}"
        yield f"pp2 dps2 csv=v:{seed}"
    yield "pp2 split=1 layers=4"
    yield "pp4 split=1,2,5 layers=6"
    yield "pp2 split=1,2,3 layers=4 schedule=ZBVZeroBubble"


def all_cases():
    lines = [*ONES, *pairs(), *schedules()]
    return [Case(words) for words in lines]
