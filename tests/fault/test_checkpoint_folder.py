#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The folder of checkpoints: one that cannot be used is said at once, nothing that was saved is lost, one run at a time uses it,
and no more stay than are wanted."""
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from folders import KEYS, LONG, events, keys, solo, steps_in, trains  # noqa: E402
from titan import BIN, SOURCE, Daemon, command, overrides, tap, under_permissions, until  # noqa: E402


def ended_by(d, job, folder):
    """Status of a job with a folder that cannot be used. It has failed before its first step, and nothing was tried again."""
    s = d.wait_state(job, "FAILED", "COMPLETED")
    assert s["state"] == "FAILED", f"{folder}: {s['state']} without a checkpoint"
    assert str(folder) in s["reason"] and s["step"] == 0 and s["restarts"] == 0, s
    started = events(d, job, "worker.started")
    assert len(started) <= KEYS["elastic.max_workers"], started
    return s


def fails_at_once(d, folder):
    return ended_by(d, d.submit("tiny", keys(d, checkpoint__folder=folder)), folder)


def unusable_folders_fail_at_once():
    """folders that cannot be made: the job fails before its first step, with the path and the cause in its status"""
    with Daemon(None, "--slots", 2) as d:
        (d.state / "file").write_text("x")
        cases = {"/proc/nowhere/ck": "No such file", "/dev/null/ck": "Not a directory",
                 f"{d.state}/file": "not a folder", f"{d.state}/file/ck": "Not a directory",
                 "/sys/kernel/ck": "not permitted" if os.geteuid() == 0 else "denied"}
        for folder, why in cases.items():
            s = fails_at_once(d, folder)
            assert why in s["reason"], s["reason"]
            run = command(BIN / "titan-worker", "run", SOURCE / "recipes/tiny.toml", "-n", 2, "--dir", d.state / "solo",
                          *overrides(keys(d, checkpoint__folder=folder)))
            assert run.code != 0 and folder in run.err, (run.code, run.err)


def read_only_file_system():
    """a folder on a read-only file system, and one without the right to write"""
    with Daemon(None, "--slots", 2) as d:
        place = d.state / "ro"
        place.mkdir()
        if command("mount", "-t", "tmpfs", "-o", "ro", "none", place).code != 0:
            return "cannot mount"
        try:
            s = fails_at_once(d, place / "ck")
            assert "Read-only" in s["reason"], s
        finally:
            command("umount", place)


@under_permissions
def no_right_to_write():
    """a folder without the right to write in it"""
    with Daemon(None, "--slots", 2) as d:
        closed = d.state / "closed"
        closed.mkdir(mode=0o555)
        for folder in (closed, closed / "ck"):
            s = fails_at_once(d, folder)
            assert "denied" in s["reason"], s
        closed.chmod(0o755)


def same_recipe_resumes():
    """the identical submit goes on from the newest checkpoint; another recipe is refused by the key that differs"""
    with Daemon(None, "--slots", 2, pace_ms=20) as d:
        folder = d.state / "ck"
        job = d.submit("tiny", keys(d, checkpoint__folder=folder, training__steps=LONG))
        until("it has checkpoints", lambda: len(steps_in(folder)) == 2)
        d.ok("cancel", job)
        d.wait_state(job, "CANCELLED")
        out = d.state / "hf"
        assert d.ctl("convert", job, out).code == 0 and (out / "config.json").exists()
        again = d.ctl("convert", job, out)
        assert again.code == 6 and "not empty" in again.err, (again.code, again.err)
        assert d.ctl("convert", job, out, "--force").code == 0
        until("two are left", lambda: len(steps_in(folder)) == 2)
        before = steps_in(folder)

        another = ("submit", SOURCE / "recipes/tiny.toml", *overrides(keys(d, checkpoint__folder=folder, optimizer__lr="1e-5")))
        other = d.ctl(*another)
        assert other.code == 6 and f"another recipe, by job {job}: optimizer.lr = 1e-05, there 0.003" in other.err, other.err
        # Without the owner's file the workers look at the newest checkpoint.
        (folder / "titan-owner.json").rename(d.state / "aside")
        other = d.ctl(*another)
        assert other.code == 0 and not other.err, other.err
        job = int(other.out)
        s = d.wait_state(job, "FAILED", "COMPLETED")
        assert s["state"] == "FAILED" and "optimizer.lr" in s["reason"] and str(folder) in s["reason"], s
        assert steps_in(folder) == before
        none = d.ctl("generate", job, "--prompt", "x")
        assert none.code == 3 and f"job {job} failed before its first checkpoint" in none.err, none.err

        (d.state / "aside").rename(folder / "titan-owner.json")
        end = before[-1] + 5
        same = d.ctl("submit", SOURCE / "recipes/tiny.toml",
                     *overrides(keys(d, checkpoint__folder=folder, training__steps=end)))
        job = int(same.out)
        assert same.err.splitlines(keepends=True)[-1] == f"titanctl: job {job} resumes from the checkpoint of step {before[-1]} in {folder}\n", same.err
        s = d.wait_state(job, "COMPLETED", "FAILED")
        assert s["state"] == "COMPLETED" and s["step"] == end, s
        assert d.lines("metrics", job)[0]["step"] == before[-1] + 1
        assert any(e["detail"].get("rung") == "checkpoint" for e in d.lines("events", job) if e.get("detail"))
        until("two are left", lambda: len(steps_in(folder)) == 2)
        assert steps_in(folder)[-1] == end, steps_in(folder)
        run = d.ctl("run", SOURCE / "recipes/tiny.toml", "--state-dir", d.state / "run",
                    *overrides(keys(d, checkpoint__folder=folder, training__steps=end + 5)))
        assert run.code == 0 and f"resumes from the checkpoint of step {end} in {folder}" in run.err, run.err


def one_run_at_a_time():
    """a folder that another job or run is using is refused by that run's name"""
    with Daemon(None, "--slots", 4, pace_ms=20) as d:
        folder = d.state / "ck"
        first = d.submit("tiny", keys(d, checkpoint__folder=folder, training__steps=LONG))
        trains(d, first)
        run = command(BIN / "titan-worker", "run", SOURCE / "recipes/tiny.toml", "-n", 2, "--dir", d.state / "solo",
                      *overrides(keys(d, checkpoint__folder=folder)))
        assert run.code == 6 and f"in use by job {first}" in run.err, (run.code, run.err)
        for same in (folder, f"{d.state}//./ck/"):
            second = d.ctl("submit", SOURCE / "recipes/tiny.toml", *overrides(keys(d, checkpoint__folder=same)))
            assert second.code == 6 and f"in use by job {first}" in second.err, (second.code, second.err)
        # By another way to the same folder it is found by its lock.
        (d.state / "link").symlink_to(folder)
        third = d.submit("tiny", keys(d, checkpoint__folder=d.state / "link"))
        s = d.wait_state(third, "FAILED", "COMPLETED")
        assert s["state"] == "FAILED" and f"in use by job {first}" in s["reason"], s
        # A worker that takes another's place shares the folder.
        os.kill(max(d.workers(first).values()), signal.SIGKILL)
        until("it has recovered", lambda: any(e["type"] == "recovery.finished" for e in d.lines("events", first)))
        at = d.status(first)["step"]
        until("both workers train again", lambda: d.status(first)["world_size"] == 2 and d.status(first)["step"] > at)
        assert d.status(first)["checkpoint_failures"] == 0
        d.ok("cancel", first)


def kept_by_what_is_there():
    """checkpoint.keep_latest_k: as many are on the disk, also with one after each step"""
    with Daemon(None, "--slots", 2) as d:
        folder = d.state / "ck"
        job = d.submit("tiny", keys(d, checkpoint__folder=folder, checkpoint__interval=1, training__steps=30))
        d.wait_state(job, "COMPLETED")
        until("two are left", lambda: steps_in(folder) == [29, 30])
        listed = [int(c["step"]) for c in json.loads(d.ok("-o", "json", "checkpoints", job))["checkpoints"]]
        assert sorted(listed) == [29, 30], listed


def kept_without_titand():
    """checkpoint.keep_latest_k while there is no titand: no more stay than with one, then and when it is back"""
    with Daemon(None, "--slots", 2, pace_ms=20) as d:
        folder = d.state / "ck"
        job = d.submit("tiny", keys(d, checkpoint__folder=folder, checkpoint__interval=1, training__steps=LONG))
        until("it has checkpoints", lambda: len(steps_in(folder)) == 2)
        d.kill()
        last = steps_in(folder)[-1]
        until("ten more are written", lambda: (steps_in(folder) or [0])[-1] > last + 10)
        assert len(steps_in(folder)) <= 3, steps_in(folder)  # one is removed when the next is there
        d.start()
        until("it trains on", lambda: d.status(job)["step"] > last + 20)
        assert len(steps_in(folder)) <= 3, steps_in(folder)
        d.ok("cancel", job)
        d.wait_state(job, "CANCELLED")
        until("two are left", lambda: len(steps_in(folder)) == 2)


def kept_when_a_run_begins():
    """checkpoint.keep_latest_k: what a killed run left beyond it goes when the next one begins, though that writes none
    itself; another recipe's stay"""
    with tempfile.TemporaryDirectory() as name:
        d = Path(name)
        assert solo(d, training__steps=40, checkpoint__keep_latest_k=4).code == 0
        assert steps_in(d / "ck") == [10, 20, 30, 40]
        manifest = d / "ck/step-00000020/manifest.json"
        hash_of = json.loads(manifest.read_text())["recipe_hash"]
        manifest.write_text(manifest.read_text().replace(hash_of, "0" * 16))
        again = solo(d, training__steps=40)
        assert again.code == 0 and "checkpoint written" not in again.err, again.err
        assert steps_in(d / "ck") == [20, 30, 40]


if __name__ == "__main__":
    tap(unusable_folders_fail_at_once, read_only_file_system, no_right_to_write, same_recipe_resumes, one_run_at_a_time,
        kept_by_what_is_there, kept_without_titand, kept_when_a_run_begins)
