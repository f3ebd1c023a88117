# SPDX-License-Identifier: Apache-2.0
"""A coordinator and agents, each a process of its own, on this machine or on hosts of their own."""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from reports import agree
from titan import BIN, CALM, FP_BIN, SOURCE, answered, command, deadline, overrides, paced, until, worker_pids


class Cluster:
    """A coordinator and agents n1, n2 of two slots (more with slots). hosts: name -> (command prefix, address). config:
    of all daemons, TOML; [detection] is CALM where it has none. lease_ms: workers outlive their agent by so much.
    pace_ms: they sleep so long before every step."""

    def __init__(self, hosts=None, slots=None, config="", lease_ms=60000, pace_ms=0):
        self.slots = slots or {"n1": 2, "n2": 2}
        self.lease_ms, self.pace_ms = lease_ms, pace_ms
        self.dir = Path(tempfile.mkdtemp(prefix="titan-nodes-"))
        self.hosts = hosts or {}
        self.processes = {}
        (self.dir / "titand.toml").write_text(config if "[detection]" in config else config + CALM)

    def host(self, name):
        return self.hosts.get(name, ([], "127.0.0.1"))

    def spawn(self, name, *args):
        prefix, _ = self.host(name)
        slowly = self.pace_ms and args[0] == "agent"
        with open(self.dir / f"{name}.log", "a") as log:
            self.processes[name] = subprocess.Popen(
                [*prefix, (FP_BIN if slowly else BIN) / "titand", *map(str, args), "--config", self.dir / "titand.toml", "--state-dir",
                 self.dir / name],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, **(paced(self.pace_ms)[1] if slowly else {})})

    def __enter__(self):
        address = self.host("c")[1]
        self.coordinator(f"{address}:0")
        listen = self.dir / "c/run/listen"
        until("the coordinator listens", lambda: listen.exists() and len(listen.read_text().split()) >= 2)
        self.unix, self.tcp, *_ = listen.read_text().split()
        for name in self.slots:
            self.agent(name)
        until("the nodes are ready", lambda: self.nodes() == {name: "ready" for name in self.slots})
        return self

    def coordinator(self, listen):
        self.spawn("c", "coordinator", "--listen", listen, "--insecure")

    def agent(self, name):
        self.spawn(name, "agent", "--coordinator", self.tcp, "--insecure", "--node", name, "--address", self.host(name)[1],
                   "--slots", self.slots[name], "--lease-ms", self.lease_ms)

    def answers(self):
        """The coordinator does."""
        return command(BIN / "titanctl", "--server", self.unix, "version").code == 0

    def restart_coordinator(self):
        """Where it was."""
        self.spawn("c", "coordinator", "--listen", self.tcp, "--insecure")
        until("the coordinator is back", self.answers)

    def stop(self, name):
        self.processes[name].send_signal(signal.SIGTERM)
        self.processes[name].wait(deadline())

    def kill(self, name):
        self.processes[name].kill()
        self.processes[name].wait()

    def ctl(self, *args):
        done = answered(lambda: command(BIN / "titanctl", "--server", self.unix, *args))
        assert done.code == 0, f"{args}: {done.err}"
        return done.out

    def nodes(self):
        return {n["name"]: n["state"] for n in json.loads(self.ctl("-o", "json", "nodes"))["nodes"]}

    def status(self, job):
        return json.loads(self.ctl("-o", "json", "status", job))

    def events(self, job):
        return [json.loads(line) for line in self.ctl("-o", "json", "events", job).splitlines() if line]

    def ended(self, job, *states):
        """Its status, once it is in one of these; COMPLETED by default."""
        states = states or ("COMPLETED",)
        return until(f"job {job} is {' or '.join(states)}", lambda: (lambda s: s["state"] in states and s)(self.status(job)))

    def cancel(self, job):
        """Its status; all that is reported of it agrees."""
        self.ctl("cancel", job)
        self.ended(job, "CANCELLED")
        return agree(self.ctl, job).status

    def submit(self, keys, *args):
        return self.ctl("submit", SOURCE / "recipes/tiny.toml", *overrides(keys), *args).strip()

    def training(self, job, world, beyond):
        def check():
            s = self.status(job)
            assert s["state"] not in ("FAILED", "CANCELLED", "COMPLETED"), s
            return s["state"] == "RUNNING" and s["world_size"] == world and s["step"] > beyond and s
        return until(f"{world} workers train beyond step {beyond}", check)

    def __exit__(self, kind, *_):
        for name in sorted(self.processes, key="c".__eq__):  # the coordinator last
            p = self.processes.get(name)
            if p and p.poll() is None:
                p.send_signal(signal.SIGTERM)
                try:
                    p.wait(deadline())
                except subprocess.TimeoutExpired:
                    self.kill(name)
        if kind:
            for log in sorted(self.dir.glob("*.log")) + sorted(self.dir.glob("c/jobs/*/logs/*.log")):
                print(f"# {log.name}:\n# " + log.read_text(errors="replace")[-3000:].replace("\n", "\n# "))
        for pid in worker_pids(self.dir):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until("no worker is left", lambda: not worker_pids(self.dir))
        shutil.rmtree(self.dir, ignore_errors=True)
