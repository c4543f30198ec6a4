/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers in integer arithmetic (docs/order.md). Tokens are quantised by blocks of as many channels as the weights' type
 * has (RAPT_GROUP, or 256), and multiplied with the integers of the weights as they are stored. Outputs lie in lanes, a sixteen
 * of them (RAPT_PARTIAL_SUMS) at a time: a lane of a staged sixteen has RAPT_DOT channels of its output, and those of a token are
 * broadcast. Included by linear.h. */

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

/* What integer arithmetic has to know of a type of weights. Its blocks have an f16 scale, and tokens are quantised by blocks of
 * as many channels. */
typedef struct integer_format {
    int block;     /* channels of a block; of int8, which has no scales, those of a token's */
    int sub;       /* channels of a sub-block, whose sum of products is multiplied by an integer scale; else those of a block */
    bool scaled;   /* sub-blocks have integer scales */
    bool minimums; /* blocks have an f16 minimum, which sub-blocks that are scaled multiply by an integer, too */
} integer_format;

static inline integer_format integer_format_of(rapt_type type) {
    switch (type) {
    case RAPT_Q4_1:
        return (integer_format){RAPT_GROUP, RAPT_GROUP, false, true};
    case RAPT_Q4_K:
        return (integer_format){256, 32, true, true};
    case RAPT_Q6_K:
        return (integer_format){256, 16, true, false};
    default:
        return (integer_format){RAPT_GROUP, RAPT_GROUP, false, false};
    }
}

/* Quantised tokens of a pass. */
typedef struct integer_tokens {
    float *x;             /* [tokens][groups][GROUP_LANES] their integers */
    float *scales;        /* [tokens][blocks] */
    int32_t *sums;        /* [tokens][sub-blocks] sums of integers */
    int32_t *corrections; /* [tokens][sub-blocks] what sums of products begin with, since weights have DOT_BIAS */
} integer_tokens;

/* Scratch of a task. */
typedef struct integer_linear_scratch {
    integer_tokens tokens[2]; /* as the weights need them, and as the gate does: the same if these have one format */
    float *sums[2];           /* [tokens of a pass][RAPT_PARTIAL_SUMS] of the weights, and of the gate */
    float *staged;            /* some channels of a sixteen, as stage_sixteen writes it */
    float *rows;              /* [RAPT_PARTIAL_SUMS][part] elements of weights before they are transposed; or a token as f32 */
    float *outputs;           /* [2][RAPT_PARTIAL_SUMS] of a token, and the residual that is added to them */
} integer_linear_scratch;

/* Returns the number of groups of RAPT_GROUP channels that hold `channels` channels; the last one may be partial. */
static inline int64_t groups_of(int64_t channels) { return (channels + RAPT_GROUP - 1) / RAPT_GROUP; }

/* Returns the tokens of a pass: whole register tiles. */
static int64_t integer_pass(const rapt_linear_problem *p, int64_t tokens) {
    const int64_t bytes = groups_of(p->in) * GROUP_LANES * (int64_t)sizeof(float);
    return rapt_min(tokens, rapt_max(1, INTEGER_PASS_BYTES / bytes / INTEGER_TOKENS) * INTEGER_TOKENS);
}

/* Where in a staged sixteen of some blocks what lies, in floats: first its lanes, then these, each [n][RAPT_PARTIAL_SUMS]. */
typedef struct staged_parts {
    size_t scales, minimums;         /* of blocks, as f32 */
    size_t sub_scales, sub_minimums; /* the integers of sub-blocks, which are bytes */
    size_t end;
} staged_parts;

static inline staged_parts staged_parts_of(const integer_format f, int64_t groups) {
    const size_t channels = (size_t)groups * RAPT_GROUP, of_blocks = channels / (size_t)f.block * RAPT_PARTIAL_SUMS,
                 of_subs = f.scaled ? channels / (size_t)f.sub * RAPT_PARTIAL_SUMS / sizeof(float) : 0;
    staged_parts at = {.scales = (size_t)groups * SIXTEEN_LANES};
    at.minimums = at.scales + of_blocks;
    at.sub_scales = at.minimums + (f.minimums ? of_blocks : 0);
    at.sub_minimums = at.sub_scales + of_subs;
    at.end = at.sub_minimums + (f.minimums ? of_subs : 0);
    return at;
}

/* Returns the floats of a staged sixteen of `groups` groups of channels. */
static inline size_t staged_sixteen(rapt_type type, int64_t groups) {
    return staged_parts_of(integer_format_of(type), groups).end;
}

/* Returns the larger one of staged_sixteen of the weights and of the gate. */
static inline size_t most_staged(const rapt_linear_problem *p, int64_t groups) {
    const size_t weight = staged_sixteen(p->weight.type, groups), gate = gated(p) ? staged_sixteen(p->gate.type, groups) : 0;
    return gate > weight ? gate : weight;
}

/* True if the gate needs tokens that are quantised in another way than those of the weights. */
static inline bool differs_in_gate(const rapt_linear_problem *p) {
    const integer_format weight = integer_format_of(p->weight.type), gate = integer_format_of(p->gate.type);
    return gated(p) && (gate.block != weight.block || gate.sub != weight.sub);
}

/* Lays out what tokens of `groups` groups are quantised to for weights of this type. */
static integer_tokens lay_out_tokens(rapt_type type, float *memory, size_t *used, size_t tokens, size_t groups) {
    const integer_format f = integer_format_of(type);
    const size_t channels = groups * RAPT_GROUP;
    return (integer_tokens){.x = carve(memory, used, tokens * groups * GROUP_LANES),
                            .scales = carve(memory, used, tokens * (channels / (size_t)f.block)),
                            .sums = (int32_t *)carve(memory, used, tokens * (channels / (size_t)f.sub)),
                            .corrections = (int32_t *)carve(memory, used, tokens * (channels / (size_t)f.sub))};
}

/* Lays out the scratch of a task in memory, and returns its size in floats. With null memory it only counts them. */
static size_t lay_out_integer_linear(const rapt_linear_problem *p, float *memory, integer_linear_scratch *s, int64_t tokens) {
    const size_t pass = (size_t)integer_pass(p, tokens), groups = (size_t)groups_of(p->in);
    const size_t rows = RAPT_PARTIAL_SUMS * RAPT_LINEAR_PART / RAPT_DOT, token = groups * RAPT_GROUP;
    size_t used = 0;
    s->tokens[0] = s->tokens[1] = lay_out_tokens(p->weight.type, memory, &used, pass, groups);
    if (differs_in_gate(p)) s->tokens[1] = lay_out_tokens(p->gate.type, memory, &used, pass, groups);
    s->sums[0] = carve(memory, &used, pass * RAPT_PARTIAL_SUMS);
    s->sums[1] = carve(memory, &used, gated(p) ? pass * RAPT_PARTIAL_SUMS : 0);
    s->staged = carve(memory, &used, most_staged(p, rapt_min(groups_of(p->in), PART_GROUPS)));
    s->rows = carve(memory, &used, rows > token ? rows : token);
    s->outputs = carve(memory, &used, 2 * RAPT_PARTIAL_SUMS);
    return used;
}

/* Quantises a block of a token, x, to lanes; sets its scale, NaN if the block has a NaN or an infinity, and the sums and
 * corrections of its sub-blocks. */
static void quantise_block(const integer_format f, const float *x, float *lanes, float *scale, int32_t *sums,
                           int32_t *corrections) {
    vf most = v_set1(0.0f), wrong = v_set1(0.0f);
    for (int c = 0; c < f.block; c += RAPT_VL) {
        const vf some = v_load(x + c);
        most = v_max(most, v_as_float(i_and(v_as_int(some), i_set1(INT32_MAX))));
        wrong = v_add(wrong, v_sub(some, some)); /* 0, or NaN */
    }
    const float largest = h_max(most);
    const vf factor = v_div(v_set1(127.0f), v_set1(largest));
    float bad[RAPT_VL], total = 0.0f;
    for (int first = 0; first < f.block; first += RAPT_GROUP) {
        int32_t n[RAPT_GROUP];
        dot_element elements[RAPT_GROUP];
        for (int c = 0; c < RAPT_GROUP; c += RAPT_VL)
            v_store(n + c, v_as_float(nearest_int(v_mul(v_load(x + first + c), factor), v_set1(128.0f))));
        for (int c = 0; c < RAPT_GROUP; c++) elements[dot_place(c)] = (dot_element)(int8_t)n[c];
        for (int sub = 0; sub < RAPT_GROUP / f.sub; sub++) {
            int32_t sum = 0;
            for (int c = sub * f.sub; c < (sub + 1) * f.sub; c++) sum += (int8_t)n[c];
            *sums++ = sum;
            *corrections++ = -DOT_BIAS * sum;
        }
        memcpy(lanes + first / RAPT_DOT, elements, sizeof elements);
    }
    v_store(bad, wrong);
    for (int i = 0; i < RAPT_VL; i++) total += bad[i];
    *scale = largest / 127.0f + total;
}

/* Quantises a token, `channels` channels of whole blocks, as number i of the tokens that weights of this type are multiplied
 * with. */
static void quantise_token(rapt_type type, const float *x, size_t channels, const integer_tokens *to, int i) {
    const integer_format f = integer_format_of(type);
    const size_t blocks = channels / (size_t)f.block, subs = (size_t)(f.block / f.sub);
    for (size_t b = 0; b < blocks; b++) {
        const size_t at = (size_t)i * blocks + b;
        quantise_block(f, x + b * (size_t)f.block, to->x + at * (size_t)(f.block / RAPT_DOT), to->scales + at,
                       to->sums + at * subs, to->corrections + at * subs);
    }
}

/* Quantises `tokens` tokens from number `first` on. */
static void quantise_tokens(const rapt_linear_task *t, const integer_linear_scratch *s, int64_t first, int tokens) {
    const rapt_linear_problem *p = t->problem;
    const size_t channels = (size_t)groups_of(p->in) * RAPT_GROUP;
    for (int i = 0; i < tokens; i++) {
        const char *row = t->x + token_offset(p, &p->x, first + i);
        memset(s->rows + channels - RAPT_GROUP, 0, RAPT_GROUP * sizeof *s->rows);
        stage_element_rows(p->x.type, s->rows, 0, &row, 1, 0, (int)p->in);
        quantise_token(p->weight.type, s->rows, channels, &s->tokens[0], i);
        if (differs_in_gate(p)) quantise_token(p->gate.type, s->rows, channels, &s->tokens[1], i);
    }
}

/* Returns a little-endian f16. */
static inline float half_of(const char *from) {
    float lanes[RAPT_VL];
    v_store(lanes, v_broadcast_f16_le(from));
    return lanes[0];
}

/* Where one row of a staged sixteen gets its integers and scales; those of a block or sub-block lie RAPT_PARTIAL_SUMS after those
 * of the one before. */
typedef struct staged_row {
    int8_t *integers; /* of all channels, one after the other */
    float *scales, *minimums;
    int8_t *sub_scales, *sub_minimums;
} staged_row;

/* Reads `count` blocks of q4_K. Minimums are subtracted, so their scales change their signs. */
static void read_blocks_q4_k(const char *from, int count, const staged_row *to) {
    for (int b = 0; b < count; b++, from += 144) {
        unpack_q4_k(from, to->integers + b * 256);
        to->scales[b * RAPT_PARTIAL_SUMS] = half_of(from);
        to->minimums[b * RAPT_PARTIAL_SUMS] = -half_of(from + 2);
        for (int sub = 0; sub < 8; sub++) {
            to->sub_scales[(b * 8 + sub) * RAPT_PARTIAL_SUMS] = (int8_t)integer_of_q4_k(from, sub, false);
            to->sub_minimums[(b * 8 + sub) * RAPT_PARTIAL_SUMS] = (int8_t)integer_of_q4_k(from, sub, true);
        }
    }
}

/* Reads `count` blocks of q6_K. */
static void read_blocks_q6_k(const char *from, int count, const staged_row *to) {
    for (int b = 0; b < count; b++, from += 210) {
        unpack_q6_k(from, to->integers + b * 256);
        to->scales[b * RAPT_PARTIAL_SUMS] = half_of(from + 208);
        for (int sub = 0; sub < 16; sub++) to->sub_scales[(b * 16 + sub) * RAPT_PARTIAL_SUMS] = (int8_t)from[192 + sub];
    }
}

/* Reads `channels` channels of a row of weights. */
static void read_integer_row(rapt_type type, const char *row, int channels, const staged_row *to) {
    const int groups = (int)groups_of(channels);
    switch (type) {
    case RAPT_Q4_K:
        read_blocks_q4_k(row, channels / 256, to);
        break;
    case RAPT_Q6_K:
        read_blocks_q6_k(row, channels / 256, to);
        break;
    case RAPT_INT8:
        unpack_integers(type, row, channels, to->integers);
        for (int g = 0; g < groups; g++) to->scales[g * RAPT_PARTIAL_SUMS] = 1.0f;
        break;
    default:
        unpack_integers(type, row, channels, to->integers);
        load_group_scales(type, row, groups, to->scales, RAPT_PARTIAL_SUMS);
        if (integer_format_of(type).minimums) load_group_halves(type, row, 2, groups, to->minimums, RAPT_PARTIAL_SUMS);
    }
}

/* Stages a part of `rows` rows of the weights or the gate, from row `out` on, as lanes [groups * GROUP_LANES][RAPT_PARTIAL_SUMS]
 * and what staged_parts names. Rows beyond the last one are 0. */
static void stage_sixteen(const rapt_linear_task *t, const integer_linear_scratch *s, bool gate, int64_t out, int rows,
                          int64_t part, float *to) {
    const rapt_linear_problem *p = t->problem;
    const rapt_type type = layout_of(p, gate)->type;
    const int channels = part_channels(p, part), groups = (int)groups_of(channels);
    const size_t ld = RAPT_LINEAR_PART / RAPT_DOT; /* floats from row to row of s->rows */
    const staged_parts at = staged_parts_of(integer_format_of(type), groups);
    memset(to + at.scales, 0, (at.end - at.scales) * sizeof *to);
    for (int r = 0; r < RAPT_PARTIAL_SUMS; r++) {
        int8_t integers[RAPT_LINEAR_PART];
        dot_element *const elements = (dot_element *)(void *)(s->rows + (size_t)r * ld);
        memset(integers, 0, (size_t)groups * RAPT_GROUP);
        if (r < rows)
            read_integer_row(type, weight_row(t, gate, out + r, part), channels,
                             &(staged_row){.integers = integers,
                                           .scales = to + at.scales + r,
                                           .minimums = to + at.minimums + r,
                                           .sub_scales = (int8_t *)(to + at.sub_scales) + r,
                                           .sub_minimums = (int8_t *)(to + at.sub_minimums) + r});
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
 * sums of integers begin with the corrections. */
static RAPT_INLINE void integer_tile(const int nt, const integer_format f, const float *staged, int groups,
                                     const integer_tokens tokens, size_t ldx, float *sums) {
    const int subs = f.block / f.sub, sub_lanes = f.sub / RAPT_DOT;
    const staged_parts at = staged_parts_of(f, groups);
    const char *const sub_scales = (const char *)(staged + at.sub_scales),
                      *sub_minimums = (const char *)(staged + at.sub_minimums);
    const size_t ldl = ldx * GROUP_LANES, ldb = ldx * RAPT_GROUP / (size_t)f.block, lds = ldb * (size_t)subs;
    for (int b = 0; b < groups * RAPT_GROUP / f.block; b++) {
        vi total[INTEGER_TOKENS * SUM_VECTORS];
        UNROLLED(n, nt * SUM_VECTORS) total[n] = i_set1(0);
        for (int sub = b * subs; sub < (b + 1) * subs; sub++) {
            vi acc[INTEGER_TOKENS * SUM_VECTORS];
            UNROLLED(j, nt)
                UNROLLED(v, SUM_VECTORS) acc[j * SUM_VECTORS + v] = i_set1(tokens.corrections[(size_t)j * lds + (size_t)sub]);
            UNROLLED(i, sub_lanes) {
                const int lane = sub * sub_lanes + i;
                vi weights[SUM_VECTORS];
                UNROLLED(v, SUM_VECTORS) weights[v] = v_as_int(v_load(staged + (size_t)lane * RAPT_PARTIAL_SUMS + v * RAPT_VL));
                UNROLLED(j, nt) {
                    const vi token = v_as_int(v_broadcast(tokens.x + (size_t)j * ldl + lane));
                    UNROLLED(v, SUM_VECTORS) acc[j * SUM_VECTORS + v] = i_dot(acc[j * SUM_VECTORS + v], weights[v], token);
                }
            }
            UNROLLED(v, SUM_VECTORS) {
                const vi scale = f.scaled ? i_load_s8(sub_scales + sub * RAPT_PARTIAL_SUMS + v * RAPT_VL) : i_set1(1);
                UNROLLED(j, nt) {
                    const int n = j * SUM_VECTORS + v;
                    if (f.scaled) acc[n] = i_mul(acc[n], scale);
                    total[n] = i_add(total[n], acc[n]);
                }
            }
        }
        UNROLLED(j, nt) {
            const vf scale = v_set1(tokens.scales[(size_t)j * ldb + (size_t)b]);
            const int32_t *const x_sums = tokens.sums + (size_t)j * lds + (size_t)(b * subs);
            UNROLLED(v, SUM_VECTORS) {
                float *const sum = sums + j * RAPT_PARTIAL_SUMS + v * RAPT_VL;
                const size_t n = (size_t)(b * RAPT_PARTIAL_SUMS + v * RAPT_VL);
                const vf both = v_mul(v_load(staged + at.scales + n), scale);
                vf y = v_fma(v_from_int(total[j * SUM_VECTORS + v]), both, v_load(sum));
                if (f.minimums) {
                    vi of_token = i_set1(f.scaled ? 0 : x_sums[0]);
                    for (int sub = 0; sub < subs && f.scaled; sub++)
                        of_token =
                            i_add(of_token, i_mul(i_load_s8(sub_minimums + (b * subs + sub) * RAPT_PARTIAL_SUMS + v * RAPT_VL),
                                                  i_set1(x_sums[sub])));
                    y = v_fma(v_from_int(of_token), v_mul(v_load(staged + at.minimums + n), scale), y);
                }
                v_store(sum, y);
            }
        }
    }
}

/* Adds the products of a staged part of a sixteen and all tokens of a pass to their sums. */
static RAPT_INLINE void multiply_sixteen_as(const integer_format f, const rapt_linear_problem *p, const integer_tokens *x,
                                            const float *staged, int64_t part, int tokens, float *sums) {
    const size_t ldx = (size_t)groups_of(p->in), blocks = ldx * RAPT_GROUP / (size_t)f.block,
                 subs = ldx * RAPT_GROUP / (size_t)f.sub;
    const size_t first = (size_t)part * RAPT_LINEAR_PART;
    const int groups = (int)groups_of(part_channels(p, part));
    for (int i = 0, nt; i < tokens; i += nt) {
        nt = tokens - i >= INTEGER_TOKENS ? INTEGER_TOKENS : 1;
        const integer_tokens from = {.x = x->x + (size_t)i * ldx * GROUP_LANES + first / RAPT_DOT,
                                     .scales = x->scales + (size_t)i * blocks + first / (size_t)f.block,
                                     .sums = x->sums + (size_t)i * subs + first / (size_t)f.sub,
                                     .corrections = x->corrections + (size_t)i * subs + first / (size_t)f.sub};
        if (nt == INTEGER_TOKENS) integer_tile(INTEGER_TOKENS, f, staged, groups, from, ldx, sums + i * RAPT_PARTIAL_SUMS);
        else integer_tile(1, f, staged, groups, from, ldx, sums + i * RAPT_PARTIAL_SUMS);
    }
}

/* Does what multiply_sixteen_as does, for weights of this type. */
static RAPT_NOINLINE void multiply_sixteen(rapt_type type, const rapt_linear_problem *p, const integer_tokens *x,
                                           const float *staged, int64_t part, int tokens, float *sums) {
    switch (type) {
    case RAPT_Q4_1:
        multiply_sixteen_as(integer_format_of(RAPT_Q4_1), p, x, staged, part, tokens, sums);
        break;
    case RAPT_Q4_K:
        multiply_sixteen_as(integer_format_of(RAPT_Q4_K), p, x, staged, part, tokens, sums);
        break;
    case RAPT_Q6_K:
        multiply_sixteen_as(integer_format_of(RAPT_Q6_K), p, x, staged, part, tokens, sums);
        break;
    default:
        multiply_sixteen_as(integer_format_of(RAPT_INT8), p, x, staged, part, tokens, sums);
    }
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
        multiply_sixteen(type, p, &s->tokens[gate], staged, part, tokens, s->sums[gate]);
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
