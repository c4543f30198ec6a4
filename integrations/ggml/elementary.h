/* SPDX-License-Identifier: Apache-2.0 */
/* Elementary functions whose bits are the same on every CPU: made of operations in double precision that IEEE 754 defines, one
 * rounding each, and of integers. They are those of docs/order.md, O, and of python/rapt/_elementary.py. The compiler must not
 * contract a product and a sum (-ffp-contract=off), and may compute several numbers at a time: nothing here branches. */
#ifndef RAPT_GGML_ELEMENTARY_H
#define RAPT_GGML_ELEMENTARY_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0
#error "doubles must be computed as doubles: on 32-bit x86 this takes -msse2 -mfpmath=sse"
#endif

#define TURNS_MAGIC 0x1.8p52 /* Added to a double below 2^51, it leaves the nearest integer in the lowest bits. */

static inline int64_t bits_of_double(double x) {
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline double double_of_bits(int64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Returns a polynomial of x by Horner's rule, the highest coefficient first. */
#define BY_POWERS(x, of) by_powers((x), (of), (int)(sizeof(of) / sizeof *(of)))
static inline double by_powers(double x, const double *of, int n) {
    double sum = of[0];
    for (int i = 1; i < n; i++) sum = sum * x + of[i];
    return sum;
}

/* Returns e^x: 0 below -708, infinity above 709.78. */
static inline double exp_of(double x) {
    static const double of[] = {
        1 / 6227020800.0, 1 / 479001600.0, 1 / 39916800.0, 1 / 3628800.0, 1 / 362880.0, 1 / 40320.0, 1 / 5040.0,
        1 / 720.0,        1 / 120.0,       1 / 24.0,       1 / 6.0,       1 / 2.0,      1.0,         1.0};
    const double low = x < -708 ? -708 : x, within = low > 709 ? 709 : low;
    const double sum = within * 0x1.71547652b82fep+0 + TURNS_MAGIC, k = sum - TURNS_MAGIC;
    const double r = (within - k * 0x1.62e42fee00000p-1) - k * 0x1.a39ef35793c76p-33;
    /* The lowest 12 bits of sum are those of k. */
    const double power = double_of_bits((int64_t)((uint64_t)(bits_of_double(sum) + 1023) << 52));
    const double found = power * BY_POWERS(r, of);
    return x < -708 ? 0 : x > 709 ? INFINITY : found;
}

/* Returns e^x - 1, for x that is not below -708. */
static inline double expm1_of(double x) {
    static const double of[] = {
        1 / 6227020800.0, 1 / 479001600.0, 1 / 39916800.0, 1 / 3628800.0, 1 / 362880.0, 1 / 40320.0, 1 / 5040.0,
        1 / 720.0,        1 / 120.0,       1 / 24.0,       1 / 6.0,       1 / 2.0,      1.0};
    const double near = BY_POWERS(x, of) * x, far = exp_of(x) - 1;
    return fabs(x) < 0.25 ? near : far;
}

static inline double tanh_of(double x) {
    const double a = fabs(x), e = expm1_of((a > 22 ? 22 : a) * 2);
    return copysign(e / (e + 2), x);
}

/* Returns the error function, which is 1 or -1 from 4 on. */
static inline double erf_of(double x) {
    /* erf(x) / x by powers of x^2 / 8 - 1: Chebyshev's nodes, off by less than 1e-15. */
    static const double of[] = {0x1.b7749b52e3571p-27, -0x1.7f41802bd6060p-25, 0x1.204aa5aa2c425p-24, -0x1.c0fc172a62ef5p-23,
                                0x1.cf81562d731efp-21, -0x1.5651caf3c9f46p-19, 0x1.ca54b186133c0p-18, -0x1.34f26ba26e0f8p-16,
                                0x1.918ee60e50eb9p-15, -0x1.edfac285f40b2p-14, 0x1.20e98d57ac5f2p-12, -0x1.4158c3c0fc1c8p-11,
                                0x1.52da27298f1b2p-10, -0x1.51ef25ec8e0fap-9,  0x1.3e15098ff36cap-8,  -0x1.1a0231b85fbe4p-7,
                                0x1.d6352a3bca7e2p-7,  -0x1.7034faba3c5f0p-6,  0x1.0ed52bfb66282p-5,  -0x1.76e8648dfbb57p-5,
                                0x1.ea97f14be4696p-5,  -0x1.3215d8b7b083fp-4,  0x1.717efc7842529p-4,  -0x1.b92e95c190666p-4,
                                0x1.0dabaf0613e8ep-3,  -0x1.69a0ccda3df7cp-3,  0x1.6a040781a499cp-2};
    const double low = x < -4 ? -4 : x, a = low > 4 ? 4 : low, within = BY_POWERS(a * a * 0.125 - 1, of) * a;
    return x >= 4 ? 1 : x <= -4 ? -1 : within;
}

static inline double sigmoid_of(double x) { return 1 / (exp_of(-x) + 1); }
static inline double silu_of(double x) { return x / (exp_of(-x) + 1); }
static inline double gelu_of(double x) { return x * 0.5 * (erf_of(x * 0.7071067811865476) + 1); }
static inline double gelu_tanh_of(double x) { return x * 0.5 * (tanh_of((x * x * x * 0.044715 + x) * 0.7978845608028654) + 1); }
static inline double gelu_quick_of(double x) { return x / (exp_of(-(x * 1.702)) + 1); }

/* Returns the natural logarithm of a normal number above 0. */
static inline double log_of(double x) {
    static const double of[] = {2 / 25.0, 2 / 23.0, 2 / 21.0, 2 / 19.0, 2 / 17.0, 2 / 15.0,
                                2 / 13.0, 2 / 11.0, 2 / 9.0,  2 / 7.0,  2 / 5.0,  2 / 3.0};
    const int64_t bits = bits_of_double(x);
    const double mantissa = double_of_bits((bits & 0xfffffffffffff) | 0x3ff0000000000000);
    const int above = mantissa > 1.4142135623730951;
    const double m = above ? mantissa * 0.5 : mantissa, e = (double)((bits >> 52) - 1023 + above);
    const double s = (m - 1) / (m + 1), z = s * s;
    return (s * 2 + s * (z * BY_POWERS(z, of)) + e * 0x1.a39ef35793c76p-33) + e * 0x1.62e42fee00000p-1;
}

/* Returns x^y, for x above 0. */
static inline double power_of(double x, double y) { return exp_of(log_of(x) * y); }

/* Sets the cosine and the sine of an angle (docs/order.md, J.2, at position 1). */
static inline void turn(double x, double *cosine, double *sine) {
    static const double of_sine[] = {-1 / 1307674368000.0, 1 / 6227020800.0, -1 / 39916800.0, 1 / 362880.0,
                                     -1 / 5040.0,          1 / 120.0,        -1 / 6.0};
    static const double of_cosine[] = {1 / 20922789888000.0, -1 / 87178291200.0, 1 / 479001600.0, -1 / 3628800.0,
                                       1 / 40320.0,          -1 / 720.0,         1 / 24.0,        -1 / 2.0};
    const double sum = x * 0x1.45f306dc9c883p-1 + TURNS_MAGIC, turns = sum - TURNS_MAGIC;
    const double r = ((x - turns * 0x1.921ep+0) - turns * 0x1.b544p-16) - turns * 0x1.0b4611a626331p-34;
    const double z = r * r, s = r + r * (z * BY_POWERS(z, of_sine)), c = z * BY_POWERS(z, of_cosine) + 1;
    const int64_t quarter = bits_of_double(sum) & 3;
    const double of_c = (quarter & 1) != 0 ? s : c, of_s = (quarter & 1) != 0 ? c : s;
    *cosine = ((quarter + 1) & 2) != 0 ? -of_c : of_c;
    *sine = (quarter & 2) != 0 ? -of_s : of_s;
}

#endif
