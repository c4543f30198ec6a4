# SPDX-License-Identifier: Apache-2.0
"""Which modules of a model rapt serves, without a run: rapt.torch.report()."""
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

_MOST_CHANNELS = 1024  # of a head


class Module(NamedTuple):
    """A module that looks like attention."""
    name: str
    kind: str
    served: bool | None  # None: it depends on how it is called, or cannot be seen
    why: str

    def __repr__(self) -> str:
        word = {True: "served", False: "not served", None: "may be served"}[self.served]
        return f"{self.name or '(the model)'} ({self.kind}): {word}: {self.why}"


class Report:
    """What report() has found: modules, in the model's order, and whether rapt.torch is enabled."""

    def __init__(self, enabled: bool, modules: list[Module]):
        self.enabled, self.modules = enabled, modules

    def __repr__(self) -> str:
        counts = [sum(module.served is served for module in self.modules) for served in (True, False, None)]
        first = (f"rapt.torch is {'' if self.enabled else 'not '}enabled; modules that look like attention: {len(self.modules)}, "
                 f"served {counts[0]}, not served {counts[1]}, may be served {counts[2]}")
        return "\n  ".join([first, *map(repr, self.modules)])


def _is_attention(module: torch.nn.Module) -> bool:
    name = type(module).__name__.lower()
    return "attention" in name or "attn" in name or _names_sdpa(type(module))


def _innermost(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Modules that look like attention, and contain none that do."""
    found = [(name, module) for name, module in model.named_modules() if _is_attention(module)]
    for name, module in found:
        inner = [m for m in module.modules() if m is not module and _is_attention(m)]
        if isinstance(module, torch.nn.MultiheadAttention) or not inner:
            yield name, module


def _names(code: types.CodeType) -> set[str]:
    """All that a function's code, and that of functions in it, calls by name."""
    return set(code.co_names).union(*[_names(inner) for inner in code.co_consts if isinstance(inner, types.CodeType)])


def _names_sdpa(kind: type) -> bool:
    """Whether a method of a class names F.scaled_dot_product_attention."""
    own = [base for base in kind.__mro__ if base not in (torch.nn.Module, torch.nn.MultiheadAttention, object)]
    methods = [f for base in own for f in vars(base).values()]
    return any("scaled_dot_product_attention" in _names(f.__code__) for f in methods if isinstance(f, types.FunctionType))


def _why_tensors(module: torch.nn.Module, why_type: Callable[[torch.dtype], str | None]) -> str | None:
    """What its parameters say about why rapt will not serve it."""
    for parameter in module.parameters():
        if parameter.device.type != "cpu":
            return f"its parameters are on {parameter.device}"
        if parameter.is_floating_point():
            return why_type(parameter.dtype)
    return None


def _of_pytorch(module: torch.nn.MultiheadAttention, parent: torch.nn.Module | None, enabled: bool) -> tuple[bool | None, str]:
    if module.training and module.dropout:
        return False, f"dropout {module.dropout} in training: call model.eval(), or set its dropout to 0"
    if module.head_dim > _MOST_CHANNELS:
        return False, f"its heads have {module.head_dim} channels, of {_MOST_CHANNELS} at most"
    layer = isinstance(parent, (torch.nn.TransformerEncoderLayer, torch.nn.TransformerDecoderLayer))
    if not module.training and enabled and torch.backends.mha.get_fastpath_enabled():
        return None, "PyTorch's fast path, which has attention of its own, is on: torch.backends.mha.set_fastpath_enabled(False)"
    if layer:
        return True, f"{type(parent).__name__} calls it with need_weights=False"
    return None, ("only if it is called with need_weights=False; with True, the default, it does not call "
                  "F.scaled_dot_product_attention")


def _of_transformers(module: torch.nn.Module, model: Any) -> tuple[bool | None, str]:
    config: Any = module.config
    kind = config._attn_implementation
    dropout = max([float(p) for p in (getattr(config, name, None) for name in (
        "attention_dropout", "attention_probs_dropout_prob", "attn_pdrop")) if isinstance(p, (int, float))], default=0.0)
    if kind not in ("sdpa", "rapt"):
        if model is not None and not any(getattr(model, f"_supports_{way}", False) for way in ("sdpa", "attention_backend")):
            return False, f"{type(model).__name__} has attention of its own ({kind}) and takes no other"
        return False, (f"attn_implementation is {kind!r}: model.set_attn_implementation('rapt') after "
                       "rapt.transformers.register(), or 'sdpa'")
    if module.training and dropout:
        return False, f"dropout {dropout} in training: call model.eval()"
    return True, f"attn_implementation is {kind!r}"


def _of_others(module: torch.nn.Module) -> tuple[bool | None, str]:
    if getattr(module, "fused_attn", True) is False:  # timm's
        return False, "its fused_attn is False"
    processor = getattr(module, "processor", None)  # diffusers'
    by = module if processor is None else processor
    if _names_sdpa(type(by)):
        return True, f"{type(by).__name__} calls F.scaled_dot_product_attention"
    return None, f"{type(by).__name__} does not name F.scaled_dot_product_attention: run it once, and see rapt.torch.stats()"


def report_on(model: torch.nn.Module, enabled: bool, why_type: Callable[[torch.dtype], str | None]) -> Report:
    """why_type: why attention of a type is left to PyTorch, or None."""
    modules = dict(model.named_modules())
    found = []
    for name, module in _innermost(model):
        above = [modules[".".join(name.split(".")[:n])] for n in range(len(name.split(".")) - 1, -1, -1)] if name else []
        by_transformers = isinstance(getattr(getattr(module, "config", None), "_attn_implementation", None), str)
        if isinstance(module, torch.nn.MultiheadAttention):
            served, why = _of_pytorch(module, above[0] if above else None, enabled)
        elif by_transformers:
            served, why = _of_transformers(module, next((m for m in [module, *above] if hasattr(m, "_supports_sdpa")), None))
        else:
            served, why = _of_others(module)
        registered = by_transformers and module.config._attn_implementation == "rapt"
        if served is not False:
            unserved = None if enabled or registered else "rapt.torch.enable() has not been called"
            unserved = unserved or (_why_tensors(module, why_type) if not registered else None)
            if unserved:
                served, why = False, f"{unserved} (else: {why})" if served is None else unserved
        found.append(Module(name, type(module).__name__, served, why))
    return Report(enabled, found)
