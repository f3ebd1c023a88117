#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A coordinator and two agents, each a process of its own: they train together over TCP, lose a node, get it back. Over loopback
always; as hosts of their own (network namespaces, a bridge between them) where root may make them."""
import json
import os
import shutil
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from nodes import Cluster  # noqa: E402
from titan import command, headers_text, slow, tap, until, worker_pids  # noqa: E402

KEYS = {"elastic.min_workers": 2, "elastic.max_workers": 4, "checkpoint.interval": 20, "training.global_batch_size": 4,
        "training.local_batch_size": 1, "device.threads": 1, "training.mixed_precision_param": "float32",
        "fault_tolerance.backoff_ms": 50, "training.steps": 1000000, "fault_tolerance.max_restarts": 20}


def scenario(hosts):
    with Cluster(hosts, pace_ms=20) as c:
        keys = {**KEYS, "training.dataset_path": headers_text(c.dir / "text")}
        job = c.submit(keys)
        c.training(job, 4, 3)
        started = [e for e in c.events(job) if e["type"] == "worker.started"]
        assert {e["node"] for e in started} == {"n1", "n2"}, started
        text = c.ctl("logs", job)
        assert "step=" in text, text[:500]

        # One worker.
        victim = started[-1]["detail"]["pid"]
        os.kill(victim, signal.SIGKILL)
        until("the loss of a worker is told", lambda: any(e["type"] == "recovery.finished" for e in c.events(job)), 20)
        s = c.training(job, 4, c.status(job)["step"])
        assert s["restarts"] >= 1, s

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
        c.restart_coordinator()
        s = c.status(job)
        c.training(job, 4, s["step"])
        assert c.status(job)["epoch"] == s["epoch"], "an epoch was lost with the coordinator"

        c.cancel(job)


def over_loopback():
    """two agents and a coordinator over loopback TCP: a worker, a node and the coordinator are lost in turn"""
    scenario(None)


def pipeline_over_loopback():
    """a pipeline that crosses the nodes, ZBVZeroBubble over TCP: loses a worker, then is what it was"""
    with Cluster(pace_ms=20) as c:
        job = c.submit({**KEYS, "training.dataset_path": headers_text(c.dir / "text"), "training.seq_len": 32,
                        "model.n_layers": 4, "parallelism.pipeline_parallel_degree": 2,
                        "parallelism.pipeline_parallel_microbatch_size": 1,
                        "parallelism.pipeline_parallel_schedule": "ZBVZeroBubble"})
        c.training(job, 4, 3)
        os.kill([e for e in c.events(job) if e["type"] == "worker.started"][-1]["detail"]["pid"], signal.SIGKILL)
        until("two go on, then four", lambda: [e["detail"]["world"] for e in c.events(job)
                                               if e["type"] == "epoch.formed"] == [4, 2, 4], 30)
        c.training(job, 4, c.status(job)["step"])
        c.cancel(job)


def codes_over_loopback():
    """weights and gradients as codes, then replicas that send each other parts: a node dies, the others go on from memory, and it comes back"""
    loco = {"parallelism.fsdp_reduce_codec": "loco"}
    parts = {"parallelism.data_parallel_replicate_degree": 2, "parallelism.replicate_method": "demo", "optimizer.name": "SGD", "optimizer.lr": 3e-3}
    for more, source in ((loco | {"parallelism.fsdp_gather_codec": "int8"}, "buddy"), (loco | parts, "replica")):
        with Cluster(pace_ms=20) as c:
            job = c.submit(KEYS | more | {"training.dataset_path": headers_text(c.dir / "text")})
            step = c.training(job, 4, 3)["step"]
            pids = worker_pids(c.dir / "n2")
            c.kill("n2")
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            step = c.training(job, 2, step)["step"]
            c.agent("n2")
            c.training(job, 4, step + 3)
            text, events = c.ctl("logs", job), c.events(job)
            c.cancel(job)
            recovered = [e["detail"] for e in events if e["type"] == "recovery.finished"]
            assert [r["rung"] for r in recovered] == [source], recovered
            assert len([e for e in events if e["type"] == "resize.finished"]) == 1 and "state=memory" in text, events
            rows = [json.loads(line) for line in c.ctl("-o", "json", "metrics", job).splitlines()]
            assert [r["step"] for r in rows] == list(range(1, len(rows) + 1)), "steps are missing, or were trained twice"
            assert all(0 < r["loss"] < 6 and r["grad_norm"] > 0 for r in rows), rows[-1]
            assert not [w for w in ("damaged", "differ", "drifted") if w in text], text[-2000:]


@slow
def over_namespaces():
    """the same with a network namespace for each"""
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    if not shutil.which("ip"):
        return "no ip (Debian package iproute2)"
    tag = f"t{os.getpid()}"
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


tap(over_loopback, pipeline_over_loopback, codes_over_loopback, over_namespaces)
