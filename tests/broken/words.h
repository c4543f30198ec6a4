/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel in GCC's vector extensions, for every architecture, of 4 lanes and the unfused class unless the including file defines
 * RAPT_VL and RAPT_KERNEL_FUSED: the sound basis of the broken ones, and the control that is to pass where they fail. */
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

#ifdef BYTES_IN_DOTS
#define RAPT_DOT 4
#endif
#include "generic/vector_words.h"

/* The words of RAPT_SQUARE_ROWS. */
static inline vf v_load_quads(const char *const *rows, size_t offset) {
    float x[RAPT_VL];
    for (int i = 0; i < RAPT_VL; i += 4) memcpy(x + i, rows[i] + offset, 4 * sizeof *x);
    return v_load(x);
}
static inline void v_transpose_quads(vf x[4]) {
    for (int quad = 0; quad < RAPT_VL; quad += 4)
        for (int r = 1; r < 4; r++)
            for (int i = 0; i < r; i++) {
                float below = x[r][quad + i];
                x[r][quad + i] = x[i][quad + r];
                x[i][quad + r] = below;
            }
}

#ifdef BYTES_IN_DOTS
static inline vi i_dot(vi acc, vi b, vi a) {
    vm y = (vm)a;
    for (int left = 24; left >= 0; left -= 8) acc += (b << left >> 24) * (vi)(y << left >> 24);
    return acc;
}
#endif
