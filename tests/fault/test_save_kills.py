#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Five of the kills of `make kills` (tests/fault/save_kills.py)."""
import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from save_kills import kills  # noqa: E402
from titan import tap  # noqa: E402


def killed_while_saving():
    """SIGKILL of every process at five random moments of saving: the newest checkpoint is there, sound, and gone on from"""
    seed = os.environ.get("TITAN_TEST_SEED") or str(random.SystemRandom().randrange(1 << 32))
    print(f"# TITAN_TEST_SEED={seed}", flush=True)
    print(f"# {dict(kills(5, random.Random(seed)))}", flush=True)


tap(killed_while_saving)
