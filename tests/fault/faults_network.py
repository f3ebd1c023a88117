# SPDX-License-Identifier: Apache-2.0
"""Faults of nodes and of the network between them."""
from kit import (Cluster, epochs_since, evictions, finish, keys, kill, node_lost_at, now_ms, pause, scenario, steady, stretch,
                 until, zero_lost)


# Rounds with one cluster: a node that is lost again and again gets work later each time.
FEW = 3
# A node is lost after 100 ms; the lan profile takes 400.
KEEN = """
[coordinator]
quarantine_crashes = 0
[detection]
heartbeat_ms = 10
suspect_ms = 50
confirm_ms = 35
"""


@scenario(9, "a node loses its power: nothing passes, everything on it ends (heartbeats every 10 ms; with the default settings it is noticed after 400 ms)", "I1-I4", fast=True, detected_ms=100, resumed_ms=1500,
          steps_lost=0)
def node_off(rounds, rng, r):
    k = keys(**{"elastic.max_workers": 3})
    with Cluster(nodes=3, slots=1, lease_ms=5000, config=KEEN if Cluster.judged else "") as c:
        run = c.submit(k)
        for _ in range(rounds):
            since, epoch = steady(run, 3, rng)
            host = rng.choice(c.nodes())
            at = host.power_off()
            lost = node_lost_at(c, host, since)
            back = run.await_step_after(at, epoch=epoch)
            r.round(detected_ms=lost + 1 - at, resumed_ms=back["time_ms"] - at, steps_lost=zero_lost(run, epoch, back),
                    epochs=back["epoch"] - epoch)
            host.power_on()
            c.start_agent(host)
            run.await_training(3, run.step())
        finish(r, run, k)


LEADERS = """
[coordinator]
quarantine_crashes = 0
[detection]
away_ms = 500
leader_lease_ms = 30000
"""


@scenario(10, "a partition: coordinator and two of five workers here, three there", "I1, I2", minority_stops_ms=1000,
          majority_resumed_ms=5000, steps_lost=0)
def partition(rounds, rng, r):
    k = keys(**{"elastic.max_workers": 5, "training.global_batch_size": 10})
    for begin in range(0, rounds, FEW):
        with Cluster(nodes=5, slots=1, lease_ms=60000, config=LEADERS) as c:
            run = c.submit(k)
            for n in range(begin, min(begin + FEW, rounds)):
                since, epoch = steady(run, 5, rng)
                nodes = [run.workers()[w][1] for w in run.members()]
                # Every third time the two are a rank and its buddy: the others cannot have its part, and wait.
                first, apart = rng.randrange(5), 1 if n % 3 == 2 else 2
                few = [nodes[first], nodes[(first + apart) % 5]]
                at = now_ms()
                for a in ["c", *few]:
                    for b in set(nodes) - set(few):
                        c.wire.both_ways(a, b, cut=1)
                values = {}
                if apart == 2:
                    back = run.await_step_after(at, epoch=epoch, seconds=20)
                    assert back["world_size"] == 3, back
                    values["majority_resumed_ms"] = back["time_ms"] - at
                else:
                    pause(3, "neither side can go on")
                here = [m for m in run.lines() if m["epoch"] == epoch]
                pause(0.5, "what the minority would still do")
                c.wire.heal()
                healed = now_ms()
                back = run.await_step_after(at, epoch=epoch, seconds=60)  # lines of the old epoch may come late
                run.await_training(5, run.step())
                # A prepared step that the others have finished when they went on is theirs.
                theirs = {e["detail"]["step"] for e in run.events(since, "state.ready") if e["detail"]["rolled_forward"]}
                last = max(m["time_ms"] for m in here if m["step"] not in theirs)
                r.round(minority_stops_ms=max(0, last - at), **values, whole_again_ms=now_ms() - healed, steps_lost=zero_lost(run, epoch, back))
            finish(r, run, k)


@scenario(11, "one direction of one link is lost: to the coordinator, from it, between two nodes", "I1, I9", epoch_changes=1)
def one_way(rounds, rng, r):
    k = keys(**{"elastic.max_workers": 3})
    for begin in range(0, rounds, FEW):
        with Cluster(nodes=3, slots=1, lease_ms=60000) as c:
            run = c.submit(k)
            for n in range(begin, min(begin + FEW, rounds)):
                since, epoch = steady(run, 3, rng)
                a, b = rng.sample([h.name for h in c.nodes()], 2)
                source, target = ((a, "c"), ("c", a), (a, b))[n % 3]
                c.wire.one_way(source, target, cut=1)
                pause(10, "for longer than any detection")
                changes = epochs_since(run, since)
                c.wire.heal()
                healed = now_ms()
                run.await_training(3, run.step())
                r.round(epoch_changes=changes, whole_again_ms=now_ms() - healed)
            finish(r, run, k, repeats=0)


@scenario(12, "30 % loss and up to 200 ms of jitter between coordinator and nodes, 10 s at a time", "I9", evictions=0, epochs=0)
def lossy_control(rounds, rng, r):
    k = keys(**{"elastic.max_workers": 3})
    with Cluster(nodes=3, slots=1, lease_ms=60000) as c:
        run = c.submit(k)
        c.wire.tell(f"seed {rng.randrange(1 << 62)}")
        since, epoch = steady(run, 3, rng)
        c.wire.both_ways("c", None, loss=0.3, jitter_us=200000)
        for _ in range(rounds):
            step, begin = run.step(), now_ms()
            pause(10, "a bad link")
            run.lines()
            r.round(evictions=evictions(c, since), epochs=run.epoch() - epoch, steps=run.step() - step,
                    pause_ms=stretch(run, begin, now_ms()))
            since, epoch = run.last_event(), run.epoch()
        c.wire.heal()
        # An agent without one hears nothing of the end, and its workers go on with those of its peers.
        until("all agents have a session", lambda: all(h.has_session() for h in c.nodes()), 60)
        finish(r, run, k)


@scenario(20, "a node joins in mid step; another round it leaves before its worker has its state", "I1, I3, I4", stall_steps=1)
def join_and_leave(rounds, rng, r):
    # Steps long enough to tell a stall of less than one.
    k = keys(**{"elastic.max_workers": 4, "training.global_batch_size": 48, "training.seq_len": 128})
    with Cluster(nodes=4, slots=1, lease_ms=2000, absent=("n4",)) as c:
        run, joiner = c.submit(k), c.hosts["n4"]
        run.await_training(3, 5)
        for n in range(rounds):
            aborted = n % 2 == 1
            since, epoch = steady(run, 3, rng)
            times = [m["step_ms"] for m in run.lines()[-5:]]
            begin = now_ms()
            c.start_agent(joiner)
            if aborted:
                run.await_event(since, "epoch.forming")
                kill_host_workers(joiner)
            else:
                run.await_training(4, run.step())
            left = now_ms()
            if not aborted:
                run.await_training(4, run.step() + 5)
            lines = list(run.lines())
            joiner.power_off()
            joiner.power_on()
            back = run.await_training(3, run.step() if aborted else lines[-1]["step"])
            until("the node is known to be gone", lambda: c.node_states().get("n4") != "ready", 20)
            values = {"left_after_ms": left - begin} if aborted else joined_stall(lines, begin, epoch, times)
            r.round(**values, epochs=back["epoch"] - epoch)
        finish(r, run, k)


def joined_stall(lines, begin, epoch, times):
    """The most that a step took, from the joiner's start to the first step with it, above what such a step takes: with it by those that
    followed, as all share this machine's processors."""
    def usual(times):
        return sorted(times)[len(times) // 2]
    at = next(i for i, m in enumerate(lines) if m["epoch"] > epoch)
    alone, together = usual(times), usual([m["step_ms"] for m in lines[at + 1:]])
    over = [(b["time_ms"] - a["time_ms"] - alone, alone) for a, b in zip(lines[:at], lines[1:at]) if b["time_ms"] >= begin]
    over.append((lines[at]["time_ms"] - lines[at - 1]["time_ms"] - together, together))
    return {"stall_ms": max(0, *(o for o, _ in over)), "stall_steps": max(0, *(o / step for o, step in over))}


def kill_host_workers(host):
    for pid in host.workers():
        kill(pid)


def node_cut_off(rounds, rng, r):
    """Both directions of all links of a node are cut while its processes go on; later they are back. Each node of a cluster in
    turn, once: the second time it would have to be quiet for longer before it gets work."""
    k = keys(**{"elastic.max_workers": 4})
    while rounds > 0:
        with Cluster(nodes=4, slots=1, lease_ms=60000) as c:
            run = c.submit(k)
            for host in rng.sample(c.nodes(), min(4, rounds)):
                _, epoch = steady(run, 4, rng)
                at = now_ms()
                c.wire.both_ways(host.name, None, cut=1)
                back = run.await_step_after(at, epoch=epoch)
                r.round(resumed_ms=back["time_ms"] - at, steps_lost=zero_lost(run, epoch, back), epochs=back["epoch"] - epoch)
                c.wire.heal()
                run.await_training(4, back["step"])
                rounds -= 1
            finish(r, run, k)


def resized(rounds, rng, r):
    """`titanctl resize` 4 -> 3 -> 5 -> 4; a stall is what a step at the change took more than one before it."""
    k = keys(**{"elastic.max_workers": 5, "training.global_batch_size": 30, "training.seq_len": 128})
    with Cluster(nodes=3, slots=2) as c:
        run = c.submit(k)
        c.ok("resize", run.job, 4)
        run.await_training(4, 5)
        for _ in range(rounds):
            for world in (3, 5, 4):
                before = run.await_training(run.lines()[-1]["world_size"], run.step() + 5)
                usual = sorted(m["step_ms"] for m in run.lines()[-5:])[2]
                c.ok("resize", run.job, world)
                run.await_training(world, before["step"])
                lines = run.lines()
                at = next(i for i, m in enumerate(lines) if m["epoch"] > before["epoch"])
                stall = lines[at]["time_ms"] - lines[at - 1]["time_ms"] - lines[at]["step_ms"]
                r.round(stall_ms=max(0, stall), stall_steps=max(0, stall) / usual, usual_step_ms=usual)
        finish(r, run, k)
