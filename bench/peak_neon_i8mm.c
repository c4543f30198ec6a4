/* SPDX-License-Identifier: Apache-2.0 */
/* The f32 peak is that of neon. */
#include <arm_neon.h>

#ifndef ISA
#define ISA neon_i8mm
#endif
#define INT_OPS 16
typedef uint32x4_t ivec;
static inline ivec i_step(int chain, ivec acc, ivec a, ivec b) {
    (void)chain;
    return vreinterpretq_u32_s32(vmmlaq_s32(vreinterpretq_s32_u32(acc), vreinterpretq_s8_u32(a), vreinterpretq_s8_u32(b)));
}

#include "peak_neon.c"
