# SPDX-License-Identifier: Apache-2.0
"""Attention on arrays: attention(), plan(), and merge()."""
import ctypes
import functools
import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from . import _native as native
from . import _threads as threading_
from ._arguments import flag, number, shown, whole
from ._tensor import (ELEMENT_BYTES, FLOATS, TYPE_NAMES, Tensor, dense_floats, empty, floats, integers, matrix, reals, tensor,
                      written)

Causal = Literal["bottom-right", "top-left"] | None
Window = int | tuple[int | None, int | None] | None
_Sizes = tuple[int, int, int, int]
_CAUSAL = {None: native.CAUSAL_NONE, "bottom-right": native.CAUSAL_BOTTOM_RIGHT, "top-left": native.CAUSAL_TOP_LEFT}
_ARITH = {"exact": native.EXACT, "int8": native.INT8_DOT, "bf16": native.BF16_DOT}


def _causal(causal: Any) -> int:
    if isinstance(causal, (bool, np.bool_)) and not causal:
        return native.CAUSAL_NONE
    if isinstance(causal, (bool, np.bool_)):
        raise ValueError(
            'causal=True may mean two masks: "bottom-right", where the last query sees the last key (a decoder\'s, as '
            'in FlashAttention), and "top-left", where the first query sees the first key only (as PyTorch\'s '
            'is_causal)')
    if not isinstance(causal, str | None) or causal not in _CAUSAL:
        raise ValueError(f'causal is {shown(causal)}: "bottom-right", "top-left" or None is needed')
    return _CAUSAL[causal]


def arith_of(arith: Any, name: str = "arith") -> int:
    if not isinstance(arith, str) or arith not in _ARITH:
        raise ValueError(f"{name} is {shown(arith)}: {' or '.join(map(repr, _ARITH))} is needed")
    return _ARITH[arith]


@functools.cache
def _kernels() -> list[str]:
    return native.library().all_kernels()


def isa_name(isa: Any, name: str = "isa") -> bytes | None:
    """As a description has it."""
    if isa is None:
        return None
    if not isinstance(isa, str):
        raise TypeError(f"{name} is {shown(isa)}: the name of a kernel is needed")
    if isa not in _kernels():
        raise native.Error(f"{name} is {shown(isa)}: {', '.join(_kernels())} are those that there are")
    return isa.encode()


def tuning_of(tuning: Any) -> Any:
    """A line of text as a description has it."""
    if tuning is None:
        return None
    if not isinstance(tuning, str) or "\0" in tuning:
        raise TypeError(f"tuning is {shown(tuning)}: a line that rapt tune has printed is needed")
    library = native.library()
    made = library.new(native.Tuning)
    try:
        library.c.rapt_tuning_parse(tuning.encode(errors="replace"), made)
    except native.Error as error:
        raise native.Error(f"tuning is {shown(tuning)}: {error}") from None
    return made


def _window(window: Any) -> tuple[int, int]:
    if window is None:
        return -1, -1
    if isinstance(window, (tuple, list)):
        if len(window) != 2:
            raise ValueError(f"window has {len(window)} sides: how many positions before the query, and behind it, are needed")
        left, right = (-1 if side is None else whole(side, "window") for side in window)
        return left, right
    return whole(window, "window"), -1


# Where each argument's memory goes in rapt_args.
_POINTERS = {"q": "q", "k": "k", "v": "v", "mask": "mask", "bias": "bias", "alibi": "slopes", "sinks": "sinks",
             "kv_lengths": "kv_lengths", "page_table": "table", "k_scales": "k_scales", "v_scales": "v_scales",
             "ring_starts": "ring_starts", "k_offsets": "k_offsets", "q_offsets": "q_offsets"}


class Stored:
    """How k and v lie where they are a cache's: (units, kv heads, tokens of a unit, channels) in each layout, a unit being an
    entry or a page. kv_len is how many keys an entry may have; scales are rapt_scales, and tensors those of scales, ring_starts
    and k_offsets."""

    def __init__(self, kv_len: int, scales: dict[str, tuple[int, ...]], tensors: dict[str, Tensor]):
        self.kv_len, self.scales, self.tensors = kv_len, scales, tensors
        self.key = kv_len, tuple(scales.items())


class Options:
    """What modifies scores, as tensors and numbers."""
    __slots__ = ("causal", "window", "scale", "softcap", "isa", "tensors")

    def __init__(self, heads: int, causal: Causal, window: Window, scale: float | None, mask: Any, bias: Any,
                 softcap: float | None, alibi: Any, sinks: Any, isa: str | None):
        self.causal, self.window, self.isa = _causal(causal), _window(window), isa_name(isa)
        self.scale = None if scale is None else number(scale, "scale")
        self.softcap = 0.0 if softcap is None else number(softcap, "softcap")
        if self.softcap and not ctypes.c_float(self.softcap).value:
            raise ValueError(f"softcap is {self.softcap}: as a float32 it is 0, which stands for none")
        self.tensors: dict[str, Tensor] = {}
        if mask is not None:
            self.tensors["mask"] = _mask(mask)
        if bias is not None:
            self.tensors["bias"] = tensor(bias, "bias", FLOATS)
        if isinstance(alibi, (bool, np.bool_)):
            alibi = _slopes(heads) if alibi else None
        if alibi is not None:
            self.tensors["alibi"] = _of_heads(alibi, "alibi")
        if sinks is not None:
            self.tensors["sinks"] = _of_heads(sinks, "sinks")

    def put_into(self, desc: Any, batch: int, heads: int, q_len: int, kv_len: int, exact: bool,
                 other: tuple[str, _Sizes] | None = None) -> None:
        """Into a rapt_desc. exact: a mask has a column for each key; else the library sees whether there are enough of them.
        other: the layout that the call has not, and the four sizes in that one."""
        desc.causal, (desc.window_left, desc.window_right), desc.softcap = self.causal, self.window, self.softcap
        if self.scale is not None:
            desc.scale = self.scale
        desc.isa = self.isa
        for name in ("mask", "bias"):
            if name in self.tensors:
                columns = _columns(self.tensors[name], name, (batch, heads, q_len, kv_len), exact, other)
                setattr(desc, name, columns[:4])
                setattr(desc, f"{name}_key_stride", columns[4])
                setattr(desc, f"{name}_keys", columns[5])
        if "alibi" in self.tensors:
            desc.alibi, desc.slopes = native.ALIBI_DISTANCE, _per_head(self.tensors["alibi"], "alibi", batch, heads)
        if "sinks" in self.tensors:
            desc.sinks = _per_head(self.tensors["sinks"], "sinks", batch, heads)

    def put_pointers(self, args: Any) -> None:
        """Into a rapt_args."""
        for name, t in self.tensors.items():
            setattr(args, _POINTERS[name], t.address)


def _slopes(heads: int) -> "np.ndarray[Any, Any]":
    slopes = np.empty(heads, np.float32)
    if heads:  # else it is for the plan to say that there are none
        native.library().c.rapt_alibi_slopes(heads, slopes.ctypes.data)
    return slopes


def _of_heads(x: Any, name: str) -> Tensor:
    """Slopes or sinks, which may be lists."""
    if not hasattr(x, "__dlpack__") or (isinstance(x, np.ndarray) and x.dtype.kind in "fiu" and x.dtype.itemsize != 2):
        x = reals(x, name)
    return floats(x, name, (1, 2))


def _per_head(t: Tensor, name: str, batch: int, heads: int) -> tuple[int, ...]:
    """The layout of slopes or sinks, [heads] or [batch, heads]."""
    if t.shape[-1] != heads or (len(t.shape) == 2 and t.shape[0] != batch):
        raise ValueError(f"{name} has shape {t.shape}, where ({heads},) or ({batch}, {heads}) is needed")
    return t.type, t.strides[0] if len(t.shape) == 2 else 0, t.strides[-1], 0


def _mask(mask: Any) -> Tensor:
    try:
        return tensor(mask, "mask", (native.BOOL,))
    except TypeError as error:
        hint = ": float masks are bias" if "float" in str(getattr(mask, "dtype", "")) else ""
        raise TypeError(f"{error}{hint}") from None


def _columns(t: Tensor, name: str, needed: _Sizes, exact: bool, other: tuple[str, _Sizes] | None) -> tuple[int, ...]:
    """A mask or a bias, which broadcasts to [batch, heads, queries, keys] as NumPy's arrays do: its layout, the stride of its
    columns and their number, of which 0 stands for all keys."""
    if len(t.shape) > 4 or not t.shape:
        raise ValueError(f"{name} has {len(t.shape)} dimensions, where 1 to 4 are needed")
    shape, strides = (1,) * (4 - len(t.shape)) + t.shape, (0,) * (4 - len(t.shape)) + t.strides
    if (exact and shape[3] not in (1, needed[3])) or any(have not in (1, need) for have, need in zip(shape[:3], needed)):
        to = needed if exact else f"({', '.join(map(str, needed[:3]))}, keys)"
        fits = other is not None and all(have in (1, need) for have, need in zip(shape, other[1]))
        hint = f': with layout="{other[0]}" it does' if other is not None and fits else ""
        raise ValueError(f"{name} has shape {t.shape}, which does not broadcast to {to}{hint}")
    if needed[3] and not shape[3]:
        raise ValueError(f"{name} has shape {t.shape}, without columns: one for each key is needed, or one for all")
    if shape[3] > 1 and strides[3] not in (0, ELEMENT_BYTES[t.type]):
        raise ValueError(f"{name}'s keys lie {strides[3]} bytes apart: they must be adjacent")
    if 1 < shape[3] < needed[3] and strides[3] == 0:  # how many there are would be lost
        raise ValueError(f"{name} has shape {t.shape} and one column in memory: a copy, or shape {(*t.shape[:-1], 1)}, is needed")
    one_for_all = needed[3] > 1 and (shape[3] == 1 or strides[3] == 0)
    return (t.type, *(0 if have == 1 else stride for have, stride in zip(shape[:3], strides)), 0 if one_for_all else 1,
            0 if one_for_all else shape[3])


_TENSORS = 2  # where the tensors begin in a call's key


class Call(Options):
    """The arguments of attention() as tensors, and the key of their plan: all that it depends on but where they lie."""
    __slots__ = ("layout", "arith", "tuning", "starts", "stored", "key")

    def __init__(self, q: Any, k: Any, v: Any, *, layout: str = "bhsd", causal: Causal = None, window: Window = None,
                 scale: float | None = None, mask: Any = None, bias: Any = None, softcap: float | None = None,
                 alibi: Any = None, sinks: Any = None, kv_lengths: Any = None, q_starts: Any = None, k_starts: Any = None,
                 page_table: Any = None, k_scales: Any = None, v_scales: Any = None, arith: str = "exact",
                 isa: str | None = None, tuning: str | None = None, stored: Stored | None = None):
        self.layout, self.arith, self.stored = layout_name(layout), arith_of(arith), stored
        self.tuning = tuning_of(tuning)
        of_q = floats(q, "q", (3, 4))
        super().__init__(of_q.shape[-3 if layout == "bhsd" else -2], causal, window, scale, mask, bias, softcap, alibi, sinks,
                         isa)
        tensors = self.tensors
        tensors["q"], tensors["k"], tensors["v"] = of_q, tensor(k, "k"), tensor(v, "v")
        for name, given in (("k_scales", k_scales), ("v_scales", v_scales)):
            if given is not None:
                tensors[name] = tensor(given, name, (native.F32,))
        if kv_lengths is not None:
            tensors["kv_lengths"] = tensor(integers(kv_lengths, "kv_lengths"), "kv_lengths", (native.I32,))
        if page_table is not None:
            tensors["page_table"] = tensor(matrix(page_table, "page_table"), "page_table", (native.I32,))
        if stored is not None:
            tensors.update(stored.tensors)
        # A plan keeps the addresses of starts, which nobody else may change.
        self.starts = starts_of(q_starts, k_starts)
        self.key: tuple[Any, ...] = ((layout, self.causal, self.window, self.scale, self.softcap, self.arith, isa, tuning),
                                     stored and stored.key, *[(name, *t.signature) for name, t in tensors.items()])

    @classmethod
    def of_key(cls, key: tuple[Any, ...], starts: "dict[str, np.ndarray[Any, Any]]") -> "Call":
        """A call with that key, which no cache has, and these starts, to be planned and not run: its tensors have no memory."""
        call, (options, _, *tensors) = cls.__new__(cls), key
        call.layout, call.causal, call.window, call.scale, call.softcap, call.arith, isa, tuning = options
        call.isa, call.tuning, call.stored, call.starts, call.key = isa_name(isa), tuning_of(tuning), None, starts, key
        call.tensors = {name: Tensor(0, kind, shape, strides, None, "") for name, kind, shape, strides in tensors}
        return call


def starts_of(q_starts: Any, k_starts: Any) -> "dict[str, np.ndarray[Any, Any]]":
    """Those that are given, copied, of as many entries."""
    starts = {name: integers(given, name).copy() for name, given in (("q_starts", q_starts), ("k_starts", k_starts))
              if given is not None}
    if "k_starts" in starts and "q_starts" not in starts:
        raise ValueError("k_starts need q_starts")
    if any(len(some) != len(starts["q_starts"]) for some in starts.values()):
        raise ValueError(f"k_starts has {len(starts['k_starts'])} numbers and q_starts {len(starts['q_starts'])}")
    if starts and not len(starts["q_starts"]):
        raise ValueError("starts are those of the entries and the end of the last, so one number at least")
    return starts


def layout_name(layout: Any) -> str:
    if not isinstance(layout, str) or layout not in _OTHER_LAYOUT:
        raise ValueError(f'layout is {shown(layout)}: "bhsd" (batch, heads, tokens, channels) or "bshd" is needed')
    return layout


_OTHER_LAYOUT = {"bhsd": "bshd", "bshd": "bhsd"}


def layout_hint(layout: str, fits: Any) -> str:
    """The end of a refusal of shapes: the other layout, where fits(that) says that they would go together."""
    other = _OTHER_LAYOUT[layout]
    return f': with layout="{other}" they do' if fits(other) else ""


def sizes(t: Tensor, layout: str) -> _Sizes:
    """Batch, heads, tokens and channels of a tensor."""
    layout_name(layout)
    batch, first, second, channels = t.shape if len(t.shape) == 4 else (1, *t.shape)
    return (batch, first, second, channels) if layout == "bhsd" else (batch, second, first, channels)


def layout_of(t: Tensor, name: str, layout: str) -> tuple[int, int, int, int]:
    """The type and the strides of a rapt_layout."""
    # The strides of an array without elements are anything, of NumPy 1 for instance 0.
    if t.shape[-1] > 1 and t.strides[-1] != ELEMENT_BYTES.get(t.type, 0) and all(t.shape):
        raise ValueError(f"{name}'s channels lie {t.strides[-1]} bytes apart: they must be adjacent")
    batch, first, second = t.strides[:3] if len(t.strides) == 4 else (0, *t.strides[:2])
    return (t.type, batch, first, second) if layout == "bhsd" else (t.type, batch, second, first)


class _Problem:
    """What a call means, checked as far as the library cannot: the shapes of its tensors, and how they go together."""

    def __init__(self, call: Call):
        self.call, t = call, call.tensors
        self.stored_layout = "bhsd" if call.stored else call.layout
        rank = len(t["q"].shape)
        ranks = {4} if "page_table" in t or call.stored else {rank}
        if "q_starts" in call.starts and "k_starts" not in call.starts:
            ranks.add(4)  # each entry's keys by themselves
        for name in ("k", "v"):
            if len(t[name].shape) not in ranks:
                raise ValueError(f"{name} has {len(t[name].shape)} dimensions, and q has {rank}")
        self._shape(rank)
        self.scales = {name: self._scales(name) for name in ("k_scales", "v_scales") if name in t}

    # ---- The shape --------------------------------------------------------------------------------------------------------

    def _shape(self, rank: int) -> None:
        call, t = self.call, self.call.tensors
        of_q, (units, self.kv_heads, self.kv_len, d_k), (v_units, v_heads, v_len, self.d_v) = self._sizes(call.layout)
        self.batch, self.heads, self.q_len, self.d_k = of_q
        if d_k != self.d_k:
            raise self._unequal(ValueError, f"k has {d_k} channels and q {self.d_k}", "q", "k")
        pairs = ("batch entries", units, v_units), ("heads", self.kv_heads, v_heads), ("tokens", self.kv_len, v_len)
        for what, of_k, of_v in pairs:
            if of_k != of_v:
                raise self._unequal(ValueError, f"k has {of_k} {what} and v {of_v}", "k", "v")
        if self.kv_heads and self.heads % self.kv_heads:
            raise self._unequal(native.Error, f"q has {self.heads} heads, no multiple of the {self.kv_heads} of k", "q", "k")
        if call.starts:
            self._ragged(rank)
        self.pages, self.page_size, self.table = 0, 0, None
        if "page_table" in t:
            if "kv_lengths" not in t:
                raise ValueError("a page_table needs kv_lengths")
            table = t["page_table"]
            if table.shape[0] != self.batch:
                raise ValueError(f"page_table has shape {table.shape}, where ({self.batch}, pages of an entry) is needed")
            self.pages, self.page_size = units, self.kv_len
            if not self.page_size:
                raise ValueError(f"k has shape {t['k'].shape}: pages have one token at least")
            self.kv_len = table.shape[1] * self.page_size
            self.table = (native.I32, table.strides[0], 0, 0)
        elif "k_starts" not in call.starts and units != self.batch:
            raise self._unequal(ValueError, f"k has {units} batch entries and q {self.batch}", "q", "k")
        if call.stored:
            self.kv_len = call.stored.kv_len
        if "kv_lengths" in t and t["kv_lengths"].shape != (self.batch,):
            raise ValueError(f"kv_lengths has shape {t['kv_lengths'].shape}, where ({self.batch},) is needed")

    def _unequal(self, kind: type[ValueError], line: str, *names: str) -> ValueError:
        """What is raised of arrays that do not go together: it has their shapes, and the other layout where they do in that."""
        tensors = self.call.tensors
        shapes = ", ".join(f"{name} {tensors[name].shape}" for name in names)
        return kind(f"{line} (of shapes {shapes}){layout_hint(self.call.layout, self._fits)}")

    def _fits(self, layout: str) -> bool:
        q, k, v = self._sizes(layout)
        apart = self.call.starts or self.call.stored or "page_table" in self.call.tensors
        return k[:3] == v[:3] and k[1] > 0 and q[1] % k[1] == 0 and q[3] == k[3] and bool(apart or q[0] == k[0])

    def _sizes(self, layout: str) -> tuple[_Sizes, _Sizes, _Sizes]:
        """Those of q, k and v if layout was the call's."""
        t, stored = self.call.tensors, "bhsd" if self.call.stored else layout
        return sizes(t["q"], layout), sizes(t["k"], stored), sizes(t["v"], stored)

    def _ragged(self, rank: int) -> None:
        if rank != 3:
            raise ValueError('with q_starts, q is (heads, tokens, channels), or with layout="bshd" (tokens, heads, channels)')
        self.batch = len(self.call.starts["q_starts"]) - 1

    def _scales(self, name: str) -> tuple[int, ...]:
        """Of K or V: they broadcast to its shape, with more than one of tokens or of channels."""
        if self.call.stored:
            return self.call.stored.scales[name]
        t, of = self.call.tensors[name], self.call.tensors[name[0]]
        if len(t.shape) != len(of.shape):
            raise ValueError(f"{name} has {len(t.shape)} dimensions, and {name[0]} has {len(of.shape)}")
        batch, heads, tokens, channels = sizes(of, self.call.layout)
        shape = sizes(t, self.call.layout)
        strides = [0 if length == 1 else stride for length, stride in zip(shape, layout_strides(t, self.call.layout))]
        paged = "page_table" in self.call.tensors
        of_tokens = shape[2] > 1
        if paged and tokens == 1 and shape[3] == 1 and shape[0] == batch > 1:
            # Pages of one token have a scale for each, though it takes a stride that is not 0 to say so.
            of_tokens, strides[2] = True, 4
        needed = batch if of_tokens or not paged else self.batch, heads, tokens, channels
        if any(have not in (1, need) for have, need in zip(shape, needed)):
            raise ValueError(f"{name} has shape {t.shape}, which does not broadcast to {name[0]}'s {of.shape}")
        if of_tokens and shape[3] > 1:
            raise ValueError(f"{name} has shape {t.shape}: scales are of tokens or of channels")
        if of_tokens and not strides[2]:  # which would say that they are not of tokens
            raise ValueError(f"{name} has shape {t.shape} and one number in memory for all tokens: a copy is needed, or 1 token")
        return (1, *strides)

    # ---- The description --------------------------------------------------------------------------------------------------

    @property
    def work(self) -> float:
        return self.heads * self.q_len * self.kv_len * (self.d_k + self.d_v) * (1 if self.call.starts else self.batch)

    def desc(self, o: Tensor, with_lse: bool, threads: int) -> Any:
        call, t = self.call, self.call.tensors
        d = native.library().new(
            native.Desc, batch=self.batch, heads=self.heads, kv_heads=self.kv_heads, q_len=self.q_len, kv_len=self.kv_len,
            d_k=self.d_k, d_v=self.d_v, q=layout_of(t["q"], "q", call.layout), k=layout_of(t["k"], "k", self.stored_layout),
            v=layout_of(t["v"], "v", self.stored_layout), o=layout_of(o, "out", call.layout), arith=call.arith,
            page_size=self.page_size, pages=self.pages, threads=threads, **call.starts, **self.scales)
        other = _OTHER_LAYOUT[call.layout]
        (_, heads, q_len, _), (_, _, kv_len, _), _ = self._sizes(other)
        # Positions in a ring are of any number.
        keys = np.iinfo(np.int32).max if "ring_starts" in t else self.kv_len
        call.put_into(d, self.batch, self.heads, self.q_len, keys, exact=not call.starts and "kv_lengths" not in t,
                      other=(other, (self.batch, heads, q_len, keys if call.stored or self.table else kv_len)))
        if call.tuning is not None:
            d.tuning = call.tuning
        if with_lse:
            tokens = sizes(t["q"], call.layout)[2]
            d.lse = (native.F32, 4 * self.heads * tokens, 4 * tokens, 4)
        if self.table:
            d.table, d.trust_table = self.table, call.stored is not None
        return d


def layout_strides(t: Tensor, layout: str) -> tuple[int, int, int, int]:
    """Those of batch, heads, tokens and channels, whatever these are."""
    batch, first, second, channels = t.strides if len(t.strides) == 4 else (0, *t.strides)
    return (batch, first, second, channels) if layout == "bhsd" else (batch, second, first, channels)


class Plan:
    """A problem that was checked once, to be run with other arrays of the same shapes, strides and types: see plan().

    A copy, or one that was pickled, is planned anew where it is made: by the kernel that is chosen there.
    """

    def __init__(self, call: Call, out: Any, with_lse: bool, threads: int | None):
        library, problem = native.library(), _Problem(call)
        self.automatic = threads is None and problem.work > threading_.SMALL
        self._given_threads, self.threads = threads, threading_.threads_for(threads, problem.work)
        self._with_lse, self._key, self._starts = with_lse, call.key, call.starts  # whose addresses the library keeps
        o = _output(call, out)[1]
        self._out = o.signature
        desc = problem.desc(o, with_lse, self.threads)
        self._plan = library.plan(desc)
        self._bytes = library.workspace_size(self._plan, self.threads)
        self._blank = library.new(native.Args)

    def __reduce__(self) -> Any:
        return _planned_anew, (self._key, self._starts, self._out, self._with_lse, self._given_threads)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {shape}" for name, _, shape, _ in self._key[_TENSORS:])
        return f"Plan({shapes}; {self.info['isa']}, {self.info['path']})"

    @property
    def info(self) -> dict[str, Any]:
        """What was chosen: isa, rounding, arith, path, phases, tasks, and bytes of workspace."""
        info = native.PlanInfo(size=ctypes.sizeof(native.PlanInfo))
        native.library().c.rapt_plan_query(self._plan, info)
        words = {name: getattr(info, name).decode() for name in ("isa", "rounding", "arith", "path")}
        return words | {"phases": info.phases, "tasks": tuple(info.tasks[:info.phases]), "shared_bytes": info.shared_bytes,
                        "thread_bytes": info.thread_bytes, "rows_keys_in_lanes": info.rows_keys_in_lanes}

    def run(self, call: Call, out: Any, o: Tensor) -> Any:
        """For a call with this plan's key, and an output as this plan's."""
        args = native.Args.from_buffer_copy(self._blank)
        call.put_pointers(args)
        args.o = o.address
        lse = None
        if self._with_lse:
            lse = empty(_lse_shape(call), native.F32, call.tensors["q"])
            if _has_loose_queries(call):
                lse[...] = -math.inf
            args.lse = tensor(lse, "lse").address
        workspace = threading_.workspace(self._bytes)
        args.workspace, args.workspace_bytes = workspace.address, self._bytes
        threading_.run(native.library(), "rapt", self._plan, args, threads=self.threads)
        return out if lse is None else (out, lse)

    def __call__(self, q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, alibi: Any = None, sinks: Any = None,
                 kv_lengths: Any = None, page_table: Any = None, k_scales: Any = None, v_scales: Any = None,
                 out: Any = None) -> Any:
        """Runs the plan: what attention() returns for these arrays."""
        call = Call(q, k, v, layout=self._key[0][0], mask=mask, bias=bias, alibi=alibi, sinks=sinks, kv_lengths=kv_lengths,
                    page_table=page_table, k_scales=k_scales, v_scales=v_scales)
        call.starts = self._starts
        out, o = _output(call, out)
        if call.key[_TENSORS:] != self._key[_TENSORS:] or o.signature != self._out:
            differences = self._differences({name: t.signature for name, t in call.tensors.items()} | {"out": o.signature})
            raise ValueError(f"the arrays differ from those of the plan: {next(differences)}")
        return self.run(call, out, o)

    def _differences(self, given: dict[str, tuple[Any, ...]]) -> Iterator[str]:
        """What is not as planned of these arrays' types, shapes and strides."""
        planned = {name: signature for name, *signature in self._key[_TENSORS:]} | {"out": self._out}
        for name in [*given, *planned]:
            if name not in planned or name not in given:
                yield f"{name} is given, and the plan has none" if name in given else f"{name} is not given, which the plan has"
                continue
            for what, have, need in zip(("type", "shape", "strides"), given[name], planned[name]):
                if have != need:
                    have, need = (TYPE_NAMES[some] if what == "type" else some for some in (have, need))
                    yield f"{name} has {what} {have}, and the plan {need}"


def _planned_anew(key: tuple[Any, ...], starts: "dict[str, np.ndarray[Any, Any]]", out: tuple[Any, ...], with_lse: bool,
                  threads: int | None) -> Plan:
    """What a Plan is pickled as."""
    kind, shape, strides = out
    return Plan(Call.of_key(key, starts), Tensor(0, kind, shape, strides, None, ""), with_lse, threads)


def _output(call: Call, out: Any) -> tuple[Any, Tensor]:
    """The array that is written."""
    q, v = call.tensors["q"], call.tensors["v"]
    shape = *q.shape[:-1], v.shape[-1]
    if out is None:
        out = empty(shape, q.type, q)
        if _has_loose_queries(call):
            out[...] = 0
        return out, tensor(out, "out")
    o = floats(out, "out", len(shape))
    if o.shape != shape:
        raise ValueError(f"out has shape {o.shape}, where {shape} is needed")
    written(o, "out")
    return out, o


def _has_loose_queries(call: Call) -> bool:
    """Whether q has tokens of no entry, whose results nobody writes."""
    starts = call.starts.get("q_starts")
    return starts is not None and (starts[0] != 0 or starts[-1] != sizes(call.tensors["q"], call.layout)[2])


def _lse_shape(call: Call) -> tuple[int, ...]:
    """(batch, heads, queries), in each layout; without a batch where q has none."""
    q = call.tensors["q"]
    batch, heads, tokens, _ = sizes(q, call.layout)
    return (batch, heads, tokens) if len(q.shape) == 4 else (heads, tokens)


# Plans of recent calls, by all that they depend on: a decoder makes the same call for each layer. Cleared where the
# process-wide choice of a kernel changes. rapt.torch keeps calls of its own kind here, too.
_plans: dict[tuple[Any, ...], Any] = {}
_MOST_PLANS = 256
# A part of every key, so that a plan that another thread is making while they are forgotten is not found afterwards.
generation = 0


def forget_plans() -> None:
    global generation
    generation += 1
    _plans.clear()


def remember(key: tuple[Any, ...], made: Any) -> Any:
    """Keeps a plan for calls with an equal key."""
    if len(_plans) >= _MOST_PLANS:
        _plans.clear()
    _plans[key] = made
    return made


def run(call: Call, return_lse: bool, out: Any, threads: int | None) -> Any:
    """With a plan of its own, or that of an equal call."""
    return_lse = flag(return_lse, "return_lse")
    threads = None if threads is None else threading_.checked(threads)
    if call.starts:
        return Plan(call, out, return_lse, threads).run(call, *_output(call, out))
    key = (generation, call.key, return_lse, None if out is None else floats(out, "out", (3, 4)).signature, threads)
    made = _plans.get(key)
    if made is None or (made.automatic and made.threads != threading_.default_threads()):
        made = remember(key, Plan(call, out, return_lse, threads))
    return made.run(call, *_output(call, out))


def attention(q: Any, k: Any, v: Any, *, layout: str = "bhsd", causal: Causal = None, window: Window = None,
              scale: float | None = None, mask: Any = None, bias: Any = None, softcap: float | None = None, alibi: Any = None,
              sinks: Any = None, kv_lengths: Any = None, q_starts: Any = None, k_starts: Any = None, page_table: Any = None,
              k_scales: Any = None, v_scales: Any = None, return_lse: bool = False, out: Any = None, arith: str = "exact",
              threads: int | None = None, isa: str | None = None, tuning: str | None = None) -> Any:
    """softmax(scale * q k^T + bias) v, by heads (Vaswani et al. 2017, section 3.2.1), in one pass over the keys.

    Arrays are NumPy's, PyTorch's, or of any library with DLPack on a CPU; they are not copied, and may have any strides as long
    as channels are adjacent. The result is an array of q's library and type (of NumPy, where that library makes none from
    outside). The same arrays give the same bits on every CPU of a rounding class, for any number of threads and in any batch.

    q: (batch, heads, queries, d_k) of float32, float16 or bfloat16; without a batch, (heads, queries, d_k).
    k: (batch, kv heads, keys, d_k) of these types, float8_e4m3fn, float8_e5m2 or int8. Heads are a multiple of kv heads.
    v: (batch, kv heads, keys, d_v), which need not be k's type.
    layout: "bhsd", as above, or "bshd" with tokens before heads, in q, k, v and the result.
    causal: "bottom-right" (the last query sees the last key), "top-left" (the first query sees the first key only), or None.
    window: how many positions before the query a key may lie, or a pair of how many before and behind; None or -1 of either:
        any number.
    scale: the softmax scale; None: 1 / sqrt(d_k).
    mask: bool, True where a key is attended; it broadcasts to (batch, heads, queries, keys), as bias does.
    bias: floats that are added to the scaled scores; -inf masks a key.
    softcap: scores become softcap * tanh(score / softcap), before bias and masks; None or 0: they stay.
    alibi: slopes (heads) or (batch, heads), or True for those of the paper (Press et al. 2022).
    sinks: (heads) or (batch, heads), a logit that joins each row's denominator.
    kv_lengths: (batch), how many of the keys of each entry exist.
    q_starts, k_starts: (batch + 1), where the queries and keys of each entry begin in arrays without a batch dimension
        (cu_seqlens). Without k_starts, k and v may keep theirs. Queries of no entry are 0 in the result, and left as they are
        in out.
    page_table: (batch, pages of an entry), the pages of k and v, which are (pages, kv heads, page size, channels) then; with
        kv_lengths.
    k_scales, v_scales: float32, what the elements of k and v (int8, say) are multiplied by; of the same number of dimensions as
        k and v, and broadcasting to their shapes, with more than one of tokens or of channels, not both. Beside a page_table,
        those of tokens lie as pages do, and those of channels or heads are of entries.
    return_lse: also return the log-sum-exp of each row, float32 of (batch, heads, queries), -inf for a row without keys.
    out: the array to be written, of the result's shape.
    arith: "exact"; "int8", for k and v of int8; or "bf16", in which q, k, v and weights are rounded to bf16.
    threads: how many threads share the call; None: RAPT_THREADS, or all CPUs where there is work for them.
    isa: the name of a kernel, such as "avx2"; None: the best one, or that of isa().
    tuning: how the work is cut, a line that `rapt tune` has printed; None: by the kernel's own numbers. No bit depends on it.

    A row without keys is 0. Raises TypeError, or ValueError with a line that names the field.

    >>> q = k = np.zeros((1, 1, 2, 4), np.float32)
    >>> v = np.array([[1.0], [3.0]], np.float32)[None, None]
    >>> rapt.attention(q, k, v).tolist(), rapt.attention(q, k, v, causal="bottom-right").tolist()
    ([[[[2.0], [2.0]]]], [[[[1.0], [2.0]]]])
    """
    call = Call(q, k, v, layout=layout, causal=causal, window=window, scale=scale, mask=mask, bias=bias, softcap=softcap,
                alibi=alibi, sinks=sinks, kv_lengths=kv_lengths, q_starts=q_starts, k_starts=k_starts, page_table=page_table,
                k_scales=k_scales, v_scales=v_scales, arith=arith, isa=isa, tuning=tuning)
    return run(call, return_lse, out, threads)


def plan(q: Any, k: Any, v: Any, *, layout: str = "bhsd", causal: Causal = None, window: Window = None,
         scale: float | None = None, mask: Any = None, bias: Any = None, softcap: float | None = None, alibi: Any = None,
         sinks: Any = None, kv_lengths: Any = None, q_starts: Any = None, k_starts: Any = None, page_table: Any = None,
         k_scales: Any = None, v_scales: Any = None, return_lse: bool = False, out: Any = None, arith: str = "exact",
         threads: int | None = None, isa: str | None = None, tuning: str | None = None) -> Plan:
    """A plan of what attention() would do with these arrays, to be called with others of the same shapes, strides and types;
    which kernel and path it takes is in its info. The parameters are those of attention().

    >>> q = k = v = np.zeros((1, 1, 2, 4), np.float32)
    >>> plan = rapt.plan(q, k, v, threads=1)
    >>> plan(q, k, v).shape, plan.threads
    ((1, 1, 2, 4), 1)
    """
    call = Call(q, k, v, layout=layout, causal=causal, window=window, scale=scale, mask=mask, bias=bias, softcap=softcap,
                alibi=alibi, sinks=sinks, kv_lengths=kv_lengths, q_starts=q_starts, k_starts=k_starts, page_table=page_table,
                k_scales=k_scales, v_scales=v_scales, arith=arith, isa=isa, tuning=tuning)
    return Plan(call, out, flag(return_lse, "return_lse"), None if threads is None else threading_.checked(threads))


def merge(outs: Any, lses: Any) -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]":
    """Merges attention over parts of the keys: outs and lses are sequences of what attention(..., return_lse=True) returned for
    each part, float32 in layout "bhsd". Returns the attention over all keys and its log-sum-exp, in float32.

    >>> q, k, v = np.ones((1, 1, 1, 4), np.float32), np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 4, 4), np.float32)
    >>> parts = [rapt.attention(q, k[:, :, some], v[:, :, some], return_lse=True) for some in (slice(0, 1), slice(1, 4))]
    >>> o, lse = rapt.merge(*zip(*parts))
    >>> o[0, 0, 0].tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    for name, given in (("outs", outs), ("lses", lses)):
        if not isinstance(given, list | tuple) and not getattr(given, "shape", ()):
            raise TypeError(f"{name} is {shown(given)}: a list of arrays is needed")
    if len(outs) != len(lses) or not len(outs):
        raise ValueError(f"{len(outs)} results and {len(lses)} log-sum-exps are given, where as many are needed, one or more")
    shape = tuple(tensor(outs[0], "outs[0]").shape)
    parts = [dense_floats(o, f"outs[{i}]", shape) for i, o in enumerate(outs)]
    sums = [dense_floats(s, f"lses[{i}]", shape[:-1]) for i, s in enumerate(lses)]
    o, lse = np.empty(shape, np.float32), np.empty(shape[:-1], np.float32)
    addresses = [(ctypes.c_void_p * len(some))(*(t.address for t in some)) for some in (parts, sums)]
    native.library().c.rapt_merge(len(parts), lse.size, shape[-1], *addresses, o.ctypes.data, lse.ctypes.data)
    return o, lse
