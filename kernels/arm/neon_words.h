/* SPDX-License-Identifier: Apache-2.0 */
/* The words of AArch64's Advanced SIMD: 4 lanes, 32 registers. The including file defines those of integer products. */
#if !defined(__aarch64__) || defined(__AARCH64EB__)
#error "compile for little-endian AArch64"
#endif
#include <arm_neon.h>
#include <string.h>

#include "kernel.h"

#define RAPT_KERNEL_FUSED true

/* The shapes of register tiles are the fastest ones for Neoverse N1 and V1 according to llvm-mca (tools/mca), and neither gcc 12
 * nor clang 19 spills the widest. Distances and depths are those of avx2 on x86, not measured on Arm. */
#define RAPT_VL            4
#define RAPT_TILE_VECTORS  4
#define RAPT_PANEL         4
#define RAPT_ROWS_1        12
#define RAPT_ROWS_2        8
#define RAPT_ROWS_3        4
#define RAPT_ROWS_4        4
#define RAPT_ROWS_8        2
#define RAPT_KEY_CHAINS    8
#define RAPT_KEYS_AHEAD    32
#define RAPT_VALUES_AHEAD  32
#define RAPT_VALUES_DEPTH  16
#define RAPT_FEW_ROWS      4
#define RAPT_FEW_TOKENS    4
#define RAPT_LINEAR_TOKENS 2
#define RAPT_LINEAR_SUMS   2
#define RAPT_FMA_BY_LANE   1
#define RAPT_NATIVE_F16    1
#define RAPT_BYTE_TABLES   1

typedef float32x4_t vf;
typedef uint32x4_t vi, vm;

static inline vf v_load(const void *from) { return vreinterpretq_f32_u8(vld1q_u8(from)); }
static inline void v_store(void *to, vf x) { vst1q_u8(to, vreinterpretq_u8_f32(x)); }
static inline vf v_set1(float x) { return vdupq_n_f32(x); }
static inline vf v_broadcast(const void *from) {
    float x;
    memcpy(&x, from, sizeof x);
    return v_set1(x);
}
static inline vf v_add(vf a, vf b) { return vaddq_f32(a, b); }
static inline vf v_sub(vf a, vf b) { return vsubq_f32(a, b); }
static inline vf v_mul(vf a, vf b) { return vmulq_f32(a, b); }
static inline vf v_div(vf a, vf b) { return vdivq_f32(a, b); }
static inline vf v_max(vf a, vf b) { return vmaxq_f32(a, b); }
static inline float h_max(vf a) { return vmaxvq_f32(a); }
static inline vf v_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
static inline float s_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
/* Returns a[lane] * b + c; lane is a constant once this is inlined. The empty asm keeps gcc 12 from moving sums, to which several
 * steps add, from register to register. */
static inline __attribute__((always_inline)) vf v_fma_lane(vf a, int lane, vf b, vf c) {
    c = lane == 0   ? vfmaq_laneq_f32(c, b, a, 0)
        : lane == 1 ? vfmaq_laneq_f32(c, b, a, 1)
        : lane == 2 ? vfmaq_laneq_f32(c, b, a, 2)
                    : vfmaq_laneq_f32(c, b, a, 3);
#if !defined(__clang__)
    __asm__("" : "+w"(c));
#endif
    return c;
}
static inline vm v_lt(vf a, vf b) { return vcltq_f32(a, b); }
static inline bool v_all(vm m) { return vminvq_u32(m) != 0; }
static inline vf v_select(vm m, vf yes, vf no) { return vbslq_f32(m, yes, no); }
static inline vi v_as_int(vf x) { return vreinterpretq_u32_f32(x); }
static inline vf v_as_float(vi x) { return vreinterpretq_f32_u32(x); }
static inline vf v_pow2(vf t) { return v_as_float(vshlq_n_u32(v_as_int(t), 23)); }

static inline vi i_set1(int32_t x) { return vdupq_n_u32((uint32_t)x); }
static inline vi i_and(vi a, vi b) { return vandq_u32(a, b); }
static inline vi i_or(vi a, vi b) { return vorrq_u32(a, b); }
static inline vi i_xor(vi a, vi b) { return veorq_u32(a, b); }
static inline vi i_add(vi a, vi b) { return vaddq_u32(a, b); }
static inline vi i_mul(vi a, vi b) { return vmulq_u32(a, b); }
static inline vi i_shl(vi a, int n) { return a << n; }
static inline vi i_shr(vi a, int n) { return a >> n; }
static inline vi i_sar(vi a, int n) { return vreinterpretq_u32_s32(vreinterpretq_s32_u32(a) >> n); }
static inline vm i_gt(vi a, vi b) { return vcgtq_s32(vreinterpretq_s32_u32(a), vreinterpretq_s32_u32(b)); }
static inline vi i_select(vm m, vi yes, vi no) { return vbslq_u32(m, yes, no); }
static inline vf v_from_int(vi a) { return vcvtq_f32_s32(vreinterpretq_s32_u32(a)); }
static inline uint8x8_t load_4_bytes(const void *from) {
    uint32_t x;
    memcpy(&x, from, sizeof x);
    return vreinterpret_u8_u32(vdup_n_u32(x));
}
static inline vi i_load_u8(const void *from) { return vmovl_u16(vget_low_u16(vmovl_u8(load_4_bytes(from)))); }
static inline vi i_load_s8(const void *from) {
    int16x8_t h = vmovl_s8(vreinterpret_s8_u8(load_4_bytes(from)));
    return vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(h)));
}
static inline vi i_load_u4(const void *from, int i) {
    static const int32_t right[4] = {0, -4, -8, -12};
    uint16_t x;
    memcpy(&x, (const char *)from + i / 2, sizeof x);
    return vandq_u32(vshlq_u32(vdupq_n_u32(x), vld1q_s32(right)), vdupq_n_u32(15));
}
static inline vi i_bits(uint32_t x) {
    static const int32_t right[4] = {0, -1, -2, -3};
    return vandq_u32(vshlq_u32(vdupq_n_u32(x), vld1q_s32(right)), vdupq_n_u32(1));
}
static inline uint16x4_t load_u16(const void *from) { return vreinterpret_u16_u8(vld1_u8(from)); }
static inline void store_u16(void *to, uint16x4_t h) { vst1_u8(to, vreinterpret_u8_u16(h)); }
static inline vi i_load_u16(const void *from) { return vmovl_u16(load_u16(from)); }
static inline vi i_fold_smallest_bf16(vi most, vi x) {
    uint16x8_t doubled = vmulq_n_u16(vreinterpretq_u16_u32(x), 0xfffe);
    return vreinterpretq_u32_u16(vmaxq_u16(vreinterpretq_u16_u32(most), doubled));
}
static inline vi i_look_up(const uint8_t table[16], vi x) {
    return vreinterpretq_u32_u8(vqtbl1q_u8(vld1q_u8(table), vreinterpretq_u8_u32(x)));
}
static inline vi i_odd_bytes(vi odd, vi even) { return vbslq_u32(vdupq_n_u32(0x00ff00ff), even, odd); }
static inline void i_store_u16(void *to, vi a) { store_u16(to, vmovn_u32(a)); }

static inline vf v_from_f16(vi h) { return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(h))); }
static inline vf v_load_f16(const void *from) { return vcvt_f32_f16(vreinterpret_f16_u16(load_u16(from))); }
static inline vf v_load_f16_high(const void *from) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(vshll_n_u8(load_4_bytes(from), 8))));
}
static inline vf v_broadcast_f16(const void *from) {
    uint16_t h;
    memcpy(&h, from, sizeof h);
    return vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h)));
}
static inline void v_store_f16(void *to, vf x) { store_u16(to, vreinterpret_u16_f16(vcvt_f16_f32(x))); }

static inline __attribute__((always_inline)) void v_transpose(vf a[4]) {
    float32x4x2_t ab = vtrnq_f32(a[0], a[1]), cd = vtrnq_f32(a[2], a[3]);
    a[0] = vcombine_f32(vget_low_f32(ab.val[0]), vget_low_f32(cd.val[0]));
    a[1] = vcombine_f32(vget_low_f32(ab.val[1]), vget_low_f32(cd.val[1]));
    a[2] = vcombine_f32(vget_high_f32(ab.val[0]), vget_high_f32(cd.val[0]));
    a[3] = vcombine_f32(vget_high_f32(ab.val[1]), vget_high_f32(cd.val[1]));
}
