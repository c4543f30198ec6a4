/* SPDX-License-Identifier: Apache-2.0 */
/* What users of other attention implementations complained of, each a case: the table at the end says of whom and where.
 * Complaints about speed are not here; bench/ answers them. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const how plain = {WAY_RUN, 1, 1, 1, 0};

/* ---- Masked keys and rows ----------------------------------------------------------------------------------------------- */

/* NaN in keys and values that a mask, a bias or the diagonal hides. */
static void nan_in_masked_keys(check *c) {
    for (int n = 0; n < 16; n++) {
        problem p = problem_of(c, 2, 4, 2, n % 2 ? 2 : 30, UP_TO(n < 4 ? 700 : 150), UP_TO(32), UP_TO(32));
        problem_draw_types(&p, &c->random);
        const int same = n % 4 ? SAME_HEADS | SAME_QUERIES : 0;
        if (n % 4 < 2) p.desc.mask.type = n % 2 ? RAPT_BIT : RAPT_BOOL, p.mask = PATTERN_HALF, p.same[EXTRA_MASK] = same;
        if (n % 4 == 2) p.desc.bias.type = RAPT_F16, p.bias = PATTERN_HALF, p.same[EXTRA_BIAS] = same;
        if (n % 4 == 3) p.desc.causal = RAPT_CAUSAL_TOP_LEFT;
        if (n % 3 == 0) p.desc.softcap = 5;
        problem with_nan = p;
        with_nan.nan_masked = true;
        same_as_variants(c, &p, &with_nan, 1);
    }
}

/* Rows without keys give exactly 0 and an lse of -inf, rows with keys numbers. */
static void check_rows(check *c, kernel *k, const subject *s, const unsigned char *dense) {
    const rapt_desc *d = &s->desc;
    const int64_t rows = reference_rows(d), bytes = reference_type_bytes(d->o.type);
    for (int64_t b = 0; b < d->batch; b++) {
        for (int64_t n = 0; n < d->heads * reference_queries(d, b); n++) {
            const int64_t h = n / reference_queries(d, b), i = n % reference_queries(d, b), row = reference_row(d, b, h, i);
            bool any = false, fits = true;
            for (int64_t j = 0; j < d->kv_first + d->kv_len && !any; j++) any = reference_attends(d, &s->args, b, h, i, j);
            for (int64_t channel = 0; channel < d->d_v; channel++) {
                const float o = reference_load(d->o.type, dense + (row * d->d_v + channel) * bytes);
                fits &= any ? isfinite(o) : o == 0;
            }
            const float lse = reference_load(RAPT_F32, dense + rows * d->d_v * bytes + row * 4);
            fits &= any ? isfinite(lse) : lse == -INFINITY;
            k->compared += d->d_v + 1;
            if (fits) continue;
            char text[SUBJECT_TEXT];
            subject_text(s, text, sizeof text);
            check_fail(c, k, "row %d, which attends %s, is not %s; %s", (int)row, any ? "keys" : "no key",
                       any ? "finite" : "0 with lse -inf", text);
            return;
        }
    }
}

static void run_and_check_rows(check *c, subject *s) {
    FOR_EACH_KERNEL(c, k) {
        unsigned char *dense = subject_run(c, s, k, &plain);
        if (dense) check_rows(c, k, s, dense);
        free(dense);
    }
}

static void masked_rows(check *c) {
    for (int n = 0; n < 12; n++) {
        problem p = problem_of(c, 2, 4, 2, n % 2 ? 3 : 40, UP_TO(n < 4 ? 700 : 150), UP_TO(32), UP_TO(32));
        p.desc.mask.type = n % 3 == 0 ? RAPT_BOOL : n % 3 == 1 ? RAPT_BIT : 0;
        p.desc.bias.type = n % 3 == 2 ? RAPT_BF16 : 0;
        p.mask = p.bias = PATTERN_ROWS;
        if (!problem_wanted(c, &p)) continue;
        subject s = subject_create(c, &p);
        run_and_check_rows(c, &s);
        examine_subject(c, &s, p.data_seed);
        subject_destroy(&s);
    }
}

/* Writes a mask or a bias of a subject by a rule. */
typedef bool keeps(int64_t i, int64_t j, int64_t arg);

static void set_mask(subject *s, keeps *rule, int64_t arg) {
    const rapt_desc *d = &s->desc;
    const extra e = d->mask.type ? EXTRA_MASK : EXTRA_BIAS;
    fence_protect(&s->extra[e], false);
    for (int64_t row = 0; row < d->batch * d->heads * d->q_len; row++) {
        const int64_t b = row / d->q_len / d->heads, h = row / d->q_len % d->heads, i = row % d->q_len;
        for (int64_t j = 0; j < d->kv_len; j++) {
            const bool kept = rule(i, j, arg);
            if (e == EXTRA_BIAS)
                reference_store(d->bias.type,
                                (unsigned char *)reference_at(s->args.bias, &d->bias, b, h, i) +
                                    j * reference_type_bytes(d->bias.type),
                                kept ? 0 : -INFINITY);
            else ((unsigned char *)reference_at(s->args.mask, &d->mask, b, h, i))[j] = kept;
        }
    }
    fence_protect(&s->extra[e], true);
}

static bool in_band(int64_t i, int64_t j, int64_t width) { return j <= i && j > i - width; }

/* A long sequence whose mask ignores what is old: whole blocks of -inf before the first key. */
static void masked_blocks(check *c) {
    for (int n = 0; n < 4; n++) {
        problem p = problem_of(c, 1, 1, 1, 640, 640, 4, 4);
        if (n % 2) p.desc.mask.type = RAPT_BOOL;
        else p.desc.bias.type = RAPT_F32;
        p.rows = n < 2 ? PLACE_BHSD : PLACE_ODD;
        if (!problem_wanted(c, &p)) continue;
        subject s = subject_create(c, &p);
        set_mask(&s, in_band, 10);
        run_and_check_rows(c, &s);
        examine_subject(c, &s, p.data_seed);
        subject_destroy(&s);
    }
}

/* Two sequences, whose tokens take turns in one cache, each with a window: the keys of a query are not next to each other. */
static bool in_own_window(int64_t i, int64_t j, int64_t past) {
    const int64_t at = past + i;
    return j <= at && j % 2 == at % 2 && j > at - 2 * 32;
}

static void cells_in_window(check *c) {
    for (int n = 0; n < 4; n++) {
        const int64_t past = 100 * n, queries = n % 2 ? 3 : 40;
        problem p = problem_of(c, 1, 4, 2, queries, past + queries, 24, 24);
        p.desc.mask.type = n % 2 ? RAPT_BOOL : 0;
        p.desc.bias.type = n % 2 ? 0 : RAPT_F16;
        if (!problem_wanted(c, &p)) continue;
        subject s = subject_create(c, &p);
        set_mask(&s, in_own_window, past);
        run_and_check_rows(c, &s);
        examine_subject(c, &s, p.data_seed);
        subject_destroy(&s);
    }
}

/* Whether a row of an f32 output is the mean of all values of head h. */
static bool is_mean(const subject *s, const unsigned char *row, int64_t b, int64_t h) {
    const rapt_desc *d = &s->desc;
    bool all = true;
    for (int64_t channel = 0; channel < d->d_v; channel++) {
        double sum = 0;
        for (int64_t j = 0; j < d->kv_len; j++)
            sum += reference_element(d->v.type, reference_at(s->args.v, &d->v, b, h, j), channel);
        all &= fabs(reference_load(RAPT_F32, row + channel * 4) - sum / (double)d->kv_len) <
               (d->arith == RAPT_BF16_DOT ? 0.02 : 1e-4); /* of values up to 4, in bf16 rounded by up to 1/128 */
    }
    return all;
}

/* The least finite number for a mask: where another key is attended, the same bits as -inf. Where none is, it is an ordinary
 * number, which swallows the scores: the mean of V, while -inf gives 0 (masked_rows). */
static void finite_minimum(check *c) {
    for (int n = 0; n < 12; n++) {
        problem p = problem_of(c, 2, 4, 2, n % 2 ? 3 : 40, 1 + draw_below(&c->random, n < 4 ? 700 : 150), UP_TO(32), UP_TO(32));
        p.desc.bias.type = n % 3 == 0 ? RAPT_F32 : n % 3 == 1 ? RAPT_F16 : RAPT_BF16;
        p.bias = n % 4 > 1 ? PATTERN_ROWS : n % 2 ? PATTERN_HALF : PATTERN_BLOCKS;
        problem finite = p;
        finite.bias_finite = true;
        if (!problem_wanted(c, &p)) continue;
        subject s = subject_create(c, &p), t = subject_create(c, &finite);
        FOR_EACH_KERNEL(c, k) {
            unsigned char *want = subject_run(c, &s, k, &plain), *got = subject_run(c, &t, k, &plain);
            const int64_t row_bytes = p.desc.d_v * 4;
            for (int64_t row = 0; row < reference_rows(&s.desc) && want && got; row++) {
                const int64_t b = row / p.desc.q_len / p.desc.heads, h = row / p.desc.q_len % p.desc.heads,
                              i = row % p.desc.q_len;
                bool any = false;
                for (int64_t j = 0; j < p.desc.kv_len && !any; j++) any = reference_attends(&s.desc, &s.args, b, h, i, j);
                k->compared += p.desc.d_v;
                const unsigned char *const at = got + row * row_bytes;
                if (any && memcmp(at, want + row * row_bytes, (size_t)row_bytes) == 0) continue;
                if (!any && (p.desc.bias.type == RAPT_F16 || is_mean(&t, at, b, h / 2))) continue;
                char text[SUBJECT_TEXT];
                subject_text(&t, text, sizeof text);
                check_fail(c, k, "row %d with finite minima %s; %s", (int)row,
                           any ? "differs from -inf" : "alone is not the mean of V", text);
                break;
            }
            free(want);
            free(got);
        }
        subject_destroy(&s);
        subject_destroy(&t);
    }
}

/* ---- Alignment ---------------------------------------------------------------------------------------------------------- */

static bool before(int64_t i, int64_t j, int64_t offset) { return j <= i + offset; }

/* Causal masks of either alignment, and the same written out as a mask, with fewer and with more queries than keys. */
static void causal_alignment(check *c) {
    static const int64_t sizes[][2] = {{1, 7}, {3, 100}, {40, 130}, {70, 70}, {40, 7}, {100, 65}, {3, 700}};
    for (int64_t n = 0; n < 2 * LENGTH_OF(sizes); n++) {
        problem p = problem_of(c, 1, 4, 2, sizes[n / 2][0], sizes[n / 2][1], UP_TO(24), UP_TO(24)), masked = p;
        p.desc.causal = n % 2 ? RAPT_CAUSAL_TOP_LEFT : RAPT_CAUSAL_BOTTOM_RIGHT;
        masked.desc.mask.type = RAPT_BOOL;
        if (!problem_wanted(c, &p)) continue;
        subject s = subject_create(c, &p), t = subject_create(c, &masked);
        set_mask(&t, before, n % 2 ? 0 : p.desc.kv_len - p.desc.q_len);
        FOR_EACH_KERNEL(c, k) {
            unsigned char *want = subject_run(c, &s, k, &plain), *got = subject_run(c, &t, k, &plain);
            if (want && got) same_rows(c, k, "causal", &t, got, &s, want, 0, 0, 0);
            free(want);
            free(got);
        }
        examine_subject(c, &s, p.data_seed);
        subject_destroy(&s);
        subject_destroy(&t);
    }
}

/* ---- Softcap, tails, large numbers -------------------------------------------------------------------------------------- */

/* A last block that is not full, and softcap, without any mask: what fills the block up has no weight. */
static void softcap_padding(check *c) {
    static const int64_t keys[] = {1, 63, 65, 127, 129, 513};
    for (int64_t n = 0; n < 2 * LENGTH_OF(keys); n++) {
        problem p = problem_of(c, 1, 4, 2, n % 2 ? 1 : 40, keys[n / 2], UP_TO(24), UP_TO(24)), longer = p;
        p.desc.softcap = longer.desc.softcap = 20;
        longer.desc.kv_len += 200;
        longer.lengths = LENGTHS_GIVEN;
        longer.given[0] = (int32_t)keys[n / 2];
        same_as_variants(c, &p, &longer, 1);
        examine(c, &p);
    }
}

/* As Gemma 2: softcap, a mask of f16 as ggml has it, and prompts of every length. */
static void odd_prompt_lengths(check *c) {
    for (int64_t tokens = 1; tokens < 42; tokens++) {
        problem p = problem_of(c, 1, 4, 2, tokens, tokens + 3, 16, 16);
        p.desc.bias.type = RAPT_F16;
        p.same[EXTRA_BIAS] = SAME_BATCH | SAME_HEADS;
        p.desc.softcap = 50;
        if (!problem_wanted(c, &p)) continue;
        subject s = subject_create(c, &p);
        set_mask(&s, before, 3);
        run_and_check_rows(c, &s);
        examine_subject(c, &s, p.data_seed);
        subject_destroy(&s);
    }
}

/* Logits so large that exp of them overflows, with and without softcap, stay numbers. */
static void huge_logits(check *c) {
    static const float scales[] = {0x1p20f, 0x1p40f, 0x1p60f};
    for (int64_t n = 0; n < 4 * LENGTH_OF(scales); n++) {
        problem p = problem_of(c, 1, 4, 2, n % 2 ? 1 : 30, 1 + draw_below(&c->random, 300), UP_TO(32), UP_TO(32));
        p.q_factor = scales[n / 4];
        p.k_factor = 0x1p20f;
        if (n / 2 % 2) p.desc.softcap = 30;
        if (!problem_wanted(c, &p)) continue;
        subject s = subject_create(c, &p);
        run_and_check_rows(c, &s);
        examine_subject(c, &s, p.data_seed);
        subject_destroy(&s);
    }
}

/* NaN in a query makes its rows NaN, unless they attend nothing; not 0. */
static void nan_query(check *c) {
    for (int n = 0; n < 12; n++) {
        problem p = problem_of(c, 1, 4, 2, n % 2 ? 2 : 30, UP_TO(150), UP_TO(32), UP_TO(32));
        p.desc.mask.type = n % 3 == 0 ? RAPT_BOOL : 0;
        p.mask = PATTERN_ROWS;
        p.desc.softcap = n % 3 == 1 ? 5 : 0;
        if (!problem_wanted(c, &p)) continue;
        subject s = subject_create(c, &p);
        const int64_t h = draw_below(&c->random, 4), i = draw_below(&c->random, p.desc.q_len),
                      row = reference_row(&s.desc, 0, h, i);
        bool any = false;
        for (int64_t j = 0; j < p.desc.kv_len; j++) any |= reference_attends(&s.desc, &s.args, 0, h, i, j);
        fence_protect(&s.q, false);
        reference_store(RAPT_F32, reference_at(s.args.q, &s.desc.q, 0, h, i), NAN);
        fence_protect(&s.q, true);
        FOR_EACH_KERNEL(c, k) {
            unsigned char *dense = subject_run(c, &s, k, &plain);
            for (int64_t e = 0; e < reference_rows(&s.desc) * p.desc.d_v && dense; e++) {
                const bool nan = isnan(reference_load(RAPT_F32, dense + e * 4));
                k->compared++;
                if (nan == (any && e / p.desc.d_v == row)) continue;
                check_fail(c, k, "NaN in query %d of head %d: o[row %d] is %sNaN", (int)i, (int)h, (int)(e / p.desc.d_v),
                           nan ? "" : "not ");
                break;
            }
            free(dense);
        }
        subject_destroy(&s);
    }
}

/* ---- Shapes ------------------------------------------------------------------------------------------------------------- */

static void head_dims(check *c) {
    static const int64_t dims[] = {80, 112, 512, 72, 40, 96, 13, 256};
    for (int64_t n = 0; n < 2 * LENGTH_OF(dims); n++) {
        problem p = problem_of(c, 2, 4, 2, n % 2 ? 1 : 20, UP_TO(200), dims[n / 2], dims[n / 2]);
        problem_types(&p, RAPT_BF16, RAPT_BF16, RAPT_BF16, RAPT_BF16);
        problem_paged(&p, 16);
        p.desc.causal = RAPT_CAUSAL_BOTTOM_RIGHT;
        p.desc.softcap = n % 4 < 2 ? 50 : 0;
        examine(c, &p);
    }
}

/* 576/512, V within K, all heads on one. */
static void latent_attention(check *c) {
    for (int n = 0; n < 4; n++) {
        problem p = problem_of(c, 1, 16, 1, n % 2 ? 1 : 7, UP_TO(150), 576, 512);
        problem_types(&p, RAPT_BF16, RAPT_BF16, RAPT_BF16, RAPT_BF16);
        p.desc.scale = 0.0721688f;
        if (n > 1) problem_paged(&p, 64);
        if (!problem_wanted(c, &p)) continue;
        subject s = subject_create(c, &p);
        s.args.v = s.args.k;
        s.desc.v = s.desc.k;
        examine_subject(c, &s, p.data_seed);
        subject_destroy(&s);
    }
}

/* The lse of every row, of decode in pages too. */
static void lse_of_pages(check *c) {
    for (int n = 0; n < 8; n++) {
        problem p = problem_of(c, 4, 8, 2, n % 2 ? 1 : 5, UP_TO(n < 2 ? 1100 : 200), 64, 64);
        problem_types(&p, RAPT_BF16, RAPT_BF16, RAPT_BF16, RAPT_BF16);
        problem_paged(&p, 16);
        p.table = (n / 2) % 3;
        p.lengths = LENGTHS_DRAWN;
        p.lse = true;
        examine(c, &p);
    }
}

/* ---- Threads, batches, memory, machines --------------------------------------------------------------------------------- */

static void many_threads(check *c) {
    static const int64_t counts[] = {16, 17, 32, 100};
    for (int n = 0; n < 3; n++) {
        problem p = problem_of(c, 1 + n, 4, 2, n ? 1 : 50, n ? 1300 : 200, 32, 32);
        p.desc.causal = RAPT_CAUSAL_BOTTOM_RIGHT;
        if (!problem_wanted(c, &p)) continue;
        subject s = subject_create(c, &p);
        FOR_EACH_KERNEL(c, k) {
            unsigned char *want = subject_run(c, &s, k, &plain);
            for (int64_t t = 0; t < LENGTH_OF(counts) && want; t++) {
                for (int w = 0; w < 2; w++) {
                    const how h = {w ? WAY_PHASES : WAY_SERIAL, counts[t], counts[t], p.data_seed, 0};
                    unsigned char *got = subject_run(c, &s, k, &h);
                    if (got) same_rows(c, k, "one thread", &s, got, &s, want, 0, 0, 0);
                    free(got);
                }
            }
            free(want);
        }
        subject_destroy(&s);
    }
}

/* The same request in batches of 1, 2, 3, 8, with others of other lengths, in pages. */
static void batch_invariance(check *c) {
    static const int64_t batches[] = {2, 3, 8};
    for (int64_t n = 0; n < 2 * LENGTH_OF(batches); n++) {
        problem p = problem_of(c, batches[n / 2], 4, 1, n % 2 ? 1 : 9, UP_TO(700), 32, 32);
        problem_types(&p, RAPT_BF16, RAPT_BF16, RAPT_BF16, RAPT_BF16);
        p.desc.causal = RAPT_CAUSAL_BOTTOM_RIGHT;
        p.lengths = LENGTHS_DRAWN;
        p.ragged_queries = n % 2 == 0;
        problem_paged(&p, 16);
        if (!problem_wanted(c, &p)) continue;
        subject s = subject_create(c, &p);
        FOR_EACH_KERNEL(c, k) {
            unsigned char *all = subject_run(c, &s, k, &plain);
            for (int64_t b = 0; b < s.desc.batch && all; b++) {
                rapt_desc desc = s.desc;
                desc.batch = 1;
                desc.q_len = reference_queries(&s.desc, b);
                subject entry = subject_view(&s, desc, b, 0, 0, ALL_LENGTHS);
                uint64_t random = hash_text(p.data_seed, k->name);
                const how drawn = how_drawn(&random);
                unsigned char *got = subject_run(c, &entry, k, &drawn);
                if (got) same_rows(c, k, "the batch", &entry, got, &s, all, b, 0, 0);
                free(got);
                subject_destroy(&entry);
            }
            free(all);
        }
        subject_destroy(&s);
    }
}

/* Whatever the problem has, the workspace grows with neither length more than in proportion to it, and never like their product.
 */
static void quadratic_memory(check *c) {
    enum { KINDS = 8 };
    FOR_EACH_KERNEL(c, k) {
        for (int kind = 0; kind < KINDS; kind++) {
            size_t bytes[2] = {0, 0};
            for (int n = 0; n < 2; n++) {
                const int64_t tokens = n ? 1 << 14 : 1 << 10; /* the square fits into an address space of 32 bits, too */
                rapt_desc d;
                rapt_desc_init(&d);
                d.batch = 1;
                d.heads = 8;
                d.kv_heads = 2;
                d.q_len = d.kv_len = tokens;
                d.d_k = d.d_v = kind == 1 ? 72 : 128;
                d.q = d.o = rapt_layout_bshd(RAPT_BF16, d.heads, tokens, d.d_k);
                d.k = d.v = rapt_layout_bshd(RAPT_BF16, d.kv_heads, tokens, d.d_k);
                d.isa = k->name;
                d.threads = 4;
                if (kind == 2) d.mask = (rapt_layout){RAPT_BOOL, 0, 0, tokens};
                if (kind == 3) d.mask = (rapt_layout){RAPT_BIT, 0, 0, tokens / 8};
                if (kind == 4) d.bias = (rapt_layout){RAPT_F16, 0, 0, 2 * tokens};
                if (kind == 5) d.softcap = 50;
                if (kind == 6) d.alibi = RAPT_ALIBI_DISTANCE, d.slopes = (rapt_layout){RAPT_F32, 0, 4, 0};
                if (kind == 7)
                    d.block_mask = (rapt_layout){RAPT_BOOL, 0, 0, tokens / 64}, d.block_mask_queries = d.block_mask_keys = 64;
                rapt_plan plan;
                rapt_status status = rapt_plan_init(&plan, &d);
                if (status == RAPT_OK) status = rapt_workspace_size(&plan, 4, &bytes[n]);
                if (status != RAPT_OK) check_fail(c, k, "kind %d, %d tokens: %s", kind, (int)tokens, rapt_status_string(status));
            }
            k->compared++;
            if (bytes[1] > 16 * bytes[0] + 65536)
                check_fail(c, k, "kind %d: workspace of %zu and %zu bytes", kind, bytes[0], bytes[1]);
        }
    }
}

/* A kernel whose instructions this CPU lacks is refused by name, and never chosen. */
static void missing_instructions(check *c) {
    const char *now = NULL;
    if (rapt_isa_current(&now) == RAPT_OK && rapt_isa_usable(now, NULL, 0) != RAPT_OK) check_fail(c, NULL, "%s was chosen", now);
    problem p = problem_of(c, 1, 1, 1, 1, 3, 4, 4);
    subject s = subject_create(c, &p);
    for (kernel *k = c->kernels; k < c->kernels + c->kernel_count; k++) {
        rapt_desc d = s.desc;
        rapt_plan plan;
        d.isa = k->name;
        const rapt_status status = rapt_plan_init(&plan, &d);
        k->compared++;
        if (status != k->usable) check_fail(c, k, "a plan gives \"%s\"", rapt_status_string(status));
    }
    subject_destroy(&s);
}

const check_case complaint_cases[] = {
    {"complaint-nan-in-masked-kv", "pytorch 101967, onnxruntime 28904: NaN in masked values leaks", nan_in_masked_keys, 2},
    {"complaint-masked-rows", "pytorch 103963, 103749: rows without keys are NaN", masked_rows, 2},
    {"complaint-masked-blocks", "pytorch 127055: NaN where a mask hides the first blocks", masked_blocks, 1},
    {"complaint-finite-minimum", "onnxruntime 28904, pytorch 110213: masks of finite minima", finite_minimum, 2},
    {"complaint-cells-in-window", "ik_llama.cpp 2186: a window over two sequences loses keys", cells_in_window, 1},
    {"complaint-causal-alignment", "onnxruntime 29020: which keys causal means", causal_alignment, 2},
    {"complaint-softcap-padding", "llama.cpp 29034: softcap gives padding a weight", softcap_padding, 2},
    {"complaint-odd-prompt-lengths", "ik_llama.cpp 34: lengths that are no multiple of 8", odd_prompt_lengths, 4},
    {"complaint-huge-logits", "pytorch 121558, vllm 56578: NaN for huge logits, softcap too", huge_logits, 2},
    {"complaint-nan-query", "pytorch 141128: NaN in, zeros out", nan_query, 2},
    {"complaint-head-dims", "vllm 39065, 31968, flash-attention 28: 80, 112, 512, any", head_dims, 2},
    {"complaint-latent-attention", "llama.cpp 12227: 576/512 with V in K", latent_attention, 1},
    {"complaint-lse", "vllm 29193, 30763: no lse", lse_of_pages, 2},
    {"complaint-many-threads", "vllm 32651: more than 16 threads", many_threads, 1},
    {"complaint-batch-invariance", "llama.cpp 28108, flash-attention 1897: other bits in a batch", batch_invariance, 2},
    {"complaint-quadratic-memory", "transformers 46960, mlx 3885: silently all scores in memory", quadratic_memory, 1},
    {"complaint-missing-instructions", "vllm 18660: SIGILL without AVX-512", missing_instructions, 1},
    {0},
};
