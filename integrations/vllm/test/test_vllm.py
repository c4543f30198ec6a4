#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The backend inside vLLM, in TAP: beside vLLM's own through the interface of a layer, then in engines with models of random weights.
Usage: test_vllm.py, with vLLM for CPUs, rapt and this plugin installed."""
import concurrent.futures
import hashlib
import multiprocessing
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests/host"))
import processes
import tap
from tap import ok

os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"), "VLLM_NO_USAGE_STATS": "1"}
try:
    import rapt_vllm  # noqa: F401 - which vLLM imports
    import torch
    import vllm  # noqa: F401 - which engines of their own processes import
except ImportError as error:
    tap.absent("rapt in vLLM", error)
from layer import Cache, layer_of, metadata, sequences

# ---- One layer ---------------------------------------------------------------------------------------------------------------

HEADS, KV_HEADS = 6, 2
HISTORY = (1, 300, 37, 1024, 65)  # how many tokens each sequence has after the step
NEW = (1, 300, 5, 1, 33)  # and how many of them are new
# Of float32 the error of sums in another order; of the others, vLLM's own kernel rounds weights to the type.
TOLERANCES = {torch.float32: 3e-6, torch.float16: 3e-3, torch.bfloat16: 3e-2}


def step(impl, cache, layer, data, entries, first, end, causal):
    """Writes tokens first to end - 1 of these entries into the cache, and attends. Returns each entry's result."""
    lengths = [end[b] - first[b] for b in entries]
    q, k, v = (torch.cat([data[b][n][first[b]:end[b]] for b in entries]) for n in range(3))
    # Queries come as a part of a wider tensor, as out of one linear layer for all three; and there are tokens that are none.
    wide = torch.cat([q.flatten(1), torch.zeros(len(q), 7, dtype=q.dtype)], 1)
    q = torch.cat([wide, wide[:2]])[:, :-7].unflatten(1, q.shape[1:])
    slots = torch.cat([*(cache.slots(b, first[b], end[b]) for b in entries), torch.tensor([-1, -1])])
    k, v = (torch.cat([x, torch.full_like(x[:2], torch.nan) if len(x) > 1 else x.repeat(2, 1, 1)]) for x in (k, v))
    impl.do_kv_cache_update(layer, k, v, cache.memory, slots)
    out = torch.full_like(q.contiguous(), 9)
    impl.forward(layer, q, k, v, cache.memory, metadata(impl, cache, entries, first, end, slots, causal), out)
    *found, padding = out.split([*lengths, len(out) - sum(lengths)])
    assert (padding == 9).all(), "what is behind the tokens was written"
    return found


def results(own, dtype, block_size=32, threads=2, chunk=None, groups=None, causal=True, **given):
    """What the new tokens of each sequence get: in these groups of sequences, and so many tokens at a time."""
    impl, layer = layer_of(own, dtype, HEADS, KV_HEADS, block_size, **given)
    cache, data = Cache(impl, block_size, HISTORY), sequences(dtype, HEADS, KV_HEADS, impl.head_size, HISTORY)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    found = [[] for _ in HISTORY]
    for group in groups or [range(len(HISTORY))]:
        old = {b: HISTORY[b] - NEW[b] for b in group}
        history = [b for b in group if old[b]]
        if history:
            step(impl, cache, layer, data, history, dict.fromkeys(history, 0), old, causal)
        while left := [b for b in group if old[b] < HISTORY[b]]:
            end = {b: min(HISTORY[b], old[b] + (chunk or HISTORY[b])) for b in left}
            for b, out in zip(left, step(impl, cache, layer, data, left, old, end, causal)):
                found[b].append(out)
            old |= end
    torch.set_num_threads(before)
    return [torch.cat(out) for out in found]


def contents(tensors):
    return b"".join(t.contiguous().view(torch.uint8).numpy().tobytes() for t in tensors)


def one_layer():
    slopes = [0.5 ** n for n in range(1, HEADS + 1)]
    features = {
        "plain": {}, "a sliding window": {"sliding_window": 50}, "ALiBi": {"alibi_slopes": slopes}, "softcap": {"logits_soft_cap": 5.0},
        "sinks": {"sinks": torch.linspace(-1, 2, HEADS)}, "80 channels": {"head_size": 80}, "no causal mask": {"causal": False},
        "requests with and without a causal mask": {"causal": torch.tensor([1, 0, 1, 1, 0], dtype=torch.int32)},
        "a window on both sides": {"causal": False, "sliding_window": 40}}
    chunks = {1: [(b,) for b in range(len(HISTORY))], 7: [(3, 0), (4, 1, 2)], 64: [(2, 1, 0, 4, 3)]}
    for dtype, names in ((torch.float32, features), (torch.float16, ("plain", "a sliding window")), (torch.bfloat16, ("plain", "sinks"))):
        for name in names:
            given = features[name]
            mine, theirs = results(False, dtype, **given), results(True, dtype, **given)
            error = max(float((a.float() - b.float()).abs().max()) for a, b in zip(mine, theirs))
            ok(error <= TOLERANCES[dtype], f"{dtype}, {name}: vLLM's own within {error / TOLERANCES[dtype]:.2f} of the tolerance")
            same, expected = True, contents(mine)
            causal = given.get("causal", True) is True
            for chunk, groups in chunks.items():
                for block_size, threads in ((16, 1), (128, 5)):
                    # Without a causal mask, later chunks change what earlier tokens see: these come in one.
                    again = results(False, dtype, block_size, threads, chunk if causal else None, groups, **given)
                    same = same and contents(again) == expected
            what = "chunks of 1, 7 and 64 tokens, " if causal else ""
            ok(same, f"{dtype}, {name}: the same bytes alone and in other batches, {what}blocks of 16, 32 and 128, 1, 2 and 5 threads")
    from vllm.v1.attention.backends import cpu_attn
    for kind in ("fp8_e4m3", "fp8_e5m2"):
        try:
            cpu_attn._get_attn_isa(torch.bfloat16, 32, 64, kind)
        except NotImplementedError as refusal:  # on CPUs without AVX-512
            ok(True, f"a cache of {kind} # SKIP {refusal}")
            continue
        quantised = results(False, torch.bfloat16, kv_cache_dtype=kind)
        exact = results(False, torch.bfloat16)
        error = max(float((a.float() - b.float()).abs().max()) for a, b in zip(quantised, exact))
        alone = results(False, torch.bfloat16, 64, 1, 7, [(b,) for b in range(len(HISTORY))], kv_cache_dtype=kind)
        ok(0 < error < 0.5 and contents(alone) == contents(quantised), f"a cache of {kind}: off by {error:.2f}, the same bytes alone")
    os.environ["RAPT_VLLM_ARITH"] = "bf16"
    bf16 = results(False, torch.float32)
    alone = results(False, torch.float32, 64, 1, 7, [(b,) for b in range(len(HISTORY))])
    del os.environ["RAPT_VLLM_ARITH"]
    error = max(float((a - b).abs().max()) for a, b in zip(bf16, results(False, torch.float32)))
    ok(1e-5 < error < 3e-2 and contents(alone) == contents(bf16), f"RAPT_VLLM_ARITH=bf16: off by {error:.4f}, the same bytes alone")
    encoders()
    cross_attention()


# Names of ways to compute the same, and how.
IN_WAYS = {
    "in a batch": {}, "threads: 1": {"threads": 1}, "threads: 5": {"threads": 5},
    "each sequence alone": {"groups": [(b,) for b in range(len(HISTORY))]}, "token by token": {"chunk": 1},
    "in chunks of 7 and blocks of 16": {"chunk": 7, "block_size": 16},
}


def digests(environment):
    """In a process of its own: of vLLM's own attention, and of rapt's."""
    import rapt
    os.environ |= environment
    assert rapt.isa() == environment["RAPT_ISA"]
    found = {}
    for dtype, given in (torch.float32, {}), (torch.float16, {"sliding_window": 50}), (torch.bfloat16, {}):
        found[f"{dtype}{', a sliding window' if given else ''}"] = {
            way: [processes.digest(contents(results(own, dtype, **how, **given))) for own in (True, False)] for way, how in IN_WAYS.items()}
    return found


def kernels():
    """The same in processes with each of rapt's kernels. Which of its own vLLM takes, the CPU alone decides."""
    found = {}
    for name, environment in processes.environments(RAPT_ISA=processes.kernels()).items():
        with concurrent.futures.ProcessPoolExecutor(1, forked) as processor:
            found[name] = processor.submit(digests, environment).result(900)
    processes.compare("vLLM", found)


def encoders():
    """Attention of encoders, which has no cache, beside PyTorch's."""
    import rapt_vllm.backend
    from vllm.v1.attention.backend import AttentionType
    for window in (None, 20):
        impl, _ = layer_of(False, torch.float32, HEADS, KV_HEADS, attn_type=AttentionType.ENCODER_ONLY, sliding_window=window)
        data = sequences(torch.float32, HEADS, KV_HEADS, impl.head_size, HISTORY)
        q, k, v = (torch.cat([d[n] for d in data]) for n in range(3))
        starts = torch.tensor([0, *HISTORY]).cumsum(0).to(torch.int32)
        batch = rapt_vllm.backend.Metadata(len(q), starts, torch.tensor(HISTORY, dtype=torch.int32), torch.zeros(len(HISTORY), 1,
                                           dtype=torch.int32), torch.zeros(len(q), dtype=torch.int64), False, None)
        out = impl.forward(None, q, k, v, torch.empty(0), batch, torch.empty_like(q))
        error = 0.0
        for (a, b), n in zip(zip(starts.tolist(), starts.tolist()[1:]), HISTORY):
            distance = (torch.arange(n)[:, None] - torch.arange(n)).abs()
            mask = None if window is None else distance < window
            expected = torch.nn.functional.scaled_dot_product_attention(
                *(x[a:b].transpose(0, 1)[None] for x in (q, k, v)), attn_mask=mask, scale=impl.scale, enable_gqa=True)
            error = max(error, float((out[a:b] - expected[0].transpose(0, 1)).abs().max()))
        ok(error < 1e-5, f"an encoder{' with a window' if window else ''}: PyTorch's within {error / 1e-5:.2f} of the tolerance")


def cross_attention():
    """A decoder's attention to an encoder's tokens, beside PyTorch's: without a causal mask, whatever the step says."""
    from vllm.v1.attention.backend import AttentionType
    impl, layer = layer_of(False, torch.float32, HEADS, KV_HEADS, attn_type=AttentionType.ENCODER_DECODER)
    cache, data = Cache(impl, 32, HISTORY), sequences(torch.float32, HEADS, KV_HEADS, impl.head_size, HISTORY)
    entries, queries = range(len(HISTORY)), [min(n, 3) for n in HISTORY]
    k, v = (torch.cat([d[n] for d in data]) for n in (1, 2))
    impl.do_kv_cache_update(layer, k, v, cache.memory, torch.cat([cache.slots(b, 0, HISTORY[b]) for b in entries]))
    q = torch.cat([d[0][:n] for d, n in zip(data, queries)])
    first = [n - few for n, few in zip(HISTORY, queries)]
    batch = metadata(impl, cache, entries, first, HISTORY, torch.zeros(len(q), dtype=torch.int64), True, cross=True)
    out = impl.forward(layer, q, None, None, cache.memory, batch, torch.empty_like(q))
    error = 0.0
    for (_, k, v), _n, mine, own in zip(data, queries, out.split(queries), q.split(queries)):
        expected = torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(0, 1)[None] for x in (own, k, v)), scale=impl.scale, enable_gqa=True)
        error = max(error, float((mine - expected[0].transpose(0, 1)).abs().max()))
    ok(error < 1e-5, f"cross-attention: PyTorch's within {error / 1e-5:.2f} of the tolerance")


# ---- Engines -----------------------------------------------------------------------------------------------------------------

MODELS = {
    "Llama": dict(architectures=["LlamaForCausalLM"]),
    "Gemma2": dict(architectures=["Gemma2ForCausalLM"], sliding_window=24, attn_logit_softcapping=20.0, final_logit_softcapping=30.0,
                   query_pre_attn_scalar=32, layer_types=["sliding_attention", "full_attention"]),
}
PROMPTS = [[(7 * i + 3 * i * i + n) % 251 for i in range(length)] for n, length in enumerate((5, 200, 1, 64, 131))]


generator = torch.Generator().manual_seed(1)


def spread(tensor):
    """Random weights that let tokens depend on what is attended; vLLM's are too small."""
    if tensor.is_floating_point():
        tensor.data.copy_(torch.ones(tensor.shape) if tensor.dim() < 2 else
                          torch.randn(tensor.shape, generator=generator) * 2 / tensor.shape[-1] ** 0.5)


def by_rows(layer, remove_weight):
    """Linear layers whose bits depend on nothing but the row, so that only attention can make a sequence depend on its batch."""
    def linear(x, weight, bias):
        rows = [(weight * row).sum(-1) for row in x.reshape(-1, x.shape[-1])]
        out = torch.stack(rows).view(*x.shape[:-1], len(weight)) if rows else x.new_empty(*x.shape[:-1], len(weight))
        return out if bias is None else out + bias
    layer.cpu_linear = linear


def engine(model, groups, environment, threads, rows, options):
    """Runs the prompts in these groups, in a process of its own: their tokens, and hashes of the log-probabilities."""
    os.environ |= environment
    if threads:
        torch.set_num_threads(threads)
    from vllm import LLM, SamplingParams
    if rows:
        import vllm.model_executor.layers.utils as layers
        import vllm.model_executor.model_loader.dummy_loader as loader
        layers.dispatch_cpu_unquantized_gemm = by_rows
        loader.initialize_single_dummy_weight = spread
    llm = LLM(model=model, skip_tokenizer_init=True, dtype="float32", enforce_eager=True, seed=0, max_model_len=512,
              kv_cache_memory_bytes=1 << 26, **options)
    how = SamplingParams(max_tokens=12, temperature=0, detokenize=False, logprobs=5, ignore_eos=True)
    tokens, digests = {}, {}
    for group in groups:
        for n, done in zip(group, llm.generate([{"prompt_token_ids": PROMPTS[n]} for n in group], how, use_tqdm=False)):
            out = done.outputs[0]
            tokens[n] = list(out.token_ids)
            logits = [sorted((token, p.logprob) for token, p in step.items()) for step in out.logprobs]
            digests.setdefault(n, []).append(hashlib.sha256(repr(logits).encode()).hexdigest()[:16])
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    return {"tokens": [tokens[n] for n in sorted(tokens)], "digests": [digests[n] for n in sorted(digests)],
            "backend": AttentionBackendEnum.CPU_ATTN.get_path()}


# Processes that are forked from one which has imported vLLM, and done nothing else: to import it takes longer than most engines run.
forked = multiprocessing.get_context("forkserver")
forked.set_forkserver_preload(["vllm.entrypoints.llm", "vllm.v1.worker.cpu_worker", "rapt_vllm.backend"])


def run(model, groups, plugin=True, threads=2, rows=True, processes=False, **options):
    environment = {"VLLM_PLUGINS": "rapt" if plugin else "", "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(processes))}
    if processes:
        threads = None  # as users have it
    else:
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    options = {"load_format": "dummy" if rows else "auto"} | options
    with concurrent.futures.ProcessPoolExecutor(1, forked) as processor:
        try:
            return processor.submit(engine, str(model), groups, environment, threads, rows, options).result(900)
        except Exception as why:  # of vLLM's, any
            for process in forked.active_children():
                process.kill()
            return {"tokens": None, "digests": [], "backend": repr(why)}


def engines(folder):
    from transformers import Gemma2Config, LlamaConfig, LlamaForCausalLM
    everything = list(range(len(PROMPTS)))
    alone = [[n] for n in everything]
    for name, kind in (("Llama", LlamaConfig), ("Gemma2", Gemma2Config)):
        config = kind(vocab_size=256, hidden_size=96, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                      num_key_value_heads=2, head_dim=32, max_position_embeddings=512, initializer_range=0.2, **MODELS[name])
        config.save_pretrained(folder / name)
        theirs = run(folder / name, [*alone, everything], plugin=False, enable_prefix_caching=False)
        mine = run(folder / name, [*alone, everything, [3, 1, 1, 1, 4]], enable_prefix_caching=False)
        chunked = run(folder / name, [everything, [4, 1], [0]], threads=1, max_num_batched_tokens=48, max_num_seqs=3, block_size=16,
                      enable_prefix_caching=True)
        ok(mine["backend"] == "rapt_vllm.backend.Backend" and theirs["backend"].startswith("vllm."), f"{name}: the plugin is loaded",
           (mine["backend"], theirs["backend"]))
        ok(mine["tokens"] and mine["tokens"] == theirs["tokens"] and len(set(map(tuple, mine["tokens"]))) == len(PROMPTS),
           f"{name}: tokens equal vLLM's own", (mine["tokens"], theirs["tokens"]))
        ok(mine["digests"] and all(len(set(some)) == 1 for some in mine["digests"]),
           f"{name}: log-probabilities have the same bytes alone and in two batches", mine["digests"])
        ok(chunked["digests"] and all({*a, *b} == {a[0]} for a, b in zip(mine["digests"], chunked["digests"])),
           f"{name}: and in chunks of 48 tokens, in other blocks, on one thread, with a cache of prefixes", chunked["digests"])
        print(f"# {name}, vLLM's own: " + ("the same bytes" if theirs["digests"] and all(len(set(some)) == 1 for some in theirs["digests"])
                                           else "other bytes alone than in a batch"))
        if name == "Llama":
            LlamaForCausalLM(config).save_pretrained(folder / "weights")
    theirs = run(folder / "weights", [everything], plugin=False, rows=False)
    mine = run(folder / "weights", [everything], rows=False, processes=True)
    ok(mine["tokens"] and mine["tokens"] == theirs["tokens"], "the engine as it is by default, in processes of its own: tokens equal vLLM's",
       (mine, theirs))


# ---- Refusals ----------------------------------------------------------------------------------------------------------------


def refusals():
    code = "import rapt_vllm; rapt_vllm.VERSIONS = ('0.1',); rapt_vllm.register()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"VLLM_LOGGING_LEVEL": "WARNING"})
    lines = [line for line in ended.stderr.splitlines() if "rapt" in line]
    ok(ended.returncode == 0 and len(lines) == 1 and "made for vLLM 0.1" in lines[0] and "own attention stays" in lines[0],
       "refused: another version, by a line", ended.stderr)
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "rapt.py").write_text("raise ImportError('rapt is broken')\n")
        ended = subprocess.run([sys.executable, "-c", "import rapt_vllm; print(rapt_vllm.refusal())"], capture_output=True, text=True,
                               env=os.environ | {"PYTHONPATH": folder + os.pathsep + os.environ.get("PYTHONPATH", "")})
    ok("rapt is broken" in ended.stdout, "refused: no rapt", ended.stdout + ended.stderr)
    ended = subprocess.run([sys.executable, "-c", "import rapt_vllm; print(rapt_vllm.refusal())"], capture_output=True, text=True,
                           env=os.environ | {"RAPT_VLLM_ARITH": "fp4"})
    ok("RAPT_VLLM_ARITH is 'fp4'" in ended.stdout, "refused: another arithmetic", ended.stdout + ended.stderr)


if __name__ == "__main__":
    one_layer()
    kernels()
    refusals()
    with tempfile.TemporaryDirectory() as temporary:
        engines(pathlib.Path(temporary))
    tap.done()
