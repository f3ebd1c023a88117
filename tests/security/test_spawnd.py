#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""titan-spawnd: workers run as the users of their jobs, with a titand of another user, over restarts of both; and what a titand that
has been taken over may ask of it. In a mount namespace of its own, with users in it."""
import contextlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from spawnd import (ALICE, ASK, BOB, DONE, ENDED, NOBODY_KNOWN, REFUSED, SIGNAL, START, STARTED, TITAN, Titan, World, as_child, enter,  # noqa: E402
                    name_users, probe, proc_ids)
from titan import BUILD, alive, deadline, overrides, tap, until  # noqa: E402


def workers_are_users():
    """alice's worker is alice, with no way back to root; its folder is hers, which bob does not see, and titand serves its log"""
    with World() as w:
        job, other = w.submit(ALICE), w.submit(BOB)
        w.runs(job)
        w.runs(other)
        (pid,), (others,) = w.daemon.workers(job).values(), w.daemon.workers(other).values()
        uids, groups, text = proc_ids(pid)
        assert uids == (ALICE,) * 4 and TITAN not in groups and 0 not in groups, text
        for field, value in (("NoNewPrivs", "1"), ("Seccomp", "2"), ("CapEff", "0" * 16), ("CapPrm", "0" * 16)):
            assert re.search(rf"^{field}:\s+{value}$", text, re.MULTILINE), (field, text)
        assert proc_ids(others)[0] == (BOB,) * 4
        folder = w.dir / "jobs" / str(job)
        made = [folder, *folder.rglob("*")]
        assert {p.name for p in made} >= {"logs", "checkpoint", "recipe.toml"}, made
        assert stat.S_IMODE(folder.stat().st_mode) == 0o2770 and folder.stat().st_uid == ALICE, oct(folder.stat().st_mode)
        theirs = [p for p in made if p.stat().st_uid != ALICE]
        assert {p.name for p in theirs} <= {"recipe.toml", "ranks"}, theirs
        assert "PermissionError" in as_child(BOB, lambda: os.listdir(folder))
        assert "recipe.toml" in as_child(ALICE, lambda: os.listdir(folder))
        assert "[model]" in as_child(ALICE, (folder / "recipe.toml").read_text)
        # The worker's memory and descriptors are not even alice's to look at.
        assert "PermissionError" in as_child(ALICE, lambda: os.listdir(f"/proc/{pid}/fd"))
        assert w.as_user(ALICE, "logs", job).out.strip()
        # She may take it all away, what titand wrote too.
        assert w.as_user(ALICE, "cancel", job).code == 0
        w.daemon.wait_state(job, "CANCELLED")
        until("its worker is gone", lambda: not alive(pid))
        assert as_child(ALICE, lambda: subprocess.run(["rm", "-rf", *folder.iterdir()]).returncode) == "0"
        assert not list(folder.iterdir())


def restarts_keep_workers():
    """restarts of titand and of titan-spawnd under a run leave its worker as it is; an end that titand has missed is told by titan-spawnd"""
    with World() as w:
        job = w.submit(ALICE)
        step = w.runs(job)
        ((worker, pid),) = w.daemon.workers(job).items()
        w.daemon.kill()
        w.start()
        step = w.runs(job, step)
        w.spawnd.stop(signal.SIGKILL)
        w.spawnd.start()
        assert "worker adopted" in w.spawnd.log(), w.spawnd.log()
        step = w.runs(job, step)
        w.daemon.kill()
        w.start()
        w.runs(job, step)
        assert w.daemon.workers(job) == {worker: pid} and alive(pid), w.daemon.workers(job)
        # It has told each titand where its state came from, which the first one has written down.
        said = [e for e in w.daemon.lines("events", job) if e["type"] == "state.ready"]
        assert len(said) == 1, said
        # Kills go on by the new titan-spawnd, which is not the parent.
        w.spawnd.stop()
        done = w.as_user(ALICE, "cancel", "--grace", "0.001", job)
        assert done.code == 0, done
        w.spawnd.start()
        until("its worker is gone", lambda: not alive(pid))
        w.daemon.wait_state(job, "CANCELLED")

        job = w.submit(ALICE)
        w.runs(job)
        ((worker, pid),) = w.daemon.workers(job).items()
        w.daemon.kill()
        os.kill(pid, signal.SIGSEGV)
        until("its worker is gone", lambda: not alive(pid))
        w.start()
        (ended,) = until("titand hears of the end", lambda: [
            e for e in w.daemon.lines("events", job) if e["type"] == "worker.exited" and e["detail"]["worker"] == worker])
        assert ended["detail"]["signal"] == signal.SIGSEGV, ended


def starts_await_spawnd():
    """a titan-spawnd that does not answer refuses nothing: the job says so, and starts when it answers"""
    with World() as w:
        w.spawnd.stop()
        job = w.submit(ALICE)
        until("its start is tried again", lambda: "trying again" in w.reason(job))
        assert "titan-spawnd does not answer at" in w.reason(job)
        w.spawnd.start()
        w.runs(job)
        assert not int(w.daemon.status(job).get("restarts", 0))


def kills_are_known():
    """how a worker ends is known by its parent: a signal of the system, and of its own"""
    with World() as w:
        job = w.submit(ALICE)
        w.runs(job)
        for number in (signal.SIGKILL, signal.SIGABRT):
            ((worker, pid),) = until("one worker runs", lambda: list(w.daemon.workers(job).items())[:1])
            step = w.runs(job, int(w.steps(job)))
            os.kill(pid, number)
            (ended,) = until("its end is told", lambda: [
                e for e in w.daemon.lines("events", job) if e["type"] == "worker.exited" and e["detail"]["worker"] == worker])
            assert ended["detail"]["signal"] == number, ended
            w.runs(job, step)


def users_of_the_node():
    """one user with two numbers, one that the node does not know, one of the system and one with another's folder are refused, each with its
    numbers, and their jobs fail at once; agent.default_user takes jobs of those without a number"""
    def refused(w, job, text):
        """The job fails at once, with the node's line wherever it is asked for, and nothing is counted."""
        w.daemon.wait_state(job, "FAILED")
        assert not w.workers()
        events = w.daemon.lines("events", job)
        (why,) = [e["message"] for e in events if e["type"] == "job.refused"]
        assert text in why, why
        assert [e["detail"]["counted"] for e in events if e["type"] == "worker.exited"] == [False], events
        (listed,) = [j for j in json.loads(w.daemon.ok("-o", "json", "list"))["jobs"] if int(j["id"]) == job]
        status = w.daemon.status(job)
        assert listed["reason"] == status["reason"] == why, (listed, status)
        assert not int(status.get("restarts", 0)), status
        for shown in (w.daemon.ctl("status", job).out, w.daemon.ctl("list", "-w").out):
            assert "refuses its workers" in shown, shown

    with World('default_user = "bob"') as w:
        refused(w, w.submit(0, fault_tolerance__max_restarts=1000), "none as root (agent.spawnd): submit as a user, or with --for USER")
        refused(w, w.submit(NOBODY_KNOWN), f"uid {NOBODY_KNOWN} for the coordinator, is not known on node")
        (node,) = [n["name"] for n in json.loads(w.daemon.ok("-o", "json", "nodes"))["nodes"]]
        w.daemon.ok("drain", node)
        job = w.submit(ALICE)
        name_users(alice=ALICE + 1000)
        try:
            w.daemon.ok("undrain", node)
            refused(w, job, f"user alice is uid {ALICE} for the coordinator and uid {ALICE + 1000} on node {node}")
        finally:
            name_users()
        others = w.dir / "jobs" / str(job + 1)
        others.mkdir(mode=0o755)
        os.chown(others, BOB, BOB)
        refused(w, w.submit(ALICE), str(others))
        done = w.as_user(ALICE, "resume", job)  # what was put right since is refused no more
        assert done.code == 0 and "begins" in done.err + done.out, done
        w.runs(int(done.out))
        assert w.as_user(ALICE, "cancel", done.out.strip()).code == 0
        token = w.daemon.ok("token", "create", "ci", "--role", "user", "--ttl", "1h").strip()
        job = w.submit(TITAN, token=token)
        w.runs(job)
        (pid,) = w.daemon.workers(job).values()
        assert proc_ids(pid)[0] == (BOB,) * 4


def titand_taken_over():
    """what speaks as titan cannot have root, another program, another user's folder, a library of its own, or more than
    the machine has; other users are not heard"""
    w = World()
    w.spawnd.start()
    try:
        for name, owner in (("hers", ALICE), ("his", BOB), ("fresh", TITAN)):
            (w.dir / name).mkdir(mode=0o770)
            os.chown(w.dir / name, owner, owner)
        (w.dir / "link").symlink_to(w.dir / "hers")
        (w.dir / "his/link").symlink_to(w.dir / "hers")

        def refused(why, folder="hers", **more):
            said = Titan(w).start(w.dir / folder, **more)
            assert said["kind"] == REFUSED and re.search(why, said["text"]), (why, said)
        refused("uid 0 is", uid=0)
        refused("uid -1 is", uid=0xffffffff)
        refused("below 1000", uid=1)
        refused("is titand's|below", uid=TITAN)
        refused("no name on this node", uid=NOBODY_KNOWN, folder="fresh")
        refused(f"belongs to uid {BOB}", folder="his")
        refused("is no folder", folder="link")
        refused("does not get to", path=w.dir / "his")
        refused("variable 1 of 1", env=["LD_PRELOAD=/tmp/x.so"])
        refused("variable 2 of 2", env=["NCCL_DEBUG=INFO", "TITAN_X"])
        refused("variable 1 of 1", env=["TITAN_PLUGIN_DIR=/tmp"])
        refused("memory, this node has", memory=1 << 60)
        refused("processors, this node has", cpus=4096 * 1000)
        refused("has no cgroup on this node", memory=1 << 20)
        refused("version 2", version=2)
        assert "descriptors" in Titan(w).ask(START, strings=("/page", "h", "/", "run", ""))["text"]
        assert "signal" in Titan(w).ask(SIGNAL, number=signal.SIGSTOP)["text"]
        assert "no such worker" in Titan(w).ask(SIGNAL, number=signal.SIGKILL)["text"]
        (w.dir / "build2").mkdir()
        # A program that another than root may change is none that root starts.
        program = w.dir / "build2/titan-worker"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o757)
        w.spawnd.stop()
        w.spawnd.args = ("--worker", program)
        w.spawnd.start()
        refused("not a file that root alone can change")
        program.chmod(0o755)
        # This one is started; it ends at once, and its end is kept until it is asked for.
        speaks = Titan(w)
        said = speaks.start(w.dir / "fresh")
        assert said["kind"] == STARTED and said["pid"] > 1, said
        assert (w.dir / "fresh").stat().st_uid == ALICE
        until("its end is known", lambda: speaks.ask(ASK)["state"] == ENDED)
        w.spawnd.stop()
        w.spawnd.start()
        speaks = Titan(w)
        end = speaks.ask(ASK, forget=1)
        assert (end["state"], end["code"], end["signal"]) == (ENDED, 0, 0), end
        assert speaks.ask(ASK)["state"] == 0
        # Other users than titan are not heard.
        for uid in (ALICE, 0):
            os.chmod(w.spawnd.socket, 0o666)
            stranger = Titan(w, uid)
            try:
                stranger.s.send(b"x")
                heard = stranger.s.recv(4096)
            except OSError:
                heard = b""
            assert heard == b"", (uid, heard)
    finally:
        w.__exit__(None)


def filtered_calls():
    """a worker has no ptrace, no other process's memory, no name spaces and no mounts"""
    with probe(f"""#!/usr/bin/python3
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    ctypes.set_errno(0)
    return name, getattr(libc, name)(*args), ctypes.get_errno()
print("ids", os.getresuid(), os.getresgid(), os.getgroups(), os.getcwd(), sorted(os.environ))
print(call("ptrace", 0, 0, 0, 0))
print(call("process_vm_readv", os.getppid(), None, 0, None, 0, 0))
print(call("unshare", 0x10000000))
print(call("mount", b"x", b"/", b"tmpfs", 0, None))
for try_uid in (0, {BOB}):
    try:
        os.setuid(try_uid)
        print("became", try_uid)
    except PermissionError:
        print("stayed")
print("open", sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1], flush=True)
""") as (w, speaks):
        said = speaks.start(w.dir / "hers", env=["NCCL_DEBUG=INFO"])
        assert said["kind"] == STARTED, said
        until("its end is known", lambda: speaks.ask(ASK)["state"] == ENDED)
        log = (w.dir / "hers/logs/worker-77.log").read_text()
        assert f"ids {(ALICE,) * 3} {(ALICE,) * 3} [{ALICE}] {w.dir}/hers" in log, log
        for name in ("ptrace", "process_vm_readv", "unshare", "mount"):
            assert f"('{name}', -1, 1)" in log, (name, log)
        assert "became" not in log and log.count("stayed") == 2, log
        assert "LD_" not in log and "'NCCL_DEBUG'" in log and "'HOME'" in log, log
        assert "open [0, 1, 2, 3, 4]" in log, log


def refusals_have_causes():
    """why a start is refused is told, whichever is seen first: what the child says, or its end"""
    with probe("#!/bin/true\n") as (w, speaks):
        (w.dir / "hers/logs").mkdir(mode=0o700)  # root's
        said = [speaks.start(w.dir / "hers", worker=n + 1) for n in range(300)]
        causes = {(s["kind"], s["code"], "Permission denied" in s["text"]) for s in said}
        assert causes == {(REFUSED, -7, True)}, causes


def results_are_theirs():
    """what a user has trained is that user's: read, gone on from by number and by path, and deleted, by titanctl rm, too; it says what it leaves"""
    with World() as w:
        few = {"training__steps": 20}
        first = w.submit(ALICE, **few)
        w.daemon.wait_state(first, "COMPLETED")
        folder = w.dir / "jobs" / str(first)
        saved = [p for p in (folder / "checkpoint").rglob("*") if p.is_file() and p.name != "titan-lock"]
        assert saved and all(p.stat().st_uid == ALICE and p.stat().st_mode & 0o040 for p in saved), [(str(p), oct(p.stat().st_mode)) for p in saved]
        done = w.as_user(ALICE, "resume", first, "--set", "training.steps=30")
        assert done.code == 0, done
        second = int(done.out)
        w.daemon.wait_state(second, "COMPLETED")
        assert w.as_user(BOB, "resume", first).code == 5
        hers = w.dir / "hers"
        hers.mkdir(mode=0o755)
        os.chown(hers, ALICE, ALICE)
        for steps in (20, 30):  # a run that has ended, and the same recipe over its folder
            job = w.submit(ALICE, checkpoint__folder=hers / "run", training__steps=steps)
            w.daemon.wait_state(job, "COMPLETED")
        assert {p.stat().st_uid for p in (hers / "run").rglob("*")} == {ALICE}
        assert w.as_user(ALICE, "rm", second).code == 0 and not (w.dir / "jobs" / str(second)).exists()
        # What she has closed to titand stays, and is named; all else goes.
        (folder / "mine/kept").mkdir(parents=True)
        (folder / "mine/kept/notes").touch()
        for path in (folder / "mine", folder / "mine/kept"):
            os.chown(path, ALICE, ALICE)
            path.chmod(0o700)
        done = w.as_user(ALICE, "rm", first)
        assert done.code == 0 and str(folder) in done.out + done.err, done
        assert not w.as_user(ALICE, "status", first).code == 0
        assert [p.name for p in folder.iterdir()] == ["mine"], list(folder.iterdir())
        assert as_child(ALICE, lambda: subprocess.run(["rm", "-rf", *folder.iterdir()]).returncode) == "0"
        assert not list(folder.iterdir())


def closed_to_titand():
    """coordinator.jobs_as_users: a user trains on data and into a folder that titand cannot even look into; others do not, and a node without
    titan-spawnd takes no such job"""
    with World("[coordinator]\njobs_as_users = true") as w:
        home = w.dir / "home"
        home.mkdir(mode=0o700)
        shutil.copytree(w.text, home / "books")
        (home / "data").symlink_to("books")
        for path in (home, *home.rglob("*")):
            os.lchown(path, ALICE, ALICE)
        keys = {"training.dataset_path": home / "data", "checkpoint.folder": home / "run"}
        assert "Permission" in as_child(TITAN, lambda: os.listdir(home))
        for more in ({}, {"training.steps": 30}):  # the second goes on from the first
            job = w.submit(ALICE, **{"training.steps": 20, **keys, **more})
            w.daemon.wait_state(job, "COMPLETED")
        assert {p.lstat().st_uid for p in home.rglob("*")} == {ALICE} and len(list((home / "run").glob("step-*"))) > 1
        assert w.as_user(ALICE, "rm", job).code == 0

        def refused(uid, text, *args, **more):
            done = w.as_user(uid, "submit", w.dir / "tiny.toml", *args, *overrides({"training.dataset_path": w.text, **more}))
            assert done.code == 5 and text in done.err, done
        refused(ALICE, "is closed to titand", "--fresh", **keys)
        refused(BOB, 'training.dataset_path = "%s" cannot be read by you' % keys["training.dataset_path"], **keys)
        refused(BOB, "cannot be written by you", **{"checkpoint.folder": home / "other"})
        done = w.try_submit(0)
        assert done.code == 2 and "none as root" in done.err and "--for USER" in done.err, done

        def users():
            (node,) = json.loads(w.daemon.ctl("-o", "json", "admin", "check").out)["nodes"]
            return [(f["wrong"], f["text"]) for f in node["findings"] if f["what"] == "users"]
        assert users() == [(False, "workers are their jobs' users")], users()
        (w.dir / "jobs").chmod(0o710)
        found = users()
        assert len(found) == 2 and any(wrong and f"{w.dir}/jobs lacks x for all users" in text for wrong, text in found), found
        (w.dir / "jobs").chmod(0o711)
        w.spawnd.stop()
        assert users()[0][0] and users()[0][1].startswith("no job starts here: titan-spawnd"), users()
        w.spawnd.start()

        w.daemon.stop()
        config = w.dir / "titand.toml"
        config.write_text("".join(line for line in config.read_text().splitlines(True) if not line.startswith("spawnd")))
        w.start()
        s = w.daemon.wait_state(w.submit(ALICE, **keys), "FAILED")
        assert re.search(r"jobs run as their users \(coordinator.jobs_as_users\), and node \S+ has no titan-spawnd", s["reason"]), s
        assert not w.workers() and not int(s.get("restarts", 0)), s


def shared_with_users():
    """checkpoint.shared_with: bob's worker begins from alice's checkpoint, of which others see nothing; the next list takes him back, and all, too"""
    with World() as w:
        def sharing(job, entries, steps):
            done = w.as_user(ALICE, "resume", job, "--set", f"training.steps={steps}", "--set", f"checkpoint.shared_with={entries}")
            assert done.code == 0, done
            w.daemon.wait_state(int(done.out), "COMPLETED")
            return int(done.out)

        def reads(uid):
            """The sizes of all files of checkpoints that the user can read."""
            return as_child(uid, lambda: [len(p.read_bytes()) for p in sorted(checkpoints.glob("step-*/*"))])

        first = w.submit(ALICE, training__steps=10)
        w.daemon.wait_state(first, "COMPLETED")
        checkpoints = w.dir / "jobs" / str(first) / "checkpoint"
        assert reads(BOB) != reads(ALICE)
        second = sharing(first, '["user:bob"]', 20)
        assert reads(BOB) == reads(ALICE) != "[]", (reads(BOB), reads(ALICE))
        assert reads(NOBODY_KNOWN) != reads(ALICE)
        assert "PermissionError" in as_child(BOB, lambda: os.listdir(checkpoints.parent))
        assert "PermissionError" in as_child(BOB, lambda: os.open(checkpoints / "titan-lock", os.O_RDONLY))
        done = w.as_user(BOB, "submit", w.dir / "tiny.toml", "--from", second, "--set", f"training.dataset_path={w.text}", "--set",
                         "training.steps=25", "--set", "elastic.max_workers=1", "--set", "training.global_batch_size=2")
        assert done.code == 0, done
        w.daemon.wait_state(int(done.out), "COMPLETED")
        sharing(second, "[]", 30)
        assert reads(BOB) != reads(ALICE)
        sharing(second, '["*"]', 40)
        assert reads(BOB) == reads(NOBODY_KNOWN) == reads(ALICE), (reads(BOB), reads(ALICE))
        last = sharing(second, "[]", 50)
        assert reads(BOB) == reads(NOBODY_KNOWN) != reads(ALICE), reads(BOB)
        # What was shared is removed with its job as the rest is.
        for job in range(last, first - 1, -1):
            w.as_user(BOB if job == int(done.out) else ALICE, "rm", job)
        assert not [p.name for p in (w.dir / "jobs").iterdir() if p.name[0] != "."], list((w.dir / "jobs").iterdir())


def folders_are_not_believed():
    """links, FIFOs, folders and second names of another's files in the place of each file that titand opens in a user's folder: nothing of the
    other's is shown or changed, nothing waits, and one line is said"""
    kinds = {
        "link": lambda path, secret: path.symlink_to(secret),
        "fifo": lambda path, secret: os.mkfifo(path),
        "folder": lambda path, secret: path.mkdir(),
        "second name": lambda path, secret: os.link(secret, path),
    }
    with World() as w:
        def said(text):
            return [line for line in (w.daemon.state / "titand.log").read_text().splitlines() if text in line]

        def replace(path, how, secret):
            if path.is_dir():
                path.rename(path.with_suffix(".was"))
            else:
                path.unlink()
            kinds[how](path, secret)
            os.chown(path, ALICE, ALICE, follow_symlinks=False) if how != "second name" else None

        his = w.submit(BOB, training__steps=20)
        w.daemon.wait_state(his, "COMPLETED")
        # All of it is bob's, and titand may read it.
        (w.dir / "bobs").mkdir(mode=0o750)
        secrets = {name: w.dir / "bobs" / name for name in ("metrics.jsonl", "ranks", "log", "recipe.toml")}
        (node,) = [n["name"] for n in json.loads(w.daemon.ok("-o", "json", "nodes"))["nodes"]]
        secrets["metrics.jsonl"].write_text('{"step": 777777, "loss": 7.25, "grad_norm": 1, "lr": 1, "tokens": 1}\n')
        secrets["ranks"].write_text(f"777777 0 {node}\n")
        secrets["log"].write_text("bobs-secret\n")
        secrets["recipe.toml"].write_text("bobs-secret\n")
        before = {path: path.read_text() for path in secrets.values()}
        for path in (w.dir / "bobs", *secrets.values()):
            os.chown(path, BOB, TITAN)
            path.chmod(0o750 if path.is_dir() else 0o660)
        for how in kinds:
            job = w.submit(ALICE)
            w.runs(job)
            folder = w.dir / "jobs" / str(job)
            ((worker, pid),) = w.daemon.workers(job).items()
            log = folder / f"logs/worker-{worker}.log"
            until("it has said something", lambda: log.stat().st_size)
            for path, secret in ((folder / "metrics.jsonl", "metrics.jsonl"), (log, "log"), (folder / "recipe.toml", "recipe.toml")):
                replace(path, how, secrets[secret])
            shown = w.daemon.ctl("logs", job)
            assert "bobs-secret" not in shown.out + shown.err, (how, shown)
            line = f'a job\'s logs are not all read folder="{folder}"'
            until("its log has it", lambda: said(line))  # written behind the answer
            assert len(said(line)) == 1, (how, said(str(folder)))
            # Its next worker has its recipe, whatever stood there; nothing is put in the place of a folder.
            os.kill(pid, signal.SIGKILL)
            if how == "folder":
                w.daemon.wait_state(job, "FAILED")
                assert str(folder) in w.daemon.status(job)["reason"], w.daemon.status(job)
            else:
                until("another worker runs", lambda: [p for p in w.daemon.workers(job).values() if p != pid])
                w.runs(job, int(w.steps(job) or 0))
                assert "[model]" in (folder / "recipe.toml").read_text() and not (folder / "recipe.toml").is_symlink()
                replace(folder / "logs/ranks", how, secrets["ranks"])
                assert w.as_user(ALICE, "cancel", job).code == 0
                w.daemon.wait_state(job, "CANCELLED")
                shown = w.daemon.ctl("logs", job)
                assert "bobs-secret" not in shown.out and "777777" not in shown.out, (how, shown)
            until("its metrics were looked for", lambda: said(f"metrics of an ended job may lack steps job={job} "))
            assert len(said(f"metrics of an ended job may lack steps job={job} ")) <= 2  # after the kill, and at the end
            assert "777777" not in w.daemon.ctl("metrics", job).out + str(w.daemon.status(job)), how
            for name in ("flight", "logs"):
                replace(folder / name, "link" if how == "second name" else how, w.dir / "jobs" / str(his) / name)
                shown = w.daemon.ctl(name, job)
                assert not shown.out.strip() or how == "folder", (how, name, shown)
            if how == "link":
                (folder / "checkpoint").rename(folder / "was")
                (folder / "checkpoint").symlink_to(w.dir / "jobs" / str(his) / "checkpoint")
                for args in (("resume", job), ("submit", w.dir / "tiny.toml", "--from", job, "--set", f"training.dataset_path={w.text}")):
                    done = w.as_user(ALICE, *args)
                    assert done.code == 2 and "'checkpoint' is a symbolic link, not a folder" in done.err, (args, done)
            w.as_user(ALICE, "rm", job)
            assert {path: path.read_text() for path in secrets.values()} == before, how
        assert list((w.dir / "jobs" / str(his) / "checkpoint").iterdir())


@contextlib.contextmanager
def delegated():
    """A cgroup of version 2 for a titan-spawnd, and the names of the controllers there."""
    with tempfile.TemporaryDirectory(prefix="titan-cgroup-") as mount:
        subprocess.run(["mount", "-t", "cgroup2", "titan-cgroup", mount], check=True)
        group = Path(mount) / f"titan-spawnd-test-{os.getpid()}"
        group.mkdir()
        try:
            yield group, (Path(mount) / "cgroup.controllers").read_text().split()
        finally:
            try:
                for below in [*group.glob("*/"), group] if group.exists() else []:
                    until("its processes are gone", lambda g=below: not (g / "cgroup.procs").read_text())
                    below.rmdir()
            finally:  # or the folder would be removed with the hierarchy in it
                subprocess.run(["umount", "--lazy", mount], check=True)


def cgroups():
    """a worker and all that it starts are in a cgroup of its own, and end with it, also where titan-spawnd is another one by then"""
    with delegated() as (group, _), probe("#!/bin/sh\nsetsid sleep 1000 &\necho up\nwait\n", "--cgroup", group) as (w, speaks):
        assert speaks.start(w.dir / "hers")["kind"] == STARTED
        own = group / "titan-worker-77"
        until("it has started another", lambda: len((own / "cgroup.procs").read_text().split()) == 2)
        pids = [int(pid) for pid in (own / "cgroup.procs").read_text().split()]
        w.spawnd.stop()
        w.spawnd.start()
        speaks = Titan(w)
        assert speaks.ask(SIGNAL, number=signal.SIGKILL)["kind"] == DONE
        until("both are gone", lambda: not any(map(alive, pids)))
        until("its end is known", lambda: speaks.ask(ASK)["state"] == ENDED)
        assert speaks.ask(ASK, forget=1)["signal"] in (0, signal.SIGKILL)  # not its child any more: seen to end, or not known
        until("its cgroup is gone", lambda: not own.exists())


def limits_that_cannot_be():
    """a job that asks for more memory than its node gives a worker, or for what the node cannot hold, is not started: its reason has the numbers,
    it costs no restart; a limit of the node's file alone that cannot be held is told, and left out"""
    def refused(w, text, **keys):
        job = w.submit(ALICE, **keys)
        s = w.daemon.wait_state(job, "FAILED")
        assert text in s["reason"] and not w.workers() and not int(s.get("restarts", 0)), s

    with World('worker_memory = "64MiB"\nworker_cpus = 0.5', ("--min-uid", "1000")) as w:
        (node,) = [n["name"] for n in json.loads(w.daemon.ok("-o", "json", "nodes"))["nodes"]]
        refused(w, f"the job asks for 1GiB of memory a worker (resources.memory), node {node} gives one 64MiB (agent.worker_memory)",
                resources__memory="1GiB")
        refused(w, f"the job asks for 0.75 processors a worker (resources.cpus), node {node} gives one 0.5 (agent.worker_cpus)",
                resources__cpus=0.75)
        why = "titan-spawnd has no cgroup on this node (--cgroup)"
        refused(w, f"the job limits a worker to 32MiB of memory (resources.memory), which node {node} cannot hold: {why}",
                resources__memory="32MiB")
        over = w.try_submit(ALICE, resources__memory="1EiB")
        assert over.code == 7 and "resources.memory = 1EiB a worker; the largest node has" in over.err, over
        log = (w.daemon.state / "titand.log").read_text()
        assert "workers run without the limits that are configured" in log and f'reason="{why}"' in log, log
        rows = w.daemon.ctl("admin", "check").out
        (row,) = [line for line in rows.splitlines() if " limits " in line]
        assert "WRONG" in row and f"cannot be held: {why}" in row, rows
        w.runs(w.submit(ALICE))
    with delegated() as (group, controllers), World(spawnd=("--cgroup", group)) as w:
        (row,) = [line for line in w.daemon.ctl("admin", "check").out.splitlines() if " limits " in line]
        assert " ok " in row, row
        if "memory" not in controllers:
            refused(w, f"titan-spawnd's cgroup '{group}' has no controller of", resources__memory="32MiB")


def scope():
    """--cgroup auto without systemd: workers run without cgroups, and a job that asks for a limit is told why; what would hold the scope has no
    descriptor open, and ends by SIGTERM"""
    if os.path.isdir("/run/systemd/system"):
        return "systemd runs here, and would make the scope"
    with World(spawnd=("--cgroup", "auto")) as w:
        assert "workers have no cgroups, and cannot be limited" in w.spawnd.log(), w.spawnd.log()
        s = w.daemon.wait_state(w.submit(ALICE, resources__memory="32MiB"), "FAILED")
        assert "titan-spawnd has no cgroup on this node: systemd does not run here" in s["reason"], s
        w.runs(w.submit(ALICE))
    holder = subprocess.Popen([BUILD / "bin/titan-spawnd", "--hold"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert holder.stdout.read() == b""  # it has closed it
    assert holder.poll() is None and not os.listdir(f"/proc/{holder.pid}/fd") and os.readlink(f"/proc/{holder.pid}/cwd") == "/"
    holder.terminate()
    assert holder.wait(deadline()) == -signal.SIGTERM


def scope_is_gone():
    """a cgroup that is taken away while titan-spawnd runs is missed: jobs that ask for a limit are told, others run"""
    with delegated() as (group, _), World(spawnd=("--cgroup", group)) as w:
        until("it is empty", lambda: not (group / "main/cgroup.procs").read_text())
        (group / "main").rmdir()
        group.rmdir()
        s = w.daemon.wait_state(w.submit(ALICE, resources__memory="32MiB"), "FAILED")
        assert f"titan-spawnd's cgroup '{group}' is gone: systemctl restart titan-spawnd" in s["reason"], s
        w.runs(w.submit(ALICE))


def limits_are_written():
    """what a job asks for, and what the node gives one that asks for nothing, is in the files of the worker's cgroup before a process is: in a
    folder that looks like a cgroup, in which the kernel then starts none"""
    files = ("memory.max", "memory.swap.max", "cpu.max", "cgroup.procs")
    with tempfile.TemporaryDirectory(prefix="titan-like-a-cgroup-") as fake:
        fake = Path(fake)
        (fake / "cgroup.subtree_control").touch()
        for n in range(1, 65):
            (fake / f"titan-worker-{n}").mkdir()
            for name in files:
                (fake / f"titan-worker-{n}" / name).touch()

        def written():
            return {tuple((w / name).read_text() for name in files[:3]) for w in fake.glob("titan-worker-*")} - {("", "", "")}

        with World('worker_memory = "64MiB"\nworker_cpus = 0.5', ("--cgroup", fake)) as w:
            assert "workers run without" not in (w.daemon.state / "titand.log").read_text()
            for keys, expected in (({}, ("67108864", "0", "50000 100000")),
                                   ({"resources.memory": "48MiB", "resources.cpus": 0.25}, ("50331648", "0", "25000 100000"))):
                job = w.submit(ALICE, **keys)
                until("its limits are written", lambda e=expected: e in written())
                assert w.daemon.ctl("cancel", "--wait", job).code == 0
            assert not w.workers()


def memory_limit():
    """a worker beyond its limit of memory is ended in its own cgroup, and the numbers are known"""
    limit = 64 << 20
    with delegated() as (group, controllers):
        if "memory" not in controllers:
            return "the memory controller is not one of cgroup version 2 here"
        with probe("#!/usr/bin/python3\nx = bytearray(256 << 20)\n", "--cgroup", group) as (w, speaks):
            assert speaks.start(w.dir / "hers", memory=limit)["kind"] == STARTED
            until("its end is known", lambda: speaks.ask(ASK)["state"] == ENDED)
            end = speaks.ask(ASK)
            assert end["signal"] == signal.SIGKILL and end["oom_kills"] == 1 and end["limit"] == limit, end
            assert limit * 0.9 < end["peak"] <= limit, end


def main():
    reason = enter()
    if reason:
        def skipped():
            """titan-spawnd"""
            return reason
        tap(skipped)
    tap(workers_are_users, restarts_keep_workers, starts_await_spawnd, kills_are_known, users_of_the_node, titand_taken_over, filtered_calls, refusals_have_causes, results_are_theirs,
        closed_to_titand, shared_with_users, folders_are_not_believed, cgroups, limits_that_cannot_be, limits_are_written, scope, scope_is_gone, memory_limit)


main()
