/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers: validation, and how threads share the work. */
#include <math.h>
#include <string.h>

#include "core/float_modes.h"
#include "core/layout.h"
#include "attention/path.h"
#include "layer/prepack.h"
#include "cpu/select.h"
#include "core/structs.h"
#include "core/tuning.h"
#include "core/work.h"

const rapt_linear_desc rapt_default_linear_desc = {.batch = 1};
static const rapt_linear_args default_linear_args = {0};

void rapt_linear_desc_init_sized(rapt_linear_desc *desc, size_t size) {
    rapt_init_struct(desc, size, &rapt_default_linear_desc, sizeof rapt_default_linear_desc);
}

void rapt_linear_args_init_sized(rapt_linear_args *args, size_t size) {
    rapt_init_struct(args, size, &default_linear_args, sizeof default_linear_args);
}

/* ---- The plan ------------------------------------------------------------------------------------------------------------ */

static const rapt_linear_names own_names = {"in", "out", "x", "y", "residual", "weight", "bias", "scales", "prepacked"};
static const rapt_linear_names gate_names = {
    .weight = "gate", .bias = "gate_bias", .scales = "gate_scales", .prepacked = "gate_prepacked"};

/* True if weights of this type can be multiplied in integer arithmetic. */
static bool has_integers(rapt_type type) {
    const rapt_type_class class_of = rapt_type_class_of(type);
    return class_of == RAPT_CLASS_WEIGHT || class_of == RAPT_CLASS_MATRIX;
}

/* Checks that the weights, and those of a gate, have a type that integer arithmetic can multiply. */
static rapt_status check_integer_weights(rapt_report *r, const rapt_linear_desc *d, const rapt_linear_names *names) {
    static const char of_integers[] = "must be RAPT_INT8, Q8_0, Q4_0, Q4_1, Q4_K or Q6_K for RAPT_INT8_DOT";
    if (!has_integers(d->weight.type))
        return rapt_refuse_type(r, RAPT_ERR_ARITH, names->weight, "type", d->weight.type, of_integers);
    if (d->gate.type && !has_integers(d->gate.type))
        return rapt_refuse_type(r, RAPT_ERR_ARITH, "gate", "type", d->gate.type, of_integers);
    return RAPT_OK;
}

rapt_status rapt_make_linear(rapt_report *r, full_linear *p, const rapt_linear_desc *d, const rapt_linear_names *names) {
    if (!rapt_within(d->batch, 0, RAPT_MAX_LENGTH))
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, "batch", d->batch, "must be 0 to 2147483647");
    if (!rapt_within(d->tokens, 0, RAPT_MAX_LENGTH))
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, "tokens", d->tokens, "must be 0 to 2147483647");
    if (!rapt_within(d->in, 1, RAPT_MAX_WIDTH))
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, names->in, d->in, "must be 1 to 1048576");
    if (!rapt_within(d->out, 1, RAPT_MAX_WIDTH))
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, names->out, d->out, "must be 1 to 1048576");
    if (!rapt_within((int64_t)d->activation, RAPT_ACTIVATION_NONE, RAPT_SILU))
        return rapt_refuse_number(r, RAPT_ERR_FEATURE, "activation", (int)d->activation, "not a rapt_activation");
    if (!rapt_within((int64_t)d->arith, RAPT_EXACT, RAPT_BF16_DOT))
        return rapt_refuse_number(r, RAPT_ERR_ARITH, "arith", (int)d->arith, "not a rapt_arith");
    *p = (full_linear){
        .made = LINEAR_MADE,
        .problem = {.tokens = d->tokens,
                    .in = d->in,
                    .out = d->out,
                    .x = d->x,
                    .y = d->y,
                    .residual = d->residual,
                    .weight = d->weight,
                    .activation = d->activation,
                    .gate = d->gate,
                    .arith = d->arith},
        .all_tokens = d->batch * d->tokens,
    };
    rapt_status status = rapt_measure_tokens(r, names->x, &d->x, RAPT_FLOATS, d->batch, d->tokens, d->in, false, &p->x_bytes);
    if (status == RAPT_OK)
        status = rapt_measure_tokens(r, names->y, &d->y, RAPT_FLOATS, d->batch, d->tokens, d->out, true, &p->y_bytes);
    if (status == RAPT_OK && d->residual.type)
        status = rapt_measure_tokens(r, names->residual, &d->residual, RAPT_FLOATS, d->batch, d->tokens, d->out, false,
                                     &p->residual_bytes);
    if (status == RAPT_OK)
        status = rapt_measure_tokens(r, names->weight, &d->weight, RAPT_WEIGHTS, 1, d->out, d->in, false, &p->weight_bytes);
    if (status == RAPT_OK && d->gate.type)
        status = rapt_measure_tokens(r, "gate", &d->gate, RAPT_WEIGHTS, 1, d->out, d->in, false, &p->gate_bytes);
    if (status == RAPT_OK && d->arith == RAPT_INT8_DOT) status = check_integer_weights(r, d, names);
    if (status == RAPT_OK) status = rapt_select(r, d->isa, &p->kernel);
    rapt_tuning tuning;
    if (status == RAPT_OK) status = rapt_read_tuning(r, p->kernel, d->tuning, &tuning);
    if (status != RAPT_OK) return status;
    p->problem.staged_weights = (int64_t)(rapt_l2_bytes() / 16 / sizeof(float)) * tuning.weights_l2;
    p->problem.few_tokens = d->arith == RAPT_BF16_DOT ? tuning.bf16_few_tokens : tuning.few_tokens;
    p->problem.long_row = tuning.long_row;
    p->problem.long_ahead = tuning.long_ahead;
    p->problem.short_ahead = tuning.short_ahead;
    p->staging_outputs = tuning.staging_outputs;
    return RAPT_OK;
}

static rapt_status linear_make_plan(rapt_report *r, full_linear *p, const rapt_linear_desc *desc) {
    rapt_linear_desc d;
    rapt_status status =
        rapt_read_struct(r, "desc", &d, &rapt_default_linear_desc, sizeof d, RAPT_BEFORE(rapt_linear_desc, gate), desc);
    return status == RAPT_OK ? rapt_make_linear(r, p, &d, &own_names) : status;
}

rapt_status rapt_linear_plan_init_sized(rapt_linear_plan *plan, size_t bytes, const rapt_linear_desc *desc) {
    rapt_report r = rapt_report_of("rapt_linear_plan_init");
    full_linear p;
    rapt_status status = rapt_check_plan_memory(&r, plan, bytes, sizeof p);
    if (status == RAPT_OK) status = linear_make_plan(&r, &p, desc);
    if (status != RAPT_OK) return status;
    memcpy(plan, &p, sizeof p);
    const rapt_linear_problem *l = &p.problem;
    /* NOLINTBEGIN(clang-analyzer-core.NullDereference): rapt_refuse, in another file, never returns RAPT_OK */
    rapt_trace_line("%s: %s; %" PRId64 " tokens, %" PRId64 " to %" PRId64 " channels, types %s %s to %s, activation %d%s%s%s",
                    r.call, p.kernel->name, p.all_tokens, l->in, l->out, rapt_type_name(l->x.type),
                    rapt_type_name(l->weight.type), rapt_type_name(l->y.type), (int)l->activation, l->gate.type ? ", gate" : "",
                    l->residual.type ? ", residual" : "",
                    l->arith == RAPT_BF16_DOT   ? ", in bf16 arithmetic"
                    : l->arith == RAPT_INT8_DOT ? ", in integer arithmetic"
                                                : "");
    /* NOLINTEND(clang-analyzer-core.NullDereference) */
    return RAPT_OK;
}

rapt_status(rapt_linear_plan_init)(rapt_linear_plan *plan, const rapt_linear_desc *desc) {
    return rapt_linear_plan_init_sized(plan, LINEAR_PLAN_WORDS * sizeof(uint64_t), desc);
}

rapt_status rapt_linear_explain(const rapt_linear_desc *desc, char *text, size_t bytes) {
    rapt_report r = rapt_explanation_of("rapt_linear_plan_init", text, bytes);
    full_linear p;
    return linear_make_plan(&r, &p, desc);
}

/* ---- Shares -------------------------------------------------------------------------------------------------------------- */

static int tile_rows(const full_linear *p) { return rapt_arithmetic_of(p->kernel, p->problem.arith)->tile_rows; }

/* Returns into how many parts the tokens are cut. Threads form a grid: a part has whole tiles of tokens, and its nth / parts
 * threads share the outputs by whole sixteens (RAPT_PARTIAL_SUMS). The number is the one with which the slowest thread has the
 * least work, tiles * (outputs + staging_outputs). Few tokens are one part. */
static int64_t token_parts(const full_linear *p, int64_t nth) {
    int64_t tiles = rapt_divide_up(p->all_tokens, tile_rows(p)), sixteens = rapt_divide_up(p->problem.out, RAPT_PARTIAL_SUMS);
    if (p->all_tokens <= p->problem.few_tokens) return 1;
    int64_t best = 1;
    double least = INFINITY;
    for (int64_t parts = 1; parts <= nth && parts <= tiles; parts++) {
        double cost = (double)rapt_divide_up(tiles, parts) *
                      (double)(rapt_divide_up(sixteens, nth / parts) * RAPT_PARTIAL_SUMS + p->staging_outputs);
        if (cost < least) best = parts, least = cost;
    }
    return best;
}

size_t rapt_linear_scratch(const full_linear *p) {
    const rapt_arithmetic *arithmetic = rapt_arithmetic_of(p->kernel, p->problem.arith);
    size_t bytes = arithmetic->linear_scratch_bytes(&p->problem, p->all_tokens, p->problem.out);
    size_t few = arithmetic->linear_scratch_bytes(&p->problem, rapt_min(p->all_tokens, p->problem.few_tokens), p->problem.out);
    bytes = bytes > few ? bytes : few;
    return (size_t)rapt_aligned_bytes(bytes);
}

static rapt_status linear_workspace(rapt_report *r, const full_linear *p, int64_t nth, size_t *bytes) {
    if (nth < 1) return rapt_refuse_number(r, RAPT_ERR_RANGE, "nth", nth, "there is no thread");
    if ((uint64_t)nth > SIZE_MAX || __builtin_mul_overflow(rapt_linear_scratch(p), (size_t)nth, bytes))
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, "nth", nth, "the workspace would exceed the address space");
    return RAPT_OK;
}

rapt_status rapt_linear_workspace_size(const rapt_linear_plan *opaque, int64_t nth, size_t *bytes) {
    rapt_report r = rapt_report_of("rapt_linear_workspace_size");
    rapt_status status;
    size_t needed = 0;
    const full_linear *p = rapt_read_linear_plan(&r, opaque, &status);
    if (status == RAPT_OK && !bytes) return rapt_refuse_null(&r, "bytes", "there is nowhere to write it");
    if (status == RAPT_OK) status = linear_workspace(&r, p, nth, &needed);
    if (status == RAPT_OK) *bytes = needed;
    return status;
}

/* ---- Calls --------------------------------------------------------------------------------------------------------------- */

void rapt_register_weights(rapt_memory *m, const rapt_layout *weight, int64_t out, uint64_t bytes, const rapt_linear_weights *w,
                           const rapt_linear_names *names) {
    rapt_reads(m, names->weight, w->rows, bytes);
    rapt_reads_array(m, names->bias, w->bias, out, sizeof(float), true);
    rapt_reads_array(m, names->scales, w->scales, out, sizeof(float), weight->type != RAPT_INT8);
}

/* Returns the weights of a call without `packed`, an address within the prepacked weights: it is computed after these have been
 * checked (rapt_linear_share). */
static rapt_linear_weights weights_of(const rapt_linear_args *a) {
    return (rapt_linear_weights){.rows = a->weight, .bias = a->bias, .scales = a->scales};
}

/* Returns the gate's weights of a call, without `packed`. */
static rapt_linear_weights gate_of(const rapt_linear_args *a) {
    return (rapt_linear_weights){.rows = a->gate, .bias = a->gate_bias, .scales = a->gate_scales};
}

/* Reads the caller's struct into c, and checks all of the call. */
static rapt_status linear_read_call(rapt_report *r, rapt_linear_call *c, const rapt_linear_plan *opaque,
                                    const rapt_linear_args *args, int64_t nth) {
    rapt_linear_args *a = &c->args;
    rapt_status status;
    const full_linear *p = c->plan = rapt_read_linear_plan(r, opaque, &status);
    size_t bytes = 0;
    if (status == RAPT_OK)
        status = rapt_read_struct(r, "args", a, &default_linear_args, sizeof *a, RAPT_BEFORE(rapt_linear_args, gate), args);
    if (status == RAPT_OK) status = linear_workspace(r, p, nth, &bytes);
    if (status != RAPT_OK) return status;
    const rapt_linear_problem *l = &p->problem;
    const rapt_linear_weights weight = weights_of(a), gate = gate_of(a);
    rapt_memory m;
    rapt_memory_begin(&m, r);
    rapt_reads(&m, "plan", p, sizeof *p);
    rapt_reads(&m, "x", a->x, p->x_bytes);
    rapt_register_weights(&m, &l->weight, l->out, p->weight_bytes, &weight, &own_names);
    if (l->gate.type) {
        rapt_register_weights(&m, &l->gate, l->out, p->gate_bytes, &gate, &gate_names);
    } else {
        rapt_unused(&m, "gate", a->gate, "the plan has no layout for it");
        rapt_unused(&m, "gate_bias", a->gate_bias, "the plan has no gate");
        rapt_unused(&m, "gate_scales", a->gate_scales, "the plan has no gate");
        rapt_unused(&m, "gate_prepacked", a->gate_prepacked, "the plan has no gate");
    }
    rapt_reads_prepacked(&m, p, "prepacked", a->prepacked, l->weight.type);
    rapt_reads_prepacked(&m, p, "gate_prepacked", a->gate_prepacked, l->gate.type);
    int y = rapt_writes(&m, "y", a->y, p->y_bytes);
    int residual =
        rapt_reads_if(&m, l->residual.type, "residual", a->residual, p->residual_bytes, "the plan has no layout for it");
    if (rapt_same_rows(&l->residual, &l->y)) rapt_may_be(&m, residual, y);
    rapt_writes_workspace(&m, a->workspace, a->workspace_bytes, bytes);
    status = rapt_check_memory(&m);
    if (status == RAPT_OK) status = rapt_check_prepacked(r, p, "prepacked", a->prepacked, l->weight.type);
    if (status == RAPT_OK) status = rapt_check_prepacked(r, p, "gate_prepacked", a->gate_prepacked, l->gate.type);
    return status;
}

rapt_status rapt_linear_args_explain(const rapt_linear_plan *plan, const rapt_linear_args *args, int64_t nth, char *text,
                                     size_t bytes) {
    rapt_report r = rapt_explanation_of("rapt_linear_run", text, bytes);
    rapt_linear_call c;
    const rapt_status status = linear_read_call(&r, &c, plan, args, nth);
    return status == RAPT_OK ? rapt_check_floats(&r) : status;
}

void rapt_linear_share(const rapt_linear_call *c, int64_t ith, int64_t nth) {
    const full_linear *p = c->plan;
    const rapt_linear_args *a = &c->args;
    int64_t parts = token_parts(p, nth), columns = nth / parts;
    if (ith >= parts * columns) return;
    rapt_linear_task t = {
        .problem = &p->problem, .x = a->x, .residual = a->residual, .y = a->y, .weight = weights_of(a), .gate = gate_of(a)};
    t.weight.packed = rapt_prepacked_weights(a->prepacked), t.gate.packed = rapt_prepacked_weights(a->gate_prepacked);
    rapt_cut_range(p->all_tokens, parts == 1 ? (p->all_tokens ? p->all_tokens : 1) : tile_rows(p), ith / columns, parts,
                   &t.token0, &t.tokens);
    rapt_cut_range(p->problem.out, RAPT_PARTIAL_SUMS, ith % columns, columns, &t.out0, &t.outs);
    t.scratch = (float *)(void *)((char *)a->workspace + (size_t)ith * rapt_linear_scratch(p));
    rapt_arithmetic_of(p->kernel, p->problem.arith)->linear_tokens(&t);
}

static void linear_share(const void *call, int phase, int64_t ith, int64_t nth, atomic_llong *next) {
    (void)phase, (void)next;
    rapt_linear_share(call, ith, nth);
}

static rapt_status linear_run(const char *name, const rapt_linear_plan *plan, const rapt_linear_args *args, rapt_way way) {
    rapt_report r = rapt_report_of(name);
    rapt_linear_call c;
    rapt_status status = linear_read_call(&r, &c, plan, args, way.nth);
    const rapt_work w = {.call = &c, .phases = 1, .share = linear_share};
    return status == RAPT_OK ? rapt_work_run(&r, &w, &way) : status;
}

rapt_status rapt_linear_run(const rapt_linear_plan *plan, const rapt_linear_args *args) {
    return linear_run("rapt_linear_run", plan, args, rapt_alone());
}
rapt_status rapt_linear_run_parallel(const rapt_linear_plan *plan, const rapt_linear_args *args, int64_t nth,
                                     rapt_parallel_for parallel_for, void *pool) {
    return linear_run("rapt_linear_run_parallel", plan, args, rapt_parallel(nth, parallel_for, pool));
}
rapt_status rapt_linear_run_share(const rapt_linear_plan *plan, const rapt_linear_args *args, int64_t ith, int64_t nth) {
    return linear_run("rapt_linear_run_share", plan, args, rapt_share(ith, nth, NULL, NULL));
}
