#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How well plans for this CPU tell what runs on it take: 20 layouts, step time and peak memory of each rank.

    accuracy.py [--steps N] [--measure SECONDS] [--rounds N] [--only NAME] [--memory-only]

One layout after the other: `titan-worker measure` adds to a table of costs, `titan-worker plan` predicts from it, and the prediction is
on disk (build/accuracy/predictions.json) before the layout runs. Its median step and the peak memory of its ranks then stand beside
what was predicted: build/accuracy/results.json, a table, exit 1 where a layout is out of bounds. A run comes right after its measurement,
as a machine that is shared with others may be a tenth slower some minutes later; of --rounds 3 each layout's middle one counts, by
the step's difference, and the span stands beside it. Steps
have to be within 10 %, memory within 5 %; 3 % is told as well. Only a machine that does nothing else gives times that mean anything;
--memory-only runs a few steps, in whatever time they take, and judges memory alone.

Ranks share the machine's cores: a layout of four ranks on two cores has four workers of one thread. Operations are measured with as
many processes at once as there are cores; a plan takes what the ranks' programs need side by side, longer where they ask for more
cores than there are, and waits for the slower rank (docs/plan.md, "Measured costs"). Experts that ranks share get equally many rows, as a plan has it: in its first
steps a model sends some of them every token, and what they have no room for takes another round.
"""
import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, BUILD, command, headers_text, overrides  # noqa: E402

HOME = BUILD / "accuracy"
MIB = 2.0**20
STEP_BOUND, MEMORY_BOUND, MEMORY_GOAL = 0.10, 0.05, 0.03
WARM_UP = 4  # steps that are not counted: first touches, kernels made for their shapes

BASE = {"model.flavor": "debugmodel", "model.dim": 512, "model.n_layers": 6, "model.n_heads": 8, "model.n_kv_heads": 8, "model.ffn_hidden": 1536,
        "model.vocab_size": 8192, "training.seq_len": 256, "training.local_batch_size": 1, "training.mixed_precision_param": "float32",
        "activation_checkpoint.mode": "none"}
SELECTIVE = {"activation_checkpoint.mode": "selective"}
REPLICAS = {"parallelism.data_parallel_replicate_degree": 2}
BF16 = {"training.mixed_precision_param": "bfloat16"}
WIDE = {"model.dim": 768, "model.n_layers": 4, "model.n_heads": 12, "model.n_kv_heads": 4, "model.ffn_hidden": 2048}
DEEP = {"model.dim": 384, "model.n_layers": 12, "model.n_heads": 6, "model.n_kv_heads": 6, "model.ffn_hidden": 1024}
EXPERTS = {"model.name": "llama3_moe", "model.n_layers": 4, "model.n_experts": 8, "model.top_k": 2, "model.moe_hidden": 512}
PP2 = {"parallelism.pipeline_parallel_degree": 2, "training.seq_len": 128, "training.global_batch_size": 4}
TP2, CP2 = {"parallelism.tensor_parallel_degree": 2}, {"parallelism.context_parallel_degree": 2}

LAYOUTS = {  # name: (ranks, keys)
    "fp32": (1, {}),
    "fp32, sequence 512": (1, {"training.seq_len": 512}),
    "bf16, 4 microbatches": (1, {**BF16, "training.seq_len": 128, "training.global_batch_size": 4}),
    "bf16, wide, 2 rows": (1, {**BF16, **WIDE, "training.local_batch_size": 2, "training.global_batch_size": 2}),
    "bf16, full recomputation": (1, {**BF16, **DEEP, "training.seq_len": 512, "activation_checkpoint.mode": "full"}),
    "float8 rowwise": (1, {**BF16, "model.float8": "true", "float8.recipe_name": "rowwise"}),
    "experts": (1, {**EXPERTS}),
    "offload": (1, {"training.enable_cpu_offload": "true"}),
    "fsdp 2": (2, {"training.global_batch_size": 2}),
    "fsdp 2, bf16, op:1, 2 microbatches": (2, {**BF16, **SELECTIVE, "training.global_batch_size": 4,
                                               "activation_checkpoint.selective_ac_option": "op:1"}),
    "fsdp 2, checkpoints": (2, {"training.global_batch_size": 2, "checkpoint.enable": "true", "checkpoint.interval": 1000}),
    "replicas 2, wide": (2, {**WIDE, **REPLICAS, "training.global_batch_size": 2, "parallelism.data_parallel_shard_degree": 1}),
    "tp 2": (2, {**TP2}),
    "tp 2, bf16, asynchronous": (2, {**TP2, **BF16, "parallelism.enable_async_tensor_parallel": "true", "training.seq_len": 512}),
    "cp 2, sequence 512": (2, {**CP2, "training.seq_len": 512}),
    "pp 2, 1F1B": (2, {**PP2, "parallelism.pipeline_parallel_schedule": "1F1B"}),
    "ep 2, experts, balanced": (2, {**EXPERTS, "parallelism.expert_parallel_degree": 2, "training.global_batch_size": 2,
                                    "debug.moe_force_load_balance": "true"}),
    "hsdp 2 x 2, canonical": (4, {**REPLICAS, "training.seq_len": 128, "training.global_batch_size": 4, "numerics.canonical": "true"}),
    "fsdp 2, tp 2, selective": (4, {**TP2, **SELECTIVE, "training.global_batch_size": 2, "activation_checkpoint.selective_ac_option": "op"}),
    "pp 2, fsdp 2, Interleaved1F1B": (4, {**PP2, "model.n_layers": 8, "parallelism.pipeline_parallel_schedule": "Interleaved1F1B"}),
}


def words_of(number, world, keys):
    """Command-line words of the layout's recipe."""
    keys = {**BASE, "elastic.min_workers": 1, "elastic.max_workers": world, "checkpoint.enable": "false", "metrics.log_freq": 1,
            "training.dataset_path": headers_text(HOME / "text"), "fault_tolerance.redundancy": "checkpoint", **keys}
    file = HOME / f"layout-{number}.toml"
    file.write_text(f'[model]\nname = "{keys.pop("model.name", "llama3")}"\ntokenizer = "bytes"\n')
    return [file, *overrides(keys), "-n", world, "--device", "cpu"]


def checked(done):
    if done.code != 0:
        sys.exit(f"exit {done.code}: {done.err}")
    return done.out


def predict(number, name, table, seconds):
    world, keys = LAYOUTS[name]
    words = words_of(number, world, keys)
    if table:
        checked(command(BIN / "titan-worker", "measure", *words, "--out", table, "--seconds", seconds, timeout=600))
    plan = json.loads(checked(command(BIN / "titan-worker", "plan", *words, "--json", "--costs", table or "none")))
    each = world // len(plan["ranks"])
    return {"layout": name, "ranks": world, "program": plan["program"], "costs": plan["costs"], "step_ms": 1e3 * plan["step_seconds"],
            "mib": sorted((r["memory"]["predicted"] / MIB for r in plan["ranks"] for _ in range(each)), reverse=True),
            "parts": [r["memory"] for r in plan["ranks"]]}


def ranks_of(pid):
    """The processes that train: a single rank is the started one."""
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()] or [pid]
    except OSError:
        return []


def look(pids, peaks):
    """Each rank's own high-water mark; it only rises while a run's steps go on."""
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        found = re.search(r"VmHWM:\s+(\d+)", text)
        if found and "titan" in text.split("\n")[0]:
            peaks[pid] = int(found.group(1)) / 1024


def run(number, name, steps):
    """(median step in ms, MiB of each rank at its peak, program)"""
    world, keys = LAYOUTS[name]
    job, peaks = HOME / f"run-{number}", {}
    shutil.rmtree(job, ignore_errors=True)
    words = [BIN / "titan-worker", "run", *words_of(number, world, keys), "--dir", job, *overrides({"training.steps": steps})]
    worker = subprocess.Popen([str(w) for w in words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    metrics = job / "metrics.jsonl"
    while worker.poll() is None:
        if metrics.exists() and metrics.stat().st_size > 0:  # from the first step on: the mark leaves out what setting up took
            look(ranks_of(worker.pid), peaks)
        time.sleep(0.02)
    err = worker.stderr.read()
    if worker.returncode != 0:
        sys.exit(f"{name}: {err}")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert len(rows) == steps, (name, len(rows))
    program = re.search(r"epoch begins .* program=([0-9a-f]{16}) ", err)
    shutil.rmtree(job / "checkpoint", ignore_errors=True)
    mib = sorted(peaks.values(), reverse=True)[:world] or [rows[-1]["memory_bytes"] / MIB]
    return statistics.median(r["step_ms"] for r in rows[WARM_UP:] or rows), mib, program and program[1]


def difference(predicted, measured):
    return predicted / measured - 1


def worst(predicted, measured):
    """Of the ranks, each beside the one that has as many above it."""
    assert measured
    pairs = list(zip(predicted, measured))
    return max(pairs, key=lambda p: abs(difference(*p)))


def judge(row, timed):
    row["step_off"] = difference(row["step_ms"], row["measured_ms"])
    row["mib_of"] = worst(row["mib"], row["measured_mib"])
    row["mib_off"] = difference(*row["mib_of"])
    row["ok"] = row["same_program"] and abs(row["mib_off"]) <= MEMORY_BOUND and (not timed or abs(row["step_off"]) <= STEP_BOUND)
    return row


def line(row, timed):
    step = "%8.1f | %8.1f | %+5.1f %%" % (row["step_ms"], row["measured_ms"], 100 * row["step_off"]) if timed else "| |"
    if len(row["step_offs"]) > 1:
        step += " (%+.1f to %+.1f)" % (100 * row["step_offs"][0], 100 * row["step_offs"][-1])
    return "| %-36s | %d | %s | %7.1f | %7.1f | %+5.1f %% | %s |" % (row["layout"], row["ranks"], step, *row["mib_of"], 100 * row["mib_off"],
                                                                    "ok" if row["ok"] else "MISSED" if row["same_program"] else "ANOTHER PROGRAM")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--steps", type=int, default=20)
    arguments.add_argument("--measure", type=float, default=3.0, metavar="SECONDS", help="for each program class")
    arguments.add_argument("--rounds", type=int, default=1, help="of measuring, predicting and running; the middle one counts")
    arguments.add_argument("--only", action="append", choices=LAYOUTS, help="a layout; may be given again")
    arguments.add_argument("--memory-only", action="store_true")
    o = arguments.parse_args()
    names, timed, begin = o.only or list(LAYOUTS), not o.memory_only, time.monotonic()
    steps = o.steps if timed else 2  # the first meets all of the arena
    numbers = {name: i for i, name in enumerate(LAYOUTS)}
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    table = HOME / "costs.tsv" if timed else None
    predictions, rows = [], []
    print("| Layout | ranks | step, ms, predicted | measured | difference | MiB, predicted | measured | difference | |\n"
          "|---|---:|---:|---:|---:|---:|---:|---:|---|")
    for name in names:
        rounds = []
        for _ in range(o.rounds if timed else 1):
            predictions.append(predict(numbers[name], name, table, o.measure))
            (HOME / "predictions.json").write_text(json.dumps(predictions, indent=1) + "\n")
            ms, mib, program = run(numbers[name], name, steps)
            same = program == predictions[-1]["program"]
            rounds.append(judge({**predictions[-1], "measured_ms": ms, "measured_mib": mib, "same_program": same}, timed))
        rounds.sort(key=lambda r: r["step_off"])
        rows.append({**rounds[len(rounds) // 2], "step_offs": [r["step_off"] for r in rounds]})
        print(line(rows[-1], timed), flush=True)
        (HOME / "results.json").write_text(json.dumps(rows, indent=1) + "\n")
    within = [sum(abs(r[what]) <= bound for r in rows)
              for what, bound in (("step_off", STEP_BOUND), ("mib_off", MEMORY_BOUND), ("mib_off", MEMORY_GOAL))]
    print("\n" + checked(command(BIN / "titan-worker", "--version")).strip())
    told = f"steps within {100 * STEP_BOUND:.0f} %: {within[0]} of {len(rows)}; " if timed else ""
    print(f"{told}memory within {100 * MEMORY_BOUND:.0f} %: {within[1]}, within {100 * MEMORY_GOAL:.0f} %: {within[2]} of {len(rows)}; "
          f"{time.monotonic() - begin:.0f} s")
    sys.exit(0 if all(r["ok"] for r in rows) else 1)


if __name__ == "__main__":
    main()
