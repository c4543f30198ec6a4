/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel of 4 lanes in GCC's vector extensions, for every architecture, of the unfused class: the sound basis of the broken
 * ones, and the control that is to pass where they fail. */
#include <stdint.h>
#include <string.h>

#include "kernel.h"

#define RAPT_KERNEL_NEEDS 0
#define RAPT_KERNEL_FUSED false

#define RAPT_VL            4
#define RAPT_TILE_VECTORS  2
#define RAPT_PANEL         2
#define RAPT_ROWS_1        8
#define RAPT_ROWS_2        5
#define RAPT_ROWS_3        3
#define RAPT_ROWS_4        2
#define RAPT_ROWS_8        1
#define RAPT_KEY_CHAINS    4
#define RAPT_KEYS_AHEAD    0
#define RAPT_VALUES_AHEAD  0
#define RAPT_VALUES_DEPTH  RAPT_BLOCK
#define RAPT_FEW_ROWS      4
#define RAPT_FEW_TOKENS    4
#define RAPT_LINEAR_TOKENS 2
#define RAPT_LINEAR_SUMS   2

typedef float vf __attribute__((vector_size(16)));
typedef uint32_t vi __attribute__((vector_size(16)));
typedef int32_t vm __attribute__((vector_size(16)));

static inline vf v_load(const void *from) {
    vf x;
    memcpy(&x, from, sizeof x);
    return x;
}
static inline void v_store(void *to, vf x) { memcpy(to, &x, sizeof x); }
static inline vf v_set1(float x) { return (vf){x, x, x, x}; }
static inline vf v_broadcast(const void *from) {
    float x;
    memcpy(&x, from, sizeof x);
    return v_set1(x);
}
static inline vf v_add(vf a, vf b) { return a + b; }
static inline vf v_sub(vf a, vf b) { return a - b; }
static inline vf v_mul(vf a, vf b) { return a * b; }
static inline vf v_div(vf a, vf b) { return a / b; }
static inline vf v_fma(vf a, vf b, vf c) { return a * b + c; }
static inline float s_fma(float a, float b, float c) { return a * b + c; }
static inline vi v_as_int(vf x) { return (vi)x; }
static inline vf v_as_float(vi x) { return (vf)x; }
static inline vf v_pow2(vf t) { return (vf)((vi)t << 23); }
static inline vm v_lt(vf a, vf b) { return a < b; }

static inline vi i_set1(int32_t x) { return (vi){(uint32_t)x, (uint32_t)x, (uint32_t)x, (uint32_t)x}; }
static inline vi i_and(vi a, vi b) { return a & b; }
static inline vi i_or(vi a, vi b) { return a | b; }
static inline vi i_add(vi a, vi b) { return a + b; }
static inline vi i_sub(vi a, vi b) { return a - b; }
static inline vi i_shl(vi a, int n) { return a << n; }
static inline vi i_shr(vi a, int n) { return a >> n; }
static inline vm i_gt(vi a, vi b) { return (vm)a > (vm)b; }
static inline vi i_select(vm m, vi yes, vi no) { return ((vi)m & yes) | (~(vi)m & no); }
static inline bool v_all(vm m) { return m[0] && m[1] && m[2] && m[3]; }
static inline vf v_select(vm m, vf yes, vf no) { return (vf)i_select(m, (vi)yes, (vi)no); }
static inline vf v_max(vf a, vf b) { return v_select(a > b, a, b); }
static inline float h_max(vf a) {
    float m = a[0];
    for (int i = 1; i < 4; i++) m = a[i] > m ? a[i] : m;
    return m;
}
static inline vf v_from_int(vi a) { return __builtin_convertvector((vm)a, vf); }
static inline vi i_load_u8(const void *from) {
    uint8_t b[4];
    memcpy(b, from, sizeof b);
    return (vi){b[0], b[1], b[2], b[3]};
}
static inline vi i_load_s8(const void *from) { return (vi)((vm)(i_load_u8(from) << 24) >> 24); }
static inline vi i_load_u4(const void *from, int i) {
    uint16_t x;
    memcpy(&x, (const char *)from + i / 2, sizeof x);
    return (vi){x & 15u, x >> 4 & 15u, x >> 8 & 15u, x >> 12};
}
static inline vi i_bits(uint32_t x) { return (vi){x & 1, x >> 1 & 1, x >> 2 & 1, x >> 3 & 1}; }
static inline vi i_load_u16(const void *from) {
    uint16_t h[4];
    memcpy(h, from, sizeof h);
    return (vi){h[0], h[1], h[2], h[3]};
}
static inline void i_store_u16(void *to, vi a) {
    uint16_t h[4] = {(uint16_t)a[0], (uint16_t)a[1], (uint16_t)a[2], (uint16_t)a[3]};
    memcpy(to, h, sizeof h);
}

static inline void v_transpose(vf a[4]) {
    vf b[4] = {a[0], a[1], a[2], a[3]};
    for (int i = 0; i < 4; i++) a[i] = (vf){b[0][i], b[1][i], b[2][i], b[3][i]};
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
