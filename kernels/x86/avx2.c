/* SPDX-License-Identifier: Apache-2.0 */
/* avx2: AVX2 + FMA + F16C, 8 lanes, 16 registers. */
#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "compile with -mavx2 -mfma -mf16c"
#endif
#include "x86/avx2_words.h"

#define RAPT_KERNEL_NAME  avx2
#define RAPT_KERNEL_NEEDS RAPT_NEEDS_AVX2

#define RAPT_DOT 2
static inline vi i_dot(vi acc, vi b, vi a) { return i_add(acc, (vi)_mm256_madd_epi16((__m256i)b, (__m256i)a)); }

/* VPMADDUBSW saturates, but sums of two products of bytes, of which one is signed and not -128, fit if the other is 0 to 128. */
#define RAPT_BYTE_DOTS 1
static inline vi i_dot_narrow(vi acc, vi b, vi a) {
    return (vi)_mm256_add_epi16((__m256i)acc, _mm256_maddubs_epi16((__m256i)b, (__m256i)a));
}
static inline vi i_sum_pairs(vi x) { return (vi)_mm256_madd_epi16((__m256i)x, _mm256_set1_epi16(1)); }
static inline vi i_dot_signed(vi acc, vi b, vi a) {
    const __m256i products = _mm256_maddubs_epi16(_mm256_abs_epi8((__m256i)b), _mm256_sign_epi8((__m256i)a, (__m256i)b));
    return i_add(acc, i_sum_pairs((vi)products));
}

#include "attend.h"
