/* SPDX-License-Identifier: Apache-2.0 */
/* The words for one lane, in plain C: of the kernels scalar and scalar_fma, which run everywhere, and whose bits every other
 * kernel of their rounding class must give. The including file defines s_fma(a, b, c) of its class. */
#include <stdint.h>
#include <string.h>

#include "kernel.h"

#define RAPT_VL            1
#define RAPT_TILE_VECTORS  4
#define RAPT_PANEL         4
#define RAPT_ROWS_1        8
#define RAPT_ROWS_2        4
#define RAPT_ROWS_3        4
#define RAPT_ROWS_4        2
#define RAPT_ROWS_8        1
#define RAPT_KEY_CHAINS    4
#define RAPT_KEYS_AHEAD    0
#define RAPT_VALUES_AHEAD  0
#define RAPT_VALUES_DEPTH  RAPT_BLOCK
#define RAPT_FEW_ROWS      1
#define RAPT_FEW_TOKENS    1
#define RAPT_LINEAR_TOKENS 1
#define RAPT_LINEAR_SUMS   1

typedef float vf;
typedef uint32_t vi;
typedef int vm;

static inline vf v_load(const void *from) {
    vf x;
    memcpy(&x, from, sizeof x);
    return x;
}
static inline void v_store(void *to, vf x) { memcpy(to, &x, sizeof x); }
static inline vf v_set1(float x) { return x; }
static inline vf v_broadcast(const void *from) { return v_load(from); }
static inline vf v_add(vf a, vf b) { return a + b; }
static inline vf v_sub(vf a, vf b) { return a - b; }
static inline vf v_mul(vf a, vf b) { return a * b; }
static inline vf v_div(vf a, vf b) { return a / b; }
static inline vf v_max(vf a, vf b) { return a > b ? a : b; }
static inline float h_max(vf a) { return a; }
static inline vf v_fma(vf a, vf b, vf c) { return s_fma(a, b, c); }
static inline vm v_lt(vf a, vf b) { return a < b; }
static inline bool v_all(vm m) { return m; }
static inline vf v_select(vm m, vf yes, vf no) { return m ? yes : no; }
static inline vi v_as_int(vf x) {
    vi bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static inline vf v_as_float(vi bits) {
    vf x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline vf v_pow2(vf t) { return v_as_float(v_as_int(t) << 23); }
static inline void v_transpose(vf a[1]) { (void)a; }

static inline vi i_set1(int32_t x) { return (vi)x; }
static inline vi i_and(vi a, vi b) { return a & b; }
static inline vi i_or(vi a, vi b) { return a | b; }
static inline vi i_add(vi a, vi b) { return a + b; }
static inline vi i_mul(vi a, vi b) { return a * b; }
static inline vi i_sub(vi a, vi b) { return a - b; }
static inline vi i_shl(vi a, int n) { return a << n; }
static inline vi i_shr(vi a, int n) { return a >> n; }
static inline vi i_sar(vi a, int n) { return (vi)((int32_t)a >> n); }
static inline vm i_gt(vi a, vi b) { return (int32_t)a > (int32_t)b; }
static inline vi i_select(vm m, vi yes, vi no) { return m ? yes : no; }
static inline vf v_from_int(vi a) { return (vf)(int32_t)a; }
static inline vi i_load_u8(const void *from) { return *(const uint8_t *)from; }
static inline vi i_load_s8(const void *from) { return (vi) * (const int8_t *)from; }
static inline vi i_load_u4(const void *from, int i) { return ((const uint8_t *)from)[i / 2] >> i % 2 * 4 & 15; }
static inline vi i_bits(uint32_t x) { return x & 1; }
static inline vi i_load_u16(const void *from) {
    uint16_t h;
    memcpy(&h, from, sizeof h);
    return h;
}
static inline void i_store_u16(void *to, vi a) {
    uint16_t h = (uint16_t)a;
    memcpy(to, &h, sizeof h);
}
static inline vi i_fold_smallest_bf16(vi most, vi x) {
    vi low = (0 - 2 * x) & 0xffff, high = 0 - 2 * (x & 0xffff0000);
    vi low_most = most & 0xffff, high_most = most & 0xffff0000;
    return (low > low_most ? low : low_most) | (high > high_most ? high : high_most);
}

#define RAPT_DOT 2
static inline vi i_dot(vi acc, vi b, vi a) {
    return acc + (vi)((int16_t)b * (int16_t)a) + (vi)((int16_t)(b >> 16) * (int16_t)(a >> 16));
}
