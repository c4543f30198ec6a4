/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off: tables. */
/* The algorithm: fused attention with online softmax in the canonical order (docs/order.md). It is written in words, primitive
 * operations on vectors that name no ISA. An ISA file defines the words and constants below, and then includes this file.
 *
 * In all files of kernels/, a parameter declared `const int`, `const bool` or as another const value is a compile-time constant
 * at every call: loops over it unroll, and arrays indexed by such loops stay in registers.
 *
 * Constants are those of check_words.h, and
 *
 *   RAPT_KERNEL_NAME          the kernel's name, as in list.txt
 *   RAPT_KERNEL_NEEDS         the CPU features that it needs, bits RAPT_CPU_*
 *   RAPT_KERNEL_FUSED         true if v_fma and s_fma round once: the rounding class
 *
 * Types
 *
 *   vf                        RAPT_VL lanes of f32
 *   vi                        RAPT_VL lanes of 32-bit integers
 *   vm                        the result of a comparison, a truth value for each lane
 *
 * Words that each ISA defines. They compute lane by lane; addresses need no alignment.
 *
 *   v_load(from)              the RAPT_VL f32 at `from`
 *   v_store(to, x)            writes the lanes of x
 *   v_set1(f)                 f in all lanes
 *   v_broadcast(from)         the 32 bits at `from` in all lanes
 *   v_add(a, b)               a + b
 *   v_sub(a, b)               a - b
 *   v_mul(a, b)               a * b
 *   v_div(a, b)               a / b
 *   v_fma(a, b, c)            a * b + c, rounded once in the fused class and twice in the other
 *   s_fma(a, b, c)            the same for three floats
 *   v_max(a, b)               the greater; NaN if b is NaN, and a or b if only a is NaN
 *   h_max(a)                  the greatest lane, a float; anything if a lane is NaN
 *   v_lt(a, b)                a < b, false for NaN
 *   v_all(m)                  true if m is true in all lanes
 *   v_select(m, yes, no)      `yes` where m is true, else `no`
 *   v_as_int(x)               the bits of x as a vi
 *   v_as_float(x)             the bits of x as a vf
 *   v_from_int(x)             signed integers as f32, rounded to nearest even
 *   v_pow2(x)                 the power of two whose biased exponent is the low 8 bits of x's pattern; bit 8 of it must be 0
 *   v_transpose(a)            transposes a[RAPT_VL] in place: element i of vector r becomes element r of vector i
 *   i_set1(n)                 n in all lanes
 *   i_and(a, b)               a & b
 *   i_or(a, b)                a | b
 *   i_add(a, b)               a + b
 *   i_mul(a, b)               a * b, the lower 32 bits
 *   i_shl(a, n)               a << n; n of all shifts is a constant once the call is inlined
 *   i_shr(a, n)               a >> n, zeros shifted in
 *   i_sar(a, n)               a >> n, signs shifted in
 *   i_gt(a, b)                a > b, signed
 *   i_select(m, yes, no)      `yes` where m is true, else `no`
 *   i_load_u8(from)           RAPT_VL unsigned bytes, widened
 *   i_load_s8(from)           RAPT_VL signed bytes, widened
 *   i_load_u16(from)          RAPT_VL unsigned numbers of 16 bits, widened
 *   i_store_u16(to, x)        writes the low 16 bits of each lane
 *   i_load_u4(from, i)        lane j: number i + j of the 4-bit numbers at `from`, the lower half of each byte first;
 *                             i is a multiple of RAPT_VL
 *   i_bits(x)                 lane j: bit j of the 32-bit integer x
 *   i_dot(acc, b, a)          acc + products of the elements of b and a, RAPT_DOT in a lane (queries_int8.h)
 *   i_fold_smallest_bf16(most, x)
 *                             for each 16-bit half: max(most, (uint16_t)(-2 * x)). Folds bf16 numbers so that has_subthreshold
 *                             (bf16.h) can tell afterwards whether a nonzero one below 2^-56 was among them.
 *
 * Words for RAPT_BYTE_TABLES
 *
 *   i_xor(a, b)               a ^ b
 *   i_look_up(table, x)       for each byte x, 0 to 127: table[x] of 16 bytes, or 0 if x > 15
 *   i_odd_bytes(odd, even)    for each 16-bit half: the upper byte of `odd` and the lower byte of `even`
 *
 * Words for RAPT_FEW_DOTS
 *
 *   i_xor(a, b)               a ^ b
 *   i_store_u8(to, x)         writes the low byte of each lane
 *   i_quads(out, x)           lane i % RAPT_VL of out[i / RAPT_VL] holds byte i of each of the four vectors x
 *   i_sum_within(x)           lane 4q + j: the sum of quarter q of x[j], for four vectors
 *   i_sum_across(x)           lane 4q + j: the sum over the quarters of x[q] of their lane j, for four vectors
 *
 * Words for RAPT_BYTE_DOTS. Lanes have four bytes, a's with a sign, of which none is -128
 *
 *   i_dot_narrow(acc, b, a)   acc + products of the unsigned bytes of b and a, pairs of them in halves of 16 bits; halves that
 *                             leave the range of int16_t may have any value
 *   i_dot_signed(acc, b, a)   acc + products of the signed bytes of b and a, four of them
 *   i_sum_pairs(x)            the sum of the two halves of each lane, signed integers of 16 bits
 *
 * Words for RAPT_SQUARE_ROWS
 *
 *   v_load_quads(rows, offset)
 *                             lanes 4i to 4i + 3: the f32 at rows[4i] + offset
 *   v_transpose_quads(x)      transposes x[4] in place, each four lanes by themselves: as v_transpose for vectors of four lanes
 *
 * Word for RAPT_FMA_BY_LANE
 *
 *   v_fma_lane(a, lane, b, c) a[lane] * b + c
 *
 * Words for RAPT_BF16_FMA
 *
 *   v_fma_lower(a, n, b, c)   a[n] times the bf16 in the lower half of each lane of b, + c, rounded once; a has RAPT_VL * 2 bf16
 *   v_fma_upper(a, n, b, c)   the same by the upper halves
 *
 * Words for RAPT_NATIVE_F16
 *
 *   v_from_f16(x)             the f16 in the low half of each lane as f32
 *   v_load_f16(from)          RAPT_VL f16 as f32
 *   v_load_f16_high(from)     RAPT_VL bytes, the upper halves of f16 numbers whose lower halves are 0, as f32
 *   v_broadcast_f16(from)     the f16 at `from` as f32 in all lanes
 *   v_store_f16(to, x)        writes x as f16, rounded to nearest even
 *   Without RAPT_NATIVE_F16, type_f16.h converts, which takes
 *   i_sub(a, b)               a - b
 *
 * Functions that an ISA may replace, with the same bits, each by itself where nothing else is said. It defines the name as itself
 * before it includes this file (#define tile_product tile_product), and the function after that, where all types and the other
 * functions are known. Each is declared, with what it does, where a comment says Replaceable. What only the replaced function
 * used is then left out.
 *
 *   v_load_part         columns.h            part of a vector
 *   v_last_lanes        stage.h              the last lanes of a vector, moved to its beginning
 *   tile_product        tile.h               C = A B in f32, queries or tokens in lanes, in scratch: for a matrix unit of f32
 *   tile                tile.h               the register tile of tile_product, and of V that is read where it lies
 *   dot_product         queries_int8.h       C = A B in integers, queries in lanes: for a matrix unit of bytes
 *   store_transposed    stage.h              a square of Q, short rows of K, biases, tokens or weights, converted and transposed
 *   weigh_vectors       queries_in_lanes.h   turns scores of a query tile into weights
 *   emit_tile           queries_in_lanes.h   ends a query tile: writes O and LSE, or states
 *   score_tile          keys_in_lanes.h      scores of few rows
 *   linear_tile         linear.h             products of few tokens
 *   multiply_part       linear.h             products of many tokens
 *   begin_task          attend.h             prepares a matrix unit's state before a task that computes products
 *   end_task            attend.h             releases it; the caller's function of logits is called without it
 *   store_bf16_factors  bf16.h               stores two vectors rounded to bf16
 *
 *   In bf16 arithmetic with queries in lanes, all together, for a matrix unit or an instruction of bf16:
 *   bf16_key_floats     bf16.h               scratch for the keys of a chunk
 *   bf16_value_floats   bf16.h               scratch for its values
 *   pack_bf16_queries   bf16.h               packs rows of Q
 *   pack_bf16_query_rows bf16.h              packs rows of Q that are bf16
 *   stage_bf16_keys     bf16_queries.h       stages rows of K
 *   stage_bf16_values   bf16_queries.h       stages rows of V
 *   score_bf16          bf16_queries.h       computes scores
 *   advance_bf16        bf16_queries.h       computes weights, and adds P V
 *
 *   In bf16 arithmetic with keys in lanes; those that share a layout together: pack_bf16_row and score_bf16_tile, pack_bf16_rows
 *   and score_bf16_rows, add_bf16_step and end_bf16_rows, and start_bf16_rows if there is one:
 *   bf16_scratch_floats bf16.h               scratch for few rows
 *   pack_bf16_row       bf16_rows.h          packs a row of Q, or a token, for score_bf16_tile
 *   pack_bf16_rows      bf16_rows.h          packs rows of Q
 *   score_bf16_tile     bf16_rows.h          computes scores of a vector of keys, or of rows of weights
 *   score_bf16_rows     bf16_rows.h          computes scores of the rows of a head
 *   start_bf16_rows     bf16_rows.h          prepares for the values of a chunk
 *   add_bf16_step       bf16_rows.h          adds P V for a step of keys
 *   end_bf16_rows       bf16_rows.h          leaves O with its channels in order
 *
 *   In linear layers in bf16 arithmetic, all together:
 *   bf16_weight_floats  bf16_linear.h        scratch for a part of the weights
 *   stage_bf16_weights  bf16_linear.h        stages rows of weights
 *   multiply_bf16_part  bf16_linear.h        products of many tokens
 *   bf16_part_prefetches bf16_linear.h       how often multiply_bf16_part prefetches from its queue
 *
 *   In linear layers in bf16 arithmetic, of few tokens by packed weights, both together and with RAPT_BF16_PACKED_TOKENS:
 *   place_token_for_packed bf16_linear.h     places one of few tokens
 *   sum_packed_bf16_rows bf16_linear.h       sums of few tokens by packed weights
 *
 *   In linear layers in integer arithmetic, both together unless arrange_dwords stays as it is:
 *   arrange_dwords      int8_linear.h        arranges weights that are staged
 *   sum_products        int8_linear.h        sums of products of a few tokens, or of as many as a matrix unit takes */
/* clang-format on */
#include <float.h>
#include <math.h>
#include <string.h>

#define RAPT_PASTE2(a, b) a##b
#define RAPT_PASTE(a, b)  RAPT_PASTE2(a, b)
#define RAPT_STRING2(a)   #a
#define RAPT_STRING(a)    RAPT_STRING2(a)

/* RAPT_ARITH is the arithmetic of this object: exact, int8 or bf16. A kernel is compiled once for each, so that a variant of an
 * ISA compiles only the arithmetics that it changes, and inherits the others. */
#ifndef RAPT_ARITH
#define RAPT_ARITH exact
#endif
#define RAPT_IS_exact 0
#define RAPT_IS_int8  1
#define RAPT_IS_bf16  2
enum {
    INTEGER = RAPT_PASTE(RAPT_IS_, RAPT_ARITH) == RAPT_IS_int8,
    BF16 = RAPT_PASTE(RAPT_IS_, RAPT_ARITH) == RAPT_IS_bf16,
};

#include "check_words.h"

/* With one lane, gcc would vectorise the loops around the words: exact arithmetic gets 5 % slower and larger by it, and where
 * products are rounded once, bf16 only larger (56 KB in all; P1, P2, D1 on an AMD EPYC, Zen 4). int8, and bf16 where products are
 * rounded twice, get faster. */
#if RAPT_VL == 1 && !defined(__clang__) && RAPT_PASTE(RAPT_IS_, RAPT_ARITH) != RAPT_IS_int8 &&                                   \
    (RAPT_PASTE(RAPT_IS_, RAPT_ARITH) == RAPT_IS_exact || RAPT_KERNEL_FUSED)
#pragma GCC optimize("no-tree-loop-vectorize")
#endif

/* Prepares what a matrix unit needs, before each task that computes products, of attention or of a linear layer. Replaceable. */
static RAPT_INLINE void begin_task(bool linear);
#ifndef begin_task
static RAPT_INLINE void begin_task(bool linear) { (void)linear; }
#endif

/* Releases what begin_task has prepared, after the task. Replaceable. */
static RAPT_INLINE void end_task(void);
#ifndef end_task
static RAPT_INLINE void end_task(void) {}
#endif

/* Prefetches the cache line at from + offset. A prefetch is only a hint, so there need be no memory; the sum is one of integers
 * because that of a pointer would be undefined beyond the tensor's end. */
static RAPT_INLINE void prefetch(const char *from, size_t offset) {
    __builtin_prefetch((const void *)((uintptr_t)from + offset), 0, 2);
}

/* Prefetches the cache lines of a row of so many bytes, which begins at from + offset. */
static RAPT_INLINE void prefetch_row(const char *from, size_t offset, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) prefetch(from, offset + i);
}

/* How many copies of each element a staged block of K and V holds. Where the ISA has no load that broadcasts, RAPT_VL copies make
 * a broadcast a plain load. */
#if RAPT_STAGED_BROADCAST
enum { COPIES = RAPT_VL };
#else
enum { COPIES = 1 };
#endif

/* Returns the staged element at `from` in all lanes. */
static inline vf v_staged(const void *from) { return COPIES > 1 ? v_load(from) : v_broadcast(from); }

#include "parts/exp.h"
#include "parts/stage.h"
#include "parts/tile.h"

enum {
    TILE_ROWS = RAPT_TILE_VECTORS * RAPT_VL,
    CHUNK_BLOCKS = RAPT_CHUNK / RAPT_BLOCK,
    SUM_VECTORS = RAPT_PARTIAL_SUMS / RAPT_VL,
};

/* Rounds a number of floats up to whole cache lines. */
static inline size_t padded(size_t n) { return (n + 15) / 16 * 16; }

/* Returns the address of the next `floats` floats of a scratch memory, whose first *used floats are in use, and adds them to
 * *used, rounded up to whole cache lines. With null memory it only counts them, and returns null. */
static float *carve(float *memory, size_t *used, size_t floats) {
    float *carved = memory ? memory + *used : NULL;
    *used += padded(floats);
    return carved;
}

/* Returns the weight of a score from its difference to the maximum that is subtracted. */
static inline vf v_exp2_of(const rapt_problem *p, vf difference) {
    return v_exp2(difference, v_set1(p->exponent), v_set1(p->least));
}

/* Returns the number to subtract from scores whose maximum is m. The maximum of a row without keys is -inf, and -inf - -inf would
 * be NaN. */
static inline vf finite_max(vf m) { return v_max(v_set1(-FLT_MAX), m); }

/* A row of a task: its token, and its query head, counted from the first one of the task. */
typedef struct row_cursor {
    int64_t token, head;
} row_cursor;

/* Returns row number `row` of the task's key/value head kv_head. */
static inline row_cursor row_at(const rapt_task *t, int kv_head, int64_t row) {
    int64_t group = t->problem->group;
    return (row_cursor){(t->row0 + row) / group, kv_head * group + (t->row0 + row) % group};
}

/* Returns the row after `at`, of the task's first key/value head. */
static inline row_cursor row_next(const rapt_task *t, row_cursor at) {
    return at.head + 1 < t->problem->group ? (row_cursor){at.token, at.head + 1} : (row_cursor){at.token + 1, 0};
}

/* Returns where a row lies in a tensor, in bytes after the row of token 0 and the task's first head. */
static inline size_t row_offset(const rapt_layout *layout, row_cursor at) {
    return (size_t)(at.token * layout->token_stride + at.head * layout->head_stride);
}

/* Part of a block: its keys [first, end), counted from the block's first key; none if first >= end. Usually the keys that some
 * row of a tile or a task attends to. */
typedef struct block {
    int64_t number; /* the number of the block's first key */
    int first, end;
} block;

/* Returns the part that keys [first, end), counted from key 0, have in the block whose first key is `number`. */
static inline block block_of(int64_t number, int64_t first, int64_t end) {
    return (block){number, rapt_max(0, rapt_min(RAPT_BLOCK, first - number)), rapt_min(RAPT_BLOCK, rapt_max(0, end - number))};
}

/* Sets rows[n], from <= n < to, to the address of key or value n of the block; outside [first, end) to that of the nearest one
 * inside. tensor: K or V of the head. */
static void find_rows(const char **rows, const rapt_task *t, const char *tensor, const rapt_layout *layout, const block *b,
                      int from, int to) {
    int first = rapt_min(rapt_max(from, b->first), b->end - 1), end = rapt_max(rapt_min(to, b->end), first + 1);
    for (int n = first; n < end;) {
        rapt_keys run = rapt_keys_at(t, b->number + n, end - n);
        const char *row = tensor + rapt_keys_offset(layout, &run);
        for (int i = 0; i < run.keys; i++, n++) rows[n] = row + (size_t)i * (size_t)layout->token_stride;
    }
    for (int n = from; n < first; n++) rows[n] = rows[first];
    for (int n = end; n < to; n++) rows[n] = rows[end - 1];
}

#include "parts/logits.h"

/* Stores one row's state after a chunk, which rapt_merge will read. o: null for zeros, as in the empty state. */
static void store_state(const rapt_task *t, row_cursor at, int64_t chunk, float m, float l, const float *o) {
    char *state = t->states + (size_t)at.token * t->state_token + (size_t)at.head * t->state_head +
                  (size_t)(chunk - t->chunk0) * t->state_chunk;
    float head[RAPT_STATE_O] = {[RAPT_STATE_M] = m, [RAPT_STATE_L] = l};
    size_t d_v = (size_t)t->problem->d_v, values = o ? d_v : 0;
    memcpy(state, head, sizeof head);
    memcpy(state + sizeof head, o ? o : head, values * sizeof *o);
    memset(state + sizeof head + values * sizeof *o, 0, (padded(d_v) - values) * sizeof *o);
}

/* Stores the empty state for `rows` rows from `row` on. */
static void store_empty_states(const rapt_task *t, int kv_head, int64_t row, int64_t rows, int64_t chunk) {
    row_cursor at = row_at(t, kv_head, row);
    for (; rows > 0; rows--, at = row_next(t, at)) store_state(t, at, chunk, -INFINITY, 0.0f, NULL);
}

/* Writes one finished row to `to`, in O's type, and its log-sum-exp to lse_to unless that is null. o is readable up to a whole
 * vector. */
static void write_row(const rapt_problem *p, char *to, char *lse_to, float m, float l, const float *o) {
    store_row(p->o.type, to, o, p->d_v);
    if (lse_to) {
        float lse = l == 0.0f ? -INFINITY : s_fma(m, p->natural, s_ln(l));
        memcpy(lse_to, &lse, sizeof lse);
    }
}

/* Returns 1 / l, by which the o of a row is multiplied at its end: 0 for an empty row, whose l is 0, and NaN for NaN. */
static inline vf reciprocal(vf l) { return v_select(v_lt(v_set1(0.0f), l), v_div(v_set1(1.0f), l), v_mul(l, v_set1(0.0f))); }

/* Returns o / l. Adding 0 turns -0 into +0, since the sign of a zero o may depend on whether masked keys were computed with
 * weight 0 or skipped. */
static inline vf finished(vf o, vf reciprocal_l) { return v_fma(o, reciprocal_l, v_set1(0.0f)); }

/* True if any of `rows` times n floats is infinite or NaN. Masked values that are not finite make O so, since 0 * inf is NaN. */
static bool any_nonfinite(const float *x, int rows, size_t ld, int n) {
    vf sum = v_set1(0.0f);
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < n; i += RAPT_VL) {
            vf v = v_load(x + (size_t)r * ld + i);
            sum = v_add(sum, v_sub(v, v)); /* 0, or NaN for NaN and infinities */
        }
    float lane[RAPT_VL], total = 0.0f;
    v_store(lane, sum);
    for (int j = 0; j < RAPT_VL; j++) total += lane[j];
    return total != 0.0f;
}

/* Merges the state of next_m and next_l into the state of m and l, for RAPT_VL rows. Sets *a and *b to the factors of the two
 * states' o, for merge_values. */
static inline void merge_weights(const rapt_problem *p, float *m, float *l, const float *next_m, const float *next_l, vf *a,
                                 vf *b) {
    vf old = v_load(m), other = v_load(next_m), both = v_max(old, other), at = finite_max(both);
    *a = v_exp2_of(p, v_sub(old, at));
    *b = v_exp2_of(p, v_sub(other, at));
    v_store(m, both);
    v_store(l, v_fma(v_load(l), *a, v_mul(v_load(next_l), *b)));
}

/* Merges a vector of next_o into o: o = o * a + next_o * b. */
static inline void merge_values(float *o, const float *next_o, vf a, vf b) {
    v_store(o, v_fma(v_load(o), a, v_mul(v_load(next_o), b)));
}

/* Returns a sink's logit as a score. The sink is merged as a state with this m, l = 1 and an o of zeros. */
static inline float sink_score(const rapt_problem *p, const char *sink) { return element_at(p->sinks.type, sink) / p->natural; }

#include "int8/queries_int8.h"
#include "bf16/bf16.h"
#include "parts/queries_in_lanes.h"
#include "parts/keys_in_lanes.h"
#include "parts/linear.h"

/* Returns the bytes of scratch that a task needs (rapt_arithmetic.scratch_bytes). With queries in lanes, the left_over rows need
 * scratch, too, but come after the others and use the same memory. */
static size_t scratch_bytes(const rapt_problem *p, int64_t rows, bool keys_in_lanes, bool merges) {
    lane_scratch lanes;
    query_tile tiles[RAPT_MOST_PASS_TILES];
    row_scratch few;
    query_row few_rows[RAPT_MOST_JOINED_ROWS];
    size_t as_rows = lay_out_rows(p, NULL, &few, few_rows, keys_in_lanes ? (int)rows : p->left_over);
    if (keys_in_lanes) return sizeof(float) * as_rows;
    size_t as_lanes =
        lay_out_lanes(p, NULL, &lanes, tiles, (int)rapt_min((rows + TILE_ROWS - 1) / TILE_ROWS, RAPT_MOST_PASS_TILES), merges);
    return sizeof(float) * (as_lanes > as_rows ? as_lanes : as_rows);
}

/* Computes a task (rapt_arithmetic.attend). The last left_over rows of a task with queries in lanes are computed with keys in
 * lanes, which gives the same bits. */
static void attend(const rapt_task *t) {
    begin_task(false);
    if (t->keys_in_lanes) attend_keys_in_lanes(t);
    else {
        rapt_task queries = *t, few = *t;
        queries.rows -= t->left_over;
        attend_queries_in_lanes(&queries);
        few.row0 += queries.rows;
        few.rows = t->left_over;
        if (few.rows > 0) attend_keys_in_lanes(&few);
    }
    end_task();
}

#if RAPT_PASTE(RAPT_IS_, RAPT_ARITH) == RAPT_IS_exact /* functions that are the same in every arithmetic */
#include "parts/norm.h"

/* Merges the state `next` into `state` (rapt_base.merge). */
static void merge(const rapt_problem *p, float *state, const float *next) {
    row_state merged = {state[RAPT_STATE_M], state[RAPT_STATE_L], state + RAPT_STATE_O};
    merge_row(p, &merged, next + RAPT_STATE_M, next + RAPT_STATE_L, next + RAPT_STATE_O);
    state[RAPT_STATE_M] = merged.m;
    state[RAPT_STATE_L] = merged.l;
}

/* Writes the row that ends with `state` (rapt_base.finish). */
static void finish(const rapt_problem *p, const rapt_row_end *end, float *state) {
    row_state merged = {state[RAPT_STATE_M], state[RAPT_STATE_L], state + RAPT_STATE_O};
    finish_row(p, end, &merged);
}

/* Turns a row of scores in memory into its softmax (rapt_base.weigh_scores). Weights are summed in the order of attention, but
 * with the maximum of all scores from the beginning. Key 0 begins a chunk. */
static void weigh_scores(const rapt_problem *p, char *row, int64_t keys, const char *sink) {
    float m = sink ? sink_score(p, sink) : -INFINITY, total = 0.0f, of_chunk = 0.0f;
    float block_scores[RAPT_BLOCK];
    for (int64_t i = 0; i < keys; i++) {
        float score = float_at(row + i * (int64_t)sizeof score);
        m = score > m ? score : m;
    }
    vf max = finite_max(v_set1(m));
    for (int64_t i = 0; i < keys; i += RAPT_BLOCK) {
        char *at = row + i * (int64_t)sizeof *block_scores;
        int n = rapt_min(RAPT_BLOCK, keys - i);
        float partial[RAPT_PARTIAL_SUMS], sum = 0.0f;
        memcpy(block_scores, at, (size_t)n * sizeof *block_scores);
        for (int j = n; j < RAPT_BLOCK; j++) block_scores[j] = -INFINITY;
        for (int j = 0; j < RAPT_PARTIAL_SUMS; j += RAPT_VL) {
            vf sums = v_set1(0.0f);
            for (int k = j; k < RAPT_BLOCK; k += RAPT_PARTIAL_SUMS) {
                vf score = v_load(block_scores + k); /* the weight of -inf is 0 even if the sink is NaN */
                vf weight = v_select(v_lt(score, v_set1(-FLT_MAX)), v_set1(0.0f), v_exp2_of(p, v_sub(score, max)));
                v_store(block_scores + k, weight);
                sums = v_add(sums, weight);
            }
            v_store(partial + j, sums);
        }
        for (int j = 0; j < RAPT_PARTIAL_SUMS; j++) sum += partial[j];
        memcpy(at, block_scores, (size_t)n * sizeof *block_scores);
        of_chunk += sum;
        if ((i + RAPT_BLOCK) % RAPT_CHUNK == 0 || i + RAPT_BLOCK >= keys) total += of_chunk, of_chunk = 0.0f;
    }
    float ends[RAPT_VL];
    if (sink) {
        v_store(ends, v_exp2_of(p, v_sub(v_set1(sink_score(p, sink)), max)));
        total += ends[0];
    }
    v_store(ends, reciprocal(v_set1(total)));
    for (int64_t i = 0; i < keys; i++) {
        char *at = row + i * (int64_t)sizeof(float);
        float weight = float_at(at);
        if (weight != 0.0f) weight *= ends[0]; /* a masked key's stays 0 even if the sum is NaN */
        memcpy(at, &weight, sizeof weight);
    }
}

#endif

#ifndef RAPT_WORDS_ALONE /* defined by the test of the words, so that the compiler drops all that no word needs */
#define RAPT_ARITHMETIC                                                                                                          \
    {                                                                                                                            \
        .needs = RAPT_KERNEL_NEEDS,                                                                                              \
        .tile_rows = TILE_ROWS,                                                                                                  \
        .few_rows = INTEGER ? RAPT_FEW_INTEGER_ROWS : RAPT_FEW_ROWS,                                                             \
        .few_tokens = BF16 ? RAPT_BF16_FEW_TOKENS : RAPT_FEW_TOKENS,                                                             \
        .pass_l2_times = BF16 ? RAPT_BF16_PASS_L2_TIMES : 1,                                                                     \
        .least_rows = BF16 ? RAPT_BF16_LEAST_ROWS : 1,                                                                           \
        .scratch_bytes = scratch_bytes,                                                                                          \
        .attend = attend,                                                                                                        \
        .pair_product = RAPT_PAIR_PRODUCT,                                                                                       \
        .linear_scratch_bytes = linear_scratch_bytes,                                                                            \
        .linear_tokens = linear_tokens,                                                                                          \
        .packed_floats = packed_floats,                                                                                          \
        .pack_weights = pack_weights,                                                                                            \
    }
#if RAPT_PASTE(RAPT_IS_, RAPT_ARITH) == RAPT_IS_exact
/* Defines score_product_SUFFIX and value_product_SUFFIX, which integer arithmetic calls within a task of its own. */
#define RAPT_FEW_PRODUCTS_OF(suffix)                                                                                             \
    static void score_product_##suffix(int rows, const char *const *keys, size_t offset, int n, int channels, const float *q,    \
                                       size_t ldq, float *s) {                                                                   \
        begin_task(false);                                                                                                       \
        score_keys_##suffix(rows, keys, offset, n, channels, q, ldq, s);                                                         \
        end_task();                                                                                                              \
    }                                                                                                                            \
    static void value_product_##suffix(const void *o, int rows, int vectors) {                                                   \
        begin_task(false);                                                                                                       \
        stream_product_##suffix(*(const operands *)o, rows, vectors);                                                            \
        end_task();                                                                                                              \
    }
RAPT_FEW_PRODUCTS_OF(f32)
#if RAPT_CONVERTED_ROWS
RAPT_FEW_PRODUCTS_OF(int8)
#define RAPT_FEW_PRODUCTS {score_product_f32, score_product_int8, value_product_f32, value_product_int8, RAPT_CONVERTED_ROWS}
#else
#define RAPT_FEW_PRODUCTS {score_product_f32, NULL, value_product_f32, NULL, 0}
#endif
const rapt_base RAPT_PASTE(rapt_exact_, RAPT_KERNEL_NAME) = {
    .exact = RAPT_ARITHMETIC,
    .fused = RAPT_KERNEL_FUSED,
    .vector = RAPT_VL,
    .tuning = {.left_over = RAPT_LEFT_OVER > 0 ? RAPT_LEFT_OVER : 0,
               .joined_rows = RAPT_JOINED_ROWS,
               .joined_bytes = RAPT_JOINED_BYTES,
               .pass_tiles = RAPT_PASS_TILES,
               .pass_l2 = RAPT_PASS_L2,
               .thread_tasks = RAPT_THREAD_TASKS,
               .ragged_tasks = RAPT_RAGGED_TASKS,
               .states_part = RAPT_STATES_PART,
               .weights_l2 = RAPT_WEIGHTS_L2,
               .staging_outputs = RAPT_STAGING_OUTPUTS,
               .long_row = RAPT_LONG_ROW,
               .long_ahead = RAPT_LONG_AHEAD,
               .short_ahead = RAPT_SHORT_AHEAD},
    .room = {.few_rows = RAPT_MOST_FEW_ROWS,
             .left_over = RAPT_VL - 1,
             .joined_rows = RAPT_MOST_JOINED_ROWS,
             .pass_tiles = RAPT_MOST_PASS_TILES,
             .few_tokens = RAPT_MOST_FEW_TOKENS},
    .few_products = RAPT_FEW_PRODUCTS,
    .merge = merge,
    .finish = finish,
    .weigh_scores = weigh_scores,
    .normalise = normalise,
};
#else
const rapt_arithmetic RAPT_PASTE(RAPT_PASTE(RAPT_PASTE(rapt_, RAPT_ARITH), _), RAPT_KERNEL_NAME) = RAPT_ARITHMETIC;
#endif
#endif
