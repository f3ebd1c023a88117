#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The programs and plug-ins are hardened, as readelf shows them; CFLAGS of a user take nothing from that.

    test_hardening.py [PREFIX]     those of the build, or those installed below PREFIX"""
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BUILD, SOURCE, command  # noqa: E402

PREFIX = Path(sys.argv[1]) if len(sys.argv) > 1 else BUILD
FILES = [PREFIX / "bin" / name for name in ("titand", "titan-spawnd", "titan-worker", "titanctl")] + sorted((PREFIX / "lib/titan").glob("*.so"))
X86 = platform.machine() == "x86_64"
FLAGS = ["-fstack-protector-strong", "-fstack-clash-protection", *["-fcf-protection"] * X86]
JUMP_TARGET = bytes.fromhex("f30f1efa")  # endbr64


def readelf(path, *options):
    return subprocess.run(["readelf", "-W", *options, path], capture_output=True, check=True, text=True, errors="replace").stdout


def unmarked(path):
    """Global functions that do not begin with a mark of a jump target; None where it has no names of functions (stripped)."""
    image = path.read_bytes()
    segments = [[int(v, 16) for v in m.groups()] for m in re.finditer(r"LOAD +(0x\w+) (0x\w+) 0x\w+ (0x\w+)", readelf(path, "-l"))]
    found = {m[2]: int(m[1], 16) for m in re.finditer(
        r"^ *\d+: (\w+) +[1-9]\d* FUNC +GLOBAL +(?:DEFAULT|HIDDEN|PROTECTED) +\d+ (\S+)", readelf(path, "-s"), re.MULTILINE)}
    found.pop("_start", None)  # libc's
    if not found:
        return None
    at = {name: next(v - address + offset for offset, address, size in segments if address <= v < address + size) for name, v in found.items()}
    return [name for name, offset in at.items() if image[offset:offset + 4] != JUMP_TARGET]


def other_flags(path):
    """Command lines of gcc in the debugging information that lack a flag; None where there is none (stripped, clang)."""
    lines = re.findall(r"GNU C\d+ .*", readelf(path, "-p", ".debug_str"))
    return [line for line in lines if any(flag not in line for flag in FLAGS)] if lines else None


def faults(path):
    """What a file lacks, and what could not be looked at."""
    headers, dynamic, imports = readelf(path, "-l"), readelf(path, "-d"), set(re.findall(r"UND (\w+)", readelf(path, "--dyn-syms")))
    sanitized = any(re.match(r"__(asan|tsan|ubsan)_", name) for name in imports)
    lacks, skipped = [], []
    if not (re.search(r"FLAGS_1.*\bPIE\b", dynamic) if path.suffix != ".so" else "type is DYN" in headers):
        lacks.append("it is not position-independent")
    if not re.search(r"GNU_STACK .* RW +0x", headers):
        lacks.append("its stack is executable")
    if "GNU_RELRO" not in headers or "BIND_NOW" not in dynamic:
        lacks.append("relocations stay writable (-z relro, -z now)")
    if "__stack_chk_fail" not in imports:
        lacks.append("stacks are not guarded (-fstack-protector-strong)")
    if sanitized:
        skipped.append("_FORTIFY_SOURCE beside sanitizers")
    elif not any(re.fullmatch(r"__\w+_chk", name) for name in imports):
        lacks.append("calls of libc are not bounded (_FORTIFY_SOURCE)")
    if X86:
        bare = unmarked(path)
        if bare is None:
            skipped.append("no names of functions in it")
        lacks += [f"{len(bare)} functions are no marked jump targets (-fcf-protection), as {bare[0]}"] if bare else []
    else:
        skipped.append("-fcf-protection is x86's")
    others = other_flags(path)
    if others is None:
        skipped.append("no command lines of gcc in it")
    lacks += [f"an object lacks a flag of {' '.join(FLAGS)}: {line}" for line in others or []]
    return lacks, skipped


def compiled(source, cflags):
    """The command that make would run for an object."""
    with tempfile.TemporaryDirectory() as build:
        env = {name: value for name, value in os.environ.items() if name not in ("BUILD", "MAKEFLAGS", "SAN", "HARDEN", "DEBUG")}
        target = f"{build}/obj/{source.removesuffix('.c')}.o"
        done = command("make", "-C", SOURCE, "-n", "V=1", f"BUILD={build}", f"CFLAGS={cflags}", target, env=env)
        return next((line for line in done.out.splitlines() if line.endswith(f"-o {target} {source}")), repr(done))


def users_flags():
    """What a command lacks, whatever CFLAGS a user gives."""
    kernel, other = "worker/device/cpu/gemm.c", "daemon/listeners.c"
    vector = ["-fopenmp", "-ffp-contract=fast", *["-mprefer-vector-width=512"] * X86]
    wanted = [(kernel, "-O2", [*FLAGS, *vector, "-O3", "-D_FORTIFY_SOURCE="]), (other, "-O2", [*FLAGS, "-D_FORTIFY_SOURCE="]),
              (other, "-O0", FLAGS), (other, "-O2 -D_FORTIFY_SOURCE=1", [*FLAGS, "-D_FORTIFY_SOURCE=1"])]
    for source, cflags, flags in wanted:
        line = compiled(source, cflags)
        yield from (f"{source} with CFLAGS='{cflags}' lacks {flag}: {line}" for flag in flags if flag not in line)
        if line.count("-D_FORTIFY_SOURCE") != sum("FORTIFY" in flag for flag in flags):
            yield f"{source} with CFLAGS='{cflags}': {line}"


def main():
    print(f"1..{len(FILES) + 1}")
    failed = False
    for n, path in enumerate(FILES, 1):
        lacks, skipped = faults(path)
        failed |= bool(lacks)
        print(f"{'not ok' if lacks else 'ok'} {n} - {path.name} is hardened")
        for line in lacks:
            print(f"# {path}: {line[:400]}")
        for line in skipped:
            print(f"# not looked at: {line}")
        if lacks and PREFIX == BUILD:
            print("# an object of a Makefile of before? make clean")
    wrong = list(users_flags())
    print(f"{'not ok' if wrong else 'ok'} {len(FILES) + 1} - CFLAGS of a user leave hardening and the kernels' vectors")
    for line in wrong:
        print(f"# {line}")
    return failed or bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
