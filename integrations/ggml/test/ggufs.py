# SPDX-License-Identifier: Apache-2.0
"""The models that the tests and the benchmark run in llama.cpp, as GGUF files: one of random weights, of any size, and the
sentence encoder all-MiniLM-L6-v2 with its real ones."""
import json
from pathlib import Path

import gguf
import numpy as np

BYTE = 3  # the token of byte 0, behind <unk>, <s> and </s>: the vocabulary is that of the bytes
VOCABULARY = BYTE + 256


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def random_llama(path: Path, layers: int, heads: int, kv_heads: int, head_dim: int, inner: int, context: int,
                 weights: type = np.float32, experts: int = 0) -> None:
    """A Llama of random weights and a vocabulary of bytes, or a mixture of experts of which each token chooses two. Queries and
    keys are large enough that attention has to choose."""
    width = heads * head_dim
    random = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(layers)
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(head_dim)
    bytes_as_tokens(writer)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(2)

    def tensor(name: str, rows: int, columns: int, size: float, matrices: int = 0) -> None:
        values = random.standard_normal((matrices, rows, columns) if matrices else (rows, columns), dtype=np.float32)
        writer.add_tensor(f"{name}.weight", (values * np.float32(size / columns**0.5)).astype(weights))

    tensor("token_embd", VOCABULARY, width, width**0.5)
    tensor("output", VOCABULARY, width, 1)
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for layer in range(layers):
        part = f"blk.{layer}."
        for name in "attn_norm", "ffn_norm":
            writer.add_tensor(f"{part}{name}.weight", np.ones(width, np.float32))
        tensor(f"{part}attn_q", width, width, 1.5)
        tensor(f"{part}attn_k", kv_heads * head_dim, width, 1.5)
        tensor(f"{part}attn_v", kv_heads * head_dim, width, 1)
        tensor(f"{part}attn_output", width, width, 1)
        of_experts = "_exps" if experts else ""
        if experts:
            tensor(f"{part}ffn_gate_inp", experts, width, 1)
        tensor(f"{part}ffn_gate{of_experts}", inner, width, 1, experts)
        tensor(f"{part}ffn_up{of_experts}", inner, width, 1, experts)
        tensor(f"{part}ffn_down{of_experts}", width, inner, 1, experts)
    finish(writer)


def random_gpt2(path: Path, layers: int, heads: int, head_dim: int, context: int) -> None:
    """A GPT-2 of random weights and a vocabulary of bytes: layer normalisation, biases, GELU, and learned positions."""
    width = heads * head_dim
    random = np.random.default_rng(2)
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_block_count(layers)
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(4 * width)
    writer.add_head_count(heads)
    writer.add_layer_norm_eps(1e-5)
    bytes_as_tokens(writer)

    def tensor(name: str, rows: int, columns: int, size: float) -> None:
        writer.add_tensor(f"{name}.weight", (random.standard_normal((rows, columns)) * (size / columns**0.5)).astype(np.float32))

    def vector(name: str, mean: float, n: int) -> None:
        writer.add_tensor(name, (mean + 0.1 * random.standard_normal(n)).astype(np.float32))

    def norm(name: str) -> None:
        vector(f"{name}.weight", 1, width)
        vector(f"{name}.bias", 0, width)

    tensor("token_embd", VOCABULARY, width, width**0.5)
    tensor("position_embd", context, width, 0.3 * width**0.5)
    tensor("output", VOCABULARY, width, 1)
    norm("output_norm")
    for layer in range(layers):
        part = f"blk.{layer}."
        norm(f"{part}attn_norm")
        norm(f"{part}ffn_norm")
        for name, rows, columns in (("attn_qkv", 3 * width, width), ("attn_output", width, width), ("ffn_up", 4 * width, width),
                                    ("ffn_down", width, 4 * width)):
            tensor(f"{part}{name}", rows, columns, 1.5)
            vector(f"{part}{name}.bias", 0, rows)
    finish(writer)


def bytes_as_tokens(writer: gguf.GGUFWriter) -> None:
    """The vocabulary of the bytes."""
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([b"<unk>", b"<s>", b"</s>"] + [f"<0x{byte:02X}>".encode() for byte in range(256)])
    writer.add_token_scores([0.0] * VOCABULARY)
    kinds = gguf.TokenType
    writer.add_token_types([kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL] + [kinds.BYTE] * 256)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def halves(values: np.ndarray) -> np.ndarray:
    """The bytes of f16 numbers, [..., 1]."""
    return values.astype("<f2").view(np.uint8)


def quotients(values: np.ndarray, steps: np.ndarray, least: int, most: int) -> np.ndarray:
    """values / steps as integers within bounds; where a step is 0, 0."""
    return np.rint(np.divide(values, steps, out=np.zeros_like(values), where=steps != 0)).clip(least, most).astype(np.int32)


def q4_k(values: np.ndarray) -> np.ndarray:
    """Blocks of ggml's q4_K, of channels whose least and largest of 32 become the codes 0 and 15."""
    parts = values.reshape(*values.shape[:-1], -1, 8, 32)
    least = np.minimum(parts.min(-1), 0)
    steps, minimums = (parts.max(-1) - least) / 15, -least
    factors = [halves(of.max(-1, keepdims=True) / 63) for of in (steps, minimums)]
    d, e = (factor.view("<f2").astype(np.float32) for factor in factors)
    a, b = quotients(steps, d, 0, 63), quotients(minimums, e, 0, 63)
    codes = quotients(parts + (e * b)[..., None], (d * a)[..., None], 0, 15)
    low, high = slice(0, 4), slice(4, 8)  # the parts whose six bits lie together, and those whose upper two lie apart
    scales = [of[..., low] | of[..., high] >> 4 << 6 for of in (a, b)] + [a[..., high] & 15 | (b[..., high] & 15) << 4]
    codes = codes[..., ::2, :] | codes[..., 1::2, :] << 4
    bytes_ = [of.astype(np.uint8) for of in (*factors, *scales, codes.reshape(*codes.shape[:-2], 128))]
    return np.concatenate(bytes_, -1).reshape(*values.shape[:-1], -1)


def q6_k(values: np.ndarray) -> np.ndarray:
    """Blocks of ggml's q6_K, of channels of which the largest of 16 becomes the number -31 or 31."""
    parts = values.reshape(*values.shape[:-1], -1, 16, 16)
    steps = np.abs(parts).max(-1) / 31
    factor = halves(steps.max(-1, keepdims=True) / 127)
    d = factor.view("<f2").astype(np.float32)
    a = quotients(steps, d, 0, 127)
    codes = quotients(parts, (d * a)[..., None], -32, 31) + 32
    codes = codes.reshape(*codes.shape[:-2], 2, 4, 32)  # halves of a block, each of four runs that share bytes
    lower = codes[..., :2, :] & 15 | (codes[..., 2:, :] & 15) << 4
    upper = sum(codes[..., i, :] >> 4 << 2 * i for i in range(4))
    bytes_ = [of.astype(np.uint8) for of in (lower.reshape(*a.shape[:-1], 128), upper.reshape(*a.shape[:-1], 64), a, factor)]
    return np.concatenate(bytes_, -1).reshape(*values.shape[:-1], -1)


def type_in_mixture(name: str, columns: int) -> str:
    """The type of a matrix in a mixture as llama.cpp's Q4_K_M: what counts most has six bits, and rows that are no whole blocks of
    256 are of types whose blocks are of 32."""
    *_, layer, part, _ = ["", *name.split(".")]
    counts = part in ("output", "token_embd") or (part.startswith(("attn_v", "ffn_down")) and int(layer) % 2 == 0)
    if columns % 256:
        return "q8_0" if counts else "q4_1"
    return "q6_K" if counts else "q4_K"


def rewrite(path: Path, to: Path, kind: str) -> None:
    """A model with its matrices in another type, f32, f16, bf16, q8_0 or q4_0, or q4_K_M, a mixture, and all else as it was."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(to, reader.fields["general.architecture"].contents())
    types = gguf.GGUFValueType
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            parts = field.types
            writer.add_key_value(name, field.contents(), parts[0], sub_type=parts[-1] if parts[0] == types.ARRAY else None)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        as_it_was = kind == "f32" or values.ndim < 2
        name = "f32" if as_it_was else type_in_mixture(tensor.name, values.shape[-1]) if kind == "q4_K_M" else kind
        target, own = gguf.GGMLQuantizationType[name.upper()], {"q4_K": q4_k, "q6_K": q6_k}.get(name)
        stored = values if as_it_was else own(values) if own else gguf.quantize(values, target)
        writer.add_tensor(tensor.name, stored, raw_dtype=target)
    finish(writer)


def safetensors(path: Path) -> dict[str, np.ndarray]:
    """The f32 tensors of a file of safetensors."""
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    tensors = {}
    for name, entry in json.loads(content[8:begin]).items():
        if entry.get("dtype") == "F32":
            first, last = entry["data_offsets"]
            tensors[name] = np.frombuffer(content[begin + first:begin + last], np.float32).reshape(entry["shape"])
    return tensors


def minilm(path: Path, folder: Path) -> None:
    """all-MiniLM-L6-v2 from the folder that examples/minilm/fetch names."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)

    # llama.cpp marks where words begin, where the vocabulary marks where they go on.
    words = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    special = [f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")]
    tokens = [word if word in special else word[2:] if word.startswith("##") else "\u2581" + word for word in words]
    writer.add_tokenizer_model("bert")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if word in special else gguf.TokenType.NORMAL for word in words])
    writer.add_token_type_count(config["type_vocab_size"])
    for add, name in ((writer.add_pad_token_id, "[PAD]"), (writer.add_unk_token_id, "[UNK]"),
                      (writer.add_bos_token_id, "[CLS]"), (writer.add_sep_token_id, "[SEP]"),
                      (writer.add_mask_token_id, "[MASK]")):
        add(words.index(name))

    tensors = safetensors(folder / "model.safetensors")
    names = {"embeddings.word_embeddings": "token_embd", "embeddings.token_type_embeddings": "token_types",
             "embeddings.position_embeddings": "position_embd", "embeddings.LayerNorm": "token_embd_norm"}
    for layer in range(config["num_hidden_layers"]):
        for theirs, ours in (("attention.self.query", "attn_q"), ("attention.self.key", "attn_k"),
                             ("attention.self.value", "attn_v"), ("attention.output.dense", "attn_output"),
                             ("attention.output.LayerNorm", "attn_output_norm"), ("intermediate.dense", "ffn_up"),
                             ("output.dense", "ffn_down"), ("output.LayerNorm", "layer_output_norm")):
            names[f"encoder.layer.{layer}.{theirs}"] = f"blk.{layer}.{ours}"
    for theirs, ours in names.items():
        for kind in "weight", "bias":
            if f"{theirs}.{kind}" in tensors:
                writer.add_tensor(f"{ours}.{kind}", tensors[f"{theirs}.{kind}"])
    finish(writer)
