#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes toml_cases.json: TOML documents with what Python's tomllib reads from them (null: it refuses them).
test_toml.c holds our reader to it. Values are tagged with their type, since JSON has one kind of number in Python.
"""
import json
import os
import tomllib

DOCS = r'''
a = 1
---
a=1
b = 2 # comment
---
# only a comment
---

---
a.b.c = 1
a.b.d = 2
---
"quoted key" = 1
'literal.key' = 2
"" = 3
---
a."b.c".d = true
---
 a . b  =  1
---
1234 = "digits"
3.14 = "dotted digits"
---
a = "tab\tquote\" back\\slash u\u00e9 U\U0001F600"
---
a = 'C:\path\n'
---
a = """
first
second \
    joined
"quotes" and ""two"" inside"""
---
a = """ends in two""""" 
---
a = """ends in three""""""
---
a = \'\'\'
lit 'quotes' \n
\'\'\'
---
a = \'\'\'x\'\'\'\'\'
---
a = ""
b = \'\'
c = """"""
d = \'\'\'\'\'\'
---
i = [0, +0, -0, +99, -17, 1_000, 5_349_221, 0xDEADBEEF, 0xdead_beef, 0o755, 0b1101_0110]
---
i = [9223372036854775807, -9223372036854775808]
---
f = [1.0, +1.0, -0.01, 5e+22, 1e06, -2E-2, 6.626e-34, 224_617.445_991_228, 0.0, -0.0, 1e1_0]
---
f = [inf, +inf, -inf]
---
b = [true, false]
---
a = []
b = [ ]
c = [1,]
d = [
  1, # one
  2,

  # three
  3
]
---
a = [[1, 2], ["a", 'b'], [[]]]
---
mixed = [1, 2.0, "x", true, {a = 1}]
---
[a]
x = 1
[b]
y = 2
---
[a.b.c]
x = 1
[a]
y = 2
---
[ a . "b" . c ]
x = 1
---
[a]
[a.b]
[a.b.c]
---
[[a]]
x = 1
[[a]]
x = 2
[a.sub]
y = 3
[[a.list]]
z = 4
[[a.list]]
z = 5
---
[[a.b]]
x = 1
[[a.b]]
[a.b.c]
y = 2
---
t = {}
u = {a = 1, b = "x", c.d = 2}
v = { a = {b = {c = 1}} }
---
t = {a = [1,
2]}
---
[fruit]
apple.color = "red"
apple.taste.sweet = true
[fruit.apple.texture]
smooth = true
---
[a]
b.c = 1
b.d = 2
---
name = { first = "Tom", last = "P" }
point = { x = 1, y = 2 }
---
true = 1
inf = 2
nan = 3
---
a = "é日本語"
---
a = 1.
---
a = .5
---
a = 1e
---
a = 1_
---
a = _1
---
a = 1__0
---
a = 01
---
a = -01
---
a = 00.5
---
a = 0x
---
a = +0x10
---
a = 0xG
---
a = 0b2
---
a = 0o8
---
a = 0X10
---
a = 9223372036854775808
---
a = 1._5
---
a = 1e_5
---
a = True
---
a = yes
---
a =
---
= 1
---
a
---
a 1
---
a = 1 b = 2
---
a = "unclosed
---
a = 'unclosed
---
a = """unclosed
---
a = "bad \q escape"
---
a = "\u12"
---
a = "\ud800"
---
a = "\U00110000"
---
a = "line
break"
---
a = [1 2]
---
a = [1, 2
---
a = [,1]
---
a = {a = 1
---
a = {a = 1,}
---
a = {a = 1, a = 2}
---
a = {a = 1
, b = 2}
---
a = 1
a = 2
---
a = 1
a.b = 2
---
a.b = 1
a = 2
---
[a]
[a]
---
[a]
b = 1
[a.b]
c = 2
---
a = {}
[a.b]
---
a = {b.c = 1}
a.b.d = 2
---
a = []
[[a]]
---
[[a]]
[a]
---
[a]
[[a]]
---
[a.b.c]
z = 9
[a]
b.c.t = 1
---
[a.b.c]
[a]
b.d = 1
---
[a.b.c]
[a]
b.d = 1
[a.b]
---
[a.b.c.d]
[a]
b.c.k = 1
b.c.d = 2
---
[a.b.c.d]
[a]
b.c.k = 1
[a.b.e]
f = 1
---
[fruit]
apple.color = "red"
[fruit.apple]
---
a.b.c = 1
[a.b]
---
[a
x = 1
---
[a]]
---
[]
---
[a..b]
---
[a.]
---
[[a]
---
a..b = 1
---
"""multi""" = 1
---
a = 'x' 'y'
---
[a] x = 1
---
a = "\x41"
---
é = 1
---
a = [1]]
---
a = }
---
a = {b}
---
[[a]]
x = 1
[a.x]
---
a = 1 # ok 	tab
---
a.b = [{c = 1}, {c = 2}]
---
a = """\
   \
   x"""
---
a = """x \ y"""
---
x = { y = """
z""" }
'''


def tagged(v):
    if isinstance(v, bool):
        return {"bool": v}
    if isinstance(v, int):
        return {"int": str(v)}
    if isinstance(v, float):
        return {"float": v.hex()}
    if isinstance(v, str):
        return {"string": v}
    if isinstance(v, list):
        return {"array": [tagged(x) for x in v]}
    return {"table": {k: tagged(x) for k, x in v.items()}}


def main():
    cases = []
    docs = DOCS.replace("\\'\\'\\'", "'''").replace("\\'\\'", "''").replace("\\'", "'")[1:].split("---\n")
    docs += ["a = 1\r\nb = 2\r\n", "a = 1\rb = 2", "a = \"x\x01y\"", "# \x02", "a = 'x\ty'", "a = \"\"\"x\r\ny\"\"\"",
             "a = 1", "\n\n\na = 1", "a = \"\x7f\"", "a = 1 # \x7f", "[" * 20 + "]" * 20,
             "a = " + "[" * 20 + "]" * 20, "a = " + "{a = " * 20 + "1" + "}" * 20]
    for doc in docs:
        try:
            value = tagged(tomllib.loads(doc))
        except tomllib.TOMLDecodeError:
            value = None
        # tomllib reads integers of any size; TOML 1.0 asks for 64 bits and an error beyond.
        if value and ('9223372036854775808"' in json.dumps(value)) and '"-9223372036854775808"' not in json.dumps(value):
            value = None
        cases.append({"doc": doc, "value": value})
    out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "toml_cases.json")
    with open(out, "w", encoding="utf-8") as f:
        json.dump(cases, f, indent=0, ensure_ascii=True)
        f.write("\n")
    valid = sum(c["value"] is not None for c in cases)
    print(f"{len(cases)} documents, {valid} valid")


if __name__ == "__main__":
    main()
