#!/usr/bin/env python3
"""Figures about Titan on this machine, printed and written to build/bench/summary.json.

Each figure stands beside the target or the peer it is measured against in the same run. Nothing here passes or fails.
"""
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, BUILD, SOURCE, Daemon, at_ms, command, headers_text, overrides, until  # noqa: E402

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
    """The only slot trains meanwhile, so that nothing but accepting is measured."""
    out = {}
    with Daemon(HOME / "submits", "--slots", "1") as d:
        busy = d.submit("tiny", {"training.dataset_path": text(), "training.steps": 1000000, "elastic.min_workers": 1,
                                 "elastic.max_workers": 1, "checkpoint.enable": "false"})
        queued = HOME / "load.toml"
        queued.write_text(recipe_with_data(SOURCE / "recipes/tiny.toml"))
        for name, connections, in_flight in (("one_connection", 1, 64), ("64_connections", 64, 256)):
            out[name] = json.loads(run(BUILD / "tests/bench/submit_load", d.server, queued, connections, in_flight, 20000))
        d.ok("cancel", busy)
    return {**out, "target_per_second": 5000, "target_status_p99_ms": 2}


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


def document(name):
    """A program that prints one JSON document."""
    return lambda: json.loads(run(BUILD / "tests/bench" / name))


def lines(name):
    """A program that prints one JSON object a line."""
    return lambda: [json.loads(line) for line in run(BUILD / "tests/bench" / name).splitlines()]


def main():
    HOME.mkdir(parents=True, exist_ok=True)
    parts = {"start": start_latency, "first_step": first_step, "submits": durable_submits, "scaling": scaling,
             "recovery": recovery, "ops": document("bench_ops"), "comm": lines("bench_comm")}
    wanted = sys.argv[1:] or list(parts)
    summary = {}
    for name in wanted:
        print(f"{name} ...", flush=True)
        summary[name] = parts[name]()
        print("  " + json.dumps(summary[name]), flush=True)
    (HOME / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(f"written to {HOME / 'summary.json'}")


if __name__ == "__main__":
    main()
