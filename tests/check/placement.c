/* SPDX-License-Identifier: Apache-2.0 */
/* Cases in which one kernel must give the same bits wherever queries and keys lie: in pages, in a ring, one entry after the
 * other, gathered, V within K; and however a row with masks, biases and scales comes. */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

static const how plain = {WAY_RUN, 1, 1, 1, 0};

/* ---- Keys elsewhere ----------------------------------------------------------------------------------------------------- */

/* Something of everything that does not say where keys lie. */
static void draw_rest(problem *p, uint64_t *random) {
    problem_draw_types_of_caches(p, random);
    problem_draw_data(p, random);
    problem_draw_features(p, random);
    p->ragged_queries = p->ragged_keys = p->ring = false;
    p->desc.page_size = 0;
    p->desc.table = (rapt_layout){0};
    p->table = TABLE_MATRIX;
    p->nan_masked = false;
}

static void case_pages(check *c) {
    static const int64_t sizes[] = {1, 3, 16, 64, 100, 128, 512, 1000};
    for (int n = 0; n < 10; n++) {
        problem p = problem_of(c, 1 + n % 3, 4, 2, n % 2 ? 2 : 30, UP_TO(n < 4 ? 1100 : 200), UP_TO(40), UP_TO(40));
        draw_rest(&p, &c->random);
        problem variants[LENGTH_OF(sizes)];
        for (int64_t v = 0; v < LENGTH_OF(sizes); v++) {
            variants[v] = p;
            problem_paged(&variants[v], sizes[v]);
            variants[v].table = draw_below(&c->random, p.desc.kv_total ? 2 : 3);
            variants[v].ring = draw_below(&c->random, 3) == 0 && variants[v].table != TABLE_LAST_PAGE;
            variants[v].k = (place)draw_below(&c->random, PLACE_ONE_BATCH);
            variants[v].v = (place)draw_below(&c->random, PLACE_ONE_BATCH);
            variants[v].desc.trust_table = v % 2;
        }
        same_as_variants(c, &p, variants, LENGTH_OF(sizes));
    }
}

static void case_ring(check *c) {
    for (int n = 0; n < 8; n++) {
        problem p = problem_of(c, 1 + n % 3, 4, 2, n % 2 ? 2 : 30, UP_TO(n < 4 ? 1100 : 200), UP_TO(40), UP_TO(40));
        draw_rest(&p, &c->random);
        problem variants[3];
        for (int v = 0; v < 3; v++) {
            variants[v] = p;
            variants[v].ring = true;
            variants[v].k = variants[v].v = v == 0 ? PLACE_BHSD : v == 1 ? PLACE_BSHD : PLACE_ODD;
        }
        same_as_variants(c, &p, variants, 3);
    }
}

/* Each entry of a ragged batch by itself, as a batch of one that is not ragged. */
static void case_ragged(check *c) {
    for (int n = 0; n < 14; n++) {
        problem p = problem_of(c, 2 + n % 4, 4, 2, n % 2 ? 3 : 40, UP_TO(n < 2 ? 1100 : 200), UP_TO(40), UP_TO(40));
        draw_rest(&p, &c->random);
        p.ragged_queries = n % 3 != 1;
        p.ragged_keys = n % 3 != 2;
        if (p.ragged_keys) problem_of_all_keys(&p);
        p.ring = n % 4 == 0;
        if (!p.ragged_keys && n % 2) problem_paged(&p, 1 + draw_below(&c->random, 100));
        if (!problem_wanted(c, &p)) continue;
        subject s = subject_create(c, &p);
        FOR_EACH_KERNEL(c, k) {
            uint64_t random = random_of(&p, k);
            unsigned char *all = subject_run(c, &s, k, &plain);
            for (int64_t b = 0; b < s.desc.batch && all; b++) {
                rapt_desc desc = s.desc;
                desc.batch = 1;
                desc.q_len = reference_queries(&s.desc, b);
                subject entry = subject_view(&s, desc, b, 0, 0, ALL_LENGTHS);
                const how drawn = how_drawn(&random);
                unsigned char *got = subject_run(c, &entry, k, &drawn);
                if (got) same_rows(c, k, "the entry of a ragged batch", &entry, got, &s, all, b, 0, 0);
                free(got);
                subject_destroy(&entry);
            }
            free(all);
        }
        subject_destroy(&s);
    }
}

/* ---- Gathered keys ------------------------------------------------------------------------------------------------------ */

/* A copy of the keys that one row finds, in the order in which it finds them, in place of the pages of its view. */
static void copy_keys(subject *view, const subject *s, int64_t b, int64_t h, int64_t i, fence copies[4]) {
    rapt_desc *d = &view->desc;
    const int64_t head = h / (s->desc.heads / s->desc.kv_heads);
    const size_t k_row = (size_t)reference_row_bytes(d->k.type, d->d_k), v_row = (size_t)reference_row_bytes(d->v.type, d->d_v);
    const bool k_token = d->k_scales.token_stride != 0, v_token = d->v_scales.token_stride != 0;
    int64_t first, end;
    reference_keys(&s->desc, &s->args, b, &first, &end);
    const size_t keys = (size_t)(end - first);
    copies[0] = fence_create(keys * k_row, -1, 0);
    copies[1] = fence_create(keys * v_row, -1, 0);
    copies[2] = fence_create(k_token ? keys * 4 : 0, -1, 0);
    copies[3] = fence_create(v_token ? keys * 4 : 0, -1, 0);
    for (int64_t j = first; j < end; j++) {
        const size_t n = (size_t)(j - first);
        const reference_place at = reference_key(&s->desc, &s->args, b, head, i, j);
        memcpy(copies[0].data + n * k_row, reference_at(s->args.k, &s->desc.k, at.batch, head, at.token), k_row);
        memcpy(copies[1].data + n * v_row, reference_at(s->args.v, &s->desc.v, at.batch, head, at.token), v_row);
        if (k_token) memcpy(copies[2].data + n * 4, reference_scale(&s->desc.k_scales, s->args.k_scales, b, head, at, 0), 4);
        if (v_token) memcpy(copies[3].data + n * 4, reference_scale(&s->desc.v_scales, s->args.v_scales, b, head, at, 0), 4);
    }
    d->page_size = 0;
    d->table = (rapt_layout){0};
    d->kv_len = end - first;
    d->k.token_stride = (int64_t)k_row;
    d->v.token_stride = (int64_t)v_row;
    view->args.k = copies[0].data;
    view->args.v = copies[1].data;
    view->args.ring_starts = view->args.table = view->args.table_starts = NULL;
    if (k_token) d->k_scales.token_stride = 4, view->args.k_scales = (const float *)(const void *)copies[2].data;
    if (v_token) d->v_scales.token_stride = 4, view->args.v_scales = (const float *)(const void *)copies[3].data;
}

static void case_gathered(check *c) {
    for (int n = 0; n < 10; n++) {
        problem p = problem_of(c, 1 + n % 3, 4, 2, n % 2 ? 2 : 20, UP_TO(n < 3 ? 700 : 150), UP_TO(40), UP_TO(40));
        draw_rest(&p, &c->random);
        p.desc.causal = RAPT_CAUSAL_NONE; /* so that a row by itself, which is the last, attends the same keys */
        p.desc.window_left = p.desc.window_right = -1;
        p.desc.local_chunk = 0;
        if (p.desc.alibi == RAPT_ALIBI_DISTANCE) p.desc.alibi = RAPT_ALIBI_NONE, p.desc.slopes.type = 0;
        problem_paged(&p, n % 3 ? 1 : 4);
        p.same[EXTRA_TABLE] = (int)draw_below(&c->random, 4);
        if (!problem_wanted(c, &p)) continue;
        subject s = subject_create(c, &p);
        FOR_EACH_KERNEL(c, k) {
            uint64_t random = random_of(&p, k);
            unsigned char *all = subject_run(c, &s, k, &plain);
            for (int row = 0; row < 8 && all; row++) {
                const int64_t b = draw_below(&random, s.desc.batch), h = draw_below(&random, s.desc.heads);
                const int64_t i = draw_below(&random, s.desc.q_len);
                rapt_desc desc = s.desc;
                desc.batch = desc.heads = desc.kv_heads = desc.q_len = 1;
                subject view = subject_view(&s, desc, b, h, i, (int32_t)reference_length(&s.desc, &s.args, b));
                fence copies[4];
                copy_keys(&view, &s, b, h, i, copies);
                if (view.desc.kv_total == 0) view.desc.kv_total = reference_length(&s.desc, &s.args, b);
                const how drawn = how_drawn(&random);
                unsigned char *got = subject_run(c, &view, k, &drawn);
                if (got) same_rows(c, k, "keys gathered by a table", &view, got, &s, all, b, h, i);
                free(got);
                for (int f = 0; f < 4; f++) fence_destroy(&copies[f]);
                subject_destroy(&view);
            }
            free(all);
        }
        subject_destroy(&s);
    }
}

/* ---- Values that are a part of the keys --------------------------------------------------------------------------------- */

static void case_values_in_keys(check *c) {
    static const int64_t dims[][3] = {{576, 512, 0}, {576, 512, 64}, {40, 32, 8}, {7, 3, 4}, {24, 24, 0}, {33, 1, 32}};
    static const rapt_type types[] = {RAPT_F32, RAPT_F16, RAPT_BF16};
    for (int64_t n = 0; n < 2 * LENGTH_OF(dims); n++) {
        const int64_t *const d = dims[n / 2], offset = d[2];
        const rapt_type type = DRAW_OF(&c->random, types);
        problem p = problem_of(c, 2, 4, n % 4 ? 1 : 4, n % 2 ? 1 : 20, UP_TO(150), d[0], d[1]);
        draw_rest(&p, &c->random);
        const rapt_type kv = p.desc.arith ? RAPT_INT8 : type;
        problem_types(&p, type, kv, kv, type);
        p.desc.d_k = d[0];
        p.desc.d_v = d[1];
        p.k = p.v = (place)draw_below(&c->random, PLACE_ONE_BATCH);
        if (n % 3 == 0) problem_paged(&p, 16);
        if (!problem_wanted(c, &p)) continue;
        subject s = subject_create(c, &p);
        fence_protect(&s.v, false);
        const size_t element = (size_t)reference_row_bytes(kv, 1);
        for (int64_t b = 0; b < s.desc.batch; b++) {
            int64_t first, end;
            reference_keys(&s.desc, &s.args, b, &first, &end);
            for (int64_t n_key = 0; n_key < (end - first) * s.desc.kv_heads; n_key++) {
                const int64_t h = n_key / (end - first), j = first + n_key % (end - first);
                const reference_place at = reference_key(&s.desc, &s.args, b, h, 0, j);
                const unsigned char *const row = reference_at(s.args.k, &s.desc.k, at.batch, h, at.token);
                memcpy(reference_at(s.args.v, &s.desc.v, at.batch, h, at.token), row + (size_t)offset * element,
                       (size_t)d[1] * element);
            }
        }
        fence_protect(&s.v, true);
        subject within = s; /* the same memory, but for V */
        within.desc.v = s.desc.k;
        within.args.v = (const unsigned char *)s.args.k + (size_t)offset * element;
        FOR_EACH_KERNEL(c, k) {
            uint64_t random = random_of(&p, k);
            const how drawn = how_drawn(&random);
            unsigned char *want = subject_run(c, &s, k, &plain), *got = subject_run(c, &within, k, &drawn);
            if (want && got) same_rows(c, k, "values of their own", &within, got, &s, want, 0, 0, 0);
            free(want);
            free(got);
        }
        subject_destroy(&s);
    }
}

/* ---- Rows with features ------------------------------------------------------------------------------------------------- */

/* The keys [0, *length) of a cache whose last key is where row (b, h, i) stands, if there is such a cache with the same keys. */
static bool stands_alone(const subject *s, int64_t b, int64_t h, int64_t i, int64_t *length) {
    const rapt_desc *d = &s->desc;
    *length = reference_length(d, &s->args, b);
    if (s->args.q_offsets) return true; /* it stands where it is said to, however many keys there are */
    const int64_t at = i + (d->causal == RAPT_CAUSAL_TOP_LEFT ? 0 : *length - reference_queries(d, b));
    if (at + 1 == *length) return true;
    const bool anywhere = d->causal == RAPT_CAUSAL_NONE && d->window_left < 0 && d->window_right < 0 && !d->local_chunk &&
                          d->alibi != RAPT_ALIBI_DISTANCE;
    if (anywhere) return true;
    if (at < 0 || at >= *length) return false;
    int64_t first, end;
    reference_keys(d, &s->args, b, &first, &end);
    for (int64_t j = at + 1; j < end; j++)
        if (reference_attends(d, &s->args, b, h, i, j)) return false;
    *length = at + 1;
    return true;
}

static void case_row_alone(check *c) {
    for (int n = 0; n < 24; n++) {
        problem p = problem_of(c, 3, 6, 2, UP_TO(40), UP_TO(n < 4 ? 1100 : 160), UP_TO(40), UP_TO(40));
        problem_draw_types_of_caches(&p, &c->random);
        problem_draw_data(&p, &c->random);
        problem_draw_features(&p, &c->random);
        if (p.desc.causal == RAPT_CAUSAL_NONE && n % 2) p.desc.causal = RAPT_CAUSAL_BOTTOM_RIGHT;
        p.nan_masked = false;
        if (!problem_wanted(c, &p)) continue;
        subject s = subject_create(c, &p);
        FOR_EACH_KERNEL(c, k) {
            uint64_t random = random_of(&p, k);
            unsigned char *all = subject_run(c, &s, k, &plain);
            for (int row = 0; row < 12 && all; row++) {
                const int64_t b = draw_below(&random, s.desc.batch), h = draw_below(&random, s.desc.heads);
                const int64_t queries = reference_queries(&s.desc, b), i = queries ? draw_below(&random, queries) : 0;
                int64_t length;
                if (queries == 0 || !stands_alone(&s, b, h, i, &length)) continue;
                rapt_desc desc = s.desc;
                desc.batch = desc.heads = desc.kv_heads = desc.q_len = 1;
                if (!s.args.q_offsets) desc.causal = RAPT_CAUSAL_NONE;
                subject alone = subject_view(&s, desc, b, h, i, (int32_t)length);
                const how drawn = how_drawn(&random);
                unsigned char *got = subject_run(c, &alone, k, &drawn);
                if (got) same_rows(c, k, "the row among others", &alone, got, &s, all, b, h, i);
                free(got);
                subject_destroy(&alone);
            }
            free(all);
        }
        subject_destroy(&s);
    }
}

/* Entries by themselves, which take the other path more often than rows do. */
static void case_entry_alone(check *c) {
    for (int n = 0; n < 16; n++) {
        problem p = problem_of(c, 3, 6, 2, n % 2 ? UP_TO(4) : UP_TO(40), UP_TO(n < 2 ? 1100 : 160), UP_TO(40), UP_TO(40));
        problem_draw_types_of_caches(&p, &c->random);
        problem_draw_data(&p, &c->random);
        problem_draw_features(&p, &c->random);
        if (!problem_wanted(c, &p)) continue;
        subject s = subject_create(c, &p);
        FOR_EACH_KERNEL(c, k) {
            uint64_t random = random_of(&p, k);
            unsigned char *all = subject_run(c, &s, k, &plain);
            for (int64_t b = 0; b < s.desc.batch && all; b++) {
                rapt_desc desc = s.desc;
                const int64_t group = desc.heads / desc.kv_heads, h = draw_below(&random, desc.kv_heads);
                desc.batch = desc.kv_heads = 1;
                desc.heads = group;
                desc.q_len = reference_queries(&s.desc, b);
                subject entry = subject_view(&s, desc, b, h * group, 0, ALL_LENGTHS);
                const how drawn = how_drawn(&random);
                unsigned char *got = subject_run(c, &entry, k, &drawn);
                if (got) same_rows(c, k, "the entry among others", &entry, got, &s, all, b, h * group, 0);
                free(got);
                subject_destroy(&entry);
            }
            free(all);
        }
        subject_destroy(&s);
    }
}

/* Prefill in one, and the same queries in chunks on a cache that grows. */
static void case_chunks(check *c) {
    for (int n = 0; n < 12; n++) {
        const int64_t past = n % 3 ? draw_below(&c->random, n < 6 ? 100 : 600) : 0, tokens = 10 + draw_below(&c->random, 40);
        problem p = problem_of(c, 1, 4, 1 + n % 2, tokens, past + tokens, UP_TO(40), UP_TO(40));
        draw_rest(&p, &c->random);
        p.lengths = LENGTHS_NONE;
        p.desc.causal = RAPT_CAUSAL_BOTTOM_RIGHT;
        problem_of_all_keys(&p);
        p.desc.prefix = past;
        p.prefixes = p.q_offsets = false;
        if (p.desc.block_mask.type) p.desc.block_mask_queries = 1;
        if (n % 2) problem_paged(&p, 1 + draw_below(&c->random, 70));
        if (!problem_wanted(c, &p)) continue;
        subject s = subject_create(c, &p);
        FOR_EACH_KERNEL(c, k) {
            uint64_t random = random_of(&p, k);
            unsigned char *all = subject_run(c, &s, k, &plain);
            for (int64_t i = 0, step; i < tokens && all; i += step) {
                step = 1 + draw_below(&random, n % 4 ? 12 : 1);
                step = step < tokens - i ? step : tokens - i;
                rapt_desc desc = s.desc;
                desc.q_len = step;
                subject chunk = subject_view(&s, desc, 0, 0, i, (int32_t)(past + i + step));
                const how drawn = how_drawn(&random);
                unsigned char *got = subject_run(c, &chunk, k, &drawn);
                if (got) same_rows(c, k, "prefill in one", &chunk, got, &s, all, 0, 0, i);
                free(got);
                subject_destroy(&chunk);
            }
            free(all);
        }
        subject_destroy(&s);
    }
}

static void case_threads(check *c) {
    for (int n = 0; n < 8; n++) {
        problem p =
            problem_of(c, 1 + n % 3, 4, 1 + n % 2, n % 2 ? UP_TO(3) : 40, n < 4 ? 1300 : UP_TO(600), UP_TO(32), UP_TO(32));
        problem_draw_types_of_caches(&p, &c->random);
        problem_draw_features(&p, &c->random);
        same_by_threads(c, &p);
    }
}

const check_case placement_cases[] = {
    {"same-pages", "pages of 1 to 1000 keys, by matrix, starts and last page, and keys in one piece", case_pages, 2},
    {"same-ring", "keys that wrap around", case_ring, 2},
    {"same-ragged", "each entry of a ragged batch by itself", case_ragged, 2},
    {"same-gathered", "gathered keys and a copy of them", case_gathered, 2},
    {"same-values-in-keys", "V within K, 576/512 and small, and apart", case_values_in_keys, 2},
    {"same-feature-rows", "a row with any features alone and among others", case_row_alone, 3},
    {"same-feature-entries", "an entry and its heads alone and among others", case_entry_alone, 3},
    {"same-feature-chunks", "prefill with any features in one and in chunks", case_chunks, 2},
    {"same-feature-threads", "every way to run, 1, 2, 3, 7, 64 threads, with any features", case_threads, 2},
    {0},
};
