/* SPDX-License-Identifier: Apache-2.0 */
/* neon_dot: neon with products of four bytes in a lane (FEAT_DotProd). */
#include "neon_words.h"
#if !defined(__ARM_FEATURE_DOTPROD)
#error "compile with -march=armv8.2-a+dotprod"
#endif

#define RAPT_KERNEL_NAME  neon_dot
#define RAPT_KERNEL_NEEDS (RAPT_CPU_NEON | RAPT_CPU_DOTPROD)

#define RAPT_DOT        4
#define RAPT_DOT_SIGNED 1
static inline vi i_dot(vi acc, vi b, vi a) {
    return vreinterpretq_u32_s32(vdotq_s32(vreinterpretq_s32_u32(acc), vreinterpretq_s8_u32(b), vreinterpretq_s8_u32(a)));
}

#include "attend.h"
