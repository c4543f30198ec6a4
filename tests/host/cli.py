#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The CLI from end to end, in TAP. Usage: cli.py [--system] [--slow] [emulator and its options ...] path/to/rapt

With --system, only what depends on the system: files, output, signals. With --slow, for builds with sanitizers, `rapt tune` may find
no time for its search in 3 s; otherwise it gets up to a minute. In a cross build Meson's MESON_EXE_WRAPPER comes before the
command. Needs nothing but Python; NumPy's own reader and
writer are tried too where it is installed."""
import itertools
import json
import math
import os
import pathlib
import random
import re
import resource
import shlex
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time

import tap
from npy import frame, header
from tap import ok

COMMAND = shlex.split(os.environ.pop("MESON_EXE_WRAPPER", ""))
arguments = sys.argv[1:]
SYSTEM, SLOW = (option in arguments and not arguments.remove(option) for option in ("--system", "--slow"))
COMMAND += [os.path.abspath(a) if os.path.exists(a) else a for a in arguments]
WINDOWS = COMMAND[-1:] and COMMAND[-1].endswith(".exe")  # by wine: files are those of this machine, but for their modes and /dev


def rapt(*args, env=None, **kw):
    kw = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "timeout": 120, **kw}
    p = subprocess.run(COMMAND + list(args), env={**os.environ, **(env or {})}, **kw)
    out, err = (p.stdout or b"").decode(), p.stderr.decode(errors="replace")
    if WINDOWS:
        out, err = out.replace("\r\n", "\n"), err.replace("\r\n", "\n")
    if len(COMMAND) > 1:  # an emulator has remarks of its own
        err = re.sub(r"^qemu-\w+: warning: .*\n", "", err, flags=re.MULTILINE)
    return p.returncode, out, err


def started(*args, **kw):
    """The running command, which somebody else waits for."""
    return subprocess.Popen(COMMAND + list(args), **{"stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL, **kw})


# ---- .npy files, by hand ---------------------------------------------------------------------------------------------------


def code(descr):
    return {"=": "=", "|": "="}.get(descr[0], descr[0]), {"f2": "e", "f4": "f", "b1": "?"}[descr[1:]]


def pack(values, descr="<f4"):
    order, letter = code(descr)
    return struct.pack(f"{order}{len(values)}{letter}", *values)


def save(path, shape, values, descr="<f4", fortran=False, version=1):
    """values in C order."""
    assert len(values) == math.prod(shape)
    if fortran:
        strides = [math.prod(shape[i + 1:]) for i in range(len(shape))]
        indices = itertools.product(*map(range, shape[::-1]))
        values = [values[sum(i * s for i, s in zip(index[::-1], strides))] for index in indices]
    with open(path, "wb") as f:
        f.write(frame(header(shape, descr, fortran), version) + pack(values, descr))


def load(path):
    """descr, shape, values"""
    with open(path, "rb") as f:
        data = f.read()
    size = struct.unpack("<H", data[8:10])[0]
    h = eval(data[10:10 + size].decode())
    assert data[:8] == b"\x93NUMPY\1\0" and not h["fortran_order"] and (10 + size) % 64 == 0 and data[9 + size] == 10
    order, letter = code(h["descr"])
    values = struct.unpack(f"{order}{math.prod(h['shape'])}{letter}", data[10 + size:])
    return h["descr"], h["shape"], values


def contents(path):
    try:
        with open(path, "rb") as f:
            return f.read()
    except FileNotFoundError:
        return None


rng = random.Random(20170612)


def normals(count):
    return [struct.unpack("<f", struct.pack("<f", rng.gauss(0, 1)))[0] for _ in range(count)]


# ---- Attention, by hand ----------------------------------------------------------------------------------------------------


def allowed(i, j, q_len, keys, causal=None, window=(-1, -1), prefix=0, chunk=0):
    at = i if causal == "top-left" else i + keys - q_len
    seen = ((not causal or j <= at) and (window[1] < 0 or j <= at + window[1])) or j < prefix
    return j < keys and seen and (window[0] < 0 or j >= at - window[0]) and (not chunk or j // chunk == at // chunk)


def attention(q, k, v, B, H, Hkv, S, Skv, D, Dv, causal=None, window=(-1, -1), scale=None, lens=None, prefix=0, chunk=0,
              mask=None, bias=None, softcap=None, slopes=None, sinks=None):
    """q, k, v as [B,H,S,D] in C order; returns o and lse likewise. mask and bias are all [B,H,S,Skv], slopes and sinks [B,H]."""
    o, lse = [], []
    scale = 1 / math.sqrt(D) if scale is None else scale
    for b, h, i in itertools.product(range(B), range(H), range(S)):
        base = (b * Hkv + h // (H // Hkv)) * Skv
        row, keys = q[((b * H + h) * S + i) * D:][:D], lens[b] if lens else Skv
        at, element = (i if causal == "top-left" else i + keys - S), ((b * H + h) * S + i) * Skv
        js, s = [], []
        for j in range(Skv):
            x = scale * sum(x * y for x, y in zip(row, k[(base + j) * D:][:D]))
            x = softcap * math.tanh(x / softcap) if softcap else x
            x -= slopes[b * H + h] * abs(at - j) if slopes else 0
            x += bias[element + j] if bias else 0
            if allowed(i, j, S, keys, causal, window, prefix, chunk) and (not mask or mask[element + j]) and x > -math.inf:
                js.append(j)
                s.append(x)
        m = max(s + ([sinks[b * H + h]] if sinks else []), default=0)
        p = [math.exp(x - m) for x in s]
        total = sum(p) + (math.exp(sinks[b * H + h] - m) if sinks else 0)
        o += [sum(x * v[(base + j) * Dv + c] for x, j in zip(p, js)) / total if js else 0.0 for c in range(Dv)]
        lse.append(m + math.log(total) if total else -math.inf)
    return o, lse


def close(a, b, tolerance):
    return len(a) == len(b) and all(x == y or abs(x - y) <= tolerance * (1 + abs(y)) for x, y in zip(a, b))


def same(a, b):
    return len(a) == len(b) and all(x == y or (x != x and y != y) for x, y in zip(a, b))


def transposed(values, B, H, S, D):
    """[B,H,S,D] to [B,S,H,D]."""
    return [values[((b * H + h) * S + i) * D + c] for b, i, h, c in itertools.product(range(B), range(S), range(H), range(D))]


def expanded(values, shape, full):
    """NumPy's broadcasting."""
    shape = (1, ) * (len(full) - len(shape)) + tuple(shape)
    strides = [0 if n == 1 else math.prod(shape[i + 1:]) for i, n in enumerate(shape)]
    return [values[sum(x * s for x, s in zip(index, strides))] for index in itertools.product(*map(range, full))]


# ---- Types of caches, by hand ----------------------------------------------------------------------------------------------


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def f16(x):
    return struct.unpack("<e", struct.pack("<e", x))[0]


def half_away(x):
    """C's roundf()."""
    return math.copysign(math.floor(abs(x) + 0.5), x)


def small_floats(exponent_bits, fraction_bits, largest):
    bias, ones = (1 << exponent_bits - 1) - 1, 1 << fraction_bits
    return [x for e in range(1 << exponent_bits) for f in range(ones)
            if (x := (f / ones * 2.0**(1 - bias) if e == 0 else (1 + f / ones) * 2.0**(e - bias))) <= largest]


FP8 = {"f8_e4m3": small_floats(4, 3, 448), "f8_e5m2": small_floats(5, 2, 57344)}


E2M1 = small_floats(2, 1, 6)
MX = {"mxfp4": (E2M1, 2), "mxfp8_e4m3": (FP8["f8_e4m3"], 8)}  # the elements' magnitudes, and the exponent of the largest


def nearest(magnitudes, x):
    """x rounded to one of these magnitudes, with its sign; of two as near, to the one of even index."""
    return math.copysign(min(enumerate(magnitudes), key=lambda it: (abs(it[1] - abs(x)), it[0] % 2))[1], x)


def group_of(kv_type):
    """The channels of a group."""
    return 16 if kv_type == "nvfp4" else 32


def quantized(kv_type, x):
    """What the numbers of a head's token become, read back; all steps in f32, as include/rapt.h has them."""
    if kv_type in FP8:
        return [nearest(FP8[kv_type], y) for y in x]
    if kv_type == "int8":
        factor = f32(max(map(abs, x)) / 127)
        return [f32(round(f32(y / factor)) * factor) if factor else 0.0 for y in x]
    out = []
    for start in range(0, len(x), group_of(kv_type)):
        g = x[start:start + group_of(kv_type)]
        extreme, least, most = max(g, key=abs), min(g), max(g)
        if kv_type in MX:
            table, exponent = MX[kv_type]
            s = 2.0 ** max(math.frexp(extreme)[1] - 1 - exponent, -127)
            out += [nearest(table, y / s) * s for y in g]
        elif kv_type == "nvfp4":
            s = nearest(FP8["f8_e4m3"], f32(abs(extreme) / 6))
            out += [nearest(E2M1, f32(y / s)) * s if s else 0.0 for y in g]
        elif kv_type == "int4":
            s = f16(extreme / -8)
            out += [s * (min(max(round(f32(y / s) + 8), 0), 15) - 8) for y in g]
        elif kv_type == "int4_min":
            s, m = f16(f32(f32(most - least) / 15)), f16(least)
            out += [f32(s * min(max(round(f32(f32(y - m) / s)), 0), 15) + m) for y in g]
        elif kv_type == "q8_0":
            s = f32(abs(extreme) / 127)
            out += [f16(s) * half_away(f32(y * f32(1 / s))) for y in g]
        elif kv_type in ("q4_0", "q5_0"):
            half = 8 if kv_type == "q4_0" else 16
            s = f32(extreme / -half)
            out += [f16(s) * (min(int(f32(f32(y * f32(1 / s)) + (half + 0.5))), 2 * half - 1) - half) for y in g]
        else:
            top = {"q4_1": 15, "q5_1": 31}[kv_type]
            s = f32(f32(most - least) / top)
            out += [f32(f16(s) * min(int(f32(f32(f32(y - least) * f32(1 / s)) + 0.5)), top) + f16(least)) for y in g]
    return out


KV_TYPES = *FP8, "int8", "int4", "int4_min", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", *MX, "nvfp4"

# ---- Tests -----------------------------------------------------------------------------------------------------------------


QKV = ["--q", "Q.npy", "--k", "K.npy", "--v", "V.npy"]
RUN = ["run", *QKV, "--out", "O.npy"]


def refused(what, args, *words, program="rapt run", env=None, **kw):
    """Exit 2, one line, and no file touched, whether the output was there before (every other time) or not."""
    if tap.count % 2:
        with open("O.npy", "wb") as f:
            f.write(b"untouched")
    elif os.path.exists("O.npy"):
        os.unlink("O.npy")
    before = sorted(os.listdir(".")), contents("O.npy")
    status, out, err = rapt(*args, env=env, **kw)
    good = (status == 2 and not out and err.startswith(program + ": ") and err.count("\n") == 1 and err.endswith("\n") and
            all(w in err for w in words) and before == (sorted(os.listdir(".")), contents("O.npy")))
    ok(good, f"refused: {what}", f"{shlex.join(args)}\nexit {status}\n{out}{err}")
    if os.path.exists("O.npy"):
        os.unlink("O.npy")


def test_help():
    for args, start in (["--help"], "usage: rapt run"), (["run", "--help"], "usage: rapt run --q"), \
            (["info", "--help"], "usage: rapt info"), (["check", "--help"], ""), (["tune", "--help"], "usage: rapt tune"):
        status, out, err = rapt(*args)
        ok(status == 0 and out.startswith(start) and out and not err, "help: " + " ".join(args), (status, out, err))
        for other in [["-h"], ["help"]] if args == ["--help"] else [[args[0], "-h"], ["help", args[0]], ["-h", args[0]]]:
            ok(rapt(*other) == (status, out, err), f"help: {' '.join(other)}, the same", rapt(*other))
    status, out, err = rapt("--version")
    ok(status == 0 and re.fullmatch(r"rapt \d+\.\d+\.\d+\n", out) and not err, "--version", (status, out, err))
    status, out, err = rapt()
    ok(status == 2 and not out and err.startswith("usage: rapt"), "no command", (status, out, err))
    refused("unknown command", ["walk"], "walk", program="rapt")
    refused("help for an unknown command", ["help", "walk"], "'walk'", program="rapt")
    refused("help for two commands", ["help", "run", "info"], "'info'", program="rapt run")
    refused("--version with more", ["--version", "x"], "'x'", program="rapt")
    refused("an option of check that is none", ["check", "--nonsense"], "nonsense", program="rapt check")
    if os.path.exists("/dev/full"):
        with open("/dev/full", "wb") as full:
            status, _, err = rapt("info", stdout=full)
        ok(status == 2 and err.startswith("rapt: standard output: "), "a full standard output", (status, err))


def test_info():
    """Returns the kernels that can run, as {rounding: [names]}."""
    status, text, err = rapt("info")
    status_json, out, err_json = rapt("info", "--json")
    ok(status == status_json == 0 and not err and not err_json, "info and info --json", err + err_json)
    info = json.loads(out)
    ok(set(info) == {"version", "cpu", "features", "kernels", "types", "chosen", "self_check"} and
       all(set(k) == {"name", "rounding", "usable", "missing"} for k in info["kernels"]) and
       all(set(t) == {"name", "tensors", "bits"} for t in info["types"]), "info --json is complete", out)
    caches = {t["name"] for t in info["types"] if t["tensors"] in ("K and V", "K, V and weights")}
    ok(caches == set(KV_TYPES), "each type of caches is converted to, and read back, by these tests", str(caches ^ set(KV_TYPES)))
    manual = (pathlib.Path(__file__).resolve().parents[2] / "cli" / "rapt.1").read_text()
    told = set(re.findall(r"[a-z0-9_]+", " ".join(line for line in manual.splitlines() if line.startswith(".Cm "))))
    ok(caches <= told, "the manual tells of each type of caches", str(caches - told))
    kernels = {k["name"]: k for k in info["kernels"]}
    ok(all(k["usable"] == (not k["missing"]) and k["rounding"] in ("fused", "unfused") for k in kernels.values()) and
       "scalar" in kernels, "info --json: usable, or what is missing", out)
    ok(all(word in text for word in (info["version"], info["cpu"], info["chosen"], *info["features"], *kernels, *caches)),
       "info tells the same as info --json", text)
    ok(info["self_check"] == "ok" and text.endswith("\nself check: ok\n"), "info checks the kernels itself", text)
    usable = [name for name, k in kernels.items() if k["usable"]]
    status, out, err = rapt("check", "--self")
    ok(status == 0 and not err and [line.split() for line in out.splitlines()] == [[n, "self", "check:", "ok"] for n in usable],
       "check --self: a line for each kernel that can run", (status, out, err))
    for name, k in kernels.items():
        status, out, err = rapt("check", "--self", "--isa", name)
        ok((status, len(out.splitlines())) == ((0, 1) if k["usable"] else (2, 0)) and out[:1 + len(name)].strip() in ("", name),
           f"check --self --isa {name}", (status, out, err))
        if k["usable"]:
            ok(json.loads(rapt("info", "--json", env={"RAPT_ISA": name})[1])["chosen"] == name, f"RAPT_ISA={name} is chosen")
        else:
            status, out, err = rapt("info", "--json", env={"RAPT_ISA": name})
            ok(status == 2 and err.count("\n") == 1 and all(m in err for m in k["missing"]) and json.loads(out)["chosen"] is None,
               f"RAPT_ISA={name} cannot run", err)
            refused(f"--isa {name}", [*RUN, "--isa", name], name, *k["missing"])
    status, out, err = rapt("info", env={"RAPT_ISA": "abacus"})
    ok(status == 2 and err.startswith("rapt info: RAPT_ISA=abacus: ") and err.count("\n") == 1 and "scalar" in err,
       "RAPT_ISA=abacus is none", err)
    refused("RAPT_ISA=abacus", RUN, "RAPT_ISA=abacus", env={"RAPT_ISA": "abacus"})
    refused("--isa abacus", [*RUN, "--isa", "abacus"], "--isa abacus", "scalar")
    refused("info with an argument", ["info", "json"], "json", program="rapt info")
    refused("info --json=x", ["info", "--json=x"], "--json", program="rapt info")
    return {r: [n for n, k in kernels.items() if k["usable"] and k["rounding"] == r] for r in ("fused", "unfused")}


def test_attention():
    cases = [
        # B, H, Hkv, S, Skv, D, Dv, options, arguments of attention()
        (1, 1, 1, 5, 7, 3, 4, [], {}),
        (1, 1, 1, 5, 7, 3, 4, ["--scale", "-0x1p-1"], {"scale": -0.5}),
        (1, 6, 2, 5, 9, 4, 3, ["--causal"], {"causal": "bottom-right"}),
        (1, 1, 1, 5, 7, 3, 4, ["--scale", "0"], {"scale": 0}),
        (1, 2, 1, 5, 7, 3, 4, ["--scale=-0.0", "--causal"], {"scale": 0, "causal": "bottom-right"}),
        (1, 6, 3, 5, 9, 4, 3, ["--causal=top-left"], {"causal": "top-left"}),
        (1, 6, 3, 5, 9, 4, 3, ["--causal", "top-left"], {"causal": "top-left"}),
        (1, 6, 3, 5, 9, 4, 3, ["--causal", "bottom-right", "--threads", "2"], {"causal": "bottom-right"}),
        (1, 2, 2, 9, 5, 4, 3, ["--causal=bottom-right"], {"causal": "bottom-right"}),
        (2, 3, 1, 6, 8, 5, 5, ["--window", "2,1"], {"window": (2, 1)}),
        (2, 3, 1, 6, 8, 5, 5, ["--window=-1,0", "--threads", "3"], {"window": (-1, 0)}),
        (2, 4, 2, 6, 8, 5, 5, ["--kv-lens", "3,8", "--causal", "--window", "3,-1"],
         {"lens": [3, 8], "causal": "bottom-right", "window": (3, -1)}),
        (3, 2, 1, 1, 20, 8, 2, ["--kv-lens", "0,20,7"], {"lens": [0, 20, 7]}),
        (1, 2, 1, 3, 0, 4, 2, [], {}),
    ]
    for B, H, Hkv, S, Skv, D, Dv, options, kw in cases:
        shapes = [(B, H, S, D), (B, Hkv, Skv, D), (B, Hkv, Skv, Dv)]
        data = [normals(math.prod(s)) for s in shapes]
        o, lse = attention(*data, B, H, Hkv, S, Skv, D, Dv, **kw)
        for layout in "bhsd", "bshd":
            for dims in range(4 if B > 1 else 3 if H > 1 else 2, 5):
                for name, s, values in zip("QKV", shapes, data):
                    if layout == "bshd":
                        values, s = transposed(values, *s), (s[0], s[2], s[1], s[3])
                    s = (s[0], s[1] * s[2], s[3]) if dims == 2 else s
                    save(f"{name}.npy", s[4 - dims:] if dims > 2 else s[1:], values)
                status, out, err = rapt(*RUN, "--lse", "L.npy", "--layout", layout, *options)
                good = status == 0 and not out and not err
                if good:
                    descr, shape, got = load("O.npy")
                    want = transposed(o, B, H, S, Dv) if layout == "bshd" else o
                    full = (B, S, H, Dv) if layout == "bshd" else (B, H, S, Dv)
                    good = (descr, shape) == ("<f4", full[4 - dims:] if dims > 2 else (S, Dv)) and close(got, want, 1e-5)
                    descr, shape, got = load("L.npy")
                    good = good and (descr, shape) == ("<f4", (B, H, S)[4 - dims:]) and close(got, lse, 1e-5)
                ok(good, f"run {layout} {dims}-d B{B} H{H}/{Hkv} S{S}/{Skv} D{D}/{Dv} {' '.join(options)}", err)
    # Dimensions that are missing in one array alone.
    save("Q.npy", (2, 3, 4), normals(24))
    save("K.npy", (5, 4), normals(20))
    save("V.npy", (1, 1, 5, 4), normals(20))
    ok(rapt(*RUN)[0] == 0 and load("O.npy")[1] == (2, 3, 4), "run with 3-d Q, 2-d K, 4-d V")
    for shape, kv in ((2, 0, 4), (2, 5, 4)), ((0, 2, 3, 4), (0, 2, 5, 4)), ((2, 0, 4), (2, 0, 4)):
        for name in "QKV":
            s = shape if name == "Q" else kv
            save(f"{name}.npy", s, normals(math.prod(s)))
        status, _, err = rapt(*RUN, "--lse", "L.npy", "--threads", "2")
        ok(status == 0 and load("O.npy")[1] == shape and load("L.npy")[1] == shape[:-1], f"run with nothing to do, {shape}", err)


def test_features():
    B, H, Hkv, S, Skv, D, Dv = 2, 4, 2, 5, 70, 4, 3
    shapes = {"Q": (B, H, S, D), "K": (B, Hkv, Skv, D), "V": (B, Hkv, Skv, Dv)}
    data = [normals(math.prod(s)) for s in shapes.values()]
    for n, values in zip("QKV", data):
        save(f"{n}.npy", shapes[n], values)
    full, heads = (B, H, S, Skv), (B, H)

    def compare(what, options, **kw):
        o, lse = attention(*data, B, H, Hkv, S, Skv, D, Dv, **kw)
        status, out, err = rapt(*RUN, "--lse", "L.npy", *options)
        good = status == 0 and not out + err and close(load("O.npy")[2], o, 1e-5) and close(load("L.npy")[2], lse, 1e-5)
        ok(good, f"run {shlex.join(options)}{what}", err)

    def noise(shape, descr):
        values = [x / 16 for x in (rng.randrange(-60, 60) for _ in range(math.prod(shape)))]
        return [x > -1 for x in values] if descr == "|b1" else [-math.inf if x < -2.5 else x for x in values]

    for n, shape in enumerate((full, (B, 1, S, Skv), (1, H, S, Skv), (B, H, 1, Skv), (B, H, S, 1), (B, 1, 1, Skv), (1, 1, 1, 1),
                               (H, S, Skv), (H, 1, Skv), (1, S, 1), (S, Skv), (1, Skv), (S, 1), (Skv, ), (1, ))):
        for fortran in False, True:
            for option, descr in ("mask", "|b1"), ("bias", "<f4"), ("bias", "<f2"), ("bias", ">f4"):
                if (n + fortran) % 2 and descr == ">f4":
                    continue
                values = noise(shape, descr)
                if shape == full:  # two rows without keys
                    values[:Skv] = values[-Skv:] = [{"mask": False, "bias": -math.inf}[option]] * Skv
                save("F.npy", shape, values, descr, fortran)
                compare(f" {shape} {descr}{' in Fortran order' * fortran}", [f"--{option}", "F.npy"],
                        **{option: expanded(values, shape, full)})
    for option, name in ("alibi", "slopes"), ("sinks", "sinks"):
        for shape, descr, fortran in (((H, ), "<f4", False), (heads, "<f4", False), (heads, "<f4", True), ((1, ), "<f4", False),
                                      ((B, 1), "<f2", False), ((1, H), ">f4", False), (heads, ">f2", True)):
            values = [x / 8 for x in (rng.randrange(-16, 16) for _ in range(math.prod(shape)))]
            save("F.npy", shape, values, descr, fortran)
            compare(f" {shape} {descr}{' in Fortran order' * fortran}", [f"--{option}", "F.npy"],
                    **{name: expanded(values, shape, heads)})
    with open("F.npy", "wb") as f:  # where the elements are not aligned
        f.write(b"\x93NUMPY\1\0" + struct.pack("<H", len(header((H, )))) + header((H, )).encode() + pack([-2, 0, 1, 9]))
    assert os.path.getsize("F.npy") % 4
    compare(" unaligned", ["--sinks", "F.npy"], sinks=[-2, 0, 1, 9] * B)
    compare("", ["--softcap", "0.75"], softcap=0.75)
    compare("", ["--softcap=30", "--scale", "-2"], softcap=30, scale=-2)
    for options, kw in ((["--prefix", "9", "--causal=top-left"], {"prefix": 9, "causal": "top-left"}),
                        (["--prefix", "68", "--causal"], {"prefix": 68, "causal": "bottom-right"}),
                        (["--prefix=500", "--window", "65,0"], {"prefix": 500, "window": (65, 0)}),
                        (["--prefix", "0", "--chunk", "3", "--causal"], {"chunk": 3, "causal": "bottom-right"}),
                        (["--chunk", "64", "--prefix", "69", "--causal"], {"chunk": 64, "prefix": 69, "causal": "bottom-right"}),
                        (["--chunk", "2", "--kv-lens", "3,70"], {"chunk": 2, "lens": [3, 70]}),
                        (["--chunk", "7", "--window", "2,1", "--causal=top-left"],
                         {"chunk": 7, "window": (2, 1), "causal": "top-left"})):
        compare("", options, **kw)
    # All of them together: their order can be seen.
    slopes, sinks = [0.5, 0, -0.25, 0.125], [-1, 0, 3, 1]
    mask, bias = noise(full, "|b1"), noise((S, Skv), "<f4")
    save("M.npy", full, mask, "|b1")
    save("B.npy", (S, Skv), bias)
    save("A.npy", (H, ), slopes)
    save("S.npy", (H, ), sinks)
    compare("", ["--mask", "M.npy", "--bias", "B.npy", "--alibi", "A.npy", "--sinks", "S.npy", "--softcap", "1.5", "--causal",
                 "--kv-lens", "70,50", "--prefix", "3", "--window", "60,-1", "--threads", "3"], mask=mask,
            bias=expanded(bias, (S, Skv), full), slopes=slopes * B, sinks=sinks * B, softcap=1.5, causal="bottom-right",
            lens=[70, 50], prefix=3, window=(60, -1))


def test_ragged():
    """Entries of a ragged batch: right, and the bits of each alone."""
    H, Hkv, D, Dv = 4, 2, 8, 5
    cu_q, cu_k = [0, 3, 3, 43, 44], [0, 700, 705, 760, 1600]
    B, T, Tk = len(cu_q) - 1, cu_q[-1], cu_k[-1]
    options = ["--cu-q", ",".join(map(str, cu_q)), "--cu-k", ",".join(map(str, cu_k))]
    q, k, v = normals(T * H * D), normals(Tk * Hkv * D), normals(Tk * Hkv * Dv)
    most_q, most_k = (max(b - a for a, b in zip(cu, cu[1:])) for cu in (cu_q, cu_k))
    slopes = [x / 64 for x in range(B * H)]
    mask = [rng.random() < 0.8 for _ in range(B * most_q * most_k)]

    def entry(b, per_head):
        """Q, K and V of an entry as [1,H,S,D], and its lengths."""
        S, Skv = cu_q[b + 1] - cu_q[b], cu_k[b + 1] - cu_k[b]
        parts = q[cu_q[b] * H * D:][:S * H * D], k[cu_k[b] * Hkv * D:][:Skv * Hkv * D], v[cu_k[b] * Hkv * Dv:][:Skv * Hkv * Dv]
        if per_head:
            parts = [transposed(x, 1, n, h, c) for x, n, h, c in zip(parts, (S, Skv, Skv), (H, Hkv, Hkv), (D, D, Dv))]
        return parts, S, Skv

    def save_ragged(descr="<f4", fortran=False):
        for n, values, shape in ("Q", q, (T, H, D)), ("K", k, (Tk, Hkv, D)), ("V", v, (Tk, Hkv, Dv)):
            save(f"{n}.npy", shape, values, descr, fortran)

    for extra, kw in (([], {}), (["--causal", "--window", "650,-1", "--layout", "bshd"],
                                 {"causal": "bottom-right", "window": (650, -1)}),
                      (["--causal=top-left", "--threads", "3", "--alibi", "A.npy", "--mask", "M.npy"], {"causal": "top-left"})):
        save("A.npy", (B, H), slopes)
        save("M.npy", (B, 1, most_q, most_k), mask, "|b1")
        save_ragged()
        status, _, err = rapt(*RUN, "--lse", "L.npy", *options, *extra)
        ok(status == 0 and load("O.npy")[1] == (T, H, Dv) and load("L.npy")[1] == (H, T), f"ragged {shlex.join(extra)}", err)
        if status:
            continue
        o, lse = load("O.npy")[2], load("L.npy")[2]
        for b in range(B):
            (eq, ek, ev), S, Skv = entry(b, True)
            rows = [mask[(b * most_q + i) * most_k:][:Skv] for i in range(S)]
            extra_kw = {"slopes": slopes[b * H:][:H], "mask": sum(rows * H, [])} if "--alibi" in extra else {}
            want_o, want_lse = attention(eq, ek, ev, 1, H, Hkv, S, Skv, D, Dv, **kw, **extra_kw)
            got_o = o[cu_q[b] * H * Dv:cu_q[b + 1] * H * Dv]
            got_lse = sum((lse[h * T + cu_q[b]:h * T + cu_q[b + 1]] for h in range(H)), ())
            ok(close(got_o, transposed(want_o, 1, H, S, Dv), 1e-5) and close(got_lse, want_lse, 1e-5),
               f"entry {b}, {S} queries and {Skv} keys")
            for n, values, shape in zip("QKV", entry(b, False)[0], ((S, H, D), (Skv, Hkv, D), (Skv, Hkv, Dv))):
                save(f"{n}.npy", shape, values)
            if "--alibi" in extra:
                save("A.npy", (H, ), slopes[b * H:][:H])
                save("M.npy", (S, Skv), sum(rows, []), "|b1")
            status, _, err = rapt(*RUN, "--lse", "L.npy", "--layout", "bshd", *[x for x in extra if x not in ("--layout", "bshd")])
            ok(status == 0 and load("O.npy")[2] == got_o and load("L.npy")[2] == got_lse, "the same bits as the entry alone", err)
    # Copied, or only one of the two ragged: the same.
    lens = ["--kv-lens", "0,5,31,840"]

    def outputs(*args):
        status, _, err = rapt(*RUN, "--lse", "L.npy", *lens, *args)
        return (contents("O.npy"), contents("L.npy")) if status == 0 else err

    save_ragged()
    want = outputs(*options)
    for kw in {"fortran": True}, {"descr": ">f4"}:
        save_ragged(**kw)
        ok(outputs(*options) == want and len(want) == 2, f"ragged, {kw}", want)
    padded = [], []
    for b in range(B):
        for x, part, c in zip(padded, entry(b, True)[0][1:], (D, Dv)):
            n = cu_k[b + 1] - cu_k[b]
            for h in range(Hkv):
                x += list(part[h * n * c:][:n * c]) + [math.nan] * ((most_k - n) * c)
    save_ragged()
    save("K.npy", (B, Hkv, most_k, D), padded[0])
    save("V.npy", (B, Hkv, most_k, Dv), padded[1])
    got = outputs(*options[:2])
    ok(got == want, "--cu-q alone", got)
    one = normals(B * H * D)
    save("Q.npy", (B, H, 1, D), one)
    want = outputs()
    save_ragged()
    save("Q.npy", (B, H, 1, D), one)
    got = outputs(*options[2:])
    ok(got == want and len(want) == 2, "--cu-k alone", (got, want))


def test_pages(kernels):
    """The same bits however K and V are cut into pages."""
    for what, q, kv, dv, layout, options in (
        ("prefill", (2, 4, 20, 8), (2, 2, 600, 8), 5, "bhsd", ["--causal", "--kv-lens", "600,333"]),
        ("decode", (3, 1, 4, 8), (3, 130, 2, 8), 8, "bshd", ["--kv-lens", "130,0,65", "--kv-type", "f16"]),
        ("ragged", (30, 4, 8), (700, 1, 8), 3, "bhsd", ["--cu-q", "0,1,25,30", "--cu-k", "0,650,650,700", "--causal=top-left"]),
        ("nothing", (1, 2, 3, 8), (1, 2, 0, 8), 8, "bhsd", []),
    ):
        save("Q.npy", q, normals(math.prod(q)))
        save("K.npy", kv, normals(math.prod(kv)))
        save("V.npy", kv[:-1] + (dv, ), normals(math.prod(kv[:-1]) * dv))
        for rounding, names in kernels.items():
            got = []
            for name in names:
                for extra in ([], ["--page-size", "1"], ["--page-size", "3", "--seed", "7"],
                              ["--page-size", "16", "--threads", "3"], ["--page-size=64", "--seed=9223372036854775807"],
                              ["--page-size", "1000"]):
                    status, out, err = rapt(*RUN, "--lse", "L.npy", "--layout", layout, *options, "--isa", name, *extra)
                    got.append(contents("O.npy") + contents("L.npy") if status == 0 and not out + err else err)
            if got:
                ok(isinstance(got[0], bytes) and all(x == got[0] for x in got),
                   f"{what}, {rounding}: the same bytes from pages of any size, {', '.join(names)}", [x[:80] for x in got])


def test_formats():
    """However the same array is written down, the same output."""
    shapes = {"Q": (2, 4, 3, 8), "K": (2, 2, 5, 8), "V": (2, 2, 5, 6)}
    data = {n: [x / 4 for x in (rng.randrange(-9, 9) for _ in range(math.prod(s)))] for n, s in shapes.items()}

    def outputs(**kw):
        for n in "QKV":
            save(f"{n}.npy", shapes[n], data[n], **kw)
        status, _, err = rapt(*RUN, "--out-type", "f32", "--lse", "L.npy")
        return contents("O.npy") + contents("L.npy") if status == 0 else err

    want = outputs()
    ok(isinstance(want, bytes), "the plain array", want)
    for kw in ({"version": 2}, {"version": 3}, {"fortran": True}, {"descr": "=f4"}, {"descr": "|f4"}, {"descr": ">f4"},
               {"descr": "<f2"}, {"descr": ">f2", "fortran": True}, {"descr": "<f2", "fortran": True, "version": 2}):
        got = outputs(**kw)
        ok(got == want, f"the same from {kw}", got)
    if os.path.exists("O.npy"):
        os.unlink("O.npy")
    outputs()
    body = contents("Q.npy")[128:]
    for text in ("{'shape': (2, 4, 3, 8), 'fortran_order': False, 'descr': '<f4'}",
                 '{"descr":"<f4","fortran_order":False,"shape":(2,4,3,8)}',
                 "{'fortran_order' : False , 'descr' :\t'<f4' ,\n 'shape' : ( 2L , 4L , 3L , 8L , ) , } \n \n",
                 "{'descr': '<f4', 'fortran_order': False, 'shape': (02, 4, 3, 8), }"):
        with open("Q.npy", "wb") as f:
            f.write(frame(text) + body)
        status, _, err = rapt(*RUN, "--lse", "L.npy")
        ok(status == 0 and contents("O.npy") + contents("L.npy") == want, f"the same from header {text!r}", err)
    with open("Q.npy", "wb") as f:
        f.write(b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text.encode() + body + b"more")
    status, _, err = rapt(*RUN, "--lse", "L.npy")
    ok(status == 0 and contents("O.npy") + contents("L.npy") == want, "the same unaligned, with more after it", err)
    # Where channels lie together in Fortran order too: one token.
    for n in "QKV":
        save(f"{n}.npy", (1, 8), data[n][:8], fortran=True)
    ok(rapt(*RUN)[0] == 0 and load("O.npy")[2] == tuple(data["V"][:8]), "one key: its value")


def nearest_bf16(x):
    if x != x or abs(x) == math.inf:
        return x
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    below = bits & 0xffff0000
    low, high = struct.unpack("<2f", struct.pack("<2I", below, below + 0x10000))
    if abs(high) == math.inf:  # as if the exponent went on
        high = math.copysign(2.0**128, x)
    nearer = low if abs(x - low) < abs(x - high) else high
    if abs(x - low) == abs(x - high):
        nearer = high if bits & 0x10000 else low
    return math.copysign(math.inf, x) if abs(nearer) == 2.0**128 else nearer


def nearest_f16(x):
    if x != x or abs(x) == math.inf:
        return x
    return struct.unpack("<e", struct.pack("<e", x))[0] if abs(x) < 65520 else math.copysign(math.inf, x)


def test_types():
    """One key has weight 1, so the output is the value: every conversion can be seen."""
    def values_through(values, descr, *options):
        heads = -(-len(values) // 1024)
        values = list(values) + [0.0] * (heads * 1024 - len(values))
        save("Q.npy", (heads, 1, 1), [1.0] * heads)
        save("K.npy", (heads, 1, 1), [1.0] * heads)
        save("V.npy", (heads, 1, 1024), values, descr)
        status, _, err = rapt(*RUN, *options)
        return load("O.npy") + (values, ) if status == 0 else ("", err, (), ())

    halves = struct.unpack("<65536e", struct.pack("<65536H", *range(65536)))
    descr, _, got, values = values_through(halves, "<f2")
    ok(descr == "<f4" and same(got, values), "every f16 as f32")
    descr, _, got, values = values_through(halves, "<f2", "--kv-type", "f32", "--out-type", "f16")
    ok(descr == "<f2" and same(got, values), "every f16 to f32 on loading, and back")
    descr, _, got, values = values_through(halves, "<f2", "--kv-type", "bf16")
    ok(descr == "<f4" and same(got, [nearest_bf16(x) for x in values]), "every f16 to bf16")

    finite = sorted({abs(x) for x in halves if abs(x) < math.inf})
    picked = finite[:40] + finite[1000:1060] + finite[-40:] + rng.sample(finite, 400)
    singles = set()
    largest = 3.4028234663852886e38  # and the largest bf16, and halfway from it to infinity:
    for x in picked + [2.0**-149, 2.0**-126, 2.0**-25, 65520.0, 65536.0, 3.3895313892515355e38, 3.3961775292304957e38, math.inf]:
        after = finite[min(finite.index(x) + 1, len(finite) - 1)] if x in finite else x
        halfway = x if x == math.inf else (x + after) / 2
        for y in x, halfway, x * (1 + 2.0**-8), x * (1 + 3 * 2.0**-8):  # the latter: between two bf16
            bits = struct.unpack("<I", struct.pack("<f", min(y, largest) if y < math.inf else y))[0]
            singles |= {struct.unpack("<f", struct.pack("<I", min(max(bits + d, 0), 0x7f800000)))[0] for d in (-1, 0, 1)}
    singles = sorted(singles) + [math.nan] + [-x for x in sorted(singles)]
    for options in ("--kv-type", "f16"), ("--kv-type", "f32", "--out-type", "f16"):
        _, _, got, values = values_through(singles, "<f4", *options)
        ok(same(got, [nearest_f16(x) for x in values]), f"{len(singles)} floats to f16 by {options[-2]}")
    for options in ("--kv-type", "bf16"), ("--kv-type", "f32", "--out-type", "bf16"):
        descr, _, got, values = values_through(singles, "<f4", *options)
        ok(descr == "<f4" and same(got, [nearest_bf16(x) for x in values]), f"{len(singles)} floats to bf16 by {options[-2]}")

    save("Q.npy", (1, 1), [1.0])
    save("K.npy", (1, 1), [1.0])
    with open("V.npy", "wb") as f:
        f.write(frame(header((1, 4))) + struct.pack("<4I", 0x7f800001, 0xff800001, 0x7f801fff, 0xffffffff))
    for kv_type in "f16", "bf16":
        status, _, err = rapt(*RUN, "--kv-type", kv_type)
        ok(status == 0 and all(x != x for x in load("O.npy")[2]), f"NaNs of any payload to {kv_type}", err)

    for n in "QKV":
        save(f"{n}.npy", (4, 8), normals(32), "<f2" if n == "Q" else "<f4")
    for options, want in (([], "<f2"), (["--q-type", "f32"], "<f4"), (["--q-type", "bf16"], "<f4"),
                          (["--q-type", "f32", "--out-type", "f16"], "<f2"), (["--out-type", "f32"], "<f4")):
        status, _, err = rapt(*RUN, *options)
        ok(status == 0 and load("O.npy")[0] == want, f"type of the output, Q of f16, {' '.join(options)}", err)


def test_kv_types(kernels):
    B, H, Hkv, S, Skv, D, Dv = 2, 4, 2, 3, 90, 64, 32
    shapes = {"Q": (B, H, S, D), "K": (B, Hkv, Skv, D), "V": (B, Hkv, Skv, Dv)}
    data = [[f16(x) for x in normals(math.prod(s))] for s in shapes.values()]
    data[2][:32] = [0.0] * 31 + [-3.0]
    ragged = ["--cu-q", "0,2,6", "--cu-k", "0,100,180"]

    def outputs(*args):
        status, out, err = rapt(*RUN, "--lse", "L.npy", "--out-type", "f32", *args)
        return contents("O.npy") + contents("L.npy") if status == 0 and not out + err else err

    for kv_type in KV_TYPES:
        kv = [[y for i in range(0, len(x), d) for y in quantized(kv_type, x[i:i + d])] for x, d in zip(data[1:], (D, Dv))]
        # One key has weight 1, so the output is the value.
        heads = len(data[2]) // Dv
        save("Q.npy", (heads, 1, 1), [0.0] * heads)
        save("K.npy", (heads, 1, 1), [0.0] * heads)
        save("V.npy", (heads, 1, Dv), data[2])
        if kv_type in FP8 or kv_type == "int8":
            status, _, err = rapt(*RUN, "--kv-type", kv_type)
        else:  # K has 32 channels too
            save("Q.npy", (heads, 1, 32), [0.0] * heads * 32)
            save("K.npy", (heads, 1, 32), data[2])
            status, _, err = rapt(*RUN, "--kv-type", kv_type)
        got = load("O.npy")[2] if status == 0 else ()
        ok(same(got, kv[1]), f"every value as {kv_type}", err or [(x, y) for x, y in zip(got, kv[1]) if x != y][:9])

        for n, s, x in zip("QKV", shapes.values(), data):
            save(f"{n}.npy", s, x)
        got = outputs("--kv-type", kv_type)
        o, lse = attention(data[0], *kv, B, H, Hkv, S, Skv, D, Dv)
        ok(isinstance(got, bytes) and close(load("O.npy")[2], o, 1e-5) and close(load("L.npy")[2], lse, 1e-5),
           f"run --kv-type {kv_type}", got)
        for n, s, x in zip("QKV", shapes.values(), data):
            save(f"{n}.npy", s, x, ">f2" if n == "Q" else "<f2", fortran=True)
        again = outputs("--kv-type", kv_type, "--q-type", "f32", "--page-size", "7", "--threads", "2")
        ok(again == got, f"{kv_type} from float16, in Fortran order, in pages: the same bits", again)
        for n, s, x in zip("QKV", shapes.values(), data):
            save(f"{n}.npy", (s[0] * s[2], s[1], s[3]), x)
        for rounding, names in kernels.items():
            got = [outputs("--kv-type", kv_type, *ragged, *extra, "--isa", name)
                   for name in names for extra in ([], ["--page-size", "16"])]
            ok(not got or (isinstance(got[0], bytes) and all(x == got[0] for x in got)),
               f"ragged {kv_type}, {rounding}: the same bytes in pages", got)

    # Integers: near what f32 gives, not the same, and the same bytes everywhere.
    for n, s, x in zip("QKV", shapes.values(), data):
        save(f"{n}.npy", s, x)
    kv = [[y for i in range(0, len(x), d) for y in quantized("int8", x[i:i + d])] for x, d in zip(data[1:], (D, Dv))]
    o, lse = attention(data[0], *kv, B, H, Hkv, S, Skv, D, Dv)
    for rounding, names in kernels.items():
        got = [outputs("--kv-type", "int8", "--arith", "int8", *extra, "--isa", name)
               for name in names for extra in ([], ["--page-size", "16", "--threads", "3"])]
        ok(not got or (isinstance(got[0], bytes) and all(x == got[0] for x in got) and close(load("O.npy")[2], o, 2e-2) and
           close(load("L.npy")[2], lse, 2e-2) and got[0] != outputs("--kv-type", "int8", "--isa", names[0])),
           f"--arith int8, {rounding}: near, the same bytes in pages", got)
    # bf16: likewise, for K and V of any type.
    o, lse = attention(*data, B, H, Hkv, S, Skv, D, Dv)
    for rounding, names in kernels.items():
        got = [outputs("--arith", "bf16", *extra, "--isa", name) for name in names
               for extra in ([], ["--page-size", "16", "--threads", "3"])]
        ok(not got or (isinstance(got[0], bytes) and all(x == got[0] for x in got) and close(load("O.npy")[2], o, 2e-2) and
           close(load("L.npy")[2], lse, 2e-2) and got[0] != outputs("--isa", names[0])),
           f"--arith bf16, {rounding}: near, the same bytes in pages", got)
    for kv_type in "f32", *KV_TYPES:
        if kv_type not in ("int8", "int4", "q8_0", "q4_0", "q5_0"):
            refused(f"--arith int8 on {kv_type}", [*RUN, "--arith", "int8", "--kv-type", kv_type], "arithmetic", "k.type = ")
    for n in "QKV":
        save(f"{n}.npy", (5, 40), normals(200))
    for kv_type in KV_TYPES[3:]:
        refused(f"40 channels of {kv_type}", [*RUN, "--kv-type", kv_type], "K.npy: 40 channels", f"a multiple of {group_of(kv_type)}\n")
        refused(f"--q-type {kv_type}", [*RUN, "--q-type", kv_type], f"--q-type {kv_type}: f32, f16 or bf16 is needed")
    refused("a type that is none", [*RUN, "--kv-type", "q6_0"], "--kv-type q6_0: f32, f16, bf16, ", " is needed")


def test_options():
    for n in "QKV":
        save(f"{n}.npy", (4, 8), normals(32))
    for name in "q", "k", "v", "out":
        args = list(RUN)
        i = args.index(f"--{name}")
        refused(f"no --{name}", args[:i] + args[i + 2:], f"--{name} is missing")
        refused(f"--{name} without value", args[:i + 1] + args[i + 2:], f"--{name}", "missing")
        refused(f"--{name} twice", args + [f"--{name}", args[i + 1]], f"--{name} is given twice")
    huge = "18446744073709551617"
    for extra in (["--what"], ["--caus"], ["--"], ["x"], ["-q"], ["--time=1"], ["--time", "--time"], ["--causal="],
                  ["--causal=left"], ["--causal", "left"], ["--causal", ""], ["--layout", "sbhd"], ["--layout"],
                  ["--q-type", "f64"], ["--kv-type", "F16"], ["--out-type", "int8"], ["--isa", "AVX2"], ["--arith", "f32"],
                  ["--arith=int8"],
                  *([f"--{name}={x}"] for name in ("prefix", "chunk", "page-size", "seed")
                    for x in ("-1", "1x", "1,2", "", " 1", huge)), ["--chunk", "0"], ["--page-size", "0"], ["--page-size", "65537"],
                  ["--seed", "1"], *(["--softcap", x] for x in ("0", "-1", "nan", "inf", "1e60", "x")),
                  *([f"--{name}"] for name in ("mask", "bias", "alibi", "sinks", "cu-q", "cu-k")),
                  *(["--window", x] for x in ("1", "1,", "1,2,3", "-2,0", "0,-2", "1, 2", huge + ",0", "0x1,0")),
                  *(["--scale", x] for x in ("1x", "", " 1", "nan", "inf", "1e99", "1e-60")), ["--scale="],
                  *(["--kv-lens", x] for x in ("5", "-1", "1,2", "1,", "a", "4294967297")),
                  *(["--threads", x] for x in ("0", "1025", "-1", "2.0", "+2", huge)),
                  *(["--tuning", x] for x in ("few_rows=2", "any few_rows", "any cows=1", "any few_rows=2 few_rows=2", " "))):
        words = ("arithmetic", "k.type = RAPT_F32: ") if extra[0] == "--arith=int8" else (extra[0].split("=")[0], )
        refused(shlex.join(extra), [*RUN, *extra], *words)
    for good in (["--window", "2147483647,-1"], ["--kv-lens", "4"], ["--kv-lens", "0"], ["--scale", "1e-40"], ["--threads=1024"],
                 ["--causal=top-left", "--window", "0,0"], ["--arith", "exact"], ["--prefix=2147483647"], ["--chunk=2147483647"],
                 ["--page-size", "65536", "--seed", "0"], ["--softcap", "1e-40"], ["--scale", "0"], ["--scale=-0x0p0"], ["--tuning", "any"],
                 ["--tuning=any few_rows=0 pass_l2=256"], ["--isa", "scalar", "--tuning", "scalar few_rows=16 pass_tiles=1"]):
        status, _, err = rapt(*RUN, *good)
        ok(status == 0 and not err, f"accepted: {shlex.join(good)}", err)
    shutil.copy("Q.npy", "--odd.npy")
    args = [a for a in RUN if a not in ("--q", "Q.npy")]
    ok(rapt(*args, "--q=--odd.npy")[0] == 0, "a file whose name looks like an option")
    os.unlink("--odd.npy")
    os.unlink("O.npy")


def test_shapes():
    def shapes(q, k, v):
        for n, s in zip("QKV", (q, k, v)):
            save(f"{n}.npy", s, [0.0] * math.prod(s))

    for what, q, k, v, words in (
        ("channels of Q and K", (4, 8), (4, 7), (4, 8), ("K.npy", "7", "Q.npy", "8")),
        ("tokens of K and V", (4, 8), (4, 8), (5, 8), ("V.npy", "5", "K.npy", "4")),
        ("heads of K and V", (4, 4, 8), (2, 4, 8), (4, 4, 8), ("V.npy", "4", "K.npy", "2")),
        ("heads that do not divide", (4, 4, 8), (3, 4, 8), (3, 4, 8), ("K.npy", "3", "4", "Q.npy")),
        ("more heads in K than in Q", (2, 4, 8), (4, 4, 8), (4, 4, 8), ("K.npy", "4", "2", "Q.npy")),
        ("batch of K", (2, 1, 4, 8), (3, 1, 4, 8), (2, 1, 4, 8), ("K.npy", "3", "Q.npy", "2")),
        ("batch of V", (2, 1, 4, 8), (2, 1, 4, 8), (1, 4, 8), ("V.npy", "1", "Q.npy", "2")),
        ("no channels", (4, 0), (4, 0), (4, 8), ("Q.npy", "0 channels")),
        ("no channels in V", (4, 8), (4, 8), (4, 0), ("V.npy", "0 channels")),
        ("too many channels", (1, 1025), (1, 1025), (1, 8), ("Q.npy", "1025 channels")),
        ("no heads", (0, 4, 8), (0, 4, 8), (0, 4, 8), ("Q.npy", "0 heads")),
        ("one dimension", (8, ), (4, 8), (4, 8), ("Q.npy", "1 dimension")),
        ("no dimension", (), (4, 8), (4, 8), ("Q.npy", "0 dimensions")),
        ("five dimensions", (4, 8), (1, 1, 1, 4, 8), (4, 8), ("K.npy", "5 dimensions")),
    ):
        shapes(q, k, v)
        refused(what, RUN, *words)
    for what, layout, other, axes in (("[B,S,H,D] taken for [B,H,S,D]", [], "bshd", (0, 2, 1, 3)),
                                      ("[S,H,D] taken for [H,S,D]", ["--layout=bhsd"], "bshd", (2, 1, 3)),
                                      ("[B,H,S,D] taken for [B,S,H,D]", ["--layout", "bshd"], "bhsd", (0, 1, 2, 3)),
                                      ("[H,S,D] taken for [S,H,D]", ["--layout=bshd"], "bhsd", (1, 2, 3))):
        shapes(*(tuple(of[i] for i in axes) for of in ((1, 4, 5, 8), (1, 2, 7, 8), (1, 2, 7, 8))))
        refused(what, [*RUN, *layout], "K.npy: heads 7, which do not divide the 5 of Q.npy", f": with --layout {other} they do")
    for what, q, k in (("... unless they do not in that one either", (3, 5, 4, 8), (3, 7, 3, 8)),
                       ("... or there are no keys", (1, 5, 4, 8), (1, 7, 0, 8)), ("... or Q is [S,D]", (4, 8), (2, 2, 8))):
        shapes(q, k, k)
        status, _, err = rapt(*RUN)
        ok(status == 2 and "which do not divide" in err and "--layout" not in err, what, err)
    shapes((0, 1, 4, 8), (0, 1, 4, 8), (0, 1, 4, 8))
    refused("key lengths of an empty batch", [*RUN, "--kv-lens", "4"], "--kv-lens 4", "empty")


def test_broadcast_shapes():
    for n, shape in ("Q", (2, 4, 3, 8)), ("K", (2, 2, 5, 8)), ("V", (2, 2, 5, 8)):
        save(f"{n}.npy", shape, normals(math.prod(shape)))
    for options in ("mask", "bias"), ("alibi", "sinks"):
        shapes = (((), "0 dimensions, 1 to 4"), ((1, ) * 5, "5 dimensions, 1 to 4"), ((4, ), "keys 4, 1 or 5"),
                  ((4, 5), "queries 4, 1 or 3"), ((2, 3, 5), "heads 2, 1 or 4"), ((3, 1, 1, 5), "batch 3, 1 or 2"),
                  ((3, 3), "keys 3, 1 or 5"), ((0, ), "keys 0, 1 or 5"))
        if options[0] == "alibi":
            shapes = (((), "0 dimensions, 1 to 2"), ((1, ) * 3, "3 dimensions, 1 to 2"), ((3, ), "heads 3, 1 or 4"),
                      ((2, 2), "heads 2, 1 or 4"), ((3, 4), "batch 3, 1 or 2"), ((2, 0), "heads 0, 1 or 4"))
        for option, (shape, words) in itertools.product(options, shapes):
            save("F.npy", shape, [1] * math.prod(shape), "|b1" if option == "mask" else "<f4")
            refused(f"--{option} of {shape}", [*RUN, f"--{option}", "F.npy"], "F.npy: ", words)
    for option, wrong in ("mask", ("<f4", "|u1", "b1")), ("bias", ("|b1", "<f8")), ("alibi", ("|b1", )), ("sinks", ("<i4", )):
        for descr in wrong:
            with open("F.npy", "wb") as f:
                f.write(frame(header((1, ), descr)) + b"\0" * 8)
            refused(f"--{option} of {descr}", [*RUN, f"--{option}", "F.npy"], "F.npy: ", f"'{descr}'",
                    "bool is needed" if option == "mask" else "float16 or float32 is needed")
        refused(f"--{option} that is not there", [*RUN, f"--{option}", "no.npy"], "no.npy: No such file")
        with open("F.npy", "wb") as f:
            f.write(frame(header((3, 5), "|b1" if option == "mask" else "<f4")) + b"\0" * 14)
        refused(f"--{option} that ends early", [*RUN, f"--{option}", "F.npy"], "F.npy: ")
    os.unlink("F.npy")

    save("Q.npy", (9, 4, 8), normals(288))
    for n in "KV":
        save(f"{n}.npy", (7, 2, 8), normals(112))
    both = ["--cu-q", "0,5,9", "--cu-k", "0,0,7"]
    for option in "--cu-q", "--cu-k":
        other = [x for i in range(0, 4, 2) if both[i] != option for x in both[i:i + 2]]
        for text in ("0", "", "0,", "1,5,9", "-1,5,9", "0,5,4", "0,5,9x", "0, 5,9", "0,5,4294967305", "0,,9"):
            refused(f"{option}={text}", [*RUN, *other, f"{option}={text}"], option)
        for text in "0,5,8", "0,5,10":
            refused(f"{option} {text}", [*RUN, *other, option, text], f"{option} {text}: it must end with the ",
                    "9 tokens of Q.npy" if option == "--cu-q" else "7 tokens of K.npy")
    refused("one entry more in --cu-k", [*RUN, *both[:2], "--cu-k", "0,1,2,7"], "--cu-k 0,1,2,7: 3 entries, but --cu-q has 2")
    refused("--cu-q with K of another batch", [*RUN, *both[:2]], "K.npy: batch 1, but --cu-q has 2 entries")
    refused("--cu-k with Q of another batch", [*RUN, *both[2:]], "Q.npy: batch 1, but --cu-k has 2 entries")
    refused("key lengths above an entry's", [*RUN, *both, "--kv-lens", "1,7"], "--kv-lens 1,7: 2 integers from 0 to 0")
    refused("too few key lengths", [*RUN, *both, "--kv-lens", "0"], "--kv-lens 0: 2 integers")
    save("V.npy", (6, 2, 8), normals(96))
    refused("V of other tokens", [*RUN, *both], "V.npy", "6", "7")
    save("K.npy", (1, 7, 2, 8), normals(112))
    refused("four dimensions with --cu-k", [*RUN, *both], "K.npy: it has 4 dimensions, 3 are needed")
    save("Q.npy", (9, 8), normals(72))
    refused("two dimensions with --cu-q", [*RUN, *both], "Q.npy: it has 2 dimensions, 3 are needed")


def test_files():
    for n in "QKV":
        save(f"{n}.npy", (4, 8), normals(32))
    good = contents("K.npy")
    plain = header((4, 8))
    long = b"\x93NUMPY\2\0" + struct.pack("<I", 10**5 + len(plain)) + plain.encode() + b" " * 10**5
    data = good[128:]
    big = "1" + "0" * 30
    for what, bytes_, words in (
        ("an empty file", b"", ("not a NumPy file", )),
        ("another file", b"PK\3\4" + good, ("not a NumPy file", )),
        ("the magic alone", good[:6], ("ends within its header", )),
        ("half a version", good[:7], ("ends within its header", )),
        ("no header length", good[:9], ("ends within its header", )),
        ("half a header", good[:60], ("ends within its header", )),
        ("a version 2 without its length", b"\x93NUMPY\2\0\x46\0", ("ends within its header", )),
        ("version 0", good[:6] + b"\0" + good[7:], ("0.0", )),
        ("version 4", good[:6] + b"\4" + good[7:], ("4.0", )),
        ("version 1.1", good[:7] + b"\1" + good[8:], ("1.1", )),
        ("a header longer than the file", good[:8] + b"\xff\xff" + good[10:], ("ends within its header", )),
        ("a header of 4 GiB", b"\x93NUMPY\2\0\xff\xff\xff\xff" + data, ("ends within its header", )),
        ("a header of 100 kB", long + data, ("header is too long", )),
        ("no data", good[:128], ("0 bytes", "128")),
        ("data one byte short", good[:-1], ("127 bytes", "128")),
        ("a shape that overflows", frame(header((2**32, 2**32))) + data, ("too large", )),
        ("a shape that overflows beside a 0", frame(header((2**40, 2**40, 0, 8))) + data, ("", )),
        ("a length that overflows", frame(header((big, 8))) + data, ("malformed header", )),
        ("a dimension above 2^31", frame(header((2**31, 0, 8))) + data, ("", )),
        ("a negative length", frame(header((-4, 8))) + data, ("malformed header", )),
        ("a length that is no number", frame(header(("n", 8))) + data, ("malformed header", )),
        ("a shape without an end", frame(plain.split(")")[0]) + data, ("malformed header", )),
        ("a shape without a comma", frame(plain.replace("4, 8", "4 8")) + data, ("malformed header", )),
        ("a shape that is a list", frame(plain.replace("(4, 8)", "[4, 8]")) + data, ("malformed header", )),
        ("no brace", frame(plain[1:]) + data, ("malformed header", )),
        ("no closing brace", frame(plain[:-1]) + data, ("malformed header", )),
        ("something after the dictionary", frame(plain + "x") + data, ("malformed header", )),
        ("nothing in the dictionary", frame("{}") + data, ("no 'descr'", )),
        ("no shape", frame("{'descr': '<f4', 'fortran_order': False}") + data, ("no 'shape'", )),
        ("no order", frame("{'descr': '<f4', 'shape': (4, 8)}") + data, ("no 'fortran_order'", )),
        ("a key twice", frame(plain[:-1] + "'descr': '<f4'}") + data, ("malformed header", )),
        ("another key", frame(plain[:-1] + "'what': 1}") + data, ("malformed header", )),
        ("an order that is no bool", frame(plain.replace("False", "0")) + data, ("malformed header", )),
        ("a key without quotes", frame(plain.replace("'shape'", "shape")) + data, ("malformed header", )),
        ("a quote without end", frame(plain.replace("shape'", "shape")) + data, ("malformed header", )),
        ("two commas", frame(plain.replace("False,", "False,,")) + data, ("malformed header", )),
        ("zeros for a header", good[:10] + b"\0" * 118 + data, ("malformed header", )),
        ("float64", frame(header((4, 8), "<f8")) + data * 2, ("'<f8'", "x.astype(np.float32)")),
        ("int16", frame(header((4, 8), "<i2")) + data, ("'<i2'", "x.astype(np.float32)")),
        ("no byte order", frame(header((4, 8), "f4")) + data, ("'f4'", )),
        ("no dtype", frame(header((4, 8), "")) + data, ("''", )),
        ("a dtype with a line end in it", frame(header((4, 8), "<f4\n")) + data, ("<f4?", )),
        ("a dtype of 1000 letters", frame(header((4, 8), "<f4" * 333)) + data, ("<f4<f4", )),
        ("a structure", frame(plain.replace("'<f4'", "[('x', '<f4')]")) + data, ("structure", )),
    ):
        with open("K.npy", "wb") as f:
            f.write(bytes_)
        refused(what, RUN, "K.npy: ", *words)
    seen = set()
    for i in range(0, 128, 16 if COMMAND[1:] else 1):  # refused or run, never a crash
        for byte in (0, 0x27, 0x28, 0x39, 0xff):
            with open("K.npy", "wb") as f:
                f.write(good[:i] + bytes([byte]) + good[i + 1:])
            status, _, err = rapt(*RUN)
            seen.add((status, err.count("\n")))
    ok(seen <= {(0, 0), (2, 1)}, "any byte of the header changed", seen)
    save("K.npy", (4, 8), normals(32))

    refused("no such file", ["run", "--q", "no.npy", *QKV[2:], "--out", "O.npy"], "no.npy: No such file")
    refused("a name with a line end", ["run", "--q", "n\no.npy", *QKV[2:], "--out", "O.npy"], "n?o.npy")
    refused("a folder", ["run", "--q", ".", *QKV[2:], "--out", "O.npy"], ".: not a regular file")
    os.mkfifo("fifo")
    refused("a FIFO", ["run", "--q", "fifo", *QKV[2:], "--out", "O.npy"], "fifo: not a regular file, which is needed to map it")
    os.unlink("fifo")
    if os.geteuid():
        os.chmod("K.npy", 0)
        refused("a file that may not be read", RUN, "K.npy: Permission denied")
        os.chmod("K.npy", 0o644)


def test_outputs():
    save("Q.npy", (4, 1024), normals(4096))
    save("K.npy", (4, 1024), normals(4096))
    save("V.npy", (4, 1024), normals(4096))
    refused("an output in no folder", ["run", *QKV, "--out", "no/O.npy"], "no/O.npy: it cannot be written")
    refused("an output that is a folder", ["run", *QKV, "--out", "."], ".: it cannot be written")
    refused("an output without a name", ["run", *QKV, "--out", "no/"], "no/: it cannot be written")
    refused("a log-sum-exp in no folder", [*RUN, "--lse", "no/L.npy"], "no/L.npy: it cannot be written")
    for lse in "O.npy", "./O.npy", os.path.abspath("O.npy"):
        refused(f"both outputs in one file, {lse}", [*RUN, "--lse", lse], "same file")

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    refused("a full disk", [*RUN, "--lse", "L.npy"], "O.npy: it cannot be written", preexec_fn=small_files, restore_signals=False)

    ok(rapt(*RUN)[0] == 0, "the output")
    want = contents("O.npy")
    mask = os.umask(0o027)
    ok(rapt("run", *QKV, "--out", "new.npy")[0] == 0 and contents("new.npy") == want and
       (WINDOWS or stat.S_IMODE(os.stat("new.npy").st_mode) == 0o640), "a new file's mode follows the umask")
    os.umask(mask)
    for mode in () if WINDOWS else (0o600, 0o400, 0o666):
        with open("new.npy", "wb") as f:
            f.write(b"old")
        os.chmod("new.npy", mode)
        ok(rapt("run", *QKV, "--out", "new.npy")[0] == 0 and contents("new.npy") == want and
           stat.S_IMODE(os.stat("new.npy").st_mode) == mode, f"a file of mode {mode:o} that is replaced keeps it")
    os.mkdir("sub")
    os.symlink("../new.npy", "sub/link.npy")
    with open("new.npy", "wb") as f:
        f.write(b"old")
    ok(rapt("run", *QKV, "--out", "sub/link.npy")[0] == 0 and os.path.islink("sub/link.npy") and contents("new.npy") == want,
       "an output that is a link")
    ok(rapt("run", *QKV, "--out", "sub/O.npy")[0] == 0 and contents("sub/O.npy") == want and
       sorted(os.listdir("sub")) == ["O.npy", "link.npy"], "an output in a folder, and nothing beside it")
    shutil.rmtree("sub")
    os.unlink("new.npy")
    os.unlink("O.npy")


def test_outputs_that_are_inputs():
    """However a file is called, it is not both read and written, and not written twice."""
    for n in "QKV":
        save(f"{n}.npy", (4, 8), normals(32))
    save("M.npy", (4, 4), [True] * 16, "|b1")
    save("B.npy", (4, 4), normals(16))
    save("A.npy", (1, ), [0.5])
    save("S.npy", (1, ), [0.5])
    os.mkdir("sub")
    os.symlink("../Q.npy", "sub/soft.npy")
    os.link("Q.npy", "hard.npy")
    every = [*QKV, "--mask", "M.npy", "--bias", "B.npy", "--alibi", "A.npy", "--sinks", "S.npy"]
    inputs = [(every[i], every[i + 1]) for i in range(0, len(every), 2)]
    before = {name: contents(name) for _, name in inputs}
    for option, name in inputs:
        refused(f"--out is the file of {option}", ["run", *every, "--out", name], f"{name}: --out and {option} are the same file")
        refused(f"--lse is the file of {option}", ["run", *every, "--out", "O.npy", "--lse", name],
                f"{name}: --lse and {option} are the same file")
    for name in ("./Q.npy", "sub/../Q.npy", os.path.abspath("Q.npy"), "sub/soft.npy", "hard.npy"):
        refused(f"--out is the file of --q, by {name}", ["run", *QKV, "--out", name], "--out and --q are the same file")
    refused("--q by a link to --out", ["run", "--q", "sub/soft.npy", *QKV[2:], "--out", "Q.npy"], "--out and --q are the same file")
    if not WINDOWS:
        with open("Q.npy", "ab") as f:
            for name in "-", "/dev/stdout", f"/dev/fd/{f.fileno()}":
                with started("run", *QKV, "--out", name, stdout=f, stderr=subprocess.PIPE, pass_fds=[f.fileno()]) as p:
                    err = p.stderr.read().decode()
                ok(p.returncode == 2 and err == f"rapt run: {name}: --out and --q are the same file, and an input is not "
                   "overwritten\n", f"refused: --out {name.split('fd/')[0]}, which is the file of --q", (p.returncode, err))
        with open("Q.npy", "rb") as f:
            refused("--q is standard input, of the file of --out", ["run", "--q", "/dev/stdin", *QKV[2:], "--out", "Q.npy"],
                    "--out and --q are the same file", stdin=f)
    ok(before == {name: contents(name) for _, name in inputs}, "and no input has changed")
    with open("L.npy", "wb") as f:
        f.write(b"before")
    os.link("L.npy", "L2.npy")
    os.symlink("../L.npy", "sub/L.npy")
    for other in "L.npy", "L2.npy", "sub/L.npy", *(["l.npy"] if WINDOWS else []):
        refused(f"both outputs in one file, by {other}", ["run", *QKV, "--out", "L.npy", "--lse", other], "--out and --lse are the same")
    ok(contents("L.npy") == b"before", "and it has not changed")
    if not WINDOWS:
        os.mkfifo("fifo")
        refused("both outputs in one FIFO", ["run", *QKV, "--out", "fifo", "--lse", "fifo"],
                "fifo: --out and --lse are the same file")
        refused("both outputs to standard output", ["run", *QKV, "--out", "-", "--lse", "-"],
                "-: --out and --lse are the same file")
        os.unlink("fifo")
    shutil.rmtree("sub")
    for name in "hard.npy", "L.npy", "L2.npy", "M.npy", "B.npy", "A.npy", "S.npy":
        os.unlink(name)


def outputs():
    """What RUN writes, o and the log-sum-exp, and the files that are there then; o's is not."""
    for n in "QKV":
        save(f"{n}.npy", (4, 8), normals(32))
    ok(rapt(*RUN, "--lse", "L.npy")[0] == 0, "the outputs")
    want, lse = contents("O.npy"), contents("L.npy")
    os.unlink("O.npy")
    return want, lse, sorted(os.listdir("."))


def test_standard_output():
    want, lse, before = outputs()

    def told(*args):
        with started(*args, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
            out, err = p.communicate()
        return p.returncode, out, err.decode().replace("\r\n", "\n")

    ok(told("run", *QKV, "--out", "-") == (0, want, ""), "--out -: standard output, a pipe")
    ok(told("run", *QKV, "--time", "--lse", "-")[:2] == (0, lse), "--lse -")
    code, out, err = told("run", *QKV, "--out", "-", "--time")
    ok((code, out) == (0, want) and re.fullmatch("time .*, threads 1\n", err),
       "--out - with --time, which is told on standard error", (code, len(out), err))
    ok(sorted(os.listdir(".")) == before, "and no file is called so", os.listdir("."))
    ok(rapt("run", *QKV, "--out", "./-")[0] == 0 and contents("-") == want, "--out ./-: a file")
    os.unlink("-")
    with open("all", "wb") as f:
        f.write(b"before")
        f.flush()
        with started("run", *QKV, "--out", "-", stdout=f) as p:
            pass
    ok(p.returncode == 0 and contents("all") == b"before" + want, "--out -, in the midst of a file", p.returncode)
    os.unlink("all")
    for option in "--q", "--k", "--v", "--mask", "--bias", "--alibi", "--sinks":
        args = [x for i in range(0, 6, 2) if QKV[i] != option for x in QKV[i:i + 2]]
        refused(f"{option} -", ["run", *args, option, "-", "--out", "O.npy"], f"{option} -: standard input is not read", "mapped")
    if WINDOWS:
        return
    refused("--out -, and standard output is closed", ["run", *QKV, "--out", "-"], "-: it cannot be written: Bad file",
            preexec_fn=lambda: os.close(1), stdout=None)
    if os.path.exists("/dev/full"):
        with open("/dev/full", "wb") as full:
            refused("--out -, and standard output is full", ["run", *QKV, "--out", "-"], "-: it cannot be written: No space left",
                    stdout=full)
    ours, terminal = os.openpty()
    for args in ["--out", "-"], ["--out", "/dev/stdout"], ["--out", os.ttyname(terminal)], ["--out", "O.npy", "--lse", "-"]:
        refused(f"{args[-2]}, a terminal", ["run", *QKV, *args], f"{args[-1]}: it is a terminal", stdout=terminal)
    os.close(terminal)
    try:
        shown = os.read(ours, 100)
    except OSError: # nobody has it open any more
        shown = b""
    os.close(ours)
    ok(shown == b"", "and it shows nothing", shown)


def test_outputs_that_are_no_files():
    want, lse, before = outputs()
    null = "NUL" if WINDOWS else "/dev/null"
    got = rapt("run", *QKV, "--out", null, "--lse", null)
    ok(got == (0, "", "") and stat.S_ISCHR(os.stat("/dev/null").st_mode), f"both outputs to {null}", got)
    if os.path.exists("/dev/full") and not WINDOWS:
        refused("an output to /dev/full", ["run", *QKV, "--out", "/dev/full"], "/dev/full: it cannot be written: No space left")
    if not WINDOWS:
        with started("run", *QKV, "--out", "/dev/stdout", stdout=subprocess.PIPE) as p:
            got = p.stdout.read()
        ok(p.returncode == 0 and got == want, "an output to /dev/stdout, a pipe", (p.returncode, len(got)))
    for name in ["all"] if WINDOWS else ["/dev/stdout", "all"]:
        with open("all", "wb") as f:
            f.write(b"before")
            f.flush()
            with started("run", *QKV, "--out", name, stdout=f) as p:
                pass
            f.seek(0, os.SEEK_END)
            f.write(b"after")
        ok(p.returncode == 0 and contents("all") == b"before" + want + b"after", f"an output to {name}, in the midst of a file")
    os.unlink("all")
    if WINDOWS:  # which has none; wine's writers do not wait for a reader
        return
    os.mkfifo("fifo")
    os.mkfifo("fifo2")
    with started("run", *QKV, "--out", "fifo", "--lse", "fifo2") as p:
        got = contents("fifo"), contents("fifo2")
    ok(p.returncode == 0 and got == (want, lse) and stat.S_ISFIFO(os.stat("fifo").st_mode), "both outputs to FIFOs", p.returncode)
    os.unlink("fifo")
    os.unlink("fifo2")
    ok(sorted(os.listdir(".")) == before, "and nothing beside them", os.listdir("."))


def test_signals():
    """While the log-sum-exp waits for a reader, the output is complete under its temporary name."""
    for n in "QKV":
        save(f"{n}.npy", (4, 8), normals(32))
    os.mkfifo("fifo")
    with open("O.npy", "wb") as f:
        f.write(b"old")
    if WINDOWS:  # whose wine waits only when a FIFO is full
        save("Q.npy", (30000, 8), [0.0] * 240000)
        reader = os.open("fifo", os.O_RDWR)

    def temporaries():
        return [n for n in os.listdir(".") if ".tmp" in n]

    def waiting(**kw):
        p = started(*RUN, "--lse", "fifo", **kw)
        for _ in range(12000):
            if p.poll() is not None or temporaries():
                break
            time.sleep(0.01)
        return p, bool(temporaries())

    signals = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT

    def heeding():
        """Whoever runs the tests may ignore signals, as nohup does."""
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for s in signals:
            signal.signal(s, signal.SIG_DFL)

    for s in (signal.SIGTERM, signal.SIGKILL) if WINDOWS else signals:
        p, was_there = waiting(preexec_fn=heeding)
        p.send_signal(s)
        p.wait()
        for _ in range(1000 if WINDOWS else 0):  # wine's server does it, for it is the system there
            time.sleep(0.01 if temporaries() else 0)
        ok(was_there and p.returncode == -s and not temporaries() and contents("O.npy") == b"old",
           f"{s.name}: ends by it, and leaves no temporary file", (was_there, p.returncode, temporaries()))
        for n in temporaries():
            os.unlink(n)
    if WINDOWS:
        os.close(reader)
        os.unlink("fifo")
        os.unlink("O.npy")
        return
    p, was_there = waiting(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    p.send_signal(signal.SIGHUP)
    with open("fifo", "rb") as f:
        f.read()
    ok(was_there and p.wait() == 0 and contents("O.npy") != b"old", "SIGHUP ignored, as by nohup, stays so", p.returncode)
    os.unlink("fifo")

    def small_files():
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    status = rapt(*RUN, preexec_fn=small_files)[0]
    ok(status == -signal.SIGXFSZ and not temporaries(), "SIGXFSZ leaves no temporary file", (status, temporaries()))
    os.unlink("O.npy")


def test_empty():
    """However many rows, without elements they cost nothing: CPU time is limited, so that the machine's load does not count."""
    many = 2**31 - 1

    def two_seconds():
        resource.setrlimit(resource.RLIMIT_CPU, (2, 2))

    for shape, descr, options in (
        ((1, many, 0, 16), "<f4", []), ((1, many, 0, 16), "<f4", ["--time"]), ((1, many, 0, 16), ">f4", ["--kv-type", "f16"]),
        ((1, many, 0, 16), "<f4", ["--kv-type", "int8"]), ((1, many, 0, 16), "<f4", ["--page-size", "4"]),
        ((1, 0, many, 16), ">f2", ["--layout", "bshd", "--threads", "2"]), ((many, 1, 0, 16), "<f4", []),
        ((many, 1, 0, 16), ">f4", ["--q-type", "bf16"]), ((many, 1, 0, 16), "<f4", ["--kv-type", "int8"]),
        ((many, 1, 0, 16), "<f4", ["--time"]), ((many, 1, 0, 16), "<f4", ["--page-size", "4"]),
        ((1, many, 0, 16), "<f4", ["--bias", "F.npy"]),
    ):
        for n in "QKV":
            save(f"{n}.npy", shape, [], descr)
        save("F.npy", shape[:3] + (1, ), [], ">f4")
        status, _, err = rapt(*RUN, "--lse", "L.npy", *options, preexec_fn=two_seconds)
        ok(status == 0 and load("O.npy")[1] == shape and load("L.npy")[1] in (shape[:3], (1, many, 0)),
           f"no time for {shape} {descr} {shlex.join(options)}", (status, err))
    os.unlink("F.npy")
    os.unlink("O.npy")


def test_verbose():
    for n in "QKV":
        save(f"{n}.npy", (4, 8), normals(32))
    for value in None, "", "0":
        got = rapt(*RUN, env={} if value is None else {"RAPT_VERBOSE": value})
        ok(got == (0, "", ""), f"RAPT_VERBOSE={value}: silence", got)
    status, out, err = rapt(*RUN, env={"RAPT_VERBOSE": "1"})
    ok(status == 0 and not out and re.fullmatch(r"rapt: rapt_plan_init: .*\n(rapt: .*\n)*", err),
       "RAPT_VERBOSE=1: a line for the plan", (status, out, err))
    status, out, err = rapt(*RUN, "--arith", "int8", env={"RAPT_VERBOSE": "1"})
    lines = err.splitlines()
    ok(status == 2 and len(lines) == 2 and re.fullmatch("rapt: rapt_plan_init: k.type = RAPT_F32: .+", lines[0]) and
       lines[1].startswith("rapt run: "), "RAPT_VERBOSE=1: a line for what the library refuses", (status, out, err))
    os.unlink("O.npy")


def test_same_bits(kernels):
    """O and L from every kernel of a rounding class and from any number of threads."""
    for what, (q, kv, dv), options in (
        ("prefill", ((2, 4, 40, 24), (2, 2, 1100, 24), 17), ["--causal", "--kv-lens", "1090,700"]),
        ("decode", ((1, 4, 1, 40), (1, 1, 2100, 40), 33), ["--kv-type", "f16"]),
        ("bf16", ((3, 33, 16), (3, 65, 16), 16), ["--q-type", "bf16", "--kv-type", "bf16", "--window", "20,3"]),
    ):
        save("Q.npy", q, normals(math.prod(q)))
        save("K.npy", kv, normals(math.prod(kv)))
        save("V.npy", kv[:-1] + (dv, ), normals(math.prod(kv[:-1]) * dv))
        for rounding, names in kernels.items():
            got = {}
            for name in names:
                for threads, tuning in ("1", "any"), ("7", "any"), ("7", "any few_rows=0 pass_tiles=1 states_part=1"):
                    status, _, err = rapt(*RUN, "--lse", "L.npy", "--isa", name, "--threads", threads, "--tuning", tuning,
                                          *options)
                    got[name, threads, tuning] = contents("O.npy") + contents("L.npy") if status == 0 else err
            if got:
                first = next(iter(got.values()))
                ok(isinstance(first, bytes) and all(x == first for x in got.values()),
                   f"{what}, {rounding}: the same bytes from {', '.join(names)}, 1 and 7 threads, and another tuning",
                   {k: hash(v) for k, v in got.items()})


def test_time():
    S, Skv, D, Dv, H = 30, 50, 8, 24, 4
    save("Q.npy", (2, H, S, D), normals(2 * H * S * D))
    save("K.npy", (2, 2, Skv, D), normals(4 * Skv * D))
    save("V.npy", (2, 2, Skv, Dv), normals(4 * Skv * Dv))
    for options, kw in (([], {}), (["--window", "3,30", "--kv-lens=20,50"], {"window": (3, 30)}),
                        (["--causal=top-left", "--window", "9,5", "--kv-lens", "20,50"],
                         {"causal": "top-left", "window": (9, 5)}),
                        (["--chunk", "7", "--prefix", "9", "--window=5,3"], {"chunk": 7, "prefix": 9, "window": (5, 3)}),
                        (["--chunk", "7", "--prefix=40", "--kv-lens=20,50"], {"chunk": 7, "prefix": 40})):
        lens = (20, 50) if "--kv-lens" in " ".join(options) else (50, 50)
        status, out, err = rapt(*RUN, "--time", "--threads", "2", *options)
        m = re.fullmatch(r"time (\S+) ms \(median of (\d+) runs\), (\S+) GFLOP/s, kernel (\S+), path (\S+), threads 2\n", out)
        pairs = sum(allowed(i, j, S, n, **kw) for n in lens for i in range(S) for j in range(n))
        flops = float(m[1]) * float(m[3]) * 1e6 if m else 0
        ok(status == 0 and not err and m and int(m[2]) >= 5 and abs(flops / (pairs * H * 2 * (D + Dv)) - 1) < 2e-3,
           f"--time {' '.join(options)}", (status, out, err, pairs, flops))
    before = sorted(os.listdir("."))
    status, out, err = rapt("run", *QKV, "--time")
    ok(status == 0 and not err and re.fullmatch(r"time .*, threads 1\n", out) and sorted(os.listdir(".")) == before,
       "--time without --out", (status, out, err))
    save("Q.npy", (30, H, D), normals(30 * H * D))
    save("K.npy", (60, 2, D), normals(120 * D))
    save("V.npy", (60, 2, Dv), normals(120 * Dv))
    status, out, err = rapt(*RUN, "--time", "--cu-q", "0,10,30", "--cu-k", "0,20,60", "--causal", "--page-size", "4")
    m = re.fullmatch(r"time (\S+) ms .*, (\S+) GFLOP/s, .*\n", out)
    pairs = sum(allowed(i, j, n, 2 * n, "bottom-right") for n in (10, 20) for i in range(n) for j in range(2 * n))
    flops = float(m[1]) * float(m[2]) * 1e6 if m else 0
    ok(status == 0 and not err and abs(flops / (pairs * H * 2 * (D + Dv)) - 1) < 2e-3, "--time of a ragged batch", (out, err))


def test_tune(kernels):
    """A line that is read back, by a kernel that has it; and that its numbers reach the plan."""
    save("Q.npy", (1, 8), normals(8))
    save("K.npy", (8, 8), normals(64))
    save("V.npy", (8, 8), normals(64))
    names = [name for names in kernels.values() for name in names]
    for name in {names[0], "scalar"}:
        for seconds in (3,) if SLOW else (3, 15, 60): # a busy machine may have no time for one value in 3 s, and then it says so
            start = time.monotonic()
            status, out, err = rapt("tune", "--isa", name, "--seconds", str(seconds), "--threads", "2", "--cases", "linear-1-short,few-8")
            took = time.monotonic() - start
            no_time = "there was no time for them" in err
            if not no_time:
                break
        told = err.splitlines()
        searched = [line for line in told if re.fullmatch(
            rf"\d+ s of {seconds}: short_ahead: \d values?, the best [\d.]+ times as fast, spread [\d.]+: left as it is|"
            r"short_ahead=\d+: .*: kept", line)]
        ok(status == 0 and re.fullmatch(name + r"( \w+=\d+)*\n", out) and
           told[0] == f"{name}, 2 threads, 2 cases, {seconds} s: few-8 linear-1-short" and
           "joined_bytes: changes nothing in these cases" in told and (searched or (SLOW and no_time)) and "\r" not in err,
           f"tune, {name}", (status, out, err))
        own = out == name + "\n"
        ok((": recommended" in err) != own and ("the kernel's own numbers are the best" in err) == own,
           f"tune, {name}: says whether the line is better than the kernel's own numbers", (out, err))
        # What has no time for a value ends early, having said so.
        ok((no_time or 2 * seconds / 3 < took) and took < 10 * seconds, f"tune, {name}: takes the time that it is given", took)
        status, _, err = rapt(*RUN, "--isa", name, "--tuning", out)
        ok(status == 0 and not err, f"run with what tune found for {name}", err)
    for chosen, told in (("linear-1", "1 cases, 1 s: linear-1"), ("few-*,linear-8", "4 cases, 1 s: few-8 few-12 few-16 linear-8"),
                         ("linear-bf16-?", "1 cases, 1 s: linear-bf16-8")):
        status, out, err = rapt("tune", "--seconds", "1", "--cases", chosen)
        ok(status == 0 and err.splitlines()[0].endswith(f", 1 threads, {told}"), f"tune --cases {chosen}", err)
    status, out, err = rapt("tune", "--isa", "scalar", "--seconds", "100", "--cases", "decode")
    nothing = "none of the numbers changes anything in these cases: there is nothing to look for\n"
    ok((status, out) == (0, "scalar\n") and nothing in err,
       "tune: where there is nothing to look for, it says so and ends", (status, out, err))
    got = rapt("tune", "--isa", "scalar", "--seconds", "1", "--cases", "linear-8", "--quiet")
    ok(got[0] == 0 and got[1].startswith("scalar") and not got[2], "tune --quiet", got)
    for s in () if WINDOWS else (signal.SIGINT, signal.SIGTERM):
        with started("tune", "--isa", "scalar", "--seconds", "100", "--cases", "linear-8", stdout=subprocess.PIPE,
                     stderr=subprocess.PIPE, preexec_fn=lambda: signal.signal(s, signal.SIG_DFL)) as p:
            err = p.stderr.readline() + p.stderr.readline() # which tells of the first step
            p.send_signal(s)
            out, rest = p.communicate(timeout=60)
        err += rest
        ok(p.returncode == 128 + s and re.fullmatch(rb"scalar( \w+=\d+)*\n", out) and
           re.search(rb"\nstopped by a signal after \d+ s; the best so far[:,]", err), f"tune, {s.name}: the best line so far",
           (p.returncode, out, err))
    if not WINDOWS:
        for seconds in 1, 5, 30: # for a busy machine may have no time for one turn in the first
            ours, terminal = os.openpty()
            with started("tune", "--isa", "scalar", "--seconds", str(seconds), "--cases", "linear-8", stdout=subprocess.PIPE,
                         stderr=terminal) as p:
                os.close(terminal)
                shown = b""
                while True:
                    try:
                        shown += os.read(ours, 4096)
                    except OSError: # nobody has it open any more
                        break
            os.close(ours)
            if b" turns" in shown:
                break
        lines = [line.split("\r")[-1] for line in shown.decode().replace("\r\n", "\n").split("\n")]
        ok(re.search(rb"\r\d+ s of \d+: \w+=\d+, \d+ turns", shown) and
           lines[0] == f"scalar, 1 threads, 1 cases, {seconds} s: linear-8" and not any(" turns" in line for line in lines), "tune, a terminal: one line that changes, and nothing of it is left",
           shown)
    status, out, _ = rapt("run", *QKV, "--time", "--tuning", "any few_rows=0")
    ok(status == 0 and "path queries-in-lanes" in out, "a tuning reaches the plan", out)
    refused("another kernel's tuning", [*RUN, "--isa", "scalar", "--tuning", "scalar_fma"], "tuning.isa = scalar_fma: the kernel is scalar")
    refused("a tuning out of range", [*RUN, "--isa", "scalar", "--tuning", "any few_rows=17"], "tuning.few_rows = 17: must be 0 to 16")
    for extra in (["--isa", "abacus"], ["--threads", "0"], ["--seconds", "0"], ["--seconds", "1.5"], ["--cases", "walk"],
                  ["--cases", ","], ["--what"], ["--quiet=yes"]):
        refused("tune " + shlex.join(extra), ["tune", *extra], extra[0].split("=")[0], program="rapt tune")
    for cases, unknown in ("linear", "linear"), ("linear-8,walk", "walk"), ("few-8,", ""), ("w*", "w*"):
        refused(f"tune --cases {cases}", ["tune", "--cases", cases], f"--cases {cases}: there is no case '{unknown}'",
                program="rapt tune")


def test_numpy():
    try:
        import numpy as np
    except ImportError:
        ok(True, "NumPy's reader and writer # SKIP NumPy is not installed")
        return
    q = np.random.default_rng(1).standard_normal((3, 7, 5)).astype(np.float16)
    np.save("Q.npy", np.asfortranarray(q))
    np.save("K.npy", q.astype(np.float32))
    np.save("V.npy", q.astype(">f4"))
    status, _, err = rapt(*RUN, "--lse", "L.npy", "--out-type", "f32")
    x = q.astype(np.float64)
    s = x @ x.swapaxes(1, 2) / math.sqrt(5)
    p = np.exp(s)
    ok(status == 0 and np.abs(np.load("O.npy") - p @ x / p.sum(-1, keepdims=True)).max() < 1e-5 and
       np.abs(np.load("L.npy") - np.log(p.sum(-1))).max() < 1e-5, "NumPy's reader and writer", err)
    mask = np.random.default_rng(2).random((3, 1, 7)) < 0.7
    bias = np.random.default_rng(3).standard_normal((7, 7)).astype(np.float16)
    np.save("M.npy", mask)
    np.save("B.npy", np.asfortranarray(bias))
    np.save("S.npy", np.arange(3).astype(np.float32))
    status, _, err = rapt(*RUN, "--out-type", "f32", "--mask", "M.npy", "--bias", "B.npy", "--softcap", "2", "--alibi", "S.npy",
                          "--sinks", "S.npy")
    distance = abs(np.arange(7)[:, None] - np.arange(7))
    head = np.arange(3.0)[:, None, None]
    p = np.exp(2 * np.tanh(s / 2) - head * distance + bias) * mask
    ok(status == 0 and np.abs(np.load("O.npy") - p @ x / (p.sum(-1, keepdims=True) + np.exp(head))).max() < 1e-5,
       "NumPy's masks, biases, slopes and sinks", err)


def main():
    if not sys.argv[1:]:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        test_help()
        kernels = test_info()
        if SYSTEM:
            for test in (test_formats, test_files, test_outputs, test_outputs_that_are_inputs, test_outputs_that_are_no_files,
                         test_standard_output, test_signals, test_verbose):
                test()
            tap.done()
            return
        for test in (test_attention, test_features, test_ragged, test_formats, test_types, test_options, test_shapes,
                     test_broadcast_shapes, test_files, test_outputs, test_outputs_that_are_inputs,
                     test_outputs_that_are_no_files, test_standard_output, test_signals, test_empty, test_verbose):
            test()
        test_same_bits(kernels)
        test_kv_types(kernels)
        test_pages(kernels)
        test_time()
        test_tune(kernels)
        test_numpy()
        left = [n for n in os.listdir(".") if ".tmp" in n]
        ok(not left, "no temporary file is left", left)
        os.chdir("/")
    tap.done()


main()
