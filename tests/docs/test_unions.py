#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The agent uses a part of a message under its own kind only: the kind that was stored or asked for last, above in the function,
or by all of its callers. A message holds one of several parts (proto/titan/internal, `oneof kind`), and they share their memory:
under another kind a part is something else."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BARE = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.S)
FUNCTION = re.compile(r"^(?!typedef|#)\w[\w \t*]*?[ *](\w+)(\((?:[^;{}()]|\([^()]*\))*\)\s*\{\n.*?)^\}", re.M | re.S)
ONEOF = re.compile(r"^message (\w+) \{(?:(?!^\}).)*?oneof kind \{(.*?)\n  \}", re.M | re.S)
ALIAS = re.compile(r"^typedef Titan__Internal__(\w+) (\w+);", re.M)
MACRO = re.compile(r"\b(?:MESSAGE\(\w+, |PASS\()(\w+), (\w+),")
MEMBERS = {"x->send": "AgentMessage", "x->command": "AgentToWorker", "x->request": "CoordinatorMessage", "x->peer": "PeerMessage"}


def look(functions, parts, aliases, asked):
    """asked: the kinds that callers of a function have asked for. Uses under another kind, how many uses there are, and asked
    as this reading finds it."""
    types = "|".join([f"Titan__Internal__{t}" for t in parts] + list(aliases))
    declared = re.compile(rf"\b({types}) \**(\w+)\b")
    wrong, seen, calls = [], 0, {}
    for function, body in functions:
        names = MEMBERS | {name: aliases.get(t, t.removeprefix("Titan__Internal__")) for t, name in declared.findall(body)}
        objects = "|".join(re.escape(n) for n in sorted(names, key=len, reverse=True))
        event = re.compile(rf"\bTITAN__INTERNAL__(?P<type>[A-Z_]+?)__KIND_(?P<kind>\w+)|\bMESSAGE\(\w+, (?P<made>\w+),|(?P<call>\b\w+)\((?=\w+, &?m\b)|"
                           rf"(?<![\w>.])(?P<object>{objects})(?:\.|->)(?P<part>\w+)\b(?!\()")
        kinds = dict(asked.get(function, {}))  # type: the kinds that an object of it may have here
        joined = False  # the event before was a kind, too: `case A: case B:`, `== A || == B`
        for m in event.finditer(body):
            if m["type"]:
                of = m["type"].title().replace("_", "")
                kinds[of] = (kinds.get(of, set()) if joined else set()) | {m["kind"].lower()}
            elif m["made"]:
                kinds["AgentMessage"] = {m["made"].lower()}
            elif m["call"]:
                for of, may in kinds.items():
                    calls.setdefault(m["call"], {}).setdefault(of, set()).update(may)
            elif m["part"] in parts[names[m["object"]]]:
                seen += 1
                may = kinds.get(names[m["object"]], set())
                if m["part"] not in may:
                    wrong.append(f"{function}: {m['object']}, {m['part']} under {', '.join(sorted(may)) or 'no kind'}")
            joined = bool(m["type"])
    return wrong, seen, calls


def mistakes(text, parts, aliases):
    bare = BARE.sub(" ", text)
    functions, asked = FUNCTION.findall(bare), {}
    for _ in range(4):  # through functions that pass a message on
        wrong, seen, asked = look(functions, parts, aliases, asked)
    macros = [(kind.lower(), part) for kind, part in MACRO.findall(bare) if kind != "KIND"]
    return wrong + [f"{part} under {kind}" for kind, part in macros if kind != part], seen + len(macros)


def main():
    parts = {message: set(re.findall(r"^    \w+ (\w+) =", body, re.M))
             for file in sorted((ROOT / "proto/titan/internal").glob("*.proto")) for message, body in ONEOF.findall(file.read_text())}
    text = "\n".join(f.read_text() for f in sorted((ROOT / "daemon/agent").rglob("*.[hc]")))
    aliases = {alias: of for of, alias in ALIAS.findall(text) if of in parts}
    wrong, seen = mistakes(text, parts, aliases)
    print("1..2")
    plants = [("m.commit = ", "m.propose = "), ("m->promise->", "m->quiesced->"), ("PASS(FINISHED, finished,", "PASS(FINISHED, progress,"),
              ("_KIND_ASK:\n        failover_on_ask(f, m)", "_KIND_ASK:\n        failover_on_state(f, m)")]
    missed = [old for old, new in plants if old not in text or not mistakes(text.replace(old, new, 1), parts, aliases)[0]]
    print(f"{'not ok' if missed else 'ok'} 1 - a part under another kind is found: {missed or len(plants)}")
    good = not wrong and seen > 90
    print(f"{'ok' if good else 'not ok'} 2 - each of {seen} uses of a part is under its own kind")
    print("".join(f"# {w}\n" for w in wrong), end="")
    return bool(missed) or not good


if __name__ == "__main__":
    sys.exit(main())
