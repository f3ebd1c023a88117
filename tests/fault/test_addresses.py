#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A coordinator that may be at one of several addresses: agents and commands find it, and find it again when it has moved, under a run that
goes on. What is wrong in a list is refused, what is not known by name is told."""
import json
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from nodes import Cluster  # noqa: E402
from titan import BIN, command, headers_text, tap, until  # noqa: E402

KEYS = {"elastic.min_workers": 4, "elastic.max_workers": 4, "training.global_batch_size": 4, "training.local_batch_size": 1, "device.threads": 1,
        "training.mixed_precision_param": "float32", "training.steps": 1000000}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{s.getsockname()[1]}"


class Several(Cluster):
    def __init__(self, **more):
        super().__init__(**more)
        self.elsewhere = free_port()

    def agent(self, name):
        self.spawn(name, "agent", "--coordinator", f"{self.elsewhere}, {self.tcp},no-such-name.invalid:7071", "--insecure", "--node", name,
                   "--slots", self.slots[name], "--lease-ms", self.lease_ms)

    def log(self, name):
        return (self.dir / f"{name}.log").read_text(errors="replace")


def moves():
    """agents and commands find the coordinator at either address; a run goes on meanwhile, no step is lost"""
    with Several(pace_ms=10) as c:
        job = c.submit({**KEYS, "training.dataset_path": headers_text(c.dir / "text")})
        before = c.training(job, 4, 5)
        assert "the coordinator is at another of its addresses" in c.log("n1") and f"reached={c.tcp}" in c.log("n1"), c.log("n1")
        until("the unknown name is told", lambda: 'not known by its name, the others are used' in c.log("n1")
              and 'name="no-such-name.invalid"' in c.log("n1"))
        c.kill("c")
        c.spawn("c", "coordinator", "--listen", c.elsewhere, "--insecure")
        until("the nodes are back", lambda: c.answers() and c.nodes() == {name: "ready" for name in c.slots})
        after = c.training(job, 4, before["step"])
        assert after["restarts"] == 0, after
        steps = [json.loads(line)["step"] for line in (c.dir / f"c/jobs/{job}/metrics.jsonl").read_text().splitlines()]
        assert steps == list(range(1, len(steps) + 1)), steps[-5:]
        # A command: the first that answers, and on stderr what the others said.
        server = f"{c.tcp},{c.elsewhere}"
        done = command(BIN / "titanctl", "--server", server, "--insecure", "list")
        assert done.code == 0 and done.out and f"another server is used, there is no answer from {c.tcp}: Connection refused" in done.err, done
        assert len(done.err.splitlines()) == 1, done.err
        dead = f"{free_port()},{free_port()}"
        one, two = dead.split(",")
        done = command(BIN / "titanctl", "--server", dead, "--insecure", "list")
        assert done.code == 4 and len(done.err.splitlines()) == 1, done
        assert f"no answer from any server: {one}: Connection refused; {two}: Connection refused" in done.err, done.err
        # What follows goes round the list, too.
        c.ctl("cancel", job)
        done = command(BIN / "titanctl", "--server", server, "--insecure", "wait", job)
        assert done.code == 1 and "was cancelled" in done.err, done


def refused():
    """a list that is wrong ends the start with one line that names the entry and its place"""
    agent = [BIN / "titand", "agent", "--insecure", "--state-dir", "/nonexistent/titan", "--coordinator"]
    for words in (agent, [BIN / "titanctl", "list", "--insecure", "--server"]):
        for value, said in (("a:7071,b", "address 2, 'b', is not HOST:PORT"), ("a:7071,b:7071,a:7071", "address 3, 'a:7071', is address 1 once more")):
            done = command(*words, value)
            assert done.code == 2 and f"{words[-1]}: {said}" in done.err and len(done.err.splitlines()) == 1, done
    done = command("env", "TITAN_SERVER=a:7071,b", BIN / "titanctl", "list")
    assert done.code == 2 and "TITAN_SERVER: address 2, 'b', is not HOST:PORT" in done.err, done


if __name__ == "__main__":
    tap(moves, refused)
