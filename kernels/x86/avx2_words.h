/* SPDX-License-Identifier: Apache-2.0 */
/* The words of AVX2 + FMA + F16C: 8 lanes, 16 registers. The including file defines RAPT_DOT and i_dot. */
#include <immintrin.h>
#include <string.h>

#include "kernel.h"
#include "x86/part_words.h"

#define RAPT_KERNEL_FUSED true
#define RAPT_NEEDS_AVX2   (RAPT_CPU_AVX | RAPT_CPU_AVX2 | RAPT_CPU_FMA | RAPT_CPU_F16C)

/* Measured on an AMD EPYC (Zen 4) with gcc 12 and clang 19, see docs/performance.md; RAPT_LINEAR_PREFETCH and RAPT_FEW_TOKENS on
 * Zen 3, see decode.md and linear.md of docs/experiments. clang cannot keep tiles of 3 x 4 in registers. */
#define RAPT_VL              8
#define RAPT_TILE_VECTORS    2
#define RAPT_PANEL           4
#define RAPT_ROWS_1          8
#define RAPT_ROWS_2          6
#define RAPT_ROWS_3          4
#define RAPT_ROWS_4          2
#define RAPT_ROWS_8          1
#define RAPT_KEY_CHAINS      4
#define RAPT_KEYS_AHEAD      32
#define RAPT_VALUES_AHEAD    32
#define RAPT_LINEAR_PREFETCH 1
#define RAPT_VALUES_DEPTH    16
#define RAPT_SQUARE_ROWS     1
#define RAPT_FEW_ROWS        8
#define RAPT_FEW_TOKENS      10
#define RAPT_LINEAR_TOKENS   4
#define RAPT_LINEAR_SUMS     4
#define RAPT_WEIGHTS_L2      3
#define RAPT_CONVERTED_ROWS  4
#define RAPT_NATIVE_F16      1
#define RAPT_BYTE_TABLES     1

typedef __m256 vf, vm;
typedef int32_t vi __attribute__((vector_size(32))); /* not __m256i, since gcc 12 copies accumulators that change their type */

static inline vf v_load(const void *from) { return _mm256_loadu_ps(from); }
#define v_load_part v_load_part
static inline vf v_load_part(const char *from, size_t bytes) {
    static const int8_t numbers[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                       -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    if (bytes < 16) return _mm256_castsi256_ps(_mm256_set_m128i(_mm_setzero_si128(), load_part_of_16(from, bytes)));
    /* The second half: the last 16 bytes, without those of the first half. */
    const __m128i last = _mm_loadu_si128((const void *)(from + bytes - 16)),
                  moved = _mm_shuffle_epi8(last, _mm_loadu_si128((const void *)(numbers + (bytes < 32 ? 32 - bytes : 0))));
    return _mm256_castsi256_ps(_mm256_set_m128i(moved, _mm_loadu_si128((const void *)from)));
}
#define v_last_lanes v_last_lanes
static inline vf v_last_lanes(vf x, int n) {
    static const int32_t numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, -1, -1, -1, -1, -1, -1, -1, -1};
    const __m256i from = _mm256_loadu_si256((const void *)(numbers + 8 - n));
    return _mm256_andnot_ps(_mm256_castsi256_ps(_mm256_srai_epi32(from, 31)), _mm256_permutevar8x32_ps(x, from));
}
static inline void v_store(void *to, vf x) { _mm256_storeu_ps(to, x); }
static inline vf v_set1(float x) { return _mm256_set1_ps(x); }
static inline vf v_broadcast(const void *from) {
    float x;
    memcpy(&x, from, sizeof x);
    return v_set1(x);
}
static inline vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf v_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf v_div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf v_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline float h_max(vf a) {
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}
static inline vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline float s_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline vm v_lt(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
static inline bool v_all(vm m) { return _mm256_movemask_ps(m) == 0xff; }
static inline vf v_select(vm m, vf yes, vf no) { return _mm256_blendv_ps(no, yes, m); }
static inline vi v_as_int(vf x) { return (vi)x; }
static inline vf v_as_float(vi x) { return (vf)x; }

static inline vi i_set1(int32_t x) { return (vi)_mm256_set1_epi32(x); }
static inline vi i_and(vi a, vi b) { return a & b; }
static inline vi i_or(vi a, vi b) { return a | b; }
static inline vi i_xor(vi a, vi b) { return a ^ b; }
static inline vi i_add(vi a, vi b) { return (vi)_mm256_add_epi32((__m256i)a, (__m256i)b); }
static inline vi i_mul(vi a, vi b) { return (vi)_mm256_mullo_epi32((__m256i)a, (__m256i)b); }
static inline vi i_shl(vi a, int n) { return a << n; } /* gcc and clang define it for negative numbers */
static inline vi i_shr(vi a, int n) { return (vi)((uint32_t __attribute__((vector_size(32))))a >> n); }
static inline vi i_sar(vi a, int n) { return a >> n; }
static inline vf v_pow2(vf t) { return v_as_float(i_shl(v_as_int(t), 23)); }
static inline vm i_gt(vi a, vi b) { return (vm)(a > b); }
static inline vi i_select(vm m, vi yes, vi no) { return v_as_int(v_select(m, v_as_float(yes), v_as_float(no))); }
static inline vf v_from_int(vi a) { return _mm256_cvtepi32_ps((__m256i)a); }
static inline vi i_load_u8(const void *from) { return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64(from)); }
static inline vi i_load_s8(const void *from) { return (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64(from)); }
static inline vi i_load_u4(const void *from, int i) {
    int32_t x;
    memcpy(&x, (const char *)from + i / 2, sizeof x);
    return i_and((vi)_mm256_srlv_epi32((__m256i)i_set1(x), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28)), i_set1(15));
}
static inline vi i_bits(uint32_t x) {
    return i_and((vi)_mm256_srlv_epi32((__m256i)i_set1((int32_t)x), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)), i_set1(1));
}
static inline vi i_load_u16(const void *from) { return (vi)_mm256_cvtepu16_epi32(_mm_loadu_si128(from)); }
static inline vi i_fold_smallest_bf16(vi most, vi x) {
    return (vi)_mm256_max_epu16((__m256i)most, _mm256_mullo_epi16((__m256i)x, _mm256_set1_epi16(-2)));
}
/* pshufb looks up the low 4 bits of a byte, and gives 0 if bit 7 is set. Adding 0x70 sets that bit where x is above 15, and keeps
 * the low 4 bits. */
static inline vi i_look_up(const uint8_t table[16], vi x) {
    __m256i all = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)table));
    return (vi)_mm256_shuffle_epi8(all, (__m256i)i_add(x, i_set1(0x70707070)));
}
static inline vi i_odd_bytes(vi odd, vi even) {
    return (vi)_mm256_blendv_epi8((__m256i)odd, (__m256i)even, _mm256_set1_epi16(0xff));
}
static inline void i_store_u16(void *to, vi a) {
    _mm_storeu_si128(to, _mm_packus_epi32(_mm256_castsi256_si128((__m256i)a), _mm256_extracti128_si256((__m256i)a, 1)));
}

static inline vf v_from_f16(vi h) {
    __m256i x = (__m256i)i_and(h, i_set1(0xffff));
    return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
}
static inline vf v_load_f16(const void *from) { return _mm256_cvtph_ps(_mm_loadu_si128(from)); }
static inline vf v_load_f16_high(const void *from) {
    return _mm256_cvtph_ps(_mm_unpacklo_epi8(_mm_setzero_si128(), _mm_loadl_epi64(from)));
}
static inline vf v_broadcast_f16(const void *from) {
    int16_t h;
    memcpy(&h, from, sizeof h);
    return _mm256_cvtph_ps(_mm_set1_epi16(h));
}
static inline void v_store_f16(void *to, vf x) { _mm_storeu_si128(to, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)); }

/* Transposes 4 x 4 within each half of the vectors by unpacking twice, and then exchanges halves. */
static inline __attribute__((always_inline)) void v_transpose(vf a[8]) {
    vf b[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        vf low = _mm256_permute2f128_ps(a[i], a[i + 4], 0x20);
        a[i + 4] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x31);
        a[i] = low;
    }
}

static inline vf v_load_quads(const char *const *rows, size_t offset) {
    vf a = _mm256_castps128_ps256(_mm_loadu_ps((const void *)(rows[0] + offset)));
    return _mm256_insertf128_ps(a, _mm_loadu_ps((const void *)(rows[4] + offset)), 1);
}
static inline void v_transpose_quads(vf x[4]) {
    vf ab = _mm256_unpacklo_ps(x[0], x[1]), cd = _mm256_unpacklo_ps(x[2], x[3]);
    vf ab2 = _mm256_unpackhi_ps(x[0], x[1]), cd2 = _mm256_unpackhi_ps(x[2], x[3]);
    x[0] = _mm256_shuffle_ps(ab, cd, 0x44);
    x[1] = _mm256_shuffle_ps(ab, cd, 0xee);
    x[2] = _mm256_shuffle_ps(ab2, cd2, 0x44);
    x[3] = _mm256_shuffle_ps(ab2, cd2, 0xee);
}
