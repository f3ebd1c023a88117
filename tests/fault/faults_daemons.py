# SPDX-License-Identifier: Apache-2.0
"""Faults of the daemons: killed, starved, with a clock that jumps."""
import time

from cluster import Shim
from titan import calm
from kit import (Cluster, check_losses, check_membership, check_nothing_left, evictions, finish, keys, now_ms, pause, repeated_steps,
                 scenario, steady, stretch, until, worker_pids, zero_lost)


@scenario(6, "SIGKILL of an agent while its workers train, then started again", "I2, I7", fast=True, adopted_ms=500, steps_lost=0,
          epochs=0, spawned=0)
def agent_killed(rounds, rng, r):
    k = keys()
    with Cluster(nodes=2, slots=2, config="" if Cluster.judged else calm(60000)) as c:
        run = c.submit(k)
        for _ in range(rounds):
            since, epoch = steady(run, 4, rng)
            host = rng.choice(c.nodes())
            before = set(worker_pids(c.dir))
            at = host.kill()
            step = run.step()
            run.await_training(4, step + 3)
            sessions = host.log().count("session with the coordinator")
            start = now_ms()
            c.start_agent(host)
            until("the next agent has its session", lambda: host.log().count("session with the coordinator") > sessions, every=c.every(0.002))
            adopted = now_ms() - start
            run.await_training(4, run.step() + 5)
            pause_ms = stretch(run, at, now_ms())
            assert set(worker_pids(c.dir)) == before, "other workers than before"
            r.round(adopted_ms=adopted, pause_ms=pause_ms, steps_lost=0, epochs=run.epoch() - epoch,
                    spawned=len(run.events(since, "worker.starting")))
        finish(r, run, k)


@scenario(7, "SIGKILL of the coordinator in steady state, then started again", "I5, I6", fast=True, api_back_ms=1000, pause_ms=50,
          acknowledged_lost=0, epochs=0)
def coordinator_killed(rounds, rng, r):
    k = keys()
    small = {**k, "training.steps": 1, "elastic.max_workers": 1}
    with Cluster(nodes=2, slots=2) as c:
        run, others = c.submit(k), []
        for n in range(rounds):
            since, epoch = steady(run, 4, rng)
            others.append(c.submit(small).job)  # accepted right before the end: must be there afterwards
            at = c.c.kill()
            back = c.start_coordinator()
            listed = c.listed()
            run.await_training(4, run.step() + 20)
            if run.epoch() != epoch:
                print("# membership changed:\n#   " + "\n#   ".join(e["message"] for e in run.events(since)))
            r.round(api_back_ms=back, pause_ms=stretch(run, at, now_ms()), acknowledged_lost=len(set(others) - listed),
                    epochs=run.epoch() - epoch)
        run.cancel()
        for job in others:
            until("the jobs accepted meanwhile are done", lambda: c.status(job)["state"] == "COMPLETED", 60)
        check_membership(run)
        r.note(losses_compared=check_losses(run, k), steps=run.step(), trained_again=repeated_steps(run))
        check_nothing_left(c)


@scenario(26, "the coordinator's machine loses its power, a worker on it too; afterwards the node that holds the state is back 2.5 s later than the other",
          "I2, I6", resumed_ms=3000, steps_lost=0)
def coordinator_machine_off(rounds, rng, r):
    k = keys(**{"elastic.max_workers": 2})
    for _ in range(rounds):
        with Cluster(nodes=2, slots=1, coordinator="n1") as c:
            run = c.submit(k)
            since, epoch = steady(run, 2, rng)
            c.hosts["n1"].power_off()
            c.c.process.wait()
            c.hosts["n1"].power_on()
            c.wire.both_ways("n1", "n2", cut=1)
            c.start_coordinator()
            c.start_agent(c.hosts["n1"])
            until("the worker of n1 is known to be lost", lambda: run.events(since, "worker.lost"), 10)
            pause(2.5, "longer than members have to leave an epoch; a node has 6 s to come back")
            at = now_ms()
            c.wire.heal()
            back = run.await_step_after(at, epoch=epoch)
            r.round(resumed_ms=back["time_ms"] - at, steps_lost=zero_lost(run, epoch, back), epochs=back["epoch"] - epoch)
            run.await_training(2, run.step())
            finish(r, run, k)


@scenario(13, "the coordinator's wall clock steps an hour forth and back, then runs 10 % fast", "I5, I9", fast=True, evictions=0,
          epochs=0, pause_ms=50)
def clock_steps(rounds, rng, r):
    k = keys()
    hour = 3600 * 10**9
    with Cluster(nodes=2, slots=2, prepare=clock_shim) as c:
        run = c.submit(k)
        for _ in range(rounds):
            since, epoch = steady(run, 4, rng)
            begin = now_ms()
            for offset in (hour, 0, -hour, 0):
                c.shim.set(clock_ns=offset)
                pause(0.25, "heartbeats by that clock")
            for ms in range(500):
                c.shim.set(clock_ns=ms * 100000)
                pause(0.001, "a clock that runs fast")
            c.shim.set(clock_ns=0)
            run.await_training(4, run.step())
            r.round(evictions=evictions(c, since), epochs=run.epoch() - epoch, pause_ms=stretch(run, begin, now_ms()))
        finish(r, run, k)


def clock_shim(c):
    c.shim = Shim(c.dir / "shim")
    c.c.env = c.shim.env()


@scenario(14, "the coordinator has 1 % of a processor for 10 s", "I9", evictions=0, epochs=0, api_recovered_ms=1000)
def starved(rounds, rng, r):
    k = keys()
    with Cluster(nodes=2, slots=2) as c:
        run = c.submit(k)
        group = c.c.cgroup.folder("cpu")
        c.c.cgroup.add("cpu", c.c.pid)
        for _ in range(rounds):
            since, epoch = steady(run, 4, rng)
            begin = now_ms()
            (group / "cpu.cfs_quota_us").write_text("1000")  # of a period of 100 ms
            pause(10, "with next to no processor")
            (group / "cpu.cfs_quota_us").write_text("-1")
            fed = now_ms()
            c.ok("status", run.job)
            answered = now_ms() - fed
            slowest = max(timed(lambda: c.ok("version")) for _ in range(20))
            run.await_training(4, run.step())
            r.round(evictions=evictions(c, since), epochs=run.epoch() - epoch, api_recovered_ms=answered, api_slowest_ms=slowest,
                    pause_ms=stretch(run, begin, now_ms()))
        finish(r, run, k)


def timed(work):
    begin = time.monotonic()
    work()
    return 1000 * (time.monotonic() - begin)
