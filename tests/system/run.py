#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make system: two machines with systemd, the package and a shared folder go through scenes.sh.

    run.py DEB [FOLDER]     FOLDER (build/system) has what image.sh made; FOLDER/KIND gets the machines' files and logs

ONLY='FUNCTION ...' plays these scenes of it and those they need, and keeps no results.
KIND=emulated (the default): virtual machines with a kernel of their own. KIND=containers: systemd as process 1 of two
namespaces of this machine, in minutes; they share its kernel, so a power cut loses processes but no page cache.
Prints the TAP lines of the first machine and keeps them for `make reliability` (FOLDER/results.json, or FOLDER-containers/);
exit status 0 when all are ok and the plan came."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parent / "fault")]
from kit import machine as host, stamp  # noqa: E402
LIMIT_S = int(os.environ.get("SYSTEM_LIMIT_S", "5400"))
KIND = os.environ.get("KIND", "emulated")


def free_port():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def kvm_runs(folder):
    """Some /dev/kvm can be opened, and a stock kernel does not come far on it: believed when it has said a line in time."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return False
    log = folder / "kvm.log"
    log.unlink(missing_ok=True)
    p = subprocess.Popen(["qemu-system-x86_64", "-machine", "q35,accel=kvm", "-cpu", "host", "-m", "512", "-display", "none", "-monitor",
                          "none", "-nodefaults", "-no-reboot", "-kernel", folder.parent / "vmlinuz", "-append", "console=ttyS0 panic=-1",
                          "-serial", f"file:{log}"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 15
    while time.monotonic() < end and p.poll() is None:
        time.sleep(0.5)
        if log.exists() and b"Linux version" in log.read_bytes():
            break
    p.kill()
    p.wait()
    return log.exists() and b"Linux version" in log.read_bytes()


class Emulated:
    """A virtual machine; the wire between the two is a pair of UDP ports of this host."""
    ports, accel = None, None

    def __init__(self, folder, node):
        if not Emulated.ports:
            Emulated.ports = (free_port(), free_port())
            Emulated.accel = "kvm" if kvm_runs(folder) else "tcg"
        self.folder, self.node, self.disk = folder, node, folder / f"n{node}.ext4"
        self.renew()
        self.start()

    def renew(self):
        """The disk of a machine that has never run."""
        subprocess.run(["cp", "--sparse=always", self.folder.parent / "base.ext4", self.disk], check=True)

    def start(self):
        folder, node = self.folder, self.node
        mine, other = self.ports if node == 1 else self.ports[::-1]
        share = "local,security_model=passthrough,multidevs=remap"
        cpu = "host" if self.accel == "kvm" else "Nehalem"
        self.process = subprocess.Popen(
            ["nice", "-n", "10", "qemu-system-x86_64", "-machine", f"q35,accel={self.accel}", "-cpu", cpu, "-m", "1536",
             "-smp", "1", "-display", "none", "-monitor", "none", "-nodefaults", "-rtc", "base=utc",
             "-kernel", folder.parent / "vmlinuz", "-initrd", folder.parent / "initrd",
             "-append", "root=/dev/vda rw console=ttyS0 net.ifnames=0 quiet loglevel=3 systemd.show_status=no "
             f"systemd.hostname=n{node} mitigations=off panic=5",
             "-drive", f"file={self.disk},format=raw,if=virtio",
             "-fsdev", f"{share},id=test,path={folder}/test", "-device", "virtio-9p-pci,fsdev=test,mount_tag=test",
             "-fsdev", f"{share},id=shared,path={folder}/shared", "-device", "virtio-9p-pci,fsdev=shared,mount_tag=shared",
             "-netdev", f"socket,id=wire,udp=127.0.0.1:{other},localaddr=127.0.0.1:{mine}",
             "-device", f"virtio-net-pci,netdev=wire,mac=52:54:00:00:00:0{node}",
             "-device", "virtio-rng-pci", "-serial", f"file:{folder}/n{node}.console"],
            stdin=subprocess.DEVNULL, stdout=open(folder / f"n{node}.host", "ab"), stderr=subprocess.STDOUT)

    def cut(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.cut()
        self.disk.unlink(missing_ok=True)

    @classmethod
    def text(cls):
        return (f"Two machines under qemu ({cls.accel})" + ("" if cls.accel == "kvm" else ", about 20 times slower than this one, so times say little,")
                + " with kernels of their own; a power cut is the end of qemu. The shared folder is 9p.")


class Container:
    """Process 1 of namespaces of its own, over the files of image.sh; the wire between the two is a veth pair."""
    spaces = None

    def __init__(self, folder, node):
        tag = f"tsys{os.getpid()}"
        if not Container.spaces:
            Container.spaces = [f"{tag}n1", f"{tag}n2"]
            for space in self.spaces:
                subprocess.run(["ip", "netns", "add", space], check=True)
            subprocess.run(["ip", "-n", self.spaces[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns",
                            self.spaces[1]], check=True)
        self.folder, self.node, self.space = folder, node, self.spaces[node - 1]
        self.group = f"titan-system-{os.getpid()}-n{node}"
        unified = Path("/sys/fs/cgroup/unified")
        self.groups = (unified if unified.exists() else Path("/sys/fs/cgroup")) / self.group
        self.renew()
        self.start()

    def files(self):
        return self.folder / f"n{self.node}.files"

    def renew(self):
        """The files of a machine that has never run."""
        shutil.rmtree(self.files(), ignore_errors=True)
        for name in ("upper", "work", "root"):
            (self.files() / name).mkdir(parents=True)

    def start(self):
        line = ("mount --make-rprivate / && umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup && "
                f"mkdir -p /sys/fs/cgroup/{self.group} && echo $$ >/sys/fs/cgroup/{self.group}/cgroup.procs && "
                f"mount -t overlay overlay -o lowerdir={self.folder.parent}/root,upperdir={self.files()}/upper,workdir={self.files()}/work "
                f"{self.files()}/root && exec nice -n 5 systemd-nspawn --register=no --keep-unit -q --boot --directory={self.files()}/root "
                f"--machine=n{self.node} --hostname=n{self.node} --network-namespace-path=/run/netns/{self.space} --capability=all "
                f"--bind={self.folder}/test:/test --bind={self.folder}/shared:/shared --link-journal=no --resolv-conf=off --timezone=off")
        self.process = subprocess.Popen(["unshare", "-m", "sh", "-c", line], stdin=subprocess.DEVNULL,
                                        stdout=open(self.folder / f"n{self.node}.console", "ab"), stderr=subprocess.STDOUT)

    def cut(self):
        if self.groups.exists():
            (self.groups / "cgroup.kill").write_text("1")
        self.process.kill()
        self.process.wait()

    def close(self):
        self.cut()
        for _ in range(50):
            subprocess.run(["find", self.groups, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";"], stderr=subprocess.DEVNULL, check=False)
            if not self.groups.exists():
                break
            time.sleep(0.1)
        subprocess.run(["ip", "netns", "delete", self.space], check=False)
        shutil.rmtree(self.files(), ignore_errors=True)

    @classmethod
    def text(cls):
        return ("Two containers of systemd-nspawn with systemd as process 1 on this machine's kernel; a power cut is SIGKILL to all in one "
                "of them, which loses no page cache. The shared folder is a bind mount.")


def keep(folder, kind, lines, seconds, finished):
    """A row for each scene: what it noted, and how long it took."""
    rows, told = [], []
    for line in lines:
        verdict = re.match(r"(ok|not ok) \d+ - ([^#]*)(?:# SKIP (.*))?", line)
        if verdict:
            rows.append({"what": verdict[2].strip(), "measured": f"not done: {verdict[3]}" if verdict[3] else "", "target": "",
                         "ok": None if verdict[3] else verdict[1] == "ok"})
        elif rows and line.startswith("#   "):
            rows[-1]["measured"] += ("; " if rows[-1]["measured"] else "") + line[4:].strip()
        elif not rows:
            told.append(line.lstrip("# "))
    text = (f"{kind.text()} Debian 12 by debootstrap, the package, two configuration files, certificates by `titanctl pki init` and "
            f"`titanctl node join`. {'; '.join(told)}. All of it took {seconds:.0f} s." + ("" if finished else " It did not come to its end."))
    folder.mkdir(exist_ok=True)
    (folder / "results.json").write_text(json.dumps({**stamp(), "machine": host(), "command": "make system" + ("" if KIND == "emulated" else f" KIND={KIND}"),
                                            "text": text, "rows": rows}, indent=1) + "\n")


def main():
    deb, base = Path(sys.argv[1]).resolve(), Path(sys.argv[2] if len(sys.argv) > 2 else "build/system").resolve()
    folder = base / KIND
    kind = {"emulated": Emulated, "containers": Container}[KIND]
    for name in ("test", "shared"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir(parents=True)
    for path in [*folder.glob("n?.console"), *folder.glob("n?.host")]:
        path.unlink()
    shutil.copy(deb, folder / "test/titan.deb")
    shutil.copy(HERE / "scenes.sh", folder / "test")
    (folder / "test/kind").write_text(f"{KIND}\n")
    (folder / "test/only").write_text(os.environ.get("ONLY", ""))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    begun, shown, failed, plan, lines, machines = time.monotonic(), 0, False, None, [], []
    try:
        for node in (1, 2):
            machines.append(kind(folder, node))
        while time.monotonic() - begun < LIMIT_S and not plan:
            time.sleep(0.3)
            for m in machines:
                power, other = folder / f"test/power.n{m.node}", folder / f"test/other.n{m.node}"
                if power.exists() or other.exists():
                    m.cut()
                    if other.exists():
                        m.renew()
                    for asked in (power, other):
                        asked.unlink(missing_ok=True)
                    m.start()
                elif m.process.poll() is not None:
                    print(f"# n{m.node} ended: {folder}/n{m.node}.console")
                    m.start()
            log = folder / "test/n1.log"
            text = log.read_bytes().decode(errors="replace") if log.exists() else ""
            new = text[shown:].split("\n")
            shown += len(text[shown:]) - len(new[-1])
            for line in new[:-1]:
                if re.match(r"(ok|not ok) \d+|# ", line):
                    lines.append(line)
                    failed |= line.startswith("not ok")
                    print(line, flush=True)
                plan = plan or re.match(r"1\.\.(\d+)$", line)
    finally:
        for m in machines:
            m.close()
        seconds, count = time.monotonic() - begun, sum(not line.startswith("#") for line in lines)
        finished = bool(plan) and int(plan[1]) == count
        if not os.environ.get("ONLY"):
            keep(base if KIND == "emulated" else base.with_name(f"{base.name}-{KIND}"), kind, lines, seconds, finished)
    print(f"# {seconds:.0f} s, consoles: {folder}/n1.console, n2.console")
    if not finished:
        count += 1
        print(f"not ok {count} - all scenes came to their end")
    print(f"1..{count}")
    return 0 if finished and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
