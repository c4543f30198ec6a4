# SPDX-License-Identifier: Apache-2.0
"""Elementary functions of PyTorch's tensors whose bits are the same on every CPU.

Each is made of operations in double precision that IEEE 754 defines, one rounding each, and of integers: for float32 and shorter
types the result is off by half a unit in the last place and a trace more. PyTorch's own come from several libraries, by the
instruction set. docs/order.md, O, has them as formulas."""
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

# Elements that are converted at a time. On one and two threads of Zen 4, silu and gelu of 196,608 and 1,572,864 elements take 1.05 to
# 1.2 times as long with 16384, 0.7 to 2.4 times with 65536, and up to 4.3 times if they are not cut (2026-11-28).
_CHUNK = 32768
_LN2_HIGH, _LN2_LOW = float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33")
_LOG2_E = float.fromhex("0x1.71547652b82fep+0")
# erf(x) / x by powers of x^2 / 8 - 1, for x up to 4, the highest first: Chebyshev's nodes, off by less than 1e-15.
_ERF = [float.fromhex(c) for c in """
0x1.b7749b52e3571p-27 -0x1.7f41802bd6060p-25 0x1.204aa5aa2c425p-24 -0x1.c0fc172a62ef5p-23 0x1.cf81562d731efp-21
-0x1.5651caf3c9f46p-19 0x1.ca54b186133c0p-18 -0x1.34f26ba26e0f8p-16 0x1.918ee60e50eb9p-15 -0x1.edfac285f40b2p-14
0x1.20e98d57ac5f2p-12 -0x1.4158c3c0fc1c8p-11 0x1.52da27298f1b2p-10 -0x1.51ef25ec8e0fap-9 0x1.3e15098ff36cap-8
-0x1.1a0231b85fbe4p-7 0x1.d6352a3bca7e2p-7 -0x1.7034faba3c5f0p-6 0x1.0ed52bfb66282p-5 -0x1.76e8648dfbb57p-5
0x1.ea97f14be4696p-5 -0x1.3215d8b7b083fp-4 0x1.717efc7842529p-4 -0x1.b92e95c190666p-4 0x1.0dabaf0613e8ep-3
-0x1.69a0ccda3df7cp-3 0x1.6a040781a499cp-2""".split()]


def _by_powers(x: Tensor, coefficients: list[float]) -> Tensor:
    """A polynomial by Horner's rule, the highest coefficient first."""
    sum = torch.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        sum.mul_(x).add_(c)
    return sum


_EXP = [1 / math.factorial(n) for n in range(13, -1, -1)]
_EXPM1 = [1 / math.factorial(n) for n in range(13, 0, -1)]
_LOG = [2 / (2 * n + 1) for n in range(12, 0, -1)]
_SIN = [-1 / math.factorial(15), 1 / math.factorial(13), -1 / math.factorial(11), 1 / math.factorial(9), -1 / math.factorial(7),
        1 / math.factorial(5), -1 / math.factorial(3)]
_COS = [1 / math.factorial(16), -1 / math.factorial(14), 1 / math.factorial(12), -1 / math.factorial(10), 1 / math.factorial(8),
        -1 / math.factorial(6), 1 / math.factorial(4), -1 / 2]


def _exp(x: Tensor) -> Tensor:
    """0 below -708."""
    k = (x.clamp(-708, 710) * _LOG2_E).round_()
    r = x.clamp(-708, 710).sub_(k * _LN2_HIGH).sub_(k * _LN2_LOW)
    half = (k * 0.5).floor_()  # two factors, for 2^1024 is none
    power = _power_of_2(half) * _by_powers(r, _EXP)
    return (power * _power_of_2(k - half)).masked_fill_(x < -708, 0).masked_fill_(x > 709.782712893384, math.inf)


def _power_of_2(k: Tensor) -> Tensor:
    """2^k, for integers from -1022 to 1023; of NaN anything."""
    return k.nan_to_num(0).to(torch.int64).add_(1023).bitwise_left_shift_(52).view(torch.float64)


def _expm1(x: Tensor) -> Tensor:
    return torch.where(x.abs() < 0.25, _by_powers(x, _EXPM1) * x, _exp(x) - 1)


def _log(x: Tensor) -> Tensor:
    """Of normal numbers; -inf of smaller ones."""
    bits = x.contiguous().view(torch.int64)
    e = (bits >> 52) - 1023
    m = (bits & 0xFFFFFFFFFFFFF | 0x3FF0000000000000).view(torch.float64)
    above = m > 1.4142135623730951
    m, e = torch.where(above, m * 0.5, m), (e + above).to(torch.float64)
    s = (m - 1) / (m + 1)
    z = s * s
    found = (s * 2 + s * (z * _by_powers(z, _LOG)) + e * _LN2_LOW) + e * _LN2_HIGH
    found = torch.where(x < float.fromhex("0x1p-1022"), torch.where(x < 0, math.nan, -math.inf), found)
    return torch.where(x < math.inf, found, x)  # inf, and NaN


def _log1p(x: Tensor) -> Tensor:
    u = x + 1
    found = _log(u) * (x / (u - 1))
    return torch.where(u == 1, x, torch.where(u < math.inf, found, u))


def _tanh(x: Tensor) -> Tensor:
    e = _expm1(x.abs().clamp_(max=22).mul_(2))
    return torch.copysign(e / (e + 2), x)


def _sigmoid(x: Tensor) -> Tensor:
    return 1 / (_exp(-x) + 1)


def _silu(x: Tensor) -> Tensor:
    return x / (_exp(-x) + 1)


def _erf(x: Tensor) -> Tensor:
    """±1 from 4 on."""
    a = x.clamp(-4, 4)
    return torch.where(x.abs() >= 4, x.sign(), _by_powers(a * a * 0.125 - 1, _ERF) * a)


def _gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (_erf(x * 0.7071067811865476) + 1)


def _gelu_tanh(x: Tensor) -> Tensor:
    return x * 0.5 * (_tanh((x * x * x * 0.044715 + x) * 0.7978845608028654) + 1)


def _softplus(x: Tensor) -> Tensor:
    """max(x, 0) + log(1 + exp(-|x|))."""
    return x.clamp(min=0) + _log1p(_exp(-x.abs()))


def _quarter_turns(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The sine and the cosine of what is left of x after that many quarter turns (docs/order.md, J.2, at position 1)."""
    sum = x * float.fromhex("0x1.45f306dc9c883p-1") + float.fromhex("0x1.8p52")
    turns = sum - float.fromhex("0x1.8p52")
    r = x - turns * float.fromhex("0x1.921ep+0")
    r = r - turns * float.fromhex("0x1.b544p-16") - turns * float.fromhex("0x1.0b4611a626331p-34")
    z = r * r
    return r + r * (z * _by_powers(z, _SIN)), z * _by_powers(z, _COS) + 1, sum.view(torch.int64) & 3


def _sin(x: Tensor) -> Tensor:
    s, c, quarter = _quarter_turns(x)
    found = torch.where(quarter & 1 == 1, c, s)
    return torch.where(quarter & 2 == 2, -found, found)


def _cos(x: Tensor) -> Tensor:
    s, c, quarter = _quarter_turns(x)
    found = torch.where(quarter & 1 == 1, s, c)
    return torch.where((quarter + 1) & 2 == 2, -found, found)


def _in_doubles(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """f of tensors of any floating-point type, or of integers, which become float32; rounded once to the result's type."""
    def rounded(x: Tensor) -> Tensor:
        kind = x.dtype if x.is_floating_point() else torch.float32
        if x.numel() <= _CHUNK:
            return f(x.to(torch.float64)).to(kind)
        flat = x.reshape(-1)
        out = torch.empty(flat.shape, dtype=kind)
        for part, to in zip(flat.split(_CHUNK), out.split(_CHUNK)):
            to.copy_(f(part.to(torch.float64)))
        return out.view(x.shape)
    return rounded


exp, expm1, log, log1p, tanh, sigmoid = map(_in_doubles, (_exp, _expm1, _log, _log1p, _tanh, _sigmoid))
silu, erf, gelu, gelu_tanh, softplus, sin, cos = map(_in_doubles, (_silu, _erf, _gelu, _gelu_tanh, _softplus, _sin, _cos))


def sqrt(x: Tensor) -> Tensor:
    """Returns square roots, rounded once, by NumPy. PyTorch's on x86 are MKL's, of which one in six was off by a unit in the last place
    on an AMD EPYC."""
    kind = x.dtype if x.is_floating_point() else torch.float32
    wide = x.detach().to(kind if kind == torch.float64 else torch.float32)
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(np.asarray(np.sqrt(wide.resolve_neg().numpy()))).to(kind)


def power(x: Tensor, exponent: float) -> Tensor:
    """x^exponent: products where it is a small integer, else exp(exponent log x), of numbers that are not negative."""
    if exponent in (0.5, -0.5):
        root = sqrt(x)
        return root if exponent > 0 else 1 / root
    if exponent == int(exponent) and 0 < abs(exponent) <= 4:
        found = x
        for _ in range(int(abs(exponent)) - 1):
            found = found * x
        return found if exponent > 0 else 1 / found
    return _in_doubles(lambda a: torch.where(a == 0, 0.0 if exponent > 0 else math.inf if exponent else 1.0,
                                             _exp(_log(a) * exponent)))(x)


def power_of(base: float, exponents: Tensor) -> Tensor:
    """base^exponents, of a base that is positive."""
    log_base = _log(torch.tensor([base], dtype=torch.float64))
    return _in_doubles(lambda a: _exp(a * log_base))(exponents)
