#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Changes one operator, bound or constant of the product at a time and says which changes no test notices (`make mutants`).

    run_mutants.py [--build build] [--seed N] [--only FILE] [--sanitizers] [--again REPORT] [N]

Places are drawn evenly over the lines of the product. Each mutant is compiled in a copy of the tree, BUILD/mutants/tree; what does not
compile, or compiles to the same code, is drawn anew. Then the tests that `make test CHANGED=1` would choose are linked and run,
the nearest first, until one fails: a test that does is run once without the mutant, whether it passes then. It has ten times as long
as it has needed before; a mutant that hangs is noticed.
With --sanitizers, what none of them notices is built with sanitizers and run once more, as `make check` has it.
With --again, the mutants are those of an earlier report.json: what was noticed is taken over, and the others are tried with the
tests of now. Where the sources lack a mutant's line by now, another one is drawn.

equivalent.txt names mutants that change nothing. report.json and survivors.txt stand in BUILD/mutants.
"""
import argparse
import concurrent.futures
import fcntl
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import changed  # noqa: E402
import sites  # noqa: E402

ROOT = HERE.parents[1]
LEFT_OUT = ("worker/device/cuda/", "worker/comm/nccl/", "base/failpoint.c", "base/mutant.c")
SANITIZERS = "address,undefined"
UNKNOWN = 10  # seconds that a test is taken to need until it has passed once
GRACE = 30  # seconds that a test has beyond ten times its own: the machine may be busy
SLOTS = os.cpu_count() or 1
PROCESSES = 1000  # at most, at once: a mutant in which each child forks again would fill the machine
PIDS = Path("/sys/fs/cgroup/pids")  # the limit of a user's processes does not hold for root
LONGEST = 1200  # seconds for one without a mutant, as of `make test`
NOT_OK = re.compile(r"^\s*not ok (?!.*# *skip).*", re.I | re.M)
SAYS = re.compile(r"^.*(?:: runtime error:|ERROR: \w+Sanitizer|assertion).*", re.M)
STOP = threading.Event()


# --- what is known ---------------------------------------------------------------------------------------------------

def product_files(only=None):
    listed = changed.git("ls-files", "*.c").split()
    files = [f for f in listed if f.startswith(changed.PRODUCT) and not f.startswith(LEFT_OUT)]
    chosen = [f for f in files if not only or f == only or os.path.basename(f) == only or f.startswith(only.rstrip("/") + "/")]
    if not chosen:
        sys.exit(f"run_mutants.py: no source of the product is {only}: give a file as base/toml.c, or a folder")
    return chosen


def read_equivalent(text):
    """(file, line before, line after) -> why nothing changes"""
    found, entry = {}, {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        kind = line[:2] if line[:2] in ("- ", "+ ", "= ") else "@"
        entry[kind] = line[2:].strip() if kind != "@" else line.strip()
        if kind == "= ":
            if set(entry) != {"@", "- ", "+ ", "= "}:
                raise ValueError(f"equivalent.txt:{number}: an entry is a file, '- ' and the line, '+ ' and the mutant, '= ' and the reason")
            found[entry["@"], entry["- "], entry["+ "]] = entry["= "]
            entry = {"@": entry["@"]}
    return found


class Mutant:
    def __init__(self, path, text, site):
        self.path, self.site, self.text = path, site, site.applied(text)
        number = site.line - 1
        self.before, self.after = text.splitlines()[number].strip(), self.text.splitlines()[number].strip()
        self.place = f"{path}:{site.line}"
        self.change = f"{text[site.begin:site.end]} -> {site.after}"


def find(texts, earlier):
    """The mutant of an earlier report in these sources, nearest to where it was; None where its line is no more"""
    path, line = earlier["place"].rsplit(":", 1)
    text = texts.get(path, "")
    same = [s for s in sites.sites(text) if f"{text[s.begin:s.end]} -> {s.after}" == earlier["change"]]
    found = [m for m in (Mutant(path, text, s) for s in same) if (m.before, m.after) == (earlier["before"], earlier["after"])]
    return min(found, key=lambda m: abs(m.site.line - int(line)), default=None)


def draw(files, texts, share, rng):
    """A mutant at the place nearest to a line of the share [a, b) of all lines; None where its file has no place"""
    at = rng.uniform(*share) * sum(t.count("\n") for t in texts.values())
    for path in files:
        lines = texts[path].count("\n")
        if at < lines:
            break
        at -= lines
    found = sites.sites(texts[path])
    if not found:
        return None
    line = min((s.line for s in found), key=lambda n: (abs(n - at), n))
    return Mutant(path, texts[path], rng.choice([s for s in found if s.line == line]))


# --- a copy of the tree and its builds -------------------------------------------------------------------------------

def synchronise(tree, build):
    """Make the copy what the working tree is; only files that differ get a new time. What the working tree has built the copy begins
    with, except for tests that have the tree's path compiled in."""
    first = not tree.exists()
    wanted = {f for f in changed.git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0") if f and (ROOT / f).is_file()}
    for f in wanted:
        source, copy = ROOT / f, tree / f
        if not copy.is_file() or source.read_bytes() != copy.read_bytes() or source.stat().st_mode != copy.stat().st_mode:
            copy.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copy2 if first else shutil.copy)(source, copy)
    for f in tree.rglob("*"):
        name = str(f.relative_to(tree))
        if f.is_file() and name not in wanted and not name.startswith("build/"):
            f.unlink()
    if first and (build / "obj/tests").is_dir():
        for part in ("gen", "obj"):
            shutil.copytree(build / part, tree / "build" / part, copy_function=shutil.copy2)
        for o in (tree / "build/obj/tests").rglob("*.o"):
            source = ROOT / o.relative_to(tree / "build/obj").with_suffix(".c")
            if not source.is_file() or re.search(r"TITAN_(SOURCE|BUILD)_DIR", source.read_text()):
                o.unlink()


class Build:
    """One build of the copy: plain, or with sanitizers"""

    def __init__(self, tree, sanitizers=None):
        self.tree, self.sanitizers = tree, sanitizers
        self.folder = f"build/san-{sanitizers.replace(',', '-')}" if sanitizers else "build"
        self.chosen = None
        self.seconds = {}  # test -> the longest that it took when it passed
        self.sound, self.broken = set(), {}  # tests that pass without a mutant, and how others fail, where one has failed with one

    def make(self, *targets):
        """(did it build, what it said)"""
        command = ["make", "--no-print-directory", f"-j{SLOTS}", *targets, *([f"SAN={self.sanitizers}"] if self.sanitizers else [])]
        done, out, _ = run(command, self.tree, None, {})
        return done == 0, out

    def objects(self):
        """Compile what tests are selected by; link no test"""
        tests = [f.relative_to(self.tree) for pattern in ("tests/**/test_*.c", f"{changed.TARGETS}*.c") for f in self.tree.glob(pattern)]
        corpora = [f"{self.folder}/fuzz-corpus/{f.stem}" for f in tests if str(f).startswith(changed.TARGETS)]
        ok, out = self.make("all", *corpora, *(f"{self.folder}/obj/{f.with_suffix('.o')}" for f in tests))
        if not ok:
            sys.exit(f"run_mutants.py: the tree does not build without a mutant:\n{out[-3000:]}")
        self.chosen = changed.Tree(str(self.tree / self.folder))

    def tests_of(self, path):
        """As (what to build or None, what to run), the nearest first"""
        found = []
        for source in self.chosen.select([path])[0]:
            built = self.chosen.built(source).removeprefix(f"{self.tree}/")
            if source.startswith(changed.TARGETS):
                found.append((built, (built, f"{self.folder}/fuzz-corpus/{changed.stem_of(source)}")))
            elif source.endswith(".c"):
                found.append((built, (built,)))
            elif not self.sanitizers and source != changed.CORPORA:
                found.append((None, (sys.executable if source.endswith(".py") else "bash", source)))
        return found

    def object_of(self, path):
        return self.tree / self.folder / "obj" / f"{path[:-2]}.o"

    def once(self, test, limit):
        """(None or how the test failed, seconds)"""
        code, out, took = run(test[1], self.tree, limit, {"BUILD": self.folder, "CMOCKA_MESSAGE_OUTPUT": "TAP", "TITAN_ALLOW_ROOT": "1",
                                                          "ASAN_OPTIONS": "detect_leaks=1", "PYTHON": sys.executable})
        if code is None:
            return "hangs", took
        if code == 0 and not NOT_OK.search(out):
            return None, took
        said = NOT_OK.search(out) or SAYS.search(out)
        return said[0].strip()[:120] if said else f"exit {code}", took

    def link(self, tests):
        targets = [t[0] for t in tests if t[0]]
        if any(not t[0] for t in tests):
            targets += ["all", "build/fp/bin/titand", "build/fp/bin/titan-worker", "build/tests/fault/wire", "build/tests/fault/shim.so"]
        return self.make(*targets)

    def first_failure(self, tests):
        """(test, how it fails) of the first that fails, or None. Linked a few at a time, as most mutants are noticed soon."""
        size, at = SLOTS, 0
        while at < len(tests):
            some, at, size = tests[at:at + size], at + size, min(2 * size, 16)
            ok, out = self.link(some)
            if not ok:
                return some[0], f"does not link: {out[-200:]}"
            with concurrent.futures.ThreadPoolExecutor(SLOTS) as pool:
                programs = [t for t in some if t[0]]
                results = list(zip(programs, pool.map(self.timed, programs)))
            for test in some:
                if not test[0] and not any(how for _, how in results):
                    results.append((test, self.timed(test)))
            failed = [r for r in results if r[1]]
            if failed:
                return failed[0]
        return None

    def timed(self, test):
        """None, or how the test failed"""
        if STOP.is_set():
            return "stopped"
        name = name_of(test)
        how, took = self.once(test, self.limit(name))
        if not how:
            self.seconds[name] = max(self.seconds.get(name, 0), took)
        return how

    def limit(self, name):
        return GRACE + 10 * self.seconds.get(name, UNKNOWN)

    def passes(self, test):
        """Without a mutant: a test that fails anyway is left out from now on"""
        name = name_of(test)
        if name not in self.sound:
            how, took = self.once(test, LONGEST) if self.link([test])[0] else ("does not link", 0)
            if how:
                self.broken[name] = how
                return False
            self.sound.add(name)
            self.seconds[name] = max(self.seconds.get(name, 0), took)
        return True


def name_of(test):
    return test[0] or test[1][-1]


RUNNING = set()

def run(command, folder, limit, environment):
    """(exit code or None when the limit was over, output, seconds); whatever it started ends with it"""
    begin = time.monotonic()
    own = {k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k not in ("MFLAGS", "BUILD")}  # of the make that began this
    child = subprocess.Popen(command, cwd=folder, env=own | environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, start_new_session=True, text=True, errors="replace")
    RUNNING.add(child.pid)
    try:
        out, _ = child.communicate(timeout=limit)
        code = child.returncode
    except subprocess.TimeoutExpired:
        out, code = "", None
    finally:
        end_group(child.pid)
        RUNNING.discard(child.pid)
    if code is None:
        child.communicate()
    return code, out, time.monotonic() - begin


def end_group(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def code_of(path):
    """An object without what only debuggers read"""
    stripped = path.with_suffix(".stripped")
    subprocess.run(["objcopy", "--strip-debug", path, stripped], check=True)
    return stripped.read_bytes()


def bound_processes():
    """Of this one and all that it starts; returns what takes the bound away"""
    if os.geteuid() != 0:
        resource.setrlimit(resource.RLIMIT_NPROC, (PROCESSES, PROCESSES))
        return lambda: None
    own = PIDS / f"titan-mutants-{os.getpid()}"
    try:
        own.mkdir()
        (own / "pids.max").write_text(str(PROCESSES))
        (own / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as e:
        print(f"the processes of a mutant are not bounded: {own}: {e.strerror}")
        return lambda: None

    def lift():
        (PIDS / "cgroup.procs").write_text(str(os.getpid()))
        own.rmdir()
    return lift


# --- a run -----------------------------------------------------------------------------------------------------------

class Run:
    def __init__(self, args):
        self.folder = Path(args.build).resolve() / "mutants"
        self.tree = self.folder / "tree"
        self.files = product_files(args.only)
        self.texts = {f: (ROOT / f).read_text() for f in self.files}
        self.equivalent = read_equivalent((HERE / "equivalent.txt").read_text())
        self.again = args.again
        self.rng = random.Random(args.seed)
        self.anew = {"does not compile": 0, "same code": 0, "no place": 0, "drawn before": 0}
        self.seen, self.results, self.originals = set(), [], set()
        self.begin = time.monotonic()
        self.builds = [Build(self.tree), *([Build(self.tree, SANITIZERS)] if args.sanitizers else [])]
        self.plain = self.builds[0]

    def restore(self, path, build, kept):
        """The source with its time and the object, so that no build compiles it again; other objects of it, such as those with failpoints
        or of a test that includes it, are made anew"""
        (self.tree / path).write_text(self.texts[path])
        os.utime(self.tree / path, ns=(self.times[path], self.times[path]))
        for d in (self.tree / build.folder).rglob("*.d"):
            o = d.with_suffix(".o")
            if o != build.object_of(path) and o.is_file() and path in d.read_text().split():
                o.unlink()
        build.object_of(path).write_bytes(kept)

    def original(self, path):
        """The object without a mutant, compiled here once: the user's build may have had other flags"""
        target = self.plain.object_of(path)
        if path not in self.originals:
            target.unlink()
            self.plain.make(str(target.relative_to(self.tree)))
            self.originals.add(path)
        return target.read_bytes()

    def next(self, share):
        """A mutant that compiles to other code"""
        while True:
            mutant = draw(self.files, self.texts, share, self.rng)
            key = mutant and (mutant.path, mutant.site)
            if key is None or key in self.seen:
                self.anew["no place" if key is None else "drawn before"] += 1
                share = (0, 1) if sum(self.anew.values()) > 1000 else share
                continue
            self.seen.add(key)
            kept = self.original(mutant.path)
            target = self.plain.object_of(mutant.path)
            code = code_of(target)
            (self.tree / mutant.path).write_text(mutant.text)
            ok, _ = self.plain.make(str(target.relative_to(self.tree)))
            why = "does not compile" if not ok else "same code" if code_of(target) == code else None
            self.restore(mutant.path, self.plain, kept)
            if not why:
                return mutant
            self.anew[why] += 1

    def failure(self, mutant, build):
        """(test, how it fails) of the first test of this build that notices the mutant, or None; how many there are"""
        if not build.chosen:
            build.objects()
        tests = build.tests_of(mutant.path)
        while True:
            tests = [t for t in tests if name_of(t) not in build.broken]
            kept = build.object_of(mutant.path).read_bytes()
            limits = dict(build.seconds)
            (self.tree / mutant.path).write_text(mutant.text)
            try:
                failed = build.first_failure(tests)
            finally:
                self.restore(mutant.path, build, kept)
            if not failed:
                return None, len(tests)
            if build.passes(failed[0]) and not (failed[1] == "hangs" and name_of(failed[0]) not in limits and build.limit(name_of(failed[0])) > GRACE + 10 * UNKNOWN):
                return failed, len(tests)

    def one(self, share, earlier=None):
        mutant = earlier and find(self.texts, earlier)
        if mutant and earlier["noticed_by"]:
            return {**earlier, "place": mutant.place, "taken_over": True}
        if mutant:
            self.seen.add((mutant.path, mutant.site))
            self.original(mutant.path)
        else:
            mutant = self.next(share)
        begin = time.monotonic()
        result = {"place": mutant.place, "before": mutant.before, "after": mutant.after, "change": mutant.change, "noticed_by": None}
        reason = self.equivalent.get((mutant.path, mutant.before, mutant.after))
        if reason:
            result["changes_nothing"] = reason
        for build in self.builds if not reason else ():
            failed, result["tests"] = self.failure(mutant, build)
            if failed:
                result |= {"noticed_by": name_of(failed[0]), "how": failed[1]}
                break
        result["seconds"] = round(time.monotonic() - begin, 1)
        return result

    def all(self, count):
        synchronise(self.tree, Path(self.folder).parent)
        self.times = {f: (self.tree / f).stat().st_mtime_ns for f in self.files}
        print(f"builds {self.tree} without a mutant", flush=True)
        self.plain.objects()
        for i in range(count):
            result = self.one((i / count, (i + 1) / count), self.again[i] if i < len(self.again) else None)
            self.results.append(result)
            verdict = f"noticed by {result['noticed_by']} ({result['how']})" if result["noticed_by"] else \
                f"changes nothing: {result['changes_nothing']}" if "changes_nothing" in result else f"NOT noticed, {result['tests']} tests"
            print(f"{i + 1:3} {result['place']}: {result['before']}\n        -> {result['after']}\n    {verdict}, {result['seconds']} s{' before' * ('taken_over' in result)}", flush=True)

    def report(self, seed):
        seconds = time.monotonic() - self.begin
        noticed = [r for r in self.results if r["noticed_by"]]
        taken = sum(r.get("taken_over", False) for r in noticed)
        nothing = [r for r in self.results if "changes_nothing" in r]
        survivors = [r for r in self.results if not r["noticed_by"] and "changes_nothing" not in r]
        broken = {name: how for b in self.builds for name, how in b.broken.items()}
        (self.folder / "report.json").write_text(json.dumps({"seed": seed, "seconds": round(seconds), "mutants": self.results, "drawn_anew": self.anew,
                                                             "fail_without": broken}, indent=1) + "\n")
        lines = []
        for r in survivors:
            path, line = r["place"].rsplit(":", 1)
            context = self.texts[path].splitlines()
            first = max(int(line) - 4, 0)
            lines += [f"{r['place']}: {r['change']}", *(f"  {n + 1:5} {context[n]}" for n in range(first, min(int(line) + 3, len(context)))), f"     -> {r['after']}", ""]
        (self.folder / "survivors.txt").write_text("\n".join(lines))
        print(f"\nSEED={seed}: {len(self.results)} mutants in {seconds:.0f} s, {len(noticed)} noticed{f' ({taken} taken over)' if self.again else ''}, "
              f"{len(nothing)} change nothing, {len(survivors)} not noticed"
              f"\ndrawn anew: {', '.join(f'{n} {why}' for why, n in self.anew.items())}")
        for name, how in broken.items():
            print(f"left out, as it fails without a mutant: {name} ({how})")
        for r in survivors:
            print(f"NOT noticed: {r['place']}: {r['change']}")
        print(f"{self.folder}/report.json, survivors.txt")


def stop(*_):
    STOP.set()
    for pid in list(RUNNING):
        end_group(pid)
    raise KeyboardInterrupt


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default=os.environ.get("BUILD", "build"))
    parser.add_argument("--seed", type=int)
    parser.add_argument("--only", metavar="FILE", help="a file or folder of the product")
    parser.add_argument("--sanitizers", action="store_true", help="build what is not noticed with sanitizers, too")
    parser.add_argument("--again", metavar="REPORT", help="an earlier report.json: what was not noticed is tried again")
    parser.add_argument("count", nargs="?", type=int)
    args = parser.parse_args()
    try:
        earlier = json.loads(Path(args.again).read_text()) if args.again else {"mutants": []}
        args.again = earlier["mutants"]
    except (OSError, ValueError, KeyError) as e:
        parser.error(f"--again {args.again}: no report.json of an earlier run: {e}")
    args.count = args.count or len(args.again) or 100
    if args.seed is None:
        args.seed = earlier.get("seed", random.SystemRandom().randrange(1 << 32))
    run_ = Run(args)
    run_.folder.mkdir(parents=True, exist_ok=True)
    with open(run_.folder / "lock", "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"run_mutants.py: another run has {run_.folder}: wait for it, or give this run a BUILD of its own")
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))  # as a login of Debian has
        print(f"SEED={args.seed}", flush=True)
        lift = bound_processes()
        try:
            run_.all(args.count)
        except KeyboardInterrupt:
            print("ended before all mutants were tried")
        finally:
            lift()
        run_.report(args.seed)
    return 130 if STOP.is_set() else 0


if __name__ == "__main__":
    sys.exit(main())
