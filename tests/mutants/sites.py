# SPDX-License-Identifier: Apache-2.0
"""Places of C source where one operator, bound or constant may be another, in the house format: clang-format puts spaces around
binary operators and none beside unary ones, and functions between a { and a } in the first column."""
import re
from dataclasses import dataclass

BLANK = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)+\'|//[^\n]*|/\*.*?\*/', re.S)
DIRECTIVE = re.compile(r"^#(?:[^\n]*\\\n)*[^\n]*", re.M)
BODY = re.compile(r"^\{\n.*?^\}", re.M | re.S)
# What these have between their brackets is not changed: a mutant of an assertion only asserts otherwise, and texts are no behaviour.
PASSED_OVER = re.compile(r"\b(titan_(debug_)?assert|titan_bug|_?[sS]tatic_assert|tlog_\w+|log_write|MUTANT|failpoint\w*|\w*printf|titan_error_(wrap|hint)|sizeof)\(")
FAILS = re.compile(r"\btitan_fail(_errno)?\(")
TYPED = re.compile(r"\b(char|int|bool|double|float|void|size_t|\w+_t|(struct|enum|union|const|unsigned) \w+) [^;=()]*$")

SWAPS = {"<": ("<=", ">"), "<=": ("<", ">"), ">": (">=", "<"), ">=": (">", "<"), "==": ("!=",), "!=": ("==",), "&&": ("||",), "||": ("&&",),
         "+": ("-",), "-": ("+",), "*": ("/",), "/": ("*",), "%": ("/",), "<<": (">>",), ">>": ("<<",), "+=": ("-=",), "-=": ("+=",), "++": ("--",), "--": ("++",),
         "true": ("false",), "false": ("true",)}
BINARY = re.compile(r"(?<=[\w)\]}'\"] )(<=|>=|==|!=|&&|\|\||<<|>>|\+=|-=|[-+*/%<>])(?=[ \n])")
STEP = re.compile(r"\+\+|--")
WORD = re.compile(r"\b(true|false)\b")
NUMBER = re.compile(r"(?<![\w.'])(\d+)(?![\w.'])")
BRANCH = re.compile(r"\b(?:if|while) \(")
OK = re.compile(r"\breturn (TITAN_OK);")


@dataclass(frozen=True)
class Site:
    begin: int  # of the text that is replaced
    end: int
    after: str
    line: int

    def applied(self, text):
        return text[:self.begin] + self.after + text[self.end:]


def spaces(m):
    return re.sub(r"[^\n]", " ", m[0])


def closing(text, at):
    """Where the bracket that opens at `at` closes"""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i
    return len(text) - 1


def code_of(text):
    """The text, place by place, with only what may be changed"""
    code = DIRECTIVE.sub(spaces, BLANK.sub(lambda m: re.sub(r"[^\n]", "'", m[0]) if m[0][0] in "'\"" else spaces(m), text))
    bodies = [m.span() for m in BODY.finditer(code)]
    kept = list(re.sub(r"[^\n]", " ", code))
    for a, b in bodies:
        kept[a:b] = code[a:b]
    code = "".join(kept)
    for m in [*PASSED_OVER.finditer(code), *FAILS.finditer(code)]:
        begin, end = m.end(), max(m.end(), closing(code, m.end() - 1))  # in another one's brackets it is blank already
        code = code[:begin] + re.sub(r"[^\n]", " ", code[begin:end]) + code[end:]
    return code


def sites(text):
    """All of them, by their place"""
    code, found = code_of(text), []

    def add(begin, end, after):
        found.append(Site(begin, end, after, text.count("\n", 0, begin) + 1))

    for pattern in (BINARY, STEP, WORD):
        for m in pattern.finditer(code):
            for after in SWAPS[m[0]]:
                add(m.start(), m.end(), after)
    for m in NUMBER.finditer(code):
        before = code[code.rfind("\n", 0, m.start()) + 1:m.start()]
        if before.endswith("[") and TYPED.search(before):  # the size of an array
            continue
        for after in (str(int(m[1]) + 1), "0") if m[1] == "1" else (str(int(m[1]) + 1),):
            add(m.start(), m.end(), after)
    for m in BRANCH.finditer(code):
        begin, end = m.end(), closing(code, m.end() - 1)
        if "\n" not in code[begin:end]:
            add(begin, end, f"!({text[begin:end]})")
    for m in OK.finditer(code):
        add(m.start(1), m.end(1), "TITAN_EINVAL")
    return sorted(found, key=lambda s: (s.begin, s.end, s.after))
