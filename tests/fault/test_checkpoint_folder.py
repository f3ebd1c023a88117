#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The folder of checkpoints: one that cannot be used is said at once, what fails is told and tried again, nothing that
was saved is lost, and one run at a time uses it."""
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, FP_BIN, SOURCE, Daemon, at_ms, command, headers_text, overrides, tap, under_permissions, until  # noqa: E402

KEYS = {"training.steps": 60, "elastic.min_workers": 2, "elastic.max_workers": 2, "checkpoint.interval": 10,
        "checkpoint.keep_latest_k": 2, "device.threads": 1, "fault_tolerance.backoff_ms": 50}
LONG = 1000000


def keys(d, **more):
    return {**KEYS, "training.dataset_path": headers_text(d.state / "text"),
            **{k.replace("__", "."): v for k, v in more.items()}}


def events(d, job, kind):
    return [e for e in d.lines("events", job) if e["type"] == kind]


def steps_in(folder):
    return sorted(int(p.name[5:]) for p in Path(folder).glob("step-*"))


def reason(d, job):
    return d.status(job)["reason"] or ""


def fails_at_once(d, folder):
    """Status of a job with a folder that cannot be used. It has failed within a second of its first worker's start: the best of
    three attempts, because other programs use the machine as well."""
    took = []
    while not took or took[-1] > 1000:
        assert len(took) < 3, f"{folder}: failed {took} ms after the start of a worker"
        job = d.submit("tiny", keys(d, checkpoint__folder=folder))
        s = d.wait_state(job, "FAILED", "COMPLETED", seconds=20)
        assert s["state"] == "FAILED", f"{folder}: {s['state']} without a checkpoint"
        assert str(folder) in s["reason"] and s["step"] == 0 and s["restarts"] == 0, s
        took.append(at_ms(s["finished_at"]) - min(at_ms(e["at"]) for e in events(d, job, "worker.started")))
    return s


def in_the_way(folder):
    """Put a file where the folder was; what was there comes back with the returned function."""
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.write_text("in the way")

    def back():
        folder.unlink()
        aside.rename(folder)
    return back


def unusable_folders_fail_at_once():
    """folders that cannot be made: the job fails in its first second, with the path and the cause in its status"""
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


def failed_checkpoints_are_told():
    """a folder that goes away in the middle: an event, a counter and the reason; nothing floods; then it is well again"""
    with Daemon(None, "--slots", 2, pace_ms=20) as d:
        folder = d.state / "ck"
        job = d.submit("tiny", keys(d, checkpoint__folder=folder, training__steps=LONG))
        until("checkpoints are written", lambda: d.status(job)["checkpoint"])
        back = in_the_way(folder)
        until("several have failed", lambda: d.status(job)["checkpoint_failures"] > 12)
        s = d.status(job)
        assert s["state"] == "RUNNING" and str(folder) in s["reason"] and "folder" in s["reason"], s
        told = events(d, job, "checkpoint.failed")
        assert 1 <= len(told) <= 8, [e["message"] for e in told]
        assert told[0]["detail"]["path"] == str(folder) and told[0]["detail"]["reason"], told[0]
        back()
        until("one is written again", lambda: not reason(d, job))
        assert any("not written" in e["message"] for e in events(d, job, "checkpoint.committed"))
        assert d.status(job)["checkpoint_failures"] >= 12
        assert not list(folder.glob(".step-*.probe"))
        d.ok("cancel", job)
        d.wait_state(job, "CANCELLED")


def full_disk_leaves_nothing():
    """a full disk: each checkpoint that fails removes what it has written"""
    with Daemon(None, "--slots", 2, pace_ms=20) as d:
        place = d.state / "small"
        place.mkdir()
        if command("mount", "-t", "tmpfs", "-o", "size=256k", "none", place).code != 0:
            return "cannot mount"
        try:
            job = d.submit("tiny", keys(d, checkpoint__folder=place / "ck", training__steps=LONG))
            until("several have failed", lambda: d.status(job)["checkpoint_failures"] > 6)
            assert "No space" in reason(d, job), reason(d, job)
            most = max(len(list((place / "ck").glob(".step-*"))) for _ in range(50) if not time.sleep(0.01))
            assert most <= 1, most
            d.ok("cancel", job)
            d.wait_state(job, "CANCELLED")
            left = list((place / "ck").glob(".step-*"))
            assert not left, left
        finally:
            command("umount", "-l", place)


def last_checkpoint_is_waited_for():
    """a run with a last checkpoint that cannot be written says so, keeps its state, and completes when it can"""
    with Daemon(None, "--slots", 2, pace_ms=20) as d:
        folder = d.state / "ck"
        job = d.submit("tiny", keys(d, checkpoint__folder=folder, training__steps=150, checkpoint__interval=50))
        until("it trains", lambda: d.status(job)["step"] > 5)
        back = in_the_way(folder)
        until("all steps are done", lambda: d.status(job)["step"] == 150)
        until("the failure is told", lambda: "step 150 was not written" in reason(d, job))
        for _ in range(8):
            time.sleep(0.25)
            s = d.status(job)
            assert s["state"] == "RUNNING" and s["epoch"] == 1 and s["step"] == 150, s
        back()
        s = d.wait_state(job, "COMPLETED", seconds=30)
        assert s["epoch"] == 1 and s["restarts"] == 0 and s["checkpoint"].endswith("step-00000150"), s

        job = d.submit("tiny", keys(d, checkpoint__folder=d.state / "ck2", training__steps=150, checkpoint__interval=1000,
                                    fault_tolerance__checkpoint_retry_s=2))
        until("it trains", lambda: d.status(job)["step"] > 5)
        in_the_way(d.state / "ck2")
        s = d.wait_state(job, "FAILED", "COMPLETED", seconds=60)
        assert s["state"] == "FAILED" and "last checkpoint" in s["reason"] and "step 150" in s["reason"], s
        assert s["epoch"] == 1 and s["restarts"] == 0, s


def checkpoint_of_a_preempted_job():
    """a job that has to give way keeps its state until its checkpoint is written, says so, and goes on from there; when
    the time for it is over it gives way without, and says what is missing"""
    with Daemon(None, "--slots", 2, pace_ms=20) as d:
        folder = d.state / "ck"
        low = d.submit("tiny", keys(d, checkpoint__folder=folder, training__steps=LONG, checkpoint__interval=LONG))
        until("it trains", lambda: d.status(low)["step"] > 5)
        back = in_the_way(folder)
        high = d.submit("tiny", keys(d, training__steps=40, job__priority=5))
        until("two attempts have failed", lambda: d.status(low)["checkpoint_failures"] > 1)
        s = d.status(low)
        assert "was not written" in s["reason"] and str(folder) in s["reason"] and s["state"] != "PENDING", s
        assert events(d, low, "checkpoint.failed")
        back()
        until("it has given way", lambda: d.status(low)["preemptions"] == 1)
        at = steps_in(folder)
        assert len(at) == 1 and at[0] > 5, at
        d.wait_state(high, "COMPLETED")
        until("it trains again", lambda: d.status(low)["step"] > at[0])
        assert d.lines("metrics", low)[-1]["step"] > at[0] and d.status(low)["restarts"] == 0
        d.ok("cancel", low)
        d.wait_state(low, "CANCELLED")

        low = d.submit("tiny", keys(d, checkpoint__folder=d.state / "ck2", training__steps=LONG, checkpoint__interval=LONG,
                                    fault_tolerance__checkpoint_retry_s=1))
        until("it trains", lambda: d.status(low)["step"] > 5)
        in_the_way(d.state / "ck2")
        high = d.submit("tiny", keys(d, training__steps=LONG, job__priority=5))
        until("it has given way", lambda: d.status(low)["preemptions"] == 1)
        s = d.status(low)
        assert s["state"] == "PENDING" and "preempted" in s["reason"] and "was not written" in s["reason"], s
        last = events(d, low, "job.state")[-1]["message"]
        assert last.startswith("pending: preempted") and "was not written" in last, last


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
        before = steps_in(folder)
        assert len(before) == 2, before

        another = ("submit", SOURCE / "recipes/tiny.toml", *overrides(keys(d, checkpoint__folder=folder, optimizer__lr="1e-5")))
        other = d.ctl(*another)
        assert other.code == 6 and f"another recipe, by job {job}: optimizer.lr = 1e-05, there 0.003" in other.err, other.err
        # Without the owner's file the workers look at the newest checkpoint.
        (folder / "titan-owner.json").rename(d.state / "aside")
        other = d.ctl(*another)
        assert other.code == 0 and not other.err, other.err
        job = int(other.out)
        s = d.wait_state(job, "FAILED", "COMPLETED", seconds=30)
        assert s["state"] == "FAILED" and "optimizer.lr" in s["reason"] and str(folder) in s["reason"], s
        assert steps_in(folder) == before
        none = d.ctl("generate", job, "--prompt", "x")
        assert none.code == 3 and f"job {job} failed before its first checkpoint" in none.err, none.err

        (d.state / "aside").rename(folder / "titan-owner.json")
        end = before[-1] + 15
        same = d.ctl("submit", SOURCE / "recipes/tiny.toml",
                     *overrides(keys(d, checkpoint__folder=folder, training__steps=end)))
        job = int(same.out)
        assert same.err == f"titanctl: job {job} resumes from the checkpoint of step {before[-1]} in {folder}\n", same.err
        s = d.wait_state(job, "COMPLETED", "FAILED", seconds=60)
        assert s["state"] == "COMPLETED" and s["step"] == end, s
        assert d.lines("metrics", job)[0]["step"] == before[-1] + 1
        assert any(e["detail"].get("rung") == "checkpoint" for e in d.lines("events", job) if e.get("detail"))
        assert len(steps_in(folder)) == 2 and steps_in(folder)[-1] == end, steps_in(folder)
        run = d.ctl("run", SOURCE / "recipes/tiny.toml", "--state-dir", d.state / "run",
                    *overrides(keys(d, checkpoint__folder=folder, training__steps=end + 5)))
        assert run.code == 0 and f"resumes from the checkpoint of step {end} in {folder}" in run.err, run.err


def one_run_at_a_time():
    """a folder that another job or run is using is refused by that run's name"""
    with Daemon(None, "--slots", 4, pace_ms=20) as d:
        folder = d.state / "ck"
        first = d.submit("tiny", keys(d, checkpoint__folder=folder, training__steps=LONG))
        until("it trains", lambda: d.status(first)["step"] > 10)
        run = command(BIN / "titan-worker", "run", SOURCE / "recipes/tiny.toml", "-n", 2, "--dir", d.state / "solo",
                      *overrides(keys(d, checkpoint__folder=folder)))
        assert run.code == 6 and f"in use by job {first}" in run.err, (run.code, run.err)
        for same in (folder, f"{d.state}//./ck/"):
            second = d.ctl("submit", SOURCE / "recipes/tiny.toml", *overrides(keys(d, checkpoint__folder=same)))
            assert second.code == 6 and f"in use by job {first}" in second.err, (second.code, second.err)
        # By another way to the same folder it is found by its lock.
        (d.state / "link").symlink_to(folder)
        third = d.submit("tiny", keys(d, checkpoint__folder=d.state / "link"))
        s = d.wait_state(third, "FAILED", "COMPLETED", seconds=30)
        assert s["state"] == "FAILED" and f"in use by job {first}" in s["reason"], s
        # A worker that takes another's place shares the folder.
        os.kill(max(d.workers(first).values()), signal.SIGKILL)
        until("it has recovered", lambda: any(e["type"] == "recovery.finished" for e in d.lines("events", first)))
        at = d.status(first)["step"]
        until("both workers train again", lambda: d.status(first)["world_size"] == 2 and d.status(first)["step"] > at)
        assert d.status(first)["checkpoint_failures"] == 0
        d.ok("cancel", first)


def ordered_into_anothers_folder():
    """checkpoint.enable = false: a checkpoint that is ordered takes the folder first; another run's stays as it is"""
    with Daemon(None, "--slots", 6, pace_ms=20) as d:
        folder, off = d.state / "ck", {"checkpoint__enable": "false", "training__steps": LONG}

        def ordered(job, why):
            failures, asked = d.status(job)["checkpoint_failures"], 0

            def told():
                nonlocal asked
                if time.monotonic() > asked + 10:  # an order may be lost with its node's session
                    d.ok("checkpoint", job)
                    asked = time.monotonic()
                return d.status(job)["checkpoint_failures"] > failures or d.status(job)["checkpoint"]
            until("it is written or not", told)
            assert why in reason(d, job) and str(folder.parent) in reason(d, job), reason(d, job)
            assert d.status(job)["state"] == "RUNNING" and not d.status(job)["checkpoint"], d.status(job)

        first = d.submit("tiny", keys(d, checkpoint__folder=folder, training__steps=20))
        d.wait_state(first, "COMPLETED")
        # The same step, whichever the order comes at.
        for step in set(range(1, 5000)) - set(steps_in(folder)):
            (folder / f"step-{step:08d}").mkdir()
            os.link(folder / "step-00000020/manifest.json", folder / f"step-{step:08d}/manifest.json")

        def what_is_there():
            return {str(p.relative_to(folder)) for p in folder.rglob("*")}, (folder / "titan-owner.json").read_text()
        before = what_is_there()
        other = d.submit("tiny", keys(d, checkpoint__folder=folder, optimizer__lr="1e-5", **off))
        until("it trains", lambda: d.status(other)["step"] > 2)
        ordered(other, "checkpoints of another recipe")
        assert what_is_there() == before, "the folder of another recipe was written"
        d.ok("cancel", other)
        d.wait_state(other, "CANCELLED")

        # A run that uses its folder now, by another way to it and by its name.
        for step in folder.glob("step-*"):
            if int(step.name[5:]) > 20 or int(step.name[5:]) < 10:
                (step / "manifest.json").unlink()
                step.rmdir()
        first = d.submit("tiny", keys(d, checkpoint__folder=folder, training__steps=LONG, checkpoint__interval=LONG))
        until("it trains", lambda: d.status(first)["step"] > 2)
        refused = d.ctl("submit", SOURCE / "recipes/tiny.toml", *overrides(keys(d, checkpoint__folder=folder, **off)))
        assert refused.code == 6 and f"in use by job {first}" in refused.err, (refused.code, refused.err)
        (d.state / "link").symlink_to(folder)
        before = what_is_there()
        other = d.submit("tiny", keys(d, checkpoint__folder=d.state / "link", fault_tolerance__checkpoint_retry_s=1, **off))
        until("it trains", lambda: d.status(other)["step"] > 2)
        ordered(other, f"in use by job {first}")
        d.ok("cancel", other, "--checkpoint")
        d.wait_state(other, "CANCELLED")
        assert "no checkpoint was written" in reason(d, other), reason(d, other)
        assert what_is_there() == before, "the folder of a running job was written"
        d.ok("cancel", first)
        d.wait_state(first, "CANCELLED")

        # Two that write none may name the same folder; the first that has to write takes it.
        fresh = d.state / "fresh"
        one, two = (d.submit("tiny", keys(d, checkpoint__folder=fresh, **off)) for _ in range(2))
        until("both train", lambda: min(d.status(one)["step"], d.status(two)["step"]) > 2)
        d.ok("checkpoint", one)
        until("it is written", lambda: d.status(one)["checkpoint"])
        ordered(two, f"in use by job {one}")
        d.ok("checkpoint", one)
        until("another is written", lambda: len(events(d, one, "checkpoint.committed")) == 2)
        assert d.status(one)["checkpoint_failures"] == 0


def swapped_for_a_link():
    """job.follow_links = false: a link in the folder's place, or on the way to it: nothing behind it is removed or made"""
    with Daemon(None, "--slots", 2, pace_ms=20) as d:
        others, way = d.state / "others", d.state / "way"
        for name in (".step-00000007.1", ".removed-step-00000003.1", "step-00000020"):
            (others / "ck" / name).mkdir(parents=True)
            (others / "ck" / name / "manifest.json").write_text("others'")

        def what_is_there():
            return sorted(str(p.relative_to(others)) for p in others.rglob("*"))
        before = what_is_there()
        way.mkdir()
        job = d.submit("tiny", keys(d, checkpoint__folder=way / "ck", job__follow_links="false", training__steps=LONG))
        until("checkpoints are written", lambda: d.status(job)["checkpoint"])
        for swapped, target in ((way / "ck", others / "ck"), (way, others)):
            aside = swapped.with_name(swapped.name + "-aside")
            swapped.rename(aside)
            swapped.symlink_to(target)
            epoch, failed = d.status(job)["epoch"], d.status(job)["checkpoint_failures"]
            os.kill(max(d.workers(job).values()), signal.SIGKILL)
            until("another epoch trains", lambda: d.status(job)["epoch"] > epoch and d.status(job)["state"] == "RUNNING")
            until("it says that it cannot write there", lambda: d.status(job)["checkpoint_failures"] > failed + 2)
            assert what_is_there() == before, set(before) ^ set(what_is_there())
            swapped.unlink()
            aside.rename(swapped)
            until("one is written again", lambda: not reason(d, job))
        # Where nothing is behind the link, nothing is made there.
        (way / "ck").rename(way / "aside")
        way.rename(d.state / "away")
        empty = d.state / "empty"
        empty.mkdir()
        way.symlink_to(empty)
        failed = d.status(job)["checkpoint_failures"]
        until("it says that it cannot write there", lambda: d.status(job)["checkpoint_failures"] > failed + 2)
        assert not list(empty.iterdir()), list(empty.iterdir())
        d.ok("cancel", job)
        d.wait_state(job, "CANCELLED")


def kept_by_what_is_there():
    """checkpoint.keep_latest_k: as many are on the disk, also with one after each step"""
    with Daemon(None, "--slots", 2) as d:
        folder = d.state / "ck"
        job = d.submit("tiny", keys(d, checkpoint__folder=folder, checkpoint__interval=1, training__steps=150))
        d.wait_state(job, "COMPLETED", seconds=120)
        until("two are left", lambda: steps_in(folder) == [149, 150], 10)
        listed = [int(c["step"]) for c in json.loads(d.ok("-o", "json", "checkpoints", job))["checkpoints"]]
        assert sorted(listed) == [149, 150], listed


def kept_without_titand():
    """checkpoint.keep_latest_k while there is no titand: no more stay than with one, then and when it is back"""
    with Daemon(None, "--slots", 2) as d:
        folder = d.state / "ck"
        job = d.submit("tiny", keys(d, checkpoint__folder=folder, checkpoint__interval=1, training__steps=1000000))
        until("it has checkpoints", lambda: len(steps_in(folder)) == 2)
        d.kill()
        last = steps_in(folder)[-1]
        until("ten more are written", lambda: (steps_in(folder) or [0])[-1] > last + 10, 20)
        assert len(steps_in(folder)) <= 3, steps_in(folder)  # one is removed when the next is there
        d.start()
        until("it trains on", lambda: d.status(job)["step"] > last + 20, 30)
        assert len(steps_in(folder)) <= 3, steps_in(folder)
        d.ok("cancel", job)
        d.wait_state(job, "CANCELLED", seconds=30)
        until("two are left", lambda: len(steps_in(folder)) == 2, 10)


def solo(d, failpoints=None, **more):
    env = {**os.environ, "TITAN_FAILPOINTS": failpoints} if failpoints else None
    return command((FP_BIN if failpoints else BIN) / "titan-worker", "run", SOURCE / "recipes/tiny.toml", "-n", 2, "--dir", d / "run",
                   *overrides({**KEYS, "training.dataset_path": headers_text(d / "text"),
                               "checkpoint.folder": d / "ck", **{k.replace("__", "."): v for k, v in more.items()}}),
                   env=env)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def solo_never_begins_again_over_them():
    """titan-worker run: damaged checkpoints are named and the one before is taken; with none left it fails"""
    import tempfile
    with tempfile.TemporaryDirectory() as name:
        d = Path(name)
        assert solo(d, training__steps=40, checkpoint__keep_latest_k=4).code == 0
        assert steps_in(d / "ck") == [10, 20, 30, 40]
        flip(d / "ck/step-00000040/manifest.json")
        flip(d / "ck/step-00000030/rank-00001.safetensors")
        again = solo(d, training__steps=45, checkpoint__keep_latest_k=4)
        assert again.code == 0, again.err
        for bad in ("step-00000040", "step-00000030"):
            assert f"checkpoint refused" in again.err and bad in again.err, again.err
        assert "step=20 state=checkpoint" in again.err, again.err
        for m in (d / "ck").glob("step-*/manifest.json"):
            flip(m)
        before = {p: p.read_bytes() for p in (d / "ck").glob("step-*/*")}
        none = solo(d, training__steps=50)
        assert none.code == 2 and "no checkpoint of this run loads" in none.err, (none.code, none.err)
        assert {p: p.read_bytes() for p in (d / "ck").glob("step-*/*")} == before
        # A FIFO in the place of a manifest is not waited for.
        for m in (d / "ck").glob("step-*/manifest.json"):
            m.unlink()
            os.mkfifo(m)
        none = solo(d, training__steps=50)
        assert none.code == 2 and "FIFO" in none.err, (none.code, none.err)


def kept_when_a_run_begins():
    """checkpoint.keep_latest_k: what a killed run left beyond it goes when the next one begins, though that writes none
    itself; another recipe's stay"""
    import tempfile
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


def solo_stalled():
    """titan-worker run: a checkpoint with a load that stalls is tried once more, then the one before is taken; with none left
    it fails, and so it does when the folder itself does not answer"""
    import tempfile
    with tempfile.TemporaryDirectory() as name:
        d = Path(name)
        keep = {"checkpoint__keep_latest_k": 4, "fault_tolerance__checkpoint_stall_s": 1}
        assert solo(d, training__steps=40, **keep).code == 0
        once = solo(d, "checkpoint.read%1=hang@1", training__steps=41, **keep)
        assert once.code == 0 and "checkpoint stalled" in once.err and "step=40 state=checkpoint" in once.err, once.err
        assert "no answer for 1 s" in once.err, once.err
        twice = solo(d, "checkpoint.read%1=hang@1,checkpoint.read%1=hang@2", training__steps=42, **keep)
        assert twice.code == 0 and "checkpoint refused" in twice.err and "step-00000041" in twice.err, twice.err
        assert "step=40 state=checkpoint" in twice.err, twice.err
        before = {p: p.read_bytes() for p in (d / "ck").glob("step-*/*")}
        for where, said in (("checkpoint.read%0=hang@1+", "no checkpoint of this run loads"),
                            ("folder.take=hang", str(d / "ck")), ("folder.list=hang@1+", "cannot list")):
            none = solo(d, where, training__steps=50, **keep)
            assert none.code != 0 and said in none.err and "no answer for" in none.err, (where, none.code, none.err)
            assert {p: p.read_bytes() for p in (d / "ck").glob("step-*/*")} == before, where


@under_permissions
def solo_without_the_right_to_read():
    """titan-worker run: checkpoints, or their folder, without the right to read them: it fails and leaves them alone"""
    import tempfile
    with tempfile.TemporaryDirectory() as name:
        d = Path(name)
        assert solo(d, training__steps=20).code == 0
        for m in (d / "ck").glob("step-*/manifest.json"):
            m.chmod(0)
        none = solo(d, training__steps=30)
        assert none.code != 0 and "step-00000020" in none.err and "denied" in none.err, (none.code, none.err)
        assert steps_in(d / "ck") == [10, 20]
        (d / "ck").chmod(0)
        none = solo(d, training__steps=30)
        assert none.code != 0 and "denied" in none.err, (none.code, none.err)
        (d / "ck").chmod(0o755)


def kill_all(d, job):
    for pid in d.workers(job).values():
        with contextlib.suppress(ProcessLookupError):  # a stopped one may be killed already
            os.kill(pid, signal.SIGKILL)


def damaged_under_a_job():
    """all checkpoints of a job damaged and all workers lost: it fails with the reason, and never begins again"""
    with Daemon(None, "--slots", 2, pace_ms=20) as d:
        folder = d.state / "ck"
        job = d.submit("tiny", keys(d, checkpoint__folder=folder, training__steps=LONG, checkpoint__interval=20))
        until("it has checkpoints", lambda: len(steps_in(folder)) == 2)
        for pid in d.workers(job).values():
            os.kill(pid, signal.SIGSTOP)
        for m in folder.glob("step-*/manifest.json"):
            flip(m)
        kill_all(d, job)
        s = d.wait_state(job, "FAILED", seconds=60)
        assert "no checkpoint of this run loads" in s["reason"] and "manifest.json" in s["reason"], s
        assert s["restarts"] <= 4, s
        assert "state from init" not in [e["message"] for e in events(d, job, "epoch.forming")][-1]


def stalled_under_a_job():
    """loads that stall, with all workers lost: the job says which, takes the one before, and fails when none answers"""
    for rank, hangs in (("%1", "@1,checkpoint.read%1=hang@2"), ("", "@1+")):
        env = {"TITAN_FAILPOINTS": f"checkpoint.read{rank}=hang{hangs},train.step=sleep:20@1+"}
        with Daemon(None, "--slots", 2, "--worker", FP_BIN / "titan-worker", env=env) as d:
            folder = d.state / "ck"
            job = d.submit("tiny", keys(d, checkpoint__folder=folder, training__steps=LONG, checkpoint__interval=20,
                                        fault_tolerance__checkpoint_stall_s=1))
            until("it has checkpoints", lambda: len(steps_in(folder)) == 2)
            for pid in d.workers(job).values():
                os.kill(pid, signal.SIGSTOP)
            steps = steps_in(folder)
            kill_all(d, job)
            until("it says that one stalls", lambda: events(d, job, "checkpoint.failed"))
            told = events(d, job, "checkpoint.failed")[0]["detail"]
            assert f"step-{steps[-1]:08d}" in told["path"] and "no answer for 1 s" in told["reason"], told
            if rank:
                until("it trains again", lambda: d.status(job)["step"] > steps[0] and d.status(job)["epoch"] > 1)
                until("its origin is told", lambda: len(events(d, job, "state.ready")) == 2)
                ready = events(d, job, "state.ready")[-1]["detail"]
                assert ready["step"] == steps[0], (ready, steps)
                assert f"step-{steps[-1]:08d}" in ready["damaged_checkpoint"], ready
                until("nothing is wrong any more", lambda: not reason(d, job))
            else:
                s = d.wait_state(job, "FAILED", seconds=60)
                assert "no checkpoint of this run loads" in s["reason"] and "no answer" in s["reason"], s
                assert steps_in(folder) == steps


@under_permissions
def unreadable_under_a_job():
    """checkpoints that cannot be read for a while: the job waits, says for which file, and goes on when they can"""
    with Daemon(None, "--slots", 2, pace_ms=20) as d:
        folder = d.state / "ck"
        job = d.submit("tiny", keys(d, checkpoint__folder=folder, training__steps=LONG, checkpoint__interval=20))
        until("it has checkpoints", lambda: len(steps_in(folder)) == 2)
        for pid in d.workers(job).values():
            os.kill(pid, signal.SIGSTOP)
        for m in folder.glob("step-*/manifest.json"):
            m.chmod(0)
        newest = steps_in(folder)[-1]
        kill_all(d, job)
        until("it says what it waits for", lambda: "trying again to read" in reason(d, job) and "denied" in reason(d, job))
        assert f"step-{newest:08d}" in reason(d, job), reason(d, job)
        time.sleep(2)
        restarts = d.status(job)["restarts"]
        assert restarts <= 2, restarts
        for m in folder.glob("step-*/manifest.json"):
            m.chmod(0o644)
        until("it trains again", lambda: d.status(job)["step"] > newest + 1 and not reason(d, job))
        s = d.status(job)
        assert s["restarts"] == restarts, s
        d.ok("cancel", job)


if __name__ == "__main__":
    tap(unusable_folders_fail_at_once, read_only_file_system, no_right_to_write, failed_checkpoints_are_told,
        full_disk_leaves_nothing, last_checkpoint_is_waited_for, checkpoint_of_a_preempted_job, same_recipe_resumes, one_run_at_a_time,
        ordered_into_anothers_folder, swapped_for_a_link, kept_by_what_is_there, kept_without_titand, kept_when_a_run_begins, solo_never_begins_again_over_them, solo_without_the_right_to_read, damaged_under_a_job,
        solo_stalled, stalled_under_a_job,
        unreadable_under_a_job)
