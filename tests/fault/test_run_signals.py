#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`titan-worker run` under a batch system: SIGTERM and SIGINT write a checkpoint and end it, SIGUSR1 writes one, whether its parent alone gets
the signal or all of its processes do. It goes on where it was."""
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from hand import Run, run  # noqa: E402
from titan import children_of, tap, until  # noqa: E402


def to_parent(r, number):
    os.kill(r.process.pid, number)


def to_all(r, number):
    """As a terminal, scancel and systemd do it."""
    os.killpg(r.process.pid, number)


def ends_saved():
    """its state is there, it goes on behind it, and the exit status names the signal"""
    for world, number, send in ((1, signal.SIGTERM, to_parent), (2, signal.SIGTERM, to_parent), (2, signal.SIGINT, to_all), (1, signal.SIGINT, to_all)):
        with run(world) as r:
            r.trains(3)
            send(r, number)
            assert r.ended() == 128 + number, (world, number, r.process.returncode)
            [step] = r.saved()
            assert step >= r.steps() >= 4, (step, r.steps())
            said = (r.folder / "log").read_text()
            assert f"stopped by a signal rank=0 signal={number.name} step={step}" in said, said
            more = Run(r.folder, world, **{"training.steps": step + 2})
            assert more.ended() == 0 and max(more.saved()) == step + 2, (r.folder / "log").read_text()


def saved_and_goes_on():
    """SIGUSR1 writes one checkpoint, also where every process gets it"""
    for world, send in ((2, to_all), (2, to_parent), (1, to_parent)):
        with run(world) as r:
            r.trains(3)
            send(r, signal.SIGUSR1)
            until("it is written", r.saved)
            r.trains(r.steps() + 5)
            assert len(r.saved()) == 1 and r.process.poll() is None, r.saved()
            to_parent(r, signal.SIGTERM)
            assert r.ended() == 128 + signal.SIGTERM


def without_checkpoints():
    """a run that writes none ends at its step's end"""
    with run(2, **{"checkpoint.enable": "false"}) as r:
        r.trains(3)
        to_all(r, signal.SIGUSR1)
        r.trains(r.steps() + 2)
        to_all(r, signal.SIGTERM)
        assert r.ended() == 128 + signal.SIGTERM and not (r.folder / "checkpoint").exists()


def second_ends_at_once():
    """a second command to end does not wait for a rank that stands still"""
    with run(2) as r:
        r.trains(3)
        for pid in children_of(r.process.pid):
            os.kill(pid, signal.SIGSTOP)
        to_parent(r, signal.SIGTERM)
        until("the parent has seen it", lambda: not pending(r.process.pid))
        assert r.process.poll() is None
        to_parent(r, signal.SIGTERM)
        assert r.ended() == 128 + signal.SIGTERM and not r.saved()


def pending(pid):
    """Signals that a process has yet to see."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return any(int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd", "ShdPnd")))


if __name__ == "__main__":
    tap(ends_saved, saved_and_goes_on, without_checkpoints, second_ends_at_once)
