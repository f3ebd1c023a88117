# SPDX-License-Identifier: Apache-2.0
"""Python packages of others that tests compare with: found, or the reason why a test is skipped.

`make interop` and `make interop-packages` install them (mk/interop.mk). A test script calls use() first:

    interop.use("numpy", "tokenizers")       # goes on in an interpreter that has both, or skips the whole script
    interop.use()                            # goes on in the interpreter with the most packages; then, in a test:
    why = interop.missing("transformers")    # the reason to return as a skip, or None
"""
import importlib
import os
import subprocess
import sys
from pathlib import Path

INSTALL = {"torch": "make interop", "transformers": "make interop"}  # the others: make interop-packages


def pythons():
    """Interpreters that may have packages, the best first."""
    given = os.environ.get("TITAN_INTEROP_PYTHON")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    venv = Path(os.environ.get("INTEROP_VENV") or cache / "titan/interop") / "bin/python"
    return [p for p in ([given] if given else [str(venv)]) if os.access(p, os.X_OK)]


def missing(*packages):
    """Why this interpreter cannot import them, or None."""
    for name in packages:
        try:
            importlib.import_module(name)
        except Exception as e:
            return f"no {name}: {INSTALL.get(name.split('.')[0], 'make interop-packages')} installs it ({e})"
    return None


def python(*packages):
    """(interpreter with the packages, None) or (None, why there is none); for helpers run beside a test."""
    for path in [*pythons(), sys.executable]:
        done = subprocess.run([path, "-c", "".join(f"import {p}\n" for p in packages)], capture_output=True, text=True)
        if done.returncode == 0:
            return path, None
    return None, missing(*packages) or f"{path}: {done.stderr.strip().splitlines()[-1]}"


def use(*packages):
    """Go on in an interpreter with the packages, from the script's start; skip the script where there is none."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is fetched while tests run
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if os.environ.get("TITAN_INTEROP_CHOSEN") != str(os.getpid()):
        path, why = python(*packages)
        if why:
            print(f"1..1\nok 1 - {Path(sys.argv[0]).name} # SKIP {why}")
            sys.exit(0)
        if path != sys.executable:
            os.environ["TITAN_INTEROP_CHOSEN"] = str(os.getpid())  # the process stays the same
            os.execv(path, [path, *sys.argv])
