#!/usr/bin/env python3
"""A coordinator and two agents, each a process of its own: they train together over TCP, lose a node, get it back. Over loopback
always; as hosts of their own (network namespaces, a bridge between them) where root may make them."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, SOURCE, command, headers_text, overrides, tap, until, worker_pids  # noqa: E402

KEYS = {"elastic.min_workers": 2, "elastic.max_workers": 4, "checkpoint.interval": 20, "training.global_batch_size": 4,
        "training.local_batch_size": 1, "device.threads": 1, "training.mixed_precision_param": "float32",
        "fault_tolerance.backoff_ms": 50, "training.steps": 1000000, "fault_tolerance.max_restarts": 20}


class Cluster:
    """A coordinator and agents n1, n2 of two slots. hosts: name -> (command prefix, address)."""

    def __init__(self, hosts=None):
        self.dir = Path(tempfile.mkdtemp(prefix="titan-nodes-"))
        self.hosts = hosts or {}
        self.processes = {}

    def host(self, name):
        return self.hosts.get(name, ([], "127.0.0.1"))

    def spawn(self, name, *args):
        prefix, _ = self.host(name)
        with open(self.dir / f"{name}.log", "a") as log:
            self.processes[name] = subprocess.Popen(
                [*prefix, BIN / "titand", *map(str, args), "--state-dir", self.dir / name],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def __enter__(self):
        address = self.host("c")[1]
        insecure = [] if address == "127.0.0.1" else ["--insecure"]
        self.spawn("c", "coordinator", "--listen", f"{address}:0", *insecure)
        listen = self.dir / "c/run/listen"
        until("the coordinator listens", lambda: listen.exists() and len(listen.read_text().split()) == 2, 10)
        self.unix, self.tcp = listen.read_text().split()
        for name in "n1", "n2":
            self.agent(name)
        until("both nodes are ready", lambda: self.nodes() == {"n1": "ready", "n2": "ready"}, 10)
        return self

    def agent(self, name):
        self.spawn(name, "agent", "--coordinator", self.tcp, "--node", name, "--address", self.host(name)[1],
                   "--slots", 2, "--lease-ms", 1500)

    def kill(self, name):
        self.processes[name].kill()
        self.processes[name].wait()

    def ctl(self, *args):
        done = command(BIN / "titanctl", "--server", self.unix, *args)
        assert done.code == 0, f"{args}: {done.err}"
        return done.out

    def nodes(self):
        return {n["name"]: n["state"] for n in json.loads(self.ctl("-o", "json", "nodes"))["nodes"]}

    def status(self, job):
        return json.loads(self.ctl("-o", "json", "status", job))

    def events(self, job):
        return [json.loads(line) for line in self.ctl("-o", "json", "events", job).splitlines() if line]

    def submit(self, keys):
        return self.ctl("submit", SOURCE / "recipes/tiny.toml", *overrides(keys)).strip()

    def training(self, job, world, beyond):
        def check():
            s = self.status(job)
            assert s["state"] not in ("FAILED", "CANCELLED", "COMPLETED"), s
            return s["state"] == "RUNNING" and s["world_size"] == world and s["step"] > beyond and s
        return until(f"{world} workers train beyond step {beyond}", check, 60)

    def __exit__(self, kind, *_):
        for name in ("n1", "n2", "c"):
            p = self.processes.get(name)
            if p and p.poll() is None:
                p.send_signal(signal.SIGTERM)
                try:
                    p.wait(20)
                except subprocess.TimeoutExpired:
                    self.kill(name)
        if kind:
            for log in sorted(self.dir.glob("*.log")) + sorted(self.dir.glob("c/jobs/*/logs/*.log")):
                print(f"# {log.name}:\n# " + log.read_text(errors="replace")[-3000:].replace("\n", "\n# "))
        until("no worker is left", lambda: not worker_pids(self.dir), 20)
        shutil.rmtree(self.dir, ignore_errors=True)


def scenario(hosts):
    with Cluster(hosts) as c:
        keys = {**KEYS, "training.dataset_path": headers_text(c.dir / "text")}
        job = c.submit(keys)
        c.training(job, 4, 10)
        started = [e for e in c.events(job) if e["type"] == "worker.started"]
        assert {e["node"] for e in started} == {"n1", "n2"}, started
        text = c.ctl("logs", job)
        assert "step=" in text, text[:500]

        # One worker.
        victim = started[-1]["detail"]["pid"]
        os.kill(victim, signal.SIGKILL)
        s = c.training(job, 4, c.status(job)["step"])
        until("the loss of a worker is told", lambda: any(e["type"] == "recovery.finished" for e in c.events(job)), 10)
        assert s["restarts"] >= 1

        # A whole node, daemon and workers.
        pids = worker_pids(c.dir / "n2")
        assert len(pids) == 2, pids
        c.kill("n2")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        c.training(job, 2, c.status(job)["step"])
        c.agent("n2")
        c.training(job, 4, c.status(job)["step"])

        # The coordinator: training goes on, and is taken up again.
        c.kill("c")
        host = c.host("c")[1]
        c.spawn("c", "coordinator", "--listen", c.tcp, *([] if host == "127.0.0.1" else ["--insecure"]))
        until("the coordinator is back", lambda: command(BIN / "titanctl", "--server", c.unix, "version").code == 0, 10)
        s = c.status(job)
        c.training(job, 4, s["step"])
        assert c.status(job)["epoch"] == s["epoch"], "an epoch was lost with the coordinator"

        c.ctl("cancel", job)
        until("the job is cancelled", lambda: c.status(job)["state"] == "CANCELLED", 30)


def over_loopback():
    """two agents and a coordinator over loopback TCP: a worker, a node and the coordinator are lost in turn"""
    scenario(None)


def pipeline_over_loopback():
    """a pipeline that crosses the nodes, ZBVZeroBubble over TCP: loses a worker, then is what it was"""
    with Cluster() as c:
        job = c.submit({**KEYS, "training.dataset_path": headers_text(c.dir / "text"), "training.seq_len": 32,
                        "model.n_layers": 4, "parallelism.pipeline_parallel_degree": 2,
                        "parallelism.pipeline_parallel_microbatch_size": 1,
                        "parallelism.pipeline_parallel_schedule": "ZBVZeroBubble"})
        c.training(job, 4, 10)
        os.kill([e for e in c.events(job) if e["type"] == "worker.started"][-1]["detail"]["pid"], signal.SIGKILL)
        until("two go on, then four", lambda: [e["detail"]["world"] for e in c.events(job)
                                               if e["type"] == "epoch.formed"] == [4, 2, 4], 30)
        c.training(job, 4, c.status(job)["step"])
        c.ctl("cancel", job)
        until("the job is cancelled", lambda: c.status(job)["state"] == "CANCELLED", 30)


def over_namespaces():
    """the same with a network namespace for each"""
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    if not shutil.which("ip"):
        return "no ip (Debian package iproute2)"
    tag = f"t{os.getpid() % 100000}"
    made = []

    def ip(*args):
        return command("ip", *args)

    try:
        if ip("link", "add", f"{tag}b", "type", "bridge").code != 0:
            return "no network namespaces here"
        ip("link", "set", f"{tag}b", "up")
        hosts = {}
        for number, name in enumerate(("c", "n1", "n2"), 1):
            space = f"{tag}{name}"
            if ip("netns", "add", space).code != 0:
                return "no network namespaces here"
            made.append(space)
            inside_of = ip("netns", "exec", space, "true")
            if inside_of.code != 0:
                return f"network namespaces cannot be entered here: {inside_of.err.strip()}"
            inside = f"{tag}{name}i"
            for step in (("link", "add", f"{space}o", "type", "veth", "peer", "name", inside),
                         ("link", "set", f"{space}o", "master", f"{tag}b"), ("link", "set", f"{space}o", "up"),
                         ("link", "set", inside, "netns", space),
                         ("-n", space, "addr", "add", f"10.213.77.{number}/24", "dev", inside),
                         ("-n", space, "link", "set", inside, "up"), ("-n", space, "link", "set", "lo", "up")):
                done = ip(*step)
                assert done.code == 0, f"ip {' '.join(step)}: {done.err}"
            hosts[name] = (["ip", "netns", "exec", space], f"10.213.77.{number}")
        scenario(hosts)
    finally:
        for space in made:
            ip("netns", "del", space)
        ip("link", "del", f"{tag}b")


tap(over_loopback, pipeline_over_loopback, over_namespaces)
