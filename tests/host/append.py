#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Written caches and rotary embedding against other people's definitions, in TAP. Usage: append.py path/to/librapt.so

ggml's types against the package gguf, fp8 against ml_dtypes (or torch), int8 and rotary embedding against NumPy. What is not
installed (requirements.txt) is skipped, with a line that says so."""
import pathlib
import sys
from fractions import Fraction

try:
    import numpy as np
except ImportError:
    print("1..0 # SKIP NumPy is not installed")
    sys.exit(0)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import tap
from rapt._native import (BF16, F16, F32, INT4, INT4_MIN, INT8, MXFP4, MXFP8_E4M3, NVFP4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0,
                         KvAppendArgs, KvAppendDesc, Layout, Library, RopeArgs, Rope, Scales)
from rapt._native import F8_E4M3 as E4M3, F8_E5M2 as E5M2
from tap import ok, skip

# ---- The library -----------------------------------------------------------------------------------------------------------


library = Library(sys.argv[1])
rapt = library.c


def append(x, kind, scales=None, channel_stride=0):
    """x [tokens, channels], f32, as the V of one head; returns its bytes. scales: an array given (for all channels or each), or
    "token": then the scales found are returned too."""
    tokens, channels = x.shape
    row = rapt.rapt_row_bytes(kind, channels)
    out = np.zeros((tokens, row), np.uint8)
    d = library.new(KvAppendDesc, kv_heads=1, tokens=tokens, kv_len=tokens, d_v=channels, new_v=Layout(F32, 0, 0, 4 * channels),
                    v=Layout(kind, 0, 0, row))
    a = library.new(KvAppendArgs, new_v=np.ascontiguousarray(x, np.float32), v=out)
    if isinstance(scales, str):
        scales = np.zeros(tokens, np.float32)
        d.v_scales, a.v_scales = Scales(1, 0, 0, 4, 0), scales
        rapt.rapt_kv_append_run(d, a)
        return out, scales
    if scales is not None:
        d.v_scales, a.v_scales = Scales(1, 0, 0, 0, channel_stride), scales
    rapt.rapt_kv_append_run(d, a)
    return out


def frequencies(base, channels):
    out = np.zeros(channels // 2)
    rapt.rapt_rope_frequencies(base, channels, out.ctypes)
    return out


def rope(x, positions, frequencies, interleaved, amplitude=1.0):
    """x [heads, tokens, d], f32; positions [tokens]."""
    heads, tokens, d = x.shape
    layout, out = Layout(F32, 0, 4 * tokens * d, 4 * d), np.zeros(x.shape, np.float32)
    frequencies = np.ascontiguousarray(frequencies, np.float64)
    a = library.new(RopeArgs, heads=heads, tokens=tokens, d=d, in_=layout, out=layout, from_=np.ascontiguousarray(x, np.float32),
                    to=out, positions=positions.astype(np.int32),
                    rope=Rope(2 * len(frequencies), interleaved, frequencies, amplitude, 0))
    rapt.rapt_rope_run(a)
    return out


rng = np.random.default_rng(20210420)


def rows(tokens, channels):
    """Normally distributed, of sizes from 2^-20 to 2^12; some with outliers, some all of one sign, some zero, some of few values
    (which is where rounding meets ties)."""
    x = rng.standard_normal((tokens, channels)) * np.exp2(rng.integers(-20, 13, (tokens, 1)))
    x[::7] *= np.where(rng.random(x[::7].shape) < 0.02, 30, 1)
    x[::11] = np.abs(x[::11])
    x[::13] = np.round(x[::13] / np.abs(x[::13]).max(axis=1, keepdims=True) * 16)
    x[::17] = 0
    return x.astype(np.float32)


# ---- Types -----------------------------------------------------------------------------------------------------------------


def test_ggml():
    names = {Q8_0: "Q8_0", Q4_0: "Q4_0", Q4_1: "Q4_1", Q5_0: "Q5_0", Q5_1: "Q5_1"}
    try:
        from gguf import GGMLQuantizationType, quants
    except ImportError:
        for name in names.values():
            skip(f"{name} = gguf's", "gguf is not installed")
        return
    x = rows(20000, 96) + np.float32(0)  # without -0: of that and 0, NumPy's minimum is either
    size = np.abs(x).reshape(-1, 32).max(axis=1)
    ordinary = (size > 2.0**-6) & (size < 2.0**14)  # where f16 has a good scale for them
    for kind, name in names.items():
        with np.errstate(over="ignore"):
            want = quants.quantize(x, GGMLQuantizationType[name])
        got = append(x, kind)
        wrong = np.argwhere((got != want).any(axis=1))
        ok(got.shape == want.shape and len(wrong) == 0, f"{name} = gguf's: {len(wrong)} of {len(x)} rows differ")
        back = quants.dequantize(got, GGMLQuantizationType[name])
        step = size[ordinary] / {Q8_0: 127, Q4_0: 8, Q4_1: 7.5, Q5_0: 16, Q5_1: 15.5}[kind]
        worst = (np.abs(back - x).reshape(-1, 32).max(axis=1)[ordinary] / step).max()
        ok(worst < 1.05, f"{name}: read back within {worst:.3f} steps")


def test_floats():
    """f16, bf16 and fp8: random bits, and every value with all that lies around the middle between it and the next."""
    for kind, name, numpy_name, largest in ((F16, "f16", "float16", None), (BF16, "bf16", "bfloat16", None),
                                            (E4M3, "e4m3", "float8_e4m3fn", 448.0), (E5M2, "e5m2", "float8_e5m2", 57344.0)):
        x = rng.integers(0, 2**32, 1 << 20, np.uint32).view(np.float32)
        near = np.concatenate([np.arange(0, 2**15), np.arange(-2**15, 0)]).astype(np.int16).view(np.float16).astype(np.float32)
        with np.errstate(invalid="ignore"):
            middle = (near[1:].astype(np.float64) + near[:-1].astype(np.float64)).astype(np.float32) / 2
        x = np.concatenate([x, near, middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)]).astype(np.float32)
        if kind in (E4M3, E5M2):
            mids = x[np.abs(x) < largest]
            x = np.concatenate([x, (mids.view(np.uint32) & 0xfff00000).view(np.float32),
                                ((mids.view(np.uint32) & 0xfff00000) | 0x80000).view(np.float32)])
        x = x[:len(x) // 64 * 64].reshape(-1, 64)
        nan = np.isnan(x)
        bounded = x if largest is None else np.clip(x, -largest, largest)
        width = np.uint16 if largest is None else np.uint8
        if kind == F16:
            with np.errstate(over="ignore"):
                want = bounded.astype(np.float16).view(width)
        else:
            try:
                import ml_dtypes
                with np.errstate(all="ignore"):
                    want = bounded.astype(getattr(ml_dtypes, numpy_name)).view(width)
            except ImportError:
                try:
                    import torch
                    kept = torch.from_numpy(bounded.copy()).to(getattr(torch, numpy_name))
                    want = kept.view(torch.uint8 if largest else torch.int16).numpy().view(width)
                except (ImportError, AttributeError):
                    skip(f"{name} = {numpy_name}", "neither ml_dtypes nor torch is installed")
                    continue
        got = append(x, kind).view(width)
        wrong = int(((got != want) & ~nan).sum())
        exponent = {F16: 0x7c00, BF16: 0x7f80, E4M3: 0x7e, E5M2: 0x7c}[kind]
        is_nan = (got & {F16: 0x7fff, BF16: 0x7fff, E4M3: 0x7f, E5M2: 0x7f}[kind]) > exponent
        ok(wrong == 0 and (is_nan == nan).all(), f"{name} = {numpy_name}: {wrong} of {x.size} differ")


def test_bytes():
    x = rows(20000, 100)
    got, found = append(x, INT8, "token")
    want = np.abs(x).max(axis=1) / np.float32(127)
    with np.errstate(invalid="ignore"):
        numbers = np.where(want[:, None] == 0, 0, np.rint(x / want[:, None])).clip(-127, 127).astype(np.int8)
    ok((found == want).all() and (got.view(np.int8) == numbers).all(), "int8 with a scale for each token = NumPy's")
    worst = (np.abs(got.view(np.int8) * found[:, None].astype(np.float64) - x).max(axis=1) / np.maximum(found, 1e-30)).max()
    ok(worst <= 0.5001, f"int8: read back within {worst:.4f} steps")
    for kind, name, largest in ((E4M3, "float8_e4m3fn", 448), (E5M2, "float8_e5m2", 57344)):
        try:
            import ml_dtypes
        except ImportError:
            skip(f"{name} with a scale for each token", "ml_dtypes is not installed")
            continue
        got, found = append(x, kind, "token")
        want = np.abs(x).max(axis=1) / np.float32(largest)
        with np.errstate(invalid="ignore"):
            scaled = np.where(want[:, None] == 0, np.float32(0), x / want[:, None])
        want_bytes = scaled.clip(-largest, largest).astype(getattr(ml_dtypes, name)).view(np.uint8)
        ok((found == want).all() and (got == want_bytes).all(), f"{name} with a scale for each token")
    given = np.exp2(rng.uniform(-6, 2, 100)).astype(np.float32)
    want = np.rint(x / given).clip(-127, 127).astype(np.int8)
    ok((append(x, INT8, given, 4).view(np.int8) == want).all(), "int8 with given scales for each channel = NumPy's")
    want = np.rint(x / given[0]).clip(-127, 127).astype(np.int8)
    ok((append(x, INT8, given).view(np.int8) == want).all(), "int8 with one given scale = NumPy's")


def test_int4():
    """By their layout: the error is below that of the plain definition, and of half a step or little more."""
    x = rows(20000, 64)
    group = x.reshape(-1, 32).astype(np.float64)
    size = np.abs(group).max(axis=1)
    ordinary = (size > 2.0**-6) & (size < 2.0**14)  # where f16 has a good scale for them
    x, group = x.reshape(-1, 32)[ordinary], group[ordinary]
    b = append(x, INT4).reshape(-1, 18)
    n = np.stack([b[:, 2:] & 15, b[:, 2:] >> 4], axis=2).reshape(-1, 32)
    back = b[:, :2].copy().view(np.float16).astype(np.float64) * (n - 8.0)
    plain = np.maximum(np.abs(group).max(axis=1, keepdims=True) / 7, 1e-30)
    plain_back = plain * np.rint(group / plain)
    square = np.square(group).sum(axis=1)
    error, bound = (np.mean(np.square(y - group).sum(axis=1) / square) for y in (back, plain_back))
    ok(error < bound, f"int4: relative square error {error:.5f}, with max|x| / 7 it would be {bound:.5f}")
    b = append(x, INT4_MIN).reshape(-1, 20)
    n = np.stack([b[:, 4:] & 15, b[:, 4:] >> 4], axis=2).reshape(-1, 32)
    head = b[:, :4].copy().view(np.float16).astype(np.float64)
    back = head[:, :1] * n + head[:, 1:]
    step = (group.max(axis=1) - group.min(axis=1)) / 15
    worst = (np.abs(back - group).max(axis=1) / np.maximum(step, np.abs(group).max(axis=1) * 2.0**-9)).max()
    ok(worst < 0.75, f"int4 with a minimum: read back within {worst:.3f} steps")


def test_mx():
    """OCP MX 1.0, section 6.3, in ml_dtypes' formats; and how ggml reads its block_mxfp4."""
    try:
        import ml_dtypes
    except ImportError:
        skip("OCP MX = ml_dtypes'", "ml_dtypes is not installed")
        return
    x = rows(20000, 96)
    groups = x.reshape(-1, 32)
    groups[1::50, 3], groups[2::50, 5], groups[3::50] = np.nan, np.inf, groups[3::50] * np.float32(1e-38)
    finite = np.isfinite(groups).all(axis=1)
    for kind, name, elements, largest, exponent, halves in ((MXFP4, "mxfp4", "float4_e2m1fn", 6, 2, True),
                                                           (MXFP8_E4M3, "mxfp8_e4m3", "float8_e4m3fn", 448, 8, False)):
        with np.errstate(all="ignore"):
            most = np.abs(groups).max(axis=1).astype(np.float64)
            scale = np.exp2(np.maximum(np.where(most > 0, np.floor(np.log2(most)) - exponent, -127), -127))
            numbers = (groups / scale[:, None]).clip(-largest, largest).astype(getattr(ml_dtypes, elements)).view(np.uint8)
            scales = scale.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8)
        if halves:
            numbers = (numbers[:, :16] & 15) | (numbers[:, 16:] << 4)
        scales, numbers = np.where(finite, scales, 255), np.where(finite[:, None], numbers, 0)
        got = append(x, kind).reshape(len(groups), -1)
        wrong = int((got != np.column_stack([scales, numbers])).any(axis=1).sum())
        ok(wrong == 0, f"{name} = ml_dtypes' {elements} and float8_e8m0fnu: {wrong} of {len(groups)} groups differ")
        if not halves:
            continue
        try:
            from gguf import GGMLQuantizationType, quants
            back = quants.dequantize(got[finite], GGMLQuantizationType.MXFP4)
        except (ImportError, AttributeError, NotImplementedError):
            skip(f"{name} read by gguf", "gguf is not installed, or older than this type")
            continue
        error = np.abs(back - groups[finite]).max(axis=1) / np.maximum(scale[finite], 1e-45)
        ok(error.max() <= 2, f"{name} read by gguf: within {error.max():.3f} of the scale")


def test_nvfp4():
    """Scales and elements in ml_dtypes' formats."""
    try:
        import ml_dtypes
    except ImportError:
        skip("NVFP4 = ml_dtypes'", "ml_dtypes is not installed")
        return
    groups = rows(20000, 96).reshape(-1, 16)
    groups[1::50, 3], groups[2::50, 5] = np.nan, np.inf
    finite = np.isfinite(groups).all(axis=1)
    with np.errstate(all="ignore"):
        scales = (np.abs(groups).max(axis=1) / np.float32(6)).clip(max=448).astype(ml_dtypes.float8_e4m3fn)
        numbers = (groups / scales.astype(np.float32)[:, None]).clip(-6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    numbers = np.where((finite & (scales != 0))[:, None], (numbers[:, :8] & 15) | (numbers[:, 8:] << 4), 0)
    want = np.column_stack([np.where(finite, scales.view(np.uint8), 0x7f), numbers])
    wrong = int((append(groups.reshape(20000, 96), NVFP4).reshape(want.shape) != want).any(axis=1).sum())
    ok(wrong == 0, f"nvfp4 = ml_dtypes' float8_e4m3fn and float4_e2m1fn: {wrong} of {len(groups)} groups differ")


# ---- Rotary embedding ------------------------------------------------------------------------------------------------------


def llama3(inverse, factor=8.0, low=1.0, high=4.0, old=8192):
    """Llama 3.1's scaling of frequencies, as Hugging Face's modeling_rope_utils has it."""
    length = 2 * np.pi / inverse
    scaled = np.where(length > old / low, inverse / factor, inverse)
    smooth = (old / length - low) / (high - low)
    smoothed = (1 - smooth) * scaled / factor + smooth * scaled
    return np.where((length >= old / high) & (length <= old / low), smoothed, scaled)


def rotated(x, positions, inverse, interleaved, amplitude):
    """Hugging Face's apply_rotary_pos_emb, for GPT-NeoX and Llama or for GPT-J, in float64; channels beyond stay."""
    angles = positions[:, None] * inverse[None, :]
    angles = np.repeat(angles, 2, axis=1) if interleaved else np.concatenate([angles, angles], axis=1)
    cos, sin, n = np.cos(angles) * amplitude, np.sin(angles) * amplitude, 2 * len(inverse)
    part = x[..., :n].astype(np.float64)
    if interleaved:
        half = np.stack([-part[..., 1::2], part[..., ::2]], axis=-1).reshape(part.shape)
    else:
        half = np.concatenate([-part[..., n // 2:], part[..., :n // 2]], axis=-1)
    return np.concatenate([part * cos + half * sin, x[..., n:]], axis=-1)


def test_rope():
    for base, channels in (10000.0, 64), (10000.0, 128), (500000.0, 128), (1000000.0, 80), (1.0, 6):
        want = 1.0 / base**(np.arange(0, channels, 2) / channels)
        worst = np.abs(frequencies(base, channels) / want - 1).max()
        ok(worst < 1e-15, f"frequencies of base {base:g} and {channels} channels: {worst:.1e}")
    x = rng.standard_normal((3, 500, 128)).astype(np.float32)
    positions = np.concatenate([np.arange(100), rng.integers(0, 131072, 400)])
    for what, inverse, amplitude in (("all channels", frequencies(10000, 128), 1.0), ("a part", frequencies(10000, 32), 1.0),
                                     ("Llama 3.1's frequencies", llama3(frequencies(500000, 128)), 1.0),
                                     ("linear scaling and an amplitude", frequencies(10000, 128) / 4, 1.1386294361119891)):
        for interleaved in 0, 1:
            got, want = rope(x, positions, inverse, interleaved, amplitude), rotated(x, positions, inverse, interleaved, amplitude)
            worst = np.abs(got - want).max() / np.abs(x).max()
            ok(worst < 3e-7, f"rope, {'pairs' if interleaved else 'halves'}, {what}: {worst:.1e}")
            ok((got[..., 2 * len(inverse):] == x[..., 2 * len(inverse):]).all(), "... the other channels as they were")
    # Positions up to 2^31 and frequencies of 53 bits: the angle exactly, by whole turns of a pi of 60 digits.
    turn = 2 * Fraction(314159265358979323846264338327950288419716939937510582097494, 10**59)
    inverse = frequencies(10000, 128)
    positions = rng.integers(0, 2**31, 200)
    x = np.zeros((1, 200, 128), np.float32)
    x[..., :64] = 1
    got, worst = rope(x, positions, inverse, 0)[0].astype(np.float64), 0.0
    for row, position in zip(got, positions):
        angle = np.array([float(Fraction(int(position)) * Fraction(float(f)) % turn) for f in inverse])
        want = np.concatenate([np.cos(angle), np.sin(angle)])
        worst = max(worst, (np.abs(row - want) - np.spacing(np.abs(want).astype(np.float32)) / 2).max())
    ok(worst < 1e-11, f"rope, positions up to 2^31: at most {worst:.1e} beyond half an ulp")


test_ggml()
test_floats()
test_bytes()
test_int4()
test_mx()
test_nvfp4()
test_rope()
tap.done()
