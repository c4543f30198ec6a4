/* SPDX-License-Identifier: Apache-2.0 */
/* Linear maps and the layer, as LTOKENS-INxOUT/TYPE/ISA/tN and MHA-WIDTH/f32/ISA/tN (12 heads, so many tokens), TYPE being that
 * of the weights, X and Y f32. Few tokens have their weights from memory, over which they rotate, and the bandwidth as their
 * limit; others the ISA's peak. The counters are those of cases.c. */
#include <stdio.h>
#include <stdlib.h>

#include "data.h"
#include "limits.h"
#include "rapt_layer.h"
#include "shim.h"

typedef struct layer_case {
    const char *name;
    int64_t tokens, in, out, heads; /* heads: 0 for a linear map */
    bool memory;
} layer_case;

static const layer_case cases[] = {
    {"L128-384x384", 128, 384, 384, 0, false},     {"L128-768x768", 128, 768, 768, 0, false},
    {"L128-4096x4096", 128, 4096, 4096, 0, false}, {"L512-384x1536", 512, 384, 1536, 0, false},
    {"L512-768x3072", 512, 768, 3072, 0, false},   {"L512-4096x4096", 512, 4096, 4096, 0, false},
    {"L1-384x384", 1, 384, 384, 0, true},          {"L1-768x768", 1, 768, 768, 0, true},
    {"L1-4096x4096", 1, 4096, 4096, 0, true},      {"L4-4096x4096", 4, 4096, 4096, 0, true},
    {"MHA-768", 512, 768, 768, 12, false},         {"MHA-384", 128, 384, 384, 12, false},
};

static const struct {
    const char *name;
    rapt_type type;
} types[] = {{"f32", RAPT_F32}, {"f16", RAPT_F16}, {"bf16", RAPT_BF16}, {"int8", RAPT_INT8}};

enum { CASES = sizeof cases / sizeof *cases, TYPES = sizeof types / sizeof *types };

typedef struct layer_job {
    const layer_case *c;
    int type;
    const char *isa;
    int64_t threads;
} layer_job;

typedef struct session {
    rapt_linear_plan linear;
    rapt_layer_plan layer;
    rapt_linear_args linear_args;
    rapt_layer_args layer_args;
    rapt_pool *pool;
    int64_t threads;
    void *x, *y, *weights, *workspace;
    float *scales;
} session;

static rapt_layout rows(rapt_type type, int64_t tokens, int64_t channels) { return rapt_layout_bshd(type, 1, tokens, channels); }

/* Rows of weights in all: of a layer those of the four projections. */
static int64_t weight_rows(const layer_case *c) { return c->heads ? 4 * c->in : c->out; }

static const char *plan(session *s, const layer_job *j) {
    const layer_case *c = j->c;
    rapt_status status;
    size_t bytes = 0;
    if (c->heads) {
        rapt_desc a;
        rapt_layer_desc d;
        rapt_desc_init(&a), rapt_layer_desc_init(&d), rapt_layer_args_init(&s->layer_args);
        a.batch = 1, a.heads = a.kv_heads = c->heads, a.q_len = c->tokens, a.d_k = a.d_v = c->in / c->heads;
        a.threads = j->threads, a.isa = j->isa;
        d.attention = &a, d.x_width = c->in, d.packed = 1, d.x = d.out = rows(RAPT_F32, c->tokens, c->in);
        d.wq = rows(RAPT_F32, 3 * c->in, c->in), d.wo = rows(RAPT_F32, c->in, c->in);
        status = rapt_layer_plan_init(&s->layer, &d);
        if (status == RAPT_OK) status = rapt_layer_workspace_size(&s->layer, j->threads, &bytes);
    } else {
        rapt_linear_desc d;
        rapt_linear_desc_init(&d), rapt_linear_args_init(&s->linear_args);
        d.tokens = c->tokens, d.in = c->in, d.out = c->out, d.isa = j->isa;
        d.x = rows(RAPT_F32, c->tokens, c->in), d.y = rows(RAPT_F32, c->tokens, c->out),
        d.weight = rows(types[j->type].type, c->out, c->in);
        status = rapt_linear_plan_init(&s->linear, &d);
        if (status == RAPT_OK) status = rapt_linear_workspace_size(&s->linear, j->threads, &bytes);
    }
    if (status != RAPT_OK) return rapt_status_string(status);
    if (!(s->workspace = bench_alloc(bytes))) return "out of memory";
    s->linear_args.workspace = s->layer_args.workspace = s->workspace;
    s->linear_args.workspace_bytes = s->layer_args.workspace_bytes = bytes;
    return NULL;
}

static rapt_status run(session *s, bool layer) {
    if (layer) return rapt_layer_run_parallel(&s->layer, &s->layer_args, s->threads, rapt_pool_for, s->pool);
    if (s->threads == 1) return rapt_linear_run(&s->linear, &s->linear_args, 0, 1);
    return rapt_linear_run_parallel(&s->linear, &s->linear_args, s->threads, rapt_pool_for, s->pool);
}

static double larger(double a, double b) { return a > b ? a : b; }

static void run_case(bench_state *state, const void *arg) {
    const layer_job *j = arg;
    const layer_case *c = j->c;
    rapt_type type = types[j->type].type;
    size_t one = (size_t)rapt_row_bytes(type, weight_rows(c) * c->in), copies = c->memory ? BENCH_COLD_BYTES / one + 1 : 1;
    session s = {.threads = j->threads};
    s.x = bench_alloc((size_t)(c->tokens * c->in) * 4), s.y = bench_alloc((size_t)(c->tokens * c->out) * 4);
    s.weights = bench_alloc(one * copies), s.scales = bench_alloc((size_t)c->out * 4), s.pool = rapt_pool_create(j->threads);
    const char *failure = s.x && s.y && s.weights && s.scales && s.pool ? plan(&s, j) : "out of memory";
    double limit = 0.0, start = 0.0;
    int64_t calls = 0;
    if (!failure) {
        bench_fill(s.x, RAPT_F32, (size_t)(c->tokens * c->in) * 4, 1);
        bench_fill(s.weights, type, one * copies, 2);
        bench_fill(s.scales, RAPT_F32, (size_t)c->out * 4, 3);
        s.linear_args.x = s.layer_args.x = s.x, s.linear_args.y = s.layer_args.out = s.y;
        s.linear_args.scales = type == RAPT_INT8 ? s.scales : NULL;
        s.layer_args.wq = s.weights, s.layer_args.wo = (char *)s.weights + one / 4 * 3;
        limit = c->memory ? bench_bandwidth(BENCH_COLD_BYTES, s.pool) : bench_peak(j->isa, s.pool);
    }
    while (!failure && bench_keep_running(state)) {
        if (calls == 0) start = bench_now();
        s.linear_args.weight = (char *)s.weights + (size_t)calls++ % copies * one;
        rapt_status status = run(&s, c->heads != 0);
        if (status) failure = rapt_status_string(status);
    }
    double seconds = (bench_now() - start) / (double)calls;
    if (failure) bench_fail(state, failure);
    else {
        limit = larger(limit, c->memory ? bench_bandwidth(BENCH_COLD_BYTES, s.pool) : bench_peak(j->isa, s.pool));
        double maps = 2.0 * (double)c->tokens * (double)weight_rows(c) * (double)c->in;
        double pairs = c->heads ? 4.0 * (double)c->tokens * (double)c->tokens * (double)c->in : 0.0;
        double rate = (c->memory ? (double)one : maps + pairs) / seconds;
        bench_counter(state, c->memory ? "GBs" : "GFLOPS", 1e-9 * rate);
        bench_counter(state, "limit", 1e-9 * limit);
        bench_counter(state, "share", rate / limit);
    }
    rapt_pool_destroy(s.pool);
    free(s.x), free(s.y), free(s.weights), free(s.scales), free(s.workspace);
}

bool bench_register_layers(const int64_t *threads, int thread_counts) {
    static layer_job *jobs;
    int isas = 0;
    while (rapt_isa_name(isas)) isas++;
    layer_job *j = jobs = calloc((size_t)(CASES * TYPES * isas * thread_counts), sizeof *jobs);
    if (!jobs) return false;
    for (int c = 0; c < CASES; c++)
        for (int t = 0; t < TYPES; t++)
            for (int i = 0; i < isas; i++)
                for (int n = 0; n < thread_counts; n++) {
                    if (rapt_isa_usable(rapt_isa_name(i), NULL, 0) || (cases[c].heads && t)) continue;
                    *j = (layer_job){&cases[c], t, rapt_isa_name(i), threads[n]};
                    char name[96];
                    snprintf(name, sizeof name, "%s/%s/%s/t%lld", cases[c].name, types[t].name, j->isa, (long long)j->threads);
                    bench_register(name, run_case, j++);
                }
    return true;
}
