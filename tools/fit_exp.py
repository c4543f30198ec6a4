#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits the polynomials of kernels/parts/exp.h: minimax in the relative error, coefficients rounded to f32 one after the other."""
import math

import numpy as np


def minimax(columns, target, rounds=3000):
    """Lawson's iteration: reweighted least squares that converges to the best uniform approximation of target."""
    scale = np.abs(columns).max(axis=0)
    weight = np.full(len(target), 1 / len(target))
    best = None
    for _ in range(rounds):
        root = np.sqrt(weight)
        c, *_ = np.linalg.lstsq(columns / scale * root[:, None], target * root, rcond=None)
        error = np.abs(columns / scale @ c - target)
        if best is None or error.max() < best[0]:
            best = error.max(), c / scale
        weight *= error
        weight /= weight.sum()
    return best[1]


def fit(x, basis, value, relative_to, fixed):
    """Coefficients of sum c_k basis[k](x) ~ value, fixed ones given, each rounded to f32 before the rest is fitted again."""
    done = dict(fixed)
    for k in range(len(basis)):
        if k in done:
            continue
        free = [j for j in range(len(basis)) if j not in done]
        rest = value - sum(done[j] * basis[j](x) for j in done)
        c = minimax(np.stack([basis[j](x) / relative_to for j in free], 1), rest / relative_to)
        done[k] = float(np.float32(c[0]))
    approximation = sum(done[j] * basis[j](x) for j in done)
    return [done[k] for k in range(len(basis))], np.abs((approximation - value) / relative_to).max()


def power(k):
    return lambda x: x**k


f = np.linspace(-0.5, 0.5, 4001)
c, error = fit(f, [power(k) for k in range(7)], np.exp2(f), np.exp2(f), {0: 1.0})
print("exp2, ascending:", [v.hex() for v in c], f"error {error * 2**24:.3f} * 2^-24")

f = np.linspace(0, 1, 4001)
c, error = fit(f, [power(k) for k in range(4)], np.exp2(f), np.exp2(f), {0: 1.0})
print("exp2 for bf16, ascending:", [v.hex() for v in c], f"error {error * 2**8:.3f} * 2^-8")

y = np.linspace(np.sqrt(0.5), np.sqrt(2), 4000)
s = (y - 1) / (y + 1)
c, error = fit(s, [lambda s, k=k: s ** (2 * k + 3) for k in range(4)], np.log(y) - 2 * s, np.log(y), {})
print("ln, ascending:", [v.hex() for v in c], f"error {error * 2**24:.3f} * 2^-24")

x = np.linspace(1e-3, 0.625, 4000)
c, error = fit(x, [lambda x, k=k: x ** (2 * k + 3) for k in range(5)], np.tanh(x) - x, np.tanh(x), {})
print("tanh, ascending:", [v.hex() for v in c], f"error {error * 2**24:.3f} * 2^-24")

# GELU: -log2 of the normal distribution function of -a. Wanted are an error of a * Phi(-a) below 3e-8, and of Phi itself below 1e-4.
a = np.concatenate([np.linspace(1e-3, 5, 3000), np.linspace(5, 8, 800)])
phi = np.array([0.5 * math.erfc(x / math.sqrt(2)) for x in a])
wanted = np.minimum(3e-8 / (phi * np.maximum(a, 0.3)), 1e-4) / math.log(2)
c, error = fit(a, [power(k) for k in range(11)], -np.log2(phi), wanted, {0: 1.0})
print("gelu, ascending:", [v.hex() for v in c], f"error {error:.3f} of what is wanted")
