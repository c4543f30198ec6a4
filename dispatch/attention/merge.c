/* SPDX-License-Identifier: Apache-2.0 */
/* Merges states of unmerged plans, and results by their log-sum-exp. */
#include <math.h>
#include <string.h>

#include "attention/attention.h"
#include "core/float_modes.h"
#include "core/layout.h"
#include "cpu/select.h"
#include "core/work.h"

/* ---- States -------------------------------------------------------------------------------------------------------------- */

enum { MOST_CHUNKS = RAPT_MAX_LENGTH / RAPT_CHUNK + 1 };

/* Checks the strides of the states of one source, and sets *bytes to what they span. */
static rapt_status measure_states(rapt_report *r, const char *name, const full_plan *p, const rapt_states *s, uint64_t *bytes) {
    const rapt_problem *problem = &p->problem;
    const int64_t state = (int64_t)(RAPT_STATE_FLOATS(problem->d_v) * sizeof(float));
    if (!rapt_within(s->chunks, 0, MOST_CHUNKS))
        return rapt_refuse_member(r, RAPT_ERR_SHAPE, name, "chunks", s->chunks, "must be 0 to 4194304");
    rapt_dimension d[] = {{p->q_starts ? problem->batch > 0 : problem->batch, s->batch_stride, "batch_stride"},
                          {problem->heads, s->head_stride, "head_stride"},
                          {problem->q_len, s->token_stride, "token_stride"},
                          {s->chunks, s->state_stride, "state_stride"}};
    const rapt_status status = rapt_measure_dimensions(r, name, d, 4, state, false, bytes);
    if (status == RAPT_OK && *bytes && s->chunks > 1 && s->state_stride < state)
        return rapt_refuse(r, RAPT_ERR_STRIDE, "%s.state_stride = %" PRId64 ": a state has %" PRId64 " bytes", name,
                           s->state_stride, state);
    return status;
}

/* Checks the memory of a call. There may be any number of sources, and rapt_memory has room for a fixed number of regions, so
 * each source is checked against what is written, and then dropped. */
static rapt_status check_states(rapt_report *r, const full_plan *p, const rapt_args *a, const rapt_states *sources, int64_t n) {
    const rapt_problem *problem = &p->problem;
    const tensor_bytes *b = &p->bytes;
    const char *const why = "the plan has no layout for it";
    if (n < 0) return rapt_refuse_number(r, RAPT_ERR_RANGE, "n", n, "must be 0 or more");
    rapt_memory m;
    rapt_memory_begin(&m, r);
    rapt_reads(&m, "plan", p, plan_bytes(p));
    rapt_reads_array(&m, "sources", sources, n, sizeof *sources, n == 0);
    rapt_writes(&m, "o", a->o, b->o);
    rapt_writes_if(&m, problem->lse.type, "lse", a->lse, b->lse, why);
    rapt_reads_if(&m, problem->sinks.type, "sinks", a->sinks, b->sinks, why);
    if (!rapt_scales_of_tokens(&problem->v_scales)) /* scales of tokens are in the states already */
        rapt_reads_if(&m, problem->v_scales.present, "v_scales", a->v_scales, b->v_scales, why);
    rapt_reads_array(&m, "q_starts", p->q_starts, problem->batch + 1, sizeof(int32_t), true);
    int others = m.n;
    rapt_status status = rapt_check_memory(&m);
    for (int64_t i = 0; i < n && status == RAPT_OK; i++) {
        char name[RAPT_NAME_BYTES], at[RAPT_NAME_BYTES];
        uint64_t bytes = 0;
        status = measure_states(r, rapt_name_element(name, "sources", i, ""), p, &sources[i], &bytes);
        m.n = others;
        if (status == RAPT_OK) rapt_reads(&m, rapt_name_element(at, "sources", i, ".at"), sources[i].at, bytes);
        if (status == RAPT_OK) status = rapt_check_memory(&m);
    }
    return status;
}

/* A merge of states in progress. */
typedef struct merge_call {
    const full_plan *plan;
    rapt_args args;
    const rapt_states *sources;
    int64_t n;
} merge_call;

/* Reads the caller's plan and args into c, and checks all of the call. */
static rapt_status read_merge(rapt_report *r, merge_call *c, const rapt_plan *plan, const rapt_args *args,
                              const rapt_states *sources, int64_t n) {
    rapt_status status;
    c->plan = rapt_read_plan(r, plan, &status);
    c->sources = sources, c->n = n;
    if (status == RAPT_OK && !c->plan->problem.unmerged)
        return rapt_refuse(r, RAPT_ERR_PLAN, "plan = %p: was made without unmerged", (const void *)plan);
    if (status == RAPT_OK) status = rapt_read_args(r, "args", &c->args, args);
    if (status == RAPT_OK) status = check_states(r, c->plan, &c->args, sources, n);
    return status == RAPT_OK ? rapt_check_kept_starts(r, c->plan) : status;
}

rapt_status rapt_merge_states_explain(const rapt_plan *plan, const rapt_args *args, const rapt_states *sources, int64_t n,
                                      char *text, size_t bytes) {
    rapt_report r = rapt_explanation_of("rapt_merge_states_run", text, bytes);
    merge_call c;
    const rapt_status status = read_merge(&r, &c, plan, args, sources, n);
    return status == RAPT_OK ? rapt_check_floats(&r) : status;
}

/* Merges the states of one row from all sources, in their order, and writes its results. */
static void merge_row(const merge_call *c, int64_t entry, int64_t token, int64_t head) {
    const full_plan *p = c->plan;
    float state[RAPT_STATE_FLOATS(RAPT_MAX_HEAD_DIM)];
    rapt_row_end end = rapt_row_end_of(p, &c->args, entry, head, token);
    rapt_start_state(state, p->problem.d_v);
    for (int64_t i = 0; i < c->n; i++) {
        const rapt_states *s = &c->sources[i];
        if (s->chunks == 0) continue; /* its strides may be garbage */
        int64_t from =
            p->q_starts ? (p->q_starts[entry] + token) * s->token_stride : entry * s->batch_stride + token * s->token_stride;
        rapt_merge_chunks(p->kernel, &p->problem, state, (const char *)s->at + from + head * s->head_stride,
                          (size_t)s->state_stride, s->chunks);
    }
    p->kernel->base->finish(&p->problem, &end, state);
}

/* Merges thread ith's rows: ith, ith + nth, ... */
static void merge_share(const void *call, int phase, int64_t ith, int64_t nth, atomic_llong *next) {
    const merge_call *c = call;
    const rapt_problem *problem = &c->plan->problem;
    int64_t row = 0;
    (void)phase, (void)next;
    for (int64_t entry = 0; entry < problem->batch; entry++)
        for (int64_t token = 0; token < entry_queries(c->plan, entry); token++)
            for (int64_t head = 0; head < problem->heads; head++, row++)
                if (row % nth == ith) merge_row(c, entry, token, head);
}

static rapt_status merge_run(const char *name, const rapt_plan *plan, const rapt_args *args, const rapt_states *sources,
                             int64_t n, rapt_way way) {
    rapt_report r = rapt_report_of(name);
    merge_call c;
    rapt_status status = read_merge(&r, &c, plan, args, sources, n);
    const rapt_work w = {.call = &c, .phases = 1, .share = merge_share};
    return status == RAPT_OK ? rapt_work_run(&r, &w, &way) : status;
}

rapt_status rapt_merge_states_run(const rapt_plan *plan, const rapt_args *args, const rapt_states *sources, int64_t n) {
    return merge_run("rapt_merge_states_run", plan, args, sources, n, rapt_alone());
}
rapt_status rapt_merge_states_run_parallel(const rapt_plan *plan, const rapt_args *args, const rapt_states *sources, int64_t n,
                                           int64_t nth, rapt_parallel_for parallel_for, void *pool) {
    return merge_run("rapt_merge_states_run_parallel", plan, args, sources, n, rapt_parallel(nth, parallel_for, pool));
}
rapt_status rapt_merge_states_run_share(const rapt_plan *plan, const rapt_args *args, const rapt_states *sources, int64_t n,
                                        int64_t ith, int64_t nth) {
    return merge_run("rapt_merge_states_run_share", plan, args, sources, n, rapt_share(ith, nth, NULL, NULL));
}

/* ---- Results ------------------------------------------------------------------------------------------------------------- */

/* Checks a call of rapt_merge. */
static rapt_status check_results(rapt_report *r, int64_t n, int64_t rows, int64_t d_v, const float *const *o,
                                 const float *const *lse, const float *o_out, const float *lse_out) {
    if (n < 0) return rapt_refuse_number(r, RAPT_ERR_SHAPE, "n", n, "must be 0 or more");
    if (!rapt_within(d_v, 1, RAPT_MAX_HEAD_DIM)) return rapt_refuse_number(r, RAPT_ERR_SHAPE, "d_v", d_v, "must be 1 to 1024");
    if (rows < 0 || rows > PTRDIFF_MAX / (int64_t)sizeof(float) / d_v)
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, "rows", rows, "negative, or more than the address space has room for");
    rapt_memory m;
    rapt_memory_begin(&m, r);
    rapt_reads_array(&m, "o", o, n, sizeof *o, n == 0);
    rapt_reads_array(&m, "lse", lse, n, sizeof *lse, n == 0);
    int outs[2] = {rapt_writes_array(&m, "o_out", o_out, rows * d_v, sizeof(float), true),
                   rapt_writes_array(&m, "lse_out", lse_out, rows, sizeof(float), true)};
    int others = m.n;
    rapt_status status = rapt_check_memory(&m);
    for (int64_t i = 0; i < n && status == RAPT_OK;
         i++) { /* an output may be an input, since each row is read before it is written, but may not overlap one otherwise */
        char o_name[RAPT_NAME_BYTES], lse_name[RAPT_NAME_BYTES];
        rapt_name_element(o_name, "o", i, ""), rapt_name_element(lse_name, "lse", i, "");
        m.n = others;
        rapt_may_be(&m, rapt_reads_array(&m, o_name, o[i], rows * d_v, sizeof(float), false), outs[0]);
        rapt_may_be(&m, rapt_reads_array(&m, lse_name, lse[i], rows, sizeof(float), false), outs[1]);
        status = rapt_check_memory(&m);
    }
    return status;
}

rapt_status rapt_merge_explain(int64_t n, int64_t rows, int64_t d_v, const float *const *o, const float *const *lse, float *o_out,
                               float *lse_out, char *text, size_t bytes) {
    rapt_report r = rapt_explanation_of("rapt_merge", text, bytes);
    const rapt_kernel *kernel;
    rapt_status status = check_results(&r, n, rows, d_v, o, lse, o_out, lse_out);
    if (status == RAPT_OK) status = rapt_select(&r, NULL, &kernel);
    return status == RAPT_OK ? rapt_check_floats(&r) : status;
}

rapt_status rapt_merge(int64_t n, int64_t rows, int64_t d_v, const float *const *o, const float *const *lse, float *o_out,
                       float *lse_out) {
    rapt_report r = rapt_report_of("rapt_merge");
    const rapt_kernel *kernel;
    rapt_status status = check_results(&r, n, rows, d_v, o, lse, o_out, lse_out);
    if (status == RAPT_OK) status = rapt_select(&r, NULL, &kernel);
    if (status == RAPT_OK) status = rapt_check_floats(&r);
    if (status != RAPT_OK) return status;
    const float log2_e = 1.4426950408889634f;
    rapt_problem problem = {
        .d_v = (int32_t)d_v, .o = {.type = RAPT_F32}, .exponent = log2_e, .natural = 1.0f, .least = -127.0f / log2_e};
    for (int64_t row = 0; row < rows; row++) {
        float state[RAPT_STATE_FLOATS(RAPT_MAX_HEAD_DIM)], next[RAPT_STATE_FLOATS(RAPT_MAX_HEAD_DIM)], o_row[RAPT_MAX_HEAD_DIM];
        rapt_start_state(state, problem.d_v);
        for (int64_t i = 0; i < n; i++) {
            if (lse[i][row] == -INFINITY) continue;
            rapt_start_state(next, problem.d_v);
            next[RAPT_STATE_M] = lse[i][row];
            next[RAPT_STATE_L] = 1.0f;
            memcpy(next + RAPT_STATE_O, o[i] + row * d_v, (size_t)d_v * sizeof *next);
            kernel->base->merge(&problem, state, next);
        }
        rapt_row_end end = {.o = (char *)(o_out ? o_out + row * d_v : o_row), .lse = (char *)(lse_out ? lse_out + row : NULL)};
        kernel->base->finish(&problem, &end, state);
    }
    return RAPT_OK;
}
