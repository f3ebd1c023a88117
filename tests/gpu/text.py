#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""text.py FILE [BYTES]: text that is the same everywhere and always, C-like enough to learn from."""
import sys

WORDS = ("int", "size_t", "const", "char *", "return", "struct", "buffer", "length", "index", "count", "state", "node",
         "next", "value", "status", "error", "if (", ") {", "}", ";", " = ", " + ", " < ", "->", "(", ")", "0", "1",
         "for (", "while (", "static", "void")


def main():
    path, size = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1 << 18
    x, text, column = 20261120, [], 0
    while size > 0:
        x = (x * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        # Mostly the word that tends to follow the last one: something to learn.
        word = WORDS[(x >> 33) % len(WORDS)] if (x >> 60) < 5 else WORDS[(len(text) * 7 + (x >> 62)) % len(WORDS)]
        column += len(word) + 1
        text.append(word + ("\n" if column > 72 else " "))
        column = 0 if column > 72 else column
        size -= len(text[-1])
    with open(path, "w") as f:
        f.write("".join(text))


if __name__ == "__main__":
    main()
