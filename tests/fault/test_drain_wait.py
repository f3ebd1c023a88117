#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""titanctl drain --wait: it ends when the nodes are empty, outlasts a restart of the coordinator, and says why a node did not get there."""
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from nodes import Cluster  # noqa: E402
from titan import BIN, command, deadline, headers_text, tap, until  # noqa: E402

KEYS = {"training.global_batch_size": 4, "training.local_batch_size": 1, "device.threads": 1, "training.mixed_precision_param": "float32",
        "training.steps": 1000000}


def run(c, low, high):
    job = c.submit({**KEYS, "elastic.min_workers": low, "elastic.max_workers": high, "training.dataset_path": headers_text(c.dir / "text")})
    return job, c.training(job, high, 2)


def drain(c, *args):
    return command(BIN / "titanctl", "--server", c.unix, "drain", *args)


def drained():
    """the last worker is gone when it ends; of several names each is waited for, also where another cannot be drained"""
    with Cluster() as c:
        job, _ = run(c, 2, 4)
        done = drain(c, "n2", "--wait")
        assert done.code == 0 and done.out.startswith("node n2: drained, after "), done
        assert c.nodes() == {"n1": "ready", "n2": "drained"} and c.status(job)["restarts"] == 0
        c.cancel(job)
        done = drain(c, "nosuch", "n1", "n2", "--wait", "--timeout", "5m")
        assert done.code == 3 and "nosuch" in done.err and "1 of 3 nodes are not drained" in done.err, done
        assert done.out.splitlines() == [line for line in done.out.splitlines() if ": drained, after " in line] and done.out.count("\n") == 2, done
        rows = [json.loads(line) for line in command(BIN / "titanctl", "--server", c.unix, "-o", "json", "drain", "n1", "-w").out.splitlines()]
        assert [(r["name"], r["state"]) for r in rows] == [("n1", "drained")], rows


def not_drained():
    """what cannot move: 124 after the timeout, with the workers; 6 when it is put back; a restart of the coordinator does not end it"""
    with Cluster() as c:
        job, _ = run(c, 4, 4)
        done = drain(c, "n2", "--wait", "--timeout", "0.3s")
        assert done.code == 124 and "node n2 has 2 workers still" in done.err and not done.out, done
        waiting = subprocess.Popen([BIN / "titanctl", "--server", c.unix, "drain", "n2", "--wait"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        c.kill("c")
        c.restart_coordinator()
        until("the nodes are back", lambda: c.nodes() == {"n1": "ready", "n2": "draining"})
        assert waiting.poll() is None
        c.ctl("undrain", "n2")
        out, err = waiting.communicate(timeout=deadline())
        assert waiting.returncode == 6 and "node n2 was put back into service before it was empty" in err and not out, (out, err)
        assert c.status(job)["restarts"] == 0
        for words in (("n2", "--timeout", "5m"), ("n2", "--wait", "--for", "2h")):
            done = drain(c, *words)
            assert done.code == 2 and "--wait" in done.err, done


if __name__ == "__main__":
    tap(drained, not_drained)
