/* SPDX-License-Identifier: Apache-2.0 */
/* a * b + c, rounded once. */
#ifndef RAPT_TESTS_FUSED_H
#define RAPT_TESTS_FUSED_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(_WIN32)
/* For the C library of MinGW rounds twice, first to a long double. The product is exact in double; a sum that is not is rounded
 * to odd, to the one of its neighbours whose last bit is set, so that it is no tie for the second rounding. */
static inline float fused_multiply_add(float a, float b, float c) {
    const double product = (double)a * b, sum = product + c, part = sum - product;
    const double error = (product - (sum - part)) + (c - part);
    uint64_t bits;
    double odd = sum;
    memcpy(&bits, &sum, sizeof bits);
    if (error != 0 && isfinite(sum) && !(bits & 1)) {
        bits += (error > 0) == (sum > 0) ? 1 : UINT64_MAX;
        memcpy(&odd, &bits, sizeof odd);
    }
    return (float)odd;
}
#else
static inline float fused_multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
#endif

#endif
