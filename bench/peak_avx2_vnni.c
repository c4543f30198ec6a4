/* SPDX-License-Identifier: Apache-2.0 */
/* The f32 peak is that of avx2. */
#include <immintrin.h>
#include <stdint.h>

#define ISA     avx2_vnni
#define INT_OPS 8
typedef uint32_t ivec __attribute__((vector_size(32)));
static inline ivec i_step(int chain, ivec acc, ivec a, ivec b) {
    (void)chain;
    return (ivec)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)a, (__m256i)b);
}

#include "peak_avx2.c"
