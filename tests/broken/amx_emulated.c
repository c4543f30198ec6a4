/* SPDX-License-Identifier: Apache-2.0 */
/* The algorithm of kernels/x86/amx.c for every machine: in vectors of plain C, with tiles that are arrays. How they are
 * multiplied was found out by comparing the instruction with it (tests/kernels/amx_semantics.c). */
#include <math.h>

#define RAPT_KERNEL_NAME  amx_emulated
#define RAPT_VL           16
#define RAPT_TILE_VECTORS 4
#define RAPT_KERNEL_FUSED 1
#define BYTES_IN_DOTS
#define RAPT_SQUARE_ROWS 8
#define RAPT_ROWS_1      1
#define RAPT_ROWS_2      1
#define RAPT_ROWS_3      1
#define RAPT_ROWS_4      1
#define RAPT_ROWS_8      1
#include "words.h"

#include "amx_tiles.h"

static _Thread_local emulated_tile numbered[8];
static _Thread_local emulated_shape shapes[8];

/* Outside a task tiles must not be used. */
static emulated_tile *tile_number(int number) {
    if (!emulated_configured()) __builtin_trap();
    return &numbered[number];
}

/* What the instruction wants: as many rows of C as of A, as long as those of B, and of B one for each four bytes of A's. */
static int multiplied_rows(int to, int a, int b) {
    if (shapes[to].rows != shapes[a].rows || shapes[to].bytes != shapes[b].bytes || shapes[a].bytes != shapes[b].rows * 4)
        __builtin_trap();
    return shapes[to].rows;
}

#define t_configure(from)          emulated_set_configured(emulated_configuration(from, shapes))
#define t_release()                emulated_set_configured(false)
#define t_zero(tile)               memset(tile_number(tile), 0, sizeof(emulated_tile))
#define t_load(tile, from, stride) emulated_load(tile_number(tile), shapes[tile], from, stride)
#define t_store(tile, to, stride)  emulated_store(tile_number(tile), shapes[tile], to, stride)
#define t_multiply_bf16(to, a, b)                                                                                                \
    emulated_multiply_bf16(tile_number(to), multiplied_rows(to, a, b), tile_number(a), tile_number(b))
#define t_multiply_bytes(to, a, b)                                                                                               \
    emulated_multiply_bytes(tile_number(to), multiplied_rows(to, a, b), shapes[a].bytes, tile_number(a), tile_number(b))

#include "x86/amx.h"
