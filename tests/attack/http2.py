# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 by hand, for what no library sends: messages that never end, header blocks without end."""
import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def header(name, value):
    """A literal without indexing, never compressed."""
    def text(s):
        n = len(s)
        if n < 127:
            return bytes([n]) + s
        out, n = bytearray([127]), n - 127
        while n >= 128:
            out.append(n % 128 | 128)
            n //= 128
        out.append(n)
        return bytes(out) + s
    return b"\0" + text(name.encode()) + text(value if isinstance(value, bytes) else value.encode())


def begin(stream, method, *more):
    """The frames that begin a call; more: further headers."""
    block = b"".join([header(":method", "POST"), header(":scheme", "http"), header(":path", method), header(":authority", "x"),
                      header("te", "trailers"), header("content-type", "application/grpc"), *[header(*m) for m in more]])
    out = [frame(HEADERS, 4 if len(block) <= 16384 else 0, stream, block[:16384])]
    for at in range(16384, len(block), 16384):
        out.append(frame(CONTINUATION, 4 if at + 16384 >= len(block) else 0, stream, block[at:at + 16384]))
    return b"".join(out)


def dial(target, source=None):
    if not target.startswith("unix:"):
        host, port = target.rsplit(":", 1)
        return socket.create_connection((host, int(port)), 20, source and (source, 0))
    s = socket.socket(socket.AF_UNIX)
    s.connect(target[5:])
    return s


class Connection:
    patience = 2  # seconds for what is sent at once

    def __init__(self, target, tls=None, source=None):
        """unix:PATH or HOST:PORT; tls: an ssl.SSLContext; source: an address of ours"""
        self.socket = dial(target, source)
        self.socket = tls.wrap_socket(self.socket, server_hostname="localhost") if tls else self.socket
        self.socket.settimeout(0.05)  # timing: what there is to read now
        self.stream, self.window, self.windows, self.first, self.buffer, self.open = -1, 65535, {}, 65535, b"", True
        self.ended = False  # all that the other side has sent was read
        self.most = None  # streams that may be open
        self.last = b""  # the body of the last HEADERS or GOAWAY
        self.begun, self.answered = set(), set()  # streams that the other side has answered on, and those that it has ended
        self.twice = set()  # ... answered on after their end
        self.send(PREFACE + frame(SETTINGS, 0, 0))

    def send(self, data):
        try:
            self.socket.settimeout(self.patience)
            self.socket.sendall(data)
        except OSError:
            self.open = False
        finally:
            self.socket.settimeout(0.05)  # timing: what there is to read now

    def read(self):
        """Take in what there is: windows, pings, the end."""
        try:
            data = self.socket.recv(65536)
            self.ended = not data
            self.buffer += data
        except TimeoutError:
            pass
        except OSError:
            self.ended = True
        self.open = self.open and not self.ended
        while len(self.buffer) >= 9:
            n = int.from_bytes(self.buffer[:3], "big")
            if len(self.buffer) < 9 + n:
                return
            kind, flags, stream = self.buffer[3], self.buffer[4], int.from_bytes(self.buffer[5:9], "big")
            body, self.buffer = self.buffer[9:9 + n], self.buffer[9 + n:]
            if kind == WINDOW:
                more = int.from_bytes(body, "big")
                if stream == 0:
                    self.window += more
                else:
                    self.windows[stream] = self.windows.get(stream, self.first) + more
            elif kind == SETTINGS and not flags & 1:
                for i in range(0, n, 6):
                    key, value = struct.unpack(">HI", body[i:i + 6])
                    if key == 3:
                        self.most = value
                    if key == 4:
                        self.windows = {s: w + value - self.first for s, w in self.windows.items()}
                        self.first = value
                self.send(frame(SETTINGS, 1, 0))
            elif kind == PING and not flags & 1:
                self.send(frame(PING, 1, 0, body))
            elif kind == HEADERS:
                self.last = body
                self.twice |= self.answered & {stream}
                (self.answered if flags & 1 else self.begun).add(stream)
            elif kind == RESET:
                self.windows.pop(stream, None)
            elif kind == GOAWAY:
                self.last = body
                self.open = False

    def call(self, method, *more):
        """Begin a call; more: further headers. Its stream."""
        self.stream += 2
        self.windows[self.stream] = self.first
        self.send(begin(self.stream, method, *more))
        return self.stream

    def data(self, stream, payload, seconds=3):
        """As much of it as the other side's windows let through in time; returns how much."""
        import time
        sent, end = 0, time.monotonic() + seconds
        while sent < len(payload) and self.open and stream in self.windows and time.monotonic() < end:  # timing: how long to try
            n = min(16384, len(payload) - sent, self.window, self.windows[stream])
            if n <= 0:
                self.read()
                continue
            self.send(frame(DATA, 0, stream, payload[sent:sent + n]))
            self.window -= n
            self.windows[stream] -= n
            sent += n
        return sent

    def close(self):
        self.socket.close()
