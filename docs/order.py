# SPDX-License-Identifier: Apache-2.0
"""docs/order.md once more, to be read beside it: attention, linear layers, normalisation, rotation and functions of whole models,
bit for bit, in NumPy.

It shares no code with the library; tests/host/order.py holds the two against each other. Docstrings and comments name the steps
of the page. Arrays are of float32 unless a comment says otherwise, and an operation of the page is one of NumPy's, which rounds
as A.3 wants it. Loops go along chains; what is free (rows, heads, channels, the order of sums of integers) is left to NumPy.

>>> q, k, v = np.ones((1, 2, 4), np.float32), np.ones((1, 3, 4), np.float32), np.ones((1, 3, 2), np.float32)
>>> attention(q, k, v, causal="bottom-right").o.tolist()
[[[1.0, 1.0], [1.0, 1.0]]]
"""
import functools
import math
import types

import numpy as np

VERSION = 1  # A.2
BLOCK, CHUNK, SCORE_WHOLE, SCORE_PART, PARTIAL_SUMS, GROUP, STEP, LINEAR_PART = 64, 512, 128, 64, 16, 32, 32, 1024
WEIGHT_BLOCK = 256
f32, number = np.float32, float.fromhex
MOST, NONE = np.finfo(f32).max, f32(-np.inf)  # FLT_MAX; the score of a masked key
ZERO, ONE = f32(0), f32(1)

# ---- A. Arithmetic -----------------------------------------------------------------------------------------------------------


def fused(a, b, c):
    """A.4: a·b + c, rounded once.

    The product is exact in float64, and TwoSum gives the rounded sum s and its error e, towards which s is moved by one unit if
    it is inexact and its last bit is 0: with a last bit of 1 it lies on the same side of any number of at most 52 bits as the
    exact sum. Among these are the numbers of f32 (24 bits, or fewer where they are denormal) and the middles between two of them,
    where infinity begins included, so that rounding s to f32 gives what rounding the exact sum would give."""
    p, c = np.multiply(a, b, dtype=np.float64), np.asarray(c, np.float64)
    s = p + c
    c_of_s = s - p
    e = (p - (s - c_of_s)) + (c - c_of_s)  # NaN where s is infinite or NaN, which it stays
    bits = s.view(np.int64)
    inexact_and_even = (e != 0) & (e == e) & (bits & 1 == 0)
    return (bits + np.where(inexact_and_even, np.where((e > 0) == (s > 0), 1, -1), 0)).view(np.float64).astype(f32)


def unfused(a, b, c):
    """A.4: a·b + c, the product rounded, then the sum."""
    return np.multiply(a, b, dtype=f32) + c


def polynomial(fma, x, coefficients):
    """p = the first of the coefficients; for b in the others: p = fma(p, x, b)."""
    first, *others = (f32(number(b)) for b in coefficients.split())
    return functools.reduce(lambda p, b: fma(p, x, b), others, first)


def sixteen(x, y=None, fma=None):
    """S[0] to S[15], in the last dimension: sums over that of x, or by fma of x·y."""
    sums = np.zeros((*np.broadcast_shapes(x.shape[:-1], x.shape[:-1] if y is None else y.shape[:-1]), PARTIAL_SUMS), f32)
    for first in range(0, x.shape[-1], PARTIAL_SUMS):
        here = np.s_[..., first:min(first + PARTIAL_SUMS, x.shape[-1])]
        some = sums[..., :here[1].stop - first]
        some[...] = some + x[here] if y is None else fma(x[here], y[here], some)
    return sums


def in_order(terms, total=ZERO):
    """total, plus the terms along the last dimension, one after the other."""
    for i in range(terms.shape[-1]): total = total + terms[..., i]
    return total


def rounded(x, kind):
    """H.2: to the nearest f16 or bf16, ties to even, as float32."""
    if kind == "f16": return x.astype(np.float16).astype(f32)
    bits = x.view(np.uint32)
    nearest = (bits + np.uint32(0x7fff) + (bits >> np.uint32(16) & np.uint32(1))) & np.uint32(0xffff0000)
    return np.where(np.isnan(x), x, nearest.view(f32))


# ---- B. Inputs ---------------------------------------------------------------------------------------------------------------


def of_groups(scales, numbers, minimums=ZERO):
    """B.1: elements, [..., channel], of scales and minimums, [..., group, 1], and numbers, [..., group, channel of it]."""
    return (scales * numbers.astype(f32) + minimums).reshape(*numbers.shape[:-2], -1)


def factors(scale, d_k, modified):
    """B.2: q_factor, score_natural, natural and c."""
    scale, log2_e = float(f32(1 / math.sqrt(d_k) if scale is None else scale)), 1.4426950408889634
    ordinary = 2.0**-64 <= abs(scale) <= 2.0**64
    q_factor, natural = (math.copysign(1, scale), abs(scale)) if ordinary else (scale, 1.0)
    after = 1.0 if modified else natural
    return f32(q_factor), f32(natural), f32(after), f32(after * log2_e)


# ---- C. Which keys -----------------------------------------------------------------------------------------------------------


def positions(queries, keys, causal, q_offset, k_offset):
    """C.1: p of the keys, [key], and t of the queries, [query, 1]."""
    if q_offset is None: q_offset = k_offset + (0 if causal == "top-left" else keys - queries)
    return np.arange(keys) + k_offset, (np.arange(queries) + q_offset)[:, None]


def column(table, p, rest):
    """C.3: the columns of a mask or a bias at positions p, with `rest` after the last one."""
    return np.concatenate([table, np.full_like(table[..., :1], rest)], axis=-1)[..., np.minimum(p, table.shape[-1])]


def attended(p, t, causal, window, prefix, local_chunk, mask, block_mask, bias):
    """C.2: which keys a query attends to, [head or 1, query, key]. mask, bias: what there is for each key, or None."""
    left, right = window
    seen = np.ones((1, len(t), len(p)), bool)
    if causal: seen &= p <= t
    if right != -1: seen &= p <= t + right
    seen |= p < prefix
    if left != -1: seen &= p >= t - left
    if local_chunk: seen &= p // local_chunk == t // local_chunk
    if mask is not None: seen = seen & mask
    if bias is not None: seen = seen & (bias != NONE)
    if block_mask is not None:
        queries, keys, blocks = block_mask
        seen = seen & blocks[..., np.arange(len(t))[:, None] // queries, np.arange(len(p)) // keys]
    return seen


# ---- D. A chunk --------------------------------------------------------------------------------------------------------------


def scores(fma, q, k):
    """D.1: [head, query, key], of q [head, query, channel] and k [head, key, channel]."""
    d = q.shape[-1]
    size, parts = SCORE_PART if d > SCORE_WHOLE else d, []
    for first in range(0, d, size):
        t = ZERO
        for i in range(first, min(first + size, d)): t = fma(q[:, :, None, i], k[:, None, :, i], t)
        parts.append(t)
    return functools.reduce(np.add, parts)


def logits(fma, s, p, t, score_natural, softcap, slopes, bias, bias_by_slope, callback):
    """D.7: scores after the scale, after softcap, and the logits."""
    raw = x = s * score_natural
    if softcap: x = f32(softcap) * tanh(fma, x * (ONE / f32(softcap)))
    capped = x
    if slopes is not None and not bias_by_slope:
        p0 = p - np.arange(len(p)) % BLOCK
        x = fma(ZERO - slopes[:, None, None], abs((t - p0).astype(f32) - (p - p0).astype(f32)), x)
    if bias is not None: x = fma(slopes[:, None, None], bias, x) if bias_by_slope else x + bias
    return raw, capped, x if callback is None else callback(x)


def chunk(fma, s, seen, keys, c, add, empty):
    """D: the state (m, l, o) after the keys of a chunk. s: [head, query, key]."""
    m, l, o = empty
    for first in range(keys.start, keys.stop, BLOCK):
        here = slice(first, min(first + BLOCK, keys.stop))
        m2 = np.maximum(m, np.where(seen[..., here], s[..., here], NONE).max(axis=-1))  # D.2
        t = np.maximum(m2, -MOST)
        alpha = exp2(fma, m - t, c)  # D.3
        w = np.where(seen[..., here], exp2(fma, s[..., here] - t[..., None], c), ZERO)
        l = fma(l, alpha, in_order(sixteen(w)))  # D.4
        o = add(o * alpha[..., None], w, here)  # D.5
        m = m2  # D.6
    return m, l, o


def add_values(fma, v, scales, seen, o, w, here):
    """D.5, D.8: v is [head, key, channel], scales of its tokens [head, 1, key] or None. Masked values are left out (N.2)."""
    if scales is not None: w = w * scales[..., here]
    for i, j in enumerate(range(here.start, here.stop)):
        o = np.where(seen[..., j, None], fma(w[..., i, None], v[:, None, j], o), o)
    return o


def exp2(fma, d, c):
    """D.9: 2^(d·c) of d <= 0."""
    magic = f32(12583039)
    x = np.maximum(f32(-127) / c, d)
    t = fma(x, c, magic)
    n = magic - t
    f = fma(x, c, n)
    p = polynomial(fma, f, "0x1.416b5ep-13 0x1.5f082ep-10 0x1.3b2dep-7 0x1.c6af7cp-5 0x1.ebfbdcp-3 0x1.62e43p-1 1")
    return p * (t.view(np.uint32) << np.uint32(23)).view(f32)


def tanh(fma, x):
    """D.10."""
    a = abs(x)
    z = a * a
    odd = fma(a * z, polynomial(fma, z, "-0x1.750ce4p-8 0x1.51f8cep-6 -0x1.b835a4p-5 0x1.1106f6p-3 -0x1.555532p-2"), a)
    e = exp2(fma, -a, f32(number("0x1.715476p+1")))
    return np.copysign(np.where(a < f32(0.625), odd, (ONE - e) / (ONE + e)), x)


# ---- E. Integer arithmetic ---------------------------------------------------------------------------------------------------


def nearest(x):
    """The nearest integer, 0 where x is NaN or infinite; in float64, in which sums of products of integers are exact here."""
    return np.where(np.isfinite(x), np.rint(x), 0).astype(np.float64)


def integer_scores(fma, q, k, groups):
    """E.1, and E.2 or with groups E.3: k has the integers of K, groups are their scales, [head, key, group], or None."""
    most = abs(q).max(axis=-1, keepdims=True)
    n, unit = nearest(q * (f32(127) / most)), most / f32(127)  # NaN for NaN; for infinity infinite, which times n = 0 is NaN, too
    k = k.astype(np.float64).swapaxes(1, 2)
    if groups is None: return fma((n @ k).astype(f32), unit, ZERO)
    t = ZERO
    for g in range(groups.shape[-1]):
        channels = slice(g * GROUP, (g + 1) * GROUP)
        t = fma((n[..., channels] @ k[:, channels]).astype(f32), groups[:, None, :, g], t)
    return fma(t, unit, ZERO)


def add_integers(fma, o, w, v, most, sign=1):
    """E.4, E.5: o plus the sum of the integers v times those of the weights w, of at most `most`, times what one of these is."""
    finite = np.isfinite(w)
    largest = np.where(finite, abs(w), ZERO).max(axis=-1, keepdims=True)
    unit = np.where(finite.all(axis=-1, keepdims=True), largest / f32(most), f32(np.nan))
    return fma((nearest(w * (f32(most) / largest)) @ v).astype(f32), f32(sign) * unit, o)


def add_integer_values(fma, v, groups, scales, o, w, here):
    """E.4, or with groups E.5: v has the integers of V, groups are as of integer_scores, scales as of add_values."""
    v = v[:, here].astype(np.float64)
    if groups is None:
        w = np.where(w > 0, w if scales is None else w * scales[..., here], w)
        o = add_integers(fma, o, np.where(w < 0, ZERO, w), v, 255)
        return np.where((w < 0).any(axis=-1, keepdims=True), add_integers(fma, o, np.where(w < 0, -w, ZERO), v, 255, -1), o)
    parts = []
    for g in range(groups.shape[-1]):
        channels, f = slice(g * GROUP, (g + 1) * GROUP), groups[:, None, here, g]
        of_group = np.where(w > 0, w * (f if scales is None else f * scales[..., here]), w)
        parts.append(add_integers(fma, o[..., channels], of_group, v[..., channels], 127))
    return np.concatenate(parts, axis=-1)


# ---- F. bf16 arithmetic ------------------------------------------------------------------------------------------------------


def bf16(x):
    """F.1: x in bf16, or +0 below 2^-56."""
    x = rounded(x, "bf16")
    return np.where(abs(x) < f32(2.0**-56), ZERO, x)


def in_steps(x):
    """F.2: x [..., element] as [..., step, number of the pair, even or odd], with 0 after the last element."""
    steps = -(-x.shape[-1] // STEP)
    padding = np.zeros((*x.shape[:-1], steps * STEP - x.shape[-1]), x.dtype)
    return np.concatenate([x, padding], axis=-1).reshape(*x.shape[:-1], steps, STEP // 2, 2)


def dot(fma, x, y, seen=None):
    """F.2: the sum of x·y over the last dimension, of elements that are seen, or of all."""
    x, y, seen = in_steps(x), in_steps(y), None if seen is None else in_steps(seen)
    sums = ZERO  # [..., step, even or odd]
    for i in range(STEP // 2):
        more = fma(x[..., i, :], y[..., i, :], sums)
        sums = more if seen is None else np.where(seen[..., i, :], more, sums)
    return in_order(sums[..., 0] + sums[..., 1])


def chunk_bf16(fma, s, seen, keys, c, v):
    """F.3: the state after the keys of a chunk. v: the values in bf16."""
    s, seen, v = s[..., keys], seen[..., keys], v[:, keys]
    m = np.where(seen, s, NONE).max(axis=-1)
    t = np.maximum(m, -MOST)
    w = np.where(seen, exp2_bf16(fma, s - t[..., None], c), ZERO)
    return m, dot(fma, w, np.ones_like(w), seen), dot(fma, w[:, :, None], v.swapaxes(1, 2)[:, None], seen[:, :, None])


def exp2_bf16(fma, d, c):
    """F.4: 2^(d·c) in bf16, of d <= 0."""
    below = d < f32(-56) / c
    d = np.where(below, ZERO, d)
    n = np.floor(d * c)
    f = fma(d, c, -n)
    p = fma(polynomial(fma, f, "0x1.3baa9p-4 0x1.d23798p-3 0x1.63e658p-1"), f, f32(98305)) - f32(98304)
    return np.where(below, ZERO, np.ldexp(p, np.nan_to_num(n).astype(np.int32)))


# ---- G. Chunks to rows -------------------------------------------------------------------------------------------------------


def merged(fma, state, other, c):
    """G.1: the state of a row after it has absorbed another one."""
    (m, l, o), (m2, l2, o2) = state, other
    both = np.maximum(m, m2)
    t = np.maximum(both, -MOST)
    a, b = exp2(fma, m - t, c), exp2(fma, m2 - t, c)
    return both, fma(l, a, l2 * b), fma(o, a[..., None], o2 * b[..., None])


# ---- H. The end of a row -----------------------------------------------------------------------------------------------------


def finished(fma, state, c, natural, sinks, channel_scales):
    """O and LSE of rows. sinks: [head, 1] or None, channel_scales: [head, 1, channel] or None."""
    if sinks is not None:  # H.1
        zeros = np.zeros_like(state[1])
        state = merged(fma, state, (zeros + sinks / natural, zeros + ONE, np.zeros_like(state[2])), c)
    m, l, o = state
    r = np.where(l == 0, ZERO, ONE / l)[..., None]  # H.2
    if channel_scales is not None: r = r * channel_scales
    return fma(o, r, ZERO), np.where(l == 0, NONE, fma(m, natural, ln(fma, l)))


def ln(fma, l):
    """H.3."""
    y, e = np.frexp(l)  # y from 1/2 to 1
    low = f32(2) * y < f32(number("0x1.6a09e6p+0"))  # whose bits are 0x3fb504f3
    y, e = np.where(low, f32(2) * y, y), np.where(low, e - 1, e).astype(f32)
    s = (y - ONE) / (y + ONE)
    z = s * s
    p = polynomial(fma, z, "0x1.f161d2p-3 0x1.23d312p-2 0x1.999c28p-2 0x1.555554p-1")
    return fma(e, f32(number("0x1.62e43p-1")), fma(s * z, p, f32(2) * s))


# ---- I. Scores as an output --------------------------------------------------------------------------------------------------


def weights(fma, s, c, natural, sinks):
    """I.2: of s [head, query, key], -inf where a key is masked."""
    m = np.fmax.reduce(s, axis=-1, initial=NONE)
    if sinks is not None: m = np.maximum(m, sinks / natural)
    t = np.maximum(m, -MOST)
    p = np.where(s == NONE, ZERO, exp2(fma, s - t[..., None], c))
    total = np.zeros_like(t)
    for first in range(0, s.shape[-1], CHUNK):
        blocks = range(first, min(first + CHUNK, s.shape[-1]), BLOCK)
        total = total + sum((in_order(sixteen(p[..., block:block + BLOCK])) for block in blocks), ZERO)
    if sinks is not None: total = total + exp2(fma, sinks / natural - t, c)
    r = np.where(total == 0, ZERO, ONE / total)
    return np.where(p == 0, ZERO, p * r[..., None])


# ---- Attention: B to I -------------------------------------------------------------------------------------------------------


@np.errstate(all="ignore")
def attention(q, k, v, *, scale=None, causal=None, window=(-1, -1), prefix=0, local_chunk=0, q_offset=None, k_offset=0,
              mask=None, mask_rest=False, block_mask=None, bias=None, bias_rest=0, softcap=0, slopes=None, bias_by_slope=False,
              callback=None, sinks=None, k_groups=None, v_groups=None, k_token_scales=None, k_channel_scales=None,
              v_token_scales=None, v_channel_scales=None, arithmetic="exact", fused_class=True):
    """One batch entry: o, lse, the states of its chunks (G.2), and its scores at each stage (I.1, I.2).

    q is [head, query, channel]; k and v are [kv head, key, channel], in arithmetic "int8" the integers, with k_groups and
    v_groups, [kv head, key, group], unless they are of int8. Scales of tokens are [kv head, key], those of channels [kv head,
    channel]; slopes and sinks are [head]. causal is "top-left", "bottom-right" or None. mask and bias are [head or 1, query or 1,
    position], and mask_rest and bias_rest what holds beyond (-inf: masked). block_mask is a tuple: the queries of a block, its
    keys, and whether each block is set, [head or 1, block, block]. callback is a function of an array of logits."""
    fma = fused if fused_class else unfused
    (heads, queries, d_k), (kv_heads, keys, d_v) = q.shape, v.shape
    k, v, k_groups, v_groups, k_token_scales, k_channel_scales, v_token_scales, v_channel_scales = (
        None if x is None else np.repeat(x, heads // kv_heads, axis=0)
        for x in (k, v, k_groups, v_groups, k_token_scales, k_channel_scales, v_token_scales, v_channel_scales))
    p, t = positions(queries, keys, causal, q_offset, k_offset)
    bias, mask = (None if x is None else column(x, p, rest) for x, rest in ((bias, bias_rest), (mask, mask_rest)))
    seen = np.broadcast_to(attended(p, t, causal, window, prefix, local_chunk, mask, block_mask, bias), (heads, queries, keys))
    modified = bool(softcap) or slopes is not None or bias is not None or callback is not None
    q_factor, score_natural, natural, c = factors(scale, d_k, modified)

    q = q * q_factor  # B.3
    if k_channel_scales is not None: q = q * k_channel_scales[:, None]
    if arithmetic == "int8": s = integer_scores(fma, q, k, k_groups)
    else: s = dot(fma, bf16(q)[:, :, None], bf16(k)[:, None]) if arithmetic == "bf16" else scores(fma, q, k)
    if k_token_scales is not None: s = s * k_token_scales[:, None]
    raw, capped, logit = logits(fma, s, p, t, score_natural, softcap, slopes, bias, bias_by_slope, callback)
    s = np.where(seen, logit if modified else s, NONE)

    empty = np.full((heads, queries), NONE), np.zeros((heads, queries), f32), np.zeros((heads, queries, d_v), f32)
    chunks = [slice(first, min(first + CHUNK, keys)) for first in range(0, keys, CHUNK)]  # C.4
    if arithmetic == "bf16":
        v = bf16(v if v_token_scales is None else v * v_token_scales[..., None])
        states = [chunk_bf16(fma, s, seen, here, c, v) for here in chunks]
    else:
        v_scales = None if v_token_scales is None else v_token_scales[:, None]
        add = (functools.partial(add_integer_values, fma, v, v_groups, v_scales) if arithmetic == "int8" else
               functools.partial(add_values, fma, v, v_scales, seen))
        states = [chunk(fma, s, seen, here, c, add, empty) for here in chunks]
    sinks = None if sinks is None else sinks[:, None]
    state = functools.reduce(lambda state, other: merged(fma, state, other, c), states, empty)  # G
    o, lse = finished(fma, state, c, natural, sinks, None if v_channel_scales is None else v_channel_scales[:, None])
    return types.SimpleNamespace(o=o, lse=lse, states=states, raw=raw, capped=capped, logits=s if modified else s * natural,
                                 weights=weights(fma, s, c, natural, sinks))


# ---- J. Rotation -------------------------------------------------------------------------------------------------------------


def find_angle(position, frequency):
    """J.2: cos and sin of position times frequency, in float64."""
    coarse = (frequency.view(np.uint64) >> np.uint64(33) << np.uint64(33)).view(np.float64)
    return cos_and_sin(position * coarse, position * (frequency - coarse))


def cos_and_sin(angle, rest):
    """J.2, from the angle and its rest on."""
    magic = number("0x1.8p52")
    sum_ = (angle + rest) * number("0x1.45f306dc9c883p-1") + magic
    turns = sum_ - magic
    r = (angle - turns * number("0x1.921ep+0")) + rest
    r = (r - turns * number("0x1.b544p-16")) - turns * number("0x1.0b4611a626331p-34")
    z = r * r
    s, c = -1 / math.factorial(15), 1 / math.factorial(16)
    for n in 13, 11, 9, 7, 5, 3: s = s * z + (-1)**(n // 2) / math.factorial(n)
    for n in 14, 12, 10, 8, 6, 4, 2: c = c * z + (-1)**(n // 2) / math.factorial(n)
    s, c = r + r * (z * s), 1 + z * c
    quarter = (sum_.view(np.uint64) & np.uint64(3)).astype(int)
    return np.choose(quarter, [c, -s, -c, s]), np.choose(quarter, [s, c, -s, -c])


def angles(positions, frequencies, amplitude=1.0, offset=0):
    """J.1: c and s, [token, pair]. frequencies: of float64."""
    return [(x * amplitude).astype(f32) for x in find_angle(np.asarray(positions, np.float64)[:, None] + offset, frequencies)]


@np.errstate(all="ignore")
def rotate(x, c, s, interleaved=False):
    """J.3: x is [..., token, channel]; channels beyond the pairs stay."""
    n, out = c.shape[-1], x.copy()
    first, second = (slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if interleaved else (slice(0, n), slice(n, 2 * n))
    a, b = x[..., first], x[..., second]
    out[..., first], out[..., second] = a * c - b * s, b * c + a * s
    return out


# ---- K. Linear layers --------------------------------------------------------------------------------------------------------


def of_blocks(d, e, a, b, n):
    """K.1: elements, [..., channel], of weights of q4_K and q6_K: of the block's d and e, [..., block, 1, 1], the integers a and b,
    [..., block, part, 1], and n, [..., block, part, channel of it], of q6_K n - 32 and e = 0."""
    d, e, a, b, n = (x.astype(f32) for x in (d, e, a, b, n))
    return ((d * a) * n - e * b).reshape(*n.shape[:-3], -1)


@np.errstate(all="ignore")
def linear(x, w, *, scales=None, bias=None, activation=None, gate=None, gate_scales=None, gate_bias=None, residual=None,
           arithmetic="exact", groups=None, gate_groups=None, minimums=None, gate_minimums=None, subs=None, gate_subs=None, fused_class=True):
    """x is [token, channel], w and gate [output, channel], scales and biases [output], residual [token, output].

    With arithmetic="int8", w and gate are integers, and groups and gate_groups the scales of their groups [output, group], None for
    int8; minimums and gate_minimums the minimums of these groups, where the type has such. For q4_K and q6_K the groups are blocks,
    minimums are e, and subs and gate_subs are (a, b), [output, block, sub-block], b of zeros for q6_K."""
    fma = fused if fused_class else unfused

    def mapped(w, groups, minimums, subs, scales, bias):
        if arithmetic == "int8" and subs is not None: total = integer_blocks(fma, x, w, groups, minimums, *subs)
        elif arithmetic == "int8": total = integer_products(fma, x, w, groups, minimums)
        else: total = dot(fma, bf16(x)[:, None], bf16(w)) if arithmetic == "bf16" else products(fma, x[:, None], w)
        return fma(total, ONE if scales is None else scales, ZERO if bias is None else bias)  # K.2

    y, activate = mapped(w, groups, minimums, subs, scales, bias), ACTIVATIONS[activation]
    if gate is not None: y = activate(fma, mapped(gate, gate_groups, gate_minimums, gate_subs, gate_scales, gate_bias)) * y
    else: y = activate(fma, y)
    return y if residual is None else y + residual


def products(fma, x, w):
    """K.1."""
    total = ZERO
    for first in range(0, x.shape[-1], LINEAR_PART):
        part = np.s_[..., first:first + LINEAR_PART]
        total = in_order(sixteen(x[part], w[part], fma), total)
    return total


def integer_products(fma, x, w, groups, minimums):
    """K.4."""
    total = ZERO
    for g, first in enumerate(range(0, x.shape[-1], GROUP)):
        part = np.s_[:, first:first + GROUP]
        most = abs(x[part]).max(axis=-1, keepdims=True)
        n, unit = nearest(x[part] * (f32(127) / most)), most / f32(127)  # of NaN and infinity as in integer_scores
        sums = n @ w[part].astype(np.float64).T
        total = fma(sums.astype(f32), unit if groups is None else groups[:, g] * unit, total)
        if minimums is not None: total = fma(n.sum(axis=-1, keepdims=True).astype(f32), minimums[:, g] * unit, total)
    return total


def integer_blocks(fma, x, w, d, e, a, b):
    """K.4, of q4_K and q6_K; e is None for q6_K."""
    total = ZERO
    for block in range(x.shape[-1] // WEIGHT_BLOCK):
        part = np.s_[:, block * WEIGHT_BLOCK:(block + 1) * WEIGHT_BLOCK]
        most = abs(x[part]).max(axis=-1, keepdims=True)
        n, unit = nearest(x[part] * (f32(127) / most)), most / f32(127)  # of NaN and infinity as in integer_scores
        n = n.reshape(len(x), a.shape[-1], -1)
        sums = np.einsum("tji,oji->toj", n, w[part].astype(np.float64).reshape(len(w), a.shape[-1], -1))
        total = fma((sums * a[:, block]).sum(axis=-1).astype(f32), d[:, block] * unit, total)
        if e is not None: total = fma((n.sum(axis=-1) @ b[:, block].T).astype(f32), -(e[:, block] * unit), total)
    return total


def relu(_, y):
    """K.3."""
    return np.where(y > 0, y, np.where(np.isnan(y), y, ZERO))


def gelu(fma, y):
    """K.3."""
    h = polynomial(fma, abs(y), "0x1.60a846p-27 -0x1.9833cap-22 0x1.894d92p-18 -0x1.8c04ecp-15 0x1.7d4d4ep-13 0x1.99fcbap-13 "
                                "-0x1.d649c8p-8 0x1.aecfcep-5 0x1.d631f4p-2 0x1.26af14p+0 1")
    e = exp2(fma, -h, ONE)
    return y * np.where(y < 0, e, ONE - e)


def gelu_tanh(fma, y):
    """K.3."""
    x = fma((y * y) * y, f32(0.044715), y) * f32(number("0x1.988454p-1"))
    return (f32(0.5) * y) * (ONE + tanh(fma, x))


def silu(fma, y):
    """K.3."""
    e = exp2(fma, -abs(y), f32(number("0x1.715476p+0")))
    return np.where(y < 0, y * e, y) / (ONE + e)


ACTIVATIONS = {None: lambda _, y: y, "relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu}

# ---- L. Normalisation --------------------------------------------------------------------------------------------------------


@np.errstate(all="ignore")
def layer_norm(x, *, weight=ONE, bias=ZERO, epsilon=1e-5, residual=None, fused_class=True):
    """L.1, L.2: y, z, the mean and the inverse deviation. x: [token, channel]."""
    fma, n = fused if fused_class else unfused, f32(x.shape[-1])
    z = x if residual is None else x + residual
    mean = in_order(sixteen(z)) / n
    x = z - mean[:, None]
    e = in_order(sixteen(x)) / n
    q = in_order(sixteen(x, x, fma)) / n
    variance = fma(-e, e, q)
    f = ONE / np.sqrt(np.where(variance < 0, ZERO, variance) + f32(epsilon))
    d = x - e[:, None]
    return fma(d * f[:, None], weight, bias), z, mean + e, f


@np.errstate(all="ignore")
def rms_norm(x, *, weight=ONE, bias=ZERO, epsilon=1e-5, residual=None, fused_class=True):
    """L.1, L.3: y, z and the inverse deviation."""
    fma, n = fused if fused_class else unfused, f32(x.shape[-1])
    z = x if residual is None else x + residual
    f = ONE / np.sqrt(in_order(sixteen(z, z, fma)) / n + f32(epsilon))
    return fma(z * f[:, None], weight, bias), z, f


# ---- M. Multi-head attention -------------------------------------------------------------------------------------------------


def multi_head_attention(x, y, z, layers, *, heads, position_table=None, frequencies=None, interleaved=False, residual=None,
                         arithmetic="exact", attention_arithmetic="exact", fused_class=True, **options):
    """M.1: x, y and z are [token, channel], whose first tokens stand at position 0. layers has, by "q", "k", "v" and "o", what
    linear takes of each, with the weights as w; without "o", the concatenated heads are the output. heads: those of Q, and of K and
    V; frequencies: those by which Q and K are rotated, if any; options: those of attention."""
    if position_table is not None: x, y, z = (t + position_table[:len(t)] for t in (x, y, z))
    layer = functools.partial(linear, arithmetic=arithmetic, fused_class=fused_class)
    q, k, v = (layer(t, **layers[of]).reshape(len(t), n, -1).swapaxes(0, 1)
               for of, t, n in zip("qkv", (x, y, z), (heads[0], heads[1], heads[1])))
    if frequencies is not None: q, k = (rotate(t, *angles(range(t.shape[1]), frequencies), interleaved) for t in (q, k))
    rows = attention(q, k, v, arithmetic=attention_arithmetic, fused_class=fused_class, **options).o.swapaxes(0, 1).reshape(len(x), -1)
    return layer(rows, **layers["o"], residual=residual) if "o" in layers else rows


# ---- O. Functions of whole models: of float64, in which all is computed (O.1); the caller rounds the result ---------------------


def by_powers(x, coefficients):
    """p = the first of the coefficients; for b in the others: p = p * x + b."""
    return functools.reduce(lambda p, b: p * x + b, coefficients)


def quotients(numerator, denominators):
    return [numerator / n for n in denominators]


@np.errstate(all="ignore")
def exp_of(x):
    """O.2."""
    k = np.rint(x * number("0x1.71547652b82fep+0"))
    r = (x - k * number("0x1.62e42fee00000p-1")) - k * number("0x1.a39ef35793c76p-33")
    e = by_powers(r, quotients(1, [math.factorial(n) for n in range(13, -1, -1)]))
    power = np.ldexp(e, np.clip(np.nan_to_num(k), -1100, 1100).astype(int))  # exact: x is in the range of the next line
    return np.where(x < -708, 0, np.where(x > 709.782712893384, np.inf, power))


@np.errstate(all="ignore")
def expm1_of(x):
    """O.3."""
    e = by_powers(x, quotients(1, [math.factorial(n) for n in range(13, 0, -1)]))
    return np.where(abs(x) < 0.25, e * x, exp_of(x) - 1)


@np.errstate(all="ignore")
def log_of(x):
    """O.4."""
    m, e = np.frexp(x)  # m from 1/2 to 1
    above = 2 * m > 1.4142135623730951
    m, e = np.where(above, m, 2 * m), np.where(above, e, e - 1).astype(np.float64)
    s = (m - 1) / (m + 1)
    z = s * s
    p = by_powers(z, quotients(2, range(25, 2, -2)))
    found = (s * 2 + s * (z * p) + e * number("0x1.a39ef35793c76p-33")) + e * number("0x1.62e42fee00000p-1")
    return np.where(x == 0, -np.inf, np.where(x < 0, np.nan, np.where(x < np.inf, found, x)))


@np.errstate(all="ignore")
def log1p_of(x):
    """O.5."""
    u = x + 1
    return np.where(u == 1, x, np.where(u == np.inf, u, log_of(u) * (x / (u - 1))))


@np.errstate(all="ignore")
def tanh_of(x):
    """O.6."""
    e = expm1_of(2 * np.minimum(abs(x), 22))
    return np.copysign(e / (e + 2), x)


@np.errstate(all="ignore")
def erf_of(x):
    """O.7."""
    p = by_powers(x * x * 0.125 - 1, [number(b) for b in """
        0x1.b7749b52e3571p-27 -0x1.7f41802bd6060p-25 0x1.204aa5aa2c425p-24 -0x1.c0fc172a62ef5p-23 0x1.cf81562d731efp-21
        -0x1.5651caf3c9f46p-19 0x1.ca54b186133c0p-18 -0x1.34f26ba26e0f8p-16 0x1.918ee60e50eb9p-15 -0x1.edfac285f40b2p-14
        0x1.20e98d57ac5f2p-12 -0x1.4158c3c0fc1c8p-11 0x1.52da27298f1b2p-10 -0x1.51ef25ec8e0fap-9 0x1.3e15098ff36cap-8
        -0x1.1a0231b85fbe4p-7 0x1.d6352a3bca7e2p-7 -0x1.7034faba3c5f0p-6 0x1.0ed52bfb66282p-5 -0x1.76e8648dfbb57p-5
        0x1.ea97f14be4696p-5 -0x1.3215d8b7b083fp-4 0x1.717efc7842529p-4 -0x1.b92e95c190666p-4 0x1.0dabaf0613e8ep-3
        -0x1.69a0ccda3df7cp-3 0x1.6a040781a499cp-2""".split()])
    return np.where(abs(x) >= 4, np.sign(x), p * x)


@np.errstate(all="ignore")
def sin_of(x):
    """O.8."""
    return cos_and_sin(x, 0.0)[1]


@np.errstate(all="ignore")
def cos_of(x):
    """O.8."""
    return cos_and_sin(x, 0.0)[0]


@np.errstate(all="ignore")
def sigmoid_of(x):
    """O.9."""
    return 1 / (exp_of(-x) + 1)


@np.errstate(all="ignore")
def silu_of(x):
    """O.9."""
    return x / (exp_of(-x) + 1)


@np.errstate(all="ignore")
def quick_gelu_of(x):
    """O.9."""
    return x / (exp_of(-(x * 1.702)) + 1)


@np.errstate(all="ignore")
def softplus_of(x):
    """O.9."""
    return np.maximum(x, 0) + log1p_of(exp_of(-abs(x)))


@np.errstate(all="ignore")
def gelu_of(x):
    """O.9."""
    return x * 0.5 * (erf_of(x * 0.7071067811865476) + 1)


@np.errstate(all="ignore")
def gelu_tanh_of(x):
    """O.9."""
    return x * 0.5 * (tanh_of((x * x * x * 0.044715 + x) * 0.7978845608028654) + 1)


@np.errstate(all="ignore")
def power_of(x, y):
    """O.10, but for those powers that PyTorch computes in the type of x."""
    return np.where(x == 0, np.where(y > 0, 0, np.where(y == 0, 1, np.inf)), exp_of(log_of(x) * y))
