# SPDX-License-Identifier: Apache-2.0
"""Attention to look at: heatmap(). Needs matplotlib, and weights() needs nothing."""
import io
import itertools
import math
import sys
from typing import Any, Literal, NamedTuple, get_args
from collections.abc import Sequence

import numpy as np

from . import _native as native
from ._arguments import shown, whole
from ._attention import Call, Causal, Window, _output, _Problem, sizes
from ._tensor import floats


def _scores(stage: int, q: Any, k: Any, **options: Any) -> "np.ndarray[Any, Any]":
    """What rapt_args.scores receives at that stage, (batch, heads, queries, keys), or without batch where q has none."""
    # Values are not needed: those of one channel are the least.
    values = np.zeros((*floats(k, "k", (3, 4)).shape[:-1], 1), np.float32)
    call = Call(q, k, values, **options)
    problem, (_, o) = _Problem(call), _output(call, None)
    shape = problem.batch, problem.heads, problem.q_len, problem.kv_len
    # Keys behind an entry's length are not written to.
    found = np.full(shape, -np.inf if stage == native.SCORES_LOGITS else 0, np.float32)
    desc = problem.desc(o, False, 1)
    desc.scores_stage, desc.scores = stage, (native.F32, *found.strides[:3])
    library = native.library()
    args = library.new(native.Args, o=o.address, scores=found)
    call.put_pointers(args)
    library.run(desc, args)
    return found[0] if len(call.tensors["q"].shape) == 3 else found


def weights(q: Any, k: Any, *, layout: str = "bhsd", causal: Causal = None, window: Window = None, scale: float | None = None,
            mask: Any = None, bias: Any = None, softcap: float | None = None, alibi: Any = None, sinks: Any = None,
            kv_lengths: Any = None, isa: str | None = None) -> "np.ndarray[Any, Any]":
    """The softmax's result, float32 (batch, heads, queries, keys), or (heads, queries, keys) where q and k have three dimensions:
    how much of each value attention() with these parameters would take. It needs memory for all of them, so it is for looking
    and teaching.

    >>> q = k = np.ones((1, 1, 2, 4), np.float32)
    >>> rapt.viz.weights(q, k, causal="bottom-right")[0, 0].tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    return _scores(native.SCORES_WEIGHTS, q, k, layout=layout, causal=causal, window=window, scale=scale, mask=mask, bias=bias,
                   softcap=softcap, alibi=alibi, sinks=sinks, kv_lengths=kv_lengths, isa=isa)


Norm = Literal["log", "linear", "row"]
_MASKED, _NAN = "0.83", "red"  # viridis has neither
_LONGEST = 20  # characters of a label
# The backends of pyplot that write files and show nothing by themselves.
_SILENT = "agg", "cairo", "pdf", "pgf", "ps", "svg", "template"


class Heatmap(NamedTuple):
    """What heatmap() returns: matplotlib's figure, and an array of its axes, one for each map. A notebook's cell that ends with
    it shows the picture."""
    figure: Any
    axes: Any

    def __repr__(self) -> str:
        return f"<rapt.viz.Heatmap of {len(self.axes)} map{'s' * (len(self.axes) > 1)}>"

    def _repr_png_(self) -> bytes | None:
        """The picture for a notebook, or None where pyplot shows it by itself, in a window or at the end of the cell, so that it
        is not there twice."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None and pyplot.isinteractive() and pyplot.get_backend().lower() not in _SILENT:
            from matplotlib._pylab_helpers import Gcf  # pyplot's list of its figures
            if any(manager.canvas.figure is self.figure for manager in Gcf.get_all_fig_managers()):
                return None
        file = io.BytesIO()
        self.figure.savefig(file, format="png")
        return file.getvalue()


def _new_figure(**options: Any) -> Any:
    """Where pyplot is imported or IPython runs, one of pyplot's figures, so that plt.show() and notebooks show it. Elsewhere
    nothing but the caller keeps it alive."""
    ipython = sys.modules.get("IPython")
    if "matplotlib.pyplot" in sys.modules or (ipython is not None and ipython.get_ipython() is not None):
        import matplotlib.pyplot as plt
        return plt.figure(**options)
    from matplotlib.figure import Figure
    return Figure(**options)


def _labels(tokens: Any, name: str, count: int) -> list[str]:
    """The tokens as labels: each on one line, and cut where it is long."""
    try:
        labels = [str(token) for token in tokens]
    except TypeError:
        raise TypeError(f"{name} is {shown(tokens)}: a label for each of the {count} is needed") from None
    if len(labels) != count:
        raise ValueError(f"{name} are {len(labels)}, where {count} are needed")
    lines = ("".join(c if c.isprintable() else repr(c)[1:-1] for c in label) for label in labels)
    return [line if len(line) <= _LONGEST else line[:_LONGEST - 1] + "…" for line in lines]


def _some(heads: Any, count: int) -> list[int]:
    """The numbers of the heads that are shown."""
    if heads is None:
        return list(range(count))
    try:
        numbers = [whole(head, "heads") for head in heads]
    except TypeError:
        raise TypeError(f"heads is {shown(heads)}: a list of some of 0..{count - 1} is needed") from None
    if not numbers or not all(0 <= head < count for head in numbers):
        raise ValueError(f"heads are {shown(numbers)}, where some of 0..{count - 1} are needed")
    return numbers


def _norm(norm: Norm, found: "np.ndarray[Any, Any]") -> "tuple[np.ndarray[Any, Any], Any, dict[str, Any]]":
    """What is drawn of weights (heads, queries, keys), matplotlib's norm for it, and how its colour bar is."""
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.ticker import LogLocator
    if norm == "row":
        largest = np.fmax.reduce(found, axis=2, keepdims=True)
        return found / np.where(largest > 0, largest, 1), Normalize(0, 1), {"label": "weight / the query's largest weight"}
    most = float(np.fmax.reduce(found, axis=None))
    most = min(most, 1.0) if most > 0 else 1.0
    if norm == "linear":
        return found, Normalize(0, most), {"label": "weight"}
    # Up to 1, 0.3, 0.1, ..., which have ticks, and down to a tenth of what each key would have if all had the same.
    least = min(1 / found.shape[2], most) / 10
    ten = 10.0 ** math.ceil(math.log10(most))
    most = 0.3 * ten if most <= 0.3 * ten else ten
    return found, LogNorm(least, most, clip=True), {"label": "weight", "extend": "min", "format": "%g",
                                                    "ticks": LogLocator(subs=(1, 3))}


class _Grid:
    """Where the maps lie. Sizes are inches."""

    def __init__(self, maps: int, queries: list[str] | int, keys: list[str] | int, columns: int | None, letter: float):
        """queries, keys: their labels, or how many there are."""
        self.letter, self.line = letter, 1.3 * letter  # the size of one, and of a line of them
        counts = [labels if isinstance(labels, int) else len(labels) for labels in (queries, keys)]
        lines = max(0 if isinstance(labels, int) else len(labels) for labels in (queries, keys)) * self.line
        longest, usual = max(counts), 4.5 if maps == 1 else 2.5

        def sizes(columns: int) -> tuple[float, float]:
            """Of a map, whose cells are about square, and a pixel at least, of 1/100 of an inch by default. It grows until all
            labels have room, if 2.5 times the usual size does; and the maps beside each other have 16 inches, for screens."""
            room = max(16 / columns - 0.2, 1)
            side = max(longest / 100, usual, lines if lines <= min(room, 2.5 * usual) else 0)
            cell = min(side / longest, room / counts[1])
            return max(cell * counts[1], 1), max(cell * counts[0], min(counts[0], 5) * self.line, 0.4)

        def unfit(columns: int) -> float:
            """How far such a grid is from 3:2, and how empty it is."""
            (width, height), rows = sizes(columns), -(-maps // columns)
            return abs(math.log(columns * (width + 0.2) / (rows * (height + 0.4)) / 1.5)) + 3 * (rows * columns - maps) / maps
        self.columns = min(maps, columns or min(range(1, maps + 1), key=unfit))
        self.rows = -(-maps // self.columns)
        self.width, self.height = sizes(self.columns)

    @property
    def flat(self) -> bool:
        """Whether there is no room for a colour bar beside it."""
        return self.rows * self.height < 1.5

    def size(self, queries: list[str] | int, keys: list[str] | int) -> tuple[float, float]:
        """That of the figure, with labels and colour bar."""
        left = self.letter * (2.5 + 0.65 * (4 if isinstance(queries, int) else max(map(len, queries))))
        below = self.letter * (2.5 + 0.65 * (2 if isinstance(keys, int) else max(map(len, keys))))
        return (self.columns * (self.width + 0.2) + left + (0.2 if self.flat else 1.1),
                self.rows * (self.height + 0.4) + below + (1.2 if self.flat else 0.4))

    def ticks(self, labels: list[str] | int, across: bool) -> dict[str, Any]:
        """As many of an axis' ticks as have room."""
        numbered = isinstance(labels, int)
        texts = [str(i) for i in range(labels)] if isinstance(labels, int) else labels
        need = len(texts) * (self.letter * (0.65 * len(texts[-1]) + 0.8) if across and numbered else self.line)
        room = self.width if across else self.height
        steps = (digit * 10**zeros for zeros in itertools.count() for digit in (1, 2, 5))
        at = range(0, len(texts), next(step for step in steps if need <= room * step))
        return {"ticks": at, "labels": texts[::at.step], "fontsize": 72 * self.letter, "parse_math": False,  # a $ is a token
                "rotation": 90 if across and not numbered else 0}


def heatmap(q: Any, k: Any, *, tokens: Sequence[str] | None = None, key_tokens: Sequence[str] | None = None, batch: int = 0,
            heads: Sequence[int] | None = None, columns: int | None = None, norm: Norm = "log", **options: Any) -> Heatmap:
    """A picture of what each query attends to: one map for each head, queries from top to bottom, keys from left to right. Masked
    keys are grey, so that they differ from small weights; weights that are NaN are red.

    q, k: as of attention(), with four dimensions or three; more of its parameters may follow, those of weights() (layout, causal,
      window, mask, kv_lengths, ...).
    tokens, key_tokens: labels of the queries and of the keys; key_tokens are tokens unless given, where there are as many keys.
      Tokens without labels are numbered. Of many, only as many have ticks as there is room for.
    batch: which entry is shown.
    heads: which heads are shown; None: all.
    columns: how many maps stand side by side; None: as many as make the picture about 3:2.
    norm: what the colours mean, the same in all maps. "log": weights on a logarithmic scale, which begins at a tenth of 1 / keys;
      "linear": weights from 0 to the largest one; "row": each query's weights divided by its largest one.

    Returns matplotlib's figure and an array of its axes, one for each map. A notebook's cell that ends with the call shows the
    picture. Where matplotlib.pyplot was imported before, or IPython runs, the figure is one of pyplot's, which plt.show() shows
    and plt.close(figure) frees; elsewhere figure.savefig("map.png") writes it.

    >>> q = k = np.ones((1, 2, 3, 4), np.float32)
    >>> figure, axes = rapt.viz.heatmap(q, k, causal="bottom-right")
    >>> [ax.get_title() for ax in axes]
    ['head 0', 'head 1']
    """
    try:
        import matplotlib
    except ImportError:
        raise ImportError("rapt.viz.heatmap needs matplotlib: pip install matplotlib") from None
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch
    if not isinstance(norm, str) or norm not in get_args(Norm):
        raise ValueError(f"norm is {shown(norm)}: {' or '.join(map(repr, get_args(Norm)))} is needed")
    columns = None if columns is None else whole(columns, "columns")
    if columns is not None and columns < 1:
        raise ValueError(f"columns is {columns}, where 1 or more are needed")
    found = weights(q, k, **options)
    masked = _scores(native.SCORES_LOGITS, q, k, **options) == -np.inf  # weights of 0 may be of small logits, too
    found, masked = (x if x.ndim == 4 else x[None] for x in (found, masked))
    if not found.size:
        raise ValueError(f"there is nothing to draw: the weights have shape {found.shape}")
    batch = whole(batch, "batch")
    if not 0 <= batch < found.shape[0]:
        raise ValueError(f"batch is {batch}, where 0..{found.shape[0] - 1} is needed")
    _, count, queries, keys = found.shape
    chosen = _some(heads, count)
    of_queries = queries if tokens is None else _labels(tokens, "tokens", queries)
    of_keys = _labels(key_tokens, "key_tokens", keys) if key_tokens is not None else of_queries if queries == keys else keys
    drawn, colours, bar = _norm(norm, found[batch, chosen])
    masked, unknown = masked[batch, chosen], np.isnan(drawn) & ~masked[batch, chosen]
    group = count // sizes(floats(k, "k", (3, 4)), options.get("layout", "bhsd"))[1]

    grid = _Grid(len(chosen), of_queries, of_keys, columns, matplotlib.rcParams["font.size"] / 72 / 1.2)
    figure = _new_figure(layout="constrained", figsize=grid.size(of_queries, of_keys))
    figure.get_layout_engine().set(h_pad=0.07)  # with the usual 0.04 a colour bar below loses a pixel of its label
    places = figure.subplots(grid.rows, grid.columns, squeeze=False, sharex=True, sharey=True).reshape(-1)
    axes = places[:len(chosen)]
    for place in places[len(chosen):]:
        place.remove()
    for i, (ax, head) in enumerate(zip(axes, chosen)):
        image = ax.imshow(np.ma.masked_array(drawn[i], masked[i]), norm=colours, aspect="auto",
                          cmap=matplotlib.colormaps["viridis"].with_extremes(bad=_MASKED))
        if unknown[i].any():
            ax.imshow(np.ma.masked_array(unknown[i], ~unknown[i]), cmap=ListedColormap([_NAN]), aspect="auto")
        ax.set_title(f"head {head}" + (f" (kv head {head // group})" if group > 1 else ""), fontsize="medium")
        ax.set_xticks(**grid.ticks(of_keys, across=True))
        ax.set_yticks(**grid.ticks(of_queries, across=False))
        lowest, first = i + grid.columns >= len(chosen), i % grid.columns == 0
        ax.tick_params(labelbottom=lowest, labelleft=first)
        ax.set(xlabel="keys" if lowest else "", ylabel="queries" if first else "")
    across, along = (grid.rows * grid.height, grid.columns * grid.width)[::1 if grid.flat else -1]
    figure.colorbar(image, ax=list(axes), location="bottom" if grid.flat else "right", fraction=0.2 / across, pad=0.1 / across,
                    aspect=along / 0.2, **bar)
    legend = [Patch(facecolor=colour, edgecolor="black", label=label)
              for colour, label, there in ((_MASKED, "masked", masked), (_NAN, "not a number", unknown)) if there.any()]
    if legend:
        figure.legend(handles=legend, loc="outside upper right", ncols=2, fontsize="small")
    return Heatmap(figure, axes)
