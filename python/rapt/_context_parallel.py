# SPDX-License-Identifier: Apache-2.0
"""Context parallelism over torch.distributed: rapt.torch.context_parallel()."""
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as distributed

from ._attention import Call
from ._states import CHUNK, Part, chunks_of
from ._tensor import tensor


def _keys_of(k: Any, layout: str) -> int:
    shape = tensor(k, "k_part").shape
    if len(shape) not in (3, 4) or layout not in ("bhsd", "bshd"):
        return -1  # which Part refuses
    return shape[-2 if layout == "bhsd" else -3]


def _agreed(keys: Sequence[int] | None, mine: int, refused: Exception | None, group: Any) -> list[int]:
    """How many keys each rank has. All ranks raise where one of them does."""
    ranks, rank = distributed.get_world_size(group), distributed.get_rank(group)
    if keys is None:
        lengths = torch.empty(ranks, dtype=torch.int64)
        distributed.all_gather(list(lengths.split(1)), torch.tensor([-1 if refused else mine]), group=group)
        keys = lengths.tolist()
    if refused:
        raise refused
    keys = [int(n) for n in keys]
    if -1 in keys:
        raise ValueError(f"rank {keys.index(-1)} has refused its arguments")
    if len(keys) != ranks or keys[rank] != mine:
        raise ValueError(f"keys is {keys}, where k_part of rank {rank} of {ranks} has {mine}")
    return keys


def context_parallel(q: torch.Tensor, k_part: torch.Tensor, v_part: torch.Tensor, *, group: Any = None,
                     keys: Sequence[int] | None = None, return_lse: bool = False, layout: str = "bhsd", causal: Any = None,
                     window: Any = None, scale: float | None = None, mask: Any = None, bias: Any = None,
                     softcap: float | None = None, alibi: Any = None, sinks: Any = None, kv_lengths: Any = None,
                     q_starts: Any = None, threads: int | None = None, isa: str | None = None) -> Any:
    """Attention to keys that are shared out over the ranks of a group of torch.distributed, on CPUs: the bits of one process that has
    them all, on every rank, however many ranks there are.

    Each rank computes the states of its chunks of 512 keys, one all-gather brings those of all, and they are merged in the order of
    the chunks. There are no gradients.

    q: as in rapt.attention, the same on every rank; so are all that follow but k_part and v_part.
    k_part, v_part: this rank's keys and values, which follow those of the ranks before. All ranks but the last that has any have a
        multiple of 512, which may be another on each, and 0.
    group: None is that of all processes.
    keys: how many keys each rank has. None: a small all-gather finds it out, and then a rank that refuses its arguments makes all
        of them raise.
    mask, bias, kv_lengths: those of all keys, of all ranks; the rest is that of rapt.attention.

    Returns what rapt.attention returns.
    """
    if not distributed.is_available() or not distributed.is_initialized():
        raise RuntimeError("context_parallel needs torch.distributed.init_process_group(...) first")
    options = {"layout": layout, "causal": causal, "window": window, "scale": scale, "mask": mask, "bias": bias,
               "softcap": softcap, "alibi": alibi, "sinks": sinks, "kv_lengths": kv_lengths, "q_starts": q_starts, "isa": isa}
    refused, mine = None, -1
    try:
        if torch.is_grad_enabled() and any(t.requires_grad for t in (q, k_part, v_part)):
            raise RuntimeError("context_parallel has no gradients: call it under torch.no_grad(), or detach its arguments")
        mine = _keys_of(k_part, layout)
        # What is wrong with this rank's arguments shows before any rank waits for it; masks and biases need the number of all keys.
        Part(Call(q, k_part, v_part, **options | {"mask": None, "bias": None}), first=0, total=max(mine, 0))
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        refused = error
    counts = _agreed(keys, mine, refused, group)
    rank, total = distributed.get_rank(group), sum(counts)
    for r, n in enumerate(counts):
        if n % CHUNK and any(counts[r + 1:]):
            raise ValueError(f"rank {r} has {n} keys: all ranks but the last that has any need a multiple of {CHUNK}")
    part = Part(Call(q, k_part, v_part, **options), first=sum(counts[:rank]) if mine else 0, total=total, threads=threads)
    chunks = [chunks_of(n) for n in counts]
    shape = max(1, *chunks), *part.states_shape[1:]
    states = torch.empty(shape, dtype=torch.float32)
    part.compute(states)  # also where there are no keys, so that what is wrong is refused by all ranks
    gathered = [torch.empty_like(states) for _ in counts]
    distributed.all_gather(gathered, states, group=group)
    return part.merge(gathered, chunks, return_lse)
