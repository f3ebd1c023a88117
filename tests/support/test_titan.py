#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end tests share (titan.py) does what it says."""
import os
import shutil
import tempfile
from pathlib import Path

import titan
from titan import Daemon, command, tap, under_permissions


def wait_state_shows_the_last_state():
    """a job that does not come to a state: the message has the state it is in at the end"""
    d = Daemon.__new__(Daemon)
    states = iter(["PENDING", "FORMING", *["RUNNING"] * 1000])
    d.status = lambda job: {"state": next(states)}
    floor, titan.FLOOR_S = titan.FLOOR_S, 0.2
    try:
        d.wait_state("1", "COMPLETED", seconds=0.2)
    except AssertionError as e:
        assert "it is RUNNING" in str(e), e
    else:
        raise AssertionError("no error")
    finally:
        titan.FLOOR_S = floor


def wait_state_returns_the_status():
    """a job that comes to a state: its status is what that was seen in"""
    d = Daemon.__new__(Daemon)
    states = iter([("PENDING", 0), ("RUNNING", 1), ("FAILED", 2)])
    d.status = lambda job: dict(zip(("state", "step"), next(states)))
    assert d.wait_state("1", "RUNNING", "COMPLETED", seconds=5) == {"state": "RUNNING", "step": 1}


def permissions_hold():
    """under_permissions: a file without rights cannot be read, by the test or by what it starts; a program in a folder of its owner's alone runs"""
    if os.getuid() != 0:
        return "needs root"
    with tempfile.TemporaryDirectory() as name:  # mode 0700, as /root is
        file, program = Path(name) / "file", Path(name) / "cat"
        file.write_text("read")
        file.chmod(0)
        shutil.copy(shutil.which("cat"), program)

        def both():
            """in the child"""
            try:
                file.read_text()
            except PermissionError:
                done = command(program, file)
                assert done.code == 1 and not done.out and str(file) in done.err, done  # in the locale's words
            else:
                raise AssertionError("it was read")
            assert command(program, "/dev/null").code == 0
        assert command(program, file).out == "read"
        under_permissions(both)()


tap(wait_state_shows_the_last_state, wait_state_returns_the_status, permissions_hold)
