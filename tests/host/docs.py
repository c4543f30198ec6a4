#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The links and pictures of the documents, whether they name what users can set and what the headers offer, and whether tests/README.md
names each source and the tests that there are, in TAP. Usage: docs.py [--fix]

A link to a line says in its title what stands there: [text](../kernels/parts/exp.h#L10 "static inline vf v_exp2"). The title must occur
in that line of the file, and in no other. --fix writes the numbers of the lines that have the titles into the documents, draws
the pictures anew, and then tests. Needs nothing but Python."""
import fnmatch
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unicodedata
import xml.etree.ElementTree

import tap
from tap import ok

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(path for pattern in ("*.md", "docs/*.md", "docs/*/*.md", "examples/*/*.md", "integrations/*/*.md", "tests/*.md", "tests/data/*.md")
                   for path in ROOT.glob(pattern))
PICTURES, FIELD, MOST_BYTES = ROOT / "docs" / "attention", ROOT / "docs" / "field.svg", 20_000
LINK = re.compile(r'\[[^\[\]]*\]\((?P<to>[^()\s]+)(?:[ ]"(?P<title>[^"\n]*)")?\)')


def prose(text):
    """The text with all that stands in code blanked out, at the same places."""
    return re.sub(r"^```.*?^```|(?<!`)`[^`\n]+`(?!`)", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.M | re.S)


def anchors(document):
    """Those that GitHub makes of headings."""
    names = {}
    for heading in re.findall(r"^#+ +(.*?) *$", prose_headings(document), flags=re.M):
        kept = (c for c in heading.lower() if c in " -_" or unicodedata.category(c)[0] in "LN")
        name = "".join(kept).replace(" ", "-")
        names[name] = names.get(name, -1) + 1
        if names[name]:
            names[f"{name}-{names[name]}"] = 0
    return names


def prose_headings(document):
    return re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.M | re.S)


def links(document):
    """Of each link to this repository: its match, the file, what follows #, and the title."""
    for match in LINK.finditer(prose(document.read_text(encoding="utf-8"))):
        to, _, part = match["to"].partition("#")
        if not re.match(r"[a-z]+:", to):
            yield match, pathlib.Path(os.path.normpath(document.parent / to)) if to else document, part, match["title"]


def lines_with(file, title):
    return [n for n, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1) if title in line]


def fix(document):
    text, changed = document.read_text(encoding="utf-8"), 0
    for match, file, part, title in reversed(list(links(document))):
        found = lines_with(file, title) if re.fullmatch(r"L\d+", part) and title and file.is_file() else []
        if len(found) == 1 and part != f"L{found[0]}":
            start, end = match.span("to")
            text, changed = f"{text[:start]}{match['to'].partition('#')[0]}#L{found[0]}{text[end:]}", changed + 1
    if changed:
        document.write_text(text, encoding="utf-8")
        print(f"# {document.relative_to(ROOT)}: {changed} line numbers changed")


def wrong_link(file, part):
    if not file.is_relative_to(ROOT) or not file.exists():
        return "does not exist"
    if part and not re.fullmatch(r"L\d+", part) and (file.suffix != ".md" or part not in anchors(file)):
        return "has no such part"
    return ""


def wrong_line(file, part, title):
    if not title:
        return "no title says what stands in the line"
    found = lines_with(file, title)
    if not found:
        return f'"{title}" stands nowhere in it'
    if len(found) > 1:
        return f'"{title}" stands in lines {", ".join(map(str, found))}'
    return "" if part == f"L{found[0]}" else f'"{title}" is in line {found[0]}: docs.py --fix'


def test_document(document):
    name, bad_links, bad_lines, count, lines = document.relative_to(ROOT), [], [], 0, 0
    for match, file, part, title in links(document):
        count += 1
        wrong = wrong_link(file, part)
        if wrong:
            bad_links.append(f"{match['to']}: {wrong}")
        elif re.fullmatch(r"L\d+", part):
            lines += 1
            wrong = wrong_line(file, part, title)
            if wrong:
                bad_lines.append(f"{match['to']}: {wrong}")
    ok(not bad_links, f"{name}: {count} links", "\n".join(bad_links))
    if lines:
        ok(not bad_lines, f"{name}: {lines} links to lines", "\n".join(bad_lines))


def test_settings():
    """What the environment and pip can be told, the documents say."""
    sources = [path for pattern in ("dispatch/*/*.c", "cli/*.c", "python/rapt/*.py", "integrations/*/*.c", "integrations/vllm/rapt_vllm/*.py")
               for path in ROOT.glob(pattern)]
    reads = re.compile(r'(?:getenv\(|environ\.get\(|environ\[)"((?:RAPT|GGML_RAPT)_?[A-Z0-9_]*)"')
    variables = {name for path in sources for name in reads.findall(path.read_text(encoding="utf-8"))}
    extras = re.search(r"^\[project\.optional-dependencies\]\n(.*?)^$", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M | re.S)[1]
    wanted = {f"`{name}" for name in variables} | {f"pip install '.[{name}]'" for name in re.findall(r"^(\w+) =", extras, re.M)}
    said = "\n".join(document.read_text(encoding="utf-8") for document in DOCUMENTS if document.name != "CHANGELOG.md")
    lacking = sorted(what for what in wanted if what not in said)
    ok(len(wanted) >= 10 and not lacking, f"{len(wanted)} variables of the environment and extras of the package are described",
       "\n".join(lacking) or wanted)


def known_tests():
    """What tests are called: names in the files of the Meson build, and those put together there by a +; cases; stages of tools/test;
    files; kernels."""
    names = {path.name for path in (ROOT / "tests").rglob("*")} | {"targets.txt"}
    names |= set(re.findall(r"^([a-z]\w*)", (ROOT / "kernels" / "list.txt").read_text(encoding="utf-8"), re.M))
    beginnings = set()
    for path in (path for pattern in ("meson.build", "*/meson.build", "*/*/meson.build") for path in ROOT.glob(pattern)):
        for name, more in re.findall(r"'([\w-]+)'( \+)?", path.read_text(encoding="utf-8")):
            (beginnings if more else names).add(name)
    for path in (ROOT / "tests" / "check").glob("*.c"):
        names |= set(re.findall(r'"([a-z][a-z0-9-]+)"', path.read_text(encoding="utf-8")))
    for path in (ROOT / "tools" / "stages").glob("*.sh"):
        names |= set(re.findall(r"^stage ([\w-]+)", path.read_text(encoding="utf-8"), re.M))
    return names | {beginning + name for beginning in beginnings for name in names}


def test_tests():
    """tests/README.md: each source has its row, and what the rows name is there."""
    _, changed, promises, _ = re.split(r"^## .*$", (ROOT / "tests" / "README.md").read_text(encoding="utf-8"), flags=re.M)
    rows = [line.split(" | ") for line in changed.splitlines() if line.startswith("| `")]
    patterns = {name for sources, _ in rows for name in re.findall("`([^`]+)`", sources)}
    sources = {path.name for folder in ("dispatch", "kernels", "cli") for path in (ROOT / folder).rglob("*.[ch]")}
    lacking = [name for name in sorted(sources) if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
    ok(len(sources) > 100 and not lacking, f"tests/README.md has a row for each of {len(sources)} sources", "\n".join(lacking))
    there = sources | {"list.txt", "sources.txt", "*.md"}
    gone = [name for name in sorted(patterns) if not (ROOT / name).exists() and not fnmatch.filter(there, name)]
    ok(not gone, f"{len(patterns)} names of sources are there", "\n".join(gone))
    known = known_tests()
    named = set(re.findall("`([^`]+)`", promises + "".join(tests for _, tests in rows)))
    unknown = [name for name in sorted(named) if not fnmatch.filter(known, name)]
    ok(not unknown, f"{len(named)} names of tests are there", "\n".join(unknown))


def public_functions():
    """The functions and macros of functions that the headers offer, with the names of their parameters."""
    found = {}
    for header in sorted((ROOT / "include").glob("*.h")):
        text = re.sub(r"/\*.*?\*/", "", header.read_text(encoding="utf-8"), flags=re.S)
        for name, parameters in re.findall(r"^RAPT_API\s+[^;{(]*?(\w+)\(([^;]*?)\);", text, re.M | re.S):
            words = [re.search(r"\w+$", one.strip())[0] for one in parameters.split(",")]
            found[name] = [] if words == ["void"] else words
        for name, parameters in re.findall(r"^#define (rapt_\w+)\(([^)]*)\)", text, re.M):
            found[name] = [one.strip() for one in parameters.split(",")]
    return found


def test_quick_reference():
    """Each function has one line, with the parameters of the headers."""
    text = (ROOT / "docs" / "quick-reference.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)\(([^)]*)\)` \| .+ \|$", text, re.M)
    lines = [(name, parameters.split(", ") if parameters else []) for name, parameters in rows]
    there, public = dict(lines), public_functions()
    named = [name for name, _ in lines]
    wrong = [f"{name} has {named.count(name)} lines" for name in there if named.count(name) > 1]
    wrong += [f"{name} is in no header" for name in sorted(there.keys() - public.keys())]
    wrong += [f"{name} has no line" for name in sorted(public.keys() - there.keys())]
    wrong += [f"{name} takes {', '.join(public[name])}" for name in there.keys() & public.keys() if there[name] != public[name]]
    ok(len(public) > 120 and not wrong, f"quick-reference.md: {len(public)} functions of the headers", "\n".join(wrong))


def test_index():
    """What rapt.h's first comment lists by task is there."""
    text = (ROOT / "include" / "rapt.h").read_text(encoding="utf-8")
    index = re.search(r"^ \* Calls by task.*?\n \*\n(.*?)^ \*\n", text, re.M | re.S)[1]
    named, public = re.findall(r"rapt_\w+(?!\.h)\b", index), public_functions()
    unknown = sorted(name for name in named if name not in public and name not in ("rapt_layer", "rapt_pool"))
    ok(len(named) > 30 and not unknown, f"rapt.h: {len(named)} calls in its index", "\n".join(unknown))


def draw(folder, field):
    subprocess.run([sys.executable, str(PICTURES / "draw.py"), str(folder)], check=True)
    subprocess.run([sys.executable, str(ROOT / "bench" / "field.py"), str(field)], check=True)


def test_pictures():
    with tempfile.TemporaryDirectory() as folder:
        draw(folder, pathlib.Path(folder, FIELD.name))
        made = {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}
    there = {path.name: path.read_bytes() for path in (*PICTURES.glob("*.svg"), FIELD)}
    differ = sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))
    ok(not differ, f"{len(there)} pictures are what draw.py and bench/field.py make", "\n".join(f"{name} is not: docs.py --fix" for name in differ))
    large = [f"{name}: {len(data)} bytes" for name, data in sorted(there.items()) if len(data) >= MOST_BYTES]
    ok(not large, f"none has {MOST_BYTES} bytes", "\n".join(large))
    broken = []
    for name, data in sorted(there.items()):
        try:
            xml.etree.ElementTree.fromstring(data)
        except xml.etree.ElementTree.ParseError as error:
            broken.append(f"{name}: {error}")
    ok(not broken, "all are XML", "\n".join(broken))
    shown = {file for document in DOCUMENTS for _, file, _, _ in links(document)}
    unused = [name for name in sorted(there) if (FIELD if name == FIELD.name else PICTURES / name) not in shown]
    ok(not unused, "all are shown", "\n".join(unused))


def test_readme():
    """README.md is read at one sight, also as it is."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    long = [f"line {n}: {len(line)} characters" for n, line in enumerate(lines, 1) if len(line) > 130]
    ok(len(lines) <= 110 and not long, "README.md has at most 110 lines, of at most 130 characters", "\n".join([f"{len(lines)} lines", *long]))


def main():
    if sys.argv[1:] not in ([], ["--fix"]):
        sys.exit(__doc__)
    if "--fix" in sys.argv:
        draw(PICTURES, FIELD)
        for document in DOCUMENTS:
            fix(document)
    for document in DOCUMENTS:
        test_document(document)
    test_readme()
    test_pictures()
    test_settings()
    test_quick_reference()
    test_index()
    test_tests()
    tap.done()


if __name__ == "__main__":
    main()
