#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What options and calls mean, held against PyTorch and formulas, in TAP. Usage: semantics.py path/to/librapt.so [--capture]

What PyTorch has is expected as PyTorch computes it, in float64, by scaled_dot_product_attention and flex_attention, captured in
tests/data/semantics.npz. Where torch can be imported that is computed anew and must be what was captured; --capture writes it
again. What models ask for beyond that (positions of caches, masks that end before the keys, scaled rotary embedding, gated linear layers,
the step of a decoder) is expected as its formula says, written in NumPy's float64 here. Inputs come from a hash of integers. All
kernels that can run here are asked. Needs NumPy."""
import collections
import ctypes
import functools
import math
import pathlib
import sys
import warnings
from fractions import Fraction

try:
    import numpy as np
except ImportError:
    print("1..0 # SKIP NumPy is not installed")
    sys.exit()
try:
    import torch
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention
except ImportError as error:
    torch, no_torch = None, error

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import tap
from rapt import _native as rapt
from rapt._native import CAUSAL_BOTTOM_RIGHT as BOTTOM_RIGHT, CAUSAL_TOP_LEFT as TOP_LEFT
from tap import ok

CAPTURED = pathlib.Path(__file__).resolve().parents[1] / "data" / "semantics.npz"
TOLERANCE = 4e-6  # of a number x: times 1 + |x|

# ---- Inputs ------------------------------------------------------------------------------------------------------------------


def words(seed, *shape):
    """32 bits for each element, by a hash of its number."""
    x = np.arange(math.prod(shape), dtype=np.uint32) * np.uint32(0x9e3779b1) + np.uint32(seed * 0x85ebca6b & 0xffffffff)
    for shift, factor in (16, 0x7feb352d), (15, 0x846ca68b):
        x = (x ^ x >> np.uint32(shift)) * np.uint32(factor)
    return (x ^ x >> np.uint32(16)).reshape(shape)


def values(seed, *shape):
    """Bell-shaped, multiples of 1/64 from -4 to 4: exact in every type."""
    x = words(seed, *shape)
    return (sum((x >> np.uint32(8 * i) & np.uint32(127)).astype(np.int32) for i in range(4)) - 254).astype(np.float32) / 64


def coins(seed, *shape):
    """True three times of four."""
    return words(seed, *shape) % 4 != 0


def widened(x):
    """In float64."""
    return ((x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x).astype(np.float64)


def bf16(x):
    """The upper halves of float32: for numbers that they hold exactly."""
    halves = (np.asarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    assert np.array_equal(widened(halves), x), "not exact in bf16"
    return halves


# ---- Attention by the library ------------------------------------------------------------------------------------------------

TYPES = {np.dtype(np.float32): rapt.F32, np.dtype(np.float16): rapt.F16, np.dtype(np.uint16): rapt.BF16,
         np.dtype(bool): rapt.BOOL, np.dtype(np.uint8): rapt.BIT, np.dtype(np.int32): rapt.I32,
         np.dtype(np.int8): rapt.INT8}
OF_ENTRIES = "kv_lengths", "prefixes", "ring_starts", "q_offsets", "k_offsets"  # rapt_args' arrays of a number for each
LogitsBody = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(rapt.Logits))


def layout(x):
    """Of [batch, head, token, channel], of the [token, head, channel] of a ragged batch, or of [row, channel]."""
    b, h, t = {4: x.strides[:3], 3: (0, x.strides[1], x.strides[0]), 2: (0, 0, x.strides[0])}[x.ndim]
    return rapt.Layout(TYPES[x.dtype], b, h, t)


def attention(library, isa, q, k, v, **options):
    """O in float32, LSE, and the scores where a stage is given. An option is a field of rapt_desc, an array that belongs to one,
    or an array of rapt_args."""
    desc, args = library.new(rapt.Desc, isa=isa), library.new(rapt.Args)
    ragged_q, ragged_k = "q_starts" in options, "k_starts" in options
    starts = options.get("q_starts", options.get("k_starts"))
    desc.batch = len(q) if starts is None else len(starts) - 1
    desc.heads, desc.q_len = (q.shape[1], q.shape[0]) if ragged_q else q.shape[1:3]
    desc.kv_heads, desc.kv_len = (k.shape[1], k.shape[0]) if ragged_k else k.shape[1:3]
    desc.d_k, desc.d_v = q.shape[-1], v.shape[-1]
    longest = [max(np.diff(options[s])) if s in options else n
               for s, n in (("q_starts", desc.q_len), ("k_starts", desc.kv_len))]
    full = desc.batch, desc.heads, *longest

    def tensor(name, x, of=None):
        setattr(desc, name, of or layout(x))
        setattr(args, name, x)

    o, lse = np.full(q.shape[:-1] + v.shape[-1:], 99, np.float32), np.full(q.shape[:-1], 99, np.float32)
    results = [o, lse]
    for name, x in ("q", q), ("k", k), ("v", v), ("o", o):
        tensor(name, x)
    tensor("lse", lse, layout(lse[..., None]))
    for name, value in options.items():
        if name in ("mask", "bias"):
            columns = value.shape[-1] if {f"{name}_keys", f"{name}_key_stride"} & options.keys() else full[3]
            value = np.ascontiguousarray(value) if value.shape[-1] == columns else value.repeat(columns, -1)
            tensor(name, np.broadcast_to(value, full[:3] + (columns,)))
        elif name == "block_mask":
            desc.block_mask_queries, desc.block_mask_keys, value = value
            tensor(name, np.broadcast_to(value, (desc.batch, desc.heads) + value.shape[-2:]))
        elif name in ("slopes", "sinks"):
            value = np.asarray(value)
            value = np.broadcast_to(value if value.dtype in TYPES else value.astype(np.float32), full[:2])
            tensor(name, value, rapt.Layout(TYPES[value.dtype], *value.strides, 0))
        elif name in OF_ENTRIES:
            setattr(args, name, np.asarray(value, np.int32))
        elif name in ("q_starts", "k_starts"):
            setattr(desc, name, np.asarray(value, np.int32))
        elif name == "logits_body":
            desc.logits_body = LogitsBody(functools.partial(each_logit, value))
        elif name == "window":
            desc.window_left, desc.window_right = value
        elif name == "scores_stage":
            desc.scores_stage = value
            results.append(np.full(full, 99, np.float32))
            tensor("scores", results[-1])
        else:
            setattr(desc, name, value)
    if "slopes" in options:
        desc.alibi = rapt.ALIBI_DISTANCE
    library.run(desc, args)
    return tuple(results)


def each_logit(body, _, pointer):
    """Calls body(logits, batch, heads, tokens, keys), the latter three of shapes that broadcast to that of logits."""
    x = pointer.contents

    def array(address, kind, *shape):
        return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(kind)), shape)

    flat = array(x.logits, ctypes.c_float, (x.rows - 1) * x.row_stride + (x.keys - 1) * x.key_stride + 1)
    logits = np.lib.stride_tricks.as_strided(flat, (x.rows, x.keys), (4 * x.row_stride, 4 * x.key_stride))
    heads, tokens = (array(p, ctypes.c_int32, x.rows)[:, None] for p in (x.heads, x.tokens))
    body(logits, x.batch, heads, tokens, x.first_key + np.arange(x.keys))


# ---- Attention by PyTorch ----------------------------------------------------------------------------------------------------


def tensors(*arrays):
    """In float64."""
    return [torch.from_numpy(widened(x)) for x in arrays]


def sdpa(q, k, v, **options):
    q, k, v = tensors(q, k, v)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1], **options).numpy(), None


def flex(q, k, v, score_mod=None, mask_mod=None, **options):
    q, k, v = tensors(q, k, v)
    block_mask = mask_mod and create_block_mask(mask_mod, q.shape[0], q.shape[1], q.shape[2], k.shape[2], device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it is slow
        o, aux = flex_attention(q, k, v, score_mod=score_mod, block_mask=block_mask, enable_gqa=q.shape[1] != k.shape[1],
                                return_aux=AuxRequest(lse=True), **options)
    return o.numpy(), aux.lse.numpy()


def table(x):
    """An array that a score_mod or a mask_mod may index."""
    return torch.from_numpy(np.ascontiguousarray(x))


# ---- Attention by its definition ---------------------------------------------------------------------------------------------


def definition(qkv, score=None, keep=None, scale=None, sinks=None):
    """O, LSE, the logits and the weights. score and keep are as flex_attention's score_mod and mask_mod, of whole arrays."""
    q, k, v = map(widened, qkv)
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    at = np.ogrid[tuple(map(slice, q.shape[:3] + k.shape[2:3]))]
    scores = q @ k.swapaxes(2, 3) * (q.shape[3]**-0.5 if scale is None else scale)
    scores = score(scores, *at) if score else scores
    logits = np.where(keep(*at), scores, -np.inf) if keep else scores
    sink = np.full((1, 1, 1), -np.inf) if sinks is None else np.asarray(sinks, np.float64)[:, None, None]
    top = np.maximum(logits.max(axis=-1, keepdims=True, initial=-np.inf), sink)
    top[np.isinf(top)] = 0  # a row without keys
    weights = np.exp(logits - top)
    total = weights.sum(axis=-1, keepdims=True) + np.exp(sink - top)
    with np.errstate(divide="ignore"):
        lse = np.log(total) + top
    weights /= np.where(total == 0, 1, total)
    return weights @ v, lse[..., 0], logits, weights


def entries(numbers):
    """A number for each batch entry, as an array that broadcasts over heads, queries and keys."""
    return np.asarray(numbers)[:, None, None, None]


def columns(table, beyond):
    """table[b, h, i, t], and what holds for positions t at which it has ended."""
    def at(b, h, i, t):
        inside = np.minimum(t, table.shape[-1] - 1)
        return np.where(t < table.shape[-1], table[b % len(table), h % table.shape[1], i % table.shape[2], inside], beyond)
    return at


# ---- Cases -------------------------------------------------------------------------------------------------------------------
# case(name, (q, k, v), options of attention(), PyTorch's result as a function, options that must give something else: if they did
# not, the case would tell nothing.)

cases = {}


def case(name, qkv, options, expected, unlike=None):
    assert name not in cases
    cases[name] = qkv, options, expected, unlike


def qkv(seed, B, H, Hkv, S, Skv, D, Dv=None):
    return values(3 * seed, B, H, S, D), values(3 * seed + 1, B, Hkv, Skv, D), values(3 * seed + 2, B, Hkv, Skv, Dv or D)


def sdpa_cases():
    x = qkv(1, 2, 4, 4, 5, 9, 8)
    case("scale is 1/sqrt(d) by default", x, {}, lambda x=x: sdpa(*x), {"scale": 1.0})
    case("scale", x, {"scale": 0.875}, lambda x=x: sdpa(*x, scale=0.875))
    case("a negative scale", x, {"scale": -0.25}, lambda x=x: sdpa(*x, scale=-0.25))
    x = qkv(2, 1, 3, 3, 7, 700, 16, 5)
    case("d_v other than d_k, several chunks", x, {}, lambda x=x: sdpa(*x))
    case("logits of thousands", x, {"scale": 300.0}, lambda x=x: sdpa(*x, scale=300.0))
    for heads, kv_heads in (6, 2), (4, 1):
        x = qkv(3 + kv_heads, 2, heads, kv_heads, 6, 33, 8)
        case(f"enable_gqa, {heads} heads on {kv_heads}", x, {}, lambda x=x: sdpa(*x))
    x = qkv(6, 1, 2, 1, 5, 40, 12)
    for dtype in np.float16, np.uint16:
        narrow = [(a.view(np.uint32) >> 16).astype(dtype) if dtype == np.uint16 else a.astype(dtype) for a in x]
        case(f"inputs of {'bf16' if dtype == np.uint16 else 'f16'}", narrow, {}, lambda narrow=narrow: sdpa(*narrow))

    # PyTorch's is_causal aligns the first query with the first key; FlashAttention, ONNX and FlashInfer the last with the last.
    for S, Skv in (6, 6), (5, 9), (9, 5), (70, 600):
        x = qkv(10 + S, 1, 2, 2, S, Skv, 8, 3)
        other = None if Skv == S else {"causal": BOTTOM_RIGHT}
        case(f"is_causal is top-left, {S} queries on {Skv} keys", x, {"causal": TOP_LEFT},
             lambda x=x: sdpa(*x, is_causal=True), other)
    for S, Skv in (5, 9), (9, 5):
        x = qkv(10 + S, 1, 2, 2, S, Skv, 8, 3)
        case(f"causal_lower_right is bottom-right, {S} queries on {Skv} keys", x, {"causal": BOTTOM_RIGHT},
             lambda x=x, S=S, Skv=Skv: sdpa(*x, attn_mask=torch.ones(S, Skv, dtype=torch.bool).tril(Skv - S)),
             {"causal": TOP_LEFT})
    x = qkv(25, 1, 4, 2, 6, 6, 8)
    case("is_causal with enable_gqa", x, {"causal": TOP_LEFT}, lambda x=x: sdpa(*x, is_causal=True))

    x = qkv(30, 2, 3, 3, 6, 70, 8)
    for shape in (2, 3, 6, 70), (2, 1, 1, 70), (1, 3, 6, 1), (6, 70):
        mask = coins(31, *shape)
        if shape == (6, 70):
            mask[[0, 4]] = False  # rows without keys: 0
        case(f"a boolean mask {shape}", x, {"mask": mask}, lambda mask=mask: sdpa(*x, attn_mask=torch.from_numpy(mask)), {})
    lengths = np.array([70, 41])
    case("key lengths, as a mask of padding", x, {"kv_lengths": lengths},
         lambda: sdpa(*x, attn_mask=torch.from_numpy(np.arange(70) < lengths[:, None, None, None])), {})

    bias = values(32, 2, 1, 6, 70)
    case("a float mask", x, {"bias": bias}, lambda: sdpa(*x, attn_mask=tensors(bias)[0]), {})
    holes = np.where(coins(33, 3, 6, 70), values(34, 3, 6, 70), -np.inf).astype(np.float32)
    holes[:, 2] = -np.inf
    case("a float mask with -inf, and rows of nothing else: 0", x, {"bias": holes}, lambda: sdpa(*x, attn_mask=tensors(holes)[0]))
    for dtype in np.float32, np.float16:
        # Engines write the least finite number for "masked". It is a number: in a row of nothing else, one of float32 leaves
        # nothing of the scores, so the row is the mean of all values.
        least = np.where(coins(35, 6, 70), 0, np.finfo(dtype).min).astype(dtype)
        if dtype == np.float32:
            least[3] = np.finfo(dtype).min
        case(f"a float mask with the least {np.dtype(dtype)}", x, {"bias": least},
             lambda least=least: sdpa(*x, attn_mask=tensors(least)[0]))
    case("a boolean mask and a float mask", x, {"mask": coins(36, 6, 70), "bias": bias},
         lambda: sdpa(*x, attn_mask=tensors(bias)[0].masked_fill(torch.from_numpy(~coins(36, 6, 70)), -math.inf)))

    poisoned = [a.copy() for a in x]
    for a, place in zip(poisoned, ((0, 1, 2, 3), (1, 2, 60, 0), (0, 0, 5, 6))):
        a[place] = np.nan
    case("a NaN in a query, a key and a value", poisoned, {}, lambda: sdpa(*poisoned))


def flex_cases():
    S, Skv = 9, 75
    a = Skv - S
    x = qkv(40, 2, 4, 2, S, Skv, 8)
    case("softcap", x, {"softcap": 1.5}, lambda: flex(*x, lambda s, b, h, i, j: 1.5 * torch.tanh(s / 1.5)), {})
    slopes = 2.0**-np.arange(1, 5)
    for name, options, unlike in (("", {}, {}), (", causal", {"causal": BOTTOM_RIGHT}, {"causal": TOP_LEFT})):
        case(f"ALiBi{name}", x, {"slopes": slopes, **options},
             lambda options=options: flex(*x, lambda s, b, h, i, j: s - table(slopes)[h] * abs(i + a - j),
                                          (lambda b, h, i, j: j <= i + a) if options else None), unlike)
    bound = S + Skv
    relative = values(41, 4, 2 * bound)  # for each head and distance
    bias = relative[:, np.arange(Skv) - np.arange(S)[:, None] + bound]

    def relative_bias():
        return flex(*x, lambda s, b, h, i, j: s + table(relative)[h, j - i + bound])
    case("a relative bias", x, {"bias": bias}, relative_bias, {})

    def body(logits, b, heads, tokens, keys):
        logits += relative[heads, keys - tokens + bound]
    case("a relative bias by logits_body", x, {"logits_body": body}, relative_bias, {})

    def odd(logits, b, heads, tokens, keys):
        logits *= np.float32(0.5) * (1 + b) + np.float32(0.125) * ((heads + tokens * keys) % 3)
    case("any score_mod by logits_body", x, {"logits_body": odd, "softcap": 4.0, "causal": BOTTOM_RIGHT},
         lambda: flex(*x, lambda s, b, h, i, j: 4 * torch.tanh(s / 4) * (0.5 * (1 + b) + 0.125 * ((h + i * j) % 3)),
                      lambda b, h, i, j: j <= i + a), {"causal": BOTTOM_RIGHT})

    # Masks by position. A window of W keys to the left has W + 1 keys, as FlashAttention's and ONNX's.
    for name, options, unlike, mask_mod in (
        ("causal", {"causal": BOTTOM_RIGHT}, {"causal": TOP_LEFT}, lambda b, h, i, j: j <= i + a),
        ("a window, both sides included", {"window": (6, 2)}, {"window": (5, 2)},
         lambda b, h, i, j: (i + a - j <= 6) & (j - i - a <= 2)),
        ("a window and causal", {"window": (6, -1), "causal": BOTTOM_RIGHT}, {"window": (5, -1), "causal": BOTTOM_RIGHT},
         lambda b, h, i, j: (i + a - j <= 6) & (j <= i + a)),
        ("a window and causal, top-left", {"window": (3, 5), "causal": TOP_LEFT}, {"window": (3, 5)},
         lambda b, h, i, j: (i - j <= 3) & (j <= i)),
        ("a prefix", {"causal": TOP_LEFT, "prefix": 5}, {"causal": TOP_LEFT}, lambda b, h, i, j: (j < 5) | (j <= i)),
        ("a prefix for each entry", {"causal": TOP_LEFT, "prefixes": [3, 80]}, {"causal": TOP_LEFT, "prefix": 3},
         lambda b, h, i, j: (j < torch.where(b == 0, 3, 80)) | (j <= i)),
        ("a prefix and a window, whose left side stays", {"causal": BOTTOM_RIGHT, "prefix": 72, "window": (4, -1)},
         {"causal": BOTTOM_RIGHT, "window": (4, -1)}, lambda b, h, i, j: ((j < 72) | (j <= i + a)) & (i + a - j <= 4)),
        ("local chunks", {"causal": BOTTOM_RIGHT, "local_chunk": 7}, {"causal": BOTTOM_RIGHT},
         lambda b, h, i, j: (j // 7 == (i + a) // 7) & (j <= i + a)),
        ("local chunks, both directions", {"local_chunk": 16}, {"local_chunk": 17}, lambda b, h, i, j: j // 16 == (i + a) // 16),
        ("rows without keys", {"window": (-1, 0), "causal": TOP_LEFT, "mask": np.arange(Skv)[None] > 4}, {"causal": TOP_LEFT},
         lambda b, h, i, j: (j <= i) & (j > 4)),
    ):
        case(f"flex: {name}", x, options, lambda mask_mod=mask_mod: flex(*x, None, mask_mod), unlike)

    blocks = words(42, 4, 3, 2) % 2 == 0  # of 4 queries and 64 keys
    case("block-sparse", x, {"block_mask": (4, 64, blocks)},
         lambda: flex(*x, None, lambda b, h, i, j: table(blocks)[h, i // 4, j // 64]), {})

    # gpt-oss: o * sigmoid(lse - sink) is what a logit that has no value makes of o.
    sinks = np.array([0.5, -2, 3, 9], np.float32)

    def sunk():
        o, lse = flex(*x, None, lambda b, h, i, j: (j <= i + a) & (i + a - j <= 5))
        joined = np.logaddexp(lse, sinks[:, None].astype(np.float64))
        return o * np.exp(lse - joined)[..., None], joined
    case("sinks", x, {"sinks": sinks, "causal": BOTTOM_RIGHT, "window": (5, -1)}, sunk, {"causal": BOTTOM_RIGHT, "window": (5, -1)})

    cap, b32 = 2.0, bias[:, :, ::-1].copy()
    mask = coins(43, 2, 1, S, Skv)
    case("all of it: softcap, then ALiBi, bias and masks", x,
         {"softcap": cap, "slopes": slopes, "bias": b32, "mask": mask, "causal": BOTTOM_RIGHT, "window": (50, -1), "scale": 0.5},
         lambda: flex(*x, lambda s, b, h, i, j: cap * torch.tanh(s / cap) - table(slopes)[h] * abs(i + a - j) + table(b32)[h, i, j],
                      lambda b, h, i, j: (j <= i + a) & (i + a - j <= 50) & table(mask)[b, 0, i, j], scale=0.5),
         {"slopes": slopes, "bias": b32, "mask": mask, "causal": BOTTOM_RIGHT, "window": (50, -1), "scale": 0.5})
    long = qkv(44, 1, 2, 1, 40, 1100, 16, 4)
    case("a window over several chunks", long, {"causal": BOTTOM_RIGHT, "window": (700, -1), "softcap": 5.0},
         lambda: flex(*long, lambda s, b, h, i, j: 5 * torch.tanh(s / 5),
                      lambda b, h, i, j: (j <= i + 1060) & (i + 1060 - j <= 700)))


def document_cases():
    """Ragged batches: what PyTorch does by a mask over the tokens of all documents."""
    def documents(starts):
        return np.repeat(np.arange(len(starts) - 1), np.diff(starts))

    q_starts, k_starts = np.array([0, 1, 8, 8, 20]), np.array([0, 30, 30, 33, 80])
    x = qkv(50, 1, 4, 2, 20, 80, 8, 6)
    tokens = [np.ascontiguousarray(t[0].swapaxes(0, 1)) for t in x]  # [token, head, channel]
    q_of, k_of = documents(q_starts), documents(k_starts)
    shift = (np.diff(k_starts) - np.diff(q_starts) - q_starts[:-1] + k_starts[:-1])[q_of]  # of a query, to its place among keys
    for name, options, unlike, keep in (
        ("", {}, {"causal": BOTTOM_RIGHT}, lambda i, j: j == j),
        (", causal", {"causal": BOTTOM_RIGHT}, {"causal": TOP_LEFT}, lambda i, j: j <= i + table(shift)[i]),
        (", a window", {"window": (2, 1)}, {"window": (2, 2)},
         lambda i, j: (i + table(shift)[i] - j <= 2) & (j - i - table(shift)[i] <= 1)),
    ):
        def expected(keep=keep):
            o, lse = flex(*x, None, lambda b, h, i, j: (table(q_of)[i] == table(k_of)[j]) & keep(i, j))
            return o[0].swapaxes(0, 1), lse[0].T
        case(f"documents{name}", tokens, {"q_starts": q_starts, "k_starts": k_starts, **options}, expected,
             {"q_starts": q_starts, "k_starts": k_starts, **unlike})


# ---- What models ask for -----------------------------------------------------------------------------------------------------
# formula(name, (q, k, v), options of attention(), what the definition gives, options that must give something else)

formulas = {}


def formula(name, qkv, options, want, unlike=None):
    assert name not in cases | formulas
    formulas[name] = qkv, options, want, unlike


def position_cases():
    """Where queries and keys stand is said for each entry: everything that goes by position follows."""
    q_offsets, k_offsets = [11, -2, 40], [3, 0, 37]
    x = qkv(70, 3, 4, 2, 9, 30, 8)
    slopes = 2.0**-np.arange(1, 5)
    offsets = {"q_offsets": q_offsets, "k_offsets": k_offsets}
    for name, options, keep in (
        ("causal", {"causal": BOTTOM_RIGHT}, lambda p, t: t <= p),
        ("causal, whatever its alignment", {"causal": TOP_LEFT}, lambda p, t: t <= p),
        ("a window without a causal mask", {"window": (3, 2)}, lambda p, t: (p - t <= 3) & (t - p <= 2)),
        ("a window and causal", {"window": (4, -1), "causal": TOP_LEFT}, lambda p, t: (p - t <= 4) & (t <= p)),
        ("a prefix", {"prefix": 8, "causal": BOTTOM_RIGHT}, lambda p, t: (t < 8) | (t <= p)),
        ("local chunks", {"local_chunk": 7}, lambda p, t: p // 7 == t // 7),
        ("local chunks and causal", {"local_chunk": 16, "causal": BOTTOM_RIGHT}, lambda p, t: (p // 16 == t // 16) & (t <= p)),
        ("ALiBi", {"slopes": slopes}, None),
        ("ALiBi, causal", {"slopes": slopes, "causal": BOTTOM_RIGHT}, lambda p, t: t <= p),
    ):
        def score(s, b, h, i, j, alibi="slopes" in options):
            return s - slopes[h] * abs(i + entries(q_offsets) - j - entries(k_offsets)) if alibi else s

        def mask(b, h, i, j, keep=keep):
            return keep(i + entries(q_offsets), j + entries(k_offsets)) if keep else True
        formula(f"q_offsets and k_offsets: {name}", x, {**options, **offsets}, definition(x, score, mask), options)

    x = qkv(71, 2, 4, 2, 6, 50, 8)
    formula("a window aligned top-left, without a causal mask", x, {"window": (3, 2), "q_offsets": [0, 0]},
            definition(x, None, lambda b, h, i, j: (i - j <= 3) & (j - i <= 2)), {"window": (3, 2)})
    # Entries have 17 and 3 keys in the cache, and 2 and 6 new tokens, padded to 6: bottom-right would align the padding.
    cached, new = entries([17, 3]), entries([2, 6])
    options = {"causal": BOTTOM_RIGHT, "kv_lengths": [19, 9]}
    formula("right padding after cached keys", x, {**options, "q_offsets": [17, 3]},
            definition(x, None, lambda b, h, i, j: (j <= i + cached) & (j < cached + new)), options)

    # Llama 4's layers with local chunks of 16 keep 15 keys before the new ones. All keys of the sequence give the same.
    whole, queries = qkv(72, 2, 4, 2, 3, 60, 8), np.array([45, 20])
    first, at = queries - 15, entries(queries)
    trimmed = [np.stack([a[b, :, first[b]:first[b] + 18] for b in range(2)]) for a in whole[1:]]
    chunks = {"local_chunk": 16, "causal": BOTTOM_RIGHT}
    formula("a cache trimmed to the local chunk", (whole[0], *trimmed), {**chunks, "q_offsets": queries, "k_offsets": first},
            definition(whole, None, lambda b, h, i, j: (j // 16 == (i + at) // 16) & (j <= i + at)), chunks)


def column_cases():
    """Masks and biases that end before the keys, that have one column for all of them, or that go by the positions of a ring."""
    x = qkv(73, 2, 4, 2, 6, 70, 8)
    mask, bias, k_offsets = coins(74, 2, 4, 6, 41), values(75, 2, 4, 6, 41), [0, 25]
    bits = np.packbits(mask, axis=-1, bitorder="little")
    for rest, masked in (rapt.REST_MASKED, True), (rapt.REST_ATTENDED, False):
        what = "masked" if masked else "attended"
        for kind, given in ("mask", mask), ("mask of bits", bits):
            options = {"mask": given, "mask_keys": 41, "mask_rest": rest}
            formula(f"a {kind} of 41 columns on 70 keys, the rest {what}", x, options,
                    definition(x, None, columns(mask, not masked)), {**options, "mask_rest": 3 - rest})
        padded = columns(bias, -np.inf if masked else 0)
        for kind, given in ("f32", bias), ("f16", bias.astype(np.float16)), ("bf16", bf16(bias)):
            options = {"bias": given, "bias_keys": 41, "bias_rest": rest}
            formula(f"a bias of {kind} of 41 columns on 70 keys, the rest {what}", x, options,
                    definition(x, lambda s, *at, padded=padded: s + padded(*at)), {**options, "bias_rest": 3 - rest})

        at = columns(mask, not masked)

        def moved(b, h, i, j, at=at):
            return at(b, h, i, j + entries(k_offsets))
        options = {"mask": mask, "mask_keys": 41, "mask_rest": rest}
        formula(f"columns are positions, the rest {what}", x, {**options, "k_offsets": k_offsets},
                definition(x, None, moved), options)
    one_mask, one_bias = coins(76, 2, 4, 6, 1), values(77, 2, 4, 6, 1)
    one_mask[0, 0, 0], one_bias[1, 2, 3] = False, -np.inf
    for kind, given in ("mask", one_mask), ("mask of bits", np.packbits(one_mask, axis=-1, bitorder="little")):
        formula(f"a {kind} with a key stride of 0", x, {"mask": given, "mask_key_stride": 0},
                definition(x, None, lambda b, h, i, j: one_mask[b, h, i, 0]), {})
    for kind, given in ("f32", one_bias), ("f16", one_bias.astype(np.float16)):
        formula(f"a bias of {kind} with a key stride of 0", x, {"bias": given, "bias_key_stride": 0},
                definition(x, lambda s, b, h, i, j: s + one_bias[b, h, i, 0]), {})

    # A ring of 24 keys after 40 and 31 tokens: the key of position t lies at t mod 24, its column is t.
    whole, tokens = qkv(78, 2, 4, 2, 5, 40, 8), np.array([40, 31])
    ring, first = [np.zeros((2, 2, 24, 8), np.float32) for _ in "kv"], tokens - 24
    for b in range(2):
        t = np.arange(first[b], tokens[b])
        for to, a in zip(ring, whole[1:]):
            to[b][:, t % 24] = a[b][:, t]
    bias, mask = values(79, 1, 4, 5, 40), coins(80, 2, 1, 5, 40)
    options = {"bias": bias, "bias_keys": 40, "mask": mask, "mask_keys": 40, "causal": BOTTOM_RIGHT, "ring_starts": first % 24}
    formula("bias and mask by key position, in a ring", (whole[0], *ring), {**options, "k_offsets": first},
            definition(whole, lambda s, b, h, i, j: s + bias[0, h, i, j],
                       lambda b, h, i, j: mask[b, 0, i, j] & (j >= entries(first)) & (j <= i + entries(tokens) - 5)), options)


def number_cases():
    """Scale 0, and sinks and slopes of other types."""
    x = qkv(81, 2, 4, 2, 5, 40, 8)
    for name, options, keep in (("", {}, None), (", causal", {"causal": BOTTOM_RIGHT}, lambda b, h, i, j: j <= i + 35),
                                (", windows", {"window": (5, 1)}, lambda b, h, i, j: (i + 35 - j <= 5) & (j - i - 35 <= 1))):
        formula(f"scale 0 is the mean of the values{name}", x, {"scale": 0.0, **options}, definition(x, None, keep, 0.0), options)
    formula("scale NaN is the default", x, {"scale": math.nan}, definition(x), {"scale": 0.0})
    numbers = np.array([0.5, -2, 3.25, 9])
    for kind, given in ("f32", numbers.astype(np.float32)), ("f16", numbers.astype(np.float16)), ("bf16", bf16(numbers)):
        formula(f"sinks of {kind}", x, {"sinks": given}, definition(x, sinks=numbers), {})
        formula(f"slopes of {kind}", x, {"slopes": given},
                definition(x, lambda s, b, h, i, j: s - numbers[h] * abs(i + 35 - j)), {})


def onnx(q, k, v, mask=None, past=None, nonpad=None, causal=False, softcap=0.0):
    """ONNX's operator Attention of opset 24: Y, and qk_matmul_output for each qk_matmul_output_mode."""
    q, k, v = map(widened, (q, k, v))
    if past:
        k, v = (np.concatenate(pair, axis=2) for pair in zip(map(widened, past), (k, v)))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    i, j = np.ogrid[:q.shape[2], :k.shape[2]]
    bias = np.zeros((len(q), 1, q.shape[2], k.shape[2]))
    if mask is not None:  # the columns that it lacks are -inf
        given = np.where(mask, 0, -np.inf) if mask.dtype == bool else widened(mask)
        bias = bias + np.pad(given, [(0, 0)] * (mask.ndim - 1) + [(0, k.shape[2] - mask.shape[-1])], constant_values=-np.inf)
    if causal:
        offset = past[0].shape[2] if past else 0 if nonpad is None else entries(nonpad) - q.shape[2]
        bias = np.where(j <= i + offset, bias, -np.inf)
    if nonpad is not None:
        bias = np.where(j < entries(nonpad), bias, -np.inf)
    raw = q @ k.swapaxes(2, 3) / math.sqrt(q.shape[3])
    capped = softcap * np.tanh(raw / softcap) if softcap else raw
    logits = capped + bias
    weights = np.exp(logits - np.maximum(logits.max(axis=-1, keepdims=True), -1e300))
    weights /= np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300)  # a row without keys is 0
    return weights @ v, (raw, capped, logits, weights)


def as_onnx(q, k, v, mask=None, past=None, nonpad=None, causal=False, softcap=0.0):
    """The same as rapt's tensors and options, word for word as rapt.h has it above rapt_causal."""
    offset = np.zeros(len(q))
    if past:
        offset += past[0].shape[2]
        k, v = (np.concatenate(pair, axis=2) for pair in zip(past, (k, v)))
    elif nonpad is not None:
        offset = np.asarray(nonpad) - q.shape[2]
    options = {"softcap": softcap, "causal": BOTTOM_RIGHT if causal else rapt.CAUSAL_NONE, "q_offsets": offset}
    if mask is not None:
        name = "mask" if mask.dtype == bool else "bias"
        options |= {name: mask, f"{name}_keys": mask.shape[-1], f"{name}_rest": rapt.REST_MASKED}
    if nonpad is not None:
        options["kv_lengths"] = nonpad
    return (q, k, v), options


def onnx_cases():
    new, past = qkv(82, 2, 4, 2, 4, 6, 8), qkv(83, 2, 4, 2, 4, 5, 8)[1:]
    cache = qkv(84, 2, 4, 2, 3, 12, 8)
    mask, bias = coins(85, 2, 1, 4, 9), values(86, 1, 4, 3, 12)
    mask[..., 0] = True  # no row without keys
    for name, x, given, unlike in (
        ("past keys", new, {"past": past, "causal": True}, {"causal": BOTTOM_RIGHT}),
        ("past keys, also not top-left", new, {"past": past, "causal": True}, {"causal": TOP_LEFT}),
        ("past keys and a short boolean mask", new, {"past": past, "causal": True, "mask": mask}, None),
        ("past keys and a short mask, not causal", new, {"past": past, "mask": values(87, 4, 9)[None, None]}, None),
        ("nonpad_kv_seqlen", cache, {"nonpad": [9, 4], "causal": True}, {"causal": TOP_LEFT, "kv_lengths": [9, 4]}),
        ("nonpad_kv_seqlen below the number of queries", cache, {"nonpad": [2, 12], "causal": True}, {"causal": BOTTOM_RIGHT}),
        ("nonpad_kv_seqlen and a mask, softcap", cache, {"nonpad": [9, 4], "mask": bias, "softcap": 1.5}, {}),
        ("neither of them", cache, {"causal": True}, {"causal": BOTTOM_RIGHT}),
    ):
        of_rapt, options = as_onnx(*x, **given)
        formula(f"ONNX's Attention, {name}", of_rapt, options, (onnx(*x, **given)[0], None), unlike)

    stages = rapt.SCORES_RAW, rapt.SCORES_CAPPED, rapt.SCORES_LOGITS, rapt.SCORES_WEIGHTS
    given = {"past": past, "causal": True, "mask": values(88, 2, 4, 4, 11), "softcap": 1.5}
    of_rapt, options = as_onnx(*new, **given)
    y, outputs = onnx(*new, **given)
    for mode, (stage, scores) in enumerate(zip(stages, outputs)):
        formula(f"ONNX's Attention, qk_matmul_output_mode {mode}", of_rapt, {**options, "scores_stage": stage}, (y, None, scores),
                {**options, "scores_stage": stages[mode - 1]})


def score_cases():
    """The scores of each stage, with everything that changes them; keys beyond an entry's length do not exist."""
    x, lengths, sinks, slopes = qkv(89, 2, 4, 2, 6, 600, 8), [600, 530], np.array([0.5, -2, 3, 1]), 2.0**-np.arange(1, 5)
    bias, mask = values(90, 1, 4, 6, 600), coins(91, 2, 1, 6, 600)
    options = {"softcap": 2.0, "slopes": slopes, "bias": bias, "mask": mask, "causal": BOTTOM_RIGHT, "sinks": sinks,
               "kv_lengths": lengths, "scale": 0.5}

    def there(b, h, i, j):
        return j < entries(lengths)

    def kept(b, h, i, j):
        return mask[b, 0, i, j] & (j <= i + entries(lengths) - 6) & there(b, h, i, j)

    def capped(s, *at):
        return 2 * np.tanh(s / 2)

    def modified(s, b, h, i, j):
        return capped(s) - slopes[h] * abs(i + entries(lengths) - 6 - j) + bias[0, h, i, j]

    o, lse, logits, weights = definition(x, modified, kept, 0.5, sinks)
    for name, stage, scores in (
        ("as they are", rapt.SCORES_RAW, definition(x, None, there, 0.5)[2]),
        ("after softcap", rapt.SCORES_CAPPED, definition(x, capped, there, 0.5)[2]),
        ("after ALiBi, bias and masks", rapt.SCORES_LOGITS, logits),
        ("as weights, beside a sink", rapt.SCORES_WEIGHTS, weights),
    ):
        formula(f"scores {name}", x, {**options, "scores_stage": stage}, (o, lse, scores))
    plain = definition(x)
    for name, stage, scores in ("as they are", rapt.SCORES_RAW, plain[2]), ("as weights", rapt.SCORES_WEIGHTS, plain[3]):
        formula(f"scores {name}, without features", x, {"scores_stage": stage}, (*plain[:2], scores))


# ---- Checks ------------------------------------------------------------------------------------------------------------------


def error(got, want):
    """The largest difference from want, as a part of 1 + |want|; infinite where only one is NaN, or they are other infinities."""
    with np.errstate(invalid="ignore"):
        same = (got == want) | np.isnan(got) & np.isnan(want)
        off = np.where(same, 0, np.abs(got.astype(np.float64) - want) / (1 + np.abs(want)))
    return math.inf if np.isnan(off).any() else float(off.max(initial=0))


def worst(got, want):
    """The larger error of O and LSE, which PyTorch does not always give."""
    return max(error(g, w) for g, w in zip(got, want) if w is not None)


def against_pytorch(captured, library, kernels):
    for name, (x, options, _, unlike) in cases.items():
        want = captured[name]
        errors = {isa: worst(attention(library, isa.encode(), *x, **options), want) for isa in kernels}
        ok(max(errors.values()) <= TOLERANCE, f"{name}: as PyTorch", errors)
        if unlike is not None:
            ok(worst(attention(library, None, *x, **unlike), want) > 1e-3, f"{name}: told from what it is not")
    if not torch:
        ok(True, f"PyTorch still gives what was captured # SKIP {no_torch}")
        return
    for name, (_, _, expected, _) in cases.items():
        off = worst(captured[name], expected())
        ok(off <= 1e-7, f"{name}: PyTorch {torch.__version__} gives what was captured", off)


def against_formulas(library, kernels):
    for name, (x, options, want, unlike) in formulas.items():
        errors = {isa: worst(attention(library, isa.encode(), *x, **options), want) for isa in kernels}
        ok(max(errors.values()) <= TOLERANCE, f"{name}: as its formula", errors)
        if unlike is not None:
            ok(worst(attention(library, None, *x, **unlike), want) > 1e-3, f"{name}: told from what it is not")


def refused(library, what, line, call):
    """The call must be refused with these words in its line."""
    try:
        call()
        why = "it was accepted"
    except library.error as e:
        why = str(e)
    ok(line in why, f"{what}: refused, {line}", why)


def refusals(library):
    """What has no default is not guessed."""
    x = qkv(92, 1, 2, 2, 3, 9, 8)
    for name, array in ("mask", coins(93, 1, 1, 3, 7)), ("bias", values(93, 1, 1, 3, 7)):
        refused(library, f"a {name} of 7 columns on 9 keys, without a word about the rest", f"{name}_keys = 7: entry 0 has keys",
                lambda: attention(library, None, *x, **{name: array, f"{name}_keys": 7}))
        refused(library, f"a {name} of as many columns as keys, which begin at position 2", f"{name}_keys = 9: entry 0 has keys",
                lambda: attention(library, None, *x, **{name: array[..., :1].repeat(9, 3), "k_offsets": [2]}))
    refused(library, "an infinite scale", "scale = inf", lambda: attention(library, None, *x, scale=math.inf))


def same_bits(library, kernels):
    """What is the same said in other words has the same bits."""
    x, numbers = qkv(94, 2, 4, 2, 5, 40, 8), np.array([0.5, -2, 3.25, 9], np.float32)
    for what, one, other in (
        ("sinks of f16 and f32", {"sinks": numbers.astype(np.float16)}, {"sinks": numbers}),
        ("sinks of bf16 and f32", {"sinks": bf16(numbers)}, {"sinks": numbers}),
        ("slopes of f16 and f32", {"slopes": numbers.astype(np.float16)}, {"slopes": numbers}),
        ("slopes of bf16 and f32", {"slopes": bf16(numbers)}, {"slopes": numbers}),
        ("q_offsets of 35 and bottom-right", {"causal": TOP_LEFT, "q_offsets": [35, 35]}, {"causal": BOTTOM_RIGHT}),
        ("q_offsets of 0 and top-left", {"causal": BOTTOM_RIGHT, "q_offsets": [0, 0]}, {"causal": TOP_LEFT}),
        ("scale NaN and 1/sqrt(d_k)", {"scale": math.nan}, {"scale": 8**-0.5}),
    ):
        outputs = [[attention(library, isa.encode(), *x, **options) for options in (one, other)] for isa in kernels]
        ok(all(np.array_equal(a, b) for pair in outputs for a, b in zip(*pair)), f"{what}: the same bits")


def counts(library, kernels):
    """Conventions that can be counted: with equal scores, LSE is the natural logarithm of the number of keys."""
    def attended(S, Skv, **options):
        q, k, v = np.zeros((1, 1, S, 4), np.float32), values(60, 1, 1, Skv, 4), values(61, 1, 1, Skv, 4)
        outputs = [attention(library, isa.encode(), q, k, v, **options) for isa in kernels]
        assert all(np.array_equal(lse, outputs[0][1]) for _, lse in outputs)
        o, lse = outputs[0]
        n = np.exp(lse.astype(np.float64))[0, 0]
        assert (o[0, 0][n == 0] == 0).all(), "a row without keys is 0"
        assert np.abs(n - n.round()).max() < 1e-3, "LSE is no natural logarithm of a count"
        return n.round().astype(int).tolist()

    for what, want, S, Skv, options in (
        ("top-left: the first query sees the first key", [1, 2, 3], 3, 5, {"causal": TOP_LEFT}),
        ("bottom-right: the last query sees the last key", [3, 4, 5], 3, 5, {"causal": BOTTOM_RIGHT}),
        ("bottom-right with more queries than keys: the first see none", [0, 0, 1, 2, 3], 5, 3, {"causal": BOTTOM_RIGHT}),
        ("top-left with more queries than keys", [1, 2, 3, 3, 3], 5, 3, {"causal": TOP_LEFT}),
        ("a window of 2 and causal: 3 keys", [3] * 4, 4, 9, {"causal": BOTTOM_RIGHT, "window": (2, -1)}),
        ("a window of 2 and 1: 4 keys, 3 at the end", [4, 4, 4, 3], 4, 9, {"window": (2, 1)}),
        ("a window of 0 and 0: the diagonal", [1] * 4, 4, 9, {"window": (0, 0)}),
        ("a window without causal is aligned bottom-right", [0, 0, 1, 1], 4, 2, {"window": (0, 0)}),
        ("a prefix is seen by all", [4, 4, 4, 4, 5], 5, 5, {"causal": TOP_LEFT, "prefix": 4}),
        ("local chunks of 2", [1, 2, 1, 2, 1], 5, 5, {"causal": TOP_LEFT, "local_chunk": 2}),
        ("local chunks, queries before the first key", [0, 0, 0, 2, 2], 5, 2, {"local_chunk": 2}),
        ("no keys at all", [0, 0], 2, 0, {}),
        ("key lengths", [0, 1, 2], 3, 9, {"causal": BOTTOM_RIGHT, "kv_lengths": [2]}),
        ("1100 keys", [1100], 1, 1100, {}),
    ):
        got = attended(S, Skv, **options)
        ok(got == want, f"{what}: {want} keys", got)


# ---- Rotary embedding --------------------------------------------------------------------------------------------------------


def plain_frequencies(base, channels):
    return base**(-np.arange(0, channels, 2) / channels)


def llama3_frequencies(factor=8.0, low=1.0, high=4.0, original=8192):
    """Llama 3.1: long waves are stretched, short ones are not, those between in part (Hugging Face's rope_type "llama3")."""
    inverse = plain_frequencies(500000.0, 64)
    turns = original * inverse / (2 * np.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return inverse * (kept + (1 - kept) / factor), 1.0


def yarn_frequencies(factor=16.0, original=4096, fast=32, slow=1):
    """YaRN (Peng et al. 2023): the same by the number of the channel, and a temperature."""
    base, channels = 10000.0, 64
    first, last = (channels * np.log(original / (turns * 2 * np.pi)) / (2 * np.log(base)) for turns in (fast, slow))
    stretched = np.clip((np.arange(channels // 2) - np.floor(first)) / (np.ceil(last) - np.floor(first)), 0, 1)
    return plain_frequencies(base, channels) * (1 - stretched + stretched / factor), 0.1 * np.log(factor) + 1


def longrope_frequencies(factor=32.0, original=4096):
    """LongRoPE (Ding et al. 2024), as Phi-3: each pair has a factor of its own, and there is an amplitude."""
    stretched = 1 + 63 * (np.arange(48) / 47)**2
    return plain_frequencies(10000.0, 96) / stretched, np.sqrt(1 + np.log(factor) / np.log(original))


def correctly_rounded(positions, frequencies, amplitude):
    """c and s in f32, [position, pair]: angles are reduced exactly, by a pi of 60 digits."""
    turn = 2 * Fraction(314159265358979323846264338327950288419716939937510582097494, 10**59)
    angles = np.array([[float(p * Fraction(f) % turn) for f in frequencies] for p in range(positions)])
    return [(amplitude * part(angles)).astype(np.float32) for part in (np.cos, np.sin)]


def rotated(x, positions, frequencies, amplitude=1.0, interleaved=False):
    """x [..., token, channel], positions [..., token], in float64; channels beyond the pairs stay."""
    angles = np.asarray(positions)[..., None] * frequencies
    c, s = amplitude * np.cos(angles), amplitude * np.sin(angles)
    n, out = len(frequencies), widened(x)
    first, second = (np.s_[..., 0:2 * n:2], np.s_[..., 1:2 * n:2]) if interleaved else (np.s_[..., :n], np.s_[..., n:2 * n])
    a, b = out[first].copy(), out[second].copy()
    out[first], out[second] = a * c - b * s, b * c + a * s
    return out


def rope(library, x, positions, rope, table=None):
    """x [batch, head, token, channel], positions [batch, token]."""
    out = np.full(x.shape, 99, np.float32)
    args = library.new(rapt.RopeArgs, batch=x.shape[0], heads=x.shape[1], tokens=x.shape[2], d=x.shape[3], in_=layout(x),
                       out=layout(out), from_=x, to=out, rope=rope, positions=np.asarray(positions, np.int32))
    if table:
        args.rope_table = table
    library.c.rapt_rope_run(args)
    return out


def rope_table(c, s):
    """Of arrays [position, pair], whose rows may lie apart."""
    return rapt.RopeTable(TYPES[c.dtype], c, s, len(c), c.strides[0])


def rotary_embedding(library):
    """Scaled frequencies, and tables of c and s made of them, as engines keep them: both give the formula's rotation."""
    x, positions = values(100, 2, 3, 20, 96), words(101, 2, 20) % 150
    for name, frequencies, amplitude in (("Llama 3", *llama3_frequencies()), ("YaRN", *yarn_frequencies()),
                                         ("LongRoPE", *longrope_frequencies())):
        n, c_and_s = len(frequencies), correctly_rounded(150, frequencies, amplitude)
        beside = np.concatenate(c_and_s, axis=1)  # vLLM's cos_sin_cache: a row has both
        for interleaved in 0, 1:
            want = rotated(x, positions[:, None], frequencies, amplitude, interleaved)
            found = rope(library, x, positions, rapt.Rope(2 * n, interleaved, frequencies, amplitude, 0))
            by_table = rapt.Rope(2 * n, interleaved, None, 1.0, 0)
            pairs = "pairs" if interleaved else "halves"
            ok(error(found, want) <= TOLERANCE, f"{name}, {pairs}: as its formula", error(found, want))
            ok(error(found, rotated(x, positions[:, None], plain_frequencies(10000.0, 2 * n), 1.0, interleaved)) > 1e-3,
               f"{name}, {pairs}: told from frequencies that are not scaled")
            for what, table in ("a table", c_and_s), ("c beside s in a row", (beside[:, :n], beside[:, n:])):
                ok(np.array_equal(rope(library, x, positions, by_table, rope_table(*table)), found),
                   f"{name}, {pairs}, {what}: the bits of its frequencies")
        for kind, halves in (("f16", [a.astype(np.float16) for a in c_and_s]),
                             ("bf16", [(a.view(np.uint32) >> 16).astype(np.uint16) for a in c_and_s])):
            tables = rope_table(*halves), rope_table(*(widened(a).astype(np.float32) for a in halves))
            outputs = [rope(library, x, positions, by_table, table) for table in tables]
            ok(np.array_equal(*outputs), f"{name}, a table of {kind}: the bits of the same in f32")

    shifted = rapt.Rope(2 * n, 0, None, 1.0, -7)
    ok(np.array_equal(rope(library, x, positions + 7, shifted, rope_table(*c_and_s)),
                      rope(library, x, positions, rapt.Rope(2 * n, 0, None, 1.0, 0), rope_table(*c_and_s))),
       "an offset moves the row of a table")
    short = rope_table(*(a[:100] for a in c_and_s))
    refused(library, "a position beyond the table", "rope_table.positions = 100",
            lambda: rope(library, x, positions, by_table, short))


# ---- Linear layers and normalisation -------------------------------------------------------------------------------------------

Groups = collections.namedtuple("Groups", "kind rows")  # weights of ggml's types: [row, bytes]


def rows_of(x):
    return rapt.Layout(x.kind, 0, 0, x.rows.shape[1]) if isinstance(x, Groups) else layout(x)


def linear(library, isa, x, weight, gate=None, activation=0, residual=None, **arrays):
    """x [token, in], weight and gate [out, in]. arrays: bias, scales, gate_bias, gate_scales."""
    y = np.full((len(x), len(getattr(weight, "rows", weight))), 99, np.float32)
    desc = library.new(rapt.LinearDesc, tokens=len(x), in_=x.shape[1], out=y.shape[1], x=layout(x), y=layout(y),
                       weight=rows_of(weight), activation=activation, isa=isa)
    args = library.new(rapt.LinearArgs, x=x, weight=getattr(weight, "rows", weight), y=y, **arrays)
    if gate is not None:
        desc.gate, args.gate = rows_of(gate), getattr(gate, "rows", gate)
    if residual is not None:
        desc.residual, args.residual = layout(residual), residual
    library.run(desc, args)
    return y


def silu(x):
    """x / (1 + exp(-x)), without overflow."""
    return 0.5 * x * (1 + np.tanh(0.5 * x))


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {"SiLU": (rapt.SILU, silu), "GELU": (rapt.GELU, gelu), "GELU by tanh": (rapt.GELU_TANH, gelu_tanh),
               "ReLU": (rapt.RELU, lambda x: np.maximum(x, 0)), "no activation": (0, lambda x: x)}


def linear_layers(library, kernels):
    """Activations and gates: SwiGLU is the gate with SiLU, GeGLU that with GELU."""
    x, residual = values(110, 40, 96), values(111, 40, 50)
    weight, gate = (values(seed, 50, 96) / 16 for seed in (112, 113))
    bias, gate_bias = values(114, 50), values(115, 50)
    mapped, gated = widened(x) @ weight.T + bias, widened(x) @ gate.T + gate_bias
    for name, (activation, function) in ACTIVATIONS.items():
        for what, want, arrays in (("", function(mapped), {}),
                                   (", of a gate", function(gated) * mapped, {"gate": gate, "gate_bias": gate_bias})):
            outputs = {isa: [linear(library, isa.encode(), x[:n], weight, bias=bias, residual=residual[:n], activation=activation,
                                    **arrays) for n in (40, 3)] for isa in kernels}
            errors = {isa: error(many, want + residual) for isa, (many, _) in outputs.items()}
            ok(max(errors.values()) <= TOLERANCE, f"{name}{what}: as its formula", errors)
            same = all(np.array_equal(many[:3], few) for many, few in outputs.values())
            ok(same, f"{name}{what}: few tokens have the same bits")


def ggml_rows(kind, x):
    """quantize_row_q8_0_ref and quantize_row_q4_0_ref: for groups of 32, a scale in f16 and the numbers."""
    group = x.reshape(-1, 32)
    extreme = np.take_along_axis(group, np.abs(group).argmax(axis=1)[:, None], axis=1)  # the first of the largest, with its sign
    d = np.abs(extreme) / np.float32(127) if kind == rapt.Q8_0 else extreme / np.float32(-8)
    inverse = np.divide(1, d, out=np.zeros_like(d), where=d != 0)
    scaled = group * inverse
    if kind == rapt.Q8_0:
        numbers = (np.sign(scaled) * np.floor(np.abs(scaled.astype(np.float64)) + 0.5)).astype(np.int8).view(np.uint8)
    else:
        numbers = np.minimum(15, (scaled + np.float32(8.5)).astype(np.int8)).astype(np.uint8)
        numbers = numbers[:, :16] | numbers[:, 16:] << 4
    return np.concatenate([d.astype(np.float16).view(np.uint8), numbers], axis=1).reshape(len(x), -1)


def dequantised(kind, rows):
    """ggml's definition: scale times number."""
    group = rows.reshape(-1, 34 if kind == rapt.Q8_0 else 18)
    scale, numbers = group[:, :2].copy().view(np.float16).astype(np.float32), group[:, 2:]
    if kind == rapt.Q8_0:
        return (scale * numbers.view(np.int8)).reshape(len(rows), -1)
    return (scale * (np.concatenate([numbers & 15, numbers >> 4], axis=1).astype(np.float32) - 8)).reshape(len(rows), -1)


def quantised_weights(library, kernels):
    """ggml's types: as its reference writes them, and exactly what they stand for in a map."""
    x = values(120, 40, 1120)
    weight = np.concatenate([values(121, 30, 1120) / 32, values(122, 30, 1120) / 2**14, values(123, 4, 1120) / np.float32(70)])
    weight[5, 32:64] = 0
    for kind, name in (rapt.Q8_0, "q8_0"), (rapt.Q4_0, "q4_0"):
        rows = np.full((64, library.c.rapt_row_bytes(kind, 1120)), 99, np.uint8)
        library.c.rapt_quantise_groups(64, 1120, rapt.F32, weight.strides[0], weight.ctypes, kind, rows.ctypes)
        ok(np.array_equal(rows, ggml_rows(kind, weight)), f"rapt_quantise_groups, {name}: as ggml's reference")
        pair = Groups(kind, rows), dequantised(kind, rows)
        gates = Groups(kind, rows[::-1].copy()), pair[1][::-1].copy()
        map_of, gate_of = (widened(x) @ widened(weights[1]).T for weights in (pair, gates))
        swiglu = [{"gate": gate, "activation": rapt.SILU} for gate in gates]
        for what, want, given in ("", map_of, [{}, {}]), (", SwiGLU", silu(gate_of) * map_of, swiglu):
            for n in 40, 3:
                outputs = [[linear(library, isa.encode(), x[:n], w, **g)
                            for w, g in zip(pair, given)] for isa in kernels]
                what_of = f"weights of {name}, {n} tokens{what}"
                ok(all(np.array_equal(*both) for both in outputs), f"{what_of}: the bits of the same weights in f32")
                off = error(outputs[0][0], want[:n])
                ok(off <= TOLERANCE, f"{what_of}: as their definition", off)


def norm(library, isa, rms, x, residual=None, sum_kind=None, **arrays):
    """y, the sum, the mean and the inverse deviation, or None for those that there are not."""
    y, total = np.full(x.shape, 99, np.float32), None
    mean, inverse = (np.full(len(x), 99, np.float32) for _ in "12")
    args = library.new(rapt.NormArgs, tokens=len(x), channels=x.shape[1], x=layout(x), y=layout(y), from_=x, to=y,
                       mean=None if rms else mean, inverse_deviation=inverse, isa=isa, **arrays)
    if residual is not None:
        args.residual, args.residual_from = layout(residual), residual
    if sum_kind:
        total = np.full(x.shape, 99, sum_kind)
        args.sum, args.sum_to = layout(total), total
    (library.c.rapt_rms_norm_run_share if rms else library.c.rapt_layer_norm_run_share)(args, 0, 1)
    return y, total, None if rms else mean, inverse


def normalised(rms, z, weight, bias, epsilon):
    """y, z, its mean and its inverse deviation, by their formulas."""
    mean = 0 if rms else z.mean(axis=1, keepdims=True)
    inverse = 1 / np.sqrt(np.square(z - mean).mean(axis=1, keepdims=True) + epsilon)
    return (z - mean) * inverse * weight + bias, z, None if rms else mean[:, 0], inverse[:, 0]


def normalisation(library, kernels):
    """Layer normalisation with its statistics (torch.native_layer_norm's), RMSNorm, and both after a residual."""
    x, residual, weight, bias = values(130, 17, 100), values(131, 17, 100), values(132, 100), values(133, 100)
    x[3] *= 100
    numbers = {"weight": weight, "bias": bias, "epsilon": float(np.float32(0.01))}
    for rms, name in (False, "layer normalisation"), (True, "RMSNorm"):
        for what, added, kind in (("", None, None), (", with a residual", residual, None),
                                  (", with a residual and their sum", residual, np.float32),
                                  (", with a residual of f16 and their sum", residual.astype(np.float16), np.float16),
                                  (", with a residual of bf16", bf16(np.trunc(residual * 8) / 8), None)):
            want = normalised(rms, widened(x) + (0 if added is None else widened(added)), **numbers)
            outputs = {isa: norm(library, isa.encode(), rms, x, added, kind, **numbers) for isa in kernels}
            errors = {isa: worst((y, mean, inverse), (want[0], *want[2:])) for isa, (y, _, mean, inverse) in outputs.items()}
            ok(max(errors.values()) <= TOLERANCE, f"{name}{what}: as its formula", errors)
            if kind:
                sums = [got[1] for got in outputs.values()]
                ok(all(np.array_equal(got, want[1].astype(kind)) for got in sums), f"{name}{what}: it is rounded once")
    if not torch:
        return ok(True, f"torch.native_layer_norm gives the same # SKIP {no_torch}")
    theirs = torch.native_layer_norm(*tensors(x), (100,), *tensors(weight, bias), numbers["epsilon"])
    y, _, mean, inverse = norm(library, None, False, x, **numbers)
    off = worst((y.ravel(), mean, inverse), [result.numpy().ravel() for result in theirs])
    ok(off <= TOLERANCE, "layer normalisation, its mean and its inverse deviation: as torch.native_layer_norm", off)


# ---- Caches ------------------------------------------------------------------------------------------------------------------


def copied(caches, sources, ranges):
    """What rapt_kv_copy_run promises, by NumPy: [entry, head, token, channel], one range after the other."""
    for start, start_token, to, to_token, tokens in ranges:
        for cache, source in zip(caches, sources):
            cache[to, :, to_token:to_token + tokens] = source[start, :, start_token:start_token + tokens].copy()


def kv_copy(library):
    """Prefixes, gaps that are closed, and moves within an entry that overlap, with scales; from the same cache and another."""
    ranges = np.array([(0, 0, 3, 0, 12), (3, 2, 1, 5, 7), (2, 0, 2, 4, 8), (1, 6, 1, 1, 6), (4, 11, 0, 0, 1), (2, 3, 2, 3, 0)],
                      np.int32)

    def cache(seed):
        k, v = (words(seed + i, 5, 2, 12, d).astype(np.int8) for i, d in enumerate((16, 24)))
        return k, v, values(seed + 2, 5, 2, 12, 1), values(seed + 3, 5, 2, 12, 1)

    def scales_of(x):
        return rapt.Scales(1, *x.strides[:3], 0)

    for name, other in ("the same cache", None), ("another cache", cache(144)):
        for threads in 1, 3:
            to, want = cache(140), cache(140)
            copied(want, other or want, ranges)
            desc = library.new(rapt.KvCopyDesc, entries=5, kv_heads=2, tokens=12, d_k=16, d_v=24, k=layout(to[0]),
                               v=layout(to[1]), k_scales=scales_of(to[2]), v_scales=scales_of(to[3]))
            fields = "k", "v", "k_scales", "v_scales"
            given = dict(zip(fields, to)) | ({f"from_{field}": x for field, x in zip(fields, other)} if other else {})
            args = library.new(rapt.KvCopyArgs, ranges=ranges, count=len(ranges), **given)
            for ith in range(threads):
                library.c.rapt_kv_copy_run_share(desc, args, ith, threads)
            ok(all(map(np.array_equal, to, want)), f"rapt_kv_copy_run from {name}, in {threads} parts: as NumPy's")


# ---- The step of a decoder ---------------------------------------------------------------------------------------------------

Step = collections.namedtuple("Step", "queries tokens starts page_size kind options rope table given", defaults=({},))
FREQUENCIES = plain_frequencies(10000.0, 12)


def steps():
    """name: the last `queries` of `tokens` new tokens, which begin at starts, in a cache of that type and page size (0: dense),
    attention's options, and what else rapt_args say for each entry."""
    causal, top_left, starts = {"causal": BOTTOM_RIGHT}, {"causal": TOP_LEFT}, [5, 0, 31]
    halves, pairs, by_table = (rapt.Rope(12, interleaved, frequencies, 1.0, 0)
                               for interleaved, frequencies in ((0, FREQUENCIES), (1, FREQUENCIES), (0, None)))
    table, f32 = rope_table(*correctly_rounded(60, FREQUENCIES, 1.0)), np.float32
    return {
        "one token": Step(1, 1, starts, 0, f32, causal, halves, None),
        "one token, in pages": Step(1, 1, starts, 8, f32, causal, halves, None),
        "three tokens": Step(3, 3, starts, 0, f32, causal, pairs, None),
        "three tokens, pages of f16": Step(3, 3, starts, 8, np.float16, causal, halves, None),
        "a prompt": Step(20, 20, [0, 0, 0], 0, f32, causal, halves, None),
        "a prompt after a shared prefix, in pages": Step(20, 20, [12, 0, 7], 8, f32, causal, halves, None),
        "a prompt whose last query alone is wanted": Step(1, 20, [12, 0, 7], 0, f32, causal, halves, None),
        "a window": Step(3, 3, starts, 0, f32, {"window_left": 6, **causal}, halves, None),
        "a table of c and s": Step(3, 3, starts, 8, f32, causal, by_table, table),
        "no rotation": Step(3, 3, starts, 0, f32, causal, None, None),
        "top-left: queries at the first key": Step(3, 3, starts, 0, f32, top_left, halves, None),
        "key lengths that are given": Step(3, 3, starts, 0, f32, causal, halves, None, {"kv_lengths": [12, 9, 40]}),
        "a trimmed cache": Step(3, 3, starts, 0, f32, causal, by_table, table, {"k_offsets": [4, 2, 9]}),
        "query positions": Step(3, 3, starts, 0, f32, top_left, halves, None, {"q_offsets": [7, 3, 40], "k_offsets": [4, 2, 9]}),
    }


def places(step):
    """Of each entry: the new tokens' first key, the number of keys, and the positions of key 0 and query 0."""
    starts, first = np.array(step.starts, np.int32), np.array(step.given.get("k_offsets", [0, 0, 0]), np.int32)
    lengths = np.array(step.given.get("kv_lengths", starts + step.tokens), np.int32)
    default = first if step.options["causal"] == TOP_LEFT else first + lengths - step.queries
    return starts, lengths, first, np.array(step.given.get("q_offsets", default), np.int32)


def placed(x, table):
    """The cache [entry, head, key, channel] that lies in pages [page, head, token, channel]."""
    pages = x[table]
    return pages.swapaxes(1, 2).reshape(len(table), x.shape[1], -1, x.shape[3])


def step_problem(step):
    """The queries, the new keys and values, the cache before the step, and the table of its pages or None."""
    q, new_k, new_v = qkv(150, 3, 4, 2, step.queries, step.tokens, 16, 24)
    pages = words(153, 20).argsort()[:18].reshape(3, 6).astype(np.int32) if step.page_size else None  # of 20, those of each entry
    entries_of, keys = (20, step.page_size) if step.page_size else (3, 48)
    caches = [values(151 + i, entries_of, 2, keys, d).astype(step.kind) for i, d in enumerate((16, 24))]
    return (q, new_k, new_v), caches, pages


def step_expected(step, new, caches, pages):
    """O, and the cache after the step, by NumPy."""
    q, new_k, new_v = map(widened, new)
    starts, lengths, first, queries = map(entries, places(step))
    if step.rope:
        q, new_k = (rotated(x, at[..., 0] + np.arange(x.shape[2]), FREQUENCIES, 1.0, step.rope.interleaved)
                    for x, at in ((q, queries), (new_k, first + starts)))
    k, v = (widened(x if pages is None else placed(x, pages)) for x in caches)
    for cache, new_tokens in (k, new_k), (v, new_v):
        for b, start in enumerate(step.starts):
            cache[b, :, start:start + step.tokens] = new_tokens[b].astype(step.kind)

    def keep(b, h, i, j):
        distance = i + queries - j - first
        return (j < lengths) & (distance >= 0) & (distance <= step.options.get("window_left", 1000))
    return definition((q, k, v), None, keep)[0], k, v


def cache_desc(library, step, q, caches, pages, isa):
    """The cache of a step, as rapt_desc has it, and attention to it."""
    desc = library.new(rapt.Desc, batch=3, heads=4, kv_heads=2, q_len=step.queries, kv_len=48, d_k=16, d_v=24, q=layout(q),
                       k=layout(caches[0]), v=layout(caches[1]), isa=isa, **step.options)
    if pages is not None:
        desc.page_size, desc.pages, desc.table = step.page_size, 20, rapt.Layout(rapt.I32, pages.strides[0], 0, 0)
    return desc


def decoded(library, isa, step, new, caches, pages):
    """O by rapt_decode_run, which writes the caches."""
    q, new_k, new_v = new
    o = np.full((*q.shape[:3], 24), 99, np.float32)
    attention_desc = cache_desc(library, step, q, caches, pages, isa)
    attention_desc.o = layout(o)
    given = {name: np.array(numbers, np.int32) for name, numbers in step.given.items()}
    desc = library.new(rapt.DecodeDesc, attention=attention_desc, tokens=step.tokens, new_k=layout(new_k), new_v=layout(new_v))
    args = library.new(rapt.DecodeArgs, new_k=new_k, new_v=new_v, k=caches[0], v=caches[1], starts=places(step)[0],
                       attention=library.new(rapt.Args, q=q, o=o, table=pages, **given))
    rotate_by(step, desc, args)
    library.run(desc, args)
    return o


def rotate_by(step, desc, args):
    if step.rope:
        desc.rope = step.rope
    if step.table:
        args.rope_table = step.table


def in_three_calls(library, isa, step, new, caches, pages):
    """The same by rapt_rope_run, rapt_kv_append_run and rapt_run."""
    q, new_k, new_v = new
    starts, lengths, first, queries = places(step)
    o = np.full((*q.shape[:3], 24), 99, np.float32)
    if step.rope:
        q = rope(library, q, queries[:, None] + np.arange(step.queries), step.rope, step.table)
    attention_desc = cache_desc(library, step, q, caches, pages, isa)
    attention_desc.o = layout(o)
    same = {name: getattr(attention_desc, name) for name in "batch kv_heads kv_len d_k d_v k v page_size pages table".split()}
    desc = library.new(rapt.KvAppendDesc, tokens=step.tokens, new_k=layout(new_k), new_v=layout(new_v), **same)
    args = library.new(rapt.KvAppendArgs, new_k=new_k, new_v=new_v, k=caches[0], v=caches[1], starts=starts, table=pages,
                       positions=(first + starts)[:, None] + np.arange(step.tokens, dtype=np.int32) if step.rope else None)
    rotate_by(step, desc, args)
    library.c.rapt_kv_append_run(desc, args)
    library.run(attention_desc, library.new(rapt.Args, q=q, k=caches[0], v=caches[1], o=o, table=pages, kv_lengths=lengths,
                                            q_offsets=queries, k_offsets=first))
    return o


def decoder_steps(library, kernels):
    for name, step in steps().items():
        new, caches, pages = step_problem(step)
        want, errors, bits = step_expected(step, new, caches, pages), {}, []
        for isa in kernels:
            outputs = []
            for call in decoded, in_three_calls:
                written = [x.copy() for x in caches]
                outputs.append((call(library, isa.encode(), step, new, written, pages), *written))
            o, *written = outputs[0]
            errors[isa] = worst((o, *(written if pages is None else (placed(x, pages) for x in written))), want)
            bits.append(all(map(np.array_equal, *outputs)))
        tolerance = TOLERANCE if step.kind == np.float32 else 1e-3  # rounding to f16 may go the other way
        ok(max(errors.values()) <= tolerance, f"rapt_decode, {name}: as its formula, and so is the cache", errors)
        ok(all(bits), f"rapt_decode, {name}: the bits of rapt_rope_run, rapt_kv_append_run and rapt_run")


# ---- The program -------------------------------------------------------------------------------------------------------------


def capture():
    """Writes PyTorch's results, rounded to float32."""
    arrays = {}
    for name, (_, _, expected, _) in cases.items():
        for part, array in zip(("o", "lse"), expected()):
            if array is not None:
                arrays[f"{name}/{part}"] = array.astype(np.float32)
    np.savez_compressed(CAPTURED, **arrays)
    print(f"{CAPTURED}: {len(cases)} cases, {CAPTURED.stat().st_size} bytes, PyTorch {torch.__version__}")


def main():
    for add_cases in sdpa_cases, flex_cases, document_cases, position_cases, column_cases, number_cases, onnx_cases, score_cases:
        add_cases()
    if sys.argv[2:] == ["--capture"]:
        return capture()
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    library = rapt.Library(sys.argv[1])
    kernels = library.kernels()
    with np.load(CAPTURED) as file:
        captured = {name: tuple(file.get(f"{name}/{part}") for part in ("o", "lse"))
                    for name in cases if f"{name}/o" in file}
    ok(list(captured) == list(cases), "every case is captured", set(cases) - set(captured))
    counts(library, kernels)
    against_pytorch(captured, library, kernels)
    against_formulas(library, kernels)
    refusals(library)
    same_bits(library, kernels)
    rotary_embedding(library)
    linear_layers(library, kernels)
    quantised_weights(library, kernels)
    normalisation(library, kernels)
    kv_copy(library)
    decoder_steps(library, kernels)
    tap.done()


main()
