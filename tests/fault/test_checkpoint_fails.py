#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that cannot be written where they were: it is told and tried again, what waits for one waits, and nothing of others is
touched."""
import ctypes
import os
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from folders import LONG, events, in_the_way, keys, reason, steps_in, trains  # noqa: E402
from titan import BIN, SOURCE, Daemon, command, overrides, slow, tap, until  # noqa: E402


def failed_checkpoints_are_told():
    """a folder that goes away in the middle: an event, a counter and the reason; nothing floods; then it is well again"""
    with Daemon(None, "--slots", 2, pace_ms=20) as d:
        folder = d.state / "ck"
        job = d.submit("tiny", keys(d, checkpoint__folder=folder, training__steps=LONG, checkpoint__interval=2))
        until("checkpoints are written", lambda: d.status(job)["checkpoint"])
        back = in_the_way(folder)
        until("several have failed", lambda: d.status(job)["checkpoint_failures"] > 12)
        s = d.status(job)
        assert s["state"] == "RUNNING" and str(folder) in s["reason"] and "folder" in s["reason"], s
        told = until("it is told", lambda: events(d, job, "checkpoint.failed"))
        # One for each cause, and as failures double.
        causes = [e["detail"]["reason"] for e in told]
        changes = sum(a != b for a, b in zip(causes, causes[1:]))
        assert len(told) <= d.status(job)["checkpoint_failures"].bit_length() + 1 + changes, [e["message"] for e in told]
        assert told[0]["detail"]["path"] == str(folder) and told[0]["detail"]["reason"], told[0]
        back()
        until("one is written again", lambda: not reason(d, job))
        until("so it is told", lambda: any("not written" in e["message"] for e in events(d, job, "checkpoint.committed")))
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
            job = d.submit("tiny", keys(d, checkpoint__folder=place / "ck", training__steps=LONG, checkpoint__interval=2))
            until("several have failed", lambda: d.status(job)["checkpoint_failures"] > 6)
            assert "No space" in reason(d, job), reason(d, job)
            failures = d.status(job)["checkpoint_failures"]

            def more_have_failed():
                there = list((place / "ck").glob(".step-*"))
                assert len(there) <= 1, there
                return d.status(job)["checkpoint_failures"] > failures + 6
            until("more have failed", more_have_failed)
            d.ok("cancel", job)
            d.wait_state(job, "CANCELLED")
            left = list((place / "ck").glob(".step-*"))
            assert not left, left
        finally:
            command("umount", "-l", place)


def last_checkpoint_is_waited_for():
    """a run with a last checkpoint that cannot be written says so, keeps its state, and completes when it can"""
    with Daemon(None, "--slots", 2, pace_ms=50) as d:
        folder = d.state / "ck"
        job = d.submit("tiny", keys(d, checkpoint__folder=folder, training__steps=60, checkpoint__interval=20))
        trains(d, job)
        back = in_the_way(folder)
        until("all steps are done", lambda: d.status(job)["step"] == 60)
        until("the failure is told", lambda: "step 60 was not written" in reason(d, job))
        failures = d.status(job)["checkpoint_failures"]

        def tried_again():
            s = d.status(job)
            assert s["state"] == "RUNNING" and s["epoch"] == 1 and s["step"] == 60, s
            return s["checkpoint_failures"] > failures + 1
        until("it was tried again, twice", tried_again)
        back()
        s = d.wait_state(job, "COMPLETED")
        assert s["epoch"] == 1 and s["restarts"] == 0 and s["checkpoint"].endswith("step-00000060"), s

        job = d.submit("tiny", keys(d, checkpoint__folder=d.state / "ck2", training__steps=60, checkpoint__interval=1000,
                                    fault_tolerance__checkpoint_retry_s=1))
        trains(d, job)
        in_the_way(d.state / "ck2")
        s = d.wait_state(job, "FAILED", "COMPLETED")
        assert s["state"] == "FAILED" and "last checkpoint" in s["reason"] and "step 60" in s["reason"], s
        assert s["epoch"] == 1 and s["restarts"] == 0, s


def checkpoint_of_a_preempted_job():
    """a job that has to give way keeps its state until its checkpoint is written, says so, and goes on from there; when
    the time for it is over it gives way without, and says what is missing"""
    with Daemon(None, "--slots", 2, pace_ms=20) as d:
        folder = d.state / "ck"
        low = d.submit("tiny", keys(d, checkpoint__folder=folder, training__steps=LONG, checkpoint__interval=LONG))
        trains(d, low, 5)
        back = in_the_way(folder)
        high = d.submit("tiny", keys(d, training__steps=10, job__priority=5))
        until("two attempts have failed", lambda: d.status(low)["checkpoint_failures"] > 1)
        s = d.status(low)
        assert "was not written" in s["reason"] and str(folder) in s["reason"] and s["state"] != "PENDING", s
        until("it is told", lambda: events(d, low, "checkpoint.failed"))
        back()
        until("it has given way", lambda: d.status(low)["preemptions"] == 1)
        at = steps_in(folder)
        assert len(at) == 1 and at[0] > 5, at
        d.wait_state(high, "COMPLETED")
        until("it trains again", lambda: d.status(low)["step"] > at[0])
        until("its metrics are there", lambda: d.lines("metrics", low)[-1]["step"] > at[0])
        assert d.status(low)["restarts"] == 0
        d.ok("cancel", low)
        d.wait_state(low, "CANCELLED")

        low = d.submit("tiny", keys(d, checkpoint__folder=d.state / "ck2", training__steps=LONG, checkpoint__interval=LONG,
                                    fault_tolerance__checkpoint_retry_s=1))
        trains(d, low, 5)
        in_the_way(d.state / "ck2")
        d.submit("tiny", keys(d, training__steps=LONG, job__priority=5))
        s = until("it has given way", lambda: (lambda s: s["preemptions"] == 1 and s["state"] == "PENDING" and s)(d.status(low)))
        assert "preempted" in s["reason"] and "was not written" in s["reason"], s
        last = until("it is told", lambda: [m for m in (e["message"] for e in events(d, low, "job.state")) if m.startswith("pending: preempted")])[-1]
        assert "was not written" in last, last


@slow
def ordered_into_anothers_folder():
    """checkpoint.enable = false: a checkpoint that is ordered takes the folder first; another run's stays as it is"""
    with Daemon(None, "--slots", 6, pace_ms=100) as d:
        folder, off = d.state / "ck", {"checkpoint__enable": "false", "training__steps": LONG}

        def ordered(job, why):
            failures = d.status(job)["checkpoint_failures"]
            d.ok("checkpoint", job)
            until("it is written or not", lambda: d.status(job)["checkpoint_failures"] > failures or d.status(job)["checkpoint"])
            assert why in reason(d, job) and str(folder.parent) in reason(d, job), reason(d, job)
            assert d.status(job)["state"] == "RUNNING" and not d.status(job)["checkpoint"], d.status(job)

        first = d.submit("tiny", keys(d, checkpoint__folder=folder, training__steps=20))
        d.wait_state(first, "COMPLETED")
        # The same step, whichever the order comes at.
        for step in set(range(1, 600)) - set(steps_in(folder)):
            (folder / f"step-{step:08d}").mkdir()
            os.link(folder / "step-00000020/manifest.json", folder / f"step-{step:08d}/manifest.json")

        def what_is_there():
            return {str(p.relative_to(folder)) for p in folder.rglob("*")}, (folder / "titan-owner.json").read_text()
        before = what_is_there()
        other = d.submit("tiny", keys(d, checkpoint__folder=folder, optimizer__lr="1e-5", **off))
        trains(d, other)
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
        trains(d, first)
        refused = d.ctl("submit", SOURCE / "recipes/tiny.toml", *overrides(keys(d, checkpoint__folder=folder, **off)))
        assert refused.code == 6 and f"in use by job {first}" in refused.err, (refused.code, refused.err)
        (d.state / "link").symlink_to(folder)
        before = what_is_there()
        other = d.submit("tiny", keys(d, checkpoint__folder=d.state / "link", fault_tolerance__checkpoint_retry_s=1, **off))
        trains(d, other)
        ordered(other, f"in use by job {first}")
        d.ok("cancel", other, "--checkpoint")
        d.wait_state(other, "CANCELLED")
        assert "was not written" in reason(d, other) and "there is no checkpoint" in reason(d, other), reason(d, other)
        assert what_is_there() == before, "the folder of a running job was written"
        d.ok("cancel", first)
        d.wait_state(first, "CANCELLED")

        # Two that write none may name the same folder; the first that has to write takes it.
        fresh = d.state / "fresh"
        one, two = (d.submit("tiny", keys(d, checkpoint__folder=fresh, **off)) for _ in range(2))
        trains(d, one), trains(d, two)
        d.ok("checkpoint", one)
        until("it is written", lambda: d.status(one)["checkpoint"])
        ordered(two, f"in use by job {one}")
        d.ok("checkpoint", one)
        until("another is written", lambda: len(events(d, one, "checkpoint.committed")) == 2)
        assert d.status(one)["checkpoint_failures"] == 0


def read_only_for_one_rank():
    """one rank's node has the folder read-only for a time: checkpoints fail, none holds training up, and then one is written"""
    with tempfile.TemporaryDirectory(prefix="titan-folders-") as aside:
        folder, beside, program = Path(aside) / "ck", Path(aside) / "beside", Path(aside) / "worker"
        folder.mkdir()
        beside.mkdir()
        program.write_text(f"""#!/bin/sh
case "$*" in *"--worker 2 "*) ;; *) exec "{BIN}/titan-worker" "$@" ;; esac
exec unshare -m --propagation slave "{BIN}/titan-worker" "$@"
""")
        program.chmod(0o755)
        if command("unshare", "-m", "mount", "--bind", folder, folder).code != 0:
            return "no mounts of its own here"
        with Daemon(None, "--slots", 2, "--worker", program) as d:
            job = d.submit("tiny", keys(d, checkpoint__folder=folder, training__steps=LONG, checkpoint__interval=3))
            until("checkpoints are written", lambda: d.status(job)["checkpoint"])

            def there(*words):
                done = command("nsenter", "-m", "-t", d.workers(job)[2], *words)
                assert done.code == 0, done.err
            # Read-only before it is where a file may be opened.
            there("sh", "-c", 'mount --bind "$0" "$1" && mount -o remount,bind,ro "$1" && mount --bind "$1" "$0"', folder, beside)
            until("checkpoints fail", lambda: d.status(job)["checkpoint_failures"] > 5)
            assert "Read-only file system" in reason(d, job), reason(d, job)
            there("umount", "-l", folder)
            until("one is written", lambda: not reason(d, job))
            assert d.status(job)["epoch"] == 1 and d.status(job)["restarts"] == 0, d.status(job)
            d.ok("cancel", job)
            d.wait_state(job, "CANCELLED")


def exchange(one, other):
    """At no moment is a name missing: a writer would make the folder anew."""
    at_cwd, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    done = ctypes.CDLL(None, use_errno=True).renameat2(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), swap)
    assert done == 0, f"{one} and {other}: {os.strerror(ctypes.get_errno())}"


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
        job = d.submit("tiny", keys(d, checkpoint__folder=way / "ck", job__follow_links="false", training__steps=LONG, checkpoint__interval=4))
        until("checkpoints are written", lambda: d.status(job)["checkpoint"])
        for swapped, target in ((way / "ck", others / "ck"), (way, others)):
            aside = swapped.with_name(swapped.name + "-aside")
            aside.symlink_to(target)
            exchange(swapped, aside)
            epoch, failed = d.status(job)["epoch"], d.status(job)["checkpoint_failures"]
            os.kill(max(d.workers(job).values()), signal.SIGKILL)
            until("another epoch trains", lambda: d.status(job)["epoch"] > epoch and d.status(job)["state"] == "RUNNING")
            until("it says that it cannot write there", lambda: d.status(job)["checkpoint_failures"] > failed + 2)
            assert what_is_there() == before, set(before) ^ set(what_is_there())
            exchange(swapped, aside)
            aside.unlink()
            until("one is written again", lambda: not reason(d, job))
        # Where nothing is behind the link, nothing is made there.
        empty, aside = d.state / "empty", d.state / "way-aside"
        empty.mkdir()
        aside.symlink_to(empty)
        exchange(way, aside)
        failed = d.status(job)["checkpoint_failures"]
        until("it says that it cannot write there", lambda: d.status(job)["checkpoint_failures"] > failed + 2)
        assert not list(empty.iterdir()), list(empty.iterdir())
        d.ok("cancel", job)
        d.wait_state(job, "CANCELLED")


if __name__ == "__main__":
    tap(failed_checkpoints_are_told, full_disk_leaves_nothing, last_checkpoint_is_waited_for, checkpoint_of_a_preempted_job,
        ordered_into_anothers_folder, read_only_for_one_rank, swapped_for_a_link)
