#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rapt's execution provider in ONNX Runtime, in TAP. Usage: test.py

Needs the packages rapt, onnxruntime, onnx, numpy and ml_dtypes; the test of the sentence encoder also torch and transformers, and its
weights, which examples/minilm/fetch brings; that of the library alone what integrations/onnxruntime/build has made.

ONNX's own node tests of Attention and RotaryEmbedding run with rapt first, and each of their nodes is counted as taken by rapt,
or left for a reason. Random models of every operator are held against the CPU provider, or, where that has none, against a
formula. Bytes are compared over processes with each of rapt's kernels, numbers of threads, batches and steps."""
import collections
import contextlib
import ctypes
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests/host"))
import processes
import tap
from tap import ok, skip

try:
    import ml_dtypes  # noqa: F401 - NumPy's bfloat16, by its name
    import numpy as np
    import onnx
    import onnxruntime
    from onnx.backend.test.case.node import collect_testcases
except ImportError as error:
    tap.absent("rapt in ONNX Runtime", error)

import models
import rapt._native
import rapt.onnxruntime as rapt_onnxruntime
from models import BF16, CONTRIB, model, run, session

MHA, GQA, ROTARY = CONTRIB + ".MultiHeadAttention", CONTRIB + ".GroupQueryAttention", CONTRIB + ".RotaryEmbedding"


def differ(found, expected, rtol, atol):
    """Why they differ, or nothing."""
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        a, b = a.astype(np.float64), np.asarray(b).astype(np.float64)
        if a.shape != b.shape:
            return f"output {i} is {a.shape}, not {b.shape}"
        bad = ~np.isclose(a, b, rtol, atol, equal_nan=True)
        if bad.any():
            at = tuple(np.argwhere(bad)[0])
            return f"output {i}: {bad.sum()} of {bad.size} differ, the first at {at}: {a[at]}, not {b[at]}"
    return ""


# ---- ONNX's node tests -------------------------------------------------------------------------------------------------------

LEFT = {"test_attention_local_window_gqa_rank4_mask": "softmax_precision is double"}


def node_tests():
    warnings.simplefilter("ignore")  # onnx says that its own examples divide by 0
    counts = collections.Counter()
    for case in collect_testcases(None):  # of one operator, it can be asked once only
        name, proto = case.name, case.model
        if len(proto.graph.node) != 1 or proto.graph.node[0].op_type not in ("Attention", "RotaryEmbedding"):
            continue  # others, or the same written in others ("_expanded")
        node, = proto.graph.node
        if lacking := models.unknown(node.op_type, (), [a.name for a in node.attribute], proto.opset_import[0].version):
            skip(name, f"onnxruntime {onnxruntime.__version__} does not know {lacking}")
            continue
        narrow = any(output.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16 for output in proto.graph.output)
        made = session(models.widened(proto) if narrow else proto, rapt=True)
        taken = rapt_onnxruntime.taken(made)[node.op_type]
        counts[node.op_type, bool(taken)] += 1
        if name in LEFT:
            ok(not taken, f"{name}: left to the CPU provider, for {LEFT[name]}", "it was taken")
        else:
            ok(taken == 1, f"{name}: taken", "it was left to others")
        for inputs, expected in case.data_sets:
            names = [i.name for i in made.get_inputs()]
            rtol = 2**-6 if narrow else case.rtol  # bfloat16's last bits, since ONNX's reference rounds to it after every step
            why = differ(run(made, dict(zip(names, inputs, strict=True))), expected, rtol, case.atol)
            ok(not why, f"{name}: as expected", why)
    for op, least in ("Attention", 80), ("RotaryEmbedding", 8):
        ok(counts[op, True] >= least, f"rapt has taken {counts[op, True]} node tests of {op}, and left {counts[op, False]}",
           counts)


# ---- Random models beside the CPU provider -----------------------------------------------------------------------------------

TOLERANCES = {np.dtype(np.float32): (2e-5, 2e-5), np.dtype(np.float16): (3e-3, 3e-3), BF16: (2e-2, 2e-2)}

# In older ones, the CPU provider has other conventions or errors: softcap beside masks, scores, several heads of K and V.
AGREES = 1, 31
VERSION = tuple(int(number) for number in onnxruntime.__version__.split(".")[:2])


def beside(what, op, inputs, attributes, outputs=("y", ), opset=24, tolerance=None, compare=lambda name, x: x):
    """Whether rapt takes the node and gives what the CPU provider does. compare cuts off what is not specified."""
    if lacking := models.unknown(op, inputs, attributes, opset):
        return skip(what, f"onnxruntime {onnxruntime.__version__} does not know {lacking}")
    if VERSION < AGREES:
        return skip(what, f"the CPU provider of onnxruntime {onnxruntime.__version__} computes something else")
    proto = model(op, inputs, outputs, attributes, opset)
    try:
        expected = run(session(proto, rapt=False), inputs)
    except Exception as error:  # pybind has a class for each code
        return ok(False, what, f"the CPU provider: {error}")
    made = session(proto, rapt=True)
    if not rapt_onnxruntime.taken(made):
        return ok(False, what, "rapt did not take the node")
    try:
        found = run(made, inputs)
    except Exception as error:
        return ok(False, what, f"rapt: {error}")
    rtol, atol = tolerance or TOLERANCES[inputs["x" if "x" in inputs else "q"].dtype]
    why = differ([compare(n, x) for n, x in zip(outputs, found)], [compare(n, x) for n, x in zip(outputs, expected)], rtol,
                 atol)
    ok(not why, what, why)


class Random:
    """A generator of shapes, tensors and choices."""
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def __call__(self, *shape, dtype=np.float32):
        return self.rng.standard_normal(shape).astype(dtype)

    def of(self, *choices):
        return choices[self.rng.integers(len(choices))]

    def coins(self, *shape):
        return self.rng.random(shape) < 0.7

    def up_to(self, most, least=1):
        return int(self.rng.integers(least, most + 1))


def random_attention(seed):
    """ai.onnx.Attention, of 3 or 4 dimensions, with any of its options."""
    r = Random(seed)
    dtype = np.dtype(r.of(np.float32, np.float32, np.float16))
    batch, kv_heads, group = r.up_to(3), r.up_to(3), r.of(1, 1, 2, 3)
    heads, queries, d, d_v = kv_heads * group, r.of(1, 2, 7, 33, 70), r.of(1, 4, 8, 24, 64), r.of(1, 4, 8, 40, 64)
    how = r.of("plain", "past", "past", "nonpad")
    keys = r.of(queries, r.up_to(90, queries)) if how == "nonpad" else r.of(queries, 1, 5, 80)
    past = r.of(1, 9, 70, 600) if how == "past" else 0
    flat = r.of(False, True)
    attributes = {"is_causal": r.of(0, 1), "softcap": r.of(0.0, 0.0, 1.5)}
    if r.of(False, True):
        attributes["scale"] = 0.3

    def tensor(h, t, c):
        return r(batch, t, h * c, dtype=dtype) if flat else r(batch, h, t, c, dtype=dtype)

    inputs = {"q": tensor(heads, queries, d), "k": tensor(kv_heads, keys, d), "v": tensor(kv_heads, keys, d_v)}
    if flat:
        attributes |= {"q_num_heads": heads, "kv_num_heads": kv_heads}
    total = past + keys
    outputs = ["y"]
    mask = r.of(None, None, bool, "number")
    if mask:
        shape = tuple(r.of((queries, total), (1, 1, queries, total), (batch, heads, queries, total),
                           (batch, 1, queries, total)))
        inputs["mask"] = r.coins(*shape) if mask is bool else r(*shape, dtype=dtype)
        if mask is bool:
            inputs["mask"][..., 0] = True
    if how == "past":
        inputs |= {"past_k": r(batch, kv_heads, past, d, dtype=dtype), "past_v": r(batch, kv_heads, past, d_v, dtype=dtype)}
        outputs += ["present_k", "present_v"]
    if how == "nonpad":
        inputs["nonpad"] = r.rng.integers(queries, keys + 1, batch)
    if how != "nonpad" and r.of(False, False, True):
        outputs = (["y", "present_k", "present_v"] if how == "past" else ["y"]) + ["scores"]
        attributes["qk_matmul_output_mode"] = r.up_to(3, 0)
    opset = 24 if how == "nonpad" else r.of(23, 24)
    name = (f"Attention-{opset} {seed}: {dtype}, batch {batch}, {heads}/{kv_heads} heads, {queries} on {past} + {keys}, "
            f"d {d}/{d_v}, {how}, {'3' if flat else '4'}D, {attributes}")
    if mask:
        name += f", mask {inputs['mask'].dtype} {inputs['mask'].shape}"
    beside(name, "Attention", inputs, attributes, tuple(outputs), opset, compare=lambda n, x: np.maximum(x, -1e4)
           if n == "scores" else x)


def random_multi_head(seed):
    """com.microsoft.MultiHeadAttention, with any of its options."""
    r = Random(seed)
    dtype = np.dtype(r.of(np.float32, np.float32, np.float16))
    batch, heads, queries, d = r.up_to(3), r.up_to(4), r.of(1, 2, 7, 33, 70), r.of(4, 8, 24, 64)
    how = r.of("plain", "cross", "past", "shared", "given")
    d_v = d if how in ("past", "shared", "given") else r.of(d, 8, 40)
    keys = queries if how in ("plain", "past", "shared") else r.up_to(90)
    past = r.of(1, 9, 70) if how in ("past", "shared") else 0
    attributes, outputs = {"num_heads": heads}, ["y"]
    if r.of(False, True):
        attributes["scale"] = 0.3
    if how == "plain" or how == "past":
        attributes["unidirectional"] = r.of(0, 1)
    inputs = {"q": r(batch, queries, heads * d, dtype=dtype)}
    if how == "given":
        inputs |= {"k": r(batch, heads, keys, d, dtype=dtype), "v": r(batch, heads, keys, d_v, dtype=dtype)}
    else:
        inputs |= {"k": r(batch, keys, heads * d, dtype=dtype), "v": r(batch, keys, heads * d_v, dtype=dtype)}
        if r.of(False, True):
            inputs["bias"] = r(heads * (2 * d + d_v), dtype=dtype)
    total, used = past + keys, slice(None)
    if past:
        room = past if how == "past" else total + r.up_to(20, 0)
        inputs |= {"past_k": r(batch, heads, room, d, dtype=dtype), "past_v": r(batch, heads, room, d_v, dtype=dtype)}
        outputs += ["present_k", "present_v"]
    if how == "shared":
        inputs["past_length"] = np.array([past], np.int32)
        used = slice(total)
    padding = r.of(None, None, "lengths", "starts", "right", "any", "queries")
    if padding and how != "shared":
        lengths = r.rng.integers(1, total + 1, batch).astype(np.int32)
        inputs["padding"] = {
            "lengths": lengths,
            "starts": np.concatenate([lengths, np.arange(batch + 1) * queries, np.arange(batch + 1) * keys]).astype(np.int32),
            "right": (np.arange(total) < lengths[:, None]).astype(np.int32),
            "any": r.coins(batch, total).astype(np.int32),
            "queries": r.coins(batch, queries, total).astype(np.int32),
        }[padding]
        if padding in ("any", "queries"):
            inputs["padding"][..., 0] = 1
    if r.of(False, False, True) and how != "shared":
        inputs["logit_bias"] = r(r.of(1, batch), r.of(1, heads), queries, total, dtype=dtype)
    name = (f"MultiHeadAttention {seed}: {dtype}, batch {batch}, {heads} heads, {queries} on {past} + {keys}, "
            f"d {d}/{d_v}, {how}, {attributes}" + "".join(f", {n} {inputs[n].shape}"
                                                          for n in ("bias", "padding", "logit_bias") if n in inputs))
    beside(name, MHA, inputs, attributes, tuple(outputs), compare=lambda n, x: x[:, :, used] if n != "y" else x)


def random_group_query(seed):
    """com.microsoft.GroupQueryAttention: prompts, chunks and steps, apart and packed, with any of its options."""
    r = Random(seed)
    dtype = np.dtype(r.of(np.float32, np.float32, np.float16))
    coded = r.of(None, None, None, "PER_TENSOR", "PER_CHANNEL")
    if coded:
        dtype = np.dtype(np.float32)
    how = r.of("prompt", "step", "chunk", "padded")
    batch, kv_heads, group = (1 if how == "chunk" else r.up_to(3)), r.up_to(2), r.of(1, 2, 4)
    heads, d = kv_heads * group, r.of(16, 32, 64)
    new = 1 if how == "step" else r.of(2, 7, 33, 80)
    past = 0 if how == "prompt" else r.of(1, 20, 600)
    total = past + new
    shared = coded or how == "padded" or r.of(False, True)
    room = total + r.up_to(9, 0) if shared else past
    attributes = {"num_heads": heads, "kv_num_heads": kv_heads, "softcap": r.of(0.0, 0.0, 2.0)}
    if r.of(False, True):
        attributes["local_window_size"] = r.of(1, 3, 30)
    inputs = {n: r(batch, new, h * d, dtype=dtype) for n, h in (("q", heads), ("k", kv_heads), ("v", kv_heads))}
    if r.of(False, False, True):
        inputs = {"q": np.concatenate([inputs[n] for n in "qkv"], axis=-1)}
    totals = np.full(batch, total, np.int32)
    if how == "step" and batch > 1:
        totals[1:] = r.rng.integers(1, total, batch - 1)
    tokens = np.full(batch, new)
    if how == "padded":
        tokens = r.rng.integers(0, new + 1, batch)
        tokens[0] = new
        totals = (r.rng.integers(0, past + 1, batch) + np.maximum(tokens, 1)).astype(np.int32)
        inputs["new"] = tokens.astype(np.int32)
    if room:
        inputs["past_k"], inputs["past_v"] = (r(batch, kv_heads, room, d, dtype=dtype) for _ in "kv")
    if coded:
        shape = (1, ) if coded == "PER_TENSOR" else (1, kv_heads, 1, d)
        for n in "kv":
            inputs[f"past_{n}"] = r.rng.integers(-127, 128, (batch, kv_heads, room, d)).astype(np.int8)
            inputs[f"{n}_scale"] = (0.07 + 0.02 * r.rng.random(shape)).astype(np.float32)
        attributes |= {"k_quant_type": coded, "v_quant_type": coded, "kv_cache_bit_width": 8}
    inputs |= {"last": totals - 1, "total": np.array(total, np.int32)}
    if r.of(False, True):
        attributes |= {"do_rotary": 1, "rotary_interleaved": r.of(0, 1)}
        pairs = r.of(d // 2, 8)
        inputs["cos"], inputs["sin"] = (r(total + 5, pairs, dtype=dtype) for _ in "cs")
        if how != "padded" and r.of(False, True):
            # A prompt reads only the first, and the tables have 5 positions more than it has tokens.
            inputs["ids"] = r.rng.integers(0, 6 if how == "prompt" else total, (batch, new))
    if coded:  # what is stored must not hang on how a rotation is rounded, nor be -128, which rapt does not store
        for n in inputs.keys() & {"q", "k", "v", "cos", "sin"}:
            most = 1 if n in ("cos", "sin") else 4
            inputs[n] = np.clip(np.round(inputs[n] * 64) / 64, -most, most).astype(np.float32)
    if r.of(False, False, True):
        inputs["sink"] = r(heads, dtype=dtype)
    elif r.of(False, False, True):
        attributes["smooth_softmax"] = 1
    if not coded and how != "padded" and r.of(False, False, True):
        inputs["logit_bias"] = r(r.of(1, batch), r.of(1, heads), new, total, dtype=dtype)

    def compare(n, x):  # rows of padding are not specified, nor are keys behind the last
        if n == "y":
            return np.concatenate([x[b, :tokens[b]] for b in range(batch)])
        return np.concatenate([x[b, :, :totals[b]] for b in range(batch)], axis=1)

    extra = [n for n in ("ids", "sink", "logit_bias", "new", "cos", "k_scale") if n in inputs]
    name = (f"GroupQueryAttention {seed}: {dtype}, batch {batch}, {heads}/{kv_heads} heads, {new} behind {past} of {room}, "
            f"d {d}, {how}{'' if 'k' in inputs else ', packed'}, {attributes}, {extra}")
    beside(name, GQA, inputs, attributes, ("y", "present_k", "present_v"), compare=compare)


def random_rotary(seed):
    """Both RotaryEmbeddings."""
    r = Random(seed)
    dtype = np.dtype(r.of(np.float32, np.float32, np.float16))
    batch, heads, tokens, pairs = r.up_to(3), r.up_to(4), r.of(1, 7, 40), r.of(2, 8, 32)
    d = 2 * pairs + r.of(0, 0, 6)
    contrib, flat = r.of(False, True), r.of(False, True)
    partial = d > 2 * pairs
    attributes = {"interleaved": r.of(0, 1)}
    if flat or partial:
        attributes["num_heads"] = heads
    if partial:
        attributes["rotary_embedding_dim"] = 2 * pairs
    inputs = {"x": r(batch, tokens, heads * d, dtype=dtype) if flat else r(batch, heads, tokens, d, dtype=dtype)}
    table = (50, pairs)
    how = r.of("positions", "first" if contrib else "tables")
    if how == "positions":
        inputs["ids"] = r.rng.integers(0, 50, (batch, tokens))
    elif contrib:
        inputs["ids"] = np.array([3])
    else:
        table = (batch, tokens, pairs)
    inputs["cos"], inputs["sin"] = (r(*table, dtype=dtype) for _ in "cs")
    op = ROTARY if contrib else "RotaryEmbedding"
    beside(f"{op} {seed}: {dtype}, {inputs['x'].shape}, {pairs} pairs, {how}, {attributes}", op, inputs, attributes)


# ---- What the CPU provider has not -------------------------------------------------------------------------------------------


def definition(q, k, v, keep=None):
    """Attention of [batch, heads, tokens, channels] in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (x.repeat(q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    logits = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[3])
    if keep is not None:
        logits = np.where(keep, logits, -np.inf)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v


def taken_and(what, op, inputs, attributes, expected, outputs=("y", ), opset=24):
    """Whether rapt takes the node and gives what is expected."""
    if lacking := models.unknown(op, inputs, attributes, opset):
        return skip(what, f"onnxruntime {onnxruntime.__version__} does not know {lacking}")
    proto = model(op, inputs, outputs, attributes, opset)
    made = session(models.widened(proto) if inputs["q"].dtype == BF16 else proto, rapt=True)
    why = differ(run(made, inputs), expected, *TOLERANCES[inputs["q"].dtype])
    ok(not why and rapt_onnxruntime.taken(made)[op.rpartition(".")[2]] == 1, what, why or "rapt did not take the node")


def only_rapt():
    r = Random(1)
    for dtype in BF16, np.dtype(np.float16):
        q, k, v = r(2, 4, 9, 16, dtype=dtype), r(2, 2, 70, 16, dtype=dtype), r(2, 2, 70, 8, dtype=dtype)
        taken_and(f"Attention of {dtype}, V of other channels", "Attention", {"q": q, "k": k, "v": v}, {},
                  [definition(q, k, v)])
    q, k, v = r(2, 4, 9, 16), r(2, 2, 70, 16), r(2, 2, 70, 8)
    for shape in (2, 1, 1, 70), (4, 1, 70), (9, 70), (70, ), (1, 40), (2, 1, 9, 40):
        mask = r.coins(*shape)
        mask[..., 0] = True
        keep = np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, 70 - shape[-1])])
        taken_and(f"Attention, a mask {shape}", "Attention", {"q": q, "k": k, "v": v, "mask": mask}, {},
                  [definition(q, k, v, keep)])
    q, k, v = r(2, 4, 9, 16, dtype=BF16), r(2, 2, 9, 16, dtype=BF16), r(2, 2, 9, 16, dtype=BF16)
    flat = [x.swapaxes(1, 2).reshape(2, 9, -1) for x in (q, k, v)]
    y = definition(q, k, v, np.tri(9, dtype=bool)).swapaxes(1, 2).reshape(2, 9, -1)
    taken_and("GroupQueryAttention of bfloat16", GQA,
              dict(zip("qkv", flat), last=np.full(2, 8, np.int32), total=np.array(9, np.int32)),
              {"num_heads": 4, "kv_num_heads": 2}, [y, k, v], ("y", "present_k", "present_v"))

    q, k, v = r(2, 5, 3, 8), r(2, 5, 3, 8), r(2, 5, 3, 8)  # [batch, tokens, heads, channels]
    y = definition(*(x.swapaxes(1, 2) for x in (q, k, v))).swapaxes(1, 2).reshape(2, 5, 24)
    taken_and("MultiHeadAttention, query, key and value packed", MHA, {"q": np.stack([q, k, v], axis=3)}, {"num_heads": 3}, [y])
    taken_and("MultiHeadAttention, key and value packed", MHA, {"q": q.reshape(2, 5, 24), "k": np.stack([k, v], axis=3)},
              {"num_heads": 3}, [y])
    keep = np.tri(2, 5, 3, dtype=bool)
    y = definition(*(x.swapaxes(1, 2) for x in (q[:, :2], k, v)), keep).swapaxes(1, 2).reshape(2, 2, 24)
    taken_and("MultiHeadAttention, unidirectional, with more keys than queries", MHA,
              {"q": q[:, :2].reshape(2, 2, 24), "k": k.reshape(2, 5, 24), "v": v.reshape(2, 5, 24)},
              {"num_heads": 3, "unidirectional": 1}, [y])
    bias = r(3 * 24)
    y = definition(*((x + b.reshape(3, 8)).swapaxes(1, 2) for x, b in zip((q, k, v), bias.reshape(3, 24))))
    taken_and("MultiHeadAttention, packed, with a bias", MHA, {"q": np.stack([q, k, v], axis=3), "bias": bias},
              {"num_heads": 3}, [y.swapaxes(1, 2).reshape(2, 5, 24)])

    q, k, v = r(1, 2, 4, 8), r(1, 2, 9, 8), r(1, 2, 9, 8)
    i, j = np.ogrid[:4, :9]
    for left, right in (2, -1), (-1, 1), (3, 2):
        keep = (j >= i - left if left >= 0 else True) & (j <= i + right if right >= 0 else True)
        taken_and(f"Attention-25, windows {left} and {right}", "Attention", {"q": q, "k": k, "v": v},
                  {"left_window_size": left, "right_window_size": right}, [definition(q, k, v, keep)], opset=25)

    last = np.full(1, 8, np.int32)  # a past of 8, a new token
    q, k, v, past = r(1, 1, 32), r(1, 1, 16), r(1, 1, 16), r(1, 2, 20, 8)
    inputs = {"q": q, "k": k, "v": v, "past_k": past, "past_v": past.copy(), "last": last, "total": np.array(9, np.int32)}
    made = session(model(GQA, inputs, ("y", "present_k", "present_v"), {"num_heads": 4, "kv_num_heads": 2}), rapt=True)
    apart = run(made, inputs)
    binding = made.io_binding()
    caches = [onnxruntime.OrtValue.ortvalue_from_numpy(inputs[n]) for n in ("past_k", "past_v")]
    for name, x in inputs.items():
        binding.bind_ortvalue_input(name, caches["past_k past_v".split().index(name)] if "past" in name else models.value(x))
    binding.bind_output("y")
    for name, cache in zip(("present_k", "present_v"), caches):
        binding.bind_ortvalue_output(name, cache)
    made.run_with_iobinding(binding)
    same = np.array_equal(binding.get_outputs()[0].numpy(), apart[0])
    same = same and np.array_equal(caches[0].numpy()[:, :, 9:], past[:, :, 9:])
    same = same and all(np.array_equal(c.numpy()[:, :, :9], x[:, :, :9]) for c, x in zip(caches, apart[1:]))
    ok(same, "GroupQueryAttention: the past's memory is the present's")


# ---- Nothing where something could be ----------------------------------------------------------------------------------------


def empties():
    """Tensors without elements: batches, queries, keys, pasts, masks. What is 0 must not be taken for a default."""
    r = Random(9)

    def heads(batch=1, queries=3, keys=3, past=None):
        inputs = {"q": r(batch, 2, queries, 8), "k": r(batch, 2, keys, 8), "v": r(batch, 2, keys, 8)}
        return inputs | ({} if past is None else {"past_k": r(batch, 2, past, 8), "past_v": r(batch, 2, past, 8)})

    def flat(batch=1, queries=3, keys=3, past=None):
        inputs = {"q": r(batch, queries, 16), "k": r(batch, keys, 16), "v": r(batch, keys, 16)}
        return inputs | ({} if past is None else {"past_k": r(batch, 2, past, 8), "past_v": r(batch, 2, past, 8)})

    def grouped(batch=1, tokens=3, past=None, **more):
        inputs = flat(batch, tokens, tokens, past)
        return inputs | {"last": np.full(batch, tokens - 1, np.int32), "total": np.array(tokens, np.int32)} | more

    def empty(*shape, dtype=np.int32):
        return np.zeros(shape, dtype)

    present, two, groups = ("y", "present_k", "present_v"), {"num_heads": 2}, {"num_heads": 2, "kv_num_heads": 2}
    rotated = groups | {"do_rotary": 1}
    tables = {"cos": r(9, 4), "sin": r(9, 4)}
    # The shape of y, of which every element is 0, since no key is attended.
    nothing = {
        "Attention, no batch": ("Attention", heads(batch=0), {}, (0, 2, 3, 8)),
        "Attention, no batch, a mask": ("Attention", heads(batch=0) | {"mask": empty(0, 1, 3, 3, dtype=bool)}, {}, (0, 2, 3, 8)),
        "Attention, no query, a mask": ("Attention", heads(queries=0) | {"mask": empty(0, 3, dtype=bool)}, {}, (1, 2, 0, 8)),
        "Attention, no query, a mask of numbers": ("Attention", heads(queries=0) | {"mask": r(0, 3)}, {}, (1, 2, 0, 8)),
        "Attention, no key": ("Attention", heads(keys=0), {"is_causal": 1}, (1, 2, 3, 8)),
        "Attention, no key, a mask": ("Attention", heads(keys=0) | {"mask": empty(3, 0, dtype=bool)}, {}, (1, 2, 3, 8)),
        "Attention, no key, a mask of numbers": ("Attention", heads(keys=0) | {"mask": r(3, 0)}, {}, (1, 2, 3, 8)),
        "Attention, no past and no key": ("Attention", heads(keys=0, past=0), {}, (1, 2, 3, 8)),
        "Attention, no batch, a past": ("Attention", heads(batch=0, past=5), {"is_causal": 1}, (0, 2, 3, 8)),
        "Attention, a nonpad_kv_seqlen of 0": ("Attention", heads() | {"nonpad": np.array([0])}, {}, (1, 2, 3, 8)),
        "MultiHeadAttention, no batch, lengths": (MHA, flat(batch=0) | {"padding": empty(0)}, two, (0, 3, 16)),
        "MultiHeadAttention, no query, a mask": (MHA, flat(queries=0) | {"padding": empty(1, 0, 3)}, two, (1, 0, 16)),
        "MultiHeadAttention, no key, a mask": (MHA, flat(keys=0) | {"padding": empty(1, 0)}, two, (1, 3, 16)),
        "MultiHeadAttention, no key, a bias and a mask":
            (MHA, flat(keys=0) | {"logit_bias": r(1, 2, 3, 0), "padding": empty(1, 0)}, two, (1, 3, 16)),
        "MultiHeadAttention, packed, no token": (MHA, {"q": r(1, 0, 2, 3, 8)}, two, (1, 0, 16)),
        "MultiHeadAttention, key and value packed, no key": (MHA, {"q": r(1, 3, 16), "k": r(1, 0, 2, 2, 8)}, two, (1, 3, 16)),
        "GroupQueryAttention, no batch": (GQA, grouped(batch=0), groups, (0, 3, 16)),
        "GroupQueryAttention, no batch, rotated": (GQA, grouped(batch=0, ids=empty(0, 3, dtype=np.int64)) | tables, rotated, (0, 3, 16)),
        "RotaryEmbedding, no batch":
            ("RotaryEmbedding", {"x": r(0, 2, 3, 8), "cos": r(0, 3, 4), "sin": r(0, 3, 4)}, {}, (0, 2, 3, 8)),
        "RotaryEmbedding of com.microsoft, no token":
            (ROTARY, {"x": r(1, 0, 16), "ids": empty(1, 0, dtype=np.int64)} | tables, two, (1, 0, 16)),
    }
    for name, (op, inputs, attributes, shape) in nothing.items():
        outputs = present if op == GQA or "past_k" in inputs else ("y", )
        made = session(model(op, inputs, outputs, attributes), rapt=True)
        y = run(made, inputs)[0]
        taken = sum(rapt_onnxruntime.taken(made).values())
        ok(taken == 1 and y.shape == shape and not y.any(), f"{name}: zeros of the right shape", (taken, y.shape, y))
    for name, op, inputs, attributes in (
        ("Attention, a past of 0 tokens", "Attention", heads(past=0), {}),
        ("MultiHeadAttention, a past of 0 tokens", MHA, flat(past=0), two),
        ("MultiHeadAttention, past_sequence_length 0", MHA, flat(past=3) | {"past_length": np.array([0], np.int32)}, two),
        ("MultiHeadAttention, past_sequence_length without dimensions", MHA, flat(past=5) | {"past_length": np.array(2, np.int32)},
         two),
        ("GroupQueryAttention, a past of 0 tokens", GQA, grouped(past=0), groups),
        ("MultiHeadAttention, scale 0, its default", MHA, flat(), two | {"scale": 0.0}),
    ):
        beside(name, op, inputs, attributes, present, compare=lambda n, x: x if n == "y" else x[:, :, :3])
    for value in -1.0, 0.0, -20000.0:  # the last is what leaves keys out
        for form, padding in ("a matrix", [[1, 1, 0], [1, 0, 0]]), ("lengths", [2, 1]):
            inputs = flat(batch=2) | {"padding": np.array(padding, np.int32)}
            beside(f"MultiHeadAttention, mask_filter_value {value}, {form}", MHA, inputs, two | {"mask_filter_value": value})


# ---- Threads -----------------------------------------------------------------------------------------------------------------


def length_without_past():
    """MultiHeadAttention's past_sequence_length where there is no past: present is the new tokens."""
    x = Random(2)(1, 300, 32)
    inputs = dict.fromkeys("qkv", x) | {"past_length": np.array([0], np.int32)}
    proto = model(MHA, inputs, ("y", "present_k", "present_v"), {"num_heads": 4})
    found, expected = (run(session(proto, rapt=which), inputs) for which in (True, False))
    why = differ(found, expected, 1e-4, 1e-5)
    ok(not why, "MultiHeadAttention, past_sequence_length without a past", why)


def nodes():
    """Big and small problems of each operator, by name."""
    r = Random(7)
    return {
        "Attention, prefill": (
            "Attention", {n: r(1, h, 300, 64) for n, h in zip("qkv", (8, 2, 2))}, {"is_causal": 1}, ("y", )),
        "Attention, decode": (
            "Attention", {**{n: r(2, h, 1, 64) for n, h in zip("qkv", (8, 2, 2))},
                          **{f"past_{n}": r(2, 2, 3000, 64) for n in "kv"}},
            {}, ("y", "present_k", "present_v")),
        "MultiHeadAttention, a bias and padding": (
            MHA, {**{n: r(3, 200, 256) for n in "qkv"}, "bias": r(768), "padding": r.coins(3, 200).astype(np.int32)},
            {"num_heads": 4}, ("y", )),
        "GroupQueryAttention, a step of f16": (
            GQA, {**{n: r(2, 1, c, dtype=np.float16) for n, c in zip("qkv", (512, 128, 128))},
                  **{f"past_{n}": r(2, 2, 3000, 64, dtype=np.float16) for n in "kv"},
                  **{n: r(3000, 32, dtype=np.float16) for n in ("cos", "sin")},
                  "last": np.array([2999, 1234], np.int32), "total": np.array(3000, np.int32)},
            {"num_heads": 8, "kv_num_heads": 2, "do_rotary": 1, "local_window_size": 2000}, ("y", "present_k", "present_v")),
        "RotaryEmbedding": (
            "RotaryEmbedding",
            {"x": r(2, 8, 900, 64), "cos": r(900, 32), "sin": r(900, 32), "ids": np.tile(np.arange(900), (2, 1))},
            {}, ("y", )),
    }


def in_ways(rapt, q, k, v, causal):
    """What Attention says of a batch, by rapt or by the CPU provider alone, in ways that compute the same."""
    proto = model("Attention", {"q": q, "k": k, "v": v}, ("y", ), {"is_causal": int(causal)})
    of_any_shape(proto)

    def attend(*arrays, threads=2):
        return run(session(proto, rapt=rapt, threads=threads), dict(zip("qkv", arrays)))[0]
    yield "in a batch", attend(q, k, v)
    for threads in (1, 5):
        yield f"threads: {threads}", attend(q, k, v, threads=threads)
    yield "each entry alone", np.concatenate([attend(*(x[i:i + 1] for x in (q, k, v))) for i in range(len(q))])
    step = model("Attention", {n: x[:, :, :1] for n, x in zip("qkv", (q, k, v))} | {"past_k": k, "past_v": v},
                 ("y", "present_k", "present_v"), {"is_causal": 0})
    of_any_shape(step)
    steps, parts = session(step, rapt=rapt), []
    for i in range(q.shape[2]):
        last = i if causal else k.shape[2] - 1
        given = {"q": q[:, :, i:i + 1]} | {n: x[:, :, last:last + 1] for n, x in (("k", k), ("v", v))}
        parts.append(run(steps, given | {f"past_{n}": x[:, :, :last] for n, x in (("k", k), ("v", v))})[0])
    yield "token by token behind a cache", np.concatenate(parts, 2)


def of_any_shape(proto):
    """So that a session takes inputs of other shapes, too."""
    for i in proto.graph.input:
        i.type.tensor_type.ClearField("shape")


def print_digests():
    """Of the CPU provider alone, and of rapt."""
    found = {name: {f"threads: {threads}": [processes.digest(*run(session(model(op, inputs, outputs, attributes), rapt, threads), inputs))
                                              for rapt in (False, True)] for threads in (2, 1, 5)}
             for name, (op, inputs, attributes, outputs) in nodes().items()}
    for dtype in (np.float32, np.float16):
        for what, keys, causal in (("causal", 70, True), ("on more keys", 600, False)):
            given = [processes.normal(n, 3, h, tokens, 64).astype(dtype) for n, (h, tokens) in enumerate(((8, 70), (2, keys), (2, keys)))]
            pairs = zip(in_ways(False, *given, causal), in_ways(True, *given, causal))
            found[f"Attention of {np.dtype(dtype)}, {what}"] = {
                way: [processes.digest(plain), processes.digest(ours)] for (way, plain), (_, ours) in pairs}
    print(json.dumps(found))


def kernels():
    """The same in processes with each of rapt's kernels. ONNX Runtime's own are chosen by the CPU alone."""
    processes.compare("the CPU provider", processes.results(__file__, processes.environments(RAPT_ISA=processes.kernels())))


def arithmetics():
    """enable(arith=...) decides how attention is computed."""
    r = Random(8)
    inputs = {n: r(1, h, 40, 64) for n, h in zip("qkv", (8, 2, 2))}
    proto = model("Attention", inputs, ("y", ), {}).SerializeToString()
    for arith in "exact", "bf16":
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        made = onnxruntime.InferenceSession(proto, rapt_onnxruntime.enable(options, arith=arith))
        expected = rapt.attention(*inputs.values(), arith=arith)
        ok(np.array_equal(run(made, inputs)[0], expected), f"enable(arith={arith!r}): the bits of rapt.attention")
    try:
        rapt_onnxruntime.enable(rapt_onnxruntime.enable(), arith="bf16")
        ok(False, "two arithmetics are refused")
    except ValueError as error:
        ok("'exact' already" in str(error), "two arithmetics are refused", error)
    try:
        rapt_onnxruntime.enable(arith="int8")
        ok(False, "another arithmetic is refused")
    except ValueError as error:
        ok("'int8'" in str(error), "another arithmetic is refused", error)
    for name, given in (("arith", np.ones((9, 9))), ("arith", ["bf16"]), ("options", np.ones((9, 9))), ("options", "arena"), ("options", [])):
        try:
            rapt_onnxruntime.enable(**{name: given})
            ok(False, f"refused: {name} that is a {type(given).__name__}")
        except (TypeError, ValueError) as error:
            ok(str(error).startswith(f"{name} is ") and "\n" not in str(error), f"refused: {name} that is a {type(given).__name__}", error)


# ---- A sentence encoder, exported in all ways --------------------------------------------------------------------------------

# What each way makes of MiniLM's six layers: how PyTorch is told to compute attention, how it is exported, whether the optimizer
# fuses it, the operator that attention becomes, and whether rapt takes it.
DYNAMO, SCRIPT = {"dynamo": True}, {"dynamo": False}
WAYS = {
    "dynamo, operator set 23, sdpa": ("sdpa", DYNAMO | {"opset_version": 23}, None, "Attention", True),
    "dynamo, operator set 23, eager": ("eager", DYNAMO | {"opset_version": 23}, None, "Softmax", False),
    "dynamo, operator set 18, sdpa": ("sdpa", DYNAMO | {"opset_version": 18}, None, "Softmax", False),
    "dynamo, operator set 18, sdpa, fused": ("sdpa", DYNAMO | {"opset_version": 18}, "MultiHeadAttention", "Softmax", False),
    "TorchScript, sdpa, fused": ("sdpa", SCRIPT | {"opset_version": 17}, "MultiHeadAttention", "Softmax", False),
    "TorchScript, eager, fused": ("eager", SCRIPT | {"opset_version": 17}, "MultiHeadAttention", "MultiHeadAttention", True),
    "TorchScript, eager, of fixed shapes, fused": (
        "eager", SCRIPT | {"opset_version": 17, "fixed": True}, "MultiHeadAttention", "Softmax", False),
    "TorchScript, eager, fused without use_multi_head_attention": (
        "eager", SCRIPT | {"opset_version": 17}, "Attention", "Attention", False),
}
LAYERS = 6


def quietly(function, *given, **options):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*given, **options)


def encoder():
    try:
        import onnxruntime.transformers.optimizer as optimizer
        import onnxscript  # noqa: F401 - which PyTorch's exporter wants
        import tokenizers
        import torch
        import transformers
        from onnxruntime.transformers.fusion_options import FusionOptions
    except ImportError as error:
        return skip("the sentence encoder", f"{error}")
    if VERSION < AGREES:
        return skip("the sentence encoder", f"the optimizer of onnxruntime {onnxruntime.__version__} finds other nodes")
    fetch = subprocess.run([models.HERE.parents[2] / "examples/minilm/fetch"], capture_output=True, text=True)
    if fetch.returncode:
        return skip("the sentence encoder", fetch.stderr.strip())
    folder = pathlib.Path(fetch.stdout.strip())

    class Hidden(torch.nn.Module):
        def __init__(self, attention):
            super().__init__()
            self.bert = transformers.BertModel.from_pretrained(folder, attn_implementation=attention).eval()

        def forward(self, ids, mask):
            return self.bert(input_ids=ids, attention_mask=mask).last_hidden_state

    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding()
    texts = ["A man is eating food.", "Someone is having a meal.", "The shares of all companies fell sharply.", "Yes", "word " * 200]

    def encode(texts):
        encoded = tokenizer.encode_batch(texts)
        return [np.array([getattr(e, name) for e in encoded], np.int64) for name in ("ids", "attention_mask")]

    def pool(hidden, mask):
        mean = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
        return mean / np.linalg.norm(mean, axis=1, keepdims=True)

    def embed(made, texts):
        ids, mask = encode(texts)
        return pool(made.run(["hidden"], {"ids": ids, "mask": mask})[0], mask)

    def export(path, attention, fixed=False, **options):
        ids, mask = (torch.tensor(x) for x in encode(texts if fixed else texts[:2]))
        sizes = {"batch": 0, "tokens": 1}
        if not fixed and options["dynamo"]:
            options["dynamic_shapes"] = [{at: torch.export.Dim(name) for name, at in sizes.items()}] * 2
        elif not fixed:
            options["dynamic_axes"] = {name: {at: size for size, at in sizes.items()} for name in ("ids", "mask", "hidden")}
        names = {"input_names": ["ids", "mask"], "output_names": ["hidden"]}
        quietly(torch.onnx.export, Hidden(attention), (ids, mask), path, **names, **options)

    def fuse(path, op, fused):
        options = FusionOptions("bert")
        options.use_multi_head_attention = op == "MultiHeadAttention"
        quietly(lambda: optimizer.optimize_model(path, model_type="bert", num_heads=12, hidden_size=384, opt_level=1,
                                                 optimization_options=options).save_model_to_file(fused))

    with torch.no_grad():
        ids, mask = encode(texts)
        torches = pool(Hidden("eager")(torch.tensor(ids), torch.tensor(mask)).numpy(), mask)
    with tempfile.TemporaryDirectory() as work:
        exported = {}
        for number, (name, (attention, how, fused, op, takes)) in enumerate(WAYS.items()):
            key = attention, *how.items()
            path = exported.setdefault(key, os.path.join(work, f"{number}.onnx"))
            if not os.path.exists(path):
                export(path, attention, **how)
            if fused:
                path, plain = os.path.join(work, f"{number}-fused.onnx"), path
                fuse(plain, fused, path)
            made, explained = session(path, rapt=True), rapt_onnxruntime.explain(path)
            found = rapt_onnxruntime.taken(made)
            expected = LAYERS if takes else 0
            ok(found == ({op: LAYERS} if takes else {}), f"MiniLM, {name}: rapt takes {expected} of {LAYERS} layers", found)
            ok([(node.op, node.taken) for node in explained] == [(op, takes)] * LAYERS and
               all(bool(node.why) != takes for node in explained), f"MiniLM, {name}: and so says explain()", explained)
            ours = embed(made, texts)
            ok(np.abs(ours - torches).max() < 2e-6, f"MiniLM, {name}: the embeddings are PyTorch's", np.abs(ours - torches).max())
            if takes:
                theirs = embed(session(path, rapt=False), texts)
                ok(np.abs(ours - theirs).max() < 2e-6, f"MiniLM, {name}: and the CPU provider's", np.abs(ours - theirs).max())
                of = [embed(session(path, rapt=True, threads=n), texts) for n in (1, 2, 5)]
                ok(all(np.abs(x - of[0]).max() < 2e-6 for x in of), f"MiniLM, {name}: the same for 1, 2 and 5 threads")


# ---- What is said ------------------------------------------------------------------------------------------------------------


def mixed(*nodes, inputs=None, initializers=(), opset=24):
    """A model of several nodes, whose inputs are q, k and v of [1, 2, 3, 8] and the given ones."""
    inputs = inputs or dict.fromkeys("qkv", np.zeros((1, 2, 3, 8), np.float32))
    helper = onnx.helper
    given = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in inputs.items()]
    results = [onnx.ValueInfoProto(name=node.output[0]) for node in nodes]
    graph = helper.make_graph(nodes, "mixed", given, results, list(initializers))
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def branch(name, *nodes):
    """A graph inside a node."""
    return onnx.helper.make_graph(nodes, name, [], [onnx.helper.make_tensor_value_info(nodes[-1].output[0], 1, (1, 2, 3, 8))])


def explained():
    node = onnx.helper.make_node
    r = Random(5)
    weights = [onnx.numpy_helper.from_array(r(8, 24), "w"), onnx.numpy_helper.from_array(r(24), "b")]
    flag = {**dict.fromkeys("qkv", np.zeros((1, 2, 3, 8), np.float32)), "x": r(1, 3, 8), "flag": np.array(True)}
    inside = node("Attention", ["q", "k", "v"], ["in_then"], name="inside"), node("Softmax", ["q"], ["in_else"], name="inside")
    branches = {"then_branch": branch("then", inside[0]), "else_branch": branch("else", inside[1])}
    proto = mixed(
        node("Attention", ["q", "k", "v"], ["y0"], name="one"),
        node("Attention", ["d", "d", "d"], ["y1"], name="two\nlines"),
        node("Attention", ["x", "w", "b"], ["y2"], name="", domain=CONTRIB, num_heads=2),
        node("Softmax", ["k"], ["y3"], name="soft"),
        node("Relu", ["q"], ["y4"], name="other"),
        node("If", ["flag"], ["chosen"], name="choice", **branches),
        inputs=flag | {"d": r(1, 2, 3, 8).astype(np.float64)}, initializers=weights)
    found = rapt_onnxruntime.explain(proto.SerializeToString())
    expected = {
        ("Attention", "", "one", "mixed", True), ("Attention", "", "two?lines", "mixed", False),
        ("Attention", CONTRIB, "", "mixed", False), ("Softmax", "", "soft", "mixed", False),
        ("Attention", "", "inside", "then", True), ("Softmax", "", "inside", "else", False),
    }
    ok({(n.op, n.domain, n.name, n.graph, n.taken) for n in found} == expected and len(found) == len(expected),
       "explain() lists nodes of attention and Softmax, in the graphs of nodes, too", list(map(tuple, found)))
    why = {n.name: n.why for n in found}
    ok("Q and K are not both" in why["two?lines"] and "use_multi_head_attention" in why[""] and "fused as one" in why["soft"],
       "explain() says why a node is left", why)
    text = str(found).splitlines()
    ok(text[0] == "rapt takes 2 of 6 nodes of attention" and "    2  Attention: taken" in text and
       any(line.startswith("    1  com.microsoft.Attention: left, it has its projections") for line in text) and len(text) == 5,
       "explain() is printed by operator and reason", found)
    made = session(proto, rapt=True)
    ok(rapt_onnxruntime.taken(made)["Attention"] >= 1, "... and is what a session takes", rapt_onnxruntime.taken(made))
    with tempfile.TemporaryDirectory() as work:
        path = pathlib.Path(work) / "model.onnx"
        path.write_bytes(proto.SerializeToString())
        ok(rapt_onnxruntime.explain(path) == found == rapt_onnxruntime.explain(str(path)), "explain() of a path")
        try:
            rapt_onnxruntime.explain(path.with_name("none.onnx"))
            ok(False, "explain() of no file")
        except Exception as error:  # pybind has a class for each code
            ok("none.onnx" in str(error), "explain() of no file is ONNX Runtime's error", error)
    try:
        rapt_onnxruntime.explain(3)
        ok(False, "explain() of a number")
    except TypeError as error:
        ok(str(error) == "model is 3: a file's name is needed", "explain() of a number", error)

    double = {n: np.zeros((1, 2, 3, 8)) for n in "qkv"}
    softmax = node("Softmax", ["q"], ["z"])
    sessions = {
        "softmax": mixed(softmax),
        "softmax twice": mixed(softmax, node("Softmax", ["k"], ["y"])),
        "double": model("Attention", double, ("y", ), {}),
        "taken": mixed(node("Attention", ["q", "k", "v"], ["y"]), softmax),
        "taken inside": mixed(node("If", ["flag"], ["y"], **branches), softmax, inputs={n: flag[n] for n in ("q", "k", "v", "flag")}),
        "neither": mixed(node("Relu", ["q"], ["y"])),
    }
    said = {"softmax": "leaves 1 to others, 1 of", "softmax twice": "leaves 2 to others, 2 of", "double": "leaves 1 to others, 0 of"}
    for name, proto in sessions.items():
        done = process(f"""
import models, onnx, rapt.onnxruntime
models.session(onnx.ModelProto.FromString({proto.SerializeToString()!r}), rapt=True, level=2)""")
        told = [line for line in lines(done.stderr) if "rapt" in line and "provider.c" in line]
        if name in said:
            ok(len(told) == 1 and said[name] in told[0] and "rapt.onnxruntime.explain(model)" in told[0],
               f"a session that takes nothing, {name}: one line in its log", done.stderr)
        else:
            ok(not done.returncode and not told, f"a session, {name}: no line in its log", done.stderr)


def later_versions():
    """Attributes and inputs that this ONNX Runtime has and rapt does not know would be ignored, were their nodes not left."""
    names = {(op.rpartition(".")[0], op.rpartition(".")[2]): op for op in models.INPUTS}
    x = np.zeros((1, 3, 16), np.float32)
    needed = {"Attention": {"q_num_heads": 2, "kv_num_heads": 2}, "MultiHeadAttention": {"num_heads": 2},
              "RotaryEmbedding": {"num_heads": 2}, "GroupQueryAttention": {"num_heads": 2, "kv_num_heads": 2}}
    values = {"AttrType.FLOAT": 0.5, "AttrType.INT": 1, "AttrType.STRING": "PER_TENSOR"}
    seen = 0
    for schema in models.get_all_operator_schema():
        op = names.get((schema.domain, schema.name))
        if not op:
            continue
        seen += 1
        inputs = {"q": x, "k": x, "v": x, "last": np.array([2], np.int32), "total": np.array(3, np.int32), "x": x,
                  "ids": np.zeros((1, 3), np.int64), "cos": np.zeros((9, 4), np.float32), "sin": np.zeros((9, 4), np.float32)}
        inputs = {n: inputs[n] for n in models.INPUTS[op].split() if n in inputs and not (op == GQA and n in ("ids", "cos", "sin"))}
        attributes = {n: values.get(str(a.type), 1) for n, a in schema.attributes.items()} | needed[schema.name]
        unknown = []
        for name, given in attributes.items():
            one = needed[schema.name] | {name: given}
            outputs = ("y", "present_k", "present_v") if op == GQA else ("y", )
            proto = model(op, inputs, outputs, one, max(schema.since_version, 23))
            try:
                nodes = rapt_onnxruntime.explain(proto.SerializeToString())
                unknown += [node.why for node in nodes if "does not know" in node.why]
            except Exception as error:  # what ONNX Runtime's own checks refuse, or its CPU provider has not
                unknown += [str(error)] if "rapt" in str(error) else []
        most = len(models.INPUTS[op].split())
        ok(not unknown and len(schema.inputs) <= most, f"rapt knows all that {op} {schema.since_version} of this ONNX Runtime has",
           (unknown, len(schema.inputs)))
    ok(seen >= 6, "... and all of its operators have been looked at", seen)


# ---- What is refused, and how ------------------------------------------------------------------------------------------------


def lines(text):
    return [line for line in text.splitlines() if line.strip()]


def wrong_versions():
    """ONNX Runtimes that are not those that the declarations are of: made up, for the real ones cannot be in one process."""
    library = rapt._native.library().c
    Create = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
    GetApi, GetVersion = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32), ctypes.CFUNCTYPE(ctypes.c_char_p)
    for version, newest in (b"1.23.2", 23), (b"1.9.0", 9), (b"2.0.0", 99), (b"1.24.1", 23), (b"unknown", 99):
        said = []

        def create(code, message):
            said.append(message.decode())
            return 1

        slot = Create(create)
        table = (ctypes.c_void_p * 500)(ctypes.cast(slot, ctypes.c_void_p).value)
        get_api = GetApi(lambda n: ctypes.addressof(table) if n <= newest else None)
        get_version = GetVersion(lambda: version)
        base = (ctypes.c_void_p * 2)(*(ctypes.cast(f, ctypes.c_void_p).value for f in (get_api, get_version)))
        factories, count = (ctypes.c_void_p * 1)(), ctypes.c_size_t(7)
        status = library.CreateEpFactories(b"rapt", base, None, factories, ctypes.c_size_t(1), ctypes.byref(count))
        ok(
            status and len(said) == 1 and version.decode() in said[0] and "1.24" in said[0] and count.value == 0 and
            not factories[0], f"onnxruntime {version.decode()} with API {newest} is refused in a line", (said, count.value))


def process(code, **environment):
    """What a process of its own says."""
    return subprocess.run([sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path[:3]}\n{code}"], capture_output=True,
                          text=True, env={**os.environ, **environment})


def fails(what, code, *words, **environment):
    """Whether a process ends with an error whose last line has these words."""
    done = process(code, **environment)
    last = (lines(done.stderr) or [""])[-1]
    ok(done.returncode == 1 and all(word in last for word in words), what, (done.returncode, done.stderr))


def slots():
    """What ort.h declares, beside ONNX Runtime's own header."""
    if not (include := os.environ.get("ORT_INCLUDE")):
        return skip("the slots of ort.h", "ORT_INCLUDE names no folder with onnxruntime_c_api.h, which wheels do not carry")
    compiled = subprocess.run(["cc", "-std=c11", "-fsyntax-only", f"-I{include}", models.HERE / "slots.c"], capture_output=True,
                              text=True)
    ok(not compiled.returncode, "the slots of ort.h are those of ONNX Runtime's header", compiled.stderr)


def alone():
    """The library for hosts in other languages, which has no symbols but those that ONNX Runtime asks for."""
    library = models.HERE.parent / "librapt_onnxruntime.so"
    if not library.exists():
        return skip("the library alone", "integrations/onnxruntime/build has not been run")
    done = process(f"""
import models, numpy as np, onnxruntime, rapt.onnxruntime
onnxruntime.register_execution_provider_library("rapt", {str(library)!r})
x = np.random.default_rng(0).standard_normal((1, 2, 3, 8), np.float32)
made = models.session(models.model("Attention", {{"q": x, "k": x, "v": x}}, ("y", ), {{}}), rapt=True)
print(sum(rapt.onnxruntime.taken(made).values()), models.run(made, {{"q": x, "k": x, "v": x}})[0].tobytes() == rapt.attention(x, x, x).tobytes())
print(open("/proc/self/maps").read().count("librapt_onnxruntime.so") > 0)""")
    ok(done.stdout.split() == ["1", "True", "True"], "the library alone serves, too, with the bits of rapt.attention", done)
    shown = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True).stdout.split()[2::3]
    options = rapt_onnxruntime.enable(rapt_onnxruntime.enable())
    proto = model("Attention", {n: np.ones((1, 2, 3, 8), np.float32) for n in "qkv"}, ("y", ), {})
    made = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    ok(sum(rapt_onnxruntime.taken(made).values()) == 1, "enable() of what is enabled changes nothing")
    ok(sorted(shown) == ["CreateEpFactories", "ReleaseEpFactory"], "... and shows two functions", shown)


def refused():
    wrong_versions()
    fails("no onnxruntime: a line that says what to install", "import sys; sys.modules['onnxruntime'] = None; import rapt.onnxruntime",
          "pip install onnxruntime")
    fails("an older onnxruntime: a line that names both versions",
          "import onnxruntime; onnxruntime.__version__ = '1.23.2'\nimport rapt.onnxruntime",
          "1.23.2", "1.24")
    made = """
import models, numpy as np, onnxruntime, rapt.onnxruntime
x = np.zeros((1, 2, 3, 8), np.float32)
proto = models.model("Attention", {"q": x, "k": x, "v": x}, ("y", ), {})
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.add_provider_for_devices(rapt.onnxruntime.devices(), THREADS)
onnxruntime.InferenceSession(proto.SerializeToString(), options)
"""
    for what, line, threads, environment in (
        ("RAPT_ISA of an unknown kernel", "rapt: RAPT_ISA: ", {}, {"RAPT_ISA": "nonsense"}),
        ("a number of threads that is none", "rapt: threads is not in 1..4096", {"threads": "many"}, {}),
        ("a report that cannot be written", "rapt: the file that the option report names", {"report": "/none/report"}, {}),
        ("an arithmetic that is none", "rapt: arith is neither exact nor bf16", {"arith": "int8"}, {}),
    ):  # up to 1.31, Python's InferenceSession prints the error and takes the CPU provider
        done = process(made.replace("THREADS", repr(threads)), **environment)
        said = [text for text in lines(done.stdout + done.stderr) if line in text]
        ok(
            len(said) == 1 and (done.returncode == 1 or "EP Error" in said[0]), f"{what}: a line",
            (done.returncode, done.stdout, done.stderr))

    r = Random(3)
    left = {
        "Attention of double": ("Attention", {n: r(1, 2, 5, 8).astype(np.float64)
                                              for n in "qkv"}, {}, ("y", )),
        "scores of padding": ("Attention", {**{n: r(1, 2, 5, 8)
                                               for n in "qkv"}, "nonpad": np.array([4])}, {}, ("y", "scores")),
        "a softmax in double": ("Attention", {n: r(1, 2, 5, 8)
                                              for n in "qkv"}, {"softmax_precision": 11}, ("y", )),
        "a window of 0": (GQA, {
            "q": r(1, 5, 32), "k": r(1, 5, 16), "v": r(1, 5, 16), "last": np.array([4], np.int32), "total":
            np.array(5, np.int32)
        }, {"num_heads": 4, "kv_num_heads": 2, "local_window_size": 0}, ("y", "present_k", "present_v")),
        "the scores of GroupQueryAttention": (GQA, {
            "q": r(1, 5, 32), "k": r(1, 5, 16), "v": r(1, 5, 16), "last": np.array([4], np.int32), "total":
            np.array(5, np.int32)
        }, {"num_heads": 4, "kv_num_heads": 2, "qk_output": 1}, ("y", "present_k", "present_v", "scores")),
    }
    for name, (op, inputs, attributes, outputs) in left.items():
        proto = model(op, inputs, outputs, attributes)
        made = session(proto, rapt=True)
        expected = run(session(proto, rapt=False), inputs)
        found = run(made, inputs)
        ok(not rapt_onnxruntime.taken(made) and all(np.array_equal(a, b) for a, b in zip(found, expected)),
           f"{name}: left to the CPU provider", rapt_onnxruntime.taken(made))
    done = process("""
import models, numpy as np
x = np.zeros((1, 2, 3, 8))
models.session(models.model("Attention", {"q": x, "k": x, "v": x}, ("y", ), {}), rapt=True, level=1)""")
    ok(any("rapt leaves Attention node to others: Q and K are not both" in line for line in lines(done.stderr)),
       "the session's log says what is left, and why", done.stderr)

    x = r(1, 3, 16)
    grouped = dict.fromkeys("qkv", x) | {"last": np.array([2], np.int32), "total": np.array(3, np.int32)}
    int8 = {"past_k": np.zeros((1, 2, 9, 8), np.int8), "past_v": np.zeros((1, 2, 9, 8), np.int8)}
    one, two, four = {"num_heads": 2}, {"num_heads": 2, "kv_num_heads": 2}, {n: r(1, 2, 3, 8) for n in "qkv"}
    turned = {"x": r(1, 2, 3, 8), "ids": np.zeros((1, 3), np.int64)}
    bad = {
        "channels that the heads do not divide": ("Attention", dict.fromkeys("qkv", x), {"q_num_heads": 3, "kv_num_heads":
                                                                                  3}, "heads"),
        "a mask of other queries": ("Attention", {**{n: r(1, 2, 3, 8)
                                                     for n in "qkv"}, "mask": r.coins(2, 3)}, {}, "attn_mask"),
        "nonpad_kv_seqlen above the keys": ("Attention", {**{n: r(1, 2, 3, 8)
                                                             for n in "qkv"}, "nonpad": np.array([4])}, {}, "nonpad_kv_seqlen"),
        "a position behind the tables": (ROTARY, {"x": x, "ids": np.array([[0, 1, 9]]), "cos": r(5, 8), "sin":
                                                  r(5, 8)}, {}, "position_ids"),
        "heads that are none": (MHA, dict.fromkeys("qkv", x), {"num_heads": 0}, "num_heads is 0"),
        "a cache without room": (GQA, {
            "q": r(1, 1, 32), "k": r(1, 1, 32), "v": r(1, 1, 32), "past_k": r(1, 2, 4, 16), "past_v": r(1, 2, 4, 16), "last":
            np.array([9], np.int32), "total": np.array(5, np.int32)
        }, {"num_heads": 2, "kv_num_heads": 2}, "seqlens_k"),
        "no number in total_sequence_length": (GQA, grouped | {"total": np.zeros(0, np.int32)}, two, "total_sequence_length is [0]"),
        "several total_sequence_lengths": (GQA, grouped | {"total": np.full(2, 3, np.int32)}, two, "total_sequence_length is [2]"),
        "a value without its key": (GQA, {n: v for n, v in grouped.items() if n != "k"} | {"q": r(1, 3, 48)}, two, "key is missing"),
        "a key without its value": (GQA, {n: v for n, v in grouped.items() if n != "v"}, two, "value is missing"),
        "no number in a scale": (GQA, grouped | int8 | {"k_scale": r(1, 0, 1, 1), "v_scale": r(1, 0, 1, 1)},
                                 two | {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}, "k_scale is [1, 0, 1, 1]"),
        "a bias without columns": (GQA, grouped | {"logit_bias": r(1, 1, 3, 0)}, two, "attention_bias has no columns"),
        "tables without columns": (GQA, grouped | {"cos": r(9, 0), "sin": r(9, 0)}, two | {"do_rotary": 1}, "cos_cache has no columns"),
        "tables without rows": (GQA, grouped | {"cos": r(0, 4), "sin": r(0, 4)}, two | {"do_rotary": 1}, "position"),
        "a part that is not said to be rotated": (ROTARY, turned | {"cos": r(9, 2), "sin": r(9, 2)}, {}, "4 channels of 8"),
        "tables of no channels": ("RotaryEmbedding", turned | {"cos": r(9, 0), "sin": r(9, 0)}, {}, "0 channels of 8"),
        "a value beside a key that has it inside": (MHA, {"q": x, "k": r(1, 3, 2, 2, 8), "v": x}, one, "value is given"),
        "no value": (MHA, {"q": x, "k": x}, one, "value is missing"),
        "values without channels": (MHA, {"q": x, "k": x, "v": r(1, 3, 0)}, one, "d_v = 0"),
        "a mask without columns": ("Attention", four | {"mask": np.zeros((3, 0), bool)}, {}, "attn_mask has 0 columns"),
        "a key_padding_mask without columns":
            (MHA, dict.fromkeys("qkv", x) | {"padding": np.zeros((1, 0), np.int32)}, one, "key_padding_mask is [1, 0]"),
        "an attention_bias without columns":
            (MHA, dict.fromkeys("qkv", x) | {"logit_bias": r(1, 2, 3, 0)}, one, "attention_bias is [1, 2, 3, 0]"),
        "a bias without elements": (MHA, dict.fromkeys("qkv", x) | {"bias": r(0)}, one, "bias is [0]"),
        "heads without channels": ("Attention", {n: r(1, 2, 3, 0) for n in "qkv"}, {}, "d_k = 0"),
        "heads of more channels than rapt has": ("Attention", {n: r(1, 1, 2, 1025)
                                                               for n in "qkv"}, {}, "1025"),
    }
    for name, (op, inputs, attributes, word) in bad.items():
        proto = model(op, inputs, ("y", "present_k", "present_v") if op == GQA else ("y", ), attributes)
        of_any_shape(proto)  # so that shape inference knows nothing
        try:
            run(session(proto, rapt=True), inputs)
            why = "it was done"
        except Exception as error:
            why = str(error)
        ok("rapt: " in why and word in why and len(lines(why)) == 1, f"{name}: refused in a line", why)


rapt_onnxruntime.devices()
if "--digests" in sys.argv:
    print_digests()
    sys.exit()
node_tests()
for make, count in (random_attention, 60), (random_multi_head, 60), (random_group_query, 80), (random_rotary, 24):
    for seed in range(count):
        make(seed)
only_rapt()
length_without_past()
empties()
kernels()
arithmetics()
encoder()
explained()
later_versions()
slots()
alone()
refused()
tap.done()
