#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Three coordinators and two agents, each a process of its own over loopback: the one that leads is killed or stopped in order, disks are lost.
Training goes on, and every acknowledged submit is there once. Needs libraft (Debian package libraft-dev)."""
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from nodes import Cluster  # noqa: E402
from titan import BIN, BUILD, SOURCE, CALM, command, headers_text, overrides, tap, until  # noqa: E402

NAMES = ("a", "b", "c")
KEYS = {"elastic.min_workers": 2, "elastic.max_workers": 4, "checkpoint.interval": 50, "training.global_batch_size": 4,
        "training.local_batch_size": 1, "device.threads": 1, "training.mixed_precision_param": "float32",
        "fault_tolerance.backoff_ms": 50, "training.steps": 1000000, "fault_tolerance.max_restarts": 20}


def missing():
    return None if (BUILD / "lib/titan/libtitan-ha.so").exists() else "no libraft (Debian package libraft-dev)"


class Coordinators(Cluster):
    """Coordinators a, b and c at an address of loopback that only this process uses, and agents n1, n2 that know all of them."""

    def __init__(self, single=None, held=(), **more):
        super().__init__(**more)
        self.sockets = {name: self.held(name) for name in held}
        self.single = single  # the only coordinator at first, with a job
        pid = os.getpid()
        self.address = f"127.{1 + pid // 62500 % 250}.{1 + pid // 250 % 250}.{1 + pid % 250}"
        self.tcp = ",".join(f"{self.address}:{7070 + i}" for i in range(3))
        members = ", ".join(f'"{name}={self.address}:{7080 + i}"' for i, name in enumerate(NAMES))
        (self.dir / "jobs").mkdir()
        for name in NAMES:
            (self.dir / f"{name}.toml").write_text(CALM + f'\n[storage]\njobs_dir = "{self.dir}/jobs"\n[ha]\nname = "{name}"\n'
                                                   f"members = [{members}]\nelection_ms = 500\n"
                                                   f'[http]\nlisten = "{self.address}:{7090 + NAMES.index(name)}"\ninsecure = true\n')

    def spawn(self, name, *args):
        if name not in NAMES:
            return super().spawn(name, *args)
        with open(self.dir / f"{name}.log", "a") as log:
            self.processes[name] = subprocess.Popen(
                [*self.before(name), BIN / "titand", "coordinator", "--listen", f"{self.address}:{7070 + NAMES.index(name)}", "--insecure", "--config",
                 self.dir / f"{name}.toml", "--state-dir", self.dir / name], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                close_fds=name not in self.sockets)

    def before(self, name):
        """A service manager holds the Unix socket of some, as descriptor 3."""
        if name not in self.sockets:
            return []
        fd = self.sockets[name].fileno()
        return ["bash", "-c", f'exec 3<&{fd}; [ {fd} = 3 ] || exec {fd}<&-; LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"', "bash"]

    def held(self, name):
        s = socket.socket(socket.AF_UNIX)
        (self.dir / name).mkdir(mode=0o700)
        s.bind(f"{self.dir}/{name}/titan.sock")
        s.listen(64)
        s.set_inheritable(True)
        return s

    def __enter__(self):
        try:
            return self.begin()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise

    def begin(self):
        if self.single:
            self.unix = f"unix:{self.dir}/{self.single}/titan.sock"
            (self.dir / "titand.toml").write_text(f'[storage]\njobs_dir = "{self.dir}/jobs"\n' + CALM)
            super().spawn(self.single, "coordinator")
            until("the single coordinator answers", self.answers)
            self.first = self.submit({**KEYS, "training.dataset_path": headers_text(self.dir / "text")})
            self.stop(self.single)
        for name in NAMES:
            self.spawn(name)
        self.unix = self.tcp
        self.leads = until("one coordinator leads", self.leader)
        until("all are members", self.complete)
        for name in self.slots:
            self.agent(name)
        until("the nodes are ready", lambda: self.nodes() == {name: "ready" for name in self.slots})
        return self

    def answers_as_leader(self, name):
        p = self.processes.get(name)
        return p and p.poll() is None and command(BIN / "titanctl", "--server", f"unix:{self.dir}/{name}/titan.sock", "nodes").code == 0

    def leader(self):
        return next((name for name in NAMES if self.answers_as_leader(name)), None)

    def members(self):
        """What they do: leads, follows, joins, not reached."""
        return [line.split()[1] for line in self.ctl("admin", "members").splitlines()[1:]]

    def hand_over(self, name):
        self.ctl("admin", "hand-over")
        until(f"{name} follows", lambda: not self.answers_as_leader(name))

    def complete(self):
        """The one that leads has made every member a voter."""
        return "every member votes" in (self.dir / f"{self.leads}.log").read_text()


class Submitter(threading.Thread):
    """Submits jobs that wait, one after the other, with a key of its own each; asks again until one is acknowledged."""

    def __init__(self, c, keys):
        super().__init__()
        self.c, self.keys, self.acknowledged, self.ended = c, keys, {}, threading.Event()

    def run(self):
        for i in itertools.count():
            while not self.ended.is_set():
                done = command(BIN / "titanctl", "--server", self.c.tcp, "submit", SOURCE / "recipes/tiny.toml", *overrides(self.keys),
                               "--idempotency-key", f"k{i}", "--name", f"k{i}")
                if done.code == 0:
                    self.acknowledged[f"k{i}"] = (done.out.strip(), time.monotonic())
                    break
            if self.ended.is_set():
                return

    def next_after(self, at):
        return until("a submit is acknowledged", lambda: next((t for _, t in list(self.acknowledged.values()) if t > at), None))

    def end(self):
        self.ended.set()
        self.join()
        return {key: job for key, (job, _) in self.acknowledged.items()}


def leaders_lost():
    """the coordinator that leads is killed, then stopped in order, under submits and a run: training goes on, each submit is there once"""
    if missing():
        return missing()
    with Coordinators(pace_ms=20, held=NAMES) as c:
        keys = {**KEYS, "training.dataset_path": headers_text(c.dir / "text")}
        job = c.submit(keys)
        c.training(job, 4, 3)
        epoch = c.status(job)["epoch"]
        waiting = {**keys, "elastic.min_workers": 4}  # no slots are left for it
        submitter = Submitter(c, waiting)
        submitter.start()
        try:
            for how in (c.kill, c.stop, c.hand_over):
                submitter.next_after(time.monotonic())
                lost, at = c.leads, time.monotonic()
                how(lost)
                print(f"# {how.__name__}: next acknowledged submit {(submitter.next_after(time.monotonic()) - at) * 1000:.0f} ms after it")
                c.leads = until("another one leads", c.leader)
                assert c.leads != lost
                s = c.status(job)
                assert s["epoch"] == epoch and s["restarts"] == 0, s
                c.training(job, 4, s["step"])
                if how != c.hand_over:
                    c.spawn(lost)
                until("all follow the new one", lambda: c.members().count("follows") == 2)
        finally:
            acknowledged = submitter.end()
        jobs = {j["name"]: str(j["id"]) for j in json.loads(c.ctl("-o", "json", "list", "--limit", 10000))["jobs"] if j["name"] in acknowledged}
        assert jobs == acknowledged
        assert c.status(job)["epoch"] == epoch
        shown = urllib.request.urlopen(f"http://{c.address}:{7090 + NAMES.index(c.leads)}/metrics").read().decode()
        assert "titan_leader 1\n" in shown and all(f'titan_replog_lag{{member="{name}"}} ' in shown for name in NAMES), shown
        for name in acknowledged:
            c.ctl("cancel", acknowledged[name])
        c.cancel(job)


def disks_lost():
    """three coordinators begin with the store of a single one; then a disk is lost, one is an older copy, and all are killed at once"""
    if missing():
        return missing()
    with Coordinators(slots={"n1": 1}, single="b") as c:
        assert c.leads == "b", c.leads  # it has the store
        keys = {**KEYS, "elastic.min_workers": 4, "training.dataset_path": headers_text(c.dir / "text")}
        jobs = [c.first, c.submit(keys)]
        lost, older = (name for name in NAMES if name != c.leads)
        follow = lambda: c.members().count("follows") == 2  # noqa: E731

        def all_vote(times):
            """The leader has said so that often: at the start, and after each new disk."""
            until("every member votes", lambda: (c.dir / f"{c.leads}.log").read_text().count("every member votes") >= times)
        missed = lambda: c.members().count("follows") == 1  # noqa: E731

        all_vote(1)
        c.kill(lost)
        shutil.rmtree(c.dir / lost)
        jobs.append(c.submit(keys))
        c.spawn(lost)
        all_vote(2)

        c.stop(older)
        until("it is missed", missed)
        shutil.copytree(c.dir / older, c.dir / "copy")
        c.spawn(older)
        until("it follows", follow)
        jobs += [c.submit(keys) for _ in range(4)]
        until("it has confirmed them", lambda: all(line.split()[-1] == "0" for line in c.ctl("admin", "members").splitlines()[1:]))
        c.kill(older)
        shutil.rmtree(c.dir / older)
        shutil.move(c.dir / "copy", c.dir / older)
        c.spawn(older)
        until("the one with the older copy joins anew", lambda: "joins with an empty disk" in (c.dir / f"{older}.log").read_text())
        all_vote(3)

        for name in NAMES:
            c.kill(name)
        for name in NAMES:
            c.spawn(name)
        c.leads = until("one leads", c.leader)
        until("the others follow", follow)
        before = c.leads
        c.kill(before)
        c.leads = until("another one leads", c.leader)
        assert c.leads != before
        assert {str(j["id"]) for j in json.loads(c.ctl("-o", "json", "list"))["jobs"]} == set(jobs)


if __name__ == "__main__":
    tap(leaders_lost, disks_lost)
