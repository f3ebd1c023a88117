#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The tests that a change can touch, nearest first.

    changed.py [--against REV] [--build build] [FILE...]

Without FILEs: what differs from the commit REV (HEAD), with what git does not track yet. Tests stand on standard output, one a
line; what is left out, and why, on standard error. tests/run.py calls choose().

A test program is touched by a file that one of its objects was compiled from (the .d files), if the test's own object reaches
that object by its symbols: objects of its libraries that only lie beside are passed over. A script is touched by the modules,
scripts and data that it names, and theirs. Nearly every script starts the programs: product code takes those that are plainly
about the file and one that trains on two nodes, and the others are counted.
"""
import argparse
import collections
import heapq
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("base/", "proto/", "state/", "daemon/", "worker/", "ctl/")
CUDA = re.compile(r"^(worker/device/cuda|worker/comm/nccl|tests/gpu)/|\.(cu|cuh)$|^mk/cuda\.mk$")
CORPORA, TARGETS = "tests/fuzz/test_corpora.sh", "tests/fuzz/targets/"
STARTS = re.compile(r"\b(Daemon|Cluster|Hosts|BIN|FP_BIN)\b|bin/titan")
# It is opened by its name: no symbol leads there.
OPENED = {"worker/device/device": "worker/device/cpu/"}
EXAMPLES = ("tests/support/test_changed.py", "tests/support/test_run.py", "tests/mutants/test_mutants.py")  # they name files and read none
API, HANDLER = "daemon/api/", re.compile(r"\bMETHOD\((\w+), \w+, \w+, (\w+)")
COMMAND = re.compile(r'^const struct command \w+ = \{\s*\.name = "([\w-]+)"', re.M)  # of titanctl, or what it has titan-worker do
KEY = re.compile(r'KEY\((?:[\w.]+, )?(\w+_\w+), [A-Z]')  # of run files, in base/recipe_keys.c
SETTING = re.compile(r'^    [A-Z]+\("(\w+)", "(\w+_\w+)"', re.M)  # of titand's file, in daemon/config.c
# May the caller do that? Every method asks, and no command has a name for it.
RIGHTS = re.compile(r"daemon/(auth/|api/access\.c|coordinator/shell/enrol\.c)")
OF_RIGHTS = ("tests/security/test_held.py", "tests/security/test_users.py", "tests/tls/test_tls.py")
SKIP = re.compile(r"^tests/(fuzz/corpus|interop/torchtitan|gpu/measured)/")
ALLOCATED, RELOCATIONS, SYMBOLS = 2, 4, 2  # SHF_ALLOC, SHT_RELA, SHT_SYMTAB


# --- objects ---------------------------------------------------------------------------------------------------------

def read_object(path):
    """(global symbol -> its section, section -> the sections and undefined symbols that it refers to) of a 64-bit ELF object"""
    data = path.read_bytes()
    at, = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, at + i * size) for i in range(count)]
    symtab = next((s for s in sections if s[1] == SYMBOLS), None)
    if not symtab:
        return {}, {}
    begin = sections[symtab[6]][4]

    def name(n):
        return data[begin + n:data.index(0, begin + n)].decode()

    symbols = [(n, info >> 4, section) for n, info, _, section, _, _ in
               struct.iter_unpack("<IBBHQQ", data[symtab[4]:symtab[4] + symtab[5]])]
    defined = {name(n): section for n, bind, section in symbols if 0 < section < 0xff00 and bind}
    refers = collections.defaultdict(set)
    for s in sections:
        if s[1] == RELOCATIONS and sections[s[7]][2] & ALLOCATED:
            for _, info, _ in struct.iter_unpack("<QQq", data[s[4]:s[4] + s[5]]):
                n, _, section = symbols[info >> 32]
                if section != s[7]:
                    refers[s[7]].add(section if 0 < section < 0xff00 else name(n))
    return defined, refers


def resolves(user, owner):
    """May a symbol that the object `user` lacks be the one that `owner` has? A product's never is a test's."""
    if not owner.startswith("tests/"):
        return True
    folder = os.path.dirname(owner)
    return user.startswith("tests/") and not owner.split("/")[-1].startswith("test_") and \
        (folder == "tests/support" or user.startswith(folder + "/")) and not folder.endswith("/targets")


class Objects:
    """What a build has compiled, and which section refers to which."""

    def __init__(self, build):
        self.root = Path(build) / "obj"
        self.depends = None
        read = {str(f.relative_to(self.root))[:-2]: read_object(f) for f in self.root.rglob("*.o")}
        owners = collections.defaultdict(list)
        self.nodes = {o: {*defined.values(), *refers} for o, (defined, refers) in read.items()}
        for o, (defined, _) in read.items():
            for symbol, section in defined.items():
                owners[symbol].append((o, section))
        self.users = collections.defaultdict(list)
        for o, (_, refers) in read.items():
            for section, names in refers.items():
                for name in names:
                    found = [(o, name)] if isinstance(name, int) else [k for k in owners[name] if resolves(o, k[0])]
                    for k in found:
                        self.users[k].append((o, section))
                        self.nodes[k[0]].add(k[1])
        for opener, folder in OPENED.items():
            for o in read:
                if o.startswith(folder):
                    for section in self.nodes[o]:
                        self.users[o, section] += [(opener, s) for s in self.nodes.get(opener, ())]

    def compiled_from(self, path):
        """The objects that the file was compiled into"""
        if self.depends is None:
            self.depends = collections.defaultdict(list)
            for d in self.root.rglob("*.d"):
                for name in set(re.split(r"[\s:\\]+", d.read_text())):
                    self.depends[name].append(str(d.relative_to(self.root))[:-2])
        return self.depends[path]

    def reaching(self, seeds):
        """object -> how many references it is from the seeds (object -> distance to begin with)"""
        distance, nearest = {}, dict(seeds)
        heap = sorted((d, o, section) for o, d in seeds.items() for section in self.nodes.get(o, ()))
        while heap:
            d, o, section = heapq.heappop(heap)
            if (o, section) not in distance:
                distance[o, section] = d
                nearest[o] = min(nearest.get(o, d), d)
                for user in self.users.get((o, section), ()):
                    heapq.heappush(heap, (d + 1, *user))
        return nearest


# --- scripts ---------------------------------------------------------------------------------------------------------

IMPORT = re.compile(r"^\s*(?:import|from)\s+(\w+)|\b__import__\(\"(\w+)\"\)", re.M)
WORD = re.compile(r"[\w.-]+")


class Texts:
    """The files below tests/ that name others of the tree: scripts, their modules, and the sources of test programs."""

    def __init__(self):
        listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
        self.files = [f for f in listed if f and (ROOT / f).is_file()]
        self.text = {f: (ROOT / f).read_text(errors="replace") for f in self.files
                     if f.startswith("tests/") and f.endswith((".py", ".sh", ".c", ".h")) and not SKIP.match(f)}
        for f in EXAMPLES:
            self.text[f] = "\n".join(m[0] for m in IMPORT.finditer(self.text.get(f, "")))
        self.code = {}
        self.words = {f: set(WORD.findall(text)) for f, text in self.text.items()}
        modules = {f.split("/")[-1][:-3]: f for f in self.text if f.endswith(".py")}
        by_name = collections.defaultdict(list)
        for f in self.text:
            by_name[f.split("/")[-1]].append(f)
        self.users = collections.defaultdict(set)  # of a module, a script or a test's data: what names it
        for f, text in self.text.items():
            for m in IMPORT.finditer(text) if f.endswith(".py") else ():
                if (m[1] or m[2]) in modules:
                    self.users[modules[m[1] or m[2]]].add(f)
            for word in self.words[f] & by_name.keys():
                for g in by_name[word]:
                    near = len(by_name[word]) == 1 or os.path.dirname(f) == os.path.dirname(g)
                    if g != f and not g.endswith((".c", ".h")) and self.in_code(f, word if near else g):
                        self.users[g].add(f)

    def in_code(self, f, name):
        """Does the file name it where it is used, not in a comment alone?"""
        if f not in self.code:
            comment = r'#[^\n]*|""".*?"""' if f.endswith((".py", ".sh")) else r"//[^\n]*|/\*.*?\*/"
            self.code[f] = re.sub(comment, "", self.text[f], flags=re.S)
        return re.search(r"(?<![\w.-])" + re.escape(name) + r"(?![\w-])", self.code[f]) is not None

    def readers(self, path):
        """The files that read one: itself where it is a script; a source below tests/ by what it is built as, data by its name
        or else by its folder's"""
        if path in self.text and not path.endswith((".c", ".h")):
            return {path}
        if path.endswith((".c", ".h")):
            return {f for f, text in self.text.items() if f != path and re.search(re.escape(path[:-2]) + r'(\.so)?["\s]', text)}
        if path.startswith("tests/fuzz/corpus/"):
            return {f"{TARGETS}{re.split('[/.]', path)[3]}.c"}
        name, folder = os.path.basename(path), os.path.dirname(path)
        found = {f for f in self.text if f != path and name in self.words[f] and self.in_code(f, name)}
        if path.startswith("recipes/"):
            stem, whole = f'"{stem_of(path)}"', re.compile(r'/recipes"\)|recipes/\*')
            found |= {f for f, text in self.text.items() if (stem in text and not f.endswith((".c", ".h"))) or whole.search(text)}
        if path.endswith(".md"):
            found |= {f for f, text in self.text.items() if f.startswith("tests/docs/") and re.search(r'docs/(\[\^/\])?\*|\*\.md"', text)}
        while not found and folder not in ("", "tests"):
            found = {f for f in self.text if self.in_code(f, folder) or
                     (folder.startswith(os.path.dirname(f)) and f'"{folder.split("/")[-1]}' in self.text[f])}
            folder = os.path.dirname(folder)
        return found

    def reaching(self, files):
        """file -> how many names it is from one of the files"""
        distance = dict.fromkeys(files, 0)
        queue = collections.deque(files)
        while queue:
            f = queue.popleft()
            for user in sorted(self.users[f]):
                if user not in distance:
                    distance[user] = distance[f] + 1
                    queue.append(user)
        return distance


# --- selection -------------------------------------------------------------------------------------------------------

OWN, MIRRORED, OTHER, ABOUT, WHOLE = range(5)  # how near a test is, before its distance counts
TRAINS = "tests/fault/test_two_nodes.py"  # all programs, a run, its end, in seconds


class Tree:
    """The sources and one build of them."""

    def __init__(self, build):
        self.build = str(build).rstrip("/")
        self.objects = Objects(ROOT / self.build)
        self.texts = Texts()
        self.tests = [f for f in self.texts.text if is_test(f)]
        self.scripts = [f for f in self.tests if not f.endswith(".c")]
        self.of_runs = [f for f in self.scripts if not f.startswith(("tests/docs/", "tests/cuda/"))]

    def programs(self, path):
        """source of a test program or fuzz target -> its distance from the path"""
        compiled = path
        if path.endswith(".proto"):
            compiled = f"{self.build}/gen/{path[len('proto/'):-len('.proto')]}.pb-c.h"
        elif not path.endswith((".c", ".h")) and path.startswith(PRODUCT):  # the assembler takes it in
            compiled = next((str(f.relative_to(ROOT)) for f in (ROOT / path).parent.glob("*.c") if f'"{path}"' in f.read_text()), path)
        stem = os.path.splitext(compiled)[0]
        seeds = {o: 0 if compiled.endswith(".c") or o == stem else 1 for o in self.objects.compiled_from(compiled)}
        return {f"{o}.c": d for o, d in self.objects.reaching(seeds).items() if is_test(f"{o}.c") or f"{o}.c".startswith(TARGETS)}

    def about(self, path):
        """The scripts that are plainly about a file of the product: they have its name, or name it or its failpoints"""
        name, text = os.path.basename(path), (ROOT / path).read_text(errors="replace") if (ROOT / path).exists() else ""
        points = set(re.findall(r'\bfailpoint\("([\w.]+)"', text))
        return [f for f in self.scripts if not f.startswith("tests/docs/") and
                (stem_of(f) == f"test_{stem_of(path)}" or points & self.texts.words[f] or self.texts.in_code(f, path) or
                 (name != "main.c" and self.texts.in_code(f, name)))]

    def calling(self, commands, method=None):
        """The scripts that call commands of titanctl, or a method of the API by its name: those that do so most often first"""
        weights = {rf"\b{method}\b": 1} if method else {}
        if commands:
            weights[rf'(?<!\[)"({"|".join(commands)})"'] = 1
        if commands and method:  # JoinNode is "node", "join" and not "node" alone
            weights[rf'"({"|".join(commands)})", "({"|".join(re.findall("[A-Z][a-z]+", method)).lower()})s?"'] = 10
        count = {f: sum(n * len(re.findall(pattern, self.texts.text[f])) for pattern, n in weights.items()) for f in self.of_runs}
        return sorted((f for f, n in count.items() if n), key=lambda f: (-count[f], f))

    def methods(self, path):
        """The API's methods that are handled in a file of daemon/api; where none is, in those that call it"""
        table = HANDLER.findall((ROOT / API / "api.c").read_text())
        users = sorted(f"{o}.c" for o, d in self.objects.reaching({path[:-2]: 0}).items() if d == 1 and o.startswith(API))
        for files in [path], users:
            found = [m for f in files for m, handler in table if re.search(rf"^void {handler}\(", (ROOT / f).read_text(), re.M)]
            if found:
                return found
        return []

    def callers(self, path):
        """Three scripts: those that call a command of titanctl most often, or that come first or second for a method of the API"""
        if RIGHTS.match(path):
            return OF_RIGHTS
        if not path.endswith(".c") or not (ROOT / path).exists():
            return []
        if path.startswith(("ctl/", "worker/")):
            return self.calling(COMMAND.findall((ROOT / path).read_text()))[:3]
        texts = [(ROOT / f).read_text() for f in self.texts.files if f.startswith("ctl/") and f.endswith(".c")]
        places = collections.Counter()
        for method in self.methods(path) if path.startswith(API) else ():
            scripts = self.calling([c for t in texts if f'METHOD("{method}")' in t for c in COMMAND.findall(t)], method)
            places.update(dict(zip(scripts, (2, 1))))
        return sorted(places, key=lambda f: (-places[f], f))[:3]

    def readers_of_keys(self, path):
        """Two scripts: those that set most of the keys of run files that a worker's file reads, of such that three scripts set at most"""
        if path.startswith("daemon/"):
            return self.setters_of_settings(path)
        if not path.startswith("worker/") or not (ROOT / path).exists():
            return []
        members = set(re.findall(r"[.>](\w+)", (ROOT / path).read_text(errors="replace")))
        count = collections.Counter()
        for key in members.intersection(KEY.findall((ROOT / "base/recipe_keys.c").read_text())):
            set_by = [f for f in self.of_runs if re.search(rf"(\b|_){key}\b", self.texts.text[f])]
            count.update(set_by if len(set_by) <= 3 else [])
        return sorted(count, key=lambda f: (-count[f], f))[:2]

    def setters_of_settings(self, path):
        """The same for the keys of titand's file that a file of the daemon, or its header, names as limits.user_disk_mb"""
        near = [ROOT / path, (ROOT / path).with_suffix(".h")]
        text = "\n".join(f.read_text(errors="replace") for f in near if f.exists())
        count = collections.Counter()
        for section, name in SETTING.findall((ROOT / "daemon/config.c").read_text()):
            if path != "daemon/config.c" and re.search(rf"(?<![.>\w]){section}\.{name}\b", text):
                set_by = [f for f in self.of_runs if re.search(rf"\b{name}\b", self.texts.text[f])]
                count.update(set_by if len(set_by) <= 3 else [])
        return sorted(count, key=lambda f: (-count[f], f))[:2]

    def nearest_scripts(self, path):
        """For what no test program reaches: the scripts that name its subject most often, or its folder's, or its program's"""
        folders = path.split("/")[:-1]
        scripts = [f for f in self.scripts if STARTS.search(self.texts.text[f]) and not f.startswith("tests/docs/")]
        subject = {f: self.texts.text[f].count(f'"{stem_of(path)}"') for f in scripts if stem_of(path) != "main"}
        named = sorted((f for f, n in subject.items() if n), key=lambda f: (-subject[f], f))
        program = {"daemon": "titand", "ctl": "titanctl"}.get(folders[0], "worker")
        return named[:3] or [f for f in scripts if len(folders) > 1 and f.startswith(f"tests/{folders[-1]}/")] or \
            [f for f in scripts if re.search(rf"/test_(\w+_)?{program}(_\w+)?\.", f)]

    def touched(self, path):
        """test or fuzz target -> its key: the least is the nearest"""
        keys = {}
        folder = mirrored(os.path.dirname(path))

        def take(test, rank, distance):
            if test == path or stem_of(test) == f"test_{stem_of(path)}":
                rank = OWN
            elif folder and test.startswith(folder) and rank == OTHER:
                rank = MIRRORED
            keys[test] = min(keys.get(test, (rank, distance, test)), (rank, distance, test))

        for test, distance in self.programs(path).items():
            take(test, OTHER, distance)
        if path.startswith(PRODUCT):
            for test in self.tests:
                if folder and test.startswith(folder) and stem_of(test) == f"test_{stem_of(path)}":
                    take(test, OWN, 0)
            found = {*self.about(path), *self.callers(path)} or ([] if keys or CUDA.search(path) else self.nearest_scripts(path))
            for test in {*found, *self.readers_of_keys(path)}:
                take(test, ABOUT, 0)
            if not CUDA.search(path):
                take(TRAINS, WHOLE, 0)
        else:
            for test, distance in self.texts.reaching(self.texts.readers(path)).items():
                if is_test(test) or test.startswith(TARGETS):
                    take(test, OTHER, distance)
        for folder in ("tests/cuda/",) if CUDA.search(path) else (f"tests/{path.split('/')[0]}/",) if path.startswith(("deploy/", "systemd/")) else ():
            for test in self.tests:
                if test.startswith(folder):
                    take(test, OTHER, 0)
        return keys

    def select(self, paths):
        """(tests and fuzz targets by their sources, nearest first; notes)"""
        keys, notes = {}, []
        for path in paths:
            found = self.touched(path)
            for test, key in found.items():
                keys[test] = min(keys.get(test, key), key)
            if path == "Makefile" or path.startswith("mk/"):
                notes.append(f"{path}: what it says of the build can touch every test; here are those that name it, the others are left to `make test`")
            elif not found:
                notes.append(f"{path}: no test reads it or is compiled from it")
        if any(p.startswith(PRODUCT) for p in paths):
            left = [f for f in self.scripts if f not in keys]
            gates = sum(f.startswith("tests/docs/") for f in left)
            starts = sum(STARTS.search(self.texts.text[f]) is not None for f in left if not f.startswith("tests/docs/"))
            notes.append(f"left to `make test`: {starts} scripts that start the programs, {gates} in tests/docs that read all sources")
        return sorted(keys, key=keys.get), notes

    def built(self, source):
        """The program or script to run for a test's source"""
        if source.startswith(TARGETS):
            return f"{self.build}/tests/fuzz/replay/{stem_of(source)}"
        return f"{self.build}/{source[:-2]}" if source.endswith(".c") else source

    def targets(self, sources):
        """What make builds for them"""
        found = [self.built(f) for f in sources if f.endswith(".c")]
        if CORPORA in sources:
            found += [self.built(f) for f in self.texts.text if f.startswith(TARGETS)]
        if any(not f.endswith(".c") and f != CORPORA for f in sources):
            found += ["all", *(f"{self.build}/{p}" for p in ("fp/bin/titand", "fp/bin/titan-worker", "tests/fault/wire", "tests/fault/shim.so"))]
        return found


def is_test(path):
    return re.match(r"tests/(?:.*/)?test_[^/]*\.(c|py|sh)$", path) is not None


def stem_of(path):
    return os.path.splitext(os.path.basename(path))[0]


def mirrored(folder):
    """The folder of unit tests for a folder of the product, or for the nearest one above; with its slash"""
    while folder.startswith(PRODUCT) or f"{folder}/" in PRODUCT:
        if (ROOT / "tests/unit" / folder).is_dir():
            return f"tests/unit/{folder}/"
        folder = os.path.dirname(folder)
    return None


def git(*words):
    return subprocess.run(["git", "-c", "safe.directory=*", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def changed_paths(against="HEAD"):
    """What the working tree has otherwise than a commit: changed, new, gone"""
    changed = git("diff", "--name-only", "--no-renames", "-z", against, "--").split("\0")
    new = git("ls-files", "-z", "--others", "--exclude-standard").split("\0")
    return sorted({p for p in changed + new if p})


def as_run(tree, sources):
    """As the runner has them: one script replays all corpora"""
    return list(dict.fromkeys(CORPORA if f.startswith(TARGETS) else tree.built(f) for f in sources))


def choose(paths, build="build"):
    """(tests as the runner has them, nearest first; what make builds for them; notes) for these changed paths"""
    tree = Tree(build)
    sources, notes = tree.select(paths)
    tests = as_run(tree, sources)
    return tests, tree.targets(sources), [f"{len(paths)} file{'s' * (len(paths) != 1)} can touch {len(tests)} of {len(tree.tests)} tests", *notes]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--against", default="HEAD", metavar="REV")
    parser.add_argument("--build", default=os.environ.get("BUILD", "build"))
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    tests, _, notes = choose(args.files or changed_paths(args.against), args.build)
    print("".join(f"{note}\n" for note in notes), end="", file=sys.stderr)
    print("".join(f"{t}\n" for t in tests), end="")


if __name__ == "__main__":
    main()
