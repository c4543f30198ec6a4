# SPDX-License-Identifier: Apache-2.0
"""The numbers that everybody gets, in NumPy's arrays, and how outputs are compared bit for bit."""
import math

import numpy as np

COLD_BYTES = 256 << 20  # as BENCH_COLD_BYTES
BITS = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}  # NumPy has no bf16, so those are carried by their bits
TOLERANCE = {"f32": 1e-3, "f16": 2e-2, "bf16": 1e-1}              # an output further off than this is wrong, whatever its speed


def aligned(shape, dtype):
    """Zeros at a page boundary; NumPy asks for huge pages where an array is large, so that all see the same TLB."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 4096, np.uint8)
    start = -raw.ctypes.data % 4096
    return raw[start:start + size].view(dtype).reshape(shape)


def fill(shape, kind, seed):
    """The values of bench_fill: bell-shaped, multiples of 1/64, exact in each type."""
    def mix(x):
        x = (x ^ x >> np.uint32(16)) * np.uint32(0x7feb352d)
        x = (x ^ x >> np.uint32(15)) * np.uint32(0x846ca68b)
        return x ^ x >> np.uint32(16)
    bits = mix(mix(np.array([seed], np.uint32)) + np.arange(math.prod(shape), dtype=np.uint32))
    values = sum((bits >> np.uint32(8 * i) & np.uint32(127)).astype(np.int32) for i in range(4)) - 254
    out = aligned(shape, BITS[kind])
    values = (values / np.float32(64)).reshape(shape).astype(np.float32)
    out[...] = values.view(np.uint32) >> 16 if kind == "bf16" else values
    return out


def widened(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32) if bits.dtype == np.uint16 else bits


def differences(a, b):
    """How many elements of two outputs have not the same bits, and how far apart they are at most; NaN counts as infinitely far.
    Zeros of different signs differ by nothing, and still differ."""
    bits = f"u{a.itemsize}"
    where = np.ascontiguousarray(a).view(bits) != np.ascontiguousarray(b).view(bits)
    apart = np.abs(widened(a[where]).astype(np.float64) - widened(b[where]).astype(np.float64)).max(initial=0)
    return {"differ": int(where.sum()), "of": where.size, "most": math.inf if np.isnan(apart) else float(apart)}
