# SPDX-License-Identifier: Apache-2.0
"""A coordinator that serves TLS on a port of its own, made as a person makes one: titanctl pki init. openssl and grpcio
speak to it, with certificates of every kind."""
import contextlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, BUILD, CALM, answered, command, deadline, until  # noqa: E402

SHIM = BUILD / "tests/fault/shim.so"


def ctl(*args, env=None):
    """titanctl; must succeed."""
    done = answered(lambda: command(BIN / "titanctl", *args, env=env))
    assert done.code == 0, f"titanctl {' '.join(map(str, args))}: {done.code}: {done.err}"
    return done.out


class Coordinator:
    def __init__(self, config=""):
        self.dir = Path(tempfile.mkdtemp(prefix="titan-tls-"))
        self.state = self.dir / "c"
        self.unix = f"unix:{self.state}/titan.sock"
        self.processes = {}
        self.config, self.agents = config, "127.0.0.1:0"

    def spawn(self, name, *args, env=None):
        args = [*args, "--allow-root"] if args[0] == "agent" else args
        with open(self.dir / f"{name}.log", "a") as log:
            self.processes[name] = subprocess.Popen([BIN / "titand", *map(str, args), "--state-dir", self.dir / name],
                                                    stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                                    env={**os.environ, **(env or {})})
        return self.processes[name]

    def __enter__(self):
        ctl("pki", "init", "--state-dir", self.state, "--name", "head")
        self.start()
        return self

    @contextlib.contextmanager
    def started(self):
        """Over the certificates that are there."""
        self.start()
        try:
            yield self
        finally:
            self.__exit__(None)

    def start(self, listen="127.0.0.1:0"):
        path = self.state / "run/listen"
        path.unlink(missing_ok=True)
        # Agents keep their port over restarts.
        (self.dir / "c.toml").write_text(f'[coordinator]\nagents_listen = "{self.agents}"\n{self.config}' + ("" if "[detection]" in self.config else CALM))
        self.spawn("c", "coordinator", "--listen", listen, "--config", self.dir / "c.toml")
        until("the coordinator listens", lambda: path.exists() and len(path.read_text().split()) == 2, 10)
        self.tcp = path.read_text().split()[1]
        self.port = int(self.tcp.rsplit(":", 1)[1])
        until("the coordinator answers", lambda: command(BIN / "titanctl", "-s", self.unix, "version").code == 0, 10)
        self.agents = (self.state / "run/listen-agents").read_text().strip() or "off"

    def ctl(self, *args):
        return ctl("-s", self.unix, *args)

    def user(self, name, ca=None, **env):
        """Folder of a user's pair, signed by this CA or another."""
        out = self.dir / name
        done = command(BIN / "titanctl", "pki", "user", name, "--pki-dir", ca or self.state / "pki", "--out", out,
                       env={**os.environ, **env})
        assert done.code == 0 or env, done.err
        return out

    def join_file(self, node, *args, name=None):
        path = self.dir / f"{name or node}.join"
        with open(path, "w") as out:
            done = subprocess.run([BIN / "titanctl", "-s", self.unix, "node", "join", node, *args], stdout=out,
                                  stderr=subprocess.PIPE, text=True)
        assert done.returncode == 0, done.stderr
        return path

    def nodes(self):
        return {n["name"]: n["state"] for n in json.loads(self.ctl("-o", "json", "nodes"))["nodes"]}

    def counter(self, name):
        return next(c["value"] for c in json.loads(self.ctl("-o", "json", "counters"))["counters"] if c["name"] == name)

    def events(self, type):
        lines = [json.loads(line) for line in self.ctl("-o", "json", "events").splitlines() if line]
        return [e for e in lines if e["type"] == type]

    def log(self, name):
        return (self.dir / f"{name}.log").read_text(errors="replace")

    def stop(self, name):
        p = self.processes.pop(name)
        p.send_signal(signal.SIGTERM)
        p.wait(deadline())

    def __exit__(self, kind, *_):
        for name in sorted(self.processes, key=lambda n: n == "c"):
            p = self.processes[name]
            if p.poll() is None:
                p.send_signal(signal.SIGTERM)
                try:
                    p.wait(deadline())
                except subprocess.TimeoutExpired:
                    p.kill()
                    p.wait()
        if kind:
            for log in sorted(self.dir.glob("*.log")):
                print(f"# {log.name}:\n# " + log.read_text(errors="replace")[-3000:].replace("\n", "\n# "))
        shutil.rmtree(self.dir, ignore_errors=True)


def shifted(folder, seconds):
    """Environment of a process with a wall clock that is off by so much (tests/fault/shim.c)."""
    import struct
    path = folder / f"shim{seconds}"
    path.write_bytes(struct.pack("=q", seconds * 10**9).ljust(4096, b"\0"))
    return {"LD_PRELOAD": str(SHIM), "TITAN_SHIM": str(path)}


def messages():
    """grpc and our messages as any client makes them from the .proto files; None and why not."""
    try:
        import grpc
    except ImportError:
        return None, "no grpc (Debian: python3-grpcio)"
    if not shutil.which("protoc"):
        return None, "no protoc (Debian: protobuf-compiler)"
    work = Path(tempfile.mkdtemp(prefix="titan-tls-proto-"))
    subprocess.run(["protoc", f"--proto_path={BUILD / 'gen/proto'}", f"--python_out={work}",
                    *sorted((BUILD / "gen/proto/titan").glob("*/*.proto"))], check=True)
    # The messages' package has the name of the tests' module.
    kept, path = sys.modules.pop("titan"), sys.path
    sys.path = [str(work), *(p for p in path if not p.endswith("tests/support"))]
    try:
        api = importlib.import_module("titan.v1.titan_pb2")
        agent = importlib.import_module("titan.internal.agent_pb2")
        enrol = importlib.import_module("titan.internal.enrol_pb2")
    finally:
        sys.path = path
        shutil.rmtree(work, ignore_errors=True)
        for name in [m for m in sys.modules if m == "titan" or m.startswith("titan.")]:
            del sys.modules[name]
        sys.modules["titan"] = kept
    return (grpc, api, agent, enrol), None
