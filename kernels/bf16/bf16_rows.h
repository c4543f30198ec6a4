/* SPDX-License-Identifier: Apache-2.0 */
/* bf16 arithmetic with keys in lanes, a chunk at a time as in bf16_queries.h. Rows of K and V are multiplied where they lie if
 * they are bf16, and V has no scales of tokens; else from a copy as bf16. Where they lie, they may have
 * subthreshold numbers, which must be flushed. These are rare, and a search before the product would wait for memory a second
 * time: each register tile looks for them while it multiplies, and if it has met one, it is computed again with flushing.
 * Included by keys_in_lanes.h. */

/* Converts n channels, whole steps, of a query row or of a token to factors, in place, as score_bf16_tile reads them. Replaceable
 * together with that. */
static void pack_bf16_row(float *q, int n);
#ifndef pack_bf16_row
static void pack_bf16_row(float *q, int n) {
    make_factors(q, n);
    if (!RAPT_BF16_FMA) return;
    for (float *step = q; step < q + n;
         step += RAPT_STEP) /* in the first half of each step's floats: steps stay where they are */
        for (int i = 0; i < RAPT_STEP; i += RAPT_VL) i_store_u16((uint16_t *)step + i, i_shr(v_as_int(v_load(step + i)), 16));
}
#endif

/* Converts the rows of Q to factors, as score_bf16_rows reads them. Replaceable. */
static void pack_bf16_rows(const rapt_problem *p, const row_scratch *s, int heads, int rows);
#ifndef pack_bf16_rows
static void pack_bf16_rows(const rapt_problem *p, const row_scratch *s, int heads, int rows) {
    pack_bf16_row(s->q, heads * rows * (int)row_floats(p));
}
#endif

/* Scores RAPT_VL keys against nr query rows. ACCUMULATE_ZERO overwrites s, ACCUMULATE_ADD adds to it. Each 32-bit lane of a
 * transposed vector of K holds two adjacent channels of one key. The last step may be partial; Q has 0 for its other channels.
 *
 * flush = false is the fast path: it assumes that K has no subthreshold number. If it meets one it returns false and leaves s
 * untouched, and the caller repeats the call with flush = true, which flushes every element and always succeeds. Replaceable. */
static RAPT_INLINE bool score_bf16_tile(const bool flush, const int nr, const char *const *keys, size_t offset, int channels,
                                        const float *q, size_t ldq, accumulate_mode mode, float *s, size_t lds);
#ifndef score_bf16_tile
static RAPT_INLINE bool score_bf16_tile(const bool flush, const int nr, const char *const *keys, size_t offset, int channels,
                                        const float *q, size_t ldq, accumulate_mode mode, float *s, size_t lds) {
    vi folded = i_set1(0);
    vf sum[4];
    UNROLLED(r, nr) sum[r] = mode == ACCUMULATE_ADD ? v_load(s + (size_t)r * lds) : v_set1(0.0f);
    for (int c = 0; c < channels; c += RAPT_STEP) {
        vf even[4], odd[4];
        UNROLLED(r, nr) even[r] = odd[r] = v_set1(0.0f);
        for (int i = c; i < c + RAPT_STEP; i += 2 * RAPT_VL) {
            const size_t at = offset + (size_t)i * sizeof(uint16_t);
            const int left = (channels - i) * (int)sizeof(uint16_t); /* bytes of the row */
            key_columns k;
            if (left >= (int)sizeof(vf)) read_line(&k, keys, at, nr);
            else read_part_of_line(&k, keys, at, (size_t)rapt_max(0, left));
            UNROLLED(j, RAPT_VL) {
                const vi pairs = flush ? flush_subthreshold_pairs(k.dwords[j]) : k.dwords[j];
                if (!flush) folded = i_fold_smallest_bf16(folded, pairs);
                prefetch(keys[j + RAPT_KEYS_AHEAD], at);
#if RAPT_BF16_FMA
                UNROLLED(r, nr) {
                    const vf a = v_load((const uint16_t *)(q + r * ldq + c) + i - c);
                    even[r] = v_fma_lower(a, 2 * j, pairs, even[r]);
                    odd[r] = v_fma_upper(a, 2 * j + 1, pairs, odd[r]);
                }
#else
                const vf first = first_of_pairs(pairs), second = second_of_pairs(pairs);
                UNROLLED(r, nr) {
                    even[r] = v_fma(v_broadcast(q + r * ldq + i + 2 * j), first, even[r]);
                    odd[r] = v_fma(v_broadcast(q + r * ldq + i + 2 * j + 1), second, odd[r]);
                }
#endif
            }
        }
        UNROLLED(r, nr) sum[r] = v_add(sum[r], v_add(even[r], odd[r]));
    }
    if (!flush && has_subthreshold(folded)) return false;
    UNROLLED(r, nr) v_store(s + (size_t)r * lds, sum[r]);
    return true;
}
#endif

/* Scores RAPT_VL keys with flushing for any number of rows, one row at a time: this is rare, so one instance is enough. */
static RAPT_NOINLINE void score_bf16_flushed(int rows, const char *const *keys, size_t offset, int channels, const float *q,
                                             size_t ldq, accumulate_mode mode, float *s, size_t lds) {
    for (int r = 0; r < rows; r++)
        score_bf16_tile(true, 1, keys, offset, channels, q + (size_t)r * ldq, ldq, mode, s + (size_t)r * lds, lds);
}

/* Scores n keys, a multiple of RAPT_VL, for nr rows. Tiles that meet a subthreshold number are computed again with flushing. */
static RAPT_INLINE void score_bf16_tiles(const int nr, const char *const *keys, size_t offset, int n, int channels,
                                         const float *q, size_t ldq, accumulate_mode mode, float *s, size_t lds) {
    for (int g = 0; g < n; g += RAPT_VL)
        if (!score_bf16_tile(false, nr, keys + g, offset, channels, q, ldq, mode, s + g, lds))
            score_bf16_flushed(nr, keys + g, offset, channels, q, ldq, mode, s + g, lds);
}

/* Scores n keys, a multiple of RAPT_VL, for any number of rows, from memory that has them as bf16. In linear
 * layers the keys are rows of weights, and the rows are tokens. */
static RAPT_NOINLINE void multiply_bf16_keys(int rows, const char *const *keys, size_t offset, int n, int channels,
                                             const float *q, size_t ldq, accumulate_mode mode, float *s, size_t lds) {
    for (; rows >= 4; rows -= 4, q += 4 * ldq, s += 4 * lds) score_bf16_tiles(4, keys, offset, n, channels, q, ldq, mode, s, lds);
    if (rows == 3) score_bf16_tiles(3, keys, offset, n, channels, q, ldq, mode, s, lds);
    if (rows == 2) score_bf16_tiles(2, keys, offset, n, channels, q, ldq, mode, s, lds);
    if (rows == 1) score_bf16_tiles(1, keys, offset, n, channels, q, ldq, mode, s, lds);
}

/* Scores n keys of a task for the rows of one head: S = Q K^T. n is a multiple of RAPT_PARTIAL_SUMS, at most a block; the head's
 * channels begin offset bytes after each address. Replaceable. */
static void score_bf16_rows(const rapt_task *t, const row_scratch *s, int kv_head, int rows, const char *const *keys,
                            size_t offset, int n, float *scores);
#ifndef score_bf16_rows

static void score_bf16_rows(const rapt_task *t, const row_scratch *s, int kv_head, int rows, const char *const *keys,
                            size_t offset, int n, float *scores) {
    const rapt_problem *p = t->problem;
    const size_t ldq = row_floats(p);
    const float *q = s->q + (size_t)(kv_head * rows) * ldq;
    if (p->k.type == RAPT_BF16) {
        multiply_bf16_keys(rows, keys, offset, n, p->d_k, q, ldq, ACCUMULATE_ZERO, scores, RAPT_CHUNK);
        return;
    }
    const char *copies[RAPT_BLOCK + RAPT_KEYS_AHEAD];
    const size_t ld = whole_steps(p->d_k);
    uint16_t *copy = (uint16_t *)s->keys;
    for (int i = 0; i < n + RAPT_KEYS_AHEAD; i++) copies[i] = (const char *)(copy + (size_t)rapt_min(i, n - 1) * ld);
    for (int i = 0; i < n; i++, copy += ld) {
        const char *row = keys[i] + offset;
        prefetch_row(keys[i + RAPT_KEYS_AHEAD], offset, p->k_row);
        copy_as_bf16(p->k.type, copy, ld, &row, 1, p->d_k, NULL, s->row);
    }
    multiply_bf16_keys(rows, copies, 0, n, (int)ld, q, ldq, ACCUMULATE_ZERO, scores, RAPT_CHUNK);
}
#endif

/* Returns the sum of a row's weights of a chunk, in the order in which a channel of ones would be summed. Weights of blocks that
 * the row does not attend to are 0. */
static float sum_bf16_weights(const float *weights) {
    enum { STEPS = RAPT_CHUNK / RAPT_STEP };
    float of_step[STEPS], sum = 0.0f;
    for (int step = 0; step < STEPS; step += RAPT_VL) { /* a lane is a step */
        vf sums[2] = {v_set1(0.0f), v_set1(0.0f)};
        for (int n = 0; n < RAPT_STEP; n += RAPT_VL) {
            vf square[RAPT_VL];
            UNROLLED(j, RAPT_VL) square[j] = v_load(weights + (step + j) * RAPT_STEP + n);
            v_transpose(square);
            UNROLLED(j, RAPT_VL) sums[(n + j) % 2] = v_add(sums[(n + j) % 2], square[j]);
        }
        v_store(of_step + step, v_add(sums[0], sums[1]));
    }
    for (int step = 0; step < STEPS; step++) sum += of_step[step];
    return sum;
}

/* Replaces a row's scores of a chunk by weights, and sets the maximum and the sum of its state. blocks: those whose keys are
 * scored; keys of other blocks get weight 0. */
static void weigh_bf16_row(const rapt_task *t, query_row *row, float *scores, const float *key_scales, const block *blocks,
                           int count) {
    const rapt_problem *p = t->problem;
    vf max = v_set1(-INFINITY), exponent = v_set1(p->exponent), least = v_set1(least_bf16_difference(p));
    int done = 0; /* keys that have their weights */
    for (int i = 0; i < count; i++) {
        float *at = scores + blocks[i].number % RAPT_CHUNK;
        make_logits(t, row, at, key_scales ? key_scales + blocks[i].number % RAPT_CHUNK : NULL, &blocks[i]);
        for (int n = 0; n < RAPT_BLOCK; n += RAPT_VL) max = v_max(max, v_load(at + n));
    }
    row->chunk_state.m = h_max(max);
    vf from = finite_max(v_set1(row->chunk_state.m));
    for (int i = 0; i < count; i++) {
        int first = (int)(blocks[i].number % RAPT_CHUNK);
        memset(scores + done, 0, (size_t)(first - done) * sizeof *scores);
        for (int n = first; n < first + RAPT_BLOCK; n += RAPT_VL)
            v_store(scores + n, v_exp2_bf16(v_sub(v_load(scores + n), from), exponent, least));
        done = first + RAPT_BLOCK;
    }
    memset(scores + done, 0, (size_t)(RAPT_CHUNK - done) * sizeof *scores);
    row->chunk_state.l = sum_bf16_weights(scores);
}

/* The addresses of the rows of V of a chunk, and of those after it that are prefetched, by the parity of their keys. */
typedef struct value_parities {
    const char *rows[2][CHUNK_ROWS / 2];
} value_parities;

/* Adds the sums of a step to O: o = o + (even + odd) for n rows, in whole vectors of channels. sums: n rows of sums over even
 * keys, then n rows over odd ones, ld floats apart. */
static void add_parity_sums(query_row *rows, int n, const float *sums, size_t ld, int channels) {
    for (int r = 0; r < n; r++)
        for (int c = 0; c < channels; c += RAPT_VL) {
            vf even = v_load(sums + (size_t)r * ld + c), odd = v_load(sums + (size_t)(n + r) * ld + c);
            v_store(rows[r].chunk_state.o + c, v_add(v_load(rows[r].chunk_state.o + c), v_add(even, odd)));
        }
}

/* Begins to add the values of a chunk to the n rows of each head, whose O is 0. Replaceable. */
static void start_bf16_rows(const rapt_problem *p, const row_scratch *s, int heads, int n);
#ifndef start_bf16_rows
static void start_bf16_rows(const rapt_problem *p, const row_scratch *s, int heads, int n) {
    (void)p, (void)s, (void)heads, (void)n;
}
#endif

/* Computes O += P V of one head for keys [from, to) of a block, which belong to one step. n: rows of the head. It may leave the
 * channels of O in an order of its own, which end_bf16_rows mends: this version has the even ones of each 2 * RAPT_VL in one
 * vector, and the odd ones in the next; and the last 2 * RAPT_VL channels after the whole ones (move_last_channels). Replaceable.
 */
static void add_bf16_step(const rapt_task *t, const row_scratch *s, int kv_head, query_row *rows, int n, const value_parities *v,
                          const block *b, int from, int to);

/* True if add_bf16_step first copies rows of V as bf16, in whole steps: those of other types, with scales of tokens, and of less
 * than a vector. */
static inline bool copies_bf16_values(const rapt_problem *p) {
    return scaled_by_key(&p->v_scales) || p->v.type != RAPT_BF16 || p->d_v < 2 * RAPT_VL;
}

/* Ends what start_bf16_rows began: leaves O in the rows' states, channels in ascending order. Replaceable. */
static void end_bf16_rows(const rapt_problem *p, const row_scratch *s, query_row *rows, int heads, int n);
#ifndef end_bf16_rows
static void end_bf16_rows(const rapt_problem *p, const row_scratch *s, query_row *rows, int heads, int n) {
    (void)s;
    for (int r = 0; r < heads * n; r++) {
        float *o = rows[r].chunk_state.o;
        interleave_channels(o, 2, (int)whole_steps(p->d_v));
        if (!copies_bf16_values(p)) move_last_channels(o, p->d_v, 2 * RAPT_VL);
    }
}
#endif
#ifndef add_bf16_step

/* The even or the odd keys of a step. */
typedef struct parity_keys {
    const char *const *rows; /* of V, [count] and those that are prefetched */
    const float *weights;    /* [row][RAPT_CHUNK], every second one for this parity */
    int count;
} parity_keys;

/* Adds the value of the k-th of `keys`, times its weight in each row, to the sums of nr rows by nv vectors of pairs of channels,
 * sum[row * 2 * nv + 2 * vector + place in the pair]. The last vector begins `back` bytes earlier. Returns `folded` with the
 * value's channels folded in (has_subthreshold), or unchanged with flush. */
static RAPT_INLINE vi add_bf16_value(const bool flush, const int nv, const int nr, const parity_keys *keys, int k, size_t offset,
                                     size_t back, int ahead, vi folded, vf *sum) {
    const char *row = keys->rows[k] + offset;
    vi pairs[4];
    vf b[8];
    UNROLLED(v, nv) {
        pairs[v] = v_as_int(v_load((v == nv - 1 ? row - back : row) + (size_t)v * sizeof(vf)));
        if (flush) pairs[v] = flush_subthreshold_pairs(pairs[v]);
        else folded = i_fold_smallest_bf16(folded, pairs[v]);
        b[2 * v] = first_of_pairs(pairs[v]), b[2 * v + 1] = second_of_pairs(pairs[v]);
        prefetch(keys->rows[k + ahead], offset + (size_t)v * sizeof(vf));
    }
    UNROLLED(r, nr) {
        const vf a = v_broadcast(keys->weights + (size_t)r * RAPT_CHUNK + 2 * k); /* bf16, in the upper halves */
#if RAPT_BF16_FMA
        /* One vector would not gain: v_fma takes the weight from memory, these words from a register, which costs what a
         * conversion does. */
        if (nv > 1) {
            UNROLLED(v, nv) {
                const int of = (r * nv + v) * 2;
                sum[of] = v_fma_lower(a, 1, pairs[v], sum[of]), sum[of + 1] = v_fma_upper(a, 1, pairs[v], sum[of + 1]);
            }
            continue;
        }
#endif
        UNROLLED(v, 2 * nv) sum[r * 2 * nv + v] = v_fma(a, b[v], sum[r * 2 * nv + v]);
    }
    return folded;
}

/* Adds one step of P V for nr rows and nv vectors of pairs of channels: O = O + (even keys + odd keys). A vector of V has
 * RAPT_VL pairs of adjacent channels, whose first ones go to one vector of O and whose second ones to the next. keys[0]: the even
 * keys; keys[1]: the odd ones. back: as of add_bf16_value. ahead: the prefetch distance of V, in keys of a parity.
 *
 * flush = false is the fast path: it assumes that V has no subthreshold number. If it meets one it returns false and leaves O
 * untouched, and the caller repeats the call with flush = true, which flushes every element and always succeeds. */
static RAPT_INLINE bool bf16_value_tile(const bool flush, const int nv, const int nr, const parity_keys keys[2], size_t offset,
                                        size_t back, int ahead, float *o, size_t ldo) {
    const int both = rapt_min(keys[0].count, keys[1].count); /* keys of both parities in turns, to read V about in its order */
    vi folded = i_set1(0);
    vf even[16], odd[16];
    UNROLLED(i, 2 * nv * nr) even[i] = odd[i] = v_set1(0.0f);
    for (int k = 0; k < both; k++) {
        folded = add_bf16_value(flush, nv, nr, &keys[0], k, offset, back, ahead, folded, even);
        folded = add_bf16_value(flush, nv, nr, &keys[1], k, offset, back, ahead, folded, odd);
    }
    if (keys[0].count > both) folded = add_bf16_value(flush, nv, nr, &keys[0], both, offset, back, ahead, folded, even);
    if (keys[1].count > both) folded = add_bf16_value(flush, nv, nr, &keys[1], both, offset, back, ahead, folded, odd);
    if (!flush && has_subthreshold(folded)) return false;
    UNROLLED(r, nr)
        UNROLLED(v, 2 * nv) {
            float *to = o + (size_t)r * ldo + v * RAPT_VL;
            v_store(to, v_add(v_load(to), v_add(even[r * 2 * nv + v], odd[r * 2 * nv + v])));
        }
    return true;
}

/* Adds one step of P V with flushing, for any number of vectors and rows, a vector and a row at a time: this is rare, so one
 * instance is enough. */
static RAPT_NOINLINE void add_bf16_flushed(int vectors, int rows, const parity_keys keys[2], size_t offset, size_t back,
                                           int ahead, float *o, size_t ldo) {
    for (int r = 0; r < rows; r++) {
        parity_keys of_row[2] = {keys[0], keys[1]};
        for (int parity = 0; parity < 2; parity++) of_row[parity].weights += (size_t)r * RAPT_CHUNK;
        for (int v = 0; v < vectors; v++)
            bf16_value_tile(true, 1, 1, of_row, offset + (size_t)v * sizeof(vf), v == vectors - 1 ? back : 0, ahead,
                            o + (size_t)r * ldo + (size_t)v * 2 * RAPT_VL, ldo);
    }
}

/* Adds a register tile of one step of P V: nr rows and nv vectors of pairs. If it has met a subthreshold number, it is computed
 * again with flushing. */
static RAPT_INLINE void add_bf16_tile(const int nv, const int nr, const parity_keys keys[2], size_t offset, size_t back,
                                      int ahead, float *o, size_t ldo) {
    if (!bf16_value_tile(false, nv, nr, keys, offset, back, ahead, o, ldo))
        add_bf16_flushed(nv, nr, keys, offset, back, ahead, o, ldo);
}

/* Adds one step of P V for nr rows and all channels, nv vectors of pairs at a time, and then one by one. The last one ends with
 * the last channel. */
static RAPT_INLINE void add_bf16_pairs(const int nv, const int nr, const parity_keys keys[2], size_t offset, int ahead, float *o,
                                       size_t ldo, int channels) {
    enum { PAIRS = 2 * RAPT_VL };
    int vectors = (channels + PAIRS - 1) / PAIRS;
    const size_t back = (size_t)(vectors * PAIRS - channels) * sizeof(uint16_t);
    for (; vectors >= nv; vectors -= nv, offset += (size_t)nv * sizeof(vf), o += nv * PAIRS)
        add_bf16_tile(nv, nr, keys, offset, vectors == nv ? back : 0, ahead, o, ldo);
    for (; vectors > 0; vectors--, offset += sizeof(vf), o += PAIRS)
        add_bf16_tile(1, nr, keys, offset, vectors == 1 ? back : 0, ahead, o, ldo);
}

/* Adds one step of P V for n rows, as many at a time as have room in the registers for the sums of both parities: four where
 * RAPT_KEY_CHAINS is 8, else two. */
static RAPT_NOINLINE void add_bf16_rows(parity_keys even, parity_keys odd, size_t offset, int ahead, float *o, size_t ldo,
                                        int channels, int n) {
    parity_keys keys[2] = {even, odd};
    enum { MOST = RAPT_KEY_CHAINS / 2 };
    for (int now; n > 0; n -= now, o += (size_t)now * ldo) {
        now = rapt_min(n, MOST);
        if (now == 4) add_bf16_pairs(1, 4, keys, offset, ahead, o, ldo, channels);
        else if (now == 3) add_bf16_pairs(1, 3, keys, offset, ahead, o, ldo, channels);
        else if (now == 2) add_bf16_pairs(MOST / 2, 2, keys, offset, ahead, o, ldo, channels);
        else add_bf16_pairs(MOST, 1, keys, offset, ahead, o, ldo, channels);
        for (int parity = 0; parity < 2; parity++) keys[parity].weights += (size_t)now * RAPT_CHUNK;
    }
}

static void add_bf16_step(const rapt_task *t, const row_scratch *s, int kv_head, query_row *rows, int n, const value_parities *v,
                          const block *b, int from, int to) {
    const rapt_problem *p = t->problem;
    const bool scaled = scaled_by_key(&p->v_scales), copy = copies_bf16_values(p);
    float scales[RAPT_BLOCK];
    const int chunk_from = (int)(b->number % RAPT_CHUNK) + from, keys = to - from, whole = (int)whole_steps(p->d_v);
    size_t offset = (size_t)kv_head * (size_t)p->v.head_stride;
    const float *weights = s->s + (size_t)(kv_head * n) * RAPT_CHUNK;
    const char *copied_rows[2][STEP_PAIRS];
    if (scaled) load_key_scales(t, scales, t->v_scales + kv_head * p->v_scales.head_stride, &p->v_scales, b->number, from, to);
    uint16_t *const copies = (uint16_t *)s->values;
    for (int i = 0; i < keys && copy; i++) {
        const char *const *of_parity = v->rows[(from + i) % 2] + (chunk_from + i) / 2, *row = of_parity[0] + offset;
        prefetch_row(of_parity[RAPT_BF16_VALUES_AHEAD / 2], offset, p->v_row);
        uint16_t *to_row = copies + (size_t)(i * whole);
        copy_as_bf16(p->v.type, to_row, (size_t)whole, &row, 1, p->d_v, scaled ? scales + from + i : NULL, s->row);
        copied_rows[(from + i) % 2][i / 2] = (const char *)to_row;
    }
    parity_keys of[2];
    for (int parity = 0; parity < 2; parity++) {
        const int skipped = (from + parity) % 2, first = chunk_from + skipped;
        of[parity] =
            (parity_keys){copy ? copied_rows[parity] : v->rows[parity] + first / 2, weights + first, (keys - skipped + 1) / 2};
    }
    add_bf16_rows(of[0], of[1], copy ? 0 : offset, copy ? 0 : RAPT_BF16_VALUES_AHEAD / 2, rows[0].chunk_state.o,
                  (size_t)(n > 1 ? rows[1].chunk_state.o - rows[0].chunk_state.o : 0), copy ? whole : p->d_v, n);
}
#endif

/* Adds P V of a block for one row without the values of masked keys, which may be infinite or NaN. task_block: the part of the
 * block that some row attends to. */
static void add_attended_row_bf16(const rapt_task *t, const row_scratch *s, int kv_head, query_row *row, const float *weights,
                                  const block *task_block) {
    const rapt_problem *p = t->problem;
    const bool scaled = scaled_by_key(&p->v_scales);
    float scales[RAPT_BLOCK];
    const size_t dv = padded((size_t)p->d_v);
    const char *values[RAPT_BLOCK];
    block b = *task_block;
    const uint64_t attended = find_attended_values(t, kv_head, row, &b, values);
    if (!attended) return;
    weights += b.number % RAPT_CHUNK;
    if (scaled)
        load_key_scales(t, scales, t->v_scales + kv_head * p->v_scales.head_stride, &p->v_scales, b.number, b.first, b.end);
    for (int step = 0; step < RAPT_BLOCK; step += RAPT_STEP) {
        memset(s->sums, 0, 2 * dv * sizeof *s->sums);
        for (int n = rapt_max(step, b.first); n < rapt_min(step + RAPT_STEP, b.end); n++) {
            if (!(attended >> n & 1)) continue;
            float *sums = s->sums + (size_t)(n % 2) * dv;
            uint16_t *const copy = (uint16_t *)s->values;
            copy_as_bf16(p->v.type, copy, whole_steps(p->d_v), values + n, 1, p->d_v, scaled ? scales + n : NULL, s->row);
            for (int c = 0; c < p->d_v; c += RAPT_VL)
                v_store(sums + c, v_fma(v_set1(weights[n]), load_bf16((const char *)copy, c), v_load(sums + c)));
        }
        add_parity_sums(row, 1, s->sums, dv, p->d_v);
    }
}

/* Computes the states of the n rows of each head over one chunk, from the empty state. skip_masked: leave the values of masked
 * keys out. */
static void attend_bf16_rows(const rapt_task *t, const row_scratch *s, query_row *rows, int n, const block *blocks, int count,
                             const char *const *key_rows, const char *const *value_rows, bool skip_masked) {
    const rapt_problem *p = t->problem;
    const bool keys = scaled_by_key(&p->k_scales);
    value_parities by_parity;
    for (int i = 0; i < RAPT_CHUNK + RAPT_BF16_VALUES_AHEAD; i++) by_parity.rows[i % 2][i / 2] = value_rows[i];
    for (int i = 0; i < count; i++) {
        const block *b = &blocks[i];
        for (int from = scored_from(b), to, end = scored_to(b); from < end; from = to) {
            /* Joined heads alternate, so that memory is read in whole tokens. */
            to = t->kv_heads > 1 ? from + RAPT_PARTIAL_SUMS : end;
            for (int h = 0; h < t->kv_heads; h++) {
                int64_t at = b->number % RAPT_CHUNK + from;
                score_bf16_rows(t, s, h, n, key_rows + at, (size_t)h * (size_t)p->k.head_stride, to - from,
                                s->s + (size_t)(h * n) * RAPT_CHUNK + at);
            }
        }
    }
    for (int h = 0; h < t->kv_heads; h++) {
        float key_scales[RAPT_CHUNK];
        if (keys) load_chunk_scales(t, key_scales, t->k_scales + h * p->k_scales.head_stride, &p->k_scales, blocks, count);
        for (int r = h * n; r < (h + 1) * n; r++)
            weigh_bf16_row(t, &rows[r], s->s + (size_t)r * RAPT_CHUNK, keys ? key_scales : NULL, blocks, count);
    }
    if (!skip_masked) start_bf16_rows(p, s, t->kv_heads, n);
    for (int i = 0; i < count; i++) {
        const block *b = &blocks[i];
        for (int r = 0; r < n * t->kv_heads && skip_masked; r++)
            add_attended_row_bf16(t, s, r / n, &rows[r], s->s + (size_t)r * RAPT_CHUNK, b);
        for (int from = b->first, to; from < b->end && !skip_masked; from = to) {
            to = rapt_min(b->end, (from / RAPT_STEP + 1) * RAPT_STEP);
            for (int h = 0; h < t->kv_heads; h++) add_bf16_step(t, s, h, rows + h * n, n, &by_parity, b, from, to);
        }
    }
    if (!skip_masked) end_bf16_rows(p, s, rows, t->kv_heads, n);
}
