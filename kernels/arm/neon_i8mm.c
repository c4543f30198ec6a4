/* SPDX-License-Identifier: Apache-2.0 */
/* neon_i8mm: neon_dot with products of matrices of bytes (FEAT_I8MM). */
#if !defined(__ARM_FEATURE_DOTPROD) || !defined(__ARM_FEATURE_MATMUL_INT8)
#error "compile with -march=armv8.2-a+dotprod+i8mm"
#endif
#include "arm/neon_dot_words.h"

#define RAPT_KERNEL_NAME  neon_i8mm
#define RAPT_KERNEL_NEEDS (RAPT_CPU_NEON | RAPT_CPU_DOTPROD | RAPT_CPU_I8MM)

#define dot_product    dot_product
#define arrange_dwords arrange_dwords
#define sum_products   sum_products
#include "attend.h"

/* SMMLA multiplies two rows of 8 bytes by two columns of 8 bytes, so one step takes two lanes of the depth. */
enum { MOST_STEPS = (RAPT_MAX_HEAD_DIM / RAPT_DOT + 1) / 2 };

/* The columns of B for a step: [2 * v] has the first two columns of vector v, and [2 * v + 1] the other two. */
typedef int8x16_t column_pairs[2 * RAPT_TILE_VECTORS];

/* Zips the columns of B for all steps; an odd last lane of the depth is paired with zeros. This is done once for all rows: zips
 * between the products would be a third of the vector instructions. */
static RAPT_INLINE void pair_columns(const dots *d, int vectors, column_pairs *to) {
    for (int k = 0; k < d->depth; k += 2)
        for (int v = 0; v < vectors; v++) {
            const float *b = d->b + (size_t)k * TILE_ROWS + v * RAPT_VL;
            vi low = v_as_int(v_load(b)), high = k + 1 < d->depth ? v_as_int(v_load(b + TILE_ROWS)) : i_set1(0);
            to[k / 2][2 * v] = vreinterpretq_s8_u32(vzip1q_u32(low, high));
            to[k / 2][2 * v + 1] = vreinterpretq_s8_u32(vzip2q_u32(low, high));
        }
}

/* Loads 8 bytes of two rows of A. */
static RAPT_INLINE int8x16_t row_pair(const char *first, const char *second) {
    return vcombine_s8(vld1_s8((const int8_t *)first), vld1_s8((const int8_t *)second));
}

/* Loads the last 4 bytes of two rows of A, for an odd depth: what follows them must not be read. */
static RAPT_INLINE int8x16_t last_row_pair(const char *first, const char *second) {
    return vcombine_s8(vreinterpret_s8_u8(load_4_bytes(first)), vreinterpret_s8_u8(load_4_bytes(second)));
}

/* Adds the products of a step. sums[p][v] is a 2 x 2 matrix: the rows of pair p by the columns b[v]. */
static RAPT_INLINE void add_matrices(const int nv, const int pairs, const int8x16_t *a, const int8x16_t *b,
                                     int32x4_t sums[][RAPT_TILE_VECTORS * 2]) {
    UNROLLED(v, 2 * nv)
        UNROLLED(p, pairs) sums[p][v] = vmmlaq_s32(sums[p][v], a[p], b[v]);
}

/* Computes a register tile of dot_product. An odd last row is paired with itself, and the sums of its double are dropped. */
static RAPT_INLINE void matrix_tile(const int nv, const int nr, dots d, column_pairs *columns) {
    enum { MOST_PAIRS = 8 };
    const int pairs = (nr + 1) / 2, steps = d.depth / 2;
    int32x4_t sums[MOST_PAIRS][RAPT_TILE_VECTORS * 2];
    int8x16_t a[MOST_PAIRS];
    const char *row[2 * MOST_PAIRS];
    UNROLLED(r, 2 * pairs) row[r] = d.a + (size_t)rapt_min(r, nr - 1) * d.lda;
    UNROLLED(p, pairs)
        UNROLLED(v, 2 * nv) sums[p][v] = vdupq_n_s32(0);
    for (int k = 0; k < steps; k++) {
        UNROLLED(p, pairs) a[p] = row_pair(row[2 * p] + 8 * (size_t)k, row[2 * p + 1] + 8 * (size_t)k);
        add_matrices(nv, pairs, a, columns[k], sums);
    }
    if (d.depth % 2) {
        UNROLLED(p, pairs) a[p] = last_row_pair(row[2 * p] + 8 * (size_t)steps, row[2 * p + 1] + 8 * (size_t)steps);
        add_matrices(nv, pairs, a, columns[steps], sums);
    }
    UNROLLED(r, nr)
        UNROLLED(v, nv) {
            int64x2_t left = vreinterpretq_s64_s32(sums[r / 2][2 * v]), right = vreinterpretq_s64_s32(sums[r / 2][2 * v + 1]);
            vi sum = vreinterpretq_u32_s64(r % 2 ? vzip2q_s64(left, right) : vzip1q_s64(left, right));
            end_dots(d, r, v, i_add(sum, i_set1(d.correction[r])));
        }
}

/* Computes dot_product for nv vectors. */
static RAPT_INLINE void matrix_panel(const int nv, dots d, int rows, column_pairs *columns) {
    const int nr = tile_rows_of(nv);
    for (; rows >= nr; rows -= nr, d = skip_dot_rows(d, nr)) matrix_tile(nv, nr, d, columns);
    for (; rows >= 2; rows -= 2, d = skip_dot_rows(d, 2)) matrix_tile(nv, 2, d, columns);
    if (rows > 0) matrix_tile(nv, 1, d, columns);
}

static RAPT_CLONEABLE void dot_product(dots d, int rows, int vectors) {
    column_pairs columns[MOST_STEPS];
    pair_columns(&d, vectors, columns);
    RAPT_BY_COUNT(vectors, matrix_panel, d, rows, columns);
}

/* ---- Linear layers ------------------------------------------------------------------------------------------------------- */

/* Zips each two dwords of four outputs: then a vector has eight channels of two outputs, the next one of the other two. */
static RAPT_INLINE void arrange_dwords(vf square[4]) {
    for (int i = 0; i < 4; i += 2) {
        const vf first = square[i], second = square[i + 1];
        square[i] = vzip1q_f32(first, second);
        square[i + 1] = vzip2q_f32(first, second);
    }
}

_Static_assert(INTEGER_TOKENS == 2, "tokens come in pairs, or one alone");

/* Two tokens are multiplied by smmla: [0][v] and [1][v] are 2 x 2 matrices, the tokens by the outputs of weights_lane. One token
 * is multiplied by sdot, in two sums for each output. */
static RAPT_INLINE void sum_products(const int nt, const int nv, const integer_format f, const float *dwords, size_t apart,
                                     const integer_tokens tokens, vi *acc) {
    const uint32_t correction = f.bias ? (uint32_t)tokens.corrections[0] : 0,
                   correction2 = f.bias && nt == 2 ? (uint32_t)tokens.corrections[subs_of(f, &tokens)] : 0;
    const vi start =
        nt == 2 ? vcombine_u32(vdup_n_u32(correction), vdup_n_u32(correction2)) : vreinterpretq_u32_u64(vdupq_n_u64(correction));
    vi sums[2][TILE_SUMS];
    (void)apart;
    UNROLLED(half, 2)
        UNROLLED(v, nv) sums[half][v] = start;
    UNROLLED(i, f.sub / 8) {
        const float *const token = tokens.x + 2 * i;
        const int8x16_t pair = row_pair((const char *)token, (const char *)(nt == 2 ? token + lanes_of(f, &tokens) : token));
        UNROLLED(v, nv)
            UNROLLED(half, 2) {
                const int8x16_t weights = vreinterpretq_s8_u32(weights_lane(f, dwords + v * RAPT_VL, 2 * i + half));
                vi *const sum = &sums[half][v];
                if (nt == 2) *sum = vreinterpretq_u32_s32(vmmlaq_s32(vreinterpretq_s32_u32(*sum), pair, weights));
                else *sum = i_dot(*sum, vreinterpretq_u32_s8(weights), vreinterpretq_u32_s8(pair));
            }
    }
    UNROLLED(v, nv) {
        const uint64x2_t left = vreinterpretq_u64_u32(sums[0][v]), right = vreinterpretq_u64_u32(sums[1][v]);
        acc[v] = nt == 2 ? vreinterpretq_u32_u64(vzip1q_u64(left, right)) : vpaddq_u32(sums[0][v], sums[1][v]);
        if (nt == 2) acc[nv + v] = vreinterpretq_u32_u64(vzip2q_u64(left, right));
    }
}
