/* SPDX-License-Identifier: Apache-2.0 */
/* The f32 peak is that of avx512, and that of integers that of avx512_vnni. */
#include <immintrin.h>
#include <stdint.h>

#define ISA avx512_bf16

#define BF16_OPS 4
typedef __m512 bvec;
static inline bvec b_step(int chain, bvec acc, bvec a, bvec b) {
    (void)chain;
    return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
}

#include "peak_avx512_vnni.c"
