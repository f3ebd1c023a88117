#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where nothing fails: how often is a node taken for lost, or a worker for hung, that lives? By the hour and node, in a LAN and a WAN, on links that
lose and delay, and with the processors busy with other things. Writes build/alarms/results.json.

Nodes: simulated agents (tests/scale/agents.c), as many as beat at the full pace, and one real coordinator on the other side of a switch.
Workers: real ones, eight on four hosts with real agents."""
import argparse
import contextlib
import json
import math
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import cluster  # noqa: E402
from agents import Agents  # noqa: E402
from cluster import PORT  # noqa: E402
from kit import Cluster, check_membership, keys, machine, stamp  # noqa: E402
from titan import BUILD, pause  # noqa: E402

HOME = BUILD / "alarms"
NODES = 125
BUSY = 8
CONFIG = "[coordinator]\nquarantine_crashes = 0\n[detection]\nprofile = \"%s\"\n"


def links(loss=0.0, delay=0, jitter=0):
    """delay, jitter: ms, each way."""
    return {"loss": loss, "delay_us": 1000 * delay, "jitter_us": 1000 * jitter}


# What, profile, how links are, processes that want a processor all the time, is it to be borne without an alarm?
OF_NODES = (("nothing else happens", "lan", links(), 0, True),
            (f"{BUSY} processes more want the processors", "lan", links(), BUSY, True),
            ("1 % loss, up to 5 ms of jitter", "lan", links(0.01, 0, 5), 0, True),
            ("10 % loss, up to 50 ms of jitter", "lan", links(0.1, 0, 50), 0, True),
            ("30 % loss, up to 200 ms of jitter", "lan", links(0.3, 0, 200), 0, False),
            ("100 ms away, 1 % loss, up to 50 ms of jitter", "wan", links(0.01, 100, 50), 0, True),
            ("100 ms away, 10 % loss, up to 100 ms of jitter", "wan", links(0.1, 100, 100), 0, True))
OF_WORKERS = (("nothing else happens", 0, True), (f"{BUSY} processes more want the processors", BUSY, True),
              (f"{4 * BUSY} processes more want the processors", 4 * BUSY, False))


@contextlib.contextmanager
def busy(n):
    processes = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(n)]
    try:
        yield
    finally:
        for p in processes:
            p.kill()
            p.wait()


def counters(c):
    return {k["name"]: int(k["value"]) for k in json.loads(c.ok("-o", "json", "counters"))["counters"]}


def counted(c, seconds):
    """How much each counter has grown in that time."""
    before, end = counters(c), time.monotonic() + seconds
    while time.monotonic() < end:
        pause(min(10, max(0, end - time.monotonic())), "what is counted takes time")
        assert c.c.running(), "the coordinator has ended"
    return {name: value - before[name] for name, value in counters(c).items()}


def rate(n, hours):
    """A count as a rate; of none, what it is below with 95 % confidence (Poisson)."""
    return f"{n} ({n / hours:,.2f} an hour)" if n else f"0 (below {-math.log(0.05) / hours:,.2f} an hour)"


def of_nodes(what, profile, link, others, borne, seconds):
    with Cluster(nodes=1, slots=1, config=CONFIG % profile, absent=("n1",)) as c:
        agents = Agents(NODES, c.c.address, PORT + 1, c.hosts["n1"].space, pki=c.c.state / "pki")
        try:
            agents.await_counts(registered=NODES)
            agents.ask(f"loss {link['loss']}")
            c.wire.both_ways("c", "n1", **link)
            with busy(others):
                pause(5, "the link is as it will be")
                n = counted(c, seconds)
            beat = agents.ask("stats")["heartbeat_ms"]
            c.wire.heal()
        finally:
            agents.close()
    hours = NODES * seconds / 3600
    print(f"# nodes, {profile}, {what}: {n['silences']} silences, {n['nodes_lost']} lost in {hours:.1f} h", flush=True)
    return {"what": f"{profile}, {what}: {NODES} nodes, {hours:.1f} node-hours, a heartbeat every {beat} ms",
            "target": "no node given up" if borne else "", "ok": n["nodes_lost"] == 0 if borne else None,
            "measured": f"given up {rate(n['nodes_lost'], hours)}; others asked {rate(n['silences'], hours)}"}


def of_workers(what, others, borne, seconds):
    with Cluster(nodes=4, slots=2) as c:
        run = c.submit(keys(**{"elastic.max_workers": 8}))
        run.await_training(8, 20)
        with busy(others):
            pause(5, "the load is as it will be")
            epoch, step = run.epoch(), run.step()
            n = counted(c, seconds)
            steps, epochs = run.step() - step, run.epoch() - epoch
        run.cancel()
        check_membership(run)
    hours = 8 * seconds / 3600
    print(f"# workers, {what}: {n['workers_hung']} hung, {n['nodes_lost']} nodes lost, {epochs} epochs, {steps} steps in {hours:.1f} h", flush=True)
    held = not n["workers_hung"] and not n["nodes_lost"] and not epochs
    return {"what": f"lan, {what}: 8 workers on 4 nodes, {hours:.1f} worker-hours, {steps:,} steps",
            "target": "no worker taken for hung, no node given up, no new epoch" if borne else "", "ok": held if borne else None,
            "measured": f"hung {rate(n['workers_hung'], hours)}; nodes given up {n['nodes_lost']}; epochs {epochs}"}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--minutes", type=float, default=5, help="of each condition")
    minutes = p.parse_args().minutes
    why = cluster.missing()
    if why:
        print(f"0 passed, 0 failed: skipped, {why}")
        return 0
    rows = [of_nodes(*condition, minutes * 60) for condition in OF_NODES]
    rows += [of_workers(*condition, minutes * 60) for condition in OF_WORKERS]
    HOME.mkdir(parents=True, exist_ok=True)
    (HOME / "results.json").write_text(json.dumps(
        {**stamp(), "machine": machine(), "command": f"make alarms MINUTES={minutes:g}", "rows": rows}, indent=1) + "\n")
    for row in rows:
        print(f"{'not ok' if row['ok'] is False else 'ok    '}  {row['what']}: {row['measured']}" + (f" (target {row['target']})" if row["target"] else ""))
    failed = sum(row["ok"] is False for row in rows)
    print(f"{sum(row['ok'] is True for row in rows)} passed, {failed} failed")
    return 1 if failed else 0


sys.exit(main())
