#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package, in TAP. Usage: python_package.py [SOURCE]

It tests the package that Python finds: the source tree's with PYTHONPATH=python and RAPT_LIBRARY=path/to/librapt_python.so, or
one that is installed. SOURCE, by default the tree that this file is in, has the page of examples. Needs NumPy; with ml_dtypes,
PyTorch, matplotlib and IPython, which are not required, it tests more."""
import contextlib
import copy
import decimal
import doctest
import fractions
import functools
import gc
import importlib
import inspect
import itertools
import math
import multiprocessing
import os
import pathlib
import pickle
import pkgutil
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
import weakref

try:
    import numpy as np
except ImportError:
    print("1..0 # SKIP NumPy is not installed")
    sys.exit()

SOURCE = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2])
sys.path.append(str(SOURCE / "tests/host"))  # after the package's own
import tap
from tap import ok, skip

import rapt
import rapt.llama_cpp
import rapt.viz


def optional(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


torch, ml_dtypes, matplotlib = optional("torch"), optional("ml_dtypes"), optional("matplotlib")
rng = np.random.default_rng(12)


def random(*shape, dtype=np.float32):
    return rng.standard_normal(shape, dtype=np.float32).astype(dtype)


def same(a, b):
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()


def refused(what, kind, words, function):
    """It must raise this error, with these words in a message of one line."""
    try:
        function()
    except kind as error:
        line = str(error)
        ok(all(word in line for word in words) and "\n" not in line, f"refused: {what}", f"{type(error).__name__}: {line}")
    except Exception as error:
        ok(False, f"refused: {what}", f"{type(error).__name__}: {error}")
    else:
        ok(False, f"refused: {what}", "it is accepted")


# ---- References, in float64 --------------------------------------------------------------------------------------------------


def softmax(scores, sinks=None):
    """Weights and log-sum-exp; 0 and -inf for rows without keys."""
    largest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        largest = np.maximum(largest, sinks)
    largest = np.where(np.isfinite(largest), largest, 0)
    e = np.exp(scores - largest)
    total = e.sum(axis=-1, keepdims=True) + (0 if sinks is None else np.exp(sinks - largest))
    with np.errstate(divide="ignore"):
        return np.divide(e, total, out=np.zeros_like(e), where=total > 0), (np.log(total) + largest)[..., 0]


def reference(q, k, v, *, causal=None, window=None, scale=None, mask=None, bias=None, softcap=None, slopes=None, sinks=None,
              lengths=None):
    """(batch, heads, tokens, channels): the result and the log-sum-exp."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = q @ k.swapaxes(2, 3) * (1 / np.sqrt(q.shape[3]) if scale is None else scale)
    batch, _, queries, keys = scores.shape
    length = np.full(batch, keys) if lengths is None else np.asarray(lengths)
    j = np.arange(keys)[None, None, :]
    i = np.arange(queries)[None, :, None] + (0 if causal == "top-left" else (length - queries)[:, None, None])
    attended = np.broadcast_to(j < length[:, None, None], (batch, queries, keys)).copy()
    if causal:
        attended &= j <= i
    if window is not None:
        left, right = window
        attended &= (j >= i - left) if left is not None else True
        attended &= (j <= i + right) if right is not None else True
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if slopes is not None:
        scores = scores - np.asarray(slopes)[:, None, None] * abs(i - j)[:, None]
    if bias is not None:
        scores = scores + np.asarray(bias, np.float64)
    attended = attended[:, None] & (True if mask is None else mask)
    weights, lse = softmax(np.where(attended, scores, -np.inf), None if sinks is None else np.asarray(sinks)[:, None, None])
    return weights @ v, lse


def off(have, need):
    have, need = np.asarray(have, np.float64), np.asarray(need)
    with np.errstate(invalid="ignore"):
        return float(np.where(have == need, 0, abs(have - need)).max(initial=0))


def near(what, have, need, tolerance=2e-6):
    shape = np.asarray(have).shape
    error = off(have, need) if shape == np.asarray(need).shape else np.inf
    ok(error <= tolerance, f"{what}: {error:.1e} from the reference", f"shapes {shape} and {np.asarray(need).shape}")


# ---- Examples ----------------------------------------------------------------------------------------------------------------


def test_documents():
    """The examples of each document that has some, which share its names."""
    for document in (SOURCE / "README.md", *sorted((SOURCE / "docs").glob("*.md"))):
        text, name = document.read_text(encoding="utf-8"), document.relative_to(SOURCE)
        examples = "\n".join(block for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S) if ">>> " in block)
        if not examples:
            continue
        if "import torch" in examples:
            skip(f"the examples of {name}", "stage torch runs them, with python/tests/test_reproducible.py")
            continue
        told = []
        result = doctest.DocTestRunner().run(doctest.DocTestParser().get_doctest(examples, {}, str(name), None, 0), out=told.append)
        least = 40 if document.name == "python.md" else 1
        ok(result.failed == 0 and result.attempted >= least, f"{name}: {result.attempted} examples", "".join(told))


def test_examples():
    test_documents()
    finder, runner, told = doctest.DocTestFinder(), doctest.DocTestRunner(), []
    documented = set()
    for module in (rapt, rapt.viz):
        for test in finder.find(module, globs={"np": np, "rapt": rapt}):
            if test.examples and (matplotlib or "heatmap" not in test.name):
                runner.run(test, out=told.append)
                documented.add(test.name.rpartition(".")[2])
    count = runner.summarize(verbose=False)
    ok(count.failed == 0, f"docstrings: {count.attempted} examples", "".join(told))
    functions = {name for name in rapt.__all__ if name not in ("Error", "Plan", "PrepackedWeights", "Weights")}
    ok(functions <= documented, "each function has an example", functions - documented)
    if not matplotlib:
        skip("the example of heatmap", "matplotlib is not installed")


# ---- Attention ---------------------------------------------------------------------------------------------------------------


def test_attention():
    q, k, v = random(2, 6, 7, 40), random(2, 3, 11, 40), random(2, 3, 11, 24)
    mask = rng.random((2, 1, 7, 11)) < 0.7
    bias = random(6, 7, 11)
    bias[:, 2, 3:5] = -np.inf
    slopes = [0.5, 0.25, 0.125, 0.0625, 0.03, 0.015]
    cases = {
        "plain": {}, "bottom-right": {"causal": "bottom-right"}, "top-left": {"causal": "top-left"}, "scale": {"scale": 0.3},
        "scale 0": {"scale": 0}, "window": {"window": (2, None)}, "window of both sides": {"window": (1, 2)},
        "mask": {"mask": mask}, "mask of keys": {"mask": mask[:1, 0, 0]}, "mask of queries": {"mask": mask[0, 0, :, :1]},
        "bias": {"bias": bias}, "softcap": {"softcap": 2.0}, "alibi": {"alibi": slopes}, "sinks": {"sinks": slopes},
        "lengths": {"kv_lengths": [4, 11]}, "lengths 0": {"kv_lengths": [0, 1]},
        "all of them": {"causal": "bottom-right", "window": (5, None), "scale": 0.2, "mask": mask, "bias": bias, "softcap": 3.0,
                        "alibi": slopes, "sinks": slopes, "kv_lengths": [9, 11]}}
    for name, options in cases.items():
        names = {"alibi": "slopes", "kv_lengths": "lengths"}
        needed, lse = reference(q, k, v, **{names.get(key, key): x for key, x in options.items()})
        o, sums = rapt.attention(q, k, v, return_lse=True, **options)
        near(name, o, needed)
        near(f"{name}, log-sum-exp", sums, lse, 4e-6)
        flat = {key: x for key, x in options.items() if key not in ("kv_lengths", "mask")}
        if flat == options:
            one = rapt.attention(q[0], k[0], v[0], **options)
            ok(same(one, o[0]), f"{name}, without a batch: the same bits")
        turned = rapt.attention(*(x.swapaxes(1, 2) for x in (q, k, v)), layout="bshd", **options)
        ok(same(turned.swapaxes(1, 2).copy(), o), f"{name}, bshd by strides: the same bits")
        made = rapt.plan(q, k, v, **options)
        again = {key: x for key, x in options.items() if key in ("mask", "bias", "alibi", "sinks", "kv_lengths")}
        ok(same(made(q.copy(), k.copy(), v.copy(), **again), o), f"{name}, by a plan: the same bits")
    near("alibi=True", rapt.attention(q, k, v, alibi=True),
         reference(q, k, v, slopes=[2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])[0])


def test_types():
    q, k, v = random(1, 4, 3, 32), random(1, 2, 9, 32), random(1, 2, 9, 32)
    types = {"float32": np.float32, "float16": np.float16}
    if ml_dtypes:
        types |= {name: getattr(ml_dtypes, name) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")}
    else:
        skip("bfloat16 and float8", "ml_dtypes is not installed")
    for (a, kind), (b, stored) in itertools.product(types.items(), types.items()):
        if "8" in a:
            continue
        x, y, z = q.astype(kind), k.astype(stored), v.astype(stored)
        o = rapt.attention(x, y, z)
        need = reference(x.astype(np.float32), y.astype(np.float32), z.astype(np.float32))[0]
        ok(o.dtype == kind, f"q {a}, k and v {b}: the result is {a}", o.dtype)
        near(f"q {a}, k and v {b}", o.astype(np.float32), need, 2e-6 if a == "float32" else 2e-2)
    whole, s = (127 * k / abs(k).max()).astype(np.int8), np.float32(abs(k).max() / 127)
    need = reference(q, whole * s, v)[0]
    near("int8 with scales of tokens", rapt.attention(q, whole, v, k_scales=np.full((1, 2, 9, 1), s, np.float32)), need)
    near("int8 with scales of channels", rapt.attention(q, whole, v, k_scales=np.full((1, 1, 1, 32), s, np.float32)), need)
    near("int8 with a scale of heads", rapt.attention(q, whole, v, k_scales=np.full((1, 2, 1, 1), s, np.float32)), need)
    scales = rng.random((1, 2, 9, 1), np.float32)
    near("float32 with scales of V", rapt.attention(q, k, v, v_scales=scales), reference(q, k, v * scales)[0])


def test_ragged():
    lengths, keys = (3, 0, 7, 1), (5, 2, 7, 4)
    q, k, v = random(4, 11, 32), random(2, 18, 32), random(2, 18, 32)
    qs, ks = np.concatenate([[0], np.cumsum(lengths)]), np.concatenate([[0], np.cumsum(keys)])
    o, lse = rapt.attention(q, k, v, q_starts=qs, k_starts=ks, causal="bottom-right", return_lse=True)
    for i in range(4):
        part = slice(qs[i], qs[i + 1]), slice(ks[i], ks[i + 1])
        alone, sums = rapt.attention(q[:, part[0]], k[:, part[1]], v[:, part[1]], causal="bottom-right", return_lse=True)
        ok(same(o[:, part[0]], alone) and same(lse[:, part[0]], sums), f"ragged, entry {i}: the bits that it has alone")
    turned = rapt.attention(*(x.swapaxes(0, 1) for x in (q, k, v)), q_starts=qs, k_starts=ks, causal="bottom-right",
                            layout="bshd")
    ok(same(turned.swapaxes(0, 1), o), "ragged, bshd: the same bits")
    made = rapt.plan(q, k, v, q_starts=qs, k_starts=ks, causal="bottom-right")
    qs[:], ks[:] = 1 << 30, 1 << 30
    ok(same(made(q, k, v), o), "a plan has its own starts")
    made = rapt.plan(q, k, v, q_starts=[2, 5, 9], k_starts=[0, 5, 18], return_lse=True)
    for _ in range(4):  # in memory that is not 0 by chance
        np.full(q.shape, 7, np.float32)
        o, lse = made(q, k, v)
        loose = [0, 1, 9, 10]
        ok(not o[:, loose].any() and (lse[:, loose] == -np.inf).all(), "a plan's queries of no entry are 0")
    pages, table = random(7, 2, 4, 32), [[6, 2, 0], [1, 3, 5]]
    values = random(7, 2, 4, 32)
    gathered = [np.concatenate([x[page] for page in row], axis=1)[None] for x in (pages, values) for row in table]
    o = rapt.attention(random_q := random(2, 4, 1, 32), pages, values, page_table=table, kv_lengths=[9, 12])
    for i, n in enumerate((9, 12)):
        ok(same(o[i:i + 1], rapt.attention(random_q[i:i + 1], gathered[i][:, :, :n], gathered[2 + i][:, :, :n])),
           f"pages, entry {i}: the bits of keys in one piece")


def test_merge():
    q, k, v = random(2, 4, 3, 32), random(2, 4, 50, 32), random(2, 4, 50, 32)
    parts = [rapt.attention(q, k[:, :, a:b], v[:, :, a:b], return_lse=True) for a, b in ((0, 20), (20, 21), (21, 50))]
    o, lse = rapt.merge(*zip(*parts))
    needed, sums = reference(q, k, v)
    near("merge", o, needed)
    near("merge, log-sum-exp", lse, sums, 4e-6)
    refused("a merge of nothing", ValueError, ["0 results"], lambda: rapt.merge([], []))
    refused("a merge of other shapes", ValueError, ["outs[1]"], lambda: rapt.merge([o, o[:1]], [lse, lse[:1]]))


def test_verify():
    """A result has its bits, whole and row by row; and each change of one bit is found, and named."""
    q, k, v, mask = random(2, 4, 9, 32), random(2, 2, 40, 32), random(2, 2, 40, 24), random(2, 1, 9, 40) > -1
    pages, table = random(6, 2, 8, 32), [[5, 0, 1], [2, 4, 3]]
    problems = {
        "plain": (k, v, {}), "bottom-right": (k, v, {"causal": "bottom-right"}), "top-left": (k, v, {"causal": "top-left"}),
        "a window": (k, v, {"window": (3, 4)}), "a mask": (k, v, {"mask": mask}), "a mask of keys": (k, v, {"mask": mask[0, 0, 0]}),
        "a bias": (k, v, {"bias": random(4, 1, 40)}), "lengths": (k, v, {"kv_lengths": [40, 4], "causal": "bottom-right"}),
        "alibi": (k, v, {"alibi": True, "causal": "bottom-right"}), "sinks": (k, v, {"sinks": [0.5] * 4, "softcap": 3.0}),
        "bf16 arithmetic": (k, v, {"arith": "bf16"}),
        "int8 arithmetic": (
            (k * 30).clip(-127, 127).astype(np.int8), (v * 30).clip(-127, 127).astype(np.int8),
            {"arith": "int8", "k_scales": np.full((1, 1, 1, 1), 0.03, np.float32), "v_scales": np.full((1, 1, 1, 1), 0.02, np.float32)}),
        "f16 keys": (k.astype(np.float16), v, {"causal": "bottom-right"}),
        "pages": (pages, pages, {"page_table": table, "kv_lengths": [20, 9], "causal": "bottom-right"})}
    for name, (keys, values, options) in problems.items():
        o = rapt.attention(q, keys, values, **options)
        ok(rapt.verify(o, q, keys, values, **options) is None and rapt.verify(o, q, keys, values, rows=range(9), **options) is None,
           f"verify, {name}: each row alone has its bits")
        o.view(np.uint32)[1, 2, 3, 5] ^= 1
        found = [rapt.verify(o, q, keys, values, rows=rows, threads=1, **options) for rows in (None, [8, 3], [2])]
        ok(found[0].startswith("o[1, 2, 3, 5] is ") and found[1] and found[1].startswith("o[1, 2, 3, 5] is ") and found[2] is None,
           f"verify, {name}: one bit is found, where its row is checked", found)
    across = [x.swapaxes(1, 2) for x in (q, k, v)]
    o = rapt.attention(*across, layout="bshd", causal="bottom-right")
    wide = np.zeros((*o.shape[:-1], 50), np.float32)
    wide[..., :24] = o
    ok(rapt.verify(wide[..., :24], *across, layout="bshd", causal="bottom-right", rows=[0, 8]) is None, "verify: tokens first, strided")
    wide[0, 8, 1, 2] += 1
    ok((rapt.verify(wide[..., :24], *across, layout="bshd", causal="bottom-right", rows=[8]) or "").startswith("o[0, 8, 1, 2] is "),
       "verify: tokens first, the place is that of o's own dimensions")
    flat = random(4, 9, 32), random(2, 9, 32)
    starts = {"q_starts": [0, 4, 9], "k_starts": [0, 4, 9]}
    o = rapt.attention(flat[0], flat[1], flat[1], **starts)
    ok(rapt.verify(o, flat[0], flat[1], flat[1], **starts) is None, "verify: a ragged batch")
    refused("verify: rows of a ragged batch", ValueError, ["ragged"], lambda: rapt.verify(o, flat[0], flat[1], flat[1], rows=[0], **starts))
    q[0, 0, 0, 0] = np.nan
    o, other = rapt.attention(q, k, v), rapt.attention(q, k, v)
    other.view(np.uint32)[0, 0, 0] ^= 1 << 31
    ok(np.isnan(o[0, 0, 0]).all() and rapt.verify(other, q, k, v) is None, "verify: NaN is NaN")
    refused("verify: o of another shape", ValueError, ["(2, 4, 9, 24)"], lambda: rapt.verify(o[:, :, :8], q, k, v))
    refused("verify: o of another type", ValueError, ["float16"], lambda: rapt.verify(o.astype(np.float16), q, k, v))
    refused("verify: a row that is not there", ValueError, ["queries 0 to 8"], lambda: rapt.verify(o, q, k, v, rows=[9]))
    refused("verify: out", TypeError, ["out is not an option"], lambda: rapt.verify(o, q, k, v, out=o))


# ---- Arrays ------------------------------------------------------------------------------------------------------------------


def test_arrays():
    q, k, v = random(2, 4, 5, 32), random(2, 2, 9, 32), random(2, 2, 9, 32)
    o = rapt.attention(q, k, v)
    wide = random(2, 8, 10, 64)
    wide[:, ::2, 1::2, 16:48] = q
    ok(same(rapt.attention(wide[:, ::2, 1::2, 16:48], k, v), o), "strided views: the same bits")
    bytes_ = np.zeros(q.nbytes + 1, np.uint8)
    bytes_[1:] = q.view(np.uint8).reshape(-1)
    ok(same(rapt.attention(bytes_[1:].view(np.float32).reshape(q.shape), k, v), o), "an unaligned array: the same bits")
    ok(same(rapt.attention(q, np.broadcast_to(k[:1], k.shape), v), rapt.attention(q, np.repeat(k[:1], 2, 0), v)),
       "a broadcast array: the same bits")
    for x in (q, k, v):
        x.flags.writeable = False
    ok(same(rapt.attention(q, k, v), o), "read-only arrays: the same bits")
    outer = np.full((2, 4, 10, 40), 7, np.float32)
    inner = outer[:, :, ::2, 4:36]
    ok(rapt.attention(q, k, v, out=inner) is inner and same(inner, o), "out, strided: it is returned, and has the same bits")
    inner[...] = 7
    ok((outer == 7).all(), "... and nothing beside it was written")
    refused("a read-only out", ValueError, ["out is not writeable"], lambda: rapt.attention(q, k, v, out=q))
    refused("out of another shape", ValueError, ["(2, 4, 5, 32)"],
            lambda: rapt.attention(q, k, v, out=np.empty((2, 4, 5, 31), np.float32)))
    x = q.copy()
    refused("out that is q", rapt.Error, ["bytes meet"], lambda: rapt.attention(x, k, v, out=x))
    refused("out that meets q", rapt.Error, ["bytes meet"],
            lambda: rapt.attention(x[:1], k[:1], v[:1], out=x.reshape(-1)[32:][:640].reshape(1, 4, 5, 32)))
    ok(same(x, q), "... and q is as it was")
    refused("negative strides", rapt.Error, ["q.token_stride = -128"], lambda: rapt.attention(q[:, :, ::-1], k, v))
    wide = np.broadcast_to(random(1, 2, 5, 1), (1, 2, 5, 64))
    refused("channels that are one", ValueError, ["lie 0 bytes apart"], lambda: rapt.attention(wide, wide, wide))
    refused("channels that are not adjacent", ValueError, ["k's channels lie 8 bytes apart"],
            lambda: rapt.attention(q[..., :16], k[..., ::2], v))
    for dtype in (np.float64, np.int32, np.complex64, object):
        refused(f"q of {np.dtype(dtype)}", TypeError, ["q is", "float32, float16 or bfloat16"],
                lambda: rapt.attention(q.astype(dtype), k, v))
    refused("k of float64", TypeError, ["k is float64", "float32, float16, bfloat16"],
            lambda: rapt.attention(q, k.astype(float), v))
    refused("another byte order", TypeError, ["k is not in this machine's byte order"],
            lambda: rapt.attention(q, k.astype(k.dtype.newbyteorder()), v))
    refused("a list", TypeError, ["q is a list"], lambda: rapt.attention(q.tolist(), k, v))
    refused("a mask of floats", TypeError, ["mask is float32", "bias"],
            lambda: rapt.attention(q, k, v, mask=random(5, 9)))
    for shape in ((0, 4, 5, 32), (2, 4, 0, 32)):
        empty = np.empty(shape, np.float32)
        ok(rapt.attention(empty, k[:shape[0]], v[:shape[0]]).shape == shape, f"q of shape {shape}")
    none = rapt.attention(q, k[:, :, :0], v[:, :, :0], return_lse=True)
    ok((none[0] == 0).all() and (none[1] == -np.inf).all(), "no keys: rows of 0, and -inf")
    ok(rapt.attention(q, k, v, mask=np.zeros((5, 9), bool)).max() == 0, "all masked: rows of 0")
    empty = rapt.attention(np.empty((4, 0, 32), np.float32), np.empty((2, 0, 32), np.float32), np.empty((2, 0, 32), np.float32),
                           q_starts=[0], k_starts=[0])
    ok(empty.shape == (4, 0, 32), "a ragged batch of no entries")

    class Exporter:  # what any library's array looks like
        def __init__(self, array, **changes):
            self.array, self.changes = array, changes

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.changes.get("device", self.array.__dlpack_device__())

    x = [np.array(some) for some in (q, k, v)]
    ok(same(rapt.attention(*map(Exporter, x)), o), "arrays with DLPack: the same bits")
    refused("an array elsewhere", TypeError, ["q is not in the CPU's memory"],
            lambda: rapt.attention(Exporter(x[0], device=(2, 0)), *x[1:]))
    refused("an array of float64 with DLPack", TypeError, ["q is", "64 bits"],
            lambda: rapt.attention(Exporter(x[0].astype(float)), *x[1:]))
    if not torch:
        skip("PyTorch's tensors", "PyTorch is not installed")
        return
    t = [torch.from_numpy(np.array(some)) for some in (q, k, v)]
    result = rapt.attention(*t)
    ok(isinstance(result, torch.Tensor) and same(result.numpy(), o), "PyTorch's tensors: one of them, with the same bits")
    ok(rapt.attention(*(some.to(torch.bfloat16) for some in t)).dtype == torch.bfloat16, "PyTorch's bfloat16")
    ok(rapt.attention(t[0][:0], t[1][:0], t[2][:0]).shape == (0, 4, 5, 32), "PyTorch's tensors without elements")
    refused("a tensor that requires a gradient", TypeError, ["q requires a gradient"],
            lambda: rapt.attention(t[0].clone().requires_grad_(), *t[1:]))
    with torch.no_grad():
        ok(same(rapt.attention(t[0].clone().requires_grad_(), *t[1:]), o), "... is taken where no gradients are recorded")
    refused("a tensor without memory", TypeError, ["q is on meta"], lambda: rapt.attention(t[0].to("meta"), *t[1:]))


def test_masked_arrays():
    """NumPy's MaskedArray, whose mask is beside its elements."""
    q = random(1, 2, 3, 16)
    for what, function, arguments in calls():
        for name, given in arguments.items():
            if isinstance(given, np.ndarray):
                masked = np.ma.masked_array(given, mask=False)
                masked[..., -1] = np.ma.masked
                refused(f"{what}, {name} with masked elements", TypeError, [name, "masked elements"],
                        lambda: function(**arguments | {name: masked}))
    for name, given in {"mask": np.ones((3, 3), bool), "bias": np.zeros((3, 3), np.float32), "sinks": np.zeros(2, np.float32),
                        "kv_lengths": np.array([3]), "alibi": np.ones(2), "out": np.empty_like(q)}.items():
        masked = np.ma.masked_array(given, mask=True)
        refused(f"attention, {name} with masked elements", TypeError, [name, "masked elements"],
                lambda: rapt.attention(q, q, q, **{name: masked}))
    ok(same(rapt.attention(np.ma.masked_array(q), q, q), rapt.attention(q, q, q)), "a MaskedArray without masked elements: the same bits")


def test_arguments():
    q = k = v = random(1, 2, 3, 16)
    call = functools.partial(rapt.attention, q, k, v)
    for true in (True, np.True_):
        refused(f"causal={true!r}", ValueError, ['"bottom-right"', '"top-left"'], lambda: call(causal=true))
    refused("causal=1", ValueError, ["causal is 1"], lambda: call(causal=1))
    ok(same(call(causal=False), call()), "causal=False is None")
    refused("another layout", ValueError, ["'bhds'", '"bhsd"'], lambda: call(layout="bhds"))
    refused("another arithmetic", ValueError, ["'int4'", "'exact' or 'int8'"], lambda: call(arith="int4"))
    refused("integers for f32", rapt.Error, ["k.type = RAPT_F32", "RAPT_INT8_DOT"], lambda: call(arith="int8"))
    refused("a scale that is NaN", ValueError, ["scale is NaN"], lambda: call(scale=float("nan")))
    refused("a scale that is no number", TypeError, ["scale is 'x'"], lambda: call(scale="x"))
    refused("window=True", TypeError, ["window is True"], lambda: call(window=True))
    refused("a window of 3 sides", ValueError, ["3 sides"], lambda: call(window=(1, 2, 3)))
    refused("scale=True", TypeError, ["scale is True"], lambda: call(scale=True))
    refused("an infinite scale", rapt.Error, ["scale = inf"], lambda: call(scale=np.inf))
    refused("threads=0", ValueError, ["threads"], lambda: call(threads=0))
    refused("threads=True", ValueError, ["threads"], lambda: call(threads=True))
    ok(same(call(threads=np.int64(2)), call()), "NumPy's integers are numbers of threads")
    refused("a kernel that there is not", rapt.Error, ["isa is 'sse9'", "scalar"], lambda: call(isa="sse9"))
    refused("a kernel that is a number", TypeError, ["isa is 2"], lambda: call(isa=2))
    refused("a tuning that is a number", TypeError, ["tuning is 2"], lambda: call(tuning=2))
    refused("a tuning without its kernel", rapt.Error, ["isa = few_rows=2"], lambda: call(tuning="few_rows=2"))
    refused("a tuning of another kernel", rapt.Error, ["tuning.isa = scalar_fma: the kernel is scalar"],
            lambda: call(isa="scalar", tuning="scalar_fma"))
    ok(same(call(tuning="any few_rows=0 pass_tiles=1\n"), call()), "no bit depends on a tuning")
    refused("lengths of floats", TypeError, ["kv_lengths is float64"], lambda: call(kv_lengths=[1.5]))
    refused("lengths of truths", TypeError, ["kv_lengths is bool"], lambda: call(kv_lengths=[True]))
    refused("lengths beyond 32 bits", ValueError, ["kv_lengths", "32 bits"], lambda: call(kv_lengths=[1 << 32]))
    refused("lengths beyond the keys", rapt.Error, ["kv_lengths[0] = 4"], lambda: call(kv_lengths=[4]))
    refused("too few lengths", ValueError, ["kv_lengths", "(1,)"], lambda: call(kv_lengths=[1, 2]))
    refused("a page that there is not", rapt.Error, ["table"], lambda: call(page_table=[[1]], kv_lengths=[3]))
    refused("pages without lengths", ValueError, ["kv_lengths"], lambda: call(page_table=[[0]]))
    refused("a mask of another shape", ValueError, ["(1, 2, 3, 3)"], lambda: call(mask=np.ones((2, 3), bool)))
    refused("5 heads on 2", rapt.Error, ["heads"], lambda: rapt.attention(random(1, 5, 3, 16), k, v))
    refused("k of other channels", ValueError, ["k has 8 channels and q 16"], lambda: rapt.attention(q, k[..., :8], v))
    refused("k_starts alone", ValueError, ["k_starts need q_starts"], lambda: rapt.attention(q[0], k[0], v[0], k_starts=[0, 3]))
    refused("starts that descend", rapt.Error, ["q_starts"],
            lambda: rapt.attention(q[0], k[0], v[0], q_starts=[3, 0], k_starts=[0, 3]))
    refused("1025 channels", rapt.Error, ["d_k = 1025"], lambda: rapt.attention(*[random(1, 1, 1, 1025)] * 3))
    made = rapt.plan(q, k, v)
    refused("a plan with other arrays", ValueError, ["differ"], lambda: made(q, k[:, :, :2], v[:, :, :2]))
    refused("a plan with a mask that it has not", ValueError, ["differ"], lambda: made(q, k, v, mask=np.ones((3, 3), bool)))
    ok(issubclass(rapt.Error, ValueError) and rapt.Error.__module__ == "rapt", "rapt.Error is a ValueError")


def test_memory():
    """Nothing is copied, and nothing is kept alive or dies too early."""
    q, k, v = random(1, 4, 1, 64), random(1, 4, 20000, 64), random(1, 4, 20000, 64)
    out = np.empty_like(q)
    rapt.attention(q, k, v, out=out, threads=1)
    tracemalloc.start()
    rapt.attention(q, k, v, out=out, threads=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    ok(peak < 100_000, f"a call on {(k.nbytes + v.nbytes) >> 20} MiB allocates {peak} bytes")
    died = weakref.ref(k)
    del k
    gc.collect()
    ok(died() is None, "no array is kept after its call")
    o, need = [], rapt.attention(q, v, v)
    for _ in range(20):  # arrays that nobody else has
        o.append(rapt.attention(q.copy(), v.copy(), v.copy(), mask=np.ones((1, 20000), bool), kv_lengths=[20000],
                                sinks=[-np.inf] * 4))
    ok(all(same(some, need) for some in o), "arrays that only the call has live as long as it")
    x = random(2, 8, 64)
    part = rapt.attention(x, x, x, q_starts=[2, 5], k_starts=[2, 5])
    ok(same(part[:, 2:5], rapt.attention(*[x[:, 2:5]] * 3)) and not part[:, :2].any() and not part[:, 5:].any(),
       "the tokens of no entry are 0")
    made = rapt.plan(random(2, 8, 64), random(2, 8, 64), random(2, 8, 64), q_starts=[0, 3, 8], k_starts=[0, 3, 8])
    gc.collect()
    x = random(2, 8, 64)
    ok(same(made(x, x, x), rapt.attention(x, x, x, q_starts=[0, 3, 8], k_starts=[0, 3, 8])), "a plan keeps what it points to")


# ---- Caches ------------------------------------------------------------------------------------------------------------------


def test_caches():
    types = rapt.info()["types"]
    kinds = {"contiguous": {}, "pages of 4": {"page_size": 4}, "pages of 7": {"page_size": 7}, "a ring": {"ring": True},
             "a ring in pages": {"ring": True, "page_size": 8}}
    d, rope = 64, rapt.Rope(64)
    error = {}
    for k_type, v_type in itertools.product(types, types):
        x, y, q = random(2, 2, 23, d), random(2, 2, 23, d), random(2, 4, 3, d)
        wrong, results = [], {}
        for name, options in kinds.items():
            cache = rapt.KVCache(batch=2, kv_heads=2, capacity=25, d_k=d, type=k_type, v_type=v_type, **options)
            cache.append(x[:, :, :9], y[:, :, :9], rope=rope)
            cache.append(x[:, :, 9:20].swapaxes(1, 2), y[:, :, 9:20].swapaxes(1, 2), layout="bshd", lengths=[11, 5], rope=rope)
            cache.append(x[1:, :, 14:20], y[1:, :, 14:20], entries=[1], rope=rope)
            cache.append(*(np.concatenate(list(some[:, :, 20:]), axis=1) for some in (x, y)), token_starts=[0, 3, 6], rope=rope)
            results[name] = cache.attend(q)
            if not same(cache.attend(q[::-1].copy(), entries=[1, 0])[::-1], results[name]):
                wrong.append(f"{name}: other bits for entries in another order")
            if cache.lengths.tolist() != [23, 23]:
                wrong.append(f"{name}: lengths {cache.lengths}")
        wrong += [f"{name}: other bits" for name, result in results.items() if not same(result, results["contiguous"])]
        if k_type == v_type:
            error[k_type] = off(results["contiguous"], reference(q, rapt.rope(x, rope), y, causal="bottom-right")[0])
        if wrong or k_type == v_type:
            ok(not wrong, f"caches of {k_type} and {v_type}: all kinds have the same bits", "\n".join(wrong))
    ok(True, f"caches: {len(types)} x {len(types)} pairs of types, {len(kinds)} kinds")
    limits = {"f32": 2e-6, "f16": 3e-3, "bf16": 3e-2, "int8": 6e-2, "q8_0": 6e-2, "f8_e4m3": 0.3, "mxfp8_e4m3": 0.4}
    ok(all(off_by < limits.get(name, 1) for name, off_by in error.items()), "... and are as near as the type is",
       ", ".join(f"{name} {off_by:.1e}" for name, off_by in error.items()))


def test_rings():
    d, x, y, q = 64, random(2, 2, 100, 64), random(2, 2, 100, 64), random(2, 4, 1, 64)
    rope = rapt.Rope(d)
    need = rapt.attention(q, rapt.rope(x, rope)[:, :, 75:], y[:, :, 75:])
    for step, size in itertools.product((1, 3, 30, 100), (None, 4, 3)):
        cache = rapt.KVCache(batch=2, kv_heads=2, capacity=25, d_k=d, type="f32", ring=True, page_size=size)
        for t in range(0, 100, step):
            cache.append(x[:, :, t:t + step], y[:, :, t:t + step], rope=rope)
        ok(same(cache.attend(q), need) and cache.lengths.tolist() == [100, 100],
           f"a ring of 25, {step} tokens at a time, pages of {size}: the bits of the last 25")
        mask = np.ones((1, 100), bool)
        mask[:, 80:90] = False
        masked = rapt.attention(q, rapt.rope(x, rope)[:, :, 75:], y[:, :, 75:], mask=mask[:, 75:])
        ok(same(cache.attend(q, mask=mask), masked), "... and masks go by positions")
    ragged = rapt.KVCache(batch=2, kv_heads=2, capacity=25, d_k=d, type="f32", ring=True)
    both = [np.concatenate([some[0], some[1, :, :40]], axis=1) for some in (x, y)]
    ragged.append(*both, token_starts=[0, 100, 140], rope=rope, positions=np.r_[0:100, 0:40])
    turned = rapt.rope(x, rope)
    needed = [rapt.attention(q[i:i + 1], turned[i:i + 1, :, n - 25:n], y[i:i + 1, :, n - 25:n])
              for i, n in ((0, 100), (1, 40))]
    ok(same(ragged.attend(q), np.concatenate(needed)), "a ring, ragged tokens beyond its capacity: the bits of the last 25")
    ragged.truncate(0, 90)
    ragged.append(x[:1, :, 90:92], y[:1, :, 90:92], entries=[0], rope=rope)
    ok(same(ragged.attend(q[:1], entries=[0]), rapt.attention(q[:1], rapt.rope(x, rope)[:1, :, 75:92], y[:1, :, 75:92])),
       "a ring, truncated and appended to")
    refused("to truncate what a ring has dropped", ValueError, ["75..92"], lambda: ragged.truncate(0, 74))


def test_cache_calls():
    d, x, y, q = 64, random(3, 2, 30, 64), random(3, 2, 30, 64), random(1, 4, 1, 64)
    make = functools.partial(rapt.KVCache, kv_heads=2, capacity=25, d_k=d, type="f32")
    cache = make(batch=3, page_size=4, pages=12)
    ok(cache.nbytes == 2 * 12 * 2 * 4 * d * 4 and cache.capacity == 25 and cache.free_pages == 12, "sizes of a cache", cache)
    part = slice(0, 1), slice(None), slice(0, 10)
    cache.append(x[part], y[part], entries=[0])
    cache.copy_pages(0, 1)
    cache.copy_pages(0, 2, 5)
    ok(cache.free_pages == 9, "copied pages are shared")
    before = cache.attend(q, entries=[0])
    cache.append(x[:1, :, 20:22], y[:1, :, 20:22], entries=[1])
    cache.append(x[:1, :, 24:27], y[:1, :, 24:27], entries=[2])
    ok(cache.free_pages == 7, "... until one of them writes", cache.page_table)
    ok(same(cache.attend(q, entries=[0]), before), "... and the first has what it had")
    for entry, tokens in ((1, np.r_[0:10, 20:22]), (2, np.r_[0:5, 24:27])):
        ok(same(cache.attend(q, entries=[entry]), rapt.attention(q, x[:1, :, tokens], y[:1, :, tokens])),
           f"... and entry {entry} what it wrote")
    lengths, free, table = cache.lengths, cache.free_pages, cache.page_table
    refused("more tokens than pages", rapt.Error, ["9 pages are needed", "7 of 12 are free"],
            lambda: cache.append(x[:, :, :12], y[:, :, :12]))
    refused("more tokens than room", rapt.Error, ["entry 0 has 10 of 25 tokens: 16 more"],
            lambda: cache.append(x[:, :, :16], y[:, :, :16]))
    ok(same(cache.lengths, lengths) and cache.free_pages == free and same(cache.page_table, table), "... and all is as it was")
    cache.truncate(1, 3)
    ok(cache.free_pages == 8 and cache.lengths[1] == 3, "truncate gives pages back", cache.free_pages)
    cache.append(x[:1, :, 5:6], y[:1, :, 5:6], entries=[1])
    ok(same(cache.attend(q, entries=[1]), rapt.attention(q, x[:1, :, [0, 1, 2, 5]], y[:1, :, [0, 1, 2, 5]])),
       "... and a shared page is copied")
    for entry in range(3):
        cache.free(entry)
    ok(cache.free_pages == 12 and cache.lengths.max() == 0, "free gives all pages back")

    plain = make(batch=3)
    plain.append(x[:, :, :10], y[:, :, :10])
    plain.copy_pages(0, 2, 4)
    ok(same(plain.attend(q, entries=[2]), rapt.attention(q, x[:1, :, :4], y[:1, :, :4])),
       "copy_pages without pages copies tokens")
    order, entry_tokens = [2, 0, 2], [3, 10, 7]
    for what, options in (("without pages", {}), ("in pages", {"page_size": 4, "pages": 9}), ("a ring", {"ring": True, "capacity": 5}),
                          ("with scales", {"type": "int8"}), ("V in K", {"type": "f16", "v_in_k": True})):
        beams = rapt.KVCache(**{"batch": 3, "kv_heads": 2, "capacity": 25, "d_k": d, "type": "f32"} | options)
        beams.append(x[:, :, :10], None if beams.v_in_k else y[:, :, :10], lengths=entry_tokens)
        before, queries = beams.attend(np.repeat(q, 3, 0)), np.repeat(q, 3, 0)
        refused(f"an order of too many, {what}", ValueError, ["0..2"], lambda: beams.reorder([0, 1, 3]))
        beams.reorder(order)
        ok(same(beams.attend(queries), before[order]) and beams.lengths.tolist() == [7, 3, 7], f"reorder, {what}", beams.lengths)
        beams.append(x[:, :, 20:21], None if beams.v_in_k else y[:, :, 20:21])
        beams.reorder([0, 1, 1])
        ok(beams.lengths.tolist() == [8, 4, 4] and same(beams.attend(queries, entries=[0, 1, 2])[1], beams.attend(queries)[2]),
           f"... and again, {what}", beams.lengths)
        if beams.page_size:
            ok(beams.free_pages == 9 - 2 - 1 and (beams.page_table[1] == beams.page_table[2]).all(), "beams share their pages",
               beams.page_table)
    ring = make(batch=2, ring=True)
    ring.append(x[:2, :, :20], y[:2, :, :20])
    before, tables = ring.attend(np.repeat(q, 2, 0)), np.ones((45, d // 2), np.float32)
    refused("a position beyond the tables", rapt.Error, ["position 45", "have 45"], lambda: ring.append(
        x[:2], y[:2], lengths=[26, 30], rope=rapt.Rope(d, tables=(tables, tables)), positions=np.arange(60).reshape(2, 30) % 47))
    ok(same(ring.attend(np.repeat(q, 2, 0)), before), "... and no entry's ring has changed")
    refused("another layout", ValueError, ["layout is 'BHSD'"], lambda: plain.append(x, y, layout="BHSD"))
    refused("another layout", ValueError, ["layout is 'BHSD'"], lambda: rapt.rope(x, rapt.Rope(d), layout="BHSD"))
    refused("a rope that is none", TypeError, ["rope is a str"], lambda: rapt.rope(x, "x"))
    counts = make(batch=2, page_size=8)
    counts.append(x[:2, :, :7], y[:2, :, :7], lengths=[7, 0])
    ok(counts.lengths.tolist() == [7, 0] and counts.free_pages == 7, "an entry without tokens takes no page")
    ok((counts.attend(random(2, 4, 1, d))[1] == 0).all(), "... and its rows are 0")

    half = rapt.KVCache(batch=3, kv_heads=2, capacity=30, d_k=d, type="int8")
    half.append(x, y)
    exact, integers = half.attend(np.repeat(q, 3, 0)), half.attend(np.repeat(q, 3, 0), arith="int8")
    need = reference(np.repeat(q, 3, 0), x, y)[0]
    ok(0 < off(integers, exact) < 0.1 and off(exact, need) < 0.05, "int8, and integer arithmetic",
       (off(integers, exact), off(exact, need)))
    given = rapt.KVCache(batch=3, kv_heads=2, capacity=30, d_k=d, type="int8", k_scales=np.full((2, d), 5 / 127),
                         v_scales=np.full(2, 5 / 127))
    given.append(x, y)
    ok(off(given.attend(np.repeat(q, 3, 0)), need) < 0.1, "int8 with scales of channels and heads",
        off(given.attend(np.repeat(q, 3, 0)), need))
    found = rapt.KVCache(batch=3, kv_heads=2, capacity=30, d_k=d, type="f8_e4m3", k_scales=True, v_scales=True)
    found.append(x * 1e6, y * 1e6)
    ok(np.isfinite(found.attend(np.repeat(q, 3, 0))).all() and found.nbytes == 2 * 3 * 2 * 30 * (d + 4),
        "float8 with scales that are found")
    for kind in ("bf16", "int8", "q8_0"):
        latent = rapt.KVCache(batch=3, kv_heads=2, capacity=30, d_k=d, d_v=32, type=kind, v_in_k=True, page_size=8)
        latent.append(x)
        ok(off(latent.attend(np.repeat(q, 3, 0)), reference(np.repeat(q, 3, 0), x, x[..., :32])[0]) < 0.05, f"V in K, {kind}")

    prompt, window = random(2, 4, 10, d), (5, None)
    cache = make(batch=2, page_size=4)
    cache.append(x[:2, :, :10], y[:2, :, :10])
    bias = random(2, 4, 10, 10)
    options = {"window": window, "softcap": 5.0, "alibi": True, "sinks": [1.0] * 4, "bias": bias, "scale": 0.1}
    o, lse = cache.attend(prompt, return_lse=True, **options)
    needed, sums = rapt.attention(prompt, x[:2, :, :10], y[:2, :, :10], causal="bottom-right", return_lse=True, **options)
    ok(same(o, needed) and same(lse, sums), "attend takes attention's options")
    steps = make(batch=2)
    parts = []
    for a, b in ((0, 3), (3, 4), (4, 10)):
        steps.append(x[:2, :, a:b], y[:2, :, a:b])
        parts.append(steps.attend(prompt[:, :, a:b], window=window))
    ok(same(np.concatenate(parts, 2), cache.attend(prompt, window=window)), "chunked prefill and decode: the bits of prefill")
    ragged = cache.attend(np.concatenate([prompt[0, :, 8:], prompt[1, :, 9:]], 1), q_starts=[0, 2, 3])
    ok(same(ragged[:, :2], cache.attend(prompt[:, :, 8:])[0]), "ragged queries")
    out = np.empty_like(prompt)
    ok(cache.attend(prompt, out=out) is out, "attend writes to out")
    refused("a mask that ends before the keys", rapt.Error, ["mask"], lambda: cache.attend(prompt, mask=np.ones((1, 9), bool)))

    refused("an entry that there is not", ValueError, ["entry is 3"], lambda: plain.free(3))
    refused("an entry twice", ValueError, ["entries"], lambda: plain.attend(random(2, 4, 1, d), entries=[1, 1]))
    refused("k of other heads", ValueError, ["2 heads"], lambda: plain.append(x[:, :1], y[:, :1]))
    refused("v that is missing", ValueError, ["v is not given"], lambda: plain.append(x))
    refused("positions without rope", ValueError, ["rope"], lambda: plain.append(x[:, :, :1], y[:, :, :1], positions=[[1]] * 3))
    refused("a type that there is not", ValueError, ["'q3_k'", "q8_0"], lambda: make(type="q3_k"))
    refused("channels that groups do not divide", ValueError, ["groups of 32"],
            lambda: rapt.KVCache(kv_heads=1, capacity=4, d_k=40, type="q4_0"))
    refused("a capacity of 0", ValueError, ["capacity is 0"], lambda: rapt.KVCache(kv_heads=1, capacity=0, d_k=40))
    refused("pages without a size", ValueError, ["page_size"], lambda: make(pages=4))
    refused("scales of a type that has its own", ValueError, ["scales of its own"], lambda: make(type="q8_0", k_scales=True))
    if torch:
        tensors = rapt.KVCache(kv_heads=2, capacity=30, d_k=d, type=torch.bfloat16)
        tensors.append(torch.from_numpy(x[:1]), torch.from_numpy(y[:1]))
        ok(isinstance(tensors.attend(torch.from_numpy(q)), torch.Tensor), "a cache of PyTorch's tensors")


# ---- What stands around attention --------------------------------------------------------------------------------------------


def rotated(x, positions, channels, interleaved=False, base=10000.0, amplitude=1.0):
    """x (batch, heads, tokens, d), positions (batch, tokens)."""
    angle = positions[:, None, :, None] * base ** (-np.arange(0, channels, 2) / channels)
    c, s, out = amplitude * np.cos(angle), amplitude * np.sin(angle), np.array(x, np.float64)
    half = channels // 2
    first, second = slice(0, half), slice(half, channels)
    if interleaved:
        first, second = slice(0, channels, 2), slice(1, channels, 2)
    a, b = x[..., first].astype(np.float64), x[..., second].astype(np.float64)
    out[..., first], out[..., second] = a * c - b * s, b * c + a * s
    return out


def test_rope():
    x = random(2, 3, 5, 32)
    positions = np.array([[0, 3, 2, 100, 7], [5, 6, 7, 8, 9]])
    near("rope", rapt.rope(x, rapt.Rope(32), positions=positions), rotated(x, positions, 32))
    near("rope, pairs, some channels, an amplitude",
         rapt.rope(x, rapt.Rope(16, interleaved=True, base=500.0, amplitude=1.5), positions=positions),
         rotated(x, positions, 16, True, 500.0, 1.5))
    start = np.array([4, 9])[:, None] + np.arange(5)
    o = rapt.rope(x, rapt.Rope(32), starts=[4, 9])
    near("rope, starts", o, rotated(x, start, 32))
    ok(same(rapt.rope(x, rapt.Rope(32, offset=4), starts=[0, 5]), o), "rope, an offset: the same bits")
    angles = np.arange(20)[:, None] * 10000.0 ** (-np.arange(0, 32, 2) / 32)
    tables = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    ok(same(rapt.rope(x, rapt.Rope(32, tables=tables), starts=[4, 9]), o), "rope, tables: the same bits")
    ok(same(rapt.rope(x, rapt.Rope(32, frequencies=10000.0 ** (-np.arange(0, 32, 2) / 32)), starts=[4, 9]), o),
       "rope, frequencies: the same bits")
    ok(same(rapt.rope(x.swapaxes(1, 2), rapt.Rope(32), starts=[4, 9], layout="bshd").swapaxes(1, 2), o),
       "rope, bshd: the same bits")
    y = x.copy()
    ok(rapt.rope(y, rapt.Rope(32), starts=[4, 9], out=y) is y and same(y, o), "rope, in place: the same bits")
    flat = rapt.rope(np.concatenate(list(x), 1), rapt.Rope(32), token_starts=[0, 5, 10], starts=[4, 9])
    ok(same(flat, np.concatenate(list(o), 1)), "rope, ragged: the same bits")
    ok(rapt.rope(x.astype(np.float16), rapt.Rope(32)).dtype == np.float16, "rope of float16")
    refused("an odd number of channels", ValueError, ["channels is 3"], lambda: rapt.Rope(3))
    refused("positions beyond tables", rapt.Error, ["positions"],
            lambda: rapt.rope(x, rapt.Rope(32, tables=tables), starts=[4, 16]))
    refused("tables of other widths", ValueError, ["(20, 16)"], lambda: rapt.Rope(30, tables=tables))
    refused("too few positions", ValueError, ["positions"], lambda: rapt.rope(x, rapt.Rope(32), positions=[1, 2]))


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


def to_bf16(x):
    """Rounded to bfloat16, to nearest even, of numbers that are finite."""
    bits = x.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def blocks_of(kind, rows):
    """Rows of one block of q4_k or q6_k, as ggml defines it, in float32."""
    halves = rows.view(np.uint8)
    if kind == "q6_k":
        low, high, scales = (halves[:, part].reshape(len(rows), *shape) for part, shape in
                             ((slice(0, 128), (2, 64)), (slice(128, 192), (2, 32)), (slice(192, 208), (16, 1))))
        low = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
        high = np.stack([high >> shift & 3 for shift in (0, 2, 4, 6)], axis=2)
        numbers = (low | high << 4).reshape(-1, 16, 16).astype(np.float32) - 32
        d = halves[:, 208:].copy().view("<f2").astype(np.float32)
        return (d[:, None] * scales.view(np.int8) * numbers).reshape(-1, 256)
    d, least = (halves[:, at:at + 2].copy().view("<f2").astype(np.float32)[:, None] for at in (0, 2))
    a, b, c = halves[:, 4:8], halves[:, 8:12], halves[:, 12:16]
    scales = np.concatenate([a & 63, c & 15 | a >> 6 << 4], axis=1)[..., None].astype(np.float32)
    minimums = np.concatenate([b & 63, c >> 4 | b >> 6 << 4], axis=1)[..., None].astype(np.float32)
    codes = halves[:, 16:].reshape(-1, 4, 1, 32)
    numbers = np.concatenate([codes & 15, codes >> 4], axis=2).reshape(-1, 8, 32).astype(np.float32)
    return (d * scales * numbers - least * minimums).reshape(-1, 256)


def test_layers():
    activations = {None: lambda x: x, "relu": lambda x: np.maximum(x, 0), "gelu": gelu, "silu": lambda x: x / (1 + np.exp(-x)),
                   "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))}
    x, w, g, b, c, r = random(2, 5, 64), random(96, 64) / 8, random(96, 64) / 8, random(96), random(96), random(2, 5, 96)
    wide = [some.astype(np.float64) for some in (x, w, g, b, c, r)]
    for name, function in activations.items():
        near(f"linear, {name}", rapt.linear(x, w, b, activation=name, residual=r),
             function(wide[0] @ wide[1].T + wide[3]) + wide[5], 4e-6)
        near(f"linear, gate of {name}", rapt.linear(x, w, b, gate=g, gate_bias=c, activation=name),
             function(wide[0] @ wide[2].T + wide[4]) * (wide[0] @ wide[1].T + wide[3]), 1e-5)
    o = rapt.linear(x, w, b)
    ok(same(rapt.linear(x[1, 3], w, b), o[1, 3]) and same(rapt.linear(x[0], w, b, threads=2), o[0]),
        "linear, a token alone: the same bits")
    o = rapt.linear(x, w, b, arith="bf16")
    near("linear in bf16", o, to_bf16(x).astype(np.float64) @ to_bf16(w).T + wide[3], 4e-6)
    ok(same(rapt.linear(x[1, 3], w, b, arith="bf16"), o[1, 3]), "... a token alone: the same bits")
    refused("a linear layer of floats in integers", rapt.Error, ["weight.type = RAPT_F32", "RAPT_INT8_DOT"],
            lambda: rapt.linear(x, w, arith="int8"))
    for kind, limit in (("int8", 0.05), ("q8_0", 0.05), ("q4_0", 0.6), ("q4_1", 0.5)):
        weights = rapt.quantise_weights(w, kind)
        near(f"linear, {weights}", rapt.linear(x, weights, b), wide[0] @ wide[1].T + wide[3], limit)
        near(f"linear, gate of {weights}", rapt.linear(x, weights, gate=weights), (wide[0] @ wide[1].T) ** 2, 12 * limit)
        o = rapt.linear(x, weights, b, arith="int8")
        near(f"linear in integers, {weights}", o, rapt.linear(x, weights, b), 0.05)
        packed = rapt.prepack_weights(weights, arith="int8")
        ok(same(rapt.linear(x, packed, b, arith="int8"), o) and same(rapt.linear(x[1, 3], packed, b, arith="int8"), o[1, 3]),
            "... prepacked, and a token alone: the same bits")
    blocks = rapt.quantise_weights(w, "q4_1")
    for data, what in (blocks.data.tobytes(), "bytes"), (blocks.data, "an array"):
        ok(same(rapt.linear(x, rapt.Weights.from_bytes(data, "q4_1", w.shape)), rapt.linear(x, blocks)),
           f"linear, weights from {what}: the same bits")
    for what, words, data, kind, shape in (
            ("bytes of too few rows", ["1920 bytes", "96 rows of 40"], blocks.data[:48], "q4_1", w.shape),
            ("bytes of half a group", ["do not divide 40"], blocks.data, "q4_1", (96, 40)),
            ("blocks that do not divide", ["q6_k do not divide 64"], blocks.data, "q6_k", w.shape),
            ("bytes of int8", ["'int8'", "q8_0, q4_0, q4_1, q4_k, q6_k"], blocks.data, "int8", w.shape),
            ("bytes of a type of caches", ["'q5_1'"], blocks.data, "q5_1", w.shape)):
        refused(f"weights from {what}", ValueError, words, lambda data=data, kind=kind, shape=shape: rapt.Weights.from_bytes(data, kind, shape))
    tokens, data = random(5, 256), rng.integers(0, 256, (7, 210)).astype(np.uint8)
    for kind, bytes_of, at in ("q4_k", 144, (0, 2)), ("q6_k", 210, (208,)):
        rows = data[:, :bytes_of].copy()
        for first in at:
            rows[:, first:first + 2] = (np.arange(7) / np.float16(512)).astype("<f2")[:, None].view(np.uint8)
        values = blocks_of(kind, rows)
        weights = rapt.Weights.from_bytes(rows, kind, (7, 256))
        ok(same(rapt.linear(tokens, weights), rapt.linear(tokens, values)), f"linear, {weights}: the bits of the same weights in float32")
        exact = rapt.linear(tokens, weights)
        near(f"linear in integers, {weights}", rapt.linear(tokens, weights, arith="int8") / abs(exact).max(), exact / abs(exact).max(), 0.05)
        packed = rapt.prepack_weights(weights, arith="int8")
        ok(same(rapt.linear(tokens, packed, arith="int8"), rapt.linear(tokens, weights, arith="int8")), "... prepacked: the same bits")
        refused(f"a cache of {kind}", ValueError, [f"'{kind}'", "are those of K and V"],
                lambda kind=kind: rapt.KVCache(kv_heads=1, capacity=4, d_k=256, type=kind))
    ok(rapt.linear(x.astype(np.float16), w.astype(np.float16)).dtype == np.float16, "linear of float16")
    for weight, arith in ((w, "exact"), (w, "bf16"), (rapt.quantise_weights(w, "int8"), "exact")):
        packed, many, plain = rapt.prepack_weights(weight, arith=arith, threads=2), random(70, 64), {"arith": arith}
        ok(same(rapt.linear(many, packed, b, gate=packed, **plain), rapt.linear(many, weight, b, gate=weight, **plain))
           and same(rapt.linear(x, packed, **plain), rapt.linear(x, weight, **plain)),
           f"linear, {packed} of {getattr(weight, 'type', 'float32')} in {arith} arithmetic: the same bits")
    refused("prepacked weights in another arithmetic", rapt.Error, ["packed of f32", "in bf16 arithmetic"],
            lambda: rapt.linear(x, rapt.prepack_weights(w), arith="bf16"))
    y = r.copy()
    ok(rapt.linear(x, w, residual=y, out=y) is y and same(y, rapt.linear(x, w, residual=r)), "linear, into the residual")
    z, weight, bias = wide[0] * 3 + 1, random(64), random(64)
    given = (x * 3 + 1).astype(np.float32)
    centred = z - z.mean(-1, keepdims=True)
    near("layer_norm", rapt.layer_norm(given, weight, bias), centred / np.sqrt(z.var(-1, keepdims=True) + 1e-5) * weight + bias,
         4e-6)
    near("rms_norm", rapt.rms_norm(given, weight, epsilon=1e-3), z / np.sqrt((z * z).mean(-1, keepdims=True) + 1e-3) * weight,
         4e-6)
    n, total = rapt.rms_norm(x, residual=given, return_sum=True)
    ok(same(total, x + given) and same(n, rapt.rms_norm(x + given)), "rms_norm with a residual: the bits of the sum's")
    refused("another activation", ValueError, ["'tanh'", "'relu'"], lambda: rapt.linear(x, w, activation="tanh"))
    refused("weights of another width", ValueError, ["64 channels come in"], lambda: rapt.linear(x, w[:, :32]))
    refused("a bias of another length", ValueError, ["bias", "(96,)"], lambda: rapt.linear(x, w, b[:5]))
    refused("weights in a type of caches", rapt.Error, ["to_type"], lambda: rapt.quantise_weights(w, "q5_1"))
    refused("a negative epsilon", rapt.Error, ["epsilon = -1"], lambda: rapt.layer_norm(x, epsilon=-1))


def test_mha():
    x, y = random(2, 9, 64), random(2, 7, 48)
    wq, wk, wv, wo = random(64, 64) / 8, random(32, 64) / 8, random(48, 64) / 8, random(40, 96) / 8
    bq, bo = random(64), random(40)
    rope = rapt.Rope(16)

    def heads(x, n):
        return np.ascontiguousarray(x.reshape(*x.shape[:2], n, -1).swapaxes(1, 2))

    def by_parts(x, y, wk, wv, rope, linear_arith="exact", **options):
        linear = functools.partial(rapt.linear, arith=linear_arith)
        q, k, v = heads(linear(x, wq, bq), 4), heads(linear(y, wk), 2), heads(linear(y, wv), 2)
        if rope:
            q, k = rapt.rope(q, rope), rapt.rope(k, rope)
        o = rapt.attention(q, k, v, **options)
        return linear(np.ascontiguousarray(o.swapaxes(1, 2)).reshape(*x.shape[:2], -1), wo, bo)

    options = {"causal": "bottom-right", "softcap": 4.0, "window": 5}
    o = rapt.mha(x, wq, wk, wv, wo, heads=4, kv_heads=2, bq=bq, bo=bo, rope=rope, **options)
    near("mha", o, by_parts(x, x, wk, wv, rope, **options), 4e-6)
    options_in_bf16 = options | {"arith": "bf16", "linear_arith": "bf16"}
    ok(same(rapt.mha(x, wq, wk, wv, wo, heads=4, kv_heads=2, bq=bq, bo=bo, rope=rope, **options_in_bf16),
            by_parts(x, x, wk, wv, rope, **options_in_bf16)), "mha in bf16 arithmetic: the bits of the calls")
    across = random(32, 48) / 8, random(48, 48) / 8
    near("mha, keys of other tokens", rapt.mha(x, wq, *across, wo, heads=4, kv_heads=2, y=y, bq=bq, bo=bo, kv_lengths=[3, 7]),
         by_parts(x, y, *across, None, kv_lengths=[3, 7]), 4e-6)
    for kind in ({}, {"page_size": 4}, {"type": "int8"}):
        cache = rapt.KVCache(**{"batch": 2, "kv_heads": 2, "capacity": 16, "d_k": 16, "d_v": 24, "type": "f32"} | kind)
        parts = [rapt.mha(x[:, a:b], wq, wk, wv, wo, heads=4, kv_heads=2, bq=bq, bo=bo, rope=rope, cache=cache, **options)
                 for a, b in ((0, 4), (4, 5), (5, 9))]
        have = np.concatenate(parts, 1)
        if "type" in kind:
            near(f"mha with a cache, {kind}", have, o, 0.1)
        else:
            ok(same(have, o), f"mha with a cache, {kind or 'contiguous'}: the bits of one call")
        ok(cache.lengths.tolist() == [9, 9], "... which has the tokens")
    def in_parts(cuts=(0, 4, 5, 9), **given):
        cache = rapt.KVCache(batch=2, kv_heads=2, capacity=16, d_k=16, d_v=24, type="f32")
        parts = [rapt.mha(x[:, a:b], wq, wk, wv, wo, heads=4, kv_heads=2, bq=bq, bo=bo, cache=cache, **given)
                 for a, b in itertools.pairwise(cuts)]
        return np.concatenate(parts, 1)

    causal, plain = (rapt.mha(x, wq, wk, wv, wo, heads=4, kv_heads=2, bq=bq, bo=bo, causal=c) for c in ("bottom-right", None))
    ok(same(in_parts(), causal) and same(in_parts((0, 9)), causal) and same(in_parts(causal="auto"), causal),
       "mha with a cache is causal unless it is told otherwise, so a prompt in parts has the bits of one call")
    ok(same(rapt.mha(x, wq, wk, wv, wo, heads=4, kv_heads=2, bq=bq, bo=bo), plain) and not same(plain, causal),
       "... and without one is not")
    ok(all(same(in_parts((0, 9), causal=none), plain) for none in (None, False)), "... None and False are such words")
    over, one = functools.partial(rapt.mha, x[:, :3], wq, wk, wv, wo, heads=4, kv_heads=2, y=x), {
        "batch": 2, "kv_heads": 2, "capacity": 16, "d_k": 16, "d_v": 24, "type": "f32"}
    refused("a cache and other tokens, without causal", ValueError, ["causal", '"bottom-right"', "None"],
            lambda: over(cache=rapt.KVCache(**one)))
    ok(same(over(cache=rapt.KVCache(**one), causal=None), over()), "... with causal=None the queries see all of y")
    for kind in (3, "x", object()):
        refused(f"a rope that is a {type(kind).__name__}, mha", TypeError, ["rope is a", "rapt.Rope"],
                lambda: rapt.mha(x, wq, wk, wv, heads=4, kv_heads=2, rope=kind))
        refused(f"a rope that is a {type(kind).__name__}, append", TypeError, ["rope is a", "rapt.Rope"],
                lambda: rapt.KVCache(**one).append(random(2, 2, 1, 16), random(2, 2, 1, 24), rope=kind))
    packed = random(192, 64) / 8
    a = rapt.mha(x, packed, None, None, wo[:, :64].copy(), heads=4)
    ok(same(a, rapt.mha(x, *np.split(packed, 3), wo[:, :64].copy(), heads=4)), "mha, packed weights: the same bits")
    _out, weights = rapt.mha(x, packed, heads=4, causal="top-left", return_weights=True)
    ok(weights.shape == (2, 4, 9, 9) and off(weights.sum(-1), np.ones((2, 4, 9))) < 1e-6 and (weights[..., 0, 1:] == 0).all(),
       "mha, weights")
    q8 = [rapt.quantise_weights(w, "q8_0") for w in (wq, wk, wv)]
    for arith in ("exact", "bf16"):
        ready = [rapt.prepack_weights(w, arith=arith) for w in (wq, wk, wv, wo)]
        some = {"heads": 4, "kv_heads": 2, "bq": bq, "bo": bo, "linear_arith": arith}
        ok(all(same(rapt.mha(tokens, *ready, **some), rapt.mha(tokens, wq, wk, wv, wo, **some)) for tokens in (x, random(2, 40, 64))),
           f"mha, prepacked weights in {arith} arithmetic: the same bits")
    refused("packed weights that are prepacked together", ValueError, ["prepack wq, wk and wv by themselves"],
            lambda: rapt.mha(x, rapt.prepack_weights(packed), heads=4))
    near("mha, quantised weights", rapt.mha(x, *q8, wo, heads=4, kv_heads=2, bq=bq, bo=bo),
         rapt.mha(x, wq, wk, wv, wo, heads=4, kv_heads=2, bq=bq, bo=bo), 0.1)
    flat = rapt.mha(np.concatenate([x[0, :4], x[1]]), wq, wk, wv, wo, heads=4, kv_heads=2, bq=bq, bo=bo, rope=rope,
                    q_starts=[0, 4, 13], **options)
    ok(same(flat[4:], o[1]), "mha, ragged: the bits of an entry alone")
    near("mha, a table of positions", rapt.mha(x, wq, wk, wv, wo, heads=4, kv_heads=2, position_table=np.tile(bq, (9, 1))),
         rapt.mha(x + bq, wq, wk, wv, wo, heads=4, kv_heads=2), 4e-6)
    refused("weights that heads do not divide", ValueError, ["wq has 64 rows"], lambda: rapt.mha(x, wq, wk, wv, wo, heads=5))
    ring = rapt.KVCache(batch=2, kv_heads=2, capacity=16, d_k=16, d_v=24, ring=True)
    refused("mha with a ring", ValueError, ["ring"], lambda: rapt.mha(x, wq, wk, wv, wo, heads=4, kv_heads=2, cache=ring))
    full = rapt.KVCache(batch=2, kv_heads=2, capacity=5, d_k=16, d_v=24)
    refused("mha with a full cache", rapt.Error, ["9 more have no room"],
            lambda: rapt.mha(x, wq, wk, wv, wo, heads=4, kv_heads=2, cache=full))


# ---- Sizes of 0 --------------------------------------------------------------------------------------------------------------


def before_poison(*shape, dtype=np.float32, poison=3):
    """An array before memory that is not its own: who reads or writes past its end shows."""
    return np.ndarray(shape, dtype, np.full(8192, poison, dtype))


def numeric_defaults():
    """(struct, field) of the numbers in the headers for which 0, -1 or NaN stands for something else."""
    found = set()
    for name in ("rapt.h", "rapt_layer.h"):
        text = (SOURCE / "include" / name).read_text(encoding="utf-8")
        for struct, body in re.findall(r"typedef struct (\w+) \{(.*?)\n\} \1;", text, re.S):
            comment = ""
            parts = re.findall(r"/\*(.*?)\*/|\b(?:int64_t|float|double) ([\w, ]+);(?:[ ]*/\*(.*?)\*/)?", body, re.S)
            for before, declared, after in parts:
                comment, words = (before, "") if not declared else ("", comment + after)
                if re.search(r"\b0: they are|(?<![\w.])(?:0|-1|NaN), the\s+default", words):
                    found |= {(struct, field.strip()) for field in declared.split(",")}
    return found


def zeros():
    """(field, what, words of the refusal, call): ways by which an array's size or a user's number could become C's default."""
    x, w, none = random(4, 16), random(8, 16), before_poison
    q, kv = random(1, 2, 1, 8), random(1, 1, 5, 8)
    layer = functools.partial(rapt.mha, heads=1)
    yield "mha_desc.out_width", "a wo without rows", ["wo has shape (0, 8)"], lambda: layer(x[:1], w, w, w, none(0, 8))
    yield "mha_desc.out_width", "a wv without rows, no wo", ["wv has shape (0, 16)"], lambda: layer(x, w, w, none(0, 16))
    yield "mha_desc.y_width", "a y without channels", ["y has shape (4, 0)"], lambda: layer(
        x, w, none(8, 0), none(8, 0), y=none(4, 0))
    yield "mha_desc.y_width", "a wk without columns", ["wk has shape (8, 0)"], lambda: layer(x, w, none(8, 0), w, y=x)
    yield "mha_desc.z_width", "a z without channels", ["z has shape (4, 0)"], lambda: layer(
        x, w, w, none(8, 0), y=x, z=none(4, 0))
    yield "mha_desc.z_width", "a wv without columns", ["wv has shape (8, 0)"], lambda: layer(x, w, w, none(8, 0), y=x, z=x)
    yield "mha_desc.x_width", "an x without channels", ["x has shape (4, 0)"], lambda: layer(
        none(4, 0), none(8, 0), none(8, 0), none(8, 0))
    yield "mha_desc.x_width", "a wq without columns", ["wq has shape (24, 0)"], lambda: layer(x, none(24, 0))
    yield "mha_desc.packed", "a wq without rows", ["wq has shape (0, 16)"], lambda: layer(x, none(0, 16))
    yield "mha_args.bq", "a bq of no numbers", ["bq has shape (0,)"], lambda: layer(x, w, w, w, bq=none(0))
    yield "mha_args.table_positions", "a position_table without rows", ["table_positions = 0"], lambda: layer(
        x, w, w, w, position_table=none(0, 16))
    for name in ("mask", "bias"):
        def columns(n, name=name, **options):
            return {name: none(1, 1, 1, n, dtype=bool if name == "mask" else np.float32)}
        cache, ring, paged = (rapt.KVCache(**{"kv_heads": 1, "capacity": 16, "d_k": 8, "type": "f32"} | kind)
                              for kind in ({}, {"ring": True, "capacity": 4}, {"page_size": 4}))
        for some in (cache, ring, paged):
            some.append(kv, kv)
        lacks = [f"{name} has shape (1, 1, 1, 0)", "without columns"]
        ragged = {"q_starts": [0, 1], "k_starts": [0, 5]}
        pages = {"page_table": np.zeros((1, 1), np.int32), "kv_lengths": [5]}
        linear = functools.partial(rapt.mha, x[None, :1], w, w, w, heads=1)
        fields = f"desc.{name}_keys"
        yield fields, f"a {name} without columns, a cache", lacks, lambda: cache.attend(q, **columns(0))
        yield fields, f"a {name} without columns, a ring", lacks, lambda: ring.attend(q, **columns(0))
        yield fields, f"a {name} without columns, a cache in pages", lacks, lambda: paged.attend(q, **columns(0))
        yield fields, f"a {name} without columns, ragged keys", lacks, lambda: rapt.attention(
            q[0], kv[0], kv[0], **ragged, **columns(0))
        yield fields, f"a {name} without columns, pages", lacks, lambda: rapt.attention(q, kv, kv, **pages, **columns(0))
        yield fields, f"a {name} without columns, lengths", lacks, lambda: rapt.attention(q, kv, kv, kv_lengths=[5], **columns(0))
        yield fields, f"a {name} without columns, mha with a cache", lacks, lambda: linear(cache=cache, **columns(0))
        yield fields, f"a {name} without columns, mha with lengths", lacks, lambda: linear(kv_lengths=[1], **columns(0))
        yield fields, f"a {name} without columns", [f"{name} has shape (1, 1, 1, 0)"], lambda: rapt.attention(
            q, kv, kv, **columns(0))
        yield fields, f"a {name} without columns, viz.weights", [f"{name} has shape"], lambda: rapt.viz.weights(
            q, kv, **columns(0))
        for what, of in (("a cache", cache), ("a ring", ring)):
            wide = {name: np.broadcast_to(columns(1)[name], (1, 1, 1, 3))}
            words = ["shape (1, 1, 1, 3)", "one column"]
            yield f"desc.{name}_key_stride", f"a {name} of 3 columns that are one, {what}", words, lambda: of.attend(q, **wide)
    yield "desc.page_size", "pages without tokens", ["k has shape (4, 1, 0, 8)"], lambda: rapt.attention(
        q, none(4, 1, 0, 8), none(4, 1, 0, 8), page_table=[[0]], kv_lengths=[0])
    yield "kv_append_desc.page_size", "page_size=0", ["page_size is 0"], lambda: rapt.KVCache(
        kv_heads=1, capacity=16, d_k=8, page_size=0)
    yield "desc.scale", "scale=NaN", ["scale is NaN"], lambda: rapt.attention(q, kv, kv, scale=math.nan)
    yield "desc.softcap", "a softcap that is 0 in float32", ["softcap is 1e-60"], lambda: rapt.attention(q, kv, kv, softcap=1e-60)
    yield "desc.softcap", "softcap=NaN", ["softcap is NaN"], lambda: rapt.attention(q, kv, kv, softcap=math.nan)
    yield "desc.window_left", "a window that is 0 in 64 bits", ["window is 18446744073709551616"], lambda: rapt.attention(
        q, kv, kv, window=1 << 64)
    yield "desc.window_right", "... and -1", ["window is 18446744073709551615"], lambda: rapt.attention(
        q, kv, kv, window=(0, (1 << 64) - 1))
    yield "desc.threads", "threads that are 0 in 64 bits", ["threads is 18446744073709551616"], lambda: rapt.attention(
        q, kv, kv, threads=1 << 64)
    yield "desc.isa", "isa=''", ["isa is ''", "scalar"], lambda: rapt.attention(q, kv, kv, isa="")
    yield "desc.tuning", "tuning=''", ["line = "], lambda: rapt.attention(q, kv, kv, tuning="")
    yield "desc.q_starts", "q_starts of no numbers", ["one number at least"], lambda: rapt.attention(
        q[0], kv[0], kv[0], q_starts=[])
    yield "desc.q_starts", "... in mha", ["one number at least"], lambda: layer(x, w, w, w, q_starts=[])
    yield "desc.k_starts", "k_starts of more numbers, in mha", ["k_starts has 3 numbers and q_starts 2"], lambda: layer(
        x, w, w, w, y=x, q_starts=[0, 4], k_starts=[0, 2, 4])
    yield "args.kv_lengths", "lengths of no numbers", ["kv_lengths has shape (0,)"], lambda: rapt.attention(
        q, kv, kv, kv_lengths=[])
    for name in ("alibi", "sinks"):
        yield f"args.{name}", f"{name} of no numbers", [f"{name} has shape (0,)"], lambda: rapt.attention(q, kv, kv, **{name: []})
    two = np.broadcast_to(random(2, 1, 1, 1), (2, 1, 4, 1))  # of pages, read by the numbers of 3 entries
    words = ["k_scales has shape (2, 1, 4, 1)"]
    yield "scales.token_stride", "scales of pages that are one for all tokens", words, lambda: rapt.attention(
        random(3, 2, 1, 8), random(2, 1, 4, 8), random(2, 1, 4, 8), page_table=[[0], [1], [1]], kv_lengths=[4] * 3, k_scales=two)
    yield "scales.channel_stride", "scales of tokens and of channels", ["k_scales has shape"], lambda: rapt.attention(
        q, kv, kv, k_scales=np.ones(kv.shape, np.float32))
    yield "rope.channels", "a rope of no channels", ["channels is 0"], lambda: rapt.Rope(0)
    rows = np.broadcast_to(random(1, 4), (5, 4))
    yield "rope_table.row_stride", "tables of one row in memory", ["tables have shape (5, 4)"], lambda: rapt.Rope(
        8, tables=(rows, rows))
    yield "rope_table.positions", "tables without rows", ["positions = 0"], lambda: rapt.rope(
        q, rapt.Rope(8, tables=(none(0, 4), none(0, 4))))
    turn = functools.partial(rapt.rope, q, rapt.Rope(8))
    yield "rope_args.starts", "starts of no numbers", ["starts has shape (0,)"], lambda: turn(starts=[])
    yield "rope_args.lengths", "lengths of no numbers, rope", ["lengths has shape (0,)"], lambda: turn(lengths=[])
    yield "rope_args.positions", "positions of no numbers, rope", ["positions have shape (0,)"], lambda: turn(positions=[])
    yield "rope_args.token_starts", "token_starts of no numbers, rope", ["one number at least"], lambda: rapt.rope(
        q[0], rapt.Rope(8), token_starts=[])
    yield "kv_append_args.lengths", "lengths of no numbers, append", ["lengths has shape (0,)"], lambda: cache.append(
        kv, kv, lengths=[])
    yield "kv_append_args.positions", "positions of no numbers, append", ["positions have shape (0,)"], lambda: cache.append(
        kv, kv, rope=rapt.Rope(8), positions=[])
    yield "kv_append_args.token_starts", "token_starts of no numbers, append", ["token_starts are []"], lambda: cache.append(
        kv[0], kv[0], token_starts=[])
    yield "linear_desc.out", "weights without rows", ["weight has shape (0, 16)"], lambda: rapt.linear(x, none(0, 16))
    yield "linear_desc.in", "tokens without channels", ["x has shape (4, 0)"], lambda: rapt.linear(none(4, 0), none(8, 0))
    yield "linear_desc.gate", "a gate without rows", ["gate has shape (0, 16)"], lambda: rapt.linear(x, w, gate=none(0, 16))
    yield "linear_desc.residual", "a residual without channels", ["residual has shape (4, 0)"], lambda: rapt.linear(
        x, w, residual=none(4, 0))
    yield "linear_args.bias", "a bias of no numbers", ["bias has shape (0,)"], lambda: rapt.linear(x, w, none(0))
    yield "linear_desc.out", "quantised weights without rows", ["weight has shape (0, 16)"], lambda: rapt.quantise_weights(
        none(0, 16))
    yield "linear_desc.in", "... without columns", ["weight has shape (8, 0)"], lambda: rapt.quantise_weights(none(8, 0), "q8_0")
    yield "linear_desc.out", "prepacked weights without rows", ["weight has shape (0, 16)"], lambda: rapt.prepack_weights(
        none(0, 16))
    yield "norm_args.channels", "tokens without channels to be normalised", ["x has shape (4, 0)"], lambda: rapt.layer_norm(
        none(4, 0))
    yield "norm_args.weight", "weights of no numbers", ["weight has shape (0,)"], lambda: rapt.rms_norm(x, none(0))
    yield "norm_args.epsilon", "epsilon=NaN", ["epsilon is NaN"], lambda: rapt.rms_norm(x, epsilon=math.nan)
    yield "desc.d_k", "queries and keys without channels", ["d_k = 0"], lambda: rapt.attention(
        none(1, 2, 1, 0), none(1, 1, 5, 0), kv)
    yield "desc.d_v", "values without channels", ["d_v = 0"], lambda: rapt.attention(q, kv, none(1, 1, 5, 0))
    yield "states", "results without channels to be merged", ["d_v = 0"], lambda: rapt.merge([none(2, 0)], [none(2)])


# Numbers with such a default that the package never sets, or, of kv_total, only where its states are of a part of the keys.
NOT_SET = {("rapt_desc", "prefix"), ("rapt_desc", "local_chunk"), ("rapt_desc", "kv_total"), ("rapt_decode_desc", "tokens")}


def test_zeros():
    tried = set()
    for fields, what, words, call in zeros():
        refused(f"{what} ({fields})", ValueError, words, call)
        struct, _, field = fields.partition(".")
        tried.add((f"rapt_{struct}", field))
    have = numeric_defaults()
    ok(len(have) > 12 and have <= tried | NOT_SET, "every number of the headers whose 0, -1 or NaN is a default was tried",
       have - tried - NOT_SET)
    q, kv = random(1, 2, 1, 8), random(1, 1, 0, 8)
    ok((rapt.attention(q, kv, kv, mask=before_poison(1, 1, 1, 0, dtype=bool), kv_lengths=[0]) == 0).all(),
       "a mask without columns is right where there are no keys")
    ring = rapt.KVCache(kv_heads=1, capacity=1, d_k=8, type="f32", ring=True)
    ring.append(random(1, 1, 3, 8), random(1, 1, 3, 8))
    ok(same(ring.attend(q, bias=np.ones((1, 1), np.float32)), ring.attend(q)), "a column for all keys, in a ring of one key")
    pages, values, table = random(5, 2, 1, 8), random(5, 2, 1, 8), [[4, 1, 0], [2, 3, 1]]
    scales, queries = rng.random((5, 2, 1, 1), np.float32), random(2, 2, 1, 8)
    whole = [np.concatenate([some[page] for page in table[1]], axis=1)[None] for some in (pages, values, scales)]
    o = rapt.attention(queries, pages, values, page_table=table, kv_lengths=[3, 3], k_scales=scales)
    ok(same(o[1:], rapt.attention(queries[1:], whole[0], whole[1], k_scales=whole[2])),
       "pages of one token have a scale for each: the bits of keys in one piece")
    wq = random(8, 8)
    fine = rapt.KVCache(kv_heads=1, capacity=4, d_k=8, type="f32", page_size=2)
    other = np.ones((1, 1, 2, 4), bool)
    for what, call in (("mha", lambda: rapt.mha(random(1, 3, 8), wq, wq, wq, heads=1, cache=fine, mask=other)),
                       ("append", lambda: fine.append(random(1, 1, 3, 8), random(1, 1, 3, 8), threads=0)),
                       ("append", lambda: fine.append(random(1, 1, 3, 8), random(1, 1, 3, 8), rope=rapt.Rope(16)))):
        with contextlib.suppress(ValueError):
            call()
        ok(fine.free_pages == 2 and fine.lengths.tolist() == [0], f"{what}, refused, takes no page", fine.free_pages)


# ---- Defaults ----------------------------------------------------------------------------------------------------------------

# Parameters whose defaults differ between functions, and why; docs/python.md says it, too.
DIFFERENT = {
    "causal": {None: {"attention", "plan", "weights", "ops.attention", "ops.attention_lse"},  # tokens may be of any model
               "bottom-right": {"attend"},  # the last query is the cache's last token
               "auto": {"mha"}},  # "bottom-right" with a cache, else None
    "type": {"f16": {"KVCache"}, "int8": {"quantise_weights"}},  # of caches and of weights
}


def signatures():
    """{function: {parameter: default}} of the families that have parameters in common."""
    functions = [getattr(rapt, name) for name in rapt.__all__ if name not in ("Error", "Plan", "Weights", "isa", "info")]
    functions += [rapt.KVCache.attend, rapt.KVCache.append, rapt.viz.weights]
    found = {}
    for function in functions:
        parameters = inspect.signature(function).parameters.items()
        found[function.__name__] = {name: p.default for name, p in parameters if p.default is not p.empty}
    if torch:
        importlib.import_module("rapt.torch")
        for name in ("attention", "attention_lse"):
            schema = getattr(torch.ops.rapt, name).default._schema
            found[f"ops.{name}"] = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    return found


def test_defaults():
    by_name = {}
    for function, parameters in signatures().items():
        for name, default in parameters.items():
            by_name.setdefault(name, {}).setdefault(default, set()).add(function)
    shared = {name: defaults for name, defaults in by_name.items() if sum(map(len, defaults.values())) > 1}
    wrong = {name: defaults for name, defaults in shared.items() if len(defaults) > 1 and name not in DIFFERENT}
    for name, defaults in DIFFERENT.items():
        have = shared[name]
        if set(have) != set(defaults) or any(not have[default] <= functions for default, functions in defaults.items()):
            wrong[name] = have
    ok(len(shared) > 20 and not wrong, f"{len(shared)} parameters have the same default wherever they are, or are known not to",
       wrong)
    if not torch:
        skip("the defaults of torch.ops.rapt", "PyTorch is not installed")


# ---- Copies ------------------------------------------------------------------------------------------------------------------


def ramp(shape, dtype=np.float32):
    """The same numbers in every process."""
    n = math.prod(shape)
    return (np.cos(np.arange(n, dtype=np.float64) * 1.7).reshape(shape) / 2).astype(dtype)


def used(x):
    """The bytes of what an object of the package does: the same for a copy, in whichever process."""
    if isinstance(x, rapt.Weights | rapt.PrepackedWeights):
        return rapt.linear(ramp((70, x.shape[1])), x).tobytes()
    if isinstance(x, rapt.Rope):
        return rapt.rope(ramp((2, 3, 5, 32)), x, starts=[3, 0]).tobytes()
    if isinstance(x, rapt.KVCache):
        return x.attend(ramp((x.batch, 2 * x.kv_heads, 1, x.d_k))).tobytes() + x.lengths.tobytes() + x.page_table.tobytes()
    if isinstance(x, rapt.viz.Heatmap):
        return b"".join(np.ma.filled(image.get_array(), -1.0).tobytes() for axis in x.axes for image in axis.images)
    if isinstance(x, rapt.Plan):
        arrays = {name: ramp(shape) for name, _, shape, _ in x._key[2:]}
        q, k, v = (arrays.pop(name) for name in "qkv")
        if "kv_lengths" in arrays:
            arrays["kv_lengths"] = np.arange(len(arrays["kv_lengths"])) + 3
        o = x(q, k, v, **arrays)
        return b"".join(part.tobytes() for part in (o if isinstance(o, tuple) else [o]))
    return str(x).encode()


def subjects():
    """(what, object) of each class of the package."""
    w, keys = ramp((48, 64)), ramp((3, 2, 20, 64))
    for kind in ("int8", "q8_0", "q4_0", "q4_1"):
        yield f"weights of {kind}", rapt.quantise_weights(w, kind)
    yield "prepacked weights", rapt.prepack_weights(w)
    yield "prepacked quantised weights", rapt.prepack_weights(rapt.quantise_weights(w, "int8"))
    angles = np.arange(20)[:, None] * 10000.0 ** (-np.arange(0, 16, 2) / 16)
    tables = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    for what, options in (("", {}), (" of pairs", {"interleaved": True, "amplitude": 1.5, "offset": 2}),
                          (" of frequencies", {"frequencies": np.arange(8) / 7}), (" of tables", {"tables": tables}),
                          (" of tables in a larger array", {"tables": tuple(np.repeat(some, 2, 0)[::2] for some in tables)})):
        yield f"a rope{what}", rapt.Rope(16, **options)
    for what, options in (("", {}), (" in pages", {"page_size": 4, "pages": 20}), (", a ring", {"ring": True, "capacity": 7}),
                          (" of int8", {"type": "int8"}), (" of q4_0", {"type": "q4_0"}),
                          (", V in K", {"v_in_k": True, "d_v": 32}),
                          (" with scales", {"type": "int8", "k_scales": np.full((2, 64), 0.01), "v_scales": np.full(2, 0.01)})):
        cache = rapt.KVCache(**{"batch": 3, "kv_heads": 2, "capacity": 25, "d_k": 64, "type": "f32"} | options)
        cache.append(keys, None if cache.v_in_k else keys, lengths=[20, 3, 9])
        if cache.page_size:
            cache.copy_pages(0, 2, 5)
        yield f"a cache{what}", cache
    x = ramp((2, 4, 6, 32))
    yield "a plan", rapt.plan(x, x, x, causal="bottom-right", threads=2)
    yield "a plan of much", rapt.plan(x, x, x, bias=ramp((4, 6, 6)), alibi=True, sinks=[0.5] * 4, kv_lengths=[3, 6], softcap=3.0,
                                      window=(4, None), return_lse=True, isa="scalar", tuning="scalar pass_tiles=4")
    yield "a ragged plan", rapt.plan(x[0], x[0], x[0], q_starts=[1, 3, 5], k_starts=[0, 3, 6], return_lse=True)
    yield "a plan into bshd", rapt.plan(*[x.swapaxes(1, 2).copy()] * 3, layout="bshd", arith="bf16")
    yield "the name of a kernel", rapt.isa()
    yield "an error", rapt.Error("a line")
    if matplotlib:
        yield "a picture", rapt.viz.heatmap(x, x)


def copies_of(x):
    for what, copied in (("copy", copy.copy), ("deepcopy", copy.deepcopy), ("pickle", lambda x: pickle.loads(pickle.dumps(x))),
                         ("pickle, protocol 2", lambda x: pickle.loads(pickle.dumps(x, 2))),
                         ("a copy of a copy", lambda x: copy.copy(pickle.loads(pickle.dumps(copy.deepcopy(x)))))):
        try:
            yield what, copied(x)
        except Exception as error:
            yield what, error


def public_classes():
    modules = [rapt, rapt.viz, rapt._isa, *([importlib.import_module("rapt.torch")] if torch else [])]
    return {value for module in modules for name, value in vars(module).items()
            if isinstance(value, type) and not name.startswith("_") and value.__module__.startswith("rapt")
            and (name in getattr(module, "__all__", []) or value.__module__ == module.__name__)
            and (matplotlib or value is not rapt.viz.Heatmap)}


def test_copies():
    some, classes = list(subjects()), set()
    for what, x in some:
        classes.add(type(x))
        need, wrong = used(x), []
        kept = []  # so that no two lie at the same place: of memory that may be aligned by chance, some is not
        for _ in range(4):
            for how, copied in copies_of(x):
                kept.append(copied)
                try:
                    if type(copied) is not type(x) or used(copied) != need or repr(copied) != repr(x):
                        wrong.append(f"{how}: {copied!r} is not {x!r}, or does something else")
                except Exception as error:
                    wrong.append(f"{how}: {type(error).__name__}: {error}")
        ok(not wrong and used(x) == need, f"copies of {what} do what it does", "\n".join(wrong))
    ok(public_classes() <= classes, "... and so do those of every class that the package has", public_classes() - classes)
    functions = [getattr(rapt, name) for name in rapt.__all__ if not isinstance(getattr(rapt, name), type)]
    ok(all(pickle.loads(pickle.dumps(function)) is function for function in functions), "functions are pickled by their names")
    with multiprocessing.get_context("spawn").Pool(1) as workers:
        results = workers.map_async(used, [x for _, x in some]).get(120)
    wrong = [what for (what, x), result in zip(some, results) if result != used(x)]
    ok(not wrong, f"multiprocessing by spawn takes all {len(some)} of them: the same bits", wrong)

    new = ramp((3, 2, 1, 64)) + 1
    for what, x in [(what, x) for what, x in some if isinstance(x, rapt.KVCache)]:
        wrong = []
        for how, copied in list(copies_of(x)):
            for one, other in ((copied, x), (x, copied)):
                before, kept = used(one), used(other)
                one.append(new, None if x.v_in_k else new)
                one.free(1)
                wrong += [how] * (used(other) != kept or used(one) == before)
        ok(not wrong, f"{what} and its copies are independent of each other", wrong)
    lost = rapt.KVCache(kv_heads=2, capacity=2000, d_k=64, type="f32")
    lost.append(ramp((1, 2, 1000, 64)), ramp((1, 2, 1000, 64)))
    need, left = used(lost), copy.deepcopy(lost)
    del lost
    gc.collect()
    fill = [np.full((2, 2000, 64), 7, np.float32) for _ in range(4)]
    ok(used(left) == need and len(fill) == 4, "a cache's copy outlives it")
    plan = rapt.plan(*[ramp((1, 2, 3, 8))] * 3)
    with rapt.isa("scalar"):
        ok(pickle.loads(pickle.dumps(plan)).info["isa"] == "scalar", "a plan is planned anew where it is unpickled")
    with rapt.isa("scalar") as forced:
        with copy.copy(forced):
            pass
        ok(rapt.isa() == "scalar", "the copy of a forced kernel's name is a name, and takes nothing back")
    refused("to pickle an address", TypeError, ["an address cannot be copied or pickled"], lambda: pickle.dumps(
        rapt._tensor.tensor(ramp((2, 2)), "x")))


# ---- Numbers and lines -------------------------------------------------------------------------------------------------------


def numbers():
    """(argument, whole, call): each argument that is a number, with a call of what it is 1 for, or 2 where it must be more."""
    q, x, w = random(1, 2, 3, 16), random(1, 4, 16), random(16, 16)
    cache = rapt.KVCache(kv_heads=2, capacity=8, d_k=16, type="f32")
    cache.append(q, q)
    make, of = functools.partial(rapt.KVCache, kv_heads=1, capacity=4, d_k=32, batch=2, page_size=2, pages=4), functools.partial
    heads = of(rapt.mha, x, w, w, w)
    for name in ("scale", "softcap"):
        for what, call in (("attention", of(rapt.attention, q, q, q)), ("plan", of(rapt.plan, q, q, q)), ("attend", cache.attend),
                           ("viz.weights", of(rapt.viz.weights, q, q)), ("mha", of(heads, heads=1))):
            yield f"{what}'s {name}", name, False, lambda n: call(*[q] * (what == "attend"), **{name: n})
    yield "layer_norm's epsilon", "epsilon", False, lambda n: rapt.layer_norm(x, epsilon=n)
    yield "Rope's base", "base", False, lambda n: rapt.Rope(4, base=n)
    yield "Rope's amplitude", "amplitude", False, lambda n: rapt.Rope(4, amplitude=n)
    yield "attention's window", "window", True, lambda n: rapt.attention(q, q, q, window=n)
    yield "a side of attention's window", "window", True, lambda n: rapt.attention(q, q, q, window=(None, n))
    yield "attention's threads", "threads", True, lambda n: rapt.attention(q, q, q, threads=n)
    yield "linear's threads", "threads", True, lambda n: rapt.linear(x, w, threads=n)
    yield "mha's heads", "heads", True, lambda n: heads(heads=n)
    yield "mha's kv_heads", "kv_heads", True, lambda n: heads(heads=2, kv_heads=n)
    yield "Rope's channels", "channels", True, rapt.Rope
    yield "Rope's offset", "offset", True, lambda n: rapt.Rope(4, offset=n)
    for name in ("batch", "kv_heads", "capacity", "d_k", "d_v", "page_size", "pages"):
        yield f"KVCache's {name}", name, True, lambda n: make(**{name: n})
    some = make(batch=3)
    yield "free's entry", "entry", True, some.free
    yield "truncate's entry", "entry", True, lambda n: some.truncate(n, 0)
    yield "copy_pages's from_entry", "from_entry", True, lambda n: some.copy_pages(n, 0)
    yield "copy_pages's to_entry", "to_entry", True, lambda n: some.copy_pages(0, n)
    full = make(batch=3)
    keys = random(2, 1, 4, 32)
    full.append(keys, keys, entries=[0, 1])

    def truncated(n, of=lambda n: full.truncate(0, n)):
        of(n)
        for entry in 2, 0:  # each needs the page that was given back
            full.append(keys[:1, :, :2], keys[:1, :, :2], entries=[entry])
            full.free(2)

    yield "truncate's length", "length", True, truncated
    yield "copy_pages's tokens", "tokens", True, lambda n: truncated(n, lambda n: full.copy_pages(1, 0, n))


def test_numbers():
    none = [True, np.True_, np.array(True), "2", b"2", bytearray(b"2"), np.str_("2"), np.array("2"), 2j, np.complex64(2),
            np.array(2 + 1j), np.array([2.0]), [2], math.nan, np.datetime64(2, "s")]
    not_whole = [2.0, np.float32(2), np.array(2.0), decimal.Decimal(2), fractions.Fraction(2), 1 << 64, -1 << 70, np.array([2])]
    wholes = [2, np.int8(2), np.uint64(2), np.array(2)]
    reals = [2.0, np.float16(2), np.array(2.0), decimal.Decimal(2), fractions.Fraction(2)]
    if torch:
        none += [torch.tensor(True), torch.tensor([2.0]), torch.tensor(2j)]
        not_whole += [torch.tensor(2.0), torch.tensor([2])]
        wholes, reals = [*wholes, torch.tensor(2)], [*reals, torch.tensor(2.0), torch.tensor(2, dtype=torch.bfloat16)]
    if ml_dtypes:
        reals.append(ml_dtypes.bfloat16(2))
    for what, name, whole, call in numbers():
        wrong = []
        for x in [*none, *(not_whole if whole else [10**400, 10**5000])]:
            try:
                call(x)
                wrong.append(f"{x!r} is accepted")
            except (TypeError, ValueError) as error:
                if not str(error).startswith((f"{name} is ", f"{name} has 1 sides")) or "\n" in str(error):
                    wrong.append(f"{type(error).__name__}: {error}")
            except Exception as error:
                wrong.append(f"{type(error).__name__}: {error}")
        for x in wholes if whole else [*wholes, *reals]:
            try:
                call(x)
            except Exception as error:
                wrong.append(f"{type(x).__name__}: {error}")
        ok(not wrong, f"{what} is a {'whole ' * whole}number of any library's, and nothing else", "\n".join(wrong))
    q = random(1, 2, 3, 16)
    need = rapt.attention(q, q, q, scale=2.0)
    ok(all(same(rapt.attention(q, q, q, scale=x), need) for x in wholes + reals), "... and as a scale they are one number")


def calls():
    """(function's name, function, the arguments of a call that it does)."""
    def isa(name):
        return rapt.isa(name)

    q, x, w, b = random(1, 2, 3, 16), random(1, 4, 16), random(16, 16), random(16)
    cache = rapt.KVCache(kv_heads=2, capacity=80, d_k=16, type="f32")
    cache.append(q, q)
    yield "attention", rapt.attention, {"q": q, "k": q, "v": q}
    yield "plan", rapt.plan, {"q": q, "k": q, "v": q}
    yield "Plan", rapt.plan(q, q, q), {"q": q, "k": q, "v": q}
    yield "merge", rapt.merge, {"outs": [q], "lses": [q[..., 0]]}
    yield "verify", rapt.verify, {"o": rapt.attention(q, q, q), "q": q, "k": q, "v": q}
    yield "attend", cache.attend, {"q": q}
    yield "append", cache.append, {"k": q, "v": q}
    yield "reorder", cache.reorder, {"entries": [0]}
    yield "copy_pages", cache.copy_pages, {"from_entry": 0, "to_entry": 0}
    yield "truncate", cache.truncate, {"entry": 0, "length": 3}
    yield "KVCache", rapt.KVCache, {"kv_heads": 2, "capacity": 8, "d_k": 16}
    yield "Rope", rapt.Rope, {"channels": 16}
    yield "rope", rapt.rope, {"x": q, "rope": rapt.Rope(16)}
    yield "linear", rapt.linear, {"x": x, "weight": w, "gate": w}
    yield "layer_norm", rapt.layer_norm, {"x": x}
    yield "rms_norm", rapt.rms_norm, {"x": x}
    yield "quantise_weights", rapt.quantise_weights, {"weight": w}
    yield "prepack_weights", rapt.prepack_weights, {"weight": w}
    yield "mha", rapt.mha, {"x": x, "wq": w, "wk": w, "wv": w, "wo": w, "heads": 1, "y": x, "bq": b}
    yield "viz.weights", rapt.viz.weights, {"q": q, "k": q}
    if matplotlib:
        yield "viz.heatmap", rapt.viz.heatmap, {"q": q, "k": q}
    yield "isa", isa, {"name": "scalar"}


def test_lines():
    """Whatever an argument is not is refused by one line that names it."""
    class Silly:
        def __repr__(self):
            return "silly\n" * 1000

    class Nameless:
        def __repr__(self):
            raise RuntimeError("there is\nno repr")

    silly = [Silly(), Nameless(), {"a": 1}, 3j, np.ones((2,) * 6, complex), np.full((9, 9), Silly(), object), ["x", [Silly()]],
             "silly\n" * 100, "\0", slice(3)] + ([torch.ones(9, 9, dtype=torch.complex64)] if torch else [])
    # Where what is wrong shows in something else: token_starts say how many dimensions k has.
    other_words = {"outs": "results", "lses": "results", "token_starts": "k", "tables": "cosines", "name": "isa"}
    for what, function, arguments in calls():
        wrong, count = [], 0
        kept = rapt.isa()
        for name in inspect.signature(function).parameters:
            for x in silly:
                count += 1
                try:
                    function(**arguments | {name: x})
                    wrong.append(f"{name}={type(x).__name__} is accepted")
                except (TypeError, ValueError) as error:
                    line = str(error)
                    if "\n" in line or len(line) > 400 or not re.search(rf"\b({name}|{other_words.get(name, name)})\b", line):
                        wrong.append(f"{name}={type(x).__name__}: {type(error).__name__}: {line}")
                except Exception as error:
                    wrong.append(f"{name}={type(x).__name__}: {type(error).__name__}: {error}")
        ok(not wrong and count, f"{what}: {count} arguments of the wrong kind are refused by a line with their name",
           "\n".join(wrong))
        ok(rapt.isa() == kept, "... and no kernel was forced") if what == "isa" else None
    refused("rapt.llama_cpp.enable(library=3)", TypeError, ["library is 3", "a file's name"], lambda: rapt.llama_cpp.enable(3))
    refused("rapt.llama_cpp.enable(library='none')", FileNotFoundError, ["library is 'none'"], lambda: rapt.llama_cpp.enable("none"))


def test_mismatches():
    q, k = random(2, 8, 5, 16), random(2, 2, 9, 16)

    def turned(x):
        return x.swapaxes(1, 2).copy()

    refused("k and v of other heads", ValueError, ["k has 2 heads and v 1", "k (2, 2, 9, 16)", "v (2, 1, 9, 16)"],
            lambda: rapt.attention(q, k, k[:, :1]))
    refused("k and v of other tokens", ValueError, ["k has 9 tokens and v 8", "v (2, 2, 8, 16)"],
            lambda: rapt.attention(q, k, k[:, :, 1:]))
    refused("k of other channels", ValueError, ["k has 8 channels and q 16", "k (2, 2, 9, 8)"],
            lambda: rapt.attention(q, k[..., :8], k))
    refused("k of another batch", ValueError, ["k has 1 batch entries and q 2", "k (1, 2, 9, 16)"],
            lambda: rapt.attention(q, k[:1], k[:1]))
    refused("heads that are no multiple", rapt.Error, ["q has 7 heads", "the 2 of k", "q (2, 7, 5, 16)"],
            lambda: rapt.attention(q[:, 1:], k, k))
    hint = 'with layout="bshd" they do'
    refused("tokens before heads", rapt.Error, ["q has 5 heads", "the 9 of k", hint],
            lambda: rapt.attention(*map(turned, (q, k, k))))
    refused("heads before tokens", rapt.Error, ['with layout="bhsd" they do'], lambda: rapt.attention(q, k, k, layout="bshd"))
    refused("tokens before heads, without a batch", rapt.Error, [hint],
            lambda: rapt.attention(*(turned(x)[0] for x in (q, k, k))))
    refused("tokens before heads, a mask", ValueError, ["mask has shape (5, 5)", "(2, 5, 8, 8)", 'with layout="bshd" it does'],
            lambda: rapt.attention(*[turned(q)] * 3, mask=np.ones((5, 5), bool)))
    cache = rapt.KVCache(batch=2, kv_heads=2, capacity=20, d_k=16)
    refused("tokens before heads, append", ValueError, ["k has shape (2, 9, 2, 16)", "2 heads", hint],
            lambda: cache.append(turned(k), turned(k)))
    cache.append(k, k)
    refused("tokens before heads, attend", rapt.Error, ["q has 5 heads", hint], lambda: cache.attend(turned(q)))
    try:
        rapt.attention(q[:, 1:], k, k)
    except rapt.Error as error:
        ok("layout" not in str(error), "no layout is named where none fits", error)
    made = rapt.plan(q, k, k, kv_lengths=[9, 9])
    for what, words, call in (
            ("of another shape", ["k has shape (2, 2, 8, 16)", "(2, 2, 9, 16)"],
             lambda: made(q, k[:, :, 1:], k[:, :, 1:], kv_lengths=[8, 8])),
            ("of another type", ["q has type float16", "float32"], lambda: made(q.astype(np.float16), k, k, kv_lengths=[9, 9])),
            ("of other strides", ["v has strides", "plan"], lambda: made(q, k, turned(k).swapaxes(1, 2), kv_lengths=[9, 9])),
            ("that it has not", ["sinks is given, and the plan has none"],
             lambda: made(q, k, k, kv_lengths=[9, 9], sinks=[0] * 8)),
            ("that it lacks", ["kv_lengths is not given, which the plan has"], lambda: made(q, k, k)),
            ("out of another type", ["out has type float16"],
             lambda: made(q, k, k, kv_lengths=[9, 9], out=np.empty(q.shape, np.float16)))):
        refused(f"a plan with an array {what}", ValueError, ["differ", *words], call)
    for name, dtype, write in (("q", np.float64, "q.astype(np.float32)"), ("k", np.float64, "k.astype(np.float32)"),
                               ("v", np.int64, "v.astype(np.float32)"), ("q", np.complex64, "q.real.astype(np.float32)"),
                               ("bias", np.float64, "bias.astype(np.float32)"),
                               ("bias", np.complex128, "bias.real.astype(np.float32)"),
                               ("mask", np.uint8, "mask.astype(bool)"), ("k_scales", np.float64, "k_scales.astype(np.float32)")):
        arrays = {"q": q, "k": k, "v": k, "bias": q[0, 0, :, :9], "mask": np.ones((5, 9)), "k_scales": k[..., :1]}
        arrays = {n: x for n, x in arrays.items() if n in ("q", "k", "v", name)}
        arrays[name] = arrays[name].astype(dtype)
        line = [f"{name} is {np.dtype(dtype)}", f"(write {write})"]
        refused(f"{name} of {np.dtype(dtype)}, with what to write", TypeError, line, lambda: rapt.attention(**arrays))
        arrays[name] = eval(write, {"np": np, name: arrays[name]})
        ok(rapt.attention(**arrays).shape == q.shape, "... which works")
        if torch:
            arrays[name] = torch.from_numpy(arrays[name]).to(getattr(torch, np.dtype(dtype).name))
            try:
                rapt.attention(**arrays)
                line = "it is accepted"
            except TypeError as error:
                line = str(error)
            found = re.search(rf"\(write ({name}\..*)\)$", line)
            arrays[name] = eval(found[1], {name: arrays[name]}) if found else None
            ok(found and rapt.attention(**arrays).shape == q.shape, f"... and of PyTorch's {dtype.__name__}", line)
    refused("an out of float64 has no such line", TypeError, ["out is float64: float32, float16 or bfloat16 is needed"],
            lambda: rapt.attention(q, k, k, out=np.empty(q.shape)))
    for what, call in (("attention", rapt.attention), ("plan", rapt.plan)):
        refused(f"a kernel that there is not, {what}", rapt.Error, ["isa is 'sse9'", *rapt.info()["isas"]],
                lambda: call(q, k, k, isa="sse9"))
    x, w = random(3, 16), random(16, 16)
    for what, call in (("linear", functools.partial(rapt.linear, x, w)), ("rms_norm", functools.partial(rapt.rms_norm, x)),
                       ("mha", functools.partial(rapt.mha, x, w, w, w, heads=1)),
                       ("prepack", functools.partial(rapt.prepack_weights, w)),
                       ("attend", functools.partial(cache.attend, q)), ("viz", functools.partial(rapt.viz.weights, q, k))):
        refused(f"a kernel that there is not, {what}", rapt.Error, ["isa is 'sse9'", *rapt.info()["isas"]],
                lambda: call(isa="sse9"))
    refused("no heads, and their slopes", rapt.Error, ["heads = 0"], lambda: rapt.attention(q[:, :0], k, k, alibi=True))
    for base in (0.5, -1, math.inf):
        refused(f"a base of {base}", ValueError, [f"base is {float(base)}"], lambda: rapt.Rope(8, base=base))
    refused("a rope of too many channels", ValueError, ["channels is 2000", "1024"], lambda: rapt.Rope(2000))
    forced = rapt._native.library().c
    own, forced.rapt_isa_force = forced.rapt_isa_force, lambda name: rapt._native.library().check(-14, forced.rapt_isa_force, ())
    forced.rapt_isa_force.__name__ = "rapt_isa_force"
    try:
        refused("to force a kernel that this CPU lacks", rapt.Error, ["isa is 'scalar'", "cannot run that kernel"],
                lambda: rapt.isa("scalar"))
    finally:
        forced.rapt_isa_force = own
    refused("a kernel with more after its name", rapt.Error, ["isa is 'scalar\\x00x'"],
            lambda: rapt.attention(q, k, k, isa="scalar\0x"))
    refused("a type with more after its name", ValueError, ["type is 'f16\\x00x'", "q8_0"],
            lambda: rapt.KVCache(kv_heads=1, capacity=1, d_k=8, type="f16\0x"))
    refused("more tokens than 32 bits count", ValueError, ["capacity is 2147483648"],
            lambda: rapt.KVCache(kv_heads=1, capacity=1 << 31, d_k=8))
    refused("a tuning with more after it", TypeError, ["tuning is 'any\\x00x'"],
            lambda: rapt.attention(q, k, k, tuning="any\0x"))
    heads = [random(1, 16, 2, 8)] * 3
    for name, call in (("bias", lambda b: rapt.linear(x, w, b)), ("gate_bias", lambda b: rapt.linear(x, w, gate=w, gate_bias=b)),
                       ("weight", lambda b: rapt.rms_norm(x, b)), ("bq", lambda b: rapt.mha(x, w, w, w, heads=1, bq=b)),
                       ("frequencies", lambda b: rapt.Rope(32, frequencies=b)),
                       ("alibi", lambda b: rapt.attention(*heads, alibi=b)),
                       ("sinks", lambda b: rapt.attention(*heads, sinks=b)),
                       ("k_scales", lambda b: rapt.KVCache(kv_heads=16, capacity=1, d_k=8, type="int8", k_scales=b))):
        for what, b in (("complex", np.ones(16) * 1j), ("text", ["1"] * 16), ("truths", [True] * 16), ("nothing", [None] * 16)):
            refused(f"{name} of {what}", TypeError, [f"{name} is "], lambda: call(b))
        good = [[1] * 16, np.ones(16), np.ones(16, np.float16)] + ([torch.ones(16, dtype=torch.bfloat16)] if torch else [])
        for b in good:
            call(b)
        ok(True, f"... and {name} may be a list, or an array of any real numbers")
    refused("a table of positions that is complex", TypeError, ["position_table is complex128"],
            lambda: rapt.mha(x, w, w, w, heads=1, position_table=np.ones((9, 16)) * 1j))


# ---- Kernels -----------------------------------------------------------------------------------------------------------------


def command(*arguments, **environment):
    """python -m rapt: its exit status and what it said."""
    done = subprocess.run([sys.executable, "-m", "rapt", *arguments], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, env=os.environ | environment)
    return done.returncode, done.stdout


def test_kernels():
    facts = rapt.info()
    usable = [name for name, kernel in facts["isas"].items() if kernel["usable"]]
    ok("scalar" in usable and facts["isa"] in usable and facts["version"] and facts["threads"] >= 1, "info", facts)
    q, k, v = random(2, 4, 40, 48), random(2, 2, 600, 48), random(2, 2, 600, 48)
    bits = {}
    for name in usable:
        with rapt.isa(name) as chosen:
            forced = rapt.attention(q, k, v, causal="bottom-right")
            good = chosen == name == rapt.isa() == rapt.plan(q, k, v).info["isa"]
        ok(good and rapt.isa() == facts["isa"], f"isa({name!r}) in a with statement, and after it", (chosen, rapt.isa()))
        ok(same(forced, rapt.attention(q, k, v, causal="bottom-right", isa=name)), "... gives the bits of isa=")
        bits.setdefault(facts["isas"][name]["rounding"], set()).add(forced.tobytes())
    ok(all(len(some) == 1 for some in bits.values()), f"kernels of a rounding class have the same bits: {', '.join(usable)}")
    rapt.isa("scalar")
    with rapt.isa(usable[0]):
        pass
    ok(rapt.isa() == "scalar", "a with statement goes back to what was forced before")
    ok(rapt.isa(None) == facts["isa"] and rapt.isa() == facts["isa"], "isa(None) goes back to the best")
    refused("a kernel that there is not", rapt.Error, ["isa is 'sse9'", "scalar"], lambda: rapt.isa("sse9"))
    ok(rapt.isa() == facts["isa"], "... and the kernel is what it was")
    code, text = command("info")
    ok(code == 0 and all(name in text for name in usable) and facts["version"] in text, "python -m rapt info", text)
    code, text = command("check")
    ok(code == 0 and text.count(": ok") == 2 * len(usable) and "all is well" in text, "python -m rapt check", text)
    code, text = command("info", RAPT_ISA="scalar")
    ok(code == 0 and "scalar: unfused, usable, and chosen" in text, "RAPT_ISA=scalar", text)
    code, text = command("info", RAPT_ISA="sse9")
    ok(code == 1 and text.count("\n") == 1 and "RAPT_ISA is 'sse9'" in text and all(name in text for name in facts["isas"]),
       "RAPT_ISA=sse9 is refused in a line that has those that there are", text)
    code, text = command("test")
    ok(code == 2 and text.count("\n") == 1, "another word is refused in a line", text)
    code, text = command("info", RAPT_LIBRARY="/nowhere/librapt_python.so")
    ok(code == 1 and text.count("\n") == 1 and "/nowhere" in text, "a library that is not there is refused in a line", text)


MASKED, NAN = (211, 211, 211), (255, 0, 0)  # colours of heatmap()


def painted(figure):
    """The pixels of a picture, RGB."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]


def colours(figure, ax):
    """The pixel in the middle of each cell of a map: (queries, keys, RGB)."""
    pixels = painted(figure)[::-1]
    queries, keys = ax.images[0].get_array().shape
    at = ax.transData.transform([(key, query) for query in range(queries) for key in range(keys)]).astype(int)
    return pixels[at[:, 1], at[:, 0]].reshape(queries, keys, 3).astype(int)


def texts(labels):
    return [label.get_text() for label in labels]


def legend_of(figure):
    return [text for legend in figure.legends for text in texts(legend.get_texts())]


def crowded(figure, axes):
    """Texts of a picture that overlap or are cut off."""
    painted(figure)
    boxes = []
    for ax in figure.axes:
        ticks = [tick.label1 for axis in (ax.xaxis, ax.yaxis) for tick in axis.get_major_ticks() if ax in axes]
        boxes += [(text.get_text(), text.get_window_extent()) for text in [*ticks, ax.title, ax.xaxis.label, ax.yaxis.label]
                  if text.get_text() and text.get_visible()]
    width, height = figure.bbox.size
    cut = [text for text, box in boxes if box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height]
    return cut + [(a, b) for (a, box), (b, other) in itertools.combinations(boxes, 2) if box.overlaps(other)]


def test_viz():
    q, k = random(1, 5, 6, 16), random(1, 5, 6, 16)
    need = softmax(np.where(np.tri(6, dtype=bool), q.astype(np.float64) @ k.swapaxes(2, 3).astype(np.float64) / 4, -np.inf))[0]
    near("viz.weights", rapt.viz.weights(q, k, causal="bottom-right"), need)
    near("viz.weights of three dimensions", rapt.viz.weights(q[0], k[0], causal="bottom-right"), need[0])
    turned = [x[0].swapaxes(0, 1) for x in (q, k)]
    near("... in layout bshd", rapt.viz.weights(*turned, layout="bshd", causal="bottom-right"), need[0])
    two = np.concatenate([q, q]), np.concatenate([k, k])
    known = rapt.viz.weights(*two, kv_lengths=[6, 4])
    ok(same(known, rapt.viz.weights(*two, mask=np.arange(6) < np.reshape([6, 4], (2, 1, 1, 1)))) and not known[1, ..., 4:].any(),
       "... with kv_lengths: those of a mask")
    refused("q of three dimensions and k of four", ValueError, ["k has 4 dimensions, and q has 3"],
            lambda: rapt.viz.weights(q[0], k))
    if not matplotlib:
        skip("viz.heatmap", "matplotlib is not installed")
        return
    viz_heatmap(q, k, need)
    viz_colours()
    viz_grids()
    viz_notebook()


def viz_heatmap(q, k, need):
    figure, axes = rapt.viz.heatmap(q, k, causal="bottom-right", tokens=list("abcdef"), heads=[4, 1])
    near("viz.heatmap shows them", axes[1].images[0].get_array(), need[0, 1])
    ok(texts(axes[0].get_xticklabels()) == texts(axes[0].get_yticklabels()) == list("abcdef") and len(axes) == 2,
       "... with labels")
    bars = [ax for ax in figure.axes if ax not in axes]
    ok([ax.get_ylabel() for ax in bars] == ["weight"], "... one colour bar", bars)
    names = [(ax.get_title(), ax.get_xlabel(), ax.get_ylabel()) for ax in axes]
    ok(names == [("head 4", "keys", "queries"), ("head 1", "keys", "")], "... and names, once for all maps of a row", names)
    figure, axes = rapt.viz.heatmap(q[0], k[0, :, :3])
    ok([texts(axes[0].get_xticklabels()), texts(axes[0].get_yticklabels())] == [list("012"), list("012345")],
       "without tokens they are numbered; and three dimensions are drawn")
    _, axes = rapt.viz.heatmap(random(1, 4, 2, 16), random(1, 2, 2, 16))
    titles = [ax.get_title() for ax in axes]
    ok(titles == [f"head {head} (kv head {head // 2})" for head in range(4)], "kv heads of GQA", titles)
    figure, axes = rapt.viz.heatmap(q, k, tokens=["$x$", "$", "\n", "x" * 50, "ĠThe", ""], heads=[0])
    painted(figure)
    labels = texts(axes[0].get_yticklabels())
    ok(labels == ["$x$", "$", "\\n", "x" * 19 + "…", "ĠThe", ""], "tokens are labels as they are, each on a line", labels)
    for what, kind, words, changed in (
        ("labels of another number", ValueError, "tokens are 2, where 6", {"tokens": list("ab")}),
        ("labels of keys of another number", ValueError, "key_tokens are 2, where 6", {"key_tokens": list("ab")}),
        ("labels that are a number", TypeError, "tokens is 6", {"tokens": 6}),
        ("a head that there is not", ValueError, "heads are [5]", {"heads": [5]}),
        ("no head", ValueError, "heads are []", {"heads": []}),
        ("heads that are a number", TypeError, "heads is 3", {"heads": 3}),
        ("half a head", TypeError, "heads is [0.5]", {"heads": [0.5]}),
        ("a batch that there is not", ValueError, "batch is 1, where 0..0", {"batch": 1}),
        ("a batch that is a text", TypeError, "batch is 'x'", {"batch": "x"}),
        ("no column", ValueError, "columns is 0", {"columns": 0}),
        ("half a column", TypeError, "columns is 2.5", {"columns": 2.5}),
        ("a norm that there is not", ValueError, "norm is 'ln': 'log' or 'linear' or 'row'", {"norm": "ln"}),
        ("no query", ValueError, "there is nothing to draw: the weights have shape (1, 5, 0, 6)", {"q": q[:, :, :0]}),
        ("an option that there is not", TypeError, "'return_lse'", {"return_lse": True})):
        refused(what, kind, [words], lambda: rapt.viz.heatmap(**{"q": q, "k": k} | changed))


def viz_colours():
    q = random(1, 2, 6, 16)
    bias = np.zeros((6, 6), np.float32)
    bias[:, 1] = -300  # weights of 0, which are not masked
    figure, axes = rapt.viz.heatmap(q, q, causal="bottom-right", bias=bias)
    drawn, weights, grey = colours(figure, axes[0]), axes[0].images[0].get_array(), ~np.tri(6, dtype=bool)
    ok(((drawn == MASKED).all(axis=2) == grey).all() and (weights.mask == grey).all() and not weights.data[2:, 1].any(),
       "masked keys are grey, and weights of 0 are not", drawn.tolist())
    ok(legend_of(figure) == ["masked"] and not legend_of(rapt.viz.heatmap(q, q)[0]),
       "... which a legend says where there are any")
    k = q.copy()
    q[0, 1, 3, 0] = np.nan
    figure, axes = rapt.viz.heatmap(q, k, causal="bottom-right")
    drawn = colours(figure, axes[1])
    ok((drawn[3, :4] == NAN).all() and (drawn[3, 4:] == MASKED).all() and not (drawn[[0, 1, 2, 4, 5]] == NAN).all(axis=2).any(),
       "weights that are NaN are red", drawn.tolist())
    ok(legend_of(figure) == ["masked", "not a number"], "... which the legend says", legend_of(figure))
    _, axes = rapt.viz.heatmap(k, k, mask=np.zeros((6, 6), bool))
    ok(axes[0].images[0].get_array().mask.all(), "all keys masked: nothing but grey")
    # Of 300 keys the first has much of the weight: only "log" shows how the others differ.
    q, k = np.zeros((1, 1, 2, 4), np.float32), np.zeros((1, 1, 300, 4), np.float32)
    q[..., 0], k[..., 0] = 1, np.linspace(0, 4, 300)
    k[..., 0, 0] = 12
    for norm in ("log", "linear", "row"):
        figure, axes = rapt.viz.heatmap(q, k, norm=norm)
        image = axes[0].images[0]
        shades = image.cmap(image.norm(image.get_array()))[0, [1, 299], :3] * 255
        apart = abs(shades[0] - shades[1]).sum()
        ok(apart > 60 if norm == "log" else apart < 15, f'norm="{norm}": colours of small weights are {apart:.0f} apart')
        limits = image.norm.vmin, image.norm.vmax
        ok(0 <= limits[0] <= 0.1 / 300 and limits[1] >= image.get_array().max(), "... from less than 1 / keys to the largest", limits)
    _, axes = rapt.viz.heatmap(random(1, 3, 4, 16), random(1, 3, 4, 16))
    ok(axes[0].images[0].norm is axes[1].images[0].norm is axes[2].images[0].norm, "one scale for all maps")
    _, axes = rapt.viz.heatmap(q, k[:, :, 1:], norm="row")
    near('norm="row": shares of the largest', axes[0].images[0].get_array().max(axis=1), np.ones(2))


def viz_grids():
    words = "the quick [MASK] brown fox jumps over a lazily sleeping dog".split()
    many = [f"{words[i % 11]}{i}" for i in range(300)]
    for what, heads, queries, keys, labels, shape, options in (
        ("1 head of 6 tokens", 1, 6, 6, {"tokens": many[:6]}, (1, 1), {}),
        ("12 heads of 65 tokens", 12, 65, 65, {"tokens": many[:65]}, (3, 4), {}),
        ("32 heads of 300 tokens", 32, 300, 300, {}, (4, 8), {"causal": "bottom-right"}),
        ("32 heads of 300 labels", 32, 300, 300, {"tokens": many}, (4, 8), {"causal": "bottom-right"}),
        ("5 heads in a grid of 6", 5, 20, 20, {}, (2, 3), {}),
        ("3 columns", 4, 20, 20, {}, (2, 3), {"columns": 3}),
        ("a query", 1, 1, 300, {}, (1, 1), {"kv_lengths": [270]}),
        ("a query of 8 heads", 8, 1, 300, {"tokens": ["?"], "key_tokens": many}, None, {}),
        ("a query and a key", 1, 1, 1, {}, (1, 1), {}),
        ("more queries than keys", 3, 300, 5, {}, None, {}),
        ("a few thousand keys", 2, 3, 3000, {}, None, {})):
        figure, axes = rapt.viz.heatmap(random(heads, queries, 16), random(heads, keys, 16), **labels, **options)
        bad = crowded(figure, axes)
        sides = [ax.get_window_extent().size / figure.dpi for ax in axes]
        wide, high = figure.get_size_inches()
        grid = axes[0].get_gridspec()
        ok(not bad and np.min(sides) > 0.3 and wide < 19 and high < 19 and shape in (None, (grid.nrows, grid.ncols)) and
           np.max(sides, axis=1).min() > 1.5, f"heatmap of {what}: nothing overlaps, on {wide:.1f} x {high:.1f} inches",
           (bad, sides, grid.nrows, grid.ncols))
        lowest = [i for i, ax in enumerate(axes) if ax.get_xlabel()]
        ok(lowest == list(range(max(0, len(axes) - grid.ncols), len(axes))) and
           [i for i, ax in enumerate(axes) if ax.get_ylabel()] == list(range(0, len(axes), grid.ncols)),
           "... with labels at the left, and under the lowest of each column", lowest)


def viz_notebook():
    """What a program and a notebook show, in processes of their own, where nobody has imported pyplot before."""
    start = "import sys; import numpy as np; import rapt.viz; q = np.ones((1, 2, 3, 4), np.float32)\n"

    def prints(code):
        done = subprocess.run([sys.executable, "-c", start + code], text=True, capture_output=True, timeout=120,
                              env=os.environ | {"MPLBACKEND": "agg"})
        return (done.stdout + done.stderr).strip()
    text = prints("r = rapt.viz.heatmap(q, q); print('matplotlib.pyplot' in sys.modules, r._repr_png_()[:4], r)")
    ok(text == "False b'\\x89PNG' <rapt.viz.Heatmap of 2 maps>", "a heatmap is a picture for notebooks, without pyplot", text)
    text = prints("import matplotlib.pyplot as plt; r = rapt.viz.heatmap(q, q)\n"
                  "print(plt.get_fignums(), plt.gcf() is r.figure, r._repr_png_()[:4])\n"
                  "plt.close(r.figure); print(plt.get_fignums())")
    ok(text == "[1] True b'\\x89PNG'\n[]", "with pyplot it is one of its figures, which plt.show() shows", text)
    text = prints("import matplotlib.pyplot as plt\ntry: rapt.viz.heatmap(q, q, tokens='ab')\n"
                  "except ValueError: print(plt.get_fignums())")
    ok(text == "[]", "... and none is left of a call that is refused", text)
    if not optional("IPython") or not optional("matplotlib_inline"):
        skip("heatmap in a notebook", "IPython is not installed")
        return
    cells = (("rapt.viz.heatmap(q, q)", 1), ("f, axes = rapt.viz.heatmap(q, q)", 1), ("f", 1), ("1", 0),
             ("import matplotlib.pyplot as plt; rapt.viz.heatmap(q, q)", 1), ("r = rapt.viz.heatmap(q, q); plt.show()", 1),
             ("r", 1), ("plt.ioff(); r = rapt.viz.heatmap(q, q)", 0), ("r", 1), ("plt.show()", 1),
             ("plt.ion(); assert not plt.get_fignums()", 0), ("plt.switch_backend('agg'); rapt.viz.heatmap(q, q)", 1))
    text = prints(f"""
import os; os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # as Jupyter has it
from IPython.core.displayhook import CapturingDisplayHook
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(user_ns=globals())
shell.display_formatter.active_types = shell.display_formatter.format_types
shell.display_pub = CapturingDisplayPublisher()
for cell, _ in {cells}:
    shell.display_pub.outputs, results = [], []
    shell.display_trap.hook = CapturingDisplayHook(shell, results)
    shell.run_cell(cell).raise_error()
    print(sum("image/png" in shown["data"] for shown in shell.display_pub.outputs + results), end=" ")
""")
    ok(text == " ".join(str(count) for _, count in cells), "a notebook's cell shows it once", (text, cells))


# ---- Threads, signals, forks -------------------------------------------------------------------------------------------------


def long_call(seconds=0.6):
    """Attention that takes about that long, by its number of tokens."""
    tokens = 1024
    while True:
        x = random(1, 4, tokens, 64)
        start = time.perf_counter()
        rapt.attention(x, x, x, threads=1)
        took = time.perf_counter() - start
        if took > seconds:
            return x
        tokens *= 2 if took < seconds / 3 else 1.5
        tokens = int(tokens)


def test_threads():
    x = random(3, 8, 200, 64)
    alone = rapt.attention(x, x, x, threads=1)
    for threads in (2, 3, 7):
        ok(same(rapt.attention(x, x, x, threads=threads), alone), f"{threads} threads: the same bits")
    if os.path.isdir("/proc/self/task"):
        before = len(os.listdir("/proc/self/task"))
        for threads in range(8, 20):
            rapt.attention(x, x, x, threads=threads)
        rapt.attention(x, x, x, threads=2)
        more = len(os.listdir("/proc/self/task")) - before
        ok(more <= 19, "a larger pool takes the place of smaller ones", more)
    results = []

    def work(i):
        for n in range(6):
            results.append(same(rapt.attention(x, x, x, threads=1 + (i + n) % 3), alone))
            w = rapt.linear(x[0, 0], x[0, 1], threads=2)
            results.append(same(w, linear))

    linear = rapt.linear(x[0, 0], x[0, 1], threads=1)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ok(len(results) == 72 and all(results), "6 Python threads at once: the same bits")

    big, ticks, done = long_call(), [], threading.Event()

    def count():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.002)

    other = threading.Thread(target=count)
    other.start()
    start = time.perf_counter()
    rapt.attention(big, big, big, threads=1)
    end = time.perf_counter()
    done.set()
    other.join()
    inside = [tick for tick in ticks if start + 0.1 * (end - start) < tick < end - 0.1 * (end - start)]
    ok(len(inside) >= 10, f"the GIL is released: another thread woke {len(inside)} times in {end - start:.2f} s")

    timer = threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT])
    before = rapt.attention(big[:, :, :64], big[:, :, :64], big[:, :, :64])
    out, arrived = np.zeros_like(big), False
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which what a shell starts in the background ignores
    timer.start()
    try:
        rapt.attention(big, big, big, out=out, threads=2)
        time.sleep(60)  # which the signal ends where it comes after the call
    except KeyboardInterrupt:
        arrived = True
    timer.join()
    ok(arrived, "Ctrl-C arrives right after the call")
    ok(out.any(axis=-1).all(), "... which has done its work")
    ok(same(rapt.attention(big[:, :, :64], big[:, :, :64], big[:, :, :64], threads=2), before),
       "... and calls go on, with threads")


def in_child(x, expected):
    return rapt.attention(x, x, x, threads=2).tobytes() == expected and rapt.attention(x, x, x, threads=3).tobytes() == expected


def test_forks():
    if not hasattr(os, "fork"):
        skip("forks", "this system has none")
        return
    x = random(2, 8, 200, 64)
    need = rapt.attention(x, x, x, threads=2)  # so that there is a pool
    busy, done = long_call(0.3), threading.Event()

    def keep_busy():
        while not done.is_set():
            rapt.attention(busy, busy, busy, threads=2)

    other = threading.Thread(target=keep_busy)
    other.start()  # forks come while its pool, locks and workspace are in use
    statuses = []
    try:
        for _ in range(5):
            time.sleep(0.05)
            child = os.fork()
            if not child:
                status = 1
                with contextlib.suppress(BaseException):
                    signal.alarm(60)
                    status = 0 if in_child(x, need.tobytes()) else 2
                os._exit(status)
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    finally:
        done.set()
        other.join()
    ok(statuses == [0] * 5, "forked children use attention with threads: the same bits", statuses)
    ok(same(rapt.attention(x, x, x, threads=2), need), "... and so does their parent")
    with multiprocessing.get_context("fork").Pool(2) as workers:
        results = workers.starmap_async(in_child, [(x, need.tobytes())] * 4).get(120)
    ok(results == [True] * 4, "multiprocessing by fork: the same bits", results)


# ---- The package -------------------------------------------------------------------------------------------------------------


def test_package():
    path = pathlib.Path(rapt.__file__).parent
    ok((path / "py.typed").exists() and all(getattr(rapt, name).__doc__ for name in rapt.__all__),
       "py.typed, and a docstring for each name")
    ok(rapt.__version__ == rapt.info()["version"], "the package's version is that of its library", rapt.__version__)
    hosts = "torch", "jax", "matplotlib", "transformers", "ml_dtypes", "vllm"
    code = f"import sys, rapt; print(*sorted({set(hosts)} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True)
    ok(done.returncode == 0 and not done.stdout.strip(), "import rapt imports no host", done.stdout + done.stderr)
    code = "import rapt; rapt.attention(None, None, None)"
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True,
                          env=os.environ | {"RAPT_LIBRARY": "/nowhere"})
    ok(done.returncode == 1 and "TypeError: q is a NoneType" in done.stderr, "... and reads no library", done.stderr)
    installed = {module.name for module in pkgutil.iter_modules([str(path)])}
    modules = {file.stem for file in (SOURCE / "python" / "rapt").glob("*.py")}
    ok(modules - {"__init__"} <= installed, "all modules of the source tree are there", modules - installed)
    for name in ("rapt.h", "rapt_layer.h", "rapt_pool.h"):
        here = next(folder for folder in (path / "include", path.parent.parent / "include") if folder.exists())
        ok((here / name).read_bytes() == (SOURCE / "include" / name).read_bytes(), f"{name} is the source tree's")
    library, oldest = rapt.info()["library"], (2, 17)
    if platform.libc_ver()[0] != "glibc" or platform.machine() not in ("x86_64", "aarch64") or not shutil.which("objdump"):
        skip("glibc 2.17 is enough", "it is asked for with glibc and objdump, on x86-64 and AArch64")
    else:
        text = subprocess.run(["objdump", "-T", library], text=True, capture_output=True, check=True).stdout
        versions = {tuple(map(int, version.split("."))) for version in re.findall(r"\(?GLIBC_([0-9.]+)\)?", text)}
        ok(versions and max(versions) <= oldest,
           f"glibc 2.17 is enough: {'.'.join(map(str, max(versions, default=())))} is needed", text)
    symbols = subprocess.run(["nm", "-D", library], text=True, capture_output=True).stdout
    exported = set(re.findall(r"\bT (\w+)", symbols))
    others = {name for name in exported if not name.startswith("rapt_")}
    ok(others == {"CreateEpFactories", "ReleaseEpFactory"} < exported, "the library exports rapt_*, and what ONNX Runtime asks for", others)
    q = random(1, 8, 1, 64)
    rapt.attention(q, q, q)
    start = time.thread_time()
    for _ in range(500):
        rapt.attention(q, q, q)
    print(f"# a small call takes {(time.thread_time() - start) / 500 * 1e6:.0f} us of this CPU")


def main():
    for test in (test_examples, test_attention, test_types, test_ragged, test_merge, test_verify, test_arrays, test_masked_arrays,
                 test_arguments, test_memory, test_caches, test_rings, test_cache_calls, test_rope, test_layers, test_mha, test_zeros,
                 test_defaults, test_copies, test_numbers, test_lines, test_mismatches, test_kernels, test_viz, test_threads,
                 test_forks, test_package):
        print(f"# {test.__name__[5:]}", flush=True)
        test()
    tap.done()


if __name__ == "__main__":
    main()
