#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/methods.md has the rows of base/optimizer_conflicts.c, what optimizers do not go together with, and a document without one is found."""
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import SOURCE, tap  # noqa: E402

TABLE, DOCUMENT = SOURCE / "base/optimizer_conflicts.c", SOURCE / "docs/methods.md"
HEAD = "| Optimizer | Not with | Why |\n|---|---|---|\n"


def rows():
    """[(optimizers, with, reason)] of the source."""
    body = re.search(r"optimizer_conflicts\[\] = \{(.*?)\n\};", TABLE.read_text(), re.S)[1]
    text = r'"((?:[^"\\]|\\.)*)"'
    found = [[re.findall(text, m[0]) for m in re.finditer(rf"{text}(?:\s*{text})*", row)] for row in re.findall(r"\{([^{}]*)\}", body)]
    return [tuple("".join(parts).replace('\\"', '"') for parts in row) for row in found]


def told(document):
    """[(optimizers, with, reason)] of the document, without its marks."""
    table = document.split(HEAD, 1)[1].split("\n\n", 1)[0]
    return [tuple(cell.strip().replace("`", "") for cell in line.strip("| ").split("|")) for line in table.splitlines()]


def document_has_the_rows():
    """the same rows in the same order"""
    assert len(rows()) >= 4 and all(len(r) == 3 for r in rows()), rows()
    assert told(DOCUMENT.read_text()) == rows(), (told(DOCUMENT.read_text()), rows())


def missing_row_is_found():
    """a document that lacks a row, or has another reason, is not the table"""
    text = DOCUMENT.read_text()
    first = text.split(HEAD, 1)[1].split("\n", 1)[0]
    assert told(text.replace(first + "\n", "")) != rows()
    assert told(text.replace(rows()[0][2], "so it is")) != rows()


tap(document_has_the_rows, missing_row_is_found)
