/* SPDX-License-Identifier: Apache-2.0 */
/* avx512_vnni: avx512 with products of four bytes in a lane. */
#if !defined(__AVX512F__) || !defined(__AVX512VL__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) ||                       \
    !defined(__AVX512VNNI__)
#error "compile with -mavx512f -mavx512vl -mavx512bw -mavx512dq -mavx512vnni -mfma"
#endif
#include "avx512_words.h"

#define RAPT_KERNEL_NAME  avx512_vnni
#define RAPT_KERNEL_NEEDS (RAPT_NEEDS_AVX512 | RAPT_CPU_AVX512VNNI)

#define RAPT_DOT 4
#define RAPT_FEW_DOTS
static inline vi i_dot(vi acc, vi b, vi a) { return _mm512_dpbusd_epi32(acc, b, a); }

/* Lane i % 16 of out[i / 16] has byte i of each of the four rows: each fourth group of four bytes goes to a quarter of its own,
 * within which unpacking twice lays the rows side by side. */
static inline __attribute__((always_inline)) void i_load_quads(vi out[4], const char *const *rows) {
    const vi order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    vi r[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) r[i] = _mm512_permutexvar_epi32(order, _mm512_loadu_si512((const void *)rows[i]));
    vi low = _mm512_unpacklo_epi8(r[0], r[1]), high = _mm512_unpackhi_epi8(r[0], r[1]);
    vi low2 = _mm512_unpacklo_epi8(r[2], r[3]), high2 = _mm512_unpackhi_epi8(r[2], r[3]);
    out[0] = _mm512_unpacklo_epi16(low, low2);
    out[1] = _mm512_unpackhi_epi16(low, low2);
    out[2] = _mm512_unpacklo_epi16(high, high2);
    out[3] = _mm512_unpackhi_epi16(high, high2);
}

#include "attend.h"
