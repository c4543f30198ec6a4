#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes unicode.h, what tokenizer.c knows of Unicode, to standard output, from Python's unicodedata: which characters are letters
(L), numbers (N) and white space (S), in ranges. Needs Python 3.11, whose unicodedata is that of Unicode 14.0."""
import itertools
import sys
import unicodedata

SPACES = {*range(9, 14), 0x20, 0x85, 0xa0, 0x1680, *range(0x2000, 0x200b), 0x2028, 0x2029, 0x202f, 0x205f, 0x3000}


def kind(c):
    category = unicodedata.category(chr(c))[0]
    return "S" if c in SPACES else category if category in "LN" else None


def main():
    if unicodedata.unidata_version != "14.0.0":
        sys.exit("make_unicode.py: Python 3.11 is needed, this one's Unicode is " + unicodedata.unidata_version)
    print("/* SPDX-License-Identifier: Apache-2.0 */\n/* Made by make_unicode.py, from Unicode " + unicodedata.unidata_version +
          ". */\n#ifndef LLM_UNICODE_H\n#define LLM_UNICODE_H\n\n#include <stdint.h>\n\n// clang-format off\n"
          "typedef struct unicode_range {\n    uint32_t first, last;\n    char kind;\n} unicode_range;\n\n"
          "static const unicode_range unicode_ranges[] = {")
    line = "   "
    for of, characters in itertools.groupby(range(0x110000), kind):
        if of:
            first, *others = characters
            item = f" {{0x{first:x}, 0x{(others or [first])[-1]:x}, '{of}'}},"
            if len(line) + len(item) > 130:
                print(line)
                line = "   "
            line += item
    print(line.rstrip(",") + "};\n// clang-format on\n\n#endif")


main()
