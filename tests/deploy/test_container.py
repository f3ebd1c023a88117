#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What deploy/Containerfile shows works, and is TLS. The programs are run as it says, without an engine for containers."""
import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, SOURCE, command, deadline, tap, until  # noqa: E402

FILE = (SOURCE / "deploy/Containerfile").read_text()
STATE = "/var/lib/titan"


def shown():
    """[program, argument...] of each example, as the container would run it."""
    entry, default = (json.loads(re.search(rf"^{word} (.*)$", FILE, re.M)[1]) for word in ("ENTRYPOINT", "CMD"))
    for verb, line in re.findall(r"^# +podman (run|exec) (.*)$", FILE, re.M):
        words = shlex.split(re.split(r" >| &&", line)[0])
        if verb == "exec":
            yield words[1:]
        else:
            image = len(words) - 1 - words[::-1].index("titan")
            program = words[words.index("--entrypoint") + 1:][:1] if "--entrypoint" in words else entry
            yield program + (words[image + 1:] or default)


def here(words, state):
    return [BIN / words[0], *[w.replace(STATE, str(state)).replace("0.0.0.0:7070", "127.0.0.1:0") for w in words[1:]]]


def examples():
    """a machine of its own; the CA, a coordinator with TLS and a node's join file; none lets in all that reach it"""
    alone, init, coordinator, join = shown()
    assert alone == ["titand", "dev", "--state-dir", STATE] and coordinator[:2] == ["titand", "coordinator"], (alone, coordinator)
    assert "insecure" not in FILE
    with tempfile.TemporaryDirectory(prefix="titan-container-") as state:
        assert command(*here(init, state)).code == 0
        with open(Path(state) / "log", "w") as log, subprocess.Popen(here(coordinator, state), stdout=log, stderr=log) as process:
            try:
                done = until("the coordinator answers", lambda: (lambda r: r if r.code == 0 else None)(command(*here(join, state))))
                assert re.search(r'coordinator = "head\.example:\d+"', done.out), done
                listen = (Path(state) / "run/listen").read_text().split()
                tcp = next(address for address in listen if address.startswith("127.0.0.1:"))
                refused = command(BIN / "titanctl", "--server", tcp, "--insecure", "list")
                assert refused.code == 4 and "TLS" in refused.err, refused
            finally:
                process.terminate()
                process.wait(deadline())


def what_is_sent():
    """neither the history nor what was built is sent to the engine; the base and the number of the user titan can be chosen"""
    ignored = (SOURCE / ".dockerignore").read_text().split()
    assert {".git", "build"} <= set(ignored), ignored
    assert re.findall(r"^FROM (\S+)", FILE, re.M) == ["${BASE}", "${BASE}"] and re.search(r"^ARG BASE=\S+\n(.*\n)*?FROM", FILE, re.M)
    assert re.search(r"^ARG UID=\d+\nRUN .*useradd --uid \"\$UID\"", FILE, re.M)


tap(examples, what_is_sent)
