/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of bf16 arithmetic in AVX-512, for amx.h and bf16_chains.h, which say what these words are. */
#include "bf16/bf16_exp.h"

/* Returns v_exp2_bf16(d, c, least) in the lower half of each lane; the upper half is undefined, and NaN gives a wrong number.
 * d * c is n + f. Adding `magic`, rounded down, leaves n + 126 in the low bits of *t. Adding RAPT_BF16_MAGIC to 2^f rounds that
 * to a multiple of 2^-7 and leaves 2^f * 2^7 in the low bits of p: a one and 7 bits of fraction. The sum of *t shifted by these 7
 * bits and p is the bf16: exponent n + 127, and the fraction. */
static inline __attribute__((always_inline)) __m512i t_weights(vf d, vf c, vf least, __m512 *t) {
    const __m512 magic = _mm512_set1_ps(12583038.0f); /* 1.5 * 2^23 + 126 */
    __mmask16 kept = _mm512_cmp_ps_mask(d, least, _CMP_NLT_UQ);
    *t = _mm512_maskz_fmadd_round_ps(kept, d, c, magic, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_fmadd_ps(d, c, _mm512_sub_ps(magic, *t));
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(RAPT_BF16_EXP_3), f, _mm512_set1_ps(RAPT_BF16_EXP_2));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(RAPT_BF16_EXP_1));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(RAPT_BF16_MAGIC + 1.0f));
    return _mm512_maskz_add_epi32(kept, _mm512_slli_epi32(_mm512_castps_si512(*t), 7), _mm512_castps_si512(p));
}

/* True if a lane of the ts of t_weights, combined by or, came from a NaN. */
static inline bool t_any_special(vi special) {
    const __m512i exponent = _mm512_set1_epi32(0x7f800000);
    return _mm512_cmpeq_epi32_mask(_mm512_and_si512((__m512i)special, exponent), exponent) != 0;
}
