#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The head of the event log leaves the store: in titand's log and in audit.head_file. A log that was cut at its end, emptied or written anew is
found by them, and a file that cannot be written stops nothing."""
import contextlib
import json
import os
import re
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, CALM, Daemon, command, tap, until  # noqa: E402

LINE = re.compile(r"(\d+):([0-9a-f]{64}) \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


class Site:
    """A titand with a head file; its events are calls about tokens."""

    def __init__(self, head=None):
        self.home = Path(tempfile.mkdtemp(prefix="titan-head-"))
        self.file = Path(head) if head else self.home / "titan.head"
        config = self.home / "c.toml"
        config.write_text(f'{CALM}\n[audit]\nhead_file = "{self.file}"\n')
        self.daemon = Daemon(self.home / "state", "--slots", 1, "--config", config)
        self.db = self.daemon.state / "titan.db"
        self.log = self.daemon.state / "titand.log"

    def __enter__(self):
        self.daemon.start()
        return self

    def __exit__(self, *what):
        self.daemon.__exit__(*what)
        shutil.rmtree(self.home)

    def many(self):
        """More events than a head is written after."""
        token = re.match(r"titan_([0-9a-f]+)_", self.daemon.ok("token", "create", "ci"))[1]
        for _ in range(5):
            self.daemon.ok("token", "revoke", *[token] * 60)

    def heads(self):
        """[(event, hash)] of the file; each of its lines is whole."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [(int(m[1]), m[2]) for m in map(LINE.fullmatch, lines) if m or not lines]

    def said(self):
        """The same of the log."""
        return [(int(n), chain) for n, chain in re.findall(r" info audit head of the event log head=(\d+):([0-9a-f]{64})\n", self.log.read_text())]

    def verify(self, *args, what=None):
        return command(BIN / "titanctl", "-o", "json", "admin", "verify", *args, what or self.daemon.state)

    @contextlib.contextmanager
    def edited(self, *statements):
        """Its store, at rest and edited; put back afterwards."""
        kept = self.db.read_bytes()
        with contextlib.closing(sqlite3.connect(self.db)) as db:
            for sql in statements:
                db.execute(sql)
            db.commit()
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        yield
        for path in self.db.parent.glob("titan.db-*"):
            path.unlink()
        self.db.write_bytes(kept)


def stored(db, sql):
    with contextlib.closing(sqlite3.connect(f"file:{db}?immutable=1", uri=True)) as store:
        return store.execute(sql).fetchone()


def heads_are_written():
    """after 256 events, at the end and at the start: the same line in both places, and it is the store's"""
    with Site() as s:
        s.many()
        until("a head after 256 events", lambda: [n for n, _ in s.heads() if n >= 256])
        s.daemon.stop()
        last = s.heads()[-1]
        assert s.heads() == s.said() and len(s.heads()) < 12, (s.heads(), s.said())
        assert stored(s.db, "SELECT id, lower(hex(chain)) FROM events ORDER BY id DESC LIMIT 1") == last
        assert s.file.stat().st_mode & 0o777 == 0o600
        s.daemon.start()
        s.daemon.stop()
        assert last in s.heads()[s.heads().index(last) + 1:], "at the start, before there is another event"
        done = s.verify("--head", s.file)
        assert done.code == 0 and json.loads(done.out)["heads_found"] == len(s.heads()), done
        for given in (":".join(map(str, last)), s.log):
            assert s.verify("--head", given).code == 0, given


def cut_logs_are_found():
    """cut at its end, emptied, cut and gone on, another event in its place: one line with both numbers"""
    with Site() as s:
        s.daemon.ok("token", "create", "ci")
        s.daemon.ok("admin", "backup", s.home / "b.db")
        for _ in range(20):
            s.daemon.ok("token", "create", "ci")
        s.daemon.stop()
        end, chain = s.heads()[-1]

        def found(words, how=("--head", s.file)):
            done = s.verify(*how)
            assert done.code == 1 and words in done.err and done.err.count("\n") == 1, (words, done)
        cut = ("DELETE FROM events WHERE id > {0}", "UPDATE sqlite_sequence SET seq = {0} WHERE name = 'events'")
        with s.edited(*(sql.format(end - 5) for sql in cut)):
            assert s.verify().code == 0, "without a head it is not"
            found(f"it ends at event {end - 5}, and was at event {end} before")
            found(f"it ends at event {end - 5}, and was at event {end} before", ("--head", f"{end}:{chain}"))
            found(f"it ends at event {end - 5}, and was at event {end} before", ("--head", s.log))
        with s.edited(*(sql.format(0) for sql in cut)):
            assert s.verify().code == 0
            found("it ends at event 0, and was at event")
        # It goes on after the cut, and writes heads of what it has.
        with s.edited(*(sql.format(end - 5) for sql in cut)):
            s.daemon.start()
            for _ in range(8):
                s.daemon.ok("token", "create", "ci")
            s.daemon.stop()
            assert s.heads()[-1][0] > end
            found(f"event {end} is another than was written down before")
            assert s.verify("--head", ":".join(map(str, s.heads()[-1]))).code == 0
        flipped = ("0" if chain[0] != "0" else "1") + chain[1:]
        found(f"event {end} is another than was written down before", ("--head", f"{end}:{flipped}"))
        # A backup ends before; what it has is held to the heads of its time.
        backup = s.home / "b.db"
        report = json.loads(s.verify("--state-dir", s.daemon.state, what=backup).out)
        n, c = report["head"].split(":")
        assert stored(s.db, f"SELECT lower(hex(chain)) FROM events WHERE id = {n}")[0] == c
        done = s.verify("--state-dir", s.daemon.state, "--head", f"{end}:{chain}", what=backup)
        assert done.code == 0 and json.loads(done.out)["heads_found"] == 0, done
        done = s.verify("--state-dir", s.daemon.state, "--head", f"{n}:{c}", what=backup)
        assert done.code == 0 and json.loads(done.out)["heads_found"] == 1, done
        for given, code in (("12:34", 2), ("/nowhere/at/all", 2), (s.home / "c.toml", 2)):
            assert s.verify("--head", given).code == code, given


def restored_logs_are_named():
    """a backup that is put back has lost events, and heads of them are written down: no error, and a line"""
    with Site() as s:
        s.daemon.ok("token", "create", "ci")
        s.daemon.ok("admin", "backup", s.home / "b.db")
        s.daemon.ok("token", "create", "ci")
        s.daemon.stop()
        lost = s.heads()[-1][0]
        done = command(BIN / "titanctl", "admin", "restore", s.home / "b.db", "--state-dir", s.daemon.state)
        assert done.code == 0, done
        s.daemon.start()
        s.daemon.stop()
        done = s.verify("--head", s.file)
        assert done.code == 0 and f"events up to {lost} and more were lost when a backup was put back, event" in done.err, done


def files_that_cannot_be_written():
    """a folder that is not there, a link, a FIFO, a full disk: a warning, and all goes on"""
    with tempfile.TemporaryDirectory(prefix="titan-head-bad-") as where, contextlib.ExitStack() as ends:
        folder = Path(where)
        (folder / "victim").write_text("mine")
        (folder / "link").symlink_to(folder / "victim")
        os.mkfifo(folder / "fifo")
        bad = [folder / "absent/titan.head", folder / "link", folder / "fifo"]
        if os.geteuid() == 0:
            (folder / "small").mkdir()
            if not command("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder / "small").code:
                ends.callback(command, "umount", folder / "small")
                (folder / "small/titan.head").write_text("x" * 65536)
                bad.append(folder / "small/titan.head")
        for path in bad:
            with Site(path) as s:
                s.many()
                until("a head after 256 events", lambda: [n for n, _ in s.said() if n >= 256])
                s.daemon.ok("token", "create", "ci")
                s.daemon.stop()
                warnings = re.findall(r" warn audit the head of the event log cannot be written to its file path=\S+ reason=.*\n", s.log.read_text())
                assert 1 <= len(warnings) < len(s.said()), (path, warnings, s.said())
                assert s.daemon.process.returncode == 0, s.daemon.process.returncode
        assert (folder / "victim").read_text() == "mine"


tap(heads_are_written, cut_logs_are_found, restored_logs_are_named, files_that_cannot_be_written)
