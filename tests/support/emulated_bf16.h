/* SPDX-License-Identifier: Apache-2.0 */
/* VDPBF16PS in plain C. */
#ifndef RAPT_EMULATED_BF16_H
#define RAPT_EMULATED_BF16_H

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { EMULATED_LANES = 16 };

static inline float emulated_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Each sum gets the product of the upper halves of its lane of a and b, then that of the lower ones; each addition is rounded
 * once. What would be denormal is not met: factors are 0 or at least 2^-56. */
static inline void emulated_vdpbf16ps(float *sums, const uint32_t *a, const uint32_t *b) {
    for (int i = 0; i < EMULATED_LANES; i++) {
        sums[i] = fmaf(emulated_float(a[i] & 0xffff0000), emulated_float(b[i] & 0xffff0000), sums[i]);
        sums[i] = fmaf(emulated_float(a[i] << 16), emulated_float(b[i] << 16), sums[i]);
    }
}

#endif
