/* SPDX-License-Identifier: Apache-2.0 */
/* sse41: SSE4.1, 4 lanes, 16 registers; unfused class. */
#if !defined(__SSE4_1__)
#error "compile with -msse4.1"
#endif
#include <smmintrin.h>
#include <string.h>

#include "kernel.h"
#include "x86/part_words.h"

#define RAPT_KERNEL_NAME  sse41
#define RAPT_KERNEL_NEEDS RAPT_CPU_SSE41
#define RAPT_KERNEL_FUSED false

/* Measured on an AMD EPYC (Zen 4) with gcc 12 and clang 19, see docs/performance.md; but prefetch distances and depths are those
 * of avx2. */
#define RAPT_VL               4
#define RAPT_TILE_VECTORS     4
#define RAPT_PANEL            2
#define RAPT_ROWS_1           8
#define RAPT_ROWS_2           6
#define RAPT_ROWS_3           3
#define RAPT_ROWS_4           3
#define RAPT_ROWS_8           1
#define RAPT_KEY_CHAINS       4
#define RAPT_KEYS_AHEAD       32
#define RAPT_VALUES_AHEAD     32
#define RAPT_VALUES_DEPTH     16
#define RAPT_STAGED_BROADCAST 1
#define RAPT_FEW_ROWS         8
#define RAPT_FEW_TOKENS       4
#define RAPT_LINEAR_TOKENS    2
#define RAPT_LINEAR_SUMS      2
#define RAPT_BYTE_TABLES      1

typedef __m128 vf, vm;
typedef __m128i vi;

static inline vf v_load(const void *from) { return _mm_loadu_ps(from); }
#define v_load_part v_load_part
static inline vf v_load_part(const char *from, size_t bytes) { return _mm_castsi128_ps(load_part_of_16(from, bytes)); }
static inline void v_store(void *to, vf x) { _mm_storeu_ps(to, x); }
static inline vf v_set1(float x) { return _mm_set1_ps(x); }
static inline vf v_broadcast(const void *from) {
    float x;
    memcpy(&x, from, sizeof x);
    return v_set1(x);
}
static inline vf v_add(vf a, vf b) { return _mm_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm_sub_ps(a, b); }
static inline vf v_mul(vf a, vf b) { return _mm_mul_ps(a, b); }
static inline vf v_div(vf a, vf b) { return _mm_div_ps(a, b); }
static inline vf v_max(vf a, vf b) { return _mm_max_ps(a, b); }
static inline float h_max(vf a) {
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}
static inline vf v_fma(vf a, vf b, vf c) { return _mm_add_ps(_mm_mul_ps(a, b), c); }
static inline float s_fma(float a, float b, float c) { return a * b + c; }
static inline vm v_lt(vf a, vf b) { return _mm_cmplt_ps(a, b); }
static inline bool v_all(vm m) { return _mm_movemask_ps(m) == 0xf; }
static inline vf v_select(vm m, vf yes, vf no) { return _mm_blendv_ps(no, yes, m); }
static inline vi v_as_int(vf x) { return _mm_castps_si128(x); }
static inline vf v_as_float(vi x) { return _mm_castsi128_ps(x); }
static inline vf v_pow2(vf t) { return v_as_float(_mm_slli_epi32(v_as_int(t), 23)); }

static inline vi i_set1(int32_t x) { return _mm_set1_epi32(x); }
static inline vi i_and(vi a, vi b) { return _mm_and_si128(a, b); }
static inline vi i_or(vi a, vi b) { return _mm_or_si128(a, b); }
static inline vi i_xor(vi a, vi b) { return _mm_xor_si128(a, b); }
static inline vi i_add(vi a, vi b) { return _mm_add_epi32(a, b); }
static inline vi i_mul(vi a, vi b) { return _mm_mullo_epi32(a, b); }
static inline vi i_sub(vi a, vi b) { return _mm_sub_epi32(a, b); }
#define i_shl(a, n) _mm_slli_epi32(a, n)
#define i_shr(a, n) _mm_srli_epi32(a, n)
#define i_sar(a, n) _mm_srai_epi32(a, n)
static inline vm i_gt(vi a, vi b) { return v_as_float(_mm_cmpgt_epi32(a, b)); }
static inline vi i_select(vm m, vi yes, vi no) { return v_as_int(v_select(m, v_as_float(yes), v_as_float(no))); }
static inline vf v_from_int(vi a) { return _mm_cvtepi32_ps(a); }
static inline vi load_low(const void *from, size_t bytes) {
    int32_t x = 0;
    memcpy(&x, from, bytes);
    return _mm_cvtsi32_si128(x);
}
static inline vi i_load_u8(const void *from) { return _mm_cvtepu8_epi32(load_low(from, 4)); }
static inline vi i_load_s8(const void *from) { return _mm_cvtepi8_epi32(load_low(from, 4)); }
static inline vi i_load_u4(const void *from, int i) { /* widens each byte to two lanes, and moves its upper half to the second */
    vi x = _mm_cvtepu8_epi64(load_low((const char *)from + i / 2, 2));
    return i_and(i_or(x, _mm_slli_epi64(x, 28)), i_set1(15));
}
static inline vi i_bits(uint32_t x) { return _mm_min_epu32(i_and(i_set1((int32_t)x), _mm_setr_epi32(1, 2, 4, 8)), i_set1(1)); }
static inline vi i_load_u16(const void *from) { return _mm_cvtepu16_epi32(_mm_loadl_epi64(from)); }
static inline vi i_fold_smallest_bf16(vi most, vi x) { return _mm_max_epu16(most, _mm_mullo_epi16(x, _mm_set1_epi16(-2))); }
/* pshufb looks up the low 4 bits of a byte, and gives 0 if bit 7 is set. Adding 0x70 sets that bit where x is above 15, and keeps
 * the low 4 bits. */
static inline vi i_look_up(const uint8_t table[16], vi x) {
    return _mm_shuffle_epi8(_mm_loadu_si128((const void *)table), i_add(x, i_set1(0x70707070)));
}
static inline vi i_odd_bytes(vi odd, vi even) { return _mm_blendv_epi8(odd, even, _mm_set1_epi16(0xff)); }
static inline void i_store_u16(void *to, vi a) { _mm_storel_epi64(to, _mm_packus_epi32(a, a)); }

static inline __attribute__((always_inline)) void v_transpose(vf a[4]) { _MM_TRANSPOSE4_PS(a[0], a[1], a[2], a[3]); }

#define RAPT_DOT 2
static inline vi i_dot(vi acc, vi b, vi a) { return _mm_add_epi32(acc, _mm_madd_epi16(b, a)); }

/* As in avx2.c. */
#define RAPT_BYTE_DOTS 1
static inline vi i_dot_narrow(vi acc, vi b, vi a) { return _mm_add_epi16(acc, _mm_maddubs_epi16(b, a)); }
static inline vi i_sum_pairs(vi x) { return _mm_madd_epi16(x, _mm_set1_epi16(1)); }
static inline vi i_dot_signed(vi acc, vi b, vi a) {
    return _mm_add_epi32(acc, i_sum_pairs(_mm_maddubs_epi16(_mm_abs_epi8(b), _mm_sign_epi8(a, b))));
}

#include "attend.h"
