# SPDX-License-Identifier: Apache-2.0
"""Hosts on one machine: each a network namespace with its own address, cgroup and titand, and a switch between them
(tests/fault/wire.c) that can cut, lose, delay, reorder and slow down what passes. Needs root."""
import contextlib
import errno
import itertools
import json
import mmap
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from titan import BIN, BUILD, CALM, SOURCE, alive, at_ms, command, deadline, overrides, remove_states, store_copy, until, worker_pids

WIRE = BUILD / "tests/fault/wire"
SHIM = BUILD / "tests/fault/shim.so"
NET = "10.213.78."
PORT = 7070
PLAIN = os.environ.get("PLAIN_TCP") == "1"  # no TLS, as `make turns` wants it where the other tree's cluster has none
NUMBERS = itertools.count()
CGROUPS = {"v2": Path("/sys/fs/cgroup/unified"), "cpu": Path("/sys/fs/cgroup/cpu"), "memory": Path("/sys/fs/cgroup/memory")}


def missing():
    """Why no cluster can be made here; None when it can."""
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    if not shutil.which("ip"):
        return "no ip (Debian package iproute2)"
    if not Path("/dev/net/tun").exists():
        return "no /dev/net/tun"
    if not WIRE.exists():
        return f"{WIRE} is not built (make tests)"
    name = f"tf{os.getpid()}probe"
    made = command("ip", "netns", "add", name)
    inside = command("ip", "netns", "exec", name, "true")
    command("ip", "netns", "del", name)
    if made.code != 0 or inside.code != 0:
        return f"no network namespaces here: {(made.err or inside.err).strip()}"
    return None


def now_ms():
    return time.time() * 1000


def ip(*args):
    done = command("ip", *args)
    assert done.code == 0, f"ip {' '.join(args)}: {done.err}"
    return done.out


def kill(pid, what=signal.SIGKILL):
    """Returns the time of the signal in ms since 1970."""
    at = now_ms()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, what)
    return at


class Wire:
    """The switch. Names of hosts instead of numbers; None stands for all."""

    def __init__(self, folder, names, spaces):
        self.path, self.names = folder / "wire.sock", names
        self.process = subprocess.Popen([WIRE, self.path, *[f"/run/netns/{s}" for s in spaces]],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout.readline() == b"up\n", "the switch did not come up"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(folder / "wire.client"))
        self.socket.connect(str(self.path))
        self.socket.settimeout(deadline())
        self.lock = threading.Lock()

    def number(self, name):
        return "*" if name is None else str(self.names.index(name) + 1)

    def tell(self, text):
        with self.lock:
            self.socket.send(text.encode())
            return self.socket.recv(200).decode()

    def one_way(self, source, target, **what):
        words = " ".join(f"{k}={v}" for k, v in what.items())
        answer = self.tell(f"set {self.number(source)} {self.number(target)} {words}")
        assert answer == "ok", f"{words}: {answer}"

    def both_ways(self, a, b, **what):
        self.one_way(a, b, **what)
        self.one_way(b, a, **what)

    def heal(self):
        self.one_way(None, None, cut=0, loss=0, delay_us=0, jitter_us=0, rate_kbit=0)

    def close(self):
        self.process.stdin.close()
        self.process.wait(deadline())
        self.socket.close()


class Shim:
    """What tests/fault/shim.c does in a daemon started with env(): an offset of the wall clock, the n-th write that fails, a path
    on a file server that does not answer."""

    LAYOUT = struct.Struct("=qQQQii64s64s")
    HELD, SHARE = LAYOUT.size, slice(LAYOUT.size + 8, LAYOUT.size + 8 + 256)

    def __init__(self, path):
        self.path = path
        path.write_bytes(bytes(4096))
        with open(path, "r+b") as f:
            self.map = mmap.mmap(f.fileno(), 4096)

    def env(self):
        return {"LD_PRELOAD": str(SHIM), "TITAN_SHIM": str(self.path)}

    def get(self):
        names = ("clock_ns", "calls", "fail_at", "failed", "error", "stay", "marker", "last")
        values = dict(zip(names, self.LAYOUT.unpack_from(self.map)))
        return {k: v.rstrip(b"\0").decode() if isinstance(v, bytes) else v for k, v in values.items()}

    def set(self, **changes):
        v = {**self.get(), **changes}
        # The number that arms it last, by itself.
        self.LAYOUT.pack_into(self.map, 0, v["clock_ns"], v["calls"], 0, v["failed"], v["error"], v["stay"], v["marker"].encode(),
                              v["last"].encode())
        struct.pack_into("=Q", self.map, 16, v["fail_at"])

    def hang(self, share):
        """Calls that name a path which begins with that do not come back, until it is ""."""
        self.map[self.SHARE] = b"\0" * 256
        self.map[self.SHARE] = str(share).encode().ljust(256, b"\0")

    def held(self):
        """How many calls hang right now."""
        return struct.unpack_from("=Q", self.map, self.HELD)[0]

    def fail(self, call, error, marker="titan.db", stay=0):
        """The call of that number from now on, among those that write the store."""
        self.set(calls=0, failed=0, last="", error=error, marker=marker, stay=stay, fail_at=call)


def read_words(path):
    try:
        return path.read_text().split()
    except OSError:
        return []


class Cgroup:
    """One cgroup in each hierarchy there is, by need. What runs in it inherits it."""

    def __init__(self, name):
        self.name, self.made = name, {}

    def folder(self, kind):
        if kind not in self.made:
            path = CGROUPS[kind] / self.name
            path.mkdir()
            self.made[kind] = path
        return self.made[kind]

    def add(self, kind, pid):
        (self.folder(kind) / "cgroup.procs").write_text(str(pid))

    def pids(self):
        """Of it and of those that the agent has made in it for its workers."""
        path = self.made.get("v2")
        return [int(p) for procs in path.rglob("cgroup.procs") for p in read_words(procs)] if path else []

    def inner(self):
        """Names of the cgroups inside."""
        return sorted(p.name for path in self.made.values() for p in path.iterdir() if p.is_dir())

    def close(self):
        for kind, path in self.made.items():
            for procs in path.rglob("cgroup.procs"):
                for pid in read_words(procs):
                    (CGROUPS[kind] / "cgroup.procs").write_text(pid)
            for inner in sorted((p for p in path.rglob("*") if p.is_dir()), reverse=True):
                until(f"{inner} is empty", lambda: self.remove(inner))
            until(f"{path} is empty", lambda: self.remove(path))
        self.made = {}

    @staticmethod
    def remove(path):
        try:
            path.rmdir()
        except OSError as e:
            if e.errno != errno.EBUSY:
                raise
            return False
        return True


class Host:
    def __init__(self, cluster, name, number):
        self.cluster, self.name, self.number = cluster, name, number
        self.space = f"{cluster.tag}{name}"
        self.address = f"{NET}{number}"
        self.state = cluster.dir / name
        self.cgroup = Cgroup(f"{cluster.tag}-{name}")
        self.process, self.env, self.args, self.spawned_ms = None, {}, (), 0

    def prepare(self):
        ip("netns", "add", self.space)

    def configure(self):
        ip("-n", self.space, "link", "set", "lo", "up")
        ip("-n", self.space, "addr", "add", f"{self.address}/24", "dev", "eth0")
        ip("-n", self.space, "link", "set", "eth0", "mtu", "9000", "up")

    def spawn(self, *args, env=None):
        folder = self.cgroup.folder("v2")

        def enter():
            (folder / "cgroup.procs").write_text(str(os.getpid()))

        extra = {**self.env, **(env or {})}
        program = (BUILD / "fp/bin" if "TITAN_FAILPOINTS" in extra else BIN) / "titand"
        self.spawned_ms = now_ms()
        with open(self.cluster.dir / f"{self.name}.log", "a") as log:
            self.process = subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{self.space}", program, *map(str, args), "--state-dir", self.state],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, preexec_fn=enter, env={**os.environ, **extra})

    @property
    def pid(self):
        return self.process.pid

    def running(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        """SIGKILL of titand alone."""
        at = kill(self.process.pid)
        self.process.wait()
        return at

    def signal(self, what):
        return kill(self.process.pid, what)

    def power_off(self):
        """First nothing passes any more, then all of its processes end: no peer sees a connection close."""
        at = now_ms()
        self.cluster.wire.both_ways(self.name, None, cut=1)
        (self.cgroup.folder("v2") / "cgroup.kill").write_text("1")
        if self.process:
            self.process.wait()
        return at

    def power_on(self):
        self.cluster.wire.both_ways(self.name, None, cut=0)

    def workers(self):
        return worker_pids(self.state)

    def has_session(self):
        """By the log of its agent: the newest line about it is of one that began."""
        said = [line for line in self.log().splitlines() if "session with the coordinator" in line]
        return bool(said) and "session with the coordinator lost" not in said[-1]

    def log(self):
        path = self.cluster.dir / f"{self.name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def said_at(self, *words, since_ms=0):
        """Time in ms of the first line of its log from then on that has all words; None."""
        for line in reversed(self.log().splitlines()):
            try:
                at = at_ms(line.split(" ", 1)[0])
            except ValueError:
                continue
            if at < since_ms - 1:
                return None
            if all(w in line for w in words):
                return at
        return None

    def listening(self):
        """TCP ports that are listened at."""
        rows = command("nsenter", f"--net=/run/netns/{self.space}", "cat", "/proc/self/net/tcp").out.splitlines()[1:]
        return sorted(int(r.split()[1].split(":")[1], 16) for r in rows if r.split()[3] == "0A")

    def freeze(self, still):
        """All of its processes stand still, or go on."""
        (self.cgroup.folder("v2") / "cgroup.freeze").write_text(str(int(still)))

    def close(self):
        if self.running():
            self.freeze(False)
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            try:
                self.process.wait(deadline())
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        left = self.cgroup.pids()
        if left:
            (self.cgroup.folder("v2") / "cgroup.kill").write_text("1")
            until("its processes are gone", lambda: not self.cgroup.pids())
        self.cgroup.close()
        command("ip", "netns", "del", self.space)
        return left


class Cluster:
    """A coordinator on host "c" (or on one of the nodes: coordinator="n1") and agents n1..nN. A context manager."""

    # Times are measured: detection and pace are the product's own, and what is waited for is asked for all the time.
    judged = True

    def __init__(self, nodes=2, slots=2, coordinator="c", lease_ms=30000, config="", absent=(), prepare=None):
        """config: of all daemons, TOML. absent: nodes that are not started yet. prepare(cluster) is called before anything is started."""
        self.dir = Path(tempfile.mkdtemp(prefix="titan-fault-"))
        self.tag = f"tf{os.getpid()}x{next(NUMBERS)}"
        self.slots = slots if isinstance(slots, dict) else {f"n{i + 1}": slots for i in range(nodes)}
        self.lease_ms, self.config = lease_ms, self.dir / "titand.toml"
        self.config.write_text((config or "[coordinator]\nquarantine_crashes = 0\n") + ("" if self.judged or "[detection]" in config else CALM))
        names = ["c", *self.slots]
        self.hosts = {name: Host(self, name, i + 1) for i, name in enumerate(names)}
        self.seat = self.hosts[coordinator]
        # On a node the coordinator is a second process; it has the host's network and cgroup and a state folder of its own.
        self.c = self.hosts["c"]
        if coordinator != "c":
            self.c.space, self.c.address, self.c.cgroup = self.seat.space, self.seat.address, self.seat.cgroup
        self.wire, self.absent, self.prepared = None, absent, prepare
        self.jobs, self.mounts = [], []

    def every(self, seconds):
        """How often is asked for what comes."""
        return seconds if self.judged else None

    def nodes(self):
        return [h for h in self.hosts.values() if h.name != "c"]

    def __enter__(self):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ended from outside, no host is left behind
        own = list({h.space: h for h in self.hosts.values() if h.name != "c" or self.seat is self.c}.values())
        try:
            for host in own:
                host.prepare()
            self.wire = Wire(self.dir, [h.name for h in own], [h.space for h in own])
            for host in own:
                host.configure()
            self.server = f"unix:{self.c.state}/titan.sock"
            if self.prepared:
                self.prepared(self)
            self.start_coordinator()
            there = [h for h in self.nodes() if h.name not in self.absent]
            for host in there:
                self.start_agent(host)
            until("all nodes are ready", lambda: self.node_states() == {h.name: "ready" for h in there})
        except BaseException:
            self.__exit__(True)
            raise
        return self

    def start_coordinator(self, env=None, wait=True):
        """Returns how long it took until the API answered, in ms."""
        begin = time.monotonic()
        if not PLAIN and not (self.c.state / "pki").exists():
            done = command(BIN / "titanctl", "pki", "init", "--state-dir", self.c.state, "--address", self.c.address)
            assert done.code == 0, done.err
        self.c.spawn("coordinator", "--config", self.config, "--listen", f"{self.c.address}:{PORT}", *["--insecure"][:PLAIN], env=env)
        if wait:
            until("the coordinator answers", lambda: self.answers(), every=self.every(0.002))
        return 1000 * (time.monotonic() - begin)

    def answers(self):
        """The API's socket accepts: it is opened when the store has been read."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
            try:
                s.connect(str(self.c.state / "titan.sock"))
            except OSError:
                return False
        return self.ctl("version").code == 0

    def start_agent(self, host, env=None):
        """It joins with a token the first time; the state folder has its certificate."""
        joined = self.dir / f"{host.name}.join"
        if not PLAIN and not joined.exists():
            text = self.ok("node", "join", host.name, "--address", f"{self.c.address}:{PORT}")
            joined.touch(0o600)
            joined.write_text(text)
        way = ("--insecure", "--node", host.name, "--coordinator", f"{self.c.address}:{PORT}") if PLAIN else ("--join", joined)
        env = env if self.judged else {"TITAN_FAILPOINTS": "train.step=sleep:20@1+", **(env or {})}
        host.spawn("agent", *way, "--config", self.config, "--address", host.address, "--slots", self.slots[host.name], "--lease-ms", self.lease_ms, *host.args, env=env)

    def ctl(self, *args, timeout=60):
        return command(BIN / "titanctl", "--server", self.server, *args, timeout=timeout)

    def ok(self, *args, timeout=60):
        done = self.ctl(*args, timeout=timeout)
        assert done.code == 0, f"titanctl {' '.join(map(str, args))}: exit {done.code}: {done.err}"
        return done.out

    def listed(self):
        """Numbers of all there are."""
        listed = json.loads(self.ok("-o", "json", "list", "--limit", 1000000))
        assert not listed["more"]
        return {j["id"] for j in listed["jobs"]}

    def node_states(self):
        return {n["name"]: n["state"] for n in json.loads(self.ok("-o", "json", "nodes"))["nodes"]}

    def status(self, job):
        return json.loads(self.ok("-o", "json", "status", job))

    def submit(self, keys, recipe="tiny"):
        run = Run(self, int(self.ok("submit", SOURCE / f"recipes/{recipe}.toml", *overrides(keys)).strip()))
        self.jobs.append(run)
        return run

    def small_disk(self, path, mib):
        """A file system of its own, of that size."""
        path.mkdir(parents=True, exist_ok=True)
        done = command("mount", "-t", "tmpfs", "-o", f"size={mib}m", "titan-fault", path)
        assert done.code == 0, done.err
        self.mounts.append(path)

    def store(self):
        """The coordinator's store, for reading, while it is used."""
        return store_copy(self.c.state / "titan.db")

    def rows(self, sql, *args):
        with self.store() as db:
            return [dict(r) for r in db.execute(sql, args)]

    def tell(self):
        """What the daemons and workers wrote, for a failure."""
        out = []
        for log in [*sorted(self.dir.glob("*.log")), *sorted(self.dir.glob("c/jobs/*/logs/*.log"))]:
            lines = [line for line in log.read_text(errors="replace").splitlines() if " worker step " not in line]
            out.append(f"# --- {log.name}\n# " + "\n# ".join(lines[-25:]))
        return "\n".join(out)

    def __exit__(self, kind, *_):
        if kind:
            print(self.tell())
        if self.wire:
            with contextlib.suppress(AssertionError, OSError):
                self.wire.heal()
        left = {}
        for host in sorted(self.hosts.values(), key=lambda h: h.name == "c"):
            if host.name != "c" or self.seat is self.c:
                left[host.name] = host.close()
            elif host.running():
                host.process.kill()
                host.process.wait()
        if self.wire:
            self.wire.close()
        for path in self.mounts:
            command("umount", path)
        if not (kind and os.environ.get("KEEP")):
            remove_states(self.dir)
        else:
            print(f"# kept: {self.dir}")


class Run:
    """A job that is watched: events from the store, steps from its metrics.jsonl."""

    def __init__(self, cluster, job):
        self.cluster, self.job, self.offset, self.steps = cluster, job, 0, []
        self.path = cluster.c.state / f"jobs/{job}/metrics.jsonl"

    def status(self):
        return self.cluster.status(self.job)

    def lines(self):
        """Every step trained so far, in the order of the file; again those of a step that was trained again."""
        if self.path.exists():
            with open(self.path, "rb") as f:
                f.seek(self.offset)
                whole = f.read().rpartition(b"\n")[0]
            self.offset += len(whole) + bool(whole)  # half a line may be cut off by the next writer
            self.steps += [json.loads(line) for line in whole.splitlines() if line]
        return self.steps

    def step(self):
        lines = self.lines()
        return lines[-1]["step"] if lines else 0

    def events(self, since=0, *types):
        rows = self.cluster.rows("SELECT * FROM events WHERE job_id = ? AND id > ? ORDER BY id", self.job, since)
        for r in rows:
            r["detail"] = json.loads(r["detail"])
        return [r for r in rows if not types or r["type"] in types]

    def last_event(self):
        return self.cluster.rows("SELECT coalesce(max(id), 0) AS id FROM events")[0]["id"]

    def await_event(self, since, *types, seconds=30, when=lambda e: True):
        def found():
            return next((e for e in self.events(since, *types) if when(e)), None)
        return until(f"event {' or '.join(types)}", found, seconds, self.cluster.every(0.005))

    def workers(self):
        """{worker id: (pid, node)} of those that live, by the store."""
        rows = self.cluster.rows("SELECT id, pid, node FROM workers WHERE job_id = ? AND pid > 0 AND state <= 3", self.job)
        return {r["id"]: (r["pid"], r["node"]) for r in rows if alive(r["pid"])}

    def members(self):
        """Worker ids of the newest epoch in rank order."""
        return [r["worker_id"] for r in self.cluster.rows(
            "SELECT worker_id FROM members m JOIN epochs e ON e.job_id = m.job_id AND e.number = m.epoch WHERE m.job_id = ?1 AND"
            " e.number = (SELECT max(number) FROM epochs WHERE job_id = ?1) AND rank < world_size ORDER BY rank", self.job)]

    def await_training(self, world, beyond=0, seconds=60):
        """So many workers have finished a step after that one, and no other membership is on its way."""
        def there():
            lines = self.lines()
            if not lines or lines[-1]["step"] <= beyond or lines[-1]["world_size"] != world:
                s = self.cluster.rows("SELECT state, reason FROM jobs WHERE id = ?", self.job)[0]
                assert s["state"] < 7, f"the job has ended: {s}"
                return None
            newest = self.cluster.rows("SELECT max(number) AS n FROM epochs WHERE job_id = ?", self.job)[0]["n"]
            return lines[-1] if newest == lines[-1]["epoch"] else None
        return until(f"{world} workers train beyond step {beyond}", there, seconds, self.cluster.every(0.01))

    def await_alone(self, seconds=60):
        """No worker lives but the members of the newest epoch: one that was about to end has ended, and is not taken for one of them."""
        until("only members live", lambda: set(self.workers()) == set(self.members()), seconds, self.cluster.every(0.01))

    def await_step_after(self, at_ms, seconds=30, epoch=0):
        """The first step that was finished after that time, in a later epoch than that one."""
        def there():
            found = None
            for m in reversed(self.lines()):
                if m["time_ms"] < at_ms or m["epoch"] <= epoch:
                    break
                found = m
            return found
        return until(f"a step after epoch {epoch}", there, seconds, self.cluster.every(0.003))

    def epoch(self):
        return self.lines()[-1]["epoch"]

    def await_end(self, state="COMPLETED", seconds=120):
        return until(f"the job is {state}", lambda: (lambda s: s["state"] == state and s)(self.status()), seconds)

    def cancel(self):
        self.cluster.ok("cancel", self.job)
        return self.await_end("CANCELLED", 40)
