#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rapt beside PyTorch, ONNX Runtime, JAX and NumPy: the cases of rapt-bench, in one run on one machine.

All peers work on the same values, turn by turn, and the median of a peer's turns counts. Each number of threads has a process of
its own, kept to as many CPUs. Before the first turn and after the last one each output is compared with float64. Writes
peers.json, peers.md and peers.png; `pip install -r bench/requirements-peers.txt` brings what it can use."""
import argparse
import concurrent.futures
import ctypes
import datetime
import functools
import importlib.metadata
import itertools
import json
import math
import multiprocessing
import os
import pathlib
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import typing

# Read when NumPy and PyTorch load, so a worker process gets them from its parent.
THREAD_VARIABLES = "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"

try:
    import numpy as np
except ImportError:
    sys.exit("peers.py: NumPy is needed: pip install numpy")

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
from rapt import _native as native

COLD_BYTES = 256 << 20  # as BENCH_COLD_BYTES
TURN_SECONDS = 0.02     # a peer's turn, unless one call takes longer
PAUSE_SECONDS = 0.01    # before a turn, as often as it takes for the threads of the peer before to sleep
BITS = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}  # NumPy has no bf16, so those are carried by their bits
TOLERANCE = {"f32": 1e-3, "f16": 2e-2, "bf16": 1e-1}              # an output further off than this is wrong, whatever its speed


class Case(typing.NamedTuple):
    name: str
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

    def work(self, element_bytes):
        """Bytes of K and V, or 2 d + 2 d operations for each attended pair."""
        if self.memory:
            return 2 * self.kv_heads * self.kv_len * self.d * element_bytes
        pairs = sum(range(self.offset + 1, self.kv_len + 1)) if self.causal else self.q_len * self.kv_len
        return self.heads * pairs * 4 * self.d


# As in cases.c.
CASES = [
    #     H Hkv    Sq    Skv    d  causal memory cold
    Case("P1", 12, 12, 128, 128, 64, False, False, False),
    Case("P2", 12, 12, 512, 512, 64, False, False, False),
    Case("P3", 32, 8, 1024, 1024, 128, True, False, False),
    Case("P4", 8, 8, 4096, 4096, 64, True, False, False),
    Case("P5", 8, 8, 4096, 4096, 128, False, False, False),
    Case("P6", 32, 8, 256, 4096, 128, True, False, False),
    Case("D1", 32, 8, 1, 4096, 128, False, True, True),
    Case("D2", 32, 8, 1, 32768, 128, False, True, True),
    Case("D3", 32, 32, 1, 4096, 128, False, True, True),
    Case("D4", 8, 1, 1, 8192, 256, False, True, True),
    Case("D5", 32, 8, 8, 4096, 128, True, False, True),
]


class Unsupported(Exception):
    """Why a peer sits a case out."""


# ---- Problems ----------------------------------------------------------------------------------------------------------------


def aligned(shape, dtype):
    """Zeros at a page boundary; NumPy asks for huge pages where an array is large, so that all see the same TLB."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 4096, np.uint8)
    start = -raw.ctypes.data % 4096
    return raw[start:start + size].view(dtype).reshape(shape)


def fill(shape, kind, seed):
    """The values of bench_fill: bell-shaped, multiples of 1/64, exact in each type."""
    def mix(x):
        x = (x ^ x >> np.uint32(16)) * np.uint32(0x7feb352d)
        x = (x ^ x >> np.uint32(15)) * np.uint32(0x846ca68b)
        return x ^ x >> np.uint32(16)
    bits = mix(mix(np.array([seed], np.uint32)) + np.arange(math.prod(shape), dtype=np.uint32))
    values = sum((bits >> np.uint32(8 * i) & np.uint32(127)).astype(np.int32) for i in range(4)) - 254
    out = aligned(shape, BITS[kind])
    values = (values / np.float32(64)).reshape(shape).astype(np.float32)
    out[...] = values.view(np.uint32) >> 16 if kind == "bf16" else values
    return out


def widened(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32) if bits.dtype == np.uint16 else bits


def tokens_first(x):
    """[head, token, channel] to [1, token, head, channel]."""
    out = aligned((1, x.shape[1], x.shape[0], x.shape[2]), x.dtype)
    out[0] = x.transpose(1, 0, 2)
    return out


class Problem:
    """A case in one type: Q as [head, token, channel], a list of caches (K, V) of equal values, and what should come out."""

    def __init__(self, case, kind, threads):
        self.case, self.kind, self.threads = case, kind, threads
        self.scale = 1 / math.sqrt(case.d)
        self.q = fill((case.heads, case.q_len, case.d), kind, 1)
        first = tuple(fill((case.kv_heads, case.kv_len, case.d), kind, seed) for seed in (2, 3))
        count = math.ceil(COLD_BYTES / (first[0].nbytes + first[1].nbytes)) if case.cold else 1
        self.caches = [first]
        for _ in range(count - 1):
            self.caches.append(tuple(aligned(x.shape, x.dtype) for x in first))
            for copy, x in zip(self.caches[-1], first):
                copy[...] = x
        self.work = case.work(self.q.itemsize)

    @functools.cached_property
    def mask(self):
        """True where a row sees a key."""
        return np.tri(self.case.q_len, self.case.kv_len, self.case.offset, dtype=bool)

    @functools.cached_property
    def sample(self):
        """Heads and rows that are compared: all of the small cases, some of each part of the large ones."""
        c = self.case
        return np.ix_(*(np.unique(np.linspace(0, n - 1, at_most).astype(int)) for n, at_most in ((c.heads, 12), (c.q_len, 128))))

    @functools.cached_property
    def expected(self):
        heads, rows = (index.ravel() for index in self.sample)
        out = np.empty((len(heads), len(rows), self.case.d))
        for at, head in enumerate(heads):
            q = widened(self.q[head, rows]).astype(np.float64)
            k, v = (widened(x[head // self.case.group]).astype(np.float64) for x in self.caches[0])
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
# setup(problem) makes everything that can be made before the first call, and returns two functions: run(indices) does one call on
# the cache of each index and returns the last result, and heads_first(result) is that as NumPy's [head, token, channel].


class Rapt:
    """The shared library, and the repository's own pool for more than one thread."""
    packages = ()
    TYPES = {"f32": native.F32, "f16": native.F16, "bf16": native.BF16}

    def __init__(self, options, threads):
        self.library = native.Library(os.path.abspath(options.library), Unsupported)
        self.version = self.library.c.rapt_version().decode()

    @functools.cached_property
    def isa(self):
        name = ctypes.c_char_p()
        self.library.c.rapt_isa_current(ctypes.byref(name))
        return name.value.decode()

    @functools.cached_property
    def pool_library(self):
        """librapt_pool is a static library: here it is as a shared one."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "pool.so")
            subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-O2", "-shared", "-fPIC", "-pthread", f"-I{ROOT}/include",
                            f"{ROOT}/dispatch/pool.c", self.library.c._name, "-o", path], check=True)
            pool = ctypes.CDLL(path)
        pool.rapt_pool_create.restype = ctypes.c_void_p
        pool.rapt_pool_create.argtypes = [ctypes.c_int64]
        return pool

    @functools.cache
    def pool(self, threads):
        return ctypes.c_void_p(self.pool_library.rapt_pool_create(threads))

    def setup(self, problem):
        case, library = problem.case, self.library
        desc = library.new(native.Desc, heads=case.heads, kv_heads=case.kv_heads, q_len=case.q_len, kv_len=case.kv_len,
                           d_k=case.d, d_v=case.d)
        layout = functools.partial(library.c.rapt_layout_bhsd, self.TYPES[problem.kind])
        desc.q = desc.o = layout(case.heads, case.q_len, case.d)
        desc.k = desc.v = layout(case.kv_heads, case.kv_len, case.d)
        desc.causal = native.CAUSAL_BOTTOM_RIGHT if case.causal else 0
        desc.threads = problem.threads
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


class Torch:
    """scaled_dot_product_attention, held to one backend."""
    packages = "torch",

    def __init__(self, options, threads, backend):
        import torch
        import torch.nn.attention
        torch.set_num_threads(threads)
        self.torch, self.backend = torch, getattr(torch.nn.attention.SDPBackend, backend)

    def tensor(self, x):
        from_numpy = self.torch.from_numpy
        return from_numpy(x.view(np.int16)).view(self.torch.bfloat16) if x.dtype == np.uint16 else from_numpy(x)

    def setup(self, problem):
        torch, case = self.torch, problem.case
        q = self.tensor(problem.q)[None]
        caches = [tuple(self.tensor(x)[None] for x in kv) for kv in problem.caches]
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

        def heads_first(out):
            return out[0].contiguous().view(torch.int16).numpy().view(np.uint16) if problem.kind == "bf16" else out[0].numpy()
        return run, heads_first


class OnnxRuntime:
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
        return run, lambda result: result.reshape(problem.case.q_len, problem.case.heads, problem.case.d).transpose(1, 0, 2)


class MultiHeadAttention(OnnxRuntime):
    def setup(self, problem):
        case = problem.case
        if case.group > 1:
            raise Unsupported("no GQA")
        if case.causal and case.offset:
            raise Unsupported("no causal mask with more keys than queries")
        session = self.session(problem, "MultiHeadAttention", ["q", "k", "v"], ["o"], num_heads=case.heads,
                               unidirectional=int(case.causal))
        q = tokens_first(problem.q).reshape(1, case.q_len, -1)
        out = aligned(q.shape, q.dtype)
        # K and V head by head, as it takes those of cross-attention: tokens first, it would transpose them in every call.
        return self.runner(problem, session, [{"q": q, "k": k[None], "v": v[None], "o": out} for k, v in problem.caches])


class GroupQueryAttention(OnnxRuntime):
    """Always causal. The last q_len tokens of K and V are the new ones, which it writes into the cache itself."""

    def setup(self, problem):
        case = problem.case
        if not case.causal and case.q_len > 1:
            raise Unsupported("always causal")
        names = ["q", "k", "v", "past_k", "past_v", "last#", "total#"]
        session = self.session(problem, "GroupQueryAttention", names, ["o", "present_k", "present_v"], num_heads=case.heads,
                               kv_num_heads=case.kv_heads)
        q, k_new, v_new = (tokens_first(x[:, -case.q_len:]).reshape(1, case.q_len, -1) for x in (problem.q, *problem.caches[0]))
        fixed = {"q": q, "k": k_new, "v": v_new, "o": aligned(q.shape, q.dtype), "last#": np.array([case.kv_len - 1], np.int32),
                 "total#": np.array([case.kv_len], np.int32)}
        caches = [(k[None], v[None]) for k, v in problem.caches]
        return self.runner(problem, session,
                           [{**fixed, "past_k": k, "past_v": v, "present_k": k, "present_v": v} for k, v in caches])


class Jax:
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
            out = np.asarray(out)[0].transpose(1, 0, 2)
            return np.ascontiguousarray(out).view(np.uint16) if problem.kind == "bf16" else out
        return run, heads_first


class NumPy:
    """Two matrix products for each key/value head, the softmax of the whole score matrix between them."""
    packages = "numpy",

    def __init__(self, options, threads):
        pass

    def setup(self, problem):
        case = problem.case
        if problem.kind != "f32":
            raise Unsupported("matrix products in f32 only")
        rows = case.group * case.q_len
        q = problem.q.reshape(case.kv_heads, rows, case.d)
        out, scores = aligned(q.shape, q.dtype), aligned((rows, case.kv_len), q.dtype)
        masked = np.tile(np.where(problem.mask, np.float32(0), np.float32(-math.inf)), (case.group, 1)) if case.causal else None

        def run(indices):
            for i in indices:
                for head, (k, v) in enumerate(zip(*problem.caches[i])):
                    np.matmul(q[head], k.T, out=scores)
                    np.multiply(scores, np.float32(problem.scale), out=scores)
                    if masked is not None:
                        np.add(scores, masked, out=scores)
                    np.subtract(scores, scores.max(1, keepdims=True), out=scores)
                    np.exp(scores, out=scores)
                    np.matmul(scores, v, out=out[head])
                    np.divide(out[head], scores.sum(1, keepdims=True), out=out[head])
            return out
        return run, lambda result: result.reshape(case.heads, case.q_len, case.d)


class Suite(typing.NamedTuple):
    """What is compared: cases have a name and memory (whether reading is what bounds them); problem(case, type, threads) has work,
    caches and error(output); a peer is a title, a class and its arguments."""
    title: str
    cases: list
    problem: type
    peers: dict


PEERS = {
    "rapt": ("rapt", Rapt, {}),
    "torch-flash": ("PyTorch SDPA, flash", Torch, {"backend": "FLASH_ATTENTION"}),
    "torch-math": ("PyTorch SDPA, math", Torch, {"backend": "MATH"}),
    "ort-mha": ("ONNX Runtime MHA", MultiHeadAttention, {}),
    "ort-gqa": ("ONNX Runtime GQA", GroupQueryAttention, {}),
    "jax": ("JAX", Jax, {}),
    "numpy": ("NumPy, two GEMMs", NumPy, {}),
}
ATTENTION = Suite("Attention", CASES, Problem, PEERS)


# ---- Measuring, in a process for each number of threads ------------------------------------------------------------------------


class Worker:
    """What a worker process keeps between cases."""

    def __init__(self, suite, options, threads):
        self.suite, self.options, self.threads = suite, options, threads

    @functools.cache
    def peer(self, name):
        _, peer, arguments = self.suite.peers[name]
        return peer(self.options, self.threads, **arguments)

    def bench(self, name, *flags):
        command = [self.options.bench, f"--benchmark_filter=^{name}$", *flags]
        return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout

    @functools.cache
    def limit_name(self, memory):
        names = self.bench(f"{'D1' if memory else 'P2'}/f32/[^/]*/t{self.threads}", "--benchmark_list_tests").split()
        if not names:
            raise Unsupported(f"{self.options.bench} has no case for {self.threads} threads")
        return names[0]  # the best instruction set's

    def limit(self, memory):
        """GB/s of reading or GFLOP/s in registers, as rapt-bench measures them now."""
        if not self.options.bench:
            return None
        out = json.loads(self.bench(self.limit_name(memory), "--benchmark_min_time=0.05", "--benchmark_format=json"))
        return out["benchmarks"][0]["limit"]

    def measure(self, case, kind):
        problem = self.suite.problem(case, kind, self.threads)
        entrants, left_out = {}, {}
        before = self.limit(case.memory)
        for name in self.options.peers:
            try:
                run, heads_first = self.peer(name).setup(problem)
                error = problem.error(heads_first(run([0])))
                if not error <= TOLERANCE[kind]:
                    raise Unsupported(f"wrong result, off by {error:.1g}")
                entrants[name] = Entrant(run, heads_first, error)
            except Exception as e:  # whatever it is: the others go on, and the reason is written down
                left_out[name] = (str(e) or type(e).__name__).splitlines()[0]
        self.take_turns(list(entrants.values()), itertools.cycle(range(len(problem.caches))))
        after = self.limit(case.memory)

        results = []
        for name, entrant in entrants.items():
            seconds = statistics.median(entrant.turns)
            rate = 1e-9 * problem.work / seconds
            limit = max(before, after) if before else None
            error = max(entrant.error, problem.error(entrant.heads_first(entrant.run([0]))))
            results.append({"case": case.name, "type": kind, "threads": self.threads, "peer": name, "seconds": seconds,
                            "unit": "GB/s" if case.memory else "GFLOP/s", "rate": rate, "limit": limit,
                            "share": rate / limit if limit else None, "max_error": error, "calls_per_turn": entrant.calls,
                            "turns": entrant.turns})
        return results, [{"case": case.name, "type": kind, "threads": self.threads, "peer": name, "why": why}
                         for name, why in left_out.items()]

    def take_turns(self, entrants, caches):
        """The peers share one sequence of caches, so that a peer never meets the one that its predecessor has just read."""
        for entrant in entrants:
            entrant.calls = max(1, math.ceil(TURN_SECONDS / entrant.time(caches, 1)))
        end = time.perf_counter() + self.options.seconds
        shuffle = random.Random(0).shuffle
        while entrants and (len(entrants[0].turns) < self.options.rounds or time.perf_counter() < end):
            shuffle(entrants)
            for entrant in entrants:
                wait_for_quiet()
                if entrant.calls > 1:
                    entrant.time(caches, entrant.calls)  # its threads wake up and find CPUs of their own, which takes 10 ms or more
                entrant.turns.append(entrant.time(caches, entrant.calls))


class Entrant:
    def __init__(self, run, heads_first, error):
        self.run, self.heads_first, self.error = run, heads_first, error
        self.calls, self.turns = 1, []

    def time(self, caches, calls):
        """Seconds of one call."""
        indices = list(itertools.islice(caches, calls))
        start = time.perf_counter()
        self.run(indices)
        return (time.perf_counter() - start) / calls


def wait_for_quiet():
    """Until no thread of this process spins any more: ONNX Runtime's do for 50 ms and longer, on a CPU that the next peer needs."""
    end = time.perf_counter() + 1
    spun = math.inf
    while spun > 0.1 * PAUSE_SECONDS and time.perf_counter() < end:
        before = time.process_time()
        time.sleep(PAUSE_SECONDS)
        spun = time.process_time() - before


def start_worker(*arguments):
    global worker
    worker = Worker(*arguments)


def measure(case, kind):
    return worker.measure(case, kind)


# ---- Reports -----------------------------------------------------------------------------------------------------------------


def cpu_name():
    try:
        found = re.search(r"model name\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def by(rows, *keys):
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[k] for k in keys), []).append(row)
    return groups


def markdown(suite, report):
    names = [name for name in suite.peers if any(row["peer"] == name for row in report["results"])]
    lines = [f"{report['cpu']}, {report['date']}. " + ", ".join(f"{k} {v}" for k, v in report["versions"].items()) + ".", "",
             "Each cell: rate, its share of the limit measured in the same run, largest absolute difference from float64. "
             "Limits: the f32 peak of the best instruction set (GFLOP/s), or the bandwidth of reading (GB/s). The fastest is in "
             "bold; the last column is rapt's rate over that of the fastest other.", "",
             "| case | type | threads | limit | " + " | ".join(suite.peers[name][0] for name in names) + " | rapt / fastest other |",
             "|---|---|---|---|" + "---|" * (len(names) + 1)]
    for (case, kind, threads), rows in by(report["results"], "case", "type", "threads").items():
        rows = {row["peer"]: row for row in rows}
        best = max(row["rate"] for row in rows.values())
        others = [row["rate"] for name, row in rows.items() if name != "rapt"]
        some = next(iter(rows.values()))
        cells = [case, kind, str(threads), f"{some['limit']:.4g} {some['unit']}" if some["limit"] else some["unit"]]
        for name in names:
            if name not in rows:
                cells.append("")
                continue
            row = rows[name]
            rate = f"{row['rate']:.3g}"
            cells.append(", ".join([f"**{rate}**" if row["rate"] == best else rate] +
                                   ([f"{100 * row['share']:.0f} %"] if row["share"] else []) + [f"{row['max_error']:.0e}"]))
        cells.append(f"{rows['rapt']['rate'] / max(others):.2f}" if "rapt" in rows and others else "")
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    for (name, why), rows in by(report["left_out"], "peer", "why").items():
        where = ", ".join(f"{case} {kind}" for case, kind in by(rows, "case", "type"))
        lines.append(f"- {suite.peers[name][0]}: {why} ({where})")
    return "\n".join(lines) + "\n"


def plot(suite, report, path):
    """A panel for each type and number of threads: the cases side by side, a bar for each peer."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    panels = by(report["results"], "type", "threads")
    names = [name for name in suite.peers if any(row["peer"] == name for row in report["results"])]
    figure, axes = pyplot.subplots(len(panels), squeeze=False, figsize=(14, 0.6 + 3 * len(panels)), layout="constrained")
    for ax, ((kind, threads), rows) in zip(axes[:, 0], panels.items()):
        cases = list(dict.fromkeys(row["case"] for row in rows))
        best = {case: max(row["rate"] for row in rows if row["case"] == case) for case in cases}
        for n, name in enumerate(names):
            own = [row for row in rows if row["peer"] == name]
            if not own:
                continue
            at = [cases.index(row["case"]) + (n - (len(names) - 1) / 2) * 0.86 / len(names) for row in own]
            share = [100 * (row["share"] or row["rate"] / best[row["case"]]) for row in own]
            ax.bar(at, share, 0.86 / len(names), color=f"C{n}", label=suite.peers[name][0])
        ax.set_xticks(range(len(cases)), cases)
        ax.set_ylabel("% of the limit" if rows[0]["limit"] else "% of the fastest")
        ax.set_title(f"{kind}, {threads} thread" + "s" * (threads > 1))
        ax.grid(axis="y", alpha=0.4)
        ax.set_axisbelow(True)
    handles = {label: handle for ax in axes[:, 0] for handle, label in zip(*ax.get_legend_handles_labels())}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles))
    figure.suptitle(f"{suite.title} on {report['cpu']}, {report['date']}")
    figure.savefig(path, dpi=110)


def place(suite, row):
    orders = (("case", [case.name for case in suite.cases]), ("type", list(BITS)), ("threads", range(1 << 20)),
              ("peer", list(suite.peers)))
    return [order.index(row[key]) for key, order in orders]


def write(suite, report, out):
    (out / "peers.json").write_text(json.dumps(report, indent=1) + "\n")
    (out / "peers.md").write_text(markdown(suite, report))


# ---- The command -------------------------------------------------------------------------------------------------------------


def fail(why):
    print(f"{os.path.basename(sys.argv[0])}: {why}", file=sys.stderr)
    sys.exit(2)


def note(why):
    print(f"{os.path.basename(sys.argv[0])}: {why}", file=sys.stderr, flush=True)


class Parser(argparse.ArgumentParser):
    def error(self, message):
        fail(message)


def names_of(allowed, convert=str):
    def parse(text):
        names = [convert(name) for name in text.split(",")]
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(map(str, allowed))}")
        return list(dict.fromkeys(names))
    return parse


def parse_options(suite, description):
    cpus = sorted(os.sched_getaffinity(0))
    cases = {case.name: case for case in suite.cases}
    parser = Parser(description=description, allow_abbrev=False)
    parser.add_argument("--out", required=True, type=pathlib.Path, metavar="DIR", help="folder for the results")
    parser.add_argument("--cases", type=names_of(cases), default=list(cases), metavar="NAME,...", help=f"of {', '.join(cases)} (default: all)")
    parser.add_argument("--types", type=names_of(BITS), default=list(BITS), metavar="f32,...", help="default: f32,f16,bf16")
    parser.add_argument("--threads", type=names_of(range(1, len(cpus) + 1), int), default=[n for n in (1, 2) if n <= len(cpus)],
                        metavar="N,...", help="default: 1,2")
    parser.add_argument("--peers", type=names_of(suite.peers), default=list(suite.peers), metavar="NAME,...",
                        help=f"of {', '.join(suite.peers)} (default: all)")
    parser.add_argument("--seconds", type=float, default=3, help="at least this long for a case, all peers together (default: 3)")
    parser.add_argument("--rounds", type=int, default=5, help="at least this many turns of each peer (default: 5)")
    parser.add_argument("--library", default=str(ROOT / "build/dispatch/librapt.so"), help="default: build/dispatch/librapt.so")
    parser.add_argument("--bench", metavar="PATH", help="rapt-bench, which measures the limits; without it no shares")
    options = parser.parse_args()
    options.cases = [cases[name] for name in options.cases]
    if options.rounds < 1:
        fail("--rounds: at least 1")
    return options, cpus


def present(suite, options):
    """The versions of the peers that are here; the others are taken off the list."""
    versions = {"Python": platform.python_version()}
    for name in list(options.peers):
        title, peer, _ = suite.peers[name]
        try:
            versions.update((package, importlib.metadata.version(package)) for package in peer.packages)
        except importlib.metadata.PackageNotFoundError as e:
            note(f"{title} is left out: the Python package {e.name} is not installed")
            options.peers.remove(name)
    if "rapt" in options.peers:
        try:
            rapt = Rapt(options, 1)
        except OSError as e:
            fail(f"--library: {e}")
        try:
            versions["rapt"] = f"{rapt.version} ({rapt.isa})"
        except Unsupported as e:
            fail(e)
    if not options.peers:
        fail("no peer is left")
    if options.bench and not os.access(options.bench, os.X_OK):
        fail(f"--bench: {options.bench} cannot be run")
    return versions


def main(suite, description):
    options, cpus = parse_options(suite, description)
    report = {"cpu": cpu_name(), "system": platform.platform(), "date": str(datetime.date.today()), "versions": present(suite, options),
              "results": [], "left_out": []}
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        write(suite, report, options.out)
    except OSError as e:
        fail(f"--out: {e}")
    for threads in options.threads:
        os.sched_setaffinity(0, cpus[:threads])
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
        spawn = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(1, spawn, start_worker, (suite, options, threads)) as pool:
            for case, kind in itertools.product(options.cases, options.types):
                try:
                    results, left_out = pool.submit(measure, case, kind).result()
                except Exception as e:  # the worker died, or its limits could not be measured; what is done is written
                    fail(f"{case.name} {kind}, threads {threads}: {e}")
                report["results"] = sorted(report["results"] + results, key=functools.partial(place, suite))
                report["left_out"] = sorted(report["left_out"] + left_out, key=functools.partial(place, suite))
                write(suite, report, options.out)
                print(f"{case.name} {kind} t{threads}:", *(f"{row['peer']} {row['rate']:.3g}" for row in results),
                      results[0]["unit"] if results else "nobody", flush=True)
    try:
        plot(suite, report, options.out / "peers.png")
    except ImportError:
        note("peers.png is left out: the Python package matplotlib is not installed")
    lost = [row for row in report["left_out"] if row["peer"] == "rapt"]
    for row in lost:
        note(f"rapt failed at {row['case']} {row['type']}, threads {row['threads']}: {row['why']}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main(ATTENTION, __doc__))
