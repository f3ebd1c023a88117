#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end tests share (titan.py) does what it says."""
from titan import Daemon, tap


def wait_state_shows_the_last_state():
    """a job that does not come to a state: the message has the state it is in at the end"""
    d = Daemon.__new__(Daemon)
    states = iter(["PENDING", "FORMING", *["RUNNING"] * 1000])
    d.status = lambda job: {"state": next(states)}
    try:
        d.wait_state("1", "COMPLETED", seconds=0.2)
    except AssertionError as e:
        assert "it is RUNNING" in str(e), e
    else:
        raise AssertionError("no error")


def wait_state_returns_the_status():
    """a job that comes to a state: its status is what that was seen in"""
    d = Daemon.__new__(Daemon)
    states = iter([("PENDING", 0), ("RUNNING", 1), ("FAILED", 2)])
    d.status = lambda job: dict(zip(("state", "step"), next(states)))
    assert d.wait_state("1", "RUNNING", "COMPLETED", seconds=5) == {"state": "RUNNING", "step": 1}


tap(wait_state_shows_the_last_state, wait_state_returns_the_status)
