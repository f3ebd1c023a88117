# SPDX-License-Identifier: Apache-2.0
"""What an attacker speaks: the messages of proto/titan, made by protoc, and one class for each way in."""
import importlib
import queue
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from titan import BUILD, deadline


def missing():
    """Why nothing can be spoken here; None when it can."""
    for name, package in (("grpc", "python3-grpcio"), ("google.protobuf", "python3-protobuf")):
        try:
            importlib.import_module(name)
        except ImportError:
            return f"no {name} (Debian: {package})"
    return None if shutil.which("protoc") else "no protoc (Debian: protobuf-compiler)"


def load():
    """(titan_pb2, agent_pb2, worker_pb2, enrol_pb2). tests/support/titan.py, if it is imported, is titan no more afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="titan-attack-pb-"))
    try:
        subprocess.run(["protoc", f"--proto_path={BUILD / 'gen/proto'}", f"--python_out={folder}",
                        *sorted((BUILD / "gen/proto/titan").glob("*/*.proto"))], check=True)
        (folder / "titan/__init__.py").touch()  # before a titan.py of tests/support
        theirs = {name: sys.modules.pop(name) for name in ("titan",) if name in sys.modules}
        sys.path.insert(0, str(folder))
        try:
            found = [importlib.import_module(f"titan.{name}_pb2") for name in ("v1.titan", "internal.agent", "internal.worker", "internal.enrol")]
        finally:
            sys.path.remove(str(folder))
            for name in [n for n in sys.modules if n == "titan" or n.startswith("titan.")]:
                del sys.modules[name]
            sys.modules.update(theirs)
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


absent = missing()
api, agent, worker, enrol = (None,) * 4 if absent else load()
SERVICES = [] if absent else [api.DESCRIPTOR.services_by_name["Titan"], enrol.DESCRIPTOR.services_by_name["Enrolment"]]
METHODS = {m.name: m for s in SERVICES for m in s.methods}
STREAMS = {"WatchEvents", "Logs", "Metrics", "Backup", "Audit"}  # newer versions of protobuf tell it of a method


def request_of(method):
    """A message of the type that the method takes."""
    m = METHODS[method]
    return getattr(api if m.containing_service.name == "Titan" else enrol, m.input_type.name)()


def channel(target, tls=None):
    """tls: {"ca": path} and, with a pair, cert and key too; None = plain."""
    import grpc
    options = [("grpc.use_local_subchannel_pool", 1)]
    if not tls:
        return grpc.insecure_channel(target, options=options)
    read = {k: Path(v).read_bytes() for k, v in tls.items()}
    credentials = grpc.ssl_channel_credentials(read["ca"], read.get("key"), read.get("cert"))
    return grpc.secure_channel(target, credentials, options=options)


class Client:
    """titan.v1.Titan and Enrolment with bytes for requests: they need not be a message."""

    def __init__(self, target, tls=None, token=None):
        import grpc
        self.error, self.metadata = grpc.RpcError, [("authorization", f"Bearer {token}")] if token else None
        self.channel = channel(target, tls)
        self.stubs = {}
        for name in METHODS:
            make = self.channel.unary_stream if name in STREAMS else self.channel.unary_unary
            self.stubs[name] = make(f"/{METHODS[name].containing_service.full_name}/{name}", request_serializer=bytes, response_deserializer=bytes)

    def call(self, name, payload, timeout=60, most=20):
        """("OK", answers) or (status, text)."""
        try:
            answer = self.stubs[name](payload, timeout=timeout, metadata=self.metadata)
            if name not in STREAMS:
                return "OK", [answer]
            got = []
            for piece in answer:
                got.append(piece)
                if len(got) >= most:
                    answer.cancel()
                    break
            return "OK", got
        except self.error as e:
            return e.code().name, e.details()

    def ask(self, name, /, **fields):
        """The answer as a message, or (status, text)."""
        request = type(request_of(name))(**fields)
        status, got = self.call(name, request.SerializeToString())
        if status != "OK":
            return status, got
        return [getattr(api, METHODS[name].output_type.name).FromString(b) for b in got] if name in STREAMS else \
            getattr(api, METHODS[name].output_type.name).FromString(got[0])

    def close(self):
        self.channel.close()


class HeldCall:
    """A call of which the first message waits for send()."""

    def __init__(self, channel, method, metadata):
        path = "/titan.internal.Coordinator/Session" if method == "Session" else f"/{METHODS[method].containing_service.full_name}/{method}"
        self.method, self.out, self.ended, self.answers = method, queue.Queue(), threading.Event(), 0
        self.call = channel.stream_stream(path, request_serializer=bytes, response_deserializer=bytes)(iter(self.out.get, None), metadata=metadata)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        import grpc
        self.result = ("OK", "")
        try:
            for _ in self.call:
                self.answers += 1
        except grpc.RpcError as e:
            self.result = (e.code().name, e.details())
        self.ended.set()

    def send(self, message):
        self.out.put(message if isinstance(message, bytes) else message.SerializeToString())
        if self.method != "Session":
            self.out.put(None)


def version(channel, metadata):
    """The status of a call that is served to every identity."""
    import grpc
    try:
        channel.unary_unary("/titan.v1.Titan/Version", request_serializer=bytes, response_deserializer=bytes)(b"", metadata=metadata, timeout=deadline())
        return "OK"
    except grpc.RpcError as e:
        return e.code().name


class Session:
    """A stream to the coordinator as an agent opens it. What comes is in .heard; .ended has the status."""

    def __init__(self, target, tls=None):
        import grpc
        self.channel = channel(target, tls)
        self.out, self.heard, self.ended = queue.Queue(200), queue.Queue(), None
        self.call = self.channel.stream_stream("/titan.internal.Coordinator/Session", request_serializer=bytes,
                                               response_deserializer=agent.CoordinatorMessage.FromString)(iter(self.out.get, None))
        self.thread = threading.Thread(target=self.listen, args=(grpc.RpcError,), daemon=True)
        self.thread.start()

    def listen(self, error):
        try:
            for message in self.call:
                self.heard.put(message)
            self.ended = ("OK", "")
        except error as e:
            self.ended = (e.code().name, e.details())
        except ValueError:  # the channel was closed
            self.ended = ("CANCELLED", "")

    def send(self, message):
        """False when the stream is over."""
        payload = message if isinstance(message, bytes) else message.SerializeToString()
        while self.ended is None:
            try:
                self.out.put(payload, timeout=0.2)  # timing: to see that it has ended
                return True
            except queue.Full:
                pass
        return False

    def hear(self, seconds=60):
        """The next message, or None."""
        try:
            return self.heard.get(timeout=seconds)
        except queue.Empty:
            return None

    def close(self):
        self.call.cancel()
        self.channel.close()
        self.thread.join()


def hello(node, incarnation=1, slots=2, address="127.0.0.1", **more):
    return agent.AgentMessage(registration=agent.AgentRegistration(node=node, slots=slots, device="cpu", address=address, version="0.1.0",
                                                     memory_bytes=8 << 30, incarnation=incarnation, **more))


class Page:
    """What proto/worker_page.h says of a worker: magic, job, worker, pid, slot, token."""

    def __init__(self, path):
        self.magic, self.job, self.worker, self.pid, self.slot, self.token = struct.unpack_from("=QQQqI16s", Path(path).read_bytes())


class Frames:
    """A worker's connection to its agent."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(deadline())
        self.socket.connect(str(path))

    def send(self, payload):
        """False when the agent has closed."""
        try:
            self.socket.sendall(struct.pack("<I", len(payload)) + payload)
            return True
        except OSError:
            return False

    def drain(self):
        """Throw away what came; False when the agent has closed."""
        self.socket.setblocking(False)
        try:
            while True:
                if not self.socket.recv(65536):
                    return False
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            self.socket.settimeout(deadline())

    def close(self):
        self.socket.close()


class Datagrams:
    """A socket for PeerMessages to agents, and heartbeats to a coordinator."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.settimeout(1)  # timing: an answer that may not come

    def send(self, port, payload):
        try:
            self.socket.sendto(payload if isinstance(payload, bytes) else payload.SerializeToString(), ("127.0.0.1", port))
            return True
        except OSError:  # too long for a datagram
            return False

    def hear(self, seconds=1):
        self.socket.settimeout(seconds)
        try:
            return agent.PeerMessage.FromString(self.socket.recv(65536))
        except OSError:
            return None

    def close(self):
        self.socket.close()
