# SPDX-License-Identifier: Apache-2.0
"""Recipes drawn at random from a seed: legal ones, as cases of matrix.py, and ones with one thing wrong with them.

The rules of what is legal stand here a second time, as what is drawn; where the worker has others, a test fails."""
import random
import re
import subprocess

from matrix import Case, deadline, shell

SCHEDULES = {1: ["GPipe", "1F1B", "ZB1P"], 2: ["Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble"],
             "v": ["ZBVZeroBubble", "DualPipeV"]}


def draw_mesh(rng, most):
    while True:
        mesh = {axis: rng.choice([1, 1, 1, 2, 2, 3, 4]) for axis in ("pp", "dpr", "dps", "cp", "tp")}
        if 2 <= mesh["pp"] * mesh["dpr"] * mesh["dps"] * mesh["cp"] * mesh["tp"] <= most:
            return mesh


def draw_attention(rng, tp):
    kv = tp * rng.randint(1, 2)
    return {"kv": kv, "heads": kv * rng.randint(1, 3), "head_dim": 2 * rng.randint(2, 9), "dim": 2 * rng.randint(12, 33)}


def draw_model(rng, mesh):
    """Family and dimensions that tensor and expert parallelism can cut; ep goes into the mesh."""
    tp = mesh["tp"]
    family = rng.choices(["dense", "qwen", "moe", "deepseek"], [5, 2, 3, 2])[0]
    model = {"ffn": tp * rng.randint(7, 50), "vocab": -(-256 // tp) * tp + tp * rng.choice([0, 1, 5])}
    if family == "deepseek":
        model |= {"heads": tp * rng.randint(1, 3), "q_rank": rng.choice([0, 24]), "dim": 2 * rng.randint(12, 33)}
        model |= {"nope": rng.randint(1, 20), "value_dim": rng.randint(1, 20)} if rng.random() < 0.5 else {}
        model |= {"rope": "yarn", "original": rng.randint(2, 40)} if rng.random() < 0.5 else {}
    else:
        model |= draw_attention(rng, tp)
    if family in ("moe", "deepseek"):
        lent = mesh["dps"] * mesh["cp"] * tp
        mesh["ep"] = rng.choice([n for n in range(1, lent + 1) if lent % n == 0])
        model |= {"experts": mesh["ep"] * rng.randint(1 + (mesh["ep"] == 1), 3), "moe_hidden": tp * rng.randint(5, 30),
                  "shared": rng.randint(0, 2)}
        model["top_k"] = rng.randint(1, min(3, model["experts"]))
        groups = rng.choice([n for n in range(1, model["experts"] + 1) if model["experts"] % n == 0])
        if family == "deepseek" and groups > 1:
            width = model["experts"] // groups
            model |= {"groups": groups, "limited": rng.randint(-(-model["top_k"] // width), groups),
                      "group_top": rng.randint(1, width)}
        if model["top_k"] == 1:  # a single score divided by itself has no gradient to compare
            model["normalize"] = "false"
    return family, model


def draw_pipeline(rng, mesh, model):
    """Stages, layers, and the order of a pipeline."""
    if mesh["pp"] == 1:
        return {}
    each = rng.choice([1, 1, 2, "v"])
    stages = mesh["pp"] * (1 if each == 1 else 2)
    layers = model["layers"] = rng.randint(max(stages - 2, 1), max(stages, 6))  # either end may have none
    if rng.random() < 0.3:
        order = {1: "single", 2: "loop", "v": "v"}[each]
        options = {"csv": f"{order}:{rng.randrange(10**6)}"}
    else:
        options = {"schedule": rng.choice(SCHEDULES[each])}
    if layers > 1 and rng.random() < 0.3:
        options |= {"split": ",".join(map(str, sorted(rng.sample(range(layers + 1), stages - 1))))}
    elif layers >= stages and rng.random() < 0.3:
        options |= {"less_first": 0, "less_last": 0}
    return options


def draw_batch(rng, mesh, family, canonical):
    ranks, rows = mesh["dpr"] * mesh["dps"], rng.randint(1, 2)
    microbatches = rng.randint(ranks, max(ranks, 9))
    if (mesh["cp"] * mesh["tp"]) % mesh.get("ep", 1) != 0:  # ranks that share experts have equally many
        microbatches = ranks * rng.randint(1, max(1, 8 // ranks))
    return {"rows": rows, "batch": rows * microbatches}


def draw_options(rng, mesh, tokens):
    """Everything that must not change the numbers; each at its default half the time."""
    choices = {"reshard": ["always", "never"], "reduce": ["microbatch", "step"], "bucketing": ["off", "greedy"],
               "reorder": ["false"], "prefetch": [0, 2, 3], "offload": ["true"],
               "ac": ["full", "selective:op", "selective:op:1", "selective:1", "selective:2", "memory_budget:0.2", "memory_budget:0.6"],
               "chunks": list(range(1, min(9, tokens + 1))), "fuse": ["false"]}
    if mesh["cp"] > 1:
        choices |= {"rotate": ["ring"], "balance": ["false"]}
    if mesh["tp"] > 1:
        choices["async"] = ["true"]
    return {key: rng.choice(values) for key, values in choices.items() if rng.random() < 0.5}


def draw_more(rng, mesh, model, canonical):
    """Behind all else, so that older seeds have the words that they had, and these."""
    more = {}
    if "experts" in model:
        more |= {"sigmoid": rng.choice(["true", "false"])} if rng.random() < 0.3 else {}
        more |= {"score_scale": rng.choice([0.5, 2.5])} if rng.random() < 0.3 else {}
        more |= {"rate": rng.choice([0, 0.01])} if rng.random() < 0.3 else {}
        if mesh["tp"] > 1 and not canonical and mesh["dps"] * mesh["cp"] % mesh["ep"] == 0 and rng.random() < 0.5:
            more["etp"] = mesh["tp"]
        if mesh["ep"] > 1 and rng.random() < 0.5:
            more["room"] = rng.choice([0.25, 0.5, 1, 1.5])
    more |= {"theta": 100} if rng.random() < 0.2 else {}
    more |= {"decay": 1.5} if rng.random() < 0.2 else {}
    more |= {"threads": 2} if rng.random() < 0.1 else {}
    return more | ({"norms": "true"} if rng.random() < 0.2 else {})


# What else changes the order of sums, canonical or not: pieces of the head, tokens of each rank, products by blocks of rows.
ORDERS = ("chunks", "rotate", "balance", "async")


def canonical_reference(case):
    """Words of a run on the fewest ranks that has every bit of this one."""
    cut = [f"{axis}{case.mesh[axis]}" for axis in ("cp", "tp") if case.mesh[axis] > 1]
    order = case.options.get("schedule", "") + case.options.get("csv", "")
    # A tied matrix with its ends on two ranks: the head's gradients are summed apart from the embedding's.
    if case.family == "qwen" and case.pp > 1 and "V" not in order and not order.startswith("v:"):
        cut.append("pp2")
    return " ".join([case.reference(), *cut, *(f"{k}={v}" for k, v in case.options.items() if k in ORDERS)])


def draw(rng, most=8):
    """A legal case. Canonical ones have every bit of a run on fewer ranks, with tokens routed by score."""
    mesh = draw_mesh(rng, most)
    family, model = draw_model(rng, mesh)
    model["layers"] = rng.randint(1, 4)
    options = draw_pipeline(rng, mesh, model)
    tokens = mesh["cp"] * mesh["tp"]
    canonical = rng.random() < 0.15 and (mesh.get("ep", 1) % tokens == 0 or tokens % mesh.get("ep", 1) == 0)
    batch = draw_batch(rng, mesh, family, canonical)
    # Chunks of head and tail want 2 cp pieces of a sequence, tensor parallelism tp pieces of each rank's.
    seq = mesh["tp"] * (2 * mesh["cp"] if mesh["cp"] > 1 else 1)
    # With one token a sequence, attention has one key: its gradient is rounding, which AdamW turns into whole steps.
    seq *= rng.randint(2 if seq == 1 else 1, max(1, 48 // seq))
    options |= draw_options(rng, mesh, batch["rows"] * seq // mesh["cp"])
    flags = {"masked": "true"} if rng.random() < 0.4 else {}
    flags |= {"canonical": "true"} if canonical else {}
    flags |= {"forced": "true"} if "experts" in model and not canonical else {}
    flags |= {"clip": rng.choice([0, 0.3])} if rng.random() < 0.3 else {}
    more = draw_more(rng, mesh, model, canonical)
    more |= {"mtp": rng.randint(1, 3)} if mesh["pp"] == 1 and family != "qwen" and rng.random() < 0.3 else {}
    words = [f"{axis}{n}" for axis, n in mesh.items() if n > 1] + [family]
    words += [f"{k}={v}" for part in (model, {"seq": seq}, batch, flags, options, more) for k, v in part.items()]
    case = Case(" ".join(words), drawn=True)
    case.exact = canonical_reference(case) if canonical else None
    return case


# --- what must be refused --------------------------------------------------------------------------------------------


class Refusal:
    """words as of a case, settings after them, on so many workers; the message has to name the key."""

    def __init__(self, words, key, sets=(), world=None, csv=None):
        self.case, self.key, self.sets, self.csv = Case(words), key, list(sets), csv
        self.world = world or self.case.world
        more = [s.split(".", 1)[1] for s in sets] + ([f"csv {csv}"] if csv is not None else [])
        self.name = " ".join([f"{self.case.words} on {self.world}", *more])


BROKEN_CSV = {  # two stages, two microbatches
    "0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n": "misses a backward",
    "0F0,0F1,0B0,0B1\n1F0,1I0,1F1,1B1\n": "misses a weight gradient",
    "0F0,0F1,0B1,0B0\n1F0,1B0,1B1\n": "misses a forward",
    "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n": "deadlocks",
    "0B0,0F0,0F1,0B1\n1F0,1B0,1F1,1B1\n": "has a backward before its forward",
    "0F0,0F1,0B0,0B1\n1F0,1W0,1I0,1F1,1B1\n": "has W before I",
    "0F0,0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n": "has a cell twice",
    "0F0,0F1,0B0,0B1,1F0\n1B0,1F1,1B1\n": "has a cell on another rank",
    "0F0,0F1,0B0,0B1\n": "lacks a rank",
    "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n0F0\n": "has a rank too many",
    "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1X1\n": "has an unknown action",
    "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n": "has a microbatch too many",
    "0F0,0F1,0B0,0B1\n2F0,1B0,1F1,1B1\n": "has an unknown stage",
    "": "is empty",
}


def refusals():
    """One of each kind."""
    p = "parallelism."
    rest = [p + "data_parallel_shard_degree=-1", "elastic.min_workers=1", "elastic.max_workers=12"]
    yield from (
        Refusal("tp2", "tensor_parallel_degree", rest, world=3),
        Refusal("pp2 tp2", "elastic.min_workers", rest, world=2),
        Refusal("cp3 seq=36", "context_parallel_degree", rest, world=4),
        Refusal("dps2", "elastic.max_workers", world=8),
        Refusal("pp2 dps4", "elastic.min_workers", world=1),
        Refusal("tp4", "n_kv_heads"),
        Refusal("tp3 vocab=258", "n_heads"),
        Refusal("tp2 vocab=257", "vocab_size"),
        Refusal("tp2 ffn=97", "ffn_hidden"),
        Refusal("tp2 seq=33", "seq_len"),
        Refusal("cp2 seq=34", "seq_len"),
        Refusal("cp2 tp2 seq=36", "seq_len"),
        Refusal("moe tp2 moe_hidden=33", "moe_hidden"),
        Refusal("pp4 layers=1", "pipeline_parallel_degree"),
        Refusal("pp4 layers=5 schedule=ZBVZeroBubble", "pipeline_parallel_degree"),
        Refusal("pp2 layers=2 less_first=9", "pipeline_parallel_first_stage_less_layers"),
        Refusal("pp2 split=3,2", "pipeline_parallel_split_points"),
        Refusal("pp2 split=1,2", "pipeline_parallel_split_points"),
        Refusal("pp2 split=9", "pipeline_parallel_split_points"),
        Refusal("pp2 per_stage=2 schedule=1F1B", "pipeline_parallel_layers_per_stage"),
        Refusal("pp2", "pipeline_parallel_schedule", [p + "pipeline_parallel_schedule=2F2B"]),
        Refusal("pp2", "pipeline_parallel_schedule_csv", [p + "pipeline_parallel_schedule=PipelineScheduleSingle"]),
        Refusal("pp2", "pipeline_parallel_schedule_csv", [p + "pipeline_parallel_schedule_csv=/nonexistent.csv"]),
        Refusal("dps4 batch=3", "global_batch_size"),
        Refusal("dps2 rows=2 batch=7", "global_batch_size"),
        Refusal("pp2 rows=3 batch=8", "global_batch_size"),
        Refusal("dps2 ep2", "expert_parallel_degree"),
        Refusal("moe dps3 ep3 batch=9", "n_experts"),
        Refusal("moe dps2 ep4", "expert_parallel_degree"),
        Refusal("moe dpr4 ep4", "expert_parallel_degree"),
        Refusal("moe dps3 ep3 experts=3", "expert_parallel_degree"),
        Refusal("moe dps2 cp3 ep2 seq=36 canonical=true", "canonical"),
        Refusal("moe top_k=5", "top_k"),
        Refusal("mtp=1 pp2", "mtp_layers"), Refusal("mtp=9", "mtp_layers"), Refusal("qwen mtp=1", "mtp_layers"), Refusal("window mtp=1", "mtp_layers"),
        Refusal("partial mtp=2", "mtp_layers"), Refusal("biased mtp=2", "mtp_layers"), Refusal("mtp_scale=0.5", "mtp_loss_scale"),
        Refusal("dps2 chunks=33", "loss_chunks"), Refusal("dps2 chunks=0", "loss_chunks"),
        Refusal("dps2 prefetch=65", "fsdp_prefetch"), Refusal("dps2 prefetch=-1", "fsdp_prefetch"),
        Refusal("dps2 bucketing=some", "fsdp_bucketing"), Refusal("dps2 reduce=never", "fsdp_reduce"),
        Refusal("dps2 reshard=maybe", "fsdp_reshard_after_forward"), Refusal("dps2 reorder=2", "fsdp_reorder"),
        Refusal("cp2 rotate=left", "context_parallel_rotate_method"),
        Refusal("dps2 rtp=left", "parallelism.rotate"), Refusal("dps4 rtp=in_place", "n_kv_heads"), Refusal("dps2 batch=7 rtp=in_place", "global_batch_size"),
        Refusal("dps2 heads=3 kv=1 rtp=in_place", "n_heads"), Refusal("dps2 ffn=97 rtp=in_place", "ffn_hidden"),
        *(Refusal(f"{words} rtp=out_of_place", "parallelism.rotate") for words in (
            "dps2 tp2", "dps2 pp2", "dps2 canonical=true", "dps2 float8=true", "moe dps2", "deepseek dps2", "qwen dps2", "biased dps2", "olmo dps2", "dps2 mtp=1",
            "dps2 reduce=step")),
        *(Refusal("dps2 rtp=out_of_place", "parallelism.rotate", [words]) for words in (
            "optimizer.name=Muon", "optimizer.name=GaLore2", "optimizer.state_dtype=int8")),
        Refusal("dps2 ac=some", "activation_checkpoint.mode"),
        Refusal("dps2 ac=selective:0", "selective_ac_option"), Refusal("dps2 ac=selective:x", "selective_ac_option"),
        Refusal("dps2 ac=memory_budget:1.5", "memory_budget"),
        Refusal("dps2 heads=3", "n_heads"), Refusal("dps2 heads=4 kv=3", "n_kv_heads"),
        Refusal("tp2", "tensor_parallel_degree", [p + "tensor_parallel_degree=0"], world=2),
        Refusal("tp2", "tensor_parallel_degree", [p + "tensor_parallel_degree=-2"], world=2),
        Refusal("tp2", "tensor_parallel_degree", [p + "tensor_paralel_degree=2"]),
        Refusal("dps2", "multiply", [p + "tensor_parallel_degree=1000000", p + "pipeline_parallel_degree=1000000"]))
    for text in BROKEN_CSV:
        yield Refusal("pp2 batch=2", "pipeline_parallel_schedule_csv", csv=text.replace("\n", "/"))


def draw_refusal(rng, most=8):
    """A legal draw with one thing wrong."""
    while True:
        case = draw(rng, most)
        words = case.words
        wrong = [Refusal(words, "workers", world=case.world + 1)]
        if case.tp > 1:
            wrong += [Refusal(f"{words} seq={int(case.options['seq']) + 1}", "seq_len"),
                      Refusal(f"{words} vocab={int(case.options['vocab']) + 1}", "vocab_size")]
        if case.pp > 3:  # embedding and head can stand alone
            wrong += [Refusal(re.sub(r"(split|less_\w+)=\S+", "", f"{words} layers={case.pp - 3}"), "layers")]
        ranks = case.dpr * case.dps
        if ranks > 1:
            wrong += [Refusal(f"{words} batch={(ranks - 1) * int(case.options['rows'])}", "global_batch_size")]
        if case.ep > 1:
            wrong += [Refusal(f"{words} experts={int(case.options['experts']) * case.ep + 1}", "n_experts")]
        elif case.dps * case.cp * case.tp > 1 and case.family in ("dense", "qwen"):
            wrong += [Refusal(f"{words} ep2", "expert_parallel_degree")]
        if "csv" in case.options:
            lines = case.csv_text().split("\n")[:-1]
            rank = rng.randrange(len(lines))
            cells = lines[rank].split(",")
            cells.pop(rng.randrange(len(cells)))
            lines[rank] = ",".join(cells)
            wrong += 3 * [Refusal(words, "pipeline_parallel_schedule_csv", csv="/".join(lines) + "/")]
        return rng.choice(wrong)


def refuse(lab, refusal):
    """What is wrong with how it is refused, by check and by run; empty: nothing."""
    sets, folder = list(refusal.sets), lab.new_folder()
    if refusal.csv is not None:
        path = lab.new_folder().with_suffix(".csv")
        path.write_text(refusal.csv.replace("/", "\n"))
        sets.append(f"parallelism.pipeline_parallel_schedule_csv={path}")
    for verb in ("check", "run"):
        command = lab.command(verb, refusal.case, refusal.world, sets)
        command += ["--dir", str(folder)] if verb == "run" else []
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=deadline())
        except subprocess.TimeoutExpired:
            return f"{verb}: not refused, it hangs: {shell(command)}"
        if done.returncode != 2:
            return f"{verb}: exit code {done.returncode}, expected 2: {done.stdout[-300:]}\n{shell(command)}"
        if refusal.key not in done.stdout:
            return f"{verb}: '{done.stdout.strip()}' does not name {refusal.key}: {shell(command)}"
        if folder.exists():
            return f"{verb}: something was started: {folder} is there"
    return ""
