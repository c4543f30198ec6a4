# SPDX-License-Identifier: Apache-2.0
"""Random rows of every type that K, V and weights may have, as bytes and as the numbers that these stand for.

It reads bytes as include/rapt.h defines them, and shares no code with the library. What it knows of the types is in the tables
FLOATS to BLOCKS, which tests/host/vectors.py holds against kernels/types/types.h."""
import collections
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs"))
import order

f32 = np.float32

# kind: the name of the type; rows: what the library gets; values: what these are; numbers and groups: what integer arithmetic
# takes, groups being the scales, and minimums what is added, None for types that have none;
# subs: integer scales and minimums of sub-blocks.
Tensor = collections.namedtuple("Tensor", "kind rows values numbers groups minimums subs", defaults=(None, None, None, None))


def halves(x):
    """Numbers i and i + n / 2 of n in byte i."""
    return np.concatenate([x & 15, x >> 4], axis=-1).astype(np.int8)


def pairs(x):
    """Numbers 2 i and 2 i + 1 in byte i."""
    return np.stack([x & 15, x >> 4], axis=-1).reshape(*x.shape[:-1], -1).astype(np.int8)


def fifth(x):
    """The fifth bits of 32 numbers."""
    return np.unpackbits(x, axis=-1, bitorder="little").astype(np.int8) << 4


def e2m1(codes):
    sizes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], f32)
    return np.concatenate([sizes, -sizes])[codes]


def e4m3(codes):
    """Of bytes that are not NaN: as binary16, whose exponent has a bit more, and so another bias, by 8."""
    wide = codes.astype(np.uint16)
    return ((wide & 128) << 8 | (wide & 127) << 7).view(np.float16).astype(f32) * f32(256)


def e5m2(codes):
    return (codes.astype(np.uint16) << 8).view(np.float16).astype(f32)


def power_of_2(codes):
    return np.ldexp(f32(1), codes.astype(np.int32) - 127)


# Types of single elements, of a byte: what gives their values, and the bytes that stand for none, which are not drawn.
FLOATS = "f32", "f16", "bf16"
BYTES = {"int8": (lambda x: x.view(np.int8).astype(f32), ()), "f8_e4m3": (e4m3, (0x7f, )), "f8_e5m2": (e5m2, range(0x7c, 0x80))}
# Types with groups of 32 channels: bytes, and the numbers of these bytes; the scale, an f16, comes first.
SCALED = {"int4": (18, lambda g: pairs(g[..., 2:]) - 8), "q8_0": (34, lambda g: g[..., 2:].view(np.int8)),
          "q4_0": (18, lambda g: halves(g[..., 2:]) - 8), "q5_0": (22, lambda g: (halves(g[..., 6:]) | fifth(g[..., 2:6])) - 16)}
# The same, where a minimum, an f16, comes after the scale.
RANGED = {"int4_min": (20, lambda g: pairs(g[..., 4:])), "q4_1": (20, lambda g: halves(g[..., 4:])),
          "q5_1": (24, lambda g: halves(g[..., 8:]) | fifth(g[..., 4:8]))}
# Types whose scale is a byte, which comes first: channels and bytes of a group, what is the scale and what are the numbers.
BYTE_SCALED = {"mxfp4": (32, 17, power_of_2, lambda g: e2m1(halves(g))), "mxfp8_e4m3": (32, 33, power_of_2, e4m3),
               "nvfp4": (16, 9, e4m3, lambda g: e2m1(halves(g)))}


def q4_k(blocks):
    """d and e of f16, 12 bytes with the 6 bits of 8 scales a and 8 minimums b, then 128 bytes with two numbers each: a sub-block of 32
    is in the lower halves of 32 bytes, and the next one in the upper halves."""
    first, last, rest = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    a = np.concatenate([first & 63, rest & 15 | first >> 6 << 4], axis=-1)
    b = np.concatenate([last & 63, rest >> 4 | last >> 6 << 4], axis=-1)
    return a, b, halves(blocks[..., 16:].reshape(*blocks.shape[:-1], 4, 32)).reshape(*blocks.shape[:-1], 8, 32)


def q6_k(blocks):
    """128 bytes with the lower 4 bits of numbers + 32, 64 with their upper 2 bits, 16 scales a of int8, and d of f16. Of each 128
    channels, the lower bits of 64 are in the lower halves of 64 bytes, and those of the others in the upper halves; the upper bits are
    in 32 bytes, those of channels 32 i to 32 i + 31 from bit 2 i on."""
    outer = blocks.shape[:-1]
    lower, upper = blocks[..., :128].reshape(*outer, 2, 64), blocks[..., 128:192].reshape(*outer, 2, 32)
    high = np.concatenate([upper >> 2 * i & 3 for i in range(4)], axis=-1).astype(np.int8)
    a = blocks[..., 192:208].view(np.int8)
    return a, np.zeros_like(a), (halves(lower) | high << 4).reshape(*outer, 16, 16) - 32


# Types with blocks of 256 channels: bytes, where d and e are (e: None if there is none), and what gives a, b and the numbers.
BLOCKS = {"q4_k": (144, 0, 2, q4_k), "q6_k": (210, 208, None, q6_k)}

KV = *FLOATS, *BYTES, *SCALED, *RANGED, *BYTE_SCALED
WEIGHTS = *FLOATS, "int8", "q8_0", "q4_0", "q4_1", *BLOCKS
INTEGER_KV = "int8", *SCALED  # those that integer arithmetic knows
INTEGER_WEIGHTS = WEIGHTS[len(FLOATS):]


def channels_of(kind):
    """Of a group; 1 where each element is by itself."""
    return 1 if kind in (*FLOATS, *BYTES) else 256 if kind in BLOCKS else BYTE_SCALED[kind][0] if kind in BYTE_SCALED else 32


def bytes_of(kind):
    """Of a group of a type that is no float."""
    return 1 if kind in BYTES else BYTE_SCALED[kind][1] if kind in BYTE_SCALED else (SCALED | RANGED | BLOCKS)[kind][0]


def floats(x, kind="f32"):
    """Of an array of float32, rounded to that type."""
    values = x if kind == "f32" else order.rounded(x, kind)
    if kind == "bf16": return Tensor(kind, (values.view(np.uint32) >> 16).astype(np.uint16), values)
    return Tensor(kind, values.astype(np.float16 if kind == "f16" else f32), values)


def drawn(rng, kind, shape, size=1.0):
    """A tensor of random bytes, but for the scales of groups and blocks, which make elements about that size. Elements of a byte have
    all sizes that there are; what reads them multiplies them by scales of its own."""
    if kind in FLOATS: return floats(rng.standard_normal(shape).astype(f32) * f32(size), kind)
    *outer, channels = shape
    groups = rng.integers(0, 256, (*outer, channels // channels_of(kind), bytes_of(kind)), np.uint8)
    if kind in BYTES: t = of_bytes(kind, groups)
    elif kind in BYTE_SCALED: t = of_byte_scales(rng, kind, groups, size)
    elif kind in BLOCKS: t = of_blocks(rng, kind, groups, size)
    else: t = of_groups(rng, kind, groups, size)
    return t._replace(rows=t.rows.reshape(*outer, -1), numbers=None if t.numbers is None else t.numbers.reshape(shape))


def of_bytes(kind, x):
    value_of, none = BYTES[kind]
    x[np.isin(x & 127, none)] = 0
    values = value_of(x)[..., 0]
    return Tensor(kind, x.view(np.int8) if kind == "int8" else x, values, values.astype(np.int8) if kind == "int8" else None)


def of_groups(rng, kind, groups, size):
    _, unpack = (SCALED | RANGED)[kind]
    numbers = unpack(groups)
    scales = put_halves(rng, groups, 0, size / rms(numbers))
    minimums = put_halves(rng, groups, 2, size) if kind in RANGED else None
    values = order.of_groups(scales[..., None], numbers, f32(0) if minimums is None else minimums[..., None])
    return Tensor(kind, groups, values, numbers, scales, minimums)


def of_byte_scales(rng, kind, groups, size):
    _, _, scale_of, unpack = BYTE_SCALED[kind]
    if unpack is e4m3: groups[groups & 127 == 127] = 0  # NaN
    numbers = unpack(groups[..., 1:])
    scales = size / rms(numbers) * 2.0**rng.uniform(-2, 1, groups.shape[:-1])
    if scale_of is e4m3: codes = np.rint(56 + 8 * np.log2(scales)).astype(np.uint8) | groups[..., 0] & 128  # about that, of any sign
    else: codes = np.rint(127 + np.log2(scales)).astype(np.uint8)
    groups[..., 0] = codes
    return Tensor(kind, groups, order.of_groups(scale_of(groups[..., 0])[..., None], numbers))


def of_blocks(rng, kind, blocks, size):
    _, d_at, e_at, unpack = BLOCKS[kind]
    a, b, numbers = unpack(blocks)
    d = put_halves(rng, blocks, d_at, size / rms(a[..., None] * numbers.astype(f32)))
    e = None if e_at is None else put_halves(rng, blocks, e_at, size / rms(b))
    values = order.of_blocks(*(x[..., None, None] for x in (d, np.zeros_like(d) if e is None else e)), a[..., None], b[..., None], numbers)
    return Tensor(kind, blocks, values, numbers, d, e, (a.astype(np.float64), b.astype(np.float64)))


def put_halves(rng, groups, at, size):
    """Writes normal numbers of f16 into each of the groups, and returns them."""
    found = (rng.standard_normal(groups.shape[:-1]) * size).astype("<f2")
    groups[..., at:at + 2] = found[..., None].view(np.uint8)
    return found.astype(f32)


def rms(x):
    """The root of the mean of squares."""
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64)))) or 1.0
