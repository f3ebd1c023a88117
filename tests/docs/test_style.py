#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The report on style counts right (style.py), and reads the whole tree."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import style  # noqa: E402
from titan import tap  # noqa: E402

SAMPLE = """/* short_one(1) */
static int twice(int x);
static int shared(int x)
{
    titan_assert(x);
    return x; /* titan_assert(x) */
}

static int short_one(int x)
{
    return shared(x);
}

int main(void)
{
    each(twice);
    return short_one(shared(1)) + twice(4);
}

static int twice(int x)
{
    return say("short_one(x)", 2 * x);
}
"""


def sample():
    """a use is a name in code beside definition and declaration; comments and strings do not count"""
    found = {f.name: (f.lines, f.static, f.uses) for f in style.functions(SAMPLE)}
    assert found == {"shared": (2, True, 2), "short_one": (1, True, 1), "main": (2, False, 0), "twice": (1, True, 2)}, found
    lines, n, _, most, static, once, per = style.row({"a/x.c": SAMPLE})
    assert (lines, n, most, static, once) == (19, 4, 2, 3, 33) and 50 < per < 55, style.row({"a/x.c": SAMPLE})


def tree():
    """every folder of the programs is read"""
    files = style.sources()
    assert len(files) > 700 and {style.folder_of(f).split("/")[0] for f in files} == set(style.FOLDERS), len(files)
    assert style.row(files)[1] > 5000


tap(sample, tree)
