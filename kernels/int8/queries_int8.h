/* SPDX-License-Identifier: Apache-2.0 */
/* RAPT_INT8_DOT: Q and P are quantised to 8 bits, and multiplied with the integers of K and V as they are stored. The scales of
 * K's groups multiply the sums of their products; those of V's groups multiply the weights, before these are quantised. This file
 * has the products with queries in lanes, and what keys_int8.h shares with them. Sums of integers are exact, so their order is
 * free and the bits are the same on every ISA. A 32-bit lane holds RAPT_DOT elements, and i_dot(acc, b, a) adds the products of
 * those of b and a. With RAPT_DOT 4, a has signed bytes and b unsigned ones, or signed ones with RAPT_DOT_SIGNED; with RAPT_DOT
 * 2, both have signed 16-bit integers. Included by attend.h. */

#if RAPT_DOT == 4
typedef int8_t dot_element;
#else
typedef int16_t dot_element;
#endif

/* What is added to the elements of b, so that i_dot can read them; the sums are corrected for it.
 *   DOT_BIAS     makes signed bytes unsigned: those of Q, and of weights for V with groups; with keys in lanes (keys_int8.h)
 *                those of K, and of V with groups. 0 if i_dot reads signed elements
 *   WEIGHT_BIAS  makes the weights for V of int8, 0 to 255, signed bytes. 0 if i_dot reads unsigned bytes, or 16 bits */
enum {
    DOT_BITS = 32 / RAPT_DOT,
#if RAPT_DOT == 4 && RAPT_DOT_SIGNED
    DOT_BIAS = 0,
    WEIGHT_BIAS = -128,
#else
    DOT_BIAS = RAPT_DOT == 4 ? 128 : 0,
    WEIGHT_BIAS = 0,
#endif
    DOT_MOST = 255,          /* V of int8: the largest weight of a block becomes this */
    DOT_MOST_OF_GROUP = 127, /* V with groups, whose scales give weights a sign: their largest magnitude becomes this */
};

/* Returns how many 32-bit lanes hold `elements` elements. */
static inline int dot_lanes(int elements) { return (elements + RAPT_DOT - 1) / RAPT_DOT; }

#ifndef RAPT_DOT_LANES /* defined by kernels with a dot_product of their own that takes several lanes at a time */
#define RAPT_DOT_LANES 1
#endif
_Static_assert(RAPT_BLOCK / RAPT_DOT % RAPT_DOT_LANES == 0, "the keys of a block are whole lanes");

/* Returns dot_lanes, rounded up to a multiple of RAPT_DOT_LANES: the depth of a product. The extra lanes of A are 0, so those of
 * B may have any value. */
static inline int dot_depth(int elements) { return (dot_lanes(elements) + RAPT_DOT_LANES - 1) / RAPT_DOT_LANES * RAPT_DOT_LANES; }

/* Returns x rounded to the nearest integer, ties to even, in the low 16 bits of each lane; needs |x| < 2^22. Infinities and
 * default NaNs (no payload) give 0 there. */
static RAPT_INLINE vi rounded(vf x) { return v_as_int(v_add(x, v_set1(0x1.8p23f))); }

/* Returns x rounded to the nearest integer in 32 bits, ties to even; 0 if x is NaN or x >= limit. Needs x > -2^22 and limit <=
 * 2^22. */
static RAPT_INLINE vi nearest_int(vf x, vf limit) {
    vf bounded = v_select(v_lt(x, limit), x, v_set1(0.0f));
    return i_add(rounded(bounded), i_set1(-0x4b400000)); /* the bits of 1.5 * 2^23 */
}

/* Returns NaN if a lane is NaN, else 0. Lanes must be 0 or NaN. */
static inline float nan_of_lanes(vf x) { return v_all(v_lt(x, v_set1(1.0f))) ? 0.0f : NAN; }

/* Inserts the low bits of x as element e of each lane. Elements are inserted in ascending order: element e and those above it
 * must be 0; for e = 0 `lanes` may have any value. */
static RAPT_INLINE vi insert_element(vi lanes, vi x, int e) {
    vi low = e < RAPT_DOT - 1 ? i_and(x, i_set1(RAPT_DOT == 4 ? 0xff : 0xffff)) : x;
    switch (e * DOT_BITS) {
    case 0:
        return low;
    case 8:
        return i_or(lanes, i_shl(low, 8));
    case 16:
        return i_or(lanes, i_shl(low, 16));
    default:
        return i_or(lanes, i_shl(low, 24));
    }
}

/* Quantises rows of Q, the first `vectors` vectors of [channels][TILE_ROWS], to lanes, [dot_depth][TILE_ROWS]: element = q /
 * scale[lane] + DOT_BIAS. `to` may be q. A row with a NaN or an infinity gets scale NaN. */
static void quantise_queries(const float *q, int channels, int vectors, float *to, float *scale) {
    for (int i = 0; i < vectors * RAPT_VL; i += RAPT_VL) {
        vf most = v_set1(0.0f), wrong = v_set1(0.0f);
        for (int c = 0; c < channels; c++) {
            vf x = v_load(q + (size_t)c * TILE_ROWS + i);
            most = v_max(most, v_as_float(i_and(v_as_int(x), i_set1(INT32_MAX))));
            wrong = v_add(wrong, v_sub(x, x)); /* 0, or NaN */
        }
        vf factor = v_div(v_set1(127.0f), most);
        v_store(scale + i, v_add(v_div(most, v_set1(127.0f)), wrong));
        for (int n = 0; n < dot_depth(channels); n++) {
            vi lanes = i_set1(0);
            for (int e = 0; e < RAPT_DOT; e++) {
                int c = n * RAPT_DOT + e;
                vi x = i_set1(0);
                if (c < channels) x = nearest_int(v_mul(v_load(q + (size_t)c * TILE_ROWS + i), factor), v_set1(128.0f));
                lanes = insert_element(lanes, i_add(x, i_set1(DOT_BIAS)), e);
            }
            v_store(to + (size_t)n * TILE_ROWS + i, v_as_float(lanes));
        }
    }
}

/* ---- Staging ------------------------------------------------------------------------------------------------------------- */

/* Copies n bytes, adding `add` modulo 256: 16 at a time, of which the last ones may overlap, since single bytes would take longer
 * than all others. */
static inline void copy_integers(int8_t *to, const char *from, int n, int add) {
    for (int c = 0; c < n && n >= 16; c += 16) {
        const int at = rapt_min(c, n - 16);
        for (int i = 0; i < 16; i++) to[at + i] = (int8_t)(from[at + i] + add);
    }
    for (int c = 0; c < n && n < 16; c++) to[c] = (int8_t)(from[c] + add);
}

/* Unpacks the integers of a row to bytes, adding `add` modulo 256. */
static void unpack_integers(rapt_type type, const char *row, int channels, int add, int8_t *to) {
    switch (type) {
#define RAPT_TYPE(name, suffix, bytes)                                                                                           \
    case name:                                                                                                                   \
        for (int c = 0; c < channels; c += RAPT_GROUP, row += bytes) unpack_##suffix(row, add, to + c);                          \
        break;
        RAPT_INTEGER_GROUPS(RAPT_TYPE)
        RAPT_RANGED_GROUPS(RAPT_TYPE)
#undef RAPT_TYPE
    default:
        copy_integers(to, row, channels, add);
    }
}

/* Unpacks the integers of a row, with 0 up to a multiple of 16 channels, and returns that multiple. Loops over so many have no
 * rest of single channels, which took up to a third of the time of a call. */
static int unpack_padded_integers(rapt_type type, const char *row, int channels, int8_t *to) {
    const int whole = (channels + 15) / 16 * 16;
    if (channels < whole) memset(to + whole - 16, 0, 16);
    unpack_integers(type, row, channels, 0, to);
    return whole;
}

/* Returns the bits of a little-endian f16. */
static inline uint16_t half_le(const char *from) {
    uint16_t half;
    memcpy(&half, from, sizeof half);
    return ON_BIG_ENDIAN ? __builtin_bswap16(half) : half;
}

/* Returns the number of groups of a row; a row of int8 is one group. */
static inline int integer_groups(rapt_type type, int channels) { return type == RAPT_INT8 ? 1 : channels / RAPT_GROUP; }

/* Returns the bytes of a group; 0 for int8, which has no scales. */
static inline size_t group_bytes(rapt_type type) {
    switch (type) {
#define RAPT_TYPE(name, suffix, bytes)                                                                                           \
    case name:                                                                                                                   \
        return bytes;
        RAPT_INTEGER_GROUPS(RAPT_TYPE)
        RAPT_RANGED_GROUPS(RAPT_TYPE)
#undef RAPT_TYPE
    default:
        return 0;
    }
}

/* Loads the scales of a row's groups: to[n * stride] = that of group n. */
static RAPT_NOINLINE void load_group_scales(rapt_type type, const char *row, int groups, float *to, size_t stride) {
    uint16_t halves[RAPT_MAX_HEAD_DIM / RAPT_GROUP + RAPT_VL];
    float scales[RAPT_MAX_HEAD_DIM / RAPT_GROUP + RAPT_VL];
    for (int n = 0; n < groups; n++) halves[n] = half_le(row + (size_t)n * group_bytes(type));
    memset(halves + groups, 0, RAPT_VL * sizeof *halves);
    for (int n = 0; n < groups; n += RAPT_VL) v_store(scales + n, v_load_f16(halves + n));
    for (int n = 0; n < groups; n++) to[(size_t)n * stride] = scales[n];
}

/* Returns the index of element c in an array of elements that is read as lanes: element 0 of a lane has its lowest bits. */
static inline int dot_place(int c) { return ON_BIG_ENDIAN ? c ^ (RAPT_DOT - 1) : c; }

/* Stages n rows for broadcasts, as lanes [n][ld], dot_depth of each row. correction: [n][groups], what has to be added to the
 * sums of each group because queries have DOT_BIAS. */
static void stage_integer_rows(rapt_type type, float *to, size_t ld, const char *const *rows, int n, int channels,
                               int32_t *correction) {
    const int groups = integer_groups(type, channels);
    for (int r = 0; r < n; r++, to += ld) {
        int8_t row[RAPT_MAX_HEAD_DIM];
        dot_element wide[RAPT_MAX_HEAD_DIM + RAPT_DOT * RAPT_DOT_LANES];
        const int whole = unpack_padded_integers(type, rows[r], channels, row), each = whole / groups;
        for (int g = 0; g < groups; g++) {
            int32_t sum = 0;
            for (int c = g * each; c < (g + 1) * each; c++) wide[dot_place(c)] = row[c], sum += row[c];
            *correction++ = -DOT_BIAS * sum;
        }
        for (int c = whole; c < dot_depth(channels) * RAPT_DOT; c++) wide[dot_place(c)] = 0;
        memcpy(to, wide, (size_t)dot_depth(channels) * sizeof *to);
    }
}

/* Stages rows of V transposed: to[c] has the elements of channel c of keys [first, end) of a block, and 0 for the other keys.
 * correction: [channels], what has to be added to the sums because weights have a bias. Both are written for a multiple of 16
 * channels. */
static RAPT_NOINLINE void stage_integer_columns(rapt_type type, float *to, const char *const *rows, int first, int end,
                                                int channels, int32_t *correction) {
    enum { LD = RAPT_BLOCK / RAPT_DOT };
    const int bias = type == RAPT_INT8 ? WEIGHT_BIAS : DOT_BIAS;
    int8_t row[RAPT_DOT][RAPT_MAX_HEAD_DIM];
    const int whole = (channels + 15) / 16 * 16;
    memset(correction, 0, (size_t)whole * sizeof *correction);
    for (int n = 0; n < RAPT_BLOCK; n += RAPT_DOT) {
        for (int e = 0; e < RAPT_DOT; e++)
            if (n + e >= first && n + e < end) unpack_padded_integers(type, rows[n + e], channels, row[e]);
            else memset(row[e], 0, (size_t)whole);
        for (int c = 0; c < whole; c++) {
            uint32_t lanes = 0;
            for (int e = 0; e < RAPT_DOT; e++) {
                lanes |= ((uint32_t)row[e][c] & (RAPT_DOT == 4 ? 0xffu : 0xffffu)) << e * DOT_BITS;
                correction[c] -= bias * row[e][c];
            }
            memcpy(to + (size_t)c * LD + n / RAPT_DOT, &lanes, sizeof lanes);
        }
    }
}

/* Quantises the weights of keys [first, end) of a block, for each lane by itself: lanes [RAPT_BLOCK / RAPT_DOT][TILE_ROWS], where
 * element = weight / scale[lane] + bias, which is DOT_BIAS if of_group, else WEIGHT_BIAS. value_scales: null, or what the weights
 * are multiplied by first, unless they are 0, since the scale of a masked key may be anything. A product that is NaN or infinite
 * makes scale[lane] NaN. Negative products keep their sign if of_group, else they become 0. */
static RAPT_INLINE void quantise_weights_of(const bool of_group, const float *weights, const float *value_scales, int first,
                                            int end, int vectors, float *to, float *scale) {
    const float largest = of_group ? DOT_MOST_OF_GROUP : DOT_MOST;
    const int bias = of_group ? DOT_BIAS : WEIGHT_BIAS;
    for (int i = 0; i < vectors * RAPT_VL; i += RAPT_VL) {
        vf zero = v_set1(0.0f), most = zero, wrong = zero, scaled[RAPT_BLOCK];
        for (int n = 0; n < RAPT_BLOCK; n++) {
            scaled[n] = zero;
            if (n < first || n >= end) continue;
            vf weight = v_load(weights + n * TILE_ROWS + i), size = weight;
            scaled[n] = weight;
            if (value_scales) {
                vf product = v_mul(weight, v_set1(value_scales[n]));
                scaled[n] = v_select(v_lt(zero, weight), of_group ? product : v_max(zero, product), weight);
                size = of_group ? v_as_float(i_and(v_as_int(scaled[n]), i_set1(INT32_MAX))) : scaled[n];
                wrong = v_add(wrong, v_sub(scaled[n], scaled[n])); /* 0, or NaN */
            }
            most = v_max(size, most);
        }
        vf factor = v_div(v_set1(largest), most);
        v_store(scale + i, v_add(v_div(most, v_set1(largest)), wrong));
        for (int n = 0; n < RAPT_BLOCK; n += RAPT_DOT) {
            vi lanes = i_set1(0);
            UNROLLED(e, RAPT_DOT) lanes = insert_element(lanes, i_add(rounded(v_mul(scaled[n + e], factor)), i_set1(bias)), e);
            v_store(to + n / RAPT_DOT * TILE_ROWS + i, v_as_float(lanes));
        }
    }
}

/* Quantises weights as quantise_weights_of does, for V of int8. Weights with a negative scale become 0: add_values_int8 quantises
 * and multiplies them by themselves. */
static void quantise_weights(const float *weights, const float *value_scales, int first, int end, int vectors, float *to,
                             float *scale) {
    quantise_weights_of(false, weights, value_scales, first, end, vectors, to, scale);
}

/* Quantises weights as quantise_weights_of does, for a group of channels of V, whose scales may be negative. */
static void quantise_weights_of_group(const float *weights, const float *value_scales, int first, int end, int vectors, float *to,
                                      float *scale) {
    quantise_weights_of(true, weights, value_scales, first, end, vectors, to, scale);
}

/* ---- Products ------------------------------------------------------------------------------------------------------------ */

/* A product of integers: C[r][m] = scale[m] * (correction[r] + sum over k of A[r][k] . B[k][m]) + alpha[m] * C[r][m], without the
 * last term if alpha is null. A[r][k] and B[k][m] are lanes, and . is the sum of products that i_dot adds. */
typedef struct dots {
    float *c;      /* [rows][TILE_ROWS] */
    const char *a; /* [rows], lda bytes apart, broadcast */
    size_t lda;
    const int32_t *correction;  /* [rows] */
    const float *b;             /* [depth][TILE_ROWS] */
    int depth;                  /* a multiple of RAPT_DOT_LANES */
    const float *scale, *alpha; /* [TILE_ROWS] */
} dots;

/* Returns the product without its first rows. */
static RAPT_INLINE dots skip_dot_rows(dots d, int rows) {
    d.c += (size_t)rows * TILE_ROWS;
    d.a += (size_t)rows * d.lda;
    d.correction += rows;
    return d;
}

/* Finishes vector v of row r of C. sum: its sum of integers, with correction[r]. */
static RAPT_INLINE void end_dots(dots d, int r, int v, vi sum) {
    float *c = d.c + (size_t)r * TILE_ROWS + v * RAPT_VL;
    vf before = d.alpha ? v_mul(v_load(c), v_load(d.alpha + v * RAPT_VL)) : v_set1(0.0f);
    v_store(c, v_fma(v_from_int(sum), v_load(d.scale + v * RAPT_VL), before));
}

/* Adds A B over k in [from, from + depth) to acc. */
static RAPT_INLINE void accumulate_dots(const int nv, const int nr, const dots *d, int from, int depth, vi *acc) {
    for (int k = from; k < from + depth; k++) {
        vi b[4];
        UNROLLED(v, nv) b[v] = v_as_int(v_load(d->b + (size_t)k * TILE_ROWS + v * RAPT_VL));
        UNROLLED(r, nr) {
            vi a = v_as_int(v_broadcast(d->a + r * d->lda + (size_t)k * sizeof(float)));
            UNROLLED(v, nv) acc[r * nv + v] = i_dot(acc[r * nv + v], b[v], a);
        }
    }
}

/* Computes a product of `rows` rows and `vectors` vectors of lanes, 1 to RAPT_TILE_VECTORS. Replaceable. */
static RAPT_CLONEABLE void dot_product(dots d, int rows, int vectors);
#ifndef dot_product
/* Computes a register tile of dot_product. */
static RAPT_INLINE void dot_tile(const int nv, const int nr, dots d) {
    vi acc[32];
    UNROLLED(r, nr)
        UNROLLED(v, nv) acc[r * nv + v] = i_set1(d.correction[r]);
    accumulate_dots(nv, nr, &d, 0, d.depth, acc);
    UNROLLED(r, nr)
        UNROLLED(v, nv) end_dots(d, r, v, acc[r * nv + v]);
}

/* Computes dot_product for nv vectors. */
static RAPT_INLINE void dot_panel(const int nv, dots d, int rows) {
    const int nr = tile_rows_of(nv);
    for (; rows >= nr; rows -= nr, d = skip_dot_rows(d, nr)) dot_tile(nv, nr, d);
    for (; rows > 0; rows--, d = skip_dot_rows(d, 1)) dot_tile(nv, 1, d);
}

static RAPT_CLONEABLE void dot_product(dots d, int rows, int vectors) { RAPT_BY_COUNT(vectors, dot_panel, d, rows); }
#endif

/* Computes a register tile of group_dot_product. Sums of integers and of floats are in registers at the same time, so it has half
 * as many rows as dot_tile. */
static RAPT_INLINE void group_dot_tile(const int nv, const int nr, dots d, const float *factors, int groups) {
    const int depth = RAPT_GROUP / RAPT_DOT;
    vf t[16];
    UNROLLED(i, nr * nv) t[i] = v_set1(0.0f);
    for (int g = 0; g < groups; g++) {
        vi acc[16];
        UNROLLED(r, nr)
            UNROLLED(v, nv) acc[r * nv + v] = i_set1(d.correction[r * groups + g]);
        accumulate_dots(nv, nr, &d, g * depth, depth, acc);
        UNROLLED(r, nr)
            UNROLLED(v, nv) t[r * nv + v] = v_fma(v_from_int(acc[r * nv + v]), v_set1(factors[r * groups + g]), t[r * nv + v]);
    }
    UNROLLED(r, nr)
        UNROLLED(v, nv)
            v_store(d.c + (size_t)r * TILE_ROWS + v * RAPT_VL, v_fma(t[r * nv + v], v_load(d.scale + v * RAPT_VL), v_set1(0.0f)));
}

_Static_assert((RAPT_ROWS_4 + 1) / 2 * 4 <= 16 && (RAPT_ROWS_3 + 1) / 2 * 3 <= 16 && (RAPT_ROWS_2 + 1) / 2 * 2 <= 16 &&
                   (RAPT_ROWS_1 + 1) / 2 <= 16,
               "a tile of half the rows has at most 16 sums");

/* Computes group_dot_product for nv vectors. */
static RAPT_INLINE void group_dot_panel(const int nv, dots d, const float *factors, int groups, int rows) {
    const int nr = (tile_rows_of(nv) + 1) / 2;
    for (int n; rows > 0; rows -= n) {
        n = rows >= nr ? nr : 1;
        if (n == nr) group_dot_tile(nv, nr, d, factors, groups);
        else group_dot_tile(nv, 1, d, factors, groups);
        d.c += (size_t)n * TILE_ROWS, d.a += (size_t)n * d.lda, d.correction += n * groups, factors += n * groups;
    }
}

/* Computes a product in which A's rows have groups: C[r][m] = scale[m] * t. t is +0 at first; each group, in ascending order,
 * makes it fma(correction[r][group] + sum over the group's k of A[r][k] . B[k][m], factors[r][group], t). */
static RAPT_CLONEABLE void group_dot_product(dots d, const float *factors, int groups, int rows, int vectors) {
    RAPT_BY_COUNT(vectors, group_dot_panel, d, factors, groups, rows);
}
