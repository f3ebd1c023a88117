#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rows of nodes that are gone: titanctl node rm takes one off the list, and one that is ephemeral goes by itself when its agent has ended
in order, as pilots under Slurm do. What is stored stays what the events say."""
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from nodes import Cluster  # noqa: E402
from titan import BIN, command, headers_text, tap, until  # noqa: E402

KEYS = {"elastic.min_workers": 2, "elastic.max_workers": 4, "training.global_batch_size": 4, "training.local_batch_size": 1, "device.threads": 1,
        "training.mixed_precision_param": "float32", "training.steps": 1000000}


# A node that has ended is lost within seconds; the machine may stand still for one.
SOON = "[detection]\nsuspect_ms = 1000\nconfirm_ms = 1000\nnode_timeout_ms = 4000\n"


def remove(c, *names):
    return command(BIN / "titanctl", "--server", c.unix, "node", "rm", *names)


def verified(c):
    for name in ("copy.db", "copy.db.sig"):
        (c.dir / name).unlink(missing_ok=True)
    c.ctl("admin", "backup", c.dir / "copy.db")
    done = command(BIN / "titanctl", "admin", "verify", "--rederive", c.dir / "copy.db", "--state-dir", c.dir / "c")
    assert done.code == 0, done


def asked_for():
    """refused while it is there; then its row goes, with its drain, for the next coordinator, too"""
    with Cluster(config=SOON) as c:
        done = remove(c, "n1")
        assert done.code == 6 and "node n1 is connected: it is not gone" in done.err, done
        c.ctl("drain", "n2", "--wait")
        c.stop("n2")
        until("n2 is lost", lambda: remove(c, "n2").code == 0)
        assert c.nodes() == {"n1": "ready"}
        done = remove(c, "n1", "n2")
        assert done.code == 3 and "there is no node 'n2'" in done.err and "2 of 2 nodes are not removed" in done.err, done
        verified(c)
        c.kill("c")
        c.restart_coordinator()
        until("n1 is back", lambda: c.nodes() == {"n1": "ready"})
        c.agent("n2")
        until("n2 is in service", lambda: c.nodes() == {"n1": "ready", "n2": "ready"})
        verified(c)


class Pilots(Cluster):
    """n2 is one."""

    def agent(self, name):
        if name == "n2":
            config = (self.dir / "titand.toml").read_text()
            (self.dir / "titand.toml").write_text(config + "[agent]\nephemeral = true\ndrain_on_term = true\n")
        super().agent(name)


def by_itself():
    """a pilot that ends in order under a run: the run shrinks, and its row is gone"""
    with Pilots(config=SOON, pace_ms=20) as c:
        job = c.submit({**KEYS, "training.dataset_path": headers_text(c.dir / "text")})
        c.training(job, 4, 2)
        c.processes["n2"].send_signal(signal.SIGTERM)
        c.processes["n2"].wait()
        until("its row is gone", lambda: c.nodes() == {"n1": "ready"})
        s = c.training(job, 2, c.status(job)["step"])
        assert s["restarts"] == 0, s
        verified(c)


if __name__ == "__main__":
    tap(asked_for, by_itself)
