#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All families of models that Transformers has a list of, so that a new version's new ones are tried by themselves: each is made
small, gets random weights, and must compute with attn_implementation="rapt" what it computes with "eager", or be refused by a line
that says what is not served. In TAP; what cannot be made small is a skip with its reason. Usage: test_transformers_families.py
[NAME ...], the families; all unless given.

Needs rapt, PyTorch and Transformers 5."""
import collections
import contextlib
import inspect
import io
import pathlib
import re
import signal
import sys
import time
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
import torchvision_stand_in  # noqa: F401

transformers.logging.set_verbosity_error()
from transformers.models.auto import configuration_auto, modeling_auto

import rapt.transformers

rapt.transformers.register()
OWN = rapt.transformers._attention_forward
BATCH, TOKENS, PADDED = 2, 13, 4
FAR = 2e-3  # of the largest element: sums of a few layers in f32, in another order
LARGEST = 40_000_000  # parameters: what is larger was not made small
SECONDS = 10  # for a family

# ---- Small configurations ----------------------------------------------------------------------------------------------------

WIDTHS = r"hidden_size|d_model|n_embd|embed_dim|hidden_dim|dim|width|embedding_size|d_embed|encoder_hidden_size|\w+_hidden_size"
# The first rule whose expression is all of an attribute's name gives its new value, of the old one.
RULES = [(re.compile(names), value) for names, value in (
    (r"(\w+_)?(hidden_layers|num_layers|n_layers?|num_hidden_layers|depth|num_blocks|num_transformer_layers|layers)", lambda x: min(x, 2)),
    (r"(\w+_)?(num_key_value_heads|num_kv_heads|n_kv_heads|multi_query_group_num|kv_n_heads)", lambda x: 1 if x == 1 else 2),
    (r"(\w+_)?(num_attention_heads|attention_heads|num_heads|n_heads?|nhead|num_query_heads)", lambda x: min(x, 4)),
    (r"(\w+_)?(qk_rope_head_dim|rope_head_dim)", lambda x: 8),
    (r"(\w+_)?(head_dim|head_size|d_kv|kv_channels|head_width|d_head|size_per_head)", lambda x: 16),
    (r"(\w+_)?(lora_rank|o_lora_rank|low_rank_dim|decay_low_rank_dim)", lambda x: 16),
    (r"(\w+_)?(intermediate_size|ffn_dim|d_ff|dim_feedforward|n_inner|ffn_hidden_size|mlp_dim|hidden_size_mlp|intermediate_dim)",
     lambda x: 48),
    (WIDTHS, lambda x: 64),
    (r"(\w+_)?(experts_per_tok|experts_per_token|top_k|topk|moe_topk|moe_k|num_selected_experts|top_k_experts|expert_top_k)",
     lambda x: min(x, 2)),
    (r"(n_group|topk_group|num_expert_groups?|n_groups)", lambda x: 1),
    (r"(\w+_)?(num_experts|num_local_experts|n_routed_experts|moe_num_experts|num_routed_experts)", lambda x: min(x, 4)),
    (r"first_k_dense_replace|num_dense_layers", lambda x: min(x, 1)),
    (r"(\w+_)?vocab_size(_\w+)?", lambda x: 120),
    (r"(\w+_)?(max_position_embeddings|n_positions|max_sequence_length|n_ctx|max_seq_len)", lambda x: 128),
    (r"image_size|img_size|input_size", lambda x: 32),
    (r"(spatial_)?patch_size|patch_stride", lambda x: 8),
    (r"num_frames", lambda x: 2),
    (r"sliding_window|local_attention|attention_window|window_size|attention_chunk_size|sliding_window_size", lambda x: 4),
    (r"index_topk|index_topk_blocks", lambda x: 3), (r"index_block_size", lambda x: 2),
    (r"index_n_heads", lambda x: 2),
)]
PER_LAYER = re.compile(r"layer_types|layers_block_type|mlp_layer_types|\w+_layer_types|layer_types_\w+|block_types|\w+_per_layer")


def shrunken(values, widths=True):
    """A dictionary of a configuration, made small; without widths, only in what has no part in other sizes."""
    small = {}
    for name, x in values.items():
        rule = next((f for names, f in RULES if names.fullmatch(name) and (widths or names.pattern.startswith(
            (r"(\w+_)?(hidden_layers", r"(\w+_)?vocab", "image", r"(\w+_)?(max_pos")))), None)
        if isinstance(x, dict) and name not in ("rope_parameters", "rope_scaling", "id2label", "label2id"):
            x = shrunken(x, widths)
        elif rule and isinstance(x, int) and not isinstance(x, bool) and x > 0:
            x = rule(x)
        elif PER_LAYER.fullmatch(name) and isinstance(x, (list, tuple)) and len(x) > 2:
            rest = [y for y in x if y != x[0]]
            x = [x[0], *rest[:1]] if rest else [x[0]] * 2
        elif name.endswith("_token_id") and isinstance(x, int) and x >= 100:
            x = 100 + sum(map(ord, name)) % 19
        small[name] = x
    return small


class NotMade(BaseException):
    """A family that cannot be made small in the general way, and why. Not an Exception, which somebody may swallow."""


def line(error):
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:150]}"


@contextlib.contextmanager
def at_most(seconds):
    def late(*_):
        raise NotMade(f"takes more than {seconds} seconds")
    signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)  # of CPU time
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def made(config_class, model_class, values):
    """A model with random weights in which attention decides much."""
    config = config_class(**values)
    config._attn_implementation = "eager"
    size = 0
    with contextlib.suppress(Exception), torch.device("meta"):
        size = sum(p.numel() for p in model_class(config).parameters())
    if size > LARGEST:
        raise NotMade(f"has {size:,} parameters when made small")
    torch.manual_seed(7)
    model = model_class(config).eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            if not p.is_floating_point():
                continue
            if p.dim() > 1 and min(p.shape) > 0:
                fan = 1 if "embed" in key or "wte" in key or "relative" in key else max(p[0].numel() if p.dim() != 3 else p.shape[-1], 1)
                p.normal_(0, fan ** -0.5)
            elif "sink" in key:
                p.normal_()
    if hasattr(model, "set_experts_implementation"):
        with contextlib.suppress(Exception):
            model.set_experts_implementation("eager")
    return model


def small_models(config_class, model_class):
    """Small models of this class, and what was changed in each: the plain one first, and then each option of attention."""
    reasons = []
    for widths in (True, False):
        try:
            default = config_class().to_dict()
            for name in ("model_type", "transformers_version", "architectures", "dtype", "_name_or_path", "_attn_implementation"):
                default.pop(name, None)
            values = shrunken(default, widths)
            yield "", made(config_class, model_class, values)
            break
        except NotMade as error:
            reasons.append(str(error))
        except Exception as error:
            reasons.append(line(error))
    else:
        raise NotMade("; ".join(dict.fromkeys(reasons)))
    for what, changed in options_of(values):
        try:
            yield what, made(config_class, model_class, changed)
        except Exception:
            continue  # this combination is refused by the model's own configuration


FLAGS = re.compile(r"\w*(attn|attention|bias|window|softcap|sink|causal|qk|alibi|relative|multi_query|rotary|rope|mask|decoder)\w*")
NOT_FLAGS = re.compile(r"output_attentions|\w*implementation\w*|attention_dropout|\w*dropout\w*|is_encoder_decoder|add_cross_attention|tie_\w+")
NUMBERS = {"attn_logit_softcapping": (2.0,), "sliding_window": (4, None), "attention_chunk_size": (4,), "num_key_value_heads": (1, 4),
           "use_sliding_window": (True,), "attn_logit_softcap": (2.0,), "attention_logit_cap": (2.0,)}


def options_of(values, path=()):
    """Dictionaries like values with one option of attention changed, and its name."""
    def changed(name, x):
        whole = here = {**values_all}
        for part in path:
            here[part] = dict(here[part])
            here = here[part]
        here[name] = x
        return f"{'.'.join((*path, name))}={x}", whole
    values_all = options_of.whole if path else values
    options_of.whole = values_all
    for name, x in values.items():
        if isinstance(x, dict) and name.endswith("config"):
            yield from options_of(x, (*path, name))
        elif isinstance(x, bool) and FLAGS.fullmatch(name) and not NOT_FLAGS.fullmatch(name):
            yield changed(name, not x)
        elif name in NUMBERS and not isinstance(x, bool):
            for y in NUMBERS[name]:
                if y != x:
                    yield changed(name, y)
        elif name == "layer_types" and isinstance(x, list):
            for kind in dict.fromkeys(x):
                if any(kind != y for y in x):
                    yield changed(name, [kind] * len(x))


# ---- Inputs ------------------------------------------------------------------------------------------------------------------


def found(config, *names):
    """The first of these attributes that the configuration, or one of its parts, has."""
    parts = [config, *(getattr(config, part) for part in getattr(config, "sub_configs", {}) if getattr(config, part, None) is not None)]
    return next((getattr(part, name) for name in names for part in parts if getattr(part, name, None) is not None), None)


def inputs_for(model):
    """Inputs for model: what its forward() needs of what is known here."""
    torch.manual_seed(3)
    parameters = inspect.signature(model.forward).parameters
    config, given = model.config, {}
    vocabulary = min(int(found(config, "vocab_size") or 100), 100)
    main = model.main_input_name

    def image():
        size = found(config, "image_size", "img_size", "input_size") or 32
        size = (size, size) if isinstance(size, int) else tuple(size)[-2:]
        return torch.randn(BATCH, found(config, "num_channels", "in_channels", "in_chans") or 3, *size)
    if "input_ids" in parameters:
        given["input_ids"] = torch.randint(3, vocabulary, (BATCH, TOKENS))
    if "decoder_input_ids" in parameters:
        given["decoder_input_ids"] = torch.randint(3, vocabulary, (BATCH, TOKENS))
    needed = [name for name, p in parameters.items() if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    wanted = {main} | set(needed)
    if "input_ids" not in parameters or "CLIP" in type(model).__name__:
        wanted |= {"pixel_values"} & set(parameters)
    for name in wanted - set(given):
        if name == "pixel_values" and re.search("[Vv]ideo|Vivit|VJEPA|Timesformer", type(model).__name__):
            given[name] = image()[:, None].repeat(1, found(config, "num_frames") or 2, 1, 1, 1)
        elif name == "pixel_values":
            given[name] = image()
        elif name == "input_features":
            given[name] = torch.randn(BATCH, found(config, "num_mel_bins", "input_feat_per_channel", "feature_size") or 80,
                                      2 * (found(config, "max_source_positions") or 50))
        elif name == "input_values":
            given[name] = torch.randn(BATCH, 3000)
        elif name in ("attention_mask", "inputs_embeds"):
            pass
        elif name in needed or name == main:
            raise NotMade(f"no {name} is known to this test")
    return given


def padded(inputs, side):
    """The inputs with a mask, in which the second sequence is padded; and which tokens are real."""
    mask = torch.ones(BATCH, TOKENS, dtype=torch.long)
    if side != "none":
        mask[1, slice(PADDED) if side == "left" else slice(TOKENS - PADDED, None)] = 0
    return {**inputs, "attention_mask": mask}, mask.bool()


# ---- Comparison --------------------------------------------------------------------------------------------------------------


class Watch:
    """Attention by rapt, whose calls are counted; without it where `away`, to see whether it matters."""
    away = False

    def __init__(self):
        self.calls, self.unknown = 0, set()

    def __call__(self, module, query, key, value, attention_mask, *rest, **options):
        self.calls += 1
        out, weights = OWN(module, query, key, value, attention_mask, *rest, **options)
        return (torch.zeros_like(out) if self.away else out), weights


watch = Watch()
transformers.AttentionInterface.register("rapt", watch)


def tensors(x, path=""):
    """The tensors of floats in a model's output, by name."""
    if isinstance(x, torch.Tensor):
        return {path: x} if x.is_floating_point() and x.numel() else {}
    if isinstance(x, dict):
        return {k: t for name, y in x.items() if name != "past_key_values" for k, t in tensors(y, f"{path}.{name}").items()}
    if isinstance(x, (list, tuple)):
        return {k: t for i, y in enumerate(x) for k, t in tensors(y, f"{path}.{i}").items()}
    return {}


def off(a, b, real=None):
    """The largest difference of two outputs, in parts of the largest element, and where; None where nothing can be compared."""
    a, b = tensors(a), tensors(b)
    if a.keys() != b.keys():
        return float("inf"), f"{sorted(a.keys() ^ b.keys())} in one of them"
    worst, where = None, ""
    for name, x in a.items():
        y = b[name]
        if real is not None:
            if x.shape[:2] != real.shape:
                continue
            x, y = x[real], y[real]
        if x.shape != y.shape:
            return float("inf"), f"shape of {name}"
        both = torch.isfinite(x) & torch.isfinite(y)
        far = float("inf") if not torch.equal(torch.isfinite(x), torch.isfinite(y)) else (
            ((x - y)[both].abs().max() / x[both].abs().max().clamp(min=1e-3)).item() if both.any() else 0.0)
        if worst is None or far > worst:
            worst, where = far, name
    return worst, where


def refusal(error):
    """The line that rapt refuses a call with, or None."""
    text = str(error)
    return text if isinstance(error, (ValueError, TypeError)) and "rapt" in text and len(text.splitlines()) == 1 else None


def stepped(model, inputs):
    """The last token by itself, behind a cache of the others."""
    first = {name: t[:, :-1] for name, t in inputs.items()}
    cache = model(**first, use_cache=True).past_key_values
    assert cache is not None
    rest = {"input_ids": inputs["input_ids"][:, -1:]} | {name: t for name, t in inputs.items() if name == "attention_mask"}
    return model(**rest, past_key_values=cache, use_cache=True)


def compared(model, what, f, real=None):
    """What is wrong, refused or not to be compared when f(model) goes by rapt, as (verdict, words)."""
    model.set_attn_implementation("eager")
    try:
        expected = f(model)
    except Exception as error:
        return "no eager", line(error)
    if not any(torch.isfinite(t).all() for t in tensors(expected).values()):
        return "no eager", "nothing finite"
    model.set_attn_implementation("rapt")
    calls = watch.calls
    try:
        got = f(model)
    except Exception as error:
        return ("refused", refusal(error)) if refusal(error) else ("wrong", f"{what}: {line(error)}\n{traceback.format_exc()}")
    if watch.calls == calls:
        return "unasked", ""
    far, where = off(expected, got, real)
    if far is None:
        return "no eager", "nothing to compare"
    return ("right", far) if far < FAR else ("wrong", f"{what}: {where} off by {far:.2g}")


def ways(model, inputs):
    """How a model is called: (name, function of it, which tokens count)."""
    yield "plain", lambda m: m(**inputs), None
    if "input_ids" in inputs and "attention_mask" in inspect.signature(model.forward).parameters:
        for side in ("none", "left", "right"):
            given, real = padded(inputs, side)
            yield f"padding: {side}", lambda m, given=given: m(**given), real
    if "input_ids" in inputs and "decoder_input_ids" not in inputs and "past_key_values" in inspect.signature(model.forward).parameters:
        yield "a step", lambda m: stepped(m, inputs), None
        given, _ = padded(inputs, "left")
        yield "a padded step", lambda m: stepped(m, given), None
    if "input_ids" in inputs:
        yield "output_attentions", lambda m: m(**inputs, output_attentions=True), None


def tried(config_class, model_class):
    """The verdicts on a family, with their words, and by how much attention matters."""
    verdicts, matters = collections.defaultdict(list), 0.0
    for changed, model in small_models(config_class, model_class):
        inputs = inputs_for(model)
        for way, f, real in ways(model, inputs):
            if changed and way not in ("plain", "padding: left"):
                continue
            what = f"{changed or 'as it is'}, {way}"
            verdict, words = compared(model, what, f, real)
            verdicts[verdict].append((what, words))
            if way == "plain" and verdict == "no eager" and not changed:
                raise NotMade(words)
        if not changed and verdicts["right"]:
            model.set_attn_implementation("rapt")
            watch.away = True
            try:
                with_attention = model.set_attn_implementation("eager"), model(**inputs)
                model.set_attn_implementation("rapt")
                matters = off(with_attention[1], model(**inputs))[0]
            finally:
                watch.away = False
    return verdicts, matters


def families():
    """The models that Transformers lists: (name, class of its configuration, class of its model)."""
    lists = [modeling_auto.MODEL_MAPPING_NAMES] + [x for name, x in sorted(vars(modeling_auto).items())
                                                  if name.startswith("MODEL_FOR_") and name.endswith("_MAPPING_NAMES")]
    for name in configuration_auto.CONFIG_MAPPING_NAMES:
        classes = [x[name] for x in lists if name in x]
        if classes:
            yield name, classes[0][0] if isinstance(classes[0], (tuple, list)) else classes[0]


def main():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    counts, used = collections.Counter(), collections.Counter()
    for name, model_name in families():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        began = time.process_time()
        try:
            with at_most(SECONDS), contextlib.redirect_stdout(io.StringIO()):
                config_class, model_class = configuration_auto.CONFIG_MAPPING[name], getattr(transformers, model_name)
                verdicts, matters = tried(config_class, model_class)
        except NotMade as error:
            counts["not made"] += 1
            tap.skip(name, f"not made small: {error}")
            continue
        except Exception as error:
            counts["not made"] += 1
            tap.skip(name, f"not made small: {line(error)}")
            continue
        finally:
            used[name] = time.process_time() - began
        n = sum(map(len, verdicts.values()))
        if verdicts["wrong"]:
            counts["wrong"] += 1
            ok(False, name, "\n".join(words for _, words in verdicts["wrong"]))
        elif verdicts["right"]:
            counts["right, refused in part" if verdicts["refused"] else "right"] += 1
            ok(matters > 10 * FAR, f"{name}: right in {len(verdicts['right'])} of {n}, attention matters by {matters:.2g}"
               + "".join(f"; refused: {words}" for words in sorted({w for _, w in verdicts["refused"]}))
               + "".join(f"; {what} not by eager: {words}" for what, words in verdicts["no eager"]), f"attention matters by {matters}")
        elif verdicts["refused"]:
            counts["refused"] += 1
            ok(True, f"{name}: refused: {verdicts['refused'][0][1]}")
        else:
            counts["asks nothing of rapt"] += 1
            tap.skip(name, "has no attention that goes through AttentionInterface")
    print("# " + ", ".join(f"{n} {what}" for what, n in counts.most_common()))
    print("# longest: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in used.most_common(10)), f"; all {sum(used.values()):.0f} s")
    tap.done()


main()
