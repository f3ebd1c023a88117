#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What clients can do to titand with bytes alone: memory stays bounded, no node looks dead, others get in.

The clients speak HTTP/2 by hand. Nothing here is timed: a storm is over when its last byte was taken or refused, and
then events, memory and log are looked at."""
import contextlib
import hashlib
import json
import os
import re
import resource
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / d) for d in ("support", "attack")]
from titan import BIN, Daemon, become_nobody, command, deadline, headers_text, pause, tap, until  # noqa: E402
from http2 import Connection  # noqa: E402

DATA, HEADERS, RST, SETTINGS, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 7, 8, 9
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + bytes([SETTINGS, 0]) + bytes(4)


def frame(kind, flags, stream, body=b""):
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body


def text(s):
    return bytes([len(s)]) + s.encode()


def headers(method):
    """POST, http, :path, :authority, content-type, te"""
    return (b"\x83\x86\x04" + text(method) + b"\x01" + text("titan") + b"\x0f\x10" + text("application/grpc") + b"\x00" +
            text("te") + text("trailers"))


def number(n):
    """HPACK: the length of a string, 7-bit prefix"""
    out, n = bytes([127]), n - 127
    while n >= 128:
        out, n = out + bytes([n % 128 | 128]), n // 128
    return out + bytes([n])


def connect(path):
    s = socket.socket(socket.AF_UNIX)
    s.connect(str(path))
    s.sendall(PREFACE)
    return s


def memory_mb(pid, what="VmRSS"):
    """VmRSS: now; VmHWM: the most there ever was."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith(what)).split()[1]) // 1024


def node_events(d):
    out = [json.loads(line) for line in d.ok("-o", "json", "events").splitlines()]
    return [e["type"] for e in out if e["type"].startswith("node.")]


MESSAGE, CALLS = 4 << 20, 8


def unfinished(path, sockets):
    """One connection, 8 calls, each with a message of 4 MiB of which the last byte does not come; for as long as it is taken."""
    s = connect(path)
    sockets.append(s)
    for k in range(CALLS):
        s.sendall(frame(HEADERS, 4, 2 * k + 1, headers("/titan.v1.Titan/Submit")))
    left, first = [MESSAGE + 4] * CALLS, [True] * CALLS
    connection, windows, pending = 65535, [65535] * CALLS, b""
    blocked = False
    while any(left):
        try:
            s.settimeout(2 if blocked else 0)  # nothing comes for so long: no more is taken
            got = s.recv(1 << 16)
            if not got:
                return
            pending += got
        except BlockingIOError:
            pass
        except OSError:
            return
        blocked = True
        while len(pending) >= 9:
            n = int.from_bytes(pending[:3], "big")
            if len(pending) < 9 + n:
                break
            kind, flags, stream = pending[3], pending[4], int.from_bytes(pending[5:9], "big")
            body, pending = pending[9:9 + n], pending[9 + n:]
            if kind == WINDOW and stream == 0:
                connection += int.from_bytes(body, "big")
            elif kind == WINDOW:
                windows[(stream - 1) // 2] += int.from_bytes(body, "big")
            elif kind == SETTINGS and not flags:
                more = [int.from_bytes(body[i + 2:i + 6], "big") - 65535 for i in range(0, n, 6) if body[i:i + 2] == b"\0\4"]
                windows = [w + sum(more) for w in windows]
        for k in range(CALLS):
            n = min(left[k], connection, windows[k], 16384)
            if n <= 5:
                continue
            body = bytes(n)
            if first[k]:
                body, first[k] = b"\0" + struct.pack(">I", MESSAGE) + bytes(n - 5), False
            try:
                s.settimeout(deadline())
                s.sendall(frame(DATA, 0, 2 * k + 1, body))
            except OSError:
                return
            left[k] -= n
            connection -= n
            windows[k] -= n
            blocked = False


def unfinished_messages():
    """40 connections with 8 messages of 4 MiB that miss a byte: memory is bounded and comes back, the agent's session stays, others are answered"""
    with Daemon(None, "--slots", 1) as d:
        before = memory_mb(d.process.pid)
        sockets = []
        threads = [threading.Thread(target=unfinished, args=(d.state / "titan.sock", sockets)) for _ in range(40)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        peak = memory_mb(d.process.pid, "VmHWM")
        assert d.ok("version")
        for s in sockets:
            s.close()
        print(f"# {before} MB before, {peak} MB at most")
        assert peak < before + 300, (before, peak)  # 1,280 MB were sent, 1,150 of it kept
        assert node_events(d) == ["node.ready"], node_events(d)
        assert "session with the coordinator lost" not in d.log(), d.log()
        until("the memory is given back", lambda: memory_mb(d.process.pid) < before + 40, 30)


CANCELLED, AT_ONCE = 20000, 5


def cancelled(path, pieces):
    """One connection, with Submits that are each cancelled in the same breath."""
    c = Connection(f"unix:{path}")
    for out, room in pieces:
        while c.open and c.window < room:
            c.read()
        c.window -= room
        c.socket.settimeout(deadline())
        c.socket.sendall(out)
        c.socket.settimeout(0.05)  # timing: what there is to read now
    assert c.open
    c.close()


def cancelled_submits():
    """20,000 Submits over five connections, each cancelled at once: memory goes back, no job was made, the node is not lost"""
    recipe = b"[training]\n" + b"x" * 100  # no recipe
    body = b"\x0a" + bytes([len(recipe)]) + recipe
    data, block, pieces = b"\0" + struct.pack(">I", len(body)) + body, headers("/titan.v1.Titan/Submit"), []
    for first in range(0, CANCELLED // AT_ONCE, 100):
        streams = [2 * k + 1 for k in range(first, first + 100)]
        pieces.append((b"".join(frame(HEADERS, 4, s, block) + frame(DATA, 1, s, data) + frame(RST, 0, s, struct.pack(">I", 8))
                                for s in streams), len(streams) * len(data)))
    with Daemon(None, "--slots", 1) as d:
        before = memory_mb(d.process.pid)
        threads = [threading.Thread(target=cancelled, args=(d.state / "titan.sock", pieces)) for _ in range(AT_ONCE)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        most = memory_mb(d.process.pid, "VmHWM")
        assert d.ok("version")
        until("the memory is given back", lambda: memory_mb(d.process.pid) < before + 90, 30)
        print(f"# {before} MB before, {most} MB at most, {memory_mb(d.process.pid)} MB after")
        assert most < before + 490, (before, most)  # twice what is measured
        assert not d.jobs() and "node.lost" not in node_events(d), node_events(d)


def header_blocks():
    """three header blocks of 8 MB: each connection is cut off before all of it is sent, clients are answered, the agent's session stays"""
    block = (frame(HEADERS, 0, 1, headers("/titan.v1.Titan/Version") + b"\0" + text("x") + number(8 << 20))
             + 512 * frame(CONTINUATION, 0, 1, b"a" * 16384) + frame(CONTINUATION, 4, 1))
    with Daemon(None, "--slots", 1) as d:
        for _ in range(3):
            with connect(d.state / "titan.sock") as s:
                s.settimeout(deadline())
                try:
                    s.sendall(block)
                    raise AssertionError("all of it was taken")
                except OSError:
                    pass
            assert d.ok("version")
        assert node_events(d) == ["node.ready"], node_events(d)
        assert "session with the coordinator lost" not in d.log(), d.log()


WATCHED = 256  # streams of events and metrics, of one user


def watches(path, n, held):
    """Follow all events n times over one connection; how many were refused."""
    c = Connection(f"unix:{path}")
    held.append(c)
    for _ in range(n):
        c.data(c.call("/titan.v1.Titan/WatchEvents"), b"\0" + struct.pack(">I", 2) + b"\x18\1")  # follow
    until("each is answered", lambda: (c.read(), len(c.begun | c.answered) == n)[1], 30)
    return len(c.answered)


def streams_of_two_users():
    """a user that watches as often as it may, without reading, and a call more: that call is refused, another user's are not"""
    if os.geteuid() != 0:
        return "needs two other users: not root"
    with tempfile.TemporaryDirectory(prefix="titan-storm-") as where:
        os.chmod(where, 0o755)
        path, held = f"{where}/all.sock", []
        with Daemon(None, "--slots", 1, "--listen", f"unix:{path}") as d:
            os.chmod(path, 0o666)
            pids = []
            try:
                for uid, streams, refused in ((65534, WATCHED + 1, 1), (65533, WATCHED, 0), (65534, 1, 1), (65532, 1, 0)):
                    pid, found = as_nobody(lambda n=streams: watches(path, n, held), uid)
                    pids.append(pid)
                    assert found == refused, (uid, found)
                assert d.ok("events") and node_events(d) == ["node.ready"]
            finally:
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)


def number64(n):
    return struct.pack("<Q", n & (1 << 64) - 1)


def add_events(store, n):
    """n events of jobs that there are not, behind those there are (state/event.c: the chain)"""
    with contextlib.closing(sqlite3.connect(store)) as db:
        (last, chain), rows = db.execute("SELECT id, chain FROM events ORDER BY id DESC LIMIT 1").fetchone(), []
        for i in range(last + 1, last + 1 + n):
            texts = ["worker.started", "worker 1 has started", "n1", "{}", ""]
            chain = hashlib.sha256(chain + b"".join(map(number64, (i, 1 + i % 50, i, 1, i, -1)))
                                   + b"".join(number64(len(t)) + t.encode() for t in texts)).digest()
            rows.append((i, 1 + i % 50, i, 1, i, -1, *texts, chain))
        db.executemany("INSERT INTO events (id, job_id, at_ms, epoch, step, rank, type, message, node, detail, change, chain, actor)"
                       " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '')", rows)
        db.commit()


def events_of_others():
    """a user that may see its own jobs only asks for all events, 200,000 of others: calls of root are answered meanwhile"""
    if os.geteuid() != 0:
        return "needs another user: not root"
    with tempfile.TemporaryDirectory(prefix="titan-storm-") as where:
        os.chmod(where, 0o755)
        path, config = f"{where}/all.sock", Path(where) / "titand.toml"
        config.write_text("[authorization]\nprivate_jobs = true\n")
        with Daemon(None, "--slots", 1, "--listen", f"unix:{path}", "--config", config) as d:
            d.stop()
            add_events(d.state / "titan.db", 200000)
            d.start()
            os.chmod(path, 0o666)
            ours = Connection(f"unix:{d.state}/titan.sock")
            pid = os.fork()
            if pid == 0:
                become_nobody(65534)
                c = Connection(f"unix:{path}")
                c.data(c.call("/titan.v1.Titan/WatchEvents"), b"\0" + struct.pack(">I", 0))
                until("all is looked at", lambda: (c.read(), c.answered)[1], 120, 0)
                os._exit(0)
            answers, ended = 0, False
            while answers < 500 and not ended:  # what the connection may be sent without a word from here is enough for these
                stream = ours.call("/titan.v1.Titan/Version")
                ours.data(stream, b"\0" + struct.pack(">I", 0))
                until("it is answered", lambda k=stream: (ours.read(), k in ours.answered)[1], 60, 0)
                answers += 1
                ended = os.waitpid(pid, os.WNOHANG) != (0, 0)
            if not ended:
                os.waitpid(pid, 0)
            print(f"# {answers} answers meanwhile")
            assert answers > 3, answers


def greeted(s):
    """The server has sent its settings."""
    s.settimeout(deadline())
    try:
        return len(s.recv(9)) > 0
    except OSError:
        return False


def as_nobody(work, uid=65534):
    """In a child of another user, which lives on; returns its pid and what work() returns, a number."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            become_nobody(uid)
            os.write(write, struct.pack("i", work()))
            signal.pause()
        finally:
            os._exit(1)
    os.close(write)
    with open(read, "rb") as f:
        said = f.read(4)
    assert len(said) == 4, "the other user's process ended"
    return pid, struct.unpack("i", said)[0]


def crowd(path, n):
    held = []

    def work():
        for _ in range(n):
            try:
                held.append(connect(path))
            except OSError:
                pass  # refused before its first byte
        return sum(greeted(s) for s in held)
    return as_nobody(work)


def let_in(path):
    pid, there = crowd(path, 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return there


def connections_of_another():
    """a user who holds all the connections that may be held: root and the node go on, and room comes back with their end"""
    if os.geteuid() != 0:
        return "needs a second user: not root"
    state = Path(tempfile.mkdtemp(prefix="titan-storm-"))
    state.chmod(0o755)
    path = state / "all.sock"
    held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    held.bind(str(path))
    path.chmod(0o666)
    held.listen(1024)
    may = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    for soft, hard, most in ((64, min(may, 4096), 256), (64, 400, 150)):
        def limits(soft=soft, hard=hard):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            os.dup2(held.fileno(), 3)

        with open(state / "log", "w") as log:
            titand = subprocess.Popen(
                ["sh", "-c", 'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"', "sh", BIN / "titand", "dev", "--state-dir", state / "state",
                 "--slots", "1", "--allow-root"], stdout=log, stderr=log, pass_fds=(3,), preexec_fn=limits)
        server = f"unix:{path}"
        try:
            until("titand answers", lambda: command(BIN / "titanctl", "--server", server, "version").code == 0, 20)
            raised = resource.prlimit(titand.pid, resource.RLIMIT_NOFILE)
            assert raised == (hard, hard), raised
            others, kept = crowd(path, 300)
            print(f"# {kept} of 300 connections of one user are kept with {hard} descriptors")
            assert 50 < kept <= most, kept
            done = command(BIN / "titanctl", "--server", server, "nodes")
            assert done.code == 0 and "ready" in done.out, done
            os.kill(others, signal.SIGKILL)
            os.waitpid(others, 0)
            until("the other user is let in again", lambda: let_in(path), 20)
            said = (state / "log").read_text()
            assert "connections are refused" in said and "session with the coordinator lost" not in said, said
        finally:
            titand.send_signal(signal.SIGTERM)
            titand.wait()
    held.close()
    subprocess.run(["rm", "-r", state], check=False)


def tcp(port, source="127.0.0.1", n=1):
    """Connections that were greeted."""
    out = []
    for _ in range(n):
        s = socket.create_connection(("127.0.0.1", port), deadline(), (source, 0))
        try:
            s.sendall(PREFACE)
        except OSError:
            pass
        out.append(s)
    return [s for s in out if greeted(s)]


def refused_by(d):
    counters = json.loads(d.ok("-o", "json", "counters"))["counters"]
    return next(int(c["value"]) for c in counters if c["name"] == "connections_refused")


def connections_over_tcp():
    """an address that holds all the connections it may have: the oldest without a call ends for the next one; others and the Unix socket go on, and one that says nothing is closed"""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 4096:
        return "needs 4,096 descriptors: with fewer, it is those that run out"
    with Daemon(None, "--slots", 1) as d:
        port = int(until("it says where it listens", lambda: re.search(r"127\.0\.0\.1:(\d+)", d.log())).group(1))
        silent = socket.create_connection(("127.0.0.1", port), deadline())
        held = tcp(port, n=300)
        assert len(held) == 300, len(held)
        # A client may see the end of its connection before the thread that ends it has said so.
        until("the log says why", lambda: "too many connections from one address" in d.log(), 10)
        until("each is counted", lambda: refused_by(d) == 45, 10)
        assert len(tcp(port, "127.0.0.2")) == 1
        assert d.ok("version")
        for s in (silent, *held[:44]):
            while s.recv(4096):  # gRPC's settings, then its end
                pass
        for s in held[44:]:
            s.setblocking(False)
            try:
                while s.recv(4096):
                    pass
                raise AssertionError("one of the newest has ended")
            except BlockingIOError:
                s.close()
        assert "session with the coordinator lost" not in d.log(), d.log()


LOG_MB, STREAMS = 48, 6


def logs_nobody_reads():
    """six streams of a log of 48 MB that are not read: 16 MiB wait for all of them, those that hold most end with a reason, others are served"""
    with Daemon(None, "--slots", 1) as d:
        job = d.submit("tiny", {"training.steps": 2, "training.dataset_path": headers_text(d.state / "text"), "device.threads": 1,
                                "elastic.min_workers": 1, "elastic.max_workers": 1, "training.global_batch_size": 1,
                                "training.local_batch_size": 1})
        d.wait_state(job, "COMPLETED")
        with open(next(d.state.glob(f"jobs/{job}/logs/worker-*.log")), "ab") as log:
            log.write((b"x" * 99 + b"\n") * (LOG_MB * 10000))
        port = re.search(r"listen=.*127\.0\.0\.1:(\d+)", d.log()).group(1)
        before = memory_mb(d.process.pid)
        # Anonymous, over TCP; LogsRequest: job_id, and rank = -1.
        body = b"\x08" + bytes([int(job)]) + b"\x10" + b"\xff" * 9 + b"\x01"
        c = Connection(f"127.0.0.1:{port}")
        for _ in range(STREAMS):
            c.data(c.call("/titan.v1.Titan/Logs"), b"\0" + struct.pack(">I", len(body)) + body)

        # It holds what may wait, and ends those that hold most.
        until("it has read as much as may wait", lambda: (c.read(), memory_mb(d.process.pid, "VmHWM") > before + 12)[1])
        pause(2, "it could read on")
        most = memory_mb(d.process.pid, "VmHWM")
        print(f"# {before} MB before, {most} MB at most")
        assert most < before + 60, (before, most)
        assert len(d.ok("logs", job, "--tail", "1000").splitlines()) == 1000
        # What was queued for the client comes first, then the reason.
        for stream in (0, *range(1, 2 * STREAMS, 2)):
            c.send(frame(WINDOW, 0, stream, struct.pack(">I", 1 << 30)))
        until("those that hold most have ended", lambda: (c.read(), len(c.answered) >= STREAMS - 1)[1], 30, 0)
        assert node_events(d) == ["node.ready"], node_events(d)
        c.close()


tap(unfinished_messages, cancelled_submits, header_blocks, streams_of_two_users, events_of_others, connections_of_another, connections_over_tcp, logs_nobody_reads)
