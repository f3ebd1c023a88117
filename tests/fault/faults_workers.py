# SPDX-License-Identifier: Apache-2.0
"""Faults of workers: they die, hang, run out of memory, crash again and again."""
import contextlib
import errno
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

from cluster import Shim
from kit import Cluster, alive, finish, keys, kill, now_ms, pause, repeated_steps, scenario, steady, until, zero_lost


@scenario(1, "SIGKILL of a worker in mid step", "I1-I4, I7", fast=True, detected_ms=20, resumed_ms=1000, steps_lost=0)
def worker_killed(rounds, rng, r):
    k = keys()
    with Cluster(nodes=2, slots=2) as c:
        run = c.submit(k)
        for _ in range(rounds):
            since, epoch = steady(run, 4, rng)
            worker, (pid, node) = rng.choice(sorted(run.workers().items()))
            at = kill(pid)
            seen = run.await_event(since, "worker.exited", when=lambda e: e["detail"]["worker"] == worker)
            back = run.await_step_after(at, epoch=epoch)
            assert seen["detail"]["signal"] == 9, seen
            noticed = c.hosts[node].said_at("worker ended", f"worker={worker} ", since_ms=at)
            r.round(noticed_ms=noticed + 1 - at, detected_ms=seen["at_ms"] + 1 - at, resumed_ms=back["time_ms"] - at, steps_lost=zero_lost(run, epoch, back),
                    epochs=back["epoch"] - epoch)
        run.await_training(4, run.step())
        finish(r, run, k)


@scenario(2, "SIGKILL of two workers 5 ms apart, the second during recovery", "I1, I2, I9", resumed_ms=2000, epochs=2,
          steps_lost=0)
def two_workers_killed(rounds, rng, r):
    k = keys()
    with Cluster(nodes=2, slots=2) as c:
        run = c.submit(k)
        for _ in range(rounds):
            _, epoch = steady(run, 4, rng)
            # Of one node: a rank and its buddy, which is on another one, cannot both be lost without a step lost.
            node = rng.choice(c.nodes()).name
            pids = [pid for pid, where in run.workers().values() if where == node]
            rng.shuffle(pids)
            at = kill(pids[0])
            pause(0.005, "into the recovery")
            kill(pids[1])
            back = run.await_step_after(at, epoch=epoch)
            until("both ends are counted", lambda: not any(map(alive, pids)), 5)
            r.round(resumed_ms=back["time_ms"] - at, epochs=back["epoch"] - epoch, steps_lost=zero_lost(run, epoch, back))
        run.await_training(4, run.step())
        finish(r, run, k)


@scenario(4, "a worker ends by itself: segmentation fault, abort, illegal instruction", "I7, I10", fast=True, shrunk_ms=1000,
          steps_lost=0)
def worker_crashes(rounds, rng, r):
    k = keys()
    with Cluster(nodes=2, slots=2) as c:
        run = c.submit(k)
        for n in range(rounds):
            since, epoch = steady(run, 4, rng)
            what = (signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGBUS)[n % 4]
            worker, (pid, _) = rng.choice(sorted(run.workers().items()))
            at = kill(pid, what)
            end = run.await_event(since, "worker.exited", when=lambda e: e["detail"]["worker"] == worker)
            back = run.await_step_after(at, epoch=epoch)
            cause = c.rows("SELECT signal, exit_code, counted, reason FROM workers WHERE id = ?", worker)[0]
            assert cause["signal"] == what == end["detail"]["signal"] and cause["counted"] == 1, cause
            run.await_training(4, back["step"])
            r.round(shrunk_ms=back["time_ms"] - at, replaced_ms=now_ms() - at, steps_lost=zero_lost(run, epoch, back))
        assert run.status()["restarts"] == rounds, "the budget is not counted exactly"
        finish(r, run, k)


@scenario(3, "SIGSTOP of a worker: it hangs, then is let go on", "I2, I9", fast=True, suspected_ms=1000, resumed_ms=2000, steps_lost=0,
          wrote_after=0)
def worker_stopped(rounds, rng, r):
    k = keys()
    with Cluster(nodes=2, slots=2) as c:
        run = c.submit(k)
        for _ in range(rounds):
            since, epoch = steady(run, 4, rng)
            worker, (pid, _) = rng.choice(sorted(run.workers().items()))
            at = kill(pid, signal.SIGSTOP)
            seen = run.await_event(since, "worker.stalled", when=lambda e: e["detail"]["worker"] == worker)
            back = run.await_step_after(at, epoch=epoch)
            lines = len(run.lines())
            kill(pid, signal.SIGCONT)
            until("the stopped one is gone", lambda: not alive(pid), 10, 0.005)
            run.await_training(4, back["step"])
            r.round(suspected_ms=seen["at_ms"] + 1 - at, resumed_ms=back["time_ms"] - at, steps_lost=zero_lost(run, epoch, back),
                    wrote_after=sum(m["epoch"] <= epoch for m in run.lines()[lines:]))
        finish(r, run, k)


@scenario(5, "the kernel kills a worker because a cgroup is out of memory: the worker's own and its node's in turn", "I7", fast=True,
          resumed_ms=1000, steps_lost=0, not_told=0)
def out_of_memory(rounds, rng, r):
    # Without checkpoints: what they leave in the page cache would be taken before a worker is killed.
    k = keys(**{"checkpoint.enable": "false"})
    with Cluster(nodes=2, slots=2) as c:
        for host in c.nodes():
            host.cgroup.add("memory", host.pid)  # before it starts a worker: they inherit it
        run = c.submit(k)
        for n in range(rounds):
            since, epoch = steady(run, 4, rng)
            worker, (pid, node) = rng.choice(sorted(run.workers().items()))
            host = c.hosts[node]
            group = host.cgroup.folder("memory")
            if n % 2 == 0:
                group = group / f"worker-{worker}"
                group.mkdir()
                (group / "cgroup.procs").write_text(str(pid))
                pause(0.6, "an agent looks four times a second which cgroups its workers are in")
            with squeezed(group, pid):
                end = run.await_event(since, "worker.exited", "worker.lost", when=lambda e: e["detail"]["worker"] == worker)
            back = run.await_step_after(end["at_ms"], epoch=epoch)
            assert host.running(), "titand was killed as well"
            # Where its node has no memory titand may wait for some itself, and be given up with all its workers.
            node_lost = n % 2 == 1 and end["type"] == "worker.lost" and f"node {node} is lost" in end["message"]
            told = node_lost or "memory" in (end["message"] + json.dumps(end["detail"])).lower()
            if not told:
                print(f"#   told of as: {end}")
            run.await_training(4, back["step"])
            if n % 2 == 0:
                until(f"{group} is empty", lambda: host.cgroup.remove(group), 5, 0.005)
            r.round(resumed_ms=back["time_ms"] - end["at_ms"], steps_lost=zero_lost(run, epoch, back), not_told=int(not told),
                    node_lost=int(node_lost), epochs=back["epoch"] - epoch)
        finish(r, run, k)


@contextlib.contextmanager
def squeezed(group, victim):
    """A process in the cgroup takes the memory that its limit leaves; the victim is the one to go for it."""
    Path(f"/proc/{victim}/oom_score_adj").write_text("1000")
    (group / "memory.force_empty").write_text("0")  # files' pages, which the other one would get before a worker is killed
    (group / "memory.limit_in_bytes").write_text(str(int((group / "memory.usage_in_bytes").read_text()) + (16 << 20)))
    stop, hogs = threading.Event(), []

    def squeeze():  # until the kernel has taken another one than the hog; titand needs memory to see that its worker is gone
        while not stop.is_set() and (not hogs or hogs[-1].returncode == -signal.SIGKILL):
            hogs.append(subprocess.Popen([sys.executable, "-S", "-c", HOG, str(group / "cgroup.procs"), str(group / "memory.oom_control")],
                                         stderr=subprocess.DEVNULL))
            hogs[-1].wait()
    thread = threading.Thread(target=squeeze)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        for hog in hogs:
            hog.kill()
        thread.join()
        (group / "memory.limit_in_bytes").write_text("-1")


# Ends with the first kill. Goes itself before the workers that are not to go.
HOG = """
import mmap, os, sys
def kills():
    return open(sys.argv[2]).read().split("oom_kill ")[1]
open("/proc/self/oom_score_adj", "w").write("300")
open(sys.argv[1], "w").write(str(os.getpid()))
kept, before = [], kills()
while kills() == before and len(kept) < 2048:
    kept.append(mmap.mmap(-1, 1 << 19, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    kept[-1].write(bytes(1 << 19))
"""


@scenario(8, "SIGKILL of the coordinator between the commit of an epoch and its broadcast", "I1, I2", fast=True, resumed_ms=2000,
          epochs_of_the_number=1, other_members=0)
def killed_between(rounds, rng, r):
    k = keys()
    with Cluster(nodes=2, slots=2) as c:
        run = c.submit(k)
        for _ in range(rounds):
            # From here on this coordinator ends when it has stored the next epoch and told no agent.
            run.await_training(4, run.step() + 5)
            c.c.kill()
            c.start_coordinator(env={"TITAN_FAILPOINTS": "coordinator.stored=kill"})
            since, epoch = steady(run, 4, rng)
            at = kill(rng.choice(sorted(run.workers().values()))[0])
            until("the coordinator has ended", lambda: not c.c.running(), 20, 0.005)
            stored = c.rows("SELECT max(epoch) AS e FROM members WHERE job_id = ?", run.job)[0]["e"]
            assert stored > epoch, "the epoch is not stored"
            members = run.members()
            c.start_coordinator()
            started = now_ms()
            back = run.await_step_after(at, epoch=epoch)
            same = c.rows("SELECT worker_id FROM members WHERE job_id = ? AND epoch = ? ORDER BY rank", run.job, stored)
            r.round(resumed_ms=back["time_ms"] - started, epochs_of_the_number=len(run.events(since, "epoch.forming")) -
                    len({e["epoch"] for e in run.events(since, "epoch.forming")}) + 1,
                    other_members=int([s["worker_id"] for s in same] != members), epochs=back["epoch"] - epoch)
            run.await_training(4, back["step"])
        finish(r, run, k)


@scenario(24, "a worker dies at its start, always on one node", "I10", crashes_before_quarantine=3, lost_to_others=0)
def crash_loop(rounds, rng, r):
    k = keys(**{"elastic.max_workers": 3, "elastic.min_workers": 2, "fault_tolerance.backoff_ms": 50})
    for _ in range(rounds):
        with Cluster(slots={"n1": 2, "n2": 1}, absent=("n2",), config="[coordinator]\nquarantine_crashes = 3\n") as c:
            run = c.submit(k)
            run.await_training(2, 5)
            since, bad = run.last_event(), c.hosts["n2"]
            bad.args = ("--worker", "/bin/false")
            c.start_agent(bad)
            at = now_ms()

            def quarantined():
                return c.rows("SELECT at_ms, message FROM events WHERE type = 'node.quarantined' AND id > ?", since)
            rows = until("the node is in quarantine", quarantined, 60, 0.02)
            crashes = len(run.events(since, "worker.exited"))
            # A new start of its agent does not end the quarantine.
            bad.kill()
            c.start_agent(bad)
            step = run.step()
            run.await_training(2, step + 100)
            assert len(run.events(since, "worker.exited")) == crashes, "workers are started there again"
            s = run.status()
            assert s["state"] == "RUNNING" and s["restarts"] <= crashes, s
            r.round(crashes_before_quarantine=crashes, quarantine_ms=rows[0]["at_ms"] - at, lost_to_others=repeated_steps(run))
            finish(r, run, k)


FROM_CHECKPOINT, FROM_BUDDY = 1, 4  # titan.internal.RecoverySource


@scenario(25, "a worker never leaves a revoked epoch (failpoint), while another one is killed: in turn none that holds a copy of its state, and one "
          "that does", "I7, I9", killed_ms=1500, resumed_ms=3000, steps_lost=0, not_newest=0)
def never_quiet(rounds, rng, r):
    """Two of four workers are lost. Where one holds the only other copy of the other's state, no survivor has that state: the run goes
    back to the newest checkpoint. Otherwise it goes on with the step after the last one."""
    k = keys(**{"checkpoint.interval": 10, "training.global_batch_size": 24})
    with Cluster(nodes=4, slots=1, prepare=deaf_node) as c:
        run = c.submit(k)
        for n in range(rounds):
            until("it has a checkpoint", lambda: run.status()["checkpoint"], 30)
            _, epoch = steady(run, 4, rng)
            workers, members = run.workers(), run.members()
            rank = next(i for i, worker in enumerate(members) if workers[worker][1] == "n4")
            deaf, pair = workers[members[rank]][0], n % 2 == 1
            at = kill(workers[members[(rank + (1 if pair else 2)) % 4]][0])
            until("the one that does not leave is killed", lambda: not alive(deaf), 20, 0.005)
            killed = now_ms()
            back = run.await_step_after(at, epoch=epoch)
            source = c.rows("SELECT rung, state_step FROM epochs WHERE job_id = ? AND number > ? AND rung >= 0 ORDER BY number", run.job, epoch)[0]
            assert source["rung"] == (FROM_CHECKPOINT if pair else FROM_BUDDY), source
            run.await_training(4, back["step"])
            lost = {"steps_lost": zero_lost(run, epoch, back)}
            if pair:
                newest = c.rows("SELECT max(step) AS step FROM checkpoints WHERE job_id = ? AND epoch <= ?", run.job, epoch)[0]["step"]
                lost = {"not_newest": int(source["state_step"] < newest), "steps_repeated": zero_lost(run, epoch, back)}
            r.round(killed_ms=killed - at, resumed_ms=back["time_ms"] - at, **lost)
        finish(r, run, k, repeats=None)


def slow_to_leave(c):
    c.shim = Shim(c.dir / "shim")
    c.c.env = c.shim.env()
    for host in c.nodes():
        host.env = {"TITAN_FAILPOINTS": "epoch.over=sleep:200@1+"}


STILL_S = 3


@scenario(27, "a worker is killed; while the others leave the epoch, all machines stand still for 3 s, or the coordinator does, or its store takes nothing",
          "I1, I7", resumed_ms=1500, steps_lost=0)
def still(rounds, rng, r):
    """None of them says in time that it has left: that is no reason to end it."""
    k = keys()
    with Cluster(nodes=4, slots=1, prepare=slow_to_leave) as c:
        run = c.submit(k)
        for n in range(rounds):
            since, epoch = steady(run, 4, rng)
            if n % 3 == 2:
                c.shim.fail(1, errno.ENOSPC, stay=1)
            at = kill(rng.choice(sorted(run.workers().values()))[0])
            if n % 3 < 2:
                run.await_event(since, "epoch.revoked")
                hosts = [c.c] if n % 3 else list(c.hosts.values())
                for host in hosts:
                    host.freeze(True)
            pause(STILL_S, "nothing moves")
            if n % 3 < 2:
                for host in hosts:
                    host.freeze(False)
            else:
                c.shim.set(fail_at=0)
            free = now_ms()
            back = run.await_step_after(at, epoch=epoch)
            r.round(resumed_ms=max(0, back["time_ms"] - free), steps_lost=zero_lost(run, epoch, back))
        finish(r, run, k)


def deaf_node(c):
    """The worker of n4 stands still where it is told to leave an epoch."""
    c.hosts["n4"].env = {"TITAN_FAILPOINTS": "epoch.over=hang"}
