#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The scenes of `make attack` (tests/attack/scenes.py): nothing comes of what each must not do."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from titan import slow, tap  # noqa: E402
import protocol  # noqa: E402

if protocol.absent:
    print(f"1..1\nok 1 - scenes # SKIP {protocol.absent}")
    sys.exit(0)

from arena import Arena  # noqa: E402
from run_attack import run_scenes  # noqa: E402
from scenes import SCENES  # noqa: E402

Arena.pace = 50


def run(quick):
    passed, failed = run_scenes([name for name, scene in SCENES if scene.quick == quick])
    assert passed and not failed, f"{failed} scenes failed"


def quick_ones():
    """attacks by name, the quick ones: nothing of what each must not do"""
    run(True)


@slow
def others():
    """attacks by name, the others: nothing of what each must not do"""
    run(False)


tap(quick_ones, others)
