#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Three hosts, each a network namespace with folders of its own, from `pki init` to training by the lines of docs/security.md as
they stand there; what passes is captured on each. Over TCP the coordinator's ports have no plain text of ours. Datagrams can be read; none
of the three hosts has a recipe in them, nor a key. TCP of workers among themselves is not looked at. Needs root."""
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / d) for d in ("support", "attack")]
import datagrams  # noqa: E402
from titan import BIN, SOURCE, command, deadline, headers_text, overrides, tap, until  # noqa: E402

PORTS = {7070, 7071}  # of clients and of agents
ADDRESSES = {"head": "10.0.0.1", "n1": "10.0.0.2", "n2": "10.0.0.3"}
MARK = "a-recipe-that-others-do-not-read-4711"

# Every frame of the namespace with its length, until SIGTERM.
CAPTURE = """
import signal, socket, struct, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
out = open(sys.argv[1], "wb")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(out.close()))
print("up", flush=True)
while True:
    frame = s.recv(1 << 16)
    out.write(struct.pack("=I", len(frame)) + frame)
"""


def lines():
    """The five commands: [(host, line)]."""
    text = (SOURCE / "docs/security.md").read_text()
    block = re.search(r"## A cluster in five commands.*?\n```\n(.*?)```", text, re.S).group(1)
    return [(host, line.strip()) for host, line in (row.split("#", 1) for row in block.splitlines())]


def payloads(path, ports=None):
    """What TCP and UDP carried, each as one text; ports: from and to these."""
    tcp, udp, data, at = [], [], path.read_bytes(), 0
    while at + 4 <= len(data):
        n, = struct.unpack_from("=I", data, at)
        frame, at = data[at + 4:at + 4 + n], at + 4 + n
        if len(frame) < 34 or frame[12:14] != b"\x08\x00":
            continue
        ip = frame[14:14 + struct.unpack_from("!H", frame, 16)[0]]
        rest = ip[(ip[0] & 15) * 4:]
        if len(rest) < 8 or (ports and not ports.intersection(struct.unpack_from("!HH", rest))):
            continue
        if ip[9] == 6:
            tcp.append(rest[(rest[12] >> 4) * 4:])
        elif ip[9] == 17:
            udp.append(rest[8:])
    return b"".join(tcp), b"".join(udp)


def datagrams_of(h, job):
    """Those of all three hosts: there are some on each, with no recipe and no key that has been handed out."""
    secret = {"recipe": MARK.encode()}
    for name in ("n1", "n2"):
        form = datagrams.record(h.dir / name / f"titan/run/jobs/{job}.epoch").accepted
        assert len(form.key) == 32, form
        secret.update({"key of an epoch": form.key, "key of its agents": datagrams.agents_key(form), "key of its mesh": datagrams.mesh_key(form)})
    for host in ADDRESSES:
        _, udp = payloads(h.dir / f"frames-{host}")
        assert (b"n1" if host == "head" else host.encode()) in udp, (host, len(udp))
        for what, word in secret.items():
            assert word not in udp, f"{what} in a datagram of {host}"


class Hosts:
    def __init__(self, addresses=None):
        self.addresses = addresses or ADDRESSES
        self.dir = Path(tempfile.mkdtemp(prefix="titan-cluster-"))
        self.tag = f"ts{os.getpid()}"
        self.spaces, self.processes = [], []

    def ip(self, *args):
        done = command("ip", *args)
        assert done.code == 0, f"ip {' '.join(args)}: {done.err}"

    def __enter__(self):
        try:
            switch = f"{self.tag}s"
            self.ip("netns", "add", switch)
            self.spaces.append(switch)
            self.ip("-n", switch, "link", "add", "name", "br0", "type", "bridge")
            self.ip("-n", switch, "link", "set", "br0", "up")
            for host, address in self.addresses.items():
                space = f"{self.tag}{host}"
                self.ip("netns", "add", space)
                self.spaces.append(space)
                self.ip("-n", space, "link", "add", "name", "eth0", "type", "veth", "peer", "name", f"p{host}", "netns", switch)
                self.ip("-n", switch, "link", "set", f"p{host}", "master", "br0", "up")
                self.ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
                self.ip("-n", space, "link", "set", "eth0", "up")
                self.ip("-n", space, "link", "set", "lo", "up")
                (self.dir / host / "titan/jobs").mkdir(parents=True)
            (self.dir / "work").mkdir()
            (self.dir / "jobs").mkdir()  # what all of them share
            (self.dir / "hosts").write_text("127.0.0.1 localhost\n10.0.0.1 head.example\n")
        except BaseException:
            self.__exit__(True)
            raise
        return self

    def enter(self, host, line):
        """Arguments that run the line there, with a /var/lib of its own but for the jobs, as a login shell of root would."""
        mounts = (f"mount --bind {self.dir}/{host} /var/lib && mount --bind {self.dir}/jobs /var/lib/titan/jobs && "
                  f"mount --bind {self.dir}/hosts /etc/hosts && cd {self.dir}/work && {line}")
        return ["nsenter", f"--net=/run/netns/{self.tag}{host}", "unshare", "--mount", "sh", "-c", mounts]

    def run(self, host, line):
        """To its end; a line that ends in & goes on."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("TITAN_", "XDG_"))}
        env.update(PATH=f"{BIN}:{env['PATH']}", HOME="/nonexistent")
        if line.endswith("&"):
            with open(self.dir / f"{host}.log", "a") as log:
                self.processes.append(subprocess.Popen(self.enter(host, "exec " + line[:-1]), stdout=log, stderr=log,
                                                       stdin=subprocess.DEVNULL, env=env))
            return ""
        done = command(*self.enter(host, line), env=env)
        assert done.code == 0, f"{host}# {line}: exit {done.code}: {done.err}"
        return done.out

    def capture(self, host, path):
        p = subprocess.Popen(["nsenter", f"--net=/run/netns/{self.tag}{host}", sys.executable, "-c", CAPTURE, path],
                             stdout=subprocess.PIPE)
        self.processes.append(p)
        assert p.stdout.readline() == b"up\n"
        return p

    def __exit__(self, kind, *_):
        for p in reversed(self.processes):
            if p.poll() is None:
                p.send_signal(signal.SIGTERM)
                try:
                    p.wait(deadline())
                except subprocess.TimeoutExpired:
                    p.kill()
                    p.wait()
        for space in self.spaces:
            command("ip", "netns", "del", space)
        if kind:
            for log in sorted(self.dir.glob("*.log")):
                print(f"# {log.name}:\n# " + log.read_text(errors="replace")[-3000:].replace("\n", "\n# "))
        shutil.rmtree(self.dir, ignore_errors=True)


def three_hosts():
    """five commands make a cluster of three hosts that trains; the coordinator's port shows no plain text"""
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    if not shutil.which("ip"):
        return "no ip (Debian package iproute2)"
    probe = f"ts{os.getpid()}p"
    made, inside = command("ip", "netns", "add", probe), command("ip", "netns", "exec", probe, "true")
    command("ip", "netns", "del", probe)
    if made.code != 0 or inside.code != 0:
        return f"no network namespaces here: {(made.err or inside.err).strip()}"
    script = lines()
    assert len(script) == 5, script
    with Hosts() as h:
        captures = [h.capture(host, h.dir / f"frames-{host}") for host in ADDRESSES]

        def say(host, line):
            # The test is root, which the reader need not be.
            return h.run(host, line.replace("titand agent", "titand agent --allow-root"))
        init, coordinator, join, agent, nodes = script
        say(*init)
        say(*coordinator)
        until("the coordinator answers", lambda: command(*h.enter("head", f"{BIN}/titanctl version")).code == 0, 10)
        for name in ("n1", "n2"):
            say("head", join[1].replace("n1", name))
            secret = (h.dir / f"work/{name}.join").read_text()
            say(name, agent[1].replace("n1", name).replace("10.0.0.2", ADDRESSES[name]))

        def ready():
            rows = [row.split()[:2] for row in say(*nodes).splitlines()[1:]]
            return sorted(rows) == [["n1", "ready"], ["n2", "ready"]]
        until("both nodes are ready", ready, 15)
        keys = {"elastic.min_workers": 6, "elastic.max_workers": 6, "training.global_batch_size": 6, "training.local_batch_size": 1,
                "device.threads": 1, "training.steps": 1000000, "training.dataset_path": headers_text(h.dir / "text"),
                "checkpoint.folder": h.dir / "checkpoints", "job.description": f'"{MARK}"'}
        words = " ".join(f"'{word}'" for word in overrides(keys))
        job = say("head", f"titanctl submit {SOURCE}/recipes/tiny.toml {words}").strip()

        def training():
            s = json.loads(say("head", f"titanctl -o json status {job}"))
            assert s["state"] not in ("FAILED", "CANCELLED", "COMPLETED"), s
            return s["state"] == "RUNNING" and s["world_size"] == 6 and s["step"] > 20 and s
        until("they train together", training, 60)
        events = [json.loads(row) for row in say("head", f"titanctl -o json events {job}").splitlines()]
        assert {e["node"] for e in events if e["type"] == "worker.started"} == {"n1", "n2"}
        say("head", f"titanctl cancel {job}")
        until("the job is cancelled", lambda: json.loads(say("head", f"titanctl -o json status {job}"))["state"] == "CANCELLED", 30)
        for capture in captures:
            capture.send_signal(signal.SIGTERM)
            capture.wait(deadline())
        tcp, udp = payloads(h.dir / "frames-head", PORTS)
        token = re.search(r'token = "(.*?)"', secret).group(1)
        for word in (MARK, token, str(h.dir), "titan.internal", "titan.v1", "Coordinator", "spiffe", "dataset_path", "checkpoint"):
            assert word.encode() not in tcp, f"'{word}' passed in the clear"
        assert len(tcp) > 20000 and b"\x17\x03\x03" in tcp and MARK in (h.dir / f"jobs/{job}/recipe.toml").read_text()
        # The capture would have seen it: heartbeats name their node, with a proof beside it.
        assert b"n1" in udp, len(udp)
        datagrams_of(h, job)
        print(f"# {len(tcp)} bytes over TCP, {len(udp)} over UDP")


if __name__ == "__main__":
    tap(three_hosts)
