#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A right that is taken away is gone at once, for callers that have prepared for it, too: every method is opened, its message held
back, the right taken away, the message sent. By token, by a user's certificate and by a node's; revoked, expired, the role taken away.

Each is done twice. As installed, all open calls of the identity end by themselves. With the failpoint api.review they stay open, and
what is asked when a message comes has to refuse it alone."""
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / d) for d in ("support", "tls", "attack")]
from titan import BIN, FP_BIN, SOURCE, command, deadline, headers_text, tap, until  # noqa: E402
import protocol  # noqa: E402
from protocol import HeldCall, version  # noqa: E402
from pki import Coordinator, shifted  # noqa: E402

ROLES = '[authorization]\nadmins = ["uid:0"%s]\n'
NODE_METHODS = {"Renew", "Session", "Version"}
DAY = 86400


class Held(Coordinator):
    """A coordinator of which ada is an admin, with a node and a job that waits."""

    def __init__(self, failpoints=None):
        super().__init__()
        self.review, self.failpoints = not failpoints, failpoints
        self.config = f'[storage]\ndata_roots = ["{self.dir}"]\n' + ROLES % ', "user:ada"'

    def spawn(self, name, *args, env=None):
        if name != "c" or not self.failpoints:
            return super().spawn(name, *args, env=env)
        with open(self.dir / "c.log", "a") as log:
            self.processes[name] = subprocess.Popen([FP_BIN / "titand", *map(str, args), "--state-dir", self.dir / name], stdout=log, stderr=log,
                                                    stdin=subprocess.DEVNULL, env={**os.environ, "TITAN_FAILPOINTS": self.failpoints})
        return self.processes[name]

    def __enter__(self):
        # A CA that is older than the certificates, of which some are a day old.
        made = command(BIN / "titanctl", "pki", "init", "--state-dir", self.state, "--name", "head", env={**os.environ, **shifted(self.dir, -2 * DAY)})
        assert made.code == 0, made.err
        self.start()
        self.target = f"localhost:{self.port}"
        self.spawn("w1", "agent", "--join", self.join_file("w1", "--address", self.target), "--slots", 1)
        until("w1 is ready", lambda: self.nodes() == {"w1": "ready"})
        self.text = headers_text(self.dir / "text")
        recipe = (SOURCE / "recipes/tiny.toml").read_text().replace("[training]", f'[training]\ndataset_path = "{self.text}"')
        self.recipe = recipe + "\n[elastic]\nmin_workers = 4\nmax_workers = 4\n" if "[elastic]" not in recipe else recipe
        (self.dir / "waits.toml").write_text(self.recipe)
        self.job = int(self.ctl("submit", self.dir / "waits.toml", "--set", "elastic.min_workers=4", "--set", "elastic.max_workers=4").split()[-1])
        self.other = self.made_token("victim", "user")[0]
        self.join_file("w2")
        self.join = self.json("node", "joins")["joins"][-1]["id"]
        return self

    def json(self, *args):
        return json.loads(self.ctl("-o", "json", *args))

    def made_token(self, name, role, ttl="1h"):
        made = self.json("token", "create", name, "--role", role, "--ttl", ttl)
        return made["id"], made["token"]

    def pair(self, kind, name, ends_in_s=None):
        """A certificate as channel() takes it; ends_in_s: made by a clock that is off, for a day."""
        out = self.dir / f"{name}-{len(list(self.dir.iterdir()))}"
        env = shifted(self.dir, ends_in_s - DAY) if ends_in_s else {}
        done = command(BIN / "titanctl", "pki", kind, name, "--pki-dir", self.state / "pki", "--out", out, "--days", 1, env={**os.environ, **env})
        assert done.code == 0, done.err
        return {"ca": out / "ca.pem", "cert": out / "cert.pem", "key": out / "key.pem"}

    def reload(self, *admins):
        path = self.dir / "c.toml"
        text = path.read_text()
        before = text[text.index("[authorization]"):].splitlines()[1]
        path.write_text(text.replace(before, (ROLES % "".join(f', "user:{a}"' for a in admins)).splitlines()[1]))
        n = self.log("c").count("config file reloaded")
        self.processes["c"].send_signal(signal.SIGHUP)
        until("the configuration is read", lambda: self.log("c").count("config file reloaded") > n)

    def stored(self):
        """What any of the calls would change."""
        events = [json.loads(line) for line in self.ctl("-o", "json", "audit").splitlines() if line.strip()]
        jobs = self.json("list")["jobs"]
        return {"jobs": [(j["job_id"] if "job_id" in j else j["id"], j["state"], j["reason"], j.get("wanted_min")) for j in jobs],
                "tokens": sorted((t["id"], t.get("revoked_at", "")) for t in self.json("token", "list")["tokens"]),
                "joins": sorted(j["id"] for j in self.json("node", "joins")["joins"]),
                "nodes": sorted((n["name"], n["state"]) for n in self.json("nodes")["nodes"]),
                "audit": [(e["type"], e["actor"], e["message"]) for e in events if e["type"] == "audit.ok" and e["actor"] not in ("root", "uid:0")],
                "revoked": len([e for e in events if e["type"] == "audit.ok" and "RevokeCertificate" in e["message"]])}

    def message(self, method):
        api = protocol.api
        if method == "Session":
            return protocol.hello("n1")
        if method == "Renew":
            done = subprocess.run(["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "/dev/null",
                                   "-subj", "/CN=n1"], capture_output=True, check=True)
            return protocol.enrol.RenewRequest(request=done.stdout)
        fields = {"Submit": {"recipe": (self.dir / "waits.toml").read_text()}, "DrainNode": {"node": "w1"}, "UndrainNode": {"node": "w1"},
                  "ForgetNode": {"node": "w1"}, "RemoveNode": {"node": "w1"}, "CreateToken": {"name": "evil", "role": "admin"}, "RevokeToken": {"id": self.other},
                  "JoinNode": {"node": "evil"}, "RevokeJoin": {"id": self.join}, "RevokeCertificate": {"name": "user/victim"},
                  "ResizeJob": {"workers": 5}}.get(method, {})
        message = type(protocol.request_of(method))(**fields)
        if "job_id" in message.DESCRIPTOR.fields_by_name and method not in ("WatchEvents",):
            message.job_id = self.job
        return message


CALLS = 0


def held(c, what, methods, tls, metadata, take_away, user):
    """False: the right was over before all calls were open."""
    global CALLS
    channel = protocol.channel(c.target, tls)
    with channel:
        calls = [HeldCall(channel, m, metadata) for m in methods]
        if version(channel, metadata) != "OK":  # behind those on its connection
            return False
        taken = take_away()
        before = c.stored()
        with protocol.channel(c.target, tls) as another:
            until(f"{what}: a new call is refused", lambda: (version(another, metadata) == "OK") == (taken is False))
        if c.review:
            for call in calls:
                assert call.ended.wait(deadline()), f"{what}: {call.method} goes on"
        for call in calls:
            call.send(c.message(call.method))
        for call in calls:
            assert call.ended.wait(deadline()), f"{what}: {call.method} was answered nothing"
        wrong = {call.method: (*call.result, call.answers) for call in calls if call.result[0] != "PERMISSION_DENIED" or call.answers}
        assert not wrong, f"{what}: {wrong}"
        CALLS += len(calls)
    assert c.stored() == before, f"{what}:\n{before}\n{c.stored()}"
    if not c.review:  # what came too late is on record, by its user and with the reason
        events = [json.loads(line) for line in c.ctl("-o", "json", "audit").splitlines() if line.strip()]
        late = [e for e in events if e["type"] == "audit.refused" and user in e["actor"]]
        assert len({e["detail"]["method"] for e in late}) >= len(methods) - 1, (what, late)
    return True


def until_held(c, what, methods, make, metadata_of, user):
    """Of a right that ends by itself: longer where this machine is slow."""
    ends_in = 4
    while True:
        tls, metadata, ended = make(ends_in)
        if held(c, what, methods, tls, metadata, ended, user):
            return
        ends_in *= 2
        assert ends_in < 1000, what


def every(failpoints=None):
    absent = protocol.missing()
    if absent:
        return absent
    users = [m for m in protocol.METHODS if m not in ("Enroll", "Renew")]
    with Held(failpoints) as c:
        ca = {"ca": c.state / "pki/ca.pem"}

        def bearer(token):
            return [("authorization", f"Bearer {token}")]

        def refused(tls, metadata):
            def check():
                with protocol.channel(c.target, tls) as another:
                    until("it has expired", lambda: version(another, metadata) != "OK")
            return check
        token_id, token = c.made_token("tina", "admin")
        assert held(c, "a revoked token", users, ca, bearer(token), lambda: c.ctl("token", "revoke", token_id), "tina (token")

        def short_token(seconds):
            text = c.made_token("tom", "admin", f"{seconds}s")[1]
            return ca, bearer(text), refused(ca, bearer(text))
        until_held(c, "an expired token", users, short_token, None, "tom (token")
        ada = c.pair("user", "ada")

        def fall():
            c.reload()
            return False  # she stays a user
        taken = [m for m in users if protocol.METHODS[m].containing_service.name == "Titan" and m in ADMIN_ONLY]
        watching = channel_of(c, ada)
        with watching[0]:
            if not failpoints:  # what an admin sees is not what she sees now
                watching[1].send(protocol.api.WatchEventsRequest(follow=True))
                until("ada watches", lambda: watching[1].answers)
            assert held(c, "a role that was taken away", taken, ada, None, fall, "user/ada")
            if not failpoints:
                assert watching[1].ended.wait(deadline())
                assert watching[1].result[0] == "PERMISSION_DENIED" and "a role of user/ada was taken away" in watching[1].result[1], watching[1].result
        c.reload("ada")
        assert held(c, "a revoked certificate", users, ada, None, lambda: c.ctl("pki", "revoke", "user/ada"), "user/ada")
        c.reload("ada", "eva")

        def short_user(seconds):
            pair = c.pair("user", "eva", seconds)
            return pair, None, refused(pair, None)
        until_held(c, "an expired certificate", users, short_user, None, "user/eva")

        def short_node(seconds):
            pair = c.pair("node", "n1", seconds)
            return pair, None, refused(pair, None)
        until_held(c, "a node's expired certificate", sorted(NODE_METHODS), short_node, None, "node/n1")
        node = c.pair("node", "n1")
        assert held(c, "a revoked node", sorted(NODE_METHODS), node, None, lambda: c.ctl("node", "revoke", "n1"), "node/n1")
        assert set(c.nodes()) == {"w1"}
        print(f"# {CALLS} calls were held")


def channel_of(c, tls):
    channel = protocol.channel(c.target, tls)
    return channel, HeldCall(channel, "WatchEvents", None)


ADMIN_ONLY = {"Backup", "CreateToken", "ListTokens", "RevokeToken", "JoinNode", "ListJoins", "RevokeJoin", "RevokeCertificate", "DrainNode",
              "UndrainNode", "ForgetNode", "RemoveNode", "CheckNodes", "Audit"}


def installed():
    """whatever is open ends when the right to it does"""
    return every()


def messages():
    """a message that comes too late is refused, and on record by its user's name, where nothing had ended its call"""
    return every("api.review=fail@1+")


def slow_submit():
    """a recipe that is looked at for long is not stored where the right was taken away meanwhile"""
    absent = protocol.missing()
    if absent:
        return absent

    with Held("api.review=fail@1+,submit.check=sleep:3000@2+") as c:
        ca = {"ca": c.state / "pki/ca.pem"}
        for _ in range(20):
            token_id, token = c.made_token("tina", "user")
            with protocol.channel(c.target, ca) as channel:
                call = HeldCall(channel, "Submit", [("authorization", f"Bearer {token}")])
                jobs = len(c.json("list")["jobs"])
                call.send(c.message("Submit"))
                assert version(channel, [("authorization", f"Bearer {token}")]) == "OK"
                c.ctl("token", "revoke", token_id)
                assert call.ended.wait(deadline())
            if call.result[0] == "OK":  # it was stored before: this machine is slow
                assert len(c.json("list")["jobs"]) == jobs + 1
                continue
            assert call.result[0] == "PERMISSION_DENIED" and "revoked at" in call.result[1], call.result
            assert len(c.json("list")["jobs"]) == jobs
            return
        raise AssertionError("no submit was under way when its token was revoked")


def at_once():
    """while a revocation is on its way into the store, nothing that comes by it gets behind it"""
    absent = protocol.missing()
    if absent:
        return absent
    with Held("store.commit=sleep:1500@30+") as c:
        ca, seen = {"ca": c.state / "pki/ca.pem"}, set()
        for i in range(20):
            if i % 2:
                victim, token = c.made_token("tina", "user")
                how, tls, metadata = "token", ca, [("authorization", f"Bearer {token}")]
            else:
                how, tls, metadata, victim = "pki", c.pair("user", f"eva{i}"), None, f"user/eva{i}"
            with protocol.channel(c.target, tls) as channel:
                assert version(channel, metadata) == "OK"
                revoking = subprocess.Popen([BIN / "titanctl", "-s", c.unix, how, "revoke", victim], stdout=subprocess.DEVNULL)
                until("a call is refused", lambda: version(channel, metadata) != "OK")
                listed = {t["id"] for t in c.json("token", "list")["tokens"] if t.get("revoked_at")}
                listed |= {e["message"].split()[0].removeprefix("spiffe://titan/") for e in c.events("certificate.revoked")}
                if victim not in listed:  # else it was stored, and this machine is slow
                    seen.add(how)
                assert revoking.wait(deadline()) == 0
            if len(seen) == 2:
                return
        raise AssertionError(f"before they were stored only revocations of {seen} counted")


def joins():
    """a join token can be listed and taken back; with a revoked node's none gets a certificate, however early it was prepared"""
    absent = protocol.missing()
    if absent:
        return absent
    with Held("api.review=fail@1+") as c:
        ca = {"ca": c.state / "pki/ca.pem"}

        def prepared(node):
            path = c.join_file(node, name=f"{node}-{len(list(c.dir.iterdir()))}")
            token = next(line.split('"')[1] for line in path.read_text().splitlines() if line.startswith("token"))
            channel = protocol.channel(c.target, ca)
            call = HeldCall(channel, "Enroll", None)
            assert version(channel, None) == "PERMISSION_DENIED"  # behind it; unauthenticated
            return channel, call, protocol.enrol.EnrollRequest(node=node, token=token, request=c.message("Renew").request)
        for take in (lambda: c.ctl("node", "unjoin", next(j["id"] for j in c.json("node", "joins")["joins"] if j["node"] == "n7")),
                     lambda: c.ctl("node", "revoke", "n7")):
            channel, call, request = prepared("n7")
            with channel:
                take()
                call.send(request)
                assert call.ended.wait(deadline())
                assert call.result[0] == "PERMISSION_DENIED" and "no such join token" in call.result[1], call.result
        assert not [j for j in c.json("node", "joins")["joins"] if j["node"] == "n7"]
        unknown = command(BIN / "titanctl", "-s", c.unix, "node", "unjoin", "0011223344556677")
        assert unknown.code == 4 or "there is no join token" in unknown.err, unknown
        # What a token has made is named when that is taken back: it stays good.
        token_id, token = c.made_token("tina", "admin")
        env = {**os.environ, "TITAN_TOKEN": token, "TITAN_TLS_CA": str(ca["ca"])}
        made = command(BIN / "titanctl", "-s", c.target, "-o", "json", "token", "create", "tim", env=env)
        assert made.code == 0, made.err
        with open(c.dir / "n8.join", "w") as out:
            assert subprocess.run([BIN / "titanctl", "-s", c.target, "node", "join", "n8"], stdout=out, env=env).returncode == 0
        invited = next(j["id"] for j in c.json("node", "joins")["joins"] if j["node"] == "n8")
        revoked = command(BIN / "titanctl", "-s", c.unix, "token", "revoke", token_id)
        assert revoked.code == 0 and f"titanctl token revoke {json.loads(made.out)['id']}" in revoked.err, revoked.err
        assert f"titanctl node unjoin {invited}" in revoked.err, revoked.err
        # Wrong tokens of one address: after some a minute they are not looked at any more.
        wrong = protocol.enrol.EnrollRequest(node="n9", token="titan_" + "0" * 16 + "_" + "0" * 64, request=c.message("Renew").request)
        client = protocol.Client(c.target, ca)

        def writes():
            return next(int(n["value"]) for n in c.json("counters")["counters"] if n["name"] == "store_writes")
        before = writes()
        said = [client.call("Enroll", wrong.SerializeToString())[0] for _ in range(100)]
        client.close()
        assert set(said) <= {"PERMISSION_DENIED", "RESOURCE_EXHAUSTED"} and said[0] == "PERMISSION_DENIED", said
        assert said.count("PERMISSION_DENIED") in range(50, 100), said.count("PERMISSION_DENIED")
        assert writes() - before < 40, "a wrong token costs the store a write"


def connections():
    """idle connections of a certificate that is revoked, or expires, are cut, another's are not; a session begins with a registration, and soon"""
    absent = protocol.missing()
    if absent:
        return absent
    with Held() as c:
        def connect(pair):
            context = ssl.create_default_context(cafile=pair["ca"])
            context.load_cert_chain(pair["cert"], pair["key"])
            context.set_alpn_protocols(["h2"])
            raw = socket.create_connection((c.target.rsplit(":", 1)[0], c.port))
            wrapped = context.wrap_socket(raw, server_hostname="localhost")
            wrapped.settimeout(deadline())
            wrapped.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")  # and settings
            assert wrapped.recv(9)[3] == 4  # the server's
            return wrapped

        def cut(connection):
            try:
                while connection.recv(65536):
                    pass
            except ConnectionError:
                pass
        lives = iter((2, 5, 15, 60))

        def short_lived(c, connect):
            with contextlib.suppress(OSError):  # it had expired before it was shown
                return connect(c.pair("user", "may", next(lives)))
            return None
        node = c.pair("node", "n1")
        with protocol.channel(c.target, node) as channel:
            silent, wrong = HeldCall(channel, "Session", None), HeldCall(channel, "Session", None)
            wrong.send(protocol.agent.AgentMessage(heartbeat=protocol.agent.AgentHeartbeat()))
            assert wrong.ended.wait(deadline())
            assert wrong.result == ("INVALID_ARGUMENT", "the first message of a session is no registration"), wrong.result
            ada, eva = connect(c.pair("user", "ada")), connect(c.pair("user", "eva"))
            short = until("a certificate of some seconds is taken", lambda: short_lived(c, connect))
            c.ctl("pki", "revoke", "user/ada")
            cut(ada)
            cut(short)
            eva.sendall(b"\0\0\10\6\0\0\0\0\0" + b"12345678")  # a ping
            heard = b""
            while b"12345678" not in heard:
                more = eva.recv(65536)
                assert more, f"eva's connection was cut behind {heard}"
                heard += more
            assert silent.ended.wait(deadline())
            assert silent.result == ("DEADLINE_EXCEEDED", "the request has not come whole within 10 s"), silent.result


if __name__ == "__main__":
    tap(installed, messages, slow_submit, at_once, joins, connections)
