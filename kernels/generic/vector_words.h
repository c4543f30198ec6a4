/* SPDX-License-Identifier: Apache-2.0 */
/* The words in the vector extensions of gcc and clang, for any architecture and RAPT_VL. The including file defines
 * RAPT_KERNEL_FUSED as 0 or 1, and the constants of check_words.h. */
#include <stdint.h>
#include <string.h>

#include "kernel.h"

typedef float vf __attribute__((vector_size(4 * RAPT_VL)));
typedef uint32_t vi __attribute__((vector_size(4 * RAPT_VL)));
typedef int32_t vm __attribute__((vector_size(4 * RAPT_VL)));

static inline vf v_load(const void *from) {
    vf x;
    memcpy(&x, from, sizeof x);
    return x;
}
static inline void v_store(void *to, vf x) { memcpy(to, &x, sizeof x); }
static inline vf v_set1(float x) { return x - (vf){0}; }
/* Broadcasts 32 bits as an integer, since they may be one: as floats, integers that look like signalling NaNs would change if a
 * compiler computes x - 0 as written. */
static inline vf v_broadcast(const void *from) {
    uint32_t x;
    memcpy(&x, from, sizeof x);
    return (vf)(x + (vi){0});
}
static inline vf v_add(vf a, vf b) { return a + b; }
static inline vf v_sub(vf a, vf b) { return a - b; }
static inline vf v_mul(vf a, vf b) { return a * b; }
static inline vf v_div(vf a, vf b) { return a / b; }
static inline float s_fma(float a, float b, float c) { return RAPT_KERNEL_FUSED ? __builtin_fmaf(a, b, c) : a * b + c; }
#if RAPT_KERNEL_FUSED && RAPT_VL == 4 /* in this form gcc finds the instruction, if there is one */
static inline vf v_fma(vf a, vf b, vf c) {
    return (vf){s_fma(a[0], b[0], c[0]), s_fma(a[1], b[1], c[1]), s_fma(a[2], b[2], c[2]), s_fma(a[3], b[3], c[3])};
}
#elif RAPT_KERNEL_FUSED
static __attribute__((noinline)) vf v_fma(vf a, vf b, vf c) {
    for (int i = 0; i < RAPT_VL; i++) c[i] = s_fma(a[i], b[i], c[i]);
    return c;
}
#else
static inline vf v_fma(vf a, vf b, vf c) { return a * b + c; }
#endif
static inline vi v_as_int(vf x) { return (vi)x; }
static inline vf v_as_float(vi x) { return (vf)x; }
static inline vf v_pow2(vf t) { return (vf)((vi)t << 23); }
static inline vm v_lt(vf a, vf b) { return a < b; }

static inline vi i_set1(int32_t x) { return (uint32_t)x + (vi){0}; }
static inline vi i_and(vi a, vi b) { return a & b; }
static inline vi i_or(vi a, vi b) { return a | b; }
static inline vi i_xor(vi a, vi b) { return a ^ b; }
static inline vi i_add(vi a, vi b) { return a + b; }
static inline vi i_mul(vi a, vi b) { return a * b; }
static inline vi i_sub(vi a, vi b) { return a - b; }
static inline vi i_shl(vi a, int n) { return a << n; }
static inline vi i_shr(vi a, int n) { return a >> n; }
static inline vi i_sar(vi a, int n) { return (vi)((vm)a >> n); }
static inline vm i_gt(vi a, vi b) { return (vm)a > (vm)b; }
static inline vi i_select(vm m, vi yes, vi no) { return ((vi)m & yes) | (~(vi)m & no); }
static inline bool v_all(vm m) {
    for (int i = 0; i < RAPT_VL; i++)
        if (!m[i]) return false;
    return true;
}
static inline vf v_select(vm m, vf yes, vf no) { return (vf)i_select(m, (vi)yes, (vi)no); }
static inline vf v_max(vf a, vf b) { return v_select(a > b, a, b); }
static inline float h_max(vf a) {
    float m = a[0];
    for (int i = 1; i < RAPT_VL; i++) m = a[i] > m ? a[i] : m;
    return m;
}
static inline vf v_from_int(vi a) { return __builtin_convertvector((vm)a, vf); }
static inline vi i_load_u8(const void *from) {
    uint8_t x __attribute__((vector_size(RAPT_VL)));
    memcpy(&x, from, sizeof x);
    return __builtin_convertvector(x, vi);
}
static inline vi i_load_s8(const void *from) {
    int8_t x __attribute__((vector_size(RAPT_VL)));
    memcpy(&x, from, sizeof x);
    return (vi) __builtin_convertvector(x, vm);
}
static inline vi i_load_u4(const void *from, int i) {
    vi x = {0};
    for (int j = 0; j < RAPT_VL; j++) x[j] = ((const uint8_t *)from)[(i + j) / 2] >> (i + j) % 2 * 4 & 15u;
    return x;
}
static inline vi i_bits(uint32_t x) {
    vi bits = {0};
    for (int i = 0; i < RAPT_VL; i++) bits[i] = x >> i & 1;
    return bits;
}
typedef uint16_t halves_of_lanes __attribute__((vector_size(2 * RAPT_VL)));
static inline vi i_load_u16(const void *from) {
    halves_of_lanes x;
    memcpy(&x, from, sizeof x);
    return __builtin_convertvector(x, vi);
}
static inline void i_store_u16(void *to, vi a) {
    halves_of_lanes x = __builtin_convertvector(a, halves_of_lanes);
    memcpy(to, &x, sizeof x);
}
static inline vi i_fold_smallest_bf16(vi most, vi x) {
    typedef uint16_t halves __attribute__((vector_size(4 * RAPT_VL)));
    const halves doubled = 0 - 2 * (halves)x, old = (halves)most, more = (halves)(doubled > old);
    return (vi)((doubled & more) | (old & ~more));
}

#if RAPT_VL == 4
static inline void v_transpose(vf a[4]) {
    vf low = __builtin_shufflevector(a[0], a[1], 0, 4, 1, 5), high = __builtin_shufflevector(a[0], a[1], 2, 6, 3, 7);
    vf low2 = __builtin_shufflevector(a[2], a[3], 0, 4, 1, 5), high2 = __builtin_shufflevector(a[2], a[3], 2, 6, 3, 7);
    a[0] = __builtin_shufflevector(low, low2, 0, 1, 4, 5), a[1] = __builtin_shufflevector(low, low2, 2, 3, 6, 7);
    a[2] = __builtin_shufflevector(high, high2, 0, 1, 4, 5), a[3] = __builtin_shufflevector(high, high2, 2, 3, 6, 7);
}
#else
static __attribute__((noinline)) void v_transpose(vf a[RAPT_VL]) {
    vf b[RAPT_VL];
    memcpy(b, a, sizeof b);
    for (int i = 0; i < RAPT_VL; i++)
        for (int j = 0; j < RAPT_VL; j++) a[i][j] = b[j][i];
}
#endif

#ifndef RAPT_DOT
#define RAPT_DOT 2
static inline vi i_dot(vi acc, vi b, vi a) {
    vm x = (vm)b, y = (vm)a;
    return acc + (vi)((x << 16 >> 16) * (y << 16 >> 16) + (x >> 16) * (y >> 16));
}
#endif
