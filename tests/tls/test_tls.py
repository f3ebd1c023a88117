#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""TLS with real things: openssl's client and grpcio against a coordinator; certificates of every kind, join tokens,
rotation under calls, revocation."""
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from pki import BIN, SHIM, Coordinator, command, ctl, messages, shifted, until  # noqa: E402
from titan import SOURCE, deadline, headers_text, overrides, tap, worker_pids  # noqa: E402

DAY = 86400


def s_client(c, *args):
    done = subprocess.run(["openssl", "s_client", "-connect", c.tcp, "-alpn", "h2", "-servername", "localhost", *map(str, args)],
                          input=b"", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=deadline())
    return done.stdout.decode(errors="replace")


def openssl_client():
    """openssl's client: TLS 1.2 and 1.3 with h2, nothing older; plain text gets no answer"""
    if not shutil.which("openssl"):
        return "no openssl"
    with Coordinator() as c:
        ca = c.state / "pki/ca.pem"
        for version in ("-tls1_2", "-tls1_3"):
            said = s_client(c, "-CAfile", ca, "-verify_return_error", "-verify_hostname", "localhost", version)
            assert "Verify return code: 0 (ok)" in said and "ALPN protocol: h2" in said, said
        said = s_client(c, "-CAfile", ca, "-tls1_1", "-cipher", "ALL:@SECLEVEL=0")
        assert "Verify return code: 0" not in said or "Cipher is (NONE)" in said, said
        said = s_client(c, "-CAfile", ca, "-verify_return_error", "-verify_hostname", "other.example")
        assert "ostname mismatch" in said, said
        # HTTP/2 in the clear: the connection ends, and nothing but a TLS alert comes back.
        with socket.create_connection(("127.0.0.1", c.port), deadline()) as plain:
            plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            plain.settimeout(deadline())
            back = b""
            try:
                while piece := plain.recv(4096):
                    back += piece
            except ConnectionResetError:
                pass
            assert b"\x00\x00\x00\x04" not in back and len(back) < 64, back


def channel(c, folder=None, ca=None, host="localhost"):
    grpc = World.grpc
    own = [(folder / name).read_bytes() for name in ("key.pem", "cert.pem")] if folder else [None, None]
    credentials = grpc.ssl_channel_credentials((ca or c.state / "pki/ca.pem").read_bytes(), *own)
    return grpc.secure_channel(f"{host}:{c.port}", credentials,
                               options=[("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)])


def call(channel, path, request, reply, **options):
    with channel:
        return channel.unary_unary(path, request_serializer=request.SerializeToString,
                                   response_deserializer=reply.FromString)(request, timeout=deadline(), **options)


def version(c, *args, **options):
    return call(channel(c, *args, **options), "/titan.v1.Titan/Version", World.api.VersionRequest(), World.api.VersionResponse)


def refused(code, what, *words):
    try:
        what()
    except World.grpc.RpcError as error:
        assert error.code() == code, f"{error.code()} instead of {code}: {error.details()}"
        assert all(w in error.details() for w in words), error.details()
        return
    raise AssertionError(f"not refused: {words}")


def certificates():
    """grpcio with a right, a foreign, an expired, a future and a revoked certificate, and against a server of another CA"""
    if not World.grpc:
        return World.why
    if not SHIM.exists():
        return f"{SHIM} is not built (make tests)"
    grpc = World.grpc
    old = {}
    with Coordinator() as c:
        assert version(c, c.user("eva")).api == "titan.v1"
        other = c.dir / "other"
        ctl("pki", "init", "--state-dir", other)
        gone = grpc.StatusCode.UNAVAILABLE
        refused(gone, lambda: version(c, c.user("foreign", ca=other / "pki")))
        refused(gone, lambda: version(c, c.user("eva"), ca=other / "pki/ca.pem"))
        # The pairs are written before the command looks at them with its own, wrong clock.
        for name, days in (("expired", -100), ("future", 30)):
            old[name] = c.user(name, **shifted(c.dir, days * DAY))
            refused(gone, lambda: version(c, old[name]))
            # titanctl says what is wrong with it before anything is sent.
            said = command(BIN / "titanctl", "-s", f"localhost:{c.port}", "list", *(
                x for k in ("ca", "cert", "key") for x in (f"--tls-{k}", old[name] / f"{k}.pem")))
            assert said.code == 5 and "clock" in said.err and f"{name}/cert.pem" in said.err, said.err

        eva = channel(c, c.user("eva"))
        ask = eva.unary_unary("/titan.v1.Titan/Version", request_serializer=World.api.VersionRequest.SerializeToString,
                              response_deserializer=World.api.VersionResponse.FromString)
        assert ask(World.api.VersionRequest(), timeout=deadline())
        watch = eva.unary_stream("/titan.v1.Titan/WatchEvents", request_serializer=World.api.WatchEventsRequest.SerializeToString,
                                 response_deserializer=World.api.Event.FromString)(World.api.WatchEventsRequest(follow=True), timeout=deadline())
        c.join_file("n1", "--address", "head:1")
        assert next(watch).type == "node.invited"
        assert "user/eva: revoked" in c.ctl("pki", "revoke", "user/eva", "--reason", "left")
        # A stream that is open, a call on the connection that stands, on a new one; over a restart too.
        refused(grpc.StatusCode.PERMISSION_DENIED, lambda: list(watch), "revoked")
        refused(grpc.StatusCode.PERMISSION_DENIED, lambda: ask(World.api.VersionRequest(), timeout=deadline()), "revoked", "user/eva")
        refused(grpc.StatusCode.PERMISSION_DENIED, lambda: version(c, c.dir / "eva"), "revoked")
        assert c.counter("cert_revoked") >= 2
        port = c.tcp
        c.stop("c")
        c.start(port)
        refused(grpc.StatusCode.PERMISSION_DENIED, lambda: version(c, c.dir / "eva"), "revoked")
        assert version(c, c.user("max")).api == "titan.v1"
        # titanctl over TLS: by flags, by the environment, from the default folder.
        files = {k: c.dir / "max" / f"{k}.pem" for k in ("ca", "cert", "key")}
        target = f"localhost:{c.port}"
        flags = [x for k, path in files.items() for x in (f"--tls-{k}", path)]
        assert "titan.v1" in ctl("-s", target, *flags, "version")
        assert "titan.v1" in ctl("-s", target, "version", env={**os.environ, **{f"TITAN_TLS_{k.upper()}": str(v) for k, v in files.items()}})
        (c.dir / "home").mkdir()
        shutil.copytree(c.dir / "max", c.dir / "home/titan")
        assert "titan.v1" in ctl("-s", target, "version", env={**os.environ, "XDG_CONFIG_HOME": str(c.dir / "home")})
        wrong = command(BIN / "titanctl", "-s", target, "--tls-ca", other / "pki/ca.pem", "version")
        assert wrong.code == 4 and "TLS" in wrong.err, wrong.err


def names():
    """a node's certificate speaks for its own node only, and renews its own name"""
    if not World.grpc:
        return World.why
    grpc, agent, enrol = World.grpc, World.agent, World.enrol
    with Coordinator() as c:
        ctl("pki", "node", "n8", "--pki-dir", c.state / "pki", "--out", c.dir / "n8")

        def hello(node):
            with channel(c, c.dir / "n8") as ch:
                m = agent.AgentMessage(registration=agent.AgentRegistration(node=node, slots=1, device="cpu", address="127.0.0.1", incarnation=7))
                stream = ch.stream_stream("/titan.internal.Coordinator/Session", request_serializer=agent.AgentMessage.SerializeToString,
                                          response_deserializer=agent.CoordinatorMessage.FromString)
                done = threading.Event()

                def say():
                    yield m
                    done.wait(deadline())
                try:
                    return next(stream(say(), timeout=deadline()))
                finally:
                    done.set()
        refused(grpc.StatusCode.PERMISSION_DENIED, lambda: hello("n9"), "n9", "spiffe://titan/node/n8")
        assert c.counter("cert_name") == 1 and not c.nodes()
        until("it is on record", lambda: "registration of node n9: the certificate is that of spiffe://titan/node/n8" in c.ctl("audit"), 5)
        assert hello("n8").HasField("ack")
        request = subprocess.run(["openssl", "req", "-new", "-key", c.dir / "n8/key.pem", "-subj", "/CN=n9"], stdout=subprocess.PIPE,
                                 check=True).stdout
        renew = "/titan.internal.Enrolment/Renew"
        reply = call(channel(c, c.dir / "n8"), renew, enrol.RenewRequest(request=request), enrol.EnrollResponse)
        text = subprocess.run(["openssl", "x509", "-noout", "-text"], input=reply.certificate, stdout=subprocess.PIPE, check=True).stdout
        assert b"spiffe://titan/node/n8" in text and b"n9" not in text, text
        denied = grpc.StatusCode.PERMISSION_DENIED
        refused(denied, lambda: call(channel(c, c.user("eva")), renew, enrol.RenewRequest(request=request), enrol.EnrollResponse))
        refused(denied, lambda: call(channel(c), renew, enrol.RenewRequest(request=request), enrol.EnrollResponse))
        refused(denied, lambda: call(channel(c), "/titan.internal.Enrolment/Enroll",
                                     enrol.EnrollRequest(node="n1", token="titan_" + "0" * 16 + "_" + "0" * 64, request=request),
                                     enrol.EnrollResponse), "no such join token")
        for junk in (b"", b"x" * 9000, request.replace(b"A", b"B")):
            refused(grpc.StatusCode.INVALID_ARGUMENT,
                    lambda: call(channel(c, c.dir / "n8"), renew, enrol.RenewRequest(request=junk), enrol.EnrollResponse))


def join_tokens():
    """a join file is good for its node, once, for a while; in time the certificate renews itself under the session"""
    with Coordinator("[tls]\nnode_life_s = 8\n") as c:
        path = c.join_file("n1", "--address", f"localhost:{c.port}")
        assert path.stat().st_mode & 0o777 == 0o600
        c.spawn("n1", "agent", "--join", path)
        until("n1 is ready", lambda: c.nodes() == {"n1": "ready"}, 10)
        assert (c.dir / "n1/tls/key.pem").stat().st_mode & 0o777 == 0o600

        def agent(name, file, *args):
            return command(BIN / "titand", "agent", "--allow-root", "--join", file, "--state-dir", c.dir / name, *args, timeout=20)
        def found():
            (node,) = json.loads(command(BIN / "titanctl", "-s", c.unix, "-o", "json", "admin", "check").out)["nodes"]
            return {f["what"]: f["text"] for f in node["findings"]}
        until("its heartbeats arrive as datagrams", lambda: found()["datagrams"] == "heartbeats arrive as datagrams", 10)
        used = agent("thief", path)
        assert used.code == 5 and "used already" in used.err, used.err
        open_file = c.dir / "open.join"
        shutil.copy(path, open_file)
        open_file.chmod(0o644)
        readable = agent("a", open_file)
        assert readable.code == 5 and "chmod 600" in readable.err, readable.err
        text = c.join_file("n2", "--address", f"localhost:{c.port}").read_text()
        stolen = c.dir / "stolen.join"
        stolen.write_text(text.replace('node = "n2"', 'node = "n3"'))
        stolen.chmod(0o600)
        other = agent("b", stolen)
        assert other.code == 5 and "for node n2" in other.err, other.err
        short = c.join_file("n4", "--ttl", "1s", "--address", f"localhost:{c.port}")
        until("the token has expired", lambda: "expired" in agent("d", short, "--node", "else").err or agent("e", short).code == 0, 10)
        named = agent("f", c.join_file("n5", "--address", f"localhost:{c.port}"), "--node", "n6")
        assert named.code == 5 and "n6" in named.err and "n5" in named.err, named.err
        assert len(c.events("node.enrol_refused")) >= 3
        # It renews when two thirds of its life are over; the session is the one it began with, until that one's certificate expires.
        until("n1 has renewed twice", lambda: c.log("n1").count("certificate renewed") >= 2, 20)
        assert not [line for line in c.log("n1").splitlines() if "lost" in line and "n1 expired at" not in line], c.log("n1")
        until("n1 is ready", lambda: c.nodes()["n1"] == "ready")
        # Its first certificate has expired by now: a new session takes the one that was renewed.
        c.stop("c")
        c.start(f"127.0.0.1:{c.port}")
        until("n1 is ready again", lambda: c.nodes() == {"n1": "ready"}, 20)
        # Away for longer than its certificate's life: it says so, and joins anew.
        c.stop("n1")
        until("the certificate has expired", lambda: subprocess.run(
            ["openssl", "x509", "-checkend", "0", "-noout", "-in", c.dir / "n1/tls/cert.pem"], stdout=subprocess.DEVNULL).returncode, 10)
        late = command(BIN / "titand", "agent", "--allow-root", "--coordinator", f"localhost:{c.port}", "--state-dir", c.dir / "n1", timeout=20)
        assert late.code == 5 and "expired at" in late.err and "titanctl node join" in late.err, late.err
        c.spawn("n1", "agent", "--join", c.join_file("n1", "--address", f"localhost:{c.port}", name="again"))
        until("n1 is back", lambda: c.nodes()["n1"] == "ready", 10)


def lost_answer():
    """an answer to Enroll that never came: the node asks again with the key it has kept, and only with that"""
    if not World.grpc:
        return World.why
    with Coordinator() as c:
        path = c.join_file("n1", "--address", f"localhost:{c.port}")
        token = next(line.split('"')[1] for line in path.read_text().splitlines() if line.startswith("token"))
        tls = c.dir / "n1/tls"
        tls.mkdir(parents=True)
        key = tls / f"key-{token.split('_')[1]}.pem"
        subprocess.run(["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key],
                       stderr=subprocess.DEVNULL, check=True)
        key.chmod(0o600)
        request = subprocess.run(["openssl", "req", "-new", "-key", key, "-subj", "/CN=n1"], stdout=subprocess.PIPE, check=True).stdout
        first = call(channel(c), "/titan.internal.Enrolment/Enroll",
                     World.enrol.EnrollRequest(node="n1", token=token, request=request), World.enrol.EnrollResponse)
        assert b"BEGIN CERTIFICATE" in first.certificate
        kept = key.read_bytes()
        c.spawn("n1", "agent", "--join", path)
        until("n1 is ready", lambda: c.nodes() == {"n1": "ready"}, 10)
        assert (tls / "key.pem").read_bytes() == kept and not key.exists()
        assert len(c.events("node.enrolled")) == 2 and not c.events("node.enrol_refused")


def rotation():
    """the coordinator's certificate is replaced every second under calls without an error, and in halves"""
    if not World.grpc:
        return World.why
    with Coordinator() as c:
        folder = c.user("eva")
        stop, calls, errors = threading.Event(), [0], []

        def caller():
            while not stop.is_set():
                try:
                    version(c, folder)
                    calls[0] += 1
                except World.grpc.RpcError as error:
                    errors.append(error.details())
        threads = [threading.Thread(target=caller) for _ in range(3)]
        for t in threads:
            t.start()
        serials = set()
        for _ in range(5):
            ctl("pki", "coordinator", "--state-dir", c.state)
            begun = calls[0]
            until("calls are made with it", lambda: calls[0] > begun + 5, 20)
            served = subprocess.run(["openssl", "x509", "-noout", "-serial"], input=s_client(c).encode(), stdout=subprocess.PIPE).stdout
            serials.add(served)
        # Half of a rotation: the new key is there, its certificate is not. The old pair serves.
        key = c.state / "tls/key.pem"
        before = key.read_bytes()
        fresh = subprocess.run(["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout
        key.write_bytes(fresh)
        begun = calls[0]
        until("calls go on", lambda: calls[0] > begun + 5, 20)
        key.write_bytes(before)
        stop.set()
        for t in threads:
            t.join()
        print(f"# {calls[0]} calls, each with a connection of its own")
        assert not errors, errors[:3]
        assert len(serials) == 5, serials


def own_certificate():
    """a coordinator renews its own certificate when two thirds of its life are over, or all of it, also at its start"""
    if not SHIM.exists():
        return f"{SHIM} is not built (make tests)"
    c = Coordinator()
    ctl("pki", "init", "--state-dir", c.state, "--name", "head")
    pem = c.state / "tls/cert.pem"
    for days in (-21, -45):
        # Its file is written before the command looks at it with its own, wrong clock.
        command(BIN / "titanctl", "pki", "coordinator", "--state-dir", c.state, env={**os.environ, **shifted(c.dir, days * DAY)})
        before = pem.read_bytes()
        try:
            c.start()
            assert pem.read_bytes() != before and "certificate renewed" in c.log("c"), c.log("c")
            shown = json.loads(ctl("-o", "json", "pki", "show", pem))
            assert shown["name"] == "spiffe://titan/coordinator/head" and "localhost" in shown["hosts"], shown
            said = s_client(c, "-CAfile", c.state / "pki/ca.pem", "-verify_return_error", "-verify_hostname", "localhost")
            assert "Verify return code: 0 (ok)" in said, said
        finally:
            c.stop("c")
    # Where the CA's key is kept elsewhere nothing is signed, and it says so.
    (c.state / "pki/ca.key").rename(c.dir / "ca.key")
    with c.started():
        done = command(BIN / "titanctl", "-s", c.unix, "node", "join", "n1", timeout=20)
        assert done.code == 3 and "signs no certificates" in done.err, done.err


def revoked_node():
    """a revoked node is lost at once and stays out; the run goes on without it; it joins again with a new key"""
    with Coordinator() as c:
        for name in ("n1", "n2"):
            c.spawn(name, "agent", "--join", c.join_file(name, "--address", f"localhost:{c.port}"), "--slots", 1)
        until("both are ready", lambda: c.nodes() == {"n1": "ready", "n2": "ready"}, 10)
        keys = {"elastic.min_workers": 1, "elastic.max_workers": 2, "training.global_batch_size": 2, "training.local_batch_size": 1,
                "device.threads": 1, "training.steps": 1000000, "training.dataset_path": headers_text(c.dir / "text")}
        job = c.ctl("submit", SOURCE / "recipes/tiny.toml", *overrides(keys)).strip()

        def training(world):
            s = json.loads(c.ctl("-o", "json", "status", job))
            assert s["state"] not in ("FAILED", "COMPLETED", "CANCELLED"), s
            return s["state"] == "RUNNING" and s["world_size"] == world and s["step"] > 5 and s
        until("two train", lambda: training(2), 60)
        key = (c.dir / "n2/tls/key.pem").read_bytes()
        assert "its session is over" in c.ctl("node", "revoke", "n2", "--reason", "stolen")
        until("n2 is lost", lambda: c.nodes()["n2"] == "lost", 5)
        until("its workers have ended", lambda: not worker_pids(c.dir / "n2"), 5)
        before = until("one trains", lambda: training(1), 30)["step"]
        until("it is refused", lambda: c.counter("cert_revoked") >= 2, 10)
        assert c.nodes()["n2"] == "lost" and "revoked" in c.log("n2")
        assert [e["message"] for e in c.events("certificate.revoked")] == ["spiffe://titan/node/n2 is revoked: stolen"]
        c.stop("n2")
        tls, used = c.dir / "n2/tls", c.dir / "n2.join"
        (tls / "key.pem").rename(tls / f"key-{(tls / 'joined').read_text().strip()}.pem")  # as if its certificate had never come
        (tls / "joined").unlink(), (tls / "cert.pem").unlink()
        again = command(BIN / "titand", "agent", "--join", used, "--slots", 1, "--allow-root", "--state-dir", c.dir / "n2")
        assert again.code and "no such join token" in again.err, again
        c.spawn("n2", "agent", "--join", c.join_file("n2", "--address", f"localhost:{c.port}", name="again"), "--slots", 1)
        until("n2 is back", lambda: c.nodes()["n2"] == "ready", 10)
        assert (c.dir / "n2/tls/key.pem").read_bytes() != key
        until("two train again", lambda: (s := training(2)) and s["step"] > before, 60)
        c.ctl("cancel", job)


def revoked_meanwhile():
    """a backup that is being sent and a check of nodes that waits end when what they were asked for with is revoked"""
    if not World.grpc:
        return World.why
    api, same = World.api, lambda m: m.SerializeToString()
    calm = "[detection]\nsuspect_ms = 20000\nnode_timeout_ms = 20000\naway_ms = 20000\n"
    with Coordinator(f'[authorization]\nadmins = ["user:eva"]\n{calm}') as c:
        c.stop("c")
        store = sqlite3.connect(c.state / "titan.db")  # more than waits between server and client
        for sql in ("CREATE TABLE filler (x BLOB)", f"INSERT INTO filler VALUES (zeroblob({48 << 20}))", "DROP TABLE filler"):
            store.execute(sql)
        store.commit()
        store.close()
        c.start()
        n1 = c.spawn("n1", "agent", "--join", c.join_file("n1", "--address", f"localhost:{c.port}"))
        until("the node is ready", lambda: c.nodes() == {"n1": "ready"}, 20)
        token = c.ctl("token", "create", "ci", "--role", "admin").strip()
        for folder, meta, revoke in ((c.user("eva"), [], ("pki", "revoke", "user/eva")),
                                     (None, [("authorization", f"Bearer {token}")], ("token", "revoke", token.split("_")[1]))):
            with channel(c, folder) as ch:
                backup = ch.unary_stream("/titan.v1.Titan/Backup", request_serializer=same, response_deserializer=api.BackupChunk.FromString)(
                    api.BackupRequest(), timeout=deadline(), metadata=meta)
                assert next(backup).total_bytes > 48 << 20
                n1.send_signal(signal.SIGSTOP)
                try:
                    check = ch.unary_unary("/titan.v1.Titan/CheckNodes", request_serializer=same, response_deserializer=api.CheckNodesResponse.FromString).future(
                        api.CheckNodesRequest(), timeout=deadline(), metadata=meta)
                    ch.unary_unary("/titan.v1.Titan/Version", request_serializer=same)(api.VersionRequest(), timeout=deadline(), metadata=meta)  # it has come
                    c.ctl(*revoke)
                    refused(World.grpc.StatusCode.PERMISSION_DENIED, check.result, "revoked")
                finally:
                    n1.send_signal(signal.SIGCONT)
                refused(World.grpc.StatusCode.PERMISSION_DENIED, lambda: list(backup), "revoked")
        # Another one can be made.
        c.ctl("admin", "backup", c.dir / "again.db")


class OtherCa:
    """openssl's: a root, and an intermediate that signs. What it signs has the intermediate in its file, the trusted file only the root."""

    def __init__(self, folder):
        self.dir = folder
        folder.mkdir()
        self.key(folder / "root.key"), self.key(folder / "middle.key")
        subprocess.run(["openssl", "req", "-x509", "-new", "-key", folder / "root.key", "-subj", "/CN=Example Root", "-days", "3650", "-out",
                        folder / "ca.pem"], check=True, stderr=subprocess.DEVNULL)
        self.sign(folder / "middle.key", "ca.pem", "root.key", folder / "middle.pem", "basicConstraints=critical,CA:TRUE,pathlen:0\n"
                  "keyUsage=critical,keyCertSign,cRLSign\n", days=1000)

    def key(self, path):
        subprocess.run(["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", path], check=True,
                       stderr=subprocess.DEVNULL)
        path.chmod(0o600)

    def sign(self, key, ca, ca_key, out, extensions, days=30):
        request = subprocess.run(["openssl", "req", "-new", "-key", key, "-subj", "/CN=example"], check=True, stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL).stdout
        more = self.dir / "extensions"
        more.write_text(extensions)
        subprocess.run(["openssl", "x509", "-req", "-CA", self.dir / ca, "-CAkey", self.dir / ca_key, "-CAcreateserial", "-days", str(days),
                        "-extfile", more, "-out", out], input=request, check=True, stderr=subprocess.DEVNULL)

    def pair(self, name, hosts=""):
        """A key and a certificate with its chain, in place of what is there: first the certificate, then the key, as two renames."""
        out = self.dir / name.replace("/", "-")
        out.mkdir(exist_ok=True)
        self.key(out / "new.key")
        use = "serverAuth,clientAuth" if hosts else "clientAuth"
        self.sign(out / "new.key", "middle.pem", "middle.key", out / "leaf.pem", f"basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\n"
                  f"extendedKeyUsage={use}\nsubjectAltName=URI:spiffe://titan/{name}{hosts}\n")
        (out / "new.pem").write_text((out / "leaf.pem").read_text() + (self.dir / "middle.pem").read_text())
        (out / "new.pem").rename(out / "cert.pem")
        (out / "new.key").rename(out / "key.pem")
        return out

    def config(self, pair):
        return f'[tls]\nca = "{self.dir}/ca.pem"\ncertificate = "{pair}/cert.pem"\nkey = "{pair}/key.pem"\n'


def serial(text):
    return subprocess.run(["openssl", "x509", "-noout", "-serial"], input=text.encode(), stdout=subprocess.PIPE, check=True).stdout


def other_ca():
    """openssl's CA with an intermediate, by files: coordinator, agent and client speak by them, and they are replaced under a run"""
    if not shutil.which("openssl"):
        return "no openssl"
    hosts = ",DNS:localhost,IP:127.0.0.1"
    c = Coordinator()
    ca = OtherCa(c.dir / "ca")
    c.config = ca.config(ca.pair("coordinator/head", hosts))
    with c.started():
        assert [f.name for f in (c.state / "pki").iterdir()] == ["backup.key"] and not (c.state / "tls").exists()
        assert "Verify return code: 0 (ok)" in s_client(c, "-CAfile", ca.dir / "ca.pem", "-verify_hostname", "localhost")

        def agent():
            (c.dir / "n1.toml").write_text(ca.config(ca.pair("node/n1")))
            c.spawn("n1", "agent", "--coordinator", f"localhost:{c.agents.rsplit(':', 1)[1]}", "--node", "n1", "--address", "127.0.0.1",
                    "--config", c.dir / "n1.toml", "--slots", 1)
            until("n1 is ready", lambda: c.nodes() == {"n1": "ready"}, 20)

        def remote(pair, *args, trusts=ca):
            flags = [x for name, path in (("ca", trusts.dir / "ca.pem"), ("cert", pair / "cert.pem"), ("key", pair / "key.pem"))
                     for x in (f"--tls-{name}", path)]
            return command(BIN / "titanctl", "-s", f"localhost:{c.port}", *flags, *args)
        agent()
        keys = {"elastic.max_workers": 1, "training.steps": 1000000, "device.threads": 1, "training.dataset_path": headers_text(c.dir / "text")}
        eva = ca.pair("user/eva")
        done = remote(eva, "list")
        assert done.code == 0, done.err
        # Eva has no uid here, so her data set lies in no root: the run is the daemon's user's.
        job = c.ctl("submit", SOURCE / "recipes/tiny.toml", *overrides(keys)).strip()

        def step():
            s = json.loads(remote(eva, "-o", "json", "status", job).out)
            assert s["state"] not in ("FAILED", "COMPLETED", "CANCELLED"), s
            return s["step"]
        until("it trains", lambda: step() > 2, 60)
        before, epoch = serial(s_client(c)), json.loads(c.ctl("-o", "json", "status", job))["epoch"]
        # Another CA of the same names may nothing, either way.
        foreign = OtherCa(c.dir / "foreign")
        assert remote(foreign.pair("user/eva"), "list").code != 0 and remote(eva, "list", trusts=foreign).code != 0
        # Renewal: all three pairs are others now. Connections that stand go on; what comes anew is by the new ones.
        ca.pair("coordinator/head", hosts), ca.pair("node/n1"), ca.pair("user/eva")
        until("the new one is served", lambda: serial(s_client(c)) != before, 20)
        now = step()
        until("the run makes steps", lambda: step() > now, 30)
        # The coordinator starts again, so the agent connects with the files there are.
        c.stop("c")
        c.start(f"127.0.0.1:{c.port}")
        until("n1 is ready again", lambda: c.nodes() == {"n1": "ready"}, 30)
        now = step()
        until("the run makes steps over that", lambda: step() > now, 30)
        assert json.loads(c.ctl("-o", "json", "status", job))["epoch"] == epoch
        assert "certificate not renewed" not in c.log("c") + c.log("n1")
        # What is revoked is refused, whatever CA signed it.
        assert "user/eva: revoked" in c.ctl("pki", "revoke", "user/eva")
        gone = remote(eva, "list")
        assert gone.code == 5 and "revoked" in gone.err, (gone.code, gone.err)
        c.ctl("cancel", job)


class World:
    made, why = messages()
    grpc, api, agent, enrol = made or (None, None, None, None)


if __name__ == "__main__":
    tap(openssl_client, other_ca, certificates, names, join_tokens, lost_answer, rotation, own_certificate, revoked_node,
        revoked_meanwhile)
