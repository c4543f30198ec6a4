/* SPDX-License-Identifier: Apache-2.0 */
#include <arm_neon.h>

#ifndef ISA
#define ISA neon
#endif
#define CHAINS 24
#define OPS    2
typedef float32x4_t vec;
static inline vec v_set1(float x) { return vdupq_n_f32(x); }
static inline vec v_step(int chain, vec acc, vec a, vec b) {
    (void)chain;
    return vfmaq_f32(acc, a, b);
}

#include "peak.h"
