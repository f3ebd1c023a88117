#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The fault scenarios that are quick, twice each; `make fault` does all of them often enough to measure."""
import os
import random
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import cluster  # noqa: E402
from kit import figures, missed  # noqa: E402
from scenarios import HOME, SCENARIOS, Record  # noqa: E402
from titan import SOURCE, slow, tap  # noqa: E402

ROUNDS = 2
AT_ONCE = (1, 3, 7)  # the others are `make test-slow`'s
SEED = os.environ.get("TITAN_TEST_SEED") or str(random.SystemRandom().randrange(1 << 32))
cluster.Cluster.judged = False


def slice_of(s):
    def test():
        why = cluster.missing()
        if why:
            return why
        HOME.mkdir(parents=True, exist_ok=True)
        print(f"# TITAN_TEST_SEED={SEED}")
        record = Record(SEED)
        s.work(ROUNDS, random.Random(f"{SEED}/{s.number}"), record)
        # Times are `make fault`'s to judge; counts hold on a busy machine too.
        for name, limit in s.targets.items():
            if not name.endswith("_ms"):
                assert max(record.values[name]) <= limit, f"{name}: {record.values[name]}, not {limit} at most"
        return None
    test.__doc__ = f"scenario {s.number}: {s.title}"
    return test if s.number in AT_ONCE else slow(test)


def all_are_in_the_documents():
    """every scenario has its paragraph in docs/operations.md"""
    written = {int(n) for n in re.findall(r"^\*\*(\d+)\. ", (SOURCE / "docs/operations.md").read_text(), re.M)}
    assert set(SCENARIOS) <= written, f"without one: {sorted(set(SCENARIOS) - written)}"


def losses_have_targets():
    """steps lost are held to a target"""
    lost = {"steps_lost": figures([0, 25])}
    assert missed({"steps_lost": 25}, lost) == [] and missed({"steps_lost": 0}, lost) and missed({}, lost)


tap(all_are_in_the_documents, losses_have_targets, *(slice_of(s) for _, s in sorted(SCENARIOS.items()) if s.fast))
