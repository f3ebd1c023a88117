#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A worker's message passes three functions of the agent, at most, from the channel's read to the session's send: those that
docs/architecture.md names. No pointer in the agent is a number in disguise."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BARE = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.S)
DEFINITION = re.compile(r"^(?!typedef|#)\w[\w \t*]*?[ *](\w+)\((?:[^;{}()]|\([^()]*\))*\)\s*\{\n(.*?)^\}", re.M | re.S)
MACRO = re.compile(r"^#define (\w+)\((?:.*\\\n)*.*", re.M)
SENTINEL = re.compile(r"\((?:const )?(?:struct \w+|void|char) \*\)\s*\(?-?[1-9]")


def between(text):
    """The functions between connection_read() and session_send(), by the callback on_message; None where there is no such way."""
    text = BARE.sub(" ", text)
    bodies = dict(DEFINITION.findall(text)) | {m[1]: m[0][len("#define " + m[1]):] for m in MACRO.finditer(text)}
    first = re.findall(r"\.on_message = (on_\w+)", text)
    if len(first) != 1 or ".on_message(" not in bodies.get("connection_read", ""):
        return None
    way = {first[0]: None}  # function: what calls it, nearest first
    for f in (queue := [first[0]]):
        for called in re.findall(r"\w+", bodies.get(f, "")):
            if called not in way and (called in bodies or called == "session_send"):
                way[called] = f
                queue.append(called)
    passed = set()
    for at in ("agent_core_worker", way.get("session_send")):  # what the core makes of it, and what sends that
        if at not in way:
            return None
        while at:
            passed |= {at} if at.islower() else set()  # not the macro
            at = way[at]
    return passed


def main():
    print("1..3")
    text = "\n".join(f.read_text() for f in sorted((ROOT / "daemon/agent").rglob("*.[ch]")))
    longer = text.replace("    CORE(a, agent_core_worker,", "    relay(a,") + "\nstatic void relay(struct agent *a)\n{\n    CORE(a, agent_core_worker, 1, m);\n}\n"
    planted = len(between(longer) or ()) == 4 and SENTINEL.search("next = (struct worker *)-1;")
    print(f"{'ok' if planted else 'not ok'} 1 - a fourth function, and a number for a pointer, are found")
    passed, page = between(text), (ROOT / "docs/architecture.md").read_text()
    told = re.search(r"A worker's message passes three functions.*?\n\n", page, re.S)
    right = passed and len(passed) <= 3 and told and all(f"`{f}()`" in told[0] for f in passed)
    print(f"{'ok' if right else 'not ok'} 2 - from the worker's socket to the session: {', '.join(sorted(passed or ['no way found']))}")
    sentinels = SENTINEL.findall(BARE.sub(" ", text))
    print(f"{'not ok' if sentinels else 'ok'} 3 - no pointer is a number: {sentinels or 'none'}")
    return not (planted and right and not sentinels)


if __name__ == "__main__":
    sys.exit(main())
