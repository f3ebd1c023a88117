# SPDX-License-Identifier: Apache-2.0
"""A titand and a titan-spawnd of users of their own, in a mount namespace with these users in it, and titan-spawnd's socket."""
import array
import contextlib
import ctypes
import os
import re
import signal
import socket
import struct
import subprocess
import tempfile
from pathlib import Path

from titan import BUILD, SOURCE, Daemon, Result, alive, deadline, headers_text, overrides, until

TITAN, ALICE, BOB, NOBODY_KNOWN = 900, 64998, 64997, 64996
USERS = {"titan-test": TITAN, "alice": ALICE, "bob": BOB}
START, SIGNAL, ASK, STARTED, DONE, END, REFUSED = 1, 2, 3, 16, 17, 18, 19
ENDED = 3
HEAD, REPLY = "=IIQQQIIIIII", "=IIQQIIiiiIQQQ288s"


SYSTEM = {name: Path("/etc", name).read_text() for name in ("passwd", "group")}


def name_users(**others):
    """From now on this process and what it starts see these users."""
    users = {**USERS, **others}
    for name, line in (("passwd", "{0}:x:{1}:{1}::/nonexistent:/bin/sh\n"), ("group", "{0}:x:{1}:\n")):
        Path("/etc", name).write_text(SYSTEM[name] + "".join(line.format(*user) for user in users.items()))


def own_names():
    """/etc/passwd and group are this mount namespace's own from now on."""
    with tempfile.TemporaryDirectory(prefix="titan-nss-") as folder:
        os.chmod(folder, 0o755)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "titan-nss", folder], check=True)
        for name, text in SYSTEM.items():
            (Path(folder) / name).write_text(text)
            (Path(folder) / name).chmod(0o644)
            subprocess.run(["mount", "--bind", Path(folder) / name, f"/etc/{name}"], check=True)
        subprocess.run(["umount", folder], check=True)
    name_users()


def enter():
    """A mount namespace of its own for this process, with USERS in it; else the reason why there is none."""
    if os.geteuid() != 0:
        return "needs root to become other users"
    if ctypes.CDLL(None, use_errno=True).unshare(0x00020000) != 0:  # CLONE_NEWNS
        return "needs a mount namespace"
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    own_names()
    return None


class Spawnd:
    """A titan-spawnd of that folder."""

    def __init__(self, folder, *args):
        self.folder, self.args, self.process = folder, args, None
        self.socket = folder / "spawnd.sock"

    def start(self):
        with open(self.folder / "spawnd.log", "a") as log:
            self.process = subprocess.Popen(
                [self.folder / "build/bin/titan-spawnd", "--user", "titan-test", "--socket", self.socket, "--state", self.folder / "spawned",
                 *self.args], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        until("titan-spawnd is up", lambda: "titan-spawnd up" in self.log() or self.process.poll() is not None)
        assert self.process.poll() is None, self.log()
        return self

    def log(self):
        text = (self.folder / "spawnd.log").read_text()
        return text[self.before:] if hasattr(self, "before") else text

    def stop(self, how=signal.SIGTERM):
        self.before = len((self.folder / "spawnd.log").read_text())
        self.process.send_signal(how)
        self.process.wait(deadline())


class World:
    """titand dev of the user titan-test with a titan-spawnd, and the users alice and bob."""

    def __init__(self, config="", spawnd=()):
        self.dir = Path(tempfile.mkdtemp(prefix="titan-spawnd-"))
        os.chmod(self.dir, 0o755)
        (self.dir / "build").mkdir()
        subprocess.run(["mount", "--bind", BUILD, self.dir / "build"], check=True)  # its own way may be root's alone
        (self.dir / "jobs").mkdir(mode=0o711)
        os.chown(self.dir / "jobs", TITAN, TITAN)
        self.text = headers_text(self.dir / "text")
        (self.dir / "tiny.toml").write_text((SOURCE / "recipes/tiny.toml").read_text())
        self.spawnd = Spawnd(self.dir, *spawnd)
        (self.dir / "titand.toml").write_text(
            f'[agent]\nspawnd = "{self.spawnd.socket}"\n{config}\n[storage]\njobs_dir = "{self.dir}/jobs"\n'
            f'data_roots = ["{self.text}"]\n')
        program = self.dir / "titand"
        program.write_text(f'#!/bin/sh\nchown {TITAN}:{TITAN} "$NOTIFY_SOCKET" "$(dirname "$NOTIFY_SOCKET")"\n'
                           f'exec setpriv --reuid {TITAN} --regid {TITAN} --clear-groups "{self.dir}/build/bin/titand" "$@"\n')
        program.chmod(0o755)
        self.api = f"unix:{self.dir}/api/sock"
        (self.dir / "api").mkdir()
        os.chown(self.dir / "api", TITAN, TITAN)
        self.daemon = Daemon(self.dir / "state", "--keep-workers", "--listen", self.api, "--config", self.dir / "titand.toml", program=program)

    def __enter__(self):
        self.spawnd.start()
        self.start()
        return self

    def start(self):
        self.daemon.start()
        os.chmod(self.dir / "api/sock", 0o666)

    def __exit__(self, kind, *what):
        self.kill_workers()
        self.daemon.__exit__(kind, *what)
        self.spawnd.stop()
        until("no worker is left", self.kill_workers)  # titand may have started another one
        if kind:
            print("# titan-spawnd's log:\n# " + (self.dir / "spawnd.log").read_text().replace("\n", "\n# "))
            for log in sorted(self.dir.glob("jobs/*/logs/*.log")):
                print(f"# {log}:\n# " + log.read_text(errors="replace")[-2000:].replace("\n", "\n# "))
        subprocess.run(["umount", self.dir / "build"], check=True)
        subprocess.run(["rm", "-rf", self.dir], check=True)

    def workers(self):
        """Workers that run, by their command lines."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = path.read_bytes()
            except OSError:
                continue
            if str(self.dir).encode() in line and b"titan-worker\0serve" in line and alive(int(path.parent.name)):
                found.append(int(path.parent.name))
        return found

    def kill_workers(self):
        """True: there was none."""
        pids = self.workers()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    def as_user(self, uid, *args, token=None):
        done = subprocess.run([self.dir / "build/bin/titanctl", "--server", self.api, *map(str, args)], timeout=deadline(), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/", user=uid, group=uid, extra_groups=[],
                              env={"HOME": "/nonexistent", "PATH": "/usr/bin:/bin", **({"TITAN_TOKEN": token} if token else {})})
        return Result(done)

    def try_submit(self, uid, token=None, **keys):
        keys = {"training.dataset_path": self.text, "training.steps": 1000000, "elastic.max_workers": 1, "training.global_batch_size": 2,
                **{k.replace("__", "."): v for k, v in keys.items()}}
        return self.as_user(uid, "submit", self.dir / "tiny.toml", *overrides(keys), token=token)

    def submit(self, uid, token=None, **keys):
        done = self.try_submit(uid, token, **keys)
        assert done.code == 0, done.err
        return int(done.out)

    def steps(self, job):
        return self.daemon.status(job).get("step", 0)

    def reason(self, job):
        return self.daemon.status(job).get("reason") or ""

    def runs(self, job, beyond=0):
        until(f"job {job} is beyond step {beyond}", lambda: int(self.steps(job) or 0) > beyond)
        return int(self.steps(job))


def proc_ids(pid):
    """(real, effective, saved, file system) uid, and the groups."""
    text = Path(f"/proc/{pid}/status").read_text()
    uids = tuple(map(int, re.search(r"^Uid:(.*)$", text, re.MULTILINE)[1].split()))
    groups = set(map(int, re.search(r"^Groups:(.*)$", text, re.MULTILINE)[1].split()))
    return uids, groups, text


def as_child(uid, what):
    """What what() returns in a child that is that user (a short text)."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            text = str(what())
        except BaseException as e:
            text = f"{type(e).__name__}: {e}"
        os.write(into, text.encode())
        os._exit(0)
    os.close(into)
    with os.fdopen(out) as f:
        text = f.read()
    os.waitpid(pid, 0)
    return text


class Titan:
    """titan-spawnd's socket as the user titan."""

    def __init__(self, w, uid=TITAN):
        self.w = w
        self.s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.s.settimeout(deadline())
        os.setresuid(-1, uid, -1)
        try:
            self.s.connect(str(w.spawnd.socket))
        finally:
            os.setresuid(-1, 0, -1)

    def ask(self, kind, worker=77, job=5, uid=ALICE, memory=0, cpus=0, strings=(), env=(), fds=(), number=0, forget=0, version=1):
        data = struct.pack(HEAD, version, kind, worker, job, memory, uid, cpus, len(env), number, forget, 0)
        data += b"".join(t.encode() + b"\0" for t in (*strings, *env))
        self.s.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])
        got = self.s.recvmsg(4096, 1024)[0]
        fields = struct.unpack(REPLY, got)
        return {"kind": fields[1], "state": fields[4], "pid": fields[6], "code": fields[7], "signal": fields[8], "oom_kills": fields[10],
                "limit": fields[11], "peak": fields[12],
                "text": fields[-1].split(b"\0")[0].decode()}

    def start(self, folder, path=None, **more):
        page = os.open(self.w.dir / "page", os.O_RDWR | os.O_CREAT)
        fds = [os.open(folder, os.O_PATH | os.O_NOFOLLOW), os.open(self.w.dir, os.O_PATH), page]
        try:
            return self.ask(START, strings=("/page", "127.0.0.1", str(path or folder), "run", ""), fds=fds, **more)
        finally:
            for fd in fds:
                os.close(fd)


@contextlib.contextmanager
def probe(text, *args):
    """A titan-spawnd that starts this program as its worker, and what speaks to it as titan, with a folder of alice's."""
    w = World()
    program = w.dir / "probe"
    program.write_text(text)
    program.chmod(0o755)
    (w.dir / "hers").mkdir(mode=0o770)
    os.chown(w.dir / "hers", ALICE, TITAN)
    w.spawnd.args = ("--worker", program, *args)
    w.spawnd.start()
    try:
        yield w, Titan(w)
    finally:
        w.__exit__(None)
