# SPDX-License-Identifier: Apache-2.0
"""Attacks by name, each with what must not come of it. SCENES has them all.

What users of the machine may read and write is in tests/security/test_users.py (paths_of_others), checkpoints that cannot be
read for a while in tests/fault/test_checkpoint_lost.py (unreadable_under_a_job)."""
import contextlib
import json
import os
import random
import re
import resource
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
from collections import Counter
from pathlib import Path

from arena import BUSY, KEYS, Arena, Secured, rss_kib
from http2 import PREFACE, SETTINGS, Connection, begin, dial, frame
from mutate import Mutator
from protocol import Client, Datagrams, Frames, Page, Session, agent, api, hello, worker
from titan import BIN, SOURCE, Daemon, command, deadline, headers_text, until

HUGE = (1 << 64) - 1
SCENES = []


def scene(quick=False):
    """quick: `make test` has it, the others are `make test-slow`'s; `make attack` has all."""
    def add(run):
        SCENES.append((run.__name__.replace("_", "-"), run))
        run.quick = quick
        return run
    return add


def members(a, job):
    """FormEpoch members of a job as an outsider can know them: of the events, and the agents' ports."""
    out = []
    for e in a.events(job):
        if e["type"] == "worker.started":
            out.append(agent.Member(worker_id=e["detail"]["worker"], node=e["node"], address="127.0.0.1:1",
                                    peer_address=f"127.0.0.1:{a.peer_port(e['node'])}"))
    return out


def recovers(a, job):
    """A worker of the job is killed: it trains again, in an epoch with a number near the last one."""
    a.training(job, 2, 1)
    before = a.status(job)
    pids = {}
    for e in a.events(job):
        if e["type"] == "worker.started":
            pids[e["detail"]["worker"]] = e["detail"]["pid"]
        elif e["type"] == "worker.exited":
            pids.pop(e["detail"]["worker"], None)
    os.kill(max(pids.values()), signal.SIGKILL)
    until("it trains in another epoch", lambda: (lambda s: s["state"] == "RUNNING" and s["epoch"] > before["epoch"])(a.status(job)), 30)
    now = a.status(job)
    assert now["epoch"] < before["epoch"] + 5000, (before["epoch"], now["epoch"])


@scene(quick=True)
def epoch_by_datagram(a):
    """one datagram commits epoch 2^64-1 of a job: neither it nor the coordinator is moved, and losses are recovered from as ever"""
    out = Datagrams()
    for job in (a.mine, a.beside):
        for node in ("n1", "n2"):
            for sender in ("zz", "n1", "n2"):
                for source in (0, 1, 2):
                    out.send(a.peer_port(node), agent.PeerMessage(id=7, **{"from": sender}, term=a.term(), job_id=job, commit=agent.FormEpoch(
                        job_id=job, epoch=HUGE, comm_id=bytes(16), source=source, members=members(a, job))))
    out.close()
    a.check()
    recovers(a, a.mine)


@scene(quick=True)
def commit_by_datagram(a):
    """a forged commit of the next epoch, from initial weights or the attacker's checkpoint: the run goes on where it is"""
    out = Datagrams()
    s = a.status(a.beside)
    for node in ("n1", "n2"):
        for source in (0, 1, 2):
            for ahead in (1, 2, 1000):
                for kind in ("propose", "commit"):
                    f = agent.FormEpoch(job_id=a.beside, epoch=s["epoch"] + ahead, comm_id=b"x" * 16, source=source,
                                        checkpoint_path=str(a.canary.folder / "step-00000002"), members=members(a, a.beside), memory_only=True)
                    out.send(a.peer_port(node), agent.PeerMessage(id=9, **{"from": "n2" if node == "n1" else "n1"}, term=a.term(),
                                                                  job_id=a.beside, **{kind: f}))
        out.send(a.peer_port(node), agent.PeerMessage(id=9, **{"from": "zz"}, term=a.term(), job_id=a.beside,
                                                      revoke=agent.RevokeEpoch(job_id=a.beside, epoch=s["epoch"])))
    out.close()
    a.trains_on()
    assert a.check()["epoch"] == s["epoch"]


@scene(quick=True)
def epoch_by_session(a):
    """a node without a worker of the job refuses its epoch for number 2^64-1: nothing is made of it"""
    s = Session(a.tcp)
    s.send(hello("evil"))
    assert s.hear().WhichOneof("kind") == "ack"
    for job in (a.mine, a.beside):
        for seen in (HUGE, HUGE - 1, 1 << 63, 1 << 33, 1000):
            s.send(agent.AgentMessage(term=a.term(), refused=agent.EpochRefused(job_id=job, epoch=a.status(job)["epoch"], seen_epoch=seen)))
    until("it was heard", lambda: s.ended or s.hear(0.5) is None, 10)
    s.close()
    a.check()
    recovers(a, a.mine)


@scene(quick=True)
def log_of_no_rank(a):
    """a piece of a log of a rank that no job has: the session that brings it ends"""
    s = Session(a.tcp)
    s.send(hello("evil"))
    known = s.hear().ack
    s.send(agent.AgentMessage(term=known.term, log=agent.AgentLogChunk(request_id=1, rank=-7, data=b"x")))
    until("it is refused", lambda: s.ended, 10)
    assert s.ended[0] == "INVALID_ARGUMENT", s.ended
    s.close()
    a.check()


@scene(quick=True)
def judged_by_the_unasked(a):
    """a node tells what it knows of nodes it was not asked for: no node is lost"""
    s = Session(a.tcp)
    s.send(hello("evil"))
    known = s.hear().ack
    for probe in range(1, 200):
        for node in ("n1", "n2"):
            s.send(agent.AgentMessage(term=known.term, probe_result=agent.ProbeResult(probe_id=probe, node=node, reached=False)))
    until("it was heard", lambda: s.ended or s.hear(0.5) is None, 10)
    s.close()
    a.trains_on()
    a.check()


@scene()
def checked_by_the_unasked(a):
    """a node answers for others what an operator's check asked them, and what no check asked; its own answer, in an older version's words, counts"""
    s = Session(a.tcp)
    s.send(hello("evil"))
    term = s.hear().ack.term
    done = []
    operator = threading.Thread(target=lambda: done.append(command(BIN / "titanctl", "-s", a.unix, "-o", "json", "admin", "check")))
    operator.start()
    asked = until("it is asked", lambda: (lambda m: m if m and m.WhichOneof("kind") == "check" and m.check.request_id else None)(s.hear(1)), 10).check
    assert len(asked.listen) == 16, asked
    forged = agent.NodeFinding(what="clock", wrong=True, text="forged")
    for request in range(asked.request_id + 1, asked.request_id + 50):
        s.send(agent.AgentMessage(term=term, checked=agent.NodeChecked(request_id=request, findings=[forged], port=1, reaches=True)))
    for probe in range(1, 500):
        for node in ("n1", "n2"):
            s.send(agent.AgentMessage(term=term, probe_result=agent.ProbeResult(probe_id=1 << 63 | probe, node=node, reached=False)))
    own = agent.NodeFinding(what="clock", wrong=False, text="mine")
    for text in (own, forged, forged):  # the first one counts
        s.send(agent.AgentMessage(term=term, checked=agent.NodeChecked(request_id=asked.request_id, findings=[text])))
    operator.join()
    s.close()
    (done,) = done
    found = {n["node"]: n["findings"] for n in json.loads(done.out)["nodes"]}
    assert "forged" not in done.out, done.out
    for node, other in (("n1", "n2"), ("n2", "n1")):
        for what, kind in (("tcp", "workers"), ("udp", "agents")):
            (said,) = [f for f in found[node] if f["what"] == what]
            assert not said["wrong"] and other in said["text"] and said["text"].endswith(f"as {kind} do"), (node, found[node])
    (older,) = [f for f in found["evil"] if f["what"] == "older"]
    assert not older["wrong"] and "does not look at storage.data_roots" in older["text"], found["evil"]
    assert [f["text"] for f in found["evil"] if f["what"] == "clock"] == ["mine"], found["evil"]
    a.check()


@scene(quick=True)
def fenced_by_a_stranger(a):
    """a term of 2^62 without a registration: the coordinator goes on to accept requests"""
    for message in (agent.AgentMessage(term=1 << 62, heartbeat=agent.AgentHeartbeat(number=1)),
                    agent.AgentMessage(registration=agent.AgentRegistration(node="evil", slots=1, device="cpu", incarnation=3, seen_term=1 << 62))):
        s = Session(a.tcp)
        s.send(message)
        until("it was heard", lambda: s.ended or s.hear(0.5) is None, 10)
        s.close()
    a.ctl("cancel", a.submit({**a.keys, "elastic.min_workers": 64, "elastic.max_workers": 64, "training.global_batch_size": 64}))
    a.check()


@scene()
def fenced_by_a_node(a):
    """a node tells of a later coordinator without the proof of its term: it is refused, and others are served"""
    s = Session(a.tcp)
    s.send(hello("evil"))
    known = s.hear().ack
    assert len(known.term_proof) == 32, known
    s.send(agent.AgentMessage(term=known.term, refused=agent.EpochRefused(seen_term=known.term + 1, seen_proof=known.term_proof)))
    until("it is refused", lambda: s.ended, 10)
    s.close()
    for ahead in (1, 2, 1000, 1000000, 1 << 32, 1 << 40):
        for proof in (b"", bytes(32), known.term_proof, known.term_proof[:31]):
            s = Session(a.tcp)
            s.send(hello("evil", seen_term=known.term + ahead, seen_proof=proof))
            until("it is refused", lambda: s.ended, 10)
            assert s.ended[0] == "PERMISSION_DENIED", s.ended
            s.close()
    a.ctl("cancel", a.submit({**a.keys, "elastic.min_workers": 64, "elastic.max_workers": 64, "training.global_batch_size": 64}))
    a.check()


@scene(quick=True)
def pose_as_a_node(a):
    """a registration from elsewhere with the name of a node that is there: refused, and that node keeps its session"""
    for name in a.slots:
        s = Session(a.tcp)
        s.send(hello(name, address="127.0.0.9"))
        until("it is refused", lambda: s.ended, 10)
        assert s.ended[0] == "ALREADY_EXISTS", s.ended
        s.close()
    a.trains_on()
    a.check()


@scene(quick=True)
def fifo_as_schedule(a):
    """a FIFO as schedule file: the submit is refused, others are answered"""
    fifo = a.dir / "fifo"
    os.mkfifo(fifo)
    recipe = (a.dir / "mine.toml").read_text() + f'\n[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule_csv = "{fifo}"\n'
    c = Client(a.unix)
    status, text = c.call("Submit", api.SubmitRequest(recipe=recipe).SerializeToString(), timeout=deadline())
    assert status in ("INVALID_ARGUMENT", "FAILED_PRECONDITION") and "fifo" in text, (status, text)
    status, text = c.call("Submit", api.SubmitRequest(recipe="[training]\nstepz = 1\n").SerializeToString(), timeout=deadline())
    assert status == "INVALID_ARGUMENT", (status, text)
    c.close()
    a.check()


@scene()
def header_block(_):
    """header blocks of 10 MB in frames, for gRPC alone more work than a node may be silent, to a process that is agent and coordinator: its node and run stay"""
    d = Daemon(None, "--slots", 2)
    (d.state / "titand.toml").write_text(BUSY)
    d.args += ("--config", d.state / "titand.toml")
    data = PREFACE + frame(SETTINGS, 0, 0) + begin(1, "/titan.v1.Titan/Version", ("x", b"a" * 10_000_000))

    def block(target):
        with contextlib.suppress(OSError), dial(target) as s:
            s.settimeout(deadline())
            s.sendall(data)
    with d:
        port = until("it says where it listens", lambda: re.search(r"listen=.*127\.0\.0\.1:(\d+)", d.log())).group(1)
        job = d.submit("tiny", {**KEYS, "training.dataset_path": headers_text(d.state / "text", 1 << 18), "elastic.min_workers": 2,
                                "elastic.max_workers": 2})
        until("it trains", lambda: d.status(job)["step"] > 1, 60)
        for target in (f"127.0.0.1:{port}", f"unix:{d.state}/titan.sock"):
            before = d.status(job)
            threads = [threading.Thread(target=block, args=(target,)) for _ in range(5)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            now = until("it makes steps", lambda b=before: (s := d.status(job))["step"] > b["step"] and s, 60)
            ends = [e for e in d.lines("events") if e["type"] in ("node.lost", "worker.exited", "epoch.revoked")]
            assert now["epoch"] == before["epoch"] and not ends, (before, now, ends)


@scene()
def messages_that_never_end(a):
    """40 connections with 16 calls of 512 KiB each, one byte short: memory is bounded, and goes back"""
    a.measure()
    connections, most = [Connection(a.tcp) for _ in range(40)], 0
    body = b"\0" + (512 << 10).to_bytes(4, "big") + b"a" * ((512 << 10) - 1)
    for c in connections:
        for stream in [c.call("/titan.v1.Titan/Submit") for _ in range(16)]:
            c.data(stream, body, 0.05)
        most = max(most, rss_kib(a.pids["c"]))
    for c in connections:
        c.close()
    assert most < a.measured["c"][0] + (400 << 10), f"{most >> 10} MiB"
    a.bounded()
    a.check()


@scene()
def all_watchers(a):
    """eight connections that watch without reading, as often as they are let: others can still watch (users: tests/fault/test_storms.py)"""
    connections = [Connection(a.tcp) for _ in range(8)]
    watch = api.WatchEventsRequest(follow=True).SerializeToString()
    for c in connections:
        for _ in range(128):
            stream = c.call("/titan.v1.Titan/WatchEvents")
            c.data(stream, b"\0" + len(watch).to_bytes(4, "big") + watch, 0.2)
            c.read() if stream % 32 == 1 else None
    c = Client(a.unix)
    status, got = c.call("WatchEvents", api.WatchEventsRequest(job_id=a.beside).SerializeToString())
    assert status == "OK" and got, (status, got)
    c.close()
    for c in connections:
        c.close()
    a.check()


@scene()
def audit_as_a_stream(a):
    """Audit with fields beyond their ranges, with numbers past the last event, followed by callers that go: refused or empty, and others are answered"""
    c = Client(a.unix)
    for wrong in ({"actor": "a" * 256}, {"actor": "a" * 70000}, {"actor": "\x1b[2J"}, {"since_ms": (1 << 53) + 1}, {"since_ms": -1 << 63}):
        assert c.ask("Audit", **wrong)[0] == "INVALID_ARGUMENT", wrong
    first = c.ask("Audit")
    assert first and [e.id for e in first] == sorted({e.id for e in first}), first
    for none in ({"after_event_id": HUGE}, {"after_event_id": 1 << 63}, {"since_ms": 1 << 53}, {"actor": "x' OR '1'='1"}, {"actor": "a" * 255}):
        assert c.ask("Audit", **none) == [], none
    mutator, said = Mutator(random.Random(7), lambda *_: None), Counter()
    for _ in range(400):
        request = api.AuditRequest.FromString(mutator.bytes_of(api.AuditRequest(), 2))
        request.follow = False  # it would not end
        said[c.call("Audit", request.SerializeToString())[0]] += 1
    assert said.keys() == {"OK", "INVALID_ARGUMENT"} and not mutator.fields(api.AuditRequest.DESCRIPTOR) - mutator.tried.keys(), said
    follow = api.AuditRequest(follow=True).SerializeToString()
    for _ in range(3):
        k = Connection(a.unix)
        for _ in range(100):
            k.data(k.call("/titan.v1.Titan/Audit"), b"\0" + len(follow).to_bytes(4, "big") + follow, 0.2)
        k.close()
    assert c.ask("Audit")[0] == first[0]
    c.close()
    a.check()


@scene()
def idle_connections(_):
    """400 idle connections with 256 descriptors: the Unix socket answers, the run makes steps, no worker's crash is counted; nor where workers are started"""
    class Few(Arena):
        def spawn(self, name, *args):
            super().spawn(name, *args)
            if name == "c":
                resource.prlimit(self.processes["c"].pid, resource.RLIMIT_NOFILE, (256, 256))

    with Few() as a:
        idle = []
        for _ in range(400):
            with contextlib.suppress(OSError):
                idle.append(Connection(a.tcp))
        a.trains_on()
        a.check()
        for c in idle:
            c.close()
    # Where the same process starts workers: one that is killed meanwhile is started again.
    with Daemon(None, "--slots", 2) as d:
        job = d.submit("tiny", {**KEYS, "training.dataset_path": headers_text(d.state / "text", 1 << 18), "elastic.min_workers": 1,
                                "elastic.max_workers": 1})
        until("it trains", lambda: d.status(job)["step"] > 1, 60)
        resource.prlimit(d.process.pid, resource.RLIMIT_NOFILE, (256, 256))
        port = until("it says where it listens", lambda: re.search(r"listen=.*127\.0\.0\.1:(\d+)", d.log())).group(1)
        idle = []
        for _ in range(400):
            with contextlib.suppress(OSError):
                idle.append(Connection(f"127.0.0.1:{port}"))
        (pid,) = d.workers(job).values()
        os.kill(pid, signal.SIGKILL)
        until("another one trains", lambda: (lambda w: w and pid not in w.values() and d.status(job)["state"] == "RUNNING")(d.workers(job)), 60)
        ends = [e for e in d.lines("events", job) if e["type"] == "worker.exited"]
        assert len(ends) == 1 and d.status(job)["restarts"] == 1, ends
        for c in idle:
            c.close()


@scene(quick=True)
def manifests_unreadable(_):
    """titan-worker over checkpoints none of which loads: it fails, and they stay"""
    with tempfile.TemporaryDirectory(prefix="titan-attack-") as where:
        where = Path(where)
        text = headers_text(where / "text", 1 << 18)
        run = [BIN / "titan-worker", "run", SOURCE / "recipes/tiny.toml", "--dir", where / "run", "--set", f"training.dataset_path={text}",
               "--set", "training.steps=6", "--set", "checkpoint.interval=2", "--set", "checkpoint.keep_latest_k=10"]
        assert command(*run).code == 0
        folders = sorted((where / "run").rglob("step-*"))
        assert len(folders) == 3, folders
        for f in folders:
            data = bytearray((f / "manifest.json").read_bytes())
            data[len(data) // 2] ^= 1
            (f / "manifest.json").write_bytes(data)
        before = {p: p.read_bytes() for f in folders for p in f.iterdir()}
        done = command(*run, "--set", "training.steps=8")
        assert done.code != 0, "it began again"
        assert {p: p.read_bytes() for f in folders for p in f.iterdir()} == before, "checkpoints were replaced"


@scene()
def one_folder_two_jobs(_):
    """a second job on the checkpoint folder of another: refused by name, the first one's checkpoints stay"""
    with Daemon(None, "--slots", 2) as d:
        text = headers_text(d.state / "text", 1 << 18)
        keys = {"training.dataset_path": text, "training.steps": 20, "elastic.max_workers": 1, "checkpoint.folder": d.state / "shared",
                "checkpoint.keep_latest_k": 10}
        first = d.submit("tiny", keys)
        d.wait_state(first, "COMPLETED")
        before = {p: p.stat().st_mtime_ns for p in (d.state / "shared").rglob("manifest.json")}
        assert before
        done = d.ctl("submit", SOURCE / "recipes/tiny.toml", *[x for k, v in {**keys, "debug.seed": 7, "checkpoint.keep_latest_k": 1}.items()
                                                                for x in ("--set", f"{k}={v}")])
        if done.code == 0:
            d.wait_state(done.out.strip(), "FAILED", "COMPLETED", "CANCELLED")
            assert d.status(done.out.strip())["state"] == "FAILED"
        else:
            assert first in done.err, done.err
        assert {p: p.stat().st_mtime_ns for p in (d.state / "shared").rglob("manifest.json")} == before


@scene()
def links_in_the_folder(_):
    """links where checkpoints will be written: files of others behind them stay as they are"""
    with Daemon(None, "--slots", 1) as d:
        text = headers_text(d.state / "text", 1 << 18)
        target, folder = d.state / "others", d.state / "shared"
        target.mkdir()
        folder.mkdir()
        for name in ("rank-00000.safetensors", "manifest.json"):
            (target / name).write_text("others'\n")
        for step in range(1, 21):
            for epoch in (1, 2):
                (folder / f".step-{step:08d}.{epoch}").symlink_to(target)
        job = d.submit("tiny", {"training.dataset_path": text, "training.steps": 20, "elastic.max_workers": 1, "checkpoint.interval": 1,
                                "checkpoint.folder": folder, "fault_tolerance.max_restarts": 1})
        until("a failed checkpoint is told", lambda: any(e["type"] == "checkpoint.failed" for e in d.lines("events", job)), 30)
        d.ok("cancel", job)
        d.wait_state(job, "CANCELLED", "FAILED")
        assert sorted(p.name for p in target.iterdir()) == ["manifest.json", "rank-00000.safetensors"]
        assert all(p.read_text() == "others'\n" for p in target.iterdir()), "files of others were written"


@scene()
def broken_protocol(a):
    """workers of one job say what cannot be, again and again: each is killed, its job pays, no node and no other job does"""
    def ended():
        return {e["detail"]["worker"]: e["detail"].get("reason", "") for e in a.events(a.mine) if e["type"] == "worker.exited"}

    def page():
        for name in ("n1", "n2"):
            for path in (a.dir / name / "run").glob("pages/w*.page"):
                with contextlib.suppress(OSError):  # it has just ended
                    p = Page(path)
                    # The agent writes the process into the page after it has started it.
                    if p.job == a.mine and p.pid and p.worker not in ended():
                        return a.dir / name / "run/agent.sock", p
        return None

    def lie(sock, p):
        """Again and again: it may be too early, when the worker's own connection comes later and takes the place of this one."""
        frames = Frames(sock)
        frames.send(worker.WorkerToAgent(registration=worker.WorkerRegistration(job_id=p.job, worker_id=p.worker, token=p.token, pid=p.pid,
                                                                  address="127.0.0.1:1")).SerializeToString())
        frames.send(worker.WorkerToAgent(progress=agent.WorkerProgress(job_id=p.job, worker_id=p.worker, epoch=1,
                                                                       step_ms=float("nan"))).SerializeToString())
        frames.close()
        return False
    a.own_job()
    before = sum(x["count"] for x in a.status(a.mine)["losses"] if x["cause"] == "faulty")
    for _ in range(4):
        sock, p = until("it has a worker", page, 30)
        until("it has ended", lambda: p.worker in ended() or lie(sock, p), 30)
        assert ended()[p.worker].startswith("it broke the protocol: WorkerToAgent.progress.step_ms"), ended()
    faulty = [x for x in a.status(a.mine)["losses"] if x["cause"] == "faulty"]
    # Those of one epoch with the same words are one fault.
    assert faulty and faulty[0]["count"] >= before + 2, (before, a.status(a.mine))
    assert "node.quarantined" not in a.ctl("events")
    a.check()


@scene()
def fifo_as_shard(_):
    """the newest checkpoint's shard is a FIFO: the one before is taken, nothing hangs"""
    with Daemon(None, "--slots", 1) as d:
        text = headers_text(d.state / "text", 1 << 18)
        keys = {"training.dataset_path": text, "training.steps": 1000000, "elastic.max_workers": 1, "checkpoint.interval": 20,
                "checkpoint.keep_latest_k": 10}
        job = d.submit("tiny", keys)
        until("it has checkpoints", lambda: len(list(d.state.glob(f"jobs/{job}/checkpoint/step-*"))) >= 2)
        pid, before = max(d.workers(job).values()), d.status(job)
        os.kill(pid, signal.SIGSTOP)
        newest = max(d.state.glob(f"jobs/{job}/checkpoint/step-*"))
        (newest / "rank-00000.safetensors").unlink()
        os.mkfifo(newest / "rank-00000.safetensors")
        with contextlib.suppress(ProcessLookupError):  # it may have been taken for hung
            os.kill(pid, signal.SIGKILL)
        until("it trains again", lambda: (lambda s: s["state"] == "RUNNING" and s["epoch"] > before["epoch"])(d.status(job)), 30)
        assert len([e for e in d.lines("events", job) if e["type"] == "worker.exited"]) <= 2, d.status(job)
        d.ok("cancel", job)


@scene()
def full_disk(_):
    """no room for checkpoints: told in status and events, nothing unfinished stays"""
    if os.geteuid() != 0:
        return "needs root for a small file system"
    with Daemon(None, "--slots", 1) as d:
        small = d.state / "small"
        small.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", small], stderr=subprocess.DEVNULL).returncode:
            return "tmpfs cannot be mounted here"
        try:
            text = headers_text(d.state / "text", 1 << 18)
            job = d.submit("tiny", {"training.dataset_path": text, "training.steps": 1000000, "elastic.max_workers": 1,
                                    "checkpoint.interval": 5, "checkpoint.folder": small / "ck"})
            until("a failed checkpoint is told", lambda: any(e["type"] == "checkpoint.failed" for e in d.lines("events", job)), 30)
            d.ok("cancel", job)
            d.wait_state(job, "CANCELLED", "FAILED")
            assert not list((small / "ck").glob(".step-*")), list((small / "ck").iterdir())
        finally:
            subprocess.run(["umount", small], check=False)


def forged(a, job):
    """What ends a job, or names its checkpoint, of each of its workers as events have told of them."""
    s = a.status(job)
    for w in a.job_now(job)["workers"]:
        about = {"job_id": job, "worker_id": w}
        step = s["step"] + 1
        for last in (step, 1000000):
            yield agent.AgentMessage(finished=agent.WorkerFinished(epoch=s["epoch"], step=last, **about))
        for code in (0, 1, 2):
            yield agent.AgentMessage(worker_exited=agent.WorkerExited(exit_code=code, reason="forged", cause=1 if code else 0, **about))
        for path in (a.dir / f"c/jobs/{job}/checkpoint/step-{step:08d}", a.canary.folder / "step-00000002"):
            yield agent.AgentMessage(checkpoint=agent.CheckpointWritten(epoch=s["epoch"], step=step, path=str(path), bytes=1, world_size=4, **about))
        yield agent.AgentMessage(checkpoint_failed=agent.CheckpointFailed(epoch=s["epoch"], step=step, path="x", reason="forged", **about))
        yield agent.AgentMessage(evaluated=agent.WorkerEvaluated(epoch=s["epoch"], step=step, loss=1e-9, tokens=1, **about))
        yield agent.AgentMessage(state_ready=agent.StateReady(epoch=s["epoch"], step=0, recovery_source=0, **about))
        yield agent.AgentMessage(worker_quiesced=agent.WorkerQuiesced(epoch=s["epoch"], last_step=0, **about))
        yield agent.AgentMessage(stalled=agent.WorkerStalled(epoch=s["epoch"], for_ms=60000, **about))


@scene(quick=True)
def ends_of_others(a):
    """a node without a part in a job says that its workers have finished, failed, stalled, and where its checkpoints are: no effect"""
    def listed():
        return [e for e in a.events(a.beside) if e["type"] in ("checkpoint.committed", "validation.finished", "worker.exited", "worker.stalled", "epoch.revoked")]
    before = [e for e in listed() if e["type"] != "checkpoint.committed"]
    s = Session(a.tcp)
    s.send(hello("evil"))
    known = s.hear().ack
    for m in forged(a, a.beside):
        m.term = known.term
        assert s.send(m), s.ended
    until("it was heard", lambda: s.ended or s.hear(0.5) is None, 10)
    assert not s.ended, s.ended
    s.close()
    a.trains_on()
    a.check()
    assert [e for e in listed() if e["type"] != "checkpoint.committed"] == before, listed()
    assert "forged" not in a.ctl("events", a.beside)
    a.canary.check()


@scene()
def name_over_tls(_):
    """with the certificate of another node, of a user, with none, and without TLS: no one of them speaks for n1, nor ends its job"""
    with Secured() as a:
        for tls, codes in ((a.pair("evil"), ("PERMISSION_DENIED",)), (a.pair("eva"), ("PERMISSION_DENIED",)),
                           ({"ca": a.pair("evil")["ca"]}, ("PERMISSION_DENIED", "UNAUTHENTICATED")), (None, ("UNAVAILABLE",))):
            for name in a.slots:
                s = Session(a.tcp, tls)
                s.send(hello(name, incarnation=77))
                until("it is refused", lambda: s.ended, 20)
                assert s.ended[0] in codes, (tls, s.ended)
                s.close()
        s = Session(a.tcp, a.pair("evil"))
        s.send(hello("evil"))
        known = s.hear(20).ack
        for m in forged(a, a.beside):
            m.term = known.term
            assert s.send(m), s.ended
        until("it was heard", lambda: s.ended or s.hear(0.5) is None, 10)
        s.close()
        a.trains_on()
        a.check()
        assert "forged" not in a.ctl("events", a.beside)


PAGE_SEEDS = [b"GET /metrics HTTP/1.1\r\nHost: h\r\nAccept: application/openmetrics-text\r\nAuthorization: Bearer titan_0123456789abcdef_00\r\n\r\n",
              b"HEAD /readyz HTTP/1.0\r\n\r\n", b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\n\r\nGET /metrics HTTP/1.1\r\nHost: h\r\n\r\n",
              b"POST /metrics HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n",
              b"GET /metrics HTTP/1.1\r\nHost: h\r\nContent-Length: 18446744073709551616\r\n\r\n", b"GET /../../etc/passwd HTTP/1.1\r\nHost: h\r\n\r\n",
              b"GET /api/v1/ListJobs?states=RUNNING&page_size=3&name=%61* HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer titan_0123456789abcdef_00\r\n\r\n",
              b"GET /api/v1/Logs?job_id=1&rank=0&tail_lines=9 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /api/v1/GetRecipe?job_id=1 HTTP/1.1\r\nHost: h\r\n\r\n",
              b"GET /api/v1/curves?job_id=1&job_id=1&points=9&from=2&to=99 HTTP/1.1\r\nHost: h\r\n\r\n",
              b"GET /api/v1/events?after=0&job_id=1 HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: 1\r\n\r\n",
              b"GET / HTTP/1.1\r\nHost: h\r\nIf-None-Match: \"0\"\r\n\r\n", b"GET /api/v1/ListJobs?" + b"labels=a%3db&" * 1000 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
              b"GET /metrics HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 65536 + b"\r\n\r\n", b"GET http://h/metrics?" + b"%00%2e" * 4000 + b" HTTP/1.1\r\n\r\n"]


def changed(r, data):
    """Some bytes of a request are others, are gone, or come again."""
    data = bytearray(data)
    for _ in range(r.randrange(4)):
        at = r.randrange(len(data))
        how = r.randrange(4)
        if how == 0:
            data[at] = r.randrange(256)
        elif how == 1:
            del data[at:at + r.randrange(1, 20)]
        elif how == 2:
            data[at:at] = bytes(r.randrange(256) for _ in range(r.randrange(1, 20)))
        else:
            data[at:at] = data[at:at + r.randrange(1, 40)]
        data = data or bytearray(b"\n")
    return bytes(data)


@scene()
def pages_over_http(_):
    """requests that are cut, long, changed or many, at the pages of all daemons, over TLS and without: each is answered or closed, and no metric or job goes out"""
    with Secured('[http]\nlisten = "127.0.0.1:0"\n[authorization]\nmetrics = ["user:prom"]\n') as a:
        a.pki("user", "prom", "--pki-dir", a.dir / "c/pki", "--out", a.dir / "prom")
        ports = [("localhost", int((a.dir / name / "run/listen-http").read_text().rsplit(":", 1)[1])) for name in a.processes]
        contexts = [None]
        for own in (None, "eva", "evil", "prom"):
            context = ssl._create_unverified_context()
            if own:
                context.load_cert_chain(a.pair(own)["cert"], a.pair(own)["key"])
            contexts.append(context)
        scraper = contexts.pop()

        def speak(at, context, data):
            """What comes back soon. The server may close first."""
            out = b""
            with contextlib.suppress(OSError), socket.create_connection(at, timeout=deadline()) as plain:
                with context.wrap_socket(plain) if context else plain as s:
                    s.sendall(data)
                    s.settimeout(0.05)  # timing: what there is to read now
                    while more := s.recv(65536):
                        out += more
            return out
        r = random.Random(int(os.environ.get("TITAN_TEST_SEED", 1)))
        a.measure()
        for _ in range(1200):
            said = speak(r.choice(ports), r.choice(contexts), changed(r, r.choice(PAGE_SEEDS)))
            assert b"titan_" not in said and b'"recipe": "' not in said and b'"data":' not in said and (not said or said.startswith((b"HTTP/1.", b"\x15\x03"))), said[:200]
        a.check()
        with contextlib.ExitStack() as held:
            for at in ports:
                for _ in range(300):
                    with contextlib.suppress(OSError):
                        held.enter_context(socket.create_connection(at, timeout=deadline())).sendall(b"GET /met")
            a.trains_on()
            a.check()
        with contextlib.ExitStack() as held:
            head = ports[list(a.processes).index("c")]
            for _ in range(100):  # eva reads none of her streams
                s = held.enter_context(contexts[2].wrap_socket(held.enter_context(socket.create_connection(head, timeout=deadline()))))
                s.sendall(b"GET /api/v1/events?after=0 HTTP/1.1\r\nHost: h\r\n\r\n")
            a.trains_on()
            a.check()
        for at in ports:
            until("a scraper is served", lambda: b"titan_build_info" in speak(at, scraper, b"GET /metrics HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"))
        a.trains_on()
        a.check()
        a.bounded()
