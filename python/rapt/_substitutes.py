# SPDX-License-Identifier: Apache-2.0
"""PyTorch's operators by what their results' bits depend on, and ours in place of those that differ from CPU to CPU.

judge() says of a call whether its bits are the same everywhere; substitute() computes one that is not, of rapt's operations
(docs/order.md), of elementary functions (_elementary) and of operations that IEEE 754 defines, with one rounding each."""
import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import _elementary as elementary
from . import _masks as masks
from . import _products as products

# ---- Judgements --------------------------------------------------------------------------------------------------------------

_ONE_ROUNDING = "one rounding of IEEE 754 for each element"
_SELECTS = "selects, compares or moves elements"
_IN_ORDER = "adds one element after another"
_INTEGERS = "computes integers"
_OURS = "computed by rapt"

# Operators of floating-point tensors whose bits are the same everywhere, without "_" for those that work in place.
_SAME = {
    _ONE_ROUNDING: """add sub mul div neg abs reciprocal square _to_copy to ceil floor round trunc leaky_relu threshold
        _prelu_kernel""",
    _SELECTS: """copy clone contiguous cat stack index index_select index_put index_copy index_fill gather scatter slice_scatter
        select_scatter masked_fill masked_select masked_scatter where fill zero zeros ones full empty empty_like zeros_like
        ones_like full_like new_empty new_zeros new_ones new_full empty_strided new_empty_strided scalar_tensor embedding
        repeat tril triu flip roll constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d clamp
        clamp_min clamp_max hardtanh maximum minimum max min amax amin argmax argmin topk kthvalue sort sign sgn isnan isinf
        isfinite nan_to_num eq ne lt le gt ge logical_not logical_and logical_or all any nonzero unfold im2col max_pool1d
        max_pool2d max_pool2d_with_indices lift_fresh lift_fresh_copy _local_scalar_dense item equal searchsorted bucketize
        one_hot copysign unsafe_split unsafe_split_with_sizes unsafe_chunk transpose t squeeze unsqueeze swapaxes
        diagonal_copy unfold_copy _reshape_copy _unsafe_view set_ resize _index_put_impl pixel_shuffle
        pixel_unshuffle channel_shuffle upsample_nearest1d upsample_nearest2d arange complex""",
    _IN_ORDER: "cumsum index_add histc",
}
_WHY_SAME = {name: why for why, names in _SAME.items() for name in names.split()}

# Why others are not the same everywhere; of those that are not here it is not known.
_SUMS = "sums in an order that depends on the instruction set, the threads or the batch"
_FUNCTIONS = "a library's function, which depends on the instruction set"
_CONTRACTED = "a product and a sum, rounded once or twice, by the instruction set"
_RANDOM = "random numbers"
_DIFFERENT = {
    _SUMS: """mm bmm addmm baddbmm addmv mv dot linear matmul einsum _grouped_mm convolution mkldnn_convolution sum mean var std
        var_mean std_mean prod norm linalg_vector_norm logsumexp _softmax _log_softmax _safe_softmax native_layer_norm
        native_group_norm native_batch_norm _fused_rms_norm cumprod logcumsumexp avg_pool1d avg_pool2d avg_pool3d
        _adaptive_avg_pool2d _adaptive_avg_pool3d _embedding_bag scatter_add scatter_reduce index_reduce trace _cdist_forward
        _scaled_dot_product_flash_attention_for_cpu mkldnn_rnn_layer _native_multi_head_attention _transformer_encoder_layer_fwd _fft_r2c
        _fft_c2r _fft_c2c""",
    _FUNCTIONS: """sqrt exp exp2 expm1 log log2 log10 log1p sin cos tan tanh sinh cosh asin acos atan atan2 sigmoid silu gelu mish
        softplus erf erfc erfinv elu celu selu glu log_sigmoid_forward logaddexp pow hardswish hardsigmoid polar logit special_expit
        i0 lgamma digamma fmod remainder floor_divide""",
    _CONTRACTED: """addcmul addcdiv lerp rsqrt rsub upsample_linear1d upsample_bilinear2d upsample_bicubic2d grid_sampler_2d
        linspace _upsample_bilinear2d_aa _upsample_bicubic2d_aa""",
    _RANDOM: "bernoulli multinomial normal uniform rand randn rand_like randn_like randperm randint exponential",
}
_WHY_DIFFERENT = {name: why for why, names in _DIFFERENT.items() for name in names.split()}
_ALPHA = frozenset(("add", "sub", "rsub", "index_add"))  # which may multiply first


@functools.cache
def base_name(operator: Any) -> str:
    """An operator's name without what says that it works in place, or writes to out: that of add_ is add."""
    name: str = operator._schema.name.removeprefix("aten::")
    return name if name.startswith("_") and name.endswith("__") else name.removesuffix("_")


@functools.cache
def _is_view(operator: Any) -> bool:
    """Whether all that an operator returns lies in its arguments' memory, unchanged."""
    returns = operator._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _tensors(x: Any) -> list[Tensor]:
    """Those in arguments or results, which are nested in lists at most."""
    if isinstance(x, Tensor):
        return [x]
    return [t for y in x for t in _tensors(y)] if isinstance(x, (list, tuple)) else []


def judge(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> tuple[bool, str]:
    """Whether a call's bits are the same on every CPU, for any number of threads and in any batch, and why."""
    namespace = operator.namespace
    if namespace == "rapt":
        return True, _OURS
    if namespace != "aten":
        return namespace in ("prim", "profiler"), "an operator of another library"
    if _is_view(operator):
        return True, _SELECTS
    name = base_name(operator)
    given, results = _tensors([*args, *kwargs.values()]), _tensors(result)
    if name in ("index_put", "scatter", "_index_put_impl") and (
            (len(args) > 3 and args[3] is True) or kwargs.get("accumulate") or kwargs.get("reduce")):
        return False, _SUMS
    if name in ("mul", "div", "abs", "reciprocal") and any(t.is_complex() for t in (*given, *results)):
        return False, _CONTRACTED
    if name in _ALPHA and _alpha(args, kwargs) != 1:
        return False, _CONTRACTED
    if name == "div" and kwargs.get("rounding_mode") is not None:
        return not any(t.is_floating_point() for t in given), _INTEGERS
    if name == "arange" and not all(isinstance(x, int) or x == int(x) for x in args):
        return False, _CONTRACTED
    if name in _WHY_SAME:
        return True, _WHY_SAME[name]
    if name in _DIFFERENT[_RANDOM]:
        return False, _RANDOM
    floating = [t for t in (*given, *results) if t.is_floating_point() or t.is_complex()]
    if not floating:
        return True, _INTEGERS
    return False, _WHY_DIFFERENT.get(name, "not known to have the same bits")


def _alpha(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return kwargs.get("alpha", args[2] if len(args) > 2 and not isinstance(args[2], Tensor) else 1)


# ---- Sums --------------------------------------------------------------------------------------------------------------------

_SERVED = products.TYPES.keys()


class NotServed(Exception):
    """What is raised by a substitute that has no way for its arguments: PyTorch's own operator runs, and is judged."""


def _served(*tensors: Tensor | None) -> None:
    if any(t is not None and t.dtype not in _SERVED for t in tensors):
        raise NotServed


def _mm(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a b + bias, of matrices; or of integers by PyTorch."""
    _served(a, b)
    if a.shape[1] == 1:
        found = a * b
        return found if bias is None else found + bias
    if not a.numel() or not b.numel():
        found = a.new_zeros(a.shape[0], b.shape[1])
        return found if bias is None else found + bias
    return products.linear(a, b.t(), bias)


def _addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if beta == alpha == 1 and bias.dim() == 1 and len(bias) == b.shape[1]:
        return _mm(a, b, bias)
    return _scaled_sum(bias, beta, _mm(a, b), alpha)


def _scaled_sum(x: Tensor, beta: float, product: Tensor, alpha: float) -> Tensor:
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else product + (x if beta == 1 else x * beta)


def _bmm(a: Tensor, b: Tensor, out_dtype: Any = None) -> Tensor:
    _served(a, b)
    if out_dtype is not None:
        raise NotServed
    if a.shape[2] == 1:
        return a * b
    out = a.new_empty(a.shape[0], a.shape[1], b.shape[2])
    for x, y, to in zip(a, b, out):
        to.copy_(_mm(x, y))
    return out


def _baddbmm(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _scaled_sum(x, beta, _bmm(a, b), alpha)


def _mv(a: Tensor, x: Tensor) -> Tensor:
    return _mm(a, x[:, None])[:, 0]


def _addmv(bias: Tensor, a: Tensor, x: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _scaled_sum(bias, beta, _mv(a, x), alpha)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return _mm(a[None], b[:, None])[0, 0]


def _grouped_mm(a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: Any = None) -> Tensor:
    """Rows of a, in groups that end at offs, each by its matrix of b."""
    if a.dim() != 2 or b.dim() != 3 or offs is None or bias is not None or out_dtype not in (None, a.dtype):
        raise NotServed
    out, first = a.new_zeros(a.shape[0], b.shape[2]), 0
    for end, matrix in zip(offs.tolist(), b):
        if end > first:
            out[first:end] = _mm(a[first:end], matrix)
        first = end
    return out


def _dims(x: Tensor, dim: Any) -> list[int]:
    """What a reduction's argument says, as numbers from 0 on."""
    dims = list(range(x.dim())) if dim is None or dim == [] else [dim] if isinstance(dim, int) else list(dim)
    return sorted(d % max(x.dim(), 1) for d in dims)


def _reduced(x: Tensor, dim: Any, keepdim: bool, f: Callable[[Tensor], Tensor]) -> Tensor:
    """f of rows (any, elements) of f32, one for each place of the other dimensions; f32."""
    dims = _dims(x, dim)
    others = [d for d in range(x.dim()) if d not in dims]
    rows = x.to(torch.float32).permute(*others, *dims).reshape(math.prod(x.shape[d] for d in others),
                                                               math.prod(x.shape[d] for d in dims))
    shape = [1 if d in dims else n for d, n in enumerate(x.shape) if keepdim or d not in dims]
    return f(rows).reshape(shape)


def sum_of_rows(rows: Tensor) -> Tensor:
    """A linear layer's, with weights of 1: docs/order.md, K.1."""
    if not rows.shape[1]:
        return rows.new_zeros(rows.shape[0])
    return products.linear(rows, rows.new_ones(1, rows.shape[1]))[:, 0]


def _sum(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    if not x.is_floating_point() and not (dtype or x.dtype).is_floating_point:
        raise NotServed  # integers, whose sums have no order
    kind = dtype or x.dtype
    if kind not in _SERVED or (x.is_floating_point() and x.dtype not in _SERVED):
        raise NotServed
    return _reduced(x, dim, keepdim, sum_of_rows).to(kind)


def _mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    kind = dtype or x.dtype
    if kind not in _SERVED or (x.is_floating_point() and x.dtype not in _SERVED):
        raise NotServed
    return _reduced(x, dim, keepdim, lambda rows: sum_of_rows(rows) / rows.shape[1]).to(kind)


def _variance(x: Tensor, dim: Any = None, *, correction: float | None = 1, keepdim: bool = False) -> Tensor:
    _served(x)

    def of_rows(rows: Tensor) -> Tensor:
        off = rows - (sum_of_rows(rows) / rows.shape[1])[:, None]
        return sum_of_rows(off * off) / max(0, rows.shape[1] - (1 if correction is None else correction))
    return _reduced(x, dim, keepdim, of_rows).to(x.dtype)


def _vector_norm(x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    _served(x)
    if ord == math.inf:
        return x.abs().amax(_dims(x, dim), keepdim)
    if ord not in (1, 2):
        raise NotServed
    found = _reduced(x, dim, keepdim, lambda rows: sum_of_rows(rows.abs()) if ord == 1 else elementary.sqrt(sum_of_rows(rows * rows)))
    return found.to(dtype or x.dtype)


def _softmax_parts(x: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of f32: what is below the largest element, its power of e, and the sum of these."""
    if x.dtype not in _SERVED:
        raise NotServed
    x = x.to(torch.float32)
    below = x - x.amax(dim, keepdim=True)
    powers = elementary.exp(below)
    return below, powers, _reduced(powers, dim, True, sum_of_rows)


def _softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    if not x.numel():
        raise NotServed
    _, powers, total = _softmax_parts(x, dim)
    return (powers / total).to(torch.float32 if half_to_float else x.dtype)


def _safe_softmax(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """0 for rows of -inf."""
    return _softmax(x, dim).masked_fill_((x == -math.inf).all(dim, keepdim=True), 0).to(dtype or x.dtype)


def _log_softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    below, _, total = _softmax_parts(x, dim)
    return (below - elementary.log(total)).to(torch.float32 if half_to_float else x.dtype)


def _logsumexp(x: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    _served(x)

    def of_rows(rows: Tensor) -> Tensor:
        largest = rows.amax(1)
        finite = torch.where(largest.abs() == math.inf, 0, largest)
        return elementary.log(sum_of_rows(elementary.exp(rows - finite[:, None]))) + finite
    return _reduced(x, dim, keepdim, of_rows).to(x.dtype)


# ---- Norms and convolutions --------------------------------------------------------------------------------------------------


def _layer_norm(x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, epsilon: float) -> tuple[Tensor, ...]:
    _served(x)
    weight, bias = (None if t is None else t.reshape(-1) for t in (weight, bias))
    y = products.norm("layer_norm", x.reshape(-1, math.prod(shape)), weight, bias, epsilon).view(x.shape)
    none = x.new_empty(0)  # of the backward pass, which there is not
    return y, none, none


def _rms_norm(x: Tensor, shape: list[int], weight: Tensor | None, epsilon: float | None) -> tuple[Tensor, ...]:
    _served(x)
    epsilon = torch.finfo(x.dtype).eps if epsilon is None else epsilon
    y = products.norm("rms_norm", x.reshape(-1, math.prod(shape)), None if weight is None else weight.reshape(-1), None, epsilon)
    return y.view(x.shape), x.new_empty(0)


def _by_channel(t: Tensor, x: Tensor) -> Tensor:
    """Shaped to be broadcast over x, (batch, channels, ...)."""
    return t.reshape(1, -1, *[1] * (x.dim() - 2))


def _group_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, batch: int, channels: int, size: int, groups: int,
                epsilon: float) -> tuple[Tensor, ...]:
    _served(x)
    y = products.norm("layer_norm", x.reshape(batch * groups, -1), None, None, epsilon).view(x.shape)
    y = y if weight is None else y * _by_channel(weight, x)
    none = x.new_empty(0)
    return y if bias is None else y + _by_channel(bias, x), none, none


def _batch_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, variance: Tensor | None,
                *rest: Any) -> tuple[Tensor, ...]:
    """rest: training, unless the operator has none; momentum, epsilon."""
    if mean is None or variance is None or (len(rest) == 3 and rest[0]):
        raise NotServed  # in training, or always by the batch
    factor = 1 / elementary.sqrt(variance + rest[-1])
    y = (x - _by_channel(mean, x)) * _by_channel(factor if weight is None else factor * weight, x)
    none = x.new_empty(0)
    return y if bias is None else y + _by_channel(bias, x), none, none


def _patches(x: Tensor, kernel: tuple[int, ...], stride: list[int], padding: list[int], dilation: list[int]) -> Tensor:
    """What each place of a convolution's output sees: (batch, channels, *places, *kernel)."""
    x = F.pad(x, [p for size in reversed(padding) for p in (size, size)]).contiguous()
    places = [(n - d * (k - 1) - 1) // s + 1 for n, d, k, s in zip(x.shape[2:], dilation, kernel, stride)]
    steps = x.stride()[2:]
    return x.as_strided((*x.shape[:2], *places, *kernel), (
        *x.stride()[:2], *[a * s for a, s in zip(steps, stride)], *[a * d for a, d in zip(steps, dilation)]))


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], dilation: list[int],
                 transposed: bool, output_padding: list[int], groups: int) -> Tensor:
    """A product of the weights and of what each place sees; of groups of one channel, a sum that begins with the first tap."""
    _served(x, weight)
    n = x.dim() - 2
    stride, padding, dilation, output_padding = (
        list(a) * (n if len(a) == 1 else 1) for a in (stride, padding, dilation, output_padding))
    kernel = tuple(weight.shape[2:])
    if transposed:  # a convolution of what has zeros in between, with weights from behind
        if any(d * (k - 1) < p for d, k, p in zip(dilation, kernel, padding)):
            raise NotServed
        spread = x.new_zeros(*x.shape[:2], *[(size - 1) * s + 1 + o for size, s, o in zip(x.shape[2:], stride, output_padding)])
        spread[(slice(None), slice(None), *[slice(0, (size - 1) * s + 1, s) for size, s in zip(x.shape[2:], stride)])] = x
        per_group = weight.shape[1]
        turned = weight.flip(*range(2, weight.dim())).unflatten(0, (groups, -1)).transpose(1, 2).reshape(
            groups * per_group, -1, *kernel)
        padding = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding)]
        return _convolution(spread, turned, bias, [1] * n, padding, dilation, False, [0] * n, groups)
    seen = _patches(x, kernel, stride, padding, dilation)
    batch, places = seen.shape[0], seen.shape[2:2 + n]
    out_channels, per_group = weight.shape[0] // groups, weight.shape[1]
    if per_group == 1 and groups > 1:
        seen = seen.flatten(2 + n).repeat_interleave(out_channels, 1)
        taps = weight.reshape(weight.shape[0], -1)
        total = seen[..., 0] * _by_channel(taps[:, 0], x)
        for tap in range(1, taps.shape[1]):
            total = total + seen[..., tap] * _by_channel(taps[:, tap], x)
        return total if bias is None else total + _by_channel(bias, x)
    # (groups, batch, *places, channels, *kernel)
    rows = seen.unflatten(1, (groups, per_group)).movedim(1, 0).movedim(2, 2 + n)
    matrices = weight.reshape(groups, out_channels, -1)
    parts = [products.linear(r.reshape(-1, w.shape[1]), w, b) for r, w, b in zip(
        rows, matrices, [None] * groups if bias is None else bias.view(groups, -1))]
    return torch.cat(parts, 1).view(batch, *places, -1).movedim(-1, 1).contiguous()


def _mask_options(mask: Tensor, query: Tensor, key: Tensor) -> dict[str, Tensor]:
    """Padding as how many keys there are, and from which on, so that a sequence has the bits that it has without."""
    bools = mask if mask.dtype is torch.bool else masks.as_bools(mask)
    if bools is None:
        return {"bias": mask}
    if bools.shape[-2] > 1 and bool((bools == bools[..., :1, :]).all()):
        bools = bools[..., :1, :]
    if bools.shape == (query.shape[0], 1, 1, key.shape[2]) and (runs := masks.runs_of(bools[:, 0, 0])) is not None:
        return masks.of_runs(*runs)
    return {"mask": bools}


def _flash_attention(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
                     attn_mask: Tensor | None = None, scale: float | None = None) -> tuple[Tensor, Tensor]:
    _served(query, key, value)
    if dropout_p:
        raise NotServed
    options = {} if attn_mask is None else _mask_options(attn_mask, query, key)
    dense = [t if t.stride(-1) == 1 else t.contiguous() for t in (query, key, value)]
    causal = "top-left" if is_causal else None
    found: tuple[Tensor, Tensor] = torch.ops.rapt.attention_lse(*dense, causal=causal, scale=scale, **options)
    return found


# ---- Elements ----------------------------------------------------------------------------------------------------------------


def _of_real(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def checked(x: Tensor) -> Tensor:
        if x.is_complex():
            raise NotServed
        return f(x)
    return checked


def _gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return elementary.gelu_tanh(x) if approximate == "tanh" else elementary.gelu(x)


def _softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    scaled = x if beta == 1 else x * beta
    found = elementary.softplus(scaled)
    return torch.where(scaled > threshold, x, found if beta == 1 else found / beta)


def _elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    below = elementary.expm1(x * input_scale) * alpha
    return torch.where(x > 0, x, below) * scale


def _glu(x: Tensor, dim: int = -1) -> Tensor:
    a, b = x.chunk(2, dim)
    return a * elementary.sigmoid(b)


def _hardsigmoid(x: Tensor) -> Tensor:
    return (x + 3).clamp(0, 6) / 6


def _power(x: Any, exponent: Any) -> Tensor:
    if isinstance(x, Tensor) and x.is_floating_point() and isinstance(exponent, (int, float)):
        return elementary.power(x, float(exponent))
    if isinstance(exponent, Tensor) and isinstance(x, (int, float)) and x > 0 and exponent.is_floating_point():
        return elementary.power_of(float(x), exponent)
    if isinstance(x, Tensor) and isinstance(exponent, Tensor) and x.numel() == 1 and float(x) > 0 and (
            x.is_floating_point() or exponent.is_floating_point()):  # ALiBi's slopes
        kind = torch.result_type(x, exponent)
        return elementary.power_of(float(x), exponent.to(kind))
    raise NotServed


def _add(x: Any, y: Any, *, alpha: float = 1) -> Tensor:
    if alpha == 1:
        raise NotServed  # which is judged the same
    return torch.add(x, y * alpha)


def _subtract(x: Any, y: Any, *, alpha: float = 1) -> Tensor:
    if alpha == 1:
        raise NotServed
    return torch.sub(x, y * alpha)


def _subtract_from(x: Any, y: Any, alpha: float = 1) -> Tensor:
    return torch.sub(torch.as_tensor(y, dtype=x.dtype), x if alpha == 1 else x * alpha)


def _addcmul(x: Tensor, a: Tensor, b: Tensor, *, value: float = 1) -> Tensor:
    return x + (a * b if value == 1 else a * b * value)


def _addcdiv(x: Tensor, a: Tensor, b: Tensor, *, value: float = 1) -> Tensor:
    return x + (a / b if value == 1 else a / b * value)


def _lerp(start: Tensor, end: Tensor, weight: Any) -> Tensor:
    return start + (end - start) * weight


def _multiply(x: Any, y: Any) -> Tensor:
    """Of complex numbers, by their parts."""
    if not all(isinstance(t, Tensor) and t.is_complex() for t in (x, y)):
        raise NotServed
    a, b, c, d = x.real, x.imag, y.real, y.imag
    return torch.complex(a * c - b * d, a * d + b * c)


def _polar(size: Tensor, angle: Tensor) -> Tensor:
    return torch.complex(size * elementary.cos(angle), size * elementary.sin(angle))


def _sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """Equal elements keep their order."""
    return torch.sort(x, stable=True, dim=dim, descending=descending)


_OF_ELEMENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: x.masked_fill(x <= 0, 0),
    "exp": elementary.exp, "expm1": elementary.expm1, "log": elementary.log, "log1p": elementary.log1p, "tanh": elementary.tanh,
    "sigmoid": elementary.sigmoid, "silu": elementary.silu, "erf": elementary.erf, "sin": elementary.sin, "cos": elementary.cos,
    "sqrt": elementary.sqrt, "rsqrt": lambda x: 1 / elementary.sqrt(x),
    "hardsigmoid": _hardsigmoid, "hardswish": lambda x: x * _hardsigmoid(x),
    "mish": lambda x: x * elementary.tanh(elementary.softplus(x)), "exp2": functools.partial(elementary.power_of, 2.0),
}
_SUBSTITUTES: dict[str, Callable[..., Any]] = {
    "mm": _mm, "addmm": _addmm, "bmm": _bmm, "baddbmm": _baddbmm, "mv": _mv, "addmv": _addmv, "dot": _dot,
    "_grouped_mm": _grouped_mm,
    "sum": _sum, "mean": _mean, "var": _variance, "std": lambda *args, **kwargs: elementary.sqrt(_variance(*args, **kwargs)),
    "var_mean": lambda x, dim=None, **kwargs: (_variance(x, dim, **kwargs), _mean(x, dim, kwargs.get("keepdim", False))),
    "linalg_vector_norm": _vector_norm, "_softmax": _softmax, "_safe_softmax": _safe_softmax, "_log_softmax": _log_softmax,
    "logsumexp": _logsumexp, "native_layer_norm": _layer_norm, "_fused_rms_norm": _rms_norm, "native_group_norm": _group_norm,
    "native_batch_norm": _batch_norm, "_native_batch_norm_legit_no_training": _batch_norm, "convolution": _convolution,
    "_scaled_dot_product_flash_attention_for_cpu": _flash_attention,
    **{name: _of_real(f) for name, f in _OF_ELEMENTS.items()},
    "log_sigmoid_forward": lambda x: (-elementary.softplus(-x), x.new_empty(0)),
    "gelu": _gelu, "softplus": _softplus, "elu": _elu, "glu": _glu, "pow": _power, "add": _add, "sub": _subtract,
    "rsub": _subtract_from,
    "addcmul": _addcmul, "addcdiv": _addcdiv, "lerp": _lerp, "mul": _multiply, "polar": _polar, "sort": _sort,
}


@functools.cache
def substitute(operator: Any) -> Callable[..., Any] | None:
    """Ours, which raises NotServed where PyTorch's own has to run; None where there is none. It does what the operator does with
    out, or in place."""
    if operator.namespace != "aten":
        return None
    ours = _SUBSTITUTES.get(base_name(operator))
    if ours is None or (base_name(operator) == "sort" and "stable" in [a.name for a in operator._schema.arguments]):
        return None
    if operator._schema.name.endswith("_") and not operator._schema.name.endswith("__"):
        return lambda x, *args, **kwargs: x.copy_(ours(x, *args, **kwargs))

    def with_out(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        found = ours(*args, **kwargs)
        return found if out is None else out.resize_(found.shape).copy_(found)
    return with_out
