#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""External functions begin with the name of their module (prefixes.py), and what does not is found."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import prefixes  # noqa: E402
from titan import tap  # noqa: E402

HEADER = """#define X(a) \\
    int no_function(a);
/* int none(void); */
struct drum { int (*hit)(void); };
typedef void (*on_hit)(struct drum *);
static inline int helper(void) { return f(1); }
enum noise drum_hit(struct drum *d, int (*each)(int), void *data)
    __attribute__((format(printf, 1, 2)));
extern const char *drum_name(void);
extern int level;
"""


def declarations():
    """functions and tags of a header are found, and nothing else"""
    assert prefixes.declarations(HEADER) == (["drum_hit", "drum_name"], {"drum"}), prefixes.declarations(HEADER)


def rules():
    """a function without its module's name is found, and a name of two modules"""
    def check(*files, exceptions=None, shared=None):
        return prefixes.check(dict(files), exceptions or {}, shared or {})
    tool = ("base/big_tools.h", "int tool_open(void);\nint big_tool_close(void);\n")
    assert not check(tool, ("base/tune.h", "struct string;\nint strings_tune(void);\n"))
    stray = ("base/tune.h", "int play(void);\n")
    assert len(check(stray)) == 1
    assert not check(stray, exceptions={"base/tune.h": (("play",), "")})
    assert len(check(tool, exceptions={"base/big_tools.h": (("tool",), "")})) == 1, "an exception without use"
    worker, daemon, ctl = ((f"{folder}/tool.h", "int tool_make(void);\n") for folder in ("worker", "daemon", "ctl"))
    assert len(check(("base/tool.h", "int tool_open(void);\n"), worker)) == 1
    assert not check(worker, daemon, ctl), "each is a program of its own"
    assert not check(("base/tool.h", "int tool_open(void);\n"), worker, shared={"tool": (("base", "worker"), "")})
    assert len(check(worker, shared={"tool": (("base", "worker"), "")})) == 1, "a row without use"


def the_tree():
    """every external function of the tree begins with the name of its module"""
    wrong = prefixes.check(prefixes.sources(), prefixes.EXCEPTIONS, prefixes.SHARED)
    assert not wrong, "\n" + "\n".join(wrong)


tap(declarations, rules, the_tree)
