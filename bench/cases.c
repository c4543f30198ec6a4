/* SPDX-License-Identifier: Apache-2.0 */
/* The benchmarks: a table of problems, each run as CASE/TYPE/ISA/tN on every kernel that this machine has. The counters say how
 * fast it was and what share that is of what the machine could do, measured just before and just after:
 *
 *     GFLOPS, limit, share   2 d_k + 2 d_v operations for each attended pair, and the ISA's peak
 *     GBs, limit, share      memory-bound cases: the bytes of attended K and V, read once, and the read bandwidth
 *     ns                     T1: the time of a call
 *     workspace              bytes of workspace */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data.h"
#include "limits.h"
#include "shim.h"

typedef enum caches {
    ONE,      /* one K and V, as near as the caches keep it */
    ROTATING, /* as many as it takes for each call to find its own in memory */
} caches;

typedef enum bound {
    COMPUTE,
    MEMORY,
    CALL, /* by what a call costs beside its arithmetic */
} bound;

typedef enum timed { RUN, PLAN_AND_RUN } timed;

typedef struct bench_case {
    const char *name;
    int64_t heads, kv_heads, q_len, kv_len, d_k, d_v;
    rapt_causal causal;
    bound bound;
    caches caches;
    timed timed;
} bench_case;

#define FULL   RAPT_CAUSAL_NONE
#define CAUSAL RAPT_CAUSAL_BOTTOM_RIGHT

/* clang-format off */
static const bench_case cases[] = {
    /*               H Hkv   Sq    Skv  d_k  d_v */
    {"P1",          12, 12,  128,   128,  64,  64, FULL,   COMPUTE, ONE,      RUN},
    {"P2",          12, 12,  512,   512,  64,  64, FULL,   COMPUTE, ONE,      RUN},
    {"P3",          32,  8, 1024,  1024, 128, 128, CAUSAL, COMPUTE, ONE,      RUN},
    {"P4",           8,  8, 4096,  4096,  64,  64, CAUSAL, COMPUTE, ONE,      RUN},
    {"P5",           8,  8, 4096,  4096, 128, 128, FULL,   COMPUTE, ONE,      RUN},
    {"P6",          32,  8,  256,  4096, 128, 128, CAUSAL, COMPUTE, ONE,      RUN},
    {"D1",          32,  8,    1,  4096, 128, 128, FULL,   MEMORY,  ROTATING, RUN},
    {"D1-hot",      32,  8,    1,  4096, 128, 128, FULL,   MEMORY,  ONE,      RUN},
    {"D2",          32,  8,    1, 32768, 128, 128, FULL,   MEMORY,  ROTATING, RUN},
    {"D2-hot",      32,  8,    1, 32768, 128, 128, FULL,   MEMORY,  ONE,      RUN},
    {"D3",          32, 32,    1,  4096, 128, 128, FULL,   MEMORY,  ROTATING, RUN},
    {"D3-hot",      32, 32,    1,  4096, 128, 128, FULL,   MEMORY,  ONE,      RUN},
    {"D4",           8,  1,    1,  8192, 256, 256, FULL,   MEMORY,  ROTATING, RUN},
    {"D4-hot",       8,  1,    1,  8192, 256, 256, FULL,   MEMORY,  ONE,      RUN},
    {"D5",          32,  8,    8,  4096, 128, 128, CAUSAL, COMPUTE, ROTATING, RUN},
    {"D5-hot",      32,  8,    8,  4096, 128, 128, CAUSAL, COMPUTE, ONE,      RUN},
    {"T1-run",       1,  1,    1,    16,  64,  64, FULL,   CALL,    ONE,      RUN},
    {"T1-plan+run",  1,  1,    1,    16,  64,  64, FULL,   CALL,    ONE,      PLAN_AND_RUN},
};
/* clang-format on */

typedef struct job {
    const bench_case *c;
    rapt_type type;
    const char *isa;
    int64_t threads;
} job;

/* What a case works on: one Q, O and workspace, and as many K and V as it rotates over. */
typedef struct tensors {
    char *q, *o, *workspace;
    char **kv; /* K and V of cache i at 2 * i and 2 * i + 1 */
    int64_t kv_count;
} tensors;

static int64_t attended_pairs(const bench_case *c) {
    if (c->causal == RAPT_CAUSAL_NONE) return c->heads * c->q_len * c->kv_len;
    int64_t pairs = 0;
    for (int64_t i = 0; i < c->q_len; i++) {
        int64_t keys = i + c->kv_len - c->q_len + 1;
        pairs += keys > 0 ? keys : 0;
    }
    return c->heads * pairs;
}

static rapt_desc describe(const job *j) {
    const bench_case *c = j->c;
    rapt_desc d;
    rapt_desc_init(&d);
    d.batch = 1;
    d.heads = c->heads;
    d.kv_heads = c->kv_heads;
    d.q_len = c->q_len;
    d.kv_len = c->kv_len;
    d.d_k = c->d_k;
    d.d_v = c->d_v;
    d.q = rapt_layout_bhsd(j->type, c->heads, c->q_len, c->d_k);
    d.k = rapt_layout_bhsd(j->type, c->kv_heads, c->kv_len, c->d_k);
    d.v = rapt_layout_bhsd(j->type, c->kv_heads, c->kv_len, c->d_v);
    d.o = rapt_layout_bhsd(j->type, c->heads, c->q_len, c->d_v);
    d.causal = c->causal;
    d.threads = j->threads;
    d.isa = j->isa;
    return d;
}

static void *filled(rapt_type type, int64_t count, uint32_t seed) {
    void *p = bench_alloc((size_t)count * bench_type_bytes(type));
    if (p) bench_fill(p, type, count, seed);
    return p;
}

/* Written once, so that no case pays for the first touch of its output. */
static void *touched(size_t bytes) {
    void *p = bench_alloc(bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

static void *copied(const void *from, size_t bytes) {
    void *p = bench_alloc(bytes);
    if (p) memcpy(p, from, bytes);
    return p;
}

static void tensors_free(tensors *t) {
    for (int64_t i = 0; i < 2 * t->kv_count; i++) free(t->kv[i]);
    free(t->kv);
    free(t->q);
    free(t->o);
    free(t->workspace);
}

static bool tensors_create(tensors *t, const job *j, size_t workspace_bytes) {
    const bench_case *c = j->c;
    size_t element = bench_type_bytes(j->type);
    size_t bytes[2] = {(size_t)(c->kv_heads * c->kv_len * c->d_k) * element,
                       (size_t)(c->kv_heads * c->kv_len * c->d_v) * element};
    size_t cache = bytes[0] + bytes[1];
    memset(t, 0, sizeof *t);
    t->kv_count = c->caches == ONE ? 1 : (int64_t)((BENCH_COLD_BYTES + cache - 1) / cache);
    t->kv = calloc((size_t)t->kv_count * 2, sizeof *t->kv);
    if (!t->kv) t->kv_count = 0;
    t->q = filled(j->type, c->heads * c->q_len * c->d_k, 1);
    t->o = touched((size_t)(c->heads * c->q_len * c->d_v) * element);
    t->workspace = touched(workspace_bytes);
    bool ok = t->kv && t->q && t->o && t->workspace;
    for (int64_t i = 0; ok && i < 2 * t->kv_count; i++) {
        t->kv[i] = i < 2 ? filled(j->type, (int64_t)(bytes[i] / element), 2 + (uint32_t)i) : copied(t->kv[i % 2], bytes[i % 2]);
        ok = t->kv[i] != NULL;
    }
    return ok;
}

typedef struct limit {
    const char *unit; /* of the rate it limits */
    double work;      /* of one call, in units of 1e9 */
    double best;      /* units of 1e9 per second */
} limit;

static void measure(limit *l, const job *j, rapt_pool *pool) {
    const bench_case *c = j->c;
    double best;
    if (c->bound == MEMORY) {
        double bytes = (double)(c->kv_heads * c->kv_len * (c->d_k + c->d_v)) * (double)bench_type_bytes(j->type);
        best = bench_bandwidth(c->caches == ONE ? (size_t)bytes : BENCH_COLD_BYTES, pool);
        l->unit = "GBs";
        l->work = 1e-9 * bytes;
    } else {
        best = bench_peak(j->isa, pool);
        l->unit = "GFLOPS";
        l->work = 1e-9 * (double)(attended_pairs(c) * 2 * (c->d_k + c->d_v));
    }
    if (1e-9 * best > l->best) l->best = 1e-9 * best;
}

static rapt_status run(const job *j, const rapt_desc *desc, rapt_plan *plan, const rapt_args *args, rapt_pool *pool) {
    if (j->c->timed == PLAN_AND_RUN) {
        rapt_status status = rapt_plan_init(plan, desc);
        if (status) return status;
    }
    return pool ? rapt_run_parallel(plan, args, j->threads, rapt_pool_for, pool) : rapt_run(plan, args);
}

static void run_case(bench_state *state, const void *arg) {
    const job *j = arg;
    rapt_desc desc = describe(j);
    rapt_plan plan;
    rapt_plan_info info = {.size = sizeof info};
    size_t workspace_bytes;
    rapt_status status = rapt_plan_init(&plan, &desc);
    if (!status) status = rapt_plan_query(&plan, &info);
    if (!status) status = rapt_workspace_size(&plan, j->threads, &workspace_bytes);
    if (status) {
        bench_fail(state, rapt_status_string(status));
        return;
    }
    tensors t;
    rapt_pool *pool = j->threads > 1 ? rapt_pool_create(j->threads) : NULL;
    if (!tensors_create(&t, j, workspace_bytes) || (j->threads > 1 && !pool)) {
        bench_fail(state, "out of memory or threads");
        goto done;
    }
    rapt_args args;
    rapt_args_init(&args);
    args.q = t.q;
    args.o = t.o;
    args.workspace = t.workspace;
    args.workspace_bytes = workspace_bytes;

    limit l = {0};
    measure(&l, j, pool);
    if (l.best == 0) {
        bench_fail(state, "the limit could not be measured");
        goto done;
    }
    int64_t calls = 0;
    double start = 0;
    while (bench_keep_running(state)) {
        if (!calls) start = bench_now();
        int64_t cache = calls++ % t.kv_count;
        args.k = t.kv[2 * cache];
        args.v = t.kv[2 * cache + 1];
        status = run(j, &desc, &plan, &args, pool);
        if (status) {
            bench_fail(state, rapt_status_string(status));
            goto done;
        }
    }
    double seconds = (bench_now() - start) / (double)calls;
    measure(&l, j, pool);

    bench_counter(state, l.unit, l.work / seconds);
    bench_counter(state, "limit", l.best);
    bench_counter(state, "share", l.work / seconds / l.best);
    if (j->c->bound == CALL) bench_counter(state, "ns", 1e9 * seconds);
    bench_counter(state, "workspace", (double)workspace_bytes);
    char label[96];
    snprintf(label, sizeof label, "%s %s, %lld thread%s", info.isa, info.path, (long long)j->threads, j->threads > 1 ? "s" : "");
    bench_label(state, label);
done:
    rapt_pool_destroy(pool);
    tensors_free(&t);
}

/* One thread, two, and all there are. */
static int thread_counts(int64_t counts[3]) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int n = 0;
    counts[n++] = 1;
    if (cores >= 2) counts[n++] = 2;
    if (cores > 2) counts[n++] = cores;
    return n;
}

bool bench_register_cases(void) {
    static const rapt_type types[] = {RAPT_F32, RAPT_F16, RAPT_BF16};
    static job *jobs;
    enum { CASES = sizeof cases / sizeof *cases, TYPES = sizeof types / sizeof *types };
    int64_t counts[3];
    int n_counts = thread_counts(counts), n_isas = 0;
    while (rapt_isa_name(n_isas)) n_isas++;
    jobs = calloc((size_t)(CASES * TYPES * n_isas * n_counts), sizeof *jobs);
    if (!jobs) {
        fputs("rapt-bench: out of memory\n", stderr);
        return false;
    }
    job *j = jobs;
    for (int c = 0; c < CASES; c++)
        for (int t = 0; t < TYPES; t++)
            for (int i = 0; i < n_isas; i++) {
                const char *isa = rapt_isa_name(i);
                if (rapt_isa_usable(isa, NULL, 0)) continue;
                for (int n = 0; n < n_counts; n++) {
                    *j = (job){&cases[c], types[t], isa, counts[n]};
                    char name[96];
                    snprintf(name, sizeof name, "%s/%s/%s/t%lld", j->c->name, bench_type_name(j->type), isa,
                             (long long)j->threads);
                    bench_register(name, run_case, j++);
                }
            }
    return true;
}
