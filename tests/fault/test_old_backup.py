#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A job store from a backup, while jobs have gone on: put back with `titanctl admin restore` it learns from the agents what it
does not know, and copied into place by hand it is refused."""
import json
import os
import random
import re
import shutil
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from nodes import Cluster  # noqa: E402
from titan import BIN, calm, command, headers_text, slow, tap, until, worker_pids  # noqa: E402

KEYS = {"elastic.min_workers": 2, "elastic.max_workers": 4, "checkpoint.interval": 100000,
        "training.global_batch_size": 12, "training.local_batch_size": 1, "training.seq_len": 16, "device.threads": 1,
        "training.mixed_precision_param": "float32", "fault_tolerance.backoff_ms": 50, "training.steps": 1000000}
# Agents would form an epoch without a coordinator after away_ms, which none of these are about. The older name is read as well.
CONFIG = calm() + "delegate_lease_ms = 40000\n"
IN_MEMORY = ("memory", "replica", "buddy")


def begun(c, job):
    """(epoch, workers, step it began at, state from) of every epoch a worker of the job has begun, by number."""
    found = set()
    for log in (c.dir / "c/jobs" / job / "logs").glob("worker-*.log"):
        for line in log.read_text(errors="replace").splitlines():
            m = re.search(r"epoch begins .*epoch=(\d+) workers=(\d+) .*step=(\d+) state=(\w+)", line)
            if m:
                found.add((int(m[1]), int(m[2]), int(m[3]), m[4]))
    return sorted(found)


def submit(c, **more):
    return c.submit({**KEYS, "training.dataset_path": headers_text(c.dir / "text"), **more})


def pid_of(c, job, worker):
    return [e["detail"]["pid"] for e in c.events(job)
            if e["type"] == "worker.started" and e["detail"]["worker"] == worker][-1]


def stop(c):
    c.stop("c")


def start(c):
    c.restart_coordinator()


def restore(c, *args):
    done = command(BIN / "titanctl", "admin", "restore", c.dir / "backup.db", "--state-dir", c.dir / "c", *args)
    assert done.code == 0, done.err


def sound(c):
    """The store's states follow from its events."""
    done = command(BIN / "titanctl", "admin", "verify", "--rederive", c.dir / "c")
    assert done.code == 0, done.err


def of_type(c, job, kind):
    """Events of a job; job None: of the store."""
    lines = c.ctl("-o", "json", "events", *([job] if job else [])).splitlines()
    return [e for e in map(json.loads, lines) if e["type"] == kind]


def goes_on():
    """an epoch, a worker and a checkpoint later: the run is taken over as it is, and goes on with numbers of its own"""
    with Cluster(slots={"n1": 2, "n2": 2}, config=CONFIG, pace_ms=20) as c:
        job = submit(c)
        before = c.training(job, 4, 3)
        c.ctl("admin", "backup", c.dir / "backup.db")
        os.kill(pid_of(c, job, 1), signal.SIGKILL)
        until("a later epoch", lambda: c.status(job)["epoch"] > before["epoch"] + 1, 30)
        there = c.training(job, 4, c.status(job)["step"])
        c.ctl("checkpoint", job)
        written = until("a checkpoint", lambda: of_type(c, job, "checkpoint.committed"), 20)[-1]["detail"]
        pids, epochs = set(worker_pids(c.dir)), begun(c, job)
        stop(c)
        restore(c)
        start(c)
        after = c.training(job, 4, written["step"] + 3)
        assert after["epoch"] == there["epoch"], (there["epoch"], after["epoch"])
        assert set(worker_pids(c.dir)) == pids and begun(c, job) == epochs, "training was disturbed"
        taken = until("it is told", lambda: of_type(c, job, "epoch.restored"))
        assert taken[-1]["epoch"] == there["epoch"], taken
        found = until("its checkpoint is taken over", lambda: of_type(c, job, "checkpoint.committed"), 20)[-1]["detail"]
        assert found["path"] == written["path"]
        assert after["restarts"] == before["restarts"], after
        until("all is taken over", lambda: of_type(c, None, "store.settled"), 30)
        # The next loss, and a restart: numbers begin above all that were given before. Without their sessions agents would form the epoch.
        back = len(of_type(c, None, "node.ready"))
        stop(c)
        start(c)
        until("both nodes are back", lambda: len(of_type(c, None, "node.ready")) == back + 2, 20)
        c.training(job, 4, after["step"])
        begin = c.status(job)
        os.kill(sorted(pids)[-1], signal.SIGKILL)
        until("a later epoch", lambda: c.status(job)["epoch"] > there["epoch"], 30)
        c.training(job, 4, begin["step"] + 3)
        later = [e for e in begun(c, job) if e[0] > there["epoch"]]
        print(f"# epoch {there['epoch']}, then {[e[0] for e in later]}")
        assert later[0][0] > 1 << 32, later
        assert all(e[3] in IN_MEMORY and e[2] >= begin["step"] for e in later), (begin["step"], later)
        stop(c)
        sound(c)
        start(c)


@slow
def another_place():
    """a job that has moved to other nodes and workers since: none is started where the backup thinks it is"""
    with Cluster(slots={"n1": 2, "n2": 2}, config=CONFIG, pace_ms=20) as c:
        c.ctl("drain", "n2")
        job = submit(c, **{"elastic.max_workers": 2})
        c.training(job, 2, 3)
        c.ctl("admin", "backup", c.dir / "backup.db")
        c.ctl("undrain", "n2")
        c.ctl("drain", "n1")
        until("it has moved", lambda: c.nodes()["n1"] == "drained", 30)
        there = c.training(job, 2, c.status(job)["step"] + 2)
        pids, epochs = set(worker_pids(c.dir)), begun(c, job)
        c.kill("c")
        (c.dir / "c/titan.db").unlink()
        for name in ("titan.db-wal", "titan.db-shm"):
            (c.dir / "c" / name).unlink(missing_ok=True)
        restore(c, "--above", 1000)
        start(c)
        # What was asked for after the backup is to be said again, or the run moves to where it was asked to be then.
        after = c.training(job, 2, there["step"] + 3)
        assert after["epoch"] == there["epoch"] and set(worker_pids(c.dir)) == pids, after
        c.ctl("undrain", "n2")
        c.ctl("drain", "n1")
        until("all is taken over", lambda: of_type(c, None, "store.settled"), 30)
        c.training(job, 2, c.status(job)["step"] + 3)
        assert begun(c, job) == epochs and c.status(job)["restarts"] == 0, begun(c, job)
        stop(c)
        sound(c)
        start(c)


def submitted_since():
    """of a job that the backup does not know the workers stop, with a checkpoint"""
    with Cluster(slots={"n1": 2}, config=CONFIG, pace_ms=20) as c:
        c.ctl("admin", "backup", c.dir / "backup.db")
        job = submit(c, **{"elastic.max_workers": 2})
        c.training(job, 2, 3)
        stop(c)
        restore(c)
        start(c)
        until("its workers are gone", lambda: not worker_pids(c.dir), 60)
        unknown = until("it is told", lambda: of_type(c, None, "job.unknown"))
        assert unknown[0]["detail"]["job"] == int(job), unknown
        steps = list((c.dir / "c/jobs" / job).rglob("step-*/manifest.json"))
        assert steps, "no checkpoint was written"
        assert int(submit(c, **{"elastic.max_workers": 2})) > int(job), "a number is given twice"


def copied_by_hand():
    """an old store copied into place is fenced: it changes nothing, and says what to do"""
    with Cluster(slots={"n1": 2, "n2": 2}, config=CONFIG, pace_ms=20) as c:
        job = submit(c)
        c.training(job, 4, 3)
        c.ctl("admin", "backup", c.dir / "backup.db")
        stop(c)
        start(c)  # agents have seen a higher term than the backup's next one
        stop(c)
        start(c)
        until("both agents have seen that term", lambda: all(" term=3 " in (c.dir / f"{n}.log").read_text() for n in ("n1", "n2")), 20)
        there = c.training(job, 4, c.status(job)["step"] + 2)
        pids, epochs = set(worker_pids(c.dir)), begun(c, job)
        stop(c)
        for name in ("titan.db-wal", "titan.db-shm"):
            (c.dir / "c" / name).unlink(missing_ok=True)
        shutil.copy(c.dir / "c/titan.db", c.dir / "aside.db")
        shutil.copy(c.dir / "backup.db", c.dir / "c/titan.db")
        start(c)

        def refused():
            done = command(BIN / "titanctl", "--server", c.unix, "cancel", job)
            assert done.code in (0, 4), done.err
            return done.code == 4 and done.err

        said = until("it is fenced", refused, 10)
        assert "fenced" in said and "titanctl admin restore" in said and "titand dev" not in said, said
        stop(c)
        assert set(worker_pids(c.dir)) == pids and begun(c, job) == epochs, "a fenced coordinator was obeyed"
        restore(c)
        start(c)
        after = c.training(job, 4, there["step"] + 3)
        assert after["epoch"] == there["epoch"] and set(worker_pids(c.dir)) == pids, after


@slow
def asked_meanwhile():
    """what operators ask for while agents still tell what the backup does not know is done, and ends no coordinator"""
    seed = int(os.environ.get("TITAN_TEST_SEED") or random.randrange(1 << 32))
    print(f"# TITAN_TEST_SEED={seed}")
    dice = random.Random(seed)
    for nodes_back in ("all", "one later"):
        with Cluster(slots={"n1": 2, "n2": 2}, config=CONFIG, pace_ms=20) as c:
            jobs = [submit(c, **{"elastic.min_workers": 1, "elastic.max_workers": 2}) for _ in range(2)]
            for job in jobs:
                c.training(job, 2, 3)
            c.ctl("admin", "backup", c.dir / "backup.db")
            epochs = {job: c.status(job)["epoch"] for job in jobs}
            os.kill(pid_of(c, jobs[0], 1), signal.SIGKILL)
            until("a later epoch", lambda: c.status(jobs[0])["epoch"] > epochs[jobs[0]], 30)
            stop(c)
            restore(c)
            late = nodes_back != "all" and c.processes["n2"]
            if late:
                late.send_signal(signal.SIGSTOP)
            start(c)
            asked = [["cancel", jobs[0]], ["resize", jobs[1], "1"], ["resize", jobs[1], "2"], ["drain", "n1"], ["undrain", "n1"],
                     ["checkpoint", jobs[1]], ["list"], ["status", jobs[0]], ["nodes"]]
            dice.shuffle(asked)
            for args in asked:
                done = command(BIN / "titanctl", "--server", c.unix, *args)
                assert done.code in (0, 6) and "no answer" not in done.err, (args, done.code, done.err)
            assert c.processes["c"].poll() is None, "the coordinator has ended"
            if late:
                late.send_signal(signal.SIGCONT)
            until("all is taken over", lambda: of_type(c, None, "store.settled"), 60)
            until("cancelled", lambda: c.status(jobs[0])["state"] == "CANCELLED", 60)
            c.ctl("undrain", "n1")
            c.ctl("resize", jobs[1], "1")
            c.training(jobs[1], 1, c.status(jobs[1])["step"] + 5)
            assert c.processes["c"].poll() is None, "the coordinator has ended"
            stop(c)
            sound(c)
            start(c)


tap(goes_on, another_place, submitted_since, copied_by_hand, asked_meanwhile)
