/* SPDX-License-Identifier: Apache-2.0 */
/* The path for many rows, as in prefill: one lane is one query row. Q is packed once, transposed. S^T = K Q^T and O^T += V^T P^T
 * are tile products that broadcast the elements of a staged block of K and V, and the softmax needs no horizontal operation.
 * Included by attend.h. */

/* The states of the rows of a tile, one in each lane. */
typedef struct lane_state {
    float *m; /* [TILE_ROWS] running maximum */
    float *l; /* [TILE_ROWS] sum of weights */
    float *o; /* [d_v][TILE_ROWS] weighted sum of values */
} lane_state;

#include "bf16/exact_pairs.h"

/* A query tile: at most TILE_ROWS rows, one in each lane. */
typedef struct query_tile {
    int64_t row0;
    int rows, vectors;
    float *q;                /* [d_k][TILE_ROWS], times q_factor and K's channel scales; packed in integer and bf16 arithmetic */
    float *q_scale;          /* [TILE_ROWS] integer arithmetic: the scale of q's integers (queries_int8.h) */
    lane_state chunk_state;  /* of this chunk; in bf16 arithmetic all tiles share two of these (attend_chunk_bf16) */
    lane_state merged_state; /* of all chunks before it */
    bool started, merged;    /* true if chunk_state, or merged_state, has absorbed any keys */
    bool masked;          /* true if values of keys that some lane does not attend to may be added in this chunk, with weight 0 */
    int32_t *first, *end; /* [TILE_ROWS] keys [first, end) that a lane may attend to by its position */
    int64_t first_min, end_max;   /* over the lanes that may attend to any key */
    int64_t first_max, end_min;   /* over all lanes */
    float *slope;                 /* [TILE_ROWS] of ALiBi */
    const char **block_mask_rows; /* [TILE_ROWS] each lane's row of the block mask; null without one */
    bool one_block_mask_row;      /* true if all these rows are the same */

    /* With has_masks, for each block of a chunk (find_attended). */
    uint32_t *attended;         /* [CHUNK_BLOCKS][2][TILE_ROWS] the keys that each lane attends to */
    uint64_t any[CHUNK_BLOCKS]; /* the keys that any lane attends to */
    uint64_t all[CHUNK_BLOCKS]; /* the keys that all lanes attend to */
} query_tile;

/* Scratch that the tiles of a pass share. In bf16 arithmetic keys and values are those of a whole chunk (bf16.h); in integer
 * arithmetic they are integers, values transposed (queries_int8.h). */
typedef struct lane_scratch {
    float *s;     /* [RAPT_BLOCK][TILE_ROWS] scores, then weights; in bf16 arithmetic [chunk_keys][TILE_ROWS] */
    float *alpha; /* [TILE_ROWS] what O is multiplied by before P V is added */
    float *bias;  /* [RAPT_BLOCK][TILE_ROWS] the block's bias; later quantised weights, or -inf where add_attended skips values */
    uint32_t *attended; /* [2][TILE_ROWS] without has_masks: the keys of the block that each lane attends to */
    float *keys;        /* [RAPT_BLOCK][staged_row_floats(d_k)] */
    float *values;      /* [RAPT_BLOCK][staged_row_floats(d_v)] */
    float *row;         /* a row of K or V while it is staged */
    float *even;        /* [max(RAPT_BLOCK, d_v + 1)][TILE_ROWS] bf16 arithmetic: sums of the even elements of a step */
    float *rows;        /* [RAPT_VL][staged_row_floats(d_v)] rows of O at the end of a tile */

    /* Exact scores by pairs (has_pairs). */
    bool paired;   /* true if the tiles' queries are packed as pairs */
    float *as_f32; /* [d_k][TILE_ROWS] a tile's queries as f32, for blocks whose keys are no pairs */

    /* Integer arithmetic. */
    float *key_factors;   /* [RAPT_BLOCK][groups] the scales of the groups of keys */
    int32_t *corrections; /* [RAPT_BLOCK][groups] the corrections of the sums of these groups */
    float *value_factors; /* [groups][RAPT_BLOCK] the scales of the groups of values, times those of tokens */
} lane_scratch;

/* Returns the floats from row to row of a staged block, whose rows have d channels. */
static inline size_t staged_row_floats(int d) { return padded((size_t)d * COPIES) + RAPT_ROW_PADDING; }

/* Lays out the scratch of a pass of n tiles, and returns its size in floats. With null memory it only computes the size, so that
 * no other function has to know the layout. merges: true if the task merges chunks. */
static size_t lay_out_lanes(const rapt_problem *p, float *memory, lane_scratch *scratch, query_tile *tiles, int n, bool merges) {
    size_t used = 0, dk = staged_row_floats(p->d_k), dv = staged_row_floats(p->d_v);
    /* Rows of q and of o. In bf16 arithmetic o has one more, which is l. */
    size_t channels = BF16 ? whole_steps(p->d_k) : (size_t)rapt_max(p->d_k, RAPT_DOT_LANES);
    size_t values = BF16 ? padded((size_t)p->d_v + 1) : (size_t)p->d_v;
    *scratch = (lane_scratch){.s = carve(memory, &used, (size_t)(BF16 ? chunk_keys(p) : RAPT_BLOCK) * TILE_ROWS),
                              .alpha = carve(memory, &used, TILE_ROWS),
                              .bias = carve(memory, &used, RAPT_BLOCK * TILE_ROWS),
                              .attended = (uint32_t *)carve(memory, &used, 2 * TILE_ROWS),
                              .keys = carve(memory, &used, BF16 ? bf16_key_floats(p) : RAPT_BLOCK * dk),
                              .values = carve(memory, &used, BF16 ? bf16_value_floats(p) : RAPT_BLOCK * dv),
                              .row = carve(memory, &used, (dk > dv ? dk : dv) + RAPT_STEP),
                              .even = carve(memory, &used, BF16 ? (size_t)rapt_max(RAPT_BLOCK, p->d_v + 1) * TILE_ROWS : 0),
                              .rows = carve(memory, &used, RAPT_VL * dv),
                              .as_f32 = carve(memory, &used, has_pairs(p) ? 2 * (size_t)pairs_of(p->d_k) * TILE_ROWS : 0)};
    if (INTEGER) {
        size_t keys = (size_t)(RAPT_BLOCK * integer_groups(p->k.type, p->d_k)),
               of_values = (size_t)(RAPT_BLOCK * integer_groups(p->v.type, p->d_v));
        scratch->key_factors = carve(memory, &used, keys);
        scratch->corrections = (int32_t *)carve(memory, &used, keys);
        scratch->value_factors = carve(memory, &used, of_values);
    }
    for (int i = 0; i < n; i++) {
        query_tile t = {.q = carve(memory, &used, channels * TILE_ROWS)};
        for (int both = 0; both <= merges; both++) {
            lane_state *state = both ? &t.merged_state : &t.chunk_state;
            if (BF16 && !both && i > 1) continue; /* attend_chunk_bf16 passes the first two on */
            state->m = carve(memory, &used, TILE_ROWS);
            state->l = carve(memory, &used, TILE_ROWS);
            state->o = carve(memory, &used, values * TILE_ROWS);
            if (BF16) state->l = state->o ? state->o + (size_t)p->d_v * TILE_ROWS : NULL;
        }
        t.first = (int32_t *)carve(memory, &used, TILE_ROWS);
        t.end = (int32_t *)carve(memory, &used, TILE_ROWS);
        t.slope = carve(memory, &used, TILE_ROWS);
        if (INTEGER) t.q_scale = carve(memory, &used, TILE_ROWS);
        if (p->block_mask.type)
            t.block_mask_rows = (const char **)(void *)carve(memory, &used, TILE_ROWS * sizeof(char *) / sizeof(float));
        if (has_masks(p)) t.attended = (uint32_t *)carve(memory, &used, CHUNK_BLOCKS * 2 * TILE_ROWS);
        tiles[i] = t;
    }
    return used;
}

/* Packs the tile's queries, as pairs if `paired`, and finds each lane's keys. Lanes beyond the last row repeat that row; their
 * results are not used. Returns false if pairs cannot be packed. */
static bool pack_queries(const rapt_task *t, query_tile *tile, bool paired) {
    const rapt_problem *p = t->problem;
    const char *rows[TILE_ROWS];
    row_cursor at = row_at(t, 0, tile->row0);
    tile->first_min = tile->end_min = INT64_MAX;
    tile->first_max = tile->end_max = 0;
    for (int r = 0; r < tile->vectors * RAPT_VL; r++) {
        int64_t first, end;
        row_range(t, at.token, &first, &end);
        tile->slope[r] = slope_of(t, at.head);
        if (p->block_mask.type) {
            tile->block_mask_rows[r] = block_mask_row(t, at);
            tile->one_block_mask_row =
                r == 0 || (tile->one_block_mask_row && tile->block_mask_rows[r] == tile->block_mask_rows[0]);
        }
        tile->first[r] = (int32_t)first;
        tile->end[r] = (int32_t)end;
        if (first < end) {
            if (first < tile->first_min) tile->first_min = first;
            if (end > tile->end_max) tile->end_max = end;
        }
        if (first > tile->first_max) tile->first_max = first;
        if (end < tile->end_min) tile->end_min = end;
        rows[r] = t->q + row_offset(&p->q, at);
        prefetch_row(rows[r], 0, p->q_row);
        if (r + 1 < tile->rows) at = row_next(t, at);
    }
    if (BF16 && packs_query_rows(p)) {
        pack_bf16_query_rows(tile->q, rows, p->d_k, tile->vectors);
        return true;
    }
    if (paired) return pack_query_pairs(tile->q, rows, p->d_k, tile->vectors, p->q_factor);
    stage_columns(p->q.type, tile->q, TILE_ROWS, rows, tile->vectors * RAPT_VL, 0, p->d_k);
    if (p->q_factor != 1.0f)
        for (size_t i = 0; i < (size_t)p->d_k * TILE_ROWS; i += RAPT_VL)
            v_store(tile->q + i, v_mul(v_load(tile->q + i), v_set1(p->q_factor)));
    if (scaled_by_channel(&p->k_scales)) {
        float scales[RAPT_MAX_HEAD_DIM];
        load_channel_scales(scales, t->k_scales, &p->k_scales, p->d_k);
        for (int c = 0; c < p->d_k; c++)
            for (int i = 0; i < TILE_ROWS; i += RAPT_VL) {
                float *q = tile->q + (size_t)c * TILE_ROWS + i;
                v_store(q, v_mul(v_load(q), v_set1(scales[c])));
            }
    }
    if (INTEGER) quantise_queries(tile->q, p->d_k, tile->vectors, tile->q, tile->q_scale);
    if (BF16) pack_bf16_queries(tile->q, p->d_k, tile->vectors);
    return true;
}

/* Sets the tile's state of a chunk to the empty state. */
static void start_chunk(query_tile *tile) {
    for (int i = 0; i < TILE_ROWS; i += RAPT_VL) {
        v_store(tile->chunk_state.m + i, v_set1(-INFINITY));
        v_store(tile->chunk_state.l + i, v_set1(0.0f));
    }
    tile->started = tile->masked = false;
}

/* Returns the blocks of a chunk of which all lanes attend to the same keys. Looks only for equal bytes in all rows, as most
 * blocks of most masks have. Each row is read in one go, since the lines that rows have for one block may all belong to one set
 * of the cache. This takes a quarter of the time of finding the keys of each lane (F-stream-4096, Granite Rapids). */
static rapt_mask_blocks find_mask_blocks(const rapt_task *t, const query_tile *tile, int64_t chunk) {
    const rapt_problem *p = t->problem;
    rapt_mask_blocks found = {0, 0, 0};
    const int64_t number = chunk * RAPT_CHUNK, column = number + t->key_position;
    const bool bits = p->mask.type == RAPT_BIT;
    if (!rapt_compares_mask(p) || (bits && column % 8)) return found;
    const int from = (int)rapt_max(0, rapt_min(CHUNK_BLOCKS, (tile->first_max - number + RAPT_BLOCK - 1) / RAPT_BLOCK));
    const int to = (int)rapt_max(0, rapt_min(CHUNK_BLOCKS, rapt_min(tile->end_min - number, p->mask_keys - column) / RAPT_BLOCK));
    if (from >= to) return found;
    const int words = RAPT_BLOCK / (bits ? 64 : 8); /* of a block in a row */
    uint64_t differ[RAPT_CHUNK / 8] = {0};
    row_cursor at = row_at(t, 0, tile->row0);
    const char *mask = t->mask + (bits ? column / 8 : column) + (from * words) * 8;
    const char *first = mask + row_offset(&p->mask, at);
    for (int r = 1; r < tile->rows; r++) {
        at = row_next(t, at);
        if (at.head && !p->mask.head_stride) continue;
        const char *row = mask + row_offset(&p->mask, at);
        for (int i = 0; i < (to - from) * words; i++) {
            uint64_t x, y;
            memcpy(&x, first + (size_t)i * sizeof x, sizeof x);
            memcpy(&y, row + (size_t)i * sizeof y, sizeof y);
            differ[i] |= x ^ y;
        }
    }
    at = row_at(t, 0, tile->row0);
    for (int b = from; b < to; b++) {
        uint64_t any = 0;
        for (int i = 0; i < words; i++) any |= differ[(b - from) * words + i];
        if (any) continue;
        const uint64_t keys = unmasked_keys(t, at, number + b * RAPT_BLOCK, 0, RAPT_BLOCK);
        found.some |= (uint8_t)((keys != 0 && ~keys != 0) << b);
        found.none |= (uint8_t)((keys == 0) << b);
        found.all |= (uint8_t)((~keys == 0) << b);
    }
    return found;
}

/* Returns what find_mask_blocks does, from the task's memory if the task before has put it there. */
static rapt_mask_blocks mask_blocks_of(const rapt_task *t, const query_tile *tile, int64_t chunk) {
    if (!t->mask_blocks) return find_mask_blocks(t, tile, chunk);
    rapt_mask_blocks *kept = t->mask_blocks + tile->row0 / TILE_ROWS * t->chunks + (chunk - t->chunk0);
    if (!t->mask_blocks_known) *kept = find_mask_blocks(t, tile, chunk);
    return *kept;
}

/* Finds the keys of a block that each lane r attends to, as attended_keys does: bit n of attended[r] stands for key n, and bit n
 * of attended[TILE_ROWS + r] for key 32 + n. Bits of *any stand for keys that any lane attends to, bits of *all for keys that all
 * lanes attend to. */
static void find_attended(const rapt_task *t, const query_tile *tile, int64_t number, uint32_t *attended, uint64_t *any,
                          uint64_t *all) {
    row_cursor at = row_at(t, 0, tile->row0);
    *any = 0;
    *all = ~UINT64_C(0);
    bool by_head = t->problem->mask.head_stride || t->problem->block_mask.head_stride || t->problem->bias.head_stride;
    uint64_t bits = 0;
    for (int r = 0; r < tile->vectors * RAPT_VL; r++) {
        if (r == 0 || at.head == 0 || by_head)
            bits = attended_keys(t, at, tile->block_mask_rows ? tile->block_mask_rows[r] : NULL, tile->first[r], tile->end[r],
                                 number);
        attended[r] = (uint32_t)bits;
        attended[TILE_ROWS + r] = (uint32_t)(bits >> 32);
        *any |= bits;
        *all &= bits;
        if (r + 1 < tile->rows) at = row_next(t, at);
    }
}

/* Finds what find_attended does for the blocks of a chunk, with has_masks. Called before K is read, since blocks without attended
 * keys are skipped. */
static void find_attended_in_chunk(const rapt_task *t, query_tile *tile, int64_t chunk) {
    const rapt_mask_blocks alike = mask_blocks_of(t, tile, chunk);
    for (int i = 0; i < CHUNK_BLOCKS; i++) {
        int64_t number = chunk * RAPT_CHUNK + i * RAPT_BLOCK;
        tile->any[i] = tile->all[i] = 0;
        if (number + RAPT_BLOCK <= tile->first_min || number >= tile->end_max || alike.none >> i & 1) continue;
        if (tile->one_block_mask_row && !tile->block_mask_rows[0][number / t->problem->block_mask_keys]) continue;
        uint32_t *attended = tile->attended + i * 2 * TILE_ROWS;
        if ((alike.some | alike.all) >> i & 1) {
            const uint64_t bits =
                alike.all >> i & 1 ? ~UINT64_C(0) : unmasked_keys(t, row_at(t, 0, tile->row0), number, 0, RAPT_BLOCK);
            tile->any[i] = tile->all[i] = bits;
            for (int r = 0; r < TILE_ROWS; r++) attended[r] = (uint32_t)bits, attended[TILE_ROWS + r] = (uint32_t)(bits >> 32);
        } else find_attended(t, tile, number, attended, &tile->any[i], &tile->all[i]);
    }
}

/* Returns the part of the block whose first key is `number` that lanes of the tile attend to. */
static block tile_block(const rapt_problem *p, const query_tile *tile, int64_t number) {
    if (!has_masks(p)) return block_of(number, tile->first_min, tile->end_max);
    uint64_t any = tile->any[number % RAPT_CHUNK / RAPT_BLOCK];
    if (any == 0) return (block){number, 0, 0};
    return (block){number, __builtin_ctzll(any), RAPT_BLOCK - __builtin_clzll(any)};
}

/* Sets the scores of keys that a lane does not attend to to -inf, for keys [first, end). attended: as find_attended sets it. */
static void mask_lanes(const query_tile *tile, const uint32_t *attended, float *scores, int first, int end) {
    for (int i = 0; i < tile->vectors * RAPT_VL; i += RAPT_VL)
        for (int half = 0; half < RAPT_BLOCK; half += 32) {
            vi left = v_as_int(v_load(attended + half / 32 * TILE_ROWS + i)); /* its sign is the bit of key n */
            for (int n = half + 31; n >= half; n--, left = i_shl(left, 1)) {
                if (n < first || n >= end) continue;
                float *at = scores + n * TILE_ROWS + i;
                v_store(at, v_select(i_gt(i_set1(0), left), v_load(at), v_set1(-INFINITY)));
            }
        }
}

/* Stages the bias for keys [first, end) of a block, transposed: to[n * TILE_ROWS + r] is that of lane r and key n. */
static RAPT_NOINLINE void stage_bias(const rapt_task *t, const query_tile *tile, float *to, int64_t number, int first, int end) {
    const char *rows[TILE_ROWS] = {NULL}; /* gcc 12 warns otherwise */
    const bool one = t->problem->bias_one_key;
    int count = 0, width = tile->vectors * RAPT_VL;
    row_cursor at = row_at(t, 0, tile->row0);
    for (int r = 0; r < width; r++) {
        rows[r] = bias_at(t, at, number, first, end, &count);
        if (r + 1 < tile->rows) at = row_next(t, at);
    }
    stage_columns(t->problem->bias.type, to + first * TILE_ROWS, TILE_ROWS, rows, width, 0, count);
    for (int n = first + count; n < end; n++) /* one bias for all keys, or 0 beyond the last column */
        for (int i = 0; i < width; i += RAPT_VL)
            v_store(to + n * TILE_ROWS + i, one ? v_load(to + first * TILE_ROWS + i) : v_set1(0.0f));
}

/* Calls the caller's function of logits for keys [first, end) of a block. */
static void call_for_tile(const rapt_task *t, const query_tile *tile, float *scores, int64_t number, int first, int end) {
    int32_t heads[TILE_ROWS], tokens[TILE_ROWS];
    row_cursor at = row_at(t, 0, tile->row0);
    for (int r = 0; r < tile->rows; r++, at = row_next(t, at)) {
        heads[r] = (int32_t)(t->head0 + at.head);
        tokens[r] = (int32_t)at.token;
    }
    rapt_logits logits = {
        scores + first * TILE_ROWS, 1, TILE_ROWS, tile->rows, end - first, t->batch, number + first, heads, tokens};
    call_logits_body(t, &logits);
}

/* Turns the scores of keys [first, end) of a block into logits: multiplies them by key_scales (null, or a scale for each key of
 * the block), and applies softcap, ALiBi, bias and the caller's function if the problem has any of these. If it has none, only
 * the softmax scale is left to apply, which v_exp2 does. */
static RAPT_NOINLINE void modify_lanes(const rapt_task *t, const query_tile *tile, const lane_scratch *s, float *scores,
                                       const float *key_scales, int64_t number, int first, int end) {
    const rapt_problem *p = t->problem;
    for (int n = first; n < end && key_scales; n++)
        for (int i = 0; i < tile->vectors * RAPT_VL; i += RAPT_VL) {
            float *at = scores + n * TILE_ROWS + i;
            v_store(at, v_mul(v_load(at), v_set1(key_scales[n])));
        }
    if (!p->modified) return;
    float query[TILE_ROWS] = {0};
    row_cursor at = row_at(t, 0, tile->row0);
    for (int r = 0; r < tile->vectors * RAPT_VL && p->alibi; r++) {
        query[r] = (float)(query_number(t, at.token) - number);
        if (r + 1 < tile->rows) at = row_next(t, at);
    }
    if (p->bias.type) stage_bias(t, tile, s->bias, number, first, end);
    for (int i = 0; i < tile->vectors * RAPT_VL; i += RAPT_VL) {
        vf slope = v_load(tile->slope + i), from = v_load(query + i);
        for (int n = first; n < end; n++) {
            float *score = scores + n * TILE_ROWS + i;
            vf bias = p->bias.type ? v_load(s->bias + n * TILE_ROWS + i) : v_set1(0.0f);
            v_store(score, logit_of(p, v_load(score), slope, distance_of(from, v_set1((float)n)), bias));
        }
    }
    if (!p->logits_body) return;
    call_for_tile(t, tile, scores, number, first, end);
    for (int n = first * TILE_ROWS; n < end * TILE_ROWS && p->bias.type; n += TILE_ROWS)
        for (int i = 0; i < tile->vectors * RAPT_VL; i += RAPT_VL)
            v_store(scores + n + i, keep_masked(v_load(scores + n + i), v_load(s->bias + n + i)));
}

/* Writes the tile's scores for the keys of b to the output of scores. */
static void store_tile_scores(const rapt_task *t, const query_tile *tile, const float *scores, const block *b) {
    row_cursor at = row_at(t, 0, tile->row0);
    for (int r = 0; r < tile->rows; r++, at = row_next(t, at))
        store_scores(t, at, b->number, scores + r, TILE_ROWS, b->first, b->end);
}

/* Turns the scores of keys [first, end) into weights, updates the state's maximum and sum, and sets s->alpha to the factor that
 * the state's o must be multiplied by. nv: the tile's vectors, which are computed side by side so that their chains of dependent
 * operations overlap. Replaceable. */
static RAPT_INLINE void weigh_vectors(const int nv, const rapt_problem *p, const lane_state *state, const lane_scratch *s,
                                      int first, int end);
#ifndef weigh_vectors
static RAPT_INLINE void weigh_vectors(const int nv, const rapt_problem *p, const lane_state *state, const lane_scratch *s,
                                      int first, int end) {
    vf m[4], at[4], alpha[4], sum[4];
    vf exponent = v_set1(p->exponent), least = v_set1(p->least);
    UNROLLED(v, nv) m[v] = v_load(state->m + v * RAPT_VL);
    for (int n = first; n < end; n++)
        UNROLLED(v, nv) m[v] = v_max(m[v], v_load(s->s + n * TILE_ROWS + v * RAPT_VL));
    UNROLLED(v, nv) {
        at[v] = finite_max(m[v]);
        alpha[v] = v_exp2(v_sub(v_load(state->m + v * RAPT_VL), at[v]), exponent, least);
        sum[v] = v_set1(0.0f);
    }
    for (int j = 0; j < RAPT_PARTIAL_SUMS; j++) {
        vf partial[4];
        UNROLLED(v, nv) partial[v] = v_set1(0.0f);
        for (int n = first + ((j - first) & (RAPT_PARTIAL_SUMS - 1)); n < end; n += RAPT_PARTIAL_SUMS)
            UNROLLED(v, nv) {
                float *score = s->s + n * TILE_ROWS + v * RAPT_VL;
                vf weight = v_exp2(v_sub(v_load(score), at[v]), exponent, least);
                v_store(score, weight);
                partial[v] = v_add(partial[v], weight);
            }
        UNROLLED(v, nv) sum[v] = v_add(sum[v], partial[v]);
    }
    UNROLLED(v, nv) {
        v_store(state->m + v * RAPT_VL, m[v]);
        v_store(state->l + v * RAPT_VL, v_fma(v_load(state->l + v * RAPT_VL), alpha[v], sum[v]));
        v_store(s->alpha + v * RAPT_VL, alpha[v]);
    }
}
#endif

/* Calls weigh_vectors for the tile's number of vectors. */
static void weigh_lanes(const rapt_problem *p, const query_tile *tile, const lane_scratch *s, int first, int end) {
    RAPT_BY_COUNT(tile->vectors, weigh_vectors, p, &tile->chunk_state, s, first, end);
}

/* Adds P V without the values of masked keys. This is slow, and needed only if such a value is NaN or infinite. masks: -inf for
 * each lane and key whose value is to be skipped. */
static void add_attended(const rapt_problem *p, const query_tile *tile, const lane_scratch *s, const float *masks,
                         const float *values, size_t ld, int first, int end) {
    for (int i = 0; i < tile->vectors * RAPT_VL; i += RAPT_VL) {
        vf alpha = v_load(s->alpha + i);
        for (int c = 0; c < p->d_v; c++) {
            float *to = tile->chunk_state.o + (size_t)c * TILE_ROWS + i;
            vf o = tile->started ? v_mul(v_load(to), alpha) : v_set1(0.0f);
            for (int n = first; n < end; n++) {
                vf value = v_set1(values[(size_t)(n - first) * ld + (size_t)c * COPIES]);
                vf more = v_fma(v_load(s->s + n * TILE_ROWS + i), value, o);
                o = v_select(v_lt(v_load(masks + n * TILE_ROWS + i), v_set1(-FLT_MAX)), o, more);
            }
            v_store(to, o);
        }
    }
}

/* Returns a queue of the rows of K or V from key `number` up to `end`, at most `most`, to be prefetched in `times` equal parts.
 * rows: memory for their addresses. */
static prefetch_queue queue_rows(const rapt_task *t, const char *tensor, const rapt_layout *layout, size_t bytes, int64_t number,
                                 int64_t end, int most, int times, const char **rows) {
    const int n = rapt_min(most, end - number);
    if (n <= 0 || times <= 0 || bytes == 0) return (prefetch_queue){0};
    for (int i = 0; i < n; i += RAPT_BLOCK) {
        const int in_block = rapt_min(RAPT_BLOCK, n - i);
        find_rows(rows + i, t, tensor, layout, &(block){number + i, 0, in_block}, 0, in_block);
    }
    const size_t lines = (bytes + 63) / 64 * (size_t)n;
    return (prefetch_queue){.rows = rows, .left = n, .bytes = bytes, .lines = (int)(lines / (size_t)times) + 1};
}

/* Returns which keys of b each lane attends to, as find_attended does, or null if all lanes attend to all keys of b; never null
 * with skip_masked. Sets tile->masked if a lane may not attend to one of them, as with any bias, which may be -inf. */
static const uint32_t *attended_lanes(const rapt_task *t, query_tile *tile, const lane_scratch *s, const block *b,
                                      bool skip_masked) {
    if (has_masks(t->problem)) {
        int i = (int)(b->number % RAPT_CHUNK / RAPT_BLOCK);
        uint64_t keys = (~UINT64_C(0) >> (RAPT_BLOCK - (b->end - b->first))) << b->first;
        tile->masked |= t->problem->bias.type != RAPT_NONE; /* it may be -inf, which masks, too */
        if (!skip_masked && (keys & ~tile->all[i]) == 0) return NULL;
        tile->masked = true;
        return tile->attended + i * 2 * TILE_ROWS;
    }
    if (!skip_masked && b->number >= tile->first_max && b->number + b->end <= tile->end_min) return NULL;
    uint64_t any, all;
    find_attended(t, tile, b->number, s->attended, &any, &all);
    tile->masked = true;
    return s->attended;
}

/* A block of K and V in scratch, for all tiles of a pass, and queues for prefetching the next block meanwhile. */
typedef struct staged_block {
    block all;                  /* the keys of the block that some tile attends to; only they are staged */
    const float *keys, *values; /* rows, from the first of these keys on; integers: values transposed, from key 0 of the block */
    bool paired;                /* true if the keys are pairs */
    size_t ldk, ldv;            /* floats from row to row; integer arithmetic does not use ldv */
    bool scaled_keys, scaled_values;
    bool negative_values; /* true if a value has a negative scale */
    float key_scales[RAPT_BLOCK], value_scales[RAPT_BLOCK];
    int32_t value_correction[RAPT_MAX_HEAD_DIM]; /* integer arithmetic: the correction of each channel's sum */
    prefetch_queue next_keys, next_values;
    const char *next_key_rows[RAPT_BLOCK], *next_value_rows[RAPT_BLOCK];
} staged_block;

/* Stages n rows of K in integer arithmetic: integers, corrections and the scales of groups. */
static void stage_integer_keys(const rapt_problem *p, const lane_scratch *s, const char *const *rows, int n) {
    const int groups = integer_groups(p->k.type, p->d_k);
    stage_integer_rows(p->k.type, s->keys, staged_row_floats(p->d_k), rows, n, p->d_k, s->corrections);
    for (int r = 0; r < n && p->k.type != RAPT_INT8; r++)
        load_group_scales(p->k.type, rows[r], groups, s->key_factors + r * groups, 1);
}

/* Stages the keys and values of b->all. f32 is copied, too, although it could be read in place: the copy reads memory row by row,
 * once for all tiles, and the strides of a tensor cannot make its rows compete for the same cache sets. */
static void stage_block(const rapt_task *t, const lane_scratch *s, staged_block *b) {
    const rapt_problem *p = t->problem;
    const char *rows[RAPT_BLOCK];
    int first = b->all.first, end = b->all.end;
    size_t dk = staged_row_floats(p->d_k), dv = staged_row_floats(p->d_v);
    find_rows(rows, t, t->k, &p->k, &b->all, first, end);
    b->paired = s->paired && stage_key_pairs(s->keys, dk, rows + first, end - first, p->d_k);
    if (INTEGER) stage_integer_keys(p, s, rows + first, end - first);
    else if (!b->paired) stage_copies(p->k.type, s->keys, dk, rows + first, end - first, p->d_k, s->row);
    b->keys = s->keys;
    b->ldk = dk;
    if (t->v_in_k >= 0 && !INTEGER && !b->paired) {
        b->values = s->keys + (size_t)t->v_in_k * COPIES;
        b->ldv = dk;
    } else {
        find_rows(rows, t, t->v, &p->v, &b->all, first, end);
        if (INTEGER) stage_integer_columns(p->v.type, s->values, rows, first, end, p->d_v, b->value_correction);
        else stage_copies(p->v.type, s->values, dv, rows + first, end - first, p->d_v, s->row);
        b->values = s->values;
        b->ldv = dv;
    }
    b->scaled_keys = scaled_by_key(&p->k_scales);
    b->scaled_values = scaled_by_key(&p->v_scales);
    if (b->scaled_keys) load_key_scales(t, b->key_scales, t->k_scales, &p->k_scales, b->all.number, first, end);
    if (b->scaled_values) load_key_scales(t, b->value_scales, t->v_scales, &p->v_scales, b->all.number, first, end);
    b->negative_values = false;
    for (int n = first; n < end && b->scaled_values; n++) b->negative_values |= b->value_scales[n] < 0.0f;
    if (INTEGER && p->v.type != RAPT_INT8) {
        const int groups = integer_groups(p->v.type, p->d_v);
        for (int n = first; n < end; n++) {
            load_group_scales(p->v.type, rows[n], groups, s->value_factors + n, RAPT_BLOCK);
            for (int g = 0; g < groups && b->scaled_values; g++) s->value_factors[g * RAPT_BLOCK + n] *= b->value_scales[n];
        }
    }
}

/* Computes S^T = K Q^T of a tile for keys [first, end) of the block. */
static void score_lanes(const rapt_problem *p, const query_tile *tile, const lane_scratch *s, staged_block *b, int first,
                        int end) {
    int skipped = first - b->all.first, part = rapt_score_part(p->d_k);
    const float *keys = b->keys + (size_t)skipped * b->ldk;
    if (INTEGER) {
        const int groups = integer_groups(p->k.type, p->d_k);
        const dots product = {.c = s->s + first * TILE_ROWS,
                              .a = (const char *)keys,
                              .lda = b->ldk * sizeof(float),
                              .correction = s->corrections + skipped * groups,
                              .b = tile->q,
                              .depth = dot_depth(p->d_k),
                              .scale = tile->q_scale};
        if (p->k.type == RAPT_INT8) dot_product(product, end - first, tile->vectors);
        else group_dot_product(product, s->key_factors + skipped * groups, groups, end - first, tile->vectors);
    }
    const float *queries = tile->q;
    const int of_float = b->paired ? 2 : 1; /* channels of a float */
    if (s->paired && !b->paired) unpack_query_pairs(s->as_f32, tile->q, p->d_k, tile->vectors), queries = s->as_f32;
    for (int c = 0; c < p->d_k && !INTEGER; c += part) {
        const operands o = {.c = (char *)(s->s + first * TILE_ROWS),
                            .ldc = TILE_ROWS * sizeof(float),
                            .a = (const char *)(keys + (size_t)(c / of_float) * COPIES),
                            .rs = b->ldk * sizeof(float),
                            .ks = COPIES * sizeof(float),
                            .b = (const char *)(queries + (size_t)(c / of_float) * TILE_ROWS),
                            .ldb = TILE_ROWS * sizeof(float),
                            .depth = (rapt_min(part, p->d_k - c) + of_float - 1) / of_float,
                            .mode = c == 0 ? ACCUMULATE_ZERO : ACCUMULATE_ADD_SEPARATE,
                            .queue = &b->next_keys};
        if (b->paired) p->pair_product(&o, end - first, tile->vectors);
        else tile_product(o, end - first, tile->vectors);
    }
}

/* Returns the operands of dot_product for O^T = alpha O^T + V^T P^T of a block. The caller quantises the weights to s->bias, and
 * their scales in each lane to `scale`, before it multiplies. */
static dots product_of_values(const query_tile *tile, const lane_scratch *s, const staged_block *b, const float *scale) {
    return (dots){.c = tile->chunk_state.o,
                  .a = (const char *)b->values,
                  .lda = RAPT_BLOCK / RAPT_DOT * sizeof(float),
                  .correction = b->value_correction,
                  .b = s->bias,
                  .depth = RAPT_BLOCK / RAPT_DOT,
                  .scale = scale,
                  .alpha = tile->started ? s->alpha : NULL};
}

/* Adds P V as add_values_lanes does, for V with groups in integer arithmetic. Each group has a product of its own, whose weights
 * are multiplied by the group's scales before they are quantised. */
static void add_values_groups(const rapt_problem *p, const query_tile *tile, const lane_scratch *s, const staged_block *b,
                              int first, int end) {
    float scale[TILE_ROWS];
    for (int g = 0; g < p->d_v / RAPT_GROUP; g++) {
        dots of_group = product_of_values(tile, s, b, scale);
        of_group.c += (size_t)(g * RAPT_GROUP) * TILE_ROWS;
        of_group.a += (size_t)(g * RAPT_GROUP) * of_group.lda;
        of_group.correction += g * RAPT_GROUP;
        quantise_weights_of_group(s->s, s->value_factors + g * RAPT_BLOCK, first, end, tile->vectors, s->bias, scale);
        dot_product(of_group, RAPT_GROUP, tile->vectors);
    }
}

/* Adds P V as add_values_lanes does, for V of int8 in integer arithmetic. Quantised weights are not negative, so values with
 * negative scales have a product of their own, which is subtracted. */
static void add_values_int8(const rapt_problem *p, const query_tile *tile, const lane_scratch *s, const staged_block *b,
                            int first, int end) {
    float scale[TILE_ROWS] = {0}, negated[RAPT_BLOCK], one[TILE_ROWS]; /* lanes beyond the tile's vectors are negated, too */
    dots product = product_of_values(tile, s, b, scale);
    quantise_weights(s->s, b->scaled_values ? b->value_scales : NULL, first, end, tile->vectors, s->bias, scale);
    dot_product(product, p->d_v, tile->vectors);
    if (!b->negative_values) return;
    for (int n = first; n < end; n++) negated[n] = -b->value_scales[n];
    quantise_weights(s->s, negated, first, end, tile->vectors, s->bias, scale);
    for (int i = 0; i < TILE_ROWS; i++) scale[i] = -scale[i], one[i] = 1.0f;
    product.alpha = one;
    dot_product(product, p->d_v, tile->vectors);
}

/* Adds P V as add_values_lanes does, in exact arithmetic. */
static void add_values_exact(const rapt_problem *p, const query_tile *tile, const lane_scratch *s, staged_block *b, int first,
                             int end, const float *masks) {
    const float *values = b->values + (size_t)(first - b->all.first) * b->ldv;
    for (int n = first; n < end && b->scaled_values; n++)
        for (int i = 0; i < tile->vectors * RAPT_VL; i += RAPT_VL) {
            float *weight = s->s + n * TILE_ROWS + i;
            v_store(weight, v_mul(v_load(weight), v_set1(b->value_scales[n])));
        }
    if (masks) add_attended(p, tile, s, masks, values, b->ldv, first, end);
    else
        tile_product((operands){.c = (char *)tile->chunk_state.o,
                                .ldc = TILE_ROWS * sizeof(float),
                                .a = (const char *)values,
                                .rs = COPIES * sizeof(float),
                                .ks = b->ldv * sizeof(float),
                                .b = (const char *)(s->s + first * TILE_ROWS),
                                .ldb = TILE_ROWS * sizeof(float),
                                .depth = end - first,
                                .mode = tile->started ? ACCUMULATE_SCALE_ADD : ACCUMULATE_ZERO,
                                .scale = s->alpha,
                                .queue = &b->next_values},
                     p->d_v, tile->vectors);
}

/* Computes O^T = alpha O^T + V^T P^T of a tile for values [first, end) of the block. masks: null, or -inf for each key whose
 * value is to be skipped, which only exact arithmetic does. */
static void add_values_lanes(const rapt_problem *p, const query_tile *tile, const lane_scratch *s, staged_block *b, int first,
                             int end, const float *masks) {
    if (!INTEGER) add_values_exact(p, tile, s, b, first, end, masks);
    else if (p->v.type == RAPT_INT8) add_values_int8(p, tile, s, b, first, end);
    else add_values_groups(p, tile, s, b, first, end);
}

/* Finds the blocks of a chunk that lanes of the tiles attend to, and returns their number. */
static int blocks_of_tiles(const rapt_task *t, query_tile *tiles, int n_tiles, int64_t chunk, block *blocks) {
    const rapt_problem *p = t->problem;
    int count = 0;
    for (int i = 0; i < n_tiles && has_masks(p); i++) find_attended_in_chunk(t, &tiles[i], chunk);
    for (int64_t number = chunk * RAPT_CHUNK; number < (chunk + 1) * RAPT_CHUNK; number += RAPT_BLOCK) {
        block all = {number, RAPT_BLOCK, 0};
        for (int i = 0; i < n_tiles; i++) {
            block b = tile_block(p, &tiles[i], number);
            if (b.first >= b.end) continue;
            if (b.first < all.first) all.first = b.first;
            if (b.end > all.end) all.end = b.end;
        }
        if (all.first < all.end) blocks[count++] = all;
    }
    return count;
}

/* Computes the states of some tiles over one chunk, from the empty state. skip_masked: leave the values of masked keys out. At
 * first they are added with weight 0; if that has made O infinite or NaN, the caller repeats the chunk with skip_masked. */
static void attend_chunk_queries_in_lanes(const rapt_task *t, const lane_scratch *s, query_tile *tiles, int n_tiles,
                                          int64_t chunk, bool skip_masked) {
    const rapt_problem *p = t->problem;
    int64_t end_max = 0;
    int qk_tiles = 0, pv_tiles = 0, score_parts = (p->d_k - 1) / rapt_score_part(p->d_k) + 1;
    block blocks[CHUNK_BLOCKS];
    int count = blocks_of_tiles(t, tiles, n_tiles, chunk, blocks);
    for (int i = 0; i < n_tiles; i++) {
        start_chunk(&tiles[i]);
        if (tiles[i].end_max > end_max) end_max = tiles[i].end_max;
        qk_tiles += register_tiles(RAPT_BLOCK, tiles[i].vectors) * score_parts;
        pv_tiles += register_tiles(p->d_v, tiles[i].vectors);
    }
    for (int n = 0; n < count; n++) {
        staged_block staged;
        staged.all = blocks[n];
        stage_block(t, s, &staged);
        int64_t number = blocks[n].number, next = n + 1 < count ? blocks[n + 1].number : (chunk + 1) * RAPT_CHUNK;
        staged.next_keys = queue_rows(t, t->k, &p->k, p->k_row, next, end_max, RAPT_BLOCK, qk_tiles, staged.next_key_rows);
        staged.next_values =
            queue_rows(t, t->v, &p->v, t->v_in_k < 0 ? p->v_row : 0, next, end_max, RAPT_BLOCK, pv_tiles, staged.next_value_rows);
        for (int i = 0; i < n_tiles; i++) {
            query_tile *tile = &tiles[i];
            block b = tile_block(p, tile, number);
            if (b.first >= b.end) continue;
            score_lanes(p, tile, s, &staged, b.first, b.end);
            if (staged.scaled_keys || p->modified)
                modify_lanes(t, tile, s, s->s, staged.scaled_keys ? staged.key_scales : NULL, number, b.first, b.end);
            const uint32_t *attended = attended_lanes(t, tile, s, &b, skip_masked);
            if (attended) mask_lanes(tile, attended, s->s, b.first, b.end);
            if (t->scores) store_tile_scores(t, tile, s->s, &b);
            weigh_lanes(p, tile, s, b.first, b.end);
            if (skip_masked) {
                if (!p->bias.type) memset(s->bias, 0, RAPT_BLOCK * TILE_ROWS * sizeof *s->bias);
                mask_lanes(tile, attended, s->bias, b.first, b.end);
            }
            add_values_lanes(p, tile, s, &staged, b.first, b.end, skip_masked ? s->bias : NULL);
            tile->started = true;
        }
    }
}

/* Merges the first nv vectors of rows of `next` into those of `state`, channel by channel, so that memory is read in order. */
static RAPT_INLINE void merge_vectors(const int nv, const rapt_problem *p, const lane_state *state, const lane_state *next) {
    vf a[4], b[4];
    UNROLLED(v, nv) {
        const int i = v * RAPT_VL;
        merge_weights(p, state->m + i, state->l + i, next->m + i, next->l + i, &a[v], &b[v]);
    }
    for (int c = 0; c < p->d_v; c++)
        UNROLLED(v, nv) {
            const size_t i = (size_t)c * TILE_ROWS + v * RAPT_VL;
            merge_values(state->o + i, next->o + i, a[v], b[v]);
        }
}

/* Merges the tile's state of this chunk into that of the chunks before. */
static void merge_tile(const rapt_problem *p, query_tile *tile) {
    if (!tile->merged) {
        lane_state swapped = tile->merged_state;
        tile->merged_state = tile->chunk_state;
        tile->chunk_state = swapped;
        tile->merged = true;
        return;
    }
    RAPT_BY_COUNT(tile->vectors, merge_vectors, p, &tile->merged_state, &tile->chunk_state);
}

/* Prefetches the rows of O that emit_tile will write. */
static void prefetch_output(const rapt_task *t, const query_tile *tile) {
    row_cursor at = row_at(t, 0, tile->row0);
    for (int r = 0; r < tile->rows; r++, at = row_next(t, at))
        prefetch_row(t->o, (size_t)row_offset(&t->problem->o, at), t->problem->o_row);
}

/* Merges the sinks of RAPT_VL lanes, from number `lane` on, into m and l of the state. Returns the factor for its o. */
static __attribute__((unused)) RAPT_NOINLINE vf absorb_sinks(const rapt_task *t, const query_tile *tile, const lane_state *state,
                                                             int lane) {
    float m[RAPT_VL], one[RAPT_VL];
    row_cursor at = row_at(t, 0, tile->row0 + lane);
    for (int r = 0; r < RAPT_VL; r++) {
        m[r] = sink_score(t->problem, t->sinks + at.head * t->problem->sinks.head_stride);
        one[r] = 1.0f;
        if (lane + r + 1 < tile->rows) at = row_next(t, at);
    }
    vf a, b;
    merge_weights(t->problem, state->m + lane, state->l + lane, m, one, &a, &b);
    return a;
}

/* Transposes the state of a tile back to rows and writes them: O and LSE, or states if these are wanted. Replaceable. */
static void emit_tile(const rapt_task *t, const lane_scratch *s, const query_tile *tile, const lane_state *state, int64_t chunk);
#ifndef emit_tile
static void emit_tile(const rapt_task *t, const lane_scratch *s, const query_tile *tile, const lane_state *state, int64_t chunk) {
    const rapt_problem *p = t->problem;
    size_t dv = staged_row_floats(p->d_v);
    row_cursor at = row_at(t, 0, tile->row0);
    bool scaled = scaled_by_channel(&p->v_scales) && !t->states;
    float scales[RAPT_MAX_HEAD_DIM];
    if (scaled) load_channel_scales(scales, t->v_scales, &p->v_scales, p->d_v);
    for (int i = 0; i < tile->rows; i += RAPT_VL) {
        vf alpha = v_set1(1.0f);
        if (t->sinks && !t->states) alpha = absorb_sinks(t, tile, state, i);
        vf factor = reciprocal(v_load(state->l + i));
        for (int c = 0; c < p->d_v; c += RAPT_VL) {
            vf square[RAPT_VL]; /* beyond d_v copies of the last channel, which are not written to the output */
            UNROLLED(j, RAPT_VL) {
                vf o = v_load(state->o + (size_t)rapt_min(c + j, p->d_v - 1) * TILE_ROWS + i);
                if (t->states) square[j] = o;
                else if (!t->sinks && !scaled) square[j] = finished(o, factor);
                else
                    square[j] =
                        finished(v_mul(o, alpha), scaled ? v_mul(factor, v_set1(scales[rapt_min(c + j, p->d_v - 1)])) : factor);
            }
            v_transpose(square);
            UNROLLED(j, RAPT_VL) v_store(s->rows + (size_t)j * dv + c, square[j]);
        }
        for (int r = i; r < i + RAPT_VL && r < tile->rows; r++, at = row_next(t, at)) {
            if (t->states) store_state(t, at, chunk, state->m[r], state->l[r], s->rows + (size_t)(r - i) * dv);
            else
                write_row(p, t->o + row_offset(&p->o, at), t->lse ? t->lse + row_offset(&p->lse, at) : NULL, state->m[r],
                          state->l[r], s->rows + (size_t)(r - i) * dv);
        }
    }
}
#endif

/* True if the tile's O is not finite, and masked values, added with weight 0, may be why: the chunk must then be computed again
 * with skip_masked. */
static bool masked_values_spoiled_o(const rapt_problem *p, const query_tile *tile) {
    return tile->started && tile->masked && any_nonfinite(tile->chunk_state.o, p->d_v, TILE_ROWS, tile->vectors * RAPT_VL);
}

/* True if the task merges chunks. */
static bool merges(const rapt_task *t) { return !t->states && t->chunks > 1; }

/* Ends a chunk for a tile: stores or merges its state, and after the last chunk writes its rows. next: the tile whose output is
 * written next, or null. */
static void end_chunk(const rapt_task *t, const lane_scratch *s, query_tile *tile, const query_tile *next, int64_t chunk) {
    if (t->states) {
        if (tile->started) emit_tile(t, s, tile, &tile->chunk_state, chunk);
        else store_empty_states(t, 0, tile->row0, tile->rows, chunk);
        return;
    }
    if (tile->started && merges(t)) merge_tile(t->problem, tile);
    if (chunk + 1 < t->chunk0 + t->chunks) return;
    if (!tile->started && !tile->merged)
        memset(tile->chunk_state.o, 0, (size_t)t->problem->d_v * TILE_ROWS * sizeof *tile->chunk_state.o);
    if (next) prefetch_output(t, next);
    emit_tile(t, s, tile, tile->merged ? &tile->merged_state : &tile->chunk_state, 0);
}

#include "bf16/bf16_queries.h"

/* Returns how many rows the tile that begins with row0 has: TILE_ROWS, or what is left of the task. If rows come in periods
 * (rapt_task.period), each period is cut into as few tiles as hold it, of about equal length, in whole vectors but the last. */
static int rows_of_tile(const rapt_task *t, int64_t row0) {
    int64_t most = TILE_ROWS;
    if (t->period == 0) return rapt_min(most, t->rows - row0);
    int64_t tiles = (t->period + most - 1) / most, even = (t->period + tiles - 1) / tiles;
    int64_t left = t->period - row0 % t->period;
    return rapt_min(rapt_min((even + RAPT_VL - 1) / RAPT_VL * RAPT_VL, left), t->rows - row0);
}

/* Packs the queries of all tiles. Returns false if they cannot be packed as pairs. */
static bool pack_tiles(const rapt_task *t, query_tile *tiles, int n, bool paired) {
    for (int i = 0; i < n; i++)
        if (!pack_queries(t, &tiles[i], paired)) return false;
    return true;
}

/* Computes a task with queries in lanes. */
static RAPT_NOINLINE void attend_queries_in_lanes(const rapt_task *t) {
    const rapt_problem *p = t->problem;
    lane_scratch s;
    query_tile tiles[RAPT_MOST_PASS_TILES];
    int n = 0;
    for (int64_t row0 = 0; row0 < t->rows; row0 += rows_of_tile(t, row0)) n++;
    lay_out_lanes(p, t->scratch, &s, tiles, n, merges(t));
    for (int i = 0; i < n; i++) {
        tiles[i].row0 = i ? tiles[i - 1].row0 + tiles[i - 1].rows : 0;
        tiles[i].rows = rows_of_tile(t, tiles[i].row0);
        tiles[i].vectors = (tiles[i].rows + RAPT_VL - 1) / RAPT_VL;
    }
    s.paired = has_pairs(p) && pack_tiles(t, tiles, n, true);
    if (!s.paired) pack_tiles(t, tiles, n, false);
    const int64_t chunks = t->states ? t->chunks : rapt_max(t->chunks, 1); /* rows without keys are written, too */
    for (int64_t chunk = t->chunk0; chunk < t->chunk0 + chunks; chunk++) {
        if (!t->states && chunk + 1 == t->chunk0 + chunks) prefetch_output(t, &tiles[0]);
        if (BF16) {
            attend_chunk_bf16(t, &s, tiles, n, chunk);
            continue;
        }
        attend_chunk_queries_in_lanes(t, &s, tiles, n, chunk, false);
        for (int i = 0; i < n; i++) {
            if (!INTEGER && masked_values_spoiled_o(p, &tiles[i]))
                attend_chunk_queries_in_lanes(t, &s, &tiles[i], 1, chunk, true);
            end_chunk(t, &s, &tiles[i], i + 1 < n ? &tiles[i + 1] : NULL, chunk);
        }
    }
}
