/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers, multi-head attention and normalisation, as CASE/TYPE/ISA/tN. CASE is
 *
 *     LTOKENS-INxOUT             a linear layer; TYPE is that of the weights, X and Y are f32
 *     LTOKENS-INxOUT-silu        with SiLU
 *     LTOKENS-INxOUT-swiglu      with SiLU and a gate, which has as many weights again
 *     LTOKENS-INxOUT-prepacked   with prepacked weights; of few tokens not in exact arithmetic, and in bf16 arithmetic
 *                                kernels other than avx512_bf16 read the weights as they lie all the same
 *     MHA-WIDTH                  multi-head attention of 12 heads with its projections; TYPE is that of the weights,
 *                                X and Y are f32
 *     MHA-WIDTH-prepacked        with prepacked weights
 *     LNTOKENS-WIDTH             layer normalisation; TYPE is that of X and Y
 *     RMSTOKENS-WIDTH            RMS normalisation; TYPE is that of X and Y
 *     RMSTOKENS-WIDTH-residual   of the sum of X and a residual, which is an output, too; TYPE is that of all tensors
 *
 * With few tokens, calls rotate over copies of the weights, so that these come from memory. The counters are those of cases.c,
 * with the bytes of weights, X, Y and everything else that is read or written, once each; normalisation has the operations of its
 * formula. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "rapt_layer.h"
#include "report.h"
#include "timing.h"

typedef enum kind { LINEAR, GATED, MHA, LAYER_NORM, RMS_NORM, SUM_AND_RMS_NORM } kind;

typedef struct layer_case {
    const char *name;
    int64_t tokens, in, out;
    kind kind;
    rapt_activation activation;
    bool memory;    /* the weights come from memory rather than from a cache */
    bool prepacked; /* the weights are prepacked */
} layer_case;

enum { HEADS = 12 };

/* clang-format off */
static const layer_case cases[] = {
    {"L128-384x384",              128,  384,   384, LINEAR,           RAPT_ACTIVATION_NONE, false, false},
    {"L128-768x768",              128,  768,   768, LINEAR,           RAPT_ACTIVATION_NONE, false, false},
    {"L128-4096x4096",            128, 4096,  4096, LINEAR,           RAPT_ACTIVATION_NONE, false, false},
    {"L512-384x1536",             512,  384,  1536, LINEAR,           RAPT_ACTIVATION_NONE, false, false},
    {"L512-768x3072",             512,  768,  3072, LINEAR,           RAPT_ACTIVATION_NONE, false, false},
    {"L512-768x3072-silu",        512,  768,  3072, LINEAR,           RAPT_SILU,            false, false},
    {"L512-768x3072-swiglu",      512,  768,  3072, GATED,            RAPT_SILU,            false, false},
    {"L512-4096x4096",            512, 4096,  4096, LINEAR,           RAPT_ACTIVATION_NONE, false, false},
    {"L128-768x768-prepacked",    128,  768,   768, LINEAR,           RAPT_ACTIVATION_NONE, false, true},
    {"L512-768x3072-prepacked",   512,  768,  3072, LINEAR,           RAPT_ACTIVATION_NONE, false, true},
    {"L512-4096x4096-prepacked",  512, 4096,  4096, LINEAR,           RAPT_ACTIVATION_NONE, false, true},
    {"L1-384x384",                  1,  384,   384, LINEAR,           RAPT_ACTIVATION_NONE, true,  false},
    {"L1-768x768",                  1,  768,   768, LINEAR,           RAPT_ACTIVATION_NONE, true,  false},
    {"L1-4096x4096",                1, 4096,  4096, LINEAR,           RAPT_ACTIVATION_NONE, true,  false},
    {"L1-4096x4096-swiglu",         1, 4096,  4096, GATED,            RAPT_SILU,            true,  false},
    {"L4-4096x4096",                4, 4096,  4096, LINEAR,           RAPT_ACTIVATION_NONE, true,  false},
    {"L1-4096x4096-prepacked",      1, 4096,  4096, LINEAR,           RAPT_ACTIVATION_NONE, true,  true},
    {"L4-4096x4096-prepacked",      4, 4096,  4096, LINEAR,           RAPT_ACTIVATION_NONE, true,  true},
    {"L16-4096x4096-prepacked",    16, 4096,  4096, LINEAR,           RAPT_ACTIVATION_NONE, true,  true},
    {"L128-4096x4096-prepacked",  128, 4096,  4096, LINEAR,           RAPT_ACTIVATION_NONE, false, true},
    {"L1-4096x14336-prepacked",     1, 4096, 14336, LINEAR,           RAPT_ACTIVATION_NONE, true,  true},
    {"L4-4096x14336-prepacked",     4, 4096, 14336, LINEAR,           RAPT_ACTIVATION_NONE, true,  true},
    {"L16-4096x14336-prepacked",   16, 4096, 14336, LINEAR,           RAPT_ACTIVATION_NONE, true,  true},
    {"L128-4096x14336-prepacked", 128, 4096, 14336, LINEAR,           RAPT_ACTIVATION_NONE, false, true},
    {"L512-4096x14336-prepacked", 512, 4096, 14336, LINEAR,           RAPT_ACTIVATION_NONE, false, true},
    {"MHA-768",                   512,  768,   768, MHA,              RAPT_ACTIVATION_NONE, false, false},
    {"MHA-384",                   128,  384,   384, MHA,              RAPT_ACTIVATION_NONE, false, false},
    {"MHA-768-prepacked",         512,  768,   768, MHA,              RAPT_ACTIVATION_NONE, false, true},
    {"MHA-384-prepacked",         128,  384,   384, MHA,              RAPT_ACTIVATION_NONE, false, true},
    {"LN512-4096",                512, 4096,  4096, LAYER_NORM,       RAPT_ACTIVATION_NONE, false, false},
    {"RMS512-4096",               512, 4096,  4096, RMS_NORM,         RAPT_ACTIVATION_NONE, false, false},
    {"RMS512-4096-residual",      512, 4096,  4096, SUM_AND_RMS_NORM, RAPT_ACTIVATION_NONE, false, false},
};
/* clang-format on */

enum { CASES = sizeof cases / sizeof *cases };

typedef struct layer_job {
    const layer_case *c;
    rapt_type type;
    rapt_arith arith;
    const char *isa;
    int64_t threads;
} layer_job;

typedef struct session {
    rapt_linear_plan linear;
    rapt_mha_plan mha;
    rapt_linear_args linear_args;
    rapt_mha_args mha_args;
    rapt_norm_args norm_args;
    rapt_pool *pool;
    int64_t threads;
    void *x, *y, *workspace;
    char *prepacked;
    size_t prepacked_bytes; /* of a matrix */
    void *operands;         /* the weights, that of the gate included; or for normalisation, the residual and the sum */
    float *factors;         /* the scales of the rows of weights and of the gate; or the weights of normalisation */
} session;

static bool norm(const layer_case *c) { return c->kind >= LAYER_NORM; }

static rapt_layout rows(rapt_type type, int64_t tokens, int64_t channels) { return rapt_layout_bshd(type, 1, tokens, channels); }

/* Returns the rows of session.operands: of all weights (for MHA those of the four projections), or of the residual and the sum.
 */
static int64_t operand_rows(const layer_case *c) {
    return norm(c) ? 2 * c->tokens : c->kind == MHA ? 4 * c->in : c->kind == GATED ? 2 * c->out : c->out;
}

static rapt_status plan_mha(session *s, const layer_job *j, size_t *bytes) {
    const layer_case *c = j->c;
    rapt_desc a;
    rapt_mha_desc d;
    rapt_desc_init(&a), rapt_mha_desc_init(&d), rapt_mha_args_init(&s->mha_args);
    a.heads = a.kv_heads = HEADS, a.q_len = c->tokens, a.d_k = a.d_v = c->in / HEADS;
    a.threads = j->threads, a.isa = j->isa, a.arith = d.arith = j->arith, a.tuning = bench_tuning(j->isa);
    d.attention = &a, d.x_width = c->in, d.packed = 1, d.x = d.out = rows(RAPT_F32, c->tokens, c->in);
    d.wq = rows(j->type, 3 * c->in, c->in), d.wo = rows(j->type, c->in, c->in);
    rapt_status status = rapt_mha_plan_init(&s->mha, &d);
    return status ? status : rapt_mha_workspace_size(&s->mha, j->threads, bytes);
}

static rapt_status plan_linear(session *s, const layer_job *j, size_t *bytes) {
    const layer_case *c = j->c;
    rapt_linear_desc d;
    rapt_linear_desc_init(&d), rapt_linear_args_init(&s->linear_args);
    d.tokens = c->tokens, d.in = c->in, d.out = c->out, d.isa = j->isa, d.activation = c->activation, d.arith = j->arith;
    d.tuning = bench_tuning(j->isa);
    d.x = rows(RAPT_F32, c->tokens, c->in), d.y = rows(RAPT_F32, c->tokens, c->out);
    d.weight = rows(j->type, c->out, c->in);
    if (c->kind == GATED) d.gate = d.weight;
    rapt_status status = rapt_linear_plan_init(&s->linear, &d);
    return status ? status : rapt_linear_workspace_size(&s->linear, j->threads, bytes);
}

/* Prepacks each copy of the weights of a linear layer, or the four matrices of multi-head attention, which have the same size.
 * Returns null, or what failed. */
static const char *prepack(session *s, const layer_job *j, size_t weight_bytes, size_t copies) {
    const bool mha = j->c->kind == MHA;
    const size_t matrices = mha ? 4 : copies, matrix_bytes = mha ? weight_bytes / 4 : weight_bytes;
    size_t each = 0;
    rapt_linear_prepack_args a;
    rapt_linear_prepack_args_init(&a);
    rapt_status status = mha ? plan_linear(s, j, &each) : RAPT_OK;
    if (status == RAPT_OK) status = rapt_linear_prepacked_size(&s->linear, &each);
    if (status != RAPT_OK) return rapt_status_string(status);
    each = (each + RAPT_WORKSPACE_ALIGNMENT - 1) / RAPT_WORKSPACE_ALIGNMENT * RAPT_WORKSPACE_ALIGNMENT;
    if (!(s->prepacked = bench_alloc(matrices * each))) return "out of memory";
    a.prepacked_bytes = s->prepacked_bytes = each;
    for (size_t i = 0; i < matrices && status == RAPT_OK; i++) {
        a.weight = (const char *)s->operands + i * matrix_bytes;
        a.prepacked = s->prepacked + i * each;
        status = rapt_linear_prepack_run(&s->linear, &a);
    }
    if (mha) {
        s->mha_args.wq_prepacked = s->prepacked, s->mha_args.wk_prepacked = s->prepacked + each;
        s->mha_args.wv_prepacked = s->prepacked + 2 * each, s->mha_args.wo_prepacked = s->prepacked + 3 * each;
    }
    return status == RAPT_OK ? NULL : rapt_status_string(status);
}

static void describe_norm(session *s, const layer_job *j) {
    const layer_case *c = j->c;
    rapt_norm_args *a = &s->norm_args;
    rapt_norm_args_init(a);
    a->tokens = c->tokens, a->channels = c->in, a->isa = j->isa;
    a->x = a->y = rows(j->type, c->tokens, c->in);
    a->from = s->x, a->to = s->y, a->weight = s->factors;
    if (c->kind != SUM_AND_RMS_NORM) return;
    a->residual = a->sum = a->x;
    a->residual_from = s->operands, a->sum_to = (char *)s->operands + rapt_row_bytes(j->type, c->tokens * c->in);
}

/* Plans a case and sets its arguments. Returns null, or what failed. */
static const char *plan(session *s, const layer_job *j, size_t weight_bytes) {
    rapt_status status = RAPT_OK;
    size_t bytes = 0;
    if (norm(j->c)) describe_norm(s, j);
    else status = j->c->kind == MHA ? plan_mha(s, j, &bytes) : plan_linear(s, j, &bytes);
    if (status != RAPT_OK) return rapt_status_string(status);
    if (bytes && !(s->workspace = bench_alloc(bytes))) return "out of memory";
    s->linear_args.workspace = s->mha_args.workspace = s->workspace;
    s->linear_args.workspace_bytes = s->mha_args.workspace_bytes = bytes;
    s->linear_args.x = s->mha_args.x = s->x, s->linear_args.y = s->mha_args.out = s->y;
    s->linear_args.scales = j->type == RAPT_INT8 ? s->factors : NULL;
    s->linear_args.gate_scales = j->c->kind == GATED ? s->linear_args.scales : NULL;
    s->mha_args.wq = s->operands, s->mha_args.wo = (char *)s->operands + weight_bytes / 4 * 3;
    return NULL;
}

/* Runs a case with a copy of the weights. */
static rapt_status run(session *s, const layer_case *c, size_t copy, size_t weight_bytes) {
    if (norm(c)) {
        const bool rms = c->kind != LAYER_NORM;
        if (s->threads == 1) return (rms ? rapt_rms_norm_run_share : rapt_layer_norm_run_share)(&s->norm_args, 0, 1);
        return (rms ? rapt_rms_norm_run_parallel : rapt_layer_norm_run_parallel)(&s->norm_args, s->threads, rapt_pool_for,
                                                                                 s->pool);
    }
    if (c->kind == MHA) return rapt_mha_run_parallel(&s->mha, &s->mha_args, s->threads, rapt_pool_for, s->pool);
    const char *weights = (const char *)s->operands + copy * weight_bytes;
    s->linear_args.weight = weights;
    if (s->prepacked) s->linear_args.prepacked = s->prepacked + copy * s->prepacked_bytes;
    s->linear_args.gate = c->kind == GATED ? weights + weight_bytes / 2 : NULL;
    if (s->threads == 1) return rapt_linear_run(&s->linear, &s->linear_args);
    return rapt_linear_run_parallel(&s->linear, &s->linear_args, s->threads, rapt_pool_for, s->pool);
}

/* Returns the operations and bytes of a call. */
static bench_work work_of(const layer_case *c, rapt_type type, size_t weight_bytes) {
    const double x = (double)(c->tokens * c->in), y = (double)(c->tokens * c->out);
    const double tensor = (double)rapt_row_bytes(type, c->tokens * c->in);
    const double pairs = c->kind == MHA ? 4.0 * (double)c->tokens * x : 0.0;
    /* For each number, normalisation multiplies and adds a square and multiplies by two factors: 4 operations. Layer
     * normalisation also adds it to a sum and subtracts the mean; a residual is one more addition. */
    if (c->kind == LAYER_NORM) return (bench_work){6.0 * x, 2.0 * tensor};
    if (c->kind == RMS_NORM) return (bench_work){4.0 * x, 2.0 * tensor};
    if (c->kind == SUM_AND_RMS_NORM) return (bench_work){5.0 * x, 4.0 * tensor};
    return (bench_work){2.0 * x * (double)operand_rows(c) + pairs, (double)weight_bytes + 4.0 * (x + y)};
}

static bench_limits measure(const layer_job *j, bench_work work, rapt_pool *pool) {
    return bench_limits_of(j->isa, j->arith, j->c->memory ? BENCH_COLD_BYTES : (size_t)work.bytes, pool);
}

static void run_case(bench_state *state, const void *arg) {
    const layer_job *j = arg;
    const layer_case *c = j->c;
    const rapt_type type = j->type;
    const size_t one = (size_t)rapt_row_bytes(type, operand_rows(c) * c->in), copies = c->memory ? BENCH_COLD_BYTES / one + 1 : 1;
    const size_t x_bytes = (size_t)(c->tokens * c->in) * 4, factors_bytes = (size_t)c->out * 4;
    session s = {.threads = j->threads};
    s.x = bench_alloc(x_bytes), s.y = bench_alloc((size_t)(c->tokens * c->out) * 4);
    s.operands = bench_alloc(one * copies), s.factors = bench_alloc(factors_bytes), s.pool = rapt_pool_create(j->threads);
    const char *failure = s.x && s.y && s.operands && s.factors && s.pool ? plan(&s, j, one) : "out of memory";
    double start = 0.0;
    bench_limits before = {0};
    const bench_work work = work_of(c, type, one);
    int64_t calls = 0;
    if (!failure) {
        bench_fill(s.x, norm(c) ? type : RAPT_F32, x_bytes, 1);
        bench_fill(s.operands, type, one, 2);
        for (size_t i = 1; i < copies; i++) memcpy((char *)s.operands + i * one, s.operands, one);
        bench_fill(s.factors, RAPT_F32, factors_bytes, 3);
        before = measure(j, work, s.pool);
        if (c->prepacked) failure = prepack(&s, j, one, copies);
    }
    while (!failure && bench_keep_running(state)) {
        if (calls == 0) start = bench_now();
        rapt_status status = run(&s, c, (size_t)calls++ % copies, one);
        if (status) failure = rapt_status_string(status);
    }
    double seconds = (bench_now() - start) / (double)calls;
    if (failure) bench_fail(state, failure);
    else bench_report(state, work, seconds, before, measure(j, work, s.pool));
    rapt_pool_destroy(s.pool);
    free(s.x), free(s.y), free(s.operands), free(s.factors), free(s.workspace), free(s.prepacked);
}

/* True if a case is measured with a type: MHA with f32, normalisation with types of any tensor, linear layers with types of
 * weights; in bf16 arithmetic, all but normalisation, with bf16; in integer arithmetic, linear layers with prepacked weights. Few
 * tokens read prepacked weights in these two only. */
static bool makes_sense(const layer_case *c, const bench_type *type) {
    if (type->arith == RAPT_INT8_DOT) return c->kind == LINEAR && c->prepacked && rapt_row_bytes(type->kv, c->in) >= 0;
    if (type->arith == RAPT_BF16_DOT) return !norm(c);
    if (c->prepacked && c->memory) return false;
    if (c->kind == MHA) return type->kv == RAPT_F32;
    return !norm(c) || rapt_type_class_of(type->kv) == RAPT_CLASS_ELEMENT;
}

bool bench_register_layers(const int64_t *threads, int thread_counts) {
    static layer_job *jobs;
    int isas = 0, n_types;
    const bench_type *types = bench_weight_types(&n_types);
    while (rapt_isa_name(isas)) isas++;
    layer_job *j = jobs = calloc((size_t)(CASES * n_types * isas * thread_counts), sizeof *jobs);
    if (!jobs) return false;
    for (int c = 0; c < CASES; c++)
        for (int t = 0; t < n_types; t++)
            for (int i = 0; i < isas; i++)
                for (int n = 0; n < thread_counts; n++) {
                    if (rapt_isa_usable(rapt_isa_name(i), NULL, 0) || !makes_sense(&cases[c], &types[t])) continue;
                    *j = (layer_job){&cases[c], types[t].kv, types[t].arith, rapt_isa_name(i), threads[n]};
                    char name[96];
                    snprintf(name, sizeof name, "%s/%s/%s/t%lld", cases[c].name, types[t].name, j->isa, (long long)j->threads);
                    bench_register(name, run_case, j++);
                }
    return true;
}
