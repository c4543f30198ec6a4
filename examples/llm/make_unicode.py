#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes unicode.h, what tokenizer.c knows of Unicode, to standard output, from Python's unicodedata: which characters are letters
(L), numbers (N) and white space, in ranges. Needs Python 3.11, whose unicodedata is that of Unicode 14.0."""
import sys
import unicodedata

SPACES = [*range(9, 14), 0x20, 0x85, 0xa0, 0x1680, *range(0x2000, 0x200b), 0x2028, 0x2029, 0x202f, 0x205f, 0x3000]


def ranges(characters):
    out = []
    for c in characters:
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def table(name, members):
    lines, line = [f"static const unicode_range unicode_{name}[] = {{"], "   "
    for first, last in ranges(members):
        item = f" {{0x{first:x}, 0x{last:x}}},"
        if len(line) + len(item) > 130:
            lines.append(line)
            line = "   "
        line += item
    return "\n".join([*lines, line.rstrip(",") + "};"])


def main():
    if unicodedata.unidata_version != "14.0.0":
        sys.exit("make_unicode.py: Python 3.11 is needed, this one's Unicode is " + unicodedata.unidata_version)
    print("/* SPDX-License-Identifier: Apache-2.0 */\n/* Made by make_unicode.py, from Unicode " + unicodedata.unidata_version +
          ". */\n#ifndef LLM_UNICODE_H\n#define LLM_UNICODE_H\n\n#include <stdint.h>\n\n// clang-format off\n"
          "typedef struct unicode_range {\n    uint32_t first, last;\n} unicode_range;\n")
    for name, letter in ("letters", "L"), ("numbers", "N"):
        print(table(name, [c for c in range(0x110000) if unicodedata.category(chr(c))[0] == letter]) + "\n")
    print(table("spaces", SPACES))
    print("// clang-format on\n\n#endif")


main()
