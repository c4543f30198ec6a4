/* SPDX-License-Identifier: Apache-2.0 */
/* RAPT_BF16_DOT: products of bf16 numbers, summed as the matrix units of x86 sum them (docs/order.md, "bf16 arithmetic"). The
 * product of two bf16 numbers is exact in f32. Subthreshold numbers (nonzero, below 2^-56) are flushed to zero before they are
 * multiplied, so no product or sum is denormal, and the CPU's modes for denormals do not matter. A sum proceeds by steps of
 * RAPT_STEP elements, C = C + (sum of the even elements + sum of the odd ones); in words, each step takes two tile products.
 * This file has the conversions and products that both paths share. A matrix unit replaces the functions marked Replaceable.
 * Included by attend.h. */

enum { STEP_PAIRS = RAPT_STEP / 2 };

/* Rounds a number of channels or keys up to whole steps. */
static inline size_t whole_steps(int64_t n) { return (size_t)((n + RAPT_STEP - 1) / RAPT_STEP * RAPT_STEP); }

/* 2^-56 as a bf16 bit pattern: the smallest magnitude that is not flushed. */
enum { LEAST_BF16 = 0x2380 };

/* Flushes subthreshold lanes to +0. */
static RAPT_INLINE vf flush_subthreshold(vf x) {
    vi magnitude = i_and(v_as_int(x), i_set1(INT32_MAX));
    return v_as_float(i_select(i_gt(i_set1(LEAST_BF16 << 16), magnitude), i_set1(0), v_as_int(x)));
}

/* Rounds x to bf16, to nearest even. NaN stays NaN. */
static RAPT_INLINE vf rounded_to_bf16(vf x) {
    vi bits = v_as_int(x), odd = i_and(i_shr(bits, 16), i_set1(1));
    vi nearest = i_and(i_add(bits, i_add(odd, i_set1(0x7fff))), i_set1(INT32_MIN >> 15));
    /* Sets the quiet bit: the fraction of a NaN may lie in the lower half alone, which is cut off. */
    vi nan = i_or(i_and(bits, i_set1(INT32_MIN >> 15)), i_set1(0x400000));
    return v_as_float(i_select(i_gt(i_and(bits, i_set1(INT32_MAX)), i_set1(0x7f800000)), nan, nearest));
}

/* Converts f32 to a factor of a product: rounded to bf16, and flushed. */
static RAPT_INLINE vf bf16_factor(vf x) { return flush_subthreshold(rounded_to_bf16(x)); }

/* True if any bf16 folded into `folded` is subthreshold. i_fold_smallest_bf16 keeps, for each 16 bits, the largest
 * -2x mod 2^16: 0 for x = +-0, and larger the smaller |x| is. */
static inline bool has_subthreshold(vi folded) {
    const vi most = i_set1(0x10000 - 2 * LEAST_BF16);
    const vi lower = i_select(i_gt(i_and(folded, i_set1(0xffff)), most), i_set1(1), i_set1(0));
    const vi found = i_select(i_gt(i_shr(folded, 16), most), i_set1(1), lower);
    return !v_all(v_lt(v_from_int(found), v_set1(1.0f)));
}

/* True if rows of this type and length can be multiplied where they lie: bf16, in whole steps. */
static inline bool in_steps(rapt_type type, int elements) { return type == RAPT_BF16 && elements % RAPT_STEP == 0; }

/* Packs two vectors of factors into one, first into the lower halves. */
static RAPT_INLINE vi pair_up(vf first, vf second) {
    return i_or(i_shr(v_as_int(first), 16), i_and(v_as_int(second), i_set1(INT32_MIN >> 15)));
}

/* Flushes the subthreshold numbers of a vector of pairs. Each stays in its half, whichever comes first in memory. */
static RAPT_INLINE vi flush_subthreshold_pairs(vi x) {
    const vf lower = v_as_float(i_shl(x, 16)), upper = v_as_float(i_and(x, i_set1(INT32_MIN >> 15)));
    return pair_up(flush_subthreshold(lower), flush_subthreshold(upper));
}

/* Converts n elements of a row to factors, in place and in whole vectors. */
static void make_factors(float *row, int n) {
    for (int i = 0; i < n; i += RAPT_VL) v_store(row + i, bf16_factor(v_load(row + i)));
}

/* Copies n rows of bf16 as factors, padded with zeros to ld, which is whole steps. */
static void copy_bf16_rows(uint16_t *to, size_t ld, const char *const *rows, int n, int elements) {
    enum { ELEMENTS = 2 * RAPT_VL };
    for (int r = 0; r < n; r++, to += ld) {
        int i = 0;
        for (; i + ELEMENTS <= elements; i += ELEMENTS)
            v_store(to + i, v_as_float(flush_subthreshold_pairs(v_as_int(v_load(rows[r] + (size_t)i * sizeof *to)))));
        for (; i < (int)ld; i += ELEMENTS) {
            const size_t bytes = (size_t)rapt_max(0, elements - i) * sizeof *to;
            const vi part = v_as_int(v_load_part(rows[r] + (size_t)i * sizeof *to, bytes));
            v_store(to + i, v_as_float(flush_subthreshold_pairs(part)));
        }
    }
}

/* Stores two vectors of f32 as bf16 factors. Replaceable. */
static RAPT_INLINE void store_bf16_factors(uint16_t *to, vf first, vf second);
#ifndef store_bf16_factors
static RAPT_INLINE void store_bf16_factors(uint16_t *to, vf first, vf second) {
    i_store_u16(to, i_shr(v_as_int(bf16_factor(first)), 16));
    i_store_u16(to + RAPT_VL, i_shr(v_as_int(bf16_factor(second)), 16));
}
#endif

/* Copies n rows of any storage type as bf16 factors, `elements` of each, padded with zeros to ld, which is whole steps. scales:
 * null, or what each row is multiplied by first. row: scratch for one row of f32, in whole vectors. */
static RAPT_NOINLINE void copy_as_bf16(rapt_type type, uint16_t *to, size_t ld, const char *const *rows, int n, int elements,
                                       const float *scales, float *row) {
    if (type == RAPT_BF16 && !scales) {
        copy_bf16_rows(to, ld, rows, n, elements);
        return;
    }
    for (int r = 0; r < n; r++, to += ld) {
        const vf scale = v_set1(scales ? scales[r] : 1.0f);
        stage_rows(type, row, 0, rows + r, 1, 0, elements);
        int i = 0;
        for (; i + RAPT_VL < elements; i += 2 * RAPT_VL)
            store_bf16_factors(to + i, v_mul(v_load(row + i), scale), v_mul(v_load(row + i + RAPT_VL), scale));
        if (i < elements) i_store_u16(to + i, i_shr(v_as_int(bf16_factor(v_mul(v_load(row + i), scale))), 16));
        if ((size_t)elements < ld) memset(to + elements, 0, (ld - (size_t)elements) * sizeof *to);
    }
}

/* ---- Weights ------------------------------------------------------------------------------------------------------------- */

/* Returns the difference from the maximum score below which a weight is flushed to zero. */
static inline float least_bf16_difference(const rapt_problem *p) { return -56.0f / p->exponent; }

/* ---- Queries in lanes ---------------------------------------------------------------------------------------------------- */

/* Adds one step of a product: C = C + (even + odd), or C = even + odd with ACCUMULATE_ZERO. o describes the even elements of A
 * and B; the odd ones, `odds` of them, lie a_odd and b_odd bytes after them. even: scratch for the sums of the even ones, laid
 * out like C. */
static __attribute__((unused)) void step_product(operands o, ptrdiff_t a_odd, ptrdiff_t b_odd, int odds, float *even, int rows,
                                                 int vectors) {
    prefetch_queue none = {0};
    operands first = o, second = o;
    first.queue = &none;
    second.queue = o.queue ? o.queue : &none;
    first.c = (char *)even;
    first.mode = ACCUMULATE_ZERO;
    tile_product(first, rows, vectors);
    second.sums_offset = (const char *)even - o.c;
    second.a += a_odd;
    second.b += b_odd;
    second.depth = odds;
    tile_product(second, rows, vectors);
}

/* Converts the rows of Q to factors, in place, in the order that score_bf16 expects: in each step the even channels come first,
 * then the odd ones. q: [whole steps of channels][TILE_ROWS]; channels from `channels` on become 0. A packed step takes
 * RAPT_BF16_STEP_FLOATS floats, and steps are adjacent. Replaceable, together with that constant. */
#ifndef RAPT_BF16_STEP_FLOATS
#define RAPT_BF16_STEP_FLOATS (RAPT_STEP * TILE_ROWS)
#endif
static void pack_bf16_queries(float *q, int channels, int vectors);
#ifndef pack_bf16_queries
static void pack_bf16_queries(float *q, int channels, int vectors) {
    for (int c = 0; c < (int)whole_steps(channels); c += RAPT_STEP)
        for (int i = 0; i < vectors * RAPT_VL; i += RAPT_VL) {
            vf x[RAPT_STEP];
            for (int j = 0; j < RAPT_STEP; j++) {
                vf factor = c + j < channels ? bf16_factor(v_load(q + (size_t)(c + j) * TILE_ROWS + i)) : v_set1(0.0f);
                x[j % 2 * STEP_PAIRS + j / 2] = factor;
            }
            for (int j = 0; j < RAPT_STEP; j++) v_store(q + (size_t)(c + j) * TILE_ROWS + i, x[j]);
        }
}
#endif

/* Packs rows of Q of bf16 in whole steps as pack_bf16_queries does, without a detour by f32. Replaceable. */
static __attribute__((unused)) void pack_bf16_query_rows(float *q, const char *const *rows, int channels, int vectors);
#ifndef pack_bf16_query_rows
enum { PACKS_QUERY_ROWS = 0 };
static void pack_bf16_query_rows(float *q, const char *const *rows, int channels, int vectors) {
    (void)q, (void)rows, (void)channels, (void)vectors;
}
#else
enum { PACKS_QUERY_ROWS = 1 };
#endif

/* True if pack_bf16_query_rows can pack Q: it is multiplied by nothing before it is rounded. */
static inline bool packs_query_rows(const rapt_problem *p) {
    return PACKS_QUERY_ROWS && in_steps(p->q.type, p->d_k) && p->q_factor == 1.0f && !scaled_by_channel(&p->k_scales);
}

/* Returns the distance from row to row of staged keys, in floats. */
static inline size_t staged_bf16_keys(const rapt_problem *p) { return whole_steps(p->d_k) * COPIES + RAPT_ROW_PADDING; }

/* Returns the distance from row to row of staged values, in floats. Values have one channel more, which is 1, so that its sum is
 * that of the weights. */
static inline size_t staged_bf16_values(const rapt_problem *p) {
    return padded((size_t)(p->d_v + 1) * COPIES) + RAPT_ROW_PADDING;
}

/* Returns the most keys that a chunk of the problem may have, in whole blocks. */
static inline int chunk_keys(const rapt_problem *p) {
    return rapt_min(RAPT_CHUNK, (p->kv_len + RAPT_BLOCK - 1) / RAPT_BLOCK * RAPT_BLOCK);
}

/* Returns how many steps the channels of K have. */
static inline int key_steps(const rapt_problem *p) { return (int)whole_steps(p->d_k) / RAPT_STEP; }

/* Returns the most steps that the keys of a chunk have. */
static inline int chunk_steps(const rapt_problem *p) { return chunk_keys(p) / RAPT_STEP; }

/* Returns the floats of scratch for the staged keys of a chunk. Replaceable. */
static size_t bf16_key_floats(const rapt_problem *p);
#ifndef bf16_key_floats
static size_t bf16_key_floats(const rapt_problem *p) { return (size_t)chunk_keys(p) * staged_bf16_keys(p); }
#endif

/* Returns the floats of scratch for the staged values of a chunk. Replaceable. */
static size_t bf16_value_floats(const rapt_problem *p);
#ifndef bf16_value_floats
static size_t bf16_value_floats(const rapt_problem *p) { return (size_t)chunk_keys(p) * staged_bf16_values(p); }
#endif

/* Returns the floats of row_scratch.kernel_scratch for `rows` query rows. Replaceable. */
static size_t bf16_scratch_floats(const rapt_problem *p, int rows);
#ifndef bf16_scratch_floats
static size_t bf16_scratch_floats(const rapt_problem *p, int rows) {
    (void)p, (void)rows;
    return 0;
}
#endif

/* Stores x COPIES times. */
static RAPT_INLINE void store_copies(float *to, float x) {
    for (int i = 0; i < COPIES; i++) to[i] = x;
}

/* Stages n rows of K, or of weights, as factors in the order of pack_bf16_queries. row: scratch for one row, in whole steps. */
static __attribute__((unused)) void stage_bf16_rows_of_keys(rapt_type type, float *to, size_t ld, const char *const *rows, int n,
                                                            int channels, float *row) {
    int whole = (int)whole_steps(channels);
    for (int r = 0; r < n; r++, to += ld) {
        if (COPIES == 1 && type == RAPT_BF16 && whole == channels) {
            for (int c = 0; c < channels; c += RAPT_STEP)
                for (int i = 0; i < STEP_PAIRS; i += RAPT_VL) {
                    vi pairs = v_as_int(v_load(rows[r] + (size_t)(c + 2 * i) * sizeof(uint16_t)));
                    v_store(to + c + i, flush_subthreshold(first_of_pairs(pairs)));
                    v_store(to + c + STEP_PAIRS + i, flush_subthreshold(second_of_pairs(pairs)));
                }
            continue;
        }
        stage_rows(type, row, 0, rows + r, 1, 0, channels);
        make_factors(row, channels);
        for (int c = channels; c < whole; c++) row[c] = 0.0f;
        for (int c = 0; c < whole; c += RAPT_STEP)
            for (int i = 0; i < STEP_PAIRS; i++) {
                store_copies(to + (c + i) * COPIES, row[c + 2 * i]);
                store_copies(to + (c + STEP_PAIRS + i) * COPIES, row[c + 2 * i + 1]);
            }
    }
}

/* Stages n rows of V as factors, each multiplied by its scale unless scales is null, and followed by a 1. row: scratch for one
 * row, in whole vectors. */
static void stage_bf16_rows_of_values(rapt_type type, float *to, size_t ld, const char *const *rows, int n, int channels,
                                      const float *scales, float *row) {
    for (int r = 0; r < n; r++, to += ld) {
        float *at = COPIES == 1 ? to : row;
        stage_rows(type, at, 0, rows + r, 1, 0, channels);
        for (int i = 0; i < channels; i += RAPT_VL) {
            vf x = v_load(at + i);
            v_store(at + i, bf16_factor(scales ? v_mul(x, v_set1(scales[r])) : x));
        }
        for (int i = 0; i < channels && COPIES > 1; i++) store_copies(to + i * COPIES, row[i]);
        store_copies(to + channels * COPIES, 1.0f);
    }
}
