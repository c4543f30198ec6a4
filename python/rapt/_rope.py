# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding: Rope, which says how, and rope()."""
import math
from typing import Any

import numpy as np

from . import _native as native
from . import _threads as threading_
from ._arguments import flag, number, shown, whole
from ._attention import layout_name, layout_of, sizes
from ._tensor import as_array, empty, floats, integers, reals, written


class Rope:
    """How pairs of channels are turned by angles that grow with the position (Su et al. 2021, RoFormer, section 3.2.2), for
    rope(), KVCache.append() and mha().

    channels: how many of a head's channels are rotated, from channel 0 on, even.
    base: the frequencies are base^(-2i / channels).
    interleaved: False: pair i is channels i and i + channels / 2 (NeoX, Llama); True: 2i and 2i + 1 (GPT-J).
    frequencies: (channels / 2), in radians for each position, in place of base: as a model scales them (linear, NTK, YaRN,
        Llama 3).
    amplitude: a factor of cosines and sines (YaRN's attention factor).
    offset: what is added to every position.
    tables: a pair of the cosines and the sines, each (positions, channels / 2) of float32, float16 or bfloat16, in place of
        frequencies.

    >>> rapt.Rope(128, base=500000.0)
    Rope(128 channels)
    """

    def __init__(self, channels: int, *, base: float = 10000.0, interleaved: bool = False, frequencies: Any = None,
                 amplitude: float = 1.0, offset: int = 0, tables: Any = None):
        self.channels = whole(channels, "channels")
        if not 2 <= self.channels <= native.MAX_HEAD_DIM or self.channels % 2:
            raise ValueError(f"channels is {shown(channels)}: an even number of 2..{native.MAX_HEAD_DIM} is needed")
        self._given: dict[str, Any] = {"channels": self.channels, "interleaved": flag(interleaved, "interleaved"),
                                       "amplitude": amplitude, "offset": offset}
        self._struct = native.Rope(channels=self.channels, interleaved=int(self._given["interleaved"]),
                                   amplitude=number(amplitude, "amplitude"), offset=whole(offset, "offset"))
        self._table = native.RopeTable()
        if tables is None:
            self._angles(number(base, "base"), frequencies)
        elif frequencies is not None:
            raise ValueError("frequencies and tables are given: one of them is needed")
        elif not isinstance(tables, (tuple, list)) or len(tables) != 2:
            raise TypeError(f"tables is {shown(tables)}: a pair of the cosines and the sines is needed")
        else:
            self._rows(*tables)

    def __repr__(self) -> str:
        return f"Rope({self.channels} channels)"

    def __reduce__(self) -> Any:
        return _rope_of, (self._given,)

    def _angles(self, base: float, frequencies: Any) -> None:
        if frequencies is None:
            if not 1 <= base < math.inf:
                raise ValueError(f"base is {base}: a finite number from 1 on is needed")
            frequencies = np.empty(self.channels // 2, np.float64)
            native.library().c.rapt_rope_frequencies(base, self.channels, frequencies.ctypes.data)
        a = reals(frequencies, "frequencies", np.float64).copy()
        if a.shape != (self.channels // 2,):
            raise ValueError(f"frequencies have shape {a.shape}, where ({self.channels // 2},) is needed")
        self._struct.frequencies = self._given["frequencies"] = a

    def _rows(self, cosines: Any, sines: Any) -> None:
        c, s = floats(cosines, "cosines", 2), floats(sines, "sines", 2)
        if (c.type, c.shape, c.strides[0]) != (s.type, s.shape, s.strides[0]) or c.shape[1] != self.channels // 2:
            raise ValueError(
                f"tables have shapes {c.shape} and {s.shape}, where (positions, {self.channels // 2}) of the same strides "
                "are needed")
        if c.shape[0] > 1 and not c.strides[0]:  # which would say that rows are dense
            raise ValueError(f"tables have shape {c.shape} and one row in memory: copies are needed")
        for t in (c, s):
            layout_of(t, "tables", "bhsd")
        self._given["tables"] = cosines, sines
        self._table = native.RopeTable(type=c.type, positions=c.shape[0], row_stride=c.strides[0])
        self._table.c, self._table.s, self._kept = c.address, s.address, (c, s)

    def check(self, first: "np.ndarray[Any, Any]", end: "np.ndarray[Any, Any]", positions: "np.ndarray[Any, Any] | None") -> None:
        """Raises what the library would for a position outside of the tables: of tokens first to end - 1 of each entry, or these."""
        if not self._table.type:
            return
        some = positions if positions is not None else np.concatenate([first, end - 1])
        outside = some[(some + self._struct.offset < 0) | (some + self._struct.offset >= self._table.positions)]
        if len(outside):
            raise native.Error(f"position {outside[0]} is not in the tables, which have {self._table.positions}")

    def put_into(self, desc: Any, args: Any) -> None:
        """Into the description and the arguments of a call."""
        desc.rope = self._struct
        args.rope_table = self._table


def _rope_of(given: dict[str, Any]) -> Rope:
    """What a Rope is pickled as."""
    return Rope(**given)


def checked_rope(rope: Any) -> Rope:
    """The argument rope."""
    if not isinstance(rope, Rope):
        raise TypeError(f"rope is a {type(rope).__name__}: a rapt.Rope is needed")
    return rope


def rope(x: Any, rope: Rope, *, layout: str = "bhsd", starts: Any = None, positions: Any = None, lengths: Any = None,
         token_starts: Any = None, out: Any = None, threads: int | None = None) -> Any:
    """Rotates each token of x by its position: queries, or keys that are not appended to a KVCache, which rotates them itself.

    x: (batch, heads, tokens, channels) of float32, float16 or bfloat16; without a batch, (heads, tokens, channels).
    rope: how it is rotated.
    layout: "bhsd", or "bshd" with tokens before heads.
    starts: (batch), the position of each entry's first token; None: 0.
    positions: (batch, tokens), or (tokens) without a batch, the position of each token, in place of starts.
    lengths: (batch), how many tokens of each entry are rotated; those behind are not written, and 0 in a new array.
    token_starts: (batch + 1), where the tokens of each entry begin in an x without a batch dimension.
    out: the array to be written, of x's shape, which may be x itself.
    threads: as of attention().

    >>> x = np.ones((1, 1, 2, 4), np.float32)
    >>> [round(float(channel), 3) for channel in rapt.rope(x, rapt.Rope(4), starts=[1])[0, 0, 0]]
    [-0.301, 0.99, 1.382, 1.01]
    """
    given = floats(x, "x", (3, 4))
    layout_name(layout)
    checked_rope(rope)
    if out is None:
        out = empty(given.shape, given.type, given)
        if lengths is not None or token_starts is not None:
            out[...] = 0  # the tokens that nobody writes
    o = floats(out, "out", len(given.shape))
    if o.shape != given.shape:
        raise ValueError(f"out has shape {o.shape}, where {given.shape} is needed")
    written(o, "out")
    batch, heads, tokens, channels = sizes(given, layout)
    args = native.library().new(native.RopeArgs, heads=heads, tokens=tokens, d=channels, in_=layout_of(given, "x", layout),
                                out=layout_of(o, "out", layout), from_=given.address, to=o.address)
    rope.put_into(args, args)
    args.batch = put_tokens(args, batch, tokens, starts, positions, lengths, token_starts)
    count = threading_.threads_for(threads, batch * heads * tokens * channels)
    threading_.run(native.library(), "rapt_rope", args, threads=count)
    return out


def put_tokens(args: Any, batch: int, tokens: int, starts: Any, positions: Any, lengths: Any, token_starts: Any) -> int:
    """Into the arguments of a call: which tokens there are, and where they stand. Returns the number of entries."""
    if token_starts is not None:
        if batch != 1:
            raise ValueError("there is a batch dimension beside token_starts")
        args.token_starts = integers(token_starts, "token_starts")
        batch = len(integers(token_starts, "token_starts")) - 1
        if batch < 0:
            raise ValueError("starts are those of the entries and the end of the last, so one number at least")
    for name, some in (("starts", starts), ("lengths", lengths)):
        if some is not None:
            setattr(args, name, integers(some, name, batch))
    if positions is not None:
        args.positions = position_array(positions, tokens if token_starts is not None else batch * tokens)
    return batch


def position_array(positions: Any, count: int) -> "np.ndarray[Any, Any]":
    a = as_array(positions, "positions")
    if a.size != count:
        raise ValueError(f"positions have shape {a.shape}, where one for each of {count} tokens is needed")
    return integers(np.ascontiguousarray(a).reshape(-1), "positions", count)
