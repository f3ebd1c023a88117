# SPDX-License-Identifier: Apache-2.0
"""A training run on a mesh against the same recipe on one rank: loss and gradient norm of ten steps, every gradient of
the first step, every parameter after ten.

A case is a line of words, so that any line of a report can be run again by itself:
    pp2 dps2 tp2 moe schedule=ZBVZeroBubble ac=full
Mesh words are an axis and its degree (pp, dpr = dp_replicate, dps = dp_shard, cp, tp; ep borrows), a family of models
stands by name, the rest is KEY=VALUE with the short keys of KEYS. The reference is the case's recipe on one rank, with
every key at its default that must not change the numbers.

Each case is run with AdamW and with SGD. The gradients of the first step are read from AdamW's first moments in a
checkpoint written after it: there they are (1 - beta1) times the clipped gradient, and its factor cancels. SGD keeps no
trace of them, and needs none: up to the update its step is AdamW's, which the first line of its metrics shows.

Experts: sums in another order move scores by rounding, and a token between two experts then goes to the other one; from
there on it is another run. What makes runs equal is numerics.canonical, and cases of it (exact) have every bit for ten
steps with tokens routed by score, over data and expert parallelism, stages, rounds, passes. Other cases route by score
in the first step, and then are run once more with experts in turn (forced=true) for all ten: nothing is excused."""
import atexit
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import deadline  # noqa: E402

SOURCE = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("BUILD", "build"))
BUILD = BUILD if BUILD.is_absolute() else SOURCE / BUILD
WORKER = BUILD / "bin" / "titan-worker"
STEPS = 10
LOSS_BOUND = GRADIENT_BOUND = SGD_BOUND = 1e-5
ADAMW_BOUND = 1e-4

AXES = {"pp": "pipeline_parallel_degree", "dpr": "data_parallel_replicate_degree",
        "dps": "data_parallel_shard_degree", "cp": "context_parallel_degree", "tp": "tensor_parallel_degree",
        "ep": "expert_parallel_degree"}
MESH_NAMES = {"pp": "pp", "dpr": "dp_replicate", "dps": "dp_shard", "cp": "cp", "tp": "tp"}

# What decides the numbers of a run: the reference has it too.
NUMBERS = {"layers": "model.n_layers", "dim": "model.dim", "heads": "model.n_heads", "kv": "model.n_kv_heads",
           "head_dim": "model.head_dim", "ffn": "model.ffn_hidden", "vocab": "model.vocab_size",
           "tied": "model.tied_embeddings", "qk_norm": "model.qk_norm", "experts": "model.n_experts",
           "top_k": "model.top_k", "shared": "model.n_shared_experts", "moe_hidden": "model.moe_hidden",
           "normalize": "model.normalize_scores", "rate": "model.balance_rate", "even": "model.balance_loss", "mtp": "model.mtp_layers", "mtp_scale": "model.mtp_loss_scale",
           "sigmoid": "model.sigmoid_scores", "score_scale": "model.route_scale", "theta": "model.rope_theta", "decay": "optimizer.weight_decay",
           "dense_layers": "model.n_dense_layers", "q_rank": "model.q_lora_rank", "nope": "model.qk_nope_head_dim",
           "value_dim": "model.v_head_dim", "groups": "model.n_expert_groups", "limited": "model.n_limited_groups",
           "group_top": "model.group_top_k", "rope": "model.rope_scaling", "original": "model.rope_original_length",
           "batch": "training.global_batch_size", "seq": "training.seq_len", "masked": "training.block_causal",
           "clip": "training.max_norm", "float8": "model.float8", "mxfp8": "model.mxfp8", "scales": "float8.recipe_name", "refresh": "float8.scalify_refresh", "switchback": "model.switchback", "variant": "switchback.variant", "kept": "switchback.mem_efficient", "seed": "training.seed", "gather": "parallelism.fsdp_gather_codec", "levels": "parallelism.fsdp_gather_levels", "canonical": "numerics.canonical",
           "forced": "debug.moe_force_load_balance", "overflow": "moe.overflow", "capacity": "moe.capacity_factor"}
# What must not.
LAYOUT = {"schedule": "parallelism.pipeline_parallel_schedule",
          "split": "parallelism.pipeline_parallel_split_points",
          "per_stage": "parallelism.pipeline_parallel_layers_per_stage",
          "less_first": "parallelism.pipeline_parallel_first_stage_less_layers",
          "less_last": "parallelism.pipeline_parallel_last_stage_less_layers",
          "rotate": "parallelism.context_parallel_rotate_method", "rtp": "parallelism.rotate",
          "room": "parallelism.expert_parallel_room",
          "etp": "parallelism.expert_tensor_parallel_degree",
          "balance": "parallelism.context_parallel_load_balance",
          "reshard": "parallelism.fsdp_reshard_after_forward", "prefetch": "parallelism.fsdp_prefetch",
          "reduce": "parallelism.fsdp_reduce", "bucketing": "parallelism.fsdp_bucketing",
          "reorder": "parallelism.fsdp_reorder", "async": "parallelism.enable_async_tensor_parallel",
          "codes": "float8.enable_fsdp_float8_all_gather", "offload": "training.enable_cpu_offload", "chunks": "training.loss_chunks", "fuse": "compile.fuse",
          "threads": "device.threads", "norms": "metrics.log_layers"}
SMALL = ("model.flavor=tiny", "model.n_layers=4")
FAMILIES = {
    "dense": ("model.name=llama3", *SMALL, "model.dim=32", "model.n_heads=4", "model.n_kv_heads=2",
              "model.ffn_hidden=96"),
    "qwen": ("model.name=qwen3", *SMALL),  # heads wider than dim / n_heads, normed queries and keys, tied embeddings
    # A key's bias has no gradient where it does not rotate: it is added to all scores of a query alike.
    "biased": ("model.name=llama3", *SMALL, "model.dim=32", "model.n_heads=4", "model.n_kv_heads=2", "model.ffn_hidden=96",
               "model.qkv_bias=true", "model.output_bias=true", "model.mlp_bias=true", "model.rope_scaling=linear",
               "model.rope_factor=2", "model.embedding_multiplier=3", "model.residual_multiplier=0.5",
               "model.attention_multiplier=0.3", "model.logits_scaling=2"),
    "partial": ("model.name=llama3", *SMALL, "model.dim=32", "model.n_heads=4", "model.n_kv_heads=1", "model.head_dim=12",
                "model.ffn_hidden=96", "model.rope_dim=8", "model.no_rope_every=2"),
    "olmo": ("model.name=llama3", *SMALL, "model.dim=32", "model.n_heads=4", "model.n_kv_heads=2", "model.ffn_hidden=96",
             "model.output_norms=true", "model.no_input_norms=true", "model.qk_norm=true", "model.qk_norm_whole=true"),
    "sandwich": ("model.name=llama3", *SMALL, "model.dim=32", "model.n_heads=4", "model.n_kv_heads=2", "model.ffn_hidden=96",
                 "model.output_norms=true", "model.residual_multiplier=0.5", "model.mlp_bias=true", "model.output_bias=true"),
    "gemma": ("model.name=llama3", *SMALL, "model.dim=36", "model.n_heads=4", "model.n_kv_heads=2", "model.head_dim=12", "model.ffn_hidden=96",
              "model.qk_norm=true", "model.output_norms=true", "model.norm_offset=true", "model.gelu=true",
              "model.embedding_multiplier=6", "model.sliding_window=7", "model.full_attention_every=2", "model.rope_theta=1000",
              "model.rope_local_theta=100", "model.attention_softcap=0.5", "model.logits_softcap=2"),
    "window": ("model.name=llama3", *SMALL, "model.dim=32", "model.n_heads=4", "model.n_kv_heads=2", "model.ffn_hidden=96",
               "model.sliding_window=7", "model.full_attention_every=3"),
    "moe": ("model.name=llama3_moe", *SMALL),
    "moe-oss": ("model.name=llama3_moe", *SMALL, "model.n_shared_experts=0", "model.mlp_bias=true", "model.router_bias=true",
                "model.qkv_bias=true", "model.output_bias=true", "model.attention_sinks=true", "model.swiglu_limit=0.5",
                "model.sliding_window=7", "model.full_attention_every=2", "model.rope_scaling=yarn", "model.rope_factor=4",
                "model.rope_original_length=8", "model.rope_between_pairs=true"),
    "deepseek": ("model.name=deepseek_v3", *SMALL),
    "llama-debug": ("model.name=llama3", "model.flavor=debugmodel"),
    "qwen-debug": ("model.name=qwen3", "model.flavor=debugmodel"),
    "moe-debug": ("model.name=llama3_moe", "model.flavor=debugmodel"),
    "deepseek-debug": ("model.name=deepseek_v3", "model.flavor=debugmodel"),
}
EXPERTS = [family for family in FAMILIES if family.startswith(("moe", "deepseek"))]
RECIPE = f"""
[model]
tokenizer = "bytes"
[lr_scheduler]
warmup_steps = 2
[training]
global_batch_size = 8
seq_len = 32
steps = {STEPS}
mixed_precision_param = "float32"
[metrics]
log_freq = 1
[checkpoint]
enable = true
keep_latest_k = 0
async_mode = "disabled"
[device]
name = "cpu"
threads = 1
"""
# Rates at which rounding stays rounding: AdamW divides small gradients by their own size, and at three times these
# rates some recipes run off, and what differed by 1e-8 differs by 1e-4 two steps later.
OPTIMIZERS = {"AdamW": ("optimizer.name=AdamW", "optimizer.lr=1e-3", "optimizer.eps=1e-7", "checkpoint.interval=1"),
              "SGD": ("optimizer.name=SGD", "optimizer.lr=0.1", f"checkpoint.interval={STEPS}")}


def corpus(folder):
    """Documents of 3 to 200 bytes, some of them longer than a sequence of the tests, from a fixed seed."""
    rng = random.Random(5)
    words = ["".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(2, 9))) for _ in range(300)]
    folder.mkdir()
    for i in range(400):
        text = " ".join(rng.choices(words, k=60))
        (folder / f"{i:03}.txt").write_text(text[:rng.randint(3, 200)])


def schedule_csv(order, seed, ranks, microbatches):
    """A legal pipeline order drawn at random: actions with their inputs there, in any order, one line a rank. B or I and
    W for each (stage, microbatch). order: "single" stage a rank, two in a "loop" or in a "v"."""
    rng = random.Random(seed)
    stages = ranks if order == "single" else 2 * ranks
    rank_of = (lambda s: s if s < ranks else 2 * ranks - 1 - s) if order == "v" else lambda s: s % ranks
    both = {(s, m): rng.random() < 0.5 for s in range(stages) for m in range(microbatches)}
    ready = [("F", 0, m) for m in range(microbatches)]
    lines = [[] for _ in range(ranks)]
    while ready:
        kind, s, m = ready.pop(rng.randrange(len(ready)))
        lines[rank_of(s)].append(f"{s}{kind}{m}")
        back = lambda stage: ("B" if both[stage, m] else "I", stage, m)
        if kind == "F":
            ready.append(("F", s + 1, m) if s + 1 < stages else back(s))
        else:
            ready += [back(s - 1)] if kind in "BI" and s > 0 else []
            ready += [("W", s, m)] if kind == "I" else []
    return "\n".join(",".join(line) for line in lines) + "\n"


class Case:
    """words: see above. exact: words of a run of which it must have every bit, besides being near one rank's. drawn: at
    random; by score it may not be near one rank's, in turn it is."""

    def __init__(self, words, exact=None, drawn=False):
        self.words, self.exact, self.drawn = " ".join(words.split()), exact, drawn
        self.mesh = dict.fromkeys(AXES, 1)
        self.options = {}
        self.family = "dense"
        for word in self.words.split():
            axis = re.fullmatch(r"([a-z]+)(\d+)", word)
            if axis and axis[1] in AXES:
                self.mesh[axis[1]] = int(axis[2])
            elif word in FAMILIES:
                self.family = word
            else:
                key, value = word.split("=", 1)
                assert key in NUMBERS or key in LAYOUT or key in ("ac", "rows", "csv"), word
                self.options[key] = value

    def __getattr__(self, axis):
        if axis in AXES:
            return self.mesh[axis]
        raise AttributeError(axis)

    @property
    def world(self):
        return self.pp * self.dpr * self.dps * self.cp * self.tp

    @property
    def by_score(self):
        """Do scores decide which expert a token goes to?"""
        return self.family in EXPERTS and "forced" not in self.options

    def mesh_text(self):
        """As the worker's log has it."""
        return " ".join(f"{name}={self.mesh[a]}" for a, name in MESH_NAMES.items() if self.mesh[a] > 1) or "1"

    def reference(self):
        numbers = [f"{k}={v}" for k, v in self.options.items() if k in NUMBERS or k == "rows"]
        return " ".join([self.family] + sorted(numbers))

    def microbatches(self):
        """Of the busiest rank."""
        ranks = self.dpr * self.dps
        return (int(self.options.get("batch", 8)) // int(self.options.get("rows", 1)) + ranks - 1) // ranks

    def sets(self, work):
        sets = list(FAMILIES[self.family])
        sets += [f"parallelism.{key}={self.mesh[a]}" for a, key in AXES.items() if self.mesh[a] > 1 or a == "dps"]
        rows = self.options.get("rows", 1)
        sets += [f"training.local_batch_size={rows}", f"parallelism.pipeline_parallel_microbatch_size={rows}"]
        for key, value in self.options.items():
            if key == "ac":
                sets += self.checkpointing(*value.split(":", 1))
            elif key == "csv":
                sets += self.csv(work, value)
            elif key == "split":
                points = ",".join(f'"layers.{n}"' for n in value.split(","))
                sets.append(f"{LAYOUT[key]}=[{points}]")
            elif key != "rows":
                sets.append(f"{(NUMBERS | LAYOUT)[key]}={value}")
        return sets

    @staticmethod
    def checkpointing(mode, option=None):
        sets = [f"activation_checkpoint.mode={mode}"]
        if option:
            key = "memory_budget" if mode == "memory_budget" else "selective_ac_option"
            sets.append(f"activation_checkpoint.{key}={option}")
        return sets

    def csv_text(self):
        order, seed = self.options["csv"].split(":")
        return schedule_csv(order, int(seed), self.pp, self.microbatches())

    def csv(self, work, value):
        order, seed = value.split(":")
        path = work / f"{order}-{seed}-{self.pp}-{self.microbatches()}.csv"
        path.write_text(self.csv_text())
        name = "PipelineScheduleSingle" if order == "single" else "PipelineScheduleMulti"
        return [f"parallelism.pipeline_parallel_schedule_csv={path}", f"parallelism.pipeline_parallel_schedule={name}"]


# --- checkpoints -----------------------------------------------------------------------------------------------------


def read_safetensors(path):
    """Tensors of a file by name, fp32."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    assert all(t["dtype"] == "F32" for t in header.values()), path
    return {name: numpy.frombuffer(data[8 + length + t["data_offsets"][0]:8 + length + t["data_offsets"][1]], "<f4")
            .reshape(t["shape"]) for name, t in header.items()}


def read_checkpoint(path):
    """Global tensors by name, as matrices, put together from the boxes of all files."""
    manifest = json.loads((path / "manifest.json").read_text())
    tensors, seen = {}, {}
    for t in manifest["tensors"]:
        shape = t["shape"]
        size = (int(numpy.prod(shape[:-1])), shape[-1])
        tensors[t["name"]], seen[t["name"]] = numpy.zeros(size, "f4"), numpy.zeros(size, "i4")
    for file in manifest["files"]:
        stored = read_safetensors(path / file["name"])
        for index, row, rows, col, cols in file["pieces"]:
            name = manifest["tensors"][index]["name"]
            box = slice(row, row + rows), slice(col, col + cols)
            tensors[name][box] = stored[f"{name}@{row},{col}"].reshape(rows, cols)
            seen[name][box] += 1
    assert all((s == 1).all() for s in seen.values()), f"{path}: not every element once"
    return tensors


# --- runs ------------------------------------------------------------------------------------------------------------


class Failed(Exception):
    """A run that did not end well; the text says how, and what to type to see it again."""


class Run:
    """What a finished run left: metrics by step, and tensors after the first and the last step."""

    def __init__(self, directory, optimizer):
        lines = [json.loads(line) for line in open(directory / "metrics.jsonl")]
        self.steps = [(line["loss"], line["grad_norm"], line.get("mtp_loss", 1)) for line in lines]
        self.gradients, last = {}, read_checkpoint(directory / "checkpoint" / f"step-{STEPS:08}")
        if optimizer == "AdamW":
            first = read_checkpoint(directory / "checkpoint" / "step-00000001")
            self.gradients = {n: t for n, t in first.items() if n.startswith("optim.m.")}
        self.parameters = {n: t for n, t in last.items() if not n.startswith("optim.")}


def shell(words):
    return " ".join(f"'{w}'" if re.search(r"[\s\"\[\]]", str(w)) else str(w) for w in words)


class Lab:
    """Runs cases in a folder of its own; what several cases are compared with is run once."""

    def __init__(self, keep=False):
        self.keep = keep
        # In memory where there is room: a run writes up to ten checkpoints.
        room = shutil.disk_usage("/dev/shm").free if os.access("/dev/shm", os.W_OK) else 0
        self.work = Path(tempfile.mkdtemp(prefix="titan-matrix-", dir="/dev/shm" if room > 4 << 30 else None))
        self.recipe = self.work / "recipe.toml"
        self.recipe.write_text(RECIPE)
        corpus(self.work / "text")
        atexit.register(self.close)
        self.lock = threading.Lock()
        self.locks, self.runs, self.numbers = {}, {}, 0

    def close(self):
        if not self.keep:
            shutil.rmtree(self.work, ignore_errors=True)

    def new_folder(self):
        """A name that no other one has."""
        with self.lock:
            self.numbers += 1
            return self.work / f"run-{self.numbers}"

    def command(self, verb, case, world=None, sets=()):
        sets = (f"training.dataset_path={self.work / 'text'}", *case.sets(self.work), *sets)
        words = [WORKER, verb, self.recipe, "-n", world or case.world]
        return [str(w) for w in words + [w for s in sets for w in ("--set", s)]]

    def run(self, words, optimizer):
        case = Case(words)
        directory = self.new_folder()
        command = self.command("run", case, sets=OPTIMIZERS[optimizer]) + ["--dir", str(directory)]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  timeout=deadline())
        except subprocess.TimeoutExpired as e:
            last = (e.stdout or b"").decode()[-500:]
            raise Failed(f"killed, as it hung: {last}\n{shell(command)}") from None
        if done.returncode != 0:
            raise Failed(f"exit code {done.returncode}: {done.stdout[-600:]}\n{shell(command)}")
        if f'mesh="{case.mesh_text()}"' not in done.stdout:
            raise Failed(f"ran on another mesh than {case.mesh_text()}: {shell(command)}")
        result = Run(directory, optimizer)
        if not self.keep:
            shutil.rmtree(directory)
        return result

    def shared(self, words, optimizer):
        """A run that is made once."""
        key = " ".join(words.split()), optimizer
        with self.lock:
            lock = self.locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self.runs:
                self.runs[key] = self.run(words, optimizer)
            return self.runs[key]


# --- comparison ------------------------------------------------------------------------------------------------------


def step_error(a, b, steps=STEPS):
    """Largest relative difference of loss, gradient norm and loss of multi-token prediction in the first steps."""
    if len(a.steps) != STEPS or len(b.steps) != STEPS or any(x is None for s in a.steps + b.steps for x in s):
        return float("inf")
    return max(abs(x - y) / abs(x) for s, t in zip(a.steps[:steps], b.steps[:steps]) for x, y in zip(s, t))


def tensor_error(a, b):
    """Largest ||difference|| / ||reference|| of a tensor, and which."""
    if a.keys() != b.keys():
        return float("inf"), "another set of tensors"
    worst, where = 0.0, ""
    for name, reference in a.items():
        reference = reference.astype("f8")
        difference = numpy.linalg.norm(b[name] - reference)
        norm = numpy.linalg.norm(reference)
        error = difference / norm if norm > 0 else float("inf") if difference != 0 else 0.0
        error = float("inf") if numpy.isnan(error) else error
        if error > worst:
            worst, where = error, name.removeprefix("optim.m.")
    return worst, where


def same_bits(a, b):
    """The first thing that differs; empty: nothing."""
    for step, (s, t) in enumerate(zip(a.steps, b.steps), 1):
        if s != t:
            return f"step {step}: loss, gradient norm and loss of multi-token prediction {s} and {t}"
    for what, x, y in (("first gradient", a.gradients, b.gradients), ("parameter", a.parameters, b.parameters)):
        for name in x:
            if x[name].tobytes() != y[name].tobytes():
                return f"{what} {name}"
    return ""


class Outcome:
    def __init__(self, case):
        self.case = case
        self.loss = self.gradient = self.sgd = self.adamw = float("nan")
        self.seconds, self.faults = 0.0, []

    def bound(self, name, what, error, most, where=""):
        """error into the field of that name, where the largest of them stays."""
        setattr(self, name, error if numpy.isnan(getattr(self, name)) else max(error, getattr(self, name)))
        if not error <= most:
            self.faults.append(f"{what} differs by {error:.2g}, at most {most:g}{' in ' + where if where else ''}")


def compare(lab, outcome, case, optimizers):
    """With a reference on one rank: where scores decide, the first step."""
    reference = lab.shared(case.reference(), "AdamW")
    adamw = lab.run(case.words, "AdamW")
    name = " (experts in turn)" if case.family in EXPERTS and not case.by_score else ""
    outcome.bound("loss", f"loss or gradient norm{name}",
                  step_error(reference, adamw, 1 if case.by_score else STEPS), LOSS_BOUND)
    error, where = tensor_error(reference.gradients, adamw.gradients)
    outcome.bound("gradient", f"a gradient of the first step{name}", error, GRADIENT_BOUND, where)
    if case.exact is not None:
        compare_bits(lab, outcome, case, adamw)
    if case.by_score:
        return
    error, where = tensor_error(reference.parameters, adamw.parameters)
    outcome.bound("adamw", f"a parameter (AdamW){name}", error, ADAMW_BOUND, where)
    if "SGD" in optimizers:
        compare_sgd(lab, outcome, case, adamw)


def compare_bits(lab, outcome, case, adamw):
    difference = same_bits(lab.shared(case.exact, "AdamW"), adamw)
    outcome.faults += [f"not the bits of '{case.exact}': {difference}"] if difference else []


def compare_sgd(lab, outcome, case, adamw):
    reference = lab.shared(case.reference(), "SGD")
    sgd = lab.run(case.words, "SGD")
    outcome.bound("loss", "loss or gradient norm (SGD)", step_error(reference, sgd), LOSS_BOUND)
    error, where = tensor_error(reference.parameters, sgd.parameters)
    outcome.bound("sgd", "a parameter (SGD)", error, SGD_BOUND, where)
    if adamw.steps[0] != sgd.steps[0]:
        outcome.faults.append(f"the first step depends on the optimizer: {adamw.steps[0]} and {sgd.steps[0]}")


def check(lab, case, optimizers=("AdamW", "SGD")):
    outcome = Outcome(case)
    started = time.monotonic()
    try:
        if case.by_score and case.drawn:
            compare_bits(lab, outcome, case, lab.run(case.words, "AdamW"))
        else:
            compare(lab, outcome, case, optimizers)
        if case.by_score and (case.drawn or case.exact is None):
            compare(lab, outcome, Case(f"{case.words} forced=true"), optimizers)
    except (Failed, OSError, AssertionError, KeyError, ValueError) as e:
        outcome.faults.append(str(e) or repr(e))
    outcome.seconds = time.monotonic() - started
    return outcome
