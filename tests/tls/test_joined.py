#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A node that has joined needs its join file no more: the state directory has certificate, key, CA and the coordinator's addresses. Of
several addresses each is checked for the cluster's certificate."""
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "support")]
from pki import SHIM, Coordinator  # noqa: E402
from titan import BIN, command, tap, until  # noqa: E402


def ready(c):
    until("n1 is ready", lambda: c.nodes().get("n1") == "ready")


def without_file():
    """started again with --join of a file that is gone, and with nothing; without a state that has joined both are refused"""
    with Coordinator() as c:
        path = c.join_file("n1", "--address", f"localhost:{c.port}")
        c.spawn("n1", "agent", "--join", path)
        ready(c)
        path.unlink()
        for way, told in ((("--join", path), True), ((), False)):
            c.stop("n1")
            until("n1 is gone", lambda: c.nodes()["n1"] == "lost")
            (c.dir / "n1.log").unlink()
            c.spawn("n1", "agent", *way)
            ready(c)
            assert ("no join file: going on with the certificate that is there" in c.log("n1")) == told, c.log("n1")
        c.stop("n1")
        agent = [BIN / "titand", "agent", "--allow-root", "--state-dir"]
        done = command(*agent, c.dir / "n2", "--join", path)
        assert done.code == 2 and str(path) in done.err, done
        done = command(*agent, c.dir / "n2")
        assert done.code == 2 and "an agent needs the address of its coordinator" in done.err and not (c.dir / "n2/tls").exists(), done
        # Of a state that an older version has joined.
        (c.dir / "n1/tls/cluster.toml").unlink()
        done = command(*agent, c.dir / "n1", "--join", path)
        assert done.code == 2 and "nothing here says where the coordinator is" in done.err and "join again" in done.err, done


def several():
    """a join file with several addresses: the node joins and goes on at the one that has the cluster's certificate"""
    with Coordinator() as other, Coordinator() as c:
        path = c.join_file("n1", "--address", f"localhost:{other.port},localhost:{c.port}")
        text = path.read_text()
        agents = re.search(r'agents = "(.*?)"', text).group(1)
        # Both listen for agents at ports of their own; the file has the cluster's for each.
        other_agents, own_agents = (f"localhost:{x.agents.rsplit(':', 1)[1]}" for x in (other, c))
        path.write_text(text.replace(agents, f"{other_agents},{own_agents}"))
        c.spawn("n1", "agent", "--join", path)
        ready(c)
        assert f"reached={own_agents}" in c.log("n1") and "TLS: certificate verify failed" in c.log("n1"), c.log("n1")
        assert not other.nodes()


def shared():
    """a join file that goes to a network file system: it is written, with one sentence that warns"""
    with Coordinator() as c:
        for type, warns in (("0x6969", True), ("0x01021994", False), ("", False)):
            env = {**os.environ, "LD_PRELOAD": str(SHIM)} | ({"TITAN_SHIM_FS": type} if type else {})
            with open(c.dir / "n1.join", "w") as out:
                done = subprocess.run([BIN / "titanctl", "-s", c.unix, "node", "join", "n1"], stdout=out, stderr=subprocess.PIPE, text=True, env=env)
            assert done.returncode == 0 and "token" in (c.dir / "n1.join").read_text(), done
            assert done.stderr.count("\n") == warns and ("a secret on a shared file system" in done.stderr) == warns, done


if __name__ == "__main__":
    tap(without_file, several, shared)
