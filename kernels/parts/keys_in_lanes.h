/* SPDX-License-Identifier: Apache-2.0 */
/* The path for few rows, as in decode: one lane is one key, and in P V one lane is one channel. Vectors of K are transposed in
 * registers, so that each score is still one accumulator over ascending channels. V is read where it lies, by the tile product,
 * which broadcasts the weights. A chunk is computed in three sweeps, first all its scores, then all weights, then all values, so
 * that K and V each come from memory as one long stream. Included by attend.h. */

/* The numbers of a block's keys as floats. */
static const float key_positions[RAPT_BLOCK] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                                16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
                                                32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
                                                48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};

/* Bits 0 to 15, to test which keys a row attends to. */
static const int32_t key_bits[16] = {1,      1 << 1, 1 << 2,  1 << 3,  1 << 4,  1 << 5,  1 << 6,  1 << 7,
                                     1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15};

/* Floats of row_scratch.alpha for a row: the blocks of a chunk, rounded up to whole vectors. */
enum { ROW_ALPHAS = (CHUNK_BLOCKS + RAPT_VL - 1) / RAPT_VL * RAPT_VL };

/* Addresses of rows of K or V: those of a chunk, and of as many further on as may be prefetched. */
enum { CHUNK_ROWS = RAPT_CHUNK + (RAPT_BYTE_KEYS_AHEAD > RAPT_BLOCK ? RAPT_BYTE_KEYS_AHEAD : RAPT_BLOCK) };

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
    uint64_t attended[CHUNK_BLOCKS];     /* with has_masks: bit n is set if it attends to key n of the block */
    row_state chunk_state, merged_state; /* of this chunk, and of all chunks before it */
} query_row;

/* Scratch of a task. */
typedef struct row_scratch {
    float *q;      /* [rows][padded d_k], times q_factor */
    float *s;      /* [rows][RAPT_CHUNK] scores, then weights */
    float *alpha;  /* [rows][ROW_ALPHAS] what O is multiplied by before the values of each block */
    float *values; /* [RAPT_BLOCK][padded d_v] V that cannot be read in place: all, or the channels beyond whole vectors */
    float *keys;   /* [RAPT_BLOCK][padded d_k] K that cannot be read in place */

    /* bf16 arithmetic. */
    float *row;   /* a row of K or V while it is copied */
    float *sums;  /* [2][padded d_v] of the even and the odd keys of a step, for a row that skips some */
    float *tiles; /* for a matrix unit */

    /* Integer arithmetic. */
    float *groups; /* for groups of K, and later of V, laid out by keys_int8.h */
} row_scratch;

/* Returns the floats from row to row of Q. */
static inline size_t row_floats(const rapt_problem *p) { return BF16 ? whole_steps(p->d_k) : padded((size_t)p->d_k); }

/* Returns the floats of an o, padded. */
static inline size_t output_row_floats(const rapt_problem *p) { return BF16 ? whole_steps(p->d_v) : padded((size_t)p->d_v); }

/* Returns the prefetch distance of V, in rows: for elements of 16 bits twice as many as for f32, so about the same bytes. */
static inline int values_ahead(const rapt_problem *p) {
    if (!of_elements(p->v.type)) return RAPT_BLOCK;
    if (BF16) return RAPT_BF16_VALUES_AHEAD;
    return p->v.type == RAPT_F32 ? RAPT_VALUES_AHEAD : rapt_min(2 * RAPT_VALUES_AHEAD, RAPT_BLOCK);
}

/* Returns the rows of V per pass over O, where a panel is narrower than V. Each pass reads and writes O, and should read a few
 * KiB of V: RAPT_VALUES_DEPTH rows of f32, or of narrower types as many as have about the same bytes. */
static inline int values_depth(rapt_type type) {
    int narrow = !of_elements(type) ? 4 : type == RAPT_F32 ? 1 : 2;
    return narrow * RAPT_VALUES_DEPTH < RAPT_BLOCK ? narrow * RAPT_VALUES_DEPTH : RAPT_BLOCK;
}

/* True if K or V of this type is first converted to a copy in scratch, instead of on the way into registers. Types of K and V
 * only are, for more rows of Q than RAPT_CONVERTED_ROWS, since each pass would convert them anew. */
static inline bool needs_copy(rapt_type type, int rows) { return !of_elements(type) && rows > RAPT_CONVERTED_ROWS; }

/* Returns the floats of row_scratch.groups for `rows` rows. */
static size_t integer_group_floats(const rapt_problem *p, int rows);

/* Lays out the scratch of a task of n rows, over all heads, and returns its size in floats. This is its only description: with
 * null memory it only counts. */
static size_t lay_out_rows(const rapt_problem *p, float *memory, row_scratch *scratch, query_row *rows, int n) {
    size_t used = 0, dk = row_floats(p), dv = output_row_floats(p);
    *scratch = (row_scratch){.q = carve(memory, &used, (size_t)n * dk),
                             .s = carve(memory, &used, (size_t)n * RAPT_CHUNK),
                             .alpha = carve(memory, &used, (size_t)n * ROW_ALPHAS),
                             .values = carve(memory, &used, RAPT_BLOCK * dv),
                             .keys = carve(memory, &used, BF16 || needs_copy(p->k.type, n) ? RAPT_BLOCK * dk : 0),
                             .row = carve(memory, &used, BF16 ? dk + dv : 0),
                             .sums = carve(memory, &used, BF16 ? 2 * dv : 0),
                             .tiles = carve(memory, &used, BF16 ? bf16_row_floats(p, n) : 0),
                             .groups = carve(memory, &used, INTEGER ? integer_group_floats(p, n) : 0)};
    for (int r = 0; r < n; r++)
        rows[r].chunk_state.o = carve(memory, &used, dv), rows[r].merged_state.o = carve(memory, &used, dv);
    return used;
}

/* Stages channels [first, end) of RAPT_VL rows, transposed: to[channel - first][row]. */
typedef void stage_key_rest(float *to, const char *const *keys, size_t offset, int first, int end);

/* How rows of K are read. */
typedef struct key_format {
    rapt_type type;
    int group, bytes;           /* channels of a group and its bytes, as in types.h */
    stage_key_rest *stage_rest; /* stages the channels beyond whole steps; not called for groups */
    read_step_word *read;       /* reads a step of RAPT_VL rows */
    column_word *column;        /* converts an element of each dword of a step */
} key_format;

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
 * to s in memory. The channels of a key begin `offset` bytes behind its address. Keys further on are prefetched: their addresses
 * follow those of the ng vectors. Replaceable. */
static RAPT_INLINE void score_tile(const key_format k, const int ng, const int nr, const char *const *keys, size_t offset,
                                   int channels, const float *q, size_t ldq, float *s);
#ifndef score_tile
/* Returns the bytes of an element of K; 1 for types of groups, whose elements have a byte or less. */
static RAPT_INLINE int key_element_bytes(const key_format k) { return k.group > 1 ? 1 : k.bytes; }

/* Prefetches for channel j of a step of `step` channels, which reads `together` vectors of keys and prefetches as many further
 * on. The prefetches are shared out among the channels, since a burst of them together the loads delays these. Most keys are
 * prefetched twice, at two distances, since a prefetch may get lost where many are under way. */
static RAPT_INLINE void prefetch_for_channel(const key_format k, const int together, const int step, const int j,
                                             const char *const *keys, size_t at) {
    const int element = key_element_bytes(k);
    const int near = element >= 2 ? RAPT_KEYS_AHEAD : RAPT_BYTE_KEYS_AHEAD / 2;
    const int further = element >= 4 ? RAPT_KEYS_FURTHER_AHEAD : RAPT_BYTE_KEYS_AHEAD;
    for (int n = j * together * RAPT_VL / step; n < (j + 1) * together * RAPT_VL / step; n++) {
        prefetch(keys[n + near], at);
        if (element != 2) prefetch(keys[n + further], at);
    }
}

/* Adds a step of channels, which lie `at` bytes behind the addresses of the keys. `together` vectors of keys are transposed
 * together, so that their chains of additions run side by side. i: the number of the step's first channel. */
static RAPT_INLINE void score_step(const key_format k, const int ng, const int nr, const char *const *keys, size_t at, int i,
                                   const float *q, size_t ldq, vf *acc) {
    enum { RUN = 8 }; /* gcc unrolls loops of at most 16 iterations, but nested ones of 8 */
    const int step = step_bytes(k.type, k.group, k.bytes) / k.bytes * k.group;
    const int in_dword = elements_of_dword(k.type);
    /* Types of K and V only are unrolled in part, for the sake of size. With 16 lanes by 8 channels: unrolled whole, they were
     * 120 KB more and as fast (D1 on an AMD EPYC, Zen 4: 0.98 to 1.03 of that). With fewer lanes by 16: by 8, they were 34 KB
     * less and up to 5 % slower, and whole 66 KB more and as fast, but for q5_0, 9 % (D1 by AVX2 on Zen 3). */
    const int unrolled = of_elements(k.type) ? step : (int)rapt_min(step, RAPT_VL < RAPT_PARTIAL_SUMS ? 2 * RUN : RUN);
    const int together = step > RAPT_VL ? ng : 1;
    /* Hides from the compiler that these are the addresses of `keys`. It would otherwise copy all that are prefetched from to its
     * stack before each part of the channels. */
    const char *const *ahead = keys;
    __asm__("" : "+r"(ahead));
    key_columns c[4];
    RAPT_UNROLL for (int g = 0; g < ng; g += together) {
        UNROLLED(b, together) k.read(&c[b], keys + (g + b) * RAPT_VL, at, nr);
        for (int from = 0; from < step; from += unrolled) {
            const char *const *keys_ahead = ahead + (g * RAPT_VL + from * together * RAPT_VL / step);
            RAPT_UNROLL for (int run = 0; run < unrolled; run += RUN) RAPT_UNROLL for (int j = run; j < run + RUN; j++) {
                if (j >= unrolled) continue;
                prefetch_for_channel(k, together, step, j, keys_ahead, at);
                UNROLLED(b, together) {
                    const vf x = k.column(&c[b], c[b].dwords[from / in_dword + j / in_dword], j % in_dword);
                    UNROLLED(r, nr)
                        acc[(g + b) * nr + r] = v_fma(v_broadcast(q + r * ldq + i + from + j), x, acc[(g + b) * nr + r]);
                }
            }
        }
    }
}

/* Adds the channels from `whole` on, which are less than a step. */
static RAPT_INLINE void score_tail(const key_format k, const int ng, const int nr, const char *const *keys, size_t offset,
                                   int whole, int channels, const float *q, size_t ldq, vf *acc) {
    UNROLLED(g, ng) {
        float rest[4 * RAPT_VL * RAPT_VL];
        k.stage_rest(rest, keys + g * RAPT_VL, offset, whole, channels);
        for (int c = whole; c < channels; c++)
            UNROLLED(r, nr)
                acc[g * nr + r] = v_fma(v_broadcast(q + r * ldq + c), v_load(rest + (c - whole) * RAPT_VL), acc[g * nr + r]);
    }
}

static RAPT_INLINE void score_tile(const key_format k, const int ng, const int nr, const char *const *keys, size_t offset,
                                   int channels, const float *q, size_t ldq, float *s) {
    const int step_size = step_bytes(k.type, k.group, k.bytes), step = step_size / k.bytes * k.group;
    int whole = channels - channels % step, part = rapt_score_part(channels), i = 0;
    for (int first = 0; first < channels; first += part) {
        vf acc[8];
        UNROLLED(a, ng * nr) acc[a] = v_set1(0.0f);
        for (int end = rapt_min(whole, first + part); i < end; i += step)
            score_step(k, ng, nr, keys, offset + (size_t)(i / step) * (size_t)step_size, i, q, ldq, acc);
        if (k.group == 1 && whole < channels && channels - first <= part)
            score_tail(k, ng, nr, keys, offset, whole, channels, q, ldq, acc);
        UNROLLED(g, ng)
            UNROLLED(r, nr) {
                float *to = s + (size_t)r * RAPT_CHUNK + g * RAPT_VL;
                v_store(to, first == 0 ? acc[g * nr + r] : v_add(v_load(to), acc[g * nr + r]));
            }
    }
}
#endif

/* Computes the scores of n keys, a multiple of RAPT_PARTIAL_SUMS, for nr rows. The fewer rows, the more vectors of keys a
 * register tile has, so that enough chains of additions run side by side to hide the latency of an addition. */
static RAPT_INLINE void score_keys_as(const key_format k, const int nr, const char *const *keys, size_t offset, int n,
                                      int channels, const float *q, size_t ldq, float *s) {
    /* For one row 32 keys at a time are best if all their columns stay in registers, so with 16 lanes, or if vectors are read one
     * after the other, as with f32. Measured, see docs/performance.md. */
    const int sixteens = nr == 1 && (k.bytes == 4 || RAPT_VL == RAPT_PARTIAL_SUMS) ? 2 : 1;
    const int most = RAPT_PARTIAL_SUMS / RAPT_VL * sixteens;
    const int ng = RAPT_KEY_CHAINS / nr > most ? most : RAPT_KEY_CHAINS / nr; /* 0: such nr is never called */
    int g = 0;
    for (; g + ng * RAPT_VL <= n; g += ng * RAPT_VL) score_tile(k, ng, nr, keys + g, offset, channels, q, ldq, s + g);
    if (RAPT_PARTIAL_SUMS % (ng * RAPT_VL)) /* else none are left */
        for (; g < n; g += RAPT_VL) score_tile(k, 1, nr, keys + g, offset, channels, q, ldq, s + g);
}

/* Defines stage_rest_f32, stage_rest_q4_0 and so on: the stage_key_rest of each type. */
#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    static RAPT_NOINLINE void stage_rest_##suffix(float *to, const char *const *keys, size_t offset, int first, int end) {       \
        const char *rows[RAPT_VL];                                                                                               \
        for (int j = 0; j < RAPT_VL; j++) rows[j] = keys[j] + offset;                                                            \
        stage_columns_as(load_##suffix, bytes, to, RAPT_VL, rows, RAPT_VL, first, end - first);                                  \
    }
RAPT_DIRECT_TYPES(RAPT_TYPE)
#undef RAPT_TYPE

/* Defines score_keys_f32, score_keys_q4_0 and so on, which compute the scores of n keys, a multiple of RAPT_PARTIAL_SUMS, for any
 * number of rows. */
#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    static RAPT_NOINLINE void score_keys_##suffix(int rows, const char *const *keys, size_t offset, int n, int channels,         \
                                                  const float *q, size_t ldq, float *s) {                                        \
        const key_format k = {name, group, bytes, stage_rest_##suffix, read_##suffix, v_column_##suffix};                        \
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

#if RAPT_FEW_DOTS
#include "int8/keys_int8.h"
static size_t integer_group_floats(const rapt_problem *p, int rows) {
    group_keys k;
    group_values v;
    size_t of_keys = p->k.type == RAPT_INT8 ? 0 : lay_out_group_keys(p->d_k, NULL, &k),
           of_values = p->v.type == RAPT_INT8 ? 0 : lay_out_group_values(p->d_v, rows, NULL, &v);
    return of_keys > of_values ? of_keys : of_values;
}
#else
static size_t integer_group_floats(const rapt_problem *p, int rows) { return (void)p, (void)rows, 0; }
#endif

/* Returns the first key of a block whose score is computed: b->first, rounded down to a multiple of RAPT_PARTIAL_SUMS. */
static inline int scored_from(const block *b) { return b->first & -RAPT_PARTIAL_SUMS; }

/* Returns the end of the keys whose scores are computed: b->end, rounded up to a multiple of RAPT_PARTIAL_SUMS. */
static inline int scored_to(const block *b) { return (b->end + RAPT_PARTIAL_SUMS - 1) & -RAPT_PARTIAL_SUMS; }

/* Finds the rows of K or V of the first head by find_rows: those of the keys of a chunk whose scores are computed, and of
 * `further` more keys, which are prefetched. Where there is no such key, the address is that of another row. */
static void find_chunk_rows(const rapt_task *t, const char *tensor, const rapt_layout *layout, const block *blocks, int count,
                            int further, const char **rows) {
    int known = 0; /* the end of the rows that are found */
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

/* score_rows for n keys that are first converted to a copy. */
static void score_copied_rows(const rapt_task *t, const row_scratch *s, int rows, const char *const *keys, size_t offset, int n,
                              const float *q, float *scores) {
    const rapt_problem *p = t->problem;
    size_t dk = padded((size_t)p->d_k);
    const char *from[RAPT_BLOCK], *copies[RAPT_BLOCK + RAPT_KEYS_FURTHER_AHEAD];
    for (int i = 0; i < RAPT_BLOCK; i++) from[i] = keys[rapt_min(i, n - 1)] + offset;
    stage_rows(p->k.type, s->keys, dk, from, n, 0, p->d_k);
    for (int i = 0; i < n + RAPT_KEYS_FURTHER_AHEAD; i++) copies[i] = (const char *)(s->keys + (size_t)rapt_min(i, n - 1) * dk);
    score_keys_f32(rows, copies, 0, n, p->d_k, q, dk, scores);
}

/* Computes S = Q K^T of one head for keys [from, to) of a block, multiples of RAPT_PARTIAL_SUMS. key_rows: the addresses of the
 * chunk's keys. */
static void score_rows(const rapt_task *t, const row_scratch *s, int kv_head, int rows, const char *const *key_rows,
                       const block *b, int from, int to) {
    const rapt_problem *p = t->problem;
    const char *const *keys = key_rows + b->number % RAPT_CHUNK + from;
    size_t dk = padded((size_t)p->d_k), offset = (size_t)kv_head * (size_t)p->k.head_stride;
    const float *q = s->q + (size_t)(kv_head * rows) * dk;
    float *scores = s->s + (size_t)(kv_head * rows) * RAPT_CHUNK + b->number % RAPT_CHUNK + from;
#if RAPT_FEW_DOTS
    if (INTEGER && p->k.type == RAPT_INT8) {
        score_rows_dots(rows, keys, offset, to - from, p->d_k, q, dk, scores);
        return;
    }
    if (INTEGER) {
        score_rows_group_dots(p->k.type, rows, keys, offset, to - from, p->d_k, q, dk, scores, s->groups);
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

/* Turns a row's scores of a block into logits, if more than a factor is needed, and sets those of keys that it does not attend to
 * to -inf. attended: bit n is set if it attends to key n of the block. */
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
                    logit_of(p, v_load(scores + n), slope, distance_of(from, v_load(key_positions + n)), v_load(bias + n)));
        if (p->logits_body && b.first < b.end) {
            int32_t head = (int32_t)(t->head0 + row->at.head), token = (int32_t)row->at.token;
            rapt_logits logits = {scores + b.first, RAPT_BLOCK, 1, 1, b.end - b.first, t->batch, number + b.first, &head, &token};
            call_logits_body(t, &logits);
        }
    }
    for (int n = 0; n < RAPT_BLOCK && ~attended; n += RAPT_VL) {
        vi bit = i_and(i_set1((int32_t)(attended >> (n & ~15) & 0xffff)), v_as_int(v_load(key_bits + n % 16)));
        v_store(scores + n, v_select(i_gt(bit, i_set1(0)), v_load(scores + n), v_set1(-INFINITY)));
    }
}

/* Turns a row's scores of a block into logits, and sets those of keys that it does not attend to to -inf. key_scales: null, or a
 * scale for each key of the block. */
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

/* Turns one row's scores of a chunk into weights, times the scales of their values, updates its maximum and sum, and sets
 * alpha[i] to the factor for its o before the values of block i. Keys that the row does not attend to get weight 0. Each step is
 * done for all blocks before the next step: block after block, it would be one long chain of dependent operations. */
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

/* Adds P V of one head for values [from, to) of the block. Whole vectors of channels are read where V lies; the channels beyond
 * them, and types that are first converted, from a staged copy. value_rows: the addresses of the chunk's values. */
static void add_values(const rapt_task *t, const row_scratch *s, int kv_head, query_row *rows, int n,
                       const char *const *value_rows, const block *b, int from, int to) {
    const rapt_problem *p = t->problem;
    size_t dv = padded((size_t)p->d_v);
    int rest = p->d_v % RAPT_VL, whole = p->d_v / RAPT_VL;
    bool copy = needs_copy(p->v.type, n);
    operands o = {.c = (char *)rows[0].chunk_state.o,
                  .ldc = dv * 2 * sizeof(float),
                  .a = (const char *)(s->s + (size_t)(kv_head * n) * RAPT_CHUNK + b->number % RAPT_CHUNK + from),
                  .rs = RAPT_CHUNK * sizeof(float),
                  .ks = sizeof(float),
                  .depth = to - from,
                  .rows = value_rows + b->number % RAPT_CHUNK + from,
                  .offset = (size_t)kv_head * (size_t)p->v.head_stride};
    if (rest || copy) {
        operands last = o;
        const char *values[RAPT_BLOCK] = {NULL}, *copies[RAPT_BLOCK] = {NULL}; /* gcc 12 warns otherwise */
        int first = copy ? 0 : whole * RAPT_VL, vectors = copy ? whole + (rest > 0) : 1;
        for (int i = 0; i < o.depth; i++) {
            values[i] = o.rows[i] + o.offset;
            copies[i] = (const char *)(s->values + i * vectors * RAPT_VL);
        }
        stage_rows(p->v.type, s->values, (size_t)vectors * RAPT_VL, values, o.depth, first, p->d_v - first);
        last.c += (size_t)first * sizeof(float);
        last.rows = copies;
        last.offset = 0;
        stream_product(RAPT_F32, last, n, vectors);
        if (copy) return;
    }
    /* A single stream of whole rows is left to the hardware prefetcher. */
    bool alone = t->kv_heads == 1 && n == 1 && whole <= RAPT_PANEL && p->page_size == 0 && of_elements(p->v.type);
    if (!alone) o.ahead = values_ahead(p);
    stream_product(p->v.type, o, n, whole);
}

/* Restores the order of the channels of a row of O that were deinterleaved to `deinterleaved` vectors (tile.h). The last ones,
 * too few to fill these vectors, are in order already. */
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
/* Computes O = alpha O + P V of one head in integer arithmetic for V of int8, for block b, the nth of the chunk's blocks. Weights
 * times negative scales of values are a product of their own. */
static void add_integer_values(const rapt_task *t, const row_scratch *s, int kv_head, query_row *rows, int n,
                               const char *const *value_rows, const block *b, int nth) {
    const rapt_problem *p = t->problem;
    int from = b->first & -RAPT_DOT, to = (b->end + RAPT_DOT - 1) & -RAPT_DOT;
    const float *weights = s->s + (size_t)(kv_head * n) * RAPT_CHUNK + b->number % RAPT_CHUNK;
    const char *const *values = value_rows + b->number % RAPT_CHUNK + from;
    for (int part = 0; part <= NEGATIVE_PART; part += NEGATIVE_PART) {
        float scale[RAPT_MOST_FEW_ROWS] = {0}, alpha[RAPT_MOST_FEW_ROWS] = {0};
        bool any = part == 0;
        for (int r = 0; r < n; r++) {
            scale[r] = weights[(size_t)r * RAPT_CHUNK + part + RAPT_BLOCK / RAPT_DOT];
            alpha[r] = part ? 1.0f : s->alpha[(kv_head * n + r) * ROW_ALPHAS + nth];
            any |= scale[r] != 0.0f;
        }
        if (any)
            add_rows_dots(n, values, (size_t)kv_head * (size_t)p->v.head_stride, (to - from) / RAPT_DOT, p->d_v,
                          (const char *)(weights + part) + from, RAPT_CHUNK * sizeof(float), scale, alpha, rows[0].chunk_state.o,
                          padded((size_t)p->d_v) * 2);
    }
}

/* add_integer_values for V of groups: unpacks the values to bytes and quantises the weights for each group. */
static void add_group_values(const rapt_task *t, const row_scratch *s, int kv_head, query_row *rows, int n,
                             const char *const *value_rows, const block *b, int nth) {
    const rapt_problem *p = t->problem;
    const int groups = p->d_v / RAPT_GROUP, ld = group_row_bytes(p->d_v), from = b->first, to = b->end;
    const bool scaled = scaled_by_key(&p->v_scales);
    uint16_t halves[RAPT_MAX_HEAD_DIM / RAPT_GROUP * RAPT_BLOCK];
    float scales[RAPT_BLOCK] = {0}, alpha[RAPT_MOST_FEW_ROWS];
    group_values v;
    lay_out_group_values(p->d_v, n, s->groups, &v);
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
    add_rows_group_dots(n, &v, p->d_v, alpha, rows[0].chunk_state.o, padded((size_t)p->d_v) * 2);
}
#endif

/* Narrows the block to the row's range, finds the rows of its values, and returns the keys that the row attends to: bit n is set
 * if neither a mask nor a bias of -inf excludes key n. */
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

/* Adds P V of one row without the values of masked keys: add_attended (queries_in_lanes.h) for keys in lanes. */
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

/* Loads the scales of the keys or values of a chunk's blocks, of one head; 0 for those that no row attends to. */
static void load_chunk_scales(const rapt_task *t, float *to, const char *scales, const rapt_scales *layout, const block *blocks,
                              int count) {
    for (int i = 0; i < count; i++) {
        float *of_block = to + blocks[i].number % RAPT_CHUNK;
        if (blocks[i].end - blocks[i].first < RAPT_BLOCK) memset(of_block, 0, RAPT_BLOCK * sizeof *to);
        load_key_scales(t, of_block, scales, layout, blocks[i].number, blocks[i].first, blocks[i].end);
    }
}

/* Turns the scores of all rows into weights (weigh_row), and quantises these in integer arithmetic with V of int8. */
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

/* Finds the blocks of a chunk that some row attends to, and returns their number. With has_masks it also sets the rows' attended:
 * before K is read, since blocks without attended keys are skipped. */
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
            uint64_t some = 0;
            for (int r = 0; r < n; r++)
                some |= rows[r].attended[i] =
                    attended_keys(t, rows[r].at, rows[r].block_mask, rows[r].first, rows[r].end, number);
            b.first = some ? __builtin_ctzll(some) : 0;
            b.end = some ? RAPT_BLOCK - __builtin_clzll(some) : 0;
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
    const int all_rows = t->kv_heads * n;
    for (int i = 0; i < count; i++) {
        const block *b = &blocks[i];
        for (int r = 0; r < all_rows; r++) rescale_row(p, &rows[r].chunk_state, s->alpha[r * ROW_ALPHAS + i]);
        for (int from = b->first; from < b->end; from += depth)
            for (int h = 0; h < t->kv_heads; h++)
                add_values(t, s, h, rows + h * n, n, value_rows, b, from, rapt_min(from + depth, b->end));
    }
    for (int r = 0; r < all_rows && !needs_copy(p->v.type, n); r++)
        interleave_channels(rows[r].chunk_state.o, deinterleaved_vectors(p->v.type), p->d_v);
}

/* add_chunk_values without the values of masked keys. */
static void add_attended_chunk_values(const rapt_task *t, const row_scratch *s, query_row *rows, int n, const block *blocks,
                                      int count) {
    for (int i = 0; i < count; i++)
        for (int r = 0; r < t->kv_heads * n; r++) {
            rescale_row(t->problem, &rows[r].chunk_state, s->alpha[r * ROW_ALPHAS + i]);
            add_attended_values(t, s, r / n, &rows[r], s->s + (size_t)r * RAPT_CHUNK, &blocks[i]);
        }
}

#if RAPT_FEW_DOTS
/* Adds P V of a chunk in integer arithmetic. */
static void add_integer_chunk_values(const rapt_task *t, const row_scratch *s, query_row *rows, int n, const block *blocks,
                                     int count, const char *const *value_rows) {
    for (int i = 0; i < count; i++)
        for (int h = 0; h < t->kv_heads; h++) {
            if (t->problem->v.type == RAPT_INT8) add_integer_values(t, s, h, rows + h * n, n, value_rows, &blocks[i], i);
            else add_group_values(t, s, h, rows + h * n, n, value_rows, &blocks[i], i);
        }
}
#endif

/* Computes the states of n rows of each head over one chunk, from the empty state. skip_masked: skip masked values, instead of
 * adding them with weight 0, since one that is not finite has left a NaN in O. */
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
    /* Batch sizes, chosen so that memory is read in whole tokens:
     * - joined heads (each covers only a part of a token): switch heads every RAPT_PARTIAL_SUMS keys, RAPT_VALUES_DEPTH values;
     * - V that needs several passes (wider than a panel, or more rows than a register tile): switch passes every values_depth
     * rows;
     * - types converted to a scratch copy: the same small batches, so that the copy stays in L1;
     * - otherwise a whole block at a time. */
    bool joined = t->kv_heads > 1;
    int keys = joined || needs_copy(p->k.type, n) ? RAPT_PARTIAL_SUMS : RAPT_BLOCK;
    bool passes = p->d_v / RAPT_VL > RAPT_PANEL || n > RAPT_PANEL_ROWS;
    int values = joined || needs_copy(p->v.type, n) ? RAPT_VALUES_DEPTH : passes ? values_depth(p->v.type) : RAPT_BLOCK;
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
#if RAPT_FEW_DOTS
    if (INTEGER) {
        add_integer_chunk_values(t, s, rows, n, blocks, count, value_rows);
        return;
    }
#endif
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
    bool masked = has_masks(p); /* true if scores are computed for keys that some row does not attend to */
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
    if (BF16) pack_bf16_rows(p, &s, t->kv_heads, n);
#if RAPT_FEW_DOTS
    for (int r = 0; r < all_rows && INTEGER; r++) quantise_query(s.q + (size_t)r * dk, p->d_k, integer_groups(p->k.type, p->d_k));
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
