#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A function's story stays on one page: no more one-use helpers of a few lines than there are (one_use.py)."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import one_use  # noqa: E402
from titan import tap  # noqa: E402

MOST = 13.5  # percent of all static functions; 13.0 when it was set, and 15.3 before a hundred were put into their callers
SAMPLE = """/* short(1) */
static int twice(int x);
static int shared(int x)
{
    return x;
}

static int short_one(int x)
{
    return shared(x);
}

static int long_one(int x)
{
    x++;
    x++;
    x++;
    x++;
    x++;
    return x;
}

static int passed(int x)
{
    return x;
}

int main(void)
{
    each(passed);
    return short_one(shared(1)) + long_one(2) + twice(3) + twice(4);
}

static int twice(int x)
{
    return say("short_one(x)", 2 * x);
}
"""


def they_are_counted():
    """a use is a name in code beside definition and declaration; what is passed on is told from what is called"""
    found = {name: (lines, uses, called) for name, _, lines, uses, called in one_use.functions(SAMPLE)}
    assert found == {"shared": (1, 2, True), "short_one": (1, 1, True), "long_one": (6, 1, True), "passed": (1, 1, False),
                     "twice": (1, 2, True)}, found
    assert one_use.count({"a/b/c/x.c": SAMPLE}) == {"a/b": [5, 3, 2]}


def there_are_few():
    """of all static functions at most so many are named once and have at most five lines"""
    table = one_use.count(one_use.sources())
    n, _, short = (sum(c) for c in zip(*table.values()))
    assert n > 3000, n
    assert 100 * short / n <= MOST, f"{short} of {n} are {100 * short / n:.1f} %, at most {MOST}: put some into their callers (tests/docs/one_use.py PATH)"


tap(they_are_counted, there_are_few)
