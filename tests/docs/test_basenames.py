#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Files of base/, proto/, state/ and daemon/ have names of their own, and those of base/, proto/ and worker/: a name in
a log, a backtrace or a search is one file of a program.

A file of ctl/ is named by its command, one of daemon/api/ by the methods in it: those may be the noun's, whose file is elsewhere.
A device has a file for each kind of operation, as the model and the other device have."""
import collections
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = (("base", "proto", "state", "daemon"), ("base", "proto", "worker"))
NAMED_BY_OTHERS = ("daemon/api/", "worker/device/")


def twice(paths):
    """Paths of one name, a line for each name."""
    by_name = collections.defaultdict(set)
    for path in paths:
        if not path.startswith(NAMED_BY_OTHERS):
            by_name[Path(path).name].add(path)
    return [" and ".join(sorted(found)) for _, found in sorted(by_name.items()) if len(found) > 1]


def sources(folders):
    return [str(f.relative_to(ROOT)) for folder in folders for f in (ROOT / folder).rglob("*.[ch]")]


def main():
    print("1..2")
    found = twice(["base/a.c", "state/a.c", "state/a.h", "daemon/api/a.c", "daemon/b.c"]) == ["base/a.c and state/a.c"]
    print(f"{'ok' if found else 'not ok'} 1 - a name of two files is found, but for methods'")
    wrong = [line for folders in PROGRAMS for line in twice(sources(folders))]
    print(f"{'not ok' if wrong else 'ok'} 2 - every file has a name of its own")
    for line in wrong:
        print(f"# {line}")
    return bool(wrong) or not found


if __name__ == "__main__":
    sys.exit(main())
