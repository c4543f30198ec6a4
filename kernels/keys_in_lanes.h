/* SPDX-License-Identifier: Apache-2.0 */
/* Few rows, as in decode: one lane is one key, and in P V one lane is one channel. K is staged transposed, a few channels of a
 * block at a time, so that each score is still one accumulator over ascending channels; V is streamed where it lies. The same
 * tile product, with the queries and the weights as its broadcast side. Included by attend.h. */

enum { STAGE_CHANNELS = 16 }; /* of K, transposed at a time: 4 KiB of scratch that stay in L1 */

static const float key_positions[RAPT_BLOCK] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                                16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
                                                32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
                                                48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};

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
    float *s;      /* [rows][RAPT_BLOCK] scores, then weights */
    float *keys;   /* [STAGE_CHANNELS][RAPT_BLOCK] */
    float *values; /* [RAPT_BLOCK][padded d_v], or the last vector of each where only that is staged */
} row_scratch;

/* The one description of the scratch: without memory it only counts. */
static size_t lay_out_rows(const rapt_problem *p, float *memory, row_scratch *scratch, query_row *rows, int n) {
    size_t used = 0, dk = padded((size_t)p->d_k), dv = padded((size_t)p->d_v);
    *scratch = (row_scratch){.q = take(memory, &used, (size_t)n * dk),
                             .s = take(memory, &used, (size_t)n * RAPT_BLOCK),
                             .keys = take(memory, &used, STAGE_CHANNELS * RAPT_BLOCK),
                             .values = take(memory, &used, RAPT_BLOCK * dv)};
    for (int r = 0; r < n; r++) rows[r].now.o = take(memory, &used, dv), rows[r].all.o = take(memory, &used, dv);
    return used;
}

/* S = Q K^T for the keys of the block, in whole groups of RAPT_PARTIAL_SUMS; a group's keys outside the block repeat its edge. */
static void score_rows(const rapt_task *t, const row_scratch *s, int rows, block *b) {
    const rapt_problem *p = t->problem;
    size_t dk = padded((size_t)p->d_k);
    int from = b->first & -RAPT_PARTIAL_SUMS, to = (b->end + RAPT_PARTIAL_SUMS - 1) & -RAPT_PARTIAL_SUMS;
    for (int n = from; n < b->first; n++) b->keys[n] = b->keys[b->first];
    for (int n = b->end; n < to; n++) b->keys[n] = b->keys[b->end - 1];
    for (int i = 0; i < p->d_k; i += STAGE_CHANNELS) {
        int channels = smaller(STAGE_CHANNELS, p->d_k - i);
        stage_columns(p->k.type, s->keys + from, RAPT_BLOCK, b->keys + from, to - from, i, channels);
        tile_product((operands){.c = (char *)(s->s + from),
                                .ldc = RAPT_BLOCK * sizeof(float),
                                .a = (const char *)(s->q + i),
                                .rs = dk * sizeof(float),
                                .ks = sizeof(float),
                                .b = (const char *)(s->keys + from),
                                .ldb = RAPT_BLOCK * sizeof(float),
                                .depth = channels,
                                .start = i ? START_KEEP : START_ZERO},
                     rows, (to - from) / RAPT_VL);
    }
}

/* One row's scores become weights, and its state moves on. Lanes that are not attended to become -inf, so weight 0. */
static void weigh_row(const rapt_problem *p, query_row *row, float *scores, const block *b, uint64_t *attended) {
    vf first = v_set1((float)smaller(larger(row->first - b->position, 0), RAPT_BLOCK));
    vf end = v_set1((float)smaller(larger(row->end - b->position, 0), RAPT_BLOCK));
    vf max = v_set1(-INFINITY);
    for (int n = 0; n < RAPT_BLOCK; n += RAPT_VL) {
        vf key = v_load(key_positions + n), score = v_load(scores + n);
        score = v_select(v_lt(key, end), v_select(v_lt(key, first), v_set1(-INFINITY), score), v_set1(-INFINITY));
        v_store(scores + n, score);
        max = v_max(max, score);
    }
    float lane[RAPT_VL], m = row->now.m;
    v_store(lane, max);
    for (int j = 0; j < RAPT_VL; j++) m = lane[j] > m ? lane[j] : m; /* a NaN may get lost here: its weight is NaN all the same */
    if (attended) {
        *attended = 0;
        for (int n = 0; n < RAPT_BLOCK; n++) *attended |= (uint64_t)!(scores[n] == -INFINITY) << n;
    }
    vf at = finite_max(v_set1(m)), alpha = v_exp2_of(p, v_sub(v_set1(row->now.m), at));
    float partial[RAPT_PARTIAL_SUMS], sum = 0.0f;
    for (int j = 0; j < RAPT_PARTIAL_SUMS; j += RAPT_VL) {
        vf sums = v_set1(0.0f);
        for (int n = j; n < RAPT_BLOCK; n += RAPT_PARTIAL_SUMS) {
            vf weight = v_exp2_of(p, v_sub(v_load(scores + n), at));
            v_store(scores + n, weight);
            sums = v_add(sums, weight);
        }
        v_store(partial + j, sums);
    }
    for (int j = 0; j < RAPT_PARTIAL_SUMS; j++) sum += partial[j];
    v_store(lane, alpha);
    row->now.m = m;
    row->now.l = s_fma(row->now.l, lane[0], sum);
    for (int c = 0; c < p->d_v && lane[0] != 1.0f; c += RAPT_VL) v_store(row->now.o + c, v_mul(v_load(row->now.o + c), alpha));
}

/* O += P V: whole vectors of channels from where V lies if it is f32, the rest from a staged copy. */
static void add_values(const rapt_task *t, const row_scratch *s, query_row *rows, int n, const block *b) {
    const rapt_problem *p = t->problem;
    size_t dv = padded((size_t)p->d_v);
    int in_place = p->v.type == RAPT_F32 ? p->d_v - p->d_v % RAPT_VL : 0;
    int vectors = (p->d_v + RAPT_VL - 1) / RAPT_VL, whole = in_place / RAPT_VL;
    operands o = {.c = (char *)rows[0].now.o,
                  .ldc = dv * 2 * sizeof(float),
                  .a = (const char *)(s->s + b->first),
                  .rs = RAPT_BLOCK * sizeof(float),
                  .ks = sizeof(float),
                  .b = b->values[b->first],
                  .ldb = (size_t)p->v.token_stride,
                  .depth = b->end - b->first,
                  .start = START_KEEP};
    tile_product(o, n, whole);
    if (whole < vectors) {
        stage_rows(p->v.type, s->values, dv, b->values + b->first, b->end - b->first, in_place, p->d_v - in_place);
        o.c += (size_t)in_place * sizeof(float);
        o.b = (const char *)s->values;
        o.ldb = dv * sizeof(float);
        tile_product(o, n, vectors - whole);
    }
}

/* The same without the keys that are masked, as add_attended in queries_in_lanes.h. */
static void add_attended_values(const rapt_task *t, const row_scratch *s, query_row *row, const float *weights, const block *b,
                                uint64_t attended) {
    const rapt_problem *p = t->problem;
    size_t dv = padded((size_t)p->d_v);
    stage_rows(p->v.type, s->values, dv, b->values + b->first, b->end - b->first, 0, p->d_v);
    for (int n = b->first; n < b->end; n++)
        for (int c = 0; c < p->d_v && attended >> n & 1; c++)
            row->now.o[c] = s_fma(weights[n], s->values[(size_t)(n - b->first) * dv + c], row->now.o[c]);
}

static void attend_rows_chunk(const rapt_task *t, const row_scratch *s, query_row *rows, int n, int64_t chunk, bool careful) {
    const rapt_problem *p = t->problem;
    int64_t first_min = INT64_MAX, end_max = 0;
    for (int r = 0; r < n; r++) {
        rows[r].now.m = -INFINITY;
        rows[r].now.l = 0.0f;
        memset(rows[r].now.o, 0, padded((size_t)p->d_v) * sizeof(float));
        if (rows[r].first < rows[r].end && rows[r].first < first_min) first_min = rows[r].first;
        if (rows[r].end > end_max) end_max = rows[r].end;
    }
    for (int64_t position = chunk * RAPT_CHUNK; position < (chunk + 1) * RAPT_CHUNK; position += RAPT_BLOCK) {
        block b = {.position = position,
                   .first = larger(0, smaller(RAPT_BLOCK, first_min - position)),
                   .end = smaller(RAPT_BLOCK, larger(0, end_max - position))};
        if (b.first >= b.end) continue;
        find_rows(t, &b);
        score_rows(t, s, n, &b);
        for (int r = 0; r < n; r++) {
            uint64_t attended;
            weigh_row(p, &rows[r], s->s + r * RAPT_BLOCK, &b, careful ? &attended : NULL);
            if (careful) add_attended_values(t, s, &rows[r], s->s + r * RAPT_BLOCK, &b, attended);
        }
        if (!careful) add_values(t, s, rows, n, &b);
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
    query_row rows[RAPT_FEW_ROWS];
    const char *queries[RAPT_FEW_ROWS];
    int n = (int)t->rows;
    size_t dk = padded((size_t)p->d_k), dv = padded((size_t)p->d_v);
    lay_out_rows(p, t->scratch, &s, rows, n);
    for (int r = 0; r < n; r++) {
        row_cursor at = row_at(t, r);
        rapt_row_range(p, at.token, t->kv_length, &rows[r].first, &rows[r].end);
        queries[r] = t->q + row_offset(&p->q, at);
        rows[r].all.m = -INFINITY;
        rows[r].all.l = 0.0f;
        memset(rows[r].all.o, 0, dv * sizeof(float));
    }
    stage_rows(p->q.type, s.q, dk, queries, n, 0, p->d_k);
    for (size_t i = 0; i < (size_t)n * dk; i += RAPT_VL) v_store(s.q + i, v_mul(v_load(s.q + i), v_set1(p->q_factor)));

    for (int64_t chunk = t->chunk0; chunk < t->chunk0 + t->chunks; chunk++) {
        attend_rows_chunk(t, &s, rows, n, chunk, false);
        bool nan = false;
        for (int r = 0; r < n; r++) nan |= any_nan(rows[r].now.o, (size_t)p->d_v);
        if (nan) attend_rows_chunk(t, &s, rows, n, chunk, true);
        for (int r = 0; r < n; r++) {
            if (t->states) leave_state(t, r, chunk, rows[r].now.m, rows[r].now.l, rows[r].now.o);
            else fold_row(p, &rows[r].all, &rows[r].now.m, &rows[r].now.l, rows[r].now.o);
        }
    }
    for (int r = 0; r < n && !t->states; r++) {
        row_cursor at = row_at(t, r);
        finish_row(p, &rows[r].all, t->o + row_offset(&p->o, at), t->lse ? t->lse + row_offset(&p->lse, at) : NULL);
    }
}
