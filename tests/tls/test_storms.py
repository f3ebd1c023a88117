#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clients over TLS that take all they may have: agents come in and go on beside them, and so do other clients."""
import contextlib
import socket
import ssl
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / d) for d in ("tls", "attack")]
from pki import Coordinator, command, messages, until  # noqa: E402
from titan import BIN, deadline, tap  # noqa: E402
from http2 import HEADERS, Connection, frame, header  # noqa: E402

WATCH = "/grpc.health.v1.Health/Watch"
CALLS = 5
CONNECTIONS = 6


def stranger(c, source, port=None):
    """A connection over TLS without a certificate."""
    context = ssl.create_default_context(cafile=c.state / "pki/ca.pem")
    context.set_alpn_protocols(["h2"])
    return Connection(f"127.0.0.1:{port or c.port}", context, source)


def watches(connection, n):
    """n streams of Health.Watch in one piece."""
    block = b"".join(header(*h) for h in ((":method", "POST"), (":scheme", "https"), (":path", WATCH), (":authority", "x"),
                                          ("te", "trailers"), ("content-type", "application/grpc")))
    out = []
    for _ in range(n):
        connection.stream += 2
        out.append(frame(HEADERS, 4, connection.stream, block) + frame(0, 1, connection.stream, bytes(5)))
    connection.socket.settimeout(deadline())
    connection.socket.sendall(b"".join(out))


def memory_mb(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) // 1024


def channel(c, folder):
    own = [(folder / name).read_bytes() for name in ("key.pem", "cert.pem")]
    credentials = World.grpc.ssl_channel_credentials((c.state / "pki/ca.pem").read_bytes(), *own)
    return World.grpc.secure_channel(f"localhost:{c.port}", credentials, options=[("grpc.use_local_subchannel_pool", 1)])


def version(c, folder, n=1):
    with channel(c, folder) as ch:
        ask = ch.unary_unary("/titan.v1.Titan/Version", request_serializer=World.api.VersionRequest.SerializeToString,
                             response_deserializer=World.api.VersionResponse.FromString)
        return [ask(World.api.VersionRequest(), timeout=deadline()).api for _ in range(n)]


def join(c, name, *, agents=True):
    """The node's agent is started and ready; agents=False: by a file of before there was a port for agents."""
    path = c.join_file(name, "--address", f"localhost:{c.port}")
    text = path.read_text()
    assert ('agents = "localhost:' in text) == (c.agents != "off"), text
    if not agents:
        path.write_text("".join(line for line in text.splitlines(True) if not line.startswith("agents")))
    c.spawn(name, "agent", "--join", path, "--slots", 1)
    until(f"{name} is ready", lambda: c.nodes().get(name) == "ready", 20)
    return path


def restart(c, name, path):
    """SIGTERM, and another agent: it gets in."""
    ready = len([e for e in c.events("node.ready") if e["node"] == name])
    c.stop(name)
    c.spawn(name, "agent", "--join", path, "--slots", 1)
    until(f"{name} is ready again", lambda: len([e for e in c.events("node.ready") if e["node"] == name]) > ready, 20)


def stranger_beside_agents():
    """a stranger with 4,096 Health watches and 512 MB of messages that miss a byte: agents get in, clients are answered"""
    if not World.grpc:
        return World.why
    with Coordinator() as c:
        eva = c.user("eva")
        n1, n2 = join(c, "n1"), join(c, "n2", agents=False)
        before, refused = memory_mb(c.processes["c"].pid), int(c.counter("calls_refused"))
        # The stranger is on the agents' host, and on another one.
        held = [stranger(c, "127.0.0.1") for _ in range(4)]
        for k in held:
            watches(k, 1024)
        beside = [stranger(c, "127.0.0.2") for _ in range(16)]
        body, kept, most = b"\0" + (512 << 10).to_bytes(4, "big") + bytes((512 << 10) - 1), 0, 0
        for k in beside:
            for stream in [k.call("/titan.internal.Enrolment/Enroll") for _ in range(64)]:
                kept += k.data(stream, body, 0.05)
            most = max(most, memory_mb(c.processes["c"].pid))
        assert version(c, eva) == ["titan.v1"]
        restart(c, "n1", n1)
        restart(c, "n2", n2)
        until("all beyond the limit are refused", lambda: int(c.counter("calls_refused")) >= refused + 4096 - 16, 60)
        assert c.nodes() == {"n1": "ready", "n2": "ready"} and not c.events("node.lost")
        print(f"# {kept >> 20} MiB were taken of messages; {before} MB before, {most} MB at most")
        assert most < before + 200, (before, most)
        for k in held + beside:
            k.close()


def header_blocks():
    """a stranger's header blocks of 8 MB, and a message that announces a byte too much: cut off, and refused by its first bytes; an agent comes in"""
    if not World.grpc:
        return World.why
    with Coordinator() as c:
        n1 = join(c, "n1")
        for _ in range(4):
            k = stranger(c, "127.0.0.2")
            k.patience = deadline()
            k.call("/titan.v1.Titan/Version", ("x", b"a" * (8 << 20)))
            assert not k.open, "all of it was taken"
            k.close()
        k = stranger(c, "127.0.0.2")
        stream = k.call("/titan.internal.Enrolment/Enroll")
        k.data(stream, b"\0" + ((512 << 10) + 1).to_bytes(4, "big"))
        until("it is refused", lambda: (k.read(), stream in k.answered)[1], 20)
        assert k.open and b"a message of 524289 bytes; at most 524288 are taken here" in k.last, k.last
        k.close()
        restart(c, "n1", n1)
        assert "node.lost" not in c.log("c"), c.log("c")


def one_certificate():
    """a certificate with all the calls it may have: another one's are answered, its own node's agent gets in"""
    if not World.grpc:
        return World.why
    with Coordinator(f"[limits]\nuser_calls = {CALLS}\n") as c:
        eva, max_ = c.user("eva"), c.user("max")
        n1 = join(c, "n1")
        with channel(c, eva) as ch:
            follow = ch.unary_stream("/titan.v1.Titan/WatchEvents", request_serializer=World.api.WatchEventsRequest.SerializeToString,
                                     response_deserializer=World.api.Event.FromString)
            held = [follow(World.api.WatchEventsRequest(follow=True), timeout=deadline()) for _ in range(CALLS)]
            assert all(next(call).type for call in held)
            try:
                version(c, eva)
                raise AssertionError("not refused")
            except World.grpc.RpcError as error:
                assert "too many calls of this user" in error.details(), error.details()
            assert version(c, max_, 2 * CALLS) == 2 * CALLS * ["titan.v1"]
            restart(c, "n1", n1)
        until("there is room again", lambda: answered(c, eva), 20)


def answered(c, folder):
    try:
        return version(c, folder)
    except World.grpc.RpcError:
        return None


def open_of(sockets):
    """How many of them have not been ended by the other side."""
    n = 0
    for s in sockets:
        s.setblocking(False)
        try:
            while s.recv(65536):
                pass
        except (BlockingIOError, ssl.SSLWantReadError):
            n += 1
        except OSError:
            pass
    return n


def silent_strangers():
    """strangers of a client's address that hold all its connections: sockets without a word, handshakes alone, calls without a message. Clients get in, what they have stays"""
    if not World.grpc:
        return World.why
    with Coordinator(f"[limits]\npeer_connections = {CONNECTIONS}\n") as c:
        eva, n1 = c.user("eva"), join(c, "n1", agents=False)
        bearer = stranger(c, None)
        stream = bearer.call("/titan.v1.Titan/Version", ("authorization", "Bearer " + c.ctl("token", "create", "ci").strip()))
        bearer.data(stream, bytes(5))
        until("its call is answered", lambda: (bearer.read(), stream in bearer.answered)[1])
        with channel(c, eva) as ch:
            follow = ch.unary_stream("/titan.v1.Titan/WatchEvents", request_serializer=World.api.WatchEventsRequest.SerializeToString,
                                     response_deserializer=World.api.Event.FromString)(World.api.WatchEventsRequest(follow=True), timeout=deadline())
            assert next(follow).type
            for kind in ("no word", "a handshake", "a call"):
                before = int(c.counter("connections_refused"))
                strangers = [socket.create_connection(("127.0.0.1", c.port), deadline()) if kind == "no word" else stranger(c, None) for _ in range(3 * CONNECTIONS)]
                if kind == "a call":
                    for k in strangers:
                        k.call("/titan.internal.Enrolment/Enroll")
                sockets = strangers if kind == "no word" else [k.socket for k in strangers]
                oldest, newest = sockets[:2 * CONNECTIONS], sockets[2 * CONNECTIONS:]
                until("the oldest have ended", lambda: open_of(oldest) == 0)
                until("each is counted", lambda: int(c.counter("connections_refused")) >= before + 2 * CONNECTIONS)
                if kind != "no word":  # that ends by itself after 10 s
                    assert open_of(newest) == CONNECTIONS, kind
                assert version(c, eva) == ["titan.v1"]
                if kind != "no word":
                    until("one has ended for it", lambda: open_of(newest) == CONNECTIONS - 1)
                    assert open_of(newest[:1]) == 0
                for s in sockets:
                    s.close()
            restart(c, "n1", n1)
            assert follow.is_active() and open_of([bearer.socket]) == 1 and "node.lost" not in c.log("c")
            follow.cancel()
            bearer.close()


def connections_of_one_certificate():
    """a certificate with all the connections it may have from an address: those without one, and of another, have theirs"""
    if not World.grpc:
        return World.why
    with Coordinator(f"[limits]\npeer_connections = {CONNECTIONS}\n") as c, contextlib.ExitStack() as ends:
        eva, max_ = c.user("eva"), c.user("max")

        def kept(folder):
            """A connection that is still there after its call."""
            ch = ends.enter_context(channel(c, folder))
            ask = ch.unary_unary("/titan.v1.Titan/Version", request_serializer=World.api.VersionRequest.SerializeToString,
                                 response_deserializer=World.api.VersionResponse.FromString)
            with contextlib.suppress(World.grpc.RpcError):  # of one that is cut before it has the answer
                ask(World.api.VersionRequest(), timeout=deadline())
        before = int(c.counter("connections_refused"))
        for _ in range(CONNECTIONS):
            kept(eva)
        assert version(c, max_) == ["titan.v1"] and int(c.counter("connections_refused")) == before
        kept(eva)
        until("one more is cut", lambda: int(c.counter("connections_refused")) == before + 1)
        assert "too many connections of one certificate or token" in c.log("c")
        assert version(c, max_) == ["titan.v1"]
        k = stranger(c, None)
        assert open_of([k.socket]) == 1
        k.close()


def size_of_a_message():
    """512 KiB of a user over TLS, and not a byte more"""
    if not World.grpc:
        return World.why
    with Coordinator() as c:
        eva = c.user("eva")

        def submit(size):
            # Of a field that is not known, so the recipe is what is missing.
            body = b"\xfa\x7f" + bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14 & 127 | 128, size >> 21]) + bytes(size)
            with channel(c, eva) as ch:
                try:
                    ch.unary_unary("/titan.v1.Titan/Submit")(body, timeout=deadline())
                except World.grpc.RpcError as e:
                    return e.code().name
            return "OK"
        assert submit((512 << 10) - 6) not in ("OK", "RESOURCE_EXHAUSTED")
        assert submit((512 << 10) - 5) == "RESOURCE_EXHAUSTED"


def port_of_agents():
    """the port of agents: no handshake without a certificate, a user's may nothing; the one after listen's unless the file says another"""
    if not World.grpc:
        return World.why
    grpc = World.grpc
    with Coordinator() as c:
        eva, port = c.user("eva"), int(c.agents.rsplit(":", 1)[1])
        assert port != c.port
        k = stranger(c, None, port)
        k.send(b"")
        until("the stranger is cut off", lambda: (k.read(), not k.open)[1], 10)
        credentials = grpc.ssl_channel_credentials((c.state / "pki/ca.pem").read_bytes(), *[(eva / n).read_bytes() for n in ("key.pem", "cert.pem")])
        with grpc.secure_channel(f"localhost:{port}", credentials) as ch:
            for path, code in (("/titan.internal.Coordinator/Session", grpc.StatusCode.PERMISSION_DENIED),
                               ("/titan.internal.Enrolment/Renew", grpc.StatusCode.PERMISSION_DENIED),
                               ("/titan.v1.Titan/Version", grpc.StatusCode.UNIMPLEMENTED)):
                try:
                    ch.unary_unary(path)(b"", timeout=deadline())
                    raise AssertionError(f"{path} was answered")
                except grpc.RpcError as error:
                    assert error.code() == code, (path, error.code(), error.details())
        # Started again at a port that is named, the next one is the agents'; "off": they come in where clients do.
        tcp = c.tcp
        c.stop("c")
        for config, expect in (("", f"127.0.0.1:{c.port + 1}"), ('[coordinator]\nagents_listen = "off"\n', "")):
            (c.dir / "c.toml").write_text(config)
            c.spawn("c", "coordinator", "--listen", tcp, "--config", c.dir / "c.toml")
            until("it answers", lambda: command(BIN / "titanctl", "-s", c.unix, "version").code == 0, 10)
            assert (c.state / "run/listen-agents").read_text().strip() == expect
            c.agents = expect or "off"
            join(c, "n1" if expect else "n2")
            for name in [n for n in c.processes if n != "c"] + ["c"]:
                c.stop(name)


class World:
    found, why = messages()
    grpc, api = found[:2] if found else (None, None)


tap(stranger_beside_agents, header_blocks, one_certificate, silent_strangers, connections_of_one_certificate, size_of_a_message, port_of_agents)
