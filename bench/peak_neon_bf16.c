/* SPDX-License-Identifier: Apache-2.0 */
/* The f32 peak is that of neon, and that of integers that of neon_i8mm. */
#include <arm_neon.h>

#define ISA      neon_bf16
#define BF16_OPS 2
typedef float32x4_t bvec;
static inline bvec b_step(int chain, bvec acc, bvec a, bvec b) {
    const bfloat16x8_t x = vreinterpretq_bf16_f32(a), y = vreinterpretq_bf16_f32(b);
    return chain % 2 ? vbfmlaltq_f32(acc, x, y) : vbfmlalbq_f32(acc, x, y);
}

#include "peak_neon_i8mm.c"
