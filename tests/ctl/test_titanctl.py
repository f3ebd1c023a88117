#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""titanctl as people and scripts use it, against a real titand."""
import base64
import json
import math
import os
import pty
import re
import select
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, SOURCE, Daemon, command, deadline, descendants, headers_text, overrides, sockets_of, tap, until  # noqa: E402

CTL = BIN / "titanctl"
STATUS = {"id", "name", "state", "step", "steps", "loss", "tokens_per_second", "world_size", "epoch", "restarts",
          "submitted_at", "started_at", "finished_at", "checkpoint"}
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


class World:
    """What the tests share: a folder, a text, a daemon, a finished job."""


def keys(**more):
    return {"training.dataset_path": World.text, "training.steps": 20, "training.local_batch_size": 2,
            **{k.replace("__", "."): v for k, v in more.items()}}


def submit(**more):
    return World.daemon.submit("tiny", keys(**more))


def one_line(result, code, *words):
    assert result.code == code, f"exit {result.code} instead of {code}: {result.err}"
    assert result.err.startswith("titanctl: ") and result.err.count("\n") == 1, result.err
    for word in words:
        assert word in result.err, f"'{word}' is missing in: {result.err}"


def run_in(folder, *args, **more):
    folder.mkdir()
    env = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.Popen([CTL, "run", SOURCE / "recipes/tiny.toml", *overrides(keys(**more)), *args], env=env,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_completes():
    """run: exit code of the run, its folder on stdout, and nothing else left behind"""
    home = World.dir / "run"
    process = run_in(home, "-n", "2")
    out, err = process.communicate(timeout=deadline())
    assert process.returncode == 0, err
    (state,) = home.iterdir()
    assert [p.name for p in state.iterdir()] == ["jobs"], list(state.iterdir())
    assert out.strip() == str(state / "jobs/1")
    assert "completed  step 20/20" in err and "with 2 workers" in err, err
    assert not descendants(home)


def run_on_a_mesh():
    """run: without -n, a worker for each place of the mesh; what can only be planned is refused before titand starts"""
    home = World.dir / "mesh"
    degrees = {"parallelism__pipeline_parallel_degree": 2, "parallelism__tensor_parallel_degree": 2,
               "parallelism__data_parallel_shard_degree": 2, "elastic__min_workers": 8, "elastic__max_workers": 8}
    process = run_in(home, training__steps=3, device__threads=1, **degrees)
    _, err = process.communicate(timeout=deadline())
    assert process.returncode == 0 and "with 8 workers" in err and "completed  step 3/3" in err, err
    assert not descendants(home)

    home = World.dir / "planned"
    process = run_in(home, training__dataset="pile")
    _, err = process.communicate(timeout=deadline())
    assert process.returncode == 2 and "training.dataset" in err and err.count("\n") == 1, err
    assert not list(home.iterdir())


def run_keeps_state():
    """run --state-dir: the job store stays"""
    state = World.dir / "kept"
    process = run_in(World.dir / "other", "--state-dir", state, "-n", "1")
    _, err = process.communicate(timeout=deadline())
    assert process.returncode == 0, err
    store = sqlite3.connect(state / "titan.db")
    assert store.execute("SELECT id, name FROM jobs").fetchall() == [(1, "tiny")]
    store.close()
    assert not descendants(state)


def run_interrupted():
    """run: Ctrl-C stops with a last checkpoint and 130; SIGKILL of titanctl leaves no process either"""
    home = World.dir / "interrupted"
    process = run_in(home, training__steps=1000000)
    until("it trains", lambda: list(home.glob("*/jobs/1/checkpoint/step-*")))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=deadline())
    assert process.returncode == 130, err
    assert "stopped at step" in err.splitlines()[-1] and "checkpoint" in err.splitlines()[-1], err
    assert not descendants(home)

    home = World.dir / "saved"
    process = run_in(home, training__steps=1000000, checkpoint__interval=1000000)
    until("it trains", lambda: [p for p in home.glob("*/jobs/1/metrics.jsonl") if p.read_bytes().count(b"\n") > 3])
    for pid in {*descendants(home), process.pid}:  # as scancel sends it
        os.kill(pid, signal.SIGUSR1)
    [saved] = until("a checkpoint is there", lambda: list(home.glob("*/jobs/1/checkpoint/step-*")))
    [metrics] = home.glob("*/jobs/1/metrics.jsonl")
    steps = metrics.read_bytes().count(b"\n")
    until("it trains on", lambda: metrics.read_bytes().count(b"\n") > steps + 3)
    assert list(saved.parent.glob("step-*")) == [saved] and process.poll() is None
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=deadline())
    assert process.returncode == 130 and not descendants(home), err

    home = World.dir / "twice"
    process = run_in(home, training__steps=1000000)
    until("it trains", lambda: list(home.glob("*/jobs/1/checkpoint/step-*")))
    process.send_signal(signal.SIGINT)
    while "once more to leave" not in (line := process.stderr.readline()):
        assert line
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=deadline())
    assert process.returncode == 130 and err.splitlines()[-1].startswith(
        (f"titanctl: interrupted (what it wrote is below {home}/", "titanctl: the run was stopped at step")), err

    home = World.dir / "killed"
    process = run_in(home, training__steps=1000000)
    until("it trains", lambda: list(home.glob("*/jobs/1/checkpoint/step-*")))
    process.kill()
    process.communicate()
    until("titand and its workers are gone", lambda: not descendants(home))


def run_refused():
    """run: a wrong run file or a titand that cannot start is one line, and leaves nothing behind"""
    home = World.dir / "refused"
    process = run_in(home, training__stepz=3)
    _, err = process.communicate(timeout=deadline())
    assert process.returncode == 2 and "training.steps?" in err and err.count("\n") == 1, err
    assert not list(home.iterdir())
    process = run_in(World.dir / "refused2", "--state-dir", World.daemon.state)
    _, err = process.communicate(timeout=deadline())
    assert process.returncode == 6 and str(World.daemon.process.pid) in err and err.count("\n") == 1, err


def run_fails():
    """run: the folder of a run that failed stays, and the message names it"""
    home = World.dir / "fails"
    process = run_in(home, "-n", "1", optimizer__lr=1000, fault_tolerance__max_skipped_steps=1, checkpoint__enable="false")
    out, err = process.communicate(timeout=deadline())
    assert process.returncode == 1 and "job 1 failed: diverged" in err and f"(its logs are in {out.strip()}/logs)" in err, err
    assert list(Path(out.strip()).glob("logs/worker-*.log"))


def run_fresh():
    """run: a folder of another recipe is refused with what run can do about it, and --fresh takes a new one"""
    more = {"checkpoint__folder": World.dir / "ck", "training__steps": 3}
    for name, args, changed, code in (("first", (), {}, 0), ("other", (), {"optimizer__lr": "1e-4"}, 6), ("fresh", ("--fresh",), {"optimizer__lr": "1e-4"}, 0)):
        process = run_in(World.dir / f"{name}-run", "-n", "1", *args, **more, **changed)
        out, err = process.communicate(timeout=deadline())
        assert process.returncode == code, err
        assert not list((World.dir / f"{name}-run").iterdir()), "nothing but logs and metrics is left"
        assert out.strip() == ("" if code else str(World.dir / ("ck-2" if args else "ck") / "step-00000003")), out
        assert code == 0 or "of another recipe" in err and "(--fresh takes a new folder beside it" in err, err
    assert (World.dir / "ck-2/step-00000003").exists()


def submit_and_wait():
    """submit prints the number only; wait ends with the job's outcome, or 124"""
    d = World.daemon
    done = d.ctl("submit", SOURCE / "recipes/tiny.toml", *overrides(keys()), "--name", "a name")
    assert done.code == 0 and done.out == done.out.strip() + "\n" and done.out.strip().isdigit() and not done.err
    World.done = done.out.strip()
    assert d.ctl("wait", World.done).code == 0
    assert d.status(World.done)["name"] == "a name"
    stdin = (SOURCE / "recipes/tiny.toml").read_text()
    again = d.ctl("submit", "-", *overrides(keys()), "--follow", stdin=stdin)
    assert again.code == 0 and again.out.strip().isdigit() and "completed  step 20/20" in again.err, again.err
    assert "\033" not in again.err and "\r" not in again.err

    job = submit(training__steps=1000000)
    begin = time.monotonic()
    one_line(d.ctl("wait", job, "--timeout", "0.5"), 124, job)
    assert time.monotonic() - begin > 0.4  # timing: not earlier, on any machine
    d.ok("cancel", job)
    one_line(d.ctl("wait", job), 1, "cancelled")
    one_line(d.ctl("cancel", job), 6, "cancelled")
    one_line(d.ctl("wait", job), 1, "cancelled")  # has ended long ago


def follow_detaches():
    """submit --follow: Ctrl-C leaves, says that the job goes on, and it does"""
    d = World.daemon
    process = subprocess.Popen([CTL, "-s", d.server, "submit", SOURCE / "recipes/tiny.toml", "-f",
                                *overrides(keys(training__steps=1000000))], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    job = process.stdout.readline().strip()
    until("it trains", lambda: d.status(job)["step"] > 1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=deadline())
    assert process.returncode == 130 and f"job {job} goes on" in err, err
    assert d.status(job)["state"] == "RUNNING"
    d.ok("cancel", job)
    d.ctl("wait", job)


def steps_trained_again():
    """when steps were lost, attach says from where it goes on and shows those that are trained again; a reason comes once"""
    d = World.daemon
    job = submit(training__steps=1000000, checkpoint__interval=1000000, fault_tolerance__redundancy="checkpoint", elastic__max_workers=2,
                 fault_tolerance__max_restarts=100)
    until("it trains", lambda: d.status(job)["step"] > 1)
    d.ok("checkpoint", job)
    step = until("a checkpoint", lambda: d.status(job)["checkpoint"])[-8:]
    attached = subprocess.Popen([CTL, "-s", d.server, "attach", job], stderr=subprocess.PIPE, text=True)
    lines = []

    def shown():
        """One that is trained again. Attach that has no time shows a later one, and more are lost the next time."""
        lost = until("there is much to be trained again", lambda: (n := d.status(job)["step"]) > int(step) + 200 and n)
        workers, seen = d.workers(job).values(), len(lines)
        for sign in (signal.SIGSTOP, signal.SIGKILL):  # all at once: none goes on without the others
            for pid in workers:
                os.kill(pid, sign)
        while not ("Z  back after" in "".join(lines[seen:]) and lines[-1].startswith("running")):
            lines.append(attached.stderr.readline())
            assert lines[-1], lines
        return int(step) <= int(re.match(r"running  step (\d+)/", lines[-1])[1]) < lost
    until("attach shows a step that is trained again", shown)
    attached.kill()
    attached.communicate()
    d.ok("cancel", job)
    d.ctl("wait", job)
    assert [line for line in lines if f"has the state of step {int(step)} from checkpoint" in line], lines
    assert not [line for line in lines if re.match(r"\S+Z  (a worker is lost|a member left the epoch)$", line)], lines


def over_a_restart():
    """wait and --follow go on when titand is killed and comes back"""
    with Daemon(World.dir / "restart", "--slots", 2, pace_ms=30) as d:
        def over_one(*more):
            """Whether it was over a restart: connected is not yet answered, and a first call that is not is an error."""
            job = d.submit("tiny", keys(training__steps=100))
            until("it trains", lambda: d.status(job)["step"] > 2)
            process = subprocess.Popen([CTL, "-s", d.server, "wait", job, *more], stderr=subprocess.PIPE, text=True)
            until("it is connected", lambda: sockets_of(process.pid))
            d.kill()
            d.start()
            _, err = process.communicate(timeout=deadline())
            assert process.returncode == 0 or process.returncode == 4 and "no answer from the server" in err, err
            assert process.returncode == 4 or not more or "completed  step 100/100" in err, err
            d.ctl("cancel", job)
            return process.returncode == 0
        for more in ((), ("--follow",)):
            until("it goes on over a restart", lambda: over_one(*more))


def resize_over_a_restart():
    """resize --wait goes on when titand is killed and comes back, and asks once; what says no is named"""
    with Daemon(World.dir / "resize", "--slots", 2, pace_ms=20) as d:
        one, both = (d.submit("tiny", keys(training__steps=1000000, training__global_batch_size=4,
                                           training__local_batch_size=1, elastic__min_workers=1,
                                           elastic__max_workers=most)) for most in (1, 2))
        for job in (one, both):
            until("it trains", lambda: d.status(job)["step"] > 2)
        results = []
        waiting = threading.Thread(target=lambda: results.append(d.ctl("resize", both, 2, "--wait")))
        waiting.start()

        def asked():
            return [e for e in d.lines("events", both) if e["type"] == "resize.requested"]

        until("it is asked for", asked)
        d.kill()
        one_line(d.ctl("list"), 4, "no answer from the server", "titand dev")
        d.start()
        until("both train on", lambda: d.status(one)["state"] == d.status(both)["state"] == "RUNNING")
        assert waiting.is_alive(), results[0].err
        d.ok("cancel", one)  # its slot is what was waited for
        waiting.join(deadline())
        assert results[0].code == 0, results[0].err
        assert re.fullmatch(rf"job {both}: now 2 workers, after \d+\.\d s", results[0].out.strip()), results[0].out
        assert d.status(both)["world_size"] == 2 and len(asked()) == 1, (d.status(both), asked())
        d.ok("cancel", both)


def nothing_there():
    """logs of a rank or a job that never was: said, exit 3; keys without effect are said at submit"""
    d, job = World.daemon, World.done
    one_line(d.ctl("logs", job, "--rank", 9), 3, f"job {job} has no rank 9: its ranks are 0 to")
    pending = d.submit("tiny", keys(elastic__min_workers=4, elastic__max_workers=4))
    one_line(d.ctl("logs", pending), 3, f"job {pending} has no logs: it has not run yet")
    waits = d.ctl("metrics", pending, "--plot")
    assert waits.code == 0 and not waits.out and waits.err == f"titanctl: job {pending} has no steps yet: it is PENDING\n", waits
    d.ok("cancel", pending)
    never = d.ctl("-o", "json", "metrics", pending)
    assert never.code == 0 and not never.out and never.err == f"titanctl: job {pending} has no steps: it is CANCELLED\n", never
    one_line(d.ctl("logs", pending, "--follow"), 3, f"job {pending} has no logs: it has ended without having run")
    one_line(d.ctl("flight", job), 3, f"job {job} has no dumps of flight recorders (they are written when")
    for args in (("--token-file", "/nowhere", "list"), ("admin", "verify", "/nowhere"), ("pki", "show", "/nowhere"), ("submit", "/nowhere")):
        one_line(d.ctl(*args), 2, "/nowhere")
    done = d.ctl("submit", SOURCE / "recipes/tiny.toml", *overrides(keys(elastic__min_workers=4, elastic__max_workers=4)), "--set", "metrics.enable_wandb=true",
                 "--set", "comm.train_timeout_seconds=5", "--set", "profiling.enable_profiling=false")
    assert done.code == 0 and done.out.strip().isdigit(), done.err
    notes = [line for line in done.err.splitlines() if line.startswith("note: ")]
    assert len(notes) == 3 and "metrics.enable_wandb" in notes[0] and "comm.train_timeout_seconds" in notes[1], done.err
    assert "waiting for nodes: the run needs 4 workers, all nodes together have 2 slots" in notes[2], done.err
    d.ok("cancel", done.out.strip())


def silent_server():
    """a server that takes connections and says nothing is told from one that is not there"""
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(World.dir / "silent.sock"))
        s.listen(8)
        one_line(command(CTL, "-s", f"unix:{World.dir}/silent.sock", "list"), 4, "a process listens there")
    one_line(command(CTL, "-s", f"unix:{World.dir}/silent.sock", "list"), 4, "Connection refused (start one with: titand dev")


def starting_server():
    """a daemon that starts is waited for: no socket yet, then one that a killed one has left"""
    for kill in (True, False):
        client = subprocess.Popen([CTL, "-s", f"unix:{World.dir}/starting/titan.sock", "-o", "json", "list"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        server = subprocess.Popen([BIN / "titand", "dev", "--state-dir", World.dir / "starting"], stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        said, _ = client.communicate(timeout=deadline())
        (server.kill if kill else server.terminate)()
        server.wait()
        assert client.returncode == 0 and json.loads(said)["jobs"] == [], said


def no_nodes():
    """--wait-for-nodes: a job that no node can hold is cancelled after that time, exit 7; one that nodes can hold runs"""
    d = World.daemon
    submit = ("submit", SOURCE / "recipes/tiny.toml", *overrides(keys()), "--wait-for-nodes")
    done = d.ctl(*submit, "1s", "--follow", "--set", "device.name=cuda")
    job, last = done.out.strip(), done.err.splitlines()[-1]
    assert done.code == 7 and last.startswith(f"titanctl: job {job} was cancelled: in 1 s no nodes came that can hold it (waiting: no node"), done
    assert re.match(r"\d\d:\d\d:\d\dZ  waiting: no node has a cuda device", done.err.splitlines()[-2]), done.err
    ended = d.status(job)
    assert ended["state"] == "CANCELLED" and "no nodes came" in ended["reason"], ended
    done = d.ctl(*submit, "1s", "--follow")
    assert done.code == 0 and "no nodes came" not in done.err, done
    n = len(d.jobs())
    one_line(d.ctl(*submit, "1s"), 2, "--wait-for-nodes goes with --follow")
    one_line(d.ctl(*submit, "soon", "--follow"), 2, "'soon'")
    assert len(d.jobs()) == n


def json_shapes():
    """-o json: documented fields, times as RFC 3339 or null, one object a line in streams"""
    d, job = World.daemon, World.done
    status = d.status(job)
    assert STATUS <= set(status), STATUS - set(status)
    assert status["id"] == int(job) and status["state"] == "COMPLETED" and status["step"] == 20
    assert all(TIME.fullmatch(status[k]) for k in ("submitted_at", "started_at", "finished_at"))
    assert Path(status["checkpoint"]).is_dir()
    pending = d.submit("tiny", keys(elastic__min_workers=3, elastic__max_workers=3))
    waiting = d.status(pending)
    assert waiting["started_at"] is None and waiting["loss"] is None and waiting["checkpoint"] is None
    d.ok("cancel", pending)
    assert [j["id"] for j in d.jobs()][0] == int(pending)
    (node,) = json.loads(d.ok("-o", "json", "nodes"))["nodes"]
    assert node["slots"] == 2 and TIME.fullmatch(node["last_seen"])
    newest = json.loads(d.ok("-o", "json", "checkpoints", job))["checkpoints"][0]
    assert newest["path"] == status["checkpoint"] and newest["step"] == 20 and TIME.fullmatch(newest["committed_at"])
    counters = json.loads(d.ok("-o", "json", "counters"))
    counted = {c["name"]: int(c["value"]) for c in counters["counters"]}
    assert TIME.fullmatch(counters["since"]) and counted["state_init"] >= 1 and counted["store_commits"] > 0 and counted["nodes_lost"] == 0
    version = json.loads(d.ok("-o", "json", "version"))
    assert version["client"]["version"] == version["server"]["version"]
    assert [m["step"] for m in d.lines("metrics", job)] == list(range(1, 21))
    events = d.lines("events", job)
    assert events[-1]["type"] == "job.state" and events[-1]["detail"]["to"] == "completed"
    assert "step=20" in "".join(line["data"] for line in d.lines("logs", job, "--rank", "0"))
    answer = json.loads(d.ok("-o", "json", "submit", SOURCE / "recipes/tiny.toml", *overrides(keys())))
    assert set(answer) == {"job_id", "existed"}
    assert json.loads(d.ok("-o", "json", "wait", answer["job_id"]))["state"] == "COMPLETED"


def tables():
    """tables and text: list with limit and filters, status, logs with their ranks, the loss curve"""
    d, job = World.daemon, World.done
    rows = d.ok("list", "--limit", "2").splitlines()
    assert len(rows) == 3 and rows[0].split()[:4] == ["JOB", "NAME", "USER", "STATE"]
    n = len(json.loads(d.ok("-o", "json", "list"))["jobs"])
    for limit in (n - 1, n):
        more = limit < n
        done, listed = d.ctl("list", "-n", limit), json.loads(d.ok("-o", "json", "list", "-n", limit))
        assert len(done.out.splitlines()) == limit + 1 and ("--limit" in done.err) == more, done.err
        assert len(listed["jobs"]) == limit and listed["more"] is more
    counters = d.ok("counters").splitlines()
    assert counters[0].split() == ["COUNTER", "VALUE", "WHAT"] and any(row.split()[0] == "recovery_ms" for row in counters)
    cancelled = d.ok("list", "--state", "cancelled,failed").splitlines()[1:]
    assert cancelled and all("CANCELLED" in row for row in cancelled)
    reasons = {j["id"]: j["reason"] for j in json.loads(d.ok("-o", "json", "list", "--state", "cancelled,failed"))["jobs"]}
    assert all(row.endswith(reasons[int(row.split()[0])]) for row in cancelled), (cancelled, reasons)
    assert len(d.ok("list", "--user", "nobody-at-all").splitlines()) == 1
    assert re.search(r"step +20 of 20\n", d.ok("status", job))
    logs = d.ok("logs", job, "--tail", "1").splitlines()
    assert any(line.startswith("[0] ") for line in logs), logs
    assert len(d.ok("metrics", job).splitlines()) == 21
    env = {**os.environ, "LC_ALL": "C"}
    for table in ("--split", "--rates"):
        one_line(d.ctl("metrics", job, table, "--plot"), 2, f"--plot draws the loss; {table} is a table")
    ascii_plot = command(CTL, "-s", d.server, "metrics", job, "--plot", env=env).out
    assert ascii_plot.isascii() and "*" in ascii_plot and ascii_plot.rstrip().endswith("step 20"), ascii_plot
    losses = [m["loss"] for m in d.lines("metrics", job)]
    assert ascii_plot.startswith(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, ") and ascii_plot.count("*") > 5, (losses, ascii_plot)
    braille = command(CTL, "-s", d.server, "metrics", job, "--plot", env={**os.environ, "LC_ALL": "C.UTF-8"}).out
    assert any(0x2800 < ord(c) < 0x2900 for c in braille), braille
    assert "checkpoint/step-00000020" in d.ok("checkpoints", job)
    events = d.ok("events", job)
    alone = d.submit("tiny", keys(elastic__min_workers=1, elastic__max_workers=1, training__steps=2))
    d.wait_state(alone, "COMPLETED")
    assert "epoch 1 forms with 1 worker, state from init\n" in d.ok("events", alone)
    assert re.search(r"Z  epoch.formed +epoch 1 running\n", events) and re.search(r"Z  job.state +epoch 1  running\n", events), events


def compare():
    """compare: keys that differ, losses at common steps, where they part and where one is no number; the same run twice is the same bit for bit"""
    d, job = World.daemon, World.done
    text = d.ok("compare", job, job)
    assert "have the same run file" in text and "bit for bit, at all 20 steps" in text, text
    other = d.submit("tiny", keys(optimizer__lr=0.001, training__steps=12))
    d.wait_state(other, "COMPLETED")
    text = d.ok("compare", job, other)
    assert "optimizer.lr = 0.003, there 0.001\n" in text and "training.steps = 20, there 12\n" in text, text
    ours, theirs = ([m["loss"] for m in d.lines("metrics", j)] for j in (job, other))
    apart = next(i for i in range(12) if ours[i] != theirs[i])
    far = max(range(12), key=lambda i: abs(ours[i] - theirs[i]))
    assert f"the same up to step {apart}; they differ most at step {far + 1}: by " in text, text
    got = json.loads(d.ok("-o", "json", "compare", job, other))
    assert got["common_steps"] == 12 and got["first_difference"] == apart + 1 and got["largest_difference_step"] == far + 1, got
    assert got["largest_difference"] == abs(ours[far] - theirs[far]) and len(got["changes"]) >= 2, got
    assert [j["steps"] for j in got["jobs"]] == [20, 12] and all(j["tokens_per_second"] > 0 for j in got["jobs"]), got
    d.stop()
    store = sqlite3.connect(d.state / "metrics.db")
    with store:
        store.execute("UPDATE metrics SET loss = NULL WHERE job_id = ? AND step IN (5, 6)", (other,))
    store.close()
    d.start()
    far = max((i for i in range(12) if i not in (4, 5)), key=lambda i: abs(ours[i] - theirs[i]))
    for jobs in ((job, other), (other, job)):
        text = d.ok("compare", *jobs)
        assert re.search(rf"they differ most at step {far + 1}: by [0-9.e+]+; at step 5 the loss of job {other} is not a number\n", text), text
        assert [line.split()[0] for line in text.splitlines() if "nan" in line and line.endswith("  -")] == ["5", "6"] and text.count("nan") == 2, text
        got = json.loads(d.ok("-o", "json", "compare", *jobs))
        assert got["first_not_finite"] == 5 and got["largest_difference"] == abs(ours[far] - theirs[far]), got
    one_line(d.ctl("compare", job, 4000000), 3, "4000000")
    one_line(d.ctl("compare", job), 2, "JOB")


def broken_pipe():
    """output into a pipe that closes early ends the command, quietly"""
    line = f"{CTL} -s {World.daemon.server} -o json metrics {World.done} | head -n 1"
    done = command("bash", "-c", line)
    assert done.out.count("\n") == 1 and not done.err, done.err


def unwritable_output():
    """output that cannot be written ends a command with a line; a closed one gives its number to no socket"""
    base = f"{CTL} -s {World.daemon.server}"
    for words in ("list", "top --once", f"metrics {World.done}", f"report {World.done} --out -", "--help", f"plan {SOURCE / 'recipes/tiny.toml'}"):
        for where in (">/dev/full", ">&-", ">&- <&-"):
            done = command("bash", "-c", f"{base} {words} {where}")
            assert done.code == 1 and re.fullmatch(r"titan(ctl|-worker): cannot write standard output.*\n", done.err), (words, where, done)
        assert command("bash", "-c", f"{base} {words} >&- 2>&- <&-").code == 1, words
    page = World.dir / "page.html"
    page.write_text("")
    (World.dir / "link").symlink_to(page)
    World.daemon.ok("report", World.done, "--out", World.dir / "link")
    assert (World.dir / "link").is_symlink() and page.read_text().startswith("<!DOCTYPE html>")


def generate_and_convert():
    """generate and convert work on a job's checkpoint and on a path"""
    d, job = World.daemon, World.done
    args = ("--prompt", "#include <", "--max-tokens", "20", "--seed", "7")
    first = d.ok("generate", job, *args)
    assert first == d.ok("generate", d.status(job)["checkpoint"], *args) and len(first.strip()) > 0
    step = json.loads(d.ok("-o", "json", "checkpoints", job))["checkpoints"][-1]["step"]
    d.ok("generate", job, "--step", step, *args)
    one_line(d.ctl("generate", job, "--step", 19, *args), 3, "19")
    one_line(d.ctl("generate", "/nowhere", *args), 3, "/nowhere")
    one_line(d.ctl("generate", job), 2, "--prompt")
    answer = json.loads(d.ok("-o", "json", "generate", job, *args))
    assert answer == {"prompt": "#include <", "text": first[len("#include <"):-1]}, answer
    d.ok("convert", job, World.dir / "hf")
    assert {"config.json", "model.safetensors"} <= {p.name for p in (World.dir / "hf").iterdir()}
    assert json.loads(d.ok("-o", "json", "convert", job, World.dir / "hf2")) == {"folder": str(World.dir / "hf2"), "format": "huggingface"}
    one_line(d.ctl("generate", World.dir / "hf", *args), 2, "is a Hugging Face folder, not a checkpoint")
    one_line(d.ctl("eval", Path(d.status(job)["directory"]) / "logs"), 3, "logs' holds no checkpoint\n")
    one_line(d.ctl("generate", Path(d.status(job)["directory"]).parent, *args), 3, "holds no checkpoint; the newest below it is in ", "/checkpoint")
    d.ok("convert", World.dir / "hf", World.dir / "back")
    done = d.ctl("convert", job, World.dir / "hf/config.json")
    assert done.code == 2 and "Not a directory" in done.err, done


def evaluates():
    """eval works on a job's checkpoint of any step and on paths, with one line for what it cannot do"""
    d, job, text = World.daemon, World.done, World.dir / "held-out"
    text.write_bytes(b"int main(void) { return 0; }\n" * 40)
    data = ("--data", text)
    newest = json.loads(d.ok("-o", "json", "eval", job, *data))
    assert newest["step"] == 20 and newest["tokens"] == (text.stat().st_size - 1) // 64 * 64, newest
    assert abs(math.exp(newest["loss"]) / newest["perplexity"] - 1) < 1e-9
    assert abs(newest["loss"] / math.log(2) / newest["bits_per_byte"] - 1) < 1e-9  # a token is a byte
    folder = Path(d.status(job)["directory"])
    same = {k: newest[k] for k in ("step", "loss", "tokens", "bytes")}
    for where in (f"{job}@20", folder, folder / "checkpoint", f"{folder}@20", folder / "checkpoint/step-00000020"):
        again = json.loads(d.ok("-o", "json", "eval", where, *data))
        assert {k: again[k] for k in same} == same, (where, again, newest)
    earlier = json.loads(d.ok("-o", "json", "eval", f"{job}@10", *data))
    assert earlier["step"] == 10 and earlier["loss"] != newest["loss"]
    shown = dict(line.rsplit(maxsplit=1) for line in d.ok("eval", job, *data).splitlines())
    assert shown["loss"] == f"{newest['loss']:.6f}" and shown["tokens"] == str(newest["tokens"]), shown
    two = json.loads(d.ok("-o", "json", "eval", job, *data, "--steps", 2, "--seq-len", 32))
    assert two["tokens"] == 2 * 8 * 32, two  # the run's batch

    one_line(d.ctl("eval", f"{job}@19", *data), 3, "19")
    one_line(d.ctl("eval", 999999, *data), 3, "999999")
    one_line(d.ctl("eval", f"{job}@x", *data), 2, "number of a step")
    one_line(d.ctl("eval", "/nowhere", *data), 3, "/nowhere")
    one_line(d.ctl("eval", f"{folder}@19", *data), 3, "step-00000019")
    one_line(d.ctl("plan", SOURCE / "recipes/tiny.toml", "--device", "foo"), 2, "titanctl: --device: unknown device 'foo'")
    (World.dir / "short").write_text("too short")
    (World.dir / "few").write_bytes(text.read_bytes()[:300])
    (World.dir / "ranks.model").write_bytes(b"".join(base64.b64encode(t) + b" %d\n" % i for i, t in enumerate(
        [bytes([b]) for b in range(256)] + [b"in"])))
    for code, words, more in ((2, "--data", ()), (2, "/nowhere", ("--data", "/nowhere")), (2, "10 tokens", ("--data", World.dir / "short")),
                              (2, "4 samples", ("--data", World.dir / "few", "--steps", 1)), (2, "--steps", (*data, "--steps", 0)),
                              (2, "jsonl", (*data, "--dataset", "json")), (2, "513 tokens, the model 256", (*data, "--tokenizer", World.dir / "ranks.model", "--pattern", "llama3")),
                              (3, "manifest.json", None)):
        done = d.ctl("eval", job, *more) if more is not None else command(BIN / "titan-worker", "eval", World.dir, *data)
        assert done.code == code and words in done.err and done.err.startswith("titan-worker: " if more is None else "titanctl: "), (more, done.code, done.err)
        assert "\n" not in done.err.strip().split("\n  ")[0], done.err


def on_terminal(*args, env=None, read=lambda out: None):
    """What a command writes to a terminal 120 columns wide, and its exit code. read is called with what is there so far."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update({"TERM": "xterm", "COLUMNS": "120", "LC_ALL": "C.UTF-8", **(env or {})})
        os.execv(CTL, [str(a) for a in (CTL, *args)])
    import fcntl
    import struct
    import termios
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    out = b""
    while select.select([fd], [], [], deadline())[0]:
        try:
            data = os.read(fd, 65536)
        except OSError:
            break
        if not data:
            break
        out += data
        read(out)
    return out.decode(errors="replace"), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def live_line():
    """on a terminal the progress line is drawn over itself, with colour unless NO_COLOR"""
    base = ["-s", World.daemon.server, "submit", SOURCE / "recipes/tiny.toml", "-f", *overrides(keys(training__steps=1000000))]

    def drawn(out):
        if out.count(b"\r\033[K") > 2 and b"\033[32" in out:
            World.daemon.ctl("cancel", "--state", "running")

    out, code = on_terminal(*base, read=drawn)
    assert code == 1 and re.search(r"\r\033\[K\S*cancelled\S*  .*step \d+/1000000", out), repr(out)
    base[-1:] = ["training.steps=40"]
    out, code = on_terminal(*base)
    assert code == 0 and "step 40/40" in out, repr(out)
    out, code = on_terminal(*base, env={"NO_COLOR": "1"})
    assert code == 0 and "\r\033[K" in out and not re.search(r"\033\[[0-9;]*m", out), repr(out)
    out, code = on_terminal("-s", World.daemon.server, "list")
    assert "\033[32;1mCOMPLETED" in out
    out, code = on_terminal("-s", World.daemon.server, "list", env={"TERM": "dumb"})
    assert code == 0 and "COMPLETED" in out and "\033" not in out, repr(out)


def narrow():
    """tables have a terminal's columns: what can be spared is left out, --wide has it all"""
    server = ("-s", World.daemon.server)
    for columns, there, missing in ((24, "STATE", "STEP"), (40, "STATE", "LOSS"), (60, "REASON", "RESTARTS"), (80, "WORKERS", "SUBMITTED"), (120, "SUBMITTED", "-------")):
        out, code = on_terminal(*server, "list", env={"COLUMNS": str(columns), "NO_COLOR": "1"})
        rows = out.replace("\r", "").splitlines()
        assert code == 0 and there in rows[0] and missing not in rows[0] and max(map(len, rows)) <= columns, (columns, rows)
    out, code = on_terminal(*server, "list", "--wide", env={"COLUMNS": "60", "NO_COLOR": "1"})
    assert "RESTARTS" in out and "SUBMITTED" in out, out
    World.daemon.ok("token", "create", "a-pipeline-of-the-night", "--ttl", "1h")
    for columns, words, missing in ((48, ("checkpoints", World.done), "WORKERS"), (60, ("counters",), "-------"), (60, ("token", "list"), "EXPIRES"),
                                    (60, ("admin", "check"), "-------")):
        env = {"COLUMNS": str(columns), "NO_COLOR": "1"}
        out, code = on_terminal(*server, *words, env=env)
        rows = out.replace("\r", "").splitlines()
        assert len(rows) > 1 and "…" in out and missing not in rows[0] and max(map(len, rows)) <= columns, (words, rows)
        whole, same = on_terminal(*server, *words, "--wide", env=env)
        assert code == same and "…" not in whole and max(map(len, whole.splitlines())) > columns, (words, whole)


def completion():
    """bash completion offers commands, options and jobs"""
    def complete(line):
        words = line.split(" ")
        script = (f"titanctl() {{ {CTL} \"$@\"; }}; source {SOURCE / 'ctl/titanctl.bash'}; "
                  f"COMP_WORDS=({' '.join(w or chr(39) * 2 for w in words)}); COMP_CWORD={len(words) - 1}; "
                  "_titanctl; printf '%s\\n' \"${COMPREPLY[@]}\"")
        done = command("bash", "-c", script, env={**os.environ, "TITAN_SERVER": World.daemon.server})
        assert not done.err, done.err
        return done.out.split()
    assert complete("titanctl st") == ["status"]
    assert {"submit", "run", "list"} <= set(complete("titanctl "))
    assert "--follow" in complete("titanctl submit --")
    assert complete("titanctl -o j") == ["json"]
    assert World.done in complete("titanctl status ")
    assert complete("titanctl list --state CANCEL") == ["CANCELLING", "CANCELLED"]


def completion_of_zsh():
    """zsh asks the same"""
    if not shutil.which("zsh"):
        return "no zsh"

    def complete(*words):
        script = (f"titanctl() {{ {CTL} \"$@\" }}; compdef() {{ }}; compadd() {{ print -l -- \"${{@[2,-1]}}\" }}; _files() {{ print files }}; "
                  f"source {SOURCE / 'ctl/titanctl.zsh'}; words=(titanctl \"$@\"); CURRENT=$#words; _titanctl")
        done = command("zsh", "-fc", script, "zsh", *words, env={**os.environ, "TITAN_SERVER": World.daemon.server})
        assert not done.err, done.err
        return done.out.split()
    assert complete("st") == ["status"] and complete("-o", "j") == ["json"] and complete("nosuch", "x") == []
    assert "--follow" in complete("submit", "--") and World.done in complete("status", "") and complete("submit", "") == ["files"]


def completion_of_fish():
    """fish asks the same"""
    if not shutil.which("fish"):
        return "no fish"

    def complete(line):
        script = f"function titanctl; {CTL} $argv; end; source {SOURCE / 'ctl/titanctl.fish'}; complete -C \"{line}\""
        done = command("fish", "-Nc", script, env={**os.environ, "TITAN_SERVER": World.daemon.server, "HOME": str(World.dir)})
        assert not done.err, done.err
        return done.out.split()
    assert complete("titanctl st") == ["status"] and complete("titanctl -o j") == ["json"]
    assert "--follow" in complete("titanctl submit --") and World.done in complete("titanctl status ")
    assert "Makefile" in complete(f"titanctl submit {SOURCE}/Make")[0]


def main():
    World.dir = Path(tempfile.mkdtemp(prefix="titan-test-"))
    World.text = headers_text(World.dir / "text", 1 << 18)
    try:
        with Daemon(None, "--slots", 2, pace_ms=10) as World.daemon:
            try:
                tap(run_completes, run_on_a_mesh, run_keeps_state, run_interrupted, run_refused, run_fails, run_fresh, submit_and_wait, follow_detaches, steps_trained_again,
                    over_a_restart,
                    resize_over_a_restart, nothing_there, silent_server, starting_server, no_nodes, json_shapes, tables, compare, broken_pipe, unwritable_output, generate_and_convert, evaluates, live_line, narrow, completion,
                    completion_of_zsh, completion_of_fish)
            except SystemExit as end:
                if end.code:
                    raise  # the daemon's log is shown
    finally:
        shutil.rmtree(World.dir, ignore_errors=True)


main()
