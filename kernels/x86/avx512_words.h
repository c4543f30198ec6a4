/* SPDX-License-Identifier: Apache-2.0 */
/* The words of AVX-512 F + VL + BW + DQ: 16 lanes, 32 registers. The including file defines RAPT_DOT and i_dot. */
#include <immintrin.h>
#include <string.h>

#include "kernel.h"

#define RAPT_KERNEL_FUSED true
#define RAPT_NEEDS_AVX512                                                                                                        \
    (RAPT_CPU_AVX | RAPT_CPU_AVX2 | RAPT_CPU_FMA | RAPT_CPU_AVX512F | RAPT_CPU_AVX512VL | RAPT_CPU_AVX512BW | RAPT_CPU_AVX512DQ)

/* Chosen by measurement on an AMD EPYC (Zen 4) with gcc 12 and clang 19, see docs/performance.md; check_words.h says what each
 * means. */
#define RAPT_VL 16
#ifndef RAPT_TILE_VECTORS
#define RAPT_TILE_VECTORS 3
#endif
#define RAPT_PANEL          8
#define RAPT_ROWS_1         16
#define RAPT_ROWS_2         12
#define RAPT_ROWS_3         8
#define RAPT_ROWS_4         6
#define RAPT_ROWS_8         3
#define RAPT_KEY_CHAINS     8
#define RAPT_KEYS_AHEAD     32
#define RAPT_VALUES_AHEAD   16
#define RAPT_VALUES_DEPTH   8
#define RAPT_SQUARE_ROWS    8
#define RAPT_FEW_ROWS       15
#define RAPT_FEW_TOKENS     28
#define RAPT_LINEAR_TOKENS  8
#define RAPT_LINEAR_SUMS    16
#define RAPT_CONVERTED_ROWS 4
#define RAPT_NATIVE_F16     1
#define RAPT_BYTE_TABLES    1
#define RAPT_EXACT_PAIRS    1

typedef __m512 vf;
typedef int32_t vi __attribute__((vector_size(64))); /* not __m512i, since gcc 12 copies accumulators that change their type */
typedef __mmask16 vm;

static inline vf v_load(const void *from) { return _mm512_loadu_ps(from); }
#define v_load_part  v_load_part
#define v_last_lanes v_last_lanes
static inline vf v_load_part(const char *from, size_t bytes) {
    const __mmask64 mask = bytes < 64 ? (UINT64_C(1) << bytes) - 1 : ~UINT64_C(0);
    return (vf)_mm512_maskz_loadu_epi8(mask, from);
}
static inline vf v_last_lanes(vf x, int n) { return _mm512_maskz_compress_ps((__mmask16)(0xffffu << (16 - n)), x); }
static inline void v_store(void *to, vf x) { _mm512_storeu_ps(to, x); }
static inline vf v_set1(float x) { return _mm512_set1_ps(x); }
static inline vf v_broadcast(const void *from) {
    float x;
    memcpy(&x, from, sizeof x);
    return v_set1(x);
}
static inline vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline float h_max(vf a) { return _mm512_reduce_max_ps(a); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline float s_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline vm v_lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
static inline bool v_all(vm m) { return m == 0xffff; }
static inline vf v_select(vm m, vf yes, vf no) { return _mm512_mask_blend_ps(m, no, yes); }
static inline vi v_as_int(vf x) { return (vi)x; }
static inline vf v_as_float(vi x) { return (vf)x; }
static inline vf v_pow2(vf t) { return v_as_float((vi)_mm512_slli_epi32((__m512i)t, 23)); }

static inline vi i_set1(int32_t x) { return (vi)_mm512_set1_epi32(x); }
static inline vi i_and(vi a, vi b) { return a & b; }
static inline vi i_or(vi a, vi b) { return a | b; }
static inline vi i_xor(vi a, vi b) { return a ^ b; }
static inline vi i_add(vi a, vi b) { return (vi)_mm512_add_epi32((__m512i)a, (__m512i)b); }
static inline vi i_mul(vi a, vi b) { return (vi)_mm512_mullo_epi32((__m512i)a, (__m512i)b); }
static inline vi i_sub(vi a, vi b) { return (vi)_mm512_sub_epi32((__m512i)a, (__m512i)b); }
static inline vi i_shl(vi a, int n) { return a << n; } /* gcc and clang define it for negative numbers */
static inline vi i_shr(vi a, int n) { return (vi)((uint32_t __attribute__((vector_size(64))))a >> n); }
static inline vi i_sar(vi a, int n) { return a >> n; }
static inline vm i_gt(vi a, vi b) { return _mm512_cmpgt_epi32_mask((__m512i)a, (__m512i)b); }
static inline vi i_select(vm m, vi yes, vi no) { return (vi)_mm512_mask_blend_epi32(m, (__m512i)no, (__m512i)yes); }
static inline vf v_from_int(vi a) { return _mm512_cvtepi32_ps((__m512i)a); }
static inline vi i_load_u8(const void *from) { return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128(from)); }
static inline vi i_load_s8(const void *from) { return (vi)_mm512_cvtepi8_epi32(_mm_loadu_si128(from)); }
static inline vi i_load_u4(const void *from, int i) { /* widens each byte to two lanes, and moves its upper half to the second */
    __m512i x = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const void *)((const char *)from + i / 2)));
    return i_and((vi)_mm512_or_si512(x, _mm512_slli_epi64(x, 28)), i_set1(15));
}
static inline vi i_bits(uint32_t x) { return (vi)_mm512_maskz_set1_epi32((__mmask16)x, 1); }
static inline vi i_load_u16(const void *from) { return (vi)_mm512_cvtepu16_epi32(_mm256_loadu_si256(from)); }
static inline vi i_fold_smallest_bf16(vi most, vi x) {
    return (vi)_mm512_max_epu16((__m512i)most, _mm512_mullo_epi16((__m512i)x, _mm512_set1_epi16(-2)));
}
/* pshufb looks up the low 4 bits of a byte, and gives 0 if bit 7 is set. Adding 0x70 sets that bit where x is above 15, and keeps
 * the low 4 bits. */
static inline vi i_look_up(const uint8_t table[16], vi x) {
    __m512i all = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)table));
    return (vi)_mm512_shuffle_epi8(all, (__m512i)i_add(x, i_set1(0x70707070)));
}
static inline vi i_odd_bytes(vi odd, vi even) {
    return (vi)_mm512_ternarylogic_epi32(_mm512_set1_epi16(0xff), (__m512i)even, (__m512i)odd, 0xca);
}
static inline void i_store_u16(void *to, vi a) { _mm256_storeu_si256(to, _mm512_cvtepi32_epi16((__m512i)a)); }

static inline vf v_from_f16(vi h) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)h)); }
static inline vf v_load_f16(const void *from) { return _mm512_cvtph_ps(_mm256_loadu_si256(from)); }
static inline vf v_load_f16_high(const void *from) {
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128(from)), 8));
}
static inline vf v_broadcast_f16(const void *from) {
    int16_t h;
    memcpy(&h, from, sizeof h);
    return _mm512_cvtph_ps(_mm256_set1_epi16(h));
}
static inline void v_store_f16(void *to, vf x) { _mm256_storeu_si256(to, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)); }

/* Transposes 4 x 4 within each quarter of the vectors by unpack and shuffle, and then 4 x 4 quarters. */
static inline __attribute__((always_inline)) void v_transpose(vf a[16]) {
    vf b[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) { /* quarter q of a[i + j]: channel 4q + j of rows i to i + 3 */
        a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        vf even = _mm512_shuffle_f32x4(a[j], a[j + 4], 0x88), odd = _mm512_shuffle_f32x4(a[j], a[j + 4], 0xdd);
        vf even2 = _mm512_shuffle_f32x4(a[j + 8], a[j + 12], 0x88), odd2 = _mm512_shuffle_f32x4(a[j + 8], a[j + 12], 0xdd);
        a[j] = _mm512_shuffle_f32x4(even, even2, 0x88);
        a[j + 4] = _mm512_shuffle_f32x4(odd, odd2, 0x88);
        a[j + 8] = _mm512_shuffle_f32x4(even, even2, 0xdd);
        a[j + 12] = _mm512_shuffle_f32x4(odd, odd2, 0xdd);
    }
}

static inline vf v_load_quads(const char *const *rows, size_t offset) {
    vf a = _mm512_castps128_ps512(_mm_loadu_ps((const void *)(rows[0] + offset)));
    a = _mm512_insertf32x4(a, _mm_loadu_ps((const void *)(rows[4] + offset)), 1);
    a = _mm512_insertf32x4(a, _mm_loadu_ps((const void *)(rows[8] + offset)), 2);
    return _mm512_insertf32x4(a, _mm_loadu_ps((const void *)(rows[12] + offset)), 3);
}
static inline void v_transpose_quads(vf x[4]) {
    vf ab = _mm512_unpacklo_ps(x[0], x[1]), cd = _mm512_unpacklo_ps(x[2], x[3]);
    vf ab2 = _mm512_unpackhi_ps(x[0], x[1]), cd2 = _mm512_unpackhi_ps(x[2], x[3]);
    x[0] = _mm512_shuffle_ps(ab, cd, 0x44);
    x[1] = _mm512_shuffle_ps(ab, cd, 0xee);
    x[2] = _mm512_shuffle_ps(ab2, cd2, 0x44);
    x[3] = _mm512_shuffle_ps(ab2, cd2, 0xee);
}
