/* SPDX-License-Identifier: Apache-2.0 */
/* The algorithm of kernels/x86/avx512_bf16.c for every machine: in vectors of plain C, with the instruction as arrays, which
 * tests/kernels/bf16_semantics.c compares with it. */
#define RAPT_KERNEL_NAME  avx512_bf16_emulated
#define RAPT_VL           16
#define RAPT_TILE_VECTORS 3
#define RAPT_KERNEL_FUSED 1
#define RAPT_SQUARE_ROWS  8
#define RAPT_EXACT_PAIRS  1
#define RAPT_ROWS_1       1
#define RAPT_ROWS_2       1
#define RAPT_ROWS_3       1
#define RAPT_ROWS_4       1
#define RAPT_ROWS_8       1
#include "words.h"

#include "emulated_bf16.h"

#define v_fma_pairs v_fma_pairs
static inline vf v_fma_pairs(vf acc, vf a, vf b) {
    float sums[RAPT_VL];
    uint32_t of_a[RAPT_VL], of_b[RAPT_VL];
    memcpy(sums, &acc, sizeof sums);
    memcpy(of_a, &a, sizeof of_a);
    memcpy(of_b, &b, sizeof of_b);
    emulated_vdpbf16ps(sums, of_a, of_b);
    memcpy(&acc, sums, sizeof acc);
    return acc;
}

static inline vi i_chain_pairs(vi x) {
    uint16_t halves[2 * RAPT_VL];
    uint32_t pairs[RAPT_VL];
    memcpy(halves, &x, sizeof halves);
    for (int i = 0; i < RAPT_VL; i++) {
        const int earlier = i / 2 * 4 + i % 2;
        pairs[i] = (uint32_t)halves[earlier] << 16 | halves[earlier + 2];
    }
    memcpy(&x, pairs, sizeof x);
    return x;
}

static inline vi i_bf16_factors(vf x, vf y, int least) {
    uint32_t of_x[RAPT_VL], of_y[RAPT_VL];
    uint16_t halves[2 * RAPT_VL];
    vi both;
    memcpy(of_x, &x, sizeof of_x);
    memcpy(of_y, &y, sizeof of_y);
    emulated_vcvtne2ps2bf16(halves, of_x, of_y);
    for (int i = 0; i < 2 * RAPT_VL; i++)
        if ((halves[i] & 0x7fff) < least) halves[i] = 0;
    memcpy(&both, halves, sizeof both);
    return both;
}

/* As that of AVX-512, wrong for NaN, so that weights are computed once more. */
static inline vf v_exp2_bf16(vf d, vf c, vf least);
static inline vi v_weight_halves(vf d, vf c, vf least, vi *special) {
    vm nan = i_gt(i_and(v_as_int(d), i_set1(INT32_MAX)), i_set1(0x7f800000));
    *special = i_or(*special, i_select(nan, i_set1(1), i_set1(0)));
    return i_select(nan, i_set1(0), i_shr(v_as_int(v_exp2_bf16(d, c, least)), 16));
}
static inline bool has_special_weights(vi special) {
    bool any = false;
    for (int i = 0; i < RAPT_VL; i++) any |= special[i] != 0;
    return any;
}

#include "x86/bf16_chains.h"
