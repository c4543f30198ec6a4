# SPDX-License-Identifier: Apache-2.0
"""What stands around attention: linear layers, normalisation, and multi-head attention as one call."""
import contextlib
import ctypes
from typing import Any, Literal

import numpy as np

from . import _native as native
from . import _threads as threading_
from ._arguments import flag, number, shown, whole
from ._attention import Causal, Options, Window, arith_of, isa_name, layout_of, starts_of, tuning_of
from ._cache import KVCache, type_of
from ._rope import Rope, checked_rope
from ._tensor import Tensor, dense_floats, empty, floats, integers, reals, written

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"] | None
_ACTIVATIONS = {None: native.ACTIVATION_NONE, "relu": native.RELU, "gelu": native.GELU, "gelu_tanh": native.GELU_TANH,
                "silu": native.SILU}


# ---- Tokens and weights -----------------------------------------------------------------------------------------------------


class _Tokens:
    """An array (batch, tokens, channels), (tokens, channels) or (channels)."""

    def __init__(self, x: Any, name: str):
        self.tensor = floats(x, name, (1, 2, 3))
        shape, strides = self.tensor.shape, self.tensor.strides
        if not shape[-1]:
            raise ValueError(f"{name} has shape {shape}: one channel at least is needed")
        self.shape = (1,) * (3 - len(shape)) + shape
        t = Tensor(self.tensor.address, self.tensor.type, (1, *self.shape), (0,) * (4 - len(strides)) + strides, x, "")
        kind, _, batch_stride, token_stride = layout_of(t, name, "bhsd")
        self.layout = kind, batch_stride, 0, token_stride
        self.address = self.tensor.address

    @property
    def work(self) -> float:
        return float(np.prod(self.shape, dtype=np.float64))


def _same_tokens(x: Any, name: str, of: _Tokens, channels: int) -> _Tokens:
    tokens, needed = _Tokens(x, name), (*of.tensor.shape[:-1], channels)
    if tokens.tensor.shape != needed:
        raise ValueError(f"{name} has shape {tokens.tensor.shape}, where {needed} is needed")
    return tokens


def _output(out: Any, of: _Tokens, channels: int) -> tuple[Any, _Tokens]:
    out = empty((*of.tensor.shape[:-1], channels), of.tensor.type, of.tensor) if out is None else out
    tokens = _same_tokens(out, "out", of, channels)
    written(tokens.tensor, "out")
    return out, tokens


class Weights:
    """Quantised weights of a linear layer: see quantise_weights() and from_bytes()."""

    def __init__(self, kind: int, shape: tuple[int, int], data: "np.ndarray[Any, Any]", scales: "np.ndarray[Any, Any] | None"):
        self.shape, self.data, self.scales, self._kind = shape, data, scales, kind

    @classmethod
    def from_bytes(cls, data: Any, type: str, shape: tuple[int, int]) -> "Weights":
        """Weights (out, in) of a type with groups, whose bytes there are already: ggml's blocks, say, as a GGUF file has them.

        data: bytes or an array of them, dense rows; it is kept, not copied, and must not change.
        type: "q8_0", "q4_0" or "q4_1", whose groups of 32 must divide in, or "q4_k" or "q6_k", whose groups of 256 must.

        >>> rapt.Weights.from_bytes(bytes(2 * 40), "q4_1", (2, 64))
        Weights(q4_1, 2 x 64)
        """
        library = native.library()
        known = library.types(native.CLASS_WEIGHT, native.CLASS_MATRIX)
        del known["int8"]  # which has scales of its own
        kind = known.get(type)
        if kind is None:
            raise ValueError(f"type is {shown(type)}: {', '.join(known)} are those of weights with groups")
        rows, width = (whole(n, "shape") for n in shape)
        if rows < 1 or width < 1:
            raise ValueError(f"shape is {(rows, width)}: one row and one column at least are needed")
        row = library.c.rapt_row_bytes(kind, width)
        if row < 0:
            raise ValueError(f"shape is {(rows, width)}: groups of {type} do not divide {width}")
        array = np.frombuffer(data, np.uint8)
        if array.size != rows * row:
            raise ValueError(f"data has {array.size} bytes, where {rows} rows of {row} are needed")
        return cls(kind, (rows, width), array.reshape(rows, row), None)

    @property
    def type(self) -> str:
        """The storage type's name."""
        name: bytes = native.library().c.rapt_type_name(self._kind)
        return name.decode()

    @property
    def nbytes(self) -> int:
        """The bytes of the weights and their scales."""
        return int(self.data.nbytes + (0 if self.scales is None else self.scales.nbytes))

    def __repr__(self) -> str:
        return f"Weights({self.type}, {self.shape[0]} x {self.shape[1]})"


def quantise_weights(weight: Any, type: str = "int8") -> Weights:
    """Weights (out, in) of float32, float16 or bfloat16 in a byte or less for each, for linear() and mha().

    type: "int8" with a scale for each row, or "q8_0", "q4_0" or "q4_1", ggml's groups of 32, where in is a multiple of 32.

    >>> rapt.quantise_weights(np.ones((4, 64), np.float32), "q4_0").nbytes
    144
    """
    library, kind, w = native.library(), type_of(type), floats(weight, "weight", 2)
    rows, width = w.shape
    if not rows or not width:
        raise ValueError(f"weight has shape {w.shape}: one row and one column at least are needed")
    stride = layout_of(Tensor(w.address, w.type, (1, 1, *w.shape), (0, 0, *w.strides), weight, ""), "weight", "bhsd")[3]
    if kind == native.INT8:
        data, scales = np.empty((rows, width), np.int8), np.empty(rows, np.float32)
        library.c.rapt_quantise_weights(rows, width, w.type, stride, w.address, data.ctypes.data, scales.ctypes.data)
        return Weights(kind, (rows, width), data, scales)
    row = max(0, library.c.rapt_row_bytes(kind, width))
    groups = np.empty((rows, row), np.uint8)
    library.c.rapt_quantise_groups(rows, width, w.type, stride, w.address, kind, groups.ctypes.data)
    return Weights(kind, (rows, width), groups, None)


class PrepackedWeights:
    """Weights of a linear layer beside what a kernel makes of them: see prepack_weights()."""

    def __init__(self, weight: Any, shape: tuple[int, int], memory: "np.ndarray[Any, Any]"):
        self.weight, self.shape, self.memory = weight, shape, memory

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy's memory lies anywhere, and the library wants it aligned."""
        self.__dict__.update(state)
        self.memory = threading_.aligned(len(state["memory"]))
        self.memory[:] = state["memory"]

    @property
    def nbytes(self) -> int:
        """The bytes beside those of the weights themselves."""
        return int(self.memory.nbytes)

    def __repr__(self) -> str:
        return f"PrepackedWeights({self.shape[0]} x {self.shape[1]})"


def prepack_weights(weight: Any, *, arith: str = "exact", threads: int | None = None, isa: str | None = None) -> PrepackedWeights:
    """Weights laid out for the kernel once, for linear() and mha(), which else do it in each call of many tokens; calls of few
    tokens gain in arith "int8", and in "bf16" on CPUs with AVX512-BF16. The bits are the same.

    weight: (out, in), an array or a Weights (quantise_weights(), Weights.from_bytes()). It is kept, for calls of few tokens may read
        it, and must not change.
    arith, isa: those of the linear layer; another one refuses them.

    >>> w = rapt.prepack_weights(np.eye(64, dtype=np.float32))
    >>> float(rapt.linear(np.ones((100, 64), np.float32), w).sum())
    6400.0
    """
    library, w = native.library(), _Weight(weight, "weight")
    row = (native.F32, 0, 0, 0)
    desc = library.new(native.LinearDesc, in_=w.width, out=w.rows, x=row, y=row, weight=w.layout, arith=arith_of(arith))
    desc.isa = isa_name(isa)
    plan, size = library.plan(desc), ctypes.c_size_t()
    library.c.rapt_linear_prepacked_size(plan, ctypes.byref(size))
    memory = threading_.aligned(size.value)
    args = library.new(native.LinearPrepackArgs, weight=w.address, prepacked=memory, prepacked_bytes=size.value)
    threading_.run(library, "rapt_linear_prepack", plan, args, threads=threading_.threads_for(threads, float(w.rows * w.width)))
    return PrepackedWeights(weight, (w.rows, w.width), memory)


class _Weight:
    """A matrix (out, in), of floats or quantised, and what it was prepacked to."""

    def __init__(self, x: Any, name: str, width: int | None = None):
        self.prepacked: np.ndarray[Any, Any] | None = None
        if isinstance(x, PrepackedWeights):
            x, self.prepacked = x.weight, x.memory
        self.kept, self.scales = x, None
        if isinstance(x, Weights):
            (self.rows, self.width), self.address = x.shape, x.data.ctypes.data
            self.layout, self.scales = (x._kind, 0, 0, x.data.strides[0]), x.scales
        else:
            t = floats(x, name, 2)
            (self.rows, self.width), self.address, self.kept = t.shape, t.address, t  # which may be a copy
            four = Tensor(t.address, t.type, (1, 1, *t.shape), (0, 0, *t.strides), x, "")
            self.layout = layout_of(four, name, "bhsd")
        if not self.rows or not self.width:
            raise ValueError(f"{name} has shape {(self.rows, self.width)}: one row and one column at least are needed")
        if width not in (None, self.width):
            raise ValueError(f"{name} has shape {(self.rows, self.width)}, and {width} channels come in")


def _vector(args: Any, field: str, x: Any, name: str, length: int) -> None:
    """A bias, say, into the arguments of a call, which keep it."""
    if x is not None:
        setattr(args, field, dense_floats(x, name, (length,)).owner)


def _run(family: str, desc: Any, args: Any, threads: int | None, work: float) -> None:
    """A plan of its own, on that many threads."""
    library, count = native.library(), threading_.threads_for(threads, work)
    plan = library.plan(desc)
    size = library.workspace_size(plan, count)
    workspace = threading_.workspace(size)
    args.workspace, args.workspace_bytes = workspace.address, size
    threading_.run(library, family, plan, args, threads=count)


# ---- Linear layers ----------------------------------------------------------------------------------------------------------


def linear(x: Any, weight: Any, bias: Any = None, *, activation: Activation = None, gate: Any = None, gate_bias: Any = None,
           residual: Any = None, out: Any = None, arith: str = "exact", threads: int | None = None,
           isa: str | None = None, tuning: str | None = None) -> Any:
    """activation(x weight^T + bias) + residual; with a gate, activation(x gate^T + gate_bias) * (x weight^T + bias) + residual.

    Each token's bits are a function of that token and the weights alone.

    x: (batch, tokens, in), (tokens, in) or (in) of float32, float16 or bfloat16.
    weight: (out, in) of these types, as torch.nn.Linear has it, or what quantise_weights() or prepack_weights() returned.
    bias: (out).
    activation: "relu", "gelu", "gelu_tanh", "silu" or None.
    gate, gate_bias: as weight and bias (Shazeer 2020, GLU variants: SwiGLU is a gate with "silu", GeGLU one with "gelu").
    residual: of the result's shape.
    out: the array to be written, of the result's shape, which may be the residual.
    arith: "exact"; "bf16", in which x, weight and gate are rounded to bf16; or "int8", in which x is quantised by groups of 32
        channels, of 256 for q4_k and q6_k, for weights of quantise_weights() or Weights.from_bytes() with products of integers.
    threads, isa, tuning: as of attention().

    >>> x, weight = np.array([1.0, 2.0], np.float32), np.array([[1.0, 1.0], [-1.0, 0.0]], np.float32)
    >>> rapt.linear(x, weight, activation="relu").tolist()
    [3.0, 0.0]
    """
    if not isinstance(activation, str | None) or activation not in _ACTIVATIONS:
        raise ValueError(
            f"activation is {shown(activation)}: {', '.join(repr(name) for name in _ACTIVATIONS)} are those that there are")
    library, tokens = native.library(), _Tokens(x, "x")
    batch, count, width = tokens.shape
    w = _Weight(weight, "weight", width)
    out, y = _output(out, tokens, w.rows)
    desc = library.new(native.LinearDesc, batch=batch, tokens=count, in_=width, out=w.rows, x=tokens.layout, y=y.layout,
                       weight=w.layout, activation=_ACTIVATIONS[activation], arith=arith_of(arith))
    args = library.new(native.LinearArgs, x=tokens.address, weight=w.address, y=y.address, scales=w.scales, prepacked=w.prepacked)
    _vector(args, "bias", bias, "bias", w.rows)
    desc.isa, desc.tuning = isa_name(isa), tuning_of(tuning)
    if residual is not None:
        r = _same_tokens(residual, "residual", tokens, w.rows)
        desc.residual, args.residual = r.layout, r.address
    if gate is not None:
        g = _Weight(gate, "gate", width)
        if g.rows != w.rows:
            raise ValueError(f"gate has {g.rows} rows, and weight {w.rows}")
        desc.gate, args.gate, args.gate_scales, args.gate_prepacked = g.layout, g.address, g.scales, g.prepacked
        _vector(args, "gate_bias", gate_bias, "gate_bias", w.rows)
    elif gate_bias is not None:
        raise ValueError("gate_bias is given without a gate")
    _run("rapt_linear", desc, args, threads, tokens.work * w.rows)
    return out


# ---- Normalisation ----------------------------------------------------------------------------------------------------------


def _norm(family: str, x: Any, weight: Any, bias: Any, epsilon: float, residual: Any, return_sum: bool, out: Any,
          threads: int | None, isa: str | None) -> Any:
    library, tokens = native.library(), _Tokens(x, "x")
    batch, count, channels = tokens.shape
    out, y = _output(out, tokens, channels)
    args = library.new(native.NormArgs, batch=batch, tokens=count, channels=channels, x=tokens.layout, y=y.layout,
                       from_=tokens.address, to=y.address, epsilon=number(epsilon, "epsilon"))
    _vector(args, "weight", weight, "weight", channels)
    _vector(args, "bias", bias, "bias", channels)
    args.isa = isa_name(isa)
    if residual is not None:
        r = _same_tokens(residual, "residual", tokens, channels)
        args.residual, args.residual_from = r.layout, r.address
    total = None
    if flag(return_sum, "return_sum"):
        total, z = _output(None, tokens, channels)
        args.sum, args.sum_to = z.layout, z.address
    threading_.run(library, family, args, threads=threading_.threads_for(threads, tokens.work))
    return (out, total) if return_sum else out


def layer_norm(x: Any, weight: Any = None, bias: Any = None, *, epsilon: float = 1e-5, residual: Any = None,
               return_sum: bool = False, out: Any = None, threads: int | None = None, isa: str | None = None) -> Any:
    """(z - mean) / sqrt(variance + epsilon) * weight + bias of each token's channels, with z = x + residual (Ba, Kiros & Hinton
    2016).

    x: (batch, tokens, channels), (tokens, channels) or (channels) of float32, float16 or bfloat16.
    weight, bias: (channels); None: 1 and 0.
    residual: of x's shape.
    return_sum: also return z.
    out: the array to be written, of x's shape, which may be x itself.
    threads, isa: as of attention().

    >>> rapt.layer_norm(np.array([1.0, 3.0], np.float32), epsilon=0).tolist()
    [-1.0, 1.0]
    """
    return _norm("rapt_layer_norm", x, weight, bias, epsilon, residual, return_sum, out, threads, isa)


def rms_norm(x: Any, weight: Any = None, bias: Any = None, *, epsilon: float = 1e-5, residual: Any = None,
             return_sum: bool = False, out: Any = None, threads: int | None = None, isa: str | None = None) -> Any:
    """z / sqrt(mean of z^2 + epsilon) * weight + bias of each token's channels, with z = x + residual (Zhang & Sennrich 2019).
    The parameters are those of layer_norm().

    >>> rapt.rms_norm(np.array([4.0, 4.0], np.float32), epsilon=0).tolist()
    [1.0, 1.0]
    """
    return _norm("rapt_rms_norm", x, weight, bias, epsilon, residual, return_sum, out, threads, isa)


# ---- Multi-head attention ---------------------------------------------------------------------------------------------------


def mha(x: Any, wq: Any, wk: Any = None, wv: Any = None, wo: Any = None, *, heads: int, kv_heads: int | None = None,
        y: Any = None, z: Any = None, bq: Any = None, bk: Any = None, bv: Any = None, bo: Any = None, residual: Any = None,
        rope: Rope | None = None, position_table: Any = None, cache: KVCache | None = None,
        causal: Causal | Literal["auto"] = "auto", window: Window = None, scale: float | None = None, mask: Any = None,
        bias: Any = None, softcap: float | None = None, alibi: Any = None, sinks: Any = None, kv_lengths: Any = None,
        q_starts: Any = None, k_starts: Any = None, return_weights: bool = False, out: Any = None, arith: str = "exact",
        linear_arith: str = "exact", threads: int | None = None, isa: str | None = None) -> Any:
    """Multi-head attention with its projections, as one call (Vaswani et al. 2017, section 3.2.2):

        q = x wq^T + bq,  k = y wk^T + bk,  v = z wv^T + bv
        out = concat(heads of softmax(scale q k^T + bias) v) wo^T + bo + residual

    Weights lie as those of torch.nn.Linear and nn.MultiheadAttention, and may be a Weights (quantise_weights(),
    Weights.from_bytes()), or, each of the four by itself, prepack_weights().

    x: (batch, queries, width), or (queries, width), of float32, float16 or bfloat16.
    wq, wk, wv: (heads * d_k, width), (kv heads * d_k, width of y) and (kv heads * d_v, width of z); without wk and wv, wq has
        the rows of all three (in_proj_weight), and bq all three biases.
    wo: (width of the result, heads * d_v); None: the result is the concatenated heads.
    heads, kv_heads: how many there are; kv_heads is heads unless given.
    y, z: the tokens that keys and values are made of, (batch, keys, width); y is x unless given, and z is y.
    bq, bk, bv, bo: one number for each row of the weights.
    residual: of the result's shape, what is added to it.
    rope: how queries and keys are rotated.
    position_table: (positions, width), float32: rows that are added to the tokens by their position.
    cache: a KVCache that is no ring, to which the new keys and values are appended, and to all of which the queries attend.
        Positions go on from its lengths.
    causal: as of attention(), or "auto": "bottom-right" with a cache, as of KVCache.attend(), so that a prompt has the same bits
        in one piece and in several; else None. With a cache and a y, whose tokens may have no order, it must be given.
    window, scale, mask, bias, softcap, alibi, sinks, arith, threads, isa: as of attention().
    kv_lengths: (batch), how many of the keys exist; not with a cache, which has lengths of its own.
    q_starts, k_starts: (batch + 1), where the tokens of each entry begin in an x and a y (tokens, width).
    return_weights: also return the softmax's result, (batch, heads, queries, keys), which takes time and memory.
    out: the array to be written, of the result's shape, which may be x or the residual.
    linear_arith: the arithmetic of the projections and of wo, as of linear().

    >>> w = np.eye(8, dtype=np.float32)
    >>> rapt.mha(np.ones((1, 3, 8), np.float32), w, w, w, w, heads=2)[0, 0].tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    library = native.library()
    heads = whole(heads, "heads")
    kv_heads = heads if kv_heads is None else whole(kv_heads, "kv_heads")
    if heads < 1 or kv_heads < 1:
        raise ValueError(f"there are {heads} heads and {kv_heads} kv heads: one at least is needed")
    queries = _Tokens(x, "x")
    batch, q_len, width = queries.shape
    of_keys = queries if y is None else _Tokens(y, "y")
    of_values = of_keys if z is None else _Tokens(z, "z")
    if z is not None and y is None:
        raise ValueError("z is given without y")
    if of_keys.shape[0] != batch or of_values.shape[:2] != of_keys.shape[:2]:
        raise ValueError(
            f"x, y and z have {queries.shape[:2]}, {of_keys.shape[:2]} and {of_values.shape[:2]} entries and tokens")
    if cache is not None and not isinstance(cache, KVCache):
        raise TypeError(f"cache is a {type(cache).__name__}: a rapt.KVCache is needed")
    if isinstance(causal, str) and causal == "auto":
        if cache is not None and y is not None:
            raise ValueError('a cache and y are given without causal: "bottom-right" (y is the sequence that x is of) or None '
                             "(it is another one, as an encoder's) is needed")
        causal = None if cache is None else "bottom-right"
    keys, packed = of_keys.shape[1], wk is None and wv is None
    if not packed and (wk is None or wv is None):
        raise ValueError("one of wk and wv is given: both, or neither, are needed")
    q_weight = _Weight(wq, "wq", width)
    k_weight = q_weight if packed else _Weight(wk, "wk", of_keys.shape[2])
    v_weight = q_weight if packed else _Weight(wv, "wv", of_values.shape[2])
    if packed and q_weight.prepacked is not None:
        raise ValueError("wq has the rows of all three and is prepacked: prepack wq, wk and wv by themselves")
    d_k, d_v = _head_sizes(q_weight.rows, k_weight.rows, v_weight.rows, heads, kv_heads, packed)
    o_weight = None if wo is None else _Weight(wo, "wo", heads * d_v)
    out, o = _output(out, queries, heads * d_v if o_weight is None else o_weight.rows)

    options = Options(heads, causal, window, scale, mask, bias, softcap, alibi, sinks, isa)
    attention = library.new(native.Desc, batch=batch, heads=heads, kv_heads=kv_heads, q_len=q_len, kv_len=keys, d_k=d_k,
                            d_v=d_v, arith=arith_of(arith))
    inside = library.new(native.Args)
    desc = library.new(native.MhaDesc, attention=attention, x_width=width, out_width=o.shape[2], keys=keys, x=queries.layout,
                       out=o.layout, wq=q_weight.layout, packed=int(packed), arith=arith_of(linear_arith, "linear_arith"))
    args = library.new(native.MhaArgs, x=queries.address, out=o.address, wq=q_weight.address, wq_scales=q_weight.scales,
                       wq_prepacked=q_weight.prepacked, attention=inside)
    for name, tokens, given in (("y", of_keys, y), ("z", of_values, z)):
        if given is not None:
            setattr(desc, name, tokens.layout)
            setattr(desc, f"{name}_width", tokens.shape[2])
            setattr(args, name, tokens.address)
    for name, weight in (("wk", None if packed else k_weight), ("wv", None if packed else v_weight), ("wo", o_weight)):
        if weight is not None:
            setattr(desc, name, weight.layout)
            setattr(args, name, weight.address)
            setattr(args, f"{name}_scales", weight.scales)
            setattr(args, f"{name}_prepacked", weight.prepacked)
    rows = q_weight.rows
    biases = ("bq", bq, rows), ("bk", bk, k_weight.rows), ("bv", bv, v_weight.rows), ("bo", bo, o.shape[2])
    for name, vector, length in biases:
        _vector(args, name, vector, name, length)
    if packed and (bk is not None or bv is not None):
        raise ValueError("bk or bv is given beside packed weights, whose biases are all in bq")
    if residual is not None:
        r = _same_tokens(residual, "residual", queries, o.shape[2])
        desc.residual, args.residual = r.layout, r.address
    if rope is not None:
        checked_rope(rope).put_into(desc, args)
    if position_table is not None:
        table = reals(position_table, "position_table")
        if table.ndim != 2 or table.shape[1] != width:
            raise ValueError(f"position_table has shape {table.shape}, where (positions, {width}) is needed")
        desc.position_table, args.position_table, args.table_positions = 1, table, len(table)

    starts = starts_of(q_starts, k_starts)
    for name, some in starts.items():
        if queries.tensor.shape != (q_len, width):
            raise ValueError(f"x has shape {queries.tensor.shape}, where (tokens, width) is needed beside {name}")
        setattr(attention, name, some)
        attention.batch = batch = len(some) - 1
    entries = np.arange(batch, dtype=np.int32)
    counts = np.full(batch, keys, np.int32)
    if cache is not None and (starts or kv_lengths is not None):
        raise ValueError("a cache is given beside kv_lengths, q_starts or k_starts")
    reserved: Any = contextlib.nullcontext()
    if cache is not None:
        cache.check_projected(batch, kv_heads, d_k, d_v)
        reserved = cache.appending(entries, counts)
    with_weights = flag(return_weights, "return_weights")
    if with_weights and starts:
        raise ValueError("return_weights is asked for beside q_starts")
    work = queries.work * rows + of_keys.work * k_weight.rows + of_values.work * v_weight.rows
    attention.threads = threading_.threads_for(threads, work)
    with reserved as before:
        if cache is not None:
            inside.table = cache.put_into(attention, args, entries)
            args.k_cache, args.v_cache = cache.addresses
            args.starts, inside.kv_lengths = before, before + counts
        elif kv_lengths is not None:
            inside.kv_lengths = integers(kv_lengths, "kv_lengths", batch)
        options.put_into(attention, batch, heads, q_len, attention.kv_len,
                         exact=not starts and cache is None and kv_lengths is None)
        options.put_pointers(inside)
        weights = None
        if with_weights:
            weights = np.empty((batch, heads, q_len, attention.kv_len), np.float32)
            desc.weights = native.F32, weights.strides[0], weights.strides[1], weights.strides[2]
            args.weights = weights
            weights = weights[..., :keys if cache is None else int((before + counts).max(initial=0))]
        _run("rapt_mha", desc, args, threads, work)
    return (out, weights) if with_weights else out


def _head_sizes(q_rows: int, k_rows: int, v_rows: int, heads: int, kv_heads: int, packed: bool) -> tuple[int, int]:
    """d_k and d_v, of which packed weights have one."""
    if packed:
        d, rest = divmod(q_rows, heads + 2 * kv_heads)
        if rest:
            raise ValueError(f"wq has {q_rows} rows, which {heads} heads and 2 x {kv_heads} kv heads do not divide")
        return d, d
    for name, rows, of in (("wq", q_rows, heads), ("wk", k_rows, kv_heads), ("wv", v_rows, kv_heads)):
        if rows % of:
            raise ValueError(f"{name} has {rows} rows, which {of} heads do not divide")
    if q_rows // heads != k_rows // kv_heads:
        raise ValueError(f"wq has {q_rows // heads} channels for each head, and wk {k_rows // kv_heads}")
    return q_rows // heads, v_rows // kv_heads
