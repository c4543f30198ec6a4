# SPDX-License-Identifier: Apache-2.0
"""Models of PyTorch whose bits are the same on every CPU: rapt.torch.reproducible() and rapt.transformers.reproducible().

Linear layers, norms and perceptrons are recognised by what they compute, and replaced. Whatever else a module computes by
itself is found by running it (Observer): a module in which operators ran whose bits are not the same everywhere runs under
Substituting from then on, which puts ours in their place (_substitutes)."""
import collections
import contextlib
import copy
import functools
import itertools
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module
from torch.utils._python_dispatch import TorchDispatchMode

from . import _isa as isa_
from . import _products as products
from . import _substitutes as substitutes
from ._arguments import flag, float_arith, shown
from ._layer import prepack_weights, quantise_weights

# ---- Running under modes -----------------------------------------------------------------------------------------------------


class _Active(threading.local):
    """Whether a mode of this thread substitutes already."""
    mode: Any = None


_active = _Active()


class _Unfused:
    """Has PyTorch compute layers by operators, of which they would otherwise come as one: encoders' and LSTM's. The settings are of
    the process, so threads share them: the first one changes them, the last one puts them back."""

    def __init__(self) -> None:
        self._lock, self._users = threading.Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._before = torch.backends.mha.get_fastpath_enabled(), torch.backends.mkldnn.enabled
                torch.backends.mha.set_fastpath_enabled(False)
                torch._C._set_mkldnn_enabled(False)
            self._users += 1

    def __exit__(self, *error: Any) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                torch.backends.mha.set_fastpath_enabled(self._before[0])
                torch._C._set_mkldnn_enabled(self._before[1])


_unfused = _Unfused()


class Substituting(TorchDispatchMode):
    """Runs our substitutes of operators whose bits are not the same everywhere, and PyTorch's other operators."""

    def __init__(self) -> None:
        super().__init__()
        self._before: list[Any] = []  # of each time that it was entered: operators of several parts enter it again

    def __enter__(self) -> Any:
        self._before.append(_active.mode)
        _active.mode = self
        _unfused.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _unfused.__exit__()
        _active.mode = self._before.pop()

    def __torch_dispatch__(self, operator: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        ours = substitutes.substitute(operator)
        if ours is not None:
            try:
                result = ours(*args, **kwargs)
                self.computed(operator, args, kwargs, result, True)
                return result
            except substitutes.NotServed:
                pass
        elif (parts := _parts(operator)) is not None:
            with self:
                return parts(*args, **kwargs)
        result = operator(*args, **kwargs)
        self.computed(operator, args, kwargs, result, False)
        return result

    def computed(self, operator: Any, args: Any, kwargs: Any, result: Any, substituted: bool) -> None:
        """What an Observer looks at."""


@functools.cache
def _parts(operator: Any) -> Callable[..., Any] | None:
    """What an operator consists of, if it is others of PyTorch's: those that come whole under torch.inference_mode(), and
    those that a library defines in Python."""
    if operator.namespace != "aten":
        defined = torch._library.custom_ops.OPDEFS.get(operator._schema.name)
        return None if defined is None else defined._init_fn
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd")
    return operator.decompose if composite else None


class Observer(Substituting):
    """Notes which operators the thread runs in which module, and whether their bits are the same everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[Module] = []
        self.seen: collections.Counter[tuple[Module | None, str, str, bool, str]] = collections.Counter()
        self.substituted: dict[Module | None, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        self._hooks = contextlib.ExitStack()

    def __enter__(self) -> Any:
        if not self._before:
            hooks, self._thread = torch.nn.modules.module, threading.get_ident()
            for handle in (hooks.register_module_forward_pre_hook(lambda module, _: self._come(module)),
                           hooks.register_module_forward_hook(lambda *_: self._leave(), always_call=True)):
                self._hooks.callback(handle.remove)
        return super().__enter__()

    def _come(self, module: Module) -> None:  # which hooks say of all threads
        if threading.get_ident() == self._thread:
            self.running.append(module)

    def _leave(self) -> None:
        if threading.get_ident() == self._thread:
            self.running.pop()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if not self._before:
            self._hooks.close()

    def computed(self, operator: Any, args: Any, kwargs: Any, result: Any, substituted: bool) -> None:
        module = self.running[-1] if self.running else None
        name = substitutes.base_name(operator)
        if substituted:
            self.substituted[module][name] += 1
            return
        same, why = substitutes.judge(operator, args, kwargs, result)
        dtype = next((str(t.dtype).removeprefix("torch.") for t in substitutes._tensors([result, *args])), "")
        self.seen[module, name, dtype, same, why] += 1


class _Forward:
    """What stands in the place of a module's forward."""

    def __init__(self, module: Module):
        self.module, self.before = module, module.__dict__.get("forward")

    @property
    def own(self) -> Callable[..., Any]:
        """The module's own. Not kept, since a pickled method would be found by its name, which is ours."""
        return self.before or types.MethodType(type(self.module).forward, self.module)

    __wrapped__ = own  # whose signature it has

    def by_operators(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module with our operators."""
        if torch.jit.is_tracing():
            raise RuntimeError("a reproducible model cannot be traced by torch.jit.trace(), which does not see what rapt computes")
        if _active.mode is not None:
            return self.own(*args, **kwargs)
        with Substituting():
            return self.own(*args, **kwargs)

    def forget(self) -> None:
        """Forgets what was made of the module's parameters."""


class _Substituted(_Forward):
    """Runs a module with our operators."""
    __call__ = _Forward.by_operators


# ---- Replacements ------------------------------------------------------------------------------------------------------------


def _is_served(x: Any) -> bool:
    """Whether rapt can compute of it: a plain tensor of its types. What wants gradients is refused."""
    if isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled():
        raise RuntimeError("a reproducible model computes no gradients, which its input requires: call it under torch.no_grad(), or "
                           "restore() it")
    return type(x) in (Tensor, torch.nn.Parameter) and x.dtype in products.TYPES and not torch.jit.is_tracing()


class Options(NamedTuple):
    """Of linear layers."""
    weights: str | None
    arith: str
    prepack: bool


def _version(t: Tensor | None) -> Any:
    """What changes if a tensor does."""
    return None if t is None else (t.data_ptr(), t.dtype, t.shape, t.stride(), 0 if t.is_inference() else t._version)


class _Weight:
    """A linear layer's weights, as they are to be multiplied; made anew where they have changed."""

    def __init__(self, module: Module, options: Options, turned: bool = False):
        self.module, self.options, self.turned = module, options, turned
        self.of: Any = None
        self.made: products.Matrix

    def __deepcopy__(self, memo: Any) -> "_Weight":
        return _Weight(copy.deepcopy(self.module, memo), self.options, self.turned)

    def __getstate__(self) -> dict[str, Any]:
        return {"module": self.module, "options": self.options, "turned": self.turned, "of": None}

    def matrix(self) -> products.Matrix:
        weight: Any = self.module.weight
        version = _version(weight)
        if self.of != version:
            given = weight.detach().t() if self.turned else weight.detach()
            self.made = products.Matrix(self._kept(given))
            self.of = version
        return self.made

    def _kept(self, weight: Tensor) -> Any:
        kind = self.options.weights
        kept: Any = weight
        if kind is not None and not (kind in ("q8_0", "q4_0", "q4_1") and weight.shape[1] % 32):
            kept = quantise_weights(weight.contiguous(), kind)
        elif self.turned:
            kept = weight.contiguous()
        return prepack_weights(kept, arith=self.options.arith) if self.options.prepack else kept


class _Linear(_Forward):
    """activation(x W^T + b), or its products with a gate's, by rapt; layers that follow one another inside of a perceptron."""

    def __init__(self, module: Module, layers: list[Module], activation: str | None, options: Options):
        """layers: the only one; the first and the last; or gate, up and down."""
        super().__init__(module)
        self.weights = [_Weight(layer, options, not isinstance(layer, torch.nn.Linear)) for layer in layers]
        self.activation, self.arith = activation, options.arith

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        x = args[0] if len(args) == 1 and not kwargs else None
        if not _is_served(x):
            return self.by_operators(*args, **kwargs)
        matrices = [weight.matrix() for weight in self.weights]
        biases: list[Any] = [weight.module.bias for weight in self.weights]
        run = functools.partial(products.linear, arith=self.arith)
        if len(matrices) == 3:
            x = run(x, matrices[1], biases[1], activation=self.activation, gate=matrices[0], gate_bias=biases[0])
        elif len(matrices) == 2 or self.activation:
            x = run(x, matrices[0], biases[0], activation=self.activation)
        else:
            return run(x, matrices[0], biases[0])
        return x if len(matrices) == 1 else run(x, matrices[-1], biases[-1])

    def forget(self) -> None:
        for weight in self.weights:
            weight.of = None

    @property
    def says(self) -> str:
        return {1: "linear layer", 2: "perceptron", 3: "gated perceptron"}[len(self.weights)] + (
            f" with {self.activation}" if self.activation else "")


class _Norm(_Forward):
    """Layer or RMS normalisation by rapt."""

    def __init__(self, module: Module, family: str, epsilon: float, offset: float = 0):
        super().__init__(module)
        self.family, self.epsilon, self.offset = family, epsilon, offset
        self.of, self.weight = None, None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        x = args[0] if len(args) == 1 and not kwargs else None
        if not _is_served(x):
            return self.by_operators(*args, **kwargs)
        weight: Any = getattr(self.module, "weight", None)
        version: Any = _version(weight)
        if self.of != version:
            self.of, self.weight = version, None if weight is None else weight.detach().float() + self.offset
        return products.norm(self.family, x, self.weight, getattr(self.module, "bias", None), self.epsilon)

    def forget(self) -> None:
        self.of = None

    @property
    def says(self) -> str:
        return {"layer_norm": "layer norm", "rms_norm": "RMS norm"}[self.family]


def _is_changed(module: Module) -> bool:
    """Whether something was put around the module's forward, which must go on."""
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__)


def _is_linear(module: Module) -> bool:
    """Whether it is nn.Linear, or Transformers' Conv1D, which keeps its weights turned, of a type that rapt has."""
    forward = type(module).forward
    turned = type(module).__name__ == "Conv1D" and hasattr(module, "nf")
    weight: Any = getattr(module, "weight", None)
    if not (forward is torch.nn.Linear.forward or turned) or not isinstance(weight, Tensor):
        return False
    return weight.dtype in products.TYPES and weight.numel() > 0


_PROBES = (0.01, 1.0)  # sizes of what norms are tried with, of which the first shows epsilon


def _is_close(y: Any, expected: Tensor) -> bool:
    return isinstance(y, Tensor) and y.shape == expected.shape and torch.allclose(y, expected, 1e-5, 2e-6)


def _epsilons(module: Module) -> list[float]:
    return sorted({x for name, x in vars(module).items() if "eps" in name and isinstance(x, float)})


def _norm_of(module: Module) -> _Norm | None:
    """A norm, if a module computes one."""
    own = list(module.parameters(recurse=False))
    if any(t.dtype not in products.TYPES for t in own):
        return None
    if type(module).forward is torch.nn.LayerNorm.forward:
        return _Norm(module, "layer_norm", float(module.eps)) if len(module.normalized_shape) == 1 else None
    if type(module).forward is torch.nn.RMSNorm.forward and len(module.normalized_shape) == 1 and own:
        return _Norm(module, "rms_norm", float(torch.finfo(own[0].dtype).eps if module.eps is None else module.eps))
    weight: Any = getattr(module, "weight", None)
    if list(module.children()) or len(own) != 1 or own[0] is not weight or weight.dim() != 1:
        return None
    try:
        alike = copy.deepcopy(module).float()
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(2, weight.numel(), generator=generator)
        found = [alike(x * size) for size in _PROBES]
    except Exception:  # whatever a module does with what it was not made for
        return None
    for epsilon in _epsilons(module):
        for offset in (0.0, 1.0):
            ours = [F.rms_norm(x * size, weight.shape, weight.detach().float() + offset, epsilon) for size in _PROBES]
            if all(_is_close(a, b) for a, b in zip(found, ours)):
                return _Norm(module, "rms_norm", epsilon, offset)
    return None


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu, "gelu": F.gelu, "gelu_tanh": functools.partial(F.gelu, approximate="tanh"), "silu": F.silu}


def _activation_of(module: Module) -> str | None:
    """The name of what a module without parameters computes."""
    if list(module.parameters()) or list(module.children()):
        return None
    x = torch.linspace(-7, 7, 141)
    try:
        y = module(x)
    except Exception:  # as above
        return None
    return next((name for name, f in _ACTIVATIONS.items() if _is_close(y, f(x))), None)


def _perceptron_of(module: Module, options: Options) -> _Linear | None:
    """A perceptron, if a module computes one: linear layers with an activation, and with a gate."""
    children = [child for child in module.children() if list(child.parameters()) or _activation_of(child)]
    layers = [child for child in children if _is_linear(child)]
    activations = [name for name in map(_activation_of, children) if name]
    others = [child for child in module.children()
              if child not in children and type(child).forward is not torch.nn.Dropout.forward]
    if (not 1 <= len(layers) <= 3 or len(activations) != 1 or len(children) != len(layers) + 1 or others
            or list(module.parameters(recurse=False)) or any(map(_is_changed, module.modules()))):
        return None
    orders = [list(order) for order in itertools.permutations(layers)] if len(layers) == 3 else [layers]
    weights: Any = [layer.weight for layer in layers]
    x = torch.randn(1, 2, _width(layers[0]), generator=torch.Generator().manual_seed(1)).to(weights[0].dtype)
    try:
        own = module(x)
    except Exception:  # as above
        return None
    if not isinstance(own, Tensor) or type(own) is not Tensor:
        return None
    for order in orders:
        made = _Linear(module, order, activations[0], options._replace(weights=None, prepack=False))
        if len(order) == 3 and not _width(order[0]) == _width(order[1]) == x.shape[-1]:
            continue
        with contextlib.suppress(RuntimeError, ValueError):
            ours = made(x)
            far = (ours.float() - own.float()).norm() / own.float().norm().clamp(min=1e-30)
            if ours.shape == own.shape and far < (1e-4 if x.dtype is torch.float32 else 3e-2):
                return _Linear(module, order, activations[0], options)
    return None


def _width(layer: Module) -> int:
    """How many channels come in."""
    weight: Any = layer.weight
    return int(weight.shape[1 if isinstance(layer, torch.nn.Linear) else 0])


# ---- Reports -----------------------------------------------------------------------------------------------------------------


class Left(NamedTuple):
    """An operator of PyTorch's own that ran in a module."""
    module: str  # its name, or what else called it
    operator: str
    dtype: str
    calls: int
    same: bool  # whether its bits are the same on every CPU
    why: str

    def __str__(self) -> str:
        return f"{self.operator} of {self.dtype or 'no tensor'} in {self.module}: {self.why}"


class Reproducibility:
    """What reproducible() has done to a model.

    replaced: the kinds of modules that are rapt's, by their names.
    substituted: how often ours took the place of operators, by module.
    left: the operators that are PyTorch's own, each with same and why.
    buffers: those that keep the bits of the CPU on which they were computed."""

    def __init__(self, model: Module, options: Options, strict: bool):
        self.model, self.options, self.strict = model, options, strict
        self.names: dict[Module, str] = {module: name for name, module in model.named_modules()}
        self.replaced: dict[str, str] = {}
        self.substituted: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        self.left: list[Left] = []
        self.buffers: list[str] = []
        self.was_run = self.restored = False
        self._undo = contextlib.ExitStack()
        self._calls: collections.Counter[tuple[str, str, str, bool, str]] = collections.Counter()

    @property
    def differing(self) -> list[Left]:
        """What was left of operators whose bits are not the same everywhere."""
        return [left for left in self.left if not left.same]

    def __repr__(self) -> str:
        kinds = collections.Counter(self.replaced.values())
        where = "on every CPU with" + ("" if _is_fused() else "out") + " FMA"
        verdict = (f"the same bits {where}, in what was run" if self.is_reproducible else f"not the same bits {where}" if self.was_run else
                   "it is not known whether the bits are the same, for nothing was run: give inputs, or call it under observing()")
        lines = [f"{type(self.model).__name__}{', restored' if self.restored else ''}: {verdict}"]
        lines += [f"  replaced: {n} x {kind}" for kind, n in kinds.most_common()]
        ours: collections.Counter[str] = sum(self.substituted.values(), collections.Counter())
        if ours:
            lines.append(f"  ours in {len(self.substituted)} module{'s' * (len(self.substituted) != 1)}: " + ", ".join(sorted(ours)))
        by_why: dict[str, set[str]] = collections.defaultdict(set)
        for left in self.left:
            if left.same:
                by_why[left.why].add(left.operator)
        lines += [f"  PyTorch's, the same: {', '.join(sorted(names))} ({why})" for why, names in by_why.items()]
        lines += [f"  PyTorch's, NOT the same: {left}" for left in self.differing]
        lines += [f"  computed by this CPU's PyTorch, NOT the same: {name}" for name in self.buffers]
        return "\n".join(lines)

    @property
    def is_reproducible(self) -> bool:
        """Whether the model was run, and all that it computed has the same bits everywhere."""
        return self.was_run and not self.differing and not self.buffers

    @contextlib.contextmanager
    def observing(self) -> Iterator[None]:
        """Looks at what the model computes meanwhile, as reproducible() does, for decoding or padding, say, may take other ways. It
        has the same bits already."""
        observer = Observer()
        with observer:
            yield
        self._take(observer)
        if self.strict and not self.is_reproducible:
            raise ValueError(f"strict: {self}")

    def refresh(self) -> None:
        """Reads the parameters anew, after changes that PyTorch does not count: by p.data.copy_(), or through NumPy."""
        for module in self.model.modules():
            forward = module.__dict__.get("forward")
            while isinstance(forward, _Forward):
                forward.forget()
                forward = forward.before

    def restore(self) -> None:
        """Gives the model back its own operators. What was observed stays in the report."""
        self._undo.close()
        self.restored = True

    # ---- What makes it.

    def _put(self, module: Module, forward: _Forward) -> None:
        module.forward = forward
        if forward.before is not None:
            self._undo.callback(setattr, module, "forward", forward.before)
        self._undo.callback(module.__dict__.pop, "forward", None)  # which comes first

    def _replace(self) -> None:
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                parameter.requires_grad_(False)
                self._undo.callback(parameter.requires_grad_, True)
        inside: set[Module] = set()
        for name, module in self.model.named_modules():
            if module in inside or _is_changed(module):
                continue
            made: _Linear | _Norm | None = _perceptron_of(module, self.options) or _norm_of(module)
            if made is None and _is_linear(module):
                made = _Linear(module, [module], None, self.options)
            if made is not None:
                inside.update(module.modules())
                self._put(module, made)
                self.replaced[name] = made.says

    def _take(self, observer: Observer) -> None:
        self.was_run = True
        for module, counted in observer.substituted.items():
            name = self._name(module)
            self.substituted[name] += counted
            if module in self.names and not isinstance(module.__dict__.get("forward"), _Substituted):
                self._put(module, _Substituted(module))
        for (module, operator, dtype, same, why), calls in observer.seen.items():
            self._calls[self._name(module), operator, dtype, same, why] += calls
        self.left = [Left(name, operator, dtype, calls, same, why)
                     for (name, operator, dtype, same, why), calls in self._calls.items()]

    def _name(self, module: Module | None) -> str:
        if module is None:
            return "what calls the model"
        name = self.names.get(module)
        return f"{name or 'the model'} ({type(module).__name__})"

    def _remake_buffers(self) -> None:
        """Buffers that no checkpoint has were computed by PyTorch when the model was made, as rotary frequencies are. What a
        module of its class and configuration has, made of our operators, takes their place."""
        for name, module in self.model.named_modules():
            ours = [key for key in module._non_persistent_buffers_set
                    if isinstance(t := module._buffers.get(key), Tensor) and t.is_floating_point() and t.numel()]
            if not ours:
                continue
            try:
                with Substituting():
                    again = type(module)(module.config)
            except Exception:  # whatever else its class wants
                again = None
            for key in ours:
                before: Any = module._buffers[key]
                after = again._buffers.get(key) if again is not None else None
                if after is None or after.shape != before.shape or not torch.allclose(
                        after.double(), before.double(), 1e-4 if before.dtype is torch.float32 else 1e-2, 1e-6):
                    if _varies(before):
                        self.buffers.append(f"buffer {key} of {name or 'the model'}")
                    continue
                kept = before.clone()
                before.copy_(after)
                self._undo.callback(before.copy_, kept)


def _varies(t: Tensor) -> bool:
    """Whether a buffer has numbers that depend on how they were computed: not integers, infinities, roots of integers, which
    IEEE 754 defines, or the smallest number."""
    x = t.double()
    root = (x * x).round().sqrt().copysign(x).to(t.dtype)
    defined = (t == t.round()) | (t == root) | (t == torch.finfo(t.dtype).min)
    return not bool(defined.all())


def _is_fused() -> bool:
    """Whether the kernel that runs is one of CPUs with fused multiply-add."""
    return bool(isa_.info()["isas"][str(isa_.isa())]["rounding"] == "fused")


def check_module(module: Any, name: str) -> None:
    if not isinstance(module, Module):
        raise TypeError(f"{name} is {shown(module)}: a torch.nn.Module is needed")


def make_reproducible(model: Any, run: Callable[[], Any] | None, *, weights: str | None = None, arith: str = "exact",
                      prepack: bool = False, strict: bool = False) -> Reproducibility:
    """run: calls the model, once, with all that it has."""
    if weights not in (None, "int8", "q8_0", "q4_0", "q4_1"):
        raise ValueError(f"weights is {shown(weights)}: 'int8', 'q8_0', 'q4_0', 'q4_1' or None is needed")
    flag(strict, "strict"), flag(prepack, "prepack")
    if model.training:
        raise ValueError("model is in training, where dropout is random: call model.eval()")
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise TypeError("model has scripted modules, whose operators cannot be replaced: give it before torch.jit.script()")
    for name, module in model.named_modules():
        if isinstance(module.__dict__.get("forward"), _Forward):
            raise ValueError(f"{name or 'model'} ({type(module).__name__}) is reproducible already: restore() the report of that first; "
                             "a copy of a reproducible module has none")
    if strict and run is None:
        raise ValueError("strict: the model must be run to see what it computes: give inputs")
    elsewhere = {str(t.device) for t in model.parameters() if t.device.type != "cpu"}
    if elsewhere:
        raise ValueError(f"model is on {', '.join(sorted(elsewhere))}: rapt computes on CPUs")
    made = Reproducibility(model, Options(weights, float_arith(arith), prepack), strict)
    try:
        with torch.no_grad():
            made._replace()
            made._remake_buffers()
            if run is not None:
                with made.observing():
                    run()
    except BaseException:
        made.restore()
        raise
    return made
