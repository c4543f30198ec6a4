# SPDX-License-Identifier: Apache-2.0
"""rapt's linear layers and norms of PyTorch's tensors, whose plans are kept: what rapt.linear does beside its work, most of
it the plan, takes many times as long, which a model of small layers feels."""
import functools
import struct
from typing import Any

import torch
from torch import Tensor

from . import _attention as attention_
from . import _native as native
from . import _threads as threading_
from ._layer import _ACTIVATIONS, PrepackedWeights, Weights

TYPES = {torch.float32: native.F32, torch.float16: native.F16, torch.bfloat16: native.BF16}
_BYTES = {torch.float32: 4, torch.float16: 2, torch.bfloat16: 2}
_ADDRESS = struct.Struct("=Q")


class _Arguments:
    """The arguments of a function of the library, but for addresses."""

    def __init__(self, struct: Any):
        self.bytes = bytes(struct)
        self.places = {name: getattr(type(struct), name).offset for name, _ in struct._fields_}

    def at(self, **addresses: int) -> bytes:
        filled = bytearray(self.bytes)
        for name, address in addresses.items():
            _ADDRESS.pack_into(filled, self.places[name], address)
        return bytes(filled)


@functools.lru_cache(maxsize=4096)
def _linear_plan(generation: int, tokens: int, width: int, rows: int, kind: int, weight: tuple[int, int],
                 gate: tuple[int, int] | None, activation: str | None, arith: str, threads: int) -> tuple[Any, int, _Arguments]:
    """The plan, the size of its workspace, and its arguments; weight and gate: type and bytes of a row."""
    library, size = native.library(), 4 if kind == native.F32 else 2
    desc = library.new(native.LinearDesc, batch=1, tokens=tokens, in_=width, out=rows, x=(kind, 0, 0, size * width),
                       y=(kind, 0, 0, size * rows), weight=(weight[0], 0, 0, weight[1]), activation=_ACTIVATIONS[activation],
                       arith=attention_.arith_of(arith))
    if gate is not None:
        desc.gate = gate[0], 0, 0, gate[1]
    plan = library.plan(desc)
    return plan, library.workspace_size(plan, threads), _Arguments(library.new(native.LinearArgs))


class Matrix:
    """Weights (out, in) as the library takes them: a tensor, a Weights (quantise_weights(), Weights.from_bytes()), or either one prepacked."""

    def __init__(self, weight: Any):
        self.prepacked = 0
        if isinstance(weight, PrepackedWeights):
            self.prepacked = weight.memory.ctypes.data
        self.kept = weight
        weight = weight.weight if isinstance(weight, PrepackedWeights) else weight
        self.scales = 0
        if isinstance(weight, Weights):
            self.rows, self.width = weight.shape
            self.layout, self.address = (weight._kind, weight.data.strides[0]), weight.data.ctypes.data
            self.scales = 0 if weight.scales is None else weight.scales.ctypes.data
        else:
            self.rows, self.width = weight.shape
            if weight.stride(1) != 1 or weight.stride(0) < self.width:
                weight = weight.contiguous()
            self.layout = TYPES[weight.dtype], _BYTES[weight.dtype] * max(weight.stride(0), self.width)
            self.address, self.tensor = weight.data_ptr(), weight


def _f32(t: Tensor | None) -> Tensor | None:
    return t if t is None or (t.dtype is torch.float32 and t.is_contiguous()) else t.to(torch.float32).contiguous()


def linear(x: Tensor, weight: Any, bias: Tensor | None = None, *, activation: str | None = None, gate: Any = None,
           gate_bias: Tensor | None = None, arith: str = "exact") -> Tensor:
    """rapt.linear, of tensors (..., in), without gradients. weight and gate are tensors (out, in) or Matrix."""
    weight = weight if isinstance(weight, Matrix) else Matrix(weight)
    gate = gate if gate is None or isinstance(gate, Matrix) else Matrix(gate)
    if x.shape[-1] != weight.width:
        raise RuntimeError(f"x has {x.shape[-1]} channels, where {weight.width} are needed")
    x = x if x.is_contiguous() else x.contiguous()
    tokens = x.numel() // weight.width
    y = torch.empty((*x.shape[:-1], weight.rows), dtype=x.dtype)
    if not tokens:
        return y
    threads = torch.get_num_threads() if x.numel() * weight.rows > threading_.SMALL else 1
    plan, size, arguments = _linear_plan(attention_.generation, tokens, weight.width, weight.rows, TYPES[x.dtype], weight.layout,
                                         None if gate is None else gate.layout, activation, arith, threads)
    bias, gate_bias = _f32(bias), _f32(gate_bias)
    workspace = threading_.workspace(size)
    addresses = {"x": x.data_ptr(), "weight": weight.address, "y": y.data_ptr(), "scales": weight.scales,
                 "prepacked": weight.prepacked, "workspace": workspace.address, "workspace_bytes": size}
    if bias is not None:
        addresses["bias"] = bias.data_ptr()
    if gate is not None:
        addresses |= {"gate": gate.address, "gate_scales": gate.scales, "gate_prepacked": gate.prepacked}
        if gate_bias is not None:
            addresses["gate_bias"] = gate_bias.data_ptr()
    threading_.run(native.library(), "rapt_linear", plan, arguments.at(**addresses), threads=threads)
    return y


@functools.lru_cache(maxsize=4096)
def _norm_arguments(tokens: int, channels: int, kind: int, epsilon: float) -> _Arguments:
    row = kind, 0, 0, channels * (4 if kind == native.F32 else 2)
    args = native.library().new(native.NormArgs, batch=1, tokens=tokens, channels=channels, x=row, y=row, epsilon=epsilon)
    return _Arguments(args)


def norm(family: str, x: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float) -> Tensor:
    """rapt.layer_norm or rapt.rms_norm, of tensors (..., channels), without gradients."""
    x = x if x.is_contiguous() else x.contiguous()
    y = torch.empty_like(x)
    if not x.numel():
        return y
    channels = x.shape[-1]
    weight, bias = _f32(weight), _f32(bias)
    addresses = {"from_": x.data_ptr(), "to": y.data_ptr()}
    if weight is not None:
        addresses["weight"] = weight.data_ptr()
    if bias is not None:
        addresses["bias"] = bias.data_ptr()
    arguments = _norm_arguments(x.numel() // channels, channels, TYPES[x.dtype], epsilon).at(**addresses)
    threads = torch.get_num_threads() if x.numel() > threading_.SMALL else 1
    threading_.run(native.library(), f"rapt_{family}", arguments, threads=threads)
    return y
