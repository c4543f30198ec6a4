# SPDX-License-Identifier: Apache-2.0
"""Attention to look at: heatmap(). Needs matplotlib, and weights() needs nothing."""
from typing import Any
from collections.abc import Sequence

import numpy as np

from . import _native as native
from ._attention import Causal, Options, Window, layout_of, sizes
from ._tensor import floats


def weights(q: Any, k: Any, *, layout: str = "bhsd", causal: Causal = None, window: Window = None, scale: float | None = None,
            mask: Any = None, bias: Any = None, softcap: float | None = None, alibi: Any = None, sinks: Any = None,
            isa: str | None = None) -> "np.ndarray[Any, Any]":
    """The softmax's result, float32 (batch, heads, queries, keys): how much of each value attention() with these parameters
    would take. It needs memory for all of them, so it is for looking and teaching.

    >>> q = k = np.ones((1, 1, 2, 4), np.float32)
    >>> rapt.viz.weights(q, k, causal="bottom-right")[0, 0].tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    of_q, of_k = floats(q, "q", 4), floats(k, "k", 4)
    batch, heads, q_len, d_k = sizes(of_q, layout)
    k_batch, kv_heads, kv_len, k_channels = sizes(of_k, layout)
    if (batch, d_k) != (k_batch, k_channels):
        raise ValueError(f"q has {batch} batch entries of {d_k} channels, and k {k_batch} of {k_channels}")
    library, options = native.library(), Options(heads, causal, window, scale, mask, bias, softcap, alibi, sinks, isa)
    found = np.empty((batch, heads, q_len, kv_len), np.float32)
    # Values are not needed: those of one channel are the least.
    values, o = np.zeros((batch, kv_heads, kv_len, 1), np.float32), np.empty((batch, heads, q_len, 1), np.float32)
    desc = library.new(native.Desc, batch=batch, heads=heads, kv_heads=kv_heads, q_len=q_len, kv_len=kv_len, d_k=d_k, d_v=1,
                       q=layout_of(of_q, "q", layout), k=layout_of(of_k, "k", layout),
                       v=(native.F32, *values.strides[:3]), o=(native.F32, *o.strides[:3]),
                       scores_stage=native.SCORES_WEIGHTS, scores=(native.F32, *found.strides[:3]))
    options.put_into(desc, batch, heads, q_len, kv_len, exact=True)
    args = library.new(native.Args, q=of_q.address, k=of_k.address, v=values, o=o, scores=found)
    options.put_pointers(args)
    library.run(desc, args)
    return found


def heatmap(q: Any, k: Any, *, tokens: Sequence[str] | None = None, key_tokens: Sequence[str] | None = None, batch: int = 0,
            heads: Sequence[int] | None = None, columns: int = 4, **options: Any) -> tuple[Any, Any]:
    """A picture of what each query attends to: one map for each head, queries from top to bottom, keys from left to right.

    q, k: as of attention(); more of its parameters (layout, causal, window, mask, ...) may follow.
    tokens, key_tokens: labels of the queries and of the keys; key_tokens are tokens unless given, where there are as many keys.
    batch: which entry is shown.
    heads: which heads are shown; None: all.
    columns: how many maps stand side by side.

    Returns matplotlib's figure and an array of its axes, one for each map.

    >>> q = k = np.ones((1, 2, 3, 4), np.float32)
    >>> figure, axes = rapt.viz.heatmap(q, k, causal="bottom-right")
    >>> [ax.get_title() for ax in axes]
    ['head 0', 'head 1']
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("rapt.viz.heatmap needs matplotlib: pip install matplotlib") from None
    found = weights(q, k, **options)
    if not 0 <= batch < found.shape[0]:
        raise ValueError(f"batch is {batch}, where 0..{found.shape[0] - 1} is needed")
    shown = list(range(found.shape[1])) if heads is None else list(heads)
    if not shown or not all(0 <= head < found.shape[1] for head in shown) or columns < 1:
        raise ValueError(f"heads are {shown} in {columns} columns, where some of 0..{found.shape[1] - 1} are needed")
    if key_tokens is None and tokens is not None and len(tokens) == found.shape[3]:
        key_tokens = tokens
    for name, labels, count in (("tokens", tokens, found.shape[2]), ("key_tokens", key_tokens, found.shape[3])):
        if labels is not None and len(labels) != count:
            raise ValueError(f"{name} are {len(labels)}, where {count} are needed")
    wide, high = min(columns, len(shown)), -(-len(shown) // columns)
    figure = Figure(figsize=(3 * wide, 3 * high), layout="constrained")
    grid = figure.subplots(high, wide, squeeze=False).reshape(-1)
    for ax, head in zip(grid, shown):
        image = ax.imshow(found[batch, head], vmin=0, vmax=1, cmap="viridis", aspect="auto", interpolation="nearest")
        ax.set_title(f"head {head}")
        if key_tokens is not None:
            ax.set_xticks(range(len(key_tokens)), key_tokens, rotation=90)
        if tokens is not None:
            ax.set_yticks(range(len(tokens)), tokens)
    for ax in grid[len(shown):]:
        ax.remove()
    figure.colorbar(image, ax=list(grid[:len(shown)]), label="weight")
    return figure, grid[:len(shown)]
