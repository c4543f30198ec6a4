# SPDX-License-Identifier: Apache-2.0
"""KVCache: keys and values of a decoder in any storage type, in one piece, as rings or in pages."""
import contextlib
import copy
import itertools
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from . import _attention
from . import _native as native
from . import _threads as threading_
from ._arguments import flag, shown, whole
from ._attention import Call, Causal, Stored, Window, layout_hint, layout_of, layout_strides, sizes
from ._rope import Rope, checked_rope, position_array
from ._tensor import ELEMENT_BYTES, NUMPY_TYPES, Tensor, floats, integers, reals, tensor

_MOST = int(np.iinfo(np.int32).max)  # of tokens, heads, entries and pages: RAPT_MAX_LENGTH
_SCALED = native.INT8, native.F8_E4M3, native.F8_E5M2  # the types whose scales append finds


def type_of(kind: Any, argument: str = "type") -> int:
    """A storage type by rapt's name ("q8_0", see info()) or as a dtype of NumPy, ml_dtypes or PyTorch."""
    torch = sys.modules.get("torch")
    name = ""
    if isinstance(kind, str):
        name = kind
    elif torch is not None and isinstance(kind, torch.dtype):
        name = str(kind).removeprefix("torch.")
    else:
        with contextlib.suppress(Exception):  # whatever NumPy raises of what is no dtype
            name = np.dtype(kind).name
    known = native.library().types(native.CLASS_ELEMENT, native.CLASS_WEIGHT, native.CLASS_CACHE)
    number = known.get(name, NUMPY_TYPES.get(name))
    if number is not None and number in known.values():
        return number
    raise ValueError(f"{argument} is {shown(name or kind)}: {', '.join(known)} are those of K and V")


def group_of(number: int) -> int:
    """The channels of a group of a type of K and V."""
    row_bytes = native.library().c.rapt_row_bytes
    return next(channels for channels in itertools.count(1) if row_bytes(number, channels) > 0)


class _Memory:
    """The K or the V of a cache: rows of bytes of each unit, and their scales, if they have any."""

    def __init__(self, name: str, kind: Any, units: int, heads: int, tokens: int, channels: int, scales: Any):
        self.type, self.channels = type_of(kind, "type" if name == "k" else "v_type"), channels
        self.shape = units, heads, tokens, channels
        row = native.library().c.rapt_row_bytes(self.type, channels)
        if row < 0:
            raise ValueError(f"{name} has {channels} channels, and groups of {group_of(self.type)} in its type: choose another, such as "
                             '"int8" or "f16"')
        # An int8 that counts as it is would be of use to nobody.
        scales = self.type == native.INT8 if scales is None else scales
        self._keep(_zeros(units * heads * tokens * row))
        self.scales: Tensor | None = None
        self.scale_strides: tuple[int, ...] = (0, 0, 0, 0, 0)
        self.of_tokens = isinstance(scales, (bool, np.bool_)) and bool(scales)
        if self.of_tokens:
            if self.type not in _SCALED:
                raise ValueError(f"{name} has scales of its own in its type")
            found = np.zeros((units, heads, tokens), np.float32)
            self.scales, self.scale_strides = tensor(found, name), (1, heads * tokens * 4, tokens * 4, 4, 0)
        elif not isinstance(scales, (bool, np.bool_)):
            given = reals(scales, f"{name}_scales").copy()
            if given.shape not in ((heads,), (heads, channels)):
                raise ValueError(f"{name}_scales has shape {given.shape}, where ({heads},) or ({heads}, {channels}) is needed")
            self.scales = tensor(given, name)
            self.scale_strides = (1, 0, given.strides[0], 0, given.strides[1] if given.ndim == 2 else 0)

    def _keep(self, memory: "np.ndarray[Any, Any]") -> None:
        """The rows are in that memory."""
        _, heads, tokens, _ = self.shape
        row = native.library().c.rapt_row_bytes(self.type, self.channels)
        strides = heads * tokens * row, tokens * row, row, ELEMENT_BYTES.get(self.type, 0)
        self.bytes, self.tensor = memory, Tensor(memory.ctypes.data, self.type, self.shape, strides, memory, "numpy")

    def __getstate__(self) -> dict[str, Any]:
        """Without addresses."""
        return self.__dict__ | {"tensor": None, "scales": self.scales and self.scales.owner}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._keep(_zeros(state["bytes"].size))
        self.bytes[:] = state["bytes"]
        if self.scales is not None:
            self.scales = tensor(self.scales, "scales")

    def move(self, to: "np.ndarray[Any, Any]", from_: "np.ndarray[Any, Any]", tokens: int) -> None:
        """The first tokens of these units become what those of others were before."""
        rows = [self.bytes.reshape(*self.shape[:3], -1)]
        if self.of_tokens and self.scales:
            rows.append(self.scales.owner)
        for of in rows:
            of[to, :, :tokens] = of[from_, :, :tokens]

    @property
    def nbytes(self) -> int:
        return int(self.bytes.nbytes + (self.scales.owner.nbytes if self.scales else 0))


def _zeros(size: int) -> "np.ndarray[Any, Any]":
    """Memory that begins where a line of the CPU's cache does."""
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start:start + size]


class KVCache:
    """The keys and values of a batch of sequences, appended token by token, or prompt by prompt, and attended to.

    Keys and values are stored in any type, which need not be the same, and converted by append(). Entries have lengths of their
    own. What is stored has the same bits on every machine, and attention to it does not depend on the kind of cache: one in one
    piece, in pages and in a ring give the same bits. A cache is used by one Python thread at a time, but for attend(), which
    any number may call at once. Copies, by the modules copy and pickle, have memory of their own.

    batch: how many sequences there are.
    kv_heads: the heads of K and V.
    capacity: how many tokens each entry has room for.
    d_k, d_v: channels of a head of K and of V; d_v is d_k unless given.
    type, v_type: how K and V are stored: a name of rapt's ("f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "int8", "int4",
        "int4_min", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "mxfp4", "mxfp8_e4m3", "nvfp4", ...: rapt.info()["types"]), or a
        dtype; v_type is type unless given.
    k_scales, v_scales: True: append() finds a scale for each token and head (of int8, the default there, and the float8);
        False: there are none; or an array (kv heads) or (kv heads, channels) of the scales to be used.
    ring: keep the last capacity tokens of each entry; else more than capacity are refused.
    page_size: keep tokens in pages of so many, which entries take from a common pool when they need them.
    pages: how many pages there are; unless given, enough for all entries.
    v_in_k: the first d_v channels of K are V, too (MLA): append() takes keys only.

    >>> cache = rapt.KVCache(batch=1, kv_heads=2, capacity=100, d_k=64, type="int8", page_size=16)
    >>> x = np.ones((1, 2, 10, 64), np.float32)
    >>> cache.append(x, x)
    >>> cache.lengths.tolist(), cache.free_pages
    ([10], 6)
    >>> cache.attend(np.ones((1, 8, 1, 64), np.float32)).shape
    (1, 8, 1, 64)
    """

    def __init__(self, *, batch: int = 1, kv_heads: int, capacity: int, d_k: int, d_v: int | None = None, type: Any = "f16",
                 v_type: Any = None, k_scales: Any = None, v_scales: Any = None, ring: bool = False,
                 page_size: int | None = None, pages: int | None = None, v_in_k: bool = False):
        def size(given: Any, name: str, least: int = 1) -> int:
            if not least <= whole(given, name) <= _MOST:
                raise ValueError(f"{name} is {shown(given)}: a size is needed")
            return whole(given, name)

        batch, kv_heads, capacity = size(batch, "batch", 0), size(kv_heads, "kv_heads"), size(capacity, "capacity")
        d_k, d_v = size(d_k, "d_k"), size(d_k if d_v is None else d_v, "d_v")
        page_size = None if page_size is None else size(page_size, "page_size")
        pages = None if pages is None else size(pages, "pages", 0)
        self.batch, self.kv_heads, self.d_k, self.d_v = batch, kv_heads, d_k, d_v
        self._capacity, self.ring, self.page_size, self.v_in_k = capacity, flag(ring, "ring"), page_size, flag(v_in_k, "v_in_k")
        if page_size is None and pages is not None:
            raise ValueError("pages are given without a page_size")
        self._columns = 0 if page_size is None else -(-capacity // page_size)
        self._units = batch if page_size is None else batch * self._columns if pages is None else pages
        self._unit_tokens = capacity if page_size is None else page_size
        shape = self._units, kv_heads, self._unit_tokens
        self._k = _Memory("k", type, *shape, d_k, k_scales)
        self._v = self._k
        if not self.v_in_k:
            self._v = _Memory("v", type if v_type is None else v_type, *shape, self.d_v, v_scales)
        elif v_type is not None or v_scales is not None or self.d_v > d_k:
            raise ValueError("v_in_k: V is of the type and the scales of K, and has no more channels")
        self._stored_tensors()
        # Tokens that each entry was given, and the first of them that it still has.
        self._lengths, self._first = np.zeros(batch, np.int32), np.zeros(batch, np.int32)
        # Pages: the table, how many each entry has, who is free, and how many entries have a page.
        self._table = np.zeros((batch, self._columns), np.int32)
        self._held = np.zeros(batch, np.int64)
        self._free = list(range(self._units - 1, -1, -1)) if page_size is not None else []
        self._users = np.zeros(self._units, np.int64)

    def _stored_tensors(self) -> None:
        k, v = self._k, self._v
        self._v_tensor = v.tensor
        if self.v_in_k:
            self._v_tensor = Tensor(k.tensor.address, k.type, (*k.shape[:3], self.d_v), k.tensor.strides, k.bytes, "numpy")
            if native.library().c.rapt_row_bytes(k.type, self.d_v) < 0:
                raise ValueError(f"v has {self.d_v} channels, and groups of {group_of(k.type)} in its type")
        scaled = [(name, memory) for name, memory in (("k_scales", k), ("v_scales", v)) if memory.scales]
        self._scale_tensors = {name: memory.scales for name, memory in scaled if memory.scales}
        self._scale_strides = {name: memory.scale_strides for name, memory in scaled}

    def __getstate__(self) -> dict[str, Any]:
        """Without addresses."""
        return {name: x for name, x in self.__dict__.items() if name not in ("_v_tensor", "_scale_tensors", "_scale_strides")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._stored_tensors()

    def __copy__(self) -> "KVCache":
        """With memory of its own, as deepcopy() makes it: two caches of the same memory would overwrite each other's tokens."""
        return copy.deepcopy(self)

    def __repr__(self) -> str:
        names = {number: name for name, number in
                 native.library().types(native.CLASS_ELEMENT, native.CLASS_WEIGHT, native.CLASS_CACHE).items()}
        kinds = ["ring"] * self.ring + [f"{self._units} pages of {self.page_size}"] * (self.page_size is not None)
        v = "V in K" if self.v_in_k else f"V {names[self._v.type]} {self.d_v}"
        return (f"KVCache({', '.join(kinds) or 'contiguous'}, {self.batch} x {self._capacity} tokens, {self.kv_heads} heads, "
                f"K {names[self._k.type]} {self.d_k}, {v})")

    # ---- What it holds ----------------------------------------------------------------------------------------------------

    @property
    def lengths(self) -> "np.ndarray[Any, Any]":
        """(batch), how many tokens each entry was given, which is the position of its next one. Of a ring, it has the last
        capacity of them."""
        return self._lengths.copy()

    @property
    def capacity(self) -> int:
        """How many tokens each entry has room for."""
        return self._capacity

    @property
    def nbytes(self) -> int:
        """The bytes of K, V and their scales, used or not."""
        return self._k.nbytes + (0 if self.v_in_k else self._v.nbytes)

    @property
    def free_pages(self) -> int:
        """How many pages no entry has."""
        return len(self._free)

    @property
    def page_table(self) -> "np.ndarray[Any, Any]":
        """(batch, pages of an entry), the pages of each entry; of those that it has not, -1."""
        return np.where(np.arange(self._columns) < self._held[:, None], self._table, -1)

    # ---- Pages ------------------------------------------------------------------------------------------------------------

    def _reserve_pages(self, entries: "np.ndarray[Any, Any]", counts: "np.ndarray[Any, Any]") -> None:
        """Pages for so many more tokens of these entries, of their own where they are written: all of them, or none."""
        assert self.page_size is not None
        size, users, new, copied = self.page_size, self._users.copy(), 0, []
        for entry, count in zip(entries, counts):
            before = int(self._lengths[entry])
            if not count:
                continue
            wanted = -(-min(before + int(count), self._capacity) // size)
            new += max(0, wanted - int(self._held[entry]))
            places = np.arange(before, before + min(int(count), self._capacity)) % self._capacity
            for column in np.unique(places // size).tolist():
                if column < self._held[entry] and users[self._table[entry, column]] > 1:
                    users[self._table[entry, column]] -= 1
                    copied.append((entry, column))
        if new + len(copied) > len(self._free):
            raise native.Error(f"{new + len(copied)} pages are needed, and {len(self._free)} of {self._units} are free")
        self._copy([(self._table[entry, column], 0, self._free[-1 - i], 0, size) for i, (entry, column) in enumerate(copied)])
        for entry, column in copied:
            self._users[self._table[entry, column]] -= 1
            self._take(entry, column)
        for entry, count in zip(entries, counts):
            wanted = -(-min(int(self._lengths[entry] + count), self._capacity) // size) if count else 0
            while self._held[entry] < wanted:
                self._take(entry, int(self._held[entry]))
                self._held[entry] += 1

    def _take(self, entry: int, column: int) -> None:
        page = self._free.pop()
        self._users[page], self._table[entry, column] = 1, page

    def _release(self, entry: int, keep: int) -> None:
        """The pages of an entry from number keep on."""
        for column in range(int(self._held[entry]) - 1, keep - 1, -1):
            page = int(self._table[entry, column])
            self._users[page] -= 1
            if not self._users[page]:
                self._free.append(page)
        self._held[entry] = min(keep, self._held[entry])

    def _copy(self, ranges: list[tuple[int, ...]]) -> None:
        """Tokens within the cache: (from, its first token, to, its first token, tokens), from and to being units."""
        if not ranges:
            return
        library, k, v = native.library(), self._k, self._v
        desc = library.new(native.KvCopyDesc, entries=self._units, kv_heads=self.kv_heads, tokens=self._unit_tokens,
                           d_k=self.d_k, k=layout_of(k.tensor, "k", "bhsd"), k_scales=k.scale_strides)
        args = library.new(native.KvCopyArgs, k=k.tensor.address, count=len(ranges), ranges=np.array(ranges, np.int32))
        if k.of_tokens and k.scales:
            args.k_scales = k.scales.address
        if not self.v_in_k:
            desc.d_v, desc.v, desc.v_scales = self.d_v, layout_of(v.tensor, "v", "bhsd"), v.scale_strides
            args.v = v.tensor.address
            if v.of_tokens and v.scales:
                args.v_scales = v.scales.address
        threading_.run(library, "rapt_kv_copy", desc, args, threads=1)

    def _entry(self, entry: Any, name: str = "entry") -> int:
        number = whole(entry, name)
        if not 0 <= number < self.batch:
            raise ValueError(f"{name} is {number}, where 0..{self.batch - 1} is needed")
        return number

    def free(self, entry: int) -> None:
        """Empties an entry; its pages can be taken by others."""
        entry = self._entry(entry)
        self._release(entry, 0)
        self._lengths[entry] = self._first[entry] = 0

    def truncate(self, entry: int, length: int) -> None:
        """Takes back the tokens of an entry from position length on, as after a rejected guess."""
        entry, length = self._entry(entry), whole(length, "length")
        if not self._first[entry] <= length <= self._lengths[entry]:
            raise ValueError(
                f"length is {length}, where {self._first[entry]}..{self._lengths[entry]} is needed: what entry {entry} has")
        if self.page_size is not None and length <= self._capacity:
            self._release(entry, -(-length // self.page_size))
        self._lengths[entry] = length

    def copy_pages(self, from_entry: int, to_entry: int, tokens: int | None = None) -> None:
        """Makes an entry what the first tokens of another are, in place of what it had: for a prefix that several share, or a
        beam. Pages are shared, and copied when an entry writes to one that another has, too; without pages, tokens are copied.

        tokens: how many; None: all.
        """
        from_, to = self._entry(from_entry, "from_entry"), self._entry(to_entry, "to_entry")
        count = int(self._lengths[from_]) if tokens is None else whole(tokens, "tokens")
        if not self._first[from_] <= count <= self._lengths[from_]:
            raise ValueError(
                f"tokens are {count}, where {self._first[from_]}..{self._lengths[from_]} is needed: what entry {from_} has")
        if from_ == to:
            return self.truncate(to, count)
        if self.page_size is not None:
            held = min(int(self._held[from_]), -(-min(count, self._capacity) // self.page_size))
            self._users[self._table[from_, :held]] += 1
            self._release(to, 0)
            self._table[to, :held] = self._table[from_, :held]
            self._held[to] = held
        else:
            self._copy([(from_, 0, to, 0, min(count, self._capacity))])
        self._lengths[to], self._first[to] = count, self._first[from_]
        return None

    def reorder(self, entries: Any) -> None:
        """Makes each entry what another was, as beam search does: entry i has what entry entries[i] had. Pages are shared, as by
        copy_pages(); without pages, tokens are copied.

        entries: (batch), in any order, some more than once.
        """
        order = integers(entries, "entries", self.batch)
        if self.batch and not 0 <= order.min() <= order.max() < self.batch:
            raise ValueError(f"entries are {shown(order.tolist())}, where numbers of 0..{self.batch - 1} are needed")
        changed = np.flatnonzero(order != np.arange(self.batch))
        if not len(changed):
            return
        if self.page_size is not None:
            self._table, self._held = self._table[order], self._held[order]
            had, self._users = self._users, np.zeros_like(self._users)
            for row, held in zip(self._table, self._held):
                self._users[row[:held]] += 1
            self._free += np.flatnonzero((had > 0) & (self._users == 0)).tolist()
        else:
            tokens = min(int(self._lengths[order[changed]].max()), self._capacity)
            for memory in (self._k,) if self.v_in_k else (self._k, self._v):
                memory.move(changed, order[changed], tokens)
        self._lengths, self._first = self._lengths[order], self._first[order]

    # ---- Appending --------------------------------------------------------------------------------------------------------

    def _entries(self, entries: Any, count: int) -> "np.ndarray[Any, Any]":
        if entries is None:
            if count != self.batch:
                raise ValueError(f"{count} entries are given, and the cache has {self.batch}")
            return np.arange(self.batch, dtype=np.int32)
        chosen = integers(entries, "entries", count)
        if len(set(chosen.tolist())) != len(chosen) or (len(chosen) and not 0 <= chosen.min() <= chosen.max() < self.batch):
            raise ValueError(f"entries are {shown(chosen.tolist())}, where different ones of 0..{self.batch - 1} are needed")
        return chosen

    def append(self, k: Any, v: Any = None, *, layout: str = "bhsd", lengths: Any = None, token_starts: Any = None,
               entries: Any = None, rope: Rope | None = None, positions: Any = None, threads: int | None = None) -> None:
        """Stores new tokens behind those that are there.

        k: (batch, kv heads, tokens, d_k) of float32, float16 or bfloat16.
        v: (batch, kv heads, tokens, d_v) of these types; None with v_in_k.
        layout: "bhsd", or "bshd" with tokens before heads.
        lengths: (batch), how many of the tokens each entry gets; None: all.
        token_starts: (batch + 1), where the tokens of each entry begin in a k and v without a batch dimension (cu_seqlens).
        entries: (batch), which entries of the cache they are of; None: all, in order.
        rope: how keys are rotated before they are stored; None: not at all.
        positions: (batch, tokens), or (tokens) with token_starts: where they are rotated to; None: behind the entry's last
            token.
        threads: as of attention().

        Where pages or room are lacking, nothing is written.
        """
        new_k = floats(k, "k", 3 if token_starts is not None else 4)
        if (v is None) != self.v_in_k:
            raise ValueError("v is " + ("given, where V lies in K" if self.v_in_k else "not given"))
        new_v = new_k if v is None else floats(v, "v", len(new_k.shape))
        batch, heads, tokens, d_k = sizes(new_k, layout)
        needed = (batch, self.kv_heads, tokens)
        for name, t, channels in (("k", new_k, self.d_k), ("v", new_v, new_v.shape[-1] if v is None else self.d_v)):
            if sizes(t, layout) != (*needed, channels):
                hint = layout_hint(layout, lambda other: all(sizes(new, other)[1] == self.kv_heads for new in (new_k, new_v)))
                raise ValueError(f"{name} has shape {t.shape}, where {self.kv_heads} heads of {channels} channels"
                                 f"{' and tokens as of k' if name == 'v' else ''} are needed{hint}")
        ends = None
        if token_starts is not None:
            ends = integers(token_starts, "token_starts")
            if lengths is not None:
                raise ValueError("lengths are given beside token_starts")
            if not len(ends) or (np.diff(ends) < 0).any() or ends[0] < 0 or ends[-1] > tokens:
                raise ValueError(f"token_starts are {shown(ends.tolist())}, where ascending numbers of 0..{tokens} are needed")
            counts, batch = np.diff(ends), len(ends) - 1
        elif lengths is not None:
            counts = integers(lengths, "lengths", batch)
            if batch and not 0 <= counts.min() <= counts.max() <= tokens:
                raise ValueError(f"lengths are {shown(counts.tolist())}, where 0..{tokens} is needed")
        else:
            counts = np.full(batch, tokens, np.int32)
        chosen = self._entries(entries, batch)
        places = None
        if rope is not None:
            checked_rope(rope)
        if positions is not None:
            if rope is None:
                raise ValueError("positions are given, and no rope")
            places = position_array(positions, tokens if ends is not None else batch * tokens)
        if rope is not None and batch and counts.max() > self._capacity:  # written entry by entry: all of it, or nothing
            rope.check(self._lengths[chosen] + counts - np.minimum(counts, self._capacity), self._lengths[chosen] + counts,
                       places)
        work = float(counts.sum()) * heads * (d_k + (0 if v is None else self.d_v))
        count = threading_.threads_for(threads, work)
        new = _by_heads(new_k, layout), None if v is None else _by_heads(new_v, layout)
        with self.appending(chosen, counts) as before:
            if not self.ring or not batch or counts.max() <= self._capacity:
                self._write(new, chosen, counts, ends, before, rope, places, count)
                return
            # Of more tokens than the ring has, the last ones stay: entry by entry, for these do not begin at the same token.
            for i, given in enumerate(counts.tolist()):
                kept = min(given, self._capacity)
                at = (0 if ends is None else int(ends[i])) + given - kept
                part = tuple(None if t is None else _part(t, 0 if ends is not None else i, at, kept) for t in new)
                place = None if places is None else places[(i * tokens if ends is None else 0) + at:][:kept]
                self._write(part, chosen[i:i + 1], np.array([kept], np.int32), None, before[i:i + 1] + given - kept, rope,
                            place, count)

    @contextlib.contextmanager
    def appending(self, entries: "np.ndarray[Any, Any]", counts: "np.ndarray[Any, Any]") -> Iterator["np.ndarray[Any, Any]"]:
        """Makes room for so many more tokens of these entries, or raises what is lacking, and gives their lengths before; behind
        the with statement, which writes them, they are there. If it raises, the room is given back."""
        before = self._reserve(entries, counts)
        try:
            yield before
        except BaseException:
            if self.page_size is not None:
                for entry in entries:
                    self._release(entry, -(-min(int(self._lengths[entry]), self._capacity) // self.page_size))
            raise
        self._lengths[entries] += counts.astype(np.int32)
        self._first[entries] = np.maximum(self._first[entries], self._lengths[entries] - self._capacity)

    def _reserve(self, entries: "np.ndarray[Any, Any]", counts: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        before = self._lengths[entries]
        over = np.flatnonzero(before + counts.astype(np.int64) > (_MOST if self.ring else self._capacity))
        if len(over):
            i = int(over[0])
            raise native.Error(f"entry {entries[i]} has {before[i]} of {self._capacity} tokens: {counts[i]} more have no room")
        if self.page_size is not None:
            self._reserve_pages(entries, counts)
        return before

    def put_into(self, desc: Any, args: Any, entries: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any] | None":
        """Into a description that has the fields of a cache, and arguments that have those of its scales. Returns the block
        table."""
        desc.kv_len, desc.k, desc.k_scales = self._capacity, layout_of(self._k.tensor, "k", "bhsd"), self._k.scale_strides
        for memory, field in ((self._k, "k_scales"), (self._v, "v_scales")):
            if memory.scales and not (self.v_in_k and field == "v_scales"):
                setattr(args, field, memory.scales.address)
        if not self.v_in_k:
            desc.v, desc.v_scales = layout_of(self._v.tensor, "v", "bhsd"), self._v.scale_strides
        table = self._rows(entries)
        if table is not None:
            desc.page_size, desc.pages, desc.trust_table = self._unit_tokens, self._units, 1
            desc.table = native.I32, table.strides[0], 0, 0
        return table

    def _write(self, new: tuple[Tensor | None, ...], entries: Any, counts: Any, ends: Any, before: Any, rope: Rope | None,
               places: Any, threads: int) -> None:
        """New tokens (batch, kv heads, tokens, channels) to where each entry's stand, of which no entry has more than there is
        room."""
        library, (k, v) = native.library(), new
        assert k is not None
        first = np.maximum(self._first[entries], before + counts - self._capacity).astype(np.int32)
        desc = library.new(native.KvAppendDesc, batch=len(entries), kv_heads=self.kv_heads, tokens=k.shape[2], d_k=self.d_k,
                           new_k=layout_of(k, "k", "bhsd"))
        args = library.new(native.KvAppendArgs, new_k=k.address, k=self._k.tensor.address, starts=before - first)
        args.table = self.put_into(desc, args, entries)
        if v is not None:
            desc.d_v, desc.new_v, args.new_v, args.v = self.d_v, layout_of(v, "v", "bhsd"), v.address, self._v.tensor.address
        if ends is not None:
            args.token_starts = ends
        else:
            args.lengths = np.ascontiguousarray(counts, np.int32)
        if self.ring:
            args.ring_starts = first % np.int32(self._capacity)
        if rope is not None:
            rope.put_into(desc, args)
            if places is None and self.ring:  # where a key's number is not its position
                steps = np.arange(k.shape[2], dtype=np.int32)
                places = before[:, None] + steps if ends is None else np.concatenate(
                    [np.zeros(ends[0], np.int32)] + [at + steps[:n] for at, n in zip(before, counts)]
                    + [np.zeros(k.shape[2] - ends[-1], np.int32)])
            if places is not None:
                args.positions = np.ascontiguousarray(places, np.int32)
        threading_.run(library, "rapt_kv_append", desc, args, threads=threads)

    def check_projected(self, batch: int, kv_heads: int, d_k: int, d_v: int) -> None:
        """Whether mha() can write keys and values of these sizes: positions are the numbers of keys there."""
        if self.ring or self.v_in_k:
            raise ValueError("the cache is a ring, or has V in K: mha() needs another")
        if (batch, kv_heads, d_k, d_v) != (self.batch, self.kv_heads, self.d_k, self.d_v):
            raise ValueError(
                f"the cache has {self.batch} entries, {self.kv_heads} heads and {self.d_k} and {self.d_v} channels, where "
                f"{batch}, {kv_heads}, {d_k} and {d_v} are needed")

    @property
    def addresses(self) -> tuple[int, int]:
        """Of K and V."""
        return self._k.tensor.address, self._v_tensor.address

    def _rows(self, entries: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any] | None":
        """The block table for these entries. A cache without pages is one whose entries are pages, where not all are asked
        for."""
        if self.page_size is None:
            return None if len(entries) == self.batch and (entries == np.arange(self.batch)).all() else entries[:, None]
        return self._table[entries]

    # ---- Attending --------------------------------------------------------------------------------------------------------

    def attend(self, q: Any, *, layout: str = "bhsd", entries: Any = None, causal: Causal = "bottom-right",
               window: Window = None, scale: float | None = None, mask: Any = None, bias: Any = None,
               softcap: float | None = None, alibi: Any = None, sinks: Any = None, q_starts: Any = None,
               return_lse: bool = False, out: Any = None, arith: str = "exact",
               threads: int | None = None, isa: str | None = None) -> Any:
        """Attention of q to the tokens that are there: what attention() returns for them, with the same bits for every kind of
        cache.

        q: (batch, heads, queries, d_k), usually those of the tokens that were appended last; with q_starts (heads, queries,
            d_k).
        entries: (batch), which entries of the cache they are of; None: all, in order.
        causal: as of attention(), but by default "bottom-right", where the last query stands at the last token; None or False:
            queries see all tokens.
        window, mask, bias, alibi: as of attention(); they go by the positions of tokens, of which a ring has the last ones
            only, so that column j of a mask belongs to the token of position j.
        arith: "exact"; "int8", for K and V of int8, int4, q8_0, q4_0 or q5_0; or "bf16", in which q, K, V and weights are rounded to bf16.
        layout, scale, softcap, sinks, q_starts, return_lse, out, threads, isa: as of attention().
        """
        if q_starts is not None:
            batch = len(integers(q_starts, "q_starts")) - 1
        else:
            batch = floats(q, "q", 4).shape[0]
        chosen = self._entries(entries, batch)
        first = self._first[chosen]
        kept = self._lengths[chosen] - first
        tensors = dict(self._scale_tensors)
        if self.ring:
            tensors["ring_starts"] = tensor(first % np.int32(self._capacity), "ring_starts", (native.I32,))
            tensors["k_offsets"] = tensor(first, "k_offsets", (native.I32,))
        stored = Stored(self._capacity, self._scale_strides, tensors)
        table = self._rows(chosen)
        call = Call(q, self._k.tensor, self._v_tensor, layout=layout, causal=causal, window=window, scale=scale, mask=mask,
                    bias=bias, softcap=softcap, alibi=alibi, sinks=sinks, kv_lengths=kept, q_starts=q_starts, page_table=table,
                    arith=arith, isa=isa, stored=stored)
        # The plan has room for all tokens; how many threads are worth while depends on how many there are.
        if threads is None:
            of_q = call.tensors["q"].shape
            rows = np.prod(of_q[:-1], dtype=np.float64) / max(1, batch if q_starts is None else 1)
            threads = threading_.threads_for(None, float(rows * kept.sum()) * (self.d_k + self.d_v))
        return _attention.run(call, return_lse, out, threads)


def _by_heads(t: Tensor, layout: str) -> Tensor:
    """The same memory as (batch, heads, tokens, channels)."""
    return Tensor(t.address, t.type, sizes(t, layout), layout_strides(t, layout), t.owner, t.library)


def _part(t: Tensor, entry: int, token: int, tokens: int) -> Tensor:
    """Some tokens of an entry."""
    address = t.address + entry * t.strides[0] + token * t.strides[2]
    return Tensor(address, t.type, (1, t.shape[1], tokens, t.shape[3]), t.strides, t.owner, t.library)
