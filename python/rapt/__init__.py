# SPDX-License-Identifier: Apache-2.0
"""rapt: fused flash-style attention for CPUs, with the same bits on every ISA, for any thread count, batch and layout.

>>> import numpy as np, rapt
>>> q = k = v = np.ones((1, 2, 3, 4), np.float32)
>>> rapt.attention(q, k, v, causal="bottom-right").shape
(1, 2, 3, 4)
"""
from . import _native
from ._attention import Plan, attention, merge, plan
from ._cache import KVCache
from ._isa import info, isa
from ._layer import PrepackedWeights, Weights, layer_norm, linear, mha, prepack_weights, quantise_weights, rms_norm
from ._native import Error
from ._rope import Rope, rope
from ._verify import verify

__all__ = [
    "Error", "KVCache", "Plan", "PrepackedWeights", "Rope", "Weights", "attention", "info", "isa", "layer_norm", "linear", "merge",
    "mha", "plan", "prepack_weights", "quantise_weights", "rms_norm", "rope", "verify"
]

__version__ = f"{_native.VERSION_MAJOR}.{_native.VERSION_MINOR}.{_native.VERSION_PATCH}"

for _public in __all__:  # what users see is rapt.Error, not rapt._native.Error
    globals()[_public].__module__ = "rapt"
del _public
