/* SPDX-License-Identifier: Apache-2.0 */
/* What a call must leave alone: the allocator (malloc and its like abort while the library runs; linked with --wrap) and the
 * control bits of the floating-point environment. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "float_control.h"
#include "kv_types.h"
#include "rapt_layer.h"
#include "serial.h"
#include "tap.h"

static int in_library;

void *__real_malloc(size_t);
void *__real_calloc(size_t, size_t);
void *__real_realloc(void *, size_t);
void __real_free(void *);
void *__wrap_malloc(size_t);
void *__wrap_calloc(size_t, size_t);
void *__wrap_realloc(void *, size_t);
void __wrap_free(void *);

static void forbid(void) {
    if (in_library) abort();
}
void *__wrap_malloc(size_t n) { return forbid(), __real_malloc(n); }
void *__wrap_calloc(size_t n, size_t m) { return forbid(), __real_calloc(n, m); }
void *__wrap_realloc(void *p, size_t n) { return forbid(), __real_realloc(p, n); }
void __wrap_free(void *p) { forbid(), __real_free(p); }

static void no_barrier(void *arg) { (void)arg; }

/* Traces are lines of the library's own making. */
static int64_t traced;
static void trace(void *arg, const char *line) { (void)arg, traced += (int64_t)strlen(line); }

static _Alignas(RAPT_WORKSPACE_ALIGNMENT) char workspace[1 << 22];

/* All ways to run a plan of attention; both phases. */
static rapt_status attend_in(rapt_arith arith, const char *isa, int64_t q_len) {
    enum { KEYS = 1100, CHANNELS = 70, QUERIES = 40 };
    static float q[2 * QUERIES * CHANNELS], k[KEYS * CHANNELS], v[KEYS * CHANNELS], o[2 * QUERIES * CHANNELS], lse[2 * QUERIES];
    char text[200];
    for (int i = 0; i < KEYS * CHANNELS; i++) k[i] = (float)(i % 17) / 16.0f, v[i] = (float)(i % 19);
    rapt_desc desc;
    rapt_desc_init(&desc);
    desc.kv_heads = 1, desc.heads = 2;
    desc.q_len = q_len, desc.kv_len = KEYS, desc.d_k = desc.d_v = CHANNELS;
    desc.q = desc.o = rapt_layout_bshd(RAPT_F32, 2, q_len, CHANNELS);
    desc.k = desc.v = rapt_layout_bshd(arith == RAPT_INT8_DOT ? RAPT_INT8 : RAPT_F32, 1, KEYS, CHANNELS);
    desc.arith = arith;
    desc.lse = rapt_layout_bhsd(RAPT_F32, 2, q_len, 1);
    desc.causal = RAPT_CAUSAL_BOTTOM_RIGHT;
    desc.threads = 2;
    desc.isa = isa;
    rapt_plan plan;
    rapt_plan_info info = {.size = sizeof info};
    rapt_args args;
    rapt_args_init(&args);
    args.q = q, args.k = k, args.v = v, args.o = o, args.lse = lse;
    args.workspace = workspace;
    rapt_status status = rapt_plan_init(&plan, &desc);
    if (status == RAPT_OK) status = rapt_plan_query(&plan, &info);
    if (status == RAPT_OK) status = rapt_workspace_size(&plan, 2, &args.workspace_bytes);
    if (status == RAPT_OK && args.workspace_bytes > sizeof workspace) status = RAPT_ERR_WORKSPACE;
    if (status == RAPT_OK) status = rapt_run(&plan, &args);
    if (status == RAPT_OK) status = rapt_run_parallel(&plan, &args, 2, serial, NULL);
    if (status == RAPT_OK && info.phases == 1) status = rapt_run_share(&plan, &args, 0, 1, no_barrier, NULL);
    for (int phase = 0; phase < info.phases; phase++) {
        if (status == RAPT_OK) status = rapt_run_phase(&plan, &args, phase, 0, 1);
        for (int64_t task = 0; task < info.tasks[phase]; task++)
            if (status == RAPT_OK) status = rapt_run_task(&plan, &args, phase, task, 1);
    }
    args.workspace = NULL;
    if (status == RAPT_OK && rapt_args_explain(&plan, &args, 1, text, sizeof text) == RAPT_OK) status = RAPT_ERR_WORKSPACE;
    return status;
}

static rapt_status attend(const char *isa, int64_t q_len) {
    rapt_status status = attend_in(RAPT_EXACT, isa, q_len);
    if (status == RAPT_OK) status = attend_in(RAPT_INT8_DOT, isa, q_len);
    return status == RAPT_OK ? attend_in(RAPT_BF16_DOT, isa, q_len) : status;
}

static rapt_status attend_few_rows(const char *isa) { return attend(isa, 1); }
static rapt_status attend_many_rows(const char *isa) { return attend(isa, 40); }

/* Writing caches: every type, with scales that are found where they can be, in pages, rotated; and copying within them. */
static rapt_status write_caches(const char *isa) {
    enum { TOKENS = 5, CHANNELS = 64, PAGE = 4 };
    static float rows[TOKENS * CHANNELS], scales[8];
    static double frequencies[CHANNELS / 2];
    static char cache[8 * CHANNELS * 4];
    static const int32_t table[2] = {1, 0};
    static const rapt_kv_range range = {.from = 1, .to = 0, .to_token = 1, .tokens = 2};
    (void)isa;
    for (int i = 0; i < TOKENS * CHANNELS; i++) rows[i] = (float)(i % 17) / 16.0f;
    rapt_status status = rapt_rope_frequencies(10000.0, CHANNELS, frequencies);
    for (int i = 0; i < KV_TYPES && status == RAPT_OK; i++) {
        const rapt_type type = kv_types[i];
        rapt_kv_append_desc desc;
        rapt_kv_append_args args;
        rapt_kv_copy_desc copy;
        rapt_kv_copy_args copy_args;
        rapt_kv_append_desc_init(&desc), rapt_kv_append_args_init(&args), rapt_kv_copy_desc_init(&copy),
            rapt_kv_copy_args_init(&copy_args);
        desc.kv_heads = 1, desc.tokens = TOKENS, desc.kv_len = 8, desc.d_k = CHANNELS;
        desc.new_k = rapt_layout_bshd(RAPT_F32, 1, TOKENS, CHANNELS);
        desc.k = rapt_layout_bshd(type, 1, PAGE, CHANNELS);
        desc.page_size = PAGE, desc.pages = 2, desc.table.type = RAPT_I32;
        desc.rope.channels = CHANNELS, desc.rope.frequencies = frequencies;
        args.new_k = rows, args.k = cache, args.table = table;
        copy.entries = 2, copy.kv_heads = 1, copy.tokens = PAGE, copy.d_k = CHANNELS, copy.k = desc.k;
        copy_args.k = cache, copy_args.ranges = &range, copy_args.count = 1;
        if (rapt_type_class_of(type) != RAPT_CLASS_ELEMENT && rapt_row_bytes(type, 1) > 0) {
            desc.k_scales = copy.k_scales = (rapt_scales){1, 16, 16, 4, 0};
            args.k_scales = copy_args.k_scales = scales;
        }
        status = rapt_kv_append_run(&desc, &args);
        if (status == RAPT_OK) status = rapt_kv_copy_run(&copy, &copy_args);
    }
    rapt_rope_args rope;
    rapt_rope_args_init(&rope);
    rope.heads = 1, rope.tokens = TOKENS, rope.d = CHANNELS;
    rope.in = rope.out = rapt_layout_bshd(RAPT_F32, 1, TOKENS, CHANNELS);
    rope.from = rope.to = rows, rope.rope.channels = CHANNELS, rope.rope.frequencies = frequencies;
    return status == RAPT_OK ? rapt_rope_run(&rope) : status;
}

/* Multi-head attention with a cache, and a decoder's step in the same cache. */
static rapt_status step_in(rapt_arith arith, const char *isa) {
    enum { TOKENS = 3, CACHE = 2 * TOKENS, D = 16, WIDTH = 32 };
    static float x[TOKENS * WIDTH], weights[4 * WIDTH * WIDTH], k[CACHE * D], v[CACHE * D], out[TOKENS * WIDTH];
    static double frequencies[D / 2];
    static const int32_t starts[1] = {TOKENS}, lengths[1] = {TOKENS};
    for (int i = 0; i < TOKENS * WIDTH; i++) x[i] = (float)(i % 13) / 8.0f - 0.75f;
    for (int i = 0; i < 4 * WIDTH * WIDTH; i++) weights[i] = (float)(i % 11) / 32.0f - 0.125f;
    rapt_desc a;
    rapt_args args;
    rapt_desc_init(&a), rapt_args_init(&args);
    a.heads = 2, a.kv_heads = 1, a.q_len = TOKENS, a.kv_len = CACHE, a.d_k = a.d_v = D;
    a.k = a.v = rapt_layout_bshd(RAPT_F32, 1, CACHE, D);
    a.causal = RAPT_CAUSAL_BOTTOM_RIGHT;
    a.isa = isa, a.arith = arith;
    args.kv_lengths = lengths;

    rapt_mha_desc mha;
    rapt_mha_args mha_args;
    rapt_mha_plan mha_plan;
    rapt_mha_desc_init(&mha), rapt_mha_args_init(&mha_args);
    mha.attention = &a, mha.x_width = WIDTH, mha.keys = TOKENS, mha.arith = arith;
    mha.x = mha.out = rapt_layout_bshd(RAPT_F32, 1, TOKENS, WIDTH);
    mha.wq = mha.wk = mha.wv = mha.wo = rapt_layout_bshd(RAPT_F32, 1, WIDTH, WIDTH);
    mha.rope.channels = D, mha.rope.frequencies = frequencies;
    mha_args.x = x, mha_args.out = out, mha_args.k_cache = k, mha_args.v_cache = v, mha_args.attention = &args;
    mha_args.wq = weights, mha_args.wk = weights + WIDTH * WIDTH, mha_args.wv = weights + 2 * WIDTH * WIDTH;
    mha_args.wo = weights + 3 * WIDTH * WIDTH;
    mha_args.workspace = workspace, mha_args.workspace_bytes = sizeof workspace;
    rapt_status status = rapt_rope_frequencies(10000.0, D, frequencies);
    if (status == RAPT_OK) status = rapt_mha_plan_init(&mha_plan, &mha);
    if (status == RAPT_OK) status = rapt_mha_run(&mha_plan, &mha_args);
    if (status == RAPT_OK) status = rapt_mha_run_parallel(&mha_plan, &mha_args, 2, serial, NULL);

    rapt_decode_desc decode;
    rapt_decode_args decode_args;
    rapt_decode_plan decode_plan;
    rapt_decode_desc_init(&decode), rapt_decode_args_init(&decode_args);
    a.q = a.o = rapt_layout_bshd(RAPT_F32, 2, TOKENS, D);
    decode.attention = &a;
    decode.new_k = decode.new_v = rapt_layout_bshd(RAPT_F32, 1, TOKENS, D);
    decode.rope = mha.rope;
    args.q = x, args.o = out, args.kv_lengths = NULL;
    decode_args.new_k = decode_args.new_v = x, decode_args.k = k, decode_args.v = v, decode_args.starts = starts;
    decode_args.attention = &args;
    decode_args.workspace = workspace, decode_args.workspace_bytes = sizeof workspace;
    if (status == RAPT_OK) status = rapt_decode_plan_init(&decode_plan, &decode);
    if (status == RAPT_OK) status = rapt_decode_run(&decode_plan, &decode_args);
    return status;
}

static rapt_status step(const char *isa) {
    rapt_status status = step_in(RAPT_EXACT, isa);
    return status == RAPT_OK ? step_in(RAPT_BF16_DOT, isa) : status;
}

/* Linear layers and norms are among it. */
static rapt_status check_self(const char *isa) { return rapt_self_check(isa, NULL, 0); }

static const struct {
    const char *what;
    rapt_status (*call)(const char *isa);
} calls[] = {
    {"attention of few rows", attend_few_rows}, {"attention of many rows", attend_many_rows}, {"writing caches", write_caches},
    {"multi-head attention, a step", step},     {"the check of itself", check_self},
};

/* A thread's environment that is not the default one is what the library's check of itself finds, and leaves as it is. */
static void test_float_control(void) {
    char text[300] = "";
    rapt_status status = rapt_self_check("none", text, sizeof text);
    tap_ok(status == RAPT_ERR_ISA_UNKNOWN && strstr(text, "isa = none"), "no kernel of that name: %s", text);
    status = rapt_self_check(NULL, text, sizeof text);
    tap_ok(status == RAPT_OK && *text == '\0', "all kernels: %s", rapt_status_string(status));
    unsigned had = 0;
    for (int i = 0; i < FLOAT_MODES; i++) {
        const float_mode *m = &float_modes[i];
        char want[300];
        if (!set_float_mode(m)) {
            printf("# %s cannot be had here\n", m->what);
            continue;
        }
        had |= m->modes;
        const uint64_t before = rapt_float_control();
        status = rapt_self_check(NULL, text, sizeof text);
        const uint64_t after = rapt_float_control();
        reset_float_mode();
        snprintf(want, sizeof want, "%s = 0x%" PRIx64 ": the thread %s", rapt_float_register, before, m->words);
        tap_ok(after == before && status == RAPT_ERR_SELF_CHECK && !strcmp(text, want), "%s: %s", m->what, text);
    }
    tap_ok((had & FLOAT_MODES_HERE) == FLOAT_MODES_HERE, "all modes that this architecture has");
}

int main(void) {
    static const rapt_trace tracer = {.body = trace};
    const char *name;
    uint64_t before = rapt_float_control();
    rapt_trace_to(&tracer);
    for (int i = 0; (name = rapt_isa_name(i)); i++) {
        if (rapt_isa_usable(name, NULL, 0) != RAPT_OK) continue;
        for (size_t c = 0; c < sizeof calls / sizeof *calls; c++) {
            in_library = 1;
            rapt_status status = calls[c].call(name);
            in_library = 0;
            tap_ok(status == RAPT_OK, "%s, %s: %s, without allocating", name, calls[c].what, rapt_status_string(status));
            tap_ok(rapt_float_control() == before, "%s, %s: the floating-point control bits are what they were", name,
                   calls[c].what);
        }
    }
    tap_ok(traced > 0, "and traced");
    rapt_trace_to(NULL);
    test_float_control();
    return tap_done();
}
