# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end tests and benchmarks share: a daemon over a fresh folder, titanctl against it, TAP output."""
import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from datetime import datetime
from pathlib import Path

from patience import FLOOR_S, patience

SOURCE = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("BUILD", "build"))
BUILD = BUILD if BUILD.is_absolute() else SOURCE / BUILD
BIN = BUILD / "bin"
FP_BIN = BUILD / "fp/bin"  # titand and titan-worker with failpoints (base/failpoint.h): TITAN_FAILPOINTS arms them


os.environ.setdefault("TITAN_ALLOW_ROOT", "1")  # tests often run as root; inherited by every titand they start
# Workers outlive their agent: then they come to the process that run.py has above each test, without run.py to this one.
PR_SET_CHILD_SUBREAPER = 36
if "TITAN_TEST_SLOWNESS" in os.environ:
    TEST = os.getppid()
else:
    TEST = os.getpid()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def calm(silence_ms=3000):
    """[detection] for what is not about it: a busy machine is no silent node, no coordinator that is away and no worker that hangs. A node
    that ends is lost after silence_ms and half of it."""
    return f"""
[detection]
suspect_ms = {silence_ms}
confirm_ms = {silence_ms // 2}
node_timeout_ms = {max(10000, 2 * silence_ms)}
reachable_ms = 60000
away_ms = 20000
hang_floor_ms = 30000
"""


CALM = calm()


def until(what, condition, seconds=FLOOR_S, every=None):
    """Wait for condition() to be true; returns its value. The outside world has no event to wait for here. what: what is waited for, or a
    function that says it when it did not come. seconds: against hanging only; at least FLOOR_S, more on a slow or busy machine. every: None
    asks less often the longer it takes, as a titanctl is 20 ms of a processor."""
    begin = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        took = time.monotonic() - begin
        if took > deadline(seconds):
            raise AssertionError(f"after {took:.0f} s still not: {what() if callable(what) else what}")
        time.sleep(every or min(max(0.05, took / 20), 0.2))


def eventually(check, seconds=FLOOR_S, every=0.2):
    """Wait for check() to raise no AssertionError: for what is measured and comes right once a disturbance is over."""
    begin = time.monotonic()
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() - begin > deadline(seconds):
                raise
        time.sleep(every)


def deadline(seconds=FLOOR_S):
    """Seconds after which something hangs, for calls that take a timeout."""
    return max(seconds, FLOOR_S) * patience()


def pause(seconds, why):
    """Let time pass because the test is about time that passes: a lease that runs out, a standstill. why: for the reader. It is a disturbance,
    never a wait: how much of it the product has noticed is asked with until()."""
    assert why
    time.sleep(seconds)


class Result:
    def __init__(self, done):
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    def __repr__(self):
        return f"exit {self.code}: {self.out!r} {self.err!r}"


def become_nobody(uid=65534):
    """This process, as root, for good: a user who owns nothing."""
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def drop_overrides():
    """This process and what it starts, as root, for good: the permissions of files hold for it, as for their owner. (A user without rights
    could not reach a tree in a folder that is root's alone, as /root is.)"""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()  # capget(2): effective, permitted, inheritable, twice
    assert libc.capget(header, sets) == 0, os.strerror(ctypes.get_errno())
    for capability in (1, 2):  # DAC_OVERRIDE, DAC_READ_SEARCH
        assert libc.prctl(24, capability, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())  # PR_CAPBSET_DROP
        for i in range(3):
            sets[i] &= ~(1 << capability)
    assert libc.capset(header, sets) == 0, os.strerror(ctypes.get_errno())


def under_permissions(test):
    """Run test in a child that may not read or write everything, as root may."""
    def run():
        if os.getuid() != 0:
            return test()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                drop_overrides()
                test()
                code = 0
            except BaseException:
                print("# " + traceback.format_exc().replace("\n", "\n# "), flush=True)
            os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0, "failed under permissions"
    run.__doc__, run.__name__, run.slow = test.__doc__, test.__name__, is_slow(test)
    return run


def command(*args, timeout=120, env=None, stdin=None):
    """Run a program to its end; never raises for its exit code."""
    done = subprocess.run([str(a) for a in args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=deadline(timeout),
                          text=True, errors="replace", env=env, input=stdin)
    return Result(done)


def answered(ask):
    """What ask(), a titanctl, came to. It gives a connection two seconds, which a busy machine may need longer for; nothing was asked then: again."""
    done = None

    def there():
        nonlocal done
        done = ask()
        return done.code != 4 or "before receiving SETTINGS frame" not in done.err
    until(lambda: f"the server takes a connection: {done.err}", there)
    return done


def at_ms(text):
    """RFC 3339 time of titanctl's JSON in milliseconds since 1970."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000


def overrides(keys):
    """{"training.steps": 5} -> ["--set", "training.steps=5"]"""
    return [x for key, value in keys.items() for x in ("--set", f"{key}={value}")]


def children_of(pid):
    found = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def files_of(pid):
    """What a process has open. Descriptors come and go while they are listed: a file that is closed meanwhile is none."""
    found = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(fd))
    return found


def sockets_of(pid):
    """Inodes of a process's sockets."""
    return {name[8:-1] for name in files_of(pid) if name.startswith("socket:[")}


def listens_at(pid):
    """(address, port) at which a process accepts TCP connections. A table of /proc that changes while it is read may lack rows: what must be
    there is awaited."""
    sockets = sockets_of(pid)
    rows = [row.split() for table in ("tcp", "tcp6") for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]]
    places = [row[1].split(":") for row in rows if row[3] == "0A" and row[9] in sockets]
    return {(socket.inet_ntop(socket.AF_INET if len(address) == 8 else socket.AF_INET6,
                              b"".join(bytes.fromhex(address[i:i + 8])[::-1] for i in range(0, len(address), 8))), int(port, 16)) for address, port in places}


def descendants(word=""):
    """Live processes that the test has caused, with the word in their command line (a folder of the test): pid -> command line. A parent that
    ends meanwhile hands its children over: they are looked for again."""
    found, new = set(), [TEST]
    while new:
        below = [child for pid in new for child in children_of(pid)] + children_of(TEST)
        new = [pid for pid in set(below) if pid not in found]
        found.update(new)
    lines = {}
    for pid in sorted(found - {os.getpid()}):
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            if str(word).encode() in line and alive(pid):
                lines[pid] = line
    return lines


def alive(pid):
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def worker_pids(folder):
    """Live titan-worker processes that the test has caused, with that folder of the test in their command line."""
    return [pid for pid, line in descendants(folder).items() if line.split(b"\0")[0].endswith(b"titan-worker")]


def paced(ms):
    """(arguments, environment) of a titand with workers that sleep so long before every step: for a run that only has to be there, it
    leaves the processors to others."""
    return ("--worker", FP_BIN / "titan-worker"), {"TITAN_FAILPOINTS": f"train.step=sleep:{ms}@1+"}


class Gate:
    """A worker program for --worker that begins when the gate is open: a replacement is there when a test wants it."""

    def __init__(self, folder, worker=BIN / "titan-worker"):
        self.program, pipe = Path(folder) / "gated-worker", Path(folder) / "gate"
        os.mkfifo(pipe)
        self.program.write_text(f'#!/bin/sh\n: <"{pipe}"\nexec "{worker}" "$@"\n')
        self.program.chmod(0o755)
        self.pipe, self.fd = pipe, -1
        self.open()

    def open(self):
        self.fd = os.open(self.pipe, os.O_RDWR)

    def close(self):
        os.close(self.fd)


class Daemon:
    """`titand dev` over a folder, or another role; a context manager that stops it. start() again after kill() continues. pace_ms:
    paced(). Detection is CALM where no --config says otherwise."""

    def __init__(self, state=None, *args, env=None, program=BIN / "titand", role="dev", pace_ms=0):
        if pace_ms:
            more, environment = paced(pace_ms)
            args, env = (*more, *args), {**environment, **(env or {})}
        self.role = role
        self.own = state is None
        self.program = program
        self.state = Path(state or tempfile.mkdtemp(prefix="titan-test-"))
        if not self.own:
            shutil.rmtree(self.state, ignore_errors=True)
        self.state.mkdir(parents=True, exist_ok=True)
        self.server = f"unix:{self.state}/titan.sock"
        self.args, self.env, self.process = args, env or {}, None
        self.before = []  # what the program is started by, as unshare

    def start(self):
        begin = time.monotonic()
        path = self.state / "notify.sock"
        path.unlink(missing_ok=True)
        if "--config" not in self.args:
            (self.state / "calm.toml").write_text(CALM)
            self.args += ("--config", self.state / "calm.toml")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready, open(self.state / "titand.log", "a") as log:
            ready.bind(str(path))
            ready.settimeout(deadline())
            self.process = subprocess.Popen(
                [*self.before, self.program, self.role, "--state-dir", self.state, "--listen", "127.0.0.1:0", "--insecure", *map(str, self.args)],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env={**os.environ, **self.env, "NOTIFY_SOCKET": str(path)})
            try:
                while b"READY=1" not in ready.recv(4096):
                    pass
            except OSError:
                self.process.kill()
                self.process.wait()
                raise AssertionError("titand did not come up:\n" + self.log())
        self.ready_ms = (time.monotonic() - begin) * 1000
        return self

    __enter__ = start

    def log(self):
        return (self.state / "titand.log").read_text(errors="replace")[-4000:]

    def kill(self):
        """SIGKILL, as a crash would."""
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(deadline())
            except subprocess.TimeoutExpired:
                self.kill()

    def __exit__(self, kind, *_):
        self.stop()
        if kind:
            print("# titand's log:\n# " + self.log().replace("\n", "\n# "))
            for log in sorted(self.state.glob("jobs/*/logs/*.log")):
                print(f"# {log.name}:\n# " + log.read_text(errors="replace")[-2000:].replace("\n", "\n# "))
        if self.own:
            remove_states(self.state)

    def ctl(self, *args, timeout=120, stdin=None):
        return command(BIN / "titanctl", "--server", self.server, *args, timeout=timeout, stdin=stdin)

    def ok(self, *args, timeout=120):
        done = answered(lambda: self.ctl(*args, timeout=timeout))
        assert done.code == 0, f"titanctl {' '.join(map(str, args))}: exit {done.code}: {done.err}"
        return done.out

    def submit(self, recipe="tiny", keys=None, *args):
        path = recipe if "/" in str(recipe) else SOURCE / "recipes" / f"{recipe}.toml"
        return self.ok("submit", path, *overrides(keys or {}), *args).strip()

    def status(self, job):
        return json.loads(self.ok("-o", "json", "status", job))

    def jobs(self):
        return json.loads(self.ok("-o", "json", "list", "--limit", 1000000))["jobs"]

    def lines(self, *args):
        """Commands that print one JSON object a line: events, metrics."""
        return [json.loads(line) for line in self.ok("-o", "json", *args).splitlines() if line.strip()]

    def workers(self, job):
        """{worker id: pid} of the workers the events say are there."""
        pids = {}
        for event in self.lines("events", job):
            detail = event.get("detail") or {}
            if event["type"] == "worker.started":
                pids[detail["worker"]] = detail["pid"]
            elif event["type"] in ("worker.exited", "worker.lost"):
                pids.pop(detail["worker"], None)
        return pids

    def wait_state(self, job, *states, seconds=90):
        last = None

        def reached():
            nonlocal last
            last = self.status(job)
            return last["state"] in states and last
        return until(lambda: f"job {job} is {' or '.join(states)} (it is {last['state']})", reached, seconds)


def _wal_state(path):
    """What changes when a checkpoint moves pages of the WAL into the file, or begins the WAL anew."""
    wal = Path(f"{path}-wal")
    stat = path.stat()
    with contextlib.suppress(FileNotFoundError), open(wal, "rb") as f:
        return stat.st_mtime_ns, stat.st_size, f.read(32)
    return stat.st_mtime_ns, stat.st_size, b""


@contextlib.contextmanager
def store_copy(path):
    """A database of a titand that may run, as it is now: a copy, for the file itself is locked by its owner."""
    path = Path(path)
    with tempfile.TemporaryDirectory(prefix="titan-store-") as folder:
        copy = Path(folder) / path.name
        for _ in range(100):
            before = _wal_state(path)
            shutil.copyfile(path, copy)
            Path(f"{copy}-wal").unlink(missing_ok=True)  # of the try before
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(f"{path}-wal", f"{copy}-wal")
            if _wal_state(path) == before:
                break
        else:
            raise AssertionError(f"{path} changes faster than it can be copied")
        db = sqlite3.connect(copy)
        db.row_factory = sqlite3.Row
        try:
            yield db
        finally:
            db.close()


def remove_states(folder):
    """A folder with state directories in it, and what their agents have left in memory when they were killed."""
    for link in [*Path(folder).glob("run/pages"), *Path(folder).glob("*/run/pages")]:
        shutil.rmtree(os.path.realpath(link), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def headers_text(target, limit=1 << 20):
    """Real text that is on every build machine: C headers, up to limit bytes, below target."""
    target = Path(target)
    if not target.exists():
        target.mkdir(parents=True)
        total = 0
        for path in sorted(Path("/usr/include").glob("*.h")) + sorted(Path("/usr/include/linux").glob("*.h")):
            data = path.read_bytes()
            if b"\0" not in data:
                (target / path.name).write_bytes(data)
                total += len(data)
            if total > limit:
                break
    return target


def processor_s():
    """Of this process and of those that have ended."""
    return sum(os.times()[:4])


def slow(test):
    """Mark a case that takes more than 20 s or wants a quiet machine: `make test-slow` runs it, `make test` does not."""
    test.slow = True
    return test


def tap(*tests):
    """Run test functions, print TAP, exit. A test raises AssertionError to fail and returns a str to be skipped. TITAN_TEST_SET chooses
    fast or slow ones; words of the command line choose those that have one of them in their name."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ended from outside: what was started is ended in order
    wanted = {"fast": [t for t in tests if not is_slow(t)], "slow": [t for t in tests if is_slow(t)]}.get(os.environ.get("TITAN_TEST_SET"), tests)
    failed = 0
    named = [(t, (t.__doc__ or t.__name__).strip().splitlines()[0]) for t in wanted]
    if len(sys.argv) > 1:
        named = [(t, n) for t, n in named if any(w in n or w in t.__name__ for w in sys.argv[1:])]
    print(f"1..{len(named)}")
    for number, (test, name) in enumerate(named, 1):
        begin, used = time.monotonic(), processor_s()
        try:
            skip = test()
            print(f"ok {number} - {name}" + (f" # SKIP {skip}" if isinstance(skip, str) else ""), flush=True)
        except Exception:
            failed += 1
            print(f"not ok {number} - {name}")
            print("# " + traceback.format_exc().replace("\n", "\n# "), flush=True)
        print(f"# {time.monotonic() - begin:.1f} s, {processor_s() - used:.1f} s of a processor", flush=True)
    sys.exit(1 if failed else 0)


def is_slow(test):
    return getattr(test, "slow", False)
