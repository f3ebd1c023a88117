#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The demo: train a small Llama on the C headers of this machine, lose a worker on the way, look at what it learned.

Everything goes through the programs a user has: titand, titanctl, titan-worker. The machine's speed is measured first, and as many
steps are trained as fit: the whole ends within three minutes. Facts end up in build/demo/summary.json.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, BUILD, Daemon, until  # noqa: E402

TEXT_BYTES_MAX = 24 << 20
TRAIN_S = 80  # a machine that becomes half as fast meanwhile still ends within three minutes
MEASURE_S = 4
PATIENCE_S = 25  # with two steps; a machine that needs longer for them trains the smaller model
STEPS_MOST = 700  # more than these teach little that a sample shows
RECIPE = "recipes/demo.toml"
SMALLER = ["model.flavor=tiny", "optimizer.lr=1e-2"]
MODELS = (([], 60), (SMALLER, 200))  # and after how many steps the loss has halved
PROMPT = "/* SPDX-License-Identifier: GPL-2.0 */\n#ifndef _LINUX_TITAN_H\n#define _LINUX_TITAN_H\n\n#include <linux/types.h>\n\n#define "
TTY = sys.stdout.isatty()


def say(line):
    """One line of our own; clears the live progress line first where there is one."""
    print(("\r\033[K" if TTY else "") + line, flush=True)


def fail(line):
    say(f"demo: {line}")
    sys.exit(1)


def sets(keys):
    return [x for key in keys for x in ("--set", key)]


def steps_done(path):
    """Lines of a metrics file that may be written to meanwhile."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def measure(home, keys):
    """Tokens a second, and those of a step, of a run that is broken off after some seconds; 0: not two steps in PATIENCE_S. The first
    step is left out: it meets memory for the first time."""
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    with open(home / "log", "w") as log:  # a pipe would be full after some hundred steps
        worker = subprocess.Popen([BIN / "titan-worker", "run", RECIPE, "-n", "4", "--dir", home, *sets(keys)], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            ended = worker.poll() is not None
            steps = steps_done(home / "metrics.jsonl")
            seconds = sum(m["step_ms"] for m in steps[1:]) / 1000
            if seconds > MEASURE_S or ended or time.monotonic() > deadline:
                break
            time.sleep(0.1)
    finally:
        worker.terminate()
        worker.wait()
    if ended and worker.returncode != 0:
        said = (home / "log").read_text().strip()
        fail(said.splitlines()[0] if said else f"titan-worker ended with exit code {worker.returncode}")
    tokens = steps[0]["tokens"] if steps else 0
    return ((steps[-1]["tokens"] - tokens) / seconds if seconds else 0), tokens


def choose(home, data, by_hand):
    """Keys of the run: how long it is, and with which model. What is given by hand stays as it is."""
    given = {key.strip(): value.strip() for key, _, value in (item.partition("=") for item in by_hand)}
    if "training.steps" in given:
        steps = given["training.steps"]
        return shape(int(steps)) if steps.isdecimal() else [], {"measured_tokens_per_second": None, "smaller_model": False}
    base = [f"training.dataset_path={data}", "checkpoint.enable=false", f"training.steps={10 * STEPS_MOST}"]
    for model, least in MODELS:
        speed, tokens = measure(home, [*base, *model, *by_hand])
        fitting = int(TRAIN_S * speed / tokens) if tokens else 0
        if fitting >= least or model or any(key.startswith("model.") for key in given):
            break
        say(f"speed: this machine trains {speed:,.0f} tokens/s: too few for text in {TRAIN_S} s, so it gets a smaller model ({SMALLER[0]})")
    steps = min(max(fitting, least), STEPS_MOST)
    fit = f"fit into {TRAIN_S} s" if steps == fitting else f"take {steps * tokens / max(speed, 1):.0f} s"
    say(f"speed: this machine trains {speed:,.0f} tokens/s: {steps} steps of {tokens:,} tokens {fit}")
    return [*model, *shape(steps)], {"measured_tokens_per_second": speed, "smaller_model": bool(model)}


def shape(steps):
    """Keys of a run of so many steps: it warms up for as small a part of them, and has a checkpoint well before the kill."""
    return [f"training.steps={steps}", f"lr_scheduler.warmup_steps={min(20, max(1, steps // 10))}", f"checkpoint.interval={min(25, max(1, steps // 10))}"]


def collect_text(target):
    """C headers that the build packages brought: real text without a download. C++ is left out."""
    target.mkdir(parents=True)
    total = files = 0
    own = {"linux", "asm-generic", "x86_64-linux-gnu", "."}  # the kernel's and the C library's: one style
    for path in sorted(Path("/usr/include").rglob("*.h")):
        name = path.relative_to("/usr/include")
        if path.is_symlink() or (name.parts[0] if len(name.parts) > 1 else ".") not in own:
            continue
        data = path.read_bytes()
        if not data or b"\0" in data or b"namespace " in data or b"template <" in data:
            continue
        (target / str(name).replace("/", "__")).write_bytes(data)
        total, files = total + len(data), files + 1
        if total > TEXT_BYTES_MAX:
            break
    if total < 1 << 20:
        fail(f"only {total} bytes of C headers below /usr/include; give a text with `make demo DATA=path`")
    return files, total


class Saboteur(threading.Thread):
    """Kills one worker with SIGKILL once the run has a checkpoint to go on from."""

    def __init__(self, daemon, job, at_step):
        super().__init__(daemon=True)
        self.titan, self.job, self.at_step = daemon, job, at_step
        self.stop = threading.Event()

    def run(self):
        while not self.stop.wait(0.2):
            try:
                status = self.titan.status(self.job)
            except AssertionError:  # Ctrl-C is for titanctl, too: then stop is set
                continue
            if status["finished_at"]:
                return
            if status["step"] >= self.at_step and status["checkpoint"] and status["world_size"] == 4:
                worker, pid = max(self.titan.workers(self.job).items())
                say(f"demo: now killing worker {worker} (pid {pid}) with SIGKILL, at step {status['step']}")
                os.kill(pid, signal.SIGKILL)
                return


def train(titan, keys):
    """Submit and follow, as a person would, while the saboteur waits; the job's number."""
    follower = subprocess.Popen([BIN / "titanctl", "--server", titan.server, "submit", RECIPE, "--follow", "--name", "demo", *sets(keys)])
    job = until("the run is accepted", lambda: follower.poll() is not None or titan.jobs(), 20)
    if job is True:
        fail(f"the run was not accepted (exit code {follower.returncode})")
    job = job[0]["id"]
    saboteur = Saboteur(titan, job, at_step=max(2, titan.status(job)["steps"] * 2 // 5))
    saboteur.start()
    try:
        code = follower.wait()
    finally:
        saboteur.stop.set()
        saboteur.join()
    if code != 0:
        print(titan.ctl("logs", job, "--tail", "20").out)
        fail(f"the run ended with exit code {code}; the daemon's log is {titan.state}/titand.log")
    return job


def demo(options, home):
    begin = time.monotonic()
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    state = home / "state"
    if options.data:
        data = Path(options.data).resolve()
        if not data.exists():
            fail(f"{data}: no such file or folder; DATA=path names the text to train on")
        say(f"text: {data}")
    else:
        data = home / "text"
        files, total = collect_text(data)
        say(f"text: {total / 1e6:.1f} MB of C headers ({files} files) that the build packages put on this machine")
    keys, measured = choose(home / "speed", data, options.set)

    titan = Daemon(state, "--slots", "4")
    try:
        titan.start()
        say(f"titand: up after {titan.ready_ms:.0f} ms, state in {state}")
        job = train(titan, [f"training.dataset_path={data}", *keys, *options.set])
        status = titan.status(job)
        metrics, events = titan.lines("metrics", job), titan.lines("events", job)
        worlds = [e["detail"]["world"] for e in events if e["type"] == "epoch.formed"]
        recoveries = [e["detail"]["recovery_ms"] for e in events if e["type"] == "recovery.finished"]

        say(f"\nexport: Hugging Face directory {home}/hf")
        titan.ok("convert", job, home / "hf")
        say("sample: what the model writes after a prompt\n")
        sample = titan.ok("generate", job, "--prompt", PROMPT, "--max-tokens", 300, "--temperature", 0.6, "--seed", 1)
        print("    " + sample.strip().replace("\n", "\n    ") + "\n")
        print(titan.ok("metrics", job, "--plot"))
    finally:
        titan.stop()

    first, last = metrics[0]["loss"], metrics[-1]["loss"]
    rates = sorted(m["tokens_per_second"] for m in metrics)
    summary = {
        "ok": status["state"] == "COMPLETED" and last < first / 2 and bool(sample.strip()) and len(recoveries) > 0,
        "steps": status["step"],
        "loss_first": first,
        "loss_last": last,
        "bits_per_byte_last": last / math.log(2),
        **measured,
        "tokens_per_second": rates[len(rates) // 2],
        "recovery_ms": recoveries[0] if recoveries else None,
        "world_sizes": worlds,
        "restarts": status["restarts"],
        "checkpoint": status["checkpoint"],
        "sample": sample,
        "took_s": time.monotonic() - begin,
    }
    (home / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    (home / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    seen = f"worker killed with SIGKILL: training went on {recoveries[0]} ms later" if recoveries else "no worker was lost"
    root = " --allow-root" if os.geteuid() == 0 else ""
    say(f"""what you have seen
  trained       loss {first:.3f} -> {last:.3f} ({summary['bits_per_byte_last']:.2f} bits per byte) in {summary['steps']} steps, {summary['tokens_per_second']:,.0f} tokens/s, {summary['took_s']:.0f} s in all
  elastic       {seen}; workers {' -> '.join(map(str, worlds))}
  kept          {summary['checkpoint']}
                {home}/hf (Hugging Face)
  facts         {home}/summary.json, logs in {state}/jobs/{job}/logs
type next
  export PATH={BIN}:$PATH
  titan-worker generate {summary['checkpoint']} --prompt '#define '
  titanctl run {RECIPE} --set training.dataset_path=YOUR_TEXT --set training.steps=50
  titand dev{root} --state-dir {state} &
  titanctl --server unix:{state}/titan.sock list
  docs/start.md goes on from here""")
    sys.exit(0 if summary["ok"] else 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="", help="file or folder to train on (default: C headers of this machine)")
    parser.add_argument("--dir", default=BUILD / "demo", type=Path, help="what was in this folder goes (default: build/demo)")
    parser.add_argument("--set", action="append", default=[], help=f"override a key of {RECIPE}; without training.steps the machine's speed is measured")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does: no process is left
    try:
        demo(options, options.dir)
    except KeyboardInterrupt:
        fail("interrupted")


if __name__ == "__main__":
    main()
