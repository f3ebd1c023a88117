#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pages of titand over HTTP: health and readiness with TLS and without, certificates that are renewed under them, and clients that mean
harm, beside which all others are served."""
import contextlib
import http.client
import shutil
import signal
import socket
import ssl
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "support"),
                str(Path(__file__).resolve().parents[1] / "tls")]
from pki import Coordinator, ctl  # noqa: E402
from titan import BIN, CALM, Daemon, command, deadline, tap, until  # noqa: E402

PLAIN = '[http]\nlisten = "127.0.0.1:0"\ninsecure = true\n'
TLS = '[http]\nlisten = "127.0.0.1:0"\n'


def place(state):
    """(host, port) of a daemon's pages."""
    host, port = until("the pages are served", lambda: (state / "run/listen-http").exists() and (state / "run/listen-http").read_text()).rsplit(":", 1)
    return host, int(port)


def trust(ca=None, own=None):
    """A client's TLS: the CA whose certificates it takes (None: any), its own pair."""
    context = ssl.create_default_context(cafile=ca) if ca else ssl._create_unverified_context()
    if own:
        context.load_cert_chain(own / "cert.pem", own / "key.pem")
    return context


def get(at, path, context=None, method="GET", headers=None):
    """(status, headers, text) of one request."""
    connect = http.client.HTTPSConnection(*at, timeout=deadline(), context=context) if context else http.client.HTTPConnection(*at, timeout=deadline())
    with contextlib.closing(connect) as c:
        c.request(method, path, headers=headers or {})
        r = c.getresponse()
        return r.status, {k.lower(): v for k, v in r.getheaders()}, r.read().decode()


@contextlib.contextmanager
def dev(config=PLAIN, **more):
    folder = Path(tempfile.mkdtemp(prefix="titan-http-"))
    (folder / "titan.toml").write_text(config + CALM)
    try:
        with Daemon(folder / "s", "--config", folder / "titan.toml", **more) as d:
            yield d, place(d.state)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def raw(at, data):
    """What the server says to these bytes until it closes. It may close before all were sent."""
    with socket.create_connection(at, timeout=deadline()) as s:
        out = b""
        with contextlib.suppress(ConnectionError):
            s.sendall(data)
        with contextlib.suppress(ConnectionError):
            while (more := s.recv(65536)):
                out += more
        return out.decode(errors="replace")


def health():
    """healthz and readyz of a daemon of one machine; HEAD has no text; other pages are not there"""
    with dev() as (d, at):
        assert get(at, "/healthz")[::2] == (200, "ok\n")
        assert get(at, "/readyz")[::2] == (200, "ready\n")
        status, headers, text = get(at, "/healthz", method="HEAD")
        assert (status, headers["content-length"], text) == (200, "3", "")
        assert headers["cache-control"] == "no-store" and headers["x-content-type-options"] == "nosniff"
        for path in ("/healthz/", "/titan.html", "/../healthz", "/..%2f..%2fetc/passwd", "/healthz%00", "/titan.db"):
            assert get(at, path)[0] == 404, path
        assert not d.ctl("version").code


def readiness():
    """an agent is not ready while its coordinator is not there; its page says so, and goes on"""
    folder = Path(tempfile.mkdtemp(prefix="titan-http-"))
    try:
        (folder / "agent.toml").write_text(PLAIN + CALM)
        with Coordinator() as c:
            node = c.join_file("n1")
            c.spawn("n1", "agent", "--join", node, "--config", folder / "agent.toml")
            at = place(c.dir / "n1")
            until("the agent is ready", lambda: get(at, "/readyz")[0] == 200)
            c.stop("c")
            until("the agent is not ready", lambda: get(at, "/readyz")[::2] == (503, "the coordinator is not reached\n"))
            assert get(at, "/healthz")[0] == 200
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def encrypted():
    """with TLS by the daemon's certificate; a renewed one is taken at the next connection; HTTP/2 alone, no TLS and a stranger's CA are refused"""
    with Coordinator(config=TLS) as c:
        at = place(c.state)
        ca = c.state / "tls/ca.pem"
        with contextlib.closing(http.client.HTTPSConnection(*at, timeout=deadline(), context=trust(ca))) as old:
            old.request("GET", "/healthz")
            assert old.getresponse().read() == b"ok\n"
            before = old.sock.getpeercert()["serialNumber"]
            ctl("pki", "coordinator", "--state-dir", c.state)
            with contextlib.closing(http.client.HTTPSConnection(*at, timeout=deadline(), context=trust(ca))) as new:
                new.request("GET", "/readyz")
                assert new.getresponse().read() == b"ready\n"
                assert new.sock.getpeercert()["serialNumber"] != before
            old.request("GET", "/readyz")  # goes on with what it began with
            assert old.getresponse().read() == b"ready\n"
        for offers, works in ((["h2"], False), (["http/1.1"], True), (["h2", "http/1.1"], True)):
            context = trust(ca)
            context.set_alpn_protocols(offers)
            try:
                assert get(at, "/healthz", context)[0] == 200 and works, offers
            except ssl.SSLError:
                assert not works, offers
        assert "HTTP" not in raw(at, b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
        with Coordinator() as other:  # a certificate of another CA is no proof, and ends the handshake
            stranger = other.user("eva")
            try:
                get(at, "/healthz", trust(ca, stranger))
                raise RuntimeError("a stranger's certificate was taken")
            except (ssl.SSLError, OSError):
                pass
        assert get(at, "/healthz", trust(ca, c.user("eva")))[0] == 200
        assert command(BIN / "titanctl", "-s", c.unix, "version").code == 0


def unsafe():
    """without TLS on an address that others reach, without a certificate, and with no address: refused at the start, in one line"""
    with tempfile.TemporaryDirectory() as folder:
        for config, words in ((PLAIN.replace("127.0.0.1", "0.0.0.0"), "refusing to serve HTTP on 0.0.0.0:0 without TLS: other hosts may reach it"),
                              (TLS, "refusing to serve HTTP on 127.0.0.1:0 without TLS: there is no certificate"),
                              ('[http]\nlisten = "unix:/tmp/x"\n', "http.listen: 'unix:/tmp/x' is not an address"),
                              ('[http]\nport = 1\n', "unknown key 'http.port'")):
            path = Path(folder) / "titan.toml"
            path.write_text(config)
            done = command(BIN / "titand", "dev", "--state-dir", Path(folder) / "s", "--config", path)
            assert done.code == 2 and words in done.err and done.err.count("\n") == 1, done


def taken():
    """an address that is in use ends the start of a daemon, which leaves its jobs alone"""
    with dev() as (_, at), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "titan.toml"
        path.write_text(PLAIN.replace(":0", f":{at[1]}"))
        done = command(BIN / "titand", "dev", "--state-dir", Path(folder) / "s", "--config", path)
        assert done.code == 6 and f"127.0.0.1:{at[1]}" in done.err and "[http]" in done.err, done


def hostile():
    """long heads, bodies, other methods, connections that hold their place: each gets a 4xx or is closed, and others go on being served"""
    with dev() as (d, at):
        for data, first in ((b"GET /healthz HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 65536 + b"\r\n\r\n", "HTTP/1.1 431"),
                            (b"GET /" + b"a" * 65536 + b" HTTP/1.1\r\nHost: h\r\n\r\n", "HTTP/1.1 414"),
                            (b"POST /healthz HTTP/1.1\r\nHost: h\r\nContent-Length: 10000000\r\n\r\n" + b"a" * 100000, "HTTP/1.1 405"),
                            (b"GET /healthz HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nabcde", "HTTP/1.1 400"),
                            (b"GET /healthz HTTP/1.1\r\nHost: h\r\nContent-Length: -5\r\n\r\n", "HTTP/1.1 400"),
                            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/1.1 ")):
            said = raw(at, data)
            assert said.startswith(first) or said == "", (data[:40], said[:80])
        with contextlib.ExitStack() as held:
            for _ in range(300):  # of one address 256 stay
                held.enter_context(socket.create_connection(at, timeout=deadline())).sendall(b"GET /hea")
            until("connections are refused", lambda: "connections are refused" in d.log())
            assert not d.ctl("version").code
            assert d.process.poll() is None
        until("there is room again", lambda: answers(at))


def answers(at):
    with contextlib.suppress(OSError, http.client.HTTPException):
        return get(at, "/healthz")[0] == 200
    return False


def stops():
    """a daemon that was told to stop says that it is not ready until it is gone"""
    with dev() as (d, at), contextlib.closing(http.client.HTTPConnection(*at, timeout=deadline())) as c:
        c.request("GET", "/readyz")
        assert c.getresponse().read() == b"ready\n"
        d.process.send_signal(signal.SIGTERM)
        assert d.process.wait(deadline()) == 0
        assert not answers(at)


if __name__ == "__main__":
    tap(health, readiness, encrypted, unsafe, taken, hostile, stops)
