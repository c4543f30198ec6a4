/* SPDX-License-Identifier: Apache-2.0 */
/* bf16 arithmetic with queries in lanes. A chunk has one maximum, so nothing is rescaled within it: a tile first gets all its
 * scores of the chunk, then all its weights, which are 0 or at least 2^-56, then its values. V has one channel more, of ones,
 * whose result is the sum of the weights. Included by queries_in_lanes.h. */

/* Stages the keys of a block that some tile attends to. Replaceable. */
static void stage_bf16_keys(const rapt_task *t, const lane_scratch *s, const block *b);

/* Stages the values of a block that some tile attends to. scales: null, or what each is multiplied by. Replaceable. */
static void stage_bf16_values(const rapt_task *t, const lane_scratch *s, const block *b, const float *scales);

/* The rows of K and V of the next chunk, and queues that prefetch them while the tiles of this one are scored. */
typedef struct next_chunk {
    const char *key_rows[RAPT_CHUNK], *value_rows[RAPT_CHUNK];
    prefetch_queue keys, values;
} next_chunk;

/* Prefetches a share of the next chunk. */
static RAPT_INLINE void prefetch_next_chunk(next_chunk *next) {
    prefetch_from_queue(&next->keys);
    prefetch_from_queue(&next->values);
}

/* Scores the keys of a block for a tile: S = K Q^T. It calls prefetch_next_chunk RAPT_BF16_PREFETCHES times. That is 0 where
 * vectors multiply: memory is fast enough for them, and prefetching takes 6 % of D5 (avx512_vnni on Granite Rapids). Replaceable,
 * together with that constant. */
#ifndef RAPT_BF16_PREFETCHES
#define RAPT_BF16_PREFETCHES 0
#endif
static void score_bf16(const rapt_problem *p, const query_tile *tile, const lane_scratch *s, const block *b, next_chunk *next);

/* A tile, and the blocks of a chunk that it attends to. */
typedef struct tile_work {
    const query_tile *tile;
    int count;
    block blocks[CHUNK_BLOCKS];
    int parity; /* the tile's number modulo 2: which of the two places its weights have */
} tile_work;

/* RAPT_BF16_LAG: how many tiles the products by V are behind the weights (advance_bf16). 1: a matrix unit multiplies the values
 * of a tile while vectors exponentiate the scores of the next one. 0: a tile is finished before the next one begins. */
#ifndef RAPT_BF16_LAG
#define RAPT_BF16_LAG 0
#endif
_Static_assert(RAPT_BF16_LAG == 0 || RAPT_BF16_LAG == 1, "there are two states of a chunk");
#if RAPT_BF16_LAG && !defined(advance_bf16)
#error "RAPT_BF16_LAG 1 needs an advance_bf16 whose weights do not overwrite the scores"
#endif

/* Computes the weights of `now` from its scores and their maximum, and O^T = V^T P^T of `before`: the tile before it, whose
 * weights are complete, or with RAPT_BF16_LAG 0 the same tile, once it has its weights. Either is null if there is no such tile,
 * or if it attends to no key of the chunk. Replaceable, together with RAPT_BF16_LAG. */
static void advance_bf16(const rapt_problem *p, const lane_scratch *s, const tile_work *now, const tile_work *before);

/* Sets the scores of keys [from, to) of a block to -inf, and so their weights to 0: no row of the tile attends to them. */
static inline void exclude_keys(float *scores, int from, int to) {
    for (int n = from; n < to; n++)
        for (int i = 0; i < TILE_ROWS; i += RAPT_VL) v_store(scores + n * TILE_ROWS + i, v_set1(-INFINITY));
}

/* Excludes the keys that complete a tile's blocks to whole steps: those of the first and the last step of each block that are
 * outside its [first, end). */
static inline void exclude_rest_of_steps(const tile_work *w, float *scores) {
    for (int i = 0; i < w->count; i++) {
        const block *b = &w->blocks[i];
        float *of_block = scores + b->number % RAPT_CHUNK * TILE_ROWS;
        exclude_keys(of_block, b->first / RAPT_STEP * RAPT_STEP, b->first);
        exclude_keys(of_block, b->end, (b->end + RAPT_STEP - 1) / RAPT_STEP * RAPT_STEP);
    }
}

/* Stages the values of a block to `to` in the layout of stage_bf16_rows_of_values, whatever that of stage_bf16_values is: each
 * row as factors, followed by a 1. */
static void stage_values_of_block(const rapt_task *t, const lane_scratch *s, const block *b, const float *scales, float *to) {
    const rapt_problem *p = t->problem;
    const char *rows[RAPT_BLOCK];
    size_t ld = staged_bf16_values(p);
    find_rows(rows, t, t->v, &p->v, b, b->first, b->end);
    stage_bf16_rows_of_values(p->v.type, to + (size_t)b->first * ld, ld, rows + b->first, b->end - b->first, p->d_v,
                              scales ? scales + b->first : NULL, s->row);
}

#ifndef stage_bf16_keys
static void stage_bf16_keys(const rapt_task *t, const lane_scratch *s, const block *b) {
    const rapt_problem *p = t->problem;
    const char *rows[RAPT_BLOCK];
    size_t ld = staged_bf16_keys(p);
    find_rows(rows, t, t->k, &p->k, b, b->first, b->end);
    stage_bf16_rows_of_keys(p->k.type, s->keys + (size_t)(b->number % RAPT_CHUNK + b->first) * ld, ld, rows + b->first,
                            b->end - b->first, p->d_k, s->row);
}
#endif

#ifndef stage_bf16_values
static void stage_bf16_values(const rapt_task *t, const lane_scratch *s, const block *b, const float *scales) {
    stage_values_of_block(t, s, b, scales, s->values + (size_t)(b->number % RAPT_CHUNK) * staged_bf16_values(t->problem));
}
#endif

#ifndef score_bf16
static void score_bf16(const rapt_problem *p, const query_tile *tile, const lane_scratch *s, const block *b, next_chunk *next) {
    (void)next;
    size_t ld = staged_bf16_keys(p), first = (size_t)(b->number % RAPT_CHUNK + b->first);
    for (size_t c = 0; c < whole_steps(p->d_k); c += RAPT_STEP)
        step_product((operands){.c = (char *)(s->s + first * TILE_ROWS),
                                .ldc = TILE_ROWS * sizeof(float),
                                .a = (const char *)(s->keys + first * ld + c * COPIES),
                                .rs = ld * sizeof(float),
                                .ks = COPIES * sizeof(float),
                                .b = (const char *)(tile->q + c * TILE_ROWS),
                                .ldb = TILE_ROWS * sizeof(float),
                                .depth = STEP_PAIRS,
                                .mode = c == 0 ? ACCUMULATE_ZERO : ACCUMULATE_ADD_SEPARATE},
                     (ptrdiff_t)(STEP_PAIRS * COPIES * sizeof(float)), (ptrdiff_t)(STEP_PAIRS * TILE_ROWS * sizeof(float)),
                     STEP_PAIRS, s->even, b->end - b->first, tile->vectors);
}
#endif

/* Updates the maxima of nv vectors, as raise_maximum says. Several chains of maxima hide each other's latency. */
static RAPT_INLINE void raise_maximum_of(const int nv, const lane_state *state, const float *scores, int first, int end) {
    enum { CHAINS = 4 };
    vf m[CHAINS][4];
    UNROLLED(v, nv) {
        m[0][v] = v_load(state->m + v * RAPT_VL);
        RAPT_UNROLL for (int i = 1; i < CHAINS; i++) m[i][v] = m[0][v];
    }
    for (; first + CHAINS <= end; first += CHAINS)
        UNROLLED(i, CHAINS)
            UNROLLED(v, nv) m[i][v] = v_max(m[i][v], v_load(scores + (first + i) * TILE_ROWS + v * RAPT_VL));
    for (; first < end; first++)
        UNROLLED(v, nv) m[0][v] = v_max(m[0][v], v_load(scores + first * TILE_ROWS + v * RAPT_VL));
    UNROLLED(v, nv) v_store(state->m + v * RAPT_VL, v_max(v_max(m[0][v], m[1][v]), v_max(m[2][v], m[3][v])));
}

/* Updates the maximum of a tile's state by the scores of a block. */
static void raise_maximum(const query_tile *tile, const float *scores, const block *b) {
    RAPT_BY_COUNT(tile->vectors, raise_maximum_of, &tile->chunk_state, scores, b->first, b->end);
}

/* Replaces the scores of nv vectors by weights, as weigh_bf16_in_place says. */
static RAPT_INLINE void weigh_bf16_vectors(const int nv, const rapt_problem *p, const lane_state *state, float *s,
                                           const block *blocks, int count) {
    vf at[4], exponent = v_set1(p->exponent), least = v_set1(least_bf16_difference(p));
    UNROLLED(v, nv) at[v] = finite_max(v_load(state->m + v * RAPT_VL));
    for (int i = 0; i < count; i++) {
        float *scores = s + blocks[i].number % RAPT_CHUNK * TILE_ROWS;
        for (int n = blocks[i].first; n < blocks[i].end; n++)
            UNROLLED(v, nv) {
                float *score = scores + n * TILE_ROWS + v * RAPT_VL;
                v_store(score, v_exp2_bf16(v_sub(v_load(score), at[v]), exponent, least));
            }
    }
}

/* Replaces a tile's scores of a chunk by weights. */
static void weigh_bf16_in_place(const rapt_problem *p, const query_tile *tile, const lane_scratch *s, const block *blocks,
                                int count) {
    RAPT_BY_COUNT(tile->vectors, weigh_bf16_vectors, p, &tile->chunk_state, s->s, blocks, count);
}

#ifndef advance_bf16
/* Computes O^T = V^T P^T of a tile for a chunk, step by step. Keys of a step that the tile does not attend to would add zeros, so
 * they are left out. */
static void add_bf16_values(const rapt_problem *p, const query_tile *tile, const lane_scratch *s, const block *blocks,
                            int count) {
    size_t ld = staged_bf16_values(p);
    bool started = false;
    for (int i = 0; i < count; i++)
        for (int from = blocks[i].first, to; from < blocks[i].end; from = to, started = true) {
            to = rapt_min(blocks[i].end, (from / RAPT_STEP + 1) * RAPT_STEP);
            int odd = from % 2, even = from + odd; /* the first even key; the first odd one is before or after it */
            size_t key = (size_t)(blocks[i].number % RAPT_CHUNK + even);
            ptrdiff_t to_odd = odd ? -1 : 1;
            step_product((operands){.c = (char *)tile->chunk_state.o,
                                    .ldc = TILE_ROWS * sizeof(float),
                                    .a = (const char *)(s->values + key * ld),
                                    .rs = COPIES * sizeof(float),
                                    .ks = 2 * ld * sizeof(float),
                                    .b = (const char *)(s->s + key * TILE_ROWS),
                                    .ldb = 2 * TILE_ROWS * sizeof(float),
                                    .depth = (to - even + 1) / 2,
                                    .mode = started ? ACCUMULATE_ADD_SEPARATE : ACCUMULATE_ZERO},
                         to_odd * (ptrdiff_t)(ld * sizeof(float)), to_odd * (ptrdiff_t)(TILE_ROWS * sizeof(float)),
                         (to - from) - (to - even + 1) / 2, s->even, p->d_v + 1, tile->vectors);
        }
}

static void advance_bf16(const rapt_problem *p, const lane_scratch *s, const tile_work *now, const tile_work *before) {
    if (now) weigh_bf16_in_place(p, now->tile, s, now->blocks, now->count);
    if (before) add_bf16_values(p, before->tile, s, before->blocks, before->count);
}
#endif

/* Adds P V of a block to O, without the values of masked keys, for which s->bias is -inf. values: from key 0 of the block on, as
 * stage_values_of_block stages them. started: false if O has no value yet, and is to start from 0. */
static void add_attended_lanes_bf16(const rapt_problem *p, const query_tile *tile, const lane_scratch *s, const block *b,
                                    const float *values, bool started) {
    const float *weights = s->s + b->number % RAPT_CHUNK * TILE_ROWS;
    size_t ld = staged_bf16_values(p);
    for (int i = 0; i < tile->vectors * RAPT_VL; i += RAPT_VL)
        for (int c = 0; c <= p->d_v; c++) {
            float *to = tile->chunk_state.o + (size_t)c * TILE_ROWS + i;
            vf o = started ? v_load(to) : v_set1(0.0f);
            for (int step = 0; step < RAPT_BLOCK; step += RAPT_STEP) {
                vf sums[2] = {v_set1(0.0f), v_set1(0.0f)};
                for (int n = rapt_max(step, b->first); n < rapt_min(step + RAPT_STEP, b->end); n++) {
                    vf sum = v_fma(v_load(weights + n * TILE_ROWS + i), v_set1(values[(size_t)n * ld + (size_t)c * COPIES]),
                                   sums[n % 2]);
                    sums[n % 2] = v_select(v_lt(v_load(s->bias + n * TILE_ROWS + i), v_set1(-FLT_MAX)), sums[n % 2], sum);
                }
                o = v_add(o, v_add(sums[0], sums[1]));
            }
            v_store(to, o);
        }
}

/* Computes O of a chunk anew for a tile, without the masked keys, whose values are not all finite. The weights are in s->s. */
static void add_attended_chunk_bf16(const rapt_task *t, query_tile *tile, const lane_scratch *s, const float *value_scales,
                                    const block *blocks, int count) {
    const rapt_problem *p = t->problem;
    for (int i = 0; i < count; i++) {
        const block *b = &blocks[i];
        if (p->bias.type) stage_bias(t, tile, s->bias, b->number, b->first, b->end);
        else memset(s->bias, 0, RAPT_BLOCK * TILE_ROWS * sizeof *s->bias);
        mask_lanes(tile, attended_lanes(t, tile, s, b, true), s->bias, b->first, b->end);
        stage_values_of_block(t, s, b, value_scales ? value_scales + b->number % RAPT_CHUNK : NULL, s->values);
        add_attended_lanes_bf16(p, tile, s, b, s->values, i > 0);
    }
}

/* The scales of the tokens of a chunk. */
typedef struct chunk_scales {
    float keys[RAPT_CHUNK], values[RAPT_CHUNK];
} chunk_scales;

/* Stages the values of a chunk that some tile attends to. */
static void stage_chunk_values(const rapt_task *t, const lane_scratch *s, const block *blocks, int count,
                               const chunk_scales *scales) {
    const bool scaled = scaled_by_key(&t->problem->v_scales);
    for (int i = 0; i < count; i++)
        stage_bf16_values(t, s, &blocks[i], scaled ? scales->values + blocks[i].number % RAPT_CHUNK : NULL);
}

/* Stages the keys and values of a chunk that some tile attends to, and loads their scales. */
static void stage_chunk_bf16(const rapt_task *t, const lane_scratch *s, const block *blocks, int count, chunk_scales *scales) {
    const rapt_problem *p = t->problem;
    for (int i = 0; i < count; i++) {
        const block *b = &blocks[i];
        int64_t at = b->number % RAPT_CHUNK;
        if (scaled_by_key(&p->k_scales))
            load_key_scales(t, scales->keys + at, t->k_scales, &p->k_scales, b->number, b->first, b->end);
        if (scaled_by_key(&p->v_scales))
            load_key_scales(t, scales->values + at, t->v_scales, &p->v_scales, b->number, b->first, b->end);
        stage_bf16_keys(t, s, b);
    }
    stage_chunk_values(t, s, blocks, count, scales);
}

/* Queues the rows of the chunk after this one that some tile may attend to by its position, in `times` parts. */
static void queue_next_chunk(const rapt_task *t, const query_tile *tiles, int n_tiles, int64_t chunk, int times,
                             next_chunk *next) {
    const rapt_problem *p = t->problem;
    const int64_t number = (chunk + 1) * RAPT_CHUNK;
    int64_t end = 0;
    for (int i = 0; i < n_tiles; i++) end = rapt_max(end, tiles[i].end_max);
    if (chunk + 1 >= t->chunk0 + t->chunks) end = 0;
    next->keys = queue_rows(t, t->k, &p->k, p->k_row, number, end, RAPT_CHUNK, times, next->key_rows);
    next->values = queue_rows(t, t->v, &p->v, t->v_in_k < 0 ? p->v_row : 0, number, end, RAPT_CHUNK, times, next->value_rows);
}

/* Scores a staged chunk for a tile, from the empty state, finds the maximum, and sets *work to the blocks that it attends to. */
static void score_tile_bf16(const rapt_task *t, const lane_scratch *s, query_tile *tile, const block *blocks, int count,
                            const chunk_scales *scales, bool skip_masked, tile_work *work, next_chunk *next) {
    const rapt_problem *p = t->problem;
    const bool keys = scaled_by_key(&p->k_scales);
    work->tile = tile;
    work->count = 0;
    start_chunk(tile);
    for (int i = 0; i < count; i++) {
        block b = tile_block(p, tile, blocks[i].number);
        if (b.first >= b.end) continue;
        float *scores = s->s + b.number % RAPT_CHUNK * TILE_ROWS;
        score_bf16(p, tile, s, &b, next);
        if (keys || p->modified)
            modify_lanes(t, tile, s, scores, keys ? scales->keys + b.number % RAPT_CHUNK : NULL, b.number, b.first, b.end);
        const uint32_t *attended = attended_lanes(t, tile, s, &b, skip_masked);
        if (attended) mask_lanes(tile, attended, scores, b.first, b.end);
        if (t->scores) store_tile_scores(t, tile, scores, &b);
        raise_maximum(tile, scores, &b);
        /* An advance_bf16 that multiplies whole steps (amx.h, bf16_chains.h) multiplies, with weight 0, also values that only
         * other tiles attend to, which may be infinite or NaN. */
        tile->masked |= b.first % RAPT_STEP || b.end % RAPT_STEP;
        work->blocks[work->count++] = b;
    }
    tile->started = work->count > 0;
}

/* Attends to one chunk for the tiles of a pass, one tile after the other, so that a tile's state of the chunk stays in the cache.
 * With RAPT_BF16_LAG 1 the tiles form a pipeline; for three of them:
 *
 *            score_tile_bf16   advance_bf16              end_chunk
 *   i = 0    scores of 0       weights of 0
 *   i = 1    scores of 1       weights of 1, values of 0   tile 0, whose chunk_state memory tile 2 takes over
 *   i = 2    scores of 2       weights of 2, values of 1   tile 1, which keeps its memory for the next chunk
 *   i = 3                                    values of 2   tile 2, whose memory goes back to tile 0
 *
 * With RAPT_BF16_LAG 0, iteration i does all of tile i. At most two tiles are under way, so there are two states of a chunk and
 * two places for weights, of even tiles and of odd ones. Scores have one place: a tile's weights are complete before the next
 * tile is scored. */
static void attend_chunk_bf16(const rapt_task *t, const lane_scratch *s, query_tile *tiles, int n_tiles, int64_t chunk) {
    const rapt_problem *p = t->problem;
    chunk_scales scales;
    block blocks[CHUNK_BLOCKS];
    tile_work work[2], repeated;
    int count = blocks_of_tiles(t, tiles, n_tiles, chunk, blocks);
    next_chunk next;
    stage_chunk_bf16(t, s, blocks, count, &scales);
    queue_next_chunk(t, tiles, n_tiles, chunk, n_tiles * count * RAPT_BF16_PREFETCHES, &next);
    for (int i = 0; i < n_tiles + RAPT_BF16_LAG; i++) {
        const int last = i - RAPT_BF16_LAG;
        tile_work *now = &work[i % 2], *before = &work[last & 1];
        now->parity = i % 2;
        if (i < n_tiles) score_tile_bf16(t, s, &tiles[i], blocks, count, &scales, false, now, &next);
        advance_bf16(p, s, i < n_tiles && tiles[i].started ? now : NULL, last >= 0 && tiles[last].started ? before : NULL);
        if (last < 0) continue;
        query_tile *tile = &tiles[last];
        if (masked_values_spoiled_o(p, tile)) {
            score_tile_bf16(t, s, tile, blocks, count, &scales, true, &repeated, &next);
            weigh_bf16_in_place(p, tile, s, repeated.blocks, repeated.count);
            add_attended_chunk_bf16(t, tile, s, scaled_by_key(&p->v_scales) ? scales.values : NULL, repeated.blocks,
                                    repeated.count);
            stage_chunk_values(t, s, blocks, count, &scales); /* overwritten by add_attended_chunk_bf16 */
        }
        end_chunk(t, s, tile, last + 1 < n_tiles ? tile + 1 : NULL, chunk);
        /* Tile last + 2 is next to need a state; after the last tiles, tiles 0 and 1 of the next chunk are. */
        tiles[last + 2 < n_tiles ? last + 2 : last % 2].chunk_state = tile->chunk_state;
    }
}
