/* SPDX-License-Identifier: Apache-2.0 */
/* Exact scores of bf16 Q and K by an instruction that adds two products to a sum, one after the other (VDPBF16PS). The product of
 * two bf16 numbers is exact in f32, so a lane that holds two adjacent channels, the earlier one in its upper half, does two steps
 * of the chain of a score: the bits of tile_product with half of its instructions. The instruction takes denormal numbers for 0,
 * so this holds if no number of Q or K is subthreshold (bf16.h); a block of K or a task that has one is multiplied as f32.
 * The bf16 arithmetic of a variant brings the product. Included by queries_in_lanes.h. */

/* RAPT_PAIR_PRODUCT: the function that computes what tile_product does, of pairs (rapt_arithmetic.pair_product); null by default.
 * A variant's bf16 arithmetic defines it, and the exact arithmetic that the variant inherits calls it. */
#ifdef RAPT_PAIR_PRODUCT
static rapt_pair_product RAPT_PAIR_PRODUCT;
#else
#define RAPT_PAIR_PRODUCT NULL
#endif

/* True if the scores of the problem are computed from pairs where no number is subthreshold. */
static inline bool has_pairs(const rapt_problem *p) { return RAPT_EXACT_PAIRS && !INTEGER && !BF16 && p->pair_product; }

/* Exchanges the halves of each lane. */
static RAPT_INLINE vi swap_halves(vi x) { return i_or(i_shl(x, 16), i_shr(x, 16)); }

/* Changes the signs of both halves of each lane. */
static RAPT_INLINE vi negate_halves(vi x) {
    const vi upper = i_and(i_add(x, i_set1(INT32_MIN)), i_set1(INT32_MIN));
    const vi lower = i_and(i_add(i_and(x, i_set1(0x8000)), i_set1(0x8000)), i_set1(0x8000));
    return i_or(i_and(x, i_set1(0x7fff7fff)), i_or(upper, lower));
}

/* Returns the pairs of a row. Of an odd number of channels the last one makes a pair with 0, and adding 0 * 0 changes no sum:
 * none is -0, since it begins with 0 and no product underflows. */
static inline int pairs_of(int channels) { return (channels + 1) / 2; }

/* Loads the vector of pairs of a row that begins with an even channel c, of which at most the last channel may be missing. */
static RAPT_INLINE vi load_pairs(const char *row, int c, int channels) {
    enum { CHANNELS = 2 * RAPT_VL };
    const char *from = row + (size_t)c * sizeof(uint16_t);
    return v_as_int(c + CHANNELS <= channels ? v_load(from) : v_load_part(from, (CHANNELS - 1) * sizeof(uint16_t)));
}

/* Packs rows of Q as pairs, [pairs][TILE_ROWS], times q_factor, which is 1 or -1. channels: at least those of a vector; the last
 * vector of a row ends with its last pair. Returns false if a number is subthreshold. */
static bool pack_query_pairs(float *q, const char *const *rows, int channels, int vectors, float q_factor) {
    enum { CHANNELS = 2 * RAPT_VL };
    vi folded = i_set1(0);
    for (int next = 0; next < channels; next += CHANNELS) {
        const int c = rapt_min(next, 2 * pairs_of(channels) - CHANNELS);
        for (int v = 0; v < vectors; v++) {
            vf pairs[RAPT_VL];
            for (int r = 0; r < RAPT_VL; r++) {
                const vi x = load_pairs(rows[v * RAPT_VL + r], c, channels);
                folded = i_fold_smallest_bf16(folded, x);
                pairs[r] = v_as_float(swap_halves(q_factor < 0.0f ? negate_halves(x) : x));
            }
            v_transpose(pairs);
            for (int i = 0; i < RAPT_VL; i++) v_store(q + (size_t)(c / 2 + i) * TILE_ROWS + v * RAPT_VL, pairs[i]);
        }
    }
    return !has_subthreshold(folded);
}

/* Stages n rows of K as pairs, ld floats from row to row. channels and result: as those of pack_query_pairs. */
static bool stage_key_pairs(float *to, size_t ld, const char *const *rows, int n, int channels) {
    enum { CHANNELS = 2 * RAPT_VL };
    vi folded = i_set1(0);
    for (int r = 0; r < n; r++, to += ld)
        for (int next = 0; next < channels; next += CHANNELS) {
            const int c = rapt_min(next, 2 * pairs_of(channels) - CHANNELS);
            const vi x = load_pairs(rows[r], c, channels);
            folded = i_fold_smallest_bf16(folded, x);
            v_store(to + c / 2, v_as_float(swap_halves(x)));
        }
    return !has_subthreshold(folded);
}

/* Converts queries that pack_query_pairs has packed to f32, [channels][TILE_ROWS]; after an odd number of channels comes one of
 * 0. */
static RAPT_NOINLINE void unpack_query_pairs(float *to, const float *q, int channels, int vectors) {
    for (int c = 0; c < channels; c += 2, q += TILE_ROWS, to += 2 * TILE_ROWS)
        for (int i = 0; i < vectors * RAPT_VL; i += RAPT_VL) {
            const vi pairs = v_as_int(v_load(q + i));
            v_store(to + i, v_as_float(i_and(pairs, i_set1(INT32_MIN >> 15))));
            v_store(to + TILE_ROWS + i, v_as_float(i_shl(pairs, 16)));
        }
}
