#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Users of one daemon: what others may do, see and have read, with real uids over the Unix socket."""
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from titan import BIN, SOURCE, Daemon, Result, become_nobody, deadline, headers_text, overrides, store_copy, tap, until  # noqa: E402
from world import ALICE, MALLORY, OLGA, World, needs_root, refused  # noqa: E402

# Methods on jobs of one's own, of the policy's table.
OWN = set(re.findall(r'Titan/(\w+)", "..o', (SOURCE / "daemon/auth/policy.h").read_text()))


def four_commands():
    """mallory: sees, but does not cancel root's job, drain the node or change another's run; all of it is on record"""
    if needs_root():
        return needs_root()
    with World() as w:
        node = json.loads(w.daemon.ok("-o", "json", "nodes"))["nodes"][0]["name"]
        assert w.as_user(MALLORY, "list").code == 0
        refused(w.as_user(MALLORY, "cancel", w.job), f"job {w.job} is root's", f"uid:{MALLORY}")
        refused(w.as_user(MALLORY, "resize", w.job, 1), "its owner or an operator")
        refused(w.as_user(MALLORY, "checkpoint", w.job), "its owner or an operator")
        refused(w.as_user(MALLORY, "logs", w.job), "its owner or an operator")
        refused(w.as_user(MALLORY, "status", w.job, "--recipe"), "its owner or an operator")
        refused(w.as_user(MALLORY, "rm", w.job), "its owner or an operator")
        refused(w.as_user(MALLORY, "drain", node), "DrainNode is for an operator or admin")
        refused(w.as_user(MALLORY, "undrain", node), "an operator or admin")
        refused(w.as_user(MALLORY, "node", "forget", node), "an operator or admin")
        refused(w.as_user(MALLORY, "node", "rm", node), "an operator or admin")
        refused(w.as_user(MALLORY, "admin", "backup", "/tmp/never"), "an admin")
        refused(w.as_user(MALLORY, "audit"), "an operator or admin")
        refused(w.as_user(MALLORY, "token", "create", "root", "--role", "admin"), "an admin")
        refused(w.try_submit(MALLORY, "--for", "root"), "only an operator may submit for others")
        refused(w.try_submit(MALLORY, "--priority", 5), "job.priority = 5")
        assert w.daemon.status(w.job)["state"] == "RUNNING"
        expected = OWN | {"DrainNode", "UndrainNode", "ForgetNode", "RemoveNode", "Backup", "Audit", "CreateToken", "Submit"}
        # A refusal is answered before its record is durable.
        until("all is on record", lambda: {e["detail"]["method"] for e in w.audit("--actor", f"uid:{MALLORY}")} == expected)
        trail = w.audit("--actor", f"uid:{MALLORY}")
        assert all(e["type"] == "audit.refused" and e["detail"]["outcome"] == "EPERM" for e in trail), trail
        assert any(e["job_id"] == w.job and e["detail"]["method"] == "CancelJob" for e in trail)
        # What is listed for all users has none of it, and the log is still a chain from which all follows.
        assert not any(e["type"].startswith("audit.") for e in w.daemon.lines("events"))
        w.daemon.ok("admin", "verify", "--rederive", w.daemon.state)


def keys_of_others():
    """an idempotency key is its submitter's: another user's of the same name finds nothing and stands in no one's way"""
    if needs_root():
        return needs_root()
    with World() as w:
        first = w.submit(ALICE, "--idempotency-key", "nightly")
        second = w.submit(MALLORY, "--idempotency-key", "nightly", optimizer__lr="1e-4")
        assert second != first and w.daemon.status(second)["uid"] == MALLORY
        assert w.submit(ALICE, "--idempotency-key", "nightly") == first
        assert w.submit(MALLORY, "--idempotency-key", "nightly", optimizer__lr="1e-4") == second
        clash = w.try_submit(MALLORY, "--idempotency-key", "nightly")
        assert clash.code != 0 and f"job {second}" in clash.err and f"job {first}" not in clash.err, clash.err


def names_that_deceive():
    """a name that is shown as another (marks of direction, what cannot be seen) is refused, whatever user gives it"""
    if needs_root():
        return needs_root()
    with World() as w:
        for bad in ("job\u202egnp.exe", "a\u200bb", "tab\tbed", "\u0085", "\U000e0041"):
            for what in (["--name", bad], ["--idempotency-key", bad]):
                refused(w.try_submit(ALICE, *what), "cannot be seen", code=2)
            refused(w.as_user(0, "submit", w.dir / "tiny.toml", "--set", f"training.dataset_path={w.text}", "--for", bad),
                    "cannot be seen", code=2)
            refused(w.as_user(0, "token", "create", bad), "cannot be seen", code=2)
            refused(w.as_user(0, "drain", bad), "cannot be seen", code=2)
            refused(w.as_user(0, "drain", "vm", "--reason", bad), "cannot be seen", code=2)
        assert w.submit(ALICE, "--name", "gr\u00f6\u00dfer \u540d\u524d") > 0
        # A description is no name; where it becomes one, it is one that can be shown.
        job = w.submit(ALICE, job__description='"evil\\u202erun"')
        assert w.daemon.status(job)["name"] == "evil run", w.daemon.status(job)["name"]


def owners_and_operators():
    """a job is its submitter's, by uid; operators do what owners do, for others too; what was done is on record"""
    if needs_root():
        return needs_root()
    with World() as w:
        mine = w.submit(ALICE)
        job = w.daemon.status(mine)
        assert (job["user"], job["uid"]) == (f"uid:{ALICE}", ALICE), job
        refused(w.as_user(MALLORY, "cancel", mine), "not permitted")
        assert w.as_user(ALICE, "cancel", mine).code == 0
        other = w.submit(ALICE)
        assert w.as_user(OLGA, "cancel", other).code == 0
        given = w.submit(OLGA, "--for", "bob", "--priority", 3)
        assert w.daemon.status(given)["user"] == "bob"
        assert [j["id"] for j in json.loads(w.as_user(MALLORY, "-o", "json", "list", "--user", "bob").out)["jobs"]] == [given]
        refused(w.as_user(OLGA, "admin", "backup", "/tmp/never"), "an admin")
        done = [(e["actor"], e["detail"]["method"], e["job_id"]) for e in w.audit() if e["type"] == "audit.ok"]
        assert done == [("root", "Submit", w.job), (f"uid:{ALICE}", "Submit", mine), (f"uid:{ALICE}", "CancelJob", mine),
                        (f"uid:{ALICE}", "Submit", other), (f"uid:{OLGA}", "CancelJob", other),
                        (f"uid:{OLGA}", "Submit", given)], done
        # The same events, seen from the store: what followed from a call has its actor too.
        with store_copy(w.daemon.state / "titan.db") as db:
            rows = db.execute("SELECT DISTINCT actor FROM events WHERE job_id = ? AND type = 'job.state' AND actor <> ''",
                              (other,)).fetchall()
        assert [tuple(r) for r in rows] == [(f"uid:{OLGA}",)], rows


def private_jobs():
    """private_jobs: those of others are not there, in no list, stream or answer"""
    if needs_root():
        return needs_root()
    with World(private=True) as w:
        mine = w.submit(ALICE)
        for what in (("status", w.job), ("events", w.job), ("metrics", w.job), ("logs", w.job), ("checkpoints", w.job),
                     ("cancel", w.job), ("resize", w.job, 1), ("checkpoint", w.job), ("status", w.job, "--recipe"), ("rm", w.job)):
            refused(w.as_user(ALICE, *what), f"there is no job {w.job}", code=3)
        assert [j["id"] for j in json.loads(w.as_user(ALICE, "-o", "json", "list").out)["jobs"]] == [mine]
        seen = {json.loads(line)["job_id"] for line in w.as_user(ALICE, "-o", "json", "events").out.splitlines()}
        assert seen == {0, mine}, seen
        assert w.as_user(ALICE, "status", mine).code == 0
        assert len(json.loads(w.as_user(OLGA, "-o", "json", "list").out)["jobs"]) == 2
        assert w.as_user(OLGA, "logs", w.job).code == 0


def members_of_groups():
    """the members of a group of /etc/group count at the next call after the file has changed"""
    if needs_root():
        return needs_root()
    with World() as w:
        group, account = w.dir / "group", w.dir / "passwd"
        lines = "".join(f"{n}:x:{i}:\n" for n, i in (("root", 0), ("ml-ops", 64990)))
        group.write_text(lines)
        account.write_text(f"root:x:0:0::/:/bin/sh\nalice:x:{ALICE}:{ALICE}::/:/bin/sh\n")
        config = w.dir / "titand.toml"
        config.write_text(config.read_text().replace("operators = [", 'operators = ["group:ml-ops", '))
        w.daemon.kill()
        # As the daemon sees them; a file that is written in place is the same for both.
        w.daemon.before = ["unshare", "-m", "sh", "-c", f'mount --bind {group} /etc/group && mount --bind {account} /etc/passwd && exec "$@"', "sh"]
        w.daemon.start()
        os.chmod(w.dir / "api.sock", 0o666)
        for members, code in (("", 5), ("bob,alice", 0), ("bob", 5)):
            group.write_text(lines.replace("64990:", f"64990:{members}"))
            done = w.as_user(ALICE, "audit")
            assert done.code == code, (members, done)


def storm():
    """a storm of refusals is one line, and one with its number"""
    if needs_root():
        return needs_root()
    with World() as w:
        for _ in range(10):
            refused(w.as_user(MALLORY, "cancel", w.job), "not permitted")
        assert len(until("the first is on record", lambda: w.audit("--actor", f"uid:{MALLORY}"))) == 1
        w.daemon.stop()  # the minute's count is stored before the end
        w.daemon.start()
        trail = w.audit("--actor", f"uid:{MALLORY}")
        counts = [e["detail"].get("count", 1) for e in trail]
        assert counts[0] == 1 and sum(counts) == 10 and len(trail) < 5, trail  # two, and one for each minute more


def tokens():
    """a token speaks for its user, wherever it comes from, until it is revoked; then its streams end, too"""
    if needs_root():
        return needs_root()
    with World(rooted=True) as w:  # a token has no uid: it may name what lies below the roots
        token = w.daemon.ok("token", "create", "ci", "--role", "operator", "--ttl", "1h").strip()
        assert token.startswith("titan_") and len(token) == 6 + 16 + 1 + 64, token
        (listed,) = json.loads(w.daemon.ok("-o", "json", "token", "list"))["tokens"]
        assert (listed["name"], listed["role"], listed["id"]) == ("ci", "operator", token.split("_")[1]), listed
        env = {"TITAN_TOKEN": token}
        job = int(w.as_user(MALLORY, "submit", w.dir / "tiny.toml", *overrides({"training.dataset_path": w.text}), env=env).out)
        assert w.daemon.status(job)["user"] == "ci"
        assert w.as_user(MALLORY, "cancel", w.job, env=env).code == 0
        refused(w.as_user(MALLORY, "token", "list", env=env), "an admin", "ci")
        until("the cancel is on record", lambda: any(
            e["actor"] == f"ci (token {listed['id']})" and e["detail"]["method"] == "CancelJob" for e in w.audit()))
        w.daemon.wait_state(w.job, "CANCELLED")
        stream = subprocess.Popen([w.dir / "titanctl", "--server", w.socket, "events", "-f"], user=MALLORY, group=MALLORY,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**env, "HOME": "/"})
        assert stream.stdout.readline()
        w.daemon.ok("token", "revoke", listed["id"])
        _, err = stream.communicate(timeout=deadline())
        assert stream.returncode == 5 and "revoked" in err, (stream.returncode, err)
        refused(w.as_user(MALLORY, "list", env=env), "was revoked at")
        w.daemon.kill()
        w.daemon.start()
        os.chmod(w.dir / "api.sock", 0o666)
        refused(w.as_user(MALLORY, "list", env=env), "was revoked at")
        # A wrong token is no way around: not taken for no user's, nor for its bearer's own uid.
        refused(w.as_user(ALICE, "list", env={"TITAN_TOKEN": "titan_x"}), "none")
        # Its secret stands nowhere; nothing is written or removed any more while that is looked for.
        w.daemon.stop()
        secret = token.split("_")[2].encode()
        for path in w.daemon.state.rglob("*"):
            if path.is_file():
                assert secret not in path.read_bytes(), f"the secret stands in {path}"


@contextlib.contextmanager
def listener(uid, path):
    """A server of that user's; heard(): how many bytes any of its clients has sent at first, since the last time."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        become_nobody(uid)
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(str(path))
            os.chmod(path, 0o666)
            s.listen()
            os.write(into, b"listens\n")
            while True:
                connection, _ = s.accept()
                os.write(into, b"%d\n" % len(connection.recv(65536)))
                connection.close()
    os.close(into)
    with open(out, encoding="ascii") as lines:
        try:
            assert lines.readline() == "listens\n"

            def heard():
                most = 0
                with socket.socket(socket.AF_UNIX) as s:
                    s.connect(str(path))
                    s.send(b"!")
                while (n := int(lines.readline())) != 1:
                    most = max(most, n)
                return most
            yield heard
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def token_goes_to_trusted_sockets():
    """a token is sent over a Unix socket to a server of root, of oneself or of the user titan; another user's hears nothing of it"""
    if needs_root():
        return needs_root()
    with tempfile.TemporaryDirectory(prefix="titan-token-") as home:
        home, token = Path(home), {"TITAN_TOKEN": "titan_" + "0" * 16 + "_" + "0" * 64}
        home.chmod(0o755)
        (home / "hers").mkdir()
        os.chown(home / "hers", MALLORY, MALLORY)
        shutil.copy(BIN / "titanctl", home / "titanctl")
        (home / "passwd").write_text(Path("/etc/passwd").read_text() + f"titan:x:{MALLORY}:{MALLORY}::/:/bin/false\n")
        path = home / "hers/titan.sock"

        def ask(uid, *before, env=None):
            done = subprocess.run([*before, "setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", home / "titanctl", "--server", f"unix:{path}", "list"],
                                  capture_output=True, text=True, timeout=deadline(), check=False, env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **(env or {})})
            return done.returncode, done.stderr
        with listener(MALLORY, path) as heard:
            code, said = ask(ALICE, env=token)
            assert code == 5 and f"a token is not sent to unix:{path}: its server runs as uid {MALLORY}" in said and said.count("\n") == 1, said
            assert heard() == 0
            assert ask(0, env=token)[0] == 5 and heard() == 0, "root's token is not sent either"
            assert ask(ALICE)[0] == 4 and heard() > 0, "without one it speaks to any server"
            assert ask(MALLORY, env=token)[0] == 4 and heard() > 0, "her own server has it"
            known = ["unshare", "-m", "sh", "-c", f'mount --bind {home}/passwd /etc/passwd && exec "$@"', "sh"]
            if subprocess.run([*known, "true"], capture_output=True, check=False).returncode == 0:
                assert ask(ALICE, *known, env=token)[0] == 4 and heard() > 0, "the server of the user titan has it"


def paths_of_others():
    """what a run file names is read and written as the one that submits it could: not root's files, not through a link"""
    if needs_root():
        return needs_root()
    with World() as w:
        shadow, private = w.dir / "shadow", w.dir / "private"
        shadow.write_text("root:$y$secret:20228:0:99999:7:::\n" * 10)
        shadow.chmod(0o600)
        private.mkdir(0o700)
        (private / "text").write_text("hidden")
        drop = w.dir / "drop"
        drop.mkdir()
        os.chown(drop, MALLORY, MALLORY)
        (drop / "link").symlink_to(shadow)
        for keys in ({"training__dataset_path": w.daemon.state / "titan.db"}, {"training__dataset_path": shadow},
                     {"training__dataset_path": drop / "link"}, {"training__dataset_path": private / "text"},
                     {"parallelism__pipeline_parallel_schedule_csv": shadow}, {"checkpoint__folder": "/etc/titan-test"},
                     {"checkpoint__folder": "a/../../.."}, {"job__dump_folder": private}):
            # Straight to the server: titanctl looks at some of it itself, as mallory.
            answer = w.rpc_submit(MALLORY, **keys)
            assert "PERMISSION_DENIED" in answer and "not permitted" in answer, (keys, answer)
            assert "secret" not in answer and "20228" not in answer, answer
        assert not Path("/etc/titan-test").exists()
        assert "job_id" in w.rpc_submit(MALLORY, checkpoint__folder=drop / "ck", training__steps=2)
        assert "job_id" in w.rpc_submit(0, training__dataset_path=shadow, training__steps=2)
        # A link that is put there between the check and the worker's start is not followed: the job waits behind root's.
        data = drop / "later"
        data.mkdir()
        os.chmod(data, 0o755)
        (data / "text").write_text("text of mallory " * 1000)
        late = int(re.search(r"job_id: (\d+)", w.rpc_submit(MALLORY, training__dataset_path=data, training__steps=2)).group(1))
        shutil.rmtree(data)
        data.symlink_to(private)
        (private / "text").write_text("hidden " * 1000)
        w.daemon.ok("cancel", w.job)
        w.daemon.wait_state(late, "FAILED")
        until("mallory's checkpoint is there", lambda: list((drop / "ck").glob("step-*/manifest.json")))


def jobs_that_go_on():
    """resume and "job:ID": one's own job and its folder, of others what could be read anyhow; an operator's stays its owner's"""
    if needs_root():
        return needs_root()
    with World() as w:
        w.daemon.ok("cancel", w.job)
        w.daemon.wait_state(w.job, "CANCELLED")
        job = w.submit(ALICE, training__steps=10)
        w.daemon.wait_state(job, "COMPLETED")
        folder = w.daemon.state / f"jobs/{job}/checkpoint"
        more = ("--set", "training.steps=12")
        refused(w.as_user(MALLORY, "resume", job, *more), f"job {job} is uid:{ALICE}'s", "its owner or an operator")
        refused(w.as_user(MALLORY, "submit", "--from", job), "its owner or an operator")
        refused(w.try_submit(MALLORY, "--from", job), "not permitted: checkpoint.initial_load_path", "cannot be read by you")
        # Straight to the server: the folder of a job is no path that its owner may name.
        for who, keys in ((MALLORY, {"checkpoint__initial_load_path": f"job:{job}"}), (ALICE, {"checkpoint__folder": folder}),
                          (ALICE, {"checkpoint__initial_load_path": folder / "step-00000010"})):
            answer = w.rpc_submit(who, **keys)
            assert "PERMISSION_DENIED" in answer and "not permitted" in answer, (keys, answer)
        second = w.as_user(ALICE, "resume", job, *more)
        assert second.code == 0 and f"in {folder}" in second.err and "training.steps = 12, there 10" in second.err, second.err
        w.daemon.wait_state(int(second.out), "COMPLETED")
        assert (folder / "step-00000012").exists()
        third = w.as_user(OLGA, "resume", int(second.out), "--set", "training.steps=14")
        assert third.code == 0, third.err
        s = w.daemon.wait_state(int(third.out), "COMPLETED")
        assert s["uid"] == ALICE and (folder / "step-00000014").exists(), s
        # One that began from its own job's checkpoint is resumed with that path in its recipe.
        fourth = w.as_user(ALICE, "submit", "--from", job, "--set", "training.steps=16")
        assert fourth.code == 0 and "step-00000014" in fourth.err, fourth.err
        w.daemon.wait_state(int(fourth.out), "COMPLETED")
        fifth = w.as_user(ALICE, "resume", int(fourth.out), "--set", "training.steps=17")
        assert fifth.code == 0, fifth.err
        w.daemon.wait_state(int(fifth.out), "COMPLETED")
    with World(private=True) as w:
        refused(w.as_user(ALICE, "resume", w.job), f"there is no job {w.job}", code=3)
        refused(w.try_submit(ALICE, "--from", w.job), f"there is no job {w.job}", code=3)
        assert f"there is no job {w.job}" in w.rpc_submit(ALICE, checkpoint__initial_load_path=f"job:{w.job}")


def others_socket():
    """another user's socket: exit code 5, and its owner"""
    if needs_root():
        return needs_root()
    with World() as w:
        os.chmod(w.dir / "api.sock", 0o600)
        for env in ({}, {"TITAN_TOKEN": "titan_x"}):
            refused(w.as_user(MALLORY, "list", env=env), "not permitted to use the daemon of root")
        os.chmod(w.daemon.state, 0o700)
        done = subprocess.run([w.dir / "titanctl", "--server", w.daemon.server, "list"], user=MALLORY, group=MALLORY,
                              capture_output=True, text=True, cwd="/", env={"HOME": "/"})
        refused(Result(done), "not permitted to use the daemon of root")
        done = subprocess.run([w.dir / "titanctl", "--server", f"unix:{w.dir}/no.sock", "list"], user=MALLORY, group=MALLORY,
                              capture_output=True, text=True, cwd="/", env={"HOME": "/"})
        assert done.returncode == 4, done.stderr
        until("the daemon answers its own", lambda: w.daemon.ctl("list").code == 0)


def start(*args, **env):
    """titand to its end, or to its being ready; its exit code, None when it was ready."""
    process = subprocess.Popen([BIN / "titand", *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, env={**os.environ, **env})
    said = ""
    for line in process.stdout:
        said += line
        if " ready role=" in line:
            process.terminate()
            process.communicate(timeout=deadline())
            return None, said
    return process.wait(deadline()), said


def root_and_jobs():
    """root runs no jobs without being told to: dev and agent refuse, a coordinator does not run any"""
    if needs_root():
        return needs_root()
    with tempfile.TemporaryDirectory(prefix="titan-root-") as dir:
        for role in (("dev",), ("agent", "--coordinator", f"unix:{dir}/no.sock")):
            code, said = start(*role, "--state-dir", f"{dir}/a", TITAN_ALLOW_ROOT="")
            assert code == 5 and "as root" in said and "--allow-root" in said, (code, said)
        code, said = start("dev", "--state-dir", f"{dir}/b", "--listen", f"unix:{dir}/s", "--allow-root", TITAN_ALLOW_ROOT="")
        assert code is None, said
        Path(dir, "c.toml").write_text("[agent]\nallow_root = true\n")
        code, said = start("dev", "--state-dir", f"{dir}/b", "--listen", f"unix:{dir}/s", "--config", f"{dir}/c.toml",
                           TITAN_ALLOW_ROOT="")
        assert code is None, said
        code, said = start("coordinator", "--state-dir", f"{dir}/c", "--listen", f"unix:{dir}/s", TITAN_ALLOW_ROOT="")
        assert code is None, said


@contextlib.contextmanager
def running(state, *args):
    process = subprocess.Popen([BIN / "titand", "dev", "--state-dir", state, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True)
    while " ready role=" not in process.stdout.readline():
        assert process.poll() is None, "titand did not come up"
    yield f"unix:{state}/titan.sock"
    process.terminate()
    process.communicate(timeout=deadline())


def mode(path):
    return path.stat().st_mode & 0o777


def job_folders():
    """a job's folder on a path that all may walk is for its user only: recipe, log and checkpoint are not to be read with cat"""
    why = needs_root()
    if why:
        return why
    with tempfile.TemporaryDirectory(prefix="titan-jobs-") as dir:
        dir = Path(dir)
        os.chmod(dir, 0o755)
        jobs = dir / "jobs"
        jobs.mkdir(mode=0o755)
        (dir / "titand.toml").write_text(f'[storage]\njobs_dir = "{jobs}"\n')
        old = os.umask(0o022)
        try:
            with Daemon(None, "--slots", 1, "--config", dir / "titand.toml") as d:
                job = d.submit("tiny", {"training.dataset_path": headers_text(dir / "text"), "training.steps": 20, "checkpoint.interval": 10})
                d.wait_state(job, "COMPLETED")
                assert list(jobs.glob(f"{job}/checkpoint/step-*")), list(jobs.rglob("*"))
                assert mode(jobs / job) == 0o700, oct(mode(jobs / job))
                seen = subprocess.run(["find", jobs, "-type", "f", "-readable"], user=MALLORY, group=MALLORY, extra_groups=[],
                                      capture_output=True, text=True).stdout.split()
                assert not [f for f in seen if f"jobs/{job}/" in f], seen
        finally:
            os.umask(old)


def state_folder():
    """the state folder is for its user only, one that was open before, too; a copy of it is refused until it is adopted"""
    with tempfile.TemporaryDirectory(prefix="titan-home-") as dir:
        dir = Path(dir)
        state, copy, moved = dir / "state", dir / "copy", dir / "moved"
        args = ("--listen", f"unix:{dir}/s")
        old = os.umask(0o022)
        try:
            code, said = start("dev", "--state-dir", state, *args)
            assert code is None, said
            assert mode(state) == 0o700 and mode(state / "titan.db") == 0o600 and mode(state / "metrics.db") == 0o600
            os.chmod(state, 0o755)
            os.chmod(state / "titan.db", 0o644)
            code, said = start("dev", "--state-dir", state, *args)
            assert code is None and mode(state) == 0o700 and mode(state / "titan.db") == 0o600, said
        finally:
            os.umask(old)
        shutil.copytree(state, copy, symlinks=True)
        before = {p: p.read_bytes() for p in copy.rglob("*.toml")}
        code, said = start("dev", "--state-dir", copy, *args)
        assert code == 6 and f"is a copy of {state}" in said and "--adopt-state" in said, (code, said)
        assert before == {p: p.read_bytes() for p in copy.rglob("*.toml")}
        state.rename(moved)  # the same folder under another name is no copy
        code, said = start("dev", "--state-dir", moved, *args)
        assert code is None, said
        code, said = start("dev", "--state-dir", copy, *args)
        assert code == 6, said  # what it was made from is gone from there, but is not this one
        code, said = start("dev", "--state-dir", copy, *args, "--adopt-state")
        assert code is None, said
        code, said = start("dev", "--state-dir", copy, *args)
        assert code is None, said
        # A backup goes where it is put.
        backup = dir / "backup.db"
        with running(moved, *args) as server:
            done = subprocess.run([BIN / "titanctl", "--server", server, "admin", "backup", backup], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        (dir / "fresh").mkdir()
        done = subprocess.run([BIN / "titanctl", "admin", "restore", backup, "--state-dir", dir / "fresh", "--key", moved / "pki/backup.key"],
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        code, said = start("dev", "--state-dir", dir / "fresh", *args)
        assert code is None, said


def service_socket():
    """In the folder that systemd makes for a service every user may connect, and is known by its own number; agents may not."""
    if why := needs_root():
        return why
    with tempfile.TemporaryDirectory(prefix="titan-service-") as name:
        folder = Path(name)
        os.chmod(folder, 0o755)
        shutil.copy(BIN / "titanctl", folder)
        os.chmod(folder / "titanctl", 0o755)
        (folder / "coordinator.toml").write_text("")
        with open(folder / "log", "w") as log:
            p = subprocess.Popen([BIN / "titand", "coordinator", "--config", folder / "coordinator.toml", "--state-dir", folder / "state"],
                                 stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, "RUNTIME_DIRECTORY": name})
        try:
            def ask(uid, *args):
                return subprocess.run([folder / "titanctl", "--server", f"unix:{folder}/titan.sock", *args], capture_output=True, text=True,
                                      user=uid, group=uid, extra_groups=[], env={"HOME": "/", "PATH": os.environ["PATH"]}, timeout=deadline())
            until("it answers", lambda: ask(0, "version").returncode == 0)
            modes = {path.name: path.stat().st_mode & 0o777 for path in folder.glob("*.sock")}
            assert modes == {"titan.sock": 0o666, "agents.sock": 0o660}, modes
            assert ask(ALICE, "list").returncode == 0
            refused = ask(ALICE, "drain", "n1")
            assert refused.returncode == 5 and f"you are uid:{ALICE}" in refused.stderr, refused
        finally:
            p.terminate()
            p.wait()


def service_user():
    """A service's own user, which its workers are, is no admin by that; root is. One that a person starts is that person's."""
    if why := needs_root():
        return why
    service = 64990
    with tempfile.TemporaryDirectory(prefix="titan-service-") as name:
        folder = Path(name)
        os.chmod(folder, 0o755)
        for program in ("titand", "titanctl"):
            shutil.copy(BIN / program, folder)
            os.chmod(folder / program, 0o755)
        (folder / "coordinator.toml").write_text('[authorization]\nadmins = ["user:ada"]\n')
        for kind in ("run", "state"):
            (folder / kind).mkdir()
            os.chown(folder / kind, service, service)

        def ask(uid, *args):
            return subprocess.run([folder / "titanctl", "--server", f"unix:{where}/titan.sock", *args], capture_output=True, text=True,
                                  cwd="/", user=uid, group=uid, extra_groups=[], env={"HOME": "/"}, timeout=deadline())
        for systemd in (True, False):
            where = folder / ("run" if systemd else "state")
            env = {"HOME": "/", **({"RUNTIME_DIRECTORY": str(where)} if systemd else {})}
            with open(folder / "log", "w") as log:
                p = subprocess.Popen([folder / "titand", "coordinator", "--config", folder / "coordinator.toml", "--state-dir", folder / "state"],
                                     stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd="/", user=service, group=service, extra_groups=[],
                                     env=env)
            try:
                until("it answers", lambda: ask(0, "version").returncode == 0)
                assert ask(0, "token", "create", "ci").returncode == 0
                assert ask(service, "list").returncode == 0
                for admin in (("token", "create", "mine", "--role", "admin"), ("admin", "backup", where / "copy"), ("audit",)):
                    done = ask(service, *map(str, admin))
                    assert done.returncode == (5 if systemd else 0), (systemd, admin, done)
                if systemd:
                    p.send_signal(signal.SIGHUP)  # lists that are read again change nothing of it
                    until("it has read its lists again", lambda: "config file reloaded" in (folder / "log").read_text())
                    assert ask(service, "audit").returncode == 5
            finally:
                p.terminate()
                p.wait()


if __name__ == "__main__":
    tap(root_and_jobs, job_folders, state_folder, four_commands, keys_of_others, names_that_deceive, owners_and_operators, private_jobs, members_of_groups, storm,
        tokens, token_goes_to_trusted_sockets, paths_of_others, jobs_that_go_on, others_socket, service_socket,
        service_user)
