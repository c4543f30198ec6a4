#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""test.py SEQ2SEQ RAPT [TEXTS]: the example from end to end, in TAP, with all of held-out.tsv or the first TEXTS texts of it. Each line
there is a text, what it should become, and what PyTorch made of it greedily and with a beam of 4."""

import json
import os
import random
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE + "/../../tests/host")
import tap
from tap import ok

SEQ2SEQ, RAPT = map(os.path.abspath, sys.argv[1:3])
MODEL, HELD_OUT = HERE + "/model.safetensors", HERE + "/held-out.tsv"


def seq2seq(*args):
    done = subprocess.run([SEQ2SEQ, *args], capture_output=True, timeout=120)
    return done.returncode, done.stdout.decode(), done.stderr.decode(errors="replace")


def lines(*args):
    code, out, err = seq2seq(*args)
    if code: raise SystemExit(f"seq2seq {' '.join(args)}: {err}")
    return out.splitlines()


def refused(what, *args, words=()):
    """One line on standard error, with the words, nothing on standard output, exit code 2."""
    code, out, err = seq2seq(*args)
    good = (code == 2 and not out and err.startswith("seq2seq: ") and err.count("\n") == 1 and err.endswith("\n") and
            all(word in err for word in words))
    ok(good, f"refused: {what}" + (f": {err.strip()[9:]}".replace(folder + "/", "") if good else ""), f"{code} {out!r} {err!r}")


def accuracy():
    texts = folder + "/texts"
    with open(texts, "w", encoding="utf-8") as file: file.writelines(row[0] + "\n" for row in held_out)
    for beam, column in ((1, 2), (4, 3)):
        got = lines("--file", texts, "--beam", str(beam), "--batch", "64")
        differ = [(row[0], g, row[column]) for g, row in zip(got, held_out) if g != row[column]]
        ok(len(got) == len(held_out) and not differ, f"beam {beam}: {len(got)} texts become what they become in PyTorch", differ)
        right = sum(g == row[1] for g, row in zip(got, held_out))
        ok(right >= 0.98 * len(held_out), f"beam {beam}: {right} of {len(held_out)} held-out texts are right")


    with open(texts, "w", encoding="utf-8") as file: file.write("five\t5\nsix\t7\nseven\t7\tanything\n")
    said = lines("--test", texts)
    ok(said == ['"six" became "6", not "7"', "2 of 3 right (66.7 %)"], "--test shows which are wrong, and counts the others", said)


def bits():
    kernels = [k for k in json.loads(subprocess.check_output([RAPT, "info", "--json"]))["kernels"] if k["usable"]]
    few = folder + "/few"
    with open(few, "w", encoding="utf-8") as file: file.writelines(row[0] + "\n" for row in some)
    for kernel in kernels:
        said = [lines("--verify", "--file", few, "--isa", kernel["name"], "--batch", batch, "--threads", threads)
                for batch, threads in (("30", "1"), ("3", "2"))]
        ok(all(s[-1].endswith("the same bits of logits") for s in said), f"{kernel['name']}: {said[0][-1]}", said)
    for rounding in sorted({k["rounding"] for k in kernels}):
        names = [k["name"] for k in kernels if k["rounding"] == rounding]
        for beam in ("1", "4"):
            wanted = lines("--hash", "--file", few, "--isa", names[0], "--beam", beam, "--batch", "1")
            for name in names:
                others = [(b, t) for b, t in (("1", "1"), ("1", "2"), ("7", "7"), ("30", "1"), ("30", "7"))]
                same = [lines("--hash", "--file", few, "--isa", name, "--beam", beam, "--batch", b, "--threads", t) == wanted
                        for b, t in others]
                ok(len(wanted) == len(some) and all(same), f"{rounding}, beam {beam}: the bits of {name} with 1, 2 and 7 threads, for "
                   f"batches of 1, 7 and 30, are those of {names[0]}", list(zip(others, same)))


def words_of_the_command():
    ok(lines("Twenty-third  of march 1999 ", "1999-03-23") == ["1999-03-23", "the twenty-third of March nineteen ninety-nine"],
       "case and spaces do not matter")
    ok(lines("--beam", "1", "-7", "five", "--threads", "2") == lines("--", "-7", "five"), "options before and after texts, and --")
    code, out, _ = seq2seq("--help")
    ok(code == 0 and out.startswith("usage: seq2seq"), "--help")
    _, _, err = seq2seq("--file", folder + "/few")
    ok(f"{len(some)} of {len(some)}" in err, "--file tells how far it is", err)
    refused("no text")
    refused("an empty text", "")
    refused("an unknown word", "forty-two elephants")
    refused("an unknown letter", "zwölf")
    refused("several lines in one text", "five\nsix")
    refused("the second text", "five", "six sheep")
    refused("too long", "one " * 600)
    refused("an unknown option", "--beams", "3", "five")
    refused("no value", "--beam")
    for bad in ("0", "65", "-1", "3x", "", "99999999999999999999"): refused("a beam", "--beam", bad, "five")
    refused("a batch", "--batch", "0", "five")
    refused("threads", "--threads", "two", "five")
    refused("an unknown kernel", "--isa", "mmx", "five")
    refused("texts and a file", "--file", folder + "/few", "five")
    refused("verify and hash", "--verify", "--hash", "five")
    refused("a file that is not there", "--file", folder + "/none")
    refused("a folder", "--file", folder)
    for name, text in (("empty", b""), ("zero", b"five\0six\n"), ("gap", b"five\n\nsix\n"), ("plain", b"five\tsix\nseven\n")):
        with open(f"{folder}/{name}", "wb") as file: file.write(text)
    refused("a file without lines", "--file", folder + "/empty")
    refused("a file that is no text", "--file", folder + "/zero")
    refused("a line without text", "--file", folder + "/gap")
    refused("a line without a tab", "--test", folder + "/plain")


def models():
    path = folder + "/model"
    with open(MODEL, "rb") as file: good = file.read()
    size = struct.unpack("<Q", good[:8])[0]
    header, data = json.loads(good[8:8 + size]), good[8 + size:]

    def refused_model(what, content, *words):
        with open(path, "wb") as file: file.write(content)
        refused(what, "--model", path, "five", words=(path + ": ", *words))

    def changed(change, data=data, padding=8):
        other = json.loads(json.dumps(header))
        change(other)
        text = json.dumps(other).encode()
        text += b" " * (-len(text) % 8 + padding - 8)
        return struct.pack("<Q", len(text)) + text + data

    with open(path, "wb") as file: file.write(changed(lambda h: None))
    ok(lines("--model", path, "five") == lines("five"), "another way to write the same header, with \\u escapes")
    refused("a model that is not there", "--model", folder + "/none", "five", words=("No such file", ))
    refused("a model that is a folder", "--model", folder, "five", words=("not a regular file", ))
    os.mkfifo(folder + "/fifo")
    refused("a model that is a FIFO", "--model", folder + "/fifo", "five", words=("not a regular file", ))
    refused_model("an empty model", b"", "it is empty")
    refused_model("a text as a model", b"five\n" * 100, "not a safetensors file")
    for length, why in ((7, "first 8 bytes"), (8, "ends within its header"), (100, "ends within its header"),
                        (8 + size - 1, "ends within its header"), (8 + size, "it has 0 bytes of data"),
                        (len(good) - 1, f"it has {len(data) - 1} bytes of data")):
        refused_model(f"a model cut to {length} bytes", good[:length], why)
    refused_model("a header longer than any file", struct.pack("<Q", 2**64 - 1) + good[8:], "not a safetensors file")
    def update(name, **fields): return changed(lambda h: h[name].update(fields))

    def moved(name, by): return update(name, data_offsets=[offset + by for offset in header[name]["data_offsets"]])

    def renamed(begin): return changed(lambda h: [h.update({"x" + k: h.pop(k)}) for k in list(h) if k.startswith(begin)])

    first, bias = "encoder.layers.0.self_attn.in_proj_weight", "encoder.layers.0.self_attn.in_proj_bias"
    refused_model("a tensor that is missing", renamed(bias), f"no tensor '{bias}'")
    refused_model("bytes of no tensor", changed(lambda h: h.pop(bias)), "begins at byte")
    refused_model("a layer that is missing", renamed("decoder"), "no tensor 'decoder.layers.0.norm1.weight'")
    refused_model("another shape", update(first, shape=header[first]["shape"][::-1]), f"'{first}' must have the shape [288, 96]")
    refused_model("another number of bytes", changed(lambda h: h[first]["shape"].append(2)), f"'{first}'", "other bytes")
    refused_model("a shape beyond 64 bits", update(first, shape=[2**62, 2**62]), f"'{first}' is too large")
    refused_model("another rank", changed(lambda h: h[bias]["shape"].append(1)), f"'{bias}' must have the shape [288]")
    refused_model("another type", update(bias, dtype="I32"), f"'{bias}' is of type I32, F32 is needed")
    refused_model("a matrix of another type", update(first, dtype="I16"), f"'{first}' is of type I16, F32, F16 or BF16 is needed")
    refused_model("no type", update(bias, dtype="F31"), f"'{bias}' is of the unknown type 'F31'")
    refused_model("bytes outside of the file", moved(first, 10**9), "begins at byte")
    refused_model("bytes that end before they begin", changed(lambda h: h[first]["data_offsets"].reverse()), "other bytes")
    refused_model("bytes of two tensors", moved(bias, 2), "begins at byte")
    refused_model("floats between floats", changed(lambda h: None, padding=10), "'embedding.weight' is not aligned")
    odd = {"a\nb\u7f51": {**header[bias], "dtype": "F31"}}
    refused_model("an odd name", changed(lambda h: h.update(odd)), "'a?b\u7f51' is of the unknown type")
    refused_model("no metadata", changed(lambda h: h.pop("__metadata__")), "its metadata has no")
    for heads in ("0", "5", "-4", "four", "1000000", "", "4\n"):
        refused_model("heads", update("__metadata__", heads=heads), "heads are not possible")
    pieces = header["__metadata__"]["pieces"]
    refused_model("a piece too many", update("__metadata__", pieces=pieces + "\nx"), "must have the shape [215, 96]")
    refused_model("a piece without letters", update("__metadata__", pieces=pieces + "\n"), "piece 214 is empty")

    rng, strange = random.Random(3), []
    for _ in range(100):
        content = bytearray(good)
        for _ in range(rng.randint(1, 3)): content[rng.randrange(8 + size)] = rng.choice(b'\0 "\\{}[],:019aF\xff')
        with open(path, "wb") as file: file.write(content)
        code, out, err = seq2seq("--model", path, "--beam", "1", "five")
        if not (code == 0 or (code == 2 and not out and err.count("\n") == 1)): strange.append((code, out, err))
    ok(not strange, "100 headers with wrong bytes: a result, or one line of error", strange)


with open(HELD_OUT, encoding="utf-8") as file: held_out = [line.rstrip("\n").split("\t") for line in file]
held_out = held_out[:int(sys.argv[3])] if len(sys.argv) > 3 else held_out
some = held_out[:max(6, len(held_out) * 3 // 100)]  # for what is done many times
with tempfile.TemporaryDirectory() as folder:
    accuracy()
    bits()
    words_of_the_command()
    models()
tap.done()
