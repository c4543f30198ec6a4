#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes unicode.h, what wordpiece.c knows of Unicode, to standard output, from Python's unicodedata.

BERT's tokenizer is here the one of Hugging Face's library `tokenizers`, with which the model is used. It knows the marks,
punctuation and control characters of Unicode 8.0; later ones, listed below, are ordinary characters to it, and so to us.
make_reference.py compares all of Unicode with that library. Needs Python 3.11, whose unicodedata is that of Unicode 14.0."""
import sys
import unicodedata

# Marks, punctuation and format characters of Unicode 9.0 to 14.0, and characters that were of another category in 8.0.
LATER = """
61d 7fd 890-891 898-89f 8ca-8e2 9fd-9fe a76 afa-aff b55 c04 c3c c77 c84 d00 d3b-d3c d81 eba 180f 1885-1886 1abf-1ace 1b7d-1b7e
1df6-1dfb 2e43-2e4f 2e52-2e5d a82c a8c5 a8ff a9bd 10d24-10d27 10eab-10ead 10f46-10f50 10f55-10f59 10f82-10f89 11070 11073-11074
110c2 110cd 111cf 1123e 1133b 11438-1143f 11442-11444 11446 1144b-1144f 1145a-1145b 1145d-1145e 11660-1166c 116b9 1182f-11837
11839-1183b 1193b-1193c 1193e 11943-11946 119d4-119d7 119da-119db 119e0 119e2 11a01-11a0a 11a33-11a38 11a3b-11a47 11a51-11a56
11a59-11a5b 11a8a-11a96 11a98-11a9c 11a9e-11aa2 11c30-11c36 11c38-11c3d 11c3f 11c41-11c45 11c70-11c71 11c92-11ca7 11caa-11cb0
11cb2-11cb3 11cb5-11cb6 11d31-11d36 11d3a 11d3c-11d3d 11d3f-11d45 11d47 11d90-11d91 11d95 11d97 11ef3-11ef4 11ef7-11ef8 11fff
12ff1-12ff2 13430-13438 16e97-16e9a 16f4f 16fe2 16fe4 1cf00-1cf2d 1cf30-1cf46 1e000-1e006 1e008-1e018 1e01b-1e021 1e023-1e024
1e026-1e02a 1e130-1e136 1e2ae 1e2ec-1e2ef 1e944-1e94a 1e95e-1e95f"""
WAS = {0x166d: "Po", 0x1734: "Mn", 0x111c9: "Po"}

# Han ideographs, each a word of its own. The library has 2b920 where the block begins at 2b820.
HAN = [(0x3400, 0x4dbf), (0x4e00, 0x9fff), (0xf900, 0xfaff), (0x20000, 0x2a6df), (0x2a700, 0x2b73f), (0x2b740, 0x2b81f),
       (0x2b920, 0x2ceaf), (0x2f800, 0x2fa1f)]
COMPATIBILITY = [(0xf900, 0xfad9), (0x2f800, 0x2fa1d)]  # those of them that stand for another one, without a rule
HANGUL = range(0xac00, 0xd7a4)                          # decomposed by arithmetic
SURROGATES = range(0xd800, 0xe000)


def parse_later():
    for item in LATER.split():
        first, _, last = item.partition("-")
        yield from range(int(first, 16), int(last or first, 16) + 1)


later = set(parse_later())


def category(c):
    return WAS.get(c, "Lo" if c in later else unicodedata.category(chr(c)))


def is_space(c):
    return c in (9, 10, 13, 0x2028, 0x2029) or category(c) == "Zs"


def is_punctuation(c):
    return category(c)[0] == "P" or (c < 128 and chr(c).isprintable() and not chr(c).isalnum() and c != 32)


def fold(c):
    """Decomposed, without accents, in lower case."""
    if is_space(c):
        return [c]
    if category(c) in ("Cc", "Cf", "Co") or c == 0xfffd:
        return []
    return [ord(x.lower()) for x in unicodedata.normalize("NFD", chr(c)) if category(ord(x)) != "Mn"]


def ranges(characters):
    out = []
    for c in characters:
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def runs(folded):
    """(first, last, step, target, what is added to the target for each step): what lies between two steps is not folded."""
    out, left = [], sorted(folded)
    while left:
        first, best = left[0], None
        for step in 1, 2:
            for growth in 0, step:
                n = 1
                while folded.get(first + n * step) == folded[first] + n * growth and (
                        step == 1 or first + n * step - 1 not in folded):
                    n += 1
                if not best or n > best[0]:
                    best = n, step, growth
        n, step, growth = best
        out.append((first, first + (n - 1) * step, step, folded[first], growth))
        left = [c for c in left if c > first + (n - 1) * step]
    return out


def table(declaration, items):
    lines, line = [f"static const {declaration} = {{"], "   "
    for item in items:
        if len(line) + len(item) + 2 > 130:
            lines.append(line)
            line = "   "
        line += f" {item},"
    return "\n".join([*lines, line.rstrip(",") + "};"])


def main():
    if unicodedata.unidata_version != "14.0.0":
        sys.exit("make_unicode.py: Python 3.11 is needed, this one's Unicode is " + unicodedata.unidata_version)
    characters = [c for c in range(0x110000) if c not in SURROGATES]
    folds = {c: fold(c) for c in characters if c not in HANGUL}
    dense = [range(first, last + 1) for first, last in COMPATIBILITY]
    single = {c: to[0] for c, to in folds.items() if len(to) == 1 and to != [c] and not any(c in d for d in dense)}
    several = {c: to for c, to in folds.items() if len(to) > 1}
    assert all(len(to) <= 3 for to in several.values()) and all(len(folds[c]) == 1 for d in dense for c in d)
    pair = "{{0x{:x}, 0x{:x}}}".format
    print("/* SPDX-License-Identifier: Apache-2.0 */\n/* Made by make_unicode.py, from Unicode " + unicodedata.unidata_version +
          ". */\n#ifndef MINILM_UNICODE_H\n#define MINILM_UNICODE_H\n\n#include <stdint.h>\n\n// clang-format off\n"
          "typedef struct unicode_range {\n    uint32_t first, last;\n} unicode_range;\n")
    for name, what, members in (
            ("dropped", "Control, format and private characters, and marks that take no space: an accent is one.",
             ranges(c for c in characters if folds.get(c) == [])),
            ("spaces", "", ranges(c for c in characters if is_space(c))),
            ("punctuation", "", ranges(c for c in characters if is_punctuation(c))),
            ("han", "Ideographs.", HAN)):
        print((f"/* {what} */\n" if what else "") + table(f"unicode_range unicode_{name}[]", [pair(*r) for r in members]) + "\n")
    print("/* Characters that become another one: decomposed, without marks, in lower case. Every step-th from first to last;\n"
          " * the n-th of them becomes to + n * growth. */\n"
          "typedef struct unicode_run {\n    uint32_t first, last, to;\n    uint8_t step, growth;\n} unicode_run;")
    print(table("unicode_run unicode_runs[]", [f"{{0x{first:x}, 0x{last:x}, 0x{to:x}, {step}, {growth}}}"
                                               for first, last, step, to, growth in runs(single)]))
    for (first, last), members in zip(COMPATIBILITY, dense):
        print(f"\n/* What 0x{first:x} to 0x{last:x} become. */")
        print(table(f"uint32_t unicode_from_{first:x}[]", [f"0x{folds[c][0]:x}" for c in members]))
    print("\n/* Characters that become several; zeros fill up. */\n"
          "typedef struct unicode_split {\n    uint32_t from, to[3];\n} unicode_split;")
    print(table("unicode_split unicode_splits[]", ["{0x%x, {%s}}" % (c, ", ".join("0x%x" % x for x in to))
                                                   for c, to in several.items()]))
    print("// clang-format on\n\n#endif")


main()
