/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers, in the order of docs/order.md. In exact arithmetic channel c of a part is added to partial sum number c modulo
 * RAPT_PARTIAL_SUMS (16); bf16 arithmetic has other sums, and for few tokens outputs in lanes (bf16/bf16_linear.h). There are two
 * ways through memory. Many tokens lie in lanes, and the rows of weights are the broadcast side of the tile product, one partial
 * sum after the other. For few tokens, a vector of weights as it lies in memory holds RAPT_VL partial sums, so weights are read
 * once, a row at a time, or several side by side where rows are long, weights take less than two bytes, or tokens fill a register
 * tile. A "sixteen" is RAPT_PARTIAL_SUMS adjacent channels. Included by attend.h. */

/* Scratch of a task of few tokens. */
typedef struct few_scratch {
    float *x;      /* [sixteens][tokens][16], padded with zeros; bf16 arithmetic: [tokens][whole steps of channels], or for packed
                    * weights as      place_token_for_packed says */
    float *copied; /* bf16 arithmetic: a part of 16 rows of weights that cannot be multiplied where they lie */
    float *row;    /* a token, or such a row of weights, as f32 */
    float *sums;   /* as in linear_rows; bf16 arithmetic: [tokens][16]. Used for the weights, and then anew for the gate */
    float *outputs; /* [2][16]: of a token, and the residual that is added to them */
} few_scratch;

/* Scratch of a task of many tokens. */
typedef struct many_scratch {
    float *x;       /* per tile of tokens [in, in the order of sums][TILE_ROWS]; bf16: [steps][RAPT_BF16_STEP_FLOATS] */
    float *weights; /* a part of the staged rows: [rows][ld_weights]; bf16 arithmetic: as stage_bf16_weights lays them out */
    float *row;     /* one row of weights, where COPIES > 1 or in bf16 arithmetic */
    float *sums[2]; /* of the weights, and of the gate: per tile of tokens [staged rows][TILE_ROWS] */
    float *outputs; /* [RAPT_VL][padded staged rows]: of as many tokens; then the residual of one */
    float *even;    /* bf16 arithmetic: the sums of the even channels of a step */
} many_scratch;

/* Returns the bytes that `channels` channels of a row of weights take, or 0 for less than a group. */
static inline int64_t weight_bytes(rapt_type type, int64_t channels) {
    switch (type) {
#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    case name:                                                                                                                   \
        return channels / group * bytes;
        RAPT_WEIGHT_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
    default:
        return 0;
    }
}

/* Returns the weights of the layer, or of its gate. */
static inline const rapt_linear_weights *weights_of(const rapt_linear_task *t, bool gate) { return gate ? &t->gate : &t->weight; }
/* Returns their layout. */
static inline const rapt_layout *layout_of(const rapt_linear_problem *p, bool gate) { return gate ? &p->gate : &p->weight; }
/* True if the layer has a gate. */
static inline bool gated(const rapt_linear_problem *p) { return p->gate.type != RAPT_NONE; }

/* Returns the number of channels of a part: RAPT_LINEAR_PART, but for the last one. */
static inline int part_channels(const rapt_linear_problem *p, int64_t part) {
    return rapt_min(RAPT_LINEAR_PART, p->in - part * RAPT_LINEAR_PART);
}

/* Returns the address of a part of row `out` of the weights, or of the gate. */
static inline const char *weight_row(const rapt_linear_task *t, bool gate, int64_t out, int64_t part) {
    const rapt_layout *layout = layout_of(t->problem, gate);
    return weights_of(t, gate)->rows + (size_t)(out * layout->token_stride) + weight_bytes(layout->type, part * RAPT_LINEAR_PART);
}

/* Returns the number of sixteens that hold `channels` channels; the last one may be partial. It is also the most channels that
 * one partial sum has. */
static inline int part_runs(int channels) { return (channels + RAPT_PARTIAL_SUMS - 1) / RAPT_PARTIAL_SUMS; }

/* Returns the floats from row to row of staged weights. */
static inline size_t ld_weights(const rapt_linear_problem *p) {
    return RAPT_PARTIAL_SUMS * padded((size_t)part_runs(part_channels(p, 0))) * COPIES + RAPT_ROW_PADDING;
}

/* Cuts n items into as few parts of at most `most` items as possible, of nearly equal size, and returns that size. */
static inline int64_t even_part(int64_t n, int64_t most) {
    int64_t parts = (n + most - 1) / most;
    return (n + parts - 1) / parts;
}

/* Returns the most rows of weights that are staged at a time: a multiple of 48, which is whole register tiles of 2, 3, 4, 6, 8,
 * 12 or 16 rows. */
static int most_rows(const rapt_linear_problem *p) {
    enum { WHOLE = 48 };
    int rows = (int)p->staged_weights / COPIES / part_channels(p, 0) / WHOLE * WHOLE;
    return rapt_min(rapt_max(rows, WHOLE), RAPT_STAGED_ROWS);
}

/* True if this task multiplies few tokens by packed weights, and reads no others. */
static inline bool few_read_packed(const rapt_linear_task *t) {
    return RAPT_BF16_PACKED_TOKENS > 0 && BF16 && t->weight.packed && (!gated(t->problem) || t->gate.packed);
}

#include "bf16/bf16_linear.h"

/* Returns the floats of `channels` channels of a staged tile of tokens. */
static inline size_t token_floats(int64_t channels) {
    return BF16 ? whole_steps(channels) / RAPT_STEP * RAPT_BF16_STEP_FLOATS : padded((size_t)channels) * TILE_ROWS;
}

/* Returns the most tiles of tokens that are multiplied with the same staged rows: RAPT_LINEAR_TILES, half of that with a gate,
 * since each then has twice the sums, and what RAPT_STAGED_FLOATS holds, but at least one. */
static int most_tiles(const rapt_linear_problem *p) {
    return rapt_max(1, rapt_min(RAPT_LINEAR_TILES >> gated(p), RAPT_STAGED_FLOATS / (int64_t)token_floats(p->in)));
}

/* True if these are few tokens (rapt_tuning.few_tokens): weights are then multiplied where they lie in memory, unless
 * few_read_packed. */
static inline bool are_few(const rapt_linear_problem *p, int64_t tokens) { return tokens <= p->few_tokens; }

/* True if the tokens of this task are few, for its weights as they lie or as they are packed. */
static inline bool has_few_tokens(const rapt_linear_task *t) {
    return are_few(t->problem, t->tokens) || (t->tokens <= RAPT_BF16_PACKED_TOKENS && few_read_packed(t));
}

/* Returns the channels of a staged token of few: whole steps in bf16 arithmetic, else whole sixteens. */
static inline size_t few_channels(const rapt_linear_problem *p) { return BF16 ? whole_steps(p->in) : padded((size_t)p->in); }

/* Lays out the scratch of few tokens in memory, and returns its size in floats. With null memory it only counts them. */
static size_t lay_out_few(const rapt_linear_problem *p, float *memory, few_scratch *s, int64_t tokens) {
    size_t used = 0, in = few_channels(p);
    size_t sums = BF16 ? 1 : (in + RAPT_LINEAR_PART - 1) / RAPT_LINEAR_PART * RAPT_PARTIAL_SUMS;
    *s = (few_scratch){.x = carve(memory, &used, (size_t)tokens * in),
                       .copied = carve(memory, &used, BF16 ? bf16_copied_floats(p) : 0),
                       .row = carve(memory, &used, in),
                       .sums = carve(memory, &used, sums * (size_t)tokens * RAPT_PARTIAL_SUMS),
                       .outputs = carve(memory, &used, 2 * RAPT_PARTIAL_SUMS)};
    return used;
}

/* Lays out the scratch of many tokens in memory, and returns its size in floats. With null memory it only counts them. */
static size_t lay_out_many(const rapt_linear_problem *p, float *memory, many_scratch *s, int64_t tokens, int64_t outs) {
    size_t used = 0, tiles = (size_t)rapt_min(most_tiles(p), (tokens + TILE_ROWS - 1) / TILE_ROWS),
           staged_rows = padded((size_t)rapt_min(most_rows(p), outs)), sums = tiles * staged_rows * TILE_ROWS,
           unpacked = BF16 ? RAPT_STEP * TILE_ROWS : 0; /* stage_bf16_tokens */
    *s = (many_scratch){.x = carve(memory, &used, tiles * token_floats(p->in) + unpacked),
                        .weights = carve(memory, &used, BF16 ? bf16_weight_floats(p, staged_rows) : staged_rows * ld_weights(p)),
                        .row = carve(memory, &used,
                                     BF16          ? RAPT_LINEAR_PART
                                     : COPIES == 1 ? 0
                                                   : ld_weights(p)),
                        .sums = {carve(memory, &used, sums), carve(memory, &used, gated(p) ? sums : 0)},
                        .outputs = carve(memory, &used, (RAPT_VL + 1) * (staged_rows + RAPT_VL)),
                        .even = carve(memory, &used, BF16 ? (size_t)BF16_PRODUCT_ROWS * TILE_ROWS : 0)};
    return used;
}

/* ---- The end of a sum ---------------------------------------------------------------------------------------------------- */

/* Returns sum * scale + bias. Adding 0 first turns -0 into +0: a partial sum that no channel belongs to may decide which of the
 * two a sum is. */
static RAPT_INLINE vf scaled_sum(vf sum, vf scale, vf bias) { return v_fma(v_add(sum, v_set1(0.0f)), scale, bias); }

/* Applies the activation to n vectors. Never inlined: it is much code, which would be repeated for each vector of a tile. */
static RAPT_NOINLINE void activate(rapt_activation activation, vf *y, int n) {
    switch (activation) {
    case RAPT_RELU:
        for (int i = 0; i < n; i++)
            y[i] = v_add(v_max(v_set1(0.0f), y[i]), v_set1(0.0f)); /* the maximum of 0 and -0 may be either */
        break;
    case RAPT_GELU:
        for (int i = 0; i < n; i++) y[i] = v_gelu(y[i]);
        break;
    case RAPT_GELU_TANH:
        for (int i = 0; i < n; i++) y[i] = v_gelu_tanh(y[i]);
        break;
    case RAPT_SILU:
        for (int i = 0; i < n; i++) y[i] = v_silu(y[i]);
        break;
    default:
        break;
    }
}

/* The scales and biases of a sixteen of outputs. Beyond the last output, the last one's are repeated. */
typedef struct output_ends {
    float scales[RAPT_PARTIAL_SUMS], biases[RAPT_PARTIAL_SUMS];
} output_ends;

/* Returns the ends of `rows` rows of the weights, or of the gate, from row `out` on. */
static output_ends ends_of(const rapt_linear_task *t, bool gate, int64_t out, int rows) {
    const rapt_linear_weights *w = weights_of(t, gate);
    output_ends ends;
    for (int r = 0; r < RAPT_PARTIAL_SUMS; r++) {
        int64_t n = out + rapt_min(r, rows - 1);
        ends.scales[r] = w->scales ? w->scales[n] : 1.0f;
        ends.biases[r] = w->bias ? w->bias[n] : 0.0f;
    }
    return ends;
}

/* Turns a token's sums of a sixteen of rows of the weights or the gate into outputs, activated where the activation applies to
 * them: to the gate, if there is one. */
static void end_sums(const rapt_linear_problem *p, bool gate, const output_ends *ends, vf sums[SUM_VECTORS]) {
    for (int v = 0; v < SUM_VECTORS; v++)
        sums[v] = scaled_sum(sums[v], v_load(ends->scales + v * RAPT_VL), v_load(ends->biases + v * RAPT_VL));
    if (gate == gated(p)) activate(p->activation, sums, SUM_VECTORS);
}

/* Returns the bytes from the start of x, y or the residual to a token, which is counted through the batch. */
static inline size_t token_offset(const rapt_linear_problem *p, const rapt_layout *layout, int64_t token) {
    return (size_t)(token / p->tokens * layout->batch_stride + token % p->tokens * layout->token_stride);
}

/* Adds the residual to `outs` outputs of a token, and writes them. row: the outputs, and residual: scratch for as many, both in
 * whole vectors. */
static void write_outputs(const rapt_linear_task *t, int64_t token, int64_t out0, int outs, float *row, float *residual) {
    const rapt_linear_problem *p = t->problem;
    if (p->residual.type) {
        const char *from = t->residual + token_offset(p, &p->residual, token) + out0 * rapt_element_bytes(p->residual.type);
        stage_element_rows(p->residual.type, residual, 0, &from, 1, 0, outs);
        for (int n = 0; n < outs; n += RAPT_VL) v_store(row + n, v_add(v_load(row + n), v_load(residual + n)));
    }
    store_row(p->y.type, t->y + token_offset(p, &p->y, token) + out0 * rapt_element_bytes(p->y.type), row, outs);
}

/* ---- Few tokens: channels in lanes, in bf16 arithmetic outputs ------------------------------------------------------------ */

enum { MOST_LINEAR_ROWS = RAPT_LINEAR_SUMS > 8 ? 8 : RAPT_LINEAR_SUMS }; /* of weights, of any register tile */

/* Computes sums[r][t], the partial sums of nr rows of weights and nt tokens over the channels of a part. A token's sixteens lie
 * ldx floats apart, the last one padded with zeros; rows of weights lie `stride` bytes apart, and what lies `ahead` bytes further
 * on is prefetched. bytes: of a group of channels; 0, with a group of 1, for rows in the cache that `load` reads by the channel.
 * Replaceable. */
static RAPT_INLINE void linear_tile(load_channels *load, const int group, const size_t bytes, const int nr, const int nt,
                                    const char *weights, size_t stride, size_t ahead, const float *x, size_t ldx, int channels,
                                    float *sums, size_t ld);
#ifndef linear_tile
static RAPT_INLINE void linear_tile(load_channels *load, const int group, const size_t bytes, const int nr, const int nt,
                                    const char *weights, size_t stride, size_t ahead, const float *x, size_t ldx, int channels,
                                    float *sums, size_t ld) {
    /* Channels of a step: a group of 32, so that what its channels share is computed once, or a sixteen; and from one prefetch to
     * the next, groups of a line of 64 bytes. */
    const int step = group > 1 && RAPT_VL > 1 ? RAPT_GROUP : RAPT_PARTIAL_SUMS;
    const int line = bytes == 0 ? RAPT_LINEAR_PART : 64 / (int)bytes * group;
    vf acc[16], w[MOST_LINEAR_ROWS];
    UNROLLED(a, nr * nt * SUM_VECTORS) acc[a] = v_set1(0.0f);
    int i = 0;
    for (; i + step <= channels; i += step) {
        if (i % line == 0)
            UNROLLED(r, nr) prefetch(weights, (size_t)r * stride + (size_t)i * bytes / (size_t)group + ahead);
        if (group > 1) { /* row by row, so that the words of one group at a time are in registers */
            const char *from = weights + (size_t)i / (size_t)group * bytes;
            const int at = i % group / step * step; /* which the compiler sees to be whole steps */
            UNROLLED(r, nr)
                UNROLLED(v, step / RAPT_VL) {
                    const vf weight = load(from + (size_t)r * stride, at + v * RAPT_VL);
                    const float *tokens = x + (size_t)(v / SUM_VECTORS) * ldx + v % SUM_VECTORS * RAPT_VL;
                    UNROLLED(j, nt) {
                        const int a = (r * nt + j) * SUM_VECTORS + v % SUM_VECTORS;
                        acc[a] = v_fma(weight, v_load(tokens + j * RAPT_PARTIAL_SUMS), acc[a]);
                    }
                }
        } else
            UNROLLED(v, SUM_VECTORS) {
                UNROLLED(r, nr) w[r] = load(weights + (size_t)r * stride, i + v * RAPT_VL);
                /* Or gcc 12 loads w anew for each token, and below a token for each row. With one token these lose 15 % of q4_K
                 * and q6_K (AMD EPYC, Zen 4). */
                if (nt > 1) __asm__ volatile("" ::: "memory");
                UNROLLED(j, nt) {
                    const vf token = v_load(x + j * RAPT_PARTIAL_SUMS + v * RAPT_VL);
                    if (nt > 1 && nr > 1) __asm__ volatile("" ::: "memory");
                    UNROLLED(r, nr) acc[(r * nt + j) * SUM_VECTORS + v] = v_fma(w[r], token, acc[(r * nt + j) * SUM_VECTORS + v]);
                }
            }
        x += ldx * (size_t)(step / RAPT_PARTIAL_SUMS);
    }
    if (group == 1 && bytes > 0 && i < channels)
        UNROLLED(v, SUM_VECTORS) {
            const int at = rapt_min(i + v * RAPT_VL, channels), left = rapt_min(RAPT_VL, channels - at);
            UNROLLED(r, nr) w[r] = load_last(load, bytes, weights + (size_t)r * stride, at, left);
            UNROLLED(j, nt) {
                const vf token = v_load(x + j * RAPT_PARTIAL_SUMS + v * RAPT_VL);
                UNROLLED(r, nr) acc[(r * nt + j) * SUM_VECTORS + v] = v_fma(w[r], token, acc[(r * nt + j) * SUM_VECTORS + v]);
            }
        }
    UNROLLED(r, nr)
        UNROLLED(j, nt)
            UNROLLED(v, SUM_VECTORS)
                v_store(sums + (size_t)r * ld + j * RAPT_PARTIAL_SUMS + v * RAPT_VL, acc[(r * nt + j) * SUM_VECTORS + v]);
}
#endif

/* Returns the largest power of two that is at most n and `most`, which is one itself. */
static inline int power_below(int n, int most) {
    int power = most;
    while (power > n) power /= 2;
    return power;
}

/* Returns the rows of weights of a register tile with nt tokens. */
static inline int linear_rows_of(int nt) { return rapt_min(RAPT_LINEAR_SUMS / nt, MOST_LINEAR_ROWS); }

/* The most tokens of a register tile with weights of a byte or more. Fewer tokens leave room for more rows of weights, which
 * share the loads of a token; narrower weights cost more to convert, so each is better multiplied by RAPT_LINEAR_TOKENS. Measured
 * on an AMD EPYC (Zen 4), see docs/experiments/linear.md. */
enum { TOKENS_OF_BYTES = RAPT_LINEAR_TOKENS < 4 ? RAPT_LINEAR_TOKENS : 4 };

/* The rows of weights of which each tile of tokens takes a part before the next tile, so that its tokens stay in the L1 cache.
 * Where a register tile has 2 sums, taking several loses up to 16 % of long rows (sse41 on the same CPU). */
enum { TURN_ROWS = RAPT_LINEAR_SUMS < 4 ? 1 : MOST_LINEAR_ROWS };

/* Computes a linear_tile of nt tokens and the rows of a register tile, or with `single` one row. Compiles to nothing for an nt
 * above `widest`, which never occurs. */
static RAPT_INLINE void linear_tile_of(load_channels *load, const int group, const size_t bytes, const int widest, const int nt,
                                       bool single, const char *weights, size_t stride, size_t ahead, const float *x,
                                       int channels, float *sums, size_t ld) {
    if (nt > RAPT_LINEAR_TOKENS || nt > widest) return; /* gcc 12 warns without the first */
    if (single) linear_tile(load, group, bytes, 1, nt, weights, stride, ahead, x, ld, channels, sums, ld);
    else linear_tile(load, group, bytes, linear_rows_of(nt), nt, weights, stride, ahead, x, ld, channels, sums, ld);
}

/* Computes the partial sums of one part for `rows` rows and all tokens: `most` at a time, which is at most `widest`, and then
 * smaller powers of two. */
static RAPT_INLINE void linear_part_as(load_channels *load, const int group, const size_t bytes, const int widest,
                                       const char *weights, size_t stride, size_t ahead, int rows, const float *x, int tokens,
                                       int most, int channels, float *sums) {
    const size_t ld = (size_t)tokens * RAPT_PARTIAL_SUMS;
    for (int t = 0, nt; t < tokens; t += nt, x += nt * RAPT_PARTIAL_SUMS) {
        nt = power_below(tokens - t, most);
        const int together = linear_rows_of(nt);
        for (int r = 0, nr; r < rows; r += nr) {
            nr = rows - r >= together ? together : 1;
            const char *from = weights + (size_t)r * stride;
            float *to = sums + (size_t)r * ld + t * RAPT_PARTIAL_SUMS;
            switch (nt) {
            case 8:
                linear_tile_of(load, group, bytes, widest, 8, nr == 1, from, stride, ahead, x, channels, to, ld);
                break;
            case 4:
                linear_tile_of(load, group, bytes, widest, 4, nr == 1, from, stride, ahead, x, channels, to, ld);
                break;
            case 2:
                linear_tile_of(load, group, bytes, widest, 2, nr == 1, from, stride, ahead, x, channels, to, ld);
                break;
            default:
                linear_tile_of(load, group, bytes, widest, 1, nr == 1, from, stride, ahead, x, channels, to, ld);
            }
        }
    }
}

/* Computes what linear_rows does for one type. Tokens of one tile take all parts of a row, or of several, before the next rows,
 * so that weights are read once and in the order of memory; of more tokens, parts of TURN_ROWS rows. Where weights take less than
 * two bytes, one row would wait for its chain of additions; several short ones are then prefetched as a single stream, from those
 * that come next. Measured on an AMD EPYC (Zen 3), where f16 gains nothing; see docs/experiments/linear.md. */
static RAPT_INLINE void linear_rows_as(const rapt_linear_problem *p, load_channels *load, const int group, const size_t bytes,
                                       const char *weights, size_t stride, int rows, const float *x, int tokens, float *sums) {
    const int64_t in = p->in;
    const bool is_long = (size_t)(in / group) * bytes >= (size_t)p->long_row;
    const size_t ld = (size_t)tokens * RAPT_PARTIAL_SUMS;
    const int widest = bytes < (size_t)group ? RAPT_LINEAR_TOKENS : TOKENS_OF_BYTES;
    const int most = power_below(tokens, widest), many = linear_rows_of(most);
    const bool is_small = bytes < 2 * (size_t)group, several = most == widest || is_long || is_small;
    const size_t ahead = is_long ? (size_t)p->long_ahead : is_small ? (size_t)many * stride : (size_t)p->short_ahead;
    for (int r = 0, nr; r < rows; r += nr) {
        nr = tokens > most ? rapt_min(rows - r, TURN_ROWS) : several && rows - r >= many ? many : 1;
        for (int64_t first = 0; first < in; first += RAPT_LINEAR_PART)
            linear_part_as(load, group, bytes, widest, weights + (size_t)r * stride + (size_t)(first / group) * bytes, stride,
                           ahead, nr, x + first * tokens, tokens, most, rapt_min(RAPT_LINEAR_PART, in - first),
                           sums + (size_t)(first / RAPT_LINEAR_PART * RAPT_PARTIAL_SUMS + r) * ld);
    }
}

/* Does what linear_rows_as does for a type of RAPT_MATRIX_TYPES: unpacks a part of a row, or of several, before it is multiplied.
 */
static RAPT_INLINE void linear_blocks_as(const rapt_linear_problem *p, unpack_blocks *unpack, load_channels *load, size_t bytes,
                                         const char *weights, size_t stride, int rows, const float *x, int tokens, float *sums) {
    unpacked_blocks parts[MOST_LINEAR_ROWS];
    const size_t ld = (size_t)tokens * RAPT_PARTIAL_SUMS;
    const int most = power_below(tokens, RAPT_LINEAR_TOKENS), many = linear_rows_of(most);
    for (int r = 0, nr; r < rows; r += nr) {
        nr = tokens > most ? rapt_min(rows - r, TURN_ROWS) : rows - r >= many ? many : 1;
        for (int64_t first = 0; first < p->in; first += RAPT_LINEAR_PART) {
            const int channels = rapt_min(RAPT_LINEAR_PART, p->in - first);
            const size_t part = (size_t)(channels / MATRIX_BLOCK) * bytes;
            for (int j = 0; j < nr; j++) {
                const char *from = weights + (size_t)(r + j) * stride + (size_t)(first / MATRIX_BLOCK) * bytes;
                for (size_t i = 0; i < part; i += 64) prefetch(from, (size_t)nr * stride + i);
                unpack(from, channels, &parts[j]);
            }
            linear_part_as(load, 1, 0, RAPT_LINEAR_TOKENS, (const char *)parts, sizeof *parts, 0, nr, x + first * tokens, tokens,
                           most, channels, sums + (size_t)(first / RAPT_LINEAR_PART * RAPT_PARTIAL_SUMS + r) * ld);
        }
    }
}

/* Defines linear_rows_f32, linear_rows_q8_0 and so on: linear_rows for one type of weights. */
#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    static RAPT_NOINLINE void linear_rows_##suffix(const rapt_linear_problem *p, const char *weights, size_t stride, int rows,   \
                                                   const float *x, int tokens, float *sums) {                                    \
        linear_rows_as(p, load_##suffix, group, bytes, weights, stride, rows, x, tokens, sums);                                  \
    }
RAPT_TYPES(RAPT_TYPE, RAPT_TYPE, RAPT_NO_TYPE, RAPT_NO_TYPE, RAPT_NO_TYPE)
#undef RAPT_TYPE
#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    static RAPT_NOINLINE void linear_rows_##suffix(const rapt_linear_problem *p, const char *weights, size_t stride, int rows,   \
                                                   const float *x, int tokens, float *sums) {                                    \
        linear_blocks_as(p, unpack_blocks_##suffix, load_##suffix, bytes, weights, stride, rows, x, tokens, sums);               \
    }
RAPT_MATRIX_TYPES(RAPT_TYPE)
#undef RAPT_TYPE

/* Computes sums[part][r][t][RAPT_PARTIAL_SUMS], the partial sums of `rows` rows of weights and few tokens. Each part has room for
 * RAPT_PARTIAL_SUMS rows. */
static void linear_rows(const rapt_linear_problem *p, rapt_type type, const char *weights, size_t stride, int rows,
                        const float *x, int tokens, float *sums) {
    switch (type) {
#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    case name:                                                                                                                   \
        linear_rows_##suffix(p, weights, stride, rows, x, tokens, sums);                                                         \
        break;
        RAPT_WEIGHT_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
    default:
        break;
    }
}

/* Adds the partial sums of RAPT_PARTIAL_SUMS rows to their totals, which lie in lanes, from the first partial sum to the last.
 * Rows of sums lie ld floats apart. */
static void add_sums(vf total[SUM_VECTORS], const float *sums, size_t ld) {
    for (int v = 0; v < SUM_VECTORS; v++)
        for (int s = 0; s < RAPT_PARTIAL_SUMS; s += RAPT_VL) {
            vf square[RAPT_VL];
            UNROLLED(r, RAPT_VL) square[r] = v_load(sums + (size_t)(v * RAPT_VL + r) * ld + s);
            v_transpose(square);
            UNROLLED(r, RAPT_VL) total[v] = v_add(total[v], square[r]);
        }
}

/* Computes outputs[token], the outputs of `rows` rows, at most RAPT_PARTIAL_SUMS, of the weights or the gate, activated where the
 * activation applies to them. */
static void linear_few_rows(const rapt_linear_task *t, const few_scratch *s, bool gate, int64_t out, int rows,
                            vf outputs[][SUM_VECTORS]) {
    const rapt_linear_problem *p = t->problem;
    const rapt_linear_weights *w = weights_of(t, gate);
    const rapt_layout *layout = layout_of(p, gate);
    int tokens = (int)t->tokens;
    size_t ld = (size_t)tokens * RAPT_PARTIAL_SUMS, stride = (size_t)layout->token_stride;
    if (BF16) sum_bf16_rows(t, s, gate, out, rows, s->sums);
    else linear_rows(p, layout->type, w->rows + (size_t)out * stride, stride, rows, s->x, tokens, s->sums);
    for (int i = 0; i < tokens; i++)
        for (int v = 0; v < SUM_VECTORS; v++)
            outputs[i][v] = BF16 ? v_load(s->sums + i * RAPT_PARTIAL_SUMS + v * RAPT_VL) : v_set1(0.0f);
    for (int64_t part = 0; part * RAPT_LINEAR_PART < p->in && !BF16; part++) {
        float *sums = s->sums + (size_t)part * RAPT_PARTIAL_SUMS * ld;
        memset(sums + (size_t)rows * ld, 0, (size_t)(RAPT_PARTIAL_SUMS - rows) * ld * sizeof *sums);
        for (int i = 0; i < tokens; i++) add_sums(outputs[i], sums + i * RAPT_PARTIAL_SUMS, ld);
    }
    const output_ends ends = ends_of(t, gate, out, rows);
    for (int i = 0; i < tokens; i++) end_sums(p, gate, &ends, outputs[i]);
}

/* Stages the tokens of a task, to s->x. */
static void stage_few_tokens(const rapt_linear_task *t, const few_scratch *s) {
    const rapt_linear_problem *p = t->problem;
    const int tokens = (int)t->tokens;
    const size_t in = few_channels(p), unit = BF16 ? RAPT_STEP : RAPT_PARTIAL_SUMS;
    for (int i = 0; i < tokens; i++) {
        const char *row = t->x + token_offset(p, &p->x, t->token0 + i);
        memset(s->row + in - unit, 0, unit * sizeof *s->row);
        stage_element_rows(p->x.type, s->row, 0, &row, 1, 0, (int)p->in);
        if (BF16) {
            pack_bf16_row(s->row, (int)in);
            if (few_read_packed(t)) place_token_for_packed(s->x, in, i, tokens, s->row);
            else memcpy(s->x + (size_t)i * in, s->row, in * sizeof *s->row);
            continue;
        }
        for (size_t c = 0; c < in; c += RAPT_PARTIAL_SUMS)
            memcpy(s->x + c * (size_t)tokens + (size_t)(i * RAPT_PARTIAL_SUMS), s->row + c, RAPT_PARTIAL_SUMS * sizeof *s->row);
    }
}

/* Computes a task of few tokens, 16 outputs at a time. */
static void linear_few_tokens(const rapt_linear_task *t) {
    const rapt_linear_problem *p = t->problem;
    few_scratch s;
    lay_out_few(p, t->scratch, &s, t->tokens);
    stage_few_tokens(t, &s);
    for (int64_t out = t->out0; out < t->out0 + t->outs; out += RAPT_PARTIAL_SUMS) {
        int rows = rapt_min(RAPT_PARTIAL_SUMS, t->out0 + t->outs - out);
        vf outputs[RAPT_MOST_FEW_TOKENS][SUM_VECTORS], gates[RAPT_MOST_FEW_TOKENS][SUM_VECTORS];
        linear_few_rows(t, &s, false, out, rows, outputs);
        if (gated(p)) linear_few_rows(t, &s, true, out, rows, gates);
        for (int i = 0; i < (int)t->tokens; i++) {
            for (int v = 0; v < SUM_VECTORS; v++)
                v_store(s.outputs + v * RAPT_VL, gated(p) ? v_mul(gates[i][v], outputs[i][v]) : outputs[i][v]);
            write_outputs(t, t->token0 + i, out, rows, s.outputs, s.outputs + RAPT_PARTIAL_SUMS);
        }
    }
}

/* ---- Many tokens: tokens in lanes ---------------------------------------------------------------------------------------- */

/* Stages a tile of `rows` tokens, part by part. Within a part, channels are in the order of partial sums: part_runs of sum 0,
 * then those of sum 1 and so on. In bf16 arithmetic: stage_bf16_tokens. */
static void stage_tokens(const rapt_linear_task *t, int64_t token, int rows, float *to) {
    const rapt_linear_problem *p = t->problem;
    const char *from[TILE_ROWS];
    int whole = (rows + RAPT_VL - 1) / RAPT_VL * RAPT_VL;
    for (int r = 0; r < whole; r++) from[r] = t->x + token_offset(p, &p->x, token + rapt_min(r, rows - 1));
    if (BF16) {
        stage_bf16_tokens(p, from, whole, to);
        return;
    }
    for (int64_t part = 0; part * RAPT_LINEAR_PART < p->in; part++) {
        int channels = part_channels(p, part), runs = part_runs(channels);
        int first = (int)(part * RAPT_LINEAR_PART);
        for (int g = 0; g < runs; g++)
            stage_columns(p->x.type, to + (size_t)g * TILE_ROWS, (size_t)runs * TILE_ROWS, from, whole,
                          first + g * RAPT_PARTIAL_SUMS, rapt_min(RAPT_PARTIAL_SUMS, channels - g * RAPT_PARTIAL_SUMS));
        to += (size_t)runs * RAPT_PARTIAL_SUMS * TILE_ROWS;
    }
}

/* Stages n sixteens, a multiple of RAPT_VL, transposed: to[i][g] = channel i of sixteen g. Rows of `to` lie ld floats apart. */
static void stage_sixteens(rapt_type type, float *to, size_t ld, const char *const *sixteens, int n) {
    if (type == RAPT_INT8) stage_columns_as(load_int8, 1, to, ld, sixteens, n, 0, RAPT_PARTIAL_SUMS);
    else stage_columns(type, to, ld, sixteens, n, 0, RAPT_PARTIAL_SUMS);
}

/* Stages a part of `rows` rows of the weights or the gate, from row `out` on, to s->weights. */
static void stage_weights(const rapt_linear_task *t, const many_scratch *s, bool gate, int64_t out, int rows, int64_t part) {
    const rapt_linear_problem *p = t->problem;
    const rapt_layout *layout = layout_of(p, gate);
    const bool in_groups = weight_bytes(layout->type, 1) == 0; /* types with groups are converted to f32 first */
    const rapt_type type = in_groups ? RAPT_F32 : layout->type;
    const int bytes = (int)rapt_element_bytes(type);
    int channels = part_channels(p, part), whole = channels / RAPT_PARTIAL_SUMS, rest = channels % RAPT_PARTIAL_SUMS;
    size_t runs = padded((size_t)part_runs(channels)), ld = ld_weights(p);
    if (BF16) {
        const char *all[RAPT_STAGED_ROWS];
        for (int r = 0; r < rows; r++) all[r] = weight_row(t, gate, out + r, part);
        stage_bf16_weights(p, layout->type, s, all, rows, channels);
        return;
    }
    for (int r = 0; r < rows; r++) {
        const char *from = weight_row(t, gate, out + r, part);
        const char *sixteens[RAPT_LINEAR_PART / RAPT_PARTIAL_SUMS + RAPT_VL];
        float converted[RAPT_LINEAR_PART];
        float *row = s->weights + (size_t)r * ld, *to = COPIES == 1 ? row : s->row, left[2 * RAPT_PARTIAL_SUMS];
        if (in_groups) {
            stage_rows(layout->type, converted, 0, &from, 1, 0, channels);
            from = (const char *)converted;
        }
        for (int g = 0; g < whole + RAPT_VL - 1; g++)
            sixteens[g] = from + (size_t)rapt_min(g, rapt_max(0, whole - 1)) * (size_t)(RAPT_PARTIAL_SUMS * bytes);
        if (whole > 0) stage_sixteens(type, to, runs, sixteens, (whole + RAPT_VL - 1) / RAPT_VL * RAPT_VL);
        if (rest > 0) stage_rows(type, left, 0, &from, 1, whole * RAPT_PARTIAL_SUMS, rest);
        for (int i = 0; i < rest; i++) to[(size_t)i * runs + (size_t)whole] = left[i];
        for (size_t i = 0; COPIES > 1 && i < runs * RAPT_PARTIAL_SUMS; i += RAPT_VL)
            UNROLLED(j, RAPT_VL) v_store(row + (i + (size_t)j) * COPIES, v_broadcast(to + i + j));
    }
}

/* Returns the floats of a staged part of `rows` rows of weights, a multiple of RAPT_PARTIAL_SUMS. */
static inline size_t part_floats(const rapt_linear_problem *p, size_t rows) {
    return BF16 ? bf16_weight_floats(p, rows) : rows * ld_weights(p);
}

/* Returns the floats of a part of all rows. Packed weights are such parts one after the other, each as it is staged. */
static inline size_t packed_part(const rapt_linear_problem *p) { return part_floats(p, padded((size_t)p->out)); }

static uint64_t packed_integer_floats(const rapt_linear_problem *p);
static void pack_integer_weights(const rapt_linear_task *t, bool gate, float *packed);

static uint64_t packed_floats(const rapt_linear_problem *p) {
    if (INTEGER) return packed_integer_floats(p);
    const uint64_t parts = (uint64_t)((p->in + RAPT_LINEAR_PART - 1) / RAPT_LINEAR_PART); /* size_t may be too small for all */
    return parts * part_floats(p, RAPT_PARTIAL_SUMS) * (padded((size_t)p->out) / RAPT_PARTIAL_SUMS);
}

/* Returns the floats from the start of packed weights to a part of row `out`, a multiple of RAPT_PARTIAL_SUMS. */
static inline size_t packed_offset(const rapt_linear_problem *p, int64_t out, int64_t part) {
    return (size_t)part * packed_part(p) + part_floats(p, (size_t)out);
}

static void pack_weights(const rapt_linear_task *t, bool gate, float *packed) {
    const rapt_linear_problem *p = t->problem;
    if (INTEGER) {
        pack_integer_weights(t, gate, packed);
        return;
    }
    float row[RAPT_LINEAR_PART];
    for (int64_t part = 0; part * RAPT_LINEAR_PART < p->in; part++)
        for (int64_t done = 0; done < t->outs; done += RAPT_STAGED_ROWS) {
            int64_t out = t->out0 + done;
            int rows = rapt_min(RAPT_STAGED_ROWS, t->outs - done);
            many_scratch s = {.weights = packed + packed_offset(p, out, part), .row = row};
            /* Rows are padded, and where COPIES > 1 their padding is copied from `row`. Padding changes no result, but packed
             * weights may be kept in files, into which nothing may get that was in memory before. */
            memset(s.weights, 0, part_floats(p, padded((size_t)rows)) * sizeof(float));
            memset(row, 0, sizeof row);
            stage_weights(t, &s, gate, out, rows, part);
        }
}

/* Returns the weights that are needed next, to be prefetched while `tiles` register tiles of a part of the rows from `out` on are
 * computed. rows: room for the addresses of RAPT_STAGED_ROWS rows. */
static prefetch_queue queue_weights(const rapt_linear_task *t, bool gate, int64_t out, int staged_rows, int64_t part, int tiles,
                                    const char **rows) {
    const rapt_linear_problem *p = t->problem;
    if (++part * RAPT_LINEAR_PART >= p->in) {
        part = 0;
        if (gate == gated(p)) out += staged_rows;
        gate = gate != gated(p);
    }
    const rapt_layout *layout = layout_of(p, gate);
    int n = rapt_min(staged_rows, t->out0 + t->outs - out);
    if (n <= 0 || tiles <= 0) return (prefetch_queue){0};
    const float *packed = weights_of(t, gate)->packed;
    size_t row = packed ? part_floats(p, RAPT_PARTIAL_SUMS) / RAPT_PARTIAL_SUMS * sizeof(float)
                        : (size_t)weight_bytes(layout->type, part_channels(p, part));
    for (int i = 0; i < n; i++)
        rows[i] =
            packed ? (const char *)(packed + packed_offset(p, out, part)) + (size_t)i * row : weight_row(t, gate, out + i, part);
    size_t lines = (row + 63) / 64 * (size_t)n;
    return (prefetch_queue){.rows = rows, .left = n, .bytes = row, .lines = (int)(lines / (size_t)tiles) + 1};
}

/* Multiplies a part of the channels: C = C + weights tokens^T, or without the C in part 0. One tile product for each partial sum.
 * Replaceable. */
static void multiply_part(const rapt_linear_problem *p, const float *weights, int64_t part, const float *tokens, float *c,
                          int rows, int vectors, prefetch_queue *ahead);
#ifndef multiply_part
static void multiply_part(const rapt_linear_problem *p, const float *weights, int64_t part, const float *tokens, float *c,
                          int rows, int vectors, prefetch_queue *ahead) {
    int channels = part_channels(p, part), runs = part_runs(channels);
    size_t ld = ld_weights(p);
    for (int i = 0; i < rapt_min(RAPT_PARTIAL_SUMS, channels); i++)
        tile_product((operands){.c = (char *)c,
                                .ldc = TILE_ROWS * sizeof(float),
                                .a = (const char *)(weights + (size_t)i * padded((size_t)runs) * COPIES),
                                .rs = ld * sizeof(float),
                                .ks = COPIES * sizeof(float),
                                .b = (const char *)(tokens + (size_t)i * (size_t)runs * TILE_ROWS),
                                .ldb = TILE_ROWS * sizeof(float),
                                .depth = channels / RAPT_PARTIAL_SUMS + (i < channels % RAPT_PARTIAL_SUMS),
                                .mode = part == 0 && i == 0 ? ACCUMULATE_ZERO : ACCUMULATE_ADD_SEPARATE,
                                .queue = ahead},
                     rows, vectors);
}
#endif

/* Returns how often the product of a part of `rows` rows of weights and a full tile of tokens prefetches: for each full register
 * tile, or in bf16 arithmetic as bf16_part_prefetches says. */
static int part_prefetches(const rapt_linear_problem *p, int64_t part, int rows) {
    return BF16 ? bf16_part_prefetches(p, part, rows) : RAPT_PARTIAL_SUMS * register_tiles(rows, RAPT_TILE_VECTORS);
}

/* Computes to[j] = sum * scale + bias of output n + j, for the RAPT_VL tokens in the lanes of sums, before activation. Beyond the
 * last output, the last one is repeated. sums: those of output 0 of the `outs` outputs, which begin with row `out` of the
 * weights. Out of line, since unrolled it would be 12 KB of AVX-512. */
static RAPT_NOINLINE void outputs_of(const rapt_linear_weights *w, int64_t out, int n, int outs, const float *sums, vf *to) {
    for (int j = 0; j < RAPT_VL; j++) {
        const int at = rapt_min(n + j, outs - 1);
        to[j] = scaled_sum(v_load(sums + (size_t)at * TILE_ROWS), v_set1(w->scales ? w->scales[out + at] : 1.0f),
                           v_set1(w->bias ? w->bias[out + at] : 0.0f));
    }
}

/* Turns the sums of `outs` rows of weights into outputs of a tile of tokens. c, gate: the sums; gate is null without a gate. f32
 * outputs without a residual are stored where they belong, in whole vectors; others pass through s->outputs. */
static void end_lanes(const rapt_linear_task *t, const many_scratch *s, int64_t token, int tokens, int64_t out, int outs,
                      const float *c, const float *gate) {
    const rapt_linear_problem *p = t->problem;
    size_t ld = (size_t)(outs + RAPT_VL - 1) / RAPT_VL * RAPT_VL;
    for (int i = 0; i < tokens; i += RAPT_VL) {
        int rows = rapt_min(RAPT_VL, tokens - i);
        int at_once = rows == RAPT_VL && p->y.type == RAPT_F32 && !p->residual.type ? outs - outs % RAPT_VL : 0;
        char *y[RAPT_VL];
        for (int j = 0; j < rows; j++) y[j] = t->y + token_offset(p, &p->y, token + i + j) + (size_t)out * sizeof(float);
        for (int n = 0; n < outs; n += RAPT_VL) {
            vf square[RAPT_VL], gates[RAPT_VL];
            outputs_of(&t->weight, out, n, outs, c + i, square);
            if (gate) {
                outputs_of(&t->gate, out, n, outs, gate + i, gates);
                activate(p->activation, gates, RAPT_VL);
                UNROLLED(j, RAPT_VL) square[j] = v_mul(gates[j], square[j]);
            } else if (p->activation != RAPT_ACTIVATION_NONE) activate(p->activation, square, RAPT_VL);
            v_transpose(square);
            if (n < at_once)
                UNROLLED(j, RAPT_VL) v_store(y[j] + (size_t)n * sizeof(float), square[j]);
            else
                UNROLLED(j, RAPT_VL) v_store(s->outputs + (size_t)j * ld + n, square[j]);
        }
        for (int j = 0; j < rows && at_once < outs; j++)
            write_outputs(t, token + i + j, out + at_once, outs - at_once, s->outputs + (size_t)j * ld + at_once,
                          s->outputs + RAPT_VL * ld);
    }
}

/* Computes a task of many tokens: passes of some tiles of tokens, and in each all rows of weights, some at a time, by parts. */
static void linear_many_tokens(const rapt_linear_task *t) {
    const rapt_linear_problem *p = t->problem;
    many_scratch s;
    lay_out_many(p, t->scratch, &s, t->tokens, t->outs);
    size_t tile_floats = token_floats(p->in);
    const int tile_rows = TILE_ROWS;
    int staged_rows = (int)padded((size_t)even_part(t->outs, most_rows(p)));
    int64_t pass = even_part((t->tokens + tile_rows - 1) / tile_rows, most_tiles(p)) * tile_rows;
    for (int64_t done = 0; done < t->tokens; done += pass) {
        int64_t first = t->token0 + done;
        int tokens = rapt_min(pass, t->tokens - done), tiles = (tokens + tile_rows - 1) / tile_rows;
        for (int i = 0; i < tiles; i++)
            stage_tokens(t, first + i * tile_rows, rapt_min(tile_rows, tokens - i * tile_rows), s.x + (size_t)i * tile_floats);
        for (int64_t out = t->out0; out < t->out0 + t->outs; out += staged_rows) {
            int rows = rapt_min(staged_rows, t->out0 + t->outs - out);
            for (int gate = 0; gate <= gated(p); gate++)
                for (int64_t part = 0; part * RAPT_LINEAR_PART < p->in; part++) {
                    const char *next[RAPT_STAGED_ROWS];
                    prefetch_queue ahead =
                        queue_weights(t, gate, out, staged_rows, part, tiles * part_prefetches(p, part, rows), next);
                    const float *packed = weights_of(t, gate)->packed;
                    if (!packed) stage_weights(t, &s, gate, out, rows, part);
                    const float *weights = packed ? packed + packed_offset(p, out, part) : s.weights;
                    for (int i = 0; i < tiles; i++) {
                        const float *x = s.x + (size_t)i * tile_floats + token_floats(part * RAPT_LINEAR_PART);
                        float *c = s.sums[gate] + (size_t)(i * staged_rows * TILE_ROWS);
                        int vectors = (rapt_min(tile_rows, tokens - i * tile_rows) + RAPT_VL - 1) / RAPT_VL;
                        if (BF16) multiply_bf16_part(p, weights, part, x, c, s.even, rows, vectors, &ahead);
                        else multiply_part(p, weights, part, x, c, rows, vectors, &ahead);
                    }
                }
            for (int i = 0; i < tiles; i++) {
                size_t at = (size_t)(i * staged_rows * TILE_ROWS);
                end_lanes(t, &s, first + i * tile_rows, rapt_min(tile_rows, tokens - i * tile_rows), out, rows, s.sums[0] + at,
                          gated(p) ? s.sums[1] + at : NULL);
            }
        }
    }
}

#include "int8/int8_linear.h"

static void linear_tokens(const rapt_linear_task *t) {
    if (t->tokens == 0 || t->outs == 0) return;
    begin_task(true);
    if (INTEGER) linear_integers(t);
    else if (has_few_tokens(t)) linear_few_tokens(t);
    else linear_many_tokens(t);
    end_task();
}

static size_t linear_scratch_bytes(const rapt_linear_problem *p, int64_t tokens, int64_t outs) {
    few_scratch few;
    many_scratch many;
    integer_linear_scratch integers;
    if (tokens <= 0 || outs <= 0) return 0;
    if (INTEGER) return sizeof(float) * lay_out_integer_linear(p, NULL, &integers, tokens);
    if (are_few(p, tokens)) return sizeof(float) * lay_out_few(p, NULL, &few, tokens);
    size_t floats = lay_out_many(p, NULL, &many, tokens, outs);
    const int64_t packed = BF16 ? rapt_min(tokens, RAPT_BF16_PACKED_TOKENS) : 0; /* tokens that may be few, by packed weights */
    if (packed > 0) {
        const size_t if_few = lay_out_few(p, NULL, &few, packed);
        if (if_few > floats) floats = if_few;
    }
    return sizeof(float) * floats;
}
