#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""titanctl flight: the rank that stands still is named, with what the others wait in; a worker that is killed leaves its dump."""
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from nodes import Cluster  # noqa: E402
from titan import BIN, Daemon, deadline, headers_text, pause, tap, until  # noqa: E402

d = Daemon()


def submit(**keys):
    return d.submit("tiny", {"training.steps": 100000, "training.dataset_path": headers_text(d.state / "text", 1 << 16),
                             "checkpoint.interval": 1000, "metrics.log_freq": 100, "elastic.min_workers": 3,
                             "elastic.max_workers": 3, "training.global_batch_size": 6, "training.local_batch_size": 1,
                             **{k.replace("__", "."): v for k, v in keys.items()}})


def training(job, beyond=0):
    status = d.status(job)
    return status["state"] == "RUNNING" and (status.get("step") or 0) > beyond and status


def epochs(job):
    return json.loads(d.ok("-o", "json", "flight", job))["epochs"]


def ranks(job):
    """{rank: pid} of the epoch that trains now, by what the flight recorders say."""
    pids = d.workers(job)
    return {dump["rank"]: pids[dump["worker"]] for dump in epochs(job)[0]["dumps"] if dump["worker"] in pids}


def ended(job):
    return sum(e["type"] == "worker.exited" for e in d.lines("events", job))


def stopped_rank():
    """a rank that is stopped: named in the sentence, and the others are those that wait"""
    stopped_rank.job = job = submit()
    until("the job trains", lambda: training(job, 20))
    until("no rank waits", lambda: "no rank has waited for a second" in d.ok("flight", job))
    for _ in range(20):  # it is taken for lost within 50 ms: on a busy machine the others may not have come to where they wait
        before = until("all ranks are told of", lambda: (lambda e: len(e["dumps"]) == 3 and e)(epochs(job)[0]))
        assert sorted(dump["rank"] for dump in before["dumps"]) == [0, 1, 2] and before["damaged"] == 0, before
        assert all(dump["records"] > 500 and dump["cause"] == "request" for dump in before["dumps"]), before
        exits = ended(job)
        os.kill(ranks(job)[2], signal.SIGSTOP)
        until("it is taken for lost", lambda: ended(job) > exits)
        found = [e for e in epochs(job) if e["epoch"] == before["epoch"]][0]
        roots = [s for s in found["stalls"] if s["root"]]
        waiting = {w["rank"] for s in roots for w in s["waiting"]}
        if waiting and waiting <= {0, 1} and all(m["rank"] == 2 for s in roots for m in s["missing"]):
            break
        until("the job goes on", lambda: (lambda s: s and s["epoch"] > before["epoch"] and s["step"] > found["step"] + 20)(training(job)))
    assert roots and all([m["rank"] for m in s["missing"]] == [2] for s in roots), found
    assert waiting and waiting <= {0, 1} and roots[0]["number"] > 0, roots
    text = d.ok("flight", job)
    assert "rank 2 is held up (stopped)" in text, text
    assert "rank 2 has not entered " in text or roots[0]["kind"] == "held", text
    print("# " + text.replace("\n", "\n# "))


def killed_rank():
    """a worker that is killed leaves what it did last"""
    job = stopped_rank.job
    until("the job goes on", lambda: any(e["type"] == "recovery.finished" for e in d.lines("events", job)) and training(job))
    until("all ranks are in its epoch", lambda: len(ranks(job)) == 3)
    epoch, pid = epochs(job)[0]["epoch"], ranks(job)[1]
    worker = [w for w, p in d.workers(job).items() if p == pid][0]
    os.kill(pid, signal.SIGKILL)
    path = d.state / f"jobs/{job}/flight/worker-{worker}-epoch-{epoch}.json"
    until("its dump is there", lambda: path.exists() and '"cause":"exit"' in path.read_text())
    dump = json.loads(path.read_text())
    assert dump["rank"] == 1 and dump["detail"] == "signal 9" and len(dump["records"]) > 100, dump["detail"]
    assert {r["kind"] for r in dump["records"]} == {"action", "collective"}
    collectives = [r["number"] for r in dump["records"] if r["op"] == "ALL_GATHER"]
    assert collectives == sorted(collectives) and len(set(collectives)) == len(collectives), collectives
    until("the others' dumps are there", lambda: len([e for e in epochs(job) if e["epoch"] == epoch][0]["dumps"]) == 3)
    said = [line for line in d.ok("flight", job).splitlines() if line.startswith(f"epoch {epoch},")][0]
    assert "rank 1 ended by signal 9" in said and "orders differ" not in said, said
    # A dump that is cut short is counted, and costs the others nothing.
    path.write_text(path.read_text()[:-500])
    assert json.loads(d.ok("-o", "json", "flight", job))["unread"] == 1
    assert "dumps that are damaged: 1" in d.ok("flight", job)
    d.ok("cancel", job)


def agent_goes():
    """an agent that goes away before it has answered: flight and logs say so, name the node and exit with 4"""
    with Cluster(slots={"n1": 1}, lease_ms=30000) as c:
        job = c.submit({"training.steps": 1000000, "training.dataset_path": headers_text(c.dir / "text", 1 << 16),
                        "checkpoint.enable": "false"})
        c.training(job, 1, 5)
        agent = c.processes["n1"]
        agent.send_signal(signal.SIGSTOP)
        asked = {what: subprocess.Popen([BIN / "titanctl", "--server", c.unix, what, job], text=True, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE) for what in ("flight", "logs")}
        pause(0.3, "the questions reach the agent, or find it gone")
        c.kill("n1")
        for what, process in asked.items():
            said = process.communicate(timeout=deadline())[1]
            assert process.returncode == 4 and "node n1 " in said and "ask again" in said and len(said.splitlines()) == 1, (what, said)
        c.agent("n1")
        until("the node is back", lambda: c.nodes() == {"n1": "ready"})
        c.ctl("cancel", job)
        until("the job is cancelled", lambda: c.status(job)["state"] == "CANCELLED")
        assert "step=" in c.ctl("logs", job)


def nothing_there():
    """a job that is not there, or has not run; a wrong argument"""
    for args, code in (((4000000,), 3), ((), 2), (("x",), 2)):
        done = d.ctl("flight", *args)
        assert done.code == code and len(done.err.splitlines()) <= 2, done


with d:
    try:
        tap(stopped_rank, killed_rank, agent_goes, nothing_there)
    except SystemExit as end:
        if end.code:
            raise  # the daemon's log is shown
