/* SPDX-License-Identifier: Apache-2.0 */
/* From scores to logits, before the softmax: softcap, ALiBi, bias, the caller's function; scales of keys and values; and the keys
 * that a row attends to. Included by attend.h. */

/* Returns the end of the task's keys: of those that exist, and that no mask or bias excludes by having no column for them. */
static inline int64_t key_end(const rapt_task *t) {
    const rapt_problem *p = t->problem;
    int64_t end = p->kv_first + t->ring_size;
    if (t->kv_length < end) end = t->kv_length;
    if (p->mask_rest == RAPT_REST_MASKED && p->mask_keys - t->key_position < end) end = p->mask_keys - t->key_position;
    if (p->bias_rest == RAPT_REST_MASKED && p->bias_keys - t->key_position < end) end = p->bias_keys - t->key_position;
    return end;
}

/* Returns where a query stands, as the number of a key. */
static inline int64_t query_number(const rapt_task *t, int64_t token) { return t->query_offset + token; }

/* Finds the keys [*first, *end) that a token may attend to by its position; 0, 0 if there are none. */
static void row_range(const rapt_task *t, int64_t token, int64_t *first, int64_t *end) {
    const rapt_problem *p = t->problem;
    rapt_row_range(p, query_number(t, token), t->key_position, t->kv_length, t->prefix, first, end);
    if (*first < p->kv_first) *first = p->kv_first;
    if (*end > key_end(t)) *end = key_end(t);
    if (*first >= *end) *first = *end = 0;
}

/* True if a mask or a bias may exclude keys from the range that a row attends to. */
static inline bool has_masks(const rapt_problem *p) { return p->mask.type || p->block_mask.type || p->bias.type; }

/* Returns a number whose bit i is set if byte i of n, at most 64, is not 0. */
static uint64_t bits_of_bytes(const char *from, int n) {
    char bytes[RAPT_BLOCK] = {0};
    uint64_t bits = 0;
    if (n < RAPT_BLOCK) from = memcpy(bytes, from, (size_t)n);
    for (int i = 0; i < RAPT_BLOCK; i += 8) {
        uint64_t x;
        memcpy(&x, from + i, sizeof x);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        x = __builtin_bswap64(x);
#endif
        const uint64_t low = UINT64_C(0x7f7f7f7f7f7f7f7f);
        x = (((x & low) + low) | x) & ~low;                           /* sets the high bit of each byte that is not 0 */
        bits |= ((x >> 7) * UINT64_C(0x0102040810204080) >> 56) << i; /* gathers these 8 bits */
    }
    return bits;
}

/* Returns n bits of a row, at most 64, from bit number `first` on. */
static uint64_t bits_of_bits(const char *row, int64_t first, int n) {
    unsigned char bytes[9] = {0};
    uint64_t bits = 0;
    int skipped = (int)(first % 8);
    memcpy(bytes, row + first / 8, (size_t)(skipped + n + 7) / 8);
    for (int i = 0; i < 8; i++) bits |= (uint64_t)bytes[i] << 8 * i;
    return skipped ? bits >> skipped | (uint64_t)bytes[8] << (64 - skipped) : bits;
}

/* True if any of n elements of a bias is not -inf. */
static RAPT_NOINLINE bool any_above_minus_infinity(rapt_type type, const char *from, int n) {
    uint32_t any = 0, x;
    uint16_t half, infinity = type == RAPT_F16 ? 0xfc00 : 0xff80;
    if (type == RAPT_F32)
        for (int i = 0; i < n; i++) memcpy(&x, from + (size_t)i * sizeof x, sizeof x), any |= x ^ 0xff800000u;
    else
        for (int i = 0; i < n; i++) memcpy(&half, from + (size_t)i * sizeof half, sizeof half), any |= half ^ infinity;
    return any != 0;
}

/* Returns a query's row of the block mask, or null if there is none. */
static inline const char *block_mask_row(const rapt_task *t, row_cursor at) {
    return !t->block_mask ? NULL
                          : t->block_mask + row_offset(&t->problem->block_mask,
                                                       (row_cursor){at.token / t->problem->block_mask_queries, at.head});
}

/* Returns the bytes of an element of the bias. */
static inline size_t bias_element(const rapt_problem *p) { return p->bias.type == RAPT_F32 ? sizeof(float) : sizeof(uint16_t); }

/* Returns the end of those keys of a block that have a column in a row of `columns` columns, counted from the block's first key,
 * which has column number `column`. At most `to`. */
static inline int columns_end(int64_t columns, int64_t column, int to) {
    int64_t left = columns - column;
    return left >= to ? to : rapt_max(0, left);
}

/* Returns the keys of a block that the row's mask admits: bit n, from <= n < to, is that of key number + n. Other bits may have
 * any value. */
static uint64_t unmasked_keys(const rapt_task *t, row_cursor at, int64_t number, int from, int to) {
    const rapt_problem *p = t->problem;
    const char *row = t->mask + row_offset(&p->mask, at);
    int64_t column = number + t->key_position;
    if (p->mask_one_key) return (p->mask.type == RAPT_BOOL ? *row != 0 : *row & 1) ? ~UINT64_C(0) : 0;
    int end = columns_end(p->mask_keys, column, to);
    uint64_t bits = end < to ? ~UINT64_C(0) << end : 0; /* keys without a column are admitted; key_end excludes them if not */
    if (from >= end) return bits;
    if (p->mask.type == RAPT_BOOL) return bits | bits_of_bytes(row + column + from, end - from) << from;
    return bits | (bits_of_bits(row, column + from, end - from) & ~UINT64_C(0) >> (RAPT_BLOCK - (end - from))) << from;
}

/* True if the row's bias is more than -inf for any of the keys [from, to) of the block whose first key is `number`. */
static bool bias_leaves_any(const rapt_task *t, row_cursor at, int64_t number, int from, int to) {
    const rapt_problem *p = t->problem;
    const char *row = t->bias + row_offset(&p->bias, at);
    int64_t column = number + t->key_position;
    if (p->bias_one_key) return any_above_minus_infinity(p->bias.type, row, 1);
    int end = columns_end(p->bias_keys, column, to);
    return end < to || any_above_minus_infinity(p->bias.type, row + (size_t)(column + from) * bias_element(p), end - from);
}

/* Returns the keys of a block that the row attends to by its range [first, end), block mask and mask: bit n is that of key
 * number + n. Returns 0 if its bias is -inf for all of them; otherwise keys with a bias of -inf keep their bit. block_mask: the
 * row's row of the block mask, or null. */
static uint64_t attended_keys(const rapt_task *t, row_cursor at, const char *block_mask, int64_t first, int64_t end,
                              int64_t number) {
    const rapt_problem *p = t->problem;
    int from = rapt_max(0, rapt_min(RAPT_BLOCK, first - number)), to = rapt_min(RAPT_BLOCK, rapt_max(0, end - number));
    if (from >= to) return 0;
    if (block_mask && !block_mask[number / p->block_mask_keys]) return 0;
    uint64_t bits = (~UINT64_C(0) >> (RAPT_BLOCK - (to - from))) << from;
    if (p->mask.type) bits &= unmasked_keys(t, at, number, from, to);
    return bits && p->bias.type && !bias_leaves_any(t, at, number, from, to) ? 0 : bits;
}

/* Returns the address of a row's bias for key number + first. Sets *count to how many elements from there on belong to keys
 * [first, end) of the block: 1 if one holds for all keys. */
static inline const char *bias_at(const rapt_task *t, row_cursor at, int64_t number, int first, int end, int *count) {
    const rapt_problem *p = t->problem;
    const char *row = t->bias + row_offset(&p->bias, at);
    int64_t column = number + t->key_position;
    *count = p->bias_one_key ? 1 : rapt_max(0, columns_end(p->bias_keys, column, end) - first);
    return *count == 0 || p->bias_one_key ? row : row + (size_t)(column + first) * bias_element(p);
}

/* Returns a logit, or -inf where the bias is -inf: what masks a key, whatever the slope, and whatever the caller's function does.
 */
static RAPT_INLINE vf keep_masked(vf logit, vf bias) { return v_select(v_lt(bias, v_set1(-FLT_MAX)), v_set1(-INFINITY), logit); }

/* Returns the logit of a score, which the caller's function may still change. distance: from query to key, in positions. */
static RAPT_INLINE vf logit_of(const rapt_problem *p, vf score, vf slope, vf distance, vf bias) {
    vf x = v_mul(score, v_set1(p->score_natural));
    if (p->softcap > 0.0f) x = v_mul(v_set1(p->softcap), v_tanh(v_mul(x, v_set1(p->inverse_softcap))));
    if (p->alibi == RAPT_ALIBI_DISTANCE) x = v_fma(v_sub(v_set1(0.0f), slope), distance, x);
    if (p->bias.type) x = keep_masked(p->alibi == RAPT_ALIBI_BIAS ? v_fma(slope, bias, x) : v_add(x, bias), bias);
    return x;
}

/* Returns the distance of a query from key n of a block. query: its position, counted from the block's first key. */
static RAPT_INLINE vf distance_of(vf query, vf n) {
    vf d = v_sub(query, n);
    return v_max(d, v_sub(n, query));
}

/* Returns the float at any address. */
static float float_at(const char *from) {
    float x;
    memcpy(&x, from, sizeof x);
    return x;
}

/* Calls the caller's function of logits, between end_task and begin_task, since it may use a matrix unit itself. */
static void call_logits_body(const rapt_task *t, const rapt_logits *logits) {
    end_task();
    t->problem->logits_body(t->logits_arg, logits);
    begin_task(false);
}

/* Returns one element of a tensor as f32. */
static float element_at(rapt_type type, const char *from) {
    if (type == RAPT_F32) return float_at(from);
    float x[RAPT_VL] = {0};
    stage_element_rows(type, x, 0, &from, 1, 0, 1);
    return x[0];
}

/* Returns the ALiBi slope of a head, or 0 without ALiBi. */
static float slope_of(const rapt_task *t, int64_t head) {
    const rapt_layout *slopes = &t->problem->slopes;
    return t->problem->alibi ? element_at(slopes->type, t->slopes + head * slopes->head_stride) : 0.0f;
}

/* Writes the row's scores for keys [first, end) of a block to the output of scores. The score of key n is scores[n * stride]. */
static void store_scores(const rapt_task *t, row_cursor at, int64_t number, const float *scores, size_t stride, int first,
                         int end) {
    const rapt_problem *p = t->problem;
    char *to = t->scores + row_offset(&p->scores, at) + (size_t)number * sizeof(float);
    for (int n = first; n < end; n++) {
        float score = scores[(size_t)n * stride] * p->scores_factor;
        memcpy(to + (size_t)n * sizeof score, &score, sizeof score);
    }
}

/* Loads the scales of keys or values [from, to) of a block, which have one each (scaled_by_key), to the same places of to_scales.
 */
static void load_key_scales(const rapt_task *t, float *to_scales, const char *scales, const rapt_scales *layout, int64_t number,
                            int from, int to) {
    for (int n = from; n < to;) {
        rapt_keys run = rapt_keys_at(t, number + n, to - n);
        const char *at = scales + run.page * layout->batch_stride + run.token * layout->token_stride;
        if (run.keys == RAPT_BLOCK && layout->token_stride == sizeof(float)) memcpy(to_scales, at, RAPT_BLOCK * sizeof(float));
        else
            for (int i = 0; i < run.keys; i++) to_scales[n + i] = float_at(at + i * layout->token_stride);
        n += run.keys;
    }
}

/* True if each key or value has a scale of its own. */
static inline bool scaled_by_key(const rapt_scales *layout) { return layout->present && layout->token_stride; }

/* True if there are scales that are the same for all keys or values, one for each channel or one for all. */
static inline bool scaled_by_channel(const rapt_scales *layout) { return layout->present && !layout->token_stride; }

/* Loads the scales of channels, padded with 0 to whole vectors. */
static void load_channel_scales(float *to, const char *scales, const rapt_scales *layout, int channels) {
    memset(to, 0, padded((size_t)channels) * sizeof *to);
    for (int c = 0; c < channels; c++) to[c] = float_at(scales + c * layout->channel_stride);
}
