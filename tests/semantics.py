#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What rapt's options mean, held against PyTorch where it has them, in TAP. Usage: semantics.py path/to/librapt.so [--capture]

The expectations are PyTorch's, in float64: those of scaled_dot_product_attention and flex_attention, captured in
tests/data/semantics.npz. Where torch can be imported they are computed anew and must be the captured ones; --capture writes them
again. Inputs come from a hash of integers. Every kernel that can run here is asked. Needs NumPy."""
import ctypes
import functools
import math
import pathlib
import sys
import warnings

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

import rapt_ctypes
import tap
from rapt_ctypes import CAUSAL_BOTTOM_RIGHT as BOTTOM_RIGHT, CAUSAL_TOP_LEFT as TOP_LEFT
from tap import ok

CAPTURED = pathlib.Path(__file__).resolve().parent / "data" / "semantics.npz"
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


# ---- Attention by the library ------------------------------------------------------------------------------------------------

TYPES = {np.dtype(np.float32): rapt_ctypes.F32, np.dtype(np.float16): rapt_ctypes.F16, np.dtype(np.uint16): rapt_ctypes.BF16,
         np.dtype(bool): rapt_ctypes.BOOL}


def aligned(size):
    raw = np.zeros(size + rapt_ctypes.WORKSPACE_ALIGNMENT, np.uint8)
    return raw[-raw.ctypes.data % rapt_ctypes.WORKSPACE_ALIGNMENT:]


def layout(x):
    """Of [batch, head, token, channel], or of the [token, head, channel] of a ragged batch."""
    b, h, t = (0, x.strides[1], x.strides[0]) if x.ndim == 3 else x.strides[:3]
    return rapt_ctypes.Layout(TYPES[x.dtype], b, h, t)


def attention(library, isa, q, k, v, **options):
    """O in float32, and LSE. An option is a field of rapt_desc, an array that belongs to one, or an array of rapt_args."""
    desc, args, keep = library.desc(), library.args(), []
    ragged_q, ragged_k = "q_starts" in options, "k_starts" in options

    def address(x):
        keep.append(x)
        return x.ctypes.data

    def int32(x):
        return address(np.asarray(x, np.int32))

    starts = options.get("q_starts", options.get("k_starts"))
    desc.batch = len(q) if starts is None else len(starts) - 1
    desc.heads, desc.q_len = (q.shape[1], q.shape[0]) if ragged_q else q.shape[1:3]
    desc.kv_heads, desc.kv_len = (k.shape[1], k.shape[0]) if ragged_k else k.shape[1:3]
    desc.d_k, desc.d_v = q.shape[-1], v.shape[-1]
    desc.isa = isa
    o, lse = np.full(q.shape[:-1] + v.shape[-1:], 99, np.float32), np.full(q.shape[:-1], 99, np.float32)
    desc.q, desc.k, desc.v, desc.o, desc.lse = (layout(x) for x in (q, k, v, o, lse[..., None]))
    args.q, args.k, args.v, args.o, args.lse = (address(x) for x in (q, k, v, o, lse))
    longest = [max(np.diff(options[s])) if s in options else n
               for s, n in (("q_starts", desc.q_len), ("k_starts", desc.kv_len))]
    full = desc.batch, desc.heads, *longest
    for name, value in options.items():
        if name in ("mask", "bias"):
            value = np.ascontiguousarray(value) if value.shape[-1] == full[3] else value.repeat(full[3], -1)
            value = np.broadcast_to(value, full)
            setattr(desc, name, layout(value))
            setattr(args, name, address(value))
        elif name == "map":
            desc.map_queries, desc.map_keys, value = value
            value = np.broadcast_to(value, (desc.batch, desc.heads) + value.shape[-2:])
            desc.map = layout(value)
            args.map = address(value)
        elif name in ("slopes", "sinks"):
            value = np.broadcast_to(np.asarray(value, np.float32), full[:2])
            setattr(desc, name, rapt_ctypes.Layout(rapt_ctypes.F32, *value.strides, 0))
            setattr(args, name, address(value))
        elif name in ("kv_lengths", "prefixes"):
            setattr(args, name, int32(value))
        elif name in ("q_starts", "k_starts"):
            setattr(desc, name, int32(value))
        elif name == "logits_body":
            keep.append(rapt_ctypes.LogitsBody(functools.partial(each_logit, value)))
            desc.logits_body = ctypes.cast(keep[-1], ctypes.c_void_p)
        elif name == "window":
            desc.window_left, desc.window_right = value
        else:
            assert name in dict(rapt_ctypes.Desc._fields_)
            setattr(desc, name, value)
    if "slopes" in options:
        desc.alibi = rapt_ctypes.ALIBI_DISTANCE
    plan = library.plan(desc)
    args.workspace_bytes = library.workspace_bytes(plan, 1)
    args.workspace = address(aligned(args.workspace_bytes))
    library.check(library.c.rapt_run(plan, ctypes.byref(args)))
    return o, lse


def each_logit(body, _, pointer):
    """Calls body(logits, batch, heads, tokens, keys), the latter three of shapes that broadcast to that of logits."""
    x = pointer.contents
    flat = np.ctypeslib.as_array(x.logits, ((x.rows - 1) * x.row_stride + (x.keys - 1) * x.key_stride + 1, ))
    logits = np.lib.stride_tricks.as_strided(flat, (x.rows, x.keys), (4 * x.row_stride, 4 * x.key_stride))
    heads, tokens = (np.ctypeslib.as_array(p, (x.rows, ))[:, None] for p in (x.heads, x.tokens))
    body(logits, x.batch, heads, tokens, x.first_key + np.arange(x.keys))


# ---- Attention by PyTorch ----------------------------------------------------------------------------------------------------


def tensors(*arrays):
    """In float64."""
    return [torch.from_numpy((x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x).double() for x in arrays]


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
        other = None if S == Skv else {"causal": BOTTOM_RIGHT}
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
    case("block-sparse", x, {"map": (4, 64, blocks)},
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
    for name, (x, options, expected, unlike) in cases.items():
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
    sdpa_cases()
    flex_cases()
    document_cases()
    if sys.argv[2:] == ["--capture"]:
        return capture()
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    library = rapt_ctypes.Library(sys.argv[1])
    names = []
    while name := library.c.rapt_isa_name(len(names)):
        names.append(name)
    kernels = [name.decode() for name in names if library.c.rapt_isa_usable(name, None, ctypes.c_size_t(0)) == 0]
    with np.load(CAPTURED) as file:
        captured = {name: tuple(file[f"{name}/{part}"] if f"{name}/{part}" in file else None for part in ("o", "lse"))
                    for name in cases if f"{name}/o" in file}
    ok(list(captured) == list(cases), "every case is captured", set(cases) - set(captured))
    counts(library, kernels)
    against_pytorch(captured, library, kernels)
    tap.done()


main()
