/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of integrations/ggml/elementary.h over arrays, for tests/host/order.py and python/tests/test_reproducible.py,
 * which compare them with docs/order.py and with PyTorch's. */
#include "elementary.h"

/* Sets to[i] to a function of x = from[i], and of power's exponent. */
#define FUNCTION(name, result)                                                                                                   \
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

FUNCTION(exp, exp_of(x))
FUNCTION(expm1, expm1_of(x))
FUNCTION(log, log_of(x))
FUNCTION(tanh, tanh_of(x))
FUNCTION(erf, erf_of(x))
FUNCTION(sin, sin_of(x))
FUNCTION(cos, cos_of(x))
FUNCTION(sigmoid, sigmoid_of(x))
FUNCTION(silu, silu_of(x))
FUNCTION(quick_gelu, gelu_quick_of(x))
FUNCTION(gelu, gelu_of(x))
FUNCTION(gelu_tanh, gelu_tanh_of(x))
FUNCTION(power, power_of(x, exponent))
