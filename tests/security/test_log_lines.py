#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What users and peers put into paths, names and reasons is a value in titand's log, never a pair or a line of its own."""
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import Daemon, tap, until  # noqa: E402

HOSTILE = 'x" job=7 level=error forged="CreateToken by root\\'
LINE = re.compile(r"\S+Z (?:error|warn|info|debug) \w+ .*?(?P<pairs>(?: [\w-]+=(?:\"(?:[^\"\\]|\\.)*\"|[^\s\"=\\]+))*)$")


def pairs(line):
    """{key: value} of a line of logfmt."""
    found = re.findall(r" ([\w-]+)=(?:\"((?:[^\"\\]|\\.)*)\"|([^\s\"=\\]+))", LINE.fullmatch(line)["pairs"])
    return {key: re.sub(r"\\(.)", r"\1", quoted) + bare for key, quoted, bare in found}


def hostile_values():
    """a path of a recipe, names, a reason and the state directory with quotes, pairs and backslashes are one value each"""
    with tempfile.TemporaryDirectory(prefix="titan-log-") as where, Daemon(Path(where) / HOSTILE, "--slots", 1, "--node", "here") as d:
        tries = [("submit", "recipes/tiny.toml", "--set", f"training.dataset_path='/{HOSTILE}'"), ("submit", "recipes/tiny.toml", "--name", HOSTILE),
                 ("cancel", HOSTILE), ("drain", HOSTILE), ("drain", "here", "--reason", HOSTILE), ("token", "create", HOSTILE), ("node", "join", HOSTILE),
                 ("node", "revoke", HOSTILE)]
        for words in tries:
            d.ctl(*words)
        log = d.state / "titand.log"
        until("what came last is in the log", lambda: "RevokeCertificate failed" in log.read_text())
        lines = log.read_text().splitlines()
        hostile = [line for line in lines if "forged" in line]
        assert len(hostile) >= 5, hostile
        for line in lines:
            found = LINE.fullmatch(line)
            assert found, line
        for line in hostile:
            assert any(HOSTILE in value for value in pairs(line).values()), line
            assert not {"forged", "level"} & pairs(line).keys(), line


tap(hostile_values)
