/* SPDX-License-Identifier: Apache-2.0 */
/* AMX: the f32 peak is that of avx512; those of bf16 and of integers are the matrix unit's, which adds to four tiles by turns.
 * Its speed does not depend on the numbers. */
#include <immintrin.h>
#include <stdint.h>

#define ISA        amx
#define OWN_MATRIX 1

enum { TILES = 4, TILE_BYTES = 1024, BF16_FLOPS = TILES * 16 * 16 * 32 * 2, INT8_FLOPS = 2 * BF16_FLOPS };

/* Each round has one multiplication for each of four tiles of sums, which begin as 0; one of them is stored at the end. */
#define DEFINE_PEAK(name, multiply)                                                                                              \
    static float name(int64_t rounds, float a, float b) {                                                                        \
        static const struct {                                                                                                    \
            uint8_t palette, start_row, reserved[14];                                                                            \
            uint16_t row_bytes[16];                                                                                              \
            uint8_t rows[16];                                                                                                    \
        } whole = {.palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16}};                       \
        float tile[TILE_BYTES / sizeof(float)] = {a, b};                                                                         \
        _tile_loadconfig(&whole);                                                                                                \
        __asm__ volatile("" ::: "memory"); /* gcc's tile loads do not say that they read */                                      \
        _tile_zero(0);                                                                                                           \
        _tile_zero(1);                                                                                                           \
        _tile_zero(2);                                                                                                           \
        _tile_zero(3);                                                                                                           \
        _tile_loadd(4, tile, 64);                                                                                                \
        _tile_loadd(5, tile, 64);                                                                                                \
        for (int64_t r = 0; r < rounds; r++) {                                                                                   \
            multiply(0, 4, 5);                                                                                                   \
            multiply(1, 4, 5);                                                                                                   \
            multiply(2, 4, 5);                                                                                                   \
            multiply(3, 4, 5);                                                                                                   \
        }                                                                                                                        \
        _tile_stored(0, tile, 64);                                                                                               \
        _tile_release();                                                                                                         \
        return tile[0];                                                                                                          \
    }
DEFINE_PEAK(bf16_peak, _tile_dpbf16ps)
DEFINE_PEAK(int8_peak, _tile_dpbusd)

#include "peak_avx512.c"
