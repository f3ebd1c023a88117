# SPDX-License-Identifier: Apache-2.0
"""What a person or a supervisor waits for, beside the most that it may take: refusals, cancels, calls beside a file server that does not
answer, the end of a run that lost a rank, signs of life."""
import contextlib
import json
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import spawnd  # noqa: E402
from cluster import Shim  # noqa: E402
from nodes import Cluster  # noqa: E402
from titan import BIN, FP_BIN, SOURCE, Daemon, at_ms, command, headers_text, overrides, until  # noqa: E402

KEYS = {"elastic.min_workers": 1, "elastic.max_workers": 1, "training.global_batch_size": 4, "training.local_batch_size": 1,
        "training.seq_len": 16, "device.threads": 1}
LONG = 1000000
ROUNDS = 5


def timed(work):
    begin = time.monotonic()
    work()
    return 1000 * (time.monotonic() - begin)


def unusable_folder(d, keys):
    """From the start of a worker to the job's failure."""
    (d.state / "file").touch()
    job = d.submit("tiny", {**keys, "checkpoint.folder": d.state / "file"})
    s = d.wait_state(job, "FAILED")
    return at_ms(s["finished_at"]) - min(at_ms(e["at"]) for e in d.lines("events", job) if e["type"] == "worker.started")


def wait_that_runs_out(d, keys):
    """`titanctl wait --timeout 0.5` of a job that goes on, without the half second."""
    job = d.submit("tiny", {**keys, "training.steps": LONG, "checkpoint.enable": "false"})
    took = timed(lambda: d.ctl("wait", job, "--timeout", "0.5"))
    d.ok("cancel", job)
    d.wait_state(job, "CANCELLED")
    return took - 500


def killed_rank(folder, text):
    """From SIGKILL of one rank of four to the end of `titan-worker run`."""
    run = subprocess.Popen([BIN / "titan-worker", "run", SOURCE / "recipes/tiny.toml", "-n", "4", "--dir", folder, *overrides(
        {**KEYS, "training.dataset_path": str(text), "training.steps": LONG, "elastic.max_workers": 4, "checkpoint.enable": "false"})],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while "step=5 " not in run.stdout.readline():
        assert run.poll() is None, f"titan-worker ended with {run.returncode}"
    ranks = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    os.kill(int(ranks[2]), signal.SIGKILL)
    return timed(lambda: run.communicate(timeout=120))


def hung_share(text):
    """Folders of jobs that do not answer: their cancels, and calls beside them meanwhile."""
    cluster, cancelled, beside = Cluster(slots={"n1": 4}, pace_ms=50), [], []
    shim = Shim(cluster.dir / "shim-n1")
    cluster.hosts["n1"] = (["env", *(f"{k}={v}" for k, v in shim.env().items())], "127.0.0.1")
    with cluster as c:
        keys = {**KEYS, "training.dataset_path": text, "training.steps": LONG, "checkpoint.enable": "false"}
        first = c.submit(keys)
        c.training(first, 1, 0)
        for n in range(ROUNDS):
            shim.hang(c.dir / f"c/jobs/{int(first) + 1 + n}")
            job = c.submit(keys)
            until("its start hangs", shim.held)
            beside += [timed(lambda: c.ctl(*call)) for call in (("status", first), ("list",), ("events", first), ("nodes",))]
            c.ctl("cancel", job)
            begin = time.monotonic()
            until("its start is cancelled", lambda: c.status(job)["state"] == "CANCELLED", every=0.02)
            cancelled.append(1000 * (time.monotonic() - begin))
            shim.hang("")
            until("no call hangs any more", lambda: shim.held() == 0)
    return cancelled, beside


def silent_root():
    """`titanctl admin check` where one of three data roots does not answer, which it gives 3 s."""
    with tempfile.TemporaryDirectory(prefix="titan-roots-") as home:
        roots = [Path(home) / name for name in "abc"]
        for root in roots:
            root.mkdir()
        (Path(home) / "c.toml").write_text(f"[storage]\ndata_roots = {json.dumps([str(r) for r in roots])}\n")
        with Daemon(None, "--slots", 1, "--config", f"{home}/c.toml", env={"TITAN_FAILPOINTS": "root.look=hang@1"},
                    program=FP_BIN / "titand") as d:
            return timed(lambda: command(BIN / "titanctl", "-s", d.server, "-o", "json", "admin", "check"))


def beside_too_large(text):
    """From a submit to its worker's start, while 10,000 jobs of another user wait for more slots than there are."""
    took = []
    with Daemon(None, "--slots", 4) as d:
        until("the node is there", lambda: "ready" in d.ctl("nodes").out)
        keys = {**KEYS, "training.dataset_path": text, "training.steps": 1}
        for n in range(64, 74):
            d.submit("tiny", {**keys, "elastic.min_workers": n, "elastic.max_workers": n, "training.global_batch_size": n}, "--for", "other",
                     "--sweep", "training.seed=" + ",".join(map(str, range(1000))))
        for _ in range(ROUNDS):
            job = d.submit("tiny", keys)
            submitted = at_ms(d.wait_state(job, "COMPLETED")["submitted_at"])
            took.append(min(at_ms(e["at"]) for e in d.lines("events", job) if e["type"] == "worker.started") - submitted)
    return took


def moved_node(text):
    """From the start of an agent at another address, after SIGKILL of the one before and with its worker in a run, to a ready node there."""
    took = []
    with Cluster(slots={"n1": 1, "n2": 1}) as c:
        job = c.submit({**KEYS, "training.dataset_path": text, "training.steps": LONG, "checkpoint.enable": "false", "elastic.min_workers": 2,
                        "elastic.max_workers": 2})
        c.training(job, 2, 0)
        for n in range(2, 2 + ROUNDS):
            c.kill("n2")
            c.hosts["n2"] = ([], f"127.0.0.{n}")
            begin = time.monotonic()
            c.agent("n2")
            until("n2 is ready at its new address", lambda to=f"127.0.0.{n}": any(
                (x["name"], x["address"], x["state"]) == ("n2", to, "ready") for x in json.loads(c.ctl("-o", "json", "nodes"))["nodes"]), every=0.02)
            took.append(1000 * (time.monotonic() - begin))
            c.training(job, 2, c.status(job)["step"])
    return took


def started_by_spawnd(out):
    """How much longer the start of a process takes by titan-spawnd, as a user of its own, than by posix_spawn: in a child, which has users of
    its own."""
    began, reason = [], spawnd.enter()
    if not reason:
        with spawnd.probe("#!/bin/true\n") as (w, _):
            w.spawnd.stop()
            subprocess.run(["mount", "-t", "tmpfs", "none", w.dir / "spawned"], check=True)  # as /run is
            w.spawnd.start()
            for n in range(100):
                with contextlib.ExitStack() as held:
                    begin = time.monotonic()
                    said = spawnd.Titan(w).start(w.dir / "hers", worker=n + 1)
                    middle = time.monotonic()
                    pid = os.posix_spawn("/bin/true", ["true"], {})
                    began.append(1000 * (2 * middle - begin - time.monotonic()))
                    held.callback(os.waitpid, pid, 0)
                    assert said["kind"] == spawnd.STARTED, said
            w.spawnd.stop()
            subprocess.run(["umount", w.dir / "spawned"], check=True)
            w.spawnd.start()
    out.send((began, reason))


def of_spawnd():
    here, out = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.Process(target=started_by_spawnd, args=(out,))
    child.start()
    out.close()  # with the child the last one: its end is heard
    took, reason = here.recv()
    child.join()
    if reason:
        print(f"  the start of a process by titan-spawnd is left out: {reason}")
    return took and [statistics.median(took)]


def signs_of_life():
    """Between signs of a titand that systemd ends after 200 ms without one."""
    with tempfile.TemporaryDirectory(prefix="titan-life-") as home, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as signs:
        signs.bind(f"{home}/notify")
        signs.settimeout(60)
        titand = subprocess.Popen([BIN / "titand", "dev", "--state-dir", f"{home}/state", "--slots", "1"], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL,
                                  env={**os.environ, "NOTIFY_SOCKET": f"{home}/notify", "WATCHDOG_USEC": "200000"})
        at = []
        try:
            while len(at) < 40:
                if b"WATCHDOG=1" in signs.recv(4096):
                    at.append(1000 * time.monotonic())
        finally:
            titand.terminate()
            titand.wait(60)
    return [b - a for a, b in zip(at, at[1:])]


def waits():
    with Daemon(None, "--slots", 4) as d:
        text = headers_text(d.state / "text")
        keys = {**KEYS, "training.dataset_path": text, "training.steps": 20}
        folder = [unusable_folder(d, keys) for _ in range(ROUNDS)]
        over = [wait_that_runs_out(d, keys) for _ in range(ROUNDS)]
        killed = [killed_rank(d.state / f"run-{n}", text) for n in range(ROUNDS)]
        cancelled, beside = hung_share(text)
        large = beside_too_large(text)
        moved = moved_node(text)
        log = (d.state / "titand.log").read_text()
    signs, started = signs_of_life(), of_spawnd()
    measured = (("worker's start to a refused checkpoint folder's FAILED", folder, 1000), ("wait --timeout beyond its time", over, 500),
                ("SIGKILL of a rank to the end of titan-worker run", killed, 5000),
                ("cancel of a start that a file server holds up", cancelled, 7000), ("calls beside it", beside, 5000),
                ("admin check with a data root that does not answer", [silent_root()], 5000),
                ("submit to a worker's start beside 10,000 jobs that are too large", large, 500),
                ("a node's agent at another address to a ready node", moved, 2000),
                ("start of a process by titan-spawnd beyond posix_spawn's, the median of 100", started, 3), ("signs of life of a 200 ms watchdog", signs, 190))
    return [{"what": what, "times": len(ms), "median_ms": statistics.median(ms), "most_ms": max(ms), "target_ms": target}
            for what, ms, target in measured if ms] + [{"what": "iterations of titand's loop that took long", "count": log.count("took long"), "target": 0}]


def rows(measured):
    return [(m["what"], f"{m['count']}", f"{m['target']}") if "count" in m else
            (f"{m['what']}, the most of {m['times']}", f"{m['most_ms']:,.1f} ms", f"{m['target_ms']:,} ms") for m in measured]
