#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Words that the project has given up for the field's terms (docs/glossary.md), where one comes back.

A row of TERMS is a word, the term in its place, and two patterns: of the identifiers that have its private sense, and of
prose: comments, strings and documents. An identifier is matched as a whole, in lower case, between underscores: "seat" finds
job_seat and n_seats. Names of the API, of events, of keys and of the store's columns stay: LITERALS, COLUMNS, and what a
document has in `backticks`. Passed over in documents: the glossary, and results that a check has printed."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("base", "proto", "state", "daemon", "ctl", "worker")
SAME = object()  # in prose the same words as in identifiers

# word, the field's term, identifiers, prose (None: ordinary English there)
TERMS = [
    ("seat", "rank slot", r"seats?", SAME),
    ("leaver", "departing rank", r"leavers?", SAME),
    ("wish", "desired size", r"wish(es)?", SAME),
    ("squeeze", "preemption limit", r"squeezed?", SAME),
    ("blame", "exit cause", r"blamed?", SAME),
    ("pace", "heartbeat interval, step time", r"paced?", SAME),
    ("stranger", "unknown sender", r"strangers?", SAME),
    ("imposter", "forged sender", r"imposters?", SAME),
    ("sealed", "installed; of a connection: secure", r"(un)?sealed", SAME),
    ("told", "published, reported, sent", r"(un)?told", r"untold|(the )?world (is|was) told|told the world"),
    ("rung", "recovery source", r"rungs?", SAME),
    ("ladder", "fallback order", r"ladder", SAME),
    ("delegate", "acting leader", r"delegate[ds]?|delegation", r"delegate[ds]?(?!=| subtree)|delegation"),
    ("hello", "registration", r"hellos?", SAME),
    ("welcome", "acknowledgement", r"welcome[ds]?", SAME),
    ("beat", "heartbeat", r"beats?", r"beats?"),
    ("keeper, ward", "buddy replica, owner", r"keepers?|wards?", SAME),
    ("say_, tell_", "a verb of what is done: emit, send, report", r"(say|tell)(?=_)|(?<=_)(say|tell)", None),
    ("words", "progress counters", r"progress_words", None),
    ("front", "tenant", r"(rpc_)?fronts?(?=_|$)", None),
    ("link", "agent connection", r"(channel|membership)_link|link_(read|lost|flush|greet|accept|options|ops|open|opened|next|quiesced|failing|close)", None),
    ("turn", "batch, sequence number", r"(next_)?turn$", None),
    ("meeting", "rendezvous, sync point", r"meetings?", SAME),
    ("kind of rank", "program class", r"rank_kinds?", r"kinds? of ranks?|ranks? of (?:a|one|each|every|this) kind"),
    ("visit", "execution", r"visits?", SAME),
    ("count by", "quorum configuration", r"counts?_by", r"(?:decisions|epochs?|one|first) (?:to )?counts? by"),
    ("part", "state shard", r"parts?", r"(?:a|each|every|another) rank's parts?(?! of)|owner's parts?(?! of)"),
    ("piece, box", "shard slice", r"n?pieces?(?!_bytes)|box(es)?", None),
    ("kind", "program class", r"program_kinds?|kinds", r"kinds? of rank"),
    ("report", "step statistics", r"reports?", r"(?:the|a) step's report"),
    ("again", "recomputation", r"again", None),
    ("apart", "split gate and up", r"apart", None),
    ("load", "tokens per expert", r"load_(least|most|mean)|(report|read|put|host|layout)_loads|loads_place", None),
    ("room", "rows of a round; the key's name", r"expert_room(?!_needed)|(?<!parallel_)room_of", None),
    ("order", "command", r"orders|order_(pause|stop|checkpoint|must)|(copy|pause|stop)_order",
     r"(?<!names and )orders|(?:an|the same|no) order (?:to|for|about|again|that (?:counts|lay))|obeys? an order"),
    ("use", "parameter use", r"plan_uses|use_number", None),
]
ONLY = {  # rows of words that are private there; elsewhere they are English, or the field's
    "part": (*(f"worker/elastic/{name}." for name in ("buddy", "holdings", "restore", "transfer", "verify")), "worker/epoch/recover", "docs/membership.md"),
    "piece, box": ("worker/checkpoint/", *(f"worker/elastic/{name}." for name in ("buddy", "fold", "holdings", "restore", "transfer", "verify")),
                   "worker/state/state.", "worker/tensor/"),
    "kind": ("worker/plan/", "worker/planner", "worker/measure/", "docs/plan.md", "docs/architecture.md"),
    "report": ("worker/exec/", "worker/optim/", "worker/program/", "worker/model/", "worker/train.c", "worker/elastic/holdings", "worker/elastic/restore", "worker/elastic/buddy", "docs/"),
    "again": ("worker/plan/recompute", "worker/model/"),
    "apart": ("worker/plan/", "worker/model/"),
    "load": ("worker/", "state/", "daemon/"),
    "room": ("worker/",),
    "order": ("worker/elastic/", "worker/epoch/", "worker/exec/", "worker/optim/", "worker/program/", "worker/train.c", "docs/"),
    "use": ("worker/plan/",),
}
ELSEWHERE = {  # words of these rows that mean something else there
    "turn": ("base/mac.c", "worker/"),
    "front": ("worker/",),
    "told": ("worker/device/cuda/",),
    "visit": ("worker/state/staging.c", "worker/comm/nccl/share.c"),
}
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)+\'|[A-Za-z_]\w*', re.S)
PUBLIC = {"agents_imposter"}  # counters of the API
LITERALS = {'"leavers"', '"delegate"', '"rung"',  # of events
            '"titan delegated"', '"titan hello"', '"titan hello accepted"',  # what keys and proofs are made with
            '"echo hello | titan-worker tokenize -t tokenizer.json | titan-worker tokenize -t tokenizer.json -d"'}
COLUMNS = re.compile(r"\b(leavers|delegate|rung|wish_\w+)\b")  # of the store, in SQL and in lists of columns
PRINTED = re.compile(r"<!-- ([\w-]+): begin -->.*?<!-- \1: end -->", re.S)  # what a check has printed
NAMED = re.compile(r"```.*?```|`[^`]*`", re.S)


def identifier(pattern):
    return re.compile(r"(?:^|_)(?:%s)(?:_|$)" % pattern)


def words_of(pattern):
    return re.compile(r"(?<![\w.-])(?:%s)(?![\w])" % pattern, re.I)


COMPILED = [(word, term, identifier(ids), words_of(ids if words is SAME else words) if words else None)
            for word, term, ids, words in TERMS]


def found(path, text):
    """(word, term, line, what) of a file."""
    document = path.endswith((".md", ".1", ".5", ".8"))
    if document:
        for passed in (PRINTED, NAMED):
            text = passed.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    for m in re.finditer(r"[^\n]+", text) if document else TOKEN.finditer(text):
        token = m[0]
        if token[0] == "'" or token in PUBLIC or token in LITERALS:
            continue
        prose = document or token.startswith(("//", "/*", '"'))
        if path.startswith("state/") and (token[0] == '"' or COLUMNS.fullmatch(token)):  # in a list of columns
            token = COLUMNS.sub("", token)
        for word, term, ids, words in COMPILED:
            pattern = words if prose else ids
            hit = pattern and pattern.search(token if prose else token.lower())
            if hit and path.startswith(ONLY.get(word, "")) and not path.startswith(ELSEWHERE.get(word, ("/",))):
                yield word, term, text.count("\n", 0, m.start()) + 1, hit[0].strip("_") if prose else token


def check(files):
    return [f"{path}:{line}: {what}: the field's term is {term}" for path, text in sorted(files.items())
            for word, term, line, what in found(path, text)]


def sources():
    files = [f for folder in FOLDERS for f in (ROOT / folder).rglob("*") if f.suffix in (".c", ".h", ".cu", ".cuh", ".proto")]
    files += [f for f in ROOT.rglob("*.md") if not f.relative_to(ROOT).parts[0].startswith(("build", ".")) and f.name != "glossary.md"]
    files += (ROOT / "docs/man").glob("*.[158]")
    return {str(f.relative_to(ROOT)): f.read_text() for f in files}


def main():
    wrong = check(sources())
    print("\n".join(wrong) if wrong else f"none of {len(TERMS)} words is back")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
