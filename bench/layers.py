#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rapt_linear and rapt_mha beside PyTorch's nn.Linear and nn.MultiheadAttention, ONNX Runtime and NumPy, in one run on one machine,
as peers.py measures: the same values, turn by turn, medians, each output compared with float64, and bit for bit with that of another
number of threads. Writes peers.json, peers.md and peers.png; `pip install -r bench/requirements-peers.txt` brings what it can use."""
import ctypes
import functools
import math
import sys
import typing

import numpy as np

import peers
from beside import Peer, Suite, Unsupported, command
from beside.values import COLD_BYTES, aligned, fill, widened
from rapt import _native as native


class Case(typing.NamedTuple):
    name: str
    tokens: int
    width: int
    out: int       # channels of a linear layer's output; of multi-head attention its width again
    heads: int     # 0: a linear layer, else multi-head self-attention with this number of heads, of one sequence
    memory: bool   # bound by reading the weights, else by arithmetic

    @property
    def operations(self):
        """Two for each product."""
        linear = self.tokens * self.width * self.out * (4 if self.heads else 1)
        return 2 * linear + (4 * self.tokens * self.tokens * self.width if self.heads else 0)


# As in layers.c.
CASES = [
    Case("L128-384x384", 128, 384, 384, 0, False),
    Case("L128-768x768", 128, 768, 768, 0, False),
    Case("L128-4096x4096", 128, 4096, 4096, 0, False),
    Case("L512-384x1536", 512, 384, 1536, 0, False),
    Case("L512-768x3072", 512, 768, 3072, 0, False),
    Case("L512-4096x4096", 512, 4096, 4096, 0, False),
    Case("L1-384x384", 1, 384, 384, 0, True),
    Case("L1-768x768", 1, 768, 768, 0, True),
    Case("L1-4096x4096", 1, 4096, 4096, 0, True),
    Case("L4-4096x4096", 4, 4096, 4096, 0, True),
    Case("MHA-768", 512, 768, 768, 12, False),
    Case("MHA-384", 128, 384, 384, 12, False),
]


class Problem:
    """X as [token, channel]; caches: as many copies of the weights as it takes for each call to find its own in memory, each the
    weight [out, in] and the bias of the linear layer, or those of the packed projections and of the output's."""

    def __init__(self, case, kind, threads):
        self.case, self.kind, self.threads = case, kind, threads
        self.x = fill((case.tokens, case.width), kind, 1)
        rows = [case.out] if not case.heads else [3 * case.width, case.width]
        first = []
        for i, out in enumerate(rows):
            weight = self.scaled(fill((out, case.width), kind, 2 + i))
            first += [weight, fill((out,), kind, 5 + i)]
        count = math.ceil(COLD_BYTES / first[0].nbytes) if case.memory else 1
        self.caches = [first] + [[x.copy() for x in first] for _ in range(count - 1)]
        y_bytes = case.tokens * case.out * self.x.itemsize
        self.bytes = self.x.nbytes + sum(w.nbytes for w in first[::2]) + y_bytes
        self.operations, self.cold = case.operations, case.memory

    def scaled(self, x):
        """Weights of a trained model's size: a power of two of what fill gives, exact in each type."""
        factor = 2.0 ** -round(math.log2(self.case.width) / 2)
        if x.dtype == np.uint16:
            return ((widened(x) * np.float32(factor)).view(np.uint32) >> 16).astype(np.uint16)
        return (x * x.dtype.type(factor)).astype(x.dtype)

    @functools.cached_property
    def expected(self):
        case = self.case
        wide = [widened(x).astype(np.float64) for x in self.caches[0]]
        x = widened(self.x).astype(np.float64)
        y = x @ wide[0].T + wide[1]
        if not case.heads:
            return y
        q, k, v = (part.reshape(case.tokens, case.heads, -1).transpose(1, 0, 2) for part in np.split(y, 3, axis=1))
        logits = q @ k.transpose(0, 2, 1) / math.sqrt(case.width / case.heads)
        weights = np.exp(logits - logits.max(2, keepdims=True))
        o = weights @ v / weights.sum(2, keepdims=True)
        return o.transpose(1, 0, 2).reshape(case.tokens, case.width) @ wide[2].T + wide[3]

    def error(self, out):
        """Largest absolute difference from float64; NaN counts as infinite."""
        error = np.abs(widened(out).astype(np.float64) - self.expected).max()
        return math.inf if np.isnan(error) else float(error)


class Rapt(peers.Rapt):
    def __init__(self, *args, prepacked=False, **options):
        super().__init__(*args, **options)
        self.prepacked = prepacked

    def setup(self, problem):
        if self.arith == native.BF16_DOT and problem.kind != "bf16":
            raise Unsupported("bf16 only")
        if self.prepacked and problem.case.memory and self.arith != native.BF16_DOT:
            raise Unsupported("few tokens read weights as they lie")
        return (self.mha if problem.case.heads else self.linear)(problem)

    def packed(self, plan, weight):
        """The weights as rapt_linear_prepack_run lays them out, or None where they stay as they are."""
        if not self.prepacked:
            return None
        size = ctypes.c_size_t()
        self.library.c.rapt_linear_prepacked_size(plan, ctypes.byref(size))
        to = aligned((size.value,), np.uint8)
        args = self.library.new(native.LinearPrepackArgs, weight=weight, prepacked=to, prepacked_bytes=size.value)
        self.library.c.rapt_linear_prepack_run(plan, ctypes.byref(args))
        return to

    def rows(self, problem, tokens, channels):
        return self.library.c.rapt_layout_bshd(self.TYPES[problem.kind], 1, tokens, channels)

    def linear(self, problem):
        library, case, threads = self.library, problem.case, problem.threads
        plan = library.plan(library.new(
            native.LinearDesc, arith=self.arith, tokens=case.tokens, in_=case.width, out=case.out,
            x=self.rows(problem, case.tokens, case.width), y=self.rows(problem, case.tokens, case.out),
            weight=self.rows(problem, case.out, case.width)))
        workspace = library.workspace(plan, threads)
        out = aligned((case.tokens, case.out), problem.x.dtype)
        bias = widened(problem.caches[0][1]).astype(np.float32)
        calls = [library.new(native.LinearArgs, x=problem.x, weight=weights[0], bias=bias, y=out, workspace=workspace,
                             workspace_bytes=len(workspace),
                             prepacked=self.packed(plan, weights[0])) for weights in problem.caches]
        rest, function = (0, 1), library.c.rapt_linear_run_share
        if threads > 1:
            rest = threads, self.pool_library.rapt_pool_for, self.pool(threads)
            function = library.c.rapt_linear_run_parallel

        def run(indices):
            for i in indices:
                function(plan, ctypes.byref(calls[i]), *rest)
            return out
        return run, lambda out: out

    def mha(self, problem):
        library, case, threads = self.library, problem.case, problem.threads
        d, rows = case.width // case.heads, self.rows(problem, case.tokens, case.width)
        attention = library.new(native.Desc, heads=case.heads, kv_heads=case.heads, q_len=case.tokens, d_k=d, d_v=d,
                                arith=self.arith, threads=threads)
        plan = library.plan(library.new(
            native.MhaDesc, attention=attention, arith=self.arith, x_width=case.width, packed=1, x=rows, out=rows,
            wq=self.rows(problem, 3 * case.width, case.width), wo=self.rows(problem, case.width, case.width)))
        workspace = library.workspace(plan, threads)
        out = aligned((case.tokens, case.width), problem.x.dtype)
        packed, packed_bias, wo, bias = problem.caches[0]
        packed_bias, bias = (widened(x).astype(np.float32) for x in (packed_bias, bias))
        args = library.new(native.MhaArgs, x=problem.x, out=out, wq=packed, bq=packed_bias, wo=wo, bo=bias,
                           workspace=workspace, workspace_bytes=len(workspace))
        matrix = library.plan(library.new(native.LinearDesc, arith=self.arith, in_=case.width, out=case.width, x=rows, y=rows,
                                          weight=rows))
        for i, name in enumerate(("wq", "wk", "wv")):
            setattr(args, f"{name}_prepacked", self.packed(matrix, packed[i * case.width:]))
        args.wo_prepacked = self.packed(matrix, wo)
        rest = () if threads == 1 else (threads, self.pool_library.rapt_pool_for, self.pool(threads))
        function = library.c.rapt_mha_run if threads == 1 else library.c.rapt_mha_run_parallel

        def run(indices):
            for _ in indices:
                function(plan, ctypes.byref(args), *rest)
            return out
        return run, lambda out: out


class Torch(peers.TorchPeer):
    """nn.Linear and nn.MultiheadAttention as they are used for inference: evaluation mode, inference mode, no weights wanted, which
    lets the latter take its fast path."""

    def setup(self, problem):
        torch, case = self.torch, problem.case
        x, modules = self.tensor(problem.x), []
        for weights in problem.caches:
            tensors = [self.tensor(w) for w in weights]
            if case.heads:
                module = torch.nn.MultiheadAttention(case.width, case.heads, batch_first=True, dtype=x.dtype)
                module.in_proj_weight.data, module.in_proj_bias.data = tensors[:2]
                module.out_proj.weight.data, module.out_proj.bias.data = tensors[2:]
            else:
                module = torch.nn.Linear(case.width, case.out, dtype=x.dtype, device="meta").to_empty(device="cpu")
                module.weight.data, module.bias.data = tensors
            modules.append(module.eval())

        def run(indices):
            with torch.inference_mode():
                for i in indices:
                    out = modules[i](x[None], x[None], x[None], need_weights=False)[0][0] if case.heads else modules[i](x)
            return out
        return run, self.array


class OnnxRuntime(peers.OnnxRuntime):
    """Gemm with constant weights, which it packs beforehand."""

    def setup(self, problem):
        case = problem.case
        if problem.kind != "f32":
            raise Unsupported("f32 only")
        if case.heads:
            raise Unsupported("no operator of all of multi-head attention for weights of this layout")
        helper, types = self.onnx.helper, self.onnx.TensorProto
        sessions = []
        numpy_helper = self.onnx.numpy_helper
        for weight, bias in problem.caches:
            node = helper.make_node("Gemm", ["x", "w", "b"], ["o"], transB=1)
            graph = helper.make_graph([node], "linear", [helper.make_tensor_value_info("x", types.FLOAT, None)],
                                      [helper.make_tensor_value_info("o", types.FLOAT, None)],
                                      [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")])
            model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
            options = self.runtime.SessionOptions()
            options.intra_op_num_threads, options.inter_op_num_threads = problem.threads, 1
            sessions.append(self.runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]))
        out = aligned((case.tokens, case.out), np.float32)
        bindings = []
        for session in sessions:
            binding = session.io_binding()
            values = self.runtime.OrtValue.ortvalue_from_numpy(problem.x), self.runtime.OrtValue.ortvalue_from_numpy(out)
            binding.bind_ortvalue_input("x", values[0])
            binding.bind_ortvalue_output("o", values[1])
            bindings.append((session, binding, values))

        def run(indices):
            for i in indices:
                session, binding, _ = bindings[i]
                session.run_with_iobinding(binding)
            return out
        return run, lambda out: out


class NumPy(Peer):
    packages = "numpy",

    def setup(self, problem):
        if problem.kind != "f32":
            raise Unsupported("matrix products in f32 only")
        if problem.case.heads:
            raise Unsupported("no attention")
        out = aligned((problem.case.tokens, problem.case.out), np.float32)

        def run(indices):
            for i in indices:
                weight, bias = problem.caches[i]
                np.matmul(problem.x, weight.T, out=out)
                np.add(out, bias, out=out)
            return out
        return run, lambda out: out


LAYERS = Suite("Linear layers and multi-head attention", CASES, Problem, {
    "rapt": ("rapt", Rapt, {}),
    "rapt-prepacked": ("rapt, weights prepacked", Rapt, {"prepacked": True}),
    "rapt-bf16": ("rapt, bf16 arithmetic", Rapt, {"arith": "bf16"}),
    "rapt-bf16-prepacked": ("rapt, bf16 arithmetic, weights prepacked", Rapt, {"arith": "bf16", "prepacked": True}),
    "torch": ("PyTorch", Torch, {}),
    "ort": ("ONNX Runtime", OnnxRuntime, {}),
    "numpy": ("NumPy", NumPy, {}),
})

if __name__ == "__main__":
    sys.exit(command.main(LAYERS, __doc__))
