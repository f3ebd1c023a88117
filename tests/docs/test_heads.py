#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dividers.py and spdx.py mend what is wrong, and nothing twice; in the tree nothing is."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import dividers  # noqa: E402
import spdx  # noqa: E402
from titan import tap  # noqa: E402

WHOLE = dividers.line("a part")


def dividers_are_mended():
    """a divider that was broken, is short, or has a text behind it becomes one line; others stay"""
    for broken in (f"{WHOLE[:-2].rstrip()}\n */", "/* --- a part\n * ------------- */", "/* --- a part --- */", WHOLE):
        assert dividers.mend(f"int a;\n\n{broken}\n\nint b;\n") == f"int a;\n\n{WHOLE}\n\nint b;\n", broken
    headed = "/* --- a part -------\n * Text of it,\n * and more. */\nint a;\n"
    assert dividers.mend(headed) == f"{WHOLE}\n\n/* Text of it,\n * and more. */\nint a;\n"
    assert dividers.mend(dividers.mend(headed)) == dividers.mend(headed)
    for other in ("/* a comment\n * --- */\n", "int a; /* --- given */\n", "    /* --- given */\n"):
        assert dividers.mend(other) == other


def licence_lines_are_written():
    """the licence's line comes first, or behind #!, and once"""
    assert spdx.with_line("int a;\n", "/* %s */") == f"/* {spdx.LINE} */\nint a;\n"
    script = spdx.with_line("#!/bin/sh\nexit 0\n", "# %s")
    assert script == f"#!/bin/sh\n# {spdx.LINE}\nexit 0\n"
    assert spdx.with_line(script, "# %s") == script
    assert spdx.style("docs/api.md") is None and spdx.style("recipes/tiny.toml") is None


def tree_is_whole():
    """every divider of the tree is one line, every source has the licence's line"""
    if dividers.sources() is None:
        return "no git here"
    found = dividers.check() + spdx.check()
    assert not found, "\n" + "\n".join(found)


tap(dividers_are_mended, licence_lines_are_written, tree_is_whole)
