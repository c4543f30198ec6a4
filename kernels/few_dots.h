/* SPDX-License-Identifier: Apache-2.0 */
/* Few rows in integer arithmetic: a vector has channels of one key, and in P V lanes are channels, each with four keys. The sums
 * are those of dots.h in another order, so the bits are the same. Included by keys_in_lanes.h with RAPT_FEW_DOTS. */

enum { STEP = RAPT_VL * RAPT_DOT }; /* bytes of a vector */

/* Rows and keys at a time: i_sum_within takes the sums of 4 keys, and 16 accumulators, with 4 vectors of keys and one of a row,
 * fit into 32 registers. */
enum { DOT_ROWS = 4, DOT_KEYS = 4 };

/* Of lanes that are 0 or NaN: NaN if one is. */
static float sum_of(vf x) { return v_all(v_lt(x, v_set1(1.0f))) ? 0.0f : NAN; }

/* What stands behind the bytes of a row of Q: what they count, NaN for a row with a NaN or an infinity, and what the sums start
 * from. Here it is K whose bytes are made unsigned, by adding DOT_BIAS: that adds the same to all sums of a row. */
typedef struct query_end {
    float scale;
    int32_t first;
} query_end;

/* A row of Q becomes bytes, then 0 up to a whole lane, and its query_end. */
static void quantise_query(float *q, int channels) {
    vf most = v_set1(0.0f), wrong = v_set1(0.0f);
    for (int c = 0; c < channels; c += RAPT_VL) { /* padded with 0 */
        vf x = v_load(q + c);
        most = v_max(most, v_as_float(i_and(v_as_int(x), i_set1(INT32_MAX))));
        wrong = v_add(wrong, v_sub(x, x));
    }
    float largest = h_max(most);
    query_end end = {largest / 127.0f + sum_of(wrong), 0};
    int8_t bytes[RAPT_MAX_HEAD_DIM + RAPT_VL] = {0};
    vf factor = v_div(v_set1(127.0f), v_set1(largest));
    for (int c = 0; c < channels; c += RAPT_VL) {
        int32_t n[RAPT_VL];
        v_store(n, v_as_float(nearest_int(v_mul(v_load(q + c), factor), v_set1(128.0f))));
        for (int j = 0; j < RAPT_VL && c + j < channels; j++) bytes[c + j] = (int8_t)n[j];
    }
    for (int c = 0; c < channels; c++) end.first -= DOT_BIAS * bytes[c];
    memcpy(q, bytes, (size_t)dot_lanes(channels) * sizeof *q);
    memcpy(q + dot_lanes(channels), &end, sizeof end);
}

/* Adds the products of STEP channels of four keys with those of the rows of Q. */
static RAPT_INLINE void add_key_dots(const int nr, const char *const *keys, size_t offset, const float *q, size_t ldq,
                                     vi acc[][DOT_KEYS]) {
    vi k[DOT_KEYS];
    RAPT_UNROLL for (int j = 0; j < DOT_KEYS; j++) k[j] = i_xor(v_as_int(v_load(keys[j] + offset)), i_set1((int32_t)0x80808080));
    RAPT_UNROLL for (int r = 0; r < nr; r++) {
        vi row = v_as_int(v_load(q + r * ldq));
        RAPT_UNROLL for (int j = 0; j < DOT_KEYS; j++) acc[r][j] = i_dot(acc[r][j], k[j], row);
    }
}

/* The scores of RAPT_VL keys for nr rows: the keys are read one after the other. */
static RAPT_INLINE void score_dots(const int nr, const char *const *keys, size_t offset, int channels, const float *q, size_t ldq,
                                   float *s) {
    vi sums[DOT_ROWS][RAPT_VL / DOT_KEYS];
    int whole = channels - channels % STEP, rest = channels - whole;
    RAPT_UNROLL for (int g = 0; g < RAPT_VL / DOT_KEYS; g++, keys += DOT_KEYS) {
        vi acc[DOT_ROWS][DOT_KEYS];
        RAPT_UNROLL for (int r = 0; r < nr; r++) RAPT_UNROLL for (int j = 0; j < DOT_KEYS; j++) acc[r][j] = i_set1(0);
        for (int i = 0; i < whole; i += STEP) {
            add_key_dots(nr, keys, offset + (size_t)i, q + i / RAPT_DOT, ldq, acc);
            for (int j = 0; j < DOT_KEYS; j++) {
                prefetch(keys[j + RAPT_BYTE_KEYS_AHEAD / 2], offset + (size_t)i); /* twice: the first may get lost */
                prefetch(keys[j + RAPT_BYTE_KEYS_AHEAD], offset + (size_t)i);
            }
        }
        if (rest) {
            char part[DOT_KEYS][STEP];
            const char *parts[DOT_KEYS];
            memset(part, DOT_BIAS, sizeof part); /* 0 when the bias is added */
            for (int j = 0; j < DOT_KEYS; j++) parts[j] = memcpy(part[j], keys[j] + offset + whole, (size_t)rest);
            add_key_dots(nr, parts, 0, q + whole / RAPT_DOT, ldq, acc);
        }
        RAPT_UNROLL for (int r = 0; r < nr; r++) sums[r][g] = i_sum_within(acc[r]);
    }
    RAPT_UNROLL for (int r = 0; r < nr; r++) {
        query_end end;
        memcpy(&end, q + r * ldq + dot_lanes(channels), sizeof end);
        vi sum = i_add(i_sum_across(sums[r]), i_set1(end.first));
        v_store(s + (size_t)r * RAPT_CHUNK, v_fma(v_from_int(sum), v_set1(end.scale), v_set1(0.0f)));
    }
}

/* As score_rows. */
static RAPT_NOINLINE void score_rows_dots(int rows, const char *const *keys, size_t offset, int n, int channels, const float *q,
                                          size_t ldq, float *s) {
    for (; rows > 0; rows -= DOT_ROWS, q += DOT_ROWS * ldq, s += DOT_ROWS * RAPT_CHUNK)
        for (int g = 0; g < n; g += RAPT_VL) {
            if (rows >= 4) score_dots(4, keys + g, offset, channels, q, ldq, s + g);
            else if (rows == 3) score_dots(3, keys + g, offset, channels, q, ldq, s + g);
            else if (rows == 2) score_dots(2, keys + g, offset, channels, q, ldq, s + g);
            else score_dots(1, keys + g, offset, channels, q, ldq, s + g);
        }
}

/* The weights of a row for a block, times sign and the scales of their values, where that is positive, as bytes, and behind them
 * what these count. */
static void quantise_row_part(const vf *weights, const float *value_scales, float sign, float *to) {
    vf zero = v_set1(0.0f), most = zero, wrong = zero, scaled[RAPT_BLOCK / RAPT_VL];
    for (int i = 0; i < RAPT_BLOCK / RAPT_VL; i++) {
        scaled[i] = weights[i];
        if (value_scales) {
            vf product = v_max(zero, v_mul(weights[i], v_mul(v_set1(sign), v_load(value_scales + i * RAPT_VL))));
            scaled[i] = v_select(v_lt(zero, weights[i]), product, weights[i]);
            wrong = v_add(wrong, v_sub(scaled[i], scaled[i])); /* 0, or NaN */
        }
        most = v_max(scaled[i], most);
    }
    float largest = h_max(most);
    vf factor = v_div(v_set1(DOT_MOST), v_set1(largest));
    for (int i = 0; i < RAPT_BLOCK / RAPT_VL; i++) i_store_u8(to + i * RAPT_VL / RAPT_DOT, rounded(v_mul(scaled[i], factor)));
    to[RAPT_BLOCK / RAPT_DOT] = sign * (largest / DOT_MOST) + sum_of(wrong);
}

/* Is any of the scales of a block negative? */
static bool any_negative(const float *scales) {
    vf zero = v_set1(0.0f), any = zero;
    for (int i = 0; i < RAPT_BLOCK; i += RAPT_VL) any = v_select(v_lt(v_load(scales + i), zero), v_set1(1.0f), any);
    return h_max(any) > 0.0f;
}

/* Where the weights of a block were, those of positive products come first, and then those of negative ones. */
enum { NEGATIVE_PART = RAPT_BLOCK / 2 };

static void quantise_row_weights(float *weights, const float *value_scales, bool negative) {
    vf all[RAPT_BLOCK / RAPT_VL];
    for (int i = 0; i < RAPT_BLOCK / RAPT_VL; i++) all[i] = v_load(weights + i * RAPT_VL);
    quantise_row_part(all, value_scales, 1.0f, weights);
    if (negative) quantise_row_part(all, value_scales, -1.0f, weights + NEGATIVE_PART);
    else weights[NEGATIVE_PART + RAPT_BLOCK / RAPT_DOT] = 0.0f;
}

/* o = alpha o + P V for nr rows and STEP channels, of which the first `channels` exist; values: the rows of quads of keys, offset
 * bytes before their channels, and further on those that are prefetched. */
static RAPT_INLINE void add_dots(const int nr, const char *const *values, size_t offset, int quads, int channels, const char *p,
                                 size_t ldp, const float *scale, const float *alpha, float *o, size_t ldo) {
    vi acc[DOT_ROWS * RAPT_DOT];
    RAPT_UNROLL for (int a = 0; a < nr * RAPT_DOT; a++) acc[a] = i_set1(0);
    for (int n = 0; n < quads; n++) {
        const char *rows[RAPT_DOT];
        char part[RAPT_DOT][STEP];
        RAPT_UNROLL for (int e = 0; e < RAPT_DOT; e++) {
            const char *const *at = values + n * RAPT_DOT + e;
            rows[e] = *at + offset;
            prefetch(at[RAPT_BLOCK / 2], offset); /* twice: the first may get lost */
            prefetch(at[RAPT_BLOCK], offset);
            if (channels == STEP) continue;
            memset(part[e], 0, STEP);
            memcpy(part[e], rows[e], (size_t)channels);
            rows[e] = part[e];
        }
        vi v[RAPT_DOT];
        i_load_quads(v, rows);
        RAPT_UNROLL for (int r = 0; r < nr; r++) {
            vi weights = v_as_int(v_broadcast(p + r * ldp + n * RAPT_DOT));
            RAPT_UNROLL for (int i = 0; i < RAPT_DOT; i++) acc[r * RAPT_DOT + i] = i_dot(acc[r * RAPT_DOT + i], weights, v[i]);
        }
    }
    RAPT_UNROLL for (int r = 0; r < nr; r++) RAPT_UNROLL for (int i = 0; i < RAPT_DOT; i++) {
        float *to = o + r * ldo + i * RAPT_VL;
        if (i * RAPT_VL >= channels) break;
        v_store(to, v_fma(v_from_int(acc[r * RAPT_DOT + i]), v_set1(scale[r]), v_mul(v_load(to), v_set1(alpha[r]))));
    }
}

/* The same for all channels of a block, which lie offset bytes behind the rows in values, of keys from a multiple of RAPT_DOT on;
 * p: the rows' weights for them, as quantise_row_weights leaves them, ldp bytes apart. */
static RAPT_NOINLINE void add_rows_dots(int rows, const char *const *values, size_t offset, int quads, int channels,
                                        const char *p, size_t ldp, const float *scale, const float *alpha, float *o, size_t ldo) {
    for (; rows > 0; rows -= DOT_ROWS, p += DOT_ROWS * ldp, scale += DOT_ROWS, alpha += DOT_ROWS, o += DOT_ROWS * ldo)
        for (int c = 0; c < channels; c += STEP) {
            int some = rapt_min(STEP, channels - c);
            size_t at = offset + (size_t)c;
            if (rows >= 4) add_dots(4, values, at, quads, some, p, ldp, scale, alpha, o + c, ldo);
            else if (rows == 3) add_dots(3, values, at, quads, some, p, ldp, scale, alpha, o + c, ldo);
            else if (rows == 2) add_dots(2, values, at, quads, some, p, ldp, scale, alpha, o + c, ldo);
            else add_dots(1, values, at, quads, some, p, ldp, scale, alpha, o + c, ldo);
        }
}
