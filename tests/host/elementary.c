/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of integrations/ggml/elementary.h over arrays, for tests/host/order.py and python/tests/test_reproducible.py,
 * which compare them with docs/order.py and with PyTorch's. */
#include "elementary.h"

/* Sets to[i] to a function of x = from[i], and of power's exponent. */
#define OVER_ARRAY(name, result)                                                                                                 \
    void of_##name(const double *from, double exponent, double *to, int64_t n);                                                  \
    void of_##name(const double *from, double exponent, double *to, int64_t n) {                                                 \
        (void)exponent;                                                                                                          \
        for (int64_t i = 0; i < n; i++) {                                                                                        \
            const double x = from[i];                                                                                            \
            to[i] = (result);                                                                                                    \
        }                                                                                                                        \
    }

static double sin_of(double x) {
    double c, s;
    turn(x, &c, &s);
    return s;
}

static double cos_of(double x) {
    double c, s;
    turn(x, &c, &s);
    return c;
}

OVER_ARRAY(exp, exp_of(x))
OVER_ARRAY(expm1, expm1_of(x))
OVER_ARRAY(log, log_of(x))
OVER_ARRAY(tanh, tanh_of(x))
OVER_ARRAY(erf, erf_of(x))
OVER_ARRAY(sin, sin_of(x))
OVER_ARRAY(cos, cos_of(x))
OVER_ARRAY(sigmoid, sigmoid_of(x))
OVER_ARRAY(silu, silu_of(x))
OVER_ARRAY(quick_gelu, gelu_quick_of(x))
OVER_ARRAY(gelu, gelu_of(x))
OVER_ARRAY(gelu_tanh, gelu_tanh_of(x))
OVER_ARRAY(power, power_of(x, exponent))
