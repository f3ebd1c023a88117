#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Where workers' pages lie: on the disk of an older agent, or in a folder in memory that is removed."""
import os
import shutil
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import Daemon, headers_text, tap, until, worker_pids  # noqa: E402

KEYS = {"elastic.min_workers": 1, "elastic.max_workers": 1, "checkpoint.interval": 1000000, "training.global_batch_size": 1,
        "training.local_batch_size": 1, "device.threads": 1, "training.steps": 1000000}


def submit(d):
    job = d.submit("tiny", {**KEYS, "training.dataset_path": headers_text(d.state / "text")})
    trains(d, job, 5)
    return job


def trains(d, job, beyond):
    return until("it trains", lambda: (lambda s: s["step"] > beyond and s)(d.status(job)), 30)


def adopted_on_disk():
    """pages on the disk, as an older agent left them: their workers are adopted, watched, and leave nothing behind"""
    d = Daemon(None, "--slots", 1, pace_ms=20)
    (d.state / "run/pages").mkdir(parents=True)  # in the place of the link: nothing can lie in memory
    with d:
        job = submit(d)
        page = next((d.state / "run").glob("w*.page"))
        pid = worker_pids(d.state)[0]
        d.kill()
        (d.state / "run/pages").rmdir()
        d.start()
        until("it is adopted", lambda: "worker adopted" in d.log(), 20)
        trains(d, job, d.status(job)["step"])
        assert os.path.islink(d.state / "run/pages") and page.exists() and worker_pids(d.state) == [pid]
        assert "noticed late" not in d.log()
        os.kill(pid, signal.SIGKILL)
        until("its page and recorder are gone", lambda: not list((d.state / "run").glob("w*.*")), 20)
        until("another one trains", lambda: worker_pids(d.state) not in ([], [pid]) and d.status(job)["state"] == "RUNNING", 30)
        assert len(list((d.state / "run/pages").glob("w*.page"))) == 1


def folder_removed():
    """the folder in memory is removed under an agent: the next worker has another one, and no job pays for it"""
    with Daemon(None, "--slots", 1, pace_ms=20) as d:
        job = submit(d)
        first = Path(os.path.realpath(d.state / "run/pages"))
        shutil.rmtree(first)
        pid = worker_pids(d.state)[0]
        os.kill(pid, signal.SIGKILL)
        until("another one trains", lambda: worker_pids(d.state) not in ([], [pid]) and d.status(job)["state"] == "RUNNING", 30)
        second = Path(os.path.realpath(d.state / "run/pages"))
        assert second != first and list(second.glob("w*.page")), (first, second)
        assert "the folder of workers' pages is gone" in d.log()
        assert len([e for e in d.lines("events", job) if e["type"] == "worker.starting"]) == 2


tap(adopted_on_disk, folder_removed)
