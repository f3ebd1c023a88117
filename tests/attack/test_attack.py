#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A slice of `make attack` (tests/attack/run_attack.py): the scenes, and some thousand mutated messages."""
import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from titan import tap  # noqa: E402
import protocol  # noqa: E402

if protocol.absent:
    print(f"1..1\nok 1 - attacks # SKIP {protocol.absent}")
    sys.exit(0)

from run_attack import scenes, storm  # noqa: E402

WAYS = ["client", "nobody", "agent", "worker", "peer"]
SEED = int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 32))


def by_name():
    """attacks by name: nothing of what each must not do"""
    passed, failed = scenes([])
    assert passed and not failed, f"{failed} scenes failed"


def at_random():
    """mutated messages of clients, agents, workers and datagrams: no daemon ends, the run beside them has every loss it would have had"""
    print(f"# SEED={SEED}")
    print("# " + storm(SEED, int(os.environ.get("ROUNDS") or 4000), WAYS, 15))


tap(by_name, at_random)
