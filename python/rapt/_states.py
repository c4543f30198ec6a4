# SPDX-License-Identifier: Apache-2.0
"""States: attention over a part of the keys, such that the parts' states merge to the bits of attention over all keys."""
import ctypes
from collections.abc import Sequence
from typing import Any

from . import _native as native
from . import _threads as threading_
from ._attention import _POINTERS, Call, _lse_shape, _output, _Problem
from ._tensor import Tensor, empty, tensor

CHUNK = native.CHUNK_KEYS


def state_floats(d_v: int) -> int:
    """RAPT_STATE_FLOATS."""
    return 16 + (d_v + 15) // 16 * 16


def chunks_of(keys: int) -> int:
    return (keys + CHUNK - 1) // CHUNK


class Part(_Problem):
    """A call of which k and v are the keys from number first on, of total. Masks, biases and lengths are those of all keys."""

    def __init__(self, call: Call, *, first: int, total: int, threads: int | None = None):
        self.first, self.total = first, total
        super().__init__(call)
        self.threads = threading_.threads_for(threads, self.work)

    def _shape(self, rank: int) -> None:
        super()._shape(rank)
        self.keys, self.kv_len = self.kv_len, self.total

    @property
    def states_shape(self) -> tuple[int, ...]:
        """[chunks, batch, heads, queries, floats of a state], without the batch where q has none."""
        return chunks_of(self.keys), *_lse_shape(self.call), state_floats(self.d_v)

    def _plan(self, states: Tensor, o: Tensor, with_lse: bool) -> Any:
        desc = self.desc(o, with_lse, self.threads)
        *batch, head, query = states.strides[1:-1]
        desc.kv_first, desc.kv_len, desc.kv_total, desc.unmerged = self.first, self.keys, self.total, 1
        desc.states, desc.state_stride = (native.F32, *(batch or (0,)), head, query), states.strides[0]
        return native.library().plan(desc)

    def _args(self, plan: Any, **values: Any) -> Any:
        size = ctypes.c_size_t()
        native.library().c.rapt_workspace_size(plan, self.threads, ctypes.byref(size))
        return native.library().new(native.Args, workspace=threading_.workspace(size.value).memory, workspace_bytes=size.value, **values)

    def _addresses(self, *names: str) -> dict[str, int]:
        """What rapt_args has of these tensors of the call, of those that there are."""
        return {_POINTERS[name]: self.call.tensors[name].address for name in names if name in self.call.tensors}

    def compute(self, states: Any) -> None:
        """Writes this part's states to an array of states_shape, or to one of more chunks, of which the others stay."""
        to = tensor(states, "states")
        plan = self._plan(to, _output(self.call, None)[1], False)
        args = self._args(plan, **self._addresses(*self.call.tensors), states=to.address)
        threading_.run(native.library(), "rapt", plan, args, threads=self.threads)

    def merge(self, parts: Sequence[Any], chunks: Sequence[int], with_lse: bool) -> Any:
        """The attention over all keys, of the states of all parts in their order: arrays of states_shape, of whose states the first
        so many chunks count. With with_lse, the log-sum-exp of each row too."""
        out, o = _output(self.call, None)
        lse = empty(_lse_shape(self.call), native.F32, self.call.tensors["q"]) if with_lse else None
        tensors = [tensor(states, "states") for states in parts]
        plan = self._plan(tensors[0], o, with_lse)
        sources = (native.States * len(parts))()
        for source, states, count in zip(sources, tensors, chunks):
            *batch, source.head_stride, source.token_stride = states.strides[1:-1]
            source.at, source.batch_stride = states.address, batch[0] if batch else 0
            source.state_stride, source.chunks = states.strides[0], count
        args = self._args(plan, **self._addresses("sinks", "v_scales"), o=o.address,
                          lse=tensor(lse, "lse").address if with_lse else None)
        threading_.run(native.library(), "rapt_merge_states", plan, args, sources, len(parts), threads=self.threads)
        return (out, lse) if with_lse else out
