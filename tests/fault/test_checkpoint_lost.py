#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that do not load, do not answer or may not be read: it is said which, the one before is taken, and no run begins again
over them."""
import os
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from folders import LONG, events, flip, keys, reason, solo, steps_in, trains  # noqa: E402
from titan import FP_BIN, Daemon, tap, under_permissions, until  # noqa: E402


def solo_never_begins_again_over_them():
    """titan-worker run: damaged checkpoints are named and the one before is taken; with none left it fails"""
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


def solo_stalled():
    """titan-worker run: a checkpoint with a load that stalls is tried once more, then the one before is taken; with none left
    it fails, and so it does when the folder itself does not answer"""
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


def at_rest(failpoints="", stay=45):
    """A daemon with workers that stand still in one step, with two checkpoints behind them: what is there stays as it is."""
    points = ",".join(filter(None, (failpoints, f"train.step=sleep:10@1+,train.step=hang@{stay}")))
    return Daemon(None, "--slots", 2, "--grace-ms", 500, "--worker", FP_BIN / "titan-worker", env={"TITAN_FAILPOINTS": points})


def submit_and_rest(d, **more):
    """The job, its folder and the steps of its two checkpoints, 20 and 40."""
    folder = d.state / "ck"
    job = d.submit("tiny", keys(d, checkpoint__folder=folder, training__steps=LONG, checkpoint__interval=20, **more))
    trains(d, job, 41)
    until("both checkpoints are told of", lambda: len(events(d, job, "checkpoint.committed")) == 2)
    assert steps_in(folder) == [20, 40], steps_in(folder)
    return job, folder


def kill_all(d, job):
    for pid in d.workers(job).values():
        os.kill(pid, signal.SIGKILL)


def ends(d, job):
    return [e["message"] for e in events(d, job, "worker.exited")]


def damaged_under_a_job():
    """all checkpoints of a job damaged and all workers lost: it fails with the reason, and never begins again"""
    with at_rest() as d:
        job, folder = submit_and_rest(d)
        for m in folder.glob("step-*/manifest.json"):
            flip(m)
        kill_all(d, job)
        s = d.wait_state(job, "FAILED")
        assert "no checkpoint of this run loads" in s["reason"] and "manifest.json" in s["reason"], s
        assert s["restarts"] <= len(ends(d, job)) <= 4, (s, ends(d, job))
        assert "state from init" not in [e["message"] for e in events(d, job, "epoch.forming")][-1]


def stalled_under_a_job():
    """loads that stall, with all workers lost: the job says which, takes the one before, and fails when none answers"""
    for rank, hangs in (("%1", "@1,checkpoint.read%1=hang@2"), ("", "@1+")):
        with at_rest(f"checkpoint.read{rank}=hang{hangs}") as d:
            job, folder = submit_and_rest(d, fault_tolerance__checkpoint_stall_s=2)
            kill_all(d, job)
            until("it says that one stalls", lambda: events(d, job, "checkpoint.failed"))
            told = events(d, job, "checkpoint.failed")[0]["detail"]
            assert "step-00000040" in told["path"] and "no answer for 2 s" in told["reason"], told
            if rank:
                until("it trains again", lambda: d.status(job)["step"] > 20 and d.status(job)["epoch"] > 1)
                until("its origin is told", lambda: len(events(d, job, "state.ready")) == 2)
                ready = events(d, job, "state.ready")[-1]["detail"]
                assert ready["step"] == 20, ready
                assert "step-00000040" in ready["damaged_checkpoint"], ready
                until("nothing is wrong any more", lambda: not reason(d, job))
            else:
                s = d.wait_state(job, "FAILED")
                assert "no checkpoint of this run loads" in s["reason"] and "no answer" in s["reason"], s
                assert steps_in(folder) == [20, 40]


@under_permissions
def unreadable_under_a_job():
    """checkpoints that cannot be read for a while: the job waits, says for which file, and goes on when they can"""
    with at_rest() as d:
        job, folder = submit_and_rest(d)
        for m in folder.glob("step-*/manifest.json"):
            m.chmod(0)
        kill_all(d, job)
        until("it says what it waits for", lambda: "trying again to read" in reason(d, job) and "denied" in reason(d, job))
        assert "step-00000040" in reason(d, job), reason(d, job)
        until("it is tried again, twice", lambda: len(events(d, job, "checkpoint.failed")) > 2)
        for m in folder.glob("step-*/manifest.json"):
            m.chmod(0o644)
        until("it trains again", lambda: d.status(job)["step"] > 41 and d.status(job)["epoch"] > 1 and not reason(d, job))
        # Those that were killed, and none because of the folder.
        assert d.status(job)["restarts"] <= 2 and len(ends(d, job)) == 2, (d.status(job), ends(d, job))
        d.ok("cancel", job)


if __name__ == "__main__":
    tap(solo_never_begins_again_over_them, solo_stalled, solo_without_the_right_to_read, damaged_under_a_job, stalled_under_a_job,
        unreadable_under_a_job)
