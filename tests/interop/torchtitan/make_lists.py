#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write keys.tsv and overrides.tsv from a checkout of TorchTitan at v0.2.2: make_lists.py CHECKOUT

keys.tsv: every key of its configuration with the default and another value, in TOML ("none": unset).
overrides.tsv: what its integration tests lay over base_config.toml: name, number of GPUs, overrides.
"""
import ast
import re
import shlex
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def toml(value):
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return '"' + value + '"' if isinstance(value, str) else repr(value)


def another(kind, default):
    """A value that differs from the default, of the same type."""
    words = re.findall(r"'([^']+)'|\"([^\"]+)\"", kind) if "Literal" in kind else []
    for word in (a or b for a, b in words):
        if word != default:
            return word
    if isinstance(default, bool):
        return not default
    if isinstance(default, float):
        return default / 2 if default else 0.25
    if isinstance(default, int) or kind.startswith("int"):
        return (default or 0) + 3
    if kind.startswith("float"):
        return 0.5
    return ["other"] if kind.startswith("list") else "other"


def keys(source):
    """(key, default, other) in the order of the source; dataclasses nest."""
    classes = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            classes[node.name] = [f for f in node.body if isinstance(f, ast.AnnAssign)]

    def walk(name, prefix):
        for f in classes[name]:
            kind, value = ast.unparse(f.annotation), f.value
            key = prefix + f.target.id
            if kind in classes:
                yield from walk(kind, key + ".")
                continue
            if isinstance(value, ast.Call):  # field(default_factory=...)
                factory = value.keywords[0].value
                default = ast.literal_eval(factory.body) if isinstance(factory, ast.Lambda) else []
            else:
                default = ast.literal_eval(value)
            yield key, default, another(kind, default)
    return walk("JobConfig", "")


def overrides(source):
    """(name, GPUs, overrides) of each run of each OverrideDefinitions."""
    for call in ast.walk(ast.parse(source)):
        if not (isinstance(call, ast.Call) and getattr(call.func, "id", "") == "OverrideDefinitions"):
            continue
        name = ast.literal_eval(call.args[2])
        gpus = next((k.value.value for k in call.keywords if k.arg == "ngpu"), 4)
        for number, run in enumerate(call.args[0].elts):
            text = " ".join("".join(p.value if isinstance(p, ast.Constant) else "CHECKPOINT" for p in w.values)
                            if isinstance(w, ast.JoinedStr) else w.value for w in run.elts)
            words, sets = shlex.split(text.replace("=", " ")), []
            while words:
                key = words.pop(0).removeprefix("--")
                sets.append(f"{key}={words.pop(0) if words and not words[0].startswith('--') else 'true'}")
            yield f"{name}/{number + 1}", gpus, sets


def main():
    root = Path(sys.argv[1])
    with open(HERE / "keys.tsv", "w") as out:
        for key, default, other in keys((root / "torchtitan/config/job_config.py").read_text()):
            print(key, toml(default), toml(other), sep="\t", file=out)
    with open(HERE / "overrides.tsv", "w") as out:
        for suite in ("features", "models", "h100"):
            for name, gpus, sets in overrides((root / f"tests/integration_tests/{suite}.py").read_text()):
                print(f"{suite}/{name}", gpus, *sets, sep="\t", file=out)


main()
