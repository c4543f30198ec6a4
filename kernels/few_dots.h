/* SPDX-License-Identifier: Apache-2.0 */
/* Few rows in integer arithmetic: lanes are keys, each with four channels, and in P V channels, each with four keys. The sums are
 * those of dots.h in another order, so the bits are the same. Included by keys_in_lanes.h with RAPT_FEW_DOTS. */

enum { STEP = RAPT_VL * RAPT_DOT, DOT_ROWS = 4 }; /* bytes of a vector; rows at a time */

/* Of lanes that are 0 or NaN: NaN if one is. */
static float sum_of(vf x) {
    float lane[RAPT_VL], sum = 0.0f;
    v_store(lane, x);
    for (int j = 0; j < RAPT_VL; j++) sum += lane[j];
    return sum;
}

/* A row of Q becomes bytes, then 0 up to whole vectors; returns what they count, NaN for a row with a NaN or an infinity. */
static float quantise_query(float *q, int channels) {
    vf most = v_set1(0.0f), wrong = v_set1(0.0f);
    for (int c = 0; c < channels; c += RAPT_VL) { /* padded with 0 */
        vf x = v_load(q + c);
        most = v_max(most, v_as_float(i_and(v_as_int(x), i_set1(INT32_MAX))));
        wrong = v_add(wrong, v_sub(x, x));
    }
    float largest = h_max(most);
    uint8_t bytes[RAPT_MAX_HEAD_DIM + STEP];
    memset(bytes, DOT_BIAS, sizeof bytes);
    vf factor = v_div(v_set1(127.0f), v_set1(largest));
    for (int c = 0; c < channels; c += RAPT_VL) {
        int32_t n[RAPT_VL];
        v_store(n, v_as_float(nearest_int(v_mul(v_load(q + c), factor), v_set1(128.0f))));
        for (int j = 0; j < RAPT_VL && c + j < channels; j++) bytes[c + j] = (uint8_t)(n[j] + DOT_BIAS);
    }
    memcpy(q, bytes, ((size_t)channels + RAPT_DOT - 1) / RAPT_DOT * RAPT_DOT);
    return largest / 127.0f + sum_of(wrong);
}

/* Adds the products of a vector of each of RAPT_VL keys, k, with so many lanes of the rows of Q; correction is what their bias
 * adds. */
static RAPT_INLINE void add_key_dots(const int nr, vf k[RAPT_VL], int lanes, const char *q, size_t ldq, vi *acc, vi *correction) {
    v_transpose(k);
    RAPT_UNROLL for (int j = 0; j < RAPT_VL; j++) {
        if (j >= lanes) break;
        *correction = i_dot(*correction, i_set1((int32_t)0x80808080), v_as_int(k[j]));
        RAPT_UNROLL for (int r = 0; r < nr; r++) acc[r] =
            i_dot(acc[r], v_as_int(v_broadcast(q + r * ldq + j * RAPT_DOT)), v_as_int(k[j]));
    }
}

/* The scores of RAPT_VL keys for nr rows. */
static RAPT_INLINE void score_dots(const int nr, const char *const *keys, size_t offset, int channels, const char *q, size_t ldq,
                                   const float *scale, float *s) {
    vi acc[DOT_ROWS], correction = i_set1(0);
    vf k[RAPT_VL];
    int whole = channels - channels % STEP, rest = channels - whole;
    RAPT_UNROLL for (int r = 0; r < nr; r++) acc[r] = i_set1(0);
    for (int i = 0; i < whole; i += STEP) {
        RAPT_UNROLL for (int j = 0; j < RAPT_VL; j++) {
            k[j] = v_load(keys[j] + offset + i);
            prefetch(keys[j + RAPT_KEYS_AHEAD], offset + (size_t)i);
        }
        add_key_dots(nr, k, RAPT_VL, q + i, ldq, acc, &correction);
    }
    if (rest) {
        char part[RAPT_VL][STEP] = {{0}};
        for (int j = 0; j < RAPT_VL; j++) memcpy(part[j], keys[j] + offset + whole, (size_t)rest);
        for (int j = 0; j < RAPT_VL; j++) k[j] = v_load(part[j]);
        add_key_dots(nr, k, (rest + RAPT_DOT - 1) / RAPT_DOT, q + whole, ldq, acc, &correction);
    }
    RAPT_UNROLL for (int r = 0; r < nr; r++)
        v_store(s + (size_t)r * RAPT_CHUNK, v_fma(v_from_int(i_sub(acc[r], correction)), v_set1(scale[r]), v_set1(0.0f)));
}

/* As score_rows. scale: what each row's integers count. */
static RAPT_NOINLINE void score_rows_dots(int rows, const char *const *keys, size_t offset, int n, int channels, const float *q,
                                          size_t ldq, const float *scale, float *s) {
    for (; rows > 0; rows -= DOT_ROWS, q += DOT_ROWS * ldq, scale += DOT_ROWS, s += DOT_ROWS * RAPT_CHUNK)
        for (int g = 0; g < n; g += RAPT_VL) {
            const char *row = (const char *)q;
            size_t ld = ldq * sizeof *q;
            if (rows >= 4) score_dots(4, keys + g, offset, channels, row, ld, scale, s + g);
            else if (rows == 3) score_dots(3, keys + g, offset, channels, row, ld, scale, s + g);
            else if (rows == 2) score_dots(2, keys + g, offset, channels, row, ld, scale, s + g);
            else score_dots(1, keys + g, offset, channels, row, ld, scale, s + g);
        }
}

/* The weights of a row for a block, times sign and the factors of their values, where that is positive, as bytes, and behind them
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
    uint8_t bytes[RAPT_BLOCK];
    for (int i = 0; i < RAPT_BLOCK / RAPT_VL; i++) {
        int32_t n[RAPT_VL];
        v_store(n, v_as_float(nearest_int(v_mul(scaled[i], factor), v_set1(DOT_MOST + 1))));
        for (int j = 0; j < RAPT_VL; j++) bytes[i * RAPT_VL + j] = (uint8_t)n[j];
    }
    memcpy(to, bytes, sizeof bytes);
    to[RAPT_BLOCK / RAPT_DOT] = sign * (largest / DOT_MOST) + sum_of(wrong);
}

/* Where the weights of a block were, those of positive products come first, and then those of negative ones. */
enum { NEGATIVE_PART = RAPT_BLOCK / 2 };

static void quantise_row_weights(float *weights, const float *value_scales) {
    vf all[RAPT_BLOCK / RAPT_VL];
    bool negative = false;
    for (int n = 0; n < RAPT_BLOCK && value_scales; n++) negative |= value_scales[n] < 0.0f;
    for (int i = 0; i < RAPT_BLOCK / RAPT_VL; i++) all[i] = v_load(weights + i * RAPT_VL);
    quantise_row_part(all, value_scales, 1.0f, weights);
    if (negative) quantise_row_part(all, value_scales, -1.0f, weights + NEGATIVE_PART);
    else weights[NEGATIVE_PART + RAPT_BLOCK / RAPT_DOT] = 0.0f;
}

/* o = alpha o + P V for nr rows and STEP channels, of which so many exist; values: the rows of quads of keys. */
static RAPT_INLINE void add_dots(const int nr, const char *const *values, size_t offset, int quads, int channels, const char *p,
                                 size_t ldp, const float *scale, const float *alpha, float *o, size_t ldo) {
    vi acc[DOT_ROWS * RAPT_DOT];
    RAPT_UNROLL for (int a = 0; a < nr * RAPT_DOT; a++) acc[a] = i_set1(0);
    for (int n = 0; n < quads; n++) {
        const char *rows[RAPT_DOT];
        char part[RAPT_DOT][STEP];
        for (int e = 0; e < RAPT_DOT; e++) {
            rows[e] = values[n * RAPT_DOT + e] + offset;
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

/* The same for all channels of a block. values: of keys from a multiple of RAPT_DOT on; p: the rows' weights for them, as
 * quantise_row_weights leaves them, ldp bytes apart. */
static RAPT_NOINLINE void add_rows_dots(int rows, const char *const *values, int quads, int channels, const char *p, size_t ldp,
                                        const float *scale, const float *alpha, float *o, size_t ldo) {
    for (; rows > 0; rows -= DOT_ROWS, p += DOT_ROWS * ldp, scale += DOT_ROWS, alpha += DOT_ROWS, o += DOT_ROWS * ldo)
        for (int c = 0; c < channels; c += STEP) {
            int some = smaller(STEP, channels - c);
            if (rows >= 4) add_dots(4, values, (size_t)c, quads, some, p, ldp, scale, alpha, o + c, ldo);
            else if (rows == 3) add_dots(3, values, (size_t)c, quads, some, p, ldp, scale, alpha, o + c, ldo);
            else if (rows == 2) add_dots(2, values, (size_t)c, quads, some, p, ldp, scale, alpha, o + c, ldo);
            else add_dots(1, values, (size_t)c, quads, some, p, ldp, scale, alpha, o + c, ldo);
        }
}
