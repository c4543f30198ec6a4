#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rapt.jax beside jax.nn, in TAP: random problems, transformations, gradients, the same bits whatever the threads, and refusals.
Usage: test_jax.py, with rapt in PYTHONPATH or installed. With --digests, what one of its processes prints."""
import concurrent.futures
import functools
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "tests/host"))
import processes
import tap
from tap import ok

DEVICES = 4
os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count={DEVICES}")
os.environ["JAX_PLATFORMS"] = "cpu"
try:
    import jax
except ImportError as error:
    tap.absent("rapt.jax", error)
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import rapt
import rapt.jax
from rapt import _jax_build as building
from rapt.jax import dot_product_attention as attention

# How far a result x may be from jax.nn's in float32, times 1 + |x|: of float32 twice the error of sums of other orders, and of the
# others half a unit in the last place besides.
TOLERANCES = {"float32": 4e-6, "float16": 6e-4, "bfloat16": 5e-3}
PROBLEMS = {"float32": 12, "float16": 6, "bfloat16": 6}  # compiling jax.nn's takes most of the time


def normal(random, shape, dtype="float32"):
    return jnp.asarray(random.standard_normal(shape), dtype)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and np.asarray(a).tobytes() == np.asarray(b).tobytes()


def off(got, expected, dtype, rows=None):
    """The largest difference as a multiple of the tolerance, in the rows that count."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    if not np.isfinite(got).all():
        return np.inf
    differences = np.abs(got - expected) / (1 + np.abs(expected)) / TOLERANCES[dtype]
    return float((differences if rows is None else differences[rows]).max(initial=0))


# ---- Random problems ---------------------------------------------------------------------------------------------------------


def problem(seed, dtype):
    """Arrays and options; and which rows have keys."""
    random = np.random.default_rng(seed)
    batch, group, kv_heads = (int(random.integers(1, 4)) for _ in range(3))
    heads, channels = group * kv_heads, int(random.integers(1, 97))
    queries, keys = (int(n) for n in random.choice([1, 2, 7, 33, 64, 130, 300], 2))
    has = random.random(8) < 0.4
    given = {}

    def columns():
        return tuple(n if random.random() < 0.7 else 1 for n in (batch, heads, queries, keys))
    if has[0]:
        given["bias"] = normal(random, columns(), random.choice(["float32", dtype]))
    if has[1]:
        given["mask"] = jnp.asarray(random.random(columns()) < 0.8)
    if has[2]:
        given["scale"] = float(random.uniform(0.05, 0.5))
    if has[3]:
        given["is_causal"] = True
    if has[4]:
        given["query_seq_lengths"] = jnp.asarray(random.integers(0, queries + 1, batch), jnp.int32)
    if has[5]:  # also lengths that no array has
        given["key_value_seq_lengths"] = jnp.asarray(random.integers(-1, keys + 3, batch), jnp.int32)
    if has[6]:
        given["local_window_size"] = int(random.integers(0, 40))
    elif has[7]:
        given["local_window_size"] = tuple(int(n) for n in random.integers(-2, 40, 2))
    arrays = (normal(random, (batch, queries, heads, channels), dtype), normal(random, (batch, keys, kv_heads, channels), dtype),
              normal(random, (batch, keys, kv_heads, channels), dtype))
    return arrays, given


def attended(shape, given):
    """Which keys are attended, [batch, heads, queries, keys], as jax.nn documents it."""
    _batch, _heads, queries, keys = shape
    i, j = np.arange(queries)[:, None], np.arange(keys)
    out = np.ones(shape, bool)
    if "mask" in given:
        out &= np.asarray(given["mask"])
    if given.get("is_causal"):
        out &= j <= i
    for name, index in (("query_seq_lengths", i), ("key_value_seq_lengths", j)):
        if name in given:
            out &= index < np.asarray(given[name])[:, None, None, None]
    window = given.get("local_window_size")
    if window is not None:
        left, right = (window, window) if isinstance(window, int) else window
        out &= (j >= i - left) & (j <= i + right)
    return out


def reference(arrays, given):
    """jax.nn's in float32."""
    given = {name: x.astype(np.float32) if name == "bias" else x for name, x in given.items()}
    return jax.nn.dot_product_attention(*(x.astype(np.float32) for x in arrays), **given, return_residual=True)


def random_problems():
    for dtype in TOLERANCES:
        worst, empty, wrong = 0.0, 0, []
        for seed in range(PROBLEMS[dtype]):
            (q, k, v), given = problem(seed, dtype)
            o, lse = attention(q, k, v, **given, return_residual=True)
            expected_o, expected_lse = reference((q, k, v), given)
            rows = attended((q.shape[0], q.shape[2], q.shape[1], k.shape[1]), given).any(-1).swapaxes(1, 2)
            error = max(off(o, expected_o, dtype, rows), off(jnp.where(rows, lse, 0), expected_lse, dtype, rows))
            worst, empty = max(worst, error), empty + int((~rows).sum())
            if (error > 1 or np.asarray(o, np.float32)[~rows].any() or not np.isneginf(np.asarray(lse, np.float32)[~rows]).all()
                    or o.dtype != q.dtype or lse.dtype != q.dtype or lse.shape != q.shape[:-1]
                    or not same(o, attention(q, k, v, **given))):
                wrong.append(f"{seed}: {error:.2f} {q.shape} {k.shape} { {n: np.shape(x) for n, x in given.items()} }")
        ok(not wrong and empty, f"{dtype}: {PROBLEMS[dtype]} random problems are jax.nn's within {worst:.2f} of the tolerance, and rows without keys are 0",
           "\n".join(wrong) or "no row was without keys")


# ---- Bits --------------------------------------------------------------------------------------------------------------------


# Types, queries, keys, whether the mask is causal: problems with work for several threads, one of decoding, and a small one.
CASES = ("float32", 130, 700, True), ("float16", 130, 700, True), ("float32", 1, 3000, False), ("bfloat16", 9, 40, False)


def in_ways(f, q, k, v, causal):
    """What a function like jax.nn.dot_product_attention says of a batch, in ways that compute the same."""
    call = jax.jit(functools.partial(f, is_causal=causal))
    yield "in a batch", call(q, k, v)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = {np.asarray(x).tobytes() for x in pool.map(lambda _: call(q, k, v), range(6))}
    yield "many calls at once", np.frombuffer(b"".join(sorted(found)), np.uint8)
    yield "each entry alone", np.concatenate([call(*(x[i:i + 1] for x in (q, k, v))) for i in range(len(q))])

    def step(cache, i):
        token = jax.lax.dynamic_slice_in_dim(q, i, 1, 1)
        return cache, f(token, *cache, key_value_seq_lengths=jnp.full(len(q), i + 1 if causal else k.shape[1], jnp.int32))[:, 0]
    yield "token by token", jnp.swapaxes(jax.jit(lambda k, v: jax.lax.scan(step, (k, v), jnp.arange(q.shape[1]))[1])(k, v), 0, 1)


def print_digests():
    """jax.nn's attention, and rapt's."""
    found = {}
    for dtype, queries, keys, causal in CASES:
        q, k, v = (jnp.asarray(processes.normal(n, 2, *shape, 64), dtype) for n, shape in enumerate(((queries, 8), (keys, 2), (keys, 2))))
        own = [x.astype("float32") if dtype == "float16" else x for x in (q, k, v)]  # since jax.nn's of float16 is not for CPUs
        pairs = zip(in_ways(jax.nn.dot_product_attention, *own, causal), in_ways(attention, q, k, v, causal))
        found[f"{dtype}, {queries} on {keys}"] = {
            way: [processes.digest(plain), processes.digest(ours)] for (way, plain), (_, ours) in pairs}
    print(json.dumps(found))


def bits():
    flags = ["--xla_cpu_multi_thread_eigen=false", f"--xla_force_host_platform_device_count={DEVICES}"]
    if platform.machine() == "x86_64":
        flags.append("--xla_cpu_max_isa=AVX")
    of = processes.environments(RAPT_ISA=processes.kernels(), NPROC=["1", "5"], XLA_FLAGS=flags)
    processes.compare("jax.nn.dot_product_attention", processes.results(__file__, of))
    q, k, v = (processes.normal(n, 2, tokens, 8, 64) for n, tokens in enumerate((130, 700, 700)))
    v *= np.float32(1e-40)  # XLA's own operations would take it for 0
    ok(same(attention(*map(jnp.asarray, (q, k, v))), jnp.asarray(rapt.attention(q, k, v, layout="bshd"))), "denormal numbers are kept")
    random = np.random.default_rng(3)
    q, k, v = normal(random, (2, 70, 8, 40)), normal(random, (2, 90, 2, 40)), normal(random, (2, 90, 2, 24))
    ours = rapt.attention(*(np.asarray(x) for x in (q, k, v)), layout="bshd", causal="top-left")
    ok(same(attention(q, k, v, is_causal=True), ours), "the bits of rapt.attention, also with other channels in V")
    alone = attention(q[1:], k[1:], v[1:], key_value_seq_lengths=jnp.array([33], jnp.int32))
    ok(same(attention(q, k, v, key_value_seq_lengths=jnp.array([90, 33], jnp.int32))[1:], alone), "alone, and in a batch")
    ok(same(attention(q[0], k[0], v[0]), attention(q, k, v)[0]), "without a batch dimension")
    ours = rapt.attention(*(np.asarray(x) for x in (q, k, v)), layout="bshd", arith="bf16")
    ok(same(attention(q, k, v, arith="bf16"), ours) and not same(attention(q, k, v), ours), "in bf16 arithmetic, likewise")


# ---- Transformations ---------------------------------------------------------------------------------------------------------


def transformations():
    random = np.random.default_rng(5)
    q, k, v = normal(random, (3, 2, 17, 6, 16)), normal(random, (3, 2, 23, 3, 16)), normal(random, (3, 2, 23, 3, 16))
    mask, lengths = jnp.asarray(random.random((2, 6, 17, 23)) < 0.7), jnp.array([[5, 23], [0, 7], [11, 1]], jnp.int32)
    loop = jnp.stack([attention(q[n], k[n], v[n], mask=mask, key_value_seq_lengths=lengths[n]) for n in range(3)])
    mapped = jax.vmap(lambda q, k, v, n: attention(q, k, v, mask=mask, key_value_seq_lengths=n))
    ok(same(mapped(q, k, v, lengths), loop), "vmap, with a mask that is not mapped")
    ok(same(jax.jit(mapped)(q, k, v, lengths), loop), "jit of vmap")
    loop = jnp.stack([attention(q[n], k[0], v[0], is_causal=True) for n in range(3)])
    ok(same(jax.vmap(lambda q: attention(q, k[0], v[0], is_causal=True))(q), loop), "vmap over queries alone")
    loop = jnp.stack([attention(q[0], k[n], v[n], bias=mask[n % 2, None]) for n in range(3)])
    biases = jnp.stack([mask[n % 2, None] for n in range(3)])
    ok(same(jax.vmap(lambda k, v, b: attention(q[0], k, v, bias=b))(k, v, biases), loop), "vmap over keys, values and biases")
    twice = jax.vmap(jax.vmap(attention, in_axes=(0, 0, None)), in_axes=(1, 1, None))(q, k, v[0, 0])
    loop = jnp.stack([jnp.stack([attention(q[n, m], k[n, m], v[0, 0]) for n in range(3)]) for m in range(2)])
    ok(same(twice, loop), "vmap of vmap, over another axis, and values of all")
    many = jax.vmap(jax.vmap(attention, in_axes=(None, 0, 0)), in_axes=(0, None, None))(q, k, v)
    loop = jnp.stack([jnp.stack([attention(q[n], k[m], v[m]) for m in range(3)]) for n in range(3)])
    ok(same(many, loop), "vmap of vmap, queries and keys along an axis each")
    o, lse = jax.vmap(functools.partial(attention, return_residual=True))(q, k, v)
    ok(same(o, jnp.stack([attention(*x) for x in zip(q, k, v)])) and lse.shape == (3, 2, 17, 6), "vmap with the log-sum-exp")
    scaled = jax.jit(lambda s: attention(q[0], k[0], v[0], scale=s))(0.3)
    ok(off(scaled, attention(q[0], k[0], v[0], scale=0.3), "float32") <= 1, "a scale that is traced")
    ok(attention(q[0, :, :0], k[0], v[0]).shape == (2, 0, 6, 16) and not attention(q[0], k[0, :, :0], v[0, :, :0]).any(),
       "no queries; no keys")
    ok(same(attention(q[0], k[0], v[0], implementation="xla"), jax.nn.dot_product_attention(q[0], k[0], v[0])),
       'implementation="xla" is jax.nn\'s own')
    shards(random)


def shards(random):
    if len(jax.devices()) < DEVICES:
        tap.skip("shard_map", f"XLA_FLAGS gives {len(jax.devices())} devices, where {DEVICES} are needed")
        return
    mesh = jax.make_mesh((2, 2), ("batch", "heads"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    q, k, v = normal(random, (4, 65, 8, 32)), normal(random, (4, 513, 4, 32)), normal(random, (4, 513, 4, 32))
    split = P("batch", None, "heads", None)
    call = functools.partial(attention, is_causal=True)
    expected = call(q, k, v)
    sharded = jax.jit(jax.shard_map(call, mesh=mesh, in_specs=(split,) * 3, out_specs=split))
    ok(same(sharded(q, k, v), expected), "shard_map over batch and heads")
    split = P(None, ("batch", "heads"), None, None)  # the queries' axis; keys, values and the bias are of all
    q, bias = q[:, :64], normal(random, (1, 1, 1, 513))
    sharded = jax.jit(jax.shard_map(lambda q: attention(q, k, v, bias), mesh=mesh, in_specs=split, out_specs=split))
    ok(same(sharded(q), attention(q, k, v, bias)), "shard_map over queries alone")
    total = jax.shard_map(lambda q: jax.lax.psum(attention(q, k, v, bias).sum(), ("batch", "heads")), mesh=mesh, in_specs=split,
                          out_specs=P())
    ok(abs(jax.jit(total)(q) / attention(q, k, v, bias).sum() - 1) < 1e-3, "and a sum over them")
    sharded = jax.shard_map(jax.grad(lambda q: attention(q, k, v, bias).sum()), mesh=mesh, in_specs=split, out_specs=split)
    whole = jax.grad(lambda q: attention(q, k, v, bias).sum())(q)
    ok(off(jax.jit(sharded)(q), whole, "float32") <= 1, "gradients in shard_map")


# ---- Gradients ---------------------------------------------------------------------------------------------------------------


def gradients():
    for dtype in TOLERANCES:
        worst, done = 0.0, PROBLEMS[dtype] // 3
        for seed in range(100, 100 + done):
            (q, k, v), given = problem(seed, dtype)
            rows = attended((q.shape[0], q.shape[2], q.shape[1], k.shape[1]), given).any(-1).swapaxes(1, 2)
            bias = given.pop("bias", jnp.zeros((1, 1, 1, 1), dtype))
            weights = normal(np.random.default_rng(seed), q.shape, dtype) * rows[..., None]
            exact = [x.astype(np.float32) for x in (q, k, v, bias)]

            def loss(f, q, k, v, bias):
                return (f(q, k, v, bias, **given).astype(np.float32) * weights).sum()
            got = jax.grad(functools.partial(loss, attention), argnums=(0, 1, 2, 3))(q, k, v, bias)
            expected = jax.grad(functools.partial(loss, jax.nn.dot_product_attention), argnums=(0, 1, 2, 3))(*exact)
            worst = max(worst, *(off(a, b, dtype) for a, b in zip(got, expected)),
                        *(float("inf") for a, b in zip(got, (q, k, v, bias)) if a.dtype != b.dtype))
        ok(worst <= 1, f"{dtype}: gradients of {done} random problems are jax.nn's within {worst:.2f} of the tolerance")
    random = np.random.default_rng(7)
    q, k, v = normal(random, (1, 5, 2, 8)), normal(random, (1, 6, 1, 8)), normal(random, (1, 6, 1, 3))
    lengths = jnp.array([0], jnp.int32)
    zero = jax.grad(lambda *x: attention(*x, key_value_seq_lengths=lengths).sum(), argnums=(0, 1, 2))(q, k, v)
    ok(not any(np.asarray(x).any() for x in zero), "gradients of rows without keys are 0")
    step, whole = 1e-2, jax.grad(lambda v: (attention(q, k, v) ** 2).sum())(v)

    def changed(by):
        return (attention(q, k, v.at[0, 2, 0, 1].add(by)) ** 2).sum()
    ok(abs((changed(step) - changed(-step)) / (2 * step) - whole[0, 2, 0, 1]) < 1e-3, "gradients with other channels in V")
    scaled, expected = (jax.grad(lambda s: f(q, k, k, scale=s).sum())(0.3) for f in (attention, jax.nn.dot_product_attention))
    ok(off(scaled, expected, "float32") <= 1, "the gradient of the scale")
    try:
        jax.jvp(lambda q: attention(q, k, v), (q,), (q,))
        message = "no error"
    except TypeError as error:
        message = str(error)
    ok("forward-mode" in message, "forward mode is refused by a line", message)


# ---- Refusals ----------------------------------------------------------------------------------------------------------------


def refused(what, kind, *words, **given):
    random = np.random.default_rng(9)
    arrays = {"query": normal(random, (2, 5, 4, 8)), "key": normal(random, (2, 6, 2, 8)), "value": normal(random, (2, 6, 2, 8))}
    try:
        jax.block_until_ready(attention(**(arrays | given)))
        message = "no error"
    except kind as error:
        message = str(error)
    ok(all(word in message for word in words) and len(message.strip().splitlines()) == 1, f"refused: {what}", message)


def one_scale():
    """Every number of any library's is a scale."""
    random = np.random.default_rng(9)
    q = normal(random, (2, 5, 4, 8))
    need = attention(q, q, q, scale=0.5)
    ok(all(same(attention(q, q, q, scale=x), need) for x in (np.float16(0.5), np.array(0.5), jnp.array(0.5), jnp.bfloat16(0.5))),
       "a scale may be any library's number")


def refusals():
    ones = functools.partial(jnp.ones, dtype=np.float32)
    refused("integers", TypeError, "key is int32", key=jnp.ones((2, 6, 2, 8), np.int32))
    refused("two types", TypeError, "query is bfloat16", "float32", query=jnp.ones((2, 5, 4, 8), jnp.bfloat16))
    refused("heads", ValueError, "3 heads", "multiple of the 2", query=ones((2, 5, 3, 8)))
    refused("a batch", ValueError, "query has shape (1,", query=ones((1, 5, 4, 8)))
    refused("values of other keys", ValueError, "value has shape", value=ones((2, 7, 2, 8)))
    refused("a bias", ValueError, "bias has shape (1, 1, 5, 7)", "(2, 4, 5, 6)", bias=ones((5, 7)))
    refused("a mask of numbers", TypeError, "mask is float32", mask=ones((5, 6)))
    refused("lengths", ValueError, "key_value_seq_lengths", key_value_seq_lengths=jnp.array([1], jnp.int32))
    refused("too many channels", Exception, "rapt: d_k", query=ones((2, 5, 4, 1025)), key=ones((2, 6, 2, 1025)))
    refused("a scale", Exception, "rapt: scale", scale=float("inf"))
    for scale in (float("nan"), "1", True, 1j, np.array([1.0])):  # NaN would stand for the default
        refused(f"a scale of {scale!r}", (TypeError, ValueError), "scale is ", scale=scale)
    for window in (True, "1", 1.0, 1 << 64, (1, 1 << 64), (1, 2.0)):
        refused(f"a window of {window!r}", (TypeError, ValueError), "local_window_size is ", local_window_size=window)
    for name in ("bias", "mask"):
        refused(f"a {name} without columns", ValueError, f"{name} has shape (1, 1, 1, 0)", "(2, 4, 5, 6)",
                **{name: jnp.ones((1, 1, 1, 0), bool if name == "mask" else np.float32)})
    refused("no channels", ValueError, "key has shape (2, 6, 2, 0)", query=ones((2, 5, 4, 0)), key=ones((2, 6, 2, 0)))
    refused("lengths of no numbers", ValueError, "key_value_seq_lengths has shape (0,)",
            key_value_seq_lengths=jnp.ones((0,), np.int32))
    refused("a complex bias", TypeError, "bias is complex64", "(write bias.real.astype(jnp.float32))",
            bias=jnp.ones((5, 6), np.complex64))
    refused("a complex query", TypeError, "query is complex64", "(write query.real.astype(jnp.float32))",
            query=jnp.ones((2, 5, 4, 8), np.complex64))
    refused("a mask of integers", TypeError, "mask is int32", "(write mask.astype(bool))", mask=jnp.ones((5, 6), np.int32))
    refused("heads before tokens", ValueError, "query has 5 heads", "(batch, tokens, heads, channels)", query=ones((2, 4, 5, 8)))
    many = np.ones((9, 9))
    for name in ("is_causal", "arith", "implementation", "return_residual", "scale", "local_window_size"):
        refused(f"{name} that is an array", (TypeError, ValueError), name, **{name: many})
    refused("a return_residual that is none", TypeError, "return_residual is 'yes'", return_residual="yes")
    refused("a causal mask by rapt's names", TypeError, "is_causal is 'bottom-right'", is_causal="bottom-right")
    refused("another arithmetic", ValueError, "'int8'", arith="int8")
    refused("a window of 3 sides", ValueError, "3 sides", local_window_size=(1, 2, 3))
    status, line = importing({}, "import jax; jax.__dict__.pop('typeof'); import rapt.jax")
    ok(status and "pip install --upgrade jax" in line, "refused: an older jax", line)


def importing(environment, code="import rapt.jax"):
    run = subprocess.run([sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True)
    return run.returncode, (run.stderr.strip().splitlines() or [""])[-1]


def building_it():
    with tempfile.TemporaryDirectory() as folder:
        cache = pathlib.Path(folder) / "cache"
        for what, environment, words in (
                ("no compiler", {"PATH": folder}, "install g++, or set CXX"),
                ("another compiler that is not there", {"CXX": "no-such-compiler"}, "CXX=no-such-compiler"),
                ("a compiler that fails", {"CXX": "false"}, "could not be compiled against jaxlib")):
            status, line = importing(environment | {"RAPT_CACHE": str(cache)})
            left = list(cache.glob("*")) if cache.exists() else []
            ok(status and words in line and line.startswith("ImportError: ") and not left, f"refused: {what}", f"{line} {left}")
        cache.mkdir(exist_ok=True)
        made = cache / f"jax_ffi-{building.key()}.so"
        status = subprocess.run([sys.executable, building.__file__, str(made)], capture_output=True, text=True)
        ok(status.returncode == 0 and made.exists(), "it can be compiled beforehand", status.stderr)
        status, line = importing({"RAPT_CACHE": str(cache), "PATH": folder})
        ok(status == 0 and not line, "and no compiler is asked for then", line)
        with made.open("r+b") as f:
            whole = f.read()
            place = whole.index(building.key().encode())
            f.seek(place)
            f.write(b"1" if whole[place:place + 1] == b"0" else b"0")
        status, line = importing({"RAPT_CACHE": str(cache)})
        ok(status and "remove it" in line, "refused: a file that was compiled from something else", line)
        alone = pathlib.Path(folder) / "jaxlib"
        alone.mkdir()
        (alone / "__init__.py").touch()
        run = subprocess.run([sys.executable, building.__file__, str(made)], env=os.environ | {"PYTHONPATH": folder},
                             capture_output=True, text=True)
        ok(run.returncode and "does not have" in run.stderr and len(run.stderr.splitlines()) == 1, "refused: a jaxlib without headers",
           run.stderr)
        run = subprocess.run([sys.executable, "-S", building.__file__, str(made)], env=os.environ | {"PYTHONPATH": ""},
                             capture_output=True, text=True)
        ok(run.returncode and "pip install jax" in run.stderr and len(run.stderr.splitlines()) == 1, "refused: no jaxlib", run.stderr)


if __name__ == "__main__":
    if sys.argv[1:] == ["--digests"]:
        print_digests()
        sys.exit()
    random_problems()
    bits()
    transformations()
    gradients()
    one_scale()
    refusals()
    building_it()
    tap.done()
