/* SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>
#include <stdint.h>

#ifndef ISA
#define ISA avx512
#endif
#define CHAINS 24
#define OPS    2
typedef __m512 vec;
static inline vec v_set1(float x) { return _mm512_set1_ps(x); }
static inline vec v_step(int chain, vec acc, vec a, vec b) {
    (void)chain;
    return _mm512_fmadd_ps(a, b, acc);
}

#ifndef INT_OPS
#define INT_OPS 4
typedef uint32_t ivec __attribute__((vector_size(64)));
static inline ivec i_step(int chain, ivec acc, ivec a, ivec b) {
    (void)chain, (void)a;
    return acc + (ivec)_mm512_madd_epi16((__m512i)acc, (__m512i)b);
}
#endif

#include "peak.h"
