/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles of AMX in plain C: up to 16 rows of 64 bytes. */
#ifndef RAPT_AMX_TILES_H
#define RAPT_AMX_TILES_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "fused.h"

enum { EMULATED_ROWS = 16, EMULATED_BYTES = 64, EMULATED_PAIRS = EMULATED_BYTES / 4 };

typedef struct emulated_tile {
    unsigned char row[EMULATED_ROWS][EMULATED_BYTES];
} emulated_tile;

typedef struct emulated_shape {
    int rows, bytes; /* bytes of a row */
} emulated_shape;

/* True if it is a configuration of eight tiles in palette 1 (Intel SDM volume 1, table 18-1), whose rows are whole dwords. Sets
 * their shapes. */
static inline bool emulated_configuration(const void *from, emulated_shape shapes[8]) {
    unsigned char bytes[64];
    memcpy(bytes, from, sizeof bytes);
    bool right = bytes[0] == 1;
    bytes[0] = 0;
    for (int i = 0; i < 8; i++) {
        unsigned char *const row_bytes = &bytes[16 + 2 * i], *const rows = &bytes[48 + i];
        shapes[i] = (emulated_shape){*rows, *row_bytes};
        right = right && *rows >= 1 && *rows <= EMULATED_ROWS && *row_bytes >= 4 && *row_bytes <= EMULATED_BYTES &&
                *row_bytes % 4 == 0;
        *rows = *row_bytes = 0;
    }
    for (int i = 0; i < 64; i++) right = right && bytes[i] == 0; /* the others */
    return right;
}

static inline void emulated_load(emulated_tile *tile, emulated_shape shape, const void *from, size_t stride) {
    memset(tile, 0, sizeof *tile);
    for (int r = 0; r < shape.rows; r++) memcpy(tile->row[r], (const char *)from + (size_t)r * stride, (size_t)shape.bytes);
}

static inline void emulated_store(const emulated_tile *tile, emulated_shape shape, void *to, size_t stride) {
    for (int r = 0; r < shape.rows; r++) memcpy((char *)to + (size_t)r * stride, tile->row[r], (size_t)shape.bytes);
}

/* One of the two bf16 numbers of a pair, the first in memory or the second. */
static inline float emulated_bf16(const emulated_tile *tile, int row, int pair, int second) {
    uint16_t half;
    memcpy(&half, tile->row[row] + 4 * pair + 2 * second, sizeof half);
    uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Emulates TDPBF16PS, for a number of rows of C and A and 16 of B, with inputs that are 0 or at least 2^-56 in magnitude, so that
 * nothing is denormal: C + (e + o), with e and o chains of fused multiply-adds from +0 over the even and the odd elements. */
static inline void emulated_multiply_bf16(emulated_tile *c, int rows, const emulated_tile *a, const emulated_tile *b) {
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < EMULATED_PAIRS; n++) {
            float sum[2] = {0.0f, 0.0f}, total;
            for (int i = 0; i < EMULATED_PAIRS; i++)
                for (int second = 0; second < 2; second++)
                    sum[second] = fused_multiply_add(emulated_bf16(a, m, i, second), emulated_bf16(b, i, n, second), sum[second]);
            memcpy(&total, c->row[m] + 4 * n, sizeof total);
            total += sum[0] + sum[1];
            memcpy(c->row[m] + 4 * n, &total, sizeof total);
        }
}

/* TDPBSUD, likewise, of `bytes` bytes of a row of A: A's are signed, B's unsigned. */
static inline void emulated_multiply_bytes(emulated_tile *c, int rows, int bytes, const emulated_tile *a,
                                           const emulated_tile *b) {
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < EMULATED_BYTES / 4; n++) {
            uint32_t sum;
            memcpy(&sum, c->row[m] + 4 * n, sizeof sum);
            for (int i = 0; i < bytes; i++) sum += (uint32_t)((signed char)a->row[m][i] * b->row[i / 4][4 * n + i % 4]);
            memcpy(c->row[m] + 4 * n, &sum, sizeof sum);
        }
}

/* Says whether tiles are configured on this thread, and sets that: one state for all objects of the kernel amx_emulated
 * (tests/broken/amx_state.c). */
bool emulated_configured(void);
void emulated_set_configured(bool configured);

#endif
