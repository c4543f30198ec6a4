# SPDX-License-Identifier: Apache-2.0
"""Masks of PyTorch that rapt has other options for."""
import torch


def runs_of(attended: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Of a mask (batch, keys): where each entry's attended keys begin, and how many they are; None where one has gaps."""
    count = attended.sum(-1, dtype=torch.int32)
    first = attended.to(torch.uint8).argmax(-1).to(torch.int32)  # the first of several
    last = attended.shape[-1] - 1 - attended.flip(-1).to(torch.uint8).argmax(-1).to(torch.int32)
    if ((count > 0) & (last - first + 1 != count)).any():
        return None
    return torch.where(count > 0, first, 0), count


def of_runs(first: torch.Tensor, count: torch.Tensor) -> dict[str, torch.Tensor]:
    """rapt's options for keys of which an entry has only those in its run: they are counted from its first one on, and so have
    the bits that they have without padding."""
    return {"kv_lengths": count} | ({"ring_starts": first} if first.any() else {})


def as_bools(bias: torch.Tensor) -> torch.Tensor | None:
    """What a bias says, if it is a mask: 0 where a key is attended, and the smallest number or -inf elsewhere."""
    attended = bias > torch.finfo(bias.dtype).min
    return None if bias.masked_fill(~attended, 0).any() else attended
