#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Resize, drain, preemption and quarantine as an operator does them: real titand, agents and workers."""
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from nodes import Cluster  # noqa: E402
from titan import Daemon, deadline, headers_text, slow, tap, until, worker_pids  # noqa: E402

TEXT = Path(tempfile.mkdtemp(prefix="titan-test-"))
KEYS = {"training.dataset_path": headers_text(TEXT / "text", 1 << 18), "device.threads": 1, "training.local_batch_size": 1,
        "training.global_batch_size": 20, "training.seq_len": 32, "training.mixed_precision_param": "float32",
        "checkpoint.enable": "false", "training.steps": 1000000, "elastic.min_workers": 1, "elastic.max_workers": 4}
# Nothing is lost here unless it is killed: what a machine that is slow for seconds does makes nothing suspect.
CALM = "[detection]\nsuspect_ms = 10000\nnode_timeout_ms = 20000\naway_ms = 20000\nhang_floor_ms = 10000\n"


def cluster(slots, config="", pace_ms=0):
    return Cluster(slots=slots, config=CALM + config, lease_ms=10000, pace_ms=pace_ms)


def dev(slots):
    (TEXT / "calm.toml").write_text(CALM)
    return Daemon(None, "--slots", slots, "--config", TEXT / "calm.toml", pace_ms=20)


def keys(**more):
    return {**KEYS, **{k.replace("__", "."): v for k, v in more.items()}}


def one_by_one(metrics):
    """Every step once, none twice: nothing that was committed was lost. What the coordinator did not hear it reads a moment later."""
    def told():
        points = metrics()
        return [p["step"] for p in points] == list(range(1, len(points) + 1)) and points
    return [p["loss"] for p in until("each step is told of once", told)]


def world_of(daemon, job):
    return daemon.status(job)["world_size"]


def resized_run_is_the_same_run():
    """resize 4, 3, 5, 4 on request: the losses are bit for bit those of a run that was never resized"""
    shape = {"numerics__canonical": "true", "elastic__max_workers": 5}
    with dev(5) as d:
        job = d.submit("tiny", keys(**shape))
        until("it trains", lambda: d.status(job)["step"] > 5)
        for world in 4, 3, 5, 4:
            d.ok("resize", job, world, "--wait")
            assert world_of(d, job) == world, d.status(job)
            before = d.status(job)["step"]
            until("it goes on", lambda: d.status(job)["step"] > before + 2)
        assert d.status(job)["restarts"] == 0
        d.ok("cancel", job)
        d.wait_state(job, "CANCELLED")
        losses = one_by_one(lambda: d.lines("metrics", job))
        events = [e["type"] for e in d.lines("events", job)]
        assert events.count("resize.finished") >= 4 and "epoch.revoked" not in events, events
        calm = d.submit("tiny", keys(**shape))  # as far as the other one went
        until("it has as many steps", lambda: d.status(calm)["step"] >= len(losses))
        d.ok("cancel", calm)
        d.wait_state(calm, "CANCELLED")
        assert losses == one_by_one(lambda: d.lines("metrics", calm))[:len(losses)], "the losses differ"


def resize_is_checked_and_kept():
    """resize: illegal sizes are refused with the nearest; the desired outlives the server; recipe takes it back"""
    with dev(4) as d:
        job = d.submit("tiny", keys(parallelism__tensor_parallel_degree=2, elastic__min_workers=2))
        until("it trains with four", lambda: world_of(d, job) == 4 and d.status(job)["state"] == "RUNNING")
        for words, hint in (("3", "2 and 4"), ("7", "nearest: 4"), ("4:2", "not a range"), ("x", "MIN:MAX")):
            refused = d.ctl("resize", job, words)
            assert refused.code == 2 and hint in refused.err and refused.err.count("\n") == 1, refused.err
        d.ok("resize", job, "2", "--wait")
        d.kill()
        d.start()
        until("it is adopted", lambda: d.status(job)["state"] == "RUNNING")
        step = d.status(job)["step"]
        until("it goes on with two", lambda: d.status(job)["step"] > step)
        assert world_of(d, job) == 2 and d.status(job)["wanted_max"] == 2
        d.ok("resize", job, "recipe")
        until("it has four again", lambda: world_of(d, job) == 4)
        steps = [p["step"] for p in d.lines("metrics", job)]  # without those that no coordinator was there to hear of
        assert steps == sorted(set(steps)), steps
        d.ok("cancel", job)
        assert d.ctl("resize", "99", "2").code == 3
        assert d.ctl("resize", job, "2").code == 6


def checkpoints_on_request():
    """checkpoint and cancel --checkpoint write one although the run file asks for none, and say where"""
    with dev(2) as d:
        job = d.submit("tiny", keys(elastic__max_workers=2))
        until("it trains", lambda: d.status(job)["step"] > 3)
        d.ok("checkpoint", job)
        first = until("it is listed", lambda: json.loads(d.ok("-o", "json", "checkpoints", job))["checkpoints"])[0]
        assert Path(first["path"]).is_dir()
        step = d.status(job)["step"]
        until("it goes on", lambda: d.status(job)["step"] > step)
        d.ok("cancel", job, "--checkpoint", "--reason", "enough")
        end = d.wait_state(job, "CANCELLED")
        assert end["reason"].startswith("enough; checkpoint of step") and end["checkpoint"] in end["reason"], end
        refused = d.ctl("checkpoint", job)
        assert refused.code == 6 and refused.err.count("\n") == 1, refused.err
        plain = d.submit("tiny", keys(elastic__max_workers=2))
        until("it trains", lambda: d.status(plain)["step"] > 3)
        d.ok("cancel", plain)
        assert d.wait_state(plain, "CANCELLED")["checkpoint"] is None


def drained_node():
    """drain: workers move to the other node without a lost step; the node takes none until undrain"""
    with cluster({"n1": 2, "n2": 4}) as c:
        c.ctl("drain", "n2", "--reason", "not yet")
        job = c.submit(keys(elastic__min_workers=2, elastic__max_workers=2))
        c.training(job, 2, 3)
        c.ctl("undrain", "n2")
        c.ctl("drain", "n1", "--reason", "new disk")
        until("the node is empty", lambda: c.nodes()["n1"] == "drained")
        s = c.training(job, 2, c.status(job)["step"])
        assert s["restarts"] == 0 and s["state"] == "RUNNING", s
        one_by_one(lambda: [json.loads(x) for x in c.ctl("-o", "json", "metrics", job).splitlines()])
        events = c.events(job)
        assert "epoch.revoked" not in [e["type"] for e in events]
        assert "2 of 2 workers move" in [e for e in events if e["type"] == "job.state"][-2]["message"], events
        assert "new disk" in c.ctl("nodes")
        # A second job does not fit on what is left, and says so.
        other = c.submit(keys(elastic__min_workers=4, elastic__max_workers=4))
        reason = until("it is said", lambda: c.status(other)["reason"])
        assert "2 free on node n2" in reason or "waiting for nodes" in reason, reason
        c.ctl("undrain", "n1")
        c.training(other, 4, 1)
        c.ctl("cancel", job, other)


def drain_deadline():
    """drain --deadline: what fits nowhere else is stopped with a checkpoint, queued, and goes on after undrain"""
    with cluster({"n1": 2, "n2": 1}) as c:
        job = c.submit(keys(elastic__min_workers=2, elastic__max_workers=2))
        c.training(job, 2, 3)
        c.ctl("drain", "n1", "--deadline", "1h")  # the reason is there for as long as it waits
        assert "draining node n1" in c.status(job)["reason"] and c.nodes()["n1"] == "draining", (c.status(job), c.nodes())
        c.training(job, 2, c.status(job)["step"])
        c.ctl("drain", "n1", "--deadline", "1s")
        until("it is queued again", lambda: c.status(job)["state"] == "PENDING")
        s = c.status(job)
        assert s["restarts"] == 0 and s["preemptions"] == 1 and s["checkpoint"], s
        c.ctl("undrain", "n1")
        c.training(job, 2, s["step"])
        one_by_one(lambda: [json.loads(x) for x in c.ctl("-o", "json", "metrics", job).splitlines()])
        c.ctl("cancel", job)


def preemption():
    """priorities: elastic runs shrink first, then the lowest stops with a checkpoint; it comes back by itself"""
    with dev(4) as d:
        low = d.submit("tiny", keys(elastic__min_workers=2))
        until("it has all slots", lambda: world_of(d, low) == 4)
        mid = d.submit("tiny", keys(elastic__min_workers=2, elastic__max_workers=2), "--priority", "5")
        until("both train", lambda: d.status(mid)["state"] == "RUNNING" and world_of(d, low) == 2)
        high = d.submit("tiny", keys(elastic__min_workers=2, elastic__max_workers=2), "-p", 9)
        until("the lowest waits", lambda: d.status(low)["state"] == "PENDING")
        reason = d.status(low)["reason"]
        assert f"preempted by job {high} (priority 9)" in reason and "waiting" in reason, reason
        assert d.status(mid)["state"] in ("RUNNING", "RESIZING")
        d.ok("cancel", high)
        until("it is back", lambda: d.status(low)["state"] == "RUNNING")
        step = d.status(low)["step"]
        until("it goes on", lambda: d.status(low)["step"] > step)
        assert d.status(low)["restarts"] == 0 and d.status(low)["preemptions"] == 1
        one_by_one(lambda: d.lines("metrics", low))
        d.ok("cancel", low, mid)
        d.ok("admin", "verify", "--rederive", d.state)


def quarantined_node():
    """quarantine: a node on which workers of two jobs crash gets no more of them, the runs go on elsewhere"""
    one = keys(elastic__min_workers=1, elastic__max_workers=1, fault_tolerance__backoff_ms=10, fault_tolerance__backoff_max_ms=10)
    with cluster({"n1": 2, "n2": 1}, "[coordinator]\nquarantine_crashes = 3\n") as c:
        c.ctl("drain", "n2")
        job, beside = c.submit(one), c.submit(one)
        c.training(job, 1, 0)
        c.training(beside, 1, 0)
        c.ctl("undrain", "n2")
        other = c.submit(keys(elastic__min_workers=1, elastic__max_workers=1))  # takes the other slot
        c.training(other, 1, 0)
        for victim, crash in ((beside, 0), (job, 0), (job, 1)):
            started = until("a worker is there", lambda: [e for e in c.events(victim) if e["type"] == "worker.started"][crash:])
            os.kill(started[-1]["detail"]["pid"], signal.SIGKILL)
            if victim == beside:  # it is back before the node takes no more
                until("it is started again", lambda: len([e for e in c.events(victim) if e["type"] == "worker.started"]) == 2)
        until("the node is in quarantine", lambda: c.nodes()["n1"] == "quarantined")
        assert "3 workers crashed there within 10 min" in c.ctl("nodes")
        until("it waits", lambda: c.status(job)["world_size"] == 0)
        c.ctl("cancel", other)
        c.training(job, 1, 0)
        assert [e for e in c.events(job) if e["type"] == "worker.started"][-1]["node"] == "n2"
        c.kill("n1")
        until("it is gone", lambda: c.nodes()["n1"] == "lost")
        c.agent("n1")
        until("it is back", lambda: c.nodes()["n1"] != "lost")
        assert c.nodes()["n1"] == "quarantined", "coming back cleared it"
        losses = c.status(job)["losses"]
        assert losses == [{"cause": "crash", "count": 2, "budget": 10, "window_s": 86400}], losses
        c.ctl("undrain", "n1")
        assert c.nodes()["n1"] == "ready"
        c.ctl("admin", "verify", "--rederive", c.dir / "c")
        told = [json.loads(x) for x in c.ctl("-o", "json", "events").splitlines()]
        (quarantined,) = [e for e in told if e["type"] == "node.quarantined"]
        assert quarantined["node"] == "n1" and quarantined["detail"]["crashes"] == 3, quarantined
        c.ctl("cancel", job, beside)


def alone_in_its_fault():
    """a job that crashes wherever it is takes no node from the others: its next worker is started elsewhere"""
    one = keys(elastic__min_workers=1, elastic__max_workers=1, fault_tolerance__backoff_ms=10, fault_tolerance__backoff_max_ms=10)
    with cluster({"n1": 1, "n2": 1}, "[coordinator]\nquarantine_crashes = 3\n") as c:
        job = c.submit(one)
        seen = []
        for crash in range(6):
            started = until("a worker is there", lambda: [e for e in c.events(job) if e["type"] == "worker.started"][crash:])
            seen.append(started[-1]["node"])
            os.kill(started[-1]["detail"]["pid"], signal.SIGKILL)
        first = seen[0]
        assert seen[:3] == [first] * 3 and first not in seen[3:], seen
        until("six are counted", lambda: c.status(job)["restarts"] == 6)
        assert set(c.nodes().values()) == {"ready"}, c.nodes()
        assert "node.quarantined" not in c.ctl("events")
        c.ctl("cancel", job)


@slow  # what has no other place waits for one, half a minute each time
def agent_told_to_stop():
    """drain_on_term: SIGTERM to an agent moves its workers, then stops with a checkpoint what has no other place; nothing counts"""
    with cluster({"n1": 2, "n2": 2}, "[agent]\ndrain_on_term = true\ngrace_ms = 60000\n", pace_ms=20) as c:
        def told_to_stop(node):  # said of it until there is another agent
            return [n["name"] for n in json.loads(c.ctl("-o", "json", "nodes"))["nodes"]
                    if n["name"] == node and n["reason"] == "its agent is told to stop"]

        job = c.submit(keys(elastic__min_workers=2, elastic__max_workers=2))
        c.training(job, 2, 3)
        first = {e["node"] for e in c.events(job) if e["type"] == "worker.started"}
        assert len(first) == 1, first
        (here,), (there,) = first, {"n1", "n2"} - first
        c.processes[here].send_signal(signal.SIGTERM)
        assert c.processes[here].wait(deadline()) == 0
        step = c.status(job)["step"]
        c.training(job, 2, step + 3)
        assert {e["node"] for e in c.events(job) if e["type"] == "worker.started"} == {here, there}
        assert not any(e["type"] == "worker.lost" or (e["type"] == "worker.exited" and e["detail"]["counted"]) for e in c.events(job))
        # Back in service without a word; and where nothing else is there, the run is stopped with a checkpoint.
        c.agent(here)
        until("it is ready", lambda: c.nodes()[here] == "ready")
        c.ctl("drain", here)
        c.processes[there].send_signal(signal.SIGTERM)
        until("it drains", lambda: told_to_stop(there))
        assert c.processes[there].wait(deadline(180)) == 0  # it waits half a minute for another place, twice
        until("it is queued", lambda: c.status(job)["state"] == "PENDING")
        s = c.status(job)
        assert s["restarts"] == 0 and s["checkpoint"], s
        c.ctl("undrain", here)
        c.training(job, 2, s["step"] + 1)
        # A second signal does not wait.
        c.ctl("drain", here)
        c.ctl("undrain", here)
        c.processes[here].send_signal(signal.SIGTERM)
        until("it drains", lambda: told_to_stop(here))
        c.processes[here].send_signal(signal.SIGTERM)
        assert c.processes[here].wait(deadline()) == 0
        assert c.status(job)["restarts"] == 0
        c.ctl("cancel", job)


def node_told_to_stop():
    """SIGTERM or SIGINT to all processes of a node, as scancel and KillMode=control-group send it, is one to its agent: nothing counts"""
    with cluster({"n1": 2, "n2": 2}, "[agent]\ndrain_on_term = true\ngrace_ms = 60000\n") as c:
        job = c.submit(keys(elastic__min_workers=2, elastic__max_workers=2))
        for what in signal.SIGTERM, signal.SIGINT:
            step = c.training(job, 2, c.status(job)["step"] + 3)["step"]
            (here,) = {n for n in c.slots if worker_pids(c.dir / n / "run")}
            for pid in (*worker_pids(c.dir / here / "run"), c.processes[here].pid):
                os.kill(pid, what)
            assert c.processes[here].wait(deadline()) == 0
            c.training(job, 2, step + 3)
            assert not any(e["type"] == "worker.lost" or (e["type"] == "worker.exited" and e["detail"]["counted"]) for e in c.events(job))
            assert not c.status(job)["losses"], c.status(job)
            c.agent(here)
            until("it is back", lambda: c.nodes()[here] == "ready")
        c.ctl("cancel", job)


def refused():
    """what cannot be done is one line and an exit code, and changes nothing"""
    with dev(2) as d:
        node = json.loads(d.ok("-o", "json", "nodes"))["nodes"][0]["name"]
        for code, words, *args in ((3, "no node 'nowhere'", "drain", "nowhere"), (3, "no node", "undrain", "nowhere"),
                                   (3, "no node", "node", "forget", "nowhere"), (6, "connected", "node", "forget", node),
                                   (2, "join, revoke, forget and rm", "node", "paint", node), (2, "--for", "drain", node, "--from", "+1h"),
                                   (2, "not a duration", "drain", node, "--deadline", "soon"),
                                   (2, "not a time", "drain", node, "--from", "yesterday", "--for", "1h"),
                                   (2, "over already", "drain", node, "--from", "2020-01-01", "--for", "1h"),
                                   (2, "--lead", "drain", node, "--from", "+1h", "--for", "1h", "--deadline", "5m"),
                                   (3, "no job", "checkpoint", "99"), (3, "no job", "resize", "99", "2"),
                                   (2, "control character", "drain", node, "--reason", "a\tb"),
                                   (2, "priority", "submit", "recipes/tiny.toml", "-p", "5000")):
            done = d.ctl(*args)
            assert done.code == code and words in done.err and done.err.count("\n") == 1, (args, done.code, done.err)
        assert {n["state"] for n in json.loads(d.ok("-o", "json", "nodes"))["nodes"]} == {"ready"}
        d.ok("drain", node, "--from", "+1h", "--for", "2h", "--reason", "power")
        assert re.search(r"  maintenance from \S+[+-]\d\d:\d\d to \S+[+-]\d\d:\d\d: power\n", d.ok("nodes")), d.ok("nodes")
        (planned,) = json.loads(d.ok("-o", "json", "nodes"))["nodes"]
        assert planned["state"] == "ready" and planned["reason"] == "power" and planned["window_from"], planned
        d.kill()
        d.start()
        until("the agent is back", lambda: "ready" in d.ok("nodes"))
        assert json.loads(d.ok("-o", "json", "nodes"))["nodes"][0]["window_until"] == planned["window_until"]
        d.ok("undrain", node)
        assert json.loads(d.ok("-o", "json", "nodes"))["nodes"][0]["window_until"] is None


try:
    tap(resized_run_is_the_same_run, resize_is_checked_and_kept, checkpoints_on_request, drained_node, drain_deadline,
        preemption, quarantined_node, alone_in_its_fault, agent_told_to_stop, node_told_to_stop,
        refused)
finally:
    shutil.rmtree(TEXT, ignore_errors=True)
