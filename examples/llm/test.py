#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The language model from end to end, in TAP. Usage: test.py [--short] [emulator and its options ...] PATH/llm PATH/rapt
or test.py --write FILE, which writes one of its models, with weights of every type.

Needs nothing but Python: the models are small ones that are made here, of random weights, and their logits are computed here once
more, in double precision. With LLM_MODEL=PATH.gguf in the environment, or where examples/llm/fetch has brought it, SmolLM2 as well.
In a cross build Meson's MESON_EXE_WRAPPER comes before the command. Under an emulator, and with --short, there is less of it."""
import json
import math
import os
import random
import re
import shlex
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "tests/host"))
import tap
from tap import ok

SHORT = "--short" in sys.argv[1:]
WRAPPER = shlex.split(os.environ.pop("MESON_EXE_WRAPPER", "")) + [word for word in sys.argv[1:-2] if word != "--short"]
LLM, RAPT = ([*WRAPPER, os.path.abspath(path)] for path in sys.argv[-2:])
SHORT = SHORT or bool(WRAPPER)


def execute(*command, isa=None):
    env = {**os.environ, **({"RAPT_ISA": isa} if isa else {})}
    p = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=600, env=env)
    err = p.stderr.decode(errors="replace")
    if WRAPPER:  # an emulator has remarks of its own
        err = re.sub(r"^qemu-\w+: warning: .*\n", "", err, flags=re.MULTILINE)
    return p.returncode, p.stdout, err


def llm(*args, isa=None):
    return execute(*LLM, *args, isa=isa)


NO_TEMPLATE = "llm: no chat template that is known here, so the model gets the prompt as it is\n"
TOLD = re.compile(NO_TEMPLATE + r"|(?:\r\w+: \w+ \d+ of \d+)+\n|(?:prompt|answer): \d+ tokens, .*; [\d.]+ s, [\d.a-z]+ tokens/s\n")


def answer(*args, isa=None):
    """What is printed: bytes."""
    status, out, err = llm(*args, isa=isa)
    assert (status, TOLD.sub("", err)) == (0, ""), (args, status, out, err)
    return out


def refused(what, *args, words=(), isa=None):
    """One line on standard error beside those that tell how far it is, 2, and no file that was not there before."""
    before = {name: os.stat(name).st_mtime_ns for name in os.listdir(".")}
    status, out, err = llm(*args, isa=isa)
    err = TOLD.sub("", err)
    ok(status == 2 and not out and err.startswith("llm: ") and err.count("\n") == 1 and all(word in err for word in words) and
       before == {name: os.stat(name).st_mtime_ns for name in os.listdir(".")}, f"refused: {what}: {err[5:].strip()}", (status, out, err))


# ---- Files that are GGUF -----------------------------------------------------------------------------------------------------

U32, F32, BOOL, STRING, ARRAY, U64 = 4, 6, 7, 8, 9, 10
NUMBER = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 8, "q4_K": 12, "q6_K": 14, "bf16": 30}
GROUP = {"f32": 1, "f16": 1, "bf16": 1, "q4_0": 32, "q4_1": 32, "q8_0": 32, "q4_K": 256, "q6_K": 256}


def text(s):
    s = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(s)) + s


def value(v):
    if isinstance(v, list) and v and isinstance(v[0], float): return struct.pack(f"<IIQ{len(v)}f", ARRAY, F32, len(v), *v)
    if isinstance(v, bool): return struct.pack("<I?", BOOL, v)
    if isinstance(v, int): return struct.pack("<II", U32, v)
    if isinstance(v, float): return struct.pack("<If", F32, v)
    if isinstance(v, str): return struct.pack("<I", STRING) + text(v)
    return struct.pack("<IIQ", ARRAY, STRING, len(v)) + b"".join(map(text, v))


def gguf(metadata, tensors, version=3):
    """tensors: name -> (shape, [in, out]; number of the type; bytes)"""
    head = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(metadata))
    head += b"".join(text(key) + value(v) for key, v in metadata.items())
    data = b""
    for name, (shape, number, content) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, number, len(data))
        data += content + b"\0" * (-len(content) % 32)
    return head + b"\0" * (-len(head) % 32) + data


def half(data, at):
    return struct.unpack_from("<e", data, at)[0]


def single(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def stored(kind, rng, n, size):
    """The bytes of n random elements of about that size, and their values."""
    if GROUP[kind] == 1:
        values = [rng.gauss(0, size) for _ in range(n)]
        if kind == "bf16":
            data = b"".join(struct.pack("<f", x)[2:] for x in values)
            return data, [struct.unpack("<f", b"\0\0" + data[2 * i:2 * i + 2])[0] for i in range(n)]
        data = struct.pack(f"<{n}{'f' if kind == 'f32' else 'e'}", *values)
        return data, list(struct.unpack(f"<{n}{'f' if kind == 'f32' else 'e'}", data))
    data, values = b"", []
    for _ in range(n // GROUP[kind]):
        scale, least = struct.pack("<e", size * rng.uniform(.5, 1)), struct.pack("<e", size * rng.uniform(-.5, .5))
        s, m = half(scale, 0), half(least, 0)
        if kind == "q4_K":
            d, e = struct.pack("<e", s / 300), struct.pack("<e", s / 80)
            six, bytes_ = [[rng.randrange(64) for _ in range(8)] for _ in "ab"], rng.randbytes(128)
            low, high = ([of[i:i + 4] for of in six] for i in (0, 4))  # the upper two bits of the second four lie with the first
            data += d + e + bytes(x | y >> 4 << 6 for of, others in zip(low, high) for x, y in zip(of, others))
            data += bytes(x & 15 | (y & 15) << 4 for x, y in zip(*high)) + bytes_
            values += [half(d, 0) * six[0][i // 32] * (bytes_[i // 64 * 32 + i % 32] >> i // 32 % 2 * 4 & 15) - half(e, 0) * six[1][i // 32]
                       for i in range(256)]
        elif kind == "q6_K":
            d, scales = struct.pack("<e", s / 2000), struct.pack("16b", *(rng.randrange(-128, 128) for _ in range(16)))
            codes = [[[rng.randrange(64) for _ in range(32)] for _ in range(4)] for _ in range(2)]  # two halves of four runs
            data += b"".join(bytes(x & 15 | (y & 15) << 4 for x, y in zip(of[i], of[i + 2])) for of in codes for i in range(2))
            data += b"".join(bytes(sum(run[j] >> 4 << 2 * i for i, run in enumerate(of)) for j in range(32)) for of in codes)
            data += scales + d
            numbers = [x - 32 for of in codes for run in of for x in run]
            values += [half(d, 0) * struct.unpack("16b", scales)[i // 16] * x for i, x in enumerate(numbers)]
        elif kind == "q8_0":
            scale = struct.pack("<e", s / 64)
            numbers = [rng.randrange(-128, 128) for _ in range(32)]
            data += scale + struct.pack("32b", *numbers)
            values += [half(scale, 0) * x for x in numbers]
        else:
            scale = struct.pack("<e", s / 5)
            half_bytes = rng.randbytes(16)
            data += scale + (least if kind == "q4_1" else b"") + half_bytes
            numbers = [x & 15 for x in half_bytes] + [x >> 4 for x in half_bytes]
            values += [half(scale, 0) * x + m if kind == "q4_1" else half(scale, 0) * (x - 8) for x in numbers]
    return data, [single(x) for x in values]


# ---- Models ------------------------------------------------------------------------------------------------------------------

LETTERS = {b: chr(b) for b in (*range(33, 127), *range(161, 173), *range(174, 256))}
LETTERS.update((b, chr(256 + i)) for i, b in enumerate(b for b in range(256) if b not in LETTERS))
MERGES = ["t h", "i n", "th e", "\u0120 the", "e r", "in g", "a n", "\u0120 a", "an d", "o n", "h e", "\u0120 \u0120"]
PIECES = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *LETTERS.values(), *(m.replace(" ", "") for m in MERGES)]
PROMPT = "In the beginning there was the word, and the other thing and the ring."


class Model:
    """A model of random weights: its file, and its logits."""
    def __init__(self, family, kinds, rng, width=64, inner=96, heads=4, kv_heads=2, d=16, layers=2, own=None, norms=False,
                 biases=False, window=0, rotated=None, factors=False, **metadata):
        self.__dict__.update(family=family, width=width, heads=heads, kv_heads=kv_heads, d=d, layers=layers, window=window,
                             rotated=rotated or d, epsilon=single(1e-5), base=5000.0)
        self.tensors, self.values = {}, {}
        kinds = iter(kinds * 99)

        def tensor(name, columns, rows, kind, size, base=0.0):
            data, values = stored(kind, rng, columns * rows, size)
            if base:
                values = [single(base + x) for x in values]
                data = struct.pack(f"<{len(values)}f", *values)
            self.tensors[name] = [columns, rows] if rows > 1 else [columns], NUMBER[kind], data
            self.values[name] = [values[i * columns:(i + 1) * columns] for i in range(rows)] if rows > 1 else values

        def norm(name, n):
            tensor(name, n, 1, "f32", .2, 1.0)

        def matrix(name, columns, rows):
            tensor(name, columns, rows, next(kinds), 1 / math.sqrt(columns))

        tensor("token_embd.weight", width, len(PIECES), next(kinds), 1)
        norm("output_norm.weight", width)
        if own: tensor("output.weight", width, len(PIECES), own, 1 / math.sqrt(width))
        if factors: tensor("rope_freqs.weight", self.rotated // 2, 1, "f32", .1, 2.0)
        for i in range(layers):
            part = f"blk.{i}."
            norm(part + "attn_norm.weight", width)
            norm(part + "ffn_norm.weight", width)
            for name, columns, rows in (("attn_q", width, heads * d), ("attn_k", width, kv_heads * d), ("attn_v", width, kv_heads * d),
                                        ("attn_output", heads * d, width), ("ffn_gate", width, inner), ("ffn_up", width, inner),
                                        ("ffn_down", inner, width)):
                matrix(f"{part}{name}.weight", columns, rows)
                if biases and name in ("attn_q", "attn_k", "attn_v"): tensor(f"{part}{name}.bias", rows, 1, "f32", .5)
            if norms:
                norm(part + "attn_q_norm.weight", d)
                norm(part + "attn_k_norm.weight", d)
        self.metadata = {
            "general.architecture": family, f"{family}.block_count": layers, f"{family}.context_length": 200,
            f"{family}.embedding_length": width, f"{family}.feed_forward_length": inner, f"{family}.attention.head_count": heads,
            f"{family}.attention.head_count_kv": kv_heads, f"{family}.attention.layer_norm_rms_epsilon": self.epsilon,
            f"{family}.rope.freq_base": self.base, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": PIECES, "tokenizer.ggml.merges": MERGES, "tokenizer.ggml.eos_token_id": 2, **metadata}
        if d * heads != width: self.metadata[f"{family}.attention.key_length"] = self.metadata[f"{family}.attention.value_length"] = d
        if window: self.metadata[f"{family}.attention.sliding_window"] = window
        if rotated: self.metadata[f"{family}.rope.dimension_count"] = rotated

    def write(self, path, version=3):
        Path(path).write_bytes(gguf(self.metadata, self.tensors, version))
        return path

    def logits(self, tokens):
        """Those of all tokens, by the definitions."""
        v, d = self.values, self.d

        def times(name, x):
            return [math.fsum(map(float.__mul__, row, x)) for row in v[name]]

        def norm(x, w):
            f = 1 / math.sqrt(math.fsum(a * a for a in x) / len(x) + self.epsilon)
            return [a * f * b for a, b in zip(x, w)]

        def heads(x, part, which, position):
            """q or k of a token, as heads, normalised and rotated"""
            out = [x[i:i + d] for i in range(0, len(x), d)]
            if f"{part}attn_{which}_norm.weight" in v: out = [norm(h, v[f"{part}attn_{which}_norm.weight"]) for h in out]
            half_of = self.rotated // 2
            for h in out:
                for i in range(half_of):
                    a, b = (2 * i, 2 * i + 1) if self.family == "llama" else (i, i + half_of)
                    angle = position * self.base**(-2 * i / self.rotated) / v.get("rope_freqs.weight", [1] * half_of)[i]
                    h[a], h[b] = h[a] * math.cos(angle) - h[b] * math.sin(angle), h[b] * math.cos(angle) + h[a] * math.sin(angle)
            return out

        rows = [list(v["token_embd.weight"][token]) for token in tokens]
        for layer in range(self.layers):
            part, keys, values, next_rows = f"blk.{layer}.", [], [], []
            for position, x in enumerate(rows):
                y = norm(x, v[part + "attn_norm.weight"])
                q, k, val = ([a + b for a, b in zip(times(f"{part}attn_{w}.weight", y), v.get(f"{part}attn_{w}.bias", [0] * 9999))]
                             for w in "qkv")
                keys.append(heads(k, part, "k", position))
                values.append([val[i:i + d] for i in range(0, len(val), d)])
                mixed = []
                for h, query in enumerate(heads(q, part, "q", position)):
                    g = h // (self.heads // self.kv_heads)
                    seen = range(max(0, position + 1 - (self.window or 9999)), position + 1)
                    weights = [math.exp(math.fsum(map(float.__mul__, query, keys[j][g])) / math.sqrt(d)) for j in seen]
                    mixed += [math.fsum(w * values[j][g][c] for w, j in zip(weights, seen)) / math.fsum(weights) for c in range(d)]
                x = [a + b for a, b in zip(x, times(part + "attn_output.weight", mixed))]
                y = norm(x, v[part + "ffn_norm.weight"])
                y = [g / (1 + math.exp(-g)) * u for g, u in zip(times(part + "ffn_gate.weight", y), times(part + "ffn_up.weight", y))]
                next_rows.append([a + b for a, b in zip(x, times(part + "ffn_down.weight", y))])
            rows = next_rows
        head = "output.weight" if "output.weight" in v else "token_embd.weight"
        return [times(head, norm(x, v["output_norm.weight"])) for x in rows]


KINDS = ["q8_0", "f16", "f32", "q4_0", "q4_1", "bf16"]
ALL_KINDS = [*KINDS, "q8_0", "q4_K", *KINDS, "q6_K"]  # blocks of 256 fall to ffn_down, if `inner` is 256
MODELS = {
    "llama, tied": ("llama", KINDS, {}),
    "llama, own head": ("llama", ALL_KINDS, {"inner": 256, "own": "f16", "factors": True}),
    "llama, a window, half of each head rotated": ("llama", KINDS[1:], {"window": 5, "rotated": 8}),
    "qwen2, biases": ("qwen2", KINDS[2:], {"biases": True}),
    "llama, blocks of 256, tied": ("llama", ["q6_K", "q4_K"], {"width": 256, "inner": 256, "d": 64, "layers": 1}),
    "llama, blocks of 256, own head": ("llama", ["q4_K", "q6_K"], {"width": 256, "inner": 256, "d": 64, "layers": 1, "own": "q6_K"}),
    "qwen3, norms of q and k, wide heads": ("qwen3", KINDS[4:] + KINDS, {"norms": True, "d": 32, "own": "q8_0"}),
}


def make(name, **metadata):
    family, kinds, options = MODELS[name]
    return Model(family, kinds, random.Random(name), **options, **metadata)


def floats(path):
    """A native file of f32, so that of the emulated machine, which is known by the sums of other tests to be one."""
    data = Path(path).read_bytes()
    order = ">" if "s390x" in " ".join(WRAPPER) else "<"
    return struct.unpack(f"{order}{len(data) // 4}f", data)


def test_logits():
    for name in MODELS:
        model = make(name)
        prompt = PROMPT[:40] if SHORT else PROMPT
        model.write("model.gguf", 2 + (name == "qwen2, biases"))
        ids = [int(x) for x in answer("--ids", "model.gguf", prompt).split()]
        for cache, most in ("f32", 2e-5), ("f16", 5e-3), ("q8_0", 2e-1):
            if cache == "q8_0" and model.d % 32: continue
            out = answer("--logits", "logits", "--tokens", "0", "--cache", cache, "model.gguf", prompt)
            got, want = floats("logits"), [x for row in model.logits(ids) for x in row]
            size = math.sqrt(math.fsum(x * x for x in want) / len(want))
            worst = max(abs(a - b) for a, b in zip(got, want)) / size
            ok(out == b"" and len(got) == len(want) and worst < most,
               f"{name}: the logits of {len(ids)} tokens are at most {worst:.1e} (of their size) from those in double precision, cache "
               f"of {cache}", (len(got), len(want), worst))
            os.unlink("logits")
    os.unlink("model.gguf")


# ---- The same bits -----------------------------------------------------------------------------------------------------------


def kernels():
    """The names of those that can run here, by rounding class."""
    out = {}
    for kernel in json.loads(execute(*RAPT, "info", "--json")[1])["kernels"]:
        if kernel["usable"]: out.setdefault(kernel["rounding"], []).append(kernel["name"])
    return out


def test_same_bits():
    for name in list(MODELS)[:2] if SHORT else MODELS:
        make(name).write("model.gguf")
        for rounding, names in kernels().items():
            wrong, want = [], None
            for kernel in names[:2] if WRAPPER else names:
                for options in ("", "--threads 2 --chunk 1", "--threads 5 --chunk 3", "--threads 1 --chunk 64", "--lookup 4",
                                "--lookup 64 --threads 3 --chunk 7")[::2 if SHORT else 1]:
                    got = answer("--hash", "--tokens", "60", *options.split(), "model.gguf", PROMPT, isa=kernel)
                    want = want or got
                    wrong += [(kernel, options)] * (got != want)
            ok(not wrong and re.search(rb"\n[0-9a-f]{16}\n$", want),
               f"{name}: {want.split()[-1].decode()}, {rounding}, from {', '.join(names)}, threads, chunks, guesses", wrong)
    os.unlink("model.gguf")


def test_guesses():
    make("llama, own head").write("model.gguf")
    text_ = "one two three four, one two three four, one two"
    for options in (), ("--temperature", "0.7", "--seed", "5"):
        plain = answer("--hash", "--tokens", "100", *options, "model.gguf", text_)
        right = []
        for n in "1", "5", "40":
            status, out, err = llm("--hash", "--tokens", "100", "--lookup", n, *options, "model.gguf", text_)
            right += map(int, re.findall(r"(\d+) of (\d+) guesses right", err)[0])
            ok(status == 0 and out == plain, f"guesses of {n}: what comes without {' '.join(options)}", err)
        ok(all(right[::2]) if not options else right[1], f"... where {right[::2]} of {right[1::2]} were right")
    os.unlink("model.gguf")


def test_saved():
    make("llama, tied").write("model.gguf")
    make("qwen2, biases").write("other.gguf")
    rounding = kernels()

    def run(*options, prompt=PROMPT, model="model.gguf"):
        status, out, err = llm("--hash", "--tokens", "9", *options, model, prompt)
        assert status == 0, err
        return out, int(re.search(r"(\d+) of them loaded", err)[1])

    plain, count = run()[0], len(answer("--ids", "model.gguf", PROMPT).split())
    ok(run("--save", "saved", "--chunk", "5") == (plain, 0) and run("--load", "saved", "--lookup", "3") == (plain, count - 1),
       f"a prompt that was saved: {count - 1} of {count} tokens, and the same hash")
    answer("--save", "unasked", "--tokens", "0", "model.gguf", PROMPT)
    ok(run("--load", "unasked") == (plain, count - 1), "... and one that was saved without --hash")
    longer, other = PROMPT + " And so on and on.", PROMPT[:30] + "her"
    ok(run("--load", "saved", prompt=longer)[0] == run(prompt=longer)[0] and run("--load", "saved", prompt=longer)[1] >= count - 1,
       "the beginning of a longer prompt")
    ok(run("--load", "saved", prompt=other)[0] == run(prompt=other)[0] and 5 < run("--load", "saved", prompt=other)[1] < count,
       "the beginning of another prompt")
    ok(run("--load", "saved", "--save", "saved", prompt=longer)[0] == run(prompt=longer)[0] and
       run("--load", "saved", prompt=longer)[1] > count, "loaded and saved under one name")
    answer("--hash", "--save", "saved", "--tokens", "0", "model.gguf", PROMPT)
    good = Path("saved").read_bytes()
    if len(rounding) > 1:
        refused("saved by another rounding class", "--load", "saved", "model.gguf", "x", words=("saved: not a saved", ),
                isa=rounding["unfused"][0])
    refused("saved with another cache", "--load", "saved", "--cache", "f32", "model.gguf", "x", words=("saved: not a saved", ))
    refused("saved for another model", "--load", "saved", "other.gguf", "x", words=("saved: not a saved", ))
    for what, content in (("cut short", good[:-1]), ("too long", good + b"x"), ("a head alone", good[:48]), ("half a head", good[:20]),
                          ("another file", b"x" * len(good)), ("too many tokens", good[:32] + b"\xff" * 8 + good[40:]),
                          ("changed in its last byte", good[:-1] + bytes([good[-1] ^ 1])), ("changed in a token", good[:400] + bytes([good[400] ^ 1]) + good[401:]),
                          ("empty", b"")):
        Path("saved").write_bytes(content)
        refused(f"a saved prompt that is {what}", "--load", "saved", "model.gguf", "x", words=("saved: not a saved", ))
    refused("no saved prompt", "--load", "none", "model.gguf", "x", words=("none: No such file", ))
    for name in "saved", "unasked", "model.gguf", "other.gguf": os.unlink(name)


# ---- What is drawn ---------------------------------------------------------------------------------------------------------


def pieces_text(ids):
    back = {letter: byte for byte, letter in LETTERS.items()}
    return b"".join(bytes(back[c] for c in PIECES[i]) if i > 2 else PIECES[i].encode() * (i != 2) for i in ids)


def test_drawn():
    """Against the same drawing, done here with the logits that were written."""
    make("llama, own head").write("model.gguf")
    count, n = len(answer("--ids", "model.gguf", PROMPT).split()), 40
    seen = set()
    for seed, temperature in (0, .8), (1, .8), (2**53, 1.5), (7, .3), (7, 100), (3, .01):
        out = answer("--logits", "logits", "--tokens", str(n), "--seed", str(seed), "--temperature", str(temperature), "model.gguf", PROMPT)
        rows = floats("logits")
        rows = [rows[i:i + len(PIECES)] for i in range((count - 1) * len(PIECES), len(rows), len(PIECES))]
        ids, state = [], seed
        for row in rows:
            weights = [math.exp((x - max(row)) / temperature) for x in row]
            state = (state + 0x9e3779b97f4a7c15) % 2**64
            z = (state ^ state >> 30) * 0xbf58476d1ce4e5b9 % 2**64
            z = (z ^ z >> 27) * 0x94d049bb133111eb % 2**64
            drawn, total = ((z ^ z >> 31) >> 11) / 2**53, math.fsum(weights)
            ids.append(next(i for i in range(len(row)) if math.fsum(weights[:i + 1]) > drawn * total))
        seen.add(out)
        ok(out == pieces_text(ids) + b"\n" and (len(ids) == n or ids[-1] == 2),
           f"seed {seed}, temperature {temperature}: {len(ids)} tokens are those that are drawn here", (out, ids))
    ok(len(seen) > 4, "different texts")
    for name in "model.gguf", "logits": os.unlink(name)


# ---- Tokens and templates --------------------------------------------------------------------------------------------------

CHATML = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are an "
          "inn.<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")



def ids(*args):
    return [int(x) for x in answer("--ids", *args).split()]


def spelt(*pieces):
    return [PIECES.index("".join(LETTERS[b] for b in piece.encode())) for piece in pieces]


SIGN = "\u2581"  # SentencePiece's, for a space


def sentence_ids(pieces, scores, given):
    """Tokens of a text after its space, by the definition: of all neighbours that make a piece, those with the highest score are
    joined, the first of them, again and again. The letters of a piece are pieces."""
    known = {}
    for i, piece in enumerate(pieces): known.setdefault(piece, i)
    parts = list((" " * bool(given) + given).replace(" ", SIGN))
    while True:
        pairs = [(-scores[known[a + b]], i) for i, (a, b) in enumerate(zip(parts, parts[1:])) if a + b in known]
        if not pairs: break
        i = min(pairs)[1]
        parts[i:i + 2] = ["".join(parts[i:i + 2])]
    return [t for part in parts for t in ([known[part]] if part in known else [known[f"<0x{b:02X}>"] for b in part.encode()])]


def test_sentences(model, rng):
    """SentencePiece's tokens, as Llama 2 and Mistral have them."""
    bytes_ = [f"<0x{b:02X}>" for b in (10, *range(97, 123), *"\u5b57".encode())]
    letters = sorted(set("abcdeghinort.") | {SIGN, "\u00e9", "\u6f22"})
    joined = ["th", "in", "the", SIGN + "the", "er", "ing", "an", SIGN + "a", "and", SIGN + SIGN, SIGN * 4, "he", "re", "there", "ther"]
    for what, more in ("", []), (", one of them across words", ["e" + SIGN + "t"]):
        pieces = ["<unk>", "<s>", "</s>", *joined, *more, *letters, *bytes_]
        pieces += ["x"] * (len(PIECES) - len(pieces))
        scores = [rng.choice((-1.0, -2.5, -3.0, .5, 1.5)) for _ in pieces]
        vocabulary = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": pieces, "tokenizer.ggml.scores": scores,
                      "tokenizer.ggml.bos_token_id": 1}
        Path("other.gguf").write_bytes(gguf({**model.metadata, **vocabulary}, model.tensors))
        texts = ["", " ", "the thing and then", "  there  ", "the    end.\n", "caf\u00e9 \u6f22\u5b57", "zebra"]
        texts += ["".join(rng.choice("  theringand\u00e9\u5b57") for _ in range(rng.randrange(60))) for _ in range(5 if SHORT else 40)]
        wrong = [(t, got, want) for t in texts if (got := ids("other.gguf", t)) != (want := [1, *sentence_ids(pieces, scores, t)])]
        ok(not wrong, f"{len(texts)} texts in pieces of characters{what}, bytes for others", wrong)
        printed, n = answer("--logits", "logits", "--tokens", "30", "other.gguf", "there"), len(ids("other.gguf", "there"))
        rows = floats("logits")
        rows = [rows[i:i + len(PIECES)] for i in range((n - 1) * len(PIECES), len(rows), len(PIECES))][:30]
        told = b"".join(bytes([int(piece[3:5], 16)]) if piece in bytes_ else piece.replace(SIGN, " ").encode()
                        for row in rows if (piece := pieces[row.index(max(row))]) != "</s>")
        ok(printed.rstrip(b"\n") == told.rstrip(b"\n"), f"{len(rows)} of them are printed as they are meant", (printed, told))
        os.unlink("logits")
    for key in "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_space_prefix": vocabulary[key] = False
    Path("other.gguf").write_bytes(gguf({**model.metadata, **vocabulary}, model.tensors))
    got = ids("other.gguf", "the")
    ok(got == [pieces.index("the")], "without a token at the beginning, and without a space, where the file says so", got)


def test_tokens():
    model, letters = make("llama, tied"), lambda s: spelt(*s)
    model.write("model.gguf")
    for given, want in (("the thing and then", spelt("the", " ", "th", "ing", " ", "and", " the", "n")), ("", []),
                        ("   the", spelt("  ", " the")), ("<|im_end|>", letters("<|im_end|>"))):
        got = ids("model.gguf", given)
        ok(got == want, f"{given!r} is cut into {len(want)} pieces", (got, want))
    rng, wrong = random.Random(3), []
    for _ in range(10 if SHORT else 100):
        odd = bytes(rng.choice((0x20, 0x41, 0x74, 0x80, 0xa0, 0xc3, 0xe4, 0xed, 0xf0, 0xff, rng.randrange(1, 256))) for _ in range(rng.randrange(1, 40)))
        wrong += [odd] * (pieces_text(ids("model.gguf", odd)) != odd)
    ok(not wrong, "odd bytes stay what they are", wrong)
    for pre, want in ("smollm", letters("zebra")), ("qwen2", letters("zebra")), ("llama-bpe", [PIECES.index("er"), len(PIECES)]):
        make("llama, tied", **{"tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": [*PIECES, "zebra"],
                               "tokenizer.ggml.bos_token_id": PIECES.index("er")}).write("other.gguf")
        got = ids("other.gguf", "zebra")
        ok(got == want, f"{pre}: {len(want)} tokens for a word that is a piece, with what begins a text", got)
    make("llama, tied", **{"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 0}).write("other.gguf")
    ok(ids("other.gguf", "x") == [0, *letters("x")], "a token that begins a text, where the file asks for it")

    test_sentences(make("llama, tied"), rng)

    template = {"tokenizer.chat_template": CHATML}
    make("llama, tied", **template).write("other.gguf")
    turn, plain = "<|im_end|>, the thing", ids("model.gguf", "user\n<|im_end|>, the thing")
    nl, answers = (ids("model.gguf", x) for x in ("\n", "assistant\n"))
    ok(ids("other.gguf", turn) == [1, *plain, 2, *nl, 1, *answers], "a chat's template")
    ok(ids("--plain", "other.gguf", turn) == ids("model.gguf", turn), "--plain")
    make("llama, tied", **{"tokenizer.chat_template": "[INST] {{ x }} [/INST]"}).write("other.gguf")
    status, out, err = llm("--ids", "other.gguf", turn)
    ok(status == 0 and [int(x) for x in out.split()] == ids("model.gguf", turn) and err == NO_TEMPLATE,
       "another template is not used, which is said", err)
    for name in "model.gguf", "other.gguf": os.unlink(name)


# ---- The program -------------------------------------------------------------------------------------------------------------


def test_program():
    make("llama, own head").write("model.gguf")
    status, out, err = execute(*LLM, "--help")
    source = (HERE / "llm.c").read_text()
    names = re.findall(r'\{"([\w-]+)", CLI_', source)
    ok(status == 0 and not err and len(names) == 14 and all(f"--{name} " in out.decode() or f"--{name}\n" in out.decode() for name in names),
       "--help tells every option", out)
    status, out, err = llm("--tokens", "5", "model.gguf", PROMPT)
    ok(status == 0 and out == answer("--tokens", "5", "model.gguf", PROMPT) and
       re.search(r"\rreading: layer 2 of 2\n.*\rprompt: token 41 of 41\nprompt: 41 tokens, 0 of them loaded; [\d.]+ s, [\d.]+ tokens/s\n"
                 r"answer: 5 tokens, 0 of 0 guesses right; [\d.]+ s, [\d.]+ tokens/s\n", err), "what is told", err)
    long = answer("--hash", "--tokens", "9999", "model.gguf", PROMPT)
    ok(long == answer("--hash", "--tokens", "159", "model.gguf", PROMPT) != answer("--hash", "--tokens", "158", "model.gguf", PROMPT),
       "the answer ends with the context")
    with open("/dev/full", "wb") as full:
        p = subprocess.run([*LLM, "model.gguf", "x"], stdout=full, stderr=subprocess.PIPE)
        ok(p.returncode == 2 and b"llm: standard output: " in p.stderr, "an output that is full", p.stderr)
    os.unlink("model.gguf")


def test_refusals():
    model = make("llama, tied")
    model.write("model.gguf")
    end = "model.gguf", "x"
    for what, args, *words in (
        ("nothing", (), "needed"), ("no prompt", ("model.gguf", ), "needed"), ("an unknown option", ("--what", *end), "--what"),
        ("an option twice", ("--hash", "--hash", *end), "twice"), ("no value", ("--threads", *end), "--threads"),
        ("a third argument", ("x", *end), "'x'"), ("no threads", ("--threads", "0", *end), "--threads 0", "1 to 1024"),
        ("too many threads", ("--threads", "1025", *end), "1025"), ("a fraction", ("--chunk", "1.5", *end), "1.5"),
        ("a word for a number", ("--tokens", "x", *end), "--tokens x"), ("a negative number", ("--tokens=-1", *end), "-1"),
        ("no number", ("--seed", "nan", *end), "--seed nan"), ("too large a seed", ("--seed", "9007199254740993.5e9", *end), "--seed"),
        ("65 guesses", ("--lookup", "65", *end), "0 to 64"), ("too hot", ("--temperature", "101", *end), "0 to 100"),
        ("a cache of bytes", ("--cache", "int8", *end), "--cache"),
        ("a cache of nothing", ("--cache", "none", *end), "--cache"), ("an unknown cache", ("--cache", "x", *end), "--cache"),
        ("a cache whose groups are too large", ("--cache", "q8_0", *end), "16 channels"),
        ("no folder", ("--save", "no/file", *end), "no/file: "), ("a folder to write", ("--save", ".", *end), ".: "),
        ("the model to write", ("--save", "./model.gguf", *end), "it is the model"),
        ("the model for logits", ("--logits", "model.gguf", *end), "it is the model"),
        ("no tokens", ("model.gguf", ""), "0 tokens"), ("too many tokens", ("model.gguf", "x y " * 50), "200 tokens: 1 to 199"),
        ("no model", ("none", "x"), "none: No such file"), ("a folder for a model", (".", "x"), "not a regular file"),
    ):
        refused(what, *args, words=words)
    refused("an unknown kernel", *end, isa="mmx", words=("mmx", "scalar"))
    good = Path("model.gguf").read_bytes()

    def refused_file(what, content, *words):
        Path("bad").write_bytes(content)
        refused(what, "bad", "x", words=("bad: ", *words))
        os.unlink("bad")

    def changed(what, *words, tensors=None, **metadata):
        """without what is None"""
        fields = {**model.metadata, **{key.replace("__", "."): v for key, v in metadata.items()}}
        kept = {**model.tensors, **(tensors or {})}
        refused_file(what, gguf({k: v for k, v in fields.items() if v is not None}, {k: v for k, v in kept.items() if v}), *words)

    refused_file("an empty file", b"", "not a GGUF file")
    refused_file("a text", b"once upon a time" * 9, "not a GGUF file")
    refused_file("version 1", good[:4] + b"\1" + good[5:], "version 1,")
    refused_file("a big-endian file", b"GGUF\0\0\0\3" + good[8:], "version")
    head = good.index(b"ffn_down.weight") + 60
    for n in (4, 10, 23, 24, 30, 100, 2000, head // 2, head): refused_file(f"{n} bytes of a model", good[:n])
    for n in (len(good) - 40000, len(good) - 40): refused_file(f"{n} bytes of {len(good)}", good[:n], "cut short")
    refused_file("2^63 tensors", good[:8] + b"\xff" * 7 + b"\x7f" + good[16:], "header")
    refused_file("2^63 values", good[:16] + b"\xff" * 7 + b"\x7f" + good[24:], "header")
    refused_file("an unknown type of a value", good.replace(b"llama.block_count\4", b"llama.block_count\x0d"), "header")
    refused_file("an array without an end", gguf({"x": ["y"]}, {}).replace(text("y"), b"\xff" * 8 + b"y"), "header")
    changed("no architecture", "''", general__architecture=None)
    changed("another architecture", "'gpt2'", general__architecture="gpt2")
    for key in ("block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count"):
        for v in (None, 0, 2**32 - 1, 1.5, "1"): changed(f"{key} = {v}", f"no possible {key}", **{"llama." + key: v})
    for key, v in (("attention.head_count_kv", 3), ("attention.value_length", 8), ("attention.layer_norm_rms_epsilon", None),
                   ("attention.layer_norm_rms_epsilon", math.inf), ("rope.freq_base", 0.5), ("rope.scaling.factor", 4.0),
                   ("rope.dimension_count", 3), ("attention.head_count", 5)):
        changed(f"{key} = {v}", "bad: ", **{"llama." + key: v})
    changed("heads of 2000 channels", "key_length", **{"llama.attention.key_length": 2000})
    changed("a tokenizer of sentences without scores", "score", tokenizer__ggml__model="llama")
    changed("a tokenizer of words", "'bert'", tokenizer__ggml__model="bert")
    changed("an unknown regular expression", "'tekken'", tokenizer__ggml__pre="tekken")
    changed("no regular expression", "''", tokenizer__ggml__pre=None)
    changed("more tokens than rows", "token_embd", tokenizer__ggml__tokens=[*PIECES, "x"])
    changed("no embedding", "token_embd", tensors={"token_embd.weight": None})
    changed("no tokens", "vocabulary", tokenizer__ggml__tokens=None)
    for name, (shape, number, content) in model.tensors.items():
        if "blk.1" in name or "embd" in name: continue
        changed(f"no {name}", name, tensors={name: None})
        changed(f"another shape of {name}", name, tensors={name: ([*shape[:-1], shape[-1] + 32], number, content + content)})
        changed(f"another type of {name}", name, tensors={name: (shape, 99, content)})
    name, (shape, number, content) = "blk.0.attn_q.weight", model.tensors["blk.0.attn_q.weight"]
    changed("a third dimension", "shape", tensors={name: ([*shape, 2], number, content * 2)})
    changed("a fifth dimension", "header", tensors={name: ([*shape, 1, 1, 1], number, content)})
    changed("half a group", "shape", tensors={name: ([shape[0] + 1, shape[1]], NUMBER["q8_0"], content)})
    changed("no elements", "shape", tensors={name: ([shape[0], 0], number, content)})
    changed("2^64 bytes", "shape", tensors={name: ([2**32, 2**32], number, content)})
    changed("2^62 bytes", "cut short", tensors={name: ([2**30, 2**30], number, content)})
    changed("a tensor too many", "'blk.0.attn_sinks'", tensors={"blk.0.attn_sinks": ([32], 0, bytes(128))})
    rng, seen = random.Random(5), set()
    for _ in range(40 if SHORT else 400):  # refused or run, never a crash
        at = rng.randrange(head + 500)
        Path("bad").write_bytes(good[:at] + bytes([rng.choice(b"\0\1\2\4\x08\x09\x0a\x10 x\x7f\x80\xff")]) + good[at + 1:])
        status, _, err = llm("--tokens", "2", "bad", "the thing")
        seen.add((status, TOLD.sub("", err).count("\n")))
    ok(seen <= {(0, 0), (2, 1)}, "bytes of the header changed", seen)
    for name in "bad", "model.gguf": os.unlink(name)


# ---- SmolLM2 -----------------------------------------------------------------------------------------------------------------


def smollm2():
    """The file, if there is one; it is not downloaded."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.environ.get("LLM_MODEL") or os.path.join(cache, "rapt-llm", "SmolLM2-135M-Instruct.Q4_1.gguf"))


def test_mistral():
    """Mistral's vocabulary, in SentencePiece's file of protocol buffers: field 1 is a piece, of its text, its score and its kind."""
    path = smollm2().with_name("tokenizer.model.v1")
    if not path.is_file():
        tap.skip("Mistral's vocabulary", f"{path} is not there; examples/llm/fetch --mistral-vocabulary brings it")
        return
    data, at, pieces, scores = path.read_bytes(), 0, [], []
    while data[at:at + 1] == b"\n":  # of less than 128 bytes
        piece, at = data[at + 2:at + 2 + data[at + 1]], at + 2 + data[at + 1]
        pieces.append(piece[2:2 + piece[1]])
        scores.append(struct.unpack_from("<f", piece, 3 + piece[1])[0])
    head = {"general.architecture": "llama", "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": pieces,
            "tokenizer.ggml.scores": scores, "tokenizer.ggml.bos_token_id": 1}
    Path("head").write_bytes(gguf(head, {}))
    reference = json.loads((HERE / "tokens.json").read_text())
    wrong = [(case["text"], got, case["mistral"]) for case in reference["texts"] if (got := ids("head", case["text"])) != case["mistral"]]
    ok(len(pieces) == 32000 and not wrong,
       f"Mistral: {len(reference['texts'])} texts have the tokens that {reference['made with']} gives them", wrong)
    os.unlink("head")


def test_smollm2():
    model, reference = smollm2(), json.loads((HERE / "tokens.json").read_text())
    if not model.is_file():
        tap.skip("SmolLM2", f"{model} is not there; examples/llm/fetch brings it")
        return
    with model.open("rb") as file: head = file.read(1785664)
    head = head[:head.index(text("token_embd.weight"))] if head.index(text("token_embd.weight")) > 2**20 else head
    at = head.index(b"tokenizer.ggml.pre") + 22
    for pre in "smollm", "llama-bpe", "qwen2":
        Path("head").write_bytes(head[:8] + bytes(8) + head[16:at] + text(pre) + head[at + 8 + len("smollm"):] + bytes(32))
        wrong = []
        for case in reference["texts"]:
            got = ids("--plain", "head", case["text"])
            wrong += [(case["text"], got, case[pre])] * (got != case[pre])
        ok(not wrong, f"{pre}: {len(reference['texts'])} texts have the tokens that {reference['made with']} gives them", wrong)
    os.unlink("head")
    prompt = "What is the capital of France?"
    for rounding, names in kernels().items():
        got = {name: answer("--hash", "--tokens", "4" if SHORT else "20", *options.split(), str(model), prompt, isa=name)
               for name, options in zip(names[:1] if WRAPPER else names, ("--lookup 5", "--chunk 7", "--threads 1", "--chunk 1 --threads 3") * 9)}
        ok(len(set(got.values())) == 1 and (SHORT or b"The capital of France is Paris.\n" in got[names[0]]),
           f"SmolLM2: {got[names[0]].split()[-1].decode()}, {rounding}, from {', '.join(names)}", got)
        if SHORT: continue  # an emulator would take minutes
        rows = (HERE / "README.md").read_text().splitlines()
        said = {name: answer("--plain", "--hash", "--tokens", "1", str(model), "Paris", isa=name).decode().split()[-1] for name in names}
        wrong = {name: h for name, h in said.items() if not any(h in row and name in re.split("[ ,]+", row) for row in rows)}
        ok(not wrong, f"README.md has the hashes of {', '.join(names)}", wrong)


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for test in (test_logits, test_same_bits, test_guesses, test_saved, test_drawn, test_tokens, test_program, test_refusals, test_mistral,
                     test_smollm2):
            test()
        left = os.listdir(".")
        ok(not left, "no file is left", left)
        os.chdir("/")
    tap.done()


if sys.argv[1] == "--write": make("llama, own head").write(sys.argv[2])
else: main()
