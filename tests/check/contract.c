/* SPDX-License-Identifier: Apache-2.0 */
/* Cases about the contract itself: every error of rapt.h is provoked, and nothing is written; names; the golden hashes. */
#include "harness.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Refusals ----------------------------------------------------------------------------------------------------------- */

typedef struct table {
    check *c;
    kernel *k;
    subject s;
    rapt_desc desc; /* good ones, and a plan of them */
    rapt_args args;
    rapt_plan plan;
    rapt_plan_info info;
    fence workspace;
} table;

static void expect(table *t, const char *call, const char *change, rapt_status got, rapt_status want) {
    t->k->compared++;
    if (got != want)
        check_fail(t->c, t->k, "%s with %s: \"%s\", not \"%s\"", call, change, rapt_status_string(got), rapt_status_string(want));
    if (fence_intact(&t->s.o) && fence_intact(&t->s.lse)) return;
    if (want != RAPT_OK) check_fail(t->c, t->k, "%s with %s was refused, but an output was written", call, change);
    fence_fill(&t->s.o, FENCE_CANARY);
    fence_fill(&t->s.lse, FENCE_CANARY);
}

static void expect_plan(table *t, const char *change, const rapt_desc *desc, rapt_status want) {
    rapt_plan plan, before;
    memset(&plan, FENCE_CANARY, sizeof plan);
    before = plan;
    const rapt_status status = rapt_plan_init(&plan, desc);
    expect(t, "rapt_plan_init", change, status, want);
    if (status != RAPT_OK && memcmp(&plan, &before, sizeof plan) != 0)
        check_fail(t->c, t->k, "rapt_plan_init with %s wrote a plan", change);
}

static void serial(void *pool, int64_t n, rapt_body body, void *arg) {
    (void)pool;
    for (int64_t i = 0; i < n; i++) body(arg, i);
}

static void no_wait(void *arg) { (void)arg; }

static void expect_run(table *t, const char *change, const rapt_args *args, rapt_status want) {
    expect(t, "rapt_run", change, rapt_run(&t->plan, args), want);
    expect(t, "rapt_run_parallel", change, rapt_run_parallel(&t->plan, args, 1, serial, NULL), want);
    expect(t, "rapt_run_share", change, rapt_run_share(&t->plan, args, 0, 1, no_wait, NULL), want);
    expect(t, "rapt_run_phase", change, rapt_run_phase(&t->plan, args, 0, 0, 1), want);
    expect(t, "rapt_run_task", change, rapt_run_task(&t->plan, args, 0, 0, 0), want);
}

#define PLAN(want, change)                                                                                                       \
    do {                                                                                                                         \
        rapt_desc d = t->desc;                                                                                                   \
        change;                                                                                                                  \
        expect_plan(t, #change, &d, want);                                                                                       \
    } while (0)

#define RUN(want, change)                                                                                                        \
    do {                                                                                                                         \
        rapt_args a = t->args;                                                                                                   \
        change;                                                                                                                  \
        expect_run(t, #change, &a, want);                                                                                        \
    } while (0)

#define CALL(want, call) expect(t, "a call", #call, call, want)

static void plan_errors(table *t) {
    PLAN(RAPT_OK, (void)d);
    CALL(RAPT_ERR_NULL, rapt_plan_init(NULL, &t->desc));
    CALL(RAPT_ERR_NULL, rapt_plan_init(&(rapt_plan){{0}}, NULL));

    PLAN(RAPT_ERR_STRUCT, d.size = 0);
    PLAN(RAPT_ERR_STRUCT, d.size = sizeof d - 1);
    struct {
        rapt_desc desc;
        unsigned char tail[24];
    } newer;
    memset(&newer, 0, sizeof newer);
    newer.desc = t->desc;
    newer.desc.size = sizeof newer;
    expect_plan(t, "a newer struct whose tail is zero", &newer.desc, RAPT_OK);
    newer.tail[23] = 1;
    expect_plan(t, "a newer struct whose tail is not zero", &newer.desc, RAPT_ERR_STRUCT);

    static const int64_t bad[] = {-1, INT64_MIN, (int64_t)RAPT_MAX_LENGTH + 1, INT64_MAX};
    for (int64_t n = 0; n < LENGTH_OF(bad); n++) {
        PLAN(RAPT_ERR_SHAPE, d.batch = bad[n]);
        PLAN(RAPT_ERR_SHAPE, d.heads = bad[n]);
        PLAN(RAPT_ERR_SHAPE, d.kv_heads = bad[n]);
        PLAN(RAPT_ERR_SHAPE, d.q_len = bad[n]);
        PLAN(RAPT_ERR_SHAPE, d.kv_len = bad[n]);
        PLAN(RAPT_ERR_SHAPE, d.d_k = bad[n]);
        PLAN(RAPT_ERR_SHAPE, d.d_v = bad[n]);
        PLAN(RAPT_ERR_RANGE, d.threads = bad[n]);
    }
    PLAN(RAPT_ERR_SHAPE, d.heads = 0);
    PLAN(RAPT_ERR_SHAPE, d.kv_heads = 0);
    PLAN(RAPT_ERR_SHAPE, d.d_k = 0);
    PLAN(RAPT_ERR_SHAPE, d.d_v = 0);
    PLAN(RAPT_ERR_SHAPE, d.d_k = RAPT_MAX_HEAD_DIM + 1);
    PLAN(RAPT_ERR_SHAPE, d.d_v = RAPT_MAX_HEAD_DIM + 1);
    PLAN(RAPT_ERR_RANGE, d.threads = 0);
    PLAN(RAPT_ERR_HEADS, d.heads = 5);
    PLAN(RAPT_ERR_HEADS, d.kv_heads = 3);
    PLAN(RAPT_ERR_HEADS, d.kv_heads = 8);

    static const rapt_type types[] = {(rapt_type)0, RAPT_BOOL, (rapt_type)-1, (rapt_type)INT_MAX};
    for (int64_t n = 0; n < LENGTH_OF(types); n++) {
        PLAN(RAPT_ERR_TYPE, d.q.type = types[n]);
        PLAN(RAPT_ERR_TYPE, d.k.type = types[n]);
        PLAN(RAPT_ERR_TYPE, d.v.type = types[n]);
        PLAN(RAPT_ERR_TYPE, d.o.type = types[n]);
        if (n) PLAN(RAPT_ERR_TYPE, d.lse.type = types[n]);
    }
    PLAN(RAPT_ERR_TYPE, d.lse.type = RAPT_F16);

    static const int64_t strides[] = {-1, INT64_MIN, INT64_MAX, INT64_MAX - 1};
    for (int64_t n = 0; n < LENGTH_OF(strides); n++) {
        PLAN(RAPT_ERR_STRIDE, d.q.batch_stride = strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.q.head_stride = strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.q.token_stride = strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.k.batch_stride = strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.k.token_stride = strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.v.head_stride = strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.v.token_stride = strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.o.batch_stride = strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.o.token_stride = strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.lse.head_stride = strides[n]);
    }
    PLAN(RAPT_ERR_STRIDE, d.q.head_stride = INT64_MAX / 2);
    PLAN(RAPT_ERR_STRIDE, d.k.token_stride = INT64_MAX / 2);
    PLAN(RAPT_ERR_STRIDE, d.o.token_stride = 0);
    PLAN(RAPT_ERR_STRIDE, d.o.head_stride = 0);
    PLAN(RAPT_ERR_STRIDE, d.o.batch_stride = 0);
    PLAN(RAPT_ERR_STRIDE, d.o.token_stride -= 1);
    PLAN(RAPT_ERR_STRIDE, d.o.head_stride -= 1);
    PLAN(RAPT_ERR_STRIDE, d.o.batch_stride -= 1);
    PLAN(RAPT_ERR_STRIDE, d.lse.token_stride = 2);
    PLAN(RAPT_ERR_STRIDE, d.lse.head_stride = 4);
    PLAN(RAPT_OK, d.q.batch_stride = d.k.head_stride = d.v.token_stride = 0);
    PLAN(RAPT_OK, d.batch = 1; d.o.batch_stride = 0);

    PLAN(RAPT_ERR_SCALE, d.scale = NAN);
    PLAN(RAPT_ERR_SCALE, d.scale = INFINITY);
    PLAN(RAPT_ERR_SCALE, d.scale = -INFINITY);
    PLAN(RAPT_ERR_MASK, d.causal = (rapt_causal)3);
    PLAN(RAPT_ERR_MASK, d.causal = (rapt_causal)-1);
    PLAN(RAPT_ERR_MASK, d.window_left = -2);
    PLAN(RAPT_ERR_MASK, d.window_right = -2);
    PLAN(RAPT_ERR_MASK, d.window_left = INT64_MIN);
    PLAN(RAPT_OK, d.window_left = d.window_right = INT64_MAX);
    PLAN(RAPT_ERR_ISA_UNKNOWN, d.isa = "no such kernel");
    PLAN(RAPT_ERR_ISA_UNKNOWN, d.isa = "");
    for (kernel *k = t->c->kernels; k < t->c->kernels + t->c->kernel_count; k++) PLAN(k->usable, d.isa = k->name);
}

static void run_errors(table *t) {
    rapt_plan_info info = {.size = sizeof info};
    size_t bytes = 12345;
    CALL(RAPT_ERR_NULL, rapt_plan_query(NULL, &info));
    CALL(RAPT_ERR_NULL, rapt_plan_query(&t->plan, NULL));
    info.size = 8;
    CALL(RAPT_ERR_STRUCT, rapt_plan_query(&t->plan, &info));
    CALL(RAPT_ERR_NULL, rapt_workspace_size(NULL, 1, &bytes));
    CALL(RAPT_ERR_NULL, rapt_workspace_size(&t->plan, 1, NULL));
    CALL(RAPT_ERR_RANGE, rapt_workspace_size(&t->plan, 0, &bytes));
    CALL(RAPT_ERR_RANGE, rapt_workspace_size(&t->plan, -1, &bytes));
    if (t->info.thread_bytes > 2) CALL(RAPT_ERR_SHAPE, rapt_workspace_size(&t->plan, INT64_MAX, &bytes));
    if (bytes != 12345) check_fail(t->c, t->k, "rapt_workspace_size was refused, but wrote");

    CALL(RAPT_ERR_NULL, rapt_run(NULL, &t->args));
    CALL(RAPT_ERR_NULL, rapt_run(&t->plan, NULL));
    CALL(RAPT_ERR_NULL, rapt_run_task(&t->plan, NULL, 0, 0, 0));
    CALL(RAPT_ERR_NULL, rapt_run_parallel(&t->plan, &t->args, 1, NULL, NULL));
    static const rapt_plan none;
    CALL(RAPT_ERR_PLAN, rapt_run(&none, &t->args));
    CALL(RAPT_ERR_PLAN, rapt_run_task(&none, &t->args, 0, 0, 0));
    CALL(RAPT_ERR_PLAN, rapt_workspace_size(&none, 1, &bytes));
    info.size = sizeof info;
    CALL(RAPT_ERR_PLAN, rapt_plan_query(&none, &info));

    RUN(RAPT_ERR_NULL, a.q = NULL);
    RUN(RAPT_ERR_NULL, a.k = NULL);
    RUN(RAPT_ERR_NULL, a.v = NULL);
    RUN(RAPT_ERR_NULL, a.o = NULL);
    RUN(RAPT_ERR_NULL, a.lse = NULL);
    RUN(RAPT_ERR_STRUCT, a.size = 0);
    RUN(RAPT_ERR_STRUCT, a.size = sizeof a - 1);
    struct {
        rapt_args args;
        unsigned char tail[24];
    } newer;
    memset(&newer, 0, sizeof newer);
    newer.args = t->args;
    newer.args.size = sizeof newer;
    newer.tail[0] = 1;
    expect_run(t, "a newer struct whose tail is not zero", &newer.args, RAPT_ERR_STRUCT);
    newer.tail[0] = 0;
    expect_run(t, "a newer struct whose tail is zero", &newer.args, RAPT_OK);

    RUN(RAPT_ERR_WORKSPACE, a.workspace = NULL);
    RUN(RAPT_ERR_WORKSPACE, a.workspace_bytes = 0);
    RUN(RAPT_ERR_WORKSPACE, a.workspace_bytes--);
    RUN(RAPT_ERR_ALIGNMENT, a.workspace = (char *)a.workspace + 4; a.workspace_bytes += 4);
    RUN(RAPT_ERR_ALIGNMENT, a.workspace = (char *)a.workspace + 32; a.workspace_bytes += 32);

    static const int32_t lengths[][2] = {{-1, -1}, {INT32_MIN, INT32_MIN}, {601, 601}, {INT32_MAX, INT32_MAX}};
    for (int64_t n = 0; n < LENGTH_OF(lengths); n++) RUN(RAPT_ERR_KV_LENGTH, a.kv_lengths = lengths[n]);

    /* Inputs may lie on each other; an output on nothing. One byte is enough. */
    char *const q = (char *)t->args.q, *const o = t->args.o, *const lse = (void *)t->args.lse;
    const size_t q_bytes = t->s.q.bytes, o_bytes = t->s.o.bytes, lse_bytes = t->s.lse.bytes;
    RUN(RAPT_ERR_OVERLAP, a.o = q);
    RUN(RAPT_ERR_OVERLAP, a.o = q + q_bytes - 1);
    RUN(RAPT_ERR_OVERLAP, a.o = q - o_bytes + 1);
    RUN(RAPT_ERR_OVERLAP, a.o = (char *)a.k + 100);
    RUN(RAPT_ERR_OVERLAP, a.o = (char *)a.v + 100);
    RUN(RAPT_ERR_OVERLAP, a.o = lse + lse_bytes - 1);
    RUN(RAPT_ERR_OVERLAP, a.lse = (void *)(o + o_bytes - 4));
    RUN(RAPT_ERR_OVERLAP, a.lse = (void *)(q + 4));
    RUN(RAPT_ERR_OVERLAP, a.o = (char *)a.workspace + a.workspace_bytes - 1);
    RUN(RAPT_ERR_OVERLAP, a.lse = a.workspace);
    RUN(RAPT_OK, a.v = a.k);
    RUN(RAPT_ERR_STRIDE, a.o = (void *)(UINTPTR_MAX - 8));
    RUN(RAPT_ERR_STRIDE, a.q = (void *)(UINTPTR_MAX - 8));

    CALL(RAPT_ERR_RANGE, rapt_run_parallel(&t->plan, &t->args, 0, serial, NULL));
    CALL(RAPT_ERR_RANGE, rapt_run_parallel(&t->plan, &t->args, -1, serial, NULL));
    CALL(RAPT_ERR_RANGE, rapt_run_share(&t->plan, &t->args, 1, 1, no_wait, NULL));
    CALL(RAPT_ERR_RANGE, rapt_run_share(&t->plan, &t->args, -1, 1, no_wait, NULL));
    CALL(RAPT_ERR_RANGE, rapt_run_share(&t->plan, &t->args, 0, 0, no_wait, NULL));
    CALL(RAPT_ERR_RANGE, rapt_run_phase(&t->plan, &t->args, -1, 0, 1));
    CALL(RAPT_ERR_RANGE, rapt_run_phase(&t->plan, &t->args, t->info.phases, 0, 1));
    CALL(RAPT_ERR_RANGE, rapt_run_phase(&t->plan, &t->args, 0, 1, 1));
    CALL(RAPT_ERR_RANGE, rapt_run_phase(&t->plan, &t->args, 0, 0, 0));
    CALL(RAPT_ERR_RANGE, rapt_run_task(&t->plan, &t->args, t->info.phases, 0, 0));
    CALL(RAPT_ERR_RANGE, rapt_run_task(&t->plan, &t->args, 0, -1, 0));
    CALL(RAPT_ERR_RANGE, rapt_run_task(&t->plan, &t->args, 0, t->info.tasks[0], 0));
    CALL(RAPT_ERR_RANGE, rapt_run_task(&t->plan, &t->args, 0, 0, -1));
    if (t->info.thread_bytes) CALL(RAPT_ERR_WORKSPACE, rapt_run_parallel(&t->plan, &t->args, 2, serial, NULL));
    RUN(RAPT_OK, (void)a);
}

static void case_errors(check *c) {
    FOR_EACH_KERNEL(c, k) {
        check_step(c, k);
        problem p = problem_of(c, 2, 4, 2, 3, 600, 9, 7);
        p.lengths = LENGTHS_GIVEN;
        p.given[0] = 600;
        p.given[1] = 77;
        p.offset = -1;
        table t = {.c = c, .k = k, .s = subject_create(c, &p), .info = {.size = sizeof t.info}};
        t.desc = t.s.desc;
        t.desc.isa = k->name;
        size_t bytes = 0;
        if (rapt_plan_init(&t.plan, &t.desc) != RAPT_OK || rapt_plan_query(&t.plan, &t.info) != RAPT_OK ||
            rapt_workspace_size(&t.plan, 1, &bytes) != RAPT_OK) {
            check_fail(c, k, "no plan for a good problem");
        } else {
            t.workspace = fence_create((bytes + 127) / 64 * 64, 0, 0);
            t.args = t.s.args;
            t.args.workspace = t.workspace.data;
            t.args.workspace_bytes = bytes;
            k->runs++;
            plan_errors(&t);
            run_errors(&t);
            fence_destroy(&t.workspace);
        }
        subject_destroy(&t.s);
    }
}

/* Nothing to do is no error, and needs no pointers. */
static void case_empty(check *c) {
    static const int64_t sizes[][2] = {{0, 5}, {5, 0}, {0, 0}}; /* batch, q_len */
    FOR_EACH_KERNEL(c, k) {
        for (int64_t n = 0; n < LENGTH_OF(sizes); n++) {
            rapt_desc d;
            rapt_args a;
            rapt_plan plan;
            size_t bytes;
            rapt_desc_init(&d);
            rapt_args_init(&a);
            d.isa = k->name;
            d.batch = sizes[n][0];
            d.q_len = sizes[n][1];
            d.heads = d.kv_heads = d.d_k = d.d_v = 1;
            d.q = d.k = d.v = d.o = d.lse = rapt_layout_bhsd(RAPT_F32, 1, 5, 1);
            rapt_status status = rapt_plan_init(&plan, &d);
            if (status == RAPT_OK) status = rapt_workspace_size(&plan, 1, &bytes);
            if (status != RAPT_OK) {
                check_fail(c, k, "batch %d, q_len %d: %s", (int)d.batch, (int)d.q_len, rapt_status_string(status));
                continue;
            }
            fence workspace = fence_create((bytes + 63) / 64 * 64, 0, 0);
            a.workspace = workspace.data;
            a.workspace_bytes = bytes;
            status = rapt_run(&plan, &a);
            if (status != RAPT_OK)
                check_fail(c, k, "batch %d, q_len %d: %s", (int)d.batch, (int)d.q_len, rapt_status_string(status));
            fence_destroy(&workspace);
            k->runs++;
            k->compared++;
        }
    }
}

/* ---- Workspace ---------------------------------------------------------------------------------------------------------- */

static void case_workspace(check *c) {
    for (int n = 0; n < 24; n++) {
        problem p = problem_of(c, UP_TO(2), 4, 2, n % 2 ? 1 : 30, UP_TO(1100), UP_TO(30), UP_TO(30));
        problem_draw_types(&p, &c->random);
        if (!problem_wanted(c, &p)) continue;
        subject s = subject_create(c, &p);
        FOR_EACH_KERNEL(c, k) {
            rapt_plan plan;
            size_t bytes;
            const int64_t nth = 1 + n % 5;
            s.desc.isa = k->name;
            s.desc.threads = nth;
            if (rapt_plan_init(&plan, &s.desc) != RAPT_OK || rapt_workspace_size(&plan, nth, &bytes) != RAPT_OK) {
                check_fail(c, k, "no plan");
                continue;
            }
            fence workspace = fence_create((bytes + 63) / 64 * 64, 0, 0);
            s.args.workspace = workspace.data;
            s.args.workspace_bytes = bytes - 1;
            rapt_status status = rapt_run_parallel(&plan, &s.args, nth, serial, NULL);
            if (bytes && (status != RAPT_ERR_WORKSPACE || !fence_intact(&s.o) || !fence_intact(&workspace)))
                check_fail(c, k, "%zu of %zu bytes of workspace: %s", bytes - 1, bytes, rapt_status_string(status));
            s.args.workspace_bytes = bytes;
            status = rapt_run_parallel(&plan, &s.args, nth, serial, NULL);
            if (status != RAPT_OK) check_fail(c, k, "%zu bytes of workspace as asked for: %s", bytes, rapt_status_string(status));
            fence_destroy(&workspace);
            fence_fill(&s.o, FENCE_CANARY);
            k->runs++;
            k->compared += 2;
        }
        subject_destroy(&s);
    }
}

/* ---- Names -------------------------------------------------------------------------------------------------------------- */

static void case_names(check *c) {
    if (rapt_isa_name(-1) || rapt_isa_name(c->kernel_count)) check_fail(c, NULL, "rapt_isa_name beyond the list is not null");
    for (int i = 0; i < c->kernel_count; i++) {
        kernel *k = &c->kernels[i];
        if (!k->rounding || (strcmp(k->rounding, "fused") != 0 && strcmp(k->rounding, "unfused") != 0))
            check_fail(c, k, "its rounding class is \"%s\"", k->rounding ? k->rounding : "null");
        if (k->usable != RAPT_OK && k->usable != RAPT_ERR_ISA_MISSING)
            check_fail(c, k, "rapt_isa_usable: %s", rapt_status_string(k->usable));
        if ((k->usable == RAPT_OK) != (k->missing[0] == 0))
            check_fail(c, k, "is missing \"%s\", but %s", k->missing, rapt_status_string(k->usable));
        char cut[4] = {1, 1, 1, 1};
        if (rapt_isa_usable(k->name, cut, 3) != k->usable || cut[2] > 1 || cut[3] != 1)
            check_fail(c, k, "rapt_isa_usable overruns its text");
        if (rapt_isa_force(k->name) != k->usable) check_fail(c, k, "rapt_isa_force does not agree with rapt_isa_usable");
        const char *now = NULL;
        if (k->usable == RAPT_OK && (rapt_isa_current(&now) != RAPT_OK || !now || strcmp(now, k->name) != 0))
            check_fail(c, k, "forced, but %s is current", now ? now : "none");
    }
    if (rapt_isa_usable("no such kernel", NULL, 0) != RAPT_ERR_ISA_UNKNOWN) check_fail(c, NULL, "an unknown kernel is usable");
    if (rapt_isa_force("no such kernel") != RAPT_ERR_ISA_UNKNOWN) check_fail(c, NULL, "an unknown kernel was forced");
    if (rapt_isa_rounding("no such kernel")) check_fail(c, NULL, "an unknown kernel has a rounding class");
    if (rapt_isa_force(NULL) != RAPT_OK) check_fail(c, NULL, "rapt_isa_force(NULL) failed");
    const kernel *best = c->kernels;
    while (best->usable != RAPT_OK) best++; /* ends: scalar code always can */
    const char *now = NULL;
    const bool forced = getenv("RAPT_ISA") && *getenv("RAPT_ISA");
    if (!forced && (rapt_isa_current(&now) != RAPT_OK || !now || strcmp(now, best->name) != 0))
        check_fail(c, NULL, "%s is current, not the first that can run, %s", now ? now : "none", best->name);
    for (int status = 2; status > -40; status--) {
        const char *text = rapt_status_string((rapt_status)status);
        if (!text || !*text || strchr(text, '\n')) check_fail(c, NULL, "status %d has no line of text", status);
    }
    if (!rapt_version() || !*rapt_version()) check_fail(c, NULL, "no version");
    char features[4] = {1, 1, 1, 1};
    if (rapt_cpu_features(NULL, 10) != RAPT_ERR_NULL) check_fail(c, NULL, "rapt_cpu_features(NULL) was accepted");
    if (rapt_cpu_features(features, 3) != RAPT_OK || features[3] != 1) check_fail(c, NULL, "rapt_cpu_features overruns its text");
    if (rapt_layout_bhsd(RAPT_F32, INT64_MAX, INT64_MAX, 2).batch_stride >= 0 ||
        rapt_layout_bshd(RAPT_F32, INT64_MAX, 2, INT64_MAX).batch_stride >= 0)
        check_fail(c, NULL, "a layout that overflows has a good stride");
}

/* ---- Storage types ------------------------------------------------------------------------------------------------------ */

/* With one key the output is the value itself. So every pattern of a 16-bit type can be sent through a load, and through a store
 * f32 of few bits, which often lie halfway between two neighbours. */
static float halfway(rapt_type type, uint64_t *random) {
    const int64_t exponent = type == RAPT_F16 ? draw_below(random, 34) - 30 : draw_below(random, 255) - 140;
    const float value = ldexpf((float)draw_below(random, 1 << 14), (int)exponent);
    static const uint32_t specials[] = {0x7f800000, 0xff800000, 0x7fc00000, 0x7fffffff, 0xffffffff}; /* infinities and NaNs */
    if (draw_below(random, 50)) return draw_below(random, 2) ? value : -value;
    const uint32_t special = DRAW_OF(random, specials);
    return reference_load(RAPT_F32, &special);
}

static void conversions(check *c, rapt_type type, bool load, int64_t q_len) {
    problem p = problem_of(c, 1, 64, 64, q_len, 1, 1, 1024);
    if (load) p.desc.v.type = type;
    else p.desc.o.type = type;
    p.lse = false;
    subject s = subject_create(c, &p);
    unsigned char *want = malloc((size_t)subject_output_bytes(&s)), *to = want;
    if (!want) exit(1);
    fence_protect(&s.v, false);
    for (int64_t h = 0; h < p.desc.heads; h++) {
        for (int64_t i = 0; i < q_len; i++) {
            for (int64_t ch = 0; ch < p.desc.d_v; ch++, to += reference_type_bytes(p.desc.o.type)) {
                unsigned char *const v = s.v.data + (h * p.desc.d_v + ch) * reference_type_bytes(p.desc.v.type);
                const uint16_t pattern = (uint16_t)(h * p.desc.d_v + ch);
                if (i == 0 && load) memcpy(v, &pattern, sizeof pattern);
                if (i == 0 && !load) reference_store(RAPT_F32, v, halfway(type, &c->random));
                reference_store(p.desc.o.type, to, reference_load(p.desc.v.type, v) + 0.0f); /* outputs have no -0 */
            }
        }
    }
    fence_protect(&s.v, true);
    FOR_EACH_KERNEL(c, k) {
        const how plainly = {WAY_RUN, 1, 1, 1};
        unsigned char *got = subject_run(c, &s, k, &plainly);
        if (got) same_rows(c, k, load ? "the loaded value" : "the rounded value", &s, got, &s, want, 0, 0, 0);
        free(got);
    }
    free(want);
    subject_destroy(&s);
}

static void case_conversions(check *c) {
    static const int64_t few_and_many[] = {1, 20};
    for (int64_t n = 0; n < LENGTH_OF(few_and_many); n++) {
        for (rapt_type type = RAPT_F16; type <= RAPT_BF16; type++) {
            conversions(c, type, true, few_and_many[n]);
            conversions(c, type, false, few_and_many[n]);
        }
    }
}

const check_case contract_cases[] = {
    {"errors", "every status of rapt.h provoked, and nothing written", case_errors, 1},
    {"empty", "no batch, no queries: nothing to do, null pointers allowed", case_empty, 1},
    {"workspace", "exactly the size asked for works, one byte less is refused", case_workspace, 2},
    {"names", "kernels, status strings, forcing", case_names, 1},
    {"conversions", "f16 and bf16: every pattern loaded, and stores to nearest even", case_conversions, 1},
    {"golden", "hashes of outputs, the same on every machine", case_golden, 1},
    {0},
};
