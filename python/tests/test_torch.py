#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rapt in PyTorch: its operators, and F.scaled_dot_product_attention on it, in TAP. Usage: test_torch.py

Needs rapt and PyTorch; timm and diffusers are tried too where they are installed."""
import contextlib
import copy
import functools
import json
import multiprocessing
import os
import pathlib
import platform
import subprocess
import sys
import threading
import traceback
import warnings
from collections import Counter

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/host"))
import processes
import tap
from tap import ok

try:
    import torch
except ImportError as error:
    tap.absent("rapt.torch", error)
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

import rapt
import rapt.torch

for text in ("enable_nested_tensor", "The PyTorch API of (MaskedTensors|nested tensors)", "torch.quantize_per_tensor"):
    warnings.filterwarnings("ignore", text, UserWarning)
torch.manual_seed(1)
operator, operator_lse = torch.ops.rapt.attention, torch.ops.rapt.attention_lse
# How far a result may be from one in double precision, absolutely and relative to it, by what its elements are.
NEAR = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def raised(f, *args, **kw):
    """The message of what is raised, or None."""
    try:
        f(*args, **kw)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def near(a, b, factor=1):
    """Whether a is b, but for the rounding of a's type."""
    far = factor * NEAR[a.dtype]
    return a.shape == b.shape and torch.allclose(a.double(), b.double(), atol=far, rtol=far)


def same(a, b):
    """Whether the bits are the same."""
    bits = [t.contiguous().view(torch.uint8) for t in (a, b)]
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(*bits)


def math(q, k, v, causal=None, window=None, scale=None, mask=None, bias=None, softcap=None, alibi=None, sinks=None,
         kv_lengths=None):
    """Attention from its definition, in double precision: the result and the log-sum-exp."""
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = (q @ k.transpose(-1, -2)) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    queries, keys = s.shape[-2:]
    lengths = torch.full((q.shape[0],), keys) if kv_lengths is None else kv_lengths
    first = torch.zeros_like(lengths) if causal == "top-left" else lengths - queries
    at = (first[:, None] + torch.arange(queries))[:, None, :, None]
    j = torch.arange(keys)
    if alibi is not None:
        s = s - alibi.double().view(-1, s.shape[1], 1, 1) * (at - j).abs()
    if bias is not None:
        s = s + bias.double()
    seen = (j < lengths[:, None, None, None]).expand(s.shape).clone()
    if causal:
        seen &= j <= at
    left, right = window or (-1, -1)
    if left >= 0:
        seen &= at - j <= left
    if right >= 0:
        seen &= j - at <= right
    if mask is not None:
        seen &= mask
    s = s.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        s = torch.cat([s, sinks.double().view(1, -1, 1, 1).expand(*s.shape[:3], 1)], -1)
    lse = s.logsumexp(-1)
    p = (s - lse[..., None]).exp().nan_to_num(0)[..., :keys]
    return p @ v, lse


def tensors(batch=2, heads=4, kv_heads=2, queries=5, keys=9, d_k=16, d_v=16, dtype=torch.float32, dense=True):
    def one(h, s, d):
        t = torch.randn(batch, h, s, d)
        return (t if dense else t.transpose(1, 2).contiguous().transpose(1, 2)).to(dtype)
    return one(heads, queries, d_k), one(kv_heads, keys, d_k), one(kv_heads, keys, d_v)


# ---- Operators ---------------------------------------------------------------------------------------------------------------

OPTIONS = {
    "plain": lambda b, h, q, k: {},
    "causal, bottom-right": lambda b, h, q, k: {"causal": "bottom-right"},
    "causal, top-left": lambda b, h, q, k: {"causal": "top-left"},
    "window": lambda b, h, q, k: {"causal": "bottom-right", "window": [3, -1]},
    "window on both sides": lambda b, h, q, k: {"window": [2, 1]},
    "scale": lambda b, h, q, k: {"scale": 0.7},
    "mask": lambda b, h, q, k: {"mask": torch.rand(b, 1, q, k) > 0.4},
    "bias": lambda b, h, q, k: {"bias": torch.randn(1, h, q, k)},
    "softcap": lambda b, h, q, k: {"softcap": 2.0},
    "alibi": lambda b, h, q, k: {"alibi": torch.rand(h)},
    "sinks": lambda b, h, q, k: {"sinks": torch.randn(h)},
    "kv_lengths": lambda b, h, q, k: {"kv_lengths": torch.tensor([k - 2, k][:b], dtype=torch.int32)},
    "kv_lengths of 64 bits": lambda b, h, q, k: {"kv_lengths": torch.tensor([k - 2, k][:b]), "causal": "bottom-right"},
    "much at once": lambda b, h, q, k: {"causal": "bottom-right", "window": [4, -1], "scale": 0.3, "softcap": 5.0,
                                        "sinks": torch.randn(h), "bias": torch.randn(b, 1, q, k)},
}


def test_operators():
    for name, options_of in OPTIONS.items():
        for shape in ({}, {"d_v": 24}, {"queries": 1, "keys": 700}, {"dense": False, "queries": 9}):
            q, k, v = tensors(**shape)
            options = options_of(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
            expected, expected_lse = math(q, k, v, **options)
            for again in ("first", "again"):  # noqa: B007 - shown below; the second call has a plan already
                out, lse = operator_lse(q, k, v, **options)
                if not (near(out, expected) and near(lse, expected_lse) and same(out, operator(q, k, v, **options))):
                    break
            else:
                continue
            ok(False, f"operators: {name}", f"{shape}, {again}: {(out - expected).abs().max()}")
            break
        else:
            ok(True, f"operators: {name}")


def test_operator_ways():
    q, k, v = tensors(queries=7)
    by_token = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
    out, lse = operator_lse(q, k, v, causal="bottom-right")
    other, other_lse = operator_lse(*by_token, causal="bottom-right", layout="bshd")
    ok(same(out.transpose(1, 2), other) and same(lse, other_lse), "layout bshd has the same bits")
    ok(out.transpose(1, 2).is_contiguous(), "tokens lie before heads in the result's memory")
    ok(same(out, rapt.attention(q, k, v, causal="bottom-right")), "the bits are those of rapt.attention")
    ok(same(out[0], operator(q[0], k[0], v[0], causal="bottom-right")), "without a batch")
    ragged = [torch.cat([t[0], t[1][:, :n]], 1) for t, n in ((q, 4), (k, 5), (v, 5))]
    starts = torch.tensor([0, 7, 11]), torch.tensor([0, 9, 14])
    packed = operator(*ragged, causal="bottom-right", q_starts=starts[0], k_starts=starts[1])
    second = operator(q[1, :, :4], k[1, :, :5], v[1, :, :5], causal="bottom-right")
    ok(same(packed[:, :7], out[0]) and same(packed[:, 7:], second), "ragged: q_starts, k_starts")
    table = torch.tensor([[2, 0, 1], [3, 5, 4]])
    pools = []
    for t in (k, v):
        pool = torch.zeros(6, t.shape[1], 3, t.shape[3])
        for entry in range(2):
            for page in range(3):
                pool[table[entry, page]] = t[entry, :, 3 * page:3 * page + 3]
        pools.append(pool)
    ok(same(out, operator(q, *pools, causal="bottom-right", page_table=table, kv_lengths=torch.tensor([9, 9]))), "pages")
    for dtype in (torch.float16, torch.bfloat16):
        few = tensors(dtype=dtype)
        ok(near(operator(*few), math(*few)[0]), f"{dtype}")
    few = tensors()
    cached = few[0], few[1].to(torch.float8_e4m3fn), few[2].to(torch.float8_e5m2)
    ok(near(operator(*cached), math(*cached)[0]), "keys and values of 8 bits")


def test_operator_refusals():
    q, k, v = tensors()
    for what, line in (
            (lambda: operator(q, k, v, causal="left"), '"bottom-right", "top-left" or None is needed'),
            (lambda: operator(q, k[:, :, :, :8], v), "k has 8 channels and q 16"),
            (lambda: operator(q.double(), k, v), "q is"),
            (lambda: operator(q, k, v, mask=torch.zeros(5, 9)), "mask is float32"),
            (lambda: operator(q, k, v, kv_lengths=torch.tensor([3, 99])), "kv_lengths"),
            *[(lambda: operator(q, k, v, q_offsets=torch.zeros(1, dtype=torch.int32)), "q_offsets has 1 numbers")] * 2,
            (lambda: operator(q[0, 0], k, v), "query has 2 dimensions"),
            (lambda: operator(q, k, v[..., :1].expand(-1, -1, -1, 16)), "lie 0 bytes apart"),
            (lambda: operator(q.requires_grad_(), k, v), "has no gradients")):
        message = raised(what)
        ok(message is not None and line in message and len(message.splitlines()) == 1, f"refused: {line}", message)
    q.requires_grad_(False)


def test_opcheck():
    for name in ("plain", "window", "mask", "sinks", "kv_lengths", "much at once"):
        q, k, v = tensors()
        options = OPTIONS[name](2, 4, 5, 9)
        for op in (operator, operator_lse):
            message = raised(torch.library.opcheck, op.default, (q, k, v), options)
            ok(message is None, f"opcheck {op}: {name}", message)


class Layer(torch.nn.Module):
    """An operator between others, of a kind that compilers merge."""

    def forward(self, q, k, v, lengths):
        out, lse = operator_lse(q * 2, k, v, causal="bottom-right", window=[4, -1], softcap=3.0, kv_lengths=lengths)
        return operator(out + 1, k, v, layout="bhsd").transpose(1, 2).flatten(2) + lse.sum()


def test_compile_and_export():
    layer, arguments = Layer(), (*tensors(), torch.tensor([9, 5], dtype=torch.int32))
    expected = layer(*arguments)
    for backend in ("aot_eager", "inductor"):
        torch._dynamo.reset()
        for dynamic in (False, True):
            message = raised(lambda: ok(near(torch.compile(layer, fullgraph=True, backend=backend, dynamic=dynamic)(*arguments),
                                             expected), f"torch.compile, {backend}, dynamic={dynamic}, without a graph break"))
            if message:
                ok(False, f"torch.compile, {backend}, dynamic={dynamic}, without a graph break", message)
    queries, keys = torch.export.Dim("queries", min=2, max=64), torch.export.Dim("keys", min=2, max=64)
    shapes = {"q": {2: queries}, "k": {2: keys}, "v": {2: keys}, "lengths": None}
    for strict in (False, True):
        program = torch.export.export(layer, arguments, dynamic_shapes=shapes, strict=strict)
        again = (*tensors(queries=3, keys=11), torch.tensor([11, 4], dtype=torch.int32))
        ok(same(program.module()(*arguments), expected) and same(program.module()(*again), layer(*again)),
           f"torch.export, strict={strict}, with sizes that vary")
        ok(sum("rapt" in str(n.target) for n in program.graph.nodes) == 2,
           f"torch.export, strict={strict}: the operators are in it")


# ---- What a tensor carries beside its memory ---------------------------------------------------------------------------------


class Overriding(torch.Tensor):
    """A subclass whose functions are its own."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs or {})


class Plain(torch.Tensor):
    """A subclass that changes nothing."""


def functions_of_tensors():
    """Public functions by name: shapes of the tensors that each takes, and the call with them."""
    heads, width = (1, 2, 3, 8), (3, 8)

    def cached(k, v, q):
        cache = rapt.KVCache(kv_heads=2, capacity=8, d_k=8, type="f32")
        cache.append(k, v)
        return cache.attend(q)
    plan = rapt.plan(*[torch.zeros(heads)] * 3)
    out, lse = rapt.attention(*[torch.randn(heads)] * 3, return_lse=True)
    square, parts = (8, 8), [(out.numpy(), lse.numpy())]
    return {
        "attention": ([heads] * 3 + [(3, 3), (2,), (2,)], lambda q, k, v, bias, alibi, sinks: rapt.attention(
            q, k, v, bias=bias, alibi=alibi, sinks=sinks)),
        "plan": ([heads] * 3, lambda *t: rapt.plan(*t)(*t)),
        "a plan's call": ([heads] * 3, plan),
        "KVCache": ([heads] * 3, cached),
        "linear": ([width, square, (8,), square, (8,), width], lambda x, w, b, g, h, r: rapt.linear(
            x, w, b, gate=g, gate_bias=h, residual=r)),
        "quantise_weights": ([square], lambda w: rapt.linear(torch.eye(8), rapt.quantise_weights(w))),
        "prepack_weights": ([square], lambda w: rapt.linear(torch.eye(8), rapt.prepack_weights(w))),
        "layer_norm": ([width, (8,), (8,), width], lambda x, w, b, r: rapt.layer_norm(x, w, b, residual=r)),
        "rms_norm": ([width, (8,)], rapt.rms_norm),
        "rope": ([heads], lambda x: rapt.rope(x, rapt.Rope(8), starts=[4])),
        "mha": ([width, square, square, square, square, (8,)], lambda x, q, k, v, o, b: rapt.mha(x, q, k, v, o, heads=2, bq=b)),
        "merge": ([heads, heads[:3]], lambda o, lse: rapt.merge([o, parts[0][0]], [lse, parts[0][1]])),
        "torch.ops.rapt.attention": ([heads] * 3 + [(3, 3)], lambda q, k, v, bias: operator(q, k, v, bias=bias)),
        "torch.ops.rapt.attention_lse": ([heads] * 3, operator_lse),
    }


def as_tensors(result):
    return [torch.as_tensor(x) for x in (result if isinstance(result, tuple) else (result,))]


def hidden():
    """Ways in which a tensor is not what its memory says, or has no memory: the name, a function that makes one, and what a refusal says;
    None where the tensor is to be used as what it is."""
    def shrunk(t, size):
        t = t.clone()
        t.untyped_storage().resize_(size)
        return t

    def nested(t):
        return torch.nested.nested_tensor([t, t])

    def zero(t):
        return torch._efficientzerotensor(t.shape)

    def inference(t):
        with torch.inference_mode():
            return t.clone()
    return {
        "a negative bit": (lambda t: torch._neg_view(-t), None),
        "the imaginary part of a conjugate": (lambda t: torch.complex(torch.zeros_like(t), -t).conj().imag, None),
        "nn.Parameter": (lambda t: torch.nn.Parameter(t, requires_grad=False), None),
        "an inference tensor": (inference, None),
        "a subclass that changes nothing": (lambda t: t.as_subclass(Plain), None),
        "a subclass with functions of its own": (lambda t: t.as_subclass(Overriding), "computes its operators itself"),
        "MaskedTensor": (lambda t: torch.masked.masked_tensor(t, t > 0), "computes its operators itself"),
        "a fake tensor": (lambda t: FakeTensorMode().from_tensor(t), "computes its operators itself"),
        "meta": (lambda t: t.to("meta"), "on meta"),
        "sparse": (lambda t: t.to_sparse(), "is sparse_coo"),
        "mkldnn": (lambda t: t.to_mkldnn(), "is _mkldnn"),
        "nested": (nested, "nested tensor"),
        "complex": (lambda t: t.to(torch.complex64), "complex"),
        "quantised": (lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8), "qint8"),
        "no storage": (lambda t: shrunk(t, 0), "has 0 bytes of memory"),
        "less storage": (lambda t: shrunk(t, t.nbytes - 4), "bytes of memory, too few"),
        "a zero tensor": (zero, "has 0 bytes of memory"),
        "a gradient": (lambda t: t.clone().requires_grad_(), "gradient"),
    }


def test_hidden_state():
    for function, (shapes, call) in functions_of_tensors().items():
        wrong = []
        given = [torch.randn(shape).abs() + 0.1 for shape in shapes]
        expected = as_tensors(call(*given))
        operators = function.startswith("torch.ops")
        for name, (made, line) in hidden().items():
            for i in range(len(given)):
                try:
                    t = [made(x) if i == j else x for j, x in enumerate(given)]
                except (RuntimeError, NotImplementedError):  # mkldnn has no vectors
                    continue
                if operators and name in ("a subclass with functions of its own", "MaskedTensor", "a fake tensor", "meta", "mkldnn",
                                          "complex", "quantised", "a zero tensor"):
                    continue  # which PyTorch's dispatcher sends elsewhere; see below
                message = raised(call, *t)
                if line is None:
                    if message or not all(map(same, as_tensors(call(*t)), expected)):
                        wrong.append((name, i, message))
                elif message is None or line not in message or len(message.splitlines()) > 1:
                    wrong.append((name, i, message))
        ok(not wrong, f"hidden state of tensors: {function} honours or refuses it", "\n".join(map(str, wrong)))
    q = torch.randn(1, 2, 3, 8)
    for name, call in (("attention", lambda out: rapt.attention(q, q, q, out=out)), ("layer_norm", lambda out: rapt.layer_norm(q[0], out=out[0])),
                       ("linear", lambda out: rapt.linear(q[0], q[0, 0], out=out[0, ..., :3])),
                       ("rope", lambda out: rapt.rope(q, rapt.Rope(8), out=out)), ("plan", lambda out: rapt.plan(q, q, q, out=out))):
        out = torch.full((1, 2, 3, 8), 7.0)
        message = raised(call, torch._neg_view(out))
        ok(message == "ValueError: out has a negative bit, a lazy -x, and cannot be written" and bool((out == 7).all()),
           f"refused, nothing written: {name} into a tensor with a negative bit", message)
        x = torch.ones(1, 2, 3, 8, requires_grad=True)
        out = torch.full((1, 2, 3, 8), 7.0)
        product = (x * out).sum()  # whose gradient is out
        call(out)
        message = raised(product.backward)
        ok(name == "plan" or (message and "modified by an inplace operation" in message), f"autograd knows what was written: {name}", message)
    for name, integers in (("kv_lengths", torch.tensor([2])), ("q_starts", torch.tensor([0, 3]))):
        kept = integers.clone()
        other = kept.clone()
        other.untyped_storage().resize_(0)
        message = raised(rapt.attention, *[q[0]] * 3, **{name: other})
        ok(message is not None and message.startswith(f"ValueError: {name} has 0 bytes"), f"refused: {name} without memory", message)


def test_hidden_state_of_operators():
    """What PyTorch's dispatcher sees of a tensor."""
    q = torch.randn(1, 2, 3, 8)
    zero = torch.zeros(1, 2, 3, 8)
    made = torch._efficientzerotensor(1, 2, 3, 8)
    message = raised(operator, q, q, made)
    ok((message and "lie 0 bytes apart" in message) or same(operator(q, q, made), operator(q, q, zero)), "a zero tensor is zeros, or refused",
       message)
    for name, t in (("key", (q, q.to("meta"), q)), ("value", (q, q, q.to("meta")))):
        for op in (operator, operator_lse):
            message = raised(op, *t)
            ok(message == f"TypeError: {name} is on meta and query on cpu", f"{op}: {name} on another device than query", message)
    message = raised(operator, q, q, q, mask=torch.ones(3, 3, dtype=torch.bool, device="meta"))
    ok(message == "TypeError: mask is on meta and query on cpu", "a mask on another device than query", message)
    fake = FakeTensorMode()
    for what, shapes in (("key has 3 tokens and value 5", ((1, 2, 3, 8), (1, 2, 3, 8), (1, 2, 5, 8))),
                         ("query has 8 channels and key 4", ((1, 2, 3, 8), (1, 2, 3, 4), (1, 2, 3, 8))),
                         ("key has 2 heads and value 1", ((1, 2, 3, 8), (1, 2, 3, 8), (1, 1, 3, 8)))):
        real = [torch.randn(shape) for shape in shapes]
        messages = [raised(operator, *map(kind, real)) for kind in (torch.clone, fake.from_tensor, lambda t: t.to("meta"))]
        ok(all(messages) and what in messages[1] and what in messages[2], f"refused of tensors without elements: {what}", messages)
    for name, call in (("torch.func.grad", lambda: torch.func.grad(lambda x: operator(x, q, q).sum())(q)),
                       ("torch.func.jvp", lambda: torch.func.jvp(lambda x: operator(x, q, q), (q,), (q,))),
                       ("forward-mode derivatives", lambda: in_dual_level(lambda x: operator(x, q, q), q)),
                       ("forward-mode derivatives, rapt.attention", lambda: in_dual_level(lambda x: rapt.attention(x, q, q), q)),
                       ("gradients of slopes", lambda: [operator(q, q, q, alibi=torch.rand(2, requires_grad=True)) for _ in range(2)])):
        message = raised(call)
        ok(message is not None and "does not pass through" in message and len(message.splitlines()) == 1, f"not lost in silence: {name}",
           message)
    for name, call in (("vmap", lambda: torch.func.vmap(rapt.attention)(q[None], q[None], q[None])),
                       ("grad", lambda: torch.func.grad(lambda x: rapt.attention(x.detach(), q, q).sum())(q))):
        message = raised(call)
        ok(message is not None and "torch.func" in message and len(message.splitlines()) == 1, f"rapt.attention in torch.func.{name}: refused",
           message)
    batched = torch.func.vmap(operator)(torch.stack([q, -q]), torch.stack([q, q]), torch.stack([q, q]))
    ok(same(batched[1], operator(-q, q, q)), "torch.func.vmap of the operator")
    with rapt.torch.enabled():
        for name, t in (("a negative bit", torch._neg_view(q)), ("a subclass", q.as_subclass(Overriding)),
                        ("zeros", torch._efficientzerotensor(1, 2, 3, 8))):
            for few in (t, t[0]):
                ok(near(torch.Tensor(F.scaled_dot_product_attention(few, q.view_as(few), q.view_as(few))),
                        math(*[x.view(1, 2, 3, 8) for x in (few.clone().as_subclass(torch.Tensor), q, q)])[0].view_as(q.view_as(few))),
                   f"F.scaled_dot_product_attention of {name}, {few.dim()} dimensions")


def in_dual_level(f, x):
    with torch.autograd.forward_ad.dual_level():
        return f(torch.autograd.forward_ad.make_dual(x, x))


# ---- Under F.scaled_dot_product_attention ------------------------------------------------------------------------------------


def counted(f, taken=1, left=None, **options):
    """f's result with rapt enabled, and whether it took so many calls and left so many others for these reasons."""
    rapt.torch.stats(reset=True)
    with rapt.torch.enabled(**options):
        result = f()
    counts = rapt.torch.stats()
    return result, (counts["taken"], counts["left"]) == (taken, left or {}), counts


def test_sdpa_results():
    cases = {
        "plain": ({}, {}),
        "causal": ({}, {"is_causal": True}),
        "causal, more keys than queries": ({"keys": 13}, {"is_causal": True}),
        "one query": ({"queries": 1, "keys": 900}, {}),
        "scale": ({}, {"scale": 0.9}),
        "heads that share keys": ({"kv_heads": 2}, {"enable_gqa": True}),
        "tokens before heads": ({"dense": False}, {}),
        "mask of two dimensions": ({}, {"attn_mask": torch.rand(5, 9) > 0.3}),
        "mask of four dimensions": ({}, {"attn_mask": torch.rand(2, 1, 5, 9) > 0.3}),
        "mask of floats": ({}, {"attn_mask": torch.randn(2, 4, 5, 9)}),
        "mask without keys for a row": ({}, {"attn_mask": torch.tensor([[True]] * 4 + [[False]]).expand(5, 9)}),
    }
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for name, (shape, options) in cases.items():
            shape = {"kv_heads": 4} | shape
            q, k, v = tensors(dtype=dtype, **shape)
            mask = options.get("attn_mask")
            if mask is not None and mask.is_floating_point():
                options = options | {"attn_mask": mask.to(dtype)}
            own = F.scaled_dot_product_attention(q, k, v, **options)
            beside = {} if mask is None else {"bias" if mask.is_floating_point() else "mask": options["attn_mask"]}
            wanted, _ = math(q, k, v, causal="top-left" if options.get("is_causal") else None, scale=options.get("scale"),
                             **beside)
            out, right, counts = counted(lambda: F.scaled_dot_product_attention(q, k, v, **options), everything=True)
            ok(right and near(out, wanted, 2) and out.stride() == own.stride(),
               f"F.scaled_dot_product_attention: {name}, {dtype}",
               f"{counts} {out.stride()} {own.stride()} {(out - wanted).abs().max()}")


def test_sdpa_left():
    q, k, v = tensors(kv_heads=4)
    own = F.scaled_dot_product_attention(q.double(), k.double(), v.double())
    out, right, counts = counted(lambda: F.scaled_dot_product_attention(q.double(), k.double(), v.double()), 0,
                                 {"float64 is not served": 1})
    ok(right and same(own, out), "float64 is left to PyTorch's own kernel", counts)
    out, right, counts = counted(lambda: F.scaled_dot_product_attention(q, k, v), 0,
                                 {"float32 stays with PyTorch on this CPU": 1}, types=[torch.float16])
    ok(right and same(F.scaled_dot_product_attention(q, k, v), out), "types that were not asked for are left", counts)
    wide = [torch.randn(1, 1, 3, 1100) for _ in range(3)]
    own = F.scaled_dot_product_attention(*wide)
    rapt.torch.stats(reset=True)
    with rapt.torch.enabled():
        out = F.scaled_dot_product_attention(*wide)
    counts = rapt.torch.stats()
    ok(same(own, out) and counts["taken"] == 0 and len(counts["left"]) == 1 and "1100" in next(iter(counts["left"])),
       "more than 1024 channels are left", counts)
    columns = torch.zeros(2, 4, 9, 5).transpose(2, 3)
    own = F.scaled_dot_product_attention(q, k, v, attn_mask=columns)
    out, _, counts = counted(lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=columns))
    ok(near(out, own) and counts["taken"] + sum(counts["left"].values()) == 1, "a mask whose keys are not adjacent", counts)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    own, ours = raised(lambda: flash(q, k, v, 0.5)), raised(lambda: counted(lambda: flash(q, k, v, 0.5)))
    ok(own is not None and own.split("\n")[0] == ours.split("\n")[0], "dropout: PyTorch's own word", (own, ours))
    columns = q.transpose(2, 3).contiguous().transpose(2, 3)
    own = F.scaled_dot_product_attention(columns, k, v)
    out, _, counts = counted(lambda: F.scaled_dot_product_attention(columns, k, v))
    ok(counts["taken"] == 0 and "adjacent" in next(iter(counts["left"])) and same(own, out), "channels that are not adjacent are left",
       counts)
    for what, options in (("dropout", {"dropout_p": 0.5}), ("tensors of 5 dimensions", {})):
        t = [x[None] for x in (q, k, v)] if "5" in what else (q, k, v)
        torch.manual_seed(3)
        own = F.scaled_dot_product_attention(*t, **options)
        torch.manual_seed(3)
        out, right, counts = counted(lambda: F.scaled_dot_product_attention(*t, **options), 0, {what: 1})
        ok(right and same(own, out), f"left to PyTorch's math, and counted: {what}", counts)
    with sdpa_kernel(SDPBackend.MATH):
        own = F.scaled_dot_product_attention(q, k, v)
        out, right, counts = counted(lambda: F.scaled_dot_product_attention(q, k, v), 0, {"fused attention is off (sdpa_kernel)": 1})
    ok(right and same(own, out), "sdpa_kernel(SDPBackend.MATH) gets PyTorch's math", counts)
    ok("torch.float64" in (raised(rapt.torch.enable, [torch.float64]) or ""), "enable() refuses types that are not served")


def calls_of_attention():
    """Calls of F.scaled_dot_product_attention, well formed and not, by name: shapes of q, k and v, and options."""
    q, k = (2, 4, 3, 8), (2, 4, 5, 8)
    yield "plain", (q, k, k), {}
    yield "5 keys, 6 values", (q, k, (2, 4, 6, 8)), {}
    yield "6 keys, 5 values", (q, (2, 4, 6, 8), k), {}
    yield "5 keys, 1 value", (q, k, (2, 4, 1, 8)), {}
    yield "1 key, 5 values", (q, (2, 4, 1, 8), k), {}
    yield "k of 16 channels", (q, (2, 4, 5, 16), k), {}
    yield "v of 16 channels", (q, k, (2, 4, 5, 16)), {}
    yield "v of 16 channels, causal", (q, k, (2, 4, 5, 16)), {"is_causal": True}
    yield "v of 16 channels, 6 values", (q, k, (2, 4, 6, 16)), {}
    yield "k of batch 1", (q, (1, 4, 5, 8), k), {}
    yield "k and v of batch 1", (q, (1, 4, 5, 8), (1, 4, 5, 8)), {}
    yield "q of batch 1", ((1, 4, 3, 8), k, k), {}
    yield "k of batch 3", (q, (3, 4, 5, 8), (3, 4, 5, 8)), {}
    yield "k and v of 1 head", (q, (2, 1, 5, 8), (2, 1, 5, 8)), {}
    yield "k of 1 head", (q, (2, 1, 5, 8), k), {}
    yield "k and v of 2 heads", (q, (2, 2, 5, 8), (2, 2, 5, 8)), {}
    yield "v of 2 heads", (q, k, (2, 2, 5, 8)), {}
    yield "gqa of 2 heads", (q, (2, 2, 5, 8), (2, 2, 5, 8)), {"enable_gqa": True}
    yield "gqa of 3 heads", (q, (2, 3, 5, 8), (2, 3, 5, 8)), {"enable_gqa": True}
    yield "gqa of 2 and 4 heads", (q, (2, 2, 5, 8), k), {"enable_gqa": True}
    yield "gqa of 8 heads", (q, (2, 8, 5, 8), (2, 8, 5, 8)), {"enable_gqa": True}
    yield "gqa of 2 heads, 6 values", (q, (2, 2, 5, 8), (2, 2, 6, 8)), {"enable_gqa": True}
    for dims in (1, 2, 3, 5):
        some = [(2,) * (dims - 4) + shape[4 - min(dims, 4):] for shape in (q, k, k)]
        yield f"{dims} dimensions", some, {}
        yield f"{dims} dimensions, causal", some, {"is_causal": True}
        yield f"{dims} dimensions, 6 values", (some[0], some[1], (*some[1][:-2], 6, 8) if dims > 1 else (6,)), {}
    yield "3 dimensions, v of 6 channels", ((4, 3, 8), (4, 5, 8), (4, 5, 6)), {"scale": 0.3}
    yield "3 dimensions, gqa", ((4, 3, 8), (2, 5, 8), (2, 5, 8)), {"enable_gqa": True}
    yield "3 dimensions, k and v of 1", ((4, 3, 8), (1, 5, 8), (1, 5, 8)), {}
    yield "q of 4 dimensions, k of 3", (q, (4, 5, 8), (4, 5, 8)), {}
    yield "q of 3 dimensions, k of 4", ((4, 3, 8), k, k), {}
    yield "no queries", ((2, 4, 0, 8), k, k), {}
    yield "no keys", (q, (2, 4, 0, 8), (2, 4, 0, 8)), {}
    yield "no batch", ((0, 4, 3, 8), (0, 4, 5, 8), (0, 4, 5, 8)), {}
    yield "no heads", ((2, 0, 3, 8), (2, 0, 5, 8), (2, 0, 5, 8)), {}
    yield "no channels of v", (q, k, (2, 4, 5, 0)), {}
    yield "1100 channels", ((1, 1, 3, 1100), (1, 1, 5, 1100), (1, 1, 5, 1100)), {}
    yield "1100 channels, 6 values", ((1, 1, 3, 1100), (1, 1, 5, 1100), (1, 1, 6, 1100)), {}
    for mask in ((3, 5), (1, 5), (3, 1), (5,), (1,), (4, 3, 5), (1, 3, 5), (2, 1, 3, 5), (1, 4, 1, 5), (2, 4, 3, 5), (1, 2, 4, 3, 5),
                 (3, 6), (2, 5), (3, 3, 5), (3, 4, 3, 5), (2, 2, 3, 5), (5, 3)):
        yield f"mask {mask}", (q, k, k), {"attn_mask": torch.rand(mask) > 0.3}
        yield f"floats as mask {mask}", (q, k, k), {"attn_mask": torch.randn(mask)}
        yield f"3 dimensions, mask {mask}", (q[1:], k[1:], k[1:]), {"attn_mask": torch.rand(mask) > 0.3}
        yield f"v of 6 channels, mask {mask}", (q, k, (2, 4, 5, 6)), {"attn_mask": torch.rand(mask) > 0.3}
    for what, mask in (("of doubles", torch.zeros(3, 5).double()), ("of halves", torch.zeros(3, 5).half()),
                       ("of integers", torch.zeros(3, 5).int()), ("whose keys are not adjacent", torch.randn(5, 3).t()),
                       ("without keys for a row", torch.tensor([[True]] * 2 + [[False]]).expand(3, 5))):
        yield f"mask {what}", (q, k, k), {"attn_mask": mask}
        yield f"3 dimensions, mask {what}", (q[1:], k[1:], k[1:]), {"attn_mask": mask}
    yield "3 dimensions, causal and mask", (q[1:], k[1:], k[1:]), {"is_causal": True, "attn_mask": torch.rand(3, 5) > 0.3}
    yield "v of 6 channels, causal and mask", (q, k, (2, 4, 5, 6)), {"is_causal": True, "attn_mask": torch.rand(3, 5) > 0.3}
    yield "scale nan", (q[1:], k[1:], k[1:]), {"scale": float("nan")}
    yield "scale 0", (q[1:], k[1:], k[1:]), {"scale": 0.0}


def test_sdpa_malformed():
    """What raises with PyTorch's math raises with rapt, in a line, and what does not has the same result: no call is handed to a kernel
    that reads what is not there."""
    sdpa, taken, raising = F.scaled_dot_product_attention, Counter(), 0
    for dtype in (torch.float32, torch.float64):
        wrong = []
        for name, shapes, options in calls_of_attention():
            for leaves in (False, True):
                t = [torch.randn(shape).to(dtype).requires_grad_(leaves) for shape in shapes]
                mask = options.get("attn_mask")
                if mask is not None and mask.dtype == torch.float32:
                    options = options | {"attn_mask": mask.to(dtype)}

                def call():
                    out = sdpa(*t, **options)
                    return [out.detach(), *(torch.autograd.grad(out.square().sum(), t) if leaves else ())]
                with sdpa_kernel(SDPBackend.MATH):
                    own_error = raised(call)
                    own = None if own_error else call()
                rapt.torch.stats(reset=True)
                with rapt.torch.enabled(everything=True):
                    error = raised(call)
                    counts = rapt.torch.stats(reset=True)
                    out = None if error else call()
                raising += own_error is not None
                if dtype == torch.float64 and mask is not None and mask.dim() == 1 and error == raised(call):
                    continue  # a mask of one dimension, which PyTorch's choice of a kernel does not get over
                if (own_error is None) != (error is None) or (error and len(error.splitlines()) > 1 and "torch" not in own_error):
                    wrong.append((name, leaves, own_error, error, counts))
                elif out is not None and not all(a.isnan().equal(b.isnan()) and near(a.nan_to_num(), b.nan_to_num(), 10)
                                                 for a, b in zip(out, own)):
                    wrong.append((name, leaves, [(a - b).abs().max() for a, b in zip(out, own) if a.shape == b.shape], counts))
                elif error is None and counts["calls"] != 1:
                    wrong.append((name, leaves, "not counted once", counts))
                taken[dtype] += counts["taken"]
        ok(not wrong, f"F.scaled_dot_product_attention raises where PyTorch's math does, and is the same where it does not, {dtype}",
           "\n".join(map(str, wrong)))
    ok(taken[torch.float32] > 80 and not taken[torch.float64] and raising > 50, "that table has all kinds of calls", (taken, raising))


def test_sdpa_math():
    """What PyTorch sends to its math, and rapt takes: 3 dimensions, values of another width than keys, masks of other shapes, with
    first and second derivatives."""
    cases = {"3 dimensions": [(4, 5, 16), (4, 9, 16), (4, 9, 16), {}], "3 dimensions, causal": [(4, 5, 16), (4, 9, 16), (4, 9, 16), {"is_causal": True}],
             "values of 24 channels": [(2, 4, 5, 16), (2, 4, 9, 16), (2, 4, 9, 24), {"is_causal": True}],
             "values of 8 channels, scale": [(2, 4, 5, 16), (2, 4, 9, 16), (2, 4, 9, 8), {"scale": 0.4}],
             "values of 8 channels, heads that share keys": [(2, 4, 5, 16), (2, 2, 9, 16), (2, 2, 9, 8), {"enable_gqa": True}],
             "3 dimensions, mask": [(4, 5, 16), (4, 9, 16), (4, 9, 16), {"attn_mask": torch.rand(5, 9) > 0.3}],
             "3 dimensions, a row without keys": [(4, 5, 16), (4, 9, 16), (4, 9, 16), {
                 "attn_mask": torch.tensor([[True]] * 4 + [[False]]).expand(5, 9)}],
             "a mask of 3 dimensions": [(2, 4, 5, 16), (2, 4, 9, 16), (2, 4, 9, 16), {"attn_mask": torch.randn(4, 1, 9)}],
             "a mask with gradients": [(2, 4, 5, 16), (2, 4, 9, 16), (2, 4, 9, 16), {"attn_mask": torch.randn(4, 5, 9).requires_grad_()}],
             "a mask of 4 dimensions with gradients": [(2, 4, 5, 16), (2, 4, 9, 16), (2, 4, 9, 16), {
                 "attn_mask": torch.randn(2, 4, 5, 9).requires_grad_()}]}
    for name, (*shapes, options) in cases.items():
        for dtype in (torch.float32, torch.bfloat16):
            leaves = [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]
            mask = options.get("attn_mask")
            if mask is not None and mask.requires_grad:
                mask = mask.detach().to(dtype).requires_grad_()
                leaves.append(mask)

            def derivatives(t, of):
                """The result, its gradients, and, of a function of these, those of the keys."""
                given = options if mask is None else options | {"attn_mask": t[3] if mask.requires_grad else mask if mask.dtype == torch.bool
                                                                else mask.to(of)}
                out = F.scaled_dot_product_attention(*t[:3], **given)
                first = torch.autograd.grad(out.square().sum(), t, create_graph=True)
                return [x.detach() for x in (out, *first, *torch.autograd.grad(first[0].square().sum(), t[1]))]
            exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
            expected = derivatives(exact, torch.float64)
            out, right, counts = counted(lambda: derivatives(leaves, dtype), everything=True)
            ok(right and all(near(a, b, 30) for a, b in zip(out, expected)), f"taken from PyTorch's math: {name}, {dtype}",
               f"{counts} {[(a - b).abs().max().item() for a, b in zip(out, expected)]}")
    q, k, v = (torch.randn(4, n, 16) for n in (5, 9, 9))
    together = torch.randn(3, 4, 9, 16, requires_grad=True)
    with sdpa_kernel(SDPBackend.MATH):
        own, = torch.autograd.grad(F.scaled_dot_product_attention(together[0], together[0] * 2, together[1]).square().sum(), together)
    out, right, counts = counted(
        lambda: torch.autograd.grad(F.scaled_dot_product_attention(together[0], together[0] * 2, together[1]).square().sum(), together)[0])
    ok(right and near(out, own, 10), "gradients where keys were computed of queries", counts)
    ok(same(counted(lambda: F.scaled_dot_product_attention(q, k, v))[0], operator(q, k, v)), "3 dimensions have the operator's bits")

    def inferred():
        with torch.inference_mode():
            return F.scaled_dot_product_attention(q * 1, k * 1, v * 1)
    out, right, counts = counted(inferred)
    ok(right and near(out, math(q[None], k[None], v[None])[0][0]), "taken in torch.inference_mode()", counts)
    for what, call, counts_of in (
            ("torch.compile", torch.compile(lambda *t: F.scaled_dot_product_attention(*t) * 2, backend="aot_eager"),
             {"traced into PyTorch's math": 1}),
            ("torch.func.vmap", torch.func.vmap(lambda *t: F.scaled_dot_product_attention(*t) * 2), {}),
            ("torch.func.jvp", lambda q, k, v: torch.func.jvp(lambda x: F.scaled_dot_product_attention(x, k, v) * 2, (q,), (q,))[0],
             {"a TorchDispatchMode, torch.func or a tensor of another kind": 1})):
        torch._dynamo.reset()
        out, right, counts = counted(lambda: call(q, k, v), 0, counts_of)
        ok(right and near(out, 2 * math(q[None], k[None], v[None])[0][0], 2), f"left to PyTorch's math: {what}, 3 dimensions", counts)
    tangents = [torch.func.jvp(lambda x: F.scaled_dot_product_attention(x, k, v), (q,), (k[:, :5],))[1] for _ in (0,)]
    tangents.append(counted(lambda: torch.func.jvp(lambda x: F.scaled_dot_product_attention(x, k, v), (q,), (k[:, :5],))[1])[0])
    ok(near(*tangents), "derivatives of torch.func.jvp")


def test_fused_malformed():
    """The operator that compiled graphs have, which reads behind its tensors where their shapes do not go together."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    q, k, v = tensors(kv_heads=4)
    for dtype in (torch.float32, torch.float64):
        for name, t in (("tokens", (q, k[:, :, :5], v)), ("channels", (q, k[..., :8], v[..., :8])), ("heads", (q, k, v[:, :2])),
                        ("heads that do not divide", (q, k[:, :3], v[:, :3])), ("entries of k", (q, k[:1], v)),
                        ("entries", (q, k[:1], v[:1]))):
            message = counted(lambda: raised(flash, *(x.to(dtype) for x in t)))[0]
            ok(message is not None and message.startswith("RuntimeError: scaled_dot_product_attention: ") and len(message.splitlines()) == 1,
               f"PyTorch's fused operator, {dtype}: other {name}", message)
        own = flash(*(x.to(dtype) for x in (q, k, v)))[0]
        columns = [x.to(dtype).transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v)]
        out, _, counts = counted(lambda: flash(*columns)[0])
        ok(near(out, own) and counts["calls"] == 1, f"PyTorch's fused operator, {dtype}: channels that are not adjacent", counts)


def test_stats():
    q, k, v = tensors(kv_heads=4)
    rapt.torch.stats(reset=True)
    F.scaled_dot_product_attention(q, k, v)
    ok(rapt.torch.stats() == {"enabled": False, "calls": 0, "taken": 0, "left": {}}, "stats() while rapt is not enabled",
       rapt.torch.stats())
    with rapt.torch.enabled():
        nothing = rapt.torch.stats()
        F.scaled_dot_product_attention(q, k, v)
        F.scaled_dot_product_attention(q[0], k[0], v[0, ..., :8])
        F.scaled_dot_product_attention(q.requires_grad_(), k, v).sum().backward()
        F.scaled_dot_product_attention(q.double(), k.double(), v.double())
        raised(F.scaled_dot_product_attention, q, k, v[:, :, :5])
        counts = rapt.torch.stats(reset=True)
    ok(nothing == {"enabled": True, "calls": 0, "taken": 0, "left": {}}, "stats() where nothing was called", nothing)
    ok(counts == {"enabled": True, "calls": 4, "taken": 3, "left": {"float64 is not served": 1}}, "stats() counts each call once", counts)


class Eager(torch.nn.Module):
    """Attention by hand."""

    def forward(self, q, k, v):
        return (q @ k.mT).softmax(-1) @ v


class EagerAttention(Eager):
    pass


class Fused(torch.nn.Module):
    """Not attention by its name, but by what it calls."""

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)


def test_report():
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    alone = torch.nn.MultiheadAttention(64, 4)
    model = torch.nn.ModuleDict({"layer": layer, "alone": alone, "eager": EagerAttention(), "fused": Fused(), "other": Eager()}).eval()
    names = ["layer.self_attn", "alone", "eager", "fused"]

    def found(model, **options):
        with rapt.torch.enabled(**options):
            return {m.name: (m.served, m.why) for m in rapt.torch.report(model).modules}
    before = rapt.torch.report(model)
    ok([m.name for m in before.modules] == names and not before.enabled, "report() finds what looks like attention", before)
    ok(not any(m.served for m in before.modules) and "enable() has not been called" in before.modules[0].why, "report() while not enabled",
       before)
    now = found(model)
    ok([now[name][0] for name in names] == [True, None, None, True] and "need_weights=False" in now["alone"][1], "report() while enabled", now)
    for what, line, name, changed in (("double precision", "float64 is not served", "layer.self_attn", copy.deepcopy(model).double()),
                                      ("dropout", "dropout 0.1 in training", "layer.self_attn", copy.deepcopy(model).train()),
                                      ("wide heads", "2048 channels", "", torch.nn.MultiheadAttention(2048, 1)),
                                      ("another device", "on meta", "layer.self_attn", copy.deepcopy(model).to("meta"))):
        served, why = found(changed)[name]
        ok(served is False and line in why, f"report(): {what}", why)
    served, why = found(model, types=[torch.float16])["layer.self_attn"]
    ok(served is False and "float32 stays with PyTorch" in why, "report(): a type that is not taken", why)
    with rapt.torch.enabled():
        torch.backends.mha.set_fastpath_enabled(True)
        report = rapt.torch.report(model)
    torch.backends.mha.set_fastpath_enabled(True)
    ok(report.modules[0].served is None and "fast path" in report.modules[0].why, "report(): the fast path is on again", report)
    lines = repr(report).splitlines()
    ok(len(lines) == 1 + len(names) and all(name in line for name, line in zip(names, lines[1:])), "report() prints a line for each", lines)
    x = torch.randn(2, 5, 64)
    for name, call, taken in (("layer.self_attn", lambda: layer(x), 1), ("alone", lambda: alone(x, x, x), 0),
                              ("alone, need_weights=False", lambda: alone(x, x, x, need_weights=False), 1),
                              ("fused", lambda: model["fused"](x, x, x), 1), ("eager", lambda: model["eager"](x, x, x), 0)):
        with torch.no_grad():
            _, right, counts = counted(call, taken)
        ok(right and counts["calls"] == taken, f"what report() says is so: {name}", counts)


def test_report_of_transformers():
    try:
        import transformers
    except ImportError as error:
        tap.skip("report() of a model of Transformers", absent(error))
        return
    config = transformers.BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=50)
    ids = torch.arange(6)[None]
    for kind, served, line in (("sdpa", True, "sdpa"), ("eager", False, "model.set_attn_implementation('rapt')")):
        model = transformers.BertModel._from_config(config, attn_implementation=kind).eval()
        with rapt.torch.enabled(), torch.no_grad():
            report = rapt.torch.report(model)
            rapt.torch.stats(reset=True)
            model(ids)
            counts = rapt.torch.stats()
        ok([m.served for m in report.modules] == [served] and line in report.modules[0].why and counts["calls"] == served,
           f"report() of a model of Transformers, {kind}, is so", (report, counts))
    model.train().set_attn_implementation("sdpa")
    with rapt.torch.enabled():
        report = rapt.torch.report(model)
    ok(report.modules[0].served is False and "dropout 0.1" in report.modules[0].why, "report() of a model of Transformers: dropout", report)
    type(model)._supports_sdpa, before = False, type(model)._supports_sdpa
    backend, type(model)._supports_attention_backend = type(model)._supports_attention_backend, False
    model.config._attn_implementation = "eager"
    why = rapt.torch.report(model).modules[0].why
    type(model)._supports_sdpa, type(model)._supports_attention_backend = before, backend
    ok("attention of its own" in why, "report() of a model of Transformers that takes no other attention", why)


def test_sdpa_switches():
    q, k, v = tensors(kv_heads=4)
    own = F.scaled_dot_product_attention(q, k, v)
    rapt.torch.stats(reset=True)
    rapt.torch.enable()
    rapt.torch.enable()
    F.scaled_dot_product_attention(q, k, v)
    with rapt.torch.enabled(types=[]):
        F.scaled_dot_product_attention(q, k, v)
    F.scaled_dot_product_attention(q, k, v)
    rapt.torch.disable()
    rapt.torch.disable()
    ok(same(F.scaled_dot_product_attention(q, k, v), own), "after disable(), the bits are PyTorch's again")
    ok(torch.backends.mha.get_fastpath_enabled(), "after disable(), nn.MultiheadAttention has its fast path again")
    counts = rapt.torch.stats()
    ok(counts["taken"] == 2 and sum(counts["left"].values()) == 1, "enable(), enabled() and disable() within each other",
       counts)
    few, many = tensors(kv_heads=4, queries=8, dtype=torch.bfloat16), tensors(kv_heads=4, queries=9, dtype=torch.bfloat16)
    types = rapt.torch.default_types()
    for name, t, taken in (("8", few, platform.machine() == "x86_64"), ("9", many, torch.bfloat16 in types)):
        _, _, counts = counted(lambda: F.scaled_dot_product_attention(*t))
        ok(counts["taken"] == taken and bool(counts["left"]) != taken, f"bfloat16 of {name} queries by default: "
           f"{'rapt' if taken else 'PyTorch'}", counts)
    has = torch.cpu.get_capabilities()
    ok(torch.float32 in types and (torch.bfloat16 in types) <= (not has.get("amx_bf16")) and torch.float64 not in types,
       f"types by default on this CPU: {', '.join(sorted(map(str, types)))}")


def test_arguments():
    """Whatever an argument is not is refused by one line that names it, and changes nothing."""
    class Silly:
        def __repr__(self):
            return "silly\n" * 1000

    silly = [Silly(), {"a": 1}, 3j, 7, "yes\nno", b"bf16", torch.ones(9, 9), [[1, 2], [3, 4]], slice(3)]
    arguments = {"types": rapt.torch.enable, "everything": rapt.torch.enable, "arith": rapt.torch.enable, "reset": rapt.torch.stats,
                 "model": rapt.torch.report}
    with rapt.torch.enabled():
        F.scaled_dot_product_attention(*tensors(kv_heads=4))
    before = rapt.torch.stats()
    for name, function in [*arguments.items(), ("types", rapt.torch.enabled), ("arith", rapt.torch.default_types)]:
        wrong = []
        for x in silly:
            message = raised(lambda: function(**{name: x}).__enter__() if function is rapt.torch.enabled else function(**{name: x}))
            if rapt.torch.stats()["enabled"]:
                rapt.torch.disable()
                message = f"it is enabled: {message}"
            if message is None or not message.startswith((f"TypeError: {name} is ", f"ValueError: {name} is ")) or "\n" in message:
                wrong.append((type(x).__name__, message))
        ok(not wrong, f"refused: {function.__name__}({name}=...) of another kind", "\n".join(map(str, wrong)))
    ok(rapt.torch.stats() == before, "... and nothing was changed", rapt.torch.stats())
    ok(raised(rapt.torch.enable, torch.float64) == "ValueError: types has torch.float64: torch.float32, torch.float16 and torch.bfloat16 are "
       "served", "refused: enable() of a type that is not served")
    ok(raised(lambda: rapt.torch.enable([torch.float32], everything=True)) == "ValueError: everything is True, and types are given: one of "
       "them is needed", "refused: enable() of some types and of everything")


def test_sdpa_arith():
    for dtype in (torch.bfloat16, torch.float32):
        t = tensors(kv_heads=4, dtype=dtype)
        exact, bf16 = (torch.ops.rapt.attention(*t, arith=arith) for arith in ("exact", "bf16"))
        with rapt.torch.enabled(everything=True):
            first = F.scaled_dot_product_attention(*t)
        with rapt.torch.enabled(everything=True, arith="bf16"):
            second = F.scaled_dot_product_attention(*t)
        ok(not same(exact, bf16) and same(first, exact) and same(second, bf16 if dtype == torch.bfloat16 else exact),
           f"enabled(arith=\"bf16\"): {dtype} is {'in bf16 arithmetic' if dtype == torch.bfloat16 else 'exact'}")
    ok((torch.bfloat16 in rapt.torch.default_types("bf16")) == (torch.bfloat16 in rapt.torch.default_types() or rapt.isa() == "amx"),
       "in bf16 arithmetic, bfloat16 is rapt's by default where its kernel has a matrix unit")
    try:
        rapt.torch.enable(arith="int8")
        ok(False, "refused: another arithmetic")
    except ValueError as error:
        ok("'int8'" in str(error), "refused: another arithmetic", error)


def test_gradients():
    for dtype, options in ((torch.float32, {}), (torch.float32, {"is_causal": True}), (torch.float32, {"scale": 0.3}),
                           (torch.float32, {"attn_mask": torch.rand(5, 9) > 0.5}),
                           (torch.float32, {"attn_mask": torch.tensor([[True]] * 4 + [[False]]).expand(5, 9)}),
                           (torch.float32, {"enable_gqa": True}), (torch.bfloat16, {"is_causal": True})):
        leaves = [t.to(dtype).requires_grad_() for t in tensors(kv_heads=2 if options.get("enable_gqa") else 4)]

        def gradients(t):
            for leaf in t:
                leaf.grad = None
            F.scaled_dot_product_attention(*t, **options).square().sum().backward()
            return [leaf.grad.clone() for leaf in t]
        exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
        with sdpa_kernel(SDPBackend.MATH):
            expected = gradients(exact)
        (got, right, counts) = counted(lambda: gradients(leaves), everything=True)
        ok(right and all(near(a, b, 10) for a, b in zip(got, expected)), f"gradients, {dtype}, {', '.join(options)}",
           f"{counts} {[(a - b).abs().max().item() for a, b in zip(got, expected)]}")
    q, k, v = (t.requires_grad_() for t in tensors(kv_heads=4, queries=3, keys=4, d_k=4, d_v=4))
    torch._dynamo.reset()

    def step(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).square().sum()
    with rapt.torch.enabled():
        rapt.torch.stats(reset=True)
        compiled = torch.autograd.grad(torch.compile(step, fullgraph=True)(q, k, v), (q, k, v))
        taken = rapt.torch.stats()["taken"]
    ok(taken == 1 and all(near(a, b, 4) for a, b in zip(compiled, torch.autograd.grad(step(q, k, v), (q, k, v)))),
       "gradients through torch.compile", taken)


def test_sdpa_compiled():
    for dense in (True, False):
        q, k, v = tensors(kv_heads=4, queries=6, dense=dense)

        def f(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2) * 2
        own = f(q, k, v)
        torch._dynamo.reset()
        (out, right, counts) = counted(lambda: torch.compile(f, fullgraph=True)(q, k, v))
        ok(right and near(out, own), f"F.scaled_dot_product_attention in torch.compile, dense={dense}", counts)

    class Module(torch.nn.Module):
        def forward(self, q, k, v):
            return f(q, k, v)
    program = torch.export.export(Module(), (q, k, v))
    (out, _, counts) = counted(lambda: program.module()(q, k, v))
    ok(near(out, own) and counts["taken"] == 1, "F.scaled_dot_product_attention in torch.export", counts)


def check_modules(name, model, *arguments, calls=None, **keywords):
    """A model's outputs with rapt beside PyTorch's own."""
    model = model.eval()
    with torch.no_grad():
        own = model(*arguments, **keywords)
        (out, _, counts) = counted(lambda: model(*arguments, **keywords))
    own, out = ((x if isinstance(x, torch.Tensor) else x[0]) for x in (own, out))
    ok(counts["taken"] > 0 and not counts["left"] and near(out, own, 10), f"{name}: {counts['taken']} calls",
       f"{counts} {(out - own).abs().max()}")


def test_modules():
    x = torch.randn(2, 7, 64)
    check_modules("nn.MultiheadAttention", torch.nn.MultiheadAttention(64, 4, batch_first=True), x, x, x, need_weights=False)
    encoder = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    check_modules("nn.TransformerEncoderLayer", encoder, x)
    check_modules("nn.TransformerEncoderLayer with a mask", encoder, x,
                  src_mask=torch.nn.Transformer.generate_square_subsequent_mask(7))
    check_modules("nn.TransformerEncoder", torch.nn.TransformerEncoder(encoder, 2), x)
    check_modules("nn.Transformer", torch.nn.Transformer(64, 4, 1, 1, 128, batch_first=True), x, x)


# Wheels of torchvision do not load their operators into other builds of PyTorch than their own. timm and diffusers need none of
# them, but torchvision's import does need the declarations of these two.
declarations = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, name):
        declarations.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def absent(error):
    return f"it is not installed, or not for this PyTorch ({type(error).__name__}: {str(error).splitlines()[0]})"


def test_timm():
    try:
        import timm
    except Exception as error:
        tap.skip("timm", absent(error))
        return
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, img_size=64)
    check_modules(f"timm {timm.__version__}, vit_tiny", model, torch.randn(2, 3, 64, 64))


def test_diffusers():
    try:
        import diffusers
        from diffusers import UNet2DConditionModel
    except Exception as error:
        tap.skip("diffusers", absent(error))
        return
    model = UNet2DConditionModel(sample_size=8, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=32,
                                 attention_head_dim=8, norm_num_groups=8,
                                 down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
                                 up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"))
    check_modules(f"diffusers {diffusers.__version__}, UNet2DConditionModel", model, torch.randn(1, 4, 8, 8), 3,
                  torch.randn(1, 5, 32), return_dict=False)


def test_pytorch_own():
    """The inputs and references of PyTorch's own tests that lie in its wheel (torch.testing._internal), with rapt enabled. Its
    test files, such as test_transformers.py, do not lie there."""
    try:
        from torch.testing._internal.common_methods_invocations import op_db
        from torch.testing._internal.common_modules import module_db
    except ImportError as error:
        tap.skip("PyTorch's own tests", f"what they need is not installed ({error})")
        return
    sdpa = next(op for op in op_db if op.name == "nn.functional.scaled_dot_product_attention")
    for dtype, tolerance in ((dtype, NEAR[dtype]) for dtype in (torch.float32, torch.float16, torch.bfloat16)):
        wrong, samples, taken = [], 0, 0
        for sample in sdpa.sample_inputs("cpu", dtype, requires_grad=True):
            if sample.kwargs["dropout_p"]:  # PyTorch's math
                continue
            samples += 1

            def results(of):
                """The result and the gradients."""
                leaves = [t.detach().to(of).requires_grad_() for t in (sample.input, *sample.args)]
                options = {name: x.to(of) if isinstance(x, torch.Tensor) else x for name, x in sample.kwargs.items()}
                out = sdpa(*leaves, **options)
                return [t.detach().double() for t in (out, *torch.autograd.grad(out.sum(), leaves))]
            exact, own = results(torch.double), results(dtype)
            ours, _, counts = counted(lambda: results(dtype), everything=True)
            taken += counts["taken"]
            for what, e, a, b in zip(("result", "dq", "dk", "dv"), exact, own, ours):
                off = [((x - e).abs().max() / e.abs().max().clamp(1)).item() for x in (a, b)]
                if not off[1] <= 2 * off[0] + tolerance:
                    wrong.append((sample.summary()[:200], what, off))
        ok(not wrong and taken >= 4, f"PyTorch's samples of scaled_dot_product_attention, {dtype}: {taken} of {samples} taken",
           wrong)
    for module in (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer, torch.nn.TransformerDecoderLayer,
                   torch.nn.TransformerEncoder):
        info = next(m for m in module_db if m.module_cls is module)
        wrong, taken = [], 0
        for training in (False, True):
            options = {"device": "cpu", "dtype": torch.float32, "requires_grad": False, "training": training}
            for sample in info.module_inputs_func(info, **options):
                made, call = sample.constructor_input, sample.forward_input
                m = module(*made.args, **made.kwargs).train(training)
                torch.manual_seed(5)
                own = m(*call.args, **call.kwargs)
                torch.manual_seed(5)
                out, _, counts = counted(lambda: m(*copy.deepcopy(call.args), **copy.deepcopy(call.kwargs)))
                taken += counts["taken"]
                pairs = [(out, own)]
                if sample.reference_fn is not None:
                    pairs.append((out, sample.reference_fn(m, *call.args, **call.kwargs)))
                for a, b in pairs:
                    a, b = (x if isinstance(x, tuple) else (x,) for x in (a, b))
                    # Rows without keys: 0 here and in PyTorch's math, NaN in some of its other ways.
                    wrong += [sample.desc for x, y in zip(a, b) if x is not None and y is not None
                              and not near(x[~y.isnan()], y[~y.isnan()], 10)]
        # The samples of nn.MultiheadAttention ask for weights, which no fused attention has.
        ok(not wrong and (taken > 0) == (module is not torch.nn.MultiheadAttention),
           f"PyTorch's samples of nn.{module.__name__}: {taken} calls taken", wrong)


# ---- Threads -----------------------------------------------------------------------------------------------------------------


def test_threads():
    q, k, v = tensors(batch=2, heads=8, kv_heads=2, queries=100, keys=1500, d_k=64, d_v=64)
    results = []
    for count in (1, 2, 3, 5):
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        results.append(operator(q, k, v, causal="bottom-right"))
        torch.set_num_threads(before)
    ok(all(same(results[0], r) for r in results), "1, 2, 3 and 5 of PyTorch's threads give the same bits")
    alone = operator(q[1:], k[1:], v[1:], causal="bottom-right")
    ok(same(results[0][1:], alone), "an entry has the same bits alone and in a batch")
    ok(rapt._threads.host is not None, "PyTorch's own threads are used: " + torch.__config__.parallel_info().split(
        "ATen parallel backend: ")[-1].split("\n")[0])
    wrong = []

    def work():
        for _ in range(20):
            if not same(operator(q, k, v, causal="bottom-right"), results[0]):
                wrong.append(1)
    several = [threading.Thread(target=work) for _ in range(4)]
    for t in several:
        t.start()
    for t in several:
        t.join()
    ok(not wrong, "four Python threads at once")


def _child(queue, q, k, v):
    """PyTorch's own threaded operators stop for ever in such a child."""
    queue.put([operator(q, k, v).numpy().tobytes(), F.scaled_dot_product_attention(q, k, v, enable_gqa=True).numpy().tobytes()])


def test_fork():
    q, k, v = tensors(heads=8, kv_heads=2, queries=64, keys=512, d_k=64, d_v=64)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    expected = operator(q, k, v).numpy().tobytes()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(queue, q, k, v), daemon=True)
    rapt.torch.enable()
    child.start()
    rapt.torch.disable()
    try:
        got = queue.get(timeout=60)
    except Exception as error:
        got = type(error).__name__
    child.kill()
    torch.set_num_threads(before)
    ok(got == [expected] * 2, "a forked child computes the same, by the operator and by F.scaled_dot_product_attention", str(got)[:80])


# ---- Processes ---------------------------------------------------------------------------------------------------------------


def in_ways(attend, q, k, v, causal):
    """What a function like F.scaled_dot_product_attention says of a batch, in ways that compute the same."""
    yield "in a batch", attend(q, k, v, is_causal=causal)
    before = torch.get_num_threads()
    for threads in (1, 7):
        torch.set_num_threads(threads)
        yield f"threads: {threads}", attend(q, k, v, is_causal=causal)
    torch.set_num_threads(before)
    yield "each entry alone", torch.cat([attend(*(x[i:i + 1] for x in (q, k, v)), is_causal=causal) for i in range(len(q))])
    seen = [slice(i + 1 if causal else None) for i in range(q.shape[2])]
    yield "token by token", torch.cat([attend(q[:, :, i:i + 1], k[:, :, s], v[:, :, s]) for i, s in enumerate(seen)], 2)


def print_digests():
    """F.scaled_dot_product_attention of PyTorch's own, and with rapt under it."""
    torch.set_num_threads(2)
    found = {}
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for what, keys, causal in ((", causal", 70, True), (" on more keys", 600, False)):
            q, k, v = (torch.from_numpy(processes.normal(n, 3, 4, tokens, 64)).to(dtype) for n, tokens in enumerate((70, keys, keys)))
            ways = {}
            for with_rapt in (contextlib.nullcontext, functools.partial(rapt.torch.enabled, everything=True)):
                with with_rapt():
                    for way, out in in_ways(F.scaled_dot_product_attention, q, k, v, causal):
                        ways.setdefault(way, []).append(processes.digest(out.contiguous().view(torch.uint8)))
            found[str(dtype).removeprefix("torch.") + what] = ways
    print(json.dumps(found))


def test_processes():
    of = processes.environments(RAPT_ISA=processes.kernels(), ATEN_CPU_CAPABILITY=processes.capabilities())
    processes.compare("F.scaled_dot_product_attention", processes.results(__file__, of))


# ---- What may be missing -----------------------------------------------------------------------------------------------------


def python(code, **environment):
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True,
                          timeout=120)
    return done.returncode, done.stderr.strip().splitlines()[-1:] or [""]


def test_examples():
    import doctest
    rapt.torch.stats(reset=True)
    ok(doctest.testmod(rapt.torch).failed == 0, "the examples in the module's text")


def test_missing():
    for stand_in, line in (("sys.modules['torch'] = None",
                            "ImportError: rapt.torch needs PyTorch 2.9 or newer (pip install torch)"),
                           ("sys.modules['torch'] = types.SimpleNamespace(__version__='2.4.1')",
                            "ImportError: rapt.torch needs PyTorch 2.9 or newer, and 2.4.1 is installed")):
        status, last = python(f"import sys, types; {stand_in}; import rapt.torch")
        ok(status == 1 and last == [line], f"one line: {line}", last)


if "--digests" in sys.argv:
    print_digests()
    sys.exit()
for test in list(globals().values()):
    if callable(test) and getattr(test, "__name__", "").startswith("test_"):
        try:
            test()
        except Exception:
            ok(False, test.__name__, traceback.format_exc())
tap.done()
