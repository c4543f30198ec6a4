/* SPDX-License-Identifier: Apache-2.0 */
/* The constants that an ISA file may tune: what each means, a default for those that may be left out, and a check of its bounds.
 * Included by attend.h, after the ISA file's own. */
#include "types/types.h"

/* Upper bounds of constants that a caller may replace by rapt_tuning and that size arrays on the stack. That of RAPT_FEW_ROWS is
 * also the number of rows of a matrix unit's tile. */
enum { RAPT_MOST_FEW_ROWS = 16, RAPT_MOST_JOINED_ROWS = 64, RAPT_MOST_PASS_TILES = 32, RAPT_MOST_FEW_TOKENS = 32 };

/* ---- The vector ----------------------------------------------------------------------------------------------------------- */

/* RAPT_VL: the lanes of a vector. The partial sums of the canonical order must fill whole vectors. */
_Static_assert(RAPT_VL >= 1 && RAPT_VL <= RAPT_PARTIAL_SUMS && RAPT_PARTIAL_SUMS % RAPT_VL == 0, "RAPT_VL divides 16");
_Static_assert(sizeof(vf) == RAPT_VL * sizeof(float) && sizeof(vi) == RAPT_VL * sizeof(int32_t), "vf and vi have RAPT_VL lanes");

/* RAPT_DOT: the elements of a lane in integer arithmetic, see queries_int8.h. RAPT_DOT_SIGNED: 1 if both operands of i_dot have
 * signed elements. */
#ifndef RAPT_DOT_SIGNED
#define RAPT_DOT_SIGNED 0
#endif
_Static_assert(RAPT_DOT == 2 || RAPT_DOT == 4, "a lane has 2 elements of 16 bits or 4 of 8");
_Static_assert(RAPT_DOT_SIGNED == 0 || RAPT_DOT_SIGNED == 1, "no or yes");
_Static_assert(!RAPT_DOT_SIGNED || RAPT_DOT == 4, "elements of 16 bits are always signed");

/* RAPT_NATIVE_F16: 1 if the CPU converts f16, and the ISA file has words for that (attend.h). */
#ifndef RAPT_NATIVE_F16
#define RAPT_NATIVE_F16 0
#endif
_Static_assert(RAPT_NATIVE_F16 == 0 || RAPT_NATIVE_F16 == 1, "no or yes");

/* RAPT_BYTE_TABLES: 1 if the CPU looks bytes up in a vector, and the ISA file has the words i_xor, i_look_up and i_odd_bytes. */
#ifndef RAPT_BYTE_TABLES
#define RAPT_BYTE_TABLES 0
#endif
_Static_assert(RAPT_BYTE_TABLES == 0 || (RAPT_BYTE_TABLES == 1 && RAPT_VL > 1), "no, or yes with vectors");

/* ---- Register tiles (tile.h) ---------------------------------------------------------------------------------------------- */

/* RAPT_TILE_VECTORS: the vectors of query rows in a full query tile. RAPT_PANEL: the vectors of the widest panel of V that is
 * read in place. RAPT_ROWS_1, _2, _3, _4, _8: the rows of a register tile in panels of 1, 2, 3, 4 and 8 vectors. Its
 * accumulators, a vector of B for each vector of the panel and one of A must fit into the registers. */
_Static_assert(RAPT_TILE_VECTORS >= 1 && RAPT_TILE_VECTORS <= 4, "tiles have 1 to 4 vectors");
_Static_assert(RAPT_PANEL == 2 || RAPT_PANEL == 4 || RAPT_PANEL == 8, "panels have 2, 4 or 8 vectors at most");
_Static_assert(RAPT_ROWS_1 >= 1 && RAPT_ROWS_1 <= 16 && RAPT_ROWS_2 >= 1 && RAPT_ROWS_2 <= 16 && RAPT_ROWS_3 >= 1 &&
                   RAPT_ROWS_3 * 3 <= 32 && RAPT_ROWS_4 >= 1 && RAPT_ROWS_4 * 4 <= 32 && RAPT_ROWS_8 >= 1 &&
                   RAPT_ROWS_8 * 8 <= 32,
               "a register tile has at most 16 rows and 32 accumulators");

/* RAPT_STAGED_BROADCAST: 1 if the CPU has no load that broadcasts, so that staged blocks of K and V hold each element RAPT_VL
 * times. */
#ifndef RAPT_STAGED_BROADCAST
#define RAPT_STAGED_BROADCAST 0
#endif
_Static_assert(RAPT_STAGED_BROADCAST == 0 || RAPT_STAGED_BROADCAST == 1, "no or yes");

/* RAPT_FMA_BY_LANE: 1 if the ISA file has the word v_fma_lane. The tile product then loads whole vectors of A, and one for each
 * row of a register tile must fit into the registers, too. */
#ifndef RAPT_FMA_BY_LANE
#define RAPT_FMA_BY_LANE 0
#endif
_Static_assert(RAPT_FMA_BY_LANE == 0 || RAPT_FMA_BY_LANE == 1, "no or yes");
_Static_assert(!RAPT_FMA_BY_LANE || RAPT_VL >= 4, "the rows of a register tile are at most 4 vectors");
_Static_assert(!RAPT_FMA_BY_LANE || !RAPT_STAGED_BROADCAST, "either the product broadcasts a lane, or staging does");

/* RAPT_BF16_FMA: 1 if the ISA file has the words v_fma_lower and v_fma_upper. Few rows in bf16 arithmetic then multiply K and V
 * without conversion. */
#ifndef RAPT_BF16_FMA
#define RAPT_BF16_FMA 0
#endif
_Static_assert(RAPT_BF16_FMA == 0 || RAPT_BF16_FMA == 1, "no or yes");

/* RAPT_EXACT_PAIRS: 1 if variants of the kernel may bring a product of pairs for exact arithmetic (bf16/exact_pairs.h). */
#ifndef RAPT_EXACT_PAIRS
#define RAPT_EXACT_PAIRS 0
#endif
_Static_assert(RAPT_EXACT_PAIRS == 0 || (RAPT_EXACT_PAIRS == 1 && !RAPT_STAGED_BROADCAST), "no, or yes without copies");

/* RAPT_ROW_PADDING: unused floats between staged rows. One cache line is enough to keep rows whose length is a power of two from
 * competing for a few cache sets when a product walks down their columns. */
#ifndef RAPT_ROW_PADDING
#define RAPT_ROW_PADDING 16
#endif
_Static_assert(RAPT_ROW_PADDING >= 0 && RAPT_ROW_PADDING % 16 == 0, "staged rows start with a cache line");

/* ---- Few rows: keys in lanes (keys_in_lanes.h) ---------------------------------------------------------------------------- */

/* RAPT_FEW_ROWS: up to this many rows of a key/value head have keys in lanes. */
_Static_assert(RAPT_FEW_ROWS >= 1 && RAPT_FEW_ROWS <= RAPT_MOST_FEW_ROWS, "the rows of a head are described on the stack");

/* RAPT_LEFT_OVER: the last rows of a task with queries in lanes have keys in lanes if they would fill at most this many lanes of
 * a vector. One less than half a vector is up to 1.13 times as fast as none (docs/performance.md). */
#ifndef RAPT_LEFT_OVER
#define RAPT_LEFT_OVER (RAPT_VL / 2 - 1)
#endif
_Static_assert(RAPT_LEFT_OVER < RAPT_VL, "a full vector is not left over");

/* RAPT_JOINED_BYTES: in token-major caches one head's rows are short pieces, far apart, which are read at less than half the
 * bandwidth. A task takes as many adjacent heads as make this many contiguous bytes, a page. RAPT_JOINED_ROWS: at most this many
 * query rows over all joined heads; their scores (2 KiB a row) then take half of a 256 KiB L2, the smallest there is. Measured on
 * an AMD EPYC (Zen 4), see docs/performance.md. */
#ifndef RAPT_JOINED_BYTES
#define RAPT_JOINED_BYTES 4096
#endif
#ifndef RAPT_JOINED_ROWS
#define RAPT_JOINED_ROWS 64
#endif
_Static_assert(RAPT_JOINED_BYTES >= 1 && RAPT_JOINED_ROWS >= RAPT_FEW_ROWS && RAPT_JOINED_ROWS <= RAPT_MOST_JOINED_ROWS,
               "a head fits into a task");
_Static_assert(RAPT_VL - 1 <= RAPT_MOST_FEW_ROWS, "so do the rows that are left over");

/* RAPT_KEY_CHAINS: the most accumulators, and so the most rows, of a register tile of scores. Together with RAPT_VL transposed
 * vectors of K they must fit into the registers. */
_Static_assert(RAPT_KEY_CHAINS >= 4 && RAPT_KEY_CHAINS <= 8, "4 to 8 accumulators");

/* Prefetch distances, in rows of K and V: with few rows of Q, memory is the bound. Addresses are known up to the end of the next
 * chunk.
 *   RAPT_KEYS_AHEAD          K of two bytes an element and more; in AMX's bf16 arithmetic K of any type; rows of bf16 weights
 *   RAPT_KEYS_FURTHER_AHEAD  K of four bytes an element, which is prefetched at both distances
 *   RAPT_BYTE_KEYS_AHEAD     K of a byte an element and less, which is prefetched at this distance and at half of it
 *   RAPT_VALUES_AHEAD        V of f32; V of 16 bits an element at twice this distance, narrower V at a block (values_ahead)
 *   RAPT_BF16_VALUES_AHEAD   V in bf16 arithmetic: two steps, since on Zen 4 16 rows are slower by a third, 32 by 3 to 6 % */
#ifndef RAPT_BF16_VALUES_AHEAD
#define RAPT_BF16_VALUES_AHEAD 64
#endif
#ifndef RAPT_KEYS_FURTHER_AHEAD
#define RAPT_KEYS_FURTHER_AHEAD (RAPT_KEYS_AHEAD + RAPT_KEYS_AHEAD / 2)
#endif
#ifndef RAPT_BYTE_KEYS_AHEAD
#define RAPT_BYTE_KEYS_AHEAD (4 * RAPT_KEYS_AHEAD)
#endif
_Static_assert(RAPT_KEYS_AHEAD >= 0 && RAPT_KEYS_FURTHER_AHEAD >= RAPT_KEYS_AHEAD &&
                   RAPT_BYTE_KEYS_AHEAD >= RAPT_KEYS_FURTHER_AHEAD && RAPT_BYTE_KEYS_AHEAD <= RAPT_CHUNK,
               "no row beyond the next chunk is prefetched");
_Static_assert(RAPT_VALUES_AHEAD >= 0 && RAPT_VALUES_AHEAD <= RAPT_BLOCK && RAPT_BF16_VALUES_AHEAD >= 0 &&
                   RAPT_BF16_VALUES_AHEAD <= RAPT_BLOCK,
               "no value beyond the next block is prefetched");

/* RAPT_VALUES_DEPTH: rows of V that are added to O at a time, where heads are joined, or P V is computed in several panels or row
 * tiles, because d_v is wider than a panel or there are more rows than a register tile has. values_depth doubles it for 16-bit
 * types and quadruples it for cache types, unless heads are joined. */
_Static_assert(RAPT_VALUES_DEPTH >= 1 && RAPT_VALUES_DEPTH <= RAPT_BLOCK, "rows of V come from one block");

/* RAPT_SQUARE_ROWS: for this many rows of Q or more, K is transposed by 4 x 4 squares while it is loaded, with the words
 * v_load_quads and v_transpose_quads. 0: never. */
#ifndef RAPT_SQUARE_ROWS
#define RAPT_SQUARE_ROWS 0
#endif
_Static_assert(RAPT_SQUARE_ROWS >= 0 && (RAPT_SQUARE_ROWS == 0 || RAPT_VL % 4 == 0), "squares are of 4 x 4 lanes");

/* RAPT_LINEAR_PREFETCH: 1 if, in exact arithmetic, later rows of K and V that lie one after the other are prefetched in this
 * order; 0 if in the order in which their channels are read, like rows that lie apart. Measured with D1 to D7
 * (docs/experiments/decode.md): avx2 gains 1.2 to 1.4 times with f32 on Zen 3; avx512 on Zen 4 loses up to 17 %. */
#ifndef RAPT_LINEAR_PREFETCH
#define RAPT_LINEAR_PREFETCH 0
#endif
_Static_assert(RAPT_LINEAR_PREFETCH == 0 || RAPT_LINEAR_PREFETCH == 1, "no or yes");

/* RAPT_CONVERTED_ROWS: for up to this many rows of Q, cache types are converted on the way into registers; for more rows they are
 * first converted to a copy. 0: always a copy. */
#ifndef RAPT_CONVERTED_ROWS
#define RAPT_CONVERTED_ROWS 0
#endif
_Static_assert(RAPT_CONVERTED_ROWS == 0 || (RAPT_CONVERTED_ROWS >= 2 && RAPT_CONVERTED_ROWS <= 4),
               "0, or the 2 to 4 rows of a register tile");

/* RAPT_DIRECT_TYPES(TYPE) lists the types of K and V that are converted on the way into registers, as types.h lists all. */
#if RAPT_CONVERTED_ROWS
#define RAPT_DIRECT_TYPES(TYPE) RAPT_KV_TYPES(TYPE)
#else
#define RAPT_DIRECT_TYPES(TYPE) RAPT_ELEMENT_TYPES(TYPE)
#endif
_Static_assert(RAPT_CONVERTED_ROWS == 0 || 4 * RAPT_VL % RAPT_MOST_GROUP == 0, "panels of 4 vectors are whole groups");

/* RAPT_FEW_DOTS: 1 if integer arithmetic multiplies integers with keys in lanes (keys_int8.h; else keys_as_f32.h), for which the
 * ISA file has the words i_xor, i_store_u8, i_quads, i_sum_within and i_sum_across. */
#ifndef RAPT_FEW_DOTS
#define RAPT_FEW_DOTS 0
#endif
_Static_assert(RAPT_FEW_DOTS == 0 || RAPT_FEW_DOTS == 1, "no or yes");
_Static_assert(!RAPT_FEW_DOTS || (RAPT_DOT == 4 && !RAPT_DOT_SIGNED && RAPT_VL == 16), "keys_int8.h is for 16 lanes of 4 bytes");

/* RAPT_BYTE_DOTS: 1 if linear layers in integer arithmetic multiply four bytes in a lane though RAPT_DOT is 2, for which the ISA
 * file has the words i_dot_narrow, i_dot_signed and i_sum_pairs. */
#ifndef RAPT_BYTE_DOTS
#define RAPT_BYTE_DOTS 0
#endif
_Static_assert(RAPT_BYTE_DOTS == 0 || (RAPT_BYTE_DOTS == 1 && RAPT_DOT == 2), "no, or instead of 16 bits");

/* RAPT_MATRIX_TOKENS: the tokens that sum_products, replaced by the ISA, multiplies with a sixteen of outputs in a matrix unit,
 * in linear layers in integer arithmetic. 0: there is none. */
#ifndef RAPT_MATRIX_TOKENS
#define RAPT_MATRIX_TOKENS 0
#endif
_Static_assert(RAPT_MATRIX_TOKENS == 0 || RAPT_MATRIX_TOKENS * RAPT_PARTIAL_SUMS / RAPT_VL <= 16, "what UNROLLED can unroll");

/* RAPT_FEW_INTEGER_ROWS: RAPT_FEW_ROWS in integer arithmetic. Without RAPT_FEW_DOTS (keys_as_f32.h), more rows have queries in
 * lanes, where one i_dot multiplies RAPT_DOT channels of a vector of rows, full or not. Measured with 4096 keys of int8 and q8_0
 * (Granite Rapids): with RAPT_DOT 2 avx512 gains up to 8 rows, avx2 up to 4, sse41 up to 2; with 4 avx2_vnni up to 3. The others
 * by their lanes, not measured. */
#ifndef RAPT_FEW_INTEGER_ROWS
#define RAPT_FEW_INTEGER_ROWS (RAPT_FEW_DOTS ? RAPT_FEW_ROWS : RAPT_DOT == 2 ? (RAPT_VL + 1) / 2 : (RAPT_VL * 3 + 7) / 8)
#endif
_Static_assert(RAPT_FEW_INTEGER_ROWS >= 1 && RAPT_FEW_INTEGER_ROWS <= RAPT_JOINED_ROWS &&
                   RAPT_FEW_INTEGER_ROWS <= RAPT_MOST_FEW_ROWS,
               "as those of exact arithmetic");

/* ---- Tasks ---------------------------------------------------------------------------------------------------------------- */

/* RAPT_THREAD_TASKS: the tasks that a plan cuts per thread, several because they are not equally long. RAPT_RAGGED_TASKS:
 * likewise if the entries of a batch differ in length. RAPT_STATES_PART: with keys in lanes, tasks share the keys of a head only
 * if the states that they store take at most 1 / RAPT_STATES_PART of the bytes of K and V. */
#ifndef RAPT_THREAD_TASKS
#define RAPT_THREAD_TASKS 4
#endif
#ifndef RAPT_RAGGED_TASKS
#define RAPT_RAGGED_TASKS 8
#endif
#ifndef RAPT_STATES_PART
#define RAPT_STATES_PART 8
#endif
_Static_assert(RAPT_THREAD_TASKS >= 1 && RAPT_THREAD_TASKS <= 64 && RAPT_RAGGED_TASKS >= 1 && RAPT_RAGGED_TASKS <= 64,
               "every thread has a task, and the number of tasks does not overflow");
_Static_assert(RAPT_STATES_PART >= 1, "a part of K and V");

/* ---- Caches --------------------------------------------------------------------------------------------------------------- */

/* rapt_l2_bytes (dispatch/cpu/select.c) has the size of the L2 cache: the CPU's, or 1 MiB where programs cannot ask, as on
 * AArch64.
 */

/* RAPT_PASS_TILES: the most query tiles that share a pass over K and V, which are staged once for all of them. RAPT_PASS_L2: the
 * scratch of a pass takes at most this many sixteenths of the L2 cache. Half of 1 MiB is best on an AMD EPYC (Zen 4), where a
 * quarter is slower by up to 7 %; see docs/performance.md. */
#ifndef RAPT_PASS_TILES
#define RAPT_PASS_TILES 32
#endif
#ifndef RAPT_PASS_L2
#define RAPT_PASS_L2 8
#endif
_Static_assert(RAPT_PASS_TILES >= 1 && RAPT_PASS_TILES <= RAPT_MOST_PASS_TILES, "tiles of a pass are described on the stack");
_Static_assert(RAPT_PASS_L2 >= 1 && RAPT_PASS_L2 <= 16, "a part of the L2 cache, in sixteenths");

/* RAPT_BF16_PASS_L2_TIMES: rapt_arithmetic.pass_l2_times in bf16 arithmetic, whose passes read the scratch of a tile once for a
 * chunk of keys, and not for a block. */
#ifndef RAPT_BF16_PASS_L2_TIMES
#define RAPT_BF16_PASS_L2_TIMES 1
#endif

/* ---- Linear layers (linear.h) --------------------------------------------------------------------------------------------- */

/* RAPT_FEW_TOKENS: for up to this many tokens, weights are multiplied where they lie in memory. RAPT_LINEAR_TOKENS: the most
 * tokens of a register tile in that case. RAPT_LINEAR_SUMS: its tokens times its rows of weights. */
_Static_assert(RAPT_FEW_TOKENS >= 1 && RAPT_FEW_TOKENS <= RAPT_MOST_FEW_TOKENS, "the ends of all few tokens are on the stack");
_Static_assert(RAPT_LINEAR_TOKENS == 1 || RAPT_LINEAR_TOKENS == 2 || RAPT_LINEAR_TOKENS == 4 || RAPT_LINEAR_TOKENS == 8,
               "a power of two up to 8");
_Static_assert(RAPT_LINEAR_SUMS >= RAPT_LINEAR_TOKENS && RAPT_LINEAR_SUMS * (RAPT_PARTIAL_SUMS / RAPT_VL) <= 16,
               "a register tile has at most 16 accumulators");

/* RAPT_BF16_LEAST_ROWS: rapt_arithmetic.least_rows in bf16 arithmetic. A kernel with a matrix unit sets it. */
#ifndef RAPT_BF16_LEAST_ROWS
#define RAPT_BF16_LEAST_ROWS 1
#endif

/* RAPT_BF16_FEW_TOKENS: RAPT_FEW_TOKENS in bf16 arithmetic, which transposes the weights anew for each four tokens. Chosen on
 * Emerald Rapids, for AMX. */
#ifndef RAPT_BF16_FEW_TOKENS
#define RAPT_BF16_FEW_TOKENS (RAPT_FEW_TOKENS < 8 ? RAPT_FEW_TOKENS : 8)
#endif
_Static_assert(RAPT_BF16_FEW_TOKENS >= 0 && RAPT_BF16_FEW_TOKENS <= RAPT_MOST_FEW_TOKENS, "as many as have room");

/* RAPT_BF16_PACKED_TOKENS: the most tokens for which packed weights of bf16 arithmetic are multiplied with outputs in lanes, and
 * 0 where packed weights serve many tokens only. */
#ifndef RAPT_BF16_PACKED_TOKENS
#define RAPT_BF16_PACKED_TOKENS 0
#endif
_Static_assert(RAPT_BF16_PACKED_TOKENS <= RAPT_MOST_FEW_TOKENS, "as many as have room");

/* RAPT_LONG_ROW: rows of weights of at least this many bytes are read several at a time, as parallel streams, which the hardware
 * prefetcher follows where a row is a page or more. Shorter rows are read one by one, as a single stream, unless the tile is full
 * of tokens or weights take less than two bytes, and arithmetic is the bound. RAPT_LONG_AHEAD, RAPT_SHORT_AHEAD: the prefetch
 * distance of either, in bytes. Measured on an AMD EPYC (Zen 4), see docs/performance.md. */
#ifndef RAPT_LONG_ROW
#define RAPT_LONG_ROW 4096
#endif
#ifndef RAPT_LONG_AHEAD
#define RAPT_LONG_AHEAD 1024
#endif
#ifndef RAPT_SHORT_AHEAD
#define RAPT_SHORT_AHEAD 512
#endif
_Static_assert(RAPT_LONG_ROW >= 1 && RAPT_LONG_AHEAD >= 0 && RAPT_SHORT_AHEAD >= 0, "sizes are not negative");

/* RAPT_STAGING_OUTPUTS: a thread stages a tile of tokens in the time in which it computes this many outputs for it. On an AMD
 * EPYC (Zen 4) 9 to 40, see docs/performance.md. */
#ifndef RAPT_STAGING_OUTPUTS
#define RAPT_STAGING_OUTPUTS 16
#endif
_Static_assert(RAPT_STAGING_OUTPUTS >= 0, "a time is not negative");

/* What a task of many tokens stages at a time. Measured on an AMD EPYC (Zen 4), see docs/performance.md.
 *   RAPT_WEIGHTS_L2     sixteenths of the L2 cache for weights, beside the products
 *   RAPT_STAGED_ROWS    the most rows of weights
 *   RAPT_STAGED_FLOATS  the most floats of tokens, which the L3 cache should hold
 *   RAPT_LINEAR_TILES   the most tiles of tokens */
#ifndef RAPT_WEIGHTS_L2
#define RAPT_WEIGHTS_L2 6
#endif
#ifndef RAPT_STAGED_ROWS
#define RAPT_STAGED_ROWS 240
#endif
#ifndef RAPT_STAGED_FLOATS
#define RAPT_STAGED_FLOATS (1 << 20)
#endif
#ifndef RAPT_LINEAR_TILES
#define RAPT_LINEAR_TILES 8
#endif
_Static_assert(RAPT_WEIGHTS_L2 >= 1 && RAPT_WEIGHTS_L2 <= 16, "a part of the L2 cache, in sixteenths");
_Static_assert(RAPT_STAGED_ROWS >= 48 && RAPT_STAGED_ROWS % 48 == 0 && RAPT_STAGED_ROWS <= 960,
               "multiples of 48, whose addresses are on the stack");
_Static_assert(RAPT_STAGED_FLOATS >= 1 && RAPT_LINEAR_TILES >= 2, "a pass has a tile, also beside a gate");

/* ---- Normalisation (norm.h) ----------------------------------------------------------------------------------------------- */

/* RAPT_NORM_HELD: the channels of a token that are held as f32. A token of at most this many is converted once, instead of once
 * for each mean and once for the result. RAPT_NORM_STEP: the channels that are converted and then summed at a time, so that
 * waiting for memory overlaps with adding. */
#ifndef RAPT_NORM_HELD
#define RAPT_NORM_HELD 8192
#endif
#ifndef RAPT_NORM_STEP
#define RAPT_NORM_STEP 512
#endif
_Static_assert(RAPT_NORM_STEP % RAPT_PARTIAL_SUMS == 0 && RAPT_NORM_HELD % RAPT_NORM_STEP == 0 && RAPT_NORM_HELD <= 1 << 16,
               "whole steps of whole sums, on the stack");
