#!/usr/bin/env python3
"""titand as a service manager sees it: ready, alive, reloading, stopping; and what SIGTERM does to workers."""
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, Daemon, command, headers_text, tap, until, worker_pids  # noqa: E402

KEYS = {"elastic.min_workers": 2, "elastic.max_workers": 2, "checkpoint.interval": 50, "training.global_batch_size": 4,
        "training.local_batch_size": 1, "device.threads": 1, "training.steps": 1000000}


class Service:
    """titand with a socket it is to notify."""

    def __init__(self, *args, env=None):
        self.dir = Path(tempfile.mkdtemp(prefix="titan-life-"))
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.dir / "notify"))
        self.socket.settimeout(10)
        self.log = self.dir / "log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [BIN / "titand", *map(str, args), "--state-dir", self.dir / "state"], stdout=log, stderr=log,
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
        shutil.rmtree(self.dir, ignore_errors=True)


def notifications():
    """READY, STATUS, WATCHDOG, RELOADING, STOPPING are said when they are true; SIGHUP changes the log level"""
    config = Path(tempfile.mkstemp(prefix="titan-life-", suffix=".toml")[1])
    config.write_text('[titand]\nlog_level = "error"\n')
    try:
        with Service("dev", "--listen", "127.0.0.1:0", "--config", config, env={"WATCHDOG_USEC": "200000"}) as s:
            begin = time.monotonic()
            first = s.said("READY=1")
            print(f"# ready after {1000 * (time.monotonic() - begin):.0f} ms")
            assert any("STATUS=dev: 0 workers, coordinator connected" in m for m in first), first
            begin = time.monotonic()
            for _ in range(5):
                s.said("WATCHDOG=1")
            assert time.monotonic() - begin < 2, "signs of life are rarer than every 100 ms"
            listen = (s.dir / "state/run/listen").read_text().split()
            assert listen[0] == f"unix:{s.dir}/state/titan.sock" and listen[1].startswith("127.0.0.1:"), listen
            assert command(BIN / "titanctl", "--server", listen[1], "version").code == 0
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
            assert s.process.wait(10) == 0
    finally:
        config.unlink()


def agent_without_coordinator():
    """an agent is ready while its coordinator is away, says so, and ends on SIGTERM"""
    with Service("agent", "--coordinator", "127.0.0.1:9", "--slots", 1) as s:
        first = s.said("READY=1")
        assert any("coordinator not reached" in m for m in first), first
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(10) == 0


def idle_uses_no_cpu():
    """an idle titand uses next to no processor time"""
    with Service("dev", "--listen", "127.0.0.1:0") as s:
        s.said("READY=1")

        def ticks():
            fields = (Path("/proc") / str(s.process.pid) / "stat").read_text().rsplit(")", 1)[1].split()
            return int(fields[11]) + int(fields[12])

        before = ticks()
        time.sleep(3)
        used = (ticks() - before) / os.sysconf("SC_CLK_TCK")
        print(f"# {used:.2f} s of processor time in 3 s")
        assert used < 0.15, used


def trains(d, job):
    return until("it trains", lambda: (lambda s: s["step"] > 5 and s)(d.status(job)), 30)


def keep_workers():
    """--keep-workers: they train on without titand, and the next one has them"""
    with Daemon(None, "--slots", 2, "--keep-workers") as d:
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


def second_sigterm():
    """a second SIGTERM does not wait for workers that do not stop"""
    with Daemon(None, "--slots", 2, "--grace-ms", 60000) as d:
        job = d.submit("tiny", {**KEYS, "training.dataset_path": headers_text(d.state / "text")})
        trains(d, job)
        for pid in worker_pids(d.state):
            os.kill(pid, signal.SIGSTOP)
        d.process.send_signal(signal.SIGTERM)
        until("it drains", lambda: "stopping" in d.log(), 10)
        assert d.process.poll() is None
        d.process.send_signal(signal.SIGTERM)
        begin = time.monotonic()
        assert d.process.wait(10) == 0
        print(f"# gone {1000 * (time.monotonic() - begin):.0f} ms after the second signal")
        assert not worker_pids(d.state)


tap(notifications, agent_without_coordinator, idle_uses_no_cpu, keep_workers, second_sigterm)
