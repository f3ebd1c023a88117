#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The documents name nothing that is not there (names.py), and names.py would find it."""
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import names  # noqa: E402
from titan import tap  # noqa: E402

WRONG = ["worker/plan/nowhere.c", "core_nowhere.c", "worker/nowhere/", "no_such_function()", "training.stepz", "make frobnicate",
         "titanctl frobnicate", "titanctl list --frobnicate", "titand dev --frobnicate", "titan-worker frobnicate", "--frobnicate", "job.frobnicated",
         "Job.frobnicated", "jobs.frobnicated", "detection.frobnicated_ms", "agents_frobnicated", "struct frobnicated", "FROBNICATE=1",
         "build/frobnicated/results.json", "STATE/frobnicated", "a log line that is not there"]
RIGHT = ["worker/main.c", "base/recipe_keys.c", "tests/sim/", "recipe_parse()", "training.steps", "make demo", "titanctl list", "--state-dir",
         "titand dev --state-dir", "titan-worker check FILE --print", "job.submitted", "Job.reason", "detection.suspect_ms", "JOB_WORKERS_MAX", "titanctl(1)"]


def wrong_names_are_found():
    """a name that does not exist is found, whatever its kind"""
    missed = [span for span in WRONG if names.bad(span) is None]
    assert not missed, f"not found: {missed}"


def right_names_pass():
    """names that exist pass"""
    wrong = [span for span in RIGHT if names.bad(span) is not None]
    assert not wrong, f"taken for wrong: {wrong}"


def spans_blocks_and_links_are_read():
    """code spans, commands in blocks and links are all looked at"""
    text = "See `worker/nowhere.c`\n\n```\n$ titanctl frobnicate 1\n```\n\n    make frobnicate # what\n\n[here](nowhere.md) `base/sm.c` `recipe_parse()`\n"
    assert len(list(names.check("README.md", text))) == 5


def walks_are_followed():
    """a stop of a walk is defined in its file and called by the programs"""
    def wrong(stop):
        return [w for w in names.check("README.md", f"| 1 | {stop} | what happens |\n") if "function" in w or "calls" in w]

    assert not wrong("`base/recipe.c` `recipe_parse()`") and not wrong("`worker/device/cpu/optim.c` `cpu_update()`")
    assert wrong("`base/toml.c` `recipe_parse()`"), "a function of another file passes"
    assert wrong("`state/change.c` `change_apply()`"), "a function that only tests call passes"


def documents_are_true():
    """every name in the documents exists"""
    problems = [p for f in names.documents() for p in names.check(f, names.read(f))]
    assert not problems, "\n" + "\n".join(problems)


def keys_of_messages_exist():
    """every key of a file that a message names exists"""
    bad = 'f("%s: training.stepz is 1"); /* "job.x" */ g("set node.name in its titand.toml"); h("job.id", "training.steps", "metrics.db", "agent." "node");'
    assert list(names.wrong_keys("x.c", bad)) == ["training.stepz", "node.name"]
    wrong = [f"{f}: {key}" for f in names.files() if re.match(r"(base|proto|state|daemon|worker|ctl)/.*\.[ch]$", f)
             for key in names.wrong_keys(f, names.read(f))]
    assert not wrong, "\n" + "\n".join(wrong)


tap(wrong_names_are_found, right_names_pass, spans_blocks_and_links_are_read, walks_are_followed, documents_are_true,
    keys_of_messages_exist)
