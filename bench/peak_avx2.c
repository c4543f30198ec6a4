/* SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#ifndef ISA
#define ISA avx2
#endif
#define CHAINS 12
#define OPS    2
typedef __m256 vec;
static inline vec v_set1(float x) { return _mm256_set1_ps(x); }
static inline vec v_step(int chain, vec acc, vec a, vec b) {
    (void)chain;
    return _mm256_fmadd_ps(a, b, acc);
}

#include "peak.h"
