/* SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>
#include <stdint.h>

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

#ifndef INT_OPS
#define INT_OPS 4
typedef uint32_t ivec __attribute__((vector_size(32)));
static inline ivec i_step(int chain, ivec acc, ivec a, ivec b) {
    (void)chain, (void)a;
    return acc + (ivec)_mm256_madd_epi16((__m256i)acc, (__m256i)b);
}
#endif

#include "peak.h"
