/* SPDX-License-Identifier: Apache-2.0 */
#include <riscv_vector.h>

#ifndef ISA
#define ISA rvv256
#endif
#define CHAINS 24
#define OPS    2
typedef vfloat32m1_t vec __attribute__((riscv_rvv_vector_bits(__riscv_v_fixed_vlen)));
static inline vec v_set1(float x) { return __riscv_vfmv_v_f_f32m1(x, __riscv_v_fixed_vlen / 32); }
static inline vec v_step(int chain, vec acc, vec a, vec b) {
    (void)chain;
    return __riscv_vfmacc_vv_f32m1(acc, a, b, __riscv_v_fixed_vlen / 32);
}

#include "peak.h"
