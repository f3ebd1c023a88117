#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The three heads that docs/architecture.md names list every file of the agent, each those of its folders."""
import re
import sys
from pathlib import Path

AGENT = Path(__file__).resolve().parents[2] / "daemon/agent"
CORE, FAILOVER, SHELL = "core/agent_core_internal.h", "failover/failover.h", "shell/agent_internal.h"
HEADS = {"core": CORE, "inputs": CORE, "failover": FAILOVER, "shell": SHELL}


def wrong(files):
    """{path below daemon/agent: text}: what a head lacks, and what it lists that is not its own."""
    comment = {head: re.search(r"^/\* \w+\.[ch] - .*?\*/", files[head], re.M | re.S)[0] for head in (CORE, FAILOVER, SHELL)}
    heads = {head: set(re.findall(r"  (\w+\.c) ", text)) for head, text in comment.items()}
    found = []
    for path in files:
        own = HEADS.get(path.split("/")[0])
        if path.endswith(".c"):
            found += [f"{head}: {path} {'is missing' if head == own else 'is not of it'}"
                      for head in heads if (head == own) != (Path(path).name in heads[head])] if own else [f"{path}: no head is for its folder"]
    names = {Path(path).name for path in files}
    return found + [f"{head}: there is no {name}" for head in heads for name in sorted(heads[head] - names)]


def main():
    print("1..2")
    files = {str(f.relative_to(AGENT)): f.read_text() for f in sorted(AGENT.rglob("*.[ch]"))}
    missing = wrong(files)
    plants = [files | {"spare.c": ""}, files | {"core/spare.c": ""}, files | {"failover/spare.c": ""}, files | {"shell/spare.c": ""},
              {path: text for path, text in files.items() if path != "shell/oom.c"}]
    missed = [k for k, plant in enumerate(plants) if len(wrong(plant)) != len(missing) + 1]
    print(f"{'not ok' if missed else 'ok'} 1 - a file that no head lists, and one that is gone, are found: {missed or len(plants)}")
    print(f"{'not ok' if missing else 'ok'} 2 - every file of the agent is in its head's list")
    print("".join(f"# {line}\n" for line in missing), end="")
    return bool(missed or missing)


if __name__ == "__main__":
    sys.exit(main())
