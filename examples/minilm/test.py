#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The sentence encoder from end to end, in TAP. Usage: test.py [--short] [emulator and its options ...] PATH/minilm PATH/rapt

Needs nothing but Python, and the weights, which examples/minilm/fetch brings. In a cross build Meson's MESON_EXE_WRAPPER comes
before the command. Under an emulator, and with --short, each step takes less of its input."""
import json
import math
import os
import random
import re
import resource
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import unicodedata
import xml.etree.ElementTree
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "tests/host"))
import tap
from tap import ok

HEATMAP = HERE.parent / "heatmap/heatmap"
SHORT = "--short" in sys.argv[1:]
WRAPPER = shlex.split(os.environ.pop("MESON_EXE_WRAPPER", "")) + [word for word in sys.argv[1:-2] if word != "--short"]
MINILM, RAPT = ([*WRAPPER, os.path.abspath(path)] for path in sys.argv[-2:])
EMULATED = len(MINILM) > 1
SHORT = SHORT or EMULATED
WIDTH, HEADS = 384, 12


def execute(*command, **kw):
    kw = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "timeout": 600, **kw}
    p = subprocess.run(command, **kw)
    err = p.stderr.decode(errors="replace")
    if EMULATED:  # an emulator has remarks of its own
        err = re.sub(r"^qemu-\w+: warning: .*\n", "", err, flags=re.MULTILINE)
    return p.returncode, (p.stdout or b"").decode(errors="replace"), err


def minilm(*args, model=None, **kw):
    return execute(*MINILM, "--model", model or MODEL, *args, **kw)


def refused(what, args, *words, untouched=("E.npy", ), command=minilm, **kw):
    """One line on standard error, 2, and no file."""
    before = set(os.listdir("."))
    status, out, err = command(*args, **kw)
    ok(status == 2 and err.count("\n") == 1 and not out and all(word in err for word in words) and
       set(os.listdir(".")) == before and not any(name in before for name in untouched), what, (status, out, err))


def load(path):
    """shape, values of a file of float32"""
    data = Path(path).read_bytes()
    end = 10 + struct.unpack("<H", data[8:10])[0]
    shape = eval(re.search(rb"'shape': (\(.*?\))", data[:end])[1])
    assert data[:8] == b"\x93NUMPY\1\0" and b"'<f4'" in data[:end] and len(data) == end + 4 * math.prod(shape)
    return shape, struct.unpack(f"<{math.prod(shape)}f", data[end:])


def rows(path):
    shape, values = load(path)
    assert shape[1:] == (WIDTH, )
    return [values[i * WIDTH:(i + 1) * WIDTH] for i in range(shape[0])]


def embed(texts, *options):
    """The bytes of each embedding."""
    status, out, err = minilm("--out", "E.npy", *options, "--", *texts)
    assert (status, out, err) == (0, "", ""), (status, out, err)
    bits = [struct.pack(f"<{WIDTH}f", *row) for row in rows("E.npy")]
    os.unlink("E.npy")
    assert len(bits) == len(texts)
    return bits


def tokens(texts, *options):
    """texts: of bytes, none with a line end"""
    Path("lines").write_bytes(b"\n".join(texts) + b"\n")
    status, out, err = minilm("--tokens", "--file", "lines", *options)
    os.unlink("lines")
    assert (status, err) == (0, ""), err
    return out.split("\n")[:-1]


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


# ---- Against other people's code -------------------------------------------------------------------------------------------


def test_reference():
    halves = (HERE / "reference.npy").read_bytes()
    halves = struct.unpack(f"<{200 * WIDTH}e", halves[10 + struct.unpack("<H", halves[8:10])[0]:])
    texts = REFERENCE["texts"]
    expected = {i: halves[i * WIDTH:(i + 1) * WIDTH] for i in range(len(texts))}
    chosen = [i for i in expected if not SHORT or (i % 8 == 0 and len(texts[i]["ids"]) < 40)]
    wrong, worst, largest = [], 1, 0
    for most in sorted({t["most"] for t in texts}):
        which = [i for i in chosen if texts[i]["most"] == most]
        if not which:
            continue
        given = [texts[i]["text"] for i in which]
        status, out, _err = minilm("--tokens", "--max-length", str(most), "--", *given)
        ids = [[int(x) for x in line.split()] for line in out.split("\n")[:-1]]
        wrong += [given[n] for n, i in enumerate(which) if status or ids[n] != texts[i]["ids"]]
        for i, bits in zip(which, embed(given, "--max-length", str(most))):
            got = struct.unpack(f"<{WIDTH}f", bits)
            worst = min(worst, cosine(got, expected[i]))
            largest = max(largest, *(abs(x - y) for x, y in zip(got, expected[i])))
            assert abs(math.fsum(x * x for x in got) - 1) < 1e-6
    made = " ".join(f"{k} {v}" for k, v in REFERENCE["made with"].items())
    ok(not wrong, f"the tokens of {len(chosen)} texts are those of {made}", wrong)
    ok(worst >= 0.99999 and largest < 1e-4,
       f"so are the embeddings: cosines of at least {worst:.9f}, elements {largest:.1e} apart (2^-14 of which is their float16)")
    given = [texts[i]["text"] for i in chosen if texts[i]["most"] == 256]
    exact, bf16 = ([struct.unpack(f"<{WIDTH}f", bits) for bits in embed(given, "--arith", arith)] for arith in ("exact", "bf16"))
    worst = min(map(cosine, exact, bf16))
    ok(0.9995 <= worst < 0.9999999 and embed(given[:2], "--arith", "exact") == embed(given[:2]),
       f"--arith bf16: cosines of at least {worst:.6f} with exact arithmetic")
    first = [t["ids"] for t in texts if t["most"] == 256]
    ok(minilm("--tokens", "--", *(t["text"] for t in texts if t["most"] == 256))[1].split("\n")[:-1] ==
       [" ".join(map(str, ids)) for ids in first], "256 tokens are the default")


def test_unicode():
    wrong, blocks = [], REFERENCE["unicode"][:16 if SHORT else None]
    lines = [[f"x{chr(c)}y".encode() for c in range(first, first + 4096) if c != 10 and not 0xd800 <= c < 0xe000]
             for first in range(0, 4096 * len(blocks), 4096)]
    got = iter(tokens([line for block in lines for line in block]))
    for i, block in enumerate(lines):
        if zlib.crc32("".join(next(got) + "\n" for _ in block).encode()) != blocks[i]:
            wrong.append(hex(4096 * i))
    ok(not wrong, f"every character from 0 to {4096 * len(blocks) - 1:#x} between two letters, but line ends and surrogates",
       wrong)
    if unicodedata.unidata_version == "14.0.0":
        made = execute(sys.executable, HERE / "make_unicode.py")[1]
        ok(made == (HERE / "unicode.h").read_text(), "unicode.h is what make_unicode.py makes")
    else:
        ok(True, f"unicode.h is what make_unicode.py makes # SKIP this Python's Unicode is {unicodedata.unidata_version}")


def test_attention():
    """Against the Q and K of tools/capture_minilm.py, which has the model in NumPy."""
    paragraph = re.search(r'PARAGRAPH = """\n(.*?)"""', (HERE / "../../tools/capture_minilm.py").read_text(), re.DOTALL)[1]
    data = HERE / "../../tests/data"
    for layer in (0, 5):
        status, _, err = minilm("--attention", str(layer), "--out", "A.npy", paragraph)
        assert status == 0, err
        shape, got = load("A.npy")
        (_, n, d), q = load(data / f"minilm-layer{layer}-q.npy")
        _, k = load(data / f"minilm-layer{layer}-k.npy")
        worst = 0
        for h in range(HEADS):
            keys = [k[(h * n + j) * d:][:d] for j in range(n)]
            for i in range(0, n, 4):
                row = q[(h * n + i) * d:][:d]
                p = [math.exp(sum(map(float.__mul__, row, key)) / math.sqrt(d)) for key in keys]
                total = sum(p)
                worst = max(worst, *(abs(x / total - y) for x, y in zip(p, got[(h * n + i) * n:][:n])))
        ok(shape == (HEADS, n, n) and worst < 1e-5, f"attention of layer {layer}: at most {worst:.1e} from softmax of Q and K")
        os.unlink("A.npy")


# ---- The same bits ---------------------------------------------------------------------------------------------------------


def kernels():
    """The names of those that can run here, by rounding class."""
    info = json.loads(execute(*RAPT, "info", "--json")[1])
    out = {}
    for kernel in info["kernels"]:
        if kernel["usable"]:
            out.setdefault(kernel["rounding"], []).append(kernel["name"])
    return out


def test_same_bits():
    texts = [t["text"] for t in REFERENCE["texts"] if t["most"] == 256]
    if not SHORT:
        all_of_them = embed(texts, "--threads", "1")
        for options in (("--batch", "1", "--threads", "2"), ("--batch", "200", "--threads", "3")):
            ok(embed(texts, *options) == all_of_them, f"{len(texts)} texts: the same bits with {' '.join(options)}")
        ok(embed(texts[::-1], "--batch", "13") == all_of_them[::-1], "the same bits in the other order")
    some = texts[:4] + [texts[-40], "", " ".join(texts[:9])]
    classes = []
    for rounding, names in kernels().items():
        wrong, want, want_bf16 = [], None, None
        names = names[:2] if EMULATED else names
        for name in names:
            of_bf16 = embed(some[:3], "--isa", name, "--arith", "bf16", "--batch", "2")
            want_bf16 = want_bf16 or of_bf16
            wrong += [(name, "bf16")] * (of_bf16 != want_bf16)
            for threads, batch in ("2", "3"), ("1", "32"):
                got = embed(some, "--isa", name, "--threads", threads, "--batch", batch)
                want = want or got
                wrong += [(name, threads, batch)] * (got != want)
        classes.append([struct.unpack(f"<{WIDTH}f", bits) for bits in want])
        ok(not wrong, f"{rounding}: the same bits from {', '.join(names)}, 1 and 2 threads, large and small batches", wrong)
    ok(all(cosine(a, b) > 0.999999 for a, b in zip(classes[0], classes[-1])), "the classes differ by rounding only")


# ---- The program -----------------------------------------------------------------------------------------------------------


def test_bytes():
    """What is not UTF-8 counts as nothing, in the same places as Python sees it."""
    rng = random.Random(3)
    odd = [b"", b"\0", b"a\0b", b"\xff\xfe", b"caf\xc3", b"caf\xc3\xa9", b"\xc0\xafx", b"\xe0\x80\xafx", b"\xed\xa0\x80x",
           b"\xf4\x90\x80\x80x", b"\xf0\x9f\x98", b"\xe2\x28\xa1", b"\xf0\x9f\x98\x80\x80", b"\x80\x80ab\xbf",
           b"\xf8\x88\x80\x80\x80z", b"[MASK\xc3]", b"[", b"[MASK", b"x" * 3000]
    likely = 0x20, 0x41, 0x61, 0x80, 0xa0, 0xbf, 0xc3, 0xe0, 0xe4, 0xed, 0xf0, 0xf4, 0xff
    odd += [bytes(rng.choice((*likely, rng.randrange(11, 256))) for _ in range(rng.randrange(1, 40))) for _ in range(500)]
    clean = [text.decode(errors="replace").replace("\0", "").encode() for text in odd]
    got, want = tokens(odd), tokens(clean)
    ok(got == want, f"{len(odd)} texts of odd bytes", [o for o, a, b in zip(odd, got, want) if a != b][:5])


def test_program():
    status, out, err = execute(*MINILM, "--help")
    source = (HERE / "minilm.c").read_text()
    names = re.findall(r'\{"([\w-]+)", CLI_', source)
    ok(status == 0 and not err and len(names) > 10 and all(f"--{name}" in out for name in names), "--help tells every option",
       out)

    ok(minilm("--out", "/dev/null", "a")[0] == 0, "an output that is a device")

    pair = "A man is eating food.", "The stock market fell."
    status, out, err = minilm(*pair)
    bits = embed(pair)
    want = f"{cosine(*(struct.unpack(f'<{WIDTH}f', b) for b in bits)):8.4f}"
    ok((status, out, err) == (0, f"        1       2\n1  1.0000{want}  {pair[0]}\n2{want}  1.0000  {pair[1]}\n", ""),
       "the similarities", out)
    ok(minilm("--threads=1", pair[0], "--batch=1", pair[1])[1] == out, "options with '=' and between sentences")
    ok(minilm("--", "--odd", "-x")[0] == 0 and minilm("-")[0] == 0, "sentences that begin with dashes")
    status, out, err = minilm("a\nb\x1b[31m\x7f" + "é" * 100)
    ok(out.count("\n") == 2 and "\x1b" not in out and "é" * 50 in out and "é" * 60 not in out,
       "an odd sentence is shown in a line", out)

    for what, data, count in (("lines", b"A man is eating food.\nThe stock market fell.\n", 2),
                              ("no end of the last line", b"A man is eating food.\nThe stock market fell.", 2),
                              ("ends of lines as in DOS", b"A man is eating food.\r\nThe stock market fell.\r\n", 2),
                              ("an empty line", b"\nA man is eating food.\n", 2), ("nothing", b"", 0)):
        Path("lines").write_bytes(data)
        status, out, err = minilm("--file", "lines", "--out", "E.npy")
        got = [struct.pack(f"<{WIDTH}f", *row) for row in rows("E.npy")]
        want = [] if not data else embed(["", pair[0]]) if data[:1] == b"\n" else bits
        ok((status, out, err) == (0, "", "") and got == want and len(got) == count, f"a file: {what}", (status, err))
        ok(minilm("--file", "lines", "--tokens")[1].count("\n") == count, f"its tokens: {what}")
    Path("lines").write_text("\n".join(pair * 40))
    status, out, err = minilm("--file", "lines", "--out", "E.npy", "--progress", "--batch", "32")
    ok(status == 0 and not out and re.fullmatch(r"\r32 of 80 [^\r]*\r64 of 80 [^\r]*\r80 of 80 sentences, \d+ a second\n", err),
       "--progress", err)
    status, out, err = minilm("--time", "3", *pair)
    ok(status == 0 and re.fullmatch(r"(\d+\.\d{6}\n){3}", out), "--time", (out, err))
    os.unlink("lines")
    os.unlink("E.npy")
    ok(tokens([b"one two three four"], "--max-length", "4") == ["101 2028 2048 102"] and
       tokens([b"one"], "--max-length", "2") == ["101 102"], "--max-length")


def test_refusals():
    say = ("--out", "E.npy", "Hello")
    for what, args, *words in (
        ("nothing", (), "no sentence"), ("an unknown option", (*say, "--what"), "--what"), ("a short option", (*say, "-x"), "-x"),
        ("an option twice", (*say, "--out", "F.npy"), "twice"), ("a flag with a value", (*say, "--tokens=1"), "--tokens"),
        ("no value", (*say, "--threads"), "--threads"), ("no threads", (*say, "--threads", "0"), "--threads 0", "1 to 1024"),
        ("too many threads", (*say, "--threads", "1025"), "1025"), ("a fraction", (*say, "--batch", "1.5"), "1.5"),
        ("a word for a number", (*say, "--batch", "x"), "--batch x"), ("nothing for a number", (*say, "--batch="), "--batch"),
        ("a batch of none", (*say, "--batch", "0"), "1 to 4096"),
        ("a number beyond all", (*say, "--batch", "9" * 40), "1 to 4096"),
        ("a negative number", (*say, "--max-length=-5"), "2 to 512"), ("513 tokens", (*say, "--max-length", "513"), "2 to 512"),
        ("1 token", (*say, "--max-length", "1"), "2 to 512"), ("an unknown kernel", (*say, "--isa", "mmx"), "mmx", "scalar"),
        ("an unknown arithmetic", (*say, "--arith", "int8"), "--arith int8", "exact or bf16"),
        ("an unknown kernel, unused", ("--isa", "mmx", "--tokens", "a"), "mmx"),
        ("a file and sentences", (*say, "--file", "x"), "--file"), ("a file alone", ("--file", "x"), "--out"),
        ("no such file", ("--file", "no.txt", "--out", "E.npy"), "no.txt: No such file"),
        ("a folder as file", ("--file", ".", "--out", "E.npy"), ".: Is a directory"),
        ("a file name with a line end", ("--file", "n\no", "--out", "E.npy"), "n?o"),
        ("--tokens and --out", (*say, "--tokens"), "--tokens"),
        ("--tokens and --time", ("--tokens", "--time", "1", "a"), "--time"),
        ("--attention without --out", ("--attention", "1", "a"), "--out"),
        ("layer 6", (*say, "--attention", "6"), "0 to 5"), ("attention of two", (*say, "b", "--attention", "0"), "one sentence"),
        ("attention and time", (*say, "--attention", "0", "--time", "1"), "--time"),
        ("no times", ("a", "--time", "0"), "--time 0"),
        ("an output in no folder", ("--out", "no/E.npy", "a"), "no/E.npy: it cannot be written"),
        ("an output that is a folder", ("--out", ".", "a"), ".: it cannot be written"),
    ):
        refused(what, args, *words)
    refused("RAPT_ISA of a kernel that is unknown", say, "RAPT_ISA=mmx", env={**os.environ, "RAPT_ISA": "mmx"})
    for kernel in json.loads(execute(*RAPT, "info", "--json")[1])["kernels"]:
        if not kernel["usable"]:
            refused("a kernel that cannot run", (*say, "--isa", kernel["name"]), kernel["name"], "lacks")
            break

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    refused("a full disk", say, "E.npy: it cannot be written", preexec_fn=small_files, restore_signals=False)
    with open("/dev/full", "wb") as full:
        status, _, err = minilm("--tokens", "a", stdout=full)
    ok(status == 2 and err.count("\n") == 1 and "standard output" in err, "a full standard output", (status, err))
    refused("no model", say, "no/vocab.txt: No such file", model="no")
    env = {**os.environ, "XDG_CACHE_HOME": "/nowhere"}
    refused("no model where fetch puts it", say, "/nowhere/rapt-minilm/vocab.txt: No such file", "examples/minilm/fetch",
            command=lambda *args, **kw: execute(*MINILM, *args, **kw), env=env)


def test_vocabularies():
    os.mkdir("bad")
    os.symlink(os.path.join(MODEL, "model.safetensors"), "bad/model.safetensors")
    pieces = (Path(MODEL) / "vocab.txt").read_bytes()
    for what, data, *words in (
        ("an empty vocabulary", b"", "no [UNK]"), ("one without [SEP]", pieces.replace(b"[SEP]", b"[sep]"), "no [SEP]"),
        ("a piece twice", pieces.replace(b"\nthe\n", b"\na\n"), "line 1997: a piece that was there before"),
        ("an empty line", pieces.replace(b"\nthe\n", b"\n\n"), "line 1997: no piece"),
        ("a piece too few", pieces.replace(b"\nthe\n", b"\n"), "30521 pieces"), ("one too many", pieces + b"new\n", "30523"),
        ("zeros", b"\0" * 1000, "no [UNK]"),
    ):
        Path("bad/vocab.txt").write_bytes(data)
        refused(what, ("--out", "E.npy", "a"), "bad/vocab.txt: ", *words, model="bad")
    os.unlink("bad/vocab.txt")
    os.mkdir("bad/vocab.txt")
    refused("a folder for a vocabulary", ("--tokens", "a"), "not a regular file", model="bad")
    os.rmdir("bad/vocab.txt")
    os.mkfifo("bad/vocab.txt")
    refused("a FIFO for a vocabulary", ("--tokens", "a"), "not a regular file", model="bad")
    os.unlink("bad/vocab.txt")
    os.unlink("bad/model.safetensors")
    os.rmdir("bad")


def test_weights():
    os.mkdir("bad")
    os.symlink(os.path.join(MODEL, "vocab.txt"), "bad/vocab.txt")
    path = Path("bad/model.safetensors")
    with open(Path(MODEL) / "model.safetensors", "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        head = file.read(size)
    data = os.path.getsize(Path(MODEL) / "model.safetensors") - 8 - size
    parsed = json.loads(head)

    def write(header, length=None, bytes_=data):
        """The data are a hole in the file."""
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(header) if length is None else length) + header)
        os.truncate(path, 8 + len(header) + bytes_)

    def changed(name, **fields):
        return dump({**parsed, name: {**parsed[name], **fields}})

    def dump(value):
        return aligned(json.dumps(value).encode())

    def aligned(header):
        return header.rstrip() + b" " * (-len(header.rstrip()) % 8)

    last = max((k for k in parsed if k[0] != "_"), key=lambda k: parsed[k]["data_offsets"][1])
    bias = "embeddings.LayerNorm.bias"
    write(head)
    ok(minilm("--out", "E.npy", "a", model="bad")[0] == 0, "weights of zeros are weights")
    os.unlink("E.npy")
    for what, header, kw, *words in (
        ("half a length", b"", {"length": 0, "bytes_": -4}, "first 8 bytes"),
        ("another file", b"PK\3\4" * 100, {"length": 0x504b030450}, "not a safetensors file"),
        ("a header longer than the file", head, {"length": len(head) + data + 1}, "ends within its header"),
        ("a header of 2^64 - 1 bytes", head, {"length": 2**64 - 1}, "not a safetensors file"),
        ("a header of 0 bytes", b"", {}, "malformed header"),
        ("half a header", head[:5000], {}, "malformed header"),
        ("zeros for a header", b"\0" * 100, {}, "malformed header, at its byte 0"),
        ("no object", b"[1, 2]  ", {}, "malformed header"),
        ("an empty object", b"{}      ", {"bytes_": 0}, "no tensor 'embeddings.word_embeddings.weight'"),
        ("an empty object and data", b"{}      ", {"bytes_": 16}, "16 bytes of data, its header describes 0"),
        ("something after the object", head.rstrip() + b"x", {}, "malformed header"),
        ("a tensor that is a number", aligned(head.replace(b'{"__', b'{"x":1,"__', 1)), {}, "malformed header"),
        ("a quote without an end", head.replace(b'"F32"', b'"F32', 1), {}, "malformed header"),
        ("a line end in a name", head.replace(b'.bias"', b'.bi\ns"', 1), {}, "malformed header"),
        ("many brackets", b"{" * 100000, {}, "malformed header"),
        ("a field too many", changed(bias, what=[1]), {}, "malformed header"),
        ("no dtype", dump({**parsed, bias: {k: v for k, v in parsed[bias].items() if k != "dtype"}}), {}, "malformed header"),
        ("a dtype of 100 letters", changed(bias, dtype="F" * 100), {}, "malformed header"),
        ("an unknown dtype", changed(bias, dtype="F33"), {}, f"'{bias}' is of the unknown type 'F33'"),
        ("another dtype", changed(bias, dtype="I32"), {}, f"'{bias}' is of type I32, F32 is needed"),
        ("a shape of 9 dimensions", changed(bias, shape=[1] * 8 + [384]), {}, "malformed header"),
        ("a negative shape", changed(bias, shape=[-384]), {}, "malformed header"),
        ("a shape of fractions", changed(bias, shape=[384.5]), {}, "malformed header"),
        ("a shape beyond all numbers", changed(bias, shape=[10**30]), {}, "malformed header"),
        ("a shape whose product overflows", changed(bias, shape=[2**32, 2**32]), {}, "too large"),
        ("a shape of other bytes", changed(bias, shape=[383]), {}, "other bytes"),
        ("another shape", changed(bias, shape=[2, 192]), {}, f"'{bias}' must have the shape [384]"),
        ("three offsets", changed(bias, data_offsets=[0, 1, 2]), {}, "malformed header"),
        ("offsets the wrong way round", changed(bias, data_offsets=[5632, 4096]), {}, "other bytes"),
        ("tensors that overlap", changed(bias, data_offsets=[0, 1536]), {}, "begins at byte"),
        ("offsets beyond the file", changed(last, data_offsets=[2**62, 2**62 + 589824]), {}, "begins at byte"),
        ("offsets beyond all numbers", changed(last, data_offsets=[2**63, 2**63 + 1536]), {}, "malformed header"),
        ("a tensor twice", aligned(head.rstrip()[:-1] + b"," + json.dumps({bias: parsed[bias]}).encode()[1:]), {},
         f"'{bias}' is there twice"),
        ("a tensor twice, once with an escape",
         aligned(head.rstrip()[:-1] + b"," + json.dumps({bias: parsed[bias]}).replace("emb", "\\u0065\\u006Db").encode()[1:]), {},
         f"'{bias}' is there twice"),
        ("no such tensor", aligned(head.replace(bias.encode(), b"bias")), {}, f"no tensor '{bias}'"),
        ("half a tensor at the end", head, {"bytes_": parsed[last]["data_offsets"][0] + 100}, "its header describes"),
        ("data one byte short", head, {"bytes_": data - 1}, f"{data - 1} bytes of data"),
        ("data one byte long", head, {"bytes_": data + 1}, f"{data + 1} bytes of data"),
        ("data at an odd place", head + b" ", {}, "is not aligned"),
        ("metadata that are no strings", head.replace(b'"pt"', b'1234', 1), {}, "malformed header"),
        ("an unknown escape", aligned(head.replace(b'"pt"', b'"\\q"', 1)), {}, "malformed header"),
        ("half a character", aligned(head.replace(b'"pt"', b'"\\ud83d"', 1)), {}, "malformed header"),
        ("an escape of no character", aligned(head.replace(b'"pt"', b'"\\u0000"', 1)), {}, "malformed header"),
        ("half an escape", aligned(head.replace(b'"pt"', b'"\\u00"', 1)), {}, "malformed header"),
        ("metadata twice", aligned(head.replace(b'{"__', b'{"__metadata__":{},"__', 1)), {}, "malformed header"),
    ):
        write(header, **kw)
        refused(what, ("--out", "E.npy", "a"), "bad/model.safetensors: ", *words, model="bad")
    os.truncate(path, 0)
    refused("an empty file", ("--out", "E.npy", "a"), "it is empty", model="bad")
    write(aligned(head.replace(b'"pt"', b'"p\\"t\\u00e9\\ud83d\\ude00", "x": "y"', 1)))
    ok(minilm("--out", "E.npy", "a", model="bad")[0] == 0, "escapes in metadata")
    os.unlink("E.npy")
    seen = set()
    rng = random.Random(5)
    for i in range(0, 700, 60 if SHORT else 9):  # refused or run, never a crash
        write(head[:i] + bytes([rng.choice(b'\0"{}[],:0\\ \xff9')]) + head[i + 1:])
        status, _, err = minilm("--out", "E.npy", "a", model="bad")
        seen.add((status, err.count("\n"), os.path.exists("E.npy")))
        Path("E.npy").unlink(missing_ok=True)
    ok(seen <= {(0, 0, True), (2, 1, False)}, "bytes of the header changed", seen)
    os.unlink(path)
    refused("no weights", ("--out", "E.npy", "a"), "bad/model.safetensors: No such file", model="bad")
    os.mkdir(path)
    refused("a folder for weights", ("--out", "E.npy", "a"), "not a regular file", model="bad")
    os.rmdir(path)
    os.mkfifo(path)
    refused("a FIFO for weights", ("--out", "E.npy", "a"), "not a regular file", model="bad")
    os.unlink(path)
    os.unlink("bad/vocab.txt")
    os.rmdir("bad")


def test_heatmap():
    if EMULATED:
        ok(True, "heatmap # SKIP it starts the program by itself")
        return
    heatmap = (sys.executable, HEATMAP, "--minilm", MINILM[0], "--model", MODEL)
    for options, title in (((), "layer 5, mean of the heads"), (("--layer", "0", "--head", "11"), "layer 0, head 11")):
        status, out, err = execute(*heatmap, *options, "--out", "H.svg", "<b> & café")
        picture = xml.etree.ElementTree.parse("H.svg").getroot()
        svg = "{http://www.w3.org/2000/svg}"
        words = [text.text for text in picture.iter(svg + "text")]
        cells = [float(cell.text.rsplit(" ", 1)[1]) for cell in picture.iter(svg + "title")]
        pieces = ["[CLS]", "<", "b", ">", "&", "cafe", "[SEP]"]
        ok(status == 0 and not out + err and words[0].startswith(title) and words[1:15:2] == pieces and len(cells) == 49 and
           all(abs(sum(cells[i * 7:i * 7 + 7]) - 1) < 1e-3 for i in range(7)), f"heatmap: {title}", (status, err, words, cells))
        os.unlink("H.svg")
    for what, args, *words in (
        ("layer 6", ("--layer", "6", "--out", "H.svg", "a"), "--layer"),
        ("head 12", ("--head", "12", "--out", "H.svg", "a"), "--head"),
        ("no output", ("a", ), "--out"), ("no sentence", ("--out", "H.svg"), "sentence"),
        ("an output in no folder", ("--out", "no/H.svg", "a"), "no/H.svg: it cannot be written"),
        ("no program", ("--minilm", "./no", "--out", "H.svg", "a"), "./no: No such file"),
        ("no model", ("--model", "no", "--out", "H.svg", "a"), "no/vocab.txt: No such file"),
    ):
        refused(f"heatmap: {what}", args, "heatmap: ", *words, untouched=("H.svg", ),
                command=lambda *args, **kw: execute(*heatmap, *args, **kw))


def main():
    global MODEL, REFERENCE
    fetched = subprocess.run([sys.executable, HERE / "fetch"], capture_output=True, text=True)
    if fetched.returncode:
        print(f"1..0 # SKIP the weights cannot be had: {fetched.stderr.splitlines()[-1]}")
        return
    MODEL = fetched.stdout.strip()
    REFERENCE = json.loads((HERE / "reference.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for test in (test_reference, test_unicode, test_attention, test_same_bits, test_bytes, test_program, test_refusals,
                     test_vocabularies, test_weights, test_heatmap):
            if not (SHORT and test is test_same_bits):  # which takes long, and whose errors sanitizers do not see
                test()
        left = os.listdir(".")
        ok(not left, "no file is left", left)
        os.chdir("/")
    tap.done()


main()
