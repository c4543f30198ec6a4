/* SPDX-License-Identifier: Apache-2.0 */
/* Cases about sequences that are attended to in parts: states left by several plans and merged have the bits of one run over all
 * keys, also where a prefix is shared; results merged by their lse are right. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const how plain = {WAY_RUN, 1, 1, 1, 0};

/* ---- States ------------------------------------------------------------------------------------------------------------- */

typedef struct part {
    fence memory;
    rapt_states states;
} part;

/* Memory for the states of a plan, in one of the ways to lay them out, as desc then says. */
static part part_create(rapt_desc *d, uint64_t *random) {
    const int64_t chunks = (d->kv_len + RAPT_CHUNK_KEYS - 1) / RAPT_CHUNK_KEYS, batch = d->q_starts ? 1 : d->batch;
    const int64_t gap = draw_below(random, 3) ? 0 : 64, state = 4 * (int64_t)RAPT_STATE_FLOATS(d->d_v) + gap;
    const bool chunks_outside = draw_below(random, 2);
    part p = {.states = {.chunks = chunks}};
    rapt_states *s = &p.states;
    s->token_stride = chunks_outside ? state : state * chunks;
    s->head_stride = s->token_stride * d->q_len + gap;
    s->batch_stride = s->head_stride * d->heads + gap;
    s->state_stride = chunks_outside ? s->batch_stride * batch : state;
    const bool any = batch && d->q_len && chunks;
    const int64_t span = (batch - 1) * s->batch_stride + (d->heads - 1) * s->head_stride + (d->q_len - 1) * s->token_stride +
                         (chunks - 1) * s->state_stride + state - gap;
    p.memory = fence_create(any ? (size_t)span : 0, -1, 0);
    s->at = (const float *)(const void *)p.memory.data;
    d->unmerged = 1;
    d->states = (rapt_layout){RAPT_F32, s->batch_stride, s->head_stride, s->token_stride};
    d->state_stride = s->state_stride;
    return p;
}

static float *state_of(const part *p, int64_t b, int64_t h, int64_t token, int64_t chunk) {
    return (float *)(void *)(p->memory.data + b * p->states.batch_stride + h * p->states.head_stride +
                             token * p->states.token_stride + chunk * p->states.state_stride);
}

/* A chunk none of whose keys a row attends to leaves the empty state; a state whose m or l is a canary was not written. */
static void check_states(check *c, kernel *k, const subject *s, const part *p) {
    const rapt_desc *d = &s->desc;
    char text[SUBJECT_TEXT];
    for (int64_t b = 0; b < d->batch; b++) {
        for (int64_t row = 0; row < d->heads * reference_queries(d, b); row++) {
            const int64_t h = row / reference_queries(d, b), i = row % reference_queries(d, b);
            for (int64_t chunk = 0; chunk < p->states.chunks; chunk++) {
                const float *const state = state_of(p, reference_query_batch(d, b), h, reference_query_token(d, b, i), chunk);
                bool attended = false, empty = state[0] == -INFINITY && state[1] == 0;
                for (int64_t n = 0; n < RAPT_CHUNK_KEYS; n++)
                    attended |= reference_attends(d, &s->args, b, h, i, d->kv_first + chunk * RAPT_CHUNK_KEYS + n);
                for (int64_t channel = 0; channel < d->d_v; channel++) empty &= state[16 + channel] == 0;
                k->compared++;
                unsigned char canaries[8];
                memset(canaries, FENCE_CANARY, sizeof canaries);
                if ((attended || empty) && memcmp(state, canaries, sizeof canaries) != 0) continue;
                subject_text(s, text, sizeof text);
                check_fail(c, k, "state of entry %d, head %d, query %d, chunk %d is not %s: m %g, l %g; %s", (int)b, (int)h,
                           (int)i, (int)chunk, attended ? "written" : "empty", (double)state[0], (double)state[1], text);
                return;
            }
        }
    }
}

/* Keys [from, from + keys) of a subject, which are those of a cache in one piece or in pages that divide a chunk. */
static subject keys_of(const subject *s, int64_t from, int64_t keys) {
    subject keys_only = *s;
    rapt_desc *d = &keys_only.desc;
    rapt_args *a = &keys_only.args;
    d->kv_first = from;
    d->kv_len = keys;
    if (d->kv_total == 0) d->kv_total = s->desc.kv_len;
    if (d->page_size) {
        a->table += from / d->page_size;
    } else {
        a->k = (const unsigned char *)a->k + from * d->k.token_stride;
        a->v = (const unsigned char *)a->v + from * d->v.token_stride;
        if (a->k_scales) a->k_scales = (const void *)((const unsigned char *)a->k_scales + from * d->k_scales.token_stride);
        if (a->v_scales) a->v_scales = (const void *)((const unsigned char *)a->v_scales + from * d->v_scales.token_stride);
    }
    a->o = NULL;
    a->lse = NULL;
    return keys_only;
}

/* Runs a subject, whose keys are a part, and keeps the states. */
static bool leave_states(check *c, subject *s, kernel *k, uint64_t *random, part *p, rapt_plan *plan) {
    *p = part_create(&s->desc, random);
    s->args.states = (float *)(void *)p->memory.data;
    const how drawn = how_drawn(random);
    const bool done = subject_start(c, s, k, &drawn, plan);
    if (done) check_states(c, k, s, p);
    fence_protect(&p->memory, true);
    return done;
}

/* Merges the states of all parts to the result of the whole. plan: that of the last part. */
static unsigned char *merge(check *c, subject *s, kernel *k, const rapt_plan *plan, const rapt_states *sources, int64_t n,
                            uint64_t *random) {
    const int64_t nth = 1 + draw_below(random, 7);
    int64_t *const order = shuffled(nth, random);
    rapt_status status = RAPT_OK;
    rapt_args args = s->args;
    args.workspace = NULL;
    args.workspace_bytes = 0;
    for (int64_t i = 0; i < nth && status == RAPT_OK; i++)
        status = rapt_merge_states_run_share(plan, &args, sources, n, order[i], nth);
    free(order);
    unsigned char *const dense = subject_finish(c, s, k);
    if (status == RAPT_OK) return dense;
    check_fail(c, k, "rapt_merge_states_run_share: %s", rapt_status_string(status));
    free(dense);
    return NULL;
}

/* ---- Keys in parts ------------------------------------------------------------------------------------------------------ */

enum { MOST_PARTS = 5 };

/* Cut where chunks begin, at places that are drawn, so that some parts may be empty. */
static void in_parts(check *c, subject *s, kernel *k, const unsigned char *whole, int64_t parts, uint64_t *random) {
    const int64_t chunks = (s->desc.kv_len + RAPT_CHUNK_KEYS - 1) / RAPT_CHUNK_KEYS;
    int64_t cuts[MOST_PARTS + 1] = {0};
    for (int64_t n = 1; n < parts; n++) { /* ascending */
        int64_t cut = RAPT_CHUNK_KEYS * draw_below(random, chunks + 1), at = n;
        for (; at > 1 && cuts[at - 1] > cut; at--) cuts[at] = cuts[at - 1];
        cuts[at] = cut;
    }
    cuts[parts] = s->desc.kv_len;
    part all[MOST_PARTS] = {{{0}, {0}}};
    rapt_states sources[MOST_PARTS];
    rapt_plan plan;
    bool done = true;
    for (int64_t n = 0; n < parts && done; n++) {
        const int64_t from = smaller(cuts[n], s->desc.kv_len), end = smaller(cuts[n + 1], s->desc.kv_len);
        subject keys = keys_of(s, from / RAPT_CHUNK_KEYS * RAPT_CHUNK_KEYS, end - from);
        done = leave_states(c, &keys, k, random, &all[n], &plan);
        sources[n] = all[n].states;
    }
    unsigned char *got = done ? merge(c, s, k, &plan, sources, parts, random) : NULL;
    if (got) same_rows(c, k, "all keys at once", s, got, s, whole, 0, 0, 0);
    free(got);
    for (int64_t n = 0; n < parts; n++) fence_destroy(&all[n].memory);
}

void problem_in_parts(problem *p) {
    problem_of_all_keys(p);
    p->ragged_keys = p->ring = false; /* nothing to cut at the same place for all entries */
    p->table = TABLE_MATRIX;
    if (p->desc.scores_stage == RAPT_SCORES_WEIGHTS) p->desc.scores_stage = RAPT_SCORES_LOGITS; /* each part writes its columns */
    if (p->desc.block_mask.type && p->desc.block_mask_keys == 192) p->desc.block_mask_keys = 64;
}

void same_in_parts(check *c, const problem *p) {
    static const int64_t parts[] = {1, 2, 3, 5};
    if (!problem_wanted(c, p)) return;
    subject s = subject_create(c, p);
    FOR_EACH_KERNEL(c, k) {
        uint64_t random = random_of(p, k);
        unsigned char *whole = subject_run(c, &s, k, &plain);
        for (int64_t each = 0; each < LENGTH_OF(parts) && whole; each++) in_parts(c, &s, k, whole, parts[each], &random);
        free(whole);
    }
    subject_destroy(&s);
}

static void case_states(check *c) {
    static const int64_t page_sizes[] = {1, 16, 64, 512};
    for (int n = 0; n < 20; n++) {
        problem p =
            problem_of(c, 1 + n % 3, 4, 2, n % 2 ? UP_TO(3) : UP_TO(30), n < 14 ? UP_TO(2600) : UP_TO(512), UP_TO(24), UP_TO(24));
        problem_draw_types_of_caches(&p, &c->random);
        problem_draw_data(&p, &c->random);
        problem_draw_features(&p, &c->random);
        problem_in_parts(&p);
        if (p.desc.page_size) p.desc.page_size = DRAW_OF(&c->random, page_sizes);
        same_in_parts(c, &p);
    }
}

/* ---- A shared prefix ---------------------------------------------------------------------------------------------------- */

/* All entries begin with the same keys: the queries of all attend to them as one entry, to the rest each by itself. */
static void shared_prefix(check *c, subject *s, kernel *k, const unsigned char *whole, int64_t prefix, uint64_t *random) {
    part all[2];
    rapt_plan plan;
    subject first = keys_of(s, 0, prefix), rest = keys_of(s, prefix, s->desc.kv_len - prefix);
    rapt_desc *d = &first.desc;
    d->q_len *= d->batch;
    d->batch = 1;
    d->causal = RAPT_CAUSAL_NONE; /* every query comes after the prefix */
    d->kv_total = 0;
    d->o = rapt_layout_bshd(d->o.type, d->heads, d->q_len, d->d_v); /* not used, but must be one */
    d->lse.type = 0;
    first.args.kv_lengths = NULL;
    bool done = leave_states(c, &first, k, random, &all[0], &plan);
    done = leave_states(c, &rest, k, random, &all[1], &plan) && done;
    rapt_states sources[2] = {all[0].states, all[1].states};
    sources[0].batch_stride = s->desc.q_len * sources[0].token_stride;
    unsigned char *got = done ? merge(c, s, k, &plan, sources, 2, random) : NULL;
    if (got) same_rows(c, k, "a prefix of its own for each entry", s, got, s, whole, 0, 0, 0);
    free(got);
    for (int n = 0; n < 2; n++) fence_destroy(&all[n].memory);
}

static void case_shared_prefix(check *c) {
    for (int n = 0; n < 10; n++) {
        const int64_t prefix = RAPT_CHUNK_KEYS * (1 + n % 2), queries = n % 3 ? 1 : 1 + draw_below(&c->random, 6);
        problem p =
            problem_of(c, 2 + n % 3, 4, 1 + n % 2, queries, prefix + 10 + draw_below(&c->random, 700), UP_TO(24), UP_TO(24));
        problem_draw_types(&p, &c->random);
        p.q = PLACE_BSHD; /* so that the tokens of all entries are at one distance */
        p.desc.causal = n % 2 ? RAPT_CAUSAL_BOTTOM_RIGHT : RAPT_CAUSAL_NONE;
        if (n % 4 == 1) p.desc.softcap = 5;
        if (n % 4 == 2) p.desc.sinks.type = RAPT_F32;
        if (n % 4 == 3) p.k_grain = GRAIN_CHANNEL, p.v_grain = GRAIN_CHANNEL_OF_ALL_HEADS;
        p.lengths = LENGTHS_GIVEN;
        for (int64_t b = 0; b < p.desc.batch; b++)
            p.given[b] = (int32_t)(prefix + queries + draw_below(&c->random, p.desc.kv_len - prefix - queries + 1));
        if (!problem_wanted(c, &p)) continue;
        subject s = subject_create(c, &p);
        fence_protect(&s.k, false);
        fence_protect(&s.v, false);
        for (int64_t b = 1; b < s.desc.batch; b++) {
            for (int64_t h = 0; h < s.desc.kv_heads; h++) {
                memcpy(reference_at(s.args.k, &s.desc.k, b, h, 0), reference_at(s.args.k, &s.desc.k, 0, h, 0),
                       (size_t)(prefix * s.desc.k.token_stride));
                memcpy(reference_at(s.args.v, &s.desc.v, b, h, 0), reference_at(s.args.v, &s.desc.v, 0, h, 0),
                       (size_t)(prefix * s.desc.v.token_stride));
            }
        }
        fence_protect(&s.k, true);
        fence_protect(&s.v, true);
        FOR_EACH_KERNEL(c, k) {
            uint64_t random = random_of(&p, k);
            unsigned char *whole = subject_run(c, &s, k, &plain);
            if (whole) shared_prefix(c, &s, k, whole, prefix, &random);
            free(whole);
        }
        subject_destroy(&s);
    }
}

/* ---- Results merged by their lse ---------------------------------------------------------------------------------------- */

enum { MOST_SOURCES = 6 };

typedef struct results {
    int64_t n, rows, d_v;
    fence o[MOST_SOURCES], lse[MOST_SOURCES];
    const float *o_at[MOST_SOURCES], *lse_at[MOST_SOURCES];
} results;

/* Sources of lse -inf have an o that is not looked at. */
static results results_create(int64_t n, int64_t rows, int64_t d_v, uint64_t *random) {
    results r = {.n = n, .rows = rows, .d_v = d_v};
    for (int64_t s = 0; s < n; s++) {
        r.o[s] = fence_create((size_t)(rows * d_v) * 4, (int)draw_below(random, 2) - 1, 0);
        r.lse[s] = fence_create((size_t)rows * 4, (int)draw_below(random, 2) - 1, 0);
        float *const o = (float *)(void *)r.o[s].data, *const lse = (float *)(void *)r.lse[s].data;
        fence_fill(&r.o[s], 0xff);
        for (int64_t row = 0; row < rows; row++) {
            const bool empty = draw_below(random, 4) == 0 || row % 11 == 10;
            lse[row] = empty ? -INFINITY : draw_normal(random) * (row % 3 ? 3 : 60) + (row % 5 ? 0 : 1000);
            for (int64_t channel = 0; channel < d_v && !empty; channel++) o[row * d_v + channel] = draw_normal(random);
        }
        fence_protect(&r.o[s], true);
        fence_protect(&r.lse[s], true);
        r.o_at[s] = o;
        r.lse_at[s] = lse;
    }
    return r;
}

static void results_destroy(results *r) {
    for (int64_t s = 0; s < r->n; s++) {
        fence_destroy(&r->o[s]);
        fence_destroy(&r->lse[s]);
    }
}

/* As docs/numerics.md derives the bound of a row, with a source for a key: its weight is a product of at most n exponentials, and
 * a sum has at most three roundings for each. */
static bool merged_right(check *c, kernel *k, const results *r, int64_t row, const float *o, float lse) {
    const double u = 0x1p-24, steps = 6 * (double)r->n + 2, gamma = steps * u / (1 - steps * u);
    double max = -INFINITY, sum = 0, low = 0, high = 0;
    for (int64_t s = 0; s < r->n; s++) max = fmax(max, r->lse_at[s][row]);
    for (int64_t s = 0; s < r->n; s++) {
        const double t = (double)r->lse_at[s][row] - max, delta = -4 * u * t + 4 * u * (1 + (double)r->n);
        if (r->lse_at[s][row] == -INFINITY) continue;
        sum += exp(t);
        low += exp(t - delta);
        high += exp(t + delta);
    }
    const double want_lse = sum == 0 ? -INFINITY : max + log(sum);
    const double lse_bound = log(high / low) + gamma + 4 * u * log(sum) + 2 * u * (fabs(max) + fabs(want_lse));
    k->compared += r->d_v + 1;
    if (sum == 0 ? lse != -INFINITY : !(fabs(lse - want_lse) <= lse_bound)) {
        check_fail(c, k, "rapt_merge: lse[%d] = %a, reference %a, bound %g", (int)row, (double)lse, want_lse, lse_bound);
        return false;
    }
    for (int64_t channel = 0; channel < r->d_v; channel++) {
        double want = 0, bound = 0;
        for (int64_t s = 0; s < r->n; s++)
            if (r->lse_at[s][row] != -INFINITY) want += exp(r->lse_at[s][row] - max) * r->o_at[s][row * r->d_v + channel];
        if (sum > 0) want /= sum;
        for (int64_t s = 0; s < r->n; s++) {
            if (r->lse_at[s][row] == -INFINITY) continue;
            const double t = (double)r->lse_at[s][row] - max, delta = -4 * u * t + 4 * u * (1 + (double)r->n);
            const double value = r->o_at[s][row * r->d_v + channel];
            bound += ((exp(t + delta) - exp(t)) * fabs(value - want) + (gamma * exp(t + delta) + 0x1p-126) * fabs(value)) / low;
        }
        const double got = o[channel];
        if (sum == 0 ? got == 0 : fabs(got - want) <= bound + 0x1p-149 * steps) continue;
        check_fail(c, k, "rapt_merge: o[%d, %d] = %a, reference %a, bound %g", (int)row, (int)channel, got, want, bound);
        return false;
    }
    return true;
}

/* One call, into outputs between guard pages; both may be left out. */
static bool merge_results(check *c, kernel *k, const results *r, int64_t n, fence *o, fence *lse) {
    check_step(c, k);
    k->runs++;
    const rapt_status status = rapt_merge(n, r->rows, r->d_v, r->o_at, r->lse_at, o ? (float *)(void *)o->data : NULL,
                                          lse ? (float *)(void *)lse->data : NULL);
    if (status != RAPT_OK) check_fail(c, k, "rapt_merge: %s", rapt_status_string(status));
    else if ((o && !fence_slack_intact(o)) || (lse && !fence_slack_intact(lse))) check_fail(c, k, "rapt_merge wrote beyond");
    else return true;
    return false;
}

static void same_bits(check *c, kernel *k, const char *what, const fence *got, const fence *want) {
    k->compared += (int64_t)want->bytes / 4;
    if (memcmp(got->data, want->data, want->bytes) != 0) check_fail(c, k, "rapt_merge: %s: other bits", what);
}

static void merge_kernel(check *c, kernel *k, const results *r, fence *class_o, fence *class_lse) {
    const size_t o_bytes = (size_t)(r->rows * r->d_v) * 4, lse_bytes = (size_t)r->rows * 4;
    fence o = fence_create(o_bytes, -1, 0), lse = fence_create(lse_bytes, 0, 0);
    fence o2 = fence_create(o_bytes, 0, 0), lse2 = fence_create(lse_bytes, -1, 0);
    const float *const values = (const float *)(const void *)o.data, *const sums = (const float *)(const void *)lse.data;
    if (merge_results(c, k, r, r->n, &o, &lse)) {
        for (int64_t row = 0; row < r->rows && merged_right(c, k, r, row, values + row * r->d_v, sums[row]);) row++;
        if (class_o->bytes == 0) { /* the first kernel of its class */
            *class_o = fence_create(o_bytes, 0, 0);
            *class_lse = fence_create(lse_bytes, 0, 0);
            memcpy(class_o->data, o.data, o_bytes);
            memcpy(class_lse->data, lse.data, lse_bytes);
        }
        same_bits(c, k, "another kernel of the class", &o, class_o);
        same_bits(c, k, "another kernel of the class", &lse, class_lse);
    }
    if (merge_results(c, k, r, r->n, &o2, NULL)) same_bits(c, k, "without lse", &o2, &o);
    if (merge_results(c, k, r, r->n, NULL, &lse2)) same_bits(c, k, "without o", &lse2, &lse);

    results in_place = *r; /* the outputs are the last source's */
    memcpy(o2.data, r->o_at[r->n - 1], o_bytes);
    memcpy(lse2.data, r->lse_at[r->n - 1], lse_bytes);
    in_place.o_at[r->n - 1] = (const float *)(const void *)o2.data;
    in_place.lse_at[r->n - 1] = (const float *)(const void *)lse2.data;
    if (merge_results(c, k, &in_place, r->n, &o2, &lse2)) {
        same_bits(c, k, "in place", &o2, &o);
        same_bits(c, k, "in place", &lse2, &lse);
    }

    /* One source comes out as it is (but for the sign of zeros), an empty one changes nothing. */
    if (merge_results(c, k, r, 1, &o, &lse)) {
        for (int64_t row = 0; row < r->rows; row++) {
            const float from = r->lse_at[0][row];
            bool same = sums[row] == from;
            for (int64_t e = row * r->d_v; e < (row + 1) * r->d_v; e++)
                same &= values[e] == (from == -INFINITY ? 0 : r->o_at[0][e]);
            k->compared += r->d_v + 1;
            if (!same) check_fail(c, k, "rapt_merge of one source changes row %d", (int)row);
        }
        fence none = fence_create(lse_bytes, 0, 0);
        for (int64_t row = 0; row < r->rows; row++) ((float *)(void *)none.data)[row] = -INFINITY;
        results with_empty = *r;
        for (int before = 0; before < 2; before++) {
            with_empty.o_at[before] = r->o_at[0];
            with_empty.lse_at[before] = r->lse_at[0];
            with_empty.o_at[!before] = r->o_at[r->n - 1];
            with_empty.lse_at[!before] = (const float *)(const void *)none.data;
            if (merge_results(c, k, &with_empty, 2, &o2, &lse2)) {
                same_bits(c, k, before ? "after an empty source" : "before an empty source", &o2, &o);
                same_bits(c, k, before ? "after an empty source" : "before an empty source", &lse2, &lse);
            }
        }
        fence_destroy(&none);
    }
    fence_destroy(&o);
    fence_destroy(&lse);
    fence_destroy(&o2);
    fence_destroy(&lse2);
}

void same_merged(check *c, int64_t sources, int64_t rows, int64_t d_v, uint64_t *random) {
    results r = results_create(sources, rows, d_v, random);
    fence o[CLASSES] = {{0}}, lse[CLASSES] = {{0}};
    FOR_EACH_KERNEL(c, k) {
        const int rounding = strcmp(k->rounding, class_names[FUSED]) == 0;
        if (rapt_isa_force(k->name) != RAPT_OK) check_fail(c, k, "cannot be forced");
        merge_kernel(c, k, &r, &o[rounding], &lse[rounding]);
    }
    rapt_isa_force(NULL);
    for (int rounding = 0; rounding < CLASSES; rounding++) {
        fence_destroy(&o[rounding]);
        fence_destroy(&lse[rounding]);
    }
    results_destroy(&r);
}

static void case_merge(check *c) {
    for (int n = 0; n < 24; n++) {
        uint64_t random = draw(&c->random);
        const int64_t sources = 2 + draw_below(&random, MOST_SOURCES - 1), rows = n == 0 ? 0 : 1 + draw_below(&random, 50);
        const int64_t d_v = 1 + draw_below(&random, n % 2 ? 20 : 150);
        same_merged(c, sources, rows, d_v, &random);
    }
}

/* Outputs of parts of the keys, each with its lse, merged: right, though not the same bits. */
static void merged_parts(check *c, subject *s, kernel *k, const reference *want) {
    const rapt_desc *d = &s->desc;
    const int64_t rows = reference_rows(d), cut = RAPT_CHUNK_KEYS;
    unsigned char *dense[2] = {NULL, NULL};
    for (int n = 0; n < 2; n++) {
        subject keys = keys_of(s, n ? cut : 0, n ? d->kv_len - cut : cut);
        keys.args.o = s->args.o;
        keys.args.lse = s->args.lse;
        dense[n] = subject_run(c, &keys, k, &plain);
    }
    float *const o = allocate((size_t)(rows * d->d_v) * 4), *const lse = allocate((size_t)rows * 4);
    if (dense[0] && dense[1]) {
        const float *const os[2] = {(const float *)(const void *)dense[0], (const float *)(const void *)dense[1]};
        const float *const lses[2] = {os[0] + rows * d->d_v, os[1] + rows * d->d_v};
        const rapt_status status = rapt_merge(2, rows, d->d_v, os, lses, o, lse);
        if (status != RAPT_OK) check_fail(c, k, "rapt_merge: %s", rapt_status_string(status));
        for (int64_t e = 0; e < rows * d->d_v && status == RAPT_OK; e++) {
            if (fabs(o[e] - want->o[e]) <= 4 * want->o_bound[e] + 0x1p-20 * want->o_size[e]) continue;
            check_fail(c, k, "parts merged: o[%d] = %a, reference %a", (int)e, (double)o[e], want->o[e]);
            break;
        }
    }
    free(o);
    free(lse);
    free(dense[0]);
    free(dense[1]);
}

static void case_merge_parts(check *c) {
    for (int n = 0; n < 6; n++) {
        problem p = problem_of(c, 2, 4, 2, n % 2 ? 2 : 20, 600 + draw_below(&c->random, 500), UP_TO(24), UP_TO(24));
        p.desc.causal = (rapt_causal)(n % 3);
        if (n % 3 == 0) p.lengths = LENGTHS_DRAWN;
        if (n == 4) problem_integer(&p);
        if (n == 5) problem_integer_groups(&p, &c->random);
        if (!problem_wanted(c, &p)) continue;
        subject s = subject_create(c, &p);
        reference want = reference_of(&s);
        FOR_EACH_KERNEL(c, k) merged_parts(c, &s, k, &want);
        reference_free(&want);
        subject_destroy(&s);
    }
}

const check_case part_cases[] = {
    {"same-states", "states of 1, 2, 3, 5 parts merged, and all keys at once", case_states, 2},
    {"same-shared-prefix", "a prefix attended once for all entries", case_shared_prefix, 2},
    {"merge", "results merged by their lse, against double; in place, empty, one", case_merge, 1},
    {"merge-parts", "attention to parts of the keys, merged by lse", case_merge_parts, 2},
    {0},
};
