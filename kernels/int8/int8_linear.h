/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers in integer arithmetic (docs/order.md). Tokens are quantised by groups of RAPT_GROUP channels, and multiplied with
 * the integers of the weights as they are stored. Outputs lie in lanes, a sixteen of them (RAPT_PARTIAL_SUMS) at a time: a lane
 * of a staged sixteen has RAPT_DOT channels of its output, and those of a token are broadcast. Included by linear.h. */

enum {
    GROUP_LANES = RAPT_GROUP / RAPT_DOT,             /* lanes of a group */
    PART_GROUPS = RAPT_LINEAR_PART / RAPT_GROUP,     /* groups of a part of the channels, but for the last one */
    SIXTEEN_LANES = GROUP_LANES * RAPT_PARTIAL_SUMS, /* lanes of a group of a sixteen */
    /* Tokens of a register tile: their sums, the weights and a token fit into 16 registers, or 32 with 16 lanes. */
    INTEGER_TOKENS = RAPT_VL == 16  ? 8
                     : RAPT_VL == 8 ? 4
                     : RAPT_VL == 4 ? 2
                                    : 1,
    INTEGER_PASS_BYTES = 1 << 20, /* of the tokens that are quantised at a time */
};

/* Scratch of a task. */
typedef struct integer_linear_scratch {
    float *x;        /* [tokens of a pass][groups][GROUP_LANES] quantised tokens */
    float *x_scales; /* [tokens of a pass][groups] the scales of their groups */
    int32_t *x_sums; /* [tokens of a pass][groups] the sums of their integers */
    float *sums[2];  /* [tokens of a pass][RAPT_PARTIAL_SUMS] of the weights, and of the gate */
    float *staged;   /* a part of a sixteen, as stage_sixteen writes it */
    float *rows;     /* [RAPT_PARTIAL_SUMS][part] elements of weights before they are transposed; or a token as f32 */
    float *outputs;  /* [2][RAPT_PARTIAL_SUMS] of a token, and the residual that is added to them */
} integer_linear_scratch;

/* Returns the number of groups that hold `channels` channels; the last one may be partial. */
static inline int64_t groups_of(int64_t channels) { return (channels + RAPT_GROUP - 1) / RAPT_GROUP; }

/* Returns the tokens of a pass: whole register tiles. */
static int64_t integer_pass(const rapt_linear_problem *p, int64_t tokens) {
    const int64_t bytes = groups_of(p->in) * GROUP_LANES * (int64_t)sizeof(float);
    return rapt_min(tokens, rapt_max(1, INTEGER_PASS_BYTES / bytes / INTEGER_TOKENS) * INTEGER_TOKENS);
}

/* True if groups of weights of this type have a minimum. */
static inline bool has_minimums(rapt_type type) {
    switch (type) {
        RAPT_RANGED_GROUPS(RAPT_TYPE_CASE)
        return true;
    default:
        return false;
    }
}

/* Returns the floats of a staged part of `groups` groups: the lanes of the sixteen, then the scales of its groups, and then their
 * minimums, if they have any. */
static inline size_t staged_sixteen(rapt_type type, int64_t groups) {
    return (size_t)groups * (SIXTEEN_LANES + RAPT_PARTIAL_SUMS * (size_t)(1 + has_minimums(type)));
}

/* Returns the larger one of staged_sixteen of the weights and of the gate. */
static inline size_t most_staged(const rapt_linear_problem *p, int64_t groups) {
    const size_t weight = staged_sixteen(p->weight.type, groups), gate = staged_sixteen(p->gate.type, groups);
    return gated(p) && gate > weight ? gate : weight;
}

/* Lays out the scratch of a task in memory, and returns its size in floats. With null memory it only counts them. */
static size_t lay_out_integer_linear(const rapt_linear_problem *p, float *memory, integer_linear_scratch *s, int64_t tokens) {
    const size_t pass = (size_t)integer_pass(p, tokens), groups = (size_t)groups_of(p->in);
    const size_t rows = RAPT_PARTIAL_SUMS * RAPT_LINEAR_PART / RAPT_DOT, token = groups * RAPT_GROUP;
    size_t used = 0;
    *s = (integer_linear_scratch){
        .x = carve(memory, &used, pass * groups * GROUP_LANES),
        .x_scales = carve(memory, &used, pass * groups),
        .x_sums = (int32_t *)carve(memory, &used, pass * groups),
        .sums = {carve(memory, &used, pass * RAPT_PARTIAL_SUMS), carve(memory, &used, gated(p) ? pass * RAPT_PARTIAL_SUMS : 0)},
        .staged = carve(memory, &used, most_staged(p, rapt_min(groups_of(p->in), PART_GROUPS))),
        .rows = carve(memory, &used, rows > token ? rows : token),
        .outputs = carve(memory, &used, 2 * RAPT_PARTIAL_SUMS)};
    return used;
}

/* Quantises a group of a token, x, to GROUP_LANES lanes; sets its scale, NaN if the group has a NaN or an infinity, and the sum
 * of its integers. */
static void quantise_group(const float *x, float *lanes, float *scale, int32_t *sum) {
    vf most = v_set1(0.0f), wrong = v_set1(0.0f);
    for (int c = 0; c < RAPT_GROUP; c += RAPT_VL) {
        const vf some = v_load(x + c);
        most = v_max(most, v_as_float(i_and(v_as_int(some), i_set1(INT32_MAX))));
        wrong = v_add(wrong, v_sub(some, some)); /* 0, or NaN */
    }
    const float largest = h_max(most);
    const vf factor = v_div(v_set1(127.0f), v_set1(largest));
    int32_t n[RAPT_GROUP];
    dot_element elements[RAPT_GROUP];
    float bad[RAPT_VL], total = 0.0f;
    for (int c = 0; c < RAPT_GROUP; c += RAPT_VL)
        v_store(n + c, v_as_float(nearest_int(v_mul(v_load(x + c), factor), v_set1(128.0f))));
    *sum = 0;
    for (int c = 0; c < RAPT_GROUP; c++) {
        elements[dot_place(c)] = (dot_element)(int8_t)n[c];
        *sum += (int8_t)n[c];
    }
    memcpy(lanes, elements, sizeof elements);
    v_store(bad, wrong);
    for (int i = 0; i < RAPT_VL; i++) total += bad[i];
    *scale = largest / 127.0f + total;
}

/* Quantises `tokens` tokens from number `first` on. */
static void quantise_tokens(const rapt_linear_task *t, const integer_linear_scratch *s, int64_t first, int tokens) {
    const rapt_linear_problem *p = t->problem;
    const size_t groups = (size_t)groups_of(p->in);
    for (int i = 0; i < tokens; i++) {
        const char *row = t->x + token_offset(p, &p->x, first + i);
        memset(s->rows + (groups - 1) * RAPT_GROUP, 0, RAPT_GROUP * sizeof *s->rows);
        stage_element_rows(p->x.type, s->rows, 0, &row, 1, 0, (int)p->in);
        for (size_t g = 0; g < groups; g++) {
            const size_t at = (size_t)i * groups + g;
            quantise_group(s->rows + g * RAPT_GROUP, s->x + at * GROUP_LANES, s->x_scales + at, s->x_sums + at);
        }
    }
}

/* Stages a part of `rows` rows of the weights or the gate, from row `out` on, as lanes [groups * GROUP_LANES][RAPT_PARTIAL_SUMS],
 * then the scales of the groups [groups][RAPT_PARTIAL_SUMS], 1 for int8, and then their minimums, if they have any. Rows beyond
 * the last one are 0. */
static void stage_sixteen(const rapt_linear_task *t, const integer_linear_scratch *s, bool gate, int64_t out, int rows,
                          int64_t part, float *to) {
    const rapt_linear_problem *p = t->problem;
    const rapt_type type = layout_of(p, gate)->type;
    const int channels = part_channels(p, part), groups = (int)groups_of(channels);
    const size_t ld = RAPT_LINEAR_PART / RAPT_DOT; /* floats from row to row of s->rows */
    float *const scales = to + (size_t)groups * SIXTEEN_LANES, *const minimums = scales + (size_t)groups * RAPT_PARTIAL_SUMS;
    for (int r = 0; r < RAPT_PARTIAL_SUMS; r++) {
        int8_t integers[RAPT_LINEAR_PART];
        dot_element *const elements = (dot_element *)(void *)(s->rows + (size_t)r * ld);
        memset(integers, 0, (size_t)groups * RAPT_GROUP);
        for (int g = 0; g < groups; g++) scales[g * RAPT_PARTIAL_SUMS + r] = 1.0f;
        for (int g = 0; g < groups && has_minimums(type); g++) minimums[g * RAPT_PARTIAL_SUMS + r] = 0.0f;
        if (r < rows) {
            const char *row = weight_row(t, gate, out + r, part);
            unpack_integers(type, row, channels, integers);
            if (type != RAPT_INT8) load_group_scales(type, row, groups, scales + r, RAPT_PARTIAL_SUMS);
            if (has_minimums(type)) load_group_halves(type, row, 2, groups, minimums + r, RAPT_PARTIAL_SUMS);
        }
        for (int c = 0; c < groups * RAPT_GROUP; c++) elements[dot_place(c)] = (dot_element)(integers[c] + DOT_BIAS);
    }
    for (int r = 0; r < RAPT_PARTIAL_SUMS; r += RAPT_VL)
        for (int i = 0; i < groups * GROUP_LANES; i += RAPT_VL) {
            vf square[RAPT_VL];
            UNROLLED(j, RAPT_VL) square[j] = v_load(s->rows + (size_t)(r + j) * ld + i);
            v_transpose(square);
            for (int j = 0; j < RAPT_VL && i + j < groups * GROUP_LANES; j++)
                v_store(to + (size_t)(i + j) * RAPT_PARTIAL_SUMS + r, square[j]);
        }
}

/* Adds the products of `groups` groups of nt tokens and a staged sixteen to the tokens' sums. Tokens lie ldx groups apart. The
 * sums of integers begin with what undoes the DOT_BIAS of weights. */
static RAPT_INLINE void integer_tile(const int nt, const bool with_minimums, const float *staged, int groups, const float *x,
                                     const float *x_scales, const int32_t *x_sums, size_t ldx, float *sums) {
    const float *scales = staged + (size_t)groups * SIXTEEN_LANES, *minimums = scales + (size_t)groups * RAPT_PARTIAL_SUMS;
    for (int g = 0; g < groups; g++) {
        vi acc[INTEGER_TOKENS * SUM_VECTORS];
        UNROLLED(j, nt)
            UNROLLED(v, SUM_VECTORS) acc[j * SUM_VECTORS + v] = i_set1(-DOT_BIAS * x_sums[(size_t)j * ldx + (size_t)g]);
        UNROLLED(i, GROUP_LANES) {
            vi weights[SUM_VECTORS];
            UNROLLED(v, SUM_VECTORS)
                weights[v] = v_as_int(v_load(staged + (size_t)(g * GROUP_LANES + i) * RAPT_PARTIAL_SUMS + v * RAPT_VL));
            UNROLLED(j, nt) {
                const vi token = v_as_int(v_broadcast(x + ((size_t)j * ldx + (size_t)g) * GROUP_LANES + i));
                UNROLLED(v, SUM_VECTORS) acc[j * SUM_VECTORS + v] = i_dot(acc[j * SUM_VECTORS + v], weights[v], token);
            }
        }
        UNROLLED(j, nt) {
            const vf scale = v_set1(x_scales[(size_t)j * ldx + (size_t)g]);
            const vf x_sum = v_set1((float)x_sums[(size_t)j * ldx + (size_t)g]);
            UNROLLED(v, SUM_VECTORS) {
                float *const sum = sums + j * RAPT_PARTIAL_SUMS + v * RAPT_VL;
                const int at = g * RAPT_PARTIAL_SUMS + v * RAPT_VL;
                vf total = v_fma(v_from_int(acc[j * SUM_VECTORS + v]), v_mul(v_load(scales + at), scale), v_load(sum));
                if (with_minimums) total = v_fma(x_sum, v_mul(v_load(minimums + at), scale), total);
                v_store(sum, total);
            }
        }
    }
}

/* Adds the products of a staged part of a sixteen and all tokens of a pass to their sums. */
static RAPT_INLINE void multiply_sixteen_as(const bool with_minimums, const rapt_linear_problem *p,
                                            const integer_linear_scratch *s, const float *staged, int64_t part, int tokens,
                                            float *sums) {
    const size_t ldx = (size_t)groups_of(p->in), first = (size_t)part * PART_GROUPS;
    const int groups = (int)groups_of(part_channels(p, part));
    const float *x = s->x + first * GROUP_LANES, *x_scales = s->x_scales + first;
    const int32_t *x_sums = s->x_sums + first;
    for (int i = 0, nt; i < tokens; i += nt) {
        nt = tokens - i >= INTEGER_TOKENS ? INTEGER_TOKENS : 1;
        const size_t at = (size_t)i * ldx;
        if (nt == INTEGER_TOKENS)
            integer_tile(INTEGER_TOKENS, with_minimums, staged, groups, x + at * GROUP_LANES, x_scales + at, x_sums + at, ldx,
                         sums + i * RAPT_PARTIAL_SUMS);
        else
            integer_tile(1, with_minimums, staged, groups, x + at * GROUP_LANES, x_scales + at, x_sums + at, ldx,
                         sums + i * RAPT_PARTIAL_SUMS);
    }
}

/* Does what multiply_sixteen_as does, for weights or a gate of this type. */
static RAPT_NOINLINE void multiply_sixteen(rapt_type type, const rapt_linear_problem *p, const integer_linear_scratch *s,
                                           const float *staged, int64_t part, int tokens, float *sums) {
    if (has_minimums(type)) multiply_sixteen_as(true, p, s, staged, part, tokens, sums);
    else multiply_sixteen_as(false, p, s, staged, part, tokens, sums);
}

static uint64_t packed_integer_floats(const rapt_linear_problem *p) {
    return (uint64_t)((p->out + RAPT_PARTIAL_SUMS - 1) / RAPT_PARTIAL_SUMS) * most_staged(p, groups_of(p->in));
}

/* Returns the address of a part of packed weights, of the sixteen that begins with row `out`. A sixteen's parts lie one after the
 * other, each as it is staged. */
static inline size_t packed_integers_at(const rapt_linear_problem *p, rapt_type type, int64_t out, int64_t part) {
    return (size_t)(out / RAPT_PARTIAL_SUMS) * staged_sixteen(type, groups_of(p->in)) + staged_sixteen(type, part * PART_GROUPS);
}

static void pack_integer_weights(const rapt_linear_task *t, bool gate, float *packed) {
    const rapt_linear_problem *p = t->problem;
    const rapt_type type = layout_of(p, gate)->type;
    float rows[RAPT_PARTIAL_SUMS * RAPT_LINEAR_PART / RAPT_DOT];
    const integer_linear_scratch s = {.rows = rows};
    for (int64_t out = t->out0; out < t->out0 + t->outs; out += RAPT_PARTIAL_SUMS)
        for (int64_t part = 0; part * RAPT_LINEAR_PART < p->in; part++)
            stage_sixteen(t, &s, gate, out, rapt_min(RAPT_PARTIAL_SUMS, t->out0 + t->outs - out), part,
                          packed + packed_integers_at(p, type, out, part));
    if (t->out0 + t->outs < p->out) return;
    /* The other weights of a layer with a gate may take more, and as many floats are kept of these. */
    const size_t used = packed_integers_at(p, type, (int64_t)padded((size_t)p->out), 0);
    memset(packed + used, 0, ((size_t)packed_integer_floats(p) - used) * sizeof(float));
}

/* Computes the sums of a sixteen of the weights, or of the gate, for the tokens of a pass. */
static void sum_sixteen(const rapt_linear_task *t, const integer_linear_scratch *s, bool gate, int64_t out, int rows,
                        int tokens) {
    const rapt_linear_problem *p = t->problem;
    const rapt_type type = layout_of(p, gate)->type;
    const float *packed = weights_of(t, gate)->packed;
    memset(s->sums[gate], 0, (size_t)tokens * RAPT_PARTIAL_SUMS * sizeof *s->sums[gate]);
    for (int64_t part = 0; part * RAPT_LINEAR_PART < p->in; part++) {
        const float *staged = packed ? packed + packed_integers_at(p, type, out, part) : s->staged;
        if (!packed) stage_sixteen(t, s, gate, out, rows, part, s->staged);
        multiply_sixteen(type, p, s, staged, part, tokens, s->sums[gate]);
    }
}

/* Computes a task, pass by pass of its tokens and sixteen by sixteen of its outputs. */
static void linear_integers(const rapt_linear_task *t) {
    const rapt_linear_problem *p = t->problem;
    integer_linear_scratch s;
    lay_out_integer_linear(p, t->scratch, &s, t->tokens);
    const int64_t pass = integer_pass(p, t->tokens);
    for (int64_t done = 0; done < t->tokens; done += pass) {
        const int tokens = rapt_min(pass, t->tokens - done);
        quantise_tokens(t, &s, t->token0 + done, tokens);
        for (int64_t out = t->out0; out < t->out0 + t->outs; out += RAPT_PARTIAL_SUMS) {
            const int rows = rapt_min(RAPT_PARTIAL_SUMS, t->out0 + t->outs - out);
            output_ends ends[2];
            for (int gate = 0; gate <= gated(p); gate++) {
                ends[gate] = ends_of(t, gate, out, rows);
                sum_sixteen(t, &s, gate, out, rows, tokens);
            }
            for (int i = 0; i < tokens; i++) {
                vf outputs[2][SUM_VECTORS];
                for (int gate = 0; gate <= gated(p); gate++) {
                    for (int v = 0; v < SUM_VECTORS; v++)
                        outputs[gate][v] = v_load(s.sums[gate] + i * RAPT_PARTIAL_SUMS + v * RAPT_VL);
                    end_sums(p, gate, &ends[gate], outputs[gate]);
                }
                for (int v = 0; v < SUM_VECTORS; v++)
                    v_store(s.outputs + v * RAPT_VL, gated(p) ? v_mul(outputs[1][v], outputs[0][v]) : outputs[0][v]);
                write_outputs(t, t->token0 + done + i, out, rows, s.outputs, s.outputs + RAPT_PARTIAL_SUMS);
            }
        }
    }
}
