#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""titanctl with many jobs: sweeps, labels, filters, several at once, attach, nodes, rm and gc, against a real titand."""
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, SOURCE, Daemon, command, deadline, headers_text, overrides, tap, until  # noqa: E402

CTL, TINY, FOR_EVER = BIN / "titanctl", SOURCE / "recipes/tiny.toml", 1000000


class World:
    """What the tests share: a folder, a text, a daemon."""


def keys(steps=2, **more):
    return {"training.dataset_path": World.text, "training.steps": steps, "training.local_batch_size": 2, "device.threads": 1,
            "elastic.min_workers": 1, "elastic.max_workers": 1, **{k.replace("__", "."): v for k, v in more.items()}}


def submit(*args, steps=2, **more):
    return World.daemon.submit(TINY, keys(steps, **more), *args)


def listed(*args):
    return [j["id"] for j in json.loads(World.daemon.ok("-o", "json", "list", *args))["jobs"]]


def refused(done, code, *words):
    assert done.code == code, f"exit {done.code} instead of {code}: {done.err}"
    assert all(word in done.err for word in words), done.err


def sweep():
    """submit --sweep: a job for each combination, checked before the first is sent, labelled, named and found again"""
    d = World.daemon
    before = listed()
    for args, words in ((["optimizer.lr=1e-4,-1"], ["job 2 of 2", "optimizer.lr"]), (["optimizer.lr="], ["empty"]), (["lr"], ["KEY=VALUE"]),
                        (["training.steps=3,4"], ["training.steps is given twice"]),
                        (["optimizer.lr=1", "optimizer.lr=2"], ["given twice"]), (["training.seed=" + ",".join(map(str, range(1, 1002)))], ["1000"]),
                        (["optimizer.lr=1e-4,2e-4,1e-4"], ["optimizer.lr: 1e-4 is given twice"])):
        given = [w for a in args for w in ("--sweep", a)]
        refused(d.ctl("submit", TINY, *overrides(keys()), *given), 2, "--sweep" if "2 of 2" not in words[0] else "", *words)
    # What only the label, name or key of a later one makes too long is found before the first is sent, too.
    refused(d.ctl("submit", TINY, *overrides(keys()), "--sweep", 'metrics.save_tb_folder=tb,"' + "t" * 127 + '"'), 2, "job 2 of 2", "label")
    ten = ("--sweep", "training.seed=1,2,3,4,5,6,7,8,9,10")
    refused(d.ctl("submit", TINY, *overrides(keys()), *ten, "--name", "n" * 126), 2, "job 10 of 10", "name has 129 bytes")
    refused(d.ctl("submit", TINY, *overrides(keys()), *ten, "--idempotency-key", "k" * 126), 2, "job 10 of 10", "key has 129 bytes")
    for name, bytes in (("é" * 1500, 3000), ("n" * 200, 200)):
        refused(d.ctl("submit", TINY, *overrides(keys()), "--name", name), 2, f"name has {bytes} bytes")
    for args, words in ((("--name", "a\tb"), "--name has a control character"), (("--name", " "), "--name has spaces only"),
                        (("--name", "a\u200db"), "--name has a control character, or one that cannot be seen"),
                        (("--idempotency-key", "a\x07"), "--idempotency-key has a control character")):
        done = d.ctl("submit", TINY, *overrides(keys()), *args)
        assert done.code == 2 and done.err.startswith(f"titanctl: {words}") and "Request" not in done.err, done
    refused(d.ctl("submit", TINY, "--follow", "--sweep", "optimizer.lr=1,2"), 2, "titanctl wait")
    refused(d.ctl("submit", "-", "--sweep", "optimizer.lr=1,2", stdin=""), 2, "standard input")
    assert listed() == before
    done = d.ctl("submit", TINY, *overrides(keys()), "--name", "lr", "--label", "team=nlp", "--sweep", "optimizer.lr=1e-4,3e-4",
                 "--sweep", "lr_scheduler.decay_type=\"linear\",cosine", "--idempotency-key", "k")
    assert done.code == 0, done.err
    World.sweep = [int(line) for line in done.out.split()]
    label = done.err.split("the label ")[1].strip()
    assert len(World.sweep) == 4 and "4 of 4 jobs" in done.err, done.err
    assert listed("--label", label) == World.sweep[::-1]
    jobs = [d.status(j) for j in World.sweep]
    assert [j["name"] for j in jobs] == ["lr-1", "lr-2", "lr-3", "lr-4"]
    assert jobs[2]["labels"] == ['lr_scheduler.decay_type="linear"', "optimizer.lr=3e-4", label, "sweep.number=3", "team=nlp"], jobs[2]
    recipe = d.ok("show", World.sweep[3], "--recipe")
    assert "lr = 0.0003\n" in recipe and 'decay_type = "cosine"\n' in recipe, recipe
    assert "optimizer.lr = 0.0001, there 0.0003" in d.ok("diff", World.sweep[0], World.sweep[2])
    again = d.ctl("submit", TINY, *overrides(keys()), "--name", "lr", "--label", "team=nlp", "--sweep", "optimizer.lr=1e-4,3e-4",
                  "--sweep", "lr_scheduler.decay_type=\"linear\",cosine", "--idempotency-key", "k")
    assert [int(line) for line in again.out.split()] == World.sweep, again.err
    assert d.ctl("wait", "--label", label).code == 0
    assert all(d.status(j)["state"] == "COMPLETED" for j in World.sweep)
    World.label = label


def filters():
    """list: by label, name and state, all at once; labels that cannot be are refused"""
    d = World.daemon
    assert listed("--label", "optimizer.lr=3e-4", "--label", World.label, "--name", "lr-*", "--state", "completed") == World.sweep[:1:-1]
    assert listed("--label", "sweep", "--name", "lr-2") == [World.sweep[1]]
    assert listed("--name", "lr") == [] and listed("--label", "team=nl") == [] and listed("--label", World.label, "--state", "RUNNING") == []
    table = d.ok("list", "--label", World.label, "--wide")
    assert "LABELS" in table and "team=nlp" in table and "LABELS" not in d.ok("list"), table
    assert "team=nlp" in d.ok("status", World.sweep[0])
    for label in ("x", "=x", "a b=c", "k=" + "v" * 200):
        refused(d.ctl("submit", TINY, *overrides(keys()), "--label", label), 2, "label")


def several():
    """wait and cancel of several, by filters, --all; nodes of a job and jobs of a node; attach leaves and comes back"""
    d = World.daemon
    one, two = (submit("--label", "kind=long", "--name", f"long-{i}", steps=FOR_EVER) for i in (1, 2))
    waits = submit("--label", "kind=long", steps=FOR_EVER)
    for job in (one, two):
        until("it trains", lambda: d.status(job)["step"] > 0)
    (place,) = d.status(one)["nodes"]
    assert re.search(r"\n  loss +\d", d.ok("status", one)) and "loss" not in d.ok("status", waits), d.ok("status", waits)
    assert place["workers"] == 1 and f"{place['node']} (1)" in d.ok("status", one) and d.status(waits)["nodes"] == []
    (node,) = json.loads(d.ok("-o", "json", "nodes"))["nodes"]
    assert [(p["job_id"], p["workers"]) for p in node["jobs"]] == [(int(one), 1), (int(two), 1)], node
    assert f"{one} (1), {two} (1)" in d.ok("nodes")
    until("it is some steps on", lambda: d.status(one)["step"] > 50)
    at = d.status(one)
    process = subprocess.Popen([CTL, "-s", d.server, "attach", one], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    first = process.stderr.readline()
    assert first.startswith("running  step "), first
    step, steps = first.split("step ")[1].split()[0].split("/")
    assert int(step) >= at["step"] and int(steps) == at["steps"], first
    d.ok("checkpoint", one)
    news = next(line for line in process.stderr if not line.startswith("running"))
    assert "checkpoint of step" in news, news  # that is after it was attached to; what it is told to write before it runs is not
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=deadline())
    assert process.returncode == 130 and f"job {one} goes on" in err and "forms with" not in err, err
    queued = subprocess.Popen([CTL, "-s", d.server, "attach", waits], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert queued.stderr.readline() == f"pending  step 0/{FOR_EVER}\n"
    queued.send_signal(signal.SIGINT)
    assert queued.wait(deadline()) == 130
    refused(d.ctl("wait", one, two, "--timeout", "0.2"), 124, one)
    refused(d.ctl("cancel"), 2, "--all")
    refused(d.ctl("cancel", one, "--all"), 2, "not both")
    for dry in ((), ("--dry-run",)):
        refused(d.ctl("rm", one, *dry), 6, f"job {one} is running", "titanctl cancel")
        refused(d.ctl("rm", 4000000, *dry), 3, "there is no job 4000000")
    assert d.ok("cancel", "--state", "PENDING", "--label", "kind=long") == f"job {waits} CANCELLED\n"
    assert sorted(line.split()[1] for line in d.ok("cancel", "--all").splitlines()) == sorted([one, two])
    refused(d.ctl("wait", one, two, World.sweep[0]), 1, f"job {one} was cancelled: asked for by ", f"job {two} was cancelled", "2 of 3 jobs")
    refused(d.ctl("attach", one), 1, f"job {one} was cancelled")
    assert "none to cancel" in d.ctl("cancel", "--all").err
    World.long = [int(one), int(two), int(waits)]


def each_is_tried():
    """of several names each is tried, one line for each that cannot be done, and the exit code is the worst"""
    d = World.daemon
    ended, none = World.sweep[0], 4000000
    (node,) = (n["name"] for n in json.loads(d.ok("-o", "json", "nodes"))["nodes"])
    one, two = (submit(steps=FOR_EVER) for _ in range(2))
    for job in (one, two):
        until("it trains", lambda: d.status(job)["step"] > 0)
    over, missing = f"titanctl: job {ended} has already ended: completed\n", f"titanctl: there is no job {none}\n"

    def tried(code, out, err, *args):
        done = d.ctl(*args)
        assert done.code == code and done.out == out and done.err == err, (done, out, err)

    done = d.ctl("checkpoint", ended, one, none, two)
    assert done.code == 3 and [line.split()[1] for line in done.out.splitlines()] == [one, two], done
    assert done.err == over + missing + "titanctl: 2 of 4 jobs write no checkpoint\n", done
    tried(6, f"job {one} CANCELLING\n", over + "titanctl: 1 of 2 jobs are not cancelled\n", "cancel", ended, one)
    done = d.ctl("cancel", none, two, "--wait")
    assert done.code == 3 and done.out.startswith(f"job {two} CANCELLED: asked for by "), done
    assert done.err == missing + "titanctl: 1 of 2 jobs are not cancelled\n", done
    done = d.ctl("wait", none, one, ended)
    assert done.code == 3 and done.err.startswith(missing + f"titanctl: job {one} was cancelled: "), done
    assert done.err.endswith("titanctl: 2 of 3 jobs have not completed\n"), done
    tried(3, f"job {two} removed\njob {one} removed\n", missing + "titanctl: 1 of 3 jobs are not removed\n", "rm", one, none, two)
    try:
        done = d.ctl("drain", "nosuch", node)
        assert done.code == 3 and done.out.startswith(f"node {node} "), done
        assert [line[:27] for line in done.err.splitlines()] == ["titanctl: there is no node ", "titanctl: 1 of 2 nodes are "], done
    finally:
        done = d.ctl("undrain", "nosuch", node)
    assert done.code == 3 and done.out.startswith(f"node {node} ready"), done


def removed():
    """rm: records and folder of ended jobs, but for those that others go on from; no number comes twice; the log still fits"""
    d = World.daemon
    base = World.long[0]
    woman = submit("--name", "\U0001f469\u200d\U0001f4bb", steps=2)
    assert d.status(woman)["name"] == "\U0001f469\u200d\U0001f4bb" and "\U0001f469\u200d\U0001f4bb" in d.ok("list"), d.status(woman)
    d.ctl("wait", woman)
    d.ok("rm", woman)
    resumed = int(d.ok("resume", base, "--set", "training.steps=1000001").strip())
    folder = Path(d.status(base)["directory"])
    assert folder.is_dir()
    for dry in ((), ("--dry-run",)):
        refused(d.ctl("rm", base, *dry), 6, f"job {resumed} uses checkpoints of job {base}")
    dry = d.ctl("gc", "--dry-run", "--older-than", "0s", "--name", d.status(base)["name"])
    assert f"job {base} would" not in dry.out and f"job {base} stays: job {resumed} uses checkpoints of job {base}" in dry.err, dry
    until("it trains", lambda: d.status(resumed)["step"] > d.status(base)["step"])
    d.ok("cancel", resumed)
    d.ctl("wait", resumed)
    for dry in ((), ("--dry-run",)):  # its checkpoints lie there
        refused(d.ctl("rm", base, *dry), 6, f"job {resumed} uses checkpoints of job {base}")
    assert d.lines("rm", base, resumed, "--dry-run") == [{"job_id": int(j), "removed": False} for j in (resumed, base)]
    assert folder.is_dir()
    assert d.ok("rm", base, resumed, "--dry-run") == f"job {resumed} would be removed\njob {base} would be removed\n"
    assert d.ok("rm", base, resumed) == f"job {resumed} removed\njob {base} removed\n"
    assert not folder.exists()
    for args in (("status", base), ("metrics", base), ("show", base, "--recipe"), ("rm", base), ("events", base), ("logs", base)):
        refused(d.ctl(*args), 3, f"there is no job {base}")
    assert not {base, resumed} & set(listed())
    assert any(e["type"] == "job.removed" and e["job_id"] == base for e in d.lines("events"))
    d.ok("admin", "verify", "--rederive", d.state)
    d.kill()
    d.start()
    refused(d.ctl("status", resumed), 3, "there is no job")
    assert int(submit()) == resumed + 1


def collected():
    """gc: only what is old, newest first; folders that run has left, but not those in use"""
    d = World.daemon
    assert d.ok("gc", "--older-than", "1d", "--label", "sweep") == ""
    lines = d.ok("gc", "--older-than", "0", "--dry-run", "--label", "sweep").splitlines()
    assert lines == [f"job {j} would be removed" for j in World.sweep[::-1]] and set(World.sweep) <= set(listed())
    assert len(d.ok("gc", "--older-than", "0s", "--label", World.label).splitlines()) == 4
    assert not set(World.sweep) & set(listed())
    refused(d.ctl("gc", "--older-than", "soon"), 2, "soon")
    refused(d.ctl("gc", "--older-than", "30", "--dry-run"), 2, "--older-than 30: of what? 30s, 30m, 30h or 30d")
    home = World.dir / "runs"
    home.mkdir()
    names = ["titan-run-old", "titan-run-new", "titan-run-used", "other"]
    for name in names:
        (home / name / "jobs/1").mkdir(parents=True)
    shutil.copy2(d.state / "lock", home / "titan-run-used/lock")
    for name in ("titan-run-old", "other"):
        os.utime(home / name, (1, 1))
    env = {**os.environ, "TMPDIR": str(home)}
    with open(home / "titan-run-used/lock", "r+") as held:
        fcntl.fcntl(held, 37, b"\1\0\0\0\0\0\0\0" + b"\0" * 24)  # F_OFD_SETLK of a write lock on the whole file
        os.utime(home / "titan-run-used", (1, 1))
        dry = command(CTL, "gc", "--runs", "--dry-run", "--older-than", "0", env=env)
        assert dry.code == 0 and dry.out == f"folder {home}/titan-run-old would be removed\n", (dry.out, dry.err)
        assert command(CTL, "gc", "--runs", env=env).code == 0
    assert sorted(p.name for p in home.iterdir()) == sorted(names[1:])


def main():
    World.dir = Path(tempfile.mkdtemp(prefix="titan-test-"))
    World.text = headers_text(World.dir / "text", 1 << 18)
    try:
        with Daemon(None, "--slots", 2, pace_ms=10) as World.daemon:
            try:
                tap(sweep, filters, several, each_is_tried, removed, collected)
            except SystemExit as end:
                if end.code:
                    raise  # the daemon's log is shown
    finally:
        shutil.rmtree(World.dir, ignore_errors=True)


main()
