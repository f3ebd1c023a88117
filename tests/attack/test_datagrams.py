#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Datagrams of an attacker that knows all names, and of some that have had a key: to agents and the coordinator, beside a run. It has
every loss that it has without them, and a stranger is told nothing."""
import json
import os
import random
import signal
import socket
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import datagrams  # noqa: E402
from datagrams import Link, agents_key, mesh_key, of, prove, record  # noqa: E402
from nodes import Cluster  # noqa: E402
from titan import calm, headers_text, pause, tap, until  # noqa: E402

SEED = int(os.environ.get("TITAN_TEST_SEED") or random.SystemRandom().randrange(1 << 32))
KEYS = {"elastic.min_workers": 2, "elastic.max_workers": 3, "checkpoint.interval": 100000, "numerics.canonical": "true",
        "training.global_batch_size": 12, "training.local_batch_size": 1, "device.threads": 1,
        "training.mixed_precision_param": "float32", "fault_tolerance.backoff_ms": 50, "training.steps": 1000000, "training.seq_len": 32,
        "fault_tolerance.redundancy": "buddy", "fault_tolerance.max_restarts": 20}
CONFIG = calm().replace("away_ms = 20000", "away_ms = 500") + "leader_lease_ms = 120000\n"
NODES = {"n1": 1, "n2": 1, "n3": 1}
HUGE = (1 << 64) - 1


class Tapped(Cluster):
    """n3 comes by a link that keeps its datagrams."""

    def agent(self, name):
        if name == "n3":
            self.link = Link(int(self.tcp.rsplit(":", 1)[1]))
            straight, self.tcp = self.tcp, f"127.0.0.1:{self.link.port}"
            super().agent(name)
            self.tcp = straight
        else:
            super().agent(name)

    def __exit__(self, *args):
        super().__exit__(*args)
        self.link.close()

    def peer_port(self, name):
        return int((self.dir / name / "run/peer_port").read_text())

    def counter(self, name):
        return {x["name"]: x["value"] for x in json.loads(self.ctl("-o", "json", "counters"))["counters"]}[name]

    def losses(self, job):
        """step -> loss as it is printed"""
        lines = (self.dir / f"c/jobs/{job}/metrics.jsonl").read_text().splitlines()
        found = {}
        for m in map(json.loads, lines):
            assert found.setdefault(m["step"], m["loss"]) == m["loss"], f"step {m['step']} was made twice, and not alike"
        return found

    def alike(self, job, keys):
        """Ends the run; it has the losses of one in peace."""
        self.cancel(job)
        made = self.losses(job)
        assert sorted(made) == list(range(1, len(made) + 1)), "steps are missing"
        peace = self.submit(keys)
        until("as many steps are done", lambda: self.status(peace)["step"] >= len(made))
        self.cancel(peace)
        without = self.losses(peace)
        assert all(made[s] == without.get(s) for s in made), [(s, loss, without.get(s)) for s, loss in made.items() if without.get(s) != loss][:5]
        print(f"# {len(made)} steps with the loss of a run in peace")


class Attacker:
    """Its socket, and everything it has to say about one job to one agent. What it sends that is not proved is counted."""

    def __init__(self, cluster, job):
        self.c, self.job, self.r = cluster, int(job), random.Random(SEED)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.lost = {}  # epoch's number -> its record, also of those that are over
        self.unproved = 0

    def look(self):
        """What an agent's record says now."""
        for name in NODES:
            try:
                form = record(self.c.dir / name / f"run/jobs/{self.job}.epoch").accepted
                self.lost[form.epoch] = form
            except OSError:
                pass
        return self.lost[max(self.lost)]

    def send(self, name, data):
        self.socket.sendto(data, ("127.0.0.1", self.c.peer_port(name)))

    def form(self, epoch, source, **more):
        form = of("FormEpoch")
        form.CopyFrom(self.look())
        form.ClearField("key")
        form.epoch, form.source, form.comm_id = epoch, source, self.r.randbytes(16)
        form.checkpoint_path = more.get("path", "")
        form.source_epoch = more.get("source_epoch", 0)
        return form

    def said(self, to):
        """One of each kind, in the name of the agent beside it."""
        now, r = self.look(), self.r
        other = next(n for n in NODES if n != to)
        above = r.choice([now.epoch + 1, 1024 * (now.epoch // 1024 + 1), now.epoch + (1 << 33), HUGE, HUGE - 1023])
        state = of("PeerState", epoch=0, alive=[m.worker_id for m in now.members])
        bodies = [dict(ask=state), dict(state=state), dict(ping=True), dict(pong=True),
                  dict(heartbeat_answer=of("HeartbeatAnswer", number=r.randrange(1000))),
                  dict(promise=of("EpochPromise", epoch=above, granted=True, seen_epoch=HUGE)),
                  dict(revoke=of("RevokeEpoch", job_id=self.job, epoch=now.epoch)),
                  dict(quiesced=of("WorkerQuiesced", job_id=self.job, worker_id=now.members[0].worker_id, epoch=now.epoch)),
                  *[dict(commit=self.form(above, s, path="/nowhere/step-00000007")) for s in (0, 1, 2)],
                  dict(propose=self.form(above, 2, source_epoch=now.epoch))]
        for body in bodies:
            yield of("PeerMessage", id=r.randrange(1, 1 << 62), job_id=self.job, to=to, term=r.choice([1, 1, 2, 1 << 40]),
                     number=above, **{"from": other}, **body)

    def strangers_round(self, to):
        """Without a key, or with one that is not for this."""
        form = self.look()
        wrong = [(), (bytes(32),), (form.key,), (mesh_key(form),),
                 *[(agents_key(f),) for f in self.lost.values() if f.key != form.key]]
        for m in self.said(to):
            self.send(to, prove(m, *self.r.choice(wrong)))
            if m.WhichOneof("kind") != "pong":  # which was not asked for
                self.unproved += 1
        for _ in range(5):
            self.send(to, self.r.randbytes(self.r.randrange(1, 1400)))

    def members_round(self, to, kinds):
        """With the right key: an agent's that has gone over. What the coordinator's presence forbids, it must not do."""
        for m in self.said(to):
            if m.WhichOneof("kind") in kinds:
                self.send(to, prove(m, agents_key(self.look())))

    def hears_nothing(self):
        self.socket.setblocking(False)
        try:
            data, sender = self.socket.recvfrom(65536)
        except BlockingIOError:
            return
        raise AssertionError(f"an answer of {len(data)} bytes from {sender}")


def forge_heartbeats(a):
    """To the coordinator: what was heard on the way, again and changed."""
    port = int(a.c.tcp.rsplit(":", 1)[1])
    heartbeats = [data for up, data in list(a.c.link.captured) if up][-50:]
    for data in heartbeats:
        a.socket.sendto(data, ("127.0.0.1", port))  # once more, from elsewhere: the answer comes where there is no use for it
    heard = 0
    a.socket.settimeout(0.2)  # timing: answers that must not come
    try:
        while True:
            a.socket.recv(65536)
            heard += 1
    except OSError:
        pass
    assert heard <= len(heartbeats)
    for data in heartbeats:
        m = datagrams.internal["PeerMessage"].FromString(data)
        m.heartbeat.number += 1 << 20
        a.socket.sendto(m.SerializeToString(), ("127.0.0.1", port))
        m.ClearField("proof")
        a.socket.sendto(m.SerializeToString(), ("127.0.0.1", port))
        a.socket.sendto(prove(m, bytes(32)), ("127.0.0.1", port))
    until("the coordinator has refused them", lambda: a.c.counter("unproved") >= 3 * len(heartbeats), 20)
    for up, data in list(a.c.link.captured)[-50:]:
        if not up:
            a.send("n3", data)
            a.send("n1", data)


def with_coordinator():
    """forged commits, asks, revocations, pings and heartbeats, with wrong keys, keys of another epoch, and heard again: no effect"""
    print(f"# TITAN_TEST_SEED={SEED}")
    with Tapped(slots=NODES, config=CONFIG, pace_ms=20) as c:
        keys = {**KEYS, "training.dataset_path": headers_text(c.dir / "text")}
        before = c.submit(keys)
        c.training(before, 3, 2)
        c.cancel(before)
        job = c.submit(keys)
        c.training(job, 3, 3)
        a = Attacker(c, job)
        a.lost[0] = record(next((c.dir / "n1/run/jobs").glob("1.epoch"))).accepted  # of the run before
        epoch = c.status(job)["epoch"]
        rounds = 0
        while rounds < 12:
            for name in NODES:
                a.strangers_round(name)
                a.members_round(name, ("commit", "revoke", "quiesced", "state", "promise"))
            if rounds == 3:
                forge_heartbeats(a)
            rounds += 1
        print(f"# {rounds} rounds, {a.unproved} datagrams without a right proof")
        s = c.training(job, 3, c.status(job)["step"])
        assert s["epoch"] == epoch, s
        # What cannot be is dropped before its proof is looked at.
        until("agents have told what they refused",
              lambda: c.counter("agents_unproved") + c.counter("agents_out_of_range") >= a.unproved * 9 // 10, 20)
        a.hears_nothing()
        # A member's question is answered where that member is.
        m = of("PeerMessage", id=5, job_id=int(job), to="n1", term=1, ask=of("PeerState"), **{"from": "n2"})
        a.send("n1", prove(m, agents_key(a.look())))
        c.alike(job, keys)
        a.hears_nothing()
        assert "epoch.delegated" not in [e["type"] for e in c.events(job)]


def without_coordinator():
    """the same while agents go on without the coordinator, lose a worker and form an epoch: theirs is the one, and it trains alike"""
    print(f"# TITAN_TEST_SEED={SEED}")
    with Tapped(slots=NODES, config=CONFIG, pace_ms=20) as c:
        keys = {**KEYS, "training.dataset_path": headers_text(c.dir / "text")}
        before = c.submit(keys)
        c.training(before, 3, 2)
        c.cancel(before)
        job = c.submit(keys)
        c.training(job, 3, 3)
        a = Attacker(c, job)
        a.lost[0] = record(next((c.dir / "n1/run/jobs").glob("1.epoch"))).accepted
        first = a.look().epoch
        victim = [e for e in c.events(job) if e["type"] == "worker.started" and e["node"] == "n3"][-1]["detail"]["pid"]
        stop = threading.Event()

        def attack():
            while not stop.is_set():
                for name in NODES:
                    a.strangers_round(name)
                pause(0.02, "two cores are all there may be")

        c.kill("c")
        thread = threading.Thread(target=attack)
        thread.start()
        try:
            os.kill(victim, signal.SIGKILL)
            until("two train without a coordinator", lambda: a.look().epoch > first, 30)
        finally:
            stop.set()
            thread.join()
        assert a.look().epoch % 1024 == 0 and len(a.look().members) == 2, a.look()
        assert a.look().memory_only and a.look().source == 2 and not a.look().checkpoint_path
        assert agents_key(a.look()) != agents_key(a.lost[first])
        a.hears_nothing()
        c.restart_coordinator()
        c.training(job, 3, c.status(job)["step"])
        until("it is told", lambda: "epoch.delegated" in [e["type"] for e in c.events(job)])
        c.alike(job, keys)
        for kept in c.dir.rglob("*.epoch"):
            assert kept.stat().st_mode & 0o777 == 0o600, kept
        secrets = [f.key.hex() for f in a.lost.values()] + [f.key for f in a.lost.values()]
        for log in [*c.dir.glob("*.log"), *c.dir.glob("c/jobs/*/logs/*.log")]:
            text = log.read_bytes()
            assert not any((k.encode() if isinstance(k, str) else k) in text for k in secrets), log


if datagrams.absent:
    print(f"1..1\nok 1 - datagrams # SKIP {datagrams.absent}")
    sys.exit(0)
tap(with_coordinator, without_coordinator)
