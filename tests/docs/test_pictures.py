#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A recording of a terminal becomes a picture that shows what was there, and when."""
import json
import subprocess
import sys
import tempfile
import xml.dom.minidom
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import pictures  # noqa: E402
from titan import SOURCE, tap  # noqa: E402


def lines_at(text):
    rows = {}
    for _, changed in pictures.play([(0, text)]):
        rows.update(changed)
    return ["".join(c for c, _ in rows[r]) for r in sorted(rows)]


def terminal_is_understood():
    """carriage returns overwrite, the end of a line is cleared, colours are kept, long lines go on below"""
    assert lines_at("step 10\rstep 9\x1b[K\r\n\x1b[32mdone\x1b[0m\r\n") == ["step 9", "done", ""]
    assert lines_at("x" * (pictures.WIDTH + 3)) == ["x" * pictures.WIDTH, "xxx"]
    cells = pictures.play([(0, "\x1b[32mok\x1b[0m.")])[0][1][0]
    assert [c for _, c in cells] == [pictures.COLOURS["32"]] * 2 + [""]


def time_is_kept_around_the_kill():
    """seconds around the kill pass as they did, the others faster"""
    at, factor = pictures.shown_time(100, 600)
    before, after = pictures.REAL
    assert factor > 10 and abs(at(100 + after) - at(100 - before) - (before + after)) < 1e-6 and abs(at(600) - pictures.SECONDS) < 1e-6


def recording_becomes_a_picture():
    """record and terminal: a command's output is in the picture, which is whole XML"""
    with tempfile.TemporaryDirectory() as home:
        cast, svg = Path(home) / "a.cast", Path(home) / "a.svg"
        subprocess.run([sys.executable, SOURCE / "tests/docs/pictures.py", "record", cast, "--", "sh", "-c", "echo one; sleep 0.3; echo '<two>'"],
                       check=True, stdout=subprocess.DEVNULL)
        assert json.loads(cast.read_text().splitlines()[0])["version"] == 2
        pictures.terminal(cast, svg)
        assert "<two>" in "".join(n.data for t in xml.dom.minidom.parse(str(svg)).getElementsByTagName("text") for n in t.childNodes if n.nodeType == n.TEXT_NODE)


def the_readme_s_pictures_are_whole():
    """docs/demo.svg shows the kill and the way back; the loss is drawn"""
    for name in ("demo.svg", "loss.svg"):
        xml.dom.minidom.parse(str(SOURCE / "docs" / name))
    text = (SOURCE / "docs/demo.svg").read_text()
    assert "SIGKILL, at step" in text and "back after" in text and str(SOURCE) not in text
    assert "SIGKILL" in (SOURCE / "docs/loss.svg").read_text()


tap(terminal_is_understood, time_is_kept_around_the_kill, recording_becomes_a_picture, the_readme_s_pictures_are_whole)
