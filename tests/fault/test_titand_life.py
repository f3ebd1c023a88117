#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""titand as a service manager sees it: ready, alive, reloading, stopping; and what SIGTERM does to workers."""
import contextlib
import ctypes
import json
import os
import platform
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, FP_BIN, Daemon, calm, command, deadline, headers_text, pause, remove_states, slow, tap, until, worker_pids  # noqa: E402

KEYS = {"elastic.min_workers": 2, "elastic.max_workers": 2, "checkpoint.interval": 50, "training.global_batch_size": 4,
        "training.local_batch_size": 1, "device.threads": 1, "training.steps": 1000000}


class Service:
    """titand with a socket it is to notify."""

    def __init__(self, *args, env=None, output=None, state=None, closed=False):
        self.dir = Path(tempfile.mkdtemp(prefix="titan-life-"))
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.dir / "notify"))
        self.socket.settimeout(deadline())
        self.log = self.dir / "log"
        shell = ["bash", "-c", 'exec "$@" <&- >&- 2>&-', "titand"] if closed else []
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [*shell, BIN / "titand", *map(str, args), "--state-dir", state or self.dir / "state"], stdout=output or log,
                stderr=output or log,
                env={**os.environ, "NOTIFY_SOCKET": str(self.dir / "notify"), **(env or {})})

    def said(self, what):
        """Everything said up to and with a datagram that has this in it."""
        out = []
        while True:
            out.append(self.socket.recv(4096).decode())
            if what in out[-1]:
                return out

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.socket.close()
        remove_states(self.dir)


def notifications():
    """READY, STATUS, WATCHDOG, RELOADING, STOPPING are said when they are true; SIGHUP changes the log level"""
    config = Path(tempfile.mkstemp(prefix="titan-life-", suffix=".toml")[1])
    config.write_text('[titand]\nlog_level = "error"\n')
    try:
        with Service("dev", "--config", config, env={"WATCHDOG_USEC": "200000"}) as s:
            first = s.said("READY=1")
            assert any("STATUS=dev: 0 workers, coordinator connected" in m for m in first), first
            for _ in range(5):
                s.said("WATCHDOG=1")
            listen = (s.dir / "state/run/listen").read_text().split()
            assert listen == [f"unix:{s.dir}/state/titan.sock"], listen
            assert command(BIN / "titanctl", "--server", listen[0], "version").code == 0
            assert s.log.read_text() == "", s.log.read_text()
            config.write_text('[titand]\nlog_level = "debug"\n')
            s.process.send_signal(signal.SIGHUP)
            s.said("RELOADING=1")
            s.said("READY=1")
            until("the log says more", lambda: "reloaded" in s.log.read_text(), 5)
            config.write_text("[titand]\nlog_levle = 1\n")
            s.process.send_signal(signal.SIGHUP)
            s.said("READY=1")
            until("a bad file is told", lambda: "log_levle" in s.log.read_text(), 5)
            s.process.send_signal(signal.SIGTERM)
            s.said("STOPPING=1")
            assert s.process.wait(deadline()) == 0
        with Service("coordinator", "--listen", "127.0.0.1:0", "--insecure") as s:  # every address is named
            first = s.said("READY=1")
            assert any(f"STATUS=coordinator: serving on unix:{s.dir}/state/titan.sock, 127.0.0.1:0" in m for m in first), first
    finally:
        config.unlink()


@slow
def signs_of_life():
    """signs of life come twice in the time that the service manager gives; this wants a quiet machine"""
    with Service("dev", env={"WATCHDOG_USEC": "200000"}) as s:
        s.said("READY=1")

        def five_signs():
            begin = time.monotonic()
            for _ in range(5):
                s.said("WATCHDOG=1")
            return time.monotonic() - begin
        assert any(five_signs() < 2 for _ in range(10)), "signs of life are rarer than every 100 ms"


def unread_log():
    """a log that nothing reads, a terminal that stands still, holds up neither calls nor the end"""
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        while os.write(write, b"x" * 4096):
            pass
    except BlockingIOError:
        os.set_blocking(write, True)
    with Service("dev", output=write) as s:
        os.close(write)
        s.said("READY=1")
        server = f"unix:{s.dir}/state/titan.sock"
        for _ in range(3):
            assert command(BIN / "titanctl", "--server", server, "nodes").code == 0
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(deadline()) == 0
    os.close(read)


def closed_streams():
    """started with its standard streams closed, no file or socket of titand gets their numbers; output that fails is exit code 1"""
    with Service("dev", closed=True) as s:
        s.said("READY=1")
        # Only root sees them, as titand is not dumpable. A library's constructor may have put an eventfd there before main.
        for fd in range(3 if os.geteuid() == 0 else 0):
            assert os.readlink(f"/proc/{s.process.pid}/fd/{fd}") in ("/dev/null", "anon_inode:[eventfd]"), fd
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(deadline()) == 0
    for word in ("--help", "--version"):
        for where in (">/dev/full", ">&-"):
            done = command("bash", "-c", f"{BIN / 'titand'} {word} {where}")
            assert done.code == 1 and "titand: cannot write standard output" in done.err, (word, where, done)


def slow_iteration():
    """a loop that stood still says for how long, how little of it was computing, and in which handler; so does one that got no
    processor"""
    def said(line):
        values = dict(part.split("=") for part in line.split()[-5:])
        return (*(int(values[k]) for k in ("ms", "woken_late_ms", "on_cpu_ms", "slowest_ms")), values["slowest"])
    with Daemon(None, "--slots", 1, "--grace-ms", 1000, program=FP_BIN / "titand", env={"TITAN_FAILPOINTS": "coordinator.stored=sleep:1200"}) as d:
        d.submit("tiny", {**KEYS, "elastic.min_workers": 1, "elastic.max_workers": 1,
                          "training.dataset_path": headers_text(d.state / "text")})
        log = d.state / "titand.log"
        until("it says so", lambda: "an iteration of the event loop took long" in log.read_text(), 30)
        line = until("it says where", lambda: [t for t in log.read_text().splitlines() if "took long" in t and "slowest=store " in t])[-1]
        ms, late, cpu, slowest_ms, _ = said(line)
        # What it slept is neither a late wake nor computing; times are told in whole milliseconds.
        assert 1200 <= slowest_ms <= ms and late + 1200 <= ms + 5 and cpu < 1000, line  # timing: what the line says of itself
    with Daemon(None, "--slots", 1) as d:
        log, stops = d.state / "titand.log", 0

        def stopped():
            """Mostly it is while it waits."""
            nonlocal stops
            stops += 1
            d.process.send_signal(signal.SIGSTOP)
            pause(2, "no processor for the loop")
            d.process.send_signal(signal.SIGCONT)
            told = until("it says so", lambda: (lambda t: len(t) >= stops and t)([t for t in log.read_text().splitlines() if "took long" in t]))
            return any(late >= 1000 and cpu < 1000 for _, late, cpu, _, _ in map(said, told))
        until("it says that it was woken late", stopped)


@contextlib.contextmanager
def disk():
    """A small file system of its own; None where none can be made."""
    folder = Path(tempfile.mkdtemp(prefix="titan-life-"))
    image, mount = folder / "image", folder / "mount"
    mount.mkdir()
    with open(image, "wb") as f:
        f.truncate(64 << 20)
    made = (os.geteuid() == 0 and command("mkfs.ext4", "-q", image).code == 0
            and command("mount", "-o", "loop", image, mount).code == 0)
    try:
        yield mount if made else None
    finally:
        if made:
            command("umount", mount)
        shutil.rmtree(folder)


def trains(daemon, job):
    """Until the job trains by the store as well: on a frozen disk it could not become RUNNING any more."""
    return until("it trains", lambda: (lambda s: s["state"] == "RUNNING" and s["step"] > 0)(daemon.status(job)), 30)


@contextlib.contextmanager
def frozen(mount):
    """It takes no writes."""
    assert command("fsfreeze", "-f", mount).code == 0
    try:
        yield
    finally:
        assert command("fsfreeze", "-u", mount).code == 0


def coordinator_on_a_frozen_disk():
    """a coordinator's file system takes no writes, as for a snapshot of it: calls are answered, what was asked is done after"""
    with disk() as mount:
        if not mount:
            return "needs root, mkfs.ext4 and a loop device"
        with Daemon(mount / "state", role="coordinator") as d:
            job = d.submit("tiny", {**KEYS, "training.dataset_path": headers_text(mount / "text")})
            with frozen(mount):
                for call in ("status", job), ("events", job), ("list",):
                    d.ok(*call, timeout=10)
                cancel = subprocess.Popen([BIN / "titanctl", "--server", d.server, "cancel", job], stdout=subprocess.DEVNULL)
                state = d.status(job)["state"]
                assert state == "PENDING", f"{state} before it is stored"
                pause(3, "a disk that takes nothing for long")
            assert cancel.wait(deadline()) == 0
            d.wait_state(job, "CANCELLED")
            assert not held_up((d.state / "titand.log").read_text(), 2900)


def held_up(log, ms):
    """Lines about a loop that stood still for so long and was not without a processor."""
    values = [(line, dict(part.split("=") for part in line.split()[-5:])) for line in log.splitlines() if "took long" in line]
    return [line for line, v in values if int(v["ms"]) - int(v["woken_late_ms"]) >= ms]


def agent_on_a_frozen_disk():
    """an agent's file system takes no writes for longer than a node may be silent: the node stays, and the run goes on"""
    with disk() as mount, tempfile.TemporaryDirectory(prefix="titan-life-") as home:
        if not mount:
            return "needs root, mkfs.ext4 and a loop device"
        config = Path(home) / "c.toml"
        config.write_text(calm(2000).replace("node_timeout_ms = 10000", "node_timeout_ms = 2000"))
        with Daemon(None, "--config", config, role="coordinator") as d:
            agent_goes_on(d, mount)


def agent_goes_on(d, mount):
    with Service("agent", "--coordinator", f"unix:{d.state}/agents.sock", "--slots", 2, "--stop-workers", state=mount / "state") as s:
        s.said("READY=1")
        job = d.submit("tiny", {**KEYS, "training.dataset_path": headers_text(d.state / "text"), "checkpoint.enable": "false"})
        trains(d, job)
        before = until("its epoch has begun", lambda: (lambda s: s["state"] == "RUNNING" and s)(d.status(job)))
        with frozen(mount):
            pause(4, "for longer than a node may be silent")
            now = until("it makes steps", lambda: (lambda s: s["step"] > before["step"] and s)(d.status(job)))
            assert now["state"] == "RUNNING" and now["epoch"] == before["epoch"], now
        assert not held_up(s.log.read_text(), 3900)
        d.ok("cancel", job)
        d.wait_state(job, "CANCELLED")
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(deadline()) == 0


def all_on_a_frozen_disk():
    """the file system of all there is takes no writes: the run goes on; its metrics have all steps afterwards"""
    with disk() as mount:
        if not mount:
            return "needs root, mkfs.ext4 and a loop device"
        with Daemon(mount / "state", "--slots", 2) as d:
            job = d.submit("tiny", {**KEYS, "training.dataset_path": headers_text(mount / "text"), "checkpoint.enable": "false",
                                    "metrics.log_freq": 1})
            trains(d, job)
            before = until("its epoch has begun", lambda: (lambda s: s["state"] == "RUNNING" and s)(d.status(job)))
            with frozen(mount):
                pause(2, "for longer than a worker waits for the file of metrics")
                now = until("it makes steps", lambda: (lambda s: s["step"] > before["step"] + 10 and s)(d.status(job)))
                assert now["state"] == "RUNNING" and now["epoch"] == before["epoch"], now
            d.ok("cancel", job)
            d.wait_state(job, "CANCELLED")
            folder = d.state / "jobs" / str(job)
            steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
            assert steps == list(range(1, len(steps) + 1)) and len(steps) >= now["step"], (len(steps), now["step"])
            log = "".join(f.read_text() for f in (folder / "logs").glob("worker-*.log*"))
            assert "the file of metrics takes no lines" in log and "takes lines again" in log, log[-2000:]


def agent_without_coordinator():
    """an agent is ready while its coordinator is away, says so, and ends on SIGTERM"""
    with Service("agent", "--coordinator", "127.0.0.1:9", "--insecure", "--slots", 1) as s:
        first = s.said("READY=1")
        assert any("coordinator not reached" in m for m in first), first
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(deadline()) == 0


def idle_sleeps():
    """an idle titand sleeps: all its threads wake a few times a second; with a worker its heartbeats come often, and after it seldom again"""
    def so_far(pid):
        wakes = ran_ns = 0
        for thread in (Path("/proc") / str(pid) / "task").iterdir():
            status = (thread / "status").read_text()
            wakes += int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])
            ran_ns += int((thread / "schedstat").read_text().split()[0])
        return wakes, ran_ns

    def in_two_seconds(pid):
        before = so_far(pid)
        pause(2, "what wakes it then is counted, and a busy machine makes none of it more")
        return [after - was for after, was in zip(so_far(pid), before)]

    def rests(pid):
        """A heartbeat in three seconds is some twelve wakes, and gRPC's own timers are four a second. Every 37.5 ms it was 700."""
        wakes, ran_ns = in_two_seconds(pid)
        print(f"# {wakes / 2:.0f} wakes a second, {ran_ns / 2e7:.2f} % of a processor")
        return wakes < 60

    with Daemon(None, "--slots", 2, pace_ms=20) as d:
        pid = d.process.pid
        until("it rests", lambda: rests(pid))
        job = d.submit("tiny", {**KEYS, "training.dataset_path": headers_text(d.state / "text")})
        trains(d, job)
        until("its heartbeats come often", lambda: in_two_seconds(pid)[0] >= 120)
        d.ok("cancel", job)
        d.wait_state(job, "CANCELLED")
        until("it rests again", lambda: rests(pid))


def sockets_of_the_service_manager():
    """a socket that systemd holds is served, and calls while titand is away are answered by the next one"""
    state = Path(tempfile.mkdtemp(prefix="titan-life-"))
    path = state / "held.sock"
    held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    held.bind(str(path))
    held.listen(64)

    def start():
        log = open(state / "log", "a")
        return subprocess.Popen(
            ["sh", "-c", 'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"', "sh", BIN / "titand", "dev",
             "--state-dir", state / "state"], stdout=log, stderr=log, pass_fds=(3,),
            preexec_fn=lambda: os.dup2(held.fileno(), 3) and None)

    def ask():
        return subprocess.Popen([BIN / "titanctl", "--server", f"unix:{path}", "nodes"], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT)

    process = None

    def answered():
        """A call from before there is a titand, by the one that is started then. A client's patience may be over sooner on a busy machine: again."""
        nonlocal process
        waiting = ask()
        process = start()
        out = waiting.communicate(timeout=deadline())[0]
        if waiting.returncode == 0:
            return True
        assert b"no answer from the server" in out, out
        process.kill()
        process.wait()
        return False

    try:
        for n, end in enumerate((signal.SIGKILL, signal.SIGTERM, signal.SIGKILL)):
            until("a call that waited is answered", answered)
            listen = (state / "state/run/listen").read_text().split()
            assert listen[0] == f"unix:{path}" and len(listen) == 2, listen
            # A connection taken from it is one over a Unix socket: it may have a backup.
            subprocess.run([BIN / "titanctl", "--server", f"unix:{path}", "admin", "backup", state / f"{n}.db"],
                           check=True, capture_output=True, timeout=deadline())
            process.send_signal(end)
            process.wait(deadline())
            assert path.exists()
    finally:
        if process and process.poll() is None:
            process.kill()
            process.wait()
        held.close()
        shutil.rmtree(state, ignore_errors=True)


def slice_ns(tid):
    """What the kernel says of this thread (base/slice.h): sched_runtime of sched_getattr()."""
    number, attributes = {"x86_64": 315, "aarch64": 275}[platform.machine()], ctypes.create_string_buffer(48)
    assert ctypes.CDLL(None).syscall(number, tid, attributes, len(attributes), 0) == 0, f"thread {tid} is gone"
    return struct.unpack_from("Q", attributes, 24)[0]


def short_slices():
    """the loop and a worker's control thread are run soon after they wake; what computes has the kernel's own slice"""
    if slice_ns(0) == 0:
        print("# this kernel has one slice for all")
        return
    with Daemon(None, "--slots", 2) as d:
        assert slice_ns(d.process.pid) == 100_000
        job = d.submit("tiny", {**KEYS, "training.dataset_path": headers_text(d.state / "text")})
        trains(d, job)
        for pid in worker_pids(d.state):
            slices = [slice_ns(int(t)) for t in os.listdir(f"/proc/{pid}/task")]
            assert len(slices) > 2 and sorted(slices) == [100_000] + [slice_ns(0)] * (len(slices) - 1), slices
        d.ok("cancel", job)


def trains(d, job):
    return until("it trains", lambda: (lambda s: s["step"] > 5 and s)(d.status(job)), 30)


def keep_workers():
    """--keep-workers: they train on without titand, and the next one has them"""
    with Daemon(None, "--slots", 2, "--keep-workers", pace_ms=20) as d:
        job = d.submit("tiny", {**KEYS, "training.dataset_path": headers_text(d.state / "text")})
        trains(d, job)
        pids = set(worker_pids(d.state))
        d.stop()
        assert d.process.returncode == 0 and set(worker_pids(d.state)) == pids
        d.start()
        s = trains(d, job)
        until("it goes on", lambda: d.status(job)["step"] > s["step"] + 5, 20)
        assert set(worker_pids(d.state)) == pids and d.status(job)["epoch"] == 1
        d.ok("cancel", job)
        d.wait_state(job, "CANCELLED", seconds=30)


def held_store():
    """a store that another process reads for a moment holds a start up, not off; `admin verify` of one that rests keeps none from starting"""
    with Daemon(None, "--slots", 1) as d:
        for name in ("titan.db", "metrics.db"):
            d.kill()
            holder = sqlite3.connect(d.state / name, check_same_thread=False)
            holder.execute("SELECT count(*) FROM sqlite_master").fetchone()
            before = len((d.state / "titand.log").read_text())

            def said():
                return (d.state / "titand.log").read_text()[before:]

            def release():
                until("it says what it waits for", lambda: "another process has the file open" in said())
                holder.close()
            thread = threading.Thread(target=release)
            thread.start()
            d.start()
            thread.join()
            assert "another process has the file open" in said() and "there are no metrics" not in said(), said()
        d.kill()
        done = command(BIN / "titanctl", "admin", "verify", d.state)
        assert done.code == 0 and not list(d.state.glob("titan.db-shm")), done
        d.start()


def second_sigterm():
    """a second SIGTERM does not wait for workers that do not stop"""
    env = {"TITAN_FAILPOINTS": "train.step=sleep:3600000@10"}  # and not SIGSTOP: an agent sees that, and ends them
    with Daemon(None, "--slots", 2, "--grace-ms", 3600000, "--worker", FP_BIN / "titan-worker", env=env) as d:
        job = d.submit("tiny", {**KEYS, "training.dataset_path": headers_text(d.state / "text")})
        trains(d, job)
        d.process.send_signal(signal.SIGTERM)
        until("it drains", lambda: "stopping" in d.log(), 10)
        assert d.process.poll() is None
        d.process.send_signal(signal.SIGTERM)
        assert d.process.wait(deadline()) == 0
        until("no worker is left", lambda: not worker_pids(d.state))


tap(notifications, signs_of_life, unread_log, closed_streams, slow_iteration, coordinator_on_a_frozen_disk, agent_on_a_frozen_disk,
    all_on_a_frozen_disk, agent_without_coordinator, idle_sleeps, sockets_of_the_service_manager, short_slices,
    keep_workers, held_store, second_sigterm)
