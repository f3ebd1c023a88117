#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agent.worker_ports: all that workers listen at is in that range, also after one was replaced; what is too few or taken is said."""
import json
import os
import signal
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from nodes import Cluster  # noqa: E402
from titan import BIN, command, headers_text, listens_at, tap, until  # noqa: E402

KEYS = {"elastic.min_workers": 4, "elastic.max_workers": 4, "training.global_batch_size": 4, "training.local_batch_size": 1, "device.threads": 1,
        "training.mixed_precision_param": "float32", "fault_tolerance.backoff_ms": 50, "training.steps": 1000000}


OWN = []  # sockets; their names tell other tests which ranges are taken


def free_range(n):
    """First and last of n ports that nothing listens at, this process's until it ends; below those that the kernel gives out by itself."""
    for first in range(20000, 32000, 64):
        name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            name.bind(f"\0titan-test-ports-{first}")
            held = [socket.create_server(("127.0.0.1", port)) for port in range(first, first + n)]
        except OSError:
            name.close()
            continue
        OWN.append(name)
        for s in held:
            s.close()
        return first, first + n - 1
    raise AssertionError("no free ports")


class Ranged(Cluster):
    """Each node has one of its own; n1's is as small as it may be."""

    def __init__(self, **more):
        super().__init__(**more)
        self.ports = {"n1": free_range(3), "n2": free_range(40)}

    def agent(self, name):
        text = (self.dir / "titand.toml").read_text().split("[agent]")[0]
        (self.dir / "titand.toml").write_text(text + '[agent]\nworker_ports = "%d-%d"\n' % self.ports[name])
        log = self.dir / f"{name}.log"
        super().agent(name)
        until("it has read its file", lambda: log.exists() and "agent up" in log.read_text())

    def pids(self, job):
        """Of its workers: pid -> node."""
        gone = {e["detail"]["worker"] for e in self.events(job) if e["type"] == "worker.exited"}
        return {e["detail"]["pid"]: e["node"] for e in self.events(job) if e["type"] == "worker.started" and e["detail"]["worker"] not in gone}


def in_range():
    """four workers on two nodes; one is killed, and its replacement is in the range, too"""
    if os.geteuid() != 0:
        return "only root sees what workers, which are not dumpable, listen at"
    with Ranged(pace_ms=10) as c:
        job = c.submit({**KEYS, "training.dataset_path": headers_text(c.dir / "text")})

        def check():
            pids = c.pids(job)
            assert len(pids) == 4, pids
            for pid, node in pids.items():
                first, last = c.ports[node]
                [(_, port)] = until("it listens at one port", lambda: len(places := listens_at(pid)) == 1 and places)
                assert first <= port <= last, (node, port, c.ports)
            return pids
        c.training(job, 4, 2)
        pid = next(pid for pid, node in check().items() if node == "n1")
        os.kill(pid, signal.SIGKILL)
        until("it is gone", lambda: pid not in c.pids(job))
        c.training(job, 4, c.status(job)["step"])
        check()
        # The check of nodes connects to ports of the range as well.
        report = json.loads(command(BIN / "titanctl", "--server", c.unix, "-o", "json", "admin", "check").out)
        rows = [f for n in report["nodes"] for f in n["findings"] if f["what"] == "tcp"]
        assert rows and not [f for f in rows if f["wrong"]], rows


def too_few():
    """a range that is wrong or too small ends the start; one that others have taken costs the job nothing, and it says so"""
    agent = [BIN / "titand", "agent", "--insecure", "--allow-root", "--coordinator", "127.0.0.1:1", "--slots", "4", "--state-dir"]
    with Cluster(slots={}) as c:
        for value, said in (("30000", "'30000' is not a range of ports"), ("80-90", "is not a range of ports"),
                            ("30000-30003", "30000-30003 has 4 ports, 4 slots want 5")):
            (c.dir / "wrong.toml").write_text(f'[agent]\nworker_ports = "{value}"\n')
            done = command(*agent, c.dir / "wrong", "--config", c.dir / "wrong.toml")
            assert done.code == 2 and f"agent.worker_ports: " in done.err and said in done.err and len(done.err.splitlines()) == 1, done
    with Ranged(slots={"n1": 2}) as c:
        first, last = c.ports["n1"]
        taken = [socket.create_server(("127.0.0.1", port)) for port in range(first, last + 1)]
        job = c.submit({**KEYS, "elastic.min_workers": 2, "elastic.max_workers": 2, "training.dataset_path": headers_text(c.dir / "text")})
        until("the job says why", lambda: f"none of the ports {first}-{last} is free" in (c.status(job)["reason"] or ""))
        for s in taken:
            s.close()
        s = c.training(job, 2, 2)
        assert s["restarts"] == 0, s


if __name__ == "__main__":
    tap(in_range, too_few)
