#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What one user may have ([limits] user_*): beyond it a submit is refused by name, value and what to do, or waits and says for what; another user
notices nothing. A user is a job's owner: a token's and one that an operator names are the same."""
import contextlib
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, CALM, Daemon, SOURCE, command, headers_text, overrides, tap, until  # noqa: E402

LONG = 1000000


class Site:
    """A titand with these limits and four slots, or as many."""

    def __init__(self, slots=4, where=None, **limits):
        self.home = tempfile.TemporaryDirectory(prefix="titan-quotas-")
        text = headers_text(Path(self.home.name) / "text", 1 << 18)
        config = Path(self.home.name) / "c.toml"
        config.write_text(f'{CALM}\n[limits]\n' + "".join(f"{k} = {v}\n" for k, v in limits.items()) + f'[storage]\ndata_roots = ["{text}"]\n')
        self.keys = {"training.dataset_path": text, "training.steps": LONG, "training.seq_len": 16, "training.local_batch_size": 1,
                     "training.global_batch_size": 4, "elastic.max_workers": 1, "device.threads": 1, "checkpoint.enable": "false"}
        self.daemon = Daemon(where, "--slots", slots, "--config", config, pace_ms=20)

    def __enter__(self):
        self.daemon.start()
        until("the node is there", lambda: "ready" in self.daemon.ctl("nodes").out)
        return self

    def __exit__(self, *what):
        self.daemon.__exit__(*what)
        self.home.cleanup()

    def try_submit(self, user, *args, **more):
        keys = {**self.keys, **{k.replace("__", "."): v for k, v in more.items()}}
        return self.daemon.ctl("submit", SOURCE / "recipes/tiny.toml", *overrides(keys), "--for", user, *args)

    def submit(self, user, *args, **more):
        done = self.try_submit(user, *args, **more)
        assert done.code == 0, done
        return int(done.out)

    def state(self, job):
        return self.daemon.status(job)["state"]


def refused(done, *words):
    assert done.code == 1 and all(w in done.err for w in words), done


def jobs_that_wait():
    """limits.user_pending_jobs: what waits and what is being stored counts, of this owner alone, whatever proves it"""
    with Site(slots=1, user_pending_jobs=2) as s:
        runs = s.submit("bob")
        s.daemon.wait_state(runs, "RUNNING")
        waits = [s.submit("alice") for _ in range(2)]
        words = "alice has 2 of 2 jobs that may wait of one user (limits.user_pending_jobs)", "cancel some"
        refused(s.try_submit("alice"), *words)
        token = s.daemon.ok("token", "create", "alice", "--role", "user", "--ttl", "1h").strip()
        refused(command(BIN / "titanctl", "-s", s.daemon.server, "submit", SOURCE / "recipes/tiny.toml", *overrides(s.keys),
                        env={**os.environ, "TITAN_TOKEN": token}), *words)
        s.submit("carol")
        s.daemon.ok("cancel", waits[0])
        s.submit("alice")


def submits_within_a_minute():
    """limits.user_submits_per_minute: a sweep stops where its user's minute is used up, another user's goes on"""
    with Site(user_submits_per_minute=3) as s:
        done = s.try_submit("alice", "--sweep", "training.seed=1,2,3,4,5")
        refused(done, "alice has submitted 3 of 3 jobs that one user may submit within a minute (limits.user_submits_per_minute)", "try again in ")
        assert len(done.out.split()) == 3
        s.submit("bob")


def slots_of_a_user():
    """limits.user_slots: a job beyond them waits and says so, one that can never have as many is refused, another user's starts"""
    with Site(user_slots=2) as s:
        refused(s.try_submit("alice", elastic__min_workers=4, elastic__max_workers=4),
                "the run needs 4 workers, and one user may have 2 slots (limits.user_slots)")
        first = [s.submit("alice") for _ in range(2)]
        for job in first:
            s.daemon.wait_state(job, "RUNNING")
        third = s.submit("alice")
        assert s.daemon.status(third)["reason"] == "waiting: alice runs on 2 of 2 slots that one user may have (limits.user_slots)"
        assert "limits.user_slots" in s.daemon.ok("list", "--wide")
        s.daemon.wait_state(s.submit("bob"), "RUNNING")
        assert s.state(third) == "PENDING"
        s.daemon.ok("cancel", first[0])
        s.daemon.wait_state(third, "RUNNING")


def bytes_on_disk():
    """limits.user_disk_mb: a user's jobs have more below jobs_dir: it is said of what runs, no more is taken, and is again when jobs are removed"""
    with Site(user_disk_mb=1) as s:
        writes = {"checkpoint__enable": "true", "checkpoint__interval": 1, "checkpoint__keep_latest_k": 0}
        job = s.submit("alice", **writes)
        words = "that one user may have below jobs_dir (limits.user_disk_mb)"
        until("it is said", lambda: words in (s.daemon.status(job)["reason"] or ""))
        refused(s.try_submit("alice"), "alice has ", "of 1.0 MiB " + words, "titanctl rm")
        s.submit("bob")
        assert s.state(job) == "RUNNING"
        s.daemon.ok("cancel", job)
        s.daemon.wait_state(job, "CANCELLED")
        s.daemon.kill()
        s.daemon.start()  # it is measured again
        until("it is known again", lambda: words in s.try_submit("alice").err)
        for job in [j["id"] for j in s.daemon.jobs() if j["user"] == "alice"]:
            s.daemon.ctl("cancel", job)
            s.daemon.wait_state(job, "CANCELLED")
            s.daemon.ok("rm", job)
        s.submit("alice")


def full_state_directory():
    """one user's checkpoints fill the state directory: another one's fail by name and its run goes on, the store too; an operator makes room"""
    if os.geteuid() != 0:
        return "needs root for a small file system"
    with tempfile.TemporaryDirectory(prefix="titan-full-") as where, contextlib.ExitStack() as ends:
        if command("mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", where).code:
            return "tmpfs cannot be mounted here"
        ends.callback(command, "umount", "-l", where)
        with Site(where=Path(where) / "state", user_disk_mb=4) as s:
            d = s.daemon
            writes = {"checkpoint__enable": "true", "checkpoint__keep_latest_k": 0}
            mallory = s.submit("mallory", checkpoint__interval=1, **writes)
            bob = s.submit("bob", checkpoint__interval=50, **writes)
            words = "that one user may have below jobs_dir (limits.user_disk_mb)"
            until("it is said of mallory", lambda: words in (d.status(mallory)["reason"] or ""))
            refused(s.try_submit("mallory"), words)
            until("bob's checkpoints fail", lambda: d.status(bob)["checkpoint_failures"])
            (failed, *_) = [e for e in d.lines("events", bob) if e["type"] == "checkpoint.failed"]
            assert "No space left on device" in failed["message"], failed
            step = d.status(bob)["step"]
            until("bob's run goes on", lambda: d.status(bob)["step"] > step)
            d.ok("cancel", mallory)
            d.wait_state(mallory, "CANCELLED")
            d.ok("rm", mallory)
            written = len([e for e in d.lines("events", bob) if e["type"] == "checkpoint.committed"])
            until("bob's checkpoints are written", lambda: len([e for e in d.lines("events", bob) if e["type"] == "checkpoint.committed"]) > written)
            assert d.status(bob)["restarts"] == 0 and s.state(bob) == "RUNNING", d.status(bob)
            d.stop()
            done = command(BIN / "titanctl", "admin", "verify", "--rederive", d.state)
            assert done.code == 0, done


tap(jobs_that_wait, submits_within_a_minute, slots_of_a_user, bytes_on_disk, full_state_directory)
