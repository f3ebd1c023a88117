#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Prefixes of external functions: each names its module, and no two modules of a program share one.

A module is a folder. The prefix of a function that a header declares is the longest of these that it begins with: the names
of the module's files and of its folders, or words of them, and the tags of its structs and enums; singular and plural are
the same. base/ and proto/ are in every program, state/ in titand; ctl/ and worker/ may have the same as daemon/. EXCEPTIONS are further prefixes of a header, SHARED those that several folders have, each with its reason; a row
that finds nothing is an error, so both only become shorter."""
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("base", "proto", "state", "daemon", "ctl", "worker")
CORE = "daemon/coordinator/"
AGENT = "daemon/agent/"
EXCEPTIONS = {  # header: prefixes, reason
    "base/distance.h": (("text",), "what is done to a text, as in utf8.h"),
    "base/file.h": (("dir",), "a folder as file_ is a file"),
    "base/options.h": (("help",), "what is printed of the tables that args_ parses"),
    "base/units.h": (("format",), "a number as text"),
    "base/utf8.h": (("text",), "what is done to a text, whatever bytes it is"),
    "state/db.h": (("col",), "a column of the row that db_step() is at"),
    CORE + "cluster/fencing.h": (("fence",), "the verb"),
    CORE + "inputs/core_check.h": (("epoch",), "the checks of job, node and epoch are alike"),
    CORE + "outbox/messages.h": (("send",), "what is done with each message"),
    CORE + "outbox/transitions.h": (("begin", "end", "enter", "epoch", "move", "store"), "what a transition does"),
    CORE + "records/job_record.h": (("worker",), "a job's records of its workers"),
    CORE + "records/job_size.h": (("worker",), "a worker and its job's size"),
    CORE + "run/growth.h": (("grow",), "the verb"),
    CORE + "sched/preemption.h": (("preempt",), "the verb"),
    CORE + "shell/store_restore.h": (("core",), "the core, from the store"),
    "worker/device/device.h": (("titan_device_plugin",), "the symbol that a plug-in exports"),
    "worker/model/block.h": (("embedding", "head"), "what stands before the blocks and after them"),
    "worker/plan/build.h": (("program",), "a rank's program is what is built"),
    "worker/plan/check.h": (("program", "programs"), "a rank's program is what is checked"),
}
LAYERS = "the store has its row, the core its record, the agent its process"
SHARED = {  # prefix: folders, reason
    "agent": ((AGENT + "core", AGENT + "inputs", AGENT + "shell"), "the agent is all of these folders"),
    "args": (("base", "ctl"), "a job's number is an argument of titanctl's alone"),
    "checkpoint": (("worker/checkpoint", "worker/epoch"), "due.h says when one is written"),
    "core": ((CORE + "inputs", CORE + "records", CORE + "shell", "daemon/coordinator"), "the core is all of these folders"),
    "epoch": ((CORE + "inputs", CORE + "outbox", CORE + "records", CORE + "run", "daemon/common", "state"), LAYERS),
    "evaluation": (("base", "worker/epoch"), "its numbers are in base/, its run in worker/"),
    "event": ((CORE + "outbox", "state"), LAYERS),
    "folder": (("base", "worker/checkpoint"), "a folder of checkpoints, whose owner submit reads too"),
    "help": (("base", "ctl"), "base/ has the parts of a page, ctl/ those of titanctl"),
    "job": ((CORE + "inputs", CORE + "records", CORE + "run", "state"), LAYERS),
    "node": ((CORE + "inputs", CORE + "records", "state"), LAYERS),
    "program": (("worker/plan", "worker/program"), "plan/ builds and checks what program/ has"),
    "progress": (("base", "ctl"), "base/ has the page that a worker writes, ctl/ the line that a person sees"),
    "session": ((CORE + "shell", AGENT + "shell"), "its two ends"),
    "state": (("worker/elastic", "worker/state"), "its transfer"),
    "store": ((CORE + "outbox", "state"), "changes that go into the store and move nothing"),
    "worker": ((CORE + "records", CORE + "run", AGENT + "shell", "state"), LAYERS),
}
COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
TAG = re.compile(r"\b(?:struct|enum|union) (\w+) ?[{;]")
FUNCTION = re.compile(r"(?:extern )?[\w ]+?[ *]+(\w+) ?\(")


def declarations(text):
    """(external functions, tags) of a header."""
    text = DIRECTIVE.sub("", COMMENT.sub(lambda m: '""' if m[0][0] == '"' else " ", text))
    tags = set(TAG.findall(text))
    depth, out = 0, []
    for c in text:
        depth -= c == "}"
        out.append(c if depth == 0 or (depth == 1 and c == "{") else "")
        depth += c == "{"
        if c == "}" and depth == 0:
            out.append(";")
    names = []
    for one in "".join(out).split(";"):
        one = re.sub(r"__attribute__ ?\(\(.*?\)\)", "", " ".join(one.split()))
        m = FUNCTION.match(one)
        if m and "{" not in one and "=" not in one and not one.startswith(("static", "typedef")):
            names.append(m[1])
    return names, tags


def numbers(word):
    """A word and its plural, or its singular."""
    return {word, word + "s", word + "es", word[:-1] if word.endswith("s") else word, word[:-2] if word.endswith("es") else word}


PROGRAMS = (("base", "proto", "state", "daemon"), ("base", "proto", "ctl"), ("base", "proto", "worker"))


def prefixes(files):
    """Those that a module's functions may have. files: path -> (functions, tags)."""
    out = set()
    for path, (_, tags) in files.items():
        for name in [path.stem, *path.parent.parts, *tags]:
            words = name.split("_")
            for i in range(len(words)):
                for k in range(i + 1, len(words) + 1):
                    out |= numbers("_".join(words[i:k]))
    return out


def check(sources, exceptions, shared):
    """What is wrong. sources: path -> text."""
    modules, folders, wrong, used = defaultdict(dict), defaultdict(set), [], set()
    for path, text in sorted(sources.items()):
        modules[str(Path(path).parent)][Path(path)] = declarations(text) if path.endswith(".h") else ([], set())
    for folder, files in modules.items():
        own = prefixes(files)
        for path, (names, _) in files.items():
            extra = exceptions.get(str(path), ((), ""))[0]
            for name in names:
                fits = [p for p in own | set(extra) if name == p or name.startswith(p + "_")]
                if not fits:
                    wrong.append(f"{path}: {name}: names no module")
                    continue
                prefix = max(fits, key=len)
                folders[prefix].add(folder)
                if prefix not in own:
                    used.add((str(path), prefix))
    wrong += [f"{path} has no {p}_ of its own: take it out of EXCEPTIONS" for path, (extra, _) in exceptions.items()
              for p in extra if (path, p) not in used]
    for prefix, where in sorted(folders.items()):
        rows = set(shared.get(prefix, ((), ""))[0])
        for program in PROGRAMS:
            here = {f for f in where if f.split("/")[0] in program}
            if len(here) > 1 and not here <= rows:
                wrong.append(f"{prefix}_ is in {', '.join(sorted(here))}")
    wrong += [f"{prefix}_ is not in all of {', '.join(sorted(rows))} any more: correct SHARED"
              for prefix, (rows, _) in shared.items() if not set(rows) <= folders[prefix]]
    return wrong


def sources():
    return {str(f.relative_to(ROOT)): f.read_text() for folder in FOLDERS for f in (ROOT / folder).rglob("*.[ch]")}


def main():
    wrong = check(sources(), EXCEPTIONS, SHARED)
    print("\n".join(wrong) if wrong else f"{sum(len(declarations(t)[0]) for p, t in sources().items() if p.endswith('.h'))} functions")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
