#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make bench-peers`: Titan and PyTorch train the same models on this CPU, by turns; a machine that does nothing else.

    peers.py [--venv FOLDER] [--rounds N] [--cell-seconds S] [--tiny] [PART...]

Parts, and about how long they take on two cores (estimates, from rates of other runs; installing PyTorch comes on top, once):

    step    50 min  134M parameters, 4 x 1,024 tokens a step: one rank, fp32 and bf16, PyTorch plain and compiled; the share of the peak
    ranks   65 min  the same step on four ranks, beside FSDP2 over gloo; what collectives over shared memory take
    matrix 150 min  1M to 1B parameters, sequences of 256 to 8,192 tokens; cells that do not fit are left out and named.
                    Goes on where it was cut off (cells.json; removed, it begins again)
    page     1 s    writes the block of docs/benchmarks.md and docs/peers.svg from build/bench-peers/results.json

With --rounds 1, step takes 25 min and ranks 40. Without PART: step, ranks and matrix; each leaves what it measured in results.json. PyTorch is
installed outside the tree (--venv, default $XDG_CACHE_HOME/titan-peers; its CPU build where that can be reached) unless FOLDER has it.
--tiny: all parts in small and into tiny.json, to try this out."""
import argparse
import array
import json
import math
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean, median

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / d) for d in ("support", "fault")]
from kit import machine, stamp  # noqa: E402
from reliability import rows as table_of, where  # noqa: E402
from titan import BIN, BUILD, SOURCE, children_of, overrides  # noqa: E402

HOME, PEER = BUILD / "bench-peers", Path(__file__).with_name("peers_torch.py")
PAGE, PICTURE = SOURCE / "docs/benchmarks.md", SOURCE / "docs/peers.svg"
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
GIB = 2.0**30
WARM = 2  # steps of ours that are not counted


def shape(dim, layers, heads, ffn, vocab):
    p = layers * (4 * dim**2 + 3 * dim * ffn + 2 * dim) + 2 * vocab * dim + dim
    return {"dim": dim, "layers": layers, "heads": heads, "ffn": ffn, "vocab": vocab, "parameters": p,
            "name": f"{p / 1e9:.1f}B" if p > 9.5e8 else f"{p / 1e6:.0f}M" if p > 9.5e5 else f"{p / 1e3:.0f}k"}


MODELS = [shape(128, 4, 4, 384, 1024), shape(256, 8, 8, 768, 8192), shape(512, 8, 8, 1536, 16384), shape(768, 12, 12, 2048, 32000),
          shape(1024, 24, 16, 2816, 32000), shape(2048, 17, 32, 5632, 32000)]
SEQUENCES = (256, 1024, 4096, 8192)
TINY = [shape(32, 2, 2, 64, 512), shape(64, 2, 2, 128, 512)]
KINDS = [(side, dtype) for side in ("Titan", "eager", "compiled") for dtype in ("fp32", "bf16")]


def flops_of(m, seq):
    """Of a token, by TorchTitan's formula."""
    return 6 * (m["parameters"] - m["vocab"] * m["dim"]) + 12 * m["layers"] * m["dim"] * seq


def bytes_of(m, tokens):
    """What PyTorch needs, roughly: weights, gradients and moments; what backward wants of each layer; the logits three times."""
    return 16 * m["parameters"] + 4 * tokens * (m["layers"] * (16 * m["dim"] + 4 * m["ffn"]) + 3 * m["vocab"])


def interpreter(venv):
    """The folder's interpreter with PyTorch, made and filled where it has none."""
    python = venv / "bin/python"
    if os.access(python, os.X_OK) and subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0:
        return python
    if venv.resolve().is_relative_to(SOURCE):
        sys.exit(f"{venv} is inside the tree: name a folder outside it (PEERS_VENV=path)")
    pins = "".join((SOURCE / "tests/interop" / f).read_text() for f in ("packages-large.txt", "packages.txt"))
    torch, numpy = (re.search(rf"^{name}==.*$", pins, re.M)[0] for name in ("torch", "numpy"))
    print(f"installing {torch} into {venv}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    if subprocess.run([*pip, "--retries", "0", "--timeout", "15", "--index-url", CPU_BUILDS, torch], capture_output=True).returncode != 0:
        print("its CPU build cannot be reached: from PyPI, gigabytes", flush=True)
    subprocess.run([*pip, torch, numpy], check=True)
    return python


# --- one run ----------------------------------------------------------------------------------------------------------------

class Work:
    """A model, its batch, and how long it is measured: at most `most` steps, and none begins after `seconds`."""

    def __init__(self, model, seq, batch, seconds, ranks=1, most=200, weights=None):
        self.model, self.seq, self.batch, self.ranks, self.seconds, self.most, self.weights = model, seq, batch, ranks, seconds, most, weights
        self.limit = 900 + 12 * seconds  # a run is ended then: compiling, settings that are tried, steps that are slow
        self.tokens = HOME / f"tokens-{model['vocab']}.bin"
        if not self.tokens.exists():  # nanoGPT's file; not all are as frequent
            draw = random.Random(1)
            self.tokens.write_bytes(array.array("H", (int(model["vocab"] * draw.random() ** 3) for _ in range(1 << 20))).tobytes())
        self.keys = {"training.seq_len": seq, "training.local_batch_size": batch // ranks, "training.global_batch_size": batch, "training.seed": 7,
                     "training.max_norm": 1.0, "training.steps": 100000, "optimizer.name": "AdamW", "optimizer.lr": 3e-4, "optimizer.beta1": 0.9,
                     "optimizer.beta2": 0.95, "optimizer.eps": 1e-8, "optimizer.weight_decay": 0.1, "lr_scheduler.warmup_steps": 10,
                     "lr_scheduler.decay_ratio": 0.5, "lr_scheduler.min_lr_factor": 0.1}


class Process:
    """In a group of its own, the first that the system ends when memory is short; output goes to files."""

    def __init__(self, name, args, env=None):
        self.files = [HOME / f"{name}.{end}" for end in ("out", "err")]
        with open(self.files[0], "w") as out, open(self.files[1], "w") as err:
            self.process = subprocess.Popen(["sh", "-c", 'echo 1000 >/proc/self/oom_score_adj; exec "$@"', "sh", *map(str, args)], stdout=out,
                                            stderr=err, start_new_session=True, env={**os.environ, **(env or {})})
        self.pid = self.process.pid

    def ended(self):
        """Exit code, before it is ended with all that it started; None where it ran."""
        code = self.process.poll()
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        return code

    def text(self, which=0):
        return self.files[which].read_text(errors="replace")


def reason(code, limit, processes):
    """Why a run has no figures."""
    said = [lines[-1] for p in processes if (lines := [line for line in p.text(1).splitlines() if line[:1].strip()])]
    return {"failed": f"nothing measured within {limit:.0f} s" if code is None else f"ended by signal {-code}" if code < 0 else (said or ["it said nothing"])[0][:200]}


def processor_seconds(pids, threads=("",)):
    return sum(int((task / "schedstat").read_text().split()[0]) / 1e9 for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()
               if (task / "comm").read_text().startswith(threads))


def ours(work, dtype):
    """A run of ours, ended once it has been measured."""
    m, job = work.model, HOME / "run"
    shutil.rmtree(job, ignore_errors=True)
    keys = {**work.keys, "model.name": "llama3", "model.flavor": "tiny", "model.dim": m["dim"], "model.n_layers": m["layers"], "model.n_heads": m["heads"],
            "model.n_kv_heads": m["heads"], "model.ffn_hidden": m["ffn"], "model.vocab_size": m["vocab"], "model.rope_theta": 500000,
            "model.norm_eps": 1e-5, "model.tied_embeddings": "false", "training.mixed_precision_param": {"fp32": "float32", "bf16": "bfloat16"}[dtype],
            "training.dataset_path": work.tokens, "checkpoint.enable": "false", "elastic.max_workers": work.ranks,
            "fault_tolerance.redundancy": "checkpoint"}
    if work.weights:
        keys |= {"checkpoint.initial_load_path": work.weights, "checkpoint.initial_load_in_hf": "true"}
    run = Process("titan", [BIN / "titan-worker", "run", SOURCE / "recipes/tiny.toml", "-n", work.ranks, "--dir", job, "--device", "cpu", *overrides(keys)])
    metrics, begin, first, before, after, steps = job / "metrics.jsonl", time.monotonic(), None, None, None, 0

    def used():
        pids = children_of(run.pid) or [run.pid]
        return processor_seconds(pids), processor_seconds(pids, ("gather", "reduce"))
    while run.process.poll() is None and time.monotonic() - begin < work.limit and not after:
        steps = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        if first is None and steps >= WARM:
            first, before = time.monotonic(), used()
        elif first and steps > WARM and (steps >= WARM + work.most or time.monotonic() - first > work.seconds):
            after = used()
        time.sleep(0.01)
    code = run.ended()
    if not after:
        return reason(code, work.limit, [run])
    told = [json.loads(line) for line in metrics.read_text().splitlines(True) if line.endswith("\n")]
    counted, last = told[WARM:], told[-1]
    parts = {p: sum(r[f"{p}_ms"] for r in counted) for p in ("data", "compute", "communication", "checkpoint", "straggler")}
    total, moving = (b - a for a, b in zip(before, after))
    return {"tokens_per_second": len(counted) * work.batch * work.seq / (last["time_ms"] - told[WARM - 1]["time_ms"]) * 1e3, "steps": len(counted),
            "mib": last["memory_bytes"] * work.ranks / 2**20, "losses": [r["loss"] for r in told], "peak_gflops": 1e3 * work.ranks * last["tflops"] / last["mfu"],
            **{key: 100 * median(r[key] for r in counted) for key in ("mfu", "mfu_causal")}, "moving": 100 * moving / max(total, 1e-9),
            "waits": 100 * (parts["communication"] + parts["straggler"]) / sum(parts.values()), "exposed": 100 * parts["communication"] / sum(parts.values())}


def peer(python, work, dtype, mode, threads, plain_trial=False):
    spec = {**work.model, "seq": work.seq, "dtype": dtype, "mode": mode, "threads": threads, "seconds": work.seconds, "most": work.most,
            "tokens": str(work.tokens), "keys": work.keys, "plain_trial": plain_trial}
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = {"TORCHINDUCTOR_CACHE_DIR": str(HOME / "inductor"), "WORLD_SIZE": str(work.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
           "GLOO_SOCKET_IFNAME": "lo"}
    processes = [Process(f"peer{rank}", [python, PEER, json.dumps(spec)], {**env, "RANK": str(rank)}) for rank in range(work.ranks)]
    begin = time.monotonic()
    while processes[0].process.poll() is None and time.monotonic() - begin < work.limit and not any(p.process.poll() for p in processes):
        time.sleep(0.05)
    codes = [p.ended() for p in processes]
    if codes[0] == 0:
        return json.loads(processes[0].text().splitlines()[-1])
    return reason(next((c for c in codes if c), None), work.limit, [p for p, c in zip(processes, codes) if c])


# --- parts ------------------------------------------------------------------------------------------------------------------

def thread_settings(ranks):
    """That are tried: all cores and half of them; for one of several ranks its share and one more."""
    share = max(1, os.cpu_count() // ranks)
    return sorted({share, share + 1 if ranks > 1 else max(1, share // 2)}, reverse=ranks == 1)


def run_of(python, work, side, dtype, threads, where_in, plain_trial=False):
    r = ours(work, dtype) if side == "Titan" else peer(python, work, dtype, side, threads, plain_trial)
    what = f"failed: {r['failed']}" if "failed" in r else f"{r['tokens_per_second']:,.0f} tokens/s, {r['mib']:,.0f} MiB, {r['steps']} steps"
    print(f"{time.strftime('%H:%M:%S', time.gmtime())} {where_in}, {side} {dtype}: {what}", flush=True)
    return r


def turns(python, work, rounds):
    """{(side, dtype): runs}: every round has all kinds, every other one the other way round. A thread setting is chosen in the first;
    what failed is not tried again. The second precision of a side is ended where it takes far longer than the first, as bf16 does without its instructions."""
    file = work.weights / "model.safetensors"
    if not file.exists():
        work.weights.mkdir(parents=True, exist_ok=True)
        subprocess.run([python, PEER, json.dumps({**work.model, "seq": 1, "write": f"{file}.new"})], check=True)
        os.replace(f"{file}.new", file)
    runs, threads, took, limit = {kind: [] for kind in KINDS}, dict.fromkeys(KINDS, thread_settings(work.ranks)), {}, work.limit
    for number in range(rounds):
        for kind in KINDS[:: -1 if number % 2 else 1]:
            if not any("failed" in r for r in runs[kind]):
                begin, work.limit = time.monotonic(), limit if number else min(limit, 60 + 1.5 * took.get(kind[0], limit))
                runs[kind].append(run_of(python, work, *kind, threads[kind], f"round {number + 1} of {rounds}"))
                took.setdefault(kind[0], limit if "failed" in runs[kind][-1] else time.monotonic() - begin)
                threads[kind] = [runs[kind][0].get("threads")]
    return runs


def good(runs):
    return [r for r in runs if "failed" not in r]


def rate(runs):
    return median(r["tokens_per_second"] for r in good(runs)) if good(runs) else 0


def best(runs, *side):
    """The fastest kind of these; None where none ran."""
    return max((kind for kind in runs if kind[0] in side and rate(runs[kind])), key=lambda kind: rate(runs[kind]), default=None)


def lines_of(runs, parallel):
    out = ["| | tokens/s: median (least, most) | MiB at most | threads; tried |", "|---|---:|---:|---|"]
    for (side, dtype), found in runs.items():
        name, values = f"Titan, {dtype}" if side == "Titan" else f"PyTorch{parallel}, {side}, {dtype}", [r["tokens_per_second"] for r in good(found)]
        if not values:
            out.append(f"| {name} | did not run: {found[0]['failed']} | | |")
            continue
        tried = ", ".join(f"{n}: {v:,.0f}" for n, v in found[0].get("tried", {}).items())
        out.append(f"| {name} | {rate(found):,.0f} ({min(values):,.0f}, {max(values):,.0f}) | {max(r['mib'] for r in good(found)):,.0f} | "
                   f"{found[0].get('threads', '')}{'; ' * bool(tried)}{tried} |")
    return out


def row(what, value, limit, unit="", most=False):
    """value None: there is none, so that a target is missed."""
    return {"what": what, "measured": "not measured" if value is None else f"{value:.1f} %" if unit else f"{value:.2f}",
            "target": limit and f"{'≤' if most else '≥'} {limit}{unit}", "ok": limit and value is not None and (value <= limit if most else value >= limit)}


def ratio_row(runs, side, what, limit):
    own, other = best(runs, "Titan"), best(runs, *side)
    if not own or not other:
        return row(what, None, limit)
    return row(f"{what} ({own[1]} {rate(runs[own]):,.0f}, {other[0]} {other[1]} {rate(runs[other]):,.0f} tokens/s)", rate(runs[own]) / rate(runs[other]), limit)


def losses_row(runs, dtype, limit):
    """Of the first three steps, from the same weights on the same samples: the work is the same."""
    own = [r["losses"] for r in good(runs["Titan", dtype])[:1]]
    theirs = [r["losses"][:3] for (side, d), found in runs.items() if side != "Titan" and d == dtype for r in good(found)]
    off = max((abs(a - b) / b for head in theirs for ours_too in own for a, b in zip(head, ours_too)), default=None)
    return {"what": f"{dtype}: losses of the first steps, furthest from Titan's", "measured": "not measured" if off is None else f"{off:.1e}",
            "target": f"≤ {limit:g}", "ok": off is not None and off <= limit}  # not a number: false


def step_rows(runs, amx):
    rows = [ratio_row(runs, ["compiled"], "a step, Titan / compiled PyTorch, best precision of each", 2.0 if amx else 1.4),
            ratio_row(runs, ["eager"], "a step, Titan / plain PyTorch, best precision of each", None)]
    own, other = best(runs, "Titan"), best(runs, "compiled")
    mib = [max(r["mib"] - r.get("imported_mib", 0) for r in good(runs[kind])) for kind in (own, other) if kind]
    rows.append(row("memory at most of the first two, PyTorch's less what was resident once it was imported", mib[0] / mib[1] if len(mib) == 2 else None, 0.6, most=True))
    for dtype, limit in (("fp32", 70), ("bf16", 35 if amx else None)):
        if found := good(runs["Titan", dtype]):
            of = {key: median(r[key] for r in found) for key in ("mfu", "mfu_causal", "peak_gflops")}
            rows.append(row(f"{dtype}: FLOPs of the whole step, without what causality takes out, of the measured peak of {of['peak_gflops']:,.0f} GFLOP/s "
                            f"(by TorchTitan's formula {of['mfu']:.1f} %)", of["mfu_causal"], limit, " %"))
    return rows


def ranks_rows(runs, _amx):
    own = best(runs, "Titan")
    of = {key: mean(r[key] for r in good(runs[own])) if own else None for key in ("waits", "exposed", "moving")}
    return [ratio_row(runs, ["eager", "compiled"], "a step of 4 ranks, Titan / FSDP2 over gloo, best of each", 3.0),
            row("time in which computing waited for collectives over shared memory, mean of the ranks" + (f" (the least of them {of['exposed']:.1f} %)" if own else ""),
                of["waits"], 5, " %", most=True),
            row("the ranks' processor time that their threads for collectives took", of["moving"], 5, " %", most=True)]


def by_turns(o, python, ranks, rows, text, parallel):
    model, seq = (TINY[0], 64) if o.tiny else (MODELS[3], 1024)
    work = Work(model, seq, 4, 2 if o.tiny else 60 if ranks == 1 else 90, ranks, 8, HOME / f"weights-{model['name']}")
    runs = turns(python, work, o.rounds or (3 if ranks == 1 else 2))
    torch = next((r["torch"] for found in runs.values() for r in found if "torch" in r), "?")
    return {"text": f"{model['name']} parameters, 4 x {seq:,} tokens a step, weights and moments in fp32, nothing recomputed, {sum(map(len, runs.values()))} runs by "
                    f"turns; PyTorch {torch}, fused AdamW; {text}", "lines": lines_of(runs, parallel),
            "rows": [*rows(runs, "amx_bf16" in Path("/proc/cpuinfo").read_text()), losses_row(runs, "fp32", 1e-4), losses_row(runs, "bf16", 1e-2)],
            "runs": {" ".join(kind): found for kind, found in runs.items()}}


def step(o, python):
    return by_turns(o, python, 1, step_rows, "bf16 by autocast. Memory is what was resident at most while it trained.", "")


def ranks(o, python):
    return by_turns(o, python, 4, ranks_rows, "each block and the whole under `fully_shard`, blocks compiled. Memory is the sum over the ranks, of ours four "
                    "times the largest, pages that they share counted in each.", " FSDP2")


def left_out(model, seq, tokens, seconds, flops_per_second, free):
    """Why a cell is not tried; None where it is."""
    need, took = bytes_of(model, tokens) / GIB, flops_of(model, seq) * tokens / flops_per_second
    return f"PyTorch needs about {need:.0f} GiB, {free:.0f} are free" if need > 0.95 * free else f"a step takes some {took:.0f} s" if took > 5 * seconds else None


def matrix(o, python):
    """Cells that this commit has measured before, in a run that was cut off, stay as they are: cells.json."""
    models, sequences, seconds = (TINY, (32, 64), 1) if o.tiny else (MODELS, SEQUENCES, o.cell_seconds)
    cells, speed, file, commit = [], 5e10, HOME / "cells.json", stamp()["commit"]
    kept = json.loads(file.read_text()) if file.exists() else {}
    if kept.get("commit") != commit:
        kept = {"commit": commit, "cells": {}}
    for model in models:
        dtypes, threads = {"Titan": ["fp32", "bf16"], "compiled": ["fp32", "bf16"]}, thread_settings(1)
        for seq in sequences:
            batch = max(1, 1024 // seq)
            free = int(re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())[1]) / 2**20
            name = f"{model['name']} x {seq}"
            why = left_out(model, seq, batch * seq, seconds, speed, free)
            fresh = {"model": model["name"], "parameters": model["parameters"], "seq": seq, "left_out": why}
            cell = kept["cells"].get(name, fresh)
            cells.append(cell)
            for side in dtypes if not cell["left_out"] else ():
                if side not in cell:
                    work = Work(model, seq, batch, seconds)
                    runs = {(side, d): [run_of(python, work, side, d, threads, name, plain_trial=True)] for d in dtypes[side]}
                    kind = best(runs, side) or next(iter(runs))
                    cell[side] = {"dtype": kind[1], **runs[kind][0]}
                if "failed" not in cell[side]:
                    dtypes[side], threads = [cell[side]["dtype"]], [cell[side]["threads"]] if side != "Titan" else threads
                    speed = cell[side]["tokens_per_second"] * flops_of(model, seq)
            kept["cells"][name] = cell
            file.write_text(json.dumps(kept) + "\n")
    ratios = [r for c in cells if (r := ratio_of(c))]
    return {"text": f"One rank, a sequence or as many as make 1,024 tokens a step, {seconds} s a run: tokens/s of Titan, of compiled PyTorch, and their ratio. Each "
                    "has the precision that was the fastest at the model's shortest sequence, and PyTorch the threads that were, tried compiled where two settings came close.", "lines": matrix_lines(cells, sequences),
            "rows": [row(f"tokens/s, Titan / compiled PyTorch, least of {len(ratios)} cells", min(ratios, default=None), 1)], "cells": cells}


def rate_of(cell, side):
    return cell.get(side, {}).get("tokens_per_second")


def ratio_of(cell):
    own, other = rate_of(cell, "Titan"), rate_of(cell, "compiled")
    return own / other if own and other else None


def matrix_lines(cells, sequences):
    out, left = ["| parameters | " + " | ".join(f"{s:,}" for s in sequences) + " |", "|---|" + "---:|" * len(sequences)], []
    for name in dict.fromkeys(c["model"] for c in cells):
        texts = []
        for c in (c for c in cells if c["model"] == name):
            why = {"": c["left_out"], **{f", {side}": c.get(side, {}).get("failed") for side in ("Titan", "compiled")}}
            left += [f"{name} x {c['seq']:,}{side}: {text}" for side, text in why.items() if text]
            rates = [f"{rate_of(c, side):,.0f}" if rate_of(c, side) else "-" for side in ("Titan", "compiled")]
            texts.append("" if c["left_out"] else f"{rates[0]}, {rates[1]}" + (f": {ratio_of(c):.2f}" if ratio_of(c) else ""))
        out.append(f"| {name} | {' | '.join(texts)} |")
    return out + (["", "Left out: " + "; ".join(left) + "."] if left else [])


# --- the page ---------------------------------------------------------------------------------------------------------------

def short(n):
    return next((f"{n // of:,}{unit}" for of, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")) if n >= of), str(n))


def picture(cells):
    """tokens/s over parameters, both by their logarithms; a colour for each length, a dot for each cell."""
    w, h, left, top, right, bottom = 860, 380, 64, 40, 120, 52
    points = {(side, c["seq"], c["parameters"]): v for c in cells for side in ("Titan", "compiled") if (v := rate_of(c, side))}
    xs, ys = [math.log10(p) for _, _, p in points], [math.log10(v) for v in points.values()]
    x0, x1, y0, y1 = min(xs) - 0.1, max(xs) + 0.1, min(ys) - 0.1, max(ys) + 0.1

    def x(p):
        return round(left + (w - left - right) * (math.log10(p) - x0) / (x1 - x0), 1)

    def y(v):
        return round(top + (h - top - bottom) * (y1 - math.log10(v)) / (y1 - y0), 1)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="#fff"/>', f'<text x="{left}" y="22" font-size="13">tokens/s: Titan whole lines, compiled PyTorch broken ones</text>',
           f'<text x="{(left + w - right) / 2}" y="{h - 12}" text-anchor="middle">parameters</text>']
    for v in (10**e for e in range(math.ceil(y0), math.floor(y1) + 1)):
        out.append(f'<path d="M{left} {y(v)}H{w - right}" stroke="#ddd"/><text x="{left - 8}" y="{y(v) + 4}" text-anchor="end">{v:,}</text>')
    for p in (10**e for e in range(math.ceil(x0), math.floor(x1) + 1)):
        out.append(f'<path d="M{x(p)} {top}V{h - bottom}" stroke="#ddd"/><text x="{x(p)}" y="{h - bottom + 18}" text-anchor="middle">{short(p)}</text>')
    for i, seq in enumerate(sorted({seq for _, seq, _ in points})):
        colour = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")[i % 4]
        out.append(f'<text x="{w - right + 12}" y="{top + 16 * i + 12}" fill="{colour}">{seq:,} tokens</text>')
        for side, broken in (("Titan", ""), ("compiled", ' stroke-dasharray="5 4"')):
            line = [(x(p), y(v)) for (of, s, p), v in points.items() if (of, s) == (side, seq)]
            out.append(f'<polyline points="{" ".join(f"{px},{py}" for px, py in line)}" fill="none" stroke="{colour}" stroke-width="1.6"{broken}/>')
            out += [f'<circle cx="{px}" cy="{py}" r="2.6" fill="{colour}"/>' for px, py in line]
    return "\n".join([*out, "</svg>"]) + "\n"


def block(part, r):
    """What the page says of a part; r None: it has not run."""
    title = {"step": "One rank", "ranks": "Four ranks", "matrix": "Sizes and lengths"}[part]
    if not r:
        return f"**{title}.** Not measured yet: `make bench-peers PART={part}`."
    drawn = ["![tokens/s over parameters](peers.svg)", ""] if any(map(ratio_of, r.get("cells", []))) else []
    return "\n".join([f"**{title}.** {where(r)} {r['text']}", "", *r["lines"], "", *drawn, *table_of({"rows": r["rows"]})])


def page(results):
    body = "\n\n".join(block(part, results.get(part)) for part in PARTS)
    text, found = re.subn(r"(<!-- peers: begin -->\n).*(\n<!-- peers: end -->)", lambda m: m[1] + body + m[2], PAGE.read_text(), flags=re.S)
    assert found == 1, f"{PAGE} has no block for peers"
    PAGE.write_text(text)
    if any(map(ratio_of, results.get("matrix", {}).get("cells", []))):
        PICTURE.write_text(picture(results["matrix"]["cells"]))
    print(f"written to {PAGE.relative_to(SOURCE)}")


PARTS = {"step": step, "ranks": ranks, "matrix": matrix}


def main():
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("parts", nargs="*", metavar="PART", help="step, ranks, matrix, page")
    words.add_argument("--venv", type=Path, default=cache / "titan-peers", help="with PyTorch, or where it is installed")
    words.add_argument("--rounds", type=int, help="of step (3) and ranks (2)")
    words.add_argument("--cell-seconds", type=int, default=20, help="of each run of matrix (20)")
    words.add_argument("--tiny", action="store_true")
    o = words.parse_args()
    parts = o.parts or list(PARTS)
    if unknown := set(parts) - {*PARTS, "page"}:
        words.error(f"no part {', '.join(sorted(unknown))}")
    HOME.mkdir(parents=True, exist_ok=True)
    file = HOME / ("tiny.json" if o.tiny else "results.json")
    for part in parts:
        kept = json.loads(file.read_text()) if file.exists() else {}
        if part == "page":
            page(kept)
            continue
        said = f"--rounds {o.rounds}" if o.rounds else f"--cell-seconds {o.cell_seconds}" if part == "matrix" and o.cell_seconds != 20 else ""
        head = {**stamp(), "machine": machine(), "command": f"make bench-peers PART={part}" + f' ARGS="{said}"' * bool(said)}
        kept[part] = {**head, **PARTS[part](o, interpreter(o.venv))}
        file.write_text(json.dumps(kept, indent=1) + "\n")
        print(f"\n{block(part, kept[part])}\n", flush=True)


if __name__ == "__main__":
    main()
