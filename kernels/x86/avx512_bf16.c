/* SPDX-License-Identifier: Apache-2.0 */
/* avx512_bf16: avx512_vnni with products of two bf16 in a lane (AVX512-BF16). */
#if !defined(__AVX512F__) || !defined(__AVX512VL__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) ||                       \
    !defined(__AVX512VNNI__) || !defined(__AVX512BF16__)
#error "compile with -mavx512f -mavx512vl -mavx512bw -mavx512dq -mavx512vnni -mavx512bf16 -mfma"
#endif
#include "x86/avx512_vnni_words.h"

#define RAPT_KERNEL_NAME  avx512_bf16
#define RAPT_KERNEL_NEEDS (RAPT_NEEDS_AVX512 | RAPT_CPU_AVX512VNNI | RAPT_CPU_AVX512BF16)

#define v_fma_pairs(acc, a, b) _mm512_dpbf16_ps(acc, (__m512bh)(a), (__m512bh)(b))

/* Reorders each quarter: quarter q has elements 8q to 8q + 7, which the shuffle pairs to (2, 0), (3, 1), (6, 4), (7, 5), lower
 * half first. */
static inline vi i_chain_pairs(vi x) {
    const __m512i order = _mm512_set4_epi32(0x0b0a0f0e, 0x09080d0c, 0x03020706, 0x01000504);
    return (vi)_mm512_shuffle_epi8((__m512i)x, order);
}

static inline vi i_bf16_factors(vf x, vf y, short least) {
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(y, x), magnitudes = _mm512_and_si512(both, _mm512_set1_epi16(INT16_MAX));
    return (vi)_mm512_maskz_mov_epi16(_mm512_cmpge_epi16_mask(magnitudes, _mm512_set1_epi16(least)), both);
}

#include "x86/avx512_weights.h"

static inline __attribute__((always_inline)) vi v_weight_halves(vf d, vf c, vf least, vi *special) {
    __m512 t;
    __m512i w = t_weights(d, c, least, &t);
    *special = (vi)_mm512_or_si512((__m512i)*special, _mm512_castps_si512(t));
    return (vi)w;
}
#define has_special_weights t_any_special

#include "x86/bf16_chains.h"
