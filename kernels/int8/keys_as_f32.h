/* SPDX-License-Identifier: Apache-2.0 */
/* Few rows in integer arithmetic on kernels without RAPT_FEW_DOTS: integers are multiplied as f32, with keys in lanes, by the
 * functions of exact arithmetic (rapt_few_products). All sums are integers below 2^24, which f32 holds exactly, so the bits are
 * those of queries_int8.h. Included by keys_in_lanes.h. */

_Static_assert(127 * 128 * RAPT_MAX_HEAD_DIM < 1 << 24 && DOT_MOST * 128 * RAPT_BLOCK < 1 << 24, "f32 holds all sums exactly");

/* What row_scratch.integers holds: while scores are computed the first two, then the others. */
typedef struct integer_scratch {
    float *group_scores; /* [rows][RAPT_CHUNK] the sums of one group of channels, of K with groups */
    float *key_factors;  /* [groups][RAPT_BLOCK] the scales of groups of K */
    float *weights;      /* [rows][RAPT_BLOCK] quantised weights of a block */
    float *sums;         /* [rows][padded d_v] their products with V */
    float *factors;      /* [groups][RAPT_BLOCK] the scales of groups of V, times those of tokens */
} integer_scratch;

/* Lays out the scratch of a head's n rows, and returns the floats that it takes. With null memory it only counts them. */
static size_t lay_out_integers(const rapt_problem *p, int n, float *memory, integer_scratch *to) {
    size_t of_keys = 0, of_values = 0;
    to->group_scores = carve(memory, &of_keys, p->k.type == RAPT_INT8 ? 0 : (size_t)n * RAPT_CHUNK);
    to->key_factors = carve(memory, &of_keys, (size_t)(p->d_k / RAPT_GROUP * RAPT_BLOCK));
    to->weights = carve(memory, &of_values, (size_t)n * RAPT_BLOCK);
    to->sums = carve(memory, &of_values, (size_t)n * padded((size_t)p->d_v));
    to->factors = carve(memory, &of_values, (size_t)(p->d_v / RAPT_GROUP * RAPT_BLOCK));
    return of_keys > of_values ? of_keys : of_values;
}
static size_t integer_floats(const rapt_problem *p, int rows) {
    integer_scratch s;
    return lay_out_integers(p, rows, NULL, &s);
}

/* ---- Scores -------------------------------------------------------------------------------------------------------------- */

/* Returns the low 16 bits of each lane, with their sign: 0 where a number that was rounded to them was infinite or NaN. */
static RAPT_INLINE vi low_half(vi x) { return i_sar(i_shl(x, 16), 16); }

/* Quantises a row of Q in place, to integers as f32. The row's scale becomes its last float, ld - 1, which is no channel; NaN if
 * the row had a NaN or an infinity. */
static void quantise_query(float *q, int channels, size_t ld) {
    vf factor;
    const float scale = scale_of_query(q, channels, &factor);
    for (int c = 0; c < channels; c += RAPT_VL)
        v_store(q + c, v_from_int(low_half(nearest_int(v_mul(v_load(q + c), factor), v_set1(128.0f)))));
    q[ld - 1] = scale;
}

/* Stages n rows of integers as f32, ld floats from row to row. */
static void stage_integers(rapt_type type, float *to, size_t ld, const char *const *rows, int n, int channels) {
    if (type == RAPT_INT8) {
        stage_rows_int8(to, ld, rows, n, 0, channels);
        return;
    }
    for (int r = 0; r < n; r++, to += ld) {
        int8_t unpacked[RAPT_MAX_HEAD_DIM];
        const char *const row = (const char *)unpacked;
        unpack_integers(type, rows[r], channels, 0, unpacked);
        stage_rows_int8(to, ld, &row, 1, 0, channels);
    }
}

/* Loads the scales of groups of n rows, which begin `offset` bytes after their addresses: to[g][first + i] = that of row i, and 0
 * for other keys of a block, [groups][RAPT_BLOCK]. A vector is not loaded right after its parts are stored, which would wait. */
static void load_scales_of_rows(rapt_type type, const char *const *rows, size_t offset, int first, int n, int groups, float *to) {
    uint16_t halves[RAPT_MAX_HEAD_DIM / RAPT_GROUP][RAPT_BLOCK];
    memset(halves, 0, (size_t)groups * sizeof *halves);
    for (int i = 0; i < n; i++)
        for (int g = 0; g < groups; g++) halves[g][first + i] = half_le(rows[i] + offset + (size_t)g * group_bytes(type));
    for (int g = 0; g < groups; g++)
        for (int i = 0; i < RAPT_BLOCK; i += RAPT_VL) v_store(to + g * RAPT_BLOCK + i, v_load_f16(halves[g] + i));
}

/* Where the integers of rows are: of q8_0 in the rows as they are stored, else in copies. */
typedef struct integer_rows {
    const char *const *rows;
    size_t offset, group; /* from a row's address to those of its first group, and from one group to the next, in bytes */
    int ahead;            /* how many rows further on to prefetch, if they are as stored */
} integer_rows;

/* Finds the integers of n rows of a type with groups, which begin `offset` bytes after their addresses, as bytes. memory: of the
 * copies; copies: their addresses, `addresses` of them, since rows that are prefetched follow. Prefetches the rows that lie
 * `ahead` further on. */
static integer_rows find_integers(rapt_type type, const char *const *rows, size_t offset, int n, int channels, int ahead,
                                  float *memory, const char **copies, int addresses) {
    const size_t bytes = group_bytes(type), row = (size_t)(channels / RAPT_GROUP) * bytes;
    if (type == RAPT_Q8_0) return (integer_rows){rows, offset + (bytes - RAPT_GROUP), bytes, ahead};
    int8_t *const to = (int8_t *)memory;
    for (int i = 0; i < addresses; i++) copies[i] = (const char *)to + (size_t)rapt_min(i, n - 1) * (size_t)channels;
    for (int i = 0; i < n; i++) {
        prefetch_row(rows[i + ahead], offset, row);
        unpack_integers(type, rows[i] + offset, channels, 0, to + (size_t)i * (size_t)channels);
    }
    return (integer_rows){copies, 0, RAPT_GROUP, 0};
}

/* Computes t of n keys of K with groups: t = fma(sum of the group, the group's scale of the key, t), groups ascending. score:
 * computes the sums, from k. */
static void score_groups(const rapt_problem *p, const row_scratch *s, int rows, const char *const *keys, size_t offset,
                         rapt_score_product *score, integer_rows k, int n, const float *q, size_t ldq, float *scores) {
    const int groups = p->d_k / RAPT_GROUP;
    integer_scratch scratch;
    lay_out_integers(p, rows, s->integers, &scratch);
    load_scales_of_rows(p->k.type, keys, offset, 0, n, groups, scratch.key_factors);
    for (int g = 0; g < groups; g++) {
        score(rows, k.rows, k.offset + (size_t)g * k.group, n, RAPT_GROUP, q + g * RAPT_GROUP, ldq, scratch.group_scores);
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < n; i += RAPT_VL) {
                float *const to = scores + (size_t)r * RAPT_CHUNK + i;
                const vf before = g ? v_load(to) : v_set1(0.0f);
                v_store(to, v_fma(v_load(scratch.group_scores + (size_t)r * RAPT_CHUNK + i),
                                  v_load(scratch.key_factors + g * RAPT_BLOCK + i), before));
            }
    }
}

/* Scores n keys of one head, a multiple of RAPT_PARTIAL_SUMS and at most RAPT_BLOCK, for any number of quantised rows. */
static RAPT_NOINLINE void score_integer_rows(const rapt_problem *p, const row_scratch *s, int rows, const char *const *keys,
                                             size_t offset, int n, const float *q, size_t ldq, float *scores) {
    const rapt_few_products *const products = p->few_products;
    const bool as_bytes = rows <= products->int8_rows, grouped = p->k.type != RAPT_INT8;
    const char *copies[KEY_ADDRESSES];
    if (as_bytes && grouped) {
        const integer_rows k =
            find_integers(p->k.type, keys, offset, n, p->d_k, RAPT_BYTE_KEYS_AHEAD, s->keys, copies, n + RAPT_BYTE_KEYS_AHEAD);
        score_groups(p, s, rows, keys, offset, products->score_int8, k, n, q, ldq, scores);
    } else if (as_bytes) {
        products->score_int8(rows, keys, offset, n, p->d_k, q, ldq, scores);
    } else {
        const size_t ld = padded((size_t)p->d_k);
        const char *from[RAPT_BLOCK];
        for (int i = 0; i < RAPT_BLOCK; i++) from[i] = keys[rapt_min(i, n - 1)] + offset;
        for (int i = 0; i < n + RAPT_KEYS_FURTHER_AHEAD; i++)
            copies[i] = (const char *)(s->keys + (size_t)rapt_min(i, n - 1) * ld);
        stage_integers(p->k.type, s->keys, ld, from, n, p->d_k);
        const integer_rows k = {copies, 0, RAPT_GROUP * sizeof(float), 0};
        if (grouped) score_groups(p, s, rows, keys, offset, products->score_f32, k, n, q, ldq, scores);
        else products->score_f32(rows, copies, 0, n, p->d_k, q, ldq, scores);
    }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < n; i += RAPT_VL) {
            float *const to = scores + (size_t)r * RAPT_CHUNK + i;
            v_store(to, v_fma(v_load(to), v_set1(q[(size_t)r * ldq + ldq - 1]), v_set1(0.0f)));
        }
}

/* ---- Values -------------------------------------------------------------------------------------------------------------- */

/* Quantises one row's weights of a block, times sign * factors unless factors is null, to integers as f32, of which the largest
 * magnitude becomes `most`. Products that are below 0 become 0 if `positive`. A weight of 0 stays 0, whatever its factor. Returns
 * the scale of the integers, times sign; NaN if a product is not finite. (A weight of NaN needs no mark, for the sum of weights
 * is NaN then.) */
static float quantise_block_weights(const float *weights, const float *factors, float sign, bool positive, float most,
                                    float *to) {
    const vf zero = v_set1(0.0f);
    vf largest = zero, wrong = zero, scaled[RAPT_BLOCK / RAPT_VL];
    for (int i = 0; i < RAPT_BLOCK / RAPT_VL; i++) {
        const vf weight = v_load(weights + i * RAPT_VL);
        scaled[i] = weight;
        if (factors) {
            const vf product = v_mul(weight, v_mul(v_set1(sign), v_load(factors + i * RAPT_VL)));
            scaled[i] = v_select(v_lt(zero, weight), positive ? v_max(zero, product) : product, weight);
            wrong = v_add(wrong, v_sub(scaled[i], scaled[i])); /* 0, or NaN */
        }
        largest = v_max(v_as_float(i_and(v_as_int(scaled[i]), i_set1(INT32_MAX))), largest);
    }
    const float size = h_max(largest);
    const vf factor = v_div(v_set1(most), v_set1(size));
    for (int i = 0; i < RAPT_BLOCK / RAPT_VL; i++)
        v_store(to + i * RAPT_VL, v_from_int(low_half(rounded(v_mul(scaled[i], factor)))));
    return sign * (size / most) + nan_of_lanes(wrong);
}

/* Adds a product of integers to a row of O: o = fma(sum, scale, o * alpha). */
static void add_integer_sums(float *o, const float *sums, int channels, float scale, float alpha) {
    for (int c = 0; c < channels; c += RAPT_VL)
        v_store(o + c, v_fma(v_load(sums + c), v_set1(scale), v_mul(v_load(o + c), v_set1(alpha))));
}

/* Adds P V of one head for a block of V of int8. */
static void add_int8_values(const rapt_task *t, const row_scratch *s, int kv_head, query_row *rows, int n, const float *weights,
                            const float *alpha, const char *const *values, const block *b, const float *scales) {
    const rapt_problem *p = t->problem;
    const size_t dv = padded((size_t)p->d_v), offset = (size_t)kv_head * (size_t)p->v.head_stride;
    const bool direct = n <= p->few_products->int8_rows && p->d_v >= RAPT_VL;
    const int vectors = value_vectors(p), depth = b->end - b->first;
    const char *from[RAPT_BLOCK], *copies[RAPT_BLOCK];
    integer_scratch scratch;
    lay_out_integers(p, n, s->integers, &scratch);
    for (int i = 0; i < depth && !direct; i++) {
        from[i] = values[b->first + i] + offset;
        copies[i] = (const char *)(s->values + (size_t)i * dv);
    }
    if (!direct) stage_integers(RAPT_INT8, s->values, dv, from, depth, p->d_v);
    bool negative = false;
    for (int i = 0; i < RAPT_BLOCK && scales; i++) negative |= scales[i] < 0.0f;
    for (int sign = 1; sign >= (negative ? -1 : 1); sign -= 2) {
        float scale[RAPT_MOST_FEW_ROWS];
        for (int r = 0; r < n; r++)
            scale[r] = quantise_block_weights(weights + (size_t)r * RAPT_CHUNK, scales, (float)sign, true, DOT_MOST,
                                              scratch.weights + r * RAPT_BLOCK);
        memset(scratch.sums, 0, (size_t)n * dv * sizeof *scratch.sums);
        operands o = {.c = (char *)scratch.sums,
                      .ldc = dv * sizeof(float),
                      .a = (const char *)(scratch.weights + b->first),
                      .rs = RAPT_BLOCK * sizeof(float),
                      .ks = sizeof(float),
                      .depth = depth,
                      .rows = direct ? values + b->first : copies,
                      .offset = direct ? offset : 0};
        if (direct) o.ahead = values_ahead(p), o.back = (size_t)(vectors * RAPT_VL - p->d_v);
        (direct ? p->few_products->value_int8 : p->few_products->value_f32)(&o, n, vectors);
        for (int r = 0; r < n; r++) {
            float *const sums = scratch.sums + (size_t)r * dv;
            if (direct) move_last_channels(sums, p->d_v, RAPT_VL);
            add_integer_sums(rows[r].chunk_state.o, sums, p->d_v, scale[r], sign > 0 ? alpha[r * ROW_ALPHAS] : 1.0f);
        }
    }
}

/* Adds P V of one head for a block of V with groups, whose weights are quantised for each group of channels. */
static void add_group_values(const rapt_task *t, const row_scratch *s, int kv_head, query_row *rows, int n, const float *weights,
                             const float *alpha, const char *const *values, const block *b, const float *scales) {
    const rapt_problem *p = t->problem;
    const size_t dv = padded((size_t)p->d_v), offset = (size_t)kv_head * (size_t)p->v.head_stride;
    const int groups = p->d_v / RAPT_GROUP, depth = b->end - b->first;
    const bool as_bytes = n <= p->few_products->int8_rows;
    const char *from[RAPT_BLOCK], *copies[RAPT_BLOCK];
    integer_scratch scratch;
    lay_out_integers(p, n, s->integers, &scratch);
    for (int i = 0; i < depth && !as_bytes; i++) {
        from[i] = values[b->first + i] + offset;
        copies[i] = (const char *)(s->values + (size_t)i * dv);
    }
    integer_rows v = {copies, 0, RAPT_GROUP * sizeof(float), 0};
    if (as_bytes) v = find_integers(p->v.type, values + b->first, offset, depth, p->d_v, RAPT_BLOCK, s->values, copies, depth);
    else stage_integers(p->v.type, s->values, dv, from, depth, p->d_v);
    load_scales_of_rows(p->v.type, values + b->first, offset, b->first, depth, groups, scratch.factors);
    for (int i = 0; i < groups * RAPT_BLOCK && scales; i += RAPT_VL)
        v_store(scratch.factors + i, v_mul(v_load(scratch.factors + i), v_load(scales + i % RAPT_BLOCK)));
    for (int g = 0; g < groups; g++) {
        float scale[RAPT_MOST_FEW_ROWS];
        for (int r = 0; r < n; r++)
            scale[r] = quantise_block_weights(weights + (size_t)r * RAPT_CHUNK, scratch.factors + g * RAPT_BLOCK, 1.0f, false,
                                              DOT_MOST_OF_GROUP, scratch.weights + r * RAPT_BLOCK);
        memset(scratch.sums, 0, (size_t)(n * RAPT_GROUP) * sizeof *scratch.sums);
        const operands o = {.c = (char *)scratch.sums,
                            .ldc = RAPT_GROUP * sizeof(float),
                            .a = (const char *)(scratch.weights + b->first),
                            .rs = RAPT_BLOCK * sizeof(float),
                            .ks = sizeof(float),
                            .depth = depth,
                            .rows = v.rows,
                            .offset = v.offset + (size_t)g * v.group,
                            .ahead = v.ahead};
        (as_bytes ? p->few_products->value_int8 : p->few_products->value_f32)(&o, n, RAPT_GROUP / RAPT_VL);
        for (int r = 0; r < n; r++)
            add_integer_sums(rows[r].chunk_state.o + g * RAPT_GROUP, scratch.sums + r * RAPT_GROUP, RAPT_GROUP, scale[r],
                             alpha[r * ROW_ALPHAS]);
    }
}

/* Computes O = alpha O + P V of one head for a block. nth: the index of b among the chunk's blocks. value_rows: the addresses of
 * the chunk's values. */
static void add_integer_block(const rapt_task *t, const row_scratch *s, int kv_head, query_row *rows, int n,
                              const char *const *value_rows, const block *b, int nth) {
    const rapt_problem *p = t->problem;
    const bool scaled = scaled_by_key(&p->v_scales);
    const float *weights = s->s + (size_t)(kv_head * n) * RAPT_CHUNK + b->number % RAPT_CHUNK;
    const float *alpha = s->alpha + kv_head * n * ROW_ALPHAS + nth;
    const char *const *values = value_rows + b->number % RAPT_CHUNK;
    float scales[RAPT_BLOCK] = {0};
    if (scaled)
        load_key_scales(t, scales, t->v_scales + kv_head * p->v_scales.head_stride, &p->v_scales, b->number, b->first, b->end);
    if (p->v.type == RAPT_INT8) add_int8_values(t, s, kv_head, rows, n, weights, alpha, values, b, scaled ? scales : NULL);
    else add_group_values(t, s, kv_head, rows, n, weights, alpha, values, b, scaled ? scales : NULL);
}
