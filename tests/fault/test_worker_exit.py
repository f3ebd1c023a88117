#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What titan-worker ends with: an agent takes one code for a lack of its node's, which no job pays for."""
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, SOURCE, command, tap  # noqa: E402

WORKER, TINY = BIN / "titan-worker", SOURCE / "recipes/tiny.toml"
NODE_IS_SHORT = 71  # TITAN_EXIT_SHORT


def ended(code, words, done):
    assert done.code == code and words in done.err, done
    assert done.err.count("\n") == (1 if words else 0) and done.err.startswith("titan-worker: " if words else ""), done.err


def serve(folder, *shell):
    return command(*shell, WORKER, "serve", "--socket", folder / "none", "--page", folder / "page", "--job", 1, "--worker", 1,
                   "--host", "n1", "--dir", folder)


def for_an_agent():
    """serve: 71 where the node lacks something, 2 where what it was given is not there"""
    with tempfile.TemporaryDirectory(prefix="titan-exit-") as name:
        folder = Path(name)
        ended(2, "No such file or directory", serve(folder))
        ended(NODE_IS_SHORT, "Too many open files", serve(folder, "sh", "-c", 'ulimit -n 4; exec "$@"', "sh"))
        ended(2, "serve needs --socket", command(WORKER, "serve", "--job", 1))


def by_hand():
    """check, run and measure: 0, or 2 for a run file that is not there or is wrong"""
    ended(0, "", command(WORKER, "check", TINY))
    for name in ("check", "run", "measure"):
        ended(2, "No such file or directory", command(WORKER, name, "/nonexistent.toml"))
        ended(2, "model.dim", command(WORKER, name, TINY, "--set", "model.dim=-1"))
    assert command(WORKER, "--help").code == 0 and command(WORKER).code == 2


tap(for_an_agent, by_hand)
