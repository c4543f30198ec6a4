/* SPDX-License-Identifier: Apache-2.0 */
/* TDPBF16PS, TDPBSUD and their emulation (amx_tiles.h), from which tests/broken/amx_emulated.c is made, compared bit for bit;
 * where there is no AMX, the emulation beside numbers worked out by hand. */
#include <math.h>

#include "amx_tiles.h"
#include "random.h"
#include "rapt.h"
#include "tap.h"

static uint16_t bf16_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static void set(emulated_tile *tile, int row, int element, float x) {
    uint16_t half = bf16_of(x);
    memcpy(tile->row[row] + 2 * element, &half, sizeof half);
}

static float result(const emulated_tile *tile, int row, int column) {
    float x;
    memcpy(&x, tile->row[row] + 4 * column, sizeof x);
    return x;
}

static void worked_by_hand(void) {
    static emulated_tile a, b, c;
    memset(&a, 0, sizeof a), memset(&b, 0, sizeof b), memset(&c, 0, sizeof c);
    set(&a, 3, 0, 2.0f), set(&b, 0, 2 * 5, 3.0f);     /* an even element of row 3, and of column 5 */
    set(&a, 3, 31, -1.0f), set(&b, 15, 2 * 5 + 1, 4); /* the last odd one */
    const float before = 100.0f;
    memcpy(c.row[3] + 4 * 5, &before, sizeof before);
    emulated_multiply_bf16(&c, EMULATED_ROWS, &a, &b);
    tap_ok(result(&c, 3, 5) == 102.0f, "the emulation: 100 + (2 * 3 + -1 * 4) is %g", (double)result(&c, 3, 5));
    /* 2^24 + 1 is lost, in a chain of its own it is not: even elements 2^24, 1, -2^24 leave 0, odd ones add 1. */
    memset(&a, 0, sizeof a), memset(&b, 0, sizeof b), memset(&c, 0, sizeof c);
    for (int n = 0; n < 16; n++) set(&b, n, 0, 1.0f), set(&b, n, 1, 1.0f);
    set(&a, 0, 0, 0x1p24f), set(&a, 0, 2, 1.0f), set(&a, 0, 4, -0x1p24f), set(&a, 0, 1, 1.0f);
    emulated_multiply_bf16(&c, EMULATED_ROWS, &a, &b);
    tap_ok(result(&c, 0, 0) == 1.0f, "even and odd elements are summed by themselves: %g", (double)result(&c, 0, 0));
    memset(&a, 0, sizeof a), memset(&b, 0, sizeof b), memset(&c, 0, sizeof c);
    a.row[7][63] = 0x80, b.row[15][4 * 9 + 3] = 0xff; /* -128 times 255 */
    a.row[7][0] = 0x7f, b.row[0][4 * 9] = 2;
    emulated_multiply_bytes(&c, EMULATED_ROWS, EMULATED_BYTES, &a, &b);
    emulated_multiply_bytes(&c, EMULATED_ROWS, EMULATED_BYTES, &a, &b);
    emulated_multiply_bytes(&c, EMULATED_ROWS, 32, &a, &b); /* without the last bytes */
    int32_t sum;
    memcpy(&sum, c.row[7] + 4 * 9, sizeof sum);
    tap_ok(sum == 3 * 127 * 2 - 2 * 128 * 255, "three times 127 * 2, twice -128 * 255 is %d", (int)sum);
    unsigned char configuration[64] = {1};
    for (int i = 0; i < 8; i++) configuration[16 + 2 * i] = 64, configuration[48 + i] = 16;
    emulated_shape shapes[8];
    configuration[48 + 3] = 5, configuration[16 + 2 * 3] = 32;
    tap_ok(emulated_configuration(configuration, shapes) && shapes[2].rows == 16 && shapes[2].bytes == 64 &&
               shapes[3].rows == 5 && shapes[3].bytes == 32,
           "a configuration: 16 rows of 64 bytes, and 5 of 32");
    configuration[48 + 3] = 17;
    tap_ok(!emulated_configuration(configuration, shapes), "no tile has 17 rows");
    configuration[48 + 3] = 16, configuration[5] = 1;
    tap_ok(!emulated_configuration(configuration, shapes), "a configuration with a reserved byte set is not one");
}

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)
#include <immintrin.h>

enum { TRIALS = 2000 };

/* A random number of either sign, 2^low to 2^high in magnitude; 0 where that would be below 2^-56. */
static float drawn(int low, int high) {
    float x = ldexpf((float)(random_bits() >> 8) / 0x1p24f - 0.5f, low + (int)below(high - low + 1));
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= 0xffff0000;
    memcpy(&x, &bits, sizeof x);
    return fabsf(x) < 0x1p-56f ? 0.0f : x;
}

/* Configures tiles 0 and 1 with `rows` rows, of which those of tile 1 have `bytes` bytes, and tile 2 with a row for each four. */
static void configure(int rows, int bytes) {
    const unsigned char configuration[64] = {[0] = 1,
                                             [16] = 64,
                                             [18] = (unsigned char)bytes,
                                             [20] = 64,
                                             [48] = (unsigned char)rows,
                                             [49] = (unsigned char)rows,
                                             [50] = (unsigned char)(bytes / 4)};
    _tile_loadconfig(configuration);
}

static bool same(float x, float y) { return memcmp(&x, &y, sizeof x) == 0 || (x != x && y != y); }

static void beside_the_instruction(int low, int high, bool specials) {
    static emulated_tile a, b, c, wanted;
    long different = 0;
    for (int trial = 0; trial < TRIALS; trial++) {
        const int rows = 1 + trial % EMULATED_ROWS;
        configure(rows, EMULATED_BYTES);
        for (int r = 0; r < 16; r++)
            for (int i = 0; i < 32; i++) {
                float x = drawn(low, high), y = drawn(low, high);
                if (specials && below(200) == 0) x = below(2) ? INFINITY : NAN;
                set(&a, r, i, x), set(&b, r, i, y);
            }
        for (int r = 0; r < 16; r++)
            for (int n = 0; n < 16; n++) {
                float x = trial % 2 ? drawn(low, high) : 0.0f;
                memcpy(c.row[r] + 4 * n, &x, sizeof x);
            }
        wanted = c;
        emulated_multiply_bf16(&wanted, rows, &a, &b);
        _tile_loadd(0, c.row, EMULATED_BYTES);
        _tile_loadd(1, a.row, EMULATED_BYTES);
        _tile_loadd(2, b.row, EMULATED_BYTES);
        _tile_dpbf16ps(0, 1, 2);
        _tile_stored(0, c.row, EMULATED_BYTES);
        for (int r = 0; r < 16; r++)
            for (int n = 0; n < 16; n++) different += !same(result(&c, r, n), result(&wanted, r, n));
    }
    _tile_release();
    tap_ok(different == 0, "TDPBF16PS of numbers 2^%d to 2^%d%s: of %d, %ld differ from the emulation", low, high,
           specials ? ", infinities and NaNs among them" : "", TRIALS * 256, different);
}

static void bytes_beside_the_instruction(void) {
    static emulated_tile a, b, c, wanted;
    long different = 0;
    for (int trial = 0; trial < TRIALS; trial++) {
        const int rows = 1 + trial % EMULATED_ROWS;
        const int bytes = EMULATED_BYTES >> trial % 3; /* 64, 32, 16 */
        configure(rows, bytes);
        for (int r = 0; r < 16; r++)
            for (int i = 0; i < 64; i++) {
                a.row[r][i] = (unsigned char)random_bits(), b.row[r][i] = (unsigned char)random_bits();
                c.row[r][i] = (unsigned char)random_bits();
            }
        wanted = c;
        emulated_multiply_bytes(&wanted, rows, bytes, &a, &b);
        _tile_loadd(0, c.row, EMULATED_BYTES);
        _tile_loadd(1, a.row, EMULATED_BYTES);
        _tile_loadd(2, b.row, EMULATED_BYTES);
        _tile_dpbsud(0, 1, 2);
        _tile_stored(0, c.row, EMULATED_BYTES);
        different += memcmp(&c, &wanted, sizeof c) != 0;
    }
    _tile_release();
    tap_ok(different == 0, "TDPBSUD of all bytes: of %d tiles, %ld differ from the emulation", TRIALS, different);
}
#endif

int main(void) {
    worked_by_hand();
#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)
    if (rapt_isa_usable("amx", NULL, 0) == RAPT_OK) {
        beside_the_instruction(-1, 1, false);
        beside_the_instruction(-10, 10, false);
        beside_the_instruction(-30, 30, false);
        beside_the_instruction(-56, -50, false);
        beside_the_instruction(100, 127, true);
        bytes_beside_the_instruction();
        return tap_done();
    }
#endif
    tap_ok(true, "TDPBF16PS and TDPBSUD beside their emulation # SKIP this machine has no AMX");
    return tap_done();
}
