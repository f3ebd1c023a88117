#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""make check-layers: which folders may include which, as one table, checked from the #include lines of the sources.

A line names a folder and what its files may include, besides their own folder and base/. It holds for the folders below
it as well, unless they have lines of their own. Folders of one program stand so that each includes only what stands above
it: `circle` lines say where that is not true yet.

What the table allows and no file uses is an error too, so that it stays as tight as the tree. The picture of the worker's
layers in docs/architecture.md is held to the table."""
import os
import re
import sys

TABLE = """
base
titan                                                      (generated from proto/titan)
proto/rpc           titan
proto/http          proto/rpc
proto               titan
state

daemon/auth         titan state proto/rpc
daemon/common       titan
daemon/ha           proto/rpc state daemon/common daemon/auth
daemon/spawn        daemon/common
daemon/agent        titan daemon/common
daemon/agent/core      titan proto daemon/common daemon/agent
daemon/agent/failover  daemon/common daemon/agent daemon/agent/core
daemon/agent/inputs    proto daemon/common daemon/agent daemon/agent/core daemon/agent/failover
daemon/agent/shell     titan proto proto/rpc daemon/common daemon/auth daemon/spawn daemon/agent
daemon/coordinator  titan proto/rpc state daemon/common daemon/auth
daemon/coordinator/records  titan proto state daemon/coordinator
daemon/coordinator/outbox   daemon/common daemon/coordinator/records
daemon/coordinator/cluster  daemon/common daemon/coordinator/records daemon/coordinator/outbox
daemon/coordinator/run      daemon/common daemon/coordinator/records daemon/coordinator/outbox daemon/coordinator/cluster
daemon/coordinator/sched    daemon/coordinator/records daemon/coordinator/outbox daemon/coordinator/cluster daemon/coordinator/run
daemon/coordinator/inputs   daemon/common daemon/coordinator/records daemon/coordinator/outbox daemon/coordinator/cluster daemon/coordinator/run daemon/coordinator/sched
daemon/coordinator/shell    titan proto proto/rpc proto/http state daemon/common daemon/auth daemon/coordinator
daemon/api          titan proto state daemon/common daemon/auth daemon/coordinator daemon/coordinator/shell
daemon              titan proto proto/rpc proto/http state daemon/common daemon/ha daemon/auth daemon/agent/shell daemon/coordinator daemon/api

ctl                 titan proto proto/rpc state daemon/auth

worker/tokenizer
worker/tensor
worker/device
worker/device/cpu   worker/device
worker/comm         worker/device
worker/comm/shm     worker/comm
worker/comm/tcp     worker/comm
worker/device/cuda  worker/device worker/comm
worker/comm/nccl    worker/comm worker/device/cuda
worker/program      worker/tensor worker/device
worker/model        worker/program
worker/optim        worker/tensor worker/device worker/program
worker/plan         worker/tensor worker/device worker/comm worker/program worker/model worker/optim
worker/exec         worker/tensor worker/comm worker/program worker/optim
worker/state        worker/tensor worker/device worker/program
worker/data         worker/tensor worker/tokenizer
worker/checkpoint   worker/tensor worker/state worker/tokenizer worker/data
worker/measure      worker/tensor worker/comm worker/program worker/plan worker/exec worker/state worker/data
worker/metrics
worker/infer        worker/tokenizer worker/tensor worker/device worker/program worker/model worker/plan worker/optim worker/exec worker/checkpoint worker/data worker/metrics
worker/elastic      titan proto worker/comm worker/program worker/optim worker/exec worker/state worker/checkpoint worker/metrics
worker/epoch        worker/tensor worker/device worker/comm worker/plan worker/optim worker/exec worker/checkpoint worker/tokenizer worker/data worker/metrics worker/elastic
worker              worker/tokenizer worker/comm worker/plan worker/checkpoint worker/data worker/measure worker/infer worker/elastic worker/epoch

"""
SOURCES = (".c", ".h", ".cu", ".cuh")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def read_table(text):
    """{folder: allowed}, the folders in order, {(from, to)} of circles."""
    allowed, circles = {}, set()
    for line in text.splitlines():
        words = re.sub(r"\(.*\)", "", line).split()
        if words[:1] == ["circle"]:
            circles.add((words[1], words[2]))
        elif words:
            allowed[words[0]] = words[1:]
    return allowed, circles


def layer_of(path, allowed):
    """The line that holds for a file: its folder's, or the nearest one above."""
    folder = os.path.dirname(path)
    while folder and folder not in allowed:
        folder = os.path.dirname(folder)
    return folder


def check(files, allowed, circles):
    """files: {path: text}. What is wrong, one sentence each."""
    wrong, used = [], set()
    order = {folder: i for i, folder in enumerate(allowed)}
    for path, text in sorted(files.items()):
        me = layer_of(path, allowed)
        if not me:
            wrong.append(f"{path}: no line of the table holds for it")
            continue
        for name in INCLUDE.findall(text):
            if "/" not in name or name.startswith("tests/cuda/"):
                wrong += [] if "/" in name else [f'{path}: "{name}" does not say which folder it is in']
                continue
            other = layer_of(name, allowed)
            if other in (me, "base"):
                continue
            used.add((me, other))
            if other not in allowed[me] and (me, other) not in circles:
                wrong.append(f'{path}: {me} may not include "{name}"')
    for me, others in allowed.items():
        for other in others:
            if other not in order:
                wrong.append(f"table: {me} names {other}, which has no line")
            elif (me, other) not in used:
                wrong.append(f"table: {me} may include {other} and does not: take it out")
            elif order[other] > order[me] and (me, other) not in circles:
                wrong.append(f"table: {me} includes {other}, which stands below it")
    wrong += [f"table: the circle {a} {b} is gone: take its line out" for a, b in sorted(circles) if (a, b) not in used]
    return wrong


def picture(text):
    """{folder: line} of the worker's layers as the document draws them: the last block before `make check-layers`."""
    block = text.split("`make check-layers`")[0].rsplit("```", 2)[1]
    drawn = {}
    for n, line in enumerate(block.splitlines()):
        for name, below in re.findall(r"(?:^|  )(\w+)(?:/(\w+/|\{[\w,]+\}/)?|\.c )", line):
            drawn.setdefault("worker" if name == "train" else "worker/" + name, n)
            drawn.update({f"worker/{name}/{part}": n for part in re.findall(r"\w+", below)})
    return drawn


def check_picture(drawn, allowed):
    """A folder of the picture stands below all that it includes; none is left out, none is invented."""
    table = {f for f in allowed if f.split("/")[0] == "worker"}
    wrong = [f"picture: {f} is missing" for f in sorted(table - set(drawn))] + [f"picture: there is no {f}" for f in sorted(set(drawn) - table)]
    return wrong + [f"picture: {me} includes {other} and does not stand below it" for me in sorted(table & set(drawn)) for other in allowed[me]
                    if other in drawn and drawn[other] >= drawn[me] and os.path.dirname(me) != other]


def sources(root):
    files = {}
    for top in ("base", "proto", "state", "daemon", "ctl", "worker"):
        for folder, _, names in os.walk(os.path.join(root, top)):
            for name in names:
                if name.endswith(SOURCES):
                    path = os.path.join(folder, name)
                    with open(path, encoding="utf-8") as f:
                        files[os.path.relpath(path, root)] = f.read()
    return files


def main():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    allowed, circles = read_table(TABLE)
    files = sources(root)
    with open(os.path.join(root, "docs/architecture.md"), encoding="utf-8") as f:
        wrong = check(files, allowed, circles) + check_picture(picture(f.read()), allowed)
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        print(f"{len(files)} files keep to {len(allowed)} layers")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
