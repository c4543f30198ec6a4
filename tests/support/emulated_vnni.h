/* SPDX-License-Identifier: Apache-2.0 */
/* VPDPBUSD of 256 bits in plain C. */
#ifndef RAPT_EMULATED_VNNI_H
#define RAPT_EMULATED_VNNI_H

#include <stdint.h>

enum { EMULATED_BYTES = 32, EMULATED_LANES = EMULATED_BYTES / 4 };

/* Each sum gets the products of four unsigned bytes of b and four signed ones of a, and wraps around. */
static inline void emulated_vpdpbusd(int32_t *sums, const uint8_t *b, const int8_t *a) {
    for (int i = 0; i < EMULATED_BYTES; i++) sums[i / 4] = (int32_t)((uint32_t)sums[i / 4] + (uint32_t)(b[i] * a[i]));
}

#endif
