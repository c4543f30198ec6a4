/* SPDX-License-Identifier: Apache-2.0 */
/* Cases about RAPT_INT8_DOT, which is also among the features that other cases draw: every kernel of a class has the same bits,
 * follows the definition in docs/order.md, and is no further from exact arithmetic than its steps are wide. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const how plain = {WAY_RUN, 1, 1, 1, 0};

static const int64_t few_and_many[] = {1, 3, 37};

static problem integers_of(check *c, int64_t batch, int64_t heads, int64_t kv_heads, int64_t q_len, int64_t kv_len, int64_t d_k,
                           int64_t d_v) {
    problem p = problem_of(c, batch, heads, kv_heads, q_len, kv_len, d_k, d_v);
    problem_draw_types(&p, &c->random);
    problem_integer(&p);
    return p;
}

/* ---- Inputs by hand ----------------------------------------------------------------------------------------------------- */

/* Writes an element of Q, or the scale of a token of K or V, while protect says they may be written. */
static void set_query(subject *s, int64_t b, int64_t h, int64_t i, int64_t channel, float value) {
    const rapt_layout *l = &s->desc.q;
    unsigned char *const row = reference_at(s->args.q, l, b, h, i);
    reference_store(l->type, row + channel * reference_type_bytes(l->type), value);
}

static void set_scale(subject *s, int tensor, int64_t b, int64_t h, int64_t j, float value) {
    const bool k = tensor == TENSOR_K;
    const reference_place at = reference_key(&s->desc, &s->args, b, h, 0, j);
    reference_store(
        RAPT_F32,
        (void *)reference_scale(k ? &s->desc.k_scales : &s->desc.v_scales, k ? s->args.k_scales : s->args.v_scales, b, h, at, 0),
        value);
}

/* The scales of all groups of a token of K or V. */
static void set_group_scales(subject *s, int tensor, int64_t b, int64_t h, int64_t j, float value) {
    const bool k = tensor == TENSOR_K;
    const rapt_layout *l = k ? &s->desc.k : &s->desc.v;
    const reference_place at = reference_key(&s->desc, &s->args, b, h, 0, j);
    unsigned char *const row = reference_at(k ? s->args.k : s->args.v, l, at.batch, h, at.token);
    for (int64_t g = 0; g < (k ? s->desc.d_k : s->desc.d_v) / 32; g++)
        reference_store_shared(row + g * reference_row_bytes(l->type, 32), value);
}

static void protect(subject *s, bool read_only) {
    fence *const inputs[] = {&s->q, &s->k, &s->v, &s->extra[EXTRA_K_SCALES], &s->extra[EXTRA_V_SCALES]};
    for (int64_t f = 0; f < LENGTH_OF(inputs); f++) fence_protect(inputs[f], read_only);
}

/* ---- Shapes ------------------------------------------------------------------------------------------------------------- */

static void case_arith(check *c) {
    static const int64_t keys[] = {0, 1, 2, 3, 5, 31, 63, 64, 65, 66, 127, 128, 130, 200, 511, 512, 513, 577, 1025, 1100};
    static const int64_t ratios[] = {1, 2, 3, 5, 8};
    for (int64_t n = 0; n < LENGTH_OF(keys) * LENGTH_OF(few_and_many); n++) {
        const int64_t kv_heads = 1 + draw_below(&c->random, 2), ratio = DRAW_OF(&c->random, ratios);
        problem p = integers_of(c, UP_TO(2), kv_heads * ratio, kv_heads, few_and_many[n % 3], keys[n / 3], UP_TO(40), UP_TO(40));
        if (n % 2) p.desc.causal = (rapt_causal)draw_below(&c->random, 3);
        if (n % 4 == 2) problem_draw_mask(&p, &c->random);
        if (n % 5 == 4) p.data = (data)draw_below(&c->random, DATA_KINDS);
        examine(c, &p);
    }
}

static void case_dims(check *c) {
    static const int64_t dims[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 18, 19, 31, 33, 63, 64, 65, 66, 67, 127, 129, 255, 577};
    for (int64_t n = 0; n < LENGTH_OF(dims) * 2; n++) {
        const int64_t keys = 1 + draw_below(&c->random, 80);
        problem p = integers_of(c, 1, 4, 2, few_and_many[n % 3], keys, dims[n / 2], UP_TO(20));
        examine(c, &p);
        p = integers_of(c, 1, 4, 2, few_and_many[n % 3], keys, UP_TO(20), dims[n / 2]);
        examine(c, &p);
    }
}

static void case_dims_large(check *c) {
    static const int64_t dims[][2] = {{1024, 1024}, {1023, 1}, {1, 1023}, {1022, 3}, {1021, 1024}, {576, 512}};
    for (int64_t n = 0; n < LENGTH_OF(dims) * LENGTH_OF(few_and_many); n++) {
        problem p = integers_of(c, 1, 2, 1, few_and_many[n % 3], UP_TO(99), dims[n / 3][0], dims[n / 3][1]);
        examine(c, &p);
    }
}

/* The outermost sums: every product has the same sign, and 2^24 is not far. */
static void case_extremes(check *c) {
    for (int64_t n = 0; n < 2 * LENGTH_OF(few_and_many); n++) {
        problem p = integers_of(c, 1, 2, 1, few_and_many[n / 2], 70, 1024, 65);
        if (!problem_wanted(c, &p)) continue;
        subject s = subject_create(c, &p);
        protect(&s, false);
        for (int64_t row = 0; row < p.desc.heads * p.desc.q_len; row++)
            for (int64_t channel = 0; channel < p.desc.d_k; channel++)
                set_query(&s, 0, row % 2, row / 2, channel, row % 3 ? 0x1p-10f : -0x1p-10f);
        for (int64_t j = 0; j < p.desc.kv_len; j++) {
            memset(reference_at(s.args.k, &s.desc.k, 0, 0, j), n % 2 ? 127 : 128, (size_t)p.desc.d_k);
            memset(reference_at(s.args.v, &s.desc.v, 0, 0, j), n % 2 ? 128 : 127, (size_t)p.desc.d_v);
        }
        protect(&s, true);
        examine_subject(c, &s, p.data_seed);
        subject_destroy(&s);
    }
}

/* ---- Factors and zeros -------------------------------------------------------------------------------------------------- */

/* Rows of Q that are zero, or so small that 127 divided by their largest element overflows, or nearly; scales that are zero, or
 * that leave the largest weight of a block far above all others. */
static void make_odd(subject *s, uint64_t *random) {
    static const float sizes[] = {0, 0x1p-149f, 0x1p-126f, 0x1p-122f, 0x1.5p-121f, 0x1.8p-121f, 0x1p-100f, 0x1p20f};
    static const float scales[] = {0, 0, 0x1p-20f, -0x1p-9f, 1000, -3};
    const rapt_desc *d = &s->desc;
    protect(s, false);
    for (int64_t b = 0; b < d->batch; b++) {
        for (int64_t row = 0; row < d->heads * d->q_len; row++) {
            if (draw_below(random, 3)) continue;
            const float size = DRAW_OF(random, sizes);
            const int64_t seen = draw_below(random, 2) ? 1 : d->d_k;
            for (int64_t channel = 0; channel < d->d_k; channel++)
                set_query(s, b, row % d->heads, row / d->heads, channel,
                          channel < seen ? size * (float)(draw_below(random, 3) - 1) : 0);
        }
        for (int tensor = TENSOR_K; tensor <= TENSOR_V; tensor++) {
            if (!(tensor == TENSOR_K ? d->k_scales : d->v_scales).token_stride) continue;
            const bool all_zero = draw_below(random, 4) == 0;
            for (int64_t n = 0; n < d->kv_heads * d->kv_len; n++) {
                const int64_t h = n % d->kv_heads, j = n / d->kv_heads;
                const float factor = DRAW_OF(random, scales) * (tensor == TENSOR_K ? 0x1p-4f : 1);
                if (j < reference_length(d, &s->args, b) && (all_zero || draw_below(random, 3) == 0))
                    set_scale(s, tensor, b, h, j, all_zero ? 0 : factor);
            }
        }
    }
    protect(s, true);
}

static void case_scales(check *c) {
    for (int n = 0; n < GRAINS * GRAINS; n++) {
        for (int64_t rows = 0; rows < LENGTH_OF(few_and_many); rows++) {
            const int64_t kv_heads = 1 + draw_below(&c->random, 3);
            problem p = integers_of(c, UP_TO(2), 2 * kv_heads, kv_heads, few_and_many[rows], UP_TO(n % 8 ? 150 : 600), UP_TO(24),
                                    UP_TO(24));
            p.k_grain = (grain)(n % GRAINS);
            p.v_grain = (grain)(n / GRAINS);
            p.rows = (place)draw_below(&c->random, PLACE_ONE_BATCH);
            problem_draw_mask(&p, &c->random);
            if (n % 3 == 0) p.desc.sinks.type = RAPT_F32;
            if (!problem_wanted(c, &p)) continue;
            subject s = subject_create(c, &p);
            if (draw_below(&c->random, 2)) make_odd(&s, &c->random);
            examine_subject(c, &s, p.data_seed);
            subject_destroy(&s);
        }
    }
}

/* ---- Groups ------------------------------------------------------------------------------------------------------------- */

static void case_groups(check *c) {
    static const rapt_type types[] = {RAPT_INT8, RAPT_INT4, RAPT_Q8_0, RAPT_Q4_0, RAPT_Q5_0};
    for (int64_t n = 0; n < LENGTH_OF(types) * LENGTH_OF(types); n++)
        for (int64_t rows = 0; rows < LENGTH_OF(few_and_many); rows++) {
            const int64_t kv_heads = 1 + draw_below(&c->random, 2);
            problem p = integers_of(c, UP_TO(2), 2 * kv_heads, kv_heads, few_and_many[rows], UP_TO(n % 4 ? 150 : 600),
                                    32 * UP_TO(n % 7 ? 5 : 32), 32 * UP_TO(n % 6 ? 5 : 32));
            problem_kv_types(&p, types[n / LENGTH_OF(types)], types[n % LENGTH_OF(types)]);
            p.k_grain = (grain)draw_below(&c->random, GRAINS);
            p.v_grain = (grain)draw_below(&c->random, GRAINS);
            if (n % 2) problem_draw_mask(&p, &c->random);
            if (rows == 1) problem_draw_logits(&p, &c->random);
            if (n % 3 == 1) p.data = (data)draw_below(&c->random, DATA_KINDS);
            if (!problem_wanted(c, &p)) continue;
            subject s = subject_create(c, &p);
            if (n % 5 == 2) make_odd(&s, &c->random);
            examine_subject(c, &s, p.data_seed);
            subject_destroy(&s);
        }
}

/* ---- Logits ------------------------------------------------------------------------------------------------------------- */

static void case_logits(check *c) {
    static const float scales[] = {NAN, 0.05f, -0.1f, 1e-30f, -0x1p-70f, 0x1p70f};
    static const float caps[] = {0, 0.5f, 5, 50};
    for (int n = 0; n < 60; n++) {
        problem p = integers_of(c, UP_TO(2), 4, 2, few_and_many[n % 3], UP_TO(n % 8 ? 150 : 600), UP_TO(40), UP_TO(24));
        p.desc.scale = scales[n % LENGTH_OF(scales)];
        if (p.desc.scale > 1e20f) p.q_factor = 0x1p-72f;
        if (fabsf(p.desc.scale) < 1e-19f && n % 4) p.q_factor = 0x1p64f;
        problem_draw_mask(&p, &c->random);
        problem_draw_logits(&p, &c->random);
        if (n % 2) p.desc.mask.type = n % 4 == 1 ? RAPT_BOOL : RAPT_BIT, p.mask = (key_pattern)draw_below(&c->random, PATTERNS);
        if (n % 3 == 0) p.desc.softcap = DRAW_OF(&c->random, caps);
        if (n % 5 == 0) p.data = (data)draw_below(&c->random, DATA_KINDS);
        p.nan_masked = n % 2;
        examine(c, &p);
    }
}

/* ---- Not finite --------------------------------------------------------------------------------------------------------- */

enum { IN_QUERY, IN_K_SCALE, IN_V_SCALE, KINDS };

typedef struct bad_places {
    int64_t b, h, i, j, channel;
} bad_places;

/* Rows of a bad query, and those that attend a key with a bad scale, are NaN (with a scale of V, but for their lse), all others
 * keep their bits. */
static void check_not_finite(check *c, kernel *k, const subject *s, const unsigned char *clean, const unsigned char *got,
                             int kind, const bad_places *bad, int n_bad) {
    const rapt_desc *d = &s->desc;
    const int64_t rows = reference_rows(d), bytes = reference_type_bytes(d->o.type);
    for (int64_t row = 0; row < rows; row++) {
        const int64_t b = row / d->q_len / d->heads, h = row / d->q_len % d->heads, i = row % d->q_len;
        bool any = false, meant = false;
        for (int64_t j = 0; j < d->kv_len; j++) any |= reference_attends(d, &s->args, b, h, i, j);
        for (int n = 0; n < n_bad; n++)
            meant |= kind == IN_QUERY ? any && b == bad[n].b && h == bad[n].h && i == bad[n].i
                                      : reference_attends(d, &s->args, b, h, i, bad[n].j);
        for (int64_t e = 0; e <= d->d_v; e++) { /* the last stands for the lse */
            const bool lse = e == d->d_v, want_nan = meant && !(lse && kind == IN_V_SCALE);
            const int64_t at = lse ? rows * d->d_v * bytes + row * 4 : (row * d->d_v + e) * bytes;
            const rapt_type type = lse ? RAPT_F32 : d->o.type;
            k->compared++;
            if (want_nan ? isnan(reference_load(type, got + at)) : memcmp(clean + at, got + at, lse ? 4 : (size_t)bytes) == 0)
                continue;
            char text[SUBJECT_TEXT];
            subject_text(s, text, sizeof text);
            check_fail(c, k, "not finite in %s: row %d, channel %d is %a; %s",
                       kind == IN_QUERY     ? "queries"
                       : kind == IN_K_SCALE ? "scales of keys"
                                            : "scales of values",
                       (int)row, (int)e, (double)reference_load(type, got + at), text);
            return;
        }
    }
}

static void case_not_finite(check *c) {
    enum { BAD = 3 };
    static const float values[] = {NAN, INFINITY, -INFINITY};
    for (int n = 0; n < 36; n++) {
        const bool groups = n >= 24;
        const int kind = groups ? IN_K_SCALE + n % 2 : n % KINDS;
        problem p = integers_of(c, 2, 4, 2, n % 2 ? 2 : 40, UP_TO(n < 6 ? 600 : 140), UP_TO(40), UP_TO(40));
        p.k_grain = p.v_grain = GRAIN_TOKEN;
        if (groups) problem_kv_types(&p, RAPT_Q8_0, n % 4 < 2 ? RAPT_Q4_0 : RAPT_INT4);
        problem_draw_mask(&p, &c->random);
        p.lengths = LENGTHS_NONE;
        if (n % 4 == 0 || groups) p.desc.mask.type = RAPT_BOOL, p.mask = PATTERN_HALF;
        bad_places bad[BAD];
        for (int e = 0; e < BAD; e++)
            bad[e] = (bad_places){draw_below(&c->random, 2), draw_below(&c->random, 4), draw_below(&c->random, p.desc.q_len),
                                  draw_below(&c->random, p.desc.kv_len), draw_below(&c->random, p.desc.d_k)};
        if (!problem_wanted(c, &p)) continue;
        subject clean = subject_create(c, &p), s = subject_create(c, &p);
        protect(&s, false);
        for (int e = 0; e < BAD; e++) {
            if (kind == IN_QUERY) set_query(&s, bad[e].b, bad[e].h, bad[e].i, bad[e].channel, values[(n / KINDS + e) % 3]);
            for (int64_t head = 0; head < 4 && kind != IN_QUERY; head++)
                (groups ? set_group_scales : set_scale)(&s, kind == IN_K_SCALE ? TENSOR_K : TENSOR_V, head / 2, head % 2,
                                                        bad[e].j, NAN);
        }
        protect(&s, true);
        FOR_EACH_KERNEL(c, k) {
            uint64_t random = hash_text(p.data_seed, k->name);
            const how drawn = how_drawn(&random);
            unsigned char *want = subject_run(c, &clean, k, &plain), *got = subject_run(c, &s, k, &drawn);
            if (want && got) check_not_finite(c, k, &s, want, got, kind, bad, BAD);
            free(want);
            free(got);
        }
        examine_subject(c, &s, p.data_seed);
        subject_destroy(&clean);
        subject_destroy(&s);
    }
}

/* ---- Ties --------------------------------------------------------------------------------------------------------------- */

static void every_kernel_gives(check *c, subject *s, const unsigned char *want) {
    FOR_EACH_KERNEL(c, k) {
        unsigned char *got = subject_run(c, s, k, &plain);
        if (got) same_rows(c, k, "integers rounded to nearest even", s, got, s, want, 0, 0, 0);
        free(got);
    }
}

/* Queries n + 1/2 beside a 127 are integers n or n + 1, whichever is even. Head h has one key, 1 in channel h and else 0, so lse
 * is the integer of this channel. */
static void query_ties(check *c, int64_t d_k, int64_t q_len) {
    problem p = problem_of(c, 1, d_k, d_k, q_len, 1, d_k, 1);
    problem_integer(&p);
    p.desc.scale = 1;
    if (!problem_wanted(c, &p)) return;
    subject s = subject_create(c, &p);
    unsigned char *const want = allocate((size_t)subject_output_bytes(&s));
    protect(&s, false);
    for (int64_t h = 0; h < d_k; h++) {
        memset(reference_at(s.args.k, &s.desc.k, 0, h, 0), 0, (size_t)d_k);
        ((unsigned char *)reference_at(s.args.k, &s.desc.k, 0, h, 0))[h] = 1;
        memset(reference_at(s.args.v, &s.desc.v, 0, h, 0), 0, 1);
        for (int64_t i = 0; i < q_len; i++) {
            const int64_t row = h * q_len + i;
            float x = 0;
            for (int64_t channel = 0; channel < d_k; channel++) {
                const float tie = (float)((channel * 7 + h + i) % 254 - 127) + 0.5f;
                set_query(&s, 0, h, i, channel, channel == (h + 1) % d_k ? -127 : tie);
                if (channel == h) x = d_k == 1 ? -127 : tie;
            }
            reference_store(RAPT_F32, want + row * 4, 0);
            reference_store(RAPT_F32, want + (d_k * q_len + row) * 4, rintf(x) + 0.0f);
        }
    }
    protect(&s, true);
    every_kernel_gives(c, &s, want);
    free(want);
    subject_destroy(&s);
}

/* Equal scores, so that weights are the scales of values: n + 1/2 beside a 255, of both signs. Value j of a block is 1 in
 * channel j and else 0, so o is the sum of the integers of the blocks' keys at this place, divided by the number of keys. */
static void weight_ties(check *c, int64_t kv_len, int64_t q_len, bool both_signs) {
    problem p = problem_of(c, 1, 2, 1, q_len, kv_len, 3, 64);
    problem_integer(&p);
    p.v_grain = GRAIN_TOKEN;
    p.lse = false;
    if (!problem_wanted(c, &p)) return;
    subject s = subject_create(c, &p);
    unsigned char *const want = allocate((size_t)subject_output_bytes(&s));
    float sums[64] = {0};
    protect(&s, false);
    for (int64_t row = 0; row < 2 * q_len; row++)
        for (int64_t channel = 0; channel < 3; channel++) set_query(&s, 0, row % 2, row / 2, channel, 0);
    for (int64_t j = 0; j < kv_len; j++) {
        const bool negative = both_signs && j % 2;
        const float size = j % 64 < 2 ? 255 : (float)((j * 11 + j / 64) % 255) + 0.5f, factor = negative ? -size : size;
        unsigned char *const v = reference_at(s.args.v, &s.desc.v, 0, 0, j);
        set_scale(&s, TENSOR_V, 0, 0, j, factor);
        memset(v, 0, 64);
        v[j % 64] = 1;
        sums[j % 64] += rintf(factor);
    }
    protect(&s, true);
    for (int64_t e = 0; e < 2 * q_len * 64; e++) reference_store(RAPT_F32, want + e * 4, sums[e % 64] / (float)kv_len);
    every_kernel_gives(c, &s, want);
    examine_subject(c, &s, p.data_seed);
    free(want);
    subject_destroy(&s);
}

/* Likewise for groups, whose scales are n + 1/2 beside a 127, of both signs. */
static void weight_ties_of_groups(check *c, int64_t kv_len, int64_t q_len) {
    problem p = problem_of(c, 1, 2, 1, q_len, kv_len, 32, 64);
    problem_integer(&p);
    problem_kv_types(&p, RAPT_Q8_0, RAPT_Q8_0);
    p.lse = false;
    if (!problem_wanted(c, &p)) return;
    subject s = subject_create(c, &p);
    unsigned char *const want = allocate((size_t)subject_output_bytes(&s));
    float sums[64] = {0};
    protect(&s, false);
    for (int64_t row = 0; row < 2 * q_len; row++)
        for (int64_t channel = 0; channel < 32; channel++) set_query(&s, 0, row % 2, row / 2, channel, 0);
    for (int64_t j = 0; j < kv_len; j++) {
        const float size = j % 64 < 2 ? 127 : (float)((j * 11 + j / 64) % 127) + 0.5f, factor = j % 2 ? -size : size;
        unsigned char *const v = reference_at(s.args.v, &s.desc.v, 0, 0, j);
        memset(v, 0, 2 * 34);
        for (int g = 0; g < 2; g++) reference_store_shared(v + g * 34, factor);
        v[j % 64 / 32 * 34 + 2 + j % 32] = 1;
        sums[j % 64] += rintf(factor);
    }
    protect(&s, true);
    for (int64_t e = 0; e < 2 * q_len * 64; e++) reference_store(RAPT_F32, want + e * 4, sums[e % 64] / (float)kv_len);
    every_kernel_gives(c, &s, want);
    examine_subject(c, &s, p.data_seed);
    free(want);
    subject_destroy(&s);
}

static void case_ties(check *c) {
    static const int64_t dims[] = {1, 2, 3, 5, 34, 127, 300}, keys[] = {64, 128, 512, 1024};
    for (int64_t n = 0; n < LENGTH_OF(dims) * LENGTH_OF(few_and_many); n++) query_ties(c, dims[n / 3], few_and_many[n % 3]);
    for (int64_t n = 0; n < LENGTH_OF(keys) * LENGTH_OF(few_and_many); n++) {
        weight_ties(c, keys[n / 3], few_and_many[n % 3], false);
        weight_ties(c, keys[n / 3], few_and_many[n % 3], true);
        weight_ties_of_groups(c, keys[n / 3], few_and_many[n % 3]);
    }
}

const check_case integer_cases[] = {
    {"int8-arith", "integers: key lengths around blocks and chunks, groups of heads", case_arith, 3},
    {"int8-head-dim", "d_k and d_v from 1 to 577, each on its own", case_dims, 4},
    {"int8-head-dim-large", "up to 1024", case_dims_large, 2},
    {"int8-extremes", "every product the largest there is", case_extremes, 1},
    {"int8-scales", "every grain for keys with every grain for values; zero and tiny queries and scales", case_scales, 8},
    {"int8-groups", "every pair of types that have integers, with scales of groups and every grain besides", case_groups, 6},
    {"int8-logits", "scales, masks, biases, ALiBi, sinks, softcap, a callback", case_logits, 4},
    {"int8-not-finite", "NaN and infinities in queries, NaN in scales of tokens and of groups", case_not_finite, 3},
    {"int8-ties", "queries and weights halfway between two integers", case_ties, 3},
    {0},
};
