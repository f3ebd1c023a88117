#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of docs/methods.md with the settings that do not go together: `titanctl help --conflicts` as Markdown. The first argument is titanctl."""
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs/methods.md"
BEGIN, END = "<!-- conflicts: begin -->\n", "<!-- conflicts: end -->"
# A key, with its value: a text, a list of texts, a number or a word.
KEY = re.compile(r'(\b[a-z0-9_]+(?:\.[a-z0-9_]+)+(?: (?:=|>) (?:"\w+"|[\w.]+))?)')


def rows(titanctl):
    """[(setting, with, reason)] of the program."""
    lines = subprocess.run([titanctl, "help", "--conflicts"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [re.fullmatch(r"(.+?), not with (.+?): (.+)", line).groups() for line in lines]


def table(titanctl):
    lines = ["| Setting | Not with | Why |", "|---|---|---|"]
    lines += ["| " + " | ".join(KEY.sub(r"`\1`", cell) for cell in row) + " |" for row in rows(titanctl)]
    return "\n".join(lines) + "\n"


def page_with(page, titanctl):
    """The page with the program's table in place of its own."""
    head, rest = page.split(BEGIN)
    return head + BEGIN + table(titanctl) + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page_with(PAGE.read_text(), sys.argv[1]))
