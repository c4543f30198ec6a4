/* SPDX-License-Identifier: Apache-2.0 */
/* The path for few rows, as in decode. While scores are computed a lane is a key: vectors of K are transposed in registers, so
 * that a score is still one accumulator over ascending channels. In P V a lane is a channel: V is multiplied where it lies, by
 * stream_product (tile.h), which broadcasts the weights. A chunk is computed in three sweeps, first all its scores, then all
 * weights, then all values, so that K and V each come from memory as one long stream. What differs in bf16 arithmetic is in
 * bf16_rows.h, and in integer arithmetic in keys_int8.h, whose lanes have several elements, or keys_as_f32.h. Included by
 * attend.h. */

/* The indices of the keys in a block, 0 to 63, as floats. */
static const float key_indices[RAPT_BLOCK] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                              16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
                                              32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
                                              48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};

/* Bits 0 to 15, to test which keys a row attends to. */
static const int32_t key_bits[16] = {1,      1 << 1, 1 << 2,  1 << 3,  1 << 4,  1 << 5,  1 << 6,  1 << 7,
                                     1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15};

/* Floats of row_scratch.alpha for a row: one for each block of a chunk, rounded up to whole vectors. */
enum { ROW_ALPHAS = (CHUNK_BLOCKS + RAPT_VL - 1) / RAPT_VL * RAPT_VL };

/* Rows of K or V whose addresses are found for a chunk: its own, and as many after them as may be prefetched. */
enum { CHUNK_ROWS = RAPT_CHUNK + (RAPT_BYTE_KEYS_AHEAD > RAPT_BLOCK ? RAPT_BYTE_KEYS_AHEAD : RAPT_BLOCK) };

/* Channels of a step of the narrowest elements (step_bytes). */
enum { MOST_STEP_CHANNELS = 4 * RAPT_VL };

/* The state of one row. */
typedef struct row_state {
    float m, l;
    float *o; /* [padded d_v] */
} row_state;

/* A row of Q. */
typedef struct query_row {
    row_cursor at;
    const char *block_mask;              /* its row of the block mask, or null */
    int64_t first, end;                  /* the keys [first, end) that it may attend to by its position */
    uint64_t attended[CHUNK_BLOCKS];     /* with has_masks: the keys of each block that it attends to (attended_keys) */
    row_state chunk_state, merged_state; /* over the keys of this chunk; over those of all chunks before it */
} query_row;

/* Scratch of a task. */
typedef struct row_scratch {
    float *q;      /* [rows][row_floats], times q_factor and K's channel scales; bf16 arithmetic packs it, integer quantises it */
    float *s;      /* [rows][RAPT_CHUNK] scores, then weights, which integer arithmetic quantises in place for V of int8 */
    float *alpha;  /* [rows][ROW_ALPHAS] what O is multiplied by before the values of each block */
    float *values; /* [RAPT_BLOCK][output_row_floats] whole rows of V that cannot be read in place */
    float *keys;   /* [RAPT_BLOCK][row_floats] K that cannot be read in place */

    /* bf16 arithmetic. */
    float *row;            /* a row of K or V while it is copied */
    float *sums;           /* [2][padded d_v] over the even and the odd keys of a step, for a row that skips masked keys */
    float *kernel_scratch; /* what the ISA's own functions need (bf16_scratch_floats) */

    /* Integer arithmetic. */
    float *integers; /* group_keys, and after the scores group_values (keys_int8.h); or integer_scratch (keys_as_f32.h) */
} row_scratch;

/* Returns the distance from one row of row_scratch.q to the next, in floats: d_k, rounded up to whole cache lines, or in bf16
 * arithmetic to whole steps. Behind a row's channels is what score_keys_SUFFIX may read there, and in integer arithmetic the
 * row's scale, or what else quantise_query writes. */
static inline size_t row_floats(const rapt_problem *p) {
    if (BF16) return whole_steps(p->d_k);
    if (INTEGER) return padded((size_t)p->d_k + (RAPT_FEW_DOTS ? RAPT_VL : MOST_STEP_CHANNELS + 1));
    return padded((size_t)rapt_max(p->d_k, MOST_STEP_CHANNELS));
}

/* Returns the size of a row_state.o in floats: d_v, rounded up likewise. */
static inline size_t output_row_floats(const rapt_problem *p) { return BF16 ? whole_steps(p->d_v) : padded((size_t)p->d_v); }

/* Returns the largest distance, in rows, at which V is prefetched: so many addresses are found beyond a chunk. (V that is first
 * converted to a copy as f32 or bf16 is not prefetched.) Cache types (types.h): a block. Element types in bf16 arithmetic:
 * RAPT_BF16_VALUES_AHEAD. Element types in exact arithmetic: RAPT_VALUES_AHEAD for f32, and for 16 bits twice as many, which are
 * as many bytes, but at most a block. */
static inline int values_ahead(const rapt_problem *p) {
    if (!of_elements(p->v.type)) return RAPT_BLOCK;
    if (BF16) return RAPT_BF16_VALUES_AHEAD;
    return p->v.type == RAPT_F32 ? RAPT_VALUES_AHEAD : rapt_min(2 * RAPT_VALUES_AHEAD, RAPT_BLOCK);
}

/* Returns how many rows of V are added at a time where several panels or row tiles of O take turns (attend_chunk_keys_in_lanes).
 * A turn reads and writes its part of O, and should read a few KiB of V for it: RAPT_VALUES_DEPTH rows of f32, or about the same
 * bytes of narrower types, at most a block. */
static inline int values_depth(rapt_type type) {
    int narrow = !of_elements(type) ? 4 : type == RAPT_F32 ? 1 : 2;
    return narrow * RAPT_VALUES_DEPTH < RAPT_BLOCK ? narrow * RAPT_VALUES_DEPTH : RAPT_BLOCK;
}

/* True if K or V of this type is first converted to f32 in scratch, and multiplied from there; false if it is converted on the
 * way into registers. Each register tile would convert cache types (types.h) anew, so these are copied for more than
 * RAPT_CONVERTED_ROWS rows of Q. */
static inline bool needs_copy(rapt_type type, int rows) { return !of_elements(type) && rows > RAPT_CONVERTED_ROWS; }

/* Returns the floats of row_scratch.integers for `rows` rows. */
static size_t integer_floats(const rapt_problem *p, int rows);

/* Lays out the scratch of a task with n rows, counted over all its heads, and returns its size in floats. With null memory it
 * only computes the size, so that no other function has to know the layout. */
static size_t lay_out_rows(const rapt_problem *p, float *memory, row_scratch *scratch, query_row *rows, int n) {
    size_t used = 0, dk = row_floats(p), dv = output_row_floats(p);
    *scratch = (row_scratch){.q = carve(memory, &used, (size_t)n * dk),
                             .s = carve(memory, &used, (size_t)n * RAPT_CHUNK),
                             .alpha = carve(memory, &used, (size_t)n * ROW_ALPHAS),
                             .values = carve(memory, &used, RAPT_BLOCK * dv),
                             .keys = carve(memory, &used, BF16 || INTEGER || needs_copy(p->k.type, n) ? RAPT_BLOCK * dk : 0),
                             .row = carve(memory, &used, BF16 ? dk + dv : 0),
                             .sums = carve(memory, &used, BF16 ? 2 * dv : 0),
                             .kernel_scratch = carve(memory, &used, BF16 ? bf16_scratch_floats(p, n) : 0),
                             .integers = carve(memory, &used, INTEGER ? integer_floats(p, n) : 0)};
    for (int r = 0; r < n; r++)
        rows[r].chunk_state.o = carve(memory, &used, dv), rows[r].merged_state.o = carve(memory, &used, dv);
    return used;
}

/* True if the kernel prefetches n rows of so many bytes in the order in which they lie, and they do lie one after the other, to
 * judge by the first and the last. */
static RAPT_INLINE bool are_adjacent(const char *const *rows, int n, size_t bytes) {
    return RAPT_LINEAR_PREFETCH && (uintptr_t)rows[n - 1] - (uintptr_t)rows[0] == (size_t)(n - 1) * bytes;
}

/* Stages the step of RAPT_VL rows that ends with channel end - 1, transposed. */
typedef void stage_key_rest(float *to, const char *const *keys, size_t offset, int end);

/* How rows of K are read. */
typedef struct key_format {
    rapt_type type;
    int group, bytes;           /* channels of a group and its bytes, as in types.h */
    stage_key_rest *stage_rest; /* stages the channels beyond whole steps, of which types with groups have none */
    read_step_word *read;       /* reads a step of RAPT_VL rows */
    column_word *column;        /* converts element i of each dword: one channel of RAPT_VL rows */
    float *columns;             /* scratch for what stage_rest writes, STEP_COLUMNS floats for each vector of keys of a tile */
} key_format;

enum { MOST_KEY_VECTORS = 2 * RAPT_PARTIAL_SUMS / RAPT_VL, STEP_COLUMNS = MOST_STEP_CHANNELS * RAPT_VL };

/* Returns the channels of a step. */
static RAPT_INLINE int step_channels(const key_format k) { return step_bytes(k.type, k.group, k.bytes) / k.bytes * k.group; }

/* Computes the scores of ng vectors of keys for nr rows of Q, s[r][key] = sum over channels of q[r][i] * k[key][i], in a register
 * tile whose accumulators are
 *
 *                  vector 0 of keys    vector 1        ...    vector ng - 1
 *     row 0        acc[0]              acc[nr]                acc[(ng - 1) * nr]
 *     row 1        acc[1]              acc[nr + 1]            acc[(ng - 1) * nr + 1]
 *     ...
 *     row nr - 1   acc[nr - 1]         acc[2 * nr - 1]        acc[ng * nr - 1]
 *
 * Each adds its products in ascending order of channels. If the channels have parts, each part is summed by itself and then added
 * to s in memory. The channels of a key begin `offset` bytes after its address. Later keys are prefetched: their addresses follow
 * those of the ng vectors. Replaceable. */
static RAPT_INLINE void score_tile(const key_format k, const int ng, const int nr, const char *const *keys, size_t offset,
                                   int channels, const float *q, size_t ldq, float *s);
#ifndef score_tile
/* Returns the bytes of an element of K; 1 for types with groups, whose elements have at most a byte. */
static RAPT_INLINE int key_element_bytes(const key_format k) { return k.group > 1 ? 1 : k.bytes; }

/* Prefetches channel j's share of later keys. A step of `step` channels multiplies `together` vectors of keys, and prefetches for
 * each of these keys the one `near` entries after it, and but for types of 16 bits also the one `further` entries after it, since
 * a prefetch may get lost where many are under way. All at once these would delay the loads, so each channel has a share. keys:
 * the addresses, of which channel 0's share begins with the first. linear: null, or where later keys are prefetched in the order
 * in which they lie, of which these channels have the same share. */
static RAPT_INLINE void prefetch_for_channel(const key_format k, const int together, const int step, const int j,
                                             const char *const *keys, size_t at, const char *linear) {
    const int element = key_element_bytes(k), bytes = step_bytes(k.type, k.group, k.bytes);
    const int near = element >= 2 ? RAPT_KEYS_AHEAD : RAPT_BYTE_KEYS_AHEAD / 2;
    const int further = element >= 4 ? RAPT_KEYS_FURTHER_AHEAD : RAPT_BYTE_KEYS_AHEAD;
    for (int n = j * together * RAPT_VL / step; n < (j + 1) * together * RAPT_VL / step; n++) {
        if (linear) prefetch(linear, (size_t)(n * bytes));
        else {
            prefetch(keys[n + near], at);
            if (element != 2) prefetch(keys[n + further], at);
        }
    }
}

/* Adds the products of a step of channels, which lie `at` bytes after the addresses of the keys. i: the number of its first
 * channel. linear: null, or where the later keys begin that all steps prefetch in the order in which they lie. */
static RAPT_INLINE void score_step(const key_format k, const int ng, const int nr, const char *const *keys, size_t at, int i,
                                   const char *linear, const float *q, size_t ldq, vf *acc) {
    enum { RUN = 8 }; /* RAPT_UNROLL unrolls at most 16 iterations; a step may have more channels, so two loops are nested */
    const int step = step_channels(k);
    const int in_dword = elements_of_dword(k.type);
    /* Cache types are unrolled only in part, for code size. With 16 lanes, 8 channels at a time: whole steps would take 120 KB
     * more and are as fast (0.98 to 1.03 times). With fewer lanes, 16 at a time: 8 would save 34 KB and are up to 5 % slower;
     * whole steps would take 66 KB more and are as fast, except for q5_0, which is 9 % faster. Measured with benchmark case D1
     * (docs/performance.md): 16 lanes on an AMD EPYC (Zen 4), fewer by AVX2 on Zen 3. */
    const int unrolled = of_elements(k.type) ? step : (int)rapt_min(step, RAPT_VL < RAPT_PARTIAL_SUMS ? 2 * RUN : RUN);
    /* The vectors of keys that are transposed together, so that their chains of additions run side by side. */
    const int together = step > RAPT_VL ? ng : 1;
    /* Hides from gcc that `ahead` equals `keys`. It would otherwise copy all addresses that are prefetched from to its stack,
     * before each part of the channels. */
    const char *const *ahead = keys;
    __asm__("" : "+r"(ahead));
    key_columns c[4];
    RAPT_UNROLL for (int g = 0; g < ng; g += together) {
        UNROLLED(b, together) k.read(&c[b], keys + (g + b) * RAPT_VL, at, nr);
        for (int from = 0; from < step; from += unrolled) {
            const int share = g * RAPT_VL + from * together * RAPT_VL / step;
            const char *const next =
                linear ? linear + (size_t)(i / step * ng * RAPT_VL + share) * (size_t)step_bytes(k.type, k.group, k.bytes) : NULL;
            RAPT_UNROLL for (int run = 0; run < unrolled; run += RUN) RAPT_UNROLL for (int j = run; j < run + RUN; j++) {
                if (j >= unrolled) continue;
                prefetch_for_channel(k, together, step, j, ahead + share, at, next);
                UNROLLED(b, together) {
                    const vf x = k.column(&c[b], c[b].dwords[from / in_dword + j / in_dword], j % in_dword);
                    UNROLLED(r, nr)
                        acc[(g + b) * nr + r] = v_fma(v_broadcast(q + r * ldq + i + from + j), x, acc[(g + b) * nr + r]);
                }
            }
        }
    }
}

/* Adds the products of the channels from `whole` on, which are fewer than a step. */
static RAPT_INLINE void score_tail(const key_format k, const int ng, const int nr, const char *const *keys, size_t offset,
                                   int whole, int channels, const float *q, size_t ldq, vf *acc) {
    UNROLLED(g, ng) k.stage_rest(k.columns + g * STEP_COLUMNS, keys + g * RAPT_VL, offset, channels);
    for (int c = whole, at = (step_channels(k) - (channels - whole)) * RAPT_VL; c < channels; c++, at += RAPT_VL)
        UNROLLED(g, ng) {
            const vf x = v_load(k.columns + g * STEP_COLUMNS + at);
            UNROLLED(r, nr) acc[g * nr + r] = v_fma(v_broadcast(q + r * ldq + c), x, acc[g * nr + r]);
        }
}

/* Does what score_tile does. linear: as of score_step. */
static RAPT_INLINE void score_tile_with(const key_format k, const int ng, const int nr, const char *const *keys, size_t offset,
                                        const char *linear, int channels, const float *q, size_t ldq, float *s) {
    const int step_size = step_bytes(k.type, k.group, k.bytes), step = step_channels(k);
    int whole = channels - channels % step, part = rapt_score_part(channels), i = 0;
    for (int first = 0; first < channels; first += part) {
        vf acc[8];
        UNROLLED(a, ng * nr) acc[a] = v_set1(0.0f);
        for (int end = rapt_min(whole, first + part); i < end; i += step)
            score_step(k, ng, nr, keys, offset + (size_t)(i / step) * (size_t)step_size, i, linear, q, ldq, acc);
        if (k.group == 1 && whole < channels && channels - first <= part)
            score_tail(k, ng, nr, keys, offset, whole, channels, q, ldq, acc);
        UNROLLED(g, ng)
            UNROLLED(r, nr) {
                float *to = s + (size_t)r * RAPT_CHUNK + g * RAPT_VL;
                v_store(to, first == 0 ? acc[g * nr + r] : v_add(v_load(to), acc[g * nr + r]));
            }
    }
}

static RAPT_INLINE void score_tile(const key_format k, const int ng, const int nr, const char *const *keys, size_t offset,
                                   int channels, const float *q, size_t ldq, float *s) {
    const char *const *const later = keys + RAPT_KEYS_AHEAD;
    const bool gains = of_elements(k.type) && (nr == 1 || k.type != RAPT_BF16); /* else bf16 loses, docs/experiments/decode.md */
    if (gains && are_adjacent(later, ng * RAPT_VL, (size_t)(channels * k.bytes)))
        score_tile_with(k, ng, nr, keys, offset, later[0] + offset, channels, q, ldq, s);
    else score_tile_with(k, ng, nr, keys, offset, NULL, channels, q, ldq, s);
}
#endif

/* Computes the scores of n keys, a multiple of RAPT_PARTIAL_SUMS, for nr rows. The fewer rows, the more vectors of keys a
 * register tile has, so that enough chains of additions run side by side to hide the latency of an addition. */
static RAPT_INLINE void score_keys_as(const key_format k, const int nr, const char *const *keys, size_t offset, int n,
                                      int channels, const float *q, size_t ldq, float *s) {
    /* A single row takes 32 keys at a time instead of 16 where the transposed vectors of K still fit into registers: with 16
     * lanes, and with f32, whose vectors are transposed one after the other (`together` in score_step). Measured, see
     * docs/performance.md. */
    const int sixteens = nr == 1 && (k.bytes == 4 || RAPT_VL == RAPT_PARTIAL_SUMS) ? 2 : 1;
    const int most = RAPT_PARTIAL_SUMS / RAPT_VL * sixteens;
    const int ng = RAPT_KEY_CHAINS / nr > most ? most : RAPT_KEY_CHAINS / nr; /* 0 for nr > RAPT_KEY_CHAINS, never called */
    int g = 0;
    for (; g + ng * RAPT_VL <= n; g += ng * RAPT_VL) score_tile(k, ng, nr, keys + g, offset, channels, q, ldq, s + g);
    if (RAPT_PARTIAL_SUMS % (ng * RAPT_VL)) /* else none are left */
        for (; g < n; g += RAPT_VL) score_tile(k, 1, nr, keys + g, offset, channels, q, ldq, s + g);
}

/* Stages the rest of rows of one type (stage_key_rest). */
static RAPT_INLINE void stage_rest_as(const key_format k, float *to, const char *const *keys, size_t offset, int end) {
    enum { RUN = 8 }; /* as in score_step */
    const int step = step_channels(k), in_dword = elements_of_dword(k.type);
    key_columns c;
    k.read(&c, keys, offset + (size_t)end * (size_t)k.bytes - (size_t)step_bytes(k.type, k.group, k.bytes), 1);
    for (int from = 0; from < step; from += RUN)
        UNROLLED(j, RUN) {
            if (j >= step) continue;
            v_store(to + (from + j) * RAPT_VL, k.column(&c, c.dwords[from / in_dword + j / in_dword], j % in_dword));
        }
}

/* Defines stage_rest_f32, stage_rest_f16 and so on: the stage_key_rest of each type, of which those with groups have none. */
#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    static RAPT_NOINLINE void stage_rest_##suffix(float *to, const char *const *keys, size_t offset, int end) {                  \
        const key_format k = {name, group, bytes, NULL, read_##suffix, v_column_##suffix, NULL};                                 \
        if (group == 1) stage_rest_as(k, to, keys, offset, end);                                                                 \
    }
RAPT_DIRECT_TYPES(RAPT_TYPE)
#undef RAPT_TYPE

enum { KEY_ADDRESSES = RAPT_BLOCK + RAPT_BYTE_KEYS_AHEAD }; /* of a block, and those that are prefetched */

/* Copies n rows of `bytes` bytes, less than the `step` of a load, so that zeros follow each. Sets the `count` addresses `to` to
 * those of the copies, which the last one ends. */
static RAPT_NOINLINE void copy_short_rows(const char **to, int count, char *copies, const char *const *rows, size_t offset, int n,
                                          size_t bytes, size_t step) {
    for (int i = 0; i < n; i++, copies += step) {
        v_store(copies, v_load_part(rows[i] + offset, bytes));
        to[i] = copies;
    }
    for (int i = n; i < count; i++) to[i] = copies - step;
}

/* Defines score_keys_f32, score_keys_q4_0 and so on, which compute the scores of n keys, a multiple of RAPT_PARTIAL_SUMS, for any
 * number of rows. Keys that have less than a step are copied, and zeros behind them, which are multiplied, too: q has -0 behind
 * its channels, up to a step, since a product of -0 changes no sum; or, if all sums are integers, finite numbers. */
#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    static RAPT_NOINLINE void score_keys_##suffix(int rows, const char *const *keys, size_t offset, int n, int channels,         \
                                                  const float *q, size_t ldq, float *s) {                                        \
        float columns[MOST_KEY_VECTORS * STEP_COLUMNS];                                                                          \
        const key_format k = {name, group, bytes, stage_rest_##suffix, read_##suffix, v_column_##suffix, columns};               \
        const int step_size = step_bytes(name, group, bytes), row_size = channels * (bytes);                                     \
        const char *copies[KEY_ADDRESSES];                                                                                       \
        _Alignas(sizeof(vf)) char steps[RAPT_BLOCK * sizeof(vf)];                                                                \
        if (group == 1 && row_size < step_size) {                                                                                \
            copy_short_rows(copies, KEY_ADDRESSES, steps, keys, offset, n, (size_t)row_size, (size_t)step_size);                 \
            keys = copies, offset = 0, channels = step_size / (bytes);                                                           \
        }                                                                                                                        \
        for (; RAPT_KEY_CHAINS >= 8 && of_elements(name) && rows >= 8; rows -= 8, q += 8 * ldq, s += 8 * RAPT_CHUNK)             \
            score_keys_as(k, 8, keys, offset, n, channels, q, ldq, s);                                                           \
        for (; rows >= 4; rows -= 4, q += 4 * ldq, s += 4 * RAPT_CHUNK)                                                          \
            score_keys_as(k, 4, keys, offset, n, channels, q, ldq, s);                                                           \
        if (rows == 3) score_keys_as(k, 3, keys, offset, n, channels, q, ldq, s);                                                \
        if (rows == 2) score_keys_as(k, 2, keys, offset, n, channels, q, ldq, s);                                                \
        if (rows == 1) score_keys_as(k, 1, keys, offset, n, channels, q, ldq, s);                                                \
    }
RAPT_DIRECT_TYPES(RAPT_TYPE)
#undef RAPT_TYPE

/* Returns the scale of a row of Q that is quantised, NaN if the row has a NaN or an infinity, and sets *factor to what its
 * channels are multiplied by. The row is padded with 0 to whole vectors. */
static float scale_of_query(const float *q, int channels, vf *factor) {
    vf most = v_set1(0.0f), wrong = v_set1(0.0f);
    for (int c = 0; c < channels; c += RAPT_VL) {
        vf x = v_load(q + c);
        most = v_max(most, v_as_float(i_and(v_as_int(x), i_set1(INT32_MAX))));
        wrong = v_add(wrong, v_sub(x, x)); /* 0, or NaN */
    }
    const float largest = h_max(most);
    *factor = v_div(v_set1(127.0f), v_set1(largest));
    return largest / 127.0f + nan_of_lanes(wrong);
}

/* Returns how many vectors of O have the channels of V. */
static inline int value_vectors(const rapt_problem *p) { return (p->d_v + RAPT_VL - 1) / RAPT_VL; }

/* Moves the `last` channels at the end of a row of O, which are whole vectors that may have a part of the ones before, to their
 * places. */
static inline void move_last_channels(float *o, int channels, int last) {
    if (channels % last) memmove(o + channels - last, o + channels - channels % last, (size_t)last * sizeof *o);
}

#if RAPT_FEW_DOTS
#include "int8/keys_int8.h"
static size_t integer_floats(const rapt_problem *p, int rows) {
    group_keys k;
    group_values v;
    size_t of_keys = p->k.type == RAPT_INT8 ? 0 : lay_out_group_keys(p->d_k, NULL, &k),
           of_values = p->v.type == RAPT_INT8 ? 0 : lay_out_group_values(p->d_v, rows, NULL, &v);
    return of_keys > of_values ? of_keys : of_values;
}
#else
#include "int8/keys_as_f32.h"
#endif

/* Returns the first key of a block whose score is computed: b->first, rounded down to a multiple of RAPT_PARTIAL_SUMS. */
static inline int scored_from(const block *b) { return b->first & -RAPT_PARTIAL_SUMS; }

/* Returns the end of the keys whose scores are computed: b->end, rounded up to a multiple of RAPT_PARTIAL_SUMS. */
static inline int scored_to(const block *b) { return (b->end + RAPT_PARTIAL_SUMS - 1) & -RAPT_PARTIAL_SUMS; }

/* Finds rows of K or V of the task's first head: sets rows[n], for the keys whose scores are computed, to the address of key n of
 * the chunk, or outside its block's [first, end) to that of the nearest key inside. Entries before these and between them repeat
 * the next one. The `further` entries after the last one are there to be prefetched: if it ends the chunk they are the rows of
 * the next chunk's first keys, the last of which is repeated; else, and if there is no next chunk, they repeat it. */
static void find_chunk_rows(const rapt_task *t, const char *tensor, const rapt_layout *layout, const block *blocks, int count,
                            int further, const char **rows) {
    int known = 0; /* rows[0] to rows[known - 1] are set */
    for (int i = 0; i < count; i++) {
        int at = (int)(blocks[i].number % RAPT_CHUNK), from = scored_from(&blocks[i]), to = scored_to(&blocks[i]);
        find_rows(rows + at, t, tensor, layout, &blocks[i], from, to);
        for (; known < at + from; known++) rows[known] = rows[at + from];
        known = at + to;
    }
    for (int n = 0; n < further; n++) rows[known + n] = rows[known - 1];
    if (known < RAPT_CHUNK) return;
    int64_t next = blocks[0].number - blocks[0].number % RAPT_CHUNK + RAPT_CHUNK;
    block ahead = {next, 0, rapt_min(further, key_end(t) - next)};
    if (ahead.end > 0) find_rows(rows + RAPT_CHUNK, t, tensor, layout, &ahead, 0, further);
}

/* Computes the scores of n keys of one head as score_rows does, from a copy of the keys as f32. */
static void score_copied_rows(const rapt_task *t, const row_scratch *s, int rows, const char *const *keys, size_t offset, int n,
                              const float *q, float *scores) {
    const rapt_problem *p = t->problem;
    size_t dk = row_floats(p);
    const char *from[RAPT_BLOCK], *copies[RAPT_BLOCK + RAPT_KEYS_FURTHER_AHEAD];
    for (int i = 0; i < RAPT_BLOCK; i++) from[i] = keys[rapt_min(i, n - 1)] + offset;
    stage_rows(p->k.type, s->keys, dk, from, n, 0, p->d_k);
    for (int i = 0; i < n + RAPT_KEYS_FURTHER_AHEAD; i++) copies[i] = (const char *)(s->keys + (size_t)rapt_min(i, n - 1) * dk);
    score_keys_f32(rows, copies, 0, n, p->d_k, q, dk, scores);
}

/* Computes S = Q K^T of one head for keys [from, to) of a block, multiples of RAPT_PARTIAL_SUMS. rows: the head's rows. key_rows:
 * the addresses of the chunk's keys. */
static void score_rows(const rapt_task *t, const row_scratch *s, int kv_head, int rows, const char *const *key_rows,
                       const block *b, int from, int to) {
    const rapt_problem *p = t->problem;
    const char *const *keys = key_rows + b->number % RAPT_CHUNK + from;
    size_t dk = row_floats(p), offset = (size_t)kv_head * (size_t)p->k.head_stride;
    const float *q = s->q + (size_t)(kv_head * rows) * dk;
    float *scores = s->s + (size_t)(kv_head * rows) * RAPT_CHUNK + b->number % RAPT_CHUNK + from;
#if RAPT_FEW_DOTS
    if (INTEGER && p->k.type == RAPT_INT8) {
        score_rows_dots(rows, keys, offset, to - from, p->d_k, q, dk, scores);
        return;
    }
    if (INTEGER) {
        score_rows_group_dots(p->k.type, rows, keys, offset, to - from, p->d_k, q, dk, scores, s->integers);
        return;
    }
#else
    if (INTEGER) {
        score_integer_rows(p, s, rows, keys, offset, to - from, q, dk, scores);
        return;
    }
#endif
    if (needs_copy(p->k.type, rows)) {
        score_copied_rows(t, s, rows, keys, offset, to - from, q, scores);
        return;
    }
    switch (p->k.type) {
#define RAPT_TYPE(name, suffix, ...)                                                                                             \
    case name:                                                                                                                   \
        score_keys_##suffix(rows, keys, offset, to - from, p->d_k, q, dk, scores);                                               \
        break;
        RAPT_DIRECT_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
    default:
        break;
    }
}

/* Applies softcap, ALiBi, bias and the caller's function to a row's scores of a block, if the problem has any of these, and sets
 * the scores of keys that the row does not attend to to -inf. attended: the keys that it attends to (attended_keys). */
static RAPT_NOINLINE void modify_and_mask_row(const rapt_task *t, query_row *row, float *scores, int64_t number,
                                              uint64_t attended) {
    const rapt_problem *p = t->problem;
    if (p->modified) {
        float bias[RAPT_BLOCK] = {0};
        const block b = block_of(number, row->first, row->end);
        vf slope = v_set1(slope_of(t, row->at.head));
        vf from = v_set1((float)(query_number(t, row->at.token) - number));
        if (p->bias.type && b.first < b.end) {
            float whole[RAPT_BLOCK + RAPT_VL];
            int count;
            const char *at = bias_at(t, row->at, number, b.first, b.end, &count);
            stage_element_rows(p->bias.type, whole, RAPT_BLOCK, &at, 1, 0, count);
            memcpy(bias + b.first, whole, (size_t)count * sizeof *bias);
            for (int n = b.first + count; n < b.end && p->bias_one_key; n++) bias[n] = whole[0];
        }
        for (int n = 0; n < RAPT_BLOCK; n += RAPT_VL)
            v_store(scores + n,
                    logit_of(p, v_load(scores + n), slope, distance_of(from, v_load(key_indices + n)), v_load(bias + n)));
        if (p->logits_body && b.first < b.end) {
            int32_t head = (int32_t)(t->head0 + row->at.head), token = (int32_t)row->at.token;
            rapt_logits logits = {scores + b.first, RAPT_BLOCK, 1, 1, b.end - b.first, t->batch, number + b.first, &head, &token};
            call_logits_body(t, &logits);
            for (int n = 0; n < RAPT_BLOCK && p->bias.type; n += RAPT_VL)
                v_store(scores + n, keep_masked(v_load(scores + n), v_load(bias + n)));
        }
    }
    for (int n = 0; n < RAPT_BLOCK && ~attended; n += RAPT_VL) {
        vi bit = i_and(i_set1((int32_t)(attended >> (n & ~15) & 0xffff)), v_as_int(v_load(key_bits + n % 16)));
        v_store(scores + n, v_select(i_gt(bit, i_set1(0)), v_load(scores + n), v_set1(-INFINITY)));
    }
}

/* Turns a row's scores of a block into logits: multiplies them by key_scales (null, or a scale for each key of the block), and
 * modifies and masks them where that is needed. Writes them to the output of scores, if there is one. */
static void make_logits(const rapt_task *t, query_row *row, float *scores, const float *key_scales, const block *b) {
    const rapt_problem *p = t->problem;
    uint64_t attended = ~UINT64_C(0);
    if (has_masks(p)) attended = row->attended[b->number % RAPT_CHUNK / RAPT_BLOCK];
    else if (row->first > b->number || row->end < b->number + RAPT_BLOCK)
        attended = attended_keys(t, row->at, row->block_mask, row->first, row->end, b->number);
    for (int n = 0; n < RAPT_BLOCK && key_scales; n += RAPT_VL)
        v_store(scores + n, v_mul(v_load(scores + n), v_load(key_scales + n)));
    if (p->modified || ~attended) modify_and_mask_row(t, row, scores, b->number, attended);
    if (t->scores) store_scores(t, row->at, b->number, scores, 1, b->first, b->end);
}

/* Turns one row's scores of a chunk into weights; updates the maximum and the sum of its state, and sets alpha[i] to the factor
 * by which its o is multiplied before the values of block i are added. The weights, but not their sum, are then multiplied by
 * value_scales, unless that is null. Keys that the row does not attend to get weight 0. Each step is done for all blocks before
 * the next step, since block after block it would be one long chain of dependent operations. */
static void weigh_row(const rapt_task *t, query_row *row, float *scores, const float *key_scales, const float *value_scales,
                      const block *blocks, int count, float *alpha) {
    const rapt_problem *p = t->problem;
    float before[ROW_ALPHAS] = {0}, after[ROW_ALPHAS] = {0}, sum[CHUNK_BLOCKS] = {0};
    float partial[CHUNK_BLOCKS][RAPT_PARTIAL_SUMS];
    float m = row->chunk_state.m;
    for (int i = 0; i < count; i++) {
        const block *b = &blocks[i];
        float *at = scores + b->number % RAPT_CHUNK;
        vf max = v_set1(-INFINITY);
        make_logits(t, row, at, key_scales ? key_scales + b->number % RAPT_CHUNK : NULL, b);
        for (int n = 0; n < RAPT_BLOCK; n += RAPT_VL) max = v_max(max, v_load(at + n));
        float block_max = h_max(max);
        before[i] = m;
        m = block_max > m ? block_max : m; /* a NaN may get lost, but its weight is NaN */
        after[i] = m;
    }
    for (int i = 0; i < count; i += RAPT_VL)
        v_store(alpha + i, v_exp2_of(p, v_sub(v_load(before + i), finite_max(v_load(after + i)))));
    for (int i = 0; i < count; i++) {
        int64_t first = blocks[i].number % RAPT_CHUNK;
        float *at = scores + first;
        vf max = finite_max(v_set1(after[i]));
        for (int j = 0; j < RAPT_PARTIAL_SUMS; j += RAPT_VL) {
            vf sums = v_set1(0.0f);
            for (int n = j; n < RAPT_BLOCK; n += RAPT_PARTIAL_SUMS) {
                vf weight = v_exp2_of(p, v_sub(v_load(at + n), max));
                v_store(at + n, value_scales ? v_mul(weight, v_load(value_scales + first + n)) : weight);
                sums = v_add(sums, weight);
            }
            v_store(partial[i] + j, sums);
        }
    }
    for (int j = 0; j < RAPT_PARTIAL_SUMS; j++)
        if (count < CHUNK_BLOCKS)
            for (int i = 0; i < count; i++) sum[i] += partial[i][j];
        else
            UNROLLED(i, CHUNK_BLOCKS) sum[i] += partial[i][j]; /* in registers */
    for (int i = 0; i < count; i++) row->chunk_state.l = s_fma(row->chunk_state.l, alpha[i], sum[i]);
    row->chunk_state.m = m;
}

/* Multiplies the o of a state by alpha. */
static void rescale_row(const rapt_problem *p, row_state *state, float alpha) {
    for (int c = 0; c < p->d_v && alpha != 1.0f; c += RAPT_VL) v_store(state->o + c, v_mul(v_load(state->o + c), v_set1(alpha)));
}

/* Returns how many vectors the last load of a row of V fills, where V is multiplied where it lies. That load ends with the last
 * channel, so it may have channels of the load before it. Until move_last_channels moves them, the last vectors of O have the
 * channels of that load. Rows shorter than it are copied first (add_copied_values). */
static inline int last_value_vectors(const rapt_problem *p) {
    const int together = deinterleaved_vectors(p->v.type);
    return value_vectors(p) % together == 0 ? together : 1;
}

/* Returns the bytes of n channels of V, of a type without groups. */
static inline size_t value_bytes(const rapt_problem *p, int n) { return (size_t)n * (p->v_row / (size_t)p->d_v); }

/* Adds P V for n rows from a copy of the values: as f32 if the type needs one, else with zeros behind rows that are shorter than
 * a load, of `load` channels. */
static RAPT_NOINLINE void add_copied_values(const rapt_problem *p, const row_scratch *s, operands o, int n, int load) {
    const char *copies[RAPT_BLOCK] = {NULL}, *values[RAPT_BLOCK] = {NULL}; /* gcc 12 warns otherwise */
    const int vectors = value_vectors(p);
    const bool as_f32 = needs_copy(p->v.type, n);
    for (int i = 0; i < o.depth && as_f32; i++) {
        values[i] = o.rows[i] + o.offset;
        copies[i] = (const char *)(s->values + i * vectors * RAPT_VL);
    }
    if (as_f32) stage_rows(p->v.type, s->values, (size_t)vectors * RAPT_VL, values, o.depth, 0, p->d_v);
    else copy_short_rows(copies, o.depth, (char *)s->values, o.rows, o.offset, o.depth, p->v_row, value_bytes(p, load));
    o.rows = copies;
    o.offset = 0;
    stream_product(as_f32 ? RAPT_F32 : p->v.type, o, n, vectors);
}

/* Adds P V of one head for values [from, to) of the block. rows: the n rows of the head. value_rows: the addresses of the chunk's
 * values. V is multiplied where it lies, if its rows fill a load and its type needs no copy. */
static void add_values(const rapt_task *t, const row_scratch *s, int kv_head, query_row *rows, int n,
                       const char *const *value_rows, const block *b, int from, int to) {
    const rapt_problem *p = t->problem;
    const size_t dv = padded((size_t)p->d_v);
    const int vectors = value_vectors(p), load = last_value_vectors(p) * RAPT_VL; /* channels of the last load */
    operands o = {.c = (char *)rows[0].chunk_state.o,
                  .ldc = dv * 2 * sizeof(float),
                  .a = (const char *)(s->s + (size_t)(kv_head * n) * RAPT_CHUNK + b->number % RAPT_CHUNK + from),
                  .rs = RAPT_CHUNK * sizeof(float),
                  .ks = sizeof(float),
                  .depth = to - from,
                  .rows = value_rows + b->number % RAPT_CHUNK + from,
                  .offset = (size_t)kv_head * (size_t)p->v.head_stride};
    if (needs_copy(p->v.type, n) || p->d_v < load) {
        add_copied_values(p, s, o, n, load);
        return;
    }
    /* A single stream of whole rows is left to the hardware prefetcher. */
    bool alone = t->kv_heads == 1 && n == 1 && vectors <= RAPT_PANEL && p->page_size == 0 && of_elements(p->v.type);
    if (!alone) o.ahead = values_ahead(p);
    if (!alone && of_elements(p->v.type) && are_adjacent(o.rows + o.ahead, o.depth, p->v_row))
        o.linear = o.rows[o.ahead] + o.offset;
    if (p->d_v % load) o.back = value_bytes(p, load - p->d_v % load);
    stream_product(p->v.type, o, n, vectors);
}

/* Puts the channels of a row of O into ascending order, after products that read V in `deinterleaved` vectors at a time (b_format
 * in tile.h). These leave each run of deinterleaved * RAPT_VL channels as vectors of which number i has channels i, i +
 * deinterleaved, i + 2 * deinterleaved and so on. Channels at the end that do not fill a run are in order already. */
static void interleave_channels(float *o, int deinterleaved, int channels) {
    const int step = deinterleaved * RAPT_VL;
    for (int c = 0; c + step <= channels && deinterleaved > 1; c += step, o += step) {
        float lanes[4 * RAPT_VL];
        memcpy(lanes, o, (size_t)step * sizeof *o);
        for (int j = 0; j < RAPT_VL; j++)
            for (int i = 0; i < deinterleaved; i++) o[j * deinterleaved + i] = lanes[i * RAPT_VL + j];
    }
}

#if RAPT_FEW_DOTS
/* Computes O = alpha O + P V of one head in integer arithmetic for V of int8. nth: the index of b among the chunk's blocks.
 * Quantised weights are unsigned, so values with negative scales are added by a second product (NEGATIVE_AT). */
static void add_integer_values(const rapt_task *t, const row_scratch *s, int kv_head, query_row *rows, int n,
                               const char *const *value_rows, const block *b, int nth) {
    const rapt_problem *p = t->problem;
    int from = b->first & -RAPT_DOT, to = (b->end + RAPT_DOT - 1) & -RAPT_DOT;
    const float *weights = s->s + (size_t)(kv_head * n) * RAPT_CHUNK + b->number % RAPT_CHUNK;
    const char *const *values = value_rows + b->number % RAPT_CHUNK + from;
    for (int at = 0; at <= NEGATIVE_AT; at += NEGATIVE_AT) {
        float scale[RAPT_MOST_FEW_ROWS] = {0}, alpha[RAPT_MOST_FEW_ROWS] = {0};
        bool any = at == 0;
        for (int r = 0; r < n; r++) {
            scale[r] = weights[(size_t)r * RAPT_CHUNK + at + RAPT_BLOCK / RAPT_DOT];
            alpha[r] = at ? 1.0f : s->alpha[(kv_head * n + r) * ROW_ALPHAS + nth];
            any |= scale[r] != 0.0f;
        }
        if (any)
            int8_value_product(n, values, (size_t)kv_head * (size_t)p->v.head_stride, (to - from) / RAPT_DOT, p->d_v,
                               (const char *)(weights + at) + from, RAPT_CHUNK * sizeof(float), scale, alpha,
                               rows[0].chunk_state.o, padded((size_t)p->d_v) * 2);
    }
}

/* Computes O = alpha O + P V of one head in integer arithmetic for V with groups: unpacks the values to bytes, and quantises the
 * weights for each group of channels. nth: as in add_integer_values. */
static void add_group_values(const rapt_task *t, const row_scratch *s, int kv_head, query_row *rows, int n,
                             const char *const *value_rows, const block *b, int nth) {
    const rapt_problem *p = t->problem;
    const int groups = p->d_v / RAPT_GROUP, ld = group_row_bytes(p->d_v), from = b->first, to = b->end;
    const bool scaled = scaled_by_key(&p->v_scales);
    uint16_t halves[RAPT_MAX_HEAD_DIM / RAPT_GROUP * RAPT_BLOCK];
    float scales[RAPT_BLOCK] = {0}, alpha[RAPT_MOST_FEW_ROWS];
    group_values v;
    lay_out_group_values(p->d_v, n, s->integers, &v);
    if (to - from < RAPT_BLOCK) {
        memset(v.rows, 0, (size_t)(RAPT_BLOCK * ld));
        memset(halves, 0, (size_t)(groups * RAPT_BLOCK) * sizeof *halves);
    }
    unpack_rows(p->v.type, value_rows + b->number % RAPT_CHUNK + from, (size_t)kv_head * (size_t)p->v.head_stride, to - from,
                RAPT_BLOCK, p->d_v, v.rows + from * ld, halves + from, RAPT_BLOCK);
    if (scaled) load_key_scales(t, scales, t->v_scales + kv_head * p->v_scales.head_stride, &p->v_scales, b->number, from, to);
    for (int i = 0; i < groups * RAPT_BLOCK; i += RAPT_VL) {
        vf factors = v_load_f16(halves + i);
        v_store(v.factors + i, scaled ? v_mul(factors, v_load(scales + i % RAPT_BLOCK)) : factors);
    }
    for (int r = 0; r < n; r++) {
        const float *weights = s->s + (size_t)(kv_head * n + r) * RAPT_CHUNK + b->number % RAPT_CHUNK;
        alpha[r] = s->alpha[(kv_head * n + r) * ROW_ALPHAS + nth];
        for (int g = 0; g < groups; g++) quantise_group_weights(weights, v.factors + g * RAPT_BLOCK, v.weights + r * groups + g);
    }
    group_value_product(n, &v, p->d_v, alpha, rows[0].chunk_state.o, padded((size_t)p->d_v) * 2);
}

/* Computes O = alpha O + P V of one head for a block. */
static void add_integer_block(const rapt_task *t, const row_scratch *s, int kv_head, query_row *rows, int n,
                              const char *const *value_rows, const block *b, int nth) {
    if (t->problem->v.type == RAPT_INT8) add_integer_values(t, s, kv_head, rows, n, value_rows, b, nth);
    else add_group_values(t, s, kv_head, rows, n, value_rows, b, nth);
}
#endif

/* Narrows *b to the row's range, finds the rows of its values, and returns the keys that the row attends to: bit n is set if key
 * n is in the range, and neither a mask nor a bias of -inf excludes it (attended_keys may leave keys with such a bias in). */
static uint64_t find_attended_values(const rapt_task *t, int kv_head, const query_row *row, block *b, const char **values) {
    const rapt_problem *p = t->problem;
    *b = block_of(b->number, row->first, row->end);
    if (b->first >= b->end) return 0;
    uint64_t attended = attended_keys(t, row->at, row->block_mask, row->first, row->end, b->number);
    for (int n = b->first; n < b->end && p->bias.type; n++)
        if (attended >> n & 1 && !bias_leaves_any(t, row->at, b->number, n, n + 1)) attended &= ~(UINT64_C(1) << n);
    find_rows(values, t, t->v + (size_t)kv_head * (size_t)p->v.head_stride, &p->v, b, b->first, b->end);
    return attended;
}

/* Adds P V of one row for a block without the values of masked keys, as add_attended (queries_in_lanes.h) does for a tile.
 * weights: those of the chunk. task_block: the part of the block that some row attends to. */
static void add_attended_values(const rapt_task *t, const row_scratch *s, int kv_head, query_row *row, const float *weights,
                                const block *task_block) {
    const rapt_problem *p = t->problem;
    size_t dv = padded((size_t)p->d_v);
    const char *values[RAPT_BLOCK];
    block b = *task_block;
    const uint64_t attended = find_attended_values(t, kv_head, row, &b, values);
    if (!attended) return;
    weights += b.number % RAPT_CHUNK;
    stage_rows(p->v.type, s->values, dv, values + b.first, b.end - b.first, 0, p->d_v);
    for (int n = b.first; n < b.end; n++)
        for (int c = 0; c < p->d_v && attended >> n & 1; c += RAPT_VL)
            v_store(row->chunk_state.o + c, v_fma(v_set1(weights[n]), v_load(s->values + (size_t)(n - b.first) * dv + c),
                                                  v_load(row->chunk_state.o + c)));
}

/* Loads the scales of the keys or values of a chunk's blocks, of one head; 0 for those outside a block's [first, end). */
static void load_chunk_scales(const rapt_task *t, float *to, const char *scales, const rapt_scales *layout, const block *blocks,
                              int count) {
    for (int i = 0; i < count; i++) {
        float *of_block = to + blocks[i].number % RAPT_CHUNK;
        if (blocks[i].end - blocks[i].first < RAPT_BLOCK) memset(of_block, 0, RAPT_BLOCK * sizeof *to);
        load_key_scales(t, of_block, scales, layout, blocks[i].number, blocks[i].first, blocks[i].end);
    }
}

/* Turns the scores of all rows into weights (weigh_row), and in integer arithmetic with V of int8 quantises these. */
static RAPT_NOINLINE void weigh_rows(const rapt_task *t, const row_scratch *s, query_row *rows, int n, const block *blocks,
                                     int count) {
    const rapt_problem *p = t->problem;
    for (int h = 0; h < t->kv_heads; h++) {
        float key_scales[RAPT_CHUNK], value_scales[RAPT_CHUNK];
        bool keys = scaled_by_key(&p->k_scales), values = scaled_by_key(&p->v_scales);
        if (keys) load_chunk_scales(t, key_scales, t->k_scales + h * p->k_scales.head_stride, &p->k_scales, blocks, count);
        if (values) load_chunk_scales(t, value_scales, t->v_scales + h * p->v_scales.head_stride, &p->v_scales, blocks, count);
#if RAPT_FEW_DOTS
        bool negative[CHUNK_BLOCKS] = {false};
        for (int i = 0; i < count && INTEGER && values; i++)
            negative[i] = any_negative(value_scales + blocks[i].number % RAPT_CHUNK);
#endif
        for (int r = h * n; r < (h + 1) * n; r++) {
            float *scores = s->s + (size_t)r * RAPT_CHUNK;
            weigh_row(t, &rows[r], scores, keys ? key_scales : NULL, values && !INTEGER ? value_scales : NULL, blocks, count,
                      s->alpha + r * ROW_ALPHAS);
#if RAPT_FEW_DOTS
            for (int i = 0; i < count && INTEGER && p->v.type == RAPT_INT8; i++) {
                int64_t at = blocks[i].number % RAPT_CHUNK;
                quantise_row_weights(scores + at, values ? value_scales + at : NULL, negative[i]);
            }
#endif
        }
    }
}

/* Finds the blocks of a chunk that have a key to which one of the n rows, of all heads, attends; narrows each to the keys from
 * the first such key to the last, and returns how many blocks there are. With has_masks it also sets the rows' `attended`, before
 * K is read, since blocks without attended keys are skipped. */
static int find_blocks(const rapt_task *t, query_row *rows, int n, int64_t chunk, block *blocks) {
    int64_t first_min = INT64_MAX, end_max = 0;
    int count = 0;
    for (int r = 0; r < n; r++) {
        if (rows[r].first < rows[r].end && rows[r].first < first_min) first_min = rows[r].first;
        if (rows[r].end > end_max) end_max = rows[r].end;
    }
    for (int i = 0; i < CHUNK_BLOCKS; i++) {
        int64_t number = chunk * RAPT_CHUNK + i * RAPT_BLOCK;
        block b = block_of(number, first_min, end_max);
        if (has_masks(t->problem) && b.first < b.end) {
            uint64_t any = 0;
            for (int r = 0; r < n; r++)
                any |= rows[r].attended[i] = attended_keys(t, rows[r].at, rows[r].block_mask, rows[r].first, rows[r].end, number);
            b.first = any ? __builtin_ctzll(any) : 0;
            b.end = any ? RAPT_BLOCK - __builtin_clzll(any) : 0;
        }
        if (b.first < b.end) blocks[count++] = b;
    }
    return count;
}

#include "bf16/bf16_rows.h"

/* Adds P V of a chunk in exact arithmetic, `depth` rows of V at a time. */
static void add_chunk_values(const rapt_task *t, const row_scratch *s, query_row *rows, int n, const block *blocks, int count,
                             const char *const *value_rows, int depth) {
    const rapt_problem *p = t->problem;
    const int all_rows = t->kv_heads * n, deinterleaved = deinterleaved_vectors(p->v.type), last = last_value_vectors(p);
    for (int i = 0; i < count; i++) {
        const block *b = &blocks[i];
        for (int r = 0; r < all_rows; r++) rescale_row(p, &rows[r].chunk_state, s->alpha[r * ROW_ALPHAS + i]);
        for (int from = b->first; from < b->end; from += depth)
            for (int h = 0; h < t->kv_heads; h++)
                add_values(t, s, h, rows + h * n, n, value_rows, b, from, rapt_min(from + depth, b->end));
    }
    for (int r = 0; r < all_rows && !needs_copy(p->v.type, n); r++) {
        interleave_channels(rows[r].chunk_state.o, deinterleaved, value_vectors(p) * RAPT_VL);
        if (p->d_v > last * RAPT_VL) move_last_channels(rows[r].chunk_state.o, p->d_v, last * RAPT_VL);
    }
}

/* Adds P V of a chunk in exact arithmetic as add_chunk_values does, but without the values of masked keys. */
static void add_attended_chunk_values(const rapt_task *t, const row_scratch *s, query_row *rows, int n, const block *blocks,
                                      int count) {
    for (int i = 0; i < count; i++)
        for (int r = 0; r < t->kv_heads * n; r++) {
            rescale_row(t->problem, &rows[r].chunk_state, s->alpha[r * ROW_ALPHAS + i]);
            add_attended_values(t, s, r / n, &rows[r], s->s + (size_t)r * RAPT_CHUNK, &blocks[i]);
        }
}

/* Adds P V of a chunk in integer arithmetic. */
static void add_integer_chunk_values(const rapt_task *t, const row_scratch *s, query_row *rows, int n, const block *blocks,
                                     int count, const char *const *value_rows) {
    for (int i = 0; i < count; i++)
        for (int h = 0; h < t->kv_heads; h++) add_integer_block(t, s, h, rows + h * n, n, value_rows, &blocks[i], i);
}

/* Computes the states of n rows of each head over one chunk, from the empty state. skip_masked: leave the values of masked keys
 * out. At first they are added with weight 0; if that has made O infinite or NaN, the caller repeats the chunk with
 * skip_masked. */
static void attend_chunk_keys_in_lanes(const rapt_task *t, const row_scratch *s, query_row *rows, int n, int64_t chunk,
                                       bool skip_masked) {
    const rapt_problem *p = t->problem;
    block blocks[CHUNK_BLOCKS];
    int all_rows = t->kv_heads * n, count = find_blocks(t, rows, all_rows, chunk, blocks);
    for (int r = 0; r < all_rows; r++) {
        rows[r].chunk_state.m = -INFINITY;
        rows[r].chunk_state.l = 0.0f;
        memset(rows[r].chunk_state.o, 0, output_row_floats(p) * sizeof(float));
    }
    /* How many keys, and how many values, are computed before the next head, panel or row tile has its turn. Memory is to be read
     * in whole tokens, and a copy is to stay in the L1 cache:
     *   joined heads, each a part of a token            RAPT_PARTIAL_SUMS keys, RAPT_VALUES_DEPTH values
     *   types that are converted to a copy              the same
     *   P V in several panels, because V is wider than
     *   one, or in several row tiles                    values_depth values
     *   otherwise                                       a block */
    bool joined = t->kv_heads > 1;
    int keys = joined || needs_copy(p->k.type, n) ? RAPT_PARTIAL_SUMS : RAPT_BLOCK;
    bool several_tiles = value_vectors(p) > RAPT_PANEL || n > RAPT_PANEL_ROWS;
    int values = joined || needs_copy(p->v.type, n) ? RAPT_VALUES_DEPTH : several_tiles ? values_depth(p->v.type) : RAPT_BLOCK;
    const char *key_rows[CHUNK_ROWS], *value_rows[CHUNK_ROWS];
    if (count == 0) return; /* the state stays empty */
    find_chunk_rows(t, t->k, &p->k, blocks, count, of_elements(p->k.type) ? RAPT_KEYS_FURTHER_AHEAD : RAPT_BYTE_KEYS_AHEAD,
                    key_rows);
    find_chunk_rows(t, t->v, &p->v, blocks, count, values_ahead(p), value_rows);
    if (BF16) {
        attend_bf16_rows(t, s, rows, n, blocks, count, key_rows, value_rows, skip_masked);
        return;
    }
    for (int i = 0; i < count; i++) {
        const block *b = &blocks[i];
        int end = scored_to(b);
        for (int from = scored_from(b); from < end; from += keys)
            for (int h = 0; h < t->kv_heads; h++) score_rows(t, s, h, n, key_rows, b, from, rapt_min(from + keys, end));
    }
    weigh_rows(t, s, rows, n, blocks, count);
    if (INTEGER) {
        add_integer_chunk_values(t, s, rows, n, blocks, count, value_rows);
        return;
    }
    if (skip_masked) add_attended_chunk_values(t, s, rows, n, blocks, count);
    else add_chunk_values(t, s, rows, n, blocks, count, value_rows, values);
}

/* Merges the state of next_m, next_l and next_o into `merged`. */
static void merge_row(const rapt_problem *p, row_state *merged, const float *next_m, const float *next_l, const float *next_o) {
    float m[RAPT_VL], l[RAPT_VL], other_m[RAPT_VL], other_l[RAPT_VL];
    vf a, b;
    v_store(m, v_set1(merged->m));
    v_store(l, v_set1(merged->l));
    v_store(other_m, v_set1(*next_m));
    v_store(other_l, v_set1(*next_l));
    merge_weights(p, m, l, other_m, other_l, &a, &b);
    merged->m = m[0];
    merged->l = l[0];
    for (int c = 0; c < p->d_v; c += RAPT_VL) merge_values(merged->o + c, next_o + c, a, b);
}

/* Ends a row: merges its sink, divides o by l, and writes O and LSE. */
static void finish_row(const rapt_problem *p, const rapt_row_end *end, row_state *state) {
    if (end->sink) {
        float one = 1.0f, score = sink_score(p, end->sink), nothing[RAPT_MAX_HEAD_DIM] = {0};
        merge_row(p, state, &score, &one, nothing);
    }
    float scales[RAPT_MAX_HEAD_DIM];
    if (end->v_scales) load_channel_scales(scales, end->v_scales, &p->v_scales, p->d_v);
    vf factor = reciprocal(v_set1(state->l));
    for (int c = 0; c < p->d_v; c += RAPT_VL) {
        vf factors = end->v_scales ? v_mul(factor, v_load(scales + c)) : factor;
        v_store(state->o + c, finished(v_load(state->o + c), factors));
    }
    write_row(p, end->o, end->lse, state->m, state->l, state->o);
}

/* Computes a task with keys in lanes. */
static RAPT_NOINLINE void attend_keys_in_lanes(const rapt_task *t) {
    const rapt_problem *p = t->problem;
    row_scratch s;
    query_row rows[RAPT_MOST_JOINED_ROWS];
    int n = (int)t->rows, all_rows = n * t->kv_heads;
    size_t dk = row_floats(p), dv = output_row_floats(p);
    lay_out_rows(p, t->scratch, &s, rows, all_rows);
    bool masked = has_masks(p); /* true if values of keys that a row does not attend to may be added, with weight 0 */
    for (int h = 0; h < t->kv_heads; h++) {
        const char *queries[RAPT_MOST_FEW_ROWS];
        for (int r = 0; r < n; r++) {
            query_row *row = &rows[h * n + r];
            row->at = row_at(t, h, r);
            row->block_mask = p->block_mask.type ? block_mask_row(t, row->at) : NULL;
            row_range(t, row->at.token, &row->first, &row->end);
            queries[r] = t->q + row_offset(&p->q, row->at);
            row->merged_state.m = -INFINITY;
            row->merged_state.l = 0.0f;
            memset(row->merged_state.o, 0, dv * sizeof(float));
            masked |= row->first != rows[0].first || row->end != rows[0].end;
        }
        stage_element_rows(p->q.type, s.q + (size_t)(h * n) * dk, dk, queries, n, 0, p->d_k);
    }
    for (int r = 0; r < all_rows && BF16; r++)
        for (size_t c = (size_t)p->d_k; c < dk; c++) s.q[(size_t)r * dk + c] = 0.0f;
    for (size_t i = 0; i < (size_t)all_rows * dk; i += RAPT_VL) v_store(s.q + i, v_mul(v_load(s.q + i), v_set1(p->q_factor)));
    for (int r = 0; r < all_rows && scaled_by_channel(&p->k_scales); r++) {
        float scales[RAPT_MAX_HEAD_DIM], *q = s.q + (size_t)r * dk;
        load_channel_scales(scales, t->k_scales + r / n * p->k_scales.head_stride, &p->k_scales, p->d_k);
        for (int c = 0; c < p->d_k; c += RAPT_VL) v_store(q + c, v_mul(v_load(q + c), v_load(scales + c)));
    }
    for (int r = 0; r < all_rows && !BF16; r++)
        for (size_t c = (size_t)p->d_k; c < dk; c++) s.q[(size_t)r * dk + c] = -0.0f;
    if (BF16) pack_bf16_rows(p, &s, t->kv_heads, n);
#if RAPT_FEW_DOTS
    for (int r = 0; r < all_rows && INTEGER; r++) quantise_query(s.q + (size_t)r * dk, p->d_k, integer_groups(p->k.type, p->d_k));
#else
    for (int r = 0; r < all_rows && INTEGER; r++) quantise_query(s.q + (size_t)r * dk, p->d_k, dk);
#endif

    for (int64_t chunk = t->chunk0; chunk < t->chunk0 + t->chunks; chunk++) {
        attend_chunk_keys_in_lanes(t, &s, rows, n, chunk, false);
        if (masked && !INTEGER && any_nonfinite(rows[0].chunk_state.o, all_rows, 2 * dv, p->d_v))
            attend_chunk_keys_in_lanes(t, &s, rows, n, chunk, true);
        for (int r = 0; r < all_rows; r++) {
            if (t->states) store_state(t, rows[r].at, chunk, rows[r].chunk_state.m, rows[r].chunk_state.l, rows[r].chunk_state.o);
            else merge_row(p, &rows[r].merged_state, &rows[r].chunk_state.m, &rows[r].chunk_state.l, rows[r].chunk_state.o);
        }
    }
    for (int r = 0; r < all_rows && !t->states; r++) {
        row_cursor at = rows[r].at;
        rapt_row_end end = {.o = t->o + row_offset(&p->o, at), .lse = t->lse ? t->lse + row_offset(&p->lse, at) : NULL};
        if (t->sinks) end.sink = t->sinks + at.head * p->sinks.head_stride;
        if (scaled_by_channel(&p->v_scales)) end.v_scales = t->v_scales + r / n * p->v_scales.head_stride;
        finish_row(p, &end, &rows[r].merged_state);
    }
}
