/* SPDX-License-Identifier: Apache-2.0 */
/* Cases in which every kernel must equal its scalar twin, and that the double reference within the bound. Few rows for each
 * key/value head take one path through the library and many another, so each case has both. */
#include "harness.h"

static const int64_t few_and_many[] = {1, 3, 37};

static const int64_t short_lengths[] = {0, 1, 2, 3, 5, 7, 8, 15, 16, 17, 33, 48, 49, 63, 64, 65, 100};
static const int64_t key_lengths[] = {0, 1, 63, 64, 65, 127, 128, 129, 511, 512, 513, 1000, 1025, 1100};
static const int64_t head_dims[] = {1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 40, 63, 64, 65, 80, 96, 112, 128, 192, 256, 576};

/* ---- Shapes ------------------------------------------------------------------------------------------------------------- */

static void heads(check *c, int64_t kv_heads, int64_t ratio) {
    for (int64_t n = 0; n < LENGTH_OF(few_and_many); n++) {
        problem p = problem_of(c, 2, kv_heads * ratio, kv_heads, few_and_many[n], UP_TO(149), ANY_DIM, ANY_DIM);
        p.desc.causal = (rapt_causal)draw_below(&c->random, 3);
        examine(c, &p);
    }
}

static void case_mha(check *c) {
    for (int64_t h = 1; h <= 4; h++) heads(c, h, 1);
}

static void case_mqa(check *c) {
    for (int64_t h = 2; h <= 9; h++) heads(c, 1, h);
}

static void case_gqa(check *c) {
    static const int64_t ratios[] = {1, 2, 3, 4, 5, 7, 8, 12};
    for (int64_t n = 0; n < LENGTH_OF(ratios); n++) heads(c, 2 + draw_below(&c->random, 2), ratios[n]);
}

static void case_lengths(check *c) {
    for (int64_t q = 0; q < LENGTH_OF(short_lengths); q++) {
        for (int64_t k = 0; k < LENGTH_OF(short_lengths); k++) {
            problem p = problem_of(c, 1, 2, UP_TO(2), short_lengths[q], short_lengths[k], UP_TO(24), UP_TO(24));
            p.desc.causal = (rapt_causal)draw_below(&c->random, 3);
            examine(c, &p);
        }
    }
}

static void case_blocks(check *c) {
    for (int64_t k = 0; k < LENGTH_OF(key_lengths); k++) {
        for (int64_t n = 0; n < LENGTH_OF(few_and_many); n++) {
            problem p = problem_of(c, 1, 2, 1, few_and_many[n], key_lengths[k], 24, UP_TO(40));
            if (n) p.desc.causal = (rapt_causal)draw_below(&c->random, 3);
            examine(c, &p);
        }
    }
}

static void case_head_dim(check *c) {
    for (int64_t d = 0; d < LENGTH_OF(head_dims); d++) {
        for (int64_t n = 0; n < LENGTH_OF(few_and_many); n++) {
            const int64_t keys = 1 + draw_below(&c->random, 80);
            problem p = problem_of(c, 1, 2, 1, few_and_many[n], keys, head_dims[d], ANY_DIM);
            problem_draw_types(&p, &c->random);
            examine(c, &p);
            p = problem_of(c, 1, 2, 2, few_and_many[n], keys, ANY_DIM, head_dims[d]);
            problem_draw_types(&p, &c->random);
            examine(c, &p);
        }
    }
}

static void case_head_dim_each(check *c) {
    for (int64_t d = 1; d <= 130; d++) {
        problem p = problem_of(c, 1, 2, 1, d % 2 ? 1 : 20, UP_TO(40), d, 131 - d);
        examine(c, &p);
    }
}

static void case_head_dim_large(check *c) {
    static const int64_t dims[][2] = {{576, 512}, {1024, 1024}, {1, 1024}, {1023, 1}};
    for (int64_t d = 0; d < LENGTH_OF(dims); d++) {
        for (int64_t n = 0; n < LENGTH_OF(few_and_many); n++) {
            problem p = problem_of(c, 1, 2, 1, few_and_many[n], UP_TO(99), dims[d][0], dims[d][1]);
            examine(c, &p);
        }
    }
}

/* ---- Types and layouts -------------------------------------------------------------------------------------------------- */

static void case_types(check *c) {
    for (int mix = 0; mix < 81; mix++) {
        for (int64_t n = 0; n < LENGTH_OF(few_and_many); n += 2) {
            problem p = problem_of(c, 1, 2, 1, few_and_many[n], UP_TO(99), ANY_DIM, ANY_DIM);
            problem_types(&p, (rapt_type)(1 + mix % 3), (rapt_type)(1 + mix / 3 % 3), (rapt_type)(1 + mix / 9 % 3),
                          (rapt_type)(1 + mix / 27));
            examine(c, &p);
        }
    }
}

static void layouts(check *c, place q, place k, place v, place o) {
    for (int64_t n = 0; n < 4 * LENGTH_OF(few_and_many); n++) {
        problem p = problem_of(c, 2, 4, 2, few_and_many[n / 4], UP_TO(139), ANY_DIM, ANY_DIM);
        problem_draw_types(&p, &c->random);
        problem_draw_mask(&p, &c->random);
        p.q = q;
        p.k = k;
        p.v = v;
        p.o = o;
        examine(c, &p);
    }
}

static void case_layout_bshd(check *c) { layouts(c, PLACE_BSHD, PLACE_BSHD, PLACE_BSHD, PLACE_BSHD); }
static void case_layout_mixed(check *c) { layouts(c, PLACE_BSHD, PLACE_BHSD, PLACE_PADDED, PLACE_BSHD); }
static void case_layout_padded(check *c) { layouts(c, PLACE_PADDED, PLACE_PADDED, PLACE_PADDED, PLACE_BHSD); }
static void case_layout_odd(check *c) { layouts(c, PLACE_ODD, PLACE_ODD, PLACE_ODD, PLACE_ODD); }
static void case_layout_one_batch(check *c) { layouts(c, PLACE_BHSD, PLACE_ONE_BATCH, PLACE_ONE_BATCH, PLACE_BHSD); }
static void case_layout_one_head(check *c) { layouts(c, PLACE_ONE_HEAD, PLACE_ONE_HEAD, PLACE_ONE_HEAD, PLACE_BSHD); }
static void case_layout_output(check *c) { layouts(c, PLACE_BHSD, PLACE_BHSD, PLACE_BHSD, PLACE_PADDED); }

static void case_layout_packed(check *c) {
    for (int64_t n = 0; n < 12; n++) {
        const int64_t tokens = 1 + draw_below(&c->random, 60), d = 1 + draw_below(&c->random, 100);
        problem p = problem_of(c, 2, 3 * (1 + n % 2), 3, tokens, tokens, d, d);
        const rapt_type type = (rapt_type)(1 + n % 3);
        problem_types(&p, type, type, type, type);
        p.desc.causal = (rapt_causal)draw_below(&c->random, 3);
        p.q = p.k = p.v = PLACE_PACKED;
        p.o = PLACE_BSHD;
        examine(c, &p);
    }
}

static void case_misaligned(check *c) {
    for (int offset = 1; offset < 64; offset += 1 + (int)draw_below(&c->random, 3)) {
        problem p = problem_of(c, 1, 2, 1, DRAW_OF(&c->random, few_and_many), UP_TO(79), ANY_DIM, ANY_DIM);
        problem_draw_types(&p, &c->random);
        p.offset = offset;
        examine(c, &p);
    }
}

/* ---- Masks -------------------------------------------------------------------------------------------------------------- */

static void masks(check *c, rapt_causal causal, bool windows, int lengths) {
    static const int64_t sides[] = {-1, 0, 1, 2, 5, 31, 63, 64, 100, 1000};
    static const int64_t queries[] = {1, 2, 7, 16, 40, 70, 130}, keys[] = {1, 7, 40, 64, 70, 130, 530};
    for (int64_t q = 0; q < LENGTH_OF(queries); q++) {
        for (int64_t k = 0; k < LENGTH_OF(keys); k++) {
            problem p = problem_of(c, UP_TO(3), 2, 1, queries[q], keys[k], 8, UP_TO(24));
            p.desc.causal = causal;
            p.desc.window_left = windows ? DRAW_OF(&c->random, sides) : -1;
            p.desc.window_right = windows ? DRAW_OF(&c->random, sides) : -1;
            p.lengths = lengths;
            examine(c, &p);
        }
    }
}

static void case_causal_bottom_right(check *c) { masks(c, RAPT_CAUSAL_BOTTOM_RIGHT, false, LENGTHS_NONE); }
static void case_causal_top_left(check *c) { masks(c, RAPT_CAUSAL_TOP_LEFT, false, LENGTHS_NONE); }
static void case_window(check *c) { masks(c, RAPT_CAUSAL_NONE, true, LENGTHS_NONE); }
static void case_window_bottom_right(check *c) { masks(c, RAPT_CAUSAL_BOTTOM_RIGHT, true, LENGTHS_NONE); }
static void case_window_top_left(check *c) { masks(c, RAPT_CAUSAL_TOP_LEFT, true, LENGTHS_NONE); }
static void case_kv_lengths(check *c) { masks(c, RAPT_CAUSAL_NONE, false, LENGTHS_DRAWN); }

static void case_kv_lengths_masked(check *c) {
    masks(c, RAPT_CAUSAL_BOTTOM_RIGHT, true, LENGTHS_DRAWN);
    masks(c, RAPT_CAUSAL_TOP_LEFT, true, LENGTHS_DRAWN);
}

static void case_rows_without_keys(check *c) {
    for (int64_t n = 0; n < 12; n++) { /* more queries than keys, aligned at the bottom: the first rows see nothing */
        problem p = problem_of(c, 2, 4, 2, UP_TO(94), n / 2, ANY_DIM, ANY_DIM);
        problem_draw_types(&p, &c->random);
        p.desc.causal = RAPT_CAUSAL_BOTTOM_RIGHT;
        p.lengths = n % 2 ? LENGTHS_DRAWN : LENGTHS_NONE;
        examine(c, &p);
    }
    for (int64_t n = 0; n < 4; n++) { /* a window that lies before the first key or after the last */
        problem p = problem_of(c, 1, 2, 1, 40, 10, 8, 9);
        p.desc.causal = RAPT_CAUSAL_TOP_LEFT;
        p.desc.window_left = n;
        examine(c, &p);
    }
}

/* ---- Scales ------------------------------------------------------------------------------------------------------------- */

/* The scales bring the logits back to about 1; without them they are nearly 0 or huge, but within the range of f32. */
static void scales(check *c, float scale, float q_factor, float k_factor) {
    for (int64_t n = 0; n < 2 * LENGTH_OF(few_and_many); n++) {
        problem p = problem_of(c, 1, 2, 1, few_and_many[n / 2], UP_TO(179), ANY_DIM, 20);
        p.desc.scale = scale;
        if (n % 2 || scale > 1e30f) p.q_factor = q_factor, p.k_factor = k_factor;
        examine(c, &p);
    }
}

static void case_scale(check *c) {
    static const float values[] = {1, 0.125f, 0.1f, 3};
    for (int64_t n = 0; n < LENGTH_OF(values); n++) {
        scales(c, values[n], 1, 0.25f);
        scales(c, -values[n], 0.25f, 1);
    }
}

static void case_scale_tiny(check *c) {
    scales(c, 1e-30f, 0x1p50f, 0x1p49f);
    scales(c, -1e-30f, 0x1p20f, 0x1p79f);
    scales(c, 1e-38f, 0x1p63f, 0x1p63f);
    scales(c, 0x1p-64f, 0x1p31f, 0x1p32f);
    scales(c, 0x1p-65f, 0x1p32f, 0x1p32f);
    scales(c, 0x1p-149f, 0x1p60f, 0x1p60f);
}

static void case_scale_huge(check *c) {
    scales(c, 1e25f, 0x1p-42f, 0x1p-42f);
    scales(c, -1e25f, 0x1p-10f, 0x1p-74f);
    scales(c, 0x1p64f, 0x1p-33f, 0x1p-32f);
    scales(c, 0x1p65f, 0x1p-33f, 0x1p-33f);
    scales(c, 3e38f, 0x1p-64f, 0x1p-66f);
}

/* ---- Data --------------------------------------------------------------------------------------------------------------- */

static void data_like(check *c, data kind) {
    static const int64_t keys[] = {1, 5, 64, 150, 200, 600, 1100};
    for (int64_t n = 0; n < LENGTH_OF(few_and_many); n++) {
        for (int64_t k = 0; k < LENGTH_OF(keys); k++) {
            problem p = problem_of(c, 1, 2, 1, few_and_many[n], keys[k], UP_TO(24), UP_TO(24));
            p.data = kind;
            p.desc.causal = k % 2 ? RAPT_CAUSAL_BOTTOM_RIGHT : RAPT_CAUSAL_NONE;
            if (draw_below(&c->random, 2)) problem_draw_types(&p, &c->random);
            examine(c, &p);
        }
    }
}

static void case_logits_1e4(check *c) { data_like(c, DATA_LARGE); }
static void case_ties(check *c) { data_like(c, DATA_TIES); }
static void case_one_hot(check *c) { data_like(c, DATA_ONE_HOT); }
static void case_rising(check *c) { data_like(c, DATA_RISING); }
static void case_falling(check *c) { data_like(c, DATA_FALLING); }
static void case_minus_inf_first(check *c) { data_like(c, DATA_INF_FIRST); }
static void case_minus_inf_middle(check *c) { data_like(c, DATA_INF_MIDDLE); }
static void case_minus_inf_last(check *c) { data_like(c, DATA_INF_LAST); }
static void case_minus_inf_all(check *c) { data_like(c, DATA_INF_ALL); }
static void case_denormals(check *c) { data_like(c, DATA_DENORMAL); }

/* Rows of whole steps of channels, which may be multiplied where they lie, and others. */
static void case_tiny(check *c) {
    static const int64_t keys[] = {1, 64, 150, 600};
    for (int64_t n = 0; n < LENGTH_OF(few_and_many); n++)
        for (int64_t k = 0; k < LENGTH_OF(keys); k++) {
            const int64_t dim = draw_below(&c->random, 4) ? 32 * (1 + draw_below(&c->random, 4)) : UP_TO(70);
            problem p = problem_of(c, 1, 4, 1 + draw_below(&c->random, 2) * 3, few_and_many[n], keys[k], dim, dim);
            const rapt_type narrow = draw_below(&c->random, 4) ? RAPT_BF16 : RAPT_F32;
            problem_types(&p, RAPT_F32, narrow, narrow, RAPT_F32);
            p.data = DATA_TINY;
            p.desc.causal = k % 2 ? RAPT_CAUSAL_BOTTOM_RIGHT : RAPT_CAUSAL_NONE;
            examine(c, &p);
        }
}

/* Widths that are multiplied by pairs of channels, whole vectors or not, and some that are not; queries or keys, all or a few of
 * them, that an instruction of bf16 would take for 0. */
static void case_pairs(check *c) {
    static const int64_t widths[] = {30, 32, 33, 34, 40, 64, 72, 96, 126, 128, 130, 192, 200};
    static const data kinds[] = {DATA_NORMAL, DATA_DENORMAL, DATA_RARE};
    for (int64_t n = 0; n < LENGTH_OF(widths); n++)
        for (int64_t k = 0; k < LENGTH_OF(kinds); k++) {
            const bool small = n % 2 == 0; /* small enough for --quick */
            const int64_t q_len = 17 + draw_below(&c->random, small ? 8 : 60);
            const int64_t kv_len = small ? 20 + draw_below(&c->random, 50) : 130 + draw_below(&c->random, 500);
            problem p = problem_of(c, 1, 4, 2, q_len, kv_len, widths[n], UP_TO(40));
            problem_types(&p, RAPT_BF16, RAPT_BF16, RAPT_BF16, RAPT_F32);
            p.data = kinds[k];
            p.desc.causal = k % 2 ? RAPT_CAUSAL_BOTTOM_RIGHT : RAPT_CAUSAL_NONE;
            if (n % 3 == 1) p.desc.scale = -0.125f;
            examine(c, &p);
        }
    /* Queries times a scale that is no sign, tiny or of each channel of K, are no bf16. */
    for (int n = 0; n < 2; n++) {
        problem p = problem_of(c, 1, 4, 2, 40, 100, 64, 24);
        problem_types(&p, RAPT_BF16, RAPT_BF16, RAPT_BF16, RAPT_F32);
        if (n) p.k_grain = GRAIN_CHANNEL;
        else p.desc.scale = 0x1.9p-70f;
        examine(c, &p);
    }
}

static void case_signed_zeros(check *c) { data_like(c, DATA_ZEROS); }
static void case_infinities(check *c) { data_like(c, DATA_INFINITE); }

/* ---- Everything at once ------------------------------------------------------------------------------------------------- */

static void case_random(check *c) {
    uint64_t *r = &c->random;
    for (int n = 0; n < 250; n++) {
        const int64_t kv_heads = 1 + draw_below(r, 3), ratio = 1 + draw_below(r, 5);
        const int64_t q_len = draw_below(r, 2) ? draw_below(r, 5) : draw_below(r, 70);
        const int64_t kv_len = draw_below(r, 4) ? draw_below(r, 140) : draw_below(r, 1100);
        problem p = problem_of(c, draw_below(r, 4), kv_heads * ratio, kv_heads, q_len, kv_len, ANY_DIM, ANY_DIM);
        problem_draw_types(&p, r);
        problem_draw_mask(&p, r);
        problem_draw_layouts(&p, r);
        problem_draw_data(&p, r);
        examine(c, &p);
    }
}

const check_case agreement_cases[] = {
    {"mha", "a key/value head for each query head", case_mha, 2},
    {"mqa", "one key/value head for all", case_mqa, 3},
    {"gqa", "1, 2, 3, 4, 5, 7, 8, 12 query heads for each key/value head", case_gqa, 3},
    {"lengths", "all pairs of 17 lengths from 0 to 100", case_lengths, 6},
    {"blocks", "key lengths around blocks of 64 and chunks of 512", case_blocks, 2},
    {"head-dim", "d_k and d_v from 1 to 576, each on its own", case_head_dim, 4},
    {"head-dim-each", "d_k from 1 to 130, d_v from 130 to 1", case_head_dim_each, 5},
    {"head-dim-large", "576/512, 1024, 1/1024, 1023/1", case_head_dim_large, 1},
    {"types", "all 81 mixes of f32, f16, bf16", case_types, 5},
    {"layout-bshd", "batch, token, head, channel", case_layout_bshd, 2},
    {"layout-mixed", "another layout for each tensor", case_layout_mixed, 2},
    {"layout-padded", "gaps after rows, heads and batch entries", case_layout_padded, 2},
    {"layout-odd", "strides of odd bytes, the output's too", case_layout_odd, 2},
    {"layout-one-batch", "keys and values of batch stride 0", case_layout_one_batch, 2},
    {"layout-one-head", "queries, keys and values of head stride 0", case_layout_one_head, 2},
    {"layout-packed", "q, k, v in one tensor", case_layout_packed, 2},
    {"layout-output", "gaps in the output, which must stay as they are", case_layout_output, 2},
    {"misaligned", "every tensor 1 to 63 bytes off", case_misaligned, 3},
    {"causal-bottom-right", "fewer, as many and more queries than keys", case_causal_bottom_right, 3},
    {"causal-top-left", "the same, aligned at the first key", case_causal_top_left, 3},
    {"window", "left and right, 0, unlimited, wider than everything", case_window, 3},
    {"window-bottom-right", "the same with causal", case_window_bottom_right, 3},
    {"window-top-left", "the same with causal aligned at the first key", case_window_top_left, 3},
    {"kv-lengths", "a key length for each batch entry, 0 and full among them", case_kv_lengths, 3},
    {"kv-lengths-masked", "the same with causal and windows", case_kv_lengths_masked, 6},
    {"rows-without-keys", "output 0, lse -inf", case_rows_without_keys, 1},
    {"scale", "given, positive and negative", case_scale, 3},
    {"scale-tiny", "1e-30, 1e-38, the smallest denormal", case_scale_tiny, 3},
    {"scale-huge", "1e25, 3e38", case_scale_huge, 3},
    {"logits-1e4", "logits of +-1e4", case_logits_1e4, 2},
    {"ties", "many equal scores", case_ties, 2},
    {"one-hot", "one key has all the weight", case_one_hot, 2},
    {"rising", "a new maximum in every block", case_rising, 2},
    {"falling", "the maximum first", case_falling, 2},
    {"minus-inf-first", "scores of -inf in the first third of the keys", case_minus_inf_first, 2},
    {"minus-inf-middle", "in the middle third", case_minus_inf_middle, 2},
    {"minus-inf-last", "in the last third", case_minus_inf_last, 2},
    {"minus-inf-all", "everywhere", case_minus_inf_all, 2},
    {"denormals", "denormal queries, products and values", case_denormals, 2},
    {"tiny", "keys and values about 2^-56, below which bf16 arithmetic takes 0", case_tiny, 2},
    {"pairs", "queries and keys of bf16, which an instruction may multiply in pairs; denormal ones, all or a few", case_pairs, 2},
    {"signed-zeros", "mostly 0 and -0", case_signed_zeros, 2},
    {"infinities", "in keys and values, of both signs", case_infinities, 2},
    {"random", "everything drawn at once", case_random, 5},
    {0},
};
