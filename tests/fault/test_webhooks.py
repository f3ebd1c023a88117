#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Events by POST, against a real HTTP server: in order, signed, until they are taken, over the end of the coordinator; servers that refuse, hang,
answer too much, redirect or have another certificate cost the others nothing."""
import contextlib
import ctypes.util
import hashlib
import hmac
import http.server
import json
import os
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / p) for p in ("support", "tls", "security")]
from test_http import PLAIN, get, place  # noqa: E402
from titan import CALM, SOURCE, Daemon, deadline, overrides, store_copy, tap, until  # noqa: E402

if not ctypes.util.find_library("curl"):
    print("1..1\nok 1 - webhooks # SKIP no libcurl.so.4 (Debian's libcurl4)")
    sys.exit(0)

SECRET = b"0123456789abcdef0123456789abcdef"
# Larger than all nodes together: such a job waits, and is cancelled.
TOO_LARGE = {"elastic.min_workers": 64, "elastic.max_workers": 64, "training.global_batch_size": 128, "training.dataset_path": __file__}


class Receiver(http.server.ThreadingHTTPServer):
    """Keeps what it gets as (id, status, headers, body). answer(id, n): the status, or a function of the handler; n: how often this id was sent."""
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, answer=lambda number, n: 200, port=0, tls=None):
        self.got, self.answer, self.lock, self.connections = [], answer, threading.Lock(), []
        super().__init__(("127.0.0.1", port), Handler)
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls / "cert.pem", tls / "key.pem")
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.scheme = "https" if tls else "http"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self, host="127.0.0.1"):
        return f"{self.scheme}://{host}:{self.server_port}/hook"

    def taken(self):
        """Ids that were answered with 2xx, in the order of the answers."""
        with self.lock:
            return [number for number, status, _, _ in self.got if status == 200]

    def sent(self):
        with self.lock:
            return [number for number, _, _, _ in self.got]

    def close(self):
        self.shutdown()
        self.server_close()
        for connection in self.connections:  # those that are kept alive, too
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def process_request(self, request, client_address):
        self.connections.append(request)
        super().process_request(request, client_address)

    def handle_error(self, *_):
        pass  # a client that goes is part of the tests


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        server, body = self.server, self.rfile.read(int(self.headers["Content-Length"]))
        number = int(self.headers["Titan-Event-Id"])
        with server.lock:
            n = 1 + sum(g[0] == number for g in server.got)
        status = server.answer(number, n)
        with server.lock:
            server.got.append((number, status if isinstance(status, int) else 0, dict(self.headers), body))
        if isinstance(status, int):
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            status(self)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def coordinator(**hooks):
    """titand dev with these endpoints: {name: keys}."""
    folder = Path(tempfile.mkdtemp(prefix="titan-webhooks-"))
    (folder / "secret").write_bytes(SECRET + b"\n")
    os.chmod(folder / "secret", 0o600)
    write(folder, hooks)
    d = Daemon(folder / "s", "--config", folder / "titan.toml")
    d.folder = folder
    try:
        with d:
            yield d
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write(folder, hooks):
    text = PLAIN + CALM
    for name, keys in hooks.items():
        keys = {"name": name, "secret_file": str(folder / "secret"), "events": ["job.*"], **keys}
        text += "[[webhook]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in keys.items())
    (folder / "titan.toml").write_text(text)


def happen(d, jobs=1):
    """Events of a few jobs; returns the number of the last one."""
    for job in [d.submit("tiny", TOO_LARGE) for _ in range(jobs)]:
        d.ok("cancel", job)
    return wanted(d)[-1]


def wanted(d, like="job."):
    return [e["id"] for e in d.lines("events") if e["type"].startswith(like)]


def rows(d):
    """{endpoint: number of the last event that is stored as delivered}"""
    with store_copy(d.state / "titan.db") as db:
        return {key.split(":")[1]: value for key, value in db.execute("SELECT key, value FROM meta WHERE key GLOB 'webhook:*'")}


def metric(d, name, hook):
    text = get(place(d.state), "/metrics")[2]
    line = next((x for x in text.splitlines() if x.startswith(f'titan_webhook_{name}{{webhook="{hook}"}} ')), None)
    return float(line.split()[-1]) if line else None


def signed(headers, body, secret=SECRET):
    stamp = headers["Titan-Timestamp"]
    assert abs(int(stamp) - time.time()) < 3600, stamp
    return headers["Titan-Signature"] == "sha256=" + hmac.new(secret, stamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def order():
    """each event of the kinds asked for is sent once, in order, signed, byte for byte as titanctl prints it; an endpoint begins at its first start"""
    with contextlib.closing(Receiver()) as r, coordinator(a={"url": r.url()}) as d:
        last = happen(d, 5)
        until("all are there", lambda: last in r.taken())
        printed = {json.loads(line)["id"]: line for line in d.ok("-o", "json", "events").splitlines()}
        assert r.sent() == wanted(d) and len(r.sent()) >= 10, (r.sent(), wanted(d))
        for number, _, headers, body in r.got:
            assert body.decode() == printed[number], (body, printed[number])
            assert signed(headers, body) and headers["Content-Type"] == "application/json" and "Titan-Gap" not in headers, headers
        until("the row is stored", lambda: rows(d) == {"a": last})
        assert metric(d, "deliveries_total", "a") == len(r.sent()) and metric(d, "failures_total", "a") == 0 and metric(d, "lag_seconds", "a") == 0


def again():
    """an event is sent until it is taken: after answers 500 and 429, more than a refusal may have, and where nothing listens; order holds"""
    def answer(number, n):
        return 500 if n == 1 else 429 if n == 2 else 200
    with contextlib.closing(Receiver(answer)) as r, coordinator(a={"url": r.url()}) as d:
        last = happen(d)
        until("all are there", lambda: last in r.taken())
        assert r.taken() == wanted(d) and r.sent() == [i for i in wanted(d) for _ in range(3)], r.sent()
        port = r.server_port
        r.close()
        failed = metric(d, "failures_total", "a")
        last = happen(d)
        until("it is tried", lambda: metric(d, "failures_total", "a") >= failed + 5)  # more than REFUSED_TRIES
        assert metric(d, "lag_seconds", "a") > 0 and metric(d, "passed_over_total", "a") == 0
        with contextlib.closing(Receiver(port=port)) as later:
            until("all are there", lambda: last in later.taken())
            assert r.taken() + later.taken() == wanted(d)


def killed():
    """the coordinator is killed while it sends: nothing is lost, and what was stored as delivered is not sent again"""
    with contextlib.closing(Receiver()) as r, coordinator(a={"url": r.url()}) as d:
        d.submit("tiny", TOO_LARGE)
        for k in range(4):
            last = happen(d, 3)
            if k % 2:  # once it is at rest, and once in the middle
                until("the row is stored", lambda: rows(d)["a"] == last)
            else:
                until("some are there", lambda: r.taken())
            d.kill()
            before, stored = r.sent(), rows(d)["a"]
            d.start()
            last = happen(d)
            until("all are there", lambda: last in r.taken())
            later = r.sent()[len(before):]
            assert not [i for i in later if i <= stored], (before, stored, later)
            assert sorted(set(r.taken())) == wanted(d), (sorted(set(r.taken())), wanted(d))
            twice = [i for i in set(later) if i in before]
            assert len(twice) <= 1, twice  # the answer was there, the row was not


def hanging():
    """a server that does not answer costs neither the coordinator nor another endpoint anything; its tries end in time"""
    release = threading.Event()
    with contextlib.closing(Receiver(lambda number, n: lambda handler: release.wait(deadline()))) as bad, contextlib.closing(Receiver()) as good, \
            coordinator(bad={"url": bad.url(), "timeout_ms": 300}, good={"url": good.url()}) as d:
        last = happen(d, 5)
        until("the other has all", lambda: last in good.taken())
        until("it is tried again", lambda: metric(d, "failures_total", "bad") >= 3)
        assert set(bad.sent()) == {wanted(d)[0]} and good.taken() == wanted(d)
        assert "no answer" in d.log() or "timed out" in d.log().lower(), d.log()
        d.stop()  # in the middle of a try
        release.set()


def refused():
    """a receiver that refuses events is asked five times for each, then it is passed over; a redirect is a refusal, never followed"""
    def redirect(handler):
        handler.send_response(302)
        handler.send_header("Location", other.url())
        handler.send_header("Content-Length", "0")
        handler.end_headers()
    def first_refused(number, n):
        return 404 if number == (r.got[0][0] if r.got else number) else 200
    with contextlib.closing(Receiver()) as other, contextlib.closing(Receiver(first_refused)) as r, contextlib.closing(Receiver(lambda number, n: redirect)) as moved:
        with coordinator(a={"url": r.url()}, b={"url": moved.url()}) as d:
            last = happen(d)
            first = wanted(d)[0]
            until("the others are there", lambda: last in r.taken())
            assert r.sent() == [first] * 5 + wanted(d)[1:], r.sent()
            assert metric(d, "passed_over_total", "a") == 1 and "passed over" in d.log()
            until("one is passed over", lambda: metric(d, "passed_over_total", "b") >= 1)
            assert moved.sent()[:5] == [first] * 5 and not other.sent()


def too_much():
    """an answer without end is cut off, in its head and in its body; the status counts"""
    def head(handler):
        with contextlib.suppress(OSError):
            handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
            while True:
                handler.wfile.write(b"X: " + b"x" * 8000 + b"\r\n")

    def body(handler):
        with contextlib.suppress(OSError):
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while True:
                handler.wfile.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
    with contextlib.closing(Receiver(lambda number, n: body if number % 2 else head)) as r, coordinator(a={"url": r.url(), "timeout_ms": 60000}) as d:
        last = happen(d, 2)
        until("all were sent", lambda: last in r.sent())
        until("the row is stored", lambda: rows(d)["a"] == last)
        assert r.sent() == wanted(d) and metric(d, "failures_total", "a") == 0


def authority(folder, name):
    """A CA and, signed by it, the certificate of 127.0.0.1 and localhost."""
    at = folder / name
    at.mkdir()

    def run(*args):
        done = subprocess.run(["openssl", *map(str, args)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    (at / "ext").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    run("req", "-x509", *key, "-keyout", at / "ca.key", "-out", at / "ca.pem", "-days", 2, "-subj", f"/CN={name}")
    run("req", *key, "-keyout", at / "key.pem", "-out", at / "csr", "-subj", "/CN=127.0.0.1")
    run("x509", "-req", "-in", at / "csr", "-CA", at / "ca.pem", "-CAkey", at / "ca.key", "-CAcreateserial", "-days", 2, "-extfile", at / "ext", "-out", at / "cert.pem")
    return at


def certificates():
    """HTTPS: the server's certificate is checked against the endpoint's CA, else the system's; a proxy of the environment is not used"""
    if not shutil.which("openssl"):
        return "no openssl"
    folder = Path(tempfile.mkdtemp(prefix="titan-webhooks-ca-"))
    ours, theirs = authority(folder, "ours"), authority(folder, "theirs")
    os.environ.update(http_proxy="http://127.0.0.1:9", https_proxy="http://127.0.0.1:9", ALL_PROXY="http://127.0.0.1:9")
    try:
        with contextlib.closing(Receiver(tls=ours)) as good, contextlib.closing(Receiver(tls=theirs)) as bad, \
                coordinator(good={"url": good.url(), "ca": str(ours / "ca.pem")}, bad={"url": bad.url(), "ca": str(ours / "ca.pem")},
                            system={"url": good.url()}) as d:
            last = happen(d)
            until("all are there", lambda: last in good.taken())
            until("the others are tried", lambda: min(metric(d, "failures_total", x) for x in ("bad", "system")) >= 2)
            assert good.taken() == wanted(d) and not bad.sent() and len(good.sent()) == len(wanted(d))
            assert "certificate" in d.log(), d.log()
    finally:
        for name in ("http_proxy", "https_proxy", "ALL_PROXY"):
            os.environ.pop(name)
        shutil.rmtree(folder, ignore_errors=True)
    return None


def reloaded():
    """SIGHUP adds and takes out endpoints: one that stays goes on, a new one begins behind what was; a new secret counts from the next event on"""
    with contextlib.closing(Receiver()) as a, contextlib.closing(Receiver()) as b, coordinator(a={"url": a.url()}) as d:
        last = happen(d, 2)
        until("all are there", lambda: last in a.taken())
        write(d.folder, {"a": {"url": a.url()}, "b": {"url": b.url(), "events": ["jobs"]}})
        d.process.send_signal(signal.SIGHUP)
        until("it has begun", lambda: rows(d).get("b"))
        new = b"another secret of sixteen bytes"
        (d.folder / "secret").write_bytes(new)
        later = happen(d)
        until("all are there", lambda: later in a.taken() and later in b.taken())
        assert a.taken() == wanted(d) and b.taken() == [i for i in wanted(d, "job.state") if i > last], (b.taken(), last)
        assert all(signed(headers, body, new if number > last else SECRET) for number, _, headers, body in a.got)
        os.chmod(d.folder / "secret", 0o644)
        latest = happen(d)
        until("it is said", lambda: "every user may read it" in d.log())
        assert latest not in a.sent()
        os.chmod(d.folder / "secret", 0o640)
        until("all are there", lambda: latest in a.taken() and latest in b.taken())
        write(d.folder, {"b": {"url": b.url(), "events": ["jobs"]}})
        d.process.send_signal(signal.SIGHUP)
        until("it is forgotten", lambda: "a" not in rows(d))


def gap():
    """events that are not stored any more when the endpoint comes to them are told as a gap"""
    with contextlib.closing(Receiver()) as r, coordinator(a={"url": r.url()}) as d:
        port = r.server_port
        r.close()
        happen(d)
        until("it is tried", lambda: metric(d, "failures_total", "a") >= 1)
        stored = rows(d)["a"]
        seeds = ",".join(map(str, range(600)))  # more events than a start looks at again
        d.ok("submit", SOURCE / "recipes/tiny.toml", *overrides(TOO_LARGE), "--sweep", f"training.seed={seeds}")
        d.ok("cancel", "--all")
        d.stop()
        with contextlib.closing(sqlite3.connect(d.state / "titan.db")) as db:
            checked = db.execute("SELECT max(id) FROM events").fetchone()[0] - 1000
            db.execute("DELETE FROM events WHERE id < ?", (checked,))
            db.commit()
        with contextlib.closing(Receiver(port=port)) as later:
            d.start()
            last = happen(d)
            until("all are there", lambda: last in later.taken())
            first = later.got[0]
            assert first[2]["Titan-Gap"] == f"{stored + 1}-{checked - 1}", (first[2], stored, checked)
            assert all("Titan-Gap" not in headers for _, _, headers, _ in later.got[1:])
            assert "not stored any more" in d.log()


def looked_at():
    """titanctl admin check names the endpoint that is not reached and the secret that all may read; one that is well is ok"""
    with contextlib.closing(Receiver()) as good, contextlib.closing(Receiver()) as gone, \
            coordinator(good={"url": good.url()}, gone={"url": gone.url()}, told={"url": good.url(), "secret_file": __file__}) as d:
        gone.close()
        last = happen(d)
        until("it is tried", lambda: metric(d, "failures_total", "gone") >= 1 and last in good.taken())
        done = d.ctl("-o", "json", "admin", "check")
        rows = [f for n in json.loads(done.out)["nodes"] if n["node"] == "(coordinator)" for f in n["findings"] if f["what"] == "webhook"]
        found = {f["text"].split(",")[0]: f for f in rows}
        assert done.code == 7 and set(found) == {"good", "gone", "told"}, done
        assert not found["good"]["wrong"] and f"{len(good.taken())} events sent" in found["good"]["text"] and f"{good.server_port}/" not in str(rows), rows
        assert found["gone"]["wrong"] and "failed" in found["gone"]["text"] and found["told"]["wrong"] and "every user may read it" in found["told"]["text"], rows


tap(order, again, killed, hanging, refused, too_much, certificates, reloaded, gap, looked_at)
