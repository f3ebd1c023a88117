# SPDX-License-Identifier: Apache-2.0
"""What is attacked: a coordinator and two agents with a training run beside the attacker's jobs, and what must stay as it is."""
import functools
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import datagrams  # noqa: E402
from nodes import Cluster  # noqa: E402
from titan import BIN, SOURCE, Daemon, calm, command, headers_text, pause, until  # noqa: E402

# The run beside: a number of workers that never changes, losses that are the same bit for bit on any number of them.
KEYS = {"elastic.min_workers": 4, "elastic.max_workers": 4, "checkpoint.interval": 200, "training.global_batch_size": 4,
        "training.local_batch_size": 1, "device.threads": 1, "training.mixed_precision_param": "float32",
        "numerics.canonical": "true", "training.steps": 1000000, "fault_tolerance.backoff_ms": 50, "training.seq_len": 512}
OWN = {**KEYS, "elastic.min_workers": 1, "elastic.max_workers": 2, "fault_tolerance.max_restarts": 100000}
# The machine is busy with attackers: heartbeats and steps may be late by what would be a hang on an idle one.
BUSY = calm(5000)
RSS_MORE_KIB = 96 << 10  # what a daemon may have more after a storm than before
FDS_MORE = 24


class Canary:
    """Files of others: what they hold and when they were last touched, before and after."""

    def __init__(self, folder):
        self.folder = folder
        for name in ("secret", "step-00000002/manifest.json", "step-00000002/rank-00000.safetensors", "step-00000004/manifest.json"):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"a canary: {name}\n")
            path.chmod(0o600)
        # Read once after its last change, a file keeps its time of access for a day (relatime): so it is the older one.
        for path in sorted(folder.rglob("*")):
            os.utime(path, (1_000_000_000, 1_000_000_001))
        os.utime(folder, (1_000_000_000, 1_000_000_001))
        self.before = self.times()

    def times(self):
        return {str(p): (p.lstat().st_mode, p.lstat().st_size, p.lstat().st_atime_ns, p.lstat().st_mtime_ns, p.lstat().st_ino)
                for p in [self.folder / n for n in self.names()]}

    def names(self):
        """Without opening a folder: its time of access would change."""
        return ["secret", "step-00000002/manifest.json", "step-00000002/rank-00000.safetensors", "step-00000004/manifest.json"]

    def check(self):
        now = self.times()
        assert now == self.before, f"files of others were touched: {[k for k in now if now[k] != self.before.get(k)]}"
        for name in self.names():
            assert (self.folder / name).read_text() == f"a canary: {name}\n", name
        found = sorted(str(p.relative_to(self.folder)) for p in self.folder.rglob("*") if p.is_file())
        assert found == sorted(self.names()), f"in a folder of others: {found}"


def rss_kib(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def fds(pid):
    """0 without root: a daemon is not dumpable, so its descriptors are not even its user's to see."""
    return len(os.listdir(f"/proc/{pid}/fd")) if os.geteuid() == 0 else 0


def digest(points):
    return hashlib.sha256(json.dumps(points).encode()).hexdigest()[:16]


class Arena(Cluster):
    """A Cluster, of which n1 and n2 have a slot more each than the run beside needs: for jobs of the attacker."""

    pace = 0  # the workers' pace_ms

    def __init__(self, config=BUSY):
        super().__init__(slots={"n1": 3, "n2": 3}, config=config, pace_ms=self.pace)

    def __enter__(self):
        super().__enter__()
        self.text = headers_text(self.dir / "text", 1 << 18)
        self.canary = Canary(self.dir / "others")
        self.context_file = self.dir / "context.json"
        recipe = (SOURCE / "recipes/tiny.toml").read_text()
        (self.dir / "mine.toml").write_text(recipe.replace("[training]", f'[training]\ndataset_path = "{self.text}"'))
        small = {"training.seq_len": 32} if self.pace else {}
        self.keys = {**KEYS, **small, "training.dataset_path": self.text}
        self.beside = int(self.submit(self.keys, "--name", "beside"))
        self.training(self.beside, 4, 3)
        self.mine = None
        self.own_job()
        self.tell()
        self.pids = {name: p.pid for name, p in self.processes.items()}
        self.first = self.status(self.beside)
        return self

    def own_job(self):
        """A job of the attacker's, anew when the last one is over."""
        if self.mine is None or self.status(self.mine)["state"] in ("FAILED", "CANCELLED", "COMPLETED"):
            self.mine = int(self.submit({**self.keys, **OWN, "training.seq_len": self.keys["training.seq_len"]}, "--name", "mine"))

    def metrics(self, job):
        return [json.loads(line) for line in self.ctl("-o", "json", "metrics", job).splitlines() if line.strip()]

    def job_now(self, job):
        workers, epoch = set(), 0
        for e in self.events(job):
            if e["type"] == "worker.started":
                workers.add(e["detail"]["worker"])
            elif e["type"] in ("worker.exited", "worker.lost"):
                workers.discard(e["detail"].get("worker"))
            epoch = max(epoch, e.get("epoch") or 0)
        return {"workers": sorted(workers), "epoch": epoch, "step": self.status(job)["step"]}

    def peer_port(self, node):
        return int((self.dir / node / "run/peer_port").read_text())

    def term(self):
        return int((self.dir / "n1/run/term").read_text().split()[0])

    def tell(self):
        """What the attackers know."""
        peers = {name: self.peer_port(name) for name in self.slots}
        context = {**self.ways(), "keys": self.keys_of_mine(), "tcp": self.tcp, "recipe": str(self.dir / "mine.toml"),
                   "beside": self.beside, "mine": self.mine, "jobs": {str(j): self.job_now(j) for j in (self.beside, self.mine)},
                   "term": self.term(), "peers": [f"127.0.0.1:{p}" for p in peers.values()],
                   "ports": [*peers.values(), int(self.tcp.rsplit(":", 1)[1]), *self.agents_ports()], "canary": str(self.canary.folder),
                   "folder": str(self.dir / f"c/jobs/{self.beside}/checkpoint"), "skip": self.skip,
                   "sockets": [str(self.dir / name / "run/agent.sock") for name in self.slots]}
        fresh = self.context_file.with_suffix(".new")
        fresh.write_text(json.dumps(context))
        fresh.chmod(0o644)  # one attacker is the user nobody
        fresh.replace(self.context_file)

    def ways(self):
        """The attackers that speak to the coordinator, and with what."""
        return {"clients": [{"name": "owner", "target": t, "stranger": False} for t in (self.unix, self.tcp)], "nobody": []}

    def keys_of_mine(self):
        """What the agents of the attacker's job prove themselves with: one of them may be the attacker's."""
        keys = set()
        for name in self.slots:
            try:
                r = datagrams.record(self.dir / name / f"run/jobs/{self.mine}.epoch")
            except (OSError, Exception):  # it is not there yet, or not whole
                continue
            keys.add(datagrams.agents_key(r.accepted).hex())
        return sorted(keys)[:2]

    skip = ()  # kinds of datagrams that are not sent

    def agents_ports(self):
        """Of the coordinator, beside the one of clients."""
        return [int(line.rsplit(":", 1)[1]) for line in (self.dir / "c/run/listen-agents").read_text().split()]

    def measure(self):
        self.measured = {name: (rss_kib(pid), fds(pid)) for name, pid in self.pids.items()}

    def check(self):
        """What holds at any moment."""
        for name, process in self.processes.items():
            assert process.poll() is None and process.pid == self.pids[name], f"{name} has ended: {process.poll()}: {self.tail(name)}"
        s = self.status(self.beside)
        assert s["state"] == "RUNNING", s
        if s["epoch"] != self.first["epoch"] or s["restarts"] or self.first["restarts"]:
            why = [e for e in self.events(self.beside) if e["type"] in ("worker.exited", "worker.lost", "epoch.revoked", "epoch.failed")]
            raise AssertionError(f"the run beside was disturbed: {why[:4]}; {self.ctl('audit')[-1000:]}")
        assert s["step"] >= self.first["step"], (self.first, s)
        for name in self.slots:
            assert self.nodes().get(name) == "ready", self.nodes()
        for name in self.processes:
            log = (self.dir / f"{name}.log").read_text(errors="replace")
            for word in ("contradict", "assertion", "AddressSanitizer", "runtime error"):
                assert word not in log, f"{name}: {[line for line in log.splitlines() if word in line][:3]}"
        return s

    def tail(self, name):
        return (self.dir / f"{name}.log").read_text(errors="replace")[-1500:]

    def bounded(self):
        """What the daemons hold now against measure(); waits for what goes back by itself."""
        def over():
            return {n: (rss_kib(p), fds(p), self.measured[n]) for n, p in self.pids.items()
                    if rss_kib(p) > self.measured[n][0] + RSS_MORE_KIB or fds(p) > self.measured[n][1] + FDS_MORE}
        until("memory and descriptors are back", lambda: not over(), 30, 0.2) if over() else None
        return {n: f"{rss_kib(p) >> 10} MiB (+{(rss_kib(p) - self.measured[n][0]) >> 10}), {fds(p)} fds" for n, p in self.pids.items()}

    def trains_on(self):
        step = self.status(self.beside)["step"]
        until("the run beside makes steps", lambda: self.status(self.beside)["step"] > step, 30)

    def undisturbed(self):
        """The losses of the run beside against those of one without an attack. Ends it."""
        steps = self.status(self.beside)["step"]
        self.ctl("cancel", self.beside)
        until("the run beside is cancelled", lambda: self.status(self.beside)["state"] == "CANCELLED", 60)
        got = [(p["step"], p["epoch"], p["loss"], p["grad_norm"]) for p in self.metrics(self.beside)]
        assert [p[0] for p in got] == list(range(1, len(got) + 1)) and len(got) >= steps, "points are missing or doubled"
        for name in ("n1", "n2", "c"):  # the machine is for the other now
            self.processes[name].send_signal(signal.SIGTERM)
        with Daemon(self.dir / "reference", "--slots", 1) as d:
            job = d.submit("tiny", {**self.keys, "elastic.min_workers": 1, "elastic.max_workers": 1})
            until(f"the reference is at step {len(got)}", lambda: d.status(job)["step"] >= len(got), 3600)
            d.ok("cancel", job)
            want = [(p["step"], p["loss"], p["grad_norm"]) for p in d.lines("metrics", job)][:len(got)]
        differ = [(g, w) for g, w in zip([(p[0], p[2], p[3]) for p in got], want) if g != w]
        assert not differ, f"{len(differ)} of {len(got)} steps differ, the first: {differ[0]}"
        assert len({p[1] for p in got}) == 1, "it went through more than one epoch"
        return len(got)


class Secured(Arena):
    """The same with certificates: nodes that joined with tokens, and an attacker that has what others of the cluster have. "evil"
    is a node of it, eva a user with a certificate, ci one with a token; nobody is a user of the machine, and a stranger in the network.
    Agents have a port of their own; the attacker's comes by it and by that of clients."""

    def __init__(self, more=""):
        super().__init__()
        with open(self.dir / "titand.toml", "a") as config:
            config.write('[coordinator]\nagents_listen = "127.0.0.1:0"\n' + more)

    def spawn(self, name, *args):
        if name == "c" and not (self.dir / "c/pki").exists():
            self.pki("init", "--state-dir", self.dir / "c", "--name", "head")
        super().spawn(name, *[x for x in args if x != "--insecure"])

    def pki(self, *args):
        done = command(BIN / "titanctl", "pki", *args)
        assert done.code == 0, f"titanctl pki {args}: {done.err}"

    def coordinator(self, listen):
        self.socket = self.dir / "api.sock"
        self.spawn("c", "coordinator", "--listen", listen, "--listen", f"unix:{self.socket}")

    def agent(self, name):
        self.tcp = f"localhost:{self.tcp.rsplit(':', 1)[1]}"
        joins = self.dir / f"{name}.join"
        joins.touch(0o600)
        joins.write_text(self.ctl("node", "join", name, "--address", self.tcp))
        self.spawn(name, "agent", "--join", joins, "--address", "127.0.0.1", "--slots", self.slots[name], "--lease-ms", self.lease_ms)

    def pair(self, name):
        return {k: str(self.dir / name / f"{k}.pem") for k in ("ca", "cert", "key")}

    def own_job(self):
        """Before the first: the attackers."""
        if self.mine is None:
            self.dir.chmod(0o755)
            self.socket.chmod(0o666)
            self.pki("node", "evil", "--pki-dir", self.dir / "c/pki", "--out", self.dir / "evil")
            self.pki("user", "eva", "--pki-dir", self.dir / "c/pki", "--out", self.dir / "eva")
            self.token = self.ctl("token", "create", "ci", "--role", "user", "--ttl", "1h").strip()
            self.joins = self.ctl("node", "join", "evil", "--address", self.tcp)
        super().own_job()

    def ways(self):
        ca = {"ca": self.pair("evil")["ca"]}
        people = [{"name": "owner", "target": self.unix, "stranger": False},
                  {"name": "eva", "target": self.tcp, "tls": self.pair("eva"), "stranger": True},
                  {"name": "ci", "target": self.tcp, "tls": ca, "token": self.token, "stranger": True},
                  {"name": "node", "target": self.tcp, "tls": self.pair("evil"), "stranger": True},
                  {"name": "stranger", "target": self.tcp, "tls": ca, "stranger": True},
                  {"name": "plain", "target": self.tcp, "stranger": True}]
        return {"clients": people, "agents": [f"localhost:{p}" for p in self.agents_ports()], "evil": self.pair("evil"), "pki": str(self.dir / "c/pki"), "join": self.joined, "csr": self.csr,
                "nobody": [{"name": "other", "target": f"unix:{self.socket}", "stranger": True}]}

    @property
    def joined(self):
        """The token of the join file, for a node of the attacker's."""
        return next((w for w in self.joins.replace('"', " ").split() if w.startswith("titan_")), "")

    @functools.cached_property
    def csr(self):
        done = subprocess.run(["openssl", "req", "-new", "-key", self.pair("evil")["key"], "-subj", "/CN=evil"], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True)
        return done.stdout


class Storm:
    """Attackers, each a process, and a look at the arena now and then."""

    SHARES = {"held": 0.01, "client": 0.19, "nobody": 0.05, "agent": 0.4, "worker": 0.15, "peer": 0.2}

    def __init__(self, arena, seed, rounds, ways=None, every=2, say=print):
        self.arena, self.every, self.say = arena, every, say
        self.rounds = {w: max(int(rounds * s), 1) for w, s in self.SHARES.items()
                       if (not ways or w in ways) and (w != "nobody" or os.geteuid() == 0)}
        self.done, self.ends = {w: 0 for w in self.rounds}, {}
        self.processes = {}
        for way, n in self.rounds.items():
            self.processes[way] = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("speak.py"), way, arena.context_file, str(seed), str(n)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(arena.dir / f"speak-{way}.log", "w"))
            os.set_blocking(self.processes[way].stdout.fileno(), False)
        self.partial = {w: b"" for w in self.rounds}

    def read(self):
        for way, p in self.processes.items():
            data = p.stdout.read()
            if not data:
                continue
            *lines, self.partial[way] = (self.partial[way] + data).split(b"\n")
            for line in lines:
                said = json.loads(line)
                self.done[way] = said["done"]
                if "seen" in said:
                    self.ends[way] = said

    def run(self, seconds=None):
        """Until all is said, or for that long. Returns what each way has seen."""
        begin = looked = time.monotonic()
        try:
            while len(self.ends) < len(self.processes) and (seconds is None or time.monotonic() - begin < seconds):  # timing: how long to attack
                pause(0.05, "they say something")
                self.read()
                for way, p in self.processes.items():
                    assert p.poll() in (None, 0) or way in self.ends, f"{way}: {(self.arena.dir / f'speak-{way}.log').read_text()[-2000:]}"
                if time.monotonic() - looked > self.every:  # timing: now and then
                    looked = time.monotonic()
                    self.arena.own_job()
                    self.arena.tell()
                    s = self.arena.check()
                    self.say(f"  {sum(self.done.values())} messages in {time.monotonic() - begin:.0f} s "
                             f"({' '.join(f'{w} {n}' for w, n in self.done.items())}), run beside at step {s['step']}")
        finally:
            for p in self.processes.values():
                p.kill()
                p.wait()
        self.arena.check()
        return sum(self.done.values())
