# SPDX-License-Identifier: Apache-2.0
"""Hosts that are network namespaces, joined by a bridge for control and, between the first two, by a link of a given rate and delay. Root alone
may make them. This kernel need not know netem: the rate is a token bucket's (tc tbf), the delay that of a relay between two TUN devices."""
import collections
import contextlib
import ctypes
import fcntl
import os
import select
import struct
import threading
import time

from titan import command

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
PACKET = 65000  # bytes of the largest packet on a delayed link: few, so that a relay in Python keeps up


class Unavailable(Exception):
    """No namespaces here, or no rights to make them."""


def ip(*args):
    done = command("ip", *args)
    if done.code != 0:
        raise Unavailable(f"ip {' '.join(args)}: {done.err.strip()}")


class Link:
    """Hosts c, n1 and n2 on a bridge. n1 and n2 also have a link of `gbits` Gbit/s each way, on which a message takes `delay_ms`. `hosts` is
    what nodes.Cluster takes: agents tell each other's workers their address on the link."""

    def __init__(self, gbits, delay_ms=0):
        self.gbits, self.delay_ms = gbits, delay_ms
        self.tag, self.spaces, self.relay = f"t{os.getpid()}", [], None
        self.hosts = {}

    def inside(self, name):
        return ["ip", "netns", "exec", f"{self.tag}{name}"]

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def make(self):
        ip("link", "add", f"{self.tag}b", "type", "bridge")
        ip("link", "set", f"{self.tag}b", "up")
        for number, name in enumerate(("c", "n1", "n2"), 1):
            space, device = f"{self.tag}{name}", f"{self.tag}{name}i"
            ip("netns", "add", space)
            self.spaces.append(space)
            ip("link", "add", f"{space}o", "type", "veth", "peer", "name", device)
            ip("link", "set", f"{space}o", "master", f"{self.tag}b")
            ip("link", "set", f"{space}o", "up")
            ip("link", "set", device, "netns", space)
            ip("-n", space, "addr", "add", f"10.213.77.{number}/24", "dev", device)
            for up in (device, "lo"):
                ip("-n", space, "link", "set", up, "up")
            self.hosts[name] = (self.inside(name), f"10.213.77.{number}")
        ends = {"n1": f"{self.tag}x", "n2": f"{self.tag}y"}
        if self.delay_ms:
            self.relay = Relay({f"{self.tag}{name}": device for name, device in ends.items()}, self.delay_ms / 1000)
        else:
            ip("link", "add", ends["n1"], "netns", f"{self.tag}n1", "type", "veth", "peer", "name", ends["n2"], "netns", f"{self.tag}n2")
        for number, (name, device) in enumerate(ends.items(), 1):
            space = f"{self.tag}{name}"
            ip("-n", space, "addr", "add", f"10.213.78.{number}/24", "dev", device)
            ip("-n", space, "link", "set", device, "mtu", str(PACKET), "up")
            done = command(*self.inside(name), "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{self.gbits * 1e9:.0f}bit",
                           "burst", str(4 * PACKET), "limit", str(64 * PACKET))
            if done.code != 0:
                raise Unavailable(f"tc: {done.err.strip()}")
            self.hosts[name] = (self.inside(name), f"10.213.78.{number}")
        if self.relay:
            self.relay.start()

    def sent(self):
        """Bytes that n1 has sent over the link, with the heads of packets."""
        done = command(*self.inside("n1"), "cat", f"/sys/class/net/{self.tag}x/statistics/tx_bytes")
        return int(done.out)

    def __exit__(self, *_):
        if self.relay:
            self.relay.stop()
        for space in self.spaces:
            command("ip", "netns", "del", space)
        command("ip", "link", "del", f"{self.tag}b")


class Relay:
    """Carries packets between the TUN devices of two namespaces, each after a delay."""

    def __init__(self, ends, delay):
        self.delay, self.running = delay, True
        self.files = [self.device(space, name) for space, name in ends.items()]
        self.threads = [threading.Thread(target=self.carry, args=pair, daemon=True) for pair in (self.files, self.files[::-1])]

    @staticmethod
    def device(space, name):
        """A TUN device made in a namespace; its file is this process'."""
        ret = []

        def make():
            libc = ctypes.CDLL(None, use_errno=True)
            with open(f"/run/netns/{space}") as of:
                if libc.setns(of.fileno(), CLONE_NEWNET) != 0:  # this thread alone
                    return
            with contextlib.suppress(OSError):
                fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
                fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH14x", name.encode(), IFF_TUN | IFF_NO_PI))
                ret.append(fd)
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        if not ret:
            raise Unavailable("no TUN devices here")
        return ret[0]

    def start(self):
        for thread in self.threads:
            thread.start()

    def carry(self, source, target):
        waiting = collections.deque()
        while self.running:
            wait = min(0.2, max(0, waiting[0][0] - time.monotonic())) if waiting else 0.2
            if select.select([source], [], [], wait)[0]:
                waiting.append((time.monotonic() + self.delay, os.read(source, PACKET + 64)))
            while waiting and waiting[0][0] <= time.monotonic():  # timing: the delay of a link
                with contextlib.suppress(BlockingIOError, OSError):  # a full device drops, as a router does
                    os.write(target, waiting[0][1])
                waiting.popleft()

    def stop(self):
        self.running = False
        for thread in self.threads:
            if thread.is_alive():
                thread.join()
        for fd in self.files:
            os.close(fd)
