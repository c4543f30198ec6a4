/* SPDX-License-Identifier: Apache-2.0 */
/* Linear maps and layer normalisation: validation, and each thread's share. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "parts.h"
#include "layout.h"
#include "plan.h"
#include "select.h"

void rapt_linear_desc_init_sized(rapt_linear_desc *desc, size_t size) {
    if (!desc || size < sizeof *desc) return;
    memset(desc, 0, size);
    desc->size = size;
    desc->batch = 1;
}

void rapt_linear_args_init_sized(rapt_linear_args *args, size_t size) {
    if (!args || size < sizeof *args) return;
    memset(args, 0, size);
    args->size = size;
}

void rapt_norm_args_init_sized(rapt_norm_args *args, size_t size) {
    if (!args || size < sizeof *args) return;
    memset(args, 0, size);
    args->size = size;
    args->batch = 1;
    args->epsilon = 1e-5f;
}

/* A call's plan: what is validated once. */
typedef struct full_linear {
    uint64_t made; /* LINEAR_MADE, or this is no plan */
    const rapt_kernel *kernel;
    rapt_linear_problem problem;
    int64_t all_tokens;
    uint64_t x_bytes, y_bytes, residual_bytes, weight_bytes;
} full_linear;

#define LINEAR_MADE UINT64_C(0x33302e6e696c0000) /* changes with the layout of struct full_linear */

_Static_assert(sizeof(full_linear) <= sizeof(rapt_linear_plan), "rapt_linear_plan is too small");

static const full_linear *linear_of(const rapt_linear_plan *opaque) {
    const full_linear *p = (const full_linear *)(const void *)opaque;
    return p && p->made == LINEAR_MADE ? p : NULL;
}

static bool in_range(int64_t x, int64_t least, int64_t most) { return x >= least && x <= most; }

static bool of_elements(rapt_type type) { return type == RAPT_F32 || type == RAPT_F16 || type == RAPT_BF16; }

/* Rows [batch, tokens] of channels. */
static rapt_status measure(const rapt_layout *layout, int64_t batch, int64_t tokens, int64_t channels, bool output,
                           uint64_t *bytes) {
    return of_elements(layout->type) ? rapt_measure(layout, batch, 1, tokens, channels, output, bytes) : RAPT_ERR_TYPE;
}

rapt_status rapt_linear_plan_init(rapt_linear_plan *opaque, const rapt_linear_desc *desc) {
    rapt_linear_desc d;
    if (!opaque) return RAPT_ERR_NULL;
    rapt_status status = rapt_read_struct(&d, sizeof d, desc);
    if (status != RAPT_OK) return status;
    if (!in_range(d.batch, 0, RAPT_MAX_LENGTH) || !in_range(d.tokens, 0, RAPT_MAX_LENGTH) || !in_range(d.in, 1, RAPT_MAX_WIDTH) ||
        !in_range(d.out, 1, RAPT_MAX_WIDTH))
        return RAPT_ERR_SHAPE;
    if (!in_range((int64_t)d.activation, RAPT_ACTIVATION_NONE, RAPT_GELU_TANH)) return RAPT_ERR_FEATURE;
    full_linear p = {
        .made = LINEAR_MADE,
        .problem = {d.tokens, d.in, d.out, d.x, d.y, d.residual, d.weight, d.activation},
        .all_tokens = d.batch * d.tokens,
    };
    status = measure(&d.x, d.batch, d.tokens, d.in, false, &p.x_bytes);
    if (status == RAPT_OK) status = measure(&d.y, d.batch, d.tokens, d.out, true, &p.y_bytes);
    if (status == RAPT_OK && d.residual.type) status = measure(&d.residual, d.batch, d.tokens, d.out, false, &p.residual_bytes);
    if (status == RAPT_OK && !of_elements(d.weight.type) && d.weight.type != RAPT_INT8) status = RAPT_ERR_TYPE;
    if (status == RAPT_OK) status = rapt_measure(&d.weight, 1, 1, d.out, d.in, false, &p.weight_bytes);
    if (status == RAPT_OK) status = rapt_select(d.isa, &p.kernel);
    if (status != RAPT_OK) return status;
    memset(opaque, 0, sizeof *opaque);
    memcpy(opaque, &p, sizeof p);
    return RAPT_OK;
}

/* ---- Shares -------------------------------------------------------------------------------------------------------------- */

/* Threads share tokens by whole tiles, and outputs by whole groups of RAPT_PARTIAL_SUMS. A thread's tokens are staged by itself,
 * which costs as much as so many outputs: on an AMD EPYC (Zen 4) 9 to 40 of them, see docs/performance.md. */
enum { STAGING_OUTPUTS = 16 };

static int64_t divide_up(int64_t a, int64_t b) { return a / b + (a % b != 0); }

/* Part i of n parts of a range of so many units, each of so many elements. */
static void cut(int64_t elements, int64_t unit, int64_t i, int64_t n, int64_t *first, int64_t *count) {
    int64_t units = divide_up(elements, unit), from = units / n * i + (i < units % n ? i : units % n);
    int64_t end = (from + units / n + (i < units % n)) * unit;
    *first = from * unit < elements ? from * unit : elements;
    *count = (end < elements ? end : elements) - *first;
}

/* The grid that nth threads form, so many parts of the tokens by the others of the outputs: where the slowest has the least. */
static int64_t token_parts(const full_linear *p, int64_t nth) {
    int64_t lanes = p->kernel->lanes, tiles = divide_up(p->all_tokens, lanes),
            groups = divide_up(p->problem.out, RAPT_PARTIAL_SUMS);
    if (p->all_tokens <= p->kernel->few_tokens) return 1;
    int64_t best = 1;
    double least = INFINITY;
    for (int64_t parts = 1; parts <= nth && parts <= tiles; parts++) {
        double cost =
            (double)divide_up(tiles, parts) * (double)(divide_up(groups, nth / parts) * RAPT_PARTIAL_SUMS + STAGING_OUTPUTS);
        if (cost < least) best = parts, least = cost;
    }
    return best;
}

static size_t thread_bytes(const full_linear *p) {
    size_t bytes = p->kernel->linear_scratch_bytes(&p->problem, p->all_tokens, p->problem.out);
    size_t few = p->kernel->linear_scratch_bytes(
        &p->problem, p->all_tokens < p->kernel->few_tokens ? p->all_tokens : p->kernel->few_tokens, p->problem.out);
    bytes = bytes > few ? bytes : few;
    return (bytes + RAPT_WORKSPACE_ALIGNMENT - 1) / RAPT_WORKSPACE_ALIGNMENT * RAPT_WORKSPACE_ALIGNMENT;
}

rapt_status rapt_linear_workspace_size(const rapt_linear_plan *opaque, int64_t nth, size_t *bytes) {
    if (!opaque || !bytes) return RAPT_ERR_NULL;
    const full_linear *p = linear_of(opaque);
    if (!p) return RAPT_ERR_PLAN;
    if (nth < 1) return RAPT_ERR_RANGE;
    return __builtin_mul_overflow(thread_bytes(p), (size_t)nth, bytes) ? RAPT_ERR_SHAPE : RAPT_OK;
}

/* ---- Calls --------------------------------------------------------------------------------------------------------------- */

static rapt_status range_of(const void *at, uint64_t bytes, rapt_range *range) {
    if (bytes && !at) return RAPT_ERR_NULL;
    if (bytes > UINTPTR_MAX - (uintptr_t)at) return RAPT_ERR_STRIDE;
    *range = (rapt_range){(uintptr_t)at, bytes};
    return RAPT_OK;
}

/* May the residual be where y is? */
static bool in_place(const full_linear *p, const rapt_linear_args *a) {
    const rapt_layout *r = &p->problem.residual, *y = &p->problem.y;
    return a->residual == a->y && r->type == y->type && r->batch_stride == y->batch_stride && r->token_stride == y->token_stride;
}

static rapt_status check(const full_linear *p, const rapt_linear_args *a, int64_t nth) {
    enum { X, WEIGHT, BIAS, SCALES, RESIDUAL, Y, WORKSPACE, ALL };
    if (p->problem.weight.type == RAPT_INT8 && !a->scales) return RAPT_ERR_NULL;
    uint64_t outs = (uint64_t)p->problem.out * sizeof(float);
    uint64_t workspace = (uint64_t)thread_bytes(p) * (uint64_t)nth;
    rapt_range r[ALL];
    rapt_status status = range_of(a->x, p->x_bytes, &r[X]);
    if (status == RAPT_OK) status = range_of(a->weight, p->weight_bytes, &r[WEIGHT]);
    if (status == RAPT_OK) status = range_of(a->bias, a->bias ? outs : 0, &r[BIAS]);
    if (status == RAPT_OK) status = range_of(a->scales, a->scales ? outs : 0, &r[SCALES]);
    if (status == RAPT_OK) status = range_of(a->residual, p->residual_bytes, &r[RESIDUAL]);
    if (status == RAPT_OK) status = range_of(a->y, p->y_bytes, &r[Y]);
    if (status != RAPT_OK) return status;
    if (workspace && (!a->workspace || a->workspace_bytes < workspace)) return RAPT_ERR_WORKSPACE;
    if (workspace && (uintptr_t)a->workspace % RAPT_WORKSPACE_ALIGNMENT) return RAPT_ERR_ALIGNMENT;
    r[WORKSPACE] = (rapt_range){(uintptr_t)a->workspace, workspace};
    for (int i = X; i < WORKSPACE; i++)
        if (rapt_ranges_meet(r[i], r[WORKSPACE])) return RAPT_ERR_OVERLAP;
    for (int i = X; i < Y; i++)
        if (rapt_ranges_meet(r[i], r[Y]) && !(i == RESIDUAL && in_place(p, a))) return RAPT_ERR_OVERLAP;
    return RAPT_OK;
}

/* The plan and the arguments of a call, checked. */
static rapt_status start_call(const rapt_linear_plan *opaque, const rapt_linear_args *args, int64_t nth, rapt_linear_args *a) {
    if (!opaque) return RAPT_ERR_NULL;
    const full_linear *p = linear_of(opaque);
    if (!p) return RAPT_ERR_PLAN;
    rapt_status status = rapt_read_struct(a, sizeof *a, args);
    size_t bytes;
    if (status == RAPT_OK) status = rapt_linear_workspace_size(opaque, nth, &bytes); /* the range of nth, and overflow */
    return status == RAPT_OK ? check(p, a, nth) : status;
}

rapt_status rapt_check_linear(const rapt_linear_plan *opaque, const rapt_linear_args *args, int64_t nth) {
    rapt_linear_args a;
    return start_call(opaque, args, nth, &a);
}

/* Thread ith's share of a checked call. */
static void run_share(const full_linear *p, const rapt_linear_args *a, int64_t ith, int64_t nth) {
    int64_t parts = token_parts(p, nth), columns = nth / parts;
    if (ith >= parts * columns) return;
    rapt_linear_task t = {.problem = &p->problem,
                          .x = a->x,
                          .residual = a->residual,
                          .weight = a->weight,
                          .y = a->y,
                          .bias = a->bias,
                          .scales = a->scales};
    cut(p->all_tokens, parts == 1 ? (p->all_tokens ? p->all_tokens : 1) : p->kernel->lanes, ith / columns, parts, &t.token0,
        &t.tokens);
    cut(p->problem.out, RAPT_PARTIAL_SUMS, ith % columns, columns, &t.out0, &t.outs);
    t.scratch = (float *)(void *)((char *)a->workspace + (size_t)ith * thread_bytes(p));
    p->kernel->map_tokens(&t);
}

rapt_status rapt_linear_run(const rapt_linear_plan *plan, const rapt_linear_args *args, int64_t ith, int64_t nth) {
    rapt_linear_args a;
    rapt_status status = start_call(plan, args, nth, &a);
    if (status != RAPT_OK) return status;
    if (ith < 0 || ith >= nth) return RAPT_ERR_RANGE;
    run_share(linear_of(plan), &a, ith, nth);
    return RAPT_OK;
}

typedef struct linear_call {
    const full_linear *plan;
    rapt_linear_args args;
    int64_t nth;
} linear_call;

static void run_slot(void *arg, int64_t slot) {
    const linear_call *c = arg;
    run_share(c->plan, &c->args, slot, c->nth);
}

rapt_status rapt_linear_run_parallel(const rapt_linear_plan *plan, const rapt_linear_args *args, int64_t nth,
                                     rapt_parallel_for parallel_for, void *pool) {
    linear_call c = {.nth = nth};
    rapt_status status = parallel_for ? start_call(plan, args, nth, &c.args) : RAPT_ERR_NULL;
    if (status != RAPT_OK) return status;
    c.plan = linear_of(plan);
    parallel_for(pool, nth, run_slot, &c);
    return RAPT_OK;
}

/* ---- Layer normalisation ------------------------------------------------------------------------------------------------- */

typedef struct norm_call {
    rapt_norm_args args;
    const rapt_kernel *kernel;
    int64_t nth;
} norm_call;

static rapt_status start_norm(const rapt_norm_args *args, int64_t nth, norm_call *c) {
    rapt_norm_args *a = &c->args;
    rapt_status status = rapt_read_struct(a, sizeof *a, args);
    if (status != RAPT_OK) return status;
    if (!in_range(a->batch, 0, RAPT_MAX_LENGTH) || !in_range(a->tokens, 0, RAPT_MAX_LENGTH) ||
        !in_range(a->channels, 1, RAPT_MAX_WIDTH))
        return RAPT_ERR_SHAPE;
    if (!(a->epsilon >= 0.0f && a->epsilon <= FLT_MAX)) return RAPT_ERR_FEATURE;
    if (nth < 1) return RAPT_ERR_RANGE;
    c->nth = nth;
    uint64_t x_bytes = 0, y_bytes = 0, channels = (uint64_t)a->channels * sizeof(float);
    status = measure(&a->x, a->batch, a->tokens, a->channels, false, &x_bytes);
    if (status == RAPT_OK) status = measure(&a->y, a->batch, a->tokens, a->channels, true, &y_bytes);
    rapt_range x, y, weight, bias;
    if (status == RAPT_OK) status = range_of(a->from, x_bytes, &x);
    if (status == RAPT_OK) status = range_of(a->to, y_bytes, &y);
    if (status == RAPT_OK) status = range_of(a->weight, a->weight ? channels : 0, &weight);
    if (status == RAPT_OK) status = range_of(a->bias, a->bias ? channels : 0, &bias);
    if (status != RAPT_OK) return status;
    bool same = a->from == a->to && a->x.type == a->y.type && a->x.batch_stride == a->y.batch_stride &&
                a->x.token_stride == a->y.token_stride;
    if ((rapt_ranges_meet(x, y) && !same) || rapt_ranges_meet(weight, y) || rapt_ranges_meet(bias, y)) return RAPT_ERR_OVERLAP;
    return rapt_select(a->isa, &c->kernel);
}

static void norm_slot(void *arg, int64_t slot) {
    const norm_call *c = arg;
    const rapt_norm_args *a = &c->args;
    int64_t first, count;
    cut(a->batch * a->tokens, 1, slot, c->nth, &first, &count);
    for (int64_t token = first; token < first + count; token++) {
        int64_t entry = token / a->tokens, at = token % a->tokens;
        c->kernel->normalise(a, (const char *)a->from + entry * a->x.batch_stride + at * a->x.token_stride,
                             (char *)a->to + entry * a->y.batch_stride + at * a->y.token_stride);
    }
}

rapt_status rapt_layer_norm(const rapt_norm_args *args, int64_t ith, int64_t nth) {
    norm_call c;
    rapt_status status = start_norm(args, nth, &c);
    if (status != RAPT_OK) return status;
    if (ith < 0 || ith >= nth) return RAPT_ERR_RANGE;
    norm_slot(&c, ith);
    return RAPT_OK;
}

rapt_status rapt_layer_norm_parallel(const rapt_norm_args *args, int64_t nth, rapt_parallel_for parallel_for, void *pool) {
    norm_call c;
    rapt_status status = parallel_for ? start_norm(args, nth, &c) : RAPT_ERR_NULL;
    if (status == RAPT_OK) parallel_for(pool, nth, norm_slot, &c);
    return status;
}
