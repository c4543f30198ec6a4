/* SPDX-License-Identifier: Apache-2.0 */
/* Few rows, as in decode: one lane is one key, and in P V one lane is one channel. Vectors of K are transposed in registers, so
 * that each score is still one accumulator over ascending channels; V is streamed where it lies, by the tile product with the
 * weights as its broadcast side. A chunk goes in three sweeps, all its scores, all its weights, all its values, so that K and V
 * each come from memory as one long stream. Included by attend.h. */

static const float key_positions[RAPT_BLOCK] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                                16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
                                                32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
                                                48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};

/* The blocks of a chunk, and the same in whole vectors. */
enum { CHUNK_BLOCKS = RAPT_CHUNK / RAPT_BLOCK, ROW_ALPHAS = (CHUNK_BLOCKS + RAPT_VL - 1) / RAPT_VL * RAPT_VL };

typedef struct row_state {
    float m, l;
    float *o; /* [padded d_v] */
} row_state;

typedef struct query_row {
    int64_t first, end; /* the keys it attends to */
    row_state now, all; /* of the chunk, and of all chunks before it */
} query_row;

typedef struct row_scratch {
    float *q;      /* [rows][padded d_k], times q_factor */
    float *s;      /* [rows][RAPT_CHUNK] scores, then weights */
    float *alpha;  /* [rows][ROW_ALPHAS] */
    float *values; /* [RAPT_BLOCK][padded d_v]: V's channels beyond a whole vector, or all where masked keys are left out */
} row_scratch;

/* The one description of the scratch: without memory it only counts. */
static size_t lay_out_rows(const rapt_problem *p, float *memory, row_scratch *scratch, query_row *rows, int n) {
    size_t used = 0, dk = padded((size_t)p->d_k), dv = padded((size_t)p->d_v);
    *scratch = (row_scratch){.q = take(memory, &used, (size_t)n * dk),
                             .s = take(memory, &used, (size_t)n * RAPT_CHUNK),
                             .alpha = take(memory, &used, (size_t)n * ROW_ALPHAS),
                             .values = take(memory, &used, RAPT_BLOCK * dv)};
    for (int r = 0; r < n; r++) rows[r].now.o = take(memory, &used, dv), rows[r].all.o = take(memory, &used, dv);
    return used;
}

/* The scores of ng vectors of keys for nr rows, in registers: s[r][key] = sum over channels of q[r][i] * keys[key][i]. What lies
 * ahead bytes behind each key is prefetched. ng and nr are constants wherever this is called. */
static RAPT_INLINE void score_tile(load_word *load, size_t bytes, const int ng, const int nr, const char *const *keys,
                                   int channels, size_t ahead, const float *q, size_t ldq, float *s) {
    vf acc[8];
    int whole = channels - channels % RAPT_VL;
    RAPT_UNROLL for (int a = 0; a < ng * nr; a++) acc[a] = v_set1(0.0f);
    for (int i = 0; i < whole; i += RAPT_VL) {
        RAPT_UNROLL for (int g = 0; g < ng; g++) {
            vf k[RAPT_VL];
#ifdef RAPT_SQUARE_ROWS
            if (bytes == sizeof(float) && nr >= RAPT_SQUARE_ROWS) load_square(k, keys + g * RAPT_VL, (size_t)i * bytes);
            else
#endif
            {
                RAPT_UNROLL for (int j = 0; j < RAPT_VL; j++) k[j] = load(keys[g * RAPT_VL + j] + (size_t)i * bytes);
                v_transpose(k);
            }
            RAPT_UNROLL for (int j = 0; j < RAPT_VL; j++) {
                /* Here, for a burst at the loads holds these up; twice, for the first may get lost where many are under way. */
                prefetch(keys[g * RAPT_VL + j], (size_t)i * bytes + ahead);
                if (bytes == sizeof(float)) prefetch(keys[g * RAPT_VL + j], (size_t)i * bytes + ahead + ahead / 2);
                RAPT_UNROLL for (int r = 0; r < nr; r++) acc[g * nr + r] =
                    v_fma(v_broadcast(q + r * ldq + i + j), k[j], acc[g * nr + r]);
            }
        }
    }
    if (whole < channels) {
        RAPT_UNROLL for (int g = 0; g < ng; g++) {
            float rest[RAPT_VL * RAPT_VL];
            stage_columns_as(load, bytes, rest, RAPT_VL, keys + g * RAPT_VL, RAPT_VL, whole, channels - whole);
            for (int i = whole; i < channels; i++)
                RAPT_UNROLL for (int r = 0; r < nr; r++) acc[g * nr + r] =
                    v_fma(v_broadcast(q + r * ldq + i), v_load(rest + (i - whole) * RAPT_VL), acc[g * nr + r]);
        }
    }
    RAPT_UNROLL for (int g = 0; g < ng; g++) RAPT_UNROLL for (int r = 0; r < nr; r++)
        v_store(s + (size_t)r * RAPT_CHUNK + g * RAPT_VL, acc[g * nr + r]);
}

/* n keys, a multiple of the vector length. Few rows take several vectors of keys at a time: one chain of additions for each would
 * not fill the time that an addition takes. */
static RAPT_INLINE void score_keys_as(load_word *load, size_t bytes, const int nr, const char *const *keys, int n, int channels,
                                      size_t ahead, const float *q, size_t ldq, float *s) {
    const int most = RAPT_PARTIAL_SUMS / RAPT_VL * (nr == 1 && bytes == sizeof(float) ? 2 : 1);
    const int ng = RAPT_KEY_CHAINS / nr > most ? most : RAPT_KEY_CHAINS / nr; /* 0: such nr is never called */
    int g = 0;
    for (; g + ng * RAPT_VL <= n; g += ng * RAPT_VL) score_tile(load, bytes, ng, nr, keys + g, channels, ahead, q, ldq, s + g);
    for (; ng > 1 && g < n; g += RAPT_VL) score_tile(load, bytes, 1, nr, keys + g, channels, ahead, q, ldq, s + g);
}

#define RAPT_TYPE(name, suffix, bytes)                                                                                           \
    static RAPT_NOINLINE void score_keys_##suffix(int rows, const char *const *keys, int n, int channels, size_t ahead,          \
                                                  const float *q, size_t ldq, float *s) {                                        \
        for (; RAPT_KEY_CHAINS >= 8 && rows >= 8; rows -= 8, q += 8 * ldq, s += 8 * RAPT_CHUNK)                                  \
            score_keys_as(v_load_##suffix, bytes, 8, keys, n, channels, ahead, q, ldq, s);                                       \
        for (; rows >= 4; rows -= 4, q += 4 * ldq, s += 4 * RAPT_CHUNK)                                                          \
            score_keys_as(v_load_##suffix, bytes, 4, keys, n, channels, ahead, q, ldq, s);                                       \
        if (rows == 3) score_keys_as(v_load_##suffix, bytes, 3, keys, n, channels, ahead, q, ldq, s);                            \
        if (rows == 2) score_keys_as(v_load_##suffix, bytes, 2, keys, n, channels, ahead, q, ldq, s);                            \
        if (rows == 1) score_keys_as(v_load_##suffix, bytes, 1, keys, n, channels, ahead, q, ldq, s);                            \
    }
RAPT_TYPES(RAPT_TYPE)
#undef RAPT_TYPE

/* S = Q K^T of one head for keys [from, to) of a block, whole groups of RAPT_PARTIAL_SUMS; keys outside of what is attended to
 * repeat its edge. */
static void score_rows(const rapt_task *t, const row_scratch *s, int kv_head, int rows, const block *b, int from, int to) {
    const rapt_problem *p = t->problem;
    const char *keys[RAPT_BLOCK];
    find_rows(keys, t->k + (size_t)kv_head * (size_t)p->k.head_stride, &p->k, b, from, to);
    size_t dk = padded((size_t)p->d_k), ahead = RAPT_KEYS_AHEAD * (size_t)p->k.token_stride;
    const float *q = s->q + (size_t)(kv_head * rows) * dk;
    float *scores = s->s + (size_t)(kv_head * rows) * RAPT_CHUNK + b->position % RAPT_CHUNK + from;
    switch (p->k.type) {
#define RAPT_TYPE(name, suffix, bytes)                                                                                           \
    case name:                                                                                                                   \
        score_keys_##suffix(rows, keys + from, to - from, p->d_k, ahead, q, dk, scores);                                         \
        break;
        RAPT_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
    }
}

/* One row's scores of a chunk become weights; its maximum and sum move on, and before the values of block i its o is to be
 * multiplied by alpha[i]. Scores that are not attended to become -inf, so weight 0. Each step is taken for all blocks before the
 * next: block after block, the time would be that of one long chain of dependent operations. */
static void weigh_row(const rapt_problem *p, query_row *row, float *scores, const block *blocks, int count, float *alpha) {
    float before[ROW_ALPHAS] = {0}, after[ROW_ALPHAS] = {0}, sum[CHUNK_BLOCKS] = {0};
    float partial[CHUNK_BLOCKS][RAPT_PARTIAL_SUMS];
    float m = row->now.m;
    for (int i = 0; i < count; i++) {
        const block *b = &blocks[i];
        float *at = scores + b->position % RAPT_CHUNK;
        vf max = v_set1(-INFINITY);
        if (row->first > b->position || row->end < b->position + RAPT_BLOCK) {
            vf first = v_set1((float)smaller(larger(row->first - b->position, 0), RAPT_BLOCK));
            vf end = v_set1((float)smaller(larger(row->end - b->position, 0), RAPT_BLOCK));
            for (int n = 0; n < RAPT_BLOCK; n += RAPT_VL) {
                vf key = v_load(key_positions + n), score = v_load(at + n);
                score = v_select(v_lt(key, end), v_select(v_lt(key, first), v_set1(-INFINITY), score), v_set1(-INFINITY));
                v_store(at + n, score);
            }
        }
        for (int n = 0; n < RAPT_BLOCK; n += RAPT_VL) max = v_max(max, v_load(at + n));
        float block_max = h_max(max);
        before[i] = m;
        m = block_max > m ? block_max : m; /* a NaN may get lost: its weight is NaN */
        after[i] = m;
    }
    for (int i = 0; i < count; i += RAPT_VL)
        v_store(alpha + i, v_exp2_of(p, v_sub(v_load(before + i), finite_max(v_load(after + i)))));
    for (int i = 0; i < count; i++) {
        float *at = scores + blocks[i].position % RAPT_CHUNK;
        vf max = finite_max(v_set1(after[i]));
        for (int j = 0; j < RAPT_PARTIAL_SUMS; j += RAPT_VL) {
            vf sums = v_set1(0.0f);
            for (int n = j; n < RAPT_BLOCK; n += RAPT_PARTIAL_SUMS) {
                vf weight = v_exp2_of(p, v_sub(v_load(at + n), max));
                v_store(at + n, weight);
                sums = v_add(sums, weight);
            }
            v_store(partial[i] + j, sums);
        }
    }
    for (int j = 0; j < RAPT_PARTIAL_SUMS; j++)
        for (int i = 0; i < count; i++) sum[i] += partial[i][j];
    for (int i = 0; i < count; i++) row->now.l = s_fma(row->now.l, alpha[i], sum[i]);
    row->now.m = m;
}

static void rescale_row(const rapt_problem *p, row_state *state, float alpha) {
    for (int c = 0; c < p->d_v && alpha != 1.0f; c += RAPT_VL) v_store(state->o + c, v_mul(v_load(state->o + c), v_set1(alpha)));
}

/* O += P V of one head for keys [from, to) of the block at position: whole vectors of channels from where V lies, the rest from a
 * staged copy. */
static void add_values(const rapt_task *t, const row_scratch *s, int kv_head, query_row *rows, int n, const block *b, int from,
                       int to) {
    const rapt_problem *p = t->problem;
    size_t dv = padded((size_t)p->d_v), stride = (size_t)p->v.token_stride;
    int rest = p->d_v % RAPT_VL, whole = p->d_v / RAPT_VL;
    const char *v = t->v + (size_t)kv_head * (size_t)p->v.head_stride;
    operands o = {.c = (char *)rows[0].now.o,
                  .ldc = dv * 2 * sizeof(float),
                  .a = (const char *)(s->s + (size_t)(kv_head * n) * RAPT_CHUNK + b->position % RAPT_CHUNK + from),
                  .rs = RAPT_CHUNK * sizeof(float),
                  .ks = sizeof(float),
                  .b = v + (size_t)(b->position + from) * stride,
                  .ldb = stride,
                  .depth = to - from,
                  .start = START_KEEP,
                  /* whole rows of one stream need no help */
                  .ahead = t->kv_heads == 1 && n == 1 && whole <= RAPT_PANEL ? 0 : RAPT_VALUES_AHEAD * stride};
    if (rest) {
        operands last = o;
        const char *values[RAPT_BLOCK];
        find_rows(values, v, &p->v, b, from, to);
        stage_rows(p->v.type, s->values, RAPT_VL, values + from, o.depth, whole * RAPT_VL, rest);
        last.c += (size_t)whole * sizeof(vf);
        last.b = (const char *)s->values;
        last.ldb = sizeof(vf);
        last.ahead = 0;
        stream_product(RAPT_F32, last, n, 1);
    }
    stream_product(p->v.type, o, n, whole);
}

/* The same for one row without the keys that are masked, as add_attended in queries_in_lanes.h. */
static void add_attended_values(const rapt_task *t, const row_scratch *s, int kv_head, query_row *row, const float *weights,
                                const block *all) {
    const rapt_problem *p = t->problem;
    size_t dv = padded((size_t)p->d_v);
    const char *values[RAPT_BLOCK];
    block b = block_of(all->position, row->first, row->end);
    if (b.first >= b.end) return;
    weights += b.position % RAPT_CHUNK;
    find_rows(values, t->v + (size_t)kv_head * (size_t)p->v.head_stride, &p->v, &b, b.first, b.end);
    stage_rows(p->v.type, s->values, dv, values + b.first, b.end - b.first, 0, p->d_v);
    for (int n = b.first; n < b.end; n++)
        for (int c = 0; c < p->d_v; c += RAPT_VL)
            v_store(row->now.o + c,
                    v_fma(v_set1(weights[n]), v_load(s->values + (size_t)(n - b.first) * dv + c), v_load(row->now.o + c)));
}

/* One chunk for the n rows of each head. */
static void attend_rows_chunk(const rapt_task *t, const row_scratch *s, query_row *rows, int n, int64_t chunk, bool careful) {
    const rapt_problem *p = t->problem;
    int64_t first_min = INT64_MAX, end_max = 0;
    for (int r = 0; r < t->kv_heads * n; r++) {
        rows[r].now.m = -INFINITY;
        rows[r].now.l = 0.0f;
        memset(rows[r].now.o, 0, padded((size_t)p->d_v) * sizeof(float));
        if (rows[r].first < rows[r].end && rows[r].first < first_min) first_min = rows[r].first;
        if (rows[r].end > end_max) end_max = rows[r].end;
    }
    block blocks[CHUNK_BLOCKS];
    int count = 0;
    for (int64_t position = chunk * RAPT_CHUNK; position < (chunk + 1) * RAPT_CHUNK; position += RAPT_BLOCK) {
        block b = block_of(position, first_min, end_max);
        if (b.first < b.end) blocks[count++] = b;
    }
    /* Memory shall see whole tokens of K and V, one after the other: where one head has not all of a token, the heads take turns
     * after a few; and where V's rows take several passes, so do these. */
    bool joined = t->kv_heads > 1;
    int keys = joined ? RAPT_PARTIAL_SUMS : RAPT_BLOCK;
    int values = joined || p->d_v / RAPT_VL > RAPT_PANEL || n > RAPT_PANEL_ROWS ? RAPT_VALUES_DEPTH : RAPT_BLOCK;
    for (int i = 0; i < count; i++) {
        const block *b = &blocks[i];
        int end = (b->end + RAPT_PARTIAL_SUMS - 1) & -RAPT_PARTIAL_SUMS;
        for (int from = b->first & -RAPT_PARTIAL_SUMS; from < end; from += keys)
            for (int h = 0; h < t->kv_heads; h++) score_rows(t, s, h, n, b, from, smaller(from + keys, end));
    }
    for (int r = 0; r < t->kv_heads * n; r++)
        weigh_row(p, &rows[r], s->s + (size_t)r * RAPT_CHUNK, blocks, count, s->alpha + r * ROW_ALPHAS);
    for (int i = 0; i < count; i++) {
        const block *b = &blocks[i];
        for (int r = 0; r < t->kv_heads * n; r++) {
            rescale_row(p, &rows[r].now, s->alpha[r * ROW_ALPHAS + i]);
            if (careful) add_attended_values(t, s, r / n, &rows[r], s->s + (size_t)r * RAPT_CHUNK, b);
        }
        for (int from = b->first; from < b->end && !careful; from += values)
            for (int h = 0; h < t->kv_heads; h++) add_values(t, s, h, rows + h * n, n, b, from, smaller(from + values, b->end));
    }
}

static void fold_row(const rapt_problem *p, row_state *all, const float *next_m, const float *next_l, const float *next_o) {
    float m[RAPT_VL], l[RAPT_VL], other_m[RAPT_VL], other_l[RAPT_VL];
    vf a, b;
    v_store(m, v_set1(all->m));
    v_store(l, v_set1(all->l));
    v_store(other_m, v_set1(*next_m));
    v_store(other_l, v_set1(*next_l));
    fold_weights(p, m, l, other_m, other_l, &a, &b);
    all->m = m[0];
    all->l = l[0];
    for (int c = 0; c < p->d_v; c += RAPT_VL) fold_values(all->o + c, next_o + c, a, b);
}

static void finish_row(const rapt_problem *p, const row_state *state, char *o, char *lse) {
    vf factor = reciprocal(v_set1(state->l));
    for (int c = 0; c < p->d_v; c += RAPT_VL) v_store(state->o + c, finished(v_load(state->o + c), factor));
    write_row(p, o, lse, state->m, state->l, state->o);
}

static void attend_rows(const rapt_task *t) {
    const rapt_problem *p = t->problem;
    row_scratch s;
    query_row rows[RAPT_JOINED_ROWS];
    int n = (int)t->rows, all = n * t->kv_heads;
    size_t dk = padded((size_t)p->d_k), dv = padded((size_t)p->d_v);
    lay_out_rows(p, t->scratch, &s, rows, all);
    bool masked = false; /* are keys visited that are masked for some row? */
    for (int h = 0; h < t->kv_heads; h++) {
        const char *queries[RAPT_FEW_ROWS];
        for (int r = 0; r < n; r++) {
            query_row *row = &rows[h * n + r];
            row_cursor at = row_at(t, h, r);
            rapt_row_range(p, at.token, t->kv_length, &row->first, &row->end);
            queries[r] = t->q + row_offset(&p->q, at);
            row->all.m = -INFINITY;
            row->all.l = 0.0f;
            memset(row->all.o, 0, dv * sizeof(float));
            masked |= row->first != rows[0].first || row->end != rows[0].end;
        }
        stage_rows(p->q.type, s.q + (size_t)(h * n) * dk, dk, queries, n, 0, p->d_k);
    }
    for (size_t i = 0; i < (size_t)all * dk; i += RAPT_VL) v_store(s.q + i, v_mul(v_load(s.q + i), v_set1(p->q_factor)));

    for (int64_t chunk = t->chunk0; chunk < t->chunk0 + t->chunks; chunk++) {
        attend_rows_chunk(t, &s, rows, n, chunk, false);
        if (masked && any_nonfinite(rows[0].now.o, all, 2 * dv, p->d_v)) attend_rows_chunk(t, &s, rows, n, chunk, true);
        for (int r = 0; r < all; r++) {
            if (t->states) leave_state(t, r / n, r % n, chunk, rows[r].now.m, rows[r].now.l, rows[r].now.o);
            else fold_row(p, &rows[r].all, &rows[r].now.m, &rows[r].now.l, rows[r].now.o);
        }
    }
    for (int r = 0; r < all && !t->states; r++) {
        row_cursor at = row_at(t, r / n, r % n);
        finish_row(p, &rows[r].all, t->o + row_offset(&p->o, at), t->lse ? t->lse + row_offset(&p->lse, at) : NULL);
    }
}
