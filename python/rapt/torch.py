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
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

try:
    import torch
except ImportError as error:
    raise ImportError("rapt.torch needs PyTorch 2.9 or newer (pip install torch)") from error
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9):
    raise ImportError(f"rapt.torch needs PyTorch 2.9 or newer, and {torch.__version__} is installed")

from . import _attention as attention_
from . import _isa as isa_
from . import _native as native
from . import _threads as threading_
from ._context_parallel import context_parallel
from ._tensor import integers, tensor

__all__ = ["context_parallel", "default_types", "disable", "enable", "enabled", "stats"]

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
    __slots__ = "plan", "threads", "bytes"

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


def _no_gradients(*tensors: torch.Tensor | None) -> None:
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        raise RuntimeError("rapt::attention has no gradients: call it under torch.no_grad(), or F.scaled_dot_product_attention "
                           "with rapt.torch.enabled()")


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
    _no_gradients(query, key, value, bias, sinks)
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
        addresses = {"q": query.data_ptr(), "k": key.data_ptr(), "v": value.data_ptr()}
        for name, t in (("mask", mask), ("bias", bias), ("slopes", alibi), ("sinks", sinks), ("kv_lengths", kv_lengths),
                        ("k_scales", k_scales), ("v_scales", v_scales)):
            if t is not None:
                addresses[name] = t.data_ptr()
    for name, t in places.items():
        if t is not None:
            addresses[name] = t.data_ptr()
    planned.run(**addresses, o=out.data_ptr(), lse=0 if lse is None else lse.data_ptr())
    return out, lse


def _attention(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
    return _attend(False, *tensors, **options)[0]


def _attention_lse(*tensors: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return _attend(True, *tensors, **options)


def _fake_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, layout: str = "bhsd",
                    **options: Any) -> torch.Tensor:
    _no_gradients(query, key, value, options.get("bias"), options.get("sinks"))
    _check_rank(query)
    return _results(query, value, layout, False)[0]


def _fake_attention_lse(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, layout: str = "bhsd",
                        **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    _no_gradients(query, key, value, options.get("bias"), options.get("sinks"))
    _check_rank(query)
    return _results(query, value, layout, True)


_operators.impl("attention", _attention, "CPU")
_operators.impl("attention_lse", _attention_lse, "CPU")
torch.library.register_fake("rapt::attention", _fake_attention, lib=_operators)
torch.library.register_fake("rapt::attention_lse", _fake_attention_lse, lib=_operators)

# ---- Under F.scaled_dot_product_attention ------------------------------------------------------------------------------------

_OVERRIDDEN = "_scaled_dot_product_flash_attention_for_cpu"
_SERVED = frozenset({torch.float32, torch.float16, torch.bfloat16})

_override: torch.library.Library | None = None
_own: Any = None  # PyTorch's own kernel, while it is overridden
_fast_path = True  # whether nn.MultiheadAttention's was on before
_types: frozenset[torch.dtype] = frozenset()  # what is taken
_types_of_few: frozenset[torch.dtype] = frozenset()  # what is taken of few queries
_arith = "exact"  # that of bfloat16
# Up to this many queries, types of the matrix unit are taken too. On a Xeon with AMX, bfloat16 decodes 1.5 to 3.7 times as fast as
# PyTorch's (docs/engines.md), but for calls of some microseconds, where what Python adds weighs more; with more queries it is slower.
_FEW = 8
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
    types = {torch.float32} | ({torch.bfloat16} if arith == "bf16" and str(isa_.isa()) == "amx" else set())
    if _is_x86():
        has = torch.cpu.get_capabilities().get
        types |= {kind for kind, unit in ((torch.float16, "amx_fp16"), (torch.bfloat16, "amx_bf16")) if not has(unit)}
    return frozenset(types)


def _reason(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> str | None:
    """Why PyTorch's own kernel is to be used, as far as the types decide."""
    few = query.shape[2] <= _FEW and query.dtype in _types_of_few
    if (query.dtype in _types or few) and key.dtype == value.dtype == query.dtype:
        return None
    name = str(query.dtype).removeprefix("torch.")
    if query.dtype not in _SERVED:
        return f"{name} is not served"
    return f"{name} {'of many queries ' * (query.dtype in _types_of_few)}stays with PyTorch on this CPU"


def _plan(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool, mask: torch.Tensor | None,
          scale: float | None, out: torch.Tensor, lse: torch.Tensor) -> _Planned | str:
    """The plan for such tensors, or why PyTorch's own kernel is to be used."""
    reason = _reason(query, key, value)
    if reason:
        return reason
    q, k, v = query.detach(), key.detach(), value.detach()  # whose gradients are the business of whoever called
    try:
        call = attention_.Call(q, k, v, causal="top-left" if is_causal else None, scale=scale, bias=mask,
                               arith=_arith if q.dtype == torch.bfloat16 else "exact")
        if key.shape[-1] != value.shape[-1]:
            return "values have another number of channels than keys"
        return _Planned(call, out, lse, torch.get_num_threads())
    except (TypeError, ValueError) as refusal:
        return str(refusal)


def _flash_attention(keys: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float = 0.0,
                     is_causal: bool = False, *, attn_mask: torch.Tensor | None = None,
                     scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """aten::_scaled_dot_product_flash_attention_for_cpu, with the strides that its fake kernel promises."""
    global _taken
    key_of_plan = ("aten", attention_.generation, _of(query), _of(key), _of(value), is_causal, _of(attn_mask), scale, torch.get_num_threads())
    planned = "dropout" if dropout_p else attention_._plans.get(key_of_plan)
    if not isinstance(planned, str):
        batch, heads, tokens, _ = query.shape
        out, lse = torch.empty_like(query), torch.empty((batch, tokens, heads)).transpose(1, 2)
        if planned is None:
            planned = attention_.remember(key_of_plan, _plan(query, key, value, is_causal, attn_mask, scale, out, lse))
    if isinstance(planned, str):
        _left[planned if planned in _left or len(_left) < _MOST_REASONS else "other reasons"] += 1
        return _own.call_boxed(keys, query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
    planned.run(q=query.data_ptr(), k=key.data_ptr(), v=value.data_ptr(), o=out.data_ptr(), lse=lse.data_ptr(),
                bias=0 if attn_mask is None else attn_mask.data_ptr())
    _taken += 1
    if attn_mask is not None:  # the backward pass takes 0 for a row without keys, where -inf would make NaN
        lse.masked_fill_(lse == -torch.inf, 0)
    return out, lse


def enable(types: Iterable[torch.dtype] | None = None, *, everything: bool = False, arith: str = "exact") -> None:
    """Puts rapt under F.scaled_dot_product_attention on CPUs, and so under all that calls it.

    types: in which types attention is rapt's, of float32, float16 and bfloat16; None: default_types().
    everything: in all of these types, such as for bits that are the same on every CPU.
    arith: "exact", or "bf16", in which tensors of bfloat16 are computed in bf16 arithmetic: on CPUs with a matrix unit (AMX) several
        times as fast, and as near to the exact result as PyTorch's own.

    What rapt does not serve is done by PyTorch's own kernel, and counted in stats(). Gradients are PyTorch's own. The number of
    threads is that of torch.get_num_threads(). The fast path of nn.MultiheadAttention and nn.TransformerEncoderLayer, which has
    an attention of its own (torch.backends.mha), is off meanwhile."""
    if isinstance(types, torch.dtype):
        types = {types}
    if arith not in ("exact", "bf16"):
        raise ValueError(f"arith is {arith!r}: 'exact' or 'bf16' is needed")
    chosen = _SERVED if everything else default_types(arith) if types is None else frozenset(types)
    unknown = chosen - _SERVED
    if unknown:
        raise ValueError(f"types has {', '.join(map(str, unknown))}: torch.float32, torch.float16 and torch.bfloat16 are "
                         "served")
    _enable(chosen, _SERVED if types is None and _is_x86() else frozenset(), arith)


def _enable(types: frozenset[torch.dtype], types_of_few: frozenset[torch.dtype], arith: str) -> None:
    global _override, _own, _types, _types_of_few, _arith, _fast_path
    native.library()
    if (_types, _types_of_few, _arith) != (types, types_of_few, arith):
        attention_.forget_plans()
    _types, _types_of_few, _arith = types, types_of_few, arith
    if _override is not None:
        return
    _own = torch.library.get_kernel(f"aten::{_OVERRIDDEN}", "CPU")
    _override = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "[\\s\\S]*overrid", UserWarning)
        _override.impl(_OVERRIDDEN, _flash_attention, "CPU", with_keyset=True, allow_override=True)
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
    """How many calls of F.scaled_dot_product_attention's kernel rapt has taken, and how many it left to PyTorch, by reason:
    {"taken": 3, "left": {"dropout": 1}}. Calls that PyTorch never hands to that kernel are not seen here: dropout in training,
    values with another number of channels than keys, channels that are not adjacent.

    reset: counting begins anew."""
    global _taken
    counted = {"taken": _taken, "left": dict(_left)}
    if reset:
        _taken = 0
        _left.clear()
    return counted
