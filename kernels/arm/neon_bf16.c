/* SPDX-License-Identifier: Apache-2.0 */
/* neon_bf16: neon_i8mm with products of bf16 (FEAT_BF16). BFMLALB and BFMLALT are v_fma of the even and of the odd elements, each
 * rounded once (Arm ARM, BFMulAdd), so with few rows of Q, K and V are multiplied without conversion. With many rows of Q they
 * are staged as f32, as in neon: FMLA has the same rate. BFDOT and BFMMLA, which round in their own way, are not used. */
#if !defined(__ARM_FEATURE_DOTPROD) || !defined(__ARM_FEATURE_MATMUL_INT8) || !defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#error "compile with -march=armv8.2-a+dotprod+i8mm+bf16"
#endif
#include "arm/neon_dot_words.h"

#define RAPT_KERNEL_NAME  neon_bf16
#define RAPT_KERNEL_NEEDS (RAPT_CPU_NEON | RAPT_CPU_DOTPROD | RAPT_CPU_I8MM | RAPT_CPU_BF16)

#define RAPT_BF16_FMA 1

/* The instructions themselves, since gcc 12 gives their intrinsics registers that an element cannot be in. n is a constant once
 * these are inlined. */
#define MULTIPLY(instruction, element)                                                                                           \
    case element:                                                                                                                \
        __asm__(instruction " %0.4s, %1.8h, %2.h[" #element "]" : "+w"(c) : "w"(b), "x"(a));                                     \
        break;
#define MULTIPLY_BY_ELEMENT(instruction)                                                                                         \
    switch (n) {                                                                                                                 \
        MULTIPLY(instruction, 0)                                                                                                 \
        MULTIPLY(instruction, 1)                                                                                                 \
        MULTIPLY(instruction, 2)                                                                                                 \
        MULTIPLY(instruction, 3)                                                                                                 \
        MULTIPLY(instruction, 4)                                                                                                 \
        MULTIPLY(instruction, 5)                                                                                                 \
        MULTIPLY(instruction, 6)                                                                                                 \
        MULTIPLY(instruction, 7)                                                                                                 \
    }
static inline __attribute__((always_inline)) vf v_fma_lower(vf a, int n, vi b, vf c) {
    MULTIPLY_BY_ELEMENT("bfmlalb")
    return c;
}
static inline __attribute__((always_inline)) vf v_fma_upper(vf a, int n, vi b, vf c) {
    MULTIPLY_BY_ELEMENT("bfmlalt")
    return c;
}
#undef MULTIPLY_BY_ELEMENT
#undef MULTIPLY

#include "attend.h"
