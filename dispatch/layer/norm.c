/* SPDX-License-Identifier: Apache-2.0 */
/* Layer and RMS normalisation: checks calls, and runs each thread's share. */
#include <float.h>

#include "core/float_modes.h"
#include "kernel.h"
#include "core/layout.h"
#include "core/memory.h"
#include "cpu/select.h"
#include "core/structs.h"
#include "core/work.h"

static const rapt_norm_args default_norm_args = {.batch = 1, .epsilon = 1e-5f};

void rapt_norm_args_init_sized(rapt_norm_args *args, size_t size) {
    rapt_init_struct(args, size, &default_norm_args, sizeof default_norm_args);
}

typedef struct norm_call {
    rapt_norm_args args;
    const rapt_kernel *kernel;
    bool rms;
} norm_call;

/* Registers the sum of x and the residual, if it is wanted. The sum may be written over x, unless y is written there, or
 * over the residual. */
static void register_sum(rapt_memory *m, const rapt_norm_args *a, int x, int residual) {
    uint64_t bytes = 0;
    if (a->sum.type && m->status == RAPT_OK)
        m->status = rapt_measure_tokens(m->report, "sum", &a->sum, RAPT_FLOATS, a->batch, a->tokens, a->channels, true, &bytes);
    int sum = rapt_writes_if(m, a->sum.type, "sum_to", a->sum_to, bytes, "sum has no type");
    if (a->sum_to == a->from && rapt_same_rows(&a->sum, &a->x)) rapt_may_be(m, sum, x);
    else if (a->residual.type && rapt_same_rows(&a->sum, &a->residual)) rapt_may_be(m, sum, residual);
}

/* Checks the tensors and the memory of the call. */
static rapt_status norm_check_memory(rapt_report *r, const norm_call *c) {
    const rapt_norm_args *a = &c->args;
    const int64_t tokens = a->batch * a->tokens;
    uint64_t x_bytes = 0, y_bytes = 0, bytes = 0;
    rapt_memory m;
    rapt_memory_begin(&m, r);
    m.status = rapt_measure_tokens(r, "x", &a->x, RAPT_FLOATS, a->batch, a->tokens, a->channels, false, &x_bytes);
    if (m.status == RAPT_OK)
        m.status = rapt_measure_tokens(r, "y", &a->y, RAPT_FLOATS, a->batch, a->tokens, a->channels, true, &y_bytes);
    int x = rapt_reads(&m, "from", a->from, x_bytes), y = rapt_writes(&m, "to", a->to, y_bytes);
    if (rapt_same_rows(&a->x, &a->y)) rapt_may_be(&m, y, x);
    if (a->residual.type && m.status == RAPT_OK)
        m.status = rapt_measure_tokens(r, "residual", &a->residual, RAPT_FLOATS, a->batch, a->tokens, a->channels, false, &bytes);
    int residual = rapt_reads_if(&m, a->residual.type, "residual_from", a->residual_from, bytes, "residual has no type");
    register_sum(&m, a, x, residual);
    rapt_reads_array(&m, "weight", a->weight, a->channels, sizeof(float), true);
    rapt_reads_array(&m, "bias", a->bias, a->channels, sizeof(float), true);
    if (c->rms) rapt_unused(&m, "mean", a->mean, "RMS normalisation has none");
    else rapt_writes_array(&m, "mean", a->mean, tokens, sizeof(float), true);
    rapt_writes_array(&m, "inverse_deviation", a->inverse_deviation, tokens, sizeof(float), true);
    return rapt_check_memory(&m);
}

/* Reads the caller's struct into c, checks all of the call, and selects the kernel. */
static rapt_status start_norm(rapt_report *r, norm_call *c, bool rms, const rapt_norm_args *args) {
    rapt_norm_args *a = &c->args;
    rapt_status status =
        rapt_read_struct(r, "args", a, &default_norm_args, sizeof *a, RAPT_BEFORE(rapt_norm_args, residual), args);
    c->rms = rms;
    if (status != RAPT_OK) return status;
    if (!rapt_within(a->batch, 0, RAPT_MAX_LENGTH))
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, "batch", a->batch, "must be 0 to 2147483647");
    if (!rapt_within(a->tokens, 0, RAPT_MAX_LENGTH))
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, "tokens", a->tokens, "must be 0 to 2147483647");
    if (!rapt_within(a->channels, 1, RAPT_MAX_WIDTH))
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, "channels", a->channels, "must be 1 to 1048576");
    if (!(a->epsilon >= 0.0f && a->epsilon <= FLT_MAX))
        return rapt_refuse(r, RAPT_ERR_FEATURE, "epsilon = %g: must be finite, 0 or more", (double)a->epsilon);
    status = norm_check_memory(r, c);
    return status == RAPT_OK ? rapt_select(r, a->isa, &c->kernel) : status;
}

static void norm_share(const void *call, int phase, int64_t ith, int64_t nth, atomic_llong *next) {
    const norm_call *c = call;
    const rapt_norm_args *a = &c->args;
    (void)phase, (void)next;
    int64_t first, count;
    rapt_cut_range(a->batch * a->tokens, 1, ith, nth, &first, &count);
    for (int64_t token = first; token < first + count; token++) {
        int64_t entry = token / a->tokens, at = token % a->tokens;
        rapt_norm_task t = {
            .x = (const char *)a->from + entry * a->x.batch_stride + at * a->x.token_stride,
            .y = (char *)a->to + entry * a->y.batch_stride + at * a->y.token_stride,
            .mean = a->mean ? a->mean + token : NULL,
            .inverse_deviation = a->inverse_deviation ? a->inverse_deviation + token : NULL,
            .rms = c->rms,
        };
        if (a->residual.type)
            t.residual = (const char *)a->residual_from + entry * a->residual.batch_stride + at * a->residual.token_stride;
        if (a->sum.type) t.sum = (char *)a->sum_to + entry * a->sum.batch_stride + at * a->sum.token_stride;
        c->kernel->base->normalise(a, &t);
    }
}

static rapt_status norm_run(const char *name, bool rms, const rapt_norm_args *args, rapt_way way) {
    rapt_report r = rapt_report_of(name);
    norm_call c;
    rapt_status status = start_norm(&r, &c, rms, args);
    const rapt_work w = {.call = &c, .phases = 1, .share = norm_share};
    return status == RAPT_OK ? rapt_work_run(&r, &w, &way) : status;
}

static rapt_status norm_explain(const char *name, bool rms, const rapt_norm_args *args, char *text, size_t bytes) {
    rapt_report r = rapt_explanation_of(name, text, bytes);
    norm_call c;
    const rapt_status status = start_norm(&r, &c, rms, args);
    return status == RAPT_OK ? rapt_check_floats(&r) : status;
}

rapt_status rapt_layer_norm_run(const rapt_norm_args *args) { return norm_run("rapt_layer_norm_run", false, args, rapt_alone()); }
rapt_status rapt_layer_norm_run_parallel(const rapt_norm_args *args, int64_t nth, rapt_parallel_for parallel_for, void *pool) {
    return norm_run("rapt_layer_norm_run_parallel", false, args, rapt_parallel(nth, parallel_for, pool));
}
rapt_status rapt_layer_norm_run_share(const rapt_norm_args *args, int64_t ith, int64_t nth) {
    return norm_run("rapt_layer_norm_run_share", false, args, rapt_share(ith, nth, NULL, NULL));
}
rapt_status rapt_layer_norm_explain(const rapt_norm_args *args, char *text, size_t bytes) {
    return norm_explain("rapt_layer_norm_run", false, args, text, bytes);
}

rapt_status rapt_rms_norm_run(const rapt_norm_args *args) { return norm_run("rapt_rms_norm_run", true, args, rapt_alone()); }
rapt_status rapt_rms_norm_run_parallel(const rapt_norm_args *args, int64_t nth, rapt_parallel_for parallel_for, void *pool) {
    return norm_run("rapt_rms_norm_run_parallel", true, args, rapt_parallel(nth, parallel_for, pool));
}
rapt_status rapt_rms_norm_run_share(const rapt_norm_args *args, int64_t ith, int64_t nth) {
    return norm_run("rapt_rms_norm_run_share", true, args, rapt_share(ith, nth, NULL, NULL));
}
rapt_status rapt_rms_norm_explain(const rapt_norm_args *args, char *text, size_t bytes) {
    return norm_explain("rapt_rms_norm_run", true, args, text, bytes);
}
