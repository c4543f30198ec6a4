/* SPDX-License-Identifier: Apache-2.0 */
/* Every error of rapt.h is provoked, and nothing is written. */
#include "harness.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "refusals.h"
#include "serial.h"

/* ---- What is expected --------------------------------------------------------------------------------------------------- */

typedef struct table {
    check *c;
    kernel *k;
    subject s;
    rapt_desc desc; /* good ones, and a plan of them */
    rapt_args args;
    rapt_plan plan;
    rapt_plan_info info;
    fence workspace, states; /* states: of an unmerged plan */
} table;

static void expect(table *t, const char *call, const char *change, rapt_status got, rapt_status want) {
    t->k->compared++;
    if (got != want)
        check_fail(t->c, t->k, "%s with %s: \"%s\", not \"%s\"", call, change, rapt_status_string(got), rapt_status_string(want));
    if (fence_intact(&t->s.o) && fence_intact(&t->s.lse) && fence_intact(&t->states)) return;
    if (want != RAPT_OK) check_fail(t->c, t->k, "%s with %s was refused, but an output was written", call, change);
    fence_fill(&t->s.o, FENCE_CANARY);
    fence_fill(&t->s.lse, FENCE_CANARY);
    fence_fill(&t->states, FENCE_CANARY);
}

/* An explanation has the same status, and a line if and only if something is wrong. */
static void expect_line(table *t, const char *call, const char *change, rapt_status got, rapt_status want, const char *line) {
    expect(t, call, change, got, want);
    if (!*line != (want == RAPT_OK)) check_fail(t->c, t->k, "%s with %s gave the line \"%s\"", call, change, line);
}

static void expect_plan(table *t, const char *change, const rapt_desc *desc, rapt_status want) {
    rapt_plan plan, before;
    memset(&plan, FENCE_CANARY, sizeof plan);
    before = plan;
    const rapt_status status = rapt_plan_init(&plan, desc);
    expect(t, "rapt_plan_init", change, status, want);
    if (status != RAPT_OK && memcmp(&plan, &before, sizeof plan) != 0)
        check_fail(t->c, t->k, "rapt_plan_init with %s wrote a plan", change);
    char line[256];
    expect_line(t, "rapt_plan_explain", change, rapt_plan_explain(desc, line, sizeof line), want, line);
}

static void no_wait(void *arg) { (void)arg; }

static void expect_run(table *t, const char *change, const rapt_args *args, rapt_status want) {
    expect(t, "rapt_run", change, rapt_run(&t->plan, args), want);
    expect(t, "rapt_run_parallel", change, rapt_run_parallel(&t->plan, args, 1, serial, NULL), want);
    expect(t, "rapt_run_share", change, rapt_run_share(&t->plan, args, 0, 1, no_wait, NULL), want);
    expect(t, "rapt_run_phase", change, rapt_run_phase(&t->plan, args, 0, 0, 1), want);
    expect(t, "rapt_run_task", change, rapt_run_task(&t->plan, args, 0, 0, 0), want);
    char line[256];
    expect_line(t, "rapt_args_explain", change, rapt_args_explain(&t->plan, args, 1, line, sizeof line), want, line);
}

static void plan_errors(table *t) {
    PLAN(RAPT_OK, (void)d);
    CALL(RAPT_ERR_NULL, rapt_plan_init((rapt_plan *)NULL, &t->desc));
    CALL(RAPT_ERR_NULL, rapt_plan_init(&(rapt_plan){{0}}, NULL));

    PLAN(RAPT_ERR_STRUCT, d.size = 0);
    PLAN(RAPT_ERR_STRUCT, d.size = sizeof d); /* by hand */
    PLAN(RAPT_ERR_STRUCT, d.size = SIZE_MAX);
    struct {
        rapt_desc desc;
        unsigned char tail[24];
    } newer;
    rapt_desc_init_sized(&newer.desc, sizeof newer);
    const size_t size = newer.desc.size;
    newer.desc = t->desc;
    newer.desc.size = size;
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

    static const rapt_type types[] = {RAPT_NONE, RAPT_BOOL, (rapt_type)-1, (rapt_type)INT_MAX};
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
    static const rapt_layout many = {RAPT_F32, INT64_C(1) << 60, INT64_C(1) << 58, 64}; /* products of lengths overflow */
    static const rapt_layout heads = {RAPT_F32, INT64_C(1) << 58, INT64_C(1) << 38, 64};
    const rapt_status immense = sizeof(size_t) > 4 ? RAPT_OK : RAPT_ERR_STRIDE; /* more than 32 bits can address */
    PLAN(immense, d.q_len = d.kv_len = RAPT_MAX_LENGTH; d.threads = 100; d.q = d.k = d.v = d.o = many; d.lse.type = 0);
    PLAN(immense, d.q_len = d.kv_len = RAPT_MAX_LENGTH; d.heads = d.kv_heads = 1 << 20; d.threads = 4096;
         d.q = d.k = d.v = d.o = heads; d.lse.type = 0);

    PLAN(RAPT_OK, d.scale = NAN); /* the default */
    PLAN(RAPT_OK, d.scale = 0);
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
    RUN(RAPT_ERR_STRUCT, a.size = sizeof a);
    RUN(RAPT_ERR_STRUCT, a.size = SIZE_MAX);
    struct {
        rapt_args args;
        unsigned char tail[24];
    } newer;
    rapt_args_init_sized(&newer.args, sizeof newer);
    const size_t size = newer.args.size;
    newer.args = t->args;
    newer.args.size = size;
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

/* ---- Features: plans ---------------------------------------------------------------------------------------------------- */

static const int64_t bad_strides[] = {-1, INT64_MIN, INT64_MAX, INT64_MAX - 1};

static void feature_plan_errors(table *t) {
    PLAN(RAPT_OK, (void)d);
    PLAN(RAPT_ERR_FEATURE, d.prefix = -1);
    PLAN(RAPT_ERR_FEATURE, d.prefix = INT64_MIN);
    PLAN(RAPT_OK, d.prefix = INT64_MAX);
    PLAN(RAPT_ERR_FEATURE, d.local_chunk = -1);
    PLAN(RAPT_ERR_FEATURE, d.local_chunk = INT64_MIN);
    PLAN(RAPT_OK, d.local_chunk = INT64_MAX);
    PLAN(RAPT_ERR_FEATURE, d.softcap = -1);
    PLAN(RAPT_ERR_FEATURE, d.softcap = NAN);
    PLAN(RAPT_ERR_FEATURE, d.softcap = INFINITY);
    PLAN(RAPT_ERR_FEATURE, d.softcap = -INFINITY);
    PLAN(RAPT_OK, d.softcap = 0);
    PLAN(RAPT_ERR_FEATURE, d.alibi = (rapt_alibi)3);
    PLAN(RAPT_ERR_FEATURE, d.alibi = (rapt_alibi)-1);
    PLAN(RAPT_ERR_FEATURE, d.slopes.type = 0);
    PLAN(RAPT_OK, d.slopes.type = 0; d.alibi = RAPT_ALIBI_NONE);
    PLAN(RAPT_ERR_FEATURE, d.alibi = RAPT_ALIBI_BIAS; d.bias.type = 0);
    PLAN(RAPT_OK, d.alibi = RAPT_ALIBI_BIAS);
    static const int64_t block_mask_keys[] = {0, -64, 1, 63, 65, 100, INT64_MIN, INT64_MAX};
    for (int64_t n = 0; n < LENGTH_OF(block_mask_keys); n++) PLAN(RAPT_ERR_FEATURE, d.block_mask_keys = block_mask_keys[n]);
    PLAN(RAPT_ERR_FEATURE, d.block_mask_queries = 0);
    PLAN(RAPT_ERR_FEATURE, d.block_mask_queries = -1);
    PLAN(RAPT_OK, d.block_mask_queries = INT64_MAX; d.block_mask_keys = (int64_t)1 << 62);
    PLAN(RAPT_OK, d.block_mask.type = 0; d.block_mask_queries = d.block_mask_keys = -1);
    PLAN(RAPT_ERR_FEATURE, d.page_size = -1);
    PLAN(RAPT_ERR_FEATURE, d.page_size = 16);
    PLAN(RAPT_ERR_FEATURE, d.pages = -1);
    PLAN(RAPT_ERR_FEATURE, d.table.type = RAPT_I32);
    static const int64_t firsts[] = {-512, -1, 1, 511, 513, INT64_MIN, INT64_MAX};
    for (int64_t n = 0; n < LENGTH_OF(firsts); n++) PLAN(RAPT_ERR_FEATURE, d.kv_first = firsts[n]);
    static const int32_t starts[] = {0, 100, 600};
    PLAN(RAPT_ERR_FEATURE, d.kv_first = 512; d.k_starts = starts);
    PLAN(RAPT_ERR_SHAPE, d.kv_first = (int64_t)RAPT_MAX_LENGTH + 1);
    PLAN(RAPT_ERR_SHAPE, d.kv_first = INT64_MAX - 511);
    PLAN(RAPT_ERR_SHAPE, d.kv_total = -1);
    PLAN(RAPT_ERR_SHAPE, d.kv_total = (int64_t)RAPT_MAX_LENGTH + 1);
    PLAN(RAPT_ERR_SHAPE, d.kv_total = INT64_MAX);

    static const rapt_type no_masks[] = {RAPT_F32, RAPT_INT8, RAPT_I32, (rapt_type)17, (rapt_type)-1, (rapt_type)INT_MAX};
    for (int64_t n = 0; n < LENGTH_OF(no_masks); n++) {
        PLAN(RAPT_ERR_TYPE, d.mask.type = no_masks[n]);
        PLAN(RAPT_ERR_TYPE, d.block_mask.type = no_masks[n]);
    }
    PLAN(RAPT_ERR_TYPE, d.block_mask.type = RAPT_BIT);
    static const rapt_type no_floats[] = {RAPT_F8_E4M3, RAPT_INT8, RAPT_Q8_0, RAPT_BOOL, RAPT_BIT, RAPT_I32, (rapt_type)-1};
    for (int64_t n = 0; n < LENGTH_OF(no_floats); n++) {
        PLAN(RAPT_ERR_TYPE, d.bias.type = no_floats[n]);
        PLAN(RAPT_ERR_TYPE, d.slopes.type = no_floats[n]);
        PLAN(RAPT_ERR_TYPE, d.sinks.type = no_floats[n]);
        PLAN(RAPT_ERR_TYPE, d.q.type = no_floats[n]);
        PLAN(RAPT_ERR_TYPE, d.o.type = no_floats[n]);
        if (n > 2) PLAN(RAPT_ERR_TYPE, d.k.type = no_floats[n]);
        if (n > 2) PLAN(RAPT_ERR_TYPE, d.v.type = no_floats[n]);
    }
    PLAN(RAPT_OK, d.slopes.type = RAPT_F16);
    PLAN(RAPT_OK, d.sinks.type = RAPT_BF16);
    for (int i = 0; i < KV_TYPES; i++) { /* of those of groups of 32, 9 and 7 channels are none */
        const rapt_type type = kv_types[i];
        if (reference_row_bytes(type, 1) > 0) continue;
        PLAN(RAPT_ERR_TYPE, d.k.type = type);
        PLAN(RAPT_ERR_TYPE, d.v.type = type);
    }

    for (int64_t n = 0; n < LENGTH_OF(bad_strides); n++) {
        PLAN(RAPT_ERR_STRIDE, d.mask.batch_stride = bad_strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.mask.head_stride = bad_strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.mask.token_stride = bad_strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.block_mask.head_stride = bad_strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.block_mask.token_stride = bad_strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.bias.batch_stride = bad_strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.bias.token_stride = bad_strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.slopes.head_stride = bad_strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.sinks.batch_stride = bad_strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.sinks.head_stride = bad_strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.k_scales.batch_stride = bad_strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.k_scales.head_stride = bad_strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.k_scales.token_stride = bad_strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.v_scales.head_stride = bad_strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.v_scales.channel_stride = bad_strides[n]);
    }
    PLAN(RAPT_ERR_STRIDE, d.k_scales.channel_stride = 4); /* has a token_stride */
    PLAN(RAPT_ERR_STRIDE, d.v_scales.token_stride = 4);   /* has a channel_stride */
    PLAN(RAPT_OK, d.mask.batch_stride = d.bias.head_stride = d.block_mask.token_stride = d.slopes.head_stride =
                      d.k_scales.token_stride = 0);

    PLAN(RAPT_ERR_ARITH, d.arith = RAPT_INT8_DOT);
    for (int i = 0; i < KV_TYPES; i++) {
        const rapt_type type = kv_types[i];
        if (type == RAPT_INT8 || reference_row_bytes(type, 1) < 0) continue; /* d is not whole groups */
        PLAN(RAPT_ERR_ARITH, d.arith = RAPT_INT8_DOT; d.k.type = RAPT_INT8; d.v.type = type);
        PLAN(RAPT_ERR_ARITH, d.arith = RAPT_INT8_DOT; d.k.type = type; d.v.type = RAPT_INT8);
        PLAN(RAPT_ERR_ARITH, d.arith = RAPT_INT8_DOT; d.k.type = d.v.type = type);
    }
    for (int i = 0; i < KV_TYPES; i++) {
        const rapt_type type = kv_types[i];
        const bool integers =
            type == RAPT_INT8 || type == RAPT_INT4 || type == RAPT_Q8_0 || type == RAPT_Q4_0 || type == RAPT_Q5_0;
        rapt_layout of_type = rapt_layout_bhsd(type, t->desc.kv_heads, t->desc.kv_len, 32);
        rapt_layout of_q8_0 = rapt_layout_bhsd(RAPT_Q8_0, t->desc.kv_heads, t->desc.kv_len, 32);
        PLAN(integers ? RAPT_OK : RAPT_ERR_ARITH, d.arith = RAPT_INT8_DOT; d.k = of_type; d.v = of_q8_0; d.d_k = d.d_v = 32;
             d.q = rapt_layout_bhsd(RAPT_F32, d.heads, d.q_len, 32); d.o = d.q);
        PLAN(integers ? RAPT_OK : RAPT_ERR_ARITH, d.arith = RAPT_INT8_DOT; d.k = of_q8_0; d.v = of_type; d.d_k = d.d_v = 32;
             d.q = rapt_layout_bhsd(RAPT_F32, d.heads, d.q_len, 32); d.o = d.q);
    }
    static const int ariths[] = {3, 4, -1, 256, INT_MAX, INT_MIN};
    for (int64_t n = 0; n < LENGTH_OF(ariths); n++) {
        PLAN(RAPT_ERR_ARITH, d.arith = (rapt_arith)ariths[n]);
        PLAN(RAPT_ERR_ARITH, d.arith = (rapt_arith)ariths[n]; d.k.type = d.v.type = RAPT_INT8);
    }
    PLAN(RAPT_OK, d.arith = RAPT_INT8_DOT; d.k.type = d.v.type = RAPT_INT8);
}

/* ---- Features: runs ----------------------------------------------------------------------------------------------------- */

/* No output may touch an input, by even one byte. */
static void overlaps(table *t, const fence *input) {
    char *const at = (void *)input->data;
    if (input->bytes == 0) return;
    RUN(RAPT_ERR_OVERLAP, a.o = at + input->bytes - 1);
    RUN(RAPT_ERR_OVERLAP, a.o = at - t->s.o.bytes + 1);
    RUN(RAPT_ERR_OVERLAP, a.lse = (void *)at);
}

static void feature_run_errors(table *t) {
    RUN(RAPT_OK, (void)a);
    RUN(RAPT_ERR_NULL, a.mask = NULL);
    RUN(RAPT_ERR_NULL, a.block_mask = NULL);
    RUN(RAPT_ERR_NULL, a.bias = NULL);
    RUN(RAPT_ERR_NULL, a.slopes = NULL);
    RUN(RAPT_ERR_NULL, a.sinks = NULL);
    RUN(RAPT_ERR_NULL, a.k_scales = NULL);
    RUN(RAPT_ERR_NULL, a.v_scales = NULL);
    RUN(RAPT_OK, a.prefixes = NULL);
    RUN(RAPT_OK, a.ring_starts = NULL);
    RUN(RAPT_ERR_STRIDE, a.mask = (void *)(UINTPTR_MAX - 8));
    RUN(RAPT_ERR_STRIDE, a.bias = (void *)(UINTPTR_MAX - 8));
    RUN(RAPT_ERR_STRIDE, a.sinks = (void *)(UINTPTR_MAX - 3));
    RUN(RAPT_ERR_STRIDE, a.k_scales = (void *)(UINTPTR_MAX - 3));
    RUN(RAPT_ERR_STRIDE, a.ring_starts = (void *)(UINTPTR_MAX - 3));
    static const extra inputs[] = {EXTRA_MASK,     EXTRA_BLOCK_MASK, EXTRA_BIAS,     EXTRA_SLOPES,     EXTRA_SINKS,
                                   EXTRA_K_SCALES, EXTRA_V_SCALES,   EXTRA_PREFIXES, EXTRA_RING_STARTS};
    for (int64_t n = 0; n < LENGTH_OF(inputs); n++) overlaps(t, &t->s.extra[inputs[n]]);
    static const int32_t rings[][2] = {{-1, -1}, {600, 600}, {INT32_MIN, INT32_MIN}, {INT32_MAX, INT32_MAX}};
    for (int64_t n = 0; n < LENGTH_OF(rings); n++) RUN(RAPT_ERR_TABLE, a.ring_starts = rings[n]);
    static const int32_t last_slots[] = {599, 599};
    RUN(RAPT_OK, a.ring_starts = last_slots);
    RUN(RAPT_OK, (void)a);
}

/* Keys from position 512 on, of 2000. */
static void part_run_errors(table *t) {
    static const int32_t good[][2] = {{0, 0}, {511, 1}, {512, 2000}, {2000, 2000}};
    static const int32_t bad[][2] = {{-1, -1}, {2001, 2001}, {INT32_MAX, INT32_MAX}};
    for (int64_t n = 0; n < LENGTH_OF(good); n++) RUN(RAPT_OK, a.kv_lengths = good[n]);
    for (int64_t n = 0; n < LENGTH_OF(bad); n++) RUN(RAPT_ERR_KV_LENGTH, a.kv_lengths = bad[n]);
}

/* ---- Ragged batches and pages ------------------------------------------------------------------------------------------- */

static void ragged_plan_errors(table *t) {
    const int32_t q_end = (int32_t)t->desc.q_len, k_end = (int32_t)t->desc.kv_len;
    const int32_t bad_q[][3] = {{-1, 1, 2}, {1, 0, 2}, {0, 2, 1}, {0, 1, q_end + 1}, {INT32_MIN, 0, 1}, {0, INT32_MAX, 1}};
    const int32_t bad_k[][3] = {{-1, 1, 2}, {1, 0, 2}, {0, 2, 1}, {0, 1, k_end + 1}, {INT32_MIN, 0, 1}, {0, INT32_MAX, 1}};
    for (int64_t n = 0; n < LENGTH_OF(bad_q); n++) {
        PLAN(RAPT_ERR_TABLE, d.q_starts = bad_q[n]);
        PLAN(RAPT_ERR_TABLE, d.k_starts = bad_k[n]);
    }
    const int32_t none[3] = {0, 0, 0}, all_q[3] = {0, q_end, q_end}, all_k[3] = {0, 0, k_end};
    PLAN(RAPT_OK, d.q_starts = none);
    PLAN(RAPT_OK, d.k_starts = none);
    PLAN(RAPT_OK, d.q_starts = all_q; d.k_starts = all_k);
    PLAN(RAPT_OK, d.batch = 0);
    PLAN(RAPT_ERR_FEATURE, d.page_size = 16; d.pages = 100; d.table.type = RAPT_I32);
    PLAN(RAPT_OK, d.q.batch_stride = d.o.batch_stride = -1; d.k.batch_stride = d.v.batch_stride = INT64_MAX); /* not used */
    PLAN(RAPT_ERR_STRIDE, d.q.head_stride = -1);
}

static void ragged_run_errors(table *t) {
    RUN(RAPT_OK, (void)a);
    /* Task 0 is one of the first entry that has queries, and looks at no other entry. */
    const int e = t->desc.q_starts[1] > t->desc.q_starts[0] ? 0 : 1;
    const int32_t own = t->desc.k_starts[e + 1] - t->desc.k_starts[e];
    int32_t full[2] = {0}, more[2] = {0}, ring[2] = {0};
    full[e] = own;
    ring[e] = own ? own : 1;
    more[e] = own + 1;
    RUN(RAPT_OK, a.kv_lengths = full);
    RUN(RAPT_ERR_KV_LENGTH, a.kv_lengths = more);
    RUN(RAPT_ERR_TABLE, a.ring_starts = ring);
}

static void paged_plan_errors(table *t) {
    PLAN(RAPT_OK, (void)d);
    PLAN(RAPT_ERR_FEATURE, d.page_size = 0);
    PLAN(RAPT_ERR_FEATURE, d.page_size = -16);
    PLAN(RAPT_ERR_FEATURE, d.page_size = (int64_t)RAPT_MAX_LENGTH + 1);
    PLAN(RAPT_ERR_FEATURE, d.pages = -1);
    PLAN(RAPT_ERR_FEATURE, d.pages = (int64_t)RAPT_MAX_LENGTH + 1);
    PLAN(RAPT_ERR_FEATURE, d.table.type = 0);
    static const rapt_type types[] = {RAPT_F32, RAPT_BOOL, RAPT_INT8, (rapt_type)17, (rapt_type)-1};
    for (int64_t n = 0; n < LENGTH_OF(types); n++) PLAN(RAPT_ERR_TYPE, d.table.type = types[n]);
    for (int64_t n = 0; n < LENGTH_OF(bad_strides); n++) {
        PLAN(RAPT_ERR_STRIDE, d.k.batch_stride = bad_strides[n]); /* of pages */
        PLAN(RAPT_ERR_STRIDE, d.v.token_stride = bad_strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.table.head_stride = bad_strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.table.token_stride = bad_strides[n]);
    }
    static const int32_t starts[] = {0, 10, 20};
    PLAN(RAPT_ERR_FEATURE, d.k_starts = starts);
}

/* Entries 0 and 1 of the table have as many pages as kv_len says, and as many keys. */
static void paged_run_errors(table *t) {
    static const int32_t bad[] = {-1, INT32_MIN, INT32_MAX};
    const rapt_desc *d = &t->desc;
    RUN(RAPT_OK, (void)a);
    RUN(RAPT_ERR_NULL, a.table = NULL);
    overlaps(t, &t->s.extra[EXTRA_TABLE]);
    fence copy = fence_create(t->s.extra[EXTRA_TABLE].bytes, 0, 0);
    int32_t *const entries = (void *)copy.data;
    const int64_t pages = (d->kv_len + d->page_size - 1) / d->page_size;
    for (int64_t page = 0; page < pages; page += 7) {
        for (int64_t n = 0; n <= LENGTH_OF(bad); n++) {
            memcpy(copy.data, t->s.extra[EXTRA_TABLE].data, copy.bytes);
            entries[page] = n < LENGTH_OF(bad) ? bad[n] : (int32_t)d->pages;
            RUN(RAPT_ERR_TABLE, a.table = entries);
            const int32_t lengths[2] = {(int32_t)(page * d->page_size), 0};
            RUN(RAPT_OK, a.table = entries; a.kv_lengths = lengths); /* a page without keys may be any number */
            entries[page] = (int32_t)d->pages - 1;
            RUN(RAPT_OK, a.table = entries);
        }
    }
    fence_destroy(&copy);
}

static void csr_run_errors(table *t) {
    const rapt_desc *d = &t->desc;
    const int32_t pages = (int32_t)((d->kv_len + d->page_size - 1) / d->page_size), size = (int32_t)d->page_size;
    const int32_t *const s = t->args.table_starts;
    const int32_t bad[][3] = {
        {-1, s[1], s[2]}, {s[1], s[0], s[2]}, {s[0], s[2], s[1]}, {s[0], s[0] + pages + 1, s[0] + pages + 1}};
    RUN(RAPT_OK, (void)a);
    for (int64_t n = 0; n < LENGTH_OF(bad); n++) RUN(RAPT_ERR_TABLE, a.table_starts = bad[n]);
    static const int32_t lasts[] = {0, -1, INT32_MIN, INT32_MAX};
    for (int64_t n = 0; n <= LENGTH_OF(lasts); n++) {
        const int32_t last[2] = {n < LENGTH_OF(lasts) ? lasts[n] : size + 1, 1};
        RUN(RAPT_ERR_TABLE, a.last_page = last);
    }
    const int32_t beyond[2] = {(int32_t)(d->kv_len % d->page_size + 1), 1}; /* of as many pages as kv_len has */
    RUN(RAPT_ERR_TABLE, a.last_page = beyond);
    const int32_t full[2] = {(int32_t)d->kv_len, 0}, fewer[3] = {s[0], s[0] + pages - 1, s[2]};
    RUN(RAPT_OK, a.last_page = NULL; a.kv_lengths = full);
    RUN(RAPT_ERR_TABLE, a.last_page = NULL; a.kv_lengths = full; a.table_starts = fewer); /* keys that no page holds */
    overlaps(t, &t->s.extra[EXTRA_TABLE_STARTS]);
    overlaps(t, &t->s.extra[EXTRA_LAST_PAGE]);
}

/* ---- States and merging ------------------------------------------------------------------------------------------------- */

static void states_plan_errors(table *t) {
    PLAN(RAPT_OK, (void)d);
    static const rapt_type types[] = {RAPT_NONE, RAPT_F16, RAPT_BOOL, RAPT_I32, (rapt_type)-1};
    for (int64_t n = 0; n < LENGTH_OF(types); n++) PLAN(RAPT_ERR_TYPE, d.states.type = types[n]);
    for (int64_t n = 0; n < LENGTH_OF(bad_strides); n++) {
        PLAN(RAPT_ERR_STRIDE, d.states.batch_stride = bad_strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.states.head_stride = bad_strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.states.token_stride = bad_strides[n]);
        PLAN(RAPT_ERR_STRIDE, d.state_stride = bad_strides[n]);
    }
    PLAN(RAPT_ERR_STRIDE, d.state_stride = 0);
    PLAN(RAPT_ERR_STRIDE, d.state_stride -= 4);
    PLAN(RAPT_ERR_STRIDE, d.states.token_stride -= 4);
    PLAN(RAPT_ERR_STRIDE, d.states.head_stride = 0);
    PLAN(RAPT_ERR_STRIDE, d.states.batch_stride -= 4);
}

static void states_run_errors(table *t) {
    RUN(RAPT_OK, (void)a);
    RUN(RAPT_OK, a.o = NULL; a.lse = NULL; a.sinks = NULL); /* for the merge */
    RUN(RAPT_ERR_NULL, a.states = NULL);
    RUN(RAPT_ERR_STRIDE, a.states = (void *)(UINTPTR_MAX - 8));
    RUN(RAPT_ERR_OVERLAP, a.states = (float *)(void *)((char *)a.k + 64));
    RUN(RAPT_ERR_OVERLAP, a.states = (float *)(void *)((char *)a.q - t->states.bytes + 1));
    RUN(RAPT_ERR_OVERLAP, a.states = a.workspace);
}

#define MERGE(want, change)                                                                                                      \
    do {                                                                                                                         \
        rapt_args a = t->args;                                                                                                   \
        rapt_states s[2] = {source, source};                                                                                     \
        int64_t n = 2, ith = 0, nth = 1;                                                                                         \
        change;                                                                                                                  \
        expect(t, "rapt_merge_states_run_share", #change, rapt_merge_states_run_share(&t->plan, &a, s, n, ith, nth), want);      \
    } while (0)

static void states_merge_errors(table *t) {
    const rapt_desc *d = &t->desc;
    fence memory = fence_create(t->states.bytes, 0, 0); /* two sources of the same memory, so o of twice the weight */
    memset(memory.data, 0, memory.bytes);
    const rapt_states source = {(const float *)(const void *)memory.data,
                                d->states.batch_stride,
                                d->states.head_stride,
                                d->states.token_stride,
                                d->state_stride,
                                (d->kv_len + RAPT_CHUNK_KEYS - 1) / RAPT_CHUNK_KEYS};
    MERGE(RAPT_OK, (void)a);
    MERGE(RAPT_OK, a.workspace = NULL);
    MERGE(RAPT_OK, nth = 1000);
    MERGE(RAPT_OK, n = 0);
    MERGE(RAPT_ERR_RANGE, n = -1);
    MERGE(RAPT_ERR_RANGE, nth = 0);
    MERGE(RAPT_ERR_RANGE, ith = -1);
    MERGE(RAPT_ERR_RANGE, ith = 1);
    MERGE(RAPT_ERR_SHAPE, s[1].chunks = -1);
    MERGE(RAPT_ERR_SHAPE, s[1].chunks = INT64_MAX; s[1].state_stride = 0);
    MERGE(RAPT_ERR_NULL, s[1].at = NULL);
    MERGE(RAPT_ERR_NULL, a.o = NULL);
    MERGE(RAPT_ERR_NULL, a.lse = NULL);
    MERGE(RAPT_ERR_NULL, a.sinks = NULL);
    MERGE(RAPT_ERR_STRUCT, a.size = 0);
    MERGE(RAPT_ERR_STRUCT, a.size = sizeof a);
    for (int64_t i = 0; i < LENGTH_OF(bad_strides); i++) {
        MERGE(RAPT_ERR_STRIDE, s[0].batch_stride = bad_strides[i]);
        MERGE(RAPT_ERR_STRIDE, s[1].head_stride = bad_strides[i]);
        MERGE(RAPT_ERR_STRIDE, s[1].token_stride = bad_strides[i]);
        MERGE(RAPT_ERR_STRIDE, s[1].state_stride = bad_strides[i]);
    }
    MERGE(RAPT_ERR_STRIDE, s[1].at = (const float *)(UINTPTR_MAX - 7));
    MERGE(RAPT_ERR_OVERLAP, a.o = (char *)memory.data + memory.bytes - 1);
    MERGE(RAPT_ERR_OVERLAP, a.lse = (float *)(void *)memory.data);
    MERGE(RAPT_ERR_OVERLAP, a.o = (char *)a.lse + 1);
    MERGE(RAPT_ERR_OVERLAP, a.o = (char *)a.sinks - t->s.o.bytes + 1);
    CALL(RAPT_ERR_NULL, rapt_merge_states_run(NULL, &t->args, &source, 1));
    CALL(RAPT_ERR_NULL, rapt_merge_states_run(&t->plan, NULL, &source, 1));
    CALL(RAPT_ERR_NULL, rapt_merge_states_run(&t->plan, &t->args, NULL, 1));
    static const rapt_plan none;
    CALL(RAPT_ERR_PLAN, rapt_merge_states_run(&none, &t->args, &source, 1));
    fence_destroy(&memory);
}

static void case_merge_errors(check *c) {
    enum { ROWS = 5, D_V = 7 };
    float o[2][ROWS * D_V] = {{0}}, lse[2][ROWS] = {{0}}, out[ROWS * D_V], sums[ROWS];
    const float *const os[2] = {o[0], o[1]}, *const lses[2] = {lse[0], lse[1]};
    const float *const no_o[2] = {o[0], NULL}, *const no_lse[2] = {NULL, lse[1]};
    const int64_t bad[] = {-1, INT64_MIN};
    rapt_status status[32];
    int n = 0;
    memset(out, FENCE_CANARY, sizeof out);
    memset(sums, FENCE_CANARY, sizeof sums);
    for (int64_t b = 0; b < LENGTH_OF(bad); b++) {
        status[n++] = rapt_merge(bad[b], ROWS, D_V, os, lses, out, sums) - RAPT_ERR_SHAPE;
        status[n++] = rapt_merge(2, bad[b], D_V, os, lses, out, sums) - RAPT_ERR_SHAPE;
        status[n++] = rapt_merge(2, ROWS, bad[b], os, lses, out, sums) - RAPT_ERR_SHAPE;
    }
    status[n++] = rapt_merge(2, ROWS, 0, os, lses, out, sums) - RAPT_ERR_SHAPE;
    status[n++] = rapt_merge(2, ROWS, RAPT_MAX_HEAD_DIM + 1, os, lses, out, sums) - RAPT_ERR_SHAPE;
    status[n++] = rapt_merge(2, INT64_MAX, D_V, os, lses, out, sums) - RAPT_ERR_SHAPE;
    status[n++] = rapt_merge(2, ROWS, D_V, NULL, lses, out, sums) - RAPT_ERR_NULL;
    status[n++] = rapt_merge(2, ROWS, D_V, os, NULL, out, sums) - RAPT_ERR_NULL;
    status[n++] = rapt_merge(2, ROWS, D_V, no_o, lses, out, sums) - RAPT_ERR_NULL;
    status[n++] = rapt_merge(2, ROWS, D_V, os, no_lse, out, sums) - RAPT_ERR_NULL;
    status[n++] = rapt_merge(2, ROWS, D_V, os, lses, &o[1][1], sums) - RAPT_ERR_OVERLAP;
    status[n++] = rapt_merge(2, ROWS, D_V, os, lses, out, &lse[0][1]) - RAPT_ERR_OVERLAP;
    status[n++] = rapt_merge(2, ROWS, D_V, os, lses, out, o[0]) - RAPT_ERR_OVERLAP;
    status[n++] = rapt_merge(2, ROWS, D_V, os, lses, lse[1], sums) - RAPT_ERR_OVERLAP;
    status[n++] = rapt_merge(2, ROWS, D_V, os, lses, out, &out[3]) - RAPT_ERR_OVERLAP;
    for (int i = 0; i < n; i++)
        if (status[i] != 0) check_fail(c, NULL, "refusal %d is off by %d", i, (int)status[i]);
    for (size_t i = 0; i < sizeof out; i++)
        if (((unsigned char *)out)[i] != FENCE_CANARY || (i < sizeof sums && ((unsigned char *)sums)[i] != FENCE_CANARY)) {
            check_fail(c, NULL, "rapt_merge was refused, but wrote");
            break;
        }
    if (rapt_merge(0, ROWS, D_V, NULL, NULL, out, sums) != RAPT_OK || sums[0] != -INFINITY || out[0] != 0)
        check_fail(c, NULL, "no sources do not give the empty result");
    if (rapt_merge(2, 0, D_V, os, lses, NULL, NULL) != RAPT_OK) check_fail(c, NULL, "no rows were refused");
}

/* ---- Cases -------------------------------------------------------------------------------------------------------------- */

/* Calls what provokes errors, for each kernel, with a good problem, its plan and arguments. */
static void provoke(check *c, const problem *p, bool unmerged, void (*const *errors)(table *), int64_t n) {
    FOR_EACH_KERNEL(c, k) {
        check_step(c, k);
        table t = {.c = c, .k = k, .s = subject_create(c, p), .info = {.size = sizeof t.info}};
        t.desc = t.s.desc;
        t.desc.isa = k->name;
        t.args = t.s.args;
        t.states = fence_create(0, 0, 0);
        if (unmerged) {
            rapt_desc *const d = &t.desc;
            fence_destroy(&t.states);
            d->unmerged = 1;
            d->state_stride = (int64_t)(RAPT_STATE_FLOATS(d->d_v) * sizeof(float));
            d->states = (rapt_layout){.type = RAPT_F32, .token_stride = d->state_stride * ((d->kv_len + 511) / 512)};
            d->states.head_stride = d->states.token_stride * d->q_len;
            d->states.batch_stride = d->states.head_stride * d->heads;
            t.states = fence_create((size_t)(d->states.batch_stride * d->batch), -1, 0);
            t.args.states = (float *)(void *)t.states.data;
        }
        size_t bytes = 0;
        if (rapt_plan_init(&t.plan, &t.desc) != RAPT_OK || rapt_plan_query(&t.plan, &t.info) != RAPT_OK ||
            rapt_workspace_size(&t.plan, 1, &bytes) != RAPT_OK) {
            check_fail(c, k, "no plan for a good problem");
        } else {
            t.workspace = fence_create((bytes + 127) / 64 * 64, 0, 0);
            t.args.workspace = t.workspace.data;
            t.args.workspace_bytes = bytes;
            k->runs++;
            for (int64_t e = 0; e < n; e++) errors[e](&t);
            fence_destroy(&t.workspace);
        }
        fence_destroy(&t.states);
        subject_destroy(&t.s);
    }
}

#define PROVOKE(c, p, unmerged, ...)                                                                                             \
    do {                                                                                                                         \
        void (*const errors[])(table *) = {__VA_ARGS__};                                                                         \
        provoke(c, p, unmerged, errors, LENGTH_OF(errors));                                                                      \
    } while (0)

static void case_errors(check *c) {
    problem p = problem_of(c, 2, 4, 2, 3, 600, 9, 7);
    p.lengths = LENGTHS_GIVEN;
    p.given[0] = 600;
    p.given[1] = 77;
    p.offset = -1;
    PROVOKE(c, &p, false, plan_errors, run_errors);
}

static void case_feature_errors(check *c) {
    problem p = problem_of(c, 2, 4, 2, 3, 600, 9, 7);
    p.offset = -1;
    p.desc.mask.type = p.desc.block_mask.type = RAPT_BOOL;
    p.desc.block_mask_queries = 2;
    p.desc.block_mask_keys = 64;
    p.desc.bias.type = p.desc.slopes.type = p.desc.sinks.type = RAPT_F32;
    p.desc.alibi = RAPT_ALIBI_DISTANCE;
    p.desc.softcap = 5;
    p.k_grain = GRAIN_TOKEN;
    p.v_grain = GRAIN_CHANNEL;
    p.prefixes = p.ring = true;
    PROVOKE(c, &p, false, feature_plan_errors, feature_run_errors);

    p = problem_of(c, 2, 4, 2, 3, 600, 9, 7);
    p.desc.kv_first = 512;
    p.desc.kv_total = 2000;
    PROVOKE(c, &p, false, part_run_errors);
}

static void case_place_errors(check *c) {
    problem p = problem_of(c, 2, 4, 2, 5, 600, 9, 7), ragged = p;
    ragged.ragged_queries = ragged.ragged_keys = true;
    PROVOKE(c, &ragged, false, ragged_plan_errors, ragged_run_errors);
    problem_paged(&p, 16);
    PROVOKE(c, &p, false, paged_plan_errors, paged_run_errors);
    p.table = TABLE_LAST_PAGE;
    PROVOKE(c, &p, false, csr_run_errors);
}

static void case_states_errors(check *c) {
    problem p = problem_of(c, 2, 4, 2, 3, 1100, 9, 7);
    p.desc.sinks.type = RAPT_F32;
    PROVOKE(c, &p, true, states_plan_errors, states_run_errors, states_merge_errors);
}

const check_case refusal_cases[] = {
    {"errors", "every status of rapt.h provoked, and nothing written", case_errors, 1},
    {"errors-features", "of masks, biases, softcap, ALiBi, sinks, scales, rings, parts", case_feature_errors, 1},
    {"errors-places", "of ragged batches, page tables, starts", case_place_errors, 1},
    {"errors-states", "of states and their merging", case_states_errors, 1},
    {"errors-merge", "of merging by lse", case_merge_errors, 1},
    {0},
};
