#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a process of the daemons' own user, as a worker is, may do with daemons and with other workers, and with the CA's key."""
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, SOURCE, deadline, headers_text, overrides, tap, until, worker_pids  # noqa: E402

SERVICE = 64990  # runs the daemons


def needs_root():
    return None if os.geteuid() == 0 else "needs root to become another user"


@contextlib.contextmanager
def folder():
    """Of the programs, and below it what the service's user may write to."""
    with tempfile.TemporaryDirectory(prefix="titan-seal-") as name:
        path = Path(name)
        os.chmod(path, 0o755)
        shutil.copytree(BIN, path / "bin")
        shutil.copytree(BIN.parent / "lib", path / "lib")
        for kind in ("state", "given"):
            (path / kind).mkdir()
            os.chown(path / kind, SERVICE, SERVICE)
        subprocess.run(["chmod", "-R", "a+rX", path / "bin", path / "lib"], check=True)
        yield path


def as_service(code, *args):
    """Python that runs as the service's user; its last line."""
    done = subprocess.run(["/usr/bin/python3", "-c", code, *map(str, args)], cwd="/", user=SERVICE, group=SERVICE, extra_groups=[],
                          capture_output=True, text=True, env={"HOME": "/"}, timeout=deadline())
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


OPENS = """
import sys
for name in ("mem", "environ", "maps"):
    try:
        open(f"/proc/{sys.argv[1]}/{name}", "rb").read(0 if name == "mem" else 1)
        print(name)
    except OSError as e:
        assert e.errno in (1, 13), e
"""


def can_open(pid):
    return as_service(OPENS, pid).split()


@contextlib.contextmanager
def daemon(path, role, *args, env=None):
    with open(path / "log", "a") as log:
        p = subprocess.Popen([path / "bin/titand", role, *map(str, args)], stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd="/",
                             user=SERVICE, group=SERVICE, extra_groups=[], env={"HOME": "/", "PATH": os.environ["PATH"], **(env or {})})
    try:
        yield p
    finally:
        p.terminate()
        p.wait(deadline())


def ctl(path, *args, server=None):
    return subprocess.run([path / "bin/titanctl", "--server", server or f"unix:{path}/state/titan.sock", *map(str, args)],
                          capture_output=True, text=True, timeout=deadline())


def nobody_looks_inside():
    """the memory of a daemon and of a worker is closed to their own user, unless it is a person's titand dev, or told to be open"""
    if why := needs_root():
        return why
    for env, opened in (({"TITAN_DUMPABLE": "0"}, []), ({}, ["mem", "environ", "maps"])):
        with folder() as path:
            text = headers_text(path / "text")
            subprocess.run(["chmod", "-R", "a+rX", path / "text"], check=True)
            with daemon(path, "dev", "--state-dir", path / "state", env=env) as p:
                until("it answers", lambda: ctl(path, "version").returncode == 0)
                keys = {"training.dataset_path": text, "training.steps": 1000000, "elastic.max_workers": 1}
                done = ctl(path, "submit", SOURCE / "recipes/tiny.toml", *overrides(keys))
                assert done.returncode == 0, done.stderr
                job = done.stdout.strip()
                until("it trains", lambda: '"RUNNING"' in ctl(path, "-o", "json", "status", job).stdout)
                (worker,) = worker_pids(path / "state")
                # An exec leaves a process open, until it has opened its device.
                until("both are as they are to be", lambda: can_open(p.pid) == opened and can_open(worker) == opened)
                for pid in (p.pid, worker):
                    assert "NoNewPrivs:\t1" in Path(f"/proc/{pid}/status").read_text()
                p.kill()  # what the next agent asks of a worker that it adopts, it can still ask
                p.wait()
            with daemon(path, "dev", "--state-dir", path / "state", env=env):
                until("it answers", lambda: ctl(path, "version").returncode == 0)
                at = json.loads(ctl(path, "-o", "json", "status", job).stdout)["step"]
                until("it trains on", lambda: json.loads(ctl(path, "-o", "json", "status", job).stdout)["step"] > at)
                assert worker_pids(path / "state") == [worker]
                assert ctl(path, "cancel", job, "--wait").returncode == 0


def key_of_the_authority():
    """the CA's key comes from a file of root's by the unit: the coordinator signs, its user finds the key nowhere"""
    if why := needs_root():
        return why
    with folder() as path:
        pki = path / "pki"
        done = subprocess.run([path / "bin/titanctl", "pki", "init", "--state-dir", path / "state", "--pki-dir", pki, "--name", "head"],
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert (pki / "ca.key").stat().st_uid == 0 and pki.stat().st_mode & 0o777 == 0o700
        (path / "c.toml").write_text('[coordinator]\nagents_listen = "127.0.0.1:0"\n')
        args = ("coordinator", "--state-dir", path / "state", "--listen", "127.0.0.1:0", "--config", path / "c.toml")
        listen = path / "state/run/listen"
        env = {"CREDENTIALS_DIRECTORY": str(path / "given")}
        for name in ("ca.pem", "ca.key"):
            (path / "given" / name).write_text("none")  # as the unit has it without a CA
        with daemon(path, *args, env=env):
            until("it answers", lambda: ctl(path, "version").returncode == 0)
            done = ctl(path, "node", "join", "n1")
            assert done.returncode == 3 and "signs no certificates" in done.stderr and "next start" in done.stderr, done
        for name in ("ca.pem", "ca.key"):
            shutil.copy(pki / name, path / "given" / name)
            os.chown(path / "given" / name, SERVICE, SERVICE)
        with daemon(path, *args, env=env) as p:
            until("it answers", lambda: ctl(path, "version").returncode == 0)
            shutil.rmtree(path / "given")  # it was read at the start
            port = listen.read_text().split()[1].rsplit(":", 1)[1]
            done = ctl(path, "node", "join", "n1", "--address", f"localhost:{port}")
            assert done.returncode == 0, done.stderr
            (path / "n1.join").write_text(done.stdout)
            os.chmod(path / "n1.join", 0o600)
            with open(path / "log", "a") as log:
                agent = subprocess.Popen([path / "bin/titand", "agent", "--join", path / "n1.join", "--state-dir", path / "n1", "--node",
                                          "n1", "--allow-root"], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            try:
                until("n1 is there", lambda: "n1" in ctl(path, "nodes").stdout)
            finally:
                agent.terminate()
                agent.wait(deadline())
            assert can_open(p.pid) == []
            found = subprocess.run(["find", path, "-name", "ca.key", "-readable"], capture_output=True, text=True, user=SERVICE,
                                   group=SERVICE, extra_groups=[])
            assert not found.stdout, found.stdout
        # A key beside the store, as before, signs still; a unit's coordinator warns of it.
        shutil.copytree(pki, path / "state/pki", dirs_exist_ok=True)
        subprocess.run(["chown", "-R", str(SERVICE), path / "state/pki"], check=True)
        (path / "given").mkdir()
        with daemon(path, *args, env=env):
            until("it answers", lambda: ctl(path, "version").returncode == 0)
            assert ctl(path, "node", "join", "n2", "--address", "localhost:7070").returncode == 0
            assert "the daemon's own user can read the CA's key" in (path / "log").read_text()


def where_root_makes_it():
    """pki init of root beside the unit's state puts the CA into a folder of root's; with --state-dir, and beside an old one, it does not"""
    if why := needs_root():
        return why
    script = f"""
        mount -t tmpfs none /var/lib && mkdir -m 700 /var/lib/titan-coordinator && chown {SERVICE} /var/lib/titan-coordinator || exit 77
        {BIN}/titanctl pki init --name head && {BIN}/titanctl pki user eva --out /var/lib/eva || exit 1
        stat -c '%a %u %n' /var/lib/titan-pki /var/lib/titan-pki/ca.key /var/lib/titan-coordinator/tls/key.pem
        {BIN}/titanctl pki init --name head --state-dir /var/lib/other && ls /var/lib/other/pki/ca.key || exit 1
        mv /var/lib/titan-pki /var/lib/titan-coordinator/pki
        {BIN}/titanctl pki user bob --out /var/lib/bob && ls /var/lib/titan-pki"""
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    if done.returncode == 77 or "unshare" in done.stderr:
        return "cannot mount"
    lines = done.stdout.splitlines()
    for line in ("700 0 /var/lib/titan-pki", "600 0 /var/lib/titan-pki/ca.key",
                 f"600 {SERVICE} /var/lib/titan-coordinator/tls/key.pem", "/var/lib/other/pki/ca.key"):
        assert line in lines, (line, done)
    assert "No such file" in done.stderr and "/var/lib/bob/cert.pem" in done.stdout, done


def units_keep_it():
    """the units: the coordinator's is given the CA of root's folder, the agent's sees no service's credentials"""
    unit = (SOURCE / "systemd/titan-coordinator.service").read_text().splitlines()
    for name in ("ca.pem", "ca.key"):
        assert f"LoadCredential={name}:/var/lib/titan-pki/{name}" in unit and f"SetCredential={name}:none" in unit
    assert "InaccessiblePaths=-/run/credentials" in (SOURCE / "systemd/titand.service").read_text().splitlines()


if __name__ == "__main__":
    tap(nobody_looks_inside, key_of_the_authority, where_root_makes_it, units_keep_it)
