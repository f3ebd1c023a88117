#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""titanctl admin check over several nodes: configured roots that a node lacks, cannot use or has of its own, one that does not
answer, and nodes that do not reach each other. Another machine is a mount namespace or a network namespace."""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import cluster  # noqa: E402
import nodes  # noqa: E402
from titan import BIN, BUILD, CALM, FP_BIN, Daemon, command, tap, until  # noqa: E402

SHIM = BUILD / "tests/fault/shim.so"


def unshare_works():
    return os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


def findings(done):
    """{node: [(what, wrong, text)]}"""
    assert done.code in (0, 7), (done.code, done.err)
    return {n["node"]: [(f["what"], f["wrong"], f["text"]) for f in n["findings"]] for n in json.loads(done.out)["nodes"]}


def answered(look):
    """What look() finds where all nodes have found the time to answer, which they have five seconds for."""
    def found():
        result = look()
        return not any("no answer within" in text for node in result.values() for text in texts(node, "session", True)) and result
    return until("all nodes answer in time", found)


def check(server):
    return answered(lambda: findings(command(BIN / "titanctl", "-s", server, "-o", "json", "admin", "check")))


def texts(found, what, wrong):
    return [text for w, is_wrong, text in found if w == what and is_wrong == wrong]


def wrongs(found):
    """Of what is looked at here; limits and cgroups are the machine's."""
    return [f for f in found if f[1] and f[0] in ("data_root", "checkpoint_root", "tcp", "udp", "folders", "session")]


def one_machine():
    """both roots are there on the only node: said by path, nothing is wrong, and no other node is looked for"""
    with tempfile.TemporaryDirectory(prefix="titan-roots-") as home:
        data, kept = Path(home) / "data", Path(home) / "ck"
        data.mkdir(), kept.mkdir()
        (Path(home) / "c.toml").write_text(f'[storage]\ndata_roots = ["{data}"]\ncheckpoint_roots = ["{kept}"]\n' + CALM)
        with Daemon(None, "--slots", 1, "--config", f"{home}/c.toml") as d:
            (found,) = check(d.server).values()
            assert texts(found, "data_root", False) == [f"{data}: can be read"], found
            assert texts(found, "checkpoint_root", False) == [f"{kept}: can be written"], found
            assert not wrongs(found) and not any(f[0] in ("tcp", "udp") for f in found), found
            assert texts(found, "address", False) == ["127.0.0.1"], "no other node has to reach it"
            assert [p.name for p in kept.iterdir()] == [".titan-root"] and not list(data.iterdir()), "nothing else is left there"
            kept.rename(Path(home) / "gone")
            data.rename(Path(home) / "away")
            found = check(d.server)
            ((what, wrong, text),) = found.pop("(coordinator)")
            assert what == "config" and wrong and "neither a reload nor the next start takes it" in text, text
            (found,) = found.values()
            said = texts(found, "data_root", True) + texts(found, "checkpoint_root", True)
            assert len(said) == 2 and all("No such file" in t and "take it out of the coordinator's storage." in t for t in said), found


def other_clock_and_version():
    """a node with a clock ten minutes off and one of another version are WRONG by name, with what was found; a third is not"""
    if not SHIM.exists():
        return f"{SHIM} is not built (make tests)"
    c = nodes.Cluster(slots={"n1": 1, "n2": 1, "n3": 1})
    shim, other = c.dir / "shim", c.dir / "titand"
    shim.write_bytes(struct.pack("=q", 600 * 10**9).ljust(4096, b"\0"))
    c.hosts["n2"] = (["env", f"LD_PRELOAD={SHIM}", f"TITAN_SHIM={shim}"], "127.0.0.1")
    # The same program but for the text that is its version.
    version = command(BIN / "titand", "--version").out.split(" ", 1)[1].strip()
    program = (BIN / "titand").read_bytes()
    assert program.count(version.encode() + b"\0") >= 1
    later = "9" + version[1:]
    other.write_bytes(program.replace(version.encode() + b"\0", later.encode() + b"\0"))
    other.chmod(0o755)
    (c.dir / "titan-worker").symlink_to(BIN / "titan-worker")
    c.hosts["n3"] = (["sh", "-c", f'shift; exec {other} "$@"', "sh"], "127.0.0.1")
    with c:
        found = check(c.unix)
        (clock,) = texts(found["n2"], "clock", True)
        skew = int(clock.split(" ms ")[0])
        assert abs(skew - 600000) < 60000 and "against the coordinator's" in clock, clock
        (wrong,) = texts(found["n3"], "version", True)
        assert wrong == f"{later}, the coordinator's is {version}", wrong
        assert [n for n in found if texts(found[n], "clock", True)] == ["n2"] and [n for n in found if texts(found[n], "version", True)] == ["n3"], found
        shown = command(BIN / "titanctl", "-s", c.unix, "admin", "check")
        assert shown.code == 7, shown
        for node, what in (("n2", "clock"), ("n3", "version")):
            assert any(node in line and what in line and "WRONG" in line for line in shown.out.splitlines()), shown.out


def root_that_does_not_answer():
    """a root on a file server that does not answer is a finding while it does not; others are looked at, and no second thread hangs"""
    with tempfile.TemporaryDirectory(prefix="titan-roots-") as home:
        roots = [Path(home) / name for name in ("a", "b", "c")]
        for root in roots:
            root.mkdir()
        (Path(home) / "c.toml").write_text(f"[storage]\ndata_roots = {json.dumps([str(r) for r in roots])}\n" + CALM)
        with Daemon(None, "--slots", 1, "--config", f"{home}/c.toml", env={"TITAN_FAILPOINTS": "root.look=hang@1"},
                    program=FP_BIN / "titand") as d:
            for _ in range(2):
                (found,) = check(d.server).values()
                said = texts(found, "data_root", True)
                assert len(said) == 1 and "does not answer within 3 s" in said[0] and said[0].startswith(home), found
                assert len(texts(found, "data_root", False)) == 2 and texts(found, "clock", False), found
            assert d.ok("list") is not None


def roots_of_other_machines():
    """a node with another folder at a root, without one, or that may not write to it, is named with path and cause"""
    home = Path(tempfile.mkdtemp(prefix="titan-roots-"))
    text, kept, more, fixed = (home / name for name in ("text", "ck", "more", "fixed"))
    other_text, other_kept, empty = home / "other-text", home / "other-ck", home / "empty"
    for folder in (text, kept, more / "in", fixed, other_text, other_kept, empty):
        folder.mkdir(parents=True)
    (text / "one.txt").write_text("one")
    mounts = "; ".join((f"mount --bind {other_text} {text}", f"mount --bind {other_kept} {kept}", f"mount --bind {empty} {more}",
                        f"mount --bind {fixed} {fixed}", f"mount -o remount,ro,bind {fixed}"))
    config = f'[storage]\ndata_roots = ["{text}"]\ncheckpoint_roots = ["{kept}", "{more / "in"}", "{fixed}"]\n'
    (home / "none.toml").touch()
    c = nodes.Cluster(config=config, slots={"n1": 1, "n2": 1})
    c.hosts["n2"] = (["unshare", "-m", "sh", "-c", mounts + f'; mount --bind {home}/none.toml {c.dir}/titand.toml; exec "$@"', "sh"],
                     "127.0.0.1")
    try:
        with c:
            found = check(c.unix)
            assert not wrongs(found["n1"]), found["n1"]
            # Data may be copies: it has other names in it.
            (data,) = texts(found["n2"], "data_root", True)
            assert str(text) in data and "other names in it than on node n1" in data, data
            said = texts(found["n2"], "checkpoint_root", True)
            assert any(str(kept) in t and "another folder than on node n1" in t for t in said), said
            assert any(str(more / "in") in t and "No such file" in t for t in said), said
            assert any(str(fixed) in t and "Read-only" in t for t in said) and len(said) == 3, said
            (other_text / "one.txt").write_text("copied")
            shutil.copy(kept / ".titan-root", other_kept)
            found = check(c.unix)
            assert not texts(found["n2"], "data_root", True), found["n2"]
            assert not any(str(kept) in t for t in texts(found["n2"], "checkpoint_root", True)), found["n2"]
            for name, other in (("n1", "n2"), ("n2", "n1")):
                assert texts(found[name], "tcp", False) == [f"reaches {other} as workers do"], found[name]
                assert texts(found[name], "udp", False) == [f"reaches {other} as agents do"], found[name]
    finally:
        shutil.rmtree(home, ignore_errors=True)


def agent_of_this_machine():
    """an agent that comes in by agents.sock sends no datagrams to a coordinator that takes some: that is not wrong"""
    with nodes.Cluster(slots={"n1": 1}) as c:
        c.slots["n2"] = 1
        c.spawn("n2", "agent", "--coordinator", f"unix:{c.dir}/c/agents.sock", "--node", "n2", "--slots", 1)
        until("both are ready", lambda: c.nodes() == {"n1": "ready", "n2": "ready"}, 20)
        until("heartbeats of n1 arrive as datagrams", lambda: texts(check(c.unix)["n1"], "datagrams", False), 10)
        found = check(c.unix)["n2"]
        assert not texts(found, "datagrams", True), found
        assert texts(found, "tcp", False) and texts(found, "udp", False), found


def ring_of_many():
    """eleven nodes: each tries the eight that follow it, and is tried by eight"""
    with nodes.Cluster(slots={f"n{i:02}": 1 for i in range(11)}) as c:
        found = check(c.unix)
        tried = {}
        for name, node in found.items():
            assert not wrongs(node), (name, node)
            for what in ("tcp", "udp"):
                (said,) = texts(node, what, False)
                others = said.split("reaches ")[1].split(" as ")[0].split(", ")
                assert len(set(others)) == 8 and name not in others, (name, said)
                for other in others:
                    tried[what, other] = tried.get((what, other), 0) + 1
        assert set(tried.values()) == {8} and len(tried) == 22, tried


def wrong_address():
    """a node that announces another machine's address is not reached, and each says which does not reach which, where and by what"""
    c = nodes.Cluster(slots={"n1": 1, "n2": 1})
    c.hosts["n2"] = ([], "192.0.2.1")
    with c:
        found = check(c.unix)
        (said,) = texts(found["n1"], "tcp", True)
        assert said.startswith("node n1 does not reach node n2 at 192.0.2.1:") and "(TCP, as workers do)" in said and "; open TCP" in said, said
        (alone,) = texts(found["n1"], "address", True)
        assert alone == "127.0.0.1: workers of other nodes cannot reach it (agent.address)" and texts(found["n2"], "address", False), found
        assert texts(found["n2"], "tcp", False) == ["reaches n1 as workers do"], found["n2"]
        (peers,) = texts(found["n2"], "peers", True)
        assert peers.startswith("this machine does not have the address 192.0.2.1 (agent.address)"), peers
        (udp,) = texts(found["n1"], "udp", True)
        assert udp.startswith("node n1 does not reach node n2 at 192.0.2.1:") and "(UDP, as agents do)" in udp, udp


def cut_between_nodes():
    """two nodes reach the coordinator and not each other: both say so, for datagrams and for connections; healed, nothing is wrong"""
    with cluster.Cluster(nodes=3, slots=1) as c:
        def look():
            return answered(lambda: findings(c.ctl("-o", "json", "admin", "check")))
        c.wire.both_ways("n1", "n2", cut=1)
        found = look()
        for name, other in (("n1", "n2"), ("n2", "n1")):
            address = c.hosts[other].address
            for what, kind in (("udp", "UDP, as agents do"), ("tcp", "TCP, as workers do")):
                (said,) = texts(found[name], what, True)
                assert said.startswith(f"node {name} does not reach node {other} at {address}:") and kind in said, said
                assert texts(found[name], what, False) == [f"reaches n3 as {'agents' if what == 'udp' else 'workers'} do"], found[name]
        assert not wrongs(found["n3"]), found["n3"]
        assert c.node_states() == {"n1": "ready", "n2": "ready", "n3": "ready"}
        c.wire.heal()
        found = look()
        assert not any(wrongs(node) for node in found.values()), found
        # One direction: what n1 sends to n2 is lost, so neither gets an answer.
        c.wire.one_way("n1", "n2", cut=1)
        found = look()
        assert texts(found["n1"], "udp", True) and texts(found["n2"], "udp", True), found


if __name__ == "__main__":
    cluster.Cluster.judged = False
    missing = cluster.missing()
    if missing:
        print(f"# no hosts of their own: {missing}")
    tap(one_machine, *([root_that_does_not_answer] if (FP_BIN / "titand").exists() else []), other_clock_and_version, wrong_address,
        agent_of_this_machine, ring_of_many, *([roots_of_other_machines] if unshare_works() else []), *([] if missing else [cut_between_nodes]))
