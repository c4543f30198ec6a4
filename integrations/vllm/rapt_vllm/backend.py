# SPDX-License-Identifier: Apache-2.0
"""The attention backend: vLLM's interface, over rapt's paged caches.

vLLM's cache of a layer is [blocks, kv heads, block size, 2 * channels]; as its own backend does, each head of a block holds its keys
first and its values behind them. Every token's row is stored as it is, which makes a block a page of rapt's.
"""
import ctypes
import dataclasses
from typing import Any, ClassVar

import rapt._native as native
import rapt._threads as threading_
import rapt.torch  # noqa: F401 - whose import puts calls on PyTorch's threads
import torch
from rapt._attention import arith_of
from rapt._tensor import NUMPY_TYPES
from vllm.v1.attention.backend import AttentionMetadataBuilder, AttentionType, CommonAttentionMetadata
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionBackendImpl
from vllm.v1.kv_cache_interface import CrossAttentionSpec

from . import arith

# What a cache's bytes are, by the names of vLLM's kv_cache_dtype; others are of the tensor's own type.
CACHE_TYPES = {"fp8": native.F8_E4M3, "fp8_e4m3": native.F8_E4M3, "fp8_e5m2": native.F8_E5M2}
ENCODERS = AttentionType.ENCODER, AttentionType.ENCODER_ONLY


def type_of(t: torch.Tensor) -> int:
    return NUMPY_TYPES[str(t.dtype).removeprefix("torch.")]


def layout(name: str, t: torch.Tensor, heads: int, channels: int) -> tuple[int, int, int, int]:
    """The rapt_layout of rows [tokens, heads, channels]."""
    size = t.element_size()
    if t.shape[1:] != (heads, channels):
        raise ValueError(f"rapt: {name} is {list(t.shape)}, where [tokens, {heads}, {channels}] is wanted")
    if t.stride(2) != 1 and t.shape[2] > 1:
        raise ValueError(f"rapt: {name} has channels that lie {t.stride(2)} elements apart: they must be adjacent")
    return type_of(t), 0, t.stride(1) * size, t.stride(0) * size


def scales(name: str, t: torch.Tensor, heads: int) -> tuple[int, int, int, int, int]:
    """The rapt_scales of a layer's cache: one for all of it, or one for each head."""
    if t.dtype != torch.float32 or t.numel() not in (1, heads) or not t.is_contiguous():
        raise ValueError(f"rapt: {name} is {t.dtype} {list(t.shape)}: a float32 is wanted, or one for each of {heads} heads")
    return 1, 0, 4 if t.numel() > 1 else 0, 0, 0


@dataclasses.dataclass
class Metadata:
    """A step's batch, and the plans that the layers share."""
    num_actual_tokens: int
    q_starts: torch.Tensor
    lengths: torch.Tensor
    table: torch.Tensor
    slot_mapping: torch.Tensor
    causal: bool
    # [requests], the keys below which a mask is not causal, where requests differ.
    prefixes: torch.Tensor | None
    plans: dict[tuple, tuple[Any, int]] = dataclasses.field(default_factory=dict)


class Builder(AttentionMetadataBuilder[Metadata]):
    """Makes a step's metadata of what vLLM knows."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.is_cross = isinstance(kv_cache_spec, CrossAttentionSpec)

    def build(self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False) -> Metadata:
        m = common_attn_metadata
        causal, prefixes = m.causal, None
        lengths = m.seq_lens[:m.num_reqs].to(torch.int32).contiguous()
        if isinstance(causal, torch.Tensor):
            prefixes = torch.where(causal[:m.num_reqs].bool(), 0, lengths).to(torch.int32)
            causal = True
        return Metadata(
            num_actual_tokens=m.num_actual_tokens, q_starts=m.query_start_loc[:m.num_reqs + 1].to(torch.int32).clone(), lengths=lengths,
            table=m.block_table_tensor[:m.num_reqs].to(torch.int32), slot_mapping=m.slot_mapping, causal=causal and not self.is_cross,
            prefixes=prefixes)


class Impl(CPUAttentionBackendImpl):
    """The attention of a layer."""

    def _plan(self, metadata: Metadata, desc: Any, key: tuple) -> tuple[Any, int]:
        """The plan of a call and the bytes of its workspace: those of another layer, if one has made them in this step."""
        made = metadata.plans.get(key)
        if made is None:
            desc = desc()
            plan, size = native.library().plan(desc), ctypes.c_size_t()
            native.library().c.rapt_workspace_size(plan, desc.threads, ctypes.byref(size))
            made = metadata.plans[key] = plan, size.value
        return made

    def _rows(self, name: str, t: torch.Tensor) -> tuple[int, int, int, int]:
        """The rapt_layout of queries, results, keys or values."""
        return layout(name, t, self.num_kv_heads if name in ("key", "value") else self.num_heads, self.head_size)

    def _desc(self, metadata: Metadata, query: torch.Tensor, output: torch.Tensor, threads: int, **given: Any) -> Any:
        """All but keys and values."""
        if self.sliding_window == 0:
            raise ValueError("rapt: sliding_window is 0, in which a query would not see its own key: 1 or more is wanted, or None")
        window = -1 if self.sliding_window < 0 else self.sliding_window - 1  # vLLM counts the query's own position
        desc = native.library().new(
            native.Desc, batch=len(metadata.lengths), heads=self.num_heads, kv_heads=self.num_kv_heads, q_len=query.shape[0],
            d_k=self.head_size, d_v=self.head_size, q=self._rows("query", query), o=self._rows("output", output),
            q_starts=metadata.q_starts.data_ptr(), scale=self.scale, causal=native.CAUSAL_BOTTOM_RIGHT if metadata.causal else native.CAUSAL_NONE, window_left=window,
            window_right=-1 if metadata.causal else window, softcap=self.logits_soft_cap, threads=threads,
            arith=arith_of(arith()), **given)
        if self.alibi_slopes is not None:
            desc.alibi, desc.slopes = native.ALIBI_DISTANCE, (native.F32, 0, 4, 0)
        if self.sinks is not None:
            desc.sinks = type_of(self.sinks), 0, self.sinks.stride(0) * self.sinks.element_size(), 0
        return desc

    def _cache(self, layer: Any, kv_cache: torch.Tensor) -> tuple[dict[str, Any], dict[str, int]]:
        """The fields of descriptions, and the addresses, of a layer's cache and its scales."""
        size, channels = kv_cache.element_size(), 2 * self.head_size
        if kv_cache.dim() != 4 or kv_cache.shape[1] != self.num_kv_heads or kv_cache.shape[3] != channels or not kv_cache.shape[2]:
            wanted = f"[blocks, {self.num_kv_heads}, block size, {channels}]"
            raise ValueError(f"rapt: the cache is {list(kv_cache.shape)}, where {wanted} is wanted")
        pages, _, page_size, _ = kv_cache.shape
        if kv_cache.stride(3) != 1 or kv_cache.stride(2) != channels:
            raise ValueError(f"rapt: the cache has strides {kv_cache.stride()}: a head's part of a block must be dense")
        kind = CACHE_TYPES.get(self.kv_cache_dtype)
        if kind is None:
            if kv_cache.dtype not in Backend.supported_dtypes:
                raise ValueError(f"rapt: kv_cache_dtype is {self.kv_cache_dtype!r}, of {kv_cache.dtype}: the model's type, "
                                 f"{', '.join(CACHE_TYPES)} are served")
            kind = type_of(kv_cache)
        lies = kind, kv_cache.stride(0) * size, kv_cache.stride(1) * size, channels // 2 * size
        fields = {"k": lies, "v": lies, "page_size": page_size, "pages": pages}
        at = {"k": kv_cache.data_ptr(), "v": kv_cache.data_ptr() + page_size * channels // 2 * size}
        if self.is_fp8_kv_cache:
            fields |= {f"{n}_scales": scales(f"_{n}_scale", getattr(layer, f"_{n}_scale"), self.num_kv_heads) for n in "kv"}
            at |= {"k_scales": layer._k_scale.data_ptr(), "v_scales": layer._v_scale.data_ptr()}
        return fields, at

    def forward(self, layer: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor,
                attn_metadata: Metadata | None, output: torch.Tensor, output_scale: torch.Tensor | None = None,
                output_block_scale: torch.Tensor | None = None) -> torch.Tensor:
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("rapt: the result is not quantised: turn the fusion of attention and quantisation off")
        if attn_metadata is None:  # vLLM measures how much memory the model needs
            return output
        m = attn_metadata
        if min(len(query), len(output)) < m.num_actual_tokens:
            raise ValueError(f"rapt: of {m.num_actual_tokens} tokens, query has {len(query)} and output {len(output)}")
        query, output = query[:m.num_actual_tokens], output[:m.num_actual_tokens]
        if not len(query):
            return output
        threads = torch.get_num_threads()
        if self.attn_type in ENCODERS:  # whose keys and values are those of this step
            key, value = key[:m.num_actual_tokens], value[:m.num_actual_tokens]
            at = {"k": key.data_ptr(), "v": value.data_ptr()}
            fields = {"k": self._rows("key", key), "v": self._rows("value", value), "kv_len": min(len(key), len(value)),
                      "k_starts": m.q_starts.data_ptr()}
        else:
            fields, at = self._cache(layer, kv_cache)
            fields |= {"kv_len": m.table.shape[1] * fields["page_size"], "table": (native.I32, m.table.stride(0) * 4, 0, 0)}
            at |= {"table": m.table.data_ptr(), "kv_lengths": m.lengths.data_ptr()}
        if m.prefixes is not None:
            at["prefixes"] = m.prefixes.data_ptr()
        if self.alibi_slopes is not None:
            at["slopes"] = self.alibi_slopes.data_ptr()
        if self.sinks is not None:
            at["sinks"] = self.sinks.data_ptr()
        plan, size = self._plan(m, lambda: self._desc(m, query, output, threads, **fields), (
            tuple(fields.items()), self._rows("query", query), self._rows("output", output), self.num_heads, self.num_kv_heads,
            self.head_size, self.scale, self.sliding_window, self.logits_soft_cap, self.alibi_slopes is None,
            None if self.sinks is None else self.sinks.dtype))
        workspace = threading_.workspace(size)
        args = native.library().new(native.Args, q=query.data_ptr(), o=output.data_ptr(), workspace=workspace.address,
                                    workspace_bytes=size, **at)
        threading_.run(native.library(), "rapt", plan, args, threads=threads)
        return output

    def do_kv_cache_update(self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor,
                           slot_mapping: torch.Tensor) -> None:
        """Writes tokens to their slots: each is an entry of one token, in a table of one page. Slots below 0 are no tokens."""
        tokens = len(slot_mapping)
        if self.attn_type in ENCODERS or not tokens:
            return
        if min(len(key), len(value)) < tokens:
            raise ValueError(f"rapt: slot_mapping has {tokens} tokens, key {len(key)} and value {len(value)}")
        fields, at = self._cache(layer, kv_cache)
        page_size = fields["page_size"]
        slots = slot_mapping.clamp(min=0)
        table, starts = (slots // page_size).to(torch.int32), (slots % page_size).to(torch.int32)
        lengths = (slot_mapping >= 0).to(torch.int32)
        rows = [(kind, token, head, 0) for kind, _, head, token in (self._rows("key", key), self._rows("value", value))]
        desc = native.library().new(
            native.KvAppendDesc, batch=tokens, kv_heads=self.num_kv_heads, tokens=1, kv_len=page_size, d_k=self.head_size,
            d_v=self.head_size, new_k=rows[0], new_v=rows[1], table=(native.I32, 4, 0, 0), **fields)
        args = native.library().new(
            native.KvAppendArgs, new_k=key.data_ptr(), new_v=value.data_ptr(), starts=starts.data_ptr(), lengths=lengths.data_ptr(),
            table=table.data_ptr(), **at)
        work = tokens * self.num_kv_heads * self.head_size
        threading_.run(native.library(), "rapt_kv_append", desc, args, threads=torch.get_num_threads() if work > 1 << 16 else 1)


class Backend(CPUAttentionBackend):
    """In place of vLLM's own, by its name."""
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        from vllm.v1.attention.backend import MultipleOf
        return [MultipleOf(1)]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return []

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size <= native.MAX_HEAD_DIM

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return True

    @classmethod
    def supports_kv_connector(cls) -> bool:
        return False  # vLLM packs what connectors bring for its own kernels

    @staticmethod
    def get_impl_cls() -> type[Impl]:
        return Impl

    @staticmethod
    def get_builder_cls() -> type[Builder]:
        return Builder
