/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel in GCC's vector extensions, for every architecture, of 4 lanes and the unfused class unless the including file defines
 * RAPT_VL and RAPT_KERNEL_FUSED: the sound basis of the broken ones, and the control that is to pass where they fail. */
#include <stdint.h>
#include <string.h>

#include "kernel.h"

#define RAPT_KERNEL_NEEDS 0

#ifndef RAPT_VL
#define RAPT_VL           4
#define RAPT_KERNEL_FUSED 0
#endif

#ifndef RAPT_TILE_VECTORS
#define RAPT_TILE_VECTORS 2
#endif
#define RAPT_PANEL 2
#ifndef RAPT_ROWS_1 /* amx_emulated, whose products of f32 are of no interest, has smaller ones, to be compiled in seconds */
#define RAPT_ROWS_1 8
#define RAPT_ROWS_2 5
#define RAPT_ROWS_3 3
#define RAPT_ROWS_4 2
#define RAPT_ROWS_8 1
#endif
#define RAPT_KEY_CHAINS    4
#define RAPT_KEYS_AHEAD    0
#define RAPT_VALUES_AHEAD  0
#define RAPT_VALUES_DEPTH  RAPT_BLOCK
#define RAPT_FEW_ROWS      4
#define RAPT_FEW_TOKENS    4
#define RAPT_LINEAR_TOKENS 2
#define RAPT_LINEAR_SUMS   2

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
static inline vf v_broadcast(const void *from) {
    float x;
    memcpy(&x, from, sizeof x);
    return v_set1(x);
}
static inline vf v_add(vf a, vf b) { return a + b; }
static inline vf v_sub(vf a, vf b) { return a - b; }
static inline vf v_mul(vf a, vf b) { return a * b; }
static inline vf v_div(vf a, vf b) { return a / b; }
static inline float s_fma(float a, float b, float c) { return RAPT_KERNEL_FUSED ? __builtin_fmaf(a, b, c) : a * b + c; }
#if RAPT_KERNEL_FUSED
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
    vi x = {0};
    for (int i = 0; i < RAPT_VL; i++) x[i] = ((const uint8_t *)from)[i];
    return x;
}
static inline vi i_load_s8(const void *from) { return (vi)((vm)(i_load_u8(from) << 24) >> 24); }
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
static inline vi i_load_u16(const void *from) {
    uint16_t h[RAPT_VL];
    vi x = {0};
    memcpy(h, from, sizeof h);
    for (int i = 0; i < RAPT_VL; i++) x[i] = h[i];
    return x;
}
static inline void i_store_u16(void *to, vi a) {
    uint16_t h[RAPT_VL];
    for (int i = 0; i < RAPT_VL; i++) h[i] = (uint16_t)a[i];
    memcpy(to, h, sizeof h);
}
static inline vi i_look_up(const uint8_t table[16], vi x) {
    uint8_t b[4 * RAPT_VL];
    memcpy(b, &x, sizeof b);
    for (int i = 0; i < 4 * RAPT_VL; i++) b[i] = b[i] < 16 ? table[b[i]] : 0;
    memcpy(&x, b, sizeof b);
    return x;
}
static inline vi i_odd_bytes(vi odd, vi even) { return (odd & 0xff00ff00) | (even & 0x00ff00ff); }
static inline vi i_most_halves(vi most, vi x) {
    uint16_t a[2 * RAPT_VL], b[2 * RAPT_VL];
    memcpy(a, &most, sizeof a);
    memcpy(b, &x, sizeof b);
    for (int i = 0; i < 2 * RAPT_VL; i++) {
        uint16_t doubled = (uint16_t)(0 - 2u * b[i]);
        a[i] = doubled > a[i] ? doubled : a[i];
    }
    memcpy(&most, a, sizeof a);
    return most;
}

/* The words of RAPT_SQUARE_ROWS. */
static inline vf v_load_quads(const char *const *rows, size_t offset) {
    float x[RAPT_VL];
    for (int i = 0; i < RAPT_VL; i += 4) memcpy(x + i, rows[i] + offset, 4 * sizeof *x);
    return v_load(x);
}
static inline vf v_quads_of(vf a, vf b, int a0, int b0, int a1, int b1) {
    vf x = a;
    for (int i = 0; i < RAPT_VL; i += 4) x[i] = a[i + a0], x[i + 1] = b[i + b0], x[i + 2] = a[i + a1], x[i + 3] = b[i + b1];
    return x;
}
static inline vf v_zip_low(vf a, vf b) { return v_quads_of(a, b, 0, 0, 1, 1); }
static inline vf v_zip_high(vf a, vf b) { return v_quads_of(a, b, 2, 2, 3, 3); }
static inline vf v_pair_low(vf a, vf b) {
    vf x = a;
    for (int i = 0; i < RAPT_VL; i += 4) x[i + 2] = b[i], x[i + 3] = b[i + 1];
    return x;
}
static inline vf v_pair_high(vf a, vf b) {
    vf x = b;
    for (int i = 0; i < RAPT_VL; i += 4) x[i] = a[i + 2], x[i + 1] = a[i + 3];
    return x;
}

static __attribute__((noinline)) void v_transpose(vf a[RAPT_VL]) {
    vf b[RAPT_VL];
    memcpy(b, a, sizeof b);
    for (int i = 0; i < RAPT_VL; i++)
        for (int j = 0; j < RAPT_VL; j++) a[i][j] = b[j][i];
}

#ifdef BYTES_IN_DOTS
#define RAPT_DOT 4
static inline vi i_dot(vi acc, vi b, vi a) {
    vm y = (vm)a;
    for (int left = 24; left >= 0; left -= 8) acc += (b << left >> 24) * (vi)(y << left >> 24);
    return acc;
}
#else
#define RAPT_DOT 2
static inline vi i_dot(vi acc, vi b, vi a) {
    vm x = (vm)b, y = (vm)a;
    return acc + (vi)((x << 16 >> 16) * (y << 16 >> 16) + (x >> 16) * (y >> 16));
}
#endif
