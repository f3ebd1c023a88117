#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Folders of jobs on several machines: a node that does not see the coordinator's gets no workers, and says why; what a
recipe names is looked at where it is read. The other machine is a mount namespace with a folder of its own."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from nodes import Cluster  # noqa: E402
from titan import BIN, Daemon, command, headers_text, tap, under_permissions, until  # noqa: E402

KEYS = {"elastic.min_workers": 1, "elastic.max_workers": 2, "checkpoint.enable": "false", "training.global_batch_size": 2,
        "training.local_batch_size": 1, "device.threads": 1, "training.steps": 5}


def unshare_works():
    return os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


def node_of_another_machine():
    """a node with another folder of that name gets nothing, one that sees it does, also when the mount comes later"""
    cluster = Cluster()
    cluster.slots = {}
    with cluster as c:
        other = c.dir / "other"
        other.mkdir()
        jobs = c.dir / "c/jobs"
        c.hosts["n1"] = (["unshare", "-m", "sh", "-c", f'mount --bind {other} {jobs}; exec "$@"', "sh"], "127.0.0.1")
        c.slots["n1"] = 2
        c.agent("n1")

        def node():
            nodes = json.loads(c.ctl("-o", "json", "nodes"))["nodes"]
            return nodes[0] if nodes else {"state": "", "reason": ""}

        until("the node is unfit", lambda: node()["state"] == "unfit")
        assert str(jobs / ".titan-jobs") in node()["reason"], node()
        job = c.submit({**KEYS, "training.dataset_path": headers_text(c.dir / "text")})
        assert "node n1 is unfit" in c.status(job)["reason"] and c.status(job)["state"] == "PENDING", c.status(job)
        # Another cluster's token is no proof either.
        (other / ".titan-jobs").write_text("0123456789abcdef\n")
        until("it says so", lambda: "another folder" in node()["reason"])
        shutil.copy(jobs / ".titan-jobs", other)
        until("the job completes", lambda: c.status(job)["state"] == "COMPLETED")
        assert (other / job / "logs").is_dir(), "the worker was in the folder of its machine"
        assert {"node.unfit", "node.fit"} <= {json.loads(e)["type"] for e in c.ctl("-o", "json", "events").splitlines()}


def data_is_looked_at_on_the_node():
    """a data set that the coordinator does not see is no reason to refuse; one that a node does not see fails the job, by name"""
    with Cluster() as c:
        job = c.submit({**KEYS, "training.dataset_path": "/nowhere/at/all"})
        until("the job has failed", lambda: c.status(job)["state"] == "FAILED")
        reason = c.status(job)["reason"]
        assert "/nowhere/at/all" in reason and "on node n" in reason, reason


def nodes_with_other_data():
    """two nodes with data sets that differ below one path: the job fails before its first step and names both; alike, it runs"""
    cluster = Cluster(slots={"n1": 1, "n2": 1})
    text, other = headers_text(cluster.dir / "text"), cluster.dir / "other"
    shutil.copytree(text, other)
    cluster.hosts["n2"] = (["unshare", "-m", "sh", "-c", f'mount --bind {other} {text}; exec "$@"', "sh"], "127.0.0.1")
    with cluster as c:
        keys = {**KEYS, "training.dataset_path": text, "elastic.min_workers": 2}
        alike = c.submit(keys)
        until("it has ended", lambda: c.status(alike)["state"] in ("COMPLETED", "FAILED"))
        assert c.status(alike)["state"] == "COMPLETED", c.status(alike)
        files = sorted(p for p in other.iterdir() if p.stat().st_size > 10)
        for change in ("a file is missing", "a file is shorter", "a file has another name"):
            kept = files[1].read_bytes()
            if change == "a file is shorter":
                files[1].write_bytes(kept[:-1])
            else:
                files[1].unlink()
            if change == "a file has another name":
                (other / (files[1].name + "~")).write_bytes(kept)
            job = c.submit(keys)
            until("it has ended", lambda: c.status(job)["state"] in ("COMPLETED", "FAILED"))
            s = c.status(job)
            assert s["state"] == "FAILED" and s["step"] == 0 and s["restarts"] == 0, (change, s)
            assert "different data at training.dataset_path" in s["reason"] and "node n1" in s["reason"] and "node n2" in s["reason"], s["reason"]
            assert str(text) in s["reason"], s["reason"]
            (other / (files[1].name + "~")).unlink(missing_ok=True)
            files[1].write_bytes(kept)


def nodes_with_other_checkpoints():
    """a node does not see the newest checkpoint below initial_load_path: all ranks load rank 0's choice, or the job fails and names it"""
    with Cluster(slots={"n1": 1, "n2": 1}) as c:
        source, older = c.dir / "source", c.dir / "older"
        keys = {**KEYS, "training.dataset_path": headers_text(c.dir / "text"), "elastic.min_workers": 2, "training.steps": 4}
        first = c.submit({**keys, "checkpoint.enable": "true", "checkpoint.interval": 2, "checkpoint.folder": source})
        until("it has ended", lambda: c.status(first)["state"] in ("COMPLETED", "FAILED"))
        assert c.status(first)["state"] == "COMPLETED", c.status(first)
        shutil.copytree(source, older)
        shutil.rmtree(older / "step-00000004")
        states = {}
        for hidden in c.slots:
            c.hosts = {hidden: (["unshare", "-m", "sh", "-c", f'mount --bind {older} {source}; exec "$@"', "sh"], "127.0.0.1")}
            for name in c.slots:
                c.stop(name)
                until("the node is gone", lambda: c.nodes()[name] != "ready")
                c.agent(name)
            until("the nodes are back", lambda: set(c.nodes().values()) == {"ready"})
            job = c.submit({**keys, "checkpoint.initial_load_path": source})
            until("it has ended", lambda: c.status(job)["state"] in ("COMPLETED", "FAILED"))
            loaded = sorted(line.split("path=")[1].split()[0] for log in c.dir.glob(f"*/jobs/{job}/logs/*.log")
                            for line in log.read_text().splitlines() if " weights loaded " in line)
            s = c.status(job)
            states[s["state"]] = hidden
            if s["state"] == "COMPLETED":  # rank 0 is where it is hidden
                assert loaded == [f'"{source}/step-00000002"'] * 2, loaded
            else:
                assert not loaded and s["step"] == 0 and "No such file" in s["reason"] and "step-00000004" in s["reason"], (loaded, s)
        assert set(states) == {"COMPLETED", "FAILED"}, states


@under_permissions
def data_that_cannot_be_read():
    """a data set without the right to read it fails the job at once, by path and cause; files below it are counted, once"""
    with Daemon(None, "--slots", 1) as d:
        text = headers_text(d.state / "text")
        files = sorted(text.iterdir())
        keys = {**KEYS, "elastic.max_workers": 1}
        first = d.submit("tiny", {**keys, "training.dataset_path": text, "training.steps": 1000000})
        until("it trains", lambda: d.status(first)["step"] > 0)
        folder = d.state / "folder"
        shutil.copytree(text, folder)
        jobs = [(d.submit("tiny", {**keys, "training.dataset_path": path}), path) for path in (files[0], folder)]
        for path in (files[0], files[3], folder):
            path.chmod(0)
        d.ok("cancel", first)
        for job, path in jobs:
            s = d.wait_state(job, "FAILED", "COMPLETED")
            assert s["state"] == "FAILED" and str(path) in s["reason"] and "Permission denied" in s["reason"], s
            assert s["restarts"] == 0 and sum(e["type"] == "worker.exited" for e in d.lines("events", job)) == 1, s
        folder.chmod(0o755)
        job = d.submit("tiny", {**keys, "training.dataset_path": text})
        d.wait_state(job, "COMPLETED")
        said = "".join(log.read_text() for log in d.state.glob(f"jobs/{job}/logs/*.log"))
        assert said.count("2 unreadable (first ") == 1 and str(files[0]) in said, said[-3000:]


def configured_folder_must_be_there():
    """storage.jobs_dir is not made: the mount may be missing; a relative one is refused"""
    with tempfile.TemporaryDirectory(prefix="titan-jobs-") as home:
        for path, code, words in ((f"{home}/share/jobs", 3, "share/jobs"), ("jobs", 2, "not an absolute path")):
            (Path(home) / "c.toml").write_text(f'[storage]\njobs_dir = "{path}"\n')
            done = command(BIN / "titand", "coordinator", "--config", f"{home}/c.toml", "--state-dir", f"{home}/state", timeout=20)
            assert done.code == code and words in done.err, (done.code, done.err)
            assert not (Path(home) / "share").exists()


if __name__ == "__main__":
    tap(data_is_looked_at_on_the_node, data_that_cannot_be_read, configured_folder_must_be_there,
        *([node_of_another_machine, nodes_with_other_data, nodes_with_other_checkpoints] if unshare_works() else []))
