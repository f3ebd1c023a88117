#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/methods.md has the program's table of settings that do not go together, and a document without a row is found."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from conflicts import PAGE, page_with, rows, table  # noqa: E402
from titan import BIN, tap  # noqa: E402

TITANCTL = BIN / "titanctl"


def document_has_the_rows():
    """the same rows in the same order: make docs"""
    page = PAGE.read_text()
    assert len(rows(TITANCTL)) >= 30
    assert page_with(page, TITANCTL) == page, "docs/methods.md: the table of conflicts is out of date; make docs"


def missing_row_is_found():
    """a document that lacks a row, or has another reason, is not the table"""
    page, row = PAGE.read_text(), table(TITANCTL).splitlines()[2]
    assert row in page
    for other in (page.replace(row + "\n", ""), page.replace(row, row.replace("linear layer", "layer"))):
        assert other != page and page_with(other, TITANCTL) == page


tap(document_has_the_rows, missing_row_is_found)
