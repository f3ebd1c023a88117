#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make soak-tls: two nodes train over TLS while every certificate is replaced once a minute: the nodes renew theirs by themselves at
two thirds of 90 s, those of coordinator and user are made anew. Nothing of it may cost a session, an epoch or a call.

    soak.py [--minutes 10]     closes with 'N passed, N failed'"""
import argparse
import json
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "support")]
from pki import Coordinator, ctl  # noqa: E402
from titan import BIN, SOURCE, command, headers_text, overrides, pause, until  # noqa: E402

NODES = ("n1", "n2")
ROTATE_S, CALL_S = 60, 1


def look(c, job):
    return json.loads(c.ctl("-o", "json", "status", job))


def soak(minutes):
    """Rows of (what, measured, target, held)."""
    with Coordinator("[tls]\nnode_life_s = 90\n") as c:
        eva = c.user("eva")
        for name in NODES:
            c.spawn(name, "agent", "--join", c.join_file(name, "--address", f"localhost:{c.port}"), "--slots", 1)
        until("both are ready", lambda: c.nodes() == dict.fromkeys(NODES, "ready"), 10)
        keys = {"elastic.min_workers": 1, "elastic.max_workers": 2, "training.global_batch_size": 2, "training.local_batch_size": 1,
                "device.threads": 1, "training.steps": 1000000000, "training.dataset_path": headers_text(c.dir / "text")}
        job = c.ctl("submit", SOURCE / "recipes/tiny.toml", *overrides(keys)).strip()
        until("two train", lambda: look(c, job)["world_size"] == 2 and look(c, job)["step"] > 5, 60)
        first, end = look(c, job), time.monotonic() + 60 * minutes
        rotate, replaced, calls, errors = time.monotonic() + ROTATE_S, 0, 0, []
        while time.monotonic() < end:
            if time.monotonic() > rotate:
                rotate += ROTATE_S
                ctl("pki", "coordinator", "--state-dir", c.state)
                eva = c.user("eva")
                replaced += 2
            said = command(BIN / "titanctl", "-s", f"localhost:{c.port}", "version",
                           *(x for k in ("ca", "cert", "key") for x in (f"--tls-{k}", eva / f"{k}.pem")), timeout=20)
            calls += 1
            if said.code:
                errors.append(said.err)
            pause(CALL_S, "until the next call")
        last = look(c, job)
        renewed = {name: c.log(name).count("certificate renewed") for name in NODES}
        lost = [line for name in NODES for line in c.log(name).splitlines() if "session with the coordinator lost" in line]
        gone = c.events("node.lost")
        least = int(minutes * 60 / ROTATE_S) - 1
        more = c.ctl("events", job).splitlines()[-20:] if last["epoch"] != first["epoch"] else []
        for seen in (errors, lost, gone):
            for one in seen[:3]:
                print(f"# {one}")
        for line in more:
            print(f"# {line}")
        return [
            ("certificates of nodes renewed", str(sum(renewed.values())), f"≥ {len(NODES) * least}", min(renewed.values()) >= least),
            ("certificates of coordinator and user replaced", str(replaced), "", True),
            ("calls that failed, each over a connection of its own", f"{len(errors)} of {calls:,}", "0", not errors),
            ("sessions and nodes lost", f"{len(lost) + len(gone)}", "0", not lost and not gone),
            ("epochs more", str(last["epoch"] - first["epoch"]), "0", last["epoch"] == first["epoch"]),
            ("restarts", str(last["restarts"] - first["restarts"]), "0", last["restarts"] == first["restarts"]),
            ("steps", f"{last['step'] - first['step']:,}", "> 0", last["step"] > first["step"] and last["state"] == "RUNNING")]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--minutes", type=float, default=10)
    rows = soak(p.parse_args().minutes)
    for what, measured, target, held in rows:
        print(f"{'ok' if held else 'not ok'} {what}: {measured}" + (f" (target {target})" if target else ""))
    failed = sum(not held for *_, held in rows)
    print(f"{len(rows) - failed} passed, {failed} failed")
    return 1 if failed else 0


sys.exit(main())
