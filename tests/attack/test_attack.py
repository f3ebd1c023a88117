#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A slice of `make attack` (tests/attack/run_attack.py): some thousand mutated messages."""
import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from titan import tap  # noqa: E402
import protocol  # noqa: E402
from mutate import Mutator  # noqa: E402

if protocol.absent:
    print(f"1..1\nok 1 - attacks # SKIP {protocol.absent}")
    sys.exit(0)

from arena import Arena  # noqa: E402
from run_attack import ENOUGH, never_tried, storm  # noqa: E402

Arena.pace = 50
WAYS = ["client", "nobody", "agent", "worker", "peer", "held"]
SEED = int(os.environ.get("TITAN_TEST_SEED") or random.SystemRandom().randrange(1 << 32))


def every_field():
    """a field that no message changed is named, of a way that sent enough; what a message of the protocol can have is all there"""
    few = {"done": ENOUGH * 3 - 1, "fields": 3, "untried": ["a.b"]}
    assert never_tried({"agent": few}) == {} and never_tried({"peer": {**few, "done": ENOUGH * 3, "untried": []}}) == {}
    assert never_tried({"agent": {**few, "done": ENOUGH * 3}, "peer": few}) == {"agent": ["a.b"]}
    mutator = Mutator(random.Random(SEED), lambda *_: None)
    kinds = [f.name for f in protocol.agent.AgentMessage.DESCRIPTOR.oneofs_by_name["kind"].fields]
    fields = mutator.fields(protocol.agent.AgentMessage.DESCRIPTOR)
    for n in range(ENOUGH * len(fields)):
        message, name = protocol.agent.AgentMessage(), kinds[n % len(kinds)]
        getattr(message, name).SetInParent() if message.DESCRIPTOR.fields_by_name[name].message_type else setattr(message, name, True)
        mutator.bytes_of(message)
        if not fields - mutator.tried.keys():
            break
    assert not fields - mutator.tried.keys(), fields - mutator.tried.keys()


def at_random():
    """mutated messages of clients, agents, workers and datagrams: no daemon ends, the run beside them has every loss it would have had"""
    print(f"# TITAN_TEST_SEED={SEED}")
    print("# " + storm(SEED, int(os.environ.get("ROUNDS") or 2000), WAYS, 8))


tap(every_field, at_random)
