/* SPDX-License-Identifier: Apache-2.0 */
/* neon: AArch64 Advanced SIMD. */
#include "arm/neon_words.h"

#define RAPT_KERNEL_NAME  neon
#define RAPT_KERNEL_NEEDS RAPT_CPU_NEON

#define RAPT_DOT 2
static inline vi i_dot(vi acc, vi b, vi a) {
    int16x8_t x = vreinterpretq_s16_u32(b), y = vreinterpretq_s16_u32(a);
    int32x4_t pairs = vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
    return vaddq_u32(acc, vreinterpretq_u32_s32(pairs));
}

#include "attend.h"
