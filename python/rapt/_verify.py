# SPDX-License-Identifier: Apache-2.0
"""verify(): whether a result has the bits that attention gives."""
import copy
import ctypes
from collections.abc import Iterable
from typing import Any

import numpy as np

from . import _native as native
from . import _threads as threading_
from ._attention import Call, Plan, _output, run, sizes
from ._tensor import ELEMENT_BYTES, TYPE_NAMES, Tensor, floats, integers, tensor


def _bits(t: Tensor) -> "np.ndarray[Any, Any]":
    """The elements as unsigned integers, where they lie."""
    size = ELEMENT_BYTES[t.type]
    span = sum((n - 1) * stride for n, stride in zip(t.shape, t.strides)) + size if all(t.shape) else 0
    memory = memoryview((ctypes.c_ubyte * span).from_address(t.address)).cast("B") if span else bytearray()
    return np.ndarray(t.shape, f"u{size}", memory, strides=t.strides)


def _values(bits: "np.ndarray[Any, Any]", kind: int) -> "np.ndarray[Any, Any]":
    if kind == native.BF16:
        return (bits.astype("u4") << 16).view("f4")
    return np.ascontiguousarray(bits).view("f4" if kind == native.F32 else "f2")


def _of_query(call: Call, query: int, token_axis: int) -> Call:
    """The call for one query alone, at its position."""
    def cut(t: Tensor, axis: int) -> Tensor:
        shape = *t.shape[:axis], 1, *t.shape[axis + 1:]
        return Tensor(t.address + query * t.strides[axis], t.type, shape, t.strides, t.owner, t.library, t.writeable)

    one, q = copy.copy(call), call.tensors["q"]
    batch, _, queries, _ = sizes(q, call.layout)
    one.tensors = call.tensors | {"q": cut(q, token_axis)}
    for name in ("mask", "bias"):
        t = one.tensors.get(name)
        if t is not None and len(t.shape) > 1 and t.shape[-2] > 1:
            one.tensors[name] = cut(t, len(t.shape) - 2)
    lengths = (_bits(call.tensors["kv_lengths"]).astype("i4") if "kv_lengths" in call.tensors
               else np.full(batch, sizes(call.tensors["k"], call.layout)[2], "i4"))
    first = np.zeros_like(lengths) if call.causal == native.CAUSAL_TOP_LEFT else lengths - queries
    one.tensors["q_offsets"] = tensor((first + query).astype("i4"), "q_offsets", (native.I32,))
    return one


def verify(o: Any, q: Any, k: Any, v: Any, *, rows: Iterable[int] | None = None, threads: int | None = None,
           **options: Any) -> str | None:
    """Computes attention anew and compares bits: None if o has those of attention(q, k, v, **options), else a line that says
    which element differs first. NaN equals NaN.

    o: the result that somebody claims, of the shape and type that attention() gives. It may have been computed on another CPU of
        the same rounding class, with other threads, in a larger batch, or token by token.
    rows: the numbers of the queries to check, each of which is computed alone, in all entries and heads: a few are checked in
        a fraction of the time that all took. None: all of them, computed together, as those of ragged batches always are.
    threads, options: those of attention(), but out and return_lse.

    >>> q = k = v = np.ones((1, 2, 5, 4), np.float32)
    >>> o = rapt.attention(q, k, v, causal="bottom-right")
    >>> rapt.verify(o, q, k, v, causal="bottom-right", rows=[0, 4])
    >>> o[0, 1, 4, 2] += 1e-7
    >>> rapt.verify(o, q, k, v, causal="bottom-right", rows=[0, 4])
    'o[0, 1, 4, 2] is 1.0000001, and 1.0 is computed; 1 of 16 elements differs'
    """
    for name in ("out", "return_lse"):
        if name in options:
            raise TypeError(f"{name} is not an option of verify()")
    threads = None if threads is None else threading_.checked(threads)
    call = Call(q, k, v, **options)
    of_q, claimed = call.tensors["q"], floats(o, "o", (3, 4))
    shape = *of_q.shape[:-1], call.tensors["v"].shape[-1]
    if claimed.shape != shape or claimed.type != of_q.type:
        raise ValueError(f"o is {TYPE_NAMES[claimed.type]} of shape {claimed.shape}, where {TYPE_NAMES[of_q.type]} of {shape} is "
                         "needed")
    axis = len(shape) - (2 if call.layout == "bhsd" else 3)
    if rows is not None and call.starts:
        raise ValueError("rows of a ragged batch cannot be chosen: all are checked without them")
    if rows is None:
        parts = [(0, tensor(run(call, False, None, threads), "o"), claimed)]
    else:
        parts, plan = [], None
        for query in integers(rows, "rows").tolist():
            if not 0 <= query < shape[axis]:
                raise ValueError(f"rows has {query}: there are queries 0 to {shape[axis] - 1}")
            one = _of_query(call, query, axis)
            plan = plan or Plan(one, None, False, threads)  # one for all: only addresses differ
            computed = tensor(plan.run(one, *_output(one, None)), "o")
            part = Tensor(claimed.address + query * claimed.strides[axis], claimed.type, computed.shape, claimed.strides, o, "")
            parts.append((query, computed, part))
    return _difference(parts, axis, claimed.type)


def _difference(parts: list[tuple[int, Tensor, Tensor]], axis: int, kind: int) -> str | None:
    """What verify() returns, of (number of the first query, what is computed, what is claimed)."""
    count, different, line = 0, 0, ""
    for query, computed, claimed in parts:
        need, have = _bits(computed), _bits(claimed)
        numbers, claims = _values(need, kind), _values(have, kind)
        unequal = (need != have) & ~(np.isnan(numbers) & np.isnan(claims))
        count, different = count + need.size, different + int(unequal.sum())
        if not line and unequal.any():
            at = tuple(int(i) for i in np.argwhere(unequal)[0])
            place = ", ".join(str(i + query if j == axis else i) for j, i in enumerate(at))
            line = f"o[{place}] is {claims[at]!s}, and {numbers[at]!s} is computed"
    return f"{line}; {different} of {count} elements {'differs' if different == 1 else 'differ'}" if line else None
