#!/usr/bin/env python3
"""Figures about Titan on this machine, printed and written to build/bench/summary.json.

Each figure stands beside the target or the peer it is measured against in the same run. Nothing here passes or fails.
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

BUILD = Path(os.environ.get("BUILD", "build")).resolve()
BIN, HOME = BUILD / "bin", BUILD / "bench"
SOURCE = Path(__file__).resolve().parents[2]


def run(*args, **kw):
    return subprocess.run([str(a) for a in args], check=True, stdout=subprocess.PIPE, text=True, **kw).stdout


class Daemon:
    """titand dev over a fresh folder."""

    def __init__(self, name, *args):
        self.state = HOME / name
        shutil.rmtree(self.state, ignore_errors=True)
        self.state.mkdir(parents=True)
        self.server = f"unix:{self.state}/titan.sock"
        self.args = args

    def __enter__(self):
        path = self.state / "notify.sock"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        listener.bind(str(path))
        listener.settimeout(20)
        self.log = open(self.state / "titand.log", "w")
        self.process = subprocess.Popen(
            [BIN / "titand", "dev", "--state-dir", self.state, "--listen", "127.0.0.1:0", *self.args],
            stdout=self.log, stderr=self.log, env={**os.environ, "NOTIFY_SOCKET": str(path)})
        while b"READY=1" not in listener.recv(4096):
            pass
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def ctl(self, *args):
        return run(BIN / "titanctl", "--server", self.server, *args)

    def lines(self, *args):
        return [json.loads(line) for line in self.ctl("-o", "json", *args).splitlines() if line.strip()]

    def submit(self, recipe, **overrides):
        sets = [x for key, value in overrides.items() for x in ("--set", f"{key.replace('__', '.')}={value}")]
        return self.ctl("submit", recipe, *sets).strip()


def text():
    """A few megabytes of C headers: the same kind of text the demo trains on."""
    target = HOME / "text"
    if not target.exists():
        target.mkdir(parents=True)
        total = 0
        for path in sorted(Path("/usr/include").glob("*.h")) + sorted(Path("/usr/include/linux").glob("*.h")):
            data = path.read_bytes()
            if b"\0" not in data:
                (target / path.name).write_bytes(data)
                total += len(data)
            if total > 4 << 20:
                break
    return target


def start_latency():
    state = HOME / "start"
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir(parents=True)
    out = json.loads(run(BUILD / "tests/bench/start_latency", BIN / "titand", state, 10))
    return {**out, "target_ms": 50}


def first_step():
    """Submit to the first finished training step, by the events' and metrics' own times."""
    values = []
    with Daemon("first") as d:
        for _ in range(5):
            job = d.submit(SOURCE / "recipes/debug.toml", training__dataset_path=text(), training__steps=2,
                           checkpoint__enable="false")
            d.ctl("wait", job)
            status = json.loads(d.ctl("-o", "json", "status", job))
            first = d.lines("metrics", job)[0]
            values.append(first["at_ms"] - status["submitted_at_ms"])
    values.sort()
    return {"rounds": len(values), "min_ms": values[0], "median_ms": values[2], "max_ms": values[-1], "target_ms": 300}


def durable_submits():
    """No slot is free (the only ones train), so that nothing but accepting is measured."""
    out = {}
    with Daemon("submits", "--slots", "1") as d:
        recipe = HOME / "queued.toml"
        recipe.write_text((SOURCE / "recipes/tiny.toml").read_text())
        busy = d.submit(recipe, training__dataset_path=text(), training__steps=1000000, elastic__min_workers=1,
                        elastic__max_workers=1, checkpoint__enable="false")
        queued = HOME / "load.toml"
        queued.write_text(recipe_with_data(recipe))
        for name, connections, in_flight in (("one_connection", 1, 64), ("64_connections", 64, 256)):
            out[name] = json.loads(run(BUILD / "tests/bench/submit_load", d.server, queued, connections, in_flight, 20000))
        d.ctl("cancel", busy)
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
        "--set", f"training.dataset_path={text()}", "--set", f"training.steps={steps}", "--set", "checkpoint.enable=false",
        "--set", f"device.threads={threads}", stderr=subprocess.DEVNULL)
    rates = sorted(json.loads(line)["tokens_per_second"] for line in open(job / "metrics.jsonl"))
    return rates[len(rates) // 2]


def scaling():
    rounds = [(tokens_per_second(4, 1), tokens_per_second(1, 2)) for _ in range(2)]
    four, one = max(r[0] for r in rounds), max(r[1] for r in rounds)
    return {"four_workers_tokens_per_second": four, "one_worker_two_threads_tokens_per_second": one,
            "ratio": four / one, "target_ratio": 0.8}


def recovery():
    """SIGKILL of a worker to the next finished step, by the coordinator's events; the demo's model."""
    with Daemon("recovery", "--slots", "4") as d:
        job = d.submit(SOURCE / "recipes/demo.toml", training__dataset_path=text(), training__steps=100000,
                       checkpoint__interval=10, fault_tolerance__max_restarts=100)
        for done in range(5):
            alive = {}
            while True:
                status = json.loads(d.ctl("-o", "json", "status", job))
                if status["state"] == "RUNNING" and status["world_size"] == 4 and status["checkpoint"]:
                    break
                time.sleep(0.2)
            time.sleep(2)
            for event in d.lines("events", job):
                detail = event.get("detail") or {}
                if event["type"] == "worker.started":
                    alive[detail["worker_id"]] = detail["pid"]
                elif event["type"] in ("worker.exited", "worker.lost"):
                    alive.pop(detail["worker_id"], None)
            os.kill(alive[max(alive)], signal.SIGKILL)
            while len([e for e in d.lines("events", job) if e["type"] == "recovery.finished"]) <= done:
                time.sleep(0.2)
        values = sorted(e["detail"]["recovery_ms"] for e in d.lines("events", job) if e["type"] == "recovery.finished")
        d.ctl("cancel", job)
    return {"rounds": len(values), "min_ms": values[0], "median_ms": values[len(values) // 2], "max_ms": values[-1],
            "target_ms": 1000}


def program(name):
    def measure():
        out = run(BUILD / "tests/bench" / name)
        return json.loads(out) if out.lstrip().startswith("[") else [json.loads(x) for x in out.splitlines() if x.strip()]
    return measure


def main():
    HOME.mkdir(parents=True, exist_ok=True)
    parts = {"start": start_latency, "first_step": first_step, "submits": durable_submits, "scaling": scaling,
             "recovery": recovery, "ops": program("bench_ops"), "comm": program("bench_comm")}
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
