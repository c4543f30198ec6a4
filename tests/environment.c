/* SPDX-License-Identifier: Apache-2.0 */
/* What a call must leave alone: the allocator (malloc and its like abort while the library runs; linked with --wrap) and the
 * control bits of the floating-point environment. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "rapt.h"
#include "tap.h"

#if defined(__x86_64__)
#include <immintrin.h>
static uint64_t float_control(void) { return _mm_getcsr() & ~0x3fu; } /* without the sticky exception flags */
#elif defined(__aarch64__)
static uint64_t float_control(void) {
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    return fpcr;
}
#else
static uint64_t float_control(void) { return 0; }
#endif

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

static void at_once(void *pool, int64_t n, rapt_body body, void *arg) {
    (void)pool;
    for (int64_t i = 0; i < n; i++) body(arg, i);
}
static void no_barrier(void *arg) { (void)arg; }

/* Every entry point, on one kernel and one path; both phases. */
static rapt_status call_everything(const char *isa, int64_t q_len) {
    enum { KEYS = 1100, CHANNELS = 70, QUERIES = 40 };
    static float q[2 * QUERIES * CHANNELS], k[KEYS * CHANNELS], v[KEYS * CHANNELS], o[2 * QUERIES * CHANNELS], lse[2 * QUERIES];
    static _Alignas(RAPT_WORKSPACE_ALIGNMENT) char workspace[1 << 21];
    for (int i = 0; i < KEYS * CHANNELS; i++) k[i] = (float)(i % 17) / 16.0f, v[i] = (float)(i % 19);
    rapt_desc desc;
    rapt_desc_init(&desc);
    desc.batch = desc.kv_heads = 1;
    desc.heads = 2;
    desc.q_len = q_len, desc.kv_len = KEYS, desc.d_k = desc.d_v = CHANNELS;
    desc.q = desc.o = rapt_layout_bshd(RAPT_F32, 2, q_len, CHANNELS);
    desc.k = desc.v = rapt_layout_bshd(RAPT_F32, 1, KEYS, CHANNELS);
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
    if (status == RAPT_OK) status = rapt_run(&plan, &args);
    if (status == RAPT_OK) status = rapt_run_parallel(&plan, &args, 2, at_once, NULL);
    if (status == RAPT_OK && info.phases == 1) status = rapt_run_share(&plan, &args, 0, 1, no_barrier, NULL);
    for (int phase = 0; phase < info.phases; phase++) {
        if (status == RAPT_OK) status = rapt_run_phase(&plan, &args, phase, 0, 1);
        for (int64_t task = 0; task < info.tasks[phase]; task++)
            if (status == RAPT_OK) status = rapt_run_task(&plan, &args, phase, task, 1);
    }
    return status;
}

/* Writing caches: every type, with factors that are found where they can be, in pages, rotated. */
static rapt_status write_caches(void) {
    enum { TOKENS = 5, CHANNELS = 64 };
    static float rows[TOKENS * CHANNELS], factors[8];
    static double frequencies[CHANNELS / 2];
    static char cache[8 * CHANNELS * 4];
    static const int32_t table[2] = {1, 0};
    for (int i = 0; i < TOKENS * CHANNELS; i++) rows[i] = (float)(i % 17) / 16.0f;
    rapt_status status = rapt_rope_frequencies(10000.0, CHANNELS, frequencies);
    for (int type = RAPT_F32; type <= RAPT_Q5_1 && status == RAPT_OK; type++) {
        rapt_append_desc desc;
        rapt_append_args args;
        rapt_append_desc_init(&desc);
        rapt_append_args_init(&args);
        desc.batch = desc.kv_heads = 1, desc.tokens = TOKENS, desc.kv_len = 8, desc.d_k = CHANNELS;
        desc.new_k = rapt_layout_bshd(RAPT_F32, 1, TOKENS, CHANNELS), desc.k = rapt_layout_bshd((rapt_type)type, 1, 4, CHANNELS);
        desc.page_size = 4, desc.pages = 2, desc.table.type = RAPT_I32;
        desc.rotary.channels = CHANNELS, desc.rotary.frequencies = frequencies;
        if (type >= RAPT_F8_E4M3 && type <= RAPT_INT8) desc.k_scales = (rapt_scales){1, 16, 16, 4, 0};
        args.new_k = rows, args.k = cache, args.k_scales = factors, args.table = table;
        status = rapt_kv_append(&desc, &args, 0, 1);
    }
    rapt_rope_args rope;
    rapt_rope_args_init(&rope);
    rope.batch = rope.heads = 1, rope.tokens = TOKENS, rope.d = CHANNELS;
    rope.in = rope.out = rapt_layout_bshd(RAPT_F32, 1, TOKENS, CHANNELS);
    rope.from = rope.to = rows, rope.rotary.channels = CHANNELS, rope.rotary.frequencies = frequencies;
    return status == RAPT_OK ? rapt_rope(&rope, 0, 1) : status;
}

int main(void) {
    const char *name;
    uint64_t before = float_control();
    in_library = 1;
    rapt_status written = write_caches();
    in_library = 0;
    tap_ok(written == RAPT_OK && float_control() == before, "writing caches: %s, without allocating",
           rapt_status_string(written));
    for (int i = 0; (name = rapt_isa_name(i)); i++) {
        if (rapt_isa_usable(name, NULL, 0) != RAPT_OK) continue;
        for (int64_t q_len = 1; q_len <= 40; q_len += 39) {
            in_library = 1;
            rapt_status status = call_everything(name, q_len);
            in_library = 0;
            tap_ok(status == RAPT_OK, "%s, %d queries: %s, without allocating", name, (int)q_len, rapt_status_string(status));
            tap_ok(float_control() == before, "%s, %d queries: the floating-point control bits are what they were", name,
                   (int)q_len);
        }
    }
    return tap_done();
}
