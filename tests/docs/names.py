#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Names in the documents that the tree does not have.

    names.py [FILE.md]...        default: README.md, CONTRIBUTING.md and the like, docs/*.md, docs/log/*.md

A code span is taken apart by what it looks like:

    path            worker/exec/exec.c, exec.c, plan/build, tests/sim/   a file, a folder or their end
    function()      a word of the code, not of its comments
    a.b             key of a run file, key of a config file, field of a message, or quoted in the code as it stands (events)
    make X          a target
    titanctl X -y   a command and its options, as the programs' own help has them
    some words      quoted in the code: a log line, a reason, an error
    anything else   each word is a word of the code (not of its comments)

Words of a run of the documents' examples (numbers, JOB, 'x', ...) are passed over. What belongs to other programs stands in
foreign.txt, one name a line.
"""
import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = re.compile(r"^(docs/|README|CONTRIBUTING|CHANGELOG|SECURITY|tests/docs/|tests/fuzz/corpus/)")
EXTENSIONS = "c h cu cuh cpp py sh mk toml proto md json svg txt csv service socket timer css"
PLACEHOLDER = re.compile(r"^(\W*|\d.*|(?=\w*\d)[0-9a-f]{8}|[A-Z]{1,3}|STATE|STATE_DIR|JOBS|JOB|NODE|NAME|FILE|FOLDER|HOST|PORT|PATH|DIR|KEY|VALUE|PART|TIME|TOKEN|USER|"
                         r"SECRET|ADDRESS|GIB|PATH|OUT|COMMAND|STEP|[a-z]\d{1,2}|olga|eva|alice|head|example|media|usb)$")


def read(path):
    return (ROOT / path).read_text(errors="replace")


@lru_cache(None)
def files():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=False, capture_output=True, text=True)
    if listed.returncode != 0:  # an unpacked archive
        return [str(f.relative_to(ROOT)) for f in ROOT.rglob("*") if f.is_file() and not re.match(r"(build|\.git)/", str(f.relative_to(ROOT)))]
    return [f for f in listed.stdout.splitlines() if (ROOT / f).is_file()]


def uncommented(path, text):
    if re.search(r"\.(c|h|cu|cuh|cpp|proto)$", path):
        strings = r'"(?:[^"\\\n]|\\.)*"'
        text = re.sub(strings + r"|//[^\n]*|/\*.*?\*/", lambda m: m.group(0) if m.group(0)[0] == '"' else " ", text, flags=re.S)
        text = re.sub(r'"\s*(?:PRI[a-zA-Z0-9]+\s*)?"', "", text)  # strings that stand beside each other are one
    return text


@lru_cache(None)
def code():
    """All of the code without its comments."""
    return "\n".join(uncommented(f, read(f)) for f in files() if not OUTSIDE.match(f))


@lru_cache(None)
def product():
    """Without the tests, which also have names that are wrong on purpose."""
    return "\n".join(uncommented(f, read(f)) for f in files() if not OUTSIDE.match(f) and not f.startswith("tests/"))


@lru_cache(None)
def words():
    return set(re.findall(r"[A-Za-z0-9_]+", code()))


@lru_cache(None)
def plain():
    """The code as text in which a quotation can be looked for: conversions are cut out, escapes undone."""
    text = product().replace('\\"', '"').replace("\\n", " ")
    text = re.sub(r"%[-+ #0-9.*]*(?:hh|h|ll|l|z|j)?[a-zA-Z]", "\0", text)
    return re.sub(r"\s+", " ", text)


@lru_cache(None)
def foreign():
    return {line for line in read("tests/docs/foreign.txt").splitlines() if line and not line.startswith("#")}


@lru_cache(None)
def paths():
    """Files, folders, every end of their names, with and without an extension."""
    out = set()
    for f in files():
        parts = f.split("/")
        for end in range(1, len(parts) + 1):
            for begin in range(end):
                out.add("/".join(parts[begin:end]))
        out |= {p.rsplit(".", 1)[0] for p in list(("/".join(parts[b:]) for b in range(len(parts)))) if "." in p}
    return out


@lru_cache(None)
def targets():
    made = "\n".join(read(f) for f in files() if f == "Makefile" or f.endswith(".mk"))
    return set(re.findall(r"^([a-z][a-z0-9-]*(?:-%)?):(?!=)", made, re.M))


@lru_cache(None)
def keys():
    """section.key of run files and of config files. docs/recipes.md is written from the parser's table; a test holds it to that."""
    out, section = set(), ""
    for line in read("docs/recipes.md").splitlines():
        section = (re.match(r"#+ \[?(\w+)", line) or [None, section])[1]
        for key in re.findall(r"`([a-z_0-9.]+)`", line.split("|")[1] if line.startswith("|") else line):
            out |= {key, section + "." + key}
    out |= {".".join(m) for m in re.findall(r'\w+\("(\w+)", "(\w+)"', read("daemon/config.c"))}
    return out


@lru_cache(None)
def fields():
    out = set()
    for f in files():
        if f.endswith(".proto"):
            for name, body in re.findall(r"message (\w+) \{(.*?)\n?\}", uncommented(f, read(f)), re.S):
                out |= {name + "." + field for field in re.findall(r"(?<!\.)\b(\w+) = \d+", body)}
    return out


@lru_cache(None)
def columns():
    schema, out = plain(), set()
    for table, body in re.findall(r"CREATE TABLE (\w+) \((.*?)\) STRICT", schema):
        out |= {table + "." + c for c in re.findall(r"(\w+) (?:INTEGER|TEXT|BLOB|REAL)", body)}
    return out | {".".join(m) for m in re.findall(r"ALTER TABLE (\w+) ADD COLUMN (\w+)", schema)}


@lru_cache(None)
def commands():
    """Programs, their commands and options, from the tables and usage texts of the code."""
    def tables(folder):
        text = "\n".join(read(f) for f in files() if f.startswith(folder) and f.endswith(".c"))
        return set(re.findall(r'\bstruct command \w+ = \{\s*\.name = "([a-z-]+)"', text))

    return {"titanctl": tables("ctl/"), "titand": {"dev", "agent", "coordinator"}, "titan-worker": tables("worker/")}


@lru_cache(None)
def option(name):
    return re.search(r'"%s"|[ \[(|"]--%s\b' % (name, name), product()) is not None


def quoted(span):
    """Are the words that are no example's in the code as they stand?"""
    parts = re.split(r"'[^']*'|\([^)]*\)|\.\.\.|…|/[\w/]+|\b(?=\w*\d)[0-9a-f]{8}\b|\b[\w./:-]*\d[\w./:-]*|\b[A-Z_]{2,}\b|: |[()<>]", span)
    parts = [re.sub(r"^[\s,;:=.]+|[\s,;:=.]+$", "", p) for p in parts]
    return all(p in plain() for p in parts if p)


def bad_word(word):
    part = re.match(r"^(_\w+|\w+_)$", word)  # agents_, _KEY: the begin or the end of names
    if part and any(w.startswith(word) or w.endswith(word) for w in words()):
        return None
    word = word.strip(".,;:!?()[]{}\"'<>=*|&$%@+~…→≥≤×·#/\\-")
    if not word or PLACEHOLDER.match(word) or word in foreign() or word in words():
        return None
    rest = [w for w in re.findall(r"[A-Za-z0-9_]+", word) if not PLACEHOLDER.match(w) and w not in words() and w not in foreign()]
    return word if rest else None


def bad_command(span):
    first, *rest = span.split()
    position = 0
    for i, word in enumerate(rest):
        if word.startswith("--"):
            name = word[2:].split("=")[0]
            if not option(name):
                return "option " + word
        elif position == 0 and re.match(r"^[a-z]", word) and i == 0:
            position = 1
            if word not in commands()[first]:
                return "command " + first + " " + word
    return None


def bad_path(span):
    path = span.rstrip("/")
    if "{" in path:
        m = re.match(r"(.*)\{(.*)\}(.*)", path)
        return next((b for b in (bad_path(m[1] + x + m[3]) for x in m[2].split(",")) if b), None)
    if path in paths() or path in foreign():
        return None
    if "*" in path:
        pattern = re.compile("^" + re.escape(path).replace(r"\*", "[^/]*") + "$")
        return None if any(pattern.match(p) for p in paths()) else path
    if re.search(r"\b(ID|N|JOB|TIME)\b", path):
        return next((b for b in map(bad_word, re.split(r"[/.-]", path)) if b), None)
    if path.startswith("build/"):  # made by a rule or a program: its name is in one of them
        tail = path.split("/", 1)[1]
        return None if tail in paths() or all(bad_word(p) is None for p in tail.split("/")) else path
    if path.startswith("spiffe://"):
        return None if "spiffe://" in product() else path
    if re.match(r"^(/|~|\.\.\.|STATE|JOBS|run/|step-|unix:|[A-Z]|_|\.)", path) or not re.search(r"\.(%s)$|/" % EXTENSIONS.replace(" ", "|"), path):
        return next((p for p in map(bad_word, re.split(r"[/:]", path)) if p), None)
    if "/" in path and all(p in words() or PLACEHOLDER.match(p) for p in re.findall(r"[\w-]+", path)) and path in code():
        return None
    if "/" not in path and path in code():  # a file that a program writes
        return None
    return path


def bad(span):
    """What of a code span does not exist; None."""
    span = " ".join(span.split())
    if span in foreign() or span.split()[0] in foreign():
        return None
    if " && " in span:
        return next((b for b in map(bad, span.split(" && ")) if b), None)
    if re.match(r"^make [a-z]", span):
        names = [w for w in re.split(r" [&>|]| and ", span)[0].split()[1:] if re.match(r"^[a-z][a-z-]*$", w)]
        return next(("target " + n for n in names if n not in targets() and re.sub(r"^record-.*", "record-%", n) not in targets()), None)
    if span.split()[0] in ("titanctl", "titand", "titan-worker") and len(span.split()) > 1:
        return bad_command(span)
    if " " in span and bad_path(span.split()[0]) is None and "/" in span.split()[0]:
        span = span.split(" ", 1)[1]
        return next((w for w in map(bad_word, span.split()) if w), None)
    m = re.match(r"^(\w+)\(.*\)$", span)
    if m:
        if re.match(r"^\w+\(\d\)$", span):
            return None  # a manual page
        return None if m[1] in words() else span
    if re.match(r"^[\w.{},*~/:$-]+$", span) and ("/" in span or re.search(r"\.(%s)$" % EXTENSIONS.replace(" ", "|"), span)):
        return bad_path(span)
    if re.match(r"^[A-Za-z_]\w*(\.[\w*]+)+$", span):
        first, rest = span.split(".", 1)
        pattern = re.compile("^" + re.escape(span).replace(r"\*", r"\w*") + "$")
        if any(pattern.match(name) for name in keys() | fields() | columns()) or '"%s"' % span in product() or span in plain():
            return None
        if "'%s'" % rest in code() and re.search(r"(UPDATE|INTO|FROM) %s\b" % first, code()):  # a row, by its key
            return None
        if re.search(r"\bN\b", span):
            return next((b for b in map(bad_word, span.split(".")) if b), None)
        if '"%s."' % first in code() and (rest == "*" or rest in words()):  # put together by the program
            return None
        return None if "struct " + first + " " in code() and rest in words() else span
    m = re.match(r"^([a-z]\w*\.\w+) *= *\S+", span)
    if m and m[1] not in keys() and bad(m[1]):
        return m[1]
    for word in re.findall(r"(?<![\w-])--([a-z][a-z-]*)", span):
        if not option(word):
            return "option --" + word
    m = re.match(r"^([a-z]+\.[a-z_]+) (.+)", span)
    if m and '"%s"' % m[1] in code():  # an event and its text
        span = m[2]
    if len(re.findall(r"\b[a-z]{2,}\b", span)) >= 3 and span.count(" ") > 1 and not re.search(r"[|=<>$·→]|--", span):
        return None if quoted(span) else span
    return next((w for w in map(bad_word, span.split()) if w), None)


def spans(text):
    """(line, span) of a document, without its blocks."""
    text = re.sub(r"^( *)```.*?^ *```", lambda m: "\n" * m[0].count("\n"), text, flags=re.S | re.M)
    text = re.sub(r"^    .*$", "", text, flags=re.M)
    for m in re.finditer(r"(`+)(.+?)\1", text, flags=re.S):
        yield text.count("\n", 0, m.start()) + 1, m[2].replace("\\|", "|")


def block_commands(text):
    """(line, command) of the programs in a document's blocks."""
    for m in re.finditer(r"^( *)```.*?^ *```|^    .*$", text, flags=re.S | re.M):
        for n, line in enumerate(m[0].splitlines()):
            c = re.match(r"^ *(?:\$ )?(?:sudo )?(?:\./)?((?:titanctl|titand|titan-worker|make) .*)", line)
            if c:
                yield text.count("\n", 0, m.start()) + 1 + n, re.sub(r"  .*| *[#&>|].*| 2>.*", "", c[1]).strip()


def links(text):
    for m in re.finditer(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)", text):
        yield text.count("\n", 0, m.start()) + 1, m[1], m[2]


def walked(text):
    """(line, file, function) of `file.c` `function()`."""
    for m in re.finditer(r"`([\w/]+\.c)` `(\w+)\(\)`", text):
        yield text.count("\n", 0, m.start()) + 1, m[1], m[2]


def is_defined(file, function):
    return re.search(r"^\w[^\n;=]*\b%s\([^;{]*\)\n\{" % function, read(file), re.M) is not None


@lru_cache(None)
def used():
    """What bodies and tables of the programs name: definitions and prototypes begin at a line's begin."""
    return set(re.findall(r"\w+", "\n".join(line for line in product().splitlines() if line[:1].isspace())))


def is_used(function):
    """A table of operations names it without its prefix."""
    return function in used() or "X(%s)" % function.split("_", 1)[-1] in product()


def anchor_of(heading):
    """What GitHub makes of it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(path):
    """Of the headings of a document."""
    return {anchor_of(h) for h in re.findall(r"^#+ (.*)$", path.read_text(errors="replace"), re.M)}


def check(name, text):
    """Lines that tell what is wrong."""
    for line, span in spans(text):
        what = bad(span)
        if what:
            yield f"{name}:{line}: `{' '.join(span.split())}`" + ("" if what == " ".join(span.split()) else f": {what}")
    for line, command in block_commands(text):
        if len(command.split()) > 1:
            what = bad(command)
            if what:
                yield f"{name}:{line}: {command}: {what}"
    for line, file, function in walked(text):
        if not (ROOT / file).is_file():
            continue  # told as a span
        if not is_defined(file, function):
            yield f"{name}:{line}: {file} has no function {function}()"
        elif not is_used(function):
            yield f"{name}:{line}: nothing in the programs calls {function}()"
    for line, link, anchor in links(text):
        target = (ROOT / name).parent / link if link else ROOT / name
        if not target.exists():
            yield f"{name}:{line}: link to {link}"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield f"{name}:{line}: link to {link}#{anchor}"


def wrong_keys(path, text):
    """Keys that messages of a source name and no file has: of a table that files have, or said to be in one. A literal of one word is no message."""
    tables = {key.split(".")[0] for key in keys() if "." in key}
    for literal in re.finditer(r'"((?:[^"\\\n]|\\.)*)"', uncommented(path, text)):
        for m in re.finditer(r"(?<![\w./%-])([a-z_]+)\.([a-z_0-9]+)(?![\w.(*/%])( in (?:\w+ )?\w+\.toml)?", literal[1]):
            key = m[1] + "." + m[2]
            known = key in keys() or m[2] in [*EXTENSIONS.split(), "db", "html", "safetensors"] or '"%s"' % key in product()  # a file, an event
            if (m[1] in tables or m[3]) and not known and " " in literal[1]:
                yield key


def documents():
    return [f for f in files() if re.match(r"^([A-Z]+\.md|docs/(log/)?[^/]*\.md)$", f)]


def main():
    problems = [p for f in sys.argv[1:] or documents() for p in check(f, read(f))]
    print("\n".join(problems) if problems else "every name exists")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
