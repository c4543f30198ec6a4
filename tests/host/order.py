#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether the library computes what docs/order.py does, which is docs/order.md in NumPy: problems of all that it has, bit for
bit, by a kernel of each rounding class, in TAP; and whether the functions of whole models are those of the ggml device.
Usage: order.py path/to/librapt.so path/to/elementary.so [COUNT [FIRST]]; the latter is tests/host/elementary.c, compiled.

COUNT random problems of each kind are drawn, by their numbers from FIRST on. One that differs is told by its number, its first
difference and what it has; "order.py LIBRARY ELEMENTARY 1 NUMBER" draws it alone. NaN is equal to NaN, whatever its bits. Needs NumPy."""
import collections
import ctypes
import doctest
import functools
import inspect
import math
import pathlib
import re
import sys
import warnings
from fractions import Fraction

try:
    import numpy as np
except ImportError:
    print("1..0 # SKIP NumPy is not installed")
    sys.exit()

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = str(ROOT / "docs"), str(ROOT / "python")
import order
import stored
import tap
from rapt import _native as rapt
from stored import FLOATS, floats
from tap import ok

COUNT = 60
f32, BITS = np.float32, {"f32": np.float32, "f16": np.uint16, "bf16": np.uint16}
CAUSAL = {None: rapt.CAUSAL_NONE, "bottom-right": rapt.CAUSAL_BOTTOM_RIGHT, "top-left": rapt.CAUSAL_TOP_LEFT}
ARITHMETICS = {"exact": rapt.EXACT, "int8": rapt.INT8_DOT, "bf16": rapt.BF16_DOT}
STAGES = {"raw": rapt.SCORES_RAW, "capped": rapt.SCORES_CAPPED, "logits": rapt.SCORES_LOGITS, "weights": rapt.SCORES_WEIGHTS}
ACTIVATIONS = {None: rapt.ACTIVATION_NONE, "relu": rapt.RELU, "gelu": rapt.GELU, "gelu_tanh": rapt.GELU_TANH, "silu": rapt.SILU}
LogitsBody = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(rapt.Logits))


class Draw:
    """What is drawn for the problem of that number."""

    def __init__(self, number, what):
        self.rng = np.random.default_rng([number, *what.encode()])

    def one(self, *choices):
        return choices[self.rng.integers(len(choices))]

    def often(self, share):
        return self.rng.random() < share

    def normal(self, *shape):
        return self.rng.standard_normal(shape).astype(f32)

    def bits(self, share, *shape):
        return self.rng.random(shape) < share


# ---- Tensors -----------------------------------------------------------------------------------------------------------------

def widened(rows, kind):
    """Rows of a float type as float32."""
    if kind == "bf16": return (rows.astype(np.uint32) << 16).view(f32)
    return rows.view(np.float16).astype(f32) if kind == "f16" else rows


def tensor(draw, kind, shape, size=1.0):
    """Scales, which are of f16, would not hold every size."""
    return stored.drawn(draw.rng, kind, shape, size if kind in FLOATS else 1.0)


def put_into(t, places, values):
    """Changes elements of a float type."""
    t.values[places] = values
    t.rows[...] = floats(t.values, t.kind).rows


def spoil(draw, t, share):
    """Puts NaN and infinities into that share of the elements, where the type has them."""
    places = draw.bits(share, *t.values.shape)
    if t.kind in FLOATS: put_into(t, places, draw.rng.choice(np.array([np.nan, np.inf, -np.inf], f32), places.sum()))


def number_of(kind):
    return getattr(rapt, kind.upper())


def layout(x, kind="f32"):
    """Of [head, row, element] or [row, element]; a dimension of one is that of all."""
    *outer, _ = (0 if n == 1 else stride for n, stride in zip(x.shape, x.strides))
    return rapt.Layout(number_of(kind), 0, *([0, *outer] if len(outer) == 1 else outer))


def shown(*tensors, **options):
    kinds = [f"{t.kind} {t.values.shape}" for t in tensors]
    return f"{', '.join(kinds)}; " + ", ".join(f"{name} {getattr(x, 'shape', x)}" for name, x in options.items())


def difference(name, found, wanted, kind="f32"):
    """Of rows of a float type and an array of float32: a line about the first element whose bits differ, or None."""
    found, wanted = widened(found, kind), np.broadcast_to(wanted if kind == "f32" else order.rounded(wanted, kind), found.shape)
    assert found.dtype == wanted.dtype == f32, (name, found.dtype, wanted.dtype)
    other = (found.view(np.uint32) != wanted.copy().view(np.uint32)) & ~(np.isnan(found) & np.isnan(wanted))
    if not other.any(): return None
    at = tuple(map(int, np.argwhere(other)[0]))
    return f"{name}{list(at)} is {float(found[at]).hex()}, wanted {float(wanted[at]).hex()}; {other.sum()} of {other.size} differ"


def differences(name, numbers, differs):
    """Reports what differs(draw) says of each number."""
    lines = [f"{number}: {line}" for number in numbers if (line := differs(Draw(number, name.split(",")[0])))]
    ok(not lines, f"{name}: {len(numbers)} random problems", "\n".join(lines))


# ---- Attention by the library ------------------------------------------------------------------------------------------------

# options: those of order.attention.
Problem = collections.namedtuple("Problem", "q k v options o_kind bias_kind", defaults=("f32", "f32"))


def described(library, isa, x):
    """A description and arguments that have all but results."""
    desc, args, given = library.new(rapt.Desc, isa=isa.encode()), library.new(rapt.Args), x.options
    (desc.heads, desc.q_len, desc.d_k), (desc.kv_heads, desc.kv_len, desc.d_v) = x.q.values.shape, x.v.values.shape
    desc.arith, desc.causal = ARITHMETICS[given.get("arithmetic", "exact")], CAUSAL[given.get("causal")]
    desc.window_left, desc.window_right = given.get("window", (-1, -1))

    def put(name, array, of):
        setattr(desc, name, of)
        setattr(args, name, array)

    for name, t in ("q", x.q), ("k", x.k), ("v", x.v): put(name, t.rows, layout(t.rows, t.kind))
    for name in "k", "v":
        for of in "token", "channel":
            scales = given.get(f"{name}_{of}_scales")
            if scales is not None:
                strides = (4, 0) if of == "token" else (0, 4 if scales.shape[1] > 1 else 0)
                put(f"{name}_scales", scales, rapt.Scales(1, 0, scales.strides[0], *strides))
    for name in "prefix", "local_chunk", "softcap", "scale":
        if given.get(name) is not None: setattr(desc, name, given[name])
    for name in "q_offset", "k_offset":
        if name in given: setattr(args, f"{name}s", np.array([given[name]], np.int32))
    if "mask" in given:
        mask = given["mask"].astype(np.uint8)
        put("mask", mask, layout(mask, "bool"))
        desc.mask_keys, desc.mask_rest = mask.shape[-1], rapt.REST_ATTENDED if given["mask_rest"] else rapt.REST_MASKED
    if "bias" in given:
        bias = floats(given["bias"], x.bias_kind).rows
        put("bias", bias, layout(bias, x.bias_kind))
        desc.bias_keys, desc.bias_rest = bias.shape[-1], rapt.REST_MASKED if given["bias_rest"] else rapt.REST_ATTENDED
    if "block_mask" in given:
        desc.block_mask_queries, desc.block_mask_keys, blocks = given["block_mask"]
        put("block_mask", blocks, layout(blocks, "bool"))
    for name in "slopes", "sinks":
        if name in given: put(name, given[name], rapt.Layout(rapt.F32, 0, 4, 0))
    if "slopes" in given: desc.alibi = rapt.ALIBI_BIAS if given.get("bias_by_slope") else rapt.ALIBI_DISTANCE
    if "callback" in given: desc.logits_body = LogitsBody(lambda _, x: each_logit(given["callback"], x.contents))
    return desc, args


def each_logit(callback, x):
    shape, strides = (x.rows, x.keys), (4 * x.row_stride, 4 * x.key_stride)
    flat = np.ctypeslib.as_array(ctypes.cast(x.logits, ctypes.POINTER(ctypes.c_float)), (1,))
    logits = np.lib.stride_tricks.as_strided(flat, shape, strides)
    logits[...] = callback(logits)


def put_results(desc, args, x):
    """Places for O and LSE."""
    shape = *x.q.values.shape[:2], x.v.values.shape[2]
    args.o, args.lse = o, lse = np.full(shape, 99, BITS[x.o_kind]), np.full(shape[:2], 99, f32)
    desc.o, desc.lse = rapt.Layout(number_of(x.o_kind), 0, *o.strides[:2]), rapt.Layout(rapt.F32, 0, *lse.strides)
    return {"o": o, "lse": lse}


def computed(library, isa, x, stage=None):
    """O, LSE, and the scores of a stage."""
    desc, args = described(library, isa, x)
    found = put_results(desc, args, x)
    if stage:
        found[stage] = scores = np.full((*x.q.values.shape[:2], x.k.values.shape[1]), 99, f32)
        desc.scores_stage, desc.scores, args.scores = STAGES[stage], layout(scores), scores
    library.run(desc, args)
    return found


def ordered(x, fused_class):
    """What docs/order.py computes."""
    integers = x.options.get("arithmetic") == "int8"
    k, v = (t.numbers if integers else t.values for t in (x.k, x.v))
    return order.attention(x.q.values, k, v, **x.options, fused_class=fused_class,
                           **({"k_groups": x.k.groups, "v_groups": x.v.groups} if integers else {}))


def attention_differs(library, isa, fused_class, x, stages):
    want = ordered(x, fused_class)
    for stage in stages:
        for name, found in computed(library, isa, x, stage).items():
            wanted = getattr(want, name)
            line = difference(name, found, wanted, x.o_kind if name == "o" else "f32")
            if line: return f"{line}: {shown(x.q, x.k, x.v, o=x.o_kind, bias_kind=x.bias_kind, **x.options)}"
    return None


# ---- Random attention --------------------------------------------------------------------------------------------------------


CALLBACKS = (lambda x: x * f32(0.75), lambda x: np.where(x < f32(-0.5), f32(-np.inf), x),
             lambda x: np.where(x < f32(-3), x, abs(x)))  # which leave -inf as it is


def random_attention(draw, arithmetic):
    one, often, normal = draw.one, draw.often, draw.normal
    heads, kv_heads = one((1, 1), (2, 1), (4, 2), (3, 3), (6, 2))
    queries, keys = one(1, 2, 3, 7, 17, 33), one(1, 5, 63, 64, 100, 130, 511, 513, 600, 1030)
    if heads * queries * keys > 40000: queries = 2
    k_kind, v_kind = (one(*stored.INTEGER_KV) if arithmetic == "int8" else one("f32", one(*FLOATS), one(*stored.KV)) for _ in "kv")
    widths = (1, 3, 16, 31, 40, 64, 100), (32, 64, 96, 160)
    d_k, d_v = one(*widths[stored.channels_of(k_kind) > 1]), one(*widths[stored.channels_of(v_kind) > 1])
    if often(0.15): d_k = one(128, 160, 256) if stored.channels_of(k_kind) > 1 else one(128, 129, 130, 192, 200)
    size = one(1.0, 1.0, 1.0, 8.0, 2.0**-70)
    q, k = tensor(draw, one(*FLOATS), (heads, queries, d_k), size), tensor(draw, k_kind, (kv_heads, keys, d_k))
    v = tensor(draw, v_kind, (kv_heads, keys, d_v), one(1.0, 1.0, 2.0**-130, 2.0**100))
    given = {"arithmetic": arithmetic, "scale": one(None, None, None, 0.3, -0.25, 0.0, 2.0**-70, 2.0**70 if size < 1 else 3.0)}
    if often(0.4): given["causal"] = one("bottom-right", "top-left")
    if often(0.3): given["window"] = one((-1, 3), (40, -1), (2, 2), (300, 7), (0, -1))
    if often(0.15): given["prefix"] = int(draw.rng.integers(keys + 1))
    if often(0.15): given["local_chunk"] = one(1, 7, 100)
    if often(0.2): given["q_offset"] = int(draw.rng.integers(-5, keys + 5))
    if often(0.2): given["k_offset"] = one(1, 70, 1000003)
    columns = given.get("k_offset", 0) + keys if given.get("k_offset", 0) < 1000 else 50
    table = one(heads, 1), one(queries, 1), one(columns, max(2, columns // 2))
    if often(0.3): given |= {"mask": draw.bits(one(0.03, 0.5, 0.9), *table), "mask_rest": often(0.5)}
    bias_kind = one(*FLOATS)
    if often(0.3):
        bias = np.where(draw.bits(one(0, 0.5, 0.9), *table), f32(-np.inf), normal(*table))
        given |= {"bias": floats(bias, bias_kind).values, "bias_rest": one(0, -np.inf)}
    if often(0.2):
        rows, columns = one(1, 4, 64), one(64, 128)
        given["block_mask"] = rows, columns, draw.bits(0.6, heads, -(-queries // rows), -(-keys // columns))
    if often(0.2): given["softcap"] = one(0.5, 3.0, 50.0)
    if often(0.25): given |= {"slopes": normal(heads), "bias_by_slope": "bias" in given and often(0.5)}
    if often(0.1): given["callback"] = one(*CALLBACKS)
    if often(0.25): given["sinks"] = one(normal(heads), normal(heads) * f32(30), np.full(heads, -np.inf, f32))
    for name, d in ("k", d_k), ("v", d_v):
        if often(0.2): given[f"{name}_token_scales"] = normal(kv_heads, keys)
        elif often(0.25): given[f"{name}_channel_scales"] = normal(kv_heads, one(d, 1))
    if often(0.3):
        for t, share in (v, 0.02), (k, one(0, 0.003)), (q, one(0, 0, 0.02)): spoil(draw, t, share)
    return Problem(q, k, v, given, one("f32", *FLOATS), bias_kind)


def test_random_attention(library, kernels, numbers):
    for arithmetic in ARITHMETICS:
        for isa, fused_class in kernels.items():
            def differs(draw, arithmetic=arithmetic, isa=isa, fused_class=fused_class):
                x = random_attention(draw, arithmetic)
                return attention_differs(library, isa, fused_class, x, [draw.one(None, *STAGES)])
            differences(f"{arithmetic} attention, {isa}", numbers, differs)


# ---- Special attention -------------------------------------------------------------------------------------------------------


def special_attention():
    """Problems that chance would not find, by name."""
    draw, inf, nan = Draw(0, "special"), np.inf, np.nan

    def small(keys=200, k_kind="f32", v_kind="f32", queries=5, d_k=16, d_v=8, size=1.0, changed=(), **given):
        q, k, v = (tensor(draw, kind, shape, size if kind == "f32" else 1.0) for kind, shape in
                   (("f32", (2, queries, d_k)), (k_kind, (1, keys, d_k)), (v_kind, (1, keys, d_v))))
        for name, at, value in changed: put_into({"q": q, "k": k, "v": v}[name], at, value)
        return Problem(q, k, v, given)

    def array(*numbers): return np.array(numbers, f32)

    mask = draw.bits(0.5, 1, 5, 200)
    mask[:, 0], mask[:, 1, [50, 60]] = False, False
    masked = {"mask": mask, "mask_rest": False}
    scales, few_scales = draw.normal(1, 200), draw.normal(1, 8)
    scales[0, [50, 60, 70]], few_scales[0, :2] = array(nan, inf, 0), array(inf, nan)
    both = {"k_token_scales": scales, "v_token_scales": scales}
    bias = draw.normal(2, 5, 200)
    bias[0, 1, 3], bias[1, 2, 4] = nan, inf
    zeros = np.where(draw.bits(0.5, 1, 200), f32(-0.0), f32(0))
    tiny = f32(2.0**-56) * np.array([1, 1 + 2.0**-8, 1 - 2.0**-9, 1 - 2.0**-8, 0.5, -1, -0.99, -0.5], f32)

    def weighed(exponents, factors=1, **given):
        """Keys whose weights are 2 to the power of these numbers, times a query's factor, after one of weight 1 and value 0."""
        x = small(1 + len(exponents), d_k=1, scale=math.log(2), **given)
        put_into(x.q, ..., factors)
        put_into(x.k, ..., np.array([0, *exponents], f32)[:, None])
        put_into(x.v, (0, 0), 0)
        return x

    x = {
        "a NaN sink": small(sinks=array(nan, 1), scale=50.0), "infinite sinks": small(sinks=array(inf, -inf)),
        "a NaN key beside far scores": small(changed=[("k", (0, 3, 0), nan)], scale=50.0),
        "an infinite key": small(changed=[("k", (0, 100, 0), inf)], scale=50.0, sinks=array(1, 300)),
        "a NaN value that is masked in some rows": small(changed=[("v", (0, 50, 3), nan), ("v", (0, 60), -inf)], **masked),
        "slopes of 0 and scores of either 0": small(slopes=array(0.0, -0.0), k_token_scales=zeros),
        "slopes that are NaN and infinite": small(slopes=array(nan, inf)),
        "a bias that is NaN and infinite": small(bias=bias, bias_rest=0),
        "ALiBi by a bias of -inf, slopes 0 and below": small(bias=np.where(bias > 0, bias, -inf).astype(f32), bias_rest=0,
                                                            slopes=array(0, -1), bias_by_slope=True),
        "scales of channels that are not finite, rows without keys": small(v_channel_scales=few_scales, **masked),
        "no keys": small(0), "no keys, and sinks": small(0, sinks=array(1, 2)),
        "values beside the largest number": small(changed=[("v", ..., 3e38)]), "infinite scores": small(size=1e20),
        "a callback that gives -inf to all, with an infinite value": small(
            64, changed=[("v", (0, 3, 0), inf)], callback=lambda x: np.full_like(x, -inf)),
        "a callback that gives the least number": small(64, callback=lambda x: np.full_like(x, -order.MOST)),
        "a callback that gives all keys the same logit, those with a bias of -inf, too": small(
            64, bias=np.where(draw.bits(0.5, 5, 64), f32(0), f32(-inf)), bias_rest=0, callback=np.zeros_like),
        "1500 keys, scales of tokens": small(1500, scale=30.0, v_token_scales=draw.normal(1, 1500)),
        "far positions, ALiBi": small(700, q_offset=2**31 - 1, k_offset=2**31 - 800, slopes=array(1e-9, 0.5)),
        "one part of 128 channels": small(d_k=128), "parts of 64 channels, the last one of 1": small(d_k=193),
        "a softcap below the normal numbers": small(softcap=1e-40), "the largest softcap": small(softcap=3e38),
        "weights around the least ones": weighed(np.linspace(-130, -124, 200)),
        "weights around the least ones, in bf16": weighed(np.arange(-57, -54, 0.25), arithmetic="bf16"),
        "sums around the root of 2": weighed([1], np.log2(np.linspace(0.4, 0.43, 600)).reshape(2, 300, 1), queries=300),
        "the least scale that is not multiplied into queries, tiny ones": small(
            scale=2.0**-64, changed=[("q", ..., 2.0**-140), ("k", ..., 2.0**100)]),
        "the largest scale that is not multiplied into queries, large ones": small(
            scale=2.0**64, changed=[("q", ..., 2.0**100), ("k", ..., 2.0**-100)]),
        "numbers around 2^-56 in bf16": small(arithmetic="bf16", scale=2.0**55, changed=[
            ("q", np.s_[..., :8], tiny), ("k", np.s_[..., 8:], tiny), ("v", ..., tiny)]),
    }
    for scale in 2.0**-64, 2.0**64, 2.0**100, 1e-42:
        x |= {f"scale {scale:.3g}": small(scale=scale), f"scale {scale:.3g}, softcap": small(scale=scale, softcap=3.0)}
    for arithmetic in "exact", "bf16":
        x[f"{arithmetic}, scales of masked tokens that are not finite"] = small(arithmetic=arithmetic, **both, **masked)
    for k_kind, v_kind in ("int8", "int8"), ("q8_0", "q5_0"), ("int4", "int8"), ("int8", "q4_0"):
        kinds = {"k_kind": k_kind, "v_kind": v_kind, "d_k": 32, "d_v": 32, "arithmetic": "int8"}
        x |= {f"{k_kind}, {v_kind}, scales of masked tokens that are not finite": small(**kinds, **both, **masked),
              f"{k_kind}, {v_kind}, queries and scales below the normal numbers": small(
                  **kinds, size=2.0**-148, scale=2.0**20, v_token_scales=scales * f32(2.0**-140)),
              f"{k_kind}, {v_kind}, all scales below 0, a NaN in a query": small(
                  **kinds, changed=[("q", (0, 2, 5), nan)], v_token_scales=-abs(draw.normal(1, 200)))}
    return x


def test_special_attention(library, kernels):
    for name, x in special_attention().items():
        lines = [f"{isa}: {line}" for isa, fused_class in kernels.items()
                 if (line := attention_differs(library, isa, fused_class, x, STAGES))]
        ok(not lines, name, "\n".join(lines))


# ---- States ------------------------------------------------------------------------------------------------------------------


def part_of(x, part):
    """The problem with these keys in K and V alone."""
    scales = {name: x.options[name][:, part].copy() for name in ("k_token_scales", "v_token_scales") if name in x.options}
    k, v = (t._replace(rows=t.rows[:, part].copy()) for t in (x.k, x.v))
    return x._replace(k=k, v=v, options={**x.options, **scales})


def states_differ(library, isa, fused_class, draw):
    """States of the chunks of one part of the keys or two, and what is merged of them."""
    x = random_attention(draw, draw.one(*ARITHMETICS))
    (heads, queries, _), (_, keys, d_v) = x.q.values.shape, x.v.values.shape
    cuts = sorted({0, draw.one(0, 512), keys}) if keys > 512 else [0, keys]
    want, chunks, sources = ordered(x, fused_class), [], (rapt.States * 2)()
    for source, first, end in zip(sources, cuts, cuts[1:]):
        states = np.full((-(-(end - first) // 512), heads, queries, 16 + (d_v + 15) // 16 * 16), 99, f32)
        desc, args = described(library, isa, part_of(x, slice(first, end)))
        results = put_results(desc, library.new(rapt.Args), x)
        desc.kv_len, desc.kv_first, desc.kv_total, desc.unmerged = end - first, first, keys, 1
        desc.states, desc.state_stride, args.states = rapt.Layout(rapt.F32, 0, *states.strides[1:3]), states.strides[0], states
        library.run(desc, args)
        source.at, source.state_stride, source.chunks = states, states.strides[0], len(states)
        source.head_stride, source.token_stride = states.strides[1:3]
        chunks += [(state[..., 0], state[..., 1], state[..., 16:16 + d_v]) for state in states]
    assert len(chunks) == len(want.states)
    for number, (found, wanted) in enumerate(zip(chunks, want.states)):
        # G.2: zeros have any sign, and m and o are anything where l is NaN.
        known = [part + f32(0) for part in found], [part + f32(0) for part in wanted]
        for m, l, o in known: m[np.isnan(l)], o[np.isnan(l)] = 0, 0
        for name, a, b in zip("mlo", *known):
            line = difference(f"chunk {number}: {name}", a, b)
            if line: return f"{line}: {shown(x.q, x.k, x.v, **x.options)}"
    plan = library.plan(desc)
    workspace = library.workspace(plan)
    args = library.new(rapt.Args, workspace=workspace, workspace_bytes=len(workspace), **results)
    for name, given in ("sinks", "sinks"), ("v_scales", "v_channel_scales"):
        if given in x.options: setattr(args, name, x.options[given])
    library.c.rapt_merge_states_run(plan, args, sources, len(cuts) - 1)
    line = difference("merged o", results["o"], want.o, x.o_kind) or difference("merged lse", results["lse"], want.lse)
    return line and f"{line}: {shown(x.q, x.k, x.v, **x.options)}"


# ---- Linear layers -----------------------------------------------------------------------------------------------------------


def linear_differs(library, isa, fused_class, draw):
    one, often = draw.one, draw.often
    tokens, channels, outputs = one(1, 2, 5, 40, 70), one(1, 5, 16, 96, 256, 1000, 1024, 1025, 1504, 1536, 2100), one(1, 7, 33)
    arithmetic, size = one("exact", "exact", "bf16", "int8"), one(1.0, 1.0, 1.0, 2.0**-75, 2.0**60)
    kinds = stored.INTEGER_WEIGHTS if arithmetic == "int8" else stored.WEIGHTS
    kinds = [kind for kind in kinds if channels % stored.channels_of(kind) == 0]
    x, w = tensor(draw, one(*FLOATS), (tokens, channels), size), tensor(draw, one(*kinds), (outputs, channels), size)
    if often(0.1): spoil(draw, x, 1 / x.values.size)
    if often(0.2): put_into(x, 0, 0)
    activation, y_kind, given = one(*ACTIVATIONS), one("f32", *FLOATS), {}
    y = np.full((tokens, outputs), 99, BITS[y_kind])
    desc = library.new(rapt.LinearDesc, tokens=tokens, in_=channels, out=outputs, isa=isa.encode(), x=layout(x.rows, x.kind),
                       y=layout(y, y_kind), weight=layout(w.rows, w.kind), activation=ACTIVATIONS[activation],
                       arith=ARITHMETICS[arithmetic])
    args = library.new(rapt.LinearArgs, x=x.rows, weight=w.rows, y=y)

    def put(name, rows, values=None):
        given[name] = rows if values is None else values
        setattr(args, name, rows)

    def scales_and_bias(of, kind):
        if kind == "int8" or often(0.4): put(f"{of}scales", draw.normal(outputs) * f32(one(1, 1, 2.0**70)))
        if often(0.5): put(f"{of}bias", one(draw.normal(outputs), np.full(outputs, -0.0, f32)))

    scales_and_bias("", w.kind)
    if often(0.4):
        gate = tensor(draw, one(*kinds), (outputs, channels))
        desc.gate = layout(gate.rows, gate.kind)
        put("gate", gate.rows, gate.numbers if arithmetic == "int8" else gate.values)
        if arithmetic == "int8": given |= {"gate_groups": gate.groups, "gate_minimums": gate.minimums, "gate_subs": gate.subs}
        scales_and_bias("gate_", gate.kind)
    if often(0.4):
        residual = tensor(draw, one(*FLOATS), (tokens, outputs))
        desc.residual = layout(residual.rows, residual.kind)
        put("residual", residual.rows, residual.values)
    library.run(desc, args)
    if arithmetic == "int8": given |= {"groups": w.groups, "minimums": w.minimums, "subs": w.subs}
    want = order.linear(x.values, w.numbers if arithmetic == "int8" else w.values, **given, activation=activation,
                        arithmetic=arithmetic, fused_class=fused_class)
    line = difference("y", y, want, y_kind)
    return line and f"{line}: {shown(x, w, y=y_kind, activation=activation, arithmetic=arithmetic, **given)}"


# ---- Normalisation -----------------------------------------------------------------------------------------------------------


def norm_differs(library, isa, fused_class, rms, draw):
    one, often = draw.one, draw.often
    tokens, channels = one(1, 3, 9), one(1, 5, 16, 33, 100, 768, 1025, 3000, 9000)
    x = tensor(draw, one(*FLOATS), (tokens, channels), one(1.0, 1.0, 2.0**-60, 2.0**40))
    if often(0.3): x = floats(x.values + f32(one(1000, -3e4)), x.kind)
    if often(0.1): spoil(draw, x, 1 / x.values.size)
    y_kind, sum_kind, given = one("f32", *FLOATS), one(*FLOATS), {"epsilon": one(0.0, 1e-5, 1e-12, 1.0)}
    if often(0.3):  # nothing is left of the deviation but what was rounded
        more, given["epsilon"] = one(1, 50000 // channels), 0.0
        x = floats(np.repeat(x.values[:, :1], channels * more, axis=1))
        channels *= more
        if more == 1: x = floats(np.where(draw.bits(0.5, tokens, channels), x.values, np.nextafter(x.values, f32(9))))
    y, z = (np.full((tokens, channels), 99, BITS[kind]) for kind in (y_kind, sum_kind))
    mean, inverse = np.full(tokens, 99, f32), np.full(tokens, 99, f32)
    args = library.new(rapt.NormArgs, tokens=tokens, channels=channels, isa=isa.encode(), x=layout(x.rows, x.kind), from_=x.rows,
                       y=layout(y, y_kind), to=y, sum=layout(z, sum_kind), sum_to=z, inverse_deviation=inverse,
                       epsilon=given["epsilon"])
    for name in "weight", "bias":
        if often(0.5):
            given[name] = draw.normal(channels)
            setattr(args, name, given[name])
    if often(0.4):
        t = tensor(draw, one(*FLOATS), (tokens, channels))
        given["residual"], args.residual, args.residual_from = t.values, layout(t.rows, t.kind), t.rows
    if not rms: args.mean = mean
    (library.c.rapt_rms_norm_run if rms else library.c.rapt_layer_norm_run)(args)
    want = dict(zip(("y", "sum", "inverse deviation") if rms else ("y", "sum", "mean", "inverse deviation"),
                    (order.rms_norm if rms else order.layer_norm)(x.values, **given, fused_class=fused_class)))
    for name, found, kind in ("y", y, y_kind), ("sum", z, sum_kind), ("mean", mean, "f32"), ("inverse deviation", inverse, "f32"):
        if name in want:
            line = difference(name, found, want[name], kind)
            if line: return f"{line}: {shown(x, y=y_kind, sum=sum_kind, **given)}"
    return None


# ---- Rotation ----------------------------------------------------------------------------------------------------------------


def rotation_differs(library, draw):
    one = draw.one
    heads, tokens, channels = one(1, 3), one(1, 5, 20), one(2, 6, 64, 130)
    pairs, interleaved = int(draw.rng.integers(1, channels // 2 + 1)), draw.often(0.5)
    out = np.full((heads, tokens, channels), 99, f32)
    x = tensor(draw, one(*FLOATS), (heads, tokens, channels), one(1.0, 1.0, 2.0**-130))
    positions = draw.rng.integers(0, one(10, 5000, 2**31 - 1), tokens).astype(np.int32)
    args = library.new(rapt.RopeArgs, batch=1, heads=heads, tokens=tokens, d=channels, in_=layout(x.rows, x.kind), from_=x.rows,
                       out=layout(out), to=out)
    if draw.often(0.6):
        offset, amplitude = one(0, 0, -3, 2**31 - 1, -2**31 + 1), one(1.0, 1.0, 1.3466, -2.0, 0.0)
        frequencies = one(10000.0**(-np.arange(pairs) / pairs), draw.rng.uniform(-16, 16, pairs),
                          np.full(pairs, one(16.0, 0.0, np.pi / 2)))
        c, s = order.angles(positions, frequencies, amplitude, offset)
        args.rope = rapt.Rope(2 * pairs, interleaved, frequencies, amplitude, offset)
    else:
        positions, offset, amplitude, kind = positions % 50, 7, 1.0, one(*FLOATS)
        tables = [tensor(draw, kind, (57, pairs)) for _ in "cs"]
        c, s = (table.values[positions + offset] for table in tables)
        args.rope = rapt.Rope(2 * pairs, interleaved, None, 1.0, offset)
        args.rope_table = rapt.RopeTable(number_of(kind), tables[0].rows, tables[1].rows, 57, 0)
    args.positions = positions
    library.c.rapt_rope_run(args)
    line = difference("out", out, order.rotate(x.values, c, s, interleaved))
    return line and f"{line}: {shown(x, pairs=pairs, interleaved=interleaved, offset=offset, amplitude=amplitude)}"


def test_hard_angles(library):
    """Cosines and sines that lie so close to the middle of two float32 that the last digits of a double decide."""
    draw, n = Draw(0, "angles"), 64
    positions, frequencies = draw.rng.integers(0, 2**31, 200000).astype(np.int32), draw.rng.uniform(0, 16, 200000)
    exact = np.stack(order.find_angle(positions.astype(np.float64), frequencies))
    rounded = exact.astype(f32)
    hard = np.argsort(abs(abs((exact - rounded) / np.spacing(abs(rounded))) - 0.5).min(axis=0))[:n]
    positions, frequencies, out = positions[hard], frequencies[hard], np.full((1, n, 2 * n), 99, f32)
    x = floats(np.repeat([1, 0], n).astype(f32) + np.zeros_like(out))  # a pair, 1 and 0, becomes cosine and sine
    args = library.new(rapt.RopeArgs, batch=1, heads=1, tokens=n, d=2 * n, in_=layout(x.rows), from_=x.rows, out=layout(out),
                       to=out, rope=rapt.Rope(2 * n, 0, frequencies, 1.0, 0), positions=positions)
    library.c.rapt_rope_run(args)
    line = difference("out", out, order.rotate(x.values, *order.angles(positions, frequencies)))
    ok(not line, f"rotation by {n} angles whose cosines or sines are nearly ties", line)


# ---- Multi-head attention ----------------------------------------------------------------------------------------------------


def mha_differs(library, isa, fused_class, draw):
    """Without a cache: x with queries, y and z, or x again, with keys."""
    one, often, normal = draw.one, draw.often, draw.normal
    heads, kv_heads = one((1, 1), (2, 1), (4, 2))
    arithmetic, arith = one("exact", "exact", "bf16", "int8"), one("exact", "exact", "bf16")
    queries, keys, alone = one(1, 5, 40), one(1, 7, 70), often(0.4)
    d_k, d_v, width, has_table, has_output = one(16, 32, 66), one(16, 32, 40), one(32, 64, 96, 256), often(0.3), often(0.8)
    y_width = width if alone or has_table else one(width, 48)
    if alone: keys = queries

    def drawn_layer(outputs, channels):
        kinds = stored.INTEGER_WEIGHTS if arithmetic == "int8" else stored.WEIGHTS
        w = tensor(draw, one(*(kind for kind in kinds if channels % stored.channels_of(kind) == 0)), (outputs, channels))
        given = {"w": w.numbers if arithmetic == "int8" else w.values}
        if arithmetic == "int8": given |= {"groups": w.groups, "minimums": w.minimums, "subs": w.subs}
        if w.kind == "int8": given["scales"] = normal(outputs) / f32(100)
        if often(0.5): given["bias"] = normal(outputs)
        return w, given

    tokens = {"x": tensor(draw, one(*FLOATS), (queries, width))}
    if not alone: tokens |= {of: tensor(draw, one(*FLOATS), (keys, y_width)) for of in ("y", "z")[:one(1, 2)]}
    x, y = tokens["x"], tokens.get("y", tokens["x"])
    z = tokens.get("z", y)
    out_width = one(32, 33) if has_output else heads * d_v
    layers = {"q": drawn_layer(heads * d_k, width), "k": drawn_layer(kv_heads * d_k, y_width), "v": drawn_layer(kv_heads * d_v, y_width)}
    if has_output: layers["o"] = drawn_layer(out_width, heads * d_v)
    options, given = {"arithmetic": arith, "scale": one(None, 0.3)}, {}
    if often(0.4): options["causal"] = one("bottom-right", "top-left")
    if often(0.3): options["window"] = one((-1, 3), (40, -1), (2, 2))
    if often(0.2): options["softcap"] = one(0.5, 3.0)
    desc = described(library, isa, Problem(*(floats(np.zeros((n, tokens_of, d), f32)) for n, tokens_of, d in (
        (heads, queries, d_k), (kv_heads, keys, d_k), (kv_heads, keys, d_v))), options))[0]
    desc.k.type = desc.v.type = rapt.NONE  # no cache
    out_kind = one("f32", *FLOATS)
    out = np.full((queries, out_width), 99, BITS[out_kind])
    mha = library.new(rapt.MhaDesc, attention=desc, x_width=width, y_width=y_width, out_width=out_width, keys=keys,
                      out=layout(out, out_kind), arith=ARITHMETICS[arithmetic])
    args = library.new(rapt.MhaArgs, out=out)
    for of, t in tokens.items():
        setattr(mha, of, layout(t.rows, t.kind))
        setattr(args, of, t.rows)
    for of, (w, of_layer) in layers.items():
        setattr(mha, f"w{of}", layout(w.rows, w.kind))
        for name, array in (f"w{of}", w.rows), (f"w{of}_scales", of_layer.get("scales")), (f"b{of}", of_layer.get("bias")):
            if array is not None: setattr(args, name, array)
    if has_table:
        given["position_table"] = args.position_table = table = normal(100, width)
        mha.position_table, args.table_positions = 1, len(table)
    if often(0.5):
        pairs, given["interleaved"] = one(1, 5, d_k // 2), often(0.5)
        given["frequencies"] = frequencies = 10000.0**(-np.arange(pairs) / pairs)
        mha.rope = rapt.Rope(2 * pairs, given["interleaved"], frequencies, 1.0, 0)
    if has_output and often(0.4):
        residual = tensor(draw, one(*FLOATS), (queries, out_width))
        mha.residual, args.residual, given["residual"] = layout(residual.rows, residual.kind), residual.rows, residual.values
    library.run(mha, args)
    of_linear = {of: of_layer for of, (_, of_layer) in layers.items()}
    options["attention_arithmetic"] = options.pop("arithmetic")
    want = order.multi_head_attention(x.values, y.values, z.values, of_linear, heads=(heads, kv_heads), **given, **options,
                                      arithmetic=arithmetic, fused_class=fused_class)
    line = difference("out", out, want, out_kind)
    return line and f"{line}: {shown(*tokens.values(), *(w for w, _ in layers.values()), arithmetic=arithmetic, **given, **options)}"


# ---- Functions of whole models -----------------------------------------------------------------------------------------------


def test_functions(path):
    """Of all kinds of f32, in doubles before they are rounded. Left out: logarithms of what is no normal number above 0, which the ggml
    device does not take, and what comes to powers that are free (O.2)."""
    c, draw = ctypes.CDLL(path), Draw(0, "functions")
    x = np.concatenate([draw.rng.integers(0, 2**32, 100000, np.uint32).view(f32), draw.normal(100000) * f32(20), np.array(
        [0, -0.0, 0.25, -0.25, 4, -4, 22, 88.72284, -103.97, 708, 708.5, -708, -708.5, np.inf, -np.inf, np.nan], f32)]).astype(np.float64)
    powers = abs(x[:, None] * [1, 1.702])
    x = x[~((powers > 709) & (powers < 710)).any(axis=1)]
    normal = x[(x >= np.finfo(f32).tiny) & (x < np.inf)]
    for name in "exp", "expm1", "log", "tanh", "erf", "sin", "cos", "sigmoid", "silu", "quick_gelu", "gelu", "gelu_tanh", "power":
        given, more = (normal if name in ("log", "power") else x), (-0.37, ) if name == "power" else ()
        found, wanted = np.empty_like(given), getattr(order, f"{name}_of")(given, *more)
        c[f"of_{name}"](ctypes.c_void_p(given.ctypes.data), ctypes.c_double(*more or (0, )), ctypes.c_void_p(found.ctypes.data),
                        ctypes.c_int64(len(given)))
        other = (found.view(np.int64) != wanted.view(np.int64)) & ~(np.isnan(found) & np.isnan(wanted))
        ok(not other.any(), f"{name} of {len(given)} numbers, in doubles", [(given[other][:5], found[other][:5], wanted[other][:5])])


# ---- The two texts -----------------------------------------------------------------------------------------------------------


def rounded_once(a, b, c):
    """a·b + c in f32, by fractions."""
    x = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if x == 0: return float(a) * float(b) + float(c)  # exact, and so is its sign
    last = Fraction(2)**max(-149, (abs(x.numerator).bit_length() - x.denominator.bit_length()) - 24)
    while abs(x) >= 2**24 * last: last *= 2
    nearest = round(x / last) * last  # ties to even
    return math.copysign(float(nearest) if abs(nearest) < 2**128 else math.inf, x)


def test_fma(numbers):
    """docs/order.py's fused operation beside fractions, also where results are denormal, ties or overflow."""
    draw, lines = Draw(numbers[0], "fma"), []
    n = 100 * len(numbers)
    a, b = (np.ldexp(draw.rng.integers(-2**24, 2**24, n), draw.rng.integers(-100, 60, n)).astype(f32) for _ in "ab")
    near = np.ldexp(1 + draw.rng.integers(-1, 2, n) * 2.0**-23, draw.rng.integers(-30, 30, n)) * draw.one(-1, 1)
    c = np.where(draw.bits(0.8, n), a.astype(np.float64) * b * near, draw.rng.integers(-3, 4, n) * 2.0**-149)
    with np.errstate(over="ignore"): c = c.astype(f32)
    ties = [(1 + 2.0**-12, 1 + 2.0**-12, x) for x in (2.0**-100, -2.0**-100, 0)]  # the product is a tie, the sum beside it
    ties += [(2.0**-75, x * 2.0**-75, 2.0**-149) for x in (1, 2, -1, -2)]  # the product is half of the least number, or all of it
    ties += [(2.0**127, 2 - 2.0**-23, x * 2.0**102) for x in (1, 2, 1 - 2.0**-23)]  # where infinity begins
    ties += [(3e38, 2, -3e38), (3e38, -2, -3e38), (-1, 0, 0), (-1, 0, -0.0)]
    a, b, c = (np.concatenate([x, y]) for x, y in zip((a, b, c), np.array(ties, f32).T))
    with np.errstate(all="ignore"): found = order.fused(a, b, c)
    wanted = np.array([rounded_once(*x) if np.isfinite(x[2]) else x[2] for x in zip(a, b, c)]).astype(f32)
    line = difference("fma", found, wanted)
    if line: lines.append(line)
    ok(not lines, f"multiply-adds that round once: {len(a)} beside fractions", "\n".join(lines))


def test_texts():
    """docs/order.py has the version and the steps of docs/order.md, and its example is right."""
    ok(doctest.testmod(order) == (0, 2), "the example of docs/order.py")
    page, program = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("order.md", "order.py"))
    ok(f"**Order version {order.VERSION}.**" in page, f"docs/order.md is of order version {order.VERSION}, as docs/order.py")
    steps = re.findall(r"^(?:###| +#) ([A-Z]\.\d+)\b", page, re.M)
    counts = sorted(collections.Counter(step[0] for step in steps).items())
    numbered = [f"{letter}.{n + 1}" for letter, count in counts for n in range(count)]
    ok(len(steps) > 40 and steps == numbered, f"docs/order.md has {len(steps)} steps, numbered one after the other", steps)
    named = {name: set(re.findall(r"\b[A-Z]\.\d+\b", text)) for name, text in (("order.md", page), ("order.py", program))}
    for name, cited in named.items():
        ok(cited <= {*steps}, f"docs/{name} refers to steps that there are", cited - {*steps})
    lacking = {*steps} - named["order.py"] - {*NO_OPERATION}
    ok(not lacking, "docs/order.py names all steps", lacking)
    return {*steps}


# Steps that no function of docs/order.py has to name, and why.
NO_OPERATION = {"A.1": "says how the page is read", "N.1": "says what is free"}
# Steps that no comparison calls, and why.
NOT_CALLED = NO_OPERATION | {
    "A.2": "is the version, which vectors and test_texts compare", "A.3": "is how NumPy rounds, wherever it does",
    "O.1": "is that arrays are of float64", "O.5": "log1p is in PyTorch alone: python/tests/test_reproducible.py compares it"}


def test_steps(steps, called):
    """Each step is named in a function of docs/order.py that a comparison has called. called: code objects."""
    functions = [f for _, f in inspect.getmembers(order, inspect.isfunction) if f.__module__ == order.__name__]
    text = "".join(inspect.getsource(f) for f in functions if inspect.unwrap(f).__code__ in called)
    compared = set(re.findall(r"\b[A-Z]\.\d+\b", text))
    ok(len(functions) > 60 and compared & steps == steps - {*NOT_CALLED}, f"{len(compared)} of {len(steps)} steps were compared",
       f"not compared: {sorted(steps - compared - {*NOT_CALLED})}; compared after all: {sorted(compared & {*NOT_CALLED})}")


# ---- The program -------------------------------------------------------------------------------------------------------------


def main():
    if len(sys.argv) not in (3, 4, 5): sys.exit(__doc__)
    warnings.filterwarnings("ignore", category=RuntimeWarning)  # numbers overflow, and NaN is converted, on purpose
    library = rapt.Library(sys.argv[1])
    first = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    numbers = range(first, first + (int(sys.argv[3]) if len(sys.argv) > 3 else COUNT))
    kernels = {}  # the best one of each class
    for name in library.kernels():
        fused_class = library.c.rapt_isa_rounding(name.encode()) == b"fused"
        if fused_class not in kernels.values(): kernels[name] = fused_class
    ok(kernels and len(kernels) <= 2, f"kernels: {', '.join(kernels)}")
    steps, called = test_texts(), set()
    test_fma(numbers)
    sys.settrace(lambda frame, *_: called.add(frame.f_code))  # of each call; lines are not traced
    test_special_attention(library, kernels)
    test_random_attention(library, kernels, numbers)
    for isa, fused_class in kernels.items():
        here = library, isa, fused_class
        differences(f"states and merges, {isa}", numbers, functools.partial(states_differ, *here))
        differences(f"linear layers, {isa}", numbers, functools.partial(linear_differs, *here))
        differences(f"layer normalisation, {isa}", numbers, functools.partial(norm_differs, *here, False))
        differences(f"RMS normalisation, {isa}", numbers, functools.partial(norm_differs, *here, True))
        differences(f"multi-head attention, {isa}", numbers, functools.partial(mha_differs, *here))
    differences("rotation", numbers, functools.partial(rotation_differs, library))
    test_hard_angles(library)
    test_functions(sys.argv[2])
    sys.settrace(None)
    test_steps(steps, called)
    tap.done()


main()
