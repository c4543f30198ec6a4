/* SPDX-License-Identifier: Apache-2.0 */
/* Copying within caches of 8 heads of 128 channels, as CASE/TYPE/none/tN, since no kernel takes part. TYPE is as in cases.c,
 * CASE is
 *
 *     C-pages     128 pages of 16 tokens are copied to other pages, in random order
 *     C-shift     2048 tokens of an entry move by 16 tokens, to close a gap
 *
 * The counters are those of cases.c, with no operations and with the bytes that are read and written. */
#include <stdio.h>
#include <stdlib.h>

#include "data.h"
#include "report.h"
#include "timing.h"

enum { HEADS = 8, CHANNELS = 128, PAGE = 16, PAGES = 128, TOKENS = PAGE * PAGES };

typedef struct copy_case {
    const char *name;
    bool pages;
} copy_case;

static const copy_case cases[] = {{"C-pages", true}, {"C-shift", false}};

enum { CASES = sizeof cases / sizeof *cases };

typedef struct copy_job {
    const copy_case *c;
    const bench_type *type;
    int64_t threads;
} copy_job;

typedef struct call {
    rapt_kv_copy_desc desc;
    rapt_kv_copy_args args;
    int64_t threads;
    _Atomic int status; /* the rapt_status of a thread that failed, else RAPT_OK */
    rapt_kv_range ranges[PAGES];
} call;

/* Describes a case: the cache has twice as many pages as are copied, or one entry. */
static void describe(call *c, const copy_job *j) {
    rapt_kv_copy_desc *d = &c->desc;
    const bool pages = j->c->pages;
    rapt_kv_copy_desc_init(d), rapt_kv_copy_args_init(&c->args);
    d->entries = pages ? 2 * PAGES : 1, d->kv_heads = HEADS, d->tokens = pages ? PAGE : TOKENS + PAGE, d->d_k = d->d_v = CHANNELS;
    d->k = d->v = rapt_layout_bshd(j->type->kv, HEADS, d->tokens, CHANNELS);
    const rapt_layout scales = rapt_layout_bshd(RAPT_F32, HEADS, d->tokens, 1);
    if (j->type->scaled)
        d->k_scales = d->v_scales = (rapt_scales){1, scales.batch_stride, scales.head_stride, scales.token_stride, 0};
    for (int32_t i = 0; i < PAGES && pages; i++) /* multiplying by an odd number modulo a power of two gives every page once */
        c->ranges[i] = (rapt_kv_range){2 * (i * 37 % PAGES), 0, 2 * (i * 101 % PAGES) + 1, 0, PAGE};
    if (!pages) c->ranges[0] = (rapt_kv_range){0, PAGE, 0, 0, TOKENS};
    c->args.ranges = c->ranges, c->args.count = pages ? PAGES : 1;
    c->threads = j->threads;
    c->status = RAPT_OK;
}

static void copy_share(void *arg, int64_t ith) {
    call *c = arg;
    rapt_status status = rapt_kv_copy_run_share(&c->desc, &c->args, ith, c->threads);
    if (status) c->status = (int)status;
}

static void run_case(bench_state *state, const void *arg) {
    const copy_job *j = arg;
    static call c;
    describe(&c, j);
    const size_t cache = (size_t)(c.desc.entries * c.desc.k.batch_stride),
                 scales = (size_t)(c.desc.entries * c.desc.k_scales.batch_stride);
    const double bytes = 2.0 * TOKENS * HEADS * 2.0 * (double)(rapt_row_bytes(j->type->kv, CHANNELS) + (j->type->scaled ? 4 : 0));
    char *memory = bench_alloc(2 * (cache + scales));
    rapt_pool *pool = rapt_pool_create(j->threads);
    const char *failure = memory && pool ? NULL : "out of memory";
    double start = 0.0;
    bench_limits before = {0};
    int64_t calls = 0;
    if (!failure) {
        bench_fill(memory, j->type->kv, 2 * cache, 1);
        c.args.k = memory, c.args.v = memory + cache;
        if (j->type->scaled) {
            bench_fill(memory + 2 * cache, RAPT_F32, 2 * scales, 2);
            c.args.k_scales = (float *)(void *)(memory + 2 * cache),
            c.args.v_scales = (float *)(void *)(memory + 2 * cache + scales);
        }
        before = bench_limits_of(bench_best_isa(), RAPT_EXACT, (size_t)bytes, pool);
    }
    while (!failure && bench_keep_running(state)) {
        if (calls++ == 0) start = bench_now();
        rapt_pool_for(pool, c.threads, copy_share, &c);
        if (c.status) failure = rapt_status_string((rapt_status)c.status);
    }
    const double seconds = (bench_now() - start) / (double)calls;
    if (failure) bench_fail(state, failure);
    else
        bench_report(state, (bench_work){0.0, bytes}, seconds, before,
                     bench_limits_of(bench_best_isa(), RAPT_EXACT, (size_t)bytes, pool));
    rapt_pool_destroy(pool);
    free(memory);
}

bool bench_register_copies(const int64_t *threads, int thread_counts) {
    static copy_job *jobs;
    int n_types;
    const bench_type *types = bench_types(&n_types);
    copy_job *j = jobs = calloc((size_t)(CASES * n_types * thread_counts), sizeof *jobs);
    if (!jobs) return false;
    for (int c = 0; c < CASES; c++)
        for (int t = 0; t < n_types; t++)
            for (int n = 0; n < thread_counts; n++) {
                if (types[t].arith != RAPT_EXACT) continue;
                *j = (copy_job){&cases[c], &types[t], threads[n]};
                char name[96];
                snprintf(name, sizeof name, "%s/%s/none/t%lld", j->c->name, j->type->name, (long long)j->threads);
                bench_register(name, run_case, j++);
            }
    return true;
}
