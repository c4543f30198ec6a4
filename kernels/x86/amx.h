/* SPDX-License-Identifier: Apache-2.0 */
/* Bf16 and integer arithmetic in the matrix unit of AMX (Intel SDM volume 1, chapter 18), in words. The unit has eight tiles of
 * 16 rows of 64 bytes. The including file defines these words; a tile is a constant from 0 to 7:
 *
 *   t_configure(configuration)   sets the shapes of all tiles, at most 16 rows of 64 bytes, from 64 bytes
 *   t_release()                  gives the tiles up
 *   t_zero(tile)                 fills a tile with zeros
 *   t_load(tile, from, stride)   loads rows of 64 bytes that lie stride bytes apart
 *   t_store(tile, to, stride)    stores them
 *   t_multiply_bf16(c, a, b)     C[m][n] += e + o, where e and o are the sums of A[m][i] B[i / 2][2 n + i % 2] over
 *                                the even and the odd i below 32, in the order of docs/order.md
 *   t_multiply_bytes(c, a, b)    C[m][n] += the sum of A[m][i] B[i / 4][4 n + i % 4] over the bytes i of A's rows; A has
 *                                signed bytes, B unsigned ones, C 32-bit integers
 *
 * and with RAPT_OWN_WEIGHT_PAIRS 1:
 *
 *   t_weight_pairs(d, d2, c, least, special)   pairs of v_exp2_bf16(d, c, least) and v_exp2_bf16(d2, c, least). If a lane of d or
 *                                              d2 is NaN its result is wrong, and *special, which begins with zeros, records it
 *   t_any_special(special)                     true if there was a NaN
 *
 * With queries in lanes S^T = K Q^T: tiles of A are rows of K as they lie, and tiles of B are Q by pairs of channels. O^T = V^T
 * P^T: tiles of A are V transposed, and tiles of B are the weights by pairs of keys. All tiles of A and B are whole KiB in
 * scratch, so that no stride of the caller's makes their rows compete for the same cache sets. Two by two tiles of C are
 * multiplied at a time: each product then waits for the load of one tile. Linear layers do the same. With keys in lanes K is
 * multiplied where it lies, if its rows are evenly spaced, and O = P V: A is the weights, and B is V by pairs of keys. */

enum { TILE_LANES = 16, TILE_FLOATS = TILE_LANES * 16, KEYS_OF_TILE = 16 };

#define RAPT_BF16_STEP_FLOATS (RAPT_TILE_VECTORS * TILE_FLOATS)
#define RAPT_BF16_LAG         1
#define RAPT_BF16_PREFETCHES  (RAPT_BLOCK / RAPT_STEP * RAPT_TILE_VECTORS / 2)

#define RAPT_DOT_LANES 16
#define dot_product    dot_product

#define RAPT_MATRIX_TOKENS 16
#define sum_products       sum_products

#define begin_task           begin_task
#define end_task             end_task
#define bf16_key_floats      bf16_key_floats
#define bf16_value_floats    bf16_value_floats
#define pack_bf16_queries    pack_bf16_queries
#define pack_bf16_query_rows pack_bf16_query_rows
#define stage_bf16_keys      stage_bf16_keys
#define stage_bf16_values    stage_bf16_values
#define score_bf16           score_bf16
#define advance_bf16         advance_bf16
#define bf16_scratch_floats  bf16_scratch_floats
#define pack_bf16_rows       pack_bf16_rows
#define score_bf16_rows      score_bf16_rows
#define start_bf16_rows      start_bf16_rows
#define add_bf16_step        add_bf16_step
#define end_bf16_rows        end_bf16_rows

#define bf16_weight_floats   bf16_weight_floats
#define stage_bf16_weights   stage_bf16_weights
#define multiply_bf16_part   multiply_bf16_part
#define bf16_part_prefetches bf16_part_prefetches

#include "attend.h"

_Static_assert(RAPT_VL == TILE_LANES, "a row of a tile is a vector");

/* What t_configure reads: the shape of each tile. */
typedef struct tile_configuration {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_configuration;

/* tiles_of_rows[n - 1]: tiles 0 to 4 have n rows, the others 16. Constant objects, because gcc 12 assumes that t_configure reads
 * only their first bytes, and would drop stores to the rest. */
#define TILES(n) {.palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {n, n, n, n, n, 16, 16, 16}}
static const tile_configuration tiles_of_rows[TILE_LANES] = {TILES(1),  TILES(2),  TILES(3),  TILES(4),  TILES(5),  TILES(6),
                                                             TILES(7),  TILES(8),  TILES(9),  TILES(10), TILES(11), TILES(12),
                                                             TILES(13), TILES(14), TILES(15), TILES(16)};
#undef TILES

/* Of linear layers in integers, whose sums end after each 32 channels or 16: tile 0 is C, 4 and 6 are A and B of 32 channels, 5
 * and 7 those of 16. */
static const tile_configuration tiles_of_integers = {
    .palette = 1, .row_bytes = {64, 64, 64, 64, 32, 16, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 8, 4}};

/* From one replaceable function to the next, tiles keep nothing but their shapes, so call_logits_body may release them. No
 * callback runs between start_bf16_rows and end_bf16_rows, whose shapes are others. */
static RAPT_INLINE void begin_task(bool linear) {
    t_configure(INTEGER && linear ? &tiles_of_integers : &tiles_of_rows[TILE_LANES - 1]);
}
static RAPT_INLINE void end_task(void) { t_release(); }

/* Returns how many tiles take the channels of V and one channel of ones, whose sum is that of the weights. */
static inline int value_tiles(const rapt_problem *p) { return p->d_v / TILE_LANES + 1; }

/* Returns the floats of lane_scratch.keys, which has tiles [keys / 16][steps of channels]. */
static size_t bf16_key_floats(const rapt_problem *p) {
    return (size_t)(chunk_keys(p) / KEYS_OF_TILE * key_steps(p)) * TILE_FLOATS;
}

/* lane_scratch.values has three parts. The first is V, as tiles [tiles of channels][steps of keys], followed, while V is
 * transposed, by the rows of one step; for add_attended_chunk_bf16 it has rows of a block instead. The other two are the weights
 * of a tile of queries each, as tiles [steps of keys][vectors]. */

/* Returns the floats of V in tiles. */
static inline size_t value_floats(const rapt_problem *p) { return (size_t)(value_tiles(p) * chunk_steps(p)) * TILE_FLOATS; }

/* Returns the floats of the weights of a tile of queries. */
static inline size_t weight_floats(const rapt_problem *p) { return (size_t)(chunk_steps(p) * RAPT_TILE_VECTORS) * TILE_FLOATS; }

/* Returns the floats of the first part. */
static inline size_t staged_floats(const rapt_problem *p) {
    size_t tiles = value_floats(p) + STEP_PAIRS * whole_steps(p->d_v), rows = RAPT_BLOCK * staged_bf16_values(p);
    return padded(tiles > rows ? tiles : rows);
}

static size_t bf16_value_floats(const rapt_problem *p) { return staged_floats(p) + 2 * weight_floats(p); }

/* Returns the address of the weights of a tile of this parity. */
static inline float *weights_at(const rapt_problem *p, const lane_scratch *s, int parity) {
    return s->values + staged_floats(p) + (parity ? weight_floats(p) : 0);
}

/* Packs Q in place, into tiles [steps][vectors of TILE_ROWS]. In place is safe: a step is read completely before it is written,
 * and its tiles take half the space of its floats, so writing never overtakes reading. */
static void pack_bf16_queries(float *q, int channels, int vectors) {
    for (int c = 0; c < (int)whole_steps(channels); c += RAPT_STEP) {
        vi pairs[RAPT_TILE_VECTORS][STEP_PAIRS];
        for (int v = 0; v < vectors; v++)
            for (int j = 0; j < STEP_PAIRS; j++) {
                vf x[2];
                for (int i = 0; i < 2; i++)
                    x[i] = c + 2 * j + i < channels ? bf16_factor(v_load(q + (size_t)(c + 2 * j + i) * TILE_ROWS + v * RAPT_VL))
                                                    : v_set1(0.0f);
                pairs[v][j] = pair_up(x[0], x[1]);
            }
        float *to = q + (size_t)(c / RAPT_STEP * RAPT_TILE_VECTORS) * TILE_FLOATS;
        for (int v = 0; v < vectors; v++)
            for (int j = 0; j < STEP_PAIRS; j++) v_store(to + v * TILE_FLOATS + j * RAPT_VL, v_as_float(pairs[v][j]));
    }
}

/* Sixteen rows of a step are dwords of two channels, so their transpose is a tile. */
static void pack_bf16_query_rows(float *q, const char *const *rows, int channels, int vectors) {
    for (int c = 0; c < channels; c += RAPT_STEP, q += RAPT_BF16_STEP_FLOATS)
        for (int v = 0; v < vectors; v++) {
            vf pairs[TILE_LANES];
            for (int r = 0; r < TILE_LANES; r++)
                pairs[r] = v_as_float(
                    flush_subthreshold_pairs(v_as_int(v_load(rows[v * TILE_LANES + r] + (size_t)c * sizeof(uint16_t)))));
            v_transpose(pairs);
            for (int j = 0; j < STEP_PAIRS; j++) v_store(q + v * TILE_FLOATS + j * RAPT_VL, pairs[j]);
        }
}

/* Writes one row of K, or of weights, as a row of tiles: step i goes to to + i * TILE_FLOATS. bf16 rows are copied as well, so
 * that tile rows are adjacent and subthreshold numbers can be flushed. Those are rare, so rows in whole steps are copied as they
 * are and searched on the way. Returns `folded` with the row folded in (has_subthreshold). row: scratch for a row of f32, in
 * whole vectors. */
static RAPT_INLINE vi stage_row_of_tiles(rapt_type type, float *to, const char *from, int channels, float *row, vi folded) {
    enum { MOST = RAPT_MAX_HEAD_DIM > RAPT_LINEAR_PART ? RAPT_MAX_HEAD_DIM : RAPT_LINEAR_PART };
    uint16_t copy[MOST];
    const int whole = (int)whole_steps(channels);
    if (!in_steps(type, channels)) {
        copy_as_bf16(type, copy, (size_t)whole, &from, 1, channels, NULL, row);
        from = (const char *)copy;
    }
    for (int c = 0; c < whole; c += RAPT_STEP) {
        vi pairs = v_as_int(v_load(from + (size_t)c * sizeof *copy));
        v_store(to + c / RAPT_STEP * TILE_FLOATS, v_as_float(pairs));
        folded = i_fold_smallest_bf16(folded, pairs);
    }
    return folded;
}

/* Returns the address of row n of tiles of `steps` steps. */
static inline float *row_of_tiles(float *tiles, size_t n, size_t steps) {
    return tiles + n / TILE_LANES * steps * TILE_FLOATS + n % TILE_LANES * RAPT_VL;
}

/* Stages n rows of K, or of weights, as the rows from number `first` on of tiles of `steps` steps. */
static void stage_rows_of_tiles(rapt_type type, float *tiles, size_t first, size_t steps, const char *const *rows, int n,
                                int channels, float *row) {
    vi folded = i_set1(0);
    for (int r = 0; r < n; r++)
        folded = stage_row_of_tiles(type, row_of_tiles(tiles, first + (size_t)r, steps), rows[r], channels, row, folded);
    for (int r = 0; r < n && has_subthreshold(folded); r++)
        for (int c = 0; c < (int)whole_steps(channels); c += RAPT_STEP) {
            float *pairs = row_of_tiles(tiles, first + (size_t)r, steps) + c / RAPT_STEP * TILE_FLOATS;
            v_store(pairs, v_as_float(flush_subthreshold_pairs(v_as_int(v_load(pairs)))));
        }
}

static void stage_bf16_keys(const rapt_task *t, const lane_scratch *s, const block *b) {
    const rapt_problem *p = t->problem;
    const char *rows[RAPT_BLOCK];
    find_rows(rows, t, t->k, &p->k, b, b->first, b->end);
    stage_rows_of_tiles(p->k.type, s->keys, (size_t)(b->number % RAPT_CHUNK + b->first), (size_t)key_steps(p), rows + b->first,
                        b->end - b->first, p->d_k, s->row);
}

/* Transposes V. Of each step of keys, two adjacent rows at a time are interleaved channel by channel, the even channels in one
 * vector and the odd ones in another; 16 such vectors make a square, which is transposed. Keys that are not in the block's
 * [first, end) become 0. */
static void stage_bf16_values(const rapt_task *t, const lane_scratch *s, const block *b, const float *scales) {
    const rapt_problem *p = t->problem;
    const char *rows[RAPT_BLOCK];
    enum { LINE = 2 * RAPT_VL }; /* channels at a time */
    const vi low = i_set1(0xffff), high = i_set1(INT32_MIN >> 15);
    static const uint16_t none[LINE];
    int tiles = value_tiles(p);
    size_t whole = whole_steps(p->d_v);
    float *values = s->values;
    uint16_t *const copies = (uint16_t *)(values + value_floats(p));
    find_rows(rows, t, t->v, &p->v, b, b->first, b->end);
    bool in_place = p->v.type == RAPT_BF16 && p->d_v % LINE == 0 && !scales;
    for (int step = b->first / RAPT_STEP * RAPT_STEP; step < b->end; step += RAPT_STEP) {
        float *to = values + (size_t)((b->number % RAPT_CHUNK + step) / RAPT_STEP) * TILE_FLOATS;
        for (int n = rapt_max(step, b->first); n < rapt_min(step + RAPT_STEP, b->end) && !in_place; n++)
            copy_as_bf16(p->v.type, copies + (size_t)(n - step) * whole, whole, &rows[n], 1, p->d_v, scales ? scales + n : NULL,
                         s->row);
        for (int c = 0; c < p->d_v; c += LINE) {
            vf even[RAPT_VL], odd[RAPT_VL];
            for (int j = 0; j < STEP_PAIRS; j++) {
                vi x[2];
                for (int i = 0; i < 2; i++) {
                    int n = step + 2 * j + i;
                    bool there = n >= b->first && n < b->end;
                    const char *from = !there     ? (const char *)none
                                       : in_place ? rows[n] + (size_t)c * 2
                                                  : (const char *)(copies + (size_t)(n - step) * whole + c);
                    x[i] = v_as_int(v_load(from));
                    if (in_place) x[i] = flush_subthreshold_pairs(x[i]);
                }
                even[j] = v_as_float(i_or(i_and(x[0], low), i_shl(x[1], 16)));
                odd[j] = v_as_float(i_or(i_shr(x[0], 16), i_and(x[1], high)));
            }
            v_transpose(even);
            v_transpose(odd);
            for (int j = 0; j < RAPT_VL; j++) {
                int channel = c + 2 * j;
                float *row = to + (size_t)(channel / TILE_LANES * chunk_steps(p)) * TILE_FLOATS + channel % TILE_LANES * RAPT_VL;
                if (channel / TILE_LANES >= tiles) break;
                v_store(row, even[j]);
                v_store(row + RAPT_VL, odd[j]);
            }
        }
        /* The channel of ones, and zeros up to a whole tile. */
        for (int channel = p->d_v; channel < tiles * TILE_LANES; channel++)
            v_store(to + (size_t)(channel / TILE_LANES * chunk_steps(p)) * TILE_FLOATS + channel % TILE_LANES * RAPT_VL,
                    v_as_float(i_set1(channel == p->d_v ? 0x3f803f80 : 0)));
    }
}

/* Returns the weights of two keys for a vector of rows, as pairs. */
static RAPT_INLINE vi weight_pairs(vf first, vf second, vf c, vf least) {
    return pair_up(v_exp2_bf16(first, c, least), v_exp2_bf16(second, c, least));
}

#ifndef RAPT_OWN_WEIGHT_PAIRS
/* This version is made of the common words, which get NaN right, so there is nothing to record. */
static RAPT_INLINE vi t_weight_pairs(vf d, vf d2, vf c, vf least, vi *special) {
    (void)special;
    return weight_pairs(d, d2, c, least);
}
static inline bool t_any_special(vi special) {
    (void)special;
    return false;
}
#endif

/* ---- A pipeline of two stages: weights, and products by V ----------------------------------------------------------------- */

/* While the matrix unit multiplies the weights of query tile i - 1 by V, the vector unit turns the scores of tile i into weights.
 * Neither stage needs the other's results, so their instructions are interleaved: after each step of products (multiply_tiles)
 * `pace` pairs of keys are weighed.
 *
 *   stage      reads                                    writes
 *   weigh      the scores of tile i, s->s               weights_at i % 2
 *   multiply   weights_at (i - 1) % 2, V in s->values   O of tile i - 1
 *
 * weight_cursor says how far the first stage has come. advance_bf16 sets it to the first pair, multiply_tiles moves it from
 * inside the products, and end_weighing moves it to the last pair. Both stages are then complete: the scores of tile i may be
 * overwritten, and so may the weights of tile i - 1. In flight from one call to the next are only the weights of tile i. */

/* The pairs of adjacent keys of a chunk, in whole steps, that have no weights yet. */
typedef struct weight_cursor {
    const float *scores;        /* [keys of the chunk][TILE_ROWS] */
    float *to;                  /* the weights: tiles [steps of keys][vectors] */
    const block *blocks;        /* the current block, and those after it */
    int count;                  /* how many of them */
    int at, end;                /* the pairs of the current block that are left, counted from the chunk's first key */
    int pace;                   /* how many pairs are weighed after each step of products */
    vf from[RAPT_TILE_VECTORS]; /* the maximum that is subtracted */
    vf exponent, least;         /* arguments of v_exp2_bf16 */
    vi special;                 /* what t_weight_pairs records */
} weight_cursor;

/* Sets at and end to the current block's pairs. */
static inline void next_pairs(weight_cursor *w) {
    const int first = (int)(w->blocks->number % RAPT_CHUNK + w->blocks->first) / RAPT_STEP,
              end = (int)(w->blocks->number % RAPT_CHUNK + w->blocks->end - 1) / RAPT_STEP + 1;
    w->at = first * STEP_PAIRS;
    w->end = end * STEP_PAIRS;
}

/* Returns a cursor at the first pair of a tile's chunk. */
static weight_cursor start_weighing(const rapt_problem *p, const lane_scratch *s, const tile_work *v) {
    weight_cursor w = {.scores = s->s,
                       .to = weights_at(p, s, v->parity),
                       .blocks = v->blocks,
                       .count = v->count,
                       .exponent = v_set1(p->exponent),
                       .least = v_set1(least_bf16_difference(p)),
                       .special = i_set1(0)};
    for (int i = 0; i < v->tile->vectors; i++) w.from[i] = finite_max(v_load(v->tile->chunk_state.m + i * RAPT_VL));
    next_pairs(&w);
    return w;
}

/* Weighs the next n pairs, or all that are left, for nv vectors of queries. nan_safe: true if weights of NaN are right.
 * What the pairs of a block share is in local variables, since a store through `to` might otherwise change the cursor. */
static RAPT_INLINE void weigh_pairs_of(const int nv, const bool nan_safe, weight_cursor *w, int n) {
    const vf exponent = w->exponent, least = w->least;
    vf from[RAPT_TILE_VECTORS];
    vi special = w->special;
    UNROLLED(v, nv) from[v] = w->from[v];
    while (n > 0 && w->count > 0) {
        const int at = w->at, end = rapt_min(at + n, w->end);
        const float *pair = w->scores + (size_t)at * 2 * TILE_ROWS;
        for (int i = at; i < end; i++, pair += 2 * TILE_ROWS) {
            float *to = w->to + (size_t)(i / STEP_PAIRS) * RAPT_BF16_STEP_FLOATS + i % STEP_PAIRS * RAPT_VL;
            UNROLLED(v, nv) {
                vf first = v_sub(v_load(pair + v * RAPT_VL), from[v]),
                   second = v_sub(v_load(pair + TILE_ROWS + v * RAPT_VL), from[v]);
                vi pairs = nan_safe ? weight_pairs(first, second, exponent, least)
                                    : t_weight_pairs(first, second, exponent, least, &special);
                v_store(to + v * TILE_FLOATS, v_as_float(pairs));
            }
        }
        n -= end - at;
        w->at = end;
        if (end < w->end) break;
        w->blocks++;
        if (--w->count > 0) next_pairs(w);
    }
    w->special = special;
}

/* Weighs the next n pairs of a full query tile, or all that are left. */
static RAPT_INLINE void weigh_pairs(weight_cursor *w, int n) { weigh_pairs_of(RAPT_TILE_VECTORS, false, w, n); }

/* Weighs all pairs of a tile once more, right for NaN. This is rare, so vector by vector: one more instance is enough. */
static RAPT_NOINLINE void weigh_with_nan(const rapt_problem *p, const lane_scratch *s, const tile_work *v) {
    for (int i = 0; i < v->tile->vectors; i++) {
        weight_cursor w = start_weighing(p, s, v);
        w.scores += i * RAPT_VL;
        w.to += i * TILE_FLOATS;
        w.from[0] = w.from[i];
        weigh_pairs_of(1, true, &w, RAPT_CHUNK);
    }
}

/* Weighs the pairs that are left, and all once more if there was a NaN. */
static void end_weighing(const rapt_problem *p, const lane_scratch *s, const tile_work *v, weight_cursor *w) {
    RAPT_BY_COUNT(v->tile->vectors, weigh_pairs_of, false, w, RAPT_CHUNK);
    if (t_any_special(w->special)) weigh_with_nan(p, s, v);
}

/* Makes the compiler do all earlier stores before tiles are loaded. gcc does not know that its t_load reads memory. */
static RAPT_INLINE void before_loads(void) { __asm__ volatile("" ::: "memory"); }

/* Adds the products of na tiles of A by nv tiles of B for some steps. Tiles 0 to 3 are C, [na][nv] as a part of [2][2]; 4 and 5
 * are A, read from a and a2, 6 and 7 are B. From step to step, A is read a_step and B b_step floats further on; the two tiles of
 * B are adjacent. cursor: null, or weights that are computed meanwhile, `pace` pairs after each step. */
static RAPT_INLINE void multiply_tiles(const int na, const int nv, const float *a, const float *a2, size_t a_step, const float *b,
                                       size_t b_step, int steps, weight_cursor *cursor) {
    for (int i = 0; i < steps; i++, a += a_step, a2 += a_step, b += b_step) {
        t_load(6, b, 64);
        t_load(4, a, 64);
        t_multiply_bf16(0, 4, 6);
        if (na == 2) {
            t_load(5, a2, 64);
            t_multiply_bf16(2, 5, 6);
        }
        if (nv == 2) {
            t_load(7, b + TILE_FLOATS, 64);
            t_multiply_bf16(1, 4, 7);
            if (na == 2) t_multiply_bf16(3, 5, 7);
        }
        if (cursor) weigh_pairs(cursor, cursor->pace);
    }
}

/* Fills the na x nv tiles of C with zeros. */
static RAPT_INLINE void zero_tiles(const int na, const int nv) {
    before_loads();
    t_zero(0);
    if (nv == 2) t_zero(1);
    if (na == 2) t_zero(2);
    if (na == 2 && nv == 2) t_zero(3);
}

/* Loads C: rows of 16 * nv floats, ld floats apart, from `from` on for tiles 0 and 1 and from2 on for tiles 2 and 3. */
static RAPT_INLINE void load_tiles(const int na, const int nv, const float *from, const float *from2, size_t ld) {
    before_loads();
    t_load(0, from, ld * sizeof(float));
    if (nv == 2) t_load(1, from + RAPT_VL, ld * sizeof(float));
    if (na == 2) t_load(2, from2, ld * sizeof(float));
    if (na == 2 && nv == 2) t_load(3, from2 + RAPT_VL, ld * sizeof(float));
}

/* Stores C, laid out as for load_tiles. */
static RAPT_INLINE void store_tiles(const int na, const int nv, float *to, float *to2, size_t ld) {
    t_store(0, to, ld * sizeof(float));
    if (nv == 2) t_store(1, to + RAPT_VL, ld * sizeof(float));
    if (na == 2) t_store(2, to2, ld * sizeof(float));
    if (na == 2 && nv == 2) t_store(3, to2 + RAPT_VL, ld * sizeof(float));
}

/* Scores 32 keys for nv vectors of queries. */
static RAPT_INLINE void score_tiles(const int nv, const float *keys, int steps, const float *q, float *to) {
    zero_tiles(2, nv);
    multiply_tiles(2, nv, keys, keys + (size_t)steps * TILE_FLOATS, TILE_FLOATS, q, RAPT_BF16_STEP_FLOATS, steps, NULL);
    store_tiles(2, nv, to, to + KEYS_OF_TILE * TILE_ROWS, TILE_ROWS);
}

static void score_bf16(const rapt_problem *p, const query_tile *tile, const lane_scratch *s, const block *b, next_chunk *next) {
    int steps = key_steps(p), base = (int)(b->number % RAPT_CHUNK);
    for (int n = b->first / RAPT_STEP * RAPT_STEP; n < b->end; n += RAPT_STEP) {
        const float *keys = s->keys + (size_t)((base + n) / KEYS_OF_TILE * steps) * TILE_FLOATS;
        float *to = s->s + (size_t)(base + n) * TILE_ROWS;
        for (int v = 0; v < tile->vectors; v += 2) {
            if (tile->vectors - v >= 2) score_tiles(2, keys, steps, tile->q + v * TILE_FLOATS, to + v * RAPT_VL);
            else score_tiles(1, keys, steps, tile->q + v * TILE_FLOATS, to + v * RAPT_VL);
            prefetch_next_chunk(next);
        }
    }
}

/* Computes O of na tiles of channels and nv vectors of queries, for a tile's blocks of a chunk. values, weights: those of the
 * first of these tiles and vectors. */
static RAPT_INLINE void value_tiles_of(const int na, const int nv, const rapt_problem *p, const tile_work *v, const float *values,
                                       const float *weights, float *to, weight_cursor *cursor) {
    const size_t ld = (size_t)chunk_steps(p) * TILE_FLOATS;
    zero_tiles(na, nv);
    for (int i = 0; i < v->count; i++) {
        const block *b = &v->blocks[i];
        int first = (int)(b->number % RAPT_CHUNK + b->first) / RAPT_STEP,
            end = (int)(b->number % RAPT_CHUNK + b->end - 1) / RAPT_STEP + 1;
        const float *a = values + (size_t)first * TILE_FLOATS;
        multiply_tiles(na, nv, a, a + ld, TILE_FLOATS, weights + (size_t)first * RAPT_BF16_STEP_FLOATS, RAPT_BF16_STEP_FLOATS,
                       end - first, cursor);
    }
    store_tiles(na, nv, to, to + TILE_LANES * TILE_ROWS, TILE_ROWS);
}

/* Computes O^T = V^T P^T of a tile of queries, two tiles of channels by two vectors of queries at a time. */
static RAPT_INLINE void add_values_in_tiles(const rapt_problem *p, const lane_scratch *s, const tile_work *w,
                                            weight_cursor *cursor) {
    for (int c = 0; c < value_tiles(p); c += 2)
        for (int v = 0; v < w->tile->vectors; v += 2) {
            const float *values = s->values + (size_t)(c * chunk_steps(p)) * TILE_FLOATS;
            const float *weights = weights_at(p, s, w->parity) + v * TILE_FLOATS;
            float *to = w->tile->chunk_state.o + (size_t)(c * TILE_LANES) * TILE_ROWS + v * RAPT_VL;
            const bool both = c + 1 < value_tiles(p), pair = w->tile->vectors - v >= 2;
            if (both && pair) value_tiles_of(2, 2, p, w, values, weights, to, cursor);
            else if (both) value_tiles_of(2, 1, p, w, values, weights, to, cursor);
            else if (pair) value_tiles_of(1, 2, p, w, values, weights, to, cursor);
            else value_tiles_of(1, 1, p, w, values, weights, to, cursor);
        }
}

/* Computes O^T = V^T P^T of a tile of queries, with nothing to weigh meanwhile. */
static RAPT_NOINLINE void add_values_alone(const rapt_problem *p, const lane_scratch *s, const tile_work *v) {
    add_values_in_tiles(p, s, v, NULL);
}

/* Computes O^T = V^T P^T of a tile of queries, and weighs pairs of another tile meanwhile. */
static RAPT_NOINLINE void add_values_and_weigh(const rapt_problem *p, const lane_scratch *s, const tile_work *v,
                                               weight_cursor *w) {
    add_values_in_tiles(p, s, v, w);
}

/* Returns how many steps of keys a tile's blocks have. */
static int steps_of(const tile_work *v) {
    int steps = 0;
    for (int i = 0; i < v->count; i++) steps += (v->blocks[i].end - 1) / RAPT_STEP + 1 - v->blocks[i].first / RAPT_STEP;
    return steps;
}

/* Stages overlap only if `now` is a full query tile: multiply_tiles has no other instance of weigh_pairs_of. */
static void advance_bf16(const rapt_problem *p, const lane_scratch *s, const tile_work *now, const tile_work *before) {
    weight_cursor w;
    if (now) {
        exclude_rest_of_steps(now, s->s);
        w = start_weighing(p, s, now);
    }
    if (before && now && now->tile->vectors == RAPT_TILE_VECTORS) {
        int products = steps_of(before) * ((value_tiles(p) + 1) / 2) * ((before->tile->vectors + 1) / 2);
        w.pace = (steps_of(now) * STEP_PAIRS + products - 1) / products;
        add_values_and_weigh(p, s, before, &w);
    } else if (before) add_values_alone(p, s, before);
    if (now) end_weighing(p, s, now, &w);
}

/* ---- Keys in lanes ------------------------------------------------------------------------------------------------------- */

/* Memory must not idle. Reading alone gets 16 GB/s on Emerald Rapids, and whatever is computed in one piece between two requests
 * adds its whole time. So between the products of a tile, the next tile of keys is searched for subthreshold numbers, and later
 * ones are prefetched.
 *
 * row_scratch.kernel_scratch begins with three tiles: two of scores, or one of weights and two of pairs of values. Each head then
 * has tiles of Q [steps of channels], pairs of channels of up to 16 rows, and tiles of O, for each 32 channels of V one of the
 * even and one of the odd ones. */

/* Returns the floats of a head's Q. */
static inline size_t query_floats(const rapt_problem *p) { return (size_t)key_steps(p) * TILE_FLOATS; }

/* Returns the floats of a head's O. */
static inline size_t output_floats(const rapt_problem *p) { return whole_steps(p->d_v) * TILE_LANES; }

static size_t bf16_scratch_floats(const rapt_problem *p, int rows) {
    return (size_t)rows * (query_floats(p) + output_floats(p)) + 3 * TILE_FLOATS; /* a head has at least one row */
}

/* Returns the address of a head's tiles: those of Q, and query_floats after them those of O. */
static inline float *head_tiles(const rapt_problem *p, const row_scratch *s, int head) {
    return s->kernel_scratch + 3 * TILE_FLOATS + (size_t)head * (query_floats(p) + output_floats(p));
}

static void pack_bf16_rows(const rapt_problem *p, const row_scratch *s, int heads, int rows) {
    const size_t ld = row_floats(p);
    make_factors(s->q, heads * rows * (int)ld);
    for (int h = 0; h < heads; h++)
        for (int step = 0; step < key_steps(p); step++) {
            vf pairs[TILE_LANES];
            for (int r = 0; r < TILE_LANES; r++) {
                const float *q = s->q + (size_t)(h * rows + r) * ld + (size_t)step * RAPT_STEP;
                uint16_t halves[RAPT_STEP];
                memset(halves, 0, sizeof halves);
                for (int i = 0; i < RAPT_STEP && r < rows; i += RAPT_VL)
                    i_store_u16(halves + i, i_shr(v_as_int(v_load(q + i)), 16));
                pairs[r] = v_load(halves);
            }
            v_transpose(pairs);
            for (int j = 0; j < STEP_PAIRS; j++)
                v_store(head_tiles(p, s, h) + (size_t)step * TILE_FLOATS + j * RAPT_VL, pairs[j]);
        }
}

/* Returns the address of the first of 16 rows that are equally spaced, and sets *stride; returns null if they are not. */
static const char *rows_evenly_apart(const char *const *keys, size_t offset, size_t *stride) {
    bool even = true;
    *stride = (size_t)(keys[1] - keys[0]);
    for (int i = 2; i < KEYS_OF_TILE; i++) even &= (size_t)(keys[i] - keys[i - 1]) == *stride;
    return even ? keys[0] + offset : NULL;
}

/* Copies 16 rows as bf16 factors (bf16.h), returns the copy, and sets *stride. Prefetches later rows, unless search_rows has done
 * that. */
static const char *copy_rows(const rapt_problem *p, const row_scratch *s, const char *const *keys, size_t offset,
                             size_t *stride) {
    const size_t ld = whole_steps(p->d_k);
    const char *from[KEYS_OF_TILE];
    uint16_t *copy = (uint16_t *)s->keys;
    for (int i = 0; i < KEYS_OF_TILE; i++) from[i] = keys[i] + offset;
    if (p->k.type != RAPT_BF16 || p->d_k % RAPT_STEP)
        for (int i = 0; i < KEYS_OF_TILE; i++)
            for (size_t at = 0; at < p->k_row; at += 64) prefetch(keys[i + RAPT_KEYS_AHEAD], offset + at);
    copy_as_bf16(p->k.type, copy, ld, from, KEYS_OF_TILE, p->d_k, NULL, s->row);
    *stride = ld * sizeof *copy;
    return (const char *)copy;
}

/* Returns `folded` with n rows of whole steps folded in (has_subthreshold), and prefetches as many later rows. */
static RAPT_INLINE vi search_rows(vi folded, const char *const *rows, int n, size_t offset, int steps) {
    for (int r = 0; r < n; r++)
#pragma GCC unroll 4
        for (int i = 0; i < steps; i++) {
            const size_t at = offset + (size_t)i * 64;
            folded = i_fold_smallest_bf16(folded, v_as_int(v_load(rows[r] + at)));
            prefetch(rows[r + RAPT_KEYS_AHEAD], at);
        }
    return folded;
}

/* Loads Q of up to four steps to tiles 4 to 7. */
static RAPT_INLINE void load_queries(const float *q, int steps) {
    before_loads();
    t_load(4, q, 64);
    if (steps > 1) t_load(5, q + TILE_FLOATS, 64);
    if (steps > 2) t_load(6, q + 2 * TILE_FLOATS, 64);
    if (steps > 3) t_load(7, q + 3 * TILE_FLOATS, 64);
}

/* Scores a tile of keys, to [key][row]. If Q has up to four steps, load_queries has loaded it. After each product some of the
 * next n keys are searched; returns what search_rows returns for all of them. */
static RAPT_INLINE vi score_row_tile(const char *keys, size_t stride, const float *q, int steps, float *to,
                                     const char *const *next, int n, size_t offset) {
    const int each = (n + steps - 1) / steps;
    vi folded = i_set1(0);
    before_loads();
    t_zero(0);
    for (int step = 0; step < steps; step++, keys += 64) {
        if (steps > 4 && step % 4 == 0) load_queries(q + step * TILE_FLOATS, steps - step);
        switch (step % 4) {
        case 0:
            t_load(1, keys, stride);
            t_multiply_bf16(0, 1, 4);
            break;
        case 1:
            t_load(2, keys, stride);
            t_multiply_bf16(0, 2, 5);
            break;
        case 2:
            t_load(1, keys, stride);
            t_multiply_bf16(0, 1, 6);
            break;
        default:
            t_load(2, keys, stride);
            t_multiply_bf16(0, 2, 7);
        }
        folded = search_rows(folded, next + step * each, rapt_min(each, n - step * each), offset, steps);
    }
    t_store(0, to, 64);
    return folded;
}

/* Transposes a tile of scores, [key][row], to the rows of scores. */
static void transpose_scores(const float *tile, int rows, float *scores) {
    const char *keys[KEYS_OF_TILE];
    for (int i = 0; i < KEYS_OF_TILE; i++) keys[i] = (const char *)(tile + i * TILE_LANES);
    for (int r = 0; r < rows; r += 4) {
        vf columns[4];
        load_four_columns(columns, keys, (size_t)r * sizeof(float));
        for (int i = 0; i < rapt_min(4, rows - r); i++) v_store(scores + (size_t)(r + i) * RAPT_CHUNK, columns[i]);
    }
}

/* Transposes a tile's scores only after the products of the next tile, so that the CPU does it while these wait for each
 * other. */
static void score_bf16_rows(const rapt_task *t, const row_scratch *s, int kv_head, int rows, const char *const *keys,
                            size_t offset, int n, float *scores) {
    const rapt_problem *p = t->problem;
    const float *q = head_tiles(p, s, kv_head);
    const int steps = key_steps(p);
    const bool searched = in_steps(p->k.type, p->d_k);
    vi folded = i_set1(0);
    if (steps <= 4) load_queries(q, steps);
    if (searched) folded = search_rows(folded, keys, KEYS_OF_TILE, offset, steps);
    for (int i = 0; i < n; i += KEYS_OF_TILE) {
        const char *const *next = keys + i + KEYS_OF_TILE;
        float *const tile = s->kernel_scratch + i / KEYS_OF_TILE % 2 * TILE_FLOATS;
        size_t stride;
        const char *a = searched && !has_subthreshold(folded) ? rows_evenly_apart(keys + i, offset, &stride) : NULL;
        if (!a) a = copy_rows(p, s, keys + i, offset, &stride);
        folded = score_row_tile(a, stride, q, steps, tile, next, searched && i + KEYS_OF_TILE < n ? KEYS_OF_TILE : 0, offset);
        if (i > 0)
            transpose_scores(s->kernel_scratch + (i / KEYS_OF_TILE - 1) % 2 * TILE_FLOATS, rows, scores + i - KEYS_OF_TILE);
    }
    transpose_scores(s->kernel_scratch + (n / KEYS_OF_TILE - 1) % 2 * TILE_FLOATS, rows, scores + n - KEYS_OF_TILE);
}

/* Sets O to 0, and gives the tiles of weights and of O as many rows as the head has. */
static void start_bf16_rows(const rapt_problem *p, const row_scratch *s, int heads, int n) {
    for (int h = 0; h < heads; h++) memset(head_tiles(p, s, h) + query_floats(p), 0, output_floats(p) * sizeof(float));
    t_configure(&tiles_of_rows[n - 1]);
}

/* Copies O from its tiles, of even channels and of odd ones, to rows. */
static void end_bf16_rows(const rapt_problem *p, const row_scratch *s, query_row *rows, int heads, int n) {
    t_configure(&tiles_of_rows[TILE_LANES - 1]);
    for (int r = 0; r < heads * n; r++)
        for (int c = 0; c < p->d_v; c++) {
            const float *tile = head_tiles(p, s, r / n) + query_floats(p) + (size_t)(c / RAPT_STEP * 2 + c % 2) * TILE_FLOATS;
            rows[r].chunk_state.o[c] = tile[r % n * TILE_LANES + c % RAPT_STEP / 2];
        }
}

/* Adds one step of P V for 32 channels: O += tile 4 (weights) x pairs (even channels, then odd ones). Uses tiles 0, 1, 5, 6, or
 * if odd 2, 3, 7, 5, so that consecutive calls do not wait for each other's loads. Tile numbers are immediates, hence two
 * branches. */
static RAPT_INLINE void add_pairs(const bool odd, const float *pairs, float *even_sums, float *odd_sums) {
    before_loads();
    if (odd) {
        t_load(2, even_sums, 64);
        t_load(3, odd_sums, 64);
        t_load(7, pairs, 64);
        t_load(5, pairs + TILE_FLOATS, 64);
        t_multiply_bf16(2, 4, 7);
        t_multiply_bf16(3, 4, 5);
        t_store(2, even_sums, 64);
        t_store(3, odd_sums, 64);
    } else {
        t_load(0, even_sums, 64);
        t_load(1, odd_sums, 64);
        t_load(5, pairs, 64);
        t_load(6, pairs + TILE_FLOATS, 64);
        t_multiply_bf16(0, 4, 5);
        t_multiply_bf16(1, 4, 6);
        t_store(0, even_sums, 64);
        t_store(1, odd_sums, 64);
    }
}

/* True if n rows of bf16, in whole steps of channels, have a subthreshold number. */
static bool rows_have_subthreshold(const char *const *rows, int n, int channels) {
    vi folded = i_set1(0);
    for (int r = 0; r < n; r++)
#pragma GCC unroll 4
        for (int i = 0; i < channels; i += RAPT_STEP)
            folded = i_fold_smallest_bf16(folded, v_as_int(v_load(rows[r] + (size_t)i * sizeof(uint16_t))));
    return has_subthreshold(folded);
}

/* Sets values[i] to the address of the row of V of key i of a step. Keys [from, to) of a block belong to the step; rows has their
 * addresses. Their values are rows as they lie, or, unless all of these can be multiplied where they lie, copies as bf16 factors.
 * The other keys of the step get zeros. */
static void gather_values(const rapt_task *t, const row_scratch *s, int kv_head, const char *const *rows, const block *b,
                          int from, int to, const char *values[RAPT_STEP]) {
    static const char zeros[RAPT_MAX_HEAD_DIM * sizeof(uint16_t)];
    const rapt_problem *p = t->problem;
    const size_t ld = whole_steps(p->d_v);
    const int first = from - from % RAPT_STEP;
    const bool scaled = scaled_by_key(&p->v_scales);
    const bool in_place = !scaled && in_steps(p->v.type, p->d_v) && !rows_have_subthreshold(rows, to - from, p->d_v);
    float scales[RAPT_BLOCK];
    uint16_t *const copies = (uint16_t *)s->values;
    if (scaled) load_key_scales(t, scales, t->v_scales + kv_head * p->v_scales.head_stride, &p->v_scales, b->number, from, to);
    if (!in_place) copy_as_bf16(p->v.type, copies, ld, rows, to - from, p->d_v, scaled ? scales + from : NULL, s->row);
    for (int i = 0; i < RAPT_STEP; i++) {
        const int key = first + i - from;
        values[i] = key < 0 || key >= to - from ? zeros : in_place ? rows[key] : (const char *)(copies + (size_t)key * ld);
    }
}

/* Loads the weights of n rows for a step of keys to tile 4. weights: [n][RAPT_CHUNK]. */
static RAPT_INLINE void load_weights(const row_scratch *s, const float *weights, int n) {
    for (int r = 0; r < n; r++)
        for (int i = 0; i < RAPT_STEP; i += RAPT_VL)
            i_store_u16((uint16_t *)(s->kernel_scratch + r * RAPT_VL) + i,
                        i_shr(v_as_int(v_load(weights + (size_t)r * RAPT_CHUNK + i)), 16));
    before_loads();
    t_load(4, s->kernel_scratch, 64);
}

/* Writes 32 channels of a step, from channel c on, as two tiles of pairs of keys: even channels, then odd ones. Prefetches after
 * each pair. */
static RAPT_INLINE void interleave_pairs(const char *const *values, int c, float *pairs, prefetch_queue *queue) {
    const vi low = i_set1(0xffff), high = i_set1(INT32_MIN >> 15);
    for (int j = 0; j < STEP_PAIRS; j++) {
        vi x = v_as_int(v_load(values[2 * j] + (size_t)c * 2)), y = v_as_int(v_load(values[2 * j + 1] + (size_t)c * 2));
        v_store(pairs + j * RAPT_VL, v_as_float(i_or(i_and(x, low), i_shl(y, 16))));
        v_store(pairs + TILE_FLOATS + j * RAPT_VL, v_as_float(i_or(i_shr(x, 16), i_and(y, high))));
        prefetch_from_queue(queue);
    }
}

static void add_bf16_step(const rapt_task *t, const row_scratch *s, int kv_head, query_row *rows, int n, const value_parities *v,
                          const block *b, int from, int to) {
    const rapt_problem *p = t->problem;
    const size_t offset = (size_t)kv_head * (size_t)p->v.head_stride;
    const int in_chunk = (int)(b->number % RAPT_CHUNK), keys = to - from;
    float *const pairs = s->kernel_scratch + TILE_FLOATS, *o = head_tiles(p, s, kv_head) + query_floats(p);
    const char *value_rows[RAPT_STEP], *later_rows[RAPT_STEP], *values[RAPT_STEP];
    (void)rows;
    for (int i = 0; i < keys; i++) {
        const char *const *of_parity = v->rows[(from + i) % 2] + (in_chunk + from + i) / 2;
        value_rows[i] = of_parity[0] + offset;
        later_rows[i] = of_parity[RAPT_BF16_VALUES_AHEAD / 2] + offset;
    }
    const size_t lines = (p->v_row + 63) / 64 * RAPT_STEP, prefetches = whole_steps(p->d_v) / RAPT_STEP * STEP_PAIRS;
    prefetch_queue later = {
        .rows = later_rows, .bytes = p->v_row, .left = keys, .lines = (int)((lines + prefetches - 1) / prefetches)};
    gather_values(t, s, kv_head, value_rows, b, from, to, values);
    load_weights(s, s->s + (size_t)(kv_head * n) * RAPT_CHUNK + in_chunk + from - from % RAPT_STEP, n);
    for (int c = 0; c < p->d_v; c += RAPT_STEP, o += 2 * TILE_FLOATS) {
        interleave_pairs(values, c, pairs, &later);
        if (c / RAPT_STEP % 2) add_pairs(true, pairs, o, o + TILE_FLOATS);
        else add_pairs(false, pairs, o, o + TILE_FLOATS);
    }
}

/* ---- Linear layers ------------------------------------------------------------------------------------------------------- */

/* Returns the floats of staged weights: tiles [rows / 16][steps of a part]. */
static size_t bf16_weight_floats(const rapt_linear_problem *p, size_t rows) {
    return rows / TILE_LANES * (size_t)part_steps(p, 0) * TILE_FLOATS;
}

static void stage_bf16_weights(const rapt_linear_problem *p, rapt_type type, const many_scratch *s, const char *const *rows,
                               int n, int channels) {
    stage_rows_of_tiles(type, s->weights, 0, (size_t)part_steps(p, 0), rows, n, channels, s->row);
}

/* After this many steps some weights are prefetched. Chosen on Emerald Rapids. */
enum { PREFETCH_STEPS = 4 };

/* Multiplies na tiles of rows by nv vectors of tokens for some steps: C = C + weights tokens^T, or without the C if `first`. */
static RAPT_INLINE void part_tiles_of(const int na, const int nv, bool first, const float *weights, size_t ld,
                                      const float *tokens, float *c, int steps, prefetch_queue *ahead) {
    float *const c2 = c + (na - 1) * TILE_LANES * TILE_ROWS;
    if (first) zero_tiles(na, nv);
    else load_tiles(na, nv, c, c2, TILE_ROWS);
    for (int i = 0; i < steps; i += PREFETCH_STEPS) {
        const float *a = weights + (size_t)i * TILE_FLOATS;
        prefetch_from_queue(ahead);
        multiply_tiles(na, nv, a, a + ld, TILE_FLOATS, tokens + (size_t)i * RAPT_BF16_STEP_FLOATS, RAPT_BF16_STEP_FLOATS,
                       rapt_min(PREFETCH_STEPS, steps - i), NULL);
    }
    store_tiles(na, nv, c, c2, TILE_ROWS);
}

/* The last tile may have rows beyond the weights: their sums are never read. */
static void multiply_bf16_part(const rapt_linear_problem *p, const float *weights, int64_t part, const float *tokens, float *c,
                               float *even, int rows, int vectors, prefetch_queue *ahead) {
    (void)even;
    const size_t ld = (size_t)part_steps(p, 0) * TILE_FLOATS;
    const int steps = part_steps(p, part);
    for (int r = 0; r < rows; r += 2 * TILE_LANES)
        for (int v = 0; v < vectors; v += 2) {
            const float *from = weights + (size_t)(r / TILE_LANES) * ld, *x = tokens + v * TILE_FLOATS;
            float *to = c + (size_t)r * TILE_ROWS + v * RAPT_VL;
            const bool both = r + TILE_LANES < rows, pair = vectors - v >= 2;
            if (both && pair) part_tiles_of(2, 2, part == 0, from, ld, x, to, steps, ahead);
            else if (both) part_tiles_of(2, 1, part == 0, from, ld, x, to, steps, ahead);
            else if (pair) part_tiles_of(1, 2, part == 0, from, ld, x, to, steps, ahead);
            else part_tiles_of(1, 1, part == 0, from, ld, x, to, steps, ahead);
        }
}

static int bf16_part_prefetches(const rapt_linear_problem *p, int64_t part, int rows) {
    return (rows + 2 * TILE_LANES - 1) / (2 * TILE_LANES) * (RAPT_TILE_VECTORS / 2) *
           ((part_steps(p, part) + PREFETCH_STEPS - 1) / PREFETCH_STEPS);
}

/* ---- Integers ------------------------------------------------------------------------------------------------------------ */

_Static_assert(RAPT_DOT == 4 && DOT_BIAS == 128, "rows are signed bytes, lanes are unsigned ones");

/* Returns the address of row r of A, or beyond the last row that of the last one, whose sums are then never read. */
static const char *row_of_dots(const dots *d, int rows, int r) { return d->a + (size_t)rapt_min(r, rows - 1) * d->lda; }

/* Computes dot_product for na tiles of rows by nv vectors of lanes. Only `rows` rows exist. */
static RAPT_INLINE void dot_tiles(const int na, const int nv, dots d, int rows) {
    int32_t sums[2 * TILE_LANES][2 * TILE_LANES];
    char copy[2 * TILE_LANES][TILE_LANES * sizeof(float)];
    const size_t ldb = TILE_ROWS * sizeof(float);
    const bool whole = rows >= na * TILE_LANES;
    zero_tiles(na, nv);
    for (int k = 0; k < d.depth; k += RAPT_DOT_LANES) {
        const char *a = d.a + (size_t)k * sizeof(float);
        const float *b = d.b + (size_t)k * TILE_ROWS;
        size_t lda = d.lda;
        if (!whole) {
            for (int r = 0; r < na * TILE_LANES; r++)
                memcpy(copy[r], row_of_dots(&d, rows, r) + (size_t)k * sizeof(float), sizeof copy[r]);
            before_loads();
            a = copy[0], lda = sizeof copy[0];
        }
        t_load(4, a, lda);
        t_load(6, b, ldb);
        t_multiply_bytes(0, 4, 6);
        if (na == 2) {
            t_load(5, a + TILE_LANES * lda, lda);
            t_multiply_bytes(2, 5, 6);
        }
        if (nv == 2) {
            t_load(7, b + RAPT_VL, ldb);
            t_multiply_bytes(1, 4, 7);
            if (na == 2) t_multiply_bytes(3, 5, 7);
        }
    }
    t_store(0, sums[0], sizeof sums[0]);
    if (nv == 2) t_store(1, sums[0] + TILE_LANES, sizeof sums[0]);
    if (na == 2) t_store(2, sums[TILE_LANES], sizeof sums[0]);
    if (na == 2 && nv == 2) t_store(3, sums[TILE_LANES] + TILE_LANES, sizeof sums[0]);
    for (int r = 0; r < rapt_min(rows, na * TILE_LANES); r++)
        UNROLLED(v, nv) end_dots(d, r, v, i_add(v_as_int(v_load(sums[r] + v * RAPT_VL)), i_set1(d.correction[r])));
}

static RAPT_NOINLINE void dot_product(dots d, int rows, int vectors) {
    for (int r = 0; r < rows; r += 2 * TILE_LANES, d = skip_dot_rows(d, 2 * TILE_LANES))
        for (int v = 0; v < vectors; v += 2) {
            dots at = d;
            at.c += v * RAPT_VL, at.b += v * RAPT_VL, at.scale += v * RAPT_VL;
            if (at.alpha) at.alpha += v * RAPT_VL;
            const bool both = rows - r > TILE_LANES, pair = vectors - v >= 2;
            if (both && pair) dot_tiles(2, 2, at, rows - r);
            else if (both) dot_tiles(2, 1, at, rows - r);
            else if (pair) dot_tiles(1, 2, at, rows - r);
            else dot_tiles(1, 1, at, rows - r);
        }
}

/* Tokens are A as they lie, and a sub-block of staged weights is B: where these have fewer bits, they are written as bytes. */
static RAPT_INLINE void sum_products(const int nt, const int nv, const integer_format f, const float *dwords, size_t apart,
                                     const integer_tokens tokens, vi *acc) {
    if (nt < RAPT_MATRIX_TOKENS) {
        sum_vectors(nt, nv, f, dwords, apart, tokens, acc);
        return;
    }
    _Alignas(64) float weights[GROUP_LANES * TILE_LANES], sums[TILE_FLOATS];
    if (f.bits < 8) {
        UNROLLED(i, f.sub / RAPT_DOT) v_store(weights + i * TILE_LANES, v_as_float(weights_lane(f, dwords, i)));
        dwords = weights;
    }
    before_loads();
    t_zero(0);
    if (f.sub == RAPT_GROUP) {
        t_load(4, tokens.x, lanes_of(f, &tokens) * sizeof *tokens.x);
        t_load(6, dwords, 64);
        t_multiply_bytes(0, 4, 6);
    } else {
        t_load(5, tokens.x, lanes_of(f, &tokens) * sizeof *tokens.x);
        t_load(7, dwords, 64);
        t_multiply_bytes(0, 5, 7);
    }
    t_store(0, sums, 64);
    UNROLLED(j, TILE_LANES) {
        const vi correction = i_set1(f.bias ? tokens.corrections[(size_t)j * subs_of(f, &tokens)] : 0);
        acc[j] = i_add(v_as_int(v_load(sums + j * TILE_LANES)), correction);
    }
}
