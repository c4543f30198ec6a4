/* SPDX-License-Identifier: Apache-2.0 */
/* The constants that an ISA file may tune: what each means, its bounds, which are checked here, and a default for each that may
 * be left out. Included by attend.h, after the ISA file's own. */

/* Those of rapt_tuning are a kernel's own numbers, which a caller may replace. Of some there are arrays on the stack, which have
 * room for this many; of rows of a head, a matrix unit's tile has as many. */
enum { RAPT_MOST_FEW_ROWS = 16, RAPT_MOST_JOINED_ROWS = 64, RAPT_MOST_PASS_TILES = 32, RAPT_MOST_FEW_TOKENS = 32 };

/* ---- The vector ----------------------------------------------------------------------------------------------------------- */

/* RAPT_VL: lanes of a vector. The partial sums of the canonical order are whole vectors. */
_Static_assert(RAPT_VL >= 1 && RAPT_VL <= RAPT_PARTIAL_SUMS && RAPT_PARTIAL_SUMS % RAPT_VL == 0, "RAPT_VL divides 16");
_Static_assert(sizeof(vf) == RAPT_VL * sizeof(float) && sizeof(vi) == RAPT_VL * sizeof(int32_t), "vf and vi have RAPT_VL lanes");

/* RAPT_DOT: elements of a lane in integer arithmetic, see dots.h. RAPT_DOT_SIGNED is 1 where those of both operands of i_dot are
 * signed. */
#ifndef RAPT_DOT_SIGNED
#define RAPT_DOT_SIGNED 0
#endif
_Static_assert(RAPT_DOT == 2 || RAPT_DOT == 4, "a lane has 2 elements of 16 bits or 4 of 8");
_Static_assert(RAPT_DOT_SIGNED == 0 || RAPT_DOT_SIGNED == 1, "no or yes");
_Static_assert(!RAPT_DOT_SIGNED || RAPT_DOT == 4, "elements of 16 bits are always signed");

/* RAPT_NATIVE_F16 is 1 where the ISA file has the words of type_f16.h, because the CPU converts f16. */
#ifndef RAPT_NATIVE_F16
#define RAPT_NATIVE_F16 0
#endif
_Static_assert(RAPT_NATIVE_F16 == 0 || RAPT_NATIVE_F16 == 1, "no or yes");

/* RAPT_BYTE_TABLES is 1 where the ISA file has the words i_xor, i_look_up and i_odd_bytes, because the CPU looks bytes up in a
 * vector. */
#ifndef RAPT_BYTE_TABLES
#define RAPT_BYTE_TABLES 0
#endif
_Static_assert(RAPT_BYTE_TABLES == 0 || (RAPT_BYTE_TABLES == 1 && RAPT_VL > 1), "no, or yes with vectors");

/* ---- Register tiles (tile.h) ---------------------------------------------------------------------------------------------- */

/* RAPT_TILE_VECTORS: vectors of query rows in a full tile. RAPT_PANEL: vectors of the widest panel of V that is read in place.
 * RAPT_ROWS_1, _2, _3, _4, _8: rows of a register tile for panels of that number of vectors. The accumulators, a vector of B for
 * each vector of the panel and one of A must fit into the registers. */
_Static_assert(RAPT_TILE_VECTORS >= 1 && RAPT_TILE_VECTORS <= 4, "tiles have 1 to 4 vectors");
_Static_assert(RAPT_PANEL == 2 || RAPT_PANEL == 4 || RAPT_PANEL == 8, "panels have 2, 4 or 8 vectors at most");
_Static_assert(RAPT_ROWS_1 >= 1 && RAPT_ROWS_1 <= 16 && RAPT_ROWS_2 >= 1 && RAPT_ROWS_2 <= 16 && RAPT_ROWS_3 >= 1 &&
                   RAPT_ROWS_3 * 3 <= 32 && RAPT_ROWS_4 >= 1 && RAPT_ROWS_4 * 4 <= 32 && RAPT_ROWS_8 >= 1 &&
                   RAPT_ROWS_8 * 8 <= 32,
               "a register tile has at most 16 rows and 32 accumulators");

/* RAPT_STAGED_BROADCAST is 1 where staged blocks of K and V hold each element RAPT_VL times, since no load broadcasts. */
#ifndef RAPT_STAGED_BROADCAST
#define RAPT_STAGED_BROADCAST 0
#endif
_Static_assert(RAPT_STAGED_BROADCAST == 0 || RAPT_STAGED_BROADCAST == 1, "no or yes");

/* RAPT_FMA_BY_LANE is 1 where there is the word v_fma_lane(a, lane, b, c) = a[lane] * b + c: the product reads A by whole
 * vectors, of which one for each row of a register tile must fit into the registers, too. */
#ifndef RAPT_FMA_BY_LANE
#define RAPT_FMA_BY_LANE 0
#endif
_Static_assert(RAPT_FMA_BY_LANE == 0 || RAPT_FMA_BY_LANE == 1, "no or yes");
_Static_assert(!RAPT_FMA_BY_LANE || RAPT_VL >= 4, "the rows of a register tile are at most 4 vectors");
_Static_assert(!RAPT_FMA_BY_LANE || !RAPT_STAGED_BROADCAST, "either a lane is broadcast by the product, or it is staged so");

/* RAPT_ROW_PADDING: floats between staged rows beyond those that hold elements: a cache line, or rows whose length is a power of
 * two would compete for a few cache sets when a product walks down their columns. */
#ifndef RAPT_ROW_PADDING
#define RAPT_ROW_PADDING 16
#endif
_Static_assert(RAPT_ROW_PADDING >= 0 && RAPT_ROW_PADDING % 16 == 0, "staged rows start with a cache line");

/* ---- Few rows: keys in lanes (keys_in_lanes.h) ---------------------------------------------------------------------------- */

/* RAPT_FEW_ROWS: up to this many rows of a key/value head, keys lie in lanes. */
_Static_assert(RAPT_FEW_ROWS >= 1 && RAPT_FEW_ROWS <= RAPT_MOST_FEW_ROWS, "the rows of a head are described on the stack");

/* RAPT_LEFT_OVER: so do the last rows of a task with queries in lanes, where they would fill only this many lanes of a vector or
 * fewer. One less than half a vector brings a factor of 1.13 (docs/performance.md). */
#ifndef RAPT_LEFT_OVER
#define RAPT_LEFT_OVER (RAPT_VL / 2 - 1)
#endif
_Static_assert(RAPT_LEFT_OVER < RAPT_VL, "a full vector is not left over");

/* RAPT_JOINED_BYTES: where the heads of a token lie side by side, one head's rows are small pieces far apart, which memory reads
 * at less than half of its speed: as many heads are taken together as make pieces of this many bytes, a page. RAPT_JOINED_ROWS:
 * rows of all these heads at most, whose scores, 2 KiB each, take half of the smallest L2 cache that there is, 256 KiB, so the
 * size of this one does not matter. Measured on an AMD EPYC (Zen 4), see docs/performance.md. */
#ifndef RAPT_JOINED_BYTES
#define RAPT_JOINED_BYTES 4096
#endif
#ifndef RAPT_JOINED_ROWS
#define RAPT_JOINED_ROWS 64
#endif
_Static_assert(RAPT_JOINED_BYTES >= 1 && RAPT_JOINED_ROWS >= RAPT_FEW_ROWS && RAPT_JOINED_ROWS <= RAPT_MOST_JOINED_ROWS,
               "a head fits into a task");
_Static_assert(RAPT_VL - 1 <= RAPT_MOST_FEW_ROWS, "so do the rows that are left over");

/* RAPT_KEY_CHAINS: accumulators of a tile of scores, which so has at most that many rows; with RAPT_VL transposed vectors of K
 * they must fit into the registers. */
_Static_assert(RAPT_KEY_CHAINS >= 4 && RAPT_KEY_CHAINS <= 8, "4 to 8 accumulators");

/* RAPT_KEYS_AHEAD, RAPT_VALUES_AHEAD: rows by which K and V are prefetched, since few rows are bound by memory; V by
 * RAPT_BF16_VALUES_AHEAD in bf16 arithmetic, two steps: on an AMD EPYC (Zen 4) 16 rows are slower by a third, 32 by 3 to 6 %.
 * Keys of four bytes an element are prefetched once more, by RAPT_KEYS_FURTHER_AHEAD rows, and those of a byte or less by
 * RAPT_BYTE_KEYS_AHEAD and half of it. Addresses of keys are known up to the end of the next chunk. */
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

/* RAPT_VALUES_DEPTH: rows of V at a time, where a panel does not take them whole: of f32, and of narrower types, unless heads
 * take turns, two or four times as many (values_depth in keys_in_lanes.h). */
_Static_assert(RAPT_VALUES_DEPTH >= 1 && RAPT_VALUES_DEPTH <= RAPT_BLOCK, "rows of V come from one block");

/* RAPT_SQUARE_ROWS: from this many rows on, K is transposed while it is loaded, with the words v_load_quads and
 * v_transpose_quads; 0: never. */
#ifndef RAPT_SQUARE_ROWS
#define RAPT_SQUARE_ROWS 0
#endif
_Static_assert(RAPT_SQUARE_ROWS >= 0 && (RAPT_SQUARE_ROWS == 0 || RAPT_VL % 4 == 0), "squares are of 4 x 4 lanes");

/* RAPT_CONVERTED_ROWS: up to this many rows, K and V of types that not any tensor can have are converted on the way into
 * registers; for more rows, and always where it is 0, to a copy first. */
#ifndef RAPT_CONVERTED_ROWS
#define RAPT_CONVERTED_ROWS 0
#endif
_Static_assert(RAPT_CONVERTED_ROWS == 0 || (RAPT_CONVERTED_ROWS >= 2 && RAPT_CONVERTED_ROWS <= 4),
               "0, or the 2 to 4 rows of a register tile");
_Static_assert(RAPT_CONVERTED_ROWS == 0 || 4 * RAPT_VL % 32 == 0, "panels of 4 vectors are whole groups of 32 channels");

/* RAPT_FEW_DOTS is 1 where few rows have integer arithmetic of their own (few_dots.h), with the words i_xor, i_store_u8,
 * i_load_quads, i_sum_within and i_sum_across. */
#ifndef RAPT_FEW_DOTS
#define RAPT_FEW_DOTS 0
#endif
_Static_assert(RAPT_FEW_DOTS == 0 || RAPT_FEW_DOTS == 1, "no or yes");
_Static_assert(!RAPT_FEW_DOTS || (RAPT_DOT == 4 && !RAPT_DOT_SIGNED && RAPT_VL == 16), "few_dots.h is for 16 lanes of 4 bytes");

/* ---- Tasks ---------------------------------------------------------------------------------------------------------------- */

/* RAPT_THREAD_TASKS: tasks that a plan cuts for each thread, several because they are not equally long; RAPT_RAGGED_TASKS: the
 * same where the entries of a batch differ in length. RAPT_STATES_PART: tasks share the keys of a head only where the states that
 * this leaves take at most this part, an eighth, of the bytes of K and V. */
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
               "every thread has a task, and numbers of them do not overflow");
_Static_assert(RAPT_STATES_PART >= 1, "a part of K and V");

/* ---- Caches --------------------------------------------------------------------------------------------------------------- */

/* The size of the L2 cache is rapt_l2_bytes' (dispatch/cpu/select.c): the CPU's, or 1 MiB where it does not tell programs, as on
 * AArch64. */

/* RAPT_PASS_TILES: query tiles that share a pass over K and V, which are staged once for all of them, as long as the scratch of
 * the pass takes no more than RAPT_PASS_L2 sixteenths of the L2 cache. Half of 1 MiB is best on an AMD EPYC (Zen 4), where a
 * quarter is slower by up to 7 %; see docs/performance.md. */
#ifndef RAPT_PASS_TILES
#define RAPT_PASS_TILES 32
#endif
#ifndef RAPT_PASS_L2
#define RAPT_PASS_L2 8
#endif
_Static_assert(RAPT_PASS_TILES >= 1 && RAPT_PASS_TILES <= RAPT_MOST_PASS_TILES, "tiles of a pass are described on the stack");
_Static_assert(RAPT_PASS_L2 >= 1 && RAPT_PASS_L2 <= 16, "a part of the L2 cache, in sixteenths");

/* ---- Linear layers (linear.h) --------------------------------------------------------------------------------------------- */

/* RAPT_FEW_TOKENS: up to this many tokens, weights are multiplied as they lie in memory. RAPT_LINEAR_TOKENS: the most tokens of a
 * register tile then. RAPT_LINEAR_SUMS: its tokens times its rows. */
_Static_assert(RAPT_FEW_TOKENS >= 1 && RAPT_FEW_TOKENS <= RAPT_MOST_FEW_TOKENS, "the ends of all few tokens are on the stack");
_Static_assert(RAPT_LINEAR_TOKENS == 1 || RAPT_LINEAR_TOKENS == 2 || RAPT_LINEAR_TOKENS == 4 || RAPT_LINEAR_TOKENS == 8,
               "a power of two up to 8");
_Static_assert(RAPT_LINEAR_SUMS >= RAPT_LINEAR_TOKENS && RAPT_LINEAR_SUMS * (RAPT_PARTIAL_SUMS / RAPT_VL) <= 16,
               "a register tile has at most 16 accumulators");

/* RAPT_BF16_FEW_TOKENS: the same as RAPT_FEW_TOKENS in bf16 arithmetic, where each four tokens transpose the weights once.
 * Chosen on Emerald Rapids, for tiles. */
#ifndef RAPT_BF16_FEW_TOKENS
#define RAPT_BF16_FEW_TOKENS (RAPT_FEW_TOKENS < 8 ? RAPT_FEW_TOKENS : 8)
#endif
_Static_assert(RAPT_BF16_FEW_TOKENS >= 0 && RAPT_BF16_FEW_TOKENS <= RAPT_MOST_FEW_TOKENS, "as many as have room");

/* RAPT_LONG_ROW: bytes of a row of weights from which on several at once are read. They are as many streams for the hardware's
 * prefetching, which it follows where a row is a page or more; shorter ones are one stream, row after row, unless the tile is
 * full of tokens and bound by arithmetic. RAPT_LONG_AHEAD, RAPT_SHORT_AHEAD: bytes by which the weights of such rows, and of
 * shorter ones, are prefetched. Measured on an AMD EPYC (Zen 4), see docs/performance.md. */
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

/* RAPT_STAGING_OUTPUTS: threads share tokens by whole tiles, and each stages its own, which takes the time of this many outputs:
 * on an AMD EPYC (Zen 4) 9 to 40, see docs/performance.md. */
#ifndef RAPT_STAGING_OUTPUTS
#define RAPT_STAGING_OUTPUTS 16
#endif
_Static_assert(RAPT_STAGING_OUTPUTS >= 0, "a time is not negative");

/* RAPT_WEIGHTS_L2: sixteenths of the L2 cache that weights are staged in at a time, beside the products; at most RAPT_STAGED_ROWS
 * rows of them. RAPT_STAGED_FLOATS: floats of tokens that are staged at a time, which the L3 cache may hold, in at most
 * RAPT_LINEAR_TILES tiles. Measured on an AMD EPYC (Zen 4), see docs/performance.md. */
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

/* RAPT_NORM_HELD: channels of a token that are held as f32. A token of up to this many is converted once, and not for each mean
 * and for the result again. RAPT_NORM_STEP: channels that are gone through at a time, so that memory is waited for while sums
 * are. */
#ifndef RAPT_NORM_HELD
#define RAPT_NORM_HELD 8192
#endif
#ifndef RAPT_NORM_STEP
#define RAPT_NORM_STEP 512
#endif
_Static_assert(RAPT_NORM_STEP % RAPT_PARTIAL_SUMS == 0 && RAPT_NORM_HELD % RAPT_NORM_STEP == 0 && RAPT_NORM_HELD <= 1 << 16,
               "whole steps of whole sums, on the stack");
