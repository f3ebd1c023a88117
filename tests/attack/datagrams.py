# SPDX-License-Identifier: Apache-2.0
"""Datagrams of agents as an attacker makes them: the messages of proto/titan, and proofs under keys that it has come by
(daemon/common/proof.h). And a link to the coordinator that lets everything pass and keeps the datagrams."""
import hashlib
import hmac
import select
import socket
import struct
import threading

from titan import BUILD

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    absent = None
except ImportError:
    absent = "no google.protobuf (Debian: python3-protobuf)"


def messages():
    """name -> class, of titan.internal."""
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString((BUILD / "gen/titan.fds").read_bytes())
    for f in files.file:
        pool.Add(f)
    one = getattr(message_factory, "GetMessageClass", None) or message_factory.MessageFactory(pool).GetPrototype
    return {m.name: one(pool.FindMessageTypeByName(f"titan.internal.{m.name}"))
            for f in files.file if f.package == "titan.internal" for m in f.message_type}


internal = {} if absent else messages()


def of(name, **fields):
    return internal[name](**fields)


def derive(key, label, about):
    return hmac.new(key, label.encode() + b"\0" + about, hashlib.sha256).digest()


def agents_key(form):
    """What agents of an epoch prove themselves with; form as in an agent's record."""
    return derive(form.key, "titan agents", struct.pack("<Q", form.job_id))


def mesh_key(form):
    return derive(form.key, "titan mesh", struct.pack("<QQ", form.job_id, form.epoch) + form.comm_id)


def prove(m, *keys):
    """The message as bytes, proved under these keys."""
    m.ClearField("proof")
    bare = m.SerializeToString()
    m.proof = b"".join(derive(k, "titan datagram", bare) for k in keys)
    return m.SerializeToString()


def record(path):
    """An agent's record of a job (run/jobs/ID.epoch), which only its user can read."""
    return internal["AgentJobRecord"].FromString(path.read_bytes()[4:])


class Link:
    """A port that leads to another, for TCP and UDP; captured: (to the coordinator, bytes) of each datagram."""

    def __init__(self, there):
        self.there, self.captured, self.closed = there, [], False
        self.tcp = socket.socket()
        while True:
            self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.udp.bind(("127.0.0.1", 0))
            self.port = self.udp.getsockname()[1]
            try:
                self.tcp.bind(("127.0.0.1", self.port))
                break
            except OSError:
                self.udp.close()
        self.tcp.listen(8)
        self.onward = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.threads = [threading.Thread(target=t, daemon=True) for t in (self.streams, self.datagrams)]
        for t in self.threads:
            t.start()

    def streams(self):
        pairs = {}
        while not self.closed:
            for s in select.select([self.tcp, *pairs], [], [], 0.1)[0]:  # timing: to see that it is closed
                try:
                    if s is self.tcp:
                        here, onward = s.accept()[0], socket.create_connection(("127.0.0.1", self.there), 1)
                        pairs[here], pairs[onward] = onward, here
                    elif s in pairs:
                        data = s.recv(65536)
                        if not data:
                            raise OSError
                        pairs[s].sendall(data)
                except OSError:
                    if s is not self.tcp:
                        other = pairs.pop(s)
                        pairs.pop(other)
                        s.close()
                        other.close()
                    elif here not in pairs:
                        here.close()
        for s in (*pairs, self.tcp):
            s.close()

    def datagrams(self):
        back = None
        while not self.closed:
            for s in select.select([self.udp, self.onward], [], [], 0.1)[0]:  # timing: to see that it is closed
                try:
                    data, sender = s.recvfrom(65536)
                    self.captured.append((s is self.udp, data))
                    if s is self.udp:
                        back = sender
                        self.onward.sendto(data, ("127.0.0.1", self.there))
                    elif back:
                        self.udp.sendto(data, back)
                except OSError:  # no process is there
                    pass
        self.udp.close()
        self.onward.close()

    def close(self):
        self.closed = True
        for t in self.threads:
            t.join()
