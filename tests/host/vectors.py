#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`rapt check --vectors` from end to end, in TAP: it accepts what tools/vectors writes, finds each bit that is changed, and refuses
what is no folder of vectors. Usage: vectors.py path/to/rapt. In a cross build Meson's MESON_EXE_WRAPPER comes before the command.
Needs NumPy, which tools/vectors does."""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import tap
from tap import ok

try:
    import numpy as np
except ImportError:
    print("1..0 # SKIP NumPy is not installed")
    sys.exit()

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = [*shlex.split(os.environ.pop("MESON_EXE_WRAPPER", "")), os.path.abspath(sys.argv[1]), "check", "--vectors"]


def check(folder, *options):
    p = subprocess.run([*COMMAND, str(folder), *options], capture_output=True, text=True, timeout=600)
    err = re.sub(r"^qemu-\w+: warning: .*\n", "", p.stderr, flags=re.MULTILINE)
    return p.returncode, p.stdout, err.replace(str(folder), "DIR")


def generate(folder):
    return subprocess.run([sys.executable, str(ROOT / "tools" / "vectors"), str(folder)], capture_output=True, text=True)


def alone(folder, name, to):
    """A folder with one vector of another. Returns its lines."""
    text = (folder / "manifest.ini").read_text()
    section = text[text.index(f"[{name}]"):].split("\n\n")[0].strip()
    to.mkdir()
    (to / "manifest.ini").write_text(f"order_version = 1\n\n{section}\n")
    for file in re.findall(r"\S+\.npy", section): shutil.copy(folder / file, to / file)
    return section


def of_list(text, name):
    """The types of a list in kernels/types/types.h, and their classes there: {type: class}."""
    body = re.search(rf"#define {name}\([^)]*\)((?:[^\n]*\\\n)*[^\n]*)", text)[1]
    return {kind.lower(): class_of for class_of, kind in re.findall(r"(\w+)\(RAPT_(\w+),", body)}


def test_types(folder):
    """Every type of K, V and weights is there, in each arithmetic that takes it and for each class."""
    header, types = ((ROOT / name).read_text(encoding="utf-8") for name in ("include/rapt.h", "kernels/types/types.h"))
    public = re.findall(r"^    RAPT_(\w+) =", re.search(r"typedef enum rapt_type \{(.*?)\}", header, re.S)[1], re.M)
    class_of = of_list(types, "RAPT_TYPES")
    ok(["none", *class_of] == [name.lower() for name in public], f"the {len(class_of)} types of rapt.h are those of types.h",
       (public, class_of))
    groups, ranged = of_list(types, "RAPT_INTEGER_GROUPS"), of_list(types, "RAPT_RANGED_GROUPS")
    anywhere = {"k", "v", "weight"}
    places_of = {"ELEMENT": anywhere, "WEIGHT": anywhere, "CACHE": {"k", "v"}, "MATRIX": {"weight"}, "MASK": set()}
    wanted = set()
    for kind, of in class_of.items():
        places = places_of[of]
        integers = places if kind in ("int8", *groups) or of == "MATRIX" else places & {"weight"} if kind in ranged else set()
        for arith, served in ("exact", places), ("bf16", places), ("int8", integers):
            wanted |= {(place, kind, arith, rounding) for place in served for rounding in ("fused", "unfused")}
    there = set()
    for section in (folder / "manifest.ini").read_text().split("\n\n"):
        if arith := re.search(r"^arith = (\w+)", section, re.M):
            rounding = re.search(r"^class = (\w+)", section, re.M)[1]
            there |= {(place, kind, arith[1], rounding) for place, kind in re.findall(r"^(k|v|weight) = \S+ (\w+)$", section, re.M)}
    ok(len(wanted) > 150 and there == wanted,
       f"{len(wanted)} combinations: K, V or weights, a type, an arithmetic that takes it, a class",
       f"lacking: {sorted(wanted - there)}; unknown: {sorted(there - wanted)}")


def test_changed_bits(folder, scratch):
    """One bit of a result, or another element of an input, in each file."""
    names = "exact-plain-fused", "int8-q8_0-fused", "bf16-bf16-unfused", "exact-mask-unfused", "linear-gated-fused", \
        "linear-int8-q4_1-fused", "linear-int8-q4_k-unfused", "linear-int8-q6_k-fused", "linear-exact-q4_k-fused", \
        "linear-exact-q6_k-unfused", "rms-norm-fused", "layer-norm-unfused", "rotation-halves"
    for name in names:
        one = scratch / name
        section = alone(folder, name, one)
        ok(check(one)[0] == 0, f"{name} alone")
        for key, file, kind in re.findall(r"^(\w+) = (\S+\.npy) (\w+)$", section, re.M):
            x = np.load(folder / file)
            changed, at = x.copy(), (0,) * (x.ndim - 1) + (x.shape[-1] // 2,)
            if kind == "q8_0": changed[(0,) * (x.ndim - 1) + (1,)] ^= 4  # a scale's exponent
            elif x.dtype == bool: changed[at] = ~x[at]
            elif key in ("o", "lse", "y") and kind == "f32": changed[at] = np.nextafter(x[at], x.dtype.type(np.inf))
            else: changed[at] = x[at] + x.dtype.type(1)
            np.save(one / file, changed)
            status, out, err = check(one)
            result = {"attention": "o|lse", "linear": "y"}.get(re.search(r"operation = (\S+)", section)[1], "y")
            ok(status == 1 and re.search(rf"^{re.escape(name)}: \w+: ({result})\[[\d, ]+\] is .+, wanted .+ of \d+ differ$", out, re.M),
               f"{name}: one element of {key} changed ({kind})", (status, out, err))
            np.save(one / file, x)
        for file in one.glob("*.npy"):  # the other order of bytes, and of dimensions
            x = np.load(file)
            np.save(file, np.asfortranarray(x.astype(x.dtype.newbyteorder(">")) if x.dtype.itemsize > 1 else x))
        ok(check(one)[0] == 0, f"{name}: big-endian files in Fortran order", check(one))


def test_refusals(folder, scratch):
    one = scratch / "refused"
    section = alone(folder, "exact-plain-fused", one)
    manifest, good = one / "manifest.ini", f"order_version = 1\n\n{section}\n"

    def refused(what, text, line, *options):
        manifest.write_text(text)
        status, out, err = check(one, *options)
        ok(status == 2 and not out and err == f"rapt check: {line}\n", what, (status, out, err))

    def of_vector(what, old, new, line):
        assert old in good, old
        refused(what, good.replace(old, new, 1), f"DIR/manifest.ini: [exact-plain-fused]: {line}")

    q = "q = exact-plain.q.npy f32"
    refused("another version", good.replace("version = 1", "version = 2"),
            "DIR/manifest.ini: order version 2: this library computes version 1")
    refused("no version", section, "DIR/manifest.ini: line 1: [NAME] or KEY = VALUE is needed, after order_version = 1")
    refused("a line that is nothing", good + "nothing\n",
            f"DIR/manifest.ini: line {good.count(chr(10)) + 1}: [NAME] or KEY = VALUE is needed, after order_version = 1")
    refused("no vectors", "order_version = 1\n", "DIR/manifest.ini: it has no vectors")
    refused("an unknown kernel", good, "--isa nope: no kernel of that name; there are "
            + check(one, "--isa", "nope")[2].split("there are ")[-1].strip(), "--isa", "nope")
    of_vector("an unknown operation", "operation = attention", "operation = convolution", "operation = convolution is unknown")
    of_vector("no operation", "operation = attention\n", "", "operation is missing")
    of_vector("an unknown class", "class = fused", "class = sometimes", "class = sometimes is unknown")
    of_vector("an unknown key", q, f"{q}\nscala = 1", "scala is not known, or not for this operation")
    of_vector("a key of another operation", q, f"{q}\nactivation = relu", "activation is not known, or not for this operation")
    of_vector("a tensor that is missing", f"{q}\n", "", "q is missing")
    of_vector("a file that is missing", q, "q = none.npy f32", "none.npy: No such file or directory")
    of_vector("no type", q, "q = exact-plain.q.npy", "q = exact-plain.q.npy: a file and a type are needed")
    of_vector("an unknown type", q, f"{q}1", "q = exact-plain.q.npy f321: a file and a type are needed")
    of_vector("another type than the file's", q, "q = exact-plain.q.npy f16", "exact-plain.q.npy: its dtype is '<f4', f2 is needed")
    of_vector("a file elsewhere", q, "q = ../refused/exact-plain.q.npy f32",
              "q = ../refused/exact-plain.q.npy f32: the file must lie in the folder")
    of_vector("a shape of other channels", "k = exact-plain.k.npy", "k = exact-plain.q.npy", "v: its shape is not that of the others")
    of_vector("no number", q, f"{q}\nscale = big", "scale = big is no number")
    of_vector("no integer", q, f"{q}\nprefix = 1.5", "prefix = 1.5 is no integer")
    of_vector("what the library refuses", q, f"{q}\nscale = inf", "scale = inf: must be finite, or NaN for 1/sqrt(d_k)")
    manifest.unlink()
    status, _, err = check(one)
    ok(status == 2 and err == "rapt check: DIR/manifest.ini: No such file or directory\n", "no manifest", err)
    line = generate(one).stderr
    ok(line == f"tools/vectors: {one} is there already, and is not an empty folder\n", "tools/vectors writes over nothing", line)


def main():
    with tempfile.TemporaryDirectory() as temporary:
        scratch = pathlib.Path(temporary)
        folder = scratch / "vectors"
        made = generate(folder)
        ok(made.returncode == 0 and not made.stderr, "tools/vectors", made.stderr)
        status, out, err = check(folder)
        vectors = (folder / "manifest.ini").read_text().count("\n[")
        ok(status == 0 and re.fullmatch(rf"{vectors} vectors, by( \w+)+: all equal\n", out) and vectors > 100,
           f"{vectors} vectors of docs/order.py: {out.strip()}", (status, out, err))
        test_types(folder)
        again = scratch / "again"
        generate(again)
        ok((folder / "SHA256SUMS").read_bytes() == (again / "SHA256SUMS").read_bytes(), "twice the same files")
        test_changed_bits(folder, scratch)
        test_refusals(folder, scratch)
    tap.done()


main()
