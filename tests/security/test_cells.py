#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every method by every kind of identity, asked of real daemons: over the Unix socket, TLS and plain TCP, by uid, certificate
and token. What each may stands in docs/security.md, from where it is read here."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, SOURCE, Daemon, deadline, headers_text, tap, until  # noqa: E402

try:
    import grpc  # noqa: F401
except ImportError:
    print("1..1\nok 1 - methods by identities # SKIP no grpcio (Debian: python3-grpcio)")
    sys.exit(0)

USER, OPERATOR = 64998, 64997
CONFIG = f'[authorization]\nadmins = ["uid:0", "user:ada"]\noperators = ["uid:{OPERATOR}", "user:olga"]\n'
INTERNAL = {"Session": "Coordinator", "Enroll": "Enrolment", "Renew": "Enrolment"}
# Asks all methods with one identity and prints {method: [code, text]} for a job that is not there and for one of root's.
CALLER = r"""
import json, sys, grpc
o = json.load(sys.stdin)
if o["tls"]:
    read = lambda n: open(o["tls"] + "/" + n, "rb").read()
    own = (read("key.pem"), read("cert.pem")) if o["own"] else (None, None)
    channel = grpc.secure_channel(o["target"], grpc.ssl_channel_credentials(read("ca.pem"), *own))
else:
    channel = grpc.insecure_channel(o["target"])
out, same = {}, lambda b: b
for name, path in o["methods"].items():
    for job in ("none", "root"):
        message = bytes.fromhex(o[job]) if name in o["of_jobs"] else b""
        meta = [("authorization", "Bearer " + o["token"])] if o["token"] else []
        try:
            # Streams of one answer and unary calls look alike from here: the first answer is enough.
            call = channel.stream_stream(path, same, same)(iter([message]), timeout=20, metadata=meta)
            next(iter(call), None)
            if call.is_active():
                call.cancel()
            out[name + " " + job] = ["OK", ""]
        except grpc.RpcError as e:
            out[name + " " + job] = [e.code().name, e.details()]
print(json.dumps(out))
"""
OF_JOBS = ["GetJob", "GetRecipe", "CancelJob", "RemoveJob", "ResizeJob", "CheckpointJob", "WatchEvents", "Logs", "Metrics", "ListCheckpoints"]


def table():
    """{method: {role: cell}} of docs/security.md."""
    lines = [line for line in (SOURCE / "docs/security.md").read_text().splitlines() if line.startswith("|")]
    head = next(i for i, line in enumerate(lines) if line.startswith("| Method | unauthenticated"))
    split = lambda line: [c.strip() for c in line.strip("|").split("|")]  # noqa: E731
    roles = split(lines[head])[1:]
    out = {}
    for line in lines[head + 2:]:
        cells = split(line)
        if not re.fullmatch(r"`\w+`", cells[0]):
            break
        out[cells[0].strip("`")] = dict(zip(roles, cells[1:]))
    return out


class Sealed(Daemon):
    """One that serves TCP with TLS only."""

    def __init__(self, state, config):
        super().__init__()
        shutil.rmtree(self.state)
        self.state, self.server, self.config = state, f"unix:{state}/titan.sock", config

    def __enter__(self):
        log = open(self.state / "titand.log", "w")
        self.process = subprocess.Popen([BIN / "titand", "dev", "--state-dir", self.state, "--listen", "127.0.0.1:0", "--config",
                                         self.config], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        until("titand is ready", lambda: " ready role=" in self.log() or self.process.poll() is not None)
        assert self.process.poll() is None, self.log()
        return self


def varint(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def ask(methods, target, job, uid=None, tls="", own=False, token=""):
    given = {"methods": {m: f"/titan.internal.{INTERNAL[m]}/{m}" if m in INTERNAL else f"/titan.v1.Titan/{m}" for m in methods},
             "of_jobs": OF_JOBS, "target": target, "tls": str(tls), "own": own, "token": token,
             "none": (b"\x08" + varint(999999)).hex(), "root": (b"\x08" + varint(job)).hex()}
    ids = {"user": uid, "group": uid, "extra_groups": []} if uid else {}
    done = subprocess.run(["/usr/bin/python3", "-c", CALLER], input=json.dumps(given), text=True, capture_output=True, cwd="/",
                          timeout=deadline(), **ids)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refusal(answer):
    code, text = answer
    return code == "PERMISSION_DENIED" and text.startswith("not permitted: ")


CELLS = 0


def compare(caller, roles, answers, cells):
    """Refused where every role has an empty cell, and on root's job where the most is "own"; served elsewhere."""
    global CELLS
    wrong = []
    for method, row in cells.items():
        most = max((["", "own", "seen", "yes"].index(row[r]) for r in roles))
        for job in ("none", "root"):
            if f"{method} {job}" not in answers:
                continue
            CELLS += 1
            answer = answers[f"{method} {job}"]
            should = most == 0 or (most == 1 and job == "root")
            if refusal(answer) != should or answer[0] in ("UNAVAILABLE", "UNIMPLEMENTED", "DEADLINE_EXCEEDED"):
                wrong.append(f"{caller}: {method} ({job}): {answer}, expected {'a refusal' if should else 'to be served'}")
    assert not wrong, "\n".join(wrong)


def finished_job(d, text):
    """Of root, and over: those that may cancel or resize it change nothing."""
    job = int(d.submit("tiny", {"training.dataset_path": text, "training.steps": 2}))
    d.wait_state(job, "COMPLETED")
    d.wait_state(d.ok("resume", job, "--set", "training.steps=3").strip(), "COMPLETED")  # so that it cannot be removed
    return job


def unix_socket():
    """over the Unix socket: a user, an operator, the daemon's own; with tokens of each role"""
    if os.geteuid() != 0:
        return "needs root to become other users"
    cells = table()
    with tempfile.TemporaryDirectory(prefix="titan-cells-") as dir:
        os.chmod(dir, 0o755)
        config = Path(dir) / "titand.toml"
        config.write_text(CONFIG)
        text, target = headers_text(Path(dir) / "text"), f"unix:{dir}/api.sock"
        with Daemon(None, "--listen", target, "--config", config) as d:
            os.chmod(f"{dir}/api.sock", 0o666)
            job = finished_job(d, text)
            compare("user", ["user"], ask(cells, target, job, USER), cells)
            compare("operator", ["user", "operator"], ask(cells, target, job, OPERATOR), cells)
            compare("own", ["user", "operator", "admin", "node"], ask(cells, target, job), cells)
            for role, roles in (("user", ["user"]), ("operator", ["user", "operator"]), ("admin", ["user", "operator", "admin"])):
                token = d.ok("token", "create", f"t{role}", "--role", role).strip()
                compare(f"token {role}", roles, ask(cells, target, job, USER, token=token), cells)


def tls():
    """over TLS: no identity, users, an operator, an admin and a node by certificate; tokens without one"""
    cells = table()
    with tempfile.TemporaryDirectory(prefix="titan-cells-") as dir:
        dir = Path(dir)
        (dir / "titand.toml").write_text(CONFIG)
        text = headers_text(dir / "text")
        state = dir / "state"
        state.mkdir()

        def pki(*args):
            done = subprocess.run([BIN / "titanctl", "pki", *args, "--state-dir", state], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        pki("init", "--address", "localhost", "--address", "127.0.0.1")
        for kind, name in (("user", "alice"), ("user", "olga"), ("user", "ada"), ("node", "n1")):
            pki(kind, name, "--out", dir / name)
        with Sealed(state, dir / "titand.toml") as d:
            target = next(a for a in (state / "run/listen").read_text().split() if not a.startswith("unix:"))
            target = target.replace("127.0.0.1", "localhost")
            job = finished_job(d, text)
            for name, roles in (("alice", ["user"]), ("olga", ["user", "operator"]), ("ada", ["user", "operator", "admin"]),
                                ("n1", ["node"])):
                compare(f"certificate of {name}", roles, ask(cells, target, job, tls=dir / name, own=True), cells)
            compare("no certificate", ["unauthenticated"], ask(cells, target, job, tls=dir / "alice"), cells)
            token = d.ok("token", "create", "ci", "--role", "user").strip()
            compare("token over TLS", ["user"], ask(cells, target, job, tls=dir / "alice", token=token), cells)


def plain():
    """over plain TCP of a daemon with --insecure: anonymous, and no token counts there"""
    cells = table()
    with tempfile.TemporaryDirectory(prefix="titan-cells-") as dir:
        text = headers_text(Path(dir) / "text")
        with Daemon(None, "--listen", "127.0.0.1:0", "--insecure") as d:
            target = next(a for a in (d.state / "run/listen").read_text().split() if not a.startswith("unix:"))
            job = finished_job(d, text)
            compare("plain TCP", ["anonymous"], ask(cells, target, job), cells)
            token = d.ok("token", "create", "ci", "--role", "admin").strip()
            answers = ask(["Version", "Backup"], target, job, token=token)
            assert all(code == "PERMISSION_DENIED" and "over TLS or the Unix socket" in text for code, text in answers.values()), answers
            secret = token.split("_")[2]
            assert secret not in d.log()
    print(f"# {CELLS} calls compared")


if __name__ == "__main__":
    tap(unix_socket, tls, plain)
