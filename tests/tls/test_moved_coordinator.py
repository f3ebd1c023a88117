#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The machine of the coordinator is gone, under a run: another one takes over with a backup, by the lines of docs/operations.md as they
stand there. Hosts are network namespaces. No restart is counted, each step is trained once. Needs root."""
import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "support")]
from test_cluster import Hosts, lines  # noqa: E402
from titan import BIN, SOURCE, command, deadline, headers_text, overrides, tap, until  # noqa: E402

ADDRESSES = {"head": "10.0.0.1", "n1": "10.0.0.2", "n2": "10.0.0.3", "spare": "10.0.0.4"}
NODES = ("n1", "n2")


def page():
    """The page's two blocks: [[(host, line)]]."""
    text = (SOURCE / "docs/operations.md").read_text()
    section = text.split("#### The coordinator's machine is gone")[1].split("| Before a store is used")[0]
    return [[(host, line.strip()) for host, line in (row.split("#", 1) for row in block.splitlines())]
            for block in re.findall(r"```\n(.*?)```", section, re.S)]


class Run(Hosts):
    """A cluster, made by the lines of docs/security.md, that trains on both nodes. join: options of `node join`, by node."""

    def __init__(self, address, join):
        super().__init__(ADDRESSES)
        self.address, self.join, self.of = address, join, {}

    def line(self, host, line):
        before = len(self.processes)
        out = self.run(host, line.replace("titand agent", "titand agent --allow-root"))
        if len(self.processes) > before:
            self.of[host] = self.processes[-1]
        return out

    def start(self):
        init, coordinator, join, agent, _ = ((host, line.replace("head.example", self.address)) for host, line in lines())
        self.line(*init)
        self.line(*coordinator)
        self.answers("head")
        for name in NODES:
            self.line("head", join[1].replace("n1", name).replace(" >", f" {self.join.get(name, '')} >"))
            self.line(name, agent[1].replace("n1", name).replace("10.0.0.2", ADDRESSES[name]))
        self.ready("head")
        keys = {"elastic.min_workers": 6, "elastic.max_workers": 6, "training.global_batch_size": 6, "training.local_batch_size": 1,
                "device.threads": 1, "training.steps": 1000000, "training.mixed_precision_param": "float32",
                "training.dataset_path": headers_text(self.dir / "text")}
        words = " ".join(f"'{word}'" for word in overrides(keys))
        self.job = self.line("head", f"titanctl submit {SOURCE}/recipes/tiny.toml {words}").strip()
        return self.training("head", 20)

    def answers(self, host):
        until(f"the coordinator of {host} answers", lambda: command(*self.enter(host, f"{BIN}/titanctl version")).code == 0)

    def ready(self, host):
        def check():
            rows = [row.split()[:2] for row in self.line(host, "titanctl nodes").splitlines()[1:]]
            return sorted(rows) == [[name, "ready"] for name in NODES]
        until("both nodes are ready", check)

    def training(self, host, beyond):
        def check():
            s = json.loads(self.line(host, f"titanctl -o json status {self.job}"))
            assert s["state"] not in ("FAILED", "CANCELLED", "COMPLETED"), s
            return s["state"] == "RUNNING" and s["world_size"] == 6 and s["step"] > beyond and s
        return until(f"six workers train beyond step {beyond}", check)

    def metrics(self):
        """The steps in the job's file, but for a line that is being written."""
        return [json.loads(row)["step"] for row in (self.dir / f"jobs/{self.job}/metrics.jsonl").read_text().split("\n")[:-1]]

    def lose_head(self):
        """What a backup and a careful operator have left on the other machine; then neither FIN nor RST comes from the old one."""
        self.line("head", "titanctl admin backup /var/lib/titan-backup/titan.db")
        self.line("head", "cp -rp /var/lib/titan/pki /var/lib/titan-backup/")
        shutil.copytree(self.dir / "head/titan-backup", self.dir / "spare/titan-backup")
        self.training("head", self.metrics()[-1])
        self.ip("-n", f"{self.tag}head", "link", "set", "eth0", "down")
        self.of["head"].kill()
        self.of["head"].wait()
        self.lost_at = self.metrics()[-1]

    def end(self):
        s = self.training("spare", self.lost_at + 20)
        steps = self.metrics()
        assert s["restarts"] == 0 and steps == list(range(1, len(steps) + 1)), (s["restarts"], steps[-5:])
        assert steps[-1] > self.lost_at
        self.line("spare", f"titanctl cancel {self.job}")
        until("the job is cancelled", lambda: json.loads(self.line("spare", f"titanctl -o json status {self.job}"))["state"] == "CANCELLED")
        print(f"# lost at step {self.lost_at}, ended beyond {steps[-1]}")


def needs():
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    if not shutil.which("ip"):
        return "no ip (Debian package iproute2)"
    probe = f"ts{os.getpid()}p"
    made, inside = command("ip", "netns", "add", probe), command("ip", "netns", "exec", probe, "true")
    command("ip", "netns", "del", probe)
    return None if made.code == inside.code == 0 else f"no network namespaces here: {(made.err or inside.err).strip()}"


def by_name():
    """a DNS name that moves: nothing is done on the nodes"""
    if why := needs():
        return why
    script = page()[0]
    assert len(script) <= 6, script
    with Run("head.example", {}) as h:
        (h.dir / "head/titan-backup").mkdir()
        h.start()
        h.lose_head()
        (h.dir / "hosts").write_text("127.0.0.1 localhost\n10.0.0.4 head.example\n")
        for host, line in script[:-1]:
            h.line(host, line)
        h.answers("spare")
        h.ready("spare")
        assert all(name in h.line(*script[-1]) for name in NODES)
        h.end()


def by_address():
    """an address that changes: a node that knows both finds it, another is told; neither touches its workers"""
    if why := needs():
        return why
    script = page()[1]
    assert len(script) <= 6, script
    with Run("10.0.0.1", {"n2": "--address 10.0.0.1:7070,10.0.0.4:7070"}) as h:
        (h.dir / "head/titan-backup").mkdir()
        h.start()
        h.lose_head()
        for host, line in script[:-2]:
            h.line(host, line)
        h.answers("spare")
        h.of["n1"].send_signal(signal.SIGTERM)
        h.of["n1"].wait(deadline())
        h.line(*script[-2])
        h.ready("spare")
        assert all(name in h.line(*script[-1]) for name in NODES)
        h.end()
        assert "the coordinator is at another of its addresses" in (h.dir / "n2.log").read_text()


if __name__ == "__main__":
    tap(by_name, by_address)
