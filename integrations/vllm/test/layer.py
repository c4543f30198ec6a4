# SPDX-License-Identifier: Apache-2.0
"""A layer's attention in vLLM, rapt's or vLLM's own, on a paged cache, without an engine around it."""
import functools
import types

import torch


@functools.cache
def configuration():
    from vllm.config import VllmConfig
    return VllmConfig()


def layer_of(own, dtype, heads, kv_heads, block_size=32, **given):
    """The implementation, and the layer that is given to its calls."""
    from vllm.config import set_current_vllm_config
    from vllm.v1.attention.backends import cpu_attn
    import rapt_vllm.backend
    torch.cpu._init_amx()  # as vLLM's workers do
    config = configuration()
    config.model_config = types.SimpleNamespace(dtype=dtype)
    options = {"alibi_slopes": None, "sliding_window": None, "kv_cache_dtype": "auto"} | given
    size = options.pop("head_size", 64)
    with set_current_vllm_config(config):
        impl = (cpu_attn.CPUAttentionBackendImpl if own else rapt_vllm.backend.Impl)(heads, size, size ** -0.5, kv_heads, **options)
    impl.dtype, impl.isa = dtype, cpu_attn._get_attn_isa(dtype, block_size, size, impl.kv_cache_dtype)
    k_scale, v_scale = (0.5, 0.25) if impl.is_fp8_kv_cache else (1.0, 1.0)
    return impl, types.SimpleNamespace(isa=impl.isa, _k_scale_float=k_scale, _v_scale_float=v_scale, _k_scale=torch.tensor(k_scale),
                                       _v_scale=torch.tensor(v_scale))


def sequences(dtype, heads, kv_heads, size, lengths):
    """For each sequence, q, k and v of all its tokens."""
    generator = torch.Generator().manual_seed(5)
    return [tuple(torch.randn(n, h, size, generator=generator).to(dtype) for h in (heads, kv_heads, kv_heads)) for n in lengths]


class Cache:
    """A layer's paged cache for sequences of these lengths, whose blocks are handed out in an order of chance."""

    def __init__(self, impl, block_size, lengths):
        self.block_size = block_size
        per_entry = (max(lengths) + block_size - 1) // block_size
        blocks = len(lengths) * per_entry + 1
        stored = torch.uint8 if impl.is_fp8_kv_cache else impl.dtype
        self.memory = torch.zeros(blocks, impl.num_kv_heads, block_size, 2 * impl.head_size, dtype=stored)
        free = torch.randperm(blocks - 1, generator=torch.Generator().manual_seed(block_size)) + 1
        self.tables = free.to(torch.int32).view(len(lengths), per_entry)

    def slots(self, entry, first, end):
        places = torch.arange(first, end)
        return self.tables[entry][places // self.block_size].long() * self.block_size + places % self.block_size


def metadata(impl, cache, entries, first, end, slots, causal, cross=False):
    """Of the step in which tokens first to end - 1 of these entries are new. With cross, they are a decoder's, and the cache has the
    encoder's."""
    from vllm import _custom_ops as ops
    from vllm.v1.attention.backend import CommonAttentionMetadata
    from vllm.v1.attention.backends import cpu_attn
    from vllm.v1.kv_cache_interface import CrossAttentionSpec, FullAttentionSpec
    import rapt_vllm.backend
    lengths = [end[b] - first[b] for b in entries]
    starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    common = CommonAttentionMetadata(
        query_start_loc=starts, query_start_loc_cpu=starts, seq_lens=torch.tensor([end[b] for b in entries], dtype=torch.int32),
        num_reqs=len(entries), num_actual_tokens=int(starts[-1]), max_query_len=max(lengths), max_seq_len=max(end[b] for b in entries),
        block_table_tensor=cache.tables[list(entries)], slot_mapping=slots,
        causal=causal[list(entries)] if isinstance(causal, torch.Tensor) else causal)
    if isinstance(impl, rapt_vllm.backend.Impl):
        spec = (CrossAttentionSpec if cross else FullAttentionSpec)(
            block_size=cache.block_size, num_kv_heads=impl.num_kv_heads, head_size=impl.head_size, dtype=torch.float32)
        return rapt_vllm.backend.Builder(spec, [], None, torch.device("cpu")).build(0, common)
    dynamic = common.causal if isinstance(common.causal, torch.Tensor) else None
    causal = False if dynamic is not None else common.causal
    made = ops.cpu_attn_get_scheduler_metadata(
        num_reqs=common.num_reqs, num_heads=impl.num_heads, num_kv_heads=impl.num_kv_heads, head_dim=impl.head_size,
        seq_lens=common.seq_lens, dtype=impl.dtype, query_start_loc=common.query_start_loc, causal=causal,
        sliding_window_size=impl.sliding_window, isa=impl.isa, enable_kv_split=True, dynamic_causal=dynamic,
        kv_cache_dtype=impl.kv_cache_dtype)
    return cpu_attn.CPUAttentionMetadata(
        num_actual_tokens=common.num_actual_tokens, max_query_len=common.max_query_len, query_start_loc=common.query_start_loc,
        max_seq_len=common.max_seq_len, seq_lens=common.seq_lens, block_table=common.block_table_tensor,
        slot_mapping=common.slot_mapping, scheduler_metadata=made, causal=causal, dynamic_causal=dynamic)
