#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the backend refuses, in TAP, without vLLM: the few classes of its that the backend is derived from are made up here. Usage:
test_refusals.py, with torch and rapt installed. What vLLM itself gives it, test_vllm.py tests."""
import pathlib
import sys
import types

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[2] / "tests/host"), str(HERE.parent)]
import tap
from tap import ok

try:
    import torch
except ImportError as error:
    tap.absent("rapt's backend for vLLM", error)


def module(name, **contents):
    made = types.ModuleType(name)
    made.__dict__.update(contents)
    sys.modules[name] = made


class Generic:
    def __class_getitem__(cls, item):
        return cls


for name in "vllm", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backends":
    module(name)
module("vllm.v1.attention.backend", AttentionMetadataBuilder=Generic, CommonAttentionMetadata=object,
       AttentionType=types.SimpleNamespace(DECODER="decoder", ENCODER="encoder", ENCODER_ONLY="encoder_only"))
module("vllm.v1.attention.backends.cpu_attn", CPUAttentionBackend=object, CPUAttentionBackendImpl=object)
module("vllm.v1.kv_cache_interface", CrossAttentionSpec=object)
from rapt_vllm import backend

HEADS, KV_HEADS, SIZE, BLOCK = 4, 2, 8, 16


def impl_of(**given):
    """A layer's attention with the fields that vLLM's own class sets."""
    impl = backend.Impl()
    impl.__dict__.update({"num_heads": HEADS, "num_kv_heads": KV_HEADS, "head_size": SIZE, "scale": SIZE ** -0.5, "sliding_window": -1,
                          "logits_soft_cap": 0, "alibi_slopes": None, "sinks": None, "kv_cache_dtype": "auto", "is_fp8_kv_cache": False,
                          "attn_type": "decoder"} | given)
    return impl


def step(tokens=3, query=None, key=None, value=None, cache=None, slots=None, layer=None, **given):
    """A prompt of one request, whose keys and values are written to the cache before it attends to them. Returns the result."""
    torch.manual_seed(0)
    impl = impl_of(**given)
    query = torch.randn(tokens, HEADS, SIZE) if query is None else query
    key = torch.randn(tokens, KV_HEADS, SIZE) if key is None else key
    value = torch.randn(tokens, KV_HEADS, SIZE) if value is None else value
    cache = torch.zeros(2, KV_HEADS, BLOCK, 2 * SIZE) if cache is None else cache
    slots = torch.arange(BLOCK, BLOCK + tokens) if slots is None else slots
    starts, lengths = torch.tensor([0, tokens], dtype=torch.int32), torch.tensor([tokens], dtype=torch.int32)
    metadata = backend.Metadata(tokens, starts, lengths, torch.ones(1, 1, dtype=torch.int32), slots, True, None)
    impl.do_kv_cache_update(layer, key, value, cache, slots)
    out = impl.forward(layer, query, key, value, cache, metadata, torch.full((tokens, HEADS, SIZE), 9.0))
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x[:tokens].transpose(0, 1)[None] for x in (query, key, value)), is_causal=True, enable_gqa=True)[0].transpose(0, 1)
    return float((out - expected).abs().max()) if tokens else float(out.numel())


def served(what, most, **given):
    try:
        error = step(**given)
        ok(error <= most, what, error)
    except Exception as why:  # of the backend's, any
        ok(False, what, repr(why))


def refused(what, *words, **given):
    """Whether the backend raises one line with these words."""
    try:
        step(**given)
        said = "nothing"
    except Exception as error:  # of PyTorch's and ctypes', too, which would be no line of rapt's
        said = str(error)
    ok(said.startswith("rapt: ") and "\n" not in said and all(word in said for word in words), f"refused: {what}", said)


served("a prompt, PyTorch's", 1e-6)
served("a step without tokens", 0, tokens=0)
served("a window as long as the prompt", 1e-6, sliding_window=3)
one, two = (types.SimpleNamespace(_k_scale=torch.full((n, ), 0.5), _v_scale=torch.full((n, ), 0.25)) for n in (1, KV_HEADS))
fp8 = {"kv_cache_dtype": "fp8_e4m3", "is_fp8_kv_cache": True}
for layer, what in (one, "one scale"), (two, "a scale for each head"):
    served(f"a cache of fp8 with {what}", 0.2, cache=torch.zeros(2, KV_HEADS, BLOCK, 2 * SIZE, dtype=torch.uint8), layer=layer, **fp8)

refused("a window of 0, which is no default", "sliding_window is 0", sliding_window=0)
refused("a cache with blocks of 0 tokens, which is no default", "block size", cache=torch.zeros(2, KV_HEADS, 0, 2 * SIZE))
refused("a cache of other heads", "[2, 1, 16, 16]", cache=torch.zeros(2, 1, BLOCK, 2 * SIZE))
refused("a cache of other channels", "[2, 2, 16, 8]", cache=torch.zeros(2, KV_HEADS, BLOCK, SIZE))
refused("a cache of a type that vLLM may have later", "int8_per_token_head", kv_cache_dtype="int8_per_token_head",
        cache=torch.zeros(2, KV_HEADS, BLOCK, 2 * SIZE, dtype=torch.int8))
refused("scales of another number", "_k_scale", "[3]", cache=torch.zeros(2, KV_HEADS, BLOCK, 2 * SIZE, dtype=torch.uint8),
        layer=types.SimpleNamespace(_k_scale=torch.ones(3), _v_scale=torch.ones(3)), **fp8)
refused("fewer queries than tokens", "of 3 tokens, query has 2", query=torch.randn(2, HEADS, SIZE))
refused("queries of other heads", "query is [3, 2, 8]", query=torch.randn(3, 2, SIZE))
refused("fewer keys than slots", "slot_mapping has 3 tokens, key 2", key=torch.randn(2, KV_HEADS, SIZE))
refused("fewer values than slots", "value 1", value=torch.randn(1, KV_HEADS, SIZE))
refused("keys of other heads", "key is [3, 1, 8]", key=torch.randn(3, 1, SIZE))
refused("values of fewer channels", "value is [3, 2, 4]", value=torch.randn(3, KV_HEADS, 4))
tap.done()
