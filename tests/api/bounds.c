/* SPDX-License-Identifier: Apache-2.0 */
/* Nothing beyond what the headers say is read or written, of any pointer of calls.c, on any kernel; numbers that are not used may
 * be any; what has no element may be null, and what has some may not; sizes that lie are refused at once. */
#define _POSIX_C_SOURCE 200112L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "../../cli/aligned.h"
#include "fence.h"
#include "hash.h"
#include "random.h"
#include "serial.h"
#include "tap.h"
#include "types/types.h"

static int failures, checks;
static char text[512];

/* What went wrong, the first few times. */
static void complain(const char *what, const call *c, const char *name, rapt_status status) {
    if (failures++ < 8)
        printf("# %s, %s: %s %s: %s (\"%s\")\n", c->api->ways[0].function, c->name, what, name, rapt_status_string(status), text);
}

static void expect(rapt_status status, rapt_status wanted, const char *what) {
    tap_ok(status == wanted, "%s: %s", what, rapt_status_string(status));
}

/* ---- Guard pages --------------------------------------------------------------------------------------------------------- */

static fence fences[MOST_POINTERS];

/* Each pointer's memory ends where a guard page begins, or begins where one ends; tensors without elements are null. */
static void lay_between_guards(bool at_end) {
    for (int i = 0; i < now.pointers; i++) {
        pointer *p = &now.at[i];
        const size_t whole = (p->bytes + p->alignment - 1) / p->alignment * p->alignment;
        fences[i] = p->bytes ? fence_create(whole, at_end ? -1 : 0, 0) : (fence){0};
        p->at = p->bytes ? fences[i].data : NULL;
    }
    place_pointers(-1);
}

static void protect_inputs(bool read_only) {
    for (int i = 0; i < now.pointers; i++)
        if (!now.at[i].written && fences[i].map) fence_protect(&fences[i], read_only);
}

static rapt_status make_call(const call *c, int which) {
    text[0] = 0;
    checks++;
    rapt_status status = c->api->make_plan ? c->api->make_plan(text, sizeof text) : RAPT_OK;
    if (status == RAPT_OK && c->api->explain) status = c->api->explain(c->api->ways[which].nth, text, sizeof text);
    return status == RAPT_OK ? c->api->ways[which].run(c->api->ways[which].nth) : status;
}

static bool is_result(const pointer *p) { return p->written && p->bytes && p->at && p->alignment != RAPT_WORKSPACE_ALIGNMENT; }

/* Both ways, which must give the same. */
static void test_guards(const call *c) {
    unsigned char *results[MOST_POINTERS] = {NULL};
    describe_call(c, c->api->ways[0].nth);
    for (int at_end = 0; at_end < 2; at_end++) {
        lay_between_guards(at_end);
        if (c->api->make_plan && c->api->make_plan(text, sizeof text) != RAPT_OK) complain("no plan", c, "", RAPT_ERR_PLAN);
        protect_inputs(true);
        rapt_status status = c->api->ways[0].run(c->api->ways[0].nth);
        protect_inputs(false);
        checks++;
        if (status != RAPT_OK) complain("refused", c, "", status);
        for (int i = 0; i < now.pointers; i++) {
            const pointer *p = &now.at[i];
            if (is_result(p) && !fence_slack_intact(&fences[i])) complain("written beside", c, p->name, status);
            if (is_result(p) && at_end && memcmp(results[i], p->at, p->bytes) != 0) complain("not the same", c, p->name, status);
            if (is_result(p) && !at_end && (results[i] = malloc(p->bytes))) memcpy(results[i], p->at, p->bytes);
            fence_destroy(&fences[i]);
        }
    }
    for (int i = 0; i < MOST_POINTERS; i++) free(results[i]);
}

/* Attention of other sizes, too: one key and channel, whole vectors and blocks, and some more. */
static void test_all_guards(void) {
    static const int64_t others[][2] = {{0, 0}, {17, 1}, {64, 16}, {129, 33}};
    for (int isa = 0; rapt_isa_name(isa); isa++) {
        if (rapt_isa_usable(rapt_isa_name(isa), NULL, 0) != RAPT_OK) continue;
        rapt_isa_force(rapt_isa_name(isa));
        failures = checks = 0;
        for (int i = 0; i < call_count; i++)
            for (int other = 0; other < 4; other++) {
                call c = calls[i];
                if (other && (c.api->ways[0].run != calls[0].api->ways[0].run || c.keys <= 1)) continue;
                if (other) c.keys = others[other][0], c.d = others[other][1];
                test_guards(&c);
            }
        tap_ok(!failures, "%s: nothing beyond any pointer is touched (%d calls between guard pages)", rapt_isa_name(isa), checks);
    }
    rapt_isa_force(NULL);
}

/* ---- Numbers that are not used ------------------------------------------------------------------------------------------- */

static uint64_t hash_results(void) {
    uint64_t h = hash_start;
    for (int i = 0; i < now.pointers; i++)
        if (is_result(&now.at[i])) h = hash_bytes(h, now.at[i].at, now.at[i].bytes);
    return h;
}

static void test_unused(const call *c, int which) {
    static const int64_t any[] = {-1, INT64_MAX, INT64_MIN};
    describe_call(c, c->api->ways[which].nth);
    unsigned char *const memory = place_anywhere();
    rapt_status status = make_call(c, which);
    const uint64_t right = hash_results();
    if (status != RAPT_OK) complain("refused", c, "", status);
    for (size_t n = 0; n < sizeof any / sizeof *any && now.unused_count; n++)
        for (int i = -1; i < now.unused_count; i++) { /* all at once; which one it was only where something is wrong */
            int64_t before[sizeof now.unused / sizeof *now.unused];
            for (int j = 0; j < now.unused_count; j++) {
                before[j] = *now.unused[j].number;
                if (i < 0 || i == j) *now.unused[j].number = any[n];
            }
            place_pointers(-1);
            status = make_call(c, which);
            bool fine = status == RAPT_OK && hash_results() == right;
            for (int j = 0; j < now.unused_count; j++) *now.unused[j].number = before[j];
            if (!fine) complain("a number that is not used", c, i < 0 ? "" : now.unused[i].name, status);
            if (fine && i < 0) break;
        }
    aligned_destroy(memory);
}

/* A tensor with elements is refused where it is null. */
static void test_nulls(const call *c, int which) {
    describe_call(c, c->api->ways[which].nth);
    unsigned char *const memory = place_anywhere();
    for (int i = 0; i < now.pointers; i++) {
        pointer *p = &now.at[i];
        const bool workspace = strcmp(p->field, "workspace") == 0;
        if (!p->bytes || (p->alignment > 1 && !workspace)) continue;
        unsigned char *const at = p->at;
        p->at = NULL;
        place_pointers(-1);
        const uint64_t before = hash_results();
        rapt_status status = make_call(c, which);
        if (status != (workspace ? RAPT_ERR_WORKSPACE : RAPT_ERR_NULL)) complain("null", c, p->name, status);
        if (hash_results() != before) complain("written though null is", c, p->name, status);
        p->at = at;
    }
    aligned_destroy(memory);
}

static void test_each_call(void (*test)(const call *c, int which), const char *what) {
    failures = checks = 0;
    for (int i = 0; i < call_count; i++)
        for (int n = 0; calls[i].api->ways[n].function; n++) test(&calls[i], n);
    tap_ok(!failures, "%s (%d calls)", what, checks);
}

/* ---- Nothing to attend to ------------------------------------------------------------------------------------------------ */

enum { FEW, MANY, FEW_INTEGERS, MANY_INTEGERS, FEW_BF16, MANY_BF16, PAGES, UNMERGED, RAGGED, KINDS };
static const char *const kinds[KINDS] = {"few queries", "many queries",         "integers", "many queries of integers",
                                         "bf16",        "many queries in bf16", "pages",    "unmerged",
                                         "ragged"};
static const char *const reasons[] = {"kv_len 0", "lengths of 0", "batch 0", "q_len 0"};

/* Scales of no kind, of tokens, of channels, of the whole tensor. */
static rapt_scales scales_of_kind(int which, int64_t heads, int64_t tokens, int64_t channels) {
    return which == 0   ? (rapt_scales){0}
           : which == 1 ? (rapt_scales){1, heads * tokens * 4, tokens * 4, 4, 0}
           : which == 2 ? (rapt_scales){1, heads * channels * 4, channels * 4, 0, 4}
                        : (rapt_scales){1, 0, 0, 0, 0};
}

/* All pointers of K, V and scales are null, or there: a status, and where it is OK, results of 0. */
static void test_nothing(int kind, int reason, int k_scales, int v_scales, bool null) {
    enum { BATCH = 2, HEADS = 2, KEYS = 3, D = 4, MOST = 40 };
    static _Alignas(64) unsigned char workspace[1 << 20];
    static float q[BATCH * HEADS * MOST * D], o[BATCH * HEADS * MOST * D], lse[BATCH * HEADS * MOST],
        rows[BATCH * HEADS * KEYS * D], scales[BATCH * HEADS * (KEYS + D)],
        states[BATCH * HEADS * MOST * 2 * RAPT_STATE_FLOATS(D)];
    static int8_t bytes[BATCH * HEADS * KEYS * D];
    const int32_t lengths[BATCH] = {0, 0}, table[BATCH] = {0, 0}, starts[BATCH + 1] = {0, 0, 0};
    const bool integers = kind == FEW_INTEGERS || kind == MANY_INTEGERS, bf16 = kind == FEW_BF16 || kind == MANY_BF16;
    const bool many = kind == MANY || kind == MANY_INTEGERS || kind == MANY_BF16;
    const int64_t keys = reason == 0 ? 0 : KEYS, queries = reason == 3 ? 0 : many ? MOST : 1;
    rapt_desc d;
    rapt_args a;
    rapt_plan plan;
    rapt_desc_init(&d), rapt_args_init(&a);
    d.batch = reason == 2 ? 0 : BATCH, d.heads = d.kv_heads = HEADS, d.q_len = queries, d.kv_len = keys, d.d_k = d.d_v = D;
    d.q = d.o = rapt_layout_bhsd(RAPT_F32, HEADS, queries, D);
    d.k = d.v = rapt_layout_bhsd(integers ? RAPT_INT8 : RAPT_F32, HEADS, keys, D);
    d.lse = rapt_layout_bhsd(RAPT_F32, HEADS, queries, 1);
    d.k_scales = scales_of_kind(k_scales, HEADS, keys, D), d.v_scales = scales_of_kind(v_scales, HEADS, keys, D);
    d.arith = integers ? RAPT_INT8_DOT : bf16 ? RAPT_BF16_DOT : RAPT_EXACT;
    if (kind == PAGES) d.page_size = KEYS, d.pages = BATCH, d.table = (rapt_layout){RAPT_I32, 4, 0, 0};
    if (kind == UNMERGED) d.unmerged = 1, d.states = rapt_layout_bhsd(RAPT_F32, HEADS, queries, (int64_t)RAPT_STATE_FLOATS(D));
    if (kind == RAGGED) d.k_starts = starts;
    size_t needed = 0;
    rapt_status status = rapt_plan_init(&plan, &d);
    if (status == RAPT_OK) status = rapt_workspace_size(&plan, 1, &needed);
    a.q = q, a.o = o, a.workspace = workspace, a.workspace_bytes = needed;
    a.lse = kind == UNMERGED ? NULL : lse, a.states = kind == UNMERGED ? states : NULL;
    a.kv_lengths = reason == 1 ? lengths : NULL, a.table = kind == PAGES ? table : NULL;
    if (!null) {
        a.k = a.v = integers ? (const void *)bytes : rows;
        a.k_scales = k_scales ? scales : NULL, a.v_scales = v_scales ? scales : NULL;
    }
    for (int i = 0; i < BATCH * HEADS * MOST; i++) lse[i] = NAN;
    if (status == RAPT_OK) status = rapt_run(&plan, &a);
    checks++;
    bool right = null ? status == RAPT_OK || status == RAPT_ERR_NULL : status == RAPT_OK;
    for (int64_t i = 0; i < d.batch * HEADS * queries && status == RAPT_OK && kind < UNMERGED; i++)
        right = right && lse[i] == -INFINITY && o[i * D] == 0.0f && o[i * D + D - 1] == 0.0f;
    if (needed > sizeof workspace || !right)
        failures++, printf("# %s, %s, scales of K %d, of V %d, %s: %s\n", kinds[kind], reasons[reason], k_scales, v_scales,
                           null ? "null" : "there", rapt_status_string(status));
}

static void test_nothings(void) {
    for (int reason = 0; reason < 4; reason++) {
        failures = checks = 0;
        for (int i = 0; i < KINDS * 4 * 4 * 2; i++) test_nothing(i / 32, reason, i / 8 % 4, i / 2 % 4, i % 2);
        tap_ok(!failures, "%s: a status, and rows of 0, with any scales, null or there (%d calls)", reasons[reason], checks);
    }
}

/* ---- Multi-head attention ------------------------------------------------------------------------------------------------ */

enum { MHA_KEYS = 1100, MHA_WIDTH = 2 };

/* One query, keys from a Y of their own, weights and a mask. */
static struct {
    rapt_desc of;
    rapt_mha_desc d;
    rapt_args rest;
    rapt_mha_args a;
    rapt_mha_plan plan;
    float x[MHA_WIDTH], y[MHA_KEYS * MHA_WIDTH], out[MHA_WIDTH], w[MHA_WIDTH * MHA_WIDTH];
    float memory[MHA_KEYS + MHA_KEYS / 4 + 1], before[MHA_KEYS + MHA_KEYS / 4 + 1]; /* weights, then the mask */
    _Alignas(64) unsigned char workspace[1 << 20];
} mha;

static rapt_status describe_mha(int64_t keys) {
    rapt_desc *of = &mha.of;
    rapt_mha_desc *d = &mha.d;
    rapt_mha_args *a = &mha.a;
    rapt_desc_init(of), rapt_mha_desc_init(d), rapt_args_init(&mha.rest), rapt_mha_args_init(a);
    of->heads = of->kv_heads = of->q_len = 1, of->d_k = of->d_v = MHA_WIDTH;
    of->mask = rapt_layout_bhsd(RAPT_BOOL, 1, 1, keys);
    d->attention = of, d->x_width = MHA_WIDTH, d->keys = keys;
    d->x = d->y = d->out = d->wq = d->wk = d->wv = d->wo = rapt_layout_bhsd(RAPT_F32, 1, 1, MHA_WIDTH);
    d->weights = rapt_layout_bhsd(RAPT_F32, 1, 1, keys);
    a->attention = &mha.rest, a->x = mha.x, a->y = mha.y, a->out = mha.out, a->wq = a->wk = a->wv = a->wo = mha.w;
    a->workspace = mha.workspace, a->workspace_bytes = sizeof mha.workspace;
    return rapt_mha_plan_init(&mha.plan, d);
}

static void test_mha(void) {
    for (int shared = 1; shared >= 0; shared--) { /* bytes of the weights' end that the mask has too */
        rapt_status status = describe_mha(MHA_KEYS);
        memset(mha.memory, 1, sizeof mha.memory), memset(mha.out, 1, sizeof mha.out);
        memcpy(mha.before, mha.memory, sizeof mha.memory);
        mha.a.weights = mha.memory, mha.rest.mask = (char *)&mha.memory[MHA_KEYS] - shared;
        rapt_status run = rapt_mha_run(&mha.plan, &mha.a), parallel = rapt_mha_run_parallel(&mha.plan, &mha.a, 2, serial, NULL);
        bool untouched = !memcmp(mha.memory, mha.before, sizeof mha.memory) && !memcmp(mha.out, mha.before, sizeof mha.out);
        tap_ok(status == RAPT_OK && run == (shared ? RAPT_ERR_OVERLAP : RAPT_OK) && parallel == run && untouched == shared,
               "multi-head attention: weights of %d keys, and a mask that %s: %s", MHA_KEYS,
               shared ? "meets the last part: nothing is written" : "lies after them", rapt_status_string(run));
    }
    rapt_status status = describe_mha(0);
    if (status == RAPT_OK) status = rapt_mha_run(&mha.plan, &mha.a);
    tap_ok(status == RAPT_OK, "multi-head attention: weights of no keys, dense: %s", rapt_status_string(status));

    /* What a cache alone can have. */
    describe_mha(2);
    mha.of.page_size = 1, mha.of.pages = RAPT_MAX_LENGTH, mha.of.table.type = RAPT_I32;
    expect(rapt_mha_plan_init(&mha.plan, &mha.d), RAPT_ERR_FEATURE, "multi-head attention without a cache, but pages");
    describe_mha(2);
    mha.of.k_scales.present = 1;
    expect(rapt_mha_plan_init(&mha.plan, &mha.d), RAPT_ERR_FEATURE, "multi-head attention without a cache, but scales of K");
    describe_mha(2);
    mha.of.v_scales.present = 1;
    expect(rapt_mha_plan_init(&mha.plan, &mha.d), RAPT_ERR_FEATURE, "multi-head attention without a cache, but scales of V");

    /* A table of positions whose product with its width would not fit. */
    const int64_t positions[] = {INT64_MAX, INT64_MIN, -1, (int64_t)RAPT_MAX_LENGTH + 1, 0, 1};
    const rapt_status wanted[] = {RAPT_ERR_SHAPE, RAPT_ERR_SHAPE, RAPT_ERR_SHAPE, RAPT_ERR_SHAPE, RAPT_ERR_TABLE, RAPT_OK};
    describe_mha(1);
    mha.d.position_table = 1, mha.d.weights.type = RAPT_NONE, mha.of.mask.type = RAPT_NONE;
    expect(rapt_mha_plan_init(&mha.plan, &mha.d), RAPT_OK, "multi-head attention with a table of positions");
    for (int i = 0; i < 6; i++) {
        snprintf(text, sizeof text, "multi-head attention: table_positions = %lld", (long long)positions[i]);
        mha.a.position_table = mha.memory, mha.a.table_positions = positions[i];
        expect(rapt_mha_run(&mha.plan, &mha.a), wanted[i], text);
    }

    /* Tokens of no entry alone, in a tensor of one: its strides may be any. */
    const int32_t starts[] = {1, 1};
    describe_mha(1);
    mha.d.y.type = mha.d.weights.type = mha.of.mask.type = RAPT_NONE, mha.of.q_starts = starts;
    mha.d.x.token_stride = mha.d.out.token_stride = INT64_MAX, mha.a.y = NULL;
    status = rapt_mha_plan_init(&mha.plan, &mha.d);
    if (status == RAPT_OK) status = rapt_mha_run(&mha.plan, &mha.a);
    expect(status, RAPT_OK, "multi-head attention: a token that belongs to no entry, any strides");
}

/* ---- Sizes that lie ------------------------------------------------------------------------------------------------------ */

static void test_states(void) {
    enum { D = 4 };
    static float memory[8 * RAPT_STATE_FLOATS(D)], o[2 * D];
    const int64_t state = (int64_t)sizeof(float) * (int64_t)RAPT_STATE_FLOATS(D);
    const struct {
        const char *what;
        int64_t chunks, token_stride, state_stride;
        rapt_status status;
    } cases[] = {{"states: one chunk", 1, state, 0, RAPT_OK},
                 {"states: chunks = INT64_MAX, state_stride = 0", INT64_MAX, state, 0, RAPT_ERR_SHAPE},
                 {"states: chunks = -1", -1, state, state, RAPT_ERR_SHAPE},
                 {"states: the most chunks, state_stride = 0", RAPT_MAX_LENGTH / RAPT_CHUNK_KEYS + 1, state, 0, RAPT_ERR_STRIDE},
                 {"states: one more than the most chunks", RAPT_MAX_LENGTH / RAPT_CHUNK_KEYS + 2, state, state, RAPT_ERR_SHAPE},
                 {"states: a stride within a state", 2, state, state - 1, RAPT_ERR_STRIDE},
                 {"states: a negative state_stride", 2, state, -state, RAPT_ERR_STRIDE},
                 {"states: a negative token_stride", 1, -state, state, RAPT_ERR_STRIDE},
                 {"states: beyond the address space", 3, state, INT64_MAX / 2 + 1, RAPT_ERR_STRIDE},
                 {"states: no chunk, any strides", 0, INT64_MIN, INT64_MAX, RAPT_OK}};
    rapt_desc d;
    rapt_args a;
    rapt_plan plan;
    rapt_desc_init(&d), rapt_args_init(&a);
    d.heads = d.kv_heads = 1, d.q_len = 2, d.kv_len = 1, d.d_k = d.d_v = D, d.unmerged = 1;
    d.q = d.k = d.v = d.o = rapt_layout_bhsd(RAPT_F32, 1, 2, D);
    d.states = rapt_layout_bhsd(RAPT_F32, 1, 2, (int64_t)RAPT_STATE_FLOATS(D));
    rapt_status status = rapt_plan_init(&plan, &d);
    tap_ok(status == RAPT_OK, "states: a plan");
    a.o = o;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const rapt_states source = {memory, 0, 0, cases[i].token_stride, cases[i].state_stride, cases[i].chunks};
        expect(rapt_merge_states_run(&plan, &a, &source, 1), cases[i].status, cases[i].what);
    }
}

static void test_sizes(void) {
    static float memory[64];
    static double doubles[4];
    const float *const none[1] = {memory};
    expect(rapt_merge(-1, 1, 1, none, none, NULL, NULL), RAPT_ERR_SHAPE, "rapt_merge: n = -1");
    expect(rapt_merge(1, -1, 1, none, none, NULL, NULL), RAPT_ERR_SHAPE, "rapt_merge: rows = -1");
    expect(rapt_merge(1, INT64_MAX, 2, none, none, NULL, NULL), RAPT_ERR_SHAPE, "rapt_merge: rows = INT64_MAX");
    expect(rapt_merge(1, 1, INT64_MAX, none, none, NULL, NULL), RAPT_ERR_SHAPE, "rapt_merge: d_v = INT64_MAX");
    expect(rapt_sinusoidal(1, RAPT_MAX_LENGTH, 2, memory), RAPT_ERR_SHAPE, "rapt_sinusoidal: first + positions above the most");
    expect(rapt_sinusoidal(INT64_MAX, INT64_MAX, 2, memory), RAPT_ERR_SHAPE, "rapt_sinusoidal: first, positions = INT64_MAX");
    expect(rapt_rope_frequencies(2.0, INT64_MAX - 1, doubles), RAPT_ERR_SHAPE, "rapt_rope_frequencies: channels = INT64_MAX - 1");
    expect(rapt_alibi_slopes(INT64_MAX, memory), RAPT_ERR_SHAPE, "rapt_alibi_slopes: heads = INT64_MAX");
    expect(rapt_quantise_weights(INT64_MAX, INT64_MAX, RAPT_F32, 4, memory, (int8_t *)memory, memory), RAPT_ERR_SHAPE,
           "rapt_quantise_weights: out, in = INT64_MAX");
    expect(rapt_quantise_weights(3, 1, RAPT_F32, INT64_MAX, memory, (int8_t *)memory, memory), RAPT_ERR_STRIDE,
           "rapt_quantise_weights: row_stride = INT64_MAX");

    rapt_kv_copy_desc copy;
    rapt_kv_copy_args copied;
    rapt_kv_copy_desc_init(&copy), rapt_kv_copy_args_init(&copied);
    copy.kv_heads = copy.tokens = copy.d_k = 1, copy.k.type = RAPT_F32, copied.k = memory;
    copied.ranges = (const rapt_kv_range *)(const void *)doubles;
    copied.count = INT64_MAX;
    rapt_status status = rapt_kv_copy_run(&copy, &copied);
    tap_ok(status == RAPT_ERR_SHAPE || status == RAPT_ERR_STRIDE, "rapt_kv_copy_run_share: count = INT64_MAX: %s",
           rapt_status_string(status));
    copied.count = -1;
    expect(rapt_kv_copy_run(&copy, &copied), RAPT_ERR_SHAPE, "rapt_kv_copy_run_share: count = -1");
}

/* ---- Rows in gaps -------------------------------------------------------------------------------------------------------- */

/* K and V of a cache, at a distance, whose rows may lie in each other's gaps: refused where two bytes are one, and only there. */
static void test_gaps(void) {
    enum { MEMORY = 4096, MIDDLE = 2048, ROUNDS = 20000 };
    static unsigned char owner[MEMORY], cache[MEMORY];
    static const rapt_kv_range range;
    int wrong = 0, beside = 0, meeting = 0;
    random_state = 1;
    for (int round = 0; round < ROUNDS; round++) {
        rapt_kv_copy_desc d;
        rapt_kv_copy_args a;
        rapt_kv_copy_desc_init(&d), rapt_kv_copy_args_init(&a);
        d.entries = 1 + below(3), d.kv_heads = 1 + below(3), d.tokens = 1 + below(4), d.d_k = 1 + below(6), d.d_v = 1 + below(6);
        /* In any order of the dimensions, each stride as large as what lies within it, or a little larger. */
        const int64_t lengths[3] = {d.entries, d.kv_heads, d.tokens}, most = d.d_k > d.d_v ? d.d_k : d.d_v;
        int64_t strides[3], span = most;
        const int first = (int)below(3), step = 1 + (int)below(2);
        for (int i = 0; i < 3; i++) {
            const int dimension = (first + i * step) % 3;
            strides[dimension] = span + below(9);
            span += (lengths[dimension] - 1) * strides[dimension];
        }
        d.k = d.v = (rapt_layout){RAPT_INT8, strides[0], strides[1], strides[2]};
        const int64_t distance = below(2 * span) - span;
        bool meet = false;
        memset(owner, 0, sizeof owner);
        for (int v = 0; v < 2; v++)
            for (int64_t n = 0; n < lengths[0] * lengths[1] * lengths[2]; n++)
                for (int64_t c = 0; c < (v ? d.d_v : d.d_k); c++) {
                    const int64_t at = MIDDLE + v * distance + n / lengths[2] / lengths[1] * strides[0] +
                                       n / lengths[2] % lengths[1] * strides[1] + n % lengths[2] * strides[2] + c;
                    meet |= v && owner[at];
                    owner[at] = 1;
                }
        a.k = cache + MIDDLE, a.v = cache + MIDDLE + distance, a.ranges = &range;
        rapt_status status = rapt_kv_copy_explain(&d, &a, text, sizeof text);
        meeting += meet;
        beside += !meet && distance < span && -distance < span;
        wrong += status != (meet ? RAPT_ERR_OVERLAP : RAPT_OK);
    }
    tap_ok(!wrong && meeting > ROUNDS / 10 && beside > ROUNDS / 10,
           "rows in each other's gaps: %d meet, %d lie between, %d wrong", meeting, beside, wrong);
}

/* ---- Scores of a V with one group --------------------------------------------------------------------------------------- */

/* Writes the weights of 40 keys for a number of queries, where V has one group of channels and, like the workspace, ends at a
 * guard page. */
static rapt_status write_weights(rapt_type type, int group, int64_t queries, float *weights) {
    enum { KEYS = 40, D = 16 };
    static float q[40 * D], k[KEYS * D], o[40 * 32];
    for (int i = 0; i < KEYS * D; i++) q[i] = k[i] = (float)(i % 7) * 0.25f;
    rapt_desc d;
    rapt_desc_init(&d);
    d.batch = d.heads = d.kv_heads = 1, d.q_len = queries, d.kv_len = KEYS, d.d_k = D, d.d_v = group;
    d.q = rapt_layout_bhsd(RAPT_F32, 1, queries, D), d.k = rapt_layout_bhsd(RAPT_F32, 1, KEYS, D);
    d.v = rapt_layout_bhsd(type, 1, KEYS, group), d.o = rapt_layout_bhsd(RAPT_F32, 1, queries, group);
    d.scores_stage = RAPT_SCORES_WEIGHTS, d.scores = rapt_layout_bhsd(RAPT_F32, 1, queries, KEYS);
    rapt_plan plan;
    size_t bytes = 0;
    rapt_status status = rapt_plan_init(&plan, &d);
    if (status == RAPT_OK) status = rapt_workspace_size(&plan, 1, &bytes);
    if (status != RAPT_OK) return status;
    fence v = fence_create((size_t)rapt_row_bytes(type, group) * KEYS, -1, 0);
    fence workspace =
        fence_create((bytes + RAPT_WORKSPACE_ALIGNMENT - 1) / RAPT_WORKSPACE_ALIGNMENT * RAPT_WORKSPACE_ALIGNMENT, -1, 0);
    memset(v.data, 0, v.bytes);
    rapt_args a;
    rapt_args_init(&a);
    a.q = q, a.k = k, a.v = v.data, a.o = o, a.scores = weights, a.workspace = workspace.data, a.workspace_bytes = bytes;
    status = rapt_run(&plan, &a);
    fence_destroy(&v), fence_destroy(&workspace);
    return status;
}

static void test_scores_of_one_group(void) {
    static float want[40 * 40], got[40 * 40];
    for (int64_t queries = 1; queries <= 40; queries += 39) { /* keys in lanes, and queries */
        bool good = write_weights(RAPT_F32, 1, queries, want) == RAPT_OK;
#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    memset(got, 0, sizeof got);                                                                                                  \
    good &= write_weights(name, group, queries, got) == RAPT_OK && memcmp(got, want, sizeof got) == 0;
        RAPT_KV_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
        tap_ok(good, "weights of %d queries, where V has one group of any type: those with V of f32", (int)queries);
    }
}

int main(void) {
    test_all_guards();
    test_each_call(test_unused, "numbers that are not used may be any");
    test_each_call(test_nulls, "a tensor with elements may not be null");
    forget_call();
    test_nothings();
    test_mha();
    test_states();
    test_sizes();
    test_gaps();
    test_scores_of_one_group();
    return tap_done();
}
