/* SPDX-License-Identifier: Apache-2.0 */
/* The words of RISC-V's vector extension 1.0 for registers of RAPT_RVV_BITS bits, which are RAPT_RVV_BITS / 32 lanes; 32
 * registers. The compiler, clang 18 or newer, is told the length, because vectors whose length is known only at run time cannot
 * be elements of arrays or structs. */
#if !defined(__riscv_v_fixed_vlen) || __riscv_v_fixed_vlen != RAPT_RVV_BITS
#error "compile with -march=rv64gcv_zvl256b and -mrvv-vector-bits=zvl, for instance"
#endif
#include <riscv_vector.h>
#include <string.h>

#include "kernel.h"

#define RAPT_KERNEL_FUSED true

/* The register tiles, distances, depths and limits are those of sve_words.h. None of these was measured on a CPU. */
#define RAPT_VL             (RAPT_RVV_BITS / 32)
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
#define RAPT_SQUARE_ROWS    4
#define RAPT_FEW_ROWS       8
#define RAPT_FEW_TOKENS     8
#define RAPT_LINEAR_TOKENS  2
#define RAPT_LINEAR_SUMS    2
#define RAPT_CONVERTED_ROWS (RAPT_VL >= 8 ? 4 : 0)
#define RAPT_BYTE_TABLES    1

typedef vfloat32m1_t vf __attribute__((riscv_rvv_vector_bits(RAPT_RVV_BITS)));
typedef vuint32m1_t vi __attribute__((riscv_rvv_vector_bits(RAPT_RVV_BITS)));
typedef vbool32_t vm;

static inline vint32m1_t as_signed(vi a) { return __riscv_vreinterpret_v_u32m1_i32m1(a); }
static inline vi as_unsigned(vint32m1_t a) { return __riscv_vreinterpret_v_i32m1_u32m1(a); }
static inline vuint8m1_t as_bytes(vi a) { return __riscv_vreinterpret_v_u32m1_u8m1(a); }
static inline vi as_lanes(vuint8m1_t a) { return __riscv_vreinterpret_v_u8m1_u32m1(a); }
static inline vi v_as_int(vf x) { return __riscv_vreinterpret_v_f32m1_u32m1(x); }
static inline vf v_as_float(vi x) { return __riscv_vreinterpret_v_u32m1_f32m1(x); }

/* Loads and stores bytes, because a CPU may refuse elements that are not aligned. */
static inline vf v_load(const void *from) { return v_as_float(as_lanes(__riscv_vle8_v_u8m1(from, 4 * RAPT_VL))); }
#define v_load_part v_load_part
static inline vf v_load_part(const char *from, size_t bytes) {
    const vuint8m1_t zero = __riscv_vmv_v_x_u8m1(0, 4 * RAPT_VL);
    return v_as_float(as_lanes(__riscv_vle8_v_u8m1_tu(zero, (const uint8_t *)from, bytes)));
}
static inline void v_store(void *to, vf x) { __riscv_vse8_v_u8m1(to, as_bytes(v_as_int(x)), 4 * RAPT_VL); }
static inline vf v_set1(float x) { return __riscv_vfmv_v_f_f32m1(x, RAPT_VL); }
static inline vf v_broadcast(const void *from) {
    float x;
    memcpy(&x, from, sizeof x);
    return v_set1(x);
}
static inline vf v_add(vf a, vf b) { return __riscv_vfadd_vv_f32m1(a, b, RAPT_VL); }
static inline vf v_sub(vf a, vf b) { return __riscv_vfsub_vv_f32m1(a, b, RAPT_VL); }
static inline vf v_mul(vf a, vf b) { return __riscv_vfmul_vv_f32m1(a, b, RAPT_VL); }
static inline vf v_div(vf a, vf b) { return __riscv_vfdiv_vv_f32m1(a, b, RAPT_VL); }
static inline vf v_fma(vf a, vf b, vf c) { return __riscv_vfmacc_vv_f32m1(c, a, b, RAPT_VL); }
static inline float s_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline vm v_lt(vf a, vf b) { return __riscv_vmflt_vv_f32m1_b32(a, b, RAPT_VL); }
static inline bool v_all(vm m) { return __riscv_vcpop_m_b32(m, RAPT_VL) == RAPT_VL; }
static inline vf v_select(vm m, vf yes, vf no) { return __riscv_vmerge_vvm_f32m1(no, yes, m, RAPT_VL); }
/* Selects, because vfmax returns the other operand if one is NaN. */
static inline vf v_max(vf a, vf b) { return v_select(v_lt(b, a), a, b); }
static inline float h_max(vf a) { return __riscv_vfmv_f_s_f32m1_f32(__riscv_vfredmax_vs_f32m1_f32m1(a, a, RAPT_VL)); }

static inline vi i_set1(int32_t x) { return __riscv_vmv_v_x_u32m1((uint32_t)x, RAPT_VL); }
static inline vi i_and(vi a, vi b) { return __riscv_vand_vv_u32m1(a, b, RAPT_VL); }
static inline vi i_or(vi a, vi b) { return __riscv_vor_vv_u32m1(a, b, RAPT_VL); }
static inline vi i_xor(vi a, vi b) { return __riscv_vxor_vv_u32m1(a, b, RAPT_VL); }
static inline vi i_add(vi a, vi b) { return __riscv_vadd_vv_u32m1(a, b, RAPT_VL); }
static inline vi i_mul(vi a, vi b) { return __riscv_vmul_vv_u32m1(a, b, RAPT_VL); }
static inline vi i_sub(vi a, vi b) { return __riscv_vsub_vv_u32m1(a, b, RAPT_VL); }
static inline vi i_shl(vi a, int n) { return __riscv_vsll_vx_u32m1(a, (size_t)n, RAPT_VL); }
static inline vi i_shr(vi a, int n) { return __riscv_vsrl_vx_u32m1(a, (size_t)n, RAPT_VL); }
static inline vi i_sar(vi a, int n) { return as_unsigned(__riscv_vsra_vx_i32m1(as_signed(a), (size_t)n, RAPT_VL)); }
static inline vf v_pow2(vf t) { return v_as_float(i_shl(v_as_int(t), 23)); }
static inline vm i_gt(vi a, vi b) { return __riscv_vmsgt_vv_i32m1_b32(as_signed(a), as_signed(b), RAPT_VL); }
static inline vi i_select(vm m, vi yes, vi no) { return __riscv_vmerge_vvm_u32m1(no, yes, m, RAPT_VL); }
static inline vf v_from_int(vi a) { return __riscv_vfcvt_f_x_v_f32m1(as_signed(a), RAPT_VL); }
static inline vi i_load_u8(const void *from) { return __riscv_vzext_vf4_u32m1(__riscv_vle8_v_u8mf4(from, RAPT_VL), RAPT_VL); }
static inline vi i_load_s8(const void *from) {
    return as_unsigned(__riscv_vsext_vf4_i32m1(__riscv_vle8_v_i8mf4(from, RAPT_VL), RAPT_VL));
}
static inline vi i_load_u4(const void *from, int i) { /* one byte for two lanes: its upper half moves to the second one */
    enum { PAIRS = RAPT_VL / 2 };
    vuint64m1_t x = __riscv_vzext_vf8_u64m1(__riscv_vle8_v_u8mf8((const uint8_t *)from + i / 2, PAIRS), PAIRS);
    x = __riscv_vor_vv_u64m1(x, __riscv_vsll_vx_u64m1(x, 28, PAIRS), PAIRS);
    return i_and(__riscv_vreinterpret_v_u64m1_u32m1(x), i_set1(15));
}
static inline vi lane_numbers(void) { return __riscv_vid_v_u32m1(RAPT_VL); }
static inline vi i_bits(uint32_t x) {
    return i_and(__riscv_vsrl_vv_u32m1(i_set1((int32_t)x), lane_numbers(), RAPT_VL), i_set1(1));
}
static inline vi i_load_u16(const void *from) {
    vuint8mf2_t bytes = __riscv_vle8_v_u8mf2(from, 2 * RAPT_VL);
    return __riscv_vzext_vf2_u32m1(__riscv_vreinterpret_v_u8mf2_u16mf2(bytes), RAPT_VL);
}
static inline void i_store_u16(void *to, vi a) {
    vuint16mf2_t low = __riscv_vncvt_x_x_w_u16mf2(a, RAPT_VL);
    __riscv_vse8_v_u8mf2(to, __riscv_vreinterpret_v_u16mf2_u8mf2(low), 2 * RAPT_VL);
}
static inline vi i_fold_smallest_bf16(vi most, vi x) {
    vuint16m1_t doubled = __riscv_vmul_vx_u16m1(__riscv_vreinterpret_v_u32m1_u16m1(x), 0xfffe, 2 * RAPT_VL);
    return __riscv_vreinterpret_v_u16m1_u32m1(
        __riscv_vmaxu_vv_u16m1(__riscv_vreinterpret_v_u32m1_u16m1(most), doubled, 2 * RAPT_VL));
}
/* The vector's bytes after the 16 of the table are 0, and vrgather gives 0 for indices beyond the vector. */
static inline vi i_look_up(const uint8_t table[16], vi x) {
    vuint8m1_t all = __riscv_vle8_v_u8m1_tu(__riscv_vmv_v_x_u8m1(0, 4 * RAPT_VL), table, 16);
    return as_lanes(__riscv_vrgather_vv_u8m1(all, as_bytes(x), 4 * RAPT_VL));
}
static inline vi i_odd_bytes(vi odd, vi even) { return i_or(i_and(even, i_set1(0x00ff00ff)), i_and(odd, i_set1(~0x00ff00ff))); }

/* Transposes through memory, since there is no instruction that zips: stores rows, and loads columns with a stride. */
static inline void v_transpose(vf a[RAPT_VL]) {
    float rows[RAPT_VL][RAPT_VL];
    for (int r = 0; r < RAPT_VL; r++) __riscv_vse32_v_f32m1(rows[r], a[r], RAPT_VL);
    for (int i = 0; i < RAPT_VL; i++) a[i] = __riscv_vlse32_v_f32m1(&rows[0][i], sizeof rows[0], RAPT_VL);
}
static inline vf v_load_quads(const char *const *rows, size_t offset) {
    float quads[RAPT_VL];
    for (int i = 0; i < RAPT_VL; i += 4) memcpy(quads + i, rows[i] + offset, 4 * sizeof *quads);
    return v_load(quads);
}
static inline void v_transpose_quads(vf x[4]) {
    float rows[4][RAPT_VL];
    vi quad = i_and(lane_numbers(), i_set1(~3)), within = i_and(lane_numbers(), i_set1(3));
    /* For lane 4 * q + r, the byte offset of element 4 * q of row r. */
    vi from = i_shl(i_add(__riscv_vmul_vx_u32m1(within, RAPT_VL, RAPT_VL), quad), 2);
    for (int r = 0; r < 4; r++) __riscv_vse32_v_f32m1(rows[r], x[r], RAPT_VL);
    for (int i = 0; i < 4; i++) x[i] = __riscv_vluxei32_v_f32m1(&rows[0][i], from, RAPT_VL);
}

#define RAPT_DOT 2
static inline vi i_dot(vi acc, vi b, vi a) {
    acc = __riscv_vmacc_vv_u32m1(acc, i_sar(i_shl(b, 16), 16), i_sar(i_shl(a, 16), 16), RAPT_VL);
    return __riscv_vmacc_vv_u32m1(acc, i_sar(b, 16), i_sar(a, 16), RAPT_VL);
}
