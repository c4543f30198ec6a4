/* SPDX-License-Identifier: Apache-2.0 */
/* The words of AArch64's Scalable Vector Extension (without SVE2) for vectors of RAPT_SVE_BITS bits, which are RAPT_SVE_BITS / 32
 * lanes; 32 registers. The compiler is told the length, because vectors whose length is known only at run time cannot be elements
 * of arrays or structs. */
#if !defined(__ARM_FEATURE_SVE) || __ARM_FEATURE_SVE_BITS != RAPT_SVE_BITS || defined(__AARCH64EB__)
#error "compile with -march=armv8.2-a+sve and -msve-vector-bits, for little-endian AArch64"
#endif
#include <arm_sve.h>
#include <string.h>

#include "kernel.h"

#define RAPT_KERNEL_FUSED true

/* The shapes of register tiles are those of avx512 that leave a register free for the broadcast element of A, which cannot be an
 * operand in memory here. Distances and depths are those of avx512 on x86, the limits of few rows and few tokens those of avx2,
 * and RAPT_LINEAR_SUMS is twice that of avx2, for twice the registers. None of these was measured on Arm. */
#define RAPT_VL             (RAPT_SVE_BITS / 32)
#define RAPT_TILE_VECTORS   3
#define RAPT_PANEL          4
#define RAPT_ROWS_1         16
#define RAPT_ROWS_2         12
#define RAPT_ROWS_3         8
#define RAPT_ROWS_4         6
#define RAPT_ROWS_8         2
#define RAPT_KEY_CHAINS     8
#define RAPT_KEYS_AHEAD     32
#define RAPT_VALUES_AHEAD   16
#define RAPT_VALUES_DEPTH   8
#define RAPT_SQUARE_ROWS    1
#define RAPT_FEW_ROWS       8
#define RAPT_FEW_TOKENS     8
#define RAPT_LINEAR_TOKENS  4
#define RAPT_LINEAR_SUMS    8
#define RAPT_CONVERTED_ROWS 4
#define RAPT_NATIVE_F16     1
#define RAPT_BYTE_TABLES    1

typedef svfloat32_t vf __attribute__((arm_sve_vector_bits(RAPT_SVE_BITS)));
typedef svuint32_t vi __attribute__((arm_sve_vector_bits(RAPT_SVE_BITS)));
typedef svbool_t vm __attribute__((arm_sve_vector_bits(RAPT_SVE_BITS)));

static inline vm all_lanes(void) { return svptrue_b32(); }
static inline svint32_t as_signed(vi a) { return svreinterpret_s32_u32(a); }

/* Loads and stores bytes, since elements need not be aligned. */
static inline vf v_load(const void *from) { return svreinterpret_f32_u8(svld1_u8(svptrue_b8(), from)); }
#define v_load_part v_load_part
static inline vf v_load_part(const char *from, size_t bytes) {
    return svreinterpret_f32_u8(svld1_u8(svwhilelt_b8_u64(0, bytes), (const uint8_t *)from));
}
#define v_last_lanes v_last_lanes
static inline vf v_last_lanes(vf x, int n) { return svcompact_f32(svnot_b_z(all_lanes(), svwhilelt_b32_s32(0, RAPT_VL - n)), x); }
static inline void v_store(void *to, vf x) { svst1_u8(svptrue_b8(), to, svreinterpret_u8_f32(x)); }
static inline vf v_set1(float x) { return svdup_n_f32(x); }
static inline vf v_broadcast(const void *from) {
    float x;
    memcpy(&x, from, sizeof x);
    return v_set1(x);
}
static inline vf v_add(vf a, vf b) { return svadd_f32_x(all_lanes(), a, b); }
static inline vf v_sub(vf a, vf b) { return svsub_f32_x(all_lanes(), a, b); }
static inline vf v_mul(vf a, vf b) { return svmul_f32_x(all_lanes(), a, b); }
static inline vf v_div(vf a, vf b) { return svdiv_f32_x(all_lanes(), a, b); }
static inline vf v_max(vf a, vf b) { return svmax_f32_x(all_lanes(), a, b); }
static inline float h_max(vf a) { return svmaxv_f32(all_lanes(), a); }
static inline vf v_fma(vf a, vf b, vf c) { return svmla_f32_x(all_lanes(), c, a, b); }
static inline float s_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline vm v_lt(vf a, vf b) { return svcmplt_f32(all_lanes(), a, b); }
static inline bool v_all(vm m) { return !svptest_any(all_lanes(), svnot_b_z(all_lanes(), m)); }
static inline vf v_select(vm m, vf yes, vf no) { return svsel_f32(m, yes, no); }
static inline vi v_as_int(vf x) { return svreinterpret_u32_f32(x); }
static inline vf v_as_float(vi x) { return svreinterpret_f32_u32(x); }
static inline vf v_pow2(vf t) { return v_as_float(svlsl_n_u32_x(all_lanes(), v_as_int(t), 23)); }

static inline vi i_set1(int32_t x) { return svdup_n_u32((uint32_t)x); }
static inline vi i_and(vi a, vi b) { return svand_u32_x(all_lanes(), a, b); }
static inline vi i_or(vi a, vi b) { return svorr_u32_x(all_lanes(), a, b); }
static inline vi i_xor(vi a, vi b) { return sveor_u32_x(all_lanes(), a, b); }
static inline vi i_add(vi a, vi b) { return svadd_u32_x(all_lanes(), a, b); }
static inline vi i_mul(vi a, vi b) { return svmul_u32_x(all_lanes(), a, b); }
static inline vi i_shl(vi a, int n) { return svlsl_u32_x(all_lanes(), a, svdup_n_u32((uint32_t)n)); }
static inline vi i_shr(vi a, int n) { return svlsr_u32_x(all_lanes(), a, svdup_n_u32((uint32_t)n)); }
static inline vi i_sar(vi a, int n) {
    return svreinterpret_u32_s32(svasr_s32_x(all_lanes(), as_signed(a), svdup_n_u32((uint32_t)n)));
}
static inline vm i_gt(vi a, vi b) { return svcmpgt_s32(all_lanes(), as_signed(a), as_signed(b)); }
static inline vi i_select(vm m, vi yes, vi no) { return svsel_u32(m, yes, no); }
static inline vf v_from_int(vi a) { return svcvt_f32_s32_x(all_lanes(), as_signed(a)); }
static inline vi i_load_u8(const void *from) { return svld1ub_u32(all_lanes(), from); }
static inline vi i_load_s8(const void *from) { return svreinterpret_u32_s32(svld1sb_s32(all_lanes(), from)); }
static inline vi i_load_u4(const void *from, int i) { /* one byte for two lanes: its upper half moves to the second one */
    svuint64_t x = svld1ub_u64(svptrue_b64(), (const uint8_t *)from + i / 2);
    return i_and(svreinterpret_u32_u64(svorr_u64_x(svptrue_b64(), x, svlsl_n_u64_x(svptrue_b64(), x, 28))), i_set1(15));
}
static inline vi i_bits(uint32_t x) { return i_and(svlsr_u32_x(all_lanes(), svdup_n_u32(x), svindex_u32(0, 1)), i_set1(1)); }
static inline vi i_load_u16(const void *from) { return svld1uh_u32(all_lanes(), from); }
static inline void i_store_u16(void *to, vi a) { svst1h_u32(all_lanes(), to, a); }
static inline vi i_fold_smallest_bf16(vi most, vi x) {
    svuint16_t doubled = svmul_n_u16_x(svptrue_b16(), svreinterpret_u16_u32(x), 0xfffe);
    return svreinterpret_u32_u16(svmax_u16_x(svptrue_b16(), svreinterpret_u16_u32(most), doubled));
}
static inline vi i_look_up(const uint8_t table[16], vi x) { /* the vector's bytes after the 16 of the table are 0 */
    return svreinterpret_u32_u8(svtbl_u8(svld1_u8(svwhilelt_b8_s32(0, 16), table), svreinterpret_u8_u32(x)));
}
static inline vi i_odd_bytes(vi odd, vi even) { /* svptrue_b16 is true for the first byte of each two */
    return svreinterpret_u32_u8(svsel_u8(svptrue_b16(), svreinterpret_u8_u32(even), svreinterpret_u8_u32(odd)));
}

static inline vf v_from_f16(vi h) { return svcvt_f32_f16_x(all_lanes(), svreinterpret_f16_u32(h)); }
static inline vf v_load_f16(const void *from) { return v_from_f16(i_load_u16(from)); }
static inline vf v_load_f16_high(const void *from) { return v_from_f16(i_shl(i_load_u8(from), 8)); }
static inline vf v_broadcast_f16(const void *from) {
    uint16_t h;
    memcpy(&h, from, sizeof h);
    return v_from_f16(i_set1(h));
}
static inline void v_store_f16(void *to, vf x) { i_store_u16(to, svreinterpret_u32_f16(svcvt_f16_f32_x(all_lanes(), x))); }

/* Each round of zips interleaves the first half of the vectors with the second half. Write the number of an element's vector and
 * that of its lane side by side in binary: a round rotates these digits by one, and log2(RAPT_VL) rounds exchange the numbers. */
static inline __attribute__((always_inline)) void v_transpose(vf a[RAPT_VL]) {
#pragma GCC unroll 4
    for (int round = 1; round < RAPT_VL; round *= 2) {
        vf b[RAPT_VL];
#pragma GCC unroll 8
        for (int i = 0; i < RAPT_VL / 2; i++) {
            b[2 * i] = svzip1_f32(a[i], a[i + RAPT_VL / 2]);
            b[2 * i + 1] = svzip2_f32(a[i], a[i + RAPT_VL / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < RAPT_VL; i++) a[i] = b[i];
    }
}

/* Each ld1rq loads 16 bytes of a row to all quads of a vector; one quad is kept. */
static inline vf v_load_quads(const char *const *rows, size_t offset) {
    vf x = svld1rq_f32(all_lanes(), (const void *)(rows[0] + offset));
#pragma GCC unroll 4
    for (int i = 4; i < RAPT_VL; i += 4)
        x = svsel_f32(svwhilelt_b32_s32(0, i), x, svld1rq_f32(all_lanes(), (const void *)(rows[i] + offset)));
    return x;
}
static inline void v_transpose_quads(vf x[4]) {
    svfloat64_t even = svreinterpret_f64_f32(svtrn1_f32(x[0], x[1])), even2 = svreinterpret_f64_f32(svtrn1_f32(x[2], x[3]));
    svfloat64_t odd = svreinterpret_f64_f32(svtrn2_f32(x[0], x[1])), odd2 = svreinterpret_f64_f32(svtrn2_f32(x[2], x[3]));
    x[0] = svreinterpret_f32_f64(svtrn1_f64(even, even2));
    x[1] = svreinterpret_f32_f64(svtrn1_f64(odd, odd2));
    x[2] = svreinterpret_f32_f64(svtrn2_f64(even, even2));
    x[3] = svreinterpret_f32_f64(svtrn2_f64(odd, odd2));
}

#define RAPT_DOT        4
#define RAPT_DOT_SIGNED 1
static inline vi i_dot(vi acc, vi b, vi a) {
    return svreinterpret_u32_s32(svdot_s32(as_signed(acc), svreinterpret_s8_u32(b), svreinterpret_s8_u32(a)));
}
