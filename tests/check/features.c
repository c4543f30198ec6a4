/* SPDX-License-Identifier: Apache-2.0 */
/* Cases like those of agreement.c, each for one feature of a problem beyond shapes, types, causal masks and windows; the last
 * draws them all at once. Every one has few rows for a key/value head and many, groups of heads, and key lengths around the
 * borders of blocks and chunks. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const how plainly = {WAY_RUN, 1, 1, 1, 0};
static const int64_t sides[] = {-1, -1, 0, 1, 5, 63, 64, 100, 1000};

/* Adds a feature to problem n of a case. */
typedef void feature(problem *p, uint64_t *random, int64_t n);

static void each(check *c, feature *add) {
    static const int64_t queries[] = {1, 2, 7, 40}, keys[] = {1, 63, 65, 130, 200, 513, 600};
    for (int64_t n = 0; n < LENGTH_OF(queries) * LENGTH_OF(keys); n++) {
        const int64_t kv_heads = 1 + draw_below(&c->random, 2), ratio = 1 + draw_below(&c->random, 4);
        problem p = problem_of(c, UP_TO(3), kv_heads * ratio, kv_heads, queries[n % 4], keys[n / 4], UP_TO(24), UP_TO(24));
        if (draw_below(&c->random, 2)) problem_draw_types(&p, &c->random);
        p.desc.causal = (rapt_causal)draw_below(&c->random, 3);
        p.lengths = draw_below(&c->random, 3) == 0 ? LENGTHS_DRAWN : LENGTHS_NONE;
        p.rows = (place)draw_below(&c->random, PLACE_ONE_BATCH);
        add(&p, &c->random, n);
        examine(c, &p);
    }
}

/* ---- Which keys --------------------------------------------------------------------------------------------------------- */

static void add_prefix(problem *p, uint64_t *random, int64_t n) {
    static const int64_t prefixes[] = {1, 5, 64, 100, 512, 10000};
    p->desc.causal = n % 3 == 0 ? RAPT_CAUSAL_NONE : n % 3 == 1 ? RAPT_CAUSAL_BOTTOM_RIGHT : RAPT_CAUSAL_TOP_LEFT;
    p->desc.window_right = n % 3 == 0 ? draw_below(random, 9) : -1;
    p->desc.window_left = DRAW_OF(random, sides);
    p->desc.prefix = DRAW_OF(random, prefixes);
}

static void add_prefixes(problem *p, uint64_t *random, int64_t n) {
    add_prefix(p, random, n);
    p->prefixes = true;
}

static void add_local_chunk(problem *p, uint64_t *random, int64_t n) {
    static const int64_t chunks[] = {1, 3, 16, 63, 64, 65, 100, 512, 700};
    p->desc.local_chunk = DRAW_OF(random, chunks);
    if (n % 3 == 0) p->desc.window_left = DRAW_OF(random, sides);
    if (n % 5 == 0) p->desc.prefix = draw_below(random, 200);
}

static void add_mask(problem *p, uint64_t *random, rapt_type type) {
    p->desc.mask.type = type;
    p->mask = (key_pattern)(1 + draw_below(random, PATTERNS - 1));
    p->same[EXTRA_MASK] = (int)draw_below(random, 8);
    if (draw_below(random, 2)) p->desc.causal = RAPT_CAUSAL_NONE;
}

static void add_mask_bool(problem *p, uint64_t *random, int64_t n) {
    (void)n;
    add_mask(p, random, RAPT_BOOL);
}

static void add_mask_bit(problem *p, uint64_t *random, int64_t n) {
    (void)n;
    add_mask(p, random, RAPT_BIT);
}

/* All of one tensor for all, the smallest and the usual cases of broadcasting among them. */
static void add_mask_broadcast(problem *p, uint64_t *random, int64_t n) {
    add_mask(p, random, n % 2 ? RAPT_BIT : RAPT_BOOL);
    p->same[EXTRA_MASK] = (int)(n / 2 % 8);
    p->rows = PLACE_BHSD;
}

/* Key/value heads that share a mask, which a thread compares once for those that take turns, with any other features, and heads
 * that do not share it. Some problems are small, for emulators. */
static void case_mask_shared(check *c) {
    for (int64_t n = 0; n < 40; n++) {
        uint64_t *const r = &c->random;
        const bool small = n / 4 % 2 == 0;
        const int64_t kv_heads = small ? 2 : 2 + draw_below(r, 3), heads = kv_heads * (small ? 1 : 1 + draw_below(r, 3));
        const int64_t queries = small ? 40 : 20 + draw_below(r, 120),
                      keys = small ? 520 + draw_below(r, 80) : 300 + draw_below(r, 1300);
        problem p = problem_of(c, 1 + draw_below(r, small ? 2 : 3), heads, kv_heads, queries, keys, UP_TO(small ? 2 : 8),
                               UP_TO(small ? 2 : 8));
        problem_draw_features(&p, r);
        p.desc.block_mask.type = p.desc.bias.type = RAPT_NONE; /* with these, masks are not compared */
        if (p.desc.alibi == RAPT_ALIBI_BIAS) p.desc.alibi = RAPT_ALIBI_NONE;
        if (!p.desc.alibi) p.desc.slopes.type = RAPT_NONE;
        p.desc.mask.type = draw_below(r, 2) ? RAPT_BOOL : RAPT_BIT;
        p.mask = draw_below(r, 4) ? PATTERN_ALIKE : PATTERN_BLOCKS;
        p.same[EXTRA_MASK] = (draw_below(r, 5) ? SAME_HEADS : 0) | (draw_below(r, 2) ? SAME_BATCH : 0);
        examine(c, &p);
    }
}

static void add_block_mask(problem *p, uint64_t *random, int64_t n) {
    static const int64_t queries[] = {1, 2, 3, 16, 64, 1000}, keys[] = {64, 128, 192, 512, 1024};
    p->desc.block_mask.type = RAPT_BOOL;
    p->desc.block_mask_queries = DRAW_OF(random, queries);
    p->desc.block_mask_keys = DRAW_OF(random, keys);
    p->block_mask = n % 2 ? PATTERN_HALF : (key_pattern)(1 + draw_below(random, PATTERNS - 1));
    p->same[EXTRA_BLOCK_MASK] = (int)draw_below(random, 8);
    if (n % 3 == 0) add_mask(p, random, RAPT_BOOL);
}

static void case_prefix(check *c) { each(c, add_prefix); }
static void case_prefixes(check *c) { each(c, add_prefixes); }
static void case_local_chunk(check *c) { each(c, add_local_chunk); }
static void case_mask_bool(check *c) { each(c, add_mask_bool); }
static void case_mask_bit(check *c) { each(c, add_mask_bit); }
static void case_mask_broadcast(check *c) { each(c, add_mask_broadcast); }
static void case_block_mask(check *c) { each(c, add_block_mask); }

/* ---- Logits ------------------------------------------------------------------------------------------------------------- */

static const rapt_type floats[] = {RAPT_F32, RAPT_F16, RAPT_BF16};

static void add_bias(problem *p, uint64_t *random, int64_t n) {
    p->desc.bias.type = floats[n % 3];
    p->bias = PATTERN_ALL;
    p->same[EXTRA_BIAS] = (int)draw_below(random, 8);
}

static void add_bias_mask(problem *p, uint64_t *random, int64_t n) {
    add_bias(p, random, n);
    p->bias = (key_pattern)(1 + draw_below(random, PATTERNS - 1));
}

static void add_bias_minimum(problem *p, uint64_t *random, int64_t n) {
    add_bias_mask(p, random, n);
    p->bias_finite = true;
}

static void add_softcap(problem *p, uint64_t *random, int64_t n) {
    static const float caps[] = {0.5f, 1, 5, 30, 50, 0x1p-10f, 1000};
    p->desc.softcap = DRAW_OF(random, caps);
    if (n % 4 == 1) p->data = DATA_LARGE;
    if (n % 4 == 2) p->data = DATA_RISING;
    if (n % 4 == 3) p->desc.scale = n % 8 == 3 ? -2.0f : 1e-30f;
}

static void add_softcap_infinite(problem *p, uint64_t *random, int64_t n) {
    add_softcap(p, random, 0);
    p->data = n % 2 ? DATA_INF_MIDDLE : DATA_INFINITE; /* a score of -inf is capped like any other */
}

static void add_alibi(problem *p, uint64_t *random, int64_t n) {
    p->desc.alibi = RAPT_ALIBI_DISTANCE;
    p->desc.slopes.type = floats[n % 3];
    p->same[EXTRA_SLOPES] = (int)draw_below(random, 4);
    if (n % 3 == 0) p->desc.window_left = DRAW_OF(random, sides);
}

static void add_alibi_bias(problem *p, uint64_t *random, int64_t n) {
    add_bias_mask(p, random, n);
    p->desc.alibi = RAPT_ALIBI_BIAS;
    p->desc.slopes.type = floats[n / 3 % 3];
    p->same[EXTRA_SLOPES] = (int)draw_below(random, 4);
}

static void add_sinks(problem *p, uint64_t *random, int64_t n) {
    static const float scales[] = {NAN, 0, 0.125f, -3, 1e-30f, 0x1p70f};
    p->desc.sinks.type = floats[n % 3];
    p->same[EXTRA_SINKS] = (int)draw_below(random, 4);
    if (n % 2) p->desc.scale = DRAW_OF(random, scales);
    if (p->desc.scale > 1e20f) p->q_factor = p->k_factor = 0x1p-35f;
    if (n % 3 == 0) add_mask(p, random, RAPT_BOOL); /* rows without keys: o = 0, lse = sink */
    if (n % 4 == 0) p->desc.softcap = 5;
}

static void add_body(problem *p, uint64_t *random, int64_t n) {
    p->body = true;
    if (n % 3 == 0) add_mask(p, random, RAPT_BIT);
    if (n % 4 == 0) p->desc.softcap = 5;
}

/* All that changes a logit, in its order. */
static void add_logits(problem *p, uint64_t *random, int64_t n) {
    if (n % 2) add_alibi_bias(p, random, n);
    else add_bias_mask(p, random, n), add_alibi(p, random, n);
    add_sinks(p, random, n);
    p->desc.softcap = 5;
    p->body = n % 3 == 0;
}

static void case_bias(check *c) { each(c, add_bias); }
static void case_bias_mask(check *c) { each(c, add_bias_mask); }
static void case_bias_minimum(check *c) { each(c, add_bias_minimum); }
static void case_softcap(check *c) { each(c, add_softcap); }
static void case_softcap_infinite(check *c) { each(c, add_softcap_infinite); }
static void case_alibi(check *c) { each(c, add_alibi); }
static void case_alibi_bias(check *c) { each(c, add_alibi_bias); }
static void case_sinks(check *c) { each(c, add_sinks); }
static void case_body(check *c) { each(c, add_body); }
static void case_logits(check *c) { each(c, add_logits); }

/* Attention within the callback of another, which finds a matrix unit free and leaves it in any state. */
typedef struct nesting {
    check *c;
    kernel *k;
    subject *within;
    const unsigned char *alone; /* the output of within, run outside */
    rapt_logits_body body;      /* the callback of the outer one */
    void *arg;
} nesting;

static void run_within(void *arg, const rapt_logits *l) {
    const nesting *n = arg;
    unsigned char *got = subject_run(n->c, n->within, n->k, &plainly);
    if (got) same_rows(n->c, n->k, "the run outside", n->within, got, n->within, n->alone, 0, 0, 0);
    free(got);
    n->body(n->arg, l);
}

static subject nested_subject(check *c, rapt_arith arith, int64_t queries, bool body) {
    problem p = problem_of(c, 1, 2, 1, queries, 70, 24, 24);
    if (arith == RAPT_INT8_DOT) problem_integer(&p);
    p.desc.arith = arith;
    p.body = body;
    return subject_create(c, &p);
}

/* Each arithmetic within each, for few queries and many. */
static void case_body_nested(check *c) {
    static const int64_t queries[] = {1, 40};
    for (int n = 0; n < 18; n++) {
        subject outer = nested_subject(c, (rapt_arith)(n % 3), queries[n / 9], true);
        subject within = nested_subject(c, (rapt_arith)(n / 3 % 3), 40, false);
        FOR_EACH_KERNEL(c, k) {
            unsigned char *want = subject_run(c, &outer, k, &plainly), *alone = subject_run(c, &within, k, &plainly);
            nesting nest = {c, k, &within, alone, outer.desc.logits_body, outer.args.logits_arg};
            subject nested = outer;
            nested.desc.logits_body = run_within;
            nested.args.logits_arg = &nest;
            unsigned char *got = want && alone ? subject_run(c, &nested, k, &plainly) : NULL;
            if (got) same_rows(c, k, "the run with nothing within", &nested, got, &outer, want, 0, 0, 0);
            free(want);
            free(alone);
            free(got);
        }
        subject_destroy(&outer);
        subject_destroy(&within);
    }
}

/* ---- Factors ------------------------------------------------------------------------------------------------------------ */

static void add_k_scales(problem *p, uint64_t *random, int64_t n) {
    static const float scales[] = {NAN, -0.5f, 1e-30f};
    p->k_grain = (grain)(1 + n % (GRAINS - 1));
    p->desc.scale = DRAW_OF(random, scales);
    if (n % 4 == 0) p->desc.softcap = 5;
}

static void add_v_scales(problem *p, uint64_t *random, int64_t n) {
    p->v_grain = (grain)(1 + n % (GRAINS - 1));
    if (draw_below(random, 4) == 0) p->desc.sinks.type = RAPT_F32;
}

static void add_scales(problem *p, uint64_t *random, int64_t n) {
    p->k_grain = (grain)(1 + n % (GRAINS - 1));
    p->v_grain = (grain)(1 + draw_below(random, GRAINS - 1));
    if (n % 3 == 0) add_mask(p, random, RAPT_BIT);
}

static void case_k_scales(check *c) { each(c, add_k_scales); }
static void case_v_scales(check *c) { each(c, add_v_scales); }
static void case_scales(check *c) { each(c, add_scales); }

/* ---- Types of caches ---------------------------------------------------------------------------------------------------- */

static void case_kv_types(check *c) {
    for (int i = 0; i < KV_TYPES; i++) {
        const rapt_type type = kv_types[i];
        if (type == RAPT_F32 || type == RAPT_F16 || type == RAPT_BF16) continue; /* not of caches only */
        for (int n = 0; n < 12; n++) {
            static const int64_t queries[] = {1, 3, 40};
            problem p = problem_of(c, 2, 4, 2, queries[n % 3], UP_TO(n < 3 ? 600 : 150), UP_TO(80), UP_TO(80));
            problem_draw_types(&p, &c->random);
            problem_kv_types(&p, n % 4 == 3 ? p.desc.k.type : type, n % 4 == 2 ? p.desc.v.type : type);
            problem_draw_mask(&p, &c->random);
            if (draw_below(&c->random, 2)) problem_draw_places(&p, &c->random);
            if (draw_below(&c->random, 2)) p.k_grain = (grain)draw_below(&c->random, GRAINS);
            if (draw_below(&c->random, 2)) p.v_grain = (grain)draw_below(&c->random, GRAINS);
            if (type == RAPT_INT8) p.desc.scale = 0.05f;
            p.k = (place)draw_below(&c->random, PLACE_PACKED);
            p.v = (place)draw_below(&c->random, PLACE_PACKED);
            examine(c, &p);
        }
    }
}

/* ---- Where queries and keys lie ----------------------------------------------------------------------------------------- */

static void add_places(problem *p, uint64_t *random) {
    static const place places[] = {PLACE_BHSD, PLACE_BSHD, PLACE_PADDED, PLACE_ODD, PLACE_ONE_HEAD};
    p->q = DRAW_OF(random, places);
    p->k = DRAW_OF(random, places);
    p->v = DRAW_OF(random, places);
    p->o = (place)draw_below(random, PLACE_ONE_BATCH);
}

static void add_ragged_queries(problem *p, uint64_t *random, int64_t n) {
    add_places(p, random);
    p->desc.batch = 1 + n % 5;
    p->ragged_queries = true;
}

static void add_ragged_keys(problem *p, uint64_t *random, int64_t n) {
    add_ragged_queries(p, random, n);
    p->ragged_queries = n % 2;
    p->ragged_keys = true;
}

static void add_ragged_masks(problem *p, uint64_t *random, int64_t n) {
    add_ragged_keys(p, random, n);
    p->ragged_queries = true;
    p->ragged_keys = n % 4 < 2;
    add_mask(p, random, n % 2 ? RAPT_BOOL : RAPT_BIT);
    if (n % 3 == 0) add_block_mask(p, random, n);
    if (n % 3 == 1) add_bias_mask(p, random, n);
    if (n % 3 == 2) add_alibi(p, random, n), p->desc.window_left = DRAW_OF(random, sides);
}

static void add_pages(problem *p, uint64_t *random, int64_t n) {
    static const int64_t sizes[] = {1, 2, 5, 16, 32, 64, 100, 128, 512, 1000};
    add_places(p, random);
    p->desc.batch = 1 + n % 3;
    problem_paged(p, DRAW_OF(random, sizes));
    p->desc.trust_table = n % 4 == 0;
}

static void add_pages_csr(problem *p, uint64_t *random, int64_t n) {
    add_pages(p, random, n);
    p->table = n % 2 ? TABLE_CSR : TABLE_LAST_PAGE;
    p->ragged_queries = n % 3 == 0;
}

static void add_pages_shared(problem *p, uint64_t *random, int64_t n) { /* all entries have the same pages, or heads have own */
    add_pages(p, random, n);
    p->same[EXTRA_TABLE] = n % 2 ? SAME_BATCH | SAME_HEADS | SAME_QUERIES : SAME_QUERIES;
}

static void add_gathered(problem *p, uint64_t *random, int64_t n) {
    add_pages(p, random, n);
    p->desc.page_size = n % 3 ? 1 : p->desc.page_size;
    p->same[EXTRA_TABLE] = n % 4 < 2 ? 0 : n % 4 == 2 ? SAME_HEADS : SAME_BATCH | SAME_HEADS;
    if (n % 2) add_mask(p, random, RAPT_BOOL);
}

/* More heads on one than a pass has room for, where each token finds keys of its own. */
static void case_gathered_heads(check *c) {
    static const int64_t heads[] = {65, 400, 1600, 5000};
    for (int64_t n = 0; n < LENGTH_OF(heads); n++) {
        problem p = problem_of(c, 1, heads[n], 1, 2, 5, 4, 4);
        problem_paged(&p, 1);
        p.same[EXTRA_TABLE] = SAME_HEADS;
        examine(c, &p);
    }
}

static void add_ring(problem *p, uint64_t *random, int64_t n) {
    add_places(p, random);
    p->ring = true;
    if (n % 3 == 1) add_ragged_keys(p, random, n);
    if (n % 3 == 2) add_pages(p, random, n);
    if (n % 2) p->desc.window_left = DRAW_OF(random, sides);
}

static void add_first(problem *p, uint64_t *random, int64_t n) {
    static const int64_t firsts[] = {512, 1024, 2048};
    p->desc.kv_first = n % 4 ? DRAW_OF(random, firsts) : 512000;
    if (n % 3) p->desc.kv_total = p->desc.kv_first + draw_below(random, 2 * p->desc.kv_len + 1);
    if (n % 4 == 1) add_local_chunk(p, random, n), p->desc.local_chunk += 500;
    if (n % 4 == 2) add_mask(p, random, n % 8 == 2 ? RAPT_BOOL : RAPT_BIT);
    if (n % 4 == 3) add_alibi(p, random, n);
    if (n % 5 == 1) add_pages(p, random, n);
    if (n % 5 == 2) add_ragged_queries(p, random, n);
}

static void case_ragged_queries(check *c) { each(c, add_ragged_queries); }
static void case_ragged_keys(check *c) { each(c, add_ragged_keys); }
static void case_ragged_masks(check *c) { each(c, add_ragged_masks); }
static void case_pages(check *c) { each(c, add_pages); }
static void case_pages_csr(check *c) { each(c, add_pages_csr); }
static void case_pages_shared(check *c) { each(c, add_pages_shared); }
static void case_gathered(check *c) { each(c, add_gathered); }
static void case_ring(check *c) { each(c, add_ring); }
static void case_first(check *c) { each(c, add_first); }

/* ---- Positions ---------------------------------------------------------------------------------------------------------- */

/* Whatever goes by positions. */
static void add_positions(problem *p, uint64_t *random, int64_t n) {
    if (n % 2) p->desc.window_left = DRAW_OF(random, sides);
    if (n % 3 == 0) p->desc.window_right = DRAW_OF(random, sides);
    if (n % 4 == 1) add_local_chunk(p, random, n);
    if (n % 4 == 2) add_alibi(p, random, n);
    if (n % 4 == 3) add_prefix(p, random, n);
    if (n % 5 == 1) add_ring(p, random, n);
    if (n % 5 == 2) add_ragged_keys(p, random, n);
    if (n % 5 == 3) add_first(p, random, n);
}

static void add_q_offsets(problem *p, uint64_t *random, int64_t n) {
    add_positions(p, random, n);
    p->q_offsets = true;
}

static void add_k_offsets(problem *p, uint64_t *random, int64_t n) {
    add_positions(p, random, n);
    p->k_offsets = true;
    p->q_offsets = n % 2;
    if (n % 3) add_mask(p, random, n % 4 < 2 ? RAPT_BOOL : RAPT_BIT);
    if (n % 7 == 0) add_block_mask(p, random, n); /* by number */
    if (n % 4 == 0) add_bias_mask(p, random, n);
    problem_draw_rest(p, random);
}

/* Adds columns that end before, in and after blocks and keys. */
static void add_rest(problem *p, uint64_t *random, int64_t n) {
    static const int64_t ends[] = {1, 7, 8, 9, 63, 64, 65, 100, 512, 10000};
    if (n % 3) add_mask(p, random, n % 2 ? RAPT_BOOL : RAPT_BIT);
    if (n % 3 < 2) add_bias_mask(p, random, n);
    if (n % 5 == 4) p->desc.alibi = RAPT_ALIBI_BIAS, add_alibi_bias(p, random, n);
    p->desc.mask_keys = DRAW_OF(random, ends);
    p->desc.bias_keys = DRAW_OF(random, ends);
    p->desc.mask_rest = (rapt_rest)(1 + n % 2);
    p->desc.bias_rest = (rapt_rest)(1 + n / 2 % 2);
    p->k_offsets = n % 4 == 3;
}

static void add_one_column(problem *p, uint64_t *random, int64_t n) {
    add_rest(p, random, n);
    if (n % 2 == 0) p->desc.mask_key_stride = 0;
    if (n % 4 != 2) p->desc.bias_key_stride = 0;
}

static void case_q_offsets(check *c) { each(c, add_q_offsets); }
static void case_k_offsets(check *c) { each(c, add_k_offsets); }
static void case_rest(check *c) { each(c, add_rest); }
static void case_one_column(check *c) { each(c, add_one_column); }

/* ---- Scores ------------------------------------------------------------------------------------------------------------- */

static void add_scores(problem *p, uint64_t *random, int64_t n) {
    static const float scales[] = {NAN, 0.125f, -3, 1e-30f};
    p->desc.scores_stage = (rapt_scores_stage)(1 + n % RAPT_SCORES_WEIGHTS);
    p->desc.scale = DRAW_OF(random, scales);
    if (n % 3 == 0) add_logits(p, random, n);
    if (n % 3 == 1) add_mask(p, random, n % 2 ? RAPT_BOOL : RAPT_BIT);
    if (n % 5 == 1) add_pages(p, random, n);
    if (n % 5 == 2) add_ragged_keys(p, random, n);
    if (n % 5 == 3) add_first(p, random, n);
    if (n % 5 == 4) p->k_grain = (grain)draw_below(random, GRAINS);
    if (n % 12 == 5) problem_integer(p);
    if (n % 12 == 11) problem_integer_groups(p, random);
    if (n % 7 == 3) p->data = (data)draw_below(random, DATA_KINDS);
    if (n % 8 == 7) p->desc.sinks.type = RAPT_F32, p->nan_sinks = true; /* what is masked has weight 0 even then */
}

static void add_scale_zero(problem *p, uint64_t *random, int64_t n) {
    p->desc.scale = n % 4 == 3 ? -0.0f : 0;
    if (n % 3 == 1) add_logits(p, random, n), p->desc.scale = 0;
    if (n % 3 == 2) problem_integer_groups(p, random);
}

static void case_scores(check *c) { each(c, add_scores); }
static void case_scale_zero(check *c) { each(c, add_scale_zero); }

/* ---- What is masked ----------------------------------------------------------------------------------------------------- */

/* Whatever masks them: keys, values, scales and biases that no query attends are NaN. */
static void add_nan_masked(problem *p, uint64_t *random, int64_t n) {
    p->nan_masked = true;
    switch (n % 6) {
    case 0:
        add_mask_bool(p, random, n);
        break;
    case 1:
        add_mask_bit(p, random, n);
        p->same[EXTRA_MASK] = SAME_HEADS | SAME_QUERIES; /* the same for all, so that many keys are nobody's */
        break;
    case 2:
        add_block_mask(p, random, n);
        p->same[EXTRA_BLOCK_MASK] = SAME_BATCH | SAME_HEADS | SAME_QUERIES;
        break;
    case 3:
        add_bias_mask(p, random, n);
        p->same[EXTRA_BIAS] = SAME_HEADS | SAME_QUERIES;
        break;
    case 4:
        p->desc.window_left = 5;
        p->desc.local_chunk = 100;
        break;
    default:
        add_pages(p, random, n);
        add_mask(p, random, RAPT_BOOL);
        p->same[EXTRA_MASK] = SAME_BATCH | SAME_HEADS | SAME_QUERIES;
    }
    if (n % 2) p->desc.softcap = 5;
    if (n % 3 == 0) p->k_grain = p->v_grain = GRAIN_TOKEN;
    if (n % 5 == 0) p->body = true;
    if (n % 4 == 0) add_bias_mask(p, random, n);
}

static void case_nan_masked(check *c) { each(c, add_nan_masked); }

/* ---- Everything at once ------------------------------------------------------------------------------------------------- */

static void case_features(check *c) {
    uint64_t *r = &c->random;
    for (int n = 0; n < 400; n++) {
        const int64_t kv_heads = 1 + draw_below(r, 3), ratio = 1 + draw_below(r, 4);
        const int64_t q_len = draw_below(r, 2) ? draw_below(r, 5) : draw_below(r, 50);
        const int64_t kv_len = draw_below(r, 4) ? draw_below(r, 140) : draw_below(r, 1100);
        problem p = problem_of(c, draw_below(r, 4), kv_heads * ratio, kv_heads, q_len, kv_len, UP_TO(48), UP_TO(48));
        problem_draw_types_of_caches(&p, r);
        problem_draw_features(&p, r);
        problem_draw_layouts(&p, r);
        problem_draw_data(&p, r);
        examine(c, &p);
    }
}

/* Queries of local chunks of 72 keys, which end within a block and within a step: infinite values of the next chunk are those of
 * queries of other tiles, which have 64 rows at most, and do not reach the first ones. In both arithmetics of f32, for few
 * queries and many. */
static void case_infinite_elsewhere(check *c) {
    static const rapt_arith ariths[] = {RAPT_EXACT, RAPT_BF16_DOT};
    for (int64_t n = 0; n < 2 * LENGTH_OF(ariths); n++) {
        problem p = problem_of(c, 1, 1, 1, n % 2 ? 160 : 3, 160, 16, 16);
        p.desc.arith = ariths[n / 2];
        p.desc.local_chunk = 72;
        p.desc.causal = RAPT_CAUSAL_TOP_LEFT;
        p.desc.window_right = -1;
        p.desc.prefix = n % 2 ? 72 : 0;
        if (!problem_wanted(c, &p)) continue;
        subject clean = subject_create(c, &p), s = subject_create(c, &p);
        for (int64_t j = 72; j < 96; j++) subject_poison(&s, TENSOR_V, 0, 0, j, j % 16, INFINITY);
        const int64_t rows = n % 2 ? 72 : 3, bytes = rows * p.desc.d_v * 4;
        FOR_EACH_KERNEL(c, k) {
            unsigned char *want = subject_run(c, &clean, k, &plainly), *got = subject_run(c, &s, k, &plainly);
            k->compared += rows * p.desc.d_v;
            if (want && got && memcmp(want, got, (size_t)bytes) != 0)
                check_fail(c, k, "values of another local chunk reached %d queries", (int)rows);
            free(want);
            free(got);
        }
        subject_destroy(&clean);
        subject_destroy(&s);
    }
}

const check_case feature_cases[] = {
    {"prefix", "keys attended whatever causal and window say", case_prefix, 5},
    {"prefixes", "one for each batch entry", case_prefixes, 5},
    {"local-chunk", "keys of the query's own chunk, of 1 to 700", case_local_chunk, 5},
    {"mask-bool", "a byte for each key, rows and blocks without keys among them", case_mask_bool, 5},
    {"mask-bit", "a bit for each key", case_mask_bit, 5},
    {"mask-broadcast", "every way to share a mask", case_mask_broadcast, 5},
    {"mask-shared", "heads that share a mask, in passes and entries, with any other features", case_mask_shared, 4},
    {"block-mask", "block-sparse: blocks of 1 to 1000 queries, 64 to 1024 keys", case_block_mask, 5},
    {"bias", "f32, f16, bf16, shared in every way", case_bias, 5},
    {"bias-mask", "-inf masks", case_bias_mask, 5},
    {"bias-minimum", "the least finite number does not", case_bias_minimum, 5},
    {"softcap", "small and large, logits too", case_softcap, 5},
    {"softcap-infinite", "infinite scores become finite", case_softcap_infinite, 5},
    {"alibi", "slopes times distances", case_alibi, 5},
    {"alibi-bias", "slopes times biases", case_alibi_bias, 5},
    {"sinks", "a logit without a value, also for rows without keys", case_sinks, 5},
    {"logits-body", "a callback that changes logits", case_body, 5},
    {"logits-body-nested", "a callback that itself computes attention, in each arithmetic", case_body_nested, 1},
    {"logits", "all that changes a logit at once", case_logits, 5},
    {"k-scales", "scales of keys: one, by head, token, channel", case_k_scales, 5},
    {"v-scales", "scales of values", case_v_scales, 5},
    {"kv-scales", "both", case_scales, 5},
    {"kv-types", "fp8, int8, int4 and ggml's types, with scales, in pages", case_kv_types, 8},
    {"ragged-queries", "entries of any number of queries, 0 among them", case_ragged_queries, 5},
    {"ragged-keys", "and keys", case_ragged_keys, 5},
    {"ragged-masks", "with masks, block masks, biases, ALiBi and windows", case_ragged_masks, 5},
    {"pages", "of 1 to 1000 keys, in any order, entries without keys out of range", case_pages, 5},
    {"pages-csr", "by starts, with and without the last page's length", case_pages_csr, 5},
    {"pages-shared", "one table for all, one for each head", case_pages_shared, 5},
    {"gathered", "other keys for each query", case_gathered, 5},
    {"gathered-heads", "other keys for each query, of up to 5000 heads", case_gathered_heads, 1},
    {"ring", "keys that wrap around: plain, ragged, in pages", case_ring, 5},
    {"kv-first", "a part of longer sequences", case_first, 5},
    {"q-offsets", "positions of queries, before, among and after the keys", case_q_offsets, 5},
    {"k-offsets", "positions of keys, with columns for them and without", case_k_offsets, 5},
    {"rest", "masks and biases with fewer or more columns than keys", case_rest, 5},
    {"one-column", "and with one for all keys", case_one_column, 5},
    {"scores", "all stages as an output", case_scores, 5},
    {"scale-zero", "the mean of what is attended", case_scale_zero, 5},
    {"nan-masked", "what no query attends is NaN", case_nan_masked, 5},
    {"infinite-elsewhere", "values that only other queries attend to are infinite", case_infinite_elsewhere, 1},
    {"features", "everything drawn at once", case_features, 8},
    {0},
};
