#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A file server that does not answer: calls on the jobs' folders do not come back, in an agent, in a coordinator that runs,
in one that starts (tests/fault/shim.c). No loop waits for them, and nothing is left over when the server is back."""
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from cluster import Shim  # noqa: E402
from nodes import Cluster  # noqa: E402
from titan import BIN, command, deadline, headers_text, tap, until, worker_pids  # noqa: E402

KEYS = {"elastic.min_workers": 1, "elastic.max_workers": 1, "checkpoint.enable": "false", "training.global_batch_size": 32,
        "training.local_batch_size": 1, "device.threads": 1, "training.steps": 1000000, "fault_tolerance.max_restarts": 0}


def shimmed(cluster, name):
    """That daemon will run with a shim of its own."""
    shim = Shim(cluster.dir / f"shim-{name}")
    cluster.hosts[name] = (["env", *(f"{k}={v}" for k, v in shim.env().items())], "127.0.0.1")
    return shim


def open_below(pid, folder):
    """Of a daemon, which is not dumpable: only root sees them."""
    fds = []
    for fd in (Path("/proc") / str(pid) / "fd").iterdir() if os.geteuid() == 0 else ():
        try:
            fds.append(str(fd.readlink()))
        except OSError:
            pass
    return [fd for fd in fds if fd.startswith(str(folder))]


def job_whose_folder_hangs():
    """a start with a folder that does not answer is reported, by its path; other jobs go on and start; later nothing is left of it"""
    cluster = Cluster(slots={"n1": 4}, pace_ms=50)
    shim = shimmed(cluster, "n1")
    with cluster as c:
        keys = {**KEYS, "training.dataset_path": headers_text(c.dir / "text")}
        jobs = c.dir / "c/jobs"
        first = c.submit(keys)
        c.training(first, 1, 0)
        epoch = c.status(first)["epoch"]

        second = str(int(first) + 1)
        shim.hang(jobs / second)
        assert c.submit(keys) == second
        until("its start hangs", shim.held, 10)
        third = c.submit({**keys, "training.steps": 5})
        until("a third job completes meanwhile", lambda: c.status(third)["state"] == "COMPLETED", 20)
        until("the second is not started, and says why", lambda: str(jobs / second) in (c.status(second)["reason"] or ""), 15)
        s = c.status(second)
        assert "node n1 cannot start a worker" in s["reason"] and "file server" in s["reason"], s
        assert s["state"] == "FORMING" and s["restarts"] == 0, s
        c.training(first, 1, c.status(first)["step"])
        until("it is tried again", lambda: len([e for e in c.events(second) if e["type"] == "worker.exited"]) > 1, 20)
        assert shim.held() == 1, "one path holds one thread"

        fourth = str(int(third) + 1)
        shim.hang(jobs)
        assert c.submit(keys) == fourth
        until("its start hangs, too", lambda: shim.held() > 1, 10)
        c.ctl("cancel", fourth)
        until("a start that hangs is cancelled", lambda: c.status(fourth)["state"] == "CANCELLED")
        assert shim.held() > 1, "the file server answered"
        done = command(BIN / "titanctl", "--server", c.unix, "logs", first)  # comes to its end, with what there is
        assert done.code == 4 and "node n1 could not read all of its files; ask again" in done.err, done
        c.training(first, 1, c.status(first)["step"])
        assert c.nodes() == {"n1": "ready"} or "does not" in c.ctl("nodes") or "has not" in c.ctl("nodes"), c.ctl("nodes")
        assert len(worker_pids(c.dir)) == 1, "that of the first job"

        shim.hang("")
        until("no call hangs any more", lambda: shim.held() == 0, 10)
        c.training(second, 1, 0)
        s = c.status(first)
        assert s["epoch"] == epoch and s["restarts"] == 0, s
        assert "step=" in c.ctl("logs", first)
        assert not list(jobs.glob(f"{fourth}/logs/worker-*")), "a start that was given up went on"
        for job in (first, second):
            c.ctl("cancel", job)
            until("it is cancelled", lambda: c.status(job)["state"] == "CANCELLED", 20)
        agent = c.processes["n1"].pid
        until("no worker is left", lambda: not worker_pids(c.dir), 10)
        until("no file is left open", lambda: not open_below(agent, jobs), 5)
        assert not [*(c.dir / "n1/run").glob("w*.page"), *(c.dir / "n1/run").glob("pages/*")]


def agent_stops_while_a_folder_hangs():
    """an agent that is told to stop while a start hangs stops, and its worker with it"""
    cluster = Cluster(slots={"n1": 1})
    shim = shimmed(cluster, "n1")
    with cluster as c:
        shim.hang(c.dir / "c/jobs/1")
        c.submit({**KEYS, "training.dataset_path": headers_text(c.dir / "text")})
        until("its start hangs", shim.held, 10)
        c.processes["n1"].terminate()
        c.processes["n1"].wait(deadline())


def coordinator_whose_share_hangs():
    """a coordinator stores and decides while the folder of a job that ends does not answer"""
    cluster = Cluster(slots={"n1": 2}, pace_ms=50)
    shim = shimmed(cluster, "c")
    with cluster as c:
        keys = {**KEYS, "training.dataset_path": headers_text(c.dir / "text")}
        first = c.submit(keys)
        c.training(first, 1, 0)
        shim.hang(c.dir / "c/jobs" / first)
        c.ctl("cancel", first)
        until("what its workers wrote down is asked for", shim.held, 20)
        second = c.submit({**keys, "training.steps": 5})
        until("another job completes meanwhile", lambda: c.status(second)["state"] == "COMPLETED", 20)
        assert shim.held(), "the share answered"
        assert '"step":' in c.ctl("-o", "json", "metrics", second)
        shim.hang("")
        until("no call hangs any more", lambda: shim.held() == 0, 10)


def coordinator_that_starts():
    """a coordinator with a storage.jobs_dir that does not answer ends and says so; it starts when the server is back"""
    cluster = Cluster(slots={})
    share = cluster.dir / "share"
    share.mkdir()
    (cluster.dir / "titand.toml").write_text(f'[storage]\njobs_dir = "{share}"\n')
    shim = shimmed(cluster, "c")
    shim.hang(share)
    done = command(*cluster.host("c")[0], BIN / "titand", "coordinator", "--config", cluster.dir / "titand.toml", "--state-dir",
                   cluster.dir / "c", timeout=30)
    assert done.code == 124 and str(share) in done.err and "does not answer" in done.err and "file server" in done.err, (done.code, done.err)
    shim.hang("")
    cluster.slots = {"n1": 1}
    with cluster as c:
        assert c.nodes() == {"n1": "ready"}


if __name__ == "__main__":
    tap(job_whose_folder_hangs, agent_stops_while_a_folder_hangs, coordinator_whose_share_hangs, coordinator_that_starts)
