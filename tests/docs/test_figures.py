#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Two documents do not give one figure differently.

A measured figure has one home, where its date, machine and command stand. Another document quotes it as a link to that home:
[32 ms](reliability.md#numbers). The home may have more digits. The README has no figure with a unit that is not such a link."""
import re
import sys
from pathlib import Path

import names

UNIT = r"ms|s|min|%|MB|GiB|MiB|µs|tokens/s"
NUMBER = r"\d[\d,]*(?:\.\d+)?"
FIGURE = re.compile(rf"(?<!!)\[({NUMBER})(?:(?: to |; |, )({NUMBER}))?(?: ?(?:{UNIT}))?\]\(([^)\s#]*)#([^)\s]+)\)")
LINK = re.compile(r"\[[^\]]*\]\([^)]*\)")
WITH_UNIT = re.compile(rf"(?<![\w.,-]){NUMBER} ?(?:{UNIT})(?!\w)")
DOCUMENTS = sorted(p for folder in (".", "docs", "docs/log") for p in (names.ROOT / folder).glob("*.md"))


def section(path, anchor):
    """The text below a heading, with what stands below deeper ones."""
    text, depth = [], 0
    for line in path.read_text().splitlines():
        heading = re.match(r"(#+) (.*)", line)
        if heading and depth and len(heading[1]) <= depth:
            break
        if heading and not depth and names.anchor_of(heading[2]) == anchor:
            depth = len(heading[1])
        text += [line] if depth else []
    return "\n".join(text)


def has(text, number):
    """Does the text have the number, or one with more digits that rounds to it?"""
    digits = len(number.split(".")[1]) if "." in number else 0
    wanted = float(number.replace(",", ""))
    return any(round(float(n.replace(",", "")), digits) == wanted for n in re.findall(NUMBER, text))


def wrong(path, text):
    for first, second, file, anchor in FIGURE.findall(text):
        home = section(path.parent / file if file else path, anchor)
        yield from (f"{number}: {file}#{anchor} does not have it" for number in (first, second) if number and not has(home, number))


def unlinked(text):
    return WITH_UNIT.findall(re.sub(r"`[^`]*`|^```.*?^```", "", LINK.sub("", text), flags=re.S | re.M))


def check(name, bad):
    print(f"{'not ok' if bad else 'ok'} - {name}")
    for line in bad:
        print(f"# {line}")
    return not bad


def main():
    print("1..3")
    home = names.ROOT / "docs/reliability.md"
    link = "[{}](reliability.md#numbers)"
    finds = [len(list(wrong(home, link.format(words)))) for words in ("9999999.5 ms", "5 to 9999999 ms", "5 ms", "the numbers of 9999999")] == [1, 1, 0, 0]
    ok = check("a figure that its home does not have is found", [] if finds and unlinked("in 32 ms, [33 ms](x), `7 s`") == ["32 ms"] else ["it is not"])
    ok &= check("figures are those of their homes", [f"{p.relative_to(names.ROOT)}: {w}" for p in DOCUMENTS for w in wrong(p, p.read_text())])
    ok &= check("the README's figures are links to their homes", unlinked((names.ROOT / "README.md").read_text()))
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
