# SPDX-License-Identifier: Apache-2.0
"""A daemon that several users of the machine reach, with real uids."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, BUILD, SOURCE, Daemon, Result, deadline, headers_text, overrides  # noqa: E402

MALLORY, ALICE, OLGA = 64999, 64998, 64997  # numbers without a name here
CONFIG = """
[authorization]
admins = ["uid:0"]
operators = ["uid:%d"]
private_jobs = %s
[storage]
data_roots = [%s]
checkpoint_roots = [%s]
"""
def needs_root():
    return None if os.geteuid() == 0 else "needs root to become other users"


class World:
    """A daemon that every user can reach, with a job of root that trains."""

    def __init__(self, private=False, rooted=False):
        """rooted: its text, and its folder runs, are what all users may name."""
        self.dir = Path(tempfile.mkdtemp(prefix="titan-users-"))
        os.chmod(self.dir, 0o755)
        self.socket = f"unix:{self.dir}/api.sock"
        self.daemon = Daemon(self.dir / "state", "--listen", self.socket, "--config", self.dir / "titand.toml", pace_ms=50)
        self.text = headers_text(self.dir / "text")
        roots = json.dumps(str(self.text)) if rooted else ""
        self.runs = self.dir / "runs"
        self.runs.mkdir(0o755)
        (self.dir / "titand.toml").write_text(CONFIG % (OLGA, "true" if private else "false", roots,
                                                        json.dumps(str(self.runs)) if rooted else ""))
        for path in (self.dir / "titanctl", self.dir / "tiny.toml"):
            shutil.copy(BIN / path.name if path.name == "titanctl" else SOURCE / "recipes" / path.name, path)
            os.chmod(path, 0o755)

    def __enter__(self):
        self.daemon.start()
        os.chmod(self.dir / "api.sock", 0o666)  # as a group's socket is for its members
        self.job = self.submit(0)
        self.daemon.wait_state(self.job, "RUNNING")
        return self

    def __exit__(self, *what):
        self.daemon.__exit__(*what)
        shutil.rmtree(self.dir, ignore_errors=True)

    def as_user(self, uid, *args, env=None):
        """titanctl as that user."""
        done = subprocess.run([self.dir / "titanctl", "--server", self.socket, *map(str, args)], timeout=deadline(), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/", user=uid, group=uid, extra_groups=[],
                              env={"HOME": "/nonexistent", "PATH": "/usr/bin:/bin", **(env or {})})
        return Result(done)

    def try_submit(self, uid, *args, **keys):
        keys = {"training.dataset_path": self.text, "training.steps": 1000000, "training.local_batch_size": 2,
                **{k.replace("__", "."): v for k, v in keys.items()}}
        return self.as_user(uid, "submit", self.dir / "tiny.toml", *overrides(keys), *args)

    def submit(self, uid, *args, **keys):
        done = self.try_submit(uid, *args, **keys)
        assert done.code == 0, done.err
        return int(done.out)

    def rpc_submit(self, uid, **keys):
        """Submit as that user without titanctl; the answer, or the error, as text."""
        keys = {"training.dataset_path": self.text, "training.steps": 1000000, "training.local_batch_size": 2,
                **{k.replace("__", "."): v for k, v in keys.items()}}
        text = self.recipe(keys)
        code = ("import sys, grpc; sys.path.insert(0, sys.argv[1]); from titan.v1 import titan_pb2 as api\n"
                "call = grpc.insecure_channel(sys.argv[2]).unary_unary('/titan.v1.Titan/Submit',"
                " request_serializer=api.SubmitRequest.SerializeToString, response_deserializer=api.SubmitResponse.FromString)\n"
                "try: print(call(api.SubmitRequest(recipe=sys.stdin.read()), timeout=600))\n"
                "except grpc.RpcError as e: print(e.code(), e.details())")
        done = subprocess.run(["/usr/bin/python3", "-c", code, self.stubs(), self.socket], input=text, text=True, cwd="/", user=uid,
                              group=uid, extra_groups=[], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={"HOME": "/"})
        assert done.returncode == 0, done.stderr
        return done.stdout

    def recipe(self, keys):
        """tiny.toml with these keys."""
        sections = tomllib.loads((self.dir / "tiny.toml").read_text())
        for key, value in keys.items():
            section, name = key.rsplit(".", 1)
            sections.setdefault(section, {})[name] = value if isinstance(value, (int, float)) else str(value)
        return "".join(f"[{s}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in of.items()) for s, of in sections.items())

    def stubs(self):
        """Python messages of the API, made once."""
        out = self.dir / "stubs"
        if not out.exists():
            out.mkdir()
            subprocess.run(["protoc", f"--proto_path={BUILD}/gen/proto", f"--python_out={out}",
                            BUILD / "gen/proto/titan/v1/titan.proto"], check=True)
            subprocess.run(["chmod", "-R", "a+rX", out], check=True)
        return out

    def audit(self, *args):
        return [json.loads(line) for line in self.daemon.ok("-o", "json", "audit", *args).splitlines()]


def refused(result, *words, code=5):
    assert result.code == code, f"exit {result.code}: {result.out} {result.err}"
    for word in words:
        assert word in result.err, f"'{word}' is missing in: {result.err}"
