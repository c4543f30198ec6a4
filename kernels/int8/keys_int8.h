/* SPDX-License-Identifier: Apache-2.0 */
/* Few rows in integer arithmetic. A lane has four bytes. In scores with K of int8 these are four channels of one key, and the
 * lanes of a vector hold successive channels of that key; with K that has groups they are four channels of the lane's own key. In
 * P V they are the values of four keys in the lane's channel. The sums are those of queries_int8.h in another order, so the bits
 * are the same. Included by keys_in_lanes.h with RAPT_FEW_DOTS. */

enum { VECTOR_BYTES = RAPT_VL * RAPT_DOT }; /* a channel has one byte */

/* The rows and keys of a register tile: i_sum_within takes the sums of 4 keys, and 16 accumulators, 4 vectors of keys and one of
 * a row fit into 32 registers. */
enum { DOT_ROWS = 4, DOT_KEYS = 4 };

/* What follows the bytes of a quantised row of Q. i_dot wants one unsigned operand, here K, so DOT_BIAS is added to the bytes of
 * K. That adds the same number to all sums of a row, whatever the key. */
typedef struct query_trailer {
    float scale;        /* of the bytes; NaN if the row had a NaN or an infinity */
    int32_t correction; /* added to each sum of int8 keys, to make up for DOT_BIAS */
} query_trailer;

/* Returns the floats of the bytes of a quantised row of Q, which fill whole vectors. */
static inline int query_byte_floats(int channels) { return (channels + VECTOR_BYTES - 1) / VECTOR_BYTES * RAPT_VL; }

/* Quantises a row of Q in place: its bytes, padded with 0 to query_byte_floats, then a query_trailer, and then, if K has groups,
 * for each group the correction of its sums, which makes up for DOT_BIAS. */
static void quantise_query(float *q, int channels, int groups) {
    vf factor;
    query_trailer trailer = {scale_of_query(q, channels, &factor), 0};
    int8_t bytes[RAPT_MAX_HEAD_DIM + VECTOR_BYTES] = {0};
    for (int c = 0; c < channels; c += RAPT_VL) {
        int32_t n[RAPT_VL];
        v_store(n, v_as_float(nearest_int(v_mul(v_load(q + c), factor), v_set1(128.0f))));
        for (int j = 0; j < RAPT_VL && c + j < channels; j++) bytes[c + j] = (int8_t)n[j];
    }
    for (int c = 0; c < channels; c++) trailer.correction -= DOT_BIAS * bytes[c];
    memcpy(q, bytes, (size_t)query_byte_floats(channels) * sizeof *q);
    memcpy(q + query_byte_floats(channels), &trailer, sizeof trailer);
    for (int g = 0; g < groups && groups * RAPT_GROUP == channels; g++) {
        int32_t correction = 0;
        for (int c = g * RAPT_GROUP; c < (g + 1) * RAPT_GROUP; c++) correction -= DOT_BIAS * bytes[c];
        memcpy(q + query_byte_floats(channels) + sizeof trailer / sizeof *q + g, &correction, sizeof correction);
    }
}

/* Adds the products of VECTOR_BYTES channels of DOT_KEYS keys and nr rows of Q to acc. If not all of them are `whole`, the keys
 * have only the first `bytes` ones, and Q has 0 for the others. */
static RAPT_INLINE void add_key_dots(const int nr, const bool whole, const char *const *keys, size_t offset, size_t bytes,
                                     const float *q, size_t ldq, vi acc[][DOT_KEYS]) {
    vi k[DOT_KEYS];
    UNROLLED(j, DOT_KEYS) {
        const char *from = keys[j] + offset;
        k[j] = i_xor(v_as_int(whole ? v_load(from) : v_load_part(from, bytes)), i_set1((int32_t)0x80808080));
        prefetch(keys[j + RAPT_BYTE_KEYS_AHEAD / 2], offset); /* requested twice, since the CPU may drop a prefetch */
        prefetch(keys[j + RAPT_BYTE_KEYS_AHEAD], offset);
    }
    UNROLLED(r, nr) {
        vi row = v_as_int(v_load(q + r * ldq));
        UNROLLED(j, DOT_KEYS) acc[r][j] = i_dot(acc[r][j], k[j], row);
    }
}

/* Scores RAPT_VL keys for nr rows, DOT_KEYS keys at a time. */
static RAPT_INLINE void score_dots(const int nr, const char *const *keys, size_t offset, int channels, const float *q, size_t ldq,
                                   float *s) {
    vi sums[DOT_ROWS][RAPT_VL / DOT_KEYS];
    int whole = channels - channels % VECTOR_BYTES, rest = channels - whole;
    for (int g = 0; g < RAPT_VL / DOT_KEYS; g++, keys += DOT_KEYS) {
        vi acc[DOT_ROWS][DOT_KEYS];
        UNROLLED(r, nr)
            UNROLLED(j, DOT_KEYS) acc[r][j] = i_set1(0);
        for (int i = 0; i < whole; i += VECTOR_BYTES)
            add_key_dots(nr, true, keys, offset + (size_t)i, VECTOR_BYTES, q + i / RAPT_DOT, ldq, acc);
        if (rest) add_key_dots(nr, false, keys, offset + (size_t)whole, (size_t)rest, q + whole / RAPT_DOT, ldq, acc);
        UNROLLED(r, nr) sums[r][g] = i_sum_within(acc[r]);
    }
    UNROLLED(r, nr) {
        query_trailer trailer;
        memcpy(&trailer, q + r * ldq + query_byte_floats(channels), sizeof trailer);
        vi sum = i_add(i_sum_across(sums[r]), i_set1(trailer.correction));
        v_store(s + (size_t)r * RAPT_CHUNK, v_fma(v_from_int(sum), v_set1(trailer.scale), v_set1(0.0f)));
    }
}

/* Scores n keys of int8, a multiple of RAPT_VL, of one head for any number of rows, whose scores lie RAPT_CHUNK floats apart. */
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

/* Quantises the products of one row's weights of a block with value_scales, times sign, to unsigned bytes; those below 0 become
 * 0. Without value_scales, the weights themselves. After the RAPT_BLOCK bytes comes a float, their scale: sign * largest / 255,
 * or NaN if a product with value_scales is not finite. (A weight of NaN needs no mark, for the sum of weights is NaN then.) */
static void quantise_weights_of_sign(const vf *weights, const float *value_scales, float sign, float *to) {
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
    to[RAPT_BLOCK / RAPT_DOT] = sign * (largest / DOT_MOST) + nan_of_lanes(wrong);
}

/* True if any scale of a block is negative. */
static bool any_negative(const float *scales) {
    vf zero = v_set1(0.0f), any = zero;
    for (int i = 0; i < RAPT_BLOCK; i += RAPT_VL) any = v_select(v_lt(v_load(scales + i), zero), v_set1(1.0f), any);
    return h_max(any) > 0.0f;
}

/* Where the bytes of negative products begin, in floats from where those of positive ones begin. */
enum { NEGATIVE_AT = RAPT_BLOCK / 2 };

/* Quantises one row's weights of a block in place: the positive products, and at NEGATIVE_AT the negative ones if `negative`,
 * else only their scale, which is then 0. */
static void quantise_row_weights(float *weights, const float *value_scales, bool negative) {
    vf loaded[RAPT_BLOCK / RAPT_VL];
    for (int i = 0; i < RAPT_BLOCK / RAPT_VL; i++) loaded[i] = v_load(weights + i * RAPT_VL);
    quantise_weights_of_sign(loaded, value_scales, 1.0f, weights);
    if (negative) quantise_weights_of_sign(loaded, value_scales, -1.0f, weights + NEGATIVE_AT);
    else weights[NEGATIVE_AT + RAPT_BLOCK / RAPT_DOT] = 0.0f;
}

/* Computes o = alpha o + P V for nr rows and VECTOR_BYTES channels; only the first `channels` of these exist. values: the
 * addresses of the keys' rows, RAPT_DOT for each of the quads, and after them those that are prefetched; the channels begin
 * offset bytes after each address. p: the quantised weights (quantise_row_weights), with rows ldp bytes apart. scale: the scale
 * of each row's bytes. */
static RAPT_INLINE void int8_value_tile(const int nr, const char *const *values, size_t offset, int quads, int channels,
                                        const char *p, size_t ldp, const float *scale, const float *alpha, float *o, size_t ldo) {
    vi acc[DOT_ROWS * RAPT_DOT];
    UNROLLED(a, nr * RAPT_DOT) acc[a] = i_set1(0);
    for (int n = 0; n < quads; n++) {
        vf rows[RAPT_DOT];
        UNROLLED(e, RAPT_DOT) {
            const char *const *at = values + n * RAPT_DOT + e;
            rows[e] = channels == VECTOR_BYTES ? v_load(*at + offset) : v_load_part(*at + offset, (size_t)channels);
            prefetch(at[RAPT_BLOCK / 2], offset); /* requested twice, since the CPU may drop a prefetch */
            prefetch(at[RAPT_BLOCK], offset);
        }
        vi v[RAPT_DOT];
        i_quads(v, rows);
        UNROLLED(r, nr) {
            vi weights = v_as_int(v_broadcast(p + r * ldp + n * RAPT_DOT));
            UNROLLED(i, RAPT_DOT) acc[r * RAPT_DOT + i] = i_dot(acc[r * RAPT_DOT + i], weights, v[i]);
        }
    }
    UNROLLED(r, nr)
        UNROLLED(i, RAPT_DOT) {
            float *to = o + r * ldo + i * RAPT_VL;
            if (i * RAPT_VL >= channels) break;
            v_store(to, v_fma(v_from_int(acc[r * RAPT_DOT + i]), v_set1(scale[r]), v_mul(v_load(to), v_set1(alpha[r]))));
        }
}

/* Computes what int8_value_tile does, for any number of rows and channels. values: the addresses of the keys' rows, from a key
 * whose number is a multiple of RAPT_DOT; V begins offset bytes after each address. */
static RAPT_NOINLINE void int8_value_product(int rows, const char *const *values, size_t offset, int quads, int channels,
                                             const char *p, size_t ldp, const float *scale, const float *alpha, float *o,
                                             size_t ldo) {
    for (; rows > 0; rows -= DOT_ROWS, p += DOT_ROWS * ldp, scale += DOT_ROWS, alpha += DOT_ROWS, o += DOT_ROWS * ldo)
        for (int c = 0; c < channels; c += VECTOR_BYTES) {
            int some = rapt_min(VECTOR_BYTES, channels - c);
            size_t at = offset + (size_t)c;
            if (rows >= 4) int8_value_tile(4, values, at, quads, some, p, ldp, scale, alpha, o + c, ldo);
            else if (rows == 3) int8_value_tile(3, values, at, quads, some, p, ldp, scale, alpha, o + c, ldo);
            else if (rows == 2) int8_value_tile(2, values, at, quads, some, p, ldp, scale, alpha, o + c, ldo);
            else int8_value_tile(1, values, at, quads, some, p, ldp, scale, alpha, o + c, ldo);
        }
}

/* ---- Groups -------------------------------------------------------------------------------------------------------------- */

/* Returns the bytes of an unpacked row: K and V with groups are unpacked to a byte for each channel, made unsigned by adding
 * DOT_BIAS, in whole vectors. */
static inline int group_row_bytes(int channels) { return (channels + VECTOR_BYTES - 1) / VECTOR_BYTES * VECTOR_BYTES; }

/* Unpacks rows of one type, as unpack_rows does. */
static RAPT_INLINE void unpack_rows_as(void unpack(const char *, int, void *), size_t bytes, const char *const *rows,
                                       size_t offset, int n, int ahead, int channels, uint8_t *to, uint16_t *scales, int ld) {
    const int row_bytes = group_row_bytes(channels), groups = channels / RAPT_GROUP;
    for (int j = 0; j < n; j++, to += row_bytes) {
        const char *group = rows[j] + offset;
        for (size_t at = 0; at < (size_t)groups * bytes; at += 64) prefetch(rows[j + ahead], offset + at);
        for (int g = 0; g < groups; g++, group += bytes) {
            unpack(group, DOT_BIAS, to + g * RAPT_GROUP);
            memcpy(&scales[g * ld + j], group, sizeof *scales);
        }
    }
}
#define RAPT_TYPE(name, suffix, bytes)                                                                                           \
    static RAPT_NOINLINE void unpack_rows_##suffix(const char *const *rows, size_t offset, int n, int ahead, int channels,       \
                                                   uint8_t *to, uint16_t *scales, int ld) {                                      \
        unpack_rows_as(unpack_##suffix, bytes, rows, offset, n, ahead, channels, to, scales, ld);                                \
    }
RAPT_INTEGER_GROUPS(RAPT_TYPE)
#undef RAPT_TYPE

/* Unpacks n rows, which begin offset bytes after their addresses, and stores the scales of their groups, as f16 [groups][ld].
 * Prefetches the rows that lie `ahead` rows further on. */
static void unpack_rows(rapt_type type, const char *const *rows, size_t offset, int n, int ahead, int channels, uint8_t *to,
                        uint16_t *scales, int ld) {
    switch (type) {
#define RAPT_TYPE(name, suffix, bytes)                                                                                           \
    case name:                                                                                                                   \
        unpack_rows_##suffix(rows, offset, n, ahead, channels, to, scales, ld);                                                  \
        break;
        RAPT_INTEGER_GROUPS(RAPT_TYPE)
#undef RAPT_TYPE
    default:
        break;
    }
}

/* RAPT_VL unpacked keys, of K with groups. */
typedef struct group_keys {
    float *lanes;  /* [group_row_bytes / RAPT_DOT][RAPT_VL] */
    float *scales; /* [groups][RAPT_VL] */
    uint8_t *rows; /* [RAPT_VL][group_row_bytes], before they are transposed to lanes */
} group_keys;

/* Lays out group_keys in memory, and returns the floats that they take. With null memory it only counts them. */
static size_t lay_out_group_keys(int channels, float *memory, group_keys *k) {
    size_t used = 0, lanes = (size_t)(group_row_bytes(channels) / RAPT_DOT) * RAPT_VL;
    *k = (group_keys){.lanes = carve(memory, &used, lanes),
                      .scales = carve(memory, &used, (size_t)(channels / RAPT_GROUP) * RAPT_VL)};
    k->rows = (uint8_t *)carve(memory, &used, lanes);
    return used;
}

/* Unpacks and transposes RAPT_VL keys. */
static void stage_group_keys(rapt_type type, const group_keys *k, const char *const *keys, size_t offset, int channels) {
    const int ld = group_row_bytes(channels), groups = channels / RAPT_GROUP;
    uint16_t scales[RAPT_MAX_HEAD_DIM / RAPT_GROUP * RAPT_VL];
    unpack_rows(type, keys, offset, RAPT_VL, RAPT_BYTE_KEYS_AHEAD, channels, k->rows, scales, RAPT_VL);
    for (int c = 0; c < channels; c += VECTOR_BYTES) {
        vf square[RAPT_VL];
        UNROLLED(j, RAPT_VL) square[j] = v_load(k->rows + j * ld + c);
        v_transpose(square);
        UNROLLED(i, RAPT_VL) v_store(k->lanes + (size_t)(c / RAPT_DOT + i) * RAPT_VL, square[i]);
    }
    for (int g = 0; g < groups; g++) v_store(k->scales + g * RAPT_VL, v_load_f16(scales + g * RAPT_VL));
}

/* Scores RAPT_VL staged keys for nr rows. */
static RAPT_INLINE void score_group_dots(const int nr, const group_keys *k, int channels, const float *q, size_t ldq, float *s) {
    const int groups = channels / RAPT_GROUP, depth = RAPT_GROUP / RAPT_DOT;
    vf t[DOT_ROWS];
    UNROLLED(r, nr) t[r] = v_set1(0.0f);
    for (int g = 0; g < groups; g++) {
        vi acc[DOT_ROWS];
        UNROLLED(r, nr)
            acc[r] = v_as_int(v_broadcast(q + r * ldq + query_byte_floats(channels) + sizeof(query_trailer) / sizeof *q + g));
        UNROLLED(i, depth) {
            vi lanes = v_as_int(v_load(k->lanes + (size_t)(g * depth + i) * RAPT_VL));
            UNROLLED(r, nr) acc[r] = i_dot(acc[r], lanes, v_as_int(v_broadcast(q + r * ldq + g * depth + i)));
        }
        vf scales = v_load(k->scales + g * RAPT_VL);
        UNROLLED(r, nr) t[r] = v_fma(v_from_int(acc[r]), scales, t[r]);
    }
    UNROLLED(r, nr)
        v_store(s + (size_t)r * RAPT_CHUNK, v_fma(t[r], v_broadcast(q + r * ldq + query_byte_floats(channels)), v_set1(0.0f)));
}

/* Scores n keys of K with groups as score_rows_dots does those of int8. memory: room for what lay_out_group_keys lays out. */
static RAPT_NOINLINE void score_rows_group_dots(rapt_type type, int rows, const char *const *keys, size_t offset, int n,
                                                int channels, const float *q, size_t ldq, float *s, float *memory) {
    group_keys k;
    lay_out_group_keys(channels, memory, &k);
    for (int g = 0; g < n; g += RAPT_VL) {
        stage_group_keys(type, &k, keys + g, offset, channels);
        const float *some = q;
        float *to = s + g;
        for (int left = rows; left > 0; left -= DOT_ROWS, some += DOT_ROWS * ldq, to += DOT_ROWS * RAPT_CHUNK) {
            if (left >= 4) score_group_dots(4, &k, channels, some, ldq, to);
            else if (left == 3) score_group_dots(3, &k, channels, some, ldq, to);
            else if (left == 2) score_group_dots(2, &k, channels, some, ldq, to);
            else score_group_dots(1, &k, channels, some, ldq, to);
        }
    }
}

/* A row's quantised weights of a block for a group of channels. */
typedef struct group_weights {
    int8_t bytes[RAPT_BLOCK];
    float scale;        /* of the bytes */
    int32_t correction; /* what sums start from, to make up for the bias of V's bytes */
} group_weights;

/* The unpacked values of a block, of V with groups, and the weights that multiply them. */
typedef struct group_values {
    uint8_t *rows;          /* [RAPT_BLOCK][group_row_bytes] */
    float *factors;         /* [groups][RAPT_BLOCK]: the scales of groups, times those of tokens */
    group_weights *weights; /* [rows][groups] */
} group_values;

/* Lays out group_values in memory, and returns the floats that they take. With null memory it only counts them. */
static size_t lay_out_group_values(int channels, int rows, float *memory, group_values *v) {
    size_t used = 0, groups = (size_t)(channels / RAPT_GROUP);
    v->rows = (uint8_t *)carve(memory, &used, (size_t)(RAPT_BLOCK * group_row_bytes(channels)) / sizeof(float));
    v->factors = carve(memory, &used, groups * RAPT_BLOCK);
    v->weights =
        (group_weights *)(void *)carve(memory, &used, padded((size_t)rows * groups * sizeof(group_weights) / sizeof(float)));
    return used;
}

/* Quantises one row's weights of a block, times the factors of a group of channels, to signed bytes. */
static void quantise_group_weights(const float *weights, const float *factors, group_weights *to) {
    vf zero = v_set1(0.0f), most = zero, wrong = zero, scaled[RAPT_BLOCK / RAPT_VL];
    for (int i = 0; i < RAPT_BLOCK / RAPT_VL; i++) {
        vf weight = v_load(weights + i * RAPT_VL);
        scaled[i] = v_select(v_lt(zero, weight), v_mul(weight, v_load(factors + i * RAPT_VL)), weight);
        wrong = v_add(wrong, v_sub(scaled[i], scaled[i])); /* 0, or NaN */
        most = v_max(v_as_float(i_and(v_as_int(scaled[i]), i_set1(INT32_MAX))), most);
    }
    float largest = h_max(most);
    vf factor = v_div(v_set1(DOT_MOST_OF_GROUP), v_set1(largest));
    for (int i = 0; i < RAPT_BLOCK / RAPT_VL; i++) i_store_u8(to->bytes + i * RAPT_VL, rounded(v_mul(scaled[i], factor)));
    to->scale = largest / DOT_MOST_OF_GROUP + nan_of_lanes(wrong);
    to->correction = 0;
    for (int n = 0; n < RAPT_BLOCK; n++) to->correction -= DOT_BIAS * to->bytes[n];
}

/* Computes o = alpha o + P V for nr rows and ng groups of channels, 1 or 2. Rows of values lie ld bytes apart, rows of weights
 * ldw structs. */
static RAPT_INLINE void group_value_tile(const int nr, const int ng, const uint8_t *values, size_t ld, int quads,
                                         const group_weights *weights, size_t ldw, const float *alpha, float *o, size_t ldo) {
    enum { HALVES = RAPT_GROUP / RAPT_VL }; /* vectors of a group */
    vi acc[DOT_ROWS * RAPT_DOT];
    UNROLLED(r, nr)
        UNROLLED(i, ng * HALVES) acc[r * RAPT_DOT + i] = i_set1(weights[r * ldw + i / HALVES].correction);
    for (int n = 0; n < quads; n++) {
        vf rows[RAPT_DOT];
        UNROLLED(e, RAPT_DOT) rows[e] = v_load(values + (size_t)(n * RAPT_DOT + e) * ld);
        vi v[RAPT_DOT];
        i_quads(v, rows);
        UNROLLED(r, nr)
            UNROLLED(g, ng) {
                vi some = v_as_int(v_broadcast(weights[r * ldw + g].bytes + n * RAPT_DOT));
                RAPT_UNROLL for (int i = g * HALVES; i < (g + 1) * HALVES; i++) acc[r * RAPT_DOT + i] =
                    i_dot(acc[r * RAPT_DOT + i], v[i], some);
            }
    }
    UNROLLED(r, nr)
        UNROLLED(i, ng * HALVES) {
            float *to = o + r * ldo + i * RAPT_VL;
            v_store(to, v_fma(v_from_int(acc[r * RAPT_DOT + i]), v_set1(weights[r * ldw + i / HALVES].scale),
                              v_mul(v_load(to), v_set1(alpha[r]))));
        }
}

/* Computes what group_value_tile does, for any number of rows. */
static RAPT_INLINE void group_value_panel(const int ng, int rows, const uint8_t *values, size_t ld, int quads,
                                          const group_weights *weights, size_t ldw, const float *alpha, float *o, size_t ldo) {
    for (; rows > 0; rows -= DOT_ROWS, weights += DOT_ROWS * ldw, alpha += DOT_ROWS, o += DOT_ROWS * ldo) {
        if (rows >= 4) group_value_tile(4, ng, values, ld, quads, weights, ldw, alpha, o, ldo);
        else if (rows == 3) group_value_tile(3, ng, values, ld, quads, weights, ldw, alpha, o, ldo);
        else if (rows == 2) group_value_tile(2, ng, values, ld, quads, weights, ldw, alpha, o, ldo);
        else group_value_tile(1, ng, values, ld, quads, weights, ldw, alpha, o, ldo);
    }
}

/* Computes o = alpha o + P V for any number of rows and all channels of a whole block: keys that a row does not attend to have
 * weight 0. */
static RAPT_NOINLINE void group_value_product(int rows, const group_values *v, int channels, const float *alpha, float *o,
                                              size_t ldo) {
    const int quads = RAPT_BLOCK / RAPT_DOT;
    const size_t ld = (size_t)group_row_bytes(channels), groups = (size_t)(channels / RAPT_GROUP);
    for (size_t g = 0; g < groups; g += 2) {
        const uint8_t *values = v->rows + g * RAPT_GROUP;
        if (groups - g >= 2)
            group_value_panel(2, rows, values, ld, quads, v->weights + g, groups, alpha, o + g * RAPT_GROUP, ldo);
        else group_value_panel(1, rows, values, ld, quads, v->weights + g, groups, alpha, o + g * RAPT_GROUP, ldo);
    }
}
