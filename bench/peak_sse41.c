/* SPDX-License-Identifier: Apache-2.0 */
#include <smmintrin.h>
#include <stdint.h>

#define ISA    sse41
#define CHAINS 12
#define OPS    1
typedef __m128 vec;
static inline vec v_set1(float x) { return _mm_set1_ps(x); }
static inline vec v_step(int chain, vec acc, vec a, vec b) { return chain % 2 ? _mm_add_ps(acc, b) : _mm_mul_ps(acc, a); }

#define INT_OPS 4
typedef uint32_t ivec __attribute__((vector_size(16)));
static inline ivec i_step(int chain, ivec acc, ivec a, ivec b) {
    (void)chain, (void)a;
    return acc + (ivec)_mm_madd_epi16((__m128i)acc, (__m128i)b);
}

#include "peak.h"
