#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Figures about Titan on this machine, printed and written to build/bench/summary.json.

Each figure stands beside the target or the peer it is measured against in the same run. Nothing here passes or fails.
"""
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import interop  # noqa: E402
import page  # noqa: E402
import waits  # noqa: E402
from nodes import Cluster  # noqa: E402
from parts import Parts  # noqa: E402
from titan import BIN, BUILD, SOURCE, Daemon, at_ms, command, headers_text, overrides, until, worker_pids  # noqa: E402

HOME = BUILD / "bench"


def run(*args):
    done = command(*args, timeout=600)
    if done.code != 0:
        sys.exit(f"{' '.join(map(str, args))}: exit {done.code}: {done.err}")
    return done.out


def text():
    """A few megabytes of C headers: the same kind of text the demo trains on."""
    return headers_text(HOME / "text", 4 << 20)


def start_latency():
    state = HOME / "start"
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir(parents=True)
    out = json.loads(run(BUILD / "tests/bench/start_latency", BIN / "titand", state, 10))
    return {**out, "target_ms": 50}


def quiet(seconds=20):
    """What titand costs that has nothing to do, and the agent beside four workers that train: wakes of all its threads, and their processor time."""
    def spent(pid):
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return (sum(int((t / "status").read_text().split("\nvoluntary_ctxt_switches:")[1].split()[0]) for t in tasks),
                sum(int((t / "schedstat").read_text().split()[0]) for t in tasks))

    def rates(pids):
        before, begin = [spent(pid) for pid in pids], time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - begin
        return [{"wakes_per_second": (wakes - w) / took, "percent": 100 * (ns - n) / 1e9 / took}
                for (wakes, ns), (w, n) in zip((spent(pid) for pid in pids), before)]

    out = {"target_wakes": 10, "target_percent": 0.2, "target_training_percent": 1}
    with Daemon(HOME / "quiet") as d:
        time.sleep(10)
        out["dev"], = rates([d.process.pid])
    with Cluster(slots={"n1": 4}) as c:
        time.sleep(10)
        out["coordinator"], out["agent"] = rates([c.processes["c"].pid, c.processes["n1"].pid])
        keys = {"training.dataset_path": text(), "training.steps": 1000000, "checkpoint.enable": "false"}
        job = c.ctl("submit", SOURCE / "recipes/debug.toml", *overrides(keys)).strip()
        first, begin = c.training(job, 4, 2)["step"], time.monotonic()
        out["agent_beside_training"], = rates([c.processes["n1"].pid])
        out["step_ms"] = 1000 * (time.monotonic() - begin) / (c.training(job, 4, first + 1)["step"] - first)
        c.ctl("cancel", job)
    return out


def quiet_rows(r):
    for what, name in (("dev", "titand dev"), ("coordinator", "a coordinator"), ("agent", "an agent")):
        yield f"{name} with nothing to do wakes", f"{r[what]['wakes_per_second']:.1f} a second", f"{r['target_wakes']} a second"
        yield f"{name} with nothing to do, of a core", f"{r[what]['percent']:.2g} %", f"{r['target_percent']} %"
    yield f"an agent beside 4 workers, {r['step_ms']:.0f} ms a step, of a core", f"{r['agent_beside_training']['percent']:.2g} %", f"{r['target_training_percent']} %"


def first_step():
    """Submit to the first finished training step, by the job's and the metrics' own times."""
    values = []
    with Daemon(HOME / "first") as d:
        for _ in range(5):
            job = d.submit("debug", {"training.dataset_path": text(), "training.steps": 2, "checkpoint.enable": "false"})
            d.ok("wait", job)
            values.append(at_ms(d.lines("metrics", job)[0]["at"]) - at_ms(d.status(job)["submitted_at"]))
    values.sort()
    return {"rounds": len(values), "min_ms": values[0], "median_ms": values[2], "max_ms": values[-1], "target_ms": 300}


def durable_submits():
    """The only node is drained, so that nothing but accepting is measured: no job trains on the processors that this takes."""
    out = {}
    queued = HOME / "load.toml"
    queued.write_text(recipe_with_data(SOURCE / "recipes/tiny.toml"))
    for connections, in_flight in ((1, 64), (64, 256)):
        with Daemon(HOME / f"submits{connections}", "--slots", "1", "--node", "here") as d:
            d.ok("drain", "here")

            def load(n, rate):
                return json.loads(run(BUILD / "tests/bench/submit_load", d.server, queued, connections, in_flight, n, rate))
            out[f"{connections}_connections"] = load(20000, 0)
            # A disk has its moments: the one in the middle of five.
            out[f"{connections}_connections_at_5000"] = sorted((load(15000, 5000) for _ in range(5)), key=lambda o: o["submit_p99_ms"])[2]
    return {**out, "target_per_second": 5000, "target_submit_p99_ms_at_5000": 10, "target_status_p99_ms_at_5000": 2}


def store_start():
    """A coordinator over a store with many jobs that was left by a kill."""
    return {name: json.loads(run(BUILD / "tests/bench/store_start", HOME / "store", 100000, waiting))
            for name, waiting in (("all_ended", 0), ("all_waiting", 100000))} | {"target_ms": 1000}


def recipe_with_data(recipe):
    """The recipe's text with dataset_path filled in (the load program sends it as it is)."""
    lines, done = [], False
    for line in recipe.read_text().splitlines():
        if line.strip().startswith("dataset_path"):
            continue
        lines.append(line)
        if line.strip() == "[training]" and not done:
            lines.append(f'dataset_path = "{text()}"')
            done = True
    return "\n".join(lines) + "\n"


def tokens_per_second(n, threads, steps=24):
    job = HOME / f"rate-{n}"
    shutil.rmtree(job, ignore_errors=True)
    run(BIN / "titan-worker", "run", SOURCE / "recipes/demo.toml", "-n", n, "--dir", job,
        *overrides({"training.dataset_path": text(), "training.steps": steps, "checkpoint.enable": "false",
                    "device.threads": threads, "elastic.min_workers": 1}))
    rates = sorted(json.loads(line)["tokens_per_second"] for line in open(job / "metrics.jsonl"))
    return rates[len(rates) // 2]


def scaling():
    rounds = [(tokens_per_second(4, 1), tokens_per_second(1, 2)) for _ in range(2)]
    four, one = max(r[0] for r in rounds), max(r[1] for r in rounds)
    return {"four_workers_tokens_per_second": four, "one_worker_two_threads_tokens_per_second": one,
            "ratio": four / one, "target_ratio": 0.8}


def recovery():
    """SIGKILL of a worker to the next finished step, by the coordinator's events; the demo's model."""
    def recovered():
        return [e["detail"]["recovery_ms"] for e in d.lines("events", job) if e["type"] == "recovery.finished"]

    def whole():
        status = d.status(job)
        return status["state"] == "RUNNING" and status["world_size"] == 4 and status["checkpoint"]

    with Daemon(HOME / "recovery", "--slots", "4") as d:
        job = d.submit("demo", {"training.dataset_path": text(), "training.steps": 100000, "checkpoint.interval": 10,
                                "fault_tolerance.max_restarts": 100})
        for done in range(5):
            until("four workers train", whole, 120)
            time.sleep(2)  # some steps behind the newest checkpoint, as in life
            workers = d.workers(job)
            os.kill(workers[max(workers)], signal.SIGKILL)
            until("the run has recovered", lambda: len(recovered()) > done, 60)
        values = sorted(recovered())
        d.ok("cancel", job)
    return {"rounds": len(values), "min_ms": values[0], "median_ms": values[len(values) // 2], "max_ms": values[-1],
            "target_ms": 1000}


# --- a run that does not stop: docs/reliability.md ------------------------------------------------------------------------

def processor_seconds(marker, threads=("",)):
    """What the threads of these names (part of, "": all) have used in the live processes with marker in the command line."""
    return sum(int((task / "schedstat").read_text().split()[0]) for pid in worker_pids(marker)
               for task in Path(f"/proc/{pid}/task").iterdir()
               if any(name in (task / "comm").read_text() for name in threads)) / 1e9


BUDDY_THREADS = ("to buddy", "of owner")  # worker/elastic/buddy.c


class Trainer:
    """Four workers of the demo's model that train only in their turns."""

    def __init__(self, name, keys, programs=BIN):
        self.job = HOME / f"cost-{name}"
        shutil.rmtree(self.job, ignore_errors=True)
        self.metrics = self.job / "metrics.jsonl"
        self.process = subprocess.Popen(
            [str(a) for a in (programs / "titan-worker", "run", SOURCE / "recipes/demo.toml", "-n", 4, "--dir", self.job,
                              *overrides({"training.dataset_path": text(), "training.steps": 100000, "checkpoint.enable": "false",
                                          "device.threads": 1, **keys}))], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True)
        self.await_step(3)
        self.signal(signal.SIGSTOP)

    def signal(self, number):
        os.killpg(self.process.pid, number)

    def steps(self):
        return self.metrics.read_bytes().count(b"\n") if self.metrics.exists() else 0

    def await_step(self, step):
        until(f"{self.job.name} is at step {step}", lambda: self.steps() >= step or self.process.poll() is not None, 120, 0.001)
        if self.process.poll() is not None:
            sys.exit(f"{self.job.name} ended at step {self.steps()}")

    def turn(self, steps):
        """What a step takes, of so many whole ones: the one it was stopped in is left out."""
        def used():
            return time.monotonic(), processor_seconds(self.job), processor_seconds(self.job, BUDDY_THREADS)
        first = self.steps() + 1
        self.signal(signal.SIGCONT)
        self.await_step(first)
        begin = used()
        self.await_step(first + steps)
        cost = [1e3 * (b - a) / steps for a, b in zip(begin, used())]
        self.signal(signal.SIGSTOP)
        return dict(zip(("step_ms", "processor_ms", "keeper_ms"), cost))

    def end(self):
        self.signal(signal.SIGKILL)
        self.process.wait()


def by_turns(trainers, turns, steps):
    """{kind: what a step took in each turn}; ends the trainers."""
    costs = {kind: [] for kind in trainers}
    for turn in range(turns):
        for kind in trainers if turn % 2 else reversed(trainers):
            costs[kind].append(trainers[kind].turn(steps))
    for trainer in trainers.values():
        trainer.end()
    return costs


def more(costs, kind, than, what):
    """Percent that kind takes more of what, over all turns, and the standard error of that."""
    ratios = [a[what] / b[what] for a, b in zip(costs[kind], costs[than])]
    return (100 * (statistics.mean(c[what] for c in costs[kind]) / statistics.mean(c[what] for c in costs[than]) - 1),
            100 * statistics.stdev(ratios) / len(ratios) ** 0.5)


def redundancy(turns=40):
    """What buddies cost: two runs, with and without them, train by turns of a second or three, so that whatever else the
    machine does is done to both. A turn is 5 to 10 % off the next all the same, so the threads' own time is told as well."""
    out = []
    for tokens, batch, steps in ((1024, 8, 8), (8192, 64, 2)):
        kinds = ("checkpoint", "buddy")
        trainers = {kind: Trainer(kind, {"fault_tolerance.redundancy": kind, "training.global_batch_size": batch}) for kind in kinds}
        costs = by_turns(trainers, turns, steps)
        percent, error = more(costs, "buddy", "checkpoint", "step_ms")
        mean = {kind: {what: statistics.mean(c[what] for c in costs[kind]) for what in costs[kind][0]} for kind in kinds}
        out.append({"tokens_per_step": tokens, "turns": turns, "mean": mean,
                    "step_percent": percent, "step_percent_error": error,
                    "threads_percent": 100 * mean["buddy"]["keeper_ms"] / mean["buddy"]["processor_ms"]})
        print(f"  {tokens} tokens a step: {json.dumps(mean)}", flush=True)
    return out


# --- hardening ------------------------------------------------------------------------------------------------------------

def hardening(turns=40, pairs=6):
    """What hardening costs: programs of this build and of HARDEN=0 by turns, the same inputs."""
    env = {name: value for name, value in os.environ.items() if name not in ("BUILD", "MAKEFLAGS")}
    subprocess.run(["make", "--no-print-directory", "-s", "HARDEN=0"], cwd=SOURCE, env=env, check=True)
    programs = {"hardened": BIN, "unhardened": SOURCE / "build/release-unhardened/bin"}
    costs = by_turns({kind: Trainer(kind, {"training.global_batch_size": 64}, where) for kind, where in programs.items()}, turns, 2)
    out = {"turns": turns, "pairs": pairs, "costs": costs}
    for what in ("step", "processor"):
        out[f"{what}_percent"], out[f"{what}_percent_error"] = more(costs, "hardened", "unhardened", f"{what}_ms")
    queued = HOME / "load.toml"
    queued.write_text(recipe_with_data(SOURCE / "recipes/tiny.toml"))

    def submits(where):
        with Daemon(HOME / "hardening", "--slots", "1", "--node", "here", program=where / "titand") as d:
            d.ok("drain", "here")
            return json.loads(run(BUILD / "tests/bench/submit_load", d.server, queued, 1, 64, 10000, 0))["submits_per_second"]
    rates = {kind: [] for kind in programs}
    for pair in range(pairs):
        for kind in programs if pair % 2 else reversed(programs):
            rates[kind].append(submits(programs[kind]))
    return {**out, "submits_per_second": rates,
            "submits_ratio": statistics.median(a / b for a, b in zip(rates["hardened"], rates["unhardened"]))}


def elastic_rows():
    """What each figure is measured against: name, figure, target."""
    import faults_daemons
    import faults_network
    import faults_workers
    from kit import Record, figures

    def measured(work, rounds):
        begin, record = time.monotonic(), Record("bench")
        work(rounds, random.Random("bench"), record)
        print(f"  {work.__name__}: {rounds} rounds in {time.monotonic() - begin:.0f} s", flush=True)
        return {name: figures(v) for name, v in record.values.items()}

    def row(what, value, limit, unit=" ms", least=False):
        return {"what": what, "measured": f"{value:,.{0 if value >= 100 else 2}f}{unit}",
                "target": None if limit is None else f"{'≥' if least else '≤'} {limit:,}{unit}",
                "ok": None if limit is None else value >= limit if least else value <= limit}

    def of_rounds(what, f, statistic, limit, unit=" ms"):
        return row(f"{what}, {statistic} of {f['rounds']}", f[statistic], limit, unit)
    deaths = measured(faults_workers.worker_killed, 100)
    yield of_rounds("death of a worker noticed", deaths["noticed_ms"], "p99", 5)
    yield of_rounds("SIGKILL of a worker to the next step finished", deaths["resumed_ms"], "median", 300)
    yield of_rounds("SIGKILL of a worker to the next step finished", deaths["resumed_ms"], "p99", 1000)
    yield of_rounds("committed steps lost", deaths["steps_lost"], "max", 0, "")
    cut = measured(faults_network.node_cut_off, 20)
    yield of_rounds("node cut off to the survivors' next step", cut["resumed_ms"], "p99", 1500)
    away = measured(faults_daemons.coordinator_killed, 20)
    yield of_rounds("coordinator killed: training's pause", away["pause_ms"], "p99", 50)
    yield of_rounds("coordinator killed: API back", away["api_back_ms"], "p99", 1000)
    resize = measured(faults_network.resized, 7)
    yield of_rounds("resize 4, 3, 5, 4: stall in steps, losses bit-identical", resize["stall_steps"], "max", 1, " steps")
    for cost in redundancy():
        limit = 3 if cost["tokens_per_step"] == 8192 else None
        label = f"buddies at {cost['tokens_per_step']:,} tokens a step"
        yield row(f"{label}: a step's time, more than without, mean of {cost['turns']} turns (standard error {cost['step_percent_error']:.1f} %)",
                  cost["step_percent"], limit, " %")
        yield row(f"{label}: their threads' part of the processor time", cost["threads_percent"], limit, " %")
    submits = durable_submits()
    for n, in_flight in ((1, 64), (64, 256)):
        yield row(f"durable submits, {connections_of(n)}, {in_flight} in flight", submits[f"{n}_connections"]["submits_per_second"], 5000,
                  " a second", least=True)
        of = submits[f"{n}_connections_at_5000"]
        # Sixty-four clients in one process, on two processors with the daemon: a figure to compare, no target.
        yield row(f"5,000 durable submits a second, {connections_of(n)}: a submit, p99, middle of 5", of["submit_p99_ms"],
                  10 if n == 1 else None)
        yield row(f"5,000 durable submits a second, {connections_of(n)}: status meanwhile, p99", of["status_p99_ms"], 2 if n == 1 else None)


def connections_of(n):
    return f"{n} connection" + "s" * (n > 1)


def elastic():
    """Rows beside their targets, also written to build/bench/results.json for docs/reliability.md: after each, so that what
    was measured is there also when a later one ends in an error."""
    sys.path.insert(0, str(SOURCE / "tests/fault"))
    import cluster
    from kit import machine, stamp
    why = cluster.missing()
    if why:
        return {"skipped": why}
    (BUILD / "fault").mkdir(parents=True, exist_ok=True)
    head, rows = {**stamp(), "machine": machine(), "command": "make bench PART=elastic"}, []
    for row in elastic_rows():
        rows.append(row)
        print(f"  {row['what']}: {row['measured']} ({row['target'] or 'no target'})", flush=True)
        (HOME / "results.json").write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")
    return rows


# --- saving ---------------------------------------------------------------------------------------------------------

# GPT-2's 124M shape: 12 layers, 12 heads of 64, dim 768, the head is the embedding's matrix. A save copies
# 12 bytes a parameter, a step has 6 operations a parameter and token: their ratio depends on the tokens of a step. QUARTER has a quarter
# of the width, heads and vocabulary, and nearly that ratio, in steps that are short enough for a save every 20 of them.
SHAPE_124M = {"model.flavor": "debugmodel", "model.dim": 768, "model.n_layers": 12, "model.n_heads": 12, "model.n_kv_heads": 12,
              "model.ffn_hidden": 2048, "model.vocab_size": 50304, "model.tied_embeddings": "true", "training.seq_len": 1024, "training.local_batch_size": 1}
QUARTER = {**SHAPE_124M, "model.dim": 192, "model.n_heads": 3, "model.n_kv_heads": 3, "model.ffn_hidden": 512, "model.vocab_size": 12576}
LARGE = {**SHAPE_124M, "model.n_layers": 4, "model.vocab_size": 12576, "model.tied_embeddings": "false", "training.seq_len": 64}
SAVED = re.compile(r'"?checkpoint written"? .*?step=(\d+) bytes=(\d+) waited_ms=([\d.]+) written_ms=([\d.]+)')


def recipe_of(name, world, keys):
    """Command-line words of a recipe for so many ranks."""
    file = HOME / f"{name}.toml"
    file.write_text('[model]\nname = "llama3"\ntokenizer = "bytes"\n')
    return [file, *overrides({"elastic.min_workers": 1, "elastic.max_workers": world, **keys})]


def saved(name, ranks, keys):
    """{step: (bytes, ms that training stood still, ms from there to the commit)} and {step: ms} of one run."""
    job = HOME / f"saved-{name}"
    shutil.rmtree(job, ignore_errors=True)
    done = command(BIN / "titan-worker", "run", *recipe_of(f"saved-{name}", ranks, {
        "training.dataset_path": text(), "checkpoint.enable": "true", "checkpoint.last_save_model_only": "false",
        "checkpoint.keep_latest_k": 1, "device.threads": 1, "metrics.log_freq": 1, "fault_tolerance.redundancy": "checkpoint", **keys}),
        "-n", ranks, "--dir", job, timeout=3600)
    if done.code != 0:
        sys.exit(f"{name}: {done.err}")
    saves = {int(s): (int(b), float(w), float(ms)) for s, b, w, ms in SAVED.findall(done.out + done.err)}
    steps = {m["step"]: m["step_ms"] for m in map(json.loads, open(job / "metrics.jsonl"))}
    shutil.rmtree(job / "checkpoint")
    return saves, steps


def sequential_ms(size, block=1 << 20):
    """One file of so many bytes that do not compress, written in order and synced."""
    data, path = os.urandom(block), HOME / "sequential"
    begin = time.monotonic()
    with open(path, "wb", buffering=0) as f:
        for at in range(0, size, block):
            f.write(data[:size - at])
        os.fsync(f.fileno())
    took = time.monotonic() - begin
    path.unlink()
    return 1e3 * took


def stalls(name, keys, steps, interval, tokens=8192):
    """The worst of the saves that did not end the run, against a step without one. What copying and writing take of the cores is in the
    step behind the save."""
    saves, took = saved(name, 2, {**keys, "training.global_batch_size": tokens // 1024, "training.steps": steps, "checkpoint.interval": interval})
    between = [(waited, size, ms) for step, (size, waited, ms) in saves.items() if step < steps]
    plain = statistics.median(ms for step, ms in took.items() if step > 1 and step - 1 not in saves)
    behind = statistics.median(ms for step, ms in took.items() if step - 1 in saves)
    stall = max(waited for waited, _, _ in between)
    return {"saves": len(between), "mib": between[0][1] / 2**20, "stall_ms": stall, "step_ms": plain, "of_a_step": stall / plain,
            "step_behind_a_save_ms": behind, "longer_behind_a_save": behind / plain - 1, "written_ms": max(ms for _, _, ms in between)}


def checkpoint(rounds=5):
    """What a save costs training, and how fast it gets to the disk: by turns with one file written in order."""
    out = {"tokens_per_step": 8192, "target_of_a_step": 0.01, "target_write_ratio": 0.8}
    for name, args in (("every_20", (QUARTER, 41, 20)), ("of_124m", (SHAPE_124M, 4, 2))):
        out[name] = stalls(name, *args)
        print(f"  {name}: {json.dumps(out[name])}", flush=True)
    pairs = []
    for n in range(rounds):
        saves, _ = saved("rate", 2, {**LARGE, "training.global_batch_size": 2, "training.steps": 1, "checkpoint.interval": 1})
        size, _, written = saves[1]
        pairs.append((written, sequential_ms(size)))
    out["mib"] = size / 2**20
    out["saved_ms"], out["sequential_ms"] = (statistics.median(p[i] for p in pairs) for i in (0, 1))
    out["write_ratio"] = statistics.median(b / a for a, b in pairs)
    out["write_ratios"] = [b / a for a, b in pairs]
    return out


# --- the step as a program ------------------------------------------------------------------------------------------

def passes():
    """Simulated step of 8B on 8 H100s at each setting of the passes. What a setting hides is what the plain program's
    compute stream stood still for and this one's does not."""
    rows = []
    for prefetch in (0, 1, 2):
        for bucketing in ("block", "greedy"):
            for reorder in ("false", "true"):
                keys = {"parallelism.fsdp_prefetch": prefetch, "parallelism.fsdp_bucketing": bucketing,
                        "parallelism.fsdp_reorder": reorder}
                plan = json.loads(run(BIN / "titan-worker", "plan", SOURCE / "recipes/llama3_8b.toml", "--world", 8,
                                      "--json", *overrides(keys)))
                seconds = plan["ranks"][0]["seconds"]
                rows.append({"prefetch": prefetch, "bucketing": bucketing, "reorder": reorder == "true",
                             "step_ms": 1e3 * plan["step_seconds"],
                             "exposed_ms": 1e3 * sum(v for k, v in seconds.items() if k.startswith("waiting")),
                             "memory_gib": plan["ranks"][0]["memory"]["planned"] / 2**30})
    plain = rows[0]
    for r in rows:
        r["won_ms"] = plain["step_ms"] - r["step_ms"]
        r["hidden_ms"] = plain["exposed_ms"] - r["exposed_ms"]
        print("  prefetch %d, %-6s reorder %-5s %9.2f ms, exposed %7.2f, won %6.2f, hidden %6.2f, %6.2f GiB" % (
            r["prefetch"], r["bucketing"], r["reorder"], r["step_ms"], r["exposed_ms"], r["won_ms"], r["hidden_ms"],
            r["memory_gib"]), flush=True)
    return rows


def planning():
    """Wall time and memory of planning, checking and simulating; /usr/bin/time's figures."""
    out = []
    for name, recipe, words, target in (
            ("debug on 8", "debug", ["--world", 8], None), ("8B on 8", "llama3_8b", ["--world", 8], None),
            ("405B on 512", "llama3_405b_pp", ["--world", 512], 5),
            ("405B on 16384", "llama3_405b_pp", ["--world", 16384, "--set", "training.global_batch_size=2048"], 60)):
        done = command("/usr/bin/time", "-f", "%e %U %M", BIN / "titan-worker", "plan", SOURCE / f"recipes/{recipe}.toml",
                       *words, timeout=600)
        if done.code != 0:
            sys.exit(f"plan {name}: {done.err}")
        seconds, cpu, kib = done.err.strip().splitlines()[-1].split()
        out.append({"plan": name, "seconds": float(seconds), "cpu_seconds": float(cpu), "mib": int(kib) / 1024,
                    "target_seconds": target, "target_mib": 2048 if target else None})
    return out


def proofs():
    """What proving datagrams costs a step: every datagram of this machine while four workers on two nodes train, made and checked
    once each."""
    def datagrams():
        rows = [line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if line.startswith("Udp:")]
        return int(dict(zip(*rows))["OutDatagrams"])

    one = json.loads(run(BUILD / "tests/bench/bench_proofs"))
    with Cluster() as c:
        job = c.submit({"training.dataset_path": text(), "training.steps": 1000000, "checkpoint.enable": "false"})
        first = c.training(job, 4, 20)["step"]
        before, begin = datagrams(), time.monotonic()
        last = c.training(job, 4, first + 500)["step"]
        seconds, sent = time.monotonic() - begin, datagrams() - before
        c.ctl("cancel", job)
    step_ns = 1e9 * seconds / (last - first)
    share = sent / (last - first) * (one["make_ns"] + one["check_ns"]) / step_ns
    return {**one, "datagrams_per_second": sent / seconds, "step_ms": step_ns / 1e6, "share": share, "target_share": 0.01}


def tokenizer():
    """Encoding against tiktoken's, a thread each: on the texts of shared/data where they are, otherwise on headers of C."""
    interpreter, why = interop.python("tokenizers", "tiktoken")
    if why:
        return {"skipped": why}
    texts = sorted((SOURCE.parent / "shared/data/text").glob("*.txt")) or sorted(p for p in headers_text(HOME / "headers").rglob("*") if p.is_file())
    text = HOME / "tokenizer.txt"
    text.write_text("".join(p.read_text(errors="replace") for p in texts)[:4 << 20])
    return json.loads(run(interpreter, SOURCE / "tests/bench/tokenizer.py", BUILD / "tests/bench/bench_tokenizer", text, HOME))


def fingerprint():
    """1 TiB of shards, all holes but for their headers: only what is read of them costs time."""
    folder = HOME / "shards"
    folder.mkdir(exist_ok=True)
    return json.loads(run(BUILD / "tests/bench/bench_fingerprint", folder))


def opened(browser, page):
    """Seconds until the browser has shown a page and ended, and milliseconds until its script was through and it was laid out."""
    said = page.with_suffix(".timed.html")
    said.write_text(page.read_text().replace("</body>", "<script>document.body.offsetHeight; document.documentElement.dataset.ms = performance.now();"
                                                         "</script></body>"))
    home = HOME / "browser"
    shutil.rmtree(home, ignore_errors=True)
    begin = time.monotonic()
    done = command(browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={home}",
                   "--window-size=1200,2400", "--dump-dom", said.as_uri(), timeout=600)
    seconds = time.monotonic() - begin
    found = re.search(r'data-ms="([\d.]+)"', done.out)
    if done.code != 0 or not found:
        sys.exit(f"{browser}: exit {done.code}: {done.err}")
    return seconds, float(found[1])


def report(steps=1000000, rounds=5):
    """The page of a job with a million steps: what it takes to write, and a browser to open; a page with nothing on it beside it."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    written, empty = HOME / "report.html", HOME / "empty.html"
    out = json.loads(run(BUILD / "tests/bench/report_page", steps, written))
    if not browser:
        return {**out, "skipped": "chromium is not installed"}
    empty.write_text("<!DOCTYPE html><html><body>nothing</body></html>")
    tries = [(opened(browser, written), opened(browser, empty)) for _ in range(rounds)]
    return {**out, "rounds": rounds, "open_ms": statistics.median(t[0][1] for t in tries), "target_ms": 2000,
            "browser_s": statistics.median(t[0][0] for t in tries), "browser_with_an_empty_page_s": statistics.median(t[1][0] for t in tries)}


def document(name):
    """A program that prints one JSON document."""
    return lambda: json.loads(run(BUILD / "tests/bench" / name))


def lines(name):
    """A program that prints one JSON object a line."""
    return lambda: [json.loads(line) for line in run(BUILD / "tests/bench" / name).splitlines()]


def fastest(result):
    best = max((o for o in result["ops"] if "gflops" in o), key=lambda o: o["of_peak"])
    return [("a step's operations", f"{result['step_ms']:.0f} ms", ""),
            (f"{best['op']}, of the peak", f"{100 * best['of_peak']:.0f} %", "")]


def timed(what, value, target=None):
    return what, f"{value:,.0f} ms" if value >= 10 else f"{value:.2g} ms", f"{target:,} ms" if target else ""


PARTS = {  # name: (what measures it, seconds it takes on two cores, its rows in the table)
    "start": (start_latency, 3, lambda r: [timed("titand started to the first answer, median", r["median_ms"], r["target_ms"])]),
    "quiet": (quiet, 90, lambda r: list(quiet_rows(r))),
    "first_step": (first_step, 10, lambda r: [timed("submit to the first finished step, median", r["median_ms"], r["target_ms"])]),
    "submits": (durable_submits, 60, lambda r: [
        (f"durable submits, {connections_of(n)}", f"{r[f'{n}_connections']['submits_per_second']:,.0f} a second", f"{r['target_per_second']:,} a second")
        for n in (1, 64)]),
    "store_start": (store_start, 30, lambda r: [timed(f"a store with 100,000 jobs opened, {n.replace('_', ' ')}", r[n]["open_ms"], r["target_ms"])
                                                for n in ("all_ended", "all_waiting")]),
    "scaling": (scaling, 60, lambda r: [("4 workers of 1 thread against 1 of 2", f"{r['ratio']:.2f}", f"{r['target_ratio']}")]),
    "recovery": (recovery, 30, lambda r: [timed("SIGKILL of a worker to the next step, median", r["median_ms"], r["target_ms"])]),
    "waits": (waits.waits, 15, waits.rows),
    "elastic": (elastic, 900, lambda rows: [(r["what"], r["measured"], r["target"] or "") for r in rows]),
    "redundancy": (redundancy, 300, lambda rows: [(f"buddies at {r['tokens_per_step']:,} tokens a step", f"{r['step_percent']:+.1f} %", "") for r in rows]),
    "hardening": (hardening, 400, lambda r: [
        *((f"{name}, more than without, mean of {r['turns']} turns (standard error {r[f'{what}_percent_error']:.1f} %)", f"{r[f'{what}_percent']:+.1f} %", "2 %")
          for what, name in (("step", "a step"), ("processor", "its processor time"))),
        (f"durable submits over those without, median of {r['pairs']} pairs", f"{r['submits_ratio']:.2f}", "0.98")]),
    "executor": (document("bench_exec"), 60, lambda r: [("walking the program, of a step", f"{100 * r['overhead']:.2g} %", f"{100 * r['target_overhead']:.0f} %")]),
    "checkpoint": (checkpoint, 360, lambda r: [
        *((f"a save of {what}, of a step of {r['tokens_per_step']:,} tokens; the step behind it longer by {100 * r[key]['longer_behind_a_save']:.1f} %",
           f"{100 * r[key]['of_a_step']:.2g} %", f"{100 * r['target_of_a_step']:.0f} %")
          for key, what in (("of_124m", "the 124M shape"), ("every_20", "a quarter of its width, every 20 steps"))),
        (f"a save of {r['mib']:.0f} MiB, of sequential writing", f"{100 * r['write_ratio']:.0f} %", f"{100 * r['target_write_ratio']:.0f} %")]),
    "passes": (passes, 5, lambda rows: [timed("8B on 8 H100 simulated, plain", rows[0]["step_ms"]),
                                        timed("the same, best passes", min(r["step_ms"] for r in rows))]),
    "planning": (planning, 10, lambda rows: [(r["plan"], f"{r['seconds']:.2f} s", f"{r['target_seconds']} s" if r["target_seconds"] else "")
                                             for r in rows]),
    "proofs": (proofs, 20, lambda r: [("proofs of datagrams, of a step", f"{100 * r['share']:.2g} %", f"{100 * r['target_share']:.0f} %")]),
    "scrape": (document("bench_scrape"), 5, lambda r: [
        (f"a scrape of {r['nodes']:,} nodes and {r['jobs']} jobs, of the loop, median", f"{r['median_ms']:.2f} ms", f"{r['target_ms']} ms"),
        ("its page", f"{r['bytes'] / 1e3:.0f} kB", f"{r['target_bytes'] / 1e3:.0f} kB")]),
    "tokenizer": (tokenizer, 60, lambda r: [(what, f"{r[key]:.1f}", f"{r[target]}") for what, key, target in (
        ("tokens of a text met for the first time, tiktoken's time over ours", "first_ratio", "target_ratio"),
        ("tokens of a text met before, tiktoken's time over ours", "ratio", "target_ratio"),
        ("opening a file of ranks, tiktoken's time over ours", "open_ratio", "target_open_ratio"),
        ("tokens of a text met for the first time, that of tokenizers over ours", "tokenizers_ratio", "target_tokenizers_ratio"))]),
    "fingerprint": (fingerprint, 5, lambda r: [(
        f"a fingerprint of {r['bytes'] >> 40} TiB of shards, of opening them", f"{100 * r['share']:.2g} %", f"{100 * r['target_share']:.0f} %")]),
    "report": (report, 30, lambda r: [timed(f"a report of {r['steps']:,} steps opened in Chromium, median", r["open_ms"], r["target_ms"]),
                                      ("the same page", f"{r['bytes'] / 1e6:.2f} MB", "")]),
    "page": (lambda: page.page(HOME), 120, lambda r: list(page.rows(r))),
    "ops": (document("bench_ops"), 30, fastest),
    "comm": (lines("bench_comm"), 60, lambda rows: [(f"{len(rows)} collectives", "in summary.json", "")]),
}


def main():
    HOME.mkdir(parents=True, exist_ok=True)
    unknown = [name for name in sys.argv[1:] if name not in PARTS]
    if unknown:
        sys.exit(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    Parts(PARTS, HOME).run(sys.argv[1:] or list(PARTS))


if __name__ == "__main__":
    main()
