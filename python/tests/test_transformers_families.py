#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All families of models that Transformers has a list of, so that a new version's new ones are tried by themselves: each is made
small, gets random weights, and must compute with attn_implementation="rapt" what it computes with "eager", or be refused by a line
that says what is not served. In TAP; what cannot be made small is a skip with its reason. Usage: test_transformers_families.py
[NAME ...], the families; all unless given.

Needs rapt, PyTorch and Transformers 5."""
import ast
import collections
import contextlib
import gc
import inspect
import io
import pathlib
import re
import resource
import signal
import sys
import time
import traceback
import warnings
from unittest import mock

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
from transformers import configuration_utils
from transformers.models.auto import configuration_auto, modeling_auto

import rapt.transformers

rapt.transformers.register()
OWN = rapt.transformers._attention_forward
BATCH, TOKENS, PADDED = 2, 13, 4
FAR = 1e-3  # of the largest element: sums of a few layers in f32, in another order
LARGEST = 40_000_000  # parameters: what is larger was not made small
SECONDS = 10  # for a family
MEMORY = 8 << 30  # bytes of address space for all, so that what was not made small fails by itself

# Families that are not tried.
UNTRIED = {"vits": "with random weights it makes hours of speech of a token, in one operation that no timer ends"}
# Families whose attention weights are not compared, for eager's are another thing.
WEIGHTS_APART = {
    "bridgetower": "eager gives weights always, and does not tell attention when they are wanted",
    "granite_swa": "eager's weights leave the sink out, which takes its share of the result afterwards",
    "granitemoe_swa": "as in granite_swa",
}
# Families that are not compared with padding on the left, for what is computed for padding decides about other tokens.
PADDING_APART = {
    "minimax_m3_vl": "its indexer chooses blocks of keys by the states of padding, too, as its source says; padding attends to nothing, "
                     "and is 0 here, where eager has a mean of all values",
    "minimax_m3_vl_text": "as in minimax_m3_vl, whose decoder it is",
}

# ---- Small configurations ----------------------------------------------------------------------------------------------------

# The first rule whose expression is all of an attribute's name gives its new value, of the old one.
LAYERS = r"(?!\w*(feat_extract|expert|fpn|adapter|pos_conv))(\w+_)?(hidden_layers|layers|n_layers?|depth|num_blocks|n_block)"
SIZES = (
    (r"(\w+_)?vocab_size(_\w+)?", lambda x: 120),
    (r"(\w+_)?(max_position_embeddings|n_positions|max_sequence_length|n_ctx|max_seq_len)", lambda x: 128),
    (r"image_size|img_size|input_size", lambda x: 32),
)
WIDTHS = (
    (r"index_topk|index_topk_blocks", lambda x: 4), (r"index_block_size|index_n_heads|index_kpool", lambda x: 2),
    (r"mamba_(n_heads|num_heads)|(linear|lightning)_num_\w*heads", lambda x: 8),
    (r"(\w+_)?(num_key_value_heads|num_kv_heads|n_kv_heads|n_head_kv|multi_query_group_num|kv_n_heads)", lambda x: 1 if x == 1 else 2),
    (r"(\w+_)?(num_attention_heads|attention_heads|num_heads|n_heads?|nhead|num_query_heads)", lambda x: min(x, 4)),
    (r"(\w+_)?(qk_rope_head_dim|rope_head_dim)|rotary_dim", lambda x: 8),
    (r"(\w+_)?(head_dim|head_size|d_kv|kv_channels|head_width|d_head|size_per_head)", lambda x: 16),
    (r"(\w+_)?(lora_rank|low_rank_dim)", lambda x: 16),
    (r"(\w+_)?(intermediate_size|ffn_dim|d_ff|dim_feedforward|n_inner|ffn_hidden_size|mlp_dim|hidden_size_mlp|intermediate_dim)",
     lambda x: 48),
    (r"(\w+_)?(hidden_size|d_model|n_embd|embed_dim|hidden_dim|embedding_size)|dim|width|d_embed", lambda x: 64),
    (r"(\w+_)?(experts_per_tok|experts_per_token|top_k|topk|moe_k|num_selected_experts|top_k_experts)", lambda x: min(x, 2)),
    (r"n_group|topk_group|num_expert_groups?|n_groups", lambda x: 1),
    (r"(\w+_)?(num_experts|num_local_experts|n_routed_experts|num_routed_experts)", lambda x: min(x, 4)),
    (r"first_k_dense_replace|num_dense_layers|attn_layer_offset", lambda x: min(x, 1)),
    (r"attn_layer_period", lambda x: 2),
    (r"(spatial_)?patch_size|patch_stride", lambda x: 8),
    (r"num_frames", lambda x: 2),
    (r"num_queries", lambda x: 4),
    (r"sliding_window|local_attention|attention_window|window_size|attention_chunk_size|sliding_window_size", lambda x: 4),
)
PER_LAYER = re.compile(r"layers_block_type|\w*layer_types|layer_types_\w+|block_types|\w+_per_layer|indexer_types")
FOLLOWS = {"out_features", "out_indices", "stage_names", "transformers_version", "architectures", "dtype"}  # from the rest
FILLED = {"head_dim": 16, "num_key_value_heads": 2, "num_experts_per_tok": 2, "vocab_size": 120, "attn_layer_indices": [1]}


def is_list(name, x):
    return PER_LAYER.fullmatch(name) and isinstance(x, (list, tuple)) and len(x) > 2


def shrunken(values, widths=True, fill=False):
    """A dictionary of a configuration, made small: with widths, in everything; else in what has no part in other sizes. fill: what
    is not said is."""
    small = {}
    rules = (*SIZES, *(WIDTHS if widths else ()))
    depth = values.get("num_hidden_layers")
    # As many layers as there are kinds of them.
    layers = min(4, max([2, *(len(set(map(str, x))) for name, x in values.items() if is_list(name, x))]))
    for name, x in values.items():
        if name in FOLLOWS:
            continue
        rule = next((f for names, f in rules if re.fullmatch(names, name)), None)
        if isinstance(x, dict) and name in ("rope_parameters", "rope_scaling"):
            x = {key: shrunken(y) if isinstance(y, dict) else y for key, y in x.items()}
            if widths and (fill or "mrope_section" in x):  # of three, which together are half of a head
                whole = round(8 * (x.get("partial_rotary_factor") or values.get("partial_rotary_factor") or 1))
                x["mrope_section"] = [whole - 2 * (whole // 3), whole // 3, whole // 3]
        elif isinstance(x, dict) and name == "per_layer_config":
            x = {key: shrunken(y, widths) if isinstance(y, dict) else y for key, y in x.items() if int(key) < layers}
        elif isinstance(x, dict) and name not in ("id2label", "label2id"):
            x = shrunken(x, widths, fill)
        elif re.fullmatch(LAYERS, name) and isinstance(x, int) and not isinstance(x, bool) and x > 0:
            x = min(x, layers)
        elif rule and isinstance(x, int) and not isinstance(x, bool) and x > 0:
            x = rule(x)
        elif rule and isinstance(x, (list, tuple)) and len(x) == 2 and name in ("image_size", "patch_size"):
            x = [rule(y) for y in x]
        elif is_list(name, x):
            kinds = [y for i, y in enumerate(x) if y not in x[:i]][:layers]
            x = kinds + [kinds[-1]] * (layers - len(kinds))
        elif isinstance(x, (list, tuple)) and len(x) == depth:
            x = [min(y, 48) if name == "intermediate_size" else y for y in x[:layers]]
        elif name == "attention_types" and isinstance(x, (list, tuple)):
            x = [[x[0][0], 1]]
        elif name.endswith("_token_id") and isinstance(x, int) and x >= 100:
            x = 100 + sum(map(ord, name)) % 19
        elif fill and x is None:
            x = FILLED.get(name)
        small[name] = x
    heads = small.get("num_attention_heads")
    if widths and heads and values.get("num_key_value_heads") == values["num_attention_heads"]:
        small["num_key_value_heads"] = heads
    if widths and "qk_rope_head_dim" in small:  # DeepSeek's latent attention
        small |= {name: x for name, x in (("head_dim", 8), ("qk_head_dim", 24), ("swa_head_dim", 24), ("num_key_value_heads", heads))
                  if name in small}
    return small


class NotMade(BaseException):
    """A family that cannot be made small in the general way, and why. Not an Exception, which somebody may swallow."""


class NoCache(Exception):
    """An encoder, say, which has no steps."""


def line(error):
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:150]}" + (f" ... {lines[-1].strip()[:150]}" if "validation error" in lines[0] else "")


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


class Pool:
    """Random numbers that tensors take in turn: to draw each tensor's own is a third of the time in which models are made."""
    COUNT = 1_000_003  # a prime, so that the rows of a larger tensor are not the same

    def __init__(self, draw):
        self.numbers, self.next = draw(torch.empty(self.COUNT), generator=torch.Generator().manual_seed(7)), 0

    def fill(self, x, factor, term):
        if x.is_meta:
            return x
        to = x if x.is_contiguous() else torch.empty_like(x, memory_format=torch.contiguous_format)
        for part in to.view(-1).tensor_split(list(range(self.COUNT - self.next, to.numel(), self.COUNT))):
            part.copy_(self.numbers[self.next:self.next + len(part)]).mul_(factor).add_(term)
            self.next = (self.next + len(part)) % self.COUNT
        return x if to is x else x.copy_(to)


NORMAL, UNIFORM = Pool(torch.Tensor.normal_), Pool(torch.Tensor.uniform_)


@contextlib.contextmanager
def pooled():
    """Tensors are filled from the pools, from their beginnings."""
    NORMAL.next = UNIFORM.next = 0
    with contextlib.ExitStack() as stack:
        for name, f in (("normal_", lambda x, mean=0, std=1, generator=None: NORMAL.fill(x, std, mean)),
                        ("uniform_", lambda x, low=0, high=1, generator=None: UNIFORM.fill(x, high - low, low))):
            stack.enter_context(mock.patch.object(torch.Tensor, name, f))
        yield


@pooled()
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
                # Positions would drown what attention finds, and products of unit variance leave it undrowned.
                places = "position" in key and "bias" not in key
                fan = p[0].numel() if p.dim() != 3 else p.shape[-1]
                p.normal_(0, 0.1 if places else 1.0 if re.search("embed|wte|relative", key) else max(fan, 1) ** -0.5)
            elif "sink" in key:
                p.normal_()
            elif re.search(r"layer_?scale|lambda|gamma|\.scale$", key):
                p.fill_(1.0)
    if hasattr(model, "set_experts_implementation"):
        with contextlib.suppress(Exception):
            model.set_experts_implementation("eager")
    return model


def small_models(config_class, model_class):
    """Small models of this class, with inputs, and what was changed in each: the plain one first, then each option of attention."""
    reasons = []
    default = config_class().to_dict()
    default.pop("model_type", None)
    for widths, fill in ((True, False), (True, True), (False, False)):
        try:
            values = shrunken(default, widths, fill)
            model = made(config_class, model_class, values)
        except NotMade as error:
            reasons.append(str(error))
            continue
        except Exception as error:
            reasons.append(line(error))
            continue
        for kind in range(5):
            try:
                inputs = inputs_for(model, kind)
                model(**inputs)
            except NotMade as error:
                reasons.append(str(error))
            except Exception as error:
                reasons.append(line(error))
            else:
                yield "", model, inputs
                # Kinds of layers that the model knows, whether its own configuration has them or not.
                source = inspect.getsource(sys.modules[model_class.__module__])
                kinds = [name for name in getattr(configuration_utils, "ALLOWED_ATTN_LAYER_TYPES", ()) if f'"{name}"' in source]
                for names, x in options_of(values, kinds):
                    # Some combinations are refused by the model's own configuration.
                    with contextlib.suppress(Exception):
                        model = made(config_class, model_class, with_option(values, names, x))
                        yield f"{'.'.join(names)}={x}", model, inputs_for(model, kind)
                return
    raise NotMade("; ".join(list(dict.fromkeys(reasons))[:2]))


FLAGS = re.compile(r"\w*(attn|attention|bias|window|softcap|sink|causal|qk|alibi|relative|multi_query|rotary|rope|mask|decoder)\w*")
NOT_FLAGS = re.compile(r"output_attentions|\w*implementation\w*|attention_dropout|\w*dropout\w*|is_encoder_decoder|add_cross_attention|tie_\w+")
NUMBERS = {"attn_logit_softcapping": (2.0,), "sliding_window": (4, None), "attention_chunk_size": (4,), "num_key_value_heads": (1, 4),
           "use_sliding_window": (True,), "attn_logit_softcap": (2.0,), "attention_logit_cap": (2.0,)}


def options_of(values, kinds):
    """Each option of attention in a configuration with another value: (names, the outer ones first, value). kinds: of layers."""
    for name, x in values.items():
        if isinstance(x, dict) and name.endswith("config"):
            for inner, y in options_of(x, kinds):
                yield (name, *inner), y
        elif isinstance(x, bool) and FLAGS.fullmatch(name) and not NOT_FLAGS.fullmatch(name):
            yield (name,), not x
        elif name in NUMBERS and not isinstance(x, bool):
            for y in NUMBERS[name]:
                if y != x:
                    yield (name,), y
        elif name == "layer_types" and isinstance(x, list):
            for kind in dict.fromkeys([*x, *kinds]):
                if any(kind != y for y in x):
                    yield (name,), [kind] * len(x)


def with_option(values, names, x):
    """values, but with x under these names."""
    name, *inner = names
    return values | {name: with_option(values[name], inner, x) if inner else x}


# ---- Inputs ------------------------------------------------------------------------------------------------------------------


def found(config, *names):
    """The first of these attributes that the configuration, or one of its parts, has."""
    parts = [config, *(getattr(config, part) for part in getattr(config, "sub_configs", {}) if getattr(config, part, None) is not None)]
    return next((getattr(part, name) for name in names for part in parts if getattr(part, name, None) is not None), None)


def inputs_for(model, kind):
    """Inputs for model: what its forward() needs of what is known here. Models disagree about what a picture or a sound is, so there
    are several kinds: text alone or whatever is the main input; a picture beside it; sound with its features last; with a channel;
    pairs of pictures."""
    torch.manual_seed(3)
    parameters = inspect.signature(model.forward).parameters
    config, given = model.config, {}
    vocabulary = min(int(found(config, "vocab_size") or 100), 100)
    size = found(config, "image_size", "img_size", "input_size") or 32
    size = (size, size) if isinstance(size, int) else tuple(size)[-2:] if isinstance(size, (list, tuple)) else (32, 32)
    channels = found(config, "num_channels", "in_channels", "in_chans") or 3
    picture = torch.randn(BATCH, channels, *size)
    film = picture[:, None].repeat(1, 2, 1, 1, 1)
    if re.search("[Vv]ideo|Vivit|VJEPA|Timesformer", type(model).__name__):
        picture = picture[:, None].repeat(1, found(config, "num_frames") or 2, 1, 1, 1)
    elif kind == 4:
        picture = film
    bins = found(config, "num_mel_bins", "input_feat_per_channel", "feature_size") or 80
    sound = torch.randn(BATCH, bins, 2 * (found(config, "max_source_positions") or 64))
    text = torch.randint(3, vocabulary, (BATCH, TOKENS))
    patch = found(config, "patch_size") or 8
    patch = patch if isinstance(patch, int) else patch[-1]
    patches = torch.randn(BATCH * 16, channels * (found(config, "temporal_patch_size") or 1) * patch ** 2)
    grid = torch.tensor([[1, 4, 4]] * BATCH)
    states = torch.randn(BATCH, TOKENS, found(config, "hidden_size", "d_model") or 64)
    in_patches = {"grid_thw", "image_grid_thw"} & set(parameters) and "input_ids" not in parameters
    known = {"input_ids": text, "decoder_input_ids": text.flip(1), "pixel_values": patches if in_patches else picture,
             "pixel_values_videos": film, "hidden_states": patches if in_patches else states,
             "input_features": sound.transpose(1, 2) if kind == 2 else sound, "grid_thw": grid, "image_grid_thw": grid,
             "input_features_mask": torch.ones(BATCH, sound.shape[2 if kind != 2 else 1], dtype=torch.long),
             "input_values": torch.randn(BATCH, 1, 3000) if kind == 3 else torch.randn(BATCH, 3000), "query_embeds": states,
             "bbox": torch.zeros(BATCH, TOKENS, 4, dtype=torch.long)}
    needed = [name for name, p in parameters.items() if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    wanted = {"input_ids", "decoder_input_ids"} | {model.main_input_name} | ({"pixel_values", "bbox"} if kind in (1, 4) else set())
    if "input_ids" not in parameters:
        wanted |= {"pixel_values"}
    for name in parameters:
        if name in needed or name in wanted:
            if name not in known:
                raise NotMade(f"no {name} is known to this test")
            given[name] = known[name]
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


def off(a, b, real=None, weights=True):
    """The largest difference of two outputs, in parts of the largest element, and where; None where nothing can be compared."""
    a, b = ({name: t for name, t in tensors(x).items() if weights or "attentions" not in name} for x in (a, b))
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
    cache = getattr(model(**first, use_cache=True), "past_key_values", None)
    if cache is None:
        raise NoCache
    rest = {"input_ids": inputs["input_ids"][:, -1:]} | {name: t for name, t in inputs.items() if name == "attention_mask"}
    return model(**rest, past_key_values=cache, use_cache=True)


def compared(model, what, f, real=None, weights=True):
    """What is wrong, refused or not to be compared when f(model) goes by rapt, as (verdict, words)."""
    model.set_attn_implementation("eager")
    torch.manual_seed(5)  # some draw what they mask
    try:
        expected = f(model)
    except NoCache:
        return "no step", ""
    except Exception as error:
        return "no eager", line(error)
    if not any(torch.isfinite(t).all() for t in tensors(expected).values()):
        return "no eager", "nothing finite"
    model.set_attn_implementation("rapt")
    calls = watch.calls
    torch.manual_seed(5)
    try:
        got = f(model)
    except Exception as error:
        return ("refused", refusal(error)) if refusal(error) else ("wrong", f"{what}: {line(error)}\n{traceback.format_exc()}")
    if watch.calls == calls:
        return "unasked", ""
    far, where = off(expected, got, real, weights)
    if far is None:
        return "no eager", "nothing to compare"
    return ("right", far) if far < FAR else ("wrong", f"{what}: {where} off by {far:.2g}")


def called(model, implementation, inputs):
    model.set_attn_implementation(implementation)
    torch.manual_seed(5)
    return model(**inputs)


def ways(model, inputs, sides):
    """How a model is called: (name, function of it, which tokens count). sides: where it is padded."""
    yield "plain", lambda m: m(**inputs), None
    if "input_ids" in inputs and "attention_mask" in inspect.signature(model.forward).parameters:
        for side in sides:
            given, real = padded(inputs, side)
            yield f"padding: {side}", lambda m, given=given: m(**given), real
    if "input_ids" in inputs and "decoder_input_ids" not in inputs and "past_key_values" in inspect.signature(model.forward).parameters:
        yield "a step", lambda m: stepped(m, inputs), None
        if "left" in sides:
            given, _ = padded(inputs, "left")
            yield "a padded step", lambda m: stepped(m, given), None
    if "input_ids" in inputs:
        yield "output_attentions", lambda m: m(**inputs, output_attentions=True), None


def tried(config_class, model_class, weights, sides):
    """The verdicts on a family, with their words, and by how much attention matters. weights: whether those of attention are compared.
    sides: where its inputs are padded."""
    verdicts, matters = collections.defaultdict(list), 0.0
    for changed, model, inputs in small_models(config_class, model_class):
        for way, f, real in ways(model, inputs, sides):
            if changed and way not in ("plain", "padding: left"):
                continue
            what = f"{changed or 'as it is'}, {way}"
            verdict, words = compared(model, what, f, real, weights)
            verdicts[verdict].append((what, words))
        if not changed and verdicts["right"]:
            with_attention = called(model, "eager", inputs)
            watch.away = True
            try:
                matters = off(with_attention, called(model, "rapt", inputs), weights=weights)[0]
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


def eager_arguments():
    """No model's own eager attention may look at an argument that rapt takes to be without meaning."""
    looked_at = set()
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("transformers.models."):
            for name, f in vars(module).items():
                if "eager_attention_forward" in name and inspect.isfunction(f):
                    loaded = {node.id for node in ast.walk(ast.parse(inspect.getsource(f))) if isinstance(node, ast.Name)}
                    looked_at |= {(parameter, module.__name__.rsplit(".", 1)[-1])
                                  for parameter in inspect.signature(f).parameters if parameter in loaded}
    wrong = sorted((name, where) for name, where in looked_at if name in rapt.transformers._MEANINGLESS)
    ok(looked_at and not wrong, f"none of {len(looked_at)} arguments that eager attention looks at is taken to be without meaning", wrong)


def main():
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    torch.set_grad_enabled(False)
    counts, used = collections.Counter(), collections.Counter()
    for name, model_name in families():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        if name in UNTRIED:
            counts["not tried"] += 1
            tap.skip(name, UNTRIED[name])
            continue
        began = time.process_time()
        try:
            with at_most(SECONDS), contextlib.redirect_stdout(io.StringIO()):
                config_class, model_class = configuration_auto.CONFIG_MAPPING[name], getattr(transformers, model_name)
                verdicts, matters = tried(config_class, model_class, name not in WEIGHTS_APART,
                                          ("none", "right") if name in PADDING_APART else ("none", "left", "right"))
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
            gc.collect()
            gc.freeze() # what is left is modules, which each collection would look through again: a third of all the time
        n = sum(len(words) for verdict, words in verdicts.items() if verdict != "no step")
        if verdicts["wrong"]:
            counts["wrong"] += 1
            ok(False, name, "\n".join(words for _, words in verdicts["wrong"]))
        elif verdicts["right"] and matters < 10 * FAR:
            counts["right whatever attention says"] += 1
            tap.skip(name, f"without attention the result is off by {matters:.2g} only, which proves nothing")
        elif verdicts["right"]:
            counts["right, refused in part" if verdicts["refused"] else "right"] += 1
            ok(True, f"{name}: right in {len(verdicts['right'])} of {n}, off by {matters:.2g} without attention"
               + (f"; weights apart: {WEIGHTS_APART[name]}" if name in WEIGHTS_APART else "")
               + (f"; padding on the left apart: {PADDING_APART[name]}" if name in PADDING_APART else "")
               + "".join(f"; refused: {words}" for words in sorted({w for _, w in verdicts["refused"]}))
               + "".join(f"; {what} not by eager: {words}" for what, words in verdicts["no eager"]))
        elif verdicts["refused"]:
            counts["refused"] += 1
            ok(True, f"{name}: refused: {verdicts['refused'][0][1]}")
        else:
            counts["asks nothing of rapt"] += 1
            tap.skip(name, "has no attention that goes through AttentionInterface")
    if not sys.argv[1:]:  # else what breaks the test itself would be so many skips
        right, families_seen = sum(n for what, n in counts.items() if what.startswith("right")), sum(counts.values())
        ok(right > families_seen / 2, f"{right} of {families_seen} families are compared")
    eager_arguments()
    print("# " + ", ".join(f"{n} {what}" for what, n in counts.most_common()))
    print("# longest: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in used.most_common(10)), f"; all {sum(used.values()):.0f} s")
    tap.done()


main()
