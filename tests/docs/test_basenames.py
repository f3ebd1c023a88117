#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Files of base/, proto/, state/ and daemon/ have names of their own: a name in a log, a backtrace or a search is one file.

A file of ctl/ is named by its command, one of daemon/api/ by the methods in it: those may be the noun's, whose file is elsewhere.
worker/ is not held to it yet."""
import collections
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("base", "proto", "state", "daemon")
NAMED_BY_METHODS = "daemon/api/"


def twice(paths):
    """Paths of one name, a line for each name."""
    by_name = collections.defaultdict(set)
    for path in paths:
        if not path.startswith(NAMED_BY_METHODS):
            by_name[Path(path).name].add(path)
    return [" and ".join(sorted(found)) for _, found in sorted(by_name.items()) if len(found) > 1]


def sources():
    return [str(f.relative_to(ROOT)) for folder in FOLDERS for f in (ROOT / folder).rglob("*.[ch]")]


def main():
    print("1..2")
    found = twice(["base/a.c", "state/a.c", "state/a.h", "daemon/api/a.c", "daemon/b.c"]) == ["base/a.c and state/a.c"]
    print(f"{'ok' if found else 'not ok'} 1 - a name of two files is found, but for methods'")
    wrong = twice(sources())
    print(f"{'not ok' if wrong else 'ok'} 2 - every file has a name of its own")
    for line in wrong:
        print(f"# {line}")
    return bool(wrong) or not found


if __name__ == "__main__":
    sys.exit(main())
