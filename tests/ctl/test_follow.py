#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""titanctl over a coordinator that is away for a while: what follows goes on where it was, with no line twice and none lost."""
import difflib
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from nodes import Cluster  # noqa: E402
from titan import BIN, SOURCE, command, deadline, headers_text, overrides, tap, until  # noqa: E402

AWAY, BACK = "waiting for the server: ", "the server is back"


def keys(c, steps, **more):
    return {"training.dataset_path": headers_text(c.dir / "text", 1 << 18), "training.steps": steps, "training.local_batch_size": 1,
            "training.seq_len": 32, "device.threads": 1, "elastic.min_workers": 1, "elastic.max_workers": 1, "checkpoint.interval": 20,
            **{k.replace("__", "."): v for k, v in more.items()}}


class Follower:
    """A titanctl that runs, and what it has printed so far."""

    def __init__(self, c, *args):
        self.args = args
        self.files = [Path(tempfile.mkstemp(dir=c.dir)[1]) for _ in range(2)]
        with open(self.files[0], "w") as out, open(self.files[1], "w") as err:
            self.process = subprocess.Popen([BIN / "titanctl", "--server", c.unix, *map(str, args)], stdin=subprocess.DEVNULL, stdout=out,
                                            stderr=err)

    @property
    def out(self):
        return self.files[0].read_text()

    @property
    def err(self):
        return self.files[1].read_text()

    def lines(self):
        return [json.loads(line) for line in self.out[:self.out.rfind("\n") + 1].splitlines()]

    def ends(self, code):
        got = self.process.wait(deadline())
        assert got == code, (self.args, got, self.err, self.out[-500:])

    def __repr__(self):
        return f"{self.args}: {self.err!r}"


def all_say(followers, text, n):
    until(lambda: f"all say '{text}' {n} times: {[f for f in followers if f.err.count(text) < n]}",
          lambda: all(f.err.count(text) >= n for f in followers))


def coordinator_restarts():
    """events, logs, metrics, audit, wait, attach and submit --follow over SIGKILL and SIGTERM of the coordinator"""
    with Cluster(slots={"n1": 3}, pace_ms=20) as c:
        long = c.submit(keys(c, 1000000))
        short = c.submit(keys(c, 60))
        c.training(long, 1, 3)
        events, every, audit = Follower(c, "-o", "json", "events", long, "-f"), Follower(c, "events", "-f"), Follower(c, "audit", "-f")
        logs, metrics = Follower(c, "logs", long, "-r", 0, "-f"), Follower(c, "-o", "json", "metrics", long, "-f")
        attached, waits, well = Follower(c, "attach", long), Follower(c, "wait", long), Follower(c, "wait", short)
        submitted = Follower(c, "submit", SOURCE / "recipes/tiny.toml", *overrides(keys(c, 1000000)), "--follow")
        everyone = [events, every, audit, logs, metrics, attached, waits, well, submitted]
        for n, end in enumerate((c.kill, c.stop), 1):
            until("all are there", lambda: all(f.out.count("\n") > n for f in (events, every, audit, logs, metrics)) and
                  all(f.err for f in (attached, submitted)))
            end("c")
            all_say(everyone, AWAY, n)
            if n == 1:  # it ends while the coordinator is away
                path = c.dir / "c/jobs" / short / "metrics.jsonl"
                until("the short run is over", lambda: '"step":60,' in path.read_text())
            c.restart_coordinator()
            if n == 1:
                well.ends(0)
                everyone.remove(well)
            all_say(everyone, BACK, n)
            at = c.status(long)["step"]
            until("metrics and logs go on", lambda: metrics.lines()[-1]["step"] > at and f"step={at + 1} " in logs.out)
        c.ctl("cancel", long)
        for f, code in ((events, 0), (logs, 0), (metrics, 0), (attached, 1), (waits, 1)):
            f.ends(code)
        assert [e["id"] for e in events.lines()] == [e["id"] for e in c.events(long)], (events.out, c.events(long))
        whole = c.ctl("logs", long, "-r", 0)
        assert logs.out == whole, "\n".join(difflib.unified_diff(whole.splitlines(), logs.out.splitlines(), "logs", "logs -f", n=1))
        steps = [json.loads(line)["step"] for line in c.ctl("-o", "json", "metrics", long).splitlines()]
        assert [p["step"] for p in metrics.lines()] == steps == list(range(1, len(steps) + 1)), (metrics.lines()[-1], steps[-1])
        everything = [line for line in c.ctl("events").splitlines() if "job 3" not in line]
        until("all events are printed", lambda: every.out.splitlines()[-1:] and c.ctl("events").splitlines()[-1] in every.out)
        printed = [line for line in every.out.splitlines() if "job 3" not in line]
        assert printed == everything, "events -f differ from events"
        assert len(set(audit.out.splitlines())) == len(audit.out.splitlines()) >= 3, audit.out
        for f in (every, audit, submitted):
            f.process.send_signal(signal.SIGINT)
            f.ends(130)


def patience_ends():
    """--server-gone: a command ends with 4 when the server does not come back; one that is not there at first is an error at once"""
    with Cluster(slots={"n1": 1}, pace_ms=20) as c:
        job = c.submit(keys(c, 1000000))
        c.training(job, 1, 3)
        followers = [Follower(c, *args, "--server-gone", "0.5s") for args in
                     (("events", job, "-f"), ("logs", job, "-f"), ("metrics", job, "-f"), ("wait", job), ("attach", job))]
        until("all are there", lambda: all(f.out for f in followers[:3]) and followers[4].err)
        c.kill("c")
        for f in followers:
            f.ends(4)
            assert f.err.count("titanctl: no answer from the server at ") == 1 and AWAY in f.err and BACK not in f.err, f
        for args in (("events", job, "-f"), ("events", "-f"), ("metrics", job, "-f"), ("logs", job, "-f")):
            done = command(BIN / "titanctl", "--server", c.unix, *args)
            assert done.code == 4 and AWAY not in done.err, done
        done = command(BIN / "titanctl", "--server", c.unix, "events", "-f", "--server-gone", "soon")
        assert done.code == 2 and "--server-gone" in done.err, done
        # Submitted, and the coordinator goes before the wait begins.
        begun = Follower(c, "wait", job)
        all_say([begun], AWAY, 1)
        c.restart_coordinator()
        all_say([begun], BACK, 1)
        c.cancel(job)
        begun.ends(1)


tap(coordinator_restarts, patience_ends)
