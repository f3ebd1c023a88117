#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The limits of clients (docs/operations.md, "Limits"): each one is met, what is beyond it is refused as it says, counted, and no other one
notices. Those of connections and memory are in tests/fault/test_storms.py."""
import contextlib
import json
import os
import re
import struct
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / d) for d in ("support", "attack")]
from titan import FP_BIN, Daemon, become_nobody, deadline, tap, until  # noqa: E402

try:
    import grpc
except ImportError as e:
    print(f"1..1\nok 1 - limits of clients # SKIP {e}")
    sys.exit(0)

import http2  # noqa: E402

WATCH = "/grpc.health.v1.Health/Watch"
CALLS = 5


def tcp_of(d):
    """Its listener over TCP; the log is a moment behind."""
    return until("it says where it listens", lambda: re.search(r"listen=.*(127[.]0[.]0[.]1:[0-9]+)", d.log())).group(1)


def watches(target, n):
    """n calls that do not end, over one connection; the status of each that did."""
    with grpc.insecure_channel(target) as channel:
        calls = [channel.unary_stream(WATCH)(b"", timeout=deadline()) for _ in range(n)]
        codes = []
        for call in calls:
            try:
                next(call)
            except grpc.RpcError as e:
                codes.append((e.code().name, e.details()))
        return codes


def counters(d):
    return {c["name"]: int(c["value"]) for c in json.loads(d.ok("-o", "json", "counters"))["counters"]}


def connections_with_calls():
    """limits.peer_connections: a connection with a call that is open does not end for the next one of its address, which is refused and counted"""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write(f"[limits]\npeer_connections = {CALLS}\n")
        config.flush()
        with Daemon(None, "--slots", 1, "--config", config.name) as d, contextlib.ExitStack() as ends:
            tcp, following = tcp_of(d), []
            for _ in range(CALLS):
                channel = ends.enter_context(grpc.insecure_channel(tcp, options=[("grpc.use_local_subchannel_pool", 1)]))
                following.append((channel, channel.unary_stream("/titan.v1.Titan/WatchEvents")(b"\x18\x01")))  # follow
                assert next(following[-1][1])
            before = counters(d)["connections_refused"]
            with contextlib.closing(http2.Connection(tcp)) as c:
                until("the next one is closed", lambda: (c.read(), c.ended or not c.open)[1])
            until("it is counted", lambda: counters(d)["connections_refused"] == before + 1)
            assert all(call.is_active() for _, call in following)
            following[0][1].cancel()
            until("one without a call makes room", lambda: watches(tcp, 1) == [])


def calls_of_a_user():
    """limits.user_calls: one call more than it is refused and counted; room comes back with their end; root is not bound"""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write(f"[limits]\nuser_calls = {CALLS}\n")
        config.flush()
        with Daemon(None, "--slots", 1, "--config", config.name) as d:
            tcp = tcp_of(d)
            assert watches(tcp, CALLS) == []
            until("those calls have ended", lambda: watches(tcp, CALLS) == [])
            before = counters(d)["calls_refused"]
            assert watches(tcp, CALLS + 1) == [("RESOURCE_EXHAUSTED", "too many calls of this user are open")]
            assert counters(d)["calls_refused"] == before + 1
            until("there is room again", lambda: watches(tcp, CALLS) == [])
            assert watches(d.server, 2 * CALLS) == [], "root is bound"


def streams_of_a_connection():
    """1,024 calls open over one connection: the server says so in its settings, a client that goes beyond loses its connection, others do not"""
    with Daemon(None, "--slots", 1) as d:
        beside = grpc.insecure_channel(d.server)
        watch = beside.unary_stream(WATCH)(b"", timeout=deadline())
        next(watch)
        c = http2.Connection(d.server)
        until("its settings are here", lambda: (c.read(), c.most)[1])
        assert c.most == 1024, c.most
        for _ in range(1024):
            c.data(c.call(WATCH), bytes(5))
        c.read()
        assert c.open, "not all that may be"
        c.call(WATCH)
        until("it is cut off", lambda: (c.read(), not c.open)[1])
        assert d.ok("version") and watch.is_active()
        assert beside.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=deadline())
        beside.close()


def as_another(work):
    """In a child of another user; what it prints on its last line."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            become_nobody()
            os.write(write, work().encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as f:
        said = f.read()
    os.waitpid(pid, 0)
    return said


def size_of_a_message():
    """512 KiB of another user, 4 MiB of root: a byte more is refused"""
    if os.geteuid() != 0:
        return "needs a second user: not root"
    with tempfile.TemporaryDirectory(prefix="titan-limits-") as where:
        os.chmod(where, 0o755)
        path = f"{where}/api.sock"
        with Daemon(None, "--slots", 1, "--listen", f"unix:{path}") as d:
            os.chmod(path, 0o666)

            def submit(size):
                # Of a field that is not known, so the recipe is what is missing.
                body = b"\xfa\x7f" + bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14 & 127 | 128, size >> 21]) + bytes(size)
                with grpc.insecure_channel(f"unix:{path}") as channel:
                    try:
                        channel.unary_unary("/titan.v1.Titan/Submit")(body, timeout=deadline())
                    except grpc.RpcError as e:
                        return e.code().name
                return "OK"
            for most, ask in ((512 << 10, as_another), (4 << 20, lambda work: work())):
                within, beyond = ask(lambda: submit(most - 6)), ask(lambda: submit(most - 5))
                assert within not in ("OK", "RESOURCE_EXHAUSTED", ""), (most, within)
                assert beyond == "RESOURCE_EXHAUSTED", (most, beyond)
            assert d.ok("version")


def refused_before_it_is_read():
    """a caller that may not: refused after the first bytes of 512 KiB; one that may is counted among its user's calls at once"""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write(f"[limits]\nuser_calls = {CALLS}\n")
        config.flush()
        with Daemon(None, "--slots", 1, "--config", config.name) as d:
            c = http2.Connection(tcp_of(d))
            begun = struct.pack(">BI", 0, 512 << 10) + bytes(100)
            stream = c.call("/titan.v1.Titan/Backup")
            c.data(stream, begun)
            until("it is refused", lambda: (c.read(), stream in c.answered)[1])
            for _ in range(CALLS):
                c.data(c.call("/titan.v1.Titan/ListJobs"), begun)
            beyond = c.call("/titan.v1.Titan/ListJobs")
            c.data(beyond, begun)
            until("one too many is refused", lambda: (c.read(), beyond in c.answered)[1])
            assert c.answered == {stream, beyond}, c.answered
            c.close()
            assert d.ok("version")


def number(value):
    out = b""
    while value >= 128:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def fields_of_requests():
    """a field out of its range (proto/ranges.c) is refused by message, field and range, before anything looks at it; one that would change something is on record"""
    with Daemon(None, "--slots", 1) as d:
        def ask(method, body):
            with grpc.insecure_channel(d.server) as channel:
                try:
                    list(channel.unary_stream(f"/titan.v1.Titan/{method}")(body, timeout=deadline()))
                except grpc.RpcError as e:
                    return e.code().name, e.details()
            return "OK", ""
        text = lambda field, value: bytes([field << 3 | 2]) + number(len(value)) + value  # noqa: E731
        for method, body, words in (
                ("ListJobs", b"\x18" + number(1001), "ListJobsRequest.page_size = 1001: 0 to 1000"),
                ("ListJobs", text(2, b"x" * 65), "ListJobsRequest.user has 65 bytes: 0 to 64"),
                ("GetJob", b"\x08" + number(1 << 53), "GetJobRequest.job_id = 9007199254740992: 0 to 9007199254740991"),
                ("Logs", b"\x08\x01\x10" + number((1 << 64) - 2), "LogsRequest.rank = -2: -1 to 2147483647"),
                ("DrainNode", text(1, b"n1") + text(2, b"a\x1b[2J"), "DrainNodeRequest.reason has a control character"),
                ("Submit", text(4, "/a\u202e/b".encode()) + text(1, b"x"), "SubmitRequest.recipe_path has a control character, or one that cannot be seen: none is allowed"),
                ("Submit", b"".join(text(8, b"a=b") for _ in range(33)), "SubmitRequest.labels has 33 entries: 0 to 32"),
                ("JoinNode", text(1, b"n9") + b"\x10" + number(2592000001), "JoinNodeRequest.ttl_ms = 2592000001"),
                ("CancelJob", b"\x08" + number(1 << 60), "CancelJobRequest.job_id")):
            code, said = ask(method, body)
            assert code == "INVALID_ARGUMENT" and words in said, (method, code, said)
        assert ask("ListJobs", b"\x18" + number(1000)) == ("OK", "")
        assert ask("GetJob", b"\x08" + number((1 << 53) - 1))[0] == "NOT_FOUND"

        def failed():
            return {(e["detail"]["method"], e["type"]) for e in map(json.loads, d.ok("-o", "json", "audit").splitlines())}
        until("they are on record", lambda: {(m, "audit.failed") for m in ("CancelJob", "DrainNode", "Submit")} <= failed())


def refused_for_now():
    """submits beyond what may wait, and those with paths that do not answer, are on record: of each kind one line and their number"""
    with Daemon(None, "--slots", 1, program=FP_BIN / "titand", env={"TITAN_FAILPOINTS": "submit.check=hang@1+"}) as d:
        with grpc.insecure_channel(d.server) as channel:
            submit = channel.unary_unary("/titan.v1.Titan/Submit")
            codes = [f.exception().code().name for f in [submit.future(b"\x0a\x01x", timeout=deadline()) for _ in range(400)]]
        beyond, silent = codes.count("RESOURCE_EXHAUSTED"), codes.count("UNAVAILABLE")
        assert beyond > 1 and silent > 1 and beyond + silent == 400, codes

        def lines():
            return [e["detail"] for e in map(json.loads, d.ok("-o", "json", "audit", "--after", 0).splitlines()) if e["type"] == "audit.failed"]
        until("the first of each is on record", lambda: sorted(e["outcome"] for e in lines()) == ["EAGAIN", "ELIMIT"])
        d.stop()  # the minute's counts are stored before the end
        d.start()
        for outcome, n in (("ELIMIT", beyond), ("EAGAIN", silent)):
            counts = [e.get("count", 1) for e in lines() if e["outcome"] == outcome]
            assert counts[0] == 1 and sum(counts) == n and len(counts) < 5, (outcome, n, counts)  # two, and one for each minute more


def size_that_is_announced():
    """a message that announces a byte too much: refused by its first five bytes, in Titan's words, over Unix and TCP; other calls of the connection go on"""
    with Daemon(None, "--slots", 1) as d:
        for target, most in ((d.server, 4 << 20), (tcp_of(d), 512 << 10)):
            c = http2.Connection(target)
            fits, beyond = c.call("/titan.v1.Titan/Submit"), c.call("/titan.v1.Titan/Submit")
            c.data(fits, struct.pack(">BI", 0, most))
            c.data(beyond, struct.pack(">BI", 0, most + 1))
            until("it is refused", lambda: (c.read(), beyond in c.answered)[1])
            assert c.answered == {beyond} and beyond not in c.windows, (target, c.answered)
            words = f"a message of {most + 1} bytes; at most {most} are taken here".encode()
            assert b"\x0bgrpc-status\x018" in c.last and words in c.last and b"titan-status\x06ELIMIT" in c.last, c.last
            c.data(fits, bytes(most), deadline())
            until("the other one is answered", lambda: (c.read(), fits in c.answered)[1])
            c.close()
        assert d.ok("version")


def refused_again_and_again():
    """6,000 such messages over one connection, each while gRPC takes up its call: each is refused, once"""
    with Daemon(None, "--slots", 1) as d:
        c = http2.Connection(d.server)
        c.read()
        sent = set()
        for _ in range(120):
            streams = [c.call("/titan.v1.Titan/Submit") for _ in range(50)]
            for stream in streams:
                c.data(stream, struct.pack(">BI", 0, (4 << 20) + 1))
            sent |= set(streams)
            until("they are refused", lambda: (c.read(), sent <= c.answered or not c.open)[1])
            assert c.open, (len(c.answered), c.last)
        assert d.ok("version")
        c.read()
        assert c.answered == sent and not c.twice, c.twice
        c.close()


def header_block():
    """a header block of 16 KiB and a byte: the connection ends, and its client is told why"""
    with Daemon(None, "--slots", 1) as d:
        for target in (d.server, tcp_of(d)):
            rest = (16 << 10) - (len(http2.begin(1, "/titan.v1.Titan/Version", ("x", b"a" * 8000))) - 9 - 8000)
            for size, ends in ((rest, False), (rest + 1, True)):
                c = http2.Connection(target)
                stream = c.call("/titan.v1.Titan/Version", ("x", b"a" * size))
                c.data(stream, bytes(5))
                until("there is an answer", lambda: (c.read(), stream not in c.windows or c.ended)[1])
                assert c.open != ends and (b"a header block of more than 16384 bytes" in c.last) == ends, (target, size, c.open, c.last)
                c.close()
        assert d.ok("version")


tap(fields_of_requests, refused_for_now, size_that_is_announced, refused_again_and_again, header_block, calls_of_a_user, connections_with_calls, refused_before_it_is_read, streams_of_a_connection, size_of_a_message)
