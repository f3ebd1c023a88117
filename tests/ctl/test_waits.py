#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a run waits for is said where it was asked for: at submit and in the line of a client that follows it."""
import os
import signal
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, SOURCE, Daemon, deadline, headers_text, overrides, tap, until  # noqa: E402


def keys(d, **more):
    return {"training.dataset_path": headers_text(d.state / "text", 1 << 18), "elastic.max_workers": 1,
            **{k.replace("__", "."): v for k, v in more.items()}}


def follow(d, *args):
    err = open(d.state / "err", "w+")
    process = subprocess.Popen([BIN / "titanctl", "--server", d.server, *map(str, args)], stdout=subprocess.DEVNULL, stderr=err)
    return process, lambda: Path(err.name).read_text()


def end(process):
    process.send_signal(signal.SIGINT)
    assert process.wait(deadline()) == 130


def no_such_device():
    """a job for a device that no node has: submit says so and queues it, the line of --follow too"""
    with Daemon(None, "--slots", 1) as d:
        recipe, want = SOURCE / "recipes/tiny.toml", "no node has a cuda device (1 node: cpu)"
        until("the node is there", lambda: "ready" in d.ctl("nodes").out)
        done = d.ctl("submit", recipe, *overrides(keys(d, device__name="cuda")))
        assert done.code == 0 and done.out.strip() == "1", done
        assert done.err == f"note: job 1 stays in the queue until nodes are added: waiting: {want}\n", done.err
        process, said = follow(d, "submit", recipe, *overrides(keys(d, device__name="cuda")), "--follow")
        until("it is said", lambda: f"  waiting: {want}\n" in said())
        end(process)
        done = d.ctl("submit", recipe, *overrides(keys(d, training__steps=1)))
        assert done.code == 0 and not done.err, done.err


def too_few_slots():
    """a job that all nodes together cannot hold: submit says how many slots there are"""
    with Daemon(None, "--slots", 1) as d:
        until("the node is there", lambda: "ready" in d.ctl("nodes").out)
        done = d.ctl("submit", SOURCE / "recipes/tiny.toml", *overrides(keys(d, elastic__min_workers=2, elastic__max_workers=2)))
        assert done.code == 0 and "waiting for nodes: the run needs 2 workers, all nodes together have 1 slot" in done.err, done


def full_store():
    """the job store's disk is full: a client that follows a run reads that, not what the run was last known to wait for"""
    if os.geteuid() != 0:
        return "needs root for a small file system"
    d = Daemon(None, "--slots", 1)
    store, jobs = d.state, d.state.with_suffix(".jobs")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", store], stderr=subprocess.DEVNULL).returncode:
        return "tmpfs cannot be mounted here"
    try:
        jobs.mkdir()
        (store / "jobs").symlink_to(jobs)  # the store's disk alone is full
        with d:
            k = {**keys(d, training__steps=1000000, checkpoint__enable="false", fault_tolerance__backoff_ms=10),
                 "training.dataset_path": headers_text(jobs / "text", 1 << 18)}
            (jobs / "err").touch()
            with open(jobs / "err", "w+") as err:
                process = subprocess.Popen([BIN / "titanctl", "--server", d.server, "submit", SOURCE / "recipes/tiny.toml",
                                            *overrides(k), "--follow"], stdout=subprocess.DEVNULL, stderr=err)
                until("it trains", lambda: d.ctl("status", 1).code == 0 and d.status(1)["step"] > 5)
                with open(store / "filler", "wb", buffering=0) as f:
                    for block in (1 << 20, 4096, 1):
                        try:
                            while True:
                                f.write(bytes(block))
                        except OSError:
                            pass
                os.kill(max(d.workers(1).values()), signal.SIGKILL)
                until("it is said", lambda: "the job store refuses writes: " in (jobs / "err").read_text())
                (store / "filler").unlink()
                end(process)
    finally:
        subprocess.run(["umount", "-l", store], check=False)
        subprocess.run(["rm", "-rf", store, jobs], check=False)


tap(no_such_device, too_few_slots, full_store)
