/* SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

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

#include "peak.h"
