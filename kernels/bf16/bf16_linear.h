/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers in bf16 arithmetic. Each output is one sum over all channels, step by step; weights are staged by parts, as in
 * exact arithmetic. Many tokens lie in lanes and are packed as queries are, and weights are staged as keys are, unless a kernel
 * replaces that. For few tokens, rows of weights lie in lanes, as keys do. Included by linear.h. */

/* The rows of weights that are multiplied by a tile of tokens at a time: their sums, and those of the even channels of a step,
 * then stay in the L1 cache (18 KiB for a tile of 48 tokens). */
enum { BF16_PRODUCT_ROWS = 48 };

/* ---- Few tokens: outputs in lanes ---------------------------------------------------------------------------------------- */

/* Returns the floats that a part of RAPT_PARTIAL_SUMS rows of weights takes when it is copied as bf16. */
static inline size_t bf16_copied_floats(const rapt_linear_problem *p) {
    return RAPT_PARTIAL_SUMS * whole_steps(part_channels(p, 0)) / 2;
}

/* Writes a token, the i-th of so many, to x as sum_packed_bf16_rows reads it. row: `in` channels, whole steps, packed by
 * pack_bf16_row. Replaceable together with the next one and RAPT_BF16_PACKED_TOKENS. */
static __attribute__((unused)) void place_token_for_packed(float *x, size_t in, int i, int tokens, const float *row);

/* Adds a part of RAPT_PARTIAL_SUMS rows of packed weights to sums[token][RAPT_PARTIAL_SUMS], or begins the sums in part 0. */
static __attribute__((unused)) void sum_packed_bf16_rows(const rapt_linear_problem *p, const float *weights, int64_t part,
                                                         const float *x, int tokens, float *sums);
#ifndef place_token_for_packed
_Static_assert(RAPT_BF16_PACKED_TOKENS == 0, "a kernel that sets it has both functions");
static void place_token_for_packed(float *x, size_t in, int i, int tokens, const float *row) {
    (void)x, (void)in, (void)i, (void)tokens, (void)row;
}
#endif
#ifndef sum_packed_bf16_rows
_Static_assert(RAPT_BF16_PACKED_TOKENS == 0, "a kernel that sets it has both functions");
static void sum_packed_bf16_rows(const rapt_linear_problem *p, const float *weights, int64_t part, const float *x, int tokens,
                                 float *sums) {
    (void)p, (void)weights, (void)part, (void)x, (void)tokens, (void)sums;
}
#endif

static inline size_t packed_offset(const rapt_linear_problem *p, int64_t out, int64_t part);

/* Computes the sums of `rows` rows of weights, at most RAPT_PARTIAL_SUMS, from row `out` on: sums[token][r]. The rest of each
 * sums[token][RAPT_PARTIAL_SUMS] is unspecified. */
static void sum_bf16_rows(const rapt_linear_task *t, const few_scratch *s, bool gate, int64_t out, int rows, float *sums) {
    const rapt_linear_problem *p = t->problem;
    const rapt_type type = layout_of(p, gate)->type;
    uint16_t *const copy = (uint16_t *)s->copied;
    if (few_read_packed(t)) {
        const float *packed = weights_of(t, gate)->packed;
        for (int64_t part = 0; part * RAPT_LINEAR_PART < p->in; part++)
            sum_packed_bf16_rows(p, packed + packed_offset(p, out, part), part, s->x, (int)t->tokens, sums);
        return;
    }
    for (int64_t part = 0; part * RAPT_LINEAR_PART < p->in; part++) {
        const char *from[RAPT_PARTIAL_SUMS + RAPT_KEYS_AHEAD];
        int channels = part_channels(p, part), whole = (int)whole_steps(channels);
        for (int r = 0; r < RAPT_PARTIAL_SUMS + RAPT_KEYS_AHEAD; r++)
            from[r] = weight_row(t, gate, rapt_min(out + (r < RAPT_PARTIAL_SUMS ? rapt_min(r, rows - 1) : r), p->out - 1), part);
        if (type != RAPT_BF16) {
            copy_as_bf16(type, copy, (size_t)whole, from, RAPT_PARTIAL_SUMS, channels, NULL, s->row);
            for (int r = 0; r < RAPT_PARTIAL_SUMS + RAPT_KEYS_AHEAD; r++)
                from[r] = (const char *)(copy + (size_t)rapt_min(r, RAPT_PARTIAL_SUMS - 1) * (size_t)whole);
        }
        multiply_bf16_keys((int)t->tokens, from, 0, RAPT_PARTIAL_SUMS, type == RAPT_BF16 ? channels : whole,
                           s->x + part * RAPT_LINEAR_PART, whole_steps(p->in), part == 0 ? ACCUMULATE_ZERO : ACCUMULATE_ADD, sums,
                           RAPT_PARTIAL_SUMS);
    }
}

/* ---- Many tokens: tokens in lanes ---------------------------------------------------------------------------------------- */

/* Stages a tile of n tokens, whole vectors of them, step by step. `to` needs room for RAPT_STEP * TILE_ROWS floats from the start
 * of the last step on, since a step is packed in place. */
static void stage_bf16_tokens(const rapt_linear_problem *p, const char *const *tokens, int n, float *to) {
    if (PACKS_QUERY_ROWS && in_steps(p->x.type, p->in)) {
        pack_bf16_query_rows(to, tokens, (int)p->in, n / RAPT_VL);
        return;
    }
    for (int64_t c = 0; c < p->in; c += RAPT_STEP, to += RAPT_BF16_STEP_FLOATS) {
        int channels = rapt_min(RAPT_STEP, p->in - c);
        stage_columns(p->x.type, to, TILE_ROWS, tokens, n, (int)c, channels);
        pack_bf16_queries(to, channels, n / RAPT_VL);
    }
}

/* Returns the floats of scratch for a staged part of `rows` rows, a multiple of RAPT_PARTIAL_SUMS. Replaceable together with the
 * next three. */
static size_t bf16_weight_floats(const rapt_linear_problem *p, size_t rows);

/* Stages a part of n rows of weights, which begin at these addresses. */
static void stage_bf16_weights(const rapt_linear_problem *p, rapt_type type, const many_scratch *s, const char *const *rows,
                               int n, int channels);

/* Multiplies a part of `rows` rows: C = C + weights tokens^T, or without the C in part 0. even: scratch of BF16_PRODUCT_ROWS
 * rows. Prefetches some of `ahead` bf16_part_prefetches times. */
static void multiply_bf16_part(const rapt_linear_problem *p, const float *weights, int64_t part, const float *tokens, float *c,
                               float *even, int rows, int vectors, prefetch_queue *ahead);

/* Returns how often multiply_bf16_part prefetches, which sets how much it has to prefetch each time. */
static int bf16_part_prefetches(const rapt_linear_problem *p, int64_t part, int rows);

/* Returns the number of steps of a part of channels. */
static inline int part_steps(const rapt_linear_problem *p, int64_t part) {
    return (int)whole_steps(part_channels(p, part)) / RAPT_STEP;
}

/* Returns the distance from row to row of staged weights, in floats, with the stage_bf16_weights below. */
static inline size_t ld_bf16_weights(const rapt_linear_problem *p) {
    return (size_t)(part_steps(p, 0) * RAPT_STEP * COPIES) + RAPT_ROW_PADDING;
}

#ifndef bf16_weight_floats
static size_t bf16_weight_floats(const rapt_linear_problem *p, size_t rows) { return rows * ld_bf16_weights(p); }
#endif

#ifndef stage_bf16_weights
static void stage_bf16_weights(const rapt_linear_problem *p, rapt_type type, const many_scratch *s, const char *const *rows,
                               int n, int channels) {
    stage_bf16_rows_of_keys(type, s->weights, ld_bf16_weights(p), rows, n, channels, s->row);
}
#endif

#ifndef multiply_bf16_part
static void multiply_bf16_part(const rapt_linear_problem *p, const float *weights, int64_t part, const float *tokens, float *c,
                               float *even, int rows, int vectors, prefetch_queue *ahead) {
    const size_t ld = ld_bf16_weights(p);
    for (int row = 0; row < rows; row += BF16_PRODUCT_ROWS)
        for (int step = 0; step < part_steps(p, part); step++)
            step_product((operands){.c = (char *)(c + (size_t)row * TILE_ROWS),
                                    .ldc = TILE_ROWS * sizeof(float),
                                    .a = (const char *)(weights + (size_t)row * ld + (size_t)(step * RAPT_STEP * COPIES)),
                                    .rs = ld * sizeof(float),
                                    .ks = COPIES * sizeof(float),
                                    .b = (const char *)(tokens + (size_t)step * RAPT_BF16_STEP_FLOATS),
                                    .ldb = TILE_ROWS * sizeof(float),
                                    .depth = STEP_PAIRS,
                                    .mode = part == 0 && step == 0 ? ACCUMULATE_ZERO : ACCUMULATE_ADD_SEPARATE,
                                    .queue = ahead},
                         (ptrdiff_t)(STEP_PAIRS * COPIES * sizeof(float)), (ptrdiff_t)(STEP_PAIRS * TILE_ROWS * sizeof(float)),
                         STEP_PAIRS, even, rapt_min(BF16_PRODUCT_ROWS, rows - row), vectors);
}
#endif

#ifndef bf16_part_prefetches
static int bf16_part_prefetches(const rapt_linear_problem *p, int64_t part, int rows) {
    return part_steps(p, part) * register_tiles(rows, RAPT_TILE_VECTORS);
}
#endif
