/* SPDX-License-Identifier: Apache-2.0 */
/* RAPT_BF16_DOT: products of bf16 numbers, summed as the matrix units of x86 sum them (docs/order.md, "bf16 arithmetic"). A
 * product of two bf16 numbers is exact in f32. Those below 2^-56 count as 0, so that no product or sum is denormal, and no mode
 * of the CPU matters. Sums go by steps of RAPT_STEP elements: C = C + (sum of the even elements + sum of the odd ones), so a
 * product is two of tile_product's for each step. Here are the numbers and the products that both paths share, in words; a matrix
 * unit replaces the functions below that are called replaceable. Included by attend.h. */

enum { STEP_PAIRS = RAPT_STEP / 2 };

/* Channels or keys, in whole steps. */
static inline size_t whole_steps(int64_t n) { return (size_t)((n + RAPT_STEP - 1) / RAPT_STEP * RAPT_STEP); }

/* The bits of bf16's 2^-56, the least magnitude but 0. */
enum { LEAST_BF16 = 0x2380 };

/* What is below it becomes +0. */
static RAPT_INLINE vf without_tiny(vf x) {
    vi magnitude = i_and(v_as_int(x), i_set1(INT32_MAX));
    return v_as_float(i_select(i_gt(i_set1(LEAST_BF16 << 16), magnitude), i_set1(0), v_as_int(x)));
}

/* x rounded to bf16, to nearest even. NaN stays NaN. */
static RAPT_INLINE vf rounded_to_bf16(vf x) {
    vi bits = v_as_int(x), odd = i_and(i_shr(bits, 16), i_set1(1));
    vi nearest = i_and(i_add(bits, i_add(odd, i_set1(0x7fff))), i_set1(INT32_MIN >> 15));
    vi nan = i_or(i_and(bits, i_set1(INT32_MIN >> 15)), i_set1(0x400000)); /* its lower half may have been all of its fraction */
    return v_as_float(i_select(i_gt(i_and(bits, i_set1(INT32_MAX)), i_set1(0x7f800000)), nan, nearest));
}

/* A number of f32 as a factor of a product. */
static RAPT_INLINE vf bf16_factor(vf x) { return without_tiny(rounded_to_bf16(x)); }

enum { VECTOR_HALVES = 2 * RAPT_VL };

/* Was there a number that counts as 0, but is not, among those of which most is what i_most_halves made of them? */
static inline bool any_tiny(vi most) {
    uint16_t halves[VECTOR_HALVES];
    bool any = false;
    v_store(halves, v_as_float(most));
    for (int i = 0; i < VECTOR_HALVES; i++) any |= halves[i] > 0x10000 - 2 * LEAST_BF16;
    return any;
}

/* Can rows of this type and so many elements be multiplied where they are, in whole steps? */
static inline bool in_steps(rapt_type type, int elements) { return type == RAPT_BF16 && elements % RAPT_STEP == 0; }

/* to[i] = row[i] as a factor, for whole vectors. */
static void make_factors(float *row, int n) {
    for (int i = 0; i < n; i += RAPT_VL) v_store(row + i, bf16_factor(v_load(row + i)));
}

/* Rows of K or V, of any type, as factors: rows of bf16, `elements` of each and then zeros up to ld of them. row: room for one of
 * f32 in whole vectors. scales: null, or a factor of each row. */
static RAPT_NOINLINE void copy_as_bf16(rapt_type type, uint16_t *to, size_t ld, const char *const *rows, int n, int elements,
                                       const float *scales, float *row) {
    for (int r = 0; r < n; r++, to += ld) {
        stage_rows(type, row, 0, rows + r, 1, 0, elements);
        for (int i = 0; i < elements; i += RAPT_VL) {
            vf x = v_load(row + i);
            i_store_u16(to + i, i_shr(v_as_int(bf16_factor(scales ? v_mul(x, v_set1(scales[r])) : x)), 16));
        }
        memset(to + elements, 0, (ld - (size_t)elements) * sizeof *to);
    }
}

/* ---- Weights ------------------------------------------------------------------------------------------------------------- */

static inline float least_bf16_difference(const rapt_problem *p) { return -56.0f / p->exponent; }

/* ---- Queries in lanes ---------------------------------------------------------------------------------------------------- */

/* C = C + AB for a step, or AB where start is START_ZERO: o has its even elements, and those of odd ones lie a_odd and b_odd
 * bytes behind these. odds: how many of them; even: room for what the even ones give, laid out as C. */
static __attribute__((unused)) void step_product(operands o, ptrdiff_t a_odd, ptrdiff_t b_odd, int odds, float *even, int rows,
                                                 int vectors) {
    coming none = {0};
    operands first = o, second = o;
    first.coming = &none;
    second.coming = o.coming ? o.coming : &none;
    first.c = (char *)even;
    first.start = START_ZERO;
    tile_product(first, rows, vectors);
    second.even = (const char *)even - o.c;
    second.a += a_odd;
    second.b += b_odd;
    second.depth = odds;
    tile_product(second, rows, vectors);
}

/* The rows of Q as factors, in the order that score_bf16 wants: of each step first the even channels, then the odd ones. q:
 * [whole steps of channels][TILE_ROWS], of which `channels` are there. Each step then takes the first RAPT_BF16_STEP_FLOATS of
 * its floats, one behind the other. Replaceable, with that constant. */
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

/* Floats from row to row of staged keys, and of staged values, of which one channel more is 1, so that its sum is that of
 * weights. */
static inline size_t staged_bf16_keys(const rapt_problem *p) { return whole_steps(p->d_k) * COPIES + RAPT_ROW_PADDING; }
static inline size_t staged_bf16_values(const rapt_problem *p) {
    return padded((size_t)(p->d_v + 1) * COPIES) + RAPT_ROW_PADDING;
}

/* Keys of a chunk, in whole blocks, that there may be. */
static inline int chunk_keys(const rapt_problem *p) {
    return rapt_min(RAPT_CHUNK, (p->kv_len + RAPT_BLOCK - 1) / RAPT_BLOCK * RAPT_BLOCK);
}

/* Floats of the keys and the values of a chunk in scratch. Replaceable. */
static size_t bf16_key_floats(const rapt_problem *p);
static size_t bf16_value_floats(const rapt_problem *p);
#ifndef bf16_key_floats
static size_t bf16_key_floats(const rapt_problem *p) { return (size_t)chunk_keys(p) * staged_bf16_keys(p); }
#endif
#ifndef bf16_value_floats
static size_t bf16_value_floats(const rapt_problem *p) { return (size_t)chunk_keys(p) * staged_bf16_values(p); }
#endif

/* Floats of a matrix unit's tiles for so many rows with keys in lanes. Replaceable. */
static size_t bf16_row_floats(const rapt_problem *p, int rows);
#ifndef bf16_row_floats
static size_t bf16_row_floats(const rapt_problem *p, int rows) {
    (void)p, (void)rows;
    return 0;
}
#endif

static RAPT_INLINE void store_copies(float *to, float x) {
    for (int i = 0; i < COPIES; i++) to[i] = x;
}

/* Rows of K, or of weights, as factors, in the order of pack_bf16_queries. row: room for one in whole steps. */
static __attribute__((unused)) void stage_bf16_rows_of_keys(rapt_type type, float *to, size_t ld, const char *const *rows, int n,
                                                            int channels, float *row) {
    int whole = (int)whole_steps(channels);
    for (int r = 0; r < n; r++, to += ld) {
        if (COPIES == 1 && type == RAPT_BF16 && whole == channels) {
            for (int c = 0; c < channels; c += RAPT_STEP)
                for (int i = 0; i < STEP_PAIRS; i += RAPT_VL) {
                    vi pairs = v_as_int(v_load(rows[r] + (size_t)(c + 2 * i) * sizeof(uint16_t)));
                    v_store(to + c + i, without_tiny(first_of_pairs(pairs)));
                    v_store(to + c + STEP_PAIRS + i, without_tiny(second_of_pairs(pairs)));
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

/* Rows of V as factors, times the scales of their tokens unless these are null, and then a 1. row: room for one in whole vectors.
 */
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
