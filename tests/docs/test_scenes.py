#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The scenes of `make system` that follow a page of docs/operations.md have its commands as they stand there."""
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import SOURCE, tap  # noqa: E402

SCENES = (SOURCE / "tests/system/scenes.sh").read_text()
PAGE = (SOURCE / "docs/operations.md").read_text()


def section(title):
    return re.split(r"\n#", PAGE.split(f" {title}\n")[1])[0]


def function(name):
    return re.search(rf"^{name}\(\) \{{.*?^\}}", SCENES, re.M | re.S)[0]


def missing(commands, *functions):
    text = "\n".join(map(function, functions))
    return [c for c in commands if c not in text]


def coordinator_is_gone():
    """the archive, and at most six commands on the other machine"""
    kept, taken = re.findall(r"```\n(.*?)```", section("The same with units"), re.S)
    commands = [row.split("# ", 1)[1].strip() for row in (kept + taken).splitlines()]
    assert len(taken.splitlines()) <= 6 and "--address 10.0.0.4" in taken, taken
    commands = [c.replace("--address 10.0.0.4", "--address n1 --address 10.9.0.1") for c in commands]
    assert not missing(commands, "lose_coordinator", "after_loss"), missing(commands, "lose_coordinator", "after_loss")


def workers_as_users():
    """every command of the page, and its two keys"""
    rows = [row[4:] for row in section("Workers as their users").splitlines() if row.startswith("    ")]
    commands = [row.split("  #")[0].strip() for row in rows if not row.startswith("#")]
    keys = re.findall(r'\w+ = "([^"]+)"', "\n".join(rows))
    assert len(commands) == 3 and len(keys) == 2, (commands, keys)
    commands.append("systemctl restart titan-coordinator")
    assert not missing(commands + keys, "with_users"), missing(commands + keys, "with_users")


if __name__ == "__main__":
    tap(coordinator_is_gone, workers_as_users)
