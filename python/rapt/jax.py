# SPDX-License-Identifier: Apache-2.0
"""JAX on CPUs: dot_product_attention(), with the signature of jax.nn's.

The first use of the package with a version of jaxlib compiles a small file (about six seconds), which is kept in a cache folder:
RAPT_CACHE in the environment, or rapt in XDG_CACHE_HOME or ~/.cache. Whoever packages rapt can compile it beforehand
(_jax_build.py).
"""
import ctypes
import functools
import os
import pathlib
import sys
from typing import Any, NamedTuple

try:
    import jax
    import jax.numpy as jnp
    from jax.ffi import ffi_call, pycapsule, register_ffi_target
except ImportError as error:
    raise ImportError(f"rapt.jax needs jax with jax.ffi: pip install jax ({error})") from None
if not hasattr(jax, "typeof"):
    raise ImportError(f"rapt.jax needs a JAX that has jax.typeof, and {jax.__version__} is installed: pip install --upgrade jax")
import numpy as np

from . import _jax_build as building
from . import _native as native
from ._arguments import flag, float_arith, number, shown, whole

__all__ = ["dot_product_attention"]

TARGET = "rapt_attention"
TYPES = "float32", "float16", "bfloat16"


# ---- The function that XLA calls ---------------------------------------------------------------------------------------------


def _cache() -> pathlib.Path:
    given = os.environ.get("RAPT_CACHE")
    if given:
        return pathlib.Path(given)
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "rapt"


def _load(path: pathlib.Path) -> ctypes.CDLL | None:
    """The compiled file, unless it is not there or was compiled from something else."""
    if not path.exists():
        return None
    loaded = ctypes.CDLL(os.fspath(path))
    loaded.rapt_jax_key.restype = ctypes.c_char_p
    return loaded if loaded.rapt_jax_key().decode() == building.key() else None


def _register() -> None:
    loaded = _load(pathlib.Path(__file__).with_name("jax_ffi.so"))
    if loaded is None:
        path = _cache() / f"jax_ffi-{building.key()}.so"
        if not path.exists():
            building.compiler()
            print(f"rapt.jax: compiling {path}, once for this version of jaxlib", file=sys.stderr)
            path.parent.mkdir(parents=True, exist_ok=True)
            building.build(path)
        loaded = _load(path)
        if loaded is None:
            raise ImportError(f"rapt.jax cannot use {path}, which was compiled from something else: remove it")
    loaded.rapt_jax_load.restype, loaded.rapt_jax_load.argtypes = ctypes.c_char_p, [ctypes.c_char_p]
    wrong = loaded.rapt_jax_load(native.library().c._name.encode())
    if wrong:
        raise ImportError(f"rapt.jax cannot use rapt's library: {wrong.decode()}")
    register_ffi_target(TARGET, pycapsule(loaded.rapt_jax_attention), platform="cpu")


_register()


# ---- Attention ---------------------------------------------------------------------------------------------------------------


class _Options(NamedTuple):
    """What is known when a call is traced."""
    scale: float
    is_causal: bool
    window: tuple[int, int]  # -1: any number of keys
    with_lse: bool
    bf16: bool  # arithmetic


def _axes(x: Any) -> frozenset[Any]:
    """Under shard_map, the axes along which an array varies."""
    kind = jax.typeof(x)
    return kind.vma if hasattr(kind, "vma") else kind.manual_axis_type.varying


def _varying(arrays: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """All arrays as varying along the axes along which one of them varies; and what says so of a result."""
    every = [_axes(x) for x in arrays]
    axes = frozenset().union(*every)
    if not axes:
        return arrays, {}
    arrays = [jax.lax.pcast(x, tuple(axes - own), to="varying") for x, own in zip(arrays, every)]
    manual = getattr(jax.sharding, "ManualAxisType", None)
    if manual is None:  # older versions
        return arrays, {"vma": axes}
    whole = jax.sharding.NamedSharding(jax.sharding.get_abstract_mesh(), jax.sharding.PartitionSpec())
    return arrays, {"manual_axis_type": manual(varying=axes), "sharding": whole}


def _call(options: _Options, q: Any, k: Any, v: Any, bias: Any, mask: Any, q_lengths: Any, kv_lengths: Any) -> list[Any]:
    """The result, and the log-sum-exp of each row if it is wanted."""
    more = bias, mask, q_lengths, kv_lengths
    arrays, varying = _varying([q, k, v, *(x for x in more if x is not None)])
    results = [jax.ShapeDtypeStruct((*q.shape[:-1], v.shape[-1]), k.dtype, **varying)]
    if options.with_lse:
        results.append(jax.ShapeDtypeStruct(q.shape[:-1], np.float32, **varying))
    has = {f"has_{name}": x is not None for name, x in zip(("bias", "mask", "query_lengths", "key_lengths"), more)}
    return ffi_call(TARGET, results, vmap_method="expand_dims")(
        *arrays, scale=np.float32(options.scale), is_causal=options.is_causal, window_left=np.int64(options.window[0]),
        window_right=np.int64(options.window[1]), is_bf16=options.bf16, **has)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(options: _Options, *arrays: Any) -> list[Any]:
    return _call(options, *arrays)


def _forward(options: _Options, *arrays: Any) -> tuple[Any, Any]:
    o, lse = _call(options._replace(with_lse=True), *arrays)
    return [o, lse][:1 + options.with_lse], (arrays, lse)


def _backward(options: _Options, kept: tuple[Any, Any], cotangents: list[Any]) -> tuple[Any, ...]:
    """Those of jax.nn's attention, computed anew, but for rows without keys, which are 0 here whatever the inputs are. The
    log-sum-exp is not differentiated: jax.nn's is not either."""
    (q, k, v, bias, mask, q_lengths, kv_lengths), lse = kept
    everything = q.shape[1] + k.shape[1]
    window = None if options.window == (-1, -1) else tuple(everything if side < 0 else side for side in options.window)
    channels = max(k.shape[-1], v.shape[-1])

    def widened(x: Any) -> Any:
        """In float32, since jax.nn knows no float16 on CPUs, and with channels of 0, since it wants as many in all."""
        return jnp.pad(x.astype(np.float32), ((0, 0),) * 3 + ((0, channels - x.shape[-1]),))

    def reference(q: Any, k: Any, v: Any, bias: Any) -> Any:
        o = jax.nn.dot_product_attention(
            widened(q), widened(k), widened(v), bias, mask, scale=options.scale, is_causal=options.is_causal,
            query_seq_lengths=q_lengths, key_value_seq_lengths=kv_lengths, local_window_size=window, implementation="xla")
        return o[..., :v.shape[-1]].astype(k.dtype)
    _, transposed = jax.vjp(reference, q, k, v, bias)
    cotangent = jnp.where(jnp.isneginf(lse)[..., None], 0, cotangents[0]).astype(cotangents[0].dtype)
    return *transposed(cotangent), None, None, None


_attention.defvjp(_forward, _backward)
_compiled = jax.jit(_attention, static_argnums=0)


def _four(x: Any, name: str) -> Any:
    """With a batch dimension, and others that are missing, in front."""
    x = jnp.asarray(x)
    if x.ndim > 4:
        raise ValueError(f"{name} has {x.ndim} dimensions, where 4 or fewer are needed")
    return x.reshape((1,) * (4 - x.ndim) + x.shape)


def _cast(name: str, x: Any, needed: Any) -> str:
    """What to write where an array is of another type. Floats make no mask."""
    if needed == np.bool_ and x.dtype.kind not in "iu":
        return ""
    to = "bool" if needed == np.bool_ else f"jnp.{np.dtype(needed).name}"
    return f" (write {name}{'.real' if x.dtype.kind == 'c' else ''}.astype({to}))"


def _checked(name: str, x: Any, shape: tuple[int | None, ...], dtype: Any) -> None:
    """In shape, None is any length."""
    if x.dtype != dtype:
        needed = np.dtype(dtype)
        raise TypeError(f"{name} is {x.dtype}, where {needed} is needed{_cast(name, x, needed)}")
    if any(need not in (None, have) for have, need in zip(x.shape, shape)):
        raise ValueError(f"{name} has shape {x.shape}, where {tuple('any' if n is None else n for n in shape)} is needed")


def _columns(x: Any, name: str, shape: tuple[int, ...]) -> Any:
    """A bias or a mask, which broadcasts to that shape."""
    if x is None:
        return None
    x = _four(x, name)
    if any(have not in (1, need) for have, need in zip(x.shape, shape)):
        raise ValueError(f"{name} has shape {x.shape}, which does not broadcast to {shape}")
    return x


def _lengths(x: Any, name: str, batch: int) -> Any:
    if x is None:
        return None
    x = jnp.asarray(x)
    if x.ndim != 1:
        raise ValueError(f"{name} has {x.ndim} dimensions, where 1 is needed")
    _checked(name, x, (batch,), np.int32)
    return x


def dot_product_attention(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, *, scale: Any = None,
                          is_causal: bool = False, query_seq_lengths: Any = None, key_value_seq_lengths: Any = None,
                          local_window_size: int | tuple[int, int] | None = None, implementation: str | None = None,
                          return_residual: bool = False, arith: str = "exact") -> Any:
    """jax.nn.dot_product_attention by rapt, on CPUs: softmax(scale * q k^T + bias) v, with the bits that rapt has everywhere, for any
    number of threads and in any batch.

    query: (batch, queries, heads, channels), or without the batch; float32, float16 or bfloat16, as key and value.
    key, value: (batch, keys, kv heads, channels), of which heads are a multiple. value may have other channels than key.
    bias, mask: what is added to the scaled scores, and what is attended where it is True; they broadcast to (batch, heads, queries,
        keys).
    scale: None is 1 / sqrt(channels).
    is_causal: query i attends to keys 0 to i, however many keys there are.
    query_seq_lengths, key_value_seq_lengths: (batch) int32; queries behind theirs are 0, keys behind theirs are masked.
    local_window_size: how many keys before and behind its own position a query attends to; a number stands for both.
    implementation: None or "rapt"; every other is jax.nn's own, "xla" for instance.
    return_residual: also return the log-sum-exp of each row, (batch, queries, heads) of key's type.
    arith: "exact", or "bf16", in which query, key, value and weights are rounded to bfloat16.

    It goes under jit, vmap and shard_map. Gradients (reverse mode, once) are those of jax.nn's attention in float32, which is
    computed anew for them.
    A row without keys is 0, with -inf as its log-sum-exp, where jax.nn's is the mean of all values.
    """
    if not isinstance(is_causal, (bool, np.bool_)):
        raise TypeError(f"is_causal is {shown(is_causal)}: True or False is needed")
    float_arith(arith)
    if implementation is not None and not isinstance(implementation, str):
        raise TypeError(f"implementation is {shown(implementation)}: a name or None is needed")
    if implementation not in (None, "rapt"):
        if arith != "exact":
            raise ValueError(f"arith is {arith!r}, which implementation={implementation!r} does not know")
        return jax.nn.dot_product_attention(
            query, key, value, bias, mask, scale=scale, is_causal=is_causal, query_seq_lengths=query_seq_lengths,
            key_value_seq_lengths=key_value_seq_lengths, local_window_size=local_window_size, implementation=implementation,
            return_residual=return_residual)
    shape = jnp.shape(query)
    q, k, v = _four(query, "query"), _four(key, "key"), _four(value, "value")
    if k.dtype.name not in TYPES:
        needed = f"{', '.join(TYPES[:-1])} or {TYPES[-1]}"
        raise TypeError(f"key is {k.dtype}, where {needed} is needed{_cast('key', k, np.float32)}")
    batch, keys, kv_heads, channels = k.shape
    if not channels:
        raise ValueError(f"key has shape {jnp.shape(key)}: one channel at least is needed")
    _checked("query", q, (batch, None, None, channels), k.dtype)
    _checked("value", v, (batch, keys, kv_heads, None), k.dtype)
    queries, heads = q.shape[1:3]
    if not kv_heads or heads % kv_heads:
        raise ValueError(f"query has {heads} heads, which are not a multiple of the {kv_heads} of key: their shapes "
                         f"{jnp.shape(query)} and {jnp.shape(key)} are taken for (batch, tokens, heads, channels)")
    v_channels = v.shape[-1]
    if not v_channels:  # there is a log-sum-exp all the same
        v = jnp.zeros((*v.shape[:-1], 1), v.dtype)
    bias = _columns(bias, "bias", (batch, heads, queries, keys))
    if bias is not None and bias.dtype.name not in TYPES:
        if bias.dtype.kind not in "biuf":
            raise TypeError(f"bias is {bias.dtype}, where real numbers are needed{_cast('bias', bias, np.float32)}")
        bias = bias.astype(np.float32)
    mask = _columns(mask, "mask", (batch, heads, queries, keys))
    if mask is not None:
        _checked("mask", mask, mask.shape, np.bool_)
    q_lengths = _lengths(query_seq_lengths, "query_seq_lengths", batch)
    kv_lengths = _lengths(key_value_seq_lengths, "key_value_seq_lengths", batch)
    window = (-1, -1)
    if local_window_size is not None:
        if isinstance(local_window_size, (tuple, list)) and len(local_window_size) != 2:
            raise ValueError(f"local_window_size has {len(local_window_size)} sides, where a number or a pair is needed")
        sides = local_window_size if isinstance(local_window_size, (tuple, list)) else (local_window_size, local_window_size)
        left, right = (whole(side, "local_window_size") for side in sides)
        if left >= 0 and right >= 0:
            window = left, right
        else:  # a window that does not hold the query's own position
            distance = np.arange(keys) - np.arange(queries)[:, None]
            within = ((distance >= -left) & (distance <= right))[None, None]
            mask = jnp.asarray(within) if mask is None else mask & within
    if scale is None:
        scale = 1 / np.sqrt(channels)
    elif isinstance(scale, jax.core.Tracer):
        q, scale = q.astype(np.float32) * scale, 1
    options = _Options(number(scale, "scale"), bool(is_causal), window, flag(return_residual, "return_residual"), arith == "bf16")
    o, *residual = _compiled(options, q, k, v, bias, mask, q_lengths, kv_lengths)
    o = o[..., :v_channels].reshape(*shape[:-1], v_channels)
    if not return_residual:
        return o
    return o, jax.lax.stop_gradient(residual[0].astype(k.dtype)).reshape(shape[:-1])
