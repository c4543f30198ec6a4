/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off: lists. */
/* The algorithm: fused attention with online softmax in the canonical order (docs/order.md), in words that name no ISA.
 *
 * An ISA file defines words and constants, then includes this file. The constants are those of check_words.h, and
 *   RAPT_KERNEL_NAME, RAPT_KERNEL_NEEDS (features, RAPT_CPU_*), RAPT_KERNEL_FUSED (bool: its rounding class)
 *
 * Words that each ISA has:
 *   vf, vi, vm         vectors of f32, of 32-bit integers, and what a comparison gives
 *   v_load v_store (any address) v_set1 v_broadcast (of the f32 at any address) v_add v_sub v_mul v_div
 *   h_max (of a vector's lanes, none of which is NaN, or any result) v_max (NaN if the second operand is; of a first one that is,
 *   either) v_lt v_all(m) v_select(m, yes, no) v_as_int v_as_float
 *   v_fma(a, b, c) = a*b + c, s_fma (the same of floats): rounded once in the fused class, twice in the other
 *   v_pow2             the low 8 bits of the f32's pattern, of which bit 8 is 0, become the biased exponent of the result
 *   v_transpose        of RAPT_VL vectors in place: element i of vector r becomes element r of vector i
 *   i_set1 i_and i_or i_add i_shl i_shr (logical) i_sar (arithmetic; all three by what inlining makes a constant) i_gt (signed)
 *   i_select i_load_u16 i_store_u16
 *   i_load_u8 i_load_s8 (RAPT_VL bytes, widened), i_load_u4(from, i) (the i-th and on of 4-bit numbers, the lower half of each
 *   byte first; i is a multiple of RAPT_VL), i_bits(x) (lane j: bit j of x), v_from_int (signed; exact where f32 is)
 *   i_dot              see dots.h
 *   i_most_halves(most, x)  of each 16 bits, the greater of those of most and of -2 x, unsigned and modulo 2^16
 *
 * Words that a constant asks for:
 *   RAPT_BYTE_TABLES   i_xor, i_look_up(table, x) (of each byte x from 0 to 127 the one at x of 16, or 0 if there is none) and
 *   i_odd_bytes(odd, even) (of each 16 bits, the upper byte of the one and the lower byte of the other)
 *   RAPT_FEW_DOTS      i_xor, i_store_u8 (low bytes), i_load_quads(out, rows) of RAPT_VL * 4 bytes of four rows each: lane
 *   i % RAPT_VL of out[i / RAPT_VL] has byte i of all four, i_sum_within(x) of four: lane 4q + j is the sum of quarter q of x[j],
 *   and i_sum_across(x) of four: lane 4q + j is the sum of lane j of each quarter of x[q]
 *   RAPT_SQUARE_ROWS   v_load_quads(rows, offset): lanes 4 * i to 4 * i + 3 are the f32 at rows[4 * i] + offset;
 * v_transpose_quads(x) of four vectors in place, within each four lanes: element i of vector r becomes element r of vector i
 *   RAPT_FMA_BY_LANE   v_fma_lane(a, lane, b, c) = a[lane] * b + c
 *   RAPT_NATIVE_F16    v_from_f16 (of the low halves of lanes), v_load_f16, v_load_f16_high (bytes, the upper halves of f16),
 *   v_broadcast_f16, v_store_f16; where it is 0, i_sub instead, for type_f16.h
 *
 * Functions that an ISA may have of its own, each by itself, with the same bits. It defines the name as itself before it includes
 * this file (#define tile_product tile_product), and the function after that, where all types and the other functions are known.
 *   tile_product       C = A B of f32 with queries or tokens in lanes, in scratch: the place of a matrix unit of f32 (tile.h)
 *   tile               the register tile of tile_product, and of V where it lies in memory (tile.h)
 *   dot_product        C = A B of integers with queries in lanes: a matrix unit's place, too (dots.h)
 *   bf16_key_floats    room for staged keys in bf16 arithmetic, with queries in lanes as in the next ones (bf16.h)
 *   bf16_value_floats  and for values (bf16.h)
 *   pack_bf16_queries  rows of Q (bf16.h)
 *   stage_bf16_keys    those of K (bf16_queries.h)
 *   stage_bf16_values  and V (bf16_queries.h)
 *   score_bf16         scores, and with the others of these seven the place of a matrix unit of bf16 (bf16_queries.h)
 *   advance_bf16       weights and values (bf16_queries.h)
 *   bf16_row_floats    room for few rows in bf16 arithmetic, with keys in lanes as in the next ones (bf16.h)
 *   pack_bf16_rows     rows of Q (bf16_rows.h)
 *   score_bf16_rows    scores (bf16_rows.h)
 *   start_bf16_rows    before the values of a chunk (bf16_rows.h)
 *   add_bf16_step      those of a step (bf16_rows.h)
 *   end_bf16_rows      after them (bf16_rows.h)
 *   store_transposed   a square of Q, biases, tokens or weights, converted and transposed; elsewhere it is the word v_transpose
 *                      (stage.h)
 *   weigh_vectors      scores of query tiles become weights (queries_in_lanes.h)
 *   emit_tile          the end of query tiles: O, LSE or states (queries_in_lanes.h)
 *   score_tile         scores of few rows, keys in lanes (keys_in_lanes.h)
 *   linear_tile        products of few tokens (linear.h)
 *   multiply_part      products of many tokens (linear.h)
 *   bf16_weight_floats room for weights in bf16 arithmetic, with the others of these four (bf16_linear.h)
 *   stage_bf16_weights rows of weights (bf16_linear.h)
 *   multiply_bf16_part products of many tokens (bf16_linear.h)
 *   bf16_part_tiles    the pace at which the weights that come next are prefetched (bf16_linear.h)
 *   begin_task         before each task that computes products, for the state that a matrix unit wants
 *   end_task           after it; the caller's function of logits is called outside of both
 * Each is declared, with what it does, where a comment says Replaceable. What only the replaced one used is not there then. */
/* clang-format on */
#include <float.h>
#include <math.h>
#include <string.h>

#define RAPT_PASTE2(a, b) a##b
#define RAPT_PASTE(a, b)  RAPT_PASTE2(a, b)
#define RAPT_STRING2(a)   #a
#define RAPT_STRING(a)    RAPT_STRING2(a)

/* The arithmetic that this object is for, RAPT_ARITH: exact, int8 or bf16. Kernels are compiled once for each, so that a variant
 * brings only those that its unit changes, and inherits the others. */
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

/* Called around each task that computes products. Replaceable, both. */
static RAPT_INLINE void begin_task(void);
static RAPT_INLINE void end_task(void);
#ifndef begin_task
static RAPT_INLINE void begin_task(void) {}
#endif
#ifndef end_task
static RAPT_INLINE void end_task(void) {}
#endif

/* Only a hint, so the address need not exist; hence no pointer arithmetic, which would be undefined beyond the tensor's end. */
static RAPT_INLINE void prefetch(const char *from, size_t offset) {
    __builtin_prefetch((const void *)((uintptr_t)from + offset), 0, 2);
}

static RAPT_INLINE void prefetch_row(const char *row, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) prefetch(row, i);
}

/* Copies of each element of a staged block of K and V: a broadcast is then a load, where the ISA has no load that broadcasts. */
#if RAPT_STAGED_BROADCAST
enum { COPIES = RAPT_VL };
static inline vf v_staged(const void *from) { return v_load(from); }
#else
enum { COPIES = 1 };
static inline vf v_staged(const void *from) { return v_broadcast(from); }
#endif

#include "parts/exp.h"
#include "parts/stage.h"
#include "parts/tile.h"

enum {
    TILE_ROWS = RAPT_TILE_VECTORS * RAPT_VL,
    CHUNK_BLOCKS = RAPT_CHUNK / RAPT_BLOCK,
    SUM_VECTORS = RAPT_PARTIAL_SUMS / RAPT_VL,
};

static inline size_t padded(size_t n) { return (n + 15) / 16 * 16; } /* floats, to whole cache lines */

/* The next floats of a scratch memory, of which used are taken; without memory they are only counted, in used. */
static float *take(float *memory, size_t *used, size_t floats) {
    float *taken = memory ? memory + *used : NULL;
    *used += padded(floats);
    return taken;
}

static inline vf v_exp2_of(const rapt_problem *p, vf difference) {
    return v_exp2(difference, v_set1(p->exponent), v_set1(p->least));
}

/* The maximum to subtract: a row without keys so far has -inf, and -inf - -inf would be NaN. */
static inline vf finite_max(vf m) { return v_max(v_set1(-FLT_MAX), m); }

/* A row of a task, as its token and its query head, which counts from the task's first. */
typedef struct row_cursor {
    int64_t token, head;
} row_cursor;

static inline row_cursor row_at(const rapt_task *t, int kv_head, int64_t row) {
    int64_t group = t->problem->group;
    return (row_cursor){(t->row0 + row) / group, kv_head * group + (t->row0 + row) % group};
}

static inline row_cursor row_next(const rapt_task *t, row_cursor at) {
    return at.head + 1 < t->problem->group ? (row_cursor){at.token, at.head + 1} : (row_cursor){at.token + 1, 0};
}

static inline size_t row_offset(const rapt_layout *layout, row_cursor at) {
    return (size_t)(at.token * layout->token_stride + at.head * layout->head_stride);
}

/* The keys of one block that somebody here attends to, as positions in the block: none if first >= end. */
typedef struct block {
    int64_t number; /* of the block's first key */
    int first, end;
} block;

static inline block block_of(int64_t number, int64_t first, int64_t end) {
    return (block){number, rapt_max(0, rapt_min(RAPT_BLOCK, first - number)), rapt_min(RAPT_BLOCK, rapt_max(0, end - number))};
}

/* rows[n], from <= n < to, is the address of key or value n of the block, or beyond [first, end) of the nearest one within.
 * tensor is that of the head. */
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

/* Leaves one row's state after a chunk for a merge; null for an o of zeros, as the empty state has. */
static void leave_state(const rapt_task *t, row_cursor at, int64_t chunk, float m, float l, const float *o) {
    char *state = t->states + (size_t)at.token * t->state_token + (size_t)at.head * t->state_head +
                  (size_t)(chunk - t->chunk0) * t->state_chunk;
    float head[RAPT_STATE_O] = {[RAPT_STATE_M] = m, [RAPT_STATE_L] = l};
    size_t d_v = (size_t)t->problem->d_v, values = o ? d_v : 0;
    memcpy(state, head, sizeof head);
    memcpy(state + sizeof head, o ? o : head, values * sizeof *o);
    memset(state + sizeof head + values * sizeof *o, 0, (padded(d_v) - values) * sizeof *o);
}

static void leave_empty_states(const rapt_task *t, int kv_head, int64_t row, int64_t rows, int64_t chunk) {
    row_cursor at = row_at(t, kv_head, row);
    for (; rows > 0; rows--, at = row_next(t, at)) leave_state(t, at, chunk, -INFINITY, 0.0f, NULL);
}

/* Writes one finished row. o is readable up to a whole vector. */
static void write_row(const rapt_problem *p, char *to, char *lse_to, float m, float l, const float *o) {
    store_row(p->o.type, to, o, p->d_v);
    if (lse_to) {
        float lse = l == 0.0f ? -INFINITY : s_fma(m, p->natural, s_ln(l));
        memcpy(lse_to, &lse, sizeof lse);
    }
}

/* 1 / l, by which a row ends; 0 for an empty row, whose l is 0, and NaN for NaN. */
static inline vf reciprocal(vf l) { return v_select(v_lt(v_set1(0.0f), l), v_div(v_set1(1.0f), l), v_mul(l, v_set1(0.0f))); }

/* o / l. Adding 0 makes -0 of +0's sign: which of the two o was may depend on masked keys that were visited. */
static inline vf finished(vf o, vf reciprocal_l) { return v_fma(o, reciprocal_l, v_set1(0.0f)); }

/* Is any of rows x n floats not finite? Masked values that are NaN or infinite leave a NaN behind (0 * inf). */
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

/* Merges the state of next_m and next_l into that of m and l; a and b are what the two o are to be multiplied by. */
static inline void merge_weights(const rapt_problem *p, float *m, float *l, const float *next_m, const float *next_l, vf *a,
                                 vf *b) {
    vf old = v_load(m), other = v_load(next_m), both = v_max(old, other), at = finite_max(both);
    *a = v_exp2_of(p, v_sub(old, at));
    *b = v_exp2_of(p, v_sub(other, at));
    v_store(m, both);
    v_store(l, v_fma(v_load(l), *a, v_mul(v_load(next_l), *b)));
}

static inline void merge_values(float *o, const float *next_o, vf a, vf b) {
    v_store(o, v_fma(v_load(o), a, v_mul(v_load(next_o), b)));
}

/* A sink's logit as a score. As a state it has l = 1 and an o of zeros. */
static inline float sink_score(const rapt_problem *p, const char *sink) { return element_at(p->sinks.type, sink) / p->natural; }

#include "int8/dots.h"
#include "bf16/bf16.h"
#include "parts/queries_in_lanes.h"
#include "parts/keys_in_lanes.h"
#include "parts/linear.h"

/* 1 if the arithmetic has a path with keys in lanes. Integers have one where RAPT_FEW_DOTS brings it. */
enum { HAS_KEYS_IN_LANES = !INTEGER || RAPT_FEW_DOTS };

static size_t scratch_bytes(const rapt_problem *p, int64_t rows, bool keys_in_lanes, bool merges) {
    lane_scratch lanes;
    query_tile tiles[RAPT_MOST_PASS_TILES];
    row_scratch few;
    query_row few_rows[RAPT_MOST_JOINED_ROWS];
    size_t as_rows = HAS_KEYS_IN_LANES ? lay_out_rows(p, NULL, &few, few_rows, keys_in_lanes ? (int)rows : p->left_over) : 0;
    if (keys_in_lanes) return sizeof(float) * as_rows;
    size_t as_lanes =
        lay_out_lanes(p, NULL, &lanes, tiles, (int)rapt_min((rows + TILE_ROWS - 1) / TILE_ROWS, RAPT_MOST_PASS_TILES), merges);
    return sizeof(float) * (as_lanes > as_rows ? as_lanes : as_rows);
}

/* The last rows of a task with queries in lanes may have keys in lanes (rapt_task.left_over), which gives the same bits. */
static void attend(const rapt_task *t) {
    begin_task();
    if (!HAS_KEYS_IN_LANES) attend_queries_in_lanes(t);
    else if (t->keys_in_lanes) attend_keys_in_lanes(t);
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

#if RAPT_PASTE(RAPT_IS_, RAPT_ARITH) == RAPT_IS_exact /* what is the same in every arithmetic */
#include "parts/norm.h"

static void merge(const rapt_problem *p, float *state, const float *next) {
    row_state all = {state[RAPT_STATE_M], state[RAPT_STATE_L], state + RAPT_STATE_O};
    merge_row(p, &all, next + RAPT_STATE_M, next + RAPT_STATE_L, next + RAPT_STATE_O);
    state[RAPT_STATE_M] = all.m;
    state[RAPT_STATE_L] = all.l;
}

static void finish(const rapt_problem *p, const rapt_row_end *end, float *state) {
    row_state all = {state[RAPT_STATE_M], state[RAPT_STATE_L], state + RAPT_STATE_O};
    finish_row(p, end, &all);
}

/* The softmax of a row of scores in memory, of keys from the start of a chunk on: as attention sums weights, but with the maximum
 * of them all from the first. */
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
                vf score = v_load(block_scores + k); /* of -inf the weight is 0, also beside a sink that is NaN */
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
        if (weight != 0.0f) weight *= ends[0]; /* of what is masked it stays 0, also where the sum is a NaN */
        memcpy(at, &weight, sizeof weight);
    }
}

#endif

#ifndef RAPT_WORDS_ALONE /* for a test of the words, which leaves the compiler nearly nothing to do without it */
#define RAPT_ARITHMETIC                                                                                                          \
    {                                                                                                                            \
        .needs = RAPT_KERNEL_NEEDS,                                                                                              \
        .tile_rows = TILE_ROWS,                                                                                                  \
        .few_rows = HAS_KEYS_IN_LANES ? RAPT_FEW_ROWS : 0,                                                                       \
        .few_tokens = BF16 ? RAPT_BF16_FEW_TOKENS : RAPT_FEW_TOKENS,                                                             \
        .scratch_bytes = scratch_bytes,                                                                                          \
        .attend = attend,                                                                                                        \
        .linear_scratch_bytes = INTEGER ? NULL : linear_scratch_bytes,                                                           \
        .linear_tokens = INTEGER ? NULL : linear_tokens,                                                                         \
        .packed_floats = INTEGER ? NULL : packed_floats,                                                                         \
        .pack_weights = INTEGER ? NULL : pack_weights,                                                                           \
    }
#if RAPT_PASTE(RAPT_IS_, RAPT_ARITH) == RAPT_IS_exact
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
    .merge = merge,
    .finish = finish,
    .weigh_scores = weigh_scores,
    .normalise = normalise,
};
#else
const rapt_arithmetic RAPT_PASTE(RAPT_PASTE(RAPT_PASTE(rapt_, RAPT_ARITH), _), RAPT_KERNEL_NAME) = RAPT_ARITHMETIC;
#endif
#endif
