/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers in integer arithmetic (docs/order.md). Tokens are quantised by blocks of as many channels as the weights' type
 * has (RAPT_GROUP, or 256), and multiplied with the integers of the weights as they are stored. Outputs lie in lanes, a sixteen
 * of them (RAPT_PARTIAL_SUMS) at a time. Staged weights are dwords, of a sixteen's rows side by side, in the same layout in all
 * kernels, but for their bias and arrange_dwords: a dword of bytes has four channels, and one of nibbles those of two such
 * dwords, the second in the upper halves of its bytes. Of 6 bits, three dwords have those of four: the bytes of the last three,
 * and in their upper two bits two bits each of the first. So shifts and masks make LINEAR_DOT elements of each output
 * (weights_lane), and the channels of a token are broadcast in the order that follows from it (token_place). Included by
 * linear.h. */

/* A lane's elements here: RAPT_DOT, or four bytes with the words of RAPT_BYTE_DOTS. */
#define LINEAR_DOT (RAPT_BYTE_DOTS ? 4 : RAPT_DOT)
#if LINEAR_DOT == 4
typedef int8_t linear_element;
#else
typedef int16_t linear_element;
#endif

enum {
    GROUP_LANES = RAPT_GROUP / LINEAR_DOT,    /* lanes of a group of a token */
    DWORD_LANES = 4 / LINEAR_DOT,             /* lanes that four channels take */
    INTEGER_PART = 512,                       /* channels that are staged at a time: a tile's weights fit into an L1 cache */
    INTEGER_SIXTEENS = RAPT_VL == 16 ? 2 : 1, /* sixteens of a register tile, for which a token is broadcast once */
    TILE_OUTPUTS = INTEGER_SIXTEENS * RAPT_PARTIAL_SUMS,
    TILE_SUMS = INTEGER_SIXTEENS * SUM_VECTORS, /* vectors of a token's sums */
    MOST_INTEGER_TOKENS = 6,                    /* INTEGER_TOKENS of any kernel */
    /* The most tokens of a register tile: sums of integers, those of blocks so far, weights and a token fit into 32 registers of
     * 16 lanes; with 16 registers the sums of blocks stay in the L1 cache. */
    INTEGER_TOKENS = RAPT_VL == 16  ? MOST_INTEGER_TOKENS
                     : RAPT_VL == 8 ? 4
                     : RAPT_VL == 4 ? 2
                                    : 1,
    MOST_TILE_TOKENS = RAPT_MATRIX_TOKENS > MOST_INTEGER_TOKENS ? RAPT_MATRIX_TOKENS : MOST_INTEGER_TOKENS,
    INTEGER_PASS_BYTES = 1 << 20,            /* of the tokens that are quantised at a time */
    INTEGER_AHEAD = 2,                       /* prefetch distance, in parts of packed weights */
    NARROW_NIBBLES = RAPT_BYTE_DOTS ? 8 : 0, /* integer_format.narrow of weights of 4 bits, and of 6 */
    NARROW_SIX_BITS = RAPT_BYTE_DOTS ? 2 : 0,
    /* Bits of a staged weight of 4 bits, of one of 6, and of one of 8. With one lane, weights take those of an element: gcc
     * vectorises the loops, and products of 16 bits twice as fast as those of masked dwords. */
    NIBBLE_BITS = RAPT_VL == 1 ? DOT_BITS : 4,
    SIX_BITS = RAPT_VL == 1 ? DOT_BITS : 6,
    BYTE_BITS = RAPT_VL == 1 ? DOT_BITS : 8,
    /* Of weights of 8 bits. With 16 bits an element, the mask extends no sign; i_dot_signed takes one. */
    BYTE_BIAS = RAPT_BYTE_DOTS  ? 0
                : RAPT_DOT == 4 ? DOT_BIAS
                                : 128,
};

/* A staged scale of a block, or its minimum: an f16 where the CPU converts these, as the blocks have it. */
#if RAPT_NATIVE_F16
typedef uint16_t staged_scale;
static inline staged_scale staged_scale_of(uint16_t half) { return half; }
static inline vf v_load_scales(const staged_scale *from) { return v_load_f16(from); }
#else
typedef float staged_scale;
static inline staged_scale staged_scale_of(uint16_t half) {
    float lanes[RAPT_VL];
    v_store(lanes, v_from_f16(i_set1(half)));
    return lanes[0];
}
static inline vf v_load_scales(const staged_scale *from) { return v_load(from); }
#endif

/* What integer arithmetic has to know of a type of weights. Its blocks have an f16 scale, and tokens are quantised by blocks of
 * as many channels. */
typedef struct integer_format {
    int block;     /* channels of a block; of int8, which has no scales, those of a token's */
    int sub;       /* channels of a sub-block, whose sum of products is multiplied by an integer scale; else those of a block */
    int bits;      /* of a staged weight: NIBBLE_BITS, SIX_BITS or BYTE_BITS */
    int bias;      /* what is added to the weights' integers, so that staged ones are not negative where a product needs that */
    int narrow;    /* if not 0, how many products i_dot_narrow adds in 16 bits */
    bool scaled;   /* sub-blocks have integer scales */
    bool minimums; /* blocks have an f16 minimum, which sub-blocks that are scaled multiply by an integer, too */
} integer_format;

static inline integer_format integer_format_of(rapt_type type) {
    switch (type) {
    case RAPT_Q4_0:
        return (integer_format){RAPT_GROUP, RAPT_GROUP, NIBBLE_BITS, 8, NARROW_NIBBLES, false, false};
    case RAPT_Q4_1:
        return (integer_format){RAPT_GROUP, RAPT_GROUP, NIBBLE_BITS, 0, NARROW_NIBBLES, false, true};
    case RAPT_Q4_K:
        return (integer_format){256, 32, NIBBLE_BITS, 0, NARROW_NIBBLES, true, true};
    case RAPT_Q6_K:
        return (integer_format){256, 16, SIX_BITS, 32, NARROW_SIX_BITS, true, false};
    default:
        return (integer_format){RAPT_GROUP, RAPT_GROUP, BYTE_BITS, BYTE_BIAS, 0, false, false};
    }
}
_Static_assert(NARROW_NIBBLES * 2 * 15 * 127 < 1 << 15 && NARROW_SIX_BITS * 2 * 63 * 127 < 1 << 15, "16 bits hold the sums");

/* Quantised tokens of a pass. */
typedef struct integer_tokens {
    float *x;             /* [tokens][lanes_of] their integers */
    float *scales;        /* [tokens][blocks] */
    float *sums;          /* [tokens][sub-blocks] sums of integers */
    int32_t *corrections; /* [tokens][sub-blocks] what sums of products begin with, since weights have a bias */
    size_t blocks;        /* of a token */
} integer_tokens;

/* Scratch of a task. */
typedef struct integer_linear_scratch {
    integer_tokens tokens[2]; /* as the weights need them, and as the gate does: the same if these have one format */
    float *sums[2];           /* [tokens of a pass][TILE_OUTPUTS] of the weights, and of the gate */
    float *staged;            /* some channels of TILE_OUTPUTS rows, each sixteen as stage_sixteen writes it */
    float *rows;              /* [RAPT_PARTIAL_SUMS][INTEGER_PART] bytes, weights before they are transposed; or a token as f32 */
    float *outputs;           /* [2][RAPT_PARTIAL_SUMS] of a token, and the residual that is added to them */
} integer_linear_scratch;

/* Returns the number of groups of RAPT_GROUP channels that hold `channels` channels; the last one may be partial. */
static inline int64_t groups_of(int64_t channels) { return (channels + RAPT_GROUP - 1) / RAPT_GROUP; }

/* Returns the tokens of a pass: whole tiles. */
static int64_t integer_pass(const rapt_linear_problem *p, int64_t tokens) {
    const int64_t bytes = groups_of(p->in) * GROUP_LANES * (int64_t)sizeof(float);
    const int tile = RAPT_MATRIX_TOKENS ? RAPT_MATRIX_TOKENS : INTEGER_TOKENS;
    return rapt_min(tokens, rapt_max(1, INTEGER_PASS_BYTES / bytes / tile) * tile);
}

/* Returns the channels of part number `part` of the weights: INTEGER_PART, but for the last one. */
static inline int integer_part_channels(const rapt_linear_problem *p, int64_t part) {
    return rapt_min(INTEGER_PART, p->in - part * INTEGER_PART);
}

/* Where in a staged sixteen of some blocks what lies, in floats: first its dwords, then these, each [n][RAPT_PARTIAL_SUMS]. */
typedef struct staged_parts {
    size_t scales, minimums;         /* of blocks, each a staged_scale */
    size_t sub_scales, sub_minimums; /* the integers of sub-blocks, which are bytes */
    size_t end;
} staged_parts;

static inline staged_parts staged_parts_of(const integer_format f, int64_t groups) {
    const size_t channels = (size_t)groups * RAPT_GROUP, each = RAPT_PARTIAL_SUMS / sizeof(float),
                 of_blocks = channels / (size_t)f.block * sizeof(staged_scale) * each,
                 of_subs = f.scaled ? channels / (size_t)f.sub * each : 0;
    staged_parts at = {.scales = channels * (size_t)f.bits / 8 * each};
    at.minimums = at.scales + of_blocks;
    at.sub_scales = at.minimums + (f.minimums ? of_blocks : 0);
    at.sub_minimums = at.sub_scales + of_subs;
    at.end = padded(at.sub_minimums + (f.minimums ? of_subs : 0));
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
    return gated(p) && (gate.block != weight.block || gate.sub != weight.sub || gate.bias != weight.bias);
}

/* Returns the sub-blocks of a token. */
static inline size_t subs_of(const integer_format f, const integer_tokens *tokens) {
    return tokens->blocks * (size_t)(f.block / f.sub);
}

/* Returns the lanes of a token, and for a matrix unit a cache line more, so that the tokens of a tile, whose rows are often a
 * power of two, do not compete for the same cache sets (not measured). */
static inline size_t lanes_of(const integer_format f, const integer_tokens *tokens) {
    return tokens->blocks * (size_t)(f.block / LINEAR_DOT) + (RAPT_MATRIX_TOKENS ? 64 / sizeof(float) : 0);
}

/* Lays out what tokens of `groups` groups are quantised to for weights of this type. */
static integer_tokens lay_out_tokens(rapt_type type, float *memory, size_t *used, size_t tokens, size_t groups) {
    const integer_format f = integer_format_of(type);
    integer_tokens t = {.blocks = groups * RAPT_GROUP / (size_t)f.block};
    t.x = carve(memory, used, tokens * lanes_of(f, &t));
    t.scales = carve(memory, used, tokens * t.blocks);
    t.sums = carve(memory, used, tokens * subs_of(f, &t));
    t.corrections = (int32_t *)carve(memory, used, tokens * subs_of(f, &t));
    return t;
}

/* Returns tokens from number i on, and of them what lies from sub-block `sub` on. */
static RAPT_INLINE integer_tokens tokens_from(const integer_format f, const integer_tokens *tokens, size_t i, size_t sub) {
    integer_tokens from = *tokens;
    from.x += i * lanes_of(f, tokens) + sub * (size_t)(f.sub / LINEAR_DOT);
    from.scales += i * tokens->blocks + sub / (size_t)(f.block / f.sub);
    from.sums += i * subs_of(f, tokens) + sub;
    from.corrections += i * subs_of(f, tokens) + sub;
    return from;
}

/* Lays out the scratch of a task in memory, and returns its size in floats. With null memory it only counts them. */
static size_t lay_out_integer_linear(const rapt_linear_problem *p, float *memory, integer_linear_scratch *s, int64_t tokens) {
    const size_t pass = (size_t)integer_pass(p, tokens), groups = (size_t)groups_of(p->in);
    const size_t rows = RAPT_PARTIAL_SUMS * INTEGER_PART / sizeof(float), token = groups * RAPT_GROUP;
    size_t used = 0;
    s->tokens[0] = s->tokens[1] = lay_out_tokens(p->weight.type, memory, &used, pass, groups);
    if (differs_in_gate(p)) s->tokens[1] = lay_out_tokens(p->gate.type, memory, &used, pass, groups);
    s->sums[0] = carve(memory, &used, pass * TILE_OUTPUTS);
    s->sums[1] = carve(memory, &used, gated(p) ? pass * TILE_OUTPUTS : 0);
    s->staged = carve(memory, &used, INTEGER_SIXTEENS * most_staged(p, groups_of(integer_part_channels(p, 0))));
    s->rows = carve(memory, &used, rows > token ? rows : token);
    s->outputs = carve(memory, &used, 2 * RAPT_PARTIAL_SUMS);
    return used;
}

/* Returns the index of channel c of a group among the elements of a token's lanes: the elements of lane k of a dword are bytes k
 * and k + DWORD_LANES of it and so on, from the lowest one on. */
static inline int token_place(int c) {
    const int byte = ON_BIG_ENDIAN ? 3 - c % 4 : c % 4;
    return dot_place(c / 4 * 4 + byte % DWORD_LANES * LINEAR_DOT + byte / DWORD_LANES);
}

/* Quantises a block of a token, x, to lanes; sets its scale, NaN if the block has a NaN or an infinity, and the sums and
 * corrections of its sub-blocks. */
static void quantise_block(const integer_format f, const float *x, float *lanes, float *scale, float *sums,
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
        linear_element elements[RAPT_GROUP];
        for (int c = 0; c < RAPT_GROUP; c += RAPT_VL)
            v_store(n + c, v_as_float(nearest_int(v_mul(v_load(x + first + c), factor), v_set1(128.0f))));
        for (int c = 0; c < RAPT_GROUP; c++) elements[token_place(c)] = (int8_t)n[c];
        for (int sub = 0; sub < RAPT_GROUP / f.sub; sub++) {
            int32_t sum = 0;
            for (int c = sub * f.sub; c < (sub + 1) * f.sub; c++) sum += (int8_t)n[c];
            *sums++ = (float)sum;
            *corrections++ = -f.bias * sum;
        }
        memcpy(lanes + first / LINEAR_DOT, elements, sizeof elements);
    }
    v_store(bad, wrong);
    for (int i = 0; i < RAPT_VL; i++) total += bad[i];
    *scale = largest / 127.0f + total;
}

/* Quantises a token, whole blocks of channels, as number i of the tokens that weights of this type are multiplied with. */
static void quantise_token(rapt_type type, const float *x, const integer_tokens *tokens, int i) {
    const integer_format f = integer_format_of(type);
    for (size_t b = 0; b < tokens->blocks; b++) {
        const integer_tokens to = tokens_from(f, tokens, (size_t)i, b * (size_t)(f.block / f.sub));
        quantise_block(f, x + b * (size_t)f.block, to.x, to.scales, to.sums, to.corrections);
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
        quantise_token(p->weight.type, s->rows, &s->tokens[0], i);
        if (differs_in_gate(p)) quantise_token(p->gate.type, s->rows, &s->tokens[1], i);
    }
}

/* Where one row of a staged sixteen gets its integers and scales; those of a block or sub-block lie RAPT_PARTIAL_SUMS after those
 * of the one before. */
typedef struct staged_row {
    int8_t *integers; /* of all channels, one after the other */
    staged_scale *scales, *minimums;
    int8_t *sub_scales, *sub_minimums;
} staged_row;

/* Reads `count` blocks of q4_K. Minimums are subtracted, so their scales change their signs. */
static void read_blocks_q4_k(const char *from, int count, const staged_row *to) {
    const integer_format f = integer_format_of(RAPT_Q4_K);
    const int subs = f.block / f.sub;
    for (int b = 0; b < count; b++, from += weight_bytes(RAPT_Q4_K, f.block)) {
        unpack_q4_k(from, to->integers + b * f.block);
        to->scales[b * RAPT_PARTIAL_SUMS] = staged_scale_of(half_le(from));
        to->minimums[b * RAPT_PARTIAL_SUMS] = staged_scale_of(half_le(from + 2) ^ 0x8000);
        uint8_t scales[8], minimums[8];
        read_integers_q4_k(from, scales, minimums);
        for (int sub = 0; sub < subs; sub++) {
            to->sub_scales[(b * subs + sub) * RAPT_PARTIAL_SUMS] = (int8_t)scales[sub];
            to->sub_minimums[(b * subs + sub) * RAPT_PARTIAL_SUMS] = (int8_t)minimums[sub];
        }
    }
}

/* Reads `count` blocks of q6_K. */
static void read_blocks_q6_k(const char *from, int count, const staged_row *to) {
    const integer_format f = integer_format_of(RAPT_Q6_K);
    const int subs = f.block / f.sub;
    for (int b = 0; b < count; b++, from += weight_bytes(RAPT_Q6_K, f.block)) {
        unpack_q6_k(from, f.bias, to->integers + b * f.block);
        to->scales[b * RAPT_PARTIAL_SUMS] = staged_scale_of(half_le(scale_of_q6_k(from)));
        for (int sub = 0; sub < subs; sub++)
            to->sub_scales[(b * subs + sub) * RAPT_PARTIAL_SUMS] = (int8_t)scales_of_q6_k(from)[sub];
    }
}

/* Reads `channels` channels of a row of weights. */
static void read_integer_row(rapt_type type, const char *row, int channels, const staged_row *to) {
    const integer_format f = integer_format_of(type);
    const int groups = (int)groups_of(channels);
    switch (type) {
    case RAPT_Q4_K:
        read_blocks_q4_k(row, channels / f.block, to);
        break;
    case RAPT_Q6_K:
        read_blocks_q6_k(row, channels / f.block, to);
        break;
    case RAPT_INT8:
        unpack_integers(type, row, channels, f.bias, to->integers);
        for (int g = 0; g < groups; g++) to->scales[g * RAPT_PARTIAL_SUMS] = staged_scale_of(0x3c00); /* 1.0 */
        break;
    default:
        unpack_integers(type, row, channels, f.bias, to->integers);
        for (int g = 0; g < groups; g++, row += group_bytes(type)) {
            to->scales[g * RAPT_PARTIAL_SUMS] = staged_scale_of(half_le(row));
            if (f.minimums) to->minimums[g * RAPT_PARTIAL_SUMS] = staged_scale_of(half_le(row + 2));
        }
    }
}

/* Returns the bits `mask` of the elements of dwords, which lie `shift` bits above those of the result. */
static RAPT_INLINE vi elements_of(vi x, const uint32_t mask, const int shift) {
    return i_and(shift ? i_shr(x, shift) : x, i_set1((int32_t)(mask * (LINEAR_DOT == 4 ? 0x01010101 : 0x00010001))));
}

/* Stores dword number i of some rows as staged weights of so many bits, after all dwords before it. */
static RAPT_INLINE void stage_dword(const int bits, int i, vi x, float *to) {
    float *const at = to + (size_t)(i * bits / 8 * RAPT_PARTIAL_SUMS);
    if (bits == 4 && i % 2) v_store(at, v_as_float(i_or(v_as_int(v_load(at)), i_shl(x, 4))));
    else if (bits == 6 && i % 4) v_store(at, v_as_float(i_or(v_as_int(v_load(at)), x)));
    else if (bits == 6)
        UNROLLED(k, 3) v_store(at + k * RAPT_PARTIAL_SUMS, v_as_float(i_and(i_shl(x, 6 - 2 * k), i_set1((int32_t)0xc0c0c0c0))));
    else if (bits == 16)
        UNROLLED(k, 2) v_store(at + k * RAPT_PARTIAL_SUMS, v_as_float(elements_of(x, 255, 8 * k)));
    else v_store(at, v_as_float(x));
}

/* Arranges RAPT_VL dwords of as many rows, a vector for each dword, as sum_products wants them. Replaceable. */
static RAPT_INLINE void arrange_dwords(vf square[RAPT_VL]);
#ifndef arrange_dwords
static RAPT_INLINE void arrange_dwords(vf square[RAPT_VL]) { (void)square; }
#endif

/* Transposes sixteen rows of bytes, `dwords` dwords of each, to staged weights of so many bits. */
static RAPT_INLINE void transpose_rows(const int bits, const float *rows, int dwords, float *to) {
    const size_t ld = INTEGER_PART / sizeof(float);
    for (int r = 0; r < RAPT_PARTIAL_SUMS; r += RAPT_VL)
        for (int i = 0; i < dwords; i += RAPT_VL) {
            vf square[RAPT_VL];
            UNROLLED(j, RAPT_VL) square[j] = v_load(rows + (size_t)(r + j) * ld + i);
            v_transpose(square);
            arrange_dwords(square);
            for (int j = 0; j < RAPT_VL && i + j < dwords; j++) stage_dword(bits, i + j, v_as_int(square[j]), to + r);
        }
}

/* Stages a part of `rows` rows of the weights or the gate, from row `out` on: dwords, and what staged_parts names. Rows beyond
 * the last one are 0. */
static void stage_sixteen(const rapt_linear_task *t, const integer_linear_scratch *s, bool gate, int64_t out, int rows,
                          int64_t part, float *to) {
    const rapt_linear_problem *p = t->problem;
    const rapt_layout *const layout = layout_of(p, gate);
    const integer_format f = integer_format_of(layout->type);
    const int channels = integer_part_channels(p, part), groups = (int)groups_of(channels);
    const staged_parts at = staged_parts_of(f, groups);
    memset(to + at.scales, 0, (at.end - at.scales) * sizeof *to);
    for (int r = 0; r < RAPT_PARTIAL_SUMS; r++) {
        int8_t *const integers = (int8_t *)s->rows + r * INTEGER_PART;
        const int read = r < rows ? channels : 0;
        memset(integers + read, 0, (size_t)(groups * RAPT_GROUP - read));
        if (r < rows)
            read_integer_row(layout->type,
                             weights_of(t, gate)->rows + (size_t)((out + r) * layout->token_stride) +
                                 weight_bytes(layout->type, part * INTEGER_PART),
                             channels,
                             &(staged_row){.integers = integers,
                                           .scales = (staged_scale *)(to + at.scales) + r,
                                           .minimums = (staged_scale *)(to + at.minimums) + r,
                                           .sub_scales = (int8_t *)(to + at.sub_scales) + r,
                                           .sub_minimums = (int8_t *)(to + at.sub_minimums) + r});
    }
    if (f.bits == NIBBLE_BITS) transpose_rows(NIBBLE_BITS, s->rows, groups * RAPT_GROUP / 4, to);
    else if (f.bits == SIX_BITS) transpose_rows(SIX_BITS, s->rows, groups * RAPT_GROUP / 4, to);
    else transpose_rows(BYTE_BITS, s->rows, groups * RAPT_GROUP / 4, to);
}

/* Returns lane i of the staged weights at `from`. */
static RAPT_INLINE vi weights_lane(const integer_format f, const float *from, const int i) {
    if (f.bits == 32 / LINEAR_DOT) return v_as_int(v_load(from + i * RAPT_PARTIAL_SUMS));
    const int dword = i / DWORD_LANES, shift = i % DWORD_LANES * 8;
    from += dword * f.bits / 8 * RAPT_PARTIAL_SUMS;
    if (f.bits == 6 && dword % 4 == 0) {
        vi x = elements_of(v_as_int(v_load(from)), 0x03, shift + 6);
        x = i_or(x, elements_of(v_as_int(v_load(from + RAPT_PARTIAL_SUMS)), 0x0c, shift + 4));
        return i_or(x, elements_of(v_as_int(v_load(from + 2 * RAPT_PARTIAL_SUMS)), 0x30, shift + 2));
    }
    return elements_of(v_as_int(v_load(from)), (1u << f.bits) - 1, f.bits == 4 ? shift + dword % 2 * 4 : shift);
}

/* Adds lane i of a sub-block, the products of weights and a token, to *sum, or to *half, the sums of 16 bits that are added to
 * *sum before they could be too large. */
static RAPT_INLINE void integer_product(const integer_format f, const int i, vi weights, vi token, vi *half, vi *sum) {
#if RAPT_BYTE_DOTS
    if (f.narrow == 0) {
        *sum = i_dot_signed(*sum, weights, token);
        return;
    }
    *half = i_dot_narrow(i % f.narrow == 0 ? i_set1(0) : *half, weights, token);
    if ((i + 1) % f.narrow == 0) *sum = i_add(*sum, i_sum_pairs(*half));
#else
    (void)f, (void)i, (void)half;
    *sum = i_dot(*sum, weights, token);
#endif
}

/* Computes sums of a sub-block's products, acc[j * nv + v] those of token j of nt and vector v of nv of the outputs. Staged
 * dwords of a sixteen lie `apart` floats behind those of the one before. */
static RAPT_INLINE void sum_vectors(const int nt, const int nv, const integer_format f, const float *dwords, size_t apart,
                                    const integer_tokens tokens, vi *acc) {
    vi half[INTEGER_TOKENS * TILE_SUMS]; /* sums of 16 bits */
    UNROLLED(j, nt)
        UNROLLED(v, nv) acc[j * nv + v] = i_set1(f.bias ? tokens.corrections[(size_t)j * subs_of(f, &tokens)] : 0);
    UNROLLED(i, f.sub / LINEAR_DOT) {
        vi weights[TILE_SUMS];
        UNROLLED(v, nv) weights[v] = weights_lane(f, dwords + (size_t)(v / SUM_VECTORS) * apart + v % SUM_VECTORS * RAPT_VL, i);
        UNROLLED(j, nt) {
            const vi token = v_as_int(v_broadcast(tokens.x + (size_t)j * lanes_of(f, &tokens) + i));
            UNROLLED(v, nv) integer_product(f, i, weights[v], token, &half[j * nv + v], &acc[j * nv + v]);
        }
    }
}

/* Does what sum_vectors does, and for RAPT_MATRIX_TOKENS tokens and one sixteen, too. Replaceable. */
static RAPT_INLINE void sum_products(const int nt, const int nv, const integer_format f, const float *dwords, size_t apart,
                                     const integer_tokens tokens, vi *acc);
#ifndef sum_products
static RAPT_INLINE void sum_products(const int nt, const int nv, const integer_format f, const float *dwords, size_t apart,
                                     const integer_tokens tokens, vi *acc) {
    sum_vectors(nt, nv, f, dwords, apart, tokens, acc);
}
#endif

/* Adds the products of `groups` groups of nt tokens and staged sixteens, nv vectors of outputs in all, to the tokens' sums, which
 * lie TILE_OUTPUTS apart. Sixteens lie `apart` floats apart. ahead: how far ahead weights are prefetched, in bytes, or 0. */
static RAPT_INLINE void integer_tile(const int nt, const int nv, const integer_format f, const float *staged, size_t apart,
                                     int groups, const integer_tokens tokens, size_t ahead, float *sums) {
    enum {
        MOST = RAPT_MATRIX_TOKENS * SUM_VECTORS > INTEGER_TOKENS * TILE_SUMS ? RAPT_MATRIX_TOKENS * SUM_VECTORS
                                                                             : INTEGER_TOKENS * TILE_SUMS
    };
    const int subs = f.block / f.sub;
    const staged_parts at = staged_parts_of(f, groups);
    const size_t sub_floats = (size_t)(f.sub * f.bits / 32 * RAPT_PARTIAL_SUMS);
    vf y[MOST];
    UNROLLED(j, nt)
        UNROLLED(v, nv) y[j * nv + v] = v_load(sums + j * TILE_OUTPUTS + v * RAPT_VL);
    for (size_t n = 0; n < (size_t)(nv / SUM_VECTORS) && ahead; n++)
        prefetch_row((const char *)(staged + n * apart + at.scales), ahead, (at.end - at.scales) * sizeof(float));
    for (int b = 0; b < groups * RAPT_GROUP / f.block; b++) {
        vi total[MOST];
        UNROLLED(n, nt * nv) total[n] = i_set1(0);
        for (int sub = b * subs; sub < (b + 1) * subs; sub++) {
            const float *const dwords = staged + (size_t)sub * sub_floats;
            vi acc[MOST];
            for (size_t n = 0; n < (size_t)(nv / SUM_VECTORS) && ahead; n++)
                prefetch_row((const char *)(dwords + n * apart), ahead, sub_floats * sizeof(float));
            sum_products(nt, nv, f, dwords, apart, tokens_from(f, &tokens, 0, (size_t)sub), acc);
            UNROLLED(v, nv) {
                const float *const scales = staged + (size_t)(v / SUM_VECTORS) * apart + at.sub_scales;
                const vi scale =
                    f.scaled ? i_load_s8((const char *)scales + sub * RAPT_PARTIAL_SUMS + v % SUM_VECTORS * RAPT_VL) : i_set1(1);
                UNROLLED(j, nt) {
                    const int n = j * nv + v;
                    if (f.scaled) acc[n] = i_mul(acc[n], scale);
                    total[n] = i_add(total[n], acc[n]);
                }
            }
        }
        UNROLLED(v, nv) {
            const float *const from = staged + (size_t)(v / SUM_VECTORS) * apart;
            const int n = b * RAPT_PARTIAL_SUMS + v % SUM_VECTORS * RAPT_VL;
            const vf scale = v_load_scales((const staged_scale *)(from + at.scales) + n);
            const vf minimum = f.minimums ? v_load_scales((const staged_scale *)(from + at.minimums) + n) : v_set1(0.0f);
            vf token_sums[MOST_TILE_TOKENS]; /* each times the minimums of its sub-blocks: exact integers, as f32 */
            UNROLLED(j, nt)
                token_sums[j] = v_set1(f.minimums && !f.scaled ? tokens.sums[(size_t)j * subs_of(f, &tokens) + (size_t)b] : 0.0f);
            for (int sub = b * subs; sub < (b + 1) * subs && f.minimums && f.scaled; sub++) {
                const char *const integers = (const char *)(from + at.sub_minimums) + v % SUM_VECTORS * RAPT_VL;
                const vf integer = v_from_int(i_load_s8(integers + sub * RAPT_PARTIAL_SUMS));
                UNROLLED(j, nt)
                    token_sums[j] =
                        v_fma(integer, v_set1(tokens.sums[(size_t)j * subs_of(f, &tokens) + (size_t)sub]), token_sums[j]);
            }
            UNROLLED(j, nt) {
                const int k = j * nv + v;
                const vf of_token = v_set1(tokens.scales[(size_t)j * tokens.blocks + (size_t)b]);
                y[k] = v_fma(v_from_int(total[k]), v_mul(scale, of_token), y[k]);
                if (f.minimums) y[k] = v_fma(token_sums[j], v_mul(minimum, of_token), y[k]);
            }
        }
    }
    UNROLLED(j, nt)
        UNROLLED(v, nv) v_store(sums + j * TILE_OUTPUTS + v * RAPT_VL, y[j * nv + v]);
}

/* Adds the products of a staged part of sixteens and all tokens of a pass to their sums. The first tile of tokens prefetches
 * weights. */
static RAPT_INLINE void multiply_staged_as(const integer_format f, const rapt_linear_problem *p, const integer_tokens *x,
                                           const float *staged, size_t apart, size_t ahead, int64_t part, int tokens,
                                           float *sums) {
    const int groups = (int)groups_of(integer_part_channels(p, part));
    for (int i = 0, nt; i < tokens; i += nt, ahead = 0) {
        const bool matrix = RAPT_MATRIX_TOKENS && tokens - i >= RAPT_MATRIX_TOKENS;
        nt = matrix ? RAPT_MATRIX_TOKENS : (int)even_part(tokens - i, INTEGER_TOKENS);
        const integer_tokens from = tokens_from(f, x, (size_t)i, (size_t)part * (size_t)(INTEGER_PART / f.sub));
        float *const to = sums + i * TILE_OUTPUTS;
        for (int n = 0; n < INTEGER_SIXTEENS && matrix; n++)
            integer_tile(RAPT_MATRIX_TOKENS, SUM_VECTORS, f, staged + (size_t)n * apart, 0, groups, from, ahead,
                         to + n * RAPT_PARTIAL_SUMS);
        if (matrix) continue;
        if (INTEGER_TOKENS >= 6 && nt == 6) integer_tile(6, TILE_SUMS, f, staged, apart, groups, from, ahead, to);
        else if (INTEGER_TOKENS >= 5 && nt == 5) integer_tile(5, TILE_SUMS, f, staged, apart, groups, from, ahead, to);
        else if (INTEGER_TOKENS >= 4 && nt == 4) integer_tile(4, TILE_SUMS, f, staged, apart, groups, from, ahead, to);
        else if (INTEGER_TOKENS >= 3 && nt == 3) integer_tile(3, TILE_SUMS, f, staged, apart, groups, from, ahead, to);
        else if (INTEGER_TOKENS >= 2 && nt == 2) integer_tile(2, TILE_SUMS, f, staged, apart, groups, from, ahead, to);
        else integer_tile(1, TILE_SUMS, f, staged, apart, groups, from, ahead, to);
    }
}

/* Does what multiply_staged_as does, for weights of this type. */
static RAPT_NOINLINE void multiply_staged(rapt_type type, const rapt_linear_problem *p, const integer_tokens *x,
                                          const float *staged, size_t apart, size_t ahead, int64_t part, int tokens,
                                          float *sums) {
    switch (NIBBLE_BITS == BYTE_BITS && type == RAPT_Q4_0 ? RAPT_INT8 : type) { /* which then differ in the corrections alone */
#define RAPT_STAGED_TYPE(name)                                                                                                   \
    case name:                                                                                                                   \
        multiply_staged_as(integer_format_of(name), p, x, staged, apart, ahead, part, tokens, sums);                             \
        break;
        RAPT_STAGED_TYPE(RAPT_Q4_0)
        RAPT_STAGED_TYPE(RAPT_Q4_1)
        RAPT_STAGED_TYPE(RAPT_Q4_K)
        RAPT_STAGED_TYPE(RAPT_Q6_K)
#undef RAPT_STAGED_TYPE
    default:
        multiply_staged_as(integer_format_of(RAPT_INT8), p, x, staged, apart, ahead, part, tokens, sums);
    }
}

static uint64_t packed_integer_floats(const rapt_linear_problem *p) {
    return (uint64_t)((p->out + RAPT_PARTIAL_SUMS - 1) / RAPT_PARTIAL_SUMS) * most_staged(p, groups_of(p->in));
}

/* Returns the address of a part of packed weights, of the sixteen that begins with row `out`. A sixteen's parts lie one after the
 * other, each as it is staged. */
static inline size_t packed_integers_at(const rapt_linear_problem *p, rapt_type type, int64_t out, int64_t part) {
    return (size_t)(out / RAPT_PARTIAL_SUMS) * staged_sixteen(type, groups_of(p->in)) +
           staged_sixteen(type, part * INTEGER_PART / RAPT_GROUP);
}

static void pack_integer_weights(const rapt_linear_task *t, bool gate, float *packed) {
    const rapt_linear_problem *p = t->problem;
    const rapt_type type = layout_of(p, gate)->type;
    float rows[RAPT_PARTIAL_SUMS * INTEGER_PART / sizeof(float)];
    const integer_linear_scratch s = {.rows = rows};
    for (int64_t out = t->out0; out < t->out0 + t->outs; out += RAPT_PARTIAL_SUMS)
        for (int64_t part = 0; part * INTEGER_PART < p->in; part++)
            stage_sixteen(t, &s, gate, out, rapt_min(RAPT_PARTIAL_SUMS, t->out0 + t->outs - out), part,
                          packed + packed_integers_at(p, type, out, part));
    if (t->out0 + t->outs < p->out) return;
    /* The other weights of a layer with a gate may take more, and as many floats are kept of these. */
    const size_t used = packed_integers_at(p, type, (int64_t)padded((size_t)p->out), 0);
    memset(packed + used, 0, ((size_t)packed_integer_floats(p) - used) * sizeof(float));
}

/* Returns how far ahead of a part of packed weights memory is read, in bytes: at the same place of a later part, which at the end
 * of a tile's sixteens is one of the next tile. Where all parts are whole each line is so prefetched once, and scales are, too
 * (1.06 to 1.43 times as fast as 8 KiB ahead of the dwords alone, one token, AMD EPYC, Zen 4). apart: the floats of a packed
 * sixteen. */
static inline size_t bytes_ahead(const rapt_linear_problem *p, rapt_type type, int64_t part, size_t apart) {
    const int64_t parts = (p->in + INTEGER_PART - 1) / INTEGER_PART, ahead = rapt_min(parts, INTEGER_AHEAD);
    const size_t whole = staged_sixteen(type, INTEGER_PART / RAPT_GROUP);
    return (part + ahead < parts ? (size_t)ahead * whole : INTEGER_SIXTEENS * apart - (size_t)(parts - ahead) * whole) *
           sizeof(float);
}

/* Computes the sums of `rows` rows of the weights, or of the gate, at most TILE_OUTPUTS, for the tokens of a pass. A register
 * tile has INTEGER_SIXTEENS sixteens: where there are fewer, the first one fills it. */
static void sum_rows(const rapt_linear_task *t, const integer_linear_scratch *s, bool gate, int64_t out, int rows, int tokens) {
    const rapt_linear_problem *p = t->problem;
    const rapt_type type = layout_of(p, gate)->type;
    const float *packed = weights_of(t, gate)->packed;
    memset(s->sums[gate], 0, (size_t)tokens * TILE_OUTPUTS * sizeof *s->sums[gate]);
    for (int64_t part = 0; part * INTEGER_PART < p->in; part++) {
        const size_t apart = staged_sixteen(type, groups_of(packed ? p->in : integer_part_channels(p, part)));
        for (int n = 0; n < rows && !packed; n += RAPT_PARTIAL_SUMS)
            stage_sixteen(t, s, gate, out + n, rapt_min(RAPT_PARTIAL_SUMS, rows - n), part,
                          s->staged + (size_t)(n / RAPT_PARTIAL_SUMS) * apart);
        multiply_staged(type, p, &s->tokens[gate], packed ? packed + packed_integers_at(p, type, out, part) : s->staged,
                        rows > RAPT_PARTIAL_SUMS ? apart : 0, packed ? bytes_ahead(p, type, part, apart) : 0, part, tokens,
                        s->sums[gate]);
    }
}

/* Ends the sums of `rows` rows of a sixteen, from row `out` on, which are sums `first` and following of a tile, and writes the
 * outputs of the tokens of a pass, from number token0 on. */
static void end_sixteen(const rapt_linear_task *t, const integer_linear_scratch *s, int64_t out, int first, int rows,
                        int64_t token0, int tokens) {
    const rapt_linear_problem *p = t->problem;
    output_ends ends[2];
    for (int gate = 0; gate <= gated(p); gate++) ends[gate] = ends_of(t, gate, out, rows);
    for (int i = 0; i < tokens; i++) {
        vf outputs[2][SUM_VECTORS];
        for (int gate = 0; gate <= gated(p); gate++) {
            for (int v = 0; v < SUM_VECTORS; v++)
                outputs[gate][v] = v_load(s->sums[gate] + i * TILE_OUTPUTS + first + v * RAPT_VL);
            end_sums(p, gate, &ends[gate], outputs[gate]);
        }
        for (int v = 0; v < SUM_VECTORS; v++)
            v_store(s->outputs + v * RAPT_VL, gated(p) ? v_mul(outputs[1][v], outputs[0][v]) : outputs[0][v]);
        write_outputs(t, token0 + i, out, rows, s->outputs, s->outputs + RAPT_PARTIAL_SUMS);
    }
}

/* Computes a task, pass by pass of its tokens and TILE_OUTPUTS by TILE_OUTPUTS of its outputs. */
static void linear_integers(const rapt_linear_task *t) {
    const rapt_linear_problem *p = t->problem;
    integer_linear_scratch s;
    lay_out_integer_linear(p, t->scratch, &s, t->tokens);
    const int64_t pass = integer_pass(p, t->tokens);
    for (int64_t done = 0; done < t->tokens; done += pass) {
        const int tokens = rapt_min(pass, t->tokens - done);
        quantise_tokens(t, &s, t->token0 + done, tokens);
        for (int64_t n = 0; n < t->outs; n += TILE_OUTPUTS) {
            const int rows = rapt_min(TILE_OUTPUTS, t->outs - n);
            for (int gate = 0; gate <= gated(p); gate++) sum_rows(t, &s, gate, t->out0 + n, rows, tokens);
            for (int first = 0; first < rows; first += RAPT_PARTIAL_SUMS)
                end_sixteen(t, &s, t->out0 + n + first, first, rapt_min(RAPT_PARTIAL_SUMS, rows - first), t->token0 + done,
                            tokens);
        }
    }
}
