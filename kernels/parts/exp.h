/* SPDX-License-Identifier: Apache-2.0 */
/* exp2, tanh, GELU, SiLU and ln, in words. They have polynomials of their own, so that no bit depends on a libm. Coefficients are
 * minimax fits of the relative error by tools/fit_exp.py, each rounded to f32 before the next was fitted. Included by attend.h.
 */

#include "bf16/bf16_exp.h"

/* 1.5 * 2^23 + 127. Adding 1.5 * 2^23 rounds a small number to an integer; 127 more leaves it as a biased exponent in the low
 * bits. */
#define RAPT_ROUND_MAGIC 12583039.0f

/* Returns 2^(d * c) for d <= 0 and c > 0, where least is -127 / c: +0 for d <= least, also for -inf, and NaN for NaN. d = 0 gives
 * exactly 1, since the polynomial does at 0. tests/kernels/words.c measures and asserts the error. */
static inline vf v_exp2(vf d, vf c, vf least) {
    vf x = v_max(least, d); /* in this order: of NaN and a number, x86's max returns the second operand */
    vf t = v_fma(x, c, v_set1(RAPT_ROUND_MAGIC));
    vf n = v_sub(v_set1(RAPT_ROUND_MAGIC), t); /* minus the integer */
    vf f = v_fma(x, c, n);
    vf p = v_set1(0x1.416b5ep-13f);
    p = v_fma(p, f, v_set1(0x1.5f082ep-10f));
    p = v_fma(p, f, v_set1(0x1.3b2dep-7f));
    p = v_fma(p, f, v_set1(0x1.c6af7cp-5f));
    p = v_fma(p, f, v_set1(0x1.ebfbdcp-3f));
    p = v_fma(p, f, v_set1(0x1.62e43p-1f));
    p = v_fma(p, f, v_set1(1.0f));
    return v_mul(p, v_pow2(t)); /* a product, not an addition to the exponent bits: NaN stays NaN, and n = -127 gives 0 */
}

/* Returns 2^(d * c), rounded to bf16, for d <= 0 and c > 0, where least is -56 / c. It is 2^n * 2^f, n being the integer at or
 * below d * c, so that 2^f lies between 1 and 2 and one addition rounds it. The result is +0 for d < least, and otherwise at
 * least 2^-56; NaN gives NaN, and d = 0 gives 1. tests/kernels/words.c measures and asserts the error. */
static inline vf v_exp2_bf16(vf d, vf c, vf least) {
    vf one = v_set1(1.0f);
    vf t = v_fma(d, c, v_set1(RAPT_ROUND_MAGIC));
    vf n = v_sub(v_set1(RAPT_ROUND_MAGIC), t);
    vm above = v_lt(v_fma(d, c, n), v_set1(0.0f)); /* t was rounded up */
    t = v_select(above, v_sub(t, one), t);
    n = v_select(above, v_add(n, one), n);
    vf f = v_fma(d, c, n);
    vf p = v_set1(RAPT_BF16_EXP_3);
    p = v_fma(p, f, v_set1(RAPT_BF16_EXP_2));
    p = v_fma(p, f, v_set1(RAPT_BF16_EXP_1));
    p = v_sub(v_fma(p, f, v_set1(RAPT_BF16_MAGIC + 1.0f)), v_set1(RAPT_BF16_MAGIC));
    return v_select(v_lt(d, least), v_set1(0.0f), v_mul(p, v_pow2(t)));
}

/* Returns tanh(x): for |x| < 0.625 an odd polynomial, since (1 - e) / (1 + e) with e = exp(-2 |x|) would cancel there; else that.
 */
static inline vf v_tanh(vf x) {
    vi sign = i_and(v_as_int(x), i_set1(INT32_MIN));
    vf a = v_as_float(i_and(v_as_int(x), i_set1(INT32_MAX)));
    vm below = v_lt(a, v_set1(0.625f));
    vf z = v_mul(a, a);
    vf p = v_set1(-0x1.750ce4p-8f);
    p = v_fma(p, z, v_set1(0x1.51f8cep-6f));
    p = v_fma(p, z, v_set1(-0x1.b835a4p-5f));
    p = v_fma(p, z, v_set1(0x1.1106f6p-3f));
    p = v_fma(p, z, v_set1(-0x1.555532p-2f));
    vf t = v_fma(v_mul(a, z), p, a);
    if (!v_all(below)) { /* rare for softcaps, which are large */
        vf e = v_exp2(v_sub(v_set1(0.0f), a), v_set1(0x1.715476p+1f), v_set1(-127.0f / 0x1.715476p+1f));
        t = v_select(below, t, v_div(v_sub(v_set1(1.0f), e), v_add(v_set1(1.0f), e)));
    }
    return v_as_float(i_or(v_as_int(t), sign));
}

/* Returns x * Phi(x), where Phi is the normal distribution function. With a = |x|, Phi(-a) = 2^-h(a) for a polynomial h without
 * cancellation, and Phi(a) = 1 - Phi(-a). h is fitted up to a = 8, where 2^-h is below 1e-15; beyond, h grows and 2^-h vanishes.
 */
static inline vf v_gelu(vf x) {
    vf a = v_as_float(i_and(v_as_int(x), i_set1(INT32_MAX)));
    vf h = v_set1(0x1.60a846p-27f);
    h = v_fma(h, a, v_set1(-0x1.9833cap-22f));
    h = v_fma(h, a, v_set1(0x1.894d92p-18f));
    h = v_fma(h, a, v_set1(-0x1.8c04ecp-15f));
    h = v_fma(h, a, v_set1(0x1.7d4d4ep-13f));
    h = v_fma(h, a, v_set1(0x1.99fcbap-13f));
    h = v_fma(h, a, v_set1(-0x1.d649c8p-8f));
    h = v_fma(h, a, v_set1(0x1.aecfcep-5f));
    h = v_fma(h, a, v_set1(0x1.d631f4p-2f));
    h = v_fma(h, a, v_set1(0x1.26af14p+0f));
    h = v_fma(h, a, v_set1(1.0f));
    vf below = v_exp2(v_sub(v_set1(0.0f), h), v_set1(1.0f), v_set1(-127.0f));
    return v_mul(x, v_select(v_lt(x, v_set1(0.0f)), below, v_sub(v_set1(1.0f), below)));
}

/* Returns 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))). */
static inline vf v_gelu_tanh(vf x) {
    vf y = v_mul(v_fma(v_mul(v_mul(x, x), x), v_set1(0.044715f), x), v_set1(0x1.988454p-1f));
    return v_mul(v_mul(v_set1(0.5f), x), v_add(v_set1(1.0f), v_tanh(y)));
}

/* Returns x / (1 + exp(-x)). For negative x it computes x * e / (1 + e) with e = exp(-|x|), which does not overflow. */
static inline vf v_silu(vf x) {
    vf a = v_as_float(i_and(v_as_int(x), i_set1(INT32_MAX)));
    vf e = v_exp2(v_sub(v_set1(0.0f), a), v_set1(0x1.715476p+0f), v_set1(-127.0f / 0x1.715476p+0f));
    return v_div(v_select(v_lt(x, v_set1(0.0f)), v_mul(x, e), x), v_add(v_set1(1.0f), e));
}

/* Returns ln(x) for normal x > 0, and NaN for NaN: x = 2^e * y with y in [sqrt(1/2), sqrt(2)), s = (y - 1) / (y + 1), and
 * ln y = 2 atanh s. */
static inline float s_ln(float x) {
    uint32_t bits, half_root = 0x3f3504f3u; /* sqrt(1/2) */
    memcpy(&bits, &x, sizeof bits);
    uint32_t above = bits - half_root;
    float e = (float)((int32_t)above >> 23), y;
    bits = half_root + (above & 0x7fffffu);
    memcpy(&y, &bits, sizeof y);
    float s = (y - 1.0f) / (y + 1.0f);
    float z = s * s;
    float p = 0x1.f161d2p-3f;
    p = s_fma(p, z, 0x1.23d312p-2f);
    p = s_fma(p, z, 0x1.999c28p-2f);
    p = s_fma(p, z, 0x1.555554p-1f);
    float odd = s_fma(s * z, p, 2.0f * s);
    return x == x ? s_fma(e, 0x1.62e43p-1f, odd) : x;
}
