/* SPDX-License-Identifier: Apache-2.0 */
/* Integer arithmetic: Q and P quantised to 8 bits, K and V as they are stored, the scales of their groups apart. Sums of integers
 * are exact, so the order in which they are taken is free, and the bits are the same on every ISA. A 32-bit lane holds RAPT_DOT
 * elements, and i_dot(acc, b, a) adds the products of those of b and a: RAPT_DOT is 4 where b's are unsigned bytes, or with
 * RAPT_DOT_SIGNED signed ones, and a's signed ones, 2 where both are 16 bits wide. Included by attend.h. */

#if RAPT_DOT == 4
typedef int8_t dot_element;
#else
typedef int16_t dot_element;
#endif

enum {
    DOT_BITS = 32 / RAPT_DOT,
#if RAPT_DOT == 4 && RAPT_DOT_SIGNED
    DOT_BIAS = 0,
    WEIGHT_BIAS = -128, /* makes unsigned weights signed; the sums are corrected for it */
#else
    DOT_BIAS = RAPT_DOT == 4 ? 128 : 0, /* makes signed queries unsigned; the sums are corrected for it */
    WEIGHT_BIAS = 0,
#endif
    DOT_MOST = 255,          /* the largest weight of a block becomes this */
    DOT_MOST_OF_GROUP = 127, /* or this, in size, with the signs of groups' scales; DOT_BIAS makes them unsigned */
};

/* 32-bit lanes that hold `elements` elements; and where queries lie in lanes, with those of zeros that make them a multiple of
 * RAPT_DOT_LANES, which is defined together with dot_product. */
static inline int dot_lanes(int elements) { return (elements + RAPT_DOT - 1) / RAPT_DOT; }
#ifndef RAPT_DOT_LANES
#define RAPT_DOT_LANES 1
#endif
_Static_assert(RAPT_BLOCK / RAPT_DOT % RAPT_DOT_LANES == 0, "the keys of a block are whole lanes");
static inline int dot_depth(int elements) { return (dot_lanes(elements) + RAPT_DOT_LANES - 1) / RAPT_DOT_LANES * RAPT_DOT_LANES; }

/* The integers nearest to x, ties to even, |x| < 2^22, in the low bits of each lane; 0 there for what is not finite, as infinity
 * and NaN that comes from no other. */
static RAPT_INLINE vi rounded(vf x) { return v_as_int(v_add(x, v_set1(0x1.8p23f))); }

/* The same as whole lanes; 0 for what is not below most, as NaN. */
static RAPT_INLINE vi nearest_int(vf x, vf most) {
    vf bounded = v_select(v_lt(x, most), x, v_set1(0.0f));
    return i_add(rounded(bounded), i_set1(-0x4b400000)); /* the bits of 1.5 * 2^23 */
}

/* The lanes with the low bits of x as element e, those after it 0. */
static RAPT_INLINE vi placed(vi lanes, vi x, int e) {
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

/* Quantises vectors of rows: q [channels][TILE_ROWS] becomes lanes to [dot_depth][TILE_ROWS], and scale[lane] what each counts. A
 * row with a NaN or an infinity has scale NaN. */
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
                lanes = placed(lanes, i_add(x, i_set1(DOT_BIAS)), e);
            }
            v_store(to + (size_t)n * TILE_ROWS + i, v_as_float(lanes));
        }
    }
}

/* ---- Staging ------------------------------------------------------------------------------------------------------------- */

/* The integers of a row of so many channels. */
static void unpack_integers(rapt_type type, const char *row, int channels, int8_t *to) {
    switch (type) {
#define RAPT_TYPE(name, suffix, bytes)                                                                                           \
    case name:                                                                                                                   \
        for (int c = 0; c < channels; c += RAPT_GROUP, row += bytes) unpack_##suffix(row, 0, to + c);                            \
        break;
        RAPT_INTEGER_GROUPS(RAPT_TYPE)
#undef RAPT_TYPE
    default:
        memcpy(to, row, (size_t)channels);
    }
}

/* Groups of a row, one of int8; and their bytes. */
static inline int integer_groups(rapt_type type, int channels) { return type == RAPT_INT8 ? 1 : channels / RAPT_GROUP; }
static inline size_t group_bytes(rapt_type type) {
    switch (type) {
#define RAPT_TYPE(name, suffix, bytes)                                                                                           \
    case name:                                                                                                                   \
        return bytes;
        RAPT_INTEGER_GROUPS(RAPT_TYPE)
#undef RAPT_TYPE
    default:
        return 0;
    }
}

/* to[n * stride] = the scale of group n of a row. */
static RAPT_NOINLINE void load_group_scales(rapt_type type, const char *row, int groups, float *to, size_t stride) {
    uint16_t halves[RAPT_MAX_HEAD_DIM / RAPT_GROUP + RAPT_VL];
    float scales[RAPT_MAX_HEAD_DIM / RAPT_GROUP + RAPT_VL];
    for (int n = 0; n < groups; n++) {
        memcpy(&halves[n], row + (size_t)n * group_bytes(type), sizeof *halves);
        if (ON_BIG_ENDIAN) halves[n] = __builtin_bswap16(halves[n]);
    }
    memset(halves + groups, 0, RAPT_VL * sizeof *halves);
    for (int n = 0; n < groups; n += RAPT_VL) v_store(scales + n, v_load_f16(halves + n));
    for (int n = 0; n < groups; n++) to[(size_t)n * stride] = scales[n];
}

/* Where element c lies in an array of elements that is a row of lanes: the first of a lane has the lowest bits. */
static inline int dot_place(int c) { return ON_BIG_ENDIAN ? c ^ (RAPT_DOT - 1) : c; }

/* Stages rows for broadcasts: lanes [n][ld], of which dot_depth are there; and what the bias of the queries adds to the sums of
 * each row's groups, [n][groups]. */
static void stage_dots(rapt_type type, float *to, size_t ld, const char *const *rows, int n, int channels, int32_t *correction) {
    const int groups = integer_groups(type, channels), each = channels / groups;
    for (int r = 0; r < n; r++, to += ld) {
        int8_t row[RAPT_MAX_HEAD_DIM];
        dot_element wide[RAPT_MAX_HEAD_DIM + RAPT_DOT * RAPT_DOT_LANES];
        unpack_integers(type, rows[r], channels, row);
        for (int g = 0; g < groups; g++) {
            int32_t sum = 0;
            for (int c = g * each; c < (g + 1) * each; c++) wide[dot_place(c)] = row[c], sum += row[c];
            *correction++ = -DOT_BIAS * sum;
        }
        for (int c = channels; c < dot_depth(channels) * RAPT_DOT; c++) wide[dot_place(c)] = 0;
        memcpy(to, wide, (size_t)dot_depth(channels) * sizeof *to);
    }
}

/* The same transposed: to[c] has the elements of keys [first, end) of a block for channel c, 0 for the other keys. correction:
 * what the bias of the weights adds. */
static RAPT_NOINLINE void stage_dots_transposed(rapt_type type, float *to, const char *const *rows, int first, int end,
                                                int channels, int32_t *correction) {
    enum { LD = RAPT_BLOCK / RAPT_DOT };
    const int bias = type == RAPT_INT8 ? WEIGHT_BIAS : DOT_BIAS;
    int8_t row[RAPT_DOT][RAPT_MAX_HEAD_DIM];
    memset(correction, 0, (size_t)channels * sizeof *correction);
    for (int n = 0; n < RAPT_BLOCK; n += RAPT_DOT) {
        for (int e = 0; e < RAPT_DOT; e++)
            if (n + e >= first && n + e < end) unpack_integers(type, rows[n + e], channels, row[e]);
            else memset(row[e], 0, (size_t)channels);
        for (int c = 0; c < channels; c++) {
            uint32_t lanes = 0;
            for (int e = 0; e < RAPT_DOT; e++) {
                lanes |= ((uint32_t)row[e][c] & (RAPT_DOT == 4 ? 0xffu : 0xffffu)) << e * DOT_BITS;
                correction[c] -= bias * row[e][c];
            }
            memcpy(to + (size_t)c * LD + n / RAPT_DOT, &lanes, sizeof lanes);
        }
    }
}

/* Weights of the keys [first, end) of a block, quantised by lane: lanes to [RAPT_BLOCK / RAPT_DOT][TILE_ROWS], and what each
 * counts. value_scales: null, or scales of the values; where a weight is 0 they do not matter, for the key may be masked.
 * of_group says that products have a sign; without it negative ones become 0 here. Where a product is NaN or infinite, all
 * weights count NaN. of_group is a constant wherever this is called. */
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
            UNROLLED(e, RAPT_DOT) lanes = placed(lanes, i_add(rounded(v_mul(scaled[n + e], factor)), i_set1(bias)), e);
            v_store(to + n / RAPT_DOT * TILE_ROWS + i, v_as_float(lanes));
        }
    }
}
static void quantise_weights(const float *weights, const float *value_scales, int first, int end, int vectors, float *to,
                             float *scale) {
    quantise_weights_of(false, weights, value_scales, first, end, vectors, to, scale);
}
static void quantise_weights_of_group(const float *weights, const float *value_scales, int first, int end, int vectors, float *to,
                                      float *scale) {
    quantise_weights_of(true, weights, value_scales, first, end, vectors, to, scale);
}

/* ---- Products ------------------------------------------------------------------------------------------------------------ */

/* C[r][m] = scale[m] * (first[r] + sum over k of A[r][k] . B[k][m]) + alpha[m] * C[r][m], the last term not if alpha is null. */
typedef struct dots {
    float *c;      /* [rows][TILE_ROWS] */
    const char *a; /* [rows], lda bytes apart, broadcast */
    size_t lda;
    const int32_t *first;       /* [rows] */
    const float *b;             /* [depth][TILE_ROWS] */
    int depth;                  /* a multiple of RAPT_DOT_LANES */
    const float *scale, *alpha; /* [TILE_ROWS] */
} dots;

static RAPT_INLINE dots dots_below(dots d, int rows) {
    d.c += (size_t)rows * TILE_ROWS;
    d.a += (size_t)rows * d.lda;
    d.first += rows;
    return d;
}

/* The end of C's row r and its vector v, whose sum of integers that is, first[r] included. */
static RAPT_INLINE void end_dots(dots d, int r, int v, vi sum) {
    float *c = d.c + (size_t)r * TILE_ROWS + v * RAPT_VL;
    vf before = d.alpha ? v_mul(v_load(c), v_load(d.alpha + v * RAPT_VL)) : v_set1(0.0f);
    v_store(c, v_fma(v_from_int(sum), v_load(d.scale + v * RAPT_VL), before));
}

/* acc += A B over the k from `from` on. nv and nr are constants wherever this is called. */
static RAPT_INLINE void add_dots_of(const int nv, const int nr, const dots *d, int from, int depth, vi *acc) {
    for (int k = from; k < from + depth; k++) {
        vi b[4];
        UNROLLED(v, nv) b[v] = v_as_int(v_load(d->b + (size_t)k * TILE_ROWS + v * RAPT_VL));
        UNROLLED(r, nr) {
            vi a = v_as_int(v_broadcast(d->a + r * d->lda + (size_t)k * sizeof(float)));
            UNROLLED(v, nv) acc[r * nv + v] = i_dot(acc[r * nv + v], b[v], a);
        }
    }
}

/* The product for `rows` rows and `vectors` vectors of lanes, 1 to RAPT_TILE_VECTORS. Replaceable. */
static RAPT_NOINLINE void dot_product(dots d, int rows, int vectors);
#ifndef dot_product
/* nv and nr are constants wherever this is called, as in tile. */
static RAPT_INLINE void dot_tile(const int nv, const int nr, dots d) {
    vi acc[32];
    UNROLLED(r, nr)
        UNROLLED(v, nv) acc[r * nv + v] = i_set1(d.first[r]);
    add_dots_of(nv, nr, &d, 0, d.depth, acc);
    UNROLLED(r, nr)
        UNROLLED(v, nv) end_dots(d, r, v, acc[r * nv + v]);
}

static RAPT_INLINE void dot_panel(const int nv, dots d, int rows) {
    const int nr = tile_rows_of(nv);
    for (; rows >= nr; rows -= nr, d = dots_below(d, nr)) dot_tile(nv, nr, d);
    for (; rows > 0; rows--, d = dots_below(d, 1)) dot_tile(nv, 1, d);
}

static RAPT_NOINLINE void dot_product(dots d, int rows, int vectors) { RAPT_BY_COUNT(vectors, dot_panel, d, rows); }
#endif

/* The same of groups: C[r][m] = scale[m] * t, where t is +0 at first, and for each group fma(first[r][group] + the sum over its
 * k, factors[r][group], t). Sums and what they add to are in registers together, so a tile has half as many rows. */
static RAPT_INLINE void group_dot_tile(const int nv, const int nr, dots d, const float *factors, int groups) {
    const int depth = RAPT_GROUP / RAPT_DOT;
    vf t[16];
    UNROLLED(i, nr * nv) t[i] = v_set1(0.0f);
    for (int g = 0; g < groups; g++) {
        vi acc[16];
        UNROLLED(r, nr)
            UNROLLED(v, nv) acc[r * nv + v] = i_set1(d.first[r * groups + g]);
        add_dots_of(nv, nr, &d, g * depth, depth, acc);
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

static RAPT_INLINE void group_dot_panel(const int nv, dots d, const float *factors, int groups, int rows) {
    const int nr = (tile_rows_of(nv) + 1) / 2;
    for (int n; rows > 0; rows -= n) {
        n = rows >= nr ? nr : 1;
        if (n == nr) group_dot_tile(nv, nr, d, factors, groups);
        else group_dot_tile(nv, 1, d, factors, groups);
        d.c += (size_t)n * TILE_ROWS, d.a += (size_t)n * d.lda, d.first += n * groups, factors += n * groups;
    }
}

static RAPT_NOINLINE void group_dot_product(dots d, const float *factors, int groups, int rows, int vectors) {
    RAPT_BY_COUNT(vectors, group_dot_panel, d, factors, groups, rows);
}
