/* SPDX-License-Identifier: Apache-2.0 */
/* VDPBF16PS and VCVTNE2PS2BF16 in plain C (Intel SDM, volume 2). */
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

/* Rounds the f32 with these bits to bf16, to nearest even. A denormal number becomes 0 of its sign, and NaN a quiet NaN. */
static inline uint16_t emulated_bf16(uint32_t bits) {
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude < 0x00800000) return (uint16_t)(bits >> 16 & 0x8000);
    if (magnitude > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* to[0] to to[15] are x, rounded to bf16, and to[16] to to[31] y. */
static inline void emulated_vcvtne2ps2bf16(uint16_t *to, const uint32_t *x, const uint32_t *y) {
    for (int i = 0; i < EMULATED_LANES; i++) to[i] = emulated_bf16(x[i]), to[EMULATED_LANES + i] = emulated_bf16(y[i]);
}

#endif
