#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The commands of README.md and docs/start.md run as they stand, section by section, each in one shell over a home of its own.

What differs from what a reader types:
  - `make` lines are not run, only their targets looked for: they are this test, or take minutes (`make demo`);
  - a run of recipes/demo.toml in the foreground makes 20 steps instead of 700, and evaluates once, one sample a worker;
  - 10.0.0.1 and 10.0.0.2 are 127.0.0.1 and 127.0.0.2, port 7070 a free one, /shared a folder of the test;
  - a node is ready before the next line is typed;
  - root may run jobs (TITAN_ALLOW_ROOT), where a reader says --allow-root.
"""
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import names  # noqa: E402
from titan import BUILD, SOURCE, deadline, descendants, tap, until  # noqa: E402

PAGES = [SOURCE / "README.md", SOURCE / "docs/start.md"]
LINES_MAX = 100  # of the README: read in a minute


def sections():
    """{heading: commands of its blocks}"""
    out = {}
    for page in PAGES:
        for part in re.split(r"^## ", page.read_text(), flags=re.M)[1:]:
            blocks = re.findall(r"^```sh\n(.*?)^```", part, re.S | re.M)
            heading = part.splitlines()[0]
            assert heading not in out, f"{heading}: in two pages"
            if blocks:
                out[heading] = "".join(blocks)
    return out


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def shortened(commands, home):
    commands = re.sub(r"^(titanctl run recipes/demo.toml .*)$", r"\1 --set training.steps=20 --set validation.steps=1 --set validation.local_batch_size=1 --set validation.freq=20", commands, flags=re.M)
    commands = re.sub(r"^(titanctl eval .*)$", r"\1 --steps 1", commands, flags=re.M)
    commands = re.sub(r"^(titand agent .*--join (\w+)\.join.*)$", r"\1\nuntil titanctl nodes | grep -q '^\2 *ready'; do sleep 0.1; done", commands, flags=re.M)
    for old, new in (("10.0.0.1", "127.0.0.1"), ("10.0.0.2", "127.0.0.2"), (":7070", f":{free_port()}"), ("/shared", f"{home}/shared")):
        commands = commands.replace(old, new)
    return commands


def end(group):
    """The daemons that a section has left in the background, and their workers: all that comes of this process."""
    for pid in descendants(""):
        if os.getpgid(pid) == group:
            os.kill(pid, signal.SIGTERM)
    until("what the section has started has ended", lambda: not descendants(""))


def run(heading):
    home = Path(tempfile.mkdtemp(prefix="titan-readme-"))
    for name, target in (("recipes", SOURCE / "recipes"), ("build", BUILD)):
        (home / name).symlink_to(target)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("TITAN_", "XDG_"))}
    env.update(HOME=str(home), TITAN_ALLOW_ROOT="1", PATH=f"{BUILD}/bin:{env['PATH']}")
    log = home / "log"
    with open(log, "w") as out:
        shell = subprocess.Popen(["bash", "-e", "-o", "pipefail", "-x", "-c", shortened(sections()[heading], home)], cwd=home, env=env,
                                 stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            code = shell.wait(deadline())
        except subprocess.TimeoutExpired:
            code = "none"
        end(shell.pid)
    text = log.read_text(errors="replace")
    daemons = "".join(f"\n{p.name}:\n" + p.read_text(errors="replace")[-1500:] for p in home.glob("*.log"))
    shutil.rmtree(home, ignore_errors=True)
    assert code == 0, f"exit {code}:\n{text[-4000:]}{daemons}"


def of(heading):
    def test():
        run(heading)
    test.__doc__ = f"commands of {heading}"
    return test


def make_lines():
    """README's make targets exist"""
    lines = [line.split("#")[0].strip() for line in sections()["Two commands"].splitlines()]
    assert lines == ["make demo", "make test"], lines
    assert not [bad for bad in map(names.bad, lines) if bad]


def pictures():
    """the pictures are there"""
    for page in PAGES:
        for picture in re.findall(r"!\[.*?\]\((.*?)\)", page.read_text()):
            starts = b"\x89PNG" if picture.endswith(".png") else b"<svg "
            assert (page.parent / picture).read_bytes().startswith(starts), picture


def short():
    """the README can be read in a minute"""
    lines = len(PAGES[0].read_text().splitlines())
    assert lines <= LINES_MAX, f"{lines} lines, more than {LINES_MAX}"


def indexed():
    """docs/README.md names every document"""
    index = (SOURCE / "docs/README.md").read_text()
    documents = [str(f.relative_to(SOURCE / "docs")) for f in sorted((SOURCE / "docs").rglob("*.md"))]
    missing = [name for name in documents if name != "README.md" and f"({name})" not in index]
    assert not missing, missing


if __name__ == "__main__":
    wanted = sys.argv[1:] or [h for h in sections() if h != "Two commands"]
    tap(make_lines, pictures, short, indexed, *map(of, wanted))
