/* SPDX-License-Identifier: Apache-2.0 */
#include <arm_sve.h>

#ifndef ISA
#define ISA sve256
#endif
#define CHAINS 24
#define OPS    2
typedef svfloat32_t vec __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)));
static inline vec v_set1(float x) { return svdup_n_f32(x); }
static inline vec v_step(int chain, vec acc, vec a, vec b) {
    (void)chain;
    return svmla_f32_x(svptrue_b32(), acc, a, b);
}

#include "peak.h"
