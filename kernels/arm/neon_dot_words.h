/* SPDX-License-Identifier: Apache-2.0 */
/* The words of Advanced SIMD with FEAT_DotProd: products of four bytes in a lane. */
#include "arm/neon_words.h"

#define RAPT_DOT        4
#define RAPT_DOT_SIGNED 1
/* Uses the instruction itself with gcc: gcc 12 copies accumulators from register to register for the intrinsic, since their type
 * changes. */
static inline vi i_dot(vi acc, vi b, vi a) {
#if defined(__clang__)
    return vreinterpretq_u32_s32(vdotq_s32(vreinterpretq_s32_u32(acc), vreinterpretq_s8_u32(b), vreinterpretq_s8_u32(a)));
#else
    __asm__("sdot %0.4s, %1.16b, %2.16b" : "+w"(acc) : "w"(b), "w"(a));
    return acc;
#endif
}
