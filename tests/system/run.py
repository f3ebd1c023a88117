#!/usr/bin/env python3
"""make system: two emulated machines with systemd, the package and a shared folder go through scenes.sh.

    run.py DEB [FOLDER]     FOLDER (build/system) has the image of image.sh and gets the consoles' logs

Prints the TAP lines of the first machine's console and keeps them for `make reliability` (FOLDER/results.json); exit status 0
when all are ok and the plan came."""
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
LIMIT_S = int(os.environ.get("SYSTEM_LIMIT_S", "3600"))


def free_port():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def machine(folder, node, ports):
    """One of the two; the wire between them is a pair of UDP ports of this host."""
    mine, other = ports if node == 1 else ports[::-1]
    share = "local,security_model=passthrough,multidevs=remap"
    return subprocess.Popen(
        ["nice", "-n", "10", "qemu-system-x86_64", "-machine", "q35,accel=tcg", "-cpu", "Nehalem", "-m", "1536",
         "-smp", "1", "-display", "none", "-monitor", "none", "-nodefaults", "-rtc", "base=utc",
         "-kernel", folder / "vmlinuz", "-initrd", folder / "initrd",
         "-append", f"root=/dev/vda rw console=ttyS0 net.ifnames=0 quiet loglevel=3 systemd.show_status=no "
         f"systemd.hostname=n{node} titan.node={node} mitigations=off panic=5",
         "-drive", f"file={folder}/base.ext4,format=raw,if=virtio,snapshot=on",
         "-fsdev", f"{share},id=test,path={folder}/test", "-device", "virtio-9p-pci,fsdev=test,mount_tag=test",
         "-fsdev", f"{share},id=shared,path={folder}/shared", "-device", "virtio-9p-pci,fsdev=shared,mount_tag=shared",
         "-netdev", f"socket,id=wire,udp=127.0.0.1:{other},localaddr=127.0.0.1:{mine}",
         "-device", f"virtio-net-pci,netdev=wire,mac=52:54:00:00:00:0{node}",
         "-device", "virtio-rng-pci", "-serial", f"file:{folder}/n{node}.log"],
        stdin=subprocess.DEVNULL, stdout=open(folder / f"qemu-n{node}.log", "wb"), stderr=subprocess.STDOUT)


def keep(path, lines, seconds, finished):
    """A row for each scene: what it noted, and how long it took."""
    rows, told = [], []
    for line in lines:
        verdict = re.match(r"(ok|not ok) \d+ - (.*)", line)
        if verdict:
            rows.append({"what": verdict[2], "measured": "", "target": "", "ok": verdict[1] == "ok"})
        elif rows and line.startswith("#   ") and rows[-1]["ok"]:
            rows[-1]["measured"] += ("; " if rows[-1]["measured"] else "") + line[4:].strip()
        elif not rows:
            told.append(line.lstrip("# "))
    text = (f"Two machines under qemu's emulation, Debian 12 by debootstrap, the package, two configuration files, a folder shared by 9p, "
            f"detection times ten times those of a WAN, TCP with `--insecure`. {'; '.join(told)}. All of it took {seconds:.0f} s; the emulation is about 20 times "
            "slower than the machine, so times say little." + ("" if finished else " It did not come to its end."))
    path.write_text(json.dumps({**stamp(), "machine": host(), "command": "make system", "text": text, "rows": rows}, indent=1) + "\n")


def main():
    deb, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2] if len(sys.argv) > 2 else "build/system").resolve()
    for name in ("test", "shared"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()
    shutil.copy(deb, folder / "test/titan.deb")
    shutil.copy(HERE / "scenes.sh", folder / "test")
    for node in (1, 2):
        (folder / f"n{node}.log").unlink(missing_ok=True)
    ports = (free_port(), free_port())
    machines = [machine(folder, node, ports) for node in (1, 2)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    begun, shown, failed, plan, lines = time.monotonic(), 0, False, None, []
    try:
        while time.monotonic() - begun < LIMIT_S and all(m.poll() is None for m in machines):
            time.sleep(0.5)
            log = folder / "n1.log"
            text = log.read_bytes().decode(errors="replace").replace("\r", "") if log.exists() else ""
            new = text[shown:].split("\n")
            shown += len(text[shown:]) - len(new[-1])
            for line in new[:-1]:
                if re.match(r"(ok|not ok) \d+|# ", line):
                    lines.append(line)
                    failed |= line.startswith("not ok")
                    print(line, flush=True)
                plan = plan or re.match(r"1\.\.(\d+)$", line)
            if plan:
                break
    finally:
        for m in machines:
            m.kill()
            m.wait()
    seconds, count = time.monotonic() - begun, sum(not line.startswith("#") for line in lines)
    finished = bool(plan) and int(plan[1]) == count
    keep(folder / "results.json", lines, seconds, finished)
    print(f"# {seconds:.0f} s, consoles: {folder}/n1.log, n2.log")
    if not finished:
        count += 1
        print(f"not ok {count} - all scenes came to their end")
    print(f"1..{count}")
    return 0 if finished and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
