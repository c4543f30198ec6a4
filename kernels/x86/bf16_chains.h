/* SPDX-License-Identifier: Apache-2.0 */
/* bf16 arithmetic by an instruction that adds two products to a sum, one after the other (VDPBF16PS, Intel SDM volume 2). It is
 * written in words that the including file defines:
 *
 *   v_fma_pairs(acc, a, b)   fma(low(a), low(b), fma(high(a), high(b), acc)), each rounded once; low and high are the halves
 *                            of a lane, bf16 numbers that are not subthreshold. A macro, so that tile.h knows that it is there
 *   i_chain_pairs(x)         the chain pairs of RAPT_STEP adjacent bf16
 *   i_bf16_factors(x, y, n)  x and then y, rounded to bf16; magnitudes below that of the bf16 with the bits n become 0
 *   v_weight_halves(d, c, least, special)   v_exp2_bf16(d, c, least) as a bf16 in the lower half of each lane; the upper half is
 *                                           undefined. If a lane of d is NaN its result is wrong, and *special, which begins with
 *                                           zeros, records it
 *   has_special_weights(special)            true if there was a NaN
 *
 * In a step of RAPT_STEP elements the even ones are one chain and the odd ones another (docs/order.md). Here they lie as chain
 * pairs, in lanes of 32 bits: pair 2j has elements 4j and 4j + 2, the next two of the even chain, and pair 2j + 1 elements
 * 4j + 1 and 4j + 3, of the odd one. The earlier element is the upper half. */

#define RAPT_BF16_STEP_FLOATS (STEP_PAIRS * TILE_ROWS)

#define bf16_key_floats      bf16_key_floats
#define bf16_value_floats    bf16_value_floats
#define pack_bf16_queries    pack_bf16_queries
#define stage_bf16_keys      stage_bf16_keys
#define stage_bf16_values    stage_bf16_values
#define score_bf16           score_bf16
#define advance_bf16         advance_bf16
#define bf16_scratch_floats  bf16_scratch_floats
#define store_bf16_factors   store_bf16_factors
#define pack_bf16_row        pack_bf16_row
#define pack_bf16_query_rows pack_bf16_query_rows
#define score_bf16_tile      score_bf16_tile
#define add_bf16_step        add_bf16_step
#define end_bf16_rows        end_bf16_rows

#define bf16_weight_floats     bf16_weight_floats
#define stage_bf16_weights     stage_bf16_weights
#define multiply_bf16_part     multiply_bf16_part
#define bf16_part_prefetches   bf16_part_prefetches
#define place_token_for_packed place_token_for_packed
#define sum_packed_bf16_rows   sum_packed_bf16_rows

/* Beside tokens in lanes, packed weights with outputs in lanes are 0.97 to 1.6 times as fast for 9 to 24 tokens and 0.88 times
 * for 28 (AMD EPYC, Zen 4). */
#define RAPT_BF16_PACKED_TOKENS 24

/* With products at this rate, staging K and V counts: tiles that take 1.5 MiB, of 1 MiB of L2, are 1.00 to 1.04 times as fast as
 * 0.5 MiB of them (P2 to P6, AMD EPYC, Zen 4), with the rate of FMAs 0.98 to 1.01 times. */
#define RAPT_BF16_PASS_L2_TIMES 3

#if !defined(v_fma_pairs)
#error "v_fma_pairs is no macro: tile.h would multiply pairs as if they were f32"
#endif
#define RAPT_PAIR_PRODUCT product_of_pairs

#include "attend.h"

_Static_assert(RAPT_VL == STEP_PAIRS, "a vector has the chain pairs of a step");

/* ---- Products ------------------------------------------------------------------------------------------------------------ */

/* The most accumulators of a register tile. Of 3 vectors, a tile of lanes has 24, 6 vectors of B and a pair of A, 31 of 32
 * registers, and a tile of rows 18, 2 vectors of B and 4 pairs of A. */
enum { CHAIN_ACCUMULATORS = 24 };

_Static_assert(RAPT_TILE_VECTORS <= 3, "4 rows of 4 vectors exceed CHAIN_ACCUMULATORS");

/* Rows of A lie in one of two ways, and register tiles differ. In rows, a chain pair behind the other, sums of a few steps stay
 * in registers beside those of the chains, so that a tile of 3 vectors has 2 rows. In lanes, 16 rows beside one another, such a
 * tile would read 16 lines for 2 rows: it has 4, and C goes through the L1 cache in each step (docs/experiments/bf16.md). */

/* Returns the rows of a register tile of nv vectors. They divide RAPT_VL, for rows left over cost a third. */
static RAPT_INLINE int rows_tile_rows(const int nv) { return nv == 1 ? 8 : nv == 2 ? 4 : 2; }
static RAPT_INLINE int lanes_tile_rows(const int nv) { return nv == 1 ? 8 : 4; }

/* How many steps a tile of rows takes until its sums go through memory: B of so many, 24 KiB, stays in the L1 cache. With 4 or 16
 * steps P2 to P6 are as fast, or up to 3 % slower (AMD EPYC, Zen 4). */
enum { CHAIN_STEPS = 8 };

/* Multiplies `steps` steps of nr rows of A by nv vectors of B and adds them to C one by one: C = C + (even chain + odd chain), in
 * the first step without the C if `first`. a: [steps][STEP_PAIRS] chain pairs of each row, lda floats from row to row; b:
 * [step][STEP_PAIRS][TILE_ROWS]; c: [row][TILE_ROWS]. */
static RAPT_INLINE void tile_of_rows(const int nv, const int nr, const float *a, size_t lda, const float *b, int steps, float *c,
                                     bool first) {
    vf sum[CHAIN_ACCUMULATORS / 3], even[CHAIN_ACCUMULATORS / 3], odd[CHAIN_ACCUMULATORS / 3];
    UNROLLED(r, nr)
        UNROLLED(v, nv) sum[r * nv + v] = first ? v_set1(0.0f) : v_load(c + (size_t)r * TILE_ROWS + v * RAPT_VL);
    for (; steps > 0; steps--, a += STEP_PAIRS, b += RAPT_BF16_STEP_FLOATS) {
        UNROLLED(i, nr * nv) even[i] = odd[i] = v_set1(0.0f);
        for (int j = 0; j < STEP_PAIRS; j += 2) {
            vf a_even[CHAIN_ACCUMULATORS / 3], a_odd[CHAIN_ACCUMULATORS / 3];
            UNROLLED(r, nr) {
                a_even[r] = v_broadcast(a + (size_t)r * lda + j);
                a_odd[r] = v_broadcast(a + (size_t)r * lda + j + 1);
            }
            UNROLLED(v, nv) {
                const float *from = b + (size_t)j * TILE_ROWS + v * RAPT_VL;
                const vf b_even = v_load(from), b_odd = v_load(from + TILE_ROWS);
                UNROLLED(r, nr) even[r * nv + v] = v_fma_pairs(even[r * nv + v], b_even, a_even[r]);
                UNROLLED(r, nr) odd[r * nv + v] = v_fma_pairs(odd[r * nv + v], b_odd, a_odd[r]);
            }
        }
        UNROLLED(i, nr * nv) sum[i] = v_add(sum[i], v_add(even[i], odd[i]));
    }
    UNROLLED(r, nr)
        UNROLLED(v, nv) v_store(c + (size_t)r * TILE_ROWS + v * RAPT_VL, sum[r * nv + v]);
}

/* Does what tile_of_rows does, of any number of rows. */
static RAPT_INLINE void chain_rows(const int nv, const float *a, size_t lda, const float *b, int steps, float *c, bool first,
                                   int rows) {
    const int nr = rows_tile_rows(nv);
    for (; rows >= nr; rows -= nr, a += (size_t)nr * lda, c += (size_t)nr * TILE_ROWS)
        tile_of_rows(nv, nr, a, lda, b, steps, c, first);
    for (; rows > 0; rows--, a += lda, c += TILE_ROWS) tile_of_rows(nv, 1, a, lda, b, steps, c, first);
}

/* Does what tile_of_rows does, of any number of rows, vectors and steps. */
static RAPT_NOINLINE void chain_steps(const float *a, size_t lda, const float *b, int steps, float *c, bool first, int rows,
                                      int vectors) {
    for (; steps > 0; steps -= CHAIN_STEPS, first = false) {
        RAPT_BY_COUNT(vectors, chain_rows, a, lda, b, rapt_min(steps, CHAIN_STEPS), c, first, rows);
        a += CHAIN_STEPS * STEP_PAIRS;
        b += CHAIN_STEPS * RAPT_BF16_STEP_FLOATS;
    }
}

/* Does what tile_of_rows does, of one step of rows in lanes. a: [STEP_PAIRS][RAPT_VL]. */
static RAPT_INLINE void tile_of_lanes(const int nv, const int nr, const float *a, const float *b, float *c, bool first) {
    vf even[CHAIN_ACCUMULATORS / 2], odd[CHAIN_ACCUMULATORS / 2];
    UNROLLED(i, nr * nv) even[i] = odd[i] = v_set1(0.0f);
    for (int j = 0; j < STEP_PAIRS; j += 2) {
        vf b_even[4], b_odd[4];
        UNROLLED(v, nv) {
            b_even[v] = v_load(b + (size_t)j * TILE_ROWS + v * RAPT_VL);
            b_odd[v] = v_load(b + (size_t)(j + 1) * TILE_ROWS + v * RAPT_VL);
        }
        UNROLLED(r, nr) {
            const vf a_even = v_broadcast(a + (size_t)j * RAPT_VL + r), a_odd = v_broadcast(a + (size_t)(j + 1) * RAPT_VL + r);
            UNROLLED(v, nv) {
                even[r * nv + v] = v_fma_pairs(even[r * nv + v], b_even[v], a_even);
                odd[r * nv + v] = v_fma_pairs(odd[r * nv + v], b_odd[v], a_odd);
            }
        }
    }
    UNROLLED(r, nr)
        UNROLLED(v, nv) {
            float *to = c + (size_t)r * TILE_ROWS + v * RAPT_VL;
            const vf sum = v_add(even[r * nv + v], odd[r * nv + v]);
            v_store(to, first ? sum : v_add(v_load(to), sum));
        }
}

/* Does what tile_of_lanes does, of any number of rows. queue: as in chain_step_of_lanes. */
static RAPT_INLINE void chain_lanes(const int nv, const float *a, const float *b, float *c, bool first, int rows,
                                    prefetch_queue *queue) {
    const int nr = lanes_tile_rows(nv);
    for (; rows >= nr; rows -= nr, a += nr, c += (size_t)nr * TILE_ROWS) {
        prefetch_from_queue(queue);
        tile_of_lanes(nv, nr, a, b, c, first);
    }
    for (; rows > 0; rows--, a++, c += TILE_ROWS) tile_of_lanes(nv, 1, a, b, c, first);
}

/* Does what tile_of_lanes does, of at most RAPT_VL rows and any number of vectors. queue: what is prefetched meanwhile, once for
 * each full register tile. */
static RAPT_NOINLINE void chain_step_of_lanes(const float *a, const float *b, float *c, bool first, int rows, int vectors,
                                              prefetch_queue *queue) {
    RAPT_BY_COUNT(vectors, chain_lanes, a, b, c, first, rows, queue);
}

/* The b_format of pairs. */
#define RAPT_PAIR_FORMAT ((b_format){load_f32, v_part_bf16, sizeof(vf), 1, false, true})
RAPT_DEFINE_PANEL(pairs, RAPT_PAIR_FORMAT, 1, RAPT_ROWS_1)
RAPT_DEFINE_PANEL(pairs, RAPT_PAIR_FORMAT, 2, RAPT_ROWS_2)
RAPT_DEFINE_PANEL(pairs, RAPT_PAIR_FORMAT, 3, RAPT_ROWS_3)
RAPT_DEFINE_PANEL(pairs, RAPT_PAIR_FORMAT, 4, RAPT_ROWS_4)

static void product_of_pairs(const void *operands_of_pairs, int rows, int vectors) {
    const operands *o = operands_of_pairs;
    if (vectors == 4) panel_4_pairs(*o, rows);
    else if (vectors == 3) panel_3_pairs(*o, rows);
    else if (vectors == 2) panel_2_pairs(*o, rows);
    else panel_1_pairs(*o, rows);
}

/* ---- Staging ------------------------------------------------------------------------------------------------------------- */

static RAPT_INLINE void store_bf16_factors(uint16_t *to, vf first, vf second) {
    v_store(to, v_as_float(i_bf16_factors(first, second, LEAST_BF16)));
}

/* Returns the distance from row to row of staged keys, in floats. */
static inline size_t ld_keys(const rapt_problem *p) { return (size_t)key_steps(p) * STEP_PAIRS + RAPT_ROW_PADDING; }

/* Returns the distance from channel to channel of staged values, in floats. */
static inline size_t ld_values(const rapt_problem *p) { return (size_t)chunk_steps(p) * STEP_PAIRS + RAPT_ROW_PADDING; }

static size_t bf16_key_floats(const rapt_problem *p) { return (size_t)chunk_keys(p) * ld_keys(p); }

/* lane_scratch.values has two parts. The first is V, as chain pairs, [d_v + 1][ld_values], or in add_attended_chunk_bf16 the rows
 * of one block (stage_values_of_block). The second is the weights of a tile of queries, [steps of keys][STEP_PAIRS][TILE_ROWS],
 * or while V is staged, before there are weights, the rows of one step as bf16. */

/* Returns the floats of the first part. */
static inline size_t staged_floats(const rapt_problem *p) {
    size_t channels = (size_t)(p->d_v + 1) * ld_values(p), rows = RAPT_BLOCK * staged_bf16_values(p);
    return padded(channels > rows ? channels : rows);
}
static size_t bf16_value_floats(const rapt_problem *p) {
    size_t weights = (size_t)chunk_steps(p) * RAPT_BF16_STEP_FLOATS, rows = STEP_PAIRS * whole_steps(p->d_v);
    return staged_floats(p) + (weights > rows ? weights : rows);
}

/* Returns the address of the weights. */
static inline float *weights_at(const rapt_problem *p, const lane_scratch *s) { return s->values + staged_floats(p); }

/* Packs Q in place, as chain pairs, [steps][STEP_PAIRS][TILE_ROWS]. In place is safe: channels c to c + 3 are read before their
 * pairs are written, to rows c / 2 and c / 2 + 1. */
static void pack_bf16_queries(float *q, int channels, int vectors) {
    for (int c = 0; c < (int)whole_steps(channels); c += 4)
        for (int i = 0; i < vectors * RAPT_VL; i += RAPT_VL) {
            vf x[4];
            for (int j = 0; j < 4; j++)
                x[j] = c + j < channels ? bf16_factor(v_load(q + (size_t)(c + j) * TILE_ROWS + i)) : v_set1(0.0f);
            for (int j = 0; j < 2; j++) v_store(q + (size_t)(c / 2 + j) * TILE_ROWS + i, v_as_float(pair_up(x[j + 2], x[j])));
        }
}

/* Sixteen rows of a step, as chain pairs, are transposed as dwords. */
static void pack_bf16_query_rows(float *q, const char *const *rows, int channels, int vectors) {
    for (int c = 0; c < channels; c += RAPT_STEP, q += RAPT_BF16_STEP_FLOATS)
        for (int v = 0; v < vectors; v++) {
            vf pairs[RAPT_VL];
            for (int r = 0; r < RAPT_VL; r++) {
                const vi line = v_as_int(v_load(rows[v * RAPT_VL + r] + (size_t)c * sizeof(uint16_t)));
                pairs[r] = v_as_float(i_chain_pairs(flush_subthreshold_pairs(line)));
            }
            v_transpose(pairs);
            for (int j = 0; j < STEP_PAIRS; j++) v_store(q + (size_t)j * TILE_ROWS + v * RAPT_VL, pairs[j]);
        }
}

/* Loads the step of a row of bf16 that begins with element c, and 0 for what the row does not have. */
static RAPT_INLINE vi load_line(const char *row, int c, int elements) {
    const char *from = row + (size_t)c * sizeof(uint16_t);
    return v_as_int(c + RAPT_STEP <= elements ? v_load(from) : v_load_part(from, (size_t)(elements - c) * sizeof(uint16_t)));
}

/* Writes one row of K, or of weights, as chain pairs. Subthreshold numbers are rare, so rows in whole steps are written as they
 * are and searched on the way. Returns `folded` with the row folded in (has_subthreshold). row: scratch for a row of f32, in
 * whole vectors. */
static RAPT_INLINE vi stage_row_of_chains(rapt_type type, float *to, size_t step, const char *from, int channels, float *row,
                                          vi folded) {
    enum { MOST = RAPT_MAX_HEAD_DIM > RAPT_LINEAR_PART ? RAPT_MAX_HEAD_DIM : RAPT_LINEAR_PART };
    uint16_t copy[MOST];
    if (type != RAPT_BF16) {
        copy_as_bf16(type, copy, whole_steps(channels), &from, 1, channels, NULL, row);
        from = (const char *)copy;
        channels = (int)whole_steps(channels);
    }
    for (int c = 0; c < channels; c += RAPT_STEP) {
        const vi line = load_line(from, c, channels);
        v_store(to + (size_t)(c / RAPT_STEP) * step, v_as_float(i_chain_pairs(line)));
        folded = i_fold_smallest_bf16(folded, line);
    }
    return folded;
}

/* Stages n rows of K, or of weights, as chain pairs, ld floats from row to row and `step` from step to step. */
static void stage_rows_of_chains(rapt_type type, float *to, size_t ld, size_t step, const char *const *rows, int n, int channels,
                                 float *row) {
    vi folded = i_set1(0);
    for (int r = 0; r < n; r++) folded = stage_row_of_chains(type, to + (size_t)r * ld, step, rows[r], channels, row, folded);
    for (int r = 0; r < n && has_subthreshold(folded); r++)
        for (int c = 0; c < (int)whole_steps(channels); c += RAPT_STEP) {
            float *pairs = to + (size_t)r * ld + (size_t)(c / RAPT_STEP) * step;
            v_store(pairs, v_as_float(flush_subthreshold_pairs(v_as_int(v_load(pairs)))));
        }
}

static void stage_bf16_keys(const rapt_task *t, const lane_scratch *s, const block *b) {
    const rapt_problem *p = t->problem;
    const char *rows[RAPT_BLOCK];
    find_rows(rows, t, t->k, &p->k, b, b->first, b->end);
    stage_rows_of_chains(p->k.type, s->keys + (size_t)(b->number % RAPT_CHUNK + b->first) * ld_keys(p), ld_keys(p), STEP_PAIRS,
                         rows + b->first, b->end - b->first, p->d_k, s->row);
}

/* Transposes V, of each step of keys a line of 32 channels at a time. The two keys of a chain pair are interleaved channel by
 * channel, the even channels into one vector and the odd ones into another. The step has 16 chain pairs, so the vectors of even
 * channels make a square, and so do the others; each is transposed. Keys that are not in the block's [first, end) become 0. */
static void stage_bf16_values(const rapt_task *t, const lane_scratch *s, const block *b, const float *scales) {
    const rapt_problem *p = t->problem;
    const char *rows[RAPT_BLOCK];
    enum { LINE = 2 * RAPT_VL }; /* channels at a time */
    const vi low = i_set1(0xffff), high = i_set1(INT32_MIN >> 15);
    static const uint16_t none[RAPT_MAX_HEAD_DIM];
    const size_t whole = whole_steps(p->d_v), ld = ld_values(p);
    uint16_t *const copies = (uint16_t *)weights_at(p, s);
    find_rows(rows, t, t->v, &p->v, b, b->first, b->end);
    const bool in_place = p->v.type == RAPT_BF16 && !scales;
    const int channels = in_place ? p->d_v : (int)whole;
    for (int step = b->first / RAPT_STEP * RAPT_STEP; step < b->end; step += RAPT_STEP) {
        float *to = s->values + (size_t)((b->number % RAPT_CHUNK + step) / RAPT_STEP) * STEP_PAIRS;
        const char *from[RAPT_STEP];
        for (int n = step; n < step + RAPT_STEP; n++) {
            from[n - step] = (const char *)none;
            if (n < b->first || n >= b->end) continue;
            from[n - step] = rows[n];
            if (in_place) continue;
            uint16_t *const copy = copies + (size_t)(n - step) * whole;
            copy_as_bf16(p->v.type, copy, whole, &rows[n], 1, p->d_v, scales ? scales + n : NULL, s->row);
            from[n - step] = (const char *)copy;
        }
        for (int c = 0; c < p->d_v; c += LINE) {
            vf even[RAPT_VL], odd[RAPT_VL];
            vi folded = i_set1(0);
            for (bool flush = false;; flush = true) {
                for (int j = 0; j < STEP_PAIRS; j++) {
                    const int key = j / 2 * 4 + j % 2;
                    vi x = load_line(from[key], c, channels), y = load_line(from[key + 2], c, channels);
                    if (flush) x = flush_subthreshold_pairs(x), y = flush_subthreshold_pairs(y);
                    else folded = i_fold_smallest_bf16(i_fold_smallest_bf16(folded, x), y);
                    even[j] = v_as_float(i_or(i_shl(x, 16), i_and(y, low)));
                    odd[j] = v_as_float(i_or(i_and(x, high), i_shr(y, 16)));
                }
                if (flush || !has_subthreshold(folded)) break;
            }
            v_transpose(even);
            v_transpose(odd);
            for (int j = 0; j < RAPT_VL && c + 2 * j < p->d_v; j++) {
                v_store(to + (size_t)(c + 2 * j) * ld, even[j]);
                if (c + 2 * j + 1 < p->d_v) v_store(to + (size_t)(c + 2 * j + 1) * ld, odd[j]);
            }
        }
        v_store(to + (size_t)p->d_v * ld, v_as_float(i_set1(0x3f803f80))); /* the channel of ones */
    }
}

/* ---- Queries in lanes ---------------------------------------------------------------------------------------------------- */

static void score_bf16(const rapt_problem *p, const query_tile *tile, const lane_scratch *s, const block *b, next_chunk *next) {
    (void)next;
    const size_t first = (size_t)(b->number % RAPT_CHUNK + b->first);
    chain_steps(s->keys + first * ld_keys(p), ld_keys(p), tile->q, key_steps(p), s->s + first * TILE_ROWS, true,
                b->end - b->first, tile->vectors);
}

/* Weighs keys [first, end) of a chunk, whole steps, for nv vectors of queries. nan_safe: true if weights of NaN are right; if
 * false *special records NaN. */
static RAPT_INLINE void weigh_chains_of(const int nv, const bool nan_safe, const rapt_problem *p, const lane_state *state,
                                        const float *scores, float *to, int first, int end, vi *special) {
    const vf exponent = v_set1(p->exponent), least = v_set1(least_bf16_difference(p));
    vf at[4];
    UNROLLED(v, nv) at[v] = finite_max(v_load(state->m + v * RAPT_VL));
    for (int n = first; n < end; n += 4)
        UNROLLED(v, nv) {
            vi w[4];
            UNROLLED(j, 4) {
                const vf d = v_sub(v_load(scores + (size_t)(n + j) * TILE_ROWS + v * RAPT_VL), at[v]);
                w[j] = nan_safe ? i_shr(v_as_int(v_exp2_bf16(d, exponent, least)), 16)
                                : v_weight_halves(d, exponent, least, special);
            }
            UNROLLED(j, 2)
                v_store(to + (size_t)(n / 2 + j) * TILE_ROWS + v * RAPT_VL,
                        v_as_float(i_or(i_shl(w[j], 16), i_and(w[j + 2], i_set1(0xffff)))));
        }
}

/* Weighs a tile's scores of a chunk. Returns what *special recorded. */
static RAPT_INLINE vi weigh_chains(const bool nan_safe, const rapt_problem *p, const lane_scratch *s, const tile_work *w) {
    vi special = i_set1(0);
    for (int i = 0; i < w->count; i++) {
        const block *b = &w->blocks[i];
        const int base = (int)(b->number % RAPT_CHUNK), first = base + b->first / RAPT_STEP * RAPT_STEP,
                  end = base + (b->end + RAPT_STEP - 1) / RAPT_STEP * RAPT_STEP;
        RAPT_BY_COUNT(w->tile->vectors, weigh_chains_of, nan_safe, p, &w->tile->chunk_state, s->s, weights_at(p, s), first, end,
                      &special);
    }
    return special;
}

/* Weighs a tile's scores of a chunk, with wrong results for NaN. Returns what *special recorded. */
static RAPT_NOINLINE vi weigh_quickly(const rapt_problem *p, const lane_scratch *s, const tile_work *w) {
    return weigh_chains(false, p, s, w);
}

/* Weighs a tile's scores of a chunk, right for NaN, too. */
static RAPT_NOINLINE void weigh_with_nan(const rapt_problem *p, const lane_scratch *s, const tile_work *w) {
    weigh_chains(true, p, s, w);
}

/* Returns the step of a chunk in which a block begins. */
static inline int first_step(const block *b) { return ((int)(b->number % RAPT_CHUNK) + b->first) / RAPT_STEP; }

/* Returns the step of a chunk before which a block ends. */
static inline int end_step(const block *b) { return ((int)(b->number % RAPT_CHUNK) + b->end + RAPT_STEP - 1) / RAPT_STEP; }

static void advance_bf16(const rapt_problem *p, const lane_scratch *s, const tile_work *now, const tile_work *before) {
    (void)before; /* the same: RAPT_BF16_LAG is 0 */
    if (!now) return;
    exclude_rest_of_steps(now, s->s);
    if (has_special_weights(weigh_quickly(p, s, now))) weigh_with_nan(p, s, now);
    for (int i = 0, next; i < now->count; i = next) {
        const int step = first_step(&now->blocks[i]);
        int end = end_step(&now->blocks[i]);
        for (next = i + 1; next < now->count && first_step(&now->blocks[next]) == end; next++) end = end_step(&now->blocks[next]);
        chain_steps(s->values + step * STEP_PAIRS, ld_values(p), weights_at(p, s) + (size_t)step * RAPT_BF16_STEP_FLOATS,
                    end - step, now->tile->chunk_state.o, i == 0, p->d_v + 1, now->tile->vectors);
    }
}

/* ---- Keys in lanes ------------------------------------------------------------------------------------------------------- */

/* The chain pairs of a step lie in the first half of its floats. */
static void pack_bf16_row(float *q, int n) {
    for (int c = 0; c < n; c += RAPT_STEP) {
        uint16_t halves[RAPT_STEP];
        for (int i = 0; i < RAPT_STEP; i += RAPT_VL) i_store_u16(halves + i, i_shr(v_as_int(bf16_factor(v_load(q + c + i))), 16));
        v_store(q + c, v_as_float(i_chain_pairs(v_as_int(v_load(halves)))));
    }
}

static RAPT_INLINE bool score_bf16_tile(const bool flush, const int nr, const char *const *keys, size_t offset, int channels,
                                        const float *q, size_t ldq, accumulate_mode mode, float *s, size_t lds) {
    vi folded = i_set1(0);
    vf sum[4];
    UNROLLED(r, nr) sum[r] = mode == ACCUMULATE_ADD ? v_load(s + (size_t)r * lds) : v_set1(0.0f);
    for (int c = 0; c < channels; c += RAPT_STEP) {
        const size_t at = offset + (size_t)c * sizeof(uint16_t);
        vf even[4], odd[4], pairs[STEP_PAIRS];
        if (c + RAPT_STEP <= channels)
            UNROLLED(j, RAPT_VL) pairs[j] = v_load(keys[j] + at);
        else
            UNROLLED(j, RAPT_VL) pairs[j] = v_load_part(keys[j] + at, (size_t)(channels - c) * sizeof(uint16_t));
        UNROLLED(j, RAPT_VL) {
            vi line = v_as_int(pairs[j]);
            if (flush) line = flush_subthreshold_pairs(line);
            else folded = i_fold_smallest_bf16(folded, line);
            pairs[j] = v_as_float(i_chain_pairs(line));
        }
        v_transpose(pairs);
        UNROLLED(r, nr) even[r] = odd[r] = v_set1(0.0f);
        UNROLLED(j, STEP_PAIRS / 2) {
            UNROLLED(i, 2) prefetch(keys[2 * j + i + RAPT_KEYS_AHEAD], at);
            UNROLLED(r, nr) {
                even[r] = v_fma_pairs(even[r], pairs[2 * j], v_broadcast(q + r * ldq + c + 2 * j));
                odd[r] = v_fma_pairs(odd[r], pairs[2 * j + 1], v_broadcast(q + r * ldq + c + 2 * j + 1));
            }
        }
        UNROLLED(r, nr) sum[r] = v_add(sum[r], v_add(even[r], odd[r]));
    }
    if (!flush && has_subthreshold(folded)) return false;
    UNROLLED(r, nr) v_store(s + (size_t)r * lds, sum[r]);
    return true;
}

/* row_scratch.kernel_scratch has the weights of a step of keys, as chain pairs, [rows][STEP_PAIRS]. */
static size_t bf16_scratch_floats(const rapt_problem *p, int rows) {
    (void)p;
    return (size_t)rows * STEP_PAIRS;
}

/* The rows of V of a step, by the parity of their keys. With each, the row that lies `ahead` rows of its parity further on is
 * prefetched. */
typedef struct step_values {
    const char *const *rows[2];
    int ahead;
} step_values;

/* Adds one step of P V for nr rows and nv lines of 32 channels, which begin `at` bytes after the addresses of the rows of V. The
 * even channels of a line go to one vector of O, the odd ones to the next. If the line is not `whole`, and there is one, V has
 * only `bytes` bytes of it. flush: as in score_bf16_tile. */
static RAPT_INLINE bool chain_values(const bool flush, const bool whole, const int nv, const int nr, const step_values *v,
                                     const float *weights, size_t at, size_t bytes, float *o, size_t ldo) {
    const vi low = i_set1(0xffff), high = i_set1(INT32_MIN >> 15);
    vi folded = i_set1(0);
    vf even[2][8], odd[2][8]; /* [chain][row, line]: the sums of even channels and of odd ones */
    UNROLLED(i, nr * nv)
        UNROLLED(chain, 2) even[chain][i] = odd[chain][i] = v_set1(0.0f);
    for (int j = 0; j < STEP_PAIRS / 2; j++)
        UNROLLED(chain, 2) {
            const char *const *rows = v->rows[chain] + 2 * j, *const *later = rows + v->ahead;
            UNROLLED(l, nv) {
                const size_t of_line = at + (size_t)l * sizeof(vf);
                vi x = v_as_int(whole ? v_load(rows[0] + of_line) : v_load_part(rows[0] + of_line, bytes));
                vi y = v_as_int(whole ? v_load(rows[1] + of_line) : v_load_part(rows[1] + of_line, bytes));
                if (flush) x = flush_subthreshold_pairs(x), y = flush_subthreshold_pairs(y);
                else folded = i_fold_smallest_bf16(i_fold_smallest_bf16(folded, x), y);
                prefetch(later[0], of_line);
                prefetch(later[1], of_line);
                const vf of_even = v_as_float(i_or(i_shl(x, 16), i_and(y, low))),
                         of_odd = v_as_float(i_or(i_and(x, high), i_shr(y, 16)));
                UNROLLED(r, nr) {
                    const vf weight = v_broadcast(weights + (size_t)r * STEP_PAIRS + 2 * j + chain);
                    even[chain][r * nv + l] = v_fma_pairs(even[chain][r * nv + l], of_even, weight);
                    odd[chain][r * nv + l] = v_fma_pairs(odd[chain][r * nv + l], of_odd, weight);
                }
            }
        }
    if (!flush && has_subthreshold(folded)) return false;
    UNROLLED(r, nr)
        UNROLLED(l, nv) {
            float *to = o + (size_t)r * ldo + l * RAPT_STEP;
            v_store(to, v_add(v_load(to), v_add(even[0][r * nv + l], even[1][r * nv + l])));
            v_store(to + RAPT_VL, v_add(v_load(to + RAPT_VL), v_add(odd[0][r * nv + l], odd[1][r * nv + l])));
        }
    return true;
}

/* Adds one step of P V with flushing, for any number of channels and rows, a line and a row at a time: this is rare, so one
 * instance is enough. */
static RAPT_NOINLINE void chain_values_flushed(int channels, int rows, const step_values *v, const float *weights, size_t at,
                                               float *o, size_t ldo) {
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < channels; c += RAPT_STEP) {
            const size_t line = (size_t)c * sizeof(uint16_t), bytes = (size_t)(channels - c) * sizeof(uint16_t);
            chain_values(true, false, 1, 1, v, weights + r * STEP_PAIRS, at + line, bytes < sizeof(vf) ? bytes : sizeof(vf),
                         o + (size_t)r * ldo + c, ldo);
        }
}

/* Adds a register tile of one step of P V: nr rows and nv whole lines, or one with only `channels` channels. If it has met a
 * subthreshold number, it is computed again with flushing. */
static RAPT_INLINE void chain_values_tile(const bool whole, const int nv, const int nr, const step_values *v,
                                          const float *weights, size_t at, int channels, float *o, size_t ldo) {
    if (!chain_values(false, whole, nv, nr, v, weights, at, (size_t)channels * sizeof(uint16_t), o, ldo))
        chain_values_flushed(channels, nr, v, weights, at, o, ldo);
}

/* Adds one step of P V for nr rows and all channels, nv lines at a time, then one by one, and then what is left. */
static RAPT_INLINE void chain_lines(const int nv, const int nr, const step_values *v, const float *weights, size_t at,
                                    int channels, float *o, size_t ldo) {
    for (; channels >= nv * RAPT_STEP; channels -= nv * RAPT_STEP, at += (size_t)nv * sizeof(vf), o += nv * RAPT_STEP)
        chain_values_tile(true, nv, nr, v, weights, at, nv * RAPT_STEP, o, ldo);
    for (; channels >= RAPT_STEP; channels -= RAPT_STEP, at += sizeof(vf), o += RAPT_STEP)
        chain_values_tile(true, 1, nr, v, weights, at, RAPT_STEP, o, ldo);
    if (channels > 0) chain_values_tile(false, 1, nr, v, weights, at, channels, o, ldo);
}

static void add_bf16_step(const rapt_task *t, const row_scratch *s, int kv_head, query_row *rows, int n, const value_parities *v,
                          const block *b, int from, int to) {
    static const uint16_t none[RAPT_MAX_HEAD_DIM];
    const rapt_problem *p = t->problem;
    const bool scaled = scaled_by_key(&p->v_scales), copy = scaled || p->v.type != RAPT_BF16;
    const int in_chunk = (int)(b->number % RAPT_CHUNK), step = from / RAPT_STEP * RAPT_STEP, whole = (int)whole_steps(p->d_v);
    const size_t offset = (size_t)kv_head * (size_t)p->v.head_stride,
                 ldo = (size_t)(n > 1 ? rows[1].chunk_state.o - rows[0].chunk_state.o : 0);
    float scales[RAPT_BLOCK];
    uint16_t *const copies = (uint16_t *)s->values;
    if (scaled) load_key_scales(t, scales, t->v_scales + kv_head * p->v_scales.head_stride, &p->v_scales, b->number, from, to);
    const char *const *const first[2] = {v->rows[0] + (in_chunk + step) / 2, v->rows[1] + (in_chunk + step) / 2};
    const char *gathered[2][STEP_PAIRS];
    step_values of = {.rows = {first[0], first[1]}, .ahead = RAPT_BF16_VALUES_AHEAD / 2};
    size_t at = offset;
    if (copy || to - from < RAPT_STEP) {
        for (int i = 0; i < RAPT_STEP; i++) {
            const int key = step + i;
            const char **row = &gathered[i % 2][i / 2];
            *row = (const char *)none;
            if (key < from || key >= to) continue;
            *row = first[i % 2][i / 2] + offset;
            if (!copy) continue;
            prefetch_row(first[i % 2][i / 2 + of.ahead], offset, p->v_row);
            uint16_t *const to_row = copies + (size_t)i * (size_t)whole;
            copy_as_bf16(p->v.type, to_row, (size_t)whole, row, 1, p->d_v, scaled ? scales + key : NULL, s->row);
            *row = (const char *)to_row;
        }
        of = (step_values){.rows = {gathered[0], gathered[1]}};
        at = 0;
    }
    for (int r = 0; r < n; r++) {
        const float *weights = s->s + (size_t)(kv_head * n + r) * RAPT_CHUNK + in_chunk + step;
        uint16_t halves[RAPT_STEP];
        for (int i = 0; i < RAPT_STEP; i += RAPT_VL) i_store_u16(halves + i, i_shr(v_as_int(v_load(weights + i)), 16));
        v_store(s->kernel_scratch + r * STEP_PAIRS, v_as_float(i_chain_pairs(v_as_int(v_load(halves)))));
    }
    float *o = rows[0].chunk_state.o;
    const float *weights = s->kernel_scratch;
    const int channels = copy ? whole : p->d_v;
    for (int now; n > 0; n -= now, o += (size_t)now * ldo, weights += now * STEP_PAIRS) {
        now = rapt_min(n, 4);
        if (now == 4) chain_lines(1, 4, &of, weights, at, channels, o, ldo);
        else if (now == 3) chain_lines(1, 3, &of, weights, at, channels, o, ldo);
        else if (now == 2) chain_lines(2, 2, &of, weights, at, channels, o, ldo);
        else chain_lines(4, 1, &of, weights, at, channels, o, ldo);
    }
}

static void end_bf16_rows(const rapt_problem *p, const row_scratch *s, query_row *rows, int heads, int n) {
    (void)s;
    for (int r = 0; r < heads * n; r++) interleave_channels(rows[r].chunk_state.o, 2, (int)whole_steps(p->d_v));
}

/* ---- Linear layers ------------------------------------------------------------------------------------------------------- */

/* Weights are staged with RAPT_VL rows in lanes: [RAPT_VL rows][step][pair][row]. Many tokens take a pair of a row at a time; few
 * tokens take a vector, at the rate of memory. */
enum { LANES_STEP_FLOATS = STEP_PAIRS * RAPT_VL }; /* the floats of a step of RAPT_VL rows */
_Static_assert(RAPT_VL == RAPT_PARTIAL_SUMS, "packed weights are addressed by RAPT_PARTIAL_SUMS rows");

/* Returns the floats of a part of RAPT_VL rows of weights. */
static inline size_t lanes_part_floats(const rapt_linear_problem *p) { return (size_t)part_steps(p, 0) * LANES_STEP_FLOATS; }

static size_t bf16_weight_floats(const rapt_linear_problem *p, size_t rows) { return rows / RAPT_VL * lanes_part_floats(p); }

static void stage_bf16_weights(const rapt_linear_problem *p, rapt_type type, const many_scratch *s, const char *const *rows,
                               int n, int channels) {
    float *to = s->weights;
    for (int r = 0; r < n; r += RAPT_VL, to += lanes_part_floats(p)) {
        stage_rows_of_chains(type, to, STEP_PAIRS, LANES_STEP_FLOATS, rows + r, rapt_min(RAPT_VL, n - r), channels, s->row);
        float *step = to;
        for (int c = 0; c < channels; c += RAPT_STEP, step += LANES_STEP_FLOATS) {
            vf pairs[RAPT_VL];
            UNROLLED(j, RAPT_VL) pairs[j] = v_load(step + (size_t)j * RAPT_VL);
            v_transpose(pairs);
            UNROLLED(j, RAPT_VL) v_store(step + (size_t)j * RAPT_VL, pairs[j]);
        }
    }
}

static void multiply_bf16_part(const rapt_linear_problem *p, const float *weights, int64_t part, const float *tokens, float *c,
                               float *even, int rows, int vectors, prefetch_queue *ahead) {
    (void)even;
    for (int row = 0; row < rows; row += RAPT_VL, weights += lanes_part_floats(p), c += RAPT_VL * TILE_ROWS)
        for (int step = 0; step < part_steps(p, part); step++)
            chain_step_of_lanes(weights + (size_t)step * LANES_STEP_FLOATS, tokens + (size_t)step * RAPT_BF16_STEP_FLOATS, c,
                                part == 0 && step == 0, rapt_min(RAPT_VL, rows - row), vectors, ahead);
}

static int bf16_part_prefetches(const rapt_linear_problem *p, int64_t part, int rows) {
    return part_steps(p, part) * (rows / lanes_tile_rows(RAPT_TILE_VECTORS));
}

/* The most tokens of a register tile: each has a sum of each chain of a step, and one of all steps, 24 of 32 registers. */
enum { PACKED_TILE_TOKENS = 8 };

/* Tokens of a register tile lie side by side: [pair][token]. */
static void place_token_for_packed(float *x, size_t in, int i, int tokens, const float *row) {
    const int first = i / PACKED_TILE_TOKENS * PACKED_TILE_TOKENS, nt = rapt_min(PACKED_TILE_TOKENS, tokens - first);
    float *to = x + (size_t)first * (in / 2) + (i - first);
    for (size_t c = 0; c < in; c += RAPT_STEP)
        for (size_t j = 0; j < STEP_PAIRS; j++, to += nt) *to = row[c + j];
}

/* Adds ns steps of RAPT_VL rows of packed weights to the sums of nt tokens. x: [pair][nt]. */
static RAPT_INLINE void chain_packed_steps(const int ns, const int nt, const float *weights, const float *x, vf *sum) {
    /* How many bytes ahead memory is read. One token is 0.78 to 0.84 times as fast with the distance of several, and these with 2
     * KiB 0.72 to 0.89 times (14336 rows of 4096 channels, AMD EPYC, Zen 4; docs/experiments/bf16.md). */
    const size_t ahead = nt == 1 ? 3 << 10 : 16 << 10;
    vf even[2][PACKED_TILE_TOKENS], odd[2][PACKED_TILE_TOKENS];
    UNROLLED(step, ns)
        UNROLLED(t, nt) even[step][t] = odd[step][t] = v_set1(0.0f);
    UNROLLED(j, STEP_PAIRS / 2)
        UNROLLED(step, ns) {
            const float *from = weights + (size_t)step * LANES_STEP_FLOATS + (size_t)(2 * j) * RAPT_VL;
            const float *tokens = x + (size_t)(step * STEP_PAIRS + 2 * j) * (size_t)nt;
            const vf of_even = v_load(from), of_odd = v_load(from + RAPT_VL);
            UNROLLED(i, 2) prefetch((const char *)(from + (size_t)i * RAPT_VL), ahead);
            UNROLLED(t, nt) {
                even[step][t] = v_fma_pairs(even[step][t], of_even, v_broadcast(tokens + t));
                odd[step][t] = v_fma_pairs(odd[step][t], of_odd, v_broadcast(tokens + nt + t));
            }
        }
    UNROLLED(step, ns)
        UNROLLED(t, nt) sum[t] = v_add(sum[t], v_add(even[step][t], odd[step][t]));
}

/* Adds a part of RAPT_VL rows of packed weights, which has so many steps, to the sums of nt tokens, or begins these sums if it is
 * the `first`. x: [pair][nt]; sums: [token][RAPT_VL]. */
static RAPT_INLINE void chain_packed_part(const int nt, const float *weights, int steps, const float *x, bool first,
                                          float *sums) {
    const int ns = nt > 1 && nt <= 5 ? 2 : 1; /* what 32 registers have room for; one token is faster in the order of memory */
    vf sum[PACKED_TILE_TOKENS];
    UNROLLED(t, nt) sum[t] = first ? v_set1(0.0f) : v_load(sums + (size_t)t * RAPT_VL);
    for (; steps >= ns; steps -= ns, weights += ns * LANES_STEP_FLOATS, x += ns * STEP_PAIRS * nt)
        chain_packed_steps(ns, nt, weights, x, sum);
    if (steps > 0) chain_packed_steps(1, nt, weights, x, sum);
    UNROLLED(t, nt) v_store(sums + (size_t)t * RAPT_VL, sum[t]);
}

static RAPT_NOINLINE void sum_packed_bf16_rows(const rapt_linear_problem *p, const float *weights, int64_t part, const float *x,
                                               int tokens, float *sums) {
    const int steps = part_steps(p, part);
    const size_t pairs = whole_steps(p->in) / 2, done = (size_t)part * (RAPT_LINEAR_PART / 2);
    for (int nt; tokens > 0; tokens -= nt, x += pairs * (size_t)nt, sums += (size_t)nt * RAPT_VL) {
        nt = rapt_min(tokens, PACKED_TILE_TOKENS);
        const float *from = x + done * (size_t)nt;
        /* clang-format off */
        switch (nt) {
        case 8: chain_packed_part(8, weights, steps, from, part == 0, sums); break;
        case 7: chain_packed_part(7, weights, steps, from, part == 0, sums); break;
        case 6: chain_packed_part(6, weights, steps, from, part == 0, sums); break;
        case 5: chain_packed_part(5, weights, steps, from, part == 0, sums); break;
        case 4: chain_packed_part(4, weights, steps, from, part == 0, sums); break;
        case 3: chain_packed_part(3, weights, steps, from, part == 0, sums); break;
        case 2: chain_packed_part(2, weights, steps, from, part == 0, sums); break;
        default: chain_packed_part(1, weights, steps, from, part == 0, sums);
        }
        /* clang-format on */
    }
}
