#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, BUILD, Daemon, overrides, until  # noqa: E402

TEXT_BYTES_MAX = 24 << 20
PROMPT = "/* SPDX-License-Identifier: GPL-2.0 */\n#ifndef _LINUX_TITAN_H\n#define _LINUX_TITAN_H\n\n#include <linux/types.h>\n\n#define "
TTY = sys.stdout.isatty()


def say(line):
    """One line of our own; clears the live progress line first where there is one."""
    print(("\r\033[K" if TTY else "") + line, flush=True)


def fail(line):
    say(f"demo: {line}")
    sys.exit(1)


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
            status = self.titan.status(self.job)
            if status["finished_at"]:
                return
            if status["step"] >= self.at_step and status["checkpoint"] and status["world_size"] == 4:
                worker, pid = max(self.titan.workers(self.job).items())
                say(f"demo: now killing worker {worker} (pid {pid}) with SIGKILL, at step {status['step']}")
                os.kill(pid, signal.SIGKILL)
                return


def train(titan, data, extra):
    """Submit and follow, as a person would, while the saboteur waits; the job's number."""
    follower = subprocess.Popen([BIN / "titanctl", "--server", titan.server, "submit", "recipes/demo.toml", "--follow",
                                 "--name", "demo", *overrides({"training.dataset_path": data}),
                                 *[x for item in extra for x in ("--set", item)]])
    job = until("the run is accepted", lambda: follower.poll() is not None or titan.jobs(), 20)
    if job is True:
        fail(f"the run was not accepted (exit code {follower.returncode})")
    job = job[0]["id"]
    saboteur = Saboteur(titan, job, at_step=max(2, titan.status(job)["steps"] * 2 // 5))
    saboteur.start()
    code = follower.wait()
    saboteur.stop.set()
    saboteur.join()
    if code != 0:
        print(titan.ctl("logs", job, "--tail", "20").out)
        fail(f"the run ended with exit code {code}; the daemon's log is {titan.state}/titand.log")
    return job


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="", help="file or folder to train on (default: C headers of this machine)")
    parser.add_argument("--set", action="append", default=[], help="override a key of recipes/demo.toml")
    options = parser.parse_args()
    begin = time.monotonic()

    home = BUILD / "demo"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    state = home / "state"
    if options.data:
        data = Path(options.data).resolve()
        say(f"text: {data}")
    else:
        data = home / "text"
        files, total = collect_text(data)
        say(f"text: {total / 1e6:.1f} MB of C headers ({files} files) that the build packages put on this machine")

    with Daemon(state, "--slots", "4") as titan:
        say(f"titand: up after {titan.ready_ms:.0f} ms, state in {state}")
        job = train(titan, data, options.set)
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
    (home / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
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
  {BIN}/titand dev{' --allow-root' if os.geteuid() == 0 else ''} --state-dir {state} &   # then: titanctl --server unix:{state}/titan.sock list""")
    sys.exit(0 if summary["ok"] else 1)


if __name__ == "__main__":
    main()
