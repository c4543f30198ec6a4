/* SPDX-License-Identifier: Apache-2.0 */
/* bf16 arithmetic with queries in lanes: a chunk at a time, with one maximum, so that nothing is rescaled within it. All its
 * scores for a tile come first, then its weights, which are 0 or at least 2^-56, then its values; and the sum of weights is that
 * of one channel more, of ones. Included by queries_in_lanes.h. */

/* Stages the keys, and the values times their scales, that some tile attends to in a block. Replaceable. */
static void stage_bf16_keys(const rapt_task *t, const lane_scratch *s, const block *b);
static void stage_bf16_values(const rapt_task *t, const lane_scratch *s, const block *b, const float *scales);

/* S = K Q^T of a tile for the keys of a block. Replaceable. */
static void score_bf16(const rapt_problem *p, const query_tile *tile, const lane_scratch *s, const block *b);

/* A tile, and the blocks of a chunk that it visits. */
typedef struct visit {
    const query_tile *tile;
    int count;
    block blocks[CHUNK_BLOCKS];
    int parity; /* of the tile's number: the weights of two adjacent tiles may exist at the same time */
} visit;

/* Weights of the tile `now` from its scores, whose maximum is known; and O^T = V^T P^T of the tile before, whose weights are
 * known, or where RAPT_BF16_LAG is 0, of the same tile. Either may be null. Replaceable, with that constant. */
#ifndef RAPT_BF16_LAG
#define RAPT_BF16_LAG 0
#endif
_Static_assert(RAPT_BF16_LAG == 0 || RAPT_BF16_LAG == 1, "there are two states of a chunk");
#if RAPT_BF16_LAG && !defined(advance_bf16)
#error "where tiles lag, weights are not in the place of scores"
#endif
static void advance_bf16(const rapt_problem *p, const lane_scratch *s, const visit *now, const visit *before);

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
static void score_bf16(const rapt_problem *p, const query_tile *tile, const lane_scratch *s, const block *b) {
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
                                .start = c == 0 ? START_ZERO : START_APART},
                     (ptrdiff_t)(STEP_PAIRS * COPIES * sizeof(float)), (ptrdiff_t)(STEP_PAIRS * TILE_ROWS * sizeof(float)),
                     STEP_PAIRS, s->even, b->end - b->first, tile->vectors);
}
#endif

/* The maximum of a tile moves on, by the scores of a block. nv is a constant wherever this is called; several chains of maxima
 * fill each other's waiting time. */
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
static void raise_maximum(const query_tile *tile, const float *scores, const block *b) {
    RAPT_BY_COUNT(tile->vectors, raise_maximum_of, &tile->now, scores, b->first, b->end);
}

/* Scores become weights where they are. nv is a constant wherever this is called. */
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

static void weigh_bf16_in_place(const rapt_problem *p, const query_tile *tile, const lane_scratch *s, const block *blocks,
                                int count) {
    RAPT_BY_COUNT(tile->vectors, weigh_bf16_vectors, p, &tile->now, s->s, blocks, count);
}

#ifndef advance_bf16
/* Keys of a step that are not visited would change nothing, so they are left out. */
static void add_bf16_values(const rapt_problem *p, const query_tile *tile, const lane_scratch *s, const block *blocks,
                            int count) {
    size_t ld = staged_bf16_values(p);
    bool started = false;
    for (int i = 0; i < count; i++)
        for (int from = blocks[i].first, to; from < blocks[i].end; from = to, started = true) {
            to = rapt_min(blocks[i].end, (from / RAPT_STEP + 1) * RAPT_STEP);
            int odd = from % 2, even = from + odd; /* the first even key, and one odd key before it or behind it */
            size_t key = (size_t)(blocks[i].number % RAPT_CHUNK + even);
            ptrdiff_t to_odd = odd ? -1 : 1;
            step_product((operands){.c = (char *)tile->now.o,
                                    .ldc = TILE_ROWS * sizeof(float),
                                    .a = (const char *)(s->values + key * ld),
                                    .rs = COPIES * sizeof(float),
                                    .ks = 2 * ld * sizeof(float),
                                    .b = (const char *)(s->s + key * TILE_ROWS),
                                    .ldb = 2 * TILE_ROWS * sizeof(float),
                                    .depth = (to - even + 1) / 2,
                                    .start = started ? START_APART : START_ZERO},
                         to_odd * (ptrdiff_t)(ld * sizeof(float)), to_odd * (ptrdiff_t)(TILE_ROWS * sizeof(float)),
                         (to - from) - (to - even + 1) / 2, s->even, p->d_v + 1, tile->vectors);
        }
}

static void advance_bf16(const rapt_problem *p, const lane_scratch *s, const visit *now, const visit *before) {
    if (now) weigh_bf16_in_place(p, now->tile, s, now->blocks, now->count);
    if (before) add_bf16_values(p, before->tile, s, before->blocks, before->count);
}
#endif

/* P V of a block without the keys that are masked, as add_attended. values: of its first key. */
static void add_attended_bf16(const rapt_problem *p, const query_tile *tile, const lane_scratch *s, const block *b,
                              const float *values, bool started) {
    const float *weights = s->s + b->number % RAPT_CHUNK * TILE_ROWS;
    size_t ld = staged_bf16_values(p);
    for (int i = 0; i < tile->vectors * RAPT_VL; i += RAPT_VL)
        for (int c = 0; c <= p->d_v; c++) {
            float *to = tile->now.o + (size_t)c * TILE_ROWS + i;
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

/* The blocks of a chunk again for one tile whose masked values are not all finite. Their keys were found and weighed. */
static void add_values_carefully(const rapt_task *t, query_tile *tile, const lane_scratch *s, const float *value_scales,
                                 const block *blocks, int count) {
    const rapt_problem *p = t->problem;
    for (int i = 0; i < count; i++) {
        const block *b = &blocks[i];
        if (p->bias.type) stage_bias(t, tile, s->bias, b->number, b->first, b->end);
        else memset(s->bias, 0, RAPT_BLOCK * TILE_ROWS * sizeof *s->bias);
        mask_lanes(tile, attended_lanes(t, tile, s, b, true), s->bias, b->first, b->end);
        stage_values_of_block(t, s, b, value_scales ? value_scales + b->number % RAPT_CHUNK : NULL, s->values);
        add_attended_bf16(p, tile, s, b, s->values, i > 0);
    }
}

/* Scales of tokens, by key of the chunk. */
typedef struct chunk_scales {
    float keys[RAPT_CHUNK], values[RAPT_CHUNK];
} chunk_scales;

static void stage_chunk_values(const rapt_task *t, const lane_scratch *s, const block *blocks, int count,
                               const chunk_scales *scales) {
    const bool scaled = scaled_by_key(&t->problem->v_scales);
    for (int i = 0; i < count; i++)
        stage_bf16_values(t, s, &blocks[i], scaled ? scales->values + blocks[i].number % RAPT_CHUNK : NULL);
}

/* Stages what some tile attends to. */
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

/* The scores of a tile for a chunk whose blocks are staged, and their maximum, from the empty state. */
static void score_tile_bf16(const rapt_task *t, const lane_scratch *s, query_tile *tile, const block *blocks, int count,
                            const chunk_scales *scales, bool careful, visit *visited) {
    const rapt_problem *p = t->problem;
    const bool keys = scaled_by_key(&p->k_scales);
    visited->tile = tile;
    visited->count = 0;
    start_chunk(tile);
    for (int i = 0; i < count; i++) {
        block b = tile_block(p, tile, blocks[i].number);
        if (b.first >= b.end) continue;
        float *scores = s->s + b.number % RAPT_CHUNK * TILE_ROWS;
        score_bf16(p, tile, s, &b);
        if (keys || p->modified)
            modify_lanes(t, tile, s, scores, keys ? scales->keys + b.number % RAPT_CHUNK : NULL, b.number, b.first, b.end);
        const uint32_t *attended = attended_lanes(t, tile, s, &b, careful);
        if (attended) mask_lanes(tile, attended, scores, b.first, b.end);
        if (t->scores) leave_tile_scores(t, tile, scores, &b);
        raise_maximum(tile, scores, &b);
        tile->masked |=
            b.first % RAPT_STEP || b.end % RAPT_STEP; /* for a matrix unit visits whole steps, which others may attend to */
        visited->blocks[visited->count++] = b;
    }
    tile->started = visited->count > 0;
}

/* One chunk for some tiles, which take it one after the other, so that the state of a chunk stays in the cache until its end. Two
 * of them are under way at a time at most, and have such a state. */
static void attend_chunk_bf16(const rapt_task *t, const lane_scratch *s, query_tile *tiles, int n_tiles, int64_t chunk) {
    const rapt_problem *p = t->problem;
    chunk_scales scales;
    block blocks[CHUNK_BLOCKS];
    visit visits[2], carefully;
    int count = blocks_of_tiles(t, tiles, n_tiles, chunk, blocks);
    stage_chunk_bf16(t, s, blocks, count, &scales);
    for (int i = 0; i < n_tiles + RAPT_BF16_LAG; i++) {
        const int last = i - RAPT_BF16_LAG;
        visit *now = &visits[i % 2], *before = &visits[last & 1];
        now->parity = i % 2;
        if (i < n_tiles) score_tile_bf16(t, s, &tiles[i], blocks, count, &scales, false, now);
        advance_bf16(p, s, i < n_tiles && tiles[i].started ? now : NULL, last >= 0 && tiles[last].started ? before : NULL);
        if (last < 0) continue;
        query_tile *tile = &tiles[last];
        if (has_hidden_nonfinite(p, tile)) {
            score_tile_bf16(t, s, tile, blocks, count, &scales, true, &carefully);
            weigh_bf16_in_place(p, tile, s, carefully.blocks, carefully.count);
            add_values_carefully(t, tile, s, scaled_by_key(&p->v_scales) ? scales.values : NULL, carefully.blocks,
                                 carefully.count);
            stage_chunk_values(t, s, blocks, count, &scales); /* which that has spoilt */
        }
        end_chunk(t, s, tile, last + 1 < n_tiles ? tile + 1 : NULL, chunk);
        /* Its state goes to the next tile but one, and at the end back to the first or the second. */
        tiles[last + 2 < n_tiles ? last + 2 : last % 2].now = tile->now;
    }
}
