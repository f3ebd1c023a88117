#!/usr/bin/env python3
"""The demo: train a small Llama on the C headers of this machine, lose a worker on the way, look at what it learned.

Everything goes through the programs a user has: titand, titanctl. Facts end up in build/demo/summary.json.
"""
import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

BUILD = Path(os.environ.get("BUILD", "build")).resolve()
BIN = BUILD / "bin"
TEXT_BYTES_MAX = 24 << 20
TTY = sys.stdout.isatty()


def say(line):
    """One line of our own; clears the live progress line first where there is one."""
    print(("\r\033[K" if TTY else "") + line, flush=True)


def fail(line):
    say(f"demo: {line}")
    sys.exit(1)


class Titanctl:
    """The command-line tool against the demo's own daemon."""

    def __init__(self, server):
        self.base = [str(BIN / "titanctl"), "--server", server]

    def json(self, *args):
        out = subprocess.run([*self.base, "-o", "json", *args], stdout=subprocess.PIPE, text=True)
        if out.returncode != 0:
            fail(f"titanctl {' '.join(args)} ended with exit code {out.returncode}")
        return json.loads(out.stdout)

    def lines(self, *args):
        """Commands that print one JSON object a line (events, metrics)."""
        out = subprocess.run([*self.base, "-o", "json", *args], stdout=subprocess.PIPE, text=True, check=True)
        return [json.loads(line) for line in out.stdout.splitlines() if line.strip()]

    def text(self, *args):
        return subprocess.run([*self.base, *args], stdout=subprocess.PIPE, text=True, errors="replace").stdout


def collect_text(target):
    """C headers that the build packages brought: real text without a download. C++ is left out."""
    target.mkdir(parents=True)
    total = files = 0
    skip = ("/c++/", "/grpcpp/", "/absl/", "/google/", "/boost/")
    for path in sorted(Path("/usr/include").rglob("*.h")):
        if any(part in str(path) for part in skip) or path.is_symlink():
            continue
        try:
            data = path.read_bytes()
        except OSError:
            continue
        if not data or b"\0" in data or b"namespace " in data or b"template <" in data:
            continue
        (target / str(path.relative_to("/usr/include")).replace("/", "__")).write_bytes(data)
        total, files = total + len(data), files + 1
        if total > TEXT_BYTES_MAX:
            break
    if total < 1 << 20:
        fail(f"only {total} bytes of C headers below /usr/include; give a text with `make demo DATA=path`")
    return files, total


def start_daemon(state, slots):
    """titand dev; returns when it says READY=1 (the same protocol systemd listens to)."""
    import socket

    notify = state / "notify.sock"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(str(notify))
    listener.settimeout(20)
    log = open(state.parent / "titand.log", "w")
    begin = time.monotonic()
    daemon = subprocess.Popen(
        [BIN / "titand", "dev", "--state-dir", state, "--slots", str(slots), "--listen", "127.0.0.1:0"],
        stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
        env={**os.environ, "NOTIFY_SOCKET": str(notify)})
    try:
        while b"READY=1" not in listener.recv(4096):
            pass
    except OSError:
        daemon.kill()
        fail(f"titand did not come up; see {log.name}")
    return daemon, (time.monotonic() - begin) * 1000


class Saboteur(threading.Thread):
    """Kills one worker with SIGKILL once the run has a checkpoint and has gone on from it; tells how that went."""

    def __init__(self, ctl, job, at_step):
        super().__init__(daemon=True)
        self.ctl, self.job, self.at_step = ctl, job, at_step
        self.stop = threading.Event()

    def run(self):
        while not self.stop.wait(0.2):
            status = self.ctl.json("status", self.job)
            if status["finished_at"]:
                return
            if status["step"] >= self.at_step and status["checkpoint"] and status["world_size"] == 4:
                break
        else:
            return
        alive = {}
        for event in self.ctl.lines("events", self.job):
            detail = event.get("detail") or {}
            if event["type"] == "worker.started":
                alive[detail["worker_id"]] = detail["pid"]
            elif event["type"] in ("worker.exited", "worker.lost"):
                alive.pop(detail["worker_id"], None)
        worker, pid = sorted(alive.items())[-1]
        say(f"demo: now killing worker {worker} (pid {pid}) with SIGKILL at step {status['step']}")
        os.kill(pid, signal.SIGKILL)


def train(ctl, recipe, data, extra):
    overrides = [f"training.dataset_path={data}", *extra]
    args = [*ctl.base, "submit", str(recipe), "--follow", "--name", "demo"]
    for item in overrides:
        args += ["--set", item]
    follower = subprocess.Popen(args, stdout=None, stderr=None)
    job = None
    deadline = time.monotonic() + 20
    while job is None and time.monotonic() < deadline and follower.poll() is None:
        jobs = ctl.json("list")
        jobs = jobs["jobs"] if isinstance(jobs, dict) else jobs
        job = str(jobs[0]["id"]) if jobs else None
        time.sleep(0.1)
    if job is None:
        fail("the run was not accepted")
    steps = ctl.json("status", job)["steps"]
    saboteur = Saboteur(ctl, job, at_step=max(2, steps * 2 // 5))
    saboteur.start()
    code = follower.wait()
    saboteur.stop.set()
    saboteur.join()
    if code != 0:
        print(ctl.text("logs", job, "--tail", "20"))
        fail(f"the run ended with exit code {code}; the daemon's log is {BUILD}/demo/titand.log")
    return job


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="", help="file or folder to train on (default: C headers of this machine)")
    parser.add_argument("--set", action="append", default=[], help="override a key of recipes/demo.toml")
    options = parser.parse_args()
    begin = time.monotonic()

    home = BUILD / "demo"
    shutil.rmtree(home, ignore_errors=True)
    state = home / "state"
    state.mkdir(parents=True)
    if options.data:
        data = Path(options.data).resolve()
        say(f"text: {data}")
    else:
        data = home / "text"
        files, total = collect_text(data)
        say(f"text: {total / 1e6:.1f} MB of C headers ({files} files) that the build packages put on this machine")

    daemon, ready_ms = start_daemon(state, slots=4)
    say(f"titand: up after {ready_ms:.0f} ms, state in {state}")
    ctl = Titanctl(f"unix:{state}/titan.sock")
    try:
        job = train(ctl, "recipes/demo.toml", data, options.set)
        status = ctl.json("status", job)
        metrics = ctl.lines("metrics", job)
        events = ctl.lines("events", job)
        worlds = [e["detail"]["world"] for e in events if e["type"] == "epoch.formed"]
        recoveries = [e["detail"]["recovery_ms"] for e in events if e["type"] == "recovery.finished"]

        hf = home / "hf"
        say(f"\nexport: Hugging Face directory {hf}")
        print(ctl.text("convert", job, str(hf)).strip())
        prompt = "#include <stdio.h>\n\nstatic int "
        say("sample: what the model writes after a prompt\n")
        sample = ctl.text("generate", job, "--prompt", prompt, "--max-tokens", "300", "--temperature", "0.6", "--seed", "1")
        print("    " + sample.strip().replace("\n", "\n    ") + "\n")
        print(ctl.text("metrics", job, "--plot"))
    finally:
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()

    first, last = metrics[0]["loss"], metrics[-1]["loss"]
    rates = sorted(m["tokens_per_second"] for m in metrics)
    summary = {
        "ok": status["state"] == "COMPLETED" and last < first / 2 and bool(sample.strip()) and len(recoveries) > 0,
        "steps": status["step"],
        "loss_first": first,
        "loss_last": last,
        "bits_per_byte_last": last / math.log(2),
        "tokens_per_second": rates[len(rates) // 2],
        "recovery_ms": recoveries[0] if recoveries else None,
        "world_sizes": worlds,
        "restarts": status["restarts"],
        "checkpoint": status["checkpoint"],
        "sample": sample,
    }
    (home / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    recovery = f"{summary['recovery_ms']} ms after SIGKILL" if recoveries else "no worker was lost"
    say(f"""summary
  loss          {first:.3f} -> {last:.3f} ({summary['bits_per_byte_last']:.2f} bits per byte) in {summary['steps']} steps
  speed         {summary['tokens_per_second']:,.0f} tokens/s
  recovery      training again {recovery}
  world sizes   {' -> '.join(map(str, worlds))}
  checkpoint    {summary['checkpoint']}
  logs          {state}/jobs/{job}/logs
  job store     {state}/titan.db
  facts         {home}/summary.json
  took          {time.monotonic() - begin:.0f} s
try next
  {BIN}/titanctl run recipes/demo.toml --set training.dataset_path={data} --set training.steps=50
  {BIN}/titan-worker generate {summary['checkpoint']} --prompt '#define '
  {BIN}/titand dev --state-dir {state} &   # then: titanctl --server unix:{state}/titan.sock list""")
    sys.exit(0 if summary["ok"] else 1)


if __name__ == "__main__":
    main()
