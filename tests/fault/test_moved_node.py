#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A node that comes back at another address: at once where nothing can train at the old one any more, or where the agent has taken
over what does; else it is said until when it waits and what ends the wait. The lease of ten minutes is longer than any test."""
import json
import os
import shutil
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from nodes import Cluster  # noqa: E402
from titan import headers_text, listens_at, tap, until  # noqa: E402

KEYS = {"elastic.min_workers": 2, "elastic.max_workers": 4, "training.global_batch_size": 4, "training.local_batch_size": 1, "device.threads": 1,
        "training.mixed_precision_param": "float32", "fault_tolerance.backoff_ms": 50, "training.steps": 1000000}


class Moving(Cluster):
    """n2 may be told another address; "other" is a second installation of its name."""

    def agent(self, name, address="127.0.0.1"):
        node = "n2" if name == "other" else name
        self.spawn(name, "agent", "--coordinator", self.tcp, "--insecure", "--node", node, "--address", address, "--slots", self.slots[node],
                   "--lease-ms", self.lease_ms)

    def at(self, name):
        return next((n["state"], n["address"]) for n in json.loads(self.ctl("-o", "json", "nodes"))["nodes"] if n["name"] == name)

    def log(self, name):
        return (self.dir / f"{name}.log").read_text(errors="replace")

    def ended(self, name, how):
        self.processes[name].send_signal(how)
        self.processes[name].wait()

    def refused(self):
        return [line for line in self.log("c").splitlines() if "agent session ended" in line and "registration from" in line]


def addresses(pid):
    return {address for address, _ in listens_at(pid)}


def idle():
    """without a worker it is taken at once: ended in order, killed, with a new state directory"""
    with Moving() as c:
        for i, (how, fresh) in enumerate(((signal.SIGTERM, False), (signal.SIGKILL, False), (signal.SIGKILL, True)), 2):
            c.ended("n2", how)
            if fresh:
                shutil.rmtree(c.dir / "n2")
            c.agent("n2", f"127.0.0.{i}")
            until("n2 is ready at its new address", lambda: c.at("n2") == ("ready", f"127.0.0.{i}"))
        # Ended in order while it had workers, which were stopped before.
        job = c.submit({**KEYS, "training.dataset_path": headers_text(c.dir / "text")})
        c.training(job, 4, 2)
        c.ctl("drain", "n2")
        until("n2 is empty", lambda: c.status(job)["world_size"] == 2)
        until("n2 is drained", lambda: c.at("n2")[0] == "drained")
        c.ended("n2", signal.SIGTERM)
        c.agent("n2", "127.0.0.9")
        until("n2 is ready at its new address", lambda: c.at("n2")[1] == "127.0.0.9")
        c.ctl("undrain", "n2")
        c.training(job, 4, c.status(job)["step"])


def with_workers():
    """under a run: the same installation goes on with its workers; another one waits, is told why, and `node forget` ends that"""
    with Moving(pace_ms=20) as c:
        job = c.submit({**KEYS, "training.dataset_path": headers_text(c.dir / "text")})
        c.training(job, 4, 2)
        workers = {e["detail"]["pid"] for e in c.events(job) if e["type"] == "worker.started"}
        c.ended("n2", signal.SIGKILL)
        c.agent("n2", "127.0.0.2")
        until("n2 is ready at its new address", lambda: c.at("n2") == ("ready", "127.0.0.2"))
        s = c.training(job, 4, c.status(job)["step"])
        assert s["restarts"] == 0 and {e["detail"]["pid"] for e in c.events(job) if e["type"] == "worker.started"} == workers, s
        assert not c.refused()
        # They listen at the new address, where the members of the next epoch find them; the epoch before keeps its own listener.
        theirs = {e["detail"]["pid"] for e in c.events(job) if e["type"] == "worker.started" and e["node"] == "n2"}
        until("they listen there", lambda: all(addresses(pid) >= {"127.0.0.2"} for pid in theirs))
        os.kill(min(workers - theirs), signal.SIGKILL)
        until("another epoch has formed", lambda: c.status(job)["epoch"] > s["epoch"] and c.status(job)["restarts"] == 1)
        s = c.training(job, 4, c.status(job)["step"])
        assert s["restarts"] == 1, s
        until("they listen there only", lambda: all(addresses(pid) == {"127.0.0.2"} for pid in theirs))
        steps = [json.loads(line)["step"] for line in (c.dir / f"c/jobs/{job}/metrics.jsonl").read_text().split("\n")[:-1]]
        assert steps == list(range(1, len(steps) + 1)), steps[-5:]
        # Its workers go on; the newcomer has nothing to do with them.
        c.ended("n2", signal.SIGKILL)
        c.agent("other", "127.0.0.3")
        until("it is refused", lambda: [line for line in c.refused() if "may train there" in line])
        said = c.refused()[-1]
        assert "node n2 was at 127.0.0.2 until 20" in said and "its workers may train there until 20" in said, said
        assert c.at("n2")[1] == "127.0.0.2"
        counted = until("it has tried five times", lambda: (lambda n: n >= 5 and n)(next(
            x["value"] for x in json.loads(c.ctl("-o", "json", "counters"))["counters"] if x["name"] == "name_taken")))
        assert len(c.refused()) <= 2, (counted, c.refused())  # a minute has one of each; at first it may be alive still
        c.ctl("node", "forget", "n2")
        until("n2 is ready at its new address", lambda: c.at("n2") == ("ready", "127.0.0.3"))
        c.training(job, 4, c.status(job)["step"])


if __name__ == "__main__":
    tap(idle, with_workers)
