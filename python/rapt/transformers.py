# SPDX-License-Identifier: Apache-2.0
"""rapt in Hugging Face's Transformers: register(), then attn_implementation="rapt".

    import rapt.transformers
    rapt.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="rapt")   # or model.set_attn_implementation("rapt")

Causal masks, sliding windows and padding are said to rapt and not made into matrices; a sequence that is padded in a batch has
the bits that it has alone. KVCache keeps keys and values in any of rapt's types:

    model.generate(**inputs, past_key_values=rapt.transformers.KVCache(model.config, type="q8_0"))
"""
import contextlib
import contextvars
import functools
import inspect
import itertools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from . import torch as rapt_torch  # which says in a line what is missing

try:
    import transformers
except ImportError as error:
    raise ImportError("rapt.transformers needs Transformers (pip install transformers)") from error
if tuple(map(int, transformers.__version__.split(".")[:2])) < (4, 57):
    raise ImportError(f"rapt.transformers needs Transformers 4.57 or later, and {transformers.__version__} is installed: "
                      'rapt.torch.enable() serves attn_implementation="sdpa" of any version')

import numpy
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map_only
from transformers import masking_utils
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

import rapt
from . import viz
from ._arguments import float_arith, shown
from ._masks import of_runs, runs_of
from ._reproducible import Reproducibility, check_module, make_reproducible

__all__ = ["KVCache", "register", "reproducible", "unregister"]

_SERVED = rapt_torch._SERVED


# ---- Versions of Transformers ------------------------------------------------------------------------------------------------

# What 4.57 lacks or has in another form. Methods of _Layer with two names or two kinds of arguments say so where they are.

try:
    from transformers.utils.import_utils import is_tracing
except ImportError:
    def is_tracing(tensor: torch.Tensor) -> bool:
        return torch.jit.is_tracing() or isinstance(tensor, (torch.fx.Proxy, torch._subclasses.FakeTensor))

# 4.57 tells each layer whether attention weights are wanted.
try:
    from transformers.utils.output_capturing import _active_collector
except ImportError:
    _active_collector = contextvars.ContextVar("_active_collector", default=None)

# 4.57 has no mask functions for bidirectional attention.
_bidirectional_mask_function = getattr(masking_utils, "bidirectional_mask_function", None)
_sliding_window_bidirectional_overlay = getattr(masking_utils, "sliding_window_bidirectional_overlay", None)

# Whether the places of queries are given as a tensor of positions, instead of their number and the first one's position.
_BY_POSITIONS = "cache_position" in inspect.signature(masking_utils.sdpa_mask).parameters


def _sdpa_mask(*, batch_size: int, q_length: int, kv_length: int, q_offset: Any, kv_offset: int,
               mask_function: Callable[..., Any], attention_mask: torch.Tensor | None, device: Any,
               **options: Any) -> torch.Tensor:
    """masking_utils.sdpa_mask."""
    given = {"batch_size": batch_size, "kv_length": kv_length, "kv_offset": kv_offset, "mask_function": mask_function,
             "attention_mask": attention_mask, **options}
    if not _BY_POSITIONS:
        return masking_utils.sdpa_mask(q_length=q_length, q_offset=q_offset, device=device, **given)
    positions = torch.arange(q_length, device=device) + q_offset
    if _is_traced(attention_mask, q_offset) or _pattern(mask_function) is None:
        return masking_utils.sdpa_mask(cache_position=positions, **given)
    # 4.57's uses vmap, which does not work inside __torch_dispatch__, where a model looks at a _Mask.
    if attention_mask is not None:
        mask_function = masking_utils.and_masks(mask_function, masking_utils.padding_mask_function(
            _padded(attention_mask, kv_offset + kv_length)))
    axes = torch.arange(batch_size), torch.arange(1), positions, torch.arange(kv_length) + kv_offset
    where = (axis.view([-1 if i == j else 1 for j in range(4)]) for i, axis in enumerate(axes))
    return mask_function(*where).expand(batch_size, 1, q_length, kv_length)


def _mask_by_positions(*, cache_position: torch.Tensor, **options: Any) -> torch.Tensor | None:
    """_mask, for such versions."""
    return _mask(q_length=cache_position.shape[0], q_offset=cache_position[0], device=cache_position.device, **options)


# ---- Stand-ins for tensors ---------------------------------------------------------------------------------------------------


class _StandIn(torch.Tensor):
    """A tensor whose elements nobody needs as long as rapt's attention alone sees it. Whatever else looks gets dense()."""

    def dense(self) -> torch.Tensor:
        raise NotImplementedError

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(_StandIn, lambda t: t.dense(), (args, kwargs or {}))
        return function(*args, **kwargs)


# ---- Masks -------------------------------------------------------------------------------------------------------------------


def _pattern(mask_function: Callable[..., Any]) -> dict[str, Any] | None:
    """rapt's options for one of Transformers' mask functions, which are closures; None for those that have no such options."""
    if mask_function is masking_utils.causal_mask_function:
        return {"causal": "bottom-right"}
    if mask_function is _bidirectional_mask_function:
        return {}

    def variables(f: Callable[..., Any], maker: Callable[..., Any] | None) -> dict[str, Any] | None:
        """What f has kept, if it is what maker makes."""
        if maker is None or not getattr(f, "__qualname__", "").startswith(f"{maker.__name__}.<locals>.") or f.__module__ != maker.__module__:
            return None
        return {name: cell.cell_contents for name, cell in zip(f.__code__.co_freevars, f.__closure__ or ())}
    both = variables(mask_function, masking_utils.and_masks)
    if not both or len(both["mask_functions"]) != 2:
        return None
    overlay, base = both["mask_functions"]
    window = variables(overlay, masking_utils.sliding_window_overlay)
    if window and base is masking_utils.causal_mask_function:
        return {"causal": "bottom-right", "window": [window["sliding_window"] - 1, -1]}
    window = variables(overlay, _sliding_window_bidirectional_overlay)
    if window and base is _bidirectional_mask_function:
        return {"window": [window["sliding_window"]] * 2}
    return None


def _floats(attended: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask as eager attention has it: what is added to scores."""
    return torch.zeros(attended.shape, dtype=dtype, device=attended.device).masked_fill_(~attended, torch.finfo(dtype).min)


class _Mask(_StandIn):
    """A mask that is said in options of rapt's operators. To models that look at it, it is eager attention's, of floats: each model
    knows what to do with that, and some take every mask for one (DeepSeek V4 appends a bias to it)."""
    options: dict[str, Any]
    first: torch.Tensor | None  # where each entry's keys begin, and how many they are, where there is padding
    count: torch.Tensor | None

    @staticmethod
    def __new__(cls, shape: tuple[int, ...], dtype: torch.dtype, *rest: Any) -> "_Mask":
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype)

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, options: dict[str, Any],
                 runs: tuple[torch.Tensor, torch.Tensor] | None, make: Callable[[], torch.Tensor]):
        self.options, self.attended = options, make  # attended(): bools, True where a key is attended
        self.first, self.count = runs or (None, None)

    def dense(self) -> torch.Tensor:
        return _floats(self.attended(), self.dtype)

    def __repr__(self) -> str:
        return f"{tuple(self.shape)}: {self.options}"


def _is_traced(*given: Any) -> bool:
    """Whether a compiler looks on, who must not ask for what a tensor contains."""
    return torch.compiler.is_compiling() or any(isinstance(t, torch.Tensor) and is_tracing(t) for t in given)


def _padded(attention_mask: torch.Tensor, length: int) -> torch.Tensor:
    """A mask of tokens with places behind them that a static cache has, which are empty."""
    return F.pad(attention_mask.to(torch.bool), (0, max(0, length - attention_mask.shape[1])))


def _mask(batch_size: int, q_length: int, kv_length: int, q_offset: Any = 0, kv_offset: int = 0,
          mask_function: Callable[..., Any] = masking_utils.causal_mask_function, attention_mask: torch.Tensor | None = None,
          local_size: int | None = None, allow_is_causal_skip: bool = True, allow_is_bidirectional_skip: bool = False,
          use_vmap: bool = False, device: Any = "cpu", dtype: torch.dtype = torch.float32, **kwargs: Any) -> torch.Tensor | None:
    """The mask of a forward pass, for AttentionMaskInterface: a _Mask, which keeps bools where rapt has no other option that says
    it; for compilers, a tensor of floats."""
    make = functools.partial(_sdpa_mask, batch_size=batch_size, q_length=q_length, kv_length=kv_length,
                             q_offset=q_offset, kv_offset=kv_offset, mask_function=mask_function, attention_mask=attention_mask,
                             local_size=local_size, allow_is_causal_skip=False, allow_is_bidirectional_skip=False,
                             use_vmap=use_vmap, device=device, **kwargs)
    # A step that generate() may compile gets a tensor, too; in _attention_forward it is seen what it says.
    if _is_traced(attention_mask, q_offset) or (not allow_is_causal_skip and not allow_is_bidirectional_skip and q_length == 1):
        return _floats(make(), dtype)

    def said(options: dict[str, Any], runs: tuple[torch.Tensor, torch.Tensor] | None = None) -> _Mask:
        return _Mask((batch_size, 1, q_length, kv_length), dtype, options, runs, make)

    def as_it_is() -> _Mask:
        attended = make()
        return _Mask(tuple(attended.shape), dtype, {"mask": attended}, None, lambda: attended)
    pattern = _pattern(mask_function)
    if pattern is None:
        return as_it_is()
    q_first = int(q_offset) - kv_offset
    causal = "causal" in pattern
    end = min(q_first + q_length, kv_length) if causal else kv_length  # behind which a static cache is empty
    runs = None
    if attention_mask is not None:
        attended = _padded(attention_mask, kv_offset + kv_length)[:, kv_offset:kv_offset + kv_length]
        runs = runs_of(attended[:, :end])
        if runs is None:
            return as_it_is()
    full = runs is None or bool((runs[1] == end).all())
    if full and not pattern and end == kv_length:
        return None if allow_is_bidirectional_skip else said({})
    if full and end == kv_length == q_first + q_length:
        return said(pattern)
    first, count = runs or (torch.zeros(batch_size, dtype=torch.int32), torch.full((batch_size,), end, dtype=torch.int32))
    options = pattern | of_runs(first, count)
    if pattern and bool((first + count != q_first + q_length).any()):
        options["q_offsets"] = q_first - first
    return said(options, (first, count))


# ---- Attention ---------------------------------------------------------------------------------------------------------------


# What models hand on that attention can do without, by the reason. Whatever else it does not know may change the result.
_WITHOUT_MEANING = {
    "the mask says it": ("sliding_window", "position_ids", "cache_position", "seq_idx"),
    "queries and keys have it already, or it is of layers around attention": (
        "position_embeddings", "past_key_values", "use_cache", "layer_idx", "input_ids", "grid_thw"),
    "it is about what a model or its loss returns": (
        "output_hidden_states", "output_router_logits", "return_dict", "logits_to_keep", "labels", "num_items_in_batch"),
    "it tells other kernels how large their grids are, or which of two algorithms to take": (
        "max_length_q", "max_length_k", "deterministic"),
}
_MEANINGLESS = frozenset(itertools.chain.from_iterable(_WITHOUT_MEANING.values()))


def _by_pytorch(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None,
                bias: torch.Tensor | None, softcap: float | None, sinks: torch.Tensor | None, scale: float | None, causal: bool,
                dropout: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention in PyTorch's own operators, in the order of eager attention: (batch, heads, queries, channels), and its weights.
    sinks broadcast to (batch, heads, queries, 1)."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    if sinks is not None:
        scores = torch.cat([scores, sinks.expand(*scores.shape[:3], 1).to(scores.dtype)], -1)
    weights = F.softmax(scores, -1, dtype=torch.promote_types(torch.float32, scores.dtype)).to(query.dtype)
    weights = F.dropout(weights[..., :key.shape[2]], dropout)
    return weights @ value, weights


class _WithGradients(torch.autograd.Function):
    """rapt's attention, whose gradients are those of _by_pytorch, which is computed again for them."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[], torch.Tensor], options: dict[str, Any],
                *tensors: torch.Tensor | None) -> torch.Tensor:
        ctx.options = options
        ctx.save_for_backward(*tensors)
        return run()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        tensors = [None if t is None else t.detach().requires_grad_(need)
                   for t, need in zip(ctx.saved_tensors, ctx.needs_input_grad[2:])]
        with torch.enable_grad():
            query, key, value, bias, sinks = tensors
            out, _ = _by_pytorch(query, key, value, bias=bias, sinks=sinks, dropout=0.0, **ctx.options)
        mask = ctx.options["mask"]
        if mask is not None:  # a row without keys is 0, whatever they are, where _by_pytorch has the mean of all values
            if ctx.options["causal"]:
                mask = mask & torch.ones(mask.shape[-2:], dtype=torch.bool).tril()
            gradient = gradient.masked_fill(~mask.any(-1, keepdim=True), 0)
        wanted = [t for t in tensors if t is not None and t.requires_grad]
        found = iter(torch.autograd.grad(out, wanted, gradient))
        return None, None, *[next(found) if t is not None and t.requires_grad else None for t in tensors]


def _chosen(module: torch.nn.Module, query: torch.Tensor, keys: int, indices: torch.Tensor | None,
            block_indices: torch.Tensor | None) -> torch.Tensor | None:
    """Which keys a model has chosen for each query: bools (batch, 1 or heads, queries, keys). Eager attention gets this in its mask.

    indices: (batch, queries, any number) of keys.
    block_indices: (batch, groups of heads, queries, any number) of blocks of keys, of as many as module's indexer says.
    Negative ones choose nothing."""
    batch, heads, queries, _ = query.shape

    def columns(numbers: torch.Tensor, count: int) -> torch.Tensor:
        places = torch.where(numbers < 0, count, numbers).long()
        return torch.zeros((*places.shape[:-1], count + 1), dtype=torch.bool).scatter(-1, places, True)[..., :count]
    found = None
    if indices is not None:
        if indices.dim() != 3 or indices.shape[:2] != (batch, queries):
            raise ValueError(f"indices have shape {tuple(indices.shape)}, where ({batch}, {queries}, any) is needed")
        found = columns(indices[:, None], keys)
    if block_indices is not None:
        size = getattr(getattr(module, "indexer", None), "block_size", None)
        if size is None:
            raise ValueError(f"block_indices of {type(module).__name__} are of blocks of unknown size: module.indexer.block_size "
                             "is needed")
        if block_indices.dim() != 4 or block_indices.shape[::2] != (batch, queries) or heads % block_indices.shape[1]:
            raise ValueError(f"block_indices have shape {tuple(block_indices.shape)}, where ({batch}, a divisor of {heads}, "
                             f"{queries}, any) is needed")
        blocks = columns(block_indices, -(-keys // size)).repeat_interleave(size, -1)[..., :keys]
        blocks = blocks.repeat_interleave(heads // blocks.shape[1], 1)
        found = blocks if found is None else found & blocks
    return found


def _returns_weights(module: torch.nn.Module, output_attentions: bool | None) -> bool:
    """True if the model will return attention weights. Not every layer is told: Transformers collects them behind its back."""
    if output_attentions or getattr(getattr(module, "config", None), "output_attentions", False):
        return True
    return not torch.compiler.is_compiling() and any("attentions" in name for name in _active_collector.get() or ())


@functools.cache
def _warn_of_weights() -> None:
    warnings.warn('output_attentions=True: attn_implementation="rapt" computes attention weights beside its result, in memory of '
                  "queries x keys for each head and layer, which it needs for nothing else", stacklevel=3)


def _attention_forward(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                       attention_mask: torch.Tensor | None, dropout: float = 0.0, scaling: float | None = None,
                       is_causal: bool | None = None, softcap: float | None = None, s_aux: torch.Tensor | None = None,
                       sinks: torch.Tensor | None = None, position_bias: torch.Tensor | None = None,
                       indices: torch.Tensor | None = None, block_indices: torch.Tensor | None = None, cache: Any = None,
                       output_attentions: bool | None = None, arith: str = "exact",
                       **others: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention of a layer, for AttentionInterface: query (batch, heads, queries, channels), key and value with their own
    number of heads; the result is (batch, queries, heads, channels), and (batch, heads, queries, keys) of weights where the model
    returns them. Masks are what _mask makes, or tensors of bools or of floats; without one, attention is causal if is_causal says so.
    What it does not know is refused (_WITHOUT_MEANING).

    s_aux: (heads), a logit that joins each row's denominator.
    sinks: (batch, heads, queries, 1), the same for each row.
    indices, block_indices: see _chosen."""
    if cache is not None:
        raise ValueError('attn_implementation="rapt" has no paged attention of generate_batch(): use "sdpa" there')
    unknown = [name for name, x in others.items() if x is not None and name not in _MEANINGLESS]
    unknown += ["s_aux beside sinks"] * (s_aux is not None and sinks is not None)
    if unknown:
        raise ValueError(f'attn_implementation="rapt" does not know {", ".join(unknown)}, which {type(module).__name__} hands to '
                         'attention: use "eager"')
    options: dict[str, Any] = {"scale": scaling, "softcap": softcap, "sinks": s_aux, "arith": arith}
    chosen = _chosen(module, query, key.shape[2], indices, block_indices)
    mask = bias = None
    if attention_mask is None:
        # _mask says so itself where a decoder's mask is causal. What a module says of itself is not looked at, as eager attention does not:
        # BridgeTower's encoders say that they are.
        if is_causal and query.shape[2] > 1:
            options["causal"] = "top-left"
    elif isinstance(attention_mask, _Mask):
        # Options count keys from an entry's first one on, and columns of a bias from the first of all.
        shifted = position_bias is not None and "ring_starts" in attention_mask.options and not isinstance(key, _Cached)
        if chosen is None and not shifted and attention_mask.shape == (key.shape[0], 1, query.shape[2], key.shape[2]):
            options |= attention_mask.options
            mask = options.pop("mask", None)
        else:
            mask = attention_mask.attended()
    elif isinstance(attention_mask, torch.Tensor) and attention_mask.dtype == torch.bool:
        mask = attention_mask
    elif isinstance(attention_mask, torch.Tensor) and (attention_mask.dtype in _SERVED or attention_mask.dtype == query.dtype):
        bias = attention_mask
    else:
        kind = getattr(attention_mask, "dtype", type(attention_mask).__name__)
        raise TypeError(f'attn_implementation="rapt" has masks of torch.bool, {", ".join(sorted(map(str, _SERVED | {query.dtype})))}, and '
                        f"attention_mask is {kind}")
    if chosen is not None:
        mask = chosen if mask is None else mask & chosen
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    weights_too = _returns_weights(module, output_attentions)
    if isinstance(key, _Cached):
        unserved = [name for name, there in (("dropout", dropout), ("output_attentions", weights_too), ("sinks", sinks is not None))
                    if there]
        if unserved:
            raise ValueError(f"rapt.transformers.KVCache has no {', '.join(unserved)}: use a DynamicCache"
                             + " or call model.eval()" * ("dropout" in unserved))
        return key.layer.attend(query, attention_mask, options, mask, bias), None
    if query.shape[0] != key.shape[0]:
        query = query.expand(key.shape[0], *query.shape[1:])
    query, key, value = (t if t.stride(-1) == 1 else t.contiguous() for t in (query, key, value))
    attended = attention_mask.attended() if isinstance(attention_mask, _Mask) and mask is None else mask
    if bias is attention_mask and bias is not None and bias.shape[1:3] == (1, 1):
        # A step of generate() with a static cache, say, most of whose keys are not there yet.
        there = bias[..., :key.shape[2]] > torch.finfo(bias.dtype).min
        attended = mask = there if mask is None else mask & there
        if not _is_traced(bias) and not bias[..., :key.shape[2]].masked_fill(~there, 0).any():
            bias = None
    if bias is None and mask is not None and mask.shape[:3] == (query.shape[0], 1, 1) and not _is_traced(mask):
        runs = runs_of(mask[:, 0, 0])
        if runs is not None:
            options |= of_runs(*runs)
            mask = None
    if bias is not None:  # of a static cache, or by distance, whose heads may lie next to each other
        bias = bias[..., :key.shape[2]]
        bias = bias if bias.stride(-1) == 1 else bias.contiguous()
    every_sink = sinks if s_aux is None else s_aux.reshape(1, -1, 1, 1)

    share: torch.Tensor | None = None  # what sinks leave to a row's keys

    def run() -> torch.Tensor:
        nonlocal share
        if sinks is None:
            return torch.ops.rapt.attention(query, key, value, mask=mask, bias=bias, **options)
        out, lse = torch.ops.rapt.attention_lse(query, key, value, mask=mask, bias=bias, **options)
        share = torch.sigmoid(lse[..., None] - sinks)
        return out * share.to(out.dtype)
    same: dict[str, Any] = {"mask": attended, "softcap": softcap, "scale": scaling,
                            "causal": options.get("causal") == "top-left"}
    if weights_too:
        _warn_of_weights()
    wanted = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (query, key, value, bias, every_sink))
    if dropout or query.dtype not in _SERVED or wanted + weights_too + _is_traced(query) > 1:
        out, weights = _by_pytorch(query, key, value, bias=bias, sinks=every_sink, dropout=dropout, **same)
        return out.transpose(1, 2), weights if weights_too else None
    out = _WithGradients.apply(run, same, query, key, value, bias, every_sink) if wanted else run()
    if not weights_too:
        return out.transpose(1, 2), None
    query, key, bias, s_aux = (None if t is None else t.detach() for t in (query, key, bias, s_aux))
    weights = torch.from_numpy(viz.weights(query, key, causal=options.get("causal") if attention_mask is None else None, scale=scaling,
                                           mask=attended, bias=bias, softcap=softcap, sinks=s_aux))
    weights = weights if share is None else weights.mul_(share)
    return out.transpose(1, 2), weights.to(query.dtype)


# ---- Caches ------------------------------------------------------------------------------------------------------------------


class _Cached(_StandIn):
    """The keys or the values of a cache, new ones included, for attention only."""
    layer: "_Layer"

    @staticmethod
    def __new__(cls, shape: tuple[int, ...], dtype: torch.dtype, layer: "_Layer") -> "_Cached":
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype)

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, layer: "_Layer"):
        self.layer = layer

    def dense(self) -> torch.Tensor:
        # Not a TypeError, after which 4.57 calls the model once more.
        raise ValueError('rapt.transformers.KVCache gives its keys and values to attn_implementation="rapt" only: this model '
                         "looks at them itself, or has another one; use a DynamicCache")


class _Layer(CacheLayerMixin):
    """A layer's keys and values in a rapt.KVCache. New tokens are stored when attention comes for them, since only then it is
    known which of them are padding."""
    is_sliding = False
    is_croppable = True

    def __init__(self, capacity: int, **options: Any):
        # Not by super().__init__(), which makes keys and values of None.
        self.is_initialized = False
        self.capacity, self.options, self.tokens = capacity, options, 0
        self.stored: rapt.KVCache | None = None
        self.new: tuple[torch.Tensor, torch.Tensor] | None = None

    def _no_tensors(self) -> None:
        if self.is_initialized:
            raise AttributeError(f"rapt.transformers.KVCache has no tensors of keys and values, which are stored as "
                                 f"{_name_of(self.options['type'])}: use a DynamicCache")

    keys = values = property(_no_tensors)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor | None = None) -> None:
        # 4.57 gives no values. Memory is taken at the first update(), which knows how many channels keys and values have.
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any,
               **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if torch.is_grad_enabled() and (key_states.requires_grad or value_states.requires_grad):
            raise ValueError("rapt.transformers.KVCache has no gradients: call the model under torch.no_grad(), or with a DynamicCache")
        self._check_stored()
        batch, heads, new, d_k = key_states.shape
        d_v = value_states.shape[-1]
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.stored is None or (self.tokens == 0 and self.stored.batch != batch):
            self.stored = rapt.KVCache(batch=batch, kv_heads=heads, capacity=self.capacity, d_k=d_k, d_v=d_v, **self.options)
        self.new = key_states.detach(), value_states.detach()
        self.tokens += new
        shape = batch, heads, self.tokens
        return _Cached((*shape, d_k), key_states.dtype, self), _Cached((*shape, d_v), value_states.dtype, self)

    def _check_stored(self) -> None:
        if self.new is not None:
            raise ValueError("rapt.transformers.KVCache has tokens that attention did not come for, or that it refused: "
                             "reset() it")

    def attend(self, query: torch.Tensor, given: torch.Tensor | None, options: dict[str, Any], mask: torch.Tensor | None,
               bias: torch.Tensor | None) -> torch.Tensor:
        assert self.stored is not None
        first = None
        if isinstance(given, _Mask) and given.first is not None and given.count is not None:
            first = given.first
            if bool((first + given.count != self.tokens).any()):
                raise ValueError("rapt.transformers.KVCache needs prompts that are padded on the left (padding_side=\"left\")")
        if self.new is not None:
            self._store(first)
        if (mask is not None or bias is not None) and (self.stored.lengths != self.tokens).any():
            raise ValueError("rapt.transformers.KVCache has not stored padding, and the model has a mask or bias with columns "
                             "for it")
        options = {name: x for name, x in options.items() if name in ("scale", "softcap", "sinks", "window", "causal", "arith")}
        if options.setdefault("causal", None) == "top-left" and query.shape[2] != self.tokens:
            raise ValueError("rapt.transformers.KVCache has tokens from before, and the model made no mask for them")
        out = self.stored.attend(query.detach(), mask=mask, bias=bias, threads=torch.get_num_threads(), **options)
        return out.transpose(1, 2)

    def _store(self, first: torch.Tensor | None) -> None:
        """The new tokens, but for those before each entry's first."""
        assert self.new is not None and self.stored is not None
        keys, values = self.new
        tokens = keys.shape[2]
        skipped = [0] if first is None else (first - (self.tokens - tokens)).clamp(0, tokens).tolist()
        if not any(skipped):
            self.stored.append(keys, values, threads=1)
        else:
            for entry, n in enumerate(skipped):
                self.stored.append(keys[entry:entry + 1, :, n:], values[entry:entry + 1, :, n:], entries=[entry], threads=1)
        self.new = None

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        # Earlier versions give a tensor of the queries' positions.
        return self.tokens + (len(query_length) if isinstance(query_length, torch.Tensor) else query_length), 0

    def get_seq_length(self) -> int:
        return self.tokens

    def get_max_length(self) -> int:
        return self.capacity

    get_max_cache_shape = get_max_length  # its name in earlier versions

    def reset(self) -> None:
        self.tokens, self.new, self.is_initialized = 0, None, False
        if self.stored is not None:
            for entry in range(self.stored.batch):
                self.stored.free(entry)

    def crop(self, tokens_to_remove: int) -> None:
        # What the number means depends on the version: a positive one is how many tokens to keep, or refused. So a DynamicLayer of
        # as many tokens, which takes no memory, is cropped first.
        self._check_stored()
        like = DynamicLayer()
        like.is_initialized, like.keys = self.is_initialized, torch.empty(1).expand(1, 1, self.tokens, 1)
        like.values = like.keys
        like.crop(tokens_to_remove)
        removed = self.tokens - like.keys.shape[2]
        self.tokens -= removed
        if self.stored is not None:
            for entry, length in enumerate(self.stored.lengths.tolist()):
                self.stored.truncate(entry, max(length - removed, 0))

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self._check_stored()
        if self.tokens and self.stored is not None:
            self.stored.reorder(beam_idx)

    def _other_batch(self, *_: Any) -> None:
        if self.tokens:
            raise ValueError("rapt.transformers.KVCache keeps as many sequences as it began with: use a DynamicCache")

    batch_repeat_interleave = batch_select_indices = _other_batch

    def offload(self) -> None:
        """It is in the CPU's memory."""

    prefetch = offload


def _name_of(kind: Any) -> str:
    """A type that rapt.KVCache takes, as rapt calls it."""
    return kind if isinstance(kind, str) else str(kind).removeprefix("torch.")


def _count_layers(config: Any) -> int:
    """How many layers a decoder's cache has, all of which are of a kind that _Layer can stand for."""
    unknown = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention", "chunked_attention"}
    layers = [] if unknown else DynamicCache(config=config).layers
    unknown |= {type(x).__name__ for x in layers if type(x) not in (DynamicLayer, DynamicSlidingWindowLayer)}
    if unknown or not layers:
        raise ValueError(f"rapt.transformers.KVCache has no layers of the kind {', '.join(sorted(unknown)) or 'of this model'}")
    return len(layers)


def _channels(config: Any) -> tuple[int, int] | None:
    """How many channels the keys and the values of a layer have, by its configuration; None if that does not say it."""
    def get(name: str) -> int:
        size = getattr(config, name, None)
        return size if isinstance(size, int) else 0
    if get("qk_nope_head_dim"):  # MLA, whose head_dim is that of rotation
        d_k = get("qk_nope_head_dim") + get("qk_rope_head_dim")
    else:
        d_k = get("head_dim") or get("hidden_size") // (get("num_attention_heads") or 1)
    return (d_k, get("v_head_dim") or d_k) if d_k else None


class KVCache(Cache):
    """A cache for generate() whose layers are rapt.KVCaches, which attn_implementation="rapt" attends to as they are stored.

    config: the model's.
    type, v_type: how keys and values are stored, as of rapt.KVCache: "f16", "int8", "q8_0", "q4_0" and so on.
    capacity: how many tokens each sequence has room for; None: the model's max_position_embeddings. Memory is used as tokens
        come.
    options: further ones of rapt.KVCache, such as page_size, with which beams share their pages.

    Prompts of different lengths are padded on the left; padding is not stored. Layers with sliding windows keep all tokens."""

    def __init__(self, config: Any, type: Any = "q8_0", v_type: Any = None, capacity: int | None = None, **options: Any):
        unknown_options = set(options) - set(inspect.signature(rapt.KVCache).parameters) | set(options) & {
            "batch", "kv_heads", "d_k", "d_v", "ring", "v_in_k"}
        if unknown_options:
            raise TypeError(f"rapt.transformers.KVCache has no option {', '.join(sorted(unknown_options))}")
        if not isinstance(config, transformers.PretrainedConfig):
            raise TypeError(f"config is {shown(config)}: a model's is needed, such as model.config")
        decoder = config.get_text_config(decoder=True)
        layers = _count_layers(decoder)
        if capacity is None:
            capacity = getattr(decoder, "max_position_embeddings", None)
        if capacity is None:
            raise ValueError("rapt.transformers.KVCache needs a capacity: the model's configuration has no max_position_embeddings")
        options |= {"type": type, "v_type": v_type}
        # A rapt.KVCache for each kind of layer refuses what is impossible, here rather than at the first token. Where the
        # configuration does not say how many channels there are, 256 are what every type can have; heads are those of given scales.
        scales = [options[name] for name in ("k_scales", "v_scales") if numpy.ndim(options.get(name, 0))]
        heads = numpy.shape(scales[0])[0] if scales else 1
        for d_k, d_v in {_channels(x) or (256, 256) for x in getattr(decoder, "per_layer_config", None) or [decoder]}:
            try:
                rapt.KVCache(kv_heads=heads, capacity=capacity, d_k=d_k, d_v=d_v, **options)
            except (TypeError, ValueError) as error:
                given = ", ".join(f"{name}={shown(options[name])}" for name in ("type", "v_type")
                                  if options[name] is not None)
                raise error.__class__(f"rapt.transformers.KVCache of {given}: {error}") from None
        super().__init__(layers=[_Layer(capacity, **options) for _ in range(layers)])

    def __repr__(self) -> str:
        first = self.layers[0]
        k, v = (_name_of(first.options[name]) for name in ("type", "type" if first.options["v_type"] is None else "v_type"))
        return f"KVCache({len(self.layers)} layers, {first.tokens} of {first.capacity} tokens, K {k}, V {v})"

    @property
    def nbytes(self) -> int:
        """The bytes of all layers, used or not."""
        return sum(layer.stored.nbytes for layer in self.layers if layer.stored is not None)


# By name, of each interface: what had the name before, and ours.
_registered: dict[str, dict[Any, tuple[Any, Any]]] = {}


def _functions(arith: str) -> dict[Any, Any]:
    """What each interface of Transformers has for rapt."""
    return {transformers.AttentionInterface: functools.partial(_attention_forward, arith=arith),
            masking_utils.AttentionMaskInterface: _mask_by_positions if _BY_POSITIONS else _mask}


def register(name: str = "rapt", arith: str = "exact") -> None:
    """Makes attn_implementation=name known to Transformers.

    arith: "exact", or "bf16", in which queries, keys, values and weights are rounded to bfloat16, whatever they are stored in: on CPUs
        with a matrix unit (AMX) several times as fast."""
    if not isinstance(name, str):
        raise TypeError(f"name is {shown(name)}: that of an attn_implementation is needed")
    functions, had = _functions(float_arith(arith)), _registered.get(name, {})
    _registered[name] = {}
    for interface, ours in functions.items():
        before = had[interface][0] if had else interface._global_mapping.get(name)
        _registered[name][interface] = before, ours
        interface.register(name, ours)


def unregister(name: str = "rapt") -> None:
    """Takes back register(name): Transformers knows no such attn_implementation any more, or the one that had the name before.
    A model that still has it is refused by Transformers when it is called: model.set_attn_implementation("sdpa")."""
    if not isinstance(name, str) or name not in _registered:
        known = ", ".join(sorted(_registered)) or "none"
        raise ValueError(f"name is {shown(name)}, which is not registered by rapt: registered are {known}")
    for interface, (before, ours) in _registered.pop(name).items():
        if interface._global_mapping.get(name) is not ours:  # somebody has registered another since
            continue
        if before is None:
            del interface._global_mapping[name]
        else:
            interface.register(name, before)


# ---- The same bits -----------------------------------------------------------------------------------------------------------


# Attention in each arithmetic, by names that register() does not change. They are known as soon as the module is, so that a pickled model
# can be read.
_REPRODUCIBLE = {arith: f"rapt_reproducible_{arith}" for arith in ("exact", "bf16")}
for _arith, _name in _REPRODUCIBLE.items():
    for _interface, _ours in _functions(_arith).items():
        _interface.register(_name, _ours)


def _example(model: Any) -> dict[str, Any]:
    """Inputs with which a model of Transformers can be called."""
    accepted = inspect.signature(model.forward).parameters
    inputs = {name: x for name, x in (model.dummy_inputs or {}).items() if name in accepted}
    if model.main_input_name == "pixel_values":
        config = getattr(model.config, "vision_config", model.config)
        size = getattr(config, "image_size", None) or 224
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        inputs = {"pixel_values": torch.linspace(-1, 1, config.num_channels * height * width).view(1, -1, height, width).to(model.dtype)}
    missing = [model.main_input_name] if model.main_input_name not in inputs else []
    if model.config.is_encoder_decoder and "decoder_input_ids" in accepted:
        inputs.setdefault("decoder_input_ids", inputs.get("input_ids"))
    if missing:
        raise ValueError(f"{type(model).__name__} has no inputs of its own to be tried with ({', '.join(missing)}): give some")
    return {name: x for name, x in inputs.items() if x is not None}


def reproducible(model: Any, inputs: Any = None, *, weights: str | None = None, arith: str = "exact", prepack: bool = False,
                 strict: bool = False) -> Reproducibility:
    """rapt.torch.reproducible() of a model of Transformers, or of a module that has some, such as a SentenceTransformer, with rapt's
    attention where there is a choice. Prefill, chunks and cached decoding, padding, and static and dynamic caches give the same
    bits, too.

    inputs: a dictionary of what the model is called with once, to find all that it computes; None: the model's dummy_inputs, or an
        image where it takes images. A run of generate(), whose steps take other ways, is looked at in `with report.observing():`.
    weights, arith, prepack, strict, and the report that is returned: as of rapt.torch.reproducible(). arith is that of attention,
        too."""
    check_module(model, "model")
    inner = [m for m in model.modules() if isinstance(m, transformers.PreTrainedModel)]
    if not inner:
        raise TypeError(f"model is {shown(model)}: one of Transformers is needed; rapt.torch.reproducible() is for others")
    if inputs is None and model is not inner[0]:
        raise ValueError(f"{type(model).__name__} has no inputs of its own to be tried with: give some")
    if inputs is not None and not isinstance(inputs, Mapping):
        raise TypeError(f'inputs is {shown(inputs)}: a dictionary is needed, such as {{"input_ids": ids}}')
    name = _REPRODUCIBLE[float_arith(arith)]
    given = _example(model) if inputs is None else dict(inputs)
    with contextlib.ExitStack() as undo:
        for part in inner:
            undo.callback(_set_attention, part, part.config._attn_implementation)
            _set_attention(part, name)
        report = make_reproducible(model, functools.partial(model, **given), weights=weights, arith=arith, prepack=prepack, strict=strict)
        report._undo.push(undo.pop_all())
    return report


def _set_attention(model: Any, implementation: str | None) -> None:
    """Where a model has no choice, its operators are substituted."""
    with warnings.catch_warnings(), contextlib.suppress(ValueError):
        warnings.simplefilter("ignore")
        model.set_attn_implementation(implementation)
