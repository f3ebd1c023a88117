# SPDX-License-Identifier: Apache-2.0
"""The cases of the matrix (matrix.py says how they are written)."""
from itertools import combinations

from matrix import Case

AXES = ["pp2", "pp4", "dpr2", "dpr4", "dps2", "dps4", "dps8 batch=16", "cp2", "cp4", "cp8 seq=64", "cp2 rotate=ring",
        "cp4 rotate=ring", "cp2 balance=false", "cp4 balance=false", "cp2 rotate=ring balance=false",
        "cp4 rotate=ring balance=false", "tp2", "tp4 heads=8 kv=4", "tp8 heads=8 kv=8",
        # Experts borrow their ranks: ep goes with the axis it borrows from.
        "moe dps2 ep2", "moe dps4 ep4", "moe dps4 ep2", "moe cp2 ep2", "moe cp4 ep4", "moe tp2 ep2",
        "moe dps8 ep8 experts=8 batch=16"]


def pairs():
    words = ["pp2", "dpr2", "dps2", "cp2", "cp2 rotate=ring", "tp2"]
    for a, b in combinations(words, 2):
        if a.split()[0] != b.split()[0]:
            yield f"{a} {b}"
    # eight processes: one of the two is 4 wide
    yield from ("pp4 dpr2", "pp2 dps4", "pp4 cp2", "pp2 tp4 heads=8 kv=4", "dpr2 dps4", "dpr4 dps2", "dpr2 cp4",
                "dpr2 tp4 heads=8 kv=4", "dps2 cp4", "dps4 cp2 rotate=ring", "dps4 tp2", "dps2 tp4 heads=8 kv=4",
                "cp4 tp2", "cp2 tp4 heads=8 kv=4", "cp4 rotate=ring tp2", "pp2 cp4 rotate=ring", "pp4 tp2")
    # and with experts
    yield from ("moe pp2 dps2 ep2", "moe dpr2 dps2 ep2", "moe dps2 cp2 ep2", "moe dps2 cp2 ep4", "moe dps2 tp2 ep2",
                "moe dps2 tp2 ep4", "moe cp2 tp2 ep2", "moe cp2 rotate=ring tp2 ep4", "moe pp2 cp2 ep2",
                "moe pp2 tp2 ep2", "moe dpr2 cp2 ep2", "moe dpr2 tp2 ep2")
    # experts cut over tp
    yield from ("moe tp2 etp=2", "deepseek tp2 etp=2", "moe dps2 tp2 etp=2", "moe dps2 tp2 ep2 etp=2", "moe cp2 tp2 ep2 etp=2",
                "moe pp2 tp2 etp=2 ac=full", "moe dps2 tp2 ep2 etp=2 ac=selective:op", "deepseek dps2 cp2 tp2 ep4 etp=2",
                "moe dpr2 dps2 tp2 ep2 etp=2 reduce=microbatch", "moe tp4 heads=8 kv=4 etp=4 fuse=false", "moe tp2 etp=2 async=true",
                "moe tp2 rows=2 batch=2 seq=66 async=true", "moe pp2 dps2 tp2 ep2 etp=2 schedule=ZBVZeroBubble", "moe dps2 tp2 ep2 etp=2 room=0.5 seq=512 batch=4")


def triples_and_more():
    for three in combinations(["pp2", "dpr2", "dps2", "cp2", "tp2"], 3):
        yield " ".join(three)
        if "cp2" in three:
            yield " ".join(three) + " rotate=ring masked=true"
    yield from ("moe pp2 dps2 tp2 ep2", "moe pp2 dps2 tp2 ep4", "moe pp2 dps2 cp2 ep4", "moe dpr2 dps2 tp2 ep4",
                "moe dps2 cp2 tp2 ep8 experts=8", "moe dps2 cp2 tp2 ep4", "moe dpr2 dps2 cp2 rotate=ring ep2",
                "moe pp2 cp2 tp2 ep4", "moe pp2 dpr2 dps2 ep2")
    # sixteen processes, and all axes at once
    for four in combinations(["pp2", "dpr2", "dps2", "cp2", "tp2"], 4):
        yield " ".join(four)
    yield from ("pp2 dpr2 dps2 cp2 tp2", "moe pp2 dps2 cp2 tp2 ep4 schedule=ZBVZeroBubble",
                "pp2 dps2 cp2 tp2 rotate=ring masked=true schedule=DualPipeV ac=full chunks=3",
                "moe pp2 dpr2 dps2 tp2 ep4 schedule=InterleavedZeroBubble ac=selective:op")


def rotation():
    """Parts of layers go round."""
    for words in ("dps2", "dps4 kv=4", "dps3 batch=9 heads=6 kv=3 dim=48", "dps8 batch=16 heads=8 kv=8", "dpr2 dps2", "dps2 cp2", "dps2 cp2 rotate=ring masked=true",
                  "dps2 ac=full", "dps2 ac=selective:op", "dps4 kv=4 ac=memory_budget:0.3", "dps2 rows=2 tied=true chunks=3", "dps2 reshard=never offload=true",
                  "dps2 reshard=always bucketing=greedy", "dps2 reorder=false prefetch=0 fuse=false", "window dps2 cp2", "dpr2 dps2 cp2 ac=full"):
        yield Case(f"{words} rtp=out_of_place")
        yield Case(f"{words} rtp=in_place", exact=f"{words} rtp=out_of_place")


def traits():
    """Layers with traits that the other families do not have."""
    for family in ("biased", "partial kv=2", "window", "olmo", "sandwich", "gemma"):
        yield from (f"{family} {axis}" for axis in ("pp2", "dps2", "dps4", "cp2", "cp2 rotate=ring", "dpr2 dps2"))
        yield f"{family} pp2 dps2 cp2 ac=full masked=true"
        yield f"{family} pp4 layers=8 schedule=DualPipeV"
        yield f"{family} pp2 schedule=InterleavedZeroBubble ac=memory_budget:0.4"
        yield from (f"{family} tp2", f"{family} dps2 tp2 async=true", f"{family} pp2 cp2 tp2 ac=selective:op schedule=ZBVZeroBubble")
    yield from (f"moe-oss {mesh}" for mesh in (
        "pp2", "dps4 ep2", "dps4 ep4", "cp2 ep2", "cp2 rotate=ring ep2", "tp2", "tp2 ep2", "dpr2 dps2 ep2", "tp2 etp=2",
        "dps2 tp2 ep2 etp=2", "dps2 tp2 ep4 async=true", "pp2 dps2 cp2 ep4 ac=full masked=true", "pp4 layers=8 schedule=DualPipeV",
        "pp2 cp2 tp2 ep2 ac=selective:op schedule=ZBVZeroBubble", "dps2 ep2 ac=memory_budget:0.4", "dps2 tp2 ep2 etp=2 room=0.5 seq=512 batch=4",
        "dps4 ep4 room=0.5 seq=512 batch=4", "dps2 ep2 overflow=drop capacity=1"))
    yield from (f"gemma tied=true {mesh}" for mesh in ("dps2 tp2 chunks=3", "pp2 cp2 schedule=DualPipeV"))
    yield from ("olmo kv=4 tp4", "olmo cp2 tp2 rotate=ring", "olmo pp2 dps2 tp2 batch=7", "olmo tp2 ac=full masked=true")


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
        yield f"moe pp2 dps2 ep2 schedule={name}"
    for name in LOOPED:
        yield f"pp2 layers=6 per_stage=1 less_first=0 less_last=0 schedule={name}"  # three stages a rank
    for name in SINGLE + LOOPED + V:
        yield f"qwen pp2 schedule={name}"  # embedding and head share their matrix: in V order on one rank
        yield f"qwen pp2 dps2 schedule={name}"
        yield f"qwen pp2 dps2 tp2 reduce=microbatch schedule={name}"
        yield f"qwen pp4 dpr2 batch=9 layers=8 schedule={name}"
    yield from ("qwen pp3 batch=7 csv=single:4", "qwen pp4 layers=8 csv=loop:4", "qwen pp4 layers=2", "qwen pp2 cp2 rotate=ring masked=true",
                "qwen pp2 dps2 bucketing=greedy reorder=true reshard=always", "qwen pp2 dps3 batch=7 offload=true",
                "moe tied=true pp2 dps2 ep2 schedule=InterleavedZeroBubble", "tied=true pp2 dps2 float8=true", "qwen pp2 dpr2 dps2 cp2 tp2 batch=7")
    for seed in (1, 2, 3):
        yield f"pp2 csv=single:{seed}"
        yield f"pp4 layers=8 csv=loop:{seed}"
        yield f"pp2 dps2 csv=v:{seed}"
    for name in LOOPED + V:
        yield f"pp4 layers=6 schedule={name}"  # the first stage is the embedding alone, the last one the head
    yield from ("pp4 layers=2", "pp2 layers=2 split=0,1,2 schedule=Interleaved1F1B", "moe pp2 layers=2 split=0",
                "pp2 layers=2 split=2 dps2", "pp2 split=1", "pp4 split=1,2,5 layers=6", "pp2 split=1,2,3 schedule=ZBVZeroBubble",
                "pp2 split=4", "pp4 dpr2 batch=9 layers=8 csv=v:4")


def uneven_shares():
    yield from ("dps3", "dpr3", "dps3 tp2", "pp2 dps3", "pp2 dpr3 schedule=ZB1P", "dps3 cp2", "dps3 reduce=step",
                "dps3 reduce=microbatch", "moe dps3 ep3 experts=3 batch=9", "dps5 batch=6", "dpr2 dps3 batch=7",
                "pp2 dps3 schedule=DualPipeV", "pp2 dps2 batch=7 schedule=Interleaved1F1B", "dps3 reshard=never",
                "dps7", "dps3 rows=2 batch=10")


CHECKPOINTING = ["none", "full", "selective:op", "selective:op:1", "selective:1", "selective:2", "memory_budget:0", "memory_budget:0.3",
                 "memory_budget:0.7", "memory_budget:1"]


def checkpointing():
    for ac in CHECKPOINTING:
        yield from (f"dps1 ac={ac}", f"dps4 ac={ac}", f"pp2 dps2 tp2 ac={ac}", f"cp2 tp2 ac={ac}",
                    f"dps2 cp2 rotate=ring masked=true ac={ac}", f"moe dps2 tp2 ep2 ac={ac}",
                    f"pp2 schedule=ZBVZeroBubble ac={ac}")
        yield f"deepseek dps2 ep2 ac={ac}"


def passes():
    for bucketing in ("off", "block", "greedy"):
        for reorder in ("true", "false"):
            yield f"dps4 bucketing={bucketing} reorder={reorder}"
            yield f"dpr2 dps2 tp2 bucketing={bucketing} reorder={reorder} reduce=microbatch"
            yield f"pp2 dps2 bucketing={bucketing} reorder={reorder} reshard=always"
            yield f"moe dps2 tp2 ep2 bucketing={bucketing} reorder={reorder}"
    for prefetch in range(4):
        yield f"dps4 prefetch={prefetch} reorder=false"
        yield f"pp2 dps2 cp2 prefetch={prefetch} reorder=false reshard=always schedule=ZB1P"
    for reshard in ("default", "always", "never"):
        for reduce in ("default", "microbatch", "step"):
            yield f"dps4 reshard={reshard} reduce={reduce}"
            yield f"pp2 dpr2 dps2 reshard={reshard} reduce={reduce} schedule=Interleaved1F1B"
    for words in ("tp2", "tp4 heads=8 kv=4", "pp2 tp2", "cp2 tp2", "dps2 tp2 ac=full", "moe tp2 ep2", "qwen tp2",
                  "deepseek tp2", "tp2 masked=true", "cp2 tp2 rotate=ring ac=selective:op", "tp2 seq=34 rows=3 batch=9"):
        yield f"{words} async=true"
    for chunks in (1, 3, 8):
        yield from (f"dps1 chunks={chunks}", f"tp2 chunks={chunks}", f"dps2 cp2 chunks={chunks}",
                    f"qwen tp2 chunks={chunks}", f"pp2 tp2 rows=3 batch=9 chunks={chunks}")


def fusions():
    """Bit for bit: two operations as one are the two."""
    for words in ("", "tp2", "dps4", "pp2 dps2 tp2", "cp2 tp2 rotate=ring masked=true", "dps2 reshard=always prefetch=0",
                  "pp2 schedule=ZBVZeroBubble", "pp4 layers=8 schedule=Interleaved1F1B", "dps3 bucketing=greedy",
                  "tp2 async=true", "qwen dps2 tp2", "qwen pp2 dps2", "qwen chunks=3", "moe dps2 tp2 ep2", "moe pp2 dps2 ep2 shared=0",
                  "deepseek dps2 ep2", "canonical=true dps3", "dps2 offload=true", "llama-debug dps2 batch=4"):
        for ac in ("none", "full", "selective:op", "selective:op:1"):
            yield Case(f"{words} ac={ac} fuse=false", exact=f"{words} ac={ac}")


def rounds():
    """Bit for bit: rows that come in rounds are those that come at once. rate: every other step all tokens go to the
    experts that had fewest."""
    for words in ("moe dps2 ep2 batch=2 room=0.25", "moe dps2 ep2 batch=2 room=1", "moe dps2 ep2 batch=2 room=0.25 experts=2 top_k=1 rate=1",
                  "moe dps4 ep4 batch=4 room=0.5 experts=4 top_k=1 rate=1", "moe dps2 tp2 ep4 batch=4 room=0.25 ac=full",
                  "moe pp2 dps2 ep2 batch=4 room=0.25 schedule=ZBVZeroBubble ac=selective:op",
                  "deepseek dps2 tp2 ep2 batch=4 room=0.25 ac=selective:op:1 reshard=always"):
        yield Case(f"seq=512 {words}", exact=" ".join(["seq=512"] + [w for w in words.split() if not w.startswith("room=")]))


def drops():
    """Rows for which experts have no room: those of one rank, however many share them. cp and tp are as they are: they cut
    the tokens among which room is shared out."""
    for words in ("dps2 ep2 capacity=0.75", "dps4 ep4 capacity=1", "dpr2 capacity=0.5 ac=full", "pp2 dps2 ep2 capacity=1 room=0.5 ac=selective:op",
                  "pp2 capacity=0.75 schedule=ZBVZeroBubble"):
        yield Case(f"moe {words} overflow=drop")
    for words in ("dps2 ep2", "dps4 ep2", "pp2 dps2 ep2 ac=full"):
        fixed = "moe canonical=true overflow=drop capacity=0.75"
        yield Case(f"{fixed} {words}", exact=fixed)


def balance_losses():
    """Of sequences that ranks cut, and of those that they do not."""
    for family in ("moe", "deepseek"):
        for mesh in ("dps2", "tp2", "cp2", "cp2 rotate=ring", "pp2", "dps2 ep2", "dps2 tp2 ep4", "dps4 cp2 ep2 batch=4", "tp2 etp=2",
                     "pp2 dps2 cp2 tp2 ep4 ac=full schedule=ZBVZeroBubble", "tp2 async=true rows=2 batch=4", "cp2 tp2 rows=2 batch=4 masked=true ac=selective:op",
                     "dps2 ep2 overflow=drop capacity=0.75", "dps3"):
            yield f"{family} even=0.3 {mesh}"
    yield from ("moe even=0.3 tp4 heads=8 kv=4 async=true rows=4 batch=8 seq=68", "deepseek even=0.3 cp4 ep2 balance=false", "moe even=0.3 float8=true dps2")


def mtp():
    """Modules of multi-token prediction: the embedding and the head have gradients from several places."""
    for mesh in ("dps2", "dps4", "dpr2 dps2", "dps3 batch=7", "tp2", "tp4 heads=8 kv=4", "cp2", "cp4", "cp2 rotate=ring", "cp2 balance=false",
                 "dps2 cp2 tp2", "dps2 masked=true", "cp4 masked=true rotate=ring", "dps2 tp2 rows=3 batch=9", "tp2 async=true",
                 "dps2 offload=true", "dps2 reshard=always reduce=microbatch", "dps2 reshard=never", "dps4 reduce=step bucketing=greedy reorder=true",
                 "dps2 prefetch=0", "tp2 chunks=3", "dps2 float8=true", "dps2 float8=true codes=true", "dps2 mxfp8=true"):
        yield f"mtp=2 {mesh}"
    yield from (f"mtp=3 dps2 tp2 ac={ac}" for ac in CHECKPOINTING)
    for family in ("moe", "deepseek"):
        for mesh in ("dps2 ep2", "dps4 ep4", "tp2", "cp2 ep2", "dps2 tp2 ep4", "tp2 etp=2", "dps2 cp2 tp2 ep4 etp=2 ac=full", "dpr2 dps2 ep2 ac=selective:op",
                     "dps2 ep2 room=0.5 seq=512 batch=4", "dps2 ep2 overflow=drop capacity=0.75", "cp2 tp2 masked=true even=0.3 ac=selective:op:1"):
            yield f"{family} mtp=2 {mesh}"
    yield from ("olmo mtp=1 dps2 tp2", "sandwich mtp=2 cp2 ac=full", "deepseek mtp=8 dps2 tp2 ep2", "mtp=1 mtp_scale=2 dps2", "moe mtp=1 dense_layers=4 dps2 ep2",
                "deepseek-debug mtp=1 dps2 tp2 ep4 batch=4")
    yield from (Case(f"mtp=2 {words} canonical=true {mesh}", exact=f"mtp=2 {words} canonical=true") for words, mesh in (
        ("", "dps2"), ("", "dps3"), ("tp2", "dpr2"), ("moe", "dps2 ep2"), ("moe", "dps4 ep4 ac=full"), ("masked=true cp2", "dps2")))
    yield from (Case(f"mtp=2 {words} fuse=false", exact=f"mtp=2 {words}") for words in ("tp2", "dps2 ac=full", "moe dps2 ep2 ac=selective:op"))


def offload():
    yield from ("dps1 offload=true", "dps4 offload=true", "dpr2 dps2 offload=true", "pp2 tp2 offload=true",
                "cp2 tp2 offload=true reshard=never", "moe dps2 tp2 ep2 offload=true", "qwen dps2 offload=true",
                "dps3 offload=true", "dps2 offload=true canonical=true")


def models():
    for mesh in ("cp2", "cp4", "cp2 rotate=ring", "cp4 rotate=ring", "cp2 balance=false", "tp2", "dps2", "pp2",
                 "cp2 tp2", "pp2 cp2 rotate=ring"):
        yield f"masked=true {mesh}"
    for mesh in ("dps2", "dps4", "tp2", "cp2", "cp2 rotate=ring", "dpr2 dps2", "dps2 tp2", "cp2 tp2", "dps2 cp2 tp2"):
        yield f"qwen {mesh}"
        yield f"tied=true {mesh}"
    yield "qwen tied=false pp2 dps2 tp2"
    for mesh in ("dps2", "tp2", "cp2", "pp2", "dpr2", "dps2 tp2"):
        yield f"moe {mesh}"  # experts without expert parallelism
        yield f"deepseek {mesh}"
    for mesh in ("dps2 ep2", "dps4 ep4", "tp2 ep2", "cp2 ep2", "cp2 rotate=ring masked=true ep2", "dps2 tp2 ep4",
                 "pp2 dps2 tp2 ep4", "pp2 dps2 ep2 schedule=DualPipeV"):
        yield f"deepseek {mesh}"
    groups = "deepseek experts=8 top_k=3 groups=4 limited=2"
    for mesh in ("dps2", "tp2", "cp2", "pp2", "dps2 ep2", "dps2 tp2 ep4", "cp2 ep2", "pp2 dps2 tp2 ep4 ac=full",
                 "dps2 ep2 group_top=1", "dps4 ep4 limited=4 top_k=5"):
        yield f"{groups} {mesh}"
    for mesh in ("dps2", "tp2", "cp2", "cp2 rotate=ring", "pp2", "dps2 tp2 ep2 ac=full"):
        yield f"deepseek rope=yarn original=8 nope=13 value_dim=11 {mesh}"
    yield from ("deepseek q_rank=0 dps2 tp2 ep2", "moe shared=0 dps2 ep2", "moe top_k=1 normalize=false dps2 tp2 ep2",
                "moe dense_layers=0 pp2 dps2 ep2", "moe experts=6 top_k=3 dps2 tp2 ep2", "deepseek dps1 ep1",
                "llama-debug pp2 dps2 tp2 batch=4", "llama-debug dps4 batch=4", "qwen-debug dps2 tp2 batch=4",
                "moe-debug dps2 tp2 ep4 batch=4",
                "deepseek-debug dps2 ep2 batch=4", "deepseek-debug pp2 dps2 tp2 ep4 batch=4")


def canonical():
    """Bit for bit where only the data-parallel degree differs."""
    fixed = ("", "tp2", "pp2", "cp2", "pp2 tp2", "cp2 tp2", "pp2 cp2 rotate=ring", "pp2 schedule=ZBVZeroBubble", "moe",
             "qwen", "qwen pp2", "masked=true cp2 rotate=ring")
    for words in fixed:
        for degrees in ("dps2", "dps4", "dpr2", "dpr4", "dpr2 dps2"):
            yield Case(f"{words} canonical=true {degrees}", exact=f"{words} canonical=true")
    # Experts too, by whatever ranks they are shared. 12 microbatches: a rank's are no subtree of the sums.
    shared = {"": ("dps2 ep2", "dps4 ep2", "dps4 ep4", "dpr2 dps2 ep2"), "tp2": ("ep2", "dps2 ep2", "dps2 ep4", "dpr2 ep2"),
              "cp2": ("ep2", "dps2 ep4"), "pp2": ("dps2 ep2", "dps2 ep2 schedule=ZBVZeroBubble")}
    for family in ("moe", "deepseek"):
        for words, meshes in shared.items():
            fixed = f"{family} {words} canonical=true"
            for mesh in meshes:
                yield Case(f"{fixed} {mesh}", exact=fixed)
                yield Case(f"{fixed} {mesh} batch=12", exact=f"{fixed} batch=12")
    yield Case("moe canonical=true pp2 dps2 ep2", exact="moe canonical=true")
    yield Case("qwen canonical=true pp2 dpr2 schedule=DualPipeV", exact="qwen canonical=true")
    yield Case("qwen canonical=true pp4 dps2 layers=6 batch=6", exact="qwen canonical=true pp2 layers=6 batch=6")
    for mesh in ("dps2", "dps2 ep2", "dps4 ep2 ac=full"):
        yield Case(f"moe even=0.3 canonical=true {mesh}", exact="moe even=0.3 canonical=true")
    for mesh in ("dps2 ep2 ac=full", "dps4 ep4 ac=selective:op", "dps2 ep2 reshard=never bucketing=greedy fuse=false",
                 "dps2 ep2 offload=true"):
        yield Case(f"moe canonical=true {mesh}", exact="moe canonical=true")
    for mesh in ("dps2 ep2 room=0.25", "dps4 ep4 room=0.5", "dps2 ep2 room=0.25 ac=full"):
        fixed = "moe seq=512 batch=4 experts=4 top_k=1 rate=1 canonical=true"
        yield Case(f"{fixed} {mesh}", exact=fixed)
    groups = "deepseek experts=8 top_k=3 groups=4 limited=2 canonical=true"
    yield Case(f"{groups} dps4 ep4", exact=groups)
    for scales in ("tensorwise", "rowwise", "rowwise_with_gw_hp", "scalify", None):
        words = f"float8=true scales={scales} canonical=true" if scales else "mxfp8=true canonical=true"
        for degrees in ("dps2", "dps3", "dpr2 dps2 ac=full"):
            yield Case(f"{words} {degrees}", exact=words)
    for degrees in ("dps2", "dps3 ac=full", "pp2 dps2", "dpr2 dps2"):
        pipeline = "pp2 " if "pp2" in degrees else ""
        yield Case(f"float8=true scales=scalify refresh=3 canonical=true {degrees}", exact=f"{pipeline}float8=true scales=scalify refresh=3 canonical=true")
    for words in ("switchback=true canonical=true", "switchback=true variant=vectorwise canonical=true", "deepseek switchback=true canonical=true",
                  "switchback=true kept=true canonical=true", "deepseek switchback=true kept=true canonical=true"):
        for degrees in ("dps2", "dps3", "dpr2 dps2 ac=full", "dps2 ac=selective:op offload=true", "pp2 dps2"):
            pipeline = "pp2 " if "pp2" in degrees else ""
            yield Case(f"{words} {degrees}", exact=f"{pipeline}{words}")
    for family in ("", "moe", "qwen", "deepseek"):  # weights gathered as codes
        words = f"{family} float8=true canonical=true"
        for degrees in ("dps2", "dps3 ac=full", "dps2 reshard=never", "dps4 bucketing=greedy reorder=true", "dpr2 dps2"):
            yield Case(f"{words} codes=true {degrees}", exact=words)
    # With weights in few bits, too: one rank computes with what the codes stand for, as others do.
    for words, mesh in (("gather=int8", "dps3"), ("gather=int4", "dps2 reshard=always ac=full"), ("qwen pp2 gather=int6", "dps2"),
                        ("gather=int6", "dpr2 dps2 fuse=false bucketing=greedy"), ("cp2 gather=int4", "dps2 prefetch=3"),
                        ("moe gather=int6", "dps4 ep4"), ("moe gather=int4", "pp2 dps2 ep2"), ("deepseek gather=int8", "dps2 ep2")):
        yield Case(f"{words} canonical=true {mesh}", exact=f"{words} canonical=true")
    yield Case("pp2 float8=true canonical=true codes=true dps2", exact="pp2 float8=true canonical=true")
    for family in ("", "deepseek"):  # static scales are those of whole matrices, and the same in a pipeline
        words = f"{family} float8=true scales=scalify canonical=true"
        yield from (Case(f"{words} {degrees}", exact=words) for degrees in ("codes=true dps3 ac=full", "pp2 dps2", "pp4 codes=true dps2"))
    yield Case("tp2 float8=true scales=scalify canonical=true codes=true dps2", exact="tp2 float8=true scales=scalify canonical=true")
    for degrees in ("dps3", "dps5", "dpr3", "dpr3 dps2 batch=11", "dps3 ac=full", "dps3 reshard=never bucketing=greedy",
                    "dps8"):
        batch = " batch=11" if "batch" in degrees else ""
        yield Case(f"canonical=true {degrees}", exact=f"canonical=true{batch}")


def all_cases():
    lines = [*AXES, *pairs(), *triples_and_more(), *schedules(), *uneven_shares(), *checkpointing(), *passes(),
             *offload(), *models(), *traits(), *balance_losses()]
    return [Case(words) for words in dict.fromkeys(lines)] + [words if isinstance(words, Case) else Case(words) for words in mtp()] + list(fusions()) + list(rounds()) + list(drops()) + list(canonical()) + list(rotation())
