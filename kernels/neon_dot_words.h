/* SPDX-License-Identifier: Apache-2.0 */
/* The words of Advanced SIMD with FEAT_DotProd: products of four bytes in a lane. */
#include "neon_words.h"

#define RAPT_DOT        4
#define RAPT_DOT_SIGNED 1
static inline vi i_dot(vi acc, vi b, vi a) {
    return vreinterpretq_u32_s32(vdotq_s32(vreinterpretq_s32_u32(acc), vreinterpretq_s8_u32(b), vreinterpretq_s8_u32(a)));
}
