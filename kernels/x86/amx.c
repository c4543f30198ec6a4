/* SPDX-License-Identifier: Apache-2.0 */
/* amx: avx512_vnni with a matrix unit, AMX-BF16 and AMX-INT8. */
#if !defined(__AVX512F__) || !defined(__AVX512VL__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) ||                       \
    !defined(__AVX512VNNI__) || !defined(__AMX_TILE__) || !defined(__AMX_BF16__) || !defined(__AMX_INT8__)
#error "compile with -mavx512f -mavx512vl -mavx512bw -mavx512dq -mavx512vnni -mfma -mamx-tile -mamx-bf16 -mamx-int8"
#endif
#define RAPT_TILE_VECTORS 4 /* two pairs of tiles of C; exact arithmetic is as fast as with 3 on Emerald Rapids */

#include "x86/avx512_vnni_words.h"
#include "bf16/bf16_exp.h"

#define RAPT_KERNEL_NAME  amx
#define RAPT_KERNEL_NEEDS (RAPT_NEEDS_AVX512 | RAPT_CPU_AVX512VNNI | RAPT_CPU_AMX)

#define t_configure(configuration) _tile_loadconfig(configuration)
#define t_release()                _tile_release()
#define t_zero(tile)               _tile_zero(tile)
#define t_load(tile, from, stride) _tile_loadd(tile, from, stride)
#define t_store(tile, to, stride)  _tile_stored(tile, to, stride)
#define t_multiply_bf16(to, a, b)  _tile_dpbf16ps(to, a, b)
#define t_multiply_bytes(to, a, b) _tile_dpbsud(to, a, b)

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

#define RAPT_OWN_WEIGHT_PAIRS 1
static inline __attribute__((always_inline)) vi t_weight_pairs(vf d, vf d2, vf c, vf least, vi *special) {
    __m512 t, t2;
    __m512i w = t_weights(d, c, least, &t), w2 = t_weights(d2, c, least, &t2);
    *special = (vi)_mm512_ternarylogic_epi32((__m512i)*special, _mm512_castps_si512(t), _mm512_castps_si512(t2), 0xfe); /* or */
    return (vi)_mm512_mask_blend_epi16(0xaaaaaaaa, w, _mm512_slli_epi32(w2, 16));
}
static inline bool t_any_special(vi special) {
    const __m512i exponent = _mm512_set1_epi32(0x7f800000);
    return _mm512_cmpeq_epi32_mask(_mm512_and_si512((__m512i)special, exponent), exponent) != 0;
}

#include "x86/amx.h"
