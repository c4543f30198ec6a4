/* SPDX-License-Identifier: Apache-2.0 */
/* The words of AVX-512 with VNNI, which multiplies four bytes in a lane. */
#include "x86/avx512_words.h"

#define RAPT_DOT      4
#define RAPT_FEW_DOTS 1
static inline vi i_dot(vi acc, vi b, vi a) { return (vi)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)b, (__m512i)a); }
static inline void i_store_u8(void *to, vi a) { _mm_storeu_si128(to, _mm512_cvtepi32_epi8((__m512i)a)); }

/* Returns in lane 4q + j the sum of quarter q of x[j]. */
static inline vi i_sum_within(const vi x[4]) {
    __m512i a = (__m512i)x[0], b = (__m512i)x[1], c = (__m512i)x[2], d = (__m512i)x[3];
    __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    return (vi)_mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}

/* Returns in lane 4q + j the sum over the quarters of x[q] of their lane j. */
static inline vi i_sum_across(const vi x[4]) {
    __m512i a = (__m512i)x[0], b = (__m512i)x[1], c = (__m512i)x[2], d = (__m512i)x[3];
    __m512i ab = _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
    __m512i cd = _mm512_add_epi32(_mm512_shuffle_i32x4(c, d, 0x88), _mm512_shuffle_i32x4(c, d, 0xdd));
    return (vi)_mm512_add_epi32(_mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xdd));
}

/* Sets lane i % 16 of out[i / 16] to byte i of each of the four rows: moves dword n of a row to quarter n % 4, in which unpacking
 * twice puts the bytes of the rows side by side. */
static inline __attribute__((always_inline)) void i_quads(vi out[4], const vf rows[4]) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i r[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) r[i] = _mm512_permutexvar_epi32(order, (__m512i)rows[i]);
    __m512i low = _mm512_unpacklo_epi8(r[0], r[1]), high = _mm512_unpackhi_epi8(r[0], r[1]);
    __m512i low2 = _mm512_unpacklo_epi8(r[2], r[3]), high2 = _mm512_unpackhi_epi8(r[2], r[3]);
    out[0] = (vi)_mm512_unpacklo_epi16(low, low2);
    out[1] = (vi)_mm512_unpackhi_epi16(low, low2);
    out[2] = (vi)_mm512_unpacklo_epi16(high, high2);
    out[3] = (vi)_mm512_unpackhi_epi16(high, high2);
}
