#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The C blocks of a document as one program, in TAP. Usage: blocks.py DOCUMENT.md >program.c

The first block of a document, which has its includes, stands at file scope. Each later one is the body of a function, and main
calls them in turn, so a block may use what the first one declares and what earlier ones have computed. Blocks prove what they
say by assert. A block that defines main is a program of its own and must be the document's only one. Compilers and asserts name
lines of the document."""
import pathlib
import re
import sys

BLOCK = re.compile(r"^```c\n(.*?)^```$", re.M | re.S)


def program(document):
    text = document.read_text(encoding="utf-8")
    blocks = [(text.count("\n", 0, found.start()) + 2, found[1]) for found in BLOCK.finditer(text)]
    if not blocks:
        sys.exit(f"{document}: no block of C")
    (line, head), bodies = blocks[0], blocks[1:]
    if "#include" not in head:
        sys.exit(f"{document}:{line}: the first block has no #include")
    if re.search(r"\bint main\(", head):
        if bodies:
            sys.exit(f"{document}:{bodies[0][0]}: a block after a whole program")
        return f'#line {line} "{document.name}"\n{head}'
    parts = ["#undef NDEBUG /* asserts are what is tested */", "#include <stdio.h>", f'#line {line} "{document.name}"', head]
    for line, body in bodies:
        parts += [f"static void block_{line}(void) {{", f'#line {line} "{document.name}"', body, "}"]
    parts.append("int main(void) {")
    for number, (line, _) in enumerate(bodies, 1):
        parts += [f"    block_{line}();", f'    puts("ok {number} - {document.name}:{line}");', "    fflush(stdout);"]
    parts += [f'    puts("1..{len(bodies)}");', "    return 0;", "}"]
    return "\n".join(parts) + "\n"


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    sys.stdout.write(program(pathlib.Path(sys.argv[1])))


if __name__ == "__main__":
    main()
