/* SPDX-License-Identifier: Apache-2.0 */
/* The f32 peak is that of avx512. */
#include <immintrin.h>
#include <stdint.h>

#ifndef ISA
#define ISA avx512_vnni
#endif
#define INT_OPS 8
typedef uint32_t ivec __attribute__((vector_size(64)));
static inline ivec i_step(int chain, ivec acc, ivec a, ivec b) {
    (void)chain;
    return (ivec)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)a, (__m512i)b);
}

#include "peak_avx512.c"
