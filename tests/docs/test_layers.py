#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The sources keep to the layers of tests/docs/layers.py, and what does not is found."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import layers

SMALL = """
base
low
high      low
high/sub  low high
circle    low high
"""
CASES = [  # name, files, words of what is wrong; None: nothing
    ("nothing is wrong", {"low/a.c": "", "low/b.h": '#include "high/x.h"', "high/x.c": '#include "low/b.h"\n#include "base/e.h"',
                          "high/sub/y.c": '#include "low/b.h"\n#include "high/x.h"'}, None),
    ("a folder above", {"high/x.c": '#include "high/sub/y.h"'}, 'high/x.c: high may not include "high/sub/y.h"'),
    ("a folder without a line takes the one above it", {"low/deep/a.c": '#include "low/b.h"\n # include "high/sub/y.h"'},
     'low/deep/a.c: low may not include "high/sub/y.h"'),
    ("no line at all", {"other/a.c": ""}, "other/a.c: no line of the table holds for it"),
    ("an include without a folder", {"low/a.c": '#include "b.h"'}, '"b.h" does not say which folder it is in'),
    ("an entry without use", {"low/a.c": ""}, "high may include low and does not"),
    ("a circle that is gone", {"low/a.c": ""}, "the circle low high is gone"),
]


def main():
    failed = 0
    n = 0

    def report(name, ok, detail=""):
        nonlocal n, failed
        n += 1
        failed += not ok
        print(f"{'ok' if ok else 'not ok'} {n} - {name}")
        for line in [] if ok else detail.splitlines():
            print(f"# {line}")

    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    wrong = layers.check(layers.sources(root), *layers.read_table(layers.TABLE))
    report("the sources keep to their layers", not wrong, "\n".join(wrong))
    for name, files, words in CASES:
        wrong = layers.check(files, *layers.read_table(SMALL))
        report(name, any(words in w for w in wrong) if words else not wrong, "\n".join(wrong))
    wrong = layers.check({}, *layers.read_table("base\nlow high\nhigh"))
    wrong += layers.check({"low/a.c": '#include "high/x.h"'}, *layers.read_table("base\nlow high\nhigh"))
    report("a table whose lower line includes a higher one", any("stands below it" in w for w in wrong), "\n".join(wrong))

    with open(os.path.join(root, "docs/architecture.md"), encoding="utf-8") as f:
        drawn = layers.picture(f.read())
    allowed = layers.read_table(layers.TABLE)[0]
    wrong = layers.check_picture(drawn, allowed)
    report("the picture of the layers is the table", len(drawn) > 10 and not wrong, "\n".join(wrong))
    bent = {**drawn, "worker/elastic": drawn["worker/comm"], "worker/nowhere": 99}
    del bent["worker/optim"]
    wrong = layers.check_picture(bent, allowed)
    missed = [words for words in ("worker/optim is missing", "there is no worker/nowhere", "worker/elastic includes worker/exec") if
              not any(words in w for w in wrong)]
    report("a picture that is wrong is found", not missed, "\n".join(missed))

    with open(os.path.join(root, "worker/train.c"), encoding="utf-8") as f:
        lines = f.readlines()
    calls = ["exec_gradients(", "exec_agree(", "exec_update("]
    found = [next((i for i, line in enumerate(lines) if call in line), -1) for call in calls]
    report("a training step is read in one file: gradients, agreement, update", -1 not in found and found == sorted(found),
           f"calls of worker/train.c in lines {found}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
