#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What no program uses: each function that is defined for other files, each that a struct points to, each macro and constant, and
each member of a struct in a header is used somewhere but in tests. KEPT, KEPT_MEMBERS and KEPT_NAMES are for tests, on purpose."""
import collections
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("base", "proto", "state", "daemon", "ctl", "worker")
KEPT = {
    # What a test holds something against.
    "schedule_makespan": "what a schedule takes, by plain definition",
    "schedule_bubble": "the formula of a schedule's author",
    "schedule_in_flight": "the microbatches that a rank has under way, by plain definition",
    "schedule_print": "what is printed reads as the same schedule",
    "whole_model_init": "the whole model on one rank, with a run's initial weights",
    "whole_model_set_biases": "the same with biases of a router",
    "whole_model_set_expert_capacity": "the same with rows that are dropped",
    "whole_model_loss": "its loss and gradients",
    "whole_model_mtp_loss": "the same of modules of multi-token prediction",
    "crc32c_portable": "the checksum without the processor's instruction",
    "pki_key_hash": "the hash of a key, which a request for a certificate has too",
    "sm_valid": "each table of states is sound",
    # How tests and the simulation look into what they run, and what they put in its way.
    "change_apply": "a change of the store alone",
    "progress_actions": "",
    "checkpoint_unfinished_path": "",
    "safetensors_open": "a file by its path",
    "state_snapshot": "a state as fp32",
    "failpoint_set": "",
    "failpoint_on_call": "",
    "recipe_print_reference": "the reference of keys in docs/recipes.md",
    "titan_device_plugin": "found by name in a plug-in that was opened",
    "titan_replica_plugin": "the same",
}
KEPT_MEMBERS = {
    "device_ops.stream_native": "a benchmark's events and a probe's kernels, on the device's own stream",
}
KEPT_NAMES = {
    "API_PAGE_MAX": "no answer has more",
    "NVML_NAME_SIZE": "a library in NVIDIA's place",
    "SQLITE_ENABLE_PREUPDATE_HOOK": "read by sqlite3.h",
    "SQLITE_ENABLE_SESSION": "read by sqlite3.h",
}
BARE = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)+\'|//[^\n]*|/\*.*?\*/', re.S)
DEFINITION = re.compile(r"^(?!static|typedef|extern|return|else|#)[A-Za-z_][\w \t*]*?[ *](\w+)\((?:[^;{}()]|\([^()]*\))*\)\s*\{", re.M)
WORD = re.compile(r"[A-Za-z_]\w*")


def pasted(files):
    """Whether a name is one that a macro makes of two (X(name) ... cuda_ops_##name)."""
    joined = {m for text in files.values() for m in re.findall(r"\b(\w+_)##", text)} | {"##" + m for text in files.values() for m in re.findall(r"##(_\w+)", text)}
    return lambda f: any(f.startswith(j) for j in joined if j[0] != "#") or any(f.endswith(j[2:]) for j in joined if j[0] == "#")


def unused(files):
    """{function: file} of {path: text}: defined there for others, named nowhere else but where it is declared."""
    defined, named = {}, collections.Counter()
    for path, text in files.items():
        text = BARE.sub(" ", text)
        words = collections.Counter(WORD.findall(text))
        if not path.endswith((".h", ".cuh")):
            for function in DEFINITION.findall(text):
                defined[function] = path
                words[function] -= 1
        else:  # a declaration is no use; an inline function's or a macro's is
            for function in re.findall(r"^[A-Za-z_][\w \t*]*?[ *](\w+)\((?:[^;{}()]|\([^()]*\))*\)[^;{}()]*(?:\([^()]*\))*\s*[\w\s]*;", text, re.M):
                words[function] -= 1
        named += words
    made = pasted(files)
    return {f: path for f, path in sorted(defined.items()) if named[f] <= 0 and f != "main" and not made(f)}


STRUCT = re.compile(r"struct\s+(\w+)\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
POINTER = re.compile(r"\(\*(\w+)\)\s*\(")
READ = re.compile(r"(?:->|(?<=[\w\])])\.)(\w+)\b(?!\s*=[^=])")  # x->f(), x.f passed on; neither x->f = g nor {.f = g}


def unused_members(files):
    """{struct.member: file} of {path: text}: pointers to functions that are set at most, never called or passed on."""
    members, read = {}, set()
    for path, text in files.items():
        text = BARE.sub(" ", text)
        members.update({(struct, name): path for struct, body in STRUCT.findall(text) for name in POINTER.findall(body)})
        read.update(READ.findall(text))
    return {f"{struct}.{name}": path for (struct, name), path in sorted(members.items()) if name not in read}


def unused_names(files):
    """{name: file} of {path: text}: macros, constants of an enum without a name, members of a header's structs, named nowhere else."""
    defined, named, made = collections.defaultdict(list), collections.Counter(), pasted(files)
    for path, text in files.items():
        text = BARE.sub(" ", text)
        named.update(WORD.findall(text))
        names = re.findall(r"^#define (\w+)", text, re.M) + [n for body in re.findall(r"\benum \{([^{}]*)\}", text) for n in re.findall(r"(\w+) =", body)]
        for _, body in STRUCT.findall(text) if path.endswith((".h", ".cuh")) else ():
            names += re.findall(r"(\w+)(?:\[[^\]]*\])*(?=\s*[,;])", re.sub(r"\([^()]*\)", "", body))
        for name in names:
            defined[name].append(path)
    return {n: paths[0] for n, paths in sorted(defined.items()) if named[n] <= len(paths) and not made(n)}


def main():
    print("1..7")
    found = unused({"a.h": "int used(int x);\nint spare(void);\n/* spare() */\n", "a.c": 'int used(int x)\n{\n    return x;\n}\nint spare(void)\n{\n    say("spare()");\n}\n',
                    "b.c": "int main(void)\n{\n    return used(1);\n}\n"}) == {"spare": "a.c"}
    print(f"{'ok' if found else 'not ok'} 1 - a function that only its own declaration, a comment or a string names is found")
    table = {"a.h": "struct x_ops {\n    int (*go)(int x);\n    void (*spare)(void); /* o->spare() */\n    int (*passed)(void);\n};\n",
             "a.c": "const struct x_ops x = {.go = go, .spare = spare};\nint run(const struct x_ops *o)\n{\n    o->spare = NULL;\n    return o->go(1) + call(o->passed);\n}\n"}
    found_member = unused_members(table) == {"x_ops.spare": "a.h"}
    print(f"{'ok' if found_member else 'not ok'} 2 - a member of a struct that is only set is found, one that is called or passed on is not")
    plain = {"a.h": "#ifndef A_H\n#define A_H\n#define SPARE 17 /* SPARE */\nenum { SIZE = 3, TAIL = 4 };\nstruct x {\n    int used[SIZE], spare[SIZE];\n    int (*go)(int n);\n};\n",
             "a.c": "int run(struct x *x)\n{\n    return x->go(x->used[0]);\n}\n"}
    found_name = set(unused_names(plain)) == {"SPARE", "TAIL", "spare"}
    print(f"{'ok' if found_name else 'not ok'} 3 - a macro, a constant and a member that only their definitions name are found")
    files = {str(f.relative_to(ROOT)): f.read_text() for folder in FOLDERS for f in (ROOT / folder).rglob("*") if f.suffix in (".c", ".h", ".cu", ".cuh", ".def")}
    wrong = unused(files)
    left = {f: path for f, path in wrong.items() if f not in KEPT}
    print(f"{'not ok' if left else 'ok'} 4 - a program uses every function that is there for other files")
    for function, path in left.items():
        print(f"# {path}: {function}(): nothing but tests, if these, uses it")
    members = unused_members(files)
    left_members = {m: path for m, path in members.items() if m not in KEPT_MEMBERS}
    print(f"{'not ok' if left_members else 'ok'} 5 - a program calls every function that a struct points to")
    for member, path in left_members.items():
        print(f"# {path}: {member}: nothing but tests, if these, calls it")
    names = unused_names(files)
    left_names = {n: path for n, path in names.items() if n not in KEPT_NAMES}
    print(f"{'not ok' if left_names else 'ok'} 6 - a program uses every macro, constant and member of a header's struct")
    for name, path in left_names.items():
        print(f"# {path}: {name}: nothing but tests, if these, names it")
    stale = [n for kept, found_now in ((KEPT, wrong), (KEPT_MEMBERS, members), (KEPT_NAMES, names)) for n in sorted(set(kept) - set(found_now))]
    print(f"{'not ok' if stale else 'ok'} 7 - those that are kept for tests are there, and used by nothing else: {', '.join(stale) or len(KEPT) + len(KEPT_MEMBERS) + len(KEPT_NAMES)}")
    return bool(left or left_members or left_names or stale) or not (found and found_member and found_name)


if __name__ == "__main__":
    sys.exit(main())
