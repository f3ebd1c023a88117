#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`titanctl top`: one frame for a file, a terminal with keys and another size, and ten thousand jobs."""
import fcntl
import os
import pty
import re
import select
import sqlite3
import struct
import sys
import tempfile
import termios
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, Daemon, command, headers_text, tap, until  # noqa: E402

WAITING, MANY = 7, 10000


class World:
    """A daemon, a job that runs, and WAITING behind it."""


class Terminal:
    """top on a terminal of its own."""

    def __init__(self, rows, columns):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "xterm", "LC_ALL": "C.UTF-8", "TITAN_SERVER": World.daemon.server})
            os.environ.pop("COLUMNS", None)
            os.execv(BIN / "titanctl", ["titanctl", "top"])
        self.out = ""
        self.resize(rows, columns)

    def resize(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys):
        self.out = ""
        os.write(self.fd, keys)

    def expect(self, pattern):
        """Read on until the pattern is there, in what came since the last key."""
        def there():
            if select.select([self.fd], [], [], 0)[0]:
                self.out += os.read(self.fd, 65536).decode(errors="replace")
            return re.search(pattern, self.out)
        until(lambda: f"{pattern}: {self.out!r}", there)

    def end(self):
        while True:
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                data = b""
            if not data:
                break
            self.out += data.decode(errors="replace")
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def one_frame():
    """top: where standard output is no terminal, one frame that fits, without any control character"""
    d = World.daemon
    for columns, lines in ((60, 20), (80, 24), (200, 50)):
        env = {**os.environ, "COLUMNS": str(columns), "LINES": str(lines), "LC_ALL": "C"}
        done = command(BIN / "titanctl", "-s", d.server, "top", env=env)
        assert done.code == 0 and done.out.isascii() and "\033" not in done.out, done
        rows = done.out.splitlines()
        assert len(rows) <= lines and max(map(len, rows)) <= columns, done.out
        assert re.search(rf"^> +{World.job} +first", done.out, re.M) and "RUNNING" in done.out and "PENDING" in done.out, done.out
        assert re.search(r"^ +\S+ +1 .* trains ", done.out, re.M), done.out
    for code, args in ((2, ("top", "-o", "json")), (2, ("top", "x"))):
        assert d.ctl(*args).code == code
    assert command(BIN / "titanctl", "-s", "unix:/nowhere/x", "top").code not in (0, 2)


def ended_jobs():
    """top --all: of a job that has ended it shows the reason, as list does"""
    d = World.daemon
    d.ok("cancel", World.ended, "--reason", "a better one")
    d.wait_state(World.ended, "CANCELLED")
    env = {**os.environ, "COLUMNS": "160", "LINES": "40", "LC_ALL": "C"}
    out = command(BIN / "titanctl", "-s", d.server, "top", "--all", env=env).out
    assert re.search(rf"^ +{World.ended} +ended +CANCELLED .*a better one", out, re.M), out


def on_a_terminal():
    """top: keys select, turn pages and end it; another size is drawn anew; the terminal is left as it was"""
    t = Terminal(16, 100)
    t.expect(rf"page 1, {1 + WAITING - 5} more jobs[\s\S]*> +{World.job} ")
    assert "\033[?1049h" in t.out
    t.press(b"j")
    t.expect(rf"> +{World.waiting[-1]} ")
    t.press(b"\033[A")
    t.expect(rf"> +{World.job} ")
    t.press(b"n")
    t.expect(rf"page 2[\s\S]*> +{World.waiting[2]} ")
    t.press(b"p")
    t.expect(rf"page 1[\s\S]*> +{World.job} ")
    t.out = ""
    t.resize(40, 60)
    t.expect(rf" +{World.waiting[0]} +tiny[^/]*PENDING[^/]*0/100000 +- +0\033")  # all of them on one page, without columns
    t.press(b"q")
    assert t.end() == 0 and t.out.endswith("\033[?25h\033[?1049l"), repr(t.out)


def ten_thousand():
    """top: of ten thousand jobs a page is asked for, and how many there are besides"""
    d = World.daemon
    d.stop()
    store = sqlite3.connect(d.state / "titan.db")
    columns = [row[1] for row in store.execute("PRAGMA table_info(jobs)")]
    copied = ", ".join("i" if c == "id" else c for c in columns)
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 100 UNION ALL SELECT i + 1 FROM n WHERE i < {99 + MANY})"
    store.execute(f"{numbers} INSERT INTO jobs SELECT {copied} FROM jobs, n WHERE id = ?", (World.waiting[-1],))
    store.execute(f"{numbers} INSERT INTO recipes SELECT i, text FROM recipes, n WHERE job_id = ?", (World.waiting[-1],))
    store.commit()
    store.close()
    d.start()
    until("it trains again", lambda: d.status(World.job)["state"] == "RUNNING")
    env = {**os.environ, "COLUMNS": "80", "LINES": "24", "LC_ALL": "C"}
    out = command(BIN / "titanctl", "-s", d.server, "top", env=env).out
    jobs = re.findall(r"^[> ] +(\d+) +(?:first|tiny)", out, re.M)
    assert jobs[:3] == [str(World.job), str(99 + MANY), str(98 + MANY)] and len(jobs) == 9 and len(out.splitlines()) <= 24, out
    assert f"page 1, {1 + WAITING + MANY - len(jobs)} more jobs  unix:" in out, out
    t = Terminal(24, 80)
    t.expect(rf"page 1, \d+ more jobs[\s\S]*> +{World.job} ")
    t.press(b"n")
    t.expect(rf"page 2, {1 + WAITING + MANY - 2 * len(jobs)} more jobs[\s\S]*> +{100 + MANY - len(jobs)} ")
    t.press(b"q")
    assert t.end() == 0


def main():
    with tempfile.TemporaryDirectory() as folder, Daemon(None, "--slots", 1, pace_ms=20) as d:
        World.daemon = d
        keys = {"training.dataset_path": headers_text(Path(folder) / "text"), "training.steps": 100000, "elastic.min_workers": 1,
                "elastic.max_workers": 1, "checkpoint.enable": "false", "device.threads": 1}
        World.job = d.submit("tiny", keys, "--name", "first")
        World.ended = d.submit("tiny", keys, "--name", "ended")
        World.waiting = [d.submit("tiny", keys) for _ in range(WAITING)]
        until("it trains", lambda: d.status(World.job)["step"] >= 2)
        tap(ended_jobs, one_frame, on_a_terminal, ten_thousand)


main()
