/* SPDX-License-Identifier: Apache-2.0 */
/* Cases in which one kernel must give the same bits however a row comes: by threads, in a batch, from a layout, in chunks. */
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const how plain = {WAY_RUN, 1, 1, 1, 0};

/* ---- Threads ------------------------------------------------------------------------------------------------------------ */

void same_by_threads(check *c, const problem *p) {
    static const int64_t counts[] = {1, 2, 3, 7, 64};
    if (!problem_wanted(c, p)) return;
    subject s = subject_create(c, p);
    FOR_EACH_KERNEL(c, k) {
        uint64_t random = random_of(p, k);
        unsigned char *want = subject_run(c, &s, k, &plain);
        if (!want) continue;
        for (int64_t n = 0; n < LENGTH_OF(counts); n++) {
            for (way w = WAY_RUN; w < (way)WAYS_HERE; w++) {
                const int64_t nth = DRAW_OF(&random, counts);
                const bool starts_threads = w == WAY_PARALLEL || w == WAY_SHARE;
                if (c->quick && starts_threads && nth != 3) continue; /* emulators are slow, and noisy, at starting threads */
                const how h = {w, counts[n], nth, draw(&random), 0};
                unsigned char *got = subject_run(c, &s, k, &h);
                if (got) same_rows(c, k, "one thread", &s, got, &s, want, 0, 0, 0);
                free(got);
            }
        }
        free(want);
    }
    subject_destroy(&s);
}

static void case_threads(check *c) {
    problem p = problem_of(c, 1, 4, 1, 1, 1300, 40, 33); /* decode: keys are split */
    same_by_threads(c, &p);
    p.desc.window_left = 300; /* the first chunks are skipped */
    same_by_threads(c, &p);
    p = problem_of(c, 2, 6, 2, 3, 1100, 16, 24);
    p.desc.causal = RAPT_CAUSAL_BOTTOM_RIGHT;
    p.lengths = LENGTHS_DRAWN;
    same_by_threads(c, &p);
    p = problem_of(c, 1, 2, 1, 90, 600, 24, 16); /* prefill */
    p.desc.causal = RAPT_CAUSAL_TOP_LEFT;
    problem_types(&p, RAPT_F32, RAPT_F16, RAPT_BF16, RAPT_F16);
    same_by_threads(c, &p);
    p = problem_of(c, 3, 4, 2, 70, 70, 16, 16); /* heads of several entries take turns */
    p.desc.causal = RAPT_CAUSAL_BOTTOM_RIGHT;
    same_by_threads(c, &p);
    p = problem_of(c, 3, 6, 3, 17, 20, 8, 8); /* more threads than work */
    same_by_threads(c, &p);
    /* Keys split into parts, with a row left over after whole vectors of 16, and of 8 or 4. */
    p = problem_of(c, 1, 1, 1, 33, 1100, 16, 64);
    same_by_threads(c, &p);
    p = problem_of(c, 1, 1, 1, 9, 1100, 16, 64);
    same_by_threads(c, &p);
    p = problem_of(c, 2, 4, 2, 70, 1500, 16, 16); /* rows and keys are cut */
    p.desc.causal = RAPT_CAUSAL_BOTTOM_RIGHT;
    same_by_threads(c, &p);
    p = problem_of(c, 1, 4, 4, 40, 1300, 16, 16); /* more heads than threads share a mask, and three threads cut the keys */
    p.desc.mask.type = RAPT_BOOL;
    p.mask = PATTERN_ALIKE;
    p.same[EXTRA_MASK] = SAME_HEADS;
    same_by_threads(c, &p);
}

/* ---- Tunings ------------------------------------------------------------------------------------------------------------ */

void same_by_tunings(check *c, const problem *p) {
    if (!problem_wanted(c, p)) return;
    subject s = subject_create(c, p);
    FOR_EACH_KERNEL(c, k) {
        uint64_t random = random_of(p, k);
        unsigned char *want = subject_run(c, &s, k, &plain);
        if (!want) continue;
        for (int n = 0; n < (c->quick ? 4 : 16); n++) {
            how h = how_drawn(&random);
            h.tuned = n == 0 ? TUNING_LEAST : n == 1 ? TUNING_MOST : draw(&random);
            unsigned char *got = subject_run(c, &s, k, &h);
            if (got) same_rows(c, k, "its own tuning", &s, got, &s, want, 0, 0, 0);
            free(got);
        }
        free(want);
    }
    subject_destroy(&s);
}

static void case_tunings(check *c) {
    static const int64_t queries[] = {1, 2, 5, 9, 16, 17, 31, 64, 100};
    for (int n = 0; n < 27; n++) { /* few rows, those that are left over beside vectors, and passes of several tiles */
        const int64_t kv_heads = n % 2 ? 2 : 4, heads = kv_heads * (1 + draw_below(&c->random, 4));
        problem p =
            problem_of(c, 2, heads, kv_heads, queries[n % LENGTH_OF(queries)], UP_TO(n % 3 ? 160 : 1300), UP_TO(70), UP_TO(70));
        problem_draw_types_of_caches(&p, &c->random);
        p.desc.causal = (rapt_causal)(n % 3);
        if (n % 4 == 1) problem_integer(&p);
        if (n % 4 == 3) p.desc.arith = RAPT_BF16_DOT;
        if (n % 2) p.k = p.v = PLACE_BSHD; /* where heads are joined */
        p.ragged_queries = n % 5 == 0;
        same_by_tunings(c, &p);
    }
    for (int n = 0; n < 20; n++) {
        problem p = problem_of(c, UP_TO(3), 6, 2, UP_TO(60), UP_TO(n % 4 ? 160 : 1100), UP_TO(40), UP_TO(40));
        problem_draw_features(&p, &c->random);
        same_by_tunings(c, &p);
    }
}

/* ---- Rows --------------------------------------------------------------------------------------------------------------- */

/* A row by itself: the keys that it sees are the last ones of a shorter cache. */
void same_alone(check *c, const problem *p) {
    if (!problem_wanted(c, p)) return;
    subject s = subject_create(c, p);
    FOR_EACH_KERNEL(c, k) {
        uint64_t random = random_of(p, k);
        unsigned char *all = subject_run(c, &s, k, &plain);
        if (!all) continue;
        for (int n = 0; n < 12; n++) {
            const int64_t b = draw_below(&random, s.desc.batch), h = draw_below(&random, s.desc.heads);
            const int64_t i = draw_below(&random, s.desc.q_len), length = reference_length(&s.desc, &s.args, b);
            const int64_t at = i + (s.desc.causal == RAPT_CAUSAL_TOP_LEFT ? 0 : length - s.desc.q_len);
            if (at >= length && s.desc.window_left >= 0) continue; /* no cache ends where this row stands */
            rapt_desc desc = s.desc;
            desc.batch = desc.heads = desc.kv_heads = desc.q_len = 1;
            const bool ends_here = desc.causal != RAPT_CAUSAL_NONE && at < length;
            desc.causal = RAPT_CAUSAL_NONE;
            subject row = subject_view(&s, desc, b, h, i, (int32_t)(!ends_here ? length : at < 0 ? 0 : at + 1));
            const how drawn = how_drawn(&random);
            unsigned char *got = subject_run(c, &row, k, &drawn);
            if (got) same_rows(c, k, "the row among others", &row, got, &s, all, b, h, i);
            free(got);
            subject_destroy(&row);
        }
        free(all);
    }
    subject_destroy(&s);
}

static void case_row_alone(check *c) {
    for (int n = 0; n < 18; n++) {
        problem p = problem_of(c, 3, 6, 2, UP_TO(60), UP_TO(n ? 160 : 1100), UP_TO(70), UP_TO(70));
        problem_draw_types(&p, &c->random);
        problem_draw_data(&p, &c->random);
        if (n % 4 == 3) problem_integer_groups(&p, &c->random);
        p.desc.causal = (rapt_causal)(n % 3);
        if (p.desc.causal) p.desc.window_left = draw_below(&c->random, 2) ? -1 : draw_below(&c->random, 100);
        p.lengths = draw_below(&c->random, 2) ? LENGTHS_DRAWN : LENGTHS_NONE;
        p.q = (place)draw_below(&c->random, PLACE_PACKED);
        same_alone(c, &p);
    }
}

/* A batch entry by itself, and each group of heads by itself with its keys and values repeated (stride 0) for every head. */
void same_apart(check *c, const problem *p) {
    if (!problem_wanted(c, p)) return;
    subject s = subject_create(c, p);
    const int64_t group = s.desc.heads / s.desc.kv_heads;
    FOR_EACH_KERNEL(c, k) {
        uint64_t random = random_of(p, k);
        unsigned char *all = subject_run(c, &s, k, &plain);
        if (!all) continue;
        for (int64_t b = 0; b < s.desc.batch; b++) {
            rapt_desc desc = s.desc;
            desc.batch = 1;
            const how drawn = how_drawn(&random);
            subject entry = subject_view(&s, desc, b, 0, 0, (int32_t)reference_length(&s.desc, &s.args, b));
            unsigned char *got = subject_run(c, &entry, k, &drawn);
            if (got) same_rows(c, k, "the entry among others", &entry, got, &s, all, b, 0, 0);
            free(got);
            subject_destroy(&entry);

            const int64_t h = draw_below(&random, s.desc.kv_heads) * group;
            desc.heads = desc.kv_heads = group;
            desc.k.head_stride = desc.v.head_stride = 0;
            subject repeated = subject_view(&s, desc, b, h, 0, (int32_t)reference_length(&s.desc, &s.args, b));
            got = subject_run(c, &repeated, k, &drawn);
            if (got) same_rows(c, k, "heads that share", &repeated, got, &s, all, b, h, 0);
            free(got);
            subject_destroy(&repeated);
        }
        free(all);
    }
    subject_destroy(&s);
}

static void case_batch_and_groups(check *c) {
    static const int64_t ratios[] = {1, 2, 3, 5, 8, 12};
    for (int64_t n = 0; n < 2 * LENGTH_OF(ratios); n++) {
        problem p =
            problem_of(c, 3, 2 * ratios[n / 2], 2, n % 2 ? UP_TO(3) : 33, UP_TO(n == 3 ? 1000 : 140), UP_TO(40), UP_TO(40));
        problem_draw_types(&p, &c->random);
        problem_draw_data(&p, &c->random);
        problem_draw_mask(&p, &c->random);
        if (n % 4 == 3) problem_integer(&p);
        same_apart(c, &p);
    }
}

/* ---- Layouts ------------------------------------------------------------------------------------------------------------ */

void same_as_variants(check *c, const problem *p, problem *variants, int n) {
    if (!problem_wanted(c, p)) return;
    subject s = subject_create(c, p), *others = allocate_zeros((size_t)n, sizeof *others);
    for (int v = 0; v < n; v++) others[v] = subject_create(c, &variants[v]);
    FOR_EACH_KERNEL(c, k) {
        uint64_t random = random_of(p, k);
        unsigned char *want = subject_run(c, &s, k, &plain);
        for (int v = 0; v < n && want; v++) {
            const how drawn = how_drawn(&random);
            unsigned char *got = subject_run(c, &others[v], k, &drawn);
            char against[64];
            snprintf(against, sizeof against, "variant %d with the plain layout", v);
            if (got) same_rows(c, k, against, &others[v], got, &s, want, 0, 0, 0);
            free(got);
        }
        free(want);
    }
    for (int v = 0; v < n; v++) subject_destroy(&others[v]);
    free(others);
    subject_destroy(&s);
}

static void case_layouts(check *c) {
    for (int n = 0; n < 6; n++) {
        problem p = problem_of(c, 2, 4, 2, n % 2 ? 2 : 40, 150, UP_TO(80), UP_TO(80));
        problem variants[8];
        problem_draw_types(&p, &c->random);
        problem_draw_data(&p, &c->random);
        problem_draw_mask(&p, &c->random);
        if (n % 3 == 2) problem_integer_groups(&p, &c->random);
        for (int v = 0; v < 8; v++) {
            variants[v] = p;
            variants[v].q = (place)draw_below(&c->random, PLACE_ONE_BATCH);
            variants[v].k = (place)draw_below(&c->random, PLACE_ONE_BATCH);
            variants[v].v = (place)draw_below(&c->random, PLACE_ONE_BATCH);
            variants[v].o = (place)draw_below(&c->random, PLACE_ONE_BATCH);
        }
        same_as_variants(c, &p, variants, 8);
    }
}

static void case_offsets(check *c) {
    for (int n = 0; n < 3; n++) {
        problem p = problem_of(c, 1, 2, 1, n % 2 ? 2 : 25, 70, UP_TO(70), UP_TO(70));
        problem variants[63];
        problem_draw_types(&p, &c->random);
        problem_draw_data(&p, &c->random);
        if (n == 2) problem_integer(&p);
        for (int offset = 1; offset < 64; offset++) {
            variants[offset - 1] = p;
            variants[offset - 1].offset = offset;
        }
        same_as_variants(c, &p, variants, c->quick ? 3 : 63);
    }
}

/* ---- Prefill, chunks, decode -------------------------------------------------------------------------------------------- */

/* The queries' last ones in chunks of one length each, on a cache that grows: the way of an engine, with one plan for decode. */
static void in_chunks(check *c, kernel *k, const subject *s, const unsigned char *all, int64_t longest, uint64_t *random) {
    const int64_t past = s->desc.kv_len - s->desc.q_len;
    for (int64_t i = 0; i < s->desc.q_len;) {
        const int64_t tokens = smaller(1 + draw_below(random, longest), s->desc.q_len - i);
        rapt_desc desc = s->desc;
        desc.q_len = tokens;
        subject chunk = subject_view(s, desc, 0, 0, i, (int32_t)(past + i + tokens));
        const how drawn = how_drawn(random);
        unsigned char *got = subject_run(c, &chunk, k, &drawn);
        const bool same = got && same_rows(c, k, longest == 1 ? "prefill" : "prefill in one", &chunk, got, s, all, 0, 0, i);
        free(got);
        subject_destroy(&chunk);
        if (!same) return;
        i += tokens;
    }
}

static void one_decode_plan(check *c, kernel *k, const subject *s, const unsigned char *all) {
    rapt_desc desc = s->desc;
    desc.q_len = 1;
    desc.isa = k->name;
    subject step = subject_view(s, desc, 0, 0, 0, 0);
    rapt_plan plan;
    size_t bytes;
    if (rapt_plan_init(&plan, &step.desc) != RAPT_OK || rapt_workspace_size(&plan, 1, &bytes) != RAPT_OK) {
        check_fail(c, k, "no plan for decode");
        subject_destroy(&step);
        return;
    }
    fence workspace = fence_create((bytes + 63) / 64 * 64, 0, 0);
    for (int64_t i = 0; i < s->desc.q_len; i++) {
        subject at = subject_view(s, step.desc, 0, 0, i, (int32_t)(s->desc.kv_len - s->desc.q_len + i + 1));
        at.args.workspace = workspace.data;
        at.args.workspace_bytes = bytes;
        check_step(c, k);
        const rapt_status status = rapt_run(&plan, &at.args);
        if (status != RAPT_OK) check_fail(c, k, "decode: %s", rapt_status_string(status));
        unsigned char *got = allocate((size_t)subject_output_bytes(&at));
        memcpy(got, at.o.data, at.o.bytes);
        memcpy(got + at.o.bytes, at.lse.data, at.lse.bytes);
        const bool same = same_rows(c, k, "prefill (one plan for all steps)", &at, got, s, all, 0, 0, i);
        free(got);
        subject_destroy(&at);
        if (!same) break;
    }
    fence_destroy(&workspace);
    subject_destroy(&step);
}

void same_in_steps(check *c, const problem *p) {
    if (!problem_wanted(c, p)) return;
    subject s = subject_create(c, p);
    FOR_EACH_KERNEL(c, k) {
        uint64_t random = random_of(p, k);
        unsigned char *all = subject_run(c, &s, k, &plain);
        if (!all) continue;
        in_chunks(c, k, &s, all, 1, &random);
        in_chunks(c, k, &s, all, 5, &random);
        in_chunks(c, k, &s, all, s.desc.q_len, &random);
        one_decode_plan(c, k, &s, all);
        free(all);
    }
    subject_destroy(&s);
}

static void case_decode(check *c) {
    static const int64_t pasts[] = {0, 0, 13, 500, 0, 90};
    for (int64_t n = 0; n < LENGTH_OF(pasts); n++) {
        const int64_t tokens = 10 + draw_below(&c->random, n ? 60 : 100);
        problem p = problem_of(c, 1, 4, 1 + n % 2, tokens, pasts[n] + tokens, UP_TO(48), UP_TO(48));
        p.desc.causal = RAPT_CAUSAL_BOTTOM_RIGHT;
        if (n % 3 == 1) p.desc.window_left = draw_below(&c->random, 40);
        problem_draw_types(&p, &c->random);
        problem_draw_data(&p, &c->random);
        if (n >= 4) problem_integer_groups(&p, &c->random);
        same_in_steps(c, &p);
    }
}

/* ---- Masked keys -------------------------------------------------------------------------------------------------------- */

/* The same keys in a longer cache, whose rest is NaN, or not there at all. */
static void case_longer_cache(check *c) {
    for (int n = 0; n < 12; n++) {
        const int64_t keys = n / 4 == 0 ? 64 : 1 + draw_below(&c->random, n / 4 == 1 ? 130 : 700);
        problem p = problem_of(c, 1, 4, 2, n % 2 ? 2 : 30, keys, UP_TO(40), UP_TO(40));
        problem_draw_types(&p, &c->random);
        problem_draw_data(&p, &c->random);
        if (n % 4 == 1) problem_integer(&p);
        p.desc.causal = (rapt_causal)draw_below(&c->random, 3);
        problem variants[3];
        for (int v = 0; v < 3; v++) {
            variants[v] = p;
            variants[v].desc.kv_len = keys + (v ? 1 + draw_below(&c->random, 700) : 1);
            variants[v].lengths = LENGTHS_GIVEN;
            variants[v].given[0] = (int32_t)keys;
            variants[v].unmapped = v == 2;
            variants[v].k = v == 2 ? PLACE_BSHD : PLACE_BHSD;
            variants[v].v = variants[v].k;
            if (v == 2) variants[v].offset = -1;
        }
        same_as_variants(c, &p, variants, 3);
    }
}

/* Some keys of each head become NaN: rows that attend one of them become NaN, all others keep their bits. In values, only that
 * channel of them does. */
static bool poisoned_as_promised(check *c, kernel *k, const subject *s, const unsigned char *clean, const unsigned char *got,
                                 int tensor, const int64_t *bad, const int64_t *channel, int64_t n) {
    const rapt_desc *d = &s->desc;
    const int64_t bytes = reference_type_bytes(d->o.type), rows = d->batch * d->heads * d->q_len;
    for (int64_t row = 0; row < rows; row++) {
        const int64_t b = row / d->q_len / d->heads, h = row / d->q_len % d->heads, i = row % d->q_len;
        bool any = false;
        for (int64_t e = 0; e < n; e++) any |= reference_attends(d, &s->args, b, h, i, bad[e]);
        for (int64_t ch = 0; ch <= d->d_v; ch++) { /* the last stands for the lse */
            if (ch == d->d_v && !d->lse.type) continue;
            bool want_nan = tensor == TENSOR_K && any;
            for (int64_t e = 0; e < n && tensor == TENSOR_V; e++)
                want_nan |= channel[e] == ch && reference_attends(d, &s->args, b, h, i, bad[e]);
            const int64_t at = ch < d->d_v ? (row * d->d_v + ch) * bytes : rows * d->d_v * bytes + row * 4;
            const rapt_type type = ch < d->d_v ? d->o.type : RAPT_F32;
            const bool is_nan = isnan(reference_load(type, got + at));
            k->compared++;
            if (want_nan ? is_nan : memcmp(clean + at, got + at, (size_t)reference_type_bytes(type)) == 0) continue;
            char text[SUBJECT_TEXT];
            subject_text(s, text, sizeof text);
            check_fail(c, k, "NaN in %s: row %d channel %d %s; %s", tensor == TENSOR_K ? "keys" : "values", (int)row, (int)ch,
                       want_nan ? "did not become NaN"
                       : is_nan ? "became NaN"
                                : "changed",
                       text);
            return false;
        }
    }
    return true;
}

static void poison(check *c, int tensor) {
    for (int n = 0; n < 24; n++) {
        problem p = problem_of(c, 2, 4, 2, n % 2 ? 2 : 45, UP_TO(n % 8 < 2 ? 600 : 120), UP_TO(40), UP_TO(40));
        problem_draw_types(&p, &c->random);
        problem_draw_mask(&p, &c->random);
        enum { BAD = 3 };
        int64_t bad[BAD], channel[BAD];
        for (int e = 0; e < BAD; e++) {
            bad[e] = draw_below(&c->random, p.desc.kv_len);
            channel[e] = draw_below(&c->random, tensor == TENSOR_K ? p.desc.d_k : p.desc.d_v);
        }
        if (!problem_wanted(c, &p)) continue;
        subject clean = subject_create(c, &p), s = subject_create(c, &p);
        for (int e = 0; e < BAD; e++)
            for (int64_t b = 0; b < 2; b++)
                for (int64_t h = 0; h < 2; h++) subject_poison(&s, tensor, b, h, bad[e], channel[e], NAN);
        FOR_EACH_KERNEL(c, k) {
            uint64_t random = random_of(&p, k);
            const how drawn = how_drawn(&random);
            unsigned char *want = subject_run(c, &clean, k, &plain), *got = subject_run(c, &s, k, &drawn);
            if (want && got) poisoned_as_promised(c, k, &s, want, got, tensor, bad, channel, BAD);
            free(want);
            free(got);
        }
        subject_destroy(&clean);
        subject_destroy(&s);
    }
}

static void case_nan_keys(check *c) { poison(c, TENSOR_K); }
static void case_nan_values(check *c) { poison(c, TENSOR_V); }

/* Values after the diagonal, or outside every window, are NaN or infinite: nothing changes. */
static void case_masked_garbage(check *c) {
    static const float garbage[] = {NAN, INFINITY, -INFINITY};
    for (int n = 0; n < 18; n++) {
        const int64_t queries = n % 2 ? 3 : 40, keys = queries + 70 + draw_below(&c->random, 150);
        problem p = problem_of(c, 1, 4, 2, queries, keys, UP_TO(30), UP_TO(30));
        problem_draw_types(&p, &c->random);
        p.desc.causal = n % 3 ? RAPT_CAUSAL_TOP_LEFT : RAPT_CAUSAL_BOTTOM_RIGHT;
        if (n % 3 != 1) p.desc.window_left = draw_below(&c->random, 20);
        if (!problem_wanted(c, &p)) continue;
        subject clean = subject_create(c, &p), s = subject_create(c, &p);
        for (int64_t j = 0; j < keys; j++) {
            bool seen = false;
            for (int64_t i = 0; i < queries; i++) seen |= reference_attends(&s.desc, &s.args, 0, 0, i, j);
            for (int64_t h = 0; h < 2 && !seen; h++) {
                const float bad = DRAW_OF(&c->random, garbage);
                subject_poison(&s, TENSOR_K, 0, h, j, draw_below(&c->random, p.desc.d_k), bad);
                subject_poison(&s, TENSOR_V, 0, h, j, draw_below(&c->random, p.desc.d_v), bad);
            }
        }
        FOR_EACH_KERNEL(c, k) {
            uint64_t random = random_of(&p, k);
            const how drawn = how_drawn(&random);
            unsigned char *want = subject_run(c, &clean, k, &plain), *got = subject_run(c, &s, k, &drawn);
            if (want && got) same_rows(c, k, "masked keys that are numbers", &s, got, &clean, want, 0, 0, 0);
            free(want);
            free(got);
        }
        subject_destroy(&clean);
        subject_destroy(&s);
    }
}

const check_case invariance_cases[] = {
    {"same-threads", "every way to run, 1, 2, 3, 7, 64 threads", case_threads, 1},
    {"same-tunings", "numbers that cut the work, their least, their most, and drawn ones", case_tunings, 2},
    {"same-row-alone", "a row alone and among others", case_row_alone, 1},
    {"same-batch-and-groups", "a batch entry alone; heads that share against keys repeated", case_batch_and_groups, 1},
    {"same-layouts", "dense, strided, padded, odd strides", case_layouts, 1},
    {"same-offsets", "every tensor 1 to 63 bytes off", case_offsets, 1},
    {"same-decode", "prefill, chunks of random length, one token at a time", case_decode, 1},
    {"same-longer-cache", "keys beyond the length that are NaN, or not mapped", case_longer_cache, 1},
    {"same-masked-garbage", "NaN and infinities in keys that no row attends", case_masked_garbage, 2},
    {"nan-keys", "NaN in keys reaches the rows that attend them, and no other", case_nan_keys, 2},
    {"nan-values", "NaN in values reaches its channel of those rows", case_nan_values, 2},
    {0},
};
