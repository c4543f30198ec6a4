# SPDX-License-Identifier: Apache-2.0
"""rapt in PyTorch, in two ways.

torch.ops.rapt.attention and attention_lse take the options of rapt.attention, and compile and export as any operator does.
Schemas of operators have no unions: window is a pair, alibi and every list of numbers a tensor, and isa, threads, out and return_lse
are not there (attention_lse returns the log-sum-exp). They have no gradients. They
also take ring_starts (batch), the number of each entry's first key, behind which the others follow and those before it come
last, and q_offsets (batch), the position of each entry's first query among its keys:

>>> import torch, rapt.torch
>>> q = k = v = torch.ones(1, 2, 3, 4)
>>> torch.ops.rapt.attention(q, k, v, causal="bottom-right").shape
torch.Size([1, 2, 3, 4])

enable() puts rapt under F.scaled_dot_product_attention on CPUs, so that whatever calls it gains without a change, with
gradients, which PyTorch computes as ever from the log-sum-exp:

>>> with rapt.torch.enabled():
...     _ = torch.nn.functional.scaled_dot_product_attention(q, k, v)
>>> rapt.torch.stats()["taken"]
1
"""
import contextlib
import ctypes
import functools
import os
import pathlib
import platform
import struct
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

try:
    import torch
except ImportError as error:
    raise ImportError("rapt.torch needs PyTorch 2.9 or newer (pip install torch)") from error
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9):
    raise ImportError(f"rapt.torch needs PyTorch 2.9 or newer, and {torch.__version__} is installed")

from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from . import _attention as attention_
from . import _isa as isa_
from . import _native as native
from . import _threads as threading_
from ._arguments import flag, float_arith, shown
from ._context_parallel import context_parallel
from ._report import Report, report_on
from ._reproducible import Reproducibility, check_module, make_reproducible
from ._tensor import (ELEMENT_BYTES, integers, is_plain_torch, refusal_of_torch, refuse_torch_gradients, tensor, torch_address,
                      torch_bytes)

__all__ = ["context_parallel", "default_types", "disable", "enable", "enabled", "report", "reproducible", "stats"]

# ---- Threads -----------------------------------------------------------------------------------------------------------------


def _openmp() -> tuple[Any, Any] | None:
    """A parallel_for that runs on PyTorch's own threads, and its pool: rapt_openmp_for, given the functions of the OpenMP
    runtime that PyTorch is linked with. None where PyTorch has threads of another kind."""
    library = native.library().c
    found = list((pathlib.Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"))
    if not found or not hasattr(library, "rapt_openmp_for") or "backend: OpenMP" not in torch.__config__.parallel_info():
        return None
    runtime = ctypes.CDLL(os.fspath(found[0]))  # whose symbols are also those of the libraries that it is linked with
    try:
        functions = [ctypes.cast(runtime[name], ctypes.c_void_p).value
                     for name in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")]
    except AttributeError:
        return None
    return ctypes.cast(library.rapt_openmp_for, ctypes.c_void_p), (ctypes.c_void_p * 3)(*functions)


# From here on, all calls of this process, those with NumPy's arrays too, run on PyTorch's threads: those of a second pool would
# wait for the same CPUs, for each pool's stay awake for a while after their work.
threading_.host = _openmp()

# ---- Calls -------------------------------------------------------------------------------------------------------------------

_SLOTS = {name: getattr(native.Args, name).offset // 8 for name, _ in native.Args._fields_}
_WORDS = struct.Struct(f"={ctypes.sizeof(native.Args) // 8}Q")  # a rapt_args, whose fields have 8 bytes each


@functools.cache
def _blank() -> list[int]:
    """The words of a rapt_args without tensors."""
    return list(_WORDS.unpack(bytes(native.library().new(native.Args))))


class _Planned:
    """A problem that was checked and planned, for tensors of these shapes, strides and types. It does what a Plan of
    rapt.attention does, in half the time, which beside PyTorch's own kernel matters for small tensors."""
    __slots__ = "plan", "threads", "bytes", "sizes"

    def __init__(self, call: attention_.Call, out: torch.Tensor, lse: torch.Tensor | None, threads: int):
        """lse is (batch, heads, queries), in any order in memory."""
        library, problem = native.library(), attention_._Problem(call)
        self.threads = threads if problem.work > threading_.SMALL else 1
        desc = problem.desc(tensor(out, "out"), False, self.threads)
        if lse is not None:
            desc.lse = native.F32, *[4 * stride for stride in ((0, *lse.stride()) if lse.dim() == 2 else lse.stride())]
        self.plan = library.plan(desc)
        size = ctypes.c_size_t()
        library.c.rapt_workspace_size(self.plan, self.threads, ctypes.byref(size))
        self.bytes = size.value
        self.sizes = {attention_._POINTERS[name]: torch_bytes(t.shape, t.strides, ELEMENT_BYTES[t.type])
                      for name, t in call.tensors.items()}

    def addresses(self, **tensors: torch.Tensor | None) -> dict[str, int]:
        """Where these of the problem's tensors lie, by their names in rapt_args."""
        return {name: torch_address(t, name, self.sizes[name]) for name, t in tensors.items() if t is not None}

    def run(self, **addresses: int) -> None:
        words = _blank().copy()
        workspace = threading_.workspace(self.bytes)
        words[_SLOTS["workspace"]], words[_SLOTS["workspace_bytes"]] = workspace.address, self.bytes
        for name, address in addresses.items():
            words[_SLOTS[name]] = address
        threading_.run(native.library(), "rapt", self.plan, _WORDS.pack(*words), threads=self.threads)


def _of(t: torch.Tensor | None) -> tuple[Any, ...] | None:
    """What a plan depends on of a tensor."""
    return None if t is None else (t.dtype, t.shape, t.stride())


# ---- Operators ---------------------------------------------------------------------------------------------------------------

_OPTIONS = ('*, str layout="bhsd", str? causal=None, int[]? window=None, float? scale=None, Tensor? mask=None, '
            'Tensor? bias=None, float? softcap=None, Tensor? alibi=None, Tensor? sinks=None, Tensor? kv_lengths=None, '
            'Tensor? q_starts=None, Tensor? k_starts=None, Tensor? page_table=None, Tensor? k_scales=None, '
            'Tensor? v_scales=None, Tensor? ring_starts=None, Tensor? q_offsets=None, str arith="exact"')
_operators = torch.library.Library("rapt", "DEF")
_operators.define(f"attention(Tensor query, Tensor key, Tensor value, {_OPTIONS}) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
_operators.define(f"attention_lse(Tensor query, Tensor key, Tensor value, {_OPTIONS}) -> (Tensor, Tensor)",
                  tags=torch.Tag.pt2_compliant_tag)


def _results(query: torch.Tensor, value: torch.Tensor, layout: str, with_lse: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """New tensors for the result, whose tokens lie before its heads in memory as the next layer wants them, and for the
    log-sum-exp, (batch, heads, queries)."""
    shape = *query.shape[:-1], value.shape[-1]
    heads = len(shape) - 3
    if layout == "bhsd":
        order = (*range(heads), heads + 1, heads, heads + 2)
        out = torch.empty_permuted(shape, order, dtype=query.dtype, device=query.device)
        rows = shape[:-1]
    else:
        out = query.new_empty(shape)
        rows = *shape[:heads], shape[heads + 1], shape[heads]
    return out, query.new_empty(rows, dtype=torch.float32) if with_lse else None


def _entries(t: torch.Tensor | None, name: str) -> torch.Tensor | None:
    """A number for each entry, as the library wants it."""
    if t is None or (t.dtype is torch.int32 and t.dim() == 1 and t.is_contiguous()):
        return t
    return torch.from_numpy(integers(t, name))


def _plain_keys() -> int:
    """The bits of a call's dispatch keys that say no more than that its tensors are a CPU's."""
    plain = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    for key in ("AutogradCPU", "ADInplaceOrView", "AutocastCPU"):
        plain = plain.add(getattr(torch._C.DispatchKey, key))
    return int(plain.raw_repr())


_PLAIN_KEYS = _plain_keys()
_forward = torch.autograd.forward_ad


def _is_plain(keys: Any) -> bool:
    """Whether the tensors of a call can be used where they lie. Not where one has a negative bit, is sparse, or of a subclass; nor
    where somebody works on operators while they are called: a TorchDispatchMode, such as a tracer's, a transform of torch.func,
    forward-mode derivatives."""
    return keys.raw_repr() | _PLAIN_KEYS == _PLAIN_KEYS and _forward._current_level < 0


def _no_gradients(**tensors: Any) -> None:
    """For tensors among the arguments of an operator."""
    for name, t in tensors.items():
        if isinstance(t, torch.Tensor):
            refuse_torch_gradients(t, name, "rapt::attention has no gradients: call it under torch.no_grad(), or "
                                            "F.scaled_dot_product_attention with rapt.torch.enabled()")


def _check_rank(query: torch.Tensor) -> None:
    if query.dim() not in (3, 4):
        raise ValueError(f"query has {query.dim()} dimensions, where 3 or 4 are needed")


def _attend(with_lse: bool, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, layout: str = "bhsd",
            causal: Any = None, window: Any = None, scale: float | None = None,
            mask: torch.Tensor | None = None, bias: torch.Tensor | None = None, softcap: float | None = None,
            alibi: torch.Tensor | None = None, sinks: torch.Tensor | None = None, kv_lengths: torch.Tensor | None = None,
            q_starts: torch.Tensor | None = None, k_starts: torch.Tensor | None = None, page_table: torch.Tensor | None = None,
            k_scales: torch.Tensor | None = None, v_scales: torch.Tensor | None = None, ring_starts: torch.Tensor | None = None,
            q_offsets: torch.Tensor | None = None, arith: str = "exact") -> tuple[torch.Tensor, torch.Tensor | None]:
    if torch.is_grad_enabled():
        for t in (query, key, value, bias, sinks, alibi, k_scales, v_scales):
            if t is not None and t.requires_grad:
                _no_gradients(query=query, key=key, value=value, bias=bias, sinks=sinks, alibi=alibi, k_scales=k_scales,
                              v_scales=v_scales)
    _check_rank(query)
    kv_lengths = _entries(kv_lengths, "kv_lengths")
    places = {"ring_starts": _entries(ring_starts, "ring_starts"), "q_offsets": _entries(q_offsets, "q_offsets")}
    window = None if window is None else tuple(window)
    key_of_plan = ("torch.ops.rapt", attention_.generation, _of(query), _of(key), _of(value), layout, causal, window, scale, _of(mask), _of(bias),
                   softcap, _of(alibi), _of(sinks), _of(kv_lengths), _of(k_scales), _of(v_scales), *map(_of, places.values()),
                   arith, with_lse, torch.get_num_threads())
    indexed = q_starts is not None or k_starts is not None or page_table is not None
    planned = None if indexed else attention_._plans.get(key_of_plan)
    if planned is None:
        entries = len(q_starts) - 1 if q_starts is not None else query.shape[0] if query.dim() == 4 else 1
        for name, t in places.items():
            if t is not None and len(t) != entries:
                raise ValueError(f"{name} has {len(t)} numbers, where {entries} are needed")
    out, lse = _results(query, value, layout, with_lse)
    if planned is None:
        call = attention_.Call(query, key, value, layout=layout, causal=causal, window=window, scale=scale, mask=mask,
                               bias=bias, softcap=softcap, alibi=alibi, sinks=sinks, kv_lengths=kv_lengths, q_starts=q_starts,
                               k_starts=k_starts, page_table=page_table, k_scales=k_scales, v_scales=v_scales, arith=arith)
        planned = _Planned(call, out, lse, torch.get_num_threads())
        addresses = {attention_._POINTERS[name]: t.address for name, t in call.tensors.items()}
        if not indexed:
            attention_.remember(key_of_plan, planned)
        if attention_._has_loose_queries(call):
            out.zero_()
            if lse is not None:
                lse.fill_(-torch.inf)
    else:
        addresses = planned.addresses(q=query, k=key, v=value, mask=mask, bias=bias, slopes=alibi, sinks=sinks,
                                      kv_lengths=kv_lengths, k_scales=k_scales, v_scales=v_scales)
    for name, t in places.items():
        if t is not None:
            addresses[name] = t.data_ptr()
    planned.run(**addresses, o=out.data_ptr(), lse=0 if lse is None else lse.data_ptr())
    return out, lse


def _attention(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
    return _attend(False, *tensors, **options)[0]


def _attention_lse(*tensors: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return _attend(True, *tensors, **options)


def _before_autograd(operator: Any, kernel: Any, keys: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                     **options: Any) -> Any:
    """An operator as autograd meets it, which would else lose derivatives. Goes on to what follows, a tracer's kernel for
    instance, unless the tensors are of the plain kind."""
    if _is_plain(keys):
        return kernel(query, key, value, **options)
    given = {"query": query, "key": key, "value": value}
    given |= {name: t for name, t in options.items() if isinstance(t, torch.Tensor)}
    _no_gradients(**given)
    for name, t in given.items():
        if is_plain_torch(t) and (t.is_nested or t.layout is not torch.strided):
            raise refusal_of_torch(t, name)
    return operator.redispatch(keys & torch._C._after_autograd_keyset, query, key, value, **options)


def _check_fakes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: str, options: dict[str, Any]) -> None:
    """Raises what the operator would raise for tensors of these shapes, which have no elements."""
    _no_gradients(query=query, key=key, value=value, **options)
    _check_rank(query)
    for name, t in {"key": key, "value": value, **options}.items():
        if isinstance(t, torch.Tensor) and t.device != query.device:
            raise TypeError(f"{name} is on {t.device} and query on {query.device}")
    if key.dim() not in (3, 4) or value.dim() != key.dim():
        raise ValueError(f"key has {key.dim()} dimensions and value {value.dim()}, where 3 or 4 of both are needed")
    tokens, heads = (-2, -3) if layout == "bhsd" else (-3, -2)
    pairs = (("query", query, "key", key, -1, "channels"), ("key", key, "value", value, tokens, "tokens"),
             ("key", key, "value", value, heads, "heads"))
    for name, a, other, b, axis, what in pairs:
        message = f"{name} has {a.shape[axis]} {what} and {other} {b.shape[axis]}"
        torch._check(a.shape[axis] == b.shape[axis], lambda message=message: message)


def _fake_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, layout: str = "bhsd",
                    **options: Any) -> torch.Tensor:
    _check_fakes(query, key, value, layout, options)
    return _results(query, value, layout, False)[0]


def _fake_attention_lse(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, layout: str = "bhsd",
                        **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    _check_fakes(query, key, value, layout, options)
    return _results(query, value, layout, True)


for _name, _kernel, _fake in (("attention", _attention, _fake_attention), ("attention_lse", _attention_lse, _fake_attention_lse)):
    _operators.impl(_name, _kernel, "CPU")
    for _key in ("AutogradCPU", "AutogradNestedTensor", "AutogradOther"):
        _operators.impl(_name, functools.partial(_before_autograd, getattr(torch.ops.rapt, _name).default, _kernel), _key,
                        with_keyset=True)
    torch.library.register_fake(f"rapt::{_name}", _fake, lib=_operators)

# ---- Under F.scaled_dot_product_attention ------------------------------------------------------------------------------------

_SDPA = "scaled_dot_product_attention"
_FLASH = "_scaled_dot_product_flash_attention_for_cpu"  # what PyTorch's sends most calls to, and its compiled graphs have
_SERVED = frozenset({torch.float32, torch.float16, torch.bfloat16})

_override: torch.library.Library | None = None
_own: dict[str, Any] = {}  # PyTorch's own kernels, while they are overridden
_fast_path = True  # whether nn.MultiheadAttention's was on before
_types: frozenset[torch.dtype] = frozenset()  # what is taken
_types_of_few: frozenset[torch.dtype] = frozenset()  # what is taken of few queries
_arith = "exact"  # that of bfloat16
# Up to this many queries, types of the matrix unit are taken too. On a Xeon with AMX, bfloat16 decodes 1.5 to 3.7 times as fast as
# PyTorch's (docs/engines.md), but for calls of some microseconds, where what Python adds weighs more; with more queries it is slower.
_FEW = 8
class _Counted(threading.local):
    """How many calls of this thread were counted."""
    calls = 0


_counted = _Counted()
_taken = 0
_left: Counter[str] = Counter()
_MOST_REASONS = 100  # which have sizes of tensors in them


def _is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def default_types(arith: str = "exact") -> frozenset[torch.dtype]:
    """The types in which enable() takes attention from PyTorch on this CPU: those in which rapt was measured to be the faster.

    float32 everywhere. float16 and bfloat16 on x86-64, but for CPUs whose matrix unit (AMX) has products of that type, which
    PyTorch uses, and rapt's kernel amx in bf16 arithmetic only; without that rapt takes calls of up to 8 queries there, such as those of a
    decoder's steps. On other architectures these types were not measured, and stay with PyTorch."""
    types = {torch.float32} | ({torch.bfloat16} if float_arith(arith) == "bf16" and str(isa_.isa()) == "amx" else set())
    if _is_x86():
        has = torch.cpu.get_capabilities().get
        types |= {kind for kind, unit in ((torch.float16, "amx_fp16"), (torch.bfloat16, "amx_bf16")) if not has(unit)}
    return frozenset(types)


def _why_type(dtype: torch.dtype, queries: int) -> str | None:
    """Why attention of so many queries of a type is left to PyTorch."""
    if dtype in _types or (queries <= _FEW and dtype in _types_of_few):
        return None
    name = str(dtype).removeprefix("torch.")
    if dtype not in _SERVED:
        return f"{name} is not served"
    return f"{name} {'of many queries ' * (dtype in _types_of_few)}stays with PyTorch on this CPU"


def _is_fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> bool:
    """Whether PyTorch sends attention of these shapes to its fused kernel, not to its math."""
    return (query.dim() == key.dim() == value.dim() == 4 and query.shape[0] == key.shape[0] == value.shape[0]
            and key.shape[1] == value.shape[1] and query.shape[3] == key.shape[3] == value.shape[3]
            and (mask is None or mask.dim() in (2, 4)))


def _malformed(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, fused: bool) -> str | None:
    """What makes no sense about the shapes, and PyTorch's kernels would not see: those of its fused one, or of any."""
    pairs = [("query", query, "key", key, -1, "channels"), ("key", key, "value", value, -2, "tokens")]
    if fused:
        pairs += [("key", key, "value", value, 1, "heads"), ("query", query, "key", key, 0, "batch entries"),
                  ("key", key, "value", value, 0, "batch entries")]
    for name, a, other, b, axis, what in pairs:
        if a.shape[axis] != b.shape[axis]:
            return f"{name} has {a.shape[axis]} {what} and {other} {b.shape[axis]}"
    if fused and key.shape[1] and query.shape[1] % key.shape[1]:
        return f"query has {query.shape[1]} heads and key {key.shape[1]}"
    return None


def _plan(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool, mask: torch.Tensor | None,
          scale: float | None, out: torch.Tensor, lse: torch.Tensor | None) -> _Planned | str:
    """The plan for such tensors, or why PyTorch's own kernel is to be used."""
    if not query.dtype == key.dtype == value.dtype:
        return "query, key and value are of different types"
    why = _why_type(query.dtype, query.shape[-2])
    if why:
        return why
    q, k, v = query.detach(), key.detach(), value.detach()  # whose gradients are the business of whoever called
    masks: dict[str, Any] = {} if mask is None else {"mask" if mask.dtype == torch.bool else "bias": mask.detach()}
    try:
        call = attention_.Call(q, k, v, causal="top-left" if is_causal else None, scale=scale,
                               arith=_arith if q.dtype == torch.bfloat16 else "exact", **masks)
        return _Planned(call, out, lse, torch.get_num_threads())
    except (TypeError, ValueError) as refusal:
        return str(refusal)


def _run(planned: _Planned, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None,
         out: torch.Tensor, lse: torch.Tensor | None) -> None:
    global _taken
    kind = "mask" if mask is not None and mask.dtype == torch.bool else "bias"
    planned.run(**planned.addresses(q=query, k=key, v=value, **{kind: mask}), o=out.data_ptr(),
                lse=0 if lse is None else lse.data_ptr())
    _taken += 1
    _counted.calls += 1


def _leave(reason: str, own: Callable[[], Any]) -> Any:
    """What PyTorch's own kernel returns. It is counted unless something that it calls was."""
    before = _counted.calls
    result = own()
    if _counted.calls == before:
        _counted.calls += 1
        _left[reason if reason in _left or len(_left) < _MOST_REASONS else "other reasons"] += 1
    return result


def _flash_attention(keys: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float = 0.0,
                     is_causal: bool = False, *, attn_mask: torch.Tensor | None = None,
                     scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """aten::_scaled_dot_product_flash_attention_for_cpu, with the strides that its fake kernel promises. PyTorch's
    scaled_dot_product_attention calls it where gradients are wanted, and so do compiled graphs."""
    key_of_plan = ("aten", attention_.generation, _of(query), _of(key), _of(value), is_causal, _of(attn_mask), scale, torch.get_num_threads())
    planned = "dropout" if dropout_p else attention_._plans.get(key_of_plan)
    if not isinstance(planned, str):
        if planned is None and query.dim() == key.dim() == value.dim() == 4:
            wrong = _malformed(query, key, value, True)
            if wrong:
                raise RuntimeError(f"scaled_dot_product_attention: {wrong}")
        out, lse = torch.empty_like(query), torch.empty((query.shape[0], *query.shape[-2:0:-1])).transpose(1, -1)
        if planned is None:
            planned = "values have another number of channels than keys" if key.shape[-1] != value.shape[-1] else _plan(
                query, key, value, is_causal, attn_mask, scale, out, lse)
            attention_.remember(key_of_plan, planned)
    if isinstance(planned, str):
        # PyTorch's kernel takes channels to be adjacent, without a look.
        dense = [t if t.dim() and t.stride(-1) == 1 else t.contiguous() for t in (query, key, value)]
        return _leave(planned, lambda: _own[_FLASH].call_boxed(keys, *dense, dropout_p, is_causal, attn_mask=attn_mask,
                                                               scale=scale))
    _run(planned, query, key, value, attn_mask, out, lse)
    if attn_mask is not None:  # the backward pass takes 0 for a row without keys, where -inf would make NaN
        lse.masked_fill_(lse == -torch.inf, 0)
    return out, lse


class _WithGradients(torch.autograd.Function):
    """rapt's attention of shapes that PyTorch's fused kernel does not take, with the gradients of PyTorch's math, which is
    computed again for them."""

    @staticmethod
    def forward(ctx: Any, planned: _Planned, options: dict[str, Any], *tensors: torch.Tensor | None) -> torch.Tensor:
        query, key, value, mask = tensors
        assert query is not None and key is not None and value is not None
        ctx.options = options
        ctx.save_for_backward(*tensors)
        out = _new_output(query, key, value, mask)
        _run(planned, query, key, value, mask, out, None)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        needed = ctx.needs_input_grad[2:]
        with torch.enable_grad():
            # Views, for one of the tensors may have been computed of another. Gradients of these gradients go on through them.
            tensors = [None if t is None else t.view_as(t) if torch.is_floating_point(t) and need else t
                       for t, need in zip(ctx.saved_tensors, needed)]
            mask = tensors[3]
            if mask is not None and mask.dtype == torch.bool:  # which the math adds
                tensors[3] = torch.zeros_like(mask, dtype=gradient.dtype).masked_fill_(~mask, -torch.inf)
            out = torch._scaled_dot_product_attention_math(*tensors, **ctx.options)[0]
        found = iter(torch.autograd.grad(out, [t for t, need in zip(tensors, needed) if need], gradient,
                                         create_graph=torch.is_grad_enabled()))
        return None, None, *[next(found) if need else None for need in needed]


def _new_output(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """With the strides of what PyTorch returns."""
    if _is_fused(query, key, value, mask):
        return torch.empty_like(query)
    return query.new_empty((*query.shape[:-1], value.shape[-1]))


def _plan_sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, is_causal: bool,
               scale: float | None, enable_gqa: bool) -> _Planned | str:
    """The plan for a call of F.scaled_dot_product_attention, or why it is left to PyTorch, which finds all that is wrong with it
    but for what is raised here."""
    if not query.dim() == key.dim() == value.dim() or query.dim() not in (3, 4):
        dimensions = " and ".join(map(str, sorted({query.dim(), key.dim(), value.dim()})))
        return f"tensors of {dimensions} dimensions"
    wrong = _malformed(query, key, value, False)
    if wrong:
        raise RuntimeError(f"scaled_dot_product_attention: {wrong}")
    if not enable_gqa and not query.shape[-3] == key.shape[-3] == value.shape[-3]:
        return "heads of key or value are broadcast"
    if not query.shape[:-3] == key.shape[:-3] == value.shape[:-3]:
        return "entries of the batch are broadcast"
    if mask is not None:
        if mask.dtype not in (torch.bool, torch.float32, query.dtype):
            return f"{str(mask.dtype).removeprefix('torch.')} as attn_mask"
        if mask.dim() > query.dim():
            return "attn_mask has more dimensions than query"
        if is_causal and not _is_fused(query, key, value, mask):
            return "is_causal beside attn_mask"
    return _plan(query, key, value, is_causal, mask, scale, _new_output(query, key, value, mask), None)


def _sdpa(keys: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
          dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
          enable_gqa: bool = False) -> torch.Tensor:
    """aten::scaled_dot_product_attention."""
    def own() -> torch.Tensor:
        return _own[_SDPA].call_boxed(keys, query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                                      enable_gqa=enable_gqa)
    if not _is_plain(keys):
        traced = isinstance(query, (FakeTensor, FunctionalTensor))
        if traced and (_is_fused(query, key, value, attn_mask) or not isinstance(query, FakeTensor)):
            return own()  # the fused kernel will be in the graph, and count; or the same is traced for the second time
        return _leave("traced into PyTorch's math" if traced else "a TorchDispatchMode, torch.func or a tensor of another kind",
                      own)
    if dropout_p:
        return _leave("dropout", own)
    if not torch._C._get_flash_sdp_enabled():
        return _leave("fused attention is off (sdpa_kernel)", own)
    of_mask = attn_mask is not None and attn_mask.requires_grad
    with_gradients = (query.requires_grad or key.requires_grad or value.requires_grad or of_mask) and torch.is_grad_enabled()
    if with_gradients and not of_mask and _is_fused(query, key, value, attn_mask):
        return _leave("PyTorch's math", own)  # which calls the fused kernel, whose gradients are PyTorch's
    key_of_plan = ("sdpa", attention_.generation, _of(query), _of(key), _of(value), is_causal, _of(attn_mask), scale, enable_gqa,
                   torch.get_num_threads())
    planned = attention_._plans.get(key_of_plan)
    if planned is None:
        planned = attention_.remember(key_of_plan, _plan_sdpa(query, key, value, attn_mask, is_causal, scale, enable_gqa))
    if isinstance(planned, str):
        return _leave(planned, own)
    if with_gradients:
        options = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        return _WithGradients.apply(planned, options, query, key, value, attn_mask)
    out = _new_output(query, key, value, attn_mask)
    _run(planned, query, key, value, attn_mask, out, None)
    return out


def _checked_types(types: Any) -> frozenset[torch.dtype]:
    """What enable() is given: one type, or several."""
    served = "torch.float32, torch.float16 and torch.bfloat16 are served"
    try:
        given = frozenset([types] if isinstance(types, torch.dtype) else types)
    except TypeError:
        raise TypeError(f"types is {shown(types)}: {served}") from None
    if not all(isinstance(kind, torch.dtype) for kind in given):
        raise TypeError(f"types is {shown(types)}: {served}")
    unknown = given - _SERVED
    if unknown:
        raise ValueError(f"types has {', '.join(map(str, unknown))}: {served}")
    return given


def enable(types: Iterable[torch.dtype] | None = None, *, everything: bool = False, arith: str = "exact") -> None:
    """Puts rapt under F.scaled_dot_product_attention on CPUs, and so under all that calls it.

    types: in which types attention is rapt's, of float32, float16 and bfloat16; None: default_types().
    everything: in all of these types, such as for bits that are the same on every CPU.
    arith: "exact", or "bf16", in which tensors of bfloat16 are computed in bf16 arithmetic: on CPUs with a matrix unit (AMX) several
        times as fast, on those with AVX512-BF16 1.3 to 1.5 times in prefill, and as near to the exact result as PyTorch's own.

    What rapt does not serve is done by PyTorch's own kernel, and counted in stats(). Gradients are PyTorch's own. The number of
    threads is that of torch.get_num_threads(). The fast path of nn.MultiheadAttention and nn.TransformerEncoderLayer, which has
    an attention of its own (torch.backends.mha), is off meanwhile."""
    float_arith(arith)
    given = None if types is None else _checked_types(types)
    if flag(everything, "everything") and given is not None:
        raise ValueError("everything is True, and types are given: one of them is needed")
    chosen = _SERVED if everything else default_types(arith) if given is None else given
    _enable(chosen, _SERVED if types is None and _is_x86() else frozenset(), arith)


def _enable(types: frozenset[torch.dtype], types_of_few: frozenset[torch.dtype], arith: str) -> None:
    global _override, _own, _types, _types_of_few, _arith, _fast_path
    native.library()
    if (_types, _types_of_few, _arith) != (types, types_of_few, arith):
        attention_.forget_plans()
    _types, _types_of_few, _arith = types, types_of_few, arith
    if _override is not None:
        return
    _own = {name: torch.library.get_kernel(f"aten::{name}", "CPU") for name in (_SDPA, _FLASH)}
    _override = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "[\\s\\S]*overrid", UserWarning)
        # Of tensors that autograd looks after, and of those of torch.inference_mode(), which it does not.
        for name, kernel, key in ((_SDPA, _sdpa, "AutogradCPU"), (_SDPA, _sdpa, "CPU"), (_FLASH, _flash_attention, "CPU")):
            _override.impl(name, kernel, key, with_keyset=True, allow_override=True)
    _fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)


def disable() -> None:
    """Gives F.scaled_dot_product_attention back to PyTorch."""
    global _override
    if _override is not None:
        _override._destroy()
        _override = None
        torch.backends.mha.set_fastpath_enabled(_fast_path)


@contextlib.contextmanager
def enabled(types: Iterable[torch.dtype] | None = None, *, everything: bool = False, arith: str = "exact") -> Iterator[None]:
    """enable() for a while; afterwards things are as they were."""
    before = (_types, _types_of_few, _arith) if _override is not None else None
    enable(types, everything=everything, arith=arith)
    try:
        yield
    finally:
        if before is None:
            disable()
        else:
            _enable(*before)


def stats(reset: bool = False) -> dict[str, Any]:
    """What has become of the calls of F.scaled_dot_product_attention on CPUs since the process began, or since the last reset:

    {"enabled": True, "calls": 4, "taken": 3, "left": {"dropout": 1}}

    enabled: whether rapt is there now.
    calls: how many returned while it was. None, although it is enabled: the model computes attention in another way, and report()
        says which of its modules do.
    taken: how many of them rapt computed.
    left: how many it left to PyTorch, by reason.

    A graph that torch.compile has made calls PyTorch's fused kernel, which counts as a call here, or has PyTorch's math in it,
    which counts as left once, when the graph is made.

    reset: counting begins anew."""
    global _taken
    reset = flag(reset, "reset")
    counted = {"enabled": _override is not None, "calls": _taken + _left.total(), "taken": _taken, "left": dict(_left)}
    if reset:
        _taken = 0
        _left.clear()
    return counted


def report(model: torch.nn.Module) -> Report:
    """Says of each module of a model that looks like attention whether rapt serves it now, and if not, why: whether it calls
    F.scaled_dot_product_attention, in which type, with which dropout. Nothing is run.

    What is returned prints as a line for each module, and has them as modules, each with name, kind, served (None: it depends on
    how it is called, or cannot be seen) and why:

    >>> import rapt.torch
    >>> with rapt.torch.enabled():
    ...     found = rapt.torch.report(torch.nn.MultiheadAttention(64, 4).eval())
    >>> [(module.kind, module.served) for module in found.modules]
    [('MultiheadAttention', None)]
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is {shown(model)}: a torch.nn.Module is needed")
    return report_on(model, _override is not None, lambda dtype: _why_type(dtype, _FEW + 1))


def reproducible(module: torch.nn.Module, *inputs: Any, weights: str | None = None, arith: str = "exact", prepack: bool = False,
                 strict: bool = False, **named_inputs: Any) -> Reproducibility:
    """Has a module compute the same bits on every CPU, for any number of threads, and for each entry of a batch as alone.

    inputs, named_inputs: what the module is called with once, to find all that it computes. What runs in other calls only is found
        by those in `with report.observing():`.
    weights: how linear layers' weights are multiplied: None: as they are; "int8", "q8_0", "q4_0" or "q4_1".
    arith: that of linear layers: "exact", or "bf16" (docs/order.md, F).
    prepack: also keep weights as kernels read them, in as much memory again; the bits are the same.
    strict: raise ValueError if an operator was left whose bits differ.

    Returns a report: whether all has the same bits (is_reproducible), what was replaced, and each operator that is left to PyTorch
    (left), those whose bits differ (differing), with why. The module computes no gradients until report.restore(). Changes of
    parameters are seen, but for those that PyTorch does not count, as by p.data.copy_() or through NumPy: call report.refresh().

    >>> import rapt.torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Sigmoid()).eval()
    >>> report = rapt.torch.reproducible(model, torch.ones(1, 8))
    >>> report.replaced, report.is_reproducible
    ({'0': 'linear layer'}, True)
    """
    check_module(module, "module")
    run = functools.partial(module, *inputs, **named_inputs) if inputs or named_inputs else None
    return make_reproducible(module, run, weights=weights, arith=arith, prepack=prepack, strict=strict)
